use std::time::Duration;

use glowplug::host::claim::Lease;

use super::*;
use crate::cluster::key::key;
use crate::cluster::object::{Object, object};
use crate::macs::machine::Guest;
use crate::macs::migrated::{held, not_held, release};

const NOW: Timestamp = Timestamp::constant(1_786_700_000, 0);

/// Objects with the pool `p`, which has four addresses for the namespace `n`.
pub(in crate::macs) fn objects() -> Objects {
    let mut objects = Objects::default();
    objects.apply_pool(pool("p", "0a:00:00:00:00:00-0a:00:00:00:00:03", 1));
    objects
}

pub(in crate::macs) fn pool(name: &str, range: &str, version: u64) -> Object {
    object(json!({
        "metadata": {"name": name, "resourceVersion": version.to_string(), "generation": 1,
            "creationTimestamp": format!("2026-08-01T10:00:{version:02}Z")},
        "spec": {"ranges": [range], "namespaces": ["n"]},
    }))
}

/// A VirtualMachine with the label. `second` is the second of its creation. An empty address stands for an interface
/// without an address.
pub(in crate::macs) fn vm(name: &str, second: u64, interfaces: &[(&str, &str)]) -> Object {
    let interfaces: Vec<Value> =
        interfaces.iter().map(|(name, address)| json!({"name": name, "macAddress": address})).collect();
    object(json!({
        "metadata": {"namespace": "n", "name": name, "uid": format!("uid-{name}"), "resourceVersion": "5",
            "creationTimestamp": format!("2026-08-01T10:00:{second:02}Z")},
        "spec": {"template": {
            "metadata": {"labels": {"ipam.glowplug.dev/mac-addresses": "required"}},
            "spec": {"domain": {"devices": {"interfaces": interfaces}}},
        }},
    }))
}

/// An instance with one interface, which has this address and is on a network attachment definition.
fn guest(name: &str, address: &str) -> (Key, u64, Guest) {
    (key(name), 5, Guest::read(&instance(&[address])))
}

/// A running instance. It has one interface on a network attachment definition for each of these addresses.
pub(in crate::macs) fn instance(addresses: &[&str]) -> Object {
    let names: Vec<String> = (0..addresses.len()).map(|at| format!("net{at}")).collect();
    let interface = |(name, address): (&String, &&str)| json!({"name": name, "bridge": {}, "macAddress": address});
    let interfaces: Vec<Value> = names.iter().zip(addresses).map(interface).collect();
    let networks: Vec<Value> =
        names.iter().map(|name| json!({"name": name, "multus": {"networkName": "n/x"}})).collect();
    object(json!({
        "spec": {"domain": {"devices": {"interfaces": interfaces}}, "networks": networks},
        "status": {"phase": "Running"},
    }))
}

/// The lease of an address that the interface `a` of a machine holds, or held until `released`.
pub(in crate::macs) fn leased(address: &str, name: &str, released: Option<&str>) -> Object {
    let holder = json!({"kind": "VirtualMachine", "namespace": "n", "name": name, "uid": format!("uid-{name}"),
        "interface": "a"});
    let mut spec = json!({"network": "mac", "address": address, "prefix": 48, "pool": "p", "holder": holder,
        "since": "2026-08-01T10:00:00.000000Z"});
    if let Some(released) = released {
        spec["released"] = released.into();
    }
    let name = format!("{}.mac", address.replace(':', "-"));
    object(json!({"metadata": {"name": name, "resourceVersion": "7"}, "spec": spec}))
}

const RELEASED: Option<&str> = Some("2026-08-02T10:00:00.000000Z");

/// The actions of a plan, each as one line of text.
fn actions(objects: &Objects) -> Vec<String> {
    actions_at(objects, NOW)
}

fn actions_at(objects: &Objects, now: Timestamp) -> Vec<String> {
    let line = |action| match action {
        Action::Record { address, version, lease } => {
            let Holder { name, interface, .. } = &lease.holder;
            let over = version.map(|version| format!(" over {version}")).unwrap_or_default();
            format!("record {address} of {} for {name} {interface}{over}", lease.pool)
        }
        Action::Assign { key, addresses, .. } => format!("assign {} in {key}", addresses.join(", ")),
        Action::Hold { address, version, lease } => format!("hold {address} {version} of {}", lease.holder.name),
        Action::Prove { address, version, lease } => format!("prove {address} {version} of {}", lease.holder.name),
        Action::Delete { address, version, lease } => format!("delete {address} {version} of {}", lease.holder.name),
        Action::Report { pool, .. } => format!("report {pool}"),
    };
    objects.plan(now).actions.into_iter().map(line).collect()
}

/// The status of the pool `p` after a plan: total, free and used addresses, waiting machines, and the reasons of the
/// conditions.
fn status(objects: &Objects) -> ([i64; 3], u64, Vec<String>) {
    let status = &objects.plan(NOW).statuses["p"]["status"];
    let numbers = ["total", "free", "used"].map(|member| status[member].as_i64().unwrap());
    let reasons = status["conditions"].as_array().unwrap().iter().map(|it| it["reason"].as_str().unwrap().to_owned());
    (numbers, status["waiting"].as_u64().unwrap(), reasons.collect())
}

#[test]
fn an_interface_without_an_address_gets_a_lease_and_then_its_address() {
    let mut objects = objects();
    objects.apply_vm(&vm("w", 1, &[("a", ""), ("b", "52:54:00:00:00:01"), ("c", "")]));
    let expected = ["record 0a:00:00:00:00:00 of p for w a", "record 0a:00:00:00:00:01 of p for w c"];
    assert_eq!(actions(&objects), expected);
    objects.apply_lease(&leased("0a:00:00:00:00:00", "w", None));
    assert_eq!(actions(&objects), ["record 0a:00:00:00:00:01 of p for w c"]);
    let mut second = leased("0a:00:00:00:00:01", "w", None);
    second.data["spec"]["holder"]["interface"] = "c".into();
    objects.apply_lease(&second);
    assert_eq!(actions(&objects), ["assign 0a:00:00:00:00:00 to a, 0a:00:00:00:00:01 to c in n/w"]);
    let [Action::Assign { request, patch, .. }] = &objects.plan(NOW).actions[..] else { panic!("no patch") };
    let assigned = r#"{"a":"0a:00:00:00:00:00","c":"0a:00:00:00:00:01"}"#;
    let annotations = json!({"ipam.glowplug.dev/assigned-mac-addresses": assigned});
    let template = json!({"metadata": {"annotations": annotations}});
    assert_eq!(*request, json!({"metadata": {"uid": "uid-w", "resourceVersion": "5"}, "spec": {"template": template}}));
    let path = |index: usize| format!("/spec/template/spec/domain/devices/interfaces/{index}/macAddress");
    let expected = json!([
        {"op": "test", "path": "/metadata/resourceVersion", "value": "5"},
        {"op": "add", "path": path(0), "value": "0a:00:00:00:00:00"},
        {"op": "add", "path": path(2), "value": "0a:00:00:00:00:01"},
    ]);
    assert_eq!(*patch, expected);
}

#[test]
fn a_machine_without_the_label_or_of_another_namespace_gets_no_address() {
    let mut objects = objects();
    let mut without = vm("w", 1, &[("a", "")]);
    without.data["spec"]["template"]["metadata"] = json!({});
    objects.apply_vm(&without);
    let mut elsewhere = vm("x", 1, &[("a", "")]);
    elsewhere.metadata.namespace = Some("m".to_owned());
    objects.apply_vm(&elsewhere);
    let plan = objects.plan(NOW);
    assert_eq!(plan.actions, []);
    let note = "No MACPool serves the machine, and interface a has no MAC address".to_owned();
    let waiting = Key { namespace: "m".to_owned(), name: "x".to_owned() };
    assert_eq!(plan.waiting, [(waiting, ("MACAddressMissing", note))].into());
}

/// A VirtualMachine after its manifest was applied again: it has no label, and its interfaces have no address.
fn applied_again(name: &str, interfaces: &[&str]) -> Object {
    let interfaces: Vec<(&str, &str)> = interfaces.iter().map(|interface| (*interface, "")).collect();
    let mut vm = vm(name, 1, &interfaces);
    vm.data["spec"]["template"]["metadata"] = json!({});
    vm
}

#[test]
fn a_machine_that_lost_its_label_and_address_gets_the_held_address_again() {
    let mut objects = objects();
    objects.apply_vm(&applied_again("w", &["a"]));
    objects.apply_lease(&leased("0a:00:00:00:00:02", "w", None));
    assert_eq!(actions(&objects), ["assign 0a:00:00:00:00:02 to a in n/w"]);
    let [Action::Assign { request, .. }] = &objects.plan(NOW).actions[..] else { panic!("no patch") };
    let metadata = json!({
        "labels": {"ipam.glowplug.dev/mac-addresses": "required"},
        "annotations": {"ipam.glowplug.dev/assigned-mac-addresses": r#"{"a":"0a:00:00:00:00:02"}"#},
    });
    assert_eq!(request["spec"]["template"]["metadata"], metadata);
}

#[test]
fn a_machine_that_holds_two_addresses_gets_the_address_of_its_guest() {
    let mut objects = objects();
    objects.apply_vm(&applied_again("w", &["a"]));
    for address in ["0a:00:00:00:00:01", "0a:00:00:00:00:02"] {
        objects.apply_lease(&leased(address, "w", None));
    }
    assert_eq!(actions(&objects), ["assign 0a:00:00:00:00:01 to a in n/w"]);
    let (key, version, guest) = guest("w", "0a:00:00:00:00:02");
    objects.store_guest(key, version, guest);
    assert_eq!(actions(&objects), ["assign 0a:00:00:00:00:02 to a in n/w"]);
}

#[test]
fn a_machine_without_the_label_gets_only_a_held_address_of_its_interface_and_its_pool() {
    let mut objects = objects();
    objects.apply_lease(&leased("0a:00:00:00:00:02", "w", None));
    objects.apply_vm(&applied_again("w", &["b"]));
    assert_eq!(actions(&objects), [] as [&str; 0]);
    // The pool that serves the machine now does not have the held address.
    objects.apply_pool(pool("p", "0a:00:00:00:01:00-0a:00:00:00:01:03", 2));
    let mut vm = applied_again("w", &["a"]);
    vm.metadata.resource_version = Some("6".to_owned());
    objects.apply_vm(&vm);
    assert_eq!(actions(&objects), [] as [&str; 0]);
}

#[test]
fn an_invalid_address_is_not_replaced() {
    let mut objects = objects();
    objects.apply_vm(&vm("w", 1, &[("a", "01:00:5e:00:00:01")]));
    assert_eq!(actions(&objects), [] as [&str; 0]);
}

#[test]
fn an_address_that_a_machine_already_has_is_recorded_before_addresses_are_allocated() {
    let mut objects = objects();
    objects.apply_vm(&vm("new", 1, &[("a", "")]));
    objects.apply_vm(&vm("own", 2, &[("a", "0A:00:00:00:00:00")]));
    let expected = ["record 0a:00:00:00:00:00 of p for own a", "record 0a:00:00:00:00:01 of p for new a"];
    assert_eq!(actions(&objects), expected);
}

#[test]
fn an_address_in_groups_of_four_digits_is_not_allocated_to_another_machine() {
    let mut objects = objects();
    objects.apply_vm(&vm("own", 2, &[("a", "0A00.0000.0000")]));
    let (key, version, guest) = guest("other", "0a00.0000.0001");
    objects.store_guest(key, version, guest);
    objects.apply_vm(&vm("new", 1, &[("a", "")]));
    let expected = ["record 0a:00:00:00:00:00 of p for own a", "record 0a:00:00:00:00:02 of p for new a"];
    assert_eq!(actions(&objects), expected);
}

#[test]
fn an_address_that_only_a_guest_uses_is_not_allocated() {
    let mut objects = objects();
    let (key, version, guest) = guest("other", "0a:00:00:00:00:00");
    objects.store_guest(key, version, guest);
    objects.apply_vm(&vm("w", 1, &[("a", "")]));
    assert_eq!(actions(&objects), ["record 0a:00:00:00:00:01 of p for w a"]);
}

#[test]
fn an_address_of_a_lease_that_cannot_be_read_is_not_allocated() {
    let mut objects = objects();
    let mut damaged = leased("0a:00:00:00:00:00", "x", None);
    damaged.data["spec"]["holder"] = "x".into();
    objects.apply_lease(&damaged);
    objects.apply_vm(&vm("w", 1, &[("a", "")]));
    assert_eq!(actions(&objects), ["record 0a:00:00:00:00:01 of p for w a"]);
    let plan = objects.plan(Timestamp::UNIX_EPOCH);
    let conditions = plan.statuses["p"]["status"]["conditions"].as_array().unwrap();
    let condition = conditions.iter().find(|condition| condition["type"] == "UnreadableLeases").unwrap();
    let line = "0a:00:00:00:00:00: StaticIPLease 0a-00-00-00-00-00.mac cannot be read: spec: invalid type: string \"x\", expected struct Holder";
    assert_eq!((plan.unreadable, condition["message"].as_str().unwrap()), (1, line));
}

#[test]
fn a_machine_that_is_created_again_gets_the_last_address_of_its_name() {
    let mut objects = objects();
    objects.apply_lease(&leased("0a:00:00:00:00:02", "w", RELEASED));
    objects.apply_vm(&vm("w", 1, &[("a", "")]));
    assert_eq!(actions(&objects), ["record 0a:00:00:00:00:02 of p for w a over 7"]);
}

#[test]
fn a_released_address_is_free_for_other_machines() {
    let mut objects = objects();
    objects.apply_lease(&leased("0a:00:00:00:00:00", "x", RELEASED));
    objects.apply_vm(&vm("w", 1, &[("a", "")]));
    assert_eq!(actions(&objects), ["record 0a:00:00:00:00:00 of p for w a over 7"]);
}

#[test]
fn machines_are_served_in_the_order_of_their_creation_and_get_all_addresses_or_none() {
    let mut objects = objects();
    objects.apply_vm(&vm("young", 3, &[("a", "")]));
    objects.apply_vm(&vm("middle", 2, &[("a", ""), ("b", "")]));
    objects.apply_vm(&vm("old", 1, &[("a", ""), ("b", ""), ("c", "")]));
    let expected =
        ["0a:00:00:00:00:00 of p for old a", "0a:00:00:00:00:01 of p for old b", "0a:00:00:00:00:02 of p for old c"];
    assert_eq!(actions(&objects), expected.map(|line| format!("record {line}")));
    let waiting = objects.plan(NOW).waiting;
    let note = |end: &str| ("MACPoolExhausted", format!("No available MAC addresses in pool p for interface {end}"));
    let young = note("a: an older machine of its namespace waits, too");
    assert_eq!(waiting, [(key("middle"), note("b")), (key("young"), young)].into());
    let expected = ["NoDuplicates", "TooFewFreeAddresses", "Serving", "NotStalled"].map(str::to_owned);
    assert_eq!(status(&objects), ([4, 4, 0], 2, expected.into()));
    let conditions = &objects.plan(NOW).statuses["p"]["status"]["conditions"];
    assert_eq!(conditions[1]["status"], "True");
}

/// A VirtualMachine of the namespace `m`, which the pool of [`shared`] serves, too.
fn of_other(name: &str, second: u64, interfaces: &[(&str, &str)]) -> Object {
    let mut vm = vm(name, second, interfaces);
    vm.metadata.namespace = Some("m".to_owned());
    vm
}

/// Objects with the pool `p`, which has four addresses for the namespaces `m` and `n`.
fn shared() -> Objects {
    let mut objects = Objects::default();
    let mut pool = pool("p", "0a:00:00:00:00:00-0a:00:00:00:00:03", 1);
    pool.data["spec"]["namespaces"] = json!(["m", "n"]);
    objects.apply_pool(pool);
    objects
}

#[test]
fn a_machine_that_waits_for_several_addresses_makes_only_younger_machines_of_its_namespace_wait() {
    let mut objects = shared();
    objects.apply_lease(&leased("0a:00:00:00:00:03", "held", None));
    objects.apply_vm(&vm("held", 0, &[("a", "0a:00:00:00:00:03")]));
    objects.apply_vm(&vm("large", 1, &[("a", ""), ("b", ""), ("c", ""), ("d", "")]));
    objects.apply_vm(&vm("young", 2, &[("a", "")]));
    objects.apply_vm(&of_other("x", 3, &[("a", ""), ("b", "")]));
    objects.apply_vm(&of_other("y", 4, &[("a", "")]));
    let expected = [
        "record 0a:00:00:00:00:00 of p for x a",
        "record 0a:00:00:00:00:01 of p for x b",
        "record 0a:00:00:00:00:02 of p for y a",
    ];
    assert_eq!(actions(&objects), expected);
    let note = |end: &str| ("MACPoolExhausted", format!("No available MAC addresses in pool p for interface {end}"));
    let young = note("a: an older machine of its namespace waits, too");
    assert_eq!(objects.plan(NOW).waiting, [(key("large"), note("d")), (key("young"), young)].into());
}

#[test]
fn no_machine_waits_for_a_machine_that_needs_more_addresses_than_its_pools_have() {
    let mut objects = shared();
    let interfaces = ["a", "b", "c", "d", "e"].map(|name| (name, ""));
    objects.apply_vm(&vm("endless", 1, &interfaces));
    objects.apply_vm(&vm("young", 2, &[("a", "")]));
    objects.apply_vm(&of_other("x", 3, &[("a", "")]));
    let expected = ["record 0a:00:00:00:00:00 of p for young a", "record 0a:00:00:00:00:01 of p for x a"];
    assert_eq!(actions(&objects), expected);
    let note = ("MACPoolExhausted", "The machine needs 5 MAC addresses, and pool p has 4 in total".to_owned());
    assert_eq!(objects.plan(NOW).waiting, [(key("endless"), note)].into());
    assert_eq!(status(&objects).1, 1);
}

#[test]
fn a_machine_that_is_set_aside_takes_no_address_and_keeps_its_own() {
    let mut objects = objects();
    objects.apply_lease(&leased("0a:00:00:00:00:00", "aside", None));
    objects.apply_vm(&vm("aside", 1, &[("a", ""), ("b", "0a:00:00:00:00:01"), ("c", "")]));
    objects.apply_vm(&vm("w", 2, &[("a", ""), ("b", "")]));
    objects.set_aside.insert(key("aside"));
    let expected = ["record 0a:00:00:00:00:02 of p for w a", "record 0a:00:00:00:00:03 of p for w b"];
    assert_eq!(actions(&objects), expected);
    objects.set_aside.clear();
    let expected = ["record 0a:00:00:00:00:01 of p for aside b", "record 0a:00:00:00:00:02 of p for aside c"];
    assert_eq!(actions(&objects), expected);
}

/// A lease of the interface `a` of a machine. It was released at this second.
fn released_at(octet: u8, name: &str, second: u8) -> Object {
    leased(&format!("0a:00:00:00:01:{octet:02x}"), name, Some(&format!("2026-08-02T10:00:{second:02}.000000Z")))
}

#[test]
fn only_the_newest_released_lease_of_each_interface_of_a_name_stays() {
    let mut objects = Objects::default();
    let mut other = released_at(2, "w", 1);
    other.data["spec"]["holder"]["interface"] = "b".into();
    let mut of_other = released_at(3, "w", 1);
    of_other.data["spec"]["holder"]["namespace"] = "m".into();
    for lease in [released_at(0, "w", 1), released_at(1, "w", 2), other, of_other, released_at(4, "v", 0)] {
        objects.apply_lease(&lease);
    }
    assert_eq!(actions(&objects), ["delete 0a:00:00:00:01:00 7 of w"]);
    // A reuse delay that has not ended, a damaged lease and a held lease keep the object.
    let mut delayed = released_at(0, "w", 1);
    delayed.metadata.resource_version = Some("8".to_owned());
    delayed.data["spec"]["reuseAfter"] = "2026-09-01T10:00:00.000000Z".into();
    objects.apply_lease(&delayed);
    assert_eq!(actions(&objects), [] as [&str; 0]);
    delayed.metadata.resource_version = Some("9".to_owned());
    delayed.data["spec"]["reuseAfter"] = "2026-08-14T09:33:20.000000Z".into();
    objects.apply_lease(&delayed);
    assert_eq!(actions(&objects), ["delete 0a:00:00:00:01:00 9 of w"]);
    delayed.metadata.resource_version = Some("10".to_owned());
    delayed.data["spec"]["holder"] = "w".into();
    objects.apply_lease(&delayed);
    assert_eq!(actions(&objects), [] as [&str; 0]);
}

#[test]
fn a_released_lease_whose_address_a_machine_gets_is_not_deleted() {
    let mut objects = objects();
    objects.apply_lease(&leased("0a:00:00:00:00:00", "old", RELEASED));
    objects.apply_lease(&leased("0a:00:00:00:00:01", "old", RELEASED));
    objects.apply_lease(&leased("0a:00:00:00:00:02", "old", RELEASED));
    objects.apply_vm(&vm("w", 1, &[("a", "0a:00:00:00:00:02"), ("b", "")]));
    let expected = [
        "record 0a:00:00:00:00:02 of p for w a over 7",
        "record 0a:00:00:00:00:00 of p for w b over 7",
        "delete 0a:00:00:00:00:01 7 of old",
    ];
    assert_eq!(actions(&objects), expected);
    // The machine gets a new lease of an address whose lease was deleted.
    objects.leases.forget(&MacAddr::new(0x0a, 0, 0, 0, 0, 1), 7);
    objects.leases.forget(&MacAddr::new(0x0a, 0, 0, 0, 0, 0), 7);
    let expected = ["record 0a:00:00:00:00:02 of p for w a over 7", "record 0a:00:00:00:00:00 of p for w b"];
    assert_eq!(actions(&objects), expected);
}

#[test]
fn an_old_report_of_a_deletion_removes_no_new_lease_of_the_address() {
    let mut objects = objects();
    let (name, address) = ("0a-00-00-00-00-00.mac", MacAddr::new(0x0a, 0, 0, 0, 0, 0));
    objects.apply_lease(&leased("0a:00:00:00:00:00", "old", RELEASED));
    objects.leases.forget(&address, 7);
    let mut new = leased("0a:00:00:00:00:00", "w", None);
    new.metadata.resource_version = Some("9".to_owned());
    objects.apply_lease(&new);
    objects.remove_lease(name, Some(8));
    assert!(matches!(objects.lease(address, NOW), Leased::Held));
    objects.remove_lease(name, Some(10));
    assert!(matches!(objects.lease(address, NOW), Leased::Free { version: None }));
}

#[test]
fn a_cluster_without_mac_pools_needs_a_decision_only_for_a_collision_or_a_machine_with_the_label() {
    let mut objects = Objects::default();
    objects.apply_vm(&applied_again("w", &["a"]));
    let (w, version, guest_of_w) = guest("w", "52:54:00:00:00:01");
    objects.store_guest(w.clone(), version, guest_of_w);
    assert!(objects.is_idle());
    assert_eq!(objects.plan(NOW), Plan::default());
    let (v, version, guest_of_v) = guest("v", "52:54:00:00:00:01");
    objects.store_guest(v.clone(), version, guest_of_v);
    assert!(!objects.is_idle());
    objects.remove_guest(&v, Some(4));
    assert!(!objects.is_idle(), "an older deletion");
    objects.remove_guest(&v, Some(6));
    assert!(objects.is_idle());
    let mut waits = vm("x", 1, &[("a", "")]);
    objects.apply_vm(&waits);
    assert_eq!(objects.plan(NOW).waiting.into_keys().collect::<Vec<_>>(), [key("x")]);
    waits.metadata.resource_version = Some("6".to_owned());
    waits.data["spec"]["template"]["spec"]["domain"]["devices"]["interfaces"][0]["macAddress"] =
        "52:54:00:00:00:02".into();
    objects.apply_vm(&waits);
    assert!(objects.is_idle());
    objects.apply_lease(&leased("0a:00:00:00:00:00", "w", RELEASED));
    assert!(!objects.is_idle());
    objects.remove_lease("0a-00-00-00-00-00.mac", Some(8));
    objects.apply_pool(pool("p", "0a:00:00:00:00:00-0a:00:00:00:00:03", 1));
    assert!(!objects.is_idle());
}

#[test]
fn the_collisions_after_any_changes_are_those_of_the_running_guests() {
    let mut random = 1_u64;
    let mut next = |below: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % below
    };
    let (mut objects, mut version) = (Objects::default(), 10);
    for round in 0..2_000 {
        let key = key(&format!("w{}", next(5)));
        // Some versions are older than the known version.
        version += next(3);
        let reported = version - next(2);
        match next(8) {
            0 => objects.remove_guest(&key, Some(reported).filter(|_| next(2) == 0)),
            1 if next(20) == 0 => objects.forget_machines(),
            _ => {
                let addresses: Vec<String> = (0..next(4)).map(|_| format!("52:54:00:00:00:{:02x}", next(6))).collect();
                let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
                objects.store_guest(key, reported, Guest::read(&instance(&addresses)));
            }
        }
        let mut users: BTreeMap<MacAddr, BTreeSet<Key>> = BTreeMap::new();
        for (key, guest) in objects.guests.iter() {
            for address in &guest.unique {
                users.entry(*address).or_default().insert(key.clone());
            }
        }
        users.retain(|_, keys| keys.len() > 1);
        assert_eq!((objects.shared.is_empty(), objects.collisions()), (users.is_empty(), users), "round {round}");
    }
}

#[test]
fn a_lease_without_a_known_virtual_machine_or_guest_with_its_address_is_checked() {
    let mut objects = objects();
    objects.apply_lease(&leased("0a:00:00:00:00:00", "w", None));
    assert_eq!(actions(&objects), ["prove 0a:00:00:00:00:00 7 of w"]);
    let (key, version, guest) = guest("w", "0a:00:00:00:00:00");
    objects.store_guest(key.clone(), version, guest);
    assert_eq!(actions(&objects), [] as [&str; 0]);
    objects.remove_guest(&key, Some(6));
    // Now the VirtualMachine has another address. KubeVirt may still start an instance from an older version of the
    // VirtualMachine.
    objects.apply_vm(&vm("w", 1, &[("a", "52:54:00:00:00:01")]));
    assert_eq!(actions(&objects), [] as [&str; 0]);
    objects.remove_vm(&key, Some(6));
    let mut again = vm("w", 9, &[("a", "52:54:00:00:00:01")]);
    again.metadata.uid = Some("another".to_owned());
    objects.apply_vm(&again);
    assert_eq!(actions(&objects), ["prove 0a:00:00:00:00:00 7 of w"]);
}

/// Stores a guest of this namespace that has migrated to another cluster with this address.
fn migrate(objects: &mut Objects, namespace: &str, name: &str, address: &str) {
    let mut object = instance(&[address]);
    let target = json!({"virtualMachineInstanceUID": "of-another-cluster", "syncAddress": "192.0.2.1:9185"});
    object.metadata.uid = Some("of-this-cluster".to_owned());
    object.data["status"] = json!({"phase": "Succeeded", "migrationState": {
        "completed": true, "sourceState": {"virtualMachineInstanceUID": "of-this-cluster"}, "targetState": target,
    }});
    let key = Key { namespace: namespace.to_owned(), name: name.to_owned() };
    assert!(objects.store_guest(key, 5, Guest::read(&object)));
}

#[test]
fn for_30_days_no_machine_gets_the_mac_address_of_a_guest_that_migrated_to_another_cluster() {
    let mut objects = objects();
    let address = "0a:00:00:00:00:00";
    objects.apply_lease(&leased(address, "w", None));
    migrate(&mut objects, "n", "w", address);
    assert_eq!(actions(&objects), ["hold 0a:00:00:00:00:00 7 of w"]);
    // The instance is gone before the lease has the time of the migration.
    objects.remove_guest(&key("w"), Some(6));
    objects.forget_migrations();
    assert_eq!(actions(&objects), ["hold 0a:00:00:00:00:00 7 of w"]);
    let [Action::Hold { lease, .. }] = &objects.plan(NOW).actions[..] else { panic!("no lease") };
    let mut object = leased(address, "w", None);
    let mut expected = object.data["spec"].clone();
    expected["migrated"] = "2026-08-14T09:33:20.000000Z".into();
    assert_eq!(serde_json::to_value(lease).unwrap(), expected);

    object.data["spec"] = expected.clone();
    object.metadata.resource_version = Some("8".to_owned());
    objects.apply_lease(&object);
    objects.forget_migrations();
    assert_eq!(objects.migrated, BTreeSet::new());
    assert_eq!(actions(&objects), ["prove 0a:00:00:00:00:00 8 of w"]);
    let mut lease: LeaseSpec = serde_json::from_value(expected.clone()).unwrap();
    release(&mut lease, NOW);
    expected["released"] = "2026-08-14T09:33:20.000000Z".into();
    expected["reuseAfter"] = "2026-09-13T09:33:20.000000Z".into();
    assert_eq!(serde_json::to_value(&lease).unwrap(), expected);

    object.data["spec"] = expected;
    object.metadata.resource_version = Some("9".to_owned());
    objects.apply_lease(&object);
    assert_eq!(status(&objects).0, [4, 3, 1]);
    objects.apply_vm(&vm("v", 1, &[("a", "")]));
    objects.apply_vm(&vm("w", 2, &[("a", "")]));
    let expected = ["record 0a:00:00:00:00:01 of p for v a", "record 0a:00:00:00:00:02 of p for w a"];
    let end = NOW + Lease::REUSE_DELAY_OF_MIGRATED;
    assert_eq!(actions(&objects), expected);
    assert_eq!(actions_at(&objects, end - Duration::from_secs(1)), expected);
    let expected = ["record 0a:00:00:00:00:00 of p for v a over 9", "record 0a:00:00:00:00:01 of p for w a"];
    assert_eq!(actions_at(&objects, end), expected);
}

#[test]
fn a_machine_with_the_address_of_a_migrated_guest_gets_a_lease_that_keeps_the_migration() {
    let mut objects = objects();
    let mut delayed = leased("0a:00:00:00:00:00", "w", RELEASED);
    delayed.data["spec"]["migrated"] = "2026-08-02T09:00:00.000000Z".into();
    delayed.data["spec"]["reuseAfter"] = "2026-09-01T10:00:00.000000Z".into();
    objects.apply_lease(&delayed);
    objects.apply_vm(&vm("back", 1, &[("a", "0a:00:00:00:00:00")]));
    let plan = objects.plan(NOW);
    let [Action::Record { version: Some(7), lease, .. }] = &plan.actions[..] else { panic!("{plan:?}") };
    let mut expected = leased("0a:00:00:00:00:00", "back", None).data["spec"].clone();
    expected["since"] = "2026-08-14T09:33:20.000000Z".into();
    expected["migrated"] = "2026-08-02T09:00:00.000000Z".into();
    assert_eq!(serde_json::to_value(lease).unwrap(), expected);
}

#[test]
fn a_namespace_keeps_a_quarter_of_a_shared_mac_pool_for_guests_that_migrated() {
    let plan = |namespaces: &[&str]| {
        let mut objects = objects();
        let mut shared = pool("p", "0a:00:00:00:00:00-0a:00:00:00:00:0b", 2);
        shared.data["spec"]["namespaces"] = json!(namespaces);
        objects.apply_pool(shared);
        // The first address is kept already.
        for octet in 0..5 {
            let (address, name) = (format!("0a:00:00:00:00:0{octet}"), format!("w{octet}"));
            let mut lease = leased(&address, &name, RELEASED.filter(|_| octet == 0));
            if octet == 0 {
                lease.data["spec"]["migrated"] = "2026-08-02T09:00:00.000000Z".into();
                lease.data["spec"]["reuseAfter"] = "2026-09-01T10:00:00.000000Z".into();
            }
            objects.apply_lease(&lease);
            migrate(&mut objects, "n", &name, &address);
        }
        // A guest of another namespace has a share of its own.
        let mut lease = leased("0a:00:00:00:00:05", "w", None);
        lease.data["spec"]["holder"]["namespace"] = "m".into();
        objects.apply_lease(&lease);
        migrate(&mut objects, "m", "w", "0a:00:00:00:00:05");
        (actions(&objects), objects.plan(NOW).not_held)
    };
    let hold = |octets: &[(u8, &str)]| -> Vec<String> {
        octets.iter().map(|(octet, name)| format!("hold 0a:00:00:00:00:0{octet} 7 of {name}")).collect()
    };
    let not_held = [3, 4].map(|octet| (key(&format!("w{octet}")), [MacAddr::new(0x0a, 0, 0, 0, 0, octet)].into()));
    assert_eq!(plan(&["n", "m"]), (hold(&[(1, "w1"), (2, "w2"), (5, "w")]), not_held.into()));
    assert_eq!(plan(&["n"]), (hold(&[(1, "w1"), (2, "w2"), (3, "w3"), (4, "w4"), (5, "w")]), BTreeMap::new()));
}

#[test]
fn two_events_say_which_mac_addresses_of_a_migrated_guest_are_held() {
    let address = |octet| MacAddr::new(0x0a, 0, 0, 0, 0, octet);
    let note = "The guest migrated to another cluster with 0a:00:00:00:00:01: no machine gets this address until 30 days after the \
                deletion of the VirtualMachine, or until its StaticIPLease is deleted after that";
    assert_eq!(held(address(1)), note);
    let note = "The guest migrated to another cluster with 0a:00:00:00:00:01, 0a:00:00:00:00:02, and its namespace has a quarter of the \
                pool for such guests already: after the deletion of the VirtualMachine, other machines may get these addresses; \
                change the ranges of the pool before the deletion";
    assert_eq!(not_held(&[address(1), address(2)].into()), note);
}

#[test]
fn the_younger_of_two_overlapping_pools_allocates_nothing() {
    let mut objects = objects();
    objects.apply_pool(pool("a", "0a:00:00:00:00:03-0a:00:00:00:00:09", 2));
    objects.apply_vm(&vm("w", 1, &[("a", "")]));
    assert_eq!(actions(&objects), ["record 0a:00:00:00:00:00 of p for w a"]);
    let conditions = &objects.plan(NOW).statuses["a"]["status"]["conditions"];
    let expected = "MACPools a and p both have 0a:00:00:00:00:03, expected no common address";
    let condition = ["type", "reason", "message"].map(|member| conditions[2][member].as_str().unwrap());
    assert_eq!(condition, ["Ready", "PoolOverlap", expected]);
    assert_eq!((&conditions[3]["type"], &conditions[3]["status"]), (&json!("Stalled"), &json!("False")));
}

#[test]
fn a_mac_pool_that_was_stored_under_an_earlier_schema_works_and_has_a_condition() {
    let mut objects = objects();
    let labels: BTreeMap<String, &str> = (0..257).map(|number| (format!("l{number}"), "x")).collect();
    let mut wide = pool("p", "0a:00:00:00:00:00-0a:00:00:00:00:03", 2);
    wide.data["spec"]["machineSelector"] = json!({"matchLabels": labels});
    objects.apply_pool(wide);
    let reasons = ["NoDuplicates", "FreeAddresses", "Serving", "NotStalled", "EarlierSchema"].map(str::to_owned);
    assert_eq!(status(&objects).2, reasons);
    let violated = &objects.plan(NOW).statuses["p"]["status"]["conditions"][4];
    let line = "machineSelector.matchLabels: too many members \"257\", expected at most 256";
    assert_eq!((&violated["type"], &violated["message"]), (&json!("SchemaViolated"), &json!(line)));
}

#[test]
fn the_status_counts_each_address_once() {
    let mut objects = objects();
    assert_eq!(
        status(&objects),
        ([4, 4, 0], 0, ["NoDuplicates", "FreeAddresses", "Serving", "NotStalled"].map(str::to_owned).into())
    );
    objects.apply_vm(&vm("w", 1, &[("a", "0a:00:00:00:00:00")]));
    let (key, version, guest) = guest("w", "0a:00:00:00:00:00");
    objects.store_guest(key, version, guest);
    objects.apply_lease(&leased("0a:00:00:00:00:00", "w", None));
    objects.apply_lease(&leased("0a:00:00:00:00:01", "x", None));
    objects.apply_lease(&leased("0a:00:00:00:00:02", "y", RELEASED));
    assert_eq!(status(&objects).0, [4, 2, 2]);
    objects.apply_vm(&vm(
        "z",
        1,
        &[("a", "0a:00:00:00:00:00"), ("b", "0a:00:00:00:00:02"), ("c", "0a:00:00:00:00:03")],
    ));
    let expected = ["ConflictingRecords", "NoFreeAddress", "Serving", "NotStalled"].map(str::to_owned);
    assert_eq!(status(&objects), ([4, 0, 4], 0, expected.into()));
}

#[test]
fn the_metrics_count_each_valid_mac_pool_even_if_its_status_does_not_change() {
    let mut objects = objects();
    objects.apply_pool(pool("invalid", "0a:00:00:00:00:09", 2));
    for (second, name) in (1..).zip(["a", "b", "c", "d", "e"]) {
        objects.apply_vm(&vm(name, second, &[("a", "")]));
    }
    for (address, name) in (0..).zip(["a", "b", "c", "d"]) {
        objects.apply_lease(&leased(&format!("0a:00:00:00:00:0{address}"), name, None));
    }
    let plan = objects.plan(NOW);
    let expected = BTreeMap::from([("p".to_owned(), MacPoolCount { free: 0, used: 4, waiting: 1 })]);
    assert_eq!(plan.counts, expected);
    let mut stored = pool("p", "0a:00:00:00:00:00-0a:00:00:00:00:03", 3);
    stored.data["status"] = plan.statuses["p"]["status"].clone();
    objects.apply_pool(stored);
    let plan = objects.plan(NOW);
    assert_eq!((plan.statuses.contains_key("p"), plan.counts), (false, expected));
}

#[test]
fn the_condition_about_duplicate_addresses_has_at_most_twenty_lines() {
    let mut objects = wide();
    let all = of_wide(0..22);
    let texts: Vec<&str> = all.iter().map(String::as_str).collect();
    for name in ["x", "y"] {
        objects.store_guest(key(name), 5, Guest::read(&instance(&texts)));
    }
    let plan = objects.plan(NOW);
    let conditions = plan.statuses["p"]["status"]["conditions"].as_array().unwrap();
    let condition = conditions.iter().find(|condition| condition["type"] == "DuplicateRecords").unwrap();
    let lines = all.iter().take(20).map(|address| format!("{address}: machines n/x and n/y have this address"));
    let lines: Vec<String> = lines.chain(["and 2 more".to_owned()]).collect();
    assert_eq!(condition["message"], lines.join("\n"));
}

#[test]
fn running_guests_with_the_same_mac_address_are_a_collision() {
    let mut objects = objects();
    for name in ["x", "y"] {
        let (key, version, guest) = guest(name, "52:54:00:00:00:01");
        objects.store_guest(key, version, guest);
    }
    let address = MacAddr::new(0x52, 0x54, 0, 0, 0, 1);
    assert_eq!(objects.plan(NOW).collisions, [(address, [key("x"), key("y")].into())].into());
    let ended =
        object(json!({"status": {"phase": "Succeeded", "interfaces": [{"name": "a", "mac": "52:54:00:00:00:01"}]}}));
    objects.store_guest(key("y"), 6, Guest::read(&ended));
    assert_eq!(objects.plan(NOW).collisions, BTreeMap::new());
}

/// The addresses with these last octets in the pool of [`wide`].
fn of_wide(octets: std::ops::Range<usize>) -> Vec<String> {
    octets.map(|octet| format!("0a:00:00:00:01:{octet:02x}")).collect()
}

/// Objects with the pool `p`, which has 32 addresses for the namespace `n`.
fn wide() -> Objects {
    let mut objects = Objects::default();
    objects.apply_pool(pool("p", "0a:00:00:00:01:00-0a:00:00:00:01:1f", 1));
    objects
}

/// Stores a guest of the namespace `other` that was created at this second.
fn store_other(objects: &mut Objects, name: &str, second: u8, phase: &str, addresses: &[String]) {
    let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
    let mut object = instance(&addresses);
    object.data["status"]["phase"] = phase.into();
    let created = json!({"creationTimestamp": format!("2026-08-01T10:00:{second:02}Z")});
    object.metadata = serde_json::from_value(created).unwrap();
    let key = Key { namespace: "other".to_owned(), name: name.to_owned() };
    objects.store_guest(key, u64::from(second) + 10, Guest::read(&object));
}

/// The last octets of the addresses that are not allocated because they are in use.
fn taken(objects: &Objects) -> Vec<u8> {
    objects.used().keys().map(|address| address.octets()[5]).collect()
}

#[test]
fn a_virtual_machine_of_another_namespace_does_not_use_up_addresses_of_a_mac_pool() {
    let mut objects = wide();
    let all = of_wide(0..32);
    let interfaces: Vec<(String, String)> =
        all.iter().enumerate().map(|(at, address)| (format!("net{at}"), address.clone())).collect();
    let interfaces: Vec<(&str, &str)> =
        interfaces.iter().map(|(name, address)| (name.as_str(), address.as_str())).collect();
    let mut other = vm("w", 1, &interfaces);
    other.metadata.namespace = Some("other".to_owned());
    objects.apply_vm(&other);
    store_other(&mut objects, "w", 1, "Pending", &all);
    objects.apply_vm(&vm("v", 2, &[("a", "")]));
    assert_eq!(actions(&objects), ["record 0a:00:00:00:01:00 of p for v a"]);
    assert_eq!(status(&objects).0, [32, 32, 0]);
    // A running guest of another namespace can keep at most four addresses from being allocated.
    store_other(&mut objects, "w", 2, "Running", &all);
    assert_eq!(taken(&objects), [0, 1, 2, 3]);
    assert_eq!(actions(&objects), ["record 0a:00:00:00:01:04 of p for v a"]);
}

#[test]
fn the_guests_of_another_namespace_use_up_at_most_a_quarter_of_a_mac_pool() {
    let mut objects = wide();
    for (second, name) in [(4, "a"), (3, "b"), (2, "c"), (1, "d")] {
        let first = usize::from(second) * 4;
        store_other(&mut objects, name, second, "Running", &of_wide(first..first + 6));
    }
    // The first four addresses of each of the two oldest guests are kept from being allocated.
    assert_eq!(taken(&objects), [4, 5, 6, 7, 8, 9, 10, 11]);
    objects.remove_guest(&Key { namespace: "other".to_owned(), name: "d".to_owned() }, None);
    assert_eq!(taken(&objects), [8, 9, 10, 11, 12, 13, 14, 15]);
    // The order of a guest's interfaces decides which of its addresses count.
    let mut turned = of_wide(0..6);
    turned.reverse();
    store_other(&mut objects, "e", 0, "Running", &turned);
    assert_eq!(taken(&objects), [2, 3, 4, 5, 8, 9, 10, 11]);
}

#[test]
fn a_guest_of_another_namespace_beyond_its_limit_still_counts_as_a_second_user_of_an_address() {
    let mut objects = wide();
    let (key, version, guest) = guest("w", "0a:00:00:00:01:05");
    objects.store_guest(key.clone(), version, guest);
    store_other(&mut objects, "x", 1, "Running", &of_wide(0..6));
    assert_eq!(taken(&objects), [0, 1, 2, 3, 5]);
    let plan = objects.plan(NOW);
    let address = MacAddr::new(0x0a, 0, 0, 0, 1, 5);
    let other = Key { namespace: "other".to_owned(), name: "x".to_owned() };
    assert_eq!(plan.collisions, [(address, [key, other].into())].into());
    let conditions = &plan.statuses["p"]["status"]["conditions"];
    assert_eq!(conditions[0]["message"], "0a:00:00:00:01:05: machines n/w and other/x have this address");
}

#[test]
fn a_mac_address_on_the_network_of_pods_need_not_be_unique_without_masquerade() {
    let unique = |network: Value, binding: &str| {
        let object = object(json!({
            "spec": {
                "domain": {"devices": {"interfaces": [{"name": "a", binding: {}}]}},
                "networks": [{"name": "a"}],
            },
            "status": {
                "phase": "Running",
                "interfaces": [{"name": "a", "mac": "52:54:00:00:00:01"}, {"mac": "52:54:00:00:00:02"}],
            },
        }));
        let mut object = object;
        json_patch::merge(&mut object.data["spec"]["networks"][0], &network);
        let guest = Guest::read(&object);
        assert_eq!(guest.all.len(), 1, "the guest agent alone reports the second address");
        guest.unique.len()
    };
    assert_eq!(unique(json!({"multus": {"networkName": "x"}}), "bridge"), 1);
    assert_eq!(unique(json!({"pod": {}}), "masquerade"), 1);
    assert_eq!(unique(json!({"pod": {}}), "bridge"), 0);
}

#[test]
fn a_new_version_without_other_changes_causes_no_decision() {
    let mut objects = objects();
    let mut machine = vm("w", 1, &[("a", "")]);
    assert!(objects.apply_vm(&machine));
    machine.metadata.resource_version = Some("6".to_owned());
    assert!(!objects.apply_vm(&machine));
    machine.metadata.resource_version = Some("4".to_owned());
    machine.metadata.labels = Some([("a".to_owned(), "b".to_owned())].into());
    assert!(!objects.apply_vm(&machine), "an older version");
    machine.metadata.resource_version = Some("7".to_owned());
    assert!(objects.apply_vm(&machine));
}

#[test]
fn no_content_of_an_object_prevents_a_mac_address_for_another_machine_of_a_pool_with_room() {
    let valid = |object: &Object| {
        let mut object = serde_json::to_value(object).unwrap();
        object["metadata"]["labels"] = json!({"a": "b"});
        object
    };
    let vm_of_user = vm("hostile", 0, &[("a", ""), ("b", "0a:00:00:00:00:02"), ("c", "52:54:00:00:00:01")]);
    let mut pool_of_user = pool("q", "0a:00:00:00:01:00-0a:00:00:00:01:ff", 9);
    pool_of_user.data["spec"]["selector"] = json!({"matchLabels": {"a": "b"}});
    let guest_of_user = object(json!({
        "metadata": {"namespace": "n", "name": "guest"},
        "spec": {
            "domain": {"devices": {"interfaces": [{"name": "a", "bridge": {}, "macAddress": "52:54:00:00:00:02"}]}},
            "networks": [{"name": "a", "multus": {"networkName": "n/x"}}],
        },
        "status": {"phase": "Running", "interfaces": [{"name": "a", "mac": "52:54:00:00:00:03"}]},
    }));
    let lease = leased("0a:00:00:00:00:03", "gone", RELEASED);
    for (kind, object) in [("vm", vm_of_user), ("pool", pool_of_user), ("guest", guest_of_user), ("lease", lease)] {
        crate::variants::each_object(&valid(&object), |object| {
            let mut objects = objects();
            objects.apply_vm(&vm("honest", 1, &[("a", "")]));
            match kind {
                "vm" => drop(objects.apply_vm(&object)),
                "pool" => drop(objects.apply_pool(object)),
                "guest" => drop(objects.store_guest(key("guest"), 5, Guest::read(&object))),
                _ => drop(objects.apply_lease(&object)),
            }
            let plan = objects.plan(NOW);
            let records: Vec<(MacAddr, &str)> = plan
                .actions
                .iter()
                .filter_map(|action| match action {
                    Action::Record { address, lease, .. } => Some((*address, lease.holder.name.as_str())),
                    _ => None,
                })
                .collect();
            let addresses: BTreeSet<MacAddr> = records.iter().map(|(address, _)| *address).collect();
            assert_eq!(addresses.len(), records.len(), "{records:?}");
            let is_served = records.iter().any(|(_, name)| *name == "honest");
            // The older machine may take every address of the pool before the machine `honest`.
            assert!(is_served || addresses.len() == 4 || plan.waiting.len() == 2, "{kind}: {plan:?}");
        });
    }
}
