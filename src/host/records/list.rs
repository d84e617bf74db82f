//! A list of objects, read one object at a time.
//!
//! serde_json reads from memory several times faster than from a stream. So the stream is read into a buffer, and each
//! object is cut out of there, to be parsed by another thread; one that the end of the buffer cuts off is looked at once
//! more when there is more of it.

use std::fmt;
use std::io::{self, Read};
use std::ops::Range;
use std::sync::mpsc;
use std::thread;

use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::Value;

use super::batch::{Batch, Cut, Pipe};
use super::object::{Item, MEMBERS, Metadata, Status, Unreadable};
use super::skim::Skimmer;
use crate::finding::Place;

/// The largest object, in bytes: many times what a Kubernetes server stores.
pub const MAX_OBJECT: usize = 16 * 1024 * 1024;
/// The most objects of one list.
pub const MAX_OBJECTS: usize = 1_000_000;

/// How much is read at once.
const BUFFER: usize = 256 * 1024;

/// So many such buffers may wait to be parsed. Of a shared machine a processor is gone for milliseconds at times, and then
/// the thread of the other one should not wait, too.
const BATCHES: usize = 16;

/// Why a list cannot be used.
#[derive(Debug)]
pub enum ReadError {
    /// It could not be read to its end.
    Read(io::Error),
    /// It is no JSON.
    Syntax {
        /// The member or the item where it is broken.
        place: String,
        /// Counted from one.
        byte: u64,
        /// What is wrong.
        problem: String,
    },
    /// A member of the list itself is not what it should be.
    Member {
        /// Which.
        place: String,
        /// What is wrong.
        problem: String,
    },
    /// A part of a list, from which nothing can be concluded about the rest.
    Partial {
        /// How many more there are, where the server says so.
        remaining: Option<u64>,
    },
    /// An object is larger than [`MAX_OBJECT`].
    TooLarge {
        /// Which.
        place: String,
    },
    /// There are more than [`MAX_OBJECTS`] objects.
    TooMany,
}

/// What is read of an input, and where it is.
struct Input<R> {
    input: R,
    buffer: Batch,
    /// What comes next in the buffer's text.
    at: usize,
    /// Where the object before is in it, if it was skimmed.
    before: Range<usize>,
    /// Where the buffer ends in the input.
    end: u64,
    /// How much is read at once, at least.
    chunk: usize,
    has_ended: bool,
    /// To whoever parses what was cut out.
    pipe: Option<Pipe>,
}

/// A value as it is written.
struct Written {
    text: Vec<u8>,
    /// Where it begins in the input.
    position: u64,
}

/// Calls `each` with every object: which of the list, or none if it is no list, and its value.
pub(super) fn read(
    input: impl Read,
    each: impl FnMut(Option<usize>, Result<Item<'_>, Unreadable<'_>>) + Send,
) -> Result<usize, ReadError> {
    read_by(BUFFER, input, each)
}

fn read_by(
    chunk: usize,
    input: impl Read,
    mut each: impl FnMut(Option<usize>, Result<Item<'_>, Unreadable<'_>>) + Send,
) -> Result<usize, ReadError> {
    let mut input =
        Input { input, buffer: Batch::default(), at: 0, before: 0..0, end: 0, chunk, has_ended: false, pipe: None };
    let document = Place::Document;
    let mut items = None;
    let (mut kind, mut metadata, mut spec, mut status) = (None, None, None, None);
    input.punctuation(&document, b"{")?;
    let mut separator = if input.is_next(b'}')? { b'}' } else { b',' };
    while separator == b',' {
        let name: String = input.member(&document)?;
        let place = document.field(&name);
        input.punctuation(&place, b":")?;
        match name.as_str() {
            "items" => items = Some(input.items(&place, &mut each)?),
            "kind" => kind = Some(input.written(&place)?),
            "metadata" => metadata = Some(input.written(&place)?),
            "spec" => spec = Some(input.written(&place)?),
            "status" => status = Some(input.written(&place)?),
            _ => drop(input.member::<IgnoredAny>(&place)?),
        }
        separator = input.punctuation(&place, b",}")?;
    }
    if input.next()?.is_some() {
        return Err(input.syntax(&document, "something after its end".to_owned()));
    }
    let metadata: Metadata<'_> = parsed(&document.field("metadata"), metadata.as_ref())?;
    if metadata.is_partial() {
        let remaining = metadata.remaining_item_count.and_then(|count| u64::try_from(count).ok());
        return Err(ReadError::Partial { remaining });
    }
    match items {
        Some(items) => Ok(items),
        None => {
            let kind = parsed(&document.field("kind"), kind.as_ref())?;
            let spec = parsed(&document.field("spec"), spec.as_ref())?;
            let status: Option<Status<Value>> = parsed(&document.field("status"), status.as_ref())?;
            each(None, Ok(Item { kind, metadata, spec, status }.any()));
            Ok(1)
        }
    }
}

/// A member, which may be missing.
fn parsed<'t, T: Deserialize<'t> + Default>(place: &Place<'_>, written: Option<&'t Written>) -> Result<T, ReadError> {
    let Some(Written { text, position }) = written else { return Ok(T::default()) };
    match serde_json::from_slice::<Option<T>>(text) {
        Ok(value) => Ok(value.unwrap_or_default()),
        Err(error) if error.is_data() => Err(ReadError::Member { place: place.to_string(), problem: message(&error) }),
        Err(error) => Err(ReadError::Syntax { place: place.to_string(), byte: position + 1, problem: message(&error) }),
    }
}

// === impl Input ===

impl<R: Read> Input<R> {
    /// The elements of `items`, which may be null. Another thread parses them.
    fn items(
        &mut self,
        place: &Place<'_>,
        each: &mut (impl FnMut(Option<usize>, Result<Item<'_>, Unreadable<'_>>) + Send),
    ) -> Result<usize, ReadError> {
        if self.is_next(b'n')? {
            return self.member::<()>(place).map(|()| 0);
        }
        self.punctuation(place, b"[")?;
        if self.is_next(b']')? {
            self.punctuation(place, b"]")?;
            return Ok(0);
        }
        let (full, batches) = mpsc::sync_channel::<Batch>(BATCHES);
        let (back, empty) = mpsc::channel();
        self.pipe = Some(Pipe::new(full, empty));
        let parse = move || {
            let mut count = 0;
            for batch in batches {
                batch.parse(count, each)?;
                count += batch.cuts.len();
                // Nobody may need it any more.
                let _ = back.send(batch.cleared());
            }
            Ok(())
        };
        thread::scope(|scope| {
            let parser = thread::Builder::new().spawn_scoped(scope, parse).map_err(ReadError::Read)?;
            let cut = self.cut(place);
            self.flush(self.at);
            self.pipe = None;
            let parsed = parser.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            // Whatever cannot be parsed comes before what could not be cut out.
            parsed.and(cut)
        })
    }

    /// Cuts out the elements of `items`, to the end of the list.
    fn cut(&mut self, place: &Place<'_>) -> Result<usize, ReadError> {
        let mut skimmer = Skimmer::default();
        for index in 0..MAX_OBJECTS {
            let place = place.index(index);
            self.next()?;
            let position = self.position();
            let mut kept = self.skim(&mut skimmer);
            if kept.is_none() && !self.has_ended && self.buffer.text.len() - self.at < self.chunk {
                // Mostly it is cut off.
                self.fill()?;
                kept = self.skim(&mut skimmer);
            }
            let (length, kept) = match kept {
                Some((length, kept)) => {
                    self.before = self.at..self.at + length;
                    self.at += length;
                    (length, kept)
                }
                None => {
                    // Of whatever it is, it has to be JSON, at least.
                    self.member::<IgnoredAny>(&place)?;
                    ((self.position() - position) as usize, 0..0)
                }
            };
            self.buffer.cuts.push(Cut { text: self.at - length..self.at, kept, position });
            if self.punctuation(&place, b",]")? == b']' {
                return Ok(index + 1);
            }
        }
        Err(ReadError::TooMany)
    }

    /// The length of the next object, and where that is kept which matters of it, if it is one of those that are read fast.
    fn skim(&mut self, skimmer: &mut Skimmer) -> Option<(usize, Range<usize>)> {
        let Batch { text, kept, .. } = &mut self.buffer;
        let begin = kept.len();
        match skimmer.skim(&text[self.before.clone()], &text[self.at..], &MEMBERS, kept) {
            Some(length) => Some((length, begin..kept.len())),
            None => {
                kept.truncate(begin);
                None
            }
        }
    }

    /// Lets what was cut out be parsed, and keeps of the text what comes from `start` on.
    fn flush(&mut self, start: usize) {
        match &mut self.pipe {
            Some(pipe) if !self.buffer.cuts.is_empty() => {
                let mut next = pipe.next();
                next.text.extend_from_slice(&self.buffer.text[start..]);
                let is_large = self.buffer.text.len() > 2 * self.chunk;
                pipe.send(std::mem::replace(&mut self.buffer, next));
                // Of the largest objects a few would be most of the memory.
                if is_large {
                    pipe.drain();
                }
            }
            _ => drop(self.buffer.text.drain(..start)),
        }
        self.at -= start;
        self.before = match self.before.start.checked_sub(start) {
            Some(begin) => begin..self.before.end - start,
            None => 0..0,
        };
    }

    /// A value of which only the end is known.
    fn written(&mut self, place: &Place<'_>) -> Result<Written, ReadError> {
        self.next()?;
        let position = self.position();
        self.member::<IgnoredAny>(place)?;
        let length = (self.position() - position) as usize;
        Ok(Written { text: self.buffer.text[self.at - length..self.at].to_vec(), position })
    }

    /// A value that has to be of its kind.
    fn member<T: DeserializeOwned>(&mut self, place: &Place<'_>) -> Result<T, ReadError> {
        match self.value(place)? {
            Ok(value) => Ok(value),
            Err(error) if error.is_data() => {
                Err(ReadError::Member { place: place.to_string(), problem: message(&error) })
            }
            Err(error) => Err(self.broken(place, &error)),
        }
    }

    /// The next value. After an error it is still the next.
    fn value<T: DeserializeOwned>(&mut self, place: &Place<'_>) -> Result<Result<T, serde_json::Error>, ReadError> {
        // An error is then told from its first byte on.
        self.next()?;
        self.before = 0..0;
        let mut last = None;
        loop {
            let rest = &self.buffer.text[self.at..];
            let mut values = serde_json::Deserializer::from_slice(rest).into_iter::<T>();
            match values.next() {
                // A number at the end of the buffer may go on behind it.
                Some(Ok(value)) if self.has_ended || values.byte_offset() < rest.len() => {
                    self.at += values.byte_offset();
                    return Ok(Ok(value));
                }
                Some(Err(error)) => {
                    // What is cut off is broken, too, but somewhere else when there is more of it.
                    let at = Some((error.line(), error.column()));
                    if self.has_ended || last == at {
                        return Ok(Err(error));
                    }
                    last = at;
                }
                None if self.has_ended => return Err(self.syntax(place, "EOF while parsing a value".to_owned())),
                _ => {}
            }
            if rest.len() >= MAX_OBJECT {
                return Err(ReadError::TooLarge { place: place.to_string() });
            }
            self.fill()?;
        }
    }

    /// The next byte that is no blank, without taking it.
    fn next(&mut self) -> Result<Option<u8>, ReadError> {
        loop {
            let blanks = self.buffer.text[self.at..].iter().take_while(|byte| b" \t\r\n".contains(byte)).count();
            self.at += blanks;
            match self.buffer.text.get(self.at) {
                Some(byte) => return Ok(Some(*byte)),
                None if self.has_ended => return Ok(None),
                None => self.fill()?,
            }
        }
    }

    fn is_next(&mut self, byte: u8) -> Result<bool, ReadError> {
        Ok(self.next()? == Some(byte))
    }

    /// Takes one of these bytes.
    fn punctuation(&mut self, place: &Place<'_>, bytes: &[u8]) -> Result<u8, ReadError> {
        let found = self.next()?;
        if let Some(found) = found.filter(|found| bytes.contains(found)) {
            self.at += 1;
            return Ok(found);
        }
        let expected: Vec<String> = bytes.iter().map(|byte| format!("`{}`", char::from(*byte))).collect();
        Err(self.syntax(place, format!("expected {}", expected.join(" or "))))
    }

    /// Reads more into the buffer, behind what is left in it.
    fn fill(&mut self) -> Result<(), ReadError> {
        let start = if self.before.is_empty() { self.at } else { self.before.start };
        self.flush(start);
        // Twice as much each time, so that a large object is not read over and over.
        let more = self.buffer.text.len().max(self.chunk) as u64;
        let read = self.input.by_ref().take(more).read_to_end(&mut self.buffer.text).map_err(ReadError::Read)?;
        self.end += read as u64;
        self.has_ended = (read as u64) < more;
        Ok(())
    }

    /// Where it is in the input.
    fn position(&self) -> u64 {
        self.end - (self.buffer.text.len() - self.at) as u64
    }

    fn broken(&self, place: &Place<'_>, error: &serde_json::Error) -> ReadError {
        self.syntax(place, message(error))
    }

    fn syntax(&self, place: &Place<'_>, problem: String) -> ReadError {
        let byte = self.position() + 1;
        ReadError::Syntax { place: place.to_string(), byte, problem }
    }
}

/// What serde_json says, without the place, which counts from the buffer.
pub(super) fn message(error: &serde_json::Error) -> String {
    let message = error.to_string();
    message.rsplit_once(" at line ").map_or(message.as_str(), |(message, _)| message).to_owned()
}

// === impl Metadata ===

impl Metadata<'_> {
    fn is_partial(&self) -> bool {
        let goes_on = self.next.as_deref().is_some_and(|token| !token.is_empty());
        goes_on || self.remaining_item_count.is_some_and(|count| count != 0)
    }
}

// === impl ReadError ===

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Read(_) => f.write_str("reading the list"),
            Self::Syntax { place, byte, problem } => {
                write!(f, "{place}: not readable as JSON {problem:?} from byte {byte} on, expected a list of objects")
            }
            Self::Member { place, problem } => {
                write!(f, "{place}: invalid member {problem:?}, expected a list of objects")
            }
            Self::Partial { remaining } => {
                f.write_str("metadata.continue: part of a list")?;
                if let Some(remaining) = remaining {
                    write!(f, ", {remaining} objects are missing")?;
                }
                f.write_str(", expected the whole list, since whoever is missing would lose its addresses")
            }
            Self::TooLarge { place } => write!(f, "{place}: too large, expected at most {MAX_OBJECT} bytes"),
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
        r#"{"apiVersion": "v1", "n": 12.5e+1, "items": [{"kind": "VirtualMachine", "metadata": {"name": "\u00e4\\","#,
        r#" "labels": null, "annotations": {"a": "\"", "kubevirt.cluster.x-k8s.io/allocated-ip-eno101": "10.0.0.5"}}},"#,
        "\n\t{\"spec\": {\"template\": {}}, \"metadata\": {\"uid\": 7}}, [], null, -1 ] ,",
        r#" "kind": "List", "t": true, "metadata": {"continue": "", "remainingItemCount": 0}, "l": 12}  "#,
    );

    /// Two of one template, a text that is no plain object, and one of another kind.
    const MACHINES: &str = concat!(
        r#"{"items": [{"kind": "KubevirtMachine", "metadata": {"name": "a"}, "spec": {"n": [1, {}]}}, "#,
        r#"{"kind": "KubevirtMachine", "metadata": {"name": "bc"}, "spec": {"n": [1, {}]}}, "\u00e4", "#,
        r#"{"metadata": {"name": "bc"}, "kind": "VirtualMachine"}], "kind": "List", "metadata": {"n": [1, {}]}}"#,
    );

    /// All that comes of a text, read by so many bytes at once.
    fn outcome(chunk: usize, text: &[u8]) -> (Vec<String>, String) {
        let mut items = Vec::new();
        let read = read_by(chunk, text, |index, item| {
            items.push(format!("{index:?} {:?}", item.map_err(|it| (message(&it.error), it.text.to_vec()))));
        });
        (items, read.map_or_else(|error| error.to_string(), |read| read.to_string()))
    }

    #[test]
    fn it_does_not_matter_where_a_value_is_cut_off() {
        for (list, count) in [(LIST, 5), (MACHINES, 4)] {
            let whole = outcome(BUFFER, list.as_bytes());
            assert_eq!((whole.0.len(), &whole.1), (count, &count.to_string()));
            for chunk in 1..list.len() {
                assert_eq!(outcome(chunk, list.as_bytes()), whole);
            }
        }
    }

    const OBJECT: &str = concat!(
        r#"{"kind": "VirtualMachine", "apiVersion": "kubevirt.io/v1", "metadata": {"name": "worker-0", "uid": "u-1","#,
        "\n        \"annotations\": {\n            ",
        r#""kubevirt.cluster.x-k8s.io/allocated-ip-eno101": "[\"10.0.0.5/24\"]", "n": "\u00e4\\"},"#,
        r#" "managedFields": [{"time": null}, [], {}], "labels": null, "continue": "",  "generation": -1, "#,
        r#""ownerReferences": [{"kind": "K", "name": "k", "uid": "o", "controller": true}]},"#,
        "\n    \"spec\": {\n        \"running\": false,\n        ",
        r#""template": {"spec": {"cores": [0, 10, -3]}, "metadata": {"annotations": {"a": "b"}, "labels": {}}}},"#,
        r#" "status": {"ready": true, "allocatedBootstrapAddresses": {"eno101": ["10.0.0.5/24", "fd00::5/64"]}}} ,"#,
    );

    /// Each like another one, but with values at other places, of other kinds, in another order, or broken.
    const OBJECTS: [&str; 8] = [
        OBJECT,
        OBJECT,
        r#"{"metadata": {"annotations": {"n": "\u00e4\\"}, "name": "worker-0"}, "kind": "VirtualMachine", "a": [{}, {}]}"#,
        r#"{"metadata": {"name": "worker-0", "annotations": ["n", "n", ["n"]]}, "a": [{}, 1, {}, "{}"], "kind": "K"}"#,
        r#"{"a": {"name": "worker-0", "labels": {"n": "n"}, "b": [[], [], [1]]}, "metadata": {"labels": {"n": "n"}}}"#,
        r#"{"a": {"n": 1}, "kind": "K"}"#,
        r#"{"a": ["n": ], "kind": "K"}"#,
        r#"{"spec": {"template": {"metadata": {"n": {}, "annotations": {"n": "n"}}}}, "a": {"metadata": {"n": {}}}, "n": "n"}"#,
    ];

    /// Letters of JSON, a control character, and a byte that is no text.
    const BREAKS: &[u8] = b"{}[],:\"\\ \n\tabdeftu0123456789-.+/\x01\x80";

    fn skimmed(text: &[u8]) -> Option<(String, usize)> {
        let mut kept = Vec::new();
        let length = Skimmer::default().skim(b"", text, &MEMBERS, &mut kept)?;
        serde_json::from_slice::<Item<Value>>(&kept).ok().map(|item| (format!("{item:?}"), length))
    }

    fn parsed(text: &[u8]) -> Option<(String, usize)> {
        let mut items = serde_json::Deserializer::from_slice(text).into_iter::<Item<Value>>();
        let item = items.next()?.ok()?;
        Some((format!("{item:?}"), items.byte_offset()))
    }

    #[test]
    fn objects_in_objects_without_end_are_refused_and_no_stack_overflows() {
        let depth = 100_000;
        let map = [&r#"{"a": "#.repeat(depth), "1", &"}".repeat(depth)].concat();
        let list = format!(r#"{{"items": [{{"status": {{"allocatedBootstrapAddresses": {map}}}}}]}}"#);
        let error =
            r#"items[0]: not readable as JSON "recursion limit exceeded" from byte 12 on, expected a list of objects"#;
        assert_eq!(outcome(BUFFER, list.as_bytes()), (vec![], error.to_owned()));
    }

    #[test]
    fn what_cannot_be_parsed_is_told_before_what_cannot_be_cut_out() {
        let list = r#"{"items": [{"kind": "a"}, {"kind": "\ud800"}, {"kind": "b"}, {]}"#;
        for chunk in [1, 16, BUFFER] {
            let (items, error) = outcome(chunk, list.as_bytes());
            assert_eq!(items.len(), 1);
            let problem = r#"not readable as JSON "unexpected end of hex escape" from byte 27 on"#;
            assert_eq!(error, format!("items[1]: {problem}, expected a list of objects"));
        }
    }

    #[test]
    fn what_is_skimmed_is_what_would_be_parsed() {
        assert!(parsed(OBJECT.as_bytes()).is_some());
        assert_eq!(skimmed(OBJECT.as_bytes()), parsed(OBJECT.as_bytes()));
    }

    proptest! {
        // Of two objects few pairs can be mistaken for each other.
        #![proptest_config(ProptestConfig { cases: 8192, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn what_was_skimmed_before_does_not_matter(
            mut texts in prop::sample::subsequence(OBJECTS.map(|text| text.as_bytes().to_vec()).to_vec(), 2),
            reverse in any::<bool>(),
            changes in prop::collection::vec((0_usize..2, any::<prop::sample::Index>(), prop::sample::select(BREAKS)), 0..4),
        ) {
            if reverse {
                texts.reverse();
            }
            for (text, at, byte) in changes {
                let at = at.index(texts[text].len());
                texts[text][at] = byte;
            }
            let (mut skimmer, mut kept) = (Skimmer::default(), Vec::new());
            let before = skimmer.skim(b"", &texts[0], &MEMBERS, &mut kept).map_or(0, |length| length);
            kept.clear();
            let length = skimmer.skim(&texts[0][..before], &texts[1], &MEMBERS, &mut kept);
            let mut alone = Vec::new();
            prop_assert_eq!(length, Skimmer::default().skim(b"", &texts[1], &MEMBERS, &mut alone));
            if length.is_some() {
                prop_assert_eq!(kept, alone);
            }
        }
    }

    proptest! {
        // A test writes nothing into the sources; what fails is printed.
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn a_broken_object_is_skimmed_as_it_would_be_parsed_or_not_at_all(
            breaks in prop::collection::vec((any::<prop::sample::Index>(), prop::sample::select(BREAKS)), 1..4),
            end in any::<prop::sample::Index>(),
        ) {
            let mut text = OBJECT.as_bytes().to_vec();
            for (at, byte) in breaks {
                text[at.index(OBJECT.len())] = byte;
            }
            text.truncate(end.index(2 * OBJECT.len()));
            if let Some(skimmed) = skimmed(&text) {
                prop_assert_eq!(Some(skimmed), parsed(&text));
            }
        }

        #[test]
        fn a_broken_list_is_refused_the_same_wherever_it_is_cut_off(
            mut text in prop::sample::select([LIST, MACHINES].map(|list| list.as_bytes().to_vec()).to_vec()),
            breaks in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
            end in any::<prop::sample::Index>(),
            chunk in 1_usize..64,
        ) {
            for (at, byte) in breaks {
                let at = at.index(text.len());
                text[at] = byte;
            }
            text.truncate(end.index(2 * text.len()));
            prop_assert_eq!(outcome(chunk, &text), outcome(BUFFER, &text));
        }
    }
}
