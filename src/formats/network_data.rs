//! Reads OpenStack's `network_data.json`.
//!
//! The schema is from `openstack/nova:doc/api_schemas/network_data.json`, and documents are written by
//! `openstack/nova:nova/virt/netutils.py`. The reader `canonical/cloud-init:cloudinit/sources/helpers/openstack.py`
//! defines the meaning of a document. The types here mirror the document and do not check its values;
//! [`NetworkData::convert`] checks them.

mod convert;

pub use super::reader::MAX_ITEMS;
pub use super::value::Scalar;

use super::reader::{Members, Reader};
use super::value::{Object, Value};
use crate::diagnostic::{Diagnostics, FieldPath, Severity};

/// A document as written. A missing member is `None` or empty.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NetworkData {
    /// The interfaces of the machine, physical or virtual.
    pub links: Vec<Link>,
    /// The addresses and routes of the links.
    pub networks: Vec<Network>,
    /// The services of the whole machine.
    pub services: Vec<Service>,
}

/// One entry of `links`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Link {
    /// The id by which networks, bonds and VLANs refer to this link.
    pub id: Option<Scalar>,
    /// `bond`, `vlan`, or `phy` and other words for a NIC; the member `type` in the document.
    pub kind: Option<Scalar>,
    /// The current or the requested name of the interface. This member is not in the schema, but documents have it.
    pub name: Option<Scalar>,
    /// The MAC address of a NIC or a bond.
    pub ethernet_mac_address: Option<Scalar>,
    /// The MTU, in bytes.
    pub mtu: Option<Scalar>,
    /// The id of a VLAN's parent.
    pub vlan_link: Option<Scalar>,
    /// The VLAN id of a VLAN.
    pub vlan_id: Option<Scalar>,
    /// The MAC address of a VLAN.
    pub vlan_mac_address: Option<Scalar>,
    /// The ids of a bond's members.
    pub bond_links: Vec<Scalar>,
    /// The options of a bond: every other member that begins with `bond_` or `bond-`, with its value.
    pub bond_options: Vec<(String, Value)>,
}

/// One entry of `networks`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Network {
    /// The id of the link that this entry configures.
    pub link: Option<Scalar>,
    /// The source of the addresses, such as `ipv4` or `ipv6_slaac`; the member `type` in the document.
    pub kind: Option<Scalar>,
    /// A static address, with or without a prefix length.
    pub ip_address: Option<Scalar>,
    /// The netmask, as an address or as a prefix length.
    pub netmask: Option<Scalar>,
    /// The gateway of a default route. This member is not in the schema, but documents have it.
    pub gateway: Option<Scalar>,
    /// Routes through the link.
    pub routes: Vec<Route>,
    /// The services on this network.
    pub services: Vec<Service>,
    /// Name servers. This member is not in the schema, but documents have it.
    pub dns_nameservers: Vec<Scalar>,
    /// Search domains for short host names. This member is not in the schema, but documents have it.
    pub dns_search: Vec<Scalar>,
}

/// One entry of the `routes` of a network.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Route {
    /// The destination: an address, a CIDR, or `default`.
    pub network: Option<Scalar>,
    /// The netmask of the destination, as an address or as a prefix length.
    pub netmask: Option<Scalar>,
    /// The next hop. Without a next hop, the destination is directly on the link.
    pub gateway: Option<Scalar>,
    /// The metric. A route with a lower metric is preferred.
    pub metric: Option<Scalar>,
    /// The services behind this route.
    pub services: Vec<Service>,
}

/// One entry of the `services` of a document, a network or a route.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Service {
    /// The kind of service: `dns`; the member `type` in the document.
    pub kind: Option<Scalar>,
    /// The address of a name server.
    pub address: Option<Scalar>,
    /// Search domains for short host names.
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
    /// Reads the tree of a document. A value of the wrong shape is reported and left out.
    pub fn read(document: &Object, diagnostics: &mut Diagnostics) -> Self {
        let mut reader = Reader { diagnostics };
        let here = FieldPath::Document;
        reader.report_misspelt(document.members(), &here, DOCUMENT);
        Self {
            // A warning is enough for invalid links: each network without its link is reported separately.
            links: reader.items(document, (&here, "links"), Severity::Warning, Reader::link),
            networks: reader.items(document, (&here, "networks"), Severity::Error, Reader::network),
            services: reader.services(document, &here),
        }
    }
}

// === impl Reader ===

impl Reader<'_> {
    fn link(&mut self, object: &Object, path: &FieldPath<'_>) -> Link {
        let scalar = |name| Scalar::of(object.get(name)?);
        let is_bond = matches!(object.get("type"), Some(Value::String(kind)) if kind == "bond");
        // Every member of a bond that begins with `bond_` or `bond-` is a bond option, so it is not misspelt.
        let other = |(name, value): &(&str, &Value)| !(is_bond && is_bond_option(name, value));
        self.report_misspelt(object.members().into_iter().filter(other), path, LINK);
        Link {
            id: scalar("id"),
            kind: scalar("type"),
            name: scalar("name"),
            ethernet_mac_address: scalar("ethernet_mac_address"),
            mtu: scalar("mtu"),
            vlan_link: scalar("vlan_link"),
            vlan_id: scalar("vlan_id"),
            vlan_mac_address: scalar("vlan_mac_address"),
            bond_links: if is_bond { self.scalars(object, (path, "bond_links"), Severity::Error) } else { Vec::new() },
            bond_options: if is_bond { bond_options(object) } else { Vec::new() },
        }
    }

    fn network(&mut self, object: &Object, path: &FieldPath<'_>) -> Network {
        let scalar = |name| Scalar::of(object.get(name)?);
        self.report_misspelt(object.members(), path, NETWORK);
        Network {
            link: scalar("link"),
            kind: scalar("type"),
            ip_address: scalar("ip_address"),
            netmask: scalar("netmask"),
            gateway: scalar("gateway"),
            routes: self.items(object, (path, "routes"), Severity::Error, Reader::route),
            services: self.services(object, path),
            dns_nameservers: self.words(object, (path, "dns_nameservers"), Severity::Warning),
            dns_search: self.words(object, (path, "dns_search"), Severity::Warning),
        }
    }

    fn route(&mut self, object: &Object, path: &FieldPath<'_>) -> Route {
        let scalar = |name| Scalar::of(object.get(name)?);
        self.report_misspelt(object.members(), path, ROUTE);
        Route {
            network: scalar("network"),
            netmask: scalar("netmask"),
            gateway: scalar("gateway"),
            metric: scalar("metric"),
            services: self.services(object, path),
        }
    }

    fn services(&mut self, parent: &Object, path: &FieldPath<'_>) -> Vec<Service> {
        self.items(parent, (path, "services"), Severity::Warning, |reader, object, path| {
            reader.report_misspelt(object.members(), path, SERVICE);
            Service {
                kind: object.get("type").and_then(Scalar::of),
                address: object.get("address").and_then(Scalar::of),
                search: reader.words(object, (path, "search"), Severity::Warning),
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
