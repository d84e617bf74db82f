//! Checks the address of the project's repository. Cargo.toml defines it; other files repeat it.

use std::fs;

use super::repository;

/// Files that repeat the address, each with the text before it.
const PLACES: [(&str, &str); 5] = [
    ("Cargo.toml", "homepage = \""),
    ("controller/Cargo.toml", "repository = \""),
    ("controller/Cargo.toml", "homepage = \""),
    ("packaging/glowplug.spec", "URL:            "),
    ("packaging/debian/control", "Homepage: "),
];

#[test]
fn the_address_of_the_repository_is_the_same_in_all_files() {
    let read =
        |path: &str| fs::read_to_string(repository().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"));
    let manifest = read("Cargo.toml");
    let home = manifest.lines().find_map(|line| line.strip_prefix("repository = \"")).unwrap().trim_end_matches('"');
    for (path, start) in PLACES {
        let text = read(path);
        let line = text.lines().find(|line| line.starts_with(start)).unwrap_or_else(|| panic!("{path}: no {start}"));
        let end = if start.ends_with('"') { "\"" } else { "" };
        let expected = format!("{start}{home}{end}");
        if crate::support::is_update() {
            fs::write(repository().join(path), text.replace(line, &expected)).unwrap();
        } else {
            assert_eq!(line, expected, "{path}");
        }
    }
}
