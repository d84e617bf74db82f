//! Reads the images of config drives that the host library builds. The readers are the guest and other programs.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a helper of a test may fail the test")]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use glowplug::diagnostic::Diagnostics;
use glowplug::drive::{self, FileSystem, Files, Layout, ReadError, Volume};
use glowplug::formats::meta_data::MetaData;
use glowplug::host::image::{self, ConfigDrive, Instance, NoCloud};
use proptest::prelude::*;
use tempfile::TempDir;

use crate::support::shell::run_tool;

const INSTANCE: Instance<'_> = Instance {
    namespace: "clusters",
    name: "worker-0.example",
    uuid: Some("5d307ca9-b3ef-428c-8861-06e72d69f223"),
    hostname: None,
    instance_type: Some("u1.large"),
    public_keys: &["ssh-ed25519 AAAA owner\n"],
};

const BLOCK: usize = 2048;

type Tree = BTreeMap<String, Vec<u8>>;

/// An image, and the files that it must contain.
struct Case {
    image: Vec<u8>,
    label: &'static str,
    tree: Tree,
}

/// An image as a file, in a temporary directory.
struct OnDisk(TempDir);

// === building images ===

fn config_drive(drive: ConfigDrive<'_>) -> Case {
    let mut tree = Tree::from([file("meta_data.json", drive.meta_data), file("user_data", drive.user_data)]);
    tree.extend(drive.network_data.map(|content| file("network_data.json", content)));
    let tree = tree.into_iter().map(|(name, content)| (format!("openstack/latest/{name}"), content)).collect();
    Case { image: drive.image().unwrap(), label: "config-2", tree }
}

fn no_cloud(drive: NoCloud<'_>) -> Case {
    let mut tree = Tree::from([file("meta-data", drive.meta_data), file("user-data", drive.user_data)]);
    tree.extend(drive.network_config.map(|content| file("network-config", content)));
    Case { image: drive.image().unwrap(), label: "cidata", tree }
}

fn file(name: &str, content: &[u8]) -> (String, Vec<u8>) {
    (name.to_owned(), content.to_vec())
}

/// Returns drives of both layouts, with and without a network, with empty and with large user data.
fn cases() -> Vec<Case> {
    let large = noise(image::MAX_FILE, 1);
    let meta_data_json = INSTANCE.meta_data_json();
    let openstack =
        ConfigDrive { meta_data: meta_data_json.as_bytes(), network_data: Some(b"{\"links\": []}"), user_data: b"" };
    let meta_data = INSTANCE.meta_data();
    let cloud = NoCloud { meta_data: meta_data.as_bytes(), network_config: Some(b"# nothing\n"), user_data: b"" };
    vec![
        config_drive(openstack),
        config_drive(ConfigDrive { network_data: None, ..openstack }),
        config_drive(ConfigDrive { user_data: &large, ..openstack }),
        no_cloud(cloud),
        no_cloud(NoCloud { network_config: None, ..cloud }),
        no_cloud(NoCloud { user_data: &large, ..cloud }),
    ]
}

/// Returns `bytes` random bytes: no two blocks are equal.
fn noise(bytes: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..bytes).map(|_| next()).collect()
}

// === reading images ===

fn all(files: &dyn Files) -> Tree {
    fn descend(files: &dyn Files, at: &str, tree: &mut Tree) {
        for name in files.list(at).unwrap().unwrap() {
            let path = if at.is_empty() { name } else { format!("{at}/{name}") };
            match files.read(&path, image::MAX_FILE) {
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

fn guest(image: &[u8]) -> Tree {
    all(&Volume::probe(image).unwrap().unwrap().open(image).unwrap())
}

fn directory(root: &Path) -> Tree {
    all(&drive::directory::Directory::open(root).unwrap())
}

/// Returns the image without the mark of Rock Ridge. A reader then uses the Joliet names.
fn without_rock_ridge(image: &[u8]) -> Vec<u8> {
    let mut image = image.to_vec();
    let mark = &mut image[23 * BLOCK + 34..][..2];
    assert_eq!(mark, b"SP");
    mark.copy_from_slice(b"XX");
    image
}

// === impl OnDisk ===

impl OnDisk {
    fn new(image: &[u8]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("image"), image).unwrap();
        Self(directory)
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).to_str().unwrap().to_owned()
    }

    fn isoinfo(&self, arguments: &[&str]) -> Vec<u8> {
        run_tool("genisoimage", "isoinfo", &[&["-i", &self.path("image")], arguments].concat())
    }

    /// Returns the output of isoinfo, without blanks at the ends of lines.
    fn isoinfo_text(&self, arguments: &[&str]) -> String {
        String::from_utf8(self.isoinfo(arguments))
            .unwrap()
            .lines()
            .map(|line| line.trim_end().to_owned() + "\n")
            .collect()
    }
}

// === tests ===

#[test]
fn the_same_input_gives_the_same_bytes_of_an_image() {
    for (one, other) in cases().into_iter().zip(cases()) {
        assert!(one.image == other.image, "{}: two images differ", one.label);
    }
}

#[test]
fn the_guest_reads_every_file_by_its_rock_ridge_joliet_and_plain_names() {
    assert_eq!(image::MAX_FILE, drive::MAX_FILE);
    for case in cases() {
        let volume = Volume { file_system: FileSystem::Iso9660, label: case.label.to_owned() };
        assert_eq!(Volume::probe(case.image.as_slice()).unwrap(), Some(volume));
        assert!(guest(&case.image) == case.tree, "Rock Ridge");
        let mut image = without_rock_ridge(&case.image);
        assert!(guest(&image) == case.tree, "Joliet");
        // The image now also loses its Joliet descriptor. The guest then reads the plain names in lower case, with `_`
        // in place of each dash.
        image[17 * BLOCK] = 255;
        let plain: Tree = case.tree.into_iter().map(|(path, content)| (path.replace('-', "_"), content)).collect();
        assert!(guest(&image) == plain, "plain names");
    }
}

#[test]
fn the_guest_understands_the_metadata_of_the_host() {
    let read = |image: &[u8]| {
        let files = Volume::probe(image).unwrap().unwrap().open(image).unwrap();
        let drive = drive::ConfigDrive::read_from(&files).unwrap().unwrap();
        (drive.layout, drive.meta_data.unwrap().unwrap().bytes, drive.network.unwrap().map(|document| document.path))
    };
    let expected = MetaData {
        uuid: INSTANCE.uuid.map(str::to_owned),
        instance_id: Some("worker-0.example.clusters".to_owned()),
        instance_type: INSTANCE.instance_type.map(str::to_owned),
        hostname: Some("worker-0".to_owned()),
        public_keys: vec![("public_keys.0".to_owned(), "ssh-ed25519 AAAA owner\n".to_owned())],
        ..MetaData::default()
    };
    let cases = cases();
    let mut diagnostics = Diagnostics::default();
    let (layout, bytes, network) = read(&cases[0].image);
    assert_eq!(layout, Layout::OpenStack { latest_only: true });
    assert_eq!(network.as_deref(), Some("openstack/latest/network_data.json"));
    assert_eq!(MetaData::read_openstack(&bytes, &mut diagnostics), expected);
    let (layout, bytes, network) = read(&cases[3].image);
    assert_eq!((layout, network.as_deref()), (Layout::NoCloud, Some("network-config")));
    let public_keys = vec![("public-keys.0".to_owned(), "ssh-ed25519 AAAA owner\n".to_owned())];
    let expected = MetaData { instance_id: expected.uuid.clone(), public_keys, ..expected };
    assert_eq!(MetaData::read_nocloud(&bytes, &mut diagnostics), expected);
    assert_eq!(diagnostics.kept(), []);
    assert_eq!([&cases[1], &cases[4]].map(|case| read(&case.image).2), [None, None]);
}

#[test]
fn xorriso_extracts_every_file_and_prints_no_hint_or_warning() {
    for case in cases() {
        let disk = OnDisk::new(&case.image);
        let (image, out) = (disk.path("image"), disk.path("out"));
        // HINT is the lowest severity that xorriso treats as a problem.
        let strict = ["-abort_on", "HINT", "-return_with", "HINT", "32", "-osirrox", "on"];
        run_tool("xorriso", "xorriso", &[&strict[..], &["-indev", &image, "-extract", "/", &out]].concat());
        assert!(directory(Path::new(&out)) == case.tree);
        let offers = run_tool("xorriso", "xorriso", &["-indev", &image, "-toc"]);
        let offers = String::from_utf8(offers).unwrap();
        let sets: Vec<&str> = offers.lines().filter(|line| line.starts_with("ISO ")).collect();
        let session = format!("ISO session  :   1 ,         0 ,{:10}s , {}", case.image.len() / BLOCK, case.label);
        assert_eq!(sets, ["ISO offers   : Rock_Ridge Joliet", "ISO loaded   : Rock_Ridge", &session]);
    }
}

#[test]
fn isoinfo_lists_and_extracts_every_file_by_its_rock_ridge_and_joliet_names() {
    for case in cases() {
        let disk = OnDisk::new(&case.image);
        for names in ["-R", "-J"] {
            let listed = disk.isoinfo_text(&[names, "-f"]);
            let files: Vec<&str> =
                listed.lines().map(|line| &line[1..]).filter(|path| case.tree.contains_key(*path)).collect();
            assert_eq!(files, case.tree.keys().collect::<Vec<_>>(), "{names}: {listed}");
            for (path, content) in &case.tree {
                assert!(disk.isoinfo(&[names, "-x", &format!("/{path}")]) == *content, "{names}: {path}");
            }
        }
    }
}

#[test]
fn isoinfo_prints_modes_link_counts_dates_and_positions_of_all_files() {
    let drive = ConfigDrive { meta_data: b"{}", network_data: Some(b"{\"links\":[]}"), user_data: b"" };
    let disk = OnDisk::new(&drive.image().unwrap());
    assert_eq!(
        disk.isoinfo_text(&["-R", "-l"]),
        "
Directory listing of /
drwxr-xr-x   3    0    0            2048 Jan  1 1970 [     23 02]  .
drwxr-xr-x   3    0    0            2048 Jan  1 1970 [     23 02]  ..
drwxr-xr-x   3    0    0            2048 Jan  1 1970 [     24 02]  openstack

Directory listing of /openstack/
drwxr-xr-x   3    0    0            2048 Jan  1 1970 [     24 02]  .
drwxr-xr-x   3    0    0            2048 Jan  1 1970 [     23 02]  ..
drwxr-xr-x   2    0    0            2048 Jan  1 1970 [     25 02]  latest

Directory listing of /openstack/latest/
drwxr-xr-x   2    0    0            2048 Jan  1 1970 [     25 02]  .
drwxr-xr-x   3    0    0            2048 Jan  1 1970 [     24 02]  ..
-rw-------   1    0    0               2 Jan  1 1970 [     29 00]  meta_data.json
-rw-------   1    0    0              12 Jan  1 1970 [     30 00]  network_data.json
-rw-------   1    0    0               0 Jan  1 1970 [     31 00]  user_data
"
    );
}

#[test]
fn isoinfo_and_isovfy_find_no_mistake_in_the_path_tables() {
    let disk = OnDisk::new(&cases()[0].image);
    let table =
        "Path table starts at block 19, size 42\n   1:    1 17\n   2:    1 18 OPENSTACK\n   3:    2 19 LATEST\n";
    assert_eq!(disk.isoinfo_text(&["-p"]), table);
    for case in cases() {
        let disk = OnDisk::new(&case.image);
        let printed = String::from_utf8(run_tool("genisoimage", "isovfy", &[&disk.path("image")])).unwrap();
        assert_eq!(printed, "Root at extent 17, 2048 bytes\n[0 0]\nNo errors found\n");
    }
}

#[test]
fn blkid_sees_the_label_and_no_uuid() {
    for case in cases() {
        let disk = OnDisk::new(&case.image);
        let names = ["LABEL", "TYPE", "UUID", "PTTYPE", "USAGE"].map(|name| ["-s", name]).concat();
        let printed =
            run_tool("util-linux", "blkid", &[&["-p", "-o", "export"], &names[..], &[&disk.path("image")]].concat());
        let mut printed: Vec<String> = String::from_utf8(printed).unwrap().lines().map(str::to_owned).collect();
        printed.retain(|line| !line.starts_with("DEVNAME="));
        assert_eq!(printed, [&format!("LABEL={}", case.label), "TYPE=iso9660", "USAGE=filesystem"]);
    }
}

/// Generates content of any size up to the maximum, often with a size next to a multiple of the block size.
fn content() -> impl Strategy<Value = Vec<u8>> {
    let edges = prop::sample::select(vec![0, 1, 2047, 2048, 2049, 4096, image::MAX_FILE - 1, image::MAX_FILE]);
    (prop_oneof![3 => edges, 2 => 0..10_000_usize, 1 => 0..=image::MAX_FILE], any::<u64>())
        .prop_map(|(bytes, seed)| noise(bytes, seed))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_guest_reads_back_files_of_any_size_from_an_image(
        meta_data in content(),
        network in prop::option::of(content()),
        user_data in content(),
    ) {
        let (meta_data, network, user_data) = (&meta_data[..], network.as_deref(), &user_data[..]);
        for case in [
            config_drive(ConfigDrive { meta_data, network_data: network, user_data }),
            no_cloud(NoCloud { meta_data, network_config: network, user_data }),
        ] {
            prop_assert!(guest(&case.image) == case.tree, "Rock Ridge");
            prop_assert!(guest(&without_rock_ridge(&case.image)) == case.tree, "Joliet");
        }
    }
}
