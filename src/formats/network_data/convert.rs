//! Converts a `network_data.json` to the model.

mod links;
mod networks;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use super::{Link, Network, NetworkData, Scalar};
use crate::diagnostic::{Diagnostic, Diagnostics, FieldPath};
use crate::formats::convert::{self, Guess};
use crate::network::{self, Contradiction, Dns, Family, Ipv6Dynamic, LinkIndex, Mtu, NetworkConfig};

static LINKS: FieldPath<'static> = FieldPath::Field(&FieldPath::Document, "links");
static NETWORKS: FieldPath<'static> = FieldPath::Field(&FieldPath::Document, "networks");

/// The kind of an entry of `links`, according to its `type`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum LinkType {
    Nic,
    Bond,
    Vlan,
}

/// How an entry of `networks` gets its addresses, according to its `type`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Method {
    /// A static address of this family, or of either family.
    Static(Option<Family>),
    Dhcp4,
    Dynamic6(Ipv6Dynamic),
    Unknown,
}

struct Converter<'d, 'f> {
    document: &'d NetworkData,
    diagnostics: &'f mut Diagnostics,
    by_id: BTreeMap<Cow<'d, str>, usize>,
    /// The kind of each entry of `links`.
    kinds: Vec<LinkType>,
    /// The MTU of each entry of `links`; `None` if it is missing or invalid.
    mtus: Vec<Option<Mtu>>,
    /// For each entry of `links`, the index of its link in the model. `None` if the link is not in the model.
    model: Vec<Option<LinkIndex>>,
    /// Number of the links of the model that the machine needs. The NICs that get no address follow these links.
    needed: usize,
    /// For each link of the model, the index of its entry in `links`.
    origin: Vec<usize>,
    /// The links of the model. A placeholder NIC stands for an invalid entry.
    links: Vec<network::Link>,
    /// For each link of the model, the bond that has it as a member.
    bond_of: Vec<Option<LinkIndex>>,
    guesses: Vec<Guess>,
    dns: Dns,
}

// === impl NetworkData ===

impl NetworkData {
    /// Converts the document to the model. Each value that cannot be converted is reported with its consequence. A
    /// document without errors always gives a model, which may be empty. `None` if there are errors.
    pub fn convert(&self, diagnostics: &mut Diagnostics) -> Option<NetworkConfig> {
        let mut converter = Converter {
            document: self,
            diagnostics,
            by_id: BTreeMap::new(),
            kinds: Vec::new(),
            mtus: Vec::new(),
            model: Vec::new(),
            needed: 0,
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
        converter.read_services(&self.services, &FieldPath::Document);
        converter.finish()
    }
}

// === impl Converter ===

impl Converter<'_, '_> {
    fn finish(self) -> Option<NetworkConfig> {
        let (document, origin) = (self.document, self.origin);
        convert::put_together(self.diagnostics, self.links, self.dns, &self.guesses, &|contradiction| {
            contradiction_diagnostic(document, &origin, contradiction)
        })
    }

    fn find(&self, id: Option<&Scalar>) -> Option<usize> {
        self.by_id.get(id?.text().as_ref()).copied()
    }

    fn error(&mut self, path: &FieldPath<'_>, name: &str, problem: &str, value: impl fmt::Display, expected: &str) {
        self.diagnostics.push(Diagnostic::error(path.field(name), problem, value, expected));
    }

    fn warning(&mut self, path: &FieldPath<'_>, name: &str, problem: &str, value: impl fmt::Display, expected: &str) {
        self.diagnostics.push(Diagnostic::warning(path.field(name), problem, value, expected));
    }
}

fn contradiction_diagnostic(document: &NetworkData, origin: &[usize], contradiction: Contradiction) -> Diagnostic {
    let (at, problem, expected) = convert::contradiction(contradiction);
    let index = origin[at.0];
    let link = &document.links[index];
    let (field, value) = match contradiction {
        Contradiction::Loop(_) => ("vlan_link", &link.vlan_link),
        Contradiction::PortIsNoNic(_) | Contradiction::PortIsBridge(_) => ("type", &link.kind),
        Contradiction::VlanTwice(_) => ("vlan_id", &link.vlan_id),
        Contradiction::NoSuchLink(_) | Contradiction::PortTwice(_) => ("id", &link.id),
    };
    let value = value.as_ref().map_or(Cow::Borrowed(""), Scalar::text);
    Diagnostic::error(LINKS.index(index).field(field), problem, value, expected)
}

// === impl LinkType, Method ===

impl LinkType {
    fn of(link: &Link) -> Self {
        match link.kind.as_ref().map(Scalar::text).as_deref() {
            Some("bond") => Self::Bond,
            Some("vlan") => Self::Vlan,
            _ => Self::Nic,
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
            // `ipv6_dhcp` is older than the two words that name the kind of DHCPv6, and requests an address from the
            // server.
            Some("ipv6_dhcp" | "ipv6_dhcpv6-stateful") => Self::Dynamic6(Ipv6Dynamic::StatefulDhcp),
            Some("ipv6_dhcpv6-stateless") => Self::Dynamic6(Ipv6Dynamic::StatelessDhcp),
            Some("ipv6_slaac") => Self::Dynamic6(Ipv6Dynamic::Slaac),
            _ => Self::Unknown,
        }
    }
}
