//! Reads the state of each pool in the registry, for the status of the pool.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use glowplug::host::allocator::{Allocator, Conflicted, OtherUser, PoolUsage};
use glowplug::host::claim::{Claim, HolderKind, Machine, Request};
use glowplug::host::metrics::relief;
use glowplug::host::pool::Pool;
use glowplug::network::Family;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;

use crate::cluster::conditions::{MOST_LINES, unreadable_leases};
use crate::cluster::key::Key;
use crate::kinds::lease_name::parse_lease_name;
use crate::kinds::pool::{MOST_WAITING, Neighbour, Waiting};
use crate::pools::beyond::Beyond;
use crate::pools::machine_states::Counts;

/// State of a pool in the registry, and facts that other parts have noted about the pool.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Observation {
    /// Counts of the pool: no families if the registry does not have the pool.
    pub usage: PoolUsage,
    /// The first claims and machines of the pool's wait queue.
    pub waiting: Vec<Waiting>,
    /// The first KubevirtMachines whose VirtualMachines the webhook rejects because of the pool, with the times of
    /// their creation. They have no claim. They count as waiting machines, and change nothing else in the status.
    pub refused: Vec<(Timestamp, Key)>,
    /// For each address of the pool with two or more users, by network and address: the users other than the holder.
    pub conflicts: BTreeMap<(String, IpAddr), OtherUsers>,
    /// Lines about leases of the pool that cannot be read. `None`: every lease can be read.
    pub unreadable: Option<String>,
    /// Why the new addresses of the pool are not allocated yet. `None`: the pool has no new address, or
    /// allocates its new addresses soon.
    pub unadopted: Option<String>,
    /// Numbers of machines of the pool.
    pub machines: Counts,
    /// The first Services and Clusters that have an address of the pool.
    pub neighbours: Vec<Neighbour>,
    /// Summary of reported addresses that are not reserved. `None`: every reported address is reserved.
    pub beyond: Option<Beyond>,
    /// Name of the first pool that serves the same machines and has a free address of each family. It can be the observed
    /// pool itself. `None`: there is no such pool, the observed pool shares its machines with no other pool, or a claim
    /// or machine waits for an address of the observed pool.
    pub relief: Option<String>,
}

/// The users of an address other than the holder of its lease.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OtherUsers {
    /// Lines about the first of these users, at most as many as a condition can have.
    pub lines: Vec<String>,
    /// Number of these users. A machine that both records and reports the address counts once.
    pub count: usize,
}

/// States of the pools in the registry, by the name of the pool.
pub type Observations = BTreeMap<String, Observation>;

/// Returns the state of the pools in the registry. `usage` is the result of [`Allocator::usage`]. `unreadable` has the
/// name of each lease that cannot be read, with the reason. `groups` is the result of
/// [`KnownPools::groups`](super::KnownPools::groups).
#[must_use]
pub fn observe(
    allocator: &Allocator,
    usage: BTreeMap<&str, PoolUsage>,
    (unreadable, groups): (&BTreeMap<String, String>, &BTreeMap<String, Vec<String>>),
) -> Observations {
    let relief_of = |pool: &str| {
        let group = groups.get(pool)?.iter();
        let group = group.filter_map(|of| Some((of.as_str(), usage.get(of.as_str())?)));
        relief(usage.get(pool)?, group).map(str::to_owned)
    };
    let reliefs: BTreeMap<String, String> =
        groups.keys().filter_map(|pool| Some((pool.clone(), relief_of(pool)?))).collect();
    let observations =
        usage.into_iter().map(|(pool, usage)| (pool.to_owned(), Observation { usage, ..Observation::default() }));
    let mut observations: Observations = observations.collect();
    for (pool, relief) in reliefs {
        observations.entry(pool).or_default().relief = Some(relief);
    }
    for (pool, waiting) in first_waiting(allocator) {
        observations.entry(pool.to_owned()).or_default().waiting = waiting;
    }
    for (pool, neighbours) in neighbours(allocator) {
        observations.entry(pool.to_owned()).or_default().neighbours = neighbours;
    }
    for conflicted in allocator.conflicted() {
        let Conflicted { network, address, holder, others } = conflicted;
        let with = match &holder {
            Some(holder) => format!("the holder is {holder}"),
            None => "the address has no holder".to_owned(),
        };
        let line = |OtherUser { claimant, source, is_report }: &OtherUser| {
            let verb = if *is_report { "reports" } else { "records" };
            format!("{address}: {source} {verb} this address for {claimant}; {with}")
        };
        let (mut users, mut known): (Vec<&OtherUser>, _) = (Vec::new(), BTreeSet::new());
        for other in &others {
            let machine = &other.claimant.machine;
            if known.insert((machine.kind.is_claim(), machine.served_in(), &machine.name)) {
                users.push(other);
            }
        }
        let lines: Vec<String> = users.iter().copied().take(MOST_LINES).map(line).collect();
        let of_holder = allocator.leased_from(&network, address);
        let has = |pool: &&Pool| pool.contains(address) || pool.is_external() || of_holder == Some(pool.name());
        for pool in allocator.pools().filter(|pool| *pool.network() == *network).filter(has) {
            let observation = observations.entry(pool.name().to_owned()).or_default();
            // A condition has at most `MOST_LINES` lines, and each address gets a line before any address gets a second
            // line. So later addresses need no lines here.
            let has_line = observation.conflicts.len() < MOST_LINES;
            let lines = if has_line { lines.clone() } else { Vec::new() };
            observation.conflicts.insert((network.clone(), address), OtherUsers { lines, count: users.len() });
        }
    }
    let mut damaged: BTreeMap<&str, Vec<(IpAddr, &str, &str)>> = BTreeMap::new();
    for (name, reason) in unreadable {
        let Some((address, network)) = parse_lease_name(name) else { continue };
        let has = |pool: &&Pool| *pool.network() == *network && pool.contains(address);
        for pool in allocator.pools().filter(has) {
            damaged.entry(pool.name()).or_default().push((address, name.as_str(), reason.as_str()));
        }
    }
    for (pool, leases) in damaged {
        observations.entry(pool.to_owned()).or_default().unreadable = unreadable_leases(leases);
    }
    observations
}

/// Returns for each pool the first waiting claims and machines, in the order in which they are served.
fn first_waiting(allocator: &Allocator) -> BTreeMap<&str, Vec<Waiting>> {
    let mut waiting: BTreeMap<&str, Vec<(&Claim, Option<Family>)>> = BTreeMap::new();
    for (claim, queue) in allocator.waiting() {
        let pools: BTreeSet<&str> = claim.requests.iter().flat_map(Request::pools).collect();
        for pool in pools {
            let family = queue.iter().find(|(of, _)| **of == *pool).map(|(_, family)| *family);
            waiting.entry(pool).or_default().push((claim, family));
        }
    }
    let row = |(Claim { machine, created, .. }, family): (&Claim, Option<Family>)| Waiting {
        kind: machine.kind,
        namespace: machine.namespace.clone(),
        name: machine.name.clone(),
        family: family.map(|family| family.to_string()),
        since: Time(*created),
    };
    let first = |all| allocator.in_order(all).into_iter().take(MOST_WAITING).map(row).collect();
    waiting.into_iter().map(|(pool, all)| (pool, first(all))).collect()
}

/// Returns for each pool the first Services and Clusters that have an address of the pool, in the order of the
/// addresses.
fn neighbours(allocator: &Allocator) -> BTreeMap<&str, Vec<Neighbour>> {
    let mut all: BTreeMap<&str, BTreeSet<(IpAddr, &Machine)>> = BTreeMap::new();
    for (network, address, object) in allocator.neighbours() {
        let has = |pool: &&Pool| *pool.network() == *network && pool.contains(address);
        for pool in allocator.pools().filter(has) {
            all.entry(pool.name()).or_default().insert((address, object));
        }
    }
    let neighbour = |(address, object): (IpAddr, &Machine)| Neighbour {
        address: address.to_string(),
        kind: format!("{:?}", object.kind),
        namespace: object.namespace.clone(),
        name: object.name.clone(),
    };
    all.into_iter().map(|(pool, all)| (pool, all.into_iter().take(MOST_WAITING).map(neighbour).collect())).collect()
}

// === impl Observation ===

impl Observation {
    /// The first family without a free address.
    #[must_use]
    pub fn exhausted_family(&self) -> Option<Family> {
        self.usage.families.iter().find(|usage| usage.free == 0).map(|usage| usage.family)
    }

    /// The first KubevirtMachines whose VirtualMachines the webhook rejects, in the form in which the status of the
    /// pool lists them.
    pub(super) fn refused(&self) -> impl Iterator<Item = Waiting> {
        let family = self.exhausted_family().map(|family| family.to_string());
        self.refused.iter().map(move |(created, key)| Waiting {
            kind: HolderKind::KubevirtMachine,
            namespace: key.namespace.clone(),
            name: key.name.clone(),
            family: family.clone(),
            since: Time(*created),
        })
    }
}
