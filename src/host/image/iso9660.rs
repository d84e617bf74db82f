//! ISO 9660, written for a handful of files in one directory: the plain tree with Rock Ridge names, and the Joliet tree.
//!
//! Every block has its place before the first byte is written, in this order: descriptors, path tables, the directories of
//! each tree, files. A directory has so few records that they fit one block, which no record may cross.
//!
//! ECMA-119 (the file system), SUSP 1.10 and RRIP 1.10 (Rock Ridge), and the Joliet specification.

const BLOCK: usize = 2048;

/// An image is so many whole pieces of 1 MiB, which is what `xorrisofs` makes of it for KubeVirt: a stand-in during a live
/// migration has the same size, and a disk of whole MiB suits every bus.
const ALIGNMENT: usize = 1024 * 1024;

/// One for each tree, behind the system area, which stays empty.
const DESCRIPTORS: u32 = 16;
const TERMINATOR: u32 = 18;

/// Two for each tree: the numbers in one are little-endian, in the other big-endian.
const PATH_TABLES: u32 = 19;

const DIRECTORIES: u32 = 23;

/// Flag of a directory record.
const DIRECTORY: u8 = 0x02;

/// Of a directory record: 1970-01-01, 00:00:00 UTC. Years count from 1900. Linux reads a date of zeros, which ECMA-119 has
/// for "not said", as one in 1899.
const EPOCH: [u8; 7] = [70, 1, 1, 0, 0, 0, 0];

/// Of a volume: not said. Readers make the volume's UUID of its date, and one UUID for all images would be none.
const NO_DATE: [u8; 17] = *b"0000000000000000\0";

/// As KubeVirt writes them: what is on a drive may be secret.
const FILE_MODE: u32 = 0o100_600;
const DIRECTORY_MODE: u32 = 0o040_755;

/// What goes into an image.
pub(super) struct Volume<'a> {
    /// At most 16 characters of ASCII, which is what Joliet has room for.
    pub(super) label: &'static str,
    /// The directories on the way from the root to the files.
    pub(super) path: &'static [&'static str],
    /// Sorted by name, at most five; their names are lower case, with letters, digits, `_`, `-` and one dot at most.
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
    /// In capitals, with the real ones in the system use area.
    RockRidge,
    Joliet,
}

/// One of the two sets of directories, which lead to the same files.
struct Tree<'v> {
    volume: &'v Volume<'v>,
    files: &'v [Extent],
    names: Names,
    path_tables: u32,
    /// The block of the root directory. Each directory lies behind its parent.
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

/// A directory record for a name as its tree has it.
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

/// An entry of a system use area.
fn entry(signature: &[u8; 2], data: &[u8]) -> Vec<u8> {
    [&signature[..], &[data.len() as u8 + 4, 1], data].concat()
}

/// The mark of Rock Ridge, first in the first record of the root directory, and the name of the extension, without which
/// Linux prefers Joliet. The two texts that may follow that name would need a block of their own, and nobody reads them.
fn rock_ridge() -> Vec<u8> {
    let name = b"RRIP_1991A";
    [entry(b"SP", &[0xbe, 0xef, 0]), entry(b"ER", &[&[name.len() as u8, 0, 0, 1], &name[..]].concat())].concat()
}

/// Mode, number of links, and the user and the group 0.
fn posix(mode: u32, links: u32) -> Vec<u8> {
    entry(b"PX", &[mode, links, 0, 0].map(both_u32).concat())
}

fn real_name(name: &str) -> Vec<u8> {
    entry(b"NM", &[b"\0", name.as_bytes()].concat())
}

// === impl Volume ===

impl Volume<'_> {
    /// The image, the same bytes for the same volume.
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
    /// The place of a file behind what is there already. An empty file takes a block as well: to some readers, two files in
    /// one place are one file.
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

    /// The plain tree has capitals, digits and underscores, and up to 30 of them: no two of our names look alike there.
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
        // The only one of a set of one volume.
        put(120, &both_u16(1));
        put(124, &both_u16(1));
        put(128, &both_u16(BLOCK as u16));
        put(132, &both_u32(self.path_table(u32::to_le_bytes, u16::to_le_bytes).len() as u32));
        put(140, &self.path_tables.to_le_bytes());
        put(148, &(self.path_tables + 1).to_be_bytes());
        put(156, &record(&[0], self.extent(0), DIRECTORY, &[]));
        // Volume set, publisher, preparer and application; then the names of three files, of 37 bytes each, which leaves
        // one byte over where a character has two.
        put(190, &text("", 4 * 128));
        for at in [702, 739, 776] {
            put(at, &text("", 36));
            put(at + 36, if self.names == Names::RockRidge { b" " } else { b"\0" });
        }
        // Creation, modification, expiration, effective from.
        put(813, &[NO_DATE; 4].concat());
        put(881, &[1]);
        descriptor
    }

    /// The directories, each with the number of its parent, which is that of the root for the root itself.
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

    /// A directory is linked from its parent, from itself, and from each directory in it.
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

    /// The names in a directory as they stand there, with the block and the size of what they lead to.
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
    fn the_first_record_of_the_root_directory_has_all_marks() {
        let image = volume(&[]).image();
        let expected = [
            // 96 bytes: the directory of 2048 bytes in block 23, of 1970, on the first volume.
            &b"\x60\0\x17\0\0\0\0\0\0\x17\0\x08\0\0\0\0\x08\0\x46\x01\x01\0\0\0\0\x02\0\0\x01\0\0\x01\x01\0"[..],
            b"SP\x07\x01\xbe\xef\0",
            b"ER\x12\x01\x0a\0\0\x01RRIP_1991A",
            // A directory with one directory in it.
            b"PX\x24\x01\xed\x41\0\0\0\0\x41\xed\x03\0\0\0\0\0\0\x03\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0",
            b"\0",
        ]
        .concat();
        assert_eq!(bytes(&image, 23, 0..96), expected);
    }

    #[test]
    fn a_record_of_the_joliet_tree_is_its_name_alone() {
        let image = volume(&[]).image();
        let own = b"\x22\0\x1a\0\0\0\0\0\0\x1a\0\x08\0\0\0\0\x08\0\x46\x01\x01\0\0\0\0\x02\0\0\x01\0\0\x01\x01\0";
        assert_eq!(bytes(&image, 26, 0..34), own);
        let latest = records(&image, 27).pop();
        assert_eq!(latest, Some((b"\0l\0a\0t\0e\0s\0t".to_vec(), 28, 0)));
    }

    #[test]
    fn path_tables_say_the_same_in_both_byte_orders() {
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
        // 512 blocks of 2048 bytes, on the first volume of one.
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
    fn each_file_has_a_place_of_its_own_even_when_it_is_empty() {
        let image = volume(&[("a", &[1; BLOCK]), ("b", b""), ("c", &[2; BLOCK + 1]), ("d", b"\x03")]).image();
        let places: Vec<u8> = records(&image, 25).iter().skip(2).map(|(_, block, _)| *block).collect();
        assert_eq!(places, [29, 30, 31, 33]);
        let firsts = [29, 30, 31, 32, 33].map(|block| bytes(&image, block, 0..2));
        assert_eq!(firsts, [[1, 1], [0, 0], [2, 2], [2, 0], [3, 0]]);
    }

    #[test]
    fn an_image_is_whole_mib_and_says_so() {
        // 29 blocks come before the file.
        for (blocks, expected) in [(0, 1), (512 - 29, 1), (512 - 28, 2)] {
            let image = volume(&[("a", &vec![0; blocks * BLOCK])]).image();
            assert_eq!(image.len(), expected * ALIGNMENT);
            let said = both_u32(expected as u32 * 512);
            assert_eq!([bytes(&image, 16, 80..88), bytes(&image, 17, 80..88)], [said, said]);
        }
    }
}
