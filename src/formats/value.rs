//! Parses a document into a tree of values. Limits bound the size, the number of values and the nesting, since the
//! author of the document may be hostile.
//!
//! The converters work on this tree instead of derived types: a derived parser stops at the first mismatch, but every
//! diagnostic must be reported.

mod json;
mod parse;
mod yaml;

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;

use serde::{Serialize, Serializer};

use crate::diagnostic::Diagnostic;

#[cfg(feature = "vsphere")]
pub(crate) use parse::parse_list;
pub(super) use parse::read;
#[cfg(feature = "host")]
pub use parse::{MAX_LIST_BYTES, parse_documents};
pub use parse::{parse, parse_strict};

/// Maximum size of a machine's document, in bytes.
pub const MAX_BYTES: usize = 1024 * 1024;
/// Maximum number of values in a machine's document: the document itself, and all values in its arrays and objects. In
/// YAML each key counts, too.
pub const MAX_VALUES: usize = 65_536;
/// Maximum nesting of arrays and objects, in levels.
pub const MAX_DEPTH: usize = 64;

/// One value of a document.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// `null`
    Null,
    /// `true` or `false`
    Bool(bool),
    /// A whole number that fits in 64 bits.
    Integer(i64),
    /// Any other number. No document uses such a number.
    Fraction(f64),
    /// A string.
    String(String),
    /// An array.
    Array(Vec<Value>),
    /// An object.
    Object(Object),
}

/// An object. Its members are in the document's order. If a name is repeated, the last member counts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Object(Vec<(String, Value)>);

/// A string or a whole number. Authors write `7` where the schema has `"7"`, and the reverse.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Scalar {
    /// A string, as in the document.
    Text(String),
    /// A whole number.
    Integer(i64),
}

/// The limits of a parser, and its rule for repeated keys.
#[derive(Clone, Copy)]
struct Rules {
    repeats: Repeats,
    /// Maximum size of a document, in bytes. A string that a YAML alias refers to counts at each use.
    bytes: usize,
    /// Maximum number of values in a document. The values that a YAML alias refers to count at each use.
    values: usize,
    /// Whether a YAML file may have several documents.
    has_several: bool,
    /// The meaning of YAML scalars without quotes.
    scalars: Scalars,
}

/// The limits for a document of a machine.
const MACHINE: Rules = Rules {
    repeats: Repeats::LastCounts,
    bytes: MAX_BYTES,
    values: MAX_VALUES,
    has_several: false,
    scalars: Scalars::CloudInit,
};

/// The program that defines the meaning of YAML scalars without quotes.
#[derive(Clone, Copy, Eq, PartialEq)]
enum Scalars {
    /// cloud-init, for documents of machines. Every key is a string.
    CloudInit,
    /// kubectl, for files with objects of a cluster.
    #[cfg(feature = "host")]
    Kubectl,
}

/// The rule for a key that an object already has.
#[derive(Clone, Copy, Eq, PartialEq)]
pub(super) enum Repeats {
    /// In YAML the first value counts. In JSON the last value counts.
    FirstCounts,
    /// The last value counts.
    LastCounts,
    /// The second key is an error, even with the same value.
    Refused,
}

/// A parsed document.
pub(super) struct Parsed {
    pub(super) value: Value,
    /// An error for each YAML key that is repeated with a different value.
    pub(super) repeats: Vec<Diagnostic>,
}

/// Description of a valid document that does not begin as JSON, for messages.
const EXPECTED: &str = "a JSON or YAML document";

const REPEATED: &str = "repeated key";

fn repeated_key(path: String, key: &str) -> Diagnostic {
    Diagnostic::error(path, REPEATED, key, "each key of a mapping once")
}

fn too_deep() -> Diagnostic {
    let (found, expected) = (format!("more than {MAX_DEPTH}"), format!("at most {MAX_DEPTH} levels"));
    Diagnostic::error("document", "nested too deep", found, &expected)
}

fn too_many_values(rules: Rules) -> Diagnostic {
    let (found, expected) = (format!("more than {}", rules.values), format!("at most {}", rules.values));
    Diagnostic::error("document", "too many values", found, &expected)
}

#[cfg(test)]
thread_local! {
    static VISITED: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// Upper bound for the number of members that lookups of this thread have compared.
#[cfg(test)]
pub(super) fn visited() -> usize {
    VISITED.get()
}

// === impl Object ===

impl Object {
    /// An object without members.
    pub(crate) const EMPTY: Self = Self(Vec::new());

    /// The value of the member with this name; the last value if the name is repeated.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Value> {
        #[cfg(test)]
        VISITED.set(VISITED.get() + self.0.len());
        self.0.iter().rev().find(|(key, _)| key == name).map(|(_, value)| value)
    }

    /// The object in the member with this name. `None` when the member is missing or has another type.
    #[cfg(feature = "host")]
    pub(crate) fn object(&self, name: &str) -> Option<&Self> {
        match self.get(name)? {
            Value::Object(object) => Some(object),
            _ => None,
        }
    }

    /// Every member once, in the document's order. Of several members with one name, only the last is returned.
    #[must_use]
    pub fn members(&self) -> Vec<(&str, &Value)> {
        let mut seen = BTreeSet::new();
        // Iterates backwards, so that the last of several members with one name is kept.
        let lasts = self.0.iter().rev().filter(|(name, _)| seen.insert(name.as_str()));
        let mut members: Vec<(&str, &Value)> = lasts.map(|(name, value)| (name.as_str(), value)).collect();
        members.reverse();
        members
    }

    /// The value of the member with this name, as a mutable reference.
    pub fn get_mut(&mut self, name: &str) -> Option<&mut Value> {
        self.0.iter_mut().rev().find(|(key, _)| key == name).map(|(_, value)| value)
    }

    /// Replaces the member with this name, or appends a new member.
    pub fn insert(&mut self, name: &str, value: Value) {
        match self.get_mut(name) {
            Some(member) => *member = value,
            None => self.0.push((name.to_owned(), value)),
        }
    }

    /// Whether the object has no member.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Writes every member once, in the document's order.
impl Serialize for Object {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.members())
    }
}

impl FromIterator<(String, Value)> for Object {
    fn from_iter<T: IntoIterator<Item = (String, Value)>>(members: T) -> Self {
        Self(members.into_iter().collect())
    }
}

// === impl Parsed ===

impl From<Value> for Parsed {
    fn from(value: Value) -> Self {
        Self { value, repeats: Vec::new() }
    }
}

// === impl Value ===

impl Value {
    /// A whole number if the fraction is zero and the number is at most 2^53, else a fraction. Some programs write 1500
    /// as `1500.0`.
    fn number(number: f64) -> Self {
        // Up to 2^53 a float represents every whole number exactly.
        let is_whole = number.fract() == 0.0 && number.abs() <= 9_007_199_254_740_992.0;
        if is_whole { Self::Integer(number as i64) } else { Self::Fraction(number) }
    }

    /// The type of the value, for messages.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Bool(_) => "a boolean",
            Self::Integer(_) | Self::Fraction(_) => "a number",
            Self::String(_) => "a string",
            Self::Array(_) => "an array",
            Self::Object(_) => "an object",
        }
    }
}

/// Writes the value as it was parsed.
impl Serialize for Value {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Null => serializer.serialize_unit(),
            Self::Bool(value) => serializer.serialize_bool(*value),
            Self::Integer(value) => serializer.serialize_i64(*value),
            Self::Fraction(value) => serializer.serialize_f64(*value),
            Self::String(value) => serializer.serialize_str(value),
            Self::Array(elements) => serializer.collect_seq(elements),
            Self::Object(object) => object.serialize(serializer),
        }
    }
}

impl fmt::Display for Value {
    /// Writes a scalar as in the document, and only the type of an array or an object. The members of an array or
    /// object in a document of a machine may include a password, as in `wifis`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bool(value) => value.fmt(f),
            Self::Integer(value) => value.fmt(f),
            Self::Fraction(value) => value.fmt(f),
            Self::String(value) => f.write_str(value),
            Self::Null | Self::Array(_) | Self::Object(_) => f.write_str(self.kind()),
        }
    }
}

/// Prints a value with all members of its arrays and objects. This type is only for documents without secrets, such as
/// pools.
#[cfg(feature = "host")]
pub(crate) struct Whole<'v>(pub(crate) &'v Value);

#[cfg(feature = "host")]
impl fmt::Display for Whole<'_> {
    /// Writes an array or an object in the flow style of YAML, with no quotes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Value::Array(elements) => {
                f.write_str("[")?;
                for (at, element) in elements.iter().enumerate() {
                    write!(f, "{}{}", if at == 0 { "" } else { ", " }, Whole(element))?;
                }
                f.write_str("]")
            }
            Value::Object(Object(members)) => {
                f.write_str("{")?;
                for (at, (name, member)) in members.iter().enumerate() {
                    write!(f, "{}{name}: {}", if at == 0 { "" } else { ", " }, Whole(member))?;
                }
                f.write_str("}")
            }
            scalar => scalar.fmt(f),
        }
    }
}

// === impl Scalar ===

impl Scalar {
    /// A value as a string or a number. `null` is `None`. Any other type becomes a string with blanks. No field accepts
    /// such a string, so the check of the field reports the path, the value and the expected value.
    pub(crate) fn of(value: &Value) -> Option<Self> {
        match value {
            Value::Null => None,
            Value::Integer(number) => Some(Self::Integer(*number)),
            Value::String(text) => Some(Self::Text(text.clone())),
            other => Some(Self::Text(match other {
                Value::Array(_) | Value::Object(_) => other.kind().to_owned(),
                scalar => format!("{scalar} ({})", scalar.kind()),
            })),
        }
    }

    /// The scalar as a string: the same for `7` and `"7"`.
    #[must_use]
    pub fn text(&self) -> Cow<'_, str> {
        match self {
            Self::Text(text) => Cow::Borrowed(text),
            Self::Integer(number) => Cow::Owned(number.to_string()),
        }
    }

    /// The scalar as an integer: the same for `7` and `"7"`. `None`: the scalar is a string that is not an `i64`.
    #[must_use]
    pub fn integer(&self) -> Option<i64> {
        match self {
            Self::Integer(number) => Some(*number),
            Self::Text(text) => text.parse().ok(),
        }
    }
}

impl fmt::Display for Scalar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => f.write_str(text),
            Self::Integer(number) => number.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diagnostic::Diagnostics;

    fn parse(document: &[u8]) -> Result<Value, Diagnostic> {
        super::parse(document, &mut Diagnostics::default())
    }

    fn refusal(document: &[u8]) -> String {
        parse(document).unwrap_err().to_string()
    }

    /// Parses a document. Returns the warnings, and the result of the parser.
    fn tolerated(document: &str) -> (Vec<String>, Result<Value, Diagnostic>) {
        let mut diagnostics = Diagnostics::default();
        let value = super::parse(document.as_bytes(), &mut diagnostics);
        (diagnostics.kept().iter().map(ToString::to_string).collect(), value)
    }

    #[test]
    fn of_repeated_members_the_last_is_used() {
        let Value::Object(object) = parse(br#"{"a": 1, "b": 2, "a": 3}"#).unwrap() else { panic!() };
        assert_eq!(object.get("a"), Some(&Value::Integer(3)));
        assert_eq!(object.members(), [("b", &Value::Integer(2)), ("a", &Value::Integer(3))]);
    }

    #[test]
    fn a_strict_parser_rejects_a_repeated_key_with_its_position() {
        let refusal = |document: &str| parse_strict(document.as_bytes()).map_err(|diagnostic| diagnostic.to_string());
        let repeated = |path: &str| Err(format!(r#"{path}: repeated key "a", expected each key of a mapping once"#));
        assert_eq!(refusal("{\"a\": 1,\n \"b\": {\"a\": 2, \"a\": 2}}"), repeated("line 2 column 18"));
        assert_eq!(refusal("b: 1\na: 2\na: 2\n"), repeated("line 3 column 1"));
        // This document begins as JSON does, but is YAML.
        assert_eq!(refusal("{a: 1, a: 1,}"), repeated("line 1 column 8"));
        let merged = parse_strict(b"x: &x {a: 1}\ny: {a: 2, <<: *x}\n").unwrap();
        assert_eq!(merged, parse(br#"{"x": {"a": 1}, "y": {"a": 1, "a": 2}}"#).unwrap());
    }

    #[test]
    fn a_document_is_written_as_it_was_read() {
        let document = b"b: [1, yes, ~, {x: '1'}]\na: -7\nc: [1, yes, ~, {x: '1'}]\n";
        let Value::Object(mut object) = parse(document).unwrap() else { panic!() };
        let write = |object: &Object| serde_json::to_string(object).map_err(|error| error.to_string());
        assert_eq!(
            write(&object),
            Ok(r#"{"b":[1,true,null,{"x":"1"}],"a":-7,"c":[1,true,null,{"x":"1"}]}"#.to_owned())
        );
        object.insert("b", Value::Null);
        object.insert("c", Value::Object(Object::default()));
        object.insert("d", Value::Bool(false));
        assert_eq!(write(&object), Ok(r#"{"b":null,"a":-7,"c":{},"d":false}"#.to_owned()));
        object.insert("a", Value::Fraction(0.5));
        assert_eq!(write(&object), Ok(r#"{"b":null,"a":0.5,"c":{},"d":false}"#.to_owned()));
    }

    #[test]
    fn broken_json_is_reported_with_line_and_column() {
        assert_eq!(
            refusal(b"{\n  \"links\": [1}\n}"),
            r#"line 2 column 14: not readable as JSON "expected `,` or `]`", expected JSON, since the document begins with a brace or a bracket"#
        );
    }

    #[test]
    fn a_mistake_in_the_flow_style_of_yaml_is_reported_as_a_yaml_error() {
        let unclosed = "not readable as YAML \"while parsing a flow sequence, expected ',' or ']'\", expected a JSON or YAML document";
        let refusal = |document: &[u8]| parse_strict(document).unwrap_err().to_string();
        assert_eq!(refusal(b"{name: workers, addresses: [10.0.0.0/24}"), format!("line 1 column 40: {unclosed}"));
        assert_eq!(refusal(b"[workers, 10.0.0.5: 1, b: }"), format!("line 2 column 1: {unclosed}"));
    }

    #[cfg(feature = "host")]
    #[test]
    fn a_list_of_60000_objects_is_accepted_and_a_file_over_64_mib_is_refused() {
        let list = format!("[{}]", vec!["{\"kind\": \"NodePool\"}"; 60_000].join(","));
        assert_eq!(parse_documents(list.as_bytes()).map(|values| values[0].kind()), Ok("an array"));
        assert_eq!(
            parse_documents(&vec![b' '; MAX_LIST_BYTES + 1]).unwrap_err().to_string(),
            r#"document: too many bytes "67108865", expected at most 67108864"#
        );
    }

    #[cfg(feature = "host")]
    #[test]
    fn every_document_of_a_file_is_read() {
        let documents = |file: &str| parse_documents(file.as_bytes()).map_err(|diagnostic| diagnostic.to_string());
        let object = |text: &str| parse(text.as_bytes()).unwrap();
        let both = Ok(vec![object("a: 1"), object("a: 2")]);
        assert_eq!(documents("a: 1\n---\na: 2\n"), both);
        assert_eq!(documents("---\na: 1\n...\n---\na: 2\n..."), both);
        assert_eq!(documents("{a: 1}\n---\n{a: 2}\n"), both);
        assert_eq!(documents(r#"{"a": 1}"#), Ok(vec![object("a: 1")]));
        assert_eq!(documents("# nothing\n"), Ok(vec![]));
        assert_eq!(documents("a: 1\n---\n# nothing\n---\na: 2"), Ok(vec![object("a: 1"), Value::Null, object("a: 2")]));
        let repeated = r#"line 4 column 1: repeated key "a", expected each key of a mapping once"#;
        assert_eq!(documents("a: 1\n---\na: 2\na: 3\n"), Err(repeated.to_owned()));
    }

    #[cfg(feature = "host")]
    #[test]
    fn an_alias_cannot_refer_to_another_document_of_the_file() {
        let alias = parse_documents(b"a: &a 1\n---\nb: *a\n").unwrap_err();
        assert_eq!(alias.to_string(), r#"line 3 column 4: unknown alias "1", expected a value that is complete"#);
    }

    #[cfg(feature = "host")]
    #[test]
    fn the_limits_apply_to_all_documents_of_a_file_together() {
        let rules = |bytes: usize, values: usize| {
            let rules = Rules { bytes, values, ..parse::CLUSTER };
            yaml::parse_all(b"aa: 11\n---\nbb: 22\n", rules).map(drop).map_err(|diagnostic| diagnostic.to_string())
        };
        // Each document is an object with a key and a value.
        assert_eq!(rules(8, 6), Ok(()));
        assert_eq!(rules(8, 5), Err(r#"document: too many values "more than 5", expected at most 5"#.to_owned()));
        let bytes =
            r#"document: too many bytes in strings, each alias counted "more than 7", expected at most 7 bytes"#;
        assert_eq!(rules(7, 6), Err(bytes.to_owned()));
    }

    #[test]
    fn a_trailing_comma_is_ignored_with_a_warning() {
        let comma = |path: &str| format!(r#"{path}: trailing comma ",", expected no comma before a closing bracket"#);
        assert_eq!(
            tolerated("{\"a\": [1,], \"b\": \",]\",\n}"),
            (vec![comma("line 1 column 22"), comma("line 1 column 9")], parse(br#"{"a": [1], "b": ",]"}"#))
        );
    }

    #[test]
    fn a_comment_on_its_own_line_is_ignored_with_a_warning() {
        let comment = |line: u32, column: u32, text: &str| {
            format!("line {line} column {column}: comment {text:?}, expected JSON, which has no comments")
        };
        assert_eq!(
            tolerated("# a template\n{\"a\":\n  // one, two]\n 1\n}\n"),
            (vec![comment(1, 1, "# a template"), comment(3, 3, "// one, two]")], parse(br#"{"a": 1}"#))
        );
    }

    #[test]
    fn json_with_a_mistake_is_not_read_as_yaml() {
        for (document, path, problem) in [
            ("{a: 1}", "line 1 column 2", "key must be a string"),
            ("# a: b\n{'a': 1}", "line 2 column 2", "key must be a string"),
            ("{\"a\": 1 # one\n}", "line 1 column 9", "expected `,` or `}`"),
            ("{\"a\": 1, <-- one\n}", "line 1 column 10", "key must be a string"),
            ("{\"a\": [,]}", "line 1 column 8", "expected value"),
            ("{\"a\": [1,,]}", "line 1 column 10", "expected value"),
            ("{\"a\",: 1}", "line 1 column 5", "expected `:`"),
            ("{,}", "line 1 column 2", "key must be a string"),
        ] {
            let expected = format!(
                "{path}: not readable as JSON {problem:?}, expected JSON, since the document begins with a brace or a bracket"
            );
            assert_eq!(refusal(document.as_bytes()), expected, "{document}");
        }
    }

    #[test]
    fn invalid_utf_8_in_json_is_reported_with_line_and_column() {
        assert_eq!(
            refusal(b"{\"a\": \"\xff\"}"),
            r#"line 1 column 8: not readable as JSON "invalid unicode code point", expected JSON, since the document begins with a brace or a bracket"#
        );
    }

    #[test]
    fn a_nul_byte_after_a_json_document_is_reported_with_line_and_column() {
        assert_eq!(
            refusal(b"{}\0"),
            r#"line 1 column 3: not readable as JSON "trailing characters", expected JSON, since the document begins with a brace or a bracket"#
        );
    }

    #[test]
    fn the_nesting_of_a_document_is_limited_to_64_levels() {
        let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        assert_eq!(parse(nested(MAX_DEPTH - 1).as_bytes()).map(|value| value.kind()), Ok("an array"));
        assert_eq!(
            refusal(nested(MAX_DEPTH).as_bytes()),
            r#"document: nested too deep "more than 64", expected at most 64 levels"#
        );
        assert_eq!(
            refusal(nested(300).as_bytes()),
            r#"document: nested too deep "more than 64", expected at most 64 levels"#
        );
    }

    #[test]
    fn the_number_of_values_in_a_document_is_limited() {
        let array = |elements: usize| format!("[{}]", vec!["1"; elements].join(","));
        assert_eq!(parse(array(MAX_VALUES - 1).as_bytes()).map(|value| value.kind()), Ok("an array"));
        assert_eq!(
            refusal(array(MAX_VALUES).as_bytes()),
            r#"document: too many values "more than 65536", expected at most 65536"#
        );
    }

    #[test]
    fn the_size_of_a_document_of_a_machine_is_limited_to_1_mib() {
        assert_eq!(
            refusal(&vec![b' '; MAX_BYTES + 1]),
            r#"document: too many bytes "1048577", expected at most 1048576"#
        );
    }
}
