//! Renders kernel arguments in dracut's grammar (dracut.cmdline(7)).
//!
//! Two programs read these arguments: `nm-initrd-generator`
//! (`NetworkManager/NetworkManager:src/nm-initrd-generator/nmi-cmdline-reader.c`) and dracut's own scripts
//! ([`super::network_legacy`]). They interpret the same grammar differently. Each choice below was measured on
//! NetworkManager 1.42 and 1.52 and on dracut 059, and `tests/readers.rs` runs the programs themselves.

mod karg;
mod names;
#[cfg(test)]
mod tests;

pub use karg::{Karg, Method};

use std::collections::BTreeSet;
use std::fmt::{self, Write as _};
use std::net::IpAddr;

use ipnetwork::IpNetwork;
use pnet_base::MacAddr;

use crate::finding::{Finding, Findings, Severity};
use crate::network::{
    BondOptions, BridgeOptions, Card, DefaultRoutes, DhcpOverrides, InterfaceName, Ipv6Dynamic, Link, LinkIndex,
    LinkKind, NetworkConfig, Pattern, Placed, Route,
};
use crate::render::Device;
use names::Names;

/// Longest line that is rendered, in bytes. dracut passes all arguments on in one environment string of at most 128
/// KiB. This limit leaves room for the arguments of other programs.
pub const MAX_BYTES: usize = 32 * 1024;

/// Program that reads the arguments.
#[derive(Clone, Copy, Eq, PartialEq)]
pub(super) enum Reader {
    /// `nm-initrd-generator`.
    NetworkManager,
    /// The scripts of dracut's module `network-legacy`.
    NetworkLegacy,
}

/// A network as kernel arguments.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
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
/// The arguments follow the order of the document, with one exception: the link with the default gateway comes first,
/// because NetworkManager prefers the profile that it activates first.
///
/// A setting that no argument can express becomes a warning. If the network would be wrong without the setting, the
/// setting becomes an error, and the arguments must not be used.
///
/// The arguments never contain `rd.neednet`: on Ignition systems the network starts on demand.
pub fn render(config: &NetworkConfig, findings: &mut Findings) -> Rendered {
    render_for(Reader::NetworkManager, config, findings)
}

/// Renders a network for `reader`. The caller must have reduced the network to what the reader supports.
pub(super) fn render_for(reader: Reader, config: &NetworkConfig, findings: &mut Findings) -> Rendered {
    let names = Names::assign(config, reader);
    let defaults = DefaultRoutes::of(config);
    let mut render = Render { config, reader, names, findings, defaults, of_any: None, any_differ: false };
    let kargs = render.kargs();
    render.report_what_cannot_be_said();
    let devices = render.names.devices;
    let line = line(&kargs);
    if line.len() > MAX_BYTES {
        let expected = format!("at most {MAX_BYTES}");
        findings.push(Finding::error("kernel arguments", "too many bytes", line.len(), &expected));
    }
    // Every value was written from a type with a smaller alphabet. This is the last check before a shell reads the
    // line.
    if !is_legal(&line) {
        findings.push(Finding::error("kernel arguments", "illegal byte", &line, ALPHABET));
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
pub const ALPHABET: &str = "letters, digits, blanks and . _ : [ ] , / = + -";

/// Reports whether the line has only bytes that every reader of kernel arguments, and a shell, takes literally.
#[must_use]
pub fn is_legal(line: &str) -> bool {
    line.bytes().all(|byte| byte.is_ascii_alphanumeric() || b" ._:[],/=+-".contains(&byte))
}

struct Render<'c, 'f> {
    config: &'c NetworkConfig,
    reader: Reader,
    names: Names,
    findings: &'f mut Findings,
    defaults: DefaultRoutes,
    /// Arguments of the first NIC that is identified by a pattern and needs arguments.
    of_any: Option<Vec<Karg>>,
    /// Whether a later NIC that is identified by a pattern needs other arguments than the first.
    any_differ: bool,
}

/// Method to write with each address of a link, and the method to write without an address.
///
/// The methods of a NIC are chosen together, because NetworkManager combines the arguments of a NIC:
///
/// * The last argument sets the method.
/// * `none` disables every family that has no address yet.
/// * If a *required* family gets no answer, NetworkManager gives up the other family too.
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
        if self.reader == Reader::NetworkLegacy {
            // network-legacy keeps the default route that is set last.
            order.rotate_left(count);
        }
        order
    }

    fn structure(&mut self, index: LinkIndex, kargs: &mut Vec<Karg>) {
        let link = self.config.link(index);
        match &link.kind {
            LinkKind::Card(_) => {}
            LinkKind::Bridge { name, .. } if !self.config.is_connected(index) => {
                // NetworkManager would make `eth0` the bridge's port, and network-legacy would wait for a port.
                let expected = "at least one, without which no kernel argument makes a bridge";
                self.findings.push(Finding::warning(&link.place, "bridge without ports left out", name, expected));
            }
            _ if !self.config.is_connected(index) => {
                let expected = "a bridge with ports below it";
                self.findings.push(Finding::warning(&link.place, "VLAN left out", self.device(index), expected));
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
        let mut told = options.said();
        told.retain(|(name, value)| (*name, value.as_str()) != ("stp", "false"));
        let mut told: Vec<&str> = told.into_iter().map(|(name, _)| name).collect();
        told.extend(options.ports.first().map(|_| "port options"));
        if !told.is_empty() {
            self.left_out(&options.place, "bridge options", told.join(", "), "none, nor STP");
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
            let targets = options.arp_ip_target.len();
            self.left_out(&options.place, "all ARP targets but the first", targets, "one address");
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
            let is_stated = link.without_addresses && self.config.states_no_addresses();
            let structural = !matches!(link.kind, LinkKind::Card(_)) && !self.config.carries_vlans(index);
            if self.reader == Reader::NetworkLegacy {
                let expected = "addresses beside it: network-legacy sets it with them alone";
                if let Some(mtu) = mtu {
                    push_left_out(self.findings, &format!("{}.mtu", link.place), "MTU", mtu, expected);
                }
                if let Some(mac_address) = mac_address {
                    push_left_out(self.findings, &link.place, "other MAC address", mac_address, expected);
                }
                if is_stated {
                    let expected = "an address: network-legacy is told nothing about the link";
                    push_left_out(self.findings, &link.place, "link without addresses", &link.id, expected);
                }
            } else if structural || is_stated || mtu.is_some() || mac_address.is_some() {
                kargs.push(ip(None, Method::Off));
            }
            return;
        }
        let methods = Methods::of(link, self.reader);
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
            let expected = "a server or a router that answers: without one NetworkManager drops the static ones, too";
            let place = &link.place;
            self.findings.push(Finding::warning(
                place,
                "static and dynamic addresses of one family",
                &device,
                expected,
            ));
        }
    }

    /// Warns about the settings that a bond member or bridge port loses. A profile of its own would remove the
    /// interface from its bond or bridge.
    fn report_port(&mut self, link: &Link, controller: &Link) {
        let is_bond = matches!(controller.kind, LinkKind::Bond { .. });
        let own_mtu = link.mtu.filter(|_| !matches!(link.kind, LinkKind::Bond { .. }));
        // A bond sets the MTU of its members.
        if let Some(mtu) = own_mtu.filter(|mtu| !is_bond || Some(*mtu) != controller.mtu) {
            let (what, expected) = if is_bond {
                ("MTU of a bond's port", format!("the MTU of its bond, {}", controller.place))
            } else {
                ("MTU of a bridge's port", "none".to_owned())
            };
            self.left_out(&format!("{}.mtu", link.place), what, mtu, &expected);
        }
        if let Some(mac_address) = link.cloned_mac_address {
            self.left_out(&link.place, "other MAC address of a port", mac_address, "none");
        }
        if link.has_addresses() {
            let expected = format!("addresses of what it is a port of, {}", controller.place);
            push_left_out(self.findings, &link.place, "addresses of a port", &link.id, &expected);
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
                self.left_out(&route.place, "route of another table", table, "the main table");
                continue;
            }
            if is_port || !link.can_route(route) {
                // NetworkManager uses DHCP on a NIC that has only a route.
                let expected = "an address of its family on its link";
                push_left_out(self.findings, &route.place, "route", route.destination(), expected);
                continue;
            }
            if let Some(metric) = route.metric() {
                self.left_out(&format!("{}.metric", route.place), "metric", metric, "none");
            }
            let has_static = match route.destination() {
                IpNetwork::V4(_) => !link.ipv4.addresses.is_empty(),
                IpNetwork::V6(_) => !link.ipv6.addresses.is_empty(),
            };
            let is_chosen = self.defaults.has(index, at);
            if route.is_default() && !is_chosen {
                if !self.is_chosen_again(route, index) {
                    let value = route.gateway().map_or_else(|| "on-link".to_owned(), |gateway| gateway.to_string());
                    let expected = "one in each family, the one of the lowest metric, else the first: \
                                    which of several counts would depend on which link is up first";
                    self.findings.push(Finding::warning(&route.place, "further default route", value, expected));
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

    /// Reports whether a default route repeats the default route that was chosen.
    fn is_chosen_again(&self, route: &Route, index: LinkIndex) -> bool {
        let routes = self.config.link(index).routes.iter().enumerate();
        let is_ipv4 = route.destination().is_ipv4();
        let mut chosen =
            routes.filter(|(at, route)| self.defaults.has(index, *at) && route.destination().is_ipv4() == is_ipv4);
        chosen.any(|(_, chosen)| chosen.gateway() == route.gateway())
    }

    fn report_what_cannot_be_said(&mut self) {
        let config = self.config;
        for (link, given) in config.links().iter().zip(&self.names.devices) {
            let (wish, expected) = match &link.kind {
                LinkKind::Card(Card::MacAddress { name: Some(name), .. } | Card::Pattern { name: Some(name), .. }) => {
                    (name, "none like eth0 or ib0".to_owned())
                }
                LinkKind::Vlan { name: Some(name), id, .. } if self.reader == Reader::NetworkLegacy => {
                    (name, format!("vlan{id} or one that ends with .{id}"))
                }
                LinkKind::Vlan { name: Some(name), id, .. } => (name, format!("one that ends with {id}")),
                _ => continue,
            };
            match given {
                Device::Name(given) if given == wish => {}
                Device::Name(given) => {
                    let expected = format!("a free name, {expected}: {given} is taken instead");
                    let place = &link.name_place;
                    self.findings.push(Finding::warning(place, "name that cannot be given", wish, &expected));
                }
                // This case is a debug message, because nothing else needs the name.
                Device::MacAddress(_) | Device::Any => {
                    let expected = "none: kernel arguments name a card only where something else needs its name";
                    let (severity, place) = (Severity::Debug, &link.name_place);
                    self.findings.push(Finding::new(severity, place, "name left out", wish, expected));
                }
            }
        }
        let mut seen = BTreeSet::new();
        for (other, first) in self.defaults.other_names().filter(|(other, _)| seen.insert(*other)) {
            let expected = format!(
                "one name for one interface, {} has this network, too: an initramfs that needs the network waits for the \
                 name that is not there",
                config.link(first).place
            );
            let place = &config.link(other).place;
            self.findings.push(Finding::warning(place, "second name of a network", self.device(other), &expected));
        }
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
            self.left_out(&domain.place, "search domain", domain, "none");
        }
        let nameservers = self.config.nameservers();
        if !self.has_addresses() {
            for server in nameservers {
                let expected = "an address beside it, since it is told to the cards that have one";
                push_left_out(self.findings, &server.place, "name server", server, expected);
            }
            return;
        }
        // Where IPv4 uses DHCP, NetworkManager also accepts IPv6 router advertisements.
        let has_ipv4 = self.addressable().any(|link| link.ipv4.is_used());
        let has_ipv6 = self.addressable().any(|link| link.ipv6.is_used() || link.ipv4.dhcp);
        let is_far = |server: &&Placed<IpAddr>| if server.value.is_ipv4() { !has_ipv4 } else { !has_ipv6 };
        for server in nameservers.into_iter().filter(is_far) {
            let expected = "one of a family in which a card has an address";
            self.findings.push(Finding::warning(&server.place, "name server out of reach", server, expected));
        }
    }

    /// Reports a NIC that is identified by a pattern. An argument is for one NIC or for all NICs: it cannot have a
    /// pattern. `has_named`: another link, which has a name or an address, needs arguments.
    fn report_pattern(&mut self, index: LinkIndex, link: &Link, has_named: bool) {
        let LinkKind::Card(Card::Pattern { names, drivers, .. }) = &link.kind else { return };
        let is_used = self.config.controller_of(index).is_some() || self.config.carries_vlans(index);
        if !is_used && !link.asks() {
            return;
        }
        let patterns: Vec<&str> = names.iter().chain(drivers).map(Pattern::as_str).collect();
        let (problem, patterns) = ("card that is known by a pattern alone", patterns.join(", "));
        // When all such NICs need the same arguments, arguments for any NIC are correct.
        self.findings.push(if is_used || self.any_differ || has_named {
            let expected =
                "a MAC address or a name: among several links no kernel argument could tell which card is meant";
            Finding::error(&link.place, problem, &patterns, expected)
        } else {
            let expected = "a MAC address or a name: the arguments hold for every card";
            Finding::warning(&link.place, problem, &patterns, expected)
        });
    }

    /// Warns about settings for router advertisements and DHCP that no argument can express. One setting can be
    /// expressed: ignore the name servers of all routers and DHCP servers.
    fn report_dynamic(&mut self, link: &Link, ignores_dns: bool) {
        let dynamic = link.ipv6.dynamic.is_some();
        let cannot = match (self.reader, link.ipv6.accept_ra) {
            // A family without dynamic addresses does not accept router advertisements, but DHCPv4 also enables IPv6.
            (Reader::NetworkManager, Some(false)) => dynamic || link.ipv4.dhcp,
            (Reader::NetworkManager, Some(true)) => !dynamic && link.ipv6.is_used(),
            // The kernel accepts router advertisements wherever they are not disabled.
            (Reader::NetworkLegacy, accepts) => accepts == Some(false),
            (_, None) => false,
        };
        if let Some(accepts) = link.ipv6.accept_ra.filter(|_| cannot) {
            self.left_out(&format!("{}.accept-ra", link.place), "word about router advertisements", accepts, "none");
        }
        let families =
            [("dhcp4", &link.ipv4.dhcp_overrides, link.ipv4.dhcp), ("dhcp6", &link.ipv6.dhcp_overrides, dynamic)];
        for (family, options, _) in families.into_iter().filter(|(.., is_used)| *is_used) {
            let DhcpOverrides { use_routes, use_dns, use_domains, use_hostname, send_hostname, use_mtu, .. } = *options;
            let use_dns = use_dns.filter(|_| !ignores_dns);
            let names = ["use-routes", "use-dns", "use-domains", "use-hostname", "send-hostname", "use-mtu"];
            let values = [use_routes, use_dns, use_domains, use_hostname, send_hostname, use_mtu];
            // Every option of a DHCP server is used by default, so only `false` is lost.
            for (name, _) in names.into_iter().zip(values).filter(|(_, value)| *value == Some(false)) {
                self.left_out(&format!("{}.{family}-overrides.{name}", link.place), "DHCP option", false, "true");
            }
            if let Some(metric) = &options.route_metric {
                self.left_out(&metric.place, "metric", metric, "none");
            }
        }
    }

    /// Reports whether every link with dynamic addresses ignores the name servers of DHCP servers and routers. `None`
    /// when no link has dynamic addresses.
    fn ignores_dns(&self) -> Option<bool> {
        let families = self.addressable().flat_map(|link| {
            let (ipv4, ipv6) = (&link.ipv4, &link.ipv6);
            let options = [ipv4.dhcp.then_some(&ipv4.dhcp_overrides), ipv6.dynamic.map(|_| &ipv6.dhcp_overrides)];
            options.into_iter().flatten()
        });
        families.map(|options| options.use_dns == Some(false)).reduce(|all, one| all && one)
    }

    fn left_out(&mut self, place: &str, what: &str, value: impl fmt::Display, expected: &str) {
        push_left_out(self.findings, place, what, value, &format!("{expected}: no kernel argument carries it"));
    }

    /// Reports whether any link has a static or dynamic address. Without addresses there is no profile, and a name
    /// server needs a profile.
    fn has_addresses(&self) -> bool {
        self.addressable().any(Link::has_addresses)
    }

    /// Links that can have addresses: not bond members, not bridge ports, and not links that no argument can make.
    fn addressable(&self) -> impl Iterator<Item = &Link> {
        let links = self.config.links().iter().enumerate();
        let is_free = |at| self.config.is_connected(at) && self.config.controller_of(at).is_none();
        links.filter(move |(at, _)| is_free(LinkIndex(*at))).map(|(_, link)| link)
    }

    fn device(&self, index: LinkIndex) -> Device {
        self.names.devices[index.0].clone()
    }
}

pub(super) fn push_left_out(
    findings: &mut Findings,
    place: &str,
    what: &str,
    value: impl fmt::Display,
    expected: &str,
) {
    findings.push(Finding::warning(place, &format!("{what} left out"), value, expected));
}

// === impl Methods ===

impl Methods {
    /// Chooses the methods of a link.
    ///
    /// The rows come from a test of every sequence of up to three arguments on NetworkManager 1.42. network-legacy
    /// accepts one address or one method for each link, and interprets a pair of methods in its own way.
    fn of(link: &Link, reader: Reader) -> Self {
        let static4 = !link.ipv4.addresses.is_empty();
        let static6 = !link.ipv6.addresses.is_empty();
        let dhcp4 = link.ipv4.dhcp;
        // NetworkManager treats `dhcp6` and `auto6` alike: the router advertisement selects the method.
        let dynamic6 = link.ipv6.dynamic.map(|dynamic| match dynamic {
            Ipv6Dynamic::StatefulDhcp => Method::Dhcp6,
            _ => Method::Auto6,
        });
        let each = |method| Self { ipv4: method, ipv6: method, alone: None };
        let alone = |method| Self { alone: Some(method), ..each(Method::None) };
        match (static4, dhcp4, static6, dynamic6) {
            (_, false, _, None) => each(Method::None),
            (false, true, false, None) => alone(Method::Dhcp),
            (false, false, false, Some(dynamic)) => alone(dynamic),
            (false, true, false, Some(_)) => alone(match reader {
                Reader::NetworkManager => Method::DhcpDhcp6,
                Reader::NetworkLegacy => Method::DhcpElseDhcp6,
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
