//! What a `network_data.json` means.

mod links;
mod networks;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use super::{Link, Network, NetworkData, Scalar};
use crate::finding::{Finding, Findings, Place};
use crate::formats::convert::{self, Guess};
use crate::network::{self, Contradiction, Dns, Family, Ipv6Dynamic, LinkIndex, Mtu, NetworkConfig};

static LINKS: Place<'static> = Place::Field(&Place::Document, "links");
static NETWORKS: Place<'static> = Place::Field(&Place::Document, "networks");

/// What an entry of `links` is, by its `type`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Kind {
    Card,
    Bond,
    Vlan,
}

/// What an entry of `networks` asks for, by its `type`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Method {
    /// Of this family, or of either.
    Static(Option<Family>),
    Dhcp4,
    Dynamic6(Ipv6Dynamic),
    Unknown,
}

struct Converter<'d, 'f> {
    document: &'d NetworkData,
    findings: &'f mut Findings,
    by_id: BTreeMap<Cow<'d, str>, usize>,
    /// Of each entry of `links`.
    kinds: Vec<Kind>,
    /// Of each entry of `links`, where it is legal.
    mtus: Vec<Option<Mtu>>,
    /// Where the link of each entry of `links` is in the model. `None`: nobody asks for it.
    model: Vec<Option<LinkIndex>>,
    /// The entry that each link of the model came from.
    origin: Vec<usize>,
    /// The model. Where an entry could not be read, a card stands in its place.
    links: Vec<network::Link>,
    /// For every link of the model, the bond of which it is a port.
    bond_of: Vec<Option<LinkIndex>>,
    guesses: Vec<Guess>,
    dns: Dns,
}

// === impl NetworkData ===

impl NetworkData {
    /// Decides what the document means. Whatever it cannot mean becomes a finding with its consequence; a document
    /// without errors has a meaning, which may be that there is nothing to configure. `None`: there are errors.
    pub fn convert(&self, findings: &mut Findings) -> Option<NetworkConfig> {
        let mut converter = Converter {
            document: self,
            findings,
            by_id: BTreeMap::new(),
            kinds: Vec::new(),
            mtus: Vec::new(),
            model: Vec::new(),
            origin: Vec::new(),
            links: Vec::new(),
            bond_of: Vec::new(),
            guesses: Vec::new(),
            dns: Dns::default(),
        };
        converter.index_links();
        converter.choose_links();
        converter.make_links();
        converter.read_networks();
        converter.read_services(&self.services, &Place::Document);
        converter.finish()
    }
}

// === impl Converter ===

impl Converter<'_, '_> {
    fn finish(self) -> Option<NetworkConfig> {
        let (document, origin) = (self.document, self.origin);
        convert::put_together(self.findings, self.links, self.dns, &self.guesses, &|contradiction| {
            contradiction_finding(document, &origin, contradiction)
        })
    }

    fn find(&self, id: Option<&Scalar>) -> Option<usize> {
        self.by_id.get(id?.text().as_ref()).copied()
    }

    fn error(&mut self, place: &Place<'_>, name: &str, problem: &str, value: impl fmt::Display, expected: &str) {
        self.findings.push(Finding::error(place.field(name), problem, value, expected));
    }

    fn warning(&mut self, place: &Place<'_>, name: &str, problem: &str, value: impl fmt::Display, expected: &str) {
        self.findings.push(Finding::warning(place.field(name), problem, value, expected));
    }
}

fn contradiction_finding(document: &NetworkData, origin: &[usize], contradiction: Contradiction) -> Finding {
    let (at, problem, expected) = convert::contradiction(contradiction);
    let index = origin[at.0];
    let link = &document.links[index];
    let (field, value) = match contradiction {
        Contradiction::Loop(_) => ("vlan_link", &link.vlan_link),
        Contradiction::PortIsNoCard(_) | Contradiction::PortIsBridge(_) => ("type", &link.kind),
        Contradiction::VlanTwice(_) => ("vlan_id", &link.vlan_id),
        Contradiction::NoSuchLink(_) | Contradiction::PortTwice(_) => ("id", &link.id),
    };
    let value = value.as_ref().map_or(Cow::Borrowed(""), Scalar::text);
    Finding::error(LINKS.index(index).field(field), problem, value, expected)
}

// === impl Kind, Method ===

impl Kind {
    fn of(link: &Link) -> Self {
        match link.kind.as_ref().map(Scalar::text).as_deref() {
            Some("bond") => Self::Bond,
            Some("vlan") => Self::Vlan,
            _ => Self::Card,
        }
    }
}

impl Method {
    const EXPECTED: &'static str =
        "ipv4, ipv6, static, static6, ipv4_dhcp, ipv6_dhcp, ipv6_slaac, ipv6_dhcpv6-stateful or ipv6_dhcpv6-stateless";

    fn of(network: &Network) -> Self {
        match network.kind.as_ref().map(Scalar::text).as_deref() {
            Some("ipv4") => Self::Static(Some(Family::Ipv4)),
            Some("ipv6" | "static6") => Self::Static(Some(Family::Ipv6)),
            Some("static") => Self::Static(None),
            Some("ipv4_dhcp") => Self::Dhcp4,
            // What is older than the words for the kinds of DHCPv6 has the address from the server.
            Some("ipv6_dhcp" | "ipv6_dhcpv6-stateful") => Self::Dynamic6(Ipv6Dynamic::StatefulDhcp),
            Some("ipv6_dhcpv6-stateless") => Self::Dynamic6(Ipv6Dynamic::StatelessDhcp),
            Some("ipv6_slaac") => Self::Dynamic6(Ipv6Dynamic::Slaac),
            _ => Self::Unknown,
        }
    }
}
