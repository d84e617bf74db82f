//! Reads the label of a FAT12, FAT16 or FAT32 volume.
//!
//! Only the label is read in process, to recognise a config drive before any file system is mounted. The kernel reads
//! the files of a FAT drive. Such drives are rare: KubeVirt writes ISO 9660, and only OpenStack deployments with
//! `config_drive_format=vfat` write FAT.
//!
//! Source: Microsoft's FAT32 File System Specification 1.03, and Linux where the two differ.

use std::io::{self, ErrorKind};

use super::source::ReadAt;
use super::window::{self, u16_le, u32_le};

const BOOT_SECTOR: usize = 512;

/// Size of one directory entry, in bytes.
const ENTRY: usize = 32;

/// Number of bytes at the start of the root directory that are searched for the label. A formatting tool writes the
/// label before any file, so the label is among the first entries.
const SEARCHED: usize = 4096;

/// Attribute bits of a directory entry.
const VOLUME: u8 = 0x08;
const DIRECTORY: u8 = 0x10;
/// Attribute bits that together mark a part of a long name: read-only, hidden, system and volume.
const LONG_NAME: u8 = 0x0f;

/// First byte of the entry after the last entry.
const END_OF_DIRECTORY: u8 = 0x00;
/// First byte of a deleted entry.
const DELETED: u8 = 0xe5;

/// The two sources of a volume's label: the root directory and the boot sector.
#[derive(Debug, Eq, PartialEq)]
struct Labels {
    /// Start of the root directory, in bytes from the start of the volume.
    root: u64,
    /// Size of the root directory, in bytes; on FAT32 the size of its first cluster. At most [`SEARCHED`].
    root_bytes: usize,
    /// Label of the boot sector, padded with blanks.
    boot: [u8; 11],
}

/// Reads the label from the root directory, else from the boot sector. `None` when the source is not a FAT volume; an
/// empty string when the volume has no label.
pub(super) fn label(source: &(impl ReadAt + ?Sized)) -> io::Result<Option<String>> {
    let is_short = |error: &io::Error| error.kind() == ErrorKind::UnexpectedEof;
    let mut boot = [0; BOOT_SECTOR];
    match source.read_at(0, &mut boot) {
        Ok(()) => {}
        Err(error) if is_short(&error) => return Ok(None),
        Err(error) => return Err(error),
    }
    let Some(labels) = Labels::find(&boot) else { return Ok(None) };
    let mut root = vec![0; labels.root_bytes];
    match source.read_at(labels.root, &mut root) {
        Ok(()) => {}
        // A truncated image still has the label of its boot sector.
        Err(error) if is_short(&error) => {}
        Err(error) => return Err(error),
    }
    let mut entries = root.chunks_exact(ENTRY).take_while(|entry| entry[0] != END_OF_DIRECTORY);
    let is_label = |entry: &&[u8]| {
        entry[0] != DELETED && entry[11] & (VOLUME | DIRECTORY) == VOLUME && entry[11] & LONG_NAME != LONG_NAME
    };
    Ok(Some(match entries.find(is_label) {
        Some(entry) => window::label(&entry[..11]),
        // `mkfs.vfat` writes this string if the user gave no label.
        None if labels.boot == *b"NO NAME    " => String::new(),
        None => window::label(&labels.boot),
    }))
}

// === impl Labels ===

impl Labels {
    /// Finds the sources of the label. `None` when the sector is not the boot sector of a FAT volume. The first sector
    /// of a partitioned disk ends with the same two bytes, so the function also checks the other numbers.
    fn find(boot: &[u8; BOOT_SECTOR]) -> Option<Self> {
        let sector = u64::from(u16_le(boot, 11));
        let per_cluster = u64::from(boot[13]);
        let reserved = u64::from(u16_le(boot, 14));
        let tables = u64::from(boot[16]);
        let root_bytes = u64::from(u16_le(boot, 17)) * ENTRY as u64;
        let is_boot_sector = boot[510..] == [0x55, 0xaa]
            && matches!(boot[..3], [0xeb, _, 0x90] | [0xe9, _, _])
            && (512..=4096).contains(&sector)
            && sector.is_power_of_two()
            && per_cluster.is_power_of_two()
            && reserved > 0
            && (1..=2).contains(&tables)
            && matches!(boot[21], 0xf0 | 0xf8..);
        if !is_boot_sector {
            return None;
        }
        // Linux recognises FAT32 by the 16-bit table size 0, not by the number of clusters: `mkfs.vfat` can write FAT32
        // with few clusters.
        let is_fat32 = u16_le(boot, 22) == 0;
        let either = |short: usize, long: usize| match u16_le(boot, short) {
            0 => u64::from(u32_le(boot, long)),
            sectors => u64::from(sectors),
        };
        let table = either(22, 36);
        let root = reserved + tables * table;
        let data = root + root_bytes.div_ceil(sector);
        let has_clusters = either(19, 32).checked_sub(data)? >= per_cluster && table * sector * 8 / 12 > 2;
        // On FAT32 the root directory is a chain of clusters. On FAT12 and FAT16 it has its own area.
        if !has_clusters || is_fat32 != (root_bytes == 0) || (is_fat32 && u16_le(boot, 42) != 0) {
            return None;
        }
        let (root, root_bytes, label) = if is_fat32 {
            let first = u64::from(u32_le(boot, 44).checked_sub(2)?);
            (data + first * per_cluster, per_cluster * sector, 71)
        } else {
            (root, root_bytes, 43)
        };
        // The signature 0x29 means that a serial number and the label follow.
        let boot = if boot[label - 5] == 0x29 { *boot[label..].first_chunk()? } else { [b' '; 11] };
        let root_bytes = usize::try_from(root_bytes).map_or(SEARCHED, |bytes| bytes.min(SEARCHED));
        Some(Self { root: root * sector, root_bytes, boot })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The boot sector of a FAT16 volume of 16 MiB.
    fn boot() -> [u8; BOOT_SECTOR] {
        let mut boot = [0; BOOT_SECTOR];
        boot[..3].copy_from_slice(&[0xeb, 0x3c, 0x90]);
        boot[11..24].copy_from_slice(&[0, 2, 4, 4, 0, 2, 0, 2, 0, 0x80, 0xf8, 32, 0]);
        boot[38] = 0x29;
        boot[43..54].copy_from_slice(b"config-2   ");
        boot[510..].copy_from_slice(&[0x55, 0xaa]);
        boot
    }

    #[test]
    fn the_numbers_of_a_boot_sector_give_the_position_of_the_root_directory() {
        assert_eq!(
            Labels::find(&boot()),
            Some(Labels { root: (4 + 64) * 512, root_bytes: 4096, boot: *b"config-2   " })
        );
    }

    #[test]
    fn a_boot_sector_with_an_invalid_value_is_not_a_fat_volume() {
        let changes: [(&str, usize, &[u8]); 16] = [
            ("code that does not start with a jump", 0, &[0x33]),
            ("a short jump without its padding", 2, &[0]),
            ("no bytes in a sector", 11, &[0, 0]),
            ("sectors of 256 bytes", 11, &[0, 1]),
            ("sectors of 768 bytes", 11, &[0, 3]),
            ("sectors of 8192 bytes", 11, &[0, 32]),
            ("no sector in a cluster", 13, &[0]),
            ("three sectors in a cluster", 13, &[3]),
            ("no reserved sector", 14, &[0, 0]),
            ("no table", 16, &[0]),
            ("three tables", 16, &[3]),
            ("no root directory", 17, &[0, 0]),
            ("fewer sectors than its tables need", 19, &[99, 0]),
            ("an unknown medium", 21, &[0xf7]),
            ("FAT32 with a root directory area", 22, &[0, 0]),
            ("no signature", 510, &[0]),
        ];
        for (what, at, bytes) in changes {
            let mut boot = boot();
            boot[at..at + bytes.len()].copy_from_slice(bytes);
            assert_eq!(Labels::find(&boot), None, "{what}");
        }
    }

    #[test]
    fn the_largest_numbers_of_a_boot_sector_do_not_overflow() {
        let mut boot = [0xff; BOOT_SECTOR];
        boot[..3].copy_from_slice(&[0xeb, 0x58, 0x90]);
        boot[11..24].copy_from_slice(&[0, 16, 128, 255, 255, 2, 0, 0, 0, 0, 0xff, 0, 0]);
        boot[42..44].copy_from_slice(&[0, 0]);
        boot[510..].copy_from_slice(&[0x55, 0xaa]);
        assert_eq!(Labels::find(&boot), None);
        boot[36..40].copy_from_slice(&[0, 0, 1, 0]);
        let data = 65_535 + 2 * 65_536;
        assert_eq!(Labels::find(&boot).map(|labels| labels.root), Some((data + 0xffff_fffd * 128) * 4096));
        assert_eq!(label(boot.as_slice()).unwrap(), Some(String::new()));
    }

    #[test]
    fn the_label_in_a_boot_sector_counts_only_with_the_signature_before_it() {
        let mut boot = boot();
        assert_eq!(label(boot.as_slice()).unwrap(), Some("config-2".to_owned()));
        boot[38] = 0x28;
        assert_eq!(label(boot.as_slice()).unwrap(), Some(String::new()));
        assert_eq!(label(&boot[..511]).unwrap(), None);
    }
}
