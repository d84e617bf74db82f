//! Runs random histories of a cluster with several networks, and checks that no two machines get the same address.
//!
//! The model tracks the addresses that each machine of the cluster really uses, and every claim and record that the
//! ledger received. The model does not predict the decisions of the library. After each operation, the test checks
//! these rules:
//!
//! - An allocated address is free: no other machine holds it, no record claims it, no pool or template of the network
//!   reserves it, and its reuse delay is over. During the delay, only a sticky claim of the same name gets the address.
//! - A claim gets the lowest free address, unless the claim is sticky or names an address.
//! - The ledger keeps each address of a claim or a record until the machine is gone.
//! - An audit reports each disagreement between the ledger and the objects of machines.
//! - Waiting machines are served in the order of their creation.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a helper of a test may fail the test")]

mod cluster;
mod pools;
mod store;
mod world;

use std::fmt::Write;
use std::path::Path;

use crate::support::random::Random;
use world::{Op, World};

/// Seeds, each with its number of operations. A seed that once found a mistake has its own entry.
const HISTORIES: [(u64, usize); 3] = [(1, 45_000), (2, 45_000), (3, 500)];

/// Number of operations in one history: enough to fill pools several times, and few enough to read.
const LENGTH: usize = 250;

#[test]
fn no_history_in_memory_allocates_an_address_to_two_machines() {
    for (seed, operations) in HISTORIES {
        search(seed, operations, None);
    }
}

#[test]
fn no_history_in_a_file_allocates_an_address_to_two_machines() {
    let directory = tempfile::tempdir().unwrap();
    search(4, 10_000, Some(directory.path()));
}

/// Runs the histories of a seed. `operations` is the number of operations of all histories together.
fn search(seed: u64, operations: usize, directory: Option<&Path>) {
    let mut rng = Random(seed);
    for history in 0..operations.div_ceil(LENGTH) {
        let start = rng.next();
        let mut ops: Vec<Op> = (0..LENGTH).map(|_| Op::random(&mut rng)).collect();
        let Err((failed, error)) = run(start, &ops, directory) else { continue };
        ops.truncate(failed + 1);
        let error = shorten(start, &mut ops, directory).unwrap_or(error);
        let mut text = format!("seed {seed}, history {history}, start {start}: {error}\nthe shortest history:\n");
        let mut world = World::new(start, directory);
        for op in &ops {
            let result = world.apply(*op);
            let _ = writeln!(text, "  {op:?}: {}", world.log.join("; "));
            world.log.clear();
            if result.is_err() {
                break;
            }
        }
        panic!("{text}{}", world.pools_text());
    }
}

/// Runs a history. If an operation breaks a rule, returns the index of the operation and the rule.
fn run(start: u64, ops: &[Op], directory: Option<&Path>) -> Result<(), (usize, String)> {
    let mut world = World::new(start, directory);
    for (at, op) in ops.iter().enumerate() {
        world.apply(*op).map_err(|error| (at, error))?;
        world.log.clear();
    }
    Ok(())
}

/// Removes operations as long as the history still breaks a rule. Returns the rule that the shorter history breaks.
fn shorten(start: u64, ops: &mut Vec<Op>, directory: Option<&Path>) -> Option<String> {
    let mut last = None;
    let mut size = ops.len() / 2;
    while size > 0 {
        let mut at = 0;
        while at < ops.len() {
            let mut fewer = ops.clone();
            fewer.drain(at..(at + size).min(ops.len()));
            match run(start, &fewer, directory) {
                Err((failed, error)) => {
                    fewer.truncate(failed + 1);
                    *ops = fewer;
                    last = Some(error);
                }
                Ok(()) => at += size,
            }
        }
        size /= 2;
    }
    last
}
