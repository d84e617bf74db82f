//! Changes to objects that a command plans, and writes on request. A change is refused if its object was changed or
//! replaced after it was read. If only the status of the object was changed, the change is still written, because the
//! controller and KubeVirt can write the status at any time.

use std::collections::BTreeMap;
use std::fmt;

use anyhow::Context as _;
use kube::Api;
use kube::api::{ApiResource, ObjectMeta, Patch, PatchParams};
use serde::Serialize;
use serde_json::{Value, json};

use crate::cluster::digest::digest as digest_of;
use crate::cluster::key::Key;
use crate::cluster::object::Object;
use crate::cluster::request::{Error, Refusal, ask, find};
use crate::explain::read::{Reader, is_denied};
use crate::explain::text::quoted;

/// Maximum number of attempts to send one change. After a conflict, the change is sent again if only the status of the
/// object has changed.
const ATTEMPTS: usize = 5;
/// Manager of the fields that a change sets.
const MANAGER: &str = "kubectl-glowplug";

/// A planned change of one object, and its outcome.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Write {
    /// Kind, namespace and name of the object.
    pub object: String,
    /// The merge patch.
    pub patch: Value,
    /// Arguments of kubectl that undo the change. In an answer, the whole command line.
    pub undo: String,
    /// Whether the change was sent, and whether the API server stored it.
    pub outcome: Outcome,
    /// The problem of a change that failed or whose outcome is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    #[serde(skip)]
    kind: ApiResource,
    #[serde(skip)]
    key: Key,
    /// Metadata of the object when it was read.
    #[serde(skip)]
    read: ObjectMeta,
}

/// Whether a change was sent, and whether the API server stored it.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Outcome {
    /// `planned`: the change was not sent.
    Planned,
    /// `written`: the API server has stored the change.
    Written,
    /// `failed`: the API server has refused the change.
    Failed,
    /// `unknown`: the API server has given no definite answer, and may have stored the change.
    Unknown,
}

// === impl Write ===

impl Write {
    /// Creates a change that sets these annotations.
    pub(super) fn annotations(kind: ApiResource, metadata: &ObjectMeta, annotations: &Value) -> Self {
        let names = annotations.as_object().into_iter().flat_map(|all| all.keys());
        let names: Vec<String> = names.map(|name| quoted(&format!("{name}-"))).collect();
        let undo = format!("annotate {} {}", target(&kind, metadata), names.join(" "));
        Self::new(kind, metadata, json!({"metadata": {"annotations": annotations}}), &undo)
    }

    /// Creates a change that adds pre-allocations to a pool: the addresses for each name.
    pub(super) fn pre_allocations(kind: ApiResource, metadata: &ObjectMeta, names: &BTreeMap<String, String>) -> Self {
        let none: BTreeMap<&String, ()> = names.keys().map(|name| (name, ())).collect();
        let patch = json!({"spec": {"preAllocations": none}}).to_string();
        let undo = format!("patch {} --type merge -p {}", target(&kind, metadata), quoted(&patch));
        Self::new(kind, metadata, json!({"spec": {"preAllocations": names}}), &undo)
    }

    fn new(kind: ApiResource, metadata: &ObjectMeta, mut patch: Value, undo: &str) -> Self {
        // Because of these members, the API server refuses the patch if the object was changed or replaced after it was
        // read.
        patch["metadata"]["uid"] = json!(metadata.uid);
        patch["metadata"]["resourceVersion"] = json!(metadata.resource_version);
        let key = Key::of(metadata);
        let name = if key.namespace.is_empty() { key.name.clone() } else { key.to_string() };
        let (object, undo) = (format!("{} {name}", kind.kind), undo.to_owned());
        Self { object, patch, undo, outcome: Outcome::Planned, problem: None, kind, key, read: metadata.clone() }
    }

    /// Sends the change and stores its outcome. A refusal is not returned as an error, because it concerns only this
    /// object.
    pub(super) async fn send(&mut self, reader: &Reader) {
        let client = reader.client().clone();
        let api: Api<Object> = match self.key.namespace.as_str() {
            "" => Api::all_with(client, &self.kind),
            namespace => Api::namespaced_with(client, namespace, &self.kind),
        };
        let params = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
        let mut attempts = 1..ATTEMPTS;
        let error = loop {
            let Err(error) = ask(api.patch(&self.key.name, &params, &Patch::Merge(&self.patch))).await else {
                self.outcome = Outcome::Written;
                return;
            };
            let is_conflict = matches!(error.refusal(), Some(Refusal::Other));
            if !is_conflict || attempts.next().is_none() {
                break error;
            }
            match ask(find(&api, &self.key.name)).await {
                Ok(Some(now)) if has_only_another_status(&self.read, &now.metadata) => {
                    self.patch["metadata"]["resourceVersion"] = json!(now.metadata.resource_version);
                }
                _ => break error,
            }
        };
        if let Error::Request(request) = &error
            && is_denied(request)
        {
            let namespace = Some(self.key.namespace.as_str()).filter(|namespace| !namespace.is_empty());
            reader.note_lacking("patch", &self.kind, namespace);
        }
        let (outcome, problem) = match error.refusal() {
            Some(Refusal::Other | Refusal::Absent) => {
                (Outcome::Failed, "the object has changed: run the command again".to_owned())
            }
            Some(Refusal::ForGood(_)) => (Outcome::Failed, error.to_string()),
            None => (Outcome::Unknown, format!("{error}: the API server may have stored the change")),
        };
        (self.outcome, self.problem) = (outcome, Some(problem));
    }

    /// The names and values of the members that the patch sets.
    pub(super) fn members(&self) -> Vec<[String; 2]> {
        let parts = [&self.patch["metadata"]["annotations"], &self.patch["spec"]["preAllocations"]];
        let members = parts.into_iter().filter_map(Value::as_object).flatten();
        let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        members.map(|(name, value)| [name.clone(), text(value)]).collect()
    }
}

/// Whether an object is unchanged since it was read, except for its status: specification, labels and annotations are
/// the same.
fn has_only_another_status(read: &ObjectMeta, now: &ObjectMeta) -> bool {
    let of = |metadata: &ObjectMeta| {
        let ObjectMeta { uid, generation, labels, annotations, deletion_timestamp, .. } = metadata.clone();
        (uid, generation, labels, annotations, deletion_timestamp)
    };
    read.generation.is_some() && of(read) == of(now)
}

/// Returns the digest of changes: 32 hexadecimal digits. Two plans with the same digest set the same members of the
/// same objects to the same values.
pub(super) fn digest(writes: &[Write]) -> anyhow::Result<String> {
    // The digest leaves out `resourceVersion`, which changes with each update of an object. The addresses are in the
    // values of the members.
    let changes = writes.iter().map(|write| json!([write.object, write.patch["metadata"]["uid"], write.members()]));
    let text = Value::from_iter(changes).to_string();
    digest_of(text.as_bytes()).context("no hash function")
}

/// The arguments that name an object in a command of kubectl.
fn target(kind: &ApiResource, metadata: &ObjectMeta) -> String {
    let Key { namespace, name } = Key::of(metadata);
    let resource = format!("{}.{}", kind.plural, kind.group);
    let namespace = if namespace.is_empty() { String::new() } else { format!(" -n {}", quoted(&namespace)) };
    format!("{resource} {}{namespace}", quoted(&name))
}

// === impl Outcome ===

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_undo_command_quotes_names_of_objects_for_the_shell() {
        let metadata = ObjectMeta {
            namespace: Some("n".to_owned()),
            name: Some("a;reboot'$(x)".to_owned()),
            ..ObjectMeta::default()
        };
        let kind = crate::kinds::virtual_machine::virtual_machines();
        let write = Write::annotations(kind, &metadata, &json!({"a/b": "c"}));
        assert_eq!(write.undo, r"annotate virtualmachines.kubevirt.io 'a;reboot'\''$(x)' -n n a/b-");
    }
}
