//! Conditions in the status of objects.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

/// Longest message of a `v1beta1` condition, in bytes.
const MAX_MESSAGE: usize = 10_240;

/// The stored conditions, with `condition` instead of the stored condition of its type.
pub(crate) fn set_condition(stored: &Value, mut condition: Value, now: Timestamp) -> Vec<Value> {
    let mut conditions = stored.as_array().cloned().unwrap_or_default();
    let before = conditions.iter_mut().find(|before| before["type"] == condition["type"]);
    let since = before.as_ref().filter(|before| before["status"] == condition["status"]);
    let since = since.map_or_else(|| json!(Time(now)), |before| before["lastTransitionTime"].clone());
    condition["lastTransitionTime"] = since;
    match before {
        Some(before) => *before = condition,
        None => conditions.push(condition),
    }
    conditions
}

/// Whether `value` has every member of `wanted`. Lists must be equal.
pub(crate) fn contains(value: &Value, wanted: &Value) -> bool {
    match wanted {
        Value::Object(members) => members.iter().all(|(name, member)| contains(&value[name], member)),
        _ => value == wanted,
    }
}

/// The beginning of a message, as long as every version accepts.
pub(crate) fn head(message: &str) -> &str {
    let end = (0..=MAX_MESSAGE.min(message.len())).rev().find(|end| message.is_char_boundary(*end));
    &message[..end.unwrap_or_default()]
}
