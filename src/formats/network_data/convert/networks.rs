//! Converts `networks` and `services`: the settings of the links and of the machine.

use super::links::LINK_EXPECTED;
use super::{Converter, Method, NETWORKS};
use crate::diagnostic::{FieldPath, Severity};
use crate::formats::convert::{self, WrittenRoute};
use crate::formats::network_data::{Network, Route, Scalar, Service};
use crate::network::{self, Family, LinkIndex};

impl Converter<'_, '_> {
    pub(super) fn read_networks(&mut self) {
        let mut routes = Vec::new();
        let (mut unknown, mut lost) = (Vec::new(), Vec::new());
        // For each link, whether one of its networks could not be read. Such a link may have further addresses that are
        // not known.
        let mut unsure = vec![false; self.links.len()];
        for (index, network) in self.document.networks.iter().enumerate() {
            // An empty entry has been reported already by the reader.
            if *network == Network::default() {
                continue;
            }
            let path = NETWORKS.index(index);
            let method = Method::of(network);
            let link = match self.link_of(network) {
                Ok(link) => Some(link),
                Err(problem) => {
                    lost.push((index, method, problem));
                    None
                }
            };
            let words = (self.dns.nameservers.len(), self.dns.search.len());
            let mut is_sure = true;
            let family = match method {
                Method::Static(wanted) => {
                    let mask = (path.field("netmask"), network.netmask.as_ref());
                    let written = (path.field("ip_address"), network.ip_address.as_ref());
                    let guesses = (&mut self.guesses, link);
                    let address = convert::static_address(self.diagnostics, written, mask, wanted, guesses);
                    is_sure = address.is_some();
                    if let (Some(link), Some(address)) = (link, address) {
                        convert::add_address(&mut self.links[link.0], address);
                    }
                    address.map(|address| Family::of(address.ip())).or(wanted)
                }
                Method::Dhcp4 => {
                    link.into_iter().for_each(|link| self.links[link.0].ipv4.dhcp = true);
                    Some(Family::Ipv4)
                }
                Method::Dynamic6(dynamic) => {
                    if let Some(link) = link {
                        let ipv6 = &mut self.links[link.0].ipv6;
                        ipv6.dynamic = ipv6.dynamic.max(Some(dynamic));
                    }
                    Some(Family::Ipv6)
                }
                Method::Unknown => {
                    unknown.push((index, link));
                    is_sure = false;
                    None
                }
            };
            let own_routes = self.read_routes(network, family, &path);
            self.read_services(&network.services, &path);
            let (servers, domains) = (&network.dns_nameservers, &network.dns_search);
            convert::nameservers(self.diagnostics, &path.field("dns_nameservers"), servers, &mut self.dns);
            convert::search_domains(self.diagnostics, &path.field("dns_search"), domains, &mut self.dns);
            match link {
                Some(link) => {
                    routes.extend(own_routes.into_iter().map(|route| (link, route)));
                    unsure[link.0] |= !is_sure;
                }
                // As in cloud-init, a network without its link is dropped with all its settings. The name servers and search domains of
                // such a network were read only to report mistakes.
                None => {
                    self.dns.nameservers.truncate(words.0);
                    self.dns.search.truncate(words.1);
                }
            }
        }
        let has_addresses = self.links.iter().any(network::Link::has_addresses);
        for (index, method, (problem, expected)) in lost {
            // A static network without its link is an error, because the machine would be unreachable. A network of
            // unknown type may be static. A dynamic network is only a warning if the machine has other addresses.
            let is_dynamic = matches!(method, Method::Dhcp4 | Method::Dynamic6(_));
            let severity = if is_dynamic && has_addresses { Severity::Warning } else { Severity::Error };
            let (path, link) = (NETWORKS.index(index), self.document.networks[index].link.as_ref());
            convert::unknown(self.diagnostics, severity, path.field("link"), problem, link, &expected);
        }
        for (index, link) in unknown {
            // An unknown type is only a warning if its link has another address.
            let works = link.is_some_and(|link| self.links[link.0].has_addresses());
            let severity = if works { Severity::Warning } else { Severity::Error };
            let path = NETWORKS.index(index);
            let kind = self.document.networks[index].kind.as_ref();
            convert::unknown(
                self.diagnostics,
                severity,
                path.field("type"),
                "unknown network type",
                kind,
                Method::EXPECTED,
            );
        }
        for (at, route) in routes {
            convert::add_routes(self.diagnostics, &mut self.links[at.0], vec![route], !unsure[at.0]);
        }
    }

    /// Returns the link of a network in the model. If there is no such link, returns the problem and the expectation
    /// for a diagnostic.
    fn link_of(&self, network: &Network) -> Result<LinkIndex, (&'static str, String)> {
        let Some(link) = self.find(network.link.as_ref()).and_then(|link| self.model[link]) else {
            return Err(("unknown link", LINK_EXPECTED.to_owned()));
        };
        // A bond member has no addresses of its own.
        match self.bond_of[link.0] {
            Some(bond) => {
                let expected = format!("the link of its bond, {}", self.links[bond.0].path);
                Err(("network on a bond member", expected))
            }
            None => Ok(link),
        }
    }

    fn read_routes(&mut self, network: &Network, family: Option<Family>, path: &FieldPath<'_>) -> Vec<network::Route> {
        let gateway = network.gateway.as_ref();
        let gateway = convert::default_route(self.diagnostics, path.field("gateway"), gateway, family, None);
        let mut routes = Vec::from_iter(gateway);
        let list = path.field("routes");
        for (index, route) in network.routes.iter().enumerate() {
            // An empty entry has been reported already by the reader.
            if *route == Route::default() {
                continue;
            }
            let path = list.index(index);
            let written = WrittenRoute {
                destination: ("network", route.network.as_ref()),
                netmask: ("netmask", route.netmask.as_ref()),
                gateway: ("gateway", route.gateway.as_ref()),
                metric: ("metric", route.metric.as_ref()),
            };
            routes.extend(convert::route(self.diagnostics, &path, &written, family));
            self.read_services(&route.services, &path);
        }
        routes
    }

    pub(super) fn read_services(&mut self, services: &[Service], path: &FieldPath<'_>) {
        let list = path.field("services");
        for (index, service) in services.iter().enumerate() {
            let path = list.index(index);
            let kind = service.kind.as_ref();
            let address = service.address.as_ref();
            match kind.map(Scalar::text).as_deref() {
                Some("dns") if address.is_some() || service.search.is_empty() => {
                    convert::nameserver(self.diagnostics, &path.field("address"), address, &mut self.dns);
                }
                Some("dns") => {}
                None if address.is_none() => {}
                _ => {
                    let path = path.field("type");
                    convert::unknown(self.diagnostics, Severity::Warning, path, "unknown service", kind, "dns");
                }
            }
            convert::search_domains(self.diagnostics, &path.field("search"), &service.search, &mut self.dns);
        }
    }
}
