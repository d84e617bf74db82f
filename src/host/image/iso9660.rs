//! Writes an ISO 9660 image with a few files in one directory. The image has these files in two trees: the plain tree
//! with Rock Ridge names, and the Joliet tree.
//!
//! The position of every block is known before the first byte is written. The blocks have this order: descriptors, path
//! tables, the directories of each tree, files. No record may cross the end of a block. Each directory has so few
//! records that they fit one block.
//!
//! The formats are those of ECMA-119 (the file system), SUSP 1.10 and RRIP 1.10 (Rock Ridge), and the Joliet
//! specification.

const BLOCK: usize = 2048;

/// The size of an image is a multiple of 1 MiB, like the images that `xorrisofs` creates for KubeVirt. During a live
/// migration, a placeholder image must have the same size. A disk whose size is a multiple of 1 MiB works on every bus.
const ALIGNMENT: usize = 1024 * 1024;

/// First block of the descriptors, one for each tree. The system area before them stays empty.
const DESCRIPTORS: u32 = 16;
const TERMINATOR: u32 = 18;

/// First block of the path tables. Each tree has two: one with little-endian numbers and one with big-endian numbers.
const PATH_TABLES: u32 = 19;

const DIRECTORIES: u32 = 23;

/// Flag of a directory record.
const DIRECTORY: u8 = 0x02;

/// Date of a directory record: 1970-01-01, 00:00:00 UTC. Years count from 1900. In ECMA-119 a date of zeros means "not
/// specified", but Linux reads such a date as a date in 1899.
const EPOCH: [u8; 7] = [70, 1, 1, 0, 0, 0, 0];

/// Date of a volume: not specified. Readers derive the UUID of a volume from its date, so a fixed date would give all
/// images the same UUID.
const NO_DATE: [u8; 17] = *b"0000000000000000\0";

/// Modes as KubeVirt sets them. The files may contain secrets, so only root can read them.
const FILE_MODE: u32 = 0o100_600;
const DIRECTORY_MODE: u32 = 0o040_755;

/// Contents of an image.
pub(super) struct Volume<'a> {
    /// Label of the volume: at most 16 ASCII characters, the limit of Joliet.
    pub(super) label: &'static str,
    /// Names of the directories from the root to the files.
    pub(super) path: &'static [&'static str],
    /// Files, sorted by name, at most five. A name has lower-case letters, digits, `_`, `-` and at most one dot.
    pub(super) files: Vec<(&'static str, &'a [u8])>,
}

/// A run of bytes from the start of a block.
#[derive(Clone, Copy)]
struct Extent {
    block: u32,
    bytes: u32,
}

#[derive(Clone, Copy, Eq, PartialEq)]
enum Names {
    /// Names in capitals; the real names are in the system use area.
    RockRidge,
    Joliet,
}

/// One of the two directory trees. Both contain the same files.
struct Tree<'v> {
    volume: &'v Volume<'v>,
    files: &'v [Extent],
    names: Names,
    path_tables: u32,
    /// Block of the root directory. The blocks of the other directories follow, each after its parent.
    root: u32,
}

/// A 16-bit number in both byte orders.
fn both_u16(number: u16) -> [u8; 4] {
    let ([a, b], [c, d]) = (number.to_le_bytes(), number.to_be_bytes());
    [a, b, c, d]
}

/// A 32-bit number in both byte orders.
fn both_u32(number: u32) -> [u8; 8] {
    let ([a, b, c, d], [e, f, g, h]) = (number.to_le_bytes(), number.to_be_bytes());
    [a, b, c, d, e, f, g, h]
}

fn pad_to_even(bytes: &mut Vec<u8>) {
    bytes.resize(bytes.len().next_multiple_of(2), 0);
}

/// Makes a directory record. `name` has the encoding of its tree.
fn record(name: &[u8], extent: Extent, flags: u8, system_use: &[u8]) -> Vec<u8> {
    let mut record = vec![0; 2];
    record.extend(both_u32(extent.block));
    record.extend(both_u32(extent.bytes));
    record.extend(EPOCH);
    record.extend([flags, 0, 0]);
    record.extend(both_u16(1));
    record.push(name.len() as u8);
    record.extend(name);
    pad_to_even(&mut record);
    record.extend(system_use);
    pad_to_even(&mut record);
    record[0] = record.len() as u8;
    record
}

/// Makes an entry of a system use area.
fn entry(signature: &[u8; 2], data: &[u8]) -> Vec<u8> {
    [&signature[..], &[data.len() as u8 + 4, 1], data].concat()
}

/// Entries that announce Rock Ridge, for the first record of the root directory. They name the extension: without this
/// name, Linux prefers Joliet. The format allows two more strings after the name. These strings would need another
/// block, and no reader uses them.
fn rock_ridge() -> Vec<u8> {
    let name = b"RRIP_1991A";
    [entry(b"SP", &[0xbe, 0xef, 0]), entry(b"ER", &[&[name.len() as u8, 0, 0, 1], &name[..]].concat())].concat()
}

/// Entry with the mode, the number of links, and the user and group 0.
fn posix(mode: u32, links: u32) -> Vec<u8> {
    entry(b"PX", &[mode, links, 0, 0].map(both_u32).concat())
}

fn real_name(name: &str) -> Vec<u8> {
    entry(b"NM", &[b"\0", name.as_bytes()].concat())
}

// === impl Volume ===

impl Volume<'_> {
    /// Makes the image: the same bytes for the same volume.
    pub(super) fn image(&self) -> Vec<u8> {
        let levels = self.path.len() as u32 + 1;
        let mut end = DIRECTORIES + 2 * levels;
        let files: Vec<Extent> = self.files.iter().map(|(_, content)| Extent::after(&mut end, content)).collect();
        let mut image = vec![0; (end as usize * BLOCK).next_multiple_of(ALIGNMENT)];
        let blocks = (image.len() / BLOCK) as u32;
        let mut put = |block: u32, bytes: &[u8]| image[block as usize * BLOCK..][..bytes.len()].copy_from_slice(bytes);
        for (at, names) in [(0, Names::RockRidge), (1, Names::Joliet)] {
            let (path_tables, root) = (PATH_TABLES + 2 * at, DIRECTORIES + levels * at);
            let tree = Tree { volume: self, files: &files, names, path_tables, root };
            put(DESCRIPTORS + at, &tree.descriptor(blocks));
            put(path_tables, &tree.path_table(u32::to_le_bytes, u16::to_le_bytes));
            put(path_tables + 1, &tree.path_table(u32::to_be_bytes, u16::to_be_bytes));
            for level in 0..levels {
                put(root + level, &tree.directory(level));
            }
        }
        put(TERMINATOR, b"\xffCD001\x01");
        for ((_, content), extent) in self.files.iter().zip(&files) {
            put(extent.block, content);
        }
        image
    }
}

// === impl Extent ===

impl Extent {
    /// Allocates blocks for a file after the last used block. An empty file also gets a block: some readers treat two
    /// files at one position as the same file.
    fn after(end: &mut u32, content: &[u8]) -> Self {
        let extent = Self { block: *end, bytes: content.len() as u32 };
        *end += content.len().div_ceil(BLOCK).max(1) as u32;
        extent
    }
}

// === impl Names ===

impl Names {
    fn text(self, text: &str) -> Vec<u8> {
        match self {
            Self::RockRidge => text.as_bytes().to_vec(),
            Self::Joliet => text.encode_utf16().flat_map(u16::to_be_bytes).collect(),
        }
    }

    /// Encodes the name of a directory. The plain tree allows capitals, digits and underscores, up to 30 characters.
    /// The names used here stay different in this form.
    fn directory(self, name: &str) -> Vec<u8> {
        match self {
            Self::RockRidge => self.text(&name.to_ascii_uppercase().replace('-', "_")),
            Self::Joliet => self.text(name),
        }
    }

    fn file(self, name: &str) -> Vec<u8> {
        let mut written = self.directory(name);
        if self == Self::RockRidge {
            let end: &[u8] = if name.contains('.') { b";1" } else { b".;1" };
            written.extend(end);
        }
        written
    }
}

// === impl Tree ===

impl Tree<'_> {
    fn descriptor(&self, blocks: u32) -> Vec<u8> {
        let (kind, escape): (u8, &[u8]) = match self.names {
            Names::RockRidge => (1, b""),
            // UCS-2, level 3.
            Names::Joliet => (2, b"%/E"),
        };
        let mut descriptor = vec![0; BLOCK];
        let mut put = |at: usize, bytes: &[u8]| descriptor[at..at + bytes.len()].copy_from_slice(bytes);
        let text = |text: &str, bytes: usize| self.names.text(&format!("{text:<bytes$}"))[..bytes].to_vec();
        put(0, &[kind]);
        put(1, b"CD001\x01");
        put(8, &text("", 32));
        put(40, &text(self.volume.label, 32));
        put(80, &both_u32(blocks));
        put(88, escape);
        // Volume 1 of a set of one volume.
        put(120, &both_u16(1));
        put(124, &both_u16(1));
        put(128, &both_u16(BLOCK as u16));
        put(132, &both_u32(self.path_table(u32::to_le_bytes, u16::to_le_bytes).len() as u32));
        put(140, &self.path_tables.to_le_bytes());
        put(148, &(self.path_tables + 1).to_be_bytes());
        put(156, &record(&[0], self.extent(0), DIRECTORY, &[]));
        // Volume set, publisher, preparer and application; then the names of three files, of 37 bytes each. In Joliet a
        // character has two bytes, so one byte is left over.
        put(190, &text("", 4 * 128));
        for at in [702, 739, 776] {
            put(at, &text("", 36));
            put(at + 36, if self.names == Names::RockRidge { b" " } else { b"\0" });
        }
        // Dates of creation, modification, expiration, and of the start of validity.
        put(813, &[NO_DATE; 4].concat());
        put(881, &[1]);
        descriptor
    }

    /// The path table: the directories, each with the number of its parent. The root is its own parent.
    fn path_table(&self, u32_bytes: fn(u32) -> [u8; 4], u16_bytes: fn(u16) -> [u8; 2]) -> Vec<u8> {
        let names = self.volume.path.iter().map(|name| self.names.directory(name));
        let mut table = Vec::new();
        for (level, name) in std::iter::once(vec![0]).chain(names).enumerate() {
            table.extend([name.len() as u8, 0]);
            table.extend(u32_bytes(self.root + level as u32));
            table.extend(u16_bytes(level.max(1) as u16));
            table.extend(name);
            pad_to_even(&mut table);
        }
        table
    }

    fn directory(&self, level: u32) -> Vec<u8> {
        let parent = level.saturating_sub(1);
        let mark = if level == 0 { rock_ridge() } else { Vec::new() };
        let own = [mark, self.posix(level)].concat();
        let mut records = vec![
            record(&[0], self.extent(level), DIRECTORY, self.system_use(&own)),
            record(&[1], self.extent(parent), DIRECTORY, self.system_use(&self.posix(parent))),
        ];
        if let Some(name) = self.volume.path.get(level as usize) {
            let system_use = [self.posix(level + 1), real_name(name)].concat();
            let child = self.extent(level + 1);
            records.push(record(&self.names.directory(name), child, DIRECTORY, self.system_use(&system_use)));
        } else {
            for ((name, _), extent) in self.volume.files.iter().zip(self.files) {
                let system_use = [posix(FILE_MODE, 1), real_name(name)].concat();
                records.push(record(&self.names.file(name), *extent, 0, self.system_use(&system_use)));
            }
        }
        records.concat()
    }

    fn extent(&self, level: u32) -> Extent {
        Extent { block: self.root + level, bytes: BLOCK as u32 }
    }

    /// The mode of a directory, and its number of links. Links to a directory come from its parent, from itself, and
    /// from each directory in it.
    fn posix(&self, level: u32) -> Vec<u8> {
        let has_child = (level as usize) < self.volume.path.len();
        posix(DIRECTORY_MODE, 2 + u32::from(has_child))
    }

    fn system_use<'s>(&self, rock_ridge: &'s [u8]) -> &'s [u8] {
        if self.names == Names::RockRidge { rock_ridge } else { &[] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn volume<'a>(files: &[(&'static str, &'a [u8])]) -> Volume<'a> {
        Volume { label: "config-2", path: &["openstack", "latest"], files: files.to_vec() }
    }

    fn bytes(image: &[u8], block: u32, range: std::ops::Range<usize>) -> &[u8] {
        &image[block as usize * BLOCK..][range]
    }

    /// The encoded names in a directory, each with the block and the size of its target.
    fn records(image: &[u8], block: u32) -> Vec<(Vec<u8>, u8, u8)> {
        let mut records = Vec::new();
        let mut rest = bytes(image, block, 0..BLOCK);
        while rest[0] > 0 {
            let (record, after) = rest.split_at(rest[0].into());
            records.push((record[33..][..record[32].into()].to_vec(), record[2], record[10]));
            rest = after;
        }
        assert_eq!(rest, vec![0; rest.len()]);
        records
    }

    #[test]
    fn the_first_record_of_the_root_directory_announces_rock_ridge() {
        let image = volume(&[]).image();
        let expected = [
            // A record of 96 bytes: a directory of 2048 bytes in block 23, dated 1970, on the first volume.
            &b"\x60\0\x17\0\0\0\0\0\0\x17\0\x08\0\0\0\0\x08\0\x46\x01\x01\0\0\0\0\x02\0\0\x01\0\0\x01\x01\0"[..],
            b"SP\x07\x01\xbe\xef\0",
            b"ER\x12\x01\x0a\0\0\x01RRIP_1991A",
            // A directory that has one directory.
            b"PX\x24\x01\xed\x41\0\0\0\0\x41\xed\x03\0\0\0\0\0\0\x03\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0",
            b"\0",
        ]
        .concat();
        assert_eq!(bytes(&image, 23, 0..96), expected);
    }

    #[test]
    fn a_record_of_the_joliet_tree_has_no_system_use_area() {
        let image = volume(&[]).image();
        let own = b"\x22\0\x1a\0\0\0\0\0\0\x1a\0\x08\0\0\0\0\x08\0\x46\x01\x01\0\0\0\0\x02\0\0\x01\0\0\x01\x01\0";
        assert_eq!(bytes(&image, 26, 0..34), own);
        let latest = records(&image, 27).pop();
        assert_eq!(latest, Some((b"\0l\0a\0t\0e\0s\0t".to_vec(), 28, 0)));
    }

    #[test]
    fn path_tables_have_the_same_content_in_both_byte_orders() {
        let image = volume(&[]).image();
        let little = b"\x01\0\x17\0\0\0\x01\0\0\0\x09\0\x18\0\0\0\x01\0OPENSTACK\0\x06\0\x19\0\0\0\x02\0LATEST";
        let big = b"\x01\0\0\0\0\x17\0\x01\0\0\x09\0\0\0\0\x18\0\x01OPENSTACK\0\x06\0\0\0\0\x19\0\x02LATEST";
        assert_eq!((bytes(&image, 19, 0..42), bytes(&image, 20, 0..42)), (&little[..], &big[..]));
        let name = b"\0o\0p\0e\0n\0s\0t\0a\0c\0k";
        assert_eq!(bytes(&image, 21, 10..36), [b"\x12\0\x1b\0\0\0\x01\0", &name[..]].concat());
        assert_eq!(bytes(&image, 22, 10..36), [b"\x12\0\0\0\0\x1b\0\x01", &name[..]].concat());
    }

    #[test]
    fn a_volume_has_a_label_and_no_date() {
        let image = volume(&[]).image();
        let wide = |text: &str| text.bytes().flat_map(|b| [0, b]).collect::<Vec<u8>>();
        let blanks = " ".repeat(512);
        // 512 blocks of 2048 bytes, on volume 1 of a set of one volume.
        let (size, set) = (b"\0\x02\0\0\0\0\x02\0", b"\x01\0\0\x01\x01\0\0\x01\0\x08\x08\0");
        let primary = [
            format!("\x01CD001\x01\0{:32}{:32}\0\0\0\0\0\0\0\0", "", "config-2").as_bytes(),
            size,
            &[0; 32],
            set,
            b"\x2a\0\0\0\0\0\0\x2a\x13\0\0\0\0\0\0\0\0\0\0\x14\0\0\0\0",
            b"\x22\0\x17\0\0\0\0\0\0\x17\0\x08\0\0\0\0\x08\0\x46\x01\x01\0\0\0\0\x02\0\0\x01\0\0\x01\x01\0",
            &blanks.as_bytes()[..512],
            &blanks.as_bytes()[..111],
        ]
        .concat();
        let joliet = [
            b"\x02CD001\x01\0",
            &wide(&format!("{:16}{:16}\0\0\0\0", "", "config-2"))[..],
            size,
            b"%/E",
            &[0; 29],
            set,
            b"\x38\0\0\0\0\0\0\x38\x15\0\0\0\0\0\0\0\0\0\0\x16\0\0\0\0",
            b"\x22\0\x1a\0\0\0\0\0\0\x1a\0\x08\0\0\0\0\x08\0\x46\x01\x01\0\0\0\0\x02\0\0\x01\0\0\x01\x01\0",
            &wide(&blanks[..256]),
            &[&wide(&blanks[..18])[..], &[0]].concat().repeat(3),
        ]
        .concat();
        let end = [&[&NO_DATE[..]; 4].concat()[..], &[1], &[0; BLOCK - 882]].concat();
        assert_eq!(bytes(&image, 16, 0..BLOCK), [primary, end.clone()].concat());
        assert_eq!(bytes(&image, 17, 0..BLOCK), [joliet, end].concat());
        assert_eq!(bytes(&image, 18, 0..8), b"\xffCD001\x01\0");
    }

    #[test]
    fn plain_names_are_capitals_with_a_dot_and_a_version() {
        for (name, expected) in [("user-data", "USER_DATA.;1"), ("meta_data.json", "META_DATA.JSON;1")] {
            assert_eq!(Names::RockRidge.file(name), expected.as_bytes());
        }
    }

    #[test]
    fn each_file_has_its_own_position_even_if_it_is_empty() {
        let image = volume(&[("a", &[1; BLOCK]), ("b", b""), ("c", &[2; BLOCK + 1]), ("d", b"\x03")]).image();
        let paths: Vec<u8> = records(&image, 25).iter().skip(2).map(|(_, block, _)| *block).collect();
        assert_eq!(paths, [29, 30, 31, 33]);
        let firsts = [29, 30, 31, 32, 33].map(|block| bytes(&image, block, 0..2));
        assert_eq!(firsts, [[1, 1], [0, 0], [2, 2], [2, 0], [3, 0]]);
    }

    #[test]
    fn the_size_of_an_image_is_a_multiple_of_1_mib_and_is_in_its_descriptors() {
        // 29 blocks come before the file.
        for (blocks, expected) in [(0, 1), (512 - 29, 1), (512 - 28, 2)] {
            let image = volume(&[("a", &vec![0; blocks * BLOCK])]).image();
            assert_eq!(image.len(), expected * ALIGNMENT);
            let sectors = both_u32(expected as u32 * 512);
            assert_eq!([bytes(&image, 16, 80..88), bytes(&image, 17, 80..88)], [sectors, sectors]);
        }
    }
}
