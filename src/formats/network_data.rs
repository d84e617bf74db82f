//! OpenStack's `network_data.json`.
//!
//! The schema is `openstack/nova:doc/api_schemas/network_data.json`, the writer `openstack/nova:nova/virt/netutils.py`,
//! the reader whose meaning counts `canonical/cloud-init:cloudinit/sources/helpers/openstack.py`. The types here mirror
//! the document and decide nothing; [`NetworkData::convert`] decides.

mod convert;

pub use super::reader::MAX_ITEMS;
pub use super::value::Scalar;

use super::reader::{Members, Reader};
use super::value::{Object, Value};
use crate::finding::{Findings, Place, Severity};

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

const fn members(named: &'static [&'static str], others: &'static [&'static str]) -> Members {
    Members { named: [named, &[]], others }
}

const DOCUMENT: Members = members(&["links", "networks", "services"], &["network", "version"]);
const LINK: Members = members(
    &[
        "bond_links",
        "bond_mode",
        "ethernet_mac_address",
        "id",
        "mtu",
        "name",
        "type",
        "vif_id",
        "vlan_id",
        "vlan_link",
        "vlan_mac_address",
    ],
    &[],
);
const NETWORK: Members = members(
    &[
        "dns_nameservers",
        "dns_search",
        "gateway",
        "id",
        "ip_address",
        "link",
        "netmask",
        "network_id",
        "routes",
        "services",
        "type",
    ],
    &[],
);
const ROUTE: Members = members(&["gateway", "metric", "netmask", "network", "services"], &[]);
const SERVICE: Members = members(&["address", "search", "type"], &[]);

// === impl NetworkData ===

impl NetworkData {
    /// Reads a document's tree. What is not of the right shape becomes a finding, and is left out.
    pub fn read(document: &Object, findings: &mut Findings) -> Self {
        let mut reader = Reader { findings };
        let here = Place::Document;
        reader.report_misspelt(document.members(), &here, DOCUMENT);
        Self {
            // Without its links a network has nothing to stand on, and says so itself.
            links: reader.items(document, (&here, "links"), Severity::Warning, Reader::link),
            networks: reader.items(document, (&here, "networks"), Severity::Error, Reader::network),
            services: reader.services(document, &here),
        }
    }
}

// === impl Reader ===

impl Reader<'_> {
    fn link(&mut self, object: &Object, place: &Place<'_>) -> Link {
        let scalar = |name| Scalar::of(object.get(name)?);
        let is_bond = matches!(object.get("type"), Some(Value::String(kind)) if kind == "bond");
        // Those of a bond that begin like an option are options.
        let other = |(name, value): &(&str, &Value)| !(is_bond && is_bond_option(name, value));
        self.report_misspelt(object.members().into_iter().filter(other), place, LINK);
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
        self.report_misspelt(object.members(), place, NETWORK);
        Network {
            link: scalar("link"),
            kind: scalar("type"),
            ip_address: scalar("ip_address"),
            netmask: scalar("netmask"),
            gateway: scalar("gateway"),
            routes: self.items(object, (place, "routes"), Severity::Error, Reader::route),
            services: self.services(object, place),
            dns_nameservers: self.words(object, (place, "dns_nameservers"), Severity::Warning),
            dns_search: self.words(object, (place, "dns_search"), Severity::Warning),
        }
    }

    fn route(&mut self, object: &Object, place: &Place<'_>) -> Route {
        let scalar = |name| Scalar::of(object.get(name)?);
        self.report_misspelt(object.members(), place, ROUTE);
        Route {
            network: scalar("network"),
            netmask: scalar("netmask"),
            gateway: scalar("gateway"),
            metric: scalar("metric"),
            services: self.services(object, place),
        }
    }

    fn services(&mut self, parent: &Object, place: &Place<'_>) -> Vec<Service> {
        self.items(parent, (place, "services"), Severity::Warning, |reader, object, place| {
            reader.report_misspelt(object.members(), place, SERVICE);
            Service {
                kind: object.get("type").and_then(Scalar::of),
                address: object.get("address").and_then(Scalar::of),
                search: reader.words(object, (place, "search"), Severity::Warning),
            }
        })
    }
}

fn bond_options(object: &Object) -> Vec<(String, Value)> {
    let option = |(name, value): (&str, &Value)| is_bond_option(name, value).then(|| (name.to_owned(), value.clone()));
    object.members().into_iter().filter_map(option).collect()
}

fn is_bond_option(name: &str, value: &Value) -> bool {
    (name.starts_with("bond_") || name.starts_with("bond-")) && name != "bond_links" && *value != Value::Null
}
