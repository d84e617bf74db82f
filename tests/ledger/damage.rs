//! Damages ledgers: a flipped bit never leads to a second holder of an address.

use std::collections::BTreeMap;
use std::fs;
use std::net::IpAddr;

use glowplug::host::ledger::SqliteLedger;
use glowplug::host::registry::Registry;

use super::{claim, machine, pool, registry, time};

/// Returns the next random number. The numbers are the same in each run.
fn dice(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

#[test]
fn none_of_2000_flipped_bits_leads_to_a_second_holder_of_an_address() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ledger");
    let mut original = registry(&path, [pool("workers", "eth0", "addresses: [10.0.0.0/16]")]);
    let claims: Vec<_> = (0..200).map(|at| claim(&format!("worker-{at}"), at, &["clusters/workers"])).collect();
    let mut held: BTreeMap<IpAddr, String> = BTreeMap::new();
    for allocation in original.claim_all(&claims, time(1)).unwrap().answers.into_iter().flat_map(Result::unwrap) {
        held.insert(allocation.addresses[0].ip(), allocation.claimant.machine.name.clone());
    }
    for at in (0..200).step_by(10) {
        let released = original.release(&machine(&format!("worker-{at}")), time(2)).unwrap().held;
        held.remove(&released[0].addresses[0].ip());
    }
    drop(original);
    let whole = fs::read(&path).unwrap();
    let (mut state, mut noticed, mut duplicates) = (0x9e37_79b9_7f4a_7c15, 0, Vec::new());
    let damaged = directory.path().join("damaged");
    for round in 0..2_000 {
        let mut bytes = whole.clone();
        let bit = usize::try_from(dice(&mut state) % (whole.len() as u64 * 8)).unwrap();
        bytes[bit / 8] ^= 1 << (bit % 8);
        for beside in ["damaged-shm", "damaged-journal"] {
            let _ = fs::remove_file(directory.path().join(beside));
        }
        fs::write(directory.path().join("damaged-wal"), "").unwrap();
        fs::write(&damaged, bytes).unwrap();
        // Each step opens the ledger again, as a new process does.
        for step in 0..2 {
            let Ok(mut registry) =
                SqliteLedger::open(&damaged).map_err(drop).and_then(|it| Registry::open(it).map_err(drop))
            else {
                noticed += 1;
                break;
            };
            let names: Vec<_> = (0..25).map(|at| format!("new-{round}-{step}-{at}")).collect();
            let claims: Vec<_> = names.iter().map(|name| claim(name, 1_000, &["clusters/workers"])).collect();
            let Ok(claimed) = registry.claim_all(&claims, time(3)) else {
                noticed += 1;
                break;
            };
            for allocation in claimed.answers.into_iter().filter_map(Result::ok).flatten() {
                if let Some(holder) = held.get(&allocation.addresses[0].ip()) {
                    duplicates.push(format!("bit {bit}: {} of {holder}", allocation.addresses[0]));
                }
            }
        }
    }
    assert_eq!(duplicates, Vec::<String>::new());
    assert!(noticed > 0);
}
