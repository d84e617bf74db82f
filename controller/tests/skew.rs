//! Tests with definitions of a later version in the cluster: this program is older than the objects, as during an upgrade
//! and after a downgrade.

use glowplug_controller::api::{GlobalPoolSpec, GlobalStaticIPPool, MACPool, StaticIPLease, StaticIPPool};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{CustomResourceDefinition, JSONSchemaProps};
use kube::Api;
use kube::api::{ApiResource, DynamicObject, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::macs;
use crate::support::controller::{Controller, Site, merge, until};
use crate::support::leader::{Leader, machine, name, pool};
use crate::support::server::Server;
use crate::support::{Cluster, start_server};

const NETWORK: &str = "infra/vlan10";

/// Starts a server whose definition `plural` has the text `later` in the specification and in each object of it.
async fn start_later_server(plural: &str) -> (Server, Cluster) {
    let (server, cluster) = start_server().await;
    let definitions: Api<CustomResourceDefinition> = Api::all(cluster.client());
    let name = format!("{plural}.ipam.glowplug.dev");
    let mut definition = definitions.get(&name).await.unwrap();
    let schema = definition.spec.versions[0].schema.as_mut().unwrap().open_api_v3_schema.as_mut().unwrap();
    let later: JSONSchemaProps = serde_json::from_value(json!({"type": "string"})).unwrap();
    let spec = schema.properties.as_mut().unwrap().get_mut("spec").unwrap();
    let members = spec.properties.as_mut().unwrap();
    for object in members.values_mut().filter_map(|member| member.properties.as_mut()) {
        object.insert("later".to_owned(), later.clone());
    }
    members.insert("later".to_owned(), later);
    definitions.replace(&name, &PostParams::default(), &definition).await.unwrap();
    (server, cluster)
}

#[tokio::test]
async fn what_a_later_version_notes_in_a_lease_stays_with_the_holder_and_goes_with_it() {
    let (_server, cluster) = start_later_server("staticipleases").await;
    let pool = pool(NETWORK, &["10.0.0.8/32"]);
    let mut leader = Leader::start(cluster.controller(), pool.clone()).await;
    leader.claim(machine(NETWORK, 0)).await.unwrap();
    let leases: Api<StaticIPLease> = Api::all(cluster.client());
    let name = name(NETWORK, "10.0.0.8");
    let patch = json!({"spec": {"later": "a", "holder": {"later": "b"}}});
    leases.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    let later = async || {
        let spec = serde_json::to_value(leases.get(&name).await.unwrap().spec).unwrap();
        (spec["holder"]["name"].clone(), spec["later"].clone(), spec["holder"]["later"].clone())
    };
    let mut leader = Leader::start(cluster.controller(), pool).await;
    leader.release(machine(NETWORK, 0)).await.unwrap();
    assert!(leases.get(&name).await.unwrap().spec.released.is_some());
    assert_eq!(later().await, (json!("worker-0"), json!("a"), json!("b")));
    leader.claim(machine(NETWORK, 1)).await.unwrap();
    assert_eq!(later().await, (json!("worker-1"), Value::Null, Value::Null));
}

/// Waits until the pool `p` is not ready because of its specification, and returns the message.
async fn until_invalid(pools: &Api<DynamicObject>) -> String {
    let is_refused = |pool: &DynamicObject| {
        let conditions = pool.data["status"]["conditions"].as_array().into_iter().flatten();
        conditions.into_iter().any(|it| it["reason"] == "InvalidSpec" && it["status"] == "False")
    };
    let refused = until(pools, "p", is_refused).await;
    let ready = refused.data["status"]["conditions"].as_array().unwrap().iter().find(|it| it["type"] == "Ready");
    ready.unwrap()["message"].as_str().unwrap().to_owned()
}

/// Adds the member to pool `p` while a leader runs, then removes it. `claims` are claims on this pool.
async fn a_claim_waits_while_a_pool_has_the_member(
    site: &Site,
    cluster: &Cluster,
    pools: &Api<DynamicObject>,
    claims: &Value,
) {
    let mut leader = Controller::of(cluster, "");
    leader.until_ready().await;
    site.claim("before", claims).await;
    assert_eq!(site.address_of("before").await, "10.0.0.8");

    merge(pools, "p", &json!({"spec": {"later": "a"}})).await;
    let message = until_invalid(pools).await;
    assert!(message.starts_with("later: unknown key, expected one of "), "{message}");
    site.claim("during", claims).await;
    assert!(site.until_not_ready("during", "PoolNotReady").await.ends_with(&message));
    assert_eq!(site.held().await, [("10.0.0.8".to_owned(), "before".to_owned())]);

    // The later version allocates, or the administrator removes the member.
    merge(pools, "p", &json!({"spec": {"later": null}})).await;
    assert_eq!(site.address_of("during").await, "10.0.0.9");
    assert_eq!(site.address_of("before").await, "10.0.0.8");
}

#[tokio::test]
async fn a_pool_with_a_member_of_a_later_version_keeps_its_leases_and_allocates_nothing() {
    let (_server, cluster) = start_later_server("staticippools").await;
    let site = Site::new(&cluster).await;
    site.pool("p", &["10.0.0.8/30"]).await;
    let kind = ApiResource::erase::<StaticIPPool>(&());
    let pools = Api::namespaced_with(cluster.client(), &site.namespace, &kind);
    a_claim_waits_while_a_pool_has_the_member(&site, &cluster, &pools, &json!({})).await;
}

#[tokio::test]
async fn a_global_pool_with_a_member_of_a_later_version_keeps_its_leases_and_allocates_nothing() {
    let (_server, cluster) = start_later_server("globalstaticippools").await;
    let site = Site::new(&cluster).await;
    let pool = GlobalStaticIPPool::new("p", GlobalPoolSpec { pool: site.spec(&["10.0.0.8/30"]) });
    Api::all(cluster.client()).create(&PostParams::default(), &pool).await.unwrap();
    let pools = Api::all_with(cluster.client(), &ApiResource::erase::<GlobalStaticIPPool>(&()));
    let claims = json!({"spec": {"poolRef": {"kind": "GlobalStaticIPPool"}}});
    a_claim_waits_while_a_pool_has_the_member(&site, &cluster, &pools, &claims).await;
}

#[tokio::test]
async fn a_mac_pool_with_a_member_of_a_later_version_keeps_its_leases_and_allocates_nothing() {
    let (_server, cluster) = start_later_server("macpools").await;
    let hosted = macs::hosted(&cluster, 1).await;
    let mut leader = Controller::of(&cluster, "");
    leader.until_ready().await;
    hosted.scale("workers", 1).await;
    assert_eq!(macs::mac_of(&hosted, "workers-0").await, "0a:00:00:00:00:00");

    let pools = Api::all_with(cluster.client(), &ApiResource::erase::<MACPool>(&()));
    merge(&pools, "p", &json!({"spec": {"later": "a"}})).await;
    let expected =
        "later: unknown key, expected a member of this version: a later version may restrict the pool with it";
    assert_eq!(until_invalid(&pools).await, expected);
    hosted.scale("workers", 2).await;
    until(&hosted.vms, "workers-1", |_| true).await;
    let before = [("0a:00:00:00:00:00".to_owned(), "workers-0".to_owned())];
    assert_eq!(macs::held(&hosted).await, before.clone().into());

    merge(&pools, "p", &json!({"spec": {"later": null}})).await;
    assert_eq!(macs::mac_of(&hosted, "workers-1").await, "0a:00:00:00:00:01");
    let after = before.into_iter().chain([("0a:00:00:00:00:01".to_owned(), "workers-1".to_owned())]);
    assert_eq!(macs::held(&hosted).await, after.collect());
}
