//! Reads the members of objects and reports values of the wrong shape.

use std::fmt;

use super::value::{Object, Scalar, Value};
use crate::diagnostic::{Diagnostic, Diagnostics, FieldPath, Severity};

/// Maximum number of items in a list, such as links or networks, and of words in one string.
pub const MAX_ITEMS: usize = 4096;

/// Reads the members of objects and reports values of the wrong shape.
pub(super) struct Reader<'f> {
    pub(super) diagnostics: &'f mut Diagnostics,
}

/// The members that an object may have.
#[derive(Clone, Copy)]
pub(super) struct Members {
    /// The names that messages list, in one or two parts.
    pub(super) named: [&'static [&'static str]; 2],
    /// Further known names, which messages do not list, such as other spellings and members without an effect.
    pub(super) others: &'static [&'static str],
}

// === impl Reader ===

impl Reader<'_> {
    /// Reads an array of objects with `read`. An invalid element is reported with the severity `otherwise`.
    pub(super) fn items<T: Default + PartialEq>(
        &mut self,
        parent: &Object,
        at: (&FieldPath<'_>, &str),
        otherwise: Severity,
        read: fn(&mut Self, &Object, &FieldPath<'_>) -> T,
    ) -> Vec<T> {
        let elements = self.array(parent, at, otherwise);
        let path = at.0.field(at.1);
        let read_one = |(index, element): (usize, &Value)| {
            let path = path.index(index);
            // An invalid element becomes a default item. Each later item then keeps the index that it has in the
            // document.
            let item = if let Value::Object(object) = element { read(self, object, &path) } else { T::default() };
            if !matches!(element, Value::Object(_)) {
                self.diagnostics.push(Diagnostic::new(otherwise, path, "invalid item", element, "an object"));
            } else if otherwise == Severity::Error && item == T::default() {
                let expected = "the members that the schema requires";
                self.diagnostics.push(Diagnostic::without_value(otherwise, path, "no known member", expected));
            }
            item
        };
        elements.iter().enumerate().map(read_one).collect()
    }

    /// Reports unknown members, which are misspelt or belong elsewhere. A member with the value `null` is ignored.
    /// `consequence` is the end of the message.
    pub(super) fn report_unknown_members(
        &mut self,
        object: &Object,
        path: &FieldPath<'_>,
        members: Members,
        otherwise: Severity,
        consequence: &str,
    ) {
        for (name, value) in object.members() {
            if *value == Value::Null || members.has(name) {
                continue;
            }
            let expected = format!("{members}{consequence}");
            self.diagnostics.push(Diagnostic::new(otherwise, path.field(name), "unknown member", value, &expected));
        }
    }

    /// Reports unknown members of a format that allows further members, as OpenStack's does: a warning for a probable
    /// misspelling, else a debug message.
    pub(super) fn report_misspelt<'v>(
        &mut self,
        written: impl IntoIterator<Item = (&'v str, &'v Value)>,
        path: &FieldPath<'_>,
        members: Members,
    ) {
        for (name, value) in written {
            if *value == Value::Null || members.has(name) {
                continue;
            }
            let path = path.field(name);
            self.diagnostics.push(match members.misspelt(name) {
                Some(known) => Diagnostic::warning(path, "unknown member", value, known),
                None => Diagnostic::new(Severity::Debug, path, "unknown member", value, &members.to_string()),
            });
        }
    }

    /// The elements of an array. The result is empty for a missing member and for `null`. It is also empty for a value
    /// of another type and for a list that is too long, which are both reported.
    pub(super) fn array<'v>(
        &mut self,
        parent: &'v Object,
        (path, name): (&FieldPath<'_>, &str),
        otherwise: Severity,
    ) -> &'v [Value] {
        match parent.get(name) {
            None | Some(Value::Null) => &[],
            Some(Value::Array(array)) if self.may_have((path, name), array.len()) => array,
            Some(Value::Array(_)) => &[],
            Some(other) => {
                let path = path.field(name);
                self.diagnostics.push(Diagnostic::new(otherwise, path, "invalid list", other, "an array"));
                &[]
            }
        }
    }

    /// The elements of an array. A single string or object counts as an array with one element.
    pub(super) fn values<'v>(
        &mut self,
        parent: &'v Object,
        at: (&FieldPath<'_>, &str),
        otherwise: Severity,
    ) -> &'v [Value] {
        match parent.get(at.1) {
            Some(one @ (Value::String(_) | Value::Object(_))) => std::slice::from_ref(one),
            _ => self.array(parent, at, otherwise),
        }
    }

    /// The object in a member. `None` if the member is missing or `null`. `None` also for any other type, which is
    /// reported.
    pub(super) fn object<'v>(
        &mut self,
        parent: &'v Object,
        (path, name): (&FieldPath<'_>, &str),
        otherwise: Severity,
    ) -> Option<&'v Object> {
        match parent.get(name)? {
            Value::Object(object) => Some(object),
            Value::Null => None,
            other => {
                let path = path.field(name);
                self.diagnostics.push(Diagnostic::new(otherwise, path, "invalid item", other, "an object"));
                None
            }
        }
    }

    /// The boolean in a member, in any spelling that [`switch`] accepts. `None` if the member is missing or `null`. Any
    /// other value is reported, and the result is `None`.
    pub(super) fn switch(
        &mut self,
        parent: &Object,
        (path, name): (&FieldPath<'_>, &str),
        otherwise: Severity,
    ) -> Option<bool> {
        let value = parent.get(name)?;
        let state = switch(value);
        if state.is_none() && *value != Value::Null {
            let path = path.field(name);
            self.diagnostics.push(Diagnostic::new(otherwise, path, "invalid switch", value, "true or false"));
        }
        state
    }

    /// Whether a list of this length is short enough ([`MAX_ITEMS`]). A list that is too long is reported as an error.
    pub(super) fn may_have(&mut self, (path, name): (&FieldPath<'_>, &str), items: usize) -> bool {
        if items > MAX_ITEMS {
            let expected = format!("at most {MAX_ITEMS}");
            self.diagnostics.push(Diagnostic::error(path.field(name), "too many items", items, &expected));
        }
        items <= MAX_ITEMS
    }

    pub(super) fn scalars(&mut self, object: &Object, at: (&FieldPath<'_>, &str), otherwise: Severity) -> Vec<Scalar> {
        // `null` in a list is an invalid element, not a missing list.
        let scalar = |value| Scalar::of(value).unwrap_or_else(|| Scalar::Text("null".to_owned()));
        self.array(object, at, otherwise).iter().map(scalar).collect()
    }

    /// The words of a list, or of one string with blanks or commas between the words.
    pub(super) fn words(&mut self, object: &Object, at: (&FieldPath<'_>, &str), otherwise: Severity) -> Vec<Scalar> {
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

/// Whether `name` differs from `known` by one edit: a letter too many, a letter missing, a wrong letter, or two
/// neighbouring letters swapped. Known names of one or two letters never match, since too many other names are one edit
/// away.
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
    /// The known member that `name` probably means; `None` if no known member is similar.
    pub(super) fn misspelt(&self, name: &str) -> Option<&'static str> {
        self.named.into_iter().flatten().chain(self.others).copied().find(|known| is_misspelt(name, known))
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.named.into_iter().flatten().chain(self.others).any(|known| *known == name)
    }
}

impl fmt::Display for Members {
    /// Writes the names as `a, b or c`, sorted.
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

/// Parses a boolean in the words of YAML 1.1, netplan and cloud-init: `true`, `yes`, `y`, `on`, `1` and their
/// opposites, in upper or lower case.
pub(super) fn switch(value: &Value) -> Option<bool> {
    match value.to_string().to_ascii_lowercase().as_str() {
        "true" | "yes" | "y" | "on" | "1" => Some(true),
        "false" | "no" | "n" | "off" | "0" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_counts_as_misspelt_if_one_edit_gives_the_right_name() {
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
