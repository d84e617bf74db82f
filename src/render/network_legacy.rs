//! Renders kernel arguments for dracut's own scripts, the module `network-legacy`
//! (`dracut-ng/dracut:modules.d/35network-legacy/`).
//!
//! The scripts accept one `ip=` for a link and stop the boot at a second `ip=`. So each link keeps one address, or one
//! method to get addresses. These rules choose what the link keeps, so that the machine stays reachable:
//!
//! - If the link has both families, IPv4 is kept. IPv6 is kept instead if only IPv6 has a static address together with
//!   the default route.
//! - The static address in whose subnet the default gateway lies is kept, or else the first static address.
//! - A static address is preferred to a dynamic address, because a static address needs no server.
//!
//! A warning reports each setting that is lost.

use std::net::IpAddr;

use ipnetwork::IpNetwork;

use super::dracut::{self, Program, Rendered};
use crate::diagnostic::{Diagnostic, Diagnostics};
use crate::network::{DefaultRoutes, Link, LinkIndex, LinkKind, NetworkConfig, Route};

/// Renders a network as kernel arguments for network-legacy, as [`dracut::render`] does it for NetworkManager.
pub fn render(config: &NetworkConfig, diagnostics: &mut Diagnostics) -> Rendered {
    dracut::render_for(Program::NetworkLegacy, &reduce(config, diagnostics), diagnostics)
}

/// Reduces the network to one `ip=` for each link, and adds a route to each gateway that is in no subnet of its link.
fn reduce(config: &NetworkConfig, diagnostics: &mut Diagnostics) -> NetworkConfig {
    let defaults = DefaultRoutes::of(config);
    let mut links = config.links().to_vec();
    for (at, link) in links.iter_mut().enumerate().filter(|(_, link)| link.has_addresses()) {
        let lost = keep_one_address(link, defaults.gateways(config, LinkIndex(at)), diagnostics);
        drop_routes_without(link, &lost, diagnostics);
        ignore_what_needs_a_static_address(link, diagnostics);
    }
    let reduced = with_links(config, links.clone());
    // The loop above may have removed the chosen default route. The next best default route is chosen instead.
    let defaults = DefaultRoutes::of(&reduced);
    for (at, link) in links.iter_mut().enumerate().filter(|(_, link)| link.has_addresses()) {
        add_routes_to_gateways(link, defaults.gateways(&reduced, LinkIndex(at)));
    }
    with_links(config, links)
}

fn with_links(config: &NetworkConfig, links: Vec<Link>) -> NetworkConfig {
    // The references between the links are unchanged, so there is no new contradiction.
    let mut reduced = NetworkConfig::new(links).unwrap_or_default();
    reduced.dns = config.dns.clone();
    reduced.given_names = config.given_names.clone();
    reduced
}

/// Reduces the link to one address or one dynamic method, and returns the static addresses that are lost.
fn keep_one_address(link: &mut Link, gateways: [Option<IpAddr>; 2], diagnostics: &mut Diagnostics) -> Vec<IpNetwork> {
    let mut statics = addresses(link);
    let (ipv4, ipv6) = (&mut link.ipv4, &mut link.ipv6);
    let [is_sure4, is_sure6] = [(gateways[0], ipv4.addresses.is_empty()), (gateways[1], ipv6.addresses.is_empty())]
        .map(|(gateway, is_empty)| gateway.is_some() && !is_empty);
    let keeps_ipv4 = ipv4.is_used() && (is_sure4 || !is_sure6);
    let gateway = gateways[usize::from(!keeps_ipv4)];
    let of_family = || statics.iter().filter(|address| address.is_ipv4() == keeps_ipv4);
    let near = of_family().find(|address| gateway.is_some_and(|gateway| address.contains(gateway)));
    let kept = near.or_else(|| of_family().next()).copied();

    let mut lost: Vec<String> = Vec::new();
    let asks_both = statics.is_empty() && ipv4.dhcp && ipv6.dynamic.is_some();
    statics.retain(|address| Some(*address) != kept);
    lost.extend(statics.iter().map(ToString::to_string));
    if ipv4.dhcp && (kept.is_some() || !keeps_ipv4) {
        ipv4.dhcp = false;
        lost.push("dhcp4".to_owned());
    }
    if let Some(dynamic) = ipv6.dynamic.filter(|_| !asks_both && (kept.is_some() || keeps_ipv4)) {
        ipv6.dynamic = None;
        lost.push(dynamic.to_string());
    }
    if keeps_ipv4 {
        ipv6.link_local = ipv6.link_local.filter(|has_address| !has_address);
    }
    ipv4.addresses.retain(|address| Some(IpNetwork::V4(*address)) == kept);
    ipv4.addresses.truncate(1);
    ipv6.addresses.retain(|address| Some(IpNetwork::V6(*address)) == kept);
    ipv6.addresses.truncate(1);
    if !lost.is_empty() {
        let because = "network-legacy accepts one address on a link";
        diagnostics.push(Diagnostic::ignored(&link.path, lost.join(", "), because));
    }
    if asks_both {
        let expected = "one family: network-legacy requests IPv6 only if no server answers for IPv4";
        diagnostics.push(Diagnostic::warning(&link.path, "dynamic addresses of both families", "dhcp4", expected));
    }
    statics
}

/// Removes the routes of a family that is not kept, and the routes through the subnet of a lost address.
fn drop_routes_without(link: &mut Link, lost: &[IpNetwork], diagnostics: &mut Diagnostics) {
    let own = addresses(link);
    let (has_ipv4, has_ipv6) = (link.ipv4.is_used(), link.ipv6.is_used());
    link.routes.retain(|route| {
        let is_used = if route.destination().is_ipv4() { has_ipv4 } else { has_ipv6 };
        let because = match route.gateway() {
            _ if !is_used => "its link has no address of its family",
            Some(gateway) if !has(&own, gateway) && has(lost, gateway) => {
                "its gateway is in the subnet of an ignored address"
            }
            _ => return true,
        };
        diagnostics.push(Diagnostic::ignored(&route.path, route.destination(), because));
        false
    });
}

/// Adds a route to each gateway outside the subnet of the link's address, except link-local gateways. The scripts add
/// the routes in the order of the arguments, and then set the default route again, which fails without a route to its
/// gateway.
fn add_routes_to_gateways(link: &mut Link, gateways: [Option<IpAddr>; 2]) {
    let own = addresses(link);
    // The sort is stable: of two equal default routes, the first stays the first.
    link.routes.sort_by_key(|route| route.gateway().is_some() || route.is_default());
    let far = link.routes.iter().filter_map(|route| {
        let gateway = route.gateway().filter(|gateway| !has(&own, *gateway))?;
        let is_link_local = matches!(gateway, IpAddr::V6(gateway) if gateway.is_unicast_link_local());
        let is_kept = route.table.is_none() && (!route.is_default() || gateways.contains(&Some(gateway)));
        // With DHCP, the gateway may be in the subnet that the server will assign, so no route is added.
        (is_kept && !is_link_local && (route.on_link || !own.is_empty())).then_some(gateway)
    });
    for gateway in far.collect::<Vec<_>>() {
        let on_link =
            |route: &Route| route.gateway().is_none() && !route.is_default() && route.destination().contains(gateway);
        if !link.routes.iter().any(on_link)
            && let Ok(route) = Route::new(IpNetwork::from(gateway), None, None)
        {
            link.routes.insert(0, route);
        }
    }
}

fn addresses(link: &Link) -> Vec<IpNetwork> {
    let ipv4 = link.ipv4.addresses.iter().copied().map(IpNetwork::V4);
    ipv4.chain(link.ipv6.addresses.iter().copied().map(IpNetwork::V6)).collect()
}

fn has(networks: &[IpNetwork], gateway: IpAddr) -> bool {
    networks.iter().any(|network| network.contains(gateway))
}

/// Warns about the settings that the scripts set only with a static address, and removes them. Also warns about an IPv4
/// default route on a link without a static address, because the route of a DHCP server replaces it.
fn ignore_what_needs_a_static_address(link: &mut Link, diagnostics: &mut Diagnostics) {
    if !addresses(link).is_empty() {
        return;
    }
    let because = "network-legacy sets it only on a link with a static address";
    if let Some(mac_address) = link.cloned_mac_address.take() {
        diagnostics.push(Diagnostic::ignored(&link.path, mac_address, because));
    }
    // `bond=` has the MTU of a bond, so this MTU is not lost.
    if let Some(mtu) = link.mtu.filter(|_| !link.ipv4.dhcp && !matches!(link.kind, LinkKind::Bond { .. })) {
        link.mtu = None;
        diagnostics.push(Diagnostic::ignored(format!("{}.mtu", link.path), mtu, because));
    }
    for route in link.routes.iter().filter(|route| route.is_default() && route.destination().is_ipv4()) {
        let expected = "no default route from the DHCP server: network-legacy prefers the server's route";
        diagnostics.push(Diagnostic::warning(
            &route.path,
            "default route together with DHCP",
            route.gateway().map_or_else(|| "on-link".to_owned(), |gateway| gateway.to_string()),
            expected,
        ));
    }
}
