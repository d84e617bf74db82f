//! Finds the documents of a config drive in the layouts of OpenStack and NoCloud.

use std::fmt;

use super::source::{Files, ReadError};

/// Largest file that is read from a drive, in bytes.
pub const MAX_FILE: usize = 1024 * 1024;

/// Documents of a config drive, read into memory.
#[derive(Debug)]
pub struct ConfigDrive {
    /// Layout of the files.
    pub layout: Layout,
    /// Document about the machine. An error loses only the metadata: the network is still configured.
    pub meta_data: Result<Option<Document>, ReadError>,
    /// Document about the network. An error loses only the network: the metadata is still used.
    pub network: Result<Option<Document>, ReadError>,
    /// Path of a network document that glowplug does not use, for a message. Only an OpenStack drive without a network
    /// document in the used directory can have such a path: the document is in the directory of another version, or is
    /// a `network-config`.
    pub other_network: Option<String>,
}

/// Layout of the files of a config drive.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Layout {
    /// `openstack/latest/…`
    OpenStack {
        /// Whether `openstack/latest` is the only directory of metadata, as on a drive from KubeVirt. OpenStack also
        /// writes directories named by date, and `ec2`.
        latest_only: bool,
    },
    /// `meta-data` and `network-config` in the root directory.
    NoCloud,
}

/// One file of a drive.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Document {
    /// Path on the drive.
    pub path: String,
    /// Content of the file, at most [`MAX_FILE`] bytes.
    pub bytes: Vec<u8>,
}

// === impl Layout ===

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OpenStack { .. } => "openstack",
            Self::NoCloud => "nocloud",
        })
    }
}

// === impl ConfigDrive ===

impl ConfigDrive {
    /// Reads the documents of a drive. `None` when the drive has neither layout. If the drive has both layouts,
    /// OpenStack is used.
    ///
    /// # Errors
    ///
    /// The directories of the drive cannot be read.
    pub fn read_from(files: &dyn Files) -> Result<Option<Self>, ReadError> {
        if let Some(versions) = files.list("openstack")?
            && let Some(version) = newest(&versions)
        {
            let latest_only = versions == ["latest"] && files.list("ec2")?.is_none();
            let document = |name| read(files, format!("openstack/{version}/{name}"));
            let (meta_data, network) = (document("meta_data.json"), document("network_data.json"));
            let of_versions = versions.iter().map(|version| format!("openstack/{version}/network_data.json"));
            let mut others = of_versions.chain(["network-config".to_owned()]);
            let is_there = |path: &String| matches!(read(files, path.clone()), Ok(Some(_)));
            let other_network = if matches!(network, Ok(None)) { others.find(is_there) } else { None };
            return Ok(Some(Self { layout: Layout::OpenStack { latest_only }, meta_data, network, other_network }));
        }
        let meta_data = read(files, "meta-data".to_owned());
        let network = read(files, "network-config".to_owned());
        if matches!((&meta_data, &network), (Ok(None), Ok(None))) {
            return Ok(None);
        }
        Ok(Some(Self { layout: Layout::NoCloud, meta_data, network, other_network: None }))
    }
}

/// Returns the directory `latest`, else the directory with the latest date. OpenStack writes one directory for each
/// version of its format.
fn newest(versions: &[String]) -> Option<&str> {
    let is_date = |name: &&String| {
        name.len() == 10
            && name.bytes().enumerate().all(|(at, b)| if at == 4 || at == 7 { b == b'-' } else { b.is_ascii_digit() })
    };
    let latest = versions.iter().find(|name| name.eq_ignore_ascii_case("latest"));
    latest.or_else(|| versions.iter().filter(is_date).max()).map(String::as_str)
}

fn read(files: &dyn Files, path: String) -> Result<Option<Document>, ReadError> {
    Ok(files.read(&path, MAX_FILE)?.map(|bytes| Document { path, bytes }))
}
