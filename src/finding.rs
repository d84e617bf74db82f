//! What is to be said about a document: where, which value, what was expected, and whether the boot may go on.
//!
//! A reader of a document never stops at the first mistake. It collects [`Finding`]s and goes on, so that a person sees
//! all of them at once and mends the document once.

use std::cmp::Ordering;
use std::fmt::{self, Write as _};

use serde::Serialize;

/// What a finding costs.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Nothing is lost that anybody would miss.
    Debug,
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

/// Most places and values are shorter, in bytes.
const USUAL: usize = 64;

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
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
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

/// The findings of one document, in the order of their places.
///
/// At most [`Findings::KEPT`] of each severity are kept; the others are counted. So warnings, however many, never hide
/// the error that forbids the document.
#[derive(Debug, Default)]
pub struct Findings {
    kept: Vec<Finding>,
    details: Vec<Finding>,
    errors: usize,
    warnings: usize,
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

    /// The place as text, to be kept without the document.
    #[must_use]
    pub fn path(&self) -> String {
        let mut path = String::with_capacity(USUAL);
        self.push_onto(&mut path);
        path
    }

    // Formatters would cost several times as much, and of a long list every record has a place.
    pub(crate) fn push_onto(&self, path: &mut String) {
        match self {
            Self::Document => path.push_str("document"),
            Self::Field(Place::Document, name) => push_plain(name, path),
            Self::Field(parent, name) => {
                parent.push_onto(path);
                path.push('.');
                push_plain(name, path);
            }
            Self::Index(parent, index) => {
                parent.push_onto(path);
                path.extend(["[", &index.to_string(), "]"]);
            }
        }
    }
}

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.path())
    }
}

/// A member's name without anything that would leave its line or its place.
fn push_plain(name: &str, path: &mut String) {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() | matches!(byte, b'_' | b'-');
    let is_literal = |byte: u8| matches!(byte, b' '..=b'~') & !matches!(byte, b'"' | b'\\');
    let fits = name.len() <= Finding::VALUE_CHARS;
    // With no way out in between, several bytes are looked at at once.
    if fits && !name.is_empty() && name.bytes().fold(true, |all, byte| all & is_plain(byte)) {
        path.push_str(name);
    } else if fits && name.bytes().fold(true, |all, byte| all & is_literal(byte)) {
        path.extend(["\"", name, "\""]);
    } else {
        // A string takes whatever is written.
        let _ = write!(path, "{:?}", shortened(&name));
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

    /// A finding whose cost is decided by its consequence.
    pub fn new(
        severity: Severity,
        place: impl fmt::Display,
        problem: &str,
        value: impl fmt::Display,
        expected: &str,
    ) -> Self {
        Self::of(severity, &place, problem, Some(&value), expected)
    }

    /// A finding about something that is not there, or whose value does not matter.
    pub fn without_value(severity: Severity, place: impl fmt::Display, problem: &str, expected: &str) -> Self {
        Self::of(severity, &place, problem, None, expected)
    }

    fn of(
        severity: Severity,
        place: &dyn fmt::Display,
        problem: &str,
        value: Option<&dyn fmt::Display>,
        expected: &str,
    ) -> Self {
        Self {
            severity,
            place: place.to_string(),
            problem: problem.to_owned(),
            value: value.map(shortened),
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

/// The beginning of a value. A value of a megabyte costs no more than a short one.
pub(crate) fn shortened(value: &dyn fmt::Display) -> String {
    let mut beginning = Beginning { text: String::with_capacity(USUAL), room: Finding::VALUE_CHARS };
    // The only failure is that the rest does not fit.
    if write!(beginning, "{value}").is_err() {
        beginning.text.push('…');
    }
    beginning.text
}

/// Takes what is written until there is no room.
struct Beginning {
    text: String,
    room: usize,
}

impl fmt::Write for Beginning {
    fn write_str(&mut self, written: &str) -> fmt::Result {
        let end = written.char_indices().nth(self.room).map(|(end, _)| end);
        let fits = &written[..end.unwrap_or(written.len())];
        self.text.push_str(fits);
        self.room -= fits.chars().count();
        if end.is_some() { Err(fmt::Error) } else { Ok(()) }
    }
}

// === impl Findings ===

impl Findings {
    /// So many errors, so many warnings and so many details are kept; a document with more of them is not mended line by line.
    pub const KEPT: usize = 256;

    /// Adds one.
    pub fn push(&mut self, finding: Finding) {
        let count = match finding.severity {
            Severity::Debug if self.details.len() < Self::KEPT => return self.details.push(finding),
            Severity::Debug => return,
            Severity::Warning => &mut self.warnings,
            Severity::Error => &mut self.errors,
        };
        *count += 1;
        if *count <= Self::KEPT {
            let at = self.kept.partition_point(|kept| by_place(&kept.place, &finding.place).is_le());
            self.kept.insert(at, finding);
        }
    }

    /// The findings of the severity debug, in the order in which they were made. No other method has them.
    #[must_use]
    pub fn details(&self) -> &[Finding] {
        &self.details
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
        let further = self.further();
        (self.kept, further)
    }

    /// The findings that were kept, in the order of their places.
    #[must_use]
    pub fn kept(&self) -> &[Finding] {
        &self.kept
    }

    /// How many were counted but not kept.
    #[must_use]
    pub fn further(&self) -> usize {
        self.errors + self.warnings - self.kept.len()
    }
}

/// As a person comes across them: `links[2]` before `links[10]`, and both before `networks[0]`.
fn by_place<'a>(a: &'a str, b: &'a str) -> Ordering {
    let is_bracket = |byte: &u8| matches!(byte, b'[' | b']');
    let same = a.bytes().zip(b.bytes()).take_while(|(a, b)| a == b).count();
    // What they differ in, perhaps two numbers.
    let begin = a.as_bytes()[..same].iter().rposition(is_bracket).map_or(0, |at| at + 1);
    let part = |place: &'a str| {
        let rest = &place[begin..];
        let part = &rest[..rest.bytes().position(|byte| is_bracket(&byte)).unwrap_or(rest.len())];
        (part.parse::<usize>().ok(), part)
    };
    part(a).cmp(&part(b)).then_with(|| a.cmp(b))
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
    fn a_value_that_just_fits_is_shown_whole() {
        let shown = |chars: usize| Finding::warning("a", "b", "ä".repeat(chars), "c").value;
        assert_eq!(shown(64), Some("ä".repeat(64)));
        assert_eq!(shown(65), Some("ä".repeat(64) + "…"));
        let (x, y) = ("x".repeat(60), "y".repeat(5));
        let in_pieces = Finding::warning("a", "b", format_args!("{x}{y}"), "c");
        assert_eq!(in_pieces.value, Some(x + "yyyy…"));
    }

    #[test]
    fn warnings_never_hide_an_error() {
        let mut findings = Findings::default();
        for _ in 0..=Findings::KEPT {
            findings.push(Finding::warning("a", "b", "c", "d"));
        }
        assert_eq!((findings.has_errors(), findings.kept().len(), findings.further()), (false, Findings::KEPT, 1));
        let error = Finding::without_value(Severity::Error, "b", "missing", "c");
        findings.push(error.clone());
        assert_eq!((findings.errors(), findings.kept().last(), findings.further()), (1, Some(&error), 1));
        for _ in 0..=Findings::KEPT {
            findings.push(error.clone());
        }
        assert_eq!((findings.errors(), findings.kept().len(), findings.further()), (258, 2 * Findings::KEPT, 3));
    }

    #[test]
    fn a_detail_is_neither_a_warning_nor_an_error() {
        let mut findings = Findings::default();
        let detail = Finding::new(Severity::Debug, "a", "b", "c", "d");
        findings.push(detail.clone());
        assert_eq!(findings.details(), std::slice::from_ref(&detail));
        assert_eq!((findings.has_errors(), findings.kept().len(), findings.further()), (false, 0, 0));
        for _ in 0..Findings::KEPT {
            findings.push(detail.clone());
        }
        assert_eq!((findings.details().len(), findings.further()), (Findings::KEPT, 0));
    }

    #[test]
    fn findings_stand_in_the_order_of_their_places_and_then_as_they_were_made() {
        let mut findings = Findings::default();
        let places = ["networks[0]", "links[10]", "links[2].mtu", "links[2]", "document", "links[2].id", "links[2].id"];
        for (at, place) in places.into_iter().enumerate() {
            findings.push(Finding::warning(place, "problem", at, "nothing"));
        }
        let order: Vec<String> = findings.kept().iter().filter_map(|finding| finding.value.clone()).collect();
        assert_eq!(order, ["4", "3", "5", "6", "2", "1", "0"]);
    }
}
