//! FAT12, FAT16 and FAT32 with long names: the label, and the files by the names that a person gave them.
//!
//! A reader of our own, not the crate `fatfs`: that one needs a medium that can be written, does arithmetic on the boot
//! sector that overflows, and follows a directory that leads back into itself for ever.
//!
//! Not here: writing, code pages (a short name that is not ASCII is no name), volumes in a partition.
//!
//! Microsoft's FAT32 File System Specification 1.03, and what Linux makes of it where the two differ.

use std::io::{self, ErrorKind};

use super::window::{self, Window, u16_le, u32_le};
use super::{Files, MAX_ENTRIES, ReadAt, ReadError, is_name, parts};

const BOOT_SECTOR: usize = 512;

/// One place in a directory. A long name takes several.
const SLOT: usize = 32;

/// The most that the specification allows in one directory.
const MAX_SLOTS: usize = 65_536;

/// Attributes of a slot.
const VOLUME: u8 = 0x08;
const DIRECTORY: u8 = 0x10;
/// All of read-only, hidden, system and volume: a part of a long name.
const LONG_NAME: u8 = 0x0f;

const END_OF_DIRECTORY: u8 = 0x00;
const DELETED: u8 = 0xe5;

/// In the slot of the last part of a long name, which comes first.
const LAST_PART: u8 = 0x40;

/// Of characters in the slot of a long name.
const PART: usize = 13;

/// A FAT image whose files are read in process. Names match in any case, as on every FAT.
pub struct Image<'a, S: ReadAt + ?Sized> {
    source: &'a S,
    layout: Layout,
}

/// Where the parts of a volume are, in bytes from its start.
struct Layout {
    width: Width,
    table: u64,
    root: Directory,
    data: u64,
    cluster: u32,
    /// Their numbers start at 2.
    clusters: u32,
    label: [u8; 11],
}

/// Of an entry of the allocation table.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Width {
    Fat12,
    Fat16,
    Fat32,
}

#[derive(Clone, Copy)]
enum Directory {
    /// The root of FAT12 and FAT16 has a place of its own.
    Fixed {
        start: u64,
        bytes: u32,
    },
    Chain(u32),
}

#[derive(Clone, Copy)]
struct Entry {
    is_directory: bool,
    first: u32,
    size: u32,
}

/// A long name while its parts go by.
struct LongName {
    units: [u16; 20 * PART],
    /// The number of the part that has to come next; zero when the name is complete.
    missing: u8,
    checksum: u8,
    parts: usize,
}

/// One question about an image.
struct Walk<'i, 'a, S: ReadAt + ?Sized> {
    layout: &'i Layout,
    window: Window<'a, S>,
    /// Of its own, since a chain goes to and fro between the table and the clusters.
    table: Window<'a, S>,
    path: &'i str,
}

/// The label, `None` when this is no FAT volume; empty when it has none.
pub(super) fn label(source: &(impl ReadAt + ?Sized)) -> io::Result<Option<String>> {
    let layout = match Layout::read(source) {
        Ok(Some(layout)) => layout,
        Err(e) if e.kind() != ErrorKind::UnexpectedEof => return Err(e),
        _ => return Ok(None),
    };
    let mut walk = Walk::new(&layout, source, "root directory");
    let mut found = None;
    let searched = walk.slots(layout.root, &mut |slot| {
        // A part of a long name has this attribute too.
        if slot[11] & (VOLUME | DIRECTORY) == VOLUME && slot[11] & LONG_NAME != LONG_NAME {
            found = Some(window::label(&slot[..11]));
        }
        found.is_none()
    });
    match (searched, found) {
        (Err(ReadError::Io { source, .. }), _)
            if !matches!(source.kind(), ErrorKind::UnexpectedEof | ErrorKind::InvalidData) =>
        {
            Err(source)
        }
        (_, Some(label)) => Ok(Some(label)),
        // What `mkfs.vfat` writes there for want of a label.
        _ if layout.label == *b"NO NAME    " => Ok(Some(String::new())),
        _ => Ok(Some(window::label(&layout.label))),
    }
}

fn checksum(short_name: &[u8]) -> u8 {
    short_name.iter().fold(0, |sum: u8, byte| sum.rotate_right(1).wrapping_add(*byte))
}

/// The name in 8.3 form, in the case that the slot asks for.
fn short_name(slot: &[u8; SLOT]) -> Option<String> {
    let (base, extension) = slot[..11].split_at(8);
    let flags = slot[12];
    let mut name = String::with_capacity(12);
    for (part, is_lower) in [(base, flags & 0x08 != 0), (extension, flags & 0x10 != 0)] {
        let part = str::from_utf8(part.trim_ascii_end()).ok().filter(|part| part.is_ascii())?;
        if name.is_empty() || !part.is_empty() {
            name.push_str(if name.is_empty() { "" } else { "." });
            let start = name.len();
            name.push_str(part);
            if is_lower {
                name[start..].make_ascii_lowercase();
            }
        }
    }
    Some(name)
}

// === impl Layout ===

impl Layout {
    /// `None` when the boot sector is not that of a FAT volume. A partitioned disk ends its first sector with the same two
    /// bytes, so all numbers have to make sense.
    fn read(source: &(impl ReadAt + ?Sized)) -> io::Result<Option<Self>> {
        let mut boot = [0; BOOT_SECTOR];
        source.read_at(0, &mut boot)?;
        Ok(Self::of(&boot))
    }

    fn of(boot: &[u8; BOOT_SECTOR]) -> Option<Self> {
        let sector = u32::from(u16_le(boot, 11));
        let per_cluster = u32::from(boot[13]);
        let reserved = u64::from(u16_le(boot, 14));
        let tables = u64::from(boot[16]);
        let root_bytes = u32::from(u16_le(boot, 17)) * SLOT as u32;
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
        let is_fat32 = u16_le(boot, 22) == 0;
        let pick = |short: usize, long: usize| match u16_le(boot, short) {
            0 => u32_le(boot, long),
            sectors => sectors.into(),
        };
        // Linux tells FAT32 by the length of the table, not by the number of clusters; so does `mkfs.vfat` when it is told
        // to make a small one.
        let table = u64::from(pick(22, 36));
        let total = u64::from(pick(19, 32));
        let root = reserved + tables * table;
        let data = root + u64::from(root_bytes.div_ceil(sector));
        let clusters = u32::try_from(total.checked_sub(data)? / u64::from(per_cluster)).ok()?;
        let width = match clusters {
            _ if is_fat32 => Width::Fat32,
            ..4085 => Width::Fat12,
            _ => Width::Fat16,
        };
        // Not more than the table has entries for; the first two are none.
        let sector = u64::from(sector);
        let entries = (table * sector * 8 / width.bits()).saturating_sub(2);
        let clusters = u32::try_from(entries).map_or(clusters, |entries| clusters.min(entries)).min(0x0fff_fff0);
        // A root directory has a place of its own, or it is a chain: never both, never none.
        if clusters == 0 || is_fat32 != (root_bytes == 0) || (is_fat32 && u16_le(boot, 42) != 0) {
            return None;
        }
        let (first, label) = if is_fat32 { (Some(u32_le(boot, 44)), 71) } else { (None, 43) };
        // The signature says that a label follows its serial number.
        let label = if boot[label - 5] == 0x29 { *boot[label..].first_chunk()? } else { [b' '; 11] };
        Some(Self {
            width,
            table: reserved * sector,
            root: first.map_or(Directory::Fixed { start: root * sector, bytes: root_bytes }, Directory::Chain),
            data: data * sector,
            cluster: per_cluster * sector as u32,
            clusters,
            label,
        })
    }

    fn start(&self, cluster: u32) -> Result<u64, ReadError> {
        match cluster.checked_sub(2).filter(|index| *index < self.clusters) {
            Some(index) => Ok(self.data + u64::from(index) * u64::from(self.cluster)),
            None => Err(ReadError::Malformed { what: "cluster", expected: "a number that the volume has" }),
        }
    }
}

// === impl Width ===

impl Width {
    fn bits(self) -> u64 {
        match self {
            Self::Fat12 => 12,
            Self::Fat16 => 16,
            Self::Fat32 => 32,
        }
    }
}

// === impl LongName ===

impl LongName {
    const NONE: Self = Self { units: [0; 20 * PART], missing: 0, checksum: 0, parts: 0 };

    /// Takes in one part. Parts come last one first, and one that is out of order makes the name worthless.
    fn take(&mut self, slot: &[u8; SLOT]) {
        let number = slot[0] & !LAST_PART;
        if slot[0] & LAST_PART != 0 {
            self.parts = number.into();
            self.missing = number;
            self.checksum = slot[13];
        }
        let end = usize::from(number) * PART;
        let is_next = number != 0 && number == self.missing && slot[13] == self.checksum;
        let Some(place) = end.checked_sub(PART).and_then(|start| self.units.get_mut(start..end)).filter(|_| is_next)
        else {
            self.parts = 0;
            return;
        };
        for (unit, at) in place.iter_mut().zip((1..11).chain(14..26).chain(28..32).step_by(2)) {
            *unit = u16_le(slot, at);
        }
        self.missing -= 1;
    }

    /// The name of the slot that follows the parts, when they are its own.
    fn of(&self, slot: &[u8; SLOT]) -> Option<String> {
        if self.parts == 0 || self.missing != 0 || self.checksum != checksum(&slot[..11]) {
            return None;
        }
        let units = self.units.get(..self.parts * PART)?;
        let length = units.iter().position(|unit| *unit == 0).unwrap_or(units.len());
        String::from_utf16(&units[..length]).ok()
    }
}

// === impl Image ===

impl<'a, S: ReadAt + ?Sized> Image<'a, S> {
    /// Reads the boot sector. The files are read when they are asked for.
    ///
    /// # Errors
    ///
    /// [`ReadError::Malformed`] when this is no FAT volume, and [`ReadError::Io`].
    pub fn open(source: &'a S) -> Result<Self, ReadError> {
        match Layout::read(source) {
            Ok(Some(layout)) => Ok(Self { source, layout }),
            Ok(None) => Err(ReadError::Malformed { what: "boot sector", expected: "that of a FAT volume" }),
            Err(e) => Err(ReadError::io("boot sector", e)),
        }
    }

    fn walk<'i>(&'i self, path: &'i str) -> Walk<'i, 'a, S> {
        Walk::new(&self.layout, self.source, path)
    }
}

impl<S: ReadAt + ?Sized> Files for Image<'_, S> {
    fn read(&self, path: &str, limit: usize) -> Result<Option<Vec<u8>>, ReadError> {
        let mut walk = self.walk(path);
        // The root directory has no entry.
        let Some(entry) = walk.find()? else {
            return if path.is_empty() { Err(ReadError::NotAFile { path: String::new() }) } else { Ok(None) };
        };
        if entry.is_directory {
            return Err(ReadError::NotAFile { path: path.to_owned() });
        }
        if entry.size as usize > limit {
            return Err(ReadError::TooLarge { path: path.to_owned(), size: entry.size.into(), limit });
        }
        walk.content(entry).map(Some)
    }

    fn list(&self, path: &str) -> Result<Option<Vec<String>>, ReadError> {
        let mut walk = self.walk(path);
        let directory = match walk.find()? {
            None if path.is_empty() => self.layout.root,
            Some(Entry { is_directory: true, first, .. }) => Directory::Chain(first),
            _ => return Ok(None),
        };
        let mut names = Vec::new();
        walk.each(directory, &mut |name, _| {
            names.push(name.to_owned());
            names.len() < MAX_ENTRIES
        })?;
        names.sort_unstable();
        names.dedup();
        Ok(Some(names))
    }
}

// === impl Walk ===

impl<'i, 'a, S: ReadAt + ?Sized> Walk<'i, 'a, S> {
    fn new(layout: &'i Layout, source: &'a S, path: &'i str) -> Self {
        Self { layout, window: Window::new(source), table: Window::new(source), path }
    }

    /// What is at the path; `None` for the root directory too.
    fn find(&mut self) -> Result<Option<Entry>, ReadError> {
        let mut at = None;
        for part in parts(self.path)? {
            let directory = match at {
                None => self.layout.root,
                Some(Entry { is_directory: true, first, .. }) => Directory::Chain(first),
                Some(_) => return Ok(None),
            };
            at = None;
            self.each(directory, &mut |name, entry| {
                at = name.eq_ignore_ascii_case(part).then_some(entry);
                at.is_none()
            })?;
            if at.is_none() {
                break;
            }
        }
        Ok(at)
    }

    fn content(&mut self, entry: Entry) -> Result<Vec<u8>, ReadError> {
        let cluster = self.layout.cluster as usize;
        let count = (entry.size as usize).div_ceil(cluster);
        if count > self.layout.clusters as usize {
            return Err(ReadError::Malformed { what: "file", expected: "one that fits into the volume" });
        }
        let mut content = vec![0; entry.size as usize];
        let mut rest = content.as_mut_slice();
        let mut next = Some(entry.first);
        while !rest.is_empty() {
            let Some(first) = next else {
                return Err(ReadError::Malformed { what: "cluster chain", expected: "one as long as its file" });
            };
            let start = self.layout.start(first)?;
            // Clusters in a row are one read.
            let mut run = 1;
            while run * cluster < rest.len() {
                next = self.next(first + run as u32 - 1)?;
                if next != Some(first + run as u32) {
                    break;
                }
                run += 1;
            }
            let (head, tail) = rest.split_at_mut(rest.len().min(run * cluster));
            self.window.read(self.path, start, head)?;
            rest = tail;
        }
        Ok(content)
    }

    /// The cluster that follows, `None` at the end of the chain.
    fn next(&mut self, cluster: u32) -> Result<Option<u32>, ReadError> {
        // An entry of 12 bits starts inside a byte.
        let at = self.layout.table + u64::from(cluster) * self.layout.width.bits() / 8;
        let mut entry = [0; 4];
        let length = if self.layout.width == Width::Fat32 { 4 } else { 2 };
        self.table.read("allocation table", at, &mut entry[..length])?;
        let entry = u32::from_le_bytes(entry);
        let (next, last) = match self.layout.width {
            Width::Fat12 if cluster % 2 == 1 => (entry >> 4, 0xff8),
            Width::Fat12 => (entry & 0xfff, 0xff8),
            Width::Fat16 => (entry, 0xfff8),
            Width::Fat32 => (entry & 0x0fff_ffff, 0x0fff_fff8),
        };
        if next >= last {
            return Ok(None);
        }
        self.layout.start(next).map(|_| Some(next))
    }

    /// Shows the slots of a directory until its end, or until `visit` has seen enough.
    fn slots(&mut self, directory: Directory, visit: &mut dyn FnMut(&[u8; SLOT]) -> bool) -> Result<(), ReadError> {
        let (mut cluster, mut start, mut bytes) = match directory {
            Directory::Fixed { start, bytes } => (None, start, bytes),
            Directory::Chain(first) => (Some(first), self.layout.start(first)?, self.layout.cluster),
        };
        let mut slot = [0; SLOT];
        for _ in 0..MAX_SLOTS {
            if bytes == 0 {
                let Some(next) = cluster.map(|cluster| self.next(cluster)).transpose()?.flatten() else {
                    return Ok(());
                };
                (cluster, start, bytes) = (Some(next), self.layout.start(next)?, self.layout.cluster);
            }
            self.window.read(self.path, start, &mut slot)?;
            if slot[0] == END_OF_DIRECTORY || (slot[0] != DELETED && !visit(&slot)) {
                return Ok(());
            }
            start += SLOT as u64;
            bytes -= SLOT as u32;
        }
        Err(ReadError::Malformed { what: "directory", expected: "at most 65,536 entries" })
    }

    /// Shows the names of a directory until `visit` has seen enough.
    fn each(&mut self, directory: Directory, visit: &mut dyn FnMut(&str, Entry) -> bool) -> Result<(), ReadError> {
        let has_high_half = self.layout.width == Width::Fat32;
        let mut long = LongName::NONE;
        self.slots(directory, &mut |slot| {
            if slot[11] & 0x3f == LONG_NAME {
                long.take(slot);
                return true;
            }
            // The short form of a long name is mangled: nobody asks for it.
            let name = long.of(slot).or_else(|| short_name(slot)).filter(|name| is_name(name));
            long.parts = 0;
            let high = if has_high_half { u32::from(u16_le(slot, 20)) << 16 } else { 0 };
            let first = high | u32::from(u16_le(slot, 26));
            let entry = Entry { is_directory: slot[11] & DIRECTORY != 0, first, size: u32_le(slot, 28) };
            match name {
                Some(name) if slot[11] & VOLUME == 0 => visit(&name, entry),
                _ => true,
            }
        })
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

    fn slot(name: &[u8; 11], flags: u8) -> [u8; SLOT] {
        let mut slot = [0; SLOT];
        slot[..11].copy_from_slice(name);
        slot[12] = flags;
        slot
    }

    /// The slots of a long name, in the order of a directory.
    fn long_slots(name: &str, sum: u8) -> Vec<[u8; SLOT]> {
        let mut units: Vec<u16> = name.encode_utf16().collect();
        if !units.len().is_multiple_of(PART) {
            units.push(0);
        }
        let mut slots: Vec<[u8; SLOT]> = (1..)
            .zip(units.chunks(PART))
            .map(|(number, units)| {
                let mut slot = [0xff; SLOT];
                (slot[0], slot[11], slot[13]) = (number, LONG_NAME, sum);
                for (unit, at) in units.iter().zip((1..11).chain(14..26).chain(28..32).step_by(2)) {
                    slot[at..at + 2].copy_from_slice(&unit.to_le_bytes());
                }
                slot
            })
            .collect();
        slots.reverse();
        slots[0][0] |= LAST_PART;
        slots
    }

    fn named(slots: &[[u8; SLOT]]) -> Option<String> {
        let mut long = LongName::NONE;
        slots.iter().for_each(|slot| long.take(slot));
        long.of(&slot(b"NETWOR~1JSO", 0))
    }

    #[test]
    fn the_numbers_of_a_boot_sector_give_the_layout() {
        let layout = Layout::of(&boot()).unwrap();
        assert_eq!((layout.width, layout.table, layout.data), (Width::Fat16, 2048, (4 + 64 + 32) * 512));
        assert_eq!((layout.cluster, layout.clusters), (2048, (32_768 - 100) / 4));
        assert_eq!(&layout.label, b"config-2   ");
    }

    #[test]
    fn a_boot_sector_that_makes_no_sense_is_none() {
        let changes: [(&str, usize, &[u8]); 16] = [
            ("code that does not start with a jump", 0, &[0x33]),
            ("a short jump without its padding", 2, &[0]),
            ("no bytes in a sector", 11, &[0, 0]),
            ("sectors of 256 bytes", 11, &[0, 1]),
            ("sectors of 768 bytes", 11, &[0, 3]),
            ("sectors of 8192 bytes", 11, &[0, 32]),
            ("no sector in a cluster", 13, &[0]),
            ("three sectors in a cluster", 13, &[3]),
            ("nothing reserved, not even this sector", 14, &[0, 0]),
            ("no table", 16, &[0]),
            ("three tables", 16, &[3]),
            ("no root directory", 17, &[0, 0]),
            ("less than its tables", 19, &[99, 0]),
            ("no medium", 21, &[0xf7]),
            ("FAT32 with a root directory", 22, &[0, 0]),
            ("no signature", 510, &[0]),
        ];
        for (what, at, bytes) in changes {
            let mut boot = boot();
            boot[at..at + bytes.len()].copy_from_slice(bytes);
            assert!(Layout::of(&boot).is_none(), "{what}");
        }
    }

    #[test]
    fn a_boot_sector_of_the_largest_numbers_is_none_or_bounded() {
        let mut boot = [0xff; BOOT_SECTOR];
        boot[..3].copy_from_slice(&[0xeb, 0x58, 0x90]);
        boot[11..24].copy_from_slice(&[0, 16, 128, 255, 255, 2, 0, 0, 0, 0, 0xff, 0, 0]);
        boot[42..44].copy_from_slice(&[0, 0]);
        boot[510..].copy_from_slice(&[0x55, 0xaa]);
        assert!(Layout::of(&boot).is_none());
        boot[36..40].copy_from_slice(&[0, 0, 1, 0]);
        let layout = Layout::of(&boot).unwrap();
        assert_eq!((layout.cluster, layout.clusters), (524_288, 33_552_896));
        let refused = [1, u32::MAX].map(|cluster| layout.start(cluster).map_err(|e| e.to_string()));
        let expected = || Err("invalid cluster, expected a number that the volume has".to_owned());
        assert_eq!(refused, [expected(), expected()]);
        boot[42] = 1;
        assert!(Layout::of(&boot).is_none(), "a version that does not exist yet");
    }

    #[test]
    fn the_label_of_a_boot_sector_needs_its_signature() {
        let mut boot = boot();
        assert_eq!(label(boot.as_slice()).unwrap(), Some("config-2".to_owned()));
        boot[38] = 0x28;
        assert_eq!(label(boot.as_slice()).unwrap(), Some(String::new()));
        assert_eq!(label(&boot[..511]).unwrap(), None);
    }

    #[test]
    fn short_names_have_the_case_of_their_flags() {
        for (name, flags, expected) in [
            (b"META    DAT", 0x00, Some("META.DAT")),
            (b"META    DAT", 0x08, Some("meta.DAT")),
            (b"META    DAT", 0x18, Some("meta.dat")),
            (b"LATEST     ", 0x08, Some("latest")),
            (b".          ", 0x00, Some(".")),
            (b"           ", 0x00, Some("")),
            (b"GR\x99SSE  TXT", 0x00, None),
        ] {
            assert_eq!(short_name(&slot(name, flags)).as_deref(), expected);
        }
    }

    #[test]
    fn a_long_name_is_put_together_from_its_parts() {
        let sum = checksum(b"NETWOR~1JSO");
        for length in [1, 12, 13, 14, 26, 255, 260] {
            let name = "n".repeat(length);
            assert_eq!(named(&long_slots(&name, sum)), Some(name));
        }
    }

    #[test]
    fn a_long_name_that_is_not_whole_is_none() {
        let sum = checksum(b"NETWOR~1JSO");
        let whole = long_slots("a name in three parts that is long", sum);
        assert_eq!(named(&[]), None);
        assert_eq!(named(&whole[1..]), None);
        assert_eq!(named(&whole[..2]), None);
        assert_eq!(named(&[whole[0], whole[2]]), None);
        assert_eq!(named(&[whole[0], whole[2], whole[1]]), None);
        assert_eq!(named(&long_slots("of another file", !sum)), None);
        assert_eq!(named(&long_slots(&"n".repeat(261), sum)), None);
    }

    #[test]
    fn the_number_of_clusters_gives_the_width() {
        for (clusters, width) in [(4084_u16, Width::Fat12), (4085, Width::Fat16)] {
            let mut boot = boot();
            boot[13] = 1;
            boot[19..21].copy_from_slice(&(clusters + 100).to_le_bytes());
            let layout = Layout::of(&boot).unwrap();
            assert_eq!((layout.clusters, layout.width), (clusters.into(), width));
        }
    }

    #[test]
    fn there_are_no_more_clusters_than_entries_for_them() {
        let mut boot = boot();
        boot[22] = 1;
        assert_eq!(Layout::of(&boot).unwrap().clusters, 254);
    }

    /// A FAT12 of clusters of 512 bytes, the first of them at 1536, with these slots in its root directory and these
    /// entries in its table.
    fn volume(slots: &[[u8; SLOT]], chain: &[(usize, u16)]) -> Vec<u8> {
        let mut volume = vec![0; 64 * 512];
        volume[..512].copy_from_slice(&boot());
        volume[11..24].copy_from_slice(&[0, 2, 1, 1, 0, 1, 16, 0, 43, 0, 0xf8, 1, 0]);
        for &(cluster, value) in chain {
            let at = 512 + cluster * 3 / 2;
            let value = if cluster % 2 == 1 { value << 4 } else { value };
            volume[at] |= value as u8;
            volume[at + 1] |= (value >> 8) as u8;
        }
        volume[1024..][..slots.len() * SLOT].copy_from_slice(slots.as_flattened());
        for cluster in 2..63 {
            volume[512 + cluster * 512..][..512].fill(cluster as u8);
        }
        volume
    }

    fn file(first: u16, size: u32) -> [u8; SLOT] {
        let mut slot = slot(b"F          ", 0);
        slot[26..28].copy_from_slice(&first.to_le_bytes());
        slot[28..].copy_from_slice(&size.to_le_bytes());
        slot
    }

    fn read(slots: &[[u8; SLOT]], chain: &[(usize, u16)]) -> Result<Vec<u8>, String> {
        let volume = volume(slots, chain);
        let content = Image::open(volume.as_slice()).and_then(|image| image.read("f", 100_000));
        content.map(Option::unwrap_or_default).map_err(|e| e.to_string())
    }

    #[test]
    fn a_file_in_scattered_clusters_is_put_together() {
        let expected: Vec<u8> = [[5; 512], [6; 512], [3; 512], [41; 512]].concat();
        let chain = [(5, 6), (6, 3), (3, 41), (41, 0xfff)];
        assert_eq!(read(&[file(5, 2000)], &chain), Ok(expected[..2000].to_vec()));
    }

    #[test]
    fn a_chain_that_fails_its_file_is_malformed() {
        let number = Err("invalid cluster, expected a number that the volume has".to_owned());
        assert_eq!(read(&[file(0, 1)], &[]), number);
        assert_eq!(read(&[file(42, 1)], &[]), number);
        assert_eq!(read(&[file(5, 1000)], &[(5, 0)]), number);
        // In a row, and yet beyond the end.
        assert_eq!(read(&[file(40, 1500)], &[(40, 41), (41, 42), (42, 43)]), number);
        let end = Err("invalid cluster chain, expected one as long as its file".to_owned());
        assert_eq!(read(&[file(5, 1000)], &[(5, 0xff8)]), end);
        let size = Err("invalid file, expected one that fits into the volume".to_owned());
        assert_eq!(read(&[file(5, 40 * 512 + 1)], &[]), size);
    }

    #[test]
    fn nothing_counts_after_the_end_of_a_directory() {
        assert_eq!(read(&[[0; SLOT], file(5, 1)], &[]), Ok(Vec::new()));
        let mut deleted = file(6, 1);
        deleted[0] = DELETED;
        assert_eq!(read(&[deleted, file(5, 1)], &[]), Ok(vec![5]));
    }

    #[test]
    fn a_long_name_belongs_to_the_next_slot_only() {
        let mut slots = long_slots("long", checksum(b"F          "));
        slots.extend([file(5, 1), file(6, 1)]);
        let volume = volume(&slots, &[]);
        let image = Image::open(volume.as_slice()).unwrap();
        assert_eq!((image.read("LONG", 1).unwrap(), image.read("F", 1).unwrap()), (Some(vec![5]), Some(vec![6])));
        assert_eq!(image.list("").unwrap().unwrap(), ["F", "long"]);
    }

    #[test]
    fn a_cluster_number_of_fat32_has_two_halves() {
        /// Beyond what is kept: ones where the number of a cluster takes more than 16 bits, else zeros.
        struct Sparse(Vec<u8>);
        impl ReadAt for Sparse {
            fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
                self.0.as_slice().read_at(offset, buffer).or_else(|_| {
                    buffer.fill(u8::from(offset / 512 > 65_536));
                    Ok(())
                })
            }
        }
        let mut slot = file(5, 1);
        slot[20] = 1;
        let mut bytes = vec![0; 20 * 16_384];
        bytes[..512].copy_from_slice(&boot());
        bytes[24..54].fill(0);
        bytes[11..24].copy_from_slice(&[0, 2, 1, 2, 0, 1, 0, 0, 0, 0, 0xf8, 0, 0]);
        bytes[32..36].copy_from_slice(&70_000_u32.to_le_bytes());
        bytes[36..40].copy_from_slice(&600_u32.to_le_bytes());
        bytes[44] = 2;
        bytes[1024 + 600 * 512..][..SLOT].copy_from_slice(&slot);
        bytes[1024 + 2 * 4..][..4].copy_from_slice(&[0xff, 0xff, 0xff, 0x0f]);
        let source = Sparse(bytes);
        let image = Image::open(&source).unwrap();
        assert_eq!(image.read("F", 1).unwrap(), Some(vec![1]));
        assert_eq!(image.list("").unwrap().unwrap(), ["F"]);
    }
}
