//! The reuse delay: how long after a release no other machine gets the address.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use super::state::Allocator;
use crate::host::change::{Change, Journal, storable};
use crate::host::claim::{Lease, Machine};

// === impl Lease ===

impl Lease {
    /// Shortest reuse delay of an address if its guest migrated to another cluster with the address. Leases of MAC
    /// addresses have this delay, too.
    pub const REUSE_DELAY_OF_MIGRATED: Duration = Duration::from_secs(30 * 24 * 60 * 60);
}

// === impl Allocator ===

impl Allocator {
    /// Returns the end of the reuse delay of an address that is released now. `None` if the delay is 0: if the function
    /// returned the current time, a process with a slower clock would still consider the address delayed.
    ///
    /// The delay is the longest delay of the pools that have the address and of the pool of its lease. If the lease has
    /// moved to another pool, the delay also protects the next machine of the earlier pool. If the guest has migrated,
    /// the delay is at least [`Lease::REUSE_DELAY_OF_MIGRATED`].
    pub(super) fn reuse_after(&self, network: &str, address: IpAddr, lease: &Lease) -> Option<Timestamp> {
        let pools = self.pools_with(network, address).chain(self.pools.get(&lease.pool));
        let delay = pools.map(|state| state.pool().reuse_delay).max().unwrap_or_default();
        let delay = if lease.migrated.is_some() { delay.max(Lease::REUSE_DELAY_OF_MIGRATED) } else { delay };
        let reuse_after = storable(self.now.saturating_add(delay).unwrap_or(Timestamp::MAX));
        Some(reuse_after).filter(|reuse_after| *reuse_after > self.now)
    }

    /// Records that the guest of a machine migrated to another cluster with the addresses of the machine. Returns the
    /// addresses for which the migration is not recorded, because the namespace of the machine already keeps too many
    /// addresses for such guests, or because the ledger refuses to write their leases.
    pub(crate) fn note_migrated(
        &mut self,
        machine: &Machine,
        now: Timestamp,
        journal: &mut Journal,
    ) -> BTreeSet<IpAddr> {
        self.advance(now);
        let held = self.held_by(machine).into_iter().filter(|(.., lease)| lease.migrated.is_none());
        let held = held.map(|(network, address, lease)| (Arc::clone(network), address, lease.clone()));
        let mut beyond = BTreeSet::new();
        for (network, address, lease) in held.collect::<Vec<_>>() {
            if !self.is_refused(&network, address) && self.may_keep_for_migrated(&network, address, &lease) {
                let lease = Some(Lease { migrated: Some(self.now), ..lease });
                self.decide(Change::Lease { network, address, lease }, journal);
            } else {
                beyond.insert(address);
            }
        }
        beyond
    }
}
