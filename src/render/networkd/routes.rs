//! The metrics of routes.

use std::collections::BTreeSet;
use std::net::IpAddr;

use crate::network::{Link, NetworkConfig, Route};

/// The metric of each route of each link; `None` for a route that says only once more what a better one says, and
/// for one of a family that its link has not.
///
/// The kernel has one IPv4 route of a destination and a metric, and networkd replaces the one that is there: of two
/// default routes without a metric, on two cards, only the second one would be left. So of several routes to one
/// destination each gets a metric above the last one's, in the order of those that the document gives, else in its own.
///
/// An IPv6 route without a metric would get 1024 of the kernel, as those that routers advertise have: 1 is preferred.
pub(super) fn metrics(config: &NetworkConfig) -> Vec<Vec<Option<u32>>> {
    let mut metrics: Vec<Vec<Option<u32>>> = config.links().iter().map(|link| vec![None; link.routes.len()]).collect();
    let mut all: Vec<(&Route, usize, usize)> = Vec::new();
    for (link, it) in config.links().iter().enumerate() {
        let routes = it.routes.iter().enumerate().filter(|(_, route)| it.can_route(route));
        all.extend(routes.map(|(at, route)| (route, link, at)));
    }
    let same = |route: &Route| (route.table.unwrap_or(0), route.destination());
    // Stable: of equal ones the first of the document stays the first.
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

/// Whether the link has an address in the subnet of a gateway. Else networkd waits for one before it sets the route, and
/// the kernel refuses it. Beside no static address networkd wants to be told even of a link-local gateway.
pub(super) fn is_reachable(link: &Link, gateway: IpAddr) -> bool {
    match gateway {
        IpAddr::V4(gateway) => link.ipv4.addresses.iter().any(|network| network.contains(gateway)),
        IpAddr::V6(gateway) => {
            let is_link_local = gateway.is_unicast_link_local();
            link.ipv6.addresses.iter().any(|network| is_link_local || network.contains(gateway))
        }
    }
}
