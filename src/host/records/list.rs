//! Reads a list of objects, one object at a time.
//!
//! serde_json reads from memory several times faster than from a stream. So the stream is read into a buffer. If the
//! end of the buffer cuts off a value, the value is parsed again after more input is read.

use std::fmt;
use std::io::{self, Read};

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use crate::diagnostic::FieldPath;

/// Largest object, in bytes: more than twice the size of the largest object that a Kubernetes server stores.
#[doc(hidden)]
pub const MAX_OBJECT: usize = 4 * 1024 * 1024;
/// Maximum number of objects in one list.
#[doc(hidden)]
pub const MAX_OBJECTS: usize = 1_000_000;

/// Number of bytes that are read at once, unless an object is larger.
const BUFFER: usize = 256 * 1024;

/// Why a list cannot be used.
#[derive(Debug)]
#[non_exhaustive]
pub enum ReadError {
    /// The input failed before its end.
    Read(io::Error),
    /// The input is not a list of objects in JSON.
    Invalid {
        /// Path of the member or item that cannot be read.
        path: String,
        /// Where the member or item begins, in bytes, counted from one.
        byte: u64,
        /// Message of the JSON parser.
        problem: String,
    },
    /// The list is one page of several. Machines on the other pages would count as missing.
    Partial {
        /// Number of objects on later pages. `None` if the server does not report it.
        remaining: Option<u64>,
    },
    /// An object is larger than [`MAX_OBJECT`].
    TooLarge {
        /// Path of the object.
        path: String,
    },
    /// The list has more than [`MAX_OBJECTS`] objects.
    TooMany,
}

/// Calls `each` with the text of every object and its index; the index of a single object is `None`. Returns the number
/// of objects.
pub(super) fn read(input: impl Read, each: impl FnMut(Option<usize>, &str)) -> Result<usize, ReadError> {
    read_by(BUFFER, input, each)
}

fn read_by(chunk: usize, input: impl Read, mut each: impl FnMut(Option<usize>, &str)) -> Result<usize, ReadError> {
    let mut input = Input { input, chunk, text: Vec::new(), at: 0, dropped: 0, has_ended: false };
    let document = FieldPath::Document;
    let (mut items, mut metadata, mut single) = (None, None, Vec::new());
    if input.peek()?.is_none() {
        return Err(input.invalid(&document, "an empty input"));
    }
    let mut separator = input.open(&document, b'{', b'}')?;
    while separator == b',' {
        let key = input.value(&document)?;
        let name: String = parsed(&document, &key)?;
        let path = document.field(&name);
        input.punctuation(&path, b":")?;
        match name.as_str() {
            "items" => items = Some(input.items(&path, &mut each)?),
            "kind" | "metadata" | "spec" | "status" => {
                let value = input.value(&path)?;
                single.push(format!("{name:?}:{}", value.text));
                if name == "metadata" {
                    let Value { text, byte } = value;
                    metadata = Some((text.to_owned(), byte));
                }
            }
            _ => {
                input.value(&path)?;
            }
        }
        separator = input.punctuation(&path, b",}")?;
    }
    if input.peek()?.is_some() {
        return Err(input.invalid(&document, "data after its end"));
    }
    let Some(count) = items else {
        each(None, &format!("{{{}}}", single.join(",")));
        return Ok(1);
    };
    let metadata = metadata.as_ref().map(|(text, byte)| Value { text, byte: *byte });
    let metadata = metadata.map(|metadata| parsed(&document.field("metadata"), &metadata)).transpose()?;
    let ListMetadata { next, remaining_item_count: remaining } = metadata.unwrap_or_default();
    if next.is_some_and(|token| !token.is_empty()) || remaining.is_some_and(|count| count != 0) {
        return Err(ReadError::Partial { remaining: remaining.and_then(|count| u64::try_from(count).ok()) });
    }
    Ok(count)
}

/// The input, the text that was read from it, and the position in the text.
struct Input<R> {
    input: R,
    /// Minimum number of bytes that are read at once.
    chunk: usize,
    text: Vec<u8>,
    /// Index of the next byte in the text.
    at: usize,
    /// Number of input bytes before the text.
    dropped: u64,
    has_ended: bool,
}

/// A JSON value, as the input spells it.
struct Value<'t> {
    text: &'t str,
    /// Where the value begins in the input, counted from one.
    byte: u64,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ListMetadata {
    #[serde(rename = "continue")]
    next: Option<String>,
    remaining_item_count: Option<i64>,
}

fn parsed<T: DeserializeOwned>(path: &FieldPath<'_>, value: &Value<'_>) -> Result<T, ReadError> {
    serde_json::from_str(value.text).map_err(|error| ReadError::Invalid {
        path: path.to_string(),
        byte: value.byte,
        problem: message(&error),
    })
}

/// Message of the parser without line and column, which count from the start of a value.
pub(super) fn message(error: &serde_json::Error) -> String {
    let message = error.to_string();
    message.rsplit_once(" at line ").map_or(message.as_str(), |(message, _)| message).to_owned()
}

// === impl Input ===

impl<R: Read> Input<R> {
    /// Takes the elements of `items`, and returns their number. Programs in Go write an empty list as null.
    fn items(&mut self, path: &FieldPath<'_>, each: &mut impl FnMut(Option<usize>, &str)) -> Result<usize, ReadError> {
        if self.peek()? == Some(b'n') {
            let value = self.value(path)?;
            return parsed::<()>(path, &value).map(|()| 0);
        }
        let mut separator = self.open(path, b'[', b']')?;
        let mut count = 0;
        while separator == b',' {
            if count == MAX_OBJECTS {
                return Err(ReadError::TooMany);
            }
            let path = path.index(count);
            each(Some(count), self.value(&path)?.text);
            count += 1;
            separator = self.punctuation(&path, b",]")?;
        }
        Ok(count)
    }

    /// Takes an opening bracket. Returns a comma when a member follows, or else the closing bracket.
    fn open(&mut self, path: &FieldPath<'_>, opening: u8, closing: u8) -> Result<u8, ReadError> {
        self.punctuation(path, &[opening])?;
        if self.peek()? == Some(closing) { self.punctuation(path, &[closing]) } else { Ok(b',') }
    }

    /// Takes the next value.
    fn value(&mut self, path: &FieldPath<'_>) -> Result<Value<'_>, ReadError> {
        self.peek()?;
        let mut last = None;
        let (length, byte) = loop {
            let rest = &self.text[self.at..];
            let mut values = serde_json::Deserializer::from_slice(rest).into_iter::<&RawValue>();
            let value = values.next();
            let length = values.byte_offset();
            match value {
                // A number at the end of the buffer may continue in the rest of the input.
                Some(Ok(_)) if self.has_ended || length < rest.len() => break (length, self.byte()),
                // A value that is cut off is invalid, too. But after more input, its error moves to another byte.
                Some(Err(error)) => {
                    let at = Some((error.line(), error.column()));
                    if self.has_ended || last == at {
                        return Err(self.invalid(path, &message(&error)));
                    }
                    last = at;
                }
                None if self.has_ended => return Err(self.invalid(path, "EOF while parsing a value")),
                _ => {}
            }
            if rest.len() > MAX_OBJECT {
                return Err(ReadError::TooLarge { path: path.to_string() });
            }
            self.fill()?;
        };
        if length > MAX_OBJECT {
            return Err(ReadError::TooLarge { path: path.to_string() });
        }
        let start = self.at;
        self.at += length;
        match str::from_utf8(&self.text[start..self.at]) {
            Ok(text) => Ok(Value { text, byte }),
            Err(error) => Err(ReadError::Invalid { path: path.to_string(), byte, problem: error.to_string() }),
        }
    }

    /// Returns the next byte that is not blank, but does not take the byte.
    fn peek(&mut self) -> Result<Option<u8>, ReadError> {
        loop {
            self.at += self.text[self.at..].iter().take_while(|byte| b" \t\r\n".contains(byte)).count();
            match self.text.get(self.at) {
                Some(byte) => return Ok(Some(*byte)),
                None if self.has_ended => return Ok(None),
                None => self.fill()?,
            }
        }
    }

    /// Takes the next byte that is not blank. Any other byte than `bytes` is an error.
    fn punctuation(&mut self, path: &FieldPath<'_>, bytes: &[u8]) -> Result<u8, ReadError> {
        if let Some(found) = self.peek()?.filter(|found| bytes.contains(found)) {
            self.at += 1;
            return Ok(found);
        }
        let expected: Vec<String> = bytes.iter().map(|byte| format!("`{}`", char::from(*byte))).collect();
        Err(self.invalid(path, &format!("expected {}", expected.join(" or "))))
    }

    /// Drops the text that was taken, and reads more input.
    fn fill(&mut self) -> Result<(), ReadError> {
        self.text.drain(..self.at);
        self.dropped += self.at as u64;
        self.at = 0;
        // The buffer doubles each time, so that a large object is parsed only a few times.
        let more = self.text.len().max(self.chunk) as u64;
        let read = self.input.by_ref().take(more).read_to_end(&mut self.text).map_err(ReadError::Read)?;
        self.has_ended = (read as u64) < more;
        Ok(())
    }

    /// Position of the next byte in the input, counted from one.
    fn byte(&self) -> u64 {
        self.dropped + self.at as u64 + 1
    }

    fn invalid(&self, path: &FieldPath<'_>, problem: &str) -> ReadError {
        ReadError::Invalid { path: path.to_string(), byte: self.byte(), problem: problem.to_owned() }
    }
}

// === impl ReadError ===

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Read(_) => f.write_str("reading the list"),
            Self::Invalid { path, byte, problem } => {
                write!(f, "{path}: invalid JSON {problem:?} from byte {byte} on, ")?;
                f.write_str("expected a list of objects as kubectl get -o json prints it")
            }
            Self::Partial { remaining } => {
                f.write_str("metadata.continue: part of a list")?;
                if let Some(remaining) = remaining {
                    write!(f, " without {remaining} objects")?;
                }
                f.write_str(", expected the whole list: machines that are not in it would lose their addresses")
            }
            Self::TooLarge { path } => write!(f, "{path}: too large, expected at most {MAX_OBJECT} bytes"),
            Self::TooMany => write!(f, "items: too many objects, expected at most {MAX_OBJECTS}"),
        }
    }
}

impl std::error::Error for ReadError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Read(error) => Some(error),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LIST: &str = concat!(
        r#"{"apiVersion": "v1", "n": 12.5e+1, "items": [{"kind": "VirtualMachine", "metadata": {"name": "\u00e4\\"}},"#,
        "\n\t{\"spec\": {\"template\": {}}, \"metadata\": {\"uid\": 7}}, [], null, -1 ] ,",
        r#" "kind": "List", "t": true, "metadata": {"continue": "", "remainingItemCount": 0}, "l": 12}  "#,
    );

    type Outcome = (Vec<(Option<usize>, String)>, String);

    fn outcome(text: &[u8]) -> Outcome {
        outcome_by(BUFFER, text)
    }

    /// The whole outcome of reading a text, with `chunk` bytes read at once.
    fn outcome_by(chunk: usize, text: &[u8]) -> Outcome {
        let mut objects = Vec::new();
        let read = read_by(chunk, text, |index, text| objects.push((index, text.to_owned())));
        (objects, read.map_or_else(|error| error.to_string(), |count| count.to_string()))
    }

    #[test]
    fn each_item_of_a_list_is_passed_on_unchanged() {
        let items = [
            r#"{"kind": "VirtualMachine", "metadata": {"name": "\u00e4\\"}}"#,
            r#"{"spec": {"template": {}}, "metadata": {"uid": 7}}"#,
            "[]",
            "null",
            "-1",
        ];
        let items = items.iter().enumerate().map(|(at, item)| (Some(at), (*item).to_owned())).collect();
        assert_eq!(outcome(LIST.as_bytes()), (items, "5".to_owned()));
    }

    #[test]
    fn a_single_object_keeps_the_members_that_matter_for_records() {
        let object = r#"{"spec": {"a": [1]}, "apiVersion": "v1", "kind": "K", "metadata": {"continue": "x"}}"#;
        let kept = r#"{"spec":{"a": [1]},"kind":"K","metadata":{"continue": "x"}}"#;
        assert_eq!(outcome(object.as_bytes()), (vec![(None, kept.to_owned())], "1".to_owned()));
    }

    #[test]
    fn deep_objects_do_not_overflow_the_stack() {
        let depth = 100_000;
        let item = [&r#"{"a": "#.repeat(depth), "1", &"}".repeat(depth)].concat();
        let list = format!(r#"{{"items": [{item}], "a": {item}}}"#);
        assert_eq!(outcome(list.as_bytes()), (vec![(Some(0), item)], "1".to_owned()));
    }

    proptest! {
        // A failing test must not write a file into the sources. The failure is printed.
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn the_size_of_the_pieces_does_not_change_the_result_of_reading_a_list(
            breaks in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
            end in any::<prop::sample::Index>(),
            chunk in 1_usize..64,
        ) {
            let mut text = LIST.as_bytes().to_vec();
            for (at, byte) in breaks {
                let at = at.index(text.len());
                text[at] = byte;
            }
            text.truncate(end.index(2 * text.len()));
            prop_assert_eq!(outcome_by(chunk, &text), outcome(&text));
        }
    }
}
