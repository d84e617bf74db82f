//! `list`.

use std::net::IpAddr;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use glowplug::host::allocator::Allocator;
use glowplug::host::timestamp::Timestamp;
use serde::Serialize;

use crate::input::LedgerFile;
use crate::output::{ListedMachine, VERSION, print, print_json, sections, table};

#[derive(Args)]
pub(crate) struct List {
    #[command(flatten)]
    ledger: LedgerFile,
    /// Print waiting machines only
    #[arg(long)]
    waiting: bool,
    /// Print JSON
    #[arg(long, conflicts_with = "waiting")]
    json: bool,
}

#[derive(Serialize)]
struct Listed {
    version: u32,
    addresses: Vec<ListedAddress>,
    conflicting: Vec<ListedConflict>,
    waiting: Vec<ListedWaiter>,
    missing: Vec<ListedMissing>,
}

#[derive(Serialize)]
struct ListedAddress {
    network: String,
    /// `ip/prefix`
    address: String,
    pool: String,
    #[serde(flatten)]
    machine: ListedMachine,
    interface: String,
    since: String,
}

#[derive(Serialize)]
struct ListedConflict {
    network: String,
    address: IpAddr,
    #[serde(flatten)]
    machine: ListedMachine,
    interface: String,
    source: String,
}

#[derive(Serialize)]
struct ListedWaiter {
    #[serde(flatten)]
    machine: ListedMachine,
    created: String,
    pools: Vec<String>,
}

#[derive(Serialize)]
struct ListedMissing {
    #[serde(flatten)]
    machine: ListedMachine,
    since: String,
}

impl Listed {
    fn of(allocator: &Allocator) -> Self {
        let addresses = allocator.leases().map(|(network, address, lease)| ListedAddress {
            network: network.to_owned(),
            address: format!("{address}/{}", lease.prefix),
            pool: lease.pool.to_string(),
            machine: (&lease.claimant.machine).into(),
            interface: lease.claimant.interface.to_string(),
            since: Timestamp(lease.since).to_string(),
        });
        let conflicting = allocator.conflicts().flat_map(|(network, address, conflicts)| {
            conflicts.iter().map(move |conflict| ListedConflict {
                network: network.to_owned(),
                address,
                machine: (&conflict.claimant.machine).into(),
                interface: conflict.claimant.interface.to_string(),
                source: conflict.source.clone(),
            })
        });
        let waiting = allocator.waiters().into_iter().map(|claim| ListedWaiter {
            machine: (&claim.machine).into(),
            created: Timestamp(claim.created).to_string(),
            pools: claim.requests.iter().map(|request| request.pool.clone()).collect(),
        });
        let missing = allocator
            .missing()
            .map(|(machine, since)| ListedMissing { machine: machine.into(), since: Timestamp(since).to_string() });
        Self {
            version: VERSION,
            addresses: addresses.collect(),
            conflicting: conflicting.collect(),
            waiting: waiting.collect(),
            missing: missing.collect(),
        }
    }
}

pub(crate) fn list(args: List) -> Result<ExitCode> {
    let mut registry = args.ledger.open_read_only(Vec::new())?;
    let listed = Listed::of(registry.allocator()?);
    if args.json {
        print_json(&listed)?;
        return Ok(ExitCode::SUCCESS);
    }
    let Listed { addresses, conflicting, waiting, missing, .. } = listed;
    let addresses: Vec<_> = addresses
        .into_iter()
        .map(|held| {
            [held.network, held.address, held.machine.title(), held.machine.uid, held.interface, held.pool, held.since]
        })
        .collect();
    let conflicting: Vec<_> = conflicting
        .into_iter()
        .map(|other| {
            let (address, machine) = (other.address.to_string(), other.machine.title());
            [address, machine, other.machine.uid, other.interface, other.source]
        })
        .collect();
    let waiting: Vec<_> = waiting
        .into_iter()
        .map(|waiter| [waiter.machine.title(), waiter.machine.uid, waiter.pools.join(" "), waiter.created])
        .collect();
    let missing: Vec<_> =
        missing.into_iter().map(|missing| [missing.machine.title(), missing.machine.uid, missing.since]).collect();
    let waiting = table(["WAITING", "UID", "POOLS", "CREATED"], &waiting);
    print(&if args.waiting {
        waiting
    } else {
        sections([
            table(["NETWORK", "ADDRESS", "MACHINE", "UID", "INTERFACE", "POOL", "SINCE"], &addresses),
            table(["CONFLICT", "MACHINE", "UID", "INTERFACE", "RECORD"], &conflicting),
            waiting,
            table(["MISSING", "UID", "SINCE"], &missing),
        ])
    })?;
    Ok(ExitCode::SUCCESS)
}
