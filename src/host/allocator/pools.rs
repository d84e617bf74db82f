//! The pools of the allocator: the addresses that they offer, resizes and renames, and counts.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use jiff::Timestamp;

use super::network::Network;
use super::pool_state::PoolState;
use super::state::{Allocator, allocations, with_prefix};
use super::types::{PoolError, PoolUsage, Rename, Resized, Usage};
use crate::host::address::AddressRange;
use crate::host::change::{Change, Journal};
use crate::host::claim::{Allocation, Claim, Lease, Machine, Request};
use crate::host::growth::Offers;
use crate::host::may_record::State;
use crate::host::pool::{Pool, ReservedAddress, ReservedAddresses, Space};
use crate::network::Family;

// === impl Allocator ===

impl Allocator {
    /// Replaces the specification of a pool and returns the previous specification. The caller has to call `refresh`
    /// for the network of the pool.
    pub(super) fn set_pool(&mut self, name: &Arc<str>, pool: Option<Arc<Pool>>) -> Option<Arc<Pool>> {
        let state = |pool: Arc<Pool>| PoolState {
            offered: Pool::clone(&pool),
            pool,
            pre_allocated: BTreeSet::new(),
            free: BTreeMap::new(),
            closed: BTreeSet::new(),
            recorded: BTreeMap::new(),
            held: BTreeMap::new(),
        };
        let before = match pool {
            Some(pool) => self.pools.insert(Arc::clone(name), state(pool)),
            None => self.pools.remove(name),
        };
        before.map(|before| before.pool)
    }

    /// Computes which addresses the pools of these networks offer, which of them are closed, and which are free.
    pub(super) fn refresh(&mut self, networks: &BTreeSet<Arc<str>>) {
        for network in networks {
            let reserved = self.reserved_on(network);
            let mut offers = Offers::new();
            for (name, pool) in self.pools.iter_mut().filter(|(_, state)| *state.pool.network == **network) {
                pool.offered = reserved.reserve_in(&pool.pool);
                pool.pre_allocated = reserved.pre_allocated_in(&pool.pool);
                let mut own = pool.offered.offered_ranges();
                own.extend(pool.pre_allocated.iter().map(|address| AddressRange::subnet(*address, u8::MAX)));
                if !self.suspended.contains(&pool.pool.name) {
                    offers.insert(Arc::clone(name), (Arc::clone(&pool.pool), own.into_iter().collect()));
                }
            }
            let pools = self.pools.iter().filter(|(_, state)| *state.pool.network == **network);
            let pools = pools.map(|(name, state)| (name, &state.pool));
            self.networks.entry(Arc::clone(network)).or_default().set_pools(pools);
            let allocatable = offers.values().flat_map(|(_, addresses)| addresses.ranges()).copied().collect();
            let gained = self.growth.gained(network, offers);
            self.growth.set(network, &allocatable, &gained);
            self.find_free(network);
        }
        if !networks.is_empty() {
            self.enqueue_all_again();
        }
    }

    /// Computes the free and the closed addresses of the pools of a network, and counts their held and recorded
    /// addresses.
    fn find_free(&mut self, network: &Arc<str>) {
        let (closed, mut held) = (self.growth.closed(network), self.held_by_pool(network));
        let state = self.networks.entry(Arc::clone(network)).or_default();
        for (name, pool) in self.pools.iter_mut().filter(|(_, state)| *state.pool.network == **network) {
            pool.free = state.free_of(&pool.offered, &closed);
            let has_closed = pool.offered.spaces().filter(|space| !space.common(&closed).is_empty());
            pool.closed = has_closed.map(|space| space.family()).collect();
            pool.recorded = state.recorded_of(&pool.pool);
            pool.held = held.remove(name).unwrap_or_default();
        }
    }

    /// Opens the addresses of all growths whose number is at most `growth`, and serves waiting machines.
    pub(crate) fn open_up_to(&mut self, growth: u64, now: Timestamp, journal: &mut Journal) -> Vec<Allocation> {
        self.open_growths(growth);
        self.serve(now, journal)
    }

    /// Opens the addresses of all growths whose number is at most `growth`.
    pub(super) fn open_growths(&mut self, growth: u64) {
        for network in self.growth.open(growth) {
            self.find_free(&network);
        }
        self.enqueue_all_again();
    }

    /// Number of the last growth of the allocatable addresses.
    #[must_use]
    #[doc(hidden)]
    pub fn growth(&self) -> u64 {
        self.growth.last()
    }

    /// Whether an address of a network is closed: see [`Registry::open`](crate::host::registry::Registry).
    #[must_use]
    #[doc(hidden)]
    pub fn is_closed(&self, network: &str, address: IpAddr) -> bool {
        self.growth.is_closed(network, address)
    }

    /// Whether a pool has closed addresses of a family: see [`Registry::open`](crate::host::registry::Registry).
    pub(super) fn has_closed(&self, pool: &str, family: Family) -> bool {
        self.pools.get(pool).is_some_and(|state| state.closed.contains(&family))
    }

    /// The names of the pools that have closed addresses: see
    /// [`Registry::open`](crate::host::registry::Registry).
    #[doc(hidden)]
    pub fn closed_pools(&self) -> impl Iterator<Item = &str> {
        self.pools.iter().filter(|(_, state)| !state.closed.is_empty()).map(|(name, _)| &**name)
    }

    /// The addresses that the pools of a network reserve.
    pub(super) fn reserved_on(&self, network: &str) -> ReservedAddresses {
        ReservedAddresses::of(self.pools().filter(|pool| *pool.network == *network))
    }

    /// Why an address of a pool is reserved, so that the machine cannot get it. `None` if no reason is known.
    pub(super) fn why_reserved(&self, pool: &str, address: IpAddr, machine: &Machine) -> Option<ReservedAddress> {
        let state = self.pools.get(pool)?;
        let reserved = self.reserved_on(&state.pool.network);
        if state.pre_allocated(machine, Family::of(address)) == Some(address) {
            reserved.why_for_own_machine(&state.pool, address)
        } else {
            reserved.why(&state.pool, address)
        }
    }

    /// Makes the waiting machines for which a pool keeps an address try to get the address.
    pub(super) fn stir_pre_allocated(&mut self, network: &str, address: IpAddr) {
        let family = Family::of(address);
        for state in self.pools.values() {
            if *state.pool.network == *network && state.pre_allocated.contains(&address) {
                self.queues.stir(|machine| state.pre_allocated(machine, family) == Some(address));
            }
        }
    }

    /// Adds pools, replaces the pools of the same name, renames pools, and serves waiting machines.
    ///
    /// No machine loses an address. The holder keeps an address that its pool no longer offers; the address is counted
    /// as outside and is not allocated again. Held addresses get the prefix length of their pool.
    ///
    /// A pool given without a template keeps the addresses that the template of its last specification reserved: a
    /// forgotten template must not free the address of a gateway.
    ///
    /// A given pool that the ledger does not have is recognized as a renamed pool of the ledger if
    ///
    /// - the old pool is not given,
    /// - both pools have the same network and interface,
    /// - the new pool has all addresses of the old pool, and
    /// - neither the old pool nor the new pool fits a third pool in this way.
    pub(crate) fn resize(
        &mut self,
        pools: Vec<Pool>,
        renames: &[Rename],
        now: Timestamp,
        journal: &mut Journal,
    ) -> Result<Resized, PoolError> {
        self.advance(now);
        let given: BTreeMap<Arc<str>, Arc<Pool>> =
            pools.into_iter().map(|pool| (Arc::from(pool.name.as_str()), Arc::new(pool))).collect();
        let renamed = self.renames(&given, renames)?;
        let mut given = given;
        for (name, pool) in &mut given {
            let rename = renamed.iter().find(|rename| *rename.new == **name);
            if let Some(known) = self.pool(rename.map_or(name, |rename| &rename.old)) {
                self.check_in_use(known, pool)?;
                if !pool.has_template() {
                    *pool = Arc::new(pool.with_template_of(known));
                }
            }
        }
        let mut changes: Vec<Change> = Vec::new();
        journal.keep_growth(&self.growth);
        for Rename { old, new } in &renamed {
            if let Some(pool) = given.get(new.as_str()) {
                self.growth.rename(&pool.network, old, new);
            }
            changes.push(Change::Pool { name: Arc::from(old.as_str()), pool: None });
        }
        let changed = given.iter().filter(|(name, pool)| self.pool(name) != Some(&***pool));
        changes
            .extend(changed.map(|(name, pool)| Change::Pool { name: Arc::clone(name), pool: Some(Arc::clone(pool)) }));
        self.decide_pools(changes, journal);
        for rename in &renamed {
            self.rename(rename, journal);
        }
        let prefix_changed = self.change_prefixes(&given, journal);
        let served = self.serve(now, journal);
        let outside = given.keys().flat_map(|name| self.outside(name)).collect();
        Ok(Resized { renamed, prefix_changed, outside, served })
    }

    /// Sets the pools that allocate nothing. Waiting machines keep their place in the wait queue.
    pub(crate) fn suspend(&mut self, pools: BTreeSet<String>) {
        let changed: BTreeSet<&String> = self.suspended.symmetric_difference(&pools).collect();
        let changed = changed.into_iter().filter_map(|name| self.pool(name));
        let networks = changed.map(|pool| Arc::from(pool.network.as_str())).collect();
        self.suspended = pools;
        self.refresh(&networks);
    }

    /// Removes a pool without held addresses. The pool's reservations on its network end.
    pub(crate) fn remove_pool(&mut self, name: &str, now: Timestamp, journal: &mut Journal) -> Result<(), PoolError> {
        self.advance(now);
        let Some((name, _)) = self.pools.get_key_value(name) else { return Err(PoolError::Unknown(name.to_owned())) };
        let addresses = self.leases().filter(|(_, _, lease)| lease.pool == *name).count();
        if addresses > 0 {
            return Err(PoolError::Held { pool: name.to_string(), addresses });
        }
        let change = Change::Pool { name: Arc::clone(name), pool: None };
        self.decide_pools(vec![change], journal);
        Ok(())
    }

    /// The requested renames, and the renames that are recognized as described at `resize`.
    fn renames(&self, given: &BTreeMap<Arc<str>, Arc<Pool>>, requested: &[Rename]) -> Result<Vec<Rename>, PoolError> {
        for Rename { old, new } in requested {
            if self.pool(old).is_none() {
                return Err(PoolError::Unknown(old.clone()));
            }
            if self.pool(new).is_some() || !given.contains_key(new.as_str()) {
                return Err(PoolError::NewName(new.clone()));
            }
        }
        let is_old = |name: &str| requested.iter().any(|rename| rename.old == name);
        let is_new = |name: &str| requested.iter().any(|rename| rename.new == name);
        let gone: Vec<&Pool> =
            self.pools().filter(|pool| !given.contains_key(pool.name.as_str()) && !is_old(&pool.name)).collect();
        let added = given.values().filter(|pool| self.pool(&pool.name).is_none() && !is_new(&pool.name));
        let mut pairs: Vec<(&str, &str)> = Vec::new();
        for new in added {
            pairs.extend(
                gone.iter().filter(|old| may_be_renamed(old, new)).map(|old| (old.name.as_str(), new.name.as_str())),
            );
        }
        let mut renames = requested.to_vec();
        for (old, new) in &pairs {
            let fit = pairs.iter().filter(|(other_old, other_new)| other_old == old || other_new == new).count();
            if fit == 1 {
                renames.push(Rename { old: (*old).to_owned(), new: (*new).to_owned() });
            }
        }
        Ok(renames)
    }

    /// Refuses to change the network or the interface of a pool while machines hold its addresses: their leases would
    /// no longer be found. A waiting claim names only the pool, so it waits for an address of the changed pool.
    fn check_in_use(&self, known: &Pool, given: &Pool) -> Result<(), PoolError> {
        let members = [
            ("network", known.network.clone(), given.network.clone()),
            ("interface", known.interface.to_string(), given.interface.to_string()),
        ];
        let Some((member, known_value, given_value)) = members.into_iter().find(|(_, known, given)| known != given)
        else {
            return Ok(());
        };
        if self.leases().any(|(_, _, lease)| *lease.pool == *known.name) {
            let pool = given.name.clone();
            return Err(PoolError::InUse { pool, member, known: known_value, given: given_value });
        }
        Ok(())
    }

    /// Writes the new name of a pool into its leases and into the claims that wait for the pool.
    fn rename(&mut self, Rename { old, new }: &Rename, journal: &mut Journal) {
        let name: Arc<str> = Arc::from(new.as_str());
        let mut changes = Vec::new();
        for (network, state) in &self.networks {
            for (address, lease) in state.leases().filter(|(_, lease)| *lease.pool == **old) {
                let lease = Some(Lease { pool: Arc::clone(&name), ..lease.clone() });
                changes.push(Change::Lease { network: Arc::clone(network), address, lease });
            }
        }
        let is_requested =
            |claim: &&Claim| claim.requests.iter().any(|request| request.pools().any(|pool| pool == old));
        for claim in self.queues.claims().filter(is_requested) {
            let mut claim = claim.clone();
            let pools = claim.requests.iter_mut().flat_map(|it| [&mut it.pool].into_iter().chain(&mut it.overflow));
            pools.filter(|pool| *pool == old).for_each(|pool| pool.clone_from(new));
            changes.push(Change::Waiter { machine: claim.machine.clone(), claim: Some(Arc::new(claim)) });
        }
        for change in changes {
            self.decide(change, journal);
        }
    }

    /// Changes the leases of held addresses to the prefix length of their pool, and returns the changed allocations. If
    /// the pool of a lease does not have the address, the prefix length comes from the pool that [`Self::home`]
    /// returns, as the gateway does.
    fn change_prefixes(&mut self, given: &BTreeMap<Arc<str>, Arc<Pool>>, journal: &mut Journal) -> Vec<Allocation> {
        let mut changed = Vec::new();
        let (mut changes, networks): (_, BTreeSet<&str>) =
            (Vec::new(), given.values().map(|pool| pool.network.as_str()).collect());
        for (network, state) in self.networks.iter().filter(|(name, _)| networks.contains(&***name)) {
            // The ledger refuses every change of a lease that the ledger cannot read.
            for (address, lease) in state.held().filter(|(_, lease)| lease.claimant.machine.may_exist()) {
                let own = self.pool(&lease.pool).filter(|own| own.contains(address));
                let home = own.or_else(|| self.home(network, address, &lease.claimant.machine));
                let Some(pool) = home.filter(|home| given.contains_key(home.name.as_str())) else { continue };
                let prefix = pool.prefix_of(address).unwrap_or(lease.prefix);
                if prefix != lease.prefix {
                    changed.push((Arc::clone(&lease.claimant), with_prefix(address, prefix)));
                    let lease = Some(Lease { prefix, ..lease.clone() });
                    changes.push(Change::Lease { network: Arc::clone(network), address, lease });
                }
            }
        }
        for change in changes {
            self.decide(change, journal);
        }
        allocations(changed)
    }

    /// The held addresses of a pool that the pool does not offer, or no longer offers, to their holders.
    #[must_use]
    pub fn outside(&self, pool: &str) -> Vec<Allocation> {
        let Some(state) = self.pools.get(pool) else { return Vec::new() };
        let Some(network) = self.networks.get(state.pool.network.as_str()) else { return Vec::new() };
        let outside = network
            .held()
            .filter(|(address, lease)| *lease.pool == *pool && !state.offers_to(&lease.claimant.machine, *address));
        allocations(
            outside.map(|(address, lease)| (Arc::clone(&lease.claimant), with_prefix(address, lease.prefix))).collect(),
        )
    }

    /// Counts the addresses, leases and waiting machines of each pool, by the name of the pool. A pool that does not
    /// exist has counts, too, if a lease or a waiting machine names it.
    ///
    /// The cost grows with the number of pools and with the number of known addresses, not with their product.
    #[must_use]
    pub fn usage(&self, now: Timestamp) -> BTreeMap<&str, PoolUsage> {
        let (mut usage, now) = (BTreeMap::<&str, PoolUsage>::new(), now.max(self.now));
        for (name, state) in &self.pools {
            let network = self.networks.get(state.pool.network.as_str());
            let spaces =
                network.into_iter().flat_map(|network| state.offered.spaces().map(move |space| (network, space)));
            let is_conflict = |address: &IpAddr| self.is_conflict(&state.pool.network, *address);
            let families = spaces.map(|(network, space)| count(state, space, network, &is_conflict, now)).collect();
            usage.insert(&**name, PoolUsage { families, ..PoolUsage::default() });
        }
        for (network, address, lease) in self.leases() {
            let usage = usage.entry(&*lease.pool).or_default();
            usage.held += 1;
            let state = self.pools.get(&lease.pool).filter(|state| *state.pool.network == *network);
            if state.is_some_and(|state| !state.offers_to(&lease.claimant.machine, address)) {
                let of_family = usage.families.iter_mut().filter(|usage| usage.family == Family::of(address));
                of_family.for_each(|usage| usage.outside += 1);
            }
        }
        for claim in self.queues.claims() {
            let pools: BTreeSet<&str> = claim.requests.iter().flat_map(Request::pools).collect();
            pools.into_iter().for_each(|pool| usage.entry(pool).or_default().waiting += 1);
        }
        usage
    }
}

/// Counts the addresses of one family of a pool. The caller counts the addresses outside the pool.
fn count(
    state: &PoolState,
    space: &Space,
    network: &Network,
    is_conflict: &dyn Fn(&IpAddr) -> bool,
    now: Timestamp,
) -> Usage {
    let (mut allocated, mut by_record, mut by_report, mut reuse_delay) = (0, 0, 0, 0);
    let ranges = || space.ranges().iter();
    for (address, lease) in ranges().flat_map(|range| network.leases_in(range)) {
        if !space.offers(address) {
            continue;
        } else if lease.released.is_none() {
            allocated += 1;
        } else if network.reserved_as(address).is_none()
            && network.delayed_until(address).is_some_and(|until| until > now)
        {
            reuse_delay += 1;
        }
    }
    let recorded: Vec<IpAddr> = ranges().flat_map(|range| network.recorded_in(range)).collect();
    for address in &recorded {
        if !space.offers(*address) || network.held_at(*address).is_some() {
            continue;
        }
        match network.reserved_as(*address) {
            Some(State::Mismatch | State::Excluded | State::ByRecord) => by_record += 1,
            Some(State::ByReport) => by_report += 1,
            None => {}
        }
    }
    let is_held_for = |address: &&IpAddr| {
        let lease = network.held_at(**address).filter(|_| !space.offers(**address));
        lease.is_some_and(|lease| state.offers_to(&lease.claimant.machine, **address))
    };
    let pre_allocated = state.pre_allocated.iter().filter(|address| Family::of(**address) == space.family());
    let held_pre_allocated = pre_allocated.filter(is_held_for).count() as u128;
    let (total, offered) = (space.total(), space.allocatable());
    Usage {
        family: space.family(),
        total,
        allocated: allocated + held_pre_allocated,
        excluded: total - offered - held_pre_allocated,
        by_record,
        by_report,
        reuse_delay,
        free: offered - allocated - by_record - by_report - reuse_delay,
        conflicts: recorded.iter().filter(|address| is_conflict(address)).count() as u128,
        outside: 0,
    }
}

/// Whether `new` can be the pool `old` under a new name.
fn may_be_renamed(old: &Pool, new: &Pool) -> bool {
    let is_covered = |space: &Space| {
        let new = new.space(space.family());
        new.is_some_and(|new| space.ranges().iter().all(|range| new.ranges().iter().any(|other| other.covers(range))))
    };
    let is_same = old.network == new.network && old.interface == new.interface;
    is_same && !old.is_external() && !new.is_external() && old.spaces().all(is_covered)
}
