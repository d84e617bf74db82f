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
    pub(super) pools: Vec<(&'i MacPool, Box<dyn Iterator<Item = MacAddr> + 'i>)>,
    pub(super) planned: BTreeSet<MacAddr>,
    /// Address of each released lease without a reuse delay, by namespace, name and interface of its last holder.
    released: BTreeMap<(&'i str, &'i str, &'i str), MacAddr>,
    /// Names of the pools that have too few addresses for an older machine of this plan.
    pub(super) exhausted: BTreeSet<&'i str>,
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
        let addresses = |pool: &'i MacPool| -> (_, Box<dyn Iterator<Item = MacAddr> + 'i>) {
            let is_free = move |address: &MacAddr| !used.contains_key(address) && is_released(address);
            (pool, Box::new(pool.addresses().filter(is_free)))
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
            exhausted: BTreeSet::new(),
        }
    }

    /// Takes a free address from the first of these pools that has a free address: the address that a machine of the
    /// same name last had on this interface, otherwise the lowest address. Also returns the name of the pool.
    pub(super) fn take(&mut self, pools: &[&str], key: &Key, interface: &str) -> Option<(&'i str, MacAddr)> {
        let Self { used, planned, released, exhausted, .. } = self;
        let may_serve = |name: &str| pools.contains(&name) && !exhausted.contains(name);
        let before = released.get(&(key.namespace.as_str(), key.name.as_str(), interface)).copied();
        let before = before.filter(|address| !used.contains_key(address) && !planned.contains(address));
        for (pool, addresses) in self.pools.iter_mut().filter(|(pool, _)| may_serve(pool.name())) {
            let before = before.filter(|address| pool.contains(*address));
            let found = before.or_else(|| addresses.find(|address| !planned.contains(address)));
            if let Some(address) = found {
                planned.insert(address);
                return Some((pool.name(), address));
            }
        }
        None
    }
}
