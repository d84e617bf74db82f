//! Writes the lines of one file.

use std::fmt::{self, Write as _};

/// Content of one file: sections of lines, in the order in which they are added. A section without lines is not
/// written.
#[derive(Default)]
pub(super) struct Text {
    pub(super) text: String,
    /// First value with a byte outside [`ALPHABET`]; such a byte could end the value early.
    pub(super) illegal: Option<String>,
    section: &'static str,
}

/// Bytes that a value may have, as messages describe them.
pub(super) const ALPHABET: &str = "letters, digits, blanks and . : / _ + - * ? [ ] !";

// === impl Text ===

impl Text {
    /// Begins a section. A section with the same name as the section before is written again.
    pub(super) fn section(&mut self, name: &'static str) {
        self.section = name;
    }

    /// Adds a line to the section.
    pub(super) fn line(&mut self, key: &str, value: &dyn fmt::Display) {
        if !self.section.is_empty() {
            let blank = if self.text.is_empty() { "" } else { "\n" };
            // Writing to a string never fails.
            let _ = writeln!(self.text, "{blank}[{}]", self.section);
            self.section = "";
        }
        self.text.push_str(key);
        self.text.push('=');
        let start = self.text.len();
        let _ = write!(self.text, "{value}");
        let value = &self.text[start..];
        let is_legal = |byte: u8| byte.is_ascii_alphanumeric() || b" .:/_+-*?[]!".contains(&byte);
        if self.illegal.is_none() && !value.bytes().all(is_legal) {
            self.illegal = Some(value.to_owned());
        }
        self.text.push('\n');
    }
}
