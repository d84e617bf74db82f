//! Reads kernel arguments without any code of the writer, and compares the arguments with the network.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use glowplug::network::{Link, LinkIndex, LinkKind, NetworkConfig, Nic};
use glowplug::render::Device;
use ipnetwork::IpNetwork;

/// Content of a line, with the terms of dracut.cmdline(7).
#[derive(Debug, Default)]
struct Line {
    /// MAC addresses of NICs, by name.
    ifnames: BTreeMap<String, String>,
    /// Members, options and MTU of each bond.
    bonds: BTreeMap<String, (Vec<String>, String, Option<String>)>,
    /// Ports of each bridge.
    bridges: BTreeMap<String, Vec<String>>,
    /// Parent of each VLAN.
    vlans: BTreeMap<String, String>,
    ips: Vec<Ip>,
    routes: Vec<(IpNetwork, Option<IpAddr>, String)>,
    nameservers: Vec<IpAddr>,
}

#[derive(Debug, Default)]
struct Ip {
    device: String,
    address: Option<IpNetwork>,
    gateway: Option<IpAddr>,
    method: String,
    mtu: Option<String>,
    mac_address: Option<String>,
}

/// Splits a value at colons that are not in brackets.
fn fields(text: &str) -> Vec<String> {
    let mut fields = vec![String::new()];
    let mut depth = 0;
    for c in text.chars() {
        match c {
            '[' => depth += 1,
            ']' => depth -= 1,
            ':' if depth == 0 => fields.push(String::new()),
            c => fields.last_mut().unwrap().push(c),
        }
        assert!((0..=1).contains(&depth), "brackets in {text:?}");
    }
    assert_eq!(depth, 0, "brackets in {text:?}");
    fields
}

fn some(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}

fn list(text: &str) -> Vec<String> {
    let dashed = |name: &str| name.len() == 17 && name.split('-').all(|octet| octet.len() == 2);
    text.split(',').map(|name| if dashed(name) { name.replace('-', ":") } else { name.to_owned() }).collect()
}

impl Line {
    fn read(line: &str) -> Self {
        let mut read = Self::default();
        for word in line.split(' ').filter(|word| !word.is_empty()) {
            let (key, value) = word.split_once('=').unwrap();
            let fields = fields(value);
            let field = |at: usize| fields.get(at).map_or("", String::as_str);
            let once = match key {
                "ifname" => read.ifnames.insert(field(0).to_owned(), fields[1..].join(":")).is_none(),
                "bond" => {
                    let bond = (list(field(1)), field(2).to_owned(), some(field(3)));
                    read.bonds.insert(field(0).to_owned(), bond).is_none() && fields.len() <= 4
                }
                "bridge" => read.bridges.insert(field(0).to_owned(), list(field(1))).is_none() && fields.len() == 2,
                "vlan" => read.vlans.insert(field(0).to_owned(), field(1).to_owned()).is_none() && fields.len() == 2,
                "ip" => {
                    read.ips.push(Ip::read(&fields));
                    true
                }
                "rd.route" => {
                    let gateway = some(field(1)).map(|gateway| gateway.parse().unwrap());
                    read.routes.push((field(0).parse().unwrap(), gateway, field(2).to_owned()));
                    fields.len() <= 3
                }
                "nameserver" => {
                    read.nameservers.push(value.parse().unwrap());
                    true
                }
                "rd.peerdns" => value == "0",
                _ => false,
            };
            assert!(once, "{word:?} in {line:?}");
        }
        read
    }
}

impl Ip {
    /// Parses the three forms of `ip=`: a method; a device and a method; an optional address with all of its fields.
    /// The name of a device may look like an address, so readers decide by the second field.
    fn read(fields: &[String]) -> Self {
        let field = |at: usize| fields.get(at).map_or("", String::as_str);
        let rest = |at: usize| some(&fields.get(at..).unwrap_or_default().join(":"));
        let is_long = !["off", "on", "dhcp", "dhcp6", "auto6", "link6", "dhcp,dhcp6"].contains(&field(1));
        if fields.len() == 1 {
            Self { method: field(0).to_owned(), ..Self::default() }
        } else if is_long {
            let address = some(field(0)).map(|ip| format!("{ip}/{}", field(3)).parse().unwrap());
            let gateway = some(field(2)).map(|gateway| gateway.parse().unwrap());
            let (device, method) = (field(5).to_owned(), field(6).to_owned());
            Self { device, address, gateway, method, mtu: some(field(7)), mac_address: rest(8) }
        } else {
            let (device, method) = (field(0).to_owned(), field(1).to_owned());
            Self { device, method, mtu: some(field(2)), mac_address: rest(3), ..Self::default() }
        }
    }
}

/// Returns the name of a device in a line.
fn called(device: &Device) -> String {
    match device {
        Device::MacAddress(mac_address) => mac_address.to_string(),
        Device::Name(name) => name.to_string(),
        Device::Any => String::new(),
    }
}

/// Whether arguments can create a link. Arguments cannot create a bridge without ports, or a VLAN on such a bridge.
fn made(config: &NetworkConfig, index: LinkIndex) -> bool {
    match &config.link(index).kind {
        LinkKind::Nic(_) | LinkKind::Bond { .. } => true,
        LinkKind::Bridge { ports, .. } => ports.iter().any(|port| made(config, *port)),
        LinkKind::Vlan { parent, .. } => made(config, *parent),
    }
}

/// Checks that a line describes the network completely, and nothing else.
pub(super) fn check(config: &NetworkConfig, devices: &[Device], text: &str, legacy: bool) {
    let line = Line::read(text);
    let links = || config.links().iter().enumerate().map(|(at, link)| (LinkIndex::new(at), link));
    let called = |index: LinkIndex| called(&devices[index.position()]);
    assert_eq!(devices.len(), config.links().len());
    let names: BTreeSet<&String> = line.ifnames.keys().collect();
    let (mut bonds, mut bridges, mut vlans, mut ifnames) = (0, 0, 0, 0);
    let mut known = BTreeSet::new();
    for (index, link) in links() {
        let device = called(index);
        let is_any = devices[index.position()] == Device::Any;
        assert!(is_any || known.insert(device.clone()), "{device} twice in {text:?}");
        match &link.kind {
            LinkKind::Nic(Nic::MacAddress { mac_address, .. }) if names.contains(&device) => {
                ifnames += 1;
                assert_eq!(line.ifnames[&device], mac_address.to_string(), "{text:?}");
            }
            LinkKind::Nic(Nic::MacAddress { mac_address, .. }) => assert_eq!(device, mac_address.to_string()),
            LinkKind::Nic(Nic::Name(name)) => assert_eq!(device, name.as_str()),
            LinkKind::Nic(Nic::Pattern { .. }) => assert!(is_any),
            _ if !made(config, index) => {}
            LinkKind::Bond { name, ports, options } => {
                bonds += 1;
                assert_eq!(device, name.as_str());
                let (written, words, mtu) = &line.bonds[&device];
                assert_eq!(*written, ports.iter().map(|port| called(*port)).collect::<Vec<_>>(), "{text:?}");
                assert!(words.starts_with(&format!("mode={}", options.mode())), "{text:?}");
                assert_eq!(*mtu, link.mtu.map(|mtu| mtu.to_string()), "{text:?}");
            }
            LinkKind::Bridge { name, ports, .. } => {
                bridges += 1;
                assert_eq!(device, name.as_str());
                let ports = ports.iter().filter(|port| made(config, **port)).map(|port| called(*port));
                assert_eq!(line.bridges[&device], ports.collect::<Vec<_>>(), "{text:?}");
            }
            LinkKind::Vlan { parent, id, .. } => {
                vlans += 1;
                assert_eq!(line.vlans[&device], called(*parent), "{text:?}");
                let digits = if legacy {
                    device.strip_prefix("vlan").unwrap_or_else(|| device.rsplit_once('.').unwrap().1)
                } else {
                    &device[device.trim_end_matches(|c: char| c.is_ascii_digit()).len()..]
                };
                assert_eq!(digits, id.to_string(), "{text:?}");
            }
        }
    }
    let counts = [line.bonds.len(), line.bridges.len(), line.vlans.len(), line.ifnames.len()];
    assert_eq!(counts, [bonds, bridges, vlans, ifnames], "{text:?}");

    let (mut ips, mut has_any) = (0, false);
    for (index, link) in links() {
        let device = called(index);
        let has_own = link.has_addresses() && config.controller_of(index).is_none() && made(config, index);
        let is_any = devices[index.position()] == Device::Any;
        let is_stated = link.without_addresses && config.states_no_addresses();
        if is_any && !has_own && !is_stated && link.mtu.is_none() && link.cloned_mac_address.is_none() {
            // A line can have the settings of only one pattern of NICs, and this link has another pattern.
            continue;
        }
        let own: Vec<&Ip> = line.ips.iter().filter(|ip| ip.device == device).collect();
        // Several patterns with the same settings share their arguments.
        ips += if is_any && std::mem::replace(&mut has_any, true) { 0 } else { own.len() };
        let [written, meant]: [Vec<IpNetwork>; 2] = [
            own.iter().filter_map(|ip| ip.address).collect(),
            link.ipv4
                .addresses
                .iter()
                .map(|it| IpNetwork::V4(*it))
                .chain(link.ipv6.addresses.iter().map(|it| IpNetwork::V6(*it)))
                .filter(|_| has_own)
                .collect(),
        ];
        if legacy {
            assert!(own.len() <= 1 && written.iter().all(|it| meant.contains(it)), "{device} in {text:?}");
        } else {
            assert!(written == meant, "{device} in {text:?}, expected {meant:?}");
        }
        if !has_own {
            assert!(own.iter().all(|ip| ip.method == "off"), "{device} in {text:?}");
            continue;
        }
        assert!(!own.is_empty(), "{device} in {text:?}");
        let asks = |ip: &Ip| !matches!(ip.method.as_str(), "none" | "off" | "link6");
        let is_dynamic = link.ipv4.dhcp || link.ipv6.dynamic.is_some();
        let may_ask = own.iter().any(|ip| asks(ip));
        assert!(if legacy { is_dynamic || !may_ask } else { is_dynamic == may_ask }, "{device} in {text:?}");
        for ip in own {
            let mtu = link.mtu.filter(|_| !matches!(link.kind, LinkKind::Bond { .. })).map(|mtu| mtu.to_string());
            let mac_address = link.cloned_mac_address.map(|mac_address| mac_address.to_string());
            let says = (&ip.mtu, &ip.mac_address);
            let may_lack = legacy && ip.address.is_none();
            assert!(says == (&mtu, &mac_address) || may_lack, "{ip:?} in {text:?}, expected {mtu:?} {mac_address:?}");
        }
    }
    assert_eq!(ips, line.ips.len(), "an address without a link in {text:?}");
    check_routes(config, devices, &line, text, legacy);

    let of_links = config.links().iter().flat_map(|link| &link.dns.nameservers);
    // A link with only a link-local address uses no name server.
    let takes_servers =
        |link: &Link| link.ipv4.is_used() || link.ipv6.dynamic.is_some() || !link.ipv6.addresses.is_empty();
    let is_used =
        links().any(|(at, link)| takes_servers(link) && config.controller_of(at).is_none() && made(config, at));
    let mut meant = Vec::new();
    for server in config.dns.nameservers.iter().chain(of_links).filter(|_| is_used) {
        if !meant.contains(&server.value) {
            meant.push(server.value);
        }
    }
    assert_eq!(line.nameservers, meant, "{text:?}");
}

fn check_routes(config: &NetworkConfig, devices: &[Device], line: &Line, text: &str, legacy: bool) {
    let mut meant: Vec<(IpNetwork, Option<IpAddr>, String)> = Vec::new();
    let mut defaults = Vec::new();
    for (at, link) in config.links().iter().enumerate() {
        let index = LinkIndex::new(at);
        if !link.has_addresses() || config.controller_of(index).is_some() || !made(config, index) {
            continue;
        }
        for route in link.routes.iter().filter(|route| route.table.is_none()) {
            let it = (route.destination(), route.gateway(), called(&devices[at]));
            if route.is_default() {
                defaults.push((route.metric().unwrap_or(0), it));
            } else {
                meant.push(it);
            }
        }
    }
    let is_default = |route: &IpNetwork| route.prefix() == 0;
    let mut written: Vec<_> = line.routes.iter().filter(|(route, ..)| !is_default(route)).cloned().collect();
    if legacy {
        // network-legacy may lose routes, and adds routes to gateways.
        let to_gateway = |(to, via, _): &(IpNetwork, Option<IpAddr>, String)| {
            let is_host = to.prefix() == if to.is_ipv4() { 32 } else { 128 };
            is_host && via.is_none()
        };
        assert!(written.iter().all(|route| meant.contains(route) || to_gateway(route)), "{text:?}, expected {meant:?}");
    } else {
        written.sort();
        meant.sort();
        assert_eq!(written, meant, "{text:?}");
    }
    for ipv4 in [true, false] {
        let of_routes = line.routes.iter().filter(|(to, ..)| is_default(to) && to.is_ipv4() == ipv4);
        let of_routes = of_routes.map(|(_, via, device)| (*via, device));
        let of_ips = line.ips.iter().filter_map(|ip| Some((Some(ip.gateway?), &ip.device)));
        let of_ips = of_ips.filter(|(via, _)| via.is_some_and(|via| via.is_ipv4() == ipv4));
        let written: Vec<_> = of_routes.chain(of_ips).collect();
        let of_family = || defaults.iter().filter(|(_, (to, ..))| to.is_ipv4() == ipv4);
        let least = of_family().map(|(metric, _)| *metric).min();
        let best = |(via, device): &(Option<IpAddr>, &String)| {
            of_family()
                .any(|(metric, (_, gateway, on))| (legacy || Some(*metric) == least) && gateway == via && on == *device)
        };
        let is_reported = |(via, device): &(Option<IpAddr>, &String)| {
            of_family().any(|(_, (_, gateway, on))| gateway == via && on == *device)
        };
        assert!(
            written.is_empty() || written.iter().any(best),
            "{written:?} in {text:?}, expected one of {defaults:?}"
        );
        assert!(written.iter().all(is_reported), "{written:?} in {text:?}, expected some of {defaults:?}");
        // If a document has one network for several names of a NIC, each name gets the gateway.
        let link_of = |device: &String| devices.iter().position(|it| called(it) == *device).unwrap();
        let shares_address = |one: usize, other: usize| {
            let (one, other) = (&config.links()[one], &config.links()[other]);
            let is_shared4 = one.ipv4.addresses.iter().any(|address| other.ipv4.addresses.contains(address));
            let is_shared6 = one.ipv6.addresses.iter().any(|address| other.ipv6.addresses.contains(address));
            if ipv4 { is_shared4 } else { is_shared6 }
        };
        let is_one = written.iter().all(|(via, device)| {
            *via == written[0].0 && (*device == written[0].1 || shares_address(link_of(device), link_of(written[0].1)))
        });
        assert!(is_one, "{written:?} in {text:?}");
        assert!(legacy || written.is_empty() == least.is_none(), "{text:?} {defaults:?}");
    }
}
