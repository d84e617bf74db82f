//! Kernel arguments of dracut's grammar (dracut.cmdline(7)), as `nm-initrd-generator` understands them
//! (`NetworkManager/NetworkManager:src/nm-initrd-generator/nmi-cmdline-reader.c`).
//!
//! The grammar is shared on paper only: each choice below was measured on NetworkManager 1.42 and 1.52, and
//! `tests/readers.rs` asks the program itself.

mod karg;
mod names;
#[cfg(test)]
mod tests;

pub use karg::{Device, Karg, Method};

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;

use ipnetwork::IpNetwork;
use pnet_base::MacAddr;

use crate::finding::{Finding, Findings};
use crate::network::{BondOptions, Card, InterfaceName, Ipv6Dynamic, Link, LinkIndex, LinkKind, NetworkConfig, Route};
use names::Names;

/// The longest line that is rendered, in bytes. dracut hands all arguments on in one environment string, which ends at
/// 128 KiB; whoever adds to them leaves room for the others.
pub const MAX_BYTES: usize = 32 * 1024;

/// A network as kernel arguments.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Rendered {
    /// In the order in which they are to be written.
    pub kargs: Vec<Karg>,
    /// For every link of the network, in its order: what the arguments call it.
    pub devices: Vec<Device>,
}

/// Renders a network as kernel arguments for NetworkManager.
///
/// The order is that of the document, but for the link with the default gateway, which comes first: NetworkManager
/// prefers the profile that it activates first. What an argument cannot say becomes a warning; what would be wrong
/// without being said becomes an error, and then the arguments are not to be used.
///
/// The arguments never say `rd.neednet`: on Ignition systems the network is started on demand.
pub fn render(config: &NetworkConfig, findings: &mut Findings) -> Rendered {
    let names = Names::assign(config);
    let mut render = Render { config, names, findings, gateways: Gateways::default() };
    render.gateways = render.choose_gateways();
    let kargs = render.kargs();
    render.report_what_cannot_be_said();
    let devices = render.names.devices;
    let line = line(&kargs);
    if line.len() > MAX_BYTES {
        let expected = format!("at most {MAX_BYTES}");
        findings.push(Finding::error("kernel arguments", "too many bytes", line.len(), &expected));
    }
    // Every value has been written from a type whose alphabet is smaller than this: the last door before a shell.
    if !is_legal(&line) {
        findings.push(Finding::error("kernel arguments", "illegal byte", &line, ALPHABET));
    }
    Rendered { kargs, devices }
}

/// The arguments as one line, without a final newline.
#[must_use]
pub fn line(kargs: &[Karg]) -> String {
    let words: Vec<String> = kargs.iter().map(Karg::to_string).collect();
    words.join(" ")
}

/// What a message calls the alphabet of [`is_legal`].
pub const ALPHABET: &str = "letters, digits, blanks and . _ : [ ] , / = + -";

/// Whether a line has nothing that any reader of kernel arguments, or a shell behind it, takes for more than text.
#[must_use]
pub fn is_legal(line: &str) -> bool {
    line.bytes().all(|byte| byte.is_ascii_alphanumeric() || b" ._:[],/=+-".contains(&byte))
}

struct Render<'c, 'f> {
    config: &'c NetworkConfig,
    names: Names,
    findings: &'f mut Findings,
    gateways: Gateways,
}

/// The one default route of each family: its link, and its place among the link's routes.
#[derive(Clone, Copy, Default)]
struct Gateways {
    ipv4: Option<(LinkIndex, usize)>,
    ipv6: Option<(LinkIndex, usize)>,
}

/// Which method each address of a link is given with, and what is asked for beside the addresses.
///
/// NetworkManager lets the method of the last argument for a card decide, `none` disables every family that has no
/// address yet, and a family that is *required* takes the others down with it when nobody answers. So the methods of a
/// card are chosen together.
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
            let (name, mac_address) = (name.clone(), *mac_address);
            Karg::Ifname { name, mac_address }
        };
        let mut kargs = self.names.ties.iter().map(tie).collect();
        for index in self.parents_first() {
            self.structure(index, &mut kargs);
        }
        for index in self.gateways_first() {
            self.addresses(index, &mut kargs);
            self.routes(index, &mut kargs);
        }
        if self.has_addresses() {
            kargs.extend(config.nameservers.iter().copied().map(Karg::Nameserver));
        }
        kargs
    }

    /// Bonds and VLANs in the document's order, but each after what it is made of: NetworkManager takes a parent that
    /// it has not met for a card.
    fn parents_first(&self) -> Vec<LinkIndex> {
        let mut order = Vec::new();
        let mut placed = vec![false; self.config.links().len()];
        for index in (0..placed.len()).map(LinkIndex) {
            let mut chain = Vec::new();
            let mut at = Some(index);
            while let Some(here) = at.filter(|here| !placed[here.0]) {
                placed[here.0] = true;
                chain.push(here);
                at = match &self.config.link(here).kind {
                    LinkKind::Vlan { parent, .. } => Some(*parent),
                    _ => None,
                };
            }
            order.extend(chain.into_iter().rev());
        }
        order
    }

    fn gateways_first(&self) -> Vec<LinkIndex> {
        let firsts = [self.gateways.ipv4, self.gateways.ipv6].into_iter().flatten().map(|(link, _)| link);
        let all = (0..self.config.links().len()).map(LinkIndex);
        let mut seen = BTreeSet::new();
        firsts.chain(all).filter(|link| seen.insert(*link)).collect()
    }

    fn structure(&mut self, index: LinkIndex, kargs: &mut Vec<Karg>) {
        let link = self.config.link(index);
        match &link.kind {
            LinkKind::Card(_) => {}
            LinkKind::Bond { name, ports, options, .. } => {
                let options = self.bond_options(link, options);
                let ports = ports.iter().map(|port| self.device(*port)).collect();
                kargs.push(Karg::Bond { name: name.clone(), ports, options, mtu: link.mtu });
            }
            LinkKind::Vlan { parent, .. } => {
                kargs.push(Karg::Vlan { vlan: self.device(index), parent: self.device(*parent) });
            }
        }
    }

    fn bond_options(&mut self, link: &Link, options: &BondOptions) -> Vec<(&'static str, String)> {
        let mut words = vec![("mode", options.mode.to_string())];
        words.extend(options.others().iter().map(|option| (option.name, option.value.clone())));
        if let Some(target) = options.arp_ip_target.first() {
            words.push(("arp_ip_target", target.to_string()));
        }
        if options.arp_ip_target.len() > 1 {
            // Between options stands a comma, and NetworkManager takes nothing else between addresses.
            let (place, targets) = (format!("{}.bond_arp_ip_target", link.place), options.arp_ip_target.len());
            self.left_out(&place, "all ARP targets but the first", targets, "one address");
        }
        if let Some(primary) = options.primary {
            words.push(("primary", self.device(primary).to_string()));
        }
        words
    }

    fn addresses(&mut self, index: LinkIndex, kargs: &mut Vec<Karg>) {
        let link = self.config.link(index);
        if let Some(bond) = self.config.bond_of(index) {
            // A profile of its own would take the card away from the bond, which sets its ports' MTU.
            let bond = self.config.link(bond);
            if let Some(mtu) = link.mtu.filter(|mtu| Some(*mtu) != bond.mtu) {
                let expected = format!("the MTU of its bond, {}", bond.place);
                self.left_out(&format!("{}.mtu", link.place), "MTU of a bond's port", mtu, &expected);
            }
            return;
        }
        let device = self.device(index);
        let (mtu, mac_address) = match &link.kind {
            LinkKind::Card(_) => (link.mtu, None),
            // The MTU stands in `bond=` already.
            LinkKind::Bond { mac_address, .. } => (None, *mac_address),
            LinkKind::Vlan { mac_address, .. } => (link.mtu, *mac_address),
        };
        let ip = |address, method| Karg::Ip { address, device: device.clone(), method, mtu, mac_address };
        if !link.has_addresses() {
            let structural = !matches!(link.kind, LinkKind::Card(_)) && !self.config.carries_vlans(index);
            if structural || mtu.is_some() || mac_address.is_some() {
                kargs.push(ip(None, Method::Off));
            }
            return;
        }
        let methods = Methods::of(link);
        let mut gateway = self.static_gateway(index, self.gateways.ipv4, !link.ipv4.addresses.is_empty());
        for address in &link.ipv4.addresses {
            kargs.push(ip(Some((IpNetwork::V4(*address), gateway.take())), methods.ipv4));
        }
        let mut gateway = self.static_gateway(index, self.gateways.ipv6, !link.ipv6.addresses.is_empty());
        for address in &link.ipv6.addresses {
            kargs.push(ip(Some((IpNetwork::V6(*address), gateway.take())), methods.ipv6));
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

    /// The gateway that goes into the `ip=` of a static address.
    fn static_gateway(&self, index: LinkIndex, chosen: Option<(LinkIndex, usize)>, has_static: bool) -> Option<IpAddr> {
        let (_, route) = chosen.filter(|(link, _)| *link == index && has_static)?;
        self.config.link(index).routes[route].gateway()
    }

    fn routes(&mut self, index: LinkIndex, kargs: &mut Vec<Karg>) {
        let link = self.config.link(index);
        let device = self.device(index);
        for (at, route) in link.routes.iter().enumerate() {
            if let Some(metric) = route.metric() {
                self.left_out(&format!("{}.metric", route.place), "metric", metric, "none");
            }
            let (chosen, has_static) = match route.destination() {
                IpNetwork::V4(_) => (self.gateways.ipv4, !link.ipv4.addresses.is_empty()),
                IpNetwork::V6(_) => (self.gateways.ipv6, !link.ipv6.addresses.is_empty()),
            };
            let is_chosen = chosen == Some((index, at));
            if route.is_default() && !is_chosen {
                if !self.is_chosen_again(route, index, chosen) {
                    let value = route.gateway().map_or_else(|| "on-link".to_owned(), |gateway| gateway.to_string());
                    let expected = "one in each family: the one of the lowest metric, else the first, is kept";
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

    /// Whether a default route says only once more what the chosen one says.
    fn is_chosen_again(&self, route: &Route, index: LinkIndex, chosen: Option<(LinkIndex, usize)>) -> bool {
        chosen.is_some_and(|(link, at)| link == index && self.config.link(link).routes[at].gateway() == route.gateway())
    }

    /// The lowest metric wins, else the first in the document; no metric is the kernel's 0.
    fn choose_gateways(&self) -> Gateways {
        let choose = |ipv4: bool| {
            let links = self.config.links().iter().enumerate();
            let routes = links.flat_map(|(link, it)| it.routes.iter().enumerate().map(move |at| (LinkIndex(link), at)));
            routes
                .filter(|(_, (_, route))| route.is_default() && route.destination().is_ipv4() == ipv4)
                .min_by_key(|(_, (_, route))| route.metric().unwrap_or(0))
                .map(|(link, (at, _))| (link, at))
        };
        Gateways { ipv4: choose(true), ipv6: choose(false) }
    }

    fn report_what_cannot_be_said(&mut self) {
        let config = self.config;
        for (link, given) in config.links().iter().zip(&self.names.devices) {
            let (wish, expected) = match &link.kind {
                LinkKind::Card(Card::MacAddress { name: Some(name), .. }) => (name, "none like eth0 or ib0".to_owned()),
                LinkKind::Vlan { name: Some(name), id, .. } => (name, format!("one that ends with {id}")),
                _ => continue,
            };
            if let Device::Name(given) = given
                && given != wish
            {
                let expected = format!("a free name, {expected}: {given} is taken instead");
                let place = format!("{}.name", link.place);
                self.findings.push(Finding::warning(place, "name that cannot be given", wish, &expected));
            }
        }
        for domain in &config.search {
            self.left_out("search", "search domain", domain, "none");
        }
        if !config.nameservers.is_empty() && !self.has_addresses() {
            let servers = config.nameservers.len();
            let expected = "a network beside them, since they are told to the cards that have one";
            self.findings.push(Finding::warning("services", "name servers left out", servers, expected));
        }
    }

    fn left_out(&mut self, place: &str, what: &str, value: impl fmt::Display, expected: &str) {
        let (problem, expected) = (format!("{what} left out"), format!("{expected}: no kernel argument carries it"));
        self.findings.push(Finding::warning(place, &problem, value, &expected));
    }

    /// Whether any address is given or asked for. A name server alone makes no profile, and so is told to nobody.
    fn has_addresses(&self) -> bool {
        self.config.links().iter().any(Link::has_addresses)
    }

    fn device(&self, index: LinkIndex) -> Device {
        self.names.devices[index.0].clone()
    }
}

// === impl Methods ===

impl Methods {
    /// The rows were found by trying every sequence of up to three arguments on NetworkManager 1.42.
    fn of(link: &Link) -> Self {
        let static4 = !link.ipv4.addresses.is_empty();
        let static6 = !link.ipv6.addresses.is_empty();
        let dhcp4 = link.ipv4.dhcp;
        // `dhcp6` and `auto6` are one method to NetworkManager, which lets the router advertisement decide.
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
            (false, true, false, Some(_)) => alone(Method::DhcpDhcp6),
            // The static family is kept when nobody answers for the other one.
            (true, false, false, Some(_)) | (false, true, true, None) => each(Method::On),
            (true, true, _, None) | (true, true, false, Some(_)) => each(Method::Dhcp),
            (true, true, true, Some(dynamic)) => Self { ipv4: Method::Dhcp, ipv6: dynamic, alone: None },
            (_, false, true, Some(dynamic)) => Self { ipv4: Method::None, ipv6: dynamic, alone: None },
            (false, true, true, Some(dynamic)) => Self { ipv4: Method::None, ipv6: dynamic, alone: Some(Method::Dhcp) },
        }
    }
}
