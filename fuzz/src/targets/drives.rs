//! Targets for images of drives.

use std::io;

use glowplug::drive::{ConfigDrive, FileSystem, Files, MAX_ENTRIES, MAX_FILE, ReadAt, Volume};

use super::documents;

/// An image whose first bytes are zeros that are not part of the input.
struct Image<'i> {
    zeros: u64,
    input: &'i [u8],
}

impl ReadAt for Image<'_> {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let zeros = usize::try_from(self.zeros.saturating_sub(offset)).unwrap_or(usize::MAX).min(buffer.len());
        let (first, rest) = buffer.split_at_mut(zeros);
        first.fill(0);
        if rest.is_empty() { Ok(()) } else { self.input.read_at(offset.saturating_sub(self.zeros), rest) }
    }
}

/// Reads an ISO 9660 image. The input starts at the volume descriptors, because no program reads the 32 KiB before
/// them.
pub(super) fn iso9660(input: &[u8]) {
    volume(&Image { zeros: 32 * 1024, input }, FileSystem::Iso9660);
}

/// Reads a FAT image, of which only the label is used.
pub(super) fn fat(input: &[u8]) {
    volume(&Image { zeros: 0, input }, FileSystem::Vfat);
}

fn volume(image: &Image<'_>, file_system: FileSystem) {
    let probed = Volume::probe(image).unwrap();
    assert_eq!(probed, Volume::probe(image).unwrap());
    assert!(probed.as_ref().is_none_or(|probed| probed.label.chars().count() <= 64), "{probed:?}");
    // Also read the files if the label is damaged, because `--config-drive` may name the drive.
    let probed = probed.filter(|probed| probed.file_system == file_system);
    let volume = probed.unwrap_or(Volume { file_system, label: String::new() });
    let Ok(files) = volume.open(image) else { return };
    for path in ["", "openstack", "openstack/latest", "a/b/c"] {
        if let Ok(Some(names)) = files.list(path) {
            assert!(names.len() <= MAX_ENTRIES && names.is_sorted(), "{names:?}");
            for name in &names {
                assert!(!name.is_empty() && name != "." && name != ".." && !name.contains(['/', '\0']), "{name:?}");
                // The read of a listed name may return an error, but must not panic.
                let path = if path.is_empty() { name.clone() } else { format!("{path}/{name}") };
                if let Ok(Some(bytes)) = files.read(&path, 512) {
                    assert!(bytes.len() <= 512);
                }
            }
        }
    }
    documents::check_no_way_out(&files);
    if let Ok(Some(drive)) = ConfigDrive::read_from(&files) {
        for document in [drive.meta_data, drive.network].into_iter().flatten().flatten() {
            assert!(document.bytes.len() <= MAX_FILE && !document.path.starts_with('/'));
        }
    }
}
