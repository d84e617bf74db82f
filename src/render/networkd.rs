//! Renders files for systemd-networkd and, for the names of NICs, for udev (systemd.network(5), systemd.netdev(5),
//! systemd.link(5)).
//!
//! networkd does not read dracut's `/etc/cmdline.d`, and kernel arguments can express only a part of what networkd can
//! do. The files need systemd 252 or newer. Each choice below was tested with networkd 252, and `tests/networkd.rs`
//! runs the program itself.
//!
//! networkd sorts the files of all directories by name, and a NIC uses the first file that matches. So the names of our
//! files sort before the files of an initramfs that enable DHCP on every NIC (`99-default.network`,
//! `zzzz-dracut-default.network`). Every link of the document has a file, even if the file only marks the NIC as
//! unmanaged.

mod netdev;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::fmt;

use super::device_names::{DeviceNames, Naming};
pub use super::files::File;
use super::files::Files;
use super::settings::{MAIN_TABLE, ignore_dns, ignore_rules, mac_address, mtu, rule_priorities};
use super::text::{Alphabet, Text};
use super::{Device, metrics};
use crate::diagnostic::{Diagnostic, Diagnostics};
use crate::network::{
    DhcpOverrides, Dns, Ipv6Dynamic, Link, LinkIndex, LinkKind, NetworkConfig, Nic, Pattern, Route, RoutingRule,
};

/// Prefixes of the names of our files. A file for one NIC sorts before a file that may match any NIC.
#[doc(hidden)]
pub const PREFIXES: [&str; 2] = ["50-glowplug-", "51-glowplug-"];

/// Excludes all devices of these kinds, which may have the MAC address of the NIC below them. A NIC has no kind. The
/// list lacks veth and tun, because the NICs of containers and of the tests have these kinds.
const NIC: &str = "!bond bridge hsr ipvlan ipvtap macsec macvlan macvtap openvswitch team virt_wifi vlan";

const ALPHABET: Alphabet =
    Alphabet { punctuation: " .:/_+-*?[]!", expected: "letters, digits, blanks and . : / _ + - * ? [ ] !" };

/// A network as files.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub struct Rendered {
    /// The files, in the order of the document.
    pub files: Vec<File>,
    /// How the files identify each link, in the order of the network's links.
    pub devices: Vec<Device>,
}

/// Renders a network as files for systemd-networkd and udev.
///
/// A setting that no file can express becomes a warning; all other settings are rendered.
pub fn render(config: &NetworkConfig, diagnostics: &mut Diagnostics) -> Rendered {
    let names = DeviceNames::assign(config, Naming::Udev, diagnostics);
    let (metrics, rule_priorities) = (metrics::metrics(config), rule_priorities(config));
    let mut render = Render { config, names, metrics, rule_priorities, diagnostics, files: Files::default() };
    for index in (0..config.links().len()).map(LinkIndex) {
        if render.files.are_too_large() {
            break;
        }
        render.netdev(index);
        render.link(index);
        render.network(index);
    }
    if !config.links().iter().any(Link::has_addresses) {
        ignore_dns(&config.dns, render.diagnostics);
    }
    let files = render.files.checked("files of systemd-networkd", render.diagnostics);
    Rendered { files, devices: render.names.devices }
}

struct Render<'c, 'f> {
    config: &'c NetworkConfig,
    names: DeviceNames,
    /// Metric of each route of each link; `None` for a route that is not set.
    metrics: Vec<Vec<Option<u32>>>,
    /// Priority of each routing rule of each link.
    rule_priorities: Vec<Vec<u32>>,
    diagnostics: &'f mut Diagnostics,
    files: Files,
}

// === impl Render ===

impl Render<'_, '_> {
    /// Adds the file that makes a bond, a bridge or a VLAN.
    fn netdev(&mut self, index: LinkIndex) {
        let link = self.config.link(index);
        let Device::Name(name) = &self.names.devices[index.0] else { return };
        let kind = match &link.kind {
            LinkKind::Nic(_) => return,
            LinkKind::Bond { .. } => "bond",
            LinkKind::Bridge { .. } => "bridge",
            LinkKind::Vlan { .. } => "vlan",
        };
        let mut text = Text::new(ALPHABET);
        text.section("NetDev");
        text.line("Name", name);
        text.line("Kind", &kind);
        let mac_address = match &link.kind {
            LinkKind::Vlan { .. } => link.cloned_mac_address,
            _ => mac_address(self.config, index),
        };
        match mac_address {
            Some(mac_address) => text.line("MACAddress", &mac_address),
            None if kind == "vlan" => {}
            // Without this line, networkd derives an address from the name and the machine id, and an initramfs has a
            // new machine id at each boot.
            None => text.line("MACAddress", &"none"),
        }
        match &link.kind {
            LinkKind::Nic(_) => {}
            LinkKind::Bond { options, .. } => netdev::bond(&mut text, options, self.diagnostics),
            LinkKind::Bridge { options, .. } => netdev::bridge(&mut text, options, self.diagnostics),
            LinkKind::Vlan { id, .. } => {
                text.section("VLAN");
                text.line("Id", id);
            }
        }
        self.push(index, "netdev", text);
    }

    /// Adds a file for udev, if the link needs such a file. The file names a NIC, or keeps udev from setting the MAC
    /// address of a bond or bridge. udev uses only the first file that matches, so the file of a NIC repeats the policy
    /// for alternative names of `99-default.link`.
    fn link(&mut self, index: LinkIndex) {
        let mut text = Text::new(ALPHABET);
        text.section("Match");
        match &self.config.link(index).kind {
            LinkKind::Nic(nic) => {
                let Some(name) = self.names.set_names[index.0] else { return };
                match nic {
                    Nic::MacAddress { mac_address, .. } => text.line("PermanentMACAddress", mac_address),
                    Nic::Name(_) => return,
                    Nic::Pattern { drivers, .. } => text.list("Driver", drivers),
                }
                text.section("Link");
                text.line("Name", &name);
                text.line("AlternativeNamesPolicy", &"database onboard slot path");
            }
            LinkKind::Bond { name, .. } | LinkKind::Bridge { name, .. }
                if mac_address(self.config, index).is_none() =>
            {
                // The kernel gives a bond or bridge the MAC address of a member, unless udev sets another address
                // first.
                text.line("OriginalName", name);
                text.section("Link");
                text.line("MACAddressPolicy", &"none");
            }
            _ => return,
        }
        self.push(index, "link", text);
    }

    /// Adds the file with the addresses, the routes and the other settings of a link.
    fn network(&mut self, index: LinkIndex) {
        let mut text = Text::new(ALPHABET);
        self.matching(index, &mut text);
        self.settings(index, &mut text);
        self.push(index, "network", text);
    }

    /// Writes the conditions by which networkd finds the link.
    ///
    /// A VLAN has the MAC address of its parent. A bond or bridge has the MAC address of a member. So a MAC address
    /// alone would also match devices that are not NICs. `Type=ether` would exclude only some of these devices, and
    /// only where udev runs.
    ///
    /// Some NICs change their MAC address, for example bond members. When networkd starts again in the real root, such
    /// a NIC no longer has its original address. So networkd finds such a NIC by its permanent address. Other NICs are
    /// found by their current address, because some drivers (veth and tap) provide no permanent address, and because a
    /// device on a NIC may copy the permanent address.
    fn matching(&self, index: LinkIndex, text: &mut Text) {
        text.section("Match");
        let link = self.config.link(index);
        match (&link.kind, &self.names.devices[index.0]) {
            (LinkKind::Nic(Nic::MacAddress { mac_address, .. }), _) => {
                let changes = self.changes_its_address(index);
                text.line(if changes { "PermanentMACAddress" } else { "MACAddress" }, mac_address);
                text.line("Kind", &NIC);
            }
            (LinkKind::Nic(Nic::Pattern { names, drivers, .. }), _) => {
                text.list("Name", names);
                text.list("Driver", drivers);
                text.line("Kind", &NIC);
            }
            (_, Device::Name(name)) => text.line("Name", name),
            _ => {}
        }
    }

    fn changes_its_address(&self, index: LinkIndex) -> bool {
        let controller = self.config.controller_of(index).map(|controller| &self.config.link(controller).kind);
        self.config.link(index).cloned_mac_address.is_some() || matches!(controller, Some(LinkKind::Bond { .. }))
    }

    fn settings(&mut self, index: LinkIndex, text: &mut Text) {
        let (config, link) = (self.config, self.config.link(index));
        let controller = config.controller_of(index).map(|controller| config.link(controller));
        let is_nic = matches!(link.kind, LinkKind::Nic(_));
        text.section("Link");
        let has_addresses = link.has_addresses() && controller.is_none();
        if !has_addresses {
            ignore_dns(&link.dns, self.diagnostics);
        }
        let is_used = has_addresses || controller.is_some() || config.carries_vlans(index) || !is_nic;
        if !is_used && link.mtu.is_none() && link.cloned_mac_address.is_none() {
            // The document sets nothing on this link. Without this line the default file would start DHCP on the link.
            text.line("Unmanaged", &"yes");
            return;
        }
        if let Some(mtu) = mtu(config, index, self.diagnostics) {
            text.line("MTUBytes", &mtu);
        }
        if let Some(mac_address) = link.cloned_mac_address.filter(|_| is_nic) {
            text.line("MACAddress", &mac_address);
        }
        let is_empty_bridge = matches!(&link.kind, LinkKind::Bridge { ports, .. } if ports.is_empty());
        if !has_addresses || is_empty_bridge {
            // systemd-networkd-wait-online waits for a carrier and an address on every required link, and this link
            // never has both.
            text.line("RequiredForOnline", &"no");
        }
        text.section("Network");
        if is_empty_bridge {
            text.line("ConfigureWithoutCarrier", &"yes");
        }
        self.stacking(index, text);
        let nothing = Link::new(String::new(), String::new(), link.kind.clone());
        let link = if controller.is_some() { &nothing } else { link };
        families(link, text);
        if has_addresses {
            dns(&config.dns, &link.dns, text);
        }
        for (route, metric) in link.routes.iter().zip(&self.metrics[index.0]) {
            if let Some(metric) = metric {
                self::route(link, route, *metric, text);
            }
            if !link.can_route(route) {
                // The kernel would reject the route, and networkd would then stop configuring the link.
                let because = "its link has no address of its family";
                self.diagnostics.push(Diagnostic::ignored(&route.path, route.destination(), because));
            }
        }
        for (rule, priority) in link.routing_policy.iter().zip(&self.rule_priorities[index.0]) {
            if link.uses(rule.family()) {
                self::rule(rule, *priority, text);
            }
        }
        let because = "its link has no address of its family";
        ignore_rules(config.link(index), |rule| !link.uses(rule.family()), because, self.diagnostics);
        dhcp(link, text, self.diagnostics);
        self.bridge_port(index, text);
    }

    /// Writes the bond or bridge that the link belongs to, and the VLANs on the link.
    fn stacking(&self, index: LinkIndex, text: &mut Text) {
        let config = self.config;
        if let Some(controller) = config.controller_of(index) {
            match &config.link(controller).kind {
                LinkKind::Bond { name, options, .. } => {
                    text.line("Bond", name);
                    if options.primary == Some(index) {
                        text.line("PrimarySlave", &"yes");
                    }
                }
                LinkKind::Bridge { name, .. } => text.line("Bridge", name),
                _ => {}
            }
        }
        if config.carries_vlans(index) {
            for (vlan, device) in config.links().iter().zip(&self.names.devices) {
                if let (LinkKind::Vlan { parent, .. }, Device::Name(name)) = (&vlan.kind, device)
                    && *parent == index
                {
                    text.line("VLAN", name);
                }
            }
        }
    }

    fn bridge_port(&self, index: LinkIndex, text: &mut Text) {
        let Some(controller) = self.config.controller_of(index) else { return };
        let LinkKind::Bridge { options, .. } = &self.config.link(controller).kind else { return };
        text.section("Bridge");
        for port in options.ports.iter().filter(|port| port.port == index) {
            text.option("Cost", port.path_cost);
            text.option("Priority", port.priority);
        }
    }

    fn push(&mut self, index: LinkIndex, kind: &str, text: Text) {
        let device = &self.names.devices[index.0];
        let [of_one, of_any] = PREFIXES;
        // These file names must not change: an image may mask the files by name.
        let (prefix, name) = match device {
            Device::Any => (of_any, "any-card".to_owned()),
            _ => (of_one, device.bare().replace(':', "-")),
        };
        let path = format!("run/systemd/network/{prefix}{:04}-{name}.{kind}", index.0);
        if let Some(value) = text.illegal {
            // Types limit the bytes in every value, so this is a second check.
            self.diagnostics.push(Diagnostic::error(&path, "illegal byte", value, ALPHABET.expected));
        }
        self.files.push(File { path, text: text.text, is_private: false });
    }
}

/// Whether the link gets an IPv6 link-local address. As in netplan and cloud-init, a link with only IPv4 addresses gets
/// a link-local address, too, unless the document states that the link gets no such address. A bridge without ports is
/// an exception: it has no carrier, so it cannot get this address.
fn has_link_local(link: &Link) -> bool {
    let is_empty = matches!(&link.kind, LinkKind::Bridge { ports, .. } if ports.is_empty());
    let by_default = link.ipv6.is_used() || link.ipv4.is_used() && !is_empty;
    // The link reaches routers and DHCPv6 servers through this address.
    let is_needed = link.ipv6.dynamic.is_some() || link.ipv6.accept_ra == Some(true);
    is_needed || link.ipv6.link_local.unwrap_or(by_default)
}

/// Whether the link accepts router advertisements. `None`: the document does not state it, and a link-local address is
/// the only IPv6 address of the link. Then networkd decides, as with netplan and cloud-init. As in NetworkManager, a
/// link with static IPv6 addresses accepts advertisements only if the document states it.
fn accepts_ra(link: &Link) -> Option<bool> {
    let ipv6 = &link.ipv6;
    let is_default = has_link_local(link) && ipv6.addresses.is_empty() && ipv6.dynamic.is_none();
    ipv6.accept_ra.or_else(|| (!is_default).then_some(ipv6.dynamic.is_some()))
}

/// Writes the addresses of the link and the dynamic methods.
fn families(link: &Link, text: &mut Text) {
    let (ipv4, ipv6) = (&link.ipv4, &link.ipv6);
    let dhcp6 = ipv6.dynamic == Some(Ipv6Dynamic::StatefulDhcp);
    if ipv4.dhcp || dhcp6 {
        text.line(
            "DHCP",
            &if !dhcp6 {
                "ipv4"
            } else if ipv4.dhcp {
                "yes"
            } else {
                "ipv6"
            },
        );
        // This line keeps the addresses on the link when networkd stops at the end of the initramfs.
        text.line("KeepConfiguration", &"dhcp-on-stop");
    }
    // networkd waits up to two seconds for the link-local address before it reports the link as configured.
    text.line("LinkLocalAddressing", if has_link_local(link) { &"ipv6" } else { &"no" });
    text.switch("IPv6AcceptRA", accepts_ra(link));
    ipv4.addresses.iter().for_each(|address| text.line("Address", address));
    ipv6.addresses.iter().for_each(|address| text.line("Address", address));
}

/// Writes name servers and search domains. The values of the link come before the values of the machine.
fn dns(machine: &Dns, own: &Dns, text: &mut Text) {
    let mut seen = BTreeSet::new();
    for server in own.nameservers.iter().chain(&machine.nameservers).filter(|server| seen.insert(server.value)) {
        text.line("DNS", server);
    }
    let mut seen = BTreeSet::new();
    for domain in own.search.iter().chain(&machine.search).filter(|domain| seen.insert(&domain.value)) {
        text.line("Domains", domain);
    }
}

fn route(link: &Link, route: &Route, metric: u32, text: &mut Text) {
    text.section("Route");
    text.line("Destination", &route.destination());
    if let Some(gateway) = route.gateway() {
        text.line("Gateway", &gateway);
        if route.on_link || !metrics::is_reachable(link, gateway) {
            text.line("GatewayOnLink", &"yes");
        }
    }
    text.option("Metric", Some(metric).filter(|metric| *metric > 0));
    text.option("Table", route.table.filter(|table| *table > 0));
}

fn rule(rule: &RoutingRule, priority: u32, text: &mut Text) {
    text.section("RoutingPolicyRule");
    for (key, network) in [("From", rule.from()), ("To", rule.to())] {
        if let Some(network) = network {
            text.line(key, &network);
        }
    }
    text.line("Priority", &priority);
    text.option("FirewallMark", rule.mark);
    text.option("TypeOfService", rule.type_of_service);
    text.line("Table", &rule.table.unwrap_or(MAIN_TABLE));
}

/// Writes the sections for DHCPv4, DHCPv6 and router advertisements.
fn dhcp(link: &Link, text: &mut Text, diagnostics: &mut Diagnostics) {
    if link.ipv4.dhcp {
        let options = &link.ipv4.dhcp_overrides;
        text.section("DHCPv4");
        // The default client identifier is made from the machine id, which differs between the initramfs and the real
        // root.
        text.line("ClientIdentifier", &"mac");
        text.option("RouteMetric", options.route_metric.as_ref().map(|metric| metric.value));
        text.switch("UseRoutes", options.use_routes);
        // NetworkManager also uses the server's MTU. If the file sets an MTU itself, networkd would warn about
        // `UseMTU`.
        text.switch("UseMTU", options.use_mtu.or(Some(true)).filter(|_| link.mtu.is_none()));
        text.switch("SendHostname", options.send_hostname);
        both(options, text);
        others(options, text);
    }
    let ipv6 = &link.ipv6;
    let options = &ipv6.dhcp_overrides;
    if matches!(ipv6.dynamic, Some(Ipv6Dynamic::StatefulDhcp | Ipv6Dynamic::StatelessDhcp)) {
        text.section("DHCPv6");
        text.line("DUIDType", &"link-layer");
        if ipv6.dynamic == Some(Ipv6Dynamic::StatefulDhcp) {
            // A network can have a DHCPv6 server without a router that announces the server, for example on KubeVirt.
            text.line("WithoutRA", &"solicit");
        } else {
            text.line("UseAddress", &"no");
        }
        both(options, text);
        others(options, text);
        if options.send_hostname == Some(true) {
            let path = format!("{}.dhcp6-overrides.send-hostname", link.path);
            let because = "not every DHCPv6 server accepts a host name";
            diagnostics.push(Diagnostic::ignored(path, true, because));
        }
    }
    if accepts_ra(link) != Some(false) {
        text.section("IPv6AcceptRA");
        if matches!(ipv6.dynamic, None | Some(Ipv6Dynamic::Slaac)) {
            text.line("DHCPv6Client", &"no");
        }
        text.option("RouteMetric", options.route_metric.as_ref().map(|metric| metric.value));
        text.switch("UseGateway", options.use_routes);
        text.switch("UseRoutePrefix", options.use_routes);
        text.switch("UseMTU", options.use_mtu);
        both(options, text);
    }
}

/// Writes the settings for data that both DHCP servers and routers send.
fn both(options: &DhcpOverrides, text: &mut Text) {
    text.switch("UseDNS", options.use_dns);
    text.switch("UseDomains", options.use_domains);
}

/// Writes the settings for data that only DHCP servers send.
fn others(options: &DhcpOverrides, text: &mut Text) {
    text.switch("UseHostname", options.use_hostname);
    text.switch("UseNTP", options.use_ntp);
}

fn yes_no(yes: bool) -> &'static dyn fmt::Display {
    if yes { &"yes" } else { &"no" }
}

impl Text {
    fn list(&mut self, key: &str, patterns: &[Pattern]) {
        let patterns: Vec<&str> = patterns.iter().map(Pattern::as_str).collect();
        if !patterns.is_empty() {
            self.line(key, &patterns.join(" "));
        }
    }

    fn switch(&mut self, key: &str, on: Option<bool>) {
        if let Some(on) = on {
            self.line(key, yes_no(on));
        }
    }
}
