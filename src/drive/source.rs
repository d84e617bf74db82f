//! Sources of bytes and of files, and their errors.

use std::fmt;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;

use serde::Serialize;

/// Source of bytes at any offset: a block device, an image file or a slice.
pub trait ReadAt {
    /// Fills `buffer` with the bytes from `offset` (in bytes) on.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::UnexpectedEof`] when the source ends before the buffer is full, and the errors of the system call.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()>;
}

/// Files of a drive. Paths are relative, and `/` separates their parts.
pub trait Files {
    /// Reads a regular file. `None` when no file has this path.
    ///
    /// # Errors
    ///
    /// * [`ReadError::TooLarge`]: the file has more than `limit` bytes. The size is checked before the file is read.
    /// * [`ReadError::NotAFile`]: the path exists, but is not a regular file.
    /// * Every other variant: the drive cannot be read, or is broken.
    fn read(&self, path: &str, limit: usize) -> Result<Option<Vec<u8>>, ReadError>;

    /// Lists the names in a directory, sorted. `None` when there is no such directory. At most [`MAX_ENTRIES`] names
    /// are listed.
    ///
    /// # Errors
    ///
    /// The errors of [`Files::read`].
    fn list(&self, path: &str) -> Result<Option<Vec<String>>, ReadError>;
}

/// Largest number of entries that are listed for a directory.
pub const MAX_ENTRIES: usize = 4096;

/// Largest number of components in a path on a drive.
const MAX_DEPTH: usize = 32;

/// Error: a file of a drive cannot be read.
#[derive(Debug)]
pub enum ReadError {
    /// The file has `size` bytes, and at most `limit` bytes are read.
    TooLarge {
        /// Path on the drive.
        path: String,
        /// Size of the file, in bytes.
        size: u64,
        /// Largest size that is read, in bytes.
        limit: usize,
    },
    /// The path is invalid, leads off the drive through a symbolic link, or is not that of a regular file.
    NotAFile {
        /// Path on the drive.
        path: String,
    },
    /// The files of this file system can be read only from a mounted directory.
    NeedsMount(FileSystem),
    /// The file system is inconsistent.
    Malformed {
        /// Name of the structure that was read.
        what: &'static str,
        /// Description of a valid value.
        expected: &'static str,
    },
    /// A system call failed.
    Io {
        /// Path on the drive, or part of the file system.
        what: String,
        /// Error of the system call.
        source: io::Error,
    },
}

/// File system of a config drive.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FileSystem {
    /// ISO 9660, as KubeVirt writes it.
    Iso9660,
    /// FAT12, FAT16 or FAT32, which OpenStack can be configured to write. The files can be read only from a mounted
    /// directory.
    Vfat,
}

/// Splits a path into its parts; the root directory has no part. More than [`MAX_DEPTH`] parts are an error. A part
/// that is not a plain name, such as `..`, is an error, too: a path can contain directory names from the drive, and
/// such a part could lead off the drive.
pub(super) fn parts(path: &str) -> Result<Vec<&str>, ReadError> {
    if path.is_empty() {
        return Ok(Vec::new());
    }
    let parts: Vec<&str> = path.split('/').collect();
    if parts.len() > MAX_DEPTH || !parts.iter().all(|part| is_name(part)) {
        return Err(ReadError::NotAFile { path: path.to_owned() });
    }
    Ok(parts)
}

/// Whether the string is a plain file name. A hostile drive can contain any string as a name.
pub(super) fn is_name(name: &str) -> bool {
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
