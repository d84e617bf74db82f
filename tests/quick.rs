//! All tests except the tests of `slow.rs`. The tests are in one program, because linking a program for each module
//! would take longer than the tests themselves.
//!
//! `CONTRIBUTING.md` describes where to add a case.

mod cloud_init;
mod ctl;
mod diagnostics;
mod docs;
mod drives;
mod fuzz;
mod glossary;
mod guest;
mod histories;
mod images;
mod layers;
mod ledger;
mod networkd;
mod readers;
mod records;
mod round_trip;
mod support;
mod units;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Cargo does not search `tests` for test programs, so a file without a `mod` line would never run.
#[test]
fn every_file_of_tests_is_a_module_of_quick_or_slow() {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let mut files = BTreeSet::new();
    for entry in fs::read_dir(&tests).unwrap() {
        let path = entry.unwrap().path();
        let is_module = path.extension().is_some_and(|it| it == "rs") || path.join("mod.rs").exists();
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        if is_module && name != "quick" && name != "slow" {
            files.insert(name);
        }
    }
    let mut modules = BTreeSet::new();
    for program in ["quick.rs", "slow.rs"] {
        let text = fs::read_to_string(tests.join(program)).unwrap();
        let names = text.lines().filter_map(|line| line.strip_prefix("mod ")?.strip_suffix(';'));
        modules.extend(names.map(str::to_owned));
    }
    assert_eq!(modules, files);
}
