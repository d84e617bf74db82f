//! Makes the document of one machine from a template and the machine's addresses.
//!
//! The template is an OpenStack `network_data.json`, as JSON or YAML. The document keeps all members of the template in
//! their order, also members that are unknown here. Addresses are added where they are missing. The settings of the
//! pool, such as the gateway and the name servers, are added where the template has none. NICs get their names, which
//! afterburn and cloud-init need. The guest's reader reads every document before the host hands it out, so the host never writes a document that
//! the guest cannot read.

mod secret;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;

use ipnetwork::IpNetwork;
use pnet_base::MacAddr;

use super::address::parse_interface_address;
use super::claim::Allocation;
use super::pool::{Settings, StaticRoute, TemplateFacts};
use crate::diagnostic::{Diagnostic, Diagnostics, FieldPath, Severity};
use crate::formats::value::{self, Object, Value};
use crate::formats::{Meaning, address, read_network, write_network_config};
use crate::network::{Family, InterfaceName, NetworkConfig, Route, parse_mac_address};

/// The part of the document that all machines of a NodePool share.
///
/// ```
/// use glowplug::host::claim::{Allocation, Claimant, Machine};
/// use glowplug::host::expand::{Grant, Template};
/// use glowplug::host::pool::Settings;
///
/// let template = Template::parse(br#"{"links": [{"id": "eno101", "type": "phy"}]}"#).unwrap();
/// let machine = Machine::new("clusters", "worker-0", "u-1");
/// let interface = "eno101".parse().unwrap();
/// let addresses = vec!["192.168.1.100/24".parse().unwrap()];
/// let allocation = Allocation { claimant: Claimant { machine, interface }, addresses };
/// let settings = Settings {
///     gateways: vec!["192.168.1.1".parse().unwrap()],
///     nameservers: vec!["8.8.8.8".parse().unwrap()],
///     ..Settings::default()
/// };
/// let grant = Grant { allocation: &allocation, settings, mac_address: None, is_named: true };
/// assert_eq!(
///     template.expand(&[grant]).unwrap().text(),
///     concat!(
///         r#"{"links":[{"id":"eno101","type":"phy","name":"eno101"}],"#,
///         r#""networks":[{"id":"network0","type":"ipv4","link":"eno101","ip_address":"192.168.1.100","#,
///         r#""netmask":"255.255.255.0","routes":[{"network":"0.0.0.0","netmask":"0.0.0.0","gateway":"192.168.1.1"}],"#,
///         r#""network_id":"network0"}],"services":[{"type":"dns","address":"8.8.8.8"}]}"#
///     )
/// );
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Template(Object);

/// The addresses and settings of one interface.
#[derive(Clone, Debug)]
pub struct Grant<'a> {
    /// Interface and its addresses.
    pub allocation: &'a Allocation,
    /// Settings of the pool.
    pub settings: Settings,
    /// MAC address by which the guest identifies the NIC. `None`: the guest identifies the NIC by its name.
    pub mac_address: Option<MacAddr>,
    /// Whether the guest gives the NIC the name of the interface, for example because of its ACPI index. `false`: only the MAC
    /// address identifies the NIC, and the document has no name for it.
    pub is_named: bool,
}

/// A machine's `network_data.json`, or its network-config. The guest's reader has read the allocated addresses from it.
#[derive(Clone, Debug, PartialEq)]
pub struct Document {
    text: String,
    warnings: Vec<Diagnostic>,
}

/// Why a document cannot be made.
#[derive(Debug)]
#[non_exhaustive]
pub enum ExpandError {
    /// The allocated addresses cannot be added to the template. Contains every reason.
    Template(Diagnostics),
    /// An interface is given twice.
    Twice(InterfaceName),
    /// An interface has no address, or two addresses of one family.
    Addresses(InterfaceName, Vec<IpNetwork>),
    /// An address of a machine has prefix length 0: its pool serves claims alone.
    WithoutPrefix(InterfaceName, IpNetwork),
    /// The guest would reject the document. Contains the guest's diagnostics.
    Refused(Diagnostics),
    /// The guest would read other addresses than the allocated addresses.
    Differs {
        /// Interface with the difference.
        interface: InterfaceName,
        /// Addresses that the guest would read, sorted.
        read: Vec<IpNetwork>,
        /// Allocated addresses, sorted.
        allocated: Vec<IpNetwork>,
    },
}

static LINKS: FieldPath<'static> = FieldPath::Field(&FieldPath::Document, "links");
static NETWORKS: FieldPath<'static> = FieldPath::Field(&FieldPath::Document, "networks");

/// A document that is not complete yet.
struct Draft {
    document: Object,
    diagnostics: Diagnostics,
    /// Index in `networks`, by interface and family.
    entries: BTreeMap<(InterfaceName, Family), usize>,
    /// Index in `links`, by interface.
    links: BTreeMap<InterfaceName, usize>,
}

// === impl Template ===

impl Template {
    /// Reads a template as JSON or YAML.
    ///
    /// # Errors
    ///
    /// [`ExpandError::Template`] when the input is neither JSON nor YAML, is not an object, has a key twice, or has a
    /// number that cannot be written again.
    pub fn parse(document: &[u8]) -> Result<Self, ExpandError> {
        let mut diagnostics = Diagnostics::default();
        let value = value::parse_strict(document).unwrap_or_else(|diagnostic| {
            diagnostics.push(diagnostic);
            Value::Object(Object::default())
        });
        fractions(&value, &FieldPath::Document, &mut diagnostics);
        match value {
            Value::Object(object) if !diagnostics.has_errors() => return Ok(Self(object)),
            Value::Object(_) => {}
            other => diagnostics.push(Diagnostic::error("document", "invalid document", other.kind(), "an object")),
        }
        Err(ExpandError::Template(diagnostics))
    }

    /// A template of NICs with these names and without further settings.
    pub fn minimal<'a>(interfaces: impl IntoIterator<Item = &'a InterfaceName>) -> Self {
        let nic = |name: &InterfaceName| object([("id", text(name)), ("type", text("phy"))]);
        let links = interfaces.into_iter().map(nic).collect();
        Self(members([
            ("links", Value::Array(links)),
            ("networks", Value::Array(Vec::new())),
            ("services", Value::Array(Vec::new())),
        ]))
    }

    /// A warning for each part of a link that afterburn does not read: the type of a bond or a VLAN, and the MTU of a NIC.
    #[doc(hidden)]
    #[must_use]
    pub fn unread_by_afterburn(&self) -> Vec<Diagnostic> {
        let Some(Value::Array(links)) = self.0.get("links") else { return Vec::new() };
        let unread = |(index, link): (usize, &Value)| {
            let Value::Object(link) = link else { return None };
            let member = if is_nic(link) { "mtu" } else { "type" };
            let (path, expected) = (LINKS.index(index), "an image with glowplug or cloud-init");
            let value = given(link, member)?;
            Some(Diagnostic::warning(path.field(member), "not read by afterburn", value, expected))
        };
        links.iter().enumerate().filter_map(unread).collect()
    }

    /// The settings of the template for an interface: prefix lengths, and every address that the template names. No
    /// machine may get an address that the template names. The facts also have the warnings about the template.
    ///
    /// # Errors
    ///
    /// [`ExpandError::Template`] when the template has no such interface, or an invalid netmask.
    #[doc(hidden)]
    pub fn facts(&self, interface: &InterfaceName) -> Result<TemplateFacts, ExpandError> {
        let mut draft = Draft::new(self);
        let mut facts = TemplateFacts { unread: self.unread_by_afterburn(), ..TemplateFacts::default() };
        name_addresses(&Value::Object(self.0.clone()), &mut facts);
        // Gateways of all interfaces, until the gateways of this interface are known.
        facts.addresses.append(&mut facts.gateways);
        if let Some((_, id)) = draft.find_link(interface) {
            for (index, entry) in draft.entries_on(&id) {
                let mut own = TemplateFacts::default();
                name_addresses(&Value::Object(entry.clone()), &mut own);
                facts.gateways.extend(own.gateways);
                let Some((mask, family)) = given(&entry, "netmask").zip(static_family(&entry)) else { continue };
                match prefix_length(mask, family) {
                    Some(length) => drop(facts.prefixes.entry(family).or_insert(length)),
                    None => {
                        let path = NETWORKS.index(index);
                        let expected = address::MASK_EXPECTED;
                        draft.diagnostics.push(Diagnostic::error(
                            path.field("netmask"),
                            "invalid netmask",
                            mask,
                            expected,
                        ));
                    }
                }
            }
        }
        facts.addresses = facts.addresses.difference(&facts.gateways).copied().collect();
        if draft.diagnostics.has_errors() { Err(ExpandError::Template(draft.diagnostics)) } else { Ok(facts) }
    }

    /// Makes the document of a machine.
    ///
    /// The link of an interface is the link whose `id` or `name` is the interface. An address goes into the entry of
    /// `networks` that the template has for the address, else into a new entry. A NIC gets its `id` as `name`, if the
    /// guest knows the NIC by its `id`. The settings of the pools are added where the template has none:
    ///
    /// - If no link has a default route of a family, the first gateway of this family becomes the default route, on the
    ///   interface of the gateway.
    /// - A route is added if the template has no route to its destination on the interface.
    /// - The name servers of a family are added if the template has no name server of this family, and the search
    ///   domains if it has no search domain.
    /// - The MTU is added if the link of the interface has none.
    ///
    /// # Errors
    ///
    /// [`ExpandError`]; for an error of the template, with all reasons at once.
    pub fn expand(&self, grants: &[Grant<'_>]) -> Result<Document, ExpandError> {
        let mut seen = BTreeSet::new();
        for Grant { allocation, .. } in grants {
            let (interface, addresses) = (&allocation.claimant.interface, &allocation.addresses);
            let families: BTreeSet<Family> = addresses.iter().map(|address| Family::of(address.ip())).collect();
            if families.is_empty() || families.len() != addresses.len() {
                return Err(ExpandError::Addresses(*interface, addresses.clone()));
            }
            if let Some(address) = addresses.iter().find(|address| address.prefix() == 0) {
                return Err(ExpandError::WithoutPrefix(*interface, *address));
            }
            if !seen.insert(interface) {
                return Err(ExpandError::Twice(*interface));
            }
        }
        let mut draft = Draft::new(self);
        for grant in grants {
            draft.put_addresses(grant);
        }
        let (network, _) = draft.read()?;
        draft.add_default_routes(grants, &network);
        draft.add_routes(grants, &network);
        draft.add_services(grants, &network);
        draft.add_search_domains(grants, &network);
        draft.add_mtus(grants);
        draft.add_names(grants);
        let (network, document) = draft.read()?;
        for grant in grants {
            draft.check(grant.allocation, &network)?;
        }
        Ok(document)
    }
}

/// Collects the addresses in a value, by the members that contain them: gateways of the value's own networks, name
/// servers, and others. A network and its netmask are not addresses of machines.
fn name_addresses(value: &Value, facts: &mut TemplateFacts) {
    let address = |value: &Value| match value {
        Value::String(text) => parse_interface_address(text).ok().map(|(address, _)| address),
        _ => None,
    };
    let Value::Object(object) = value else {
        if let Value::Array(elements) = value {
            elements.iter().for_each(|element| name_addresses(element, facts));
        }
        return;
    };
    for (name, member) in object.members() {
        let elements =
            if let Value::Array(elements) = member { elements.as_slice() } else { std::slice::from_ref(member) };
        let found = elements.iter().filter_map(address);
        match name {
            "gateway" => facts.gateways.extend(found),
            "dns_nameservers" => facts.nameservers.extend(found),
            "address" if is_text(object.get("type"), "dns") => facts.nameservers.extend(found),
            "address" | "ip_address" => facts.addresses.extend(found),
            _ => {}
        }
        name_addresses(member, facts);
    }
}

/// Reports every number whose exact value the parser did not keep.
fn fractions(value: &Value, path: &FieldPath<'_>, diagnostics: &mut Diagnostics) {
    match value {
        Value::Fraction => {
            let (problem, expected) = ("number that cannot be kept", "a whole number of 64 bits, or a text");
            diagnostics.push(Diagnostic::without_value(Severity::Error, path, problem, expected));
        }
        Value::Array(elements) => {
            elements
                .iter()
                .enumerate()
                .for_each(|(index, element)| fractions(element, &path.index(index), diagnostics));
        }
        Value::Object(object) => {
            object.members().into_iter().for_each(|(name, member)| fractions(member, &path.field(name), diagnostics));
        }
        _ => {}
    }
}

// === impl Draft ===

impl Draft {
    fn new(template: &Template) -> Self {
        let document = template.0.clone();
        Self { document, diagnostics: Diagnostics::default(), entries: BTreeMap::new(), links: BTreeMap::new() }
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
                let diagnostic = Diagnostic::error(name, "invalid list", other.kind(), "an array");
                // Report once, even if several interfaces need the array.
                if !self.diagnostics.kept().contains(&diagnostic) {
                    self.diagnostics.push(diagnostic);
                }
                None
            }
            None => None,
        }
    }

    /// The index of the interface in `links`, and the `id` by which networks refer to the link. A link without `id`
    /// gets one.
    fn find_link(&mut self, interface: &InterfaceName) -> Option<(usize, String)> {
        let is_it = |link: &Value| match link {
            Value::Object(link) => ["id", "name"].iter().any(|name| is_text(link.get(name), interface.as_str())),
            _ => false,
        };
        let links = self.array("links")?;
        let mut found = links.iter().enumerate().filter(|(_, link)| is_it(link)).map(|(index, _)| index);
        let (first, second) = (found.next(), found.next());
        let expected = "one link whose id or name it is";
        let Some(index) = first else {
            self.diagnostics.push(Diagnostic::error("links", "no link for the interface", interface, expected));
            return None;
        };
        if let Some(second) = second {
            let problem = format!("second link for the interface, after links[{index}],");
            self.diagnostics.push(Diagnostic::error(LINKS.index(second), &problem, interface, expected));
            return None;
        }
        let Some(Value::Object(link)) = links.get_mut(index) else { return None };
        if given(link, "id").is_none() {
            link.insert("id", text(interface));
        }
        given(link, "id").map(|id| (index, id.to_string()))
    }

    /// The entries of `networks` that are on a link.
    fn entries_on(&mut self, link: &str) -> Vec<(usize, Object)> {
        let networks = self.array("networks").map(|networks| networks.iter().enumerate());
        let on_link = |(index, entry): (usize, &Value)| match entry {
            Value::Object(entry) if is_text(entry.get("link"), link) => Some((index, entry.clone())),
            _ => None,
        };
        networks.into_iter().flatten().filter_map(on_link).collect()
    }

    fn put_addresses(&mut self, grant: &Grant<'_>) {
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
                    "a network that takes the address of the pool, such as ipv4 or ipv6, or none of its family";
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

    /// Writes an address into an entry of the template that has none, or reports why the entry cannot have the address.
    fn put_into_entry(&mut self, index: usize, mut entry: Object, family: Family, allocation: &Allocation) {
        let interface = &allocation.claimant.interface;
        let path = NETWORKS.index(index);
        if let Some(written) = given(&entry, "ip_address") {
            let expected = "no address: a template serves many machines";
            self.diagnostics.push(Diagnostic::error(
                path.field("ip_address"),
                "address in a template",
                written,
                expected,
            ));
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

    /// Adds a default route for each family that has no default route.
    fn add_default_routes(&mut self, grants: &[Grant<'_>], network: &NetworkConfig) {
        let routes = network.links().iter().flat_map(|link| &link.routes).filter(|route| route.is_default());
        let mut routed: BTreeSet<Family> = routes.map(|route| Family::of(route.destination().ip())).collect();
        for grant in grants {
            for gateway in &grant.settings.gateways {
                let family = Family::of(*gateway);
                let Some(entry) = self.entry(&grant.allocation.claimant.interface, family) else { continue };
                if routed.insert(family) {
                    add_route(entry, address::everywhere(family), *gateway);
                }
            }
        }
    }

    /// Adds each route whose destination has no route on its interface.
    fn add_routes(&mut self, grants: &[Grant<'_>], network: &NetworkConfig) {
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
    fn add_services(&mut self, grants: &[Grant<'_>], network: &NetworkConfig) {
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

    /// Adds the search domains to the first network of each interface, if the template has none.
    fn add_search_domains(&mut self, grants: &[Grant<'_>], network: &NetworkConfig) {
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

    /// Adds the MTU of each interface whose link has none.
    fn add_mtus(&mut self, grants: &[Grant<'_>]) {
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

    /// Gives each NIC that has an allocated address, or that has neither a name nor a MAC address, its `id` as `name`.
    ///
    /// Our guest already takes the name of such a NIC from its `id`. afterburn and cloud-init take the name only from
    /// `name`: without a MAC address afterburn configures nothing and cloud-init refuses the document, and with a MAC
    /// address afterburn writes the MAC address in place of the name. The `id` of any other NIC is not its name.
    fn add_names(&mut self, grants: &[Grant<'_>]) {
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
    fn read(&mut self) -> Result<(NetworkConfig, Document), ExpandError> {
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
        let reading = read_network(text.as_bytes());
        let network = match reading.meaning {
            Meaning::Network(network) => network,
            Meaning::Unconfigured | Meaning::Disabled => NetworkConfig::default(),
            Meaning::Refused => return Err(ExpandError::Refused(reading.diagnostics)),
        };
        Ok((network, Document { text, warnings: reading.diagnostics.into_parts().0 }))
    }

    /// Whether the guest reads exactly the allocated addresses on the interface.
    fn check(&self, allocation: &Allocation, network: &NetworkConfig) -> Result<(), ExpandError> {
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

/// Adds a route to an entry of `networks`.
fn add_route(entry: &mut Object, to: IpNetwork, via: IpAddr) {
    let route = object([("network", text(to.network())), ("netmask", text(mask(to))), ("gateway", text(via))]);
    match entry.get_mut("routes") {
        Some(Value::Array(routes)) => routes.push(route),
        // The guest's reader has already refused every other type except null.
        _ => entry.insert("routes", Value::Array(vec![route])),
    }
}

/// The family of the static address of an entry of `networks`. `None` for an entry that has no static address.
fn static_family(entry: &Object) -> Option<Family> {
    match entry.get("type") {
        Some(Value::String(kind)) => match kind.as_str() {
            "ipv4" | "static" => Some(Family::Ipv4),
            "ipv6" | "static6" => Some(Family::Ipv6),
            _ => None,
        },
        _ => None,
    }
}

/// The type of a network that requests an address from a DHCP server, if the machine already has an address of this
/// family. The machine would have both addresses, and the address of the DHCP server is not in the ledger.
fn dynamic_kind<'e>(entry: &'e Object, allocation: &Allocation) -> Option<&'e str> {
    let Some(Value::String(kind)) = entry.get("type") else { return None };
    let family = match kind.as_str() {
        "ipv4_dhcp" | "dhcp4" | "dhcp" => Family::Ipv4,
        "ipv6_dhcp" | "dhcp6" | "ipv6_dhcpv6-stateful" => Family::Ipv6,
        _ => return None,
    };
    allocation.addresses.iter().any(|address| Family::of(address.ip()) == family).then_some(kind)
}

/// Whether a link is a NIC: its type is any word but those of a bond and a VLAN.
fn is_nic(link: &Object) -> bool {
    !["bond", "vlan"].iter().any(|kind| is_text(link.get("type"), kind))
}

/// A member with a value. `null` and an empty string count as absent.
fn given<'o>(object: &'o Object, name: &str) -> Option<&'o Value> {
    object.get(name).filter(|value| !matches!(value, Value::Null) && !is_text(Some(value), ""))
}

/// Whether a value is this string, or the number that the string represents.
fn is_text(value: Option<&Value>, wanted: &str) -> bool {
    match value {
        Some(Value::String(text)) => text == wanted,
        Some(Value::Integer(number)) => number.to_string() == wanted,
        _ => false,
    }
}

fn prefix_length(mask: &Value, family: Family) -> Option<u8> {
    address::prefix_length(&mask.to_string(), family)
}

/// The netmask as an address of the family, the form that every reader accepts.
fn mask(address: IpNetwork) -> String {
    address.mask().to_string()
}

fn text(value: impl fmt::Display) -> Value {
    Value::String(value.to_string())
}

fn members<const N: usize>(members: [(&str, Value); N]) -> Object {
    members.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

fn object<const N: usize>(values: [(&str, Value); N]) -> Value {
    Value::Object(members(values))
}

// === impl Document ===

impl Document {
    /// The text of the document for the drive: JSON on one line, the same text for the same input.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The same network as cloud-init's network-config, version 2, for a NoCloud drive. The text is JSON on one line,
    /// which readers of YAML accept.
    ///
    /// The format has name servers only on links: they are written on the link with the default route. A setting that
    /// the format cannot express becomes a warning of the returned document, unless the setting is essential.
    ///
    /// # Errors
    ///
    /// [`ExpandError::Template`] when the format cannot express an essential setting.
    pub fn to_network_config(&self) -> Result<Self, ExpandError> {
        let network = match read_network(self.text.as_bytes()).meaning {
            Meaning::Network(network) => network,
            // The reader has already read the addresses from this text.
            Meaning::Unconfigured | Meaning::Disabled | Meaning::Refused => NetworkConfig::default(),
        };
        let (text, limits) = write_network_config(&network).map_err(ExpandError::Template)?;
        let warnings = self.warnings.iter().cloned().chain(limits).collect();
        Ok(Self { text, warnings })
    }

    /// Warnings of the guest about this document, in the order of their places.
    #[must_use]
    pub fn warnings(&self) -> &[Diagnostic] {
        &self.warnings
    }
}

// === impl ExpandError ===

/// Joins addresses on one line.
struct List<'a>(&'a [IpNetwork]);

impl fmt::Display for List<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("none");
        }
        for (index, address) in self.0.iter().enumerate() {
            write!(f, "{}{address}", if index == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

impl fmt::Display for ExpandError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Template(diagnostics) => diagnostics.fmt(f),
            Self::Twice(interface) => write!(f, "interface {interface} is given twice, expected once"),
            Self::Addresses(interface, addresses) => {
                let addresses = List(addresses);
                write!(f, "interface {interface} is given {addresses}, expected one address, or one of each family")
            }
            Self::WithoutPrefix(interface, address) => {
                write!(f, "interface {interface} is given {address}, expected a prefix length: 0 is for claims alone")
            }
            Self::Refused(diagnostics) => write!(f, "the guest would refuse the document: {diagnostics}"),
            Self::Differs { interface, read, allocated } => {
                let (read, allocated) = (List(read), List(allocated));
                write!(f, "the guest would read other addresses on {interface}: {read}, expected {allocated}")
            }
        }
    }
}

impl std::error::Error for ExpandError {}
