//! Derives from a network model the profiles that kernel arguments can express.
//!
//! The comparison with cloud-init checks that the model matches its document.

use std::collections::BTreeSet;
use std::net::IpAddr;

use glowplug::network::{Link, LinkIndex, LinkKind, NetworkConfig, Nic, Route};
use ipnetwork::IpNetwork;

use crate::support::documents::DefaultRoute;
use crate::support::profiles::{Cidr, DeviceKey, Method, Profile, Profiles};

/// The meaning of a network, as far as kernel arguments for NetworkManager can express it.
pub(crate) struct Meaning {
    pub(crate) profiles: Profiles,
    /// All default routes, in the order of preference.
    pub(crate) defaults: Vec<DefaultRoute>,
    /// Destinations and gateways of routes whose gateway is on the link, even if no address of the link can reach the gateway.
    pub(crate) on_link: OnLink,
}

pub(crate) type OnLink = BTreeSet<(Cidr, IpAddr)>;

/// Returns the meaning of a network. `None`: arguments cannot express the network, because they cannot match NICs by a
/// pattern. An argument applies either to one NIC or to every NIC.
pub(crate) fn meaning(config: &NetworkConfig) -> Option<Meaning> {
    let indices = || (0..config.links().len()).map(LinkIndex::new);
    let is_pattern = |at: LinkIndex| matches!(config.link(at).kind, LinkKind::Nic(Nic::Pattern { .. }));
    let asking = indices().filter(|at| asks(config.link(*at))).count();
    // Several patterns with the same settings are expressed as "every NIC".
    let first = indices().find(|at| asks(config.link(*at)));
    let is_same = |at: LinkIndex| first.is_some_and(|first| asks_the_same(config.link(first), config.link(at)));
    let are_the_same = indices().filter(|at| asks(config.link(*at))).all(|at| is_pattern(at) && is_same(at));
    let is_unsayable = |at: LinkIndex| {
        let is_used = config.controller_of(at).is_some() || config.carries_vlans(at);
        is_pattern(at) && (is_used || asking > 1 && asks(config.link(at)) && !are_the_same)
    };
    if indices().any(is_unsayable) {
        return None;
    }
    let defaults = defaults(config);
    let mut profiles = Profiles::default();
    for at in indices().filter(|at| is_made(config, *at)) {
        let is_needed = config.controller_of(at).is_some() || config.carries_vlans(at);
        // Arguments can express a pattern of NICs without addresses only if no link has settings: one argument then
        // applies to every NIC.
        let is_stated = config.link(at).without_addresses && (asking == 0 || !is_pattern(at));
        if is_needed || is_stated || asks(config.link(at)) {
            profiles.0.insert(key(config, at), profile(config, at, &defaults));
        }
    }
    let routes = config.links().iter().flat_map(|link| link.routes.iter().filter(|route| is_expressible(link, route)));
    let on_link = routes.filter(|route| route.on_link);
    let on_link = on_link.filter_map(|route| Some((cidr(route.destination()), route.gateway()?))).collect();
    Some(Meaning { profiles, defaults, on_link })
}

/// Whether two links have the same settings.
fn asks_the_same(one: &Link, other: &Link) -> bool {
    let families = |link: &Link| {
        let (ipv4, ipv6) = (&link.ipv4, &link.ipv6);
        let has_link_local = ipv6.link_local == Some(true);
        let dynamic = (ipv4.dhcp, ipv6.dynamic, has_link_local);
        (dynamic, ipv4.addresses.clone(), ipv6.addresses.clone(), link.mtu, link.cloned_mac_address)
    };
    let routes = |link: &Link| {
        let route = |route: &Route| (route.destination(), route.gateway(), route.table);
        link.routes.iter().map(route).collect::<Vec<_>>()
    };
    families(one) == families(other) && routes(one) == routes(other)
}

/// Whether a link has any settings.
fn asks(link: &Link) -> bool {
    let is_nic = matches!(link.kind, LinkKind::Nic(_));
    !is_nic || link.has_addresses() || link.mtu.is_some() || link.cloned_mac_address.is_some()
}

/// Whether arguments can create a link. Arguments cannot create a bridge without ports.
fn is_made(config: &NetworkConfig, at: LinkIndex) -> bool {
    match &config.link(at).kind {
        LinkKind::Nic(_) | LinkKind::Bond { .. } => true,
        LinkKind::Bridge { ports, .. } => ports.iter().any(|port| is_made(config, *port)),
        LinkKind::Vlan { parent, .. } => is_made(config, *parent),
    }
}

fn key(config: &NetworkConfig, at: LinkIndex) -> DeviceKey {
    let keys = |ports: &[LinkIndex]| {
        let made = ports.iter().filter(|port| is_made(config, **port));
        let mut keys: Vec<String> = made.map(|port| key(config, *port).bare()).collect();
        keys.sort_unstable();
        keys
    };
    match &config.link(at).kind {
        LinkKind::Nic(Nic::MacAddress { mac_address, .. }) => DeviceKey::Nic(mac_address.to_string()),
        LinkKind::Nic(Nic::Name(name)) => DeviceKey::Nic(name.to_string()),
        LinkKind::Nic(Nic::Pattern { .. }) => DeviceKey::Any,
        LinkKind::Bond { ports, .. } => DeviceKey::Bond(keys(ports)),
        LinkKind::Bridge { ports, .. } => DeviceKey::Bridge(keys(ports)),
        LinkKind::Vlan { parent, id, .. } => {
            DeviceKey::Vlan(Box::new(key(config, *parent)), id.to_string().parse().unwrap())
        }
    }
}

fn profile(config: &NetworkConfig, at: LinkIndex, defaults: &[DefaultRoute]) -> Profile {
    let link = config.link(at);
    let mtu = link.mtu.map(|mtu| mtu.to_string().parse().unwrap());
    let mut profile = Profile { mtu, ..Profile::default() };
    match &link.kind {
        LinkKind::Nic(_) => {}
        LinkKind::Bridge { name, .. } => profile.name = Some(name.to_string()),
        LinkKind::Bond { name, options, .. } => {
            profile.name = Some(name.to_string());
            let further = options.others().iter().map(|option| (option.name, option.value.clone()));
            // An argument accepts only one ARP target.
            let target = options.arp_ip_target().first().map(|target| ("arp_ip_target", target.to_string()));
            let primary = options.primary().map(|port| ("primary", key(config, port).bare()));
            let all = further.chain(target).chain(primary).chain([("mode", options.mode().to_string())]);
            profile.bond_options = all.map(|(name, value)| (name.to_owned(), value)).collect();
        }
        LinkKind::Vlan { name, id, .. } => {
            // NetworkManager reads the VLAN id from the digits at the end of the name.
            let says_id =
                |name: &str| name[name.trim_end_matches(|c: char| c.is_ascii_digit()).len()..] == id.to_string();
            profile.name = name.as_ref().map(ToString::to_string).filter(|name| says_id(name));
        }
    }
    if let Some(controller) = config.controller_of(at) {
        profile.port_of = Some(key(config, controller));
        // A bond member or bridge port has no settings of its own, and only a bond keeps its MTU.
        profile.mtu = profile.mtu.filter(|_| matches!(link.kind, LinkKind::Bond { .. }));
        return profile;
    }
    profile.cloned_mac = link.cloned_mac_address.map(|mac| mac.to_string());
    set_families(&mut profile, link);
    let servers = name_servers(config);
    for (family, ipv4) in [(&mut profile.ipv4, true), (&mut profile.ipv6, false)] {
        if family.method == Method::Disabled {
            continue;
        }
        // NetworkManager adds no name server to a profile that has only a link-local address.
        if family.method != Method::LinkLocal {
            family.dns = servers.iter().copied().filter(|server| server.is_ipv4() == ipv4).collect();
        }
        let routes = link.routes.iter().filter(|route| is_expressible(link, route) && !route.is_default());
        let routes = routes.filter(|route| route.destination().is_ipv4() == ipv4);
        family.routes.extend(routes.map(|route| (cidr(route.destination()), route.gateway())));
        // No argument can express a metric, so only one default route of a family is kept.
        let best = defaults.iter().find(|default| default.ipv4 == ipv4);
        let own = |best: &&DefaultRoute| best.key == key(config, at) || is_other_name(config, at, best);
        match best.filter(own) {
            Some(DefaultRoute { via: Some(via), .. }) if !family.addresses.is_empty() => family.gateway = Some(*via),
            Some(DefaultRoute { via, .. }) => _ = family.routes.insert((everything(ipv4), *via)),
            None => {}
        }
    }
    profile
}

/// Whether a link describes the same NIC as the link of the default route. The two links then have an address and the
/// gateway in common.
fn is_other_name(config: &NetworkConfig, at: LinkIndex, best: &DefaultRoute) -> bool {
    let link = config.link(at);
    let mut of_best = (0..config.links().len()).map(LinkIndex::new).filter(|other| key(config, *other) == best.key);
    let shares = |other: LinkIndex| {
        let (ipv4, ipv6) = (&config.link(other).ipv4.addresses, &config.link(other).ipv6.addresses);
        let is_shared4 = link.ipv4.addresses.iter().any(|address| ipv4.contains(address));
        let is_shared6 = link.ipv6.addresses.iter().any(|address| ipv6.contains(address));
        if best.ipv4 { is_shared4 } else { is_shared6 }
    };
    let has_gateway =
        |route: &Route| route.is_default() && route.destination().is_ipv4() == best.ipv4 && route.gateway() == best.via;
    link.routes.iter().any(|route| is_expressible(link, route) && has_gateway(route)) && of_best.any(shares)
}

/// Sets the method and the addresses of both families, and whether each family is required. A family with a static
/// address is required. A dynamic family is required only if it is the only family, because its failure must not stop
/// another family.
fn set_families(profile: &mut Profile, link: &Link) {
    let (dynamic4, dynamic6) = (link.ipv4.dhcp, link.ipv6.dynamic.is_some());
    let (static4, static6) = (!link.ipv4.addresses.is_empty(), !link.ipv6.addresses.is_empty());
    let (ipv4, ipv6) = (&mut profile.ipv4, &mut profile.ipv6);
    (ipv4.method, ipv4.required) = match (dynamic4, static4) {
        (false, false) => (Method::Disabled, false),
        (false, true) => (Method::Manual, true),
        (true, true) => (Method::Auto, true),
        // If IPv6 is static and dynamic, no sequence of arguments tolerates a failure of IPv4.
        (true, false) => (Method::Auto, dynamic6 == static6),
    };
    (ipv6.method, ipv6.required) = match (dynamic6, static6) {
        // No argument requests DHCPv4 without IPv6.
        (false, false) if dynamic4 => (Method::Auto, false),
        (false, false) if link.ipv6.link_local == Some(true) => (Method::LinkLocal, true),
        (false, false) => (Method::Disabled, false),
        (false, true) => (Method::Manual, true),
        (true, true) => (Method::Auto, true),
        (true, false) => (Method::Auto, !dynamic4 && !static4),
    };
    let ignores = [&link.ipv4.dhcp_overrides, &link.ipv6.dhcp_overrides].map(|options| options.use_dns == Some(false));
    ipv4.ignores_dns = dynamic4 && ignores[0];
    ipv6.ignores_dns = if dynamic6 { ignores[1] } else { ipv4.ignores_dns };
    ipv4.addresses = link.ipv4.addresses.iter().map(|address| cidr(IpNetwork::V4(*address))).collect();
    ipv6.addresses = link.ipv6.addresses.iter().map(|address| cidr(IpNetwork::V6(*address))).collect();
}

/// Whether arguments can express a route: the route is in the main table, and its link has or requests an address of
/// the route's family.
fn is_expressible(link: &Link, route: &Route) -> bool {
    let is_used = if route.destination().is_ipv4() { link.ipv4.is_used() } else { link.ipv6.is_used() };
    is_used && route.table.is_none()
}

fn defaults(config: &NetworkConfig) -> Vec<DefaultRoute> {
    let mut defaults = Vec::new();
    for (at, link) in config.links().iter().enumerate() {
        let at = LinkIndex::new(at);
        if config.controller_of(at).is_some() || !is_made(config, at) {
            continue;
        }
        for route in link.routes.iter().filter(|route| is_expressible(link, route) && route.is_default()) {
            let (ipv4, metric) = (route.destination().is_ipv4(), route.metric().unwrap_or(0));
            defaults.push(DefaultRoute { key: key(config, at), ipv4, metric, via: route.gateway() });
        }
    }
    defaults.sort_by_key(|default| default.metric);
    defaults
}

/// Returns every name server once: first the servers of the machine, then the servers of the links.
fn name_servers(config: &NetworkConfig) -> Vec<IpAddr> {
    let of_links = config.links().iter().flat_map(|link| &link.dns.nameservers);
    let mut servers: Vec<IpAddr> = Vec::new();
    for server in config.dns.nameservers.iter().chain(of_links) {
        if !servers.contains(&server.value) {
            servers.push(server.value);
        }
    }
    servers
}

fn cidr(network: IpNetwork) -> Cidr {
    Cidr { address: network.ip(), length: network.prefix() }
}

fn everything(ipv4: bool) -> Cidr {
    let address = if ipv4 { IpAddr::from([0; 4]) } else { IpAddr::from([0; 16]) };
    Cidr { address, length: 0 }
}
