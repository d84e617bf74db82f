//! Recognises config drives, finds their documents, and reads the documents as hostile input.
//!
//! A drive is either a directory (a mounted drive, or a copy of a drive) or an ISO 9660 image. An image is read in
//! process: without root, without `mount`, and without a kernel that supports the file system. The directory and the
//! image both implement [`Files`]; [`ConfigDrive`] knows which files to read. For a FAT volume, this module reads only
//! the label. The kernel must mount the volume before its files can be read.
//!
//! All input from a drive is hostile: a size is checked before it is used, a symbolic link is never followed off the
//! drive, and only regular files and directories are read.
//!
//! Sources of the layouts of OpenStack and NoCloud: `openstack/nova:nova/virt/configdrive.py`,
//! `kubevirt/kubevirt:pkg/cloud-init/cloud-init.go`, `canonical/cloud-init:cloudinit/sources/DataSourceNoCloud.py`.

pub mod directory;
mod fat;
pub mod iso9660;
mod layout;
mod source;
mod window;

pub use layout::{ConfigDrive, Document, Layout, MAX_FILE};
pub use source::{FileSystem, Files, MAX_ENTRIES, ReadAt, ReadError};

use std::io;

/// File system and label of a device.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Volume {
    /// File system of the device.
    pub file_system: FileSystem,
    /// Label as written on the device, without padding.
    pub label: String,
}

// === impl Volume ===

impl Volume {
    /// Recognises an ISO 9660 or a FAT file system and reads its label. `None` for a device that is empty, partitioned
    /// or too short, or that has another file system.
    ///
    /// # Errors
    ///
    /// The error of a failed read. A device that ends too early is not an error.
    pub fn probe(source: &(impl ReadAt + ?Sized)) -> io::Result<Option<Self>> {
        if let Some(label) = iso9660::label(source)? {
            return Ok(Some(Self { file_system: FileSystem::Iso9660, label }));
        }
        Ok(fat::label(source)?.map(|label| Self { file_system: FileSystem::Vfat, label }))
    }

    /// Opens the files of this volume for reading in process.
    ///
    /// # Errors
    ///
    /// [`ReadError::NeedsMount`] for FAT, and the errors of [`iso9660::Image::open`].
    pub fn open<'a, S: ReadAt + ?Sized>(&self, source: &'a S) -> Result<iso9660::Image<'a, S>, ReadError> {
        match self.file_system {
            FileSystem::Iso9660 => iso9660::Image::open(source),
            FileSystem::Vfat => Err(ReadError::NeedsMount(self.file_system)),
        }
    }
}
