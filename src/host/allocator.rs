//! The allocator: decides who gets which address. It keeps nothing on disk, asks no clock and knows no Kubernetes.
//!
//! An allocator is made from what is known already, and in no other way, so there is none that might give an address
//! that is in use. What it decides it changes in memory at once, and writes into the [`Journal`] that it is given: what
//! has to be recorded before the answer leaves the process, and what takes it all back if that fails.
//!
//! Addresses are unique on a network, whichever pool they come from. An address is given only when a pool offers it and
//! nobody holds it, nobody contends for it, and the reuse delay of who held it last is over.

mod address_map;
mod adopt;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::hash::BuildHasher;
use std::net::IpAddr;
use std::sync::Arc;

use foldhash::fast::RandomState;
use ipnetwork::IpNetwork;
use smallvec::SmallVec;

use super::claim::{Allocation, Claim, Claimant, Conflict, Lease, Machine};
use super::free_ranges::FreeRanges;
use super::ledger::Update;
use super::pool::{Pool, Reserved, Space};
use crate::network::{Family, InterfaceName};
use address_map::AddressMap;

pub use adopt::{Adoption, Mismatch, Problem};

/// Who holds which address of which network, who waits, and what is free.
///
/// Times are milliseconds since 1970 and come with each call. One that is earlier than that of a call before counts as
/// that one.
#[derive(Debug)]
pub struct Allocator {
    pools: Vec<PoolState>,
    pool_by_name: BTreeMap<String, usize>,
    networks: Vec<Network>,
    network_by_name: BTreeMap<Arc<str>, usize>,
    // Where the machines of a namespace and name have, had or contend for an address. Looked up, never listed.
    places_by_name: HashMap<Name, Few<Place>, RandomState>,
    names: RandomState,
    waiters: BTreeMap<Machine, Waiter>,
    queues: BTreeMap<Queue, BTreeSet<Turn>>,
    // Those who may get what a namesake left, although it rests and their queue does not move.
    namesakes: BTreeSet<Turn>,
    missing: BTreeMap<Machine, u64>,
    now: u64,
}

/// What is now the case. A ledger tells it and records it, and applying it twice is applying it once.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Change {
    /// Who holds an address, or held it last.
    Lease {
        /// The network.
        network: Arc<str>,
        /// The address.
        address: IpAddr,
        /// `None` if nobody ever did.
        lease: Option<Lease>,
    },
    /// Who else has a record of an address.
    Conflicts {
        /// The network.
        network: Arc<str>,
        /// The address.
        address: IpAddr,
        /// All of them.
        conflicts: Vec<Conflict>,
    },
    /// What a machine waits for.
    Waiter {
        /// The machine.
        machine: Machine,
        /// `None` if it does not wait.
        claim: Option<Arc<Claim>>,
    },
    /// Since when a machine is missing.
    Missing {
        /// The machine.
        machine: Machine,
        /// When it was missing first. `None` if it is there.
        since: Option<u64>,
    },
}

/// What was decided and is not recorded yet.
#[derive(Debug, Default)]
pub struct Journal {
    changes: Vec<Change>,
    // What was the case before, by the index of the change. Of an address that nobody ever had, as after a loss all are,
    // there is nothing.
    before: Vec<(usize, Change)>,
}

/// Why a claim is refused.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum ClaimError {
    /// No address of a family is free, and the machine waits unless it named an address.
    Exhausted {
        /// The interface that gets none.
        interface: InterfaceName,
        /// The pool.
        pool: String,
        /// The family.
        family: Family,
    },
    /// The claim requests nothing.
    Nothing,
    /// There is no such pool.
    UnknownPool(String),
    /// Two requests, or two addresses of one, are for the same family of one interface.
    Twice {
        /// The interface.
        interface: InterfaceName,
        /// The family.
        family: Family,
    },
    /// The interface has an address of another pool.
    OtherPool {
        /// The interface.
        interface: InterfaceName,
        /// What it has.
        held: IpAddr,
        /// The pool of that.
        pool: String,
    },
    /// The interface has another address than the one that the claim names.
    OtherAddress {
        /// The interface.
        interface: InterfaceName,
        /// What it has.
        held: IpAddr,
        /// What the claim names.
        named: IpAddr,
    },
    /// The named address is not of the pool.
    NotInPool {
        /// What the claim names.
        named: IpAddr,
        /// The pool.
        pool: String,
    },
    /// The named address is of the pool but never given.
    Reserved {
        /// What the claim names.
        named: IpAddr,
        /// The pool.
        pool: String,
        /// What it is there.
        why: Option<Reserved>,
    },
    /// Somebody else holds the named address, or has a record of it.
    Taken {
        /// What the claim names.
        named: IpAddr,
        /// Who.
        by: Claimant,
    },
    /// The reuse delay of the named address is not over.
    ReuseDelay {
        /// What the claim names.
        named: IpAddr,
        /// When it is, in milliseconds since 1970.
        until: u64,
    },
}

/// How many addresses of one family a pool has, and where they are.
///
/// `total` is always the sum of `reserved`, `used`, `conflicting`, `reuse_delay` and `free`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Usage {
    /// The family.
    pub family: Family,
    /// All addresses of the pool.
    pub total: u128,
    /// Those that are never given.
    pub reserved: u128,
    /// Those that are held, of which some may have come from another pool on the network.
    pub used: u128,
    /// Those that only a record names, which is not the ledger's.
    pub conflicting: u128,
    /// Those whose reuse delay is not over.
    pub reuse_delay: u128,
    /// Those that the next claim may get.
    pub free: u128,
    /// Those that machines hold from this pool although it does not, or no longer, offer them. They are in none of the
    /// other figures but `reserved`, where they are of the pool.
    pub outside: u128,
}

#[derive(Debug)]
struct PoolState {
    pool: Pool,
    name: Arc<str>,
    network: usize,
    // Also the ends of subnets, of which there may be more than fit into memory. They go when they are met.
    free: BTreeMap<Family, FreeRanges>,
}

#[derive(Debug)]
struct Network {
    name: Arc<str>,
    pools: Vec<usize>,
    leases: AddressMap<Lease>,
    conflicts: AddressMap<Vec<Conflict>>,
    // The leases whose reuse delay is not over.
    delayed: BTreeSet<(u64, IpAddr)>,
}

#[derive(Debug)]
struct Waiter {
    claim: Arc<Claim>,
    // `None` while there is no pool that it waits for.
    queue: Option<Queue>,
}

/// Mostly an address of each family.
type Few<T> = SmallVec<[T; 2]>;

/// A hash of namespace and name. It is a hint at which machines are meant: whoever looks up compares them.
type Name = u64;

/// An address of a network.
type Place = (usize, IpAddr);

/// The pool and the family that is exhausted.
type Queue = (usize, Family);

/// Creation time, then namespace and name.
type Turn = (u64, Machine);

/// An address that a claim lacks.
struct Want {
    pool: usize,
    family: Family,
    named: Option<IpAddr>,
}

/// Why a want gets none.
enum Refusal {
    Exhausted(Queue),
    Other(ClaimError),
}

// === impl Allocator ===

impl Allocator {
    /// An allocator of `pools` that knows what `known` tells, which is everything that a ledger has. Of several pools of
    /// one name the last one counts.
    #[must_use]
    pub fn rebuild(pools: impl IntoIterator<Item = Pool>, known: impl IntoIterator<Item = Change>) -> Self {
        let mut allocator = Self {
            pools: Vec::new(),
            pool_by_name: BTreeMap::new(),
            networks: Vec::new(),
            network_by_name: BTreeMap::new(),
            places_by_name: HashMap::default(),
            names: RandomState::default(),
            waiters: BTreeMap::new(),
            queues: BTreeMap::new(),
            namesakes: BTreeSet::new(),
            missing: BTreeMap::new(),
            now: 0,
        };
        for pool in pools {
            allocator.resize(pool);
        }
        let known = known.into_iter();
        allocator.reserve(known.size_hint().0 / 2);
        for change in known {
            allocator.apply(change);
        }
        allocator
    }

    /// Makes room for so many interfaces, mostly with an address of each family.
    fn reserve(&mut self, count: usize) {
        self.places_by_name.reserve(count);
        let networks = self.networks.len().max(1);
        self.networks.iter_mut().for_each(|network| network.leases.reserve(count / networks));
    }

    /// Takes over what is now the case, and returns what was before.
    pub fn apply(&mut self, change: Change) -> Change {
        match change {
            Change::Lease { network, address, lease } => {
                let lease = self.set_lease(&network, address, lease);
                Change::Lease { network, address, lease }
            }
            Change::Conflicts { network, address, conflicts } => {
                let conflicts = self.set_conflicts(&network, address, conflicts);
                Change::Conflicts { network, address, conflicts }
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

    /// Takes over what a ledger tells.
    pub fn learn(&mut self, update: Update) {
        match update {
            Update::Snapshot(known) => {
                let (pools, now) = (std::mem::take(&mut self.pools), self.now);
                *self = Self::rebuild(pools.into_iter().map(|state| state.pool), known);
                self.advance(now);
            }
            Update::Delta(changes) => changes.into_iter().for_each(|change| drop(self.apply(change))),
        }
    }

    /// Takes back what a journal says, which could not be recorded.
    pub fn undo(&mut self, mut journal: Journal) {
        self.undo_to(0, &mut journal);
    }

    /// Takes back all but the first ones.
    fn undo_to(&mut self, first: usize, journal: &mut Journal) {
        while journal.changes.len() > first
            && let Some(change) = journal.changes.pop()
        {
            let index = journal.changes.len();
            match (journal.before.pop_if(|(at, _)| *at == index), change) {
                (Some((_, before)), _) => drop(self.apply(before)),
                (None, Change::Lease { network, address, .. }) => drop(self.set_lease(&network, address, None)),
                (None, _) => {}
            }
        }
    }

    /// Gives the interfaces of a machine what they hold already, or else what they ask for: all of it or nothing.
    ///
    /// Asking twice is asking once, so a controller may call this on every pass. Who asks is not missing. Whoever waits and
    /// can be served is served first. A claim that is refused because a pool is exhausted waits from then on, unless it names addresses:
    /// the journal has that, too, so it is to be recorded also when the claim is refused.
    ///
    /// # Errors
    ///
    /// The reason why nothing is given; see [`ClaimError`].
    pub fn claim(&mut self, claim: &Claim, now: u64, journal: &mut Journal) -> Result<Vec<Allocation>, ClaimError> {
        self.serve(now, journal);
        self.note_seen(&claim.machine, journal);
        let waits = self.waiters.get(&claim.machine).map(|waiter| Arc::clone(&waiter.claim));
        match self.allocate(claim, journal) {
            Ok(()) => {
                if waits.is_some() {
                    self.decide(Change::Waiter { machine: claim.machine.clone(), claim: None }, journal);
                }
                Ok(self.answer(claim))
            }
            Err(Refusal::Exhausted((pool, family))) => {
                let Pool { name, interface, .. } = &self.pools[pool].pool;
                let (interface, pool) = (*interface, name.clone());
                let may_wait = claim.requests.iter().all(|request| request.addresses.is_empty());
                if may_wait && waits.is_none_or(|waits| *waits != *claim) {
                    let (machine, claim) = (claim.machine.clone(), Some(Arc::new(claim.clone())));
                    self.decide(Change::Waiter { machine, claim }, journal);
                }
                Err(ClaimError::Exhausted { interface, pool, family })
            }
            Err(Refusal::Other(error)) => Err(error),
        }
    }

    /// Takes back everything that a machine holds, waits for or contends for. Its addresses are given again after
    /// `delay` milliseconds; what it held is returned. Only this very machine: its UID counts.
    ///
    /// To be called only when the machine is gone, that is when it cannot send from its addresses any more.
    pub fn release(&mut self, machine: &Machine, now: u64, delay: u64, journal: &mut Journal) -> Vec<Allocation> {
        self.advance(now);
        let mut held = Vec::new();
        // No delay is none also for a process whose clock is behind.
        let reuse_after = (delay > 0).then(|| self.now.saturating_add(delay));
        for (at, address) in self.places_by_name.get(&self.name_of(machine)).cloned().unwrap_or_default() {
            let network = &self.networks[at];
            let name = Arc::clone(&network.name);
            if let Some(conflicts) = network.conflicts.get(address)
                && conflicts.iter().any(|conflict| conflict.claimant.machine == *machine)
            {
                let mut conflicts = conflicts.clone();
                conflicts.retain(|conflict| conflict.claimant.machine != *machine);
                self.decide(Change::Conflicts { network: Arc::clone(&name), address, conflicts }, journal);
            }
            if let Some(lease) = self.networks[at].held(address)
                && lease.claimant.machine == *machine
            {
                held.push((Arc::clone(&lease.claimant), with_prefix(address, lease.prefix)));
                let lease = Some(Lease { released: Some(self.now), reuse_after, ..lease.clone() });
                self.decide(Change::Lease { network: name, address, lease }, journal);
            }
        }
        self.withdraw(machine, journal);
        if self.missing.contains_key(machine) {
            self.decide(Change::Missing { machine: machine.clone(), since: None }, journal);
        }
        allocations(held)
    }

    /// Has a machine wait no more. What it holds stays its own.
    pub fn withdraw(&mut self, machine: &Machine, journal: &mut Journal) {
        if self.waiters.contains_key(machine) {
            self.decide(Change::Waiter { machine: machine.clone(), claim: None }, journal);
        }
    }

    /// Serves whoever waits and can be served, in their order, and returns what they got.
    pub fn serve(&mut self, now: u64, journal: &mut Journal) -> Vec<Allocation> {
        self.advance(now);
        let mut served = Vec::new();
        // To serve takes and never frees, so who is refused once is refused until the end: also who lacks the second of
        // two addresses of pools that overlap, of which either alone is free.
        let mut tried: BTreeSet<Turn> = BTreeSet::new();
        loop {
            self.namesakes.retain(|turn| !tried.contains(turn));
            let queues: Vec<Queue> = self.queues.keys().copied().collect();
            let open = queues.into_iter().filter(|(pool, family)| self.lowest(*pool, *family).is_some());
            let open: Vec<Queue> = open.collect();
            let untried = |queue| self.queues.get(queue)?.iter().find(|turn| !tried.contains(*turn));
            let turns = open.iter().filter_map(untried);
            let Some(turn) = turns.chain(self.namesakes.first()).min().cloned() else { return served };
            self.namesakes.remove(&turn);
            tried.insert(turn.clone());
            let (_, machine) = turn;
            let Some(claim) = self.waiters.get(&machine).map(|waiter| Arc::clone(&waiter.claim)) else { continue };
            match self.allocate(&claim, journal) {
                Ok(()) => {
                    self.decide(Change::Waiter { machine, claim: None }, journal);
                    served.extend(self.answer(&claim));
                }
                Err(Refusal::Exhausted(queue)) => self.enqueue(&machine, Some(queue)),
                // Who has that pool serves it.
                Err(Refusal::Other(ClaimError::UnknownPool(_))) => {}
                // It holds an address of another pool by now. Asked again it is told so; to wait is no use.
                Err(Refusal::Other(_)) => self.decide(Change::Waiter { machine, claim: None }, journal),
            }
        }
    }

    /// Puts a pool in the place of the one of its name, or beside the others if there is none, and returns that one.
    ///
    /// Nobody loses an address: what the pool does not offer any more stays with its holder, is counted as outside, and
    /// is not given again. Nobody is served either; for that there is [`Allocator::serve`].
    pub fn resize(&mut self, pool: Pool) -> Option<Pool> {
        let network = self.network(&Arc::from(pool.network.as_str()));
        let name = pool.name.clone();
        let free = self.networks[network].free_of(&pool);
        let state = PoolState { name: Arc::from(name.as_str()), free, pool, network };
        let before = match self.pool_by_name.get(&name) {
            Some(&at) => {
                let before = std::mem::replace(&mut self.pools[at], state);
                self.networks[before.network].pools.retain(|pool| *pool != at);
                self.networks[network].pools.push(at);
                Some(before.pool)
            }
            None => {
                self.networks[network].pools.push(self.pools.len());
                self.pool_by_name.insert(name, self.pools.len());
                self.pools.push(state);
                None
            }
        };
        for machine in self.waiters.keys().cloned().collect::<Vec<_>>() {
            self.enqueue_again(&machine);
        }
        before
    }

    /// Notes that a machine was looked for and is missing, and returns when that was so first: `None` if it is now.
    pub fn note_missing(&mut self, machine: &Machine, now: u64, journal: &mut Journal) -> Option<u64> {
        self.advance(now);
        let since = self.missing.get(machine).copied();
        if since.is_none() {
            self.decide(Change::Missing { machine: machine.clone(), since: Some(self.now) }, journal);
        }
        since
    }

    /// Notes that a machine is there.
    pub fn note_seen(&mut self, machine: &Machine, journal: &mut Journal) {
        if self.missing.contains_key(machine) {
            self.decide(Change::Missing { machine: machine.clone(), since: None }, journal);
        }
    }

    /// The pools, by name.
    pub fn pools(&self) -> impl Iterator<Item = &Pool> {
        self.pool_by_name.values().map(|&at| &self.pools[at].pool)
    }

    /// The addresses that are held, by network and number, IPv4 first.
    pub fn leases(&self) -> impl Iterator<Item = (&str, IpAddr, &Lease)> {
        let networks = self.network_by_name.values().map(|&at| &self.networks[at]);
        networks.flat_map(|network| {
            let held = network.leases.sorted().into_iter().filter(|(_, lease)| lease.released.is_none());
            held.map(|(address, lease)| (&*network.name, address, lease))
        })
    }

    /// The addresses that records name which are not the ledger's, by network and number.
    pub fn conflicts(&self) -> impl Iterator<Item = (&str, IpAddr, &[Conflict])> {
        let networks = self.network_by_name.values().map(|&at| &self.networks[at]);
        networks.flat_map(|network| {
            let conflicts = network.conflicts.sorted().into_iter();
            conflicts.map(|(address, conflicts)| (&*network.name, address, conflicts.as_slice()))
        })
    }

    /// The claims that wait, in the order in which they will be served.
    #[must_use]
    pub fn waiters(&self) -> Vec<&Claim> {
        let mut waiters: Vec<&Claim> = self.waiters.values().map(|waiter| &*waiter.claim).collect();
        waiters.sort_by_key(|claim| (claim.created, &claim.machine));
        waiters
    }

    /// The machines that are missing, and since when.
    pub fn missing(&self) -> impl Iterator<Item = (&Machine, u64)> {
        self.missing.iter().map(|(machine, since)| (machine, *since))
    }

    /// What machines hold from a pool that does not offer it any more.
    #[must_use]
    pub fn outside(&self, pool: &str) -> Vec<Allocation> {
        let Some(state) = self.pool_by_name.get(pool).map(|&at| &self.pools[at]) else { return Vec::new() };
        let mut outside = Vec::new();
        for (address, lease) in self.networks[state.network].leases.iter() {
            if lease.released.is_none() && *lease.pool == *pool && !state.pool.offers(address) {
                outside.push((Arc::clone(&lease.claimant), with_prefix(address, lease.prefix)));
            }
        }
        allocations(outside)
    }

    /// How many addresses of each family a pool has, and where they are. `None` if there is no such pool.
    ///
    /// It looks at each address that is known on the pool's network.
    pub fn usage(&mut self, pool: &str, now: u64) -> Option<Vec<Usage>> {
        self.advance(now);
        let state = &self.pools[*self.pool_by_name.get(pool)?];
        let network = &self.networks[state.network];
        let usage = |space: &Space| {
            let (mut used, mut conflicting, mut delayed, mut outside) = (0, 0, 0, 0);
            for (address, lease) in network.leases.iter().filter(|(address, _)| Family::of(*address) == space.family())
            {
                let is_held = lease.released.is_none();
                if !space.offers(address) {
                    outside += u128::from(is_held && *lease.pool == *pool);
                } else if is_held {
                    used += 1;
                } else if network.conflicts.contains(address) {
                    conflicting += 1;
                } else if network.is_delayed(address, lease) {
                    delayed += 1;
                }
            }
            let only_conflicting = |address: &IpAddr| space.offers(*address) && !network.leases.contains(*address);
            conflicting += network.conflicts.addresses().filter(only_conflicting).count() as u128;
            let (total, offered) = (space.total(), space.allocatable());
            Usage {
                family: space.family(),
                total,
                reserved: total - offered,
                used,
                conflicting,
                reuse_delay: delayed,
                free: offered - used - conflicting - delayed,
                outside,
            }
        };
        Some(state.pool.spaces().map(usage).collect())
    }

    /// Frees the addresses whose reuse delay is over.
    fn advance(&mut self, now: u64) {
        self.now = self.now.max(now);
        for at in 0..self.networks.len() {
            while let Some(&(until, address)) = self.networks[at].delayed.first()
                && until <= self.now
            {
                let network = &mut self.networks[at];
                network.delayed.pop_first();
                if !network.is_occupied(address) {
                    self.occupy(at, Family::split(address), false);
                }
            }
        }
    }

    /// Does it, and writes it down.
    fn decide(&mut self, change: Change, journal: &mut Journal) {
        let index = journal.changes.len();
        journal.changes.push(change.clone());
        let before = self.apply(change);
        if !matches!(before, Change::Lease { lease: None, .. }) {
            journal.before.push((index, before));
        }
    }

    /// Gives what a claim lacks, or takes all of that back.
    fn allocate(&mut self, claim: &Claim, journal: &mut Journal) -> Result<(), Refusal> {
        let wants = self.wants(claim).map_err(Refusal::Other)?;
        let begin = journal.changes.len();
        // One for both families.
        let mut claimant: Option<Arc<Claimant>> = None;
        for want in wants {
            match self.pick(&want, claim) {
                Ok(address) => {
                    let PoolState { pool, name, network, .. } = &self.pools[want.pool];
                    let network = Arc::clone(&self.networks[*network].name);
                    let own = claimant.take().filter(|claimant| claimant.interface == pool.interface);
                    let new = || Claimant { machine: claim.machine.clone(), interface: pool.interface };
                    let own = own.unwrap_or_else(|| Arc::new(new()));
                    let lease = Lease {
                        claimant: Arc::clone(claimant.insert(own)),
                        pool: Arc::clone(name),
                        prefix: pool.space(want.family).map_or(want.family.bits(), Space::prefix),
                        since: self.now,
                        released: None,
                        reuse_after: None,
                    };
                    self.decide(Change::Lease { network, address, lease: Some(lease) }, journal);
                }
                Err(refusal) => {
                    self.undo_to(begin, journal);
                    return Err(refusal);
                }
            }
        }
        Ok(())
    }

    /// What a claim asks for and its machine does not hold yet.
    fn wants(&self, claim: &Claim) -> Result<Few<Want>, ClaimError> {
        let held = self.held_by(&claim.machine);
        let mut wants: Few<Want> = Few::new();
        if claim.requests.is_empty() {
            return Err(ClaimError::Nothing);
        }
        for request in &claim.requests {
            let unknown = || ClaimError::UnknownPool(request.pool.clone());
            let at = *self.pool_by_name.get(&request.pool).ok_or_else(unknown)?;
            let pool = &self.pools[at].pool;
            let interface = || pool.interface;
            let strange = request.addresses.iter().find(|named| pool.space(Family::of(**named)).is_none());
            if let Some(&named) = strange {
                return Err(ClaimError::NotInPool { named, pool: pool.name.clone() });
            }
            for family in pool.spaces().map(Space::family) {
                let mut names = request.addresses.iter().copied().filter(|named| Family::of(*named) == family);
                let named = names.next();
                let is_same =
                    |want: &Want| want.family == family && self.pools[want.pool].pool.interface == pool.interface;
                if names.next().is_some() || wants.iter().any(is_same) {
                    return Err(ClaimError::Twice { interface: interface(), family });
                }
                let holds = held.iter().find(|(_, address, lease)| {
                    lease.claimant.interface == pool.interface && Family::of(*address) == family
                });
                match (holds, named) {
                    (None, named) => wants.push(Want { pool: at, family, named }),
                    (Some((_, held, lease)), _) if *lease.pool != *pool.name => {
                        let pool = lease.pool.to_string();
                        return Err(ClaimError::OtherPool { interface: interface(), held: *held, pool });
                    }
                    (Some((_, held, _)), Some(named)) if *held != named => {
                        return Err(ClaimError::OtherAddress { interface: interface(), held: *held, named });
                    }
                    _ => {}
                }
            }
        }
        Ok(wants)
    }

    /// The address for a want.
    fn pick(&mut self, want: &Want, claim: &Claim) -> Result<IpAddr, Refusal> {
        let state = &self.pools[want.pool];
        if let Some(named) = want.named {
            let pool = || state.pool.name.clone();
            let network = &self.networks[state.network];
            let error = if !state.pool.contains(named) {
                ClaimError::NotInPool { named, pool: pool() }
            } else if !state.pool.offers(named) {
                ClaimError::Reserved { named, pool: pool(), why: state.pool.why_reserved(named) }
            } else if let Some(lease) = network.held(named) {
                ClaimError::Taken { named, by: Claimant::clone(&lease.claimant) }
            } else if let Some(conflict) = network.conflicts.get(named).and_then(|conflicts| conflicts.first()) {
                ClaimError::Taken { named, by: conflict.claimant.clone() }
            } else if let Some(until) = network.reuse_after(named) {
                ClaimError::ReuseDelay { named, until }
            } else {
                return Ok(named);
            };
            return Err(Refusal::Other(error));
        }
        let remembered = if claim.sticky { self.remembered(want, &claim.machine) } else { None };
        match remembered.or_else(|| self.lowest(want.pool, want.family)) {
            Some(address) => Ok(address),
            None => Err(Refusal::Exhausted((want.pool, want.family))),
        }
    }

    /// What a machine of that namespace and name gave back last, unless somebody else has it.
    fn remembered(&self, want: &Want, machine: &Machine) -> Option<IpAddr> {
        let state = &self.pools[want.pool];
        let network = &self.networks[state.network];
        let places = self.places_by_name.get(&self.name_of(machine))?.iter();
        let left = places.filter(|(at, address)| *at == state.network && Family::of(*address) == want.family);
        let left = left.filter_map(|(_, address)| Some((network.leases.get(*address)?.released?, *address)));
        let free = left.filter(|(_, address)| {
            let is_own = network.leases.get(*address).is_some_and(|lease| {
                let Claimant { machine: last, interface } = &*lease.claimant;
                is_namesake(last, machine) && *interface == state.pool.interface
            });
            is_own && state.pool.offers(*address) && !network.conflicts.contains(*address)
        });
        // The latest; of two of one time the lower address.
        free.max_by(|(a, lower), (b, higher)| a.cmp(b).then(higher.cmp(lower))).map(|(_, address)| address)
    }

    /// The lowest free address of a pool.
    fn lowest(&mut self, pool: usize, family: Family) -> Option<IpAddr> {
        let PoolState { pool, free, .. } = &mut self.pools[pool];
        let (space, free) = (pool.space(family)?, free.get_mut(&family)?);
        loop {
            let number = free.lowest()?;
            if !space.is_end_of_subnet(number) {
                return Some(family.address(number));
            }
            free.take(number).ok()?;
        }
    }

    /// What a claim's interfaces hold, in the order of its requests.
    fn answer(&self, claim: &Claim) -> Vec<Allocation> {
        let mut held = self.held_by(&claim.machine);
        held.sort_by_key(|(_, address, _)| *address);
        let mut answer: Vec<Allocation> = Vec::with_capacity(claim.requests.len());
        for request in &claim.requests {
            let Some(&at) = self.pool_by_name.get(&request.pool) else { continue };
            let interface = &self.pools[at].pool.interface;
            if answer.iter().any(|allocation| allocation.claimant.interface == *interface) {
                continue;
            }
            let its = held.iter().filter(|(_, _, lease)| lease.claimant.interface == *interface);
            let addresses = its.map(|(_, address, lease)| with_prefix(*address, lease.prefix)).collect();
            let claimant = Claimant { machine: claim.machine.clone(), interface: *interface };
            answer.push(Allocation { claimant, addresses });
        }
        answer
    }

    fn held_by(&self, machine: &Machine) -> Few<(usize, IpAddr, &Lease)> {
        let places = self.places_by_name.get(&self.name_of(machine)).map_or(&[][..], SmallVec::as_slice).iter();
        let held = places.filter_map(|&(at, address)| Some((at, address, self.networks[at].held(address)?)));
        held.filter(|(_, _, lease)| lease.claimant.machine == *machine).collect()
    }

    /// The index of a network, which may have no pool here.
    fn network(&mut self, name: &Arc<str>) -> usize {
        if let Some(&at) = self.network_by_name.get(name) {
            return at;
        }
        self.network_by_name.insert(Arc::clone(name), self.networks.len());
        self.networks.push(Network {
            name: Arc::clone(name),
            pools: Vec::new(),
            leases: AddressMap::default(),
            conflicts: AddressMap::default(),
            delayed: BTreeSet::new(),
        });
        self.networks.len() - 1
    }

    fn set_lease(&mut self, network: &Arc<str>, address: IpAddr, lease: Option<Lease>) -> Option<Lease> {
        let at = self.network(network);
        // To read the address behind what is written next would be to wait until that has reached the memory.
        let number = Family::split(address);
        let claimant = lease.as_ref().map(|is| Arc::clone(&is.claimant));
        let network = &mut self.networks[at];
        let is_held = |lease: &Option<Lease>| lease.as_ref().is_some_and(|lease| lease.released.is_none());
        let delayed_until = lease.as_ref().and_then(|is| is.reuse_after).filter(|until| *until > self.now);
        let is_occupied = is_held(&lease) || delayed_until.is_some();
        let before = network.leases.set(address, lease);
        let was_delayed = before.as_ref().and_then(|was| was.reuse_after);
        let was_delayed = was_delayed.is_some_and(|until| network.delayed.remove(&(until, address)));
        network.delayed.extend(delayed_until.map(|until| (until, address)));
        if (is_held(&before) || was_delayed) != is_occupied && !network.conflicts.contains(address) {
            self.occupy(at, number, is_occupied);
        }
        let of_namesake =
            |is: &Claimant| before.as_ref().is_some_and(|was| is_namesake(&was.claimant.machine, &is.machine));
        if !claimant.as_deref().is_some_and(of_namesake) {
            if let Some(was) = &before {
                self.index(&was.claimant.machine, (at, address));
            }
            if let Some(is) = &claimant {
                self.remember(self.name_of(&is.machine), (at, address));
            }
        }
        // What a waiter lacks is more, or less, when it loses or gets an address.
        if !self.waiters.is_empty() {
            let is = self.networks[at].leases.get(address).cloned();
            for Lease { claimant, released, .. } in before.iter().chain(&is) {
                if released.is_some() {
                    self.stir_namesakes(&claimant.machine);
                } else {
                    self.enqueue_again(&claimant.machine);
                }
            }
        }
        before
    }

    fn set_conflicts(&mut self, network: &Arc<str>, address: IpAddr, conflicts: Vec<Conflict>) -> Vec<Conflict> {
        let at = self.network(network);
        let place = (at, address);
        let network = &mut self.networks[at];
        let was_occupied = network.is_occupied(address);
        let mut machines: Vec<Machine> = conflicts.iter().map(|is| is.claimant.machine.clone()).collect();
        let conflicts = Some(conflicts).filter(|conflicts| !conflicts.is_empty());
        let before = network.conflicts.set(address, conflicts).unwrap_or_default();
        let is_occupied = network.is_occupied(address);
        if was_occupied != is_occupied {
            self.occupy(at, Family::split(address), is_occupied);
        }
        machines.extend(before.iter().map(|was| was.claimant.machine.clone()));
        machines.iter().for_each(|machine| self.index(machine, place));
        if let Some(lease) = self.networks[at].leases.get(address) {
            let claimant = Arc::clone(&lease.claimant);
            self.stir_namesakes(&claimant.machine);
        }
        before
    }

    fn set_waiter(&mut self, machine: &Machine, claim: Option<Arc<Claim>>) -> Option<Arc<Claim>> {
        self.enqueue(machine, None);
        let before = self.waiters.remove(machine).map(|waiter| waiter.claim);
        if let Some(claim) = &before {
            self.namesakes.remove(&(claim.created, machine.clone()));
        }
        if let Some(claim) = claim {
            self.waiters.insert(machine.clone(), Waiter { claim, queue: None });
            self.enqueue_again(machine);
        }
        before
    }

    /// Puts a waiter into the queue of what it lacks and is exhausted, or of what it lacks.
    fn enqueue_again(&mut self, machine: &Machine) {
        let Some(claim) = self.waiters.get(machine).map(|waiter| Arc::clone(&waiter.claim)) else { return };
        let wants = self.wants(&claim).unwrap_or_default();
        let mut queues = wants.iter().map(|want| (want.pool, want.family));
        let first = queues.clone().next();
        let exhausted = queues.find(|(pool, family)| self.lowest(*pool, *family).is_none());
        self.enqueue(machine, exhausted.or(first));
        if claim.sticky {
            self.namesakes.insert((claim.created, machine.clone()));
        }
    }

    /// Lets those who wait look at what a machine of their name left.
    fn stir_namesakes(&mut self, machine: &Machine) {
        if self.waiters.is_empty() {
            return;
        }
        let first = Machine { uid: String::new(), ..machine.clone() };
        for (namesake, waiter) in self.waiters.range(first..).take_while(|(namesake, _)| is_namesake(namesake, machine))
        {
            if waiter.claim.sticky {
                self.namesakes.insert((waiter.claim.created, namesake.clone()));
            }
        }
    }

    fn enqueue(&mut self, machine: &Machine, queue: Option<Queue>) {
        let Some(waiter) = self.waiters.get_mut(machine) else { return };
        let turn = (waiter.claim.created, machine.clone());
        if let Some(before) = std::mem::replace(&mut waiter.queue, queue)
            && let Some(turns) = self.queues.get_mut(&before)
        {
            turns.remove(&turn);
            if turns.is_empty() {
                self.queues.remove(&before);
            }
        }
        if let Some(queue) = queue {
            self.queues.entry(queue).or_default().insert(turn);
        }
    }

    /// Takes an address from what is free in the pools of its network, or puts it there.
    fn occupy(&mut self, at: usize, (family, number): (Family, u128), is_occupied: bool) {
        for &pool in &self.networks[at].pools {
            let PoolState { pool, free, .. } = &mut self.pools[pool];
            if let Some(free) = free.get_mut(&family)
                && pool.space(family).is_some_and(|space| space.offers_number(number))
            {
                let done = if is_occupied { free.take(number) } else { free.give_back(number) };
                debug_assert_eq!(done, Ok(()), "{}", family.address(number));
            }
        }
    }

    /// Remembers whether the name of a machine has to do with a place.
    fn index(&mut self, machine: &Machine, place: Place) {
        let (at, address) = place;
        let network = &self.networks[at];
        let lease = network.leases.get(address).map(|lease| &lease.claimant.machine);
        let conflicts = network.conflicts.get(address).into_iter().flatten();
        let mut machines = conflicts.map(|conflict| &conflict.claimant.machine).chain(lease);
        let name = self.name_of(machine);
        // Also one that only has the same hash keeps the place.
        if machines.any(|other| is_namesake(other, machine) || self.name_of(other) == name) {
            self.remember(name, place);
        } else if let Some(places) = self.places_by_name.get_mut(&name) {
            places.retain(|other| *other != place);
            if places.is_empty() {
                self.places_by_name.remove(&name);
            }
        }
    }

    fn remember(&mut self, name: Name, place: Place) {
        let places = self.places_by_name.entry(name).or_default();
        if !places.contains(&place) {
            places.push(place);
        }
    }

    fn name_of(&self, machine: &Machine) -> Name {
        self.names.hash_one((&machine.namespace, &machine.name))
    }
}

// === impl Network ===

impl Network {
    fn held(&self, address: IpAddr) -> Option<&Lease> {
        self.leases.get(address).filter(|lease| lease.released.is_none())
    }

    fn reuse_after(&self, address: IpAddr) -> Option<u64> {
        self.leases.get(address).filter(|lease| self.is_delayed(address, lease)).and_then(|lease| lease.reuse_after)
    }

    fn is_delayed(&self, address: IpAddr, lease: &Lease) -> bool {
        lease.reuse_after.is_some_and(|until| self.delayed.contains(&(until, address)))
    }

    /// Whether it cannot be given, whatever a pool offers.
    fn is_occupied(&self, address: IpAddr) -> bool {
        let is_its = |lease: &Lease| lease.released.is_none() || self.is_delayed(address, lease);
        self.leases.get(address).is_some_and(is_its) || self.conflicts.contains(address)
    }

    /// What of a pool is free, and the ends of subnets.
    fn free_of(&self, pool: &Pool) -> BTreeMap<Family, FreeRanges> {
        let mut free_by_family = BTreeMap::new();
        for space in pool.spaces() {
            let mut free = FreeRanges::default();
            for range in space.ranges() {
                // They are disjoint, and not all addresses that there are.
                let done = free.give_back_range(range.first(), range.last());
                debug_assert_eq!(done, Ok(()), "{range}");
            }
            for range in space.reserved() {
                free.take_range(range.first(), range.last());
            }
            free_by_family.insert(space.family(), free);
        }
        for address in self.leases.addresses().chain(self.conflicts.addresses()) {
            if let Some(free) = free_by_family.get_mut(&Family::of(address))
                && self.is_occupied(address)
            {
                let number = Family::number(address);
                free.take_range(number, number);
            }
        }
        free_by_family
    }
}

// === impl Journal ===

impl Journal {
    /// What has to be recorded, in this order.
    #[must_use]
    pub fn changes(&self) -> &[Change] {
        &self.changes
    }

    fn reserve(&mut self, changes: usize) {
        self.changes.reserve(changes);
    }
}

fn is_namesake(one: &Machine, other: &Machine) -> bool {
    one.name == other.name && one.namespace == other.namespace
}

fn with_prefix(address: IpAddr, prefix: u8) -> IpNetwork {
    // A length that is none would have come from a store that somebody else wrote.
    IpNetwork::new(address, prefix).unwrap_or_else(|_| IpNetwork::from(address))
}

/// By claimant, and of each by number, IPv4 first.
fn allocations(mut held: Vec<(Arc<Claimant>, IpNetwork)>) -> Vec<Allocation> {
    held.sort_unstable_by(|(a, its), (b, other)| a.cmp(b).then_with(|| its.ip().cmp(&other.ip())));
    let of_one = held.chunk_by(|(a, _), (b, _)| a == b);
    let allocation = |its: &[(Arc<Claimant>, IpNetwork)]| {
        let (claimant, _) = its.first()?;
        let addresses = its.iter().map(|(_, address)| *address).collect();
        Some(Allocation { claimant: Claimant::clone(claimant), addresses })
    };
    of_one.filter_map(allocation).collect()
}

// === impl ClaimError ===

impl fmt::Display for ClaimError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // The words of the enhancement, for which its users look.
            Self::Exhausted { interface, .. } => write!(f, "No available IPs in pool for interface {interface}"),
            Self::Nothing => f.write_str("no request in the claim, expected one for each pool"),
            Self::UnknownPool(pool) => write!(f, "unknown pool {pool:?}"),
            Self::Twice { interface, family } => {
                write!(f, "{interface}: more than one {family} address, expected at most one")
            }
            Self::OtherPool { interface, held, pool } => {
                write!(f, "{interface}: has {held} of pool {pool:?} already, expected a release before another pool")
            }
            Self::OtherAddress { interface, held, named } => {
                write!(f, "{interface}: has {held} already, expected a release before it gets {named}")
            }
            Self::NotInPool { named, pool } => write!(f, "{named}: not in pool {pool:?}"),
            Self::Reserved { named, pool, why } => {
                write!(f, "{named}: reserved in pool {pool:?}")?;
                why.map_or(Ok(()), |why| write!(f, " ({why})"))
            }
            Self::Taken { named, by } => write!(f, "{named}: taken by {by}"),
            Self::ReuseDelay { named, until } => write!(f, "{named}: not given again before {until} ms since 1970"),
        }
    }
}

impl std::error::Error for ClaimError {}
