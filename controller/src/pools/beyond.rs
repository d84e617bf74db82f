//! Collects the reported addresses that a pool does not reserve, because they are beyond the bounds of the pool. Guests
//! report such addresses, or Services and Clusters have them. The parts of the leader that read these objects note the
//! addresses here. The status of each pool then names the objects.

use std::collections::BTreeMap;

use tokio::sync::watch;

use crate::cluster::key::Key;
use crate::kinds::pool::{MOST_NAMED, ReportsBeyond};

/// A summary of the reported addresses of a pool that are not reserved.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Beyond {
    /// Number of addresses.
    pub addresses: usize,
    /// Number of guests, Services and Clusters with these addresses.
    pub guests: usize,
    /// Names of the first of these objects.
    pub first: Vec<Key>,
}

/// The summaries, by the part of the leader that reads the objects and by the name of the pool.
#[derive(Debug, Default)]
pub struct BeyondBounds(watch::Sender<Parts>);

type Parts = BTreeMap<&'static str, BTreeMap<String, Beyond>>;

// === impl Beyond ===

impl Beyond {
    /// Creates the summary for these guests or other objects, each given with the number of its addresses.
    pub(crate) fn of(guests: &BTreeMap<Key, usize>) -> Self {
        Self {
            addresses: guests.values().sum(),
            guests: guests.len(),
            first: guests.keys().take(MOST_NAMED).cloned().collect(),
        }
    }

    /// Adds the summary of other objects.
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
    /// Replaces the summaries that a part of the leader has noted. Returns the pools for which this part had noted no
    /// summary before.
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

    /// Returns the summary of each pool over all parts of the leader.
    pub(crate) fn get(&self) -> BTreeMap<String, Beyond> {
        let mut all: BTreeMap<String, Beyond> = BTreeMap::new();
        for (pool, beyond) in self.0.borrow().values().flatten() {
            all.entry(pool.clone()).or_default().add(beyond.clone());
        }
        all
    }

    /// Returns a receiver that is notified when a summary changes.
    pub(crate) fn changes(&self) -> watch::Receiver<Parts> {
        self.0.subscribe()
    }
}
