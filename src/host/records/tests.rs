#![allow(clippy::unwrap_used, reason = "a helper of a test may fail the test")]

use serde_json::{Value, json};

use super::*;
use crate::host::claim::{Claimant, Record};

const KEY: &str = "kubevirt.cluster.x-k8s.io/allocated-ip-eno101";

fn machine() -> Machine {
    Machine::new("clusters", "w", "m-1")
}

fn allocation(interface: &str, addresses: &[&str]) -> Allocation {
    let claimant = Claimant { machine: machine(), interface: interface.parse().unwrap() };
    Allocation { claimant, addresses: addresses.iter().map(|address| address.parse().unwrap()).collect() }
}

fn on(interface: &str, network: &str) -> BTreeMap<InterfaceName, String> {
    BTreeMap::from([(interface.parse().unwrap(), network.to_owned())])
}

/// An object `clusters/w` with this kind and UID, and with the members of `more`.
fn object(kind: &str, uid: &str, more: Value) -> Value {
    let mut object = json!({"kind": kind, "metadata": {"namespace": "clusters", "name": "w", "uid": uid}});
    merge(&mut object, more);
    object
}

fn merge(into: &mut Value, more: Value) {
    match (into, more) {
        (Value::Object(into), Value::Object(more)) => {
            for (name, value) in more {
                merge(into.entry(name).or_insert(Value::Null), value);
            }
        }
        (into, more) => *into = more,
    }
}

fn annotated(value: &str) -> Value {
    json!({"metadata": {"annotations": {KEY: value}}})
}

fn inventory_of(items: Value) -> Inventory {
    let list = json!({"apiVersion": "v1", "items": items, "kind": "List", "metadata": {"resourceVersion": ""}});
    let mut objects = Objects::default();
    objects.read("list", list.to_string().as_bytes()).unwrap();
    objects.inventory()
}

/// Lines for the records, and lines for the diagnostics. The line of a diagnostic has the addresses that are not
/// allocated because of the diagnostic.
fn lines(inventory: &Inventory) -> (Vec<String>, Vec<String>) {
    let record = |record: &Record| {
        let Record { claimant: Claimant { machine, interface }, addresses, source, .. } = record;
        format!("{machine} {interface} {} in {source}", annotation_value(addresses))
    };
    let diagnostic = |diagnostic: &ObjectDiagnostic| {
        format!("{}: {} {:?}", diagnostic.source, diagnostic.diagnostic, diagnostic.addresses)
    };
    (inventory.records.iter().map(record).collect(), inventory.diagnostics.iter().map(diagnostic).collect())
}

fn read(items: Value) -> (Vec<String>, Vec<String>) {
    lines(&inventory_of(items))
}

// === Writing ===

#[test]
fn a_patch_annotates_every_interface_with_ipv4_first() {
    let allocations = [allocation("eno102", &["10.1.0.9/16"]), allocation("eno101", &["fd00::5/64", "10.0.0.5/24"])];
    assert_eq!(
        annotation_patch(&machine(), &allocations, &on("eno101", "infra/vlan10"), Some("77")),
        Ok(json!({
            "apiVersion": "infrastructure.cluster.x-k8s.io/v1alpha1",
            "kind": "KubevirtMachine",
            "metadata": {
                "namespace": "clusters",
                "name": "w",
                "uid": "m-1",
                "resourceVersion": "77",
                "annotations": {
                    "kubevirt.cluster.x-k8s.io/allocated-ip-eno101": "[\"10.0.0.5/24\",\"fd00::5/64\"]",
                    "kubevirt.cluster.x-k8s.io/allocated-ip-eno102": "[\"10.1.0.9/16\"]",
                    "ipam.glowplug.dev/network-eno101": "infra/vlan10",
                },
            },
        }))
    );
}

#[test]
fn a_patch_of_the_status_has_the_status_map() {
    let allocations = [allocation("eno101", &["fd00::5/64", "10.0.0.5/24"]), allocation("eno.", &["10.1.0.9/16"])];
    assert_eq!(
        status_patch(&machine(), &allocations, None),
        Ok(json!({
            "apiVersion": "infrastructure.cluster.x-k8s.io/v1alpha1",
            "kind": "KubevirtMachine",
            "metadata": {"namespace": "clusters", "name": "w", "uid": "m-1"},
            "status": {"allocatedBootstrapAddresses": {
                "eno101": ["10.0.0.5/24", "fd00::5/64"], "eno.": ["10.1.0.9/16"],
            }},
        }))
    );
}

#[test]
fn an_interface_whose_name_cannot_end_an_annotation_key_is_refused() {
    for name in ["eno-", "eno.", "eno_"] {
        let refusal = annotation_patch(&machine(), &[allocation(name, &["10.0.0.5/24"])], &BTreeMap::new(), None);
        assert_eq!(refusal, Err(PatchError::Key(name.parse().unwrap())));
    }
}

#[test]
fn an_allocation_of_another_machine_is_refused() {
    let successor = Machine { uid: "m-2".to_owned(), ..machine() };
    let allocations = [allocation("eno101", &["10.0.0.5/24"])];
    let message = "allocation of another machine, clusters/w (m-1), expected one of the object's own";
    assert_eq!(annotation_patch(&successor, &allocations, &BTreeMap::new(), None).unwrap_err().to_string(), message);
    assert_eq!(status_patch(&successor, &allocations, None).unwrap_err().to_string(), message);
}

#[test]
fn written_records_are_read_back() {
    let allocations = [allocation("eno101", &["10.0.0.5/24", "fd00::5/64"]), allocation("br-ex", &["10.1.0.9/16"])];
    let networks = on("eno101", "infra/vlan10");
    for patch in
        [annotation_patch(&machine(), &allocations, &networks, None), status_patch(&machine(), &allocations, None)]
    {
        let inventory = inventory_of(json!([patch.unwrap()]));
        let read: Vec<_> = inventory.records.into_iter().map(|record| (record.claimant, record.addresses)).collect();
        let written: Vec<_> = allocations.iter().rev().map(|a| (a.claimant.clone(), a.addresses.clone())).collect();
        assert_eq!((read, inventory.diagnostics), (written, Vec::new()));
    }
}

// === Spellings ===

/// Result of reading an annotation: the addresses of its record, and its diagnostics without their path.
fn value(text: &str) -> (String, Vec<String>) {
    let inventory = inventory_of(json!([object("KubevirtMachine", "m-1", annotated(text))]));
    let path = format!("list: items[0].metadata.annotations.\"{KEY}\": ");
    let diagnostic = |diagnostic: String| diagnostic.strip_prefix(&path).unwrap().to_owned();
    let addresses: Vec<IpNetwork> = inventory.records.iter().flat_map(|record| record.addresses.clone()).collect();
    (annotation_value(&addresses), lines(&inventory).1.into_iter().map(diagnostic).collect())
}

macro_rules! values {
    ($($name:ident: $text:expr => $addresses:expr, $diagnostics:expr;)*) => {
        $(#[test] fn $name() {
            let diagnostics: &[&str] = &$diagnostics;
            assert_eq!(value($text), ($addresses.to_owned(), diagnostics.iter().map(ToString::to_string).collect()));
        })*
    };
}

values! {
    a_json_list: r#"["10.0.0.5/24", "fd00:0::5/64"]"# => r#"["10.0.0.5/24","fd00::5/64"]"#, [];
    an_address_with_its_prefix_length: "10.0.0.5/24" => r#"["10.0.0.5/24"]"#, [];
    an_address_without_a_prefix_length_has_the_full_length: "FD00::05" => r#"["fd00::5/128"]"#, [];
    addresses_with_commas_between_them: "fd00::5/64, 10.0.0.5/24" => r#"["10.0.0.5/24","fd00::5/64"]"#, [];
    a_repeated_address: r#"["10.0.0.5/24","10.0.0.5"]"# => r#"["10.0.0.5/24"]"#,
        [r#"repeated address in "[\"10.0.0.5/24\",\"10.0.0.5\"]", expected each address once []"#];
    an_empty_string: "" => "[]", [r#"invalid address "", expected an IPv4 or IPv6 address []"#];
    an_empty_list: "[]" => "[]", [r#"unreadable record "[]", expected a list of ip/prefix []"#];
    a_list_with_an_item_that_is_no_string: r#"["10.0.0.5/24", 7]"# => "[]",
        [r#"unreadable record "[\"10.0.0.5/24\", 7]", expected a list of ip/prefix [10.0.0.5]"#];
    ipv4_in_ipv6: "::ffff:10.0.0.5/120" => "[]",
        [r#"IPv4-mapped address "::ffff:10.0.0.5/120", expected 10.0.0.5 [10.0.0.5]"#];
    a_zone: "fe80::5%eth0/64" => "[]",
        [r#"address with a zone "fe80::5%eth0/64", expected an address without a zone [fe80::5]"#];
    a_leading_zero: "10.0.0.05/24" => "[]",
        [r#"leading zero in an address "10.0.0.05/24", expected 10.0.0.5 [10.0.0.5]"#];
    a_prefix_length_with_a_leading_zero: "10.0.0.5/024" => "[]",
        [r#"invalid prefix length "10.0.0.5/024", expected a length of 1 to 32 without sign or leading zero [10.0.0.5]"#];
    a_prefix_length_that_is_too_long: "10.0.0.5/33" => "[]",
        [r#"invalid prefix length "10.0.0.5/33", expected a length of 1 to 32 without sign or leading zero [10.0.0.5]"#];
    the_readable_part_of_a_list_counts: r#"["10.0.0.5/24", "fd00::5/+64"]"# => r#"["10.0.0.5/24"]"#,
        [r#"invalid prefix length "fd00::5/+64", expected a length of 1 to 128 without sign or leading zero [fd00::5]"#];
    words: "pending" => "[]", [r#"invalid address "pending", expected an IPv4 or IPv6 address []"#];
    a_list_that_is_no_valid_json: r#"["10.0.0.5/24""# => "[]",
        [r#"invalid address "[\"10.0.0.5/24\"", expected an IPv4 or IPv6 address [10.0.0.5]"#];
}

#[test]
fn a_record_with_an_invalid_interface_name_is_reported_and_its_addresses_are_reserved() {
    let annotations = json!({"metadata": {"annotations": {
        "kubevirt.cluster.x-k8s.io/allocated-ip-12": "10.0.0.5/24",
        "kubevirt.cluster.x-k8s.io/allocated-ips-eno101": "somebody else's",
    }}});
    let diagnostic = "list: items[0].metadata.annotations.\"kubevirt.cluster.x-k8s.io/allocated-ip-12\": record of an \
        invalid interface name \"12\", expected 1 to 15 letters, digits, '.', '_' or '-', not only digits, and not all, \
        default or lo [10.0.0.5]";
    assert_eq!(read(json!([object("KubevirtMachine", "m-1", annotations)])), (vec![], vec![diagnostic.to_owned()]));
}

#[test]
fn an_invalid_status_map_is_reported() {
    let status = |value: Value| object("KubevirtMachine", "m-1", json!({"status": {STATUS_FIELD: value}}));
    assert_eq!(
        read(json!([status(json!(["10.0.0.5/24"]))])).1,
        [
            r#"list: items[0].status.allocatedBootstrapAddresses: unreadable record "[\"10.0.0.5/24\"]", expected a list of ip/prefix [10.0.0.5]"#
        ]
    );
    assert_eq!(
        read(json!([status(json!({"eno101": "10.0.0.5/24"}))])).1,
        [
            r#"list: items[0].status.allocatedBootstrapAddresses.eno101: unreadable record "\"10.0.0.5/24\"", expected a list of ip/prefix [10.0.0.5]"#
        ]
    );
}

// === Objects ===

#[test]
fn objects_whose_machine_cannot_be_identified_are_reported() {
    let with = |more: Value| {
        let mut object = object("KubevirtMachine", "m-1", annotated("10.0.0.5/24"));
        merge(&mut object, more);
        object
    };
    let items = json!([
        with(json!({"metadata": {"uid": null}})),
        with(json!({"metadata": {"name": "w\n"}})),
        with(json!({"metadata": {"namespace": ""}})),
        with(json!({"kind": "Pod"})),
        with(json!({"metadata": {"annotations": "none"}})),
        with(json!({"metadata": {"labels": 7}})),
        7,
    ]);
    let identity = "letters, digits, '-' or '.', at most 253";
    assert_eq!(
        read(items),
        (
            vec![],
            vec![
                "list: items[0].metadata.uid: missing, expected the object as it is in the cluster [10.0.0.5]".to_owned(),
                format!(r#"list: items[1].metadata.name: invalid value "w\n", expected {identity} [10.0.0.5]"#),
                format!(r#"list: items[2].metadata.namespace: invalid value "", expected {identity} [10.0.0.5]"#),
                r#"list: items[3].kind: unknown kind "Pod", expected KubevirtMachine, VirtualMachine or VirtualMachineInstance [10.0.0.5]"#.to_owned(),
                r#"list: items[4]: invalid object "invalid type: string \"none\", expected a map", expected an object as Kubernetes writes it []"#.to_owned(),
                r#"list: items[5]: invalid object "invalid type: integer `7`, expected a map", expected an object as Kubernetes writes it [10.0.0.5]"#.to_owned(),
                r#"list: items[6]: invalid object "invalid type: integer `7`, expected struct Item", expected an object as Kubernetes writes it []"#.to_owned(),
            ]
        )
    );
}

#[test]
fn a_status_map_that_is_nested_too_deep_makes_its_object_unreadable() {
    let map = [&r#"{"a": "#.repeat(1000), r#""10.0.0.5""#, &"}".repeat(1000)].concat();
    let list = format!(r#"{{"items": [{{"status": {{"allocatedBootstrapAddresses": {map}}}}}]}}"#);
    let mut objects = Objects::default();
    objects.read("list", list.as_bytes()).unwrap();
    let diagnostic = r#"list: items[0]: invalid object "recursion limit exceeded", expected an object as Kubernetes writes it [10.0.0.5]"#;
    assert_eq!(lines(&objects.inventory()), (vec![], vec![diagnostic.to_owned()]));
}

// === Machines ===

/// KubevirtMachine `clusters/w`, whose template names the namespace of [`guest`].
fn worker(uid: &str, more: Value) -> Value {
    let template = json!({"spec": {"virtualMachineTemplate": {"metadata": {"namespace": "infra"}}}});
    with(object("KubevirtMachine", uid, more), template)
}

/// A VirtualMachine `infra/w` or its instance, whose labels name `clusters/w`.
fn guest(kind: &str, uid: &str, more: Value) -> Value {
    let mut guest = object(kind, uid, more);
    let labels = json!({"metadata": {"namespace": "infra", "labels": {
        "capk.cluster.x-k8s.io/kubevirt-machine-namespace": "clusters",
        "capk.cluster.x-k8s.io/kubevirt-machine-name": "w",
    }}});
    merge(&mut guest, labels);
    guest
}

fn instance(uid: &str, owner: &str, more: Value) -> Value {
    let mut instance = object("VirtualMachineInstance", uid, more);
    let owner = json!({"metadata": {"namespace": "infra", "ownerReferences": [
        {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": "w", "uid": owner, "controller": true},
    ]}});
    merge(&mut instance, owner);
    instance
}

fn created(at: &str) -> Value {
    json!({"metadata": {"creationTimestamp": at}})
}

fn with(mut object: Value, more: Value) -> Value {
    merge(&mut object, more);
    object
}

const AT: &str = "metadata.annotations.\"kubevirt.cluster.x-k8s.io/allocated-ip-eno101\"";

#[test]
fn a_machine_is_being_deleted_if_any_list_has_its_deletion_timestamp() {
    let worker = object("KubevirtMachine", "m-1", created("2026-08-01T10:00:00Z"));
    let leaving = with(worker.clone(), json!({"metadata": {"deletionTimestamp": "2026-08-01T11:00:00Z"}}));
    let other =
        json!({"metadata": {"deletionTimestamp": null, "annotations": {NODE_POOL_ANNOTATION: "clusters/workers"}}});
    let other = object("KubevirtMachine", "m-2", other);
    let mut objects = Objects::default();
    for items in [json!([worker, other]), json!([leaving])] {
        objects.read("list", json!({"items": items}).to_string().as_bytes()).unwrap();
    }
    assert_eq!(
        objects.machines().collect::<Vec<_>>(),
        [
            KubevirtMachine {
                machine: machine(),
                created: "2026-08-01T10:00:00Z".parse().ok(),
                is_being_deleted: true,
                node_pool: None,
            },
            KubevirtMachine {
                machine: Machine { uid: "m-2".to_owned(), ..machine() },
                created: None,
                is_being_deleted: false,
                node_pool: Some("clusters/workers".to_owned()),
            },
        ]
    );
}

#[test]
fn an_instance_of_another_namespace_is_no_guest_of_the_virtual_machine_that_it_names_as_its_owner() {
    let hold = |address: &str| json!({"metadata": {"annotations": {KEY: address}}});
    let vm = object("VirtualMachine", "v-1", hold("10.0.0.5/24"));
    let foreign = instance("i-1", "v-1", hold("10.0.0.6/24"));
    let own = with(
        instance("i-2", "v-1", hold("10.0.0.5/24")),
        json!({"metadata": {"namespace": vm["metadata"]["namespace"]}}),
    );
    let mut objects = Objects::default();
    objects.read("list", json!({"items": [vm, foreign, own]}).to_string().as_bytes()).unwrap();
    let inventory = objects.inventory();
    let rows: Vec<_> = inventory
        .records
        .iter()
        .map(|record| (record.claimant.machine.namespace.as_str(), record.addresses[0].to_string()))
        .collect();
    assert_eq!(rows, [("clusters", "10.0.0.5/24".to_owned()), ("infra", "10.0.0.6/24".to_owned())]);
    assert_eq!(inventory.diagnostics, []);
}

#[test]
fn only_the_first_256_addresses_of_an_object_count() {
    let address = |n: usize| format!("10.0.{}.{}", n / 256, n % 256);
    let many: Vec<String> = (0..300).map(address).collect();
    let worker = object("KubevirtMachine", "m-1", json!({"status": {STATUS_FIELD: {"eno101": many}}}));
    let interfaces = json!([{"name": "a", "ipAddresses": many}]);
    let guest = instance("i-1", "v-1", json!({"status": {"interfaces": interfaces}}));
    let mut objects = Objects::default();
    objects.read("list", json!({"items": [worker, guest]}).to_string().as_bytes()).unwrap();
    let inventory = objects.inventory();
    assert_eq!(inventory.records[0].addresses.len(), 256);
    assert_eq!(inventory.reports.len(), 256);
    let expected = "expected at most 256: the others do not count []";
    let line = |item: usize| format!("list: items[{item}]: too many addresses \"300\", {expected}");
    assert_eq!(lines(&inventory).1, [line(0), line(1)]);
}

#[test]
fn only_the_first_32_mistakes_of_an_object_get_a_diagnostic_and_its_valid_records_count() {
    let key = |interface: &str| format!("{ANNOTATION_PREFIX}{interface}");
    let invalid = (0..40).map(|n| (key(&format!("a-name-of-more-{n:02}")), json!("10.0.0.9/24")));
    let unreadable = (0..40).map(|n| (key(&format!("z{n:02}")), json!("10.0.0.9/99")));
    let valid = (key("eno101"), json!("10.0.0.5/24"));
    let annotations: serde_json::Map<String, Value> = invalid.chain(unreadable).chain([valid]).collect();
    let many = object("KubevirtMachine", "m-1", json!({"metadata": {"annotations": annotations}}));
    let other = object("KubevirtMachine", "m-2", annotated("10.0.0.6/99"));
    let mut objects = Objects::default();
    objects.read("list", json!({"items": [many, other]}).to_string().as_bytes()).unwrap();
    let inventory = objects.inventory();
    let records: Vec<_> =
        inventory.records.iter().map(|record| (record.claimant.interface.as_str(), &record.addresses)).collect();
    assert_eq!(records, [("eno101", &vec!["10.0.0.5/24".parse().unwrap()])]);
    let lines = lines(&inventory).1;
    assert_eq!(lines.len(), 34);
    assert_eq!(lines[32], "list: items[0]: too many mistakes \"80\", expected at most 32: the others do not count []");
    // The diagnostic of the second object has the claimant of the second object.
    let claimant = inventory.diagnostics[33].claimant.as_ref().map(|claimant| claimant.machine.uid.as_str());
    assert_eq!(claimant, Some("m-2"));
}

#[test]
fn records_of_one_machine_that_agree_become_one_record() {
    let status = json!({"status": {STATUS_FIELD: {"eno101": ["10.0.0.5/24"]}}});
    let template = json!({"spec": {"template": {"metadata": {"annotations": {KEY: "10.0.0.5/24"}}}}});
    let items = json!([
        instance("i-1", "v-1", annotated("10.0.0.5/24")),
        guest("VirtualMachine", "v-1", with(annotated("10.0.0.5"), template)),
        with(worker("m-1", annotated("10.0.0.5")), status),
    ]);
    let record = format!(r#"clusters/w (m-1) eno101 ["10.0.0.5/24"] in list: items[2].{AT}"#);
    assert_eq!(read(items), (vec![record], vec![]));
}

#[test]
fn a_guest_whose_machine_is_gone_keeps_its_addresses() {
    let by_vm = json!([instance("i-1", "v-1", annotated("10.0.0.5/24")), guest("VirtualMachine", "v-1", json!({})),]);
    let record = format!(r#"infra/w (v-1) eno101 ["10.0.0.5/24"] in list: items[0].{AT}"#);
    assert_eq!(read(by_vm), (vec![record.clone()], vec![]));
    // The lists have only the instance, which names its VirtualMachine. The VirtualMachine is in the namespace of the
    // instance.
    assert_eq!(read(json!([instance("i-1", "v-1", annotated("10.0.0.5/24"))])), (vec![record], vec![]));
    let alone = json!([object("VirtualMachineInstance", "i-1", annotated("10.0.0.5/24"))]);
    let record = format!(r#"clusters/w (i-1) eno101 ["10.0.0.5/24"] in list: items[0].{AT}"#);
    assert_eq!(read(alone), (vec![record], vec![]));
}

#[test]
fn a_guest_belongs_to_a_machine_of_another_namespace_only_if_the_machine_names_this_namespace() {
    let of = |machines: &[Value], guest: Value| {
        let items: Vec<Value> = machines.iter().chain([&guest]).cloned().collect();
        let records = inventory_of(json!(items)).records.into_iter();
        records.map(|record| record.claimant.machine.to_string()).collect::<Vec<_>>()
    };
    let vm = || guest("VirtualMachine", "v-1", annotated("10.0.0.5/24"));
    let in_infra = || guest("VirtualMachineInstance", "i-1", annotated("10.0.0.5/24"));
    let spec = |spec: Value| object("KubevirtMachine", "m-1", json!({"spec": spec}));
    let template = |namespace: &str| spec(json!({"virtualMachineTemplate": {"metadata": {"namespace": namespace}}}));
    assert_eq!(of(&[template("infra")], vm()), ["clusters/w (m-1)"]);
    assert_eq!(of(&[template("infra")], in_infra()), ["clusters/w (m-1)"]);
    let owned = with(instance("i-1", "v-1", annotated("10.0.0.5/24")), in_infra());
    assert_eq!(of(&[template("infra")], owned), ["clusters/w (m-1)"]);
    // capk gives a VirtualMachine the name of its KubevirtMachine.
    let renamed = with(vm(), json!({"metadata": {"name": "x"}}));
    assert_eq!(of(&[template("infra")], renamed), ["infra/x (v-1)"]);
    for machine in [
        template("clusters"),
        template("other"),
        template(""),
        template("in/fra"),
        spec(json!({"virtualMachineTemplate": {}})),
        spec(json!({"virtualMachineTemplate": {}, "infraClusterSecretRef": {"name": "infra"}})),
        object("KubevirtMachine", "m-1", json!({})),
    ] {
        assert_eq!(of(std::slice::from_ref(&machine), vm()), ["infra/w (v-1)"], "{machine}");
        assert_eq!(of(std::slice::from_ref(&machine), in_infra()), ["infra/w (i-1)"], "{machine}");
    }
    // Two versions of the machine name two namespaces.
    let later = with(template("other"), json!({"metadata": {"uid": "m-2"}}));
    for machines in [[template("infra"), later.clone()], [later, template("infra")]] {
        assert_eq!(of(&machines, vm()), ["infra/w (v-1)"]);
    }
}

#[test]
fn a_diagnostic_about_an_object_of_another_namespace_has_no_claimant_of_the_machine_that_its_labels_name() {
    let items = json!([
        object("KubevirtMachine", "m-1", annotated("10.0.0.6/24")),
        guest("VirtualMachine", "v-1", annotated("bogus")),
        with(guest("VirtualMachine", "v-2", annotated("10.0.0.7/24")), json!({"metadata": {"name": "x"}})),
    ]);
    let inventory = inventory_of(items);
    let claimants: Vec<_> =
        inventory.diagnostics.iter().map(|it| it.claimant.as_ref().map(ToString::to_string)).collect();
    assert_eq!(claimants, [Some("eno101 of infra/w (v-1)".to_owned())]);
    let records: Vec<_> = inventory.records.iter().map(|record| record.claimant.to_string()).collect();
    assert_eq!(records, ["eno101 of clusters/w (m-1)", "eno101 of infra/x (v-2)"]);
}

#[test]
fn an_owner_with_an_invalid_uid_or_name_is_ignored() {
    let record = format!(r#"infra/w (i-1) eno101 ["10.0.0.5/24"] in list: items[0].{AT}"#);
    for owner in [json!({"uid": ""}), json!({"name": "w("})] {
        let mut instance = instance("i-1", "v-1", annotated("10.0.0.5/24"));
        merge(&mut instance["metadata"]["ownerReferences"][0], owner);
        assert_eq!(read(json!([instance])), (vec![record.clone()], vec![]));
    }
}

#[test]
fn a_record_of_a_guest_belongs_to_its_machine() {
    let items = json!([
        guest("VirtualMachine", "v-1", with(annotated("10.0.0.5/24"), created("2026-08-01T10:00:01Z"))),
        worker("m-1", created("2026-08-01T10:00:00Z")),
    ]);
    let record = format!(r#"clusters/w (m-1) eno101 ["10.0.0.5/24"] in list: items[0].{AT}"#);
    assert_eq!(read(items), (vec![record], vec![]));
}

#[test]
fn a_guest_that_is_older_than_its_machine_belongs_to_a_predecessor() {
    let old = guest("VirtualMachine", "v-1", with(annotated("10.0.0.5/24"), created("2026-08-01T09:00:00Z")));
    let predecessors = format!(r#"clusters/w (v-1) eno101 ["10.0.0.5/24"] in list: items[0].{AT}"#);
    let new = worker("m-2", created("2026-08-01T10:00:00Z"));
    assert_eq!(read(json!([old, new])), (vec![predecessors.clone()], vec![]));
    let successors = format!(r#"clusters/w (m-2) eno101 ["10.0.0.6/24"] in list: items[1].{AT}"#);
    let with_another = with(new.clone(), annotated("10.0.0.6/24"));
    assert_eq!(read(json!([old, with_another])), (vec![successors, predecessors], vec![]));
    // A machine that was moved from another cluster is younger than its guest, too.
    let moved = format!(r#"clusters/w (m-2) eno101 ["10.0.0.5/24"] in list: items[1].{AT}"#);
    assert_eq!(read(json!([old, with(new, annotated("10.0.0.5/24"))])), (vec![moved], vec![]));
}

#[test]
fn records_of_one_machine_that_contradict_each_other_are_reported() {
    let items = json!([
        with(
            worker("m-1", annotated("10.0.0.5/24")),
            json!({"status": {STATUS_FIELD: {"eno101": ["10.0.0.5/16", "fd00::5/64"]}}})
        ),
        guest("VirtualMachine", "v-1", annotated("10.0.0.7/24")),
    ]);
    let record = format!(r#"clusters/w (m-1) eno101 ["10.0.0.5/24"] in list: items[0].{AT}"#);
    let expected = format!("expected 10.0.0.5/24 as in list: items[0].{AT}");
    let diagnostics = [
        format!(
            r#"list: items[0].status.allocatedBootstrapAddresses.eno101: contradicting record "10.0.0.5/16, fd00::5/64", {expected} [fd00::5]"#
        ),
        format!(r#"list: items[1].{AT}: contradicting record "10.0.0.7/24", {expected} [10.0.0.7]"#),
    ];
    assert_eq!(read(items), (vec![record], diagnostics.to_vec()));
}

// === Where a machine belongs ===

/// Returns the NodePool, the attachments and the network of each record.
fn origins(items: Value) -> Vec<(Option<String>, Vec<String>, Option<String>)> {
    let records = inventory_of(items).records.into_iter();
    records.map(|record| (record.node_pool, record.attachments, record.network)).collect()
}

#[test]
fn a_record_has_the_node_pool_of_its_machine() {
    let node_pool = json!({"metadata": {"annotations": {NODE_POOL_ANNOTATION: "clusters/a"}}});
    let own = with(object("KubevirtMachine", "m-1", annotated("10.0.0.5/24")), node_pool.clone());
    assert_eq!(origins(json!([own])), [(Some("clusters/a".to_owned()), vec![], None)]);
    // The machine is gone, and its guest still has the annotations from the template.
    let left = guest("VirtualMachine", "v-1", with(annotated("10.0.0.5/24"), node_pool));
    assert_eq!(origins(json!([left])), [(Some("clusters/a".to_owned()), vec![], None)]);
}

#[test]
fn a_record_has_the_networks_of_all_objects_of_its_machine() {
    let networks = json!({"networks": [
        {"name": "default", "pod": {}},
        {"name": "a", "multus": {"networkName": "vlan10"}},
        {"name": "b", "multus": {"networkName": "storage/vlan20"}},
    ]});
    let template = json!({"spec": {"template": {"spec": networks}}});
    let mut in_infra = template.clone();
    in_infra["metadata"] = json!({"namespace": "infra"});
    let own = with(
        object("KubevirtMachine", "m-1", annotated("10.0.0.5/24")),
        json!({"spec": {"virtualMachineTemplate": template}}),
    );
    let all = |namespace: &str| {
        let mut attachments = [format!("{namespace}/vlan10"), "default".to_owned(), "storage/vlan20".to_owned()];
        attachments.sort_unstable();
        vec![(None, attachments.to_vec(), None)]
    };
    assert_eq!(origins(json!([own])), all("clusters"));
    let elsewhere = object("KubevirtMachine", "m-1", annotated("10.0.0.5/24"));
    let elsewhere = with(elsewhere, json!({"spec": {"virtualMachineTemplate": in_infra}}));
    assert_eq!(origins(json!([elsewhere])), all("infra"));
    let machine = worker("m-1", annotated("10.0.0.5/24"));
    assert_eq!(origins(json!([machine, guest("VirtualMachine", "v-1", template)])), all("infra"));
    assert_eq!(
        origins(json!([machine, guest("VirtualMachineInstance", "i-1", json!({"spec": networks}))])),
        all("infra")
    );
}

#[test]
fn a_record_has_the_network_that_an_annotation_names() {
    let network = |value: &str| json!({"metadata": {"annotations": {"ipam.glowplug.dev/network-eno101": value}}});
    let own = |value: &str| worker("m-1", with(annotated("10.0.0.5/24"), network(value)));
    for value in ["infra/vlan10", "default"] {
        assert_eq!(origins(json!([own(value)])), [(None, vec![], Some(value.to_owned()))]);
    }
    let guest = |value: &str| guest("VirtualMachine", "v-1", with(annotated("10.0.0.5"), network(value)));
    let machine = worker("m-1", annotated("10.0.0.5/24"));
    assert_eq!(origins(json!([machine, guest("infra/vlan10")])), [(None, vec![], Some("infra/vlan10".to_owned()))]);
    let contradicting = read(json!([own("infra/vlan10"), guest("infra/vlan20")])).1;
    let expected = format!("expected 10.0.0.5/24 of network infra/vlan10 as in list: items[0].{AT}");
    let value = "10.0.0.5/32 of network infra/vlan20";
    assert_eq!(contradicting, [format!("list: items[1].{AT}: contradicting record {value:?}, {expected} [10.0.0.5]")]);
    let path = "items[0].metadata.annotations.\"ipam.glowplug.dev/network-eno101\"";
    assert_eq!(
        read(json!([own("vlan\u{1b}10")])).1,
        [format!(
            "list: {path}: invalid network of a record \"vlan\\u{{1b}}10\", expected an interface in the key, and \
             namespace/name or default []"
        )]
    );
}

#[test]
fn each_address_that_a_guest_reports_is_read_with_its_network() {
    let items = json!([
        worker("m-1", annotated("10.0.0.5/24")),
        guest(
            "VirtualMachineInstance",
            "i-1",
            json!({
                "spec": {"networks": [{"name": "a", "multus": {"networkName": "vlan10"}}]},
                "status": {"interfaces": [
                    {"name": "a", "ipAddress": "10.0.0.5", "ipAddresses": ["10.0.0.5", "fd00::5"], "mac": "52:54:00:12:34:56"},
                    {"name": "b"},
                    {"interfaceName": "tun0", "ipAddress": "10.8.0.1"},
                ]},
            })
        ),
    ]);
    let report = |network: Option<&str>, address: &str, at: usize| Report {
        machine: machine(),
        network: network.map(str::to_owned),
        address: address.parse().unwrap(),
        source: format!("list: items[1].status.interfaces[{at}]"),
    };
    assert_eq!(
        inventory_of(items).reports,
        [
            report(Some("infra/vlan10"), "10.0.0.5", 0),
            report(Some("infra/vlan10"), "fd00::5", 0),
            report(None, "10.8.0.1", 2)
        ]
    );
}

#[test]
fn machines_without_a_record_and_objects_of_unknown_machines_are_counted() {
    let deleted = json!({"metadata": {"name": "d", "deletionTimestamp": "2026-08-01T11:00:00Z"}});
    let items = json!([
        object("KubevirtMachine", "m-1", json!({})),
        object("KubevirtMachine", "m-2", with(annotated("10.0.0.5/24"), json!({"metadata": {"name": "recorded"}}))),
        object("KubevirtMachine", "m-3", with(annotated("soon"), json!({"metadata": {"name": "unreadable"}}))),
        object("KubevirtMachine", "m-4", deleted),
        7,
    ]);
    let inventory = inventory_of(items);
    let without = Unrecorded { machine: machine(), node_pool: None, attachments: Vec::new() };
    assert_eq!((inventory.without_record, inventory.unidentified), (vec![without], 1));
}

#[test]
fn a_virtual_machine_without_a_kubevirt_machine_is_counted_if_it_may_use_an_unknown_address() {
    let networks =
        json!({"spec": {"template": {"spec": {"networks": [{"name": "a", "multus": {"networkName": "vlan10"}}]}}}});
    let vm = |more: Value| with(object("VirtualMachine", "v-1", networks.clone()), more);
    let without = |items: Value| inventory_of(items).without_record;
    let machine = Machine { uid: "v-1".to_owned(), ..machine() };
    let attachments = vec!["clusters/vlan10".to_owned()];
    assert_eq!(without(json!([vm(json!({}))])), [Unrecorded { machine, node_pool: None, attachments }]);
    let reporting = json!({"status": {"interfaces": [{"name": "a", "ipAddress": "10.0.0.6"}]}});
    let mut reporting = with(instance("i-1", "v-1", networks.clone()), reporting);
    reporting["metadata"]["namespace"] = json!("clusters");
    for items in [
        json!([object("VirtualMachine", "v-1", json!({}))]),
        json!([vm(annotated("10.0.0.5/24"))]),
        json!([vm(json!({"metadata": {"deletionTimestamp": "2026-08-01T11:00:00Z"}}))]),
        json!([vm(json!({})), reporting]),
    ] {
        assert_eq!(without(items.clone()), [], "{items}");
    }
}

#[test]
fn a_list_that_is_read_twice_gives_no_duplicates() {
    let list = |address: &str| json!({"items": [object("KubevirtMachine", "m-1", annotated(address))]}).to_string();
    let mut objects = Objects::default();
    for (name, address) in [("a", "10.0.0.5/24"), ("b", "10.0.0.5/24"), ("c", "10.0.0.6/24")] {
        objects.read(name, list(address).as_bytes()).unwrap();
    }
    let record = format!(r#"clusters/w (m-1) eno101 ["10.0.0.5/24"] in a: items[0].{AT}"#);
    let diagnostic = format!(
        r#"c: items[0].{AT}: contradicting record "10.0.0.6/24", expected 10.0.0.5/24 as in a: items[0].{AT} [10.0.0.6]"#
    );
    assert_eq!(lines(&objects.inventory()), (vec![record], vec![diagnostic]));
}

#[test]
fn the_records_and_reports_of_each_version_of_an_object_count() {
    let interface = |address: &str| json!({"status": {"interfaces": [{"name": "eth0", "ipAddress": address}]}});
    let first = instance("i-1", "v-1", json!({}));
    let later = with(with(first.clone(), annotated("10.0.0.5/24")), interface("10.0.0.6"));
    for items in [json!([first, later]), json!([later, first]), json!([later, later])] {
        let inventory = inventory_of(items);
        let recorded = inventory.records.iter().flat_map(|record| &record.addresses);
        let records: Vec<String> = recorded.map(ToString::to_string).collect();
        let reports: Vec<String> = inventory.reports.iter().map(|report| report.address.to_string()).collect();
        assert_eq!((records, reports), (vec!["10.0.0.5/24".to_owned()], vec!["10.0.0.6".to_owned()]));
    }
}

#[test]
fn the_addresses_that_an_unidentified_guest_reports_are_kept() {
    let interface = json!({"status": {"interfaces": [{"name": "eth0", "ipAddresses": ["10.0.0.6", "fd00::6"]}]}});
    let mut unidentified = with(instance("i-1", "v-1", annotated("10.0.0.5/24")), interface);
    unidentified["metadata"]["uid"] = json!("");
    let inventory = inventory_of(json!([unidentified]));
    let kept: Vec<Vec<String>> =
        inventory.diagnostics.iter().map(|it| it.addresses.iter().map(ToString::to_string).collect()).collect();
    assert_eq!(kept, [["10.0.0.5", "10.0.0.6", "fd00::6"]]);
}

#[test]
fn machines_with_the_same_name_in_two_namespaces_are_two_machines() {
    let other = json!({"metadata": {"namespace": "others"}});
    let items = json!([
        with(object("KubevirtMachine", "m-2", annotated("10.0.0.5/24")), other),
        object("KubevirtMachine", "m-1", annotated("10.0.0.5/24")),
    ]);
    let records = [
        format!(r#"clusters/w (m-1) eno101 ["10.0.0.5/24"] in list: items[1].{AT}"#),
        format!(r#"others/w (m-2) eno101 ["10.0.0.5/24"] in list: items[0].{AT}"#),
    ];
    assert_eq!(read(items), (records.to_vec(), vec![]));
}

#[test]
fn a_machine_is_not_missing_while_one_of_its_objects_may_exist() {
    let named = |uid: &str| Machine { uid: uid.to_owned(), ..machine() };
    let there = |items: Value| {
        let inventory = inventory_of(items);
        ["m-1", "m-2", "v-1"].map(|uid| inventory.is_there(&named(uid)))
    };
    let new = || worker("m-2", created("2026-08-01T10:00:00Z"));
    let guest = |at: &str| guest("VirtualMachine", "v-1", created(at));
    assert_eq!(there(json!([])), [false, false, false]);
    assert_eq!(there(json!([new()])), [false, true, false]);
    // The machine of the guest is unknown. The guest may belong to any machine of this name.
    assert_eq!(there(json!([guest("2026-08-01T10:00:01Z")])), [true, true, true]);
    // The guest belongs to the new machine. A ledger may identify this machine by the UID of the guest.
    assert_eq!(there(json!([new(), guest("2026-08-01T10:00:01Z")])), [false, true, true]);
    // The guest is older than the new machine, so it may belong to any earlier machine of this name.
    assert_eq!(there(json!([new(), guest("2026-08-01T09:00:00Z")])), [true, true, true]);
    // It is unknown whether the guest is older.
    assert_eq!(there(json!([new(), guest("")])), [true, true, true]);
    assert_eq!(there(json!([worker("m-2", json!({})), guest("2026-08-01T10:00:01Z")])), [true; 3]);
}

#[test]
fn a_guest_is_in_the_lists_under_its_own_name_and_under_that_of_its_machine() {
    let there = |items: Value| {
        let inventory = inventory_of(items);
        let named = |(namespace, uid)| inventory.is_there(&Machine::new(namespace, "w", uid));
        [("infra", "v-1"), ("infra", "i-1"), ("clusters", "m-1"), ("clusters", "v-1"), ("clusters", "m-0")].map(named)
    };
    let worker = worker("m-1", created("2026-08-01T10:00:00Z"));
    let younger = created("2026-08-01T10:00:01Z");
    let vm = guest("VirtualMachine", "v-1", younger.clone());
    let instance = with(instance("i-1", "v-1", younger), guest("VirtualMachineInstance", "i-1", json!({})));
    assert_eq!(there(json!([worker, vm])), [true, false, true, true, false]);
    for items in [json!([worker, vm, instance]), json!([worker, instance])] {
        assert_eq!(there(items), [true, true, true, true, false]);
    }
}

#[test]
fn labels_without_a_confirmation_add_a_machine_and_take_none_away() {
    let template =
        |namespace: &str| json!({"spec": {"virtualMachineTemplate": {"metadata": {"namespace": namespace}}}});
    let machine = |spec: Value| Some(object("KubevirtMachine", "m-1", spec));
    // A machine that names the namespace of its VirtualMachine has no guest in another namespace.
    for (machine, may_have_guest) in [
        (None, true),
        (machine(json!({})), true),
        (machine(json!({"spec": {"virtualMachineTemplate": {}, "infraClusterSecretRef": {"name": "a"}}})), true),
        (machine(json!({"spec": {"virtualMachineTemplate": {}}})), false),
        (machine(template("other")), false),
    ] {
        for guest in [guest("VirtualMachine", "v-1", json!({})), guest("VirtualMachineInstance", "v-1", json!({}))] {
            let inventory = inventory_of(json!(machine.iter().chain([&guest]).collect::<Vec<_>>()));
            let named = |namespace: &str, uid: &str| Machine::new(namespace, "w", uid);
            // The guest may belong to an earlier machine of this name.
            let there = [named("infra", "v-1"), named("clusters", "m-0")].map(|machine| inventory.is_there(&machine));
            let has_guest = ["infra", "clusters"].map(|namespace| inventory.has_guest(&named(namespace, "")));
            let has_namespace = ["infra", "clusters"].map(|namespace| inventory.has_namespace(namespace));
            assert_eq!(
                (there, has_guest, has_namespace),
                ([true; 2], [true, may_have_guest], [true, machine.is_some()]),
                "{machine:?}"
            );
        }
    }
}

#[test]
fn only_lists_of_the_place_of_a_virtual_machine_show_that_a_machine_has_no_guest() {
    let why = |items: Value| inventory_of(items).why_guest_is_unknown(&machine());
    let spec = |spec: Value| object("KubevirtMachine", "m-1", json!({"spec": spec}));
    let other = |kind: &str, namespace: &str| {
        let uid = format!("{kind}-{namespace}");
        json!({"kind": kind, "metadata": {"namespace": namespace, "name": "o", "uid": uid}})
    };
    let [vm, instance] = ["VirtualMachine", "VirtualMachineInstance"];
    let own = || spec(json!({"virtualMachineTemplate": {}}));
    let template = json!({"metadata": {"namespace": "infra"}});
    let in_infra = || spec(json!({"virtualMachineTemplate": template}));
    let in_infra_cluster = || spec(json!({"virtualMachineTemplate": template, "infraClusterSecretRef": {"name": "a"}}));
    let elsewhere = "its VirtualMachine may be in another namespace or cluster, expected spec.virtualMachineTemplate, and \
                     no infraClusterSecretRef";
    let absent = |what: &str| format!("no {what} in the lists, expected all objects of each kind");
    let of = |namespace: &str| [other(vm, namespace), other(instance, namespace)];
    for (machines, others, expected) in [
        (vec![own()], of("clusters").to_vec(), None),
        (vec![in_infra()], of("infra").to_vec(), None),
        // A whole object and its metadata.
        (vec![object("KubevirtMachine", "m-1", json!({})), in_infra()], of("infra").to_vec(), None),
        (
            vec![own()],
            of("infra").to_vec(),
            Some(absent("VirtualMachine and no VirtualMachineInstance of namespace clusters")),
        ),
        (
            vec![in_infra()],
            of("clusters").to_vec(),
            Some(absent("VirtualMachine and no VirtualMachineInstance of namespace infra")),
        ),
        (
            vec![own()],
            vec![other(vm, "clusters"), other(instance, "infra")],
            Some(absent("VirtualMachineInstance of namespace clusters")),
        ),
        (vec![in_infra_cluster()], of("infra").to_vec(), Some(elsewhere.to_owned())),
        (vec![object("KubevirtMachine", "m-1", json!({}))], of("clusters").to_vec(), Some(elsewhere.to_owned())),
        (vec![], of("clusters").to_vec(), Some(elsewhere.to_owned())),
        // Two machines of one name have their VirtualMachines in two namespaces.
        (
            vec![own(), with(in_infra(), json!({"metadata": {"uid": "m-2"}}))],
            [of("clusters"), of("infra")].concat(),
            Some(elsewhere.to_owned()),
        ),
        (
            vec![own()],
            [of("clusters").to_vec(), vec![json!({"kind": vm, "metadata": {"name": "w"}})]].concat(),
            Some("1 objects of unknown machines in the lists, expected namespace, name and UID of each".to_owned()),
        ),
    ] {
        let items: Vec<Value> = machines.into_iter().chain(others).collect();
        assert_eq!(why(json!(items)), expected, "{items:?}");
    }
}

#[test]
fn a_virtual_machine_without_labels_is_a_guest_where_its_machine_has_it() {
    let machine_in = |namespace: &str| {
        let spec = json!({"spec": {"virtualMachineTemplate": {"metadata": {"namespace": namespace}}}});
        object("KubevirtMachine", "m-1", spec)
    };
    let guest = json!({"kind": "VirtualMachine", "metadata": {"namespace": "infra", "name": "w", "uid": "v-1"}});
    let has_guest = |namespace: &str| inventory_of(json!([machine_in(namespace), guest])).has_guest(&machine());
    assert_eq!(["infra", "clusters"].map(has_guest), [true, false]);
}

#[test]
fn unreadable_and_contradictory_records_are_reported_with_their_machine() {
    let items = json!([
        with(worker("m-1", annotated("10.0.0.5/24, 10.0.0.6/33")), created("2026-08-01T10:00:00Z")),
        guest("VirtualMachine", "v-1", with(annotated("10.0.0.7/24"), created("2026-08-01T10:00:01Z"))),
        guest("VirtualMachine", "v-0", with(annotated("[[\"10.0.0.8\"]]"), created("2026-08-01T09:00:00Z"))),
    ]);
    let diagnostics = inventory_of(items).diagnostics;
    let whose = |diagnostic: &ObjectDiagnostic| {
        (diagnostic.claimant.as_ref().unwrap().to_string(), diagnostic.addresses.clone())
    };
    let of = |uid: &str, address: &str| (format!("eno101 of clusters/w ({uid})"), vec![address.parse().unwrap()]);
    assert_eq!(
        diagnostics.iter().map(whose).collect::<Vec<_>>(),
        [of("m-1", "10.0.0.6"), of("v-0", "10.0.0.8"), of("m-1", "10.0.0.7")]
    );
    assert_eq!(
        diagnostics[0].to_string(),
        format!(
            "list: items[0].{AT}: invalid prefix length \"10.0.0.6/33\", expected a length of 1 to 32 without sign or \
             leading zero, in the record of eno101 of clusters/w (m-1)"
        )
    );
}

#[test]
fn a_parsed_object_gives_the_same_inventory_as_its_text() {
    let reported = json!([{"name": "eth0", "ipAddresses": ["10.0.0.5", "x"]}]);
    for object in [
        object("KubevirtMachine", "m-1", annotated(r#"["10.0.0.5/24"]"#)),
        object("VirtualMachineInstance", "i-1", json!({"status": {"interfaces": reported}})),
        object(
            "KubevirtMachine",
            "m-1",
            json!({"metadata": {"creationTimestamp": null, "labels": null}, "spec": null}),
        ),
        object("KubevirtMachine", "m-1", annotated("10.0.0.5 10.0.0.6/33")),
        object("KubevirtMachine", "m-1", json!({"metadata": {"annotations": {KEY: ["10.0.0.5"]}}})),
        object("Pod", "p-1", annotated("10.0.0.5")),
    ] {
        let (mut parsed, mut text) = (Objects::default(), Objects::default());
        parsed.read_value("object", &object);
        text.read("object", object.to_string().as_bytes()).unwrap();
        assert_eq!(parsed.inventory(), text.inventory(), "{object}");
    }
}
