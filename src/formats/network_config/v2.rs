//! Version 2 of network-config, netplan's format: sections of devices, each device with a key.

use std::borrow::Cow;

use ipnetwork::IpNetwork;

use super::converter::{Converter, DeviceKind, Dialect, Entry};
use crate::diagnostic::{Diagnostic, Diagnostics, FieldPath, Severity};
use crate::formats::address;
use crate::formats::convert::{self, Reported};
use crate::formats::reader::{Members, switch};
use crate::formats::value::{Object, Scalar, Value};
use crate::network::{
    DhcpOverrides, Family, InterfaceName, Ipv6Dynamic, Link, LinkIndex, Located, NetworkConfig, Nic, Pattern, Route,
    RoutingRule, RoutingRuleError,
};

static DIALECT: Dialect = Dialect {
    name: None,
    bond_ports: "interfaces",
    bridge_ports: "interfaces",
    options: "parameters",
    vlan_parent: "link",
    vlan_id: "id",
    mac_address: "macaddress",
    destination: "to",
    members,
    route_members: &["metric", "on-link", "table", "to", "type", "via"],
    nic,
    settings,
};

fn members(kind: DeviceKind) -> Members {
    let of_kind: &[&str] = match kind {
        DeviceKind::Nic | DeviceKind::Loopback => &["match", "set-name"],
        DeviceKind::Bond | DeviceKind::Bridge => &["interfaces", "parameters"],
        DeviceKind::Vlan => &["id", "link"],
    };
    Members { named: [COMMON, of_kind], others: PASSED_OVER }
}

const COMMON: &[&str] = &[
    "accept-ra",
    "addresses",
    "dhcp4",
    "dhcp4-overrides",
    "dhcp6",
    "dhcp6-overrides",
    "gateway4",
    "gateway6",
    "macaddress",
    "mtu",
    "nameservers",
    "routes",
    "routing-policy",
];

/// Further members that a device may have in netplan. Messages do not list these members. `link-local` is read. Each
/// other member has no effect on the network of the first boot, or has a separate diagnostic.
const PASSED_OVER: &[&str] = &[
    "activation-mode",
    "auth",
    "critical",
    "dhcp-identifier",
    "emit-lldp",
    "generic-receive-offload",
    "generic-segmentation-offload",
    "ignore-carrier",
    "ipv6-address-generation",
    "ipv6-address-token",
    "ipv6-mtu",
    "ipv6-privacy",
    "large-receive-offload",
    "link-local",
    "networkmanager",
    "openvswitch",
    "optional",
    "optional-addresses",
    "receive-checksum-offload",
    "renderer",
    "tcp-segmentation-offload",
    "tcp6-segmentation-offload",
    "transmit-checksum-offload",
    "wakeonlan",
];

const MATCH: Members = Members { named: [&["driver", "macaddress", "name"], &[]], others: &[] };

const OVERRIDES: Members = Members {
    named: [
        &[
            "route-metric",
            "send-hostname",
            "use-dns",
            "use-domains",
            "use-hostname",
            "use-mtu",
            "use-ntp",
            "use-routes",
        ],
        &[],
    ],
    others: &["hostname"],
};

const RULE: Members =
    Members { named: [&["from", "mark", "priority", "table", "to", "type-of-service"], &[]], others: &[] };

const NAME_SERVERS: Members = Members { named: [&["addresses", "search"], &[]], others: &[] };

const SECTIONS: [(&str, DeviceKind); 4] = [
    ("ethernets", DeviceKind::Nic),
    ("bonds", DeviceKind::Bond),
    ("bridges", DeviceKind::Bridge),
    ("vlans", DeviceKind::Vlan),
];

/// Sections for other kinds of devices in netplan.
const UNSUPPORTED: [&str; 8] =
    ["dummy-devices", "modems", "nm-devices", "openvswitch", "tunnels", "virtual-ethernets", "vrfs", "wifis"];

const SECTION_EXPECTED: &str = "ethernets, bonds, bridges or vlans";

/// Converts a document of version 2 to the model. `base` is the path of the object that contains `version`. `None` if the
/// document has errors.
pub(in crate::formats) fn convert(
    document: &Object,
    base: &FieldPath<'_>,
    diagnostics: &mut Diagnostics,
) -> Option<NetworkConfig> {
    let paths = SECTIONS.map(|(name, _)| base.field(name));
    let mut converter = Converter::new(&DIALECT, diagnostics);
    let mut others = Vec::new();
    for (name, value) in document.members() {
        match SECTIONS.iter().position(|(section, _)| *section == name) {
            Some(at) => {
                let devices = converter.reader.object(document, (base, name), Severity::Error);
                let devices = devices.map(Object::members).unwrap_or_default();
                devices.into_iter().for_each(|device| converter.add_device(SECTIONS[at].1, &paths[at], device));
            }
            // An empty value contains no device.
            None => match value {
                Value::Object(object) if !object.is_empty() => others.push((name, value)),
                Value::Array(array) if !array.is_empty() => others.push((name, value)),
                Value::Null => {}
                _ if ["renderer", "version"].contains(&name) || UNSUPPORTED.contains(&name) => {}
                _ => {
                    let diagnostic = Diagnostic::warning(base.field(name), "unknown section", value, SECTION_EXPECTED);
                    converter.diagnostics().push(diagnostic);
                }
            },
        }
    }
    converter.add_aliases();
    let has_devices = converter.described > 0;
    for (name, value) in others {
        let is_netplans = UNSUPPORTED.contains(&name);
        // A warning is enough if the document has another device: the machine may work without the unsupported device.
        let severity = if is_netplans && has_devices { Severity::Warning } else { Severity::Error };
        let problem = if is_netplans { "unsupported section" } else { "unknown section" };
        // A service may listen on the address of a dummy device, so the diagnostic names these devices.
        let devices = match value {
            Value::Object(devices) if name == "dummy-devices" => devices.members(),
            _ => Vec::new(),
        };
        let named: Vec<&str> = devices.iter().map(|(device, _)| *device).collect();
        let value = if named.is_empty() { value.to_string() } else { named.join(", ") };
        let diagnostic = Diagnostic::new(severity, base.field(name), problem, value, SECTION_EXPECTED);
        converter.diagnostics().push(diagnostic);
    }
    converter.make_links();
    converter.finish()
}

impl<'d> Converter<'d, '_> {
    fn add_device(&mut self, kind: DeviceKind, section: &'d FieldPath<'d>, (key, value): (&'d str, &'d Value)) {
        static EMPTY: Object = Object::EMPTY;
        let path = section.field(key);
        let object = match value {
            Value::Object(object) => object,
            Value::Null => &EMPTY,
            other => {
                self.diagnostics().push(Diagnostic::error(path, "invalid item", other, "an object"));
                return;
            }
        };
        let kind = if kind == DeviceKind::Nic && key == "lo" { DeviceKind::Loopback } else { kind };
        self.add(Entry { kind, key: Cow::Borrowed(key), object, path });
    }

    /// Adds further names by which devices can refer to a NIC: the current name in `match` and the new name in
    /// `set-name`. The key of a device has precedence over these names, as in cloud-init.
    fn add_aliases(&mut self) {
        for (at, entry) in self.entries.iter().enumerate() {
            let matched = match entry.object.get("match") {
                Some(Value::Object(matched)) => matched.get("name"),
                _ => None,
            };
            for name in [entry.object.get("set-name"), matched].into_iter().flatten() {
                self.by_key.entry(name.to_string()).or_insert(LinkIndex(at));
            }
        }
    }
}

/// The identity of a NIC: its MAC address, else its name, else a pattern. Without `match`, the key is the name.
fn nic(converter: &mut Converter<'_, '_>, entry: &Entry<'_>) -> Reported<Nic> {
    let requested = entry.scalar("set-name");
    let requested = convert::given(requested.as_ref());
    let path = entry.path.field("set-name");
    let name = requested.and_then(|requested| requested.text().parse::<InterfaceName>().ok());
    if let (Some(requested), None) = (requested, &name) {
        let expected = InterfaceName::EXPECTED;
        converter.diagnostics().push(Diagnostic::warning(path, "invalid interface name", requested, expected));
    }
    let by_name = |converter: &mut Converter<'_, '_>, known: InterfaceName| {
        if let Some(name) = name.as_ref().filter(|name| **name != known) {
            let expected = format!("a match by macaddress: the NIC keeps the name {known}");
            converter.diagnostics().push(Diagnostic::warning(
                path,
                "new name for a NIC that is identified by its name",
                name,
                &expected,
            ));
        }
        Ok(Nic::Name(known))
    };
    let errors = converter.diagnostics().errors();
    let Some(matched) = converter.reader.object(entry.object, (&entry.path, "match"), Severity::Error) else {
        if converter.diagnostics().errors() > errors {
            return Err(());
        }
        let known = converter.name(entry, Severity::Error).ok_or(())?;
        return by_name(converter, known);
    };
    let path = entry.path.field("match");
    // If a misspelt condition were ignored, the `match` would include more NICs.
    converter.reader.report_unknown_members(matched, &path, MATCH, Severity::Error, "");
    let mac_address = Scalar::of(matched.get("macaddress").unwrap_or(&Value::Null));
    let mac_address = convert::mac_address(converter.diagnostics(), path.field("macaddress"), mac_address.as_ref())?;
    let names = converter.patterns(matched, &path, "name")?;
    let drivers = converter.patterns(matched, &path, "driver")?;
    let is_literal = |pattern: &Pattern| !pattern.as_str().contains(['*', '?', '[']);
    let literal = match names.as_slice() {
        [one] if is_literal(one) => Some(one.as_str().parse::<InterfaceName>()),
        _ => None,
    };
    let because = "another condition of the match already identifies the NIC";
    if let Some(name) = names.first().filter(|_| mac_address.is_some()) {
        converter.diagnostics().push(Diagnostic::ignored(path.field("name"), name, because));
    }
    if let Some(driver) = drivers.first().filter(|_| mac_address.is_some() || literal.is_some()) {
        converter.diagnostics().push(Diagnostic::ignored(path.field("driver"), driver, because));
    }
    match (mac_address, literal) {
        (Some(mac_address), _) => Ok(Nic::MacAddress { mac_address, name }),
        (None, Some(Ok(known))) => by_name(converter, known),
        (None, Some(Err(_))) => {
            let (path, expected) = (path.field("name"), InterfaceName::EXPECTED);
            converter.diagnostics().push(Diagnostic::error(path, "invalid interface name", &names[0], expected));
            Err(())
        }
        // An empty `match` matches every NIC.
        (None, None) if names.is_empty() && drivers.is_empty() => {
            Ok(Nic::Pattern { names: "*".parse().into_iter().collect(), drivers, name })
        }
        (None, None) => Ok(Nic::Pattern { names, drivers, name }),
    }
}

impl Converter<'_, '_> {
    fn patterns(&mut self, matched: &Object, path: &FieldPath<'_>, name: &str) -> Reported<Vec<Pattern>> {
        let errors = self.diagnostics().errors();
        let words = self.reader.words(matched, (path, name), Severity::Error);
        let path = path.field(name);
        let mut patterns = Vec::new();
        for word in &words {
            match word.text().parse() {
                Ok(pattern) => patterns.push(pattern),
                Err(_) => {
                    let diagnostic = Diagnostic::error(path, "invalid pattern", word, Pattern::EXPECTED);
                    self.diagnostics().push(diagnostic);
                }
            }
        }
        // Without this error, an empty list of patterns would match every NIC.
        if let Some(given) = matched.get(name).filter(|given| **given != Value::Null && words.is_empty())
            && self.diagnostics().errors() == errors
        {
            self.diagnostics().push(Diagnostic::error(path, "empty pattern", given, Pattern::EXPECTED));
        }
        if self.diagnostics().errors() == errors { Ok(patterns) } else { Err(()) }
    }

    fn dhcp_overrides(&mut self, entry: &Entry<'_>, name: &str) -> DhcpOverrides {
        let path = entry.path.field(name);
        let Some(overrides) = self.reader.object(entry.object, (&entry.path, name), Severity::Warning) else {
            return DhcpOverrides::default();
        };
        self.reader.report_unknown_members(overrides, &path, OVERRIDES, Severity::Warning, "");
        if let Some(hostname) = overrides.get("hostname").filter(|hostname| **hostname != Value::Null) {
            let because = "DHCP sends only the host name of the machine";
            self.diagnostics().push(Diagnostic::ignored(path.field("hostname"), hostname, because));
        }
        let metric = overrides.get("route-metric").and_then(Scalar::of);
        let metric_path = path.field("route-metric");
        let metric = convert::metric(self.diagnostics(), metric_path, metric.as_ref());
        let route_metric = metric.map(|value| Located { value, path: metric_path.path() });
        let mut switch = |name: &str| self.reader.switch(overrides, (&path, name), Severity::Warning);
        DhcpOverrides {
            route_metric,
            use_routes: switch("use-routes"),
            use_dns: switch("use-dns"),
            use_domains: switch("use-domains"),
            use_hostname: switch("use-hostname"),
            send_hostname: switch("send-hostname"),
            use_mtu: switch("use-mtu"),
            use_ntp: switch("use-ntp"),
        }
    }

    /// Whether the list of families with link-local addresses contains IPv6. `None` without such a list.
    fn link_local(&mut self, object: &Object, path: &FieldPath<'_>) -> Option<bool> {
        let is_empty = matches!(object.get("link-local"), Some(Value::Array(list)) if list.is_empty());
        let families = self.reader.words(object, (path, "link-local"), Severity::Warning);
        let list = path.field("link-local");
        let has = |wanted: &str| families.iter().any(|family| family.text() == wanted);
        for (index, family) in families.iter().enumerate().filter(|(_, family)| family.text() != "ipv6") {
            let because = "only IPv6 link-local addresses are supported";
            self.diagnostics().push(Diagnostic::ignored(list.index(index), family, because));
        }
        (is_empty || has("ipv6") || has("ipv4")).then(|| has("ipv6"))
    }

    /// Reads a static address. netplan permits options on an address; these options are reported and ignored.
    fn address(&mut self, value: &Value, path: &FieldPath<'_>) -> Option<IpNetwork> {
        let written = match value {
            Value::Object(object) => match object.members().as_slice() {
                [(address, options)] => {
                    if let Value::Object(options) = options {
                        for (name, option) in options.members() {
                            self.diagnostics().push(Diagnostic::ignored(
                                path.field(name),
                                option,
                                "glowplug does not support it",
                            ));
                        }
                    }
                    Some(Scalar::Text((*address).to_owned()))
                }
                _ => None,
            },
            other => Scalar::of(other),
        };
        let written = written.unwrap_or_else(|| Scalar::Text(value.to_string()));
        self.static_address((*path, Some(&written)), (*path, None), None)
    }
}

impl Converter<'_, '_> {
    fn routing_policy(&mut self, object: &Object, path: &FieldPath<'_>) -> Vec<RoutingRule> {
        let list = path.field("routing-policy");
        let mut rules = Vec::new();
        for (index, value) in self.reader.values(object, (path, "routing-policy"), Severity::Error).iter().enumerate() {
            let path = list.index(index);
            match value {
                Value::Object(object) => rules.extend(self.rule(object, &path)),
                other => self.diagnostics().push(Diagnostic::error(path, "invalid item", other, "an object")),
            }
        }
        rules
    }

    /// Reads a rule. If an invalid condition were ignored, the rule would apply to more packets, so every problem is an
    /// error.
    fn rule(&mut self, object: &Object, path: &FieldPath<'_>) -> Option<RoutingRule> {
        let errors = self.diagnostics().errors();
        self.reader.report_unknown_members(object, path, RULE, Severity::Error, "");
        let (from, to) = (self.network(object, path, "from"), self.network(object, path, "to"));
        let mut number = |name, least, most| {
            let value = object.get(name).filter(|value| **value != Value::Null)?;
            let number = value.to_string().parse().ok().filter(|number| (least..=most).contains(number));
            if number.is_none() {
                let expected = format!("a number from {least} to {most}");
                self.diagnostics().push(Diagnostic::error(path.field(name), "invalid value", value, &expected));
            }
            number
        };
        // 254 is the number of the main table.
        let table = number("table", 1, u32::MAX).filter(|table| *table != 254);
        let priority = number("priority", 0, u32::MAX);
        let mark = number("mark", 1, u32::MAX);
        let type_of_service = number("type-of-service", 0, 255).and_then(|number| u8::try_from(number).ok());
        match RoutingRule::new(from.ok()?, to.ok()?) {
            Ok(mut rule) if self.diagnostics().errors() == errors => {
                rule.path = path.path();
                (rule.table, rule.priority) = (table, priority);
                (rule.mark, rule.type_of_service) = (mark, type_of_service);
                return Some(rule);
            }
            Ok(_) => {}
            Err(RoutingRuleError::Missing) => {
                let diagnostic = Diagnostic::without_value(Severity::Error, path, "missing", "from or to");
                self.diagnostics().push(diagnostic);
            }
            Err(RoutingRuleError::MixedFamilies) => {
                let [from, to] =
                    ["from", "to"].map(|name| object.get(name).map_or_else(String::new, ToString::to_string));
                let (path, expected) = (path.field("to"), format!("a network of the family of {from}"));
                self.diagnostics().push(Diagnostic::error(path, "network of the other family", to, &expected));
            }
        }
        None
    }

    /// Reads the source or destination network of a rule. An address without a prefix length is a single host.
    fn network(&mut self, object: &Object, path: &FieldPath<'_>, name: &str) -> Reported<Option<IpNetwork>> {
        let Some(written) = object.get(name).filter(|value| **value != Value::Null) else { return Ok(None) };
        let text = Scalar::of(written).map(|written| written.text().into_owned());
        match text.map(|text| address::destination(&text, None, Family::Ipv4)) {
            // `default` is rejected, because it has no family.
            Some(Ok(prefixed)) if *written != Value::String("default".to_owned()) => Ok(Some(prefixed.network)),
            _ => {
                let diagnostic =
                    Diagnostic::error(path.field(name), "invalid network", written, "an address or a CIDR");
                self.diagnostics().push(diagnostic);
                Err(())
            }
        }
    }
}

fn settings(converter: &mut Converter<'_, '_>, entry: &Entry<'_>, link: &mut Link) -> Vec<Route> {
    let (object, path) = (entry.object, &entry.path);
    let state = |name| object.get(name).and_then(switch);
    link.ipv4.dhcp = state("dhcp4") == Some(true);
    link.ipv6.dynamic = (state("dhcp6") == Some(true)).then_some(Ipv6Dynamic::StatefulDhcp);
    link.ipv4.dhcp_overrides = converter.dhcp_overrides(entry, "dhcp4-overrides");
    link.ipv6.dhcp_overrides = converter.dhcp_overrides(entry, "dhcp6-overrides");

    let list = path.field("addresses");
    for (index, value) in converter.reader.values(object, (path, "addresses"), Severity::Error).iter().enumerate() {
        if let Some(address) = converter.address(value, &list.index(index)) {
            convert::add_address(link, address);
        }
    }
    link.ipv6.link_local = converter.link_local(object, path);
    let states_none = [state("dhcp4"), state("dhcp6"), link.ipv6.link_local].contains(&Some(false));
    link.without_addresses = states_none && !link.has_addresses();
    // An invalid `dhcp4` or `dhcp6` is only a warning if the device has another address.
    let severity = if link.has_addresses() { Severity::Warning } else { Severity::Error };
    for name in ["dhcp4", "dhcp6"] {
        converter.reader.switch(object, (path, name), severity);
    }
    for name in ["activation-mode", "auth", "ipv6-address-token", "ipv6-mtu", "openvswitch"] {
        if let Some(value) = object.get(name).filter(|value| **value != Value::Null) {
            let ignored = Diagnostic::ignored(path.field(name), value, "glowplug does not support it");
            converter.diagnostics().push(ignored);
        }
    }
    let mut routes = Vec::new();
    for (name, family) in [("gateway4", Family::Ipv4), ("gateway6", Family::Ipv6)] {
        let written = entry.scalar(name);
        let path = path.field(name);
        routes.extend(convert::default_route(converter.diagnostics(), path, written.as_ref(), Some(family), None));
    }
    converter.routes(object, path, None, &mut routes);
    link.routing_policy = converter.routing_policy(object, path);
    if let Some(servers) = converter.reader.object(object, (path, "nameservers"), Severity::Warning) {
        let path = path.field("nameservers");
        converter.reader.report_unknown_members(servers, &path, NAME_SERVERS, Severity::Warning, "");
        converter.name_servers(servers, &path, ["addresses", "search"], &mut link.dns);
    }
    routes
}
