//! Builds config drives with the tools that nova and KubeVirt use, reads the files back with this crate, and compares
//! the files with the originals.
// Helpers may fail the test. Clippy allows this only in test functions themselves.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::Path;

use glowplug::drive::directory::Directory;
use glowplug::drive::{FileSystem, Files, ReadAt, ReadError, Volume, iso9660};
use tempfile::TempDir;

use crate::support::shell::run_tool;

/// Size limit for the reader, larger than every file here.
const LIMIT: usize = 64 * 1024;

/// Maximum number of reads for one call: twice the limit of the reader, because a failed read of a whole window is
/// followed by a read of the requested bytes alone.
const MAX_READS: u32 = 2 * 4096;

/// Options that KubeVirt passes to xorrisofs.
const KUBEVIRT: &[&str] = &["-joliet", "-rock", "-partition_cyl_align", "on"];

type Tree = BTreeMap<String, Vec<u8>>;

/// An image that counts how often it is read.
struct Counted {
    bytes: Vec<u8>,
    reads: Cell<u32>,
}

impl Counted {
    fn new(bytes: Vec<u8>) -> Self {
        Self { bytes, reads: Cell::new(0) }
    }
}

impl ReadAt for Counted {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.reads.set(self.reads.get() + 1);
        self.bytes.as_slice().read_at(offset, buffer)
    }
}

/// A random number generator (xorshift) that gives the same numbers on every machine.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % end as u64) as usize
    }
}

// === building drives ===

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn plant(tree: &Tree) -> TempDir {
    let root = tempfile::tempdir().unwrap();
    for (path, content) in tree {
        let path = root.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
    root
}

fn iso_of(root: &Path, label: &str, arguments: &[&str]) -> Vec<u8> {
    let out = tempfile::tempdir().unwrap();
    let image = out.path().join("image");
    let ends = ["-quiet", "-volid", label, "-o", text(&image), text(root)];
    run_tool("xorriso", "xorrisofs", &[arguments, &ends].concat());
    fs::read(image).unwrap()
}

fn iso(tree: &Tree, arguments: &[&str]) -> Vec<u8> {
    iso_of(plant(tree).path(), "config-2", arguments)
}

fn blank(kib: u64, package: &str, program: &str, arguments: &[&str], fill: impl FnOnce(&str)) -> Vec<u8> {
    let out = tempfile::tempdir().unwrap();
    let image = out.path().join("image");
    fs::File::create(&image).unwrap().set_len(kib * 1024).unwrap();
    run_tool(package, program, &[arguments, &[text(&image)]].concat());
    fill(text(&image));
    fs::read(image).unwrap()
}

fn fat_of(kib: u64, tree: &Tree, arguments: &[&str]) -> Vec<u8> {
    blank(kib, "dosfstools", "mkfs.vfat", arguments, |image| {
        let root = plant(tree);
        for entry in fs::read_dir(root.path()).unwrap() {
            run_tool("mtools", "mcopy", &["-s", "-i", image, text(&entry.unwrap().path()), "::"]);
        }
    })
}

fn fat12(tree: &Tree) -> Vec<u8> {
    fat_of(512, tree, &["-F", "12", "-s", "1", "-n", "CONFIG-2"])
}

fn file(path: &str, content: impl Into<Vec<u8>>) -> (String, Vec<u8>) {
    (path.to_owned(), content.into())
}

/// Returns the files of a KubeVirt drive.
fn kubevirt() -> Tree {
    Tree::from([
        file("openstack/latest/meta_data.json", r#"{"instance_id":"worker.default","hostname":"worker"}"#),
        file("openstack/latest/network_data.json", r#"{"links":[],"networks":[],"services":[]}"#),
        file("openstack/latest/user_data", ""),
    ])
}

/// Returns files that are hard to store: names that become equal when shortened, several blocks of directory records,
/// names of maximum length, a file of several blocks, and directories deeper than plain ISO 9660 allows.
fn rich() -> Tree {
    let mut tree = kubevirt();
    tree.extend((0..150).map(|n| file(&format!("content/a long name for file number {n}.json"), n.to_string())));
    tree.extend(["n", "o"].map(|end| file(&format!("long/{}{end}", "x".repeat(200)), end)));
    tree.extend([file("deep/1/2/3/4/5/6/7/8/9/10/11/user_data", "below")]);
    tree.extend([file("large", (0..40_000_u32).map(|at| (at / 7) as u8).collect::<Vec<u8>>())]);
    tree
}

// === reading drives ===

fn all(files: &dyn Files) -> Tree {
    fn descend(files: &dyn Files, at: &str, tree: &mut Tree) {
        for name in files.list(at).unwrap().unwrap() {
            let path = if at.is_empty() { name } else { format!("{at}/{name}") };
            match files.read(&path, LIMIT) {
                Ok(content) => drop(tree.insert(path, content.unwrap())),
                Err(ReadError::NotAFile { .. }) => descend(files, &path, tree),
                Err(e) => panic!("{path}: {e}"),
            }
        }
    }
    let mut tree = Tree::new();
    descend(files, "", &mut tree);
    tree
}

fn probe(image: &[u8]) -> Option<(FileSystem, String)> {
    Volume::probe(image).unwrap().map(|volume| (volume.file_system, volume.label))
}

fn read_all(image: &[u8]) -> Tree {
    all(&Volume::probe(image).unwrap().unwrap().open(image).unwrap())
}

/// Makes every call that a reader of config drives makes. Each call must end after at most [`MAX_READS`] reads. With
/// `may_lie`, the content of a file may differ from `truth`.
fn interrogate(source: &Counted, truth: &Tree, may_lie: bool) {
    let bounded = || assert!(source.reads.replace(0) <= MAX_READS);
    let Ok(Some(volume)) = Volume::probe(source) else { return };
    bounded();
    let Ok(files) = volume.open(source) else { return };
    bounded();
    for (path, content) in truth {
        if let Ok(Some(found)) = files.read(path, LIMIT) {
            assert!(may_lie || found == *content, "{path}");
            assert!(found.len() <= LIMIT);
        }
        bounded();
    }
    for path in ["", "openstack/latest", "content", "long"] {
        if let Ok(Some(names)) = files.list(path) {
            assert!(names.is_sorted() && names.len() <= glowplug::drive::MAX_ENTRIES);
        }
        bounded();
    }
}

fn find(image: &[u8], what: &[u8]) -> Vec<usize> {
    image.windows(what.len()).enumerate().filter_map(|(at, found)| (found == what).then_some(at)).collect()
}

// === ISO 9660 ===

#[test]
fn the_files_of_a_kubevirt_image_are_read_back_unchanged() {
    let image = iso(&kubevirt(), KUBEVIRT);
    assert_eq!(image.len(), 1_048_576);
    assert_eq!(probe(&image), Some((FileSystem::Iso9660, "config-2".to_owned())));
    assert_eq!(read_all(&image), kubevirt());
}

#[test]
fn three_files_of_an_image_take_six_reads() {
    let source = Counted::new(iso(&kubevirt(), KUBEVIRT));
    let files = iso9660::Image::open(&source).unwrap();
    for path in kubevirt().keys() {
        files.read(path, LIMIT).unwrap().unwrap();
    }
    assert_eq!(source.reads.get(), 6);
}

#[test]
fn rock_ridge_names_are_read_from_an_image_without_joliet() {
    assert_eq!(read_all(&iso(&rich(), &["-rock"])), rich());
}

#[test]
fn joliet_names_are_read_from_an_image_without_rock_ridge() {
    let mut tree = rich();
    // Joliet names have at most 64 characters.
    tree.retain(|path, _| !path.starts_with("long/"));
    assert_eq!(read_all(&iso(&tree, &["-joliet", "--norock"])), tree);
}

#[test]
fn rock_ridge_names_take_precedence_over_joliet() {
    assert_eq!(read_all(&iso(&rich(), KUBEVIRT)), rich());
}

#[test]
fn plain_iso_9660_names_are_read_in_lower_case_and_without_their_version() {
    let tree = Tree::from([file("latest/data.jsn", "1"), file("latest/data", "2"), file("meta", "")]);
    assert_eq!(read_all(&iso(&tree, &["--norock"])), tree);
}

#[test]
fn shortened_iso_9660_names_are_used_only_without_rock_ridge_and_joliet() {
    let mangled = "openstac/latest/network_.jso";
    for (arguments, expected) in
        [(&["--norock"][..], true), (&["--norock", "-joliet"], false), (&["-rock"], false), (KUBEVIRT, false)]
    {
        let image = iso(&kubevirt(), arguments);
        let files = iso9660::Image::open(image.as_slice()).unwrap();
        assert_eq!(files.read(mangled, LIMIT).unwrap().is_some(), expected, "{arguments:?}");
        assert_eq!(files.read("openstack/latest/network_data.json", LIMIT).unwrap().is_some(), !expected);
    }
}

#[test]
fn directories_that_rock_ridge_moved_are_found_at_their_original_path() {
    let image = iso(&rich(), &["-rock", "-rr_reloc_dir", "rr_moved"]);
    assert_eq!(find(&image, b"CL\x0c\x01").len(), 1);
    assert_eq!(read_all(&image), rich());
}

#[test]
fn a_symbolic_link_in_an_image_is_not_followed() {
    let root = plant(&kubevirt());
    symlink("latest", root.path().join("openstack/2018-08-27")).unwrap();
    symlink("latest/meta_data.json", root.path().join("openstack/link")).unwrap();
    symlink("/etc/passwd", root.path().join("absolute")).unwrap();
    let image = iso_of(root.path(), "config-2", KUBEVIRT);
    let files = iso9660::Image::open(image.as_slice()).unwrap();
    for path in ["absolute", "openstack/link", "openstack/2018-08-27", "openstack/2018-08-27/meta_data.json"] {
        let error = files.read(path, LIMIT).unwrap_err();
        assert_eq!(error.to_string(), format!("{path}: expected a regular file that is on the drive itself"));
    }
    assert!(matches!(files.list("openstack/2018-08-27"), Err(ReadError::NotAFile { .. })));
    assert_eq!(files.list("openstack").unwrap().unwrap(), ["2018-08-27", "latest", "link"]);
}

#[test]
fn an_image_label_keeps_its_case() {
    for label in ["config-2", "CONFIG-2", "cidata", "CIDATA"] {
        let image = iso_of(plant(&kubevirt()).path(), label, KUBEVIRT);
        assert_eq!(probe(&image), Some((FileSystem::Iso9660, label.to_owned())));
    }
}

#[test]
fn a_directory_that_contains_itself_does_not_cause_an_endless_loop() {
    let mut image = iso(&kubevirt(), KUBEVIRT);
    // Make the record of the directory `openstack/latest` point to the root directory.
    let root: [u8; 4] = image[32768 + 158..][..4].try_into().unwrap();
    let [record] = find(&image, b"\x06LATEST\0")[..] else { panic!("one record expected") };
    image[record - 30..][..4].copy_from_slice(&root);
    let source = Counted::new(image);
    let files = iso9660::Image::open(&source).unwrap();
    assert_eq!(files.list("openstack/latest/openstack/latest").unwrap().unwrap(), ["openstack"]);
    assert!(matches!(files.list(&["openstack/latest"; 17].join("/")), Err(ReadError::NotAFile { .. })));
    interrogate(&source, &kubevirt(), true);
}

#[test]
fn a_rock_ridge_continuation_that_points_to_itself_is_malformed() {
    let mut image = iso(&rich(), &["-rock"]);
    // The last record with a continuation is the record of the last long name.
    let mark = find(&image, b"CE\x1c\x01").into_iter().next_back().unwrap();
    let field = |at: usize| u32::from_le_bytes(image[mark + at..][..4].try_into().unwrap()) as usize;
    let area = field(4) * 2048 + field(12);
    image[mark + 20..][..4].copy_from_slice(&28_u32.to_le_bytes());
    image.copy_within(mark..mark + 28, area);
    let source = Counted::new(image);
    let error = iso9660::Image::open(&source).unwrap().list("long").unwrap_err();
    assert_eq!(error.to_string(), "invalid continuation of a record, expected at most 16 of them");
    assert!(source.reads.get() < 10);
}

#[test]
fn an_extent_outside_the_volume_is_malformed() {
    let mut image = iso(&kubevirt(), KUBEVIRT);
    let [record] = find(&image, b"\x0eMETA_DAT.JSO;1")[..] else { panic!("one record expected") };
    image[record - 30..][..4].copy_from_slice(&512_u32.to_le_bytes());
    let error =
        iso9660::Image::open(image.as_slice()).unwrap().read("openstack/latest/meta_data.json", LIMIT).unwrap_err();
    assert_eq!(error.to_string(), "invalid extent, expected one that ends inside the volume");
}

#[test]
fn an_error_about_a_cut_image_says_where_the_image_ends() {
    let image = iso(&kubevirt(), KUBEVIRT);
    let [record] = find(&image, b"\x0eMETA_DAT.JSO;1")[..] else { panic!("one record expected") };
    let start = u32::from_le_bytes(image[record - 30..][..4].try_into().unwrap()) as usize * 2048;
    let cut = &image[..start + 1];
    let error = iso9660::Image::open(cut).unwrap().read("openstack/latest/meta_data.json", LIMIT).unwrap_err();
    let source = std::error::Error::source(&error).unwrap().to_string();
    let size = u32::from_le_bytes(image[record - 22..][..4].try_into().unwrap()) as usize;
    assert_eq!(error.to_string(), "reading openstack/latest/meta_data.json");
    assert_eq!(source, format!("the image ends before byte {}, expected a whole image", start + size));
}

#[test]
fn a_multi_extent_or_interleaved_file_is_malformed() {
    // Distance from the name back to the flags (multi-extent), the unit size and the gap size.
    for (back, value) in [(7, 0x80), (6, 1), (5, 1)] {
        let mut image = iso(&kubevirt(), KUBEVIRT);
        let [record] = find(&image, b"\x0eMETA_DAT.JSO;1")[..] else { panic!("one record expected") };
        image[record - back] |= value;
        let files = iso9660::Image::open(image.as_slice()).unwrap();
        let error = files.read("openstack/latest/meta_data.json", LIMIT).unwrap_err();
        assert_eq!(error.to_string(), "invalid file, expected one that is in one piece");
    }
}

#[test]
fn a_block_size_other_than_2048_bytes_is_refused() {
    let mut image = iso(&kubevirt(), KUBEVIRT);
    image[32768 + 128..][..2].copy_from_slice(&512_u16.to_le_bytes());
    let error = iso9660::Image::open(image.as_slice()).map(drop).unwrap_err();
    assert_eq!(error.to_string(), "invalid block size of the volume, expected 2048 bytes");
}

// === FAT ===

#[test]
fn the_label_of_a_fat_12_fat_16_or_fat_32_volume_is_read() {
    for (kib, arguments) in [
        (1440, &["-F", "12"][..]),
        (16_384, &["-F", "16"]),
        (40_000, &["-F", "32", "-s", "1"]),
        (8_192, &["-F", "12", "-S", "2048"]),
        // The size and the arguments that nova uses.
        (65_536, &[]),
    ] {
        let image = fat_of(kib, &rich(), &[arguments, &["-n", "CONFIG-2"]].concat());
        assert_eq!(probe(&image), Some((FileSystem::Vfat, "CONFIG-2".to_owned())), "{arguments:?}");
    }
}

#[test]
fn the_files_of_a_fat_image_need_a_mount() {
    let image = fat12(&kubevirt());
    let error = Volume::probe(image.as_slice()).unwrap().unwrap().open(image.as_slice()).map(drop).unwrap_err();
    assert_eq!(error.to_string(), "vfat image, expected a mounted directory: mount -t vfat -o ro,loop IMAGE DIRECTORY");
}

#[test]
fn the_label_in_a_fat_root_directory_takes_precedence_over_the_label_in_the_boot_sector() {
    let mut image = fat12(&kubevirt());
    let [boot, root] = find(&image, b"CONFIG-2   ")[..] else { panic!("two labels expected") };
    image[boot..][..8].copy_from_slice(b"CIDATA  ");
    assert_eq!(probe(&image), Some((FileSystem::Vfat, "CONFIG-2".to_owned())));
    image[root] = 0xe5;
    assert_eq!(probe(&image), Some((FileSystem::Vfat, "CIDATA".to_owned())));
    image[boot..][..8].copy_from_slice(b"NO NAME ");
    assert_eq!(probe(&image), Some((FileSystem::Vfat, String::new())));
}

#[test]
fn a_fat_volume_without_label_is_recognised() {
    assert_eq!(probe(&fat_of(256, &kubevirt(), &[])), Some((FileSystem::Vfat, String::new())));
}

// === neither file system ===

#[test]
fn an_image_of_zeros_is_no_volume() {
    for bytes in [0, 100, 512, 4096, 32_768, 34_815, 1_048_576] {
        assert_eq!(probe(&vec![0; bytes]), None);
    }
}

#[test]
fn a_partitioned_disk_is_no_volume() {
    for (label, partition) in [("dos", "type=c"), ("gpt", "size=1M")] {
        let script = format!("printf 'label: {label}\\n{partition}\\n' | sfdisk --quiet \"$0\"");
        let image = blank(8192, "fdisk", "sh", &["-c", &script], |_| {});
        assert_eq!(image[510..512], [0x55, 0xaa]);
        assert_eq!(probe(&image), None, "{label}");
    }
}

#[test]
fn an_ext4_file_system_is_no_volume() {
    assert_eq!(probe(&blank(8192, "e2fsprogs", "mkfs.ext4", &["-q", "-L", "config-2"], |_| {})), None);
}

#[test]
fn a_file_that_is_not_a_volume_cannot_be_opened() {
    let zeros = [0; 65_536];
    let error = iso9660::Image::open(&zeros[..]).map(drop).unwrap_err();
    assert_eq!(error.to_string(), "invalid volume descriptor, expected that of ISO 9660");
}

// === both file systems ===

#[test]
fn the_error_about_a_file_over_the_limit_has_its_size_and_the_limit() {
    let image = iso(&rich(), KUBEVIRT);
    let files = Volume::probe(image.as_slice()).unwrap().unwrap().open(image.as_slice()).unwrap();
    assert_eq!(files.read("large", 40_000).unwrap(), rich().remove("large"));
    let error = files.read("large", 39_999).unwrap_err();
    assert_eq!(error.to_string(), "large: file of 40000 bytes, expected at most 39999");
    assert_eq!(files.read("openstack/latest/user_data", 0).unwrap(), Some(Vec::new()));
}

#[test]
fn a_missing_file_is_none_and_a_directory_cannot_be_read_as_a_file() {
    let root = plant(&kubevirt());
    let iso = iso(&kubevirt(), KUBEVIRT);
    let drives: [Box<dyn Files>; 2] =
        [Box::new(Directory::open(root.path()).unwrap()), Box::new(iso9660::Image::open(iso.as_slice()).unwrap())];
    for files in drives {
        assert_eq!(all(&*files), kubevirt());
        for path in ["missing", "openstack/missing/user_data", "openstack/latest/user_data/below"] {
            assert_eq!((files.read(path, LIMIT).unwrap(), files.list(path).unwrap()), (None, None), "{path}");
        }
        assert_eq!(files.list("openstack/latest/user_data").unwrap(), None);
        for path in ["", "openstack", "openstack/latest"] {
            assert!(matches!(files.read(path, LIMIT), Err(ReadError::NotAFile { .. })), "{path}");
        }
        for path in ["/openstack", "..", "openstack/../openstack", "openstack//latest", "./openstack"] {
            assert!(matches!(files.read(path, LIMIT), Err(ReadError::NotAFile { .. })), "{path}");
            assert!(matches!(files.list(path), Err(ReadError::NotAFile { .. })), "{path}");
        }
    }
}

#[test]
fn a_file_of_a_truncated_image_has_the_right_content_or_cannot_be_read() {
    for image in [iso(&rich(), &["-joliet", "-no-pad"]), fat12(&rich())] {
        let mut source = Counted::new(image);
        while !source.bytes.is_empty() {
            source.bytes.truncate((source.bytes.len() - 1) / 512 * 512);
            Volume::probe(&source).unwrap();
            interrogate(&source, &kubevirt(), false);
        }
    }
}

/// Reads 2000 variants of each of four images. In each variant, one to four bytes are changed.
#[test]
fn no_damaged_image_makes_the_reader_panic_or_read_without_end() {
    let mut tree = rich();
    // Little content is stored in the image, so most changes hit its structures.
    tree.retain(|path, _| path != "large" && (!path.starts_with("content/") || path.ends_with("9.json")));
    let mut asked = kubevirt();
    asked.extend([file("deep/1/2/3/4/5/6/7/8/9/10/11/user_data", "")]);
    let mut random = Random(0x5eed);
    for image in [iso(&tree, KUBEVIRT), iso(&tree, &["-joliet", "--norock"]), fat12(&tree), {
        fat_of(40_000, &tree, &["-F", "32", "-s", "1", "-n", "CONFIG-2"])
    }] {
        let used: Vec<usize> =
            (0..image.len() / 32).filter(|at| image[at * 32..][..32].iter().any(|byte| *byte != 0)).collect();
        let mut source = Counted::new(image);
        for _ in 0..2000 {
            let changes: Vec<(usize, u8)> = (0..1 + random.below(4))
                .map(|_| {
                    (
                        used[random.below(used.len())] * 32 + random.below(32),
                        [0, 0xff, random.below(256) as u8][random.below(3)],
                    )
                })
                .map(|(at, value)| (at, std::mem::replace(&mut source.bytes[at], value)))
                .collect();
            interrogate(&source, &asked, true);
            for (at, value) in changes.into_iter().rev() {
                source.bytes[at] = value;
            }
        }
    }
}
