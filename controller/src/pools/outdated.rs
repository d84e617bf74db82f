//! The machines whose guests run with earlier network data than their Secrets have.

use std::collections::{BTreeMap, BTreeSet};

use tokio::sync::watch;

use crate::cluster::key::Key;

/// The machines with earlier network data, each with the names of its pools. The passes of machines note them, and the status
/// of each pool counts them.
#[derive(Debug, Default)]
pub struct Outdated(watch::Sender<BTreeMap<Key, BTreeSet<String>>>);

// === impl Outdated ===

impl Outdated {
    /// Notes the pools whose current settings the guest of a machine has not read. Empty: it has read all.
    pub fn note(&self, vm: &Key, pools: BTreeSet<String>) {
        self.0.send_if_modified(|machines| match pools.is_empty() {
            true => machines.remove(vm).is_some(),
            false => machines.insert(vm.clone(), pools.clone()) != Some(pools),
        });
    }

    /// Returns the number of machines of each pool.
    #[must_use]
    pub fn counts(&self) -> BTreeMap<String, u32> {
        let mut counts = BTreeMap::new();
        for pool in self.0.borrow().values().flatten() {
            *counts.entry(pool.clone()).or_default() += 1;
        }
        counts
    }

    /// Returns a receiver that is notified of every change.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<BTreeMap<Key, BTreeSet<String>>> {
        self.0.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_pool_counts_its_machines() {
        let (outdated, pools) =
            (Outdated::default(), |names: &[&str]| names.iter().map(|it| (*it).to_owned()).collect());
        outdated.note(&("n", "a").into(), pools(&["n/p", "n/q"]));
        outdated.note(&("n", "b").into(), pools(&["n/p"]));
        assert_eq!(outdated.counts(), [("n/p".to_owned(), 2), ("n/q".to_owned(), 1)].into());
        let changes = outdated.changes();
        outdated.note(&("n", "b").into(), pools(&["n/p"]));
        assert!(!changes.has_changed().unwrap());
        outdated.note(&("n", "a").into(), pools(&[]));
        assert!(changes.has_changed().unwrap());
        assert_eq!(outdated.counts(), [("n/p".to_owned(), 1)].into());
    }
}
