//! Finds the MAC addresses that are not allocated because a machine uses them, and the machines that share an address.

use std::collections::{BTreeMap, BTreeSet};

use glowplug::host::may_record::{Source, Standing, Verdict, may_record};
use pnet_base::MacAddr;

use crate::cluster::key::Key;
use crate::kinds::mac_pool::MacPool;
use crate::macs::machine::Guest;
use crate::macs::objects::Objects;

/// Maximum number of addresses of a pool that one running guest can block, if the pool does not serve the namespace of
/// the guest.
pub(super) const MOST_OF_GUEST: usize = 4;

/// The machines that use each address.
pub(super) type Used<'i> = BTreeMap<MacAddr, BTreeSet<&'i Key>>;

// === impl Objects ===

impl Objects {
    /// Returns the addresses that are not allocated because of their users, each with the machines whose VirtualMachine
    /// or instance has the address.
    pub(super) fn used(&self) -> Used<'_> {
        let pools: Vec<&MacPool> = self.pools.iter().filter_map(|(_, pool)| pool.pool.as_ref().ok()).collect();
        let of_vms = self.vms.iter().flat_map(|(key, vm)| vm.addresses().map(move |address| (address, key)));
        let of_guests =
            self.guests.iter().flat_map(|(key, guest)| guest.all.keys().map(move |address| (*address, key)));
        let counts = |(address, key): &(MacAddr, &Key)| pools.iter().any(|pool| may_lease(pool, key, *address));
        let mut used = Used::new();
        for (address, key) in of_vms.chain(of_guests).filter(counts) {
            used.entry(address).or_default().insert(key);
        }
        let others = |pool: &&MacPool| {
            let is_other =
                |(key, guest): &(&Key, &Guest)| guest.is_running && !pool.namespaces().contains(&key.namespace);
            let mut others: Vec<(&Key, &Guest)> = self.guests.iter().filter(is_other).collect();
            others.sort_by_key(|(key, guest)| (guest.created, *key));
            others
        };
        for pool in &pools {
            let mut left: BTreeMap<&str, u64> = BTreeMap::new();
            for (key, guest) in others(pool) {
                let left = left.entry(&key.namespace).or_insert_with(|| pool.share());
                let mut of_pool: Vec<(usize, MacAddr)> = guest.of(pool).collect();
                of_pool.sort_unstable();
                for (_, address) in
                    of_pool.into_iter().take(MOST_OF_GUEST.min(usize::try_from(*left).unwrap_or(usize::MAX)))
                {
                    used.entry(address).or_default().insert(key);
                    *left -= 1;
                }
            }
        }
        used
    }

    /// Returns the addresses that at least two running guests use, with the names of the machines.
    pub(super) fn collisions(&self) -> BTreeMap<MacAddr, BTreeSet<Key>> {
        let mut collisions: BTreeMap<MacAddr, BTreeSet<Key>> = BTreeMap::new();
        if self.shared.is_empty() {
            return collisions;
        }
        for (key, guest) in self.guests.iter() {
            for address in guest.unique.intersection(&self.shared) {
                collisions.entry(*address).or_default().insert(key.clone());
            }
        }
        collisions
    }
}

/// Whether a pool may record a lease of a MAC address that the machine `key` uses: the pool has the address and serves the
/// namespace.
pub(super) fn may_lease(pool: &MacPool, key: &Key, address: MacAddr) -> bool {
    let standing = match (pool.contains(address), pool.namespaces().contains(&key.namespace)) {
        (false, _) => Standing::NoPool,
        (true, false) => Standing::Foreign,
        (true, true) => Standing::Offered,
    };
    may_record(Source::MacAddress, standing) == Verdict::Lease
}
