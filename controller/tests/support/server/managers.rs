//! Managers that own the fields of an object. A real API server shows these managers in `metadata.managedFields`, but
//! this server does not.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::patch::{self, Field, fields};
use super::store::{Call, Refusal};

/// A client that owns fields.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Manager {
    name: String,
    /// Whether the manager owns the fields through server-side apply. One name can belong to two managers, with and
    /// without server-side apply.
    applies: bool,
    subresource: Option<String>,
}

/// The fields that each manager owns.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Managers(BTreeMap<Manager, BTreeSet<Field>>);

// === impl Manager ===

impl Manager {
    /// Returns the manager that a request names or, without a name, the program that sent the request.
    pub fn of(call: &Call) -> Self {
        let agent = call.user_agent.split('/').next().filter(|name| !name.is_empty()).unwrap_or("unknown");
        let name = call.query.get("fieldManager").map_or(agent, String::as_str).to_owned();
        Self { name, applies: call.is_apply(), subresource: call.subresource.clone() }
    }

    /// Describes the manager for the message of a conflict.
    fn describe(&self, version: &str) -> String {
        let of = self.subresource.as_ref().map(|name| format!(" with subresource {name:?}")).unwrap_or_default();
        let using = if self.applies { String::new() } else { format!(" using {version}") };
        format!("{:?}{of}{using}", self.name)
    }
}

// === impl Managers ===

impl Managers {
    /// Records a write other than an apply. Then only this manager owns the fields that the write adds or changes.
    pub fn update(&mut self, manager: Manager, old: &Value, new: &Value) {
        let (before, after) = (fields(old), fields(new));
        let changed = after.iter().filter(|(field, value)| before.get(*field) != Some(value));
        let changed: BTreeSet<Field> = changed.map(|(field, _)| field.clone()).collect();
        for owned in self.0.values_mut() {
            owned.retain(|field| after.contains_key(field) && !changed.contains(field));
        }
        self.0.entry(manager).or_default().extend(changed);
        self.0.retain(|_, owned| !owned.is_empty());
    }

    /// Applies `body` to `old` as server-side apply does, and returns the new object. The manager then owns the fields
    /// of `body`. Fields that only this manager owned, and that `body` lacks, are removed.
    pub fn apply(&mut self, manager: Manager, call: &Call, body: &Value, old: &Value) -> Result<Value, Refusal> {
        let (mine, stored) = (fields(body), fields(old));
        let differs = |field: &Field| mine.get(field).is_some_and(|value| stored.get(field) != Some(value));
        let version = body["apiVersion"].as_str().unwrap_or_default();
        let mut conflicts: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (other, owned) in self.0.iter_mut().filter(|(other, _)| **other != manager) {
            for field in owned.iter().filter(|field| differs(field)) {
                conflicts.entry(other.describe(version)).or_default().push(format!(".{}", field.join(".")));
            }
            owned.retain(|field| !differs(field));
        }
        if !conflicts.is_empty() && call.query.get("force").is_none_or(|force| force != "true") {
            return Err(conflict(&conflicts));
        }
        let before = self.0.insert(manager, mine.keys().cloned().collect()).unwrap_or_default();
        self.0.retain(|_, owned| !owned.is_empty());
        let mut new = patch::merge(old, body);
        for field in before.iter().filter(|field| !self.0.values().any(|owned| owned.contains(*field))) {
            patch::remove(&mut new, field);
        }
        Ok(new)
    }
}

fn conflict(conflicts: &BTreeMap<String, Vec<String>>) -> Refusal {
    let text = match conflicts.values().map(Vec::len).sum() {
        1 => conflicts
            .iter()
            .map(|(manager, fields)| format!("1 conflict: conflict with {manager}: {}", fields[0]))
            .collect(),
        count => {
            let each = conflicts.iter().map(|(manager, fields)| {
                let fields: String = fields.iter().map(|field| format!("\n- {field}")).collect();
                format!("conflicts with {manager}:{fields}")
            });
            format!("{count} conflicts: {}", each.collect::<Vec<_>>().join("\n"))
        }
    };
    Refusal::new(409, "Conflict", format!("Apply failed with {text}"))
}
