//! Changes to an object as JSON patch operations (RFC 6902).

use serde_json::{Map, Value, json};

use crate::cluster::object::Object;

/// An object with its changes applied, and the operations that made the changes.
#[derive(Debug)]
pub(crate) struct Edit {
    value: Value,
    operations: Vec<Value>,
}

// === impl Edit ===

impl Edit {
    /// Begins an edit of an object, without operations.
    ///
    /// # Errors
    ///
    /// The object cannot be written as JSON.
    pub(crate) fn of(object: &Object) -> Result<Self, serde_json::Error> {
        Ok(Self { value: serde_json::to_value(object)?, operations: Vec::new() })
    }

    /// Sets a member of an object. Creates missing objects in `path`, and replaces a value that cannot contain the next
    /// member by an object. Items of lists must already exist.
    pub(crate) fn set(&mut self, path: &[impl AsRef<str>], value: Value) {
        let mut place = &mut self.value;
        for (depth, name) in path.iter().enumerate() {
            let name = name.as_ref();
            let known = member(place, name);
            let next = path.get(depth + 1).map(AsRef::as_ref);
            if next.is_none() && known == Some(&value) {
                return;
            }
            let can_hold = |it: &Value, next: &str| it.is_object() || member(it, next).is_some();
            if !known.zip(next).is_some_and(|(known, next)| can_hold(known, next)) {
                let nested = path[depth + 1..]
                    .iter()
                    .rev()
                    .fold(value, |value, name| Value::Object(Map::from_iter([(name.as_ref().to_owned(), value)])));
                self.operations.push(json!({"op": "add", "path": pointer(&path[..=depth]), "value": nested}));
                match (place, name.parse::<usize>()) {
                    (Value::Object(members), _) => drop(members.insert(name.to_owned(), nested)),
                    (Value::Array(items), Ok(index)) => {
                        items.get_mut(index).into_iter().for_each(|item| *item = nested.clone())
                    }
                    _ => {}
                }
                return;
            }
            let Some(next) = member_mut(place, name) else { return };
            place = next;
        }
    }

    /// Removes a member, if it exists.
    pub(crate) fn remove(&mut self, path: &[impl AsRef<str>]) {
        let Some((last, parents)) = path.split_last() else { return };
        let mut place = Some(&mut self.value);
        for name in parents {
            place = place.and_then(|place| member_mut(place, name.as_ref()));
        }
        let removed = place.and_then(Value::as_object_mut).and_then(|members| members.remove(last.as_ref()));
        if removed.is_some() {
            self.operations.push(json!({"op": "remove", "path": pointer(path)}));
        }
    }

    /// Returns the operations, in the order in which they must be applied.
    pub(crate) fn operations(self) -> Vec<Value> {
        self.operations
    }
}

/// Returns the JSON pointer (RFC 6901) for a path of names.
pub(crate) fn pointer(path: &[impl AsRef<str>]) -> String {
    path.iter().map(|name| format!("/{}", name.as_ref().replace('~', "~0").replace('/', "~1"))).collect()
}

fn member<'v>(value: &'v Value, name: &str) -> Option<&'v Value> {
    match value {
        Value::Object(members) => members.get(name),
        Value::Array(items) => items.get(name.parse::<usize>().ok()?),
        _ => None,
    }
}

fn member_mut<'v>(value: &'v mut Value, name: &str) -> Option<&'v mut Value> {
    match value {
        Value::Object(members) => members.get_mut(name),
        Value::Array(items) => items.get_mut(name.parse::<usize>().ok()?),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the operations of a change. Checks that the operations turn `before` into the value of the edit.
    fn operations(before: &Value, change: impl FnOnce(&mut Edit)) -> Vec<Value> {
        let mut edit = Edit { value: before.clone(), operations: Vec::new() };
        change(&mut edit);
        let mut patched = before.clone();
        let patch: json_patch::Patch = serde_json::from_value(edit.operations.clone().into()).unwrap();
        json_patch::patch(&mut patched, &patch).unwrap();
        assert_eq!(patched, edit.value);
        edit.operations
    }

    #[test]
    fn setting_a_member_creates_the_missing_objects_of_its_path() {
        let object = json!({"spec": {"labels": {"a": "b"}, "list": [{"x": {}}], "text": "t"}});
        let set = |path: &[&str]| operations(&object, |edit| edit.set(path, json!("v")));
        let add = |path: &str, value: Value| vec![json!({"op": "add", "path": path, "value": value})];
        assert_eq!(set(&["spec", "labels", "a/b~"]), add("/spec/labels/a~1b~0", json!("v")));
        assert_eq!(set(&["spec", "labels", "a"]), add("/spec/labels/a", json!("v")));
        assert_eq!(set(&["spec", "more", "a", "b"]), add("/spec/more", json!({"a": {"b": "v"}})));
        assert_eq!(set(&["spec", "list", "0", "x", "y"]), add("/spec/list/0/x/y", json!("v")));
        assert_eq!(set(&["spec", "text", "a"]), add("/spec/text", json!({"a": "v"})));
        assert_eq!(set(&["spec", "list", "a"]), add("/spec/list", json!({"a": "v"})));
    }

    #[test]
    fn a_member_that_has_the_value_needs_no_operation() {
        let object = json!({"a": {"b": "v"}});
        assert_eq!(operations(&object, |edit| edit.set(&["a", "b"], json!("v"))), [] as [Value; 0]);
        assert_eq!(operations(&object, |edit| edit.remove(&["a", "c"])), [] as [Value; 0]);
        assert_eq!(operations(&object, |edit| edit.remove(&["x", "c"])), [] as [Value; 0]);
    }

    #[test]
    fn a_removed_member_can_be_set_again() {
        let object = json!({"a": {"b": "v"}});
        let change = |edit: &mut Edit| {
            edit.remove(&["a", "b"]);
            edit.set(&["a", "b"], json!("w"));
        };
        let expected = [json!({"op": "remove", "path": "/a/b"}), json!({"op": "add", "path": "/a/b", "value": "w"})];
        assert_eq!(operations(&object, change), expected);
    }
}
