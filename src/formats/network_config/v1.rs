//! Version 1 of network-config: a list of devices, name servers and routes.

use std::borrow::Cow;

use super::converter::{Converter, DeviceKind, Dialect, Entry, KINDS};
use super::routes::member;
use crate::diagnostic::{Diagnostic, Diagnostics, FieldPath, Severity};
use crate::formats::convert::{self, Reported};
use crate::formats::reader::Members;
use crate::formats::value::{Object, Scalar, Value};
use crate::network::{Family, Ipv6Dynamic, Link, Located, NetworkConfig, Nic, Route};

static DIALECT: Dialect = Dialect {
    name: Some("name"),
    bond_ports: "bond_interfaces",
    bridge_ports: "bridge_interfaces",
    options: "params",
    vlan_parent: "vlan_link",
    vlan_id: "vlan_id",
    mac_address: "mac_address",
    destination: "destination",
    members,
    route_members: &["destination", "gateway", "metric", "netmask"],
    nic,
    settings,
};

fn members(kind: DeviceKind) -> Members {
    let of_kind: &[&str] = match kind {
        DeviceKind::Nic | DeviceKind::Loopback => &[],
        DeviceKind::Bond => &["bond_interfaces", "params"],
        DeviceKind::Bridge => &["bridge_interfaces", "params"],
        DeviceKind::Vlan => &["vlan_id", "vlan_link"],
    };
    Members {
        named: [&["accept-ra", "mac_address", "mtu", "name", "subnets", "type"], of_kind],
        // The member `params` of a NIC names its driver, which has no effect here.
        others: &["id", "keep_configuration", "params", "wakeonlan"],
    }
}

const SUBNET: Members = Members {
    named: [
        &["address", "dns_nameservers", "dns_search", "gateway", "metric", "mtu", "netmask", "routes", "type"],
        &[],
    ],
    others: &["broadcast", "control", "id", "ip_address", "ipv4", "ipv6", "prefix", "scope"],
};

const NAME_SERVERS: Members = Members { named: [&["address", "interface", "search", "type"], &[]], others: &["id"] };

const TYPE_EXPECTED: &str = "physical, bond, bridge, vlan, loopback, nameserver or route";
const SUBNET_EXPECTED: &str =
    "dhcp, dhcp4, dhcp6, static, static6, manual, ipv6_slaac, ipv6_dhcpv6-stateful or ipv6_dhcpv6-stateless";

/// Converts a document of version 1 to the model. `base` is the path of the object that contains `version`. `None` if the
/// document has errors.
pub(in crate::formats) fn convert(
    document: &Object,
    base: &FieldPath<'_>,
    diagnostics: &mut Diagnostics,
) -> Option<NetworkConfig> {
    let list = base.field("config");
    let mut converter = Converter::new(&DIALECT, diagnostics);
    let mut commands = Vec::new();
    for (index, item) in converter.reader.array(document, (base, "config"), Severity::Error).iter().enumerate() {
        let path = list.index(index);
        let Value::Object(object) = item else {
            converter.diagnostics().push(Diagnostic::error(path, "invalid item", item, "an object"));
            continue;
        };
        let kind = object.get("type").and_then(Scalar::of);
        let kind = match kind.as_ref().map(Scalar::text).as_deref() {
            Some("physical" | "infiniband") => DeviceKind::Nic,
            Some("bond") => DeviceKind::Bond,
            Some("bridge") => DeviceKind::Bridge,
            Some("vlan") => DeviceKind::Vlan,
            Some("loopback") => DeviceKind::Loopback,
            Some(command @ ("nameserver" | "route")) => {
                commands.push((command == "route", object, path));
                continue;
            }
            _ => {
                let (severity, path) = (Severity::Warning, path.field("type"));
                convert::unknown(converter.diagnostics(), severity, path, "unknown type", kind.as_ref(), TYPE_EXPECTED);
                DeviceKind::Nic
            }
        };
        let key = object.get("name").and_then(Scalar::of).map_or(String::new(), |name| name.to_string());
        let kind = if key == "lo" { DeviceKind::Loopback } else { kind };
        converter.add(Entry { kind, key: Cow::Owned(key), object, path });
    }
    for (name, value) in document.members() {
        let holds = match value {
            Value::Object(object) => !object.is_empty(),
            Value::Array(array) => !array.is_empty(),
            other => *other != Value::Null && KINDS.into_iter().any(|kind| members(kind).has(name)),
        };
        if holds && name != "config" {
            let expected = "the member inside an item of config: check the indentation";
            converter.diagnostics().push(Diagnostic::error(
                base.field(name),
                "member outside the list",
                value,
                expected,
            ));
        } else if !matches!(name, "config" | "version")
            && !matches!(value, Value::Array(_) | Value::Object(_) | Value::Null)
        {
            converter.diagnostics().push(Diagnostic::warning(
                base.field(name),
                "unknown member",
                value,
                "config or version",
            ));
        }
    }
    converter.make_links();
    for (is_route, object, path) in commands {
        if is_route {
            converter.global_route(object, &path);
        } else {
            converter.global_nameserver(object, &path);
        }
    }
    converter.finish()
}

/// The identity of a NIC: its MAC address if there is one, else its name. With a MAC address, the name is only
/// requested.
fn nic(converter: &mut Converter<'_, '_>, entry: &Entry<'_>) -> Reported<Nic> {
    let is_infiniband = matches!(entry.object.get("type"), Some(Value::String(kind)) if kind == "infiniband");
    let path = entry.path.field("mac_address");
    let mut written = entry.scalar("mac_address");
    if let Some(written) = written.take_if(|_| is_infiniband) {
        let because = "an InfiniBand NIC is identified by its name";
        converter.diagnostics().push(Diagnostic::ignored(path, written, because));
    }
    let mac_address = convert::mac_address(converter.diagnostics(), path, written.as_ref());
    if let Ok(Some(mac_address)) = mac_address {
        let name = if entry.key.is_empty() { None } else { converter.name(entry, Severity::Warning) };
        return Ok(Nic::MacAddress { mac_address, name });
    }
    let name = converter.name(entry, Severity::Error);
    mac_address?;
    Ok(Nic::Name(name.ok_or(())?))
}

fn settings(converter: &mut Converter<'_, '_>, entry: &Entry<'_>, link: &mut Link) -> Vec<Route> {
    let list = entry.path.field("subnets");
    let mut routes = Vec::new();
    let mut unknown = Vec::new();
    let mut is_manual = false;
    let subnets = converter.reader.values(entry.object, (&entry.path, "subnets"), Severity::Error);
    for (index, subnet) in subnets.iter().enumerate() {
        let path = list.index(index);
        let Value::Object(subnet) = subnet else {
            converter.diagnostics().push(Diagnostic::error(path, "invalid item", subnet, "an object"));
            continue;
        };
        converter.reader.report_unknown_members(subnet, &path, SUBNET, Severity::Warning, "");
        let kind = subnet.get("type").and_then(Scalar::of);
        let metric = member(subnet, &["metric"]).1;
        let metric = convert::metric(converter.diagnostics(), path.field("metric"), metric.as_ref());
        let of_dhcp = |metric: Option<u32>| Some(Located { value: metric?, path: path.field("metric").path() });
        let dynamic = match kind.as_ref().map(Scalar::text).as_deref() {
            Some("dhcp6" | "ipv6_dhcpv6-stateful") => Some(Ipv6Dynamic::StatefulDhcp),
            Some("ipv6_dhcpv6-stateless") => Some(Ipv6Dynamic::StatelessDhcp),
            Some("ipv6_slaac") => Some(Ipv6Dynamic::Slaac),
            _ => None,
        };
        let family = match kind.as_ref().map(Scalar::text).as_deref() {
            _ if dynamic.is_some() => {
                link.ipv6.dynamic = link.ipv6.dynamic.max(dynamic);
                link.ipv6.dhcp_overrides.route_metric =
                    link.ipv6.dhcp_overrides.route_metric.take().or(of_dhcp(metric));
                Some(Family::Ipv6)
            }
            Some("dhcp" | "dhcp4") => {
                link.ipv4.dhcp = true;
                link.ipv4.dhcp_overrides.route_metric =
                    link.ipv4.dhcp_overrides.route_metric.take().or(of_dhcp(metric));
                Some(Family::Ipv4)
            }
            Some(kind @ ("static" | "static6")) => {
                let wanted = (kind == "static6").then_some(Family::Ipv6);
                let address = member(subnet, &["address", "ip_address"]);
                let netmask = member(subnet, &["netmask", "prefix"]);
                let written = (path.field(address.0), address.1.as_ref());
                let netmask = (path.field(netmask.0), netmask.1.as_ref());
                let address = converter.static_address(written, netmask, wanted);
                address.into_iter().for_each(|address| convert::add_address(link, address));
                address.map(|address| Family::of(address.ip())).or(wanted)
            }
            Some(kind @ ("manual" | "loopback")) => {
                is_manual |= kind == "manual";
                if let Some(address) = subnet.get("address").filter(|address| **address != Value::Null) {
                    let because = "the type of the subnet is not static";
                    let diagnostic = Diagnostic::ignored(path.field("address"), address, because);
                    converter.diagnostics().push(diagnostic);
                }
                None
            }
            _ => {
                unknown.push((index, kind));
                None
            }
        };
        // With another value of `control`, the network program of cloud-init does not start the device at boot.
        if let Some(control) = subnet.get("control").filter(|control| !matches!(control, Value::Null))
            && control.to_string() != "auto"
        {
            let because = "glowplug configures every device at boot";
            converter.diagnostics().push(Diagnostic::ignored(path.field("control"), control, because));
        }
        let gateway = member(subnet, &["gateway"]).1;
        let gateway =
            convert::default_route(converter.diagnostics(), path.field("gateway"), gateway.as_ref(), family, metric);
        // The path of the subnet is the path of the route, because gateway and metric are both members of the subnet.
        routes.extend(gateway.map(|route| route.at(path.path())));
        converter.routes(subnet, &path, family, &mut routes);
        converter.name_servers(subnet, &path, ["dns_nameservers", "dns_search"], &mut link.dns);
        let mtu = subnet.get("mtu").and_then(Scalar::of);
        let mtu = convert::mtu(converter.diagnostics(), path.field("mtu"), mtu.as_ref());
        convert::merge_mtu(converter.diagnostics(), path.field("mtu"), link, mtu);
    }
    link.without_addresses = is_manual && !link.has_addresses();
    // An unknown subnet type is only a warning if the device has another address.
    let severity = if link.has_addresses() { Severity::Warning } else { Severity::Error };
    for (index, kind) in unknown {
        let path = list.index(index);
        let path = path.field("type");
        convert::unknown(
            converter.diagnostics(),
            severity,
            path,
            "unknown subnet type",
            kind.as_ref(),
            SUBNET_EXPECTED,
        );
    }
    routes
}

impl Converter<'_, '_> {
    /// Reads name servers for the machine, or for one of its devices.
    fn global_nameserver(&mut self, object: &Object, path: &FieldPath<'_>) {
        self.reader.report_unknown_members(object, path, NAME_SERVERS, Severity::Warning, "");
        let interface = object.get("interface").and_then(Scalar::of);
        let link = interface.as_ref().and_then(|name| self.by_key.get(name.text().as_ref()).copied());
        if let (Some(interface), None) = (&interface, link)
            && interface.text() != "lo"
        {
            let expected = "the name of a device: the name servers are used for the whole machine";
            let path = path.field("interface");
            self.diagnostics().push(Diagnostic::warning(path, "unknown device", interface, expected));
        }
        let mut dns = std::mem::take(link.map_or(&mut self.dns, |link| &mut self.links[link.0].dns));
        if matches!(object.get("address"), None | Some(Value::Null)) {
            let (path, expected) = (path.field("address"), "IP addresses");
            self.diagnostics().push(Diagnostic::without_value(Severity::Warning, path, "missing", expected));
        }
        self.name_servers(object, path, ["address", "search"], &mut dns);
        *link.map_or(&mut self.dns, |link| &mut self.links[link.0].dns) = dns;
    }

    /// Adds a route without a device to a link: to the link whose subnet contains the gateway, else to the only link
    /// with addresses of the route's family.
    fn global_route(&mut self, object: &Object, path: &FieldPath<'_>) {
        let Some(route) = self.route(object, path, None) else { return };
        let is_v4 = route.destination().is_ipv4();
        let uses = |link: &Link| if is_v4 { link.ipv4.is_used() } else { link.ipv6.is_used() };
        let mut users = (0..self.links.len()).filter(|at| uses(&self.links[*at]));
        let (first, second) = (users.next(), users.next());
        let holds = |link: &Link| match route.gateway() {
            Some(std::net::IpAddr::V4(hop)) => link.ipv4.addresses.iter().any(|address| address.contains(hop)),
            Some(std::net::IpAddr::V6(hop)) => link.ipv6.addresses.iter().any(|address| address.contains(hop)),
            None => false,
        };
        match self.links.iter().position(holds).or(first.filter(|_| second.is_none())) {
            Some(at) => self.links[at].routes.push(route),
            None if first.is_none() => {
                let expected = "a device with an address of its family";
                let diagnostic = Diagnostic::warning(path, "unreachable route", route.destination(), expected);
                self.diagnostics().push(diagnostic);
            }
            None => {
                let expected = "a gateway in the subnet of a device";
                let diagnostic = Diagnostic::error(path, "route without a device", route.destination(), expected);
                self.diagnostics().push(diagnostic);
            }
        }
    }
}
