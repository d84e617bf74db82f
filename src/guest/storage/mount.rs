//! Mounts a drive to read its files.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use slog::{Logger, debug, warn};

use super::error::Chain;
use crate::drive::directory::Directory;
use crate::drive::{ConfigDrive, FileSystem, ReadError};
use crate::guest::system::System;

/// A mounted drive, which is unmounted when the value is dropped.
pub(super) struct MountedDrive<'a> {
    system: &'a dyn System,
    log: &'a Logger,
    at: PathBuf,
}

/// Returns why the kernel should mount a drive after our own reader has tried to read it. `None` when the result is
/// final.
///
/// The kernel mounts a drive if our reader fails, finds no files of a config drive, or cannot read the network
/// document. Only two errors of the document are final: the document is too large, or is not a regular file. A symbolic
/// link on an ISO 9660 drive is not a regular file.
///
/// Our reader comes first, because the first mount of ISO 9660 makes the kernel load a driver, which takes longer than
/// the rest of a run.
pub(super) fn reason_to_mount(read: &Result<Option<ConfigDrive>, ReadError>) -> Option<String> {
    match read {
        Err(e) => Some(Chain(e).to_string()),
        Ok(None) => Some("no files of a config drive".to_owned()),
        Ok(Some(drive)) => match &drive.network {
            Ok(_) | Err(ReadError::TooLarge { .. } | ReadError::NotAFile { .. }) => None,
            Err(e) => Some(Chain(e).to_string()),
        },
    }
}

// === impl MountedDrive ===

impl<'a> MountedDrive<'a> {
    /// Mounts a device, such as `/dev/vdb`, at a new directory below a root. The directory name contains the process
    /// id, so no other run uses the directory.
    pub(super) fn mount(
        system: &'a dyn System,
        log: &'a Logger,
        root: &Path,
        device: &Path,
        file_system: FileSystem,
    ) -> io::Result<Self> {
        let above = root.join("run/glowplug");
        fs::create_dir_all(&above)?;
        let name = device.file_name().unwrap_or_default().display();
        let at = above.join(format!("drive-{}-{name}", std::process::id()));
        DirBuilder::new().mode(0o700).create(&at)?;
        if let Err(e) = system.mount_read_only(device, file_system, &at) {
            remove(&at, log);
            return Err(e);
        }
        Ok(Self { system, log, at })
    }

    /// Reads the documents. No file of the drive is open when this function returns; an open file would prevent the
    /// unmount.
    pub(super) fn read(&self) -> Result<Option<ConfigDrive>, ReadError> {
        let files = Directory::open(&self.at).map_err(|e| ReadError::io("the root directory", e))?;
        ConfigDrive::read_from(&files)
    }
}

impl Drop for MountedDrive<'_> {
    fn drop(&mut self) {
        match self.system.unmount(&self.at) {
            Ok(()) => remove(&self.at, self.log),
            Err(e) => warn!(self.log, "could not unmount the drive"; "path" => %self.at.display(), "reason" => %e),
        }
    }
}

/// Removes a mount point. The directory is empty, or does not exist.
fn remove(mount_point: &Path, log: &Logger) {
    if let Err(e) = fs::remove_dir(mount_point) {
        debug!(log, "could not remove the mount point"; "path" => %mount_point.display(), "reason" => %e);
    }
}
