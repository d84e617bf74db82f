//! `networks` and `services`: what is to be set on the links, and on the machine.

use std::net::IpAddr;

use ipnetwork::IpNetwork;

use super::links::LINK_EXPECTED;
use super::{Converter, Method, NETWORKS};
use crate::finding::{Finding, Place, Severity};
use crate::formats::address::{self, Family, MASK_EXPECTED, Wrong};
use crate::formats::network_data::{Network, Route, Scalar, Service};
use crate::network::{self, DomainName, LinkIndex};

impl Converter<'_, '_> {
    pub(super) fn read_networks(&mut self) {
        let mut routes = Vec::new();
        let mut unknown = Vec::new();
        // Links of which not all is known that the document wants there.
        let mut unsure = vec![false; self.links.len()];
        for (index, network) in self.document.networks.iter().enumerate() {
            // What says nothing has been reported when it was read.
            if *network == Network::default() {
                continue;
            }
            let place = NETWORKS.index(index);
            let method = Method::of(network);
            let link = self.link_of(network, method, &place);
            let words = (self.nameservers.len(), self.search.len());
            let mut is_sure = true;
            let family = match method {
                Method::Static(wanted) => {
                    let address = self.static_address(network, wanted, &place);
                    is_sure = address.is_some();
                    if let (Some(link), Some(address)) = (link, address) {
                        self.add_address(link, address);
                    }
                    address.map(|address| Family::of(address.ip())).or(wanted)
                }
                Method::Dhcp4 => {
                    link.into_iter().for_each(|link| self.links[link.0].ipv4.dhcp = true);
                    Some(Family::V4)
                }
                Method::Dynamic6(dynamic) => {
                    if let Some(link) = link {
                        let ipv6 = &mut self.links[link.0].ipv6;
                        ipv6.dynamic = ipv6.dynamic.max(Some(dynamic));
                    }
                    Some(Family::V6)
                }
                Method::Unknown => {
                    unknown.push((index, link));
                    is_sure = false;
                    None
                }
            };
            let own_routes = self.read_routes(network, family, &place);
            self.read_services(&network.services, &place);
            self.read_words(&network.dns_nameservers, &place, "dns_nameservers", Converter::nameserver);
            self.read_words(&network.dns_search, &place, "dns_search", Converter::search_domain);
            match link {
                Some(link) => {
                    routes.extend(own_routes.into_iter().map(|route| (link, route)));
                    unsure[link.0] |= !is_sure;
                }
                // As in cloud-init, a network without its link is lost with all that it has; but it has been looked at.
                None => {
                    self.nameservers.truncate(words.0);
                    self.search.truncate(words.1);
                }
            }
        }
        for (index, link) in unknown {
            // What is not understood costs only itself as long as the link has something else.
            let works = link.is_some_and(|link| self.links[link.0].has_addresses());
            let severity = if works { Severity::Warning } else { Severity::Error };
            let place = NETWORKS.index(index);
            let kind = self.document.networks[index].kind.as_ref();
            self.unknown(severity, place.field("type"), "unknown network type", kind, Method::EXPECTED);
        }
        for (at, route) in routes {
            let link = &mut self.links[at.0];
            let (used, expected) = match route.destination() {
                IpNetwork::V4(_) => (link.ipv4.is_used(), "an IPv4 address on its link"),
                IpNetwork::V6(_) => (link.ipv6.is_used(), "an IPv6 address on its link"),
            };
            if used {
                link.routes.push(route);
            } else if !unsure[at.0] {
                let (place, destination) = (&route.place, route.destination());
                self.findings.push(Finding::warning(place, "unreachable route", destination, expected));
            }
        }
    }

    /// Where the network is, if it can be anywhere.
    fn link_of(&mut self, network: &Network, method: Method, place: &Place<'_>) -> Option<LinkIndex> {
        let (severity, place) = (method.cost_of_its_loss(), place.field("link"));
        let Some(link) = self.find(network.link.as_ref()).and_then(|link| self.model[link]) else {
            self.unknown(severity, place, "unknown link", network.link.as_ref(), LINK_EXPECTED);
            return None;
        };
        // A bond's ports have no addresses of their own.
        if let Some(bond) = self.bond_of[link.0] {
            let expected = format!("the link of its bond, {}", self.links[bond.0].place);
            self.unknown(severity, place, "network on a bond's port", network.link.as_ref(), &expected);
            return None;
        }
        Some(link)
    }

    fn static_address(&mut self, network: &Network, wanted: Option<Family>, place: &Place<'_>) -> Option<IpNetwork> {
        let expected = match wanted {
            Some(Family::V4) => "an IPv4 address of a machine",
            Some(Family::V6) => "an IPv6 address of a machine",
            None => "an IP address of a machine",
        };
        let Some(written) = &network.ip_address else {
            self.missing(place, "ip_address", expected);
            return None;
        };
        let mask = network.netmask.as_ref().map(Scalar::text);
        match address::interface_address(&written.text(), mask.as_deref()) {
            Ok(address) if wanted.is_none_or(|family| family == Family::of(address.ip())) => return Some(address),
            Err(Wrong::Mask) => {
                self.error(place, "netmask", "invalid netmask", mask.unwrap_or_default(), MASK_EXPECTED);
            }
            Ok(_) | Err(Wrong::Address) => self.error(place, "ip_address", "invalid address", written, expected),
        }
        None
    }

    fn add_address(&mut self, link: LinkIndex, address: IpNetwork) {
        let link = &mut self.links[link.0];
        match address {
            IpNetwork::V4(address) if !link.ipv4.addresses.contains(&address) => link.ipv4.addresses.push(address),
            IpNetwork::V6(address) if !link.ipv6.addresses.contains(&address) => link.ipv6.addresses.push(address),
            _ => {}
        }
    }

    fn read_routes(&mut self, network: &Network, family: Option<Family>, place: &Place<'_>) -> Vec<network::Route> {
        let mut routes = Vec::new();
        if let Some(gateway) = self.gateway(network.gateway.as_ref(), family, place)
            && let Ok(route) = network::Route::new(Family::of(gateway).everywhere(), Some(gateway), None)
        {
            routes.push(route.at(place.field("gateway")));
        }
        let list = place.field("routes");
        for (index, route) in network.routes.iter().enumerate() {
            // What says nothing has been reported when it was read.
            if *route == Route::default() {
                continue;
            }
            let place = list.index(index);
            routes.extend(self.route(route, family, &place).map(|route| route.at(place)));
            self.read_services(&route.services, &place);
        }
        routes
    }

    fn route(&mut self, route: &Route, family: Option<Family>, place: &Place<'_>) -> Option<network::Route> {
        let gateway = route.gateway.as_ref().filter(|gateway| !gateway.text().is_empty());
        let hop = gateway.map(|gateway| address::address(&gateway.text()));
        let destination = route.network.as_ref().map(|written| {
            // `default` is of the gateway's family, and of the network's when that says nothing.
            let said = hop.flatten().map(Family::of).or(family).unwrap_or(Family::V4);
            let mask = route.netmask.as_ref().map(Scalar::text);
            let destination = address::destination(&written.text(), mask.as_deref(), said);
            match destination {
                Ok(_) => {}
                Err(Wrong::Mask) => {
                    self.error(place, "netmask", "invalid netmask", mask.unwrap_or_default(), MASK_EXPECTED);
                }
                Err(Wrong::Address) => {
                    self.error(place, "network", "invalid network", written, "an address, a CIDR or default");
                }
            }
            destination.ok()
        });
        if destination.is_none() {
            self.missing(place, "network", "an address, a CIDR or default");
        }
        let destination = destination.flatten();
        let metric = route.metric.as_ref().and_then(|written| {
            let metric = written.integer().and_then(|metric| u32::try_from(metric).ok());
            if metric.is_none() {
                self.warning(place, "metric", "invalid metric", written, "a number of 0 to 4294967295");
            }
            metric
        });
        let gateway = match hop {
            None => None,
            // An unspecified gateway is the older way to say that there is none.
            Some(Some(hop)) if hop.is_unspecified() => None,
            Some(_) => Some(self.gateway(gateway, destination.map(|network| Family::of(network.ip())), place)?),
        };
        network::Route::new(destination?, gateway, metric).ok()
    }

    /// A next hop, of this family where one is given. An empty text is none.
    fn gateway(&mut self, written: Option<&Scalar>, family: Option<Family>, place: &Place<'_>) -> Option<IpAddr> {
        let written = written.filter(|gateway| !gateway.text().is_empty())?;
        let gateway = address::host_address(&written.text())
            .filter(|gateway| family.is_none_or(|family| family == Family::of(*gateway)));
        if gateway.is_none() {
            let expected = match family {
                Some(Family::V4) => "the IPv4 address of a router",
                Some(Family::V6) => "the IPv6 address of a router",
                None => "the IP address of a router",
            };
            self.error(place, "gateway", "invalid gateway", written, expected);
        }
        gateway
    }

    pub(super) fn read_services(&mut self, services: &[Service], place: &Place<'_>) {
        let list = place.field("services");
        for (index, service) in services.iter().enumerate() {
            let place = list.index(index);
            let kind = service.kind.as_ref();
            match (kind.map(Scalar::text).as_deref(), &service.address) {
                (Some("dns"), Some(address)) => self.nameserver(address, &place.field("address")),
                (Some("dns"), None) if service.search.is_empty() => {
                    let (severity, place) = (Severity::Warning, place.field("address"));
                    self.findings.push(Finding::without_value(severity, place, "missing", NAMESERVER_EXPECTED));
                }
                (Some("dns"), None) | (None, None) => {}
                _ => self.unknown(Severity::Warning, place.field("type"), "unknown service", kind, "dns"),
            }
            self.read_words(&service.search, &place, "search", Converter::search_domain);
        }
    }

    fn read_words(
        &mut self,
        words: &[Scalar],
        place: &Place<'_>,
        name: &str,
        read: fn(&mut Self, &Scalar, &Place<'_>),
    ) {
        let list = place.field(name);
        for (index, word) in words.iter().enumerate() {
            read(self, word, &list.index(index));
        }
    }

    fn nameserver(&mut self, written: &Scalar, place: &Place<'_>) {
        match written.text().parse::<IpAddr>() {
            Ok(server) if !server.is_unspecified() && !server.is_multicast() => self.nameservers.push(server),
            _ => self.findings.push(Finding::warning(place, "invalid nameserver", written, NAMESERVER_EXPECTED)),
        }
    }

    fn search_domain(&mut self, written: &Scalar, place: &Place<'_>) {
        match written.text().parse::<DomainName>() {
            Ok(domain) => self.search.push(domain),
            Err(_) => {
                self.findings.push(Finding::warning(place, "invalid search domain", written, DomainName::EXPECTED));
            }
        }
    }
}

const NAMESERVER_EXPECTED: &str = "an IP address";
