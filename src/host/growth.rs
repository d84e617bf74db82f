//! New addresses of a network, which are closed until their records are adopted.
//!
//! A machine may already use an address that becomes allocatable, for example because its pool was deleted and created
//! again, or because the address was excluded for a while. So a new address is allocated only after the caller has
//! adopted the records and the reports of the address.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use super::address::AddressSet;
use super::pool::Pool;

/// The closed addresses of all networks.
#[derive(Clone, Debug)]
pub(crate) struct Growth {
    last: u64,
    networks: BTreeMap<Arc<str>, Grown>,
    // The addresses that each pool could allocate at the last call of `gained`, by network and name of the pool.
    offers: BTreeMap<Arc<str>, Offers>,
}

/// The pools of a network, by name, with the addresses that they can allocate.
pub(crate) type Offers = BTreeMap<Arc<str>, (Arc<Pool>, AddressSet)>;

/// The addresses of one network that its pools can allocate.
#[derive(Clone, Debug, Default)]
struct Grown {
    open: AddressSet,
    // Closed addresses, by the number of the growth that closed them.
    closed: BTreeMap<u64, AddressSet>,
}

// === impl Growth ===

/// The number of the last growth is 1, so that a start without pools has a number, too.
impl Default for Growth {
    fn default() -> Self {
        Self { last: 1, networks: BTreeMap::new(), offers: BTreeMap::new() }
    }
}

impl Growth {
    /// Number of the last growth.
    pub(crate) fn last(&self) -> u64 {
        self.last
    }

    /// The networks that have open or closed addresses.
    pub(crate) fn networks(&self) -> BTreeSet<Arc<str>> {
        self.networks.keys().cloned().collect()
    }

    /// Sets the addresses that each pool of a network can allocate. Returns the addresses that a pool gained since the
    /// last call.
    ///
    /// An address that moves from one pool to another is gained: the new pool may serve other namespaces, whose records
    /// now count. If a pool serves further namespaces, it gains all of its addresses again.
    pub(crate) fn gained(&mut self, network: &Arc<str>, offers: Offers) -> AddressSet {
        let known = self.offers.remove(network).unwrap_or_default();
        let gained = offers.iter().map(|(name, (pool, addresses))| {
            let before = known.get(name).filter(|(before, _)| pool.serves_only_what(before));
            before.map_or_else(|| addresses.clone(), |(_, before)| addresses.difference(before))
        });
        let gained = gained.flat_map(|addresses| addresses.ranges().to_vec()).collect();
        if !offers.is_empty() {
            self.offers.insert(Arc::clone(network), offers);
        }
        gained
    }

    /// Moves the known addresses of a renamed pool to its new name.
    pub(crate) fn rename(&mut self, network: &str, old: &str, new: &str) {
        if let Some(offers) = self.offers.get_mut(network)
            && let Some(offer) = offers.remove(old)
        {
            offers.insert(Arc::from(new), offer);
        }
    }

    /// Sets the addresses that the pools of a network can allocate. New addresses are closed. The addresses of `again`
    /// are closed again, because records of other namespaces now count for these addresses.
    pub(crate) fn set(&mut self, network: &Arc<str>, allocatable: &AddressSet, again: &AddressSet) {
        let Grown { open, closed } = self.networks.entry(Arc::clone(network)).or_default();
        let kept = allocatable.difference(again);
        *open = open.intersection(&kept);
        for addresses in closed.values_mut() {
            *addresses = addresses.intersection(&kept);
        }
        closed.retain(|_, addresses| !addresses.is_empty());
        let new = closed.values().fold(allocatable.difference(open), |new, known| new.difference(known));
        if !new.is_empty() {
            self.last += 1;
            closed.insert(self.last, new);
        }
        if self.networks.get(network).is_some_and(|grown| grown.open.is_empty() && grown.closed.is_empty()) {
            self.networks.remove(network);
        }
    }

    /// Opens the addresses of all growths whose number is at most `growth`. Returns the networks of these addresses.
    pub(crate) fn open(&mut self, growth: u64) -> BTreeSet<Arc<str>> {
        let mut opened = BTreeSet::new();
        for (network, Grown { open, closed }) in &mut self.networks {
            let later = closed.split_off(&growth.saturating_add(1));
            for addresses in std::mem::replace(closed, later).into_values() {
                *open = open.ranges().iter().chain(addresses.ranges()).copied().collect();
                opened.insert(Arc::clone(network));
            }
        }
        opened
    }

    /// The closed addresses of a network.
    pub(crate) fn closed(&self, network: &str) -> AddressSet {
        let closed = self.networks.get(network).into_iter().flat_map(|grown| grown.closed.values());
        closed.flat_map(AddressSet::ranges).copied().collect()
    }

    /// Whether an address is closed.
    pub(crate) fn is_closed(&self, network: &str, address: IpAddr) -> bool {
        let grown = self.networks.get(network);
        grown.is_some_and(|grown| grown.closed.values().any(|addresses| addresses.contains(address)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::address::Entry;

    fn set(texts: &[&str]) -> AddressSet {
        texts.iter().map(|text| text.parse::<Entry>().unwrap().range()).collect()
    }

    fn closed(growth: &Growth) -> String {
        let closed = growth.closed("n");
        let texts: Vec<String> = closed.ranges().iter().map(ToString::to_string).collect();
        format!("{}: {}", growth.last(), texts.join(", "))
    }

    #[test]
    fn new_addresses_are_closed_until_their_growth_is_opened() {
        let (network, none) = (Arc::from("n"), AddressSet::default());
        let mut growth = Growth::default();
        assert_eq!(closed(&growth), "1: ");
        growth.set(&network, &set(&["10.0.0.0/30"]), &none);
        assert_eq!(closed(&growth), "2: 10.0.0.0-10.0.0.3");
        assert_eq!(growth.open(1), BTreeSet::new());
        assert_eq!(growth.open(2), [Arc::clone(&network)].into());
        assert_eq!(closed(&growth), "2: ");
        // The pool grows twice. Each growth is opened on its own.
        growth.set(&network, &set(&["10.0.0.0/29"]), &none);
        growth.set(&network, &set(&["10.0.0.0/28"]), &none);
        assert_eq!(closed(&growth), "4: 10.0.0.4-10.0.0.15");
        growth.open(3);
        assert_eq!(closed(&growth), "4: 10.0.0.8-10.0.0.15");
        growth.open(4);
        // Addresses that the pool loses and later gains again are closed.
        growth.set(&network, &set(&["10.0.0.0/29"]), &none);
        assert_eq!(closed(&growth), "4: ");
        growth.set(&network, &set(&["10.0.0.0/28"]), &none);
        assert_eq!(closed(&growth), "5: 10.0.0.8-10.0.0.15");
    }

    #[test]
    fn addresses_for_further_namespaces_are_closed_until_the_newer_growth_is_opened() {
        let (network, none) = (Arc::from("n"), AddressSet::default());
        let mut growth = Growth::default();
        growth.set(&network, &set(&["10.0.0.0/30"]), &none);
        growth.open(2);
        growth.set(&network, &set(&["10.0.0.0/29"]), &none);
        growth.set(&network, &set(&["10.0.0.0/29"]), &set(&["10.0.0.2-10.0.0.5"]));
        assert_eq!(closed(&growth), "4: 10.0.0.2-10.0.0.7");
        growth.open(3);
        assert_eq!(closed(&growth), "4: 10.0.0.2-10.0.0.5");
    }
}
