//! Adds the addresses and the settings of interfaces to a document.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;

use ipnetwork::IpNetwork;
use pnet_base::MacAddr;

use super::types::{Document, ExpandError, Grant};
use crate::diagnostic::{Diagnostic, Diagnostics, FieldPath};
use crate::formats::value::{Object, Value};
use crate::formats::{Meaning, address, read_network};
use crate::host::address::is_link_local;
use crate::host::claim::Allocation;
use crate::host::pool::StaticRoute;
use crate::network::{Family, InterfaceName, NetworkConfig, Route, parse_mac_address};

pub(super) static LINKS: FieldPath<'static> = FieldPath::Field(&FieldPath::Document, "links");
pub(super) static NETWORKS: FieldPath<'static> = FieldPath::Field(&FieldPath::Document, "networks");

/// A document that is not complete yet.
pub(super) struct Draft {
    document: Object,
    pub(super) diagnostics: Diagnostics,
    /// Index in `networks`, by interface and family.
    entries: BTreeMap<(InterfaceName, Family), usize>,
    /// Index in `links`, by interface.
    links: BTreeMap<InterfaceName, usize>,
}

// === impl Draft ===

impl Draft {
    pub(super) fn new(document: Object) -> Self {
        Self { document, diagnostics: Diagnostics::default(), entries: BTreeMap::new(), links: BTreeMap::new() }
    }

    /// Refuses the addresses of the template, and the MAC addresses of its bonds and VLANs, because every machine of the
    /// template would use them. A link-local IPv6 address is allowed, because no pool allocates one. The MAC address of a
    /// NIC is allowed, because it only names the NIC.
    pub(super) fn refuse_addresses(&mut self) {
        let is_link_local = |written: &Value| {
            let text = written.to_string();
            text.split('/').next().and_then(|address| address.parse().ok()).is_some_and(is_link_local)
        };
        let mut refused = Vec::new();
        for (index, link) in self.objects("links").filter(|(_, link)| !is_nic(link)) {
            for member in ["ethernet_mac_address", "vlan_mac_address"] {
                let path = LINKS.index(index);
                refused.extend(given(link, member).map(|written| of_many(&path.field(member), "MAC address", written)));
            }
        }
        for (index, network) in self.objects("networks") {
            let path = NETWORKS.index(index);
            let address = given(network, "ip_address").filter(|written| !is_link_local(written));
            refused.extend(address.map(|written| of_many(&path.field("ip_address"), "address", written)));
        }
        refused.into_iter().for_each(|diagnostic| self.diagnostics.push(diagnostic));
    }

    /// The objects in an array of the document, with their indexes.
    fn objects(&self, name: &str) -> impl Iterator<Item = (usize, &Object)> {
        let elements = match self.document.get(name) {
            Some(Value::Array(elements)) => elements.as_slice(),
            _ => &[],
        };
        elements.iter().enumerate().filter_map(|(index, element)| match element {
            Value::Object(object) => Some((index, object)),
            _ => None,
        })
    }

    /// The elements of an array of the document. An absent array is empty; a value of another type becomes a
    /// diagnostic.
    fn array(&mut self, name: &str) -> Option<&mut Vec<Value>> {
        if matches!(self.document.get(name), None | Some(Value::Null)) {
            self.document.insert(name, Value::Array(Vec::new()));
        }
        match self.document.get_mut(name) {
            Some(Value::Array(array)) => Some(array),
            Some(other) => {
                let diagnostic = Diagnostic::error(name, "invalid list", other, "an array");
                // The error is reported once, even if several interfaces need the array.
                if !self.diagnostics.kept().contains(&diagnostic) {
                    self.diagnostics.push(diagnostic);
                }
                None
            }
            None => None,
        }
    }

    /// The index of the interface in `links`, and the `id` by which networks refer to the link. A link without an `id`
    /// gets the name of the interface as its `id`.
    pub(super) fn find_link(&mut self, interface: &InterfaceName) -> Option<(usize, String)> {
        let is_it = |link: &Value| match link {
            Value::Object(link) => ["id", "name"].iter().any(|name| is_text(link.get(name), interface.as_str())),
            _ => false,
        };
        let links = self.array("links")?;
        let mut found = links.iter().enumerate().filter(|(_, link)| is_it(link)).map(|(index, _)| index);
        let (first, second) = (found.next(), found.next());
        let expected = "one link with this id or name";
        let Some(index) = first else {
            self.diagnostics.push(Diagnostic::error("links", "no link for the interface", interface, expected));
            return None;
        };
        if let Some(second) = second {
            let expected = format!("{expected}: links[{index}] has it already");
            self.diagnostics.push(Diagnostic::error(
                LINKS.index(second),
                "second link of the interface",
                interface,
                &expected,
            ));
            return None;
        }
        let Some(Value::Object(link)) = links.get_mut(index) else { return None };
        if given(link, "id").is_none() {
            link.insert("id", text(interface));
        }
        given(link, "id").map(|id| (index, id.to_string()))
    }

    /// The entries of `networks` that are on a link.
    pub(super) fn entries_on(&mut self, link: &str) -> Vec<(usize, Object)> {
        let networks = self.array("networks").map(|networks| networks.iter().enumerate());
        let on_link = |(index, entry): (usize, &Value)| match entry {
            Value::Object(entry) if is_text(entry.get("link"), link) => Some((index, entry.clone())),
            _ => None,
        };
        networks.into_iter().flatten().filter_map(on_link).collect()
    }

    pub(super) fn put_addresses(&mut self, grant: &Grant<'_>) {
        let interface = &grant.allocation.claimant.interface;
        let Some((link, id)) = self.find_link(interface) else { return };
        self.links.insert(*interface, link);
        if let Some(mac_address) = grant.mac_address {
            self.set_mac_address(link, mac_address);
        }
        for (index, entry) in self.entries_on(&id) {
            if let Some(family) = static_family(&entry) {
                self.put_into_entry(index, entry, family, grant.allocation);
            } else if let Some(kind) = dynamic_kind(&entry, grant.allocation) {
                let path = NETWORKS.index(index);
                let expected =
                    "a network that takes the address of the pool, such as ipv4 or ipv6, or no network of this family";
                let problem = "DHCP together with an address of the pool";
                self.diagnostics.push(Diagnostic::error(path.field("type"), problem, kind, expected));
            }
        }
        for address in &grant.allocation.addresses {
            let family = Family::of(address.ip());
            if !self.entries.contains_key(&(*interface, family)) {
                self.add_entry(&id, interface, *address);
            }
        }
    }

    fn set_mac_address(&mut self, link: usize, mac_address: MacAddr) {
        let Some(Value::Object(object)) = self.array("links").and_then(|links| links.get_mut(link)) else { return };
        let path = LINKS.index(link);
        let diagnostic = match given(object, "ethernet_mac_address") {
            _ if is_text(object.get("type"), "vlan") => {
                Some(Diagnostic::error(path.field("type"), "MAC address for", "vlan", "a NIC or a bond"))
            }
            Some(written) if parse_mac_address(&written.to_string()) == Some(mac_address) => None,
            Some(written) => {
                let path = path.field("ethernet_mac_address");
                Some(Diagnostic::error(path, "other MAC address", written, &mac_address.to_string()))
            }
            None => {
                object.insert("ethernet_mac_address", text(mac_address));
                None
            }
        };
        diagnostic.into_iter().for_each(|diagnostic| self.diagnostics.push(diagnostic));
    }

    /// Writes an allocated address into an entry of the template, or reports why the entry cannot have the address.
    fn put_into_entry(&mut self, index: usize, mut entry: Object, family: Family, allocation: &Allocation) {
        let interface = &allocation.claimant.interface;
        let path = NETWORKS.index(index);
        if let Some(written) = given(&entry, "ip_address") {
            let diagnostic = of_many(&path.field("ip_address"), "address", written);
            // `refuse_addresses` has reported every address that is not link-local.
            if !self.diagnostics.kept().contains(&diagnostic) {
                self.diagnostics.push(diagnostic);
            }
            return;
        }
        let Some(address) = allocation.addresses.iter().find(|address| Family::of(address.ip()) == family) else {
            let (written, expected) = (entry.get("type").cloned().unwrap_or(Value::Null), "one from the pool");
            let problem = format!("no {family} address for a network of type");
            self.diagnostics.push(Diagnostic::error(path.field("type"), &problem, written, expected));
            return;
        };
        if let Some(first) = self.entries.get(&(*interface, family)) {
            let problem = format!("second {family} network, after networks[{first}], on");
            self.diagnostics.push(Diagnostic::error(path, &problem, interface, "one for each family"));
            return;
        }
        let mask = mask(*address);
        match given(&entry, "netmask") {
            Some(written) if prefix_length(written, family) != Some(address.prefix()) => {
                let diagnostic =
                    Diagnostic::error(path.field("netmask"), "other netmask than the pool's", written, &mask);
                self.diagnostics.push(diagnostic);
            }
            Some(_) => {}
            None => entry.insert("netmask", text(&mask)),
        }
        entry.insert("ip_address", text(address.ip()));
        if let Some(at) = self.array("networks").and_then(|networks| networks.get_mut(index)) {
            *at = Value::Object(entry);
        }
        self.entries.insert((*interface, family), index);
    }

    fn add_entry(&mut self, link: &str, interface: &InterfaceName, address: IpNetwork) {
        let Some(networks) = self.array("networks") else { return };
        let is_taken = |id: &String| {
            networks.iter().any(|entry| matches!(entry, Value::Object(entry) if is_text(entry.get("id"), id)))
        };
        let index = networks.len();
        let id = (index..).map(|number| format!("network{number}")).find(|id| !is_taken(id)).unwrap_or_default();
        let family = Family::of(address.ip());
        let kind = match family {
            Family::Ipv4 => "ipv4",
            Family::Ipv6 => "ipv6",
        };
        networks.push(object([
            ("id", text(&id)),
            ("type", text(kind)),
            ("link", text(link)),
            ("ip_address", text(address.ip())),
            ("netmask", text(mask(address))),
            ("routes", Value::Array(Vec::new())),
            ("network_id", text(&id)),
        ]));
        self.entries.insert((*interface, family), index);
    }

    /// Adds a default route for each family that has no default route. Warns of each gateway that gets no route because
    /// an earlier interface has the default route of this family.
    pub(super) fn add_default_routes(&mut self, grants: &[Grant<'_>], network: &NetworkConfig) {
        let routes = network.links().iter().flat_map(|link| &link.routes).filter(|route| route.is_default());
        let in_template: BTreeSet<Family> = routes.map(|route| Family::of(route.destination().ip())).collect();
        let mut added: BTreeMap<Family, InterfaceName> = BTreeMap::new();
        for grant in grants {
            let interface = grant.allocation.claimant.interface;
            for gateway in &grant.settings.gateways {
                let family = Family::of(*gateway);
                let Some(entry) = self.entry(&interface, family).filter(|_| !in_template.contains(&family)) else {
                    continue;
                };
                if let Some(first) = added.get(&family) {
                    let path = format!("gateway of interface {interface}");
                    let because = format!("interface {first} already has the default route");
                    self.diagnostics.push(Diagnostic::ignored(path, gateway, &because));
                } else {
                    add_route(entry, address::everywhere(family), *gateway);
                    added.insert(family, interface);
                }
            }
        }
    }

    /// Adds the routes of each grant to its interface. Skips a destination to which the interface already has a route
    /// in `network`.
    pub(super) fn add_routes(&mut self, grants: &[Grant<'_>], network: &NetworkConfig) {
        for grant in grants {
            let interface = &grant.allocation.claimant.interface;
            let link = self.links.get(interface).map(|link| LINKS.index(*link).to_string());
            let link = network.links().iter().find(|of| Some(&of.path) == link.as_ref());
            let known: Vec<IpNetwork> =
                link.into_iter().flat_map(|link| &link.routes).map(Route::destination).collect();
            for StaticRoute { to, via } in grant.settings.routes.iter().filter(|route| !known.contains(&route.to)) {
                if let Some(entry) = self.entry(interface, Family::of(*via)) {
                    add_route(entry, *to, *via);
                }
            }
        }
    }

    /// The entry of `networks` with the address of an interface.
    fn entry(&mut self, interface: &InterfaceName, family: Family) -> Option<&mut Object> {
        let index = self.entries.get(&(*interface, family)).copied()?;
        match self.array("networks")?.get_mut(index) {
            Some(Value::Object(entry)) => Some(entry),
            _ => None,
        }
    }

    /// Adds name servers for each family that has no name server.
    pub(super) fn add_services(&mut self, grants: &[Grant<'_>], network: &NetworkConfig) {
        let served: BTreeSet<Family> =
            network.nameservers().into_iter().map(|server| Family::of(server.value)).collect();
        let mut added = BTreeSet::new();
        for server in grants.iter().flat_map(|grant| &grant.settings.nameservers) {
            if !served.contains(&Family::of(*server)) && added.insert(*server) {
                let service = object([("type", text("dns")), ("address", text(server))]);
                if let Some(services) = self.array("services") {
                    services.push(service);
                }
            }
        }
    }

    /// Adds the search domains to the first network of each interface, if the template has no search domain.
    pub(super) fn add_search_domains(&mut self, grants: &[Grant<'_>], network: &NetworkConfig) {
        let mut of_links = network.links().iter().flat_map(|link| &link.dns.search);
        if !network.dns.search.is_empty() || of_links.next().is_some() {
            return;
        }
        for grant in grants.iter().filter(|grant| !grant.settings.search_domains.is_empty()) {
            let domains = Value::Array(grant.settings.search_domains.iter().map(text).collect());
            let first = grant.allocation.addresses.iter().map(|address| Family::of(address.ip())).min();
            if let Some(entry) = first.and_then(|family| self.entry(&grant.allocation.claimant.interface, family)) {
                entry.insert("dns_search", domains);
            }
        }
    }

    /// Adds the MTU of the pool to the link of each interface, if the link has no MTU.
    pub(super) fn add_mtus(&mut self, grants: &[Grant<'_>]) {
        for grant in grants {
            let link = self.links.get(&grant.allocation.claimant.interface).copied();
            let (Some(mtu), Some(link), Some(links)) = (grant.settings.mtu, link, self.array("links")) else {
                continue;
            };
            if let Some(Value::Object(link)) = links.get_mut(link)
                && given(link, "mtu").is_none()
            {
                link.insert("mtu", Value::Integer(mtu.into()));
            }
        }
    }

    /// Writes the `id` of a NIC as its `name`, if the NIC has no name, and has an allocated address or no MAC address.
    ///
    /// glowplug in the guest already takes the name of such a NIC from its `id`. afterburn and cloud-init take the name
    /// only from `name`: without a MAC address afterburn configures nothing and cloud-init refuses the document, and
    /// with a MAC address afterburn writes the MAC address in place of the name. The `id` of any other NIC is not its
    /// name.
    pub(super) fn add_names(&mut self, grants: &[Grant<'_>]) {
        let unnamed = grants.iter().filter(|grant| !grant.is_named);
        let unnamed: BTreeSet<InterfaceName> = unnamed.map(|grant| grant.allocation.claimant.interface).collect();
        let allocated: BTreeSet<usize> = self.links.values().copied().collect();
        let links = self.array("links").into_iter().flatten().enumerate();
        for (index, link) in links {
            let Value::Object(link) = link else { continue };
            let is_unnamed = given(link, "name").is_none();
            let is_known_by_id = allocated.contains(&index) || given(link, "ethernet_mac_address").is_none();
            let name = given(link, "id").and_then(|id| id.to_string().parse::<InterfaceName>().ok());
            let name = name.filter(|name| !unnamed.contains(name));
            if let Some(name) = name.filter(|_| is_nic(link) && is_unnamed && is_known_by_id) {
                link.insert("name", text(name));
            }
        }
    }

    /// Reads the document with the guest's reader.
    pub(super) fn read(&mut self) -> Result<(NetworkConfig, Document), ExpandError> {
        if self.diagnostics.has_errors() {
            return Err(ExpandError::Template(std::mem::take(&mut self.diagnostics)));
        }
        let text = match serde_json::to_string(&self.document) {
            Ok(text) => text,
            // Unreachable: a template with a number that cannot be written was already refused.
            Err(error) => {
                self.diagnostics.push(Diagnostic::error("document", "not writable", error, "a document that was read"));
                return Err(ExpandError::Template(std::mem::take(&mut self.diagnostics)));
            }
        };
        let mut reading = read_network(text.as_bytes());
        for warning in self.diagnostics.kept() {
            reading.diagnostics.push(warning.clone());
        }
        let network = match reading.meaning {
            Meaning::Network(network) => network,
            Meaning::Unconfigured | Meaning::Disabled => NetworkConfig::default(),
            Meaning::Refused => return Err(ExpandError::Refused(reading.diagnostics)),
        };
        Ok((network, Document::new(text, reading.diagnostics)))
    }

    /// Checks that the guest reads exactly the allocated addresses on the interface.
    pub(super) fn check(&self, allocation: &Allocation, network: &NetworkConfig) -> Result<(), ExpandError> {
        let interface = &allocation.claimant.interface;
        let path = self.links.get(interface).map(|link| LINKS.index(*link).to_string());
        let link = network.links().iter().find(|link| Some(&link.path) == path.as_ref());
        let ipv4 = link.into_iter().flat_map(|link| &link.ipv4.addresses).copied().map(IpNetwork::V4);
        let ipv6 = link.into_iter().flat_map(|link| &link.ipv6.addresses).copied().map(IpNetwork::V6);
        let mut read: Vec<IpNetwork> = ipv4.chain(ipv6).collect();
        let mut allocated = allocation.addresses.clone();
        read.sort_unstable();
        allocated.sort_unstable();
        if read == allocated { Ok(()) } else { Err(ExpandError::Differs { interface: *interface, read, allocated }) }
    }
}

/// The diagnostic about an address that a template gives to every machine.
fn of_many(path: &FieldPath<'_>, what: &str, written: &Value) -> Diagnostic {
    let expected = format!("no {what}: a template serves many machines");
    Diagnostic::error(path, &format!("{what} in a template"), written, &expected)
}

/// Adds a route to an entry of `networks`.
fn add_route(entry: &mut Object, to: IpNetwork, via: IpAddr) {
    let route = object([("network", text(to.network())), ("netmask", text(mask(to))), ("gateway", text(via))]);
    match entry.get_mut("routes") {
        Some(Value::Array(routes)) => routes.push(route),
        // Missing or null: the guest's reader has refused every other type.
        _ => entry.insert("routes", Value::Array(vec![route])),
    }
}

/// The family of the static address of an entry of `networks`. `None` for an entry that has no static address.
pub(super) fn static_family(entry: &Object) -> Option<Family> {
    match entry.get("type") {
        Some(Value::String(kind)) => match kind.as_str() {
            "ipv4" | "static" => Some(Family::Ipv4),
            "ipv6" | "static6" => Some(Family::Ipv6),
            _ => None,
        },
        _ => None,
    }
}

/// Returns the type of a network that requests an address from a DHCP server in a family with an allocated address: the
/// machine would have both addresses, and the address of the DHCP server is not in the ledger.
fn dynamic_kind<'e>(entry: &'e Object, allocation: &Allocation) -> Option<&'e str> {
    let Some(Value::String(kind)) = entry.get("type") else { return None };
    let family = match kind.as_str() {
        "ipv4_dhcp" | "dhcp4" | "dhcp" => Family::Ipv4,
        "ipv6_dhcp" | "dhcp6" | "ipv6_dhcpv6-stateful" => Family::Ipv6,
        _ => return None,
    };
    allocation.addresses.iter().any(|address| Family::of(address.ip()) == family).then_some(kind)
}

/// Whether a link is a NIC: its type is neither `bond` nor `vlan`.
pub(super) fn is_nic(link: &Object) -> bool {
    !["bond", "vlan"].iter().any(|kind| is_text(link.get("type"), kind))
}

/// A member with a value. `null` and an empty string count as absent.
pub(super) fn given<'o>(object: &'o Object, name: &str) -> Option<&'o Value> {
    object.get(name).filter(|value| !matches!(value, Value::Null) && !is_text(Some(value), ""))
}

/// Whether a value is this string, or the number that the string represents.
pub(super) fn is_text(value: Option<&Value>, wanted: &str) -> bool {
    match value {
        Some(Value::String(text)) => text == wanted,
        Some(Value::Integer(number)) => number.to_string() == wanted,
        _ => false,
    }
}

pub(super) fn prefix_length(mask: &Value, family: Family) -> Option<u8> {
    address::prefix_length(&mask.to_string(), family)
}

/// The netmask as an address of the family, the form that every reader accepts.
fn mask(address: IpNetwork) -> String {
    address.mask().to_string()
}

pub(super) fn text(value: impl fmt::Display) -> Value {
    Value::String(value.to_string())
}

pub(super) fn members<const N: usize>(members: [(&str, Value); N]) -> Object {
    members.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

pub(super) fn object<const N: usize>(values: [(&str, Value); N]) -> Value {
    Value::Object(members(values))
}
