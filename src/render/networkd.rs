//! Files of systemd-networkd and, for the names of cards, of udev (systemd.network(5), systemd.netdev(5),
//! systemd.link(5)).
//!
//! networkd never sees dracut's `/etc/cmdline.d`, and kernel arguments cannot say the half of what it can do. Nothing
//! here needs more than systemd 252; each choice below was measured on its networkd, and `tests/networkd.rs` asks the
//! program itself.
//!
//! A file is for the first card that it matches and a card takes the first file that matches it, over all directories in
//! the order of their names. So ours come before the default with DHCP for everybody that an initramfs may have
//! (`99-default.network`, `zzzz-dracut-default.network`), and every link of the document has one, also if it says only
//! that nobody touches the card.

mod names;
mod netdev;
mod routes;
#[cfg(test)]
mod tests;
mod text;

use std::collections::BTreeSet;
use std::fmt;

use pnet_base::MacAddr;

use crate::finding::{Finding, Findings};
use crate::network::{Card, DhcpOverrides, Dns, Ipv6Dynamic, Link, LinkIndex, LinkKind, NetworkConfig, Pattern, Route};
use crate::render::Device;
use names::Names;
use text::Text;

/// What the names of our files begin with: what is true of one card comes before what may be true of any.
pub const PREFIXES: [&str; 2] = ["50-glowplug-", "51-glowplug-"];

/// A network as files.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Rendered {
    /// In the order of the document.
    pub files: Vec<File>,
    /// For every link of the network, in its order: how it is known.
    pub devices: Vec<Device>,
}

/// One file, readable for all.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct File {
    /// Where it is, below the root: `run/systemd/network/50-glowplug-0000-bond0.netdev`.
    pub path: String,
    /// What is in it.
    pub text: String,
}

/// Renders a network as files for systemd-networkd and udev.
///
/// What a file cannot say becomes a warning, and the rest goes on.
pub fn render(config: &NetworkConfig, findings: &mut Findings) -> Rendered {
    let names = Names::assign(config, findings);
    let metrics = routes::metrics(config);
    let mut render = Render { config, names, metrics, findings, files: Vec::new() };
    for index in (0..config.links().len()).map(LinkIndex) {
        render.netdev(index);
        render.link(index);
        render.network(index);
    }
    if !config.links().iter().any(Link::has_addresses) {
        dns_left_out(&config.dns, render.findings);
    }
    Rendered { files: render.files, devices: render.names.devices }
}

struct Render<'c, 'f> {
    config: &'c NetworkConfig,
    names: Names,
    /// The metric of each route of each link; `None` for a route that is not to be set.
    metrics: Vec<Vec<Option<u32>>>,
    findings: &'f mut Findings,
    files: Vec<File>,
}

// === impl Render ===

impl Render<'_, '_> {
    /// The file that makes a bond, a bridge or a VLAN.
    fn netdev(&mut self, index: LinkIndex) {
        let link = self.config.link(index);
        let Device::Name(name) = &self.names.devices[index.0] else { return };
        let kind = match &link.kind {
            LinkKind::Card(_) => return,
            LinkKind::Bond { .. } => "bond",
            LinkKind::Bridge { .. } => "bridge",
            LinkKind::Vlan { .. } => "vlan",
        };
        let mut text = Text::default();
        text.section("NetDev");
        text.line("Name", name);
        text.line("Kind", &kind);
        let mac_address = match &link.kind {
            LinkKind::Vlan { .. } => link.cloned_mac_address,
            _ => self.mac_address(index),
        };
        match mac_address {
            Some(mac_address) => text.line("MACAddress", &mac_address),
            None if kind == "vlan" => {}
            // Else networkd makes one from the name and the machine's id, which an initramfs makes anew at each boot.
            None => text.line("MACAddress", &"none"),
        }
        match &link.kind {
            LinkKind::Card(_) => {}
            LinkKind::Bond { options, .. } => netdev::bond(&mut text, options, self.findings),
            LinkKind::Bridge { options, .. } => netdev::bridge(&mut text, options, self.findings),
            LinkKind::Vlan { id, .. } => {
                text.section("VLAN");
                text.line("Id", id);
            }
        }
        self.push(index, "netdev", text);
    }

    /// The file with which udev names a card. The first that matches is the only one, so what `99-default.link` would
    /// have done for the card stands in it, too.
    fn link(&mut self, index: LinkIndex) {
        let mut text = Text::default();
        text.section("Match");
        match &self.config.link(index).kind {
            LinkKind::Card(card) => {
                let Some(name) = self.names.wishes[index.0] else { return };
                match card {
                    Card::MacAddress { mac_address, .. } => text.line("PermanentMACAddress", mac_address),
                    Card::Name(_) => return,
                    Card::Pattern { drivers, .. } => text.list("Driver", drivers),
                }
                text.section("Link");
                text.line("Name", &name);
                text.line("AlternativeNamesPolicy", &"database onboard slot path");
            }
            LinkKind::Bond { name, .. } | LinkKind::Bridge { name, .. } if self.mac_address(index).is_none() => {
                // The kernel gives it that of a port, unless udev gives it another before.
                text.line("OriginalName", name);
                text.section("Link");
                text.line("MACAddressPolicy", &"none");
            }
            _ => return,
        }
        self.push(index, "link", text);
    }

    /// The file that says what is to be set on a link.
    fn network(&mut self, index: LinkIndex) {
        let mut text = Text::default();
        self.matching(index, &mut text);
        self.settings(index, &mut text);
        self.push(index, "network", text);
    }

    /// How the link is found.
    ///
    /// A VLAN has the MAC address of its parent, and a bond and a bridge that of a port, so the address alone would find
    /// those, too; `Type=ether` excludes them only where udev runs. A card that changes its address, as a bond's ports
    /// do, is not found by the old one when networkd starts again in the real root. So such a card is found by its
    /// permanent address; the others are not, because not every driver knows one (veth and tap do not).
    fn matching(&self, index: LinkIndex, text: &mut Text) {
        text.section("Match");
        let link = self.config.link(index);
        match (&link.kind, &self.names.devices[index.0]) {
            (LinkKind::Card(Card::MacAddress { mac_address, .. }), _) if self.changes_its_address(index) => {
                text.line("PermanentMACAddress", mac_address);
            }
            (LinkKind::Card(Card::MacAddress { mac_address, .. }), _) => {
                text.line("MACAddress", mac_address);
                text.line("Kind", &"!bond bridge vlan");
            }
            (LinkKind::Card(Card::Pattern { names, drivers, .. }), _) => {
                text.list("Name", names);
                text.list("Driver", drivers);
                text.line("Kind", &"!bond bridge vlan");
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
        let is_card = matches!(link.kind, LinkKind::Card(_));
        text.section("Link");
        let has_addresses = link.has_addresses() && controller.is_none();
        if !has_addresses {
            dns_left_out(&link.dns, self.findings);
        }
        let is_used = has_addresses || controller.is_some() || config.carries_vlans(index) || !is_card;
        if !is_used && link.mtu.is_none() && link.cloned_mac_address.is_none() {
            // Nobody asks anything of it: without this the default would ask by DHCP.
            text.line("Unmanaged", &"yes");
            return;
        }
        if let Some(mtu) = self.mtu(link, controller) {
            text.line("MTUBytes", &mtu);
        }
        if let Some(mac_address) = link.cloned_mac_address.filter(|_| is_card) {
            text.line("MACAddress", &mac_address);
        }
        let is_empty_bridge = matches!(&link.kind, LinkKind::Bridge { ports, .. } if ports.is_empty());
        if !has_addresses || is_empty_bridge {
            // systemd-networkd-wait-online waits until each link that is required has an address, which it never gets.
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
                // The kernel would refuse it, and networkd give up on the whole link.
                let expected = "an address of its family on its link";
                self.findings.push(Finding::warning(&route.place, "route left out", route.destination(), expected));
            }
        }
        dhcp(link, text, self.findings);
        self.bridge_port(index, text);
    }

    /// The MTU to set. The kernel gives a bond's ports the bond's own.
    fn mtu(&mut self, link: &Link, controller: Option<&Link>) -> Option<crate::network::Mtu> {
        let bond = controller.filter(|controller| matches!(controller.kind, LinkKind::Bond { .. }));
        let Some(bond) = bond else { return link.mtu };
        if let Some(mtu) = link.mtu.filter(|mtu| Some(*mtu) != bond.mtu) {
            let (place, expected) = (format!("{}.mtu", link.place), format!("the MTU of its bond, {}", bond.place));
            self.findings.push(Finding::warning(place, "MTU of a bond's port left out", mtu, &expected));
        }
        None
    }

    /// What the link is a port of, and what is on it.
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

    /// The MAC address that a link is to have, where it is known: its own, or that of what it is made of first.
    fn mac_address(&self, index: LinkIndex) -> Option<MacAddr> {
        let mut link = self.config.link(index);
        while link.mac_address().is_none() {
            link = self.config.link(*link.kind.made_of().first()?);
        }
        link.mac_address()
    }

    fn push(&mut self, index: LinkIndex, kind: &str, text: Text) {
        let device = &self.names.devices[index.0];
        let [of_one, of_any] = PREFIXES;
        let prefix = if *device == Device::Any { of_any } else { of_one };
        let name = device.bare().replace([':', ' '], "-");
        let path = format!("run/systemd/network/{prefix}{:04}-{name}.{kind}", index.0);
        if let Some(value) = text.illegal {
            // Every value has been written from a type whose alphabet is smaller than this.
            self.findings.push(Finding::error(&path, "illegal byte", value, text::ALPHABET));
        }
        self.files.push(File { path, text: text.text });
    }
}

/// How the link gets its addresses.
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
        // The addresses stay when networkd ends with the initramfs.
        text.line("KeepConfiguration", &"dhcp-on-stop");
    }
    // networkd calls a link configured only when its link-local address is ready, which takes up to two seconds.
    text.line("LinkLocalAddressing", if ipv6.is_used() { &"ipv6" } else { &"no" });
    text.line("IPv6AcceptRA", yes_no(ipv6.accept_ra.unwrap_or(ipv6.dynamic.is_some())));
    ipv4.addresses.iter().for_each(|address| text.line("Address", address));
    ipv6.addresses.iter().for_each(|address| text.line("Address", address));
}

/// The link's own servers and domains first, then the machine's.
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

/// They are told to links that have addresses alone.
fn dns_left_out(dns: &Dns, findings: &mut Findings) {
    let expected = "an address beside it, without which nobody is asked";
    for server in &dns.nameservers {
        findings.push(Finding::warning(&server.place, "name server left out", server, expected));
    }
    for domain in &dns.search {
        findings.push(Finding::warning(&domain.place, "search domain left out", domain, expected));
    }
}

fn route(link: &Link, route: &Route, metric: u32, text: &mut Text) {
    text.section("Route");
    text.line("Destination", &route.destination());
    if let Some(gateway) = route.gateway() {
        text.line("Gateway", &gateway);
        if route.on_link || !routes::is_reachable(link, gateway) {
            text.line("GatewayOnLink", &"yes");
        }
    }
    text.option("Metric", Some(metric).filter(|metric| *metric > 0));
    text.option("Table", route.table.filter(|table| *table > 0));
}

/// What of a DHCP server's or a router's answer counts.
fn dhcp(link: &Link, text: &mut Text, findings: &mut Findings) {
    if link.ipv4.dhcp {
        let options = &link.ipv4.dhcp_overrides;
        text.section("DHCPv4");
        // Not of the machine's id, which is another one in the initramfs than in the real root.
        text.line("ClientIdentifier", &"mac");
        text.option("RouteMetric", options.route_metric.as_ref().map(|metric| metric.value));
        text.switch("UseRoutes", options.use_routes);
        // As NetworkManager does; beside an MTU of our own networkd would complain.
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
            // A server may be there without a router that points to it, as KubeVirt's is.
            text.line("WithoutRA", &"solicit");
        } else {
            text.line("UseAddress", &"no");
        }
        both(options, text);
        others(options, text);
        if options.send_hostname == Some(true) {
            let place = format!("{}.dhcp6-overrides.send-hostname", link.place);
            let expected = "none: DHCPv6 carries it not everywhere";
            findings.push(Finding::warning(place, "hostname for DHCPv6 left out", "true", expected));
        }
    }
    if ipv6.accept_ra.unwrap_or(ipv6.dynamic.is_some()) {
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

/// What routers say, too.
fn both(options: &DhcpOverrides, text: &mut Text) {
    text.switch("UseDNS", options.use_dns);
    text.switch("UseDomains", options.use_domains);
}

/// What servers of both families say.
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

    fn option<T: Into<u32>>(&mut self, key: &str, number: Option<T>) {
        if let Some(number) = number {
            self.line(key, &number.into());
        }
    }

    fn switch(&mut self, key: &str, on: Option<bool>) {
        if let Some(on) = on {
            self.line(key, yes_no(on));
        }
    }
}
