//! Diagnostics about a document: path, problem, value, expectation, and whether the boot can continue.
//!
//! A reader of a document does not stop at the first mistake. The reader collects one [`Diagnostic`] for each mistake
//! and continues, so that a person can fix all mistakes at once.

use std::cmp::Ordering;
use std::error::Error;
use std::fmt::{self, Write as _};

use serde::Serialize;

/// How severe a diagnostic is.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Information only: every setting that has an effect is used.
    Debug,
    /// The document is used, in most cases without this item.
    Warning,
    /// The whole document is rejected.
    Error,
}

/// The path of a value in a document, such as `networks[1].netmask`.
///
/// A path borrows its parent, so building a path allocates nothing. Only printing a path allocates.
///
/// ```
/// use glowplug::diagnostic::FieldPath;
///
/// let path = FieldPath::Document;
/// assert_eq!(path.field("networks").index(1).field("netmask").to_string(), "networks[1].netmask");
/// assert_eq!(path.to_string(), "document");
/// ```
#[derive(Clone, Copy, Debug)]
pub enum FieldPath<'a> {
    /// The document as a whole.
    Document,
    /// A member of an object: the object's path and the member's name.
    Field(&'a FieldPath<'a>, &'a str),
    /// An element of an array: the array's path and the index, counted from zero.
    Index(&'a FieldPath<'a>, usize),
}

/// Initial capacity of a string for a path or a value, in bytes. Most paths and values are shorter.
const USUAL: usize = 64;

/// One diagnostic about a document.
///
/// `Display` writes the diagnostic on one line, even if the value contains line breaks:
///
/// ```
/// use glowplug::diagnostic::{Diagnostic, FieldPath};
///
/// let netmask = Diagnostic::error(FieldPath::Document.field("netmask"), "invalid netmask", "255.0.255.0", "a length");
/// assert_eq!(netmask.to_string(), r#"netmask: invalid netmask "255.0.255.0", expected a length"#);
///
/// let metric = Diagnostic::ignored("routes[0].metric", 100, "kernel arguments cannot express it");
/// assert_eq!(metric.to_string(), r#"routes[0].metric: "100" ignored, kernel arguments cannot express it"#);
/// ```
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub struct Diagnostic {
    /// How much is ignored: the whole document, one item or nothing.
    pub severity: Severity,
    /// Path of the value in the document, such as `networks[1].netmask`.
    pub path: String,
    /// The value as in the document, shortened to 64 characters. `None` when the value is missing or does not matter.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// Why there is a diagnostic: a mistake in the document, or a limitation of the program that reads our output.
    #[serde(flatten)]
    pub reason: Reason,
}

/// Why there is a diagnostic.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Reason {
    /// The author of the document made a mistake in the value.
    Mistake {
        /// The problem without the value, such as `invalid netmask`.
        problem: String,
        /// Expected content of the document.
        expected: String,
    },
    /// The value is valid, but is not used.
    Ignored {
        /// The limitation, such as `kernel arguments cannot express it`.
        because: String,
    },
}

/// The diagnostics of one document. Errors and warnings are sorted by path.
///
/// At most [`Diagnostics::KEPT`] errors and as many warnings are kept; the rest are only counted. Errors and warnings have
/// separate limits, so that no number of warnings can hide an error. Debug messages beyond the limit are dropped.
#[derive(Debug, Default)]
pub struct Diagnostics {
    kept: Vec<Diagnostic>,
    details: Vec<Diagnostic>,
    errors: usize,
    warnings: usize,
}

/// What a diagnostic expects if these values are valid: the only value, or `one of a, b`.
#[doc(hidden)]
#[must_use]
pub fn one_of(values: &[&str]) -> String {
    match values {
        [only] => (*only).to_owned(),
        values => format!("one of {}", values.join(", ")),
    }
}

// === impl Severity ===

impl fmt::Display for Severity {
    /// Prints the severity as it is serialized.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Debug => "debug",
            Self::Warning => "warning",
            Self::Error => "error",
        })
    }
}

// === impl FieldPath ===

impl<'a> FieldPath<'a> {
    /// The path of the member `name` of this object.
    #[must_use]
    pub fn field(&'a self, name: &'a str) -> FieldPath<'a> {
        FieldPath::Field(self, name)
    }

    /// The path of the element `index` of this array, counted from zero.
    #[must_use]
    pub fn index(&'a self, index: usize) -> FieldPath<'a> {
        FieldPath::Index(self, index)
    }

    /// The path as a string that does not borrow the document.
    #[must_use]
    pub fn path(&self) -> String {
        let mut path = String::with_capacity(USUAL);
        self.push_onto(&mut path);
        path
    }

    // Appends the path to a string. Formatting with `write!` would be several times slower, and every entry of a long
    // list has a path.
    pub(crate) fn push_onto(&self, path: &mut String) {
        match self {
            Self::Document => path.push_str("document"),
            Self::Field(FieldPath::Document, name) => push_plain(name, path),
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

impl fmt::Display for FieldPath<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.path())
    }
}

/// Appends a member's name to a path. A name that is empty, is long, or has characters that could break the line or the
/// path is quoted and escaped. A name is cut after 64 characters.
fn push_plain(name: &str, path: &mut String) {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() | matches!(byte, b'_' | b'-');
    let is_literal = |byte: u8| matches!(byte, b' '..=b'~') & !matches!(byte, b'"' | b'\\');
    let fits = name.len() <= Diagnostic::VALUE_CHARS;
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

// === impl Diagnostic ===

impl Diagnostic {
    /// The length to which a value is shortened, in characters.
    const VALUE_CHARS: usize = 64;

    /// A diagnostic with severity error: the document is rejected.
    pub fn error(path: impl fmt::Display, problem: &str, value: impl fmt::Display, expected: &str) -> Self {
        Self::new(Severity::Error, path, problem, value, expected)
    }

    /// A diagnostic with severity warning: the document is used, in most cases without this item.
    pub fn warning(path: impl fmt::Display, problem: &str, value: impl fmt::Display, expected: &str) -> Self {
        Self::new(Severity::Warning, path, problem, value, expected)
    }

    /// A warning that a valid value is not used, and why.
    pub fn ignored(path: impl fmt::Display, value: impl fmt::Display, because: &str) -> Self {
        Self {
            severity: Severity::Warning,
            path: path.to_string(),
            value: Some(shortened(&value)),
            reason: Reason::Ignored { because: because.to_owned() },
        }
    }

    /// The warning of [`Self::ignored`] without the value, for a caller that does not know the document's form of the
    /// value.
    pub(crate) fn ignored_without_value(path: impl fmt::Display, because: &str) -> Self {
        Self { value: None, ..Self::ignored(path, "", because) }
    }

    /// A diagnostic with the given severity.
    pub fn new(
        severity: Severity,
        path: impl fmt::Display,
        problem: &str,
        value: impl fmt::Display,
        expected: &str,
    ) -> Self {
        Self::of(severity, &path, problem, Some(&value), expected)
    }

    /// A diagnostic about a missing value, or about a value that does not matter.
    pub fn without_value(severity: Severity, path: impl fmt::Display, problem: &str, expected: &str) -> Self {
        Self::of(severity, &path, problem, None, expected)
    }

    /// The problem without the value; `ignored` for a value that is not used.
    #[must_use]
    pub fn problem(&self) -> &str {
        match &self.reason {
            Reason::Mistake { problem, .. } => problem,
            Reason::Ignored { .. } => "ignored",
        }
    }

    /// Replaces the expectation of a diagnostic about a mistake.
    pub(crate) fn expecting(self, expected: &str) -> Self {
        let reason = Reason::Mistake { problem: self.problem().to_owned(), expected: expected.to_owned() };
        Self { reason, ..self }
    }

    fn of(
        severity: Severity,
        path: &dyn fmt::Display,
        problem: &str,
        value: Option<&dyn fmt::Display>,
        expected: &str,
    ) -> Self {
        Self {
            severity,
            path: path.to_string(),
            value: value.map(shortened),
            reason: Reason::Mistake { problem: problem.to_owned(), expected: expected.to_owned() },
        }
    }
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.path)?;
        if let Reason::Mistake { problem, .. } = &self.reason {
            write!(f, " {problem}")?;
        }
        if let Some(value) = &self.value {
            write!(f, " {value:?}")?;
        }
        match &self.reason {
            Reason::Mistake { expected, .. } => write!(f, ", expected {expected}"),
            Reason::Ignored { because } => write!(f, " ignored, {because}"),
        }
    }
}

/// Formats a value and cuts it after 64 characters; `…` marks the cut. Formatting stops at the limit, so a long value
/// takes no longer than a short value.
pub(crate) fn shortened(value: &dyn fmt::Display) -> String {
    let mut beginning = Beginning { text: String::with_capacity(USUAL), room: Diagnostic::VALUE_CHARS };
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

// === impl Diagnostics ===

impl Diagnostics {
    /// Largest number of errors that are kept. The same limit applies to warnings, and to debug messages. A person
    /// would not correct more mistakes one by one.
    pub const KEPT: usize = 256;

    /// Adds a diagnostic. Beyond [`Diagnostics::KEPT`] of its severity, an error or a warning is only counted, and a debug
    /// message is dropped.
    pub fn push(&mut self, diagnostic: Diagnostic) {
        let count = match diagnostic.severity {
            Severity::Debug if self.details.len() < Self::KEPT => return self.details.push(diagnostic),
            Severity::Debug => return,
            Severity::Warning => &mut self.warnings,
            Severity::Error => &mut self.errors,
        };
        *count += 1;
        if *count <= Self::KEPT {
            let at = self.kept.partition_point(|kept| by_path(&kept.path, &diagnostic.path).is_le());
            self.kept.insert(at, diagnostic);
        }
    }

    /// The debug messages, in the order in which they were added. No other method returns debug messages.
    #[must_use]
    pub fn details(&self) -> &[Diagnostic] {
        &self.details
    }

    /// Whether the document is rejected.
    #[must_use]
    pub fn has_errors(&self) -> bool {
        self.errors > 0
    }

    /// The number of all errors, including errors that were only counted.
    #[must_use]
    pub fn errors(&self) -> usize {
        self.errors
    }

    /// The kept errors and warnings, and the number of those that were only counted.
    #[must_use]
    pub fn into_parts(self) -> (Vec<Diagnostic>, usize) {
        let further = self.further();
        (self.kept, further)
    }

    /// The kept errors and warnings, sorted by path.
    #[must_use]
    pub fn kept(&self) -> &[Diagnostic] {
        &self.kept
    }

    /// The number of errors and warnings that were counted but not kept.
    #[must_use]
    pub fn further(&self) -> usize {
        self.errors + self.warnings - self.kept.len()
    }
}

/// Writes the errors on one line.
impl fmt::Display for Diagnostics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let errors = self.kept.iter().filter(|diagnostic| diagnostic.severity == Severity::Error);
        for (index, diagnostic) in errors.enumerate() {
            write!(f, "{}{diagnostic}", if index == 0 { "" } else { "; " })?;
        }
        match self.errors.saturating_sub(Self::KEPT) {
            0 => Ok(()),
            further => write!(f, "; {further} further errors"),
        }
    }
}

impl Error for Diagnostics {}

/// Compares paths as strings, but their indexes as numbers: `links[2]` comes before `links[10]`.
fn by_path<'a>(a: &'a str, b: &'a str) -> Ordering {
    let is_bracket = |byte: &u8| matches!(byte, b'[' | b']');
    let same = a.bytes().zip(b.bytes()).take_while(|(a, b)| a == b).count();
    // Start of the first part in which the paths differ. A part that is an index is compared as a number.
    let begin = a.as_bytes()[..same].iter().rposition(is_bracket).map_or(0, |at| at + 1);
    let part = |path: &'a str| {
        let rest = &path[begin..];
        let part = &rest[..rest.bytes().position(|byte| is_bracket(&byte)).unwrap_or(rest.len())];
        (part.parse::<usize>().ok(), part)
    };
    part(a).cmp(&part(b)).then_with(|| a.cmp(b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hostile_value_is_printed_on_one_line_and_shortened() {
        let value = format!("a\nip=1.2.3.4 \"{}", "x".repeat(100));
        let diagnostic = Diagnostic::warning(FieldPath::Document.field("a b\n"), "invalid name", value, "a name");
        assert_eq!(
            diagnostic.to_string(),
            format!(r#""a b\n": invalid name "a\nip=1.2.3.4 \"{}…", expected a name"#, "x".repeat(50))
        );
    }

    #[test]
    fn a_value_of_64_characters_is_printed_whole() {
        let shown = |chars: usize| Diagnostic::warning("a", "b", "ä".repeat(chars), "c").value;
        assert_eq!(shown(64), Some("ä".repeat(64)));
        assert_eq!(shown(65), Some("ä".repeat(64) + "…"));
        let (x, y) = ("x".repeat(60), "y".repeat(5));
        let in_pieces = Diagnostic::warning("a", "b", format_args!("{x}{y}"), "c");
        assert_eq!(in_pieces.value, Some(x + "yyyy…"));
    }

    #[test]
    fn an_error_is_kept_after_any_number_of_warnings() {
        let mut diagnostics = Diagnostics::default();
        for _ in 0..=Diagnostics::KEPT {
            diagnostics.push(Diagnostic::warning("a", "b", "c", "d"));
        }
        assert_eq!(
            (diagnostics.has_errors(), diagnostics.kept().len(), diagnostics.further()),
            (false, Diagnostics::KEPT, 1)
        );
        let error = Diagnostic::without_value(Severity::Error, "b", "missing", "c");
        diagnostics.push(error.clone());
        assert_eq!((diagnostics.errors(), diagnostics.kept().last(), diagnostics.further()), (1, Some(&error), 1));
        for _ in 0..=Diagnostics::KEPT {
            diagnostics.push(error.clone());
        }
        assert_eq!(
            (diagnostics.errors(), diagnostics.kept().len(), diagnostics.further()),
            (258, 2 * Diagnostics::KEPT, 3)
        );
    }

    #[test]
    fn a_debug_message_is_neither_a_warning_nor_an_error() {
        let mut diagnostics = Diagnostics::default();
        let detail = Diagnostic::new(Severity::Debug, "a", "b", "c", "d");
        diagnostics.push(detail.clone());
        assert_eq!(diagnostics.details(), std::slice::from_ref(&detail));
        assert_eq!((diagnostics.has_errors(), diagnostics.kept().len(), diagnostics.further()), (false, 0, 0));
        for _ in 0..Diagnostics::KEPT {
            diagnostics.push(detail.clone());
        }
        assert_eq!((diagnostics.details().len(), diagnostics.further()), (Diagnostics::KEPT, 0));
    }

    #[test]
    fn diagnostics_are_sorted_by_path_and_equal_paths_keep_the_order_in_which_they_were_added() {
        let mut diagnostics = Diagnostics::default();
        let paths = ["networks[0]", "links[10]", "links[2].mtu", "links[2]", "document", "links[2].id", "links[2].id"];
        for (at, path) in paths.into_iter().enumerate() {
            diagnostics.push(Diagnostic::warning(path, "problem", at, "nothing"));
        }
        let order: Vec<String> = diagnostics.kept().iter().filter_map(|diagnostic| diagnostic.value.clone()).collect();
        assert_eq!(order, ["4", "3", "5", "6", "2", "1", "0"]);
    }
}
