//! Writes a network as network-config, version 2, for a NoCloud drive.
//!
//! The text is JSON, which every YAML parser accepts. Only networks that an OpenStack document can describe are
//! written: NICs that have a MAC address or a name, bonds and VLANs. Our own reader parses the text again, to check
//! that the text describes the same network.

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;

use crate::diagnostic::{Diagnostic, Diagnostics};
use crate::formats::value::{Object, Value};
use crate::formats::{Meaning, read_network};
use crate::network::{
    BondOptions, DefaultRoutes, Dns, DomainName, InterfaceName, Ipv6Dynamic, Link, LinkIndex, LinkKind, Located,
    NetworkConfig, Nic, Route, RoutingRule,
};

/// The bond options that netplan has: the kernel's name, and the name in netplan.
const BOND_OPTIONS: &[(&str, &str)] = &[
    ("ad_select", "ad-select"),
    ("all_slaves_active", "all-slaves-active"),
    ("arp_all_targets", "arp-all-targets"),
    ("arp_interval", "arp-interval"),
    ("arp_validate", "arp-validate"),
    ("downdelay", "down-delay"),
    ("fail_over_mac", "fail-over-mac-policy"),
    ("lacp_rate", "lacp-rate"),
    ("lp_interval", "learn-packet-interval"),
    ("miimon", "mii-monitor-interval"),
    ("min_links", "min-links"),
    ("num_grat_arp", "gratuitous-arp"),
    ("packets_per_slave", "packets-per-slave"),
    ("primary_reselect", "primary-reselect-policy"),
    ("resend_igmp", "resend-igmp"),
    ("updelay", "up-delay"),
    ("xmit_hash_policy", "transmit-hash-policy"),
];

/// Values of bond options that the kernel supports and netplan does not.
const KERNELS_OWN: [&str; 4] = ["filter", "filter_active", "filter_backup", "vlan+srcmac"];

const INEXPRESSIBLE: &str = "network-config cannot express it";

/// Writes a network as network-config, version 2. Returns the text on one line, and a warning for each setting that the
/// format cannot express and that is not essential.
///
/// # Errors
///
/// Diagnostics of the essential settings that the format cannot express.
pub fn write_network_config(network: &NetworkConfig) -> Result<(String, Vec<Diagnostic>), Diagnostics> {
    let mut diagnostics = Diagnostics::default();
    let network = expressible(network, &mut diagnostics)?;
    let text = serde_json::to_string(&spell(&network)).unwrap_or_default();
    let reading = read_network(text.as_bytes());
    let read = match reading.meaning {
        Meaning::Network(read) => read,
        Meaning::Unconfigured | Meaning::Disabled => NetworkConfig::default(),
        Meaning::Refused => return Err(reading.diagnostics),
    };
    if bare(&read) != bare(&network) {
        let expected = "a network that is the same when it is read again";
        diagnostics.push(Diagnostic::error("document", "not expressible as", "network-config", expected));
        return Err(diagnostics);
    }
    Ok((text, diagnostics.into_parts().0))
}

/// Changes the network to a network that the format can express: the links are sorted by section, and each name server
/// is on a link. Settings that the format cannot express are removed.
fn expressible(network: &NetworkConfig, diagnostics: &mut Diagnostics) -> Result<NetworkConfig, Diagnostics> {
    let order = order(network);
    let place = |at: &LinkIndex| LinkIndex(order.iter().position(|old| old == at).unwrap_or_default());
    let mut links: Vec<Link> = Vec::new();
    for at in &order {
        let mut link = network.link(*at).clone();
        link.kind = match link.kind {
            LinkKind::Bond { name, ports, options } => {
                let options = bond_options(&options, &place, diagnostics);
                LinkKind::Bond { name, ports: ports.iter().map(place).collect(), options }
            }
            LinkKind::Vlan { name, parent, id } => LinkKind::Vlan { name, parent: place(&parent), id },
            kind @ LinkKind::Nic(Nic::MacAddress { .. } | Nic::Name(_)) => kind,
            kind @ (LinkKind::Nic(Nic::Pattern { .. }) | LinkKind::Bridge { .. }) => {
                let expected = "a NIC with a MAC address or a name, a bond or a VLAN";
                diagnostics.push(Diagnostic::error(&link.path, "unsupported link", &link.id, expected));
                kind
            }
        };
        router_advertisements(&mut link, diagnostics);
        for route in 0..link.routes.len() {
            let is_far = link.routes[route].gateway().is_some_and(|gateway| is_far(&link, gateway));
            link.routes[route].on_link |= is_far;
        }
        links.push(link);
    }
    name_vlans(&mut links, diagnostics);
    place_dns(&network.dns, &mut links, diagnostics);
    drop_other_default_routes(network, &order, &mut links, diagnostics);
    if diagnostics.has_errors() {
        return Err(std::mem::take(diagnostics));
    }
    // Neither the new order of the links nor a removed setting causes a contradiction.
    Ok(NetworkConfig::new(links).unwrap_or_default())
}

/// Removes the unused default routes, if the order of the sections would change the machine's default route: of several
/// default routes of a family with equal metrics, the first in the document counts.
fn drop_other_default_routes(
    network: &NetworkConfig,
    order: &[LinkIndex],
    links: &mut [Link],
    diagnostics: &mut Diagnostics,
) {
    let chosen = DefaultRoutes::of(network);
    let sorted = NetworkConfig::new(links.to_vec()).unwrap_or_default();
    if DefaultRoutes::of(&sorted).links().map(|link| order[link.0]).eq(chosen.links()) {
        return;
    }
    for (link, at) in links.iter_mut().zip(order) {
        let mut index = 0;
        link.routes.retain(|route| {
            let is_kept = chosen.has(*at, index) || !route.is_default() || route.table.is_some();
            index += 1;
            if !is_kept {
                let because = "another default route comes first, and network-config cannot express the order";
                diagnostics.push(Diagnostic::ignored(&route.path, route.destination(), because));
            }
            is_kept
        });
    }
}

/// Returns the links sorted by section. The section with the machine's default route comes first: among default routes
/// with equal metrics, the first one counts.
fn order(network: &NetworkConfig) -> Vec<LinkIndex> {
    let chosen = DefaultRoutes::of(network);
    let first = chosen.links().map(|link| section(network.link(link)));
    let sections: Vec<&str> = first.chain(["ethernets", "bonds", "vlans"]).collect();
    let mut order: Vec<LinkIndex> = (0..network.links().len()).map(LinkIndex).collect();
    order.sort_by_key(|at| sections.iter().position(|other| *other == section(network.link(*at))));
    order
}

/// The section of a link in network-config.
fn section(link: &Link) -> &'static str {
    match link.kind {
        LinkKind::Nic(_) => "ethernets",
        LinkKind::Bond { .. } => "bonds",
        LinkKind::Bridge { .. } => "bridges",
        LinkKind::Vlan { .. } => "vlans",
    }
}

/// Returns the bond options that netplan can express, and warns about all others.
fn bond_options(
    options: &BondOptions,
    place: &dyn Fn(&LinkIndex) -> LinkIndex,
    diagnostics: &mut Diagnostics,
) -> BondOptions {
    let mut kept = BondOptions::new(options.mode);
    kept.primary = options.primary.as_ref().map(place);
    kept.arp_ip_target.clone_from(&options.arp_ip_target);
    for option in options.others() {
        let is_known = BOND_OPTIONS.iter().any(|(kernels, _)| *kernels == option.name);
        if !is_known || KERNELS_OWN.contains(&option.value.as_str()) || kept.set(option.name, &option.value).is_err() {
            let path = format!("{}.bond_{}", options.path, option.name);
            diagnostics.push(Diagnostic::ignored(path, &option.value, INEXPRESSIBLE));
        }
    }
    kept
}

/// Replaces SLAAC and stateless DHCPv6 with `accept-ra`: the format has no other setting for router advertisements.
fn router_advertisements(link: &mut Link, diagnostics: &mut Diagnostics) {
    let ipv6 = &mut link.ipv6;
    match ipv6.dynamic {
        None | Some(Ipv6Dynamic::StatefulDhcp) => return,
        Some(Ipv6Dynamic::Slaac) => {}
        Some(dynamic @ Ipv6Dynamic::StatelessDhcp) => {
            let because = "network-config cannot express it: router advertisements alone give the settings";
            diagnostics.push(Diagnostic::ignored(&link.path, dynamic, because));
        }
    }
    ipv6.accept_ra = Some(true);
    // The reader interprets `accept-ra` as a request for an address only if the link has no other IPv6 address.
    ipv6.dynamic = ipv6.addresses.is_empty().then_some(Ipv6Dynamic::Slaac);
}

/// Whether a gateway is certainly outside of all subnets of its link. Without a static address of the family, or with
/// dynamic addresses, not all subnets are known, and the result is `false`.
fn is_far(link: &Link, gateway: IpAddr) -> bool {
    match gateway {
        IpAddr::V4(gateway) => {
            let addresses = &link.ipv4.addresses;
            !link.ipv4.dhcp && !addresses.is_empty() && !addresses.iter().any(|address| address.contains(gateway))
        }
        IpAddr::V6(gateway) => {
            let addresses = &link.ipv6.addresses;
            let is_near = gateway.is_unicast_link_local() || addresses.iter().any(|address| address.contains(gateway));
            link.ipv6.dynamic.is_none() && !addresses.is_empty() && !is_near
        }
    }
}

/// Gives every VLAN a name, because the key of a VLAN is its name. The name is from the document, or consists of the
/// parent's name and the VLAN id, or of a number and the VLAN id. Also reports a name of two links that are not VLANs.
fn name_vlans(links: &mut [Link], diagnostics: &mut Diagnostics) {
    let mut taken = BTreeSet::new();
    for link in links.iter().filter(|link| !matches!(link.kind, LinkKind::Vlan { .. })) {
        if let Some(name) = name(link).filter(|name| !taken.insert(*name)) {
            let expected = "a name that no other link has";
            diagnostics.push(Diagnostic::error(&link.name_path, "repeated name", name, expected));
        }
    }
    // The parent of a VLAN may be a later VLAN, which has no name yet.
    for at in 0..links.len() {
        let LinkKind::Vlan { name: requested, parent, id } = links[at].kind else { continue };
        let after_parent = name(&links[parent.0]).map(|parent| format!("{parent}.{id}"));
        let numbered = (0..=links.len()).map(|number| format!("v{number}.{id}"));
        let candidates = requested.map(|name| name.to_string()).into_iter().chain(after_parent).chain(numbered);
        let free = candidates.filter_map(|name| name.parse::<InterfaceName>().ok()).find(|name| taken.insert(*name));
        if let Some(requested) = requested.filter(|requested| Some(*requested) != free) {
            let because = "another link has the name";
            diagnostics.push(Diagnostic::ignored(&links[at].name_path, requested, because));
        }
        links[at].kind = LinkKind::Vlan { name: free, parent, id };
    }
}

/// The name that a link has or gets.
fn name(link: &Link) -> Option<InterfaceName> {
    match link.kind {
        LinkKind::Nic(Nic::Name(name)) | LinkKind::Bond { name, .. } | LinkKind::Bridge { name, .. } => Some(name),
        LinkKind::Nic(Nic::MacAddress { name, .. } | Nic::Pattern { name, .. }) | LinkKind::Vlan { name, .. } => name,
    }
}

/// Puts the name servers and search domains of the machine on a link with a default route, else on a link with an
/// address. The format has no name servers for the whole machine.
fn place_dns(dns: &Dns, links: &mut [Link], diagnostics: &mut Diagnostics) {
    let is_used = |link: &Link| link.has_addresses();
    let routes = |link: &Link| is_used(link) && link.routes.iter().any(Route::is_default);
    match links.iter().position(routes).or_else(|| links.iter().position(is_used)) {
        Some(at) => {
            let own = &mut links[at].dns;
            add(&mut own.nameservers, &dns.nameservers);
            add(&mut own.search, &dns.search);
        }
        None => {
            let because = "network-config has name servers and search domains only on a link with an address";
            for server in &dns.nameservers {
                diagnostics.push(Diagnostic::ignored(&server.path, server, because));
            }
            for domain in &dns.search {
                diagnostics.push(Diagnostic::ignored(&domain.path, domain, because));
            }
        }
    }
}

/// Adds values of the machine before the values of a link, without repeats.
fn add<T: Clone + PartialEq>(own: &mut Vec<Located<T>>, machines: &[Located<T>]) {
    own.retain(|value| !machines.iter().any(|other| other.value == value.value));
    own.splice(0..0, machines.iter().cloned());
}

/// Whether a guest gets the same network from two documents. Paths in the documents are not compared. Names of NICs
/// that are identified by their MAC addresses are not compared either, because version 0.2.0 did not write these names.
#[doc(hidden)]
#[must_use]
pub fn have_same_network(one: &[u8], other: &[u8]) -> bool {
    if one == other {
        return true;
    }
    match (read_network(one).meaning, read_network(other).meaning) {
        (Meaning::Network(one), Meaning::Network(other)) => unnamed(&one) == unnamed(&other),
        _ => false,
    }
}

/// Returns the parts of a network that [`have_same_network`] compares.
fn unnamed(network: &NetworkConfig) -> (Vec<Link>, Vec<IpAddr>, Vec<DomainName>) {
    let mut links = bare(network).links().to_vec();
    for link in &mut links {
        if let LinkKind::Nic(Nic::MacAddress { name, .. }) = &mut link.kind {
            *name = None;
        }
    }
    let nameservers = network.dns.nameservers.iter().map(|server| server.value).collect();
    (links, nameservers, network.dns.search.iter().map(|domain| domain.value.clone()).collect())
}

/// Returns a network with the same links, but without paths and ids, which differ between documents, and without the
/// name servers and search domains of the whole machine.
fn bare(network: &NetworkConfig) -> NetworkConfig {
    let mut links = network.links().to_vec();
    for link in &mut links {
        (link.id, link.path, link.name_path) = Default::default();
        link.routes.iter_mut().for_each(|route| route.path.clear());
        link.routing_policy.iter_mut().for_each(|rule| rule.path.clear());
        link.dns.nameservers.iter_mut().for_each(|server| server.path.clear());
        link.dns.search.iter_mut().for_each(|domain| domain.path.clear());
        if let LinkKind::Bond { options, .. } = &mut link.kind {
            options.path.clear();
        }
    }
    NetworkConfig::new(links).unwrap_or_default()
}

fn spell(network: &NetworkConfig) -> Object {
    let mut document = Object::default();
    document.insert("version", Value::Integer(2));
    let keys = keys(network.links());
    let key = |at: &LinkIndex| text(&keys[at.0]);
    for (link, own_key) in network.links().iter().zip(&keys) {
        let mut device = Object::default();
        match &link.kind {
            LinkKind::Nic(Nic::MacAddress { mac_address, name }) => {
                device.insert("match", object([("macaddress", text(mac_address))]));
                if let Some(name) = name {
                    device.insert("set-name", text(name));
                }
            }
            LinkKind::Bond { ports, options, .. } => {
                device.insert("interfaces", Value::Array(ports.iter().map(key).collect()));
                device.insert("parameters", Value::Object(spell_bond_options(options, &key)));
            }
            LinkKind::Vlan { parent, id, .. } => {
                device.insert("id", number(id));
                device.insert("link", key(parent));
            }
            LinkKind::Nic(Nic::Name(_) | Nic::Pattern { .. }) | LinkKind::Bridge { .. } => {}
        }
        spell_settings(link, &mut device);
        let section = section(link);
        match document.get_mut(section) {
            Some(Value::Object(devices)) => devices.insert(own_key, Value::Object(device)),
            _ => document.insert(section, object([(own_key, Value::Object(device))])),
        }
    }
    document
}

/// Returns the key of each link, by which other links refer to the link. The key is the name of the link. A NIC that
/// has only a MAC address gets its id as the key, if the id is an interface name: cloud-init interprets the key as the
/// name of the NIC. Without such an id, the key is `id` with a number.
fn keys(links: &[Link]) -> Vec<String> {
    let mut taken: BTreeSet<String> = links.iter().filter_map(name).map(|name| name.to_string()).collect();
    // `lo` is the key of the loopback device, so no other device gets this key.
    taken.insert("lo".to_owned());
    let key = |link: &Link| match name(link) {
        Some(name) => name.to_string(),
        None => {
            let id = Some(link.id.clone()).filter(|id| id.parse::<InterfaceName>().is_ok());
            let numbered = (0..=links.len()).map(|number| format!("id{number}"));
            id.into_iter().chain(numbered).find(|key| taken.insert(key.clone())).unwrap_or_default()
        }
    };
    links.iter().map(key).collect()
}

fn spell_bond_options(options: &BondOptions, key: &dyn Fn(&LinkIndex) -> Value) -> Object {
    let mut spelled = Object::default();
    spelled.insert("mode", text(options.mode));
    for option in options.others() {
        let Some((_, name)) = BOND_OPTIONS.iter().find(|(kernels, _)| *kernels == option.name) else { continue };
        let is_switch = option.name == "all_slaves_active";
        spelled.insert(name, if is_switch { Value::Bool(option.value == "1") } else { number(&option.value) });
    }
    if let Some(primary) = &options.primary {
        spelled.insert("primary", key(primary));
    }
    if !options.arp_ip_target.is_empty() {
        spelled.insert("arp-ip-targets", texts(&options.arp_ip_target));
    }
    spelled
}

fn spell_settings(link: &Link, device: &mut Object) {
    let Link { mtu, cloned_mac_address, ipv4, ipv6, dns, routes, routing_policy, without_addresses, .. } = link;
    if let Some(address) = cloned_mac_address {
        device.insert("macaddress", text(address));
    }
    if let Some(mtu) = mtu {
        device.insert("mtu", number(mtu));
    }
    if ipv4.dhcp || *without_addresses {
        device.insert("dhcp4", Value::Bool(ipv4.dhcp));
    }
    if ipv6.dynamic == Some(Ipv6Dynamic::StatefulDhcp) {
        device.insert("dhcp6", Value::Bool(true));
    }
    if let Some(has_address) = ipv6.link_local {
        device.insert("link-local", if has_address { texts(&["ipv6"]) } else { Value::Array(Vec::new()) });
    }
    if let Some(accepts) = ipv6.accept_ra {
        device.insert("accept-ra", Value::Bool(accepts));
    }
    let addresses: Vec<Value> = ipv4.addresses.iter().map(text).chain(ipv6.addresses.iter().map(text)).collect();
    if !addresses.is_empty() {
        device.insert("addresses", Value::Array(addresses));
    }
    if !routes.is_empty() {
        device.insert("routes", Value::Array(routes.iter().map(spell_route).collect()));
    }
    if !routing_policy.is_empty() {
        device.insert("routing-policy", Value::Array(routing_policy.iter().map(spell_rule).collect()));
    }
    let mut servers = Object::default();
    if !dns.nameservers.is_empty() {
        servers.insert("addresses", texts(&dns.nameservers));
    }
    if !dns.search.is_empty() {
        servers.insert("search", texts(&dns.search));
    }
    if !servers.is_empty() {
        device.insert("nameservers", Value::Object(servers));
    }
}

fn spell_route(route: &Route) -> Value {
    let mut spelled = Object::default();
    spelled.insert("to", text(route.destination()));
    if let Some(gateway) = route.gateway() {
        spelled.insert("via", text(gateway));
    }
    if let Some(metric) = route.metric() {
        spelled.insert("metric", Value::Integer(metric.into()));
    }
    if route.on_link {
        spelled.insert("on-link", Value::Bool(true));
    }
    if let Some(table) = route.table {
        spelled.insert("table", Value::Integer(table.into()));
    }
    Value::Object(spelled)
}

fn spell_rule(rule: &RoutingRule) -> Value {
    let mut spelled = Object::default();
    for (name, network) in [("from", rule.from()), ("to", rule.to())] {
        if let Some(network) = network {
            spelled.insert(name, text(network));
        }
    }
    let type_of_service = rule.type_of_service.map(u32::from);
    let numbers =
        [("table", rule.table), ("priority", rule.priority), ("mark", rule.mark), ("type-of-service", type_of_service)];
    for (name, given) in numbers {
        if let Some(given) = given {
            spelled.insert(name, Value::Integer(given.into()));
        }
    }
    Value::Object(spelled)
}

fn text(value: impl fmt::Display) -> Value {
    Value::String(value.to_string())
}

/// Returns the value as a number if it is a whole number, else as a string.
fn number(value: impl fmt::Display) -> Value {
    let value = value.to_string();
    value.parse().map_or_else(|_| text(&value), Value::Integer)
}

fn texts<T: fmt::Display>(values: &[T]) -> Value {
    Value::Array(values.iter().map(text).collect())
}

fn object<const N: usize>(members: [(&str, Value); N]) -> Value {
    Value::Object(members.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
}
