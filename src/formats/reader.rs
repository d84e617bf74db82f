//! Reading members of objects, saying what does not fit.

use std::fmt;

use super::value::{Object, Scalar, Value};
use crate::finding::{Finding, Findings, Place, Severity};

/// The most items of a list: of links, of networks, and also of words in one text.
pub const MAX_ITEMS: usize = 4096;

/// Reads members of objects, and says what is not of the right shape.
pub(super) struct Reader<'f> {
    pub(super) findings: &'f mut Findings,
}

/// What an object may have.
#[derive(Clone, Copy)]
pub(super) struct Members {
    /// What a message names, in one or two lists.
    pub(super) named: [&'static [&'static str]; 2],
    /// What is known beside it: other spellings, and what changes nothing here.
    pub(super) others: &'static [&'static str],
}

// === impl Reader ===

impl Reader<'_> {
    /// The elements of an array of objects.
    pub(super) fn items<T: Default + PartialEq>(
        &mut self,
        parent: &Object,
        at: (&Place<'_>, &str),
        otherwise: Severity,
        read: fn(&mut Self, &Object, &Place<'_>) -> T,
    ) -> Vec<T> {
        let elements = self.array(parent, at, otherwise);
        let place = at.0.field(at.1);
        let read_one = |(index, element): (usize, &Value)| {
            let place = place.index(index);
            // What says nothing is a default in the list, so that the places of those that follow stay the document's.
            let item = if let Value::Object(object) = element { read(self, object, &place) } else { T::default() };
            if !matches!(element, Value::Object(_)) {
                self.findings.push(Finding::new(otherwise, place, "invalid item", element.kind(), "an object"));
            } else if otherwise == Severity::Error && item == T::default() {
                let expected = "the members that the schema requires";
                self.findings.push(Finding::without_value(otherwise, place, "nothing known in it", expected));
            }
            item
        };
        elements.iter().enumerate().map(read_one).collect()
    }

    /// Reports the members that nobody knows: they are misspelt, or belong elsewhere. `null` says nothing. `consequence`
    /// ends the message.
    pub(super) fn report_unknown_members(
        &mut self,
        object: &Object,
        place: &Place<'_>,
        members: Members,
        otherwise: Severity,
        consequence: &str,
    ) {
        for (name, value) in object.members() {
            if *value == Value::Null || members.has(name) {
                continue;
            }
            let expected = format!("{members}{consequence}");
            self.findings.push(Finding::new(otherwise, place.field(name), "unknown member", value, &expected));
        }
    }

    /// Reports the members that the format allows but nobody reads: those that are misspelt as warnings.
    pub(super) fn report_misspelt<'v>(
        &mut self,
        written: impl IntoIterator<Item = (&'v str, &'v Value)>,
        place: &Place<'_>,
        members: Members,
    ) {
        for (name, value) in written {
            if *value == Value::Null || members.has(name) {
                continue;
            }
            let place = place.field(name);
            self.findings.push(match members.misspelt(name) {
                Some(known) => Finding::warning(place, "unknown member", value, known),
                None => Finding::new(Severity::Debug, place, "unknown member", value, &members.to_string()),
            });
        }
    }

    /// The elements of an array. `null` is empty; anything else is reported and empty.
    pub(super) fn array<'v>(
        &mut self,
        parent: &'v Object,
        (place, name): (&Place<'_>, &str),
        otherwise: Severity,
    ) -> &'v [Value] {
        match parent.get(name) {
            None | Some(Value::Null) => &[],
            Some(Value::Array(array)) if self.may_have((place, name), array.len()) => array,
            Some(Value::Array(_)) => &[],
            Some(other) => {
                let place = place.field(name);
                self.findings.push(Finding::new(otherwise, place, "invalid list", other.kind(), "an array"));
                &[]
            }
        }
    }

    /// The same where one item may stand without its array.
    pub(super) fn values<'v>(
        &mut self,
        parent: &'v Object,
        at: (&Place<'_>, &str),
        otherwise: Severity,
    ) -> &'v [Value] {
        match parent.get(at.1) {
            Some(one @ (Value::String(_) | Value::Object(_))) => std::slice::from_ref(one),
            _ => self.array(parent, at, otherwise),
        }
    }

    /// An object. `null` is none; anything else is reported and none.
    pub(super) fn object<'v>(
        &mut self,
        parent: &'v Object,
        (place, name): (&Place<'_>, &str),
        otherwise: Severity,
    ) -> Option<&'v Object> {
        match parent.get(name)? {
            Value::Object(object) => Some(object),
            Value::Null => None,
            other => {
                let place = place.field(name);
                self.findings.push(Finding::new(otherwise, place, "invalid item", other.kind(), "an object"));
                None
            }
        }
    }

    /// A switch, also where it is written as a text. `null` is none; anything else is reported and none.
    pub(super) fn switch(
        &mut self,
        parent: &Object,
        (place, name): (&Place<'_>, &str),
        otherwise: Severity,
    ) -> Option<bool> {
        let value = parent.get(name)?;
        let state = switch(value);
        if state.is_none() && *value != Value::Null {
            let place = place.field(name);
            self.findings.push(Finding::new(otherwise, place, "invalid switch", value, "true or false"));
        }
        state
    }

    /// Whether a list may have so many items.
    pub(super) fn may_have(&mut self, (place, name): (&Place<'_>, &str), items: usize) -> bool {
        if items > MAX_ITEMS {
            let expected = format!("at most {MAX_ITEMS}");
            self.findings.push(Finding::error(place.field(name), "too many items", items, &expected));
        }
        items <= MAX_ITEMS
    }

    pub(super) fn scalars(&mut self, object: &Object, at: (&Place<'_>, &str), otherwise: Severity) -> Vec<Scalar> {
        // Here `null` is no absence: it stands where an element was meant.
        let scalar = |value| Scalar::of(value).unwrap_or_else(|| Scalar::Text("null".to_owned()));
        self.array(object, at, otherwise).iter().map(scalar).collect()
    }

    /// A list of words, or one text with blanks or commas between them.
    pub(super) fn words(&mut self, object: &Object, at: (&Place<'_>, &str), otherwise: Severity) -> Vec<Scalar> {
        let Some(Value::String(text)) = object.get(at.1) else {
            return self.scalars(object, at, otherwise);
        };
        let words = || text.split(|c: char| c.is_ascii_whitespace() || c == ',').filter(|word| !word.is_empty());
        if !self.may_have(at, words().count()) {
            return Vec::new();
        }
        words().map(|word| Scalar::Text(word.to_owned())).collect()
    }
}

/// Whether a name is another one with one letter too many, too few, wrong, or in its neighbour's place. Names of two
/// letters are too short to tell.
pub(super) fn is_misspelt(name: &str, known: &str) -> bool {
    let (name, known) = (name.as_bytes(), known.as_bytes());
    if known.len() < 3 || name == known || name.len().abs_diff(known.len()) > 1 {
        return false;
    }
    let same = name.iter().zip(known).take_while(|(a, b)| a == b).count();
    let (name, known) = (&name[same..], &known[same..]);
    match (name, known) {
        ([a, b, ..], [c, d, ..]) if a == d && b == c && name[2..] == known[2..] => true,
        ([_, ..], [_, ..]) if name[1..] == known[1..] => true,
        ([_, ..], _) if name[1..] == *known => true,
        (_, [_, ..]) => known[1..] == *name,
        _ => false,
    }
}

// === impl Members ===

impl Members {
    /// A known member of which a name is a misspelling.
    pub(super) fn misspelt(&self, name: &str) -> Option<&'static str> {
        self.named.into_iter().flatten().chain(self.others).copied().find(|known| is_misspelt(name, known))
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.named.into_iter().flatten().chain(self.others).any(|known| *known == name)
    }
}

impl fmt::Display for Members {
    /// `a, b or c`, sorted.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut names = self.named.concat();
        names.sort_unstable();
        for (at, name) in names.iter().enumerate() {
            let before = match at {
                0 => "",
                at if at + 1 == names.len() => " or ",
                _ => ", ",
            };
            write!(f, "{before}{name}")?;
        }
        Ok(())
    }
}

/// On or off, in the words that YAML 1.1 and cloud-init have for it.
pub(super) fn switch(value: &Value) -> Option<bool> {
    match value.to_string().to_ascii_lowercase().as_str() {
        "true" | "yes" | "on" | "1" => Some(true),
        "false" | "no" | "off" | "0" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelt_name_is_one_edit_away() {
        for name in ["netmsk", "netmasks", "netmazk", "entmask", "netmaks", "etmask", "netmaskk"] {
            assert!(is_misspelt(name, "netmask"), "{name}");
        }
        for name in ["netmask", "netmsak2", "mask", "nemtaks", "gateway", "netmas", ""] {
            let expected = name == "netmas";
            assert_eq!(is_misspelt(name, "netmask"), expected, "{name}");
        }
        assert!(!is_misspelt("ip", "id"));
    }
}
