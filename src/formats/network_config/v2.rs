//! Version 2 of network-config, netplan's format: sections of devices, each device with a key.

use std::borrow::Cow;

use ipnetwork::IpNetwork;

use super::{Converter, Dialect, Entry, Kind, switch};
use crate::finding::{Finding, Findings, Place, Severity};
use crate::formats::convert::{self, Reported};
use crate::formats::reader::Members;
use crate::formats::value::{Object, Scalar, Value};
use crate::network::{
    Card, DhcpOverrides, Family, InterfaceName, Ipv6Dynamic, Link, LinkIndex, NetworkConfig, Pattern, Placed, Route,
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
    card,
    settings,
};

fn members(kind: Kind) -> Members {
    let of_kind: &[&str] = match kind {
        Kind::Card | Kind::Loopback => &["match", "set-name"],
        Kind::Bond | Kind::Bridge => &["interfaces", "parameters"],
        Kind::Vlan => &["id", "link"],
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
];

/// netplan's further members of a device. Each has no effect on the network of the first boot, or has a separate
/// diagnostic.
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
    "routing-policy",
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

const NAME_SERVERS: Members = Members { named: [&["addresses", "search"], &[]], others: &[] };

const SECTIONS: [(&str, Kind); 4] =
    [("ethernets", Kind::Card), ("bonds", Kind::Bond), ("bridges", Kind::Bridge), ("vlans", Kind::Vlan)];

/// Sections for other kinds of devices in netplan.
const UNSUPPORTED: [&str; 8] =
    ["dummy-devices", "modems", "nm-devices", "openvswitch", "tunnels", "virtual-ethernets", "vrfs", "wifis"];

const SECTION_EXPECTED: &str = "ethernets, bonds, bridges or vlans";

pub(super) fn convert(document: &Object, base: &Place<'_>, findings: &mut Findings) -> Option<NetworkConfig> {
    let places = SECTIONS.map(|(name, _)| base.field(name));
    let mut converter = Converter::new(&DIALECT, findings);
    let mut strangers = Vec::new();
    for (name, value) in document.members() {
        match SECTIONS.iter().position(|(section, _)| *section == name) {
            Some(at) => {
                let devices = converter.reader.object(document, (base, name), Severity::Error);
                let devices = devices.map(Object::members).unwrap_or_default();
                devices.into_iter().for_each(|device| converter.add_device(SECTIONS[at].1, &places[at], device));
            }
            // An empty value contains no device.
            None => match value {
                Value::Object(object) if !object.is_empty() => strangers.push((name, value)),
                Value::Array(array) if !array.is_empty() => strangers.push((name, value)),
                Value::Null => {}
                _ if ["renderer", "version"].contains(&name) || UNSUPPORTED.contains(&name) => {}
                _ => {
                    let finding = Finding::warning(base.field(name), "unknown section", value, SECTION_EXPECTED);
                    converter.findings().push(finding);
                }
            },
        }
    }
    converter.add_aliases();
    let has_devices = converter.described > 0;
    for (name, value) in strangers {
        let is_netplans = UNSUPPORTED.contains(&name);
        // A warning is enough if the document has another device: the machine may not need the unsupported device.
        let severity = if is_netplans && has_devices { Severity::Warning } else { Severity::Error };
        let problem = if is_netplans { "unsupported section" } else { "unknown section" };
        let finding = Finding::new(severity, base.field(name), problem, value.kind(), SECTION_EXPECTED);
        converter.findings().push(finding);
    }
    converter.make_links();
    converter.finish()
}

impl<'d> Converter<'d, '_> {
    fn add_device(&mut self, kind: Kind, section: &'d Place<'d>, (key, value): (&'d str, &'d Value)) {
        static EMPTY: Object = Object::EMPTY;
        let place = section.field(key);
        let object = match value {
            Value::Object(object) => object,
            Value::Null => &EMPTY,
            other => {
                self.findings().push(Finding::error(place, "invalid item", other.kind(), "an object"));
                return;
            }
        };
        let kind = if kind == Kind::Card && key == "lo" { Kind::Loopback } else { kind };
        self.add(Entry { kind, key: Cow::Borrowed(key), object, place });
    }

    /// Adds further names by which devices may refer to a NIC: its current name in `match` and its new name in
    /// `set-name`. A key has precedence, as in cloud-init.
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
fn card(converter: &mut Converter<'_, '_>, entry: &Entry<'_>) -> Reported<Card> {
    let wish = entry.scalar("set-name");
    let wish = convert::said(wish.as_ref());
    let place = entry.place.field("set-name");
    let name = wish.and_then(|wish| wish.text().parse::<InterfaceName>().ok());
    if let (Some(wish), None) = (wish, &name) {
        let expected = InterfaceName::EXPECTED;
        converter.findings().push(Finding::warning(place, "invalid interface name", wish, expected));
    }
    let by_name = |converter: &mut Converter<'_, '_>, known: InterfaceName| {
        if let Some(name) = name.as_ref().filter(|name| **name != known) {
            let expected = format!("a match by macaddress beside it: the card stays {known}");
            converter.findings().push(Finding::warning(
                place,
                "new name for a card known by its name",
                name,
                &expected,
            ));
        }
        Ok(Card::Name(known))
    };
    let errors = converter.findings().errors();
    let Some(matched) = converter.reader.object(entry.object, (&entry.place, "match"), Severity::Error) else {
        if converter.findings().errors() > errors {
            return Err(());
        }
        let known = converter.name(entry, Severity::Error).ok_or(())?;
        return by_name(converter, known);
    };
    let place = entry.place.field("match");
    // Without a misspelt condition, the `match` would include more NICs.
    converter.reader.report_unknown_members(matched, &place, MATCH, Severity::Error, "");
    let mac_address = Scalar::of(matched.get("macaddress").unwrap_or(&Value::Null));
    let mac_address = convert::mac_address(converter.findings(), place.field("macaddress"), mac_address.as_ref())?;
    let names = converter.patterns(matched, &place, "name")?;
    let drivers = converter.patterns(matched, &place, "driver")?;
    let is_literal = |pattern: &Pattern| !pattern.as_str().contains(['*', '?', '[']);
    let literal = match names.as_slice() {
        [one] if is_literal(one) => Some(one.as_str().parse::<InterfaceName>()),
        _ => None,
    };
    let expected = "none: the card is known without it";
    if let Some(name) = names.first().filter(|_| mac_address.is_some()) {
        converter.findings().push(Finding::warning(place.field("name"), "pattern left out", name, expected));
    }
    if let Some(driver) = drivers.first().filter(|_| mac_address.is_some() || literal.is_some()) {
        converter.findings().push(Finding::warning(place.field("driver"), "driver left out", driver, expected));
    }
    match (mac_address, literal) {
        (Some(mac_address), _) => Ok(Card::MacAddress { mac_address, name }),
        (None, Some(Ok(known))) => by_name(converter, known),
        (None, Some(Err(_))) => {
            let (place, expected) = (place.field("name"), InterfaceName::EXPECTED);
            converter.findings().push(Finding::error(place, "invalid interface name", &names[0], expected));
            Err(())
        }
        // An empty `match` matches every NIC.
        (None, None) if names.is_empty() && drivers.is_empty() => {
            Ok(Card::Pattern { names: "*".parse().into_iter().collect(), drivers, name })
        }
        (None, None) => Ok(Card::Pattern { names, drivers, name }),
    }
}

impl Converter<'_, '_> {
    fn patterns(&mut self, matched: &Object, place: &Place<'_>, name: &str) -> Reported<Vec<Pattern>> {
        let errors = self.findings().errors();
        let words = self.reader.words(matched, (place, name), Severity::Error);
        let place = place.field(name);
        let mut patterns = Vec::new();
        for word in &words {
            match word.text().parse() {
                Ok(pattern) => patterns.push(pattern),
                Err(_) => {
                    let finding = Finding::error(place, "invalid pattern", word, Pattern::EXPECTED);
                    self.findings().push(finding);
                }
            }
        }
        // Without this error, an empty list of patterns would match every NIC.
        if let Some(said) = matched.get(name).filter(|said| **said != Value::Null && words.is_empty())
            && self.findings().errors() == errors
        {
            self.findings().push(Finding::error(place, "empty pattern", said, Pattern::EXPECTED));
        }
        if self.findings().errors() == errors { Ok(patterns) } else { Err(()) }
    }

    fn dhcp_overrides(&mut self, entry: &Entry<'_>, name: &str) -> DhcpOverrides {
        let place = entry.place.field(name);
        let Some(overrides) = self.reader.object(entry.object, (&entry.place, name), Severity::Warning) else {
            return DhcpOverrides::default();
        };
        self.reader.report_unknown_members(overrides, &place, OVERRIDES, Severity::Warning, "");
        if let Some(hostname) = overrides.get("hostname").filter(|hostname| **hostname != Value::Null) {
            let expected = "none: the machine's own is told";
            self.findings().push(Finding::warning(place.field("hostname"), "hostname left out", hostname, expected));
        }
        let metric = overrides.get("route-metric").and_then(Scalar::of);
        let metric_place = place.field("route-metric");
        let metric = convert::metric(self.findings(), metric_place, metric.as_ref());
        let route_metric = metric.map(|value| Placed { value, place: metric_place.path() });
        let mut switch = |name: &str| self.reader.switch(overrides, (&place, name), Severity::Warning);
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

    /// Reads a static address. netplan permits options on an address; they are reported and ignored.
    fn address(&mut self, value: &Value, place: &Place<'_>) -> Option<IpNetwork> {
        let written = match value {
            Value::Object(object) => match object.members().as_slice() {
                [(address, options)] => {
                    if let Value::Object(options) = options {
                        for (name, option) in options.members() {
                            let expected = "none: it is left out";
                            let place = place.field(name);
                            let finding = Finding::warning(place, "unsupported option of an address", option, expected);
                            self.findings().push(finding);
                        }
                    }
                    Some(Scalar::Text((*address).to_owned()))
                }
                _ => None,
            },
            other => Scalar::of(other),
        };
        let written = written.unwrap_or_else(|| Scalar::Text(value.kind().to_owned()));
        self.static_address((*place, Some(&written)), (*place, None), None)
    }
}

fn settings(converter: &mut Converter<'_, '_>, entry: &Entry<'_>, link: &mut Link) -> Vec<Route> {
    let (object, place) = (entry.object, &entry.place);
    let state = |name| object.get(name).and_then(switch);
    link.ipv4.dhcp = state("dhcp4") == Some(true);
    link.ipv6.dynamic = (state("dhcp6") == Some(true)).then_some(Ipv6Dynamic::StatefulDhcp);
    link.ipv4.dhcp_overrides = converter.dhcp_overrides(entry, "dhcp4-overrides");
    link.ipv6.dhcp_overrides = converter.dhcp_overrides(entry, "dhcp6-overrides");

    let list = place.field("addresses");
    for (index, value) in converter.reader.values(object, (place, "addresses"), Severity::Error).iter().enumerate() {
        if let Some(address) = converter.address(value, &list.index(index)) {
            convert::add_address(link, address);
        }
    }
    link.without_addresses = [state("dhcp4"), state("dhcp6")].contains(&Some(false)) && !link.has_addresses();
    // An invalid `dhcp4` or `dhcp6` is only a warning if the device has another address.
    let severity = if link.has_addresses() { Severity::Warning } else { Severity::Error };
    for name in ["dhcp4", "dhcp6"] {
        converter.reader.switch(object, (place, name), severity);
    }
    for name in ["activation-mode", "auth", "ipv6-address-token", "ipv6-mtu", "openvswitch", "routing-policy"] {
        if let Some(value) = object.get(name).filter(|value| **value != Value::Null) {
            let (place, expected) = (place.field(name), "none: it is left out");
            let finding = Finding::warning(place, "unsupported member of a device", value, expected);
            converter.findings().push(finding);
        }
    }
    let families = converter.reader.words(object, (place, "link-local"), Severity::Warning);
    let list = place.field("link-local");
    for (index, family) in families.iter().enumerate().filter(|(_, family)| family.text() != "ipv6") {
        let expected = "ipv6, or an empty list: no other link-local address is given";
        let finding = Finding::warning(list.index(index), "link-local address left out", family, expected);
        converter.findings().push(finding);
    }

    let mut routes = Vec::new();
    for (name, family) in [("gateway4", Family::Ipv4), ("gateway6", Family::Ipv6)] {
        let written = entry.scalar(name);
        let place = place.field(name);
        routes.extend(convert::default_route(converter.findings(), place, written.as_ref(), Some(family), None));
    }
    converter.routes(object, place, None, &mut routes);
    if let Some(servers) = converter.reader.object(object, (place, "nameservers"), Severity::Warning) {
        let place = place.field("nameservers");
        converter.reader.report_unknown_members(servers, &place, NAME_SERVERS, Severity::Warning, "");
        converter.name_servers(servers, &place, ["addresses", "search"], &mut link.dns);
    }
    routes
}
