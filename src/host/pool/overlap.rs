//! Finds pools that offer the same addresses.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::{Pool, Space};
use crate::host::address::{AddressRange, AddressSet};
use crate::network::Family;

/// Two pools of one network that offer the same addresses.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct Overlap<'a> {
    /// The two pools, in the given order.
    pub pools: [&'a Pool; 2],
    /// Addresses that both pools offer. Ends of subnets inside a range are included, although no pool offers them.
    pub addresses: AddressSet,
}

/// The overlaps among a set of pools.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub struct Overlaps<'a> {
    /// At most [`Overlaps::KEPT`] overlaps, in the order of their pools.
    pub kept: Vec<Overlap<'a>>,
    /// Whether further overlaps, or further addresses of these overlaps, were left out. After the user has corrected
    /// the kept overlaps, another search finds what was left out.
    pub is_cut: bool,
}

/// A range of addresses that a pool offers.
struct Stretch<'a> {
    pool: usize,
    space: &'a Space,
    range: AddressRange,
}

// === impl Overlaps ===

impl Overlaps<'_> {
    /// Maximum number of overlaps that are kept. With many equal pools, every pair of pools would overlap.
    pub const KEPT: usize = 1024;
}

/// Finds the addresses that two pools of one network offer.
///
/// A pool does not offer its reserved addresses, so an address that one of the pools excludes is no overlap. The pools
/// may have any namespaces and clusters; only the network matters. The function sweeps once over the sorted addresses
/// and takes O(log n) for each range and each overlap.
#[must_use]
pub fn overlaps<'a>(pools: impl IntoIterator<Item = &'a Pool>) -> Overlaps<'a> {
    let pools: Vec<&Pool> = pools.into_iter().collect();
    let mut by_network: BTreeMap<(&str, Family), Vec<Stretch<'a>>> = BTreeMap::new();
    for (at, pool) in pools.iter().enumerate() {
        for space in pool.spaces() {
            let stretches = by_network.entry((&pool.network, space.family)).or_default();
            let offered = space.ranges.difference(&space.reserved);
            stretches.extend(offered.ranges().iter().map(|range| Stretch { pool: at, space, range: *range }));
        }
    }
    let mut found: BTreeMap<[usize; 2], Vec<AddressRange>> = BTreeMap::new();
    let mut is_cut = false;
    for mut stretches in by_network.into_values() {
        stretches.sort_by_key(|stretch| (stretch.range, stretch.pool));
        // Stretches that reach the current position of the sweep, by their last address.
        let mut open: BTreeSet<(u128, usize)> = BTreeSet::new();
        for (at, stretch) in stretches.iter().enumerate() {
            open = open.split_off(&(stretch.range.first(), 0));
            for (_, other) in &open {
                let Some(both) = stretch.offered_with(&stretches[*other]) else { continue };
                let mut parties = [stretch.pool, stretches[*other].pool];
                parties.sort_unstable();
                if found.len() < Overlaps::KEPT || found.contains_key(&parties) {
                    found.entry(parties).or_default().push(both);
                } else {
                    is_cut = true;
                    break;
                }
            }
            open.insert((stretch.range.last(), at));
        }
    }
    let overlap = |([a, b], ranges): ([usize; 2], Vec<AddressRange>)| Overlap {
        pools: [pools[a], pools[b]],
        addresses: ranges.into_iter().collect(),
    };
    Overlaps { kept: found.into_iter().map(overlap).collect(), is_cut }
}

// === impl Stretch ===

impl Stretch<'_> {
    /// The range from the first to the last address that both stretches offer. No pool offers an end of a subnet, so
    /// such ends are cut from both edges of the range, at most two from each. Ends of subnets inside the range stay,
    /// because they may be too many for memory.
    fn offered_with(&self, other: &Self) -> Option<AddressRange> {
        let both = self.range.intersection(&other.range)?;
        let is_end = |number: &u128| self.space.is_end_of_subnet(*number) || other.space.is_end_of_subnet(*number);
        let first = (both.first()..=both.last()).find(|number| !is_end(number))?;
        let last = (first..=both.last()).rev().find(|number| !is_end(number))?;
        let family = both.family();
        AddressRange::new(family.address(first), family.address(last))
    }
}

// === impl Overlap ===

/// Prints `pools blue/ns/a and ns/b offer the same addresses of network ns/vlan: 10.0.0.5-10.0.0.9`.
impl fmt::Display for Overlap<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b] = self.pools;
        let (a_title, b_title, addresses) = (a.title(), b.title(), &self.addresses);
        write!(f, "pools {a_title} and {b_title} offer the same addresses of network {}: {addresses}", a.network)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::pool;
    use super::super::{Settings, Subnet};
    use super::*;
    use proptest::prelude::*;

    fn messages(documents: &[&str]) -> Vec<String> {
        let pools: Vec<Pool> = documents.iter().map(|document| pool(document)).collect();
        overlaps(&pools).kept.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn an_overlap_names_both_pools_and_the_shared_addresses() {
        assert_eq!(
            messages(&[
                "{name: a, namespace: clusters, clusterName: blue, network: infra/vlan10, \
                  addresses: [10.0.0.10-10.0.0.50, 10.0.0.100], machineNetwork: [{cidr: 10.0.0.0/24}]}",
                "{name: b, namespace: other, clusterName: red, network: infra/vlan10, \
                  addresses: [10.0.0.40-10.0.0.120, 'fd00::/64'], machineNetwork: [{cidr: 10.0.0.0/24}]}",
                "{name: c, namespace: infra, network: vlan10, addresses: ['fd00::/96'], machineNetwork: [{cidr: 'fd00::/64'}]}",
            ]),
            [
                "pools blue/clusters/a and red/other/b offer the same addresses of network infra/vlan10: \
                 10.0.0.40-10.0.0.50, 10.0.0.100",
                "pools red/other/b and infra/c offer the same addresses of network infra/vlan10: \
                 fd00::1-fd00::ffff:ffff",
            ]
        );
    }

    #[test]
    fn pools_of_two_networks_may_have_the_same_addresses() {
        assert_eq!(
            messages(&[
                "{name: a, namespace: blue, network: vlan10, addresses: [10.0.0.0/24]}",
                "{name: a, namespace: red, network: vlan10, addresses: [10.0.0.0/24]}",
                "{name: b, namespace: red, network: default, addresses: [10.0.0.0/24]}",
                "{name: c, namespace: red, network: default/default, addresses: [10.0.0.0/24]}",
            ]),
            Vec::<String>::new()
        );
    }

    #[test]
    fn the_network_of_pods_is_the_same_in_every_namespace() {
        assert_eq!(
            messages(&[
                "{name: a, namespace: blue, network: default, addresses: [10.0.0.0/30]}",
                "{name: a, namespace: red, network: default, addresses: [10.0.0.0/24]}",
            ]),
            ["pools blue/a and red/a offer the same addresses of network default: 10.0.0.1-10.0.0.2"]
        );
    }

    #[test]
    fn an_address_that_one_pool_reserves_is_not_an_overlap() {
        assert_eq!(
            messages(&[
                "{name: a, network: 'n', addresses: [10.0.0.0/24], excludedAddresses: [10.0.0.128/25]}",
                "{name: b, network: 'n', addresses: [10.0.0.128/25, 10.0.0.1, 10.0.0.0], gateway: [10.0.0.1], \
                  machineNetwork: [{cidr: 10.0.0.0/24}], allocateReservedIPAddresses: true}",
                "{name: c, network: 'n', addresses: [10.0.0.1], gateway: [10.0.0.9], machineNetwork: [{cidr: 10.0.0.0/24}]}",
            ]),
            ["pools default/a and default/c offer the same addresses of network default/n: 10.0.0.1"]
        );
    }

    #[test]
    fn a_message_names_eight_ranges_of_an_overlap_and_the_value_has_all_of_them() {
        let every_second: Vec<String> = (1..=20).map(|at| format!("10.0.0.{}", at * 2)).collect();
        let a = format!(
            "{{name: a, network: 'n', addresses: [{}], machineNetwork: [{{cidr: 10.0.0.0/24}}]}}",
            every_second.join(", ")
        );
        let pools = [pool(&a), pool("{name: b, network: 'n', addresses: [10.0.0.0/24]}")];
        let found = overlaps(&pools);
        assert_eq!((found.kept.len(), found.kept[0].addresses.count(), found.is_cut), (1, 20, false));
        assert_eq!(
            found.kept[0].to_string(),
            "pools default/a and default/b offer the same addresses of network default/n: \
             10.0.0.2, 10.0.0.4, 10.0.0.6, 10.0.0.8, 10.0.0.10, 10.0.0.12, 10.0.0.14, 10.0.0.16 and 12 further ranges"
        );
    }

    #[test]
    fn many_overlaps_of_identical_pools_are_not_all_reported() {
        let alike = pool("{name: a, network: 'n', addresses: [10.0.0.0/24]}");
        let pools = vec![alike; 5_000];
        let found = overlaps(&pools);
        assert_eq!((found.kept.len(), found.is_cut), (Overlaps::KEPT, true));
    }

    proptest! {
        #[test]
        fn overlaps_agree_with_a_comparison_of_every_two_pools(
            pools in prop::collection::vec(
                (prop::collection::vec((0_u32..60, 0_u32..12), 1..5), prop::collection::vec((0_u32..60, 0_u32..6), 0..3)),
                0..6,
            ),
        ) {
            let range = |(first, more): &(u32, u32)| {
                let [first, last] = [*first, first + more].map(|at| Family::Ipv4.address((10 << 24) + u128::from(at)));
                AddressRange::new(first, last).unwrap()
            };
            let pools: Vec<Pool> = pools.iter().enumerate().map(|(at, (ranges, reserved))| {
                let [ranges, reserved]: [Vec<AddressRange>; 2] =
                    [ranges, reserved].map(|list| list.iter().map(range).collect());
                let subnet = Subnet::new(24, ranges, Settings::default());
                let space = Space::new(Family::Ipv4, vec![subnet], reserved, false);
                let interface = "eno101".parse().unwrap();
                Pool::from_spaces(format!("a/{at}"), "n".to_owned(), interface, Settings::default(), vec![space])
            }).collect();
            let mut expected = Vec::new();
            for (at, a) in pools.iter().enumerate() {
                for b in &pools[at + 1..] {
                    let offered = |pool: &Pool| {
                        let space = pool.space(Family::Ipv4).unwrap();
                        space.ranges.difference(&space.reserved)
                    };
                    let both = offered(a).intersection(&offered(b));
                    if !both.is_empty() {
                        expected.push(Overlap { pools: [a, b], addresses: both });
                    }
                }
            }
            prop_assert_eq!(overlaps(&pools), Overlaps { kept: expected, is_cut: false });
        }
    }
}
