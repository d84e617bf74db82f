//! What is to be said about a document: where, which value, what was expected, and whether the boot may go on.
//!
//! A reader of a document never stops at the first mistake. It collects [`Finding`]s and goes on, so that a person sees
//! all of them at once and mends the document once.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What a finding costs.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// The item is left out, everything else goes on.
    Warning,
    /// Nothing of the document is used.
    Error,
}

/// A place in a document, such as `networks[1].netmask`.
///
/// Places borrow from each other, so naming one costs nothing until it is printed.
///
/// ```
/// use glowplug::finding::Place;
///
/// let place = Place::Document;
/// assert_eq!(place.field("networks").index(1).field("netmask").to_string(), "networks[1].netmask");
/// assert_eq!(place.to_string(), "document");
/// ```
#[derive(Clone, Copy, Debug)]
pub enum Place<'a> {
    /// The document as a whole.
    Document,
    /// A member of an object.
    Field(&'a Place<'a>, &'a str),
    /// An element of an array.
    Index(&'a Place<'a>, usize),
}

/// One remark about a document.
///
/// `Display` writes it on one line, whatever the value holds:
///
/// ```
/// use glowplug::finding::{Finding, Place};
///
/// let netmask = Finding::error(Place::Document.field("netmask"), "invalid netmask", "255.0.255.0", "a length");
/// assert_eq!(netmask.to_string(), r#"netmask: invalid netmask "255.0.255.0", expected a length"#);
/// ```
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Finding {
    /// What it costs.
    pub severity: Severity,
    /// Where in the document, such as `networks[1].netmask`.
    pub place: String,
    /// What is wrong, without the value: `invalid netmask`.
    pub problem: String,
    /// The value as it was written, shortened when it is long.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// What would have been right.
    pub expected: String,
}

/// The findings of one document, in the order in which they were made.
///
/// At most [`Findings::KEPT`] are kept; the others are counted. An error is never lost that way: it makes the count of
/// errors, and so the verdict.
#[derive(Debug, Default)]
pub struct Findings {
    kept: Vec<Finding>,
    further: usize,
    errors: usize,
}

// === impl Place ===

impl<'a> Place<'a> {
    /// The member `name` of this place.
    #[must_use]
    pub fn field(&'a self, name: &'a str) -> Place<'a> {
        Place::Field(self, name)
    }

    /// The element `index` of this place, counted from zero.
    #[must_use]
    pub fn index(&'a self, index: usize) -> Place<'a> {
        Place::Index(self, index)
    }
}

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Document => f.write_str("document"),
            Self::Field(Place::Document, name) => write!(f, "{}", Plain(name)),
            Self::Field(parent, name) => write!(f, "{parent}.{}", Plain(name)),
            Self::Index(parent, index) => write!(f, "{parent}[{index}]"),
        }
    }
}

/// A member's name without anything that would leave its line or its place.
struct Plain<'a>(&'a str);

impl fmt::Display for Plain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
        if !self.0.is_empty() && self.0.len() <= Finding::VALUE_CHARS && self.0.chars().all(plain) {
            f.write_str(self.0)
        } else {
            write!(f, "{:?}", shortened(self.0))
        }
    }
}

// === impl Finding ===

impl Finding {
    /// A value is shown up to this many characters.
    const VALUE_CHARS: usize = 64;

    /// A finding that forbids the document.
    pub fn error(place: impl fmt::Display, problem: &str, value: impl fmt::Display, expected: &str) -> Self {
        Self::new(Severity::Error, place, problem, value, expected)
    }

    /// A finding that costs the item alone.
    pub fn warning(place: impl fmt::Display, problem: &str, value: impl fmt::Display, expected: &str) -> Self {
        Self::new(Severity::Warning, place, problem, value, expected)
    }

    /// An error about something that is not there.
    pub fn missing(place: impl fmt::Display, expected: &str) -> Self {
        let missing = "missing".to_owned();
        let (severity, place, expected) = (Severity::Error, place.to_string(), expected.to_owned());
        Self { severity, place, problem: missing, value: None, expected }
    }

    /// A finding whose cost is decided by its consequence.
    pub fn new(
        severity: Severity,
        place: impl fmt::Display,
        problem: &str,
        value: impl fmt::Display,
        expected: &str,
    ) -> Self {
        Self {
            severity,
            place: place.to_string(),
            problem: problem.to_owned(),
            value: Some(shortened(&value.to_string())),
            expected: expected.to_owned(),
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.problem)?;
        if let Some(value) = &self.value {
            write!(f, " {value:?}")?;
        }
        write!(f, ", expected {}", self.expected)
    }
}

fn shortened(value: &str) -> String {
    match value.char_indices().nth(Finding::VALUE_CHARS) {
        Some((end, _)) => format!("{}…", &value[..end]),
        None => value.to_owned(),
    }
}

// === impl Findings ===

impl Findings {
    /// So many findings are kept; a document with more of them is not mended line by line.
    pub const KEPT: usize = 256;

    /// Adds one.
    pub fn push(&mut self, finding: Finding) {
        if finding.severity == Severity::Error {
            self.errors += 1;
        }
        if self.kept.len() < Self::KEPT {
            self.kept.push(finding);
        } else {
            self.further += 1;
        }
    }

    /// Whether the document may not be used.
    #[must_use]
    pub fn has_errors(&self) -> bool {
        self.errors > 0
    }

    /// How many of them are errors, kept or not.
    #[must_use]
    pub fn errors(&self) -> usize {
        self.errors
    }

    /// The findings that were kept and how many were not.
    #[must_use]
    pub fn into_parts(self) -> (Vec<Finding>, usize) {
        (self.kept, self.further)
    }

    /// The findings that were kept, in the order in which they were made.
    #[must_use]
    pub fn kept(&self) -> &[Finding] {
        &self.kept
    }

    /// How many were counted but not kept.
    #[must_use]
    pub fn further(&self) -> usize {
        self.further
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hostile_value_stays_on_its_line_and_is_shortened() {
        let value = format!("a\nip=1.2.3.4 \"{}", "x".repeat(100));
        let finding = Finding::warning(Place::Document.field("a b\n"), "invalid name", value, "a name");
        assert_eq!(
            finding.to_string(),
            format!(r#""a b\n": invalid name "a\nip=1.2.3.4 \"{}…", expected a name"#, "x".repeat(50))
        );
    }

    #[test]
    fn an_error_beyond_those_that_are_kept_still_forbids_the_document() {
        let mut findings = Findings::default();
        for _ in 0..Findings::KEPT {
            findings.push(Finding::warning("a", "b", "c", "d"));
        }
        assert!(!findings.has_errors());
        findings.push(Finding::missing("a", "b"));
        assert_eq!((findings.has_errors(), findings.kept().len(), findings.further()), (true, Findings::KEPT, 1));
    }
}
