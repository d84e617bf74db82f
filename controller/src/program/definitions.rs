//! Checks that the cluster has the CustomResourceDefinitions of this version before the program does any work.
//!
//! Before an API server stores an object, it removes each member that the definition lacks. If the definition were too
//! old, a pool would lose its `excludedAddresses` without an error, and would allocate these addresses. Definitions of
//! a later version are sufficient, because versions only add members.

use std::time::Duration;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::ApiResource;
use kube::{Api, Client, ResourceExt as _};
use serde_json::Value;
use tokio::time::{Instant, sleep};

use crate::cluster::object::Object;
use crate::cluster::request::{ask, find};
use crate::kinds::pool::definitions;
use crate::repeated::Repeated;

/// Interval between checks.
const PAUSE: Duration = Duration::from_secs(5);

/// Why the program waits.
#[derive(Debug, PartialEq)]
enum Problem {
    /// The request for a definition failed, so it is unknown whether the cluster has the definitions of this version.
    Unread(String),
    /// A definition is missing, cannot be parsed, or lacks versions or members.
    Different(String),
}

/// Returns when the API server has every member of the kinds of this program. Until then, logs what is missing, or why
/// the definitions are not known.
pub async fn until_current(client: &Client) {
    let lines = Repeated::default();
    while let Err(problem) = check(client).await {
        let (problem, wait) = problem.text();
        if let Some(hidden) = lines.note(problem, Instant::now()) {
            tracing::warn!(problem, hidden, "{wait}");
        }
        sleep(PAUSE).await;
    }
}

async fn check(client: &Client) -> Result<(), Problem> {
    let api: Api<Object> = Api::all_with(client.clone(), &ApiResource::erase::<CustomResourceDefinition>(&()));
    for known in definitions() {
        let name = known.name_any();
        let stored = ask(find(&api, &name)).await;
        let stored = stored.map_err(|error| Problem::Unread(format!("definition {name}: {error}")))?;
        let stored = stored.ok_or_else(|| Problem::Different(format!("definition {name} does not exist")))?;
        let stored = stored.parse().map_err(|error| Problem::Different(format!("definition {name}: {error}")))?;
        let missing = missing(&known, &stored);
        if !missing.is_empty() {
            return Err(Problem::Different(format!("definition {name} has no {}", missing.join(", "))));
        }
    }
    Ok(())
}

/// Returns the paths of the members of `known` that `stored` lacks, such as `v1alpha1.spec.addresses`.
fn missing(known: &CustomResourceDefinition, stored: &CustomResourceDefinition) -> Vec<String> {
    let mut paths = Vec::new();
    for version in &known.spec.versions {
        let of_version = stored.spec.versions.iter().find(|stored| stored.name == version.name && stored.served);
        match of_version {
            Some(stored) => add_missing(&value(&version.schema), &value(&stored.schema), &version.name, &mut paths),
            None => paths.push(version.name.clone()),
        }
    }
    paths
}

fn value(schema: &impl serde::Serialize) -> Value {
    let mut schema = serde_json::to_value(schema).unwrap_or_default();
    schema["openAPIV3Schema"].take()
}

fn add_missing(known: &Value, stored: &Value, path: &str, paths: &mut Vec<String>) {
    if stored["x-kubernetes-preserve-unknown-fields"] == true {
        return;
    }
    for (name, member) in known["properties"].as_object().into_iter().flatten() {
        let path = format!("{path}.{name}");
        match stored["properties"].get(name) {
            Some(stored) => add_missing(member, stored, &path, paths),
            None => paths.push(path),
        }
    }
    for of_each in ["items", "additionalProperties"] {
        if known[of_each].is_object() {
            add_missing(&known[of_each], &stored[of_each], &format!("{path}[]"), paths);
        }
    }
}

// === impl Problem ===

impl Problem {
    /// Returns the problem, and the text of the log line about it.
    fn text(&self) -> (&str, &'static str) {
        match self {
            Self::Unread(problem) => (problem, "waiting for the API server: the definitions could not be read"),
            Self::Different(problem) => (
                problem,
                "waiting for the definitions of this version: apply the manifests of this version, or the output of \
                 `glowplug-controller crd`",
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn definition(versions: Value) -> CustomResourceDefinition {
        let names = json!({"kind": "K", "plural": "ks"});
        let spec = json!({"group": "g", "names": names, "scope": "Cluster", "versions": versions});
        serde_json::from_value(json!({"spec": spec})).unwrap()
    }

    fn version(name: &str, properties: Value) -> Value {
        let schema = json!({"type": "object", "properties": properties});
        json!({"name": name, "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}})
    }

    fn missing_from(known: Value, stored: Value) -> Vec<String> {
        missing(&definition(json!([version("v1", known)])), &definition(json!([version("v1", stored)])))
    }

    #[test]
    fn a_definition_lacks_no_member_of_itself() {
        for definition in definitions() {
            assert_eq!(missing(&definition, &definition), Vec::<String>::new());
        }
    }

    #[test]
    fn a_later_definition_may_have_further_members_and_versions() {
        let known = definition(json!([version("v1", json!({"a": {"type": "string"}}))]));
        let later = version("v1", json!({"a": {"type": "string"}, "b": {"type": "string"}}));
        let stored = definition(json!([later, version("v2", json!({}))]));
        assert_eq!(missing(&known, &stored), Vec::<String>::new());
    }

    #[test]
    fn every_missing_member_is_named_with_its_path() {
        let item = json!({"type": "array", "items": {"type": "object", "properties": {"b": {"type": "string"}}}});
        let map = json!({"type": "object", "additionalProperties": {"type": "object", "properties": {"d": {}}}});
        let known = json!({"a": item, "c": map, "e": {"type": "string"}});
        let empty = json!({"type": "object", "properties": {}});
        let stored = json!({"a": {"type": "array", "items": empty}, "c": {"additionalProperties": empty}});
        assert_eq!(missing_from(known, stored), ["v1.a[].b", "v1.c[].d", "v1.e"]);
    }

    #[test]
    fn a_definition_that_keeps_unknown_members_lacks_no_member() {
        let known = json!({"a": {"type": "object", "properties": {"b": {"type": "string"}}}});
        let stored = json!({"a": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}});
        assert_eq!(missing_from(known, stored), Vec::<String>::new());
    }

    #[test]
    fn a_version_that_is_not_served_counts_as_missing() {
        let known = definition(json!([version("v1", json!({}))]));
        let mut stored = known.clone();
        stored.spec.versions[0].served = false;
        assert_eq!(missing(&known, &stored), ["v1"]);
    }

    #[test]
    fn a_definition_of_any_content_lacks_only_members_of_this_version() {
        let known = definitions().swap_remove(1);
        let known_paths = {
            let mut empty = known.clone();
            empty.spec.versions.iter_mut().for_each(|version| version.schema = None);
            missing(&known, &empty)
        };
        let is_known = |path: &String| path == "v1alpha1" || known_paths.iter().any(|known| path.starts_with(known));
        let mut complete = 0;
        crate::variants::each_object(&serde_json::to_value(&known).unwrap(), |object| {
            let object = serde_json::to_value(object).unwrap();
            // An API server rejects a definition whose members have other JSON types.
            let Ok(stored) = serde_json::from_value(object) else { return };
            let missing = missing(&known, &stored);
            complete += u32::from(missing.is_empty());
            assert!(missing.iter().all(is_known), "{missing:?}");
        });
        assert!(complete > 20, "{complete}");
    }
}
