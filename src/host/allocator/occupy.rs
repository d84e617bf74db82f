//! Sets the leases and the conflicts of addresses, and updates which addresses are free.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use super::network::Network;
use super::pool_state::{Counts, Recorders, count};
use super::state::Allocator;
use crate::host::claim::{Claimant, Lease, Machine};
use crate::host::may_record::State;
use crate::network::Family;

impl Allocator {
    /// Replaces the lease of an address and returns the previous lease.
    pub(super) fn set_lease(&mut self, name: &Arc<str>, address: IpAddr, lease: Option<Lease>) -> Option<Lease> {
        let now = self.now;
        let network = self.networks.entry(Arc::clone(name)).or_default();
        let was_occupied = network.is_occupied(address);
        let before = network.set_lease(address, lease.clone(), now);
        self.occupy_again(name, address, was_occupied);
        for Lease { claimant, .. } in before.iter().chain(&lease) {
            self.index(&claimant.machine, name, address);
        }
        before.iter().for_each(|before| self.count_lease(name, before, address, false));
        lease.iter().for_each(|lease| self.count_lease(name, lease, address, true));
        // When a waiting machine gets or loses an address, its claim must be evaluated again.
        for Lease { claimant, .. } in before.iter().chain(&lease).filter(|lease| lease.released.is_none()) {
            self.enqueue_again(&claimant.machine);
        }
        before
    }

    /// Adds a held lease to the counts of its pools, or removes the lease from them. A released lease changes nothing.
    fn count_lease(&mut self, network: &str, lease: &Lease, address: IpAddr, is_added: bool) {
        if lease.released.is_some() {
            return;
        }
        for pool in self.counted_in(network, address, lease) {
            if let Some(state) = self.pools.get_mut(&pool).filter(|state| *state.pool.network == *network) {
                count(&mut state.held, Family::of(address), lease.claimant.machine.served_in().to_owned(), is_added);
            }
        }
    }

    /// The pools in which a held address counts: the pools that have the address and serve the machine. If there is no
    /// such pool, the address counts in all pools that have it, or else in the pool of the lease. So the count of a
    /// namespace does not fall when its leases move to another pool, or when a pool no longer serves the namespace.
    fn counted_in(&self, network: &str, address: IpAddr, lease: &Lease) -> Vec<Arc<str>> {
        let serves =
            |name: &Arc<str>| self.pools.get(name).is_some_and(|it| it.pool().serves_holder(&lease.claimant.machine));
        let having = self.networks.get(network).into_iter().flat_map(|network| network.pools_with(address));
        let (own, others): (Vec<_>, Vec<_>) = having.cloned().partition(serves);
        [own, others].into_iter().find(|pools| !pools.is_empty()).unwrap_or_else(|| vec![Arc::clone(&lease.pool)])
    }

    /// Number of held addresses of a network in each pool, by family and namespace.
    pub(super) fn held_by_pool(&self, network: &str) -> BTreeMap<Arc<str>, Counts<String>> {
        let mut all = BTreeMap::<_, Counts<String>>::new();
        for (address, lease) in self.networks.get(network).into_iter().flat_map(Network::held) {
            for pool in self.counted_in(network, address, lease) {
                let counts = all.entry(pool).or_default();
                count(counts, Family::of(address), lease.claimant.machine.served_in().to_owned(), true);
            }
        }
        all
    }

    /// Adds, replaces or removes the record of a claimant that has no lease of the address. Returns the previous
    /// record.
    pub(super) fn set_conflict(
        &mut self,
        name: &Arc<str>,
        address: IpAddr,
        claimant: &Claimant,
        record: Option<(State, Arc<str>)>,
    ) -> Option<(State, Arc<str>)> {
        let recorders = Recorders::of(&claimant.machine);
        let network = self.networks.entry(Arc::clone(name)).or_default();
        let was_occupied = network.is_occupied(address);
        let was_recorded = network.is_recorded_by(address, &recorders);
        let before = network.set_conflict(address, claimant, record);
        let is_recorded = network.is_recorded_by(address, &recorders);
        if was_recorded != is_recorded {
            self.count_record(name, address, &recorders, is_recorded);
        }
        self.occupy_again(name, address, was_occupied);
        self.index(&claimant.machine, name, address);
        // A machine that keeps an address by a record needs no other address, so its claim must be evaluated again.
        self.enqueue_again(&claimant.machine);
        before
    }

    /// Adds one address to the count of addresses that these recorders reserve, in each pool with the address, or
    /// removes the address from these counts.
    fn count_record(&mut self, network: &str, address: IpAddr, recorders: &Recorders, is_added: bool) {
        let pools = self.networks.get(network).into_iter().flat_map(|network| network.pools_with(address));
        for name in pools {
            let Some(state) = self.pools.get_mut(name) else { continue };
            count(&mut state.recorded, Family::of(address), recorders.clone(), is_added);
        }
    }

    /// Updates whether an address is free, after a change of its lease, its records or its reports.
    pub(super) fn occupy_again(&mut self, network: &Arc<str>, address: IpAddr, was_occupied: bool) {
        let state = self.networks.entry(Arc::clone(network)).or_default();
        let is_occupied = state.is_occupied(address);
        let last = state.lease(address).map(|lease| Arc::clone(&lease.claimant));
        if was_occupied != is_occupied {
            self.occupy(network, address, is_occupied);
        }
        // A machine with the name of the last holder may get the address during its reuse delay, if its claim is sticky or
        // the pool keeps the address for this name. So such machines try again, although the address is occupied for others.
        if let Some(last) = last {
            self.stir_namesakes(&last.machine);
        }
    }

    /// Removes an address from the free addresses of all pools of its network, or adds the address to them. Does
    /// nothing for a closed address.
    pub(super) fn occupy(&mut self, network: &str, address: IpAddr, is_occupied: bool) {
        if self.growth.is_closed(network, address) {
            return;
        }
        let pools = self.networks.get(network).into_iter().flat_map(|network| network.pools_with(address));
        for name in pools.cloned().collect::<Vec<_>>() {
            if let Some(state) = self.pools.get_mut(&name) {
                state.occupy(network, address, is_occupied);
            }
        }
        if !is_occupied {
            self.stir_pre_allocated(network, address);
        }
    }

    /// Updates the index of machines: whether a machine has a lease or a conflict of an address.
    fn index(&mut self, machine: &Machine, name: &Arc<str>, address: IpAddr) {
        let is_mentioned = self.networks.get(name).is_some_and(|network| network.mentions(address, machine));
        if is_mentioned {
            let paths = match self.paths.get_mut(machine) {
                Some(paths) => paths,
                None => self.paths.entry(machine.clone()).or_default(),
            };
            paths.insert((Arc::clone(name), address));
        } else if let Some(paths) = self.paths.get_mut(machine) {
            paths.remove(&(Arc::clone(name), address));
            if paths.is_empty() {
                self.paths.remove(machine);
            }
        }
    }
}
