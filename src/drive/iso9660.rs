//! Reads ISO 9660 as `xorrisofs` and `genisoimage` write it: the label, and the files by their real names.
//!
//! An image has up to three sets of names for the same files: Rock Ridge, Joliet and plain names. Plain names are used
//! only if the image has no other set: they are shortened (`NETWORK_.JSO;1`), so two files can have the same plain
//! name.
//!
//! Not supported: blocks of other sizes than 2048 bytes; files in several extents; interleaved or compressed files.
//! Symbolic links are not followed.
//!
//! Sources: ECMA-119 (the file system), SUSP 1.12 and RRIP 1.12 (Rock Ridge), and the Joliet specification.

use std::cell::Cell;
use std::io::{self, ErrorKind};

use super::source::{Files, MAX_ENTRIES, ReadAt, ReadError, is_name, parts};
use super::window::{self, BUDGET, Window, u16_le, u32_le};

/// Size of a block, in bytes. An image with blocks of another size is rejected; no common tool writes such an image.
const BLOCK: usize = 2048;

/// Block of the first volume descriptor, after the system area.
const FIRST_DESCRIPTOR: u32 = 16;

/// Largest number of volume descriptors that are read. An image from KubeVirt has three.
const MAX_DESCRIPTORS: u32 = 32;

/// Largest directory that is read, in bytes: about 8,000 names, twice the number that is listed.
const MAX_DIRECTORY: u32 = 1024 * 1024;

/// Largest number of continuation areas of one record. A name of 255 bytes needs one.
const MAX_CONTINUATIONS: usize = 16;

const MAX_NAME: usize = 255;

const PRIMARY: u8 = 1;
const SUPPLEMENTARY: u8 = 2;

/// Flags of a directory record.
const DIRECTORY: u8 = 0x02;
const ASSOCIATED: u8 = 0x04;
const MULTI_EXTENT: u8 = 0x80;

/// Flags of a Rock Ridge name.
const NAME_CONTINUES: u8 = 0x01;
const NAME_IS_CURRENT_OR_PARENT: u8 = 0x06;

/// Offset of the name in a directory record, in bytes.
const NAME: usize = 33;

/// An ISO 9660 image whose files are read in process.
pub struct Image<'a, S: ReadAt + ?Sized> {
    source: &'a S,
    /// Number of blocks of the whole volume.
    blocks: u32,
    root: Extent,
    names: Names,
    /// Number of steps that are left for all lookups.
    budget: Cell<u32>,
}

/// The set of file names that is used for an image.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Names {
    /// Names of Rock Ridge, in the system use area of each record. The number is how many bytes to skip in the area.
    RockRidge(usize),
    Joliet,
    Plain,
}

#[derive(Clone, Copy)]
struct Extent {
    block: u32,
    bytes: u32,
}

#[derive(Clone, Copy)]
struct Entry {
    kind: EntryKind,
    extent: Extent,
}

#[derive(Clone, Copy)]
enum EntryKind {
    File,
    /// A file with several extents, or an interleaved file.
    ScatteredFile,
    Directory,
    /// A directory that was moved because of the depth of its path. Only the first block of the directory is known.
    RelocatedDirectory,
    /// A symbolic link, a device, a FIFO or a socket.
    Special,
}

/// Rock Ridge data of a record.
#[derive(Default)]
struct SystemUse {
    name: Vec<u8>,
    name_is_complete: bool,
    mode: Option<u32>,
    is_link: bool,
    /// First block of a directory that was moved to another directory. This record is in the original directory.
    child: Option<u32>,
    /// Whether this record is a moved directory. Its name is in the record in the original directory.
    is_guest: bool,
}

/// One lookup of a path in an image.
struct Walk<'i, 'a, S: ReadAt + ?Sized> {
    image: &'i Image<'a, S>,
    window: Window<'i, S>,
    path: &'i str,
}

/// Reads the label of the primary volume. `None` when there is no such volume, or when the device ends before the end
/// of the descriptor.
pub(super) fn label(source: &(impl ReadAt + ?Sized)) -> io::Result<Option<String>> {
    let mut descriptor = [0; BLOCK];
    match source.read_at(offset(FIRST_DESCRIPTOR), &mut descriptor) {
        Ok(()) if kind_of(&descriptor) == Some(PRIMARY) => Ok(Some(window::label(&descriptor[40..72]))),
        Err(e) if e.kind() != ErrorKind::UnexpectedEof => Err(e),
        _ => Ok(None),
    }
}

fn offset(block: u32) -> u64 {
    u64::from(block) * BLOCK as u64
}

fn kind_of(descriptor: &[u8; BLOCK]) -> Option<u8> {
    let [kind, standard @ .., _] = descriptor.first_chunk::<7>()?;
    (standard == b"CD001").then_some(*kind)
}

fn is_joliet(descriptor: &[u8; BLOCK]) -> bool {
    // Escape sequences of the three levels of UCS-2. The reader treats the levels alike.
    matches!(&descriptor[88..91], b"%/@" | b"%/C" | b"%/E")
}

/// Returns the first record of a block.
fn first_record(block: &[u8; BLOCK]) -> &[u8] {
    &block[..usize::from(block[0])]
}

/// Returns the bytes of a record's name, not decoded.
fn raw_name(record: &[u8]) -> &[u8] {
    let length = usize::from(record.get(NAME - 1).copied().unwrap_or(0));
    record.get(NAME..NAME + length).unwrap_or_default()
}

/// Returns the bytes after the name. A name of even length has a padding byte after it, which is skipped.
fn system_use_area(record: &[u8]) -> &[u8] {
    let name = usize::from(record.get(NAME - 1).copied().unwrap_or(0));
    record.get(NAME + (name | 1)..).unwrap_or_default()
}

/// Returns the number of bytes to skip in each system use area. `None` if the root record does not have the `SP` entry,
/// which an image with Rock Ridge has.
fn rock_ridge(root: &[u8]) -> Option<usize> {
    match system_use_area(root) {
        [b'S', b'P', 7, _, 0xbe, 0xef, skip, ..] => Some(usize::from(*skip)),
        _ => None,
    }
}

fn joliet_name(raw: &[u8]) -> Option<String> {
    let units: Vec<u16> = raw.chunks_exact(2).map(|unit| u16::from_be_bytes([unit[0], unit[1]])).collect();
    let mut name = String::from_utf16(&units).ok()?;
    // Joliet allows no version suffix, but the names of some images have one.
    if name.ends_with(";1") {
        name.truncate(name.len() - 2);
    }
    Some(name)
}

fn plain_name(raw: &[u8]) -> Option<String> {
    let name = str::from_utf8(raw).ok()?;
    let name = name.split_once(';').map_or(name, |(name, _version)| name);
    Some(name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase())
}

// === impl Extent ===

impl Extent {
    fn of(record: &[u8]) -> Self {
        // An extended attribute record, if there is one, comes before the content.
        let attributes = u32::from(record.get(1).copied().unwrap_or(0));
        Self { block: u32_le(record, 2).saturating_add(attributes), bytes: u32_le(record, 10) }
    }

    /// Returns the offset of the extent in bytes, after a check that the whole extent lies in the volume.
    fn start(self, blocks: u32) -> Result<u64, ReadError> {
        let end = u64::from(self.block) + u64::from(self.bytes).div_ceil(BLOCK as u64);
        if end > u64::from(blocks) {
            return Err(ReadError::Malformed { what: "extent", expected: "one that ends inside the volume" });
        }
        Ok(offset(self.block))
    }
}

// === impl Entry ===

impl Entry {
    fn of(record: &[u8], found: &SystemUse) -> Self {
        let extent = Extent::of(record);
        let flags = record[25];
        let kind = match found.mode.map(|mode| mode & 0o170_000) {
            _ if found.is_link => EntryKind::Special,
            Some(kind) if kind != 0o040_000 && kind != 0o100_000 => EntryKind::Special,
            _ if found.child.is_some() => EntryKind::RelocatedDirectory,
            _ if flags & DIRECTORY != 0 => EntryKind::Directory,
            // These two bytes are the sizes of a unit and of a gap of an interleaved file, and zero for other files.
            _ if flags & MULTI_EXTENT != 0 || u16_le(record, 26) != 0 => EntryKind::ScatteredFile,
            _ => EntryKind::File,
        };
        Self { kind, extent: Extent { block: found.child.unwrap_or(extent.block), ..extent } }
    }
}

// === impl SystemUse ===

impl SystemUse {
    /// Reads the entries of one system use area. If the entries continue, returns the next area: block, offset and
    /// length.
    fn take(&mut self, mut area: &[u8]) -> Option<(u32, u32, u32)> {
        let mut next = None;
        // An entry has at least four bytes; fewer bytes at the end are padding.
        while let Some(&[first, second, length, _version]) = area.first_chunk() {
            let Some((entry, rest)) = area.split_at_checked(length.into()).filter(|_| length >= 4) else { break };
            area = rest;
            match (&[first, second], &entry[4..]) {
                (b"NM", [flags, name @ ..]) if !self.name_is_complete => {
                    self.name_is_complete = flags & NAME_CONTINUES == 0;
                    match flags & NAME_IS_CURRENT_OR_PARENT {
                        0 => self.name.extend_from_slice(name),
                        _ => self.name.push(b'.'),
                    }
                }
                (b"PX", mode) if mode.len() >= 4 => self.mode = Some(u32_le(mode, 0)),
                (b"SL", _) => self.is_link = true,
                (b"CL", block) if block.len() >= 4 => self.child = Some(u32_le(block, 0)),
                (b"RE", _) => self.is_guest = true,
                (b"CE", path) if path.len() >= 24 => {
                    next = Some((u32_le(path, 0), u32_le(path, 8), u32_le(path, 16)));
                }
                (b"ST", _) => break,
                _ => {}
            }
        }
        next
    }
}

// === impl Image ===

impl<'a, S: ReadAt + ?Sized> Image<'a, S> {
    /// Reads the descriptors and chooses the set of names. Files are read later, when [`Files::read`] is called.
    ///
    /// # Errors
    ///
    /// [`ReadError::Malformed`] when the source is not an ISO 9660 volume with blocks of 2048 bytes, and
    /// [`ReadError::Io`].
    pub fn open(source: &'a S) -> Result<Self, ReadError> {
        let budget = Cell::new(BUDGET);
        let mut window = Window::new(source, &budget);
        let mut descriptor = [0; BLOCK];
        window.read("volume descriptor", offset(FIRST_DESCRIPTOR), &mut descriptor)?;
        if kind_of(&descriptor) != Some(PRIMARY) {
            return Err(ReadError::Malformed { what: "volume descriptor", expected: "that of ISO 9660" });
        }
        let primary = Self::of(source, &descriptor, Names::Plain)?;
        let mut block = [0; BLOCK];
        window.read("root directory", primary.root.start(primary.blocks)?, &mut block)?;
        if let Some(skip) = rock_ridge(first_record(&block)) {
            return Ok(Self { names: Names::RockRidge(skip), ..primary });
        }
        for at in 1..MAX_DESCRIPTORS {
            window.read("volume descriptor", offset(FIRST_DESCRIPTOR + at), &mut descriptor)?;
            match kind_of(&descriptor) {
                Some(SUPPLEMENTARY) if is_joliet(&descriptor) => return Self::of(source, &descriptor, Names::Joliet),
                // This is the last descriptor, or not a descriptor at all.
                Some(255) | None => break,
                Some(_) => {}
            }
        }
        Ok(primary)
    }

    fn of(source: &'a S, descriptor: &[u8; BLOCK], names: Names) -> Result<Self, ReadError> {
        if usize::from(u16_le(descriptor, 128)) != BLOCK {
            return Err(ReadError::Malformed { what: "block size of the volume", expected: "2048 bytes" });
        }
        let (blocks, root) = (u32_le(descriptor, 80), Extent::of(&descriptor[156..190]));
        if root.bytes == 0 {
            return Err(ReadError::Malformed { what: "root directory", expected: "one that is not empty" });
        }
        Ok(Self { source, blocks, root, names, budget: Cell::new(BUDGET) })
    }

    fn walk<'i>(&'i self, path: &'i str) -> Walk<'i, 'a, S> {
        Walk { image: self, window: Window::new(self.source, &self.budget), path }
    }
}

impl<S: ReadAt + ?Sized> Files for Image<'_, S> {
    fn read(&self, path: &str, limit: usize) -> Result<Option<Vec<u8>>, ReadError> {
        let mut walk = self.walk(path);
        let Some(Entry { kind, extent }) = walk.find()? else { return Ok(None) };
        match kind {
            EntryKind::File if extent.bytes as usize > limit => {
                Err(ReadError::TooLarge { path: path.to_owned(), size: extent.bytes.into(), limit })
            }
            // The block number of an empty file can have any value, so it is not checked.
            EntryKind::File if extent.bytes == 0 => Ok(Some(Vec::new())),
            EntryKind::File => {
                let start = extent.start(self.blocks)?;
                let mut content = vec![0; extent.bytes as usize];
                walk.window.read(path, start, &mut content)?;
                Ok(Some(content))
            }
            EntryKind::ScatteredFile => {
                Err(ReadError::Malformed { what: "file", expected: "one that is in one piece" })
            }
            _ => Err(ReadError::NotAFile { path: path.to_owned() }),
        }
    }

    fn list(&self, path: &str) -> Result<Option<Vec<String>>, ReadError> {
        let mut walk = self.walk(path);
        let directory = match walk.find()? {
            Some(Entry { kind: EntryKind::Directory, extent }) => extent,
            Some(Entry { kind: EntryKind::Special, .. }) => return Err(ReadError::NotAFile { path: path.to_owned() }),
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

impl<S: ReadAt + ?Sized> Walk<'_, '_, S> {
    /// Finds the entry at the path. `None` if there is no such entry. A symbolic link within the path is not followed.
    fn find(&mut self) -> Result<Option<Entry>, ReadError> {
        let mut at = Entry { kind: EntryKind::Directory, extent: self.image.root };
        for part in parts(self.path)? {
            match at.kind {
                EntryKind::Directory => {}
                EntryKind::Special => return Err(ReadError::NotAFile { path: self.path.to_owned() }),
                _ => return Ok(None),
            }
            let mut found = None;
            self.each(at.extent, &mut |name, entry| {
                found = (name == part).then_some(entry);
                found.is_none()
            })?;
            let Some(entry) = found else { return Ok(None) };
            at = if matches!(entry.kind, EntryKind::RelocatedDirectory) {
                self.relocated(entry.extent.block)?
            } else {
                entry
            };
        }
        Ok(Some(at))
    }

    /// Returns the entry of a moved directory, with the size from the first record of its first block.
    fn relocated(&mut self, path: u32) -> Result<Entry, ReadError> {
        let start = Extent { block: path, bytes: 1 }.start(self.image.blocks)?;
        let mut block = [0; BLOCK];
        self.window.read(self.path, start, &mut block)?;
        let extent = Extent::of(first_record(&block));
        if extent.block != path {
            return Err(ReadError::Malformed { what: "relocated directory", expected: "one that starts with itself" });
        }
        Ok(Entry { kind: EntryKind::Directory, extent })
    }

    /// Calls `visit` with each name of a directory until `visit` returns `false`.
    fn each(&mut self, directory: Extent, visit: &mut dyn FnMut(&str, Entry) -> bool) -> Result<(), ReadError> {
        if directory.bytes > MAX_DIRECTORY {
            return Err(ReadError::Malformed { what: "directory", expected: "at most 1 MiB of records" });
        }
        let start = directory.start(self.image.blocks)?;
        let mut block = [0; BLOCK];
        for at in (0..directory.bytes as usize).step_by(BLOCK) {
            self.window.read(self.path, start + at as u64, &mut block)?;
            let mut rest = block.as_slice();
            // A record never crosses a block boundary. A length of zero means that the rest of the block is padding.
            while let Some(&length @ 1..) = rest.first() {
                let Some((record, after)) = rest.split_at_checked(length.into()).filter(|_| usize::from(length) > NAME)
                else {
                    return Err(ReadError::Malformed {
                        what: "directory record",
                        expected: "one that ends inside its block",
                    });
                };
                rest = after;
                // Skips the records of the directory itself and of its parent, and files that are associated with
                // another file.
                if matches!(raw_name(record), [0 | 1]) || record[25] & ASSOCIATED != 0 {
                    continue;
                }
                if let Some((name, entry)) = self.entry(record)?
                    && is_name(&name)
                    && !visit(&name, entry)
                {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Returns the entry of a record, with its name in the chosen set. `None` if the record has no name in this set.
    fn entry(&mut self, record: &[u8]) -> Result<Option<(String, Entry)>, ReadError> {
        let mut found = SystemUse::default();
        let name = match self.image.names {
            Names::RockRidge(skip) => {
                let area = system_use_area(record).get(skip..).unwrap_or_default();
                self.system_use(area, &mut found)?;
                let name = std::mem::take(&mut found.name);
                (name.len() <= MAX_NAME && !found.is_guest).then(|| String::from_utf8(name).ok()).flatten()
            }
            Names::Joliet => joliet_name(raw_name(record)),
            Names::Plain => plain_name(raw_name(record)),
        };
        Ok(name.map(|name| (name, Entry::of(record, &found))))
    }

    fn system_use(&mut self, area: &[u8], found: &mut SystemUse) -> Result<(), ReadError> {
        let mut next = found.take(area);
        let mut block = [0; BLOCK];
        for count in 0.. {
            let Some((path, offset, length)) = next else { return Ok(()) };
            if count == MAX_CONTINUATIONS {
                break;
            }
            // Neighbouring areas need no further read, but each area takes time and counts as a step.
            self.window.spend(self.path)?;
            let start = Extent { block: path, bytes: 1 }.start(self.image.blocks)?;
            let range = offset as usize..(offset as usize).saturating_add(length as usize);
            self.window.read(self.path, start, &mut block)?;
            let Some(area) = block.get(range) else {
                return Err(ReadError::Malformed { what: "continuation of a record", expected: "one inside a block" });
            };
            next = found.take(area);
        }
        Err(ReadError::Malformed { what: "continuation of a record", expected: "at most 16 of them" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: u32 = 20;

    /// A directory record for an extent of one block, with this Rock Ridge data.
    fn record(name: &[u8], flags: u8, system_use: &[u8]) -> Vec<u8> {
        let mut record = vec![0; NAME];
        record[2..6].copy_from_slice(&ROOT.to_le_bytes());
        record[10..14].copy_from_slice(&(BLOCK as u32).to_le_bytes());
        (record[25], record[NAME - 1]) = (flags, name.len() as u8);
        record.extend_from_slice(name);
        record.resize(NAME + (name.len() | 1), 0);
        record.extend_from_slice(system_use);
        record[0] = record.len() as u8;
        record
    }

    fn entry(signature: &[u8; 2], data: &[u8]) -> Vec<u8> {
        [&signature[..], &[data.len() as u8 + 4, 1], data].concat()
    }

    fn continued(block: u32, offset: u32, length: u32) -> Vec<u8> {
        entry(b"CE", &[block, 0, offset, 0, length, 0].map(u32::to_le_bytes).concat())
    }

    /// A volume of 24 blocks whose root directory has these records. Block 21 has `continuation`.
    fn volume(records: &[Vec<u8>], continuation: &[u8]) -> Vec<u8> {
        let mut volume = vec![0; 24 * BLOCK];
        let descriptor = &mut volume[16 * BLOCK..];
        descriptor[..7].copy_from_slice(b"\x01CD001\x01");
        descriptor[40..72].copy_from_slice(b"config-2                        ");
        descriptor[80..84].copy_from_slice(&24_u32.to_le_bytes());
        descriptor[128..130].copy_from_slice(&(BLOCK as u16).to_le_bytes());
        descriptor[156..190].copy_from_slice(&record(&[0], DIRECTORY, &[]));
        let own = record(&[0], DIRECTORY, &entry(b"SP", &[0xbe, 0xef, 0]));
        let root = [own, records.concat()].concat();
        volume[20 * BLOCK..][..root.len()].copy_from_slice(&root);
        volume[21 * BLOCK..][..continuation.len()].copy_from_slice(continuation);
        volume
    }

    fn list(volume: &[u8]) -> Result<Vec<String>, String> {
        Image::open(volume).and_then(|image| image.list("")).map(Option::unwrap_or_default).map_err(|e| e.to_string())
    }

    fn named(name: &[u8]) -> Vec<u8> {
        entry(b"NM", &[&[0], name].concat())
    }

    #[test]
    fn a_label_is_returned_without_its_padding() {
        let mut volume = volume(&[], &[]);
        assert_eq!(label(volume.as_slice()).unwrap(), Some("config-2".to_owned()));
        volume[16 * BLOCK + 40..][..32].copy_from_slice(b"a b\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0  ");
        assert_eq!(label(volume.as_slice()).unwrap(), Some("a b".to_owned()));
    }

    #[test]
    fn a_source_without_a_primary_volume_has_no_label() {
        let volume = volume(&[], &[]);
        assert_eq!(label(&volume[..17 * BLOCK - 1]).unwrap(), None);
        for (at, value) in [(0, 2), (1, b'c'), (5, b'2')] {
            let mut volume = volume.clone();
            volume[16 * BLOCK + at] = value;
            assert_eq!(label(volume.as_slice()).unwrap(), None);
        }
    }

    #[test]
    fn a_failed_read_is_an_error_and_not_a_missing_label() {
        struct Broken;
        impl ReadAt for Broken {
            fn read_at(&self, _: u64, _: &mut [u8]) -> io::Result<()> {
                Err(ErrorKind::PermissionDenied.into())
            }
        }
        assert_eq!(label(&Broken).unwrap_err().kind(), ErrorKind::PermissionDenied);
    }

    #[test]
    fn all_lookups_in_an_image_share_one_number_of_steps() {
        let volume = volume(&[record(b"A", 0, &named(b"a"))], &[]);
        let image = Image::open(volume.as_slice()).unwrap();
        // Each lookup needs one read.
        let lookups = (0..9999).take_while(|at| image.read(&format!("openstack/{at}"), 1).is_ok()).count();
        assert_eq!(lookups, 4096);
        let error = image.list("").unwrap_err();
        let reason = std::error::Error::source(&error).map(ToString::to_string);
        assert_eq!(reason.as_deref(), Some("more reads than a config drive needs"));
    }

    #[test]
    fn joliet_names_and_plain_names_are_decoded() {
        for (raw, expected) in [
            (&b"\0a\0b"[..], Some("ab")),
            (b"\0a\0;\x001", Some("a")),
            (b"\x20\xac", Some("\u{20ac}")),
            (b"\xd8\x3d\xde\x00", Some("\u{1f600}")),
            (b"\xd8\x3d", None),
            (b"", Some("")),
        ] {
            assert_eq!(joliet_name(raw).as_deref(), expected);
        }
        for (raw, expected) in [
            (&b"META_DAT.JSO;1"[..], Some("meta_dat.jso")),
            (b"USER_DAT.;1", Some("user_dat")),
            (b"LATEST", Some("latest")),
            (b"A.B.;12", Some("a.b")),
            (b";1", Some("")),
            (b"\xff", None),
        ] {
            assert_eq!(plain_name(raw).as_deref(), expected);
        }
    }

    #[test]
    fn a_rock_ridge_name_continues_in_the_next_entry_and_area() {
        let first = [entry(b"NM", b"\x01user"), continued(21, 100, 100), entry(b"NM", b"\x01_")].concat();
        let mut rest = vec![0; 100];
        rest.extend([entry(b"NM", b"\0data"), entry(b"NM", b"\0too much")].concat());
        let volume = volume(&[record(b"USER_DAT.;1", 0, &first)], &rest);
        assert_eq!(list(&volume), Ok(vec!["user_data".to_owned()]));
    }

    #[test]
    fn a_record_without_a_valid_name_is_not_listed() {
        let nameless: [&[u8]; 8] = [
            &[],
            &entry(b"NM", &[2]),
            &entry(b"NM", &[4]),
            &entry(b"NM", &[]),
            &[named(b"hidden"), entry(b"RE", &[])].concat(),
            &[entry(b"ST", &[]), named(b"late")].concat(),
            &named(b"a/b"),
            &named(b"\xff"),
        ];
        for system_use in nameless {
            let records = [record(b"PLAIN.;1", 0, system_use), record(b"OTHER.;1", 0, &named(b"other"))];
            assert_eq!(list(&volume(&records, &[])), Ok(vec!["other".to_owned()]));
        }
    }

    #[test]
    fn a_name_over_255_bytes_is_not_listed() {
        for (length, expected) in [(125, 1), (126, 0)] {
            let first = [entry(b"NM", &[&[1][..], &[b'n'; 130]].concat()), continued(21, 0, 200)].concat();
            let volume = volume(&[record(b"N", 0, &first)], &named(&vec![b'n'; length]));
            assert_eq!(list(&volume).map(|names| names.len()), Ok(expected));
        }
    }

    #[test]
    fn an_associated_file_is_not_listed() {
        let records = [record(b"A", ASSOCIATED, &named(b"fork")), record(b"A", 0, &named(b"file"))];
        assert_eq!(list(&volume(&records, &[])), Ok(vec!["file".to_owned()]));
    }

    #[test]
    fn a_continuation_outside_its_block_or_the_volume_is_malformed() {
        for (path, message) in [
            (continued(21, 2040, 9), "invalid continuation of a record, expected one inside a block"),
            (continued(21, u32::MAX, u32::MAX), "invalid continuation of a record, expected one inside a block"),
            (continued(24, 0, 10), "invalid extent, expected one that ends inside the volume"),
            (continued(u32::MAX, 0, 10), "invalid extent, expected one that ends inside the volume"),
        ] {
            assert_eq!(list(&volume(&[record(b"A", 0, &path)], &[])), Err(message.to_owned()));
        }
    }

    #[test]
    fn a_record_that_is_too_short_or_crosses_its_block_boundary_is_malformed() {
        let message = "invalid directory record, expected one that ends inside its block";
        let mut short = record(b"A", 0, &named(b"a"));
        short[0] = 33;
        assert_eq!(list(&volume(&[short], &[])), Err(message.to_owned()));
        let long = vec![record(b"A", 0, &[b' '; 200]); 8].concat();
        let end = [long, vec![200; 100]].concat();
        assert_eq!(list(&volume(&[end], &[])), Err(message.to_owned()));
    }

    #[test]
    fn a_directory_of_more_than_1_mib_is_malformed() {
        let mut volume = volume(&[], &[]);
        volume[16 * BLOCK + 80..][..4].copy_from_slice(&u32::MAX.to_le_bytes());
        volume[16 * BLOCK + 166..][..4].copy_from_slice(&(MAX_DIRECTORY + 1).to_le_bytes());
        assert_eq!(list(&volume), Err("invalid directory, expected at most 1 MiB of records".to_owned()));
    }

    #[test]
    fn a_relocated_directory_must_start_with_a_record_of_itself() {
        let moved = [named(b"deep"), entry(b"CL", &[22_u32, 0].map(u32::to_le_bytes).concat())].concat();
        let mut volume = volume(&[record(b"DEEP", 0, &moved)], &[]);
        let mut own = record(&[0], DIRECTORY, &[]);
        for (path, expected) in [
            (22_u32, Ok(Some(Vec::new()))),
            (20, Err("invalid relocated directory, expected one that starts with itself".to_owned())),
        ] {
            own[2..6].copy_from_slice(&path.to_le_bytes());
            volume[22 * BLOCK..][..own.len()].copy_from_slice(&own);
            let found = Image::open(volume.as_slice()).unwrap().list("deep").map_err(|e| e.to_string());
            assert_eq!(found, expected);
        }
    }

    #[test]
    fn the_extended_attributes_before_a_file_are_not_part_of_its_content() {
        let mut file = record(b"A", 0, &named(b"a"));
        (file[1], file[11]) = (1, 0);
        file[10] = 7;
        let volume = volume(&[file], b"content");
        assert_eq!(Image::open(volume.as_slice()).unwrap().read("a", 7).unwrap(), Some(b"content".to_vec()));
    }

    #[test]
    fn devices_and_symbolic_links_are_special_entries() {
        for (system_use, special) in [
            (entry(b"PX", &0o100_600_u32.to_le_bytes()), false),
            (entry(b"PX", &0o120_777_u32.to_le_bytes()), true),
            (entry(b"PX", &0o010_600_u32.to_le_bytes()), true),
            (entry(b"PX", &0o060_600_u32.to_le_bytes()), true),
            (entry(b"SL", &[0, 8, 0]), true),
        ] {
            let mut found = SystemUse::default();
            assert_eq!(found.take(&system_use), None);
            let kind = Entry::of(&record(b"A", 0, &[]), &found).kind;
            assert_eq!(matches!(kind, EntryKind::Special), special);
        }
    }
}
