//! Checks the size of a ledger in which the records of many machines claim one address.

use std::fs;

use glowplug::host::claim::{Claimant, Record};
use glowplug::host::ledger::SqliteLedger;
use glowplug::host::may_record::Source;
use glowplug::host::registry::Registry;

use super::{machine, pool, registry, time};

#[test]
fn one_address_in_the_records_of_20000_machines_takes_one_row_for_each_machine() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ledger");
    let mut registry = registry(&path, [pool("workers", "eth0", "addresses: [10.0.0.0/16]")]);
    let records = (0..20_000).map(|at| Record {
        claimant: Claimant { machine: machine(&format!("worker-{at}")), interface: "eth0".parse().unwrap() },
        node_pool: None,
        attachments: Vec::new(),
        network: None,
        addresses: vec!["10.0.0.7/16".parse().unwrap()],
        source: format!("KubevirtMachine clusters/worker-{at}"),
        kind: Source::Annotation,
    });
    let adoption = registry.adopt(records, time(1)).unwrap();
    assert_eq!((adoption.adopted, adoption.mismatches.len()), (0, 20_000));
    assert_eq!(registry.state().unwrap().conflicts().count(), 20_000);
    drop(registry);
    let size = fs::metadata(&path).unwrap().len();
    assert!(size < 20_000 * 400, "{size} bytes");
    // After the release of all machines, the conflict is over.
    let mut registry = Registry::open(SqliteLedger::open(&path).unwrap()).unwrap();
    let machines: Vec<_> = (0..20_000).map(|at| machine(&format!("worker-{at}"))).collect();
    registry.release_all(&machines, time(2)).unwrap();
    assert_eq!(registry.state().unwrap().conflicts().count(), 0);
}
