//! Parses documents: YAML, or JSON if the document begins as JSON does.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fmt;

use serde::de::{DeserializeSeed, Error, MapAccess, SeqAccess, Visitor};

#[cfg(feature = "host")]
use super::Scalars;
use super::{
    EXPECTED, MACHINE, MAX_DEPTH, Parsed, REPEATED, Repeats, Rules, Value, json, repeated_key, too_deep,
    too_many_values, yaml,
};
use crate::diagnostic::{Diagnostic, Diagnostics};

/// Parses a JSON or YAML document. A document that begins with a brace or a bracket is parsed as JSON. The exception is
/// a network-config in YAML's flow style, such as `{version: 2, …}`.
///
/// In JSON, a trailing comma and a comment on its own line are ignored with a warning.
///
/// # Errors
///
/// One diagnostic: the document is neither JSON nor YAML (the path is then `line L column C`), it exceeds a limit, or a
/// YAML key is repeated with a different value.
pub fn parse(document: &[u8], diagnostics: &mut Diagnostics) -> Result<Value, Diagnostic> {
    let Parsed { value, repeats } = read(document, Repeats::LastCounts, diagnostics)?;
    repeats.into_iter().next().map_or(Ok(value), Err)
}

/// Parses a JSON or YAML document that people maintain in a file. YAML in flow style is accepted, although it begins
/// with a brace or a bracket as JSON does.
///
/// # Errors
///
/// The errors of [`parse`]. In addition, every repeated key is an error.
pub fn parse_strict(document: &[u8]) -> Result<Value, Diagnostic> {
    let documents = read_strict(document, Rules { repeats: Repeats::Refused, ..MACHINE })?;
    Ok(documents.into_iter().next().unwrap_or(Value::Null))
}

/// Parses a list of objects as [`parse_strict`] does, with limits for the objects of a whole cluster.
///
/// # Errors
///
/// The errors of [`parse_strict`].
#[cfg(feature = "vsphere")]
pub(crate) fn parse_list(document: &[u8]) -> Result<Value, Diagnostic> {
    let documents = read_strict(document, Rules { has_several: false, ..CLUSTER })?;
    Ok(documents.into_iter().next().unwrap_or(Value::Null))
}

/// Parses each document of a file with objects of a cluster. Every repeated key in an object is an error. A YAML file
/// has a line `---` between two documents; a JSON file has one document. The limits are for a whole cluster, and apply
/// to all documents together.
///
/// YAML scalars without quotes have the same value as in kubectl: `y` is true, `0x5dc` is 1500, and `017` is 15.
///
/// # Errors
///
/// The errors of [`parse_strict`].
#[cfg(feature = "host")]
pub fn parse_documents(file: &[u8]) -> Result<Vec<Value>, Diagnostic> {
    read_strict(file, CLUSTER)
}

/// The limits for a file with the objects of a cluster.
#[cfg(feature = "host")]
pub(super) const CLUSTER: Rules = Rules {
    repeats: Repeats::Refused,
    bytes: MAX_LIST_BYTES,
    values: MAX_LIST_VALUES,
    has_several: true,
    scalars: Scalars::Kubectl,
};

/// Maximum size of a file with objects, in bytes. A HostedCluster with its NodePools has about 25 KiB.
#[cfg(feature = "host")]
pub const MAX_LIST_BYTES: usize = 64 * 1024 * 1024;
/// Maximum number of values in a file with objects. Each value takes about 100 bytes of memory.
#[cfg(feature = "host")]
const MAX_LIST_VALUES: usize = 4 * 1024 * 1024;

fn read_strict(document: &[u8], rules: Rules) -> Result<Vec<Value>, Diagnostic> {
    check_size(document, rules)?;
    if !is_like_json(document) {
        return yaml::parse_all(document, rules);
    }
    match parse_json(document, rules) {
        Ok(value) => Ok(vec![value]),
        Err(Broken::Refused(diagnostic)) => Err(diagnostic),
        // A document that does not start as JSON, for example with a key without quotes, needs the error of the YAML
        // parser.
        Err(Broken::Syntax(json)) => {
            let is_yaml = !starts_as_json(document);
            yaml::parse_all(document, rules)
                .map_err(|yaml| if is_yaml || yaml.problem() == REPEATED { yaml } else { json.expecting(EXPECTED) })
        }
    }
}

/// Whether the first scalar of a collection could be JSON: an object must be empty or begin with a quoted key.
fn starts_as_json(document: &[u8]) -> bool {
    let is_between = |byte: &u8| byte.is_ascii_whitespace() || matches!(byte, b'{' | b'[');
    let begin = document.iter().position(|byte| !is_between(byte)).unwrap_or(document.len());
    let (opened, scalar) = document.split_at(begin);
    let scalar = scalar.split(|byte| matches!(byte, b',' | b']' | b'}')).next().unwrap_or_default().trim_ascii();
    let is_key = opened.trim_ascii_end().last() == Some(&b'{');
    scalar.is_empty() || scalar[0] == b'"' || !is_key && serde_json::from_slice::<serde_json::Value>(scalar).is_ok()
}

/// Parses a document as [`parse`] does, but returns the repeated YAML keys. The caller decides whether they are errors.
pub(in crate::formats) fn read(
    document: &[u8],
    repeats: Repeats,
    diagnostics: &mut Diagnostics,
) -> Result<Parsed, Diagnostic> {
    let rules = Rules { repeats, ..MACHINE };
    check_size(document, rules)?;
    if !is_like_json(document) || is_network_config_in_flow_style(document) {
        return yaml::parse(document, rules);
    }
    let diagnostic = match parse_json(document, rules) {
        Ok(value) => return Ok(Parsed::from(value)),
        Err(Broken::Refused(diagnostic)) => return Err(diagnostic),
        Err(Broken::Syntax(diagnostic)) => diagnostic,
    };
    let (document, tolerated) = json::without_comments_and_trailing_commas(document);
    if tolerated.is_empty() {
        return Err(diagnostic);
    }
    match parse_json(&document, rules) {
        Ok(value) => {
            tolerated.into_iter().for_each(|diagnostic| diagnostics.push(diagnostic));
            Ok(Parsed::from(value))
        }
        Err(Broken::Refused(diagnostic) | Broken::Syntax(diagnostic)) => Err(diagnostic),
    }
}

fn check_size(document: &[u8], rules: Rules) -> Result<(), Diagnostic> {
    if document.len() > rules.bytes {
        let expected = format!("at most {}", rules.bytes);
        return Err(Diagnostic::error("document", "too many bytes", document.len(), &expected));
    }
    Ok(())
}

/// Whether the document begins with `{` or `[` after blanks and comments.
fn is_like_json(document: &[u8]) -> bool {
    matches!(content(document).first(), Some(b'{' | b'['))
}

/// Whether the document is a network-config in YAML's flow style: a brace, and then the key `version` or `network`
/// without quotes. JSON in which one quote is missing must not be parsed as YAML. If both quotes are missing, the
/// document is certainly not meant as JSON.
fn is_network_config_in_flow_style(document: &[u8]) -> bool {
    let Some(first) = content(document).strip_prefix(b"{") else { return false };
    let first = first.trim_ascii_start();
    let rest = ["version", "network"].iter().find_map(|key| first.strip_prefix(key.as_bytes()));
    rest.is_some_and(|rest| rest.trim_ascii_start().starts_with(b":"))
}

/// The document without the blanks and the comments at its beginning.
fn content(mut document: &[u8]) -> &[u8] {
    loop {
        document = document.trim_ascii_start();
        if !json::is_comment(document) {
            return document;
        }
        let end = document.iter().position(|byte| *byte == b'\n').unwrap_or(document.len());
        document = &document[end..];
    }
}

fn parse_json(document: &[u8], rules: Rules) -> Result<Value, Broken> {
    let caps = RefCell::new(Caps { left: rules.values, over: None, repeated: None });
    let mut json = serde_json::Deserializer::from_slice(document);
    let seed = Seed { caps: &caps, depth: 1, rules };
    let value = seed.deserialize(&mut json).and_then(|value| json.end().map(|()| value));
    value.map_err(|error| {
        let path = format!("line {} column {}", error.line(), error.column());
        match caps.into_inner() {
            Caps { over: Some(diagnostic), .. } => return Broken::Refused(diagnostic),
            Caps { repeated: Some(key), .. } => return Broken::Refused(repeated_key(path, &key)),
            _ => {}
        }
        let message = error.to_string();
        // serde_json appends the line and the column to its message.
        let message = message.split(" at line ").next().unwrap_or_default();
        Broken::Syntax(Diagnostic::error(path, "not readable as JSON", message, JSON_EXPECTED))
    })
}

/// Description of a valid document that begins as JSON, for messages.
const JSON_EXPECTED: &str = "JSON, since the document begins with a brace or a bracket";

/// Why a document is not accepted as JSON.
enum Broken {
    Syntax(Diagnostic),
    Refused(Diagnostic),
}

struct Caps {
    left: usize,
    over: Option<Diagnostic>,
    /// A repeated key that is rejected. The position of the key is known only after the parser has stopped.
    repeated: Option<String>,
}

#[derive(Clone, Copy)]
struct Seed<'a> {
    caps: &'a RefCell<Caps>,
    depth: usize,
    rules: Rules,
}

// === impl Seed ===

impl Seed<'_> {
    fn over<E: Error>(self, diagnostic: Diagnostic) -> E {
        self.caps.borrow_mut().over = Some(diagnostic);
        E::custom("over a cap")
    }

    fn deeper(self) -> Self {
        Self { depth: self.depth + 1, ..self }
    }
}

impl<'de> DeserializeSeed<'de> for Seed<'_> {
    type Value = Value;

    fn deserialize<D: serde::Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        let left = self.caps.borrow().left.checked_sub(1);
        let Some(left) = left else {
            return Err(self.over(too_many_values(self.rules)));
        };
        self.caps.borrow_mut().left = left;
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Seed<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Integer(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(i64::try_from(value).map_or(Value::Fraction(value as f64), Value::Integer))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Value::number(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Value, A::Error> {
        if self.depth >= MAX_DEPTH {
            return Err(self.over(too_deep()));
        }
        let mut array = Vec::new();
        while let Some(element) = elements.next_element_seed(self.deeper())? {
            array.push(element);
        }
        Ok(Value::Array(array))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Value, A::Error> {
        if self.depth >= MAX_DEPTH {
            return Err(self.over(too_deep()));
        }
        let (mut object, mut seen) = (Vec::new(), BTreeSet::new());
        while let Some(name) = members.next_key::<String>()? {
            if self.rules.repeats == Repeats::Refused && !seen.insert(name.clone()) {
                self.caps.borrow_mut().repeated = Some(name);
                return Err(A::Error::custom("a repeated key"));
            }
            object.push((name, members.next_value_seed(self.deeper())?));
        }
        Ok(Value::Object(object.into_iter().collect()))
    }
}
