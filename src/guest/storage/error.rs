//! Errors of the search for a drive.

use std::error::Error;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use crate::drive::ReadError;

/// Error: the search has no result.
#[derive(Debug)]
pub enum SearchError {
    /// The process has no permission to read a device.
    Permission {
        /// Path of the device, such as `/dev/vdb`.
        device: PathBuf,
        /// Error of the system call.
        source: io::Error,
    },
    /// The list of devices, or a device that may be a config drive, cannot be read.
    Io {
        /// Path that was read.
        path: PathBuf,
        /// Error of the system call.
        source: io::Error,
    },
    /// A config drive or its network document cannot be read.
    Unreadable {
        /// Path of the drive, such as `/dev/vdb`.
        device: PathBuf,
        /// Error of reading the drive.
        source: ReadError,
    },
    /// Every config drive belongs to another machine.
    OtherMachine {
        /// Path of one of these drives, such as `/dev/vdb`.
        device: PathBuf,
        /// Uuid from the metadata of the drive.
        uuid: String,
        /// Uuid from the firmware, in lower case.
        own: String,
    },
    /// Several drives are equally good, and differ.
    Ambiguous {
        /// Paths of the drives, such as `/dev/vdb`, sorted.
        devices: Vec<PathBuf>,
        /// What differs: `network` or `metadata`.
        about: &'static str,
    },
    /// The path from the command line is not a drive.
    NoDrive {
        /// The path from the command line.
        path: PathBuf,
    },
}

/// An error and its causes, printed on one line.
pub(in crate::guest) struct Chain<'a>(pub(in crate::guest) &'a dyn Error);

/// Paths of devices, printed as a list in a sentence.
pub(super) struct List<'a>(pub(super) &'a [PathBuf]);

// === impl SearchError ===

impl SearchError {
    pub(super) fn io(path: &Path, source: io::Error) -> Self {
        Self::Io { path: path.to_owned(), source }
    }
}

impl fmt::Display for SearchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Permission { device, .. } => {
                write!(
                    f,
                    "{}: not allowed to read the device, expected root with the right to read block devices",
                    device.display()
                )
            }
            Self::Io { path, .. } => write!(f, "reading {}", path.display()),
            Self::Unreadable { device, .. } => write!(f, "reading config drive {}", device.display()),
            Self::OtherMachine { device, uuid, own } => {
                let device = device.display();
                write!(
                    f,
                    "{device}: config drive of another machine, uuid {uuid:?}, expected {own}; \
                     use the drive with --any-drive or glowplug.any-drive"
                )
            }
            Self::Ambiguous { devices, about } => {
                let devices = List(devices);
                write!(
                    f,
                    "{devices}: config drives that disagree about the {about}, expected one drive or the same {about} on each"
                )
            }
            Self::NoDrive { path } => write!(
                f,
                "{}: no config drive, expected a directory with openstack/latest or meta-data, or an ISO 9660 or FAT image",
                path.display()
            ),
        }
    }
}

impl Error for SearchError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Permission { source, .. } | Self::Io { source, .. } => Some(source),
            Self::Unreadable { source, .. } => Some(source),
            Self::OtherMachine { .. } | Self::Ambiguous { .. } | Self::NoDrive { .. } => None,
        }
    }
}

// === impl Chain ===

impl fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)?;
        let mut cause = self.0.source();
        while let Some(error) = cause {
            write!(f, ": {error}")?;
            cause = error.source();
        }
        Ok(())
    }
}

// === impl List ===

impl fmt::Display for List<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, device) in self.0.iter().enumerate() {
            write!(f, "{}{}", if at == 0 { "" } else { ", " }, device.display())?;
        }
        Ok(())
    }
}
