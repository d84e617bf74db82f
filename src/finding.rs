//! Diagnostics about a document: path, problem, value, expectation, and whether the boot may continue.
//!
//! A reader of a document does not stop at the first mistake. It collects one [`Finding`] for each mistake and
//! continues, so that a person can fix all mistakes at once.

use std::cmp::Ordering;
use std::fmt::{self, Write as _};

use serde::Serialize;

/// How severe a diagnostic is.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Information only: no setting with an effect is lost.
    Debug,
    /// The item is ignored, and the rest of the document is used.
    Warning,
    /// The whole document is rejected.
    Error,
}

/// The path of a value in a document, such as `networks[1].netmask`.
///
/// A path borrows its parent, so building a path allocates nothing. Only printing a path allocates.
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
    /// A member of an object: the object's path and the member's name.
    Field(&'a Place<'a>, &'a str),
    /// An element of an array: the array's path and the index, counted from zero.
    Index(&'a Place<'a>, usize),
}

/// Initial capacity of a string for a path or a value, in bytes. Most paths and values are shorter.
const USUAL: usize = 64;

/// One diagnostic about a document.
///
/// `Display` writes the diagnostic on one line, whatever characters the value contains:
///
/// ```
/// use glowplug::finding::{Finding, Place};
///
/// let netmask = Finding::error(Place::Document.field("netmask"), "invalid netmask", "255.0.255.0", "a length");
/// assert_eq!(netmask.to_string(), r#"netmask: invalid netmask "255.0.255.0", expected a length"#);
/// ```
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub struct Finding {
    /// Whether the document, the item or nothing is lost.
    pub severity: Severity,
    /// Path of the value in the document, such as `networks[1].netmask`.
    pub place: String,
    /// The problem without the value, such as `invalid netmask`.
    pub problem: String,
    /// The value as in the document, shortened to 64 characters. `None` when the value is missing or does not matter.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// What the document should contain instead.
    pub expected: String,
}

/// The diagnostics of one document, sorted by path.
///
/// At most [`Findings::KEPT`] errors and as many warnings are kept; the rest are only counted. Errors and warnings have
/// separate limits, so that no number of warnings can hide an error. Debug messages beyond the limit are dropped.
#[derive(Debug, Default)]
pub struct Findings {
    kept: Vec<Finding>,
    details: Vec<Finding>,
    errors: usize,
    warnings: usize,
}

// === impl Place ===

impl<'a> Place<'a> {
    /// The path of the member `name` of this object.
    #[must_use]
    pub fn field(&'a self, name: &'a str) -> Place<'a> {
        Place::Field(self, name)
    }

    /// The path of the element `index` of this array, counted from zero.
    #[must_use]
    pub fn index(&'a self, index: usize) -> Place<'a> {
        Place::Index(self, index)
    }

    /// The path as a string that does not borrow the document.
    #[must_use]
    pub fn path(&self) -> String {
        let mut path = String::with_capacity(USUAL);
        self.push_onto(&mut path);
        path
    }

    // The formatting machinery would take several times as long, and every record of a long list has a path.
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

/// Writes a member's name, quoted and escaped where it has characters that could break the line or the path.
fn push_plain(name: &str, path: &mut String) {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() | matches!(byte, b'_' | b'-');
    let is_literal = |byte: u8| matches!(byte, b' '..=b'~') & !matches!(byte, b'"' | b'\\');
    let fits = name.len() <= Finding::VALUE_CHARS;
    // `fold` has no early exit, so the compiler can check several bytes at once.
    if fits && !name.is_empty() && name.bytes().fold(true, |all, byte| all & is_plain(byte)) {
        path.push_str(name);
    } else if fits && name.bytes().fold(true, |all, byte| all & is_literal(byte)) {
        path.extend(["\"", name, "\""]);
    } else {
        // Writing to a `String` cannot fail.
        let _ = write!(path, "{:?}", shortened(&name));
    }
}

// === impl Finding ===

impl Finding {
    /// The length to which a value is shortened, in characters.
    const VALUE_CHARS: usize = 64;

    /// A diagnostic with severity error: the document is rejected.
    pub fn error(place: impl fmt::Display, problem: &str, value: impl fmt::Display, expected: &str) -> Self {
        Self::new(Severity::Error, place, problem, value, expected)
    }

    /// A diagnostic with severity warning: the item is ignored.
    pub fn warning(place: impl fmt::Display, problem: &str, value: impl fmt::Display, expected: &str) -> Self {
        Self::new(Severity::Warning, place, problem, value, expected)
    }

    /// A diagnostic with the given severity.
    pub fn new(
        severity: Severity,
        place: impl fmt::Display,
        problem: &str,
        value: impl fmt::Display,
        expected: &str,
    ) -> Self {
        Self::of(severity, &place, problem, Some(&value), expected)
    }

    /// A diagnostic about a missing value, or about a value that does not matter.
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

/// The beginning of a displayed value; `…` marks the cut. Formatting stops at the limit, so a long value takes no
/// longer than a short value.
pub(crate) fn shortened(value: &dyn fmt::Display) -> String {
    let mut beginning = Beginning { text: String::with_capacity(USUAL), room: Finding::VALUE_CHARS };
    // Writing fails only when the value does not fit.
    if write!(beginning, "{value}").is_err() {
        beginning.text.push('…');
    }
    beginning.text
}

/// A writer that accepts a limited number of characters and then fails.
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
    /// Number of errors that are kept; as many warnings and as many debug messages are kept, too. Nobody fixes a
    /// document with more mistakes line by line.
    pub const KEPT: usize = 256;

    /// Adds a diagnostic. Beyond [`Findings::KEPT`] of its severity, an error or a warning is only counted, and a debug
    /// message is dropped.
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

    /// The debug messages, in the order in which they were added. No other method returns debug messages.
    #[must_use]
    pub fn details(&self) -> &[Finding] {
        &self.details
    }

    /// Whether the document is rejected.
    #[must_use]
    pub fn has_errors(&self) -> bool {
        self.errors > 0
    }

    /// The number of errors, kept or only counted.
    #[must_use]
    pub fn errors(&self) -> usize {
        self.errors
    }

    /// The kept errors and warnings, and the number of those that were only counted.
    #[must_use]
    pub fn into_parts(self) -> (Vec<Finding>, usize) {
        let further = self.further();
        (self.kept, further)
    }

    /// The kept errors and warnings, sorted by path.
    #[must_use]
    pub fn kept(&self) -> &[Finding] {
        &self.kept
    }

    /// The number of errors and warnings that were counted but not kept.
    #[must_use]
    pub fn further(&self) -> usize {
        self.errors + self.warnings - self.kept.len()
    }
}

/// Compares paths in document order: `links[2]` comes before `links[10]`, and both come before `networks[0]`.
fn by_place<'a>(a: &'a str, b: &'a str) -> Ordering {
    let is_bracket = |byte: &u8| matches!(byte, b'[' | b']');
    let same = a.bytes().zip(b.bytes()).take_while(|(a, b)| a == b).count();
    // The part in which the paths differ. It may be an index in both.
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
    fn diagnostics_are_sorted_by_path_and_then_in_the_order_of_adding() {
        let mut findings = Findings::default();
        let places = ["networks[0]", "links[10]", "links[2].mtu", "links[2]", "document", "links[2].id", "links[2].id"];
        for (at, place) in places.into_iter().enumerate() {
            findings.push(Finding::warning(place, "problem", at, "nothing"));
        }
        let order: Vec<String> = findings.kept().iter().filter_map(|finding| finding.value.clone()).collect();
        assert_eq!(order, ["4", "3", "5", "6", "2", "1", "0"]);
    }
}
