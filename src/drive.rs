//! A config drive: how it is recognised, how its files are laid out, and how they are read without trust.
//!
//! A drive reaches us in two ways: as a directory (a mounted drive, or a copy of one), and as an ISO 9660 image, which is
//! read in process, without root, `mount` or a kernel that knows the file system. Both are [`Files`]; [`ConfigDrive`] knows
//! which of the files mean something. Of a FAT volume only the label is read in process; the kernel mounts it.
//!
//! Everything on a drive is hostile: sizes are bounded before they are believed, a link never leads off the drive, and
//! only regular files are opened.
//!
//! The two layouts and who writes them: `openstack/nova:nova/virt/configdrive.py`,
//! `kubevirt/kubevirt:pkg/cloud-init/cloud-init.go`, `canonical/cloud-init:cloudinit/sources/DataSourceNoCloud.py`.

pub mod directory;
mod fat;
pub mod iso9660;
mod layout;
mod window;

pub use layout::{ConfigDrive, Document, Layout, MAX_FILE};

use std::fmt;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;

use serde::Serialize;

/// Bytes at an offset: a block device, an image file, or a slice.
pub trait ReadAt {
    /// Fills `buffer` from `offset` (in bytes) on.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::UnexpectedEof`] where the source ends before the buffer is full, and what the system says.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()>;
}

/// The files of a drive. Paths are relative, their parts separated by `/`.
pub trait Files {
    /// The content of a regular file, `None` when there is none of that name.
    ///
    /// # Errors
    ///
    /// [`ReadError::TooLarge`] when it has more than `limit` bytes, before they are read; the others say what is broken.
    fn read(&self, path: &str, limit: usize) -> Result<Option<Vec<u8>>, ReadError>;

    /// The names in a directory, sorted; `None` when there is no such directory. At most [`MAX_ENTRIES`] are listed.
    ///
    /// # Errors
    ///
    /// As [`Files::read`].
    fn list(&self, path: &str) -> Result<Option<Vec<String>>, ReadError>;
}

/// No directory of a config drive is listed beyond this many entries.
pub const MAX_ENTRIES: usize = 4096;

/// No path on a drive has more parts than this.
const MAX_DEPTH: usize = 32;

/// Why a file of a drive could not be read.
#[derive(Debug)]
pub enum ReadError {
    /// The file has `size` bytes where at most `limit` are read.
    TooLarge {
        /// The path on the drive.
        path: String,
        /// In bytes.
        size: u64,
        /// In bytes.
        limit: usize,
    },
    /// The path is a link that leads off the drive, or something else than a regular file.
    NotAFile {
        /// The path on the drive.
        path: String,
    },
    /// Files of this file system are read from a mounted directory only.
    NeedsMount(FileSystem),
    /// The file system contradicts itself.
    Malformed {
        /// What was read.
        what: &'static str,
        /// What would have been right.
        expected: &'static str,
    },
    /// The system's word.
    Io {
        /// The path on the drive, or the part of the file system.
        what: String,
        /// The cause.
        source: io::Error,
    },
}

/// A file system that a config drive may have.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FileSystem {
    /// ISO 9660, as KubeVirt writes it.
    Iso9660,
    /// FAT12, FAT16 or FAT32, as OpenStack may write it. Its files are read from a mounted directory only.
    Vfat,
}

/// The file system of a device and its label.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Volume {
    /// The file system.
    pub file_system: FileSystem,
    /// As written, without the padding.
    pub label: String,
}

/// The parts of a path, none for the root directory. A path that is not made of plain names leads off the drive: one comes
/// from a document, since `meta_data.json` names files.
fn parts(path: &str) -> Result<Vec<&str>, ReadError> {
    if path.is_empty() {
        return Ok(Vec::new());
    }
    let parts: Vec<&str> = path.split('/').collect();
    if parts.len() > MAX_DEPTH || !parts.iter().all(|part| is_name(part)) {
        return Err(ReadError::NotAFile { path: path.to_owned() });
    }
    Ok(parts)
}

/// Whether this can be the name of a file; a drive says what it likes.
fn is_name(name: &str) -> bool {
    !matches!(name, "" | "." | "..") && !name.contains(['/', '\0'])
}

// === impl ReadAt ===

impl ReadAt for File {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.read_exact_at(buffer, offset)
    }
}

impl ReadAt for [u8] {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let found = usize::try_from(offset)
            .ok()
            .and_then(|start| self.get(start..start.checked_add(buffer.len())?))
            .ok_or_else(|| io::Error::from(ErrorKind::UnexpectedEof))?;
        buffer.copy_from_slice(found);
        Ok(())
    }
}

// === impl Volume ===

impl Volume {
    /// Recognises an ISO 9660 or a FAT file system and reads its label. `None` for every other device: empty, foreign,
    /// partitioned, or too short.
    ///
    /// # Errors
    ///
    /// A read that fails, except at the end of a short device.
    pub fn probe(source: &(impl ReadAt + ?Sized)) -> io::Result<Option<Self>> {
        if let Some(label) = iso9660::label(source)? {
            return Ok(Some(Self { file_system: FileSystem::Iso9660, label }));
        }
        Ok(fat::label(source)?.map(|label| Self { file_system: FileSystem::Vfat, label }))
    }

    /// Opens the files of this volume, to be read in process.
    ///
    /// # Errors
    ///
    /// [`ReadError::NeedsMount`] for FAT, and the errors of [`Files::read`].
    pub fn open<'a, S: ReadAt + ?Sized>(&self, source: &'a S) -> Result<iso9660::Image<'a, S>, ReadError> {
        match self.file_system {
            FileSystem::Iso9660 => iso9660::Image::open(source),
            FileSystem::Vfat => Err(ReadError::NeedsMount(self.file_system)),
        }
    }
}

// === impl FileSystem ===

impl fmt::Display for FileSystem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Iso9660 => "iso9660",
            Self::Vfat => "vfat",
        })
    }
}

// === impl ReadError ===

impl ReadError {
    pub(crate) fn io(what: impl Into<String>, source: io::Error) -> Self {
        Self::Io { what: what.into(), source }
    }
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLarge { path, size, limit } => {
                write!(f, "{path}: file of {size} bytes, expected at most {limit}")
            }
            Self::NotAFile { path } => write!(f, "{path}: expected a regular file that is on the drive itself"),
            Self::NeedsMount(file_system) => write!(
                f,
                "{file_system} image, expected a mounted directory: mount -t {file_system} -o ro,loop IMAGE DIRECTORY"
            ),
            Self::Malformed { what, expected } => write!(f, "invalid {what}, expected {expected}"),
            Self::Io { what, .. } => write!(f, "reading {what}"),
        }
    }
}

impl std::error::Error for ReadError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}
