//! Parses YAML into the same tree as JSON, with the same limits.
//!
//! In a file with objects of a cluster, plain scalars mean the same as in kubectl ([`mod@kubectl`]). In a document of a
//! machine, they mean the same as in PyYAML, the parser of cloud-init (YAML 1.1: `yes` and `on` are booleans). Two kinds of
//! scalars of such a document are strings instead, as their authors meant them:
//!
//! - words that are numbers only in some versions of YAML: `52:54:00:12:34:56` (to base 60), `0777` and `1e3`
//! - fractions such as `1.10`, because no document uses fractions

#[cfg(feature = "host")]
mod kubectl;

use std::collections::BTreeMap;
use std::net::Ipv6Addr;

use saphyr_parser::{Event, Marker, Parser, ScalarStyle, Span, Tag};

use super::{MAX_DEPTH, Object, Parsed, Repeats, Rules, Scalars, Value};
use crate::diagnostic::Diagnostic;

/// Parses a YAML document.
///
/// # Errors
///
/// One diagnostic: the document is not YAML (the path is then `line L column C`), or it exceeds a limit. Examples
/// of further errors: several documents in one file, a key that is not a scalar, a key with a blank, line break, quote,
/// comma, bracket or brace, and a repeated key if [`Repeats::Refused`] applies.
pub(super) fn parse(document: &[u8], rules: Rules) -> Result<Parsed, Diagnostic> {
    let Composer { document, repeated: repeats, .. } = compose(document, Rules { has_several: false, ..rules })?;
    Ok(Parsed { value: document.unwrap_or(Value::Null), repeats })
}

/// Parses each document of a YAML file. A file without a document gives no value.
///
/// # Errors
///
/// The errors of [`parse`]; several documents are an error only if the rules do not allow them.
pub(super) fn parse_all(file: &[u8], rules: Rules) -> Result<Vec<Value>, Diagnostic> {
    let Composer { mut earlier, document, .. } = compose(file, rules)?;
    earlier.extend(document);
    Ok(earlier)
}

fn compose(document: &[u8], rules: Rules) -> Result<Composer, Diagnostic> {
    let document = std::str::from_utf8(document).map_err(|e| {
        let before = String::from_utf8_lossy(document.get(..e.valid_up_to()).unwrap_or_default());
        Diagnostic::error(path_after(&before), "not readable as YAML", "invalid UTF-8", super::EXPECTED)
    })?;
    // The parser treats NUL as the end of the document. The rest would be lost silently.
    let control = |c: char| c.is_control() && !matches!(c, '\t' | '\n' | '\r' | '\u{85}');
    // Each control character begins with one of these bytes. Most documents contain none of them.
    let suspect = |byte: u8| matches!(byte, 0..=8 | 11 | 12 | 14..=31 | 0x7f | 0xc2);
    let from = document.bytes().position(suspect).unwrap_or(document.len());
    if let Some((at, found)) = document[from..].char_indices().find(|(_, c)| control(*c)) {
        let at = from + at;
        let expected = "a document without control characters";
        return Err(Diagnostic::error(path_after(&document[..at]), "control character", found, expected));
    }
    let (values, bytes, open, anchors) = (rules.values, rules.bytes, Vec::new(), BTreeMap::new());
    let (earlier, repeated) = (Vec::new(), Vec::new());
    let mut composer = Composer { open, anchors, earlier, document: None, values, bytes, rules, repeated };
    for event in Parser::new_from_str(document) {
        let (event, at) = event.map_err(|e| {
            let here = path(*e.marker());
            match address_with_a_final_colon(document, e.marker().line()) {
                Some(address) => without_quotes(here, address),
                None => Diagnostic::error(here, "not readable as YAML", e.info(), super::EXPECTED),
            }
        })?;
        composer.take(event, at)?;
    }
    Ok(composer)
}

/// On a line, the first word that is an IPv6 address and ends with a colon. YAML reads this colon as the end of a key.
fn address_with_a_final_colon(document: &str, line: usize) -> Option<&str> {
    let line = document.lines().nth(line.checked_sub(1)?)?;
    let mut words = line.split([' ', ',', '{', '}', '[', ']']);
    words.find(|word| word.ends_with(':') && word.parse::<Ipv6Addr>().is_ok())
}

fn without_quotes(path: String, address: &str) -> Diagnostic {
    Diagnostic::error(path, "address without quotes", address, "quotes around an address that ends with a colon")
}

fn path(at: Marker) -> String {
    format!("line {} column {}", at.line(), at.col() + 1)
}

fn path_after(before: &str) -> String {
    let line = before.matches('\n').count() + 1;
    let column = before.chars().rev().take_while(|c| *c != '\n').count() + 1;
    format!("line {line} column {column}")
}

/// Composes a value from the events of the parser.
struct Composer {
    /// The collections that have begun but not ended, outermost first.
    open: Vec<Collection>,
    /// Complete values by anchor, for aliases.
    anchors: BTreeMap<usize, Value>,
    /// The earlier documents of the file.
    earlier: Vec<Value>,
    document: Option<Value>,
    /// The number of further values that the limit permits. The values that an alias refers to count at each use.
    values: usize,
    /// The number of further bytes of strings that the limit permits. A string that an alias refers to counts at each
    /// use.
    bytes: usize,
    rules: Rules,
    /// An error for each key that is repeated with a different value.
    repeated: Vec<Diagnostic>,
}

struct Collection {
    anchor: usize,
    kind: CollectionKind,
}

enum CollectionKind {
    Array(Vec<Value>),
    /// An object under construction: `key` is the key whose value comes next, with its position. `keys` has the index
    /// of each key in `members`. `merged` has the members from `<<`; the object's own members override them.
    Object {
        merged: Vec<(String, Value)>,
        members: Vec<(String, Value)>,
        keys: BTreeMap<String, usize>,
        key: Option<(String, Marker)>,
    },
}

/// The size of a value, for the limits.
struct Size {
    values: usize,
    bytes: usize,
    /// The number of levels of collections: 0 for a scalar, 2 for `[[], []]`.
    depth: usize,
}

/// Characters that no valid key contains. A key contains one of them when a colon, a comma, a quote or a bracket is
/// missing.
const NOT_IN_KEYS: [char; 11] = [' ', '\t', '\r', '\n', '"', '\'', ',', '[', ']', '{', '}'];

const KEY_EXPECTED: &str = "a key without blanks, quotes, commas, brackets and line breaks";

/// The key of YAML 1.1 that merges other mappings into a mapping.
const MERGE: &str = "<<";

// === impl Composer ===

impl Composer {
    fn take(&mut self, event: Event<'_>, at: Span) -> Result<(), Diagnostic> {
        match event {
            Event::Nothing | Event::StreamStart | Event::StreamEnd | Event::DocumentEnd => Ok(()),
            Event::DocumentStart(_) if self.document.is_some() && !self.rules.has_several => {
                Err(Diagnostic::error(path(at.start), "second document", "---", "one document"))
            }
            Event::DocumentStart(_) => {
                self.earlier.extend(self.document.take());
                self.anchors.clear();
                Ok(())
            }
            Event::SequenceStart(anchor, tag) => {
                self.check_tag(tag.as_deref(), "seq", at)?;
                self.begin(anchor, CollectionKind::Array(Vec::new()))
            }
            Event::MappingStart(anchor, tag) => {
                self.check_tag(tag.as_deref(), "map", at)?;
                let (merged, members, keys) = (Vec::new(), Vec::new(), BTreeMap::new());
                self.begin(anchor, CollectionKind::Object { merged, members, keys, key: None })
            }
            Event::SequenceEnd | Event::MappingEnd => {
                let Some(Collection { anchor, kind }) = self.open.pop() else { return Ok(()) };
                self.complete(kind.into(), anchor, at)
            }
            Event::Scalar(text, style, anchor, tag) => {
                // In a mapping in flow style, a key without a colon gives an empty value whose position has a width.
                // Every other empty value has no width.
                let is_missing = text.is_empty() && style == ScalarStyle::Plain && anchor == 0 && tag.is_none();
                if let Some(key) = self.waiting_key().filter(|_| is_missing && at.start.index() < at.end.index()) {
                    let expected = "a colon and a value after each key";
                    return Err(Diagnostic::error(path(at.start), "key without a value", key, expected));
                }
                self.check_tag(tag.as_deref(), "str", at)?;
                let is_text = style != ScalarStyle::Plain || tag.is_some_and(|tag| tag.suffix == "str");
                #[cfg(feature = "host")]
                self.check_key(&text, is_text, at)?;
                self.pay(Size { values: 1, bytes: text.len(), depth: 0 })?;
                let value = match self.rules.scalars {
                    _ if is_text => Value::String(text.into_owned()),
                    // Every plain key is a string.
                    Scalars::CloudInit if self.takes_key() => Value::String(text.into_owned()),
                    Scalars::CloudInit => scalar(&text),
                    #[cfg(feature = "host")]
                    Scalars::Kubectl => match kubectl::scalar(&text) {
                        None => {
                            let expected = "a finite number, or quotes around a string";
                            return Err(Diagnostic::error(path(at.start), "not in JSON", text, expected));
                        }
                        Some(Value::Null) if self.takes_key() => {
                            let expected = "a string as the key of a mapping";
                            return Err(Diagnostic::error(path(at.start), "invalid key", text, expected));
                        }
                        // A boolean or a number becomes the string that JSON has for it.
                        Some(value) if self.takes_key() => Value::String(value.to_string()),
                        Some(value) => value,
                    },
                };
                self.complete(value, anchor, at)
            }
            Event::Alias(anchor) => {
                let Some(value) = self.anchors.get(&anchor) else {
                    // This error also occurs if an alias is inside the value that the alias refers to.
                    return Err(Diagnostic::error(path(at.start), "unknown alias", anchor, "a value that is complete"));
                };
                let size = Size::of(value);
                let value = value.clone();
                self.pay(size)?;
                self.complete(value, 0, at)
            }
        }
    }

    /// Refuses a tag in a file with objects of a cluster, because kubectl may read the value in another way. Exceptions
    /// are `!!map` on a mapping, `!!seq` on a list and `!!str` on a scalar.
    fn check_tag(&self, tag: Option<&Tag>, known: &str, at: Span) -> Result<(), Diagnostic> {
        let is_of_objects = !matches!(self.rules.scalars, Scalars::CloudInit);
        match tag.filter(|tag| is_of_objects && !(tag.is_yaml_core_schema() && tag.suffix == known)) {
            None => Ok(()),
            Some(tag) => {
                let expected = format!("no tag, or !!{known}");
                Err(Diagnostic::error(path(at.start), "unknown tag", format!("!{}", tag.suffix), &expected))
            }
        }
    }

    /// Refuses a key that kubectl reads in another way. kubectl spells numbers with a fraction or an exponent
    /// differently, and merges only a `<<` without quotes.
    #[cfg(feature = "host")]
    fn check_key(&self, text: &str, is_text: bool, at: Span) -> Result<(), Diagnostic> {
        if !matches!(self.rules.scalars, Scalars::Kubectl) || !self.takes_key() {
            return Ok(());
        }
        let expected = match is_text {
            true if text == MERGE => "<< without quotes",
            false if kubectl::is_float(text) => "quotes around a number with a fraction or an exponent",
            _ => return Ok(()),
        };
        Err(Diagnostic::error(path(at.start), "invalid key", text, expected))
    }

    fn begin(&mut self, anchor: usize, kind: CollectionKind) -> Result<(), Diagnostic> {
        self.pay(Size { values: 1, bytes: 0, depth: 1 })?;
        self.open.push(Collection { anchor, kind });
        Ok(())
    }

    fn takes_key(&self) -> bool {
        matches!(self.open.last(), Some(Collection { kind: CollectionKind::Object { key: None, .. }, .. }))
    }

    /// The key whose value comes next.
    fn waiting_key(&self) -> Option<&str> {
        match &self.open.last()?.kind {
            CollectionKind::Object { key: Some((key, _)), .. } => Some(key),
            _ => None,
        }
    }

    /// Adds a complete value to the collection that contains it. The value has already been counted against the limits.
    fn complete(&mut self, value: Value, anchor: usize, at: Span) -> Result<(), Diagnostic> {
        if anchor != 0 {
            self.pay(Size { depth: 0, ..Size::of(&value) })?;
            self.anchors.insert(anchor, value.clone());
        }
        match self.open.last_mut().map(|collection| &mut collection.kind) {
            None => self.document = Some(value),
            Some(CollectionKind::Array(elements)) => elements.push(value),
            Some(CollectionKind::Object { merged, members, keys, key }) => match (key.take(), value) {
                // Without this check, a mapping in flow style with a missing comma or quote would silently have other
                // keys.
                (None, Value::String(text)) if text.contains(NOT_IN_KEYS) => {
                    return Err(Diagnostic::error(path(at.start), "invalid key", text, KEY_EXPECTED));
                }
                (None, Value::String(text)) if format!("{text}:").parse::<Ipv6Addr>().is_ok() => {
                    return Err(without_quotes(path(at.start), &format!("{text}:")));
                }
                (None, Value::String(text)) => *key = Some((text, at.start)),
                (None, other) => {
                    let expected = "a string as the key of a mapping";
                    return Err(Diagnostic::error(path(at.start), "invalid key", other, expected));
                }
                (Some((key, here)), value) if key == MERGE => {
                    if !matches!(self.rules.scalars, Scalars::CloudInit) {
                        check_merge(&value, keys, path(here))?;
                    }
                    merge(value, merged);
                }
                (Some((key, here)), value) => match keys.get(&key).and_then(|at| members.get_mut(*at)) {
                    Some(_) if self.rules.repeats == Repeats::Refused => {
                        return Err(super::repeated_key(path(here), &key));
                    }
                    // A repeated key with the same value needs no diagnostic: nothing is lost.
                    Some((_, first)) if *first == value => {}
                    Some((_, first)) => {
                        self.repeated.push(super::repeated_key(path(here), &key));
                        if self.rules.repeats == Repeats::LastCounts {
                            *first = value;
                        }
                    }
                    None => {
                        keys.insert(key.clone(), members.len());
                        members.push((key, value));
                    }
                },
            },
        }
        Ok(())
    }

    fn pay(&mut self, size: Size) -> Result<(), Diagnostic> {
        if self.open.len() + size.depth >= MAX_DEPTH {
            return Err(super::too_deep());
        }
        let Some(values) = self.values.checked_sub(size.values) else { return Err(super::too_many_values(self.rules)) };
        let Some(bytes) = self.bytes.checked_sub(size.bytes) else {
            let (found, expected) =
                (format!("more than {}", self.rules.bytes), format!("at most {} bytes", self.rules.bytes));
            return Err(Diagnostic::error(
                "document",
                "too many bytes in strings, each alias counted",
                found,
                &expected,
            ));
        };
        (self.values, self.bytes) = (values, bytes);
        Ok(())
    }
}

/// Refuses a merge that kubectl reads in another way: kubectl lets a merged member replace a member of the same key
/// before `<<`.
fn check_merge(value: &Value, own: &BTreeMap<String, usize>, path: String) -> Result<(), Diagnostic> {
    let mappings = match value {
        Value::Array(mappings) => mappings.as_slice(),
        other => std::slice::from_ref(other),
    };
    for mapping in mappings {
        let Value::Object(Object(members)) = mapping else {
            return Err(Diagnostic::error(path, "invalid merge", mapping, "a mapping, or a list of mappings"));
        };
        if let Some((key, _)) = members.iter().find(|(key, _)| own.contains_key(key)) {
            let expected = "<< first: kubectl lets a merged key replace a key that stands before <<";
            return Err(Diagnostic::error(path, "key before the merge", key, expected));
        }
    }
    Ok(())
}

/// Merges the mappings under `<<`. If several mappings have the same member, the first mapping counts. A value under
/// `<<` that is not a mapping is ignored.
fn merge(value: Value, into: &mut Vec<(String, Value)>) {
    let mappings = match value {
        Value::Array(mappings) => mappings,
        other => vec![other],
    };
    for mapping in mappings.into_iter().rev() {
        if let Value::Object(Object(members)) = mapping {
            into.extend(members);
        }
    }
}

// === impl Size ===

impl Size {
    fn of(value: &Value) -> Self {
        let add = |sum: Self, more: Self| Self {
            values: sum.values + more.values,
            bytes: sum.bytes + more.bytes,
            depth: sum.depth.max(more.depth + 1),
        };
        let empty = Self { values: 1, bytes: 0, depth: 1 };
        match value {
            Value::Array(elements) => elements.iter().map(Self::of).fold(empty, add),
            Value::Object(Object(members)) => members.iter().fold(empty, |sum, (key, value)| {
                let member = Self::of(value);
                add(sum, Self { bytes: member.bytes + key.len(), ..member })
            }),
            Value::String(text) => Self { values: 1, bytes: text.len(), depth: 0 },
            _ => Self { values: 1, bytes: 0, depth: 0 },
        }
    }
}

/// The value of a plain scalar in a document of a machine.
fn scalar(text: &str) -> Value {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => Value::Null,
        "true" | "True" | "TRUE" | "yes" | "Yes" | "YES" | "on" | "On" | "ON" => Value::Bool(true),
        "false" | "False" | "FALSE" | "no" | "No" | "NO" | "off" | "Off" | "OFF" => Value::Bool(false),
        _ => {
            // `1500.0` is 1500, as in JSON.
            let is_whole = |fraction: &str| !fraction.is_empty() && fraction.bytes().all(|b| b == b'0');
            let whole =
                text.split_once('.').filter(|(_, fraction)| is_whole(fraction)).map_or(text, |(whole, _)| whole);
            let digits = whole.strip_prefix('-').unwrap_or(whole);
            let is_decimal = digits.bytes().all(|b| b.is_ascii_digit()) && (digits == "0" || !digits.starts_with('0'));
            let number = whole.parse().ok().filter(|_| is_decimal);
            number.map_or_else(|| Value::String(text.to_owned()), Value::Integer)
        }
    }
}

// === impl From<CollectionKind> for Value ===

impl From<CollectionKind> for Value {
    fn from(kind: CollectionKind) -> Self {
        match kind {
            CollectionKind::Array(elements) => Self::Array(elements),
            CollectionKind::Object { mut merged, members, .. } => {
                merged.extend(members);
                Self::Object(Object(merged))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diagnostic::Diagnostics;

    fn read(document: &[u8]) -> Result<Value, Diagnostic> {
        parse(document, super::super::MACHINE).map(|parsed| parsed.value)
    }

    fn refusal(document: &str) -> String {
        read(document.as_bytes()).unwrap_err().to_string()
    }

    macro_rules! means {
        ($($name:ident: $yaml:expr => $json:expr;)*) => {
            $(#[test] fn $name() {
                assert_eq!(read($yaml.as_bytes()), super::super::parse($json.as_bytes(), &mut Diagnostics::default()));
             })*
        };
    }

    means! {
        words_for_booleans_and_null_are_read_as_in_yaml_1_1: "a: yes\nb: Off\nc: ~\nd:\ne: 'no'\nf: \"1\"\n"
            => r#"{"a": true, "b": false, "c": null, "d": null, "e": "no", "f": "1"}"#;
        only_decimal_whole_numbers_are_read_as_numbers: "[0, 24, -1, 024, 0x1f, 1_000, 1e3, 1.10, +5]"
            => r#"[0, 24, -1, "024", "0x1f", "1_000", "1e3", "1.10", "+5"]"#;
        a_number_with_a_fraction_of_zero_is_a_whole_number: "[1500.0, -1.00, 0.0, 10.0.0, 01.0, 1., .0, -.0]"
            => r#"[1500.0, -1.00, 0.0, "10.0.0", "01.0", "1.", ".0", "-.0"]"#;
        a_mac_address_of_digits_is_a_string: "mac: 52:54:00:12:34:56" => r#"{"mac": "52:54:00:12:34:56"}"#;
        keys_are_strings: "on: 1\n7: 2\n" => r#"{"on": 1, "7": 2}"#;
        a_json_document_is_valid_yaml: r#"{"a": [1, "b", null, {"c": true}]}"#
            => r#"{"a": [1, "b", null, {"c": true}]}"#;
        carriage_returns_at_the_ends_of_lines_are_ignored: "a: b\r\nc: d\r\n" => r#"{"a": "b", "c": "d"}"#;
        a_block_string_keeps_its_line_breaks: "a: |\n  one\n  two\n" => r#"{"a": "one\ntwo\n"}"#;
        an_alias_has_the_value_of_its_anchor: "a: &x {b: 1}\nc: *x\n" => r#"{"a": {"b": 1}, "c": {"b": 1}}"#;
        members_of_a_mapping_itself_override_merged_members: "a: &x {b: 1, c: 2}\nd:\n  c: 3\n  <<: *x\n"
            => r#"{"a": {"b": 1, "c": 2}, "d": {"b": 1, "c": 2, "c": 3}}"#;
        of_several_merged_mappings_the_first_counts: "a: &x {b: 1}\nc: &y {b: 2}\nd: {<<: [*x, *y]}\n"
            => r#"{"a": {"b": 1}, "c": {"b": 2}, "d": {"b": 2, "b": 1}}"#;
        a_repeated_key_with_the_same_value_is_accepted: "a: {b: 1}\nc: 2\na: {b: 1}\n" => r#"{"a": {"b": 1}, "c": 2}"#;
        the_tag_str_makes_a_number_a_string: "a: !!str 12" => r#"{"a": "12"}"#;
        a_document_of_comments_is_null: "# only words\n---\n" => "null";
        a_document_may_be_a_string: "just words" => r#""just words""#;
    }

    #[test]
    fn broken_yaml_is_reported_with_line_and_column() {
        assert_eq!(
            refusal("a: b\nc: d: e\n"),
            r#"line 2 column 5: not readable as YAML "mapping values are not allowed in this context", expected a JSON or YAML document"#
        );
    }

    #[test]
    fn invalid_utf_8_is_reported_with_line_and_column() {
        assert_eq!(
            read(b"# \xc3\xa4\n# M\xfcller\n").unwrap_err().to_string(),
            r#"line 2 column 4: not readable as YAML "invalid UTF-8", expected a JSON or YAML document"#
        );
    }

    #[test]
    fn a_repeated_key_with_another_value_is_reported() {
        let document = b"eth0:\n  a: [1]\neth1: {}\neth0:\n  a: [2]\n";
        let read = |repeats: Repeats| {
            let Parsed { value, repeats } = parse(document, Rules { repeats, ..super::super::MACHINE })
                .map_err(|diagnostic| diagnostic.to_string())?;
            let repeats: Vec<String> = repeats.iter().map(ToString::to_string).collect();
            Ok::<_, String>((serde_json::to_string(&value).unwrap(), repeats))
        };
        let repeated = r#"line 4 column 1: repeated key "eth0", expected each key of a mapping once"#.to_owned();
        let of = |json: &str| Ok((json.to_owned(), vec![repeated.clone()]));
        assert_eq!(read(Repeats::FirstCounts), of(r#"{"eth0":{"a":[1]},"eth1":{}}"#));
        assert_eq!(read(Repeats::LastCounts), of(r#"{"eth0":{"a":[2]},"eth1":{}}"#));
        assert_eq!(read(Repeats::Refused), Err(repeated.clone()));
    }

    #[test]
    fn a_key_without_a_colon_is_rejected() {
        for (document, column) in [("{a, b: c}", 3), ("{a , b: c}", 4), ("{b: c, a}", 9), ("{ä: b, 'a',}", 11)] {
            let expected = format!(
                r#"line 1 column {column}: key without a value "a", expected a colon and a value after each key"#
            );
            assert_eq!(refusal(document), expected, "{document}");
        }
        assert_eq!(read(b"{a: , b:, 'c':}\n"), read(b"a:\nb: # c\nc: ~\n"));
    }

    #[test]
    fn a_key_with_blanks_quotes_commas_or_brackets_is_rejected() {
        for (document, at, key) in [
            ("dhcp4 true: x", "line 1 column 1", "dhcp4 true"),
            ("{\"a\": [1], b\": 2}", "line 1 column 12", "b\""),
            ("'a,b': 1", "line 1 column 1", "a,b"),
            ("a[0]: 1", "line 1 column 1", "a[0]"),
            ("x: {a\n  b: 1}", "line 1 column 5", "a b"),
        ] {
            let expected = format!(
                "{at}: invalid key {key:?}, expected a key without blanks, quotes, commas, brackets and line breaks"
            );
            assert_eq!(refusal(document), expected, "{document}");
        }
    }

    #[test]
    fn a_control_character_is_rejected() {
        assert_eq!(
            refusal("a: b\nc\0: d"),
            r#"line 2 column 2: control character "\0", expected a document without control characters"#
        );
    }

    #[test]
    fn a_second_document_is_rejected() {
        assert_eq!(refusal("a: b\n---\nc: d\n"), r#"line 2 column 1: second document "---", expected one document"#);
    }

    #[test]
    fn a_key_that_is_a_collection_is_rejected() {
        assert_eq!(
            refusal("? [a, b]\n: c\n"),
            r#"line 1 column 8: invalid key "an array", expected a string as the key of a mapping"#
        );
    }

    #[test]
    fn a_value_that_contains_itself_is_rejected() {
        assert_eq!(refusal("a: &x [*x]"), r#"line 1 column 8: unknown alias "1", expected a value that is complete"#);
    }

    #[test]
    fn the_values_of_an_alias_count_at_each_use() {
        let mut bomb = "a0: &a0 [x, x, x, x, x, x, x, x]\n".to_owned();
        for level in 1..9 {
            let aliases = vec![format!("*a{}", level - 1); 8].join(", ");
            bomb.push_str(&format!("a{level}: &a{level} [{aliases}]\n"));
        }
        assert_eq!(refusal(&bomb), r#"document: too many values "more than 65536", expected at most 65536"#);
    }

    #[test]
    fn a_long_string_of_an_alias_counts_at_each_use() {
        let document = format!("a: &x {}\nb: [*x, *x, *x]\n", "x".repeat(400_000));
        let expected = r#"document: too many bytes in strings, each alias counted "more than 1048576", expected at most 1048576 bytes"#;
        assert_eq!(refusal(&document), expected);
    }

    #[test]
    fn the_nesting_of_a_value_counts_again_where_an_alias_repeats_the_value() {
        let nest = |inner: &str| format!("{}{inner}{}", "[".repeat(40), "]".repeat(40));
        let document = format!("a: &x {}\nb: {}\n", nest("1"), nest("*x"));
        assert_eq!(refusal(&document), r#"document: nested too deep "more than 64", expected at most 64 levels"#);
    }
}
