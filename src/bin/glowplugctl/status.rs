//! The command `status`.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use glowplug::host::Timestamp;
use glowplug::host::allocator::{PoolUsage, Usage};
use glowplug::host::claim::Allocation;
use glowplug::host::counts::Count;
use glowplug::host::pool::Pool;
use serde::Serialize;
use slog::Logger;

use crate::input::LedgerFile;
use crate::list::{Listed, ListedWaiter, waiting_table};
use crate::output::{VERSION, allocations_table, print, print_json, sections, table};

#[derive(Args)]
pub(crate) struct Status {
    #[command(flatten)]
    ledger: LedgerFile,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct StatusDocument {
    version: u32,
    pools: Vec<PoolStatus>,
    waiting: Vec<ListedWaiter>,
    /// Leases whose address is not in their pool.
    outside: Vec<Allocation>,
}

#[derive(Serialize)]
struct PoolStatus {
    cluster: Option<String>,
    name: String,
    network: String,
    interface: String,
    families: Vec<Usage>,
    /// Number of machines that wait for addresses of the pool.
    waiting: usize,
}

pub(crate) fn status(args: Status, log: &Logger) -> Result<ExitCode> {
    let mut registry = args.ledger.open_read_only(Vec::new(), log)?;
    let allocator = registry.state()?;
    let mut usage = allocator.usage(Timestamp::now());
    let by_pool: Vec<(&Pool, PoolUsage)> =
        allocator.pools().map(|pool| (pool, usage.remove(pool.name()).unwrap_or_default())).collect();
    let not_offered: Vec<Allocation> = allocator.pools().flat_map(|pool| allocator.outside(pool.name())).collect();
    let waiting = Listed::of(allocator).waiting;
    if args.json {
        let pools = by_pool.iter().map(|(pool, usage)| PoolStatus {
            cluster: pool.cluster().map(str::to_owned),
            name: pool.name().to_owned(),
            network: pool.network().to_owned(),
            interface: pool.interface().to_string(),
            families: usage.families.clone(),
            waiting: usage.waiting,
        });
        let pools = pools.collect();
        print_json(&StatusDocument { version: VERSION, pools, waiting, outside: not_offered })?;
        return Ok(ExitCode::SUCCESS);
    }
    let shown = [
        Count::Total,
        Count::Allocated,
        Count::Reserved,
        Count::ReuseDelay,
        Count::Free,
        Count::Conflicts,
        Count::Outside,
    ];
    let mut rows = Vec::new();
    for (pool, PoolUsage { families, waiting, .. }) in &by_pool {
        for usage in families {
            let counts = shown.map(|count| usage.number(count).to_string());
            let [total, allocated, reserved, delayed, free, conflicts, outside] = counts;
            let (title, network, family) = (pool.title(), pool.network().to_owned(), usage.family.to_string());
            let waiting = waiting.to_string();
            rows.push([title, network, family, total, allocated, reserved, delayed, free, conflicts, outside, waiting]);
        }
    }
    let [total, allocated, reserved, delayed, free, conflicts, outside] = shown.map(Count::head);
    let waits = Count::Waiting.head();
    let head = ["POOL", "NETWORK", "FAMILY", total, allocated, reserved, delayed, free, conflicts, outside, waits];
    print(&sections([
        table(head, &rows),
        waiting_table(waiting),
        allocations_table(Count::Outside.head(), &not_offered),
    ]))?;
    Ok(ExitCode::SUCCESS)
}
