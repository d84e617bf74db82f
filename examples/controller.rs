//! Reconciles two machines on a pool with one free address. Prints the patch for the object of a machine, and the
//! document that the machine reads at its first boot. The other machine waits until the address is released. On a network
//! with machines, a controller first adopts their records, see the documentation of `glowplug::host`.
//!
//! `cargo run --example controller`

use std::collections::BTreeMap;
use std::error::Error;

use glowplug::host::Timestamp;
use glowplug::host::claim::{Claim, Machine, Request};
use glowplug::host::expand::{Grant, Template};
use glowplug::host::ledger::SqliteLedger;
use glowplug::host::pool::Pool;
use glowplug::host::records::annotation_patch;
use glowplug::host::registry::{Registry, RegistryError};

/// Two addresses, one of them reserved for the gateway.
const POOL: &[u8] = b"{name: workers, namespace: clusters, network: infra/vlan10, gateway: [192.168.1.101],
    addresses: [192.168.1.100-192.168.1.101], nameservers: [8.8.8.8], machineNetwork: [{cidr: 192.168.1.0/24}]}";

/// The part of the document that all machines of the pool share.
const TEMPLATE: &[u8] = br#"{"links": [{"id": "eno101", "type": "phy", "mtu": 9000}]}"#;

fn main() -> Result<(), Box<dyn Error>> {
    let pools = Pool::parse(POOL)?;
    let template = Template::parse(TEMPLATE)?;
    // A real ledger is a permanent file: `create` it once, and `open` it at each start. Use only one ledger for a network.
    let directory = tempfile::tempdir()?;
    let mut registry = Registry::open(SqliteLedger::create(&directory.path().join("ledger"))?)?;
    registry.resize(pools.clone(), &[], Timestamp::now())?;

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
