//! Tests that an object of a machine, with any content, changes neither the state nor the records of other machines.

use std::net::IpAddr;

use glowplug::host::claim::Record;
use glowplug::host::records::Objects;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use serde_json::{Value, json};

use crate::cluster::key::{Key, key};
use crate::kinds::cluster_api::Version;
use crate::kinds::kubevirt_machine::{NetworkSecret, addresses_of, read_records};
use crate::machines::kind::{Kinds, MachineKind};
use crate::machines::known_machines::KnownMachines;
use crate::machines::view::View;
use crate::variants::each_object;

/// Returns one object of each kind for machine `name`, with every member that the controller reads.
fn objects_of(name: &str, address: &str) -> Vec<(MachineKind, &'static str, Value)> {
    let metadata = |suffix: &str, more: &Value| {
        let mut metadata = json!({
            "namespace": "n", "name": format!("{name}{suffix}"), "uid": format!("u-{name}"), "resourceVersion": "5",
        });
        json_patch::merge(&mut metadata, more);
        metadata
    };
    let labels = json!({
        "capk.cluster.x-k8s.io/kubevirt-machine-name": name, "capk.cluster.x-k8s.io/kubevirt-machine-namespace": "n",
        "kubevirt.io/vm": name,
    });
    let with_length = format!("{address}/24");
    let document = json!({"version": 2, "ethernets": {"eno101": {"addresses": [with_length]}}}).to_string();
    let requested = json!({"iface1": [with_length]}).to_string();
    let interface = json!({"name": "iface1", "bridge": {}, "acpiIndex": 101, "macAddress": "02:00:00:00:00:01"});
    let template = json!({
        "metadata": {"annotations": {"network.kubevirt.io/addresses": requested}},
        "spec": {
            "domain": {"devices": {"interfaces": [interface]}},
            "networks": [{"name": "iface1", "multus": {"networkName": "infra/vlan10"}}],
            "volumes": [{"name": "c", "cloudInitNoCloud": {"networkData": document}}],
        },
    });
    let owner =
        json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": name, "uid": format!("u-{name}")});
    let owned = json!({"labels": labels, "ownerReferences": [owner]});
    let failed = |kind: &str, reason: &str, message: &str| json!([{"type": kind, "status": "False", "reason": reason, "message": message}]);
    let machine = json!({
        "metadata": metadata("", &json!({"annotations": {
            "kubevirt.cluster.x-k8s.io/allocated-ip-eno101": with_length,
        }})),
        "spec": {"virtualMachineTemplate": {
            "metadata": {"namespace": "n", "labels": labels}, "spec": {"template": template},
        }},
        "status": {
            "allocatedBootstrapAddresses": {"eno101": [with_length]},
            "conditions": failed("VMProvisioned", "VMCreateFailed", "No available IPs in pool for interface eno101"),
        },
    });
    let vm = json!({"metadata": metadata("", &json!({"labels": labels})), "spec": {"template": template}});
    let report = json!({
        "name": "iface1", "interfaceName": "eno101", "mac": "02:00:00:00:00:01", "ipAddress": address,
        "ipAddresses": [address, "fe80::1"],
    });
    let instance = json!({
        "metadata": metadata("", &owned), "spec": template["spec"],
        "status": {"phase": "Running", "interfaces": [report]},
    });
    let note = json!({
        "kind": "VirtualMachine", "interface": "eno101",
        "machine": {"namespace": "n", "name": name, "uid": format!("u-{name}")},
    });
    let claim = json!({
        "metadata": metadata("-eno101", &json!({"annotations": {"ipam.glowplug.dev/claimant": note.to_string()}})),
        "spec": {"poolRef": {"apiGroup": "ipam.cluster.x-k8s.io", "kind": "InClusterIPPool", "name": "p"}},
        "status": {
            "addressRef": {"name": format!("{name}-eno101")},
            "conditions": failed("Ready", "PoolExhausted", "no address left"),
        },
    });
    let ipam_claim = json!({
        "metadata": metadata(".iface1", &owned),
        "status": {"ips": [with_length], "conditions": failed("IPsAllocated", "SubnetExhausted", "none left")},
    });
    vec![
        (MachineKind::KubevirtMachine, "KubevirtMachine", machine),
        (MachineKind::VirtualMachine, "VirtualMachine", vm),
        (MachineKind::Instance, "VirtualMachineInstance", instance),
        (MachineKind::AddressClaim(Version::V1Beta2), "IPAddressClaim", claim),
        (MachineKind::IpamClaim, "IPAMClaim", ipam_claim),
    ]
}

/// Returns the objects, claims, holders and pools of machine `honest` in the index.
fn state(index: &KnownMachines) -> impl PartialEq + use<> {
    let honest = key("honest");
    let objects = (index.vm(&honest).cloned(), index.machine(&honest).cloned(), index.instance(&honest).cloned());
    let claims = (index.claims_of(&honest), index.ipam_claim(&key("honest.iface1")).cloned());
    (objects, claims, index.earlier_of(&honest), index.selected(&honest))
}

/// Returns an index with the objects of machine `honest`.
fn index() -> KnownMachines {
    let mut index = KnownMachines::default();
    for (kind, _, object) in objects_of("honest", "10.0.0.8") {
        index.apply(kind, serde_json::from_value(object).unwrap());
    }
    index
}

#[test]
fn no_content_of_an_object_changes_the_state_of_another_machine() {
    let before = state(&index());
    for (kind, _, valid) in objects_of("hostile", "10.0.0.9") {
        let mut index = index();
        each_object(&valid, |object| {
            let key = Key::of(&object.metadata);
            index.apply(kind, object);
            index.remove(kind, &key, None);
        });
        assert!(state(&index) == before, "after the objects of {kind:?}");
    }
}

#[test]
fn no_content_of_an_object_removes_the_record_of_another_machine() {
    let honest = |objects: &mut Objects| {
        for (_, kind, object) in objects_of("honest", "10.0.0.8") {
            read_records(objects, kind, &serde_json::from_value(object).unwrap());
        }
    };
    let mut alone = Objects::default();
    honest(&mut alone);
    let [record] = &alone.inventory().records[..] else { panic!("expected one record") };
    assert_eq!(record.addresses, ["10.0.0.8/24".parse().unwrap()]);
    for (_, kind, valid) in objects_of("hostile", "10.0.0.9") {
        each_object(&valid, |object| {
            let mut all = Objects::default();
            read_records(&mut all, kind, &object);
            honest(&mut all);
            assert!(all.inventory().records.contains(record), "{kind}");
        });
    }
}

/// Returns objects in namespace `evil` whose labels, owner references and claimants name machine `n/honest`.
fn impostors_of(name: &str) -> Vec<(MachineKind, &'static str, Value)> {
    let mut all = objects_of("honest", "10.0.0.9");
    for (_, _, object) in &mut all {
        let suffix = object["metadata"]["name"].as_str().unwrap().strip_prefix("honest").unwrap();
        let metadata = json!({
            "namespace": "evil", "name": format!("{name}{suffix}"), "uid": "u-evil",
            "annotations": {
                "kubevirt.cluster.x-k8s.io/allocated-ip-eno101": "10.0.0.9/24",
                "ipam.glowplug.dev/network-eno101": "infra/vlan10",
            },
            "labels": {"hypershift.openshift.io/nodePool": "honest", "hypershift.openshift.io/nodepool-name": "honest"},
        });
        json_patch::merge(object, &json!({"metadata": metadata}));
    }
    all
}

#[test]
fn no_object_that_names_a_machine_of_another_namespace_changes_the_state_of_that_machine() {
    let objects = |index: &KnownMachines| {
        let honest = key("honest");
        let objects = (index.vm(&honest).cloned(), index.machine(&honest).cloned(), index.instance(&honest).cloned());
        let claims = (index.claims_of(&honest), index.ipam_claim(&key("honest.iface1")).cloned());
        (objects, claims, index.selected(&honest), index.by_age().len())
    };
    let before = objects(&index());
    for name in ["honest", "hostile"] {
        for (kind, _, valid) in impostors_of(name) {
            let mut index = index();
            each_object(&valid, |object| {
                let key = Key::of(&object.metadata);
                index.apply(kind, object);
                index.remove(kind, &key, None);
            });
            assert!(objects(&index) == before, "after the objects of {kind:?} of {name}");
            assert!(state(&index) == state(&self::index()), "after the objects of {kind:?} of {name}");
        }
    }
}

#[test]
fn no_object_that_names_a_machine_of_another_namespace_removes_the_record_of_that_machine() {
    let mut alone = Objects::default();
    for (_, kind, object) in objects_of("honest", "10.0.0.8") {
        read_records(&mut alone, kind, &serde_json::from_value(object).unwrap());
    }
    let [record] = &alone.inventory().records[..] else { panic!("expected one record") };
    for name in ["honest", "hostile"] {
        for (_, kind, valid) in impostors_of(name) {
            each_object(&valid, |object| {
                let mut all = Objects::default();
                read_records(&mut all, kind, &object);
                for (_, kind, object) in objects_of("honest", "10.0.0.8") {
                    read_records(&mut all, kind, &serde_json::from_value(object).unwrap());
                }
                let records = all.inventory().records;
                let is_kept =
                    |kept: &Record| (&kept.claimant, &kept.addresses) == (&record.claimant, &record.addresses);
                assert!(records.iter().any(is_kept), "{kind} of {name}: {records:?}");
            });
        }
    }
}

#[test]
fn a_secret_with_any_content_counts_only_for_the_machine_of_its_own_virtual_machine() {
    let given = json!({
        "interface": "eno101", "network": "infra/vlan10", "pool": "n/p", "addresses": ["10.0.0.9/24"],
    });
    let machine = json!({"namespace": "n", "name": "hostile", "uid": "u-hostile"});
    let note = json!({"vm": "u-hostile", "kind": "VirtualMachine", "machine": machine, "interfaces": [given]});
    let document = r#"{"links": [{"id": "eno101", "type": "phy"}], "networks": [
        {"id": "a", "type": "ipv4", "link": "eno101", "ip_address": "10.0.0.9", "netmask": "255.255.255.0"}]}"#;
    let valid = json!({
        "metadata": {
            "namespace": "n", "name": "hostile-networkdata", "uid": "s-1",
            "annotations": {"ipam.glowplug.dev/allocation": note.to_string()}, "labels": {"a": "b"},
        },
        "data": {"networkdata": document},
    });
    let kinds = Kinds { has_kubevirt_machines: true, claims: Some(Version::V1Beta2), has_ipam_claims: true };
    let view = View::new(key("hostile"), kinds);
    let (mut ours, mut foreign) = (0, 0);
    each_object(&valid, |object| {
        let texts = object.data["data"].as_object().into_iter().flatten();
        let data = texts.filter_map(|(key, text)| Some((key.clone(), ByteString(text.as_str()?.as_bytes().to_vec()))));
        let secret = Secret { data: Some(data.collect()), metadata: object.metadata, ..Secret::default() };
        let addresses = addresses_of(Some(secret.clone()));
        let read = view.check(NetworkSecret::read(Some(secret)));
        match read {
            NetworkSecret::Ours(own) => {
                ours += 1;
                assert_eq!(Key::of_machine(&own.machine), key("hostile"));
                let given = own.interfaces.iter().flat_map(|given| &given.addresses);
                let given: Vec<IpAddr> = given.map(|address| address.ip()).collect();
                assert!(given.iter().all(|address| addresses.contains(address)), "{given:?} of {addresses:?}");
            }
            NetworkSecret::Foreign(..) => foreign += 1,
            NetworkSecret::Absent => panic!("the Secret exists"),
        }
    });
    assert!(ours > 10 && foreign > 10, "{ours} of this program, {foreign} of others");
}
