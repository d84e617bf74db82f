//! Which files of a drive mean something.

use std::fmt;

use super::{Files, ReadError};

/// No file of a drive is read beyond this many bytes.
pub const MAX_FILE: usize = 1024 * 1024;

/// What a config drive holds, read into memory.
#[derive(Debug)]
pub struct ConfigDrive {
    /// How its files are laid out.
    pub layout: Layout,
    /// What it says about its machine. That it cannot be read costs the machine its name, not its network.
    pub meta_data: Result<Option<Document>, ReadError>,
    /// What it says about the network. That it cannot be read costs the machine its network, not its name.
    pub network: Result<Option<Document>, ReadError>,
}

/// How the files of a config drive are laid out.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Layout {
    /// `openstack/latest/…`
    OpenStack {
        /// Nothing but `openstack/latest`, which is all that KubeVirt writes, where OpenStack itself adds dated
        /// directories and `ec2`.
        latest_only: bool,
    },
    /// `meta-data` and `network-config` in the root directory.
    NoCloud,
}

/// A file of a drive.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Document {
    /// Its path on the drive.
    pub path: String,
    /// Its content, at most [`MAX_FILE`] bytes.
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
    /// Reads what a drive says. `None` when its files are laid out in neither way. Where both layouts are there,
    /// OpenStack's counts.
    ///
    /// # Errors
    ///
    /// Why its directories cannot be read.
    pub fn read_from(files: &dyn Files) -> Result<Option<Self>, ReadError> {
        if let Some(versions) = files.list("openstack")?
            && let Some(version) = newest(&versions)
        {
            let latest_only = versions == ["latest"] && files.list("ec2")?.is_none();
            let document = |name| read(files, format!("openstack/{version}/{name}"));
            return Ok(Some(Self {
                layout: Layout::OpenStack { latest_only },
                meta_data: document("meta_data.json"),
                network: document("network_data.json"),
            }));
        }
        let meta_data = read(files, "meta-data".to_owned());
        let network = read(files, "network-config".to_owned());
        if matches!((&meta_data, &network), (Ok(None), Ok(None))) {
            return Ok(None);
        }
        Ok(Some(Self { layout: Layout::NoCloud, meta_data, network }))
    }
}

/// `latest`, else the latest date. OpenStack writes one directory for each version of its format.
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
