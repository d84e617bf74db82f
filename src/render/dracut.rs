//! Renders kernel arguments in dracut's grammar (dracut.cmdline(7)).
//!
//! Two programs read these arguments: `nm-initrd-generator`
//! (`NetworkManager/NetworkManager:src/nm-initrd-generator/nmi-cmdline-reader.c`) and dracut's own scripts
//! ([`super::network_legacy`]). They interpret the same grammar differently. Each choice below was tested with
//! NetworkManager 1.42 and 1.52 and with dracut 059, and `tests/readers.rs` runs the programs themselves.

mod device_names;
mod karg;
mod program;
#[cfg(test)]
mod tests;

pub use karg::{Karg, Method};
pub(super) use program::Program;

use std::collections::BTreeSet;
use std::fmt::{self, Write as _};
use std::net::IpAddr;

use ipnetwork::IpNetwork;
use pnet_base::MacAddr;

use crate::diagnostic::{Diagnostic, Diagnostics, Severity};
use crate::network::{
    BondOptions, BridgeOptions, DefaultRoutes, DhcpOverrides, InterfaceName, Ipv6Dynamic, Link, LinkIndex, LinkKind,
    Located, NetworkConfig, Nic, Pattern, Route,
};
use crate::render::Device;
use crate::render::settings::{ignore_rules, report_other_names};
use device_names::DeviceNames;

/// Longest line that is rendered, in bytes. dracut puts all arguments into one environment string of at most 128 KiB.
/// This limit leaves room for the arguments of other programs.
#[doc(hidden)]
pub const MAX_BYTES: usize = 32 * 1024;

/// A network as kernel arguments.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub struct Rendered {
    /// The arguments, in the order in which they must be written.
    pub kargs: Vec<Karg>,
    /// The same arguments as one line, without a final newline.
    pub line: String,
    /// How the arguments identify each link, in the order of the network's links.
    pub devices: Vec<Device>,
}

/// Renders a network as kernel arguments for NetworkManager.
///
/// The `ip=` arguments follow the order of the document, with one exception: the links with the default routes come
/// first, because NetworkManager prefers the profile that it activates first.
///
/// A setting that no argument can express becomes a warning. If the network would be wrong without the setting, the
/// setting becomes an error, and the arguments must not be used.
///
/// The arguments never contain `rd.neednet`: on Ignition systems the network starts on demand.
pub fn render(config: &NetworkConfig, diagnostics: &mut Diagnostics) -> Rendered {
    render_for(Program::NetworkManager, config, diagnostics)
}

/// Renders a network for `program`. For network-legacy, the caller has already reduced the network to what the scripts
/// support.
pub(super) fn render_for(program: Program, config: &NetworkConfig, diagnostics: &mut Diagnostics) -> Rendered {
    let names = DeviceNames::assign(config, program);
    let defaults = DefaultRoutes::of(config);
    let mut render = Render { config, program, names, diagnostics, defaults, of_any: None, any_differ: false };
    let kargs = render.kargs();
    render.report_what_cannot_be_given();
    let devices = render.names.devices;
    let line = line(&kargs);
    if line.len() > MAX_BYTES {
        let expected = format!("at most {MAX_BYTES}");
        diagnostics.push(Diagnostic::error("kernel arguments", "too many bytes", line.len(), &expected));
    }
    // Types limit the bytes in every value. This is a second check before a shell reads the line.
    if !is_legal(&line) {
        diagnostics.push(Diagnostic::error("kernel arguments", "illegal byte", &line, ALPHABET));
    }
    Rendered { kargs, line, devices }
}

fn line(kargs: &[Karg]) -> String {
    let mut line = String::with_capacity(64 * kargs.len());
    for karg in kargs {
        if !line.is_empty() {
            line.push(' ');
        }
        // Writing to a string never fails.
        let _ = write!(line, "{karg}");
    }
    line
}

/// Alphabet of [`is_legal`], as messages describe it.
#[doc(hidden)]
pub const ALPHABET: &str = "letters, digits, blanks and . _ : [ ] , / = + -";

/// Returns whether every reader of kernel arguments, and a shell, takes each byte of the line literally.
#[must_use]
#[doc(hidden)]
pub fn is_legal(line: &str) -> bool {
    line.bytes().all(|byte| byte.is_ascii_alphanumeric() || b" ._:[],/=+-".contains(&byte))
}

/// Reason in messages about a setting that kernel arguments cannot express.
const CANNOT_EXPRESS: &str = "kernel arguments cannot express it";

struct Render<'c, 'f> {
    config: &'c NetworkConfig,
    program: Program,
    names: DeviceNames,
    diagnostics: &'f mut Diagnostics,
    defaults: DefaultRoutes,
    /// Arguments of the first NIC that is identified by a pattern and needs arguments.
    of_any: Option<Vec<Karg>>,
    /// Whether the NICs that are identified by a pattern need different arguments.
    any_differ: bool,
}

/// Methods of the arguments of a link: for the addresses of each family, and for the argument without an address.
///
/// The methods of a NIC are chosen together, because NetworkManager combines the arguments of a NIC:
///
/// * The last argument sets the method.
/// * `none` disables every family that has no address yet.
/// * If a *required* family gets no answer, the whole profile fails, and the other family fails with it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Methods {
    ipv4: Method,
    ipv6: Method,
    alone: Option<Method>,
}

// === impl Render ===

impl Render<'_, '_> {
    fn kargs(&mut self) -> Vec<Karg> {
        let config = self.config;
        let tie = |(name, mac_address): &(InterfaceName, MacAddr)| {
            let (name, mac_address) = (*name, *mac_address);
            Karg::Ifname { name, mac_address }
        };
        let mut kargs = self.names.ties.iter().map(tie).collect();
        for index in config.parents_first() {
            self.structure(index, &mut kargs);
        }
        for index in self.gateways_first() {
            if config.is_connected(index) {
                let mut own = self.of_link(index);
                match &self.of_any {
                    _ if self.names.devices[index.0] != Device::Any || own.is_empty() => kargs.append(&mut own),
                    None => {
                        kargs.extend(own.iter().cloned());
                        self.of_any = Some(own);
                    }
                    // Arguments that apply to every NIC are written once.
                    Some(first) => self.any_differ |= *first != own,
                }
            }
        }
        if self.has_addresses() {
            kargs.extend(config.nameservers().into_iter().map(|server| Karg::Nameserver(server.value)));
        }
        if self.ignores_dns() == Some(true) {
            kargs.push(Karg::NoPeerDns);
        }
        kargs
    }

    fn gateways_first(&self) -> Vec<LinkIndex> {
        let firsts = self.defaults.links();
        let count = firsts.clone().collect::<BTreeSet<_>>().len();
        let all = (0..self.config.links().len()).map(LinkIndex);
        let mut seen = BTreeSet::new();
        let mut order: Vec<LinkIndex> = firsts.chain(all).filter(|link| seen.insert(*link)).collect();
        if self.program == Program::NetworkLegacy {
            // network-legacy keeps the default route that is set last.
            order.rotate_left(count);
        }
        order
    }

    fn structure(&mut self, index: LinkIndex, kargs: &mut Vec<Karg>) {
        let link = self.config.link(index);
        match &link.kind {
            LinkKind::Nic(_) => {}
            LinkKind::Bridge { name, .. } if !self.config.is_connected(index) => {
                // Without a port in the argument, NetworkManager would add `eth0` to the bridge, and network-legacy
                // would wait for a port.
                let because = "kernel arguments cannot make a bridge without ports";
                self.diagnostics.push(Diagnostic::ignored(&link.path, name, because));
            }
            _ if !self.config.is_connected(index) => {
                let because = "the bridge below this VLAN has no ports";
                self.diagnostics.push(Diagnostic::ignored(&link.path, self.device(index), because));
            }
            LinkKind::Bond { name, ports, options, .. } => {
                let options = self.bond_options(options);
                let ports = ports.iter().map(|port| self.device(*port)).collect();
                kargs.push(Karg::Bond { name: *name, ports, options, mtu: link.mtu });
            }
            LinkKind::Bridge { name, ports, options } => {
                self.bridge_options(options);
                let ports = ports
                    .iter()
                    .filter(|port| self.config.is_connected(**port))
                    .map(|port| self.device(*port))
                    .collect();
                kargs.push(Karg::Bridge { name: *name, ports });
            }
            LinkKind::Vlan { parent, .. } => {
                kargs.push(Karg::Vlan { vlan: self.device(index), parent: self.device(*parent) });
            }
        }
    }

    /// Warns about the bridge options that are lost. An argument makes a bridge without STP and cannot express any
    /// option.
    fn bridge_options(&mut self, options: &BridgeOptions) {
        let mut names = options.given();
        names.retain(|(name, value)| (*name, value.as_str()) != ("stp", "false"));
        let mut names: Vec<&str> = names.into_iter().map(|(name, _)| name).collect();
        names.extend(options.ports.first().map(|_| "port options"));
        if !names.is_empty() {
            self.ignore(&options.path, names.join(", "), "kernel arguments cannot express bridge options");
        }
    }

    fn bond_options(&mut self, options: &BondOptions) -> Vec<(&'static str, String)> {
        let mut words = vec![("mode", options.mode.to_string())];
        words.extend(options.others().iter().map(|option| (option.name, option.value.clone())));
        if let Some(target) = options.arp_ip_target.first() {
            words.push(("arp_ip_target", target.to_string()));
        }
        if options.arp_ip_target.len() > 1 {
            // Options are separated by commas, and NetworkManager accepts only commas between ARP targets.
            let others: Vec<String> = options.arp_ip_target[1..].iter().map(ToString::to_string).collect();
            self.ignore(&options.path, others.join(", "), "kernel arguments can express only one ARP target");
        }
        if let Some(primary) = options.primary {
            words.push(("primary", self.device(primary).to_string()));
        }
        words
    }

    fn of_link(&mut self, index: LinkIndex) -> Vec<Karg> {
        let mut kargs = Vec::new();
        self.addresses(index, &mut kargs);
        self.routes(index, &mut kargs);
        let because = "kernel arguments cannot express a routing rule";
        ignore_rules(self.config.link(index), |_| true, because, self.diagnostics);
        kargs
    }

    fn addresses(&mut self, index: LinkIndex, kargs: &mut Vec<Karg>) {
        let link = self.config.link(index);
        if let Some(controller) = self.config.controller_of(index) {
            self.report_port(link, self.config.link(controller));
            return;
        }
        let device = self.device(index);
        // `bond=` already has the MTU of a bond.
        let mtu = link.mtu.filter(|_| !matches!(link.kind, LinkKind::Bond { .. }));
        let mac_address = link.cloned_mac_address;
        let ip = |address, method| Karg::Ip { address, device: device.clone(), method, mtu, mac_address };
        if !link.has_addresses() {
            let is_only = self.config.states_no_addresses();
            let is_stated = link.without_addresses && !self.config.carries_vlans(index);
            let structural = !matches!(link.kind, LinkKind::Nic(_)) && !self.config.carries_vlans(index);
            if self.program == Program::NetworkLegacy {
                let because = "network-legacy sets it only on a link with an address";
                if let Some(mtu) = mtu {
                    self.ignore(&format!("{}.mtu", link.path), mtu, because);
                }
                if let Some(mac_address) = mac_address {
                    self.ignore(&link.path, mac_address, because);
                }
                if is_stated && is_only {
                    self.ignore(&link.path, &link.id, "network-legacy cannot express a link without addresses");
                }
            } else if is_stated && !is_only && !link.asks() && device == Device::Any {
                self.report_quiet_pattern(link);
            } else if structural || is_stated || mtu.is_some() || mac_address.is_some() {
                // Without a profile NetworkManager would use DHCP on a NIC, at the latest in the real root.
                kargs.push(ip(None, Method::Off));
            }
            return;
        }
        let methods = Methods::of(link, self.program);
        // The gateway belongs in the first `ip=` with a static address of the gateway's family.
        let [mut gateway, mut gateway6] = self.defaults.gateways(self.config, index);
        for address in &link.ipv4.addresses {
            kargs.push(ip(Some((IpNetwork::V4(*address), gateway.take())), methods.ipv4));
        }
        for address in &link.ipv6.addresses {
            kargs.push(ip(Some((IpNetwork::V6(*address), gateway6.take())), methods.ipv6));
        }
        kargs.extend(methods.alone.map(|method| ip(None, method)));
        if (link.ipv4.dhcp && !link.ipv4.addresses.is_empty())
            || (link.ipv6.dynamic.is_some() && !link.ipv6.addresses.is_empty())
        {
            let expected =
                "a server or router that answers: without an answer NetworkManager removes the static addresses too";
            let path = &link.path;
            self.diagnostics.push(Diagnostic::warning(
                path,
                "static and dynamic addresses of one family",
                &device,
                expected,
            ));
        }
    }

    /// Warns about a NIC without addresses that is identified by a pattern, while another link is configured: arguments
    /// cannot exclude a NIC.
    fn report_quiet_pattern(&mut self, link: &Link) {
        // An argument for every NIC would also configure this NIC.
        let is_pattern = |link: &&Link| matches!(link.kind, LinkKind::Nic(Nic::Pattern { .. }));
        self.any_differ |= self.config.links().iter().filter(is_pattern).any(Link::asks);
        let because = "kernel arguments cannot keep a NIC without addresses that is identified only by a pattern";
        self.ignore(&link.path, &link.id, because);
    }

    /// Warns about the settings that a bond member or bridge port loses. An argument with such a setting would make a
    /// separate profile, which would remove the interface from its bond or bridge.
    fn report_port(&mut self, link: &Link, controller: &Link) {
        let is_bond = matches!(controller.kind, LinkKind::Bond { .. });
        let own_mtu = link.mtu.filter(|_| !matches!(link.kind, LinkKind::Bond { .. }));
        // A bond sets the MTU of its members.
        if let Some(mtu) = own_mtu.filter(|mtu| !is_bond || Some(*mtu) != controller.mtu) {
            let because = if is_bond {
                format!("a bond member gets the MTU of its bond, {}", controller.path)
            } else {
                "kernel arguments cannot express the MTU of a bridge port".to_owned()
            };
            self.ignore(&format!("{}.mtu", link.path), mtu, &because);
        }
        if let Some(mac_address) = link.cloned_mac_address {
            let because = "kernel arguments cannot express another MAC address of a bond member or bridge port";
            self.ignore(&link.path, mac_address, because);
        }
        if link.has_addresses() {
            let because = format!("its addresses belong on its bond or bridge, {}", controller.path);
            self.ignore(&link.path, &link.id, &because);
        }
    }

    /// Adds a route argument for each route that needs one. A gateway outside every subnet of its link needs no further
    /// argument: NetworkManager itself adds a route to the gateway, in both families.
    fn routes(&mut self, index: LinkIndex, kargs: &mut Vec<Karg>) {
        let link = self.config.link(index);
        let device = self.device(index);
        let is_port = self.config.controller_of(index).is_some();
        for (at, route) in link.routes.iter().enumerate() {
            if let Some(table) = route.table {
                self.ignore(&route.path, table, "kernel arguments cannot express a route of another table");
                continue;
            }
            if is_port || !link.can_route(route) {
                // NetworkManager uses DHCP on a NIC that has only a route.
                self.ignore(&route.path, route.destination(), "its link has no address of its family");
                continue;
            }
            if let Some(metric) = route.metric() {
                self.ignore(&format!("{}.metric", route.path), metric, CANNOT_EXPRESS);
            }
            let has_static = match route.destination() {
                IpNetwork::V4(_) => !link.ipv4.addresses.is_empty(),
                IpNetwork::V6(_) => !link.ipv6.addresses.is_empty(),
            };
            let is_chosen = self.defaults.has(index, at);
            if route.is_default() && !is_chosen {
                if !self.is_chosen_again(route, index) {
                    let value = route.gateway().map_or_else(|| "on-link".to_owned(), |gateway| gateway.to_string());
                    let because = "a family has one default route: the first of those with the lowest metric";
                    self.ignore(&route.path, value, because);
                }
                continue;
            }
            if is_chosen && has_static && route.gateway().is_some() {
                continue;
            }
            let (destination, gateway) = (route.destination(), route.gateway());
            kargs.push(Karg::Route { destination, gateway, device: device.clone() });
        }
    }

    /// Returns whether the chosen default route of the link has the same family and gateway as this default route.
    fn is_chosen_again(&self, route: &Route, index: LinkIndex) -> bool {
        let routes = self.config.link(index).routes.iter().enumerate();
        let is_ipv4 = route.destination().is_ipv4();
        let mut chosen =
            routes.filter(|(at, route)| self.defaults.has(index, *at) && route.destination().is_ipv4() == is_ipv4);
        chosen.any(|(_, chosen)| chosen.gateway() == route.gateway())
    }

    fn report_what_cannot_be_given(&mut self) {
        let config = self.config;
        for (link, given) in config.links().iter().zip(&self.names.devices) {
            let (requested, expected) = match &link.kind {
                LinkKind::Nic(Nic::MacAddress { name: Some(name), .. } | Nic::Pattern { name: Some(name), .. }) => {
                    (name, "not one like eth0 or ib0".to_owned())
                }
                LinkKind::Vlan { name: Some(name), id, .. } if self.program == Program::NetworkLegacy => {
                    (name, format!("vlan{id} or one that ends with .{id}"))
                }
                LinkKind::Vlan { name: Some(name), id, .. } => (name, format!("one that ends with {id}")),
                _ => continue,
            };
            match given {
                Device::Name(given) if given == requested => {}
                Device::Name(given) => {
                    let is_from_ifname = config.given_names.iter().any(|(name, _)| name == given);
                    let expected = match is_from_ifname {
                        true => format!("{given}, the name from ifname="),
                        false => format!("a free name, {expected}: {given} is used instead"),
                    };
                    let path = &link.name_path;
                    self.diagnostics.push(Diagnostic::warning(path, "name that cannot be set", requested, &expected));
                }
                // Only a debug message: no other argument needs the name.
                Device::MacAddress(_) | Device::Any => {
                    let because = "kernel arguments name a NIC only where another argument needs the name";
                    let ignored = Diagnostic::ignored(&link.name_path, requested, because);
                    self.diagnostics.push(Diagnostic { severity: Severity::Debug, ..ignored });
                }
            }
        }
        report_other_names(config, &self.defaults, &self.names.devices, self.diagnostics);
        let ignores_dns = self.ignores_dns() == Some(true);
        let has_named =
            config.links().iter().zip(&self.names.devices).any(|(link, it)| link.asks() && *it != Device::Any);
        for (index, link) in config.links().iter().enumerate() {
            self.report_pattern(LinkIndex(index), link, has_named);
            self.report_dynamic(link, ignores_dns);
        }
        let search = config.links().iter().flat_map(|link| &link.dns.search);
        let mut seen = BTreeSet::new();
        for domain in config.dns.search.iter().chain(search).filter(|domain| seen.insert(&domain.value)) {
            self.ignore(&domain.path, domain, "kernel arguments cannot express a search domain");
        }
        let nameservers = self.config.nameservers();
        if !self.has_addresses() {
            for server in nameservers {
                self.ignore(&server.path, server, "no NIC has an address");
            }
            return;
        }
        let has_ipv4 = self.addressable().any(|link| link.ipv4.is_used());
        let has_ipv6 = self.addressable().any(takes_ipv6_servers);
        let is_far = |server: &&Located<IpAddr>| if server.value.is_ipv4() { !has_ipv4 } else { !has_ipv6 };
        for server in nameservers.into_iter().filter(is_far) {
            let expected = "one of a family in which a NIC has an address";
            self.diagnostics.push(Diagnostic::warning(&server.path, "name server out of reach", server, expected));
        }
    }

    /// Reports a NIC that is identified only by a pattern: an argument applies to one NIC or to all NICs, and cannot
    /// contain a pattern. `has_named` is true if a link that is identified by a name or a MAC address also needs
    /// arguments.
    fn report_pattern(&mut self, index: LinkIndex, link: &Link, has_named: bool) {
        let LinkKind::Nic(Nic::Pattern { names, drivers, .. }) = &link.kind else { return };
        let is_used = self.config.controller_of(index).is_some() || self.config.carries_vlans(index);
        if !is_used && !link.asks() {
            return;
        }
        let patterns: Vec<&str> = names.iter().chain(drivers).map(Pattern::as_str).collect();
        let (problem, patterns) = ("NIC identified only by a pattern", patterns.join(", "));
        // If all NICs need the same arguments, arguments that apply to every NIC are correct, and a warning is enough.
        self.diagnostics.push(if is_used || self.any_differ || has_named {
            let expected = "a MAC address or a name: with several links no kernel argument can select this NIC";
            Diagnostic::error(&link.path, problem, &patterns, expected)
        } else {
            let is_static = !link.ipv4.addresses.is_empty() || !link.ipv6.addresses.is_empty();
            // With static addresses, nm-initrd-generator makes a profile for one NIC only.
            let expected = if is_static && self.program == Program::NetworkManager {
                "a MAC address or a name: the arguments apply to one NIC, which NetworkManager chooses"
            } else {
                "a MAC address or a name: the arguments apply to every NIC"
            };
            Diagnostic::warning(&link.path, problem, &patterns, expected)
        });
    }

    /// Warns about settings for router advertisements, link-local addresses and DHCP that no argument can express. If
    /// `ignores_dns` is true, the argument `rd.peerdns=0` expresses `use-dns: false`, so this setting is not reported.
    fn report_dynamic(&mut self, link: &Link, ignores_dns: bool) {
        let dynamic = link.ipv6.dynamic.is_some();
        let cannot = match (self.program, link.ipv6.accept_ra) {
            // IPv6 without dynamic addresses accepts no router advertisements, but DHCPv4 enables IPv6 with router
            // advertisements.
            (Program::NetworkManager, Some(false)) => dynamic || link.ipv4.dhcp,
            (Program::NetworkManager, Some(true)) => !dynamic && link.ipv6.is_used(),
            // The kernel accepts router advertisements wherever they are not disabled.
            (Program::NetworkLegacy, accepts) => accepts == Some(false),
            (_, None) => false,
        };
        let has_link_local = match self.program {
            Program::NetworkManager => link.ipv6.is_used() || link.ipv4.dhcp,
            Program::NetworkLegacy => link.has_addresses(),
        };
        if link.ipv6.link_local == Some(false) && has_link_local {
            let path = format!("{}.link-local", link.path);
            self.diagnostics.push(Diagnostic::ignored_without_value(path, CANNOT_EXPRESS));
        }
        if let Some(accepts) = link.ipv6.accept_ra.filter(|_| cannot) {
            self.ignore(&format!("{}.accept-ra", link.path), accepts, CANNOT_EXPRESS);
        }
        let families =
            [("dhcp4", &link.ipv4.dhcp_overrides, link.ipv4.dhcp), ("dhcp6", &link.ipv6.dhcp_overrides, dynamic)];
        for (family, options, _) in families.into_iter().filter(|(.., is_used)| *is_used) {
            let DhcpOverrides {
                route_metric: _,
                use_routes,
                use_dns,
                use_domains,
                use_hostname,
                send_hostname,
                use_mtu,
                use_ntp,
            } = *options;
            let use_dns = use_dns.filter(|_| !ignores_dns);
            let names = ["use-routes", "use-dns", "use-domains", "use-hostname", "send-hostname", "use-mtu", "use-ntp"];
            let values = [use_routes, use_dns, use_domains, use_hostname, send_hostname, use_mtu, use_ntp];
            // Each of these settings is `true` by default, so only `false` is lost.
            for (name, _) in names.into_iter().zip(values).filter(|(_, value)| *value == Some(false)) {
                self.ignore(&format!("{}.{family}-overrides.{name}", link.path), false, CANNOT_EXPRESS);
            }
            if let Some(metric) = &options.route_metric {
                self.ignore(&metric.path, metric, CANNOT_EXPRESS);
            }
        }
    }

    /// Whether every link with dynamic addresses ignores the name servers of DHCP servers and routers. `None` when no
    /// link has dynamic addresses.
    fn ignores_dns(&self) -> Option<bool> {
        let families = self.addressable().flat_map(|link| {
            let (ipv4, ipv6) = (&link.ipv4, &link.ipv6);
            let options = [ipv4.dhcp.then_some(&ipv4.dhcp_overrides), ipv6.dynamic.map(|_| &ipv6.dhcp_overrides)];
            options.into_iter().flatten()
        });
        families.map(|options| options.use_dns == Some(false)).reduce(|all, one| all && one)
    }

    fn ignore(&mut self, path: &str, value: impl fmt::Display, because: &str) {
        self.diagnostics.push(Diagnostic::ignored(path, value, because));
    }

    /// Returns whether any link has a static or dynamic address. Without such an address, no profile of NetworkManager
    /// has name servers.
    fn has_addresses(&self) -> bool {
        self.addressable().any(|link| link.ipv4.is_used() || takes_ipv6_servers(link))
    }

    /// Links that can have addresses: all links except bond members, bridge ports, bridges without ports, and the VLANs
    /// on such bridges.
    fn addressable(&self) -> impl Iterator<Item = &Link> {
        let links = self.config.links().iter().enumerate();
        let is_free = |at| self.config.is_connected(at) && self.config.controller_of(at).is_none();
        links.filter(move |(at, _)| is_free(LinkIndex(*at))).map(|(_, link)| link)
    }

    fn device(&self, index: LinkIndex) -> Device {
        self.names.devices[index.0].clone()
    }
}

/// Returns whether NetworkManager uses the IPv6 name servers of the arguments on the link. A link-local address alone
/// is not enough. With DHCPv4, NetworkManager also enables IPv6 with router advertisements.
fn takes_ipv6_servers(link: &Link) -> bool {
    link.ipv6.is_beyond_link() || link.ipv4.dhcp
}

// === impl Methods ===

impl Methods {
    /// Chooses the methods of a link.
    ///
    /// The rows of the `match` below come from a test of every sequence of up to three arguments on NetworkManager
    /// 1.42. network-legacy accepts one address or one method for each link, and interprets a pair of methods in its
    /// own way.
    fn of(link: &Link, program: Program) -> Self {
        let static4 = !link.ipv4.addresses.is_empty();
        let static6 = !link.ipv6.addresses.is_empty();
        let dhcp4 = link.ipv4.dhcp;
        // Any other source of IPv6 addresses, and DHCPv4 in NetworkManager, already gives the link a link-local
        // address. In network-legacy the kernel sets this address on each NIC that is up.
        let has_link_local = link.ipv6.link_local == Some(true) && (program == Program::NetworkManager || !static4);
        // NetworkManager treats `dhcp6` and `auto6` alike: the router advertisement selects the method.
        let dynamic6 = link.ipv6.dynamic.map(|dynamic| match dynamic {
            Ipv6Dynamic::StatefulDhcp => Method::Dhcp6,
            _ => Method::Auto6,
        });
        let each = |method| Self { ipv4: method, ipv6: method, alone: None };
        let alone = |method| Self { alone: Some(method), ..each(Method::None) };
        match (static4, dhcp4, static6, dynamic6) {
            (_, false, false, None) if has_link_local => alone(match program {
                Program::NetworkManager => Method::Link6,
                Program::NetworkLegacy => Method::LegacyLink6,
            }),
            (_, false, _, None) => each(Method::None),
            (false, true, false, None) => alone(Method::Dhcp),
            (false, false, false, Some(dynamic)) => alone(dynamic),
            (false, true, false, Some(_)) => alone(match program {
                Program::NetworkManager => Method::DhcpDhcp6,
                Program::NetworkLegacy => Method::DhcpElseDhcp6,
            }),
            // The static family stays configured even if no server answers for the dynamic family.
            (true, false, false, Some(_)) | (false, true, true, None) => each(Method::On),
            (true, true, _, None) | (true, true, false, Some(_)) => each(Method::Dhcp),
            (true, true, true, Some(dynamic)) => Self { ipv4: Method::Dhcp, ipv6: dynamic, alone: None },
            (_, false, true, Some(dynamic)) => Self { ipv4: Method::None, ipv6: dynamic, alone: None },
            (false, true, true, Some(dynamic)) => Self { ipv4: Method::None, ipv6: dynamic, alone: Some(Method::Dhcp) },
        }
    }
}
