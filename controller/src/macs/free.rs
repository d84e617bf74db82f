//! Finds free MAC addresses while one plan is made.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::jiff::Timestamp;
use pnet_base::MacAddr;

use crate::cluster::key::Key;
use crate::kinds::mac_pool::MacPool;
use crate::macs::objects::{Leased, Objects};
use crate::macs::used::Used;

/// The free addresses of the pools while one plan is made.
pub(super) struct Free<'i> {
    pub(super) used: &'i Used<'i>,
    pub(super) pools: Vec<FreeOfPool<'i>>,
    pub(super) planned: BTreeSet<MacAddr>,
    /// The free addresses of released leases, by namespace, name and interface of the last holder.
    released: BTreeMap<(&'i str, &'i str, &'i str), MacAddr>,
    /// Namespace of each machine that waits in this plan, and name of the pool for which the machine waits. The younger
    /// machines of this namespace get no address of the pool.
    pub(super) waiting: BTreeSet<(&'i str, &'i str)>,
}

/// The free addresses of one pool, lowest first.
pub(super) struct FreeOfPool<'i> {
    pub(super) pool: &'i MacPool,
    /// Addresses that were taken for a machine that then did not get all of its addresses.
    returned: BTreeSet<MacAddr>,
    /// The addresses that were not taken yet. They are higher than the addresses in `returned`, except for addresses
    /// that a machine took because it had them before.
    rest: Box<dyn Iterator<Item = MacAddr> + 'i>,
}

// === impl Free ===

impl<'i> Free<'i> {
    pub(super) fn new(
        objects: &'i Objects,
        used: &'i Used<'i>,
        pools: impl Iterator<Item = &'i MacPool>,
        now: Timestamp,
    ) -> Self {
        let is_released = move |address: &MacAddr| matches!(objects.lease(*address, now), Leased::Free { .. });
        let addresses = |pool: &'i MacPool| {
            let is_free = move |address: &MacAddr| !used.contains_key(address) && is_released(address);
            FreeOfPool { pool, returned: BTreeSet::new(), rest: Box::new(pool.addresses().filter(is_free)) }
        };
        let released = objects.leases.iter().filter_map(|(address, lease)| {
            let holder = &lease.as_ref().ok().filter(|_| is_released(address))?.holder;
            Some(((holder.namespace.as_str(), holder.name.as_str(), holder.interface.as_str()), *address))
        });
        Self {
            used,
            pools: pools.map(addresses).collect(),
            planned: BTreeSet::new(),
            released: released.collect(),
            waiting: BTreeSet::new(),
        }
    }

    /// Takes a free address from the first of these pools that has a free address for the machine: the address that a
    /// machine of the same name last had on this interface, otherwise the lowest address. Also returns the name of the
    /// pool.
    pub(super) fn take(&mut self, pools: &[&str], key: &Key, interface: &str) -> Option<(&'i str, MacAddr)> {
        let Self { used, planned, released, waiting, .. } = self;
        let may_serve = |name: &str| pools.contains(&name) && !waiting.contains(&(key.namespace.as_str(), name));
        let before = released.get(&(key.namespace.as_str(), key.name.as_str(), interface)).copied();
        let before = before.filter(|address| !used.contains_key(address) && !planned.contains(address));
        for FreeOfPool { pool, returned, rest } in self.pools.iter_mut().filter(|it| may_serve(it.pool.name())) {
            let before = before.filter(|address| pool.contains(*address));
            let mut lowest = std::iter::from_fn(|| returned.pop_first().or_else(|| rest.next()));
            let found = before.or_else(|| lowest.find(|address| !planned.contains(address)));
            if let Some(address) = found {
                planned.insert(address);
                return Some((pool.name(), address));
            }
        }
        None
    }

    /// Frees addresses that were taken for a machine.
    pub(super) fn free_again(&mut self, addresses: impl IntoIterator<Item = MacAddr>) {
        for address in addresses {
            self.planned.remove(&address);
            if let Some(of_pool) = self.pools.iter_mut().find(|it| it.pool.contains(address)) {
                of_pool.returned.insert(address);
            }
        }
    }
}
