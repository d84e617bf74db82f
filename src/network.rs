//! The model: what the guest's network should be.
//!
//! It knows no file format and no renderer. A [`NetworkConfig`] that exists is consistent: every reference between
//! links leads to a link of the same configuration, no link is made of itself, and a port belongs to one bond or bridge.

mod bond;
mod bridge;
mod default_routes;
mod family;
mod hostname;
mod names;
mod route;

pub use bond::{BondMode, BondOption, BondOptionError, BondOptions};
pub use bridge::{BridgeOptions, BridgePort};
pub use default_routes::DefaultRoutes;
pub use family::Family;
pub(crate) use hostname::is_label;
pub use hostname::{Hostname, HostnameError};
pub use names::{
    DomainName, DomainNameError, InterfaceName, InterfaceNameError, Mtu, MtuError, Pattern, PatternError, VlanId,
    VlanIdError, parse_mac_address,
};
pub(crate) use names::{MAC_ADDRESS_EXPECTED, Pairs};
pub use route::{MixedFamilies, Route};

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;

use ipnetwork::{Ipv4Network, Ipv6Network};
use pnet_base::MacAddr;

/// The network of one machine.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct NetworkConfig {
    links: Vec<Link>,
    /// For every link, what else is made of it.
    uses: Vec<Uses>,
    /// Who is asked for names on the whole machine.
    pub dns: Dns,
}

/// Who is asked for names.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Dns {
    /// Name servers, most important first, without repeats.
    pub nameservers: Vec<Placed<IpAddr>>,
    /// Domains in which short names are looked up, most important first, without repeats.
    pub search: Vec<Placed<DomainName>>,
}

/// A value with where it stands in the document.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Placed<T> {
    /// The value.
    pub value: T,
    /// Such as `services[0].address`. For messages only.
    pub place: String,
}

#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
struct Uses {
    controller: Option<LinkIndex>,
    vlans: bool,
    /// Whether a card is below.
    connected: bool,
}

/// The place of a link in its [`NetworkConfig`].
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct LinkIndex(pub usize);

/// One network interface and what is to be set on it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Link {
    /// What the document calls it. For messages only.
    pub id: String,
    /// Where it stands in the document, such as `links[0]`. For messages only.
    pub place: String,
    /// Where its name stands, such as `links[0].name`. For messages only.
    pub name_place: String,
    /// What it is made of.
    pub kind: LinkKind,
    /// The MTU that it shall have, in bytes.
    pub mtu: Option<Mtu>,
    /// The MAC address that it shall take on, where that is not its own: the one by which a card is known, that of a
    /// bond's or a bridge's first port, that of a VLAN's parent.
    pub cloned_mac_address: Option<MacAddr>,
    /// How it gets its IPv4 addresses.
    pub ipv4: Ipv4Config,
    /// How it gets its IPv6 addresses.
    pub ipv6: Ipv6Config,
    /// Who is asked for names through this link, beside [`NetworkConfig::dns`].
    pub dns: Dns,
    /// Routes through this link, in the document's order. A default route is one of them.
    pub routes: Vec<Route>,
    /// Whether the document states that this link gets no address.
    pub without_addresses: bool,
}

/// What a link is made of.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum LinkKind {
    /// A card of the machine.
    Card(Card),
    /// Several cards that act as one.
    Bond {
        /// The name that it gets.
        name: InterfaceName,
        /// At least one.
        ports: Vec<LinkIndex>,
        /// How it acts.
        options: BondOptions,
    },
    /// Links that are one network.
    Bridge {
        /// The name that it gets.
        name: InterfaceName,
        /// Cards, bonds and VLANs. There may be none yet.
        ports: Vec<LinkIndex>,
        /// How it acts.
        options: BridgeOptions,
    },
    /// A tagged network on another link.
    Vlan {
        /// The name that the document wishes. A renderer that cannot give it gives another.
        name: Option<InterfaceName>,
        /// What it is on.
        parent: LinkIndex,
        /// Its tag.
        id: VlanId,
    },
}

/// How a card of the machine is known.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Card {
    /// By its permanent address. The name is a wish: the one that the document gives it.
    MacAddress {
        /// Unicast and not zero.
        mac_address: MacAddr,
        /// A wish.
        name: Option<InterfaceName>,
    },
    /// By the name that the kernel and udev give it.
    Name(InterfaceName),
    /// By what it is like: every card that matches one of the names, if there are any, and one of the drivers, if there
    /// are any. One of the two there is.
    Pattern {
        /// The names that the kernel and udev may give it.
        names: Vec<Pattern>,
        /// The kernel's names of its driver.
        drivers: Vec<Pattern>,
        /// A wish.
        name: Option<InterfaceName>,
    },
}

/// IPv4 on one link. Neither: the family is not used there.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Ipv4Config {
    /// Ask a DHCP server.
    pub dhcp: bool,
    /// What of the server's answer counts.
    pub dhcp_overrides: DhcpOverrides,
    /// Static addresses with their prefix length, in the document's order.
    pub addresses: Vec<Ipv4Network>,
}

/// IPv6 on one link. Neither: the family is not used there.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Ipv6Config {
    /// Ask the routers, and perhaps a DHCP server.
    pub dynamic: Option<Ipv6Dynamic>,
    /// Whether router advertisements are listened to, where the document says so. Beside [`Ipv6Config::dynamic`], which
    /// asks for addresses.
    pub accept_ra: Option<bool>,
    /// What of the server's answer counts.
    pub dhcp_overrides: DhcpOverrides,
    /// Static addresses with their prefix length, in the document's order.
    pub addresses: Vec<Ipv6Network>,
}

/// What of a DHCP server's answer counts, where the document says so (netplan's `dhcp4-overrides`).
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct DhcpOverrides {
    /// The metric of the routes that it gives.
    pub route_metric: Option<Placed<u32>>,
    /// Whether its routes are used.
    pub use_routes: Option<bool>,
    /// Whether its name servers are used.
    pub use_dns: Option<bool>,
    /// Whether its domains are used.
    pub use_domains: Option<bool>,
    /// Whether the hostname that it gives is used.
    pub use_hostname: Option<bool>,
    /// Whether it is told the hostname.
    pub send_hostname: Option<bool>,
    /// Whether the MTU that it gives is used.
    pub use_mtu: Option<bool>,
    /// Whether its time servers are used.
    pub use_ntp: Option<bool>,
}

/// How a link asks for IPv6 addresses, the more demanding ones last.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Ipv6Dynamic {
    /// Addresses are made from router advertisements (RFC 4862).
    Slaac,
    /// As [`Ipv6Dynamic::Slaac`], with other settings from a DHCPv6 server.
    StatelessDhcp,
    /// Addresses from a DHCPv6 server (RFC 8415).
    StatefulDhcp,
}

/// A [`NetworkConfig`] that contradicts itself, with the links concerned.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Contradiction {
    /// A VLAN, a bond or a bridge refers to a link that is not there.
    NoSuchLink(LinkIndex),
    /// A link is, through what it is made of, made of itself.
    Loop(LinkIndex),
    /// A bond's port is no card.
    PortIsNoCard(LinkIndex),
    /// A bridge's port is a bridge.
    PortIsBridge(LinkIndex),
    /// A link is a port of two bonds or bridges, or twice of one.
    PortTwice(LinkIndex),
    /// Two VLANs with one id on one parent.
    VlanTwice(LinkIndex),
}

// === impl NetworkConfig ===

impl NetworkConfig {
    /// Puts links together, in the document's order.
    ///
    /// # Errors
    ///
    /// Every [`Contradiction`] between them.
    pub fn new(links: Vec<Link>) -> Result<Self, Vec<Contradiction>> {
        let contradictions = contradictions(&links);
        if contradictions.is_empty() {
            let uses = uses(&links);
            Ok(Self { links, uses, dns: Dns::default() })
        } else {
            Err(contradictions)
        }
    }

    /// Whether it asks for nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.links.is_empty() && self.dns == Dns::default()
    }

    /// The links, in the document's order.
    #[must_use]
    pub fn links(&self) -> &[Link] {
        &self.links
    }

    /// One of them. Every index that this configuration holds leads to one.
    #[must_use]
    pub fn link(&self, index: LinkIndex) -> &Link {
        &self.links[index.0]
    }

    /// The bond or the bridge of which a link is a port.
    #[must_use]
    pub fn controller_of(&self, port: LinkIndex) -> Option<LinkIndex> {
        self.uses[port.0].controller
    }

    /// Whether the document asks for nothing but that some links get no address. The distribution's default, which may be
    /// DHCP, would contradict it.
    #[must_use]
    pub fn states_no_addresses(&self) -> bool {
        !self.links.iter().any(Link::asks) && self.links.iter().any(|link| link.without_addresses)
    }

    /// Every name server once, those of the whole machine first.
    #[must_use]
    pub fn nameservers(&self) -> Vec<&Placed<IpAddr>> {
        let of_links = self.links.iter().flat_map(|link| &link.dns.nameservers);
        let mut seen = BTreeSet::new();
        self.dns.nameservers.iter().chain(of_links).filter(|server| seen.insert(server.value)).collect()
    }

    /// Whether a link is a card, or has a card below: not a bridge without ports, nor what is on such a bridge.
    #[must_use]
    pub fn is_connected(&self, index: LinkIndex) -> bool {
        self.uses[index.0].connected
    }

    /// The links in the document's order, but each after what it is made of.
    #[must_use]
    pub fn parents_first(&self) -> Vec<LinkIndex> {
        parents_first(&self.links)
    }

    /// Whether VLANs are on a link.
    #[must_use]
    pub fn carries_vlans(&self, parent: LinkIndex) -> bool {
        self.uses[parent.0].vlans
    }
}

/// Links in the document's order, but each after what it is made of.
fn parents_first(links: &[Link]) -> Vec<LinkIndex> {
    let mut order = Vec::new();
    let mut placed = vec![false; links.len()];
    for index in (0..placed.len()).map(LinkIndex) {
        // What is on the way, and how much of what it is made of has been seen to.
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
            LinkKind::Card(_) => {}
            LinkKind::Bond { ports, .. } | LinkKind::Bridge { ports, .. } => {
                ports.iter().for_each(|port| uses[port.0].controller = Some(LinkIndex(index)));
            }
            LinkKind::Vlan { parent, .. } => uses[parent.0].vlans = true,
        }
    }
    for index in parents_first(links) {
        let kind = &links[index.0].kind;
        let is_below = |below: &LinkIndex| uses[below.0].connected;
        uses[index.0].connected = matches!(kind, LinkKind::Card(_)) || kind.made_of().iter().any(is_below);
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
                (LinkKind::Bond { .. }, Some(LinkKind::Card(_))) => ports.push(*at),
                (LinkKind::Bond { .. }, _) => found.push(Contradiction::PortIsNoCard(*at)),
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

/// Links that are left when every link is taken away as soon as all that it is made of is.
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

// === impl Link ===

impl Link {
    /// A link on which nothing is to be set yet.
    #[must_use]
    pub fn new(id: String, place: String, kind: LinkKind) -> Self {
        Self {
            id,
            name_place: format!("{place}.name"),
            place,
            kind,
            mtu: None,
            cloned_mac_address: None,
            ipv4: Ipv4Config::default(),
            ipv6: Ipv6Config::default(),
            dns: Dns::default(),
            routes: Vec::new(),
            without_addresses: false,
        }
    }

    /// Whether anything is to be done about it: a card that is only there is left alone.
    #[must_use]
    pub fn asks(&self) -> bool {
        let is_made = !matches!(self.kind, LinkKind::Card(_));
        is_made || self.has_addresses() || self.mtu.is_some() || self.cloned_mac_address.is_some()
    }

    /// Whether any address, of either family and from any source, is to be on this link.
    #[must_use]
    pub fn has_addresses(&self) -> bool {
        self.ipv4.is_used() || self.ipv6.is_used()
    }

    /// Whether the link has addresses of a route's family: without one the route leads nowhere.
    #[must_use]
    pub fn can_route(&self, route: &Route) -> bool {
        if route.destination().is_ipv4() { self.ipv4.is_used() } else { self.ipv6.is_used() }
    }

    /// The address that the link takes on, or else the one by which it is known.
    #[must_use]
    pub fn mac_address(&self) -> Option<MacAddr> {
        match &self.kind {
            LinkKind::Card(Card::MacAddress { mac_address, .. }) => self.cloned_mac_address.or(Some(*mac_address)),
            _ => self.cloned_mac_address,
        }
    }
}

// === impl Placed ===

impl<T> From<T> for Placed<T> {
    /// Of no document.
    fn from(value: T) -> Self {
        Self { value, place: String::new() }
    }
}

impl<T: fmt::Display> fmt::Display for Placed<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.value.fmt(f)
    }
}

// === impl LinkKind ===

impl LinkKind {
    /// The links of which this one is made: a bond's or a bridge's ports, a VLAN's parent.
    #[must_use]
    pub fn made_of(&self) -> &[LinkIndex] {
        match self {
            Self::Card(_) => &[],
            Self::Bond { ports, .. } | Self::Bridge { ports, .. } => ports,
            Self::Vlan { parent, .. } => std::slice::from_ref(parent),
        }
    }
}

// === impl Ipv4Config, Ipv6Config ===

impl Ipv4Config {
    /// Whether the family is used.
    #[must_use]
    pub fn is_used(&self) -> bool {
        self.dhcp || !self.addresses.is_empty()
    }
}

impl Ipv6Config {
    /// Whether the family is used.
    #[must_use]
    pub fn is_used(&self) -> bool {
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
            Self::NoSuchLink(at) => write!(f, "link {} refers to a link that is not there", at.0),
            Self::Loop(at) => write!(f, "link {} is made of itself", at.0),
            Self::PortIsNoCard(at) => write!(f, "link {} is a bond's port and no card", at.0),
            Self::PortIsBridge(at) => write!(f, "link {} is a bridge's port and a bridge", at.0),
            Self::PortTwice(at) => write!(f, "link {} is a port twice", at.0),
            Self::VlanTwice(at) => write!(f, "link {} is a VLAN that its parent has already", at.0),
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

    fn card() -> Link {
        link(LinkKind::Card(Card::Name("eno1".parse().unwrap())))
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
        a_chain_of_vlans_on_a_bond_is_fine: [vlan(1, 7), vlan(2, 6), bond(&[3, 4]), card(), card()] => [];
        one_id_on_two_parents_is_fine: [card(), card(), vlan(0, 5), vlan(1, 5)] => [];
        a_vlan_on_a_port_is_fine: [card(), bond(&[0]), vlan(0, 5)] => [];
        a_vlan_on_itself: [vlan(0, 5)] => [Loop 0];
        vlans_on_each_other_and_one_that_hangs_on_them:
            [vlan(1, 5), vlan(2, 5), vlan(1, 6), card(), vlan(3, 5)] => [Loop 0, Loop 1, Loop 2];
        a_parent_that_is_not_there: [vlan(9, 5), vlan(0, 6)] => [NoSuchLink 0];
        a_port_that_is_not_there: [bond(&[9])] => [NoSuchLink 0];
        a_bridge_of_a_card_a_bond_and_a_vlan_is_fine:
            [bridge(&[1, 2, 3]), card(), bond(&[4]), vlan(4, 5), card(), vlan(0, 6), bridge(&[])] => [];
        a_bridge_of_a_vlan_on_itself: [bridge(&[1]), vlan(0, 5)] => [Loop 0, Loop 1];
        a_bridge_of_a_bridge: [bridge(&[1]), bridge(&[])] => [PortIsBridge 1];
        a_port_of_a_bond_and_of_a_bridge: [card(), bond(&[0]), bridge(&[0])] => [PortTwice 0];
        a_bond_of_a_bond: [card(), bond(&[0]), bond(&[1])] => [PortIsNoCard 1];
        a_bond_of_a_vlan: [card(), vlan(0, 5), bond(&[1])] => [PortIsNoCard 1];
        a_port_of_two_bonds: [card(), bond(&[0]), bond(&[0])] => [PortTwice 0];
        a_port_twice_in_a_bond: [card(), bond(&[0, 0])] => [PortTwice 0];
        one_id_twice_on_one_parent: [card(), vlan(0, 5), vlan(0, 6), vlan(0, 5)] => [VlanTwice 3];
        all_of_them_at_once: [vlan(0, 5), card(), bond(&[1, 1]), vlan(1, 5), vlan(1, 5)]
            => [Loop 0, PortTwice 1, VlanTwice 4];
    }

    #[test]
    fn a_link_knows_what_is_made_of_it() {
        let config = NetworkConfig::new(vec![card(), card(), bond(&[1]), vlan(2, 5)]).unwrap();
        let controllers = [0, 1, 2, 3].map(|at| config.controller_of(LinkIndex(at)));
        assert_eq!(controllers, [None, Some(LinkIndex(2)), None, None]);
        let carries = [0, 1, 2, 3].map(|at| config.carries_vlans(LinkIndex(at)));
        assert_eq!(carries, [false, false, true, false]);
    }
}
