//! What the conversions of all formats share: a value of a document becomes one of the model, or a finding.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};

use ipnetwork::IpNetwork;
use pnet_base::MacAddr;

use super::address::{self, MASK_EXPECTED, Prefixed, Wrong};
use super::value::{Scalar, Value};
use crate::finding::{Finding, Findings, Place, Severity};
use crate::network::{
    BondMode, BondOptionError, BondOptions, Contradiction, Dns, DomainName, Family, Link, LinkIndex, LinkKind,
    MAC_ADDRESS_EXPECTED, Mtu, NetworkConfig, Placed, Route, VlanId, parse_mac_address,
};

/// A value, or the knowledge that it was wrong and has been reported.
pub(super) type Reported<T> = Result<T, ()>;

/// A member's name and its value.
pub(super) type Member<'a> = (&'a str, Option<&'a Scalar>);

/// A value with where it stands.
pub(super) type Written<'a> = (Place<'a>, Option<&'a Scalar>);

/// A route as it was written.
pub(super) struct WrittenRoute<'a> {
    pub(super) destination: Member<'a>,
    pub(super) netmask: Member<'a>,
    /// An empty text is none.
    pub(super) gateway: Member<'a>,
    pub(super) metric: Member<'a>,
}

/// An option of a bond as it was written.
pub(super) struct WrittenOption<'a> {
    pub(super) written: &'a str,
    /// The kernel's name.
    pub(super) name: Cow<'a, str>,
    pub(super) value: Cow<'a, Value>,
}

const NAMESERVER_EXPECTED: &str = "an IP address";
const DESTINATION_EXPECTED: &str = "an address, a CIDR or default";

/// A finding about a value of a fixed set, or about its absence.
pub(super) fn unknown(
    findings: &mut Findings,
    severity: Severity,
    place: Place<'_>,
    problem: &str,
    written: Option<&Scalar>,
    expected: &str,
) {
    findings.push(match written {
        Some(written) => Finding::new(severity, place, problem, written, expected),
        None => Finding::without_value(severity, place, "missing", expected),
    });
}

/// A field that has a value. An empty text is none.
pub(super) fn said(field: Option<&Scalar>) -> Option<&Scalar> {
    field.filter(|value| !value.text().is_empty())
}

pub(super) fn mtu(findings: &mut Findings, place: Place<'_>, written: Option<&Scalar>) -> Option<Mtu> {
    let written = written?;
    let mtu = written.integer().and_then(|mtu| Mtu::try_from(mtu).ok());
    if mtu.is_none() {
        findings.push(Finding::warning(place, "invalid MTU", written, Mtu::EXPECTED));
    }
    mtu
}

pub(super) fn metric(findings: &mut Findings, place: Place<'_>, written: Option<&Scalar>) -> Option<u32> {
    let written = written?;
    let metric = written.integer().and_then(|metric| u32::try_from(metric).ok());
    if metric.is_none() {
        findings.push(Finding::warning(place, "invalid metric", written, "a number of 0 to 4294967295"));
    }
    metric
}

pub(super) fn mac_address(
    findings: &mut Findings,
    place: Place<'_>,
    written: Option<&Scalar>,
) -> Reported<Option<MacAddr>> {
    let Some(written) = said(written) else { return Ok(None) };
    let address = parse_mac_address(&written.text());
    if address.is_none() {
        findings.push(Finding::error(place, "invalid MAC address", written, MAC_ADDRESS_EXPECTED));
    }
    address.map(Some).ok_or(())
}

pub(super) fn vlan_id(findings: &mut Findings, place: Place<'_>, written: Option<&Scalar>) -> Reported<VlanId> {
    let id = written.and_then(Scalar::integer).and_then(|id| VlanId::try_from(id).ok());
    if id.is_none() {
        unknown(findings, Severity::Error, place, "invalid VLAN id", written, VlanId::EXPECTED);
    }
    id.ok_or(())
}

/// A static address whose prefix length the document does not have.
pub(super) struct Guess {
    /// In the model.
    pub(super) link: LinkIndex,
    address: IpNetwork,
    place: String,
}

/// A static address, of this family where one is given. A guessed prefix length is told about once the gateways of its
/// link are known: it goes to `guesses`.
pub(super) fn static_address(
    findings: &mut Findings,
    (place, written): Written<'_>,
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
                guesses.push(Guess { link, address: network, place: place.path() });
            }
            return Some(network);
        }
        Some(Err(Wrong::Mask)) => invalid_mask(findings, netmask, mask),
        _ => unknown(findings, Severity::Error, place, "invalid address", written, expected),
    }
    None
}

fn invalid_mask(findings: &mut Findings, place: Place<'_>, mask: Option<Cow<'_, str>>) {
    findings.push(Finding::error(place, "invalid netmask", mask.unwrap_or_default(), MASK_EXPECTED));
}

pub(super) fn add_address(link: &mut Link, address: IpNetwork) {
    match address {
        IpNetwork::V4(address) if !link.ipv4.addresses.contains(&address) => link.ipv4.addresses.push(address),
        IpNetwork::V6(address) if !link.ipv6.addresses.contains(&address) => link.ipv6.addresses.push(address),
        _ => {}
    }
}

/// A next hop, of this family where one is given. An empty text is none.
pub(super) fn gateway(
    findings: &mut Findings,
    place: Place<'_>,
    written: Option<&Scalar>,
    family: Option<Family>,
) -> Option<IpAddr> {
    let written = said(written)?;
    let gateway = address::host_address(&written.text())
        .filter(|gateway| family.is_none_or(|family| family == Family::of(*gateway)));
    if gateway.is_none() {
        let expected = match family {
            Some(Family::Ipv4) => "the IPv4 address of a router",
            Some(Family::Ipv6) => "the IPv6 address of a router",
            None => "the IP address of a router",
        };
        findings.push(Finding::error(place, "invalid gateway", written, expected));
    }
    gateway
}

/// The default route of a gateway that stands beside an address.
pub(super) fn default_route(
    findings: &mut Findings,
    place: Place<'_>,
    written: Option<&Scalar>,
    family: Option<Family>,
    metric: Option<u32>,
) -> Option<Route> {
    let gateway = gateway(findings, place, written, family)?;
    Route::new(address::everywhere(Family::of(gateway)), Some(gateway), metric).ok().map(|route| route.at(place.path()))
}

/// A route; `family` is that of a `default` without a gateway.
pub(super) fn route(
    findings: &mut Findings,
    place: &Place<'_>,
    route: &WrittenRoute<'_>,
    family: Option<Family>,
) -> Option<Route> {
    let gateway = said(route.gateway.1);
    let hop = gateway.map(|gateway| address::address(&gateway.text()));
    // `default` is of the gateway's family, and of the link's network when that says nothing.
    let family = hop.flatten().map(Family::of).or(family).unwrap_or(Family::Ipv4);
    let mask = route.netmask.1.map(Scalar::text);
    let written = route.destination.1;
    let destination = match written.map(|written| address::destination(&written.text(), mask.as_deref(), family)) {
        Some(Ok(Prefixed { network, is_guessed })) => {
            if is_guessed {
                let place = place.field(route.destination.0);
                let expected = format!("a prefix length or a netmask: /{} is taken", network.prefix());
                findings.push(Finding::warning(place, "route without a prefix length", network.ip(), &expected));
            }
            Some(network)
        }
        Some(Err(Wrong::Mask)) => {
            invalid_mask(findings, place.field(route.netmask.0), mask);
            None
        }
        Some(Err(Wrong::Address)) | None => {
            let place = place.field(route.destination.0);
            unknown(findings, Severity::Error, place, "invalid network", written, DESTINATION_EXPECTED);
            None
        }
    };
    let metric = metric(findings, place.field(route.metric.0), route.metric.1);
    let gateway = match hop {
        None => None,
        // An unspecified gateway is the older way to say that there is none.
        Some(Some(hop)) if hop.is_unspecified() => None,
        Some(_) => {
            let family = destination.map(|network| Family::of(network.ip()));
            Some(self::gateway(findings, place.field(route.gateway.0), gateway, family)?)
        }
    };
    Some(Route::new(destination?, gateway, metric).ok()?.at(place.path()))
}

/// Puts routes on a link. One of a family without addresses there is a warning, unless more may be wanted there than is
/// known.
pub(super) fn add_routes(findings: &mut Findings, link: &mut Link, routes: Vec<Route>, is_sure: bool) {
    for route in routes {
        let (used, expected) = match route.destination() {
            IpNetwork::V4(_) => (link.ipv4.is_used(), "an IPv4 address on its link"),
            IpNetwork::V6(_) => (link.ipv6.is_used(), "an IPv6 address on its link"),
        };
        if used {
            link.routes.push(route);
        } else if is_sure {
            let (place, destination) = (&route.place, route.destination());
            findings.push(Finding::warning(place, "unreachable route", destination, expected));
        }
    }
}

pub(super) fn nameserver(findings: &mut Findings, place: &Place<'_>, written: Option<&Scalar>, into: &mut Dns) {
    match written.map(|written| written.text().parse::<IpAddr>()) {
        Some(Ok(value)) if !value.is_unspecified() && !value.is_multicast() => {
            into.nameservers.push(Placed { value, place: place.path() });
        }
        _ => unknown(findings, Severity::Warning, *place, "invalid nameserver", written, NAMESERVER_EXPECTED),
    }
}

pub(super) fn nameservers(findings: &mut Findings, list: &Place<'_>, written: &[Scalar], into: &mut Dns) {
    for (index, written) in written.iter().enumerate() {
        nameserver(findings, &list.index(index), Some(written), into);
    }
}

pub(super) fn search_domains(findings: &mut Findings, list: &Place<'_>, written: &[Scalar], into: &mut Dns) {
    for (index, written) in written.iter().enumerate() {
        let place = list.index(index);
        match written.text().parse() {
            Ok(value) => into.search.push(Placed { value, place: place.path() }),
            Err(_) => {
                findings.push(Finding::warning(place, "invalid search domain", written, DomainName::EXPECTED));
            }
        }
    }
}

/// The options of a bond, the last one of a name counts; `port` finds a port by what the document calls it.
pub(super) fn bond_options(
    findings: &mut Findings,
    place: &Place<'_>,
    written: &[WrittenOption<'_>],
    port: &dyn Fn(&str) -> Option<LinkIndex>,
) -> Reported<BondOptions> {
    let find = |wanted: &str| written.iter().rfind(|option| option.name == wanted);
    let mode = find("mode").map_or(Ok(BondMode::default()), |option| {
        BondMode::parse(&option.value.to_string()).ok_or_else(|| {
            let place = place.field(option.written);
            findings.push(Finding::error(place, "invalid mode", &option.value, BondMode::EXPECTED));
        })
    });
    let mut options = BondOptions::new(mode.unwrap_or_default());
    options.place = place.path();
    for option in written {
        let (place, text) = (place.field(option.written), option.value.to_string());
        match option.name.as_ref() {
            "mode" => {}
            "primary" => {
                options.primary = port(&text);
                if options.primary.is_none() {
                    findings.push(Finding::warning(place, "unknown port", text, "one of its ports"));
                }
            }
            "arp_ip_target" => match arp_ip_targets(&option.value) {
                Some(targets) => options.arp_ip_target = targets,
                None => findings.push(Finding::warning(place, "invalid value", text, "IPv4 addresses")),
            },
            name => match options.set(name, &text) {
                Ok(()) => {}
                // Whether it is of use is not known when the mode is not.
                Err(BondOptionError::Useless { .. }) if mode.is_err() => {}
                Err(error) => findings.push(bond_option_finding(place, &text, &error)),
            },
        }
    }
    mode?;
    for (name, error) in options.reconcile() {
        let (written, value) = match find(name) {
            Some(option) => (option.written, option.value.to_string()),
            None => (name, String::new()),
        };
        findings.push(bond_option_finding(place.field(written), &value, &error));
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

fn bond_option_finding(place: Place<'_>, value: &str, error: &BondOptionError) -> Finding {
    match error {
        BondOptionError::Unknown => {
            Finding::warning(place, "unknown bond option", value, "an option of the kernel's bonding driver")
        }
        BondOptionError::Value { expected } => Finding::warning(place, "invalid value", value, expected),
        BondOptionError::Useless { expected } => Finding::warning(place, "useless bond option", value, expected),
    }
}

/// What two entries for one link ask of it: the first MTU counts.
pub(super) fn merge_mtu(findings: &mut Findings, place: Place<'_>, link: &mut Link, mtu: Option<Mtu>) {
    let Some(mtu) = mtu else { return };
    let first = *link.mtu.get_or_insert(mtu);
    if first != mtu {
        let expected = format!("the card's other MTU, {first}");
        findings.push(Finding::warning(place, "second MTU", mtu, &expected));
    }
}

/// Puts the model together. `contradicts` tells where a contradiction is to be mended. `None`: there are errors.
pub(super) fn put_together(
    findings: &mut Findings,
    mut links: Vec<Link>,
    dns: Dns,
    guesses: &[Guess],
    contradicts: &dyn Fn(Contradiction) -> Finding,
) -> Option<NetworkConfig> {
    for at in 0..links.len() {
        drop_inherited_mac_address(&mut links, at);
    }
    for link in &mut links {
        if let Some(mtu) = link.mtu.filter(|mtu| *mtu < Mtu::IPV6_MINIMUM && link.ipv6.is_used()) {
            let (place, expected) = (format!("{}.mtu", link.place), Mtu::EXPECTED_FOR_IPV6);
            findings.push(Finding::warning(place, "MTU too small for IPv6", mtu, expected));
            link.mtu = None;
        }
        without_repeats(&mut link.dns);
    }
    for guess in guesses {
        report_guess(findings, &links[guess.link.0], guess);
    }
    report_own_addresses(findings, &links, &dns);
    for at in 0..links.len() {
        drop_mtu_above_parents(findings, &mut links, at);
    }
    match NetworkConfig::new(links) {
        Ok(mut config) if !findings.has_errors() => {
            config.dns = dns;
            without_repeats(&mut config.dns);
            Some(config)
        }
        Ok(_) => None,
        Err(contradictions) => {
            contradictions.into_iter().for_each(|contradiction| findings.push(contradicts(contradiction)));
            None
        }
    }
}

/// Reports a prefix length that the document does not have. A gateway out of reach proves that it was another one.
fn report_guess(findings: &mut Findings, link: &Link, guess: &Guess) {
    let (address, length) = (guess.address.ip(), guess.address.prefix());
    let is_ipv4 = address.is_ipv4();
    let (ipv4, ipv6) = (&link.ipv4.addresses, &link.ipv6.addresses);
    // A server may give the subnet of the gateway, and beside an address whose subnet has no room for a router the gateway
    // is elsewhere.
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
    findings.push(match gateways.find(|gateway| !is_near(*gateway)) {
        Some(gateway) => {
            let expected =
                format!("a prefix length or a netmask: with /{length} the gateway {gateway} is out of reach");
            Finding::error(&guess.place, "address without a prefix length", address, &expected)
        }
        None => {
            let expected = format!("a prefix length or a netmask: /{length} is taken");
            Finding::warning(&guess.place, "address without a prefix length", address, &expected)
        }
    });
}

/// Nothing is reached through a gateway or a name server whose address the machine itself has.
fn report_own_addresses(findings: &mut Findings, links: &[Link], dns: &Dns) {
    let ipv4 = links.iter().flat_map(|link| &link.ipv4.addresses).map(|address| IpAddr::V4(address.ip()));
    let ipv6 = links.iter().flat_map(|link| &link.ipv6.addresses).map(|address| IpAddr::V6(address.ip()));
    let own: BTreeSet<IpAddr> = ipv4.chain(ipv6).collect();
    for route in links.iter().flat_map(|link| &link.routes) {
        if let Some(gateway) = route.gateway().filter(|gateway| own.contains(gateway)) {
            let expected = "the address of another machine";
            findings.push(Finding::error(&route.place, "gateway with the machine's own address", gateway, expected));
        }
    }
    let servers = links.iter().flat_map(|link| &link.dns.nameservers);
    for server in dns.nameservers.iter().chain(servers).filter(|server| own.contains(&server.value)) {
        let expected = "the address of another machine";
        findings.push(Finding::error(&server.place, "name server with the machine's own address", server, expected));
    }
}

/// A card has its address already; the kernel gives a bond and a bridge its first port's and a VLAN its parent's. So that
/// need not be said.
fn drop_inherited_mac_address(links: &mut [Link], at: usize) {
    let Some(own) = links[at].cloned_mac_address.take() else { return };
    let mut from = at;
    // Bounded, since loops are found later.
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

/// The kernel refuses a VLAN an MTU above that of what it is on. Where that has none of its own, it is not known.
fn drop_mtu_above_parents(findings: &mut Findings, links: &mut [Link], at: usize) {
    let Some(mtu) = links[at].mtu else { return };
    let mut least = None;
    let mut here = at;
    // Bounded, since loops are found later.
    for _ in 0..links.len() {
        let LinkKind::Vlan { parent, .. } = links[here].kind else { break };
        here = parent.0;
        least = links[here].mtu.map(|mtu| (mtu, here)).into_iter().chain(least).min();
    }
    if let Some((limit, parent)) = least.filter(|(limit, _)| mtu > *limit) {
        let (place, expected) =
            (format!("{}.mtu", links[at].place), format!("at most {limit}, the MTU of {}", links[parent].place));
        findings.push(Finding::warning(place, "MTU above that of what the VLAN is on", mtu, &expected));
        links[at].mtu = None;
    }
}

fn without_repeats(dns: &mut Dns) {
    distinct(&mut dns.nameservers);
    distinct(&mut dns.search);
}

fn distinct<T: Clone + Ord>(values: &mut Vec<Placed<T>>) {
    let mut seen = BTreeSet::new();
    values.retain(|placed| seen.insert(placed.value.clone()));
}

/// What is wrong in a contradiction, and what was expected.
pub(super) fn contradiction(contradiction: Contradiction) -> (LinkIndex, &'static str, &'static str) {
    match contradiction {
        // A reference that leads nowhere has been reported where it was read; this is for completeness.
        Contradiction::NoSuchLink(at) => (at, "link that refers to none", "a link of the document"),
        Contradiction::Loop(at) => (at, "VLAN on itself", "a link that is not on this VLAN"),
        Contradiction::PortIsNoCard(at) => (at, "port of a bond", "a card"),
        Contradiction::PortIsBridge(at) => (at, "port of a bridge", "a card, a bond or a VLAN"),
        Contradiction::PortTwice(at) => (at, "port more than once", "a port of one bond or bridge, listed once"),
        Contradiction::VlanTwice(at) => (at, "repeated VLAN id", "an id that no other VLAN on this link has"),
    }
}
