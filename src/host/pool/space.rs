//! The addresses of one family of a pool, and their subnets.

use std::fmt;
use std::net::IpAddr;

use ipnetwork::IpNetwork;

use super::reason::Reserved;
use super::settings::Settings;
use crate::host::address::{AddressRange, AddressSet, is_link_local};
use crate::network::Family;

/// The addresses of one family of a pool.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Space {
    pub(super) family: Family,
    // In the order in which their addresses are allocated. Never empty.
    pub(super) subnets: Vec<Subnet>,
    // The addresses of all subnets.
    pub(super) ranges: AddressSet,
    pub(super) reserved: AddressSet,
    pub(super) reserves_ends: bool,
}

/// The addresses of one family in a subnet of a pool. No address is in two subnets.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Subnet {
    pub(super) prefix: u8,
    pub(super) ranges: AddressSet,
    pub(super) settings: Settings,
}

// === impl Space ===

impl Space {
    /// A space with the addresses of these subnets. The addresses in `reserved` are not allocated, except a
    /// pre-allocated address to its machine. Ranges of the other family in `reserved` are ignored.
    pub(crate) fn new(
        family: Family,
        subnets: Vec<Subnet>,
        mut reserved: Vec<AddressRange>,
        reserves_ends: bool,
    ) -> Self {
        reserved.retain(|range| range.family() == family);
        let ranges: AddressSet = subnets.iter().flat_map(|subnet| subnet.ranges.ranges()).copied().collect();
        let reserved = AddressSet::from_iter(reserved).intersection(&ranges);
        Self { family, subnets, ranges, reserved, reserves_ends }
    }

    /// The family of the addresses.
    #[must_use]
    pub fn family(&self) -> Family {
        self.family
    }

    /// The subnets, in the order in which their addresses are allocated. Never empty.
    #[must_use]
    pub fn subnets(&self) -> &[Subnet] {
        &self.subnets
    }

    /// Returns the subnet that has an address, or else a subnet whose network contains the address. If the space has
    /// only one subnet, returns this subnet.
    pub(super) fn subnet_of(&self, address: IpAddr) -> Option<&Subnet> {
        match self.subnets.as_slice() {
            [only] => Some(only),
            all => Subnet::position(all, address).map(|at| &all[at]),
        }
    }

    /// Returns the subnet whose settings apply to an address: the subnet that has the address; otherwise a subnet whose
    /// network contains the address; otherwise a subnet with routers, all of which the address can reach. If the space
    /// has only one subnet, this subnet needs no router, and its routers outside of its network do not count.
    pub(super) fn subnet_for(&self, address: &IpNetwork) -> Option<&Subnet> {
        let is_single = self.subnets.len() == 1;
        let reaches = |subnet: &&Subnet| {
            let routers = subnet.settings.routers().filter(|router| Family::of(*router) == self.family);
            let routers: Vec<IpAddr> = routers.collect();
            let is_on_link = |router| is_single && !subnet.has_in_network(router);
            let is_reached = |router| address.contains(router) || is_link_local(router) || is_on_link(router);
            (is_single || !routers.is_empty()) && routers.into_iter().all(is_reached)
        };
        let at = Subnet::position(&self.subnets, address.ip());
        at.and_then(|at| self.subnets.get(at)).or_else(|| self.subnets.iter().find(reaches))
    }

    /// The subnet that contains the address with this number. The only subnet of a space is the subnet of every
    /// address.
    fn subnet_with(&self, number: u128) -> Option<&Subnet> {
        self.subnets.get(self.index_of(number)?)
    }

    /// The index of the subnet that contains the address with this number. The only subnet of a space is the subnet of
    /// every address.
    pub(crate) fn index_of(&self, number: u128) -> Option<usize> {
        match self.subnets.len() {
            1 => Some(0),
            _ => self.subnets.iter().position(|subnet| subnet.ranges.has(self.family, number)),
        }
    }

    /// All addresses as ranges: sorted, disjoint, and never adjacent.
    #[must_use]
    pub fn ranges(&self) -> &[AddressRange] {
        self.ranges.ranges()
    }

    /// The reserved addresses without the ends of subnets, as ranges: sorted, disjoint, within [`Space::ranges`].
    #[must_use]
    pub fn reserved(&self) -> &[AddressRange] {
        self.reserved.ranges()
    }

    /// Whether a number is a reserved end of a subnet: the first or last address of an IPv4 subnet, or the first
    /// address of an IPv6 subnet, if the subnet is large enough. The ends may be too many for a list in memory.
    #[must_use]
    pub fn is_end_of_subnet(&self, number: u128) -> bool {
        self.end(number).is_some()
    }

    /// The addresses of a set that are in the space.
    pub(crate) fn common(&self, set: &AddressSet) -> AddressSet {
        set.intersection(&self.ranges)
    }

    /// Whether an address is in the space, allocatable or reserved.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        self.ranges.contains(address)
    }

    /// Whether an address can be allocated.
    #[must_use]
    pub fn offers(&self, address: IpAddr) -> bool {
        Family::of(address) == self.family && self.offers_number(Family::number(address))
    }

    /// Whether the address with this number, in the family of the space, can be allocated.
    #[must_use]
    pub fn offers_number(&self, number: u128) -> bool {
        let is_open = self.ranges.has(self.family, number) && !self.reserved.has(self.family, number);
        is_open && !self.is_end_of_subnet(number)
    }

    /// Number of all addresses, including reserved addresses.
    #[must_use]
    pub fn total(&self) -> u128 {
        self.ranges.count()
    }

    /// Number of addresses that can be allocated.
    #[must_use]
    pub fn allocatable(&self) -> u128 {
        let [first, last] = self.count_ends();
        self.total().saturating_sub(self.reserved.count()).saturating_sub(first + last)
    }

    /// Returns the reason if the address with this number is a reserved end of its subnet. `None` for any other
    /// address.
    pub(super) fn end(&self, number: u128) -> Option<Reserved> {
        let subnet = self.subnet_with(number)?;
        Reserved::end(self.family, subnet.prefix, number).filter(|_| self.reserves_ends)
    }

    /// Counts the first addresses and the last addresses of subnets that are reserved for no other reason.
    pub(super) fn count_ends(&self) -> [u128; 2] {
        self.subnets.iter().fold([0, 0], |[firsts, lasts], subnet| {
            let [first, last] = self.count_ends_of(subnet);
            [firsts + first, lasts + last]
        })
    }

    fn count_ends_of(&self, subnet: &Subnet) -> [u128; 2] {
        if !self.reserves_ends || self.family.bits() - subnet.prefix < 2 {
            return [0, 0];
        }
        let hosts = self.family.hosts(subnet.prefix);
        let reserved = self.reserved.intersection(&subnet.ranges);
        let before = |number: u128| number.checked_shr(hosts.count_ones()).unwrap_or(0);
        // These closures count the subnets whose first address, or whose last address, is within a range.
        let firsts = |range: &AddressRange| {
            before(range.last()) - before(range.first()) + u128::from(range.first() & hosts == 0)
        };
        let lasts = |range: &AddressRange| {
            before(range.last()) - before(range.first()) + u128::from(range.last() & hosts == hosts)
        };
        let sum =
            |set: &AddressSet, count: &dyn Fn(&AddressRange) -> u128| set.ranges().iter().map(count).sum::<u128>();
        let rest = |count: &dyn Fn(&AddressRange) -> u128| sum(&subnet.ranges, count) - sum(&reserved, count);
        let last = if self.family == Family::Ipv4 { rest(&lasts) } else { 0 };
        [rest(&firsts), last]
    }
}

// === impl Subnet ===

impl Subnet {
    /// A subnet with these addresses of one family. The ranges may overlap and have any order.
    pub(crate) fn new(prefix: u8, ranges: impl IntoIterator<Item = AddressRange>, settings: Settings) -> Self {
        Self { prefix, ranges: ranges.into_iter().collect(), settings }
    }

    /// The family of the addresses. `None` without an address.
    pub(super) fn family(&self) -> Option<Family> {
        self.ranges().first().map(AddressRange::family)
    }

    /// The index of the subnet that has an address, or else of a subnet whose network contains the address.
    pub(super) fn position(subnets: &[Self], address: IpAddr) -> Option<usize> {
        let is_near = |subnet: &Self| subnet.has_in_network(address);
        let has = |subnet: &Self| subnet.ranges.contains(address);
        subnets.iter().position(has).or_else(|| subnets.iter().position(is_near))
    }

    /// Whether the network of an address contains an address of this subnet.
    fn has_in_network(&self, address: IpAddr) -> bool {
        self.ranges.meets(&AddressRange::subnet(address, self.prefix))
    }

    /// Whether `other` has all addresses of this subnet, with the same prefix length and settings.
    #[doc(hidden)]
    #[must_use]
    pub fn is_in(&self, other: &Self) -> bool {
        (self.prefix, &self.settings) == (other.prefix, &other.settings)
            && self.ranges.difference(&other.ranges).ranges().is_empty()
    }

    /// Adds an address that is in the network of the subnet.
    pub(super) fn insert(&mut self, address: IpAddr) {
        let address = AddressRange::subnet(address, u8::MAX);
        self.ranges = self.ranges().iter().copied().chain([address]).collect();
    }

    /// Prefix length that each of these addresses has on its interface.
    #[must_use]
    pub fn prefix(&self) -> u8 {
        self.prefix
    }

    /// The addresses as ranges: sorted, disjoint, and never adjacent.
    #[must_use]
    pub fn ranges(&self) -> &[AddressRange] {
        self.ranges.ranges()
    }

    /// The settings of the machines with these addresses.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }
}

/// Prints `10.0.0.0-10.0.0.255 with prefix length 24, gateway: 10.0.0.1`.
impl fmt::Display for Subnet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ranges: Vec<String> = self.ranges().iter().map(ToString::to_string).collect();
        write!(f, "{} with prefix length {}", ranges.join(" and "), self.prefix)?;
        for (member, values) in self.settings.members().into_iter().filter(|(_, values)| !values.is_empty()) {
            write!(f, ", {member}: {}", values.join(" and "))?;
        }
        Ok(())
    }
}
