//! Writes the lines of one file.

use std::fmt::{self, Write as _};

/// Content of one file: sections of lines, in the order in which they are added. A section without lines is not
/// written.
pub(super) struct Text {
    pub(super) text: String,
    /// First value with a byte outside the alphabet; such a byte could end the value early.
    pub(super) illegal: Option<String>,
    section: &'static str,
    alphabet: Alphabet,
}

/// The bytes that a value may have: letters, digits and some punctuation.
#[derive(Clone, Copy)]
pub(super) struct Alphabet {
    pub(super) punctuation: &'static str,
    /// Description of the whole alphabet, for messages.
    pub(super) expected: &'static str,
}

// === impl Text ===

impl Text {
    pub(super) fn new(alphabet: Alphabet) -> Self {
        Self { text: String::new(), illegal: None, section: "", alphabet }
    }

    /// Begins a section. The heading is written with the first line of the section, even if the previous section has
    /// the same name.
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
        let punctuation = self.alphabet.punctuation.as_bytes();
        let is_legal = |byte: u8| byte.is_ascii_alphanumeric() || punctuation.contains(&byte);
        if self.illegal.is_none() && !value.bytes().all(is_legal) {
            self.illegal = Some(value.to_owned());
        }
        self.text.push('\n');
    }
    /// Adds a line with a number; `None` adds no line.
    pub(super) fn option<T: Into<u32>>(&mut self, key: &str, number: Option<T>) {
        if let Some(number) = number {
            self.line(key, &number.into());
        }
    }
}
