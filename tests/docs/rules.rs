//! Checks that the files in the table of rules in CONTRIBUTING.md have the rules.

use std::fs;

use super::repository;

/// Returns the rows of a table without its heading: the words of each cell.
fn rows<'t>(text: &'t str, heading: &str) -> Vec<Vec<&'t str>> {
    let after = text.split_once(heading).unwrap().1;
    let table = after.lines().skip_while(|line| !line.starts_with('|')).take_while(|line| line.starts_with('|'));
    let cells = |line: &'t str| line.trim_matches('|').split('|').map(|cell| cell.trim().trim_matches('`')).collect();
    table.skip(2).map(cells).collect()
}

#[test]
fn each_rule_is_in_the_file_that_its_row_names() {
    let text = fs::read_to_string(repository().join("CONTRIBUTING.md")).unwrap();
    let rows = rows(&text, "\n### Where a rule is\n");
    assert!(!rows.is_empty());
    let mut missing = Vec::new();
    for row in rows {
        let &[rule, file, item] = row.as_slice() else { panic!("{row:?}") };
        let source = fs::read_to_string(repository().join(file)).unwrap_or_default();
        let defines = |word: &str| {
            source
                .split(&format!("{word} {item}"))
                .skip(1)
                .any(|rest| !rest.starts_with(|after: char| after.is_ascii_alphanumeric() || after == '_'))
        };
        if !["fn", "struct", "enum", "const"].into_iter().any(defines) {
            missing.push((rule, file, item));
        }
    }
    assert_eq!(missing, []);
}
