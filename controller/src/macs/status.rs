//! Decides the status of a MACPool: its counts and its conditions.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::jiff::Timestamp;
use pnet_base::MacAddr;
use serde_json::{Value, json};

use crate::cluster::conditions::{
    DAMAGED_LEASES, DELETING, DUPLICATE_RECORDS, EARLIER_SCHEMA, INVALID_SPEC, SCHEMA_VIOLATED, UNREADABLE_LEASES,
    condition, message_of, stalled, unreadable_leases,
};
use crate::cluster::key::Key;
use crate::kinds::mac_pool::{MacPool, MacPoolStatus, mac_lease_name};
use crate::macs::objects::{Leased, Objects, Pool};
use crate::macs::used::Used;
use crate::metrics::MacPoolCount;

// === impl Objects ===

impl Objects {
    /// Returns the counts of a pool, and the patch of its status. The patch is `None` if the stored status is correct.
    pub(super) fn report(
        &self,
        pool: &Pool,
        (used, collisions): (&Used<'_>, &BTreeMap<MacAddr, BTreeSet<Key>>),
        overlap: Option<&str>,
        waiting: u32,
        now: Timestamp,
    ) -> (MacPoolCount, Option<Value>) {
        let ready = match (&pool.pool, overlap) {
            _ if pool.is_deleted() => ("False", DELETING, "The pool is being deleted; machines keep their addresses"),
            (Err(errors), _) => ("False", INVALID_SPEC, errors.as_str()),
            (Ok(_), Some(overlap)) => ("False", "PoolOverlap", overlap),
            (Ok(_), None) => ("True", "Serving", "The pool allocates addresses"),
        };
        let of_pool = |address: &&MacAddr| pool.pool.as_ref().is_ok_and(|pool| pool.contains(**address));
        let leased = self.leases.iter().map(|(address, _)| address);
        let held = leased.filter(|address| !matches!(self.lease(**address, now), Leased::Free { .. }));
        let taken: BTreeSet<&MacAddr> = held.chain(used.keys()).filter(of_pool).collect();
        let mut shared: BTreeMap<&MacAddr, BTreeSet<&Key>> = BTreeMap::new();
        let of_used = used.iter().filter(|(_, keys)| keys.len() > 1);
        let of_used = of_used.flat_map(|(address, keys)| keys.iter().map(move |key| (address, *key)));
        // `used` lacks the addresses of guests of other namespaces beyond their limit, so the addresses that running
        // guests share are added.
        let running = collisions.iter().flat_map(|(address, keys)| keys.iter().map(move |key| (address, key)));
        for (address, key) in of_used.chain(running).filter(|(address, _)| of_pool(address)) {
            shared.entry(address).or_default().insert(key);
        }
        let shared =
            message_of(shared.iter().map(|(address, keys)| {
                format!("{address}: machines {} have this address", names(keys.iter().copied()))
            }));
        let total = pool.pool.as_ref().map_or(0, MacPool::total);
        let count = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        let used = u64::try_from(taken.len()).unwrap_or(u64::MAX);
        let free = total.saturating_sub(used);
        let exhausted = match &pool.pool {
            Err(_) => ("Unknown", "NotReady", "The addresses of the pool are not known"),
            Ok(_) if free == 0 => ("True", "NoFreeAddress", "No available MAC addresses in pool"),
            Ok(_) if waiting > 0 => ("True", "TooFewFreeAddresses", "A machine needs more addresses than are free"),
            Ok(_) => ("False", "FreeAddresses", "The pool has free addresses"),
        };
        let duplicates = match shared.as_deref() {
            None => ("False", "NoDuplicates", "Every address has at most one machine"),
            Some(lines) => ("True", "ConflictingRecords", lines),
        };
        let damaged = self.unreadable().filter(|(address, _)| of_pool(address));
        let damaged: Vec<_> = damaged.map(|(address, reason)| (*address, mac_lease_name(*address), reason)).collect();
        let damaged =
            unreadable_leases(damaged.iter().map(|(address, name, reason)| (*address, name.as_str(), *reason)));
        let damaged = damaged.as_deref().map(|lines| (UNREADABLE_LEASES, ("True", DAMAGED_LEASES, lines)));
        let conditions =
            [(DUPLICATE_RECORDS, duplicates), ("Exhausted", exhausted), ("Ready", ready), ("Stalled", stalled(ready))];
        let beyond_schema = pool.beyond_schema.as_deref();
        let violated = beyond_schema.map(|lines| (SCHEMA_VIOLATED, ("True", EARLIER_SCHEMA, lines)));
        let conditions = conditions.into_iter().chain(violated);
        let status = MacPoolStatus {
            observed_generation: pool.metadata.generation,
            total: count(total),
            free: count(free),
            used: count(used),
            waiting,
            conditions: conditions
                .into_iter()
                .chain(damaged)
                .map(|(type_, verdict)| {
                    condition(&pool.status.conditions, type_, verdict, pool.metadata.generation, now)
                })
                .collect(),
        };
        let patch = (status != pool.status).then(|| {
            json!({"metadata": {"resourceVersion": pool.metadata.resource_version}, "status": {
                "observedGeneration": status.observed_generation, "total": status.total, "free": status.free,
                "used": status.used, "waiting": status.waiting, "conditions": status.conditions,
            }})
        });
        (MacPoolCount { free, used, waiting }, patch)
    }
}

/// Returns the names of at most five machines for a message, and the number of the others.
fn names<'k>(keys: impl ExactSizeIterator<Item = &'k Key>) -> String {
    let all = keys.len();
    let named: Vec<String> = keys.take(5).map(ToString::to_string).collect();
    match all.saturating_sub(named.len()) {
        0 => named.join(" and "),
        further => format!("{} and {further} more", named.join(", ")),
    }
}
