//! The addresses that guests report, and that no pool reserves for them: they are beyond the bounds of guests in namespaces
//! that the pool does not serve. The part that reads the reports notes them here, and the status of each pool names them.

use std::collections::BTreeMap;

use tokio::sync::watch;

use crate::cluster::key::Key;
use crate::kinds::pool::{MOST_NAMED, ReportsBeyond};

/// Reported addresses of a pool that are not reserved.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Beyond {
    /// Number of addresses.
    pub addresses: usize,
    /// Number of guests that report them.
    pub guests: usize,
    /// The first guests by name.
    pub first: Vec<Key>,
}

/// The reported addresses that are not reserved, by the name of the pool.
#[derive(Debug, Default)]
pub struct BeyondBounds(watch::Sender<BTreeMap<String, Beyond>>);

// === impl Beyond ===

impl Beyond {
    /// The summary of these guests, each with the number of its addresses.
    pub(crate) fn of(guests: &BTreeMap<Key, usize>) -> Self {
        Self {
            addresses: guests.values().sum(),
            guests: guests.len(),
            first: guests.keys().take(MOST_NAMED).cloned().collect(),
        }
    }
}

impl From<&Beyond> for ReportsBeyond {
    fn from(beyond: &Beyond) -> Self {
        let count = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        Self {
            addresses: count(beyond.addresses),
            guests: count(beyond.guests),
            first: beyond.first.iter().map(ToString::to_string).collect(),
        }
    }
}

// === impl BeyondBounds ===

impl BeyondBounds {
    /// Replaces the addresses. Returns the pools that had none before.
    pub(crate) fn set(&self, beyond: BTreeMap<String, Beyond>) -> Vec<String> {
        let new = beyond.keys().filter(|pool| !self.0.borrow().contains_key(*pool)).cloned().collect();
        self.0.send_if_modified(|known| {
            let is_new = *known != beyond;
            *known = beyond;
            is_new
        });
        new
    }

    /// The addresses of each pool.
    pub(crate) fn get(&self) -> BTreeMap<String, Beyond> {
        self.0.borrow().clone()
    }

    /// Changes its value when the addresses of a pool change.
    pub(crate) fn changes(&self) -> watch::Receiver<BTreeMap<String, Beyond>> {
        self.0.subscribe()
    }
}
