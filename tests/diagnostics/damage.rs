//! Damages every fixture with typical mistakes: a punctuation mark that is missing, doubled or replaced, or a comment.
//!
//! Each damaged document must be rejected, keep its meaning, or give a diagnostic. A damaged document never means
//! another network without a diagnostic, and never results in the distribution's default.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use glowplug::diagnostic::Diagnostics;
use glowplug::formats::{Meaning, read_network};
use glowplug::render::dracut;

/// The result of a document.
#[derive(Debug, Eq, PartialEq)]
enum Outcome {
    Refused,
    /// The document configures nothing, so the distribution's default applies.
    Default,
    /// The kernel arguments and all diagnostics.
    Configured(String, BTreeSet<String>),
}

fn outcome(document: &str) -> Outcome {
    let mut reading = read_network(document.as_bytes());
    let line = match &reading.meaning {
        Meaning::Network(network) => dracut::render(network, &mut reading.diagnostics).line,
        _ => String::new(),
    };
    let diagnostics: &Diagnostics = &reading.diagnostics;
    if diagnostics.has_errors() || matches!(reading.meaning, Meaning::Disabled) {
        Outcome::Refused
    } else if line.is_empty() {
        Outcome::Default
    } else {
        Outcome::Configured(line, diagnostics.kept().iter().map(ToString::to_string).collect())
    }
}

fn documents(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let is_document = path.file_name().is_some_and(|name| name == "network_data.json" || name == "network-config");
        if path.is_dir() {
            documents(&path, found);
        } else if is_document || directory.ends_with("documents") {
            found.push(path);
        }
    }
}

/// Returns a text in which `by` replaces `length` bytes from `at` on.
fn damaged(text: &str, at: usize, length: usize, by: &str) -> String {
    format!("{}{by}{}", &text[..at], &text[at + length..])
}

/// Returns the punctuation marks of the notation with their positions. A mark inside a value belongs to the value:
/// every reader reads a different address if `2001:db8::5` loses a colon.
fn marks(text: &str, is_json: bool) -> Vec<(usize, char)> {
    let mut is_in_string = false;
    let mut marks = Vec::new();
    for (at, mark) in text.char_indices() {
        let is_quote = mark == '"' && is_json;
        let is_between = is_json || text[at + mark.len_utf8()..].starts_with([' ', '\n']);
        let is_mark = "{}[],\"'".contains(mark) || matches!(mark, ':' | '-') && is_between;
        is_in_string ^= is_quote;
        if is_quote || !is_in_string && is_mark {
            marks.push((at, mark));
        }
    }
    marks
}

const WRONG: &str = "{}[],:;\"'.-=";

/// Returns a description and the text for each damage.
fn damages(text: &str, is_json: bool) -> Vec<(String, String)> {
    let mut damages = Vec::new();
    for (at, mark) in marks(text, is_json) {
        let line = text[..at].matches('\n').count() + 1;
        damages.push((format!("line {line}: {mark} lost"), damaged(text, at, 1, "")));
        damages.push((format!("line {line}: {mark} doubled"), damaged(text, at, 0, &mark.to_string())));
        for wrong in WRONG.chars().filter(|wrong| *wrong != mark) {
            damages.push((format!("line {line}: {mark} is {wrong}"), damaged(text, at, 1, &wrong.to_string())));
        }
    }
    let mut end = 0;
    for (index, line) in text.split_inclusive('\n').enumerate() {
        let begin = end;
        end += line.len();
        // In YAML a line that begins with `#` is a valid comment, so only JSON gets this damage.
        let comments = [" // address", " <-- this is the part allocated", "# address "];
        for comment in comments.into_iter().filter(|comment| is_json || !comment.starts_with('#')) {
            let at = if comment.starts_with('#') { begin } else { begin + line.trim_end().len() };
            let what = format!("line {}: comment{comment}", index + 1);
            damages.push((what, damaged(text, at, 0, comment)));
        }
    }
    damages
}

#[test]
fn every_damaged_document_that_means_another_network_has_a_diagnostic() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures");
    let mut paths = Vec::new();
    documents(&root.join("guest"), &mut paths);
    documents(&root.join("documents"), &mut paths);
    paths.sort();
    let mut silent = Vec::new();
    let mut number = 0;
    for path in &paths {
        let text = fs::read_to_string(path).unwrap();
        let Outcome::Configured(line, before) = outcome(&text) else { continue };
        let is_json = text.trim_start().starts_with('{');
        for (what, damaged) in damages(&text, is_json) {
            number += 1;
            let problem = match outcome(&damaged) {
                Outcome::Refused => continue,
                Outcome::Configured(other, _) if other == line => continue,
                Outcome::Configured(_, now) if now.difference(&before).next().is_some() => continue,
                Outcome::Configured(other, _) => format!("silently {other}"),
                Outcome::Default => "the default".to_owned(),
            };
            silent.push(format!("{}: {what}: {problem}", path.strip_prefix(&root).unwrap().display()));
        }
    }
    assert!(silent.is_empty(), "{} of {number}:\n{}", silent.len(), silent.join("\n"));
    assert!(number > 40_000, "{number}");
}
