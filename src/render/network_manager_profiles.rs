//! Renders NetworkManager's connection profiles (nm-settings-keyfile(5)), and kernel arguments for the names of NICs.
//!
//! A profile can express nearly everything that a document states; kernel arguments cannot. The profiles need
//! NetworkManager 1.42 or newer. Each choice below was tested with NetworkManager 1.42, and `tests/network_manager.rs`
//! runs the program itself.
//!
//! The profiles are in `/etc` of the initramfs. dracut removes every profile in `/run` at each call of
//! `nm-initrd-generator`, and on CoreOS there are several calls. A unit of our dracut module copies the profiles to
//! `/run` before the initramfs ends, so that the real root has them, too.
//!
//! Every link of the document has a profile, even if the profile only keeps NetworkManager from using DHCP on the NIC.

mod ipv6_method;
mod routes;
#[cfg(test)]
mod tests;
mod uuid;

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};

use super::device_names::{DeviceNames, Naming};
use super::dracut::Karg;
use super::files::{File, Files};
use super::settings::{ignore_dns, mac_address, mtu, report_other_names, rule_priorities};
use super::text::{Alphabet, Text};
use super::{Device, metrics};
use crate::diagnostic::{Diagnostic, Diagnostics};
use crate::network::{
    BondOptions, BridgeOptions, DefaultRoutes, DhcpOverrides, Link, LinkIndex, LinkKind, Located, NetworkConfig, Nic,
    Pattern,
};
use ipv6_method::Ipv6Method;
use uuid::{NAMESPACE, Uuid};

/// Directory of the profiles in the initramfs, below the root directory.
pub const DIRECTORY: &str = "etc/NetworkManager/system-connections";

/// Directory to which a unit copies the profiles, below the root directory. The copies still exist in the real root.
pub const COPIES: &str = "run/NetworkManager/system-connections";

/// Prefix of the names of our files.
pub const PREFIX: &str = "50-glowplug-";

/// Milliseconds that a boot waits for a NIC, as with kernel arguments.
const WAIT_FOR_DEVICE: u32 = 60_000;

/// Milliseconds that a link with addresses of both families waits for a dynamic family, as with kernel arguments.
const WAIT_FOR_FAMILY: u32 = 20_000;

/// Seconds that a DHCP client waits for an answer, as with kernel arguments.
const DHCP_TIMEOUT: u32 = 90;

/// Largest ageing time of a bridge that NetworkManager accepts, in seconds.
const MAX_AGEING_TIME: u32 = 1_000_000;

/// Number of ARP targets that the kernel accepts for a bond.
const ARP_TARGETS: usize = 16;

/// Priority of a profile that matches one interface. Profiles of other programs have lower priorities: 0 is the
/// default, nm-initrd-generator writes -100, and "Wired connection 1" has -999.
const PRIORITY: usize = 100;

/// Largest number of profiles for patterns. Each of these profiles has its own priority below [`PRIORITY`], from 1 to
/// 99.
const PATTERNS: usize = PRIORITY - 1;

const CANNOT_EXPRESS: &str = "a profile of NetworkManager cannot express it";

/// Types limit the bytes in every value to this alphabet, which needs no escaping in a keyfile.
const ALPHABET: Alphabet =
    Alphabet { punctuation: " .:/_+-*?[],;=!", expected: "letters, digits, blanks and . : / _ + - * ? [ ] , ; = !" };

/// A network as profiles.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub struct Rendered {
    /// Kernel arguments that name NICs, as one line; empty if there are none.
    pub line: String,
    /// One profile for each link, in the order of the document.
    pub files: Vec<File>,
    /// How the profiles identify each link, in the order of the network's links.
    pub devices: Vec<Device>,
}

/// Renders a network as profiles of NetworkManager.
///
/// A setting that no profile can express becomes a warning; all other settings are rendered.
pub fn render(config: &NetworkConfig, diagnostics: &mut Diagnostics) -> Rendered {
    let names = DeviceNames::assign(config, Naming::Arguments, diagnostics);
    let uuids = uuids(config, &names.devices);
    let own_profiles = OwnProfiles::of(config);
    let (metrics, rule_priorities) = (metrics::metrics(config), rule_priorities(config));
    let mut render = Render { config, names, uuids, own_profiles, metrics, rule_priorities, diagnostics };
    let mut files = Files::default();
    for index in (0..config.links().len()).map(LinkIndex) {
        if files.are_too_large() {
            break;
        }
        files.push(render.profile(index));
    }
    let files = files.checked("profiles of NetworkManager", render.diagnostics);
    render.report_patterns();
    render.report_unused_dns();
    report_other_names(config, &DefaultRoutes::of(config), &render.names.devices, render.diagnostics);
    let line = render.line();
    Rendered { line, files, devices: render.names.devices }
}

struct Render<'c, 'f> {
    config: &'c NetworkConfig,
    names: DeviceNames,
    uuids: Vec<Uuid>,
    own_profiles: OwnProfiles,
    /// Metric of each route of each link; `None` for a route that is not set.
    metrics: Vec<Vec<Option<u32>>>,
    /// Priority of each routing rule of each link.
    rule_priorities: Vec<Vec<u32>>,
    diagnostics: &'f mut Diagnostics,
}

/// The values with which the profile of a pattern excludes each NIC that has its own profile. Priorities alone are not
/// enough: when the NIC's own profile has failed, NetworkManager would use the profile of the pattern.
struct OwnProfiles {
    mac_addresses: String,
    names: String,
}

/// The UUID of each profile. An interface gets the same UUID from every document.
fn uuids(config: &NetworkConfig, devices: &[Device]) -> Vec<Uuid> {
    let mut seen = BTreeSet::new();
    let of_link = |(at, (link, device)): (usize, (&Link, &Device))| {
        let name = match &link.kind {
            LinkKind::Nic(Nic::Pattern { names, drivers, .. }) => {
                format!("nic {} driver {}", list(names), list(drivers))
            }
            kind => format!("{} {}", type_of(kind), device.bare()),
        };
        let uuid = Uuid::of(NAMESPACE, &name);
        // A document may describe one NIC twice, but two profiles must not have the same UUID.
        if seen.insert(uuid) { uuid } else { Uuid::of(NAMESPACE, &format!("{name} {at}")) }
    };
    config.links().iter().zip(devices).enumerate().map(of_link).collect()
}

fn type_of(kind: &LinkKind) -> &'static str {
    match kind {
        LinkKind::Nic(_) => "ethernet",
        LinkKind::Bond { .. } => "bond",
        LinkKind::Bridge { .. } => "bridge",
        LinkKind::Vlan { .. } => "vlan",
    }
}

fn list(patterns: &[Pattern]) -> String {
    patterns.iter().map(|pattern| format!("{pattern};")).collect()
}

// === impl Render ===

impl Render<'_, '_> {
    /// Returns the kernel arguments that name NICs, as one line. A NIC that has its name already needs none.
    fn line(&self) -> String {
        let links = self.config.links().iter().zip(&self.names.set_names);
        let named = links.filter_map(|(link, name)| match link.kind {
            LinkKind::Nic(Nic::MacAddress { mac_address, .. }) if self.config.given_name(mac_address).is_none() => {
                Some(Karg::Ifname { name: (*name)?, mac_address })
            }
            _ => None,
        });
        named.map(|karg| karg.to_string()).collect::<Vec<_>>().join(" ")
    }

    fn profile(&mut self, index: LinkIndex) -> File {
        let (config, link) = (self.config, self.config.link(index));
        let name = match &self.names.devices[index.0] {
            Device::Any => "any-nic".to_owned(),
            device => device.bare().replace(':', "-"),
        };
        let id = format!("{PREFIX}{:04}-{name}", index.0);
        let mut text = Text::new(ALPHABET);
        self.connection(index, &id, &mut text);
        text.section("ethernet");
        self.ethernet(index, &mut text);
        match &link.kind {
            LinkKind::Nic(_) => {}
            LinkKind::Bond { options, .. } => self.bond(options, &mut text),
            LinkKind::Bridge { options, .. } => self.bridge(options, &mut text),
            LinkKind::Vlan { parent, id, .. } => {
                text.section("vlan");
                // 1 is the flag REORDER_HEADERS, which the kernel sets by default. Without this flag, frames have a
                // second header.
                text.line("flags", &1);
                text.line("id", id);
                text.line("parent", &self.uuids[parent.0]);
            }
        }
        if config.controller_of(index).is_some() {
            self.bridge_port(index, &mut text);
            self.ignore_routes(link);
            ignore_dns(&link.dns, self.diagnostics);
        } else {
            self.ipv4(index, &mut text);
            self.ipv6(index, &mut text);
            self.report_overrides(link);
            hostname(link, &mut text);
        }
        let path = format!("{DIRECTORY}/{id}.nmconnection");
        if let Some(value) = text.illegal {
            // Types limit the bytes in every value, so this is a second check.
            self.diagnostics.push(Diagnostic::error(&path, "illegal byte", value, ALPHABET.expected));
        }
        File { path, text: text.text, is_private: true }
    }

    /// Writes the identity of the profile and of its interface.
    fn connection(&self, index: LinkIndex, id: &str, text: &mut Text) {
        let (config, link) = (self.config, self.config.link(index));
        text.section("connection");
        text.line("id", &id);
        text.line("uuid", &self.uuids[index.0]);
        text.line("type", &type_of(&link.kind));
        let is_pattern = |device: &&Device| **device == Device::Any;
        let priority = if is_pattern(&&self.names.devices[index.0]) {
            // An earlier pattern is preferred.
            PATTERNS.saturating_sub(self.names.devices[..index.0].iter().filter(is_pattern).count()).max(1)
        } else {
            PRIORITY
        };
        text.line("autoconnect-priority", &priority);
        // NetworkManager tries each profile once, so a boot waits for one attempt only, as with kernel arguments.
        text.line("autoconnect-retries", &1);
        if let Device::Name(name) = &self.names.devices[index.0] {
            text.line("interface-name", name);
        }
        if let Some(controller) = config.controller_of(index) {
            text.line("master", &self.uuids[controller.0]);
            text.line("slave-type", &type_of(&config.link(controller).kind));
        }
        match &link.kind {
            LinkKind::Nic(Nic::Pattern { names, drivers, .. }) => {
                // Several NICs may use the profile at the same time.
                text.line("multi-connect", &3);
                text.section("match");
                if !drivers.is_empty() {
                    text.line("driver", &list(drivers));
                }
                let names = list(names) + &self.own_profiles.names;
                if !names.is_empty() {
                    text.line("interface-name", &names);
                }
            }
            LinkKind::Nic(_) if self.is_needed(index) => text.line("wait-device-timeout", &WAIT_FOR_DEVICE),
            _ => {}
        }
    }

    /// Whether the boot waits for the NIC.
    fn is_needed(&self, index: LinkIndex) -> bool {
        let link = self.config.link(index);
        link.has_addresses() || self.config.controller_of(index).is_some() || self.config.carries_vlans(index)
    }

    fn ethernet(&mut self, index: LinkIndex, text: &mut Text) {
        let link = self.config.link(index);
        let own = match &link.kind {
            LinkKind::Nic(_) | LinkKind::Vlan { .. } => link.cloned_mac_address,
            // With this option, the MAC address of the bond follows the active member.
            LinkKind::Bond { options, .. } if options.get("fail_over_mac") == Some("active") => None,
            // Without this line, the MAC address would depend on the order in which the members come up.
            _ => mac_address(self.config, index),
        };
        if let Some(own) = own {
            text.line("cloned-mac-address", &own);
        }
        match &link.kind {
            LinkKind::Nic(Nic::MacAddress { mac_address, .. }) => text.line("mac-address", mac_address),
            // NetworkManager 1.42 ignores the newer name of this key.
            LinkKind::Nic(Nic::Pattern { .. }) if !self.own_profiles.mac_addresses.is_empty() => {
                text.line("mac-address-blacklist", &self.own_profiles.mac_addresses);
            }
            _ => {}
        }
        if let Some(mtu) = mtu(self.config, index, self.diagnostics) {
            text.line("mtu", &mtu);
        }
    }

    fn bond(&mut self, options: &BondOptions, text: &mut Text) {
        text.section("bond");
        text.line("mode", &options.mode());
        for option in options.others() {
            text.line(option.name, &option.value);
        }
        let targets = options.arp_ip_target();
        let (used, others) = targets.split_at(targets.len().min(ARP_TARGETS));
        if !used.is_empty() {
            text.line("arp_ip_target", &used.iter().map(Ipv4Addr::to_string).collect::<Vec<_>>().join(","));
        }
        for target in others {
            self.ignore(options.path(), format_args!("arp_ip_target={target}"));
        }
        let Some(primary) = options.primary() else { return };
        let name = match &self.names.devices[primary.0] {
            Device::Name(name) => Some(*name),
            _ => self.names.set_names[primary.0],
        };
        match name {
            Some(name) => text.line("primary", &name),
            None => self.ignore(options.path(), format_args!("primary={}", self.config.link(primary).id)),
        }
    }

    fn bridge(&mut self, options: &BridgeOptions, text: &mut Text) {
        text.section("bridge");
        match options.ageing_time {
            Some(time) if time > MAX_AGEING_TIME => self.ignore(&options.path, format_args!("ageing_time={time}")),
            time => text.option("ageing-time", time),
        }
        // NetworkManager sets these options only with STP; without STP they have no effect.
        text.option("forward-delay", options.forward_delay);
        text.option("hello-time", options.hello_time);
        text.option("max-age", options.max_age);
        text.option("priority", options.priority);
        // NetworkManager enables STP by default, and the kernel does not.
        text.line("stp", &options.stp.unwrap_or(false));
    }

    fn bridge_port(&self, index: LinkIndex, text: &mut Text) {
        let Some(controller) = self.config.controller_of(index) else { return };
        let LinkKind::Bridge { options, .. } = &self.config.link(controller).kind else { return };
        text.section("bridge-port");
        for port in options.ports.iter().filter(|port| port.port == index) {
            text.option("path-cost", port.path_cost);
            text.option("priority", port.priority);
        }
    }

    fn ipv4(&mut self, index: LinkIndex, text: &mut Text) {
        let link = self.config.link(index);
        let ipv4 = &link.ipv4;
        text.section("ipv4");
        if !ipv4.is_used() {
            text.line("method", &"disabled");
            self.ignore_routes_of(link, true);
            return;
        }
        text.line("method", &if ipv4.dhcp { "auto" } else { "manual" });
        addresses(&ipv4.addresses, text);
        if ipv4.dhcp {
            let ipv6 = Ipv6Method::of(link);
            // The default client id is made from the machine id, which differs between the initramfs and the real root.
            text.line("dhcp-client-id", &"mac");
            text.boolean("dhcp-send-hostname", ipv4.dhcp_overrides.send_hostname.filter(|send| !send));
            text.line("dhcp-timeout", &DHCP_TIMEOUT);
            if !matches!(ipv6, Ipv6Method::Ignore | Ipv6Method::Disabled) {
                text.line("required-timeout", &WAIT_FOR_FAMILY);
            }
            overrides(&ipv4.dhcp_overrides, text);
        } else {
            text.line("may-fail", &false);
        }
        self.dns(link, IpAddr::is_ipv4, text);
        self.routes(index, true, text);
    }

    fn ipv6(&mut self, index: LinkIndex, text: &mut Text) {
        let link = self.config.link(index);
        let ipv6 = &link.ipv6;
        let method = Ipv6Method::of(link);
        text.section("ipv6");
        text.line("method", &method);
        if ipv6.link_local == Some(false) && !matches!(method, Ipv6Method::Disabled) {
            let path = format!("{}.link-local", link.path);
            let because = "NetworkManager sets a link-local address wherever it uses IPv6";
            self.diagnostics.push(Diagnostic::ignored_without_value(path, because));
        }
        if matches!(method, Ipv6Method::Disabled | Ipv6Method::Ignore) {
            self.ignore_routes_of(link, false);
            return;
        }
        // The default mode needs a secret that differs between the initramfs and the real root.
        text.line("addr-gen-mode", &"eui64");
        addresses(&ipv6.addresses, text);
        match method {
            Ipv6Method::Auto | Ipv6Method::Dhcp => {
                // The default DUID is made from the machine id, too.
                text.line("dhcp-duid", &"ll");
                text.boolean("dhcp-send-hostname", ipv6.dhcp_overrides.send_hostname.filter(|send| !send));
                text.line("dhcp-timeout", &DHCP_TIMEOUT);
                if link.ipv4.dhcp {
                    text.line("required-timeout", &WAIT_FOR_FAMILY);
                }
                overrides(&ipv6.dhcp_overrides, text);
            }
            Ipv6Method::Manual => text.line("may-fail", &false),
            _ => {}
        }
        if method != Ipv6Method::LinkLocal {
            self.dns(link, IpAddr::is_ipv6, text);
        }
        self.routes(index, false, text);
    }

    /// Writes the name servers of one family, and the search domains. The values of the link come before the values of
    /// the machine.
    fn dns(&self, link: &Link, is_of_family: fn(&IpAddr) -> bool, text: &mut Text) {
        let mut seen = BTreeSet::new();
        let servers = link.dns.nameservers.iter().chain(&self.config.dns.nameservers);
        let servers = servers.filter(|server| is_of_family(&server.value) && seen.insert(server.value));
        let servers: String = servers.map(|server| format!("{server};")).collect();
        if !servers.is_empty() {
            text.line("dns", &servers);
        }
        let mut seen = BTreeSet::new();
        let domains = link.dns.search.iter().chain(&self.config.dns.search);
        let domains: String =
            domains.filter(|domain| seen.insert(&domain.value)).map(|domain| format!("{domain};")).collect();
        if !domains.is_empty() {
            text.line("dns-search", &domains);
        }
    }

    /// Reports an error if there are more patterns than priorities: NetworkManager would choose at random between two
    /// profiles of the same priority.
    fn report_patterns(&mut self) {
        let links = self.config.links().iter().zip(&self.names.devices);
        if let Some((link, _)) = links.filter(|(_, device)| **device == Device::Any).nth(PATTERNS) {
            let (found, expected) = (format!("more than {PATTERNS}"), format!("at most {PATTERNS}"));
            self.diagnostics.push(Diagnostic::error(
                &link.path,
                "too many NICs identified by a pattern",
                found,
                &expected,
            ));
        }
    }

    /// Warns about the name servers and search domains that no profile has.
    fn report_unused_dns(&mut self) {
        let links = self.config.links().iter().enumerate();
        let own = links.filter(|(at, _)| self.config.controller_of(LinkIndex(*at)).is_none());
        let families: Vec<(&Link, [bool; 2])> = own.map(|(_, link)| (link, has_dns(link))).collect();
        let any = |ipv4: bool| families.iter().any(|(_, has)| has[usize::from(!ipv4)]);
        let (anywhere, here) = ("no link has an address of its family", "its link has no address of its family");
        let machine = self.config.dns.nameservers.iter().map(|server| (server, any(server.value.is_ipv4()), anywhere));
        let of_links = families.iter().flat_map(|(link, has)| {
            let is_used = |server: &Located<IpAddr>| has[usize::from(server.value.is_ipv6())];
            link.dns.nameservers.iter().map(move |server| (server, is_used(server), here))
        });
        for (server, is_used, because) in machine.chain(of_links) {
            if !is_used {
                self.diagnostics.push(Diagnostic::ignored(&server.path, server, because));
            }
        }
        let machine = (&self.config.dns.search, any(true) || any(false));
        let of_links = families.iter().map(|(link, has)| (&link.dns.search, has.contains(&true)));
        for (domains, _) in of_links.chain([machine]).filter(|(_, is_used)| !is_used) {
            for domain in domains {
                self.diagnostics.push(Diagnostic::ignored(
                    &domain.path,
                    domain,
                    "only a link with an address has name servers and search domains",
                ));
            }
        }
    }

    /// Warns about DHCP settings of the document that NetworkManager does not support.
    fn report_overrides(&mut self, link: &Link) {
        let families = [
            ("dhcp4-overrides", link.ipv4.dhcp, &link.ipv4.dhcp_overrides),
            ("dhcp6-overrides", link.ipv6.dynamic.is_some(), &link.ipv6.dhcp_overrides),
        ];
        for (member, _, options) in families.into_iter().filter(|(_, is_dynamic, _)| *is_dynamic) {
            // If NetworkManager ignores the name servers of a server, it ignores the domains, too.
            let domains = options.use_domains.filter(|domains| *domains != options.use_dns.unwrap_or(true));
            let mtu = options.use_mtu.filter(|mtu| !mtu && link.mtu.is_none());
            let ntp = options.use_ntp.filter(|ntp| !ntp);
            for (name, value) in [("use-domains", domains), ("use-mtu", mtu), ("use-ntp", ntp)] {
                if let Some(value) = value {
                    self.ignore(&format!("{}.{member}.{name}", link.path), value);
                }
            }
        }
    }

    fn ignore(&mut self, path: &str, value: impl fmt::Display) {
        self.diagnostics.push(Diagnostic::ignored(path, value, CANNOT_EXPRESS));
    }
}

/// Whether the profile of a link can have name servers, for IPv4 and for IPv6.
fn has_dns(link: &Link) -> [bool; 2] {
    let ipv6 = matches!(Ipv6Method::of(link), Ipv6Method::Manual | Ipv6Method::Auto | Ipv6Method::Dhcp);
    [link.ipv4.is_used(), ipv6]
}

fn addresses(addresses: &[impl fmt::Display], text: &mut Text) {
    for (at, address) in addresses.iter().enumerate() {
        text.line(&format!("address{}", at + 1), address);
    }
}

/// Writes which parts of the answer of a DHCP server or a router are used.
fn overrides(options: &DhcpOverrides, text: &mut Text) {
    text.boolean("ignore-auto-dns", options.use_dns.filter(|used| !used).map(|used| !used));
    text.boolean("ignore-auto-routes", options.use_routes.filter(|used| !used).map(|used| !used));
    text.option("route-metric", options.route_metric.as_ref().map(|metric| metric.value));
}

/// Writes whether the machine takes its host name from a DHCP server.
fn hostname(link: &Link, text: &mut Text) {
    let families =
        [(link.ipv4.dhcp, &link.ipv4.dhcp_overrides), (link.ipv6.dynamic.is_some(), &link.ipv6.dhcp_overrides)];
    let given =
        families.into_iter().filter(|(is_dynamic, _)| *is_dynamic).filter_map(|(_, options)| options.use_hostname);
    if let Some(used) = given.min() {
        text.section("hostname");
        text.line("from-dhcp", &u8::from(used));
    }
}

// === impl OwnProfiles ===

impl OwnProfiles {
    fn of(config: &NetworkConfig) -> Self {
        let (mut mac_addresses, mut names) = (BTreeSet::new(), BTreeSet::new());
        for link in config.links() {
            match &link.kind {
                LinkKind::Nic(Nic::MacAddress { mac_address, .. }) => _ = mac_addresses.insert(*mac_address),
                LinkKind::Nic(Nic::Name(name)) => _ = names.insert(*name),
                _ => {}
            }
        }
        Self {
            mac_addresses: mac_addresses.iter().map(|mac_address| format!("{mac_address};")).collect(),
            names: names.iter().map(|name| format!("!{name};")).collect(),
        }
    }
}

// === impl Text ===

impl Text {
    fn boolean(&mut self, key: &str, on: Option<bool>) {
        if let Some(on) = on {
            self.line(key, &on);
        }
    }
}
