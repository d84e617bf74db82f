//! Applies manifests as `kubectl apply` does, client-side and server-side.

use kube::Api;
use kube::api::{DynamicObject, Patch, PatchParams, PostParams};
use serde_json::{Map, Value, json};

/// Annotation with the manifest that was applied last.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
const MANAGER: &str = "kubectl-client-side-apply";

/// Applies a manifest as `kubectl apply` does: writes the changes of the manifest, and removes members that the
/// previous manifest had and this manifest lacks. A list in the manifest replaces the whole list.
pub async fn apply(api: &Api<DynamicObject>, manifest: &Value) -> kube::Result<DynamicObject> {
    let mut wanted = manifest.clone();
    wanted["metadata"]["annotations"][LAST_APPLIED] = manifest.to_string().into();
    let name = manifest["metadata"]["name"].as_str().unwrap();
    let Some(live) = api.get_opt(name).await? else {
        let params = PostParams { field_manager: Some(MANAGER.to_owned()), ..PostParams::default() };
        return api.create(&params, &serde_json::from_value(wanted).unwrap()).await;
    };
    let last = live.metadata.annotations.as_ref().and_then(|annotations| annotations.get(LAST_APPLIED));
    let last = last.map_or_else(|| json!({}), |last| serde_json::from_str(last).unwrap());
    let patch = difference(&last, &wanted, &serde_json::to_value(&live).unwrap());
    if patch.is_empty() {
        return Ok(live);
    }
    let params = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
    api.patch(name, &params, &Patch::Merge(patch)).await
}

/// Applies a manifest as `kubectl apply --server-side --field-manager` does.
pub async fn apply_server_side(
    api: &Api<DynamicObject>,
    manifest: &Value,
    manager: &str,
) -> kube::Result<DynamicObject> {
    let name = manifest["metadata"]["name"].as_str().unwrap();
    api.patch(name, &PatchParams::apply(manager), &Patch::Apply(manifest)).await
}

/// Returns the merge patch that gives `live` the members of `wanted`, and removes members that `last` has and `wanted`
/// lacks.
fn difference(last: &Value, wanted: &Value, live: &Value) -> Map<String, Value> {
    let mut patch = Map::new();
    for (name, value) in wanted.as_object().into_iter().flatten() {
        match live.get(name) {
            Some(live) if live.is_object() && value.is_object() => {
                let inner = difference(&last[name], value, live);
                if !inner.is_empty() {
                    patch.insert(name.clone(), inner.into());
                }
            }
            Some(live) if live == value => {}
            _ => drop(patch.insert(name.clone(), value.clone())),
        }
    }
    for name in last.as_object().into_iter().flat_map(Map::keys) {
        if wanted.get(name).is_none() && live.get(name).is_some() {
            patch.insert(name.clone(), Value::Null);
        }
    }
    patch
}
