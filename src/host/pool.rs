//! Pools: the addresses of a network that machines can get.
//!
//! A pool is the union of its entries. Gateways, name servers and exclusions of a pool are always reserved. A
//! pre-allocated address belongs to the pool and is reserved for the machines and claims with one name. Unless the pool
//! sets `allocateReservedIPAddresses`, these addresses of each subnet are reserved, too:
//!
//! - the first and the last address of an IPv4 subnet with a prefix length up to 30 (RFC 3021 allows both addresses of
//!   a /31);
//! - the first address of an IPv6 subnet with a prefix length up to 126 (the subnet-router anycast address of RFC 4291,
//!   which RFC 6164 drops for a /127).
//!
//! In this rule, a subnet is a network with the prefix length of the pool, or with that of an element of `subnets`. The
//! rule applies to each subnet that contains addresses of the pool. There may be too many subnets to list, so their
//! first and last addresses are computed on demand.

mod check;
mod namespaces;
mod overflow;
mod overlap;
mod reason;
mod reserved;
mod settings;
mod space;
mod spec;
#[cfg(feature = "sqlite")]
mod stored;
mod template;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use ipnetwork::IpNetwork;

use super::address::{AddressRange, AddressSet};
use super::claim::Machine;
use crate::network::{Family, InterfaceName};

pub use namespaces::Namespaces;
pub use overflow::{NoOverflow, home_in_group};
pub use overlap::{Overlap, Overlaps, overlaps};
pub use reason::Reserved;
pub use reserved::{ReservedAddress, ReservedAddresses, ReservedRange};
pub use settings::{RouteSpec, Settings, SettingsSpec, StaticRoute};
pub use space::{Space, Subnet};
pub use spec::PoolSpec;
#[cfg(feature = "sqlite")]
pub use stored::PoolDifference;
pub use template::TemplateFacts;

/// The addresses of one network that machines or claims can get, and the settings of these machines.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Pool {
    pub(crate) name: String,
    pub(crate) cluster: Option<String>,
    pub(crate) network: String,
    pub(crate) interface: InterfaceName,
    settings: Settings,
    pub(crate) reuse_delay: Duration,
    template: TemplateFacts,
    excluded: AddressSet,
    // The kept addresses, by the name or `namespace/name` of a machine: at most one address of each family, IPv4 first.
    // Each address occurs once.
    pre_allocations: BTreeMap<String, Vec<IpAddr>>,
    spaces: BTreeMap<Family, Space>,
    is_external: bool,
    // Namespaces of the machines, and of the claims, that the pool serves.
    pub(crate) machines: Namespaces,
    pub(crate) claims: Namespaces,
}

/// Number of addresses of one family in a pool.
///
/// `u128` is large enough: some addresses are never in a pool, so no pool has all 2^128 addresses.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct Count {
    /// All addresses, including reserved addresses.
    pub total: u128,
    /// Reserved addresses by reason. Each address counts once, under the first reason that applies. Reasons without an
    /// address are absent.
    pub reserved: BTreeMap<Reserved, u128>,
    /// Addresses that the pool can allocate.
    pub allocatable: u128,
}

// === impl Pool ===

impl Pool {
    /// The network of pods, which machines use unless their NodePool names another network. The network of pods has no
    /// network attachment definition, so its name has no namespace.
    pub const DEFAULT_NETWORK: &'static str = "default";

    /// Name of the first NIC of a machine, from the `acpiIndex` that HyperShift sets.
    pub const DEFAULT_INTERFACE: &'static str = "eno101";

    /// A pool of `spaces`, with at most one space for each family.
    pub(crate) fn from_spaces(
        name: String,
        network: String,
        interface: InterfaceName,
        settings: Settings,
        spaces: Vec<Space>,
    ) -> Self {
        let spaces = spaces.into_iter().map(|space| (space.family, space)).collect();
        Self {
            name,
            cluster: None,
            network,
            interface,
            settings,
            reuse_delay: Duration::ZERO,
            template: TemplateFacts::default(),
            excluded: AddressSet::default(),
            pre_allocations: BTreeMap::new(),
            spaces,
            is_external: false,
            machines: Namespaces::default(),
            claims: Namespaces::default(),
        }
    }

    /// Name of the NodePool or of the pool object, as `namespace/name`. The name of a GlobalStaticIPPool has no
    /// namespace.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Name of the hosted cluster of the NodePool. `None` when the cluster is unknown.
    #[must_use]
    pub fn cluster(&self) -> Option<&str> {
        self.cluster.as_deref()
    }

    /// Network of the addresses: `namespace/name` of the network attachment definition, or [`Pool::DEFAULT_NETWORK`].
    /// Two pools with the same network share its addresses.
    #[must_use]
    pub fn network(&self) -> &str {
        &self.network
    }

    /// Interface on which machines configure the addresses.
    #[must_use]
    pub fn interface(&self) -> InterfaceName {
        self.interface
    }

    /// The settings that apply to every subnet of the pool, unless the subnet has its own settings.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The settings for the document of a machine with these addresses: the settings of the subnets of the addresses.
    /// `home` returns another pool of the network for an address that this pool does not have. Then gateways and routes
    /// come from the other pool, and the other settings from this pool.
    ///
    /// # Errors
    ///
    /// The first address without settings: no subnet of the pool has the address, and the address cannot reach the
    /// gateway of any subnet.
    pub fn settings_for<'a>(
        &self,
        addresses: impl IntoIterator<Item = &'a IpNetwork>,
        home: &dyn Fn(IpAddr) -> Option<&'a Self>,
    ) -> Result<Settings, IpNetwork> {
        let mut settings = Settings::default();
        for address in addresses {
            let family = Family::of(address.ip());
            if let Some(home) = home(address.ip()).filter(|_| !self.is_external && !self.contains(address.ip())) {
                let Settings { gateways, routes, .. } = home.settings_for([address], &|_| None)?;
                settings.add(&Settings { gateways, routes, ..self.settings.clone() }, family);
                continue;
            }
            let own = match self.space(family) {
                // Another program may choose addresses of a family that the pool does not have.
                None if self.is_external => &self.settings,
                None => return Err(*address),
                Some(space) => space.subnet_for(address).ok_or(*address)?.settings(),
            };
            settings.add(own, family);
        }
        Ok(settings)
    }

    /// The prefix length of the subnet whose addresses, or else whose network, contain `address`. If the pool has only
    /// one subnet of the family, this subnet counts for every address. `None`: there is no such subnet.
    #[must_use]
    pub fn prefix_of(&self, address: IpAddr) -> Option<u8> {
        self.space(Family::of(address))?.subnet_of(address).map(Subnet::prefix)
    }

    /// Whether the pool has several subnets of a family.
    #[must_use]
    pub fn has_subnets(&self) -> bool {
        self.spaces().any(|space| space.subnets.len() > 1)
    }

    /// The settings of the pool and of each subnet.
    fn all_settings(&self) -> impl Iterator<Item = &Settings> {
        let of_subnets = self.spaces.values().flat_map(|space| &space.subnets).map(|subnet| &subnet.settings);
        [&self.settings].into_iter().chain(of_subnets)
    }

    /// Time after a release in which no other machine gets the address.
    #[must_use]
    pub fn reuse_delay(&self) -> Duration {
        self.reuse_delay
    }

    /// Whether another program chooses the addresses of the machines. Such a pool has no addresses of its own and
    /// allocates none. Its leases record which machine holds which address of the network.
    #[must_use]
    pub fn is_external(&self) -> bool {
        self.is_external
    }

    /// The same pool with another name.
    #[must_use]
    pub fn with_name(self, name: String) -> Self {
        Self { name, ..self }
    }

    /// The same pool in this hosted cluster.
    #[must_use]
    pub fn with_cluster(self, cluster: Option<String>) -> Self {
        Self { cluster, ..self }
    }

    /// The same pool with another reuse delay.
    #[must_use]
    pub fn with_reuse_delay(self, reuse_delay: Duration) -> Self {
        Self { reuse_delay, ..self }
    }

    /// The same pool for the machines and the claims of these namespaces. A pool of a file serves every namespace.
    #[must_use]
    #[doc(hidden)]
    pub fn with_namespaces(self, machines: Namespaces, claims: Namespaces) -> Self {
        Self { machines, claims, ..self }
    }

    /// Whether the pool can serve the machines of a namespace.
    #[must_use]
    #[doc(hidden)]
    pub fn serves(&self, namespace: &str) -> bool {
        self.machines.has(namespace)
    }

    /// Whether the pool can serve machines at all. A GlobalStaticIPPool that selects no machines serves only claims.
    #[must_use]
    #[doc(hidden)]
    pub fn serves_machines(&self) -> bool {
        !Namespaces::only(None::<String>).covers(&self.machines)
    }

    /// Whether users of several namespaces share the pool in a cluster. A pool of a file has one user. A
    /// GlobalStaticIPPool, whose name has no namespace, may serve all clusters of a namespace while its NodePools do
    /// not exist. Such a pool is shared, too.
    #[must_use]
    #[doc(hidden)]
    pub fn is_shared(&self) -> bool {
        self.machines.are_several()
            || self.claims.are_several()
            || (self.claims.is_every() && !self.machines.is_every())
            || (!self.name.contains('/') && self.machines.are_of_clusters())
    }

    /// Whether the pool can serve an object. The namespace of a claim decides, or for a machine the namespace of its
    /// VirtualMachine.
    #[must_use]
    #[doc(hidden)]
    pub fn serves_holder(&self, holder: &Machine) -> bool {
        if holder.kind.is_claim() { self.claims.has(&holder.namespace) } else { self.serves(holder.served_in()) }
    }

    /// Whether the pool serves no machine of another namespace.
    #[must_use]
    #[doc(hidden)]
    pub fn serves_only(&self, namespace: &str) -> bool {
        Namespaces::only([namespace]).covers(&self.machines)
    }

    /// Whether `before` served every namespace that this pool serves.
    pub(crate) fn serves_only_what(&self, before: &Self) -> bool {
        before.machines.covers(&self.machines) && before.claims.covers(&self.claims)
    }

    /// Name of the pool in messages: `cluster/namespace/name`, or `namespace/name` when the cluster is unknown.
    #[must_use]
    pub fn title(&self) -> String {
        self.cluster.as_ref().map_or_else(|| self.name.clone(), |cluster| format!("{cluster}/{}", self.name))
    }

    /// The addresses of a family. `None` when the pool has no address of this family.
    #[must_use]
    pub fn space(&self, family: Family) -> Option<&Space> {
        self.spaces.get(&family)
    }

    /// The ranges of addresses that the pool can allocate to every machine. The reserved ends of subnets are included.
    pub(crate) fn offered_ranges(&self) -> Vec<AddressRange> {
        let offered = self.spaces().map(|space| space.ranges.difference(&space.reserved));
        offered.flat_map(|ranges| ranges.ranges().to_vec()).collect()
    }

    /// The addresses by family, IPv4 first.
    pub fn spaces(&self) -> impl Iterator<Item = &Space> {
        self.spaces.values()
    }

    /// Whether an address is in the pool, allocatable or reserved.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        self.space(Family::of(address)).is_some_and(|space| space.contains(address))
    }

    /// The addresses that the pool keeps for the machines with a name: at most one of each family, IPv4 first.
    #[must_use]
    pub fn pre_allocated(&self, namespace: &str, name: &str) -> &[IpAddr] {
        let of_name = self.pre_allocations.get(name);
        of_name.or_else(|| self.pre_allocations.get(&format!("{namespace}/{name}"))).map_or(&[], Vec::as_slice)
    }

    /// Whether any machine can get this address. `false` for a reserved or pre-allocated address.
    #[must_use]
    pub fn offers(&self, address: IpAddr) -> bool {
        self.space(Family::of(address)).is_some_and(|space| space.offers(address))
    }

    /// Whether the template of the machines named an address or a prefix length when the pool was made.
    pub(crate) fn has_template(&self) -> bool {
        self.template != TemplateFacts::default()
    }

    /// The addresses that the pool excludes, including addresses outside the pool.
    #[must_use]
    pub fn excluded(&self) -> &AddressSet {
        &self.excluded
    }

    /// Number of addresses of a family. `None` when the pool has no address of this family. The cost does not depend on
    /// the number of addresses.
    #[must_use]
    pub fn count(&self, family: Family) -> Option<Count> {
        let space = self.space(family)?;
        let named = space.reserved.count();
        let [first, last] = space.count_ends();
        let mut reserved: BTreeMap<Reserved, u128> = BTreeMap::new();
        for (_, why) in self.named().into_iter().filter(|(address, _)| space.reserved.contains(*address)) {
            *reserved.entry(why).or_default() += 1;
        }
        let excluded = named.saturating_sub(reserved.values().sum());
        let (first_is, last_is) = Reserved::ends_are(family);
        reserved.extend([(Reserved::Excluded, excluded), (first_is, first), (last_is, last)]);
        reserved.retain(|_, count| *count > 0);
        Some(Count { total: space.total(), reserved, allocatable: space.allocatable() })
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::host::pools_file::read_pools;
    use proptest::prelude::*;

    /// The pool of a document that has exactly one pool.
    pub(in crate::host) fn pool(document: &str) -> Pool {
        let (specs, mut diagnostics) = read_pools(document.as_bytes());
        let pool = specs.first().and_then(|spec| Pool::new(spec, &TemplateFacts::default(), &mut diagnostics));
        pool.unwrap_or_else(|| panic!("{:?}", diagnostics.kept()))
    }

    fn of(members: &str) -> Pool {
        pool(&format!("{{name: workers, network: vlan10, {members}}}"))
    }

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    macro_rules! counts {
        ($($name:ident: $members:expr => $family:ident, $total:expr, [$($why:ident: $count:expr),*], $allocatable:expr;)*) => {
            $(#[test] fn $name() {
                let reserved = BTreeMap::from([$((Reserved::$why, $count)),*]);
                let count = Count { total: $total, reserved, allocatable: $allocatable };
                assert_eq!(of($members).count(Family::$family), Some(count));
            })*
        };
    }

    counts! {
        a_router_of_a_route_is_a_gateway: "addresses: [10.0.0.0/24], routes: [{to: 10.9.0.0/16, via: 10.0.0.9}]"
            => Ipv4, 256, [NetworkAddress: 1, Broadcast: 1, Gateway: 1], 253;
        a_subnet_reserves_both_its_ends_and_its_gateway: "addresses: [10.0.0.0/24], gateway: [10.0.0.1]"
            => Ipv4, 256, [NetworkAddress: 1, Broadcast: 1, Gateway: 1], 253;
        each_subnet_with_addresses_of_the_pool_counts: "addresses: [10.0.0.0/24, 10.0.1.0/24, 10.0.7.0/24]"
            => Ipv4, 768, [NetworkAddress: 3, Broadcast: 3], 762;
        a_slice_inside_a_subnet_has_no_reserved_ends: "addresses: [10.0.0.16/28], machineNetwork: [{cidr: 10.0.0.0/24}]"
            => Ipv4, 16, [], 16;
        a_slice_at_the_end_of_its_subnet_has_one_reserved_end: "addresses: [10.0.0.240/28], machineNetwork: [{cidr: 10.0.0.0/24}]"
            => Ipv4, 16, [Broadcast: 1], 15;
        both_addresses_of_a_slash_31_are_allocatable: "addresses: [10.0.0.4/31]" => Ipv4, 2, [], 2;
        two_addresses_of_a_slash_30_are_allocatable: "addresses: [10.0.0.4/30]" => Ipv4, 4, [NetworkAddress: 1, Broadcast: 1], 2;
        both_addresses_of_a_slash_127_are_allocatable: "addresses: ['fd00::4/127']" => Ipv6, 2, [], 2;
        three_addresses_of_a_slash_126_are_allocatable: "addresses: ['fd00::4/126']" => Ipv6, 4, [SubnetRouterAnycast: 1], 3;
        the_only_address_of_a_pool_is_allocatable: "addresses: [10.0.0.5/32], machineNetwork: [{cidr: 10.0.0.0/24}]" => Ipv4, 1, [], 1;
        a_subnet_of_one_address_has_no_reserved_ends: "addresses: [10.0.0.0/24], prefix: 32" => Ipv4, 256, [], 256;
        each_subnet_has_the_ends_of_its_own_length:
            "subnets: [{addresses: [10.0.0.0/24], gateway: [10.0.0.1]}, {addresses: [10.1.0.0/23], gateway: [10.1.0.1]}, \
             {addresses: [10.2.0.0/30], prefix: 32}]"
            => Ipv4, 772, [NetworkAddress: 2, Broadcast: 2, Gateway: 2], 766;
        the_only_ipv6_address_of_a_pool_is_allocatable: "addresses: ['fd00::5/128'], machineNetwork: [{cidr: 'fd00::/64'}]"
            => Ipv6, 1, [], 1;
        the_ends_of_subnets_are_allocatable_on_request: "addresses: [10.0.0.0/24], gateway: [10.0.0.1], allocateReservedIPAddresses: true"
            => Ipv4, 256, [Gateway: 1], 255;
        entries_that_overlap_count_once:
            "addresses: [10.0.0.10-10.0.0.20, 10.0.0.15-10.0.0.30, 10.0.0.12], machineNetwork: [{cidr: 10.0.0.0/24}]"
            => Ipv4, 21, [], 21;
        every_address_is_reserved_once:
            "addresses: [10.0.0.0/24], gateway: [10.0.0.1], nameservers: [10.0.0.1, 10.0.0.2, 8.8.8.8], \
             excludedAddresses: [10.0.0.0-10.0.0.9, 10.0.0.5, 10.0.0.250-10.0.1.7]"
            => Ipv4, 256, [Gateway: 1, Nameserver: 1, Excluded: 14], 240;
        a_network_of_class_a: "addresses: [10.0.0.0/8], gateway: [10.0.0.1], excludedAddresses: [10.1.0.0/16]"
            => Ipv4, 1 << 24, [NetworkAddress: 1, Broadcast: 1, Gateway: 1, Excluded: 1 << 16], (1 << 24) - (1 << 16) - 3;
        the_addresses_of_a_slash_48: "addresses: ['2001:db8::/48'], gateway: ['2001:db8::1']"
            => Ipv6, 1 << 80, [SubnetRouterAnycast: 1, Gateway: 1], (1 << 80) - 2;
        all_unique_local_addresses: "addresses: ['fd00::/8'], excludedAddresses: ['fd00::/16']"
            => Ipv6, 1 << 120, [Excluded: 1 << 112], (1 << 120) - (1 << 112);
        a_quarter_of_ipv6: "addresses: ['4000::/2']"
            => Ipv6, 1 << 126, [SubnetRouterAnycast: 1], (1 << 126) - 1;
    }

    #[test]
    fn the_settings_of_an_address_are_those_of_its_subnet() {
        let pool = of(
            "nameservers: [10.0.0.53], subnets: [{addresses: [10.0.0.8-10.0.0.9], prefix: 24, gateway: [10.0.0.1]}, \
             {addresses: [10.1.0.8], prefix: 24, gateway: [10.1.0.1], nameservers: [10.1.0.53], mtu: 9000}, \
             {addresses: ['fd00::/64'], gateway: ['fe80::1'], mtu: 1500, routes: [{to: 'fd09::/48', via: 'fe80::9'}]}]",
        );
        let written = |addresses: &[&str]| {
            let addresses: Vec<IpNetwork> = addresses.iter().map(|address| address.parse().unwrap()).collect();
            pool.settings_for(&addresses, &|_| None)
                .map(|settings| format!("{:?}", settings.members()))
                .map_err(|it| it.to_string())
        };
        let members = |gateway: &str, servers: &str, mtu: &str, routes: &str| {
            Ok(format!(
                r#"[("gateway", [{gateway}]), ("nameservers", [{servers}]), ("searchDomains", []), ("mtu", [{mtu}]), ("routes", [{routes}])]"#
            ))
        };
        assert_eq!(written(&["10.0.0.8/24"]), members(r#""10.0.0.1""#, r#""10.0.0.53""#, "", ""));
        assert_eq!(
            written(&["10.1.0.8/24", "fd00::8/64"]),
            members(
                r#""10.1.0.1", "fe80::1""#,
                r#""10.1.0.53", "10.0.0.53""#,
                r#""1500""#,
                r#""fd09::/48 via fe80::9""#
            )
        );
        // Addresses that are no longer in a subnet. The first address is in the network of a subnet. The second address
        // has a shorter prefix length, so its network contains that of a subnet. The third address is in no network of
        // the pool.
        assert_eq!(written(&["10.1.0.9/24"]), members(r#""10.1.0.1""#, r#""10.1.0.53""#, r#""9000""#, ""));
        assert_eq!(written(&["10.1.1.9/23"]), members(r#""10.1.0.1""#, r#""10.1.0.53""#, r#""9000""#, ""));
        assert_eq!(written(&["10.2.0.8/24"]), Err("10.2.0.8/24".to_owned()));
        // The pool now has another subnet than the subnet of the address.
        let pool = of("addresses: [10.0.0.8], prefix: 24, gateway: [10.0.0.1]");
        let before: IpNetwork = "10.1.0.8/24".parse().unwrap();
        assert_eq!(pool.settings_for([&before], &|_| None), Err(before));
    }

    #[test]
    fn the_settings_of_an_address_in_no_subnet_are_those_of_a_subnet_with_reachable_routers() {
        let gateways = |pool: &str, address: &str| {
            let address: IpNetwork = address.parse().unwrap();
            of(pool).settings_for([&address], &|_| None).map(|it| it.gateways).map_err(|it| it.to_string())
        };
        let far = "addresses: [203.0.113.0/24], prefix: 32, gateway: [169.254.1.1], onLinkGateway: true";
        assert_eq!(gateways(far, "198.51.100.1/32"), Ok(vec!["169.254.1.1".parse().unwrap()]));
        assert_eq!(gateways("addresses: [10.0.0.8], prefix: 24", "10.0.0.9/24"), Ok(vec![]));
        // An isolated subnet has no gateway for the addresses of a subnet that no longer exists.
        let isolated = "subnets: [{addresses: [10.1.0.0/24], gateway: [10.1.0.1]}, {addresses: [10.2.0.0/24]}]";
        assert_eq!(gateways(isolated, "10.0.0.8/24"), Err("10.0.0.8/24".to_owned()));
        // The pool no longer has addresses of this family.
        assert_eq!(gateways("addresses: [10.0.0.0/24]", "fd00::8/64"), Err("fd00::8/64".to_owned()));
    }

    #[test]
    fn the_ends_of_four_thousand_million_subnets_are_counted_and_not_listed() {
        let document = "{name: a, network: b, addresses: ['2001:db8::/32'], excludedAddresses: ['2001:db8:1::/48']}";
        let (specs, mut diagnostics) = read_pools(document.as_bytes());
        let template = TemplateFacts { prefixes: BTreeMap::from([(Family::Ipv6, 64)]), ..TemplateFacts::default() };
        let pool = Pool::new(&specs[0], &template, &mut diagnostics).unwrap();
        let reserved =
            BTreeMap::from([(Reserved::Excluded, 1 << 80), (Reserved::SubnetRouterAnycast, (1 << 32) - (1 << 16))]);
        let allocatable = (1 << 96) - (1 << 80) - (1 << 32) + (1 << 16);
        assert_eq!(pool.count(Family::Ipv6), Some(Count { total: 1 << 96, reserved, allocatable }));
        assert_eq!(pool.why_reserved(address("2001:db8:ffff:ffff::")), Some(Reserved::SubnetRouterAnycast));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1024))]

        #[test]
        fn counts_agree_with_a_list_of_all_addresses(
            prefix in 24_u8..=32,
            v6 in any::<bool>(),
            ends in any::<bool>(),
            ranges in prop::collection::vec((0_u32..300, 0_u32..40), 1..6),
            excluded in prop::collection::vec((0_u32..340, 0_u32..20), 0..4),
            servers in prop::collection::vec(0_u32..340, 0..4),
        ) {
            let (family, prefix, base) =
                if v6 { (Family::Ipv6, prefix + 96, 0xfd00_u128 << 112) } else { (Family::Ipv4, prefix, 10 << 24) };
            let address = |offset: u32| family.address(base + u128::from(offset));
            let range = |(first, more): &(u32, u32)| AddressRange::new(address(*first), address(first + more)).unwrap();
            let servers: Vec<IpAddr> = servers.iter().map(|at| address(*at)).collect();
            let mut reserved: Vec<AddressRange> = excluded.iter().map(range).collect();
            reserved.extend(servers.iter().map(|server| AddressRange::new(*server, *server).unwrap()));
            let ranges: Vec<AddressRange> = ranges.iter().map(range).collect();
            let (gateways, nameservers) = servers.split_at(servers.len().min(1));
            let interface = "eno101".parse().unwrap();
            // Two subnets with the same prefix length count like one subnet.
            let (one, two): (Vec<AddressRange>, Vec<AddressRange>) =
                AddressSet::from_iter(ranges.clone()).ranges().iter().partition(|range| range.first() % 2 == 0);
            let subnets = [one, two].map(|ranges| Subnet::new(prefix, ranges, Settings::default()));
            let space = Space::new(family, subnets.into(), reserved.clone(), ends);
            let settings =
                Settings { gateways: gateways.to_vec(), nameservers: nameservers.to_vec(), ..Settings::default() };
            let pool =
                Pool::from_spaces("a".to_owned(), "b".to_owned(), interface, settings, vec![space.clone()]);

            let mut expected = Count { total: 0, reserved: BTreeMap::new(), allocatable: 0 };
            for at in 0..400 {
                let address = address(at);
                let is_in = |ranges: &[AddressRange]| ranges.iter().any(|range| range.contains(address));
                prop_assert_eq!(space.contains(address), is_in(&ranges));
                if !is_in(&ranges) {
                    prop_assert_eq!((pool.why_reserved(address), space.offers(address)), (None, false));
                    continue;
                }
                // The prefix length is at least 24, so the last octet is the position of an address in its subnet.
                let (octet, size) = (at % 256, 1 << (family.bits() - prefix));
                let why = if gateways.contains(&address) {
                    Some(Reserved::Gateway)
                } else if nameservers.contains(&address) {
                    Some(Reserved::Nameserver)
                } else if is_in(&reserved) {
                    Some(Reserved::Excluded)
                } else if !ends || size < 4 {
                    None
                } else if octet % size == 0 {
                    Some(if v6 { Reserved::SubnetRouterAnycast } else { Reserved::NetworkAddress })
                } else if octet % size == size - 1 && !v6 {
                    Some(Reserved::Broadcast)
                } else {
                    None
                };
                prop_assert_eq!((pool.why_reserved(address), space.offers(address)), (why, why.is_none()));
                expected.total += 1;
                match why {
                    Some(why) => *expected.reserved.entry(why).or_default() += 1,
                    None => expected.allocatable += 1,
                }
            }
            prop_assert_eq!(pool.count(family), Some(expected));
        }
    }
}
