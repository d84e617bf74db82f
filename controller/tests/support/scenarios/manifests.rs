//! Checks that an API server accepts the shipped manifests.

use glowplug_controller::program::definitions;
use kube::Api;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, PostParams};
use serde_json::Value;

use crate::support::Cluster;
use crate::support::manifests::render;

/// Kinds that the manifests contain and that every API server serves, in the order of the manifests.
const KINDS: [&str; 5] =
    ["Deployment", "ServiceAccount", "Service", "ValidatingWebhookConfiguration", "MutatingWebhookConfiguration"];

/// Adds the path of each value of `sent` that `stored` does not have: a server drops unknown members.
pub fn find_lost(sent: &Value, stored: &Value, at: &str, paths: &mut Vec<String>) {
    match (sent, stored) {
        (Value::Object(sent), Value::Object(stored)) => {
            for (name, sent) in sent {
                find_lost(sent, stored.get(name).unwrap_or(&Value::Null), &format!("{at}.{name}"), paths);
            }
        }
        (Value::Array(sent), Value::Array(stored)) if sent.len() == stored.len() => {
            for (index, (sent, stored)) in sent.iter().zip(stored).enumerate() {
                find_lost(sent, stored, &format!("{at}[{index}]"), paths);
            }
        }
        _ if sent == stored => {}
        _ => paths.push(at.to_owned()),
    }
}

pub async fn an_api_server_stores_every_member_of_the_manifests(cluster: &Cluster) {
    let dry_run = PostParams { dry_run: true, ..PostParams::default() };
    let mut kinds = Vec::new();
    let mut paths = Vec::new();
    for sent in ["default", "openshift"].into_iter().flat_map(render) {
        let object: DynamicObject = serde_json::from_value(sent.clone()).unwrap();
        let types = object.types.clone().unwrap();
        // The other kinds are already installed, or belong to cert-manager.
        if !KINDS.contains(&types.kind.as_str()) {
            continue;
        }
        let kind = ApiResource::from_gvk(&GroupVersionKind::try_from(types).unwrap());
        let api: Api<DynamicObject> = match &object.metadata.namespace {
            Some(namespace) => Api::namespaced_with(cluster.client(), namespace, &kind),
            None => Api::all_with(cluster.client(), &kind),
        };
        let stored = serde_json::to_value(api.create(&dry_run, &object).await.unwrap()).unwrap();
        find_lost(&sent, &stored, &kind.kind, &mut paths);
        kinds.push(kind.kind);
    }
    assert_eq!(kinds, [KINDS, KINDS].concat());
    // An API server before Kubernetes 1.28 does not store the conditions of webhooks. The controller itself checks
    // every condition again.
    let is_condition = |path: &String| path.ends_with(".matchConditions");
    let (conditions, others): (Vec<String>, Vec<String>) = paths.into_iter().partition(is_condition);
    assert_eq!(others, [] as [String; 0]);
    assert!([0, 6].contains(&conditions.len()), "{conditions:?}");
}

pub async fn the_controller_recognizes_the_installed_crds_as_current(cluster: &Cluster) {
    definitions::until_current(&cluster.controller()).await;
}
