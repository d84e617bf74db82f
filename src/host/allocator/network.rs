//! The state of one network: leases, conflicts and reuse delays of its addresses.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;

use jiff::Timestamp;

use super::pool_state::{Counts, Recorders};
use super::users::{Evidence, User};
use crate::host::address::{AddressRange, AddressSet};
use crate::host::claim::{Claimant, Conflict, Lease, Machine, is_guest_of, is_namesake, is_successor};
use crate::host::free_ranges::FreeRanges;
use crate::host::may_record::State;
use crate::host::pool::{Namespaces, Pool, ReservedAddress};
use crate::network::{Family, InterfaceName};

#[derive(Clone, Debug, Default)]
pub(super) struct Network {
    // Leases of held addresses and of released addresses. A released lease stays until another claimant gets the
    // address, or until the lease is forgotten.
    leases: BTreeMap<IpAddr, Lease>,
    conflicts: BTreeMap<IpAddr, BTreeMap<Machine, Records>>,
    // Number of records in `conflicts`, by address and recorders. Reports of guests are not counted.
    recording: BTreeMap<IpAddr, BTreeMap<Recorders, usize>>,
    // Machines of `conflicts` whose objects no longer record the address. The address stays reserved for the machine.
    // The caller reports these machines, and no ledger stores them.
    ended: BTreeMap<IpAddr, BTreeSet<Machine>>,
    // Addresses that running guests report, or that Services and Clusters use. Each address has its claimants, each
    // with the source of the report. The caller sets the reports, and no ledger stores the reports.
    reports: BTreeMap<IpAddr, BTreeMap<Claimant, Arc<str>>>,
    // Reuse delays that are not over. Each has its end and its address.
    delays: BTreeSet<(Timestamp, IpAddr)>,
    pools: Vec<Arc<Pool>>,
    // Namespaces of the machines, and namespaces of the claims, that at least one of the pools serves.
    machines: Vec<Namespaces>,
    claims: Vec<Namespaces>,
    // The ranges of all pools, sorted.
    ranges: Vec<PoolRange>,
    // Why pools and templates reserve single addresses of the network.
    named: BTreeMap<IpAddr, Vec<ReservedAddress>>,
    // Addresses whose lease the ledger refuses to change, each with the end of the pause before the ledger is asked
    // again.
    refused: BTreeMap<IpAddr, Timestamp>,
}

/// A range of addresses of a pool.
#[derive(Clone, Debug)]
struct PoolRange {
    range: AddressRange,
    // The highest number in this range and all earlier ranges of the family.
    reach: u128,
    pool: Arc<str>,
}

/// The records of one machine that have no lease, by interface: the state of the address, and the source of the record.
type Records = BTreeMap<InterfaceName, (State, Arc<str>)>;

/// The claimants that report each address, with the sources of the reports.
pub(super) type Reports = BTreeMap<IpAddr, BTreeMap<Claimant, Arc<str>>>;

// === impl Network ===

impl Network {
    /// The lease of an address, held or released.
    pub(super) fn lease(&self, address: IpAddr) -> Option<&Lease> {
        self.leases.get(&address)
    }

    /// The lease of an address. `None` if no claimant holds the address.
    pub(super) fn held_at(&self, address: IpAddr) -> Option<&Lease> {
        self.lease(address).filter(|lease| lease.released.is_none())
    }

    /// The held addresses, sorted by number, IPv4 first.
    pub(super) fn held(&self) -> impl Iterator<Item = (IpAddr, &Lease)> {
        self.leases.iter().filter(|(_, lease)| lease.released.is_none()).map(|(address, lease)| (*address, lease))
    }

    /// All leases, held and released, sorted by the number of the address.
    pub(super) fn leases(&self) -> impl Iterator<Item = (IpAddr, &Lease)> {
        self.leases.iter().map(|(address, lease)| (*address, lease))
    }

    /// The leases of a range, held and released, sorted by the number of the address.
    pub(super) fn leases_in(&self, range: &AddressRange) -> impl Iterator<Item = (IpAddr, &Lease)> {
        self.leases.range(addresses(range)).map(|(address, lease)| (*address, lease))
    }

    pub(super) fn conflicts(&self) -> impl Iterator<Item = (IpAddr, Conflict)> {
        self.conflicts.iter().flat_map(|(address, machines)| {
            machines.iter().flat_map(move |(machine, interfaces)| {
                interfaces.iter().map(move |(interface, (state, source))| {
                    let claimant = Claimant { machine: machine.clone(), interface: *interface };
                    (*address, Conflict { claimant, source: source.to_string(), state: *state })
                })
            })
        })
    }

    /// The addresses of a range that have a report, or a record without a lease. Each address is listed once.
    pub(super) fn recorded_in(&self, range: &AddressRange) -> BTreeSet<IpAddr> {
        let recorded = self.conflicts.range(addresses(range)).map(|(address, _)| *address);
        recorded.chain(self.reports.range(addresses(range)).map(|(address, _)| *address)).collect()
    }

    /// The addresses that have a report, or a record without a lease. Each address is listed once.
    pub(super) fn recorded(&self) -> BTreeSet<IpAddr> {
        self.conflicts.keys().chain(self.reports.keys()).copied().collect()
    }

    /// Whether records of these recorders reserve an address.
    pub(super) fn is_recorded_by(&self, address: IpAddr, recorders: &Recorders) -> bool {
        self.recording.get(&address).is_some_and(|all| all.contains_key(recorders))
    }

    /// Updates how many records of a machine or claim, and of those of its namespace, reserve an address, after a record
    /// was added or removed.
    fn count_record(&mut self, address: IpAddr, machine: &Machine, is_added: bool) {
        let all = self.recording.entry(address).or_default();
        let recorders = Recorders::of(machine);
        let count = all.get(&recorders).copied().unwrap_or_default();
        match if is_added { count + 1 } else { count.saturating_sub(1) } {
            0 => all.remove(&recorders),
            count => all.insert(recorders, count),
        };
        if all.is_empty() {
            self.recording.remove(&address);
        }
    }

    /// Number of addresses in a pool that are reserved by records, for each family and for each of the recorders.
    pub(super) fn recorded_of(&self, pool: &Pool) -> Counts<Recorders> {
        let mut counts = Counts::new();
        let ranges = pool.spaces().flat_map(|space| space.ranges());
        for (address, recorders) in ranges.flat_map(|range| self.recording.range(addresses(range))) {
            for of_namespace in recorders.keys() {
                *counts.entry((Family::of(*address), of_namespace.clone())).or_default() += 1;
            }
        }
        counts
    }

    /// The users of an address that record or report it and do not hold it. Machines whose objects no longer record the
    /// address are left out.
    pub(super) fn recorders(&self, address: IpAddr) -> impl Iterator<Item = User<'_>> {
        let ended = self.ended.get(&address);
        let machines = self.conflicts.get(&address).into_iter().flatten();
        let machines = machines.filter(move |(machine, _)| !ended.is_some_and(|ended| ended.contains(machine)));
        machines.flat_map(move |(machine, interfaces)| {
            interfaces.iter().map(move |(interface, (state, source))| User {
                machine,
                interface: *interface,
                source,
                evidence: match state {
                    State::Mismatch | State::Excluded | State::ByRecord => Evidence::Record,
                    State::ByReport => Evidence::Report,
                },
                is_own: match state {
                    State::Mismatch | State::Excluded => false,
                    State::ByRecord => true,
                    State::ByReport => self.has_own_record(address, machine),
                },
            })
        })
    }

    /// The guests, Services and Clusters with a report of an address.
    pub(super) fn reporters(&self, address: IpAddr) -> impl Iterator<Item = User<'_>> {
        let claimants = self.reports.get(&address).into_iter().flatten();
        claimants.map(move |(Claimant { machine, interface }, source)| User {
            machine,
            interface: *interface,
            source,
            evidence: Evidence::Report,
            is_own: self.has_own_record(address, machine),
        })
    }

    /// Whether the VirtualMachine of a guest has a record of the address that needs no lease, such as network data that
    /// a user wrote. `guest` may have the UID of its instance.
    pub(super) fn has_own_record(&self, address: IpAddr, guest: &Machine) -> bool {
        let Some(machines) = self.conflicts.get(&address) else { return false };
        let first = Machine::new(guest.served_in(), &*guest.name, "");
        let namesakes = machines.range(first.clone()..).take_while(move |(other, _)| is_namesake(other, &first));
        let mut own = namesakes.filter(|(other, interfaces)| {
            let is_own = interfaces.values().any(|(state, _)| *state == State::ByRecord);
            is_own && !other.kind.is_claim() && is_guest_of(other, guest) && !self.has_ended(address, other)
        });
        own.next().is_some()
    }

    /// Whether an address stays reserved for a machine, although no object of the machine records the address any more.
    pub(super) fn has_ended(&self, address: IpAddr, machine: &Machine) -> bool {
        self.ended.get(&address).is_some_and(|ended| ended.contains(machine))
    }

    /// Sets whether an address stays reserved for a machine although no object of the machine records the address any
    /// more.
    pub(super) fn set_ended(&mut self, address: IpAddr, machine: &Machine, has_ended: bool) {
        let is_known = self.conflicts.get(&address).is_some_and(|machines| machines.contains_key(machine));
        if has_ended && is_known {
            self.ended.entry(address).or_default().insert(machine.clone());
        } else if let Some(ended) = self.ended.get_mut(&address) {
            ended.remove(machine);
            if ended.is_empty() {
                self.ended.remove(&address);
            }
        }
    }

    /// Returns the state that records and reports give to an address. A record takes precedence over a report. `None`:
    /// the address has neither.
    pub(super) fn reserved_as(&self, address: IpAddr) -> Option<State> {
        let records = self.conflicts.get(&address).into_iter().flat_map(BTreeMap::values).flat_map(BTreeMap::values);
        let reported = self.reports.contains_key(&address).then_some(State::ByReport);
        records.map(|(state, _)| *state).chain(reported).min()
    }

    pub(super) fn has_conflict(&self, address: IpAddr) -> bool {
        self.conflicts.contains_key(&address)
    }

    /// The first claimant that records an address without a lease and for which `fits` is true.
    pub(super) fn conflict_at(&self, address: IpAddr, fits: impl Fn(&Claimant) -> bool) -> Option<Claimant> {
        let machines = self.conflicts.get(&address).into_iter().flatten();
        let claimants = machines.flat_map(|(machine, interfaces)| {
            interfaces.keys().map(|interface| Claimant { machine: machine.clone(), interface: *interface })
        });
        claimants.into_iter().find(fits)
    }

    /// The interfaces of a machine with a record of this address, but no lease.
    pub(super) fn conflicts_of(&self, address: IpAddr, machine: &Machine) -> Vec<InterfaceName> {
        let interfaces = self.conflicts.get(&address).and_then(|machines| machines.get(machine));
        interfaces.into_iter().flat_map(BTreeMap::keys).copied().collect()
    }

    /// When the reuse delay of an address ends. `None` if there is no reuse delay or it is over.
    pub(super) fn delayed_until(&self, address: IpAddr) -> Option<Timestamp> {
        let until = self.lease(address)?.reuse_after?;
        self.delays.contains(&(until, address)).then_some(until)
    }

    /// The released lease of an address, if the guest of the lease migrated with the address to another cluster and the
    /// reuse delay is not over. The guest may still use the address there.
    pub(super) fn migrated_at(&self, address: IpAddr) -> Option<&Lease> {
        self.delayed_until(address)?;
        self.lease(address).filter(|lease| lease.released.is_some() && lease.migrated.is_some())
    }

    /// The released lease of an address, if its reuse delay applies to a machine. The delay applies to every machine
    /// other than the last holder and its successors. If the guest of the lease migrated with the address, the delay
    /// applies to the last holder and its successors, too.
    pub(super) fn delayed_for(&self, address: IpAddr, machine: &Machine) -> Option<&Lease> {
        self.delayed_until(address)?;
        let is_own = |last: &Lease| last.migrated.is_none() && is_successor(&last.claimant.machine, machine);
        self.lease(address).filter(|last| last.released.is_some() && !is_own(last))
    }

    /// Sets the pools of the network.
    pub(super) fn set_pools<'p>(&mut self, pools: impl IntoIterator<Item = (&'p Arc<str>, &'p Arc<Pool>)>) {
        let (mut ranges, mut named) = (Vec::new(), BTreeMap::<IpAddr, Vec<ReservedAddress>>::new());
        self.pools.clear();
        for (name, pool) in pools {
            self.pools.push(Arc::clone(pool));
            for range in pool.spaces().flat_map(|space| space.ranges()) {
                ranges.push(PoolRange { range: *range, reach: range.last(), pool: Arc::clone(name) });
            }
            for (address, why) in pool.named() {
                named.entry(address).or_default().push(ReservedAddress { why, pool: pool.name.clone() });
            }
        }
        self.machines = Namespaces::merged(self.pools.iter().map(|pool| &pool.machines));
        self.claims = Namespaces::merged(self.pools.iter().map(|pool| &pool.claims));
        ranges.sort_by_key(|range| range.range);
        let mut before: Option<(Family, u128)> = None;
        for PoolRange { range, reach, .. } in &mut ranges {
            if let Some((family, last)) = before
                && family == range.family()
            {
                *reach = last.max(*reach);
            }
            before = Some((range.family(), *reach));
        }
        named.values_mut().for_each(|reasons| reasons.sort_by(|a, b| (a.why, &a.pool).cmp(&(b.why, &b.pool))));
        (self.ranges, self.named) = (ranges, named);
    }

    /// Whether nothing is known about the network.
    pub(super) fn is_unused(&self) -> bool {
        self.pools.is_empty()
            && self.leases.is_empty()
            && self.conflicts.is_empty()
            && self.reports.is_empty()
            && self.refused.is_empty()
    }

    /// Whether a pool of the network serves a machine or a claim.
    pub(super) fn serves(&self, holder: &Machine) -> bool {
        let (namespaces, namespace) = match holder.kind.is_claim() {
            true => (&self.claims, holder.namespace.as_str()),
            false => (&self.machines, holder.served_in()),
        };
        namespaces.iter().any(|namespaces| namespaces.has(namespace))
    }

    /// The pools of the network.
    pub(super) fn pools(&self) -> impl Iterator<Item = &Pool> {
        self.pools.iter().map(|pool| &**pool)
    }

    /// The names of the pools that have an address.
    pub(super) fn pools_with(&self, address: IpAddr) -> impl Iterator<Item = &Arc<str>> {
        let at = Family::split(address);
        let after = self.ranges.partition_point(|it| (it.range.family(), it.range.first()) <= at);
        let before = self.ranges.get(..after).unwrap_or_default().iter().rev();
        let near = before.take_while(move |it| it.range.family() == at.0 && it.reach >= at.1);
        near.filter(move |it| it.range.contains(address)).map(|it| &it.pool)
    }

    /// Why pools and templates reserve exactly this address, the most important reason first.
    pub(super) fn named(&self, address: IpAddr) -> &[ReservedAddress] {
        self.named.get(&address).map_or(&[], Vec::as_slice)
    }

    /// The claimants that report an address.
    pub(super) fn reporters_of(&self, address: IpAddr) -> impl Iterator<Item = &Claimant> {
        self.reports.get(&address).into_iter().flat_map(BTreeMap::keys)
    }

    /// The first claimant that reports an address and is not the guest of a machine.
    pub(super) fn reported_by_other(&self, address: IpAddr, machine: &Machine) -> Option<&Claimant> {
        self.reported_by_others(address, machine).next()
    }

    /// The claimants that report an address and are not the guest of a machine.
    pub(super) fn reported_by_others(&self, address: IpAddr, machine: &Machine) -> impl Iterator<Item = &Claimant> {
        self.reporters_of(address).filter(|claimant| !is_guest_of(&claimant.machine, machine))
    }

    /// Adds a claimant's report of an address, or removes the report if `source` is `None`. Returns the previous
    /// source.
    pub(super) fn set_report(
        &mut self,
        address: IpAddr,
        claimant: &Claimant,
        source: Option<Arc<str>>,
    ) -> Option<Arc<str>> {
        let claimants = self.reports.entry(address).or_default();
        let before = match source {
            Some(source) => claimants.insert(claimant.clone(), source),
            None => claimants.remove(claimant),
        };
        if claimants.is_empty() {
            self.reports.remove(&address);
        }
        before
    }

    /// Whether another machine has a record of an address that contradicts a record of this machine. These records
    /// contradict nothing:
    ///
    /// - the unreadable record of an unknown machine, which may be this machine
    /// - a report, or a record that needs no lease, if both objects belong to one VirtualMachine and are of one kind,
    ///   claims or machines: it may be an earlier record of this machine, such as the record of an IPAddress before its
    ///   claim
    pub(super) fn is_recorded_by_other(&self, address: IpAddr, machine: &Machine) -> bool {
        let is_weak = |state: &State| matches!(state, State::ByRecord | State::ByReport);
        let is_before =
            |other: &Machine| is_guest_of(other, machine) && other.kind.is_claim() == machine.kind.is_claim();
        self.conflicts.get(&address).into_iter().flatten().any(|(other, interfaces)| {
            let is_own = *other == *machine || !other.may_exist();
            !is_own && interfaces.values().any(|(state, _)| !(is_weak(state) && is_before(other)))
        })
    }

    /// The state that the record of a claimant gives to an address. `None`: the claimant has no record without a lease.
    pub(super) fn state_of(&self, address: IpAddr, claimant: &Claimant) -> Option<State> {
        let interfaces = self.conflicts.get(&address)?.get(&claimant.machine)?;
        interfaces.get(&claimant.interface).map(|(state, _)| *state)
    }

    /// Whether an address that no pool offers any more is reserved for a machine.
    pub(super) fn is_excluded_for(&self, address: IpAddr, machine: &Machine) -> bool {
        let interfaces = self.conflicts.get(&address).and_then(|machines| machines.get(machine));
        interfaces.into_iter().flat_map(BTreeMap::values).any(|(state, _)| *state == State::Excluded)
    }

    /// All reports, sorted by address and claimant.
    pub(super) fn reports(&self) -> &Reports {
        &self.reports
    }

    /// Replaces all reports.
    pub(super) fn set_reports(&mut self, reports: Reports) {
        self.reports = reports;
    }

    /// Returns all reports.
    pub(super) fn into_reports(self) -> Reports {
        self.reports
    }

    /// Whether an address cannot be allocated: it is held, recorded or reported, its reuse delay is not over, or the
    /// ledger refuses to change its lease.
    pub(super) fn is_occupied(&self, address: IpAddr) -> bool {
        self.held_at(address).is_some()
            || self.has_conflict(address)
            || self.reports.contains_key(&address)
            || self.delayed_until(address).is_some()
            || self.is_refused(address)
    }

    /// Whether the ledger refuses to change the lease of an address.
    pub(super) fn is_refused(&self, address: IpAddr) -> bool {
        self.refused.contains_key(&address)
    }

    /// The addresses whose lease the ledger refuses to change, each with the end of the pause.
    pub(super) fn refused(&self) -> impl Iterator<Item = (IpAddr, Timestamp)> {
        self.refused.iter().map(|(address, until)| (*address, *until))
    }

    /// Sets the end of the pause after the ledger refused to change the lease of an address. `None`: the lease can
    /// change.
    pub(super) fn set_refused(&mut self, address: IpAddr, until: Option<Timestamp>) {
        match until {
            Some(until) => self.refused.insert(address, until),
            None => self.refused.remove(&address),
        };
    }

    /// Removes a reuse delay that is over, and returns the address of the delay. `None`: no delay is over.
    pub(super) fn end_delay(&mut self, now: Timestamp) -> Option<IpAddr> {
        let (until, _) = *self.delays.first()?;
        if until <= now { self.delays.pop_first().map(|(_, address)| address) } else { None }
    }

    /// The free addresses of a pool by family, in one set for each subnet. Closed addresses are not free. The sets
    /// include the reserved first and last addresses of subnets, which may be too many to remove at once.
    /// `PoolState::lowest` removes each of them when it is the lowest address of its set.
    pub(super) fn free_of(&self, pool: &Pool, closed: &AddressSet) -> BTreeMap<Family, Vec<FreeRanges>> {
        let mut free_by_family = BTreeMap::new();
        let subnets = pool.spaces().flat_map(|space| space.subnets().iter().map(move |subnet| (space, subnet)));
        for (space, subnet) in subnets {
            let mut free = FreeRanges::default();
            for range in subnet.ranges() {
                // The ranges of a pool never overlap and never cover all addresses, so `add_range` cannot fail.
                let done = free.add_range(range.first(), range.last());
                debug_assert_eq!(done, Ok(()), "{range}");
            }
            for range in space.reserved().iter().chain(space.common(closed).ranges()) {
                free.take_range(range.first(), range.last());
            }
            for range in subnet.ranges() {
                let leases = self.leases_in(range).map(|(address, _)| address);
                let conflicts = self.conflicts.range(addresses(range)).map(|(address, _)| *address);
                let refused = self.refused.range(addresses(range)).map(|(address, _)| *address);
                let reported = self.reports.range(addresses(range)).map(|(address, _)| *address);
                for address in leases.chain(conflicts).chain(refused).chain(reported) {
                    if self.is_occupied(address) {
                        let number = Family::number(address);
                        free.take_range(number, number);
                    }
                }
            }
            free_by_family.entry(space.family()).or_insert_with(Vec::new).push(free);
        }
        free_by_family
    }

    /// Replaces the lease of an address and returns the previous lease.
    pub(super) fn set_lease(&mut self, address: IpAddr, lease: Option<Lease>, now: Timestamp) -> Option<Lease> {
        let until = lease.as_ref().and_then(|lease| lease.reuse_after).filter(|until| *until > now);
        let before = match lease {
            Some(lease) => self.leases.insert(address, lease),
            None => self.leases.remove(&address),
        };
        if let Some(until) = before.as_ref().and_then(|before| before.reuse_after) {
            self.delays.remove(&(until, address));
        }
        self.delays.extend(until.map(|until| (until, address)));
        before
    }

    /// Adds, replaces or removes the record of a claimant that has no lease of the address. Returns the previous
    /// record.
    pub(super) fn set_conflict(
        &mut self,
        address: IpAddr,
        claimant: &Claimant,
        record: Option<(State, Arc<str>)>,
    ) -> Option<(State, Arc<str>)> {
        let Claimant { machine, interface } = claimant;
        let is_record =
            |record: &Option<(State, Arc<str>)>| record.as_ref().is_some_and(|(state, _)| *state != State::ByReport);
        let counts = is_record(&record);
        let machines = self.conflicts.entry(address).or_default();
        let interfaces = machines.entry(machine.clone()).or_default();
        let before = match record {
            Some(record) => interfaces.insert(*interface, record),
            None => interfaces.remove(interface),
        };
        if interfaces.is_empty() {
            machines.remove(machine);
        }
        if machines.is_empty() {
            self.conflicts.remove(&address);
        }
        if counts != is_record(&before) {
            self.count_record(address, machine, counts);
        }
        // A new record, or the removal of the record, also removes the mark that the record has ended.
        self.set_ended(address, machine, false);
        before
    }

    /// Whether an address is reserved because an object of a machine records it. A record that has ended does not count.
    pub(super) fn is_recorded_for(&self, address: IpAddr, machine: &Machine) -> bool {
        let records = self.conflicts.get(&address).and_then(|machines| machines.get(machine));
        let mut states = records.into_iter().flat_map(BTreeMap::values).map(|(state, _)| *state);
        states.any(|state| state != State::ByReport) && !self.has_ended(address, machine)
    }

    /// Whether a machine holds or last held an address, or records the address without a lease.
    pub(super) fn mentions(&self, address: IpAddr, machine: &Machine) -> bool {
        self.lease(address).is_some_and(|lease| lease.claimant.machine == *machine)
            || self.conflicts.get(&address).is_some_and(|machines| machines.contains_key(machine))
    }
}

fn addresses(range: &AddressRange) -> RangeInclusive<IpAddr> {
    let family = range.family();
    family.address(range.first())..=family.address(range.last())
}
