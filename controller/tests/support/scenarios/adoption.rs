//! Addresses that are in use before a pool has them: records that are older than their pool, machines that run already,
//! and restored objects.

use std::collections::BTreeSet;

use glowplug_controller::kinds::pool::{PoolSpec, StaticIPPool};
use glowplug_controller::kinds::virtual_machine::LEFT_ALONE_ANNOTATION;
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt;
use kube::api::{DeleteParams, DynamicObject, ListParams, PostParams};
use serde_json::{Value, json};

use crate::support::Cluster;
use crate::support::controller::{Controller, Site, create, merge, until};
use crate::support::hosted::definitions::{KUBEVIRT_MACHINE, VIRTUAL_MACHINE};
use crate::support::hosted::provider::object;
use crate::support::hosted::{Hosted, poll};
use crate::support::installed::Installed;
use crate::support::plugin::Plugin;

const ANNOTATION: &str = "kubevirt.cluster.x-k8s.io/allocated-ip-eno101";

fn rows<const N: usize>(rows: [(&str, &str); N]) -> Vec<(String, String)> {
    rows.map(|(address, name)| (address.to_owned(), name.to_owned())).into()
}

/// Writes the record of an address into a KubevirtMachine.
async fn record(hosted: &Hosted, name: &str, address: &str) {
    let annotations = json!({(ANNOTATION): format!(r#"["{address}/16"]"#)});
    merge(&hosted.machines, name, &json!({"metadata": {"annotations": annotations}})).await;
}

/// Waits until the status of a pool counts this number of machines that are left alone.
async fn until_left_alone(hosted: &Hosted, pool: &str, count: u32) {
    poll(&format!("{count} machines that are left alone"), async || {
        let status = hosted.pools.get(pool).await.unwrap().status?;
        (status.left_alone == count).then_some(())
    })
    .await;
}

/// Returns the reference and the interface index that the controller adds to a template. Null: the template has no
/// reference, or no index.
fn template(vm: &DynamicObject) -> Value {
    let interface = &vm.data["spec"]["template"]["spec"]["domain"]["devices"]["interfaces"][0];
    json!([Hosted::reference(vm), interface["acpiIndex"]])
}

/// Creates a KubevirtMachine with a record of this address. No VirtualMachine exists for the KubevirtMachine.
pub(super) async fn recorded_machine(hosted: &Hosted, name: &str, address: &str) {
    let annotations = json!({(ANNOTATION): format!(r#"["{address}/16"]"#)});
    let networks = json!([{"name": "net1", "multus": {"networkName": hosted.network}}]);
    let template = json!({"spec": {"template": {"spec": {"networks": networks}}}});
    let machine = json!({
        "metadata": {"name": name, "annotations": annotations},
        "spec": {"virtualMachineTemplate": template},
    });
    hosted.machines.create(&PostParams::default(), &object(KUBEVIRT_MACHINE, machine)).await.unwrap();
}

/// Starts a machine of a NodePool without a pool, and writes the record of an address into its KubevirtMachine.
async fn recorded_guest(hosted: &Hosted, address: &str) {
    hosted.node_pool("others", 1, &json!({})).await;
    hosted.until_running("others-0").await;
    record(hosted, "others-0", address).await;
}

/// Asserts that three new machines of NodePool `workers` get the addresses from 10.0.0.8 to 10.0.0.11, except
/// `recorded`.
async fn until_others_are_allocated(hosted: &Hosted, recorded: &str) {
    hosted.scale("workers", 3).await;
    let mut addresses = BTreeSet::from([recorded.to_owned()]);
    for name in ["workers-0", "workers-1", "workers-2"] {
        addresses.insert(hosted.address_of(name).await);
    }
    assert_eq!(addresses, (8..12).map(|n| format!("10.0.0.{n}")).collect());
}

// === records that are older than their pool ===

pub async fn machines_with_records_keep_their_addresses_when_their_pool_is_created(cluster: &Cluster) {
    let hosted = Hosted::new(cluster).await;
    let installed = Installed::start(cluster).await;
    hosted.node_pool("workers", 3, &json!({})).await;
    for (name, address) in [("workers-0", Some("10.0.0.10")), ("workers-1", Some("10.0.0.8")), ("workers-2", None)] {
        hosted.until_running(name).await;
        if let Some(address) = address {
            record(&hosted, name, address).await;
        }
    }
    hosted.pool("workers", &["10.0.0.8/30"]).await;
    hosted.until_held(2).await;
    assert_eq!(hosted.held().await, rows([("10.0.0.10", "workers-0"), ("10.0.0.8", "workers-1")]));
    until_left_alone(&hosted, "workers", 1).await;
    assert_eq!(hosted.restart("workers-0").await.addresses()[0].1, "10.0.0.10");
    installed.until_asked(&hosted, "workers").await;
    hosted.scale("workers", 5).await;
    let addresses = [hosted.address_of("workers-3").await, hosted.address_of("workers-4").await];
    assert_eq!(BTreeSet::from(addresses), ["10.0.0.11".to_owned(), "10.0.0.9".to_owned()].into());
    for (name, address) in [("workers-0", "10.0.0.10"), ("workers-1", "10.0.0.8")] {
        assert_eq!(hosted.until_annotated(name, ANNOTATION).await, format!(r#"["{address}/16"]"#));
    }
    installed.stop().await;
}

pub async fn two_machines_that_record_one_address_get_a_conflict_when_their_pool_is_created(cluster: &Cluster) {
    let hosted = Hosted::new(cluster).await;
    let installed = Installed::start(cluster).await;
    hosted.node_pool("workers", 2, &json!({})).await;
    for name in ["workers-0", "workers-1"] {
        hosted.until_running(name).await;
        record(&hosted, name, "10.0.0.8").await;
    }
    hosted.pool("workers", &["10.0.0.8/30"]).await;
    hosted.until_condition("workers", "DuplicateRecords").await;
    until_left_alone(&hosted, "workers", 2).await;
    assert_eq!(hosted.held().await, []);
    for name in ["workers-0", "workers-1"] {
        hosted.until_event(name, "IPAddressConflict").await;
        assert_eq!(hosted.until_annotated(name, ANNOTATION).await, r#"["10.0.0.8/16"]"#);
    }
    installed.until_asked(&hosted, "workers").await;
    hosted.scale("workers", 3).await;
    assert_eq!(hosted.address_of("workers-2").await, "10.0.0.9");
    installed.stop().await;
}

pub async fn a_pool_that_grows_allocates_no_recorded_address(cluster: &Cluster) {
    let hosted = Hosted::new(cluster).await;
    let installed = Installed::start(cluster).await;
    hosted.node_pool("workers", 0, &json!({})).await;
    hosted.pool("workers", &["10.0.0.8/32"]).await;
    installed.until_asked(&hosted, "workers").await;
    recorded_guest(&hosted, "10.0.0.9").await;
    hosted.resize("workers", &["10.0.0.8/30"]).await;
    until_others_are_allocated(&hosted, "10.0.0.9").await;
    installed.stop().await;
}

pub async fn a_pool_that_loses_an_exclusion_allocates_no_recorded_address(cluster: &Cluster) {
    let hosted = Hosted::new(cluster).await;
    let installed = Installed::start(cluster).await;
    hosted.node_pool("workers", 0, &json!({})).await;
    let spec =
        PoolSpec { excluded_addresses: vec!["10.0.0.8/30".to_owned()], ..hosted.spec("workers", &["10.0.0.8/30"]) };
    hosted.pools.create(&PostParams::default(), &StaticIPPool::new("workers", spec)).await.unwrap();
    installed.until_asked(&hosted, "workers").await;
    recorded_guest(&hosted, "10.0.0.10").await;
    merge(&hosted.pools, "workers", &json!({"spec": {"excludedAddresses": null}})).await;
    until_others_are_allocated(&hosted, "10.0.0.10").await;
    installed.stop().await;
}

pub async fn a_pool_that_becomes_valid_allocates_no_recorded_address(cluster: &Cluster) {
    let hosted = Hosted::new(cluster).await;
    let installed = Installed::start(cluster).await;
    hosted.node_pool("workers", 0, &json!({})).await;
    hosted.pool("workers", &["10.0.0.8/30", "no address"]).await;
    hosted.until_no_condition("workers", "Ready").await;
    recorded_guest(&hosted, "10.0.0.8").await;
    hosted.resize("workers", &["10.0.0.8/30"]).await;
    installed.until_asked(&hosted, "workers").await;
    until_others_are_allocated(&hosted, "10.0.0.8").await;
    installed.stop().await;
}

pub async fn a_pool_whose_node_pool_is_created_later_allocates_no_recorded_address(cluster: &Cluster) {
    let hosted = Hosted::new(cluster).await;
    let installed = Installed::start(cluster).await;
    hosted.pool("workers", &["10.0.0.8/30"]).await;
    hosted.until_condition("workers", "Ready").await;
    recorded_guest(&hosted, "10.0.0.11").await;
    hosted.node_pool("workers", 0, &json!({})).await;
    installed.until_asked(&hosted, "workers").await;
    until_others_are_allocated(&hosted, "10.0.0.11").await;
    installed.stop().await;
}

pub async fn a_pool_that_gets_a_selector_later_allocates_no_recorded_address(cluster: &Cluster) {
    let hosted = Hosted::plain(cluster).await;
    let installed = Installed::start(cluster).await;
    let spec = PoolSpec { node_pool_ref: None, ..hosted.spec("p", &["10.0.0.8/31"]) };
    hosted.pools.create(&PostParams::default(), &StaticIPPool::new("p", spec)).await.unwrap();
    hosted.until_condition("p", "Ready").await;
    recorded_machine(&hosted, "other", "10.0.0.8").await;
    merge(&hosted.pools, "p", &json!({"spec": {"machineSelector": {"matchLabels": {"pool": "p"}}}})).await;
    until_selected(&hosted).await;
    create_vm(&hosted, "w").await;
    assert_eq!(hosted.address_of("w").await, "10.0.0.9");
    hosted.until_held(2).await;
    assert_eq!(hosted.held().await, rows([("10.0.0.8", "other"), ("10.0.0.9", "w")]));
    installed.stop().await;
}

pub async fn a_record_that_is_newer_than_its_pool_reserves_its_address_and_is_not_a_duplicate(cluster: &Cluster) {
    let hosted = Hosted::new(cluster).await;
    let installed = Installed::start(cluster).await;
    hosted.node_pool("workers", 0, &json!({})).await;
    hosted.pool("workers", &["10.0.0.8/29"]).await;
    installed.until_asked(&hosted, "workers").await;
    hosted.scale("workers", 1).await;
    assert_eq!(hosted.address_of("workers-0").await, "10.0.0.8");
    hosted.until_annotated("workers-0", ANNOTATION).await;
    record(&hosted, "workers-0", "10.0.0.9").await;
    let note = hosted.until_event("workers-0", "IPAddressConflict").await;
    assert!(note.contains("records 10.0.0.9,"), "{note}");
    until_reserved_by_record(&hosted, "1").await;
    // The controller corrects the annotation after it has recorded the conflict.
    let is_right = |machine: &DynamicObject| machine.annotations()[ANNOTATION] == r#"["10.0.0.8/16"]"#;
    until(&hosted.machines, "workers-0", is_right).await;
    hosted.scale("workers", 2).await;
    assert_eq!(hosted.address_of("workers-1").await, "10.0.0.10");
    hosted.until_no_condition("workers", "DuplicateRecords").await;
    installed.stop().await;
}

/// Waits until the pool counts this number of addresses that have a record but no holder.
async fn until_reserved_by_record(hosted: &Hosted, addresses: &str) {
    poll(&format!("{addresses} recorded addresses"), async || {
        (hosted.pools.get("workers").await.unwrap().status?.families[0].by_record == addresses).then_some(())
    })
    .await;
}

pub async fn a_conflict_ends_when_the_record_of_the_other_machine_is_corrected(cluster: &Cluster) {
    let hosted = Hosted::new(cluster).await;
    let installed = Installed::start(cluster).await;
    hosted.node_pool("workers", 0, &json!({})).await;
    hosted.pool("workers", &["10.0.0.8/29"]).await;
    installed.until_asked(&hosted, "workers").await;
    for (replicas, name, address) in [(1, "workers-0", "10.0.0.8"), (2, "workers-1", "10.0.0.9")] {
        hosted.scale("workers", replicas).await;
        assert_eq!(hosted.address_of(name).await, address);
        hosted.until_annotated(name, ANNOTATION).await;
    }
    // A user writes the address of workers-1 into the annotation of workers-0. The controller corrects the annotation.
    record(&hosted, "workers-0", "10.0.0.9").await;
    let note = hosted.until_event("workers-0", "IPAddressConflict").await;
    assert!(note.contains("records 10.0.0.9,"), "{note}");
    let is_right = |machine: &DynamicObject| machine.annotations()[ANNOTATION] == r#"["10.0.0.8/16"]"#;
    until(&hosted.machines, "workers-0", is_right).await;
    // A status that counts the third machine was written after the conflict.
    hosted.scale("workers", 3).await;
    assert_eq!(hosted.address_of("workers-2").await, "10.0.0.10");
    poll("no conflict", async || {
        let counts = hosted.pools.get("workers").await.unwrap().status?.families.first()?.clone();
        (counts.allocated == "3" && counts.conflicts == "0").then_some(())
    })
    .await;
    hosted.until_no_condition("workers", "DuplicateRecords").await;
    // After workers-1 is deleted, its address stays reserved, because workers-0 recorded this address before.
    // HyperShift replaces workers-1 with a new machine.
    hosted.delete("workers-1").await;
    until_reserved_by_record(&hosted, "1").await;
    assert_eq!(hosted.address_of("workers-3").await, "10.0.0.11");
    installed.stop().await;
}

pub async fn a_machine_keeps_an_address_outside_its_pool_when_leases_are_lost(cluster: &Cluster) {
    let hosted = Hosted::new(cluster).await;
    let mut installed = Installed::start(cluster).await;
    hosted.node_pool("workers", 0, &json!({})).await;
    hosted.pool("workers", &["10.0.0.8/31"]).await;
    installed.until_asked(&hosted, "workers").await;
    for (replicas, name, address) in [(1, "workers-0", "10.0.0.8"), (2, "workers-1", "10.0.0.9")] {
        hosted.scale("workers", replicas).await;
        assert_eq!(hosted.address_of(name).await, address);
        hosted.until_annotated(name, ANNOTATION).await;
    }
    installed.stop_leading();
    hosted.forget_leases().await;
    hosted.resize("workers", &["10.0.0.8/32", "10.0.0.10/31"]).await;
    installed.lead().await;
    hosted.until_held(1).await;
    assert_eq!(hosted.restart("workers-1").await.addresses()[0].1, "10.0.0.9");
    hosted.scale("workers", 3).await;
    assert_eq!(hosted.address_of("workers-2").await, "10.0.0.10");
    hosted.until_no_condition("workers", "DuplicateRecords").await;
    assert_eq!(hosted.held().await, rows([("10.0.0.10", "workers-2"), ("10.0.0.8", "workers-0")]));
    // The pool offers the address again.
    hosted.resize("workers", &["10.0.0.8/31", "10.0.0.10/31"]).await;
    hosted.until_held(3).await;
    hosted.scale("workers", 4).await;
    assert_eq!(hosted.address_of("workers-3").await, "10.0.0.11");
    installed.stop().await;
}

// === machines that run already ===

pub async fn a_machine_that_runs_when_its_pool_is_created_is_left_alone_until_its_annotation_is_removed(
    cluster: &Cluster,
) {
    let hosted = Hosted::new(cluster).await;
    let mut installed = Installed::start(cluster).await;
    hosted.node_pool("workers", 2, &json!({})).await;
    for name in ["workers-0", "workers-1"] {
        hosted.until_running(name).await;
    }
    let before = hosted.vms.get("workers-0").await.unwrap();
    hosted.pool("workers", &["10.0.0.8/30"]).await;
    until_left_alone(&hosted, "workers", 2).await;
    let note = format!(
        "The guest runs already, without network data of {}/workers: the machine keeps its network. To give it an address, \
         remove the annotation {LEFT_ALONE_ANNOTATION}, then restart the machine, or create the machine again",
        hosted.clusters
    );
    assert_eq!(hosted.until_event("workers-0", "LeftAlone").await, note);
    let uid = before.uid().unwrap();
    let unchanged = async || {
        let vm = hosted.vms.get("workers-0").await.unwrap();
        assert_eq!(vm.data["spec"], before.data["spec"]);
        assert_eq!(vm.annotations().get(LEFT_ALONE_ANNOTATION), Some(&uid));
        assert_eq!(hosted.held().await, []);
    };
    unchanged().await;
    // Another leader, a new guest and a change of the template change nothing.
    installed.stop_leading();
    installed.lead().await;
    until_left_alone(&hosted, "workers", 2).await;
    assert_eq!(hosted.restart("workers-0").await.network_data, None);
    unchanged().await;
    let cpu = json!({"spec": {"template": {"spec": {"domain": {"cpu": {"cores": 2}}}}}});
    let changed = merge(&hosted.vms, "workers-0", &cpu).await;
    assert_eq!(template(&changed), json!([null, null]));
    // The next machine is served.
    installed.until_asked(&hosted, "workers").await;
    hosted.scale("workers", 3).await;
    assert_eq!(hosted.address_of("workers-2").await, "10.0.0.8");
    // A machine that is left alone is served after its annotation is removed, or after the machine is created again.
    let freed = json!({"metadata": {"annotations": {(LEFT_ALONE_ANNOTATION): null}}});
    merge(&hosted.vms, "workers-0", &freed).await;
    hosted.until_event("workers-0", "NetworkDataMissing").await;
    assert_eq!(hosted.restart("workers-0").await.addresses()[0].1, "10.0.0.9");
    hosted.vms.delete("workers-1", &DeleteParams::default()).await.unwrap();
    until(&hosted.vms, "workers-1", |vm| Hosted::reference(vm).is_some()).await;
    hosted.until_held(3).await;
    assert_eq!(hosted.address_of("workers-1").await, "10.0.0.10");
    until_left_alone(&hosted, "workers", 0).await;
    installed.stop().await;
}

/// Starts machine `w`, whose record names 10.0.0.8, and then creates pool `p`, which excludes this address.
async fn recorded_and_excluded(hosted: &Hosted) {
    create_vm(hosted, "w").await;
    hosted.until_running("w").await;
    let recorded = json!({(ANNOTATION): r#"["10.0.0.8/16"]"#});
    merge(&hosted.vms, "w", &json!({"metadata": {"annotations": recorded}})).await;
    let spec = PoolSpec {
        node_pool_ref: None,
        machine_selector: serde_json::from_value(json!({"matchLabels": {"pool": "p"}})).unwrap(),
        excluded_addresses: vec!["10.0.0.8".to_owned()],
        ..hosted.spec("p", &["10.0.0.8/30"])
    };
    hosted.pools.create(&PostParams::default(), &StaticIPPool::new("p", spec)).await.unwrap();
}

pub async fn a_machine_that_records_an_excluded_address_gets_the_address_when_the_exclusion_ends(cluster: &Cluster) {
    let hosted = Hosted::plain(cluster).await;
    let installed = Installed::start(cluster).await;
    recorded_and_excluded(&hosted).await;
    until_left_alone(&hosted, "p", 1).await;
    let (plugin, id) = (Plugin::new(cluster.config()), format!("{}/p", hosted.namespace));
    let (status, answer) = plugin.json(&["adopt", "--pool", &id]).await;
    let reason = "no pool offers the recorded address: the machine keeps the address, without a lease, and gets no network data: \
                  offer the address, or remove the record";
    assert_eq!((status, &answer["machines"][0]["reason"]), (Some(1), &json!(reason)));
    // An administrator removes the annotation so that the machine is served, but does not remove the exclusion.
    let freed = json!({"metadata": {"annotations": {(LEFT_ALONE_ANNOTATION): null}}});
    merge(&hosted.vms, "w", &freed).await;
    until(&hosted.vms, "w", |vm| Hosted::reference(vm).is_some()).await;
    hosted.instances.delete("w", &DeleteParams::default()).await.unwrap();
    let note = "the machine keeps 10.0.0.8, which its pools exclude: include this address again, or delete the machine";
    let why = poll("the reason why the machine waits", async || {
        let (_, why) = plugin.json(&["why", &format!("{}/w", hosted.namespace)]).await;
        (why["reason"] == note).then_some(why)
    })
    .await;
    assert_eq!(why["state"], json!("waiting"));
    create_vm(&hosted, "new").await;
    assert_eq!(hosted.address_of("new").await, "10.0.0.9");
    let vm = hosted.vms.get("w").await.unwrap();
    assert_eq!(vm.annotations()[ANNOTATION], r#"["10.0.0.8/16"]"#);
    merge(&hosted.pools, "p", &json!({"spec": {"excludedAddresses": []}})).await;
    assert_eq!(hosted.address_of("w").await, "10.0.0.8");
    hosted.until_running("w").await;
    hosted.until_held(2).await;
    assert_eq!(hosted.held().await, rows([("10.0.0.8", "w"), ("10.0.0.9", "new")]));
    installed.stop().await;
}

pub async fn a_machine_that_is_left_alone_is_served_when_its_pool_offers_the_recorded_address(cluster: &Cluster) {
    let hosted = Hosted::plain(cluster).await;
    let installed = Installed::start(cluster).await;
    recorded_and_excluded(&hosted).await;
    until_left_alone(&hosted, "p", 1).await;
    merge(&hosted.pools, "p", &json!({"spec": {"excludedAddresses": []}})).await;
    until(&hosted.vms, "w", |vm| Hosted::reference(vm).is_some()).await;
    until_left_alone(&hosted, "p", 0).await;
    let note = hosted.until_event("w", "NetworkDataMissing").await;
    assert_eq!(note, "The guest started without its network data: restart the machine");
    assert_eq!(hosted.restart("w").await.addresses()[0].1, "10.0.0.8");
    assert_eq!(hosted.held().await, rows([("10.0.0.8", "w")]));
    installed.stop().await;
}

pub async fn a_machine_whose_guest_has_not_started_when_its_pool_is_created_is_served(cluster: &Cluster) {
    let hosted = Hosted::new(cluster).await;
    let installed = Installed::start(cluster).await;
    // The guest waits for a Secret of the user.
    let mut vm = hosted.vm("w", &json!({"pool": "p"}), &json!({"secretRef": {"name": "later"}}));
    vm.metadata.namespace = Some(hosted.namespace.clone());
    hosted.vms.create(&PostParams::default(), &vm).await.unwrap();
    until(&hosted.instances, "w", |instance| instance.data["status"]["phase"] == "Scheduling").await;
    let pools = kube::Api::<StaticIPPool>::namespaced(cluster.client(), &hosted.namespace);
    let selector = serde_json::from_value(json!({"matchLabels": {"pool": "p"}})).unwrap();
    let spec = PoolSpec { node_pool_ref: None, machine_selector: Some(selector), ..hosted.spec("p", &["10.0.0.8/30"]) };
    pools.create(&PostParams::default(), &StaticIPPool::new("p", spec)).await.unwrap();
    until(&hosted.vms, "w", |vm| Hosted::reference(vm).is_some()).await;
    hosted.until_held(1).await;
    assert_eq!(hosted.held().await, rows([("10.0.0.8", "w")]));
    assert!(!hosted.vms.get("w").await.unwrap().annotations().contains_key(LEFT_ALONE_ANNOTATION));
    installed.stop().await;
}

/// Tests the steps of `docs/existing-machines.md`.
pub async fn the_steps_of_the_guide_bring_running_machines_into_a_pool(cluster: &Cluster) {
    let hosted = Hosted::plain(cluster).await;
    let installed = Installed::start(cluster).await;
    for name in ["db-0", "web-0", "kept-0", "old-0"] {
        create_vm(&hosted, name).await;
        hosted.until_running(name).await;
    }
    // The guest of old-0 has no agent. Its address is 10.0.0.9.
    for (name, address) in [("db-0", "10.0.0.10"), ("web-0", "10.0.0.8"), ("kept-0", "10.0.0.15")] {
        let mut interface = hosted.instances.get(name).await.unwrap().data["status"]["interfaces"][0].clone();
        interface["ipAddresses"] = json!([address]);
        hosted.kubevirt.report(name, &json!({"interfaces": [interface]})).await;
    }
    let spec = PoolSpec {
        node_pool_ref: None,
        machine_selector: serde_json::from_value(json!({"matchLabels": {"pool": "p"}})).unwrap(),
        excluded_addresses: vec!["10.0.0.9".to_owned()],
        ..hosted.spec("p", &["10.0.0.8/29"])
    };
    let mut pool = StaticIPPool::new("p", spec);
    pool.metadata.namespace = Some(hosted.namespace.clone());
    let plugin = Plugin::new(cluster.config());
    let (id, file) = (format!("{}/p", hosted.namespace), plugin.file("pool.yaml", &json!(pool)));
    let machine = |name: &str| format!("{}/{name}", hosted.namespace);
    let room = json!([{
        "family": "IPv4", "total": "8", "free": "4", "held": "0", "needed": "4", "because": "machines 4", "lacking": "0",
    }]);
    let planned = json!({
        "pool": id, "change": "create", "errors": [], "warnings": [], "outside": [], "inUse": [], "conflicts": [], "room": room,
    });
    let planned = json!({"version": 1, "mistakes": [], "pools": [planned], "macPools": [], "refused": []});
    assert_eq!(plugin.json(&["plan", &file]).await, (Some(0), planned));
    let (_, planned) = plugin.json(&["adopt", "--file", &file, &machine("db-0")]).await;
    let digest = planned["digest"].as_str().unwrap();
    let (status, answer) = plugin.json(&["adopt", "--file", &file, &machine("db-0"), "--apply", digest]).await;
    assert_eq!((status, &answer["writes"][0]["outcome"]), (Some(0), &json!("written")), "{answer}");
    let (status, answer) = plugin.json(&["adopt", "--file", &file]).await;
    let results: Vec<(&Value, &Value)> =
        answer["machines"].as_array().unwrap().iter().map(|row| (&row["machine"], &row["result"])).collect();
    let expected = [("db-0", "recorded"), ("kept-0", "reserved"), ("old-0", "leftAlone"), ("web-0", "reserved")]
        .map(|(name, result)| (json!(machine(name)), json!(result)));
    // No guest agent reports the address of old-0.
    assert_eq!((status, results), (Some(1), expected.iter().map(|(name, result)| (name, result)).collect()));
    hosted.pools.create(&PostParams::default(), &pool).await.unwrap();
    until_left_alone(&hosted, "p", 3).await;
    hosted.until_held(1).await;
    assert_eq!(hosted.held().await, rows([("10.0.0.10", "db-0")]));
    let (_, planned) = plugin.json(&["adopt", "--pool", &id, &machine("kept-0")]).await;
    let digest = planned["digest"].as_str().unwrap();
    let (status, answer) = plugin.json(&["adopt", "--pool", &id, &machine("kept-0"), "--apply", digest]).await;
    assert_eq!((status, &answer["writes"][0]["outcome"]), (Some(0), &json!("written")), "{answer}");
    let kept = hosted.pools.get("p").await.unwrap().spec.pre_allocations;
    assert_eq!(kept, [(machine("kept-0"), "10.0.0.15".to_owned())].into());
    until_selected(&hosted).await;
    create_vm(&hosted, "new").await;
    assert_eq!(hosted.address_of("new").await, "10.0.0.11");
    // The machines restart with addresses of the pool.
    assert_eq!(hosted.restart("db-0").await.addresses()[0].1, "10.0.0.10");
    let freed = json!({"metadata": {"annotations": {(LEFT_ALONE_ANNOTATION): null}}});
    for (name, address) in [("old-0", "10.0.0.12"), ("kept-0", "10.0.0.15"), ("web-0", "10.0.0.13")] {
        merge(&hosted.vms, name, &freed).await;
        until(&hosted.vms, name, |vm| Hosted::reference(vm).is_some()).await;
        assert_eq!(hosted.restart(name).await.addresses()[0].1, address);
    }
    until_left_alone(&hosted, "p", 0).await;
    // The earlier addresses of web-0 and old-0 are free again.
    merge(&hosted.pools, "p", &json!({"spec": {"excludedAddresses": []}})).await;
    for name in ["last", "end", "more"] {
        create_vm(&hosted, name).await;
    }
    let mut addresses = BTreeSet::new();
    for name in ["last", "end", "more"] {
        addresses.insert(hosted.address_of(name).await);
    }
    assert_eq!(addresses, ["10.0.0.14", "10.0.0.8", "10.0.0.9"].map(str::to_owned).into());
    installed.stop().await;
}

// === restored machines ===

/// Waits until the webhook adds the reference to new machines that pool `p` selects.
async fn until_selected(hosted: &Hosted) {
    poll("a question to the webhook", async || {
        let dry_run = PostParams { dry_run: true, ..PostParams::default() };
        let vm = hosted.vm("probe", &json!({"pool": "p"}), &json!({}));
        Hosted::reference(&hosted.vms.create(&dry_run, &vm).await.ok()?).map(drop)
    })
    .await;
}

/// Creates a VirtualMachine without a KubevirtMachine. Pool `p` selects the VirtualMachine.
async fn create_vm(hosted: &Hosted, name: &str) -> DynamicObject {
    let vm = hosted.vm(name, &json!({"pool": "p"}), &json!({"userData": "#cloud-config"}));
    hosted.vms.create(&PostParams::default(), &vm).await.unwrap()
}

/// Returns the metadata that a backup keeps of an object: name, labels and annotations.
fn backup(metadata: &k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta) -> Value {
    json!({"name": metadata.name, "labels": metadata.labels, "annotations": metadata.annotations})
}

pub async fn restored_machines_keep_their_addresses(cluster: &Cluster) {
    let hosted = Hosted::plain(cluster).await;
    let selector = serde_json::from_value(json!({"matchLabels": {"pool": "p"}})).unwrap();
    let spec = PoolSpec { node_pool_ref: None, machine_selector: Some(selector), ..hosted.spec("p", &["10.0.0.8/29"]) };
    hosted.pools.create(&PostParams::default(), &StaticIPPool::new("p", spec)).await.unwrap();
    let mut installed = Installed::start(cluster).await;
    let (names, mut saved) = (["c", "b", "a"], Vec::new());
    until_selected(&hosted).await;
    for name in names {
        create_vm(&hosted, name).await;
        hosted.until_running(name).await;
        let is_recorded = |vm: &DynamicObject| vm.annotations().contains_key(ANNOTATION);
        let vm = until(&hosted.vms, name, is_recorded).await;
        let secret = hosted.secret(name).await;
        let vm = json!({"metadata": backup(&vm.metadata), "spec": vm.data["spec"]});
        let secret = json!({"metadata": backup(&secret.metadata), "data": secret.data});
        saved.push((name, vm, secret));
    }
    assert_eq!(hosted.held().await, rows([("10.0.0.10", "a"), ("10.0.0.8", "c"), ("10.0.0.9", "b")]));
    let held = hosted.held().await;
    // In each of two rounds, the VirtualMachines, Secrets and leases are lost. Then the objects are restored, the
    // VirtualMachines in reverse order. In the first round, no leader runs during the restore.
    for has_leader in [false, true] {
        installed.stop_leading();
        for name in names {
            hosted.vms.delete(name, &DeleteParams::default()).await.unwrap();
            hosted.until_gone(&hosted.vms, name).await;
            hosted.until_gone(&hosted.instances, name).await;
        }
        for secret in hosted.secrets.list(&ListParams::default()).await.unwrap() {
            hosted.secrets.delete(&secret.name_any(), &DeleteParams::default()).await.unwrap();
        }
        hosted.forget_leases().await;
        if has_leader {
            installed.lead().await;
        }
        for (_, _, secret) in &saved {
            let secret: Secret = serde_json::from_value(secret.clone()).unwrap();
            hosted.secrets.create(&PostParams::default(), &secret).await.unwrap();
        }
        for (name, vm, _) in saved.iter().rev() {
            let vm = object(VIRTUAL_MACHINE, vm.clone());
            let vm = hosted.vms.create(&PostParams::default(), &vm).await.unwrap();
            assert_eq!(vm.annotations().get(ANNOTATION), None, "{name}");
        }
        if !has_leader {
            installed.lead().await;
        }
        hosted.until_held(3).await;
        assert_eq!(hosted.held().await, held);
        let mut addresses = BTreeSet::new();
        for name in names {
            addresses.insert((hosted.address_of(name).await, name.to_owned()));
        }
        assert_eq!(addresses, held.iter().cloned().collect());
    }
    installed.stop().await;
}

pub async fn a_restored_machine_gets_another_address_when_its_earlier_address_is_in_use(cluster: &Cluster) {
    let hosted = Hosted::plain(cluster).await;
    let selector = serde_json::from_value(json!({"matchLabels": {"pool": "p"}})).unwrap();
    let spec = PoolSpec { node_pool_ref: None, machine_selector: Some(selector), ..hosted.spec("p", &["10.0.0.8/29"]) };
    hosted.pools.create(&PostParams::default(), &StaticIPPool::new("p", spec)).await.unwrap();
    let installed = Installed::start(cluster).await;
    create_vm(&hosted, "a").await;
    assert_eq!(hosted.address_of("a").await, "10.0.0.8");
    let vm = hosted.vms.get("a").await.unwrap();
    let secret = hosted.secret("a").await;
    hosted.vms.delete("a", &DeleteParams::default()).await.unwrap();
    hosted.until_held(0).await;
    create_vm(&hosted, "b").await;
    assert_eq!(hosted.address_of("b").await, "10.0.0.8");
    let secret = json!({"metadata": backup(&secret.metadata), "data": secret.data});
    let secret: Secret = serde_json::from_value(secret).unwrap();
    hosted.secrets.create(&PostParams::default(), &secret).await.unwrap();
    let vm = object(VIRTUAL_MACHINE, json!({"metadata": backup(&vm.metadata), "spec": vm.data["spec"]}));
    hosted.vms.create(&PostParams::default(), &vm).await.unwrap();
    assert_eq!(hosted.address_of("a").await, "10.0.0.9");
    poll("counts without a conflict", async || {
        let counts = hosted.pools.get("p").await.unwrap().status?.families.first()?.clone();
        (counts.allocated == "2" && counts.conflicts == "0").then_some(())
    })
    .await;
    installed.stop().await;
}

// === restored claims ===

pub async fn an_ipaddress_without_a_claim_reserves_its_address_until_it_is_deleted_or_its_claim_exists(
    cluster: &Cluster,
) {
    let site = Site::new(cluster).await;
    let _leader = Controller::start(cluster, &site);
    let restored = async |name: &str, address: &str| {
        let object = json!({
            "metadata": {"name": name, "finalizers": ["ipam.glowplug.dev/protect-address"]},
            "spec": {
                "poolRef": {"apiGroup": "ipam.glowplug.dev", "kind": "StaticIPPool", "name": "p"},
                "claimRef": {"name": name}, "address": address, "prefix": 16,
            },
        });
        create(&site.addresses, object).await;
    };
    restored("a", "10.0.0.8").await;
    restored("b", "10.0.0.9").await;
    site.pool("p", &["10.0.0.8/30"]).await;
    restored("c", "10.0.0.10").await;
    let reserved = async || site.pools.get("p").await.unwrap().status?.families.first().map(|it| it.by_record.clone());
    poll("three reserved addresses", async || (reserved().await? == "3").then_some(())).await;
    site.claim("new", &json!({})).await;
    assert_eq!(site.address_of("new").await, "10.0.0.11");
    // Claim `b` is created, and gets the address of IPAddress `b`, which existed before the claim. The IPAddress of a
    // restore has no owners, and gets them with the claim.
    site.claim("b", &json!({})).await;
    assert_eq!(site.address_of("b").await, "10.0.0.9");
    let (claim, pool) = (site.claims.get("b").await.unwrap(), site.pools.get("p").await.unwrap());
    let address = site.addresses.get("b").await.unwrap();
    let owners = address.owner_references().iter().map(|owner| owner.uid.clone());
    assert_eq!(owners.collect::<Vec<_>>(), [claim.uid().unwrap(), pool.uid().unwrap()]);
    poll("two reserved addresses", async || (reserved().await? == "2").then_some(())).await;
    // After the deletion of IPAddress `a`, its address is free.
    site.addresses.delete("a", &DeleteParams::default()).await.unwrap();
    site.claim("last", &json!({})).await;
    assert_eq!(site.address_of("last").await, "10.0.0.8");
    poll("one reserved address", async || (reserved().await? == "1").then_some(())).await;
    assert_eq!(site.given().await.len(), 4);
}
