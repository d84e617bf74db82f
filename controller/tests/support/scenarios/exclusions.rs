//! Field managers that own the exclusions of a pool. Only a real API server merges the items of a list.

use glowplug_controller::kinds::pool::StaticIPPool;
use kube::Api;
use kube::api::{ApiResource, DeleteParams, DynamicObject, Patch, PatchParams};
use serde_json::{Value, json};

use super::pools::earlier_definition;
use crate::support::Cluster;
use crate::support::apply::apply_server_side;
use crate::support::hosted::poll;
use crate::support::later;

/// The pools of a namespace.
struct Pools {
    kind: ApiResource,
    pools: Api<DynamicObject>,
}

impl Pools {
    /// Applies a pool with these exclusions. Returns the exclusions of the pool, or the message of a conflict.
    async fn apply(&self, name: &str, manager: &str, exclusions: &[&str]) -> Value {
        let mut spec = json!({"network": "vlan10", "addresses": ["10.0.0.8/29"]});
        if !exclusions.is_empty() {
            spec["excludedAddresses"] = json!(exclusions);
        }
        let ApiResource { api_version, kind, .. } = &self.kind;
        let manifest = json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": name}, "spec": spec});
        match apply_server_side(&self.pools, &manifest, manager).await {
            Ok(pool) => pool.data["spec"]["excludedAddresses"].clone(),
            Err(kube::Error::Api(status)) => status.message.clone().into(),
            Err(error) => panic!("{error}"),
        }
    }

    /// Replaces the exclusions, as `kubectl edit` does.
    async fn edit(&self, name: &str, exclusions: &[&str]) -> Value {
        let patch = Patch::Merge(json!({"spec": {"excludedAddresses": exclusions}}));
        let params = PatchParams { field_manager: Some("edit".to_owned()), ..PatchParams::default() };
        self.pools.patch(name, &params, &patch).await.unwrap().data["spec"]["excludedAddresses"].clone()
    }
}

/// Tests the statements of `docs/upgrade.md` about the managers of `excludedAddresses`.
pub async fn field_managers_own_the_list_of_exclusions_before_the_upgrade_and_single_items_afterwards(
    cluster: &Cluster,
) {
    let namespace = cluster.namespace().await;
    let kind = ApiResource::erase::<StaticIPPool>(&());
    let pools = Pools { pools: Api::namespaced_with(cluster.client(), &namespace, &kind), kind };
    let [eight, nine, both] = [&["10.0.0.8"][..], &["10.0.0.9"], &["10.0.0.8", "10.0.0.9"]];
    let conflict = |manager: &str| {
        json!(format!("Apply failed with 1 conflict: conflict with {manager}: .spec.excludedAddresses"))
    };
    later::apply(cluster, earlier_definition()).await;
    // A real API server uses a changed CRD some time later.
    poll("a conflict of the earlier definition", async || {
        pools.apply("p", "one", eight).await;
        (pools.apply("p", "two", nine).await == conflict("\"one\"")).then_some(())
    })
    .await;
    let mut before = Vec::new();
    before.push(pools.apply("alone", "one", eight).await);
    before.push(pools.apply("again", "one", eight).await);
    before.push(pools.apply("kept", "one", eight).await);
    before.push(pools.apply("late", "one", eight).await);
    before.push(pools.apply("edited", "one", eight).await);
    before.push(pools.edit("edited", both).await);
    before.push(pools.apply("edited", "one", eight).await);
    let edit = format!("\"edit\" using {}", pools.kind.api_version);
    let mut expected = vec![json!(eight); 5];
    expected.extend([json!(both), conflict(&edit)]);
    assert_eq!(before, expected);

    later::apply(cluster, later::present("staticippools")).await;
    poll("a list of the present definition", async || {
        (pools.apply("p", "two", nine).await == json!(both)).then_some(())
    })
    .await;
    let mut after = Vec::new();
    // The only manager changes its list. It has owned the list since before the upgrade.
    after.push(pools.apply("alone", "one", nine).await);
    after.push(pools.apply("alone", "one", &[]).await);
    // A manager removes its items, and the items of another manager stay.
    after.push(pools.apply("p", "one", &[]).await);
    after.push(pools.apply("p", "two", &[]).await);
    // Another manager adds and removes its items.
    after.push(pools.apply("kept", "two", nine).await);
    after.push(pools.apply("kept", "two", &[]).await);
    // An editor adds an item.
    after.push(pools.edit("late", both).await);
    after.push(pools.apply("late", "one", eight).await);
    // The manager applies its manifest again after the upgrade.
    after.push(pools.apply("again", "one", eight).await);
    after.push(pools.apply("again", "two", nine).await);
    after.push(pools.apply("again", "two", &[]).await);
    after.push(pools.apply("again", "two", nine).await);
    after.push(pools.apply("again", "one", &[]).await);
    after.push(pools.apply("again", "two", eight).await);
    after.push(pools.edit("again", both).await);
    after.push(pools.apply("again", "two", eight).await);
    after.push(pools.edit("again", &[]).await);
    let expected = [
        json!(both),
        Value::Null,
        json!(both),
        Value::Null,
        json!(both),
        // This write also removes the item of manager `one`, because `one` still owns the whole list, and not the
        // single item.
        Value::Null,
        json!(both),
        json!(both),
        json!(eight),
        json!(both),
        json!(eight),
        json!(both),
        json!(nine),
        json!(eight),
        json!(both),
        json!(both),
        json!([]),
    ];
    assert_eq!(after, expected);
    for name in ["alone", "again", "edited", "kept", "late", "p"] {
        pools.pools.delete(name, &DeleteParams::default()).await.unwrap();
    }
}
