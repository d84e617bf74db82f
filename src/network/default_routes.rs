//! The choice of one default route for each family.

use std::net::IpAddr;

use super::{Link, LinkIndex, LinkKind, NetworkConfig, Nic, Route};

/// The default route of each family: the route with the lowest metric, and of equal metrics the first in the document.
///
/// Without this choice, the order in which the links come up would decide which of several default routes of one family
/// a machine uses.
///
/// Links with the same address and the same gateway are an exception: a document can list one interface under several
/// names, because the name depends on the guest. Only one of these links exists on a machine, so each of them keeps its
/// gateway. Two MAC addresses are never one interface.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
#[doc(hidden)]
pub struct DefaultRoutes {
    /// Pairs of a link and the index of the route among that link's routes. The first pair is the chosen route. The
    /// other pairs are the same route on links that are other names of the interface.
    ipv4: Vec<(LinkIndex, usize)>,
    ipv6: Vec<(LinkIndex, usize)>,
}

// === impl DefaultRoutes ===

impl DefaultRoutes {
    /// Chooses the default routes of a network. A candidate is a default route in the main table, on a link that is
    /// connected, that belongs to no bond or bridge, and that has an address of the route's family.
    #[must_use]
    pub fn of(config: &NetworkConfig) -> Self {
        Self { ipv4: choose(config, true), ipv6: choose(config, false) }
    }

    /// The link of the chosen route of each family, IPv4 first.
    pub fn links(&self) -> impl Iterator<Item = LinkIndex> + Clone {
        [&self.ipv4, &self.ipv6].into_iter().filter_map(|routes| routes.first()).map(|(link, _)| *link)
    }

    /// Pairs of links that are two names of one interface. The second link of each pair has the chosen route.
    pub fn other_names(&self) -> impl Iterator<Item = (LinkIndex, LinkIndex)> {
        [&self.ipv4, &self.ipv6].into_iter().flat_map(|routes| {
            let first = routes.first().copied();
            routes.iter().skip(1).filter_map(move |(link, _)| Some((*link, first?.0)))
        })
    }

    /// Whether a route is a chosen default route. `route` is its index among the routes of the link.
    #[must_use]
    pub fn has(&self, link: LinkIndex, route: usize) -> bool {
        self.ipv4.contains(&(link, route)) || self.ipv6.contains(&(link, route))
    }

    /// The IPv4 and the IPv6 gateway of a link's default routes; `None` for a family whose default route is not on this
    /// link.
    #[must_use]
    pub fn gateways(&self, config: &NetworkConfig, link: LinkIndex) -> [Option<IpAddr>; 2] {
        [&self.ipv4, &self.ipv6].map(|routes| {
            let (_, route) = routes.iter().find(|(chosen, _)| *chosen == link)?;
            config.link(link).routes[*route].gateway()
        })
    }
}

fn choose(config: &NetworkConfig, ipv4: bool) -> Vec<(LinkIndex, usize)> {
    let links = config.links().iter().enumerate().map(|(at, link)| (LinkIndex(at), link));
    let candidates: Vec<(LinkIndex, usize)> = links
        .filter(|(at, _)| config.is_connected(*at) && config.controller_of(*at).is_none())
        .flat_map(|(at, link)| {
            let is_default = move |route: &Route| {
                route.is_default()
                    && route.table.is_none()
                    && route.destination().is_ipv4() == ipv4
                    && link.can_route(route)
            };
            let routes = link.routes.iter().enumerate().filter(move |(_, route)| is_default(route));
            routes.map(move |(index, _)| (at, index))
        })
        .collect();
    let route = |(link, at): &(LinkIndex, usize)| &config.link(*link).routes[*at];
    // A missing metric is the kernel's 0. `min_by_key` returns the first of equal metrics.
    let Some(chosen) = candidates.iter().copied().min_by_key(|it| route(it).metric().unwrap_or(0)) else {
        return Vec::new();
    };
    let mut routes = vec![chosen];
    for other in candidates {
        let is_new = routes.iter().all(|(link, _)| *link != other.0);
        if is_new
            && route(&other).gateway() == route(&chosen).gateway()
            && may_be_one_interface(config.link(other.0), config.link(chosen.0), ipv4)
        {
            routes.push(other);
        }
    }
    routes
}

/// Whether two links have a static address of this family in common, and are not two NICs with their MAC addresses.
fn may_be_one_interface(one: &Link, other: &Link, ipv4: bool) -> bool {
    let has_mac_address = |link: &Link| matches!(link.kind, LinkKind::Nic(Nic::MacAddress { .. }));
    if has_mac_address(one) && has_mac_address(other) {
        false
    } else if ipv4 {
        one.ipv4.addresses.iter().any(|address| other.ipv4.addresses.contains(address))
    } else {
        one.ipv6.addresses.iter().any(|address| other.ipv6.addresses.contains(address))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::parse_mac_address;

    /// A NIC with IPv4 addresses and default routes. Each route is given as its gateway and its metric.
    fn nic(name: &str, addresses: &[&str], routes: &[(&str, u32)]) -> Link {
        let mut link = Link::new(name.to_owned(), name.to_owned(), LinkKind::Nic(Nic::Name(name.parse().unwrap())));
        link.ipv4.addresses = addresses.iter().map(|address| address.parse().unwrap()).collect();
        let everywhere = "0.0.0.0/0".parse().unwrap();
        let route =
            |(via, metric): &(&str, u32)| Route::new(everywhere, Some(via.parse().unwrap()), Some(*metric)).unwrap();
        link.routes = routes.iter().map(route).collect();
        link
    }

    fn chosen(links: Vec<Link>) -> Vec<(usize, usize)> {
        let config = NetworkConfig::new(links).unwrap();
        DefaultRoutes::of(&config).ipv4.into_iter().map(|(link, route)| (link.0, route)).collect()
    }

    #[test]
    fn of_default_routes_with_equal_metrics_the_first_is_chosen() {
        let one = nic("a", &["10.0.0.5/24"], &[("10.0.0.1", 5), ("10.0.0.2", 4)]);
        let two = nic("b", &["10.1.0.5/24"], &[("10.1.0.1", 4)]);
        assert_eq!(chosen(vec![one, two]), [(0, 1)]);
    }

    #[test]
    fn one_interface_under_two_names_keeps_its_gateway_on_both_links() {
        let one = nic("a", &["10.0.0.5/24"], &[("10.0.0.1", 0)]);
        let two = nic("b", &["10.0.0.9/24", "10.0.0.5/24"], &[("10.0.0.1", 0), ("10.0.0.1", 7)]);
        assert_eq!(chosen(vec![one.clone(), two.clone()]), [(0, 0), (1, 0)]);
        let config = NetworkConfig::new(vec![one, two]).unwrap();
        let names: Vec<(LinkIndex, LinkIndex)> = DefaultRoutes::of(&config).other_names().collect();
        assert_eq!(names, [(LinkIndex(1), LinkIndex(0))]);
    }

    #[test]
    fn links_with_different_gateways_or_addresses_are_not_one_interface() {
        let one = nic("a", &["10.0.0.5/24"], &[("10.0.0.1", 0)]);
        let other_gateway = nic("b", &["10.0.0.5/24"], &[("10.0.0.2", 0)]);
        let other_address = nic("c", &["10.0.0.6/24"], &[("10.0.0.1", 0)]);
        assert_eq!(chosen(vec![one, other_gateway, other_address]), [(0, 0)]);
    }

    #[test]
    fn two_nics_with_their_mac_addresses_are_not_one_interface() {
        let with = |mut link: Link, mac: &str| {
            let mac_address = parse_mac_address(mac).unwrap();
            link.kind = LinkKind::Nic(Nic::MacAddress { mac_address, name: None });
            link
        };
        // Point-to-point links can have one address.
        let [one, two] = ["a", "b"].map(|name| nic(name, &["10.0.0.5/32"], &[("10.0.0.1", 0)]));
        let [first, second] = ["52:54:00:00:00:01", "52:54:00:00:00:02"];
        assert_eq!(chosen(vec![with(one.clone(), first), with(two.clone(), second)]), [(0, 0)]);
        assert_eq!(chosen(vec![with(one, first), two]), [(0, 0), (1, 0)]);
    }

    #[test]
    fn a_default_route_of_a_link_without_an_address_of_its_family_is_not_chosen() {
        let one = nic("a", &[], &[("10.0.0.1", 0)]);
        let two = nic("b", &["10.0.0.5/24"], &[("10.0.0.1", 9)]);
        assert_eq!(chosen(vec![one, two]), [(1, 0)]);
    }
}
