//! The state of one network: leases, conflicts and reuse delays of its addresses.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;

use jiff::Timestamp;

use crate::host::address::AddressRange;
use crate::host::claim::{Claimant, Conflict, Lease, Machine};
use crate::host::free_ranges::FreeRanges;
use crate::host::pool::Pool;
use crate::network::{Family, InterfaceName};

#[derive(Clone, Debug, Default)]
pub(super) struct Network {
    // Leases of held addresses, and of released addresses until another claimant gets the address.
    leases: BTreeMap<IpAddr, Lease>,
    conflicts: BTreeMap<IpAddr, BTreeMap<Machine, BTreeMap<InterfaceName, Arc<str>>>>,
    // Reuse delays that are not over: the end, and the address.
    delays: BTreeSet<(Timestamp, IpAddr)>,
    // Addresses whose lease the ledger refuses to change, and until when.
    refused: BTreeMap<IpAddr, Timestamp>,
}

// === impl Network ===

impl Network {
    /// The lease of an address, held or released.
    pub(super) fn lease(&self, address: IpAddr) -> Option<&Lease> {
        self.leases.get(&address)
    }

    /// The lease of an address. `None` if nobody holds the address.
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
                interfaces.iter().map(move |(interface, source)| {
                    let claimant = Claimant { machine: machine.clone(), interface: *interface };
                    (*address, Conflict { claimant, source: source.to_string() })
                })
            })
        })
    }

    /// The addresses with a conflict.
    pub(super) fn conflicting(&self) -> impl Iterator<Item = IpAddr> {
        self.conflicts.keys().copied()
    }

    pub(super) fn has_conflict(&self, address: IpAddr) -> bool {
        self.conflicts.contains_key(&address)
    }

    /// The first claimant with a conflicting record of an address for which `fits` is true.
    pub(super) fn conflict_at(&self, address: IpAddr, fits: impl Fn(&Claimant) -> bool) -> Option<Claimant> {
        let machines = self.conflicts.get(&address).into_iter().flatten();
        let claimants = machines.flat_map(|(machine, interfaces)| {
            interfaces.keys().map(|interface| Claimant { machine: machine.clone(), interface: *interface })
        });
        claimants.into_iter().find(fits)
    }

    /// The interfaces for which a machine has a conflicting record of this address.
    pub(super) fn conflicts_of(&self, address: IpAddr, machine: &Machine) -> Vec<InterfaceName> {
        let interfaces = self.conflicts.get(&address).and_then(|machines| machines.get(machine));
        interfaces.into_iter().flat_map(BTreeMap::keys).copied().collect()
    }

    /// When the reuse delay of an address ends, in milliseconds since 1970. `None` if there is no reuse delay or it is
    /// over.
    pub(super) fn delayed_until(&self, address: IpAddr) -> Option<Timestamp> {
        let until = self.lease(address)?.reuse_after?;
        self.delays.contains(&(until, address)).then_some(until)
    }

    /// Whether an address is held, has a conflict, is in its reuse delay or has a lease that cannot change, so that it
    /// cannot be allocated.
    pub(super) fn is_occupied(&self, address: IpAddr) -> bool {
        self.held_at(address).is_some()
            || self.has_conflict(address)
            || self.delayed_until(address).is_some()
            || self.is_refused(address)
    }

    /// Whether the ledger refuses to change the lease of an address.
    pub(super) fn is_refused(&self, address: IpAddr) -> bool {
        self.refused.contains_key(&address)
    }

    /// The addresses whose lease the ledger refuses to change, and until when.
    pub(super) fn refused(&self) -> impl Iterator<Item = (IpAddr, Timestamp)> {
        self.refused.iter().map(|(address, until)| (*address, *until))
    }

    /// Sets until when the lease of an address does not change. `None`: it may change.
    pub(super) fn set_refused(&mut self, address: IpAddr, until: Option<Timestamp>) {
        match until {
            Some(until) => self.refused.insert(address, until),
            None => self.refused.remove(&address),
        };
    }

    /// Removes one reuse delay that is over, and returns its address.
    pub(super) fn end_delay(&mut self, now: Timestamp) -> Option<IpAddr> {
        let (until, _) = *self.delays.first()?;
        if until <= now { self.delays.pop_first().map(|(_, address)| address) } else { None }
    }

    /// The free addresses of a pool, including the reserved first and last addresses of subnets. There may be more such
    /// addresses than fit into memory, so the allocator removes each one when it reaches it.
    pub(super) fn free_of(&self, pool: &Pool) -> BTreeMap<Family, FreeRanges> {
        let mut free_by_family = BTreeMap::new();
        for space in pool.spaces() {
            let (family, mut free) = (space.family(), FreeRanges::default());
            for range in space.ranges() {
                // The ranges of a pool never overlap and never cover all addresses, so this cannot fail.
                let done = free.give_back_range(range.first(), range.last());
                debug_assert_eq!(done, Ok(()), "{range}");
            }
            for range in space.reserved() {
                free.take_range(range.first(), range.last());
            }
            for range in space.ranges() {
                let leases = self.leases_in(range).map(|(address, _)| address);
                let conflicts = self.conflicts.range(addresses(range)).map(|(address, _)| *address);
                let refused = self.refused.range(addresses(range)).map(|(address, _)| *address);
                for address in leases.chain(conflicts).chain(refused) {
                    if self.is_occupied(address) {
                        let number = Family::number(address);
                        free.take_range(number, number);
                    }
                }
            }
            free_by_family.insert(family, free);
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

    /// Adds, replaces or removes a conflicting record of an address, and returns the previous source.
    pub(super) fn set_conflict(
        &mut self,
        address: IpAddr,
        claimant: &Claimant,
        source: Option<Arc<str>>,
    ) -> Option<Arc<str>> {
        let Claimant { machine, interface } = claimant;
        let machines = self.conflicts.entry(address).or_default();
        let interfaces = machines.entry(machine.clone()).or_default();
        let before = match source {
            Some(source) => interfaces.insert(*interface, source),
            None => interfaces.remove(interface),
        };
        if interfaces.is_empty() {
            machines.remove(machine);
        }
        if machines.is_empty() {
            self.conflicts.remove(&address);
        }
        before
    }

    /// Whether a machine has a lease or a conflicting record of an address.
    pub(super) fn mentions(&self, address: IpAddr, machine: &Machine) -> bool {
        self.lease(address).is_some_and(|lease| lease.claimant.machine == *machine)
            || self.conflicts.get(&address).is_some_and(|machines| machines.contains_key(machine))
    }
}

fn addresses(range: &AddressRange) -> RangeInclusive<IpAddr> {
    let family = range.family();
    family.address(range.first())..=family.address(range.last())
}
