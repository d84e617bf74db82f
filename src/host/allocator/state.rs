//! The state of an allocator: how changes apply to it, and how it is read.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use ipnetwork::IpNetwork;
use jiff::{SignedDuration, Timestamp};

use super::network::{Network, Reports};
use super::pool_state::PoolState;
use super::queue::Queues;
use crate::host::change::{Change, Journal, Update, storable};
use crate::host::claim::{Allocation, Claim, Claimant, Conflict, Lease, Machine, is_guest_of, is_namesake};
use crate::host::growth::Growth;
use crate::host::pool::Pool;
use crate::network::Family;

/// Leases, conflicts and waiting machines of all networks, and the free addresses of all pools.
///
/// The caller passes the time with each call. If the clock goes backwards, the latest time of an earlier call is used.
#[derive(Clone, Debug, Default)]
pub struct Allocator {
    pub(super) pools: BTreeMap<Arc<str>, PoolState>,
    pub(super) networks: BTreeMap<Arc<str>, Network>,
    // For each machine: the addresses that it holds or was the last to hold, and the addresses that it records without
    // a lease.
    pub(super) paths: BTreeMap<Machine, BTreeSet<FieldPath>>,
    pub(super) queues: Queues,
    // Names of pools that allocate nothing. The caller sets these names, and no ledger reports them.
    pub(super) suspended: BTreeSet<String>,
    // The addresses that wait for an adoption. The caller opens the addresses, and no ledger reports them.
    pub(super) growth: Growth,
    pub(super) missing: BTreeMap<Machine, Timestamp>,
    // Machines whose lease the ledger refuses to record. Ledgers do not store this.
    pub(super) denied: BTreeMap<Machine, Denied>,
    // Addresses whose lease the ledger refuses to change. Ledgers do not store this.
    pub(super) unchanged: BTreeMap<FieldPath, Denied>,
    // Latest time of a call. 1970 before the first call.
    pub(super) now: Timestamp,
    // Time of the last call. Unlike `now`, this time goes back if the clock goes back.
    pub(super) clock: Timestamp,
}

/// Longest pause after a refusal, before the allocator asks the ledger again.
pub(super) const REFUSAL: Duration = Duration::from_secs(300);

/// A refusal of the ledger: to record a lease of a machine, or to change the lease of an address.
#[derive(Clone, Debug)]
pub(super) struct Denied {
    /// The ledger is not asked again before this time.
    pub(super) until: Timestamp,
    /// The pause after the next refusal.
    pub(super) pause: Duration,
    pub(super) reason: String,
    /// The network and the address that the first refusal has set aside.
    pub(super) aside: Option<(Arc<str>, IpAddr)>,
}

/// Whether a pause that ends at `until` is over. If the remaining time is longer than any pause, the clock was ahead
/// when the pause began, and the pause counts as over.
pub(super) fn is_over(until: Timestamp, clock: Timestamp) -> bool {
    until <= clock || until > clock.saturating_add(REFUSAL).unwrap_or(clock)
}

/// Name of a network, and an address on this network.
type FieldPath = (Arc<str>, IpAddr);

// === impl Allocator: changes ===

impl Allocator {
    /// Applies an update from a ledger.
    pub(crate) fn learn(&mut self, update: Update) {
        match update {
            Update::Snapshot(known) => {
                let (suspended, growth) = (std::mem::take(&mut self.suspended), std::mem::take(&mut self.growth));
                let networks = std::mem::take(&mut self.networks).into_iter();
                let reports = networks.map(|(name, network)| (name, network.into_reports()));
                let reports: Vec<(Arc<str>, Reports)> = reports.collect();
                let known_networks = growth.networks();
                *self = Self { now: self.now, clock: self.clock, suspended, growth, ..Self::default() };
                for (name, reports) in reports.into_iter().filter(|(_, reports)| !reports.is_empty()) {
                    self.networks.entry(name).or_default().set_reports(reports);
                }
                self.apply_all(known);
                // If all pools of a network are gone, their addresses must not stay open.
                self.refresh(&known_networks);
            }
            Update::Delta(changes) => {
                for change in &changes {
                    // The lease has changed, so the ledger may accept a change that it refused before.
                    if let Change::Lease { network, address, .. } = change {
                        self.refuse_address(network, *address, None);
                    }
                }
                self.apply_all(changes);
            }
        }
    }

    /// Undoes every decision of a journal that could not be committed.
    pub(crate) fn undo(&mut self, mut journal: Journal) {
        let growth = journal.take_growth();
        self.undo_to(0, &mut journal);
        if let Some(growth) = growth {
            let networks = &self.growth.networks() | &growth.networks();
            self.growth = growth;
            self.refresh(&networks);
        }
    }

    /// Undoes all decisions of a journal except the first `first`.
    pub(super) fn undo_to(&mut self, first: usize, journal: &mut Journal) {
        let mut before = Vec::new();
        while journal.changes().len() > first {
            before.extend(journal.pop());
        }
        self.apply_all(before);
    }

    /// Applies a change and adds the change to the journal. Does nothing if the ledger refuses to change the lease.
    pub(super) fn decide(&mut self, change: Change, journal: &mut Journal) {
        if let Change::Lease { network, address, .. } = &change
            && self.is_refused(network, *address)
        {
            return;
        }
        let before = self.apply(change.clone());
        journal.push(before, change);
    }

    /// Applies changes of several pools, and computes the reserved addresses of each network only once.
    pub(super) fn decide_pools(&mut self, changes: Vec<Change>, journal: &mut Journal) {
        let mut networks = BTreeSet::new();
        journal.keep_growth(&self.growth);
        for change in changes {
            let after = change.clone();
            journal.push(self.apply_only(change, &mut networks), after);
        }
        self.refresh(&networks);
    }

    /// Applies changes, the pools first: the addresses that a pool offers depend on all pools of its network.
    fn apply_all(&mut self, changes: Vec<Change>) {
        let mut networks = BTreeSet::new();
        let (pools, others): (Vec<Change>, Vec<Change>) =
            changes.into_iter().partition(|change| matches!(change, Change::Pool { .. }));
        for change in pools {
            self.apply_only(change, &mut networks);
        }
        self.refresh(&networks);
        for change in others {
            self.apply(change);
        }
    }

    /// Applies a change and returns the state before the change.
    fn apply(&mut self, change: Change) -> Change {
        let mut networks = BTreeSet::new();
        let before = self.apply_only(change, &mut networks);
        self.refresh(&networks);
        before
    }

    /// Applies a change without computing the addresses that pools offer, and returns the state before the change. Adds
    /// to `networks` each network for which the caller has to call `refresh`.
    fn apply_only(&mut self, change: Change, networks: &mut BTreeSet<Arc<str>>) -> Change {
        match change {
            Change::Pool { name, pool } => {
                let before = self.set_pool(&name, pool.clone());
                networks.extend(before.iter().chain(&pool).map(|pool| Arc::from(pool.network.as_str())));
                Change::Pool { name, pool: before }
            }
            Change::Lease { network, address, lease } => {
                let lease = self.set_lease(&network, address, lease);
                Change::Lease { network, address, lease }
            }
            Change::Conflict { network, address, claimant, record } => {
                let record = self.set_conflict(&network, address, &claimant, record);
                Change::Conflict { network, address, claimant, record }
            }
            Change::Waiter { machine, claim } => {
                let claim = self.set_waiter(&machine, claim);
                Change::Waiter { machine, claim }
            }
            Change::Missing { machine, since } => {
                let before = match since {
                    Some(since) => self.missing.insert(machine.clone(), since),
                    None => self.missing.remove(&machine),
                };
                Change::Missing { machine, since: before }
            }
        }
    }

    /// Sets the current time, ends the refusals whose pause is over, and frees the addresses whose reuse delay is over.
    pub(super) fn advance(&mut self, now: Timestamp) {
        self.clock = storable(now);
        self.now = self.now.max(self.clock);
        let clock = self.clock;
        // Refusals are remembered for longer than an address is set aside, so that the next refusal counts as a
        // repeated refusal.
        let longest = SignedDuration::try_from(REFUSAL * 2).unwrap_or_default();
        let is_recent = |denied: &Denied| denied.until.duration_until(clock).abs() < longest;
        self.denied.retain(|_, denied| is_recent(denied));
        self.unchanged.retain(|_, denied| is_recent(denied));
        let networks: Vec<Arc<str>> = self.networks.keys().cloned().collect();
        for name in networks {
            let refused = self.networks.get(&name).into_iter().flat_map(Network::refused);
            let over: Vec<IpAddr> =
                refused.filter(|(_, until)| is_over(*until, clock)).map(|(address, _)| address).collect();
            over.into_iter().for_each(|address| self.refuse_address(&name, address, None));
            while let Some(address) = self.networks.get_mut(&name).and_then(|network| network.end_delay(self.now)) {
                if self.networks.get(&name).is_some_and(|network| !network.is_occupied(address)) {
                    self.occupy(&name, address, false);
                }
            }
        }
    }
}

// === impl Allocator: reading ===

impl Allocator {
    /// All pools, sorted by name.
    pub fn pools(&self) -> impl Iterator<Item = &Pool> {
        self.pools.values().map(PoolState::pool)
    }

    /// The pool with this name, written as `namespace/name`.
    #[must_use]
    pub fn pool(&self, name: &str) -> Option<&Pool> {
        self.pools.get(name).map(PoolState::pool)
    }

    /// The pools of a network that have an address.
    pub(super) fn pools_with(&self, network: &str, address: IpAddr) -> impl Iterator<Item = &PoolState> {
        let names = self.networks.get(network).into_iter().flat_map(move |state| state.pools_with(address));
        names.filter_map(|name| self.pools.get(name))
    }

    /// The networks that have a pool with the address.
    pub(super) fn networks_with(&self, address: IpAddr) -> Vec<Arc<str>> {
        let having = self.networks.iter().filter(|(_, network)| network.pools_with(address).next().is_some());
        having.map(|(name, _)| Arc::clone(name)).collect()
    }

    /// The pool that has an address, serves a machine and allocates addresses. `None`: there are several such pools, or
    /// there is no such pool.
    #[doc(hidden)]
    #[must_use]
    pub fn home(&self, network: &str, address: IpAddr, machine: &Machine) -> Option<&Pool> {
        let is_meant =
            |pool: &&Pool| pool.serves_holder(machine) && !pool.is_external() && !self.suspended.contains(pool.name());
        let mut homes = self.pools_with(network, address).map(PoolState::pool).filter(is_meant);
        homes.next().filter(|_| homes.next().is_none())
    }

    /// The held addresses, each with its network and its lease, sorted by network and number, IPv4 first.
    pub fn leases(&self) -> impl Iterator<Item = (&str, IpAddr, &Lease)> {
        self.networks
            .iter()
            .flat_map(|(name, network)| network.held().map(move |(address, lease)| (&**name, address, lease)))
    }

    /// The holder of an address of a network. `None`: no machine holds the address.
    #[must_use]
    pub fn holder(&self, network: &str, address: IpAddr) -> Option<&Claimant> {
        self.networks.get(network)?.held_at(address).map(|lease| &*lease.claimant)
    }

    /// Name of the pool of the lease of an address. `None`: no machine holds the address.
    #[must_use]
    #[doc(hidden)]
    pub fn leased_from(&self, network: &str, address: IpAddr) -> Option<&str> {
        self.networks.get(network)?.held_at(address).map(|lease| &*lease.pool)
    }

    /// The lease of an address of a network, held or released.
    pub(crate) fn lease(&self, network: &str, address: IpAddr) -> Option<&Lease> {
        self.networks.get(network)?.lease(address)
    }

    /// The leases that a machine holds, each with its network and its address, sorted by network and number, IPv4
    /// first.
    pub fn leases_of(&self, machine: &Machine) -> impl Iterator<Item = (&str, IpAddr, &Lease)> {
        self.held_by(machine).into_iter().map(|(network, address, lease)| (&**network, address, lease))
    }

    /// The machines with this namespace and name, and any UID, that hold an address, were the last to hold an address,
    /// or have a record without a lease.
    pub fn namesakes<'a>(&'a self, namespace: &str, name: &str) -> impl Iterator<Item = &'a Machine> + use<'a> {
        let first = Machine::new(namespace, name, "");
        let namesakes = self.paths.range(first.clone()..).take_while(move |(other, _)| is_namesake(other, &first));
        namesakes.map(|(machine, _)| machine)
    }

    /// The claims of the guest of this VirtualMachine that hold an address, were the last to hold an address, or have a
    /// record without a lease.
    #[doc(hidden)]
    pub fn claims_of_guest<'a>(&'a self, namespace: &str, vm: &str) -> impl Iterator<Item = &'a Machine> + use<'a> {
        let guest = Machine::new(namespace, vm, "");
        // The name of an IPAMClaim begins with the name of its VirtualMachine and a dot.
        let first = Machine::new(namespace, format!("{vm}."), "");
        let named = self.paths.range(first.clone()..).map(|(machine, _)| machine);
        let named =
            named.take_while(move |other| other.namespace == first.namespace && other.name.starts_with(&first.name));
        let claims = self.namesakes(namespace, vm).chain(named);
        claims.filter(move |claim| claim.kind.is_claim() && is_guest_of(claim, &guest))
    }

    /// The waiting machines with this namespace and name, and any UID.
    #[doc(hidden)]
    pub fn waiting_namesakes<'a>(&'a self, namespace: &str, name: &str) -> impl Iterator<Item = &'a Machine> + use<'a> {
        let first = Machine::new(namespace, name, "");
        let namesakes = self.queues.waiters.range(first.clone()..);
        namesakes.map(|(machine, _)| machine).take_while(move |other| is_namesake(other, &first))
    }

    /// Whether a machine waits for addresses.
    #[must_use]
    pub fn waits(&self, machine: &Machine) -> bool {
        self.queues.claim_of(machine).is_some()
    }

    /// The records without a lease, each with its network and address, sorted by network, address and machine.
    pub fn conflicts(&self) -> impl Iterator<Item = (&str, IpAddr, Conflict)> {
        self.networks.iter().flat_map(|(name, network)| {
            network.conflicts().map(move |(address, conflict)| (&**name, address, conflict))
        })
    }

    /// The addresses that a machine records without a lease, each with its network, sorted by network and address.
    pub fn conflicts_of(&self, machine: &Machine) -> impl Iterator<Item = (&str, IpAddr)> {
        let paths = self.paths.get(machine).into_iter().flatten();
        let has_conflict = |network: &Arc<str>, address: IpAddr| {
            self.networks.get(network).is_some_and(|network| !network.conflicts_of(address, machine).is_empty())
        };
        let conflicts = paths.filter(move |(network, address)| has_conflict(network, *address));
        conflicts.map(|(network, address)| (&**network, *address))
    }

    /// The addresses that are reserved for a machine because its objects record them, each with its network. Addresses
    /// that the machine keeps although no pool offers them any more are left out.
    #[doc(hidden)]
    pub fn reserved_by_records_of(&self, machine: &Machine) -> impl Iterator<Item = (&str, IpAddr)> {
        self.conflicts_of(machine).filter(|(network, address)| {
            !self.has_ended(network, *address, machine) && !self.is_excluded_for(network, *address, machine)
        })
    }

    /// Whether an address stays reserved for a machine, although no object of the machine records the address any more.
    #[must_use]
    #[doc(hidden)]
    pub fn has_ended(&self, network: &str, address: IpAddr, machine: &Machine) -> bool {
        self.networks.get(network).is_some_and(|network| network.has_ended(address, machine))
    }

    /// Whether an address that no pool offers any more is reserved for a machine.
    #[must_use]
    #[doc(hidden)]
    pub fn is_excluded_for(&self, network: &str, address: IpAddr, machine: &Machine) -> bool {
        self.networks.get(network).is_some_and(|network| network.is_excluded_for(address, machine))
    }

    /// The waiting claims, in the order of their creation. In a pool that namespaces do not share, this is the order in
    /// which the claims are served.
    #[must_use]
    pub fn waiters(&self) -> Vec<&Claim> {
        let mut waiters: Vec<&Claim> = self.queues.claims().collect();
        waiters.sort_by_key(|claim| (claim.created, &claim.machine));
        waiters
    }

    /// The waiting claims in any order. Each claim comes with the pools for which it waits, and each pool with the
    /// family of the address that the claim needs. The list of pools is empty if the pools are unknown, or allocate
    /// nothing for now.
    #[doc(hidden)]
    pub fn waiting(&self) -> impl Iterator<Item = (&Claim, &[(Arc<str>, Family)])> {
        self.queues.waiters.values().map(|waiter| (&*waiter.claim, waiter.queue.as_deref().unwrap_or_default()))
    }

    /// The missing machines, each with the time when it was first missed.
    pub fn missing(&self) -> impl Iterator<Item = (&Machine, Timestamp)> {
        self.missing.iter().map(|(machine, since)| (machine, *since))
    }

    /// Interfaces that hold several addresses of one family.
    ///
    /// Only a store without a lock for writers can have such interfaces: two writers served one machine at the same
    /// time. The caller knows which address the machine really got, and resolves the case with
    /// [`Registry::keep`](crate::host::registry::Registry::keep).
    #[must_use]
    pub fn doubles(&self) -> Vec<Allocation> {
        let held =
            self.leases().map(|(_, address, lease)| (Arc::clone(&lease.claimant), with_prefix(address, lease.prefix)));
        let mut doubles = allocations(held.collect());
        doubles.retain(|allocation| {
            let ipv4 = allocation.addresses.iter().filter(|address| Family::of(address.ip()) == Family::Ipv4).count();
            ipv4 > 1 || allocation.addresses.len() - ipv4 > 1
        });
        doubles
    }

    /// The leases that a machine holds, sorted by network and address. Released leases are left out.
    pub(super) fn held_by(&self, machine: &Machine) -> Vec<(&Arc<str>, IpAddr, &Lease)> {
        let paths = self.paths.get(machine).into_iter().flatten();
        let held = paths
            .filter_map(|(network, address)| Some((network, *address, self.networks.get(network)?.held_at(*address)?)));
        held.filter(|(_, _, lease)| lease.claimant.machine == *machine).collect()
    }

    /// Networks and addresses in the index for all machines that have the namespace and name of `machine`, with any
    /// UID.
    pub(super) fn paths_of_namesakes(&self, machine: &Machine) -> impl Iterator<Item = &FieldPath> {
        let first = Machine::new(machine.namespace.clone(), machine.name.clone(), "");
        let namesakes = self.paths.range(first..).take_while(move |(other, _)| is_namesake(other, machine));
        namesakes.flat_map(|(_, paths)| paths)
    }
}

/// An address with its prefix length. If another program stored an impossible prefix length, the full length (/32,
/// /128) replaces it.
pub(super) fn with_prefix(address: IpAddr, prefix: u8) -> IpNetwork {
    IpNetwork::new(address, prefix).unwrap_or_else(|_| IpNetwork::from(address))
}

/// Groups addresses by claimant. The addresses of a group are sorted by number, IPv4 first.
pub(super) fn allocations(mut held: Vec<(Arc<Claimant>, IpNetwork)>) -> Vec<Allocation> {
    held.sort_unstable_by(|(a, its), (b, other)| a.cmp(b).then_with(|| its.ip().cmp(&other.ip())));
    let of_one = held.chunk_by(|(a, _), (b, _)| a == b);
    let allocation = |its: &[(Arc<Claimant>, IpNetwork)]| {
        let (claimant, _) = its.first()?;
        let addresses = its.iter().map(|(_, address)| *address).collect();
        Some(Allocation { claimant: Claimant::clone(claimant), addresses })
    };
    of_one.filter_map(allocation).collect()
}
