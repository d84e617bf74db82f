//! Tests machines of hosted clusters when requests, responses and leaders fail.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use glowplug_controller::kinds::lease_name::lease_name;
use glowplug_controller::kinds::network_data::{name_of_0_2_0, new_name};
use glowplug_controller::kinds::pool::{PoolSpec, StaticIPLease, StaticIPPool};
use glowplug_controller::kinds::virtual_machine::{LEFT_ALONE_ANNOTATION, VirtualMachine};
use glowplug_controller::pools::facts::Scope;
use glowplug_controller::pools::selection::Selection;
use glowplug_controller::pools::selection_cache::SelectionCache;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::api::rbac::v1::ClusterRoleBinding;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::api::{DeleteParams, DynamicObject, ListParams, ObjectMeta, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use crate::support::controller::{Controller, Site, merge, until};
use crate::support::hosted::definitions::{INSTANCE, KUBEVIRT_MACHINE, resource};
use crate::support::hosted::kubevirt::FINALIZER;
use crate::support::hosted::provider::object;
use crate::support::hosted::{Hosted, poll};
use crate::support::installed::{Installed, labels};
use crate::support::plugin::Plugin;
use crate::support::scenarios::network_data::until_next_second;
use crate::support::server::{Call, Fault, Server};
use crate::support::sources::OtherProvider;
use crate::support::trouble::{Trouble, history, run_all, run_script};
use crate::support::{CONTROLLER, Cluster, start_server};

/// Annotation with the address of an interface.
const ANNOTATION: &str = "kubevirt.cluster.x-k8s.io/allocated-ip-eno101";

/// Starts a hosted cluster with a pool and an empty NodePool. The stand-in of KubeVirt creates an instance only after
/// the controller has added the reference to the Secret.
pub(crate) async fn hosted(cluster: &Cluster, addresses: &[&str]) -> Hosted {
    let hosted = Hosted::new(cluster).await;
    hosted.kubevirt.be_late();
    hosted.node_pool("workers", 0, &json!({})).await;
    hosted.pool("workers", addresses).await;
    hosted
}

#[tokio::test]
async fn a_rejected_machine_is_not_counted_as_waiting_after_its_pool_grew_even_if_its_passes_fail() {
    let (server, cluster) = start_server().await;
    let hosted = Hosted::new(&cluster).await;
    hosted.node_pool("workers", 0, &json!({})).await;
    hosted.pool("workers", &["10.0.0.8/32"]).await;
    let installed = Installed::start(&cluster).await;
    installed.until_asked(&hosted, "workers").await;
    hosted.scale("workers", 1).await;
    hosted.until_running("workers-0").await;
    hosted.until_condition("workers", "Exhausted").await;
    hosted.scale("workers", 2).await;
    hosted.until_refused("workers-1").await;
    let until_waiting = async |expected: u32| {
        poll("the number of waiting machines", async || {
            let status = hosted.pools.get("workers").await.unwrap().status?;
            ((status.waiting, status.first_waiting.len()) == (expected, expected as usize)).then_some(())
        })
        .await;
    };
    until_waiting(1).await;
    // The leader cannot ask capk to create the machine again, so each pass fails.
    let is_retry = |call: &Call| call.user == CONTROLLER && call.verb == "patch" && call.plural == "kubevirtmachines";
    server.set_faults(move |call| if is_retry(call) { Fault::Status(503) } else { Fault::None });
    hosted.resize("workers", &["10.0.0.8/31"]).await;
    until_waiting(0).await;
    server.clear_faults();
    assert_eq!(hosted.address_of("workers-1").await, "10.0.0.9");
    installed.stop().await;
}

/// Starts a hosted cluster as [`hosted`] does, but with a pool whose addresses another IPAM provider chooses.
async fn hosted_with_provider(cluster: &Cluster) -> Hosted {
    let hosted = Hosted::new(cluster).await;
    hosted.kubevirt.be_late();
    hosted.node_pool("workers", 0, &json!({})).await;
    let mut pool = StaticIPPool::new("workers", hosted.spec("workers", &[]));
    pool.spec.addresses_from = serde_json::from_value(json!({"poolRef": OtherProvider::pool_ref()})).unwrap();
    hosted.pools.create(&PostParams::default(), &pool).await.unwrap();
    hosted
}

pub(crate) fn lead(cluster: &Cluster) -> Controller {
    Controller::of(cluster, "")
}

/// Runs each step in the life of a machine: it gets an address, waits for an address, gets a released address, and is
/// deleted.
async fn script(hosted: &Hosted) {
    hosted.scale("workers", 1).await;
    assert_eq!(hosted.address_of("workers-0").await, "10.0.0.8");
    hosted.scale("workers", 2).await;
    hosted.until_event("workers-1", "IPPoolExhausted").await;
    // HyperShift replaces the deleted machine, and the oldest machine that waits is served.
    hosted.delete("workers-0").await;
    assert_eq!(hosted.address_of("workers-1").await, "10.0.0.8");
    hosted.scale("workers", 0).await;
    hosted.until_held(0).await;
}

/// Runs each step in the life of a machine whose address another provider chooses: it gets an address, waits, gets a
/// released address, and is deleted. At the end, no claim is left.
async fn script_with_provider(hosted: &Hosted, provider: &OtherProvider) {
    hosted.scale("workers", 1).await;
    assert_eq!(hosted.address_of("workers-0").await, "10.0.0.8");
    hosted.scale("workers", 2).await;
    hosted.until_event("workers-1", "AddressPending").await;
    hosted.delete("workers-0").await;
    assert_eq!(hosted.address_of("workers-1").await, "10.0.0.8");
    hosted.scale("workers", 0).await;
    hosted.until_held(0).await;
    poll("the end of every claim", async || provider.names().await.is_empty().then_some(())).await;
}

/// Runs the script with a failure at the n-th write of the controller. Returns whether the controller has made the n-th
/// write.
async fn run(trouble: Trouble, n: usize) -> bool {
    let (server, cluster) = start_server().await;
    let hosted = hosted(&cluster, &["10.0.0.8/32"]).await;
    let came = run_script(&server, trouble, n, || lead(&cluster), script(&hosted)).await;
    check_history(&server, &cluster, &hosted).await;
    came
}

/// Runs the script with another provider, and with a failure at the n-th write of the controller. Returns whether the
/// controller has made the n-th write.
async fn run_with_provider(trouble: Trouble, n: usize) -> bool {
    let (server, cluster) = start_server().await;
    let hosted = hosted_with_provider(&cluster).await;
    let provider = OtherProvider::start(&hosted.client, &hosted.namespace, &["10.0.0.8"]);
    let script = script_with_provider(&hosted, &provider);
    let came = run_script(&server, trouble, n, || lead(&cluster), script).await;
    check_history(&server, &cluster, &hosted).await;
    came
}

/// Moves a machine to another pool of its network: the pools are edited, the first pool is deleted while the guest
/// runs, and the address of the machine is added to the other pool.
async fn script_of_a_move(hosted: &Hosted) {
    hosted.scale("workers", 1).await;
    assert_eq!(hosted.address_of("workers-0").await, "10.0.0.8");
    let select = async |pool: &str, selected: Value| {
        merge(&hosted.pools, pool, &json!({"spec": {"nodePoolRef": selected}})).await;
    };
    select("workers", Value::Null).await;
    select("others", json!({"name": "workers"})).await;
    hosted.pools.delete("workers", &DeleteParams::default()).await.unwrap();
    poll("the end of the pool", async || hosted.pools.get_opt("workers").await.unwrap().is_none().then_some(())).await;
    hosted.resize("others", &["10.0.0.8/31"]).await;
    hosted.scale("workers", 2).await;
    assert_eq!(hosted.address_of("workers-1").await, "10.0.0.9");
    let leases: Api<StaticIPLease> = Api::all(hosted.client.clone());
    let lease = leases.get(&lease_name("10.0.0.8".parse().unwrap(), &hosted.network).unwrap()).await.unwrap();
    assert_eq!(lease.spec.pool, format!("{}/others", hosted.clusters));
    hosted.scale("workers", 0).await;
    hosted.until_held(0).await;
}

/// Runs the move with a failure at the n-th write of the controller. Returns whether the controller has made the n-th
/// write.
async fn run_move(trouble: Trouble, n: usize) -> bool {
    let (server, cluster) = start_server().await;
    let hosted = hosted(&cluster, &["10.0.0.8/32"]).await;
    let others =
        StaticIPPool::new("others", PoolSpec { node_pool_ref: None, ..hosted.spec("workers", &["10.0.0.9/32"]) });
    hosted.pools.create(&PostParams::default(), &others).await.unwrap();
    let came = run_script(&server, trouble, n, || lead(&cluster), script_of_a_move(&hosted)).await;
    check_history(&server, &cluster, &hosted).await;
    // Until the machine is gone, its lease is never released or deleted.
    let machines =
        format!("/apis/infrastructure.cluster.x-k8s.io/v1alpha1/namespaces/{}/kubevirtmachines", hosted.namespace);
    let gone = history(&server, cluster.client(), &machines).await.into_iter();
    let gone = gone.filter(|(_, is_gone, object)| *is_gone && object["metadata"]["name"] == "workers-0");
    let gone: Vec<u64> = gone.map(|(version, ..)| version).collect();
    let leases =
        history(&server, cluster.client(), "/apis/ipam.glowplug.dev/v1alpha1/staticipleases").await.into_iter();
    let mut freed = leases.filter(|(version, is_gone, lease)| {
        let is_free = *is_gone || lease["spec"].get("released").is_some();
        is_free && lease["spec"]["address"] == "10.0.0.8" && version < &gone[0]
    });
    assert_eq!(freed.next(), None);
    came
}

/// Checks the history: at no time did two guests have one address, and each Secret has an older lease of its machine.
async fn check_history(server: &Server, cluster: &Cluster, hosted: &Hosted) {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let leases = history(server, cluster.client(), "/apis/ipam.glowplug.dev/v1alpha1/staticipleases").await;
    let path = format!("/api/v1/namespaces/{}/secrets", hosted.namespace);
    let mut seen = BTreeSet::new();
    for (version, _, secret) in history(server, cluster.client(), &path).await {
        let name = text(&secret["metadata"]["name"]);
        let Some(note) = secret["metadata"]["annotations"]["ipam.glowplug.dev/allocation"].as_str() else { continue };
        if !seen.insert(text(&secret["metadata"]["uid"])) {
            continue;
        }
        let uid = serde_json::from_str::<Value>(note).unwrap()["machine"]["uid"].clone();
        let is_of_machine =
            |lease: &Value| lease["spec"]["holder"]["uid"] == uid && lease["spec"].get("released").is_none();
        let mut before = leases.iter().filter(|(at, _, lease)| *at < version && is_of_machine(lease));
        assert!(before.next().is_some(), "no lease before Secret {name}");
    }
    let path = format!("/apis/kubevirt.io/v1/namespaces/{}/virtualmachineinstances", hosted.namespace);
    let mut present: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (_, is_gone, instance) in history(server, cluster.client(), &path).await {
        let name = text(&instance["metadata"]["name"]);
        if is_gone {
            present.remove(&name);
            continue;
        }
        let interfaces = instance["status"]["interfaces"].as_array().into_iter().flatten();
        let addresses = interfaces.flat_map(|interface| interface["ipAddresses"].as_array().into_iter().flatten());
        present.insert(name, addresses.map(text).collect());
        let all: Vec<&String> = present.values().flatten().collect();
        assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len(), "two guests with one address: {present:?}");
    }
}

crate::each_write!(run);

#[tokio::test]
async fn a_crash_before_each_write_of_a_move_to_another_pool_frees_no_address() {
    run_all(Trouble::Crash, run_move).await;
}

#[tokio::test]
async fn a_lost_response_or_a_refused_write_in_a_move_to_another_pool_frees_no_address() {
    run_all(Trouble::LostAnswer, run_move).await;
    run_all(Trouble::Refused, run_move).await;
}

#[tokio::test]
async fn with_another_provider_a_crash_before_each_write_does_not_change_the_result() {
    run_all(Trouble::Crash, run_with_provider).await;
}

#[tokio::test]
async fn with_another_provider_a_lost_response_to_each_write_does_not_change_the_result() {
    run_all(Trouble::LostAnswer, run_with_provider).await;
}

#[tokio::test]
async fn with_another_provider_each_write_that_is_refused_once_is_repeated() {
    run_all(Trouble::Refused, run_with_provider).await;
}

#[tokio::test]
async fn two_leaders_at_once_give_each_machine_one_address() {
    let (server, cluster) = start_server().await;
    let hosted = hosted(&cluster, &["10.0.1.0/24"]).await;
    let _leaders = [(); 2].map(|()| lead(&cluster));
    hosted.scale("workers", 30).await;
    let mut allocated = Vec::new();
    for n in 0..30 {
        let name = format!("workers-{n}");
        allocated.push((hosted.address_of(&name).await, name));
    }
    allocated.sort();
    let distinct: BTreeSet<&String> = allocated.iter().map(|(address, _)| address).collect();
    assert_eq!(distinct.len(), 30);
    // A second lease that a machine got from the other leader is released.
    poll("the leases of the guests", async || (hosted.held().await == allocated).then_some(())).await;
    hosted.scale("workers", 0).await;
    hosted.until_held(0).await;
    check_history(&server, &cluster, &hosted).await;
}

#[tokio::test]
async fn a_failed_read_of_the_objects_of_a_machine_releases_no_address() {
    let (server, cluster) = start_server().await;
    let hosted = hosted(&cluster, &["10.0.0.8/30"]).await;
    let _leader = lead(&cluster);
    hosted.scale("workers", 3).await;
    for name in ["workers-0", "workers-1", "workers-2"] {
        hosted.until_running(name).await;
    }
    let faults = [Fault::LostRequest, Fault::Status(503), Fault::Unserved];
    for (fault, name) in faults.into_iter().zip(["workers-2", "workers-1", "workers-0"]) {
        let held = hosted.held().await;
        let failed = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&failed);
        let decided = fault.clone();
        server.set_faults(move |call| {
            let is_proof = call.user == CONTROLLER
                && call.verb == "get"
                && ["kubevirtmachines", "virtualmachines", "virtualmachineinstances"].contains(&call.plural.as_str());
            if !is_proof {
                return Fault::None;
            }
            counted.fetch_add(1, Ordering::SeqCst);
            decided.clone()
        });
        hosted.scale("workers", held.len() - 1).await;
        hosted.until_gone(&hosted.vms, name).await;
        poll("four failed reads", async || (failed.load(Ordering::SeqCst) > 3).then_some(())).await;
        assert_eq!(hosted.held().await, held);
        server.clear_faults();
        hosted.until_held(held.len() - 1).await;
    }
}

/// User name of a leader that a test pauses. The user has the rights of the controller.
const PAUSED: &str = "paused-leader";

/// Starts a leader as the user [`PAUSED`].
async fn lead_paused(cluster: &Cluster) -> Controller {
    let binding = json!({
        "metadata": {"name": PAUSED}, "subjects": [{"kind": "User", "name": PAUSED, "apiGroup": "rbac.authorization.k8s.io"}],
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "glowplug-controller-manager",
        },
    });
    let binding: ClusterRoleBinding = serde_json::from_value(binding).unwrap();
    Api::all(cluster.client()).create(&PostParams::default(), &binding).await.unwrap();
    let mut leader = Controller::with_scope(cluster.client_as(PAUSED), Scope::default());
    leader.until_ready().await;
    leader
}

/// Returns a config drive that refers to a Secret of the controller, as the webhook writes it.
fn drive_of(name: &str) -> Value {
    json!({"networkDataSecretRef": {"name": new_name(name).unwrap()}})
}

/// Returns a config drive that refers to a Secret of the controller, as the webhook of version 0.2.0 wrote it.
fn drive_of_0_2_0(name: &str) -> Value {
    json!({"networkDataSecretRef": {"name": name_of_0_2_0(name)}})
}

/// Creates a VirtualMachine without a KubevirtMachine. Returns the name of its Secret.
async fn create_vm(hosted: &Hosted, name: &str) -> String {
    let vm = hosted.vm(name, &labels(hosted, name, "workers"), &drive_of(name));
    Hosted::reference(&hosted.vms.create(&PostParams::default(), &vm).await.unwrap()).unwrap()
}

/// Runs a leader until the leader has written a lease for VirtualMachine `w` and sends the first request for which
/// `is_last` is true. `fault` holds this request until the returned semaphore has a permit. Meanwhile, the
/// VirtualMachine is deleted, and another leader releases its address and allocates the address to VirtualMachine `x`.
/// Returns both leaders, the semaphore, and the name of the Secret of `w`.
async fn pause_at(
    (server, cluster, hosted): (&Server, &Cluster, &Hosted),
    is_last: fn(&Call) -> bool,
    fault: fn(Arc<Semaphore>) -> Fault,
) -> (Controller, Controller, Arc<Semaphore>, String) {
    let paused = lead_paused(cluster).await;
    let (gate, came) = (Arc::new(Semaphore::new(0)), Arc::new(AtomicUsize::new(0)));
    let (held, count) = (Arc::clone(&gate), Arc::clone(&came));
    server.set_faults(move |call| {
        if call.user != PAUSED || !is_last(call) {
            return Fault::None;
        }
        count.fetch_add(1, Ordering::SeqCst);
        fault(Arc::clone(&held))
    });
    let secret = create_vm(hosted, "w").await;
    poll("the last request of the leader", async || (came.load(Ordering::SeqCst) > 0).then_some(())).await;
    assert_eq!(hosted.held().await, [("10.0.0.8".to_owned(), "w".to_owned())]);
    hosted.vms.delete("w", &DeleteParams::default()).await.unwrap();
    hosted.until_gone(&hosted.vms, "w").await;
    let other = lead(cluster);
    hosted.until_held(0).await;
    create_vm(hosted, "x").await;
    assert_eq!(hosted.address_of("x").await, "10.0.0.8");
    (paused, other, gate, secret)
}

#[tokio::test]
async fn a_leader_writes_the_secret_of_a_machine_that_its_watch_has_not_reported_yet() {
    let (server, cluster) = start_server().await;
    let hosted = hosted(&cluster, &["10.0.0.8/32"]).await;
    let paused = lead_paused(&cluster).await;
    let [never, recorded] = [0; 2].map(|permits| Arc::new(Semaphore::new(permits)));
    let (gate, instance_gate) = (Arc::clone(&never), Arc::clone(&recorded));
    server.set_faults(move |call| match (call.verb, call.plural.as_str()) {
        ("create", "secrets") if call.user == PAUSED => Fault::Hold(Arc::clone(&gate)),
        ("watch", "virtualmachines") if call.user.starts_with("system:") => Fault::Hold(Arc::clone(&gate)),
        ("create", "virtualmachineinstances") => Fault::Hold(Arc::clone(&instance_gate)),
        _ => Fault::None,
    });
    let mut other = lead(&cluster);
    other.until_ready().await;
    create_vm(&hosted, "x").await;
    let is_held = async || (!hosted.held().await.is_empty()).then_some(());
    poll("the lease of the paused leader", is_held).await;
    // The other leader sees the lease and the instance. The watch of this leader does not report the VirtualMachine, so
    // the leader must read the VirtualMachine.
    recorded.add_permits(Semaphore::MAX_PERMITS / 2);
    assert_eq!(hosted.address_of("x").await, "10.0.0.8");
    drop((paused, other, never));
}

/// A user of another namespace has a running VirtualMachine `w`, and many leases name this VirtualMachine as their
/// holder. The user also has a KubevirtMachine whose template names the namespace of a hosted cluster.
#[tokio::test]
async fn objects_of_another_namespace_do_not_keep_a_machine_from_getting_an_address() {
    let (_server, cluster) = start_server().await;
    let hosted = hosted(&cluster, &["10.0.0.8/31"]).await;
    let other = Hosted::plain(&cluster).await;
    other.kubevirt.be_late();
    let spec = PoolSpec {
        node_pool_ref: None,
        machine_selector: Some(LabelSelector::default()),
        ..other.spec("", &["10.0.0.0/24"])
    };
    other.pools.create(&PostParams::default(), &StaticIPPool::new("p", spec)).await.unwrap();
    create_vm(&other, "w").await;
    let first = lead(&cluster);
    other.address_of("w").await;
    drop(first);
    let leases: Api<StaticIPLease> = Api::all(cluster.client());
    for n in 100..140 {
        let address = format!("10.0.0.{n}");
        let spec = json!({
            "network": other.network, "address": address, "prefix": 16, "pool": format!("{}/p", other.namespace),
            "since": "2026-08-01T10:00:00.000000Z",
            "holder": {
                "kind": "VirtualMachine", "namespace": other.namespace, "name": "w", "uid": n.to_string(),
                "interface": "eno101",
            },
        });
        let name = lease_name(address.parse().unwrap(), &other.network).unwrap();
        let lease = StaticIPLease::new(&name, serde_json::from_value(spec).unwrap());
        leases.create(&PostParams::default(), &lease).await.unwrap();
    }
    let template = json!({"metadata": {"namespace": hosted.namespace}});
    let machine = json!({"metadata": {"name": "w"}, "spec": {"virtualMachineTemplate": template}});
    other.machines.create(&PostParams::default(), &object(KUBEVIRT_MACHINE, machine)).await.unwrap();
    // A VirtualMachine of the user has labels that name a machine of the hosted cluster. This VirtualMachine gets no
    // address.
    let machine = object(KUBEVIRT_MACHINE, json!({"metadata": {"name": "v"}, "spec": {}}));
    hosted.machines.create(&PostParams::default(), &machine).await.unwrap();
    let mut vm = other.vm("v", &labels(&hosted, "v", "workers"), &drive_of("v"));
    vm.data["spec"]["template"]["metadata"]["annotations"] =
        json!({"network.kubevirt.io/addresses": r#"{"iface1": ["a text of the user"]}"#});
    other.vms.create(&PostParams::default(), &vm).await.unwrap();
    // The user also has a VirtualMachine on the network of the hosted cluster. The pool of this network does not serve
    // this machine. The network data of the machine has the addresses of the hosted cluster.
    let mut vm = other.vm("u", &json!({}), &drive_of_0_2_0("u"));
    vm.data["spec"]["template"]["spec"]["networks"] =
        json!([{"name": "iface1", "multus": {"networkName": hosted.network}}]);
    let networks = ["10.0.0.8", "10.0.0.9"].map(|address| json!({"ip_address": address}));
    let document = json!({"networks": networks}).to_string();
    let metadata = ObjectMeta { name: Some(name_of_0_2_0("u")), ..ObjectMeta::default() };
    let data = Some([("networkdata".to_owned(), ByteString(document.into_bytes()))].into());
    let secret = Secret { metadata, data, ..Secret::default() };
    other.secrets.create(&PostParams::default(), &secret).await.unwrap();
    other.vms.create(&PostParams::default(), &vm).await.unwrap();
    let _next = lead(&cluster);
    other.until_event("v", "NetworkDataMissing").await;
    other.until_event("u", "IPAddressConflict").await;

    create_vm(&hosted, "w").await;
    assert_eq!(hosted.address_of("w").await, "10.0.0.8");
    hosted.vms.delete("w", &DeleteParams::default()).await.unwrap();
    hosted.until_held(0).await;
    let events: Api<Event> = Api::namespaced(cluster.client(), &hosted.namespace);
    let events = events.list(&ListParams::default()).await.unwrap().items;
    let about_v = events.into_iter().filter(|event| event.regarding.as_ref().unwrap().name.as_deref() == Some("v"));
    assert_eq!(about_v.filter_map(|event| event.note).collect::<Vec<_>>(), [""; 0]);
}

/// Creates a KubevirtMachine in the namespace of the cluster, and its VirtualMachine in the namespace of the machines.
pub(crate) async fn create_machine_elsewhere(cluster: &Cluster, hosted: &Hosted, name: &str) -> Api<DynamicObject> {
    let machines: Api<DynamicObject> =
        Api::namespaced_with(cluster.client(), &hosted.clusters, &resource(KUBEVIRT_MACHINE));
    let template = json!({"metadata": {"namespace": hosted.namespace}});
    let machine = json!({"metadata": {"name": name}, "spec": {"virtualMachineTemplate": template}});
    machines.create(&PostParams::default(), &object(KUBEVIRT_MACHINE, machine)).await.unwrap();
    let mut labels = labels(hosted, name, "workers");
    labels["capk.cluster.x-k8s.io/kubevirt-machine-namespace"] = hosted.clusters.clone().into();
    let mut vm = hosted.vm(name, &labels, &drive_of_0_2_0(name));
    vm.data["spec"]["template"]["metadata"] = json!({"labels": labels});
    hosted.vms.create(&PostParams::default(), &vm).await.unwrap();
    machines
}

#[tokio::test]
async fn the_next_leader_keeps_the_address_of_an_orphaned_guest_of_a_machine_in_another_namespace() {
    let (server, cluster) = start_server().await;
    let hosted = hosted(&cluster, &["10.0.0.8/32"]).await;
    let machines = create_machine_elsewhere(&cluster, &hosted, "w").await;
    let first = lead(&cluster);
    assert_eq!(hosted.address_of("w").await, "10.0.0.8");
    create_vm(&hosted, "x").await;
    hosted.until_event("x", "IPPoolExhausted").await;
    // The VirtualMachine is deleted, but its guest still runs and reports no address.
    hosted.kubevirt.hold("w");
    machines.delete("w", &DeleteParams::default()).await.unwrap();
    hosted.vms.delete("w", &DeleteParams::default()).await.unwrap();
    merge(&hosted.vms, "w", &json!({"metadata": {"finalizers": null}})).await;
    hosted.until_gone(&hosted.vms, "w").await;
    hosted.kubevirt.report("w", &json!({"interfaces": null})).await;
    drop(first);
    server.take_calls();
    let _next = lead(&cluster);
    poll("the read of the instance of machine w", async || {
        let is_of_proof = |call: &Call| {
            (call.user.as_str(), call.verb, call.plural.as_str()) == (CONTROLLER, "get", "virtualmachineinstances")
                && call.namespace.as_ref() == Some(&hosted.namespace)
        };
        server.take_calls().iter().any(is_of_proof).then_some(())
    })
    .await;
    hosted.kubevirt.end("w").await;
    assert_eq!(hosted.address_of("x").await, "10.0.0.8");
    // The address was released after the end of the guest.
    let path = format!("/apis/kubevirt.io/v1/namespaces/{}/virtualmachineinstances", hosted.namespace);
    check_release_after(&server, &cluster, &path, "w").await;
}

#[tokio::test]
async fn the_secret_of_a_machine_whose_other_objects_are_gone_is_deleted_before_its_lease_ends() {
    let (server, cluster) = start_server().await;
    let hosted = hosted(&cluster, &["10.0.0.8/32"]).await;
    let machines = create_machine_elsewhere(&cluster, &hosted, "w").await;
    let first = lead(&cluster);
    assert_eq!(hosted.address_of("w").await, "10.0.0.8");
    drop(first);
    // While no leader runs, the VirtualMachine is deleted and its guest ends. The Secret stays, because it has no owner
    // any more.
    let orphaned = json!({"metadata": {"ownerReferences": null}});
    hosted.secrets.patch("w-networkdata", &PatchParams::default(), &Patch::Merge(&orphaned)).await.unwrap();
    machines.delete("w", &DeleteParams::default()).await.unwrap();
    hosted.vms.delete("w", &DeleteParams::default()).await.unwrap();
    hosted.until_gone(&hosted.instances, "w").await;
    hosted.until_gone(&hosted.vms, "w").await;
    create_vm(&hosted, "x").await;
    let _next = lead(&cluster);
    assert_eq!(hosted.address_of("x").await, "10.0.0.8");
    let path = format!("/api/v1/namespaces/{}/secrets", hosted.namespace);
    check_release_after(&server, &cluster, &path, "w-networkdata").await;
}

/// Writes the lease of a holder, as another leader would write it.
pub(crate) async fn write_lease(cluster: &Cluster, hosted: &Hosted, address: &str, holder: &Value) {
    let mut spec = json!({
        "network": hosted.network, "address": address, "prefix": 16, "pool": format!("{}/workers", hosted.namespace),
        "since": "2026-08-01T10:00:00.000000Z", "holder": {"interface": "eno101"},
    });
    json_patch::merge(&mut spec["holder"], holder);
    let name = lease_name(address.parse().unwrap(), &hosted.network).unwrap();
    let lease = StaticIPLease::new(&name, serde_json::from_value(spec).unwrap());
    Api::all(cluster.client()).create(&PostParams::default(), &lease).await.unwrap();
}

#[tokio::test]
async fn a_lease_that_arrives_after_its_holder_is_gone_is_released() {
    for kind in ["KubevirtMachine", "VirtualMachine", "IPAddressClaim"] {
        let (_server, cluster) = start_server().await;
        let hosted = hosted(&cluster, &["10.0.0.8/32"]).await;
        let mut leader = lead(&cluster);
        leader.until_ready().await;
        let holder = json!({"kind": kind, "namespace": hosted.namespace, "name": "w", "uid": "u"});
        write_lease(&cluster, &hosted, "10.0.0.8", &holder).await;
        hosted.until_held(0).await;
    }
}

#[tokio::test]
async fn no_pass_reads_an_object_of_another_namespace() {
    let (server, cluster) = start_server().await;
    let hosted = hosted(&cluster, &["10.0.0.8/30"]).await;
    let other = cluster.namespace().await;
    // The holder in this lease is a KubevirtMachine of the other namespace. Its VirtualMachine is in the namespace of
    // the hosted cluster, as the lease says.
    let holder = json!({
        "kind": "KubevirtMachine", "namespace": other, "name": "w", "uid": "u",
        "virtualMachineNamespace": hosted.namespace,
    });
    write_lease(&cluster, &hosted, "10.0.0.8", &holder).await;
    let failed = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&failed);
    server.set_faults(move |call| {
        if call.verb != "get" || call.namespace.as_ref() != Some(&other) {
            return Fault::None;
        }
        count.fetch_add(1, Ordering::SeqCst);
        Fault::Status(500)
    });
    create_vm(&hosted, "w").await;
    let _leader = lead(&cluster);
    assert_eq!(hosted.address_of("w").await, "10.0.0.9");
    assert_eq!(hosted.held().await, [("10.0.0.8".to_owned(), "w".to_owned()), ("10.0.0.9".to_owned(), "w".to_owned())]);
    hosted.vms.delete("w", &DeleteParams::default()).await.unwrap();
    hosted.until_held(0).await;
    assert_eq!(failed.load(Ordering::SeqCst), 0);
}

/// Starts VirtualMachine `w`, whose guest has 10.0.0.8, stops the leader, and removes everything that records the
/// address, except the Secret. Returns the hosted cluster, and the name of the Secret.
async fn recorded_only_in_a_secret(cluster: &Cluster) -> (Hosted, String) {
    let hosted = hosted(cluster, &["10.0.0.8/31"]).await;
    let secret = create_vm(&hosted, "w").await;
    {
        let _leader = lead(cluster);
        assert_eq!(hosted.address_of("w").await, "10.0.0.8");
        until(&hosted.vms, "w", |vm| vm.annotations().contains_key(ANNOTATION)).await;
    }
    hosted.forget_leases().await;
    merge(&hosted.vms, "w", &json!({"metadata": {"annotations": {(ANNOTATION): null}}})).await;
    hosted.kubevirt.report("w", &json!({"interfaces": null})).await;
    (hosted, secret)
}

/// Makes each read of this Secret by the controller fail. Returns the number of these reads.
fn fail_reads(server: &Server, secret: String) -> Arc<AtomicUsize> {
    let failed = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&failed);
    server.set_faults(move |call| {
        if (&*call.user, call.verb, call.name.as_ref()) != (CONTROLLER, "get", Some(&secret)) {
            return Fault::None;
        }
        count.fetch_add(1, Ordering::SeqCst);
        Fault::Status(503)
    });
    failed
}

/// Waits until five reads of the Secret of [`recorded_only_in_a_secret`] have failed, and asserts that no address is
/// allocated meanwhile. Then the reads succeed, and claim `x` gets the other address.
async fn check_that_the_claim_waits(server: &Server, hosted: &Hosted, site: &Site, failed: &AtomicUsize) {
    poll("five failed reads", async || (failed.load(Ordering::SeqCst) >= 5).then_some(())).await;
    assert_eq!((hosted.held().await, site.held().await), (Vec::new(), Vec::new()));
    let obstacle = async || {
        let status = hosted.pools.get("workers").await.unwrap().status.unwrap_or_default();
        let condition = status.conditions.into_iter().find(|condition| condition.type_ == "UnadoptedRecords");
        condition.map(|condition| condition.message)
    };
    let message = poll("a condition", &obstacle).await;
    let expected = "New addresses are not allocated yet: the controller cannot adopt every record of a machine. Its log has the reason";
    assert_eq!(message, expected);
    server.clear_faults();
    assert_eq!(site.address_of("x").await, "10.0.0.9");
    poll("no condition", async || obstacle().await.is_none().then_some(())).await;
    let held = [("10.0.0.8", "w"), ("10.0.0.9", "x")].map(|(address, name)| (address.to_owned(), name.to_owned()));
    assert_eq!(hosted.held().await, held);
}

#[tokio::test]
async fn a_leader_allocates_nothing_before_it_has_read_a_secret_that_alone_records_an_address() {
    let (server, cluster) = start_server().await;
    let (hosted, secret) = recorded_only_in_a_secret(&cluster).await;
    let site = Site::of(&cluster, &hosted.clusters, "v1beta2");
    site.claim("x", &json!({"spec": {"poolRef": {"name": "workers"}}})).await;
    let failed = fail_reads(&server, secret);
    let _leader = lead(&cluster);
    check_that_the_claim_waits(&server, &hosted, &site, &failed).await;
}

#[tokio::test]
async fn a_recreated_pool_allocates_nothing_before_the_secret_with_the_only_record_is_read() {
    let (server, cluster) = start_server().await;
    let (hosted, secret) = recorded_only_in_a_secret(&cluster).await;
    merge(&hosted.pools, "workers", &json!({"metadata": {"finalizers": null}})).await;
    hosted.pools.delete("workers", &DeleteParams::default()).await.unwrap();
    let site = Site::of(&cluster, &hosted.clusters, "v1beta2");
    site.claim("x", &json!({"spec": {"poolRef": {"name": "workers"}}})).await;
    let mut leader = lead(&cluster);
    leader.until_ready().await;
    let failed = fail_reads(&server, secret);
    hosted.pool("workers", &["10.0.0.8/31"]).await;
    check_that_the_claim_waits(&server, &hosted, &site, &failed).await;
}

#[tokio::test]
async fn a_machine_whose_secret_the_api_server_refuses_has_an_event_and_gets_the_secret_later() {
    let (server, cluster) = start_server().await;
    let hosted = hosted(&cluster, &["10.0.0.8/32"]).await;
    let is_secret = |call: &Call| (call.verb, &*call.plural) == ("create", "secrets");
    server.set_faults(move |call| if is_secret(call) { Fault::Status(403) } else { Fault::None });
    create_vm(&hosted, "w").await;
    let _leader = lead(&cluster);
    let note = hosted.until_event("w", "NetworkDataMissing").await;
    let name = Hosted::reference(&hosted.vms.get("w").await.unwrap()).unwrap();
    assert_eq!(
        note,
        format!("Secret {name:?}: the API server refuses the request of the controller: a fault of the test")
    );
    let plugin = Plugin::new(cluster.config());
    let machine = format!("{}/w", hosted.namespace);
    let (_, why) = plugin.json(&["why", &machine]).await;
    assert_eq!((&why["state"], &why["reason"]), (&json!("waiting"), &json!(note)));
    server.set_faults(|_| Fault::None);
    assert_eq!(hosted.address_of("w").await, "10.0.0.8");
    hosted.until_event("w", "IPAddressAllocated").await;
    let (_, why) = plugin.json(&["why", &machine]).await;
    assert_eq!(why["state"], json!("allocated"));
}

#[tokio::test]
async fn a_refused_patch_of_a_virtual_machine_ends_the_pass() {
    for code in [409, 422] {
        let (server, cluster) = start_server().await;
        let hosted = hosted(&cluster, &["10.0.0.8/32"]).await;
        let is_patch =
            |call: &Call| (&*call.user, call.verb, &*call.plural) == (CONTROLLER, "patch", "virtualmachines");
        let is_refused = move |call: &Call| is_patch(call) && call.body.is_array();
        server.set_faults(move |call| if is_refused(call) { Fault::Status(code) } else { Fault::None });
        let vm = hosted.vm("w", &labels(&hosted, "w", "workers"), &json!({}));
        hosted.vms.create(&PostParams::default(), &vm).await.unwrap();
        let _leader = lead(&cluster);
        // No webhook answers, so each pass sends a merge patch and then a JSON patch.
        let mut patches = Vec::new();
        poll("three passes", async || {
            patches.extend(server.take_calls().iter().filter(|call| is_patch(call)).map(|call| call.body.is_array()));
            (patches.len() >= 6).then_some(())
        })
        .await;
        assert_eq!(patches[..6], [false, true, false, true, false, true], "{code}");
        server.clear_faults();
        assert_eq!(hosted.address_of("w").await, "10.0.0.8");
    }
}

/// A lease that version 0.2.0 wrote for a KubevirtMachine also names the namespace of the VirtualMachine.
#[tokio::test]
async fn a_lease_that_0_2_0_wrote_is_kept_while_its_virtual_machine_in_another_namespace_exists() {
    let (server, cluster) = start_server().await;
    let hosted = hosted(&cluster, &["10.0.0.8/31"]).await;
    let mut leader = lead(&cluster);
    leader.until_ready().await;
    let mut labels = labels(&hosted, "w", "others");
    labels["capk.cluster.x-k8s.io/kubevirt-machine-namespace"] = hosted.clusters.clone().into();
    let vm = hosted.vm("w", &labels, &json!({"secretRef": {"name": "userdata"}}));
    hosted.vms.create(&PostParams::default(), &vm).await.unwrap();
    let holder = json!({
        "kind": "KubevirtMachine", "namespace": hosted.clusters, "name": "w", "uid": "u",
        "virtualMachineNamespace": hosted.namespace,
    });
    write_lease(&cluster, &hosted, "10.0.0.8", &holder).await;
    // The leader processes the leases in the order in which they are written. When it has released the second lease,
    // whose holder is gone, it has also processed the first lease.
    let holder = json!({"kind": "VirtualMachine", "namespace": hosted.namespace, "name": "y", "uid": "u"});
    write_lease(&cluster, &hosted, "10.0.0.9", &holder).await;
    hosted.until_held(1).await;
    assert_eq!(hosted.held().await, [("10.0.0.8".to_owned(), "w".to_owned())]);
    hosted.vms.delete("w", &DeleteParams::default()).await.unwrap();
    hosted.until_held(0).await;
    let path = format!("/apis/kubevirt.io/v1/namespaces/{}/virtualmachines", hosted.namespace);
    check_release_after(&server, &cluster, &path, "w").await;
}

/// Writes a lease of version 0.2.0 for KubevirtMachine `w`, whose VirtualMachine is in another namespace. Returns the
/// holder.
pub(crate) async fn write_earlier_lease(cluster: &Cluster, hosted: &Hosted, address: &str) -> Value {
    let machines: Api<DynamicObject> =
        Api::namespaced_with(cluster.client(), &hosted.clusters, &resource(KUBEVIRT_MACHINE));
    let holder = json!({
        "kind": "KubevirtMachine", "namespace": hosted.clusters, "name": "w",
        "uid": machines.get("w").await.unwrap().metadata.uid, "virtualMachineNamespace": hosted.namespace,
    });
    write_lease(cluster, hosted, address, &holder).await;
    holder
}

/// The KubevirtMachine has no annotations of version 0.2.0, so only the Secret records the address.
#[tokio::test]
async fn after_the_loss_of_all_leases_an_address_that_only_a_secret_records_is_not_allocated() {
    let (_server, cluster) = start_server().await;
    let hosted = hosted(&cluster, &["10.0.0.8/31"]).await;
    create_machine_elsewhere(&cluster, &hosted, "w").await;
    write_earlier_lease(&cluster, &hosted, "10.0.0.8").await;
    let first = lead(&cluster);
    assert_eq!(hosted.address_of("w").await, "10.0.0.8");
    poll("the guest", async || hosted.instances.get_opt("w").await.unwrap()).await;
    drop(first);
    hosted.forget_leases().await;
    hosted.kubevirt.report("w", &json!({"interfaces": null})).await;
    create_vm(&hosted, "x").await;
    create_vm(&hosted, "y").await;
    let mut next = lead(&cluster);
    next.until_ready().await;
    assert_eq!(hosted.address_of("x").await, "10.0.0.9");
    hosted.until_event("y", "IPPoolExhausted").await;
    // The address is free again after the end of the guest.
    hosted.vms.delete("w", &DeleteParams::default()).await.unwrap();
    assert_eq!(hosted.address_of("y").await, "10.0.0.8");
}

/// A user who has the right to create claims in the namespace of a KubevirtMachine can create a claim that names this
/// machine.
#[tokio::test]
async fn a_forged_claim_that_names_a_machine_of_its_namespace_releases_no_address() {
    let (_server, cluster) = start_server().await;
    let hosted = hosted(&cluster, &["10.0.0.8/31"]).await;
    create_machine_elsewhere(&cluster, &hosted, "w").await;
    let holder = write_earlier_lease(&cluster, &hosted, "10.0.0.8").await;
    let _leader = lead(&cluster);
    assert_eq!(hosted.address_of("w").await, "10.0.0.8");
    let provider = OtherProvider::start(&cluster.client(), &hosted.clusters, &[]);
    let note = json!({
        "kind": "KubevirtMachine", "interface": "eno101",
        "machine": {"namespace": hosted.clusters, "name": "w", "uid": holder["uid"]},
    });
    let claim = json!({
        "apiVersion": "ipam.cluster.x-k8s.io/v1beta2", "kind": "IPAddressClaim",
        "metadata": {
            "name": "w-eno101", "labels": {"ipam.glowplug.dev/machine-claim": "true"},
            "annotations": {"ipam.glowplug.dev/claimant": note.to_string()},
        },
        "spec": {"poolRef": OtherProvider::pool_ref()},
    });
    provider.claims.create(&PostParams::default(), &serde_json::from_value(claim).unwrap()).await.unwrap();
    poll("the end of the claim", async || provider.names().await.is_empty().then_some(())).await;
    assert_eq!(hosted.held().await, [("10.0.0.8".to_owned(), "w".to_owned())]);
}

#[tokio::test]
async fn a_leader_deletes_the_claim_of_a_machine_that_was_deleted_while_no_leader_ran() {
    let (_server, cluster) = start_server().await;
    let hosted = hosted_with_provider(&cluster).await;
    let provider = OtherProvider::start(&hosted.client, &hosted.namespace, &[]);
    let machines = create_machine_elsewhere(&cluster, &hosted, "w").await;
    let first = lead(&cluster);
    hosted.until_event("w", "AddressPending").await;
    assert_eq!(provider.names().await, ["w-eno101"]);
    drop(first);
    // The machine has no lease yet, so only the claim names the machine.
    machines.delete("w", &DeleteParams::default()).await.unwrap();
    hosted.vms.delete("w", &DeleteParams::default()).await.unwrap();
    hosted.until_gone(&hosted.vms, "w").await;
    let _next = lead(&cluster);
    poll("the end of the claim", async || provider.names().await.is_empty().then_some(())).await;
}

/// Checks that the address of `w` was released after the object `name` in the list at `path` was deleted.
pub(crate) async fn check_release_after(server: &Server, cluster: &Cluster, path: &str, name: &str) {
    let end = deleted_at(server, cluster.client(), path, name).await;
    let release = release_of_w(server, cluster.client()).await;
    assert!(release > end, "released at {release}, before the deletion of {path}/{name} at {end}");
}

/// Returns the version at which an object of this name was deleted.
async fn deleted_at(server: &Server, client: Client, path: &str, name: &str) -> u64 {
    let versions = history(server, client, path).await;
    let deletion = versions.iter().find(|(_, is_gone, object)| *is_gone && object["metadata"]["name"] == name);
    deletion.unwrap_or_else(|| panic!("{name} was not deleted")).0
}

/// Returns the version at which machine `w` no longer held its address.
async fn release_of_w(server: &Server, client: Client) -> u64 {
    let leases = history(server, client, "/apis/ipam.glowplug.dev/v1alpha1/staticipleases").await;
    let is_of_w = |lease: &Value| lease["spec"]["holder"]["name"] == "w" && lease["spec"].get("released").is_none();
    let (_, _, first) = leases.iter().find(|(_, _, lease)| is_of_w(lease)).unwrap();
    let name = &first["metadata"]["name"];
    let mut of_address = leases.iter().filter(|(_, _, lease)| lease["metadata"]["name"] == *name);
    of_address.by_ref().find(|(_, _, lease)| is_of_w(lease)).unwrap();
    of_address.find(|(_, is_gone, lease)| *is_gone || !is_of_w(lease)).unwrap().0
}

#[tokio::test]
async fn an_orphaned_guest_keeps_its_secret_and_its_address_until_it_ends() {
    let (server, cluster) = start_server().await;
    let hosted = hosted(&cluster, &["10.0.0.8/32"]).await;
    let secret_of_w = create_vm(&hosted, "w").await;
    let _leader = lead(&cluster);
    assert_eq!(hosted.address_of("w").await, "10.0.0.8");
    create_vm(&hosted, "x").await;
    hosted.until_event("x", "IPPoolExhausted").await;
    // These requests do what `kubectl delete --cascade=orphan` and the garbage collector do.
    merge(&hosted.vms, "w", &json!({"metadata": {"finalizers": ["orphan", FINALIZER]}})).await;
    hosted.vms.delete("w", &DeleteParams::default()).await.unwrap();
    let orphaned = json!({"metadata": {"ownerReferences": null}});
    merge(&hosted.instances, "w", &orphaned).await;
    hosted.secrets.patch(&secret_of_w, &PatchParams::default(), &Patch::Merge(&orphaned)).await.unwrap();
    server.take_calls();
    merge(&hosted.vms, "w", &json!({"metadata": {"finalizers": null}})).await;
    hosted.until_gone(&hosted.vms, "w").await;
    poll("the read of the instance of machine w", async || {
        let is_last = |call: &Call| {
            (call.user.as_str(), call.verb, call.plural.as_str()) == (CONTROLLER, "get", "virtualmachineinstances")
        };
        server.take_calls().iter().any(is_last).then_some(())
    })
    .await;
    assert!(hosted.kubevirt.migrate("w").await, "the pod of a migration needs the Secret");
    hosted.instances.delete("w", &DeleteParams::default()).await.unwrap();
    assert_eq!(hosted.address_of("x").await, "10.0.0.8");
    let of = |group: &str, plural: &str| format!("{group}/namespaces/{}/{plural}", hosted.namespace);
    let path = of("/apis/kubevirt.io/v1", "virtualmachineinstances");
    let end = deleted_at(&server, cluster.client(), &path, "w").await;
    let secret = deleted_at(&server, cluster.client(), &of("/api/v1", "secrets"), &secret_of_w).await;
    assert!(end < secret, "the Secret was deleted at {secret}, before the guest ended at {end}");
    check_history(&server, &cluster, &hosted).await;
}

#[tokio::test]
async fn an_instance_with_a_secret_that_no_lease_names_keeps_the_addresses_of_four_deleted_machines_of_its_name() {
    let (_server, cluster) = start_server().await;
    let hosted = hosted(&cluster, &["10.0.0.16/29"]).await;
    // The pod of this instance waits for its Secret for ever.
    let vm = hosted.vm("w", &json!({}), &drive_of("w"));
    let instance = json!({"metadata": {"name": "w"}, "spec": vm.data["spec"]["template"]["spec"]});
    hosted.instances.create(&PostParams::default(), &object(INSTANCE, instance)).await.unwrap();
    let _leader = lead(&cluster);
    let until_held = async |last: u8| {
        let held: Vec<_> = (16..=last).map(|last| (format!("10.0.0.{last}"), "w".to_owned())).collect();
        poll("the held addresses", async || (hosted.held().await == held).then_some(())).await;
    };
    for last in [16, 17, 18, 19, 20, 20] {
        let secret = create_vm(&hosted, "w").await;
        hosted.until_secret(&secret).await;
        until_held(last).await;
        hosted.vms.delete("w", &DeleteParams::default()).await.unwrap();
        hosted.until_gone(&hosted.vms, "w").await;
    }
    until_held(19).await;
}

#[tokio::test]
async fn a_secret_of_another_author_does_not_reserve_the_address_of_a_deleted_machine() {
    let (_server, cluster) = start_server().await;
    let hosted = hosted(&cluster, &["10.0.0.8/32"]).await;
    let name = create_vm(&hosted, "w").await;
    let _leader = lead(&cluster);
    assert_eq!(hosted.address_of("w").await, "10.0.0.8");
    create_vm(&hosted, "x").await;
    hosted.until_event("x", "IPPoolExhausted").await;
    let mut secret = hosted.secrets.get(&name).await.unwrap();
    secret.metadata = serde_json::from_value(json!({"name": name})).unwrap();
    hosted.secrets.delete(&name, &DeleteParams::default()).await.unwrap();
    let theirs = hosted.secrets.create(&PostParams::default(), &secret).await.unwrap();
    hosted.vms.delete("w", &DeleteParams::default()).await.unwrap();
    // The Secret does not keep the address reserved, because no later machine refers to this Secret.
    assert_eq!(hosted.address_of("x").await, "10.0.0.8");
    assert_eq!(hosted.secrets.get(&name).await.unwrap(), theirs);
}

#[tokio::test]
async fn a_late_secret_is_never_read_by_a_later_machine_of_the_same_name() {
    for fault in [Fault::Hold, Fault::HoldAndLose] {
        let (server, cluster) = start_server().await;
        let hosted = hosted(&cluster, &["10.0.0.8/32"]).await;
        let is_last = |call: &Call| call.verb == "create" && call.plural == "secrets";
        let (paused, _other, gate, late) = pause_at((&server, &cluster, &hosted), is_last, fault).await;
        paused.lose_election();
        gate.add_permits(Semaphore::MAX_PERMITS / 2);
        hosted.until_secret(&late).await;
        // The late Secret still has the address that now belongs to machine `x`.
        let name = create_vm(&hosted, "w").await;
        hosted.until_event("w", "IPPoolExhausted").await;
        assert!(hosted.secrets.get_opt(&name).await.unwrap().is_none());
        hosted.vms.delete("x", &DeleteParams::default()).await.unwrap();
        assert_eq!(hosted.address_of("w").await, "10.0.0.8");
        assert_eq!(hosted.secret_name("w").await, name);
        check_history(&server, &cluster, &hosted).await;
    }
}

const DIGEST: &str = "ipam.glowplug.dev/secret-digest";

/// Creates VirtualMachines `w` and `x`, which hold their addresses themselves, and two machines of a NodePool. Runs a
/// leader until these four machines have all their records.
async fn settled(cluster: &Cluster, hosted: &Hosted) {
    create_vm(hosted, "w").await;
    create_vm(hosted, "x").await;
    hosted.scale("workers", 2).await;
    until(&hosted.machines, "workers-0", |_| true).await;
    hosted.set_status_map("workers-0", true).await;
    let _leader = lead(cluster);
    for name in ["w", "x"] {
        hosted.until_running(name).await;
        until(&hosted.vms, name, |vm| vm.annotations().contains_key(DIGEST)).await;
    }
    for name in ["workers-0", "workers-1"] {
        hosted.until_running(name).await;
        hosted.until_annotated(name, DIGEST).await;
        let has_map = |machine: &DynamicObject| !machine.data["status"]["allocatedBootstrapAddresses"].is_null();
        until(&hosted.machines, name, has_map).await;
    }
}

#[tokio::test]
async fn a_new_leader_reads_only_the_secret_of_a_machine_whose_records_are_incomplete() {
    let (server, cluster) = start_server().await;
    let hosted = hosted(&cluster, &["10.0.0.8/29"]).await;
    settled(&cluster, &hosted).await;
    // `x` has lost an annotation. Its name sorts last, so when a new leader has restored the annotation, the leader has
    // begun the passes of all other machines, too.
    let network = "ipam.glowplug.dev/network-eno101";
    merge(&hosted.vms, "x", &json!({"metadata": {"annotations": {(network): null}}})).await;
    let secret = hosted.secret_name("x").await;
    server.take_calls();
    let _next = lead(&cluster);
    until(&hosted.vms, "x", |vm| vm.annotations().contains_key(network)).await;
    let calls = server.take_calls().into_iter();
    let reads = calls.filter(|call| (call.verb, call.plural.as_str()) == ("get", "secrets") && call.user == CONTROLLER);
    assert_eq!(reads.filter_map(|call| call.name).collect::<Vec<_>>(), [secret]);
}

#[tokio::test]
async fn a_secret_that_is_deleted_while_no_leader_runs_is_written_again_when_its_guest_starts() {
    let (_server, cluster) = start_server().await;
    let hosted = hosted(&cluster, &["10.0.0.8/29"]).await;
    settled(&cluster, &hosted).await;
    let held = hosted.held().await;
    for name in ["w", "x"] {
        hosted.secrets.delete(&hosted.secret_name(name).await, &DeleteParams::default()).await.unwrap();
    }
    // The instance of `w` waits for its Secret before the leader starts. The instance of `x` starts later.
    let (before, drives) = (hosted.instances.get("w").await.unwrap().uid(), hosted.kubevirt.drives("w"));
    hosted.instances.delete("w", &DeleteParams::default()).await.unwrap();
    until(&hosted.instances, "w", |instance| instance.uid() != before).await;
    let mut next = lead(&cluster);
    next.until_ready().await;
    hosted.until_running("w").await;
    assert_eq!(hosted.kubevirt.drives("w").pop().unwrap().network_data, drives.last().unwrap().network_data);
    let drive = hosted.kubevirt.drives("x").pop().unwrap();
    assert_eq!(hosted.restart("x").await.network_data, drive.network_data);
    assert_eq!(hosted.held().await, held);
}

/// Users of the namespace can write the digest annotation. A leader that trusts the digest does not read the Secret,
/// which may be the only record of an address.
#[tokio::test]
async fn a_copied_digest_of_a_secret_moves_no_address_of_a_running_guest() {
    let (_server, cluster) = start_server().await;
    let hosted = hosted(&cluster, &["10.0.0.8/29"]).await;
    settled(&cluster, &hosted).await;
    let held = hosted.held().await;
    hosted.forget_leases().await;
    let digest = hosted.vms.get("w").await.unwrap().annotations()[DIGEST].clone();
    for (api, name) in [(&hosted.vms, "w"), (&hosted.vms, "x"), (&hosted.machines, "workers-0")] {
        let annotations = json!({
            (DIGEST): digest, "kubevirt.cluster.x-k8s.io/allocated-ip-eno101": null, "ipam.glowplug.dev/network-eno101": null,
        });
        merge(api, name, &json!({"metadata": {"annotations": annotations}})).await;
        hosted.kubevirt.report(name, &json!({"interfaces": null})).await;
    }
    create_vm(&hosted, "v").await;
    let _next = lead(&cluster);
    let address = hosted.address_of("v").await;
    let mut after = hosted.held().await;
    after.retain(|row| *row != (address.clone(), "v".to_owned()));
    assert_eq!(after, held);
}

#[tokio::test]
async fn the_next_leader_writes_the_secrets_and_digests_for_a_pool_that_changed_while_no_leader_ran() {
    let (_server, cluster) = start_server().await;
    let hosted = hosted(&cluster, &["10.0.0.8/29"]).await;
    settled(&cluster, &hosted).await;
    let before = hosted.vms.get("w").await.unwrap().annotations()[DIGEST].clone();
    // A guest that starts in the same second as the change counts as a guest that has read the new document.
    until_next_second().await;
    merge(&hosted.pools, "workers", &json!({"spec": {"gateway": ["10.0.0.2"]}})).await;
    let _next = lead(&cluster);
    let name = hosted.secret_name("w").await;
    let updated =
        |secret: &Secret| secret.metadata.annotations.as_ref().unwrap().get("ipam.glowplug.dev/updated").cloned();
    let secret = poll("another document", async || {
        hosted.secrets.get_opt(&name).await.unwrap().filter(|secret| updated(secret).is_some())
    })
    .await;
    let document: Value = serde_json::from_slice(&secret.data.as_ref().unwrap()["networkdata"].0).unwrap();
    assert_eq!(document["networks"][0]["routes"][0]["gateway"], "10.0.0.2", "{document:#}");
    // The digest in the VirtualMachine changes only after its guest has read the new document.
    hosted.until_event("w", "NetworkDataOutdated").await;
    assert_eq!(hosted.vms.get("w").await.unwrap().annotations()[DIGEST], before);
    hosted.restart("w").await;
    let after = until(&hosted.vms, "w", |vm| vm.annotations()[DIGEST] != before).await;
    assert_eq!(after.annotations()[DIGEST].split_once('@').map(|(_, time)| time), updated(&secret).as_deref());
}

#[tokio::test]
async fn a_new_machine_does_not_wait_until_the_records_of_other_machines_are_repaired() {
    let (server, cluster) = start_server().await;
    let hosted = hosted(&cluster, &["10.0.0.8-10.0.0.200"]).await;
    let first = lead(&cluster);
    // The number of machines is larger than the number of passes that can run at the same time.
    let names: Vec<String> = (0..70).map(|n| format!("w-{n}")).collect();
    for name in &names {
        create_vm(&hosted, name).await;
    }
    for name in &names {
        hosted.until_running(name).await;
        until(&hosted.vms, name, |vm| vm.annotations().contains_key(DIGEST)).await;
    }
    drop(first);
    for name in &names {
        merge(&hosted.vms, name, &json!({"metadata": {"annotations": null}})).await;
    }
    let (gate, reads) = (Arc::new(Semaphore::new(0)), Arc::new(AtomicUsize::new(0)));
    let (held, count) = (Arc::clone(&gate), Arc::clone(&reads));
    server.set_faults(move |call| {
        let name = call.name.as_deref().unwrap_or_default();
        if (call.verb, call.plural.as_str()) != ("get", "secrets") || call.user != CONTROLLER || !name.starts_with("w-")
        {
            return Fault::None;
        }
        count.fetch_add(1, Ordering::SeqCst);
        Fault::Hold(Arc::clone(&held))
    });
    let _next = lead(&cluster);
    poll("the first repairs", async || (reads.load(Ordering::SeqCst) == 16).then_some(())).await;
    create_vm(&hosted, "new").await;
    hosted.until_running("new").await;
    assert_eq!(reads.load(Ordering::SeqCst), 16);
    gate.add_permits(Semaphore::MAX_PERMITS / 2);
    for name in &names {
        until(&hosted.vms, name, |vm| vm.annotations().contains_key(DIGEST)).await;
    }
}

/// While the records of new addresses are adopted, the passes of a leader use the earlier pools, but the webhooks use
/// the new pools. No webhook is called here, as in a namespace without a pool.
#[tokio::test]
async fn a_leader_that_uses_older_pools_than_the_webhooks_does_not_change_a_deselected_machine() {
    let (server, cluster) = start_server().await;
    let hosted = Hosted::plain(&cluster).await;
    let selector = |label: &str| json!({"matchLabels": {"pool": label}});
    let pool = async |name: &str, address: &str| {
        let spec = PoolSpec {
            node_pool_ref: None,
            machine_selector: serde_json::from_value(selector(name)).unwrap(),
            ..hosted.spec(name, &[address])
        };
        hosted.pools.create(&PostParams::default(), &StaticIPPool::new(name, spec)).await.unwrap();
    };
    let vm = |name: &str, label: &str, drive: Value| hosted.vm(name, &json!({"pool": label}), &drive);
    let create = async |vm: &DynamicObject| hosted.vms.create(&PostParams::default(), vm).await.unwrap();
    let user_data = json!({"userData": "#cloud-config"});
    let own = json!({"metadata": {"name": "own"}, "stringData": {"networkdata": "{}"}});
    hosted.secrets.create(&PostParams::default(), &serde_json::from_value(own).unwrap()).await.unwrap();
    create(&vm("own", "p", json!({"userData": "#cloud-config", "networkDataSecretRef": {"name": "own"}}))).await;
    pool("p", "10.0.0.8/32").await;
    let selection = Arc::new(SelectionCache::new(cluster.controller(), Scope::default()));
    let running = Arc::clone(&selection);
    let cache = tokio::spawn(async move { match running.run().await {} });
    let mut leader = Controller::with_selection(cluster.controller(), Arc::clone(&selection));
    leader.until_ready().await;

    // The leader reads this Secret whenever it adopts the records of new addresses.
    let (gate, held) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let (closed, arrived) = (Arc::clone(&gate), Arc::clone(&held));
    server.set_faults(move |call| match (call.verb, call.plural.as_str(), call.name.as_deref()) {
        ("get", "secrets", Some("own")) if call.user == CONTROLLER => {
            arrived.add_permits(1);
            Fault::Hold(Arc::clone(&closed))
        }
        _ => Fault::None,
    });
    pool("new", "10.0.0.9/32").await;
    held.acquire().await.unwrap().forget();
    merge(&hosted.pools, "p", &json!({"spec": {"machineSelector": selector("other")}})).await;
    let mut stopped = vm("stopped", "p", user_data.clone());
    stopped.data["spec"]["runStrategy"] = "Halted".into();
    let machine = VirtualMachine::read(serde_json::from_value(json!(stopped)).unwrap());
    let is_deselected = |selection: &Option<Arc<Selection>>| {
        selection.as_ref().is_some_and(|selection| selection.of(&machine).is_ok_and(|selected| selected.is_empty()))
    };
    drop(selection.subscribe().wait_for(is_deselected).await.unwrap());
    let created = [create(&stopped).await, create(&vm("running", "p", user_data.clone())).await];
    hosted.until_running("running").await;
    // A pass reads the instance before it decides whether the machine is left alone, and requests a reference after the
    // decision. A second read shows that the first pass has ended.
    drop(server.take_calls());
    for name in ["stopped", "running"] {
        let mut reads = 0;
        poll("two passes", async || {
            let calls = server.take_calls().into_iter().filter(|call| call.user == CONTROLLER && call.verb == "get");
            let is_it = |call: &Call| call.plural == "virtualmachineinstances" && call.name.as_deref() == Some(name);
            reads += calls.filter(is_it).count();
            (reads >= 2).then_some(())
        })
        .await;
    }

    gate.add_permits(Semaphore::MAX_PERMITS / 2);
    create(&vm("served", "new", user_data)).await;
    until(&hosted.vms, "served", |vm| Hosted::reference(vm).is_some() || is_left_alone(vm)).await;
    for before in created {
        let now = hosted.vms.get(&before.name_any()).await.unwrap();
        assert_eq!((&now.data["spec"], is_left_alone(&now)), (&before.data["spec"], false), "{}", now.name_any());
    }
    cache.abort();
}

fn is_left_alone(vm: &DynamicObject) -> bool {
    vm.annotations().contains_key(LEFT_ALONE_ANNOTATION)
}
