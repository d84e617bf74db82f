use k8s_openapi::api::core::v1::Secret;
use serde_json::{Value, json};

use super::*;
use crate::index::PoolId;

fn key() -> Key {
    Key { namespace: "n".to_owned(), name: "w".to_owned() }
}

fn merged(mut object: Value, changes: &Value) -> kube::api::DynamicObject {
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
    key().holder(uid)
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
    Held { claimant, network: "infra/vlan10".to_owned(), address: address.parse().unwrap() }
}

fn allocation(uid: &str) -> Allocation {
    let claimant = Claimant { machine: holder(uid), interface: "eno101".parse().unwrap() };
    Allocation { claimant, addresses: vec!["10.0.0.8/16".parse().unwrap()] }
}

/// Creates a view with a VirtualMachine and its KubevirtMachine, without a Secret.
fn view() -> View {
    View {
        key: key(),
        vm: Some(vm(&json!({}))),
        machine: Some(machine(&json!({}))),
        instance: None,
        there: ["m-1".to_owned()].into(),
        has_machines: true,
        has_status_map: true,
        is_machine_read: true,
        selected: Ok(vec![selected()]),
        operations: Vec::new(),
        pools: BTreeMap::new(),
        is_exhausted: false,
        secret: Some(NetworkSecret::Absent),
        other_addresses: None,
        ledger: Recorded { pools: [("n/p".to_owned(), pool())].into(), ..Recorded::default() },
        memory: Memory::default(),
        granted: None,
        problem: None,
        is_adopted: false,
        proven: BTreeSet::new(),
        written: Written::default(),
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
        uid: "s-1".to_owned(),
        vm: vm.to_owned(),
        machine: holder(machine),
        kind: HolderKind::KubevirtMachine,
        interfaces: vec![handed],
    })
}

/// Creates a view of a machine with its Secret and its lease.
fn served() -> View {
    let mut view = View { secret: Some(hand_out("m-1", "v-1")), ..view() };
    view.ledger.held = vec![held("m-1", "10.0.0.8")];
    view.ledger.known = [(holder("m-1"), HolderKind::KubevirtMachine)].into();
    view
}

fn claim(uid: &str, kind: HolderKind, second: i64) -> Step {
    let created = Timestamp::from_second(second).unwrap();
    let requests = vec![Request::of("n/p")];
    Step::Claim(Claim { machine: holder(uid), created, requests, sticky: kind == HolderKind::VirtualMachine }, kind)
}

/// Creation time of the KubevirtMachine, in seconds since 1970: 2026-08-01T10:00:01Z.
const FIRST: i64 = 1_785_578_401;

fn report(reason: &'static str, note: &str) -> Step {
    Step::Report(Notice { is_warning: true, reason, note: note.to_owned() })
}

#[test]
fn a_machine_is_looked_for_before_anything_is_claimed_for_it() {
    assert_eq!(decide(&View { secret: None, ..view() }), Step::ReadSecret);
    assert_eq!(decide(&View { is_machine_read: false, ..view() }), Step::ReadMachine(key()));
    assert_eq!(decide(&View { is_machine_read: false, machine: None, ..view() }), Step::ReadMachine(key()));
    assert_eq!(decide(&view()), claim("m-1", HolderKind::KubevirtMachine, FIRST));
}

#[test]
fn a_virtual_machine_of_no_pool_gets_nothing() {
    let other = json!({"spec": {"template": {"spec": {"volumes": []}}}});
    assert_eq!(decide(&View { selected: Ok(Vec::new()), vm: Some(vm(&other)), ..view() }), Step::Wait);
    assert_eq!(decide(&View { selected: Ok(Vec::new()), ..view() }), Step::Wait, "its Secret is of somebody else");
    let note = "Secret \"w-networkdata\" does not exist, and no pool selects the machine";
    let held = View { selected: Ok(Vec::new()), secret: Some(NetworkSecret::Absent), ..served() };
    assert_eq!(decide(&held), report("NetworkDataMissing", note));
}

#[test]
fn a_virtual_machine_without_a_kubevirt_machine_claims_for_itself() {
    let alone = View { machine: None, there: BTreeSet::new(), ..view() };
    let itself = claim("v-1", HolderKind::VirtualMachine, FIRST + 1);
    assert_eq!(decide(&alone), itself, "the KubevirtMachine is in another cluster");
    assert_eq!(decide(&View { has_machines: false, ..alone.clone() }), itself, "the cluster has none");
    let unlabelled = vm(&json!({"metadata": {"labels": null}}));
    assert_eq!(decide(&View { vm: Some(unlabelled), ..view() }), itself, "it is of nobody");
    // capk creates another VirtualMachine, in namespace `infra`, for this machine.
    let elsewhere = machine(&json!({"spec": {"virtualMachineTemplate": {"metadata": {"namespace": "infra"}}}}));
    assert_eq!(decide(&View { machine: Some(elsewhere), ..view() }), itself, "the labels are wrong");
}

#[test]
fn the_guest_of_a_kubevirt_machine_that_is_gone_claims_nothing_more() {
    let mut left = View { machine: None, there: BTreeSet::new(), proven: [holder("m-1")].into(), ..view() };
    left.ledger.known = [(holder("m-1"), HolderKind::KubevirtMachine)].into();
    assert_eq!(decide(&left), Step::Wait);
}

#[test]
fn a_kubevirt_machine_that_is_being_deleted_claims_nothing() {
    let deleted = machine(&json!({"metadata": {"deletionTimestamp": "2026-08-01T11:00:00Z"}}));
    assert_eq!(decide(&View { machine: Some(deleted), ..view() }), Step::Wait);
}

#[test]
fn the_secret_has_the_addresses_the_mac_address_and_the_settings_of_the_pool() {
    let Step::CreateSecret(secret, _) = decide(&View { granted: Some(vec![allocation("m-1")]), ..view() }) else {
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
fn the_addresses_of_a_virtual_machine_are_not_handed_out_to_its_successor() {
    let unlabelled = json!({"metadata": {"labels": null, "uid": "v-2"}});
    let view = View { vm: Some(vm(&unlabelled)), granted: Some(vec![allocation("v-1")]), ..view() };
    assert_eq!(decide(&view), claim("v-2", HolderKind::VirtualMachine, FIRST + 1));
}

#[test]
fn a_no_cloud_volume_gets_network_config() {
    let source = json!({"networkDataSecretRef": {"name": "w-networkdata"}});
    let volumes = json!([{"name": "cloudinitvolume", "cloudInitNoCloud": source}]);
    let no_cloud = vm(&json!({"spec": {"template": {"spec": {"volumes": volumes}}}}));
    let view = View { vm: Some(no_cloud), granted: Some(vec![allocation("m-1")]), ..view() };
    let Step::CreateSecret(secret, _) = decide(&view) else { panic!() };
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
    let template = |text: &str| PoolSettings { is_sticky: false, template: Some(text.to_owned()) };
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
    assert_eq!(decide(&view), Step::Keep(claimant, vec!["10.0.0.8".parse().unwrap()]));
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
    let adopt = Step::Adopt(vec![record], HolderKind::KubevirtMachine);
    assert_eq!(decide(&view), adopt);
    view.secret = Some(hand_out("m-1", "v-0"));
    assert_eq!(decide(&view), adopt, "also from the Secret of an earlier VirtualMachine");
    view.problem = Some(Problem::Mismatch("it is of another".to_owned()));
    assert_eq!(decide(&view), Step::Prove(holder("m-1"), HolderKind::KubevirtMachine), "no guest may read it");
    view.secret = Some(hand_out("m-1", "v-1"));
    assert_eq!(decide(&view), report("IPAddressConflict", "it is of another"));
}

#[test]
fn the_secret_of_an_earlier_virtual_machine_goes_only_after_a_consistent_read() {
    let view = View { secret: Some(hand_out("m-1", "v-0")), ..served() };
    assert_eq!(decide(&view), Step::Prove(holder("m-1"), HolderKind::KubevirtMachine));
}

#[test]
fn a_secret_of_another_author_is_never_replaced_and_its_addresses_are_reserved() {
    let foreign = NetworkSecret::Foreign("no annotation".to_owned(), vec!["10.0.0.9".parse().unwrap()]);
    let mut view = View { secret: Some(foreign), ..view() };
    let claimant = Claimant { machine: holder("v-1"), interface: "eno101".parse().unwrap() };
    let conflict = Conflict { claimant, source: "Secret n/w-networkdata".to_owned() };
    let conflicts = vec![("10.0.0.9".parse().unwrap(), Some("infra/vlan10".to_owned()), conflict)];
    assert_eq!(decide(&view), Step::AddConflicts(conflicts, HolderKind::VirtualMachine, None));
    view.written.conflicts = true;
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
    view.written.retry = true;
    assert_eq!(decide(&view), Step::Wait);
    assert_eq!(decide(&View { is_exhausted: true, written: Written::default(), ..view }), Step::Wait);
}

#[test]
fn a_holder_is_looked_for_when_its_machine_is_not_there_or_ends() {
    let prove = Step::Prove(holder("m-1"), HolderKind::KubevirtMachine);
    let gone = View { there: BTreeSet::new(), machine: None, ..served() };
    assert_eq!(decide(&gone), prove);
    let mut ending = served();
    ending.vm = Some(vm(&json!({"metadata": {"deletionTimestamp": "2026-08-01T11:00:00Z"}})));
    assert_eq!(decide(&ending), prove);
    ending.memory.stripped = [holder("m-1")].into();
    assert_eq!(decide(&ending), Step::Wait);
}

// === Proof that a machine is gone ===

fn guest() -> Guest {
    Guest { key: key(), secret: NetworkSecret::Absent, vm: None, instance: None, is_stripped: false }
}

/// Returns the verdict on the holder `m-1`, a KubevirtMachine that holds 10.0.0.8.
fn verdict(machine: Option<KubevirtMachine>, guest: Guest) -> Verdict {
    let held = vec!["10.0.0.8".parse().unwrap()];
    Proof { holder: holder("m-1"), kind: HolderKind::KubevirtMachine, held, guests: vec![guest], machine }.verdict()
}

fn kept(is_stripped: bool) -> Verdict {
    Verdict::Kept(is_stripped.then(key).into_iter().collect())
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
    assert_eq!(verdict(Some(machine(&json!({}))), guest()), kept(true));
}

#[test]
fn a_virtual_machine_or_an_instance_keeps_the_addresses_after_the_kubevirt_machine() {
    let ends = vm(&json!({"metadata": {"deletionTimestamp": "2026-08-01T11:00:00Z"}}));
    assert_eq!(verdict(None, Guest { vm: Some(ends), ..guest() }), kept(true));
    assert_eq!(verdict(None, Guest { instance: Some(instance(&json!({}))), ..guest() }), kept(true));
}

#[test]
fn the_secret_goes_first() {
    let strip = Verdict::Strip(key(), "s-1".to_owned());
    let secret = || hand_out("m-1", "v-1");
    assert_eq!(verdict(None, Guest { secret: secret(), ..guest() }), strip);
    let running = Guest { secret: secret(), vm: Some(vm(&json!({}))), ..guest() };
    assert_eq!(verdict(None, running.clone()), kept(false), "the guest may start again");
    let ends = json!({"metadata": {"deletionTimestamp": "2026-08-01T11:00:00Z"}});
    assert_eq!(verdict(None, Guest { vm: Some(vm(&ends)), ..running.clone() }), strip);
    let mut orphans = ends.clone();
    orphans["metadata"]["finalizers"] = json!(["orphan"]);
    assert_eq!(verdict(None, Guest { vm: Some(vm(&orphans)), ..running }), kept(false), "the guest may migrate");
    let (_, next) = successor();
    assert_eq!(verdict(Some(machine(&json!({}))), Guest { secret: secret(), vm: next, ..guest() }), strip);
}

#[test]
fn a_secret_of_another_author_with_the_address_keeps_the_address() {
    let secret = NetworkSecret::Foreign("no annotation".to_owned(), vec!["10.0.0.8".parse().unwrap()]);
    assert_eq!(verdict(None, Guest { secret, ..guest() }), kept(false));
}

#[test]
fn a_successor_does_not_keep_the_addresses() {
    let (machine, vm) = successor();
    assert_eq!(verdict(machine.clone(), Guest { vm: vm.clone(), ..guest() }), Verdict::Gone);
    let secret = hand_out("m-2", "v-2");
    assert_eq!(verdict(machine, Guest { vm, secret, ..guest() }), Verdict::Gone);
}

#[test]
fn a_guest_that_may_have_read_the_old_secret_keeps_the_addresses() {
    let (machine, vm) = successor();
    let started = json!({"metadata": {"creationTimestamp": "2026-08-01T10:30:03Z", "ownerReferences": [
        {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": "w", "uid": "v-2"},
    ]}});
    let guest = Guest { vm, instance: Some(instance(&started)), ..guest() };
    assert_eq!(verdict(machine.clone(), guest.clone()), kept(false));
    assert_eq!(verdict(machine, Guest { is_stripped: true, ..guest }), Verdict::Gone);
}

#[test]
fn an_instance_that_was_left_alone_keeps_the_addresses_although_another_takes_it_over() {
    let (machine, vm) = successor();
    let adopted = json!({"metadata": {"ownerReferences": [
        {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": "w", "uid": "v-2"},
    ]}});
    let guest = Guest { vm, instance: Some(instance(&adopted)), is_stripped: true, ..guest() };
    assert_eq!(verdict(machine, guest), kept(true));
}

#[test]
fn a_virtual_machine_that_is_older_than_the_kubevirt_machine_is_of_the_one_before() {
    let (machine, _) = successor();
    assert_eq!(verdict(machine, Guest { vm: Some(vm(&json!({}))), ..guest() }), kept(true));
}

fn requesting(addresses: &str) -> View {
    let annotations = json!({"network.kubevirt.io/addresses": addresses});
    View { vm: Some(vm(&json!({"spec": {"template": {"metadata": {"annotations": annotations}}}}))), ..view() }
}

#[test]
fn the_addresses_that_a_virtual_machine_requests_for_an_interface_are_claimed() {
    for text in [r#"{"iface1": ["10.0.0.9/16"], "other": ["192.168.1.9"]}"#, r#"{"iface1": ["10.0.0.9"]}"#] {
        let Step::Claim(claim, _) = decide(&requesting(text)) else { panic!() };
        let addresses = vec!["10.0.0.9".parse().unwrap()];
        assert_eq!(claim.requests, [Request { addresses, ..Request::of("n/p") }]);
    }
    let Step::Claim(claim, _) = decide(&requesting(r#"{"other": ["192.168.1.9"]}"#)) else { panic!() };
    assert_eq!(claim.requests, [Request::of("n/p")]);
}

#[test]
fn a_machine_keeps_the_address_that_it_holds_when_another_one_is_requested() {
    let mut view = requesting(r#"{"iface1": ["10.0.0.9"]}"#);
    view.ledger.held = vec![held("m-1", "10.0.0.8")];
    let Step::Claim(claim, _) = decide(&view) else { panic!() };
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
