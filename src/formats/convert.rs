//! Checks and conversions that all formats share. Each function turns a value of a document into a value of the model,
//! or adds a diagnostic.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};

use ipnetwork::IpNetwork;
use pnet_base::MacAddr;

use super::address::{self, MASK_EXPECTED, Prefixed, Wrong};
use super::value::{Scalar, Value};
use crate::diagnostic::{Diagnostic, Diagnostics, FieldPath, Severity};
use crate::network::{
    BondMode, BondOptionError, BondOptions, Contradiction, Dns, DomainName, Family, Link, LinkIndex, LinkKind, Located,
    MAC_ADDRESS_EXPECTED, Mtu, NetworkConfig, Nic, Route, RoutingRule, VlanId, parse_mac_address,
};

/// A valid value, or an error that has already been reported.
pub(super) type Reported<T> = Result<T, ()>;

/// The name of a member, and its value; `None` when the member is missing.
pub(super) type Member<'a> = (&'a str, Option<&'a Scalar>);

/// The path of a value, and the value; `None` when the value is missing.
pub(super) type Written<'a> = (FieldPath<'a>, Option<&'a Scalar>);

/// The members of a route in the document, before they are checked.
pub(super) struct WrittenRoute<'a> {
    pub(super) destination: Member<'a>,
    pub(super) netmask: Member<'a>,
    /// The next hop. An empty string counts as missing, but is invalid for a default route.
    pub(super) gateway: Member<'a>,
    pub(super) metric: Member<'a>,
}

/// An option of a bond in the document, before it is checked.
pub(super) struct WrittenOption<'a> {
    pub(super) written: &'a str,
    /// The kernel's name of the option.
    pub(super) name: Cow<'a, str>,
    pub(super) value: Cow<'a, Value>,
}

const NAMESERVER_EXPECTED: &str = "an IP address";
const DESTINATION_EXPECTED: &str = "an address, a CIDR with a length above 0, or default";

/// Reports a value that is unknown or invalid. A missing value has the problem `missing`.
pub(super) fn unknown(
    diagnostics: &mut Diagnostics,
    severity: Severity,
    path: FieldPath<'_>,
    problem: &str,
    written: Option<&Scalar>,
    expected: &str,
) {
    diagnostics.push(match written {
        Some(written) => Diagnostic::new(severity, path, problem, written, expected),
        None => Diagnostic::without_value(severity, path, "missing", expected),
    });
}

/// The value of a field. An empty string counts as missing.
pub(super) fn given(field: Option<&Scalar>) -> Option<&Scalar> {
    field.filter(|value| !value.text().is_empty())
}

pub(super) fn mtu(diagnostics: &mut Diagnostics, path: FieldPath<'_>, written: Option<&Scalar>) -> Option<Mtu> {
    let written = written?;
    let mtu = written.integer().and_then(|mtu| Mtu::try_from(mtu).ok());
    if mtu.is_none() {
        diagnostics.push(Diagnostic::warning(path, "invalid MTU", written, Mtu::EXPECTED));
    }
    mtu
}

pub(super) fn metric(diagnostics: &mut Diagnostics, path: FieldPath<'_>, written: Option<&Scalar>) -> Option<u32> {
    let written = written?;
    let metric = written.integer().and_then(|metric| u32::try_from(metric).ok());
    if metric.is_none() {
        diagnostics.push(Diagnostic::warning(path, "invalid metric", written, "a number from 0 to 4294967295"));
    }
    metric
}

pub(super) fn mac_address(
    diagnostics: &mut Diagnostics,
    path: FieldPath<'_>,
    written: Option<&Scalar>,
) -> Reported<Option<MacAddr>> {
    let Some(written) = given(written) else { return Ok(None) };
    let address = parse_mac_address(&written.text());
    if address.is_none() {
        diagnostics.push(Diagnostic::error(path, "invalid MAC address", written, MAC_ADDRESS_EXPECTED));
    }
    address.map(Some).ok_or(())
}

pub(super) fn vlan_id(
    diagnostics: &mut Diagnostics,
    path: FieldPath<'_>,
    written: Option<&Scalar>,
) -> Reported<VlanId> {
    let id = written.and_then(Scalar::integer).and_then(|id| VlanId::try_from(id).ok());
    if id.is_none() {
        unknown(diagnostics, Severity::Error, path, "invalid VLAN id", written, VlanId::EXPECTED);
    }
    id.ok_or(())
}

/// A static address without a prefix length in the document.
pub(super) struct Guess {
    /// Index of the link in the model.
    pub(super) link: LinkIndex,
    address: IpNetwork,
    path: String,
}

/// Parses a static address. If the family `wanted` is given, the address must belong to this family. An address with a
/// guessed prefix length is added to `guesses`, because the diagnostic depends on the gateways of the link, which are
/// not known yet.
pub(super) fn static_address(
    diagnostics: &mut Diagnostics,
    (path, written): Written<'_>,
    (netmask, mask): Written<'_>,
    wanted: Option<Family>,
    (guesses, link): (&mut Vec<Guess>, Option<LinkIndex>),
) -> Option<IpNetwork> {
    let expected = match wanted {
        Some(Family::Ipv4) => "an IPv4 address of a machine",
        Some(Family::Ipv6) => "an IPv6 address of a machine",
        None => "an IP address of a machine",
    };
    let mask = mask.map(Scalar::text);
    match written.map(|written| address::interface_address(&written.text(), mask.as_deref())) {
        Some(Ok(Prefixed { network, is_guessed }))
            if wanted.is_none_or(|family| family == Family::of(network.ip())) =>
        {
            if let Some(link) = link.filter(|_| is_guessed) {
                guesses.push(Guess { link, address: network, path: path.path() });
            }
            return Some(network);
        }
        Some(Err(Wrong::Mask)) => invalid_mask(diagnostics, netmask, mask),
        _ => unknown(diagnostics, Severity::Error, path, "invalid address", written, expected),
    }
    None
}

fn invalid_mask(diagnostics: &mut Diagnostics, path: FieldPath<'_>, mask: Option<Cow<'_, str>>) {
    diagnostics.push(Diagnostic::error(path, "invalid netmask", mask.unwrap_or_default(), MASK_EXPECTED));
}

pub(super) fn add_address(link: &mut Link, address: IpNetwork) {
    match address {
        IpNetwork::V4(address) if !link.ipv4.addresses.contains(&address) => link.ipv4.addresses.push(address),
        IpNetwork::V6(address) if !link.ipv6.addresses.contains(&address) => link.ipv6.addresses.push(address),
        _ => {}
    }
}

/// Parses a next hop. If a family is given, the next hop must belong to this family. An empty string counts as missing.
pub(super) fn gateway(
    diagnostics: &mut Diagnostics,
    path: FieldPath<'_>,
    written: Option<&Scalar>,
    family: Option<Family>,
) -> Option<IpAddr> {
    let written = given(written)?;
    let gateway = address::host_address(&written.text())
        .filter(|gateway| family.is_none_or(|family| family == Family::of(*gateway)));
    if gateway.is_none() {
        invalid_gateway(diagnostics, path, written, family);
    }
    gateway
}

fn invalid_gateway(diagnostics: &mut Diagnostics, path: FieldPath<'_>, written: &Scalar, family: Option<Family>) {
    let expected = match family {
        Some(Family::Ipv4) => "the IPv4 address of a router",
        Some(Family::Ipv6) => "the IPv6 address of a router",
        None => "the IP address of a router",
    };
    diagnostics.push(Diagnostic::error(path, "invalid gateway", written, expected));
}

/// Makes the default route of a member that names only a gateway, such as `gateway` or `gateway4`.
pub(super) fn default_route(
    diagnostics: &mut Diagnostics,
    path: FieldPath<'_>,
    written: Option<&Scalar>,
    family: Option<Family>,
    metric: Option<u32>,
) -> Option<Route> {
    let gateway = gateway(diagnostics, path, written, family)?;
    Route::new(address::everywhere(Family::of(gateway)), Some(gateway), metric).ok().map(|route| route.at(path.path()))
}

/// Converts a route. The destination `default` belongs to `family` when the route has no usable gateway.
pub(super) fn route(
    diagnostics: &mut Diagnostics,
    path: &FieldPath<'_>,
    route: &WrittenRoute<'_>,
    family: Option<Family>,
) -> Option<Route> {
    let gateway = given(route.gateway.1);
    let hop = gateway.map(|gateway| address::address(&gateway.text()));
    // `default` belongs to the gateway's family. Without a usable gateway, `default` belongs to `family`, or else to
    // IPv4.
    let family = hop.flatten().map(Family::of).or(family).unwrap_or(Family::Ipv4);
    let mask = route.netmask.1.map(Scalar::text);
    let written = route.destination.1;
    let destination = match written.map(|written| address::destination(&written.text(), mask.as_deref(), family)) {
        Some(Ok(Prefixed { network, is_guessed })) => {
            if is_guessed {
                let path = path.field(route.destination.0);
                let expected = format!("a prefix length or a netmask: /{} is used", network.prefix());
                diagnostics.push(Diagnostic::warning(path, "route without a prefix length", network.ip(), &expected));
            }
            Some(network)
        }
        Some(Err(Wrong::Mask)) => {
            invalid_mask(diagnostics, path.field(route.netmask.0), mask);
            None
        }
        Some(Err(Wrong::Address)) | None => {
            let path = path.field(route.destination.0);
            unknown(diagnostics, Severity::Error, path, "invalid network", written, DESTINATION_EXPECTED);
            None
        }
    };
    let metric = metric(diagnostics, path.field(route.metric.0), route.metric.1);
    let family = destination.map(|network| Family::of(network.ip()));
    let at_gateway = path.field(route.gateway.0);
    let gateway = match (hop, route.gateway.1) {
        // A template that did not fill in the gateway would put all addresses on the link.
        (None, Some(empty)) if destination.is_some_and(|network| network.prefix() == 0) => {
            invalid_gateway(diagnostics, at_gateway, empty, family);
            return None;
        }
        (None, _) => None,
        // Older documents write an unspecified gateway such as `0.0.0.0` for no gateway.
        (Some(Some(hop)), _) if hop.is_unspecified() => None,
        (Some(_), _) => Some(self::gateway(diagnostics, at_gateway, gateway, family)?),
    };
    Some(Route::new(destination?, gateway, metric).ok()?.at(path.path()))
}

/// Adds routes to a link. A route of a family without addresses on this link is dropped. A warning reports the dropped
/// route only if `is_sure` is true. If `is_sure` is false, an address of this link may have been dropped because of an
/// error.
pub(super) fn add_routes(diagnostics: &mut Diagnostics, link: &mut Link, routes: Vec<Route>, is_sure: bool) {
    for route in routes {
        let (used, expected) = match route.destination() {
            IpNetwork::V4(_) => (link.ipv4.is_used(), "an IPv4 address on its link"),
            IpNetwork::V6(_) => (link.ipv6.is_used(), "an IPv6 address on its link"),
        };
        if used {
            link.routes.push(route);
        } else if is_sure {
            let (path, destination) = (&route.path, route.destination());
            diagnostics.push(Diagnostic::warning(path, "unreachable route", destination, expected));
        }
    }
}

/// Removes the routing rules of a family without addresses on their link. A warning reports a removed rule only if
/// `is_sure` is true, as in [`add_routes`].
pub(super) fn check_rules(diagnostics: &mut Diagnostics, link: &mut Link, is_sure: bool) {
    let rules = std::mem::take(&mut link.routing_policy);
    let (used, others) = rules.into_iter().partition(|rule| link.uses(rule.family()));
    link.routing_policy = used;
    for rule in others.into_iter().filter(|_: &RoutingRule| is_sure) {
        let expected = format!("an {} address on its link", rule.family());
        diagnostics.push(Diagnostic::warning(&rule.path, "unreachable network", &rule, &expected));
    }
}

pub(super) fn nameserver(
    diagnostics: &mut Diagnostics,
    path: &FieldPath<'_>,
    written: Option<&Scalar>,
    into: &mut Dns,
) {
    match written.map(|written| written.text().parse::<IpAddr>()) {
        Some(Ok(value)) if !value.is_unspecified() && !value.is_multicast() => {
            into.nameservers.push(Located { value, path: path.path() });
        }
        _ => unknown(diagnostics, Severity::Warning, *path, "invalid nameserver", written, NAMESERVER_EXPECTED),
    }
}

pub(super) fn nameservers(diagnostics: &mut Diagnostics, list: &FieldPath<'_>, written: &[Scalar], into: &mut Dns) {
    for (index, written) in written.iter().enumerate() {
        nameserver(diagnostics, &list.index(index), Some(written), into);
    }
}

pub(super) fn search_domains(diagnostics: &mut Diagnostics, list: &FieldPath<'_>, written: &[Scalar], into: &mut Dns) {
    for (index, written) in written.iter().enumerate() {
        let path = list.index(index);
        match written.text().parse() {
            Ok(value) => into.search.push(Located { value, path: path.path() }),
            Err(_) => {
                diagnostics.push(Diagnostic::warning(path, "invalid search domain", written, DomainName::EXPECTED));
            }
        }
    }
}

/// Converts the options of a bond. Of several options with one name, the last one counts. `port` finds a bond member by
/// its id or name in the document.
pub(super) fn bond_options(
    diagnostics: &mut Diagnostics,
    path: &FieldPath<'_>,
    written: &[WrittenOption<'_>],
    port: &dyn Fn(&str) -> Option<LinkIndex>,
) -> Reported<BondOptions> {
    let find = |wanted: &str| written.iter().rfind(|option| option.name == wanted);
    let mode = find("mode").map_or(Ok(BondMode::default()), |option| {
        BondMode::parse(&option.value.to_string()).ok_or_else(|| {
            let path = path.field(option.written);
            diagnostics.push(Diagnostic::error(path, "invalid mode", &option.value, BondMode::EXPECTED));
        })
    });
    let mut options = BondOptions::new(mode.unwrap_or_default());
    options.path = path.path();
    for option in written {
        let (path, text) = (path.field(option.written), option.value.to_string());
        match option.name.as_ref() {
            "mode" => {}
            "primary" => {
                options.primary = port(&text);
                if options.primary.is_none() {
                    diagnostics.push(Diagnostic::warning(path, "unknown member", text, "a member of this link"));
                }
            }
            "arp_ip_target" => match arp_ip_targets(&option.value) {
                Some(targets) => options.arp_ip_target = targets,
                None => diagnostics.push(Diagnostic::warning(path, "invalid value", text, "IPv4 addresses")),
            },
            name => match options.set(name, &text) {
                Ok(()) => {}
                // With an invalid mode, it is unknown which options have an effect.
                Err(BondOptionError::Useless { .. }) if mode.is_err() => {}
                Err(error) => diagnostics.push(bond_option_diagnostic(path, &text, &error)),
            },
        }
    }
    mode?;
    for (name, error) in options.reconcile() {
        let (written, value) = match find(name) {
            Some(option) => (option.written, option.value.to_string()),
            None => (name, String::new()),
        };
        diagnostics.push(bond_option_diagnostic(path.field(written), &value, &error));
    }
    Ok(options)
}

fn arp_ip_targets(value: &Value) -> Option<Vec<Ipv4Addr>> {
    let parse = |text: &str| text.trim().parse::<Ipv4Addr>().ok();
    match value {
        Value::Array(targets) => targets.iter().map(|target| parse(&target.to_string())).collect(),
        other => other.to_string().split([',', ';', ' ']).filter(|text| !text.is_empty()).map(parse).collect(),
    }
}

fn bond_option_diagnostic(path: FieldPath<'_>, value: &str, error: &BondOptionError) -> Diagnostic {
    match error {
        BondOptionError::Unknown => {
            Diagnostic::warning(path, "unknown bond option", value, "an option of the kernel's bonding driver")
        }
        BondOptionError::Value { expected } => Diagnostic::warning(path, "invalid value", value, expected),
        BondOptionError::Useless { expected } => {
            Diagnostic::warning(path, "bond option without effect", value, expected)
        }
    }
}

/// Sets the MTU of a link. If the document has several MTUs for the link, the first counts, and a different later MTU
/// is reported.
pub(super) fn merge_mtu(diagnostics: &mut Diagnostics, path: FieldPath<'_>, link: &mut Link, mtu: Option<Mtu>) {
    let Some(mtu) = mtu else { return };
    let first = *link.mtu.get_or_insert(mtu);
    if first != mtu {
        let expected = format!("the NIC's other MTU, {first}");
        diagnostics.push(Diagnostic::warning(path, "second MTU", mtu, &expected));
    }
}

/// Builds the model. `contradicts` makes the diagnostic for a contradiction, with the path to fix. `None` if the
/// document has errors.
pub(super) fn put_together(
    diagnostics: &mut Diagnostics,
    mut links: Vec<Link>,
    dns: Dns,
    guesses: &[Guess],
    contradicts: &dyn Fn(Contradiction) -> Diagnostic,
) -> Option<NetworkConfig> {
    for at in 0..links.len() {
        drop_inherited_mac_address(&mut links, at);
    }
    for link in &mut links {
        if let Some(mtu) = link.mtu.filter(|mtu| *mtu < Mtu::IPV6_MINIMUM && link.ipv6.is_used()) {
            let (path, expected) = (format!("{}.mtu", link.path), Mtu::EXPECTED_FOR_IPV6);
            diagnostics.push(Diagnostic::warning(path, "MTU too small for IPv6", mtu, expected));
            link.mtu = None;
        }
        without_repeats(&mut link.dns);
    }
    for guess in guesses {
        report_guess(diagnostics, &links[guess.link.0], guess);
    }
    report_repeated_addresses(diagnostics, &links);
    drop_own_gateways(diagnostics, &mut links, &dns);
    for at in 0..links.len() {
        drop_mtu_above_parents(diagnostics, &mut links, at);
    }
    match NetworkConfig::new(links) {
        Ok(mut config) if !diagnostics.has_errors() => {
            config.dns = dns;
            without_repeats(&mut config.dns);
            Some(config)
        }
        Ok(_) => None,
        Err(contradictions) => {
            contradictions.into_iter().for_each(|contradiction| diagnostics.push(contradicts(contradiction)));
            None
        }
    }
}

/// Reports a guessed prefix length. A gateway outside of the guessed subnet proves that the guess is wrong, which is an
/// error.
fn report_guess(diagnostics: &mut Diagnostics, link: &Link, guess: &Guess) {
    let (address, length) = (guess.address.ip(), guess.address.prefix());
    let is_ipv4 = address.is_ipv4();
    let (ipv4, ipv6) = (&link.ipv4.addresses, &link.ipv6.addresses);
    // In these cases the gateway can be outside of the subnet: DHCP or a router can supply another subnet, and a subnet
    // of /31, /32, /127 or /128 has at most one other address.
    let is_anywhere = if is_ipv4 {
        link.ipv4.dhcp || ipv4.iter().any(|address| address.prefix() + 1 >= Family::Ipv4.bits())
    } else {
        link.ipv6.dynamic.is_some() || ipv6.iter().any(|address| address.prefix() + 1 >= Family::Ipv6.bits())
    };
    let is_near = |gateway: IpAddr| {
        let in_subnet = match gateway {
            IpAddr::V4(gateway) => ipv4.iter().any(|address| address.contains(gateway)),
            IpAddr::V6(gateway) => {
                gateway.is_unicast_link_local() || ipv6.iter().any(|address| address.contains(gateway))
            }
        };
        let is_on_link = |route: &Route| route.gateway().is_none() && route.destination().contains(gateway);
        in_subnet || link.routes.iter().any(is_on_link)
    };
    let routes = link.routes.iter().filter(|route| !route.on_link && !is_anywhere);
    let mut gateways = routes.filter_map(Route::gateway).filter(|gateway| gateway.is_ipv4() == is_ipv4);
    diagnostics.push(match gateways.find(|gateway| !is_near(*gateway)) {
        Some(gateway) => {
            let expected =
                format!("a prefix length or a netmask: with /{length} the gateway {gateway} is out of reach");
            Diagnostic::error(&guess.path, "address without a prefix length", address, &expected)
        }
        None => {
            let expected = format!("a prefix length or a netmask: /{length} is used");
            Diagnostic::warning(&guess.path, "address without a prefix length", address, &expected)
        }
    });
}

/// Warns about each static address of two NICs with their MAC addresses. Such NICs cannot be one interface under two names,
/// and both would answer for the address. Two kinds of addresses are allowed on several NICs: link-local addresses, and
/// addresses with the prefix length of a single host, as on point-to-point links.
fn report_repeated_addresses(diagnostics: &mut Diagnostics, links: &[Link]) {
    let mut seen = BTreeSet::new();
    for link in links.iter().filter(|link| matches!(link.kind, LinkKind::Nic(Nic::MacAddress { .. }))) {
        let is_of_link = |address: &IpAddr| match address {
            IpAddr::V4(address) => address.is_link_local(),
            IpAddr::V6(address) => address.is_unicast_link_local(),
        };
        let ipv4 = link.ipv4.addresses.iter().filter(|address| address.prefix() < Family::Ipv4.bits());
        let ipv6 = link.ipv6.addresses.iter().filter(|address| address.prefix() < Family::Ipv6.bits());
        let (ipv4, ipv6) = (ipv4.map(|address| address.ip().into()), ipv6.map(|address| address.ip().into()));
        let own: BTreeSet<IpAddr> = ipv4.chain(ipv6).filter(|address| !is_of_link(address)).collect();
        for address in own.into_iter().filter(|address| !seen.insert(*address)) {
            let expected = "an address that no other NIC has";
            diagnostics.push(Diagnostic::warning(&link.path, "address of another NIC", address, expected));
        }
    }
}

/// Removes each route whose gateway is an address of this machine. OpenStack gives each machine the routes of its
/// subnet, even the machine that is their gateway. If no other default route of a family is left, the removed default
/// route is an error, because its gateway is probably wrong. A name server with an address of this machine is only
/// reported, because it may run on the machine itself.
fn drop_own_gateways(diagnostics: &mut Diagnostics, links: &mut [Link], dns: &Dns) {
    let ipv4 = links.iter().flat_map(|link| &link.ipv4.addresses).map(|address| IpAddr::V4(address.ip()));
    let ipv6 = links.iter().flat_map(|link| &link.ipv6.addresses).map(|address| IpAddr::V6(address.ip()));
    let own: BTreeSet<IpAddr> = ipv4.chain(ipv6).collect();
    let own_gateway = |route: &Route| route.gateway().filter(|gateway| own.contains(gateway));
    let is_default = |route: &Route| route.is_default() && route.table.is_none();
    let others = links.iter().flat_map(|link| &link.routes);
    let others = others.filter(|route| is_default(route) && own_gateway(route).is_none());
    let families: BTreeSet<bool> = others.map(|route| route.destination().is_ipv4()).collect();
    for link in &mut *links {
        link.routes.retain(|route| {
            let Some(gateway) = own_gateway(route) else { return true };
            let is_only = is_default(route) && !families.contains(&route.destination().is_ipv4());
            diagnostics.push(match is_only {
                true => {
                    let expected = "the address of another machine";
                    Diagnostic::error(&route.path, "gateway with the machine's own address", gateway, expected)
                }
                false => Diagnostic::ignored(&route.path, gateway, "it is the machine's own address"),
            });
            is_only
        });
    }
    let servers = links.iter().flat_map(|link| &link.dns.nameservers);
    for server in dns.nameservers.iter().chain(servers).filter(|server| own.contains(&server.value)) {
        let expected = "the address of another machine";
        diagnostics.push(Diagnostic::warning(
            &server.path,
            "name server with the machine's own address",
            server,
            expected,
        ));
    }
}

/// Removes a MAC address that the link has even without this setting: a NIC has its own address, the kernel gives a
/// bond or a bridge the address of its first member, and a VLAN has its parent's address.
fn drop_inherited_mac_address(links: &mut [Link], at: usize) {
    let Some(own) = links[at].cloned_mac_address.take() else { return };
    let mut from = at;
    // At most one step for each link: links can form a loop, which a later check reports.
    for _ in 0..links.len() {
        let link = &links[from];
        match (link.mac_address(), link.kind.made_of().first()) {
            (Some(inherited), _) if inherited == own => return,
            (None, Some(next)) => from = next.0,
            _ => break,
        }
    }
    links[at].cloned_mac_address = Some(own);
}

/// Removes the MTU of a VLAN if it is above the MTU of a link below the VLAN, because the kernel rejects such an MTU. A
/// link without an MTU in the document is skipped: its MTU is not known.
fn drop_mtu_above_parents(diagnostics: &mut Diagnostics, links: &mut [Link], at: usize) {
    let Some(mtu) = links[at].mtu else { return };
    let mut least = None;
    let mut here = at;
    // VLANs can form a loop, which is reported later. So the number of steps is limited to the number of links.
    for _ in 0..links.len() {
        let LinkKind::Vlan { parent, .. } = links[here].kind else { break };
        here = parent.0;
        least = links[here].mtu.map(|mtu| (mtu, here)).into_iter().chain(least).min();
    }
    if let Some((limit, parent)) = least.filter(|(limit, _)| mtu > *limit) {
        let (path, expected) =
            (format!("{}.mtu", links[at].path), format!("at most {limit}, the MTU of {}", links[parent].path));
        diagnostics.push(Diagnostic::warning(path, "MTU above the MTU of the VLAN's parent", mtu, &expected));
        links[at].mtu = None;
    }
}

fn without_repeats(dns: &mut Dns) {
    distinct(&mut dns.nameservers);
    distinct(&mut dns.search);
}

fn distinct<T: Clone + Ord>(values: &mut Vec<Located<T>>) {
    let mut seen = BTreeSet::new();
    values.retain(|placed| seen.insert(placed.value.clone()));
}

/// Returns the link, the problem and the expectation for the diagnostic of a contradiction.
pub(super) fn contradiction(contradiction: Contradiction) -> (LinkIndex, &'static str, &'static str) {
    match contradiction {
        // This case does not occur: a reference to a missing link has already been reported, and is not in the model.
        Contradiction::NoSuchLink(at) => (at, "reference to a missing link", "a link of the document"),
        Contradiction::Loop(at) => (at, "VLAN on itself", "a link that is not on this VLAN"),
        Contradiction::PortIsNoNic(at) => (at, "bond member", "a NIC"),
        Contradiction::PortIsBridge(at) => (at, "port of a bridge", "a NIC, a bond or a VLAN"),
        Contradiction::PortTwice(at) => (at, "port more than once", "a port of one bond or bridge, listed once"),
        Contradiction::VlanTwice(at) => (at, "repeated VLAN id", "an id that no other VLAN on this link has"),
    }
}
