mod hostile;

use std::collections::{BTreeMap, BTreeSet};

use glowplug::host::allocator::ClaimError;
use glowplug::host::claim::{Allocation, Claim, Claimant, Conflict, Machine, Record, Request};
use glowplug::host::pool::Pool;
use glowplug::network::Family;
use ipnetwork::IpNetwork;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use super::decide;
use crate::cluster::key::Key;
use crate::cluster::key::PoolId;
use crate::kinds::cluster_api::{IpAddress, Version};
use crate::kinds::ipam_claim::IpamClaim;
use crate::kinds::kubevirt_machine::{HandOut, Handed, Instance, KubevirtMachine, NetworkSecret};
use crate::kinds::pool::HolderKind;
use crate::kinds::virtual_machine::VirtualMachine;
use crate::machines::kind::Kinds;
use crate::machines::proof::{Proof, Verdict};
use crate::machines::recorded::{Held, Recorded};
use crate::machines::source::{MachineClaim, Source};
use crate::machines::step::{Hold, Notice, Once, Step};
use crate::machines::view::{Check, PoolSettings, Stripped, View};
use crate::passes::Problem;
use crate::pools::selection::Selected;

const KINDS: Kinds = Kinds { has_kubevirt_machines: true, claims: Some(Version::V1Beta2), has_ipam_claims: true };

fn key() -> Key {
    Key { namespace: "n".to_owned(), name: "w".to_owned() }
}

fn merged(mut object: Value, changes: &Value) -> crate::cluster::object::Object {
    json_patch::merge(&mut object, changes);
    serde_json::from_value(object).unwrap()
}

/// Creates VirtualMachine `n/w` of KubevirtMachine `n/w` with the changes of the webhook, and merges `changes` into it.
fn vm(changes: &Value) -> VirtualMachine {
    let interface = json!({"name": "iface1", "acpiIndex": 101, "macAddress": "02:00:00:00:00:01"});
    let source = json!({"networkDataSecretRef": {"name": "w-networkdata"}});
    let object = json!({
        "metadata": {
            "namespace": "n", "name": "w", "uid": "v-1", "resourceVersion": "5",
            "creationTimestamp": "2026-08-01T10:00:02Z", "labels": {
                "capk.cluster.x-k8s.io/kubevirt-machine-name": "w",
                "capk.cluster.x-k8s.io/kubevirt-machine-namespace": "n",
            },
        },
        "spec": {"template": {"spec": {
            "domain": {"devices": {"interfaces": [interface]}},
            "networks": [{"name": "iface1", "multus": {"networkName": "infra/vlan10"}}],
            "volumes": [{"name": "cloudinitvolume", "cloudInitConfigDrive": source}],
        }}},
    });
    VirtualMachine::read(merged(object, changes))
}

fn machine(changes: &Value) -> KubevirtMachine {
    let object = json!({"metadata": {
        "namespace": "n", "name": "w", "uid": "m-1", "resourceVersion": "4", "creationTimestamp": "2026-08-01T10:00:01Z",
    }});
    KubevirtMachine::read(merged(object, changes))
}

fn instance(changes: &Value) -> Instance {
    let owner = json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": "w", "uid": "v-1"});
    let object = json!({"metadata": {
        "namespace": "n", "name": "w", "uid": "i-1", "creationTimestamp": "2026-08-01T10:00:03Z",
        "ownerReferences": [owner],
    }});
    Instance::read(merged(object, changes))
}

fn holder(uid: &str) -> Machine {
    let kind = if uid.starts_with("v-") { HolderKind::VirtualMachine } else { HolderKind::KubevirtMachine };
    key().holder(kind, uid)
}

fn pool() -> Pool {
    let pool = br#"{"namespace": "n", "name": "p", "network": "infra/vlan10", "addresses": ["10.0.0.8/30"],
        "gateway": ["10.0.0.1"], "machineNetwork": [{"cidr": "10.0.0.0/16"}]}"#;
    Pool::parse(pool).unwrap().remove(0)
}

fn selected() -> Selected {
    Selected {
        pool: PoolId { namespace: Some("n".to_owned()), name: "p".to_owned() },
        network: "infra/vlan10".to_owned(),
        interface: "eno101".parse().unwrap(),
        attachment: "iface1".to_owned(),
    }
}

fn held(uid: &str, address: &str) -> Held {
    let claimant = Claimant { machine: holder(uid), interface: "eno101".parse().unwrap() };
    Held { claimant, network: "infra/vlan10".to_owned(), address: address.parse().unwrap(), prefix: 16 }
}

fn allocation(uid: &str) -> Allocation {
    let claimant = Claimant { machine: holder(uid), interface: "eno101".parse().unwrap() };
    Allocation { claimant, addresses: vec!["10.0.0.8/16".parse().unwrap()] }
}

/// Holders that a pass has checked, and that are not gone.
fn checked(holders: &[Machine]) -> BTreeMap<Machine, Check> {
    holders.iter().map(|holder| (holder.clone(), Check::Kept)).collect()
}

/// Creates a view with a VirtualMachine and its KubevirtMachine, without a Secret.
fn view() -> View {
    View {
        has_status_map: true,
        vm: Some(vm(&json!({}))),
        machine: Some(machine(&json!({}))),
        is_exhausted: false,
        selected: Ok(vec![selected()]),
        ledger: Recorded { pools: [("n/p".to_owned(), pool())].into(), ..Recorded::default() },
        secret: Some(NetworkSecret::Absent),
        done: [Once::ReadMachine].into(),
        ..View::new(key(), KINDS)
    }
}

/// Creates the Secret of a VirtualMachine. `vm` and `machine` are UIDs.
fn hand_out(machine: &str, vm: &str) -> NetworkSecret {
    let handed = Handed {
        interface: "eno101".parse().unwrap(),
        network: "infra/vlan10".to_owned(),
        pool: "n/p".to_owned(),
        addresses: vec!["10.0.0.8/16".parse().unwrap()],
    };
    NetworkSecret::Ours(HandOut {
        is_deleted: false,
        uid: "s-1".to_owned(),
        vm: vm.to_owned(),
        machine: holder(machine),
        interfaces: vec![handed],
    })
}

/// Creates a view of a machine with its Secret and its lease.
fn served() -> View {
    let mut view = View { secret: Some(hand_out("m-1", "v-1")), ..view() };
    view.ledger.held = vec![held("m-1", "10.0.0.8")];
    view.ledger.known = [holder("m-1")].into();
    view
}

fn claim(uid: &str, second: i64) -> Step {
    let created = Timestamp::from_second(second).unwrap();
    let requests = vec![Request::of("n/p")];
    let sticky = holder(uid).kind == HolderKind::VirtualMachine;
    Step::Claim(Box::new(Claim { machine: holder(uid), created, requests, sticky }))
}

/// Creation time of the KubevirtMachine, in seconds since 1970: 2026-08-01T10:00:01Z.
const FIRST: i64 = 1_785_578_401;

fn report(reason: &'static str, note: &str) -> Step {
    Step::Report(Notice { is_warning: true, reason, note: note.to_owned() })
}

#[test]
fn the_event_about_a_release_has_every_address_of_every_interface() {
    let held = |interface: &str, address: &str| Held {
        claimant: Claimant { machine: holder("m-1"), interface: interface.parse().unwrap() },
        network: "infra/vlan10".to_owned(),
        address: address.parse().unwrap(),
        prefix: 64,
    };
    let all = [held("eno102", "10.1.0.8"), held("eno101", "10.0.0.8"), held("eno101", "fd00::8")];
    let note = "Released 10.0.0.8, fd00::8 of eno101, 10.1.0.8 of eno102".to_owned();
    assert_eq!(Notice::of_release(&all), Some(Notice { is_warning: false, reason: "IPAddressReleased", note }));
    assert_eq!(Notice::of_release(&[]), None);
}

#[test]
fn a_machine_is_looked_for_before_anything_is_claimed_for_it() {
    assert_eq!(decide(&View { secret: None, ..view() }), Step::ReadSecret);
    assert_eq!(decide(&View { done: BTreeSet::new(), ..view() }), Step::ReadMachine(key()));
    assert_eq!(decide(&View { done: BTreeSet::new(), machine: None, ..view() }), Step::ReadMachine(key()));
    assert_eq!(decide(&view()), claim("m-1", FIRST));
}

#[test]
fn a_virtual_machine_of_no_pool_gets_nothing() {
    let other = json!({"spec": {"template": {"spec": {"volumes": []}}}});
    assert_eq!(decide(&View { selected: Ok(Vec::new()), vm: Some(vm(&other)), ..view() }), Step::Wait);
    assert_eq!(decide(&View { selected: Ok(Vec::new()), ..view() }), Step::Wait, "its Secret does not exist");
    let note = "Secret \"w-networkdata\" does not exist, and no pool selects the machine";
    let held = View { selected: Ok(Vec::new()), secret: Some(NetworkSecret::Absent), ..served() };
    assert_eq!(decide(&held), report("NetworkDataMissing", note));
}

#[test]
fn the_secret_of_a_virtual_machine_of_no_pool_is_adopted_when_its_leases_are_lost() {
    let view = View { selected: Ok(Vec::new()), ..view() };
    assert_eq!(decide(&View { secret: None, ..view.clone() }), Step::ReadSecret);
    let foreign = NetworkSecret::Foreign("no annotation".to_owned(), Vec::new());
    assert_eq!(decide(&View { secret: Some(foreign), ..view.clone() }), Step::Wait);
    let mut lost = View { secret: Some(hand_out("m-1", "v-1")), ..view };
    let elsewhere = vm(&json!({"spec": {"template": {"spec": {"networks": []}}}}));
    assert_eq!(decide(&View { vm: Some(elsewhere), ..lost.clone() }), Step::Wait, "it is on another network");
    let record = Record {
        claimant: held("m-1", "10.0.0.8").claimant,
        node_pool: Some("n/p".to_owned()),
        attachments: Vec::new(),
        network: Some("infra/vlan10".to_owned()),
        addresses: vec!["10.0.0.8/16".parse().unwrap()],
        source: "Secret n/w-networkdata".to_owned(),
    };
    assert_eq!(decide(&lost), Step::Adopt(vec![record]));
    lost.ledger.is_of_another = true;
    assert_eq!(decide(&lost), Step::Wait);
}

#[test]
fn a_virtual_machine_without_a_kubevirt_machine_claims_for_itself() {
    let alone = View { machine: None, ..view() };
    let itself = claim("v-1", FIRST + 1);
    assert_eq!(decide(&alone), itself, "the KubevirtMachine is in another cluster");
    assert_eq!(
        decide(&View { kinds: Kinds { has_kubevirt_machines: false, ..KINDS }, ..alone.clone() }),
        itself,
        "the cluster has none"
    );
    let unlabelled = vm(&json!({"metadata": {"labels": null}}));
    assert_eq!(decide(&View { vm: Some(unlabelled), ..view() }), itself, "it is of nobody");
    let label = json!({"metadata": {"labels": {"capk.cluster.x-k8s.io/kubevirt-machine-namespace": "elsewhere"}}});
    assert_eq!(decide(&View { vm: Some(vm(&label)), ..alone }), itself, "under its own name, whatever its labels say");
}

#[test]
fn a_machine_that_waits_for_a_mac_address_claims_nothing() {
    let label = json!({"labels": {"ipam.glowplug.dev/mac-addresses": "required"}});
    let waiting = |address: &str| {
        let interfaces = json!([{"name": "iface1", "macAddress": address}]);
        let template = json!({"metadata": label, "spec": {"domain": {"devices": {"interfaces": interfaces}}}});
        View { vm: Some(vm(&json!({"spec": {"template": template}}))), ..view() }
    };
    assert_eq!(decide(&waiting("")), Step::Wait);
    assert_eq!(decide(&waiting("02:00:00:00:00:01")), claim("m-1", FIRST));
}

#[test]
fn the_guest_of_a_kubevirt_machine_that_is_gone_claims_nothing_more() {
    let mut left = View { machine: None, checked: checked(&[holder("m-1")]), ..view() };
    left.ledger.known = [holder("m-1")].into();
    assert_eq!(decide(&left), Step::Wait);
}

#[test]
fn a_kubevirt_machine_that_is_being_deleted_claims_nothing() {
    let deleted = machine(&json!({"metadata": {"deletionTimestamp": "2026-08-01T11:00:00Z"}}));
    assert_eq!(decide(&View { machine: Some(deleted), ..view() }), Step::Wait);
}

#[test]
fn the_secret_has_the_addresses_the_mac_address_and_the_settings_of_the_pool() {
    let Step::CreateSecret(secret, ..) = decide(&View { granted: Some(vec![allocation("m-1")]), ..view() }) else {
        panic!()
    };
    let Secret { data, .. } = &*secret;
    let document: Value = serde_json::from_slice(&data.as_ref().unwrap()["networkdata"].0).unwrap();
    assert_eq!(document["links"][0]["ethernet_mac_address"], "02:00:00:00:00:01");
    assert_eq!(document["networks"][0]["ip_address"], "10.0.0.8");
    assert_eq!(document["networks"][0]["routes"][0]["gateway"], "10.0.0.1");
    let stored = Secret { metadata: ObjectMeta { uid: Some("s-1".to_owned()), ..secret.metadata.clone() }, ..*secret };
    assert_eq!(NetworkSecret::read(Some(stored)), hand_out("m-1", "v-1"));
}

#[test]
fn a_guest_that_started_before_its_secret_existed_must_be_restarted() {
    let notice = |phase: &str| {
        let instance = Some(instance(&json!({"status": {"phase": phase}})));
        match decide(&View { granted: Some(vec![allocation("m-1")]), instance, ..view() }) {
            Step::CreateSecret(_, _, notice) => notice,
            step => panic!("{step:?}"),
        }
    };
    assert_eq!(notice("Scheduling"), None);
    let note = "The guest started without its network data: restart the machine".to_owned();
    assert_eq!(notice("Running"), Some(Notice { is_warning: true, reason: "NetworkDataMissing", note }));
}

#[test]
fn the_addresses_of_a_virtual_machine_are_not_handed_out_to_its_successor() {
    let unlabelled = json!({"metadata": {"labels": null, "uid": "v-2"}});
    let view = View { vm: Some(vm(&unlabelled)), granted: Some(vec![allocation("v-1")]), ..view() };
    assert_eq!(decide(&view), claim("v-2", FIRST + 1));
}

#[test]
fn a_no_cloud_volume_gets_network_config() {
    let source = json!({"networkDataSecretRef": {"name": "w-networkdata"}});
    let volumes = json!([{"name": "cloudinitvolume", "cloudInitNoCloud": source}]);
    let no_cloud = vm(&json!({"spec": {"template": {"spec": {"volumes": volumes}}}}));
    let view = View { vm: Some(no_cloud), granted: Some(vec![allocation("m-1")]), ..view() };
    let Step::CreateSecret(secret, ..) = decide(&view) else { panic!() };
    let document = secret.data.as_ref().unwrap()["networkdata"].0.clone();
    let document: Value = serde_json::from_slice(&document).unwrap();
    assert_eq!(document["version"], 2);
    let stored = Secret { metadata: ObjectMeta { uid: Some("s-1".to_owned()), ..secret.metadata.clone() }, ..*secret };
    assert_eq!(NetworkSecret::read(Some(stored)), hand_out("m-1", "v-1"));
}

#[test]
fn an_exhausted_pool_is_reported_once_with_the_string_of_the_enhancement() {
    let error =
        ClaimError::Exhausted { interface: "eno101".parse().unwrap(), pool: "n/p".to_owned(), family: Family::Ipv4 };
    let mut waits = View { problem: Some(Problem::Refused(error)), ..view() };
    let Step::Report(notice) = decide(&waits) else { panic!() };
    assert_eq!(
        (notice.reason, notice.note.as_str()),
        ("IPPoolExhausted", "No available IPs in pool for interface eno101")
    );
    waits.memory.notice = Some(notice);
    assert_eq!(decide(&waits), Step::Wait);
}

#[test]
fn a_machine_with_a_problem_does_not_wait_for_an_address() {
    let mut view = View { selected: Err("two pools".to_owned()), ..view() };
    assert_eq!(decide(&view), report("NetworkDataMissing", "two pools"));
    view.ledger.waiting = [holder("m-1")].into();
    assert_eq!(decide(&view), Step::Withdraw(holder("m-1")));
}

#[test]
fn pools_with_two_templates_are_a_problem() {
    let template = |text: &str| PoolSettings { template: Some(text.to_owned()), ..PoolSettings::default() };
    let second = Selected {
        pool: PoolId { namespace: Some("n".to_owned()), name: "q".to_owned() },
        interface: "eno102".parse().unwrap(),
        ..selected()
    };
    let mut allocations = vec![allocation("m-1"), allocation("m-1")];
    allocations[1].claimant.interface = second.interface;
    let mut view = View { granted: Some(allocations), selected: Ok(vec![selected(), second]), ..view() };
    view.ledger.pools.insert("n/q".to_owned(), pool());
    view.pools = [("n/p".to_owned(), template("{}")), ("n/q".to_owned(), template("{\"links\": []}"))].into();
    let note = "pools n/q and n/p have different templates, expected one template";
    assert_eq!(decide(&view), report("NetworkDataMissing", note));
}

#[test]
fn annotation_and_status_map_follow_the_secret() {
    let mut view = served();
    let Step::PatchMachine(patch) = decide(&view) else { panic!() };
    let annotations = json!({
        "kubevirt.cluster.x-k8s.io/allocated-ip-eno101": r#"["10.0.0.8/16"]"#,
        "ipam.glowplug.dev/network-eno101": "infra/vlan10",
    });
    let metadata = json!({"namespace": "n", "name": "w", "uid": "m-1", "annotations": annotations});
    assert_eq!(patch["metadata"], metadata);
    view.machine = Some(machine(&json!({"metadata": {"annotations": annotations}})));
    let Step::PatchStatus(patch) = decide(&view) else { panic!() };
    assert_eq!(patch["status"], json!({"allocatedBootstrapAddresses": {"eno101": ["10.0.0.8/16"]}}));
    assert_eq!(decide(&View { has_status_map: false, ..view.clone() }), Step::Wait);
    view.machine = Some(machine(&json!({"metadata": {"annotations": annotations}, "status": patch["status"]})));
    assert_eq!(decide(&view), Step::Wait);
}

#[test]
fn of_two_leases_the_one_in_the_secret_counts() {
    let mut view = served();
    view.ledger.held.insert(0, held("m-1", "10.0.0.9"));
    let claimant = Claimant { machine: holder("m-1"), interface: "eno101".parse().unwrap() };
    assert_eq!(decide(&view), Step::Keep(Box::new(claimant), vec!["10.0.0.8".parse().unwrap()]));
}

#[test]
fn an_address_that_only_the_secret_has_is_adopted_before_anything_else() {
    let mut view = served();
    view.ledger.held = Vec::new();
    let claimant = Claimant { machine: holder("m-1"), interface: "eno101".parse().unwrap() };
    let record = Record {
        claimant,
        node_pool: Some("n/p".to_owned()),
        attachments: Vec::new(),
        network: Some("infra/vlan10".to_owned()),
        addresses: vec!["10.0.0.8/16".parse().unwrap()],
        source: "Secret n/w-networkdata".to_owned(),
    };
    let adopt = Step::Adopt(vec![record]);
    assert_eq!(decide(&view), adopt);
    view.secret = Some(hand_out("m-1", "v-0"));
    assert_eq!(decide(&view), adopt, "also from the Secret of an earlier VirtualMachine");
    view.problem = Some(Problem::Mismatch("it is of another".to_owned()));
    assert_eq!(decide(&view), Step::Prove(holder("m-1")), "no guest may read it");
    view.secret = Some(hand_out("m-1", "v-1"));
    assert_eq!(decide(&view), report("IPAddressConflict", "it is of another"));
}

#[test]
fn the_secret_of_an_earlier_virtual_machine_goes_only_after_a_consistent_read() {
    let view = View { secret: Some(hand_out("m-1", "v-0")), ..served() };
    assert_eq!(decide(&view), Step::Prove(holder("m-1")));
}

#[test]
fn a_secret_of_another_author_is_never_replaced_and_its_addresses_are_reserved() {
    let foreign = NetworkSecret::Foreign("no annotation".to_owned(), vec!["10.0.0.9".parse().unwrap()]);
    let mut view = View { secret: Some(foreign), ..view() };
    let claimant = Claimant { machine: holder("v-1"), interface: "eno101".parse().unwrap() };
    let conflict = Conflict { claimant, source: "Secret n/w-networkdata".to_owned() };
    let conflicts = vec![("10.0.0.9".parse().unwrap(), Some("infra/vlan10".to_owned()), conflict)];
    let reserve = Step::Reserve(conflicts);
    assert_eq!(decide(&view), reserve);
    let mut foreign = held("m-1", "10.0.0.9");
    foreign.claimant.machine.namespace = "evil".to_owned();
    view.ledger.held = vec![foreign, Held { network: "infra/other".to_owned(), ..held("m-1", "10.0.0.9") }];
    assert_eq!(decide(&view), reserve, "a holder of another namespace, and one on another network");
    view.ledger.held = Vec::new();
    view.done.insert(Once::Reserve);
    let note = "Secret \"w-networkdata\" is not of this controller (no annotation), expected none of this name";
    assert_eq!(decide(&view), report("IPAddressConflict", note));
}

#[test]
fn a_refused_machine_is_woken_up_when_no_pool_of_it_is_exhausted() {
    let condition = json!({
        "type": "VMProvisioned", "status": "False", "message": "No available IPs in pool for interface eno101",
    });
    let refused = machine(&json!({"status": {"conditions": [condition]}}));
    let mut view = View { vm: None, machine: Some(refused), ..view() };
    let retry = json!({"metadata": {"uid": "m-1", "annotations": {"ipam.glowplug.dev/retry": "4"}}});
    assert_eq!(decide(&view), Step::Retry(retry));
    view.done.insert(Once::Retry);
    assert_eq!(decide(&view), Step::Wait);
    let mut exhausted = View { is_exhausted: true, done: BTreeSet::new(), ..view };
    assert_eq!(decide(&exhausted), Step::Wait);
    // The webhook refuses a machine that holds an address if no annotation records it.
    exhausted.ledger.held = vec![held("m-1", "10.0.0.8"), held("m-1", "10.0.0.9"), held("m-0", "10.0.0.10")];
    let annotations = json!({
        "kubevirt.cluster.x-k8s.io/allocated-ip-eno101": r#"["10.0.0.8/16"]"#,
        "ipam.glowplug.dev/network-eno101": "infra/vlan10",
    });
    let patch = json!({"metadata": {"uid": "m-1", "namespace": "n", "name": "w", "annotations": annotations}});
    let Step::PatchMachine(record) = decide(&exhausted) else { panic!("{exhausted:?}") };
    assert_eq!(record["metadata"], patch["metadata"]);
    let recorded = machine(&json!({"metadata": {"annotations": annotations}, "status": {"conditions": [condition]}}));
    assert_eq!(decide(&View { machine: Some(recorded), ..exhausted }), Step::Wait);
}

#[test]
fn a_holder_is_looked_for_when_its_machine_is_not_there_or_ends() {
    let prove = Step::Prove(holder("m-1"));
    let gone = View { machine: None, ..served() };
    assert_eq!(decide(&gone), prove);
    let mut ending = served();
    ending.vm = Some(vm(&json!({"metadata": {"deletionTimestamp": "2026-08-01T11:00:00Z"}})));
    assert_eq!(decide(&ending), prove);
    ending.memory.stripped = [(holder("m-1"), Stripped { instance: None })].into();
    assert_eq!(decide(&ending), Step::Wait);
}

// === Leases of version 0.2.0 for a VirtualMachine in another namespace ===

/// A KubevirtMachine of another namespace that holds 10.0.0.9 for VirtualMachine `n/w`.
fn earlier() -> Machine {
    Machine::new("clusters", "w", "m-0").with_vm_in("n")
}

/// The labels of a VirtualMachine of this KubevirtMachine.
fn of_earlier() -> Value {
    let labels = json!({
        "capk.cluster.x-k8s.io/kubevirt-machine-name": "w",
        "capk.cluster.x-k8s.io/kubevirt-machine-namespace": "clusters",
    });
    json!({"metadata": {"labels": labels}})
}

/// Creates a view of a VirtualMachine without a Secret, for which a KubevirtMachine of another namespace holds an address.
fn with_earlier() -> View {
    let mut view = View { vm: Some(vm(&of_earlier())), machine: None, ..view() };
    let mut held = held("m-0", "10.0.0.9");
    held.claimant.machine = earlier();
    view.ledger.held = vec![held];
    view.ledger.known = [earlier()].into();
    view.ledger.earlier = [earlier()].into();
    view
}

#[test]
fn a_virtual_machine_of_a_kubevirt_machine_in_another_namespace_claims_for_itself() {
    let view = View { vm: Some(vm(&of_earlier())), machine: None, ..view() };
    assert_eq!(decide(&view), claim("v-1", FIRST + 1));
    // The KubevirtMachine of this name is of another VirtualMachine.
    let other = View { machine: Some(machine(&json!({}))), ..view };
    assert_eq!(decide(&other), claim("v-1", FIRST + 1));
}

#[test]
fn a_virtual_machine_gets_the_address_that_a_kubevirt_machine_of_another_namespace_holds_for_it() {
    let requests = vec![Request::of("n/p")];
    let created = Timestamp::from_second(FIRST + 1).unwrap();
    let claim = Claim { machine: earlier(), created, requests, sticky: false };
    assert_eq!(decide(&with_earlier()), Step::Claim(Box::new(claim)));
}

#[test]
fn a_virtual_machine_whose_labels_name_another_machine_does_not_get_the_address_of_the_earlier_one() {
    let label = json!({"metadata": {"labels": {"capk.cluster.x-k8s.io/kubevirt-machine-namespace": "other"}}});
    let other = View { vm: Some(vm(&label)), ..with_earlier() };
    assert_eq!(decide(&other), claim("v-1", FIRST + 1));
    let unlabelled = View { vm: Some(vm(&json!({"metadata": {"labels": null}}))), ..with_earlier() };
    assert_eq!(decide(&unlabelled), claim("v-1", FIRST + 1));
}

#[test]
fn the_address_of_a_guest_in_another_namespace_is_not_handed_out_to_a_virtual_machine_of_its_kubevirt_machine() {
    let mut view = view();
    view.ledger.elsewhere = [holder("m-1").with_vm_in("infra")].into();
    assert_eq!(decide(&view), claim("v-1", FIRST + 1));
}

#[test]
fn a_kubevirt_machine_of_another_namespace_is_looked_for_when_its_virtual_machine_is_gone_or_ends() {
    let prove = Step::Prove(earlier());
    assert_eq!(with_earlier().look_for_the_gone(), None);
    assert_eq!(decide(&View { vm: None, ..with_earlier() }), prove);
    let mut ends = of_earlier();
    ends["metadata"]["deletionTimestamp"] = "2026-08-01T11:00:00Z".into();
    assert_eq!(decide(&View { vm: Some(vm(&ends)), ..with_earlier() }), prove);
}

#[test]
fn the_addresses_of_a_kubevirt_machine_of_another_namespace_stay_until_the_virtual_machine_and_its_guest_are_gone() {
    let earlier = || Proof { holder: earlier(), ..guest() };
    assert_eq!(earlier().verdict(), Verdict::Gone);
    let of_name = Some(machine(&json!({})));
    assert_eq!(verdict(of_name.clone(), earlier()), Verdict::Gone);
    let running = Proof { vm: Some(vm(&of_earlier())), ..earlier() };
    assert_eq!(verdict(of_name, running), kept_without_secret(None));
    let orphan = Proof { instance: Some(instance(&json!({}))), ..earlier() };
    assert_eq!(orphan.verdict(), kept_without_secret(Some("i-1")));
}

#[test]
fn a_secret_names_no_machine_of_another_virtual_machine() {
    let of = |namespace: &str, uid: &str| match hand_out(uid, "v-1") {
        NetworkSecret::Ours(mut hand_out) => {
            hand_out.machine.namespace = namespace.to_owned();
            NetworkSecret::Ours(hand_out)
        }
        other => panic!("{other:?}"),
    };
    let view = with_earlier();
    for ours in [of("n", "m-1"), of("clusters", "m-0")] {
        assert_eq!(view.check(ours.clone()), ours);
    }
    let NetworkSecret::Ours(checked) = view.check(of("clusters", "m-0")) else { panic!("{view:?}") };
    assert_eq!(checked.machine.vm_namespace.as_deref(), Some("n"), "an adopted lease records this namespace");
    for uid in ["m-0", "m-1"] {
        let problem = format!("it names other/w ({uid}), which is not the machine of n/w");
        let addresses = vec!["10.0.0.8".parse().unwrap()];
        assert_eq!(view.check(of("other", uid)), NetworkSecret::Foreign(problem, addresses));
    }
    let problem = "it names clusters/w (m-1), which is not the machine of n/w".to_owned();
    let addresses = vec!["10.0.0.8".parse().unwrap()];
    assert_eq!(view.check(of("clusters", "m-1")), NetworkSecret::Foreign(problem, addresses));
}

// === Proof that a machine is gone ===

/// The objects of the holder `m-1`, a KubevirtMachine that holds 10.0.0.8. None of them exists.
fn guest() -> Proof {
    Proof {
        holder: holder("m-1"),
        held: vec!["10.0.0.8".parse().unwrap()],
        secret: NetworkSecret::Absent,
        machine: None,
        vm: None,
        instance: None,
        stripped: None,
    }
}

fn verdict(machine: Option<KubevirtMachine>, guest: Proof) -> Verdict {
    Proof { machine, ..guest }.verdict()
}

/// The verdict while the Secret may exist.
fn kept() -> Verdict {
    Verdict::Kept(None)
}

/// The verdict after the Secret is gone. `instance` is the UID of the instance that exists.
fn kept_without_secret(instance: Option<&str>) -> Verdict {
    Verdict::Kept(Some(stripped(instance)))
}

fn stripped(instance: Option<&str>) -> Stripped {
    Stripped { instance: instance.map(str::to_owned) }
}

/// Creates a later machine of the same name, and its VirtualMachine.
fn successor() -> (Option<KubevirtMachine>, Option<VirtualMachine>) {
    let at = |second: u32| format!("2026-08-01T10:30:{second:02}Z");
    let machine = machine(&json!({"metadata": {"uid": "m-2", "creationTimestamp": at(1)}}));
    let vm = vm(&json!({"metadata": {"uid": "v-2", "creationTimestamp": at(2)}}));
    (Some(machine), Some(vm))
}

#[test]
fn a_machine_is_gone_when_nothing_of_it_is_there() {
    assert_eq!(verdict(None, guest()), Verdict::Gone);
    assert_eq!(verdict(Some(machine(&json!({}))), guest()), kept_without_secret(None));
}

#[test]
fn a_virtual_machine_or_an_instance_keeps_the_addresses_after_the_kubevirt_machine() {
    let ends = vm(&json!({"metadata": {"deletionTimestamp": "2026-08-01T11:00:00Z"}}));
    assert_eq!(verdict(None, Proof { vm: Some(ends), ..guest() }), kept_without_secret(None));
    assert_eq!(
        verdict(None, Proof { instance: Some(instance(&json!({}))), ..guest() }),
        kept_without_secret(Some("i-1"))
    );
}

#[test]
fn the_secret_goes_first() {
    let strip = Verdict::Strip("s-1".to_owned());
    let secret = || hand_out("m-1", "v-1");
    assert_eq!(verdict(None, Proof { secret: secret(), ..guest() }), strip);
    let NetworkSecret::Ours(ours) = secret() else { panic!() };
    let deleted = NetworkSecret::Ours(HandOut { is_deleted: true, ..ours });
    assert_eq!(verdict(None, Proof { secret: deleted, ..guest() }), kept(), "a finalizer of a user keeps it");
    let running = Proof { secret: secret(), vm: Some(vm(&json!({}))), ..guest() };
    assert_eq!(verdict(None, running.clone()), kept(), "the guest may start again");
    let ends = json!({"metadata": {"deletionTimestamp": "2026-08-01T11:00:00Z"}});
    assert_eq!(verdict(None, Proof { vm: Some(vm(&ends)), ..running.clone() }), strip);
    let mut orphans = ends.clone();
    orphans["metadata"]["finalizers"] = json!(["orphan"]);
    assert_eq!(verdict(None, Proof { vm: Some(vm(&orphans)), ..running }), kept(), "the guest may migrate");
    let orphan = Proof { secret: secret(), instance: Some(instance(&json!({}))), ..guest() };
    assert_eq!(verdict(None, orphan.clone()), kept(), "the orphan may migrate");
    let (_, next) = successor();
    assert_eq!(verdict(None, Proof { vm: next.clone(), ..orphan }), strip);
    assert_eq!(verdict(Some(machine(&json!({}))), Proof { secret: secret(), vm: next, ..guest() }), strip);
}

#[test]
fn a_secret_of_another_author_with_the_address_keeps_the_address() {
    let secret = NetworkSecret::Foreign("no annotation".to_owned(), vec!["10.0.0.8".parse().unwrap()]);
    assert_eq!(verdict(None, Proof { secret, ..guest() }), kept());
}

#[test]
fn a_successor_does_not_keep_the_addresses() {
    let (machine, vm) = successor();
    assert_eq!(verdict(machine.clone(), Proof { vm: vm.clone(), ..guest() }), Verdict::Gone);
    let secret = hand_out("m-2", "v-2");
    assert_eq!(verdict(machine, Proof { vm, secret, ..guest() }), Verdict::Gone);
}

#[test]
fn a_virtual_machine_with_the_secret_of_another_machine_does_not_keep_the_addresses() {
    let (_, vm) = successor();
    assert_eq!(verdict(None, Proof { vm: vm.clone(), ..guest() }), kept_without_secret(None));
    let secret = hand_out("v-2", "v-2");
    assert_eq!(verdict(None, Proof { vm: vm.clone(), secret: secret.clone(), ..guest() }), Verdict::Gone);
    let started = json!({"metadata": {"creationTimestamp": "2026-08-01T10:30:03Z", "ownerReferences": [
        {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": "w", "uid": "v-2"},
    ]}});
    let running = Proof { vm, secret, instance: Some(instance(&started)), ..guest() };
    assert_eq!(
        verdict(None, running.clone()),
        kept_without_secret(Some("i-1")),
        "the guest may have read the old Secret"
    );
    assert_eq!(verdict(None, Proof { stripped: Some(stripped(None)), ..running }), Verdict::Gone);
}

#[test]
fn a_guest_that_may_have_read_the_old_secret_keeps_the_addresses() {
    let (machine, vm) = successor();
    let started = json!({"metadata": {"creationTimestamp": "2026-08-01T10:30:03Z", "ownerReferences": [
        {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": "w", "uid": "v-2"},
    ]}});
    let guest = Proof { vm, instance: Some(instance(&started)), ..guest() };
    let kept = kept_without_secret(Some("i-1"));
    assert_eq!(verdict(machine.clone(), guest.clone()), kept);
    assert_eq!(verdict(machine.clone(), Proof { stripped: Some(stripped(Some("i-1"))), ..guest.clone() }), kept);
    assert_eq!(verdict(machine, Proof { stripped: Some(stripped(None)), ..guest }), Verdict::Gone);
}

#[test]
fn a_guest_that_starts_after_the_old_secret_is_gone_does_not_keep_the_addresses() {
    let (machine, vm) = successor();
    let started = json!({"metadata": {"uid": "i-3", "creationTimestamp": "2026-08-01T10:30:04Z", "ownerReferences": [
        {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": "w", "uid": "v-2"},
    ]}});
    let guest = Proof { vm, instance: Some(instance(&started)), stripped: Some(stripped(Some("i-2"))), ..guest() };
    assert_eq!(verdict(machine, guest), Verdict::Gone);
}

#[test]
fn an_instance_that_was_left_alone_keeps_the_addresses_although_another_takes_it_over() {
    let (machine, vm) = successor();
    let adopted = json!({"metadata": {"ownerReferences": [
        {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": "w", "uid": "v-2"},
    ]}});
    let guest = Proof { vm, instance: Some(instance(&adopted)), stripped: Some(stripped(None)), ..guest() };
    assert_eq!(verdict(machine, guest), kept_without_secret(Some("i-1")));
}

#[test]
fn a_virtual_machine_that_is_older_than_the_kubevirt_machine_is_of_the_one_before() {
    let (machine, _) = successor();
    assert_eq!(verdict(machine, Proof { vm: Some(vm(&json!({}))), ..guest() }), kept_without_secret(None));
}

fn requesting(addresses: &str) -> View {
    let annotations = json!({"network.kubevirt.io/addresses": addresses});
    View { vm: Some(vm(&json!({"spec": {"template": {"metadata": {"annotations": annotations}}}}))), ..view() }
}

#[test]
fn the_addresses_that_a_virtual_machine_requests_for_an_interface_are_claimed() {
    for text in [r#"{"iface1": ["10.0.0.9/16"], "other": ["192.168.1.9"]}"#, r#"{"iface1": ["10.0.0.9"]}"#] {
        let Step::Claim(claim) = decide(&requesting(text)) else { panic!() };
        let addresses = vec!["10.0.0.9".parse().unwrap()];
        assert_eq!(claim.requests, [Request { addresses, ..Request::of("n/p") }]);
    }
    let Step::Claim(claim) = decide(&requesting(r#"{"other": ["192.168.1.9"]}"#)) else { panic!() };
    assert_eq!(claim.requests, [Request::of("n/p")]);
}

#[test]
fn a_machine_keeps_the_address_that_it_holds_when_another_one_is_requested() {
    let mut view = requesting(r#"{"iface1": ["10.0.0.9"]}"#);
    view.ledger.held = vec![held("m-1", "10.0.0.8")];
    let Step::Claim(claim) = decide(&view) else { panic!() };
    assert_eq!(claim.requests, [Request::of("n/p")]);
}

#[test]
fn an_invalid_request_of_a_virtual_machine_is_reported() {
    let problem = |text: &str| match decide(&requesting(text)) {
        Step::Report(Notice { is_warning: true, reason: "NetworkDataMissing", note }) => note,
        other => panic!("{other:?}"),
    };
    let at = |problem: &str| format!("annotation network.kubevirt.io/addresses: {problem}");
    let expected = r#"expected interfaces with their addresses, as {"iface1": ["192.168.1.20/24"]}"#;
    assert_eq!(problem("10.0.0.9"), at(&format!("invalid value \"10.0.0.9\", {expected}")));
    assert_eq!(
        problem(r#"{"iface1": ["10.0.0.9/33"]}"#),
        at(r#"invalid prefix length "10.0.0.9/33", expected as in 192.168.1.20/24"#)
    );
    assert_eq!(
        problem(r#"{"iface1": ["10.0.0.9/24"]}"#),
        at(r#"other prefix length than that of pool "n/p" "10.0.0.9/24", expected /16"#)
    );
    let second = r#"second address "10.0.0.8", expected at most one address of each family for an interface"#;
    assert_eq!(problem(r#"{"iface1": ["10.0.0.9", "10.0.0.8"]}"#), at(second));
}

#[test]
fn a_machine_whose_address_is_not_available_keeps_its_place_and_is_asked_again() {
    let named = "10.0.0.9".parse().unwrap();
    let error = ClaimError::Reserved { named, pool: "n/p".to_owned(), why: None };
    let mut view = View { problem: Some(Problem::Refused(error)), ..view() };
    view.ledger.waiting = [holder("m-1")].into();
    assert_eq!(decide(&view), report("IPAddressUnavailable", "10.0.0.9: reserved in pool \"n/p\""));
    assert!(view.waits_for_address());
}

/// Creates a pool `n/p` whose addresses come from `from`, and a view of a machine of this pool without a Secret.
fn from_source(from: &Value) -> View {
    let spec = json!({
        "network": "infra/vlan10", "addressesFrom": from, "gateway": ["10.0.0.1"], "machineSelector": {},
        "machineNetwork": [{"cidr": "10.0.0.0/16"}],
    });
    let spec: crate::kinds::pool::PoolSpec = serde_json::from_value(spec).unwrap();
    let pool = spec.check(Some("n"), "p").0.unwrap();
    let wishes = PoolSettings { source: Source::of(&spec, pool.gateways()), ..PoolSettings::default() };
    let mut view = View { pools: [("n/p".to_owned(), wishes)].into(), ..view() };
    view.ledger.pools = [("n/p".to_owned(), pool)].into();
    view.kinds.claims = Some(Version::V1Beta2);
    view.kinds.has_ipam_claims = true;
    view
}

/// Creates a view whose IPAMClaim `n/w.iface1` has `changes` merged into it.
fn with_ipam_claim(changes: &Value) -> View {
    let mut view = from_source(&json!({"ipamClaim": {}}));
    let claim = json!({"metadata": {"namespace": "n", "name": "w.iface1"}});
    view.sources.ipam_claims = [("w.iface1".to_owned(), IpamClaim::read(merged(claim, changes)))].into();
    view
}

/// Creates a view with IPAddressClaim `n/w-eno101` of KubevirtMachine `uid`, and merges `changes` into the claim.
fn with_address_claim(uid: &str, changes: &Value) -> View {
    let pool_ref = json!({"apiGroup": "ipam.cluster.x-k8s.io", "kind": "InClusterIPPool", "name": "x"});
    let mut view = from_source(&json!({"poolRef": pool_ref}));
    let note = json!({
        "kind": "KubevirtMachine", "machine": {"namespace": "n", "name": "w", "uid": uid}, "interface": "eno101",
    });
    let claim = json!({
        "metadata": {
            "namespace": "n", "name": "w-eno101", "uid": "c-1", "resourceVersion": "7",
            "annotations": {"ipam.glowplug.dev/claimant": note.to_string()},
            "finalizers": ["ipam.glowplug.dev/in-use"],
        },
        "spec": {"poolRef": pool_ref},
    });
    view.sources.claims = vec![MachineClaim::read(merged(claim, changes)).unwrap()];
    view
}

/// Creates a view with an IPAddressClaim and its IPAddress, and merges `changes` into the IPAddress.
fn with_address(changes: &Value) -> View {
    let mut view = with_address_claim("m-1", &json!({"status": {"addressRef": {"name": "a"}}}));
    let address = json!({
        "metadata": {"namespace": "n", "name": "a", "resourceVersion": "9", "finalizers": ["ipam.glowplug.dev/in-use"]},
        "spec": {
            "address": "10.0.0.8", "prefix": 16, "gateway": "10.0.0.2", "claimRef": {"name": "w-eno101"},
            "poolRef": {"apiGroup": "ipam.cluster.x-k8s.io", "kind": "InClusterIPPool", "name": "x"},
        },
    });
    let address = IpAddress::read(merged(address, changes)).map_err(|error| error.to_string());
    view.addresses = [("a".to_owned(), Some(address))].into();
    view
}

fn hold(source: &str) -> Step {
    let claimant = Claimant { machine: holder("m-1"), interface: "eno101".parse().unwrap() };
    let addresses = vec!["10.0.0.8/16".parse().unwrap()];
    let (pool, source) = ("n/p".to_owned(), source.to_owned());
    Step::Hold(Box::new(Hold { pool, claimant, addresses, source }))
}

fn pending(note: &str) -> Step {
    Step::Report(Notice { is_warning: false, reason: "AddressPending", note: note.to_owned() })
}

#[test]
fn the_address_of_an_ipam_claim_is_recorded_before_it_is_handed_out() {
    let given = json!({"status": {"ips": ["10.0.0.8/24"]}});
    assert_eq!(decide(&with_ipam_claim(&given)), hold("IPAMClaim n/w.iface1"));
    let mut view = with_ipam_claim(&given);
    view.ledger.held = vec![held("m-1", "10.0.0.8")];
    view.ledger.known = [holder("m-1")].into();
    assert_eq!(decide(&view), claim("m-1", FIRST));
    view.granted = Some(vec![allocation("m-1")]);
    let Step::CreateSecret(secret, ..) = decide(&view) else { panic!("{:?}", decide(&view)) };
    let document: Value = serde_json::from_slice(&secret.data.unwrap()["networkdata"].0).unwrap();
    assert_eq!(document["networks"][0]["ip_address"], "10.0.0.8");
    assert_eq!(document["networks"][0]["netmask"], "255.255.0.0");
    assert_eq!(document["networks"][0]["routes"][0]["gateway"], "10.0.0.1");
}

#[test]
fn a_machine_waits_for_its_ipam_claim_and_says_for_what() {
    let waits = |view: View, what: &str| {
        assert_eq!(decide(&view), pending(&format!("Waiting for IPAMClaim n/w.iface1: {what}")));
    };
    waits(from_source(&json!({"ipamClaim": {}})), "it does not exist");
    let mut unserved = from_source(&json!({"ipamClaim": {}}));
    unserved.kinds.has_ipam_claims = false;
    waits(unserved, "the API server does not serve IPAMClaims");
    waits(with_ipam_claim(&json!({})), "it has no address yet");
    let given = json!({"status": {"ips": ["10.0.0.8/24"]}});
    let deleted = json!({"metadata": {"deletionTimestamp": "2026-08-01T10:00:09Z"}, "status": given["status"]});
    waits(with_ipam_claim(&deleted), "it is being deleted");
    let owner = |uid: &str| {
        let owner = json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": "w", "uid": uid});
        with_ipam_claim(&json!({"metadata": {"ownerReferences": [owner]}, "status": given["status"]}))
    };
    waits(owner("v-0"), "it is of an earlier VirtualMachine");
    assert_eq!(decide(&owner("v-1")), hold("IPAMClaim n/w.iface1"));
    let failed = |reason: &str| {
        let condition = json!({"type": "IPsAllocated", "status": "False", "reason": reason, "message": "no luck"});
        with_ipam_claim(&json!({"status": {"conditions": [condition]}}))
    };
    waits(failed("InternalError"), "InternalError: no luck");
    let exhausted = "No available IPs in pool for interface eno101: IPAMClaim n/w.iface1: SubnetExhausted: no luck";
    assert_eq!(decide(&failed("SubnetExhausted")), report("IPPoolExhausted", exhausted));
}

#[test]
fn an_address_of_a_source_that_no_guest_can_use_is_refused() {
    let refused = |text: &str, problem: &str| {
        let view = with_ipam_claim(&json!({"status": {"ips": [text]}}));
        assert_eq!(decide(&view), report("NetworkDataMissing", &format!("IPAMClaim n/w.iface1: {problem}")));
    };
    refused("x", "address: invalid address \"x\", expected an IPv4 or IPv6 address");
    refused("10.9.0.8/24", "10.9.0.8 is outside the machine network 10.0.0.0/16");
    refused("fd00::8", "fd00::8 has no prefix length, expected one, or machineNetwork in the pool");
}

#[test]
fn an_address_of_another_machine_is_reported_and_asked_for_again() {
    let mut view = with_ipam_claim(&json!({"status": {"ips": ["10.0.0.8/24"]}}));
    let by =
        Claimant { machine: key().holder(HolderKind::KubevirtMachine, "m-9"), interface: "eno101".parse().unwrap() };
    view.problem = Some(Problem::Refused(ClaimError::Taken { named: "10.0.0.8".parse().unwrap(), by: Box::new(by) }));
    let note = "IPAMClaim n/w.iface1: 10.0.0.8: taken by eno101 of n/w (m-9)";
    assert_eq!(decide(&view), report("IPAddressConflict", note));
    let notice = Notice { is_warning: true, reason: "IPAddressConflict", note: note.to_owned() };
    view.memory.notice = Some(notice);
    assert_eq!((decide(&view), view.is_disputed()), (Step::Wait, true));
}

#[test]
fn a_source_that_changes_its_address_is_followed_only_before_a_guest_has_started() {
    let mut view = with_ipam_claim(&json!({"status": {"ips": ["10.0.0.8/24"]}}));
    view.ledger.held = vec![held("m-1", "10.0.0.7")];
    view.ledger.known = [holder("m-1")].into();
    assert_eq!(decide(&view), Step::ReadInstance);
    view.done.insert(Once::ReadInstance);
    let keep = || {
        let claimant = Claimant { machine: holder("m-1"), interface: "eno101".parse().unwrap() };
        Step::Keep(Box::new(claimant), vec!["10.0.0.8".parse().unwrap()])
    };
    assert_eq!(decide(&view), keep());
    view.instance = Some(instance(&json!({"status": {"phase": "Scheduling"}})));
    assert_eq!(decide(&view), keep());
    view.instance = Some(instance(&json!({"status": {"phase": "Running"}})));
    let note = "IPAMClaim n/w.iface1: 10.0.0.8, expected 10.0.0.7, which the guest may use";
    assert_eq!(decide(&view), report("IPAddressConflict", note));
}

#[test]
fn a_source_that_contradicts_the_secret_is_reported_and_not_followed() {
    let mut view = with_ipam_claim(&json!({"status": {"ips": ["10.0.0.9/24"]}}));
    let View { secret, ledger, .. } = served();
    view.secret = secret;
    view.ledger = Recorded { pools: view.ledger.pools, ..ledger };
    view.done.extend([Once::Annotate, Once::PatchStatus]);
    let note = "IPAMClaim n/w.iface1: 10.0.0.9, expected 10.0.0.8, which the machine holds; the guest keeps the \
                address of its Secret";
    assert_eq!(decide(&view), report("IPAddressConflict", note));
}

#[test]
fn a_source_that_no_longer_has_the_address_of_the_secret_is_reported() {
    let reported = |mut view: View, note: &str| {
        let View { secret, ledger, .. } = served();
        view.secret = secret;
        view.ledger = Recorded { pools: view.ledger.pools, ..ledger };
        view.done.extend([Once::Annotate, Once::PatchStatus]);
        let note = format!("{note}; the guest keeps the address of its Secret");
        assert_eq!(decide(&view), report("IPAddressConflict", &note));
    };
    reported(from_source(&json!({"ipamClaim": {}})), "IPAMClaim n/w.iface1: it does not exist");
    let pool_ref = json!({"apiGroup": "ipam.cluster.x-k8s.io", "kind": "InClusterIPPool", "name": "x"});
    reported(from_source(&json!({"poolRef": pool_ref})), "IPAddressClaim n/w-eno101: it does not exist");
    let deleted = json!({"metadata": {"deletionTimestamp": "2026-08-01T10:00:09Z"}});
    reported(with_address_claim("m-1", &deleted), "IPAddressClaim n/w-eno101: it is being deleted");
    let other = json!({"spec": {"address": "10.0.0.9"}});
    reported(with_address(&other), "IPAddress n/a: 10.0.0.9, expected 10.0.0.8, which the machine holds");
}

#[test]
fn a_machine_claims_from_another_provider_and_waits_for_the_address() {
    let from = json!({"poolRef": {"apiGroup": "ipam.cluster.x-k8s.io", "kind": "InClusterIPPool", "name": "x"}});
    let note = r#"{"kind":"KubevirtMachine","machine":{"namespace":"n","name":"w","uid":"m-1"},"interface":"eno101"}"#;
    let expected = json!({
        "apiVersion": "ipam.cluster.x-k8s.io/v1beta2", "kind": "IPAddressClaim",
        "metadata": {
            "namespace": "n", "name": "w-eno101", "finalizers": ["ipam.glowplug.dev/in-use"],
            "labels": {"app.kubernetes.io/managed-by": "glowplug", "ipam.glowplug.dev/machine-claim": "true"},
            "annotations": {"ipam.glowplug.dev/claimant": note},
        },
        "spec": from,
    });
    assert_eq!(decide(&from_source(&from)), Step::CreateClaim(expected));
    let waits = |view: View, what: &str| {
        assert_eq!(decide(&view), pending(&format!("Waiting for IPAddressClaim n/w-eno101: {what}")));
    };
    let mut unserved = from_source(&from);
    unserved.kinds.claims = None;
    waits(unserved, "the API server does not serve IPAddressClaims");
    waits(with_address_claim("m-1", &json!({})), "it has no address yet");
    waits(
        with_address_claim("m-1", &json!({"metadata": {"deletionTimestamp": "2026-08-01T10:00:09Z"}})),
        "it is being deleted",
    );
    let condition = json!({"type": "Ready", "status": "False", "reason": "PoolExhausted", "message": "none left"});
    let exhausted = with_address_claim("m-1", &json!({"status": {"conditions": [condition]}}));
    let note = "No available IPs in pool for interface eno101: IPAddressClaim n/w-eno101: PoolExhausted: none left";
    assert_eq!(decide(&exhausted), report("IPPoolExhausted", note));
    let other = json!({"spec": {"poolRef": {"name": "y"}}});
    let note = "IPAddressClaim n/w-eno101: of InClusterIPPool y, expected InClusterIPPool x";
    assert_eq!(decide(&with_address_claim("m-1", &other)), report("IPAddressConflict", note));
    let given = with_address_claim("m-1", &json!({"status": {"addressRef": {"name": "a"}}}));
    assert_eq!(decide(&given), Step::ReadAddress("a".to_owned()));
}

#[test]
fn the_ipaddress_of_another_provider_is_protected_then_recorded_then_handed_out() {
    let patch = json!({"metadata": {"resourceVersion": "9", "finalizers": ["x/protect", "ipam.glowplug.dev/in-use"]}});
    let unprotected = with_address(&json!({"metadata": {"finalizers": ["x/protect"]}}));
    assert_eq!(decide(&unprotected), Step::PatchAddress("a".to_owned(), patch));
    assert_eq!(decide(&with_address(&json!({}))), hold("IPAddress n/a"));
    let mut view = with_address(&json!({}));
    view.ledger.held = vec![held("m-1", "10.0.0.8")];
    view.granted = Some(vec![allocation("m-1")]);
    let Step::CreateSecret(secret, ..) = decide(&view) else { panic!("{:?}", decide(&view)) };
    let document: Value = serde_json::from_slice(&secret.data.unwrap()["networkdata"].0).unwrap();
    assert_eq!(document["networks"][0]["routes"][0]["gateway"], "10.0.0.2");
    let refused = |changes: Value, problem: &str| {
        let note = format!("IPAddress n/a: {problem}");
        assert_eq!(decide(&with_address(&changes)), report("NetworkDataMissing", &note));
    };
    let other = with_address(&json!({"spec": {"claimRef": {"name": "other"}}}));
    assert_eq!(decide(&other), report("IPAddressConflict", "IPAddress n/a: of claim other, expected w-eno101"));
    refused(json!({"spec": {"prefix": 24}}), "10.0.0.8 has prefix length 24, expected the one of 10.0.0.0/16");
    refused(json!({"spec": {"gateway": "x"}}), "gateway: invalid address \"x\", expected an IPv4 or IPv6 address");
    refused(json!({"spec": {"gateway": "10.0.0.8"}}), "10.0.0.8 is also the gateway, expected another address");
    refused(json!({"spec": {"prefix": "x"}}), "invalid type: string \"x\", expected i64");
}

#[test]
fn the_claim_of_an_earlier_machine_ends_before_the_next_machine_claims() {
    let earlier = || with_address_claim("m-0", &json!({}));
    assert_eq!(decide(&earlier()), Step::Prove(holder("m-0")));
    let waits = View { checked: checked(&[holder("m-0")]), ..earlier() };
    let note = "Waiting for IPAddressClaim n/w-eno101: it is of an earlier machine, n/w (m-0)";
    assert_eq!(decide(&waits), pending(note));
    // The lease is released, and then the claim ends step by step.
    let mut gone = View { checked: [(holder("m-0"), Check::Gone)].into(), ..waits };
    assert_eq!(decide(&gone), Step::ReadAddress("w-eno101".to_owned()));
    let View { addresses, .. } = with_address(&json!({}));
    gone.addresses = [("w-eno101".to_owned(), addresses["a"].clone())].into();
    let patch = |version: &str| json!({"metadata": {"resourceVersion": version, "finalizers": []}});
    assert_eq!(decide(&gone), Step::PatchAddress("w-eno101".to_owned(), patch("9")));
    gone.addresses = [("w-eno101".to_owned(), None)].into();
    assert_eq!(decide(&gone), Step::DeleteClaim("w-eno101".to_owned(), "c-1".to_owned()));
    let deleted = with_address_claim("m-0", &json!({"metadata": {"deletionTimestamp": "2026-08-01T10:00:09Z"}}));
    gone.sources.claims = deleted.sources.claims;
    assert_eq!(decide(&gone), Step::PatchClaim("w-eno101".to_owned(), patch("7")));
}

#[test]
fn a_claim_of_another_author_is_not_read_as_a_claim_of_a_machine() {
    let read = |annotation: Option<&str>| {
        let annotations = annotation.map(|text| json!({"ipam.glowplug.dev/claimant": text}));
        let claim = json!({"metadata": {"namespace": "n", "name": "w-eno101", "annotations": annotations}});
        MachineClaim::read(serde_json::from_value(claim).unwrap()).unwrap_err()
    };
    assert_eq!(read(None), "no annotation ipam.glowplug.dev/claimant");
    let note = r#"{"kind":"KubevirtMachine","machine":{"namespace":"n","name":"v","uid":"m-1"},"interface":"eno101"}"#;
    assert_eq!(read(Some(note)), "annotation ipam.glowplug.dev/claimant: it names eno101 of n/v");
}
