//! Checks that sources and pages have no word of the column "not" in the glossary of `CONTRIBUTING.md`.

#![allow(clippy::unwrap_used, reason = "a helper of a test may fail the test")]

use std::fs;
use std::path::{Path, PathBuf};

/// Words of the column "not" that also have another meaning. The test does not search for these words.
const OTHER_MEANINGS: [&str; 21] = [
    "IP",
    "slave",
    "port",
    "who",
    "card",
    "karg in prose",
    "DNS",
    "nameserver in prose",
    "place",
    "length",
    "mask",
    "told",
    "said",
    "rest",
    "used",
    "out of range",
    "conflicting",
    "text",
    "leg",
    "finding",
    "owner of an address",
];

/// Forbidden words that lines still have, each with the number of these lines. Never increase a number.
const EXCEPTIONS: [(&str, usize); 0] = [];

/// Returns the paths of the sources and pages that the test reads.
fn files() -> Vec<PathBuf> {
    let mut folders: Vec<PathBuf> =
        ["src", "controller/src", "controller/tests", "controller/benches", "tests", "benches", "examples", "docs"]
            .map(|folder| Path::new(env!("CARGO_MANIFEST_DIR")).join(folder))
            .into();
    let mut files: Vec<PathBuf> =
        ["README.md", "SECURITY.md"].map(|file| Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).into();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()) {
            let is_text = entry.extension().is_some_and(|extension| extension == "rs" || extension == "md");
            if entry.is_dir() {
                folders.push(entry);
            } else if is_text && !entry.ends_with("tests/glossary.rs") {
                files.push(entry);
            }
        }
    }
    files
}

/// Returns the words of a line in lower case: `name server` for `NameServer` and for `name_server`.
fn words(line: &str) -> String {
    let (mut words, mut last) = (String::from(" "), ' ');
    for character in line.chars() {
        if !character.is_alphanumeric() || character.is_uppercase() && last.is_lowercase() {
            words.push(' ');
        }
        if character.is_alphanumeric() {
            words.extend(character.to_lowercase());
        }
        last = character;
    }
    words.push(' ');
    words.split(' ').filter(|word| !word.is_empty()).fold(String::from(" "), |line, word| line + word + " ")
}

/// Returns the words of the column "not" of the glossary.
fn forbidden() -> Vec<String> {
    let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("CONTRIBUTING.md")).unwrap();
    let table = text.lines().skip_while(|line| *line != "| word | means | not |").skip(2);
    let rows = table.take_while(|line| line.starts_with('|'));
    let column = rows.map(|row| row.trim_matches('|').rsplit('|').next().unwrap().trim());
    let words = column.flat_map(|cell| cell.split(", ")).filter(|word| !word.is_empty());
    words.map(str::to_owned).collect()
}

#[test]
fn sources_and_pages_have_no_word_that_the_glossary_forbids() {
    let forbidden: Vec<String> =
        forbidden().into_iter().filter(|word| !OTHER_MEANINGS.contains(&word.as_str())).collect();
    assert!(forbidden.len() > 8, "{forbidden:?}");
    let mut found: Vec<(&str, Vec<String>)> = forbidden.iter().map(|word| (word.as_str(), Vec::new())).collect();
    for file in files() {
        for (number, line) in fs::read_to_string(&file).unwrap().lines().enumerate() {
            let words = words(line);
            for (word, lines) in &mut found {
                if words.contains(&format!(" {word} ")) {
                    lines.push(format!("{}:{}: {}", file.display(), number + 1, line.trim()));
                }
            }
        }
    }
    let is_wrong = |(word, lines): &(&str, Vec<String>)| {
        let most = EXCEPTIONS.iter().find(|(other, _)| other == word).map_or(0, |(_, most)| *most);
        lines.len() != most
    };
    found.retain(is_wrong);
    let wrong = found.iter().map(|(word, lines)| format!("{} lines with {word:?}:\n{}", lines.len(), lines.join("\n")));
    let wrong: Vec<String> = wrong.collect();
    assert!(wrong.is_empty(), "expected other words, or the number of lines in EXCEPTIONS:\n{}", wrong.join("\n\n"));
}
