//! The reserved addresses of a pool, and of a network. If one pool reserves an address, no pool of the network
//! allocates the address. The ends of subnets are reserved only in their own pool.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::{Pool, Reserved, Settings, TemplateFacts};
use crate::host::address::{AddressRange, AddressSet};
use crate::network::Family;

/// The reserved addresses of a network: gateways, name servers, pre-allocated addresses and exclusions of all its
/// pools, and the addresses that their templates name.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
#[doc(hidden)]
pub struct ReservedAddresses {
    ranges: Vec<ReservedRange>,
    set: AddressSet,
}

/// Addresses that a pool reserves on its network.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
#[doc(hidden)]
pub struct ReservedRange {
    /// The reserved addresses.
    pub range: AddressRange,
    /// Why the pool reserves these addresses.
    pub why: Reserved,
    /// Name of the pool, as `namespace/name`.
    pub pool: String,
}

/// Why an address is reserved, and which pool reserves the address.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ReservedAddress {
    /// Why the pool reserves the address.
    pub why: Reserved,
    /// Name of the pool that reserves the address.
    pub pool: String,
}

// === impl ReservedAddresses ===

impl ReservedAddresses {
    /// Collects the addresses that the pools of one network reserve.
    #[must_use]
    pub fn of<'a>(pools: impl IntoIterator<Item = &'a Pool>) -> Self {
        let mut ranges = Vec::new();
        for pool in pools {
            let reserved = pool.reserved().into_iter();
            ranges.extend(reserved.map(|(range, why)| ReservedRange { range, why, pool: pool.name.clone() }));
        }
        ranges.sort_unstable();
        ranges.dedup();
        let set = ranges.iter().map(|reserved| reserved.range).collect();
        Self { ranges, set }
    }

    /// The reserved ranges, by address, reason and pool. Ranges of different pools or reasons may overlap.
    #[must_use]
    pub fn ranges(&self) -> &[ReservedRange] {
        &self.ranges
    }

    /// Why an address of a pool is reserved. `None` for an address that every machine can get, or that is not in the
    /// pool. A reason of the pool itself takes precedence.
    #[must_use]
    pub fn why(&self, pool: &Pool, address: IpAddr) -> Option<ReservedAddress> {
        if !pool.contains(address) {
            return None;
        }
        let own = pool.why_reserved(address).map(|why| ReservedAddress { why, pool: pool.name.clone() });
        let named = self.ranges.iter().filter(|reserved| reserved.range.contains(address));
        let named = named.min_by_key(|reserved| (reserved.why, &reserved.pool));
        own.or_else(|| named.map(|named| ReservedAddress { why: named.why, pool: named.pool.clone() }))
    }

    /// Why a pool cannot allocate a pre-allocated address even to the machine of the address. `None` if only the
    /// pre-allocation and an exclusion of the same pool reserve the address.
    pub(crate) fn why_for_own_machine(&self, pool: &Pool, address: IpAddr) -> Option<ReservedAddress> {
        let is_own = |reserved: &ReservedRange| {
            reserved.pool == pool.name && matches!(reserved.why, Reserved::PreAllocated | Reserved::Excluded)
        };
        let space = pool.space(Family::of(address));
        let end = space.and_then(|space| space.end(Family::number(address)));
        let end = end.map(|why| ReservedAddress { why, pool: pool.name.clone() });
        let named = self.ranges.iter().filter(|reserved| reserved.range.contains(address) && !is_own(reserved));
        let named = named.min_by_key(|reserved| (reserved.why, &reserved.pool));
        end.or_else(|| named.map(|named| ReservedAddress { why: named.why, pool: named.pool.clone() }))
    }

    /// The pre-allocated addresses that a pool can allocate to their machines.
    pub(crate) fn pre_allocated_in(&self, pool: &Pool) -> BTreeSet<IpAddr> {
        let addresses = pool.pre_allocations.values().flatten().copied();
        addresses.filter(|address| self.why_for_own_machine(pool, *address).is_none()).collect()
    }

    /// Returns a copy of the pool in which these addresses replace the addresses that the pool itself reserves. The
    /// ends of subnets stay reserved.
    #[must_use]
    pub fn reserve_in(&self, pool: &Pool) -> Pool {
        let mut pool = pool.clone();
        for space in pool.spaces.values_mut() {
            space.reserved = self.set.intersection(&space.ranges);
        }
        pool
    }

    /// Number of addresses of one family in a pool that only other pools of the network reserve. Each address counts
    /// once, under the first reason and pool that apply. Numbers of zero are absent.
    #[must_use]
    pub fn of_others(&self, pool: &Pool, family: Family) -> Vec<(ReservedAddress, u128)> {
        let Some(mut space) = pool.space(family).cloned() else { return Vec::new() };
        let mut others: Vec<&ReservedRange> = self.ranges.iter().filter(|other| other.pool != pool.name).collect();
        others.sort_by_key(|other| (other.why, &other.pool));
        let mut counts = Vec::new();
        for of_one in others.chunk_by(|a, b| (a.why, &a.pool) == (b.why, &b.pool)) {
            let before = space.allocatable();
            let named = of_one.iter().map(|other| other.range);
            let reserved: AddressSet = space.reserved.ranges().iter().copied().chain(named).collect();
            space.reserved = reserved.intersection(&space.ranges);
            // The ends of subnets are reserved anyway, and already counted.
            if let (Some(first), count @ 1..) = (of_one.first(), before - space.allocatable()) {
                counts.push((ReservedAddress { why: first.why, pool: first.pool.clone() }, count));
            }
        }
        counts
    }
}

// === impl ReservedAddress ===

impl ReservedAddress {
    /// The reason for messages about a pool. Names the reserving pool if it is another pool.
    #[must_use]
    pub fn of(&self, pool: &str) -> String {
        if self.pool == pool { self.why.to_string() } else { format!("{} of pool {:?}", self.why, self.pool) }
    }
}

// === impl Pool ===

impl Pool {
    /// Why an address of the pool is reserved. `None` for an address that every machine can get, and for an address
    /// outside the pool.
    #[must_use]
    pub fn why_reserved(&self, address: IpAddr) -> Option<Reserved> {
        let space = self.space(Family::of(address))?;
        if !space.contains(address) {
            None
        } else if !space.reserved.contains(address) {
            space.end(Family::number(address))
        } else {
            Some(self.named().remove(&address).unwrap_or(Reserved::Excluded))
        }
    }

    /// The single addresses in the pool specification and its template, each with the first reason that applies. They
    /// are reserved on the whole network, so they may be outside the pool.
    #[must_use]
    pub fn named(&self) -> BTreeMap<IpAddr, Reserved> {
        let TemplateFacts { gateways, nameservers, addresses, .. } = &self.template;
        let kept = self.pre_allocations.values().flatten().map(|address| (*address, Reserved::PreAllocated));
        let addresses = addresses.iter().map(|address| (*address, Reserved::Template));
        let nameservers = self.all_settings().flat_map(|settings| &settings.nameservers).chain(nameservers);
        let nameservers = nameservers.map(|address| (*address, Reserved::Nameserver));
        let routers = self.all_settings().flat_map(Settings::routers).chain(gateways.iter().copied());
        let gateways = routers.map(|address| (address, Reserved::Gateway));
        // A later entry of the chain replaces an earlier entry for the same address, so the most important reason comes
        // last.
        kept.chain(addresses).chain(nameservers).chain(gateways).collect()
    }

    /// Returns a copy of this pool with the template of the other pool, and reserves the addresses that the template
    /// names.
    pub(crate) fn with_template_of(&self, other: &Self) -> Self {
        let mut pool = Self { template: other.template.clone(), ..self.clone() };
        let named: Vec<AddressRange> =
            pool.template.all().map(|address| AddressRange::subnet(address, u8::MAX)).collect();
        for space in pool.spaces.values_mut() {
            let reserved: AddressSet = space.reserved.ranges().iter().chain(&named).copied().collect();
            space.reserved = reserved.intersection(&space.ranges);
        }
        pool
    }

    /// The addresses that the specification of the pool and its template reserve, each with the reason. They are
    /// reserved on the whole network, even outside the addresses of the pool.
    #[must_use]
    pub fn reserved(&self) -> Vec<(AddressRange, Reserved)> {
        let single = |address: &IpAddr| AddressRange::subnet(*address, u8::MAX);
        let named = self.named().into_iter().map(|(address, why)| (single(&address), why));
        let excluded = self.excluded.ranges().iter().map(|range| (*range, Reserved::Excluded));
        named.chain(excluded).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::pool;
    use super::*;

    #[test]
    fn the_first_reason_that_applies_to_an_address_is_reported() {
        let pool = pool(
            "{name: workers, network: vlan10, addresses: [10.0.0.0/24], gateway: [10.0.0.1], nameservers: [10.0.0.1, 10.0.0.2], \
                       excludedAddresses: [10.0.0.2-10.0.0.4]}",
        );
        let why = |text: &str| pool.why_reserved(text.parse().unwrap());
        assert_eq!(why("10.0.0.0"), Some(Reserved::NetworkAddress));
        assert_eq!(why("10.0.0.1"), Some(Reserved::Gateway));
        assert_eq!(why("10.0.0.2"), Some(Reserved::Nameserver));
        assert_eq!(why("10.0.0.3"), Some(Reserved::Excluded));
        assert_eq!(why("10.0.0.5"), None);
        assert_eq!(why("10.0.0.255"), Some(Reserved::Broadcast));
        assert_eq!(why("10.0.1.0"), None);
        assert_eq!(why("fd00::"), None);
    }
}
