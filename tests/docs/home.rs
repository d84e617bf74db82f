//! Checks that all files have the repository address of the project that Cargo.toml defines.

use std::fs;

use super::repository;

/// Files that repeat the address of the repository, each with the text before the address.
const PLACES: [(&str, &str); 5] = [
    ("Cargo.toml", "homepage = \""),
    ("controller/Cargo.toml", "repository = \""),
    ("controller/Cargo.toml", "homepage = \""),
    ("packaging/glowplug.spec", "URL:            "),
    ("packaging/debian/control", "Homepage: "),
];

/// The file of the alerts. Each alert has the address of its page, which begins with the address of the repository.
const ALERTS: &str = "controller/config/prometheus/alerts.yaml";

fn read(path: &str) -> String {
    fs::read_to_string(repository().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Returns the address of the repository in Cargo.toml.
fn home() -> String {
    let manifest = read("Cargo.toml");
    let home = manifest.lines().find_map(|line| line.strip_prefix("repository = \"")).unwrap();
    home.trim_end_matches('"').to_owned()
}

#[test]
fn every_alert_names_its_page_below_the_address_of_the_repository() {
    let (home, text) = (home(), read(ALERTS));
    let with_home = |line: &str| {
        let (start, page) = line.split_once("runbook_url: ")?;
        let (_, page) = page.split_once("/docs/").unwrap_or_else(|| panic!("{ALERTS}: no /docs/ in {page}"));
        Some(format!("{start}runbook_url: {home}/docs/{page}"))
    };
    let expected: String = text.lines().map(|line| with_home(line).unwrap_or_else(|| line.to_owned()) + "\n").collect();
    if crate::support::is_update() {
        fs::write(repository().join(ALERTS), expected).unwrap();
    } else {
        assert!(text.contains("runbook_url: "), "{ALERTS}");
        assert_eq!(text, expected, "{ALERTS}");
    }
}

#[test]
fn the_address_of_the_repository_is_the_same_in_all_files() {
    let home = home();
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
