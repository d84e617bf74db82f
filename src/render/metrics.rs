//! Chooses the metrics of routes.

use std::collections::BTreeSet;
use std::net::IpAddr;

use crate::network::{Link, NetworkConfig, Route};

/// Chooses the metric of each route of each link. `None` for a route that repeats a better route, and for a route of a
/// family in which its link has no address.
///
/// The kernel keeps one IPv4 route for each destination and metric, and networkd replaces an existing route. Of two
/// default routes without a metric, on two NICs, only the second would stay. So each of several routes to one
/// destination gets a higher metric than the route before it. The routes are ordered by the metric in the document;
/// routes with equal metrics keep the order of the document.
///
/// The kernel gives an IPv6 route without a metric the metric 1024. Routes that routers advertise have the same metric.
/// So an IPv6 route gets at least metric 1, and a route without a metric in the document is preferred to advertised
/// routes.
pub(super) fn metrics(config: &NetworkConfig) -> Vec<Vec<Option<u32>>> {
    let mut metrics: Vec<Vec<Option<u32>>> = config.links().iter().map(|link| vec![None; link.routes.len()]).collect();
    let mut all: Vec<(&Route, usize, usize)> = Vec::new();
    for (link, it) in config.links().iter().enumerate() {
        let routes = it.routes.iter().enumerate().filter(|(_, route)| it.can_route(route));
        all.extend(routes.map(|(at, route)| (route, link, at)));
    }
    let same = |route: &Route| (route.table.unwrap_or(0), route.destination());
    // The sort is stable: routes with equal metrics keep the order of the document.
    all.sort_by_key(|(route, ..)| (same(route), route.metric().unwrap_or(0)));
    let mut before: Option<(&Route, u32)> = None;
    let mut ways: BTreeSet<(usize, Option<IpAddr>)> = BTreeSet::new();
    for (route, link, at) in all {
        let least = u32::from(!route.destination().is_ipv4());
        let least = match before {
            Some((last, metric)) if same(last) == same(route) => metric.saturating_add(1),
            _ => {
                ways.clear();
                least
            }
        };
        if !ways.insert((link, route.gateway())) {
            continue;
        }
        let metric = route.metric().unwrap_or(0).max(least);
        metrics[link][at] = Some(metric);
        before = Some((route, metric));
    }
    metrics
}

/// Returns whether a static address of the link has the gateway in its subnet. For a link-local gateway, any static
/// IPv6 address is enough. If the result is `false`, the route must be marked as on-link: otherwise the kernel refuses
/// the route, and networkd does not set the route before the link has such an address.
pub(super) fn is_reachable(link: &Link, gateway: IpAddr) -> bool {
    match gateway {
        IpAddr::V4(gateway) => link.ipv4.addresses.iter().any(|network| network.contains(gateway)),
        IpAddr::V6(gateway) => {
            let is_link_local = gateway.is_unicast_link_local();
            link.ipv6.addresses.iter().any(|network| is_link_local || network.contains(gateway))
        }
    }
}
