//! Tests MAC addresses of machines when requests, responses and leaders fail.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use glowplug_controller::kinds::mac_pool::{MACPool, MacPoolSpec};
use glowplug_controller::kinds::pool::StaticIPLease;
use kube::Api;
use kube::api::{ListParams, PostParams};
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use crate::support::controller::Controller;
use crate::support::hosted::provider::PATCH_ANNOTATION;
use crate::support::hosted::{Hosted, poll};
use crate::support::server::{Call, Fault, Server};
use crate::support::trouble::{Trouble, history, run_script};
use crate::support::{CONTROLLER, Cluster, start_server};

/// Starts a hosted cluster with a MACPool. The first MAC address of the pool ends with octet 0, and the last MAC
/// address ends with octet `last`. The stand-in of KubeVirt waits for the MAC addresses.
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

/// Returns the held MAC addresses, each with the name of its machine.
pub(super) async fn held(hosted: &Hosted) -> BTreeMap<String, String> {
    let leases: Api<StaticIPLease> = Api::all(hosted.client.clone());
    let leases = leases.list(&ListParams::default()).await.unwrap().items.into_iter().map(|lease| lease.spec);
    let held = leases.filter(|lease| lease.network == "mac" && lease.released.is_none());
    held.map(|lease| (lease.address, lease.holder.name)).collect()
}

/// Runs each step in the life of a machine: it gets a MAC address, waits for a MAC address, gets a released MAC
/// address, and is deleted.
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

/// Runs the script with a failure at the n-th write of the controller. Returns whether the controller has made the n-th
/// write.
async fn run(trouble: Trouble, n: usize) -> bool {
    let (server, cluster) = start_server().await;
    let hosted = hosted(&cluster, 0).await;
    let came = run_script(&server, trouble, n, || Controller::of(&cluster, ""), script(&hosted)).await;
    check_history(&server, &cluster, &hosted).await;
    came
}

/// Checks the history: at no time did two machines have one MAC address, and each MAC address in a machine has an older
/// lease of this machine.
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

crate::each_write!(run);

#[tokio::test]
async fn two_leaders_at_once_give_each_machine_one_mac_address() {
    let (server, cluster) = start_server().await;
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

/// Runs two machines while the API server refuses requests about the first one with this status code. Returns the note
/// of the event of the first machine, and the MAC addresses of the second and the first machine.
async fn refuse(code: u16, is_refused: fn(&Call) -> bool) -> (String, [String; 2]) {
    let (server, cluster) = start_server().await;
    let hosted = hosted(&cluster, 0x0f).await;
    let _leader = Controller::of(&cluster, "");
    server.set_faults(move |call| match call.user == CONTROLLER && is_refused(call) {
        true => Fault::Status(code),
        false => Fault::None,
    });
    hosted.scale("workers", 1).await;
    let note = hosted.until_event("workers-0", "MACAddressRefused").await;
    hosted.scale("workers", 2).await;
    let second = mac_of(&hosted, "workers-1").await;
    server.clear_faults();
    (note, [second, mac_of(&hosted, "workers-0").await])
}

#[tokio::test]
async fn a_machine_that_the_api_server_refuses_to_change_has_an_event_and_other_machines_are_served() {
    let is_refused = |call: &Call| {
        (call.verb, call.plural.as_str(), call.name.as_deref()) == ("patch", "virtualmachines", Some("workers-0"))
    };
    let (note, addresses) = refuse(422, is_refused).await;
    let start = "Could not store the MAC addresses of the machine: the API server answered 422";
    assert!(note.starts_with(start), "{note}");
    assert_eq!(addresses, ["0a:00:00:00:00:01", "0a:00:00:00:00:00"]);
}

#[tokio::test]
async fn a_machine_whose_lease_a_webhook_refuses_has_an_event_and_other_machines_are_served() {
    let is_refused = |call: &Call| {
        let lease = &call.body["spec"];
        call.verb == "create" && lease["network"] == "mac" && lease["holder"]["name"] == "workers-0"
    };
    let (note, addresses) = refuse(409, is_refused).await;
    let start = "Could not store the MAC addresses of the machine: the API server answered 409";
    assert!(note.starts_with(start), "{note}");
    assert_eq!(addresses, ["0a:00:00:00:00:01", "0a:00:00:00:00:00"]);
}

#[tokio::test]
async fn a_released_lease_that_is_not_needed_is_deleted_unless_another_leader_has_written_it_meanwhile() {
    let (server, cluster) = start_server().await;
    let hosted = hosted(&cluster, 0x0f).await;
    let leases: Api<StaticIPLease> = Api::all(cluster.client());
    for (octet, name, day) in [(1, "w", 1), (2, "w", 2), (3, "v", 1), (4, "v", 2)] {
        let lease = json!({
            "metadata": {"name": format!("0a-00-00-00-00-0{octet}.mac")},
            "spec": {
                "network": "mac", "address": format!("0a:00:00:00:00:0{octet}"), "prefix": 48, "pool": "p",
                "holder": {"kind": "VirtualMachine", "namespace": hosted.namespace, "name": name, "uid": "u", "interface": "a"},
                "since": "2026-08-01T10:00:00.000000Z", "released": format!("2026-08-0{day}T11:00:00.000000Z"),
            },
        });
        leases.create(&PostParams::default(), &serde_json::from_value(lease).unwrap()).await.unwrap();
    }
    let [deleted, taken] = ["0a-00-00-00-00-01.mac", "0a-00-00-00-00-03.mac"];
    let known = leases.get(deleted).await.unwrap().metadata;
    let (gate, is_sent) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let (held, sent) = (Arc::clone(&gate), Arc::clone(&is_sent));
    server.set_faults(move |call| match (call.verb, call.name.as_deref()) {
        ("delete", Some(name)) if name == taken => {
            sent.add_permits(1);
            Fault::Hold(Arc::clone(&held))
        }
        _ => Fault::None,
    });
    let _leader = Controller::of(&cluster, "");
    drop(is_sent.acquire().await);
    // Another leader allocates the address to another machine. This machine is deleted soon after that.
    let mut lease = leases.get(taken).await.unwrap();
    (lease.spec.holder.name, lease.spec.released) = ("x".to_owned(), None);
    leases.replace(taken, &PostParams::default(), &lease).await.unwrap();
    gate.add_permits(1);
    poll("the release of the lease", async || leases.get(taken).await.unwrap().spec.released).await;
    let stored = leases.list(&ListParams::default()).await.unwrap().items;
    let stored: Vec<(String, String)> =
        stored.into_iter().map(|lease| (lease.spec.address, lease.spec.holder.name)).collect();
    let row = |octet: u8, name: &str| (format!("0a:00:00:00:00:0{octet}"), name.to_owned());
    assert_eq!(stored, [row(2, "w"), row(3, "x"), row(4, "v")]);
    let calls = server.take_calls();
    let delete = calls.iter().find(|call| call.verb == "delete" && call.name.as_deref() == Some(deleted)).unwrap();
    let expected = json!({"uid": known.uid, "resourceVersion": known.resource_version});
    assert_eq!(delete.body["preconditions"], expected);
}
