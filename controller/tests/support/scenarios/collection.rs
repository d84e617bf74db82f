//! Deletions of claims, pools, machines, NodePools and namespaces: in the background, in the foreground, and with the
//! policy `Orphan`. The garbage collector works while a leader runs, or while no replica leads.

use k8s_openapi::api::core::v1::Namespace;
use kube::api::{DeleteParams, DynamicObject, PostParams, PropagationPolicy};
use kube::{Api, ResourceExt};
use serde_json::json;

use crate::support::Cluster;
use crate::support::collector::Collector;
use crate::support::controller::{Controller, Site, merge, until};
use crate::support::hosted::{Hosted, poll};
use crate::support::installed::Installed;

use super::network_data::Place;

const POLICIES: [PropagationPolicy; 3] =
    [PropagationPolicy::Background, PropagationPolicy::Foreground, PropagationPolicy::Orphan];

fn params(policy: &PropagationPolicy) -> DeleteParams {
    DeleteParams { propagation_policy: Some(policy.clone()), ..DeleteParams::default() }
}

fn rows<const N: usize>(rows: [(&str, &str); N]) -> Vec<(String, String)> {
    rows.map(|(address, name)| (address.to_owned(), name.to_owned())).into()
}

fn is_owned(address: &DynamicObject, kind: &str) -> bool {
    address.owner_references().iter().any(|owner| owner.kind == kind)
}

async fn lead(cluster: &Cluster, site: &Site) -> Controller {
    let mut leader = Controller::start(cluster, site);
    leader.until_ready().await;
    leader
}

/// Creates a namespace whose claim `a` gets the only address. Then, while no replica leads, the claim is deleted, a
/// person removes its finalizers, and the garbage collector does its work.
async fn abandoned(cluster: &Cluster, policy: &PropagationPolicy) -> (Site, Collector) {
    let site = Site::new(cluster).await;
    site.pool("p", &["10.0.0.8/32"]).await;
    let leader = lead(cluster, &site).await;
    site.claim("a", &json!({})).await;
    assert_eq!(site.address_of("a").await, "10.0.0.8");
    drop(leader);
    let collector = Collector::start(cluster, &[&site.namespace]);
    site.claims.delete("a", &params(policy)).await.unwrap();
    merge(&site.claims, "a", &json!({"metadata": {"finalizers": null}})).await;
    site.until_gone("a").await;
    let address = until(&site.addresses, "a", |address| !is_owned(address, "IPAddressClaim")).await;
    assert!(is_owned(&address, "StaticIPPool"), "the pool keeps the IPAddress: {policy:?}");
    (site, collector)
}

pub async fn the_address_of_a_claim_whose_finalizers_were_removed_is_free_after_its_ipaddress_is_gone(
    cluster: &Cluster,
) {
    for policy in POLICIES {
        let (site, _collector) = abandoned(cluster, &policy).await;
        site.claim("b", &json!({})).await;
        let _leader = lead(cluster, &site).await;
        assert_eq!(site.address_of("b").await, "10.0.0.8");
        assert_eq!(site.given().await, rows([("10.0.0.8", "b")]), "{policy:?}");
        assert_eq!(site.held().await, rows([("10.0.0.8", "b")]));
        site.delete("b").await;
        site.until_empty().await;
    }
}

pub async fn a_claim_that_is_created_again_gets_a_new_ipaddress(cluster: &Cluster) {
    for policy in POLICIES {
        let (site, _collector) = abandoned(cluster, &policy).await;
        let before = site.addresses.get("a").await.unwrap().uid();
        let claim = site.claim("a", &json!({})).await;
        let _leader = lead(cluster, &site).await;
        assert_eq!(site.address_of("a").await, "10.0.0.8");
        let address = site.addresses.get("a").await.unwrap();
        assert_ne!(address.uid(), before, "{policy:?}");
        assert_eq!(Some(&address.owner_references()[0].uid), claim.metadata.uid.as_ref());
        site.delete("a").await;
        site.until_empty().await;
    }
}

/// A leader crashes after the deletion of an IPAddress, but before it removes the finalizer of the IPAddress. The claim
/// is already gone.
pub async fn a_later_leader_completes_the_deletion_of_an_ipaddress_that_an_earlier_leader_began(cluster: &Cluster) {
    let (site, _collector) = abandoned(cluster, &PropagationPolicy::Background).await;
    site.addresses.delete("a", &DeleteParams::default()).await.unwrap();
    until(&site.addresses, "a", |address| address.metadata.deletion_timestamp.is_some()).await;
    site.claim("b", &json!({})).await;
    let _leader = lead(cluster, &site).await;
    assert_eq!(site.address_of("b").await, "10.0.0.8");
    assert_eq!(site.given().await, rows([("10.0.0.8", "b")]));
}

pub async fn a_deleted_claim_and_its_ipaddress_are_removed_in_each_way_of_deletion(cluster: &Cluster) {
    let site = Site::new(cluster).await;
    site.pool("p", &["10.0.0.8/32"]).await;
    let _collector = Collector::start(cluster, &[&site.namespace]);
    let mut leader = Some(lead(cluster, &site).await);
    for policy in POLICIES {
        for leads in [true, false] {
            site.claim("a", &json!({})).await;
            assert_eq!(site.address_of("a").await, "10.0.0.8");
            if !leads {
                leader = None;
            }
            site.claims.delete("a", &params(&policy)).await.unwrap();
            if leader.is_none() {
                let is_done = |claim: &DynamicObject| claim.finalizers() == ["ipam.glowplug.dev/release-address"];
                until(&site.claims, "a", is_done).await;
                leader = Some(lead(cluster, &site).await);
            }
            site.until_gone("a").await;
            site.until_empty().await;
        }
    }
}

pub async fn a_deleted_pool_is_removed_after_its_claims_in_each_way_of_deletion(cluster: &Cluster) {
    let site = Site::new(cluster).await;
    let _collector = Collector::start(cluster, &[&site.namespace]);
    let _leader = lead(cluster, &site).await;
    for policy in POLICIES {
        site.pool("p", &["10.0.0.8/32"]).await;
        site.claim("a", &json!({})).await;
        assert_eq!(site.address_of("a").await, "10.0.0.8");
        site.pools.delete("p", &params(&policy)).await.unwrap();
        if policy != PropagationPolicy::Background {
            // The garbage collector removes the pool from the owners of the IPAddress. The claim is still an owner, so
            // the IPAddress stays.
            until(&site.addresses, "a", |address| !is_owned(address, "StaticIPPool")).await;
        }
        assert_eq!(site.given().await, rows([("10.0.0.8", "a")]), "{policy:?}");
        assert_eq!(site.held().await, rows([("10.0.0.8", "a")]));
        site.delete("a").await;
        site.until_empty().await;
        poll("the end of the pool", async || site.pools.get_opt("p").await.unwrap().is_none().then_some(())).await;
    }
}

pub async fn a_machine_keeps_its_address_until_its_guest_ends_in_each_way_of_deletion(cluster: &Cluster) {
    let place = Place::start(cluster, &["10.0.0.8/32"]).await;
    let _collector = Collector::start(cluster, &[&place.namespace]);
    for (policy, name) in POLICIES.into_iter().zip(["w0", "w1", "w2"]) {
        let (_, secret) = place.run(name).await;
        place.until_recorded(name).await;
        place.kubevirt.hold(name);
        place.vms.delete(name, &params(&policy)).await.unwrap();
        match policy {
            PropagationPolicy::Orphan => {
                place.until_gone(&place.vms, name).await;
                let instance = place.instances.get(name).await.unwrap();
                assert_eq!((&instance.metadata.deletion_timestamp, instance.owner_references()), (&None, &[][..]));
            }
            _ => drop(until(&place.instances, name, |instance| instance.metadata.deletion_timestamp.is_some()).await),
        }
        assert_eq!(place.held().await, rows([("10.0.0.8", name)]), "{policy:?}");
        place.kubevirt.end(name).await;
        place.until_gone(&place.vms, name).await;
        place.until_held(0).await;
        place.until_no_secret(&secret).await;
    }
    place.end([]).await;
}

pub async fn the_addresses_of_a_deleted_node_pool_are_released_after_its_guests_in_each_way_of_deletion(
    cluster: &Cluster,
) {
    for policy in POLICIES {
        let hosted = Hosted::new(cluster).await;
        let _collector = Collector::start(cluster, &[&hosted.clusters, &hosted.namespace]);
        hosted.set_machine_network(&["10.0.0.0/16"]).await;
        hosted.node_pool("workers", 0, &json!({})).await;
        hosted.set_bootstrap_network_config("workers").await;
        let config = json!({
            "network": "n", "addresses": ["10.0.0.8/31"], "gateway": ["10.0.0.1"], "nameservers": ["10.0.0.1"],
        });
        hosted.configure("workers", &config).await;
        let installed = Installed::start(cluster).await;
        installed.until_asked(&hosted, "workers").await;
        hosted.scale("workers", 1).await;
        hosted.until_running("workers-0").await;
        hosted.kubevirt.hold("workers-0");
        hosted.node_pools.delete("workers", &params(&policy)).await.unwrap();
        hosted.until_gone(&hosted.node_pools, "workers").await;
        assert_eq!(hosted.held().await, rows([("10.0.0.8", "workers-0")]), "{policy:?}");
        hosted.kubevirt.end("workers-0").await;
        hosted.until_held(0).await;
        // If the NodePool is deleted with the policy `Orphan`, its pool stays and has no owner.
        let is_kept = policy == PropagationPolicy::Orphan;
        poll("the end of the pool", async || {
            let pool = hosted.pools.get_opt("workers").await.unwrap();
            let owners = pool.map(|pool| (pool.metadata.deletion_timestamp.is_some(), pool.owner_references().len()));
            (owners == is_kept.then_some((false, 0))).then_some(())
        })
        .await;
        installed.stop().await;
    }
}

pub async fn the_claims_of_a_namespace_that_is_deleted_are_released(cluster: &Cluster) {
    for leads in [true, false] {
        let site = Site::new(cluster).await;
        site.pool("p", &["10.0.0.8/31"]).await;
        let mut leader = Some(lead(cluster, &site).await);
        for name in ["a", "b"] {
            site.claim(name, &json!({})).await;
            site.address_of(name).await;
        }
        if !leads {
            leader = None;
        }
        let _collector = Collector::start(cluster, &[&site.namespace]);
        let namespaces: Api<Namespace> = Api::all(cluster.client());
        namespaces.delete(&site.namespace, &DeleteParams::default()).await.unwrap();
        let _leader = match leader {
            Some(leader) => leader,
            None => {
                until(&site.claims, "a", |claim| claim.metadata.deletion_timestamp.is_some()).await;
                lead(cluster, &site).await
            }
        };
        let is_gone = async || namespaces.get_opt(&site.namespace).await.unwrap().is_none().then_some(());
        poll("the end of the namespace", is_gone).await;
        assert_eq!(site.held().await, rows([]));
    }
}

pub async fn nothing_is_created_in_a_namespace_that_is_being_deleted(cluster: &Cluster) {
    let site = Site::new(cluster).await;
    site.claim("a", &json!({"metadata": {"finalizers": ["example.com/keep"]}})).await;
    let namespaces: Api<Namespace> = Api::all(cluster.client());
    namespaces.delete(&site.namespace, &DeleteParams::default()).await.unwrap();
    let collector = Collector::start(cluster, &[&site.namespace]);
    until(&site.claims, "a", |claim| claim.metadata.deletion_timestamp.is_some()).await;
    let secrets: Api<DynamicObject> = {
        let kind = kube::api::ApiResource::erase::<k8s_openapi::api::core::v1::Secret>(&());
        Api::namespaced_with(cluster.client(), &site.namespace, &kind)
    };
    let secret = serde_json::from_value(json!({"metadata": {"name": "s"}})).unwrap();
    let Err(kube::Error::Api(status)) = secrets.create(&PostParams::default(), &secret).await else { panic!() };
    let causes: Vec<&str> =
        status.details.iter().flat_map(|details| &details.causes).map(|cause| cause.reason.as_str()).collect();
    assert_eq!((status.code, causes), (403, vec!["NamespaceTerminating"]));
    merge(&site.claims, "a", &json!({"metadata": {"finalizers": null}})).await;
    let is_gone = async || namespaces.get_opt(&site.namespace).await.unwrap().is_none().then_some(());
    poll("the end of the namespace", is_gone).await;
    drop(collector);
}
