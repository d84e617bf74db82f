//! Reads the members of objects in documents, and reports unknown members.

use crate::diagnostic::{Diagnostic, Diagnostics, FieldPath, Severity, one_of};
use crate::formats::value::{Object, Value, Whole};

/// Description of a subnet, for messages.
pub(crate) const SUBNET: &str = "the CIDR of a subnet, such as 10.0.0.0/24";

/// Reads members of an object and remembers the names of allowed members.
pub(crate) struct Members<'a> {
    object: &'a Object,
    pub(crate) path: FieldPath<'a>,
    known: Vec<&'static str>,
}

// === impl Members ===

impl<'a> Members<'a> {
    pub(crate) fn new(object: &'a Object, path: FieldPath<'a>) -> Self {
        Self { object, path, known: Vec::new() }
    }

    /// Returns a member, unless its value is `null`.
    pub(crate) fn get(&mut self, name: &'static str) -> Option<&'a Value> {
        self.allow(&[name]);
        self.object.get(name).filter(|value| **value != Value::Null)
    }

    /// Allows members that are not read.
    pub(crate) fn allow(&mut self, names: &[&'static str]) {
        for name in names {
            if !self.known.contains(name) {
                self.known.push(name);
            }
        }
    }

    /// Whether a member has a value other than `null`.
    pub(crate) fn has(&mut self, name: &'static str) -> bool {
        self.get(name).is_some()
    }

    pub(crate) fn text(&mut self, name: &'static str, diagnostics: &mut Diagnostics) -> Option<String> {
        let value = self.get(name)?;
        string(value, self.path.field(name), diagnostics)
    }

    /// The strings of a list, up to the first element of another type, so that each string keeps its index in the list.
    pub(crate) fn strings(&mut self, name: &'static str, diagnostics: &mut Diagnostics) -> Vec<String> {
        let path = self.path;
        let list = path.field(name);
        let elements = self.list(name, diagnostics).iter().enumerate();
        let strings: Vec<Option<String>> =
            elements.map(|(at, value)| string(value, list.index(at), diagnostics)).collect();
        strings.into_iter().map_while(|string| string).collect()
    }

    /// Reads a required member: a string that is not empty.
    pub(crate) fn required_text(
        &mut self,
        name: &'static str,
        expected: &str,
        diagnostics: &mut Diagnostics,
    ) -> Option<String> {
        let path = self.path;
        if !self.has(name) {
            diagnostics.push(Diagnostic::without_value(Severity::Error, path.field(name), "missing", expected));
        }
        let text = self.text(name, diagnostics)?;
        if text.is_empty() {
            diagnostics.push(Diagnostic::error(path.field(name), "invalid value", "", expected));
            return None;
        }
        Some(text)
    }

    pub(crate) fn object(&mut self, name: &'static str, diagnostics: &mut Diagnostics) -> Option<&'a Object> {
        match self.get(name)? {
            Value::Object(object) => Some(object),
            other => {
                diagnostics.push(Diagnostic::error(self.path.field(name), "invalid value", Whole(other), "an object"));
                None
            }
        }
    }

    pub(crate) fn switch(&mut self, name: &'static str, diagnostics: &mut Diagnostics) -> bool {
        match self.get(name) {
            None => false,
            Some(Value::Bool(value)) => *value,
            Some(other) => {
                diagnostics.push(Diagnostic::error(
                    self.path.field(name),
                    "invalid value",
                    Whole(other),
                    "true or false",
                ));
                false
            }
        }
    }

    /// Reads a whole number.
    pub(crate) fn number(&mut self, name: &'static str, expected: &str, diagnostics: &mut Diagnostics) -> Option<i64> {
        match self.get(name)? {
            Value::Integer(number) => Some(*number),
            other => {
                diagnostics.push(Diagnostic::error(self.path.field(name), "invalid value", Whole(other), expected));
                None
            }
        }
    }

    /// Reads a number of seconds. 0 when the member is absent.
    pub(crate) fn seconds(&mut self, name: &'static str, diagnostics: &mut Diagnostics) -> u32 {
        let Some(value) = self.get(name) else { return 0 };
        let seconds = match value {
            Value::Integer(seconds) => u32::try_from(*seconds).ok(),
            _ => None,
        };
        seconds.unwrap_or_else(|| {
            let expected = "a number of seconds, 0 to 4294967295";
            diagnostics.push(Diagnostic::error(self.path.field(name), "invalid value", Whole(value), expected));
            0
        })
    }

    pub(crate) fn list(&mut self, name: &'static str, diagnostics: &mut Diagnostics) -> &'a [Value] {
        match self.get(name) {
            None => &[],
            Some(Value::Array(elements)) => elements,
            Some(other) => {
                diagnostics.push(Diagnostic::error(self.path.field(name), "invalid list", Whole(other), "an array"));
                &[]
            }
        }
    }

    /// The objects of a list, each with its index.
    pub(crate) fn objects(&mut self, name: &'static str, diagnostics: &mut Diagnostics) -> Vec<(usize, &'a Object)> {
        let path = self.path;
        let list = path.field(name);
        let mut objects = Vec::new();
        for (at, element) in self.list(name, diagnostics).iter().enumerate() {
            match element {
                Value::Object(object) => objects.push((at, object)),
                other => diagnostics.push(Diagnostic::error(list.index(at), "invalid item", Whole(other), "an object")),
            }
        }
        objects
    }

    /// The elements of a list as strings. An element of another type becomes a string that the parsers of these lists
    /// reject.
    pub(crate) fn texts(&mut self, name: &'static str, diagnostics: &mut Diagnostics) -> Vec<String> {
        self.list(name, diagnostics).iter().map(|value| Whole(value).to_string()).collect()
    }

    /// The members of an object as strings, in their order. A value of another type becomes a string, as in
    /// [`Self::texts`].
    pub(crate) fn text_map(&mut self, name: &'static str, diagnostics: &mut Diagnostics) -> Vec<(String, String)> {
        match self.get(name) {
            None => Vec::new(),
            Some(Value::Object(object)) => {
                object.members().into_iter().map(|(name, value)| (name.to_owned(), Whole(value).to_string())).collect()
            }
            Some(other) => {
                let expected = "an object with names and their addresses";
                diagnostics.push(Diagnostic::error(self.path.field(name), "invalid value", Whole(other), expected));
                Vec::new()
            }
        }
    }

    /// The CIDRs of `machineNetwork` as strings, up to the first invalid element, so that each CIDR keeps its index in
    /// the list.
    pub(crate) fn machine_network(&mut self, diagnostics: &mut Diagnostics) -> Vec<String> {
        let path = self.path;
        let list = path.field("machineNetwork");
        let mut networks = Vec::new();
        for (at, element) in self.list("machineNetwork", diagnostics).iter().enumerate() {
            let path = list.index(at);
            let Value::Object(network) = element else {
                diagnostics.push(Diagnostic::error(path, "invalid item", Whole(element), "an object with a cidr"));
                continue;
            };
            let mut members = Members::new(network, path);
            match members.text("cidr", diagnostics) {
                Some(cidr) if networks.len() == at => networks.push(cidr),
                Some(_) => {}
                None => {
                    diagnostics.push(Diagnostic::without_value(Severity::Error, path.field("cidr"), "missing", SUBNET))
                }
            }
            members.finish(Severity::Error, diagnostics);
        }
        networks
    }

    /// Reports unknown members.
    pub(crate) fn finish(self, severity: Severity, diagnostics: &mut Diagnostics) {
        for (name, _) in self.object.members() {
            if !self.known.contains(&name) {
                let expected = one_of(&self.known);
                diagnostics.push(Diagnostic::without_value(severity, self.path.field(name), "unknown key", &expected));
            }
        }
    }
}

/// Reads a value that must be a string.
fn string(value: &Value, path: FieldPath<'_>, diagnostics: &mut Diagnostics) -> Option<String> {
    if let Value::String(text) = value {
        return Some(text.clone());
    }
    // YAML reads some words as booleans or numbers: the network `n` is read as false.
    let expected = match value {
        Value::Bool(true) => "a string, written with quotes in YAML, where y, yes and on mean true",
        Value::Bool(false) => "a string, written with quotes in YAML, where n, no and off mean false",
        Value::Integer(_) | Value::Fraction(_) => "a string, written with quotes in YAML",
        _ => "a string",
    };
    diagnostics.push(Diagnostic::error(path, "invalid value", Whole(value), expected));
    None
}
