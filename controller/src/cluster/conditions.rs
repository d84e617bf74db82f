//! Conditions in the status of objects.

use std::collections::BTreeMap;
use std::fmt::Display;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta, Time};
use k8s_openapi::jiff::Timestamp;
use serde_json::{Map, Value, json};

/// Longest message of a `v1beta1` condition, in bytes.
const MAX_MESSAGE: usize = 10_240;
/// Maximum number of lines in a message that has a line for each address or lease.
pub(crate) const MOST_LINES: usize = 20;
/// Type of the condition that reports an address with two users in a pool.
pub(crate) const DUPLICATE_RECORDS: &str = "DuplicateRecords";
/// Type of the condition that reports unreadable leases of a pool.
pub(crate) const UNREADABLE_LEASES: &str = "UnreadableLeases";
/// Reason of the condition [`UNREADABLE_LEASES`].
pub(crate) const DAMAGED_LEASES: &str = "DamagedLeases";
/// Type of the condition that reports new addresses of a pool that are not allocated, because records cannot be adopted.
pub(crate) const UNADOPTED_RECORDS: &str = "UnadoptedRecords";
/// Longest message, in bytes, that an API server accepts in a condition that is not a `v1beta1` condition.
pub(crate) const LONGEST_MESSAGE: usize = 32_768;

/// The stored conditions of some types, from a list in the status of an object. Conditions of other types are left out,
/// because other programs may write conditions of any size.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Stored {
    /// Path of the list of conditions in the object.
    path: &'static [&'static str],
    /// Number of members of the path, from its beginning, that exist in the object.
    depth: usize,
    /// The conditions by their type: the position in the list, and the members.
    known: BTreeMap<&'static str, (usize, Map<String, Value>)>,
}

/// Names of the members of a condition that are kept.
const MEMBERS: [&str; 7] =
    ["type", "status", "reason", "message", "severity", "observedGeneration", "lastTransitionTime"];

/// Returns the message of the condition [`UNREADABLE_LEASES`]. Each item of `leases` is an unreadable lease: its
/// address, its name, and why it cannot be read. `None`: every lease can be read.
pub(crate) fn unreadable_leases<'l, A: Display>(
    leases: impl IntoIterator<Item = (A, &'l str, &'l str)>,
) -> Option<String> {
    message_of(leases.into_iter().map(|(address, name, reason)| unreadable_lease(&address, name, reason)))
}

/// Returns a message with the first [`MOST_LINES`] lines, and the number of the others. `None`: there are no lines.
pub(crate) fn message_of(lines: impl IntoIterator<Item = String>) -> Option<String> {
    let mut lines = lines.into_iter();
    let mut first: Vec<String> = lines.by_ref().take(MOST_LINES).collect();
    let others = lines.count();
    first.extend((others > 0).then(|| format!("and {others} more")));
    (!first.is_empty()).then(|| first.join("\n"))
}

/// Returns the message about an unreadable lease.
pub(crate) fn unreadable_lease(address: &impl Display, name: &str, reason: &str) -> String {
    format!("{address}: StaticIPLease {name} cannot be read: {reason}")
}

// === impl Stored ===

impl Stored {
    /// Reads the conditions of these types in the list at `path` of an object with the members `data`.
    pub(crate) fn read(data: &Value, path: &'static [&'static str], types: &[&'static str]) -> Self {
        let (mut value, mut depth) = (data, 0);
        for (index, name) in path.iter().enumerate() {
            let is_last = index + 1 == path.len();
            match value.get(name).filter(|member| if is_last { member.is_array() } else { member.is_object() }) {
                Some(member) => (value, depth) = (member, depth + 1),
                None => break,
            }
        }
        let list = value.as_array().filter(|_| depth == path.len()).map(Vec::as_slice).unwrap_or_default();
        let member = |condition: &Value, name: &str| match &condition[name] {
            Value::String(text) => Some((name.to_owned(), head(text).into())),
            Value::Number(number) => Some((name.to_owned(), number.clone().into())),
            _ => None,
        };
        let known = types.iter().filter_map(|type_| {
            let index = list.iter().position(|condition| condition["type"] == *type_)?;
            let members = MEMBERS.iter().filter_map(|name| member(&list[index], name)).collect();
            Some((*type_, (index, members)))
        });
        Self { path, depth, known: known.collect() }
    }

    /// Returns the operations of a JSON patch that set these conditions. The result is empty if the object already has
    /// the conditions. Conditions of other programs are kept. `now` becomes the transition time of each condition whose
    /// status changes.
    pub(crate) fn set(&self, conditions: impl IntoIterator<Item = Value>, now: Timestamp) -> Vec<Value> {
        let path = |depth: usize| self.path[..depth].iter().map(|name| format!("/{name}")).collect::<String>();
        let operation =
            |operation: &str, path: String, value: Value| json!({"op": operation, "path": path, "value": value});
        let (mut operations, mut new) = (Vec::new(), Vec::new());
        for mut condition in conditions {
            let known = condition["type"].as_str().and_then(|type_| self.known.get(type_));
            let time = "lastTransitionTime";
            let since = known.filter(|(_, known)| known.get("status") == condition.get("status"));
            let since = since.and_then(|(_, known)| known.get(time)).cloned();
            condition[time] = since.unwrap_or_else(|| json!(Time(now)));
            match known {
                Some((_, known)) if condition.as_object() == Some(known) => {}
                Some((index, _)) => {
                    operations.push(operation("replace", format!("{}/{index}", path(self.path.len())), condition));
                }
                None => new.push(condition),
            }
        }
        if self.depth == self.path.len() {
            operations.extend(new.into_iter().map(|new| operation("add", format!("{}/-", path(self.depth)), new)));
        } else if !new.is_empty() {
            // The first member of the path is `status`. `status_patch` adds `status` if the object has none.
            let depth = self.depth.max(1);
            let missing = self.path[depth + 1..].iter().rev();
            let value = missing.fold(json!(new), |value, name| json!({ (*name): value }));
            operations.push(operation("add", path(depth + 1), value));
        }
        operations
    }
}

/// Returns a JSON patch with these operations on the status of an object. `None`: there is no operation.
///
/// The operations use positions in lists, so the patch also names the version of the object. The API server answers
/// with 409 if the object has another version.
pub(crate) fn status_patch(metadata: &ObjectMeta, has_status: bool, operations: Vec<Value>) -> Option<Value> {
    let version = json!({"op": "replace", "path": "/metadata/resourceVersion", "value": metadata.resource_version});
    let status = (!has_status).then(|| json!({"op": "add", "path": "/status", "value": {}}));
    let is_needed = !operations.is_empty();
    is_needed.then(|| [version].into_iter().chain(status).chain(operations).collect())
}

/// Returns the beginning of a message that is short enough for a condition of every API version.
pub(crate) fn head(message: &str) -> &str {
    truncate(message, MAX_MESSAGE)
}

/// Returns a condition with the time of its last transition. The time changes only when the status of the condition
/// changes. `stored` has the conditions of the object, `generation` is the generation of the object, and `now` is the
/// time of a new transition. A message that is too long is truncated.
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

/// Reason of a condition of an object that is being deleted.
pub(crate) const DELETING: &str = "Deleting";

/// Reason of a condition of an object whose specification has errors.
pub(crate) const INVALID_SPEC: &str = "InvalidSpec";

/// Type of the condition of an object that an API server stored under an earlier schema and that the current schema
/// refuses.
pub(crate) const SCHEMA_VIOLATED: &str = "SchemaViolated";

/// Reason of the condition [`SCHEMA_VIOLATED`].
pub(crate) const EARLIER_SCHEMA: &str = "EarlierSchema";

/// Returns status, reason and message of the condition `Stalled`, derived from those of the condition `Ready`. Errors
/// of a specification last until a user changes the object. Every other reason can end without a change of the object.
/// For example, an overlap ends when the other pool is deleted, and addresses are no longer in use when their leases
/// are released.
///
/// Tools that follow the conventions of [kstatus] report a stalled object as failed. They report an object that is
/// neither ready nor stalled as in progress.
///
/// [kstatus]: https://github.com/kubernetes-sigs/cli-utils/blob/master/pkg/kstatus/README.md
pub(crate) fn stalled<'m>(
    (status, reason, message): (&'static str, &'static str, &'m str),
) -> (&'static str, &'static str, &'m str) {
    match (status, reason) {
        ("False", INVALID_SPEC) => ("True", reason, message),
        _ => ("False", "NotStalled", "No user has to change the object"),
    }
}

/// Cuts a text between characters, to at most this number of bytes.
fn truncate(text: &str, bytes: usize) -> &str {
    let end = (0..=bytes.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    &text[..end.unwrap_or_default()]
}

/// Returns the status of an object after a JSON patch of the object.
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

    /// Returns the status after the condition is set. `None`: no operation is needed.
    fn set(status: &Value, condition: Value) -> Option<Value> {
        set_all(status, [condition])
    }

    fn set_all<const N: usize>(status: &Value, conditions: [Value; N]) -> Option<Value> {
        let stored = Stored::read(&json!({"status": status}), PATH, &["Ready", "Paused"]);
        let operations = stored.set(conditions, Timestamp::UNIX_EPOCH);
        Some(patched(status, &status_patch(&ObjectMeta::default(), status.is_object(), operations)?))
    }

    #[test]
    fn a_condition_is_set_no_matter_which_part_of_its_path_exists() {
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
    fn two_conditions_are_set_no_matter_which_part_of_their_path_exists() {
        let condition = |type_: &str, status: &str| json!({"type": type_, "status": status});
        let wanted =
            |type_: &str| json!({"type": type_, "status": "True", "lastTransitionTime": "1970-01-01T00:00:00Z"});
        let [ready, paused] = ["Ready", "Paused"].map(wanted);
        let other = json!({"type": "Other"});
        for (status, conditions) in [
            (Value::Null, json!([ready, paused])),
            (json!({}), json!([ready, paused])),
            (json!({"old": {"conditions": []}}), json!([ready, paused])),
            (json!({"old": {"conditions": [other, condition("Paused", "False")]}}), json!([other, paused, ready])),
            (json!({"old": {"conditions": [paused, condition("Ready", "False")]}}), json!([paused, ready])),
        ] {
            let expected = json!({"old": {"conditions": conditions}});
            let both = || ["Ready", "Paused"].map(|type_| condition(type_, "True"));
            assert_eq!(set_all(&status, both()), Some(expected.clone()), "{status}");
            assert_eq!(set_all(&expected, both()), None, "{status}");
        }
    }

    #[test]
    fn an_object_is_stalled_if_a_user_must_change_it() {
        assert_eq!(stalled(("False", "InvalidSpec", "x")), ("True", "InvalidSpec", "x"));
        let moving = ("False", "NotStalled", "No user has to change the object");
        let waiting = [DELETING, "InUse", "PoolOverlap"].map(|reason| ("False", reason, "x"));
        for ready in waiting.into_iter().chain([("True", "Serving", "x"), ("Unknown", "NotReady", "x")]) {
            assert_eq!(stalled(ready), moving);
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
