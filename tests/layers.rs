//! Checks that each layer imports only the layers that [`LAYERS`] lists for it. The crate's features enforce a part of
//! this rule. Other tests check that neither files nor modules import each other in a circle.

#![allow(clippy::unwrap_used, reason = "a helper of a test may fail the test")]

use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::support::imports::{between_modules, circles, imports};

/// Each layer, with the layers of this crate that the layer may import.
const LAYERS: [(&str, &[&str]); 10] = [
    ("atomic_file", &[]),
    ("terminal", &[]),
    ("diagnostic", &["diagnostic"]),
    ("network", &["network"]),
    ("formats", &["formats", "network", "diagnostic"]),
    ("render", &["render", "network", "diagnostic"]),
    ("drive", &["drive"]),
    ("log", &["log"]),
    ("host", &["host", "drive", "formats", "render", "network", "diagnostic"]),
    ("guest", &["guest", "atomic_file", "terminal", "drive", "formats", "render", "network", "diagnostic"]),
];

fn sources(at: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(at).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else {
            found.push(path);
        }
    }
}

/// The VMware backdoor uses I/O ports, which need unsafe code. Images for KubeVirt must not contain this code.
#[test]
fn only_the_feature_vmware_contains_the_vmware_backdoor() {
    let manifest = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml")).unwrap();
    let features = manifest.lines().skip_while(|line| *line != "[features]").take_while(|line| !line.starts_with("[["));
    let with_it: Vec<_> = features.filter(|line| line.contains("vmw") && !line.starts_with('#')).collect();
    assert_eq!(with_it, [r#"vmware = ["guest", "dep:vmw_backdoor"]"#]);
}

#[test]
fn no_layer_imports_a_higher_layer() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    sources(&src, &mut files);
    let mut offences = Vec::new();
    for file in &files {
        let relative = file.strip_prefix(&src).unwrap();
        let layer = relative.components().next().unwrap().as_os_str().to_str().unwrap().trim_end_matches(".rs");
        let Some((_, may)) = LAYERS.iter().find(|(name, _)| *name == layer) else { continue };
        for line in fs::read_to_string(file).unwrap().lines() {
            for imported in line.split("crate::").skip(1) {
                let name: String = imported.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect();
                if LAYERS.iter().any(|(layer, _)| *layer == name) && !may.contains(&name.as_str()) {
                    offences.push(format!("{}: {}", relative.display(), line.trim()));
                }
            }
        }
    }
    assert_eq!(offences, Vec::<String>::new());
}

#[test]
fn formats_network_render_and_diagnostic_use_no_files_processes_or_clocks() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    for layer in ["formats", "network", "render"] {
        files.push(src.join(format!("{layer}.rs")));
        sources(&src.join(layer), &mut files);
    }
    files.push(src.join("diagnostic.rs"));
    let mut offences = Vec::new();
    for file in files {
        for line in fs::read_to_string(&file).unwrap().lines() {
            if ["std::fs", "std::process", "std::time", "std::env", "nix::"].iter().any(|word| line.contains(word)) {
                offences.push(format!("{}: {}", file.display(), line.trim()));
            }
        }
    }
    assert_eq!(offences, Vec::<String>::new());
}

#[test]
fn no_two_files_use_items_of_each_other() {
    let imports = imports(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src/lib.rs"));
    assert_eq!(circles(&imports), Vec::<Vec<String>>::new());
    assert_eq!(circles(&between_modules(&imports)), Vec::<Vec<String>>::new());
}

/// Finds circular imports in a crate with these files. Returns the circles of files, then the circles of modules.
fn circles_of(files: &[(&str, &str)]) -> [Vec<Vec<String>>; 2] {
    let folder = TempDir::new().unwrap();
    for (name, text) in files {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    let imports = imports(&folder.path().join("lib.rs"));
    [circles(&imports), circles(&between_modules(&imports))]
}

#[test]
fn a_module_and_its_submodule_that_use_items_of_each_other_are_a_circle() {
    let (lib, child) = (("lib.rs", "mod a;"), ("a/b.rs", "use super::A;\npub struct B(A);"));
    let parent = ("a.rs", "mod b;\npub struct A;\nfn new() -> b::B { b::B(A) }");
    assert_eq!(circles_of(&[lib, child, parent]), [vec![vec!["a.rs".to_owned(), "a/b.rs".to_owned()]], vec![]]);
    let parent = ("a.rs", "mod b;\npub use b::B;\npub struct A;");
    assert_eq!(circles_of(&[lib, child, parent]), [Vec::<Vec<String>>::new(), Vec::new()]);
}

#[test]
fn a_function_with_the_name_of_an_imported_module_counts_as_an_item_of_its_own_file() {
    let files = [
        ("lib.rs", "mod a;\nmod convert;"),
        ("convert.rs", "pub fn word() {}"),
        ("a.rs", "mod b;\npub struct A;\nfn new() { b::convert(A) }"),
        ("a/b.rs", "use super::A;\nuse crate::convert;\npub fn convert(_: A) { convert::word() }"),
    ];
    assert_eq!(circles_of(&files), [vec![vec!["a.rs".to_owned(), "a/b.rs".to_owned()]], vec![]]);
}

#[test]
fn a_reexported_item_counts_as_an_item_of_the_file_that_defines_it() {
    let files = [
        ("lib.rs", "mod a;\nmod c;"),
        ("a.rs", "mod b;\nmod d;\npub use b::{B, b as other};\npub use d::*;"),
        ("a/b.rs", "use crate::c;\npub struct B;\npub fn b() { c::c() }"),
        ("a/d.rs", "pub struct D;"),
        (
            "c.rs",
            "use crate::a::{self, D};\n// use crate::a::B;\npub fn c() { let _: D = \"a::B\"; }\n#[cfg(test)]\nmod tests { use crate::a::B; }",
        ),
    ];
    // `c` uses `a/d`, and `a/b` uses `c`. So the modules `a` and `c` form a circle, but no files form one.
    assert_eq!(circles_of(&files), [vec![], vec![vec!["a".to_owned(), "c".to_owned()]]]);
    let mut files = files;
    files[4].1 = "use crate::a;\npub fn c() { a::other(a::B) }";
    let both = vec!["a/b.rs".to_owned(), "c.rs".to_owned()];
    assert_eq!(circles_of(&files), [vec![both], vec![vec!["a".to_owned(), "c".to_owned()]]]);
}
