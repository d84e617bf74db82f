//! Tests of the decisions about a machine with objects of any content.

use glowplug::host::claim::is_object_name;

use super::*;
use crate::variants::each_object;

/// Derives objects from `valid`, and puts each object into a view with `view`. Asserts that each decision concerns only
/// the machine `n/w` and addresses of its network.
fn decisions_concern_only_the_machine(valid: &Value, view: impl Fn(crate::cluster::object::Object) -> Option<View>) {
    let network: IpNetwork = "10.0.0.0/16".parse().unwrap();
    let is_own = |machine: &Machine| Key::of_machine(machine) == key();
    // A label may name a machine with the name `w` in another namespace.
    let is_labelled = |machine: &Machine| machine.name == "w" && ["m-1", "v-1"].contains(&machine.uid.as_str());
    each_object(valid, |object| {
        let Some(view) = view(object) else { return };
        match decide(&view) {
            Step::Hold(hold) => {
                assert!(is_own(&hold.claimant.machine), "{hold:?}");
                assert_eq!((hold.pool.as_str(), hold.claimant.interface.to_string().as_str()), ("n/p", "eno101"));
                let is_inside = |address: &IpNetwork| network.contains(address.ip()) && address.prefix() == 16;
                assert!(!hold.addresses.is_empty() && hold.addresses.iter().all(is_inside), "{hold:?}");
            }
            Step::Claim(claim) => assert!(is_labelled(&claim.machine), "{claim:?}"),
            Step::ReadMachine(machine) => assert_eq!(machine.name, "w"),
            Step::ReadSecret(name) => assert!(is_object_name(&name), "{name:?}"),
            Step::ReadOtherSecret(_) | Step::ReadInstance | Step::Wait | Step::Report(_) => {}
            Step::ReadAddress(name) | Step::PatchAddress(name, _) => assert!(is_object_name(&name), "{name:?}"),
            Step::DeleteClaim(name, _) | Step::PatchClaim(name, _) => assert_eq!(name, "w-eno101"),
            Step::CreateClaim(claim) => assert_eq!(claim["metadata"]["name"], "w-eno101"),
            Step::RequestReference(..) | Step::PatchVm(..) | Step::AnnotateVm(_) => {}
            Step::RemoveRecords(_) | Step::MarkVm(_) => {}
            Step::RecordSecrets(machine, _) | Step::DropSecrets(machine, ..) => {
                assert!(is_own(&machine), "{machine:?}")
            }
            Step::UpdateSecret(own, document) => {
                assert_eq!(addresses_in(document.as_bytes()), addresses_in(&own.document));
            }
            Step::PatchMachine(_) | Step::PatchStatus(_) | Step::Retry(_) => {}
            // The networks of the guest have any name.
            Step::Reserve(all) => {
                let is_of_machine = |it: &Reservation| is_own(&it.claimant.machine) && network.contains(it.address);
                assert!(all.iter().all(is_of_machine), "{all:?}");
            }
            Step::Withdraw(machine) | Step::Prove(machine) => assert!(is_own(&machine), "{machine:?}"),
            step => panic!("{step:?}"),
        }
    });
}

#[test]
fn an_ipaddress_of_another_provider_with_any_content_gives_only_addresses_of_the_network() {
    let valid = json!({
        "metadata": {"namespace": "n", "name": "a", "resourceVersion": "9", "finalizers": ["ipam.glowplug.dev/in-use"]},
        "spec": {
            "address": "10.0.0.8", "prefix": 16, "gateway": "10.0.0.2", "claimRef": {"name": "w-eno101"},
            "poolRef": {"apiGroup": "ipam.cluster.x-k8s.io", "kind": "InClusterIPPool", "name": "x"},
        },
    });
    decisions_concern_only_the_machine(&valid, |object| {
        let mut view = with_address(&json!({}));
        let address = IpAddress::read(object).map_err(|error| error.to_string());
        view.addresses = [("a".to_owned(), Some(address))].into();
        Some(view)
    });
}

#[test]
fn an_ipaddressclaim_with_any_content_affects_only_its_own_machine() {
    let note = json!({
        "kind": "KubevirtMachine", "machine": {"namespace": "n", "name": "w", "uid": "m-1"}, "interface": "eno101",
    });
    let failed = json!({"type": "Ready", "status": "False", "reason": "PoolExhausted", "message": "no address left"});
    let valid = json!({
        "metadata": {
            "namespace": "n", "name": "w-eno101", "uid": "c-1", "resourceVersion": "7",
            "annotations": {"ipam.glowplug.dev/claimant": note.to_string()}, "finalizers": ["ipam.glowplug.dev/in-use"],
        },
        "spec": {"poolRef": {"apiGroup": "ipam.cluster.x-k8s.io", "kind": "InClusterIPPool", "name": "x"}},
        "status": {"addressRef": {"name": "a"}, "conditions": [failed]},
    });
    for gone in [false, true] {
        decisions_concern_only_the_machine(&valid, |object| {
            let mut view = with_address_claim("m-1", &json!({}));
            view.sources.claims = vec![MachineClaim::read(object).ok()?];
            view.checked = gone.then(|| (holder("m-1"), Check::Gone)).into_iter().collect();
            Some(view)
        });
    }
}

#[test]
fn an_invalid_name_of_an_ipaddress_counts_as_absent() {
    for name in ["", "../../other/ipaddresses/a", "a?b", "A"] {
        let view = with_address_claim("m-1", &json!({"status": {"addressRef": {"name": name}}}));
        assert_eq!(decide(&view), pending("Waiting for IPAddressClaim n/w-eno101: it has no address yet"), "{name}");
    }
}

#[test]
fn an_ipam_claim_with_any_content_gives_only_addresses_of_the_network() {
    let owner = json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": "w", "uid": "v-1"});
    let failed =
        json!({"type": "IPsAllocated", "status": "False", "reason": "SubnetExhausted", "message": "none left"});
    let valid = json!({
        "metadata": {"namespace": "n", "name": "w.iface1", "ownerReferences": [owner]},
        "status": {"ips": ["10.0.0.8/16"], "conditions": [failed]},
    });
    decisions_concern_only_the_machine(&valid, |object| {
        let mut view = from_source(&json!({"ipamClaim": {}}));
        view.sources.ipam_claims = [("w.iface1".to_owned(), IpamClaim::read(object))].into();
        Some(view)
    });
}

#[test]
fn a_machine_with_objects_of_any_content_claims_only_for_itself() {
    let labels = json!({
        "capk.cluster.x-k8s.io/kubevirt-machine-name": "w", "capk.cluster.x-k8s.io/kubevirt-machine-namespace": "n",
    });
    let requested = json!({"network.kubevirt.io/addresses": r#"{"iface1": ["10.0.0.9/16"]}"#});
    let template = json!({
        "metadata": {"annotations": requested, "labels": {"ipam.glowplug.dev/mac-addresses": "required"}},
        "spec": {
            "domain": {"devices": {"interfaces": [
                {"name": "iface1", "acpiIndex": 101, "macAddress": "02:00:00:00:00:01"},
            ]}},
            "networks": [{"name": "iface1", "multus": {"networkName": "infra/vlan10"}}],
            "volumes": [
                {"name": "c", "cloudInitConfigDrive": {"networkDataSecretRef": {"name": NAME}}},
            ],
        },
    });
    let of_vm = json!({
        "metadata": {"namespace": "n", "name": "w", "uid": "v-1", "labels": labels, "annotations": {"a": "b"}},
        "spec": {"template": template},
    });
    let message = "No available IPs in pool for interface eno101";
    let refused = json!({"type": "VMProvisioned", "status": "False", "reason": "VMCreateFailed", "message": message});
    let of_machine = json!({
        "metadata": {
            "namespace": "n", "name": "w", "uid": "m-1",
            "annotations": {"kubevirt.cluster.x-k8s.io/allocated-ip-eno101": "10.0.0.8/16"},
        },
        "spec": {"virtualMachineTemplate": {"metadata": {"namespace": "n", "labels": labels}, "spec": {"template": template}}},
        "status": {"allocatedBootstrapAddresses": {"eno101": ["10.0.0.8/16"]}, "conditions": [refused]},
    });
    let owner = json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": "w", "uid": "v-1"});
    let of_guest = json!({
        "metadata": {"namespace": "n", "name": "w", "uid": "i-1", "labels": labels, "ownerReferences": [owner]},
        "spec": template["spec"],
        "status": {
            "phase": "Running",
            "interfaces": [{"name": "iface1", "interfaceName": "eno101", "ipAddress": "10.0.0.8", "ipAddresses": ["10.0.0.8"]}],
        },
    });
    for view in [view(), served(), View { machine: None, ..view() }, View { vm: None, ..served() }] {
        decisions_concern_only_the_machine(&of_vm, |object| {
            let vm = view.vm.is_some().then(|| VirtualMachine::read(object))?;
            Some(View { vm: Some(vm), ..view.clone() })
        });
        decisions_concern_only_the_machine(&of_machine, |object| {
            let machine = view.machine.is_some().then(|| KubevirtMachine::read(object))?;
            Some(View { machine: Some(machine), ..view.clone() })
        });
        decisions_concern_only_the_machine(&of_guest, |object| {
            Some(View { instance: Some(Instance::read(object)), ..view.clone() })
        });
    }
}
