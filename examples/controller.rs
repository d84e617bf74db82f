//! Reconciles two machines on a pool with one free address. Prints the patch for the object of a machine, and the
//! document that the machine reads at its first boot. The other machine waits until the address is released. The guest
//! that already runs on the network keeps its address.
//!
//! `cargo run --example controller`

use std::collections::BTreeMap;
use std::error::Error;

use glowplug::host::Timestamp;
use glowplug::host::claim::{Claim, Machine, Request};
use glowplug::host::expand::{Grant, Template};
use glowplug::host::ledger::SqliteLedger;
use glowplug::host::pool::Pool;
use glowplug::host::records::{Objects, annotation_patch};
use glowplug::host::registry::{Registry, RegistryError};

/// Three addresses: one is reserved for the gateway, and one is used by a guest.
const POOL: &[u8] = b"{name: workers, namespace: clusters, network: infra/vlan10, gateway: [192.168.1.101],
    addresses: [192.168.1.100-192.168.1.102], nameservers: [8.8.8.8], machineNetwork: [{cidr: 192.168.1.0/24}]}";

/// The part of the document that all machines of the pool share.
const TEMPLATE: &[u8] = br#"{"links": [{"id": "eno101", "type": "phy", "mtu": 9000}]}"#;

/// The objects of all machines: KubevirtMachines, VirtualMachines and VirtualMachineInstances.
const OBJECTS: &[u8] = br#"{"kind": "List", "items": [{
    "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
    "metadata": {"namespace": "clusters", "name": "database", "uid": "5d30"},
    "spec": {"networks": [{"name": "lan", "multus": {"networkName": "infra/vlan10"}}]},
    "status": {"phase": "Running", "interfaces": [{"name": "lan", "ipAddresses": ["192.168.1.102"]}]}
}]}"#;

fn main() -> Result<(), Box<dyn Error>> {
    let pools = Pool::parse(POOL)?;
    let template = Template::parse(TEMPLATE)?;
    // A real ledger is a permanent file: `create` it once, and `open` it at each start. Use only one ledger for a
    // network.
    let directory = tempfile::tempdir()?;
    let mut registry = Registry::open(SqliteLedger::create(&directory.path().join("ledger"))?)?;
    registry.resize(pools.clone(), &[], Timestamp::now())?;
    // A controller does this at each start and after each change of pools, so that no machine gets an address in use.
    // Until then, the registry allocates nothing.
    let mut objects = Objects::default();
    objects.read("the objects of the cluster", OBJECTS)?;
    registry.rebuild(&objects.inventory(), Timestamp::now())?;

    let machine = |name: &str| Machine::new("clusters", name, format!("uid-of-{name}"));
    // A controller can repeat a claim, and gets the same answer.
    for name in ["worker-0", "worker-1", "worker-0"] {
        let now = Timestamp::now();
        let claim = Claim::new(machine(name), now).request(Request::of(pools[0].name()));
        match registry.claim(&claim, now) {
            Ok(allocations) => {
                let settings = pools[0].settings_for(&allocations[0].addresses, &|_| None);
                let settings = settings.map_err(|address| format!("no subnet has {address}"))?;
                let grant = Grant { allocation: &allocations[0], settings, mac_address: None, is_named: true };
                let patch = annotation_patch(&claim.machine, &allocations, &BTreeMap::new(), None)?;
                println!("{name}: annotate its object with {patch}");
                println!("{name}: give it the document {}", template.expand(&[grant])?.text());
            }
            Err(RegistryError::Refused(reason)) => println!("{name}: set its condition: {reason}"),
            Err(RegistryError::Ledger(error)) => return Err(error.into()),
        }
    }

    // worker-0 is gone. Its address goes to the machine that waits.
    for served in registry.release(&machine("worker-0"), Timestamp::now())?.served {
        println!("{}: reconcile it, it has {}", served.claimant.machine.name, served.addresses[0]);
    }
    Ok(())
}
