//! Converts the devices of a document to links, for both versions.

use std::borrow::Cow;
use std::collections::BTreeMap;

use ipnetwork::IpNetwork;
use pnet_base::MacAddr;

use crate::diagnostic::{Diagnostic, Diagnostics, FieldPath, Severity};
use crate::formats::convert::{self, Guess, Reported, Written};
use crate::formats::reader::{MAX_ITEMS, Members, Reader};
use crate::formats::value::{Object, Scalar};
use crate::network::{
    Contradiction, Dns, Family, InterfaceName, Ipv6Dynamic, Link, LinkIndex, LinkKind, NetworkConfig, Nic, Route,
};

/// The differences between version 1 and version 2: names of members, and functions.
pub(super) struct Dialect {
    /// The member with a device's name. `None` in version 2, where the name is the key of the device.
    pub(super) name: Option<&'static str>,
    pub(super) bond_ports: &'static str,
    pub(super) bridge_ports: &'static str,
    pub(super) options: &'static str,
    pub(super) vlan_parent: &'static str,
    pub(super) vlan_id: &'static str,
    pub(super) mac_address: &'static str,
    /// The member with the destination of a route.
    pub(super) destination: &'static str,
    /// The members that a device of this kind may have.
    pub(super) members: fn(DeviceKind) -> Members,
    /// The members that a route may have in this version.
    pub(super) route_members: &'static [&'static str],
    pub(super) nic: fn(&mut Converter<'_, '_>, &Entry<'_>) -> Reported<Nic>,
    /// Applies the settings of a device to its link. Returns the routes, because a check of the routes needs all
    /// addresses of the link.
    pub(super) settings: fn(&mut Converter<'_, '_>, &Entry<'_>, &mut Link) -> Vec<Route>,
}

#[derive(Clone, Copy, Eq, PartialEq)]
pub(super) enum DeviceKind {
    Nic,
    Bond,
    Bridge,
    Vlan,
    Loopback,
}

pub(super) const KINDS: [DeviceKind; 5] =
    [DeviceKind::Nic, DeviceKind::Bond, DeviceKind::Bridge, DeviceKind::Vlan, DeviceKind::Loopback];

/// A device in the document.
pub(super) struct Entry<'d> {
    pub(super) kind: DeviceKind,
    /// The name by which other devices refer to this device.
    pub(super) key: Cow<'d, str>,
    pub(super) object: &'d Object,
    pub(super) path: FieldPath<'d>,
}

pub(super) struct Converter<'d, 'f> {
    pub(super) dialect: &'static Dialect,
    pub(super) reader: Reader<'f>,
    /// The devices of the document, without the loopback device.
    pub(super) entries: Vec<Entry<'d>>,
    /// Number of entries. Does not change when `make_links` empties `entries`.
    pub(super) described: usize,
    pub(super) by_key: BTreeMap<String, LinkIndex>,
    /// The links of the model, in the order of the entries. A placeholder NIC stands for an invalid entry.
    pub(super) links: Vec<Link>,
    /// NICs without an entry, to which other devices refer. In the model, these NICs follow the links of the entries.
    implied: Vec<Link>,
    guesses: Vec<Guess>,
    pub(super) dns: Dns,
}

// === impl Entry ===

impl Entry<'_> {
    pub(super) fn scalar(&self, name: &str) -> Option<Scalar> {
        Scalar::of(self.object.get(name)?)
    }
}

// === impl Converter ===

impl<'d, 'f> Converter<'d, 'f> {
    pub(super) fn new(dialect: &'static Dialect, diagnostics: &'f mut Diagnostics) -> Self {
        Self {
            dialect,
            reader: Reader { diagnostics },
            entries: Vec::new(),
            described: 0,
            by_key: BTreeMap::new(),
            links: Vec::new(),
            implied: Vec::new(),
            guesses: Vec::new(),
            dns: Dns::default(),
        }
    }

    pub(super) fn diagnostics(&mut self) -> &mut Diagnostics {
        self.reader.diagnostics
    }

    /// Parses a static address of the current device. If the family `wanted` is given, the address must belong to this
    /// family.
    pub(super) fn static_address(
        &mut self,
        written: Written<'_>,
        netmask: Written<'_>,
        wanted: Option<Family>,
    ) -> Option<IpNetwork> {
        let link = LinkIndex(self.links.len());
        let guesses = (&mut self.guesses, Some(link));
        convert::static_address(self.reader.diagnostics, written, netmask, wanted, guesses)
    }

    /// Adds a device. Devices are added in the document's order.
    pub(super) fn add(&mut self, entry: Entry<'d>) {
        if entry.kind == DeviceKind::Loopback {
            self.loopback(&entry);
            return;
        }
        let at = LinkIndex(self.entries.len());
        if !entry.key.is_empty() && self.by_key.insert(entry.key.to_string(), at).is_some() {
            let expected = "a name that no other device has";
            self.diagnostics().push(Diagnostic::error(entry.path, "repeated name", &entry.key, expected));
        }
        self.entries.push(entry);
        self.described += 1;
    }

    /// Reads the loopback device. The kernel always creates this device, so only its name servers and search domains
    /// are used.
    fn loopback(&mut self, entry: &Entry<'_>) {
        let mut link = Link::new(entry.key.to_string(), entry.path.path(), unreadable());
        let mut diagnostics = Diagnostics::default();
        let mut aside = Converter::new(self.dialect, &mut diagnostics);
        let routes = (self.dialect.settings)(&mut aside, entry, &mut link);
        aside.report_unknown_members(entry, Severity::Warning);
        // Errors are dropped, because the checks are for other devices and would reject 127.0.0.1.
        let warnings =
            diagnostics.into_parts().0.into_iter().filter(|diagnostic| diagnostic.severity == Severity::Warning);
        warnings.for_each(|diagnostic| self.diagnostics().push(diagnostic));
        let because = "the kernel configures the loopback device";
        for route in routes {
            let diagnostic = Diagnostic::ignored(&route.path, route.destination(), because);
            self.diagnostics().push(diagnostic);
        }
        let lost = link.addresses();
        if !lost.is_empty() {
            self.diagnostics().push(Diagnostic::ignored(entry.path, lost.join(", "), because));
        }
        self.dns.nameservers.append(&mut link.dns.nameservers);
        self.dns.search.append(&mut link.dns.search);
    }

    pub(super) fn make_links(&mut self) {
        let entries = std::mem::take(&mut self.entries);
        for entry in &entries {
            let kind = self.kind(entry).unwrap_or_else(|()| unreadable());
            let path = entry.path.path();
            let id = if entry.key.is_empty() { path.clone() } else { entry.key.to_string() };
            let mut link = Link::new(id, path, kind);
            link.mtu = convert::mtu(self.diagnostics(), entry.path.field("mtu"), entry.scalar("mtu").as_ref());
            if self.dialect.name.is_none() {
                // A NIC has its name in `set-name`. For any other device the key is the name.
                link.name_path =
                    if entry.kind == DeviceKind::Nic { entry.path.field("set-name").path() } else { link.path.clone() };
            }
            // In version 1, the MAC address of a NIC identifies the NIC. Any other MAC address is set on the link.
            if entry.kind != DeviceKind::Nic || self.dialect.name.is_none() {
                let written = entry.scalar(self.dialect.mac_address);
                let path = entry.path.field(self.dialect.mac_address);
                link.cloned_mac_address =
                    convert::mac_address(self.diagnostics(), path, written.as_ref()).unwrap_or(None);
            }
            let errors = self.diagnostics().errors();
            let routes = (self.dialect.settings)(self, entry, &mut link);
            link.ipv6.accept_ra = self.reader.switch(entry.object, (&entry.path, "accept-ra"), Severity::Warning);
            if link.ipv6.accept_ra == Some(true) && link.ipv6.dynamic.is_none() && link.ipv6.addresses.is_empty() {
                link.ipv6.dynamic = Some(Ipv6Dynamic::Slaac);
            }
            let is_sure = self.diagnostics().errors() == errors;
            convert::add_routes(self.diagnostics(), &mut link, routes, is_sure);
            convert::check_rules(self.diagnostics(), &mut link, is_sure);
            self.links.push(link);
        }
        self.links.append(&mut self.implied);
        if self.links.len() > MAX_ITEMS {
            let (devices, expected) = (self.links.len(), format!("at most {MAX_ITEMS}"));
            self.diagnostics().push(Diagnostic::error(FieldPath::Document, "too many devices", devices, &expected));
        }
        self.look_at_ports(&entries);
        self.look_for_repeats();
    }

    fn kind(&mut self, entry: &Entry<'_>) -> Reported<LinkKind> {
        let (dialect, path) = (self.dialect, &entry.path);
        match entry.kind {
            DeviceKind::Nic | DeviceKind::Loopback => (dialect.nic)(self, entry).map(LinkKind::Nic),
            DeviceKind::Vlan => {
                // An invalid name is only a warning, because a renderer can name any VLAN after its parent and its id.
                let name = self.name(entry, Severity::Warning);
                let written = entry.scalar(dialect.vlan_parent);
                let parent_path = path.field(dialect.vlan_parent);
                let parent = match &written {
                    Some(written) => self.device(written, parent_path, Severity::Error),
                    None => {
                        let diagnostic =
                            Diagnostic::without_value(Severity::Error, parent_path, "missing", DEVICE_EXPECTED);
                        self.diagnostics().push(diagnostic);
                        None
                    }
                };
                let id = entry.scalar(dialect.vlan_id);
                let id = convert::vlan_id(self.diagnostics(), path.field(dialect.vlan_id), id.as_ref());
                Ok(LinkKind::Vlan { name, parent: parent.ok_or(())?, id: id? })
            }
            DeviceKind::Bond => {
                let name = self.name(entry, Severity::Error);
                let ports = self.ports(entry, dialect.bond_ports);
                if ports.is_empty() {
                    let (path, expected) = (path.field(dialect.bond_ports), "the names of its devices");
                    let diagnostic =
                        Diagnostic::without_value(Severity::Error, path, "bond without a member", expected);
                    self.diagnostics().push(diagnostic);
                }
                let options = self.bond_options(entry, &ports);
                Ok(LinkKind::Bond { name: name.ok_or(())?, ports, options: options? })
            }
            DeviceKind::Bridge => {
                let name = self.name(entry, Severity::Error);
                let ports = self.ports(entry, dialect.bridge_ports);
                let options = self.bridge_options(entry, &ports);
                Ok(LinkKind::Bridge { name: name.ok_or(())?, ports, options })
            }
        }
    }

    /// The interface name of a device: its key.
    pub(super) fn name(&mut self, entry: &Entry<'_>, otherwise: Severity) -> Option<InterfaceName> {
        let name = entry.key.parse().ok();
        if name.is_none() {
            let path = self.dialect.name.map_or(entry.path, |name| entry.path.field(name));
            self.diagnostics().push(if entry.key.is_empty() {
                Diagnostic::without_value(otherwise, path, "missing", InterfaceName::EXPECTED)
            } else {
                Diagnostic::new(otherwise, path, "invalid interface name", &entry.key, InterfaceName::EXPECTED)
            });
        }
        name
    }

    fn ports(&mut self, entry: &Entry<'_>, name: &str) -> Vec<LinkIndex> {
        let list = entry.path.field(name);
        let ports = self.reader.words(entry.object, (&entry.path, name), Severity::Error);
        let port = |(index, port)| self.device(port, list.index(index), Severity::Warning);
        ports.iter().enumerate().filter_map(port).collect()
    }

    /// Finds another device by its key or, in version 2, by another name of the device (`add_aliases`). A device
    /// without an entry is a NIC with this name, as in cloud-init.
    fn device(&mut self, written: &Scalar, path: FieldPath<'_>, otherwise: Severity) -> Option<LinkIndex> {
        let text = written.text();
        if let Some(at) = self.by_key.get(text.as_ref()) {
            return Some(*at);
        }
        let Ok(name) = text.parse() else {
            self.diagnostics().push(Diagnostic::new(otherwise, path, "unknown device", written, DEVICE_EXPECTED));
            return None;
        };
        let expected = "a device of the document: it is used as the name of a NIC";
        self.diagnostics().push(Diagnostic::warning(path, "device without an entry", written, expected));
        let at = LinkIndex(self.described + self.implied.len());
        let nic = LinkKind::Nic(Nic::Name(name));
        self.implied.push(Link::new(text.to_string(), path.path(), nic));
        self.by_key.insert(text.into_owned(), at);
        Some(at)
    }

    /// Removes and reports addresses on bond members and bridge ports. Then reports the unknown keys of each device: as
    /// warnings if the device has addresses or is part of another device, else as errors.
    fn look_at_ports(&mut self, entries: &[Entry<'_>]) {
        let mut is_used = vec![false; self.links.len()];
        for at in 0..self.links.len() {
            let is_vlan = matches!(self.links[at].kind, LinkKind::Vlan { .. });
            let (made_of, path) = (self.links[at].kind.made_of().to_vec(), self.links[at].path.clone());
            for port in made_of {
                is_used[port.0] = true;
                let link = &mut self.links[port.0];
                if is_vlan || !link.has_addresses() {
                    continue;
                }
                let is_static = !(link.ipv4.addresses.is_empty() && link.ipv6.addresses.is_empty());
                let severity = if is_static { Severity::Error } else { Severity::Warning };
                let expected = format!("them on {path}");
                let diagnostic = Diagnostic::new(severity, &link.path, "addresses on a port", &link.id, &expected);
                (link.ipv4, link.ipv6, link.routes) = Default::default();
                self.reader.diagnostics.push(diagnostic);
            }
        }
        for (at, entry) in entries.iter().enumerate() {
            let asks = is_used[at] || self.links[at].has_addresses();
            self.report_unknown_members(entry, if asks { Severity::Warning } else { Severity::Error });
        }
    }

    /// Reports unknown members of a device. `otherwise` is an error if the device has no other settings, because an
    /// unknown member may be a misspelt address.
    fn report_unknown_members(&mut self, entry: &Entry<'_>, otherwise: Severity) {
        let members = (self.dialect.members)(entry.kind);
        let consequence = if otherwise == Severity::Error { ": without it the device has no settings" } else { "" };
        self.reader.report_unknown_members(entry.object, &entry.path, members, otherwise, consequence);
    }

    /// Reports every name and every MAC address that belongs to two devices.
    fn look_for_repeats(&mut self) {
        let mut seen: BTreeMap<String, usize> = BTreeMap::new();
        for (at, link) in self.links.iter().enumerate() {
            let (mac_address, name) = match &link.kind {
                LinkKind::Nic(Nic::MacAddress { mac_address, name }) => (Some(*mac_address), name.as_ref()),
                LinkKind::Nic(Nic::Pattern { name, .. }) | LinkKind::Vlan { name, .. } => (None, name.as_ref()),
                LinkKind::Nic(Nic::Name(name)) | LinkKind::Bond { name, .. } | LinkKind::Bridge { name, .. } => {
                    (None, Some(name))
                }
            };
            let mac_address = mac_address.filter(|address| *address != MacAddr::zero());
            for (what, value) in [
                ("name", name.map(ToString::to_string)),
                ("MAC address", mac_address.map(|address| address.to_string())),
            ] {
                let Some(value) = value else { continue };
                let first = *seen.entry(value.clone()).or_insert(at);
                // Two entries with the same key have been reported already.
                if first != at && self.links[first].id != link.id {
                    let problem = format!("{what} of {}", self.links[first].path);
                    let expected = "one that no other device has";
                    self.reader.diagnostics.push(Diagnostic::error(&link.path, &problem, value, expected));
                }
            }
        }
    }

    pub(super) fn finish(self) -> Option<NetworkConfig> {
        let paths: Vec<(String, String)> = self.links.iter().map(|link| (link.path.clone(), link.id.clone())).collect();
        let is_bridge: Vec<bool> = self.links.iter().map(|link| matches!(link.kind, LinkKind::Bridge { .. })).collect();
        convert::put_together(self.reader.diagnostics, self.links, self.dns, &self.guesses, &|contradiction| {
            let (at, problem, expected) = convert::contradiction(contradiction);
            let (problem, expected) = match contradiction {
                Contradiction::Loop(at) if is_bridge[at.0] => ("bridge of itself", "ports that are not on this bridge"),
                _ => (problem, expected),
            };
            let (path, id) = &paths[at.0];
            Diagnostic::error(path, problem, id, expected)
        })
    }

    /// Reads name servers and search domains. Each member is a list, or a string with blanks or commas between the
    /// words.
    pub(super) fn name_servers(&mut self, object: &Object, path: &FieldPath<'_>, names: [&str; 2], into: &mut Dns) {
        let servers = self.reader.words(object, (path, names[0]), Severity::Warning);
        convert::nameservers(self.reader.diagnostics, &path.field(names[0]), &servers, into);
        let domains = self.reader.words(object, (path, names[1]), Severity::Warning);
        convert::search_domains(self.reader.diagnostics, &path.field(names[1]), &domains, into);
    }
}

/// A placeholder for an invalid device. The error has been reported and the document will be rejected, but the other
/// devices can still be checked.
pub(super) fn unreadable() -> LinkKind {
    LinkKind::Nic(Nic::MacAddress { mac_address: MacAddr::zero(), name: None })
}

const DEVICE_EXPECTED: &str = "the name of a device";
