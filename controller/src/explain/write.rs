//! Changes of objects that a command plans, and writes on request. The API server refuses a change if the object is no longer the one that
//! was read.

use std::fmt;

use anyhow::bail;
use kube::Api;
use kube::api::{ApiResource, Patch, PatchParams};
use serde::Serialize;
use serde_json::Value;

use crate::cluster::key::Key;
use crate::cluster::object::Object;
use crate::cluster::request::{Reason, Refusal, refusal};
use crate::explain::read::{Reader, is_denied};

/// A change of one object.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Write {
    /// Kind, namespace and name of the object.
    pub object: String,
    /// The merge patch.
    pub patch: Value,
    /// What has become of the change.
    pub outcome: Outcome,
    /// The problem of a change that failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    #[serde(skip)]
    kind: ApiResource,
    #[serde(skip)]
    key: Key,
}

/// What has become of a change.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Outcome {
    /// `planned`: nothing is written without `--apply`.
    Planned,
    /// `written`: the API server has stored the change.
    Written,
    /// `failed`: the API server has refused the change.
    Failed,
}

// === impl Write ===

impl Write {
    pub(super) fn new(kind: ApiResource, key: Key, patch: Value) -> Self {
        let name = if key.namespace.is_empty() { key.name.clone() } else { key.to_string() };
        Self { object: format!("{} {name}", kind.kind), patch, outcome: Outcome::Planned, problem: None, kind, key }
    }

    /// Writes the change. A refusal concerns this object alone.
    pub(super) async fn send(&mut self, reader: &Reader) -> anyhow::Result<()> {
        let client = reader.client().clone();
        let api: Api<Object> = match self.key.namespace.as_str() {
            "" => Api::all_with(client, &self.kind),
            namespace => Api::namespaced_with(client, namespace, &self.kind),
        };
        match api.patch(&self.key.name, &PatchParams::default(), &Patch::Merge(&self.patch)).await {
            Ok(_) => self.outcome = Outcome::Written,
            Err(error) => {
                if is_denied(&error) {
                    let namespace = Some(self.key.namespace.as_str()).filter(|namespace| !namespace.is_empty());
                    reader.note_lacking("patch", &self.kind, namespace);
                }
                let problem = match refusal(&error) {
                    Some(Refusal::Other | Refusal::Absent) => {
                        "the object has changed: run the command again".to_owned()
                    }
                    Some(Refusal::ForGood(_)) => Reason(&error).to_string(),
                    None => bail!("writing {}: {}", self.object, Reason(&error)),
                };
                (self.outcome, self.problem) = (Outcome::Failed, Some(problem));
            }
        }
        Ok(())
    }

    /// The members that the patch sets, each with its value.
    pub(super) fn members(&self) -> Vec<[String; 2]> {
        let parts = [&self.patch["metadata"]["annotations"], &self.patch["spec"]["preAllocations"]];
        let members = parts.into_iter().filter_map(Value::as_object).flatten();
        let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        members.map(|(name, value)| [name.clone(), text(value)]).collect()
    }
}

// === impl Outcome ===

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}
