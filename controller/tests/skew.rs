//! Tests objects with members of a later version: the CRDs in the cluster are newer than this program, as during an
//! upgrade and after a downgrade.

use glowplug_controller::kinds::mac_pool::MACPool;
use glowplug_controller::kinds::pool::{GlobalPoolSpec, GlobalStaticIPPool, PoolSpec, StaticIPPool};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::Api;
use kube::api::{ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::machines::{check_release_after, create_machine_elsewhere, hosted, lead, write_earlier_lease};
use crate::macs;
use crate::support::controller::{Controller, Site, merge, until};
use crate::support::hosted::Hosted;
use crate::support::installed::Installed;
use crate::support::later;
use crate::support::leader::{Leader, machine, name, pool};
use crate::support::program::Program;
use crate::support::replica::Replica;
use crate::support::server::Server;
use crate::support::{Cluster, start_server};

const NETWORK: &str = "infra/vlan10";

/// Starts a server with the CRD `plural` of a later version.
async fn start_later_server(plural: &str) -> (Server, Cluster) {
    let (server, cluster) = start_server().await;
    later::apply(&cluster, later::definition(plural)).await;
    (server, cluster)
}

#[tokio::test]
async fn members_of_a_later_version_stay_in_a_lease_until_the_lease_gets_another_holder() {
    let (_server, cluster) = start_later_server("staticipleases").await;
    let pool = pool(NETWORK, &["10.0.0.8/32"]);
    let mut leader = Leader::start(cluster.controller(), pool.clone()).await;
    leader.claim(machine(NETWORK, 0)).await.unwrap();
    later::note(&cluster, [name(NETWORK, "10.0.0.8")].iter()).await;
    let mut leader = Leader::start(cluster.controller(), pool).await;
    leader.release(machine(NETWORK, 0)).await.unwrap();
    assert_eq!(later::rows(&cluster, NETWORK).await, [row("10.0.0.8", "worker-0", true, true)]);
    leader.claim(machine(NETWORK, 1)).await.unwrap();
    assert_eq!(later::rows(&cluster, NETWORK).await, [row("10.0.0.8", "worker-1", false, false)]);
}

/// Returns the row of a lease, with or without the members that [`later::note`] writes.
fn row(address: &str, holder: &str, is_released: bool, is_noted: bool) -> later::Row {
    let [of_lease, of_holder] = ["a", "b"].map(|note| is_noted.then(|| json!(note)));
    (address.to_owned(), holder.to_owned(), is_released, of_lease, of_holder)
}

/// Both leaders are processes of this program. The test itself writes the members of the later version into the leases.
#[tokio::test]
async fn leaders_of_two_versions_take_over_from_each_other_and_keep_members_of_the_later_version() {
    let (_server, cluster) = start_later_server("staticipleases").await;
    let (site, folder) = (Site::new(&cluster).await, tempfile::tempdir().unwrap());
    site.pool("p", &["10.0.0.8-10.0.0.10"]).await;
    let network = site.spec(&[]).network;
    let rows = async || later::rows(&cluster, &network).await;
    let start = || Program::start(cluster.config(), folder.path(), "");

    let mut later = start();
    later.until("serving").await;
    let mut present = start();
    present.until("started").await;
    present.until_ready().await;
    for (claim, address) in [("a", "10.0.0.8"), ("b", "10.0.0.9")] {
        site.claim(claim, &json!({})).await;
        assert_eq!(site.address_of(claim).await, address);
    }
    later::note(&cluster, later::leases(&cluster, &network).await.keys()).await;
    assert_eq!(rows().await, [row("10.0.0.8", "a", false, true), row("10.0.0.9", "b", false, true)]);

    // The leader crashes. The other replica leads when the Lease of the election has expired.
    later.send("-KILL");
    present.until("serving").await;
    site.claim("c", &json!({})).await;
    assert_eq!(site.address_of("c").await, "10.0.0.10");
    site.delete("a").await;
    site.until_gone("a").await;
    let [b, c] = [row("10.0.0.9", "b", false, true), row("10.0.0.10", "c", false, false)];
    assert_eq!(rows().await, [c.clone(), row("10.0.0.8", "a", true, true), b.clone()]);

    let mut later = start();
    present.send("-TERM");
    later.until("serving").await;
    site.claim("d", &json!({})).await;
    assert_eq!(site.address_of("d").await, "10.0.0.8");
    assert_eq!(rows().await, [c, row("10.0.0.8", "d", false, false), b]);
    present.until_ended().await;
}

/// A leader of version 0.2.0 recorded the KubevirtMachine as the holder. This version records the VirtualMachine.
#[tokio::test]
async fn a_lease_of_0_2_0_for_a_machine_in_another_namespace_is_kept_until_its_guest_has_ended() {
    let (server, cluster) = start_server().await;
    let hosted = hosted(&cluster, &["10.0.0.8/30"]).await;
    let machines = create_machine_elsewhere(&cluster, &hosted, "w").await;
    let mut recorded = write_earlier_lease(&cluster, &hosted, "10.0.0.9").await;
    recorded["interface"] = "eno101".into();
    let held = || [("10.0.0.9".to_owned(), "w".to_owned())];
    let holders = async || {
        let leases = later::leases(&cluster, &hosted.network).await.into_values();
        leases.map(|spec| serde_json::to_value(spec.holder).unwrap()).collect::<Vec<_>>()
    };

    let first = lead(&cluster);
    assert_eq!(hosted.address_of("w").await, "10.0.0.9");
    assert_eq!((hosted.held().await, holders().await), (held().into(), vec![recorded.clone()]));
    drop(first);
    // The next leader finds the Secret, but not the KubevirtMachine.
    hosted.kubevirt.hold("w");
    machines.delete("w", &DeleteParams::default()).await.unwrap();
    let mut next = lead(&cluster);
    next.until_ready().await;
    let new = create_machine_elsewhere(&cluster, &hosted, "x").await;
    assert_eq!(hosted.address_of("x").await, "10.0.0.8");
    let of_x = new.get("x").await.unwrap();
    assert_eq!(of_x.metadata.annotations, None, "the VirtualMachine holds and records the address");
    let mut both = holders().await;
    let vm = hosted.vms.get("x").await.unwrap().metadata.uid;
    let of_vm = json!({
        "kind": "VirtualMachine", "namespace": hosted.namespace, "name": "x", "uid": vm, "interface": "eno101",
    });
    both.sort_by_key(|holder| holder["name"].to_string());
    assert_eq!(both, [recorded, of_vm]);
    hosted.vms.delete("w", &DeleteParams::default()).await.unwrap();
    until(&hosted.instances, "w", |instance| instance.metadata.deletion_timestamp.is_some()).await;
    hosted.kubevirt.end("w").await;
    hosted.until_held(1).await;
    assert_eq!(hosted.held().await, [("10.0.0.8".to_owned(), "x".to_owned())]);
    let path = format!("/apis/kubevirt.io/v1/namespaces/{}/virtualmachineinstances", hosted.namespace);
    check_release_after(&server, &cluster, &path, "w").await;
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

/// Checks that a claim waits while pool `p` has the member `later`. `claims` are the changes that make a claim refer to
/// this pool.
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

    // The claim is served after the administrator has removed the member. A leader of the later version would serve the
    // claim even with the member.
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

/// Returns code and message of the rejection by a webhook.
fn rejection<T>(webhook: &str, result: kube::Result<T>) -> (u16, String) {
    match result {
        Err(kube::Error::Api(status)) => {
            let start = format!("admission webhook \"{webhook}.ipam.glowplug.dev\" denied the request: ");
            let message = status.message.strip_prefix(&start).unwrap_or_else(|| panic!("{status:?}"));
            (status.code, message.to_owned())
        }
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("no rejection by {webhook}"),
    }
}

#[tokio::test]
async fn webhooks_reject_a_pool_that_has_a_member_of_a_later_version_and_new_machines_of_this_pool() {
    let (_server, cluster) = start_later_server("staticippools").await;
    let (installed, hosted) = (Installed::start(&cluster).await, Hosted::plain(&cluster).await);
    let spec = PoolSpec {
        network: hosted.network.clone(),
        addresses: vec!["10.0.0.8/30".to_owned()],
        machine_selector: Some(LabelSelector::default()),
        ..PoolSpec::default()
    };
    let params = PostParams::default();
    let pool = hosted.pools.create(&params, &StaticIPPool::new("p", spec.clone())).await.unwrap();
    installed.until_asked(&hosted, "workers").await;
    let create = async |name: &str| hosted.vms.create(&params, &hosted.vm(name, &json!({}), &json!({}))).await;
    create("w-0").await.unwrap();
    hosted.until_held(1).await;
    let held = hosted.held().await;

    // The webhook for pools is registered later, so that the API server stores the member, as a webhook of the later
    // version would allow.
    let kind = ApiResource::erase::<StaticIPPool>(&());
    let pools = Api::namespaced_with(cluster.client(), &hosted.namespace, &kind);
    merge(&pools, "p", &json!({"spec": {"later": "a"}})).await;
    let message = until_invalid(&pools).await;
    let expected = format!("pool {}/p selects the machine and is invalid: {message}", hosted.namespace);
    assert_eq!(rejection("machines", create("w-1").await), (422, expected));
    assert_eq!(hosted.held().await, held);

    let replica = Replica::start(&cluster, &["ValidatingWebhookConfiguration"]).await;
    let change = async |change: Value| pools.patch("p", &PatchParams::default(), &Patch::Merge(change)).await;
    assert_eq!(rejection("pools", change(json!({"spec": {"sticky": true}})).await), (422, message.clone()));
    let unknown = [("later".to_owned(), json!("a"))].into();
    let other = StaticIPPool::new("q", PoolSpec { network: "infra/vlan10".to_owned(), unknown, ..spec });
    assert_eq!(rejection("pools", hosted.pools.create(&params, &other).await), (422, message));
    change(json!({"metadata": {"labels": {"a": "b"}}})).await.unwrap();
    change(json!({"spec": {"later": null}})).await.unwrap();
    assert_eq!(hosted.pools.get("p").await.unwrap().spec, pool.spec);
    create("w-1").await.unwrap();
    hosted.until_held(2).await;
    drop((installed, replica));
}
