//! The model: what the guest's network should be.
//!
//! It knows no file format and no renderer. A [`NetworkConfig`] that exists is consistent: every reference between
//! links leads to a link of the same configuration, VLANs never form a loop, and a port belongs to one bond.

mod bond;
mod names;
mod route;

pub use bond::{BondMode, BondOption, BondOptionError, BondOptions};
pub(crate) use names::MAC_ADDRESS_EXPECTED;
pub use names::{
    DomainName, DomainNameError, InterfaceName, InterfaceNameError, Mtu, MtuError, VlanId, VlanIdError,
    parse_mac_address,
};
pub use route::{MixedFamilies, Route};

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
    /// Name servers, most important first, without repeats.
    pub nameservers: Vec<IpAddr>,
    /// Domains in which short names are looked up, most important first.
    pub search: Vec<DomainName>,
}

#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
struct Uses {
    bond: Option<LinkIndex>,
    vlans: bool,
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
    /// What it is made of.
    pub kind: LinkKind,
    /// The MTU that it shall have, in bytes.
    pub mtu: Option<Mtu>,
    /// How it gets its IPv4 addresses.
    pub ipv4: Ipv4Config,
    /// How it gets its IPv6 addresses.
    pub ipv6: Ipv6Config,
    /// Routes through this link, in the document's order. A default route is one of them.
    pub routes: Vec<Route>,
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
        /// The address that it shall have, where that is not its first port's.
        mac_address: Option<MacAddr>,
    },
    /// A tagged network on another link.
    Vlan {
        /// The name that the document wishes. A renderer that cannot give it gives another.
        name: Option<InterfaceName>,
        /// What it is on.
        parent: LinkIndex,
        /// Its tag.
        id: VlanId,
        /// The address that it shall have, where that is not its parent's.
        mac_address: Option<MacAddr>,
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
}

/// IPv4 on one link. Neither: the family is not used there.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Ipv4Config {
    /// Ask a DHCP server.
    pub dhcp: bool,
    /// Static addresses with their prefix length, in the document's order.
    pub addresses: Vec<Ipv4Network>,
}

/// IPv6 on one link. Neither: the family is not used there.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Ipv6Config {
    /// Ask the routers, and perhaps a DHCP server.
    pub dynamic: Option<Ipv6Dynamic>,
    /// Static addresses with their prefix length, in the document's order.
    pub addresses: Vec<Ipv6Network>,
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
    /// A VLAN or a bond refers to a link that is not there.
    NoSuchLink(LinkIndex),
    /// A VLAN is, through its parents, on itself.
    VlanLoop(LinkIndex),
    /// A bond's port is no card.
    PortIsNoCard(LinkIndex),
    /// A card is a port of two bonds, or twice of one.
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
            Ok(Self { links, uses, nameservers: Vec::new(), search: Vec::new() })
        } else {
            Err(contradictions)
        }
    }

    /// Whether it asks for nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.links.is_empty() && self.nameservers.is_empty() && self.search.is_empty()
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

    /// The bond of which a link is a port.
    #[must_use]
    pub fn bond_of(&self, port: LinkIndex) -> Option<LinkIndex> {
        self.uses[port.0].bond
    }

    /// Whether VLANs are on a link.
    #[must_use]
    pub fn carries_vlans(&self, parent: LinkIndex) -> bool {
        self.uses[parent.0].vlans
    }
}

fn uses(links: &[Link]) -> Vec<Uses> {
    let mut uses = vec![Uses::default(); links.len()];
    for (index, link) in links.iter().enumerate() {
        match &link.kind {
            LinkKind::Card(_) => {}
            LinkKind::Bond { ports, .. } => ports.iter().for_each(|port| uses[port.0].bond = Some(LinkIndex(index))),
            LinkKind::Vlan { parent, .. } => uses[parent.0].vlans = true,
        }
    }
    uses
}

fn contradictions(links: &[Link]) -> Vec<Contradiction> {
    let mut found = Vec::new();
    let mut ports = Vec::new();
    let mut vlans = Vec::new();
    for (index, link) in links.iter().enumerate() {
        let here = LinkIndex(index);
        match &link.kind {
            LinkKind::Card(_) => {}
            LinkKind::Bond { ports: own, .. } => {
                for port in own {
                    match links.get(port.0).map(|link| &link.kind) {
                        None => found.push(Contradiction::NoSuchLink(here)),
                        Some(LinkKind::Card(_)) => ports.push(*port),
                        Some(_) => found.push(Contradiction::PortIsNoCard(*port)),
                    }
                }
            }
            LinkKind::Vlan { parent, .. } if parent.0 >= links.len() => found.push(Contradiction::NoSuchLink(here)),
            LinkKind::Vlan { parent, id, .. } => vlans.push((*parent, *id, here)),
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

/// VLANs whose parents never end in something that is no VLAN.
fn loops(links: &[Link]) -> Vec<Contradiction> {
    #[derive(Clone, Copy, PartialEq)]
    enum Seen {
        Not,
        InThisWalk,
        Ends,
        Loops,
    }
    let mut seen = vec![Seen::Not; links.len()];
    let mut found = Vec::new();
    for start in 0..links.len() {
        let mut walk = Vec::new();
        let mut at = start;
        let end = loop {
            match (seen.get(at), links.get(at).map(|link| &link.kind)) {
                (Some(Seen::Not), Some(LinkKind::Vlan { parent, .. })) => {
                    seen[at] = Seen::InThisWalk;
                    walk.push(at);
                    at = parent.0;
                }
                (Some(Seen::InThisWalk | Seen::Loops), _) => break Seen::Loops,
                _ => break Seen::Ends,
            }
        };
        walk.iter().for_each(|at| seen[*at] = end);
        if seen[start] == Seen::Loops {
            found.push(Contradiction::VlanLoop(LinkIndex(start)));
        }
    }
    found
}

// === impl Link ===

impl Link {
    /// Whether any address, of either family and from any source, is to be on this link.
    #[must_use]
    pub fn has_addresses(&self) -> bool {
        self.ipv4.is_used() || self.ipv6.is_used()
    }

    /// The address by which the link is known, or which it is given.
    #[must_use]
    pub fn mac_address(&self) -> Option<MacAddr> {
        match &self.kind {
            LinkKind::Card(Card::MacAddress { mac_address, .. }) => Some(*mac_address),
            LinkKind::Card(Card::Name(_)) => None,
            LinkKind::Bond { mac_address, .. } | LinkKind::Vlan { mac_address, .. } => *mac_address,
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
            Self::VlanLoop(at) => write!(f, "link {} is a VLAN on itself", at.0),
            Self::PortIsNoCard(at) => write!(f, "link {} is a bond's port and no card", at.0),
            Self::PortTwice(at) => write!(f, "link {} is a bond's port twice", at.0),
            Self::VlanTwice(at) => write!(f, "link {} is a VLAN that its parent has already", at.0),
        }
    }
}

impl std::error::Error for Contradiction {}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(kind: LinkKind) -> Link {
        let (ipv4, ipv6, routes) = (Ipv4Config::default(), Ipv6Config::default(), Vec::new());
        Link { id: String::new(), place: String::new(), kind, mtu: None, ipv4, ipv6, routes }
    }

    fn card() -> Link {
        link(LinkKind::Card(Card::Name("eno1".parse().unwrap())))
    }

    fn bond(ports: &[usize]) -> Link {
        let ports = ports.iter().copied().map(LinkIndex).collect();
        let name = "bond0".parse().unwrap();
        link(LinkKind::Bond { name, ports, options: BondOptions::default(), mac_address: None })
    }

    fn vlan(parent: usize, id: i64) -> Link {
        let id = VlanId::try_from(id).unwrap();
        link(LinkKind::Vlan { name: None, parent: LinkIndex(parent), id, mac_address: None })
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
        a_vlan_on_itself: [vlan(0, 5)] => [VlanLoop 0];
        vlans_on_each_other_and_one_that_hangs_on_them:
            [vlan(1, 5), vlan(2, 5), vlan(1, 6), card(), vlan(3, 5)] => [VlanLoop 0, VlanLoop 1, VlanLoop 2];
        a_parent_that_is_not_there: [vlan(9, 5), vlan(0, 6)] => [NoSuchLink 0];
        a_port_that_is_not_there: [bond(&[9])] => [NoSuchLink 0];
        a_bond_of_a_bond: [card(), bond(&[0]), bond(&[1])] => [PortIsNoCard 1];
        a_bond_of_a_vlan: [card(), vlan(0, 5), bond(&[1])] => [PortIsNoCard 1];
        a_port_of_two_bonds: [card(), bond(&[0]), bond(&[0])] => [PortTwice 0];
        a_port_twice_in_a_bond: [card(), bond(&[0, 0])] => [PortTwice 0];
        one_id_twice_on_one_parent: [card(), vlan(0, 5), vlan(0, 6), vlan(0, 5)] => [VlanTwice 3];
        all_of_them_at_once: [vlan(0, 5), card(), bond(&[1, 1]), vlan(1, 5), vlan(1, 5)]
            => [VlanLoop 0, PortTwice 1, VlanTwice 4];
    }

    #[test]
    fn a_link_knows_what_is_made_of_it() {
        let config = NetworkConfig::new(vec![card(), card(), bond(&[1]), vlan(2, 5)]).unwrap();
        let bonds = [0, 1, 2, 3].map(|at| config.bond_of(LinkIndex(at)));
        assert_eq!(bonds, [None, Some(LinkIndex(2)), None, None]);
        let carries = [0, 1, 2, 3].map(|at| config.carries_vlans(LinkIndex(at)));
        assert_eq!(carries, [false, false, true, false]);
    }
}
