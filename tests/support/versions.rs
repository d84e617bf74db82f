//! Reads the table of versions in README.md.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// Returns the column *tested* of the table, by program.
pub(crate) fn tested() -> BTreeMap<String, String> {
    let readme = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md")).unwrap();
    let (_, table) = readme.split_once("\n| program | tested | expected |\n|---|---|---|\n").unwrap();
    let rows = table.lines().take_while(|line| line.starts_with('|'));
    rows.map(|row| {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        assert!(cells.len() == 5 && !cells[3].is_empty(), "{row}");
        (cells[1].to_owned(), cells[2].to_owned())
    })
    .collect()
}

/// Returns the upstream version in a version of a Debian package: `1.42.4` for `1.42.4-1+deb12u1`.
pub(crate) fn upstream(version: &str) -> &str {
    let version = version.split_once(':').map_or(version, |(_, version)| version);
    version.split(['-', '+', '~']).next().unwrap_or_default()
}
