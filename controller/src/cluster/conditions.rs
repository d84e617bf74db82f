//! Conditions in the status of objects.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta, Time};
use k8s_openapi::jiff::Timestamp;
use serde_json::{Map, Value, json};

/// Longest message of a `v1beta1` condition, in bytes.
const MAX_MESSAGE: usize = 10_240;
/// Longest message of any other condition that an API server accepts, in bytes.
const LONGEST_MESSAGE: usize = 32_768;

/// The condition of one type in the status of an object, without the conditions of other programs, which may be of any size.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Stored {
    /// Path of the list of conditions in the object.
    path: &'static [&'static str],
    /// Number of the first members of the path that exist.
    depth: usize,
    /// The position of the condition in the list, and the members of the condition.
    known: Option<(usize, Map<String, Value>)>,
}

/// The members of a condition.
const MEMBERS: [&str; 7] =
    ["type", "status", "reason", "message", "severity", "observedGeneration", "lastTransitionTime"];

// === impl Stored ===

impl Stored {
    /// Reads the condition of type `type_` in the list at `path` of an object with the members `data`.
    pub(crate) fn read(data: &Value, path: &'static [&'static str], type_: &str) -> Self {
        let (mut value, mut depth) = (data, 0);
        for (index, name) in path.iter().enumerate() {
            let is_last = index + 1 == path.len();
            match value.get(name).filter(|member| if is_last { member.is_array() } else { member.is_object() }) {
                Some(member) => (value, depth) = (member, depth + 1),
                None => break,
            }
        }
        let list = value.as_array().filter(|_| depth == path.len()).map(Vec::as_slice).unwrap_or_default();
        let known = list.iter().position(|condition| condition["type"] == type_);
        let member = |condition: &Value, name: &str| match &condition[name] {
            Value::String(text) => Some((name.to_owned(), head(text).into())),
            Value::Number(number) => Some((name.to_owned(), number.clone().into())),
            _ => None,
        };
        let members = |index: usize| MEMBERS.iter().filter_map(|name| member(&list[index], name)).collect();
        Self { path, depth, known: known.map(|index| (index, members(index))) }
    }

    /// Returns the operation of a JSON patch that sets the condition. `None`: the object has this condition. Conditions of
    /// other programs are kept. `now` is the time of a transition.
    pub(crate) fn set(&self, mut condition: Value, now: Timestamp) -> Option<Value> {
        let time = "lastTransitionTime";
        let since = self.known.as_ref().filter(|(_, known)| known.get("status") == condition.get("status"));
        let since = since.and_then(|(_, known)| known.get(time)).cloned();
        condition[time] = since.unwrap_or_else(|| json!(Time(now)));
        let is_same = self.known.as_ref().is_some_and(|(_, known)| condition.as_object() == Some(known));
        let path = |depth: usize| self.path[..depth].iter().map(|name| format!("/{name}")).collect::<String>();
        let (operation, path, value) = match &self.known {
            _ if is_same => return None,
            Some((index, _)) => ("replace", format!("{}/{index}", path(self.path.len())), condition),
            None if self.depth == self.path.len() => ("add", format!("{}/-", path(self.depth)), condition),
            None => {
                // `status_patch` adds a missing status.
                let depth = self.depth.max(1);
                let missing = self.path[depth + 1..].iter().rev();
                let value = missing.fold(json!([condition]), |value, name| json!({ (*name): value }));
                ("add", path(depth + 1), value)
            }
        };
        Some(json!({"op": operation, "path": path, "value": value}))
    }
}

/// The JSON patch with these operations on the status of an object. `None`: nothing is to be changed.
///
/// The patch has the version of the object, because the operations use positions in lists. The API server answers with 409
/// if it has another version.
pub(crate) fn status_patch(metadata: &ObjectMeta, has_status: bool, operations: Vec<Value>) -> Option<Value> {
    let version = json!({"op": "replace", "path": "/metadata/resourceVersion", "value": metadata.resource_version});
    let status = (!has_status).then(|| json!({"op": "add", "path": "/status", "value": {}}));
    let is_needed = !operations.is_empty();
    is_needed.then(|| [version].into_iter().chain(status).chain(operations).collect())
}

/// The beginning of a message, as long as every version accepts.
pub(crate) fn head(message: &str) -> &str {
    truncate(message, MAX_MESSAGE)
}

/// Returns a condition with the time of its last transition: a condition keeps the time as long as its status is the same.
/// `stored` are the conditions of the object, `generation` is the generation of the object, and `now` is the time of a
/// transition. A message that is too long is truncated.
pub(crate) fn condition(
    stored: &[Condition],
    type_: &str,
    (status, reason, message): (&str, &str, &str),
    generation: Option<i64>,
    now: Timestamp,
) -> Condition {
    let before = stored.iter().find(|before| before.type_ == type_ && before.status == status);
    Condition {
        type_: type_.to_owned(),
        status: status.to_owned(),
        reason: reason.to_owned(),
        message: truncate(message, LONGEST_MESSAGE).to_owned(),
        observed_generation: generation,
        last_transition_time: before.map_or(Time(now), |before| before.last_transition_time.clone()),
    }
}

/// The longest beginning of a text that has at most this number of bytes.
fn truncate(text: &str, bytes: usize) -> &str {
    let end = (0..=bytes.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    &text[..end.unwrap_or_default()]
}

/// The status of an object after a JSON patch of its status.
#[cfg(test)]
pub(crate) fn patched(status: &Value, patch: &Value) -> Value {
    let mut object = json!({"metadata": {"resourceVersion": "7"}, "status": status});
    if status.is_null() {
        object.as_object_mut().unwrap().remove("status");
    }
    json_patch::patch(&mut object, &serde_json::from_value::<json_patch::Patch>(patch.clone()).unwrap()).unwrap();
    object["status"].take()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATH: &[&str] = &["status", "old", "conditions"];

    /// The status after a condition is set. `None`: the status has the condition.
    fn set(status: &Value, condition: Value) -> Option<Value> {
        let stored = Stored::read(&json!({"status": status}), PATH, "Ready");
        let operations = stored.set(condition, Timestamp::UNIX_EPOCH).into_iter().collect();
        Some(patched(status, &status_patch(&ObjectMeta::default(), status.is_object(), operations)?))
    }

    #[test]
    fn a_condition_is_set_whatever_part_of_its_path_exists() {
        let condition = json!({"type": "Ready", "status": "True"});
        let wanted = json!({"type": "Ready", "status": "True", "lastTransitionTime": "1970-01-01T00:00:00Z"});
        let other = json!({"type": "Other"});
        for (status, conditions) in [
            (Value::Null, json!([wanted])),
            (json!({}), json!([wanted])),
            (json!({"old": {}}), json!([wanted])),
            (json!({"old": {"conditions": [other]}}), json!([other, wanted])),
            (json!({"old": {"conditions": [{"type": "Ready", "status": "False"}, other]}}), json!([wanted, other])),
        ] {
            let expected = json!({"old": {"conditions": conditions}});
            assert_eq!(set(&status, condition.clone()), Some(expected.clone()), "{status}");
            assert_eq!(set(&expected, condition.clone()), None, "{status}");
        }
    }

    #[test]
    fn a_condition_keeps_the_time_of_its_last_transition() {
        let stored =
            json!({"old": {"conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "earlier"}]}});
        let time = |status: &str| {
            let set = set(&stored, json!({"type": "Ready", "status": status, "message": "x"})).unwrap();
            set["old"]["conditions"][0]["lastTransitionTime"].clone()
        };
        assert_eq!([time("True"), time("False")], ["earlier", "1970-01-01T00:00:00Z"]);
    }
}
