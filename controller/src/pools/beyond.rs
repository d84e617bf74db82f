//! The addresses that a pool does not reserve, because they are beyond its bounds for namespaces that it does not serve. Guests report such
//! addresses, or Services and Clusters have them. The parts of the leader that read these objects note the addresses here, and the status
//! of each pool names the objects.

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

/// The addresses that are not reserved, by the part that reads them and by the name of the pool.
#[derive(Debug, Default)]
pub struct BeyondBounds(watch::Sender<Parts>);

type Parts = BTreeMap<&'static str, BTreeMap<String, Beyond>>;

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

    /// Adds the addresses of other guests.
    pub(crate) fn add(&mut self, other: Self) {
        self.addresses += other.addresses;
        self.guests += other.guests;
        self.first.extend(other.first);
        self.first.truncate(MOST_NAMED);
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
    /// Replaces the addresses that a part of the leader has noted. Returns the pools for which the part had noted none before.
    pub(crate) fn set(&self, part: &'static str, beyond: BTreeMap<String, Beyond>) -> Vec<String> {
        let is_new = |pool: &&String| !self.0.borrow().get(part).is_some_and(|known| known.contains_key(*pool));
        let new = beyond.keys().filter(is_new).cloned().collect();
        self.0.send_if_modified(|parts| {
            let known = parts.entry(part).or_default();
            let is_new = *known != beyond;
            *known = beyond;
            is_new
        });
        new
    }

    /// The addresses of each pool.
    pub(crate) fn get(&self) -> BTreeMap<String, Beyond> {
        let mut all: BTreeMap<String, Beyond> = BTreeMap::new();
        for (pool, beyond) in self.0.borrow().values().flatten() {
            all.entry(pool.clone()).or_default().add(beyond.clone());
        }
        all
    }

    /// Changes its value when the addresses of a pool change.
    pub(crate) fn changes(&self) -> watch::Receiver<Parts> {
        self.0.subscribe()
    }
}
