//! Tests ledgers: compares histories with a naive model, shares a file between processes, kills processes, and damages
//! files.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a helper of a test may fail the test")]

mod conflicts;
mod damage;
mod model;
mod processes;
mod refusals;

use std::path::Path;

use glowplug::host::claim::{Allocation, Claim, Machine, Request};
use glowplug::host::ledger::SqliteLedger;
use glowplug::host::pool::{Pool, TemplateFacts};
use glowplug::host::pools_file::read_pools;
use glowplug::host::registry::Registry;
use rusqlite::Connection;
use rusqlite::config::DbConfig;

use crate::support::time;

/// Creates a pool on the network of these tests. `rest` has further members as YAML.
fn pool(name: &str, interface: &str, rest: &str) -> Pool {
    let text = format!("{{name: {name}, namespace: clusters, network: vlan10, interface: {interface}, {rest}}}");
    let (specs, mut diagnostics) = read_pools(text.as_bytes());
    let pool = specs.first().and_then(|spec| Pool::new(spec, &TemplateFacts::default(), &mut diagnostics));
    pool.unwrap_or_else(|| panic!("{text}: {:?}", diagnostics.kept()))
}

fn machine(name: &str) -> Machine {
    Machine::new("clusters", name, format!("uid-of-{name}"))
}

/// Creates a claim of a machine with a creation time.
fn claim(name: &str, created: u64, pools: &[&str]) -> Claim {
    let requests = pools.iter().map(|pool| Request::of(pool));
    Claim { machine: machine(name), created: time(created), requests: requests.collect(), sticky: false, secret: None }
}

/// Opens the database of a ledger. When it is closed, the log of the ledger stays.
fn database(path: &Path) -> Connection {
    let connection = Connection::open(path).unwrap();
    assert!(connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true).unwrap());
    connection
}

/// Opens a registry on a ledger, and creates the ledger if it does not exist.
fn registry(path: &Path, pools: impl IntoIterator<Item = Pool>) -> Registry<SqliteLedger> {
    let ledger = SqliteLedger::create(path).or_else(|_| SqliteLedger::open(path)).unwrap();
    let mut registry = Registry::open(ledger).unwrap();
    registry.resize(pools, &[], time(0)).unwrap();
    registry.open_addresses(time(0)).unwrap();
    registry
}

/// Formats allocations, for example `worker-0: 10.0.0.1/24 fd00::1/64`.
fn shown(allocations: &[Allocation]) -> Vec<String> {
    let shown = |allocation: &Allocation| {
        let addresses: Vec<String> = allocation.addresses.iter().map(ToString::to_string).collect();
        format!("{}: {}", allocation.claimant.machine.name, addresses.join(" "))
    };
    allocations.iter().map(shown).collect()
}
