//! A map by address.

use crate::network::Family;
use std::collections::BTreeMap;
use std::net::IpAddr;

/// What is known of addresses, by number, IPv4 first. A number is compared at once, an address piece by piece, and of keys
/// of four bytes far more fit into a line of the cache.
#[derive(Debug)]
pub(super) struct AddressMap<T> {
    ipv4: BTreeMap<u32, T>,
    ipv6: BTreeMap<u128, T>,
}

impl<T> AddressMap<T> {
    pub(super) fn get(&self, address: IpAddr) -> Option<&T> {
        match address {
            IpAddr::V4(address) => self.ipv4.get(&address.to_bits()),
            IpAddr::V6(address) => self.ipv6.get(&address.to_bits()),
        }
    }

    pub(super) fn get_mut(&mut self, address: IpAddr) -> Option<&mut T> {
        match address {
            IpAddr::V4(address) => self.ipv4.get_mut(&address.to_bits()),
            IpAddr::V6(address) => self.ipv6.get_mut(&address.to_bits()),
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

    pub(super) fn iter(&self) -> impl Iterator<Item = (IpAddr, &T)> {
        let ipv4 = self.ipv4.iter().map(|(number, value)| (Family::Ipv4.address(u128::from(*number)), value));
        ipv4.chain(self.ipv6.iter().map(|(number, value)| (Family::Ipv6.address(*number), value)))
    }

    pub(super) fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.iter().map(|(address, _)| address)
    }
}

impl<T> Default for AddressMap<T> {
    fn default() -> Self {
        Self { ipv4: BTreeMap::new(), ipv6: BTreeMap::new() }
    }
}
