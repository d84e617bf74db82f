//! The kinds of Cluster API, with the members that its CRDs have for claims, addresses and clusters.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use serde_json::{Value, json};

/// Returns the CRDs with both versions. No webhook converts between the versions, as in a cluster of HyperShift.
pub fn definitions() -> Vec<CustomResourceDefinition> {
    definitions_of(&["v1beta1", "v1beta2"])
}

/// Returns the CRDs with these versions. The API server stores objects in the last version.
pub fn definitions_of(versions: &[&str]) -> Vec<CustomResourceDefinition> {
    let claims = |version: &str| json!({"type": "object", "properties": {"spec": claim(), "status": status(version)}});
    let addresses = |_: &str| json!({"type": "object", "properties": {"spec": address()}});
    let clusters = |_: &str| {
        let endpoint = json!({"host": {"type": "string"}, "port": {"type": "integer"}});
        let endpoint = json!({"type": "object", "properties": endpoint});
        let members = json!({"paused": {"type": "boolean"}, "controlPlaneEndpoint": endpoint});
        let spec = json!({"type": "object", "properties": members});
        json!({"type": "object", "properties": {"spec": spec}})
    };
    vec![
        definition("ipam.cluster.x-k8s.io", "IPAddressClaim", "ipaddressclaims", versions, claims),
        definition("ipam.cluster.x-k8s.io", "IPAddress", "ipaddresses", versions, addresses),
        definition("cluster.x-k8s.io", "Cluster", "clusters", versions, clusters),
    ]
}

pub(super) fn definition(
    group: &str,
    kind: &str,
    plural: &str,
    versions: &[&str],
    schema: impl Fn(&str) -> Value,
) -> CustomResourceDefinition {
    let versions = versions.iter().enumerate().map(|(at, version)| {
        let status = if kind == "IPAddressClaim" { json!({"status": {}}) } else { json!({}) };
        json!({
            "name": version, "served": true, "storage": at + 1 == versions.len(), "subresources": status,
            "schema": {"openAPIV3Schema": schema(version)},
        })
    });
    let names =
        json!({"kind": kind, "plural": plural, "singular": kind.to_lowercase(), "listKind": format!("{kind}List")});
    let definition = json!({
        "metadata": {"name": format!("{plural}.{group}")},
        "spec": {"group": group, "scope": "Namespaced", "names": names, "versions": versions.collect::<Vec<_>>()},
    });
    serde_json::from_value(definition).unwrap()
}

fn text() -> Value {
    json!({"type": "string", "minLength": 1})
}

fn pool_ref() -> Value {
    let members = json!({"apiGroup": text(), "kind": text(), "name": text()});
    json!({"type": "object", "properties": members, "required": ["kind", "name"]})
}

fn claim() -> Value {
    let members = json!({"clusterName": text(), "poolRef": pool_ref()});
    json!({"type": "object", "properties": members, "required": ["poolRef"]})
}

fn address() -> Value {
    let claim = json!({"type": "object", "properties": {"name": text()}, "required": ["name"]});
    let members = json!({
        "address": text(), "claimRef": claim, "gateway": text(), "poolRef": pool_ref(), "prefix": {"type": "integer"},
    });
    json!({"type": "object", "properties": members, "required": ["address", "claimRef", "poolRef", "prefix"]})
}

fn status(version: &str) -> Value {
    let time = json!({"type": "string", "format": "date-time"});
    let current = json!({"type": "array", "items": {
        "type": "object", "required": ["lastTransitionTime", "message", "reason", "status", "type"],
        "properties": {
            "lastTransitionTime": time, "message": {"type": "string"}, "reason": text(), "status": text(), "type": text(),
            "observedGeneration": {"type": "integer"},
        },
    }});
    let old = json!({"type": "array", "items": {
        "type": "object", "required": ["lastTransitionTime", "status", "type"],
        "properties": {
            "lastTransitionTime": time, "message": text(), "reason": text(), "severity": {"type": "string"},
            "status": text(), "type": text(),
        },
    }});
    let lists = |list: &Value| json!({"type": "object", "properties": {"conditions": list}});
    let address = json!({"type": "object", "properties": {"name": text()}});
    let members = match version {
        "v1beta2" => {
            let deprecated = json!({"type": "object", "properties": {"v1beta1": lists(&old)}});
            json!({"addressRef": address, "conditions": current, "deprecated": deprecated})
        }
        _ => json!({"addressRef": address, "conditions": old, "v1beta2": lists(&current)}),
    };
    json!({"type": "object", "properties": members})
}
