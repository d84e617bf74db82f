//! Reads cloud-init's network-config: version 1, and those parts of version 2 that netplan defines.
//!
//! `canonical/cloud-init:cloudinit/net/network_state.py` decides what a document means. Where cloud-init passes a
//! document on to netplan, `canonical/netplan:doc/netplan-yaml.md` decides.
//!
//! This module reads the tree of the document directly, without a type for each version: both versions express the same
//! settings with different names ([`Dialect`]).
//!
//! `docs/cloud-init.md` lists every document that has another meaning here than in cloud-init 22.4, with the reason.
//! `tests/cloud_init` checks this list.

#[cfg(test)]
mod tests;
mod v1;
mod v2;
#[cfg(feature = "host")]
mod write;

#[cfg(feature = "host")]
pub use write::{have_same_network, write_network_config};

use std::borrow::Cow;
use std::collections::BTreeMap;

use ipnetwork::IpNetwork;
use pnet_base::MacAddr;

use super::convert::{self, Guess, Reported, Written, WrittenOption, WrittenRoute};
use super::reader::{MAX_ITEMS, Members, Reader, switch};
use super::value::{Object, Scalar, Value};
use crate::diagnostic::{Diagnostic, Diagnostics, FieldPath, Severity};
use crate::formats::Format;
use crate::network::{
    BondOptions, BridgeOptions, BridgePort, Contradiction, Dns, Family, InterfaceName, Ipv6Dynamic, Link, LinkIndex,
    LinkKind, NetworkConfig, Nic, Route,
};

/// Converts a document to the model. `base` is the path of the object that contains `version`. `None` if the document
/// has errors.
pub(super) fn convert(
    format: Format,
    document: &Object,
    base: &FieldPath<'_>,
    diagnostics: &mut Diagnostics,
) -> Option<NetworkConfig> {
    match format {
        Format::NetworkConfigV1 => v1::convert(document, base, diagnostics),
        _ => v2::convert(document, base, diagnostics),
    }
}

/// The names that one version uses for members of both versions, and the functions that differ.
struct Dialect {
    /// The member with a device's name. `None` in version 2, where the name is the key of the device.
    name: Option<&'static str>,
    bond_ports: &'static str,
    bridge_ports: &'static str,
    options: &'static str,
    vlan_parent: &'static str,
    vlan_id: &'static str,
    mac_address: &'static str,
    /// The member with the destination of a route.
    destination: &'static str,
    /// The members that a device of this kind may have.
    members: fn(DeviceKind) -> Members,
    /// The members that a route may have in this version.
    route_members: &'static [&'static str],
    nic: fn(&mut Converter<'_, '_>, &Entry<'_>) -> Reported<Nic>,
    /// Applies the settings of a device to its link. Returns the routes, because checking them needs the addresses of
    /// the link.
    settings: fn(&mut Converter<'_, '_>, &Entry<'_>, &mut Link) -> Vec<Route>,
}

#[derive(Clone, Copy, Eq, PartialEq)]
enum DeviceKind {
    Nic,
    Bond,
    Bridge,
    Vlan,
    Loopback,
}

const KINDS: [DeviceKind; 5] =
    [DeviceKind::Nic, DeviceKind::Bond, DeviceKind::Bridge, DeviceKind::Vlan, DeviceKind::Loopback];

/// A device in the document.
struct Entry<'d> {
    kind: DeviceKind,
    /// The name by which other devices refer to this device.
    key: Cow<'d, str>,
    object: &'d Object,
    path: FieldPath<'d>,
}

struct Converter<'d, 'f> {
    dialect: &'static Dialect,
    reader: Reader<'f>,
    /// The devices of the document, without the loopback device.
    entries: Vec<Entry<'d>>,
    /// Number of entries.
    described: usize,
    by_key: BTreeMap<String, LinkIndex>,
    /// The links of the model, in the order of the entries. A NIC as a placeholder replaces an invalid entry.
    links: Vec<Link>,
    /// NICs that other devices refer to, and that have no entry. They follow the other links.
    implied: Vec<Link>,
    guesses: Vec<Guess>,
    dns: Dns,
}

/// Names of options in netplan and ifupdown, with the kernel's name of the same option.
const OPTIONS: &[(&str, &str)] = &[
    ("ageing", "ageing_time"),
    ("aging_time", "ageing_time"),
    ("all_members_active", "all_slaves_active"),
    ("arp_ip_targets", "arp_ip_target"),
    ("bridgeprio", "priority"),
    ("down_delay", "downdelay"),
    ("fail_over_mac_policy", "fail_over_mac"),
    ("fd", "forward_delay"),
    ("gratuitious_arp", "num_grat_arp"),
    ("gratuitous_arp", "num_grat_arp"),
    ("hello", "hello_time"),
    ("learn_packet_interval", "lp_interval"),
    ("maxage", "max_age"),
    ("mii_monitor_interval", "miimon"),
    ("packets_per_member", "packets_per_slave"),
    ("pathcost", "path_cost"),
    ("portprio", "port_priority"),
    ("primary_reselect_policy", "primary_reselect"),
    ("transmit_hash_policy", "xmit_hash_policy"),
    ("up_delay", "updelay"),
];

/// All members of a route in both versions, including members with a separate diagnostic.
const ROUTE_MEMBERS: &[&str] = &[
    "advertised-receive-window",
    "congestion-window",
    "destination",
    "from",
    "gateway",
    "id",
    "metric",
    "mtu",
    "netmask",
    "network",
    "on-link",
    "prefix",
    "scope",
    "table",
    "to",
    "type",
    "via",
];

// === impl Entry ===

impl Entry<'_> {
    fn scalar(&self, name: &str) -> Option<Scalar> {
        Scalar::of(self.object.get(name)?)
    }
}

// === impl Converter ===

impl<'d, 'f> Converter<'d, 'f> {
    fn new(dialect: &'static Dialect, diagnostics: &'f mut Diagnostics) -> Self {
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

    fn diagnostics(&mut self) -> &mut Diagnostics {
        self.reader.diagnostics
    }

    /// Parses a static address of the current device, which must belong to the family `wanted` if that is given.
    fn static_address(
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
    fn add(&mut self, entry: Entry<'d>) {
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
        // Errors are dropped: these checks are made for other devices and reject 127.0.0.1.
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

    fn make_links(&mut self) {
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
                    let diagnostic = Diagnostic::without_value(Severity::Error, path, "bond without a port", expected);
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
    fn name(&mut self, entry: &Entry<'_>, otherwise: Severity) -> Option<InterfaceName> {
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

    /// Finds another device by its key. A device without an entry is a NIC with this name, as in cloud-init.
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

    /// The options of a bond or a bridge, with the kernel's names.
    fn options<'e>(&mut self, entry: &Entry<'e>) -> Vec<WrittenOption<'e>> {
        let Some(options) = self.reader.object(entry.object, (&entry.path, self.dialect.options), Severity::Warning)
        else {
            return Vec::new();
        };
        let option = |(written, value): (&'e str, &'e Value)| {
            let prefixes = ["bond-", "bond_", "bridge-", "bridge_"];
            let bare = prefixes.iter().find_map(|prefix| written.strip_prefix(prefix)).unwrap_or(written);
            let bare = bare.replace('-', "_");
            let kernels = OPTIONS.iter().find(|(name, _)| *name == bare).map(|(_, kernels)| Cow::Borrowed(*kernels));
            let name = kernels.unwrap_or(Cow::Owned(bare));
            let is_in_seconds = entry.kind == DeviceKind::Bridge || name == "lp_interval";
            let value = duration(value, is_in_seconds).map_or(Cow::Borrowed(value), Cow::Owned);
            (*value != Value::Null).then_some(WrittenOption { written, name, value })
        };
        options.members().into_iter().filter_map(option).collect()
    }

    fn bond_options(&mut self, entry: &Entry<'_>, ports: &[LinkIndex]) -> Reported<BondOptions> {
        let options = self.options(entry);
        let path = entry.path.field(self.dialect.options);
        let Self { by_key, reader, .. } = self;
        let port = |wanted: &str| by_key.get(wanted).copied().filter(|port| ports.contains(port));
        convert::bond_options(reader.diagnostics, &path, &options, &port)
    }

    fn bridge_options(&mut self, entry: &Entry<'_>, ports: &[LinkIndex]) -> BridgeOptions {
        let written = self.options(entry);
        let path = entry.path.field(self.dialect.options);
        let mut options = BridgeOptions { path: path.path(), ..BridgeOptions::default() };
        options.stp = written.iter().rfind(|option| option.name == "stp").and_then(|option| switch(&option.value));
        for option in &written {
            let (path, value) = (path.field(option.written), option.value.as_ref());
            let (field, least, most) = match option.name.as_ref() {
                "stp" => {
                    if options.stp.is_none() {
                        self.diagnostics().push(Diagnostic::warning(path, "invalid switch", value, "true or false"));
                    }
                    continue;
                }
                "path_cost" | "port_priority" => {
                    self.bridge_ports(&path, option, ports, &mut options.ports);
                    continue;
                }
                // 0 is outside the range of the delay, but without the Spanning Tree Protocol no port waits, and
                // authors write 0 for that.
                "forward_delay" if options.stp != Some(true) && value.to_string() == "0" => continue,
                // Ignored: ifupdown's waiting times, and another list of the ports.
                "gcint" | "maxwait" | "ports" | "waitport" => continue,
                "priority" => {
                    options.priority = self.number(&path, value, 0, 65_535).and_then(|number| number.try_into().ok());
                    continue;
                }
                "ageing_time" => (&mut options.ageing_time, 0, u32::MAX),
                "forward_delay" => (&mut options.forward_delay, 2, 30),
                "hello_time" => (&mut options.hello_time, 1, 10),
                "max_age" => (&mut options.max_age, 6, 40),
                _ => {
                    let expected = "an option of netplan's bridges";
                    self.diagnostics().push(Diagnostic::warning(path, "unknown bridge option", value, expected));
                    continue;
                }
            };
            *field = self.number(&path, value, least, most);
        }
        options
    }

    fn number(&mut self, path: &FieldPath<'_>, value: &Value, least: u32, most: u32) -> Option<u32> {
        let number = value.to_string().parse().ok().filter(|number| (least..=most).contains(number));
        if number.is_none() {
            let expected = format!("a number of {least} to {most}");
            self.diagnostics().push(Diagnostic::warning(path, "invalid value", value, &expected));
        }
        number
    }

    /// Reads the options of single bridge ports: a mapping from port to number, or ifupdown's strings of a port and a
    /// number.
    fn bridge_ports(
        &mut self,
        path: &FieldPath<'_>,
        option: &WrittenOption<'_>,
        ports: &[LinkIndex],
        options: &mut Vec<BridgePort>,
    ) {
        let is_cost = option.name == "path_cost";
        let pair = |text: &Value| {
            let text = text.to_string();
            let (port, number) = text.split_once(' ').unwrap_or((&text, ""));
            (port.to_owned(), Value::String(number.trim().to_owned()))
        };
        let pairs: Vec<(String, Value)> = match option.value.as_ref() {
            Value::Object(pairs) => {
                pairs.members().into_iter().map(|(port, number)| (port.to_owned(), number.clone())).collect()
            }
            Value::Array(pairs) => pairs.iter().map(pair).collect(),
            other => vec![pair(other)],
        };
        for (port, number) in pairs {
            let path = path.field(&port);
            let Some(at) = self.by_key.get(&port).copied().filter(|at| ports.contains(at)) else {
                self.diagnostics().push(Diagnostic::warning(path, "unknown port", &port, "one of its ports"));
                continue;
            };
            let (least, most) = if is_cost { (1, 65_535) } else { (0, 63) };
            let Some(number) = self.number(&path, &number, least, most) else { continue };
            let index = options.iter().position(|options| options.port == at).unwrap_or_else(|| {
                options.push(BridgePort { port: at, path_cost: None, priority: None });
                options.len() - 1
            });
            if is_cost {
                options[index].path_cost = number.try_into().ok();
            } else {
                options[index].priority = number.try_into().ok();
            }
        }
    }

    /// Removes and reports addresses on bond members and bridge ports. Then reports the unknown members of the object
    /// of every device: as warnings if the device has addresses or another device uses it, else as errors.
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

    /// Reports unknown members of a device. They are errors if the device has no other settings, since an unknown
    /// member may be a misspelt address.
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

    fn finish(self) -> Option<NetworkConfig> {
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

    /// Reads name servers and search domains. Each is a list, or a string with blanks between the words.
    fn name_servers(&mut self, object: &Object, path: &FieldPath<'_>, names: [&str; 2], into: &mut Dns) {
        let servers = self.reader.words(object, (path, names[0]), Severity::Warning);
        convert::nameservers(self.reader.diagnostics, &path.field(names[0]), &servers, into);
        let domains = self.reader.words(object, (path, names[1]), Severity::Warning);
        convert::search_domains(self.reader.diagnostics, &path.field(names[1]), &domains, into);
    }

    /// Reads the routes of a device or a subnet. The destination `default` belongs to `family` when the route has no
    /// gateway.
    fn routes(&mut self, parent: &Object, path: &FieldPath<'_>, family: Option<Family>, routes: &mut Vec<Route>) {
        let list = path.field("routes");
        for (index, value) in self.reader.values(parent, (path, "routes"), Severity::Error).iter().enumerate() {
            let path = list.index(index);
            match value {
                Value::Object(object) => routes.extend(self.route(object, &path, family)),
                other => self.diagnostics().push(Diagnostic::error(path, "invalid item", other, "an object")),
            }
        }
    }

    /// Reads a route. The names of both versions are accepted.
    fn route(&mut self, object: &Object, path: &FieldPath<'_>, family: Option<Family>) -> Option<Route> {
        let destination = member(object, &[self.dialect.destination, "network", "destination", "to"]);
        let netmask = member(object, &["netmask", "prefix"]);
        let gateway = member(object, &["via", "gateway"]);
        let metric = member(object, &["metric"]);
        let written = WrittenRoute {
            destination: (destination.0, destination.1.as_ref()),
            netmask: (netmask.0, netmask.1.as_ref()),
            gateway: (gateway.0, gateway.1.as_ref()),
            metric: (metric.0, metric.1.as_ref()),
        };
        let route = convert::route(self.diagnostics(), path, &written, family);
        let on_link = self.reader.switch(object, (path, "on-link"), Severity::Warning).unwrap_or(false);
        let table = self.table(object, path);
        let members = Members { named: [self.dialect.route_members, &[]], others: ROUTE_MEMBERS };
        self.reader.report_unknown_members(object, path, members, Severity::Warning, "");
        for name in ["type", "scope", "from", "mtu", "advertised-receive-window", "congestion-window"] {
            // In version 1, `route` is the type of the item that contains the route.
            let is_usual =
                |value: &&Value| matches!(value, Value::String(word) if word == "unicast" || word == "route");
            let Some(value) = object.get(name).filter(|value| !is_usual(value)) else { continue };
            let is_type = name == "type";
            let because = if is_type { "only unicast routes are supported" } else { "glowplug does not support it" };
            self.diagnostics().push(Diagnostic::ignored(path.field(name), value, because));
            // A route of another type, such as `blackhole`, must not become a normal route.
            if is_type {
                return None;
            }
        }
        let mut route = route?;
        route.on_link = on_link;
        route.table = table;
        Some(route)
    }

    /// Reads the number of a routing table. `None`: the main table.
    fn table(&mut self, object: &Object, path: &FieldPath<'_>) -> Option<u32> {
        let written = object.get("table").and_then(Scalar::of)?;
        let table = written.integer().and_then(|table| u32::try_from(table).ok());
        if table.is_none() {
            let expected = "a number from 0 to 4294967295; the main table is used instead";
            self.diagnostics().push(Diagnostic::warning(path.field("table"), "invalid table", &written, expected));
        }
        // 254 is the number of the main table.
        table.filter(|table| *table != 254)
    }
}

/// Returns the first of several names whose member has a value, with the value. Without a value, returns the first
/// name.
fn member(object: &Object, names: &[&'static str]) -> (&'static str, Option<Scalar>) {
    let given = |name: &&'static str| Some((*name, Some(Scalar::of(object.get(name)?)?)));
    names.iter().find_map(given).unwrap_or((names[0], None))
}

/// Converts a time with a unit to the number that the kernel expects; `None` for a value without a unit.
fn duration(value: &Value, is_in_seconds: bool) -> Option<Value> {
    let Value::String(text) = value else { return None };
    let (number, is_milli) = match text.strip_suffix("ms") {
        Some(number) => (number, true),
        None => (text.strip_suffix('s')?, false),
    };
    let number: i64 = number.parse().ok()?;
    Some(Value::Integer(match (is_milli, is_in_seconds) {
        (true, true) => number / 1000,
        (false, false) => number.saturating_mul(1000),
        _ => number,
    }))
}

/// A placeholder for an invalid device. The error has been reported and the document will be rejected, but the other
/// devices can still be checked.
fn unreadable() -> LinkKind {
    LinkKind::Nic(Nic::MacAddress { mac_address: MacAddr::zero(), name: None })
}

const DEVICE_EXPECTED: &str = "the name of a device";
