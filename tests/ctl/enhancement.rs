//! Checks that the tests in `docs/enhancement-tests.md` exist. That page has the tests for the Test Plan of the
//! enhancement.

use std::fs;
use std::path::Path;

/// Returns the tests in the table, as pairs of path and test name.
fn named(table: &str) -> Vec<(String, String)> {
    let (mut place, mut named) = (String::new(), Vec::new());
    for word in table.lines().filter(|line| line.starts_with('|')).flat_map(|line| line.split('`').skip(1).step_by(2)) {
        if word.contains('/') {
            word.clone_into(&mut place);
        } else if word.contains('_') {
            named.push((place.clone(), word.to_owned()));
        }
    }
    named
}

/// Returns the source of a module: the text of its file and of the files in its directory.
fn source(place: &Path) -> String {
    let mut source = fs::read_to_string(place.with_extension("rs")).unwrap_or_default();
    if place.is_dir() {
        for file in fs::read_dir(place).unwrap() {
            source += &fs::read_to_string(file.unwrap().path()).unwrap_or_default();
        }
    }
    source
}

#[test]
fn every_test_in_the_table_of_the_enhancement_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let named = named(&fs::read_to_string(root.join("docs/enhancement-tests.md")).unwrap());
    assert_eq!(named.len(), 41);
    let is_absent = |(place, name): &&(String, String)| {
        let source = source(&root.join(place));
        // The source lists sessions by name only, without `fn`.
        let is_listed = source.lines().any(|line| line.trim() == name);
        !is_listed && !source.contains(&format!("fn {name}("))
    };
    assert_eq!(named.iter().filter(is_absent).collect::<Vec<_>>(), Vec::<&(String, String)>::new());
}
