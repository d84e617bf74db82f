//! Releases addresses, and records which machines a search found or missed.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use ipnetwork::IpNetwork;
use jiff::Timestamp;

use super::state::{Allocator, allocations, with_prefix};
use crate::host::change::{Change, Journal};
use crate::host::claim::{Allocation, Claimant, Lease, Machine};
use crate::network::Family;

// === impl Allocator ===

impl Allocator {
    /// Releases all addresses of a machine, removes the machine from the wait queue, and removes its records without a
    /// lease. Returns the released addresses.
    ///
    /// Each address gets a reuse delay: see [`Self::reuse_after`]. The UID must match, too: another machine of the same
    /// name keeps its addresses.
    ///
    /// Call this only when the machine is gone, that is, when it can no longer send packets from its addresses.
    pub(crate) fn release(&mut self, machine: &Machine, now: Timestamp, journal: &mut Journal) -> Vec<Allocation> {
        self.advance(now);
        let mut held = Vec::new();
        for (network, address) in self.paths.get(machine).cloned().unwrap_or_default() {
            self.remove_records(&network, address, machine, journal);
            held.extend(self.release_lease(&network, address, machine, journal));
        }
        self.withdraw(machine, journal);
        self.note_seen(machine, journal);
        self.denied.remove(machine);
        allocations(held)
    }

    /// Releases these addresses of a machine, and removes its records of them. Each address is given with its network.
    /// The machine keeps its other addresses. Returns the released addresses.
    ///
    /// Each address gets a reuse delay, as in [`Self::release`]. Call this only when the machine can no longer send
    /// packets from these addresses.
    pub(crate) fn release_addresses(
        &mut self,
        machine: &Machine,
        addresses: &BTreeSet<(String, IpAddr)>,
        now: Timestamp,
        journal: &mut Journal,
    ) -> Vec<Allocation> {
        self.advance(now);
        let mut held = Vec::new();
        for (network, address) in addresses {
            self.remove_records(network, *address, machine, journal);
            held.extend(self.release_lease(network, *address, machine, journal));
        }
        allocations(held)
    }

    /// Removes the records of an address that a machine has without a lease.
    pub(super) fn remove_records(&mut self, network: &str, address: IpAddr, machine: &Machine, journal: &mut Journal) {
        let Some((network, state)) = self.networks.get_key_value(network) else { return };
        let network = Arc::clone(network);
        for interface in state.conflicts_of(address, machine) {
            let claimant = Arc::new(Claimant { machine: machine.clone(), interface });
            let network = Arc::clone(&network);
            self.decide(Change::Conflict { network, address, claimant, record: None }, journal);
        }
    }

    /// Releases an address of a machine. `None`: the machine does not hold the address, or the ledger refuses to change
    /// its lease for now.
    fn release_lease(
        &mut self,
        network: &str,
        address: IpAddr,
        machine: &Machine,
        journal: &mut Journal,
    ) -> Option<(Arc<Claimant>, IpNetwork)> {
        let (network, state) = self.networks.get_key_value(network)?;
        let lease = state.held_at(address).filter(|lease| lease.claimant.machine == *machine);
        let (network, lease) = (Arc::clone(network), lease.filter(|_| !state.is_refused(address))?.clone());
        let released = (Arc::clone(&lease.claimant), with_prefix(address, lease.prefix));
        let reuse_after = self.reuse_after(&network, address, &lease);
        let lease = Some(Lease { released: Some(self.now), reuse_after, ..lease });
        self.decide(Change::Lease { network, address, lease }, journal);
        Some(released)
    }

    /// Releases each address of a claimant that is not in `keep`, if `keep` has an address of the same family. Returns
    /// the released addresses.
    ///
    /// Each address gets a reuse delay, as in [`Self::release`]. Call this only for addresses that the claimant never
    /// got, or from which it can no longer send packets.
    pub(crate) fn keep(
        &mut self,
        claimant: &Claimant,
        keep: &[IpAddr],
        now: Timestamp,
        journal: &mut Journal,
    ) -> Vec<Allocation> {
        self.advance(now);
        let is_double = |address: IpAddr| {
            !keep.contains(&address) && keep.iter().any(|kept| Family::of(*kept) == Family::of(address))
        };
        let held = self.held_by(&claimant.machine).into_iter();
        let held = held.filter(|(_, address, lease)| *lease.claimant == *claimant && is_double(*address));
        let doubles: Vec<(Arc<str>, IpAddr)> =
            held.map(|(network, address, _)| (Arc::clone(network), address)).collect();
        let released = doubles.into_iter();
        let released =
            released.filter_map(|(network, address)| self.release_lease(&network, address, &claimant.machine, journal));
        allocations(released.collect())
    }

    /// Records that a search did not find a machine. Returns when an earlier search first missed the machine. `None`:
    /// no earlier search missed the machine.
    pub(crate) fn note_missing(
        &mut self,
        machine: &Machine,
        now: Timestamp,
        journal: &mut Journal,
    ) -> Option<Timestamp> {
        self.advance(now);
        let since = self.missing.get(machine).copied();
        if since.is_none() {
            self.decide(Change::Missing { machine: machine.clone(), since: Some(self.now) }, journal);
        }
        since
    }

    /// Records that a machine was found.
    pub(crate) fn note_seen(&mut self, machine: &Machine, journal: &mut Journal) {
        if self.missing.contains_key(machine) {
            self.decide(Change::Missing { machine: machine.clone(), since: None }, journal);
        }
    }
}
