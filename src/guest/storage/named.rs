//! Reads a drive that a person named.

use std::fs::{self, File};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use slog::Logger;

use super::candidate::read_meta_data;
use super::error::SearchError;
use crate::drive::directory::Directory;
use crate::drive::{ConfigDrive, Volume};
use crate::formats::meta_data::MetaData;

/// A drive that a person named, with `--config-drive` or as an argument of `check`.
#[derive(Debug)]
pub struct NamedDrive {
    /// File system and label; `None` for a directory.
    pub volume: Option<Volume>,
    /// Documents of the drive.
    pub drive: ConfigDrive,
    /// Metadata of the drive; empty when the metadata cannot be read.
    pub meta_data: MetaData,
}

/// Reads the drive that a person named: a directory, an image, or a device. A device is not mounted. The label of an
/// image or a device is not checked.
///
/// # Errors
///
/// [`SearchError::NoDrive`] when the path is not a drive, [`SearchError::Unreadable`] when the drive is broken, and
/// [`SearchError::Io`] when the path cannot be read.
pub fn read_path(path: &Path, log: &Logger) -> Result<NamedDrive, SearchError> {
    let no_drive = || SearchError::NoDrive { path: path.to_owned() };
    let io = |source| SearchError::io(path, source);
    let unreadable = |source| SearchError::Unreadable { device: path.to_owned(), source };
    let kind = fs::metadata(path).map_err(io)?.file_type();
    let (volume, drive) = if kind.is_dir() {
        let directory = Directory::open(path).map_err(io)?;
        (None, ConfigDrive::read_from(&directory).map_err(unreadable)?)
    } else if kind.is_file() || kind.is_block_device() {
        let file = File::open(path).map_err(io)?;
        let volume = Volume::probe(&file).map_err(io)?.ok_or_else(no_drive)?;
        let drive = volume.open(&file).and_then(|files| ConfigDrive::read_from(&files)).map_err(unreadable)?;
        (Some(volume), drive)
    } else {
        (None, None)
    };
    let drive = drive.ok_or_else(no_drive)?;
    let meta_data = read_meta_data(&drive, path, log);
    Ok(NamedDrive { volume, drive, meta_data })
}
