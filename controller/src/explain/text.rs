//! Text for terminals and for programs: tables with bold heads, and JSON.

use std::fmt;

use glowplug::terminal::{acts_on_terminal, table};
use serde_json::Value;

/// The escape sequences at the start and at the end of bold text on a terminal.
const BOLD: [&str; 2] = ["\u{1b}[1m", "\u{1b}[0m"];

/// Formats a table with a head. Every cell is escaped, because it comes from the API server.
pub(super) fn rows_of<const N: usize>(head: [&str; N], rows: Vec<[String; N]>) -> String {
    let head = head.map(|title| vec![title.to_owned()]);
    let rows = rows.into_iter().map(|row| row.map(|cell| vec![cell]));
    table(std::iter::once(head).chain(rows).collect(), usize::MAX)
}

/// Writes one more table of an answer. Writes nothing if the table has no rows.
pub(super) fn write_section<const N: usize>(
    f: &mut fmt::Formatter<'_>,
    head: [&str; N],
    rows: Vec<[String; N]>,
) -> fmt::Result {
    if rows.is_empty() { Ok(()) } else { write!(f, "\n{}", rows_of(head, rows)) }
}

/// Makes the heads of tables bold. A head is the first line of a table, and an empty line separates two tables. No cell
/// contains a line end, because [`table`] escapes it.
#[must_use]
pub fn with_bold_heads(tables: &str) -> String {
    let [begin, end] = BOLD;
    let mut is_head = true;
    let line = |line: &str| match std::mem::replace(&mut is_head, line.is_empty()) && !line.is_empty() {
        true => format!("{begin}{line}{end}\n"),
        false => format!("{line}\n"),
    };
    tables.lines().map(line).collect()
}

/// Formats JSON, and escapes every character that would act on a terminal.
#[must_use]
pub fn json(value: &Value) -> String {
    let escape = |c: char| match acts_on_terminal(c) && c != '\n' {
        true => format!("\\u{:04x}", u32::from(c)),
        false => c.to_string(),
    };
    format!("{value:#}\n").chars().map(escape).collect()
}

/// Quotes a word of a command line, so that a shell passes the word on unchanged.
#[must_use]
pub fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./=".contains(c);
    // zsh replaces a word that begins with `=` by the path of a program.
    match !word.is_empty() && !word.starts_with('=') && word.chars().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_the_heads_of_tables_are_bold() {
        let tables =
            format!("{}\n{}", rows_of(["A", "B"], vec![["1".into(), "\u{1b}\n2".into()]]), rows_of(["C"], vec![]));
        assert_eq!(with_bold_heads(&tables), "\u{1b}[1mA  B\u{1b}[0m\n1  \\u{1b}\\n2\n\n\u{1b}[1mC\u{1b}[0m\n");
    }

    #[test]
    fn a_shell_does_not_change_a_quoted_word() {
        let words = ["", "a/b-c_d.e=f", "=ls", "a b", "it's"].map(quoted);
        assert_eq!(words, ["''", "a/b-c_d.e=f", "'=ls'", "'a b'", r"'it'\''s'"]);
    }

    #[test]
    fn json_is_printed_with_escaped_terminal_control_characters() {
        assert_eq!(
            super::json(&json!({"a": "\u{1b}[2J\u{9b}\u{202e}\n"})),
            "{\n  \"a\": \"\\u001b[2J\\u009b\\u202e\\n\"\n}\n"
        );
    }
}
