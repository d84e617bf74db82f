//! A map by address.

use std::collections::HashMap;
use std::net::IpAddr;

use foldhash::fast::RandomState;

use crate::network::Family;

/// What is known of addresses. Claims and records come in no order, and to look one up in a tree of a hundred thousand is to
/// wait for memory at each of its levels; only lists need the order, and they sort.
#[derive(Debug)]
pub(super) struct AddressMap<T> {
    ipv4: HashMap<u32, T, RandomState>,
    ipv6: HashMap<u128, T, RandomState>,
}

impl<T> AddressMap<T> {
    pub(super) fn get(&self, address: IpAddr) -> Option<&T> {
        match address {
            IpAddr::V4(address) => self.ipv4.get(&address.to_bits()),
            IpAddr::V6(address) => self.ipv6.get(&address.to_bits()),
        }
    }

    pub(super) fn contains(&self, address: IpAddr) -> bool {
        self.get(address).is_some()
    }

    /// Puts a value there, or nothing, and returns what was there.
    pub(super) fn set(&mut self, address: IpAddr, value: Option<T>) -> Option<T> {
        match (address, value) {
            (IpAddr::V4(address), Some(value)) => self.ipv4.insert(address.to_bits(), value),
            (IpAddr::V4(address), None) => self.ipv4.remove(&address.to_bits()),
            (IpAddr::V6(address), Some(value)) => self.ipv6.insert(address.to_bits(), value),
            (IpAddr::V6(address), None) => self.ipv6.remove(&address.to_bits()),
        }
    }

    /// Makes room for so many more of each family.
    pub(super) fn reserve(&mut self, count: usize) {
        self.ipv4.reserve(count);
        self.ipv6.reserve(count);
    }

    /// All of them, in no order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (IpAddr, &T)> {
        let ipv4 = self.ipv4.iter().map(|(number, value)| (Family::Ipv4.address(u128::from(*number)), value));
        ipv4.chain(self.ipv6.iter().map(|(number, value)| (Family::Ipv6.address(*number), value)))
    }

    /// By number, IPv4 first.
    pub(super) fn sorted(&self) -> Vec<(IpAddr, &T)> {
        let mut sorted: Vec<(IpAddr, &T)> = self.iter().collect();
        sorted.sort_unstable_by_key(|(address, _)| *address);
        sorted
    }

    pub(super) fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.iter().map(|(address, _)| address)
    }
}

impl<T> Default for AddressMap<T> {
    fn default() -> Self {
        Self { ipv4: HashMap::default(), ipv6: HashMap::default() }
    }
}
