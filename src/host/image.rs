//! Config drives as images: the same bytes for the same input.
//!
//! The module writes both layouts of KubeVirt (`kubevirt/kubevirt:pkg/cloud-init/cloud-init.go`): [`ConfigDrive`],
//! which OpenStack defines, and [`NoCloud`], which cloud-init defines. [`Instance`] has the facts about a machine that
//! KubeVirt writes into both.
//!
//! The image is ISO 9660 with Rock Ridge and Joliet. The image does not depend on the clock: files have the date 1970,
//! and the volume has no date and therefore no UUID.
//!
//! ```
//! use glowplug::host::image::{ConfigDrive, Instance};
//!
//! let instance = Instance {
//!     namespace: "clusters",
//!     name: "worker-0",
//!     uuid: Some("5d307ca9-b3ef-428c-8861-06e72d69f223"),
//!     hostname: None,
//!     instance_type: None,
//!     public_keys: &[],
//! };
//! let meta_data = instance.meta_data_json();
//! assert_eq!(
//!     meta_data,
//!     r#"{"hostname":"worker-0","instance_id":"worker-0.clusters","uuid":"5d307ca9-b3ef-428c-8861-06e72d69f223"}"#
//! );
//! let drive = ConfigDrive { meta_data: meta_data.as_bytes(), network_data: Some(b"{}"), user_data: b"" };
//! assert_eq!(drive.image()?.len(), 1024 * 1024);
//! # Ok::<(), glowplug::host::image::ImageError>(())
//! ```

mod iso9660;

use std::fmt;

use serde_json::{Map, Value};

use self::iso9660::Volume;

/// Largest size of a file on a drive, in bytes. The guest reads no larger file. KubeVirt takes the content from a
/// Secret, which cannot hold a larger file.
#[doc(hidden)]
pub const MAX_FILE: usize = 1024 * 1024;

/// Largest size, in bytes, of user data or network data in a VirtualMachine. KubeVirt takes larger data only from a
/// Secret.
#[doc(hidden)]
pub const MAX_INLINE: usize = 2048;

/// OpenStack's layout, on a volume with the label `config-2`. The contents of the files are written unchanged.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ConfigDrive<'a> {
    /// `openstack/latest/meta_data.json`
    pub meta_data: &'a [u8],
    /// `openstack/latest/network_data.json`. `None`: the drive has no such file.
    pub network_data: Option<&'a [u8]>,
    /// `openstack/latest/user_data`. The drive has this file even when the content is empty.
    pub user_data: &'a [u8],
}

/// cloud-init's own layout, on a volume with the label `cidata`. The contents of the files are written unchanged.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct NoCloud<'a> {
    /// `meta-data`
    pub meta_data: &'a [u8],
    /// `network-config`. `None`: the drive has no such file.
    pub network_config: Option<&'a [u8]>,
    /// `user-data`. The drive has this file even when the content is empty.
    pub user_data: &'a [u8],
}

/// The facts about a machine (a VirtualMachineInstance) that KubeVirt writes to a drive.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Instance<'a> {
    /// The namespace of the object.
    pub namespace: &'a str,
    /// The name of the object.
    pub name: &'a str,
    /// The firmware UUID. cloud-init accepts no config drive without the UUID. For NoCloud, the UUID is the instance
    /// id.
    pub uuid: Option<&'a str>,
    /// `spec.hostname`. `None`: the hostname is the name up to its first dot, cut to 63 characters, without trailing
    /// `-`.
    pub hostname: Option<&'a str>,
    /// The name of the instance type.
    pub instance_type: Option<&'a str>,
    /// Lines for `authorized_keys`. One string may have several lines.
    pub public_keys: &'a [&'a str],
}

/// Why an image cannot be made.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum ImageError {
    /// A file has more than [`MAX_FILE`] bytes.
    TooLarge {
        /// The name of the file.
        name: &'static str,
        /// Size of the file, in bytes.
        size: usize,
    },
}

/// A JSON object of the members that have a value.
fn json<const N: usize>(members: [(&str, Option<Value>); N]) -> String {
    let members = members.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
    Value::Object(members.collect()).to_string()
}

fn image(
    label: &'static str,
    path: &'static [&'static str],
    files: [Option<(&'static str, &[u8])>; 3],
) -> Result<Vec<u8>, ImageError> {
    let files: Vec<(&str, &[u8])> = files.into_iter().flatten().collect();
    match files.iter().find(|(_, content)| content.len() > MAX_FILE) {
        Some((name, content)) => Err(ImageError::TooLarge { name, size: content.len() }),
        None => Ok(Volume { label, path, files }.image()),
    }
}

// === impl ConfigDrive ===

impl ConfigDrive<'_> {
    /// Makes the image. Its size is a multiple of 1 MiB, and 1 MiB for small contents, as in KubeVirt.
    ///
    /// # Errors
    ///
    /// [`ImageError::TooLarge`] for the first file that is too large.
    pub fn image(&self) -> Result<Vec<u8>, ImageError> {
        image(
            "config-2",
            &["openstack", "latest"],
            [
                Some(("meta_data.json", self.meta_data)),
                self.network_data.map(|content| ("network_data.json", content)),
                Some(("user_data", self.user_data)),
            ],
        )
    }
}

// === impl NoCloud ===

impl NoCloud<'_> {
    /// Makes the image. Its size is a multiple of 1 MiB, and 1 MiB for small contents, as in KubeVirt.
    ///
    /// # Errors
    ///
    /// [`ImageError::TooLarge`] for the first file that is too large.
    pub fn image(&self) -> Result<Vec<u8>, ImageError> {
        image(
            "cidata",
            &[],
            [
                Some(("meta-data", self.meta_data)),
                self.network_config.map(|content| ("network-config", content)),
                Some(("user-data", self.user_data)),
            ],
        )
    }
}

// === impl Instance ===

impl Instance<'_> {
    /// `meta_data.json` of a [`ConfigDrive`], in one line of JSON.
    #[must_use]
    pub fn meta_data_json(&self) -> String {
        json([
            ("hostname", Some(self.written_hostname().into())),
            ("instance_id", Some(format!("{}.{}", self.name, self.namespace).into())),
            ("instance_type", self.instance_type.map(Value::from)),
            ("public_keys", self.numbered_keys()),
            ("uuid", self.uuid.map(Value::from)),
        ])
    }

    /// `meta-data` of a [`NoCloud`] drive, in one line of JSON. The instance id is the UUID, or empty without a UUID.
    #[must_use]
    pub fn meta_data(&self) -> String {
        json([
            ("instance-id", Some(self.uuid.unwrap_or_default().into())),
            ("instance-type", self.instance_type.map(Value::from)),
            ("local-hostname", Some(self.written_hostname().into())),
            ("public-keys", self.numbered_keys()),
        ])
    }

    fn written_hostname(&self) -> &str {
        let first = || {
            let label = self.name.split('.').next().unwrap_or_default();
            label.char_indices().nth(63).map_or(label, |(end, _)| &label[..end]).trim_end_matches('-')
        };
        self.hostname.unwrap_or_else(first)
    }

    /// The public keys as a map with the keys `"0"`, `"1"` and so on. `None`: there is no public key.
    fn numbered_keys(&self) -> Option<Value> {
        let numbered = self.public_keys.iter().enumerate();
        let keys: Map<_, _> = numbered.map(|(number, key)| (number.to_string(), Value::from(*key))).collect();
        (!keys.is_empty()).then_some(Value::Object(keys))
    }
}

// === impl ImageError ===

impl fmt::Display for ImageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLarge { name, size } => write!(f, "{name}: file of {size} bytes, expected at most {MAX_FILE}"),
        }
    }
}

impl std::error::Error for ImageError {}

#[cfg(test)]
mod tests {
    use super::*;

    const WORKER: Instance<'_> = Instance {
        namespace: "clusters",
        name: "worker-0",
        uuid: None,
        hostname: None,
        instance_type: None,
        public_keys: &[],
    };

    #[test]
    fn the_metadata_of_both_layouts_has_all_facts_about_a_machine() {
        let keys = ["ssh-ed25519 AAAA a\nssh-ed25519 AAAA b\n", "ssh-ed25519 AAAA c"];
        let instance = Instance {
            uuid: Some("5d307ca9-b3ef-428c-8861-06e72d69f223"),
            hostname: Some("node \"0\""),
            instance_type: Some("u1.large"),
            public_keys: &keys,
            ..WORKER
        };
        assert_eq!(
            instance.meta_data_json(),
            concat!(
                r#"{"hostname":"node \"0\"","instance_id":"worker-0.clusters","instance_type":"u1.large","#,
                r#""public_keys":{"0":"ssh-ed25519 AAAA a\nssh-ed25519 AAAA b\n","1":"ssh-ed25519 AAAA c"},"#,
                r#""uuid":"5d307ca9-b3ef-428c-8861-06e72d69f223"}"#
            )
        );
        assert_eq!(
            instance.meta_data(),
            concat!(
                r#"{"instance-id":"5d307ca9-b3ef-428c-8861-06e72d69f223","instance-type":"u1.large","#,
                r#""local-hostname":"node \"0\"","#,
                r#""public-keys":{"0":"ssh-ed25519 AAAA a\nssh-ed25519 AAAA b\n","1":"ssh-ed25519 AAAA c"}}"#
            )
        );
    }

    #[test]
    fn unknown_metadata_is_left_out_except_the_instance_id() {
        assert_eq!(WORKER.meta_data_json(), r#"{"hostname":"worker-0","instance_id":"worker-0.clusters"}"#);
        assert_eq!(WORKER.meta_data(), r#"{"instance-id":"","local-hostname":"worker-0"}"#);
    }

    #[test]
    fn a_hostname_is_the_first_label_of_the_name_with_at_most_63_characters() {
        let (fits, long) = ("w".repeat(63), "w".repeat(64));
        let (dots, dash) = (format!("{long}.example"), format!("{}-{long}", &fits[1..]));
        let cases = [("a.b.c", "a"), (&fits, &fits), (&long, &fits), (&dots, &fits), (&dash, &fits[1..]), ("", "")];
        for (name, expected) in cases {
            assert_eq!(Instance { name, ..WORKER }.written_hostname(), expected);
        }
    }

    #[test]
    fn the_error_about_a_file_over_the_limit_names_the_file() {
        let large = vec![0; MAX_FILE + 1];
        let fits = &large[1..];
        let drive = ConfigDrive { meta_data: fits, network_data: Some(fits), user_data: fits };
        assert_eq!(drive.image().map(|image| image.len()), Ok(4 * 1024 * 1024));
        for (drive, name) in [
            (ConfigDrive { meta_data: &large, ..drive }, "meta_data.json"),
            (ConfigDrive { network_data: Some(&large), ..drive }, "network_data.json"),
            (ConfigDrive { user_data: &large, ..drive }, "user_data"),
        ] {
            let message = format!("{name}: file of 1048577 bytes, expected at most 1048576");
            assert_eq!(drive.image().map_err(|e| e.to_string()), Err(message));
        }
        let drive = NoCloud { meta_data: b"", network_config: None, user_data: &large };
        assert_eq!(drive.image(), Err(ImageError::TooLarge { name: "user-data", size: 1_048_577 }));
    }
}
