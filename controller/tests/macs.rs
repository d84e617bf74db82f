//! MAC addresses of machines when requests, answers and leaders fail.

use std::collections::{BTreeMap, BTreeSet};

use glowplug_controller::kinds::mac_pool::{MACPool, MacPoolSpec};
use glowplug_controller::kinds::pool::StaticIPLease;
use kube::Api;
use kube::api::{ListParams, PostParams};
use serde_json::{Value, json};

use crate::support::Cluster;
use crate::support::controller::Controller;
use crate::support::hosted::provider::PATCH_ANNOTATION;
use crate::support::hosted::{Hosted, poll};
use crate::support::server::Server;
use crate::support::trouble::{Trouble, history, run_all, run_script};

/// A hosted cluster whose machines wait for the MAC addresses of a pool with this last octet.
pub(super) async fn hosted(cluster: &Cluster, last: u8) -> Hosted {
    let hosted = Hosted::new(cluster).await;
    hosted.kubevirt.be_late();
    let label = json!({"labels": {"ipam.glowplug.dev/mac-addresses": "required"}});
    let patch = json!([
        {"op": "add", "path": "/spec/template/spec/domain/devices/interfaces/0/macAddress", "value": ""},
        {"op": "add", "path": "/spec/template/metadata", "value": label},
    ]);
    let changes = json!({"metadata": {"annotations": {PATCH_ANNOTATION: patch.to_string()}}});
    hosted.node_pool("workers", 0, &changes).await;
    hosted.pool("workers", &["10.0.0.0/24"]).await;
    let spec = MacPoolSpec {
        ranges: vec![format!("0a:00:00:00:00:00-0a:00:00:00:00:{last:02x}")],
        namespaces: vec![hosted.namespace.clone()],
        ..MacPoolSpec::default()
    };
    let pools: Api<MACPool> = Api::all(cluster.client());
    pools.create(&PostParams::default(), &MACPool::new("p", spec)).await.unwrap();
    hosted
}

pub(super) async fn mac_of(hosted: &Hosted, name: &str) -> String {
    hosted.until_running(name).await.addresses()[0].0.clone()
}

/// The machines that hold MAC addresses, by address.
pub(super) async fn held(hosted: &Hosted) -> BTreeMap<String, String> {
    let leases: Api<StaticIPLease> = Api::all(hosted.client.clone());
    let leases = leases.list(&ListParams::default()).await.unwrap().items.into_iter().map(|lease| lease.spec);
    let held = leases.filter(|lease| lease.network == "mac" && lease.released.is_none());
    held.map(|lease| (lease.address, lease.holder.name)).collect()
}

/// Every flow of a MAC address: a machine gets it, waits for it, gets a released one, and ends.
async fn script(hosted: &Hosted) {
    hosted.scale("workers", 1).await;
    assert_eq!(mac_of(hosted, "workers-0").await, "0a:00:00:00:00:00");
    hosted.scale("workers", 2).await;
    let pools: Api<MACPool> = Api::all(hosted.client.clone());
    poll("a machine that waits", async || {
        let status = pools.get("p").await.unwrap().status?;
        (status.waiting == 1).then_some(())
    })
    .await;
    hosted.delete("workers-0").await;
    assert_eq!(mac_of(hosted, "workers-1").await, "0a:00:00:00:00:00");
    hosted.scale("workers", 0).await;
    poll("released MAC addresses", async || held(hosted).await.is_empty().then_some(())).await;
}

/// Runs the script with trouble at the n-th write. Returns whether that write came.
async fn run(trouble: Trouble, n: usize) -> bool {
    let server = Server::start().await;
    let cluster = Cluster::of(&server).await;
    let hosted = hosted(&cluster, 0).await;
    let came = run_script(&server, trouble, n, || Controller::of(&cluster, ""), script(&hosted)).await;
    check_history(&server, &cluster, &hosted).await;
    came
}

/// What has to hold at every moment: no two machines have one MAC address, and each address in a machine has a lease of this
/// machine that is older.
async fn check_history(server: &Server, cluster: &Cluster, hosted: &Hosted) {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let leases = history(server, cluster.client(), "/apis/ipam.glowplug.dev/v1alpha1/staticipleases").await;
    for kind in ["virtualmachines", "virtualmachineinstances"] {
        let path = format!("/apis/kubevirt.io/v1/namespaces/{}/{kind}", hosted.namespace);
        let mut present: BTreeMap<String, String> = BTreeMap::new();
        for (version, is_gone, object) in history(server, cluster.client(), &path).await {
            let name = text(&object["metadata"]["name"]);
            let spec = if kind == "virtualmachines" { &object["spec"]["template"]["spec"] } else { &object["spec"] };
            let address = text(&spec["domain"]["devices"]["interfaces"][0]["macAddress"]);
            if is_gone || address.is_empty() {
                present.remove(&name);
                continue;
            }
            let is_own = |lease: &Value| {
                lease["spec"]["address"] == address
                    && lease["spec"]["holder"]["name"] == name
                    && lease["spec"].get("released").is_none()
            };
            let mut before = leases.iter().filter(|(at, _, lease)| *at < version && is_own(lease));
            assert!(before.next().is_some(), "no lease of {address} before {kind} {name}");
            present.insert(name, address);
            let distinct: BTreeSet<&String> = present.values().collect();
            assert_eq!(distinct.len(), present.len(), "two {kind} with one MAC address: {present:?}");
        }
    }
}

#[tokio::test]
async fn after_a_crash_before_any_write_the_next_leader_goes_on() {
    run_all(Trouble::CrashBefore, run).await;
}

#[tokio::test]
async fn after_a_crash_behind_any_write_the_next_leader_goes_on() {
    run_all(Trouble::CrashAfter, run).await;
}

#[tokio::test]
async fn a_lost_answer_of_any_write_changes_nothing() {
    run_all(Trouble::LostAnswer, run).await;
}

#[tokio::test]
async fn a_write_that_is_refused_once_is_made_again() {
    run_all(Trouble::Refused, run).await;
}

#[tokio::test]
async fn two_leaders_at_once_give_each_machine_one_mac_address() {
    let server = Server::start().await;
    let cluster = Cluster::of(&server).await;
    let hosted = hosted(&cluster, 0xff).await;
    let _leaders = [(); 2].map(|()| Controller::of(&cluster, ""));
    hosted.scale("workers", 30).await;
    let mut allocated = BTreeMap::new();
    for n in 0..30 {
        let name = format!("workers-{n}");
        allocated.insert(mac_of(&hosted, &name).await, name);
    }
    assert_eq!(allocated.len(), 30);
    let held_then = held(&hosted).await;
    assert!(allocated.iter().all(|(address, name)| held_then.get(address) == Some(name)), "{held_then:?}");
    hosted.scale("workers", 0).await;
    poll("released MAC addresses", async || held(&hosted).await.is_empty().then_some(())).await;
    check_history(&server, &cluster, &hosted).await;
}
