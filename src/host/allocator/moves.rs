//! Moves of leases to another pool of the same network. The machine keeps its addresses.

use std::net::IpAddr;
use std::sync::Arc;

use super::pool_state::PoolState;
use super::state::Allocator;
use super::want::Move;
use crate::host::change::{Change, Journal};
use crate::host::claim::{Lease, Machine};
use crate::host::pool::{Pool, home_in_group};

// === impl Allocator ===

impl Allocator {
    /// Returns the move of a held lease to another pool. The machine keeps the address. `None`: the lease stays in its
    /// pool.
    ///
    /// The other pool must allocate addresses of the same network. If the other pool does not have the address, the
    /// address counts as outside that pool and keeps its prefix length. A claim chooses its pool, so the lease of a
    /// claim moves only in two cases: the other pool has the address, or the pool of the lease no longer offers the
    /// address.
    pub(super) fn moved(&self, network: &Arc<str>, address: IpAddr, lease: &Lease, pool: &str) -> Option<Move> {
        let (name, state) = self.pools.get_key_value(pool)?;
        let pool = state.pool();
        if pool.network != **network || pool.is_external() {
            return None;
        }
        let holder = &lease.claimant.machine;
        let own = self.pools.get(&lease.pool).filter(|own| own.pool().network == **network);
        let is_offered = || own.is_some_and(|own| own.offers_to(holder, address));
        if !pool.contains(address) && holder.kind.is_claim() && is_offered() {
            return None;
        }
        let prefix = pool.prefix_of(address).filter(|_| pool.contains(address)).unwrap_or(lease.prefix);
        let lease = Lease { pool: Arc::clone(name), prefix, ..lease.clone() };
        Some(Move { network: Arc::clone(network), address, lease })
    }

    /// Moves the leases of a machine to the pools that serve it now, and returns the moved addresses. The machine keeps
    /// its addresses. A pool takes the leases of its own interface on its own network. For several such pools, see
    /// [`home_in_group`].
    pub(crate) fn move_leases(&mut self, machine: &Machine, pools: &[String], journal: &mut Journal) -> Vec<IpAddr> {
        let held = self.held_by(machine).into_iter();
        let held = held.filter(|(network, address, _)| !self.is_refused(network, *address));
        let moves = held.filter_map(|(network, address, lease)| {
            let known = pools.iter().filter_map(|pool| self.pools.get_key_value(pool.as_str()));
            let is_meant = |state: &PoolState| {
                state.pool().interface == lease.claimant.interface && state.pool().network == **network
            };
            let group: Vec<(&Arc<str>, &PoolState)> = known.filter(|(_, state)| is_meant(state)).collect();
            let name = home_in(&group, lease, address).filter(|name| **name != lease.pool)?;
            self.moved(network, address, lease, name)
        });
        let moves: Vec<Move> = moves.collect();
        let moved = moves.iter().map(|it| it.address).collect();
        for Move { network, address, lease } in moves {
            self.decide(Change::Lease { network, address, lease: Some(lease) }, journal);
        }
        moved
    }
}

/// The pool of a group to which the lease of an address belongs: see [`home_in_group`].
pub(super) fn home_in<'g>(
    group: &[(&'g Arc<str>, &'g PoolState)],
    lease: &Lease,
    address: IpAddr,
) -> Option<&'g Arc<str>> {
    let pools: Vec<&Pool> = group.iter().map(|(_, state)| state.pool()).collect();
    let home = home_in_group(&pools, &lease.pool, address)?;
    group.iter().find(|(name, _)| ***name == *home.name).map(|(name, _)| *name)
}
