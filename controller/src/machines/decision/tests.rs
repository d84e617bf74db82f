mod any_content;
mod digest;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use glowplug::host::allocator::ClaimError;
use glowplug::host::claim::{Allocation, Claim, Claimant, Machine, Record, Request, Reservation};
use glowplug::host::may_record;
use glowplug::host::pool::Pool;
use glowplug::host::records::{ANNOTATION_PREFIX, Objects};
use glowplug::network::Family;
use ipnetwork::IpNetwork;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::decide;
use crate::cluster::key::Key;
use crate::cluster::key::PoolId;
use crate::kinds::cluster_api::{IpAddress, Version};
use crate::kinds::ipam_claim::IpamClaim;
use crate::kinds::kubevirt_machine::{Given, Instance, KubevirtMachine, NetworkSecret, OwnSecret, read_records};
use crate::kinds::network_data::NETWORK_DATA_LABEL;
use crate::kinds::pool::HolderKind;
use crate::kinds::virtual_machine::{VirtualMachine, addresses_in};
use crate::ledger::left_guests::Secrets;
use crate::machines::kind::Kinds;
use crate::machines::known_machines::KnownMachines;
use crate::machines::proof::Proof;
use crate::machines::recorded::{Held, Recorded};
use crate::machines::source::{MachineClaim, Source};
use crate::machines::step::{Hold, Notice, Once, Release, Removal, Step, Updated};
use crate::machines::view::{Check, Granted, Memory, PoolSettings, Response, View};
use crate::passes::{Ended, Problem};
use crate::pools::facts::PoolObject;
use crate::pools::machine_states::Refused;
use crate::pools::selection::{MachinePool, Selected, Selection};

const KINDS: Kinds = Kinds { has_kubevirt_machines: true, claims: Some(Version::V1Beta2), has_ipam_claims: true };

/// Name of the Secret to which the VirtualMachine refers.
const NAME: &str = "w-networkdata-cccccccccccccccc";
/// Name of a Secret to which the VirtualMachine referred earlier.
const EARLIER: &str = "w-networkdata-bbbbbbbbbbbbbbbb";
/// A name that no Secret has had yet.
const NEW: &str = "w-networkdata-dddddddddddddddd";
/// Name of the Secret that version 0.2.0 gave to the machine.
const OF_0_2_0: &str = "w-networkdata";

fn key() -> Key {
    Key { namespace: "n".to_owned(), name: "w".to_owned() }
}

fn names<const N: usize>(names: [&str; N]) -> BTreeSet<String> {
    names.map(str::to_owned).into()
}

fn merged(mut object: Value, changes: &Value) -> crate::cluster::object::Object {
    json_patch::merge(&mut object, changes);
    serde_json::from_value(object).unwrap()
}

/// Creates VirtualMachine `n/w` of KubevirtMachine `n/w` with the changes of the webhook, and merges `changes` into it.
fn vm(changes: &Value) -> VirtualMachine {
    let interface = json!({"name": "iface1", "acpiIndex": 101, "macAddress": "02:00:00:00:00:01"});
    let source = json!({"networkDataSecretRef": {"name": NAME}});
    let object = json!({
        "metadata": {
            "namespace": "n", "name": "w", "uid": "v-1", "resourceVersion": "5",
            "creationTimestamp": "2026-08-01T10:00:02Z", "labels": {
                "capk.cluster.x-k8s.io/kubevirt-machine-name": "w",
                "capk.cluster.x-k8s.io/kubevirt-machine-namespace": "n",
            },
        },
        "spec": {"template": {
            "metadata": marks("issued"),
            "spec": {
                "domain": {"devices": {"interfaces": [interface]}},
                "networks": [{"name": "iface1", "multus": {"networkName": "infra/vlan10"}}],
                "volumes": [{"name": "cloudinitvolume", "cloudInitConfigDrive": source}],
            },
        }},
    });
    VirtualMachine::read(merged(object, changes))
}

/// Returns the metadata of a template with the marks of VirtualMachine `n/w`.
fn marks(label: &str) -> Value {
    json!({
        "labels": {"ipam.glowplug.dev/network-data": label},
        "annotations": {"ipam.glowplug.dev/virtual-machine": "n/w"},
    })
}

/// Returns the changes that remove the marks of [`marks`] from a VirtualMachine.
fn without_marks() -> Value {
    let template = json!({"metadata": {"labels": null, "annotations": null}});
    json!({"spec": {"template": template}})
}

/// Returns the changes after which a VirtualMachine refers to a Secret. `None`: the VirtualMachine has no network data.
fn referring(secret: Option<&str>) -> Value {
    let source = secret.map_or(json!({}), |name| json!({"networkDataSecretRef": {"name": name}}));
    let volumes = json!([{"name": "cloudinitvolume", "cloudInitConfigDrive": source}]);
    json!({"spec": {"template": {"spec": {"volumes": volumes}}}})
}

fn machine(changes: &Value) -> KubevirtMachine {
    let object = json!({"metadata": {
        "namespace": "n", "name": "w", "uid": "m-1", "resourceVersion": "4", "creationTimestamp": "2026-08-01T10:00:01Z",
    }});
    KubevirtMachine::read(merged(object, changes))
}

fn instance(changes: &Value) -> Instance {
    let owner = json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": "w", "uid": "v-1"});
    let volumes = json!([{"name": "c", "cloudInitConfigDrive": {"networkDataSecretRef": {"name": NAME}}}]);
    let mut spec = on(&[("iface1", 101, "infra/vlan10")])["spec"]["template"]["spec"].take();
    spec["volumes"] = volumes;
    let object = json!({
        "metadata": {
            "namespace": "n", "name": "w", "uid": "i-1", "creationTimestamp": "2026-08-01T10:00:03Z",
            "ownerReferences": [owner],
        },
        "spec": spec,
    });
    Instance::read(merged(object, changes))
}

/// Creates an instance that refers to a Secret, and merges `changes` into it. `None`: the instance has no network data.
fn reading(secret: Option<&str>, changes: &Value) -> Instance {
    let mut volumes = json!([{"name": "c", "cloudInitConfigDrive": {}}]);
    if let Some(name) = secret {
        volumes[0]["cloudInitConfigDrive"]["networkDataSecretRef"] = json!({"name": name});
    }
    let mut changes = changes.clone();
    changes["spec"]["volumes"] = volumes;
    instance(&changes)
}

/// Returns the changes that turn the instance of [`instance`] into an instance with a running guest.
fn running() -> Value {
    json!({"status": {"phase": "Running"}})
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
        overflow: Vec::new(),
        ending: Vec::new(),
        network: "infra/vlan10".to_owned(),
        interface: "eno101".parse().unwrap(),
        attachment: "iface1".to_owned(),
    }
}

fn held(uid: &str, address: &str) -> Held {
    let claimant = Claimant { machine: holder(uid), interface: "eno101".parse().unwrap() };
    let (network, pool, secrets) = ("infra/vlan10".to_owned(), "n/p".to_owned(), names([NAME]));
    Held { claimant, network, pool, address: address.parse().unwrap(), prefix: 16, secrets, has_left: false }
}

/// Returns an address that a holder keeps, although its pools exclude the address.
fn excluded(uid: &str, address: &str) -> BTreeMap<Machine, BTreeSet<(String, IpAddr)>> {
    [(holder(uid), [("infra/vlan10".to_owned(), address.parse().unwrap())].into())].into()
}

fn allocation(uid: &str) -> Allocation {
    let claimant = Claimant { machine: holder(uid), interface: "eno101".parse().unwrap() };
    Allocation { claimant, addresses: vec!["10.0.0.8/16".parse().unwrap()] }
}

/// Returns the result of a claim of [`allocation`] for the Secret [`NAME`].
fn granted(uid: &str) -> Option<Granted> {
    of_claim(vec![allocation(uid)])
}

/// Returns the result of a claim for the Secret [`NAME`].
fn of_claim(allocations: Vec<Allocation>) -> Option<Granted> {
    Some(Granted { allocations, secret: NAME.to_owned() })
}

/// Returns the results of checks: these holders are not gone.
fn checked(holders: &[Machine]) -> BTreeMap<Machine, Check> {
    holders.iter().map(|holder| (holder.clone(), Check::Kept)).collect()
}

/// Creates a view with a VirtualMachine and its KubevirtMachine, without a Secret.
fn view() -> View {
    View {
        has_status_map: true,
        vm: Some(vm(&json!({}))),
        machine: Some(machine(&json!({}))),
        lacking: Some(BTreeSet::new()),
        selected: Ok(vec![selected()]),
        ledger: Recorded { pools: [("n/p".to_owned(), pool())].into(), ..Recorded::default() },
        secrets: [(NAME.to_owned(), NetworkSecret::Absent)].into(),
        new_name: NEW.to_owned(),
        done: [Once::ReadMachine].into(),
        ..View::new(key(), KINDS)
    }
}

/// Creates the Secret of a VirtualMachine. `vm` and `machine` are UIDs.
fn own(machine: &str, vm: &str) -> OwnSecret {
    let given = Given {
        interface: "eno101".parse().unwrap(),
        network: "infra/vlan10".to_owned(),
        pool: "n/p".to_owned(),
        addresses: vec!["10.0.0.8/16".parse().unwrap()],
    };
    OwnSecret {
        metadata: ObjectMeta {
            namespace: Some("n".to_owned()),
            name: Some(NAME.to_owned()),
            uid: Some("s-1".to_owned()),
            resource_version: Some("7".to_owned()),
            ..ObjectMeta::default()
        },
        is_immutable: false,
        updated: None,
        document: document(&view()).into_bytes(),
        vm: vm.to_owned(),
        machine: holder(machine),
        interfaces: vec![given],
    }
}

/// Returns the Secret of machine `m-1`, under this name instead of [`NAME`].
fn named(name: &str) -> OwnSecret {
    let own = own("m-1", "v-1");
    OwnSecret { metadata: ObjectMeta { name: Some(name.to_owned()), ..own.metadata }, ..own }
}

/// Returns the Secret of machine `m-1` under this name, to whose document a user has added the address 10.0.0.9.
fn with_added(name: &str) -> OwnSecret {
    let own = named(name);
    let mut document: Value = serde_json::from_slice(&own.document).unwrap();
    let mut added = document["networks"][0].clone();
    (added["id"], added["ip_address"]) = ("added".into(), "10.0.0.9".into());
    document["networks"].as_array_mut().unwrap().push(added);
    OwnSecret { document: document.to_string().into_bytes(), ..own }
}

fn deleting(metadata: ObjectMeta) -> ObjectMeta {
    let time = k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(Timestamp::UNIX_EPOCH);
    ObjectMeta { deletion_timestamp: Some(time), ..metadata }
}

/// Returns the network data of the machine of a view for the address 10.0.0.8.
fn document(view: &View) -> String {
    let (vm, selected) = (view.vm.as_ref().unwrap(), view.selected.as_ref().unwrap());
    view.document(vm, selected, &[allocation("m-1")], &BTreeMap::new()).unwrap().text().to_owned()
}

/// Returns the Secrets of a machine by name, in the form in which a pass keeps the Secrets that it has read.
fn secrets<const N: usize>(all: [OwnSecret; N]) -> BTreeMap<String, NetworkSecret> {
    all.map(|own| (own.name().to_owned(), NetworkSecret::Ours(Box::new(own)))).into()
}

/// Returns `secret` in the form in which a pass reads the stored Secret. Asserts that VirtualMachine `v-1` owns the
/// Secret.
fn stored(secret: Secret) -> NetworkSecret {
    let metadata =
        ObjectMeta { uid: Some("s-1".to_owned()), resource_version: Some("7".to_owned()), ..secret.metadata.clone() };
    let NetworkSecret::Ours(read) = NetworkSecret::read(Some(Secret { metadata, ..secret })) else { panic!() };
    assert_eq!(read.metadata.owner_references.as_ref().map(|owners| owners[0].uid.as_str()), Some("v-1"));
    let ObjectMeta { namespace, name, uid, resource_version, .. } = read.metadata.clone();
    let metadata = ObjectMeta { namespace, name, uid, resource_version, ..ObjectMeta::default() };
    NetworkSecret::Ours(Box::new(OwnSecret { metadata, ..*read }))
}

/// Creates a view of a machine with its Secret and its lease.
fn served() -> View {
    let mut view = View { secrets: secrets([own("m-1", "v-1")]), ..view() };
    view.ledger.held = vec![held("m-1", "10.0.0.8")];
    view.ledger.known = [holder("m-1")].into();
    view
}

/// Creates a view of a machine with its Secret and its lease. The pass has already written the annotation and the
/// status map.
fn settled() -> View {
    let mut view = served();
    view.done.extend([Once::Annotate, Once::PatchStatus]);
    view
}

/// Returns the record of 10.0.0.8 in a Secret.
fn record(secret: &str) -> Record {
    Record {
        claimant: held("m-1", "10.0.0.8").claimant,
        node_pool: Some("n/p".to_owned()),
        attachments: Vec::new(),
        network: Some("infra/vlan10".to_owned()),
        addresses: vec!["10.0.0.8/16".parse().unwrap()],
        source: format!("Secret n/{secret}"),
        kind: may_record::Source::Secret,
    }
}

/// Returns the reservation of an address in network data of another author.
fn reservation(claimant: Claimant, address: IpAddr, source: &str) -> Reservation {
    let (network, kind) = (Some("infra/vlan10".to_owned()), may_record::Source::NetworkData);
    Reservation { address, network, claimant, source: source.to_owned(), kind }
}

fn claim(uid: &str, second: i64) -> Step {
    let created = Timestamp::from_second(second).unwrap();
    let requests = vec![Request::of("n/p")];
    let sticky = holder(uid).kind == HolderKind::VirtualMachine;
    let secret = Some(NAME.to_owned());
    Step::Claim(Box::new(Claim { machine: holder(uid), created, requests, sticky, secret }))
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
        pool: "n/p".to_owned(),
        address: address.parse().unwrap(),
        prefix: 64,
        secrets: BTreeSet::new(),
        has_left: false,
    };
    let all = [held("eno102", "10.1.0.8"), held("eno101", "10.0.0.8"), held("eno101", "fd00::8")];
    let note = "Released 10.0.0.8, fd00::8 of eno101, 10.1.0.8 of eno102".to_owned();
    assert_eq!(Notice::of_release(&all), Some(Notice { is_warning: false, reason: "IPAddressReleased", note }));
    assert_eq!(Notice::of_release(&[]), None);
}

#[test]
fn the_secret_and_the_kubevirt_machine_are_read_before_an_address_is_claimed() {
    assert_eq!(decide(&View { secrets: BTreeMap::new(), ..view() }), Step::ReadSecret(NAME.to_owned()));
    assert_eq!(decide(&View { done: BTreeSet::new(), ..view() }), Step::ReadMachine(key()));
    assert_eq!(decide(&View { done: BTreeSet::new(), machine: None, ..view() }), Step::ReadMachine(key()));
    assert_eq!(decide(&view()), claim("m-1", FIRST));
}

#[test]
fn a_virtual_machine_that_no_pool_selects_gets_no_address() {
    let mut other = without_marks();
    other["spec"]["template"]["spec"]["volumes"] = json!([]);
    assert_eq!(decide(&View { selected: Ok(Vec::new()), vm: Some(vm(&other)), ..view() }), Step::Wait);
    let note = format!("Secret {NAME:?} does not exist, and no pool selects the machine");
    assert_eq!(decide(&View { selected: Ok(Vec::new()), ..view() }), report("NetworkDataMissing", &note));
    let held = View { selected: Ok(Vec::new()), secrets: view().secrets, ..served() };
    assert_eq!(decide(&held), report("NetworkDataMissing", &note));
}

#[test]
fn after_a_loss_of_leases_the_secret_of_a_machine_that_no_pool_selects_is_adopted() {
    let view = View { selected: Ok(Vec::new()), ..view() };
    assert_eq!(decide(&View { secrets: BTreeMap::new(), ..view.clone() }), Step::ReadSecret(NAME.to_owned()));
    let foreign = NetworkSecret::Foreign("no annotation".to_owned(), Vec::new());
    let foreign = [(NAME.to_owned(), foreign)].into();
    assert_eq!(decide(&View { secrets: foreign, ..view.clone() }), Step::Wait);
    let mut lost = View { secrets: secrets([own("m-1", "v-1")]), ..view };
    assert_eq!(decide(&lost), Step::Adopt(vec![record(NAME)], NAME.to_owned()));
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
    assert_eq!(decide(&View { vm: Some(unlabelled), ..view() }), itself, "no label names a KubevirtMachine");
    let label = json!({"metadata": {"labels": {"capk.cluster.x-k8s.io/kubevirt-machine-namespace": "elsewhere"}}});
    assert_eq!(decide(&View { vm: Some(vm(&label)), ..alone }), itself, "under its own name, whatever its labels say");
}

#[test]
fn a_machine_that_waits_for_a_mac_address_claims_nothing() {
    let label = json!({"labels": {"ipam.glowplug.dev/mac-addresses": "required"}});
    let waiting = |address: &str| {
        let interfaces = json!([{"name": "iface1", "acpiIndex": 101, "macAddress": address}]);
        let template = json!({"metadata": label, "spec": {"domain": {"devices": {"interfaces": interfaces}}}});
        View { vm: Some(vm(&json!({"spec": {"template": template}}))), ..view() }
    };
    assert_eq!(decide(&waiting("")), Step::Wait);
    assert_eq!(decide(&waiting("02:00:00:00:00:01")), claim("m-1", FIRST));
}

#[test]
fn a_virtual_machine_claims_nothing_while_a_guest_may_use_addresses_of_its_deleted_kubevirt_machine() {
    let mut left = View { machine: None, checked: checked(&[holder("m-1")]), ..view() };
    left.ledger.known = [holder("m-1")].into();
    let note =
        "KubevirtMachine n/w is gone, and a guest may use its addresses: stop the guest, or delete the VirtualMachine";
    assert_eq!(decide(&left), report("NetworkDataMissing", note));
    left.ledger.known.clear();
    assert_eq!(decide(&left), claim("v-1", FIRST + 1), "the addresses are released");
}

#[test]
fn a_machine_that_gets_another_reference_during_a_claim_claims_again_for_this_reference() {
    let secrets = [NAME, NEW].map(|name| (name.to_owned(), NetworkSecret::Absent)).into();
    let view = View { vm: Some(vm(&referring(Some(NEW)))), granted: granted("m-1"), secrets, ..view() };
    let Step::Claim(claim) = decide(&view) else { panic!("{:?}", decide(&view)) };
    assert_eq!(claim.secret.as_deref(), Some(NEW));
    let mut view = View { vm: Some(vm(&json!({}))), granted: None, ..view };
    view.note(self::claim("m-1", FIRST), Response::Granted(vec![allocation("m-1")]));
    assert_eq!(view.granted, granted("m-1"));
    assert!(matches!(decide(&view), Step::CreateSecret(..)));
}

#[test]
fn a_kubevirt_machine_that_is_being_deleted_claims_nothing() {
    let deleted = machine(&json!({"metadata": {"deletionTimestamp": "2026-08-01T11:00:00Z"}}));
    assert_eq!(decide(&View { machine: Some(deleted), ..view() }), Step::Wait);
}

#[test]
fn the_secret_has_the_addresses_the_mac_address_and_the_settings_of_the_pool() {
    let Step::CreateSecret(secret, ..) = decide(&View { granted: granted("m-1"), ..view() }) else { panic!() };
    let Secret { data, metadata, immutable, .. } = &*secret;
    let document: Value = serde_json::from_slice(&data.as_ref().unwrap()["networkdata"].0).unwrap();
    assert_eq!(document["links"][0]["ethernet_mac_address"], "02:00:00:00:00:01");
    assert_eq!(document["networks"][0]["ip_address"], "10.0.0.8");
    assert_eq!(document["networks"][0]["routes"][0]["gateway"], "10.0.0.1");
    assert_eq!(
        serde_json::to_value(&metadata.labels).unwrap(),
        json!({"app.kubernetes.io/managed-by": "glowplug", "velero.io/exclude-from-backup": "true"})
    );
    let owner = json!([{"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": "w", "uid": "v-1"}]);
    assert_eq!(serde_json::to_value(&metadata.owner_references).unwrap(), owner);
    assert_eq!(*immutable, None, "its document may change");
    assert_eq!(stored(*secret), NetworkSecret::Ours(Box::new(own("m-1", "v-1"))));
}

#[test]
fn the_claim_records_the_secret_name_of_the_virtual_machine_and_the_secret_gets_this_name() {
    // The last of these names is from version 0.2.0. A VirtualMachine that the webhook of this version changed may have
    // no Secret yet.
    for name in [NAME, EARLIER, OF_0_2_0] {
        let absent = [(name.to_owned(), NetworkSecret::Absent)].into();
        let view = View { vm: Some(vm(&referring(Some(name)))), secrets: absent, ..view() };
        let Step::Claim(claim) = decide(&view) else { panic!("{:?}", decide(&view)) };
        assert_eq!(claim.secret.as_deref(), Some(name));
        let granted = Some(Granted { secret: name.to_owned(), allocations: vec![allocation("m-1")] });
        let Step::CreateSecret(secret, ..) = decide(&View { granted, ..view }) else { panic!() };
        assert_eq!(secret.metadata.name.as_deref(), Some(name));
        let expected = named(name);
        assert_eq!(stored(*secret), NetworkSecret::Ours(Box::new(expected)));
    }
}

#[test]
fn a_guest_that_started_before_its_secret_existed_must_be_restarted() {
    let notice = |secret: Option<&str>, phase: &str| {
        let instance = Some(reading(secret, &json!({"status": {"phase": phase}})));
        let mut view = View { granted: granted("m-1"), instance, ..view() };
        view.ledger.held = vec![Held { secrets: names([NAME, EARLIER]), ..held("m-1", "10.0.0.8") }];
        view.secrets.insert(EARLIER.to_owned(), NetworkSecret::Ours(Box::new(named(EARLIER))));
        view.done.insert(Once::DropSecrets);
        match decide(&view) {
            Step::CreateSecret(.., notice) => notice,
            step => panic!("{step:?}"),
        }
    };
    let note = "The guest started without its network data: restart the machine".to_owned();
    let early = Some(Notice { is_warning: true, reason: "NetworkDataMissing", note });
    assert_eq!(notice(None, "Scheduling"), None);
    assert_eq!(notice(None, "Running"), early);
    // A guest with an earlier Secret is reported as outdated.
    assert_eq!(notice(Some(EARLIER), "Running"), None);
    // A user has deleted the Secret after the guest has read it.
    assert_eq!(notice(Some(NAME), "Running"), None);
}

#[test]
fn the_addresses_of_a_virtual_machine_are_not_given_to_its_successor() {
    let unlabelled = json!({"metadata": {"labels": null, "uid": "v-2"}});
    let view = View { vm: Some(vm(&unlabelled)), granted: granted("v-1"), ..view() };
    assert_eq!(decide(&view), claim("v-2", FIRST + 1));
}

#[test]
fn a_nocloud_volume_gets_a_network_config() {
    let source = json!({"networkDataSecretRef": {"name": NAME}});
    let volumes = json!([{"name": "cloudinitvolume", "cloudInitNoCloud": source}]);
    let no_cloud = vm(&json!({"spec": {"template": {"spec": {"volumes": volumes}}}}));
    let view = View { vm: Some(no_cloud), granted: granted("m-1"), ..view() };
    let Step::CreateSecret(secret, ..) = decide(&view) else { panic!() };
    let document = secret.data.as_ref().unwrap()["networkdata"].0.clone();
    let read: Value = serde_json::from_slice(&document).unwrap();
    assert_eq!(read["version"], 2);
    assert_eq!(stored(*secret), NetworkSecret::Ours(Box::new(OwnSecret { document, ..own("m-1", "v-1") })));
}

#[test]
fn a_machine_of_an_exhausted_pool_gets_one_event_with_the_message_of_the_openshift_enhancement() {
    let error = ClaimError::Exhausted {
        interface: "eno101".parse().unwrap(),
        pool: "n/p".to_owned(),
        family: Family::Ipv4,
        overflow: Vec::new(),
    };
    let mut waits = View { problem: Some(Problem::Refused(error)), ..view() };
    let Step::Report(notice) = decide(&waits) else { panic!() };
    assert_eq!(
        (notice.reason, notice.note.as_str()),
        ("IPPoolExhausted", "No available IPs in pool for interface eno101: pool n/p, IPv4")
    );
    waits.memory.notice = Some(notice.clone());
    waits.done.insert(Once::AnnotateWaiting);
    assert_eq!(decide(&waits), Step::Wait);
    // API servers remove an event after an hour, so the event is repeated.
    assert_eq!(decide(&View { is_repeat_due: true, ..waits }), Step::Report(notice));
}

#[test]
fn a_machine_whose_addresses_are_not_open_yet_waits_without_an_event() {
    let closed = View { problem: Some(Problem::Refused(ClaimError::Closed("n/p".to_owned()))), ..view() };
    assert_eq!(decide(&closed), Step::Wait);
}

#[test]
fn an_event_of_a_machine_says_why_its_pool_allocates_nothing() {
    let mut waits = View { problem: Some(Problem::Refused(ClaimError::Suspended("n/p".to_owned()))), ..view() };
    assert_eq!(decide(&waits), report("NetworkDataMissing", "pool \"n/p\" allocates nothing for now"));
    let not_ready = Some("pools n/o and n/p offer the same addresses of network infra/vlan10: 10.0.0.8".to_owned());
    waits.pools.insert("n/p".to_owned(), PoolSettings { not_ready, ..PoolSettings::default() });
    let note = "pool n/p does not serve the machine: pools n/o and n/p offer the same addresses of network infra/vlan10: 10.0.0.8";
    assert_eq!(decide(&waits), report("NetworkDataMissing", note));
    waits.problem = Some(Problem::Refused(ClaimError::UnknownPool("n/p".to_owned())));
    assert_eq!(decide(&waits), report("NetworkDataMissing", "unknown pool \"n/p\""));
}

#[test]
fn an_event_is_repeated_before_an_api_server_removes_it() {
    let begin = Instant::now();
    let at = |minute: u64| begin + Duration::from_secs(minute * 60);
    let memory = |noticed| Memory { noticed, ..Memory::default() };
    assert_eq!([44, 45].map(|now| memory(Some(at(0))).is_repeat_due(at(now))), [false, true]);
    assert!(!memory(None).is_repeat_due(at(100)));
}

#[test]
fn a_machine_that_waits_has_the_reason_in_an_annotation_until_it_has_its_network_data() {
    let why = "No available IPs in pool for interface eno101: pool n/p, IPv4";
    let error = ClaimError::Exhausted {
        interface: "eno101".parse().unwrap(),
        pool: "n/p".to_owned(),
        family: Family::Ipv4,
        overflow: Vec::new(),
    };
    let mut waits = View { problem: Some(Problem::Refused(error)), ..view() };
    waits.memory.notice = Some(Notice { is_warning: true, reason: "IPPoolExhausted", note: why.to_owned() });
    let annotate = |why: Option<&str>| {
        Step::AnnotateWaiting(json!({"metadata": {"uid": "m-1", "annotations": {"ipam.glowplug.dev/waiting": why}}}))
    };
    assert_eq!(decide(&waits), annotate(Some(why)));
    let annotated = || Some(machine(&json!({"metadata": {"annotations": {"ipam.glowplug.dev/waiting": why}}})));
    waits.machine = annotated();
    assert_eq!(decide(&waits), Step::Wait);
    // The annotation is removed when the VirtualMachine and the last event are gone, or when the machine has its
    // network data.
    waits.memory.notice = None;
    waits.vm = None;
    assert_eq!(decide(&waits), annotate(None));
    assert_eq!(decide(&View { machine: annotated(), ..settled() }), annotate(None));
    assert_eq!(decide(&settled()), Step::Wait);
}

#[test]
fn a_machine_with_an_ambiguous_choice_of_pools_leaves_the_wait_queue() {
    let mut view = View { selected: Err("two pools".to_owned()), ..view() };
    assert_eq!(decide(&view), report("NetworkDataMissing", "two pools"));
    view.ledger.waiting = [holder("m-1")].into();
    assert_eq!(decide(&view), Step::Withdraw(holder("m-1")));
}

#[test]
fn the_lease_of_a_machine_moves_to_the_pool_that_serves_it_now() {
    let other = || Selected { pool: PoolId { namespace: Some("n".to_owned()), name: "q".to_owned() }, ..selected() };
    let mut view = View { selected: Ok(vec![other()]), ..settled() };
    let q = br#"{"namespace": "n", "name": "q", "network": "infra/vlan10", "addresses": ["10.1.0.8/30"],
        "gateway": ["10.1.0.1"], "nameservers": ["10.1.0.53"], "machineNetwork": [{"cidr": "10.1.0.0/16"}]}"#;
    view.ledger.pools = [("n/q".to_owned(), Pool::parse(q).unwrap().remove(0))].into();
    view.ledger.homes = [(("infra/vlan10".to_owned(), "10.0.0.8".parse().unwrap()), pool())].into();
    view.pools = [("n/q".to_owned(), PoolSettings::default())].into();
    let step = Step::MoveLeases(Box::new(holder("m-1")), vec!["n/q".to_owned()]);
    assert_eq!(decide(&view), step);
    // Another program chooses the addresses of the other pool.
    let mut external = view.clone();
    let from = serde_json::from_value(json!({"ipamClaim": {}})).unwrap();
    let source = Source { from, subnets: Vec::new(), gateways: Vec::new() };
    external.pools.insert("n/q".to_owned(), PoolSettings { source: Some(source), ..PoolSettings::default() });
    assert_ne!(decide(&external), step);
    view.note(step.clone(), Response::Done);
    view.ledger.held[0].pool = "n/q".to_owned();
    // The document has the name server of the other pool, and the gateway of the pool with the address.
    let Step::UpdateSecret(own, document) = decide(&view) else { panic!("{:?}", decide(&view)) };
    assert_eq!(own.interfaces[0].addresses, ["10.0.0.8/16".parse().unwrap()]);
    let document: Value = serde_json::from_str(&document).unwrap();
    assert_eq!(document["networks"][0]["routes"][0]["gateway"], "10.0.0.1");
    assert_eq!(document["services"], json!([{"type": "dns", "address": "10.1.0.53"}]));
    view.ledger.homes.clear();
    let note = "Secret \"w-networkdata-cccccccccccccccc\" keeps its network data: pool \"n/q\" has no subnet with 10.0.0.8/16 any more, \
                so the gateway of the address is not known";
    assert_eq!(decide(&view), report("NetworkDataOutdated", note));
}

/// Makes pool `n/q` the overflow pool of the machine of a view. Pool `n/e` serves the machine, too, but is being
/// deleted.
fn with_overflow(mut view: View) -> View {
    let id = |name: &str| PoolId { namespace: Some("n".to_owned()), name: name.to_owned() };
    view.selected = Ok(vec![Selected { overflow: vec![id("q")], ending: vec![id("e")], ..selected() }]);
    let q = br#"{"namespace": "n", "name": "q", "network": "infra/vlan10", "addresses": ["10.1.0.8/30"],
        "gateway": ["10.1.0.1"], "nameservers": ["10.1.0.53"], "machineNetwork": [{"cidr": "10.1.0.0/16"}]}"#;
    view.ledger.pools.insert("n/q".to_owned(), Pool::parse(q).unwrap().remove(0));
    view.pools = ["n/p", "n/q"].map(|name| (name.to_owned(), PoolSettings::default())).into();
    view
}

#[test]
fn a_machine_claims_an_address_of_its_pool_or_of_the_overflow_pool() {
    let Step::Claim(claim) = decide(&with_overflow(view())) else { panic!() };
    let request = |overflow: &[&str]| Request {
        overflow: overflow.iter().map(|&pool| pool.to_owned()).collect(),
        ..Request::of("n/p")
    };
    assert_eq!((&claim.requests, claim.sticky), (&vec![request(&["n/q"])], false));
    // The machine keeps its lease of a pool that is being deleted, so the claim names this pool.
    let mut again = with_overflow(view());
    again.ledger.held = vec![Held { pool: "n/e".to_owned(), ..held("m-1", "10.0.0.8") }];
    again.pools.insert("n/q".to_owned(), PoolSettings { is_sticky: true, ..PoolSettings::default() });
    let Step::Claim(claim) = decide(&again) else { panic!("{:?}", decide(&again)) };
    assert_eq!((&claim.requests, claim.sticky), (&vec![request(&["n/q", "n/e"])], true));
    let mut waits = with_overflow(view());
    let (pool, family) = ("n/p".to_owned(), Family::Ipv4);
    let overflow = vec![("n/q".to_owned(), Family::Ipv4)];
    let refusal = ClaimError::Exhausted { interface: "eno101".parse().unwrap(), pool, family, overflow };
    waits.note(decide(&waits), Response::Refused(Problem::Refused(refusal)));
    let note = "No available IPs in pool for interface eno101: pool n/p, IPv4; pool n/q, IPv4";
    assert_eq!(decide(&waits), report("IPPoolExhausted", note));
}

#[test]
fn the_network_data_has_the_settings_of_the_pool_that_gave_the_address() {
    let mut view = with_overflow(view());
    let lease = Held { pool: "n/q".to_owned(), ..held("m-1", "10.1.0.8") };
    view.ledger.held = vec![lease.clone()];
    let allocation = Allocation { addresses: vec!["10.1.0.8/16".parse().unwrap()], ..allocation("m-1") };
    view.granted = of_claim(vec![allocation]);
    let Step::CreateSecret(secret, ..) = decide(&view) else { panic!("{:?}", decide(&view)) };
    let NetworkSecret::Ours(written) = stored(*secret) else { panic!() };
    assert_eq!(written.interfaces[0].pool, "n/q");
    let document: Value = serde_json::from_slice(&written.document).unwrap();
    assert_eq!(document["networks"][0]["routes"][0]["gateway"], "10.1.0.1");
    assert_eq!(document["services"], json!([{"type": "dns", "address": "10.1.0.53"}]));
    // A lease of the overflow pool `n/q` stays there. A lease of `n/p` moves, because only the overflow pool has the
    // address.
    let mut served = with_overflow(settled());
    served.secrets = secrets([*written]);
    served.ledger.held = vec![lease.clone()];
    assert!(!matches!(decide(&served), Step::MoveLeases(..)), "{:?}", decide(&served));
    served.ledger.held = vec![Held { pool: "n/p".to_owned(), ..lease }];
    let pools = ["n/p", "n/q", "n/e"].map(str::to_owned).into();
    assert_eq!(decide(&served), Step::MoveLeases(Box::new(holder("m-1")), pools));
}

#[test]
fn two_pools_of_a_machine_are_a_problem_if_their_templates_differ() {
    let template = |text: &str| PoolSettings { template: Some(text.to_owned()), ..PoolSettings::default() };
    let second = Selected {
        pool: PoolId { namespace: Some("n".to_owned()), name: "q".to_owned() },
        interface: "eno102".parse().unwrap(),
        ..selected()
    };
    let mut allocations = vec![allocation("m-1"), allocation("m-1")];
    allocations[1].claimant.interface = second.interface;
    let mut view = View { granted: of_claim(allocations), selected: Ok(vec![selected(), second]), ..view() };
    view.ledger.pools.insert("n/q".to_owned(), pool());
    view.pools = [("n/p".to_owned(), template("{}")), ("n/q".to_owned(), template("{\"links\": []}"))].into();
    let note = "pools n/q and n/p have different templates, expected one template";
    assert_eq!(decide(&view), report("NetworkDataMissing", note));
}

#[test]
fn the_annotation_and_the_status_map_follow_the_secret() {
    let mut view = served();
    let Step::PatchMachine(patch) = decide(&view) else { panic!() };
    let annotations = json!({
        "kubevirt.cluster.x-k8s.io/allocated-ip-eno101": r#"["10.0.0.8/16"]"#,
        "ipam.glowplug.dev/network-eno101": "infra/vlan10",
        "ipam.glowplug.dev/secret-digest": "4180ab244d4fdcf40581bd2ad06cc82c",
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
fn a_status_map_with_entries_of_another_program_needs_only_its_own_entries() {
    let mut view = View { done: [Once::ReadMachine, Once::Annotate].into(), ..served() };
    let with = |map: Value| Some(machine(&json!({"status": {"allocatedBootstrapAddresses": map}})));
    view.machine = with(json!({"eno101": ["10.0.0.8/16"], "eth9": ["10.9.9.9"]}));
    assert_eq!(decide(&view), Step::Wait);
    for map in [json!({"eth9": ["10.9.9.9"]}), json!({"eno101": ["10.9.9.9/16"]}), json!({}), Value::Null] {
        view.machine = with(map);
        let Step::PatchStatus(patch) = decide(&view) else { panic!() };
        assert_eq!(patch["status"], json!({"allocatedBootstrapAddresses": {"eno101": ["10.0.0.8/16"]}}));
    }
}

#[test]
fn a_machine_with_two_leases_keeps_the_lease_of_the_address_in_its_secret() {
    let mut view = served();
    view.ledger.held.insert(0, held("m-1", "10.0.0.9"));
    let claimant = Claimant { machine: holder("m-1"), interface: "eno101".parse().unwrap() };
    assert_eq!(decide(&view), Step::Keep(Box::new(claimant), vec!["10.0.0.8".parse().unwrap()]));
    for held in &mut view.ledger.held {
        held.secrets.insert(EARLIER.to_owned());
    }
    view.done.extend([Once::Annotate, Once::PatchStatus]);
    assert_eq!(decide(&view), Step::Wait, "a guest may have the other one from an earlier Secret");
}

// === The reference of a VirtualMachine to its Secret ===

/// Creates a view of a VirtualMachine without network data.
fn without_reference() -> View {
    let done = [Once::ReadMachine, Once::ReadInstance].into();
    View { vm: Some(vm(&referring(None))), secrets: BTreeMap::new(), done, ..view() }
}

/// Returns the step that asks the webhook for a reference.
fn request(notice: Option<Notice>) -> Step {
    let metadata = json!({"uid": "v-1", "resourceVersion": "5"});
    let patch = json!({"metadata": metadata, "spec": {"template": {"metadata": marks("requested-5")}}});
    Step::RequestReference(patch, notice)
}

/// Returns the step with which the leader adds the reference itself.
fn refer(notice: Option<Notice>) -> Step {
    let add = |path: &str, value: Value| json!({"op": "add", "path": format!("/spec/template/{path}"), "value": value});
    let patch = json!([
        {"op": "test", "path": "/metadata/resourceVersion", "value": "5"},
        add("spec/volumes/0/cloudInitConfigDrive/networkDataSecretRef", json!({"name": NEW})),
        add("metadata/labels/ipam.glowplug.dev~1network-data", json!("renewed-dddddddddddddddd")),
        add("metadata/annotations/ipam.glowplug.dev~1virtual-machine", json!("n/w")),
    ]);
    Step::PatchVm(patch, notice)
}

fn early_guest() -> Notice {
    let note = "The guest started without its network data: restart the machine".to_owned();
    Notice { is_warning: true, reason: "NetworkDataMissing", note }
}

#[test]
fn a_virtual_machine_without_network_data_gets_a_reference_even_if_no_webhook_answers() {
    let mut view = without_reference();
    assert_eq!(decide(&view), request(None));
    view.done.insert(Once::RequestReference);
    assert_eq!(decide(&view), refer(None));
    view.done.insert(Once::PatchVm);
    let note = "The template refers to no Secret of the machine";
    assert_eq!(decide(&view), report("NetworkDataMissing", note), "a webhook with older pools has removed it");
}

#[test]
fn a_guest_without_network_data_must_be_restarted_after_its_machine_has_a_reference() {
    let mut view = View { instance: Some(reading(None, &running())), ..without_reference() };
    view.ledger.held = vec![held("m-1", "10.0.0.8")];
    view.ledger.known = [holder("m-1")].into();
    assert_eq!(decide(&view), request(Some(early_guest())));
    view.done.insert(Once::RequestReference);
    assert_eq!(decide(&view), refer(Some(early_guest())));
}

/// Returns the changes that remove the network data of a VirtualMachine and add the annotation of a machine that is
/// left alone. `uid` is the value of the annotation.
fn left_alone(uid: &str) -> Value {
    let mut changes = referring(None);
    changes["metadata"] = json!({"annotations": {"ipam.glowplug.dev/left-alone": uid}});
    changes
}

#[test]
fn a_machine_that_runs_without_network_data_and_holds_no_address_is_left_alone() {
    let ran = View { instance: Some(reading(None, &running())), ..without_reference() };
    assert_eq!(decide(&View { done: [Once::ReadMachine].into(), ..ran.clone() }), Step::ReadInstance);
    let note = "The guest runs already, without network data of n/p: the machine keeps its network. To give it an address, \
                remove the annotation ipam.glowplug.dev/left-alone, then restart the machine, or create the machine again";
    let notice = Notice { is_warning: false, reason: "LeftAlone", note: note.to_owned() };
    let annotations = json!({"ipam.glowplug.dev/left-alone": "v-1"});
    let patch = json!({"metadata": {"uid": "v-1", "resourceVersion": "5", "annotations": annotations}});
    assert_eq!(decide(&ran), Step::LeaveAlone(patch, notice));
    let without_volume = json!({"spec": {"template": {"spec": {"volumes": []}}}});
    let bare = View { vm: Some(vm(&without_volume)), ..ran.clone() };
    assert!(matches!(decide(&bare), Step::LeaveAlone(..)));
    // The annotation alone decides, even when the guest is gone.
    for instance in [ran.instance.clone(), None] {
        let noted = View { vm: Some(vm(&left_alone("v-1"))), instance, ..ran.clone() };
        assert_eq!(decide(&noted), Step::Wait);
        assert_eq!(noted.pools_that_leave_alone(), names(["n/p"]));
        let mut waiting = noted;
        waiting.ledger.waiting = [holder("m-1")].into();
        assert_eq!(decide(&waiting), Step::Withdraw(holder("m-1")));
    }
    // The record of the machine has become a lease, because its pool offers the address now.
    let mut held_now = View { vm: Some(vm(&left_alone("v-1"))), ..ran.clone() };
    held_now.ledger.held = vec![held("v-1", "10.0.0.8")];
    held_now.ledger.known = [holder("v-1")].into();
    let annotations = json!({"ipam.glowplug.dev/left-alone": null});
    let patch = json!({"metadata": {"uid": "v-1", "annotations": annotations}});
    assert_eq!(decide(&held_now), Step::AnnotateVm(patch.clone()));
    held_now.ledger.held = vec![Held { network: "infra/other".to_owned(), ..held("v-1", "10.0.0.8") }];
    assert_eq!(decide(&held_now), Step::Wait, "its network without a lease");
    // Another program chooses the addresses of the pool, so the families of the addresses are not known.
    let mut of_source = from_source(&json!({"ipamClaim": {}}));
    of_source.vm.clone_from(&held_now.vm);
    of_source.instance.clone_from(&held_now.instance);
    of_source.done.clone_from(&held_now.done);
    assert_eq!(decide(&of_source), Step::Wait);
    of_source.ledger.held = vec![held("v-1", "10.0.0.8")];
    of_source.ledger.known = [holder("v-1")].into();
    assert_eq!(decide(&of_source), Step::AnnotateVm(patch));
    // The API server has dropped the annotation.
    let dropped = View { done: [Once::ReadMachine, Once::ReadInstance, Once::LeaveAlone].into(), ..ran };
    assert_eq!(decide(&dropped), Step::Wait);
}

#[test]
fn a_machine_is_served_if_its_guest_does_not_run_or_a_user_has_removed_the_annotation() {
    for phase in ["", "Pending", "Scheduling", "WaitingForSync", "Succeeded", "Failed"] {
        let instance = Some(reading(None, &json!({"status": {"phase": phase}})));
        let view = View { instance, ..without_reference() };
        assert_eq!(decide(&view), request(Some(early_guest())), "{phase}");
    }
    let mut freed = View { instance: Some(reading(None, &running())), ..without_reference() };
    freed.memory.is_freed = true;
    assert_eq!(decide(&freed), request(Some(early_guest())));
    // The annotation of a copy names another VirtualMachine.
    let copy = View { vm: Some(vm(&left_alone("v-0"))), ..without_reference() };
    assert_eq!((decide(&copy), copy.pools_that_leave_alone()), (request(None), names([])));
}

#[test]
fn a_guest_without_network_data_of_the_controller_has_no_copied_records() {
    let with = |vm: VirtualMachine, instance| View { vm: Some(vm), instance, ..view() }.may_have_copies();
    let served = || vm(&json!({}));
    let guest = |secret, phase: &str| Some(reading(secret, &json!({"status": {"phase": phase}})));
    assert!(with(served(), None));
    assert!(with(served(), guest(None, "Scheduling")));
    assert!(with(served(), guest(None, "Succeeded")));
    assert!(with(served(), guest(Some(NAME), "Running")));
    assert!(!with(served(), guest(None, "Running")));
    assert!(!with(vm(&left_alone("v-1")), None));
}

#[test]
fn a_machine_with_an_excluded_address_gets_an_event_with_a_solution_instead_of_a_secret() {
    let nothing = Allocation { addresses: Vec::new(), ..allocation("m-1") };
    let of_other_family = Allocation { addresses: vec!["fd00::8/64".parse().unwrap()], ..allocation("m-1") };
    for allocation in [nothing, of_other_family] {
        let mut view = View { granted: of_claim(vec![allocation]), ..view() };
        view.ledger.excluded = excluded("m-1", "10.0.0.8");
        let note =
            "the machine keeps 10.0.0.8, which its pools exclude: include this address again, or delete the machine";
        let Step::Report(Notice { reason: "NetworkDataMissing", note: told, .. }) = decide(&view) else {
            panic!("{view:?}")
        };
        assert_eq!(told, note);
    }
}

#[test]
fn a_secret_never_gets_the_name_of_a_secret_of_an_earlier_machine() {
    let mut view = View { granted: granted("m-1"), ..view() };
    view.secrets.insert(NAME.to_owned(), NetworkSecret::Absent);
    view.ledger.held = vec![Held { secrets: names([NAME]), ..held("m-0", "10.0.0.9") }];
    assert!(matches!(decide(&view), Step::RequestReference(..)), "{view:?}");
    view.ledger.held = vec![Held { secrets: names([NAME]), ..held("m-1", "10.0.0.8") }];
    assert!(matches!(decide(&view), Step::CreateSecret(..)), "{view:?}");
}

/// Returns the change that adds the annotation about replaced Secrets to a VirtualMachine. `names` are the Secrets that
/// its manifests named and that the webhook replaced, separated by commas.
fn replacing(names: &str) -> Value {
    json!({"metadata": {"annotations": {"ipam.glowplug.dev/replaced-network-data": names}}})
}

#[test]
fn a_restored_machine_gets_the_free_addresses_of_the_secret_that_its_manifest_named() {
    let restored = View { vm: Some(vm(&replacing(&format!("../x,{EARLIER},{NEW}")))), ..view() };
    assert_eq!(decide(&restored), Step::ReadSecret(NEW.to_owned()));
    let mut read = restored.clone();
    read.secrets.insert(NEW.to_owned(), NetworkSecret::Absent);
    assert_eq!(decide(&read), Step::ReadSecret(EARLIER.to_owned()));
    let earlier = OwnSecret { machine: holder("m-0"), vm: "v-0".to_owned(), ..named(EARLIER) };
    read.secrets.extend(secrets([earlier]));
    let record = Record { source: format!("Secret n/{EARLIER}"), ..record(EARLIER) };
    assert_eq!(decide(&read), Step::Restore(vec![record]));
    let done = View { done: [Once::ReadMachine, Once::Restore].into(), ..read.clone() };
    assert_eq!(decide(&done), claim("m-1", FIRST));
    // The machine waits until the earlier addresses are open, and claims no other addresses.
    let closed = View { problem: Some(Problem::Refused(ClaimError::Closed("n/p".to_owned()))), ..done };
    assert_eq!((decide(&closed), closed.ended(Timestamp::UNIX_EPOCH)), (Step::Wait, Ended::Waits(Vec::new())));
    // The earlier machine, or its guest, may still exist.
    let mut there = read.clone();
    there.ledger.known = [holder("m-0")].into();
    there.checked = checked(&[]);
    there.checked.insert(holder("m-0"), Check::Kept);
    assert_eq!(decide(&there), claim("m-1", FIRST));
    // A request of the user takes precedence over the earlier addresses.
    let mut changes = replacing(EARLIER);
    let requested = json!({"network.kubevirt.io/addresses": r#"{"iface1": ["10.0.0.9/16"]}"#});
    changes["spec"] = json!({"template": {"metadata": {"annotations": requested}}});
    assert!(matches!(decide(&View { vm: Some(vm(&changes)), ..read }), Step::Claim(_)));
}

#[test]
fn a_machine_that_must_not_get_an_address_now_gets_no_reference() {
    let deleted = machine(&json!({"metadata": {"deletionTimestamp": "2026-08-01T11:00:00Z"}}));
    assert_eq!(decide(&View { machine: Some(deleted), ..without_reference() }), Step::Wait);
    let done = [Once::ReadInstance].into();
    assert_eq!(decide(&View { done, ..without_reference() }), Step::ReadMachine(key()));
    let ambiguous = View { selected: Err("two pools".to_owned()), ..without_reference() };
    assert_eq!(decide(&ambiguous), report("NetworkDataMissing", "two pools"));
}

#[test]
fn a_machine_that_receives_a_guest_of_another_cluster_gets_no_address() {
    let strategy = json!({"spec": {"runStrategy": "WaitAsReceiver"}});
    for secret in [None, Some(NAME)] {
        let mut receiver = referring(secret);
        json_patch::merge(&mut receiver, &strategy);
        let mut receiver = View { vm: Some(vm(&receiver)), ..view() };
        assert_eq!(decide(&receiver), Step::Wait);
        receiver.ledger.waiting = [holder("m-1")].into();
        assert_eq!(decide(&receiver), Step::Withdraw(holder("m-1")));
    }
}

#[test]
fn a_machine_whose_guest_came_from_another_cluster_gets_an_address_of_its_own() {
    let migration = |source: &str, target: &str| {
        let uid = |uid: &str| json!({"virtualMachineInstanceUID": uid});
        let state = json!({"completed": true, "sourceState": uid(source), "targetState": uid(target)});
        reading(None, &json!({"status": {"phase": "Running", "migrationState": state}}))
    };
    let arrived = View { instance: Some(migration("i-0", "i-1")), ..without_reference() };
    assert_eq!(decide(&arrived), request(Some(early_guest())));
    assert_eq!(arrived.pools_that_leave_alone(), BTreeSet::new());
    // The guest may use an address that its objects record.
    assert!(!arrived.may_have_copies());
    // The machine waits for its guest until KubeVirt changes its run strategy.
    let mut waiting = referring(None);
    json_patch::merge(&mut waiting, &json!({"spec": {"runStrategy": "WaitAsReceiver"}}));
    assert_eq!(decide(&View { vm: Some(vm(&waiting)), ..arrived.clone() }), Step::Wait);
    // The instance is the source of a migration: its guest ran here before a pool selected the machine.
    let source = View { instance: Some(migration("i-1", "i-2")), ..arrived };
    assert!(matches!(decide(&source), Step::LeaveAlone(..)));
}

#[test]
fn a_selected_machine_with_the_secret_of_another_virtual_machine_gets_a_new_reference() {
    let mut view = View { secrets: secrets([own("m-1", "v-0")]), ..served() };
    assert_eq!(decide(&view), request(None));
    view.done.insert(Once::RequestReference);
    assert_eq!(decide(&view), refer(None));
    view.selected = Ok(Vec::new());
    assert_eq!(decide(&view), Step::Wait, "no pool selects it");
}

#[test]
fn addresses_of_a_user_are_reserved_on_the_network_of_a_pool_that_does_not_select_the_machine() {
    let document = json!({
        "links": [{"id": "eno101", "type": "phy"}],
        "networks": [{"id": "n", "link": "eno101", "type": "ipv4", "ip_address": "10.0.0.9/16"}],
    });
    let mut changes = without_marks();
    let volume = json!({"name": "cloudinitvolume", "cloudInitConfigDrive": {"networkData": document.to_string()}});
    changes["spec"]["template"]["spec"] = json!({"volumes": [volume]});
    let mut view = View { vm: Some(vm(&changes)), machine: None, selected: Ok(Vec::new()), ..view() };
    assert_eq!(decide(&view), Step::Wait);
    view.other_networks = ["infra/vlan10".to_owned()].into();
    let claimant = Claimant { machine: holder("v-1"), interface: "eno101".parse().unwrap() };
    let address = "10.0.0.9".parse().unwrap();
    assert_eq!(decide(&view), Step::Reserve(vec![reservation(claimant, address, "VirtualMachine n/w")]));
    view.reserved.insert("VirtualMachine n/w".to_owned());
    assert_eq!(decide(&view), Step::Wait);
}

#[test]
fn pools_that_contradict_each_other_are_not_reported_for_a_machine_with_network_data_of_its_own() {
    let mut changes = without_marks();
    changes["spec"]["template"] = with_volume(&data_of_user("10.0.0.9"));
    let mut view = View { vm: Some(vm(&changes)), selected: Err("two pools".to_owned()), ..without_reference() };
    let Step::Reserve(mut reserved) = reserve("v-1", "10.0.0.9", "VirtualMachine n/w") else { panic!() };
    // The network is that of the pool, which is not certain.
    reserved[0].network = None;
    assert_eq!(decide(&view), Step::Reserve(reserved));
    view.reserved.insert("VirtualMachine n/w".to_owned());
    assert_eq!(decide(&view), Step::Wait);
    changes["spec"]["template"] = with_volume(&json!({}));
    view.vm = Some(vm(&changes));
    assert_eq!(decide(&view), report("NetworkDataMissing", "two pools"));
}

/// Returns network data of a user for this address, as members of a cloud-init volume.
fn data_of_user(address: &str) -> Value {
    let network = json!({"id": "n", "link": "eno101", "type": "ipv4", "ip_address": format!("{address}/16")});
    let document = json!({"links": [{"id": "eno101", "type": "phy"}], "networks": [network]});
    json!({"networkData": document.to_string()})
}

/// Returns the changes after which an object has a cloud-init volume with these members.
fn with_volume(source: &Value) -> Value {
    json!({"spec": {"volumes": [{"name": "cloudinitvolume", "cloudInitConfigDrive": source}]}})
}

/// Notes the responses to the steps that `next` returns, and returns the steps. `secrets` has each Secret that exists.
fn steps_of(
    mut view: View,
    secrets: &BTreeMap<String, NetworkSecret>,
    next: impl Fn(&View) -> Option<Step>,
) -> Vec<Step> {
    let mut steps = Vec::new();
    while let Some(step) = next(&view) {
        let response = match &step {
            Step::ReadSecret(name) => {
                let secret = secrets.get(name).cloned().unwrap_or(NetworkSecret::Absent);
                Response::Secret(name.clone(), secret)
            }
            Step::ReadOtherSecret(name) => {
                let Some(NetworkSecret::Foreign(_, addresses)) = secrets.get(name) else { panic!("{name}") };
                Response::OtherAddresses(name.clone(), addresses.clone())
            }
            _ => Response::Done,
        };
        view.note(step.clone(), response);
        steps.push(step);
    }
    steps
}

/// Returns the step that reserves an address of VirtualMachine or instance `uid`.
fn reserve(uid: &str, address: &str, source: &str) -> Step {
    let machine = key().holder(HolderKind::VirtualMachine, uid);
    let claimant = Claimant { machine, interface: "eno101".parse().unwrap() };
    Step::Reserve(vec![reservation(claimant, address.parse().unwrap(), source)])
}

#[test]
fn network_data_of_a_user_is_reserved_again_after_the_record_of_the_earlier_address_has_ended() {
    let mut changes = without_marks();
    changes["spec"]["template"] = with_volume(&data_of_user("10.0.0.9"));
    let mut view = View { vm: Some(vm(&changes)), machine: None, ..without_reference() };
    view.ledger.unrecorded =
        [(holder("v-1"), [("infra/vlan10".to_owned(), "10.0.0.8".parse().unwrap())].into())].into();
    let ended = Step::EndRecords(view.ledger.unrecorded.clone());
    let reserve = || reserve("v-1", "10.0.0.9", "VirtualMachine n/w");
    let steps =
        steps_of(view, &BTreeMap::new(), |view| Some(decide(view)).filter(|step| !matches!(step, Step::Report(_))));
    assert_eq!(steps, [reserve(), ended, reserve()]);
}

/// Returns the same step for an instance that never ran and has no VirtualMachine.
fn of_idle_instance(step: Step) -> Step {
    let Step::Reserve(all) = step else { panic!("{step:?}") };
    Step::Reserve(all.into_iter().map(|of| Reservation { kind: may_record::Source::IdleInstance, ..of }).collect())
}

#[test]
fn the_network_data_of_a_user_that_a_guest_reads_is_reserved_although_the_template_has_changed() {
    let foreign = NetworkSecret::Foreign("no annotation".to_owned(), vec!["10.0.0.10".parse().unwrap()]);
    let secrets = [("mine".to_owned(), foreign)].into();
    let inline = |address: &str| with_volume(&data_of_user(address));
    let started = |address: &str| {
        let mut guest = inline(address);
        guest["status"] = running()["status"].clone();
        guest
    };
    let mine = with_volume(&json!({"networkDataSecretRef": {"name": "mine"}}));
    let steps = |template: Option<&Value>, guest: &Value| {
        let vm = template.map(|template| vm(&json!({"spec": {"template": template}})));
        let view = View { vm, instance: Some(instance(guest)), machine: None, ..view() };
        steps_of(view, &secrets, |view| view.reserve_data_of_user())
    };
    let (of_vm, of_guest) = ("VirtualMachine n/w", "VirtualMachineInstance n/w");
    let both = vec![reserve("v-1", "10.0.0.8", of_guest), reserve("v-1", "10.0.0.9", of_vm)];
    assert_eq!(steps(Some(&inline("10.0.0.9")), &inline("10.0.0.8")), both);
    assert_eq!(steps(Some(&inline("10.0.0.8")), &inline("10.0.0.8")), [reserve("v-1", "10.0.0.8", of_vm)]);
    // The VirtualMachine refers to a Secret of the controller, or is gone.
    assert_eq!(steps(Some(&json!({})), &inline("10.0.0.8")), both[..1]);
    assert_eq!(steps(None, &started("10.0.0.8")), [reserve("i-1", "10.0.0.8", of_guest)]);
    // Users can create any number of instances that never run and have no VirtualMachine.
    let idle = of_idle_instance(reserve("i-1", "10.0.0.8", of_guest));
    assert_eq!(steps(None, &inline("10.0.0.8")), [idle]);
    let read = || vec![Step::ReadOtherSecret("mine".to_owned()), reserve("v-1", "10.0.0.10", "Secret n/mine")];
    assert_eq!(steps(Some(&mine), &mine), read());
    assert_eq!(steps(Some(&inline("10.0.0.9")), &mine), [read(), both[1..].to_vec()].concat());
    // Neither a guest that has ended nor a guest with network data of the controller has an address of a user.
    let mut ended = inline("10.0.0.8");
    ended["status"] = json!({"phase": "Succeeded"});
    for guest in [json!({}), ended, with_volume(&json!({"networkDataSecretRef": {"name": "../x"}}))] {
        assert_eq!(steps(Some(&json!({})), &guest), []);
    }
    // Without a guest of the VirtualMachine, a pass reserves the addresses before it checks whether holders are gone.
    let orphan = View { vm: None, instance: Some(instance(&started("10.0.0.8"))), ..view() };
    assert_eq!(decide(&orphan), reserve("i-1", "10.0.0.8", of_guest));
}

#[test]
fn before_a_growth_is_open_the_secrets_that_no_lease_names_are_read_and_adopted() {
    let moved = Given {
        network: "infra/vlan20".to_owned(),
        addresses: vec!["10.1.0.8/16".parse().unwrap()],
        ..own("m-1", "v-1").interfaces.remove(0)
    };
    let moved = OwnSecret { interfaces: vec![moved], ..own("m-1", "v-1") };
    let foreign = |name: &str| {
        let foreign = NetworkSecret::Foreign("no annotation".to_owned(), vec!["10.0.0.9".parse().unwrap()]);
        BTreeMap::from([(name.to_owned(), foreign)])
    };
    let read = |name: &str| Step::ReadSecret(name.to_owned());
    let guest = |secret: &str| Some(reading(Some(secret), &running()));
    let steps = |view: View, secrets: &BTreeMap<String, NetworkSecret>| {
        let view = View { secrets: BTreeMap::new(), ..view };
        steps_of(view, secrets, |view| view.adopt_secrets())
    };
    let reserved = |name: &str| vec![read(name), reserve("v-1", "10.0.0.9", &format!("Secret n/{name}"))];
    // A lease names the Secret.
    assert_eq!(steps(View { instance: guest(NAME), ..served() }, &foreign(NAME)), []);
    // The pass of a VirtualMachine that is being deleted does not look at the Secret of the template.
    let deleted = json!({"metadata": {"deletionTimestamp": "2026-08-01T11:00:00Z"}});
    let deleted = View { vm: Some(vm(&deleted)), instance: guest(NAME), ..served() };
    assert_eq!(steps(deleted, &secrets([with_added(NAME)])), reserved(NAME));
    // A user has changed the Secret that the guest reads, and the VirtualMachine refers to the next Secret.
    let mut changed = View { instance: guest(EARLIER), ..served() };
    changed.ledger.held[0].secrets = names([EARLIER, NAME]);
    assert_eq!(steps(changed.clone(), &foreign(EARLIER)), reserved(EARLIER));
    assert_eq!(steps(changed.clone(), &secrets([named(EARLIER)])), [read(EARLIER)]);
    // A user has only added an address to the Secret. If the VirtualMachine is gone, the guest is an orphan.
    assert_eq!(steps(changed.clone(), &secrets([with_added(EARLIER)])), reserved(EARLIER));
    let source = format!("Secret n/{EARLIER}");
    let of_orphan = [read(EARLIER), reserve("i-1", "10.0.0.9", &source)];
    assert_eq!(steps(View { vm: None, ..changed }, &secrets([with_added(EARLIER)])), of_orphan);
    // The leases are lost. The two Secrets have addresses of different networks.
    let mut lost = View { instance: guest(EARLIER), ..view() };
    let [Step::ReadSecret(_), Step::Adopt(first, _), Step::ReadSecret(_), Step::Adopt(second, _)] =
        &steps(lost.clone(), &secrets([named(EARLIER), moved]))[..]
    else {
        panic!("{lost:?}")
    };
    let addresses = |records: &[Record]| records.iter().flat_map(|it| it.addresses.clone()).collect::<Vec<_>>();
    let expected: [IpNetwork; 2] = ["10.0.0.8/16", "10.1.0.8/16"].map(|text| text.parse().unwrap());
    assert_eq!([addresses(first), addresses(second)], expected.map(|address| vec![address]));
    assert_eq!(steps(View { vm: None, ..lost.clone() }, &foreign(EARLIER)).len(), 2);
    let adopted = [reserved(EARLIER), vec![Step::Adopt(vec![record(EARLIER)], EARLIER.to_owned()), read(NAME)]];
    assert_eq!(steps(lost.clone(), &secrets([with_added(EARLIER)])), adopted.concat());
    lost.ledger.is_of_another = true;
    assert_eq!(steps(lost, &foreign(EARLIER)), []);
    // A Secret of another machine, which the template of a copy names, and the Secret of an earlier VirtualMachine.
    let copy = View { vm: Some(vm(&referring(Some("x-networkdata-bbbbbbbbbbbbbbbb")))), ..view() };
    assert_eq!(steps(copy, &BTreeMap::new()), []);
    assert_eq!(steps(view(), &secrets([own("m-0", "v-0")])), [read(NAME)]);
}

/// Creates a view of a machine whose interface was on `infra/vlan10` and is on `infra/vlan20` now. Its running guest has
/// interfaces with these names, indexes and networks, and has read the Secret [`EARLIER`] with the address 10.0.0.8 of
/// `infra/vlan10`.
fn after_move(guest: &[(&str, u32, &str)]) -> View {
    let mut changes = on(guest)["spec"]["template"].take();
    changes["status"] = running()["status"].clone();
    let mut view = settled();
    view.vm = Some(vm(&on(&[("iface1", 101, "infra/vlan20")])));
    view.instance = Some(reading(Some(EARLIER), &changes));
    view.selected = Ok(vec![Selected { network: "infra/vlan20".to_owned(), ..selected() }]);
    view.ledger.held[0].secrets = names([EARLIER]);
    view.secrets = secrets([named(EARLIER)]);
    view.secrets.insert(NAME.to_owned(), NetworkSecret::Absent);
    view
}

/// Returns the reservations of 10.0.0.8 on these networks for the holder of the lease in the Secret [`EARLIER`].
fn reserved_on(networks: &[&str]) -> Vec<Reservation> {
    let source = format!("Secret n/{EARLIER}");
    let of_lease = reservation(held("m-1", "10.0.0.8").claimant, "10.0.0.8".parse().unwrap(), &source);
    let kind = may_record::Source::MovedGuest;
    let of = |network: &&str| Reservation { network: Some((*network).to_owned()), kind, ..of_lease.clone() };
    networks.iter().map(of).collect()
}

#[test]
fn the_address_of_a_guest_that_kubevirt_has_moved_to_another_network_is_reserved_there() {
    let moved = [("iface1", 101, "infra/vlan20")];
    let mut view = after_move(&moved);
    let expected = Step::Reserve(reserved_on(&["infra/vlan20"]));
    assert_eq!(decide(&view), expected);
    assert_eq!(decide(&View { vm: None, machine: None, ..view.clone() }), expected, "the guest is an orphan");
    let next = |view: &View| {
        let secrets = secrets([named(EARLIER), own("m-1", "v-1")]);
        steps_of(View { secrets: BTreeMap::new(), ..view.clone() }, &secrets, |view| view.adopt_secrets())
    };
    let read = |name: &str| Step::ReadSecret(name.to_owned());
    assert_eq!(next(&view)[..2], [read(EARLIER), expected.clone()], "before a growth is open");
    // The address is reserved, or is a lease of the machine.
    let Step::Reserve(all) = &expected else { panic!() };
    let reserved = View { reserved: all.iter().map(|it| it.source.clone()).collect(), ..view.clone() };
    assert!(!matches!(decide(&reserved), Step::Reserve(_)), "{:?}", decide(&reserved));
    let of_both = Held { network: "infra/vlan20".to_owned(), ..view.ledger.held[0].clone() };
    let mut both = view.clone();
    both.ledger.held.push(of_both);
    assert!(!matches!(decide(&both), Step::Reserve(_)), "{:?}", decide(&both));
    // No webhook and no leader has changed the reference of the template, and a lease names its Secret.
    view.vm = Some(vm(&json!({"spec": on(&moved)["spec"].clone()})));
    view.instance = Some(reading(
        Some(NAME),
        &json!({"spec": on(&moved)["spec"]["template"]["spec"], "status": running()["status"]}),
    ));
    view.ledger.held[0].secrets = names([NAME]);
    let of_name: Vec<Reservation> = reserved_on(&["infra/vlan20"]);
    let of_name = of_name.into_iter().map(|it| Reservation { source: format!("Secret n/{NAME}"), ..it }).collect();
    assert_eq!(next(&view), [read(NAME), Step::Reserve(of_name)]);
}

#[test]
fn only_the_interface_that_has_moved_takes_its_address_to_another_network() {
    let reserved = |guest: &[(&str, u32, &str)]| {
        let view = after_move(guest);
        view.reservations_after_move(&named(EARLIER))
    };
    let (first, second) = ("infra/vlan10", "infra/vlan20");
    assert_eq!(reserved(&[("iface1", 101, first)]), []);
    assert_eq!(reserved(&[("iface1", 101, first), ("iface2", 102, second)]), []);
    assert_eq!(reserved(&[("iface1", 101, second)]), reserved_on(&[second]));
    // The two interfaces have exchanged their networks.
    assert_eq!(reserved(&[("iface1", 101, second), ("iface2", 102, first)]), reserved_on(&[second]));
    // It is not certain which interface has the address.
    let unnamed = [("iface3", 103, second), ("iface4", 104, "infra/vlan30")];
    assert_eq!(reserved(&unnamed), reserved_on(&[second, "infra/vlan30"]));
    // The guest has ended, or reads another Secret.
    let mut view = after_move(&[("iface1", 101, second)]);
    assert_eq!(view.reservations_after_move(&own("m-1", "v-1")), []);
    view.instance.as_mut().unwrap().has_ended = true;
    assert_eq!(view.reservations_after_move(&named(EARLIER)), []);
}

#[test]
fn before_a_growth_is_open_the_secret_of_a_guest_is_read_if_an_interface_has_moved_to_another_network_of_the_guest() {
    let exchanged = [("iface1", 101, "infra/vlan20"), ("iface2", 102, "infra/vlan10")];
    let view = |guest: &[(&str, u32, &str)]| {
        let mut view = after_move(guest);
        view.vm = Some(vm(&on(guest)));
        let mut changes = on(guest)["spec"]["template"].take();
        changes["status"] = running()["status"].clone();
        view.instance = Some(reading(Some(NAME), &changes));
        view.ledger.held[0].secrets = names([NAME]);
        view
    };
    let next = |view: View| {
        let secrets = secrets([own("m-1", "v-1")]);
        steps_of(View { secrets: BTreeMap::new(), ..view }, &secrets, |view| view.adopt_secrets())
    };
    let of_name = reserved_on(&["infra/vlan20"]).into_iter();
    let of_name = of_name.map(|it| Reservation { source: format!("Secret n/{NAME}"), ..it }).collect();
    let expected = [Step::ReadSecret(NAME.to_owned()), Step::Reserve(of_name)];
    assert_eq!(next(view(&exchanged)), expected, "the other interface has no lease");
    let mut both = view(&exchanged);
    let claimant = Claimant { interface: "eno102".parse().unwrap(), ..both.ledger.held[0].claimant.clone() };
    let of_other = Held { claimant, network: "infra/vlan20".to_owned(), ..held("m-1", "10.2.0.8") };
    both.ledger.held.push(Held { secrets: names([NAME]), ..of_other });
    assert_eq!(next(both.clone()), expected, "the interfaces have exchanged their networks");
    let stays = view(&[("iface1", 101, "infra/vlan10"), ("iface2", 102, "infra/vlan20")]);
    assert_eq!(next(View { ledger: both.ledger, ..stays }), []);
}

#[test]
fn an_address_with_which_a_guest_comes_to_a_network_where_it_has_another_user_is_reported_once() {
    let mut view = after_move(&[("iface1", 101, "infra/vlan20")]);
    assert_eq!(view.report_doubts(), None);
    let address: IpAddr = "10.0.0.8".parse().unwrap();
    view.ledger.conflicts = [("infra/vlan10".to_owned(), address)].into();
    assert_eq!(view.report_doubts(), None, "the conflict is on the network that the guest has left");
    view.ledger.conflicts = [("infra/vlan20".to_owned(), address)].into();
    let note = format!(
        "Secret n/{EARLIER}: the guest has 10.0.0.8 on network infra/vlan20 now, and the address has another user there: restart the \
         machine"
    );
    assert_eq!(view.report_doubts(), Some(Step::ReportDoubts([note.clone()].into())));
    view.memory.doubts = [note].into();
    assert_eq!(view.report_doubts(), None);
    view.instance = Some(reading(Some(NAME), &running()));
    assert_eq!(view.report_doubts(), Some(Step::ReportDoubts(BTreeSet::new())), "the guest has been restarted");
}

#[test]
fn a_reference_that_is_copied_from_another_machine_is_replaced_after_the_address_is_reserved() {
    let address = "10.0.0.9".parse().unwrap();
    let foreign = NetworkSecret::Foreign("it names n/other (v-9)".to_owned(), vec![address]);
    let mut view = View { secrets: [(NAME.to_owned(), foreign)].into(), ..view() };
    let claimant = Claimant { machine: holder("v-1"), interface: "eno101".parse().unwrap() };
    assert_eq!(decide(&view), Step::Reserve(vec![reservation(claimant, address, &format!("Secret n/{NAME}"))]));
    view.reserved.insert(format!("Secret n/{NAME}"));
    assert_eq!(decide(&view), request(None));
    view.instance = Some(reading(None, &running()));
    assert_eq!(decide(&view), request(Some(early_guest())));
}

/// Returns what the index remembers of a guest that has read this Secret and has migrated to another cluster.
fn left(secret: Option<&str>) -> Secrets {
    [secret.map(str::to_owned)].into()
}

#[test]
fn a_guest_that_migrated_to_another_cluster_keeps_its_address() {
    // The instance of the guest may be gone, or the instance and its VirtualMachine.
    for (vm, instance) in [(settled().vm, Some(reading(Some(NAME), &running()))), (settled().vm, None), (None, None)] {
        let mut view = View { vm, instance, left: left(Some(NAME)), ..settled() };
        let addresses = ["10.0.0.8".parse().unwrap()].into();
        assert!(!view.has_recorded_migrations());
        assert_eq!(decide(&view), Step::RecordMigration([holder("m-1")].into(), addresses));
        assert_eq!(view.pools_that_hold_no_more(), ["n/p".to_owned()].into());
        view.ledger.held[0].has_left = true;
        assert!(view.has_recorded_migrations());
        assert_eq!((view.record_migration(), view.pools_that_hold_no_more()), (None, BTreeSet::new()));
    }
    assert_eq!((decide(&settled()), settled().has_recorded_migrations()), (Step::Wait, true));
}

#[test]
fn a_guest_that_migrated_to_another_cluster_keeps_each_address_that_it_may_use() {
    let ip = |address: &str| -> IpAddr { address.parse().unwrap() };
    let claim = Key { name: "w.net1".to_owned(), ..key() }.holder(HolderKind::IpamClaim, "c-1");
    let of_claim = Held {
        claimant: Claimant { machine: claim.clone(), interface: "eno102".parse().unwrap() },
        secrets: BTreeSet::new(),
        ..held("m-1", "10.0.0.9")
    };
    // The lease of this address names no Secret, like a lease of version 0.2.0 or of an adoption.
    let unnamed = Held { secrets: BTreeSet::new(), ..held("v-1", "10.0.0.10") };
    let other = Held { secrets: names(["w-networkdata-other"]), ..held("v-2", "10.0.0.11") };
    let mut view = View { left: left(Some(NAME)), ..settled() };
    view.ledger.held.extend([unnamed, other]);
    view.ledger.of_claims = vec![of_claim];
    let (holders, addresses) = ([holder("m-1"), holder("v-1"), claim], ["10.0.0.8", "10.0.0.9", "10.0.0.10"]);
    let step = |holders: &[Machine], addresses: &[&str]| {
        Step::RecordMigration(holders.iter().cloned().collect(), addresses.iter().map(|address| ip(address)).collect())
    };
    assert_eq!(decide(&view), step(&holders, &addresses));
    // A guest that reads no Secret of the controller may use every address that is held under its name.
    let without = View { left: left(None), ..view.clone() };
    let [first, second, third] = holders;
    let all = [first, second, holder("v-2"), third];
    assert_eq!(decide(&without), step(&all, &["10.0.0.8", "10.0.0.9", "10.0.0.10", "10.0.0.11"]));
    let leases = view.ledger.held.iter_mut().chain(&mut view.ledger.of_claims);
    leases.for_each(|held| held.has_left = true);
    assert_eq!(view.record_migration(), None);
}

#[test]
fn two_events_say_which_addresses_of_a_migrated_guest_stay_held_and_which_do_not() {
    let addresses = ["10.0.0.8", "10.1.0.8"].map(|address| address.parse().unwrap()).into();
    let note = "The guest migrated to another cluster with 10.0.0.8, 10.1.0.8: no machine gets these addresses until 30 days after the \
                deletion of the VirtualMachine, or until their StaticIPLeases are deleted after that";
    let held = Notice { is_warning: false, reason: "IPAddressHeld", note: note.to_owned() };
    assert_eq!((Notice::of_held(&addresses), Notice::of_held(&BTreeSet::new())), (Some(held), None));
    let note = "The guest migrated to another cluster with 10.0.0.8, 10.1.0.8, and its namespace has a quarter of the pool for such guests \
                already, or the API server refuses to change the lease: after the deletion of the VirtualMachine, other machines may get these addresses; exclude them from the pool before the deletion";
    let not_held = Notice { is_warning: true, reason: "IPAddressNotHeld", note: note.to_owned() };
    assert_eq!((Notice::of_not_held(&addresses), Notice::of_not_held(&BTreeSet::new())), (Some(not_held), None));
}

#[test]
fn a_user_can_request_a_secret_with_a_new_name() {
    let labels = json!({(NETWORK_DATA_LABEL): "requested"});
    let asks = vm(&json!({"spec": {"template": {"metadata": {"labels": labels}}}}));
    let mut view = View { vm: Some(asks), instance: Some(reading(Some(NAME), &running())), ..settled() };
    assert_eq!(decide(&view), request(None));
    view.selected = Ok(Vec::new());
    assert_ne!(decide(&view), request(None), "no pool selects it");
}

#[test]
fn a_machine_that_moves_to_another_network_releases_its_address_when_no_guest_can_read_it() {
    let interface = "eno101".parse().unwrap();
    let other = ClaimError::OtherPool { interface, held: "10.0.0.8".parse().unwrap(), pool: "n/p".to_owned() };
    let text = other.to_string();
    let eno102 = Selected { network: "infra/vlan20".to_owned(), interface: "eno102".parse().unwrap(), ..selected() };
    let pool = PoolId { namespace: Some("n".to_owned()), name: "q".to_owned() };
    let eno101 = Selected { pool, network: "infra/vlan99".to_owned(), ..selected() };
    let mut view =
        View { selected: Ok(vec![eno101, eno102.clone()]), problem: Some(Problem::Refused(other)), ..view() };
    let of_eno102 = Held {
        claimant: Claimant { machine: holder("m-1"), interface: eno102.interface },
        network: eno102.network,
        ..held("m-1", "10.2.0.8")
    };
    let all = [held("m-1", "10.0.0.8"), held("m-1", "fd00::8"), of_eno102];
    view.ledger.held = all.map(|held| Held { secrets: names([EARLIER]), ..held }).into();
    view.ledger.known = [holder("m-1")].into();
    assert_eq!(decide(&view), Step::ReadInstance);
    view.done.insert(Once::ReadInstance);
    // The other interface keeps its address.
    let left = ["10.0.0.8", "fd00::8"].map(|address| ("infra/vlan10".to_owned(), address.parse().unwrap()));
    let annotations = json!({
        "kubevirt.cluster.x-k8s.io/allocated-ip-eno101": null, "ipam.glowplug.dev/network-eno101": null,
    });
    let of = |uid: &str| json!({"metadata": {"uid": uid, "annotations": annotations}});
    let release = |uid: &str, records: Removal| {
        let (machine, addresses, secrets) = (holder(uid), left.clone().into(), names([EARLIER]));
        Step::Release(Box::new(Release { machine, addresses, secrets, records }))
    };
    // The records are removed from the object that holds the addresses.
    let has_map = machine(&json!({"status": {"allocatedBootstrapAddresses": {"eno101": ["10.0.0.8/16"]}}}));
    let status = json!({"metadata": {"uid": "m-1"}, "status": {"allocatedBootstrapAddresses": {"eno101": null}}});
    let with_map = View { machine: Some(has_map), ..view.clone() };
    assert_eq!(decide(&with_map), release("m-1", Removal::OfMachine(of("m-1"), Some(status))));
    let unlabelled = json!({"metadata": {"labels": null}});
    let mut itself = View { vm: Some(vm(&unlabelled)), machine: None, ..view.clone() };
    itself.ledger.held.iter_mut().for_each(|held| held.claimant.machine = holder("v-1"));
    itself.ledger.known = [holder("v-1")].into();
    assert_eq!(decide(&itself), release("v-1", Removal::OfVm(of("v-1"))));
    // The records of a KubevirtMachine in another namespace do not count.
    assert_eq!(with_earlier().removal_of_records(&earlier(), &[interface].into()), Removal::Nothing);
    let release = release("m-1", Removal::OfMachine(of("m-1"), None));
    assert_eq!(decide(&view), release);
    let waits = View { instance: Some(reading(Some(NAME), &json!({}))), ..view.clone() };
    assert_eq!(decide(&waits), release, "its pod waits for the new Secret");
    for instance in [reading(Some(EARLIER), &running()), reading(None, &running()), reading(Some(NAME), &running())] {
        let runs = View {
            instance: Some(instance),
            secrets: [(EARLIER.to_owned(), NetworkSecret::Absent)].into_iter().chain(view.secrets.clone()).collect(),
            ..view.clone()
        };
        assert_eq!(decide(&runs), report("NetworkDataMissing", &text));
    }
    view.note(release.clone(), Response::Done);
    view.ledger.held.clear();
    assert!(matches!(decide(&view), Step::Claim(_)));
    // KubeVirt has moved the guest, so its address was reserved on the other network. The reservation of another
    // address stays.
    let on_other = |address: &str| ("infra/vlan99".to_owned(), address.parse::<IpAddr>().unwrap());
    let mut moved = waits;
    moved.ledger.reserved = [(holder("m-1"), [on_other("10.0.0.8"), on_other("10.0.0.9")].into())].into();
    let Step::Release(mut with_reservation) = release else { panic!() };
    with_reservation.addresses.insert(on_other("10.0.0.8"));
    assert_eq!(decide(&moved), Step::Release(with_reservation));
}

/// Returns the changes after which the interfaces of a VirtualMachine have these names, indexes and networks.
fn on(interfaces: &[(&str, u32, &str)]) -> Value {
    let networks =
        interfaces.iter().map(|(name, _, network)| json!({"name": name, "multus": {"networkName": network}}));
    let networks: Vec<Value> = networks.collect();
    let interfaces = interfaces.iter().map(|(name, index, _)| json!({"name": name, "acpiIndex": index}));
    let interfaces: Vec<Value> = interfaces.collect();
    let spec = json!({"domain": {"devices": {"interfaces": interfaces}}, "networks": networks});
    json!({"spec": {"template": {"spec": spec}}})
}

#[test]
fn the_reference_to_a_secret_with_an_address_of_another_network_is_replaced_or_removed() {
    let removal = json!([
        {"op": "test", "path": "/metadata/resourceVersion", "value": "5"},
        {"op": "remove", "path": "/spec/template/spec/volumes/0/cloudInitConfigDrive/networkDataSecretRef"},
        {"op": "remove", "path": "/spec/template/metadata/labels/ipam.glowplug.dev~1network-data"},
        {"op": "remove", "path": "/spec/template/metadata/annotations/ipam.glowplug.dev~1virtual-machine"},
    ]);
    let note = format!(
        "Secret {NAME:?} has an address of another network, and no pool selects the machine: the controller removes the reference to \
         this Secret; the guest has no network data after its next start"
    );
    let notice = Notice { is_warning: true, reason: "NetworkDataMissing", note: note.clone() };
    let eno102 = Selected {
        network: "infra/vlan99".to_owned(),
        interface: "eno102".parse().unwrap(),
        attachment: "iface2".to_owned(),
        ..selected()
    };
    // The interface is on another network, or another interface has its index.
    for (interfaces, selected) in [
        (&[("iface2", 101, "infra/vlan99")][..], Ok(vec![eno102])),
        (&[("iface1", 101, "infra/vlan99")], Err("two pools".to_owned())),
        (&[("iface1", 102, "infra/vlan10"), ("iface2", 101, "infra/vlan99")], Err("other index".to_owned())),
    ] {
        let mut view = View { vm: Some(vm(&on(interfaces))), selected, ..settled() };
        assert_eq!(decide(&view), request(None), "{interfaces:?}");
        view.done.insert(Once::RequestReference);
        assert_eq!(decide(&view), refer(None), "{interfaces:?}");
        view = View { selected: Ok(Vec::new()), ..view };
        assert_eq!(decide(&view), Step::PatchVm(removal.clone(), Some(notice.clone())), "{interfaces:?}");
        view.ledger.is_of_another = true;
        assert_eq!(decide(&view), Step::Wait, "another controller serves it");
        view.ledger.is_of_another = false;
        view.ledger.waiting = [holder("m-1")].into();
        assert_eq!(decide(&view), Step::Withdraw(holder("m-1")));
        view.ledger.waiting.clear();
        view.ledger.known.clear();
        view.ledger.held.clear();
        assert_eq!(decide(&view), Step::PatchVm(removal.clone(), Some(notice.clone())), "the leases are lost");
        view.done.insert(Once::PatchVm);
        assert_eq!(decide(&view), report("NetworkDataMissing", &note), "a webhook with older pools has put it back");
    }
    let interfaces = [("iface2", 101, "infra/vlan10"), ("iface1", 102, "infra/vlan99")];
    let renamed = View { vm: Some(vm(&on(&interfaces))), selected: Ok(Vec::new()), ..settled() };
    assert_eq!(decide(&renamed), Step::Wait, "it is on the network of its address");
    let unplugged = View { vm: Some(vm(&on(&[]))), selected: Err("no interface".to_owned()), ..settled() };
    assert_eq!(decide(&unplugged), Step::Wait, "no interface has come to another network");
}

#[test]
fn a_secret_of_version_0_2_0_is_neither_updated_nor_replaced() {
    let of_0_2_0 = OwnSecret { is_immutable: true, ..named(OF_0_2_0) };
    let refers = vm(&referring(Some(OF_0_2_0)));
    let mut view = View { vm: Some(refers), secrets: secrets([of_0_2_0]), ..settled() };
    view.ledger.held[0].secrets = names([OF_0_2_0]);
    assert_eq!(decide(&view), Step::Wait);
    view.instance = Some(reading(Some(OF_0_2_0), &running()));
    assert_eq!(decide(&view), Step::Wait);
}

#[test]
fn the_template_of_a_machine_that_version_0_2_0_served_gets_the_marks() {
    let marked = json!({"metadata": {"uid": "v-1"}, "spec": {"template": {"metadata": marks("issued")}}});
    let unmarked = View { vm: Some(vm(&without_marks())), ..served() };
    assert_eq!(decide(&unmarked), Step::MarkVm(marked));
    let mut alone = View { machine: None, secrets: secrets([own("v-1", "v-1")]), ..unmarked };
    alone.ledger.held = vec![held("v-1", "10.0.0.8")];
    alone.ledger.known = [holder("v-1")].into();
    let annotations = json!({
        "kubevirt.cluster.x-k8s.io/allocated-ip-eno101": r#"["10.0.0.8/16"]"#,
        "ipam.glowplug.dev/network-eno101": "infra/vlan10",
        "ipam.glowplug.dev/secret-digest": "162ba0c541d4b366894fa7d6b0f06381",
    });
    let patch = json!({
        "metadata": {"uid": "v-1", "annotations": annotations}, "spec": {"template": {"metadata": marks("issued")}},
    });
    assert_eq!(decide(&alone), Step::AnnotateVm(patch.clone()));
    let mut marked = json!({"metadata": {"annotations": annotations}});
    assert_eq!(decide(&View { vm: Some(vm(&marked)), ..alone.clone() }), Step::Wait);
    marked["spec"]["template"]["metadata"]["annotations"]["ipam.glowplug.dev/virtual-machine"] = "n/other".into();
    assert_eq!(decide(&View { vm: Some(vm(&marked)), ..alone }), Step::AnnotateVm(patch), "the marks are copied");
}

#[test]
fn a_machine_without_network_data_that_no_pool_selects_loses_the_marks() {
    let marks = json!({
        "labels": {"ipam.glowplug.dev/network-data": null},
        "annotations": {"ipam.glowplug.dev/virtual-machine": null},
    });
    let unmark = json!({"metadata": {"uid": "v-1"}, "spec": {"template": {"metadata": marks}}});
    let mut view = View { selected: Ok(Vec::new()), ..without_reference() };
    assert_eq!(decide(&view), Step::AnnotateVm(unmark));
    view.ledger.waiting = [holder("m-1")].into();
    assert_eq!(decide(&view), Step::Withdraw(holder("m-1")));
    view.ledger.waiting.clear();
    view.ledger.is_of_another = true;
    assert_eq!(decide(&view), Step::Wait, "another controller serves it");
    view.ledger.is_of_another = false;
    view.done.insert(Once::Annotate);
    assert_eq!(decide(&view), Step::Wait);
}

#[test]
fn copied_records_are_removed_from_a_machine_that_holds_no_address() {
    let copied = json!({"metadata": {"annotations": {
        "kubevirt.cluster.x-k8s.io/allocated-ip-eno101": r#"["10.0.0.9/16"]"#, "other": "kept",
    }}});
    let mut view = View { vm: Some(vm(&copied)), ..view() };
    let removed = json!({"kubevirt.cluster.x-k8s.io/allocated-ip-eno101": null});
    let patch = json!({"metadata": {"uid": "v-1", "annotations": removed}});
    assert_eq!(decide(&view), Step::RemoveRecords(patch));
    let done = View { done: [Once::ReadMachine, Once::RemoveRecords].into(), ..view.clone() };
    assert_eq!(decide(&done), claim("m-1", FIRST));
    view.ledger.held = vec![held("v-1", "10.0.0.9")];
    view.ledger.known = [holder("v-1")].into();
    assert_eq!(decide(&view), claim("m-1", FIRST), "the record is its own");
    (view.ledger.held, view.ledger.known) = (Vec::new(), [holder("v-1")].into());
    view.ledger.excluded = excluded("v-1", "10.0.0.9");
    assert_eq!(decide(&view), claim("m-1", FIRST), "the record is of an address that its pool excludes");
}

#[test]
fn an_interface_of_sr_iov_is_served_only_with_a_mac_address() {
    let view = |address: &str| {
        let interfaces = json!([{"name": "iface1", "sriov": {}, "macAddress": address}]);
        let spec = json!({"domain": {"devices": {"interfaces": interfaces}}});
        let vm = vm(&json!({"spec": {"template": {"spec": spec}}}));
        View { vm: Some(vm), granted: granted("m-1"), ..view() }
    };
    let note = "interface \"iface1\" uses SR-IOV and has no macAddress, expected a MAC address: nothing else identifies the interface in the guest";
    assert_eq!(decide(&view("")), report("NetworkDataMissing", note));
    let Step::CreateSecret(secret, ..) = decide(&view("02:00:00:00:00:07")) else { panic!() };
    let document: Value = serde_json::from_slice(&secret.data.unwrap()["networkdata"].0).unwrap();
    assert_eq!(document["links"][0]["ethernet_mac_address"], "02:00:00:00:00:07");
}

// === Leases and Secrets ===

#[test]
fn an_address_that_only_the_secret_has_is_adopted_before_anything_else() {
    let mut view = served();
    view.ledger.held = Vec::new();
    assert_eq!(decide(&view), Step::Adopt(vec![record(NAME)], NAME.to_owned()));
    view.adopted.insert(NAME.to_owned());
    view.problem = Some(Problem::Mismatch("it is of another".to_owned(), Vec::new()));
    assert_eq!(decide(&view), report("IPAddressConflict", "it is of another"));
    // The API server refuses the lease of the address.
    let error = ClaimError::NotRecorded { reason: "quota".to_owned() };
    view.problem = Some(Problem::Refused(error));
    assert_eq!(decide(&view), report("IPAddressUnavailable", "the lease cannot be recorded: quota"));
    assert_eq!(view.ended(Timestamp::UNIX_EPOCH), Ended::Waits(Vec::new()));
}

#[test]
fn the_secret_of_a_guest_is_adopted_after_a_loss_of_leases_even_without_a_virtual_machine() {
    let ends = json!({"metadata": {"deletionTimestamp": "2026-08-01T11:00:00Z"}});
    let vms = [Some(vm(&json!({}))), Some(vm(&referring(None))), Some(vm(&ends)), None];
    for vm in vms {
        let instance = Some(reading(Some(EARLIER), &running()));
        let mut view = View { vm, instance, ..view() };
        assert_eq!(decide(&view), Step::ReadSecret(EARLIER.to_owned()));
        view.secrets = secrets([named(EARLIER)]);
        assert_eq!(decide(&view), Step::Adopt(vec![record(EARLIER)], EARLIER.to_owned()));
        view.ledger.is_of_another = true;
        assert_eq!(view.adopt_guest(), None, "another controller serves it");
    }
}

#[test]
fn a_machine_claims_if_the_secret_of_its_guest_is_absent_or_foreign_but_not_after_a_mismatch() {
    let instance = Some(reading(Some(EARLIER), &running()));
    let mut view = View { instance, ..view() };
    let foreign = NetworkSecret::Foreign("no annotation".to_owned(), Vec::new());
    for secret in [NetworkSecret::Absent, foreign] {
        view.secrets.insert(EARLIER.to_owned(), secret);
        assert_eq!(decide(&view), claim("m-1", FIRST));
    }
    let earlier = named(EARLIER);
    view.secrets.insert(EARLIER.to_owned(), NetworkSecret::Ours(Box::new(earlier)));
    view.adopted.insert(EARLIER.to_owned());
    view.problem = Some(Problem::Mismatch("it is of another".to_owned(), Vec::new()));
    assert_eq!(decide(&view), report("NetworkDataMissing", "it is of another"));
}

#[test]
fn leases_get_the_name_of_the_secret_of_their_machine() {
    let mut view = served();
    view.ledger.held[0].secrets = BTreeSet::new();
    assert_eq!(decide(&view), Step::RecordSecrets(Box::new(holder("m-1")), names([NAME])));
    view.ledger.held[0].secrets = names([EARLIER]);
    let both = Step::RecordSecrets(Box::new(holder("m-1")), names([EARLIER, NAME]));
    assert_eq!(decide(&view), both);
    // The leases also get the name of the Secret that the guest reads.
    view.ledger.held[0].secrets = names([NAME]);
    view.instance = Some(reading(Some(EARLIER), &running()));
    assert_eq!(decide(&view), Step::ReadSecret(EARLIER.to_owned()));
    let earlier = named(EARLIER);
    view.secrets.insert(EARLIER.to_owned(), NetworkSecret::Ours(Box::new(earlier)));
    assert_eq!(decide(&view), both);
}

#[test]
fn a_secret_is_deleted_when_neither_the_guest_nor_the_virtual_machine_needs_it() {
    let mut view = settled();
    view.ledger.held[0].secrets = names([EARLIER, "w-networkdata-x", NAME]);
    let drop = Step::DropSecrets(Box::new(holder("m-1")), names(["w-networkdata-x"]), names([EARLIER, NAME]));
    view.instance = Some(reading(Some(EARLIER), &running()));
    view.secrets.insert(EARLIER.to_owned(), NetworkSecret::Ours(Box::new(named(EARLIER))));
    assert_eq!(decide(&view), Step::ReadInstance);
    view.done.insert(Once::ReadInstance);
    assert_eq!(decide(&view), drop);
    let mut ending = view.clone();
    let metadata = &mut ending.instance.as_mut().unwrap().metadata;
    metadata.deletion_timestamp = metadata.creation_timestamp.clone();
    assert!(metadata.deletion_timestamp.is_some());
    let outdated = report("NetworkDataOutdated", "The guest runs with earlier network data: restart the machine");
    assert_eq!(decide(&ending), outdated, "the next guest may read any of them");
    view.done.insert(Once::DropSecrets);
    assert_eq!(decide(&view), outdated);
}

#[test]
fn a_machine_without_a_guest_keeps_eight_earlier_secrets() {
    let mut view = settled();
    let mut all: BTreeSet<String> = (0..8).map(|n| format!("w-networkdata-{n}")).collect();
    all.insert(NAME.to_owned());
    view.ledger.held[0].secrets.clone_from(&all);
    assert_eq!(decide(&view), Step::Wait);
    all.insert("w-networkdata-8".to_owned());
    view.ledger.held[0].secrets.clone_from(&all);
    assert_eq!(decide(&view), Step::ReadInstance);
    view.done.insert(Once::ReadInstance);
    all.remove(NAME);
    assert_eq!(decide(&view), Step::DropSecrets(Box::new(holder("m-1")), all, names([NAME])));
}

#[test]
fn an_earlier_secret_is_deleted_after_a_consistent_read_of_a_guest_with_the_current_secret() {
    let mut view = settled();
    view.ledger.held[0].secrets = names([EARLIER, NAME]);
    view.secrets.insert(EARLIER.to_owned(), NetworkSecret::Ours(Box::new(named(EARLIER))));
    assert_eq!(decide(&view), Step::Wait, "KubeVirt may start a guest from an older version of the VirtualMachine");
    for other in [None, Some(EARLIER)] {
        let instance = Some(reading(other, &json!({"status": {"phase": "Scheduling"}})));
        assert_eq!(decide(&View { instance, ..view.clone() }), Step::Wait, "{other:?}");
    }
    view.instance = Some(reading(Some(NAME), &running()));
    assert_eq!(decide(&view), Step::ReadInstance);
    view.done.insert(Once::ReadInstance);
    assert_eq!(decide(&view), Step::DropSecrets(Box::new(holder("m-1")), names([EARLIER]), names([NAME])));
    view.instance = Some(reading(Some(EARLIER), &json!({})));
    assert_eq!(decide(&view), Step::Wait, "the read shows another instance");
    view.instance = Some(reading(Some(NAME), &running()));
    view.done.insert(Once::DropSecrets);
    assert_eq!(decide(&view), Step::Wait);
}

// === The pool or the machine changes ===

/// Replaces the pool of a view with a pool with this gateway.
fn with_gateway(mut view: View, gateway: &str) -> View {
    let pool = json!({
        "namespace": "n", "name": "p", "network": "infra/vlan10", "addresses": ["10.0.0.8/30"],
        "gateway": [gateway], "machineNetwork": [{"cidr": "10.0.0.0/16"}],
    });
    view.ledger.pools = [("n/p".to_owned(), Pool::parse(pool.to_string().as_bytes()).unwrap().remove(0))].into();
    view
}

#[test]
fn the_secret_gets_a_new_document_when_the_pool_changes() {
    let mut view = with_gateway(settled(), "10.0.0.2");
    let (current, new) = (document(&served()), document(&view));
    assert_eq!(new, current.replace("10.0.0.1\"", "10.0.0.2\""));
    assert_eq!(decide(&view), Step::UpdateSecret(Box::new(own("m-1", "v-1")), new.clone()));
    // The view now has the stored Secret from the response, so nothing is left to do.
    let updated = OwnSecret { document: new.into_bytes(), ..own("m-1", "v-1") };
    assert_eq!(decide(&View { secrets: secrets([updated]), ..view.clone() }), Step::Wait);
    view.done.insert(Once::UpdateSecret);
    assert_eq!(decide(&view), Step::Wait, "another leader may have updated it");
}

#[test]
fn a_machine_gets_another_secret_if_a_user_has_added_an_address_to_the_document() {
    let mut view = View { secrets: secrets([with_added(NAME)]), ..settled() };
    let source = format!("Secret n/{NAME}");
    assert_eq!(decide(&view), reserve("v-1", "10.0.0.9", &source));
    view.reserved.insert(source);
    assert!(matches!(decide(&view), Step::RequestReference(..)), "{:?}", decide(&view));
    // The record of the added address does not end while the Secret has the address.
    view.ledger.unrecorded = excluded("v-1", "10.0.0.9");
    assert!(matches!(decide(&view), Step::RequestReference(..)), "{:?}", decide(&view));
    // Without a current document, the machine would get no other Secret.
    let interfaces = json!([{"name": "iface1", "sriov": {}}]);
    let sriov = vm(&json!({"spec": {"template": {"spec": {"domain": {"devices": {"interfaces": interfaces}}}}}}));
    for (vm, selected) in [(sriov, Ok(vec![selected()])), (vm(&json!({})), Ok(vec![]))] {
        let without = View { vm: Some(vm), selected, reserved: BTreeSet::new(), ..view.clone() };
        let other_networks = ["infra/vlan10".to_owned()].into_iter().filter(|_| without.selected == Ok(vec![]));
        let mut without = View { other_networks: other_networks.collect(), ..without };
        assert_eq!(decide(&without), reserve("v-1", "10.0.0.9", &format!("Secret n/{NAME}")));
        without.reserved.clone_from(&view.reserved);
        assert!(matches!(decide(&without), Step::Report(_) | Step::Wait), "{:?}", decide(&without));
    }
}

#[test]
fn a_machine_whose_only_pool_is_being_deleted_keeps_its_secret() {
    let uid = |uid: &str| json!({"virtualMachineInstanceUID": uid});
    let state = json!({"completed": true, "sourceState": uid("i-0"), "targetState": uid("i-1")});
    let arrived = instance(&json!({"status": {"phase": "Running", "migrationState": state}}));
    let of_ending = View { selected: Ok(vec![]), kept: vec![selected()], ..settled() };
    assert_eq!(decide(&View { instance: Some(arrived), ..of_ending.clone() }), Step::Wait);
    // A guest may use the address that a user has added, and the Secret is the record of this address.
    let reserved = names([format!("Secret n/{NAME}").as_str()]);
    let changed = View { secrets: secrets([with_added(NAME)]), reserved, ..of_ending };
    assert_eq!(decide(&changed), Step::Wait);
}

#[test]
fn an_address_that_a_user_has_added_to_the_secret_of_a_guest_is_reserved_after_a_lease_names_the_secret() {
    let mut view = settled();
    view.ledger.held[0].secrets = names([EARLIER, NAME]);
    view.secrets.insert(EARLIER.to_owned(), NetworkSecret::Ours(Box::new(with_added(EARLIER))));
    view.instance = Some(reading(Some(EARLIER), &running()));
    let source = format!("Secret n/{EARLIER}");
    assert_eq!(decide(&view), reserve("v-1", "10.0.0.9", &source));
    let orphan = View { vm: None, machine: None, ..view.clone() };
    assert_eq!(decide(&orphan), reserve("i-1", "10.0.0.9", &source));
    // The guest of the orphan has never run.
    let unproven = View { instance: Some(reading(Some(EARLIER), &json!({}))), ..orphan };
    assert_eq!(decide(&unproven), of_idle_instance(reserve("i-1", "10.0.0.9", &source)));
    view.reserved.insert(source);
    outdated(view, RESTART);
}

/// Returns the settings of pool `n/p` with a template in which another link has this link-local address.
fn with_template(address: &str) -> BTreeMap<String, PoolSettings> {
    let network = json!({"id": "b", "type": "ipv6", "link": "eno102", "ip_address": format!("{address}/64")});
    let links = ["eno101", "eno102"].map(|id| json!({"id": id, "type": "phy"}));
    let template = json!({"links": links, "networks": [network]}).to_string();
    [("n/p".to_owned(), PoolSettings { template: Some(template), ..PoolSettings::default() })].into()
}

#[test]
fn the_secret_follows_the_template_of_its_pool_if_another_link_gets_another_address() {
    let of = |address: &str| View { pools: with_template(address), ..settled() };
    let (earlier, mut view) = (document(&of("fe80::8")), of("fe80::9"));
    let new = document(&view);
    assert_eq!(new, earlier.replace("fe80::8", "fe80::9"));
    let before = OwnSecret { document: earlier.into_bytes(), ..own("m-1", "v-1") };
    view.secrets = secrets([before.clone()]);
    view.instance = Some(instance(&running()));
    assert_eq!(decide(&view), Step::UpdateSecret(Box::new(before.clone()), new.clone()));
    let now: Timestamp = "2026-08-01T11:00:00Z".parse().unwrap();
    let updated = NetworkSecret::read(Some(before.updated(&vm(&json!({})), &new, now)));
    let NetworkSecret::Ours(written) = updated else { panic!("{updated:?}") };
    let (metadata, document) = (written.metadata.clone(), new.into_bytes());
    assert_eq!(*written, OwnSecret { metadata, document, updated: Some(now), ..before });
    // The guest has read the earlier document.
    outdated(View { secrets: secrets([*written]), ..view }, RESTART);
}

#[test]
fn a_secret_whose_leases_have_another_holder_is_foreign() {
    let mut view = settled();
    let check = |view: &View, machine: &str| match view.check(NetworkSecret::Ours(Box::new(own(machine, "v-1")))) {
        NetworkSecret::Ours(own) => Ok(own.machine),
        NetworkSecret::Foreign(problem, addresses) => Err((problem, addresses)),
        NetworkSecret::Absent => panic!(),
    };
    assert_eq!(check(&view, "m-1"), Ok(holder("m-1")));
    let problem = format!("it names {}, and its leases have another holder", holder("invented"));
    assert_eq!(check(&view, "invented"), Err((problem, vec!["10.0.0.8".parse().unwrap()])));
    // The leases are lost.
    view.ledger.held.clear();
    assert_eq!(check(&view, "invented"), Ok(holder("invented")));
}

#[test]
fn the_secret_of_an_instance_that_never_ran_and_has_no_virtual_machine_reserves_its_addresses() {
    let waiting = instance(&json!({"status": {"phase": "Scheduling"}}));
    let mut view = View { vm: None, machine: None, instance: Some(waiting), ..settled() };
    view.ledger.held.clear();
    let expected = of_idle_instance(reserve("i-1", "10.0.0.8", &format!("Secret n/{NAME}")));
    assert_eq!(view.adopt_guest(), Some(expected));
    view.instance = Some(instance(&running()));
    assert!(matches!(view.adopt_guest(), Some(Step::Adopt(..))), "{:?}", view.adopt_guest());
}

#[test]
fn the_secret_gets_the_prefix_length_that_its_leases_have_now() {
    let mut view = settled();
    view.ledger.held[0].prefix = 17;
    let new = document(&view).replace("255.255.0.0", "255.255.128.0");
    assert_ne!(new, document(&view));
    let mut own = own("m-1", "v-1");
    own.interfaces[0].addresses = vec!["10.0.0.8/17".parse().unwrap()];
    assert_eq!(decide(&view), Step::UpdateSecret(Box::new(own.clone()), new.clone()));
    own.document = new.into_bytes();
    view.secrets = secrets([own]);
    view.done.clear();
    let Step::PatchMachine(patch) = decide(&view) else { panic!("{:?}", decide(&view)) };
    let annotation = &patch["metadata"]["annotations"]["kubevirt.cluster.x-k8s.io/allocated-ip-eno101"];
    assert_eq!(*annotation, json!(r#"["10.0.0.8/17"]"#));
}

#[test]
fn the_secret_gets_a_new_document_when_an_interface_gets_another_mac_address() {
    let other = json!([{"name": "iface1", "acpiIndex": 101, "macAddress": "02:00:00:00:00:02"}]);
    let other = vm(&json!({"spec": {"template": {"spec": {"domain": {"devices": {"interfaces": other}}}}}}));
    let view = View { vm: Some(other), ..settled() };
    let new = document(&served()).replace("02:00:00:00:00:01", "02:00:00:00:00:02");
    assert_eq!(decide(&view), Step::UpdateSecret(Box::new(own("m-1", "v-1")), new));
}

#[test]
fn a_document_with_the_same_meaning_is_not_written_again() {
    let spaced: Value = serde_json::from_str(&document(&view())).unwrap();
    let spaced = serde_json::to_string_pretty(&spaced).unwrap();
    assert_ne!(spaced, document(&view()));
    let same = OwnSecret { document: spaced.into_bytes(), ..own("m-1", "v-1") };
    assert_eq!(decide(&View { secrets: secrets([same]), ..settled() }), Step::Wait);
}

#[test]
fn a_secret_that_is_being_deleted_or_whose_addresses_would_change_is_not_updated() {
    let view = with_gateway(settled(), "10.0.0.2");
    let deleted = OwnSecret { metadata: deleting(own("m-1", "v-1").metadata), ..own("m-1", "v-1") };
    assert_eq!(decide(&View { secrets: secrets([deleted]), ..view.clone() }), Step::Wait);
    // No pool serves the machine any more.
    assert_eq!(decide(&View { selected: Ok(vec![]), ..view.clone() }), Step::Wait);
    // Other pools serve the machine now: the machine would get other addresses.
    let interface = Selected { interface: "eno102".parse().unwrap(), ..selected() };
    let network = Selected { network: "infra/vlan20".to_owned(), ..selected() };
    let note = format!(
        "Secret {NAME:?} keeps its network data: no pool serves interface eno101 on network \"infra/vlan10\" any more"
    );
    outdated(View { selected: Ok(vec![interface]), ..view.clone() }, &note);
    // Another guest may have the address on the other network.
    let moved = Some(vm(&on(&[("iface1", 101, "infra/vlan20")])));
    assert_eq!(decide(&View { selected: Ok(vec![network]), vm: moved, ..view.clone() }), request(None));
    let ambiguous = View { selected: Err("two pools".to_owned()), ..view };
    assert_eq!(decide(&ambiguous), Step::Wait);
}

#[test]
fn a_machine_keeps_the_addresses_that_it_holds_of_a_pool_that_is_being_deleted() {
    let (mut view, first) = with_second_interface();
    let given = Given {
        interface: "eno102".parse().unwrap(),
        network: "infra/vlan20".to_owned(),
        pool: "n/p2".to_owned(),
        addresses: vec!["10.0.1.8/16".parse().unwrap()],
    };
    let own = OwnSecret { interfaces: vec![first.interfaces[0].clone(), given.clone()], ..first };
    let allocations = [allocation("m-1"), given.allocation(&own)];
    let text = |view: &View| {
        let document =
            view.document(view.vm.as_ref().unwrap(), &[selected(), second()], &allocations, &BTreeMap::new());
        document.unwrap().text().to_owned()
    };
    let own = OwnSecret { document: text(&view).into_bytes(), ..own };
    view.secrets = secrets([own.clone()]);
    view.ledger.held.push(held_by_second());
    view.kept = vec![second()];
    assert_eq!(decide(&view), Step::Wait);
    let mut changed = with_gateway(view.clone(), "10.0.0.2");
    changed.ledger.pools.extend(view.ledger.pools.clone().into_iter().filter(|(name, _)| name == "n/p2"));
    let new = text(&changed);
    assert_eq!(decide(&changed), Step::UpdateSecret(Box::new(own), new));
    // A user has deleted the Secret. The claim names the pool only for an address that the machine holds.
    view.secrets = [(NAME.to_owned(), NetworkSecret::Absent)].into();
    let Step::Claim(of_first) = claim("m-1", FIRST) else { panic!() };
    let of_kept = Request { family: Some(Family::Ipv4), ..Request::of("n/p2") };
    let both = Claim { requests: vec![Request::of("n/p"), of_kept.clone()], ..*of_first.clone() };
    assert_eq!(decide(&view), Step::Claim(Box::new(both.clone())));
    // The pool gives no address of another family, not even one that the VirtualMachine requests.
    let annotation = json!({"network.kubevirt.io/addresses": r#"{"iface2": ["fd00::8/64"]}"#});
    let mut changes = on(&[("iface1", 101, "infra/vlan10"), ("iface2", 102, "infra/vlan20")]);
    changes["spec"]["template"]["metadata"] = json!({"annotations": annotation});
    let requesting = View { vm: Some(vm(&changes)), ..view.clone() };
    assert_eq!(requesting.vm.as_ref().unwrap().requested.as_ref().unwrap().len(), 1);
    assert_eq!(decide(&requesting), Step::Claim(Box::new(both)));
    // The machine holds an address of each family.
    view.ledger.held.push(Held { address: "fd00::8".parse().unwrap(), prefix: 64, ..held_by_second() });
    let both = Claim { requests: vec![Request::of("n/p"), Request::of("n/p2")], ..*of_first.clone() };
    assert_eq!(decide(&view), Step::Claim(Box::new(both)));
    view.ledger.held.truncate(1);
    assert_eq!(decide(&view), Step::Claim(of_first));
}

/// The second interface of a machine, which pool `n/p2` selects.
fn second() -> Selected {
    Selected {
        pool: PoolId { namespace: Some("n".to_owned()), name: "p2".to_owned() },
        network: "infra/vlan20".to_owned(),
        interface: "eno102".parse().unwrap(),
        attachment: "iface2".to_owned(),
        ..selected()
    }
}

/// Creates a view of a machine with two interfaces, whose Secret serves the first one.
fn with_second_interface() -> (View, OwnSecret) {
    let two = vm(&on(&[("iface1", 101, "infra/vlan10"), ("iface2", 102, "infra/vlan20")]));
    let mut view = View { vm: Some(two), ..settled() };
    let own = OwnSecret { document: document(&view).into_bytes(), ..own("m-1", "v-1") };
    view.secrets = secrets([own.clone()]);
    let pool = br#"{"namespace": "n", "name": "p2", "network": "infra/vlan20", "addresses": ["10.0.1.8/30"],
        "machineNetwork": [{"cidr": "10.0.0.0/16"}], "interface": "eno102"}"#;
    view.ledger.pools.insert("n/p2".to_owned(), Pool::parse(pool).unwrap().remove(0));
    (view, own)
}

fn held_by_second() -> Held {
    let claimant = Claimant { machine: holder("m-1"), interface: "eno102".parse().unwrap() };
    let (network, pool) = ("infra/vlan20".to_owned(), "n/p2".to_owned());
    Held { claimant, network, pool, ..held("m-1", "10.0.1.8") }
}

#[test]
fn an_interface_that_a_pool_selects_after_the_secret_was_written_keeps_its_network_and_is_reported() {
    let (mut view, own) = with_second_interface();
    let before = view.clone();
    assert_eq!((decide(&view), view.pools_that_leave_alone()), (Step::Wait, names([])));
    view.selected = Ok(vec![selected(), second()]);
    let note = format!(
        "Secret {NAME:?} has no address of n/p2, which selected the machine later: the machine keeps its own network on iface2. To give it \
         an address there, set the label ipam.glowplug.dev/network-data=requested in spec.template, then restart the machine"
    );
    let notice = Notice { is_warning: false, reason: "LeftAlone", note };
    for instance in [None, Some(instance(&running()))] {
        view.instance = instance;
        assert_eq!(decide(&view), Step::Report(notice.clone()));
        assert_eq!((view.pools_that_leave_alone(), view.outdated_pools()), (names(["n/p2"]), names([])));
    }
    view.memory.notice = Some(notice);
    assert_eq!((decide(&view), view.is_waiting()), (Step::Wait, false));
    // The interface of the Secret gets the settings of its pool.
    let new = document(&with_gateway(before, "10.0.0.2"));
    assert_eq!(decide(&with_gateway(view.clone(), "10.0.0.2")), Step::UpdateSecret(Box::new(own), new));
    // The record of the second interface has become a lease.
    view.ledger.held.push(held_by_second());
    assert_eq!(decide(&view), request(None));
}

#[test]
fn a_secret_that_is_written_again_does_not_serve_an_interface_that_is_left_alone() {
    let (mut view, _) = with_second_interface();
    view.secrets = [(NAME.to_owned(), NetworkSecret::Absent)].into();
    view.selected = Ok(vec![selected(), second()]);
    let with = |interface: Value| {
        let mut changes = on(&[("iface1", 101, "infra/vlan10"), ("iface2", 102, "infra/vlan20")]);
        changes["spec"]["template"]["spec"]["domain"]["devices"]["interfaces"][1] = interface;
        Some(vm(&changes))
    };
    let Step::Claim(of_first) = claim("m-1", FIRST) else { panic!() };
    let both = Claim { requests: vec![Request::of("n/p"), Request::of("n/p2")], ..*of_first.clone() };
    let (of_first, both) = (Step::Claim(of_first), Step::Claim(Box::new(both)));
    assert_eq!(decide(&view), both);
    view.vm = with(json!({"name": "iface2"}));
    let is_new = |view: &View| View { ledger: Recorded { held: vec![], ..view.ledger.clone() }, ..view.clone() };
    assert_eq!((decide(&view), decide(&is_new(&view))), (of_first.clone(), of_first.clone()));
    let holding = [held("m-1", "10.0.0.8"), held_by_second()].to_vec();
    let holding = View { ledger: Recorded { held: holding, ..view.ledger.clone() }, ..view.clone() };
    // The record of the interface has become a lease. A Secret of a new name serves the interface.
    assert_eq!(decide(&holding), request(None));
    // No other interface is left for the Secret.
    assert_eq!(decide(&View { selected: Ok(vec![second()]), ..view.clone() }), request(None));
    // An SR-IOV function never has an index. The lease of the other interface has the name of the Secret.
    view.vm = with(json!({"name": "iface2", "sriov": {}, "macAddress": "02:00:00:00:00:02"}));
    assert_eq!((decide(&view), decide(&is_new(&view))), (both.clone(), both.clone()));
    // Only a guest that has read the Secret proves that the Secret lacks the function.
    view.instance = Some(instance(&running()));
    assert_eq!((decide(&view), decide(&is_new(&view))), (of_first, both.clone()));
    // The lease of an earlier VirtualMachine of the KubevirtMachine does not have this name.
    view.ledger.held[0].secrets = names([EARLIER]);
    assert_eq!(decide(&view), both);
}

#[test]
fn an_outdated_secret_of_version_0_2_0_is_reported_and_its_machine_does_not_wait() {
    let of_0_2_0 = OwnSecret { is_immutable: true, ..named(OF_0_2_0) };
    let refers = vm(&referring(Some(OF_0_2_0)));
    let view = View { vm: Some(refers), secrets: secrets([of_0_2_0]), ..with_gateway(settled(), "10.0.0.2") };
    let mut view = view;
    view.ledger.held[0].secrets = names([OF_0_2_0]);
    let note = "Secret \"w-networkdata\" is of version 0.2.0 and keeps its network data: set the label \
                ipam.glowplug.dev/network-data=requested in spec.template, then restart the machine";
    outdated(view, note);
}

#[test]
fn a_secret_of_version_0_2_0_is_current_although_its_document_has_no_names_of_nics() {
    let text = document(&view());
    let without = text.replace(",\"name\":\"eno101\"", "");
    assert_ne!(without, text);
    let of_0_2_0 = OwnSecret { is_immutable: true, document: without.into_bytes(), ..named(OF_0_2_0) };
    let refers = vm(&referring(Some(OF_0_2_0)));
    let mut view = View { vm: Some(refers), secrets: secrets([of_0_2_0]), ..settled() };
    view.ledger.held[0].secrets = names([OF_0_2_0]);
    assert_eq!(decide(&view), Step::Wait);
}

#[test]
fn a_guest_of_another_cluster_that_starts_with_a_secret_is_outdated_until_a_restart() {
    let uid = |uid: &str| json!({"virtualMachineInstanceUID": uid});
    let state = json!({"completed": true, "sourceState": uid("i-0"), "targetState": uid("i-1")});
    let arrived = json!({"status": {"phase": "Running", "migrationState": state}});
    let mut view = View { instance: Some(instance(&arrived)), ..settled() };
    assert_eq!(decide(&view), request(None));
    let waiting = Some(vm(&json!({"spec": {"runStrategy": "WaitAsReceiver"}})));
    assert_eq!(decide(&View { vm: waiting, ..view.clone() }), Step::Wait);
    // The machine has the Secret of the new name. A later migration within the cluster replaces the state.
    for changes in [arrived, running()] {
        view.instance = Some(reading(Some(EARLIER), &changes));
        view.ledger.held[0].secrets = names([EARLIER, NAME]);
        view.secrets.insert(EARLIER.to_owned(), NetworkSecret::Ours(Box::new(named(EARLIER))));
        outdated(view.clone(), RESTART);
    }
    view.instance = Some(instance(&running()));
    assert_eq!(view.outdated_pools(), names([]));
}

/// Asserts that a machine is reported once as outdated with this note, and that the machine does not wait for network
/// data.
fn outdated(mut view: View, note: &str) {
    assert_eq!(decide(&view), report("NetworkDataOutdated", note));
    let notice = Notice { is_warning: true, reason: "NetworkDataOutdated", note: note.to_owned() };
    view.memory.notice = Some(notice);
    assert_eq!((decide(&view), view.is_waiting()), (Step::Wait, false));
}

const RESTART: &str = "The guest runs with earlier network data: restart the machine";

#[test]
fn a_guest_that_does_not_read_the_current_secret_of_its_machine_is_outdated() {
    let mut view = settled();
    view.ledger.held[0].secrets = names([EARLIER, NAME]);
    view.secrets.insert(EARLIER.to_owned(), NetworkSecret::Ours(Box::new(named(EARLIER))));
    for other in [None, Some(EARLIER)] {
        outdated(View { instance: Some(reading(other, &running())), ..view.clone() }, RESTART);
    }
}

#[test]
fn a_guest_that_waits_for_a_secret_that_is_never_written_is_reported() {
    let mut view = settled();
    view.ledger.held[0].secrets = names([NAME]);
    view.secrets.insert(EARLIER.to_owned(), NetworkSecret::Absent);
    view.instance = Some(reading(Some(EARLIER), &json!({})));
    let note =
        format!("The guest waits for Secret {EARLIER:?}, and its machine has Secret {NAME:?}: restart the machine");
    outdated(view, &note);
}

#[test]
fn a_guest_that_started_before_its_secret_was_updated_is_outdated() {
    let view = |updated: &str| {
        let updated = OwnSecret { updated: Some(updated.parse().unwrap()), ..own("m-1", "v-1") };
        View { secrets: secrets([updated]), instance: Some(instance(&running())), ..settled() }
    };
    outdated(view("2026-08-01T10:00:04Z"), RESTART);
    assert_eq!(decide(&view("2026-08-01T10:00:03Z")), Step::Wait);
    let pending = View { instance: Some(instance(&json!({}))), ..view("2026-08-01T10:00:04Z") };
    assert_eq!(decide(&pending), Step::Wait, "it reads the Secret when it starts");
}

#[test]
fn a_machine_whose_current_document_cannot_be_made_keeps_its_network_data() {
    let interfaces = json!([{"name": "iface1", "sriov": {}}]);
    let sriov = vm(&json!({"spec": {"template": {"spec": {"domain": {"devices": {"interfaces": interfaces}}}}}}));
    let note = format!(
        "Secret {NAME:?} keeps its network data: interface \"iface1\" uses SR-IOV and has no macAddress, expected a MAC address: \
         nothing else identifies the interface in the guest"
    );
    outdated(View { vm: Some(sriov), ..settled() }, &note);
}

#[test]
fn a_secret_of_another_author_is_never_replaced_and_its_addresses_are_reserved() {
    let foreign = NetworkSecret::Foreign("no annotation".to_owned(), vec!["10.0.0.9".parse().unwrap()]);
    let refers = Some(vm(&referring(Some(OF_0_2_0))));
    let mut view = View { vm: refers, secrets: [(OF_0_2_0.to_owned(), foreign)].into(), ..view() };
    let claimant = Claimant { machine: holder("v-1"), interface: "eno101".parse().unwrap() };
    let reserve = Step::Reserve(vec![reservation(claimant, "10.0.0.9".parse().unwrap(), "Secret n/w-networkdata")]);
    assert_eq!(decide(&view), reserve);
    let mut foreign = held("m-1", "10.0.0.9");
    foreign.claimant.machine.namespace = "evil".to_owned();
    view.ledger.held = vec![foreign, Held { network: "infra/other".to_owned(), ..held("m-1", "10.0.0.9") }];
    assert_eq!(decide(&view), reserve, "a holder of another namespace, and one on another network");
    view.ledger.held = Vec::new();
    view.reserved.insert("Secret n/w-networkdata".to_owned());
    let note = "Secret \"w-networkdata\" is not of this controller (no annotation), expected no Secret of this name";
    assert_eq!(decide(&view), report("IPAddressConflict", note));
}

#[test]
fn capk_must_retry_a_rejected_machine_when_none_of_its_pools_is_exhausted() {
    let condition = json!({
        "type": "VMProvisioned", "status": "False", "message": "No available IPs in pool for interface eno101",
    });
    let template = json!({"spec": {"template": {"spec": {
        "domain": {"devices": {"interfaces": [{"name": "iface1"}]}},
        "networks": [{"name": "iface1", "multus": {"networkName": "infra/vlan10"}}],
    }}}});
    let refused =
        machine(&json!({"spec": {"virtualMachineTemplate": template}, "status": {"conditions": [condition]}}));
    let mut view = View { vm: None, machine: Some(refused), ..view() };
    let retry = json!({"metadata": {"uid": "m-1", "annotations": {"ipam.glowplug.dev/retry": "4"}}});
    assert_eq!(decide(&view), Step::Retry(retry));
    view.done.insert(Once::Retry);
    assert_eq!(decide(&view), Step::Wait);
    let lacking: BTreeSet<String> = ["n/p".to_owned()].into();
    assert_eq!(view.refused(), None);
    let mut exhausted = View { lacking: Some(lacking.clone()), done: BTreeSet::new(), ..view };
    assert_eq!(decide(&exhausted), Step::Wait);
    let created = "2026-08-01T10:00:01Z".parse().unwrap();
    assert_eq!(exhausted.refused(), Some(Refused { created, pools: lacking }));
    let created = View { vm: self::view().vm, ..exhausted.clone() };
    assert_eq!(created.refused(), None);
    let mut queued = exhausted.clone();
    queued.ledger.waiting = exhausted.machine.iter().map(KubevirtMachine::holder).collect();
    assert_eq!(queued.refused(), None, "the wait queue counts the machine");
    // The webhook and the leader use the same function to decide which addresses the machine lacks.
    let ask = |spec: Value, held: Vec<Held>| {
        let mut pool = json!({
            "metadata": {"namespace": "n", "name": "p"},
            "spec": {"network": "infra/vlan10", "addresses": ["10.0.0.0/24"], "machineSelector": {}},
            "status": {"conditions": [{
                "type": "Exhausted", "status": "True", "reason": "NoFreeAddress", "message": "no",
                "lastTransitionTime": "2026-08-14T10:00:00Z",
            }]},
        });
        json_patch::merge(&mut pool, &json!({"spec": spec}));
        let pool = MachinePool::read(PoolObject::read(serde_json::from_value(pool).unwrap()));
        let mut view = exhausted.clone();
        view.ledger.held = held;
        view.lacking_in(&Selection::new([Arc::new(pool)], [], None)).map(|pools| pools.into_iter().collect::<Vec<_>>())
    };
    let lacks = Some(vec!["n/p".to_owned()]);
    assert_eq!(ask(json!({}), vec![]), lacks);
    assert_eq!(ask(json!({"machineSelector": null}), vec![]), None);
    assert_eq!(ask(json!({"preAllocations": {"w": "10.0.0.9"}}), vec![]), Some(vec![]));
    assert_eq!(ask(json!({}), vec![held("m-1", "10.0.0.8")]), Some(vec![]));
    assert_eq!(ask(json!({}), vec![held("m-0", "10.0.0.8")]), lacks, "an earlier machine holds the address");
    // With an exhausted pool, the webhook refuses even a machine that holds an address, unless an annotation records
    // the address.
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
fn a_holder_is_checked_when_no_known_object_has_its_uid() {
    let prove = Step::Prove(holder("m-1"));
    let gone = View { machine: None, ..served() };
    assert_eq!(decide(&gone), prove);
    let next = machine(&json!({"metadata": {"uid": "m-2"}}));
    assert_eq!(decide(&View { machine: Some(next), ..served() }), prove);
    assert_eq!(decide(&View { checked: checked(&[holder("m-1")]), ..gone }), Step::Wait, "it is checked once");
    let mut ending = served();
    ending.vm = Some(vm(&json!({"metadata": {"deletionTimestamp": "2026-08-01T11:00:00Z"}})));
    assert_eq!(decide(&ending), Step::Wait, "its guest may run until the VirtualMachine is gone");
}

// === Leases of version 0.2.0 for a VirtualMachine in another namespace ===

/// Returns a KubevirtMachine of another namespace that holds 10.0.0.9 for VirtualMachine `n/w`.
fn earlier() -> Machine {
    Machine::new("clusters", "w", "m-0").with_vm_in("n")
}

/// Returns the changes with the labels of a VirtualMachine that belongs to the KubevirtMachine [`earlier`].
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
    // The KubevirtMachine of this name belongs to another VirtualMachine.
    let other = View { machine: Some(machine(&json!({}))), ..view };
    assert_eq!(decide(&other), claim("v-1", FIRST + 1));
}

#[test]
fn a_virtual_machine_gets_the_address_that_a_kubevirt_machine_of_another_namespace_holds_for_it() {
    let requests = vec![Request::of("n/p")];
    let created = Timestamp::from_second(FIRST + 1).unwrap();
    let claim = Claim { machine: earlier(), created, requests, sticky: false, secret: Some(NAME.to_owned()) };
    assert_eq!(decide(&with_earlier()), Step::Claim(Box::new(claim)));
}

#[test]
fn a_virtual_machine_with_other_labels_gets_no_address_of_the_earlier_kubevirt_machine() {
    let label = json!({"metadata": {"labels": {"capk.cluster.x-k8s.io/kubevirt-machine-namespace": "other"}}});
    let mut earlier = with_earlier();
    earlier.ledger.held.iter_mut().for_each(|held| held.secrets = names([EARLIER]));
    let other = View { vm: Some(vm(&label)), ..earlier.clone() };
    assert_eq!(decide(&other), claim("v-1", FIRST + 1));
    let unlabelled = View { vm: Some(vm(&json!({"metadata": {"labels": null}}))), ..earlier };
    assert_eq!(decide(&unlabelled), claim("v-1", FIRST + 1));
}

#[test]
fn a_machine_claims_for_itself_if_its_kubevirt_machine_holds_addresses_in_another_namespace() {
    let mut view = view();
    view.ledger.elsewhere = [holder("m-1").with_vm_in("infra")].into();
    assert_eq!(decide(&view), claim("v-1", FIRST + 1));
}

#[test]
fn a_kubevirt_machine_of_another_namespace_is_checked_when_its_virtual_machine_is_gone() {
    assert_eq!(with_earlier().look_for_the_gone(), None);
    assert_eq!(decide(&View { vm: None, ..with_earlier() }), Step::Prove(earlier()));
}

#[test]
fn a_secret_that_names_the_machine_of_another_virtual_machine_is_foreign() {
    let of = |namespace: &str, uid: &str| {
        let mut own = own(uid, "v-1");
        own.machine.namespace = namespace.to_owned();
        NetworkSecret::Ours(Box::new(own))
    };
    let view = with_earlier();
    let mut without_leases = view.clone();
    without_leases.ledger.held.clear();
    assert_eq!(without_leases.check(of("n", "m-1")), of("n", "m-1"));
    assert_eq!(view.check(of("clusters", "m-0")), of("clusters", "m-0"));
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

/// Returns a proof for the holder `m-1`, a KubevirtMachine that holds 10.0.0.8 and whose guests read [`NAME`]. No
/// object of the holder exists.
fn proof() -> Proof {
    Proof {
        holder: holder("m-1"),
        addresses: ["10.0.0.8".parse().unwrap()].into(),
        secrets: names([NAME]),
        of_others: BTreeSet::new(),
        older: Vec::new(),
        absent: None,
        is_earlier: false,
        machine: None,
        vm: None,
        instance: None,
    }
}

/// Returns a later machine with the same name.
fn next_machine() -> Option<KubevirtMachine> {
    Some(machine(&json!({"metadata": {"uid": "m-2", "creationTimestamp": "2026-08-01T10:30:01Z"}})))
}

/// Returns a later VirtualMachine with the same name, which refers to this Secret.
fn next_vm(secret: Option<&str>) -> Option<VirtualMachine> {
    let mut changes = referring(secret);
    changes["metadata"] = json!({"uid": "v-2", "creationTimestamp": "2026-08-01T10:30:02Z"});
    Some(vm(&changes))
}

/// Returns an instance of the later VirtualMachine. The instance refers to this Secret.
fn next_instance(secret: Option<&str>) -> Option<Instance> {
    let owner = json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": "w", "uid": "v-2"});
    let metadata = json!({"uid": "i-2", "creationTimestamp": "2026-08-01T10:30:03Z", "ownerReferences": [owner]});
    Some(reading(secret, &json!({"metadata": metadata})))
}

/// Returns an instance without a VirtualMachine. The instance refers to this Secret.
fn orphan(secret: Option<&str>) -> Option<Instance> {
    Some(reading(secret, &json!({"metadata": {"ownerReferences": null}})))
}

/// Returns an instance of the VirtualMachine `v-1`. The instance refers to this Secret.
fn own_instance(secret: Option<&str>) -> Option<Instance> {
    Some(reading(secret, &json!({})))
}

/// Returns an orphan that the later VirtualMachine has taken over. The orphan refers to this Secret.
fn adopted(secret: Option<&str>) -> Option<Instance> {
    Some(Instance { owner: Some("v-2".to_owned()), ..orphan(secret)? })
}

fn referrer(secret: Option<&str>) -> Option<VirtualMachine> {
    Some(vm(&referring(secret)))
}

/// Returns an instance that reads a Secret of the later VirtualMachine. The guest of the instance reports 10.0.0.8.
fn reporter() -> Option<Instance> {
    let mut instance = next_instance(Some(NEW))?;
    let report =
        json!({"name": "iface1", "interfaceName": "eno101", "ipAddress": "10.0.0.8", "ipAddresses": ["10.0.0.8"]});
    let spec = json!({
        "domain": {"devices": {"interfaces": [{"name": "iface1"}]}},
        "networks": [{"name": "iface1", "multus": {"networkName": "infra/vlan10"}}],
    });
    let reporting = self::instance(&json!({"spec": spec, "status": {"interfaces": [report]}}));
    assert_eq!(reporting.guest.networks.len(), 1);
    instance.guest = reporting.guest;
    Some(instance)
}

fn check(cases: &[(&str, Proof, Check)]) {
    for (case, proof, expected) in cases {
        assert_eq!(proof.check(), *expected, "{case}");
    }
}

#[test]
fn a_kubevirt_machine_keeps_its_addresses_while_the_machine_or_a_reader_of_its_secrets_exists() {
    use Check::{Gone, Kept};
    let (machine, ends) =
        (Some(machine(&json!({}))), json!({"metadata": {"deletionTimestamp": "2026-08-01T11:00:00Z"}}));
    let next = || Proof { machine: next_machine(), vm: next_vm(Some(NEW)), ..proof() };
    check(&[
        ("nothing", proof(), Gone),
        ("the holder", Proof { machine, ..proof() }, Kept),
        ("a later machine", Proof { machine: next_machine(), ..proof() }, Gone),
        ("a reference", Proof { vm: referrer(Some(NAME)), ..proof() }, Kept),
        ("a reference of a VirtualMachine that ends", Proof { vm: Some(vm(&ends)), ..proof() }, Kept),
        ("a reference of a later VirtualMachine", Proof { vm: next_vm(Some(NAME)), ..next() }, Gone),
        ("another reference", Proof { vm: referrer(Some(NEW)), ..proof() }, Kept),
        (
            "a reference to the Secret of another holder",
            Proof { vm: referrer(Some(NEW)), of_others: names([NEW]), ..proof() },
            Gone,
        ),
        ("another reference of a later VirtualMachine", next(), Gone),
        ("no reference", Proof { vm: referrer(None), ..proof() }, Gone),
        ("a reader", Proof { instance: own_instance(Some(NAME)), vm: referrer(Some(NEW)), ..proof() }, Kept),
        ("an orphan that reads the Secret of the holder", Proof { instance: orphan(Some(NAME)), ..next() }, Kept),
        (
            "an adopted orphan that reads the Secret of the holder",
            Proof { instance: adopted(Some(NAME)), ..next() },
            Kept,
        ),
        ("a reader of another Secret", Proof { instance: next_instance(Some(NEW)), ..next() }, Gone),
        ("an orphan that reads another Secret", Proof { instance: orphan(Some(NEW)), ..proof() }, Kept),
        ("a guest that reports its address", Proof { instance: reporter(), ..next() }, Kept),
        ("an orphan without network data", Proof { instance: orphan(None), ..next() }, Kept),
        ("a guest of its own without network data", Proof { instance: own_instance(None), ..proof() }, Kept),
        (
            "a guest of a later VirtualMachine without network data",
            Proof { instance: next_instance(None), vm: next_vm(None), ..next() },
            Gone,
        ),
        (
            "an adopted orphan without network data",
            Proof { instance: adopted(None), vm: next_vm(None), ..next() },
            Kept,
        ),
    ]);
}

#[test]
fn a_reference_to_a_secret_that_does_not_exist_keeps_no_addresses() {
    use Check::{Gone, Kept};
    let proof = || Proof { vm: referrer(Some(NEW)), absent: Some(NEW.to_owned()), ..proof() };
    let started = |secret| Some(reading(Some(secret), &running()));
    check(&[
        ("no guest", proof(), Gone),
        ("a pod that waits for it", Proof { instance: own_instance(Some(NEW)), ..proof() }, Gone),
        ("a guest that has read it", Proof { instance: started(NEW), ..proof() }, Kept),
        ("a guest with an earlier Secret", Proof { instance: started(NAME), ..proof() }, Kept),
        ("a pod that waits for an earlier Secret", Proof { instance: own_instance(Some(NAME)), ..proof() }, Kept),
        ("a guest with an unknown Secret", Proof { instance: started(EARLIER), ..proof() }, Kept),
        ("a guest without network data", Proof { instance: own_instance(None), ..proof() }, Kept),
        ("a guest that reports its address", Proof { instance: reporter(), ..proof() }, Kept),
        ("another reference meanwhile", Proof { vm: referrer(Some(EARLIER)), ..proof() }, Kept),
        ("its Secret", Proof { vm: referrer(Some(NAME)), ..proof() }, Kept),
    ]);
}

#[test]
fn a_report_keeps_the_addresses_of_the_four_oldest_holders_of_a_name() {
    let reported: BTreeSet<IpAddr> = ["10.0.0.8".parse().unwrap()].into();
    let other: BTreeSet<IpAddr> = ["10.0.0.9".parse().unwrap()].into();
    let check = |older: Vec<BTreeSet<IpAddr>>| {
        Proof { machine: next_machine(), vm: next_vm(Some(NEW)), instance: reporter(), older, ..proof() }.check()
    };
    let mut older = vec![reported.clone(), other.clone(), reported.clone(), other, reported.clone()];
    assert_eq!(check(older.clone()), Check::Kept);
    older.push(reported);
    assert_eq!(check(older), Check::Gone);
}

#[test]
fn unknown_network_data_keeps_the_addresses_of_the_four_oldest_holders_of_a_name() {
    use Check::{Gone, Kept};
    let older = |count: u8| (0..count).map(|last| [IpAddr::from([10, 0, 1, last])].into()).collect();
    let check = |proof: &Proof| [3, 4].map(|count| Proof { older: older(count), ..proof.clone() }.check());
    let started = |secret| Some(reading(secret, &running()));
    for holder in [holder("m-1"), holder("v-1")] {
        let of = |instance| check(&Proof { holder: holder.clone(), instance, ..proof() });
        let unknown = [orphan(None), orphan(Some(NEW)), started(None), started(Some(NEW))];
        assert_eq!(unknown.map(of), [[Kept, Gone]; 4]);
        // The lease of the holder names the Secret.
        assert_eq!([orphan(Some(NAME)), started(Some(NAME))].map(of), [[Kept, Kept]; 2]);
    }
    assert_eq!(check(&Proof { vm: referrer(Some(NEW)), ..proof() }), [Kept, Gone]);
    assert_eq!(check(&Proof { vm: referrer(Some(NAME)), ..proof() }), [Kept, Kept]);
}

#[test]
fn a_virtual_machine_keeps_its_addresses_while_the_machine_or_a_reader_of_its_secrets_exists() {
    use Check::{Gone, Kept};
    let proof = || Proof { holder: holder("v-1"), ..proof() };
    check(&[
        ("nothing", proof(), Gone),
        ("the holder", Proof { vm: referrer(Some(NAME)), ..proof() }, Kept),
        ("the holder with another reference", Proof { vm: referrer(Some(NEW)), ..proof() }, Kept),
        ("the holder without a reference", Proof { vm: referrer(None), ..proof() }, Kept),
        ("a later VirtualMachine", Proof { vm: next_vm(Some(NEW)), ..proof() }, Gone),
        ("a later VirtualMachine with its reference", Proof { vm: next_vm(Some(NAME)), ..proof() }, Gone),
        (
            "a guest of a later VirtualMachine with its reference",
            Proof { vm: next_vm(Some(NAME)), instance: next_instance(Some(NAME)), ..proof() },
            Kept,
        ),
        (
            "an orphan that reads its Secret",
            Proof { instance: orphan(Some(NAME)), vm: next_vm(Some(NEW)), ..proof() },
            Kept,
        ),
        ("a guest of its own without network data", Proof { instance: own_instance(None), ..proof() }, Kept),
        (
            "a guest of a later VirtualMachine without network data",
            Proof { instance: next_instance(None), vm: next_vm(None), ..proof() },
            Gone,
        ),
        (
            "an adopted orphan without network data",
            Proof { instance: adopted(None), vm: next_vm(None), ..proof() },
            Kept,
        ),
    ]);
}

#[test]
fn a_lease_without_names_of_secrets_is_kept_while_a_guest_may_read_a_secret_of_its_holder() {
    use Check::{Gone, Kept};
    for holder in [holder("m-1"), holder("v-1")] {
        let proof = || Proof { holder: holder.clone(), secrets: BTreeSet::new(), ..proof() };
        let next = || Proof { machine: next_machine(), vm: next_vm(Some(NEW)), ..proof() };
        check(&[
            ("nothing", proof(), Gone),
            ("a reference", Proof { vm: referrer(Some(NAME)), ..proof() }, Kept),
            ("a guest", Proof { instance: own_instance(Some(NAME)), ..proof() }, Kept),
            ("an orphan", Proof { instance: orphan(Some(NAME)), ..proof() }, Kept),
            ("a later machine", next(), Gone),
            ("a guest of a later machine", Proof { instance: next_instance(Some(NEW)), ..next() }, Gone),
            ("an orphan without network data", Proof { instance: orphan(None), ..next() }, Kept),
            (
                "an orphan with the Secret of another holder",
                Proof { instance: orphan(Some(EARLIER)), of_others: names([EARLIER]), ..proof() },
                Gone,
            ),
        ]);
    }
}

#[test]
fn a_lease_without_secret_names_is_kept_while_an_object_older_than_the_kubevirt_machine_exists() {
    let proof = || Proof { secrets: BTreeSet::new(), machine: next_machine(), ..proof() };
    check(&[
        ("a reference", Proof { vm: referrer(Some(NAME)), ..proof() }, Check::Kept),
        ("an orphan", Proof { instance: orphan(Some(NAME)), ..proof() }, Check::Kept),
        (
            "a guest without network data",
            Proof { instance: own_instance(None), vm: referrer(None), ..proof() },
            Check::Kept,
        ),
    ]);
}

#[test]
fn a_lease_of_version_0_2_0_is_kept_while_an_object_refers_to_the_secret_of_this_version() {
    use Check::{Gone, Kept};
    let proof = || Proof { secrets: names([OF_0_2_0]), ..proof() };
    check(&[
        ("a reference", Proof { vm: referrer(Some(OF_0_2_0)), ..proof() }, Kept),
        ("a reference of a later VirtualMachine", Proof { vm: next_vm(Some(OF_0_2_0)), ..proof() }, Kept),
        ("a guest", Proof { instance: own_instance(Some(OF_0_2_0)), vm: next_vm(Some(NEW)), ..proof() }, Kept),
        ("a VirtualMachine that may be its own", Proof { vm: next_vm(Some(NEW)), ..proof() }, Kept),
        ("a later VirtualMachine", Proof { machine: next_machine(), vm: next_vm(Some(NEW)), ..proof() }, Gone),
    ]);
}

#[test]
fn a_holder_in_another_namespace_keeps_its_addresses_until_virtual_machine_and_guest_are_gone() {
    use Check::{Gone, Kept};
    let proof = || Proof { holder: earlier(), is_earlier: true, secrets: names([OF_0_2_0]), ..proof() };
    let of_name = Some(machine(&json!({})));
    check(&[
        ("nothing", proof(), Gone),
        ("a KubevirtMachine of the name", Proof { machine: of_name.clone(), ..proof() }, Gone),
        ("the VirtualMachine", Proof { machine: of_name, vm: Some(vm(&of_earlier())), ..proof() }, Kept),
        ("a VirtualMachine with another reference", Proof { vm: next_vm(Some(NEW)), ..proof() }, Kept),
        ("an orphan", Proof { instance: orphan(Some(OF_0_2_0)), ..proof() }, Kept),
        (
            "an orphan with the Secret of another holder",
            Proof { instance: orphan(Some(NEW)), of_others: names([NEW]), ..proof() },
            Gone,
        ),
    ]);
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
fn a_machine_keeps_its_address_when_its_virtual_machine_requests_another_address() {
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
    assert_eq!(problem(r#"{"iface1": ["10.0.0.9/24"]}"#), at(r#"wrong prefix length "10.0.0.9/24", expected /16"#));
    let second = r#"second address "10.0.0.8", expected at most one address of each family for an interface"#;
    assert_eq!(problem(r#"{"iface1": ["10.0.0.9", "10.0.0.8"]}"#), at(second));
}

#[test]
fn a_machine_whose_address_is_not_available_stays_in_the_wait_queue_and_tries_again() {
    let named = "10.0.0.9".parse().unwrap();
    let error = ClaimError::Reserved { named, pool: "n/p".to_owned(), why: None };
    let mut view = View { problem: Some(Problem::Refused(error)), ..view() };
    view.ledger.waiting = [holder("m-1")].into();
    let reserved = |at: &str| format!("{at}: 10.0.0.9: reserved in pool \"n/p\", expected a free address of the pool");
    assert_eq!(decide(&view), report("IPAddressUnavailable", &reserved("spec.preAllocations of the pool")));
    assert!(view.waits_for_address());
    let requesting = View { vm: requesting(r#"{"iface1": ["10.0.0.9"]}"#).vm, ..view };
    let expected = reserved("annotation network.kubevirt.io/addresses");
    assert_eq!(decide(&requesting), report("IPAddressUnavailable", &expected));
    // For this interface, the annotation requests another address, and `preAllocations` of the pool has the address of
    // the error. For another interface, the annotation requests the address of the error.
    let mut keeping =
        View { vm: self::requesting(r#"{"iface1": ["fd00::9"], "other": ["10.0.0.9"]}"#).vm, ..requesting };
    let spec = json!({"network": "infra/vlan10", "addresses": ["10.0.0.0/16"], "preAllocations": {"w": "10.0.0.9"}});
    let spec: crate::kinds::pool::PoolSpec = serde_json::from_value(spec).unwrap();
    keeping.ledger.pools = [("n/p".to_owned(), spec.check(Some("n"), "p").0.unwrap())].into();
    let expected = reserved("spec.preAllocations of pool n/p");
    assert_eq!(decide(&keeping), report("IPAddressUnavailable", &expected));
    let taken = ClaimError::Taken { named, by: Box::new(allocation("m-2").claimant) };
    keeping.problem = Some(Problem::Refused(taken));
    let expected =
        "spec.preAllocations of pool n/p: 10.0.0.9: taken by eno101 of n/w (m-2), expected a free address of the pool";
    assert_eq!(decide(&keeping), report("IPAddressUnavailable", expected));
}

/// Creates a view of a machine without a Secret. The addresses of its pool `n/p` come from the source `from`.
fn from_source(from: &Value) -> View {
    let spec = json!({
        "network": "infra/vlan10", "addressesFrom": from, "gateway": ["10.0.0.1"], "machineSelector": {},
        "machineNetwork": [{"cidr": "10.0.0.0/16"}],
    });
    let spec: crate::kinds::pool::PoolSpec = serde_json::from_value(spec).unwrap();
    let pool = spec.check(Some("n"), "p").0.unwrap();
    let wishes = PoolSettings { source: Source::of(&spec, &pool.settings().gateways), ..PoolSettings::default() };
    let mut view = View { pools: [("n/p".to_owned(), wishes)].into(), ..view() };
    view.ledger.pools = [("n/p".to_owned(), pool)].into();
    view.kinds.claims = Some(Version::V1Beta2);
    view.kinds.has_ipam_claims = true;
    view
}

/// Creates a view with IPAMClaim `n/w.iface1`, and merges `changes` into the claim.
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

/// Creates a view with an IPAddressClaim and its IPAddress. Merges `changes` into the IPAddress.
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
fn the_address_of_an_ipam_claim_is_recorded_before_the_secret_is_created() {
    let given = json!({"status": {"ips": ["10.0.0.8/24"]}});
    assert_eq!(decide(&with_ipam_claim(&given)), hold("IPAMClaim n/w.iface1"));
    let mut view = with_ipam_claim(&given);
    view.ledger.held = vec![held("m-1", "10.0.0.8")];
    view.ledger.known = [holder("m-1")].into();
    assert_eq!(decide(&view), claim("m-1", FIRST));
    view.granted = granted("m-1");
    let Step::CreateSecret(secret, ..) = decide(&view) else { panic!("{:?}", decide(&view)) };
    let document: Value = serde_json::from_slice(&secret.data.unwrap()["networkdata"].0).unwrap();
    assert_eq!(document["networks"][0]["ip_address"], "10.0.0.8");
    assert_eq!(document["networks"][0]["netmask"], "255.255.0.0");
    assert_eq!(document["networks"][0]["routes"][0]["gateway"], "10.0.0.1");
}

#[test]
fn a_machine_that_waits_for_its_ipam_claim_reports_what_is_missing() {
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
    waits(owner("v-0"), "it belongs to an earlier VirtualMachine");
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
fn a_machine_is_refused_if_its_source_gives_an_address_that_no_guest_can_use() {
    let refused = |text: &str, problem: &str| {
        let view = with_ipam_claim(&json!({"status": {"ips": [text]}}));
        assert_eq!(decide(&view), report("NetworkDataMissing", &format!("IPAMClaim n/w.iface1: {problem}")));
    };
    refused("x", "address: invalid address \"x\", expected an IPv4 or IPv6 address");
    refused("10.9.0.8/24", "10.9.0.8 is outside the machine network 10.0.0.0/16");
    refused("fd00::8", "fd00::8 has no prefix length, expected one, or machineNetwork in the pool");
}

#[test]
fn a_source_that_gives_the_address_of_another_machine_is_reported_and_asked_again() {
    let mut view = with_ipam_claim(&json!({"status": {"ips": ["10.0.0.8/24"]}}));
    let by =
        Claimant { machine: key().holder(HolderKind::KubevirtMachine, "m-9"), interface: "eno101".parse().unwrap() };
    view.problem = Some(Problem::Refused(ClaimError::Taken { named: "10.0.0.8".parse().unwrap(), by: Box::new(by) }));
    let note = "IPAMClaim n/w.iface1: 10.0.0.8: taken by eno101 of n/w (m-9)";
    assert_eq!(decide(&view), report("IPAddressConflict", note));
    let notice = Notice { is_warning: true, reason: "IPAddressConflict", note: note.to_owned() };
    view.memory.notice = Some(notice);
    view.done.insert(Once::AnnotateWaiting);
    assert_eq!((decide(&view), view.is_disputed()), (Step::Wait, true));
}

#[test]
fn a_new_address_of_a_source_is_used_only_before_a_guest_has_started() {
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
    let note = "IPAMClaim n/w.iface1: 10.0.0.8, expected 10.0.0.7, which the guest may use";
    view.instance = Some(instance(&running()));
    assert_eq!(decide(&view), report("IPAddressConflict", note));
    view.ledger.held[0].secrets = names([EARLIER]);
    view.instance = Some(reading(Some(EARLIER), &json!({"status": {"phase": "Scheduling"}})));
    view.secrets.insert(EARLIER.to_owned(), NetworkSecret::Absent);
    assert_eq!(decide(&view), report("IPAddressConflict", note), "it waits for no Secret");
    // No instance exists, but a guest may still start with 10.0.0.7 from an earlier Secret.
    view.instance = None;
    assert_eq!(decide(&view), Step::DropSecrets(Box::new(holder("m-1")), names([EARLIER]), names([])));
    view.done.insert(Once::DropSecrets);
    assert_eq!(decide(&view), keep());
}

#[test]
fn a_source_that_contradicts_the_secret_is_reported_and_the_secret_stays() {
    let mut view = with_ipam_claim(&json!({"status": {"ips": ["10.0.0.9/24"]}}));
    let View { secrets, ledger, .. } = served();
    view.secrets = secrets;
    view.ledger = Recorded { pools: view.ledger.pools, ..ledger };
    view.done.extend([Once::Annotate, Once::PatchStatus]);
    let note = "IPAMClaim n/w.iface1: 10.0.0.9, expected 10.0.0.8, which the machine holds; the guest keeps the \
                address of its Secret";
    assert_eq!(decide(&view), report("IPAddressConflict", note));
    let of_ending = View { selected: Ok(vec![]), kept: vec![selected()], ..view };
    assert_eq!(decide(&of_ending), report("IPAddressConflict", note));
}

#[test]
fn a_source_that_no_longer_has_the_address_of_the_secret_is_reported() {
    let reported = |mut view: View, note: &str| {
        let View { secrets, ledger, .. } = served();
        view.secrets = secrets;
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
    let note = "IPAddressClaim n/w-eno101: it belongs to InClusterIPPool y, expected InClusterIPPool x";
    assert_eq!(decide(&with_address_claim("m-1", &other)), report("IPAddressConflict", note));
    let given = with_address_claim("m-1", &json!({"status": {"addressRef": {"name": "a"}}}));
    assert_eq!(decide(&given), Step::ReadAddress("a".to_owned()));
}

#[test]
fn the_ipaddress_of_another_provider_gets_a_finalizer_then_a_lease_then_a_secret() {
    let patch = json!({"metadata": {"resourceVersion": "9", "finalizers": ["x/protect", "ipam.glowplug.dev/in-use"]}});
    let unprotected = with_address(&json!({"metadata": {"finalizers": ["x/protect"]}}));
    assert_eq!(decide(&unprotected), Step::PatchAddress("a".to_owned(), patch));
    assert_eq!(decide(&with_address(&json!({}))), hold("IPAddress n/a"));
    let mut view = with_address(&json!({}));
    view.ledger.held = vec![held("m-1", "10.0.0.8")];
    view.granted = granted("m-1");
    let Step::CreateSecret(secret, ..) = decide(&view) else { panic!("{:?}", decide(&view)) };
    let document: Value = serde_json::from_slice(&secret.data.unwrap()["networkdata"].0).unwrap();
    assert_eq!(document["networks"][0]["routes"][0]["gateway"], "10.0.0.2");
    let refused = |changes: Value, problem: &str| {
        let note = format!("IPAddress n/a: {problem}");
        assert_eq!(decide(&with_address(&changes)), report("NetworkDataMissing", &note));
    };
    let other = with_address(&json!({"spec": {"claimRef": {"name": "other"}}}));
    assert_eq!(
        decide(&other),
        report("IPAddressConflict", "IPAddress n/a: it belongs to claim other, expected w-eno101")
    );
    let other = with_address(&json!({"spec": {"poolRef": {"name": "q"}}}));
    assert_eq!(
        decide(&other),
        report("IPAddressConflict", "IPAddress n/a: it belongs to InClusterIPPool q, expected InClusterIPPool x")
    );
    refused(
        json!({"spec": {"prefix": 24}}),
        "10.0.0.8 has prefix length 24, expected the prefix length of 10.0.0.0/16",
    );
    refused(json!({"spec": {"gateway": "x"}}), "gateway: invalid address \"x\", expected an IPv4 or IPv6 address");
    refused(json!({"spec": {"gateway": "10.0.0.8"}}), "10.0.0.8 is also the gateway, expected another address");
    refused(json!({"spec": {"prefix": "x"}}), "invalid type: string \"x\", expected i64");
}

#[test]
fn the_claim_of_an_earlier_machine_ends_before_the_next_machine_claims() {
    let earlier = || with_address_claim("m-0", &json!({}));
    assert_eq!(decide(&earlier()), Step::Prove(holder("m-0")));
    let waits = View { checked: checked(&[holder("m-0")]), ..earlier() };
    let note = "Waiting for IPAddressClaim n/w-eno101: it belongs to an earlier machine, n/w (m-0)";
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
fn claims_for_interfaces_that_no_pool_serves_end_after_everything_else_one_after_another() {
    let invented = |at: usize| {
        let machine = json!({"namespace": "n", "name": "w", "uid": format!("invented-{at}")});
        let note = json!({"kind": "VirtualMachine", "machine": machine, "interface": format!("a{at}")});
        let annotations = json!({"ipam.glowplug.dev/claimant": note.to_string()});
        let metadata = json!({"namespace": "n", "name": format!("w-a{at}"), "uid": "c", "annotations": annotations});
        MachineClaim::read(merged(json!({"metadata": metadata}), &json!({}))).unwrap()
    };
    let claims: Vec<MachineClaim> = (0..40).map(invented).collect();
    let mut view = view();
    view.sources.claims = claims.clone();
    assert_eq!(decide(&view), claim("m-1", FIRST), "the machine gets its network data first");
    view = settled();
    view.sources.claims = claims;
    view.done.insert(Once::AnnotateWaiting);
    for at in 0..40 {
        let holder = view.sources.claims[0].claimant.machine.clone();
        assert_eq!(decide(&view), Step::Prove(holder.clone()));
        view.checked.insert(holder, Check::Gone);
        let name = format!("w-a{at}");
        assert_eq!(decide(&view), Step::ReadAddress(name.clone()));
        view.addresses.insert(name.clone(), None);
        assert_eq!(decide(&view), Step::DeleteClaim(name, "c".to_owned()));
        view.sources.claims.remove(0);
    }
    assert_eq!(decide(&view), Step::Wait);
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

#[test]
fn a_record_ends_when_no_object_has_it_and_no_guest_has_other_network_data() {
    let noted = || -> BTreeMap<Machine, BTreeSet<(String, IpAddr)>> {
        [(holder("m-1"), ["10.0.0.8", "10.0.0.9"].map(|it| ("infra/vlan10".to_owned(), it.parse().unwrap())).into())]
            .into()
    };
    let view = |instance: Option<Instance>| {
        let mut view = View { instance, ..settled() };
        view.ledger.unrecorded = noted();
        view
    };
    // The Secret has the first address.
    let mut expected = noted();
    expected.get_mut(&holder("m-1")).unwrap().retain(|(_, address)| address.to_string() == "10.0.0.9");
    let ended = json!({"status": {"phase": "Succeeded"}});
    for guest in [None, Some(instance(&running())), Some(instance(&ended))] {
        let mut view = view(guest);
        // The watch can report a guest late, so the pass first reads the instance.
        assert_eq!(decide(&view), Step::ReadInstance);
        view.done.insert(Once::ReadInstance);
        assert_eq!(decide(&view), Step::EndRecords(expected.clone()));
        view.done.insert(Once::EndRecords);
        assert!(!matches!(decide(&view), Step::EndRecords(_)));
    }
    // A guest that starts or runs with other network data may have the address.
    for guest in [running(), json!({"status": {"phase": "Scheduling"}})] {
        for secret in [None, Some(EARLIER)] {
            let mut view = view(Some(reading(secret, &guest)));
            view.done.insert(Once::ReadInstance);
            assert!(!matches!(decide(&view), Step::EndRecords(_)), "{secret:?}, {guest}");
        }
    }
}

#[test]
fn a_record_ends_when_the_source_no_longer_gives_its_address() {
    let mut view = with_ipam_claim(&json!({"status": {"ips": []}}));
    let noted = BTreeMap::from([(holder("m-1"), [("infra/vlan10".to_owned(), "10.0.0.8".parse().unwrap())].into())]);
    view.ledger.unrecorded = noted.clone();
    assert_eq!(decide(&view), Step::ReadInstance);
    view.done.insert(Once::ReadInstance);
    assert_eq!(decide(&view), Step::EndRecords(noted));
    view.done.insert(Once::EndRecords);
    assert!(!matches!(decide(&view), Step::EndRecords(_)));
}

#[test]
fn a_record_does_not_end_while_the_source_of_a_pool_that_is_being_deleted_gives_its_address() {
    let mut view = with_ipam_claim(&json!({"status": {"ips": []}}));
    view.vm = Some(vm(&on(&[("iface1", 101, "infra/vlan10"), ("iface2", 102, "infra/vlan20")])));
    view.kept = vec![second()];
    view.pools.insert("n/p2".to_owned(), view.pools["n/p"].clone());
    let metadata = json!({"namespace": "n", "name": "w.iface2"});
    let claim = json!({"metadata": metadata, "status": {"ips": ["10.0.1.8/16", "fd00::8/64"]}});
    view.sources.ipam_claims.insert("w.iface2".to_owned(), IpamClaim::read(merged(claim, &json!({}))));
    view.ledger.held = vec![held_by_second()];
    view.ledger.known = [holder("m-1")].into();
    let noted = [("infra/vlan20".to_owned(), "fd00::8".parse().unwrap())].into();
    view.ledger.unrecorded = BTreeMap::from([(holder("m-1"), noted)]);
    assert_eq!(decide(&view), pending("Waiting for IPAMClaim n/w.iface1: it has no address yet"));
}

#[test]
fn a_contradicting_record_whose_address_is_reserved_is_reported_once() {
    let mut objects = Objects::default();
    let annotated = |kind: &str, addresses: &str| {
        let owner = json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": "w", "uid": "v-1"});
        let key = format!("{ANNOTATION_PREFIX}eno101");
        json!({"apiVersion": "kubevirt.io/v1", "kind": kind, "metadata": {
            "namespace": "n", "name": "w", "uid": "v-1", "annotations": {(key): addresses},
            "ownerReferences": if kind == "VirtualMachine" { json!([]) } else { json!([owner]) },
        }})
    };
    for (kind, addresses) in [("VirtualMachine", "10.0.0.8/16"), ("VirtualMachineInstance", "10.0.0.9/16")] {
        read_records(&mut objects, kind, &serde_json::from_value(annotated(kind, addresses)).unwrap());
    }
    let mut view = View { doubts: objects.inventory().diagnostics, ..settled() };
    view.done.insert(Once::AnnotateWaiting);
    let expected: BTreeSet<String> = view.doubts.iter().map(ToString::to_string).collect();
    assert_eq!((expected.len(), &view.doubts[0].addresses[..]), (1, &["10.0.0.9".parse::<IpAddr>().unwrap()][..]));
    assert_eq!(decide(&view), Step::ReportDoubts(expected.clone()));
    let mut index = KnownMachines::default();
    index.remember(&key(), |memory| memory.doubts = expected);
    view.memory = index.memory(&key());
    assert_eq!(decide(&view), Step::Wait);
    // After the end of the record, the controller forgets its event, so a new record of the same content gets an event again.
    view.doubts.clear();
    assert_eq!(decide(&view), Step::ReportDoubts(BTreeSet::new()));
}
