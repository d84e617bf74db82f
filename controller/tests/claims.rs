//! Tests claims of Cluster API when requests, responses and leaders fail.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::StreamExt;
use futures::stream;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Api;
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use crate::support::cluster_api::definitions_of;
use crate::support::controller::{Controller, Site, create, until};
use crate::support::hosted::poll;
use crate::support::server::{Fault, Server};
use crate::support::trouble::{Trouble, history, run_script};
use crate::support::{CONTROLLER, Cluster, start_server};

/// Runs each step in the life of a claim: it gets an address, waits for an address, gets a released address, and is
/// deleted.
async fn script(site: &Site) {
    site.claim("a", &json!({})).await;
    site.address_of("a").await;
    site.claim("b", &json!({})).await;
    site.until_not_ready("b", "PoolExhausted").await;
    site.delete("a").await;
    site.until_gone("a").await;
    site.address_of("b").await;
    site.delete("b").await;
    site.until_gone("b").await;
    site.until_empty().await;
}

/// Runs the script with a failure at the n-th write of the controller. Returns whether the controller has made the n-th
/// write.
async fn run(trouble: Trouble, n: usize) -> bool {
    let (server, cluster) = start_server().await;
    let site = Site::new(&cluster).await;
    site.pool("p", &["10.0.0.8/32"]).await;
    let came = run_script(&server, trouble, n, || Controller::start(&cluster, &site), script(&site)).await;
    check_history(&server, &cluster, &site).await;
    came
}

/// Checks the history: at no time did two IPAddresses have one address, and each IPAddress has an older lease of its
/// claim.
async fn check_history(server: &Server, cluster: &Cluster, site: &Site) {
    let leases = history(server, cluster.client(), "/apis/ipam.glowplug.dev/v1alpha1/staticipleases").await;
    let path = format!("/apis/ipam.cluster.x-k8s.io/v1beta2/namespaces/{}/ipaddresses", site.namespace);
    let mut present: BTreeMap<String, (String, String)> = BTreeMap::new();
    for (version, is_gone, object) in history(server, cluster.client(), &path).await {
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let (name, address) = (text(&object["metadata"]["name"]), text(&object["spec"]["address"]));
        if is_gone {
            present.remove(&name);
            continue;
        }
        let owner = text(&object["metadata"]["ownerReferences"][0]["uid"]);
        let before = present.insert(name.clone(), (owner.clone(), address.clone()));
        let addresses: BTreeSet<&String> = present.values().map(|(_, address)| address).collect();
        assert_eq!(addresses.len(), present.len(), "two IPAddresses with one address: {present:?}");
        if before.is_none() {
            let mut of_address =
                leases.iter().filter(|(at, _, lease)| *at < version && lease["spec"]["address"] == address.as_str());
            let (_, _, lease) = of_address.next_back().expect("a lease before the IPAddress");
            assert_eq!(
                (&lease["spec"]["holder"]["uid"], lease["spec"].get("released")),
                (&json!(owner), None),
                "the lease at the time of the IPAddress {name}"
            );
        }
    }
    // All claims are deleted at the end, so no IPAddress is left.
    assert!(present.is_empty(), "{present:?}");
}

crate::each_write!(run);

#[tokio::test]
async fn two_leaders_at_once_give_each_claim_one_address() {
    let (server, cluster) = start_server().await;
    let site = Site::new(&cluster).await;
    site.pool("p", &["10.0.1.0/24"]).await;
    let leaders = [(); 2].map(|()| Controller::start(&cluster, &site));
    let names: Vec<String> = (0..40).map(|n| format!("c{n}")).collect();
    stream::iter(&names).for_each_concurrent(8, |name| async { drop(site.claim(name, &json!({})).await) }).await;
    let mut allocated = Vec::new();
    for name in &names {
        allocated.push((site.address_of(name).await, name.clone()));
    }
    allocated.sort();
    let distinct: BTreeSet<&String> = allocated.iter().map(|(address, _)| address).collect();
    assert_eq!(distinct.len(), 40);
    // The second lease of a claim, which the other leader wrote, is released.
    while site.held().await != allocated {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(site.given().await, allocated);
    for name in &names {
        site.delete(name).await;
    }
    for name in &names {
        site.until_gone(name).await;
    }
    site.until_empty().await;
    drop(leaders);
    check_history(&server, &cluster, &site).await;
}

#[tokio::test]
async fn claims_are_served_if_the_cluster_has_only_v1beta1_of_cluster_api() {
    let (_server, cluster) = start_server().await;
    let definitions: Api<CustomResourceDefinition> = Api::all(cluster.client());
    for definition in definitions_of(&["v1beta1"]) {
        let name = definition.metadata.name.clone().unwrap();
        definitions.delete(&name, &DeleteParams::default()).await.unwrap();
        definitions.create(&PostParams::default(), &definition).await.unwrap();
    }
    let site = Site::of(&cluster, &cluster.namespace().await, "v1beta1");
    site.pool("p", &["10.0.0.8/32"]).await;
    let _controller = Controller::start(&cluster, &site);
    for name in ["a", "b"] {
        site.claim(name, &json!({})).await;
    }
    let ready = |claim: &DynamicObject| claim.data["status"]["addressRef"]["name"] == "a";
    let claim = until(&site.claims, "a", ready).await;
    let condition = &claim.data["status"]["v1beta2"]["conditions"][0];
    assert_eq!((&condition["status"], &condition["reason"]), (&json!("True"), &json!("AddressAllocated")));
    let exhausted = |claim: &DynamicObject| {
        let condition = &claim.data["status"]["conditions"][0];
        condition["reason"] == "PoolExhausted" && condition["severity"] == "Error"
    };
    until(&site.claims, "b", exhausted).await;
    let owner = site.addresses.get("a").await.unwrap().metadata.owner_references.unwrap().remove(0);
    assert_eq!(owner.api_version, "ipam.cluster.x-k8s.io/v1beta1");
}

#[tokio::test]
async fn a_leader_without_the_kinds_of_cluster_api_is_ready() {
    let (_server, cluster) = start_server().await;
    let definitions: Api<CustomResourceDefinition> = Api::all(cluster.client());
    for definition in definitions_of(&["v1beta2"]) {
        definitions.delete(&definition.metadata.name.unwrap(), &DeleteParams::default()).await.unwrap();
    }
    let site = Site::of(&cluster, &cluster.namespace().await, "v1beta2");
    Controller::start(&cluster, &site).until_ready().await;
}

#[tokio::test]
async fn a_claim_whose_kind_seems_not_to_be_served_keeps_its_address() {
    let (server, cluster) = start_server().await;
    let site = Site::new(&cluster).await;
    site.pool("p", &["10.0.0.8/32"]).await;
    let _leader = Controller::start(&cluster, &site);
    site.claim("a", &json!({})).await;
    assert_eq!(site.address_of("a").await, "10.0.0.8");
    site.claim("b", &json!({})).await;
    site.until_not_ready("b", "PoolExhausted").await;
    let failed = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&failed);
    server.set_faults(move |call| {
        let is_of_claims = call.group == "ipam.cluster.x-k8s.io" && !matches!(call.verb, "list" | "watch");
        if call.user != CONTROLLER || !is_of_claims {
            return Fault::None;
        }
        counted.fetch_add(1, Ordering::SeqCst);
        Fault::Unserved
    });
    // The next pass of the claim writes the status again.
    let removed = json!({"status": {"addressRef": null, "conditions": null}});
    site.claims.patch_status("a", &PatchParams::default(), &Patch::Merge(removed)).await.unwrap();
    poll("three requests", async || (failed.load(Ordering::SeqCst) >= 3).then_some(())).await;
    let held = [("10.0.0.8".to_owned(), "a".to_owned())];
    assert_eq!((site.held().await, site.given().await), (held.to_vec(), held.to_vec()));
    server.clear_faults();
    assert_eq!(site.address_of("a").await, "10.0.0.8");
    site.until_not_ready("b", "PoolExhausted").await;
    assert_eq!((site.held().await, site.given().await), (held.to_vec(), held.to_vec()));
}

/// Creates a pool of one address. Returns an IPAddress with this address, whose claim does not exist.
async fn restored(site: &Site) -> Value {
    site.pool("p", &["10.0.0.8/32"]).await;
    let pool_ref = json!({"apiGroup": "ipam.glowplug.dev", "kind": "StaticIPPool", "name": "p"});
    let spec = json!({"poolRef": pool_ref, "claimRef": {"name": "r"}, "address": "10.0.0.8", "prefix": 16});
    json!({"metadata": {"name": "r"}, "spec": spec})
}

#[tokio::test]
async fn the_address_of_an_ipaddress_without_a_claim_stays_reserved_when_a_leader_starts() {
    let (server, cluster) = start_server().await;
    let site = Site::new(&cluster).await;
    let restored = restored(&site).await;
    create(&site.addresses, restored).await;
    site.claim("c", &json!({})).await;
    let _leader = Controller::start(&cluster, &site);
    site.until_not_ready("c", "PoolExhausted").await;
    // The pass of IPAddress `r` checks whether the claim `r` exists.
    let mut is_read = false;
    poll("the pass of the IPAddress", async || {
        let calls = server.take_calls().into_iter().filter(|call| call.user == CONTROLLER && call.verb == "get");
        is_read |= calls.into_iter().any(|call| call.plural == "ipaddressclaims" && call.name.as_deref() == Some("r"));
        is_read.then_some(())
    })
    .await;
    let larger = json!({"spec": {"addresses": ["10.0.0.8/31"]}});
    site.pools.patch("p", &PatchParams::default(), &Patch::Merge(larger)).await.unwrap();
    assert_eq!(site.address_of("c").await, "10.0.0.9");
}

/// After the deletion of the first IPAddress, the leader reads the second IPAddress, which has the same name.
#[tokio::test]
async fn an_address_stays_reserved_when_a_second_ipaddress_without_a_claim_replaces_the_first() {
    let (server, cluster) = start_server().await;
    let site = Site::new(&cluster).await;
    let restored = restored(&site).await;
    create(&site.addresses, restored.clone()).await;
    let _leader = Controller::start(&cluster, &site);
    site.claim("c", &json!({})).await;
    site.until_not_ready("c", "PoolExhausted").await;

    let (gate, reads) = (Arc::new(Semaphore::new(0)), Arc::new(AtomicUsize::new(0)));
    let (held, count) = (Arc::clone(&gate), Arc::clone(&reads));
    server.set_faults(move |call| {
        let is_of_r = call.user == CONTROLLER && call.plural == "ipaddresses" && call.name.as_deref() == Some("r");
        if !is_of_r || call.verb != "get" {
            return Fault::None;
        }
        count.fetch_add(1, Ordering::SeqCst);
        Fault::Hold(Arc::clone(&held))
    });
    site.addresses.delete("r", &DeleteParams::default()).await.unwrap();
    poll("the read after the deletion", async || (reads.load(Ordering::SeqCst) > 0).then_some(())).await;
    create(&site.addresses, restored).await;
    gate.add_permits(100);

    let larger = json!({"spec": {"addresses": ["10.0.0.8/31"]}});
    site.pools.patch("p", &PatchParams::default(), &Patch::Merge(larger)).await.unwrap();
    assert_eq!(site.address_of("c").await, "10.0.0.9");
}
