//! The model of a machine's network: links, addresses, routes and name servers.
//!
//! The model depends on no file format and no renderer. Every [`NetworkConfig`] is consistent: each reference points to
//! a link of the same configuration, no link consists of itself, and a link is a member of at most one bond or bridge.

mod bond;
mod bridge;
mod default_routes;
mod family;
mod hostname;
mod route;
mod routing_rule;
mod values;

pub use bond::{BondMode, BondOption, BondOptionError, BondOptions};
pub use bridge::{BridgeOptions, BridgePort};
pub use default_routes::DefaultRoutes;
pub use family::Family;
pub(crate) use hostname::is_label;
pub use hostname::{Hostname, HostnameError};
pub use route::{MixedFamilies, Route};
#[doc(hidden)]
pub use routing_rule::{RoutingRule, RoutingRuleError};
pub use values::{
    DomainName, DomainNameError, InterfaceName, InterfaceNameError, Mtu, MtuError, Pattern, PatternError, VlanId,
    VlanIdError, parse_mac_address,
};
pub(crate) use values::{MAC_ADDRESS_EXPECTED, Pairs};

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;

use ipnetwork::{Ipv4Network, Ipv6Network};
use pnet_base::MacAddr;

/// The network of one machine.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct NetworkConfig {
    links: Vec<Link>,
    /// How other links use each link, in the order of `links`.
    uses: Vec<Uses>,
    /// Name servers and search domains of the whole machine.
    pub dns: Dns,
    /// Names that the NICs with these MAC addresses get without the document, for example by `ifname=` at the boot
    /// loader. The last name of a NIC applies. No other link may get one of these names.
    pub given_names: Vec<(InterfaceName, MacAddr)>,
}

/// Name servers and search domains.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Dns {
    /// Name servers, most important first, without repeats.
    pub nameservers: Vec<Located<IpAddr>>,
    /// Search domains for short host names, most important first, without repeats.
    pub search: Vec<Located<DomainName>>,
}

/// A value with its path in the document.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Located<T> {
    /// The value, already checked.
    pub value: T,
    /// Path of the value, such as `services[0].address`. Used only in messages. Empty for a value from no document.
    pub path: String,
}

#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
struct Uses {
    controller: Option<LinkIndex>,
    vlans: bool,
    /// Whether the link is a NIC, or has a NIC among the links that it consists of, at any depth.
    connected: bool,
}

/// The position of a link in its [`NetworkConfig`], counted from zero.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct LinkIndex(pub(crate) usize);

/// One network interface and its settings.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Link {
    /// The document's name or id for this link. Used only in messages.
    pub id: String,
    /// Path of the link in the document, such as `links[0]`. Used only in messages.
    pub path: String,
    /// Path of the link's name in the document, such as `links[0].name`. Used only in messages.
    pub name_path: String,
    /// Kind of the link, with the links that it consists of.
    pub kind: LinkKind,
    /// The MTU to set, in bytes; `None` leaves the MTU unchanged.
    pub mtu: Option<Mtu>,
    /// The MAC address to set. `None` keeps the own address of the link: the permanent address of a NIC, the address of
    /// the first member of a bond or bridge, or the address of the parent of a VLAN.
    pub cloned_mac_address: Option<MacAddr>,
    /// Sources of the IPv4 addresses.
    pub ipv4: Ipv4Config,
    /// Sources of the IPv6 addresses.
    pub ipv6: Ipv6Config,
    /// Name servers and search domains of this link, in addition to [`NetworkConfig::dns`].
    pub dns: Dns,
    /// Routes through this link, in the document's order, default routes included.
    pub routes: Vec<Route>,
    /// Rules that choose the routing table of a packet, in the document's order. The network program sets these rules
    /// together with this link.
    pub routing_policy: Vec<RoutingRule>,
    /// Whether the document states that this link gets no address.
    pub without_addresses: bool,
}

/// The kind of a link, with the links that it consists of.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum LinkKind {
    /// A NIC of the machine.
    Nic(Nic),
    /// Several NICs that act as one interface.
    Bond {
        /// Interface name of the bond.
        name: InterfaceName,
        /// The bond members; all of them are NICs. The readers reject a bond without members.
        ports: Vec<LinkIndex>,
        /// Mode and options of the bond.
        options: BondOptions,
    },
    /// Several links that act as one Ethernet segment.
    Bridge {
        /// Interface name of the bridge.
        name: InterfaceName,
        /// The bridge ports: NICs, bonds and VLANs. The list may be empty.
        ports: Vec<LinkIndex>,
        /// Options of the bridge.
        options: BridgeOptions,
    },
    /// A tagged network on another link.
    Vlan {
        /// The requested name; `None` when the document has no name. A renderer that cannot set this name chooses
        /// another.
        name: Option<InterfaceName>,
        /// The link that carries the tagged frames.
        parent: LinkIndex,
        /// The VLAN id in the tag.
        id: VlanId,
    },
}

/// The identity of a NIC: how the guest finds it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Nic {
    /// The NIC with this permanent MAC address.
    MacAddress {
        /// The permanent MAC address, which is unicast and not zero.
        mac_address: MacAddr,
        /// The requested name; `None` when the document requests no name.
        name: Option<InterfaceName>,
    },
    /// The NIC with this name from the kernel or udev.
    Name(InterfaceName),
    /// Every NIC that matches one of the names and one of the drivers. An empty list matches every NIC; at least one of
    /// the two lists is not empty.
    Pattern {
        /// Patterns for the names from the kernel or udev.
        names: Vec<Pattern>,
        /// Patterns for the kernel's driver names.
        drivers: Vec<Pattern>,
        /// The requested name; `None` when the document requests no name.
        name: Option<InterfaceName>,
    },
}

/// IPv4 settings of one link. Without DHCP and without static addresses, the link does not use IPv4.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Ipv4Config {
    /// Whether to request an address by DHCP.
    pub dhcp: bool,
    /// Parts of the DHCP server's answer to use or to ignore.
    pub dhcp_overrides: DhcpOverrides,
    /// Static addresses with their prefix length, in the document's order.
    pub addresses: Vec<Ipv4Network>,
}

/// IPv6 settings of one link. The link uses IPv6 if it has a dynamic source, a static address, or a requested
/// link-local address.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Ipv6Config {
    /// The dynamic source of addresses; `None` for static addresses only.
    pub dynamic: Option<Ipv6Dynamic>,
    /// Whether the link gets a link-local address; `None` when the document does not state it.
    pub link_local: Option<bool>,
    /// Whether to accept router advertisements; `None` when the document does not state it. This setting is separate
    /// from [`Ipv6Config::dynamic`], which requests addresses.
    pub accept_ra: Option<bool>,
    /// Parts of the DHCP server's answer to use or to ignore.
    pub dhcp_overrides: DhcpOverrides,
    /// Static addresses with their prefix length, in the document's order.
    pub addresses: Vec<Ipv6Network>,
}

/// Options of DHCP (netplan's `dhcp4-overrides`): which parts of the server's answer to use, and whether to send the
/// host name. An option is `None` when the document does not set it.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct DhcpOverrides {
    /// Metric of the routes from the server.
    pub route_metric: Option<Located<u32>>,
    /// Whether to use the routes from the server.
    pub use_routes: Option<bool>,
    /// Whether to use the name servers from the server.
    pub use_dns: Option<bool>,
    /// Whether to use the domains from the server.
    pub use_domains: Option<bool>,
    /// Whether to use the host name from the server.
    pub use_hostname: Option<bool>,
    /// Whether to send the machine's host name to the server.
    pub send_hostname: Option<bool>,
    /// Whether to use the MTU from the server.
    pub use_mtu: Option<bool>,
    /// Whether to use the time servers from the server.
    pub use_ntp: Option<bool>,
}

/// How a link gets dynamic IPv6 addresses. If a document requests several variants for one link, the variant that is
/// last in this list applies.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Ipv6Dynamic {
    /// Addresses made from router advertisements (RFC 4862).
    Slaac,
    /// Addresses as in [`Ipv6Dynamic::Slaac`], and other settings from a DHCPv6 server.
    StatelessDhcp,
    /// Addresses from a DHCPv6 server (RFC 8415).
    StatefulDhcp,
}

/// A contradiction between links, with the link that the diagnostic names.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum Contradiction {
    /// This VLAN, bond or bridge refers to a link that does not exist.
    NoSuchLink(LinkIndex),
    /// This link, or a link below it, consists of itself, directly or through other links.
    Loop(LinkIndex),
    /// This member of a bond is not a NIC.
    PortIsNoNic(LinkIndex),
    /// This port of a bridge is a bridge itself.
    PortIsBridge(LinkIndex),
    /// This link is a member of two bonds or bridges, or is listed twice in one of them.
    PortTwice(LinkIndex),
    /// This VLAN has the same parent and the same id as an earlier VLAN.
    VlanTwice(LinkIndex),
}

// === impl NetworkConfig ===

impl NetworkConfig {
    /// Builds a configuration from links, and checks how the links refer to each other. The order of the links is kept.
    ///
    /// # Errors
    ///
    /// Returns every [`Contradiction`] between the links.
    pub fn new(links: Vec<Link>) -> Result<Self, Vec<Contradiction>> {
        let contradictions = contradictions(&links);
        if contradictions.is_empty() {
            let uses = uses(&links);
            Ok(Self { links, uses, ..Self::default() })
        } else {
            Err(contradictions)
        }
    }

    /// Whether the configuration has no links and no settings.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.links.is_empty() && self.dns == Dns::default()
    }

    /// The links, in the document's order.
    #[must_use]
    pub fn links(&self) -> &[Link] {
        &self.links
    }

    /// The link at an index of this configuration.
    #[must_use]
    pub fn link(&self, index: LinkIndex) -> &Link {
        &self.links[index.0]
    }

    /// The name that the NIC with this MAC address gets without the document.
    pub(crate) fn given_name(&self, mac_address: MacAddr) -> Option<InterfaceName> {
        let given = self.given_names.iter().rev().find(|(_, of)| *of == mac_address);
        given.map(|(name, _)| *name)
    }

    /// The bond or the bridge that has this link as a member; `None` when there is no such bond or bridge.
    #[must_use]
    pub fn controller_of(&self, port: LinkIndex) -> Option<LinkIndex> {
        self.uses[port.0].controller
    }

    /// Whether the document requests nothing except that some links get no address. The distribution's default
    /// configuration, which may use DHCP, must not apply to such a document.
    #[must_use]
    pub fn states_no_addresses(&self) -> bool {
        !self.links.iter().any(Link::asks) && self.links.iter().any(|link| link.without_addresses)
    }

    /// NICs that are identified by their name and are not part of another link, and for which the document states only
    /// that they get no address. Empty if the document requests nothing else ([`NetworkConfig::states_no_addresses`]).
    #[cfg(feature = "guest")]
    pub(crate) fn quiet_names(&self) -> Vec<(LinkIndex, InterfaceName)> {
        let is_quiet = |(at, link): (usize, &Link)| match link.kind {
            LinkKind::Nic(Nic::Name(name)) if link.without_addresses && !link.asks() => Some((LinkIndex(at), name)),
            _ => None,
        };
        let links = self.links.iter().enumerate().filter_map(is_quiet);
        let is_free = |at: LinkIndex| self.controller_of(at).is_none() && !self.carries_vlans(at);
        if self.states_no_addresses() { Vec::new() } else { links.filter(|(at, _)| is_free(*at)).collect() }
    }

    /// Clears [`Link::without_addresses`] of a link.
    #[cfg(feature = "guest")]
    pub(crate) fn forget_without_addresses(&mut self, index: LinkIndex) {
        self.links[index.0].without_addresses = false;
    }

    /// Every name server once; the name servers of the whole machine come first.
    #[must_use]
    pub fn nameservers(&self) -> Vec<&Located<IpAddr>> {
        let of_links = self.links.iter().flat_map(|link| &link.dns.nameservers);
        let mut seen = BTreeSet::new();
        self.dns.nameservers.iter().chain(of_links).filter(|server| seen.insert(server.value)).collect()
    }

    /// Whether the link is a NIC, or has a NIC among the links that it consists of. A bridge without ports is not
    /// connected, nor is a VLAN on such a bridge.
    #[must_use]
    pub fn is_connected(&self, index: LinkIndex) -> bool {
        self.uses[index.0].connected
    }

    /// The links in the document's order, except that each link comes after the links that it consists of.
    #[must_use]
    pub fn parents_first(&self) -> Vec<LinkIndex> {
        parents_first(&self.links)
    }

    /// Whether the link is the parent of a VLAN.
    #[must_use]
    pub fn carries_vlans(&self, parent: LinkIndex) -> bool {
        self.uses[parent.0].vlans
    }
}

/// The links in the document's order, except that each link comes after the links that it consists of.
fn parents_first(links: &[Link]) -> Vec<LinkIndex> {
    let mut order = Vec::new();
    let mut placed = vec![false; links.len()];
    for index in (0..placed.len()).map(LinkIndex) {
        // The links from `index` down to the current link, each with the number of its parts that are already visited.
        let mut chain = vec![(index, 0)];
        while let Some((here, seen)) = chain.last_mut() {
            let below = if placed[here.0] { None } else { links[here.0].kind.made_of().get(*seen) };
            match below {
                Some(below) => {
                    *seen += 1;
                    chain.push((*below, 0));
                }
                None => {
                    if !std::mem::replace(&mut placed[here.0], true) {
                        order.push(*here);
                    }
                    chain.pop();
                }
            }
        }
    }
    order
}

fn uses(links: &[Link]) -> Vec<Uses> {
    let mut uses = vec![Uses::default(); links.len()];
    for (index, link) in links.iter().enumerate() {
        match &link.kind {
            LinkKind::Nic(_) => {}
            LinkKind::Bond { ports, .. } | LinkKind::Bridge { ports, .. } => {
                ports.iter().for_each(|port| uses[port.0].controller = Some(LinkIndex(index)));
            }
            LinkKind::Vlan { parent, .. } => uses[parent.0].vlans = true,
        }
    }
    for index in parents_first(links) {
        let kind = &links[index.0].kind;
        let is_below = |below: &LinkIndex| uses[below.0].connected;
        uses[index.0].connected = matches!(kind, LinkKind::Nic(_)) || kind.made_of().iter().any(is_below);
    }
    uses
}

fn contradictions(links: &[Link]) -> Vec<Contradiction> {
    let mut found = Vec::new();
    let mut ports = Vec::new();
    let mut vlans = Vec::new();
    for (index, link) in links.iter().enumerate() {
        let here = LinkIndex(index);
        for at in link.kind.made_of() {
            match (&link.kind, links.get(at.0).map(|link| &link.kind)) {
                (_, None) => found.push(Contradiction::NoSuchLink(here)),
                (LinkKind::Vlan { id, .. }, _) => vlans.push((*at, *id, here)),
                (LinkKind::Bond { .. }, Some(LinkKind::Nic(_))) => ports.push(*at),
                (LinkKind::Bond { .. }, _) => found.push(Contradiction::PortIsNoNic(*at)),
                (_, Some(LinkKind::Bridge { .. })) => found.push(Contradiction::PortIsBridge(*at)),
                _ => ports.push(*at),
            }
        }
    }
    found.extend(loops(links));
    ports.sort_unstable();
    found.extend(ports.windows(2).filter(|pair| pair[0] == pair[1]).map(|pair| Contradiction::PortTwice(pair[0])));
    vlans.sort_unstable();
    let twice = vlans.windows(2).filter(|pair| (pair[0].0, pair[0].1) == (pair[1].0, pair[1].1));
    found.extend(twice.map(|pair| Contradiction::VlanTwice(pair[1].2)));
    found
}

/// Finds the links that are in a loop or consist of a link in a loop. The search removes each link whose parts are all
/// removed; the links that are left are the result.
fn loops(links: &[Link]) -> impl Iterator<Item = Contradiction> {
    let there = |link: &Link| link.kind.made_of().iter().filter(|at| at.0 < links.len()).count();
    let mut missing: Vec<usize> = links.iter().map(there).collect();
    let mut used_by = vec![Vec::new(); links.len()];
    for (index, link) in links.iter().enumerate() {
        for at in link.kind.made_of() {
            if let Some(users) = used_by.get_mut(at.0) {
                users.push(index);
            }
        }
    }
    let mut complete: Vec<usize> = (0..links.len()).filter(|index| missing[*index] == 0).collect();
    while let Some(index) = complete.pop() {
        for user in std::mem::take(&mut used_by[index]) {
            missing[user] -= 1;
            if missing[user] == 0 {
                complete.push(user);
            }
        }
    }
    missing
        .into_iter()
        .enumerate()
        .filter(|(_, missing)| *missing > 0)
        .map(|(at, _)| Contradiction::Loop(LinkIndex(at)))
}

// === impl LinkIndex ===

impl LinkIndex {
    /// The index of the link at a position among the links of a configuration, counted from zero.
    /// [`NetworkConfig::new`] rejects an index without a link.
    #[must_use]
    pub fn new(position: usize) -> Self {
        Self(position)
    }

    /// The position of the link among the links of its configuration, counted from zero.
    #[must_use]
    pub fn position(self) -> usize {
        self.0
    }
}

// === impl Link ===

impl Link {
    /// Makes a link of this kind, without addresses and other settings. The path of the link's name is `path` followed
    /// by `.name`.
    #[must_use]
    pub fn new(id: String, path: String, kind: LinkKind) -> Self {
        Self {
            id,
            name_path: format!("{path}.name"),
            path,
            kind,
            mtu: None,
            cloned_mac_address: None,
            ipv4: Ipv4Config::default(),
            ipv6: Ipv6Config::default(),
            dns: Dns::default(),
            routes: Vec::new(),
            routing_policy: Vec::new(),
            without_addresses: false,
        }
    }

    /// Whether the guest must configure the link. A NIC that gets no address, MTU or MAC address needs no
    /// configuration.
    #[must_use]
    pub fn asks(&self) -> bool {
        let is_made = !matches!(self.kind, LinkKind::Nic(_));
        is_made || self.has_addresses() || self.mtu.is_some() || self.cloned_mac_address.is_some()
    }

    /// Whether the link gets any address, of either family and from any source.
    #[must_use]
    pub fn has_addresses(&self) -> bool {
        self.ipv4.is_used() || self.ipv6.is_used()
    }

    /// Static addresses as CIDR, then a word for each other source of addresses.
    pub(crate) fn addresses(&self) -> Vec<String> {
        let (ipv4, ipv6) = (&self.ipv4, &self.ipv6);
        let mut addresses: Vec<String> = ipv4.addresses.iter().map(ToString::to_string).collect();
        addresses.extend(ipv6.addresses.iter().map(ToString::to_string));
        addresses.extend(ipv4.dhcp.then(|| "dhcp4".to_owned()));
        addresses.extend(ipv6.dynamic.map(|dynamic| dynamic.to_string()));
        addresses.extend((ipv6.link_local == Some(true)).then(|| "link-local".to_owned()));
        addresses
    }

    /// Whether the link has addresses of the route's family. Without such an address the route does not work.
    #[must_use]
    pub fn can_route(&self, route: &Route) -> bool {
        self.uses(Family::of(route.destination().ip()))
    }

    /// Whether the link gets an address of the family.
    pub(crate) fn uses(&self, family: Family) -> bool {
        match family {
            Family::Ipv4 => self.ipv4.is_used(),
            Family::Ipv6 => self.ipv6.is_used(),
        }
    }

    /// The MAC address to set, or else the MAC address that identifies the NIC; `None` when the document has neither.
    #[must_use]
    pub fn mac_address(&self) -> Option<MacAddr> {
        match &self.kind {
            LinkKind::Nic(Nic::MacAddress { mac_address, .. }) => self.cloned_mac_address.or(Some(*mac_address)),
            _ => self.cloned_mac_address,
        }
    }
}

// === impl Located ===

impl<T> From<T> for Located<T> {
    /// Makes a value that comes from no document. Its path is empty.
    fn from(value: T) -> Self {
        Self { value, path: String::new() }
    }
}

impl<T: fmt::Display> fmt::Display for Located<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.value.fmt(f)
    }
}

// === impl LinkKind ===

impl LinkKind {
    /// The links that this link consists of: the members of a bond, the ports of a bridge, or the parent of a VLAN.
    #[must_use]
    pub fn made_of(&self) -> &[LinkIndex] {
        match self {
            Self::Nic(_) => &[],
            Self::Bond { ports, .. } | Self::Bridge { ports, .. } => ports,
            Self::Vlan { parent, .. } => std::slice::from_ref(parent),
        }
    }
}

// === impl Ipv4Config, Ipv6Config ===

impl Ipv4Config {
    /// Whether the link uses IPv4.
    #[must_use]
    pub fn is_used(&self) -> bool {
        self.dhcp || !self.addresses.is_empty()
    }
}

impl Ipv6Config {
    /// Whether the link uses IPv6.
    #[must_use]
    pub fn is_used(&self) -> bool {
        self.is_beyond_link() || self.link_local == Some(true)
    }

    /// Whether the link gets IPv6 addresses in addition to its link-local address.
    pub(crate) fn is_beyond_link(&self) -> bool {
        self.dynamic.is_some() || !self.addresses.is_empty()
    }
}

impl fmt::Display for Ipv6Dynamic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Slaac => "slaac",
            Self::StatelessDhcp => "dhcp6-stateless",
            Self::StatefulDhcp => "dhcp6",
        })
    }
}

// === impl Contradiction ===

impl fmt::Display for Contradiction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSuchLink(at) => write!(f, "link {} refers to a link that does not exist", at.0),
            Self::Loop(at) => write!(f, "link {} consists of itself, or of a link that does", at.0),
            Self::PortIsNoNic(at) => write!(f, "link {} is a bond member and not a NIC", at.0),
            Self::PortIsBridge(at) => write!(f, "link {} is a bridge port and a bridge", at.0),
            Self::PortTwice(at) => write!(f, "link {} is listed twice as a bond member or bridge port", at.0),
            Self::VlanTwice(at) => write!(f, "link {} is a VLAN with the parent and the id of another VLAN", at.0),
        }
    }
}

impl std::error::Error for Contradiction {}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(kind: LinkKind) -> Link {
        Link::new(String::new(), String::new(), kind)
    }

    fn nic() -> Link {
        link(LinkKind::Nic(Nic::Name("eno1".parse().unwrap())))
    }

    fn bond(ports: &[usize]) -> Link {
        let ports = ports.iter().copied().map(LinkIndex).collect();
        let name = "bond0".parse().unwrap();
        link(LinkKind::Bond { name, ports, options: BondOptions::default() })
    }

    fn bridge(ports: &[usize]) -> Link {
        let ports = ports.iter().copied().map(LinkIndex).collect();
        link(LinkKind::Bridge { name: "br0".parse().unwrap(), ports, options: BridgeOptions::default() })
    }

    fn vlan(parent: usize, id: i64) -> Link {
        let id = VlanId::try_from(id).unwrap();
        link(LinkKind::Vlan { name: None, parent: LinkIndex(parent), id })
    }

    macro_rules! contradicts {
        ($($name:ident: [$($link:expr),*] => [$($contradiction:ident $at:literal),*];)*) => {
            $(#[test] fn $name() {
                let found = NetworkConfig::new(vec![$($link),*]);
                let expected: Vec<Contradiction> = vec![$(Contradiction::$contradiction(LinkIndex($at))),*];
                assert_eq!(found.err().unwrap_or_default(), expected);
            })*
        };
    }

    contradicts! {
        a_chain_of_vlans_on_a_bond_is_valid: [vlan(1, 7), vlan(2, 6), bond(&[3, 4]), nic(), nic()] => [];
        one_vlan_id_on_two_parents_is_valid: [nic(), nic(), vlan(0, 5), vlan(1, 5)] => [];
        a_vlan_on_a_bond_member_is_valid: [nic(), bond(&[0]), vlan(0, 5)] => [];
        a_vlan_on_itself_is_a_loop: [vlan(0, 5)] => [Loop 0];
        a_vlan_above_a_loop_of_two_vlans_is_reported_like_the_loop:
            [vlan(1, 5), vlan(2, 5), vlan(1, 6), nic(), vlan(3, 5)] => [Loop 0, Loop 1, Loop 2];
        a_vlan_with_an_unknown_parent_is_rejected: [vlan(9, 5), vlan(0, 6)] => [NoSuchLink 0];
        a_bond_with_an_unknown_member_is_rejected: [bond(&[9])] => [NoSuchLink 0];
        a_bridge_of_a_nic_a_bond_and_a_vlan_is_valid:
            [bridge(&[1, 2, 3]), nic(), bond(&[4]), vlan(4, 5), nic(), vlan(0, 6), bridge(&[])] => [];
        a_bridge_whose_port_is_a_vlan_on_the_bridge_is_a_loop: [bridge(&[1]), vlan(0, 5)] => [Loop 0, Loop 1];
        a_bridge_as_a_bridge_port_is_rejected: [bridge(&[1]), bridge(&[])] => [PortIsBridge 1];
        a_member_of_a_bond_and_of_a_bridge_is_rejected: [nic(), bond(&[0]), bridge(&[0])] => [PortTwice 0];
        a_bond_as_a_bond_member_is_rejected: [nic(), bond(&[0]), bond(&[1])] => [PortIsNoNic 1];
        a_vlan_as_a_bond_member_is_rejected: [nic(), vlan(0, 5), bond(&[1])] => [PortIsNoNic 1];
        a_member_of_two_bonds_is_rejected: [nic(), bond(&[0]), bond(&[0])] => [PortTwice 0];
        a_member_listed_twice_in_a_bond_is_rejected: [nic(), bond(&[0, 0])] => [PortTwice 0];
        two_vlans_with_one_parent_and_one_id_are_rejected: [nic(), vlan(0, 5), vlan(0, 6), vlan(0, 5)] => [VlanTwice 3];
        every_contradiction_between_links_is_reported: [vlan(0, 5), nic(), bond(&[1, 1]), vlan(1, 5), vlan(1, 5)]
            => [Loop 0, PortTwice 1, VlanTwice 4];
    }

    #[test]
    fn a_configuration_returns_the_bond_of_a_link_and_whether_the_link_carries_vlans() {
        let config = NetworkConfig::new(vec![nic(), nic(), bond(&[1]), vlan(2, 5)]).unwrap();
        let controllers = [0, 1, 2, 3].map(|at| config.controller_of(LinkIndex(at)));
        assert_eq!(controllers, [None, Some(LinkIndex(2)), None, None]);
        let carries = [0, 1, 2, 3].map(|at| config.carries_vlans(LinkIndex(at)));
        assert_eq!(carries, [false, false, true, false]);
    }
}
