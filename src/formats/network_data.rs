//! OpenStack's `network_data.json`.
//!
//! The schema is `openstack/nova:doc/api_schemas/network_data.json`, the writer `openstack/nova:nova/virt/netutils.py`,
//! the reader whose meaning counts `canonical/cloud-init:cloudinit/sources/helpers/openstack.py`. The types here mirror
//! the document and decide nothing; [`NetworkData::convert`] decides.

mod convert;

use std::borrow::Cow;
use std::fmt;

use super::value::{Object, Value};
use crate::finding::{Finding, Findings, Place, Severity};

/// The most items of a list: of links, of networks, and also of words in one text.
pub const MAX_ITEMS: usize = 4096;

/// A document, as it was written.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NetworkData {
    /// Interfaces of the machine, physical or not.
    pub links: Vec<Link>,
    /// What is to be set on them.
    pub networks: Vec<Network>,
    /// Services for the whole machine.
    pub services: Vec<Service>,
}

/// One of `links`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Link {
    /// What networks, bonds and VLANs call it.
    pub id: Option<Scalar>,
    /// `phy` and other words for a card, `bond` or `vlan`. In the document: `type`.
    pub kind: Option<Scalar>,
    /// Not in the schema, but in use: the name that the interface has, or shall have.
    pub name: Option<Scalar>,
    /// Of a card or a bond.
    pub ethernet_mac_address: Option<Scalar>,
    /// In bytes.
    pub mtu: Option<Scalar>,
    /// Of a VLAN: the id of its parent.
    pub vlan_link: Option<Scalar>,
    /// Of a VLAN: its tag.
    pub vlan_id: Option<Scalar>,
    /// Of a VLAN.
    pub vlan_mac_address: Option<Scalar>,
    /// Of a bond: the ids of its ports.
    pub bond_links: Vec<Scalar>,
    /// Of a bond: every other member that begins with `bond_` or `bond-`, as written.
    pub bond_options: Vec<(String, Value)>,
}

/// One of `networks`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Network {
    /// The id of its link.
    pub link: Option<Scalar>,
    /// `ipv4`, `ipv6_slaac` and so on. In the document: `type`.
    pub kind: Option<Scalar>,
    /// With or without a prefix length.
    pub ip_address: Option<Scalar>,
    /// As an address or a length.
    pub netmask: Option<Scalar>,
    /// Not in the schema, but in use: the next hop of a default route.
    pub gateway: Option<Scalar>,
    /// Routes through its link.
    pub routes: Vec<Route>,
    /// Services on this network.
    pub services: Vec<Service>,
    /// Not in the schema, but in use: name servers.
    pub dns_nameservers: Vec<Scalar>,
    /// Not in the schema, but in use: domains in which short names are looked up.
    pub dns_search: Vec<Scalar>,
}

/// One of the `routes` of a network.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Route {
    /// Where it leads: an address, a CIDR, or `default`.
    pub network: Option<Scalar>,
    /// As an address or a length.
    pub netmask: Option<Scalar>,
    /// The next hop; without one the destination is on the link.
    pub gateway: Option<Scalar>,
    /// Lower is preferred.
    pub metric: Option<Scalar>,
    /// Services behind it.
    pub services: Vec<Service>,
}

/// One of the `services` of a document, a network or a route.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Service {
    /// `dns`. In the document: `type`.
    pub kind: Option<Scalar>,
    /// Of a name server.
    pub address: Option<Scalar>,
    /// Domains in which short names are looked up.
    pub search: Vec<Scalar>,
}

/// Text or a whole number: authors write one where the schema has the other.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Scalar {
    /// As it was written.
    Text(String),
    /// As it was written.
    Integer(i64),
}

/// Reads members of objects into the types above, and says what does not fit.
struct Reader<'f> {
    findings: &'f mut Findings,
}

// === impl NetworkData ===

impl NetworkData {
    /// Reads a document's tree. What is not of the right shape becomes a finding, and is left out.
    pub fn read(document: &Object, findings: &mut Findings) -> Self {
        let mut reader = Reader { findings };
        let here = Place::Document;
        Self {
            // Without its links a network has nothing to stand on, and says so itself.
            links: reader.items(document, (&here, "links"), Severity::Warning, Reader::link),
            networks: reader.items(document, (&here, "networks"), Severity::Error, Reader::network),
            services: reader.services(document, &here),
        }
    }
}

// === impl Scalar ===

impl Scalar {
    /// A value as text or number. `null` is absent; what is neither becomes a text that no field takes, so that the
    /// check of the field names the place and what was expected there.
    fn of(value: &Value) -> Option<Self> {
        match value {
            Value::Null => None,
            Value::Integer(number) => Some(Self::Integer(*number)),
            Value::Bool(_) => Some(Self::Text(value.kind().to_owned())),
            other => Some(Self::Text(other.to_string())),
        }
    }

    /// As text, the same for `7` and `"7"`.
    #[must_use]
    pub fn text(&self) -> Cow<'_, str> {
        match self {
            Self::Text(text) => Cow::Borrowed(text),
            Self::Integer(number) => Cow::Owned(number.to_string()),
        }
    }

    /// The number, also where it was written as text.
    #[must_use]
    pub fn integer(&self) -> Option<i64> {
        match self {
            Self::Integer(number) => Some(*number),
            Self::Text(text) => text.parse().ok(),
        }
    }
}

impl fmt::Display for Scalar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => f.write_str(text),
            Self::Integer(number) => number.fmt(f),
        }
    }
}

// === impl Reader ===

impl Reader<'_> {
    /// The elements of an array of objects.
    fn items<T: Default + PartialEq>(
        &mut self,
        parent: &Object,
        at: (&Place<'_>, &str),
        otherwise: Severity,
        read: fn(&mut Self, &Object, &Place<'_>) -> T,
    ) -> Vec<T> {
        let elements = self.array(parent, at, otherwise);
        let place = at.0.field(at.1);
        let read_one = |(index, element): (usize, &Value)| {
            let place = place.index(index);
            // What says nothing is a default in the list, so that the places of those that follow stay the document's.
            let item = if let Value::Object(object) = element { read(self, object, &place) } else { T::default() };
            if !matches!(element, Value::Object(_)) {
                self.findings.push(Finding::new(otherwise, place, "invalid item", element.kind(), "an object"));
            } else if otherwise == Severity::Error && item == T::default() {
                let expected = "the members that the schema requires";
                self.findings.push(Finding::without_value(otherwise, place, "nothing known in it", expected));
            }
            item
        };
        elements.iter().enumerate().map(read_one).collect()
    }

    /// The elements of an array. `null` is empty; anything else is reported and empty.
    fn array<'v>(&mut self, parent: &'v Object, (place, name): (&Place<'_>, &str), otherwise: Severity) -> &'v [Value] {
        match parent.get(name) {
            None | Some(Value::Null) => &[],
            Some(Value::Array(array)) if self.may_have((place, name), array.len()) => array,
            Some(Value::Array(_)) => &[],
            Some(other) => {
                let place = place.field(name);
                self.findings.push(Finding::new(otherwise, place, "invalid list", other.kind(), "an array"));
                &[]
            }
        }
    }

    /// Whether a list may have so many items.
    fn may_have(&mut self, (place, name): (&Place<'_>, &str), items: usize) -> bool {
        if items > MAX_ITEMS {
            let expected = format!("at most {MAX_ITEMS}");
            self.findings.push(Finding::error(place.field(name), "too many items", items, &expected));
        }
        items <= MAX_ITEMS
    }

    fn link(&mut self, object: &Object, place: &Place<'_>) -> Link {
        let scalar = |name| Scalar::of(object.get(name)?);
        let is_bond = matches!(object.get("type"), Some(Value::String(kind)) if kind == "bond");
        Link {
            id: scalar("id"),
            kind: scalar("type"),
            name: scalar("name"),
            ethernet_mac_address: scalar("ethernet_mac_address"),
            mtu: scalar("mtu"),
            vlan_link: scalar("vlan_link"),
            vlan_id: scalar("vlan_id"),
            vlan_mac_address: scalar("vlan_mac_address"),
            bond_links: if is_bond { self.scalars(object, (place, "bond_links"), Severity::Error) } else { Vec::new() },
            bond_options: if is_bond { bond_options(object) } else { Vec::new() },
        }
    }

    fn network(&mut self, object: &Object, place: &Place<'_>) -> Network {
        let scalar = |name| Scalar::of(object.get(name)?);
        Network {
            link: scalar("link"),
            kind: scalar("type"),
            ip_address: scalar("ip_address"),
            netmask: scalar("netmask"),
            gateway: scalar("gateway"),
            routes: self.items(object, (place, "routes"), Severity::Error, Reader::route),
            services: self.services(object, place),
            dns_nameservers: self.words(object, (place, "dns_nameservers")),
            dns_search: self.words(object, (place, "dns_search")),
        }
    }

    fn route(&mut self, object: &Object, place: &Place<'_>) -> Route {
        let scalar = |name| Scalar::of(object.get(name)?);
        Route {
            network: scalar("network"),
            netmask: scalar("netmask"),
            gateway: scalar("gateway"),
            metric: scalar("metric"),
            services: self.services(object, place),
        }
    }

    fn services(&mut self, parent: &Object, place: &Place<'_>) -> Vec<Service> {
        self.items(parent, (place, "services"), Severity::Warning, |reader, object, place| Service {
            kind: object.get("type").and_then(Scalar::of),
            address: object.get("address").and_then(Scalar::of),
            search: reader.words(object, (place, "search")),
        })
    }

    fn scalars(&mut self, object: &Object, at: (&Place<'_>, &str), otherwise: Severity) -> Vec<Scalar> {
        // Here `null` is no absence: it stands where an element was meant.
        let scalar = |value| Scalar::of(value).unwrap_or_else(|| Scalar::Text("null".to_owned()));
        self.array(object, at, otherwise).iter().map(scalar).collect()
    }

    /// A list of words, or one text with blanks or commas between them.
    fn words(&mut self, object: &Object, at: (&Place<'_>, &str)) -> Vec<Scalar> {
        let Some(Value::String(text)) = object.get(at.1) else {
            return self.scalars(object, at, Severity::Warning);
        };
        let words = || text.split(|c: char| c.is_ascii_whitespace() || c == ',').filter(|word| !word.is_empty());
        if !self.may_have(at, words().count()) {
            return Vec::new();
        }
        words().map(|word| Scalar::Text(word.to_owned())).collect()
    }
}

fn bond_options(object: &Object) -> Vec<(String, Value)> {
    let option = |(name, value): (&str, &Value)| {
        let is_option = name.starts_with("bond_") || name.starts_with("bond-");
        (is_option && name != "bond_links" && *value != Value::Null).then(|| (name.to_owned(), value.clone()))
    };
    object.members().into_iter().filter_map(option).collect()
}
