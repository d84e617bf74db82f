//! The command `list`.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use glowplug::host::address::parse_address;
use glowplug::host::allocator::Allocator;
use glowplug::host::claim::{Machine, Request};
use glowplug::host::counts::Count;
use glowplug::host::may_record::State;
use serde::Serialize;
use slog::Logger;

use crate::input::{LedgerFile, Named, named};
use crate::output::{VERSION, note_no_match, print, print_json, sections, table, whole_seconds};

#[derive(Args)]
pub(crate) struct List {
    #[command(flatten)]
    ledger: LedgerFile,
    /// Print waiting machines only
    #[arg(long)]
    waiting: bool,
    #[command(flatten)]
    filter: Filter,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Conditions for the listed entries. All of them must apply.
#[derive(Args)]
struct Filter {
    /// Filter by the NodePool of the pool
    #[arg(long, value_name = "NAMESPACE/NAME", value_parser = named)]
    node_pool: Option<Named>,
    /// Filter by the hosted cluster of the pool
    #[arg(long, value_name = "NAME")]
    cluster: Option<String>,
    /// Filter by machine, with any UID
    #[arg(long, value_name = "NAMESPACE/NAME", value_parser = named)]
    machine: Option<Named>,
    /// Filter by address
    #[arg(long, value_name = "ADDRESS", value_parser = parse_address)]
    address: Option<IpAddr>,
    /// Filter by network
    #[arg(long, value_name = "NETWORK")]
    network: Option<String>,
}

#[derive(Serialize)]
pub(crate) struct Listed {
    version: u32,
    addresses: Vec<ListedAddress>,
    /// Records of an address that two machines use.
    conflicts: Vec<ListedRecord>,
    /// Other records of addresses that have no lease.
    reserved: Vec<ListedRecord>,
    pub(crate) waiting: Vec<ListedWaiter>,
    missing: Vec<ListedMissing>,
}

#[derive(Serialize)]
struct ListedAddress {
    network: String,
    /// Address as `ip/prefix`.
    address: String,
    #[serde(skip)]
    ip: IpAddr,
    pool: String,
    #[serde(flatten)]
    machine: Machine,
    interface: String,
    since: String,
}

#[derive(Serialize)]
struct ListedRecord {
    network: String,
    address: IpAddr,
    #[serde(flatten)]
    machine: Machine,
    interface: String,
    source: String,
    /// Why the address is reserved: `excluded`, `byRecord`, `byReport`.
    state: State,
}

#[derive(Serialize)]
pub(crate) struct ListedWaiter {
    #[serde(flatten)]
    machine: Machine,
    created: String,
    /// Names of the pools from which the machine claims addresses.
    pub(crate) pools: Vec<String>,
}

#[derive(Serialize)]
struct ListedMissing {
    #[serde(flatten)]
    machine: Machine,
    since: String,
}

impl Filter {
    fn has_machine(&self, machine: &Machine) -> bool {
        self.machine.as_ref().is_none_or(|named| named.to_string() == machine.title())
    }

    fn has_pool(&self, pool: &str, clusters: &BTreeMap<String, String>) -> bool {
        self.node_pool.as_ref().is_none_or(|named| named.to_string() == pool)
            && self.cluster.as_ref().is_none_or(|cluster| clusters.get(pool) == Some(cluster))
    }

    fn has_address(&self, network: &str, address: IpAddr) -> bool {
        self.network.as_ref().is_none_or(|it| it == network) && self.address.is_none_or(|it| it == address)
    }

    fn is_set(&self) -> bool {
        self.machine.is_some() || self.is_about_addresses()
    }

    /// Whether the filter has a condition other than the machine.
    fn is_about_addresses(&self) -> bool {
        self.node_pool.is_some() || self.cluster.is_some() || self.network.is_some() || self.address.is_some()
    }
}

impl Listed {
    pub(crate) fn of(allocator: &Allocator) -> Self {
        let addresses = allocator.leases().map(|(network, address, lease)| ListedAddress {
            network: network.to_owned(),
            address: format!("{address}/{}", lease.prefix),
            ip: address,
            pool: lease.pool.to_string(),
            machine: lease.claimant.machine.clone(),
            interface: lease.claimant.interface.to_string(),
            since: whole_seconds(lease.since),
        });
        let (mut conflicts, mut reserved) = (Vec::new(), Vec::new());
        for (network, address, record) in allocator.conflicts() {
            let records = if allocator.is_conflict(network, address) { &mut conflicts } else { &mut reserved };
            records.push(ListedRecord {
                network: network.to_owned(),
                address,
                machine: record.claimant.machine,
                interface: record.claimant.interface.to_string(),
                source: record.source,
                state: record.state,
            });
        }
        let waiting = allocator.waiters().into_iter().map(|claim| ListedWaiter {
            machine: claim.machine.clone(),
            created: whole_seconds(claim.created),
            pools: claim.requests.iter().flat_map(Request::pools).map(str::to_owned).collect(),
        });
        let missing = allocator
            .missing()
            .map(|(machine, since)| ListedMissing { machine: machine.clone(), since: whole_seconds(since) });
        Self {
            version: VERSION,
            addresses: addresses.collect(),
            conflicts,
            reserved,
            waiting: waiting.collect(),
            missing: missing.collect(),
        }
    }
}

impl Listed {
    fn is_empty(&self) -> bool {
        let Self { version: _, addresses, conflicts, reserved, waiting, missing } = self;
        addresses.is_empty() && conflicts.is_empty() && reserved.is_empty() && waiting.is_empty() && missing.is_empty()
    }

    /// Keeps the entries that match a filter. `clusters` has the hosted cluster of each pool. A record without a lease
    /// matches no condition on pools, and a waiting machine matches no condition on addresses or networks. If the
    /// filter has a condition on pools, addresses or networks, a missing machine stays only if it holds a listed
    /// address.
    fn retain(&mut self, filter: &Filter, clusters: &BTreeMap<String, String>) {
        let Filter { node_pool, cluster, address, network, .. } = filter;
        self.addresses.retain(|it| {
            filter.has_machine(&it.machine)
                && filter.has_pool(&it.pool, clusters)
                && filter.has_address(&it.network, it.ip)
        });
        let has_record = |it: &ListedRecord| {
            node_pool.is_none()
                && cluster.is_none()
                && filter.has_machine(&it.machine)
                && filter.has_address(&it.network, it.address)
        };
        self.conflicts.retain(has_record);
        self.reserved.retain(has_record);
        self.waiting.retain(|it| {
            let is_of_pool = it.pools.iter().any(|pool| filter.has_pool(pool, clusters));
            is_of_pool && filter.has_machine(&it.machine) && address.is_none() && network.is_none()
        });
        let holders: BTreeSet<&Machine> = self.addresses.iter().map(|it| &it.machine).collect();
        self.missing.retain(|it| {
            filter.has_machine(&it.machine) && (!filter.is_about_addresses() || holders.contains(&it.machine))
        });
    }
}

pub(crate) fn waiting_table(waiting: Vec<ListedWaiter>) -> String {
    let row =
        |waiter: ListedWaiter| [waiter.machine.title(), waiter.machine.uid, waiter.pools.join(" "), waiter.created];
    let rows: Vec<_> = waiting.into_iter().map(row).collect();
    table([Count::Waiting.head(), "UID", "POOLS", "CREATED"], &rows)
}

pub(crate) fn list(args: List, log: &Logger) -> Result<ExitCode> {
    let mut registry = args.ledger.open_read_only(Vec::new(), log)?;
    let state = registry.state()?;
    let mut listed = Listed::of(state);
    let clusters =
        state.pools().filter_map(|pool| Some((pool.name().to_owned(), pool.cluster().map(str::to_owned)?))).collect();
    listed.retain(&args.filter, &clusters);
    if args.waiting {
        let (version, waiting) = (listed.version, listed.waiting);
        listed = Listed {
            version,
            waiting,
            addresses: Vec::new(),
            conflicts: Vec::new(),
            reserved: Vec::new(),
            missing: Vec::new(),
        };
    }
    if args.filter.is_set() && listed.is_empty() {
        note_no_match();
    }
    if args.json {
        print_json(&listed)?;
        return Ok(ExitCode::SUCCESS);
    }
    let Listed { addresses, conflicts, reserved, waiting, missing, .. } = listed;
    let addresses: Vec<_> = addresses
        .into_iter()
        .map(|held| {
            [held.network, held.address, held.machine.title(), held.machine.uid, held.interface, held.pool, held.since]
        })
        .collect();
    let row = |it: ListedRecord| {
        let (address, state, machine) = (it.address.to_string(), it.state.count().word(), it.machine.title());
        [address, state.to_owned(), machine, it.machine.uid, it.interface, it.source]
    };
    let conflicts = conflicts.into_iter().map(row);
    let conflicts =
        conflicts.map(|[address, _, machine, uid, interface, source]| [address, machine, uid, interface, source]);
    let conflicts: Vec<_> = conflicts.collect();
    let reserved: Vec<_> = reserved.into_iter().map(row).collect();
    let missing: Vec<_> =
        missing.into_iter().map(|missing| [missing.machine.title(), missing.machine.uid, missing.since]).collect();
    let waiting = waiting_table(waiting);
    print(&sections([
        table(["NETWORK", "ADDRESS", "MACHINE", "UID", "INTERFACE", "POOL", "SINCE"], &addresses),
        table([Count::Conflicts.head(), "MACHINE", "UID", "INTERFACE", "RECORD"], &conflicts),
        table([Count::Reserved.head(), "STATE", "MACHINE", "UID", "INTERFACE", "RECORD"], &reserved),
        waiting,
        table(["MISSING", "UID", "SINCE"], &missing),
    ]))?;
    Ok(ExitCode::SUCCESS)
}
