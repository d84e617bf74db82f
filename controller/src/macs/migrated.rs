//! Keeps the MAC addresses of guests that migrated to another cluster: such a guest runs there with the same addresses.
//!
//! The lease of the address gets the time of the migration. After its release, no machine gets the address before the
//! end of a reuse delay, which is as long as that of an IP address. As for IP addresses, one namespace keeps at most its
//! share of a pool that also serves other namespaces. Otherwise one namespace could use up the pool of all others.

use std::collections::{BTreeMap, BTreeSet};

use glowplug::host::claim::Lease;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use pnet_base::MacAddr;

use crate::cluster::key::Key;
use crate::kinds::mac_pool::MacPool;
use crate::kinds::pool::LeaseSpec;
use crate::macs::objects::{Leased, Objects};
use crate::macs::plan::Action;

// === impl Objects ===

impl Objects {
    /// Returns the actions that write the time of a migration into leases, by the address. Also returns the addresses of
    /// migrated guests beyond the share of their namespace, by the machine.
    pub(super) fn migrations(&self, now: Timestamp) -> (BTreeMap<MacAddr, Action>, BTreeMap<Key, BTreeSet<MacAddr>>) {
        let (mut actions, mut not_held) = (BTreeMap::new(), BTreeMap::<Key, BTreeSet<MacAddr>>::new());
        // Number of the addresses that a pool keeps for the migrated guests of a namespace.
        let mut kept: BTreeMap<(&str, &str), u64> = BTreeMap::new();
        for (address, lease) in self.leases.iter() {
            let Ok(lease) = lease else { continue };
            let namespace = lease.holder.namespace.as_str();
            if lease.migrated.is_some() && !matches!(self.lease(*address, now), Leased::Free { .. }) {
                self.shared(*address, namespace)
                    .for_each(|pool| *kept.entry((pool.name(), namespace)).or_default() += 1);
            }
        }
        for (key, address) in &self.migrated {
            let (Some(lease), Some(version)) = (self.unnoted(key, *address), self.leases.version(address)) else {
                continue;
            };
            let namespace = key.namespace.as_str();
            let kept_of = |pool: &MacPool| kept.get(&(pool.name(), namespace)).copied().unwrap_or_default();
            if self.shared(*address, namespace).any(|pool| kept_of(pool) >= pool.share()) {
                not_held.entry(key.clone()).or_default().insert(*address);
                continue;
            }
            self.shared(*address, namespace).for_each(|pool| *kept.entry((pool.name(), namespace)).or_default() += 1);
            let lease = Box::new(LeaseSpec { migrated: Some(MicroTime(now)), ..lease.clone() });
            actions.insert(*address, Action::Hold { address: *address, version, lease });
        }
        (actions, not_held)
    }

    /// The pools that have an address and serve a namespace other than this one.
    fn shared(&self, address: MacAddr, namespace: &str) -> impl Iterator<Item = &MacPool> {
        let valid = self.pools.iter().filter_map(|(_, pool)| pool.pool.as_ref().ok());
        valid.filter(move |pool| pool.contains(address) && pool.namespaces().iter().any(|other| other != namespace))
    }

    /// Returns the lease of an address that a machine holds, if the lease has no time of a migration.
    fn unnoted(&self, key: &Key, address: MacAddr) -> Option<&LeaseSpec> {
        let lease = self.leases.get(&address)?.as_ref().ok()?;
        let is_own = lease.holder.namespace == key.namespace && lease.holder.name == key.name;
        (is_own && lease.released.is_none() && lease.migrated.is_none()).then_some(lease)
    }

    /// Forgets migrations that no decision needs any more: the instance is gone, and either its machine no longer holds
    /// the address or the lease has the time of the migration.
    pub(super) fn forget_migrations(&mut self) {
        let mut migrated = std::mem::take(&mut self.migrated);
        migrated.retain(|(key, address)| {
            let is_there = self.guests.get(key).is_some_and(|guest| guest.has_left);
            is_there || self.unnoted(key, *address).is_some()
        });
        self.migrated = migrated;
    }
}

/// Releases a lease at this time. If the guest migrated to another cluster, the address gets a reuse delay.
pub(super) fn release(lease: &mut LeaseSpec, now: Timestamp) {
    let end = || now.saturating_add(Lease::REUSE_DELAY_OF_MIGRATED).unwrap_or(Timestamp::MAX);
    lease.reuse_after = lease.migrated.is_some().then(|| MicroTime(end()));
    lease.released = Some(MicroTime(now));
}

/// Returns the note of the event about an address that stays held for a guest after its migration.
pub(super) fn held(address: MacAddr) -> String {
    format!(
        "The guest migrated to another cluster with {address}: no machine gets this address until 30 days after the deletion of the \
         VirtualMachine, or until its StaticIPLease is deleted after that"
    )
}

/// Returns the note of the event about addresses that are not held for a guest after its migration.
pub(super) fn not_held(addresses: &BTreeSet<MacAddr>) -> String {
    let addresses: Vec<String> = addresses.iter().map(ToString::to_string).collect();
    format!(
        "The guest migrated to another cluster with {}, and its namespace has a quarter of the pool for such guests already: after the \
         deletion of the VirtualMachine, other machines may get these addresses; change the ranges of the pool before the deletion",
        addresses.join(", ")
    )
}
