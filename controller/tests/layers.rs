//! Checks the order of the layers of the controller, and that no two files use each other's items.

use std::fs;
use std::path::Path;

#[path = "../../tests/support/imports.rs"]
mod imports;

use imports::{between_modules, circles};

/// The modules of the controller (wings), from the top layer to the lowest. A module imports only modules of the lines
/// below its own line.
const WINGS: [&[&str]; 11] = [
    &["main"],
    &["program", "explain"],
    &["machines"],
    &["webhook", "macs", "claims", "reports"],
    &["passes"],
    &["pools"],
    &["ledger"],
    &["kinds"],
    &["cluster"],
    &["serve", "metrics"],
    &["repeated"],
];

/// Returns the index of the line in [`WINGS`] that contains the module of a file. `None`: the file is the list of
/// modules.
fn line_of(file: &str) -> Option<usize> {
    let wing = file.split('/').next().unwrap().trim_end_matches(".rs");
    if wing == "lib" {
        return None;
    }
    Some(WINGS.iter().position(|line| line.contains(&wing)).unwrap_or_else(|| panic!("{file} is in no wing")))
}

fn wing_of(file: &str) -> &str {
    file.split('/').next().unwrap().trim_end_matches(".rs")
}

fn imports() -> imports::Imports {
    imports::imports(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src/lib.rs"))
}

#[test]
fn a_wing_imports_only_lower_wings() {
    let mut offences = Vec::new();
    for (file, used) in imports() {
        let Some(line) = line_of(&file) else { continue };
        for other in used {
            let is_lower = line_of(&other).is_none_or(|other| line < other);
            if !is_lower && wing_of(&file) != wing_of(&other) {
                offences.push(format!("{file} imports {other}"));
            }
        }
    }
    assert_eq!(offences, Vec::<String>::new());
}

#[test]
fn no_two_files_use_items_of_each_other() {
    let imports = imports();
    assert_eq!(circles(&imports), Vec::<Vec<String>>::new());
    assert_eq!(circles(&between_modules(&imports)), Vec::<Vec<String>>::new());
}

/// For kube's `get_opt`, each answer with the code 404 means that the object does not exist, even the answer of a
/// proxy. The program releases addresses of objects that do not exist, so it reads with `cluster::request::find`.
#[test]
fn no_file_reads_objects_with_the_optional_reads_of_kube() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let names = [".get_opt(", "::get_opt(", "get_metadata_opt(", "is_not_found("];
    let uses = |file: &&String| {
        let text = fs::read_to_string(folder.join(file.as_str())).unwrap();
        names.iter().any(|name| text.contains(name))
    };
    let files = imports();
    assert_eq!(files.keys().filter(uses).collect::<Vec<_>>(), Vec::<&String>::new());
}

/// The wall clock may be set during a term of a leader. So a leader decides by [`Clock`] whether a delay is over, and
/// these files use the wall clock only for texts, for objects of Kubernetes, for the start of [`Clock`], and in
/// programs that do not lead.
///
/// [`Clock`]: glowplug_controller::cluster::clock::Clock
#[test]
fn the_wall_clock_ends_no_delay_of_a_leader() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let uses = |file: &&String| fs::read_to_string(folder.join(file.as_str())).unwrap().contains("Timestamp::now()");
    let files = imports();
    let users: Vec<&String> = files.keys().filter(uses).filter(|file| !file.starts_with("explain/")).collect();
    let expected = [
        "claims.rs",
        "claims/ipam.rs",
        "claims/requests.rs",
        "machines/request.rs",
        "pools/node_pools.rs",
        "program/election.rs",
        "program/run.rs",
    ];
    assert_eq!(users, expected);
}
