//! Makes the document of one machine from a template and the machine's addresses.
//!
//! The template is an OpenStack `network_data.json`, as JSON or YAML. The document keeps all members of the template in
//! their order, including members that glowplug does not know. Addresses are added where they are missing. The settings
//! of the pool, such as the gateway and the name servers, are added where the template has none. NICs get their names,
//! which afterburn and cloud-init need. The guest's reader reads every document first, so the host never writes a
//! document that the guest cannot read.

mod draft;
mod secret;
#[cfg(test)]
mod tests;
mod types;

pub use types::{Document, ExpandError, Grant};

use std::collections::BTreeSet;

use self::draft::{
    Draft, LINKS, NETWORKS, given, is_nic, is_text, members, object, prefix_length, static_family, text,
};
use super::address::parse_interface_address;
use super::pool::TemplateFacts;
use crate::diagnostic::{Diagnostic, Diagnostics, FieldPath, Severity};
use crate::formats::value::{self, Object, Value};
use crate::formats::{address, is_network_config};
use crate::network::{Family, InterfaceName};

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

// === impl Template ===

impl Template {
    /// Reads a template as JSON or YAML.
    ///
    /// # Errors
    ///
    /// [`ExpandError::Template`] when the input is neither JSON nor YAML, is not an object, is cloud-init's
    /// network-config, has a key twice, or has a number that cannot be written again.
    pub fn parse(document: &[u8]) -> Result<Self, ExpandError> {
        let mut diagnostics = Diagnostics::default();
        let value = value::parse_strict(document).unwrap_or_else(|diagnostic| {
            diagnostics.push(diagnostic);
            Value::Object(Object::default())
        });
        fractions(&value, &FieldPath::Document, &mut diagnostics);
        match value {
            Value::Object(object) if is_network_config(&object) => {
                let (problem, expected) = ("not a network_data.json", "OpenStack's format with links");
                diagnostics.push(Diagnostic::without_value(Severity::Error, "document", problem, expected));
            }
            Value::Object(object) if !diagnostics.has_errors() => return Ok(Self(object)),
            Value::Object(_) => {}
            other => diagnostics.push(Diagnostic::error("document", "invalid document", other, "an object")),
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

    /// Returns a warning for each part of a link that afterburn does not read: the type of a bond or a VLAN, and the
    /// MTU of a NIC.
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

    /// The settings of the template for an interface: prefix lengths, and the addresses of routers and servers. No
    /// machine gets an address that the template names. The facts also have the warnings about the template.
    ///
    /// # Errors
    ///
    /// [`ExpandError::Template`] when `links` or `networks` is no list, when the template has no link or several links
    /// for the interface, when a netmask is invalid, or when the template has an address of its own: see
    /// [`Template::expand`].
    #[doc(hidden)]
    pub fn facts(&self, interface: &InterfaceName) -> Result<TemplateFacts, ExpandError> {
        let mut draft = Draft::new(self.0.clone());
        draft.refuse_addresses();
        let mut facts = TemplateFacts { unread: self.unread_by_afterburn(), ..TemplateFacts::default() };
        name_addresses(&Value::Object(self.0.clone()), &mut facts);
        // At this point, `facts.gateways` has the gateways of all interfaces. They are moved to `facts.addresses`, and
        // the gateways of this interface are added again below.
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
    ///   interface of the gateway. A warning names each other gateway of the family.
    /// - A route is added if the template has no route to its destination on the interface.
    /// - The name servers of a family are added if the template has no name server of this family, and the search
    ///   domains if it has no search domain.
    /// - The MTU is added if the link of the interface has none.
    ///
    /// All machines of a template would use its addresses. So a template with the address of an interface, except a
    /// link-local IPv6 address, or with the MAC address of a bond or a VLAN, is an error.
    ///
    /// # Errors
    ///
    /// See [`ExpandError`]. An error of the template lists all reasons at once.
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
        let mut draft = Draft::new(self.0.clone());
        draft.refuse_addresses();
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

/// Collects the addresses in a value as gateways, name servers or other addresses, depending on the member that has the
/// address. A network and its netmask are not addresses of machines.
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
            "address" => facts.addresses.extend(found),
            _ => {}
        }
        name_addresses(member, facts);
    }
}

/// Reports every number that is not a whole number of 64 bits, because a document cannot keep such a number.
fn fractions(value: &Value, path: &FieldPath<'_>, diagnostics: &mut Diagnostics) {
    match value {
        Value::Fraction(number) => {
            let (problem, expected) = ("number that cannot be kept", "a whole number of 64 bits, or a string");
            diagnostics.push(Diagnostic::error(path, problem, number, expected));
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
