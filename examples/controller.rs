//! A minimal controller. It claims an address, which is recorded before it is used, patches the object of the machine,
//! and
//! writes the document that the machine reads at its first boot.
//!
//! `cargo run --example controller`

use std::error::Error;
use std::time::{SystemTime, UNIX_EPOCH};

use glowplug::host::claim::{Claim, Machine, Request};
use glowplug::host::expand::{Grant, Template};
use glowplug::host::ledger::SqliteLedger;
use glowplug::host::pool::{Pool, TemplateFacts, read_pools};
use glowplug::host::records::status_patch;
use glowplug::host::registry::{Registry, RegistryError};

/// The addresses of a NodePool: two, of which one is the gateway.
const POOLS: &[u8] = b"
name: workers
namespace: clusters
network: infra/vlan10
addresses: [192.168.1.100-192.168.1.101]
gateway: [192.168.1.101]
nameservers: [8.8.8.8]
machineNetwork: [{cidr: 192.168.1.0/24}]
";

/// The document template of every machine of the NodePool.
const TEMPLATE: &[u8] = br#"{"links": [{"id": "eno101", "type": "phy", "mtu": 9000}]}"#;

fn main() -> Result<(), Box<dyn Error>> {
    let (specs, mut diagnostics) = read_pools(POOLS);
    let pool = specs.first().and_then(|spec| Pool::new(spec, &TemplateFacts::default(), &mut diagnostics));
    let Some(pool) = pool else { return Err(format!("{:?}", diagnostics.kept()).into()) };
    let (gateways, nameservers, pool_name) = (pool.gateways.clone(), pool.nameservers.clone(), pool.name.clone());

    // In production the ledger is kept in one place: a network must have only one ledger.
    let directory = tempfile::tempdir()?;
    let mut registry = Registry::open(SqliteLedger::create(&directory.path().join("ledger"))?)?;
    registry.resize([pool], &[], now()?)?;
    let template = Template::parse(TEMPLATE)?;

    // Reconciling a machine several times gives the same answer.
    for name in ["worker-0", "worker-1", "worker-0"] {
        let machine = Machine { namespace: "clusters".into(), name: name.into(), uid: format!("uid-of-{name}") };
        let claim =
            Claim { machine: machine.clone(), created: now()?, requests: vec![Request::of(&pool_name)], sticky: false };
        match registry.claim(&claim, now()?) {
            Ok(allocations) => {
                println!("{name}: patch its status with {}", status_patch(&machine, &allocations, None)?);
                let grants: Vec<Grant<'_>> = allocations
                    .iter()
                    .map(|allocation| Grant {
                        allocation,
                        gateways: &gateways,
                        nameservers: &nameservers,
                        mac_address: None,
                    })
                    .collect();
                println!("{name}: give it the document {}", template.expand(&grants)?.text());
            }
            // The machine waits. A later reconciliation gives its address.
            Err(RegistryError::Refused(reason)) => println!("{name}: set its condition: {reason}"),
            Err(RegistryError::Ledger(error)) => return Err(error.into()),
        }
    }

    // The finalizer of a machine that is gone. Its UID distinguishes it from a successor of the same name.
    let gone = Machine { namespace: "clusters".into(), name: "worker-0".into(), uid: "uid-of-worker-0".into() };
    for served in registry.release(&gone, now()?)?.served {
        println!("{}: reconcile it, it has {}", served.claimant.machine.name, served.addresses[0]);
    }
    Ok(())
}

/// In milliseconds since 1970.
fn now() -> Result<u64, Box<dyn Error>> {
    Ok(u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis())?)
}
