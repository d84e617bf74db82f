//! Generates OpenStack documents together with their meaning.
//!
//! A seed determines a machine. From the machine the generator derives two independent things: the profiles that a
//! network program must have, and a document in one of the many valid spellings. The documents are never ambiguous and
//! never invalid, so each document has exactly one meaning.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use serde_json::{Map, Value, json};

use super::profiles::{Cidr, DeviceKey, Family, Method, Profile, Profiles};
use super::random::Random;

/// A document and its meaning.
pub(crate) struct Case {
    pub(crate) document: Value,
    pub(crate) meant: Profiles,
    /// All default routes of the document, in the order of preference.
    pub(crate) defaults: Vec<DefaultRoute>,
}

/// A default route and its link.
pub(crate) struct DefaultRoute {
    pub(crate) key: DeviceKey,
    pub(crate) ipv4: bool,
    pub(crate) metric: u32,
    pub(crate) via: Option<IpAddr>,
}

struct MachineNetwork {
    /// Links in the order of the document.
    links: Vec<Link>,
    /// Networks in the order of the document.
    networks: Vec<Network>,
    /// Name servers at the top level of the document.
    servers: Vec<IpAddr>,
    /// NICs with two links in the document, each as the id of the second link and the id of the first link.
    aliases: Vec<(String, String)>,
}

struct Link {
    id: String,
    name: Option<String>,
    mtu: Option<u32>,
    kind: Kind,
}

/// Kind of a link. The links of a document may have any order, so a reference to a link is its id.
enum Kind {
    Nic { mac: Option<String> },
    Bond { ports: Vec<String>, mac: Option<String>, options: BTreeMap<&'static str, String> },
    Vlan { parent: String, tag: u16, mac: String },
}

struct Network {
    link: String,
    ipv4: bool,
    addressing: Addressing,
    /// Value of the key `gateway`.
    gateway: Option<IpAddr>,
    routes: Vec<Route>,
    servers: Servers,
}

enum Addressing {
    Static { address: Cidr },
    Dynamic { word: &'static str },
}

struct Route {
    destination: Cidr,
    via: Option<IpAddr>,
    metric: Option<u32>,
    servers: Vec<IpAddr>,
}

enum Servers {
    Services(Vec<IpAddr>),
    /// Name servers in the key `dns_nameservers`. Such a network has no services: in cloud-init, services replace this
    /// key.
    Plain(Vec<IpAddr>),
}

/// A default route of the document, by its metric and its position.
struct Default {
    metric: u32,
    network: usize,
    /// Index of the route. `None`: the default route is in the key `gateway`.
    route: Option<usize>,
}

/// Link types of the schema. The guest treats all of them as a plain NIC.
const NIC_TYPES: [&str; 9] = ["phy", "bridge", "dvs", "hw_veb", "hyperv", "ovs", "tap", "vhostuser", "vif"];

const BOND_MODES: [&str; 7] =
    ["balance-rr", "active-backup", "balance-xor", "broadcast", "802.3ad", "balance-tlb", "balance-alb"];

const DYNAMIC_IPV6: [&str; 4] = ["ipv6_dhcp", "ipv6_slaac", "ipv6_dhcpv6-stateless", "ipv6_dhcpv6-stateful"];

/// Names that a person or udev gives to NICs. Some are too long for a VLAN name `<parent>.<id>` of 15 bytes.
const NIC_NAMES: [&str; 10] =
    ["eno1", "ens3", "lan0", "wan", "net7", "data.storage", "mgmt", "eth0", "enx525400123456", "enp0s31f6np0"];

/// Generates the case of a seed. A seed always gives the same case.
pub(crate) fn case(seed: u64) -> Case {
    let mut random = Random(seed);
    let mut machine = machine(&mut random);
    agree_on_the_default_routes(&mut machine, &mut random);
    Case { meant: meaning(&machine), defaults: all_defaults(&machine), document: spell(&machine, &mut random) }
}

// === The machine ===

fn machine(random: &mut Random) -> MachineNetwork {
    let mut names: Vec<&str> = NIC_NAMES.to_vec();
    random.shuffle(&mut names);
    let mut links: Vec<Link> = Vec::new();
    for index in 0..random.between(1, 4) {
        let known_by = random.between(0, 9);
        // The kernel assigns eth0 itself, so this name can neither identify a NIC nor be assigned to a NIC.
        let name = names.pop().filter(|name| known_by >= 6 && (*name != "eth0" || known_by < 9));
        let (id, name, mac) = match (known_by, name) {
            // The document has no MAC address of the NIC. The name or the id identifies the NIC.
            (9, Some(name)) => (format!("interface{index}"), Some(name.to_owned()), None),
            (8, Some(name)) if name != "eth0" => (name.to_owned(), None, None),
            // The document has a name and a MAC address. The MAC address identifies the NIC.
            (_, name) => (link_id(random, index), name.map(str::to_owned), Some(mac_address(random, index))),
        };
        links.push(Link { id, name, mtu: mtu(random), kind: Kind::Nic { mac } });
    }
    for index in 0..random.one_in(3, 1, 2) {
        add_bond(&mut links, index, random);
    }
    let mut upper: Vec<String> =
        links.iter().filter(|link| !is_port(&links, &link.id)).map(|link| link.id.clone()).collect();
    let addressable = upper.len();
    for index in 0..random.one_in(3, 1, 3) {
        let parent = random.pick(&upper).clone();
        add_vlan(&mut links, &mut upper, parent, index, random);
    }
    let mut networks = Vec::new();
    while networks.is_empty() {
        for (index, link) in upper.iter().enumerate() {
            // VLANs have networks more often than other links.
            if random.chance(if index < addressable { 3 } else { 4 }, 5) {
                networks.extend(networks_of(link, index, random));
            }
        }
    }
    random.shuffle(&mut links);
    random.shuffle(&mut networks);
    let mut aliases = Vec::new();
    if random.chance(1, 8) {
        let is_nic = |link: &&Link| matches!(link.kind, Kind::Nic { mac: Some(_) }) && !is_port(&links, &link.id);
        aliases.extend(links.iter().find(is_nic).map(|nic| (format!("{}-again", nic.id), nic.id.clone())));
    }
    let servers = servers(random, 3);
    MachineNetwork { links, networks, servers, aliases }
}

/// Returns the id of a link, in one of the forms that hosts use. An id may be a legal interface name, but is never the
/// name of this NIC.
fn link_id(random: &mut Random, index: u64) -> String {
    // The MAC address identifies the NIC, so the guest must not use any of these ids.
    match random.between(0, 2) {
        0 => format!("tap{:08x}-{index}f", random.next() as u32),
        1 => format!("{:08x}-7d3a-4bc1-9a55-{index:012x}", random.next() as u32),
        _ => format!("interface{index}"),
    }
}

fn mac_address(random: &mut Random, index: u64) -> String {
    let bytes = random.next().to_be_bytes();
    let vendor = random.pick(&["52:54:00", "fa:16:3e", "02:00:00", "0a:58:0a"]).to_owned();
    format!("{vendor}:{:02x}:{:02x}:{index:02x}", bytes[0], bytes[1])
}

fn mtu(random: &mut Random) -> Option<u32> {
    random.chance(1, 4).then(|| *random.pick(&[1280, 1400, 1450, 1500, 9000]))
}

fn is_port(links: &[Link], id: &str) -> bool {
    links.iter().any(|link| matches!(&link.kind, Kind::Bond { ports, .. } if ports.iter().any(|port| port == id)))
}

fn add_bond(links: &mut Vec<Link>, index: u64, random: &mut Random) {
    let mut ports = Vec::new();
    let mut macs = Vec::new();
    for port in 0..random.between(2, 3) {
        let mac = mac_address(random, 0x40 + index * 8 + port);
        macs.push(mac.clone());
        let id = format!("port-{index}-{port}-{:04x}", random.next() as u16);
        ports.push(id.clone());
        // No MTU: programs disagree about the MTU of a bond member, because the bond sets the MTU of its members.
        links.push(Link { id, name: None, mtu: None, kind: Kind::Nic { mac: Some(mac) } });
    }
    let mode = *random.pick(&BOND_MODES);
    let mut options = BTreeMap::from([("mode", mode.to_owned())]);
    if mode == "active-backup" && random.chance(1, 4) {
        // A bond monitors its links by ARP or by carrier, never by both.
        options.insert("arp_interval", "1000".to_owned());
        options.insert("arp_ip_target", "10.0.0.1".to_owned());
    } else if random.chance(2, 3) {
        options.insert("miimon", random.pick(&["50", "100", "200"]).to_string());
        if random.chance(1, 4) {
            options.insert("updelay", "400".to_owned());
            options.insert("downdelay", "200".to_owned());
        }
    }
    if matches!(mode, "active-backup" | "balance-tlb" | "balance-alb") && random.chance(1, 4) {
        options.insert("primary", random.pick(&ports).clone());
    }
    if mode == "802.3ad" && random.chance(1, 2) {
        options.insert("lacp_rate", random.pick(&["slow", "fast"]).to_string());
    }
    if matches!(mode, "802.3ad" | "balance-xor") && random.chance(1, 2) {
        options.insert("xmit_hash_policy", random.pick(&["layer2", "layer2+3", "layer3+4"]).to_string());
    }
    let name = random.chance(1, 3).then(|| format!("agg{index}"));
    let mtu = mtu(random);
    // Most bonds have the MAC address of their first member, which is also the kernel's default.
    let mac = match random.between(0, 4) {
        0 => None,
        1 => macs.pop(),
        _ => Some(macs.swap_remove(0)),
    };
    links.push(Link { id: format!("bond-{index}"), name, mtu, kind: Kind::Bond { ports, mac, options } });
}

fn add_vlan(links: &mut Vec<Link>, upper: &mut Vec<String>, parent: String, index: u64, random: &mut Random) {
    let on_a_vlan = links.iter().any(|link| link.id == parent && matches!(link.kind, Kind::Vlan { .. }));
    let depth_reached = on_a_vlan
        && links.iter().any(|link| match &link.kind {
            Kind::Vlan { parent: grandparent, .. } if link.id == parent => {
                links.iter().any(|link| link.id == *grandparent && matches!(link.kind, Kind::Vlan { .. }))
            }
            _ => false,
        });
    // A name of 15 bytes has no room for three VLAN ids.
    if depth_reached {
        return;
    }
    // VLANs on one parent must have different VLAN ids; VLANs on different parents may have the same id.
    let others = links.iter().filter_map(|link| match &link.kind {
        Kind::Vlan { parent: other, tag, .. } => Some((*other == parent, *tag)),
        _ => None,
    });
    let others: Vec<(bool, u16)> = others.collect();
    let again = others.first().filter(|(same, tag)| !same && !others.contains(&(true, *tag)));
    let again = again.filter(|_| random.chance(1, 3)).map(|(_, tag)| *tag);
    let tag = again.unwrap_or((random.between(0, 1000) * 4 + index + 1) as u16);
    let mac = match (random.between(0, 2), mac_of(links, &parent)) {
        (0, _) | (_, None) => mac_address(random, 0x80 + index),
        (_, Some(mac)) => mac,
    };
    let name = match random.between(0, 5) {
        // The digits of this name are the VLAN id, so the name is kept unless another VLAN has the name.
        0 if again.is_none() => Some(format!("vlan{tag}")),
        // The digits of this name are not the VLAN id, so the name cannot be kept.
        1 => Some(format!("v{}{}", index + 1, tag)),
        2 => Some(format!("storage{}", char::from(b'a' + index as u8))),
        _ => None,
    };
    let mut mtu = mtu(random);
    // The kernel rejects an MTU above the MTU of the parent.
    let mut below = Some(&parent);
    while let Some(link) = below.and_then(|id| links.iter().find(|link| link.id == *id)) {
        mtu = mtu.map(|mtu| mtu.min(link.mtu.unwrap_or(mtu)));
        below = if let Kind::Vlan { parent, .. } = &link.kind { Some(parent) } else { None };
    }
    let id = format!("vlan-{index}");
    links.push(Link { id: id.clone(), name, mtu, kind: Kind::Vlan { parent, tag, mac } });
    upper.push(id);
}

/// Returns the MAC address of a link.
fn mac_of(links: &[Link], id: &str) -> Option<String> {
    match &links.iter().find(|link| link.id == id)?.kind {
        Kind::Nic { mac } => mac.clone(),
        // The kernel's default is the MAC address of the first member.
        Kind::Bond { mac, ports, .. } => mac.clone().or_else(|| mac_of(links, ports.first()?)),
        Kind::Vlan { mac, .. } => Some(mac.clone()),
    }
}

fn networks_of(link: &str, index: usize, random: &mut Random) -> Vec<Network> {
    let mut networks = Vec::new();
    let v4 = |addressing| (true, addressing);
    let v6 = |addressing| (false, addressing);
    let dynamic_ipv6 = |random: &mut Random| Addressing::Dynamic { word: random.pick::<&'static str>(&DYNAMIC_IPV6) };
    let dhcp = || Addressing::Dynamic { word: "ipv4_dhcp" };
    let mut kinds = Vec::new();
    match random.between(0, 15) {
        0..=3 => kinds.push(v4(static_ipv4(index, 0, random))),
        4 => kinds.push(v6(static_ipv6(index, 0, random))),
        5 | 6 => kinds.extend([v4(static_ipv4(index, 0, random)), v6(static_ipv6(index, 0, random))]),
        7 => kinds.push(v4(dhcp())),
        8 => kinds.push(v6(dynamic_ipv6(random))),
        9 => kinds.extend([v4(dhcp()), v6(dynamic_ipv6(random))]),
        10 | 11 => kinds.extend([v4(static_ipv4(index, 0, random)), v6(dynamic_ipv6(random))]),
        12 | 13 => kinds.extend([v4(dhcp()), v6(static_ipv6(index, 0, random))]),
        // One family is both static and dynamic. The other family has any configuration.
        14 => {
            kinds.extend([v4(dhcp()), v4(static_ipv4(index, 0, random))]);
            if random.chance(1, 3) {
                kinds.push(v6(dynamic_ipv6(random)));
            }
            if random.chance(1, 3) {
                kinds.push(v6(static_ipv6(index, 0, random)));
            }
        }
        _ => {
            kinds.extend([v6(dynamic_ipv6(random)), v6(static_ipv6(index, 0, random))]);
            if random.chance(1, 3) {
                kinds.push(v4(dhcp()));
            } else if random.chance(1, 3) {
                kinds.push(v4(static_ipv4(index, 0, random)));
            }
        }
    }
    let has_static =
        |ipv4| kinds.iter().any(|(family, kind)| *family == ipv4 && matches!(kind, Addressing::Static { .. }));
    let (static_v4, static_v6) = (has_static(true), has_static(false));
    for further in 1..=random.one_in(4, 1, 2) as u16 {
        if static_v4 && random.chance(1, 2) {
            kinds.push(v4(static_ipv4(index, further, random)));
        } else if static_v6 {
            kinds.push(v6(static_ipv6(index, further, random)));
        }
    }
    // If a family is both static and dynamic, programs disagree whether its default route becomes the gateway.
    let both_ways = |ipv4| {
        kinds.iter().any(|(family, kind)| *family == ipv4 && matches!(kind, Addressing::Dynamic { .. }))
            && kinds.iter().any(|(family, kind)| *family == ipv4 && matches!(kind, Addressing::Static { .. }))
    };
    let may_have_default = [both_ways(false), both_ways(true)].map(|both| !both);
    for (place, (ipv4, addressing)) in kinds.into_iter().enumerate() {
        let is_static = matches!(addressing, Addressing::Static { .. });
        let mut network = Network {
            link: link.to_owned(),
            ipv4,
            gateway: None,
            routes: Vec::new(),
            servers: if random.chance(1, 2) {
                Servers::Services(servers(random, 2))
            } else {
                Servers::Plain(servers(random, 2))
            },
            addressing,
        };
        let gateway = gateway_of(&network, index, random);
        if may_have_default[usize::from(ipv4)] && random.chance(1, 2) {
            if is_static && random.chance(1, 4) {
                network.gateway = Some(gateway);
            } else {
                let metric = random.chance(1, 3).then(|| random.between(0, 300) as u32);
                network.routes.push(Route {
                    destination: everything(ipv4),
                    via: Some(gateway),
                    metric,
                    servers: route_servers(random),
                });
            }
        }
        for nth in 0..random.one_in(3, 1, 3) {
            let destination = destination(ipv4, (index * 16 + place * 4) as u16 + nth as u16, random);
            let via = random.chance(3, 4).then_some(gateway);
            let metric = random.chance(1, 8).then(|| random.between(1, 300) as u32);
            if random.chance(1, 12) {
                // Write the same route twice: the second destination may have another spelling.
                network.routes.push(Route { destination, via, metric: None, servers: Vec::new() });
            }
            network.routes.push(Route { destination, via, metric, servers: route_servers(random) });
        }
        random.shuffle(&mut network.routes);
        networks.push(network);
    }
    // A route may be in a network of the other family, because the route itself determines its family.
    if networks.len() > 1
        && random.chance(1, 6)
        && let Some(route) = networks[0].routes.pop()
    {
        networks[1].routes.push(route);
    }
    if random.chance(1, 10)
        && let Addressing::Dynamic { word } = networks[0].addressing
    {
        let (link, servers) = (link.to_owned(), Servers::Plain(Vec::new()));
        let (ipv4, addressing) = (networks[0].ipv4, Addressing::Dynamic { word });
        networks.push(Network { link, ipv4, addressing, gateway: None, routes: Vec::new(), servers });
    }
    networks
}

fn static_ipv4(link: usize, nth: u16, random: &mut Random) -> Addressing {
    let length = *random.pick(&[8, 16, 20, 22, 24, 24, 24, 25, 28, 30, 31, 32]);
    let third = random.between(0, 255) as u8;
    // For every prefix length, this number gives neither the network address nor the broadcast address.
    let last = (64 + 4 * nth as u8) + random.between(1, 2) as u8;
    Addressing::Static { address: Cidr { address: Ipv4Addr::new(10, link as u8, third, last).into(), length } }
}

fn static_ipv6(link: usize, nth: u16, random: &mut Random) -> Addressing {
    let length = *random.pick(&[48, 56, 64, 64, 64, 80, 112, 127, 128]);
    let host = 0x1000 + (random.next() & 0xfff) as u16;
    let address = Ipv6Addr::new(0x2001, 0xdb8, link as u16, nth, 0, 0, 0, host);
    Addressing::Static { address: Cidr { address: address.into(), length } }
}

fn gateway_of(network: &Network, link: usize, random: &mut Random) -> IpAddr {
    match &network.addressing {
        Addressing::Static { address: Cidr { address: IpAddr::V4(address), length } } => {
            let [a, b, c, d] = address.octets();
            match length {
                // If the subnet has only one address, its gateway is outside the subnet, as in clouds.
                32 => Ipv4Addr::new(169, 254, 1, 1).into(),
                _ => Ipv4Addr::new(a, b, c, if d % 4 == 1 { d + 1 } else { d - 1 }).into(),
            }
        }
        Addressing::Static { address: Cidr { address: IpAddr::V6(address), .. } } => {
            let mut parts = address.segments();
            parts[7] = 1;
            if random.chance(1, 2) { Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1).into() } else { parts.into() }
        }
        Addressing::Dynamic { .. } if network.ipv4 => Ipv4Addr::new(192, 0, 2, 1 + link as u8).into(),
        Addressing::Dynamic { .. } => Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1 + link as u16).into(),
    }
}

/// Returns a destination that only this number gives.
fn destination(ipv4: bool, number: u16, random: &mut Random) -> Cidr {
    let host = random.chance(1, 3);
    let [high, low] = number.to_be_bytes();
    match (ipv4, host) {
        (true, false) => Cidr { address: Ipv4Addr::new(172, 16 + high, low, 0).into(), length: 24 },
        (true, true) => Cidr { address: Ipv4Addr::new(198, 18 + high, low, 7).into(), length: 32 },
        (false, false) => {
            Cidr { address: Ipv6Addr::new(0x2001, 0xdb8, 0x9000 + number, 0, 0, 0, 0, 0).into(), length: 48 }
        }
        (false, true) => {
            Cidr { address: Ipv6Addr::new(0x2001, 0xdb8, 0x8000 + number, 0, 0, 0, 0, 7).into(), length: 128 }
        }
    }
}

fn everything(ipv4: bool) -> Cidr {
    let address: IpAddr = if ipv4 { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    Cidr { address, length: 0 }
}

/// Returns at most `most` servers from a small set, so that documents have duplicates.
fn servers(random: &mut Random, most: u64) -> Vec<IpAddr> {
    const SERVERS: [&str; 6] = ["1.1.1.1", "8.8.8.8", "10.0.0.53", "2001:4860:4860::8888", "2001:db8::53", "fd00::53"];
    let count = random.between(0, most);
    (0..count).filter_map(|_| random.pick(&SERVERS).parse().ok()).collect()
}

fn route_servers(random: &mut Random) -> Vec<IpAddr> {
    if random.chance(1, 8) { servers(random, 2) } else { Vec::new() }
}

/// Makes the preferred default route of each family unambiguous.
///
/// Of two equal routes the first in the document is preferred. "First" may mean the order of the networks or of the
/// links. If the two orders prefer different routes, all default routes except the first in the order of the networks
/// get a worse metric.
fn agree_on_the_default_routes(machine: &mut MachineNetwork, random: &mut Random) {
    for ipv4 in [true, false] {
        let all = defaults(machine, ipv4);
        let by_network = all.iter().min_by_key(|default| (default.metric, default.network, default.route));
        let by_link = all.iter().min_by_key(|default| {
            let link = &machine.networks[default.network].link;
            let place = machine.links.iter().position(|other| other.id == *link);
            (default.metric, place, default.network, default.route)
        });
        let (Some(by_network), Some(by_link)) = (by_network, by_link) else { continue };
        let preferred = (by_network.network, by_network.route);
        let metric = by_network.metric;
        // If a NIC has two links, the order of the NICs can differ from both orders.
        if preferred == (by_link.network, by_link.route) && machine.aliases.is_empty() {
            continue;
        }
        for default in all.iter().filter(|default| (default.network, default.route) != preferred) {
            let worse = Some(metric + 1 + random.between(0, 100) as u32);
            let network = &mut machine.networks[default.network];
            match (default.route, network.gateway) {
                (Some(route), _) => network.routes[route].metric = worse,
                // The key `gateway` has no metric.
                (None, via) => {
                    network.gateway = None;
                    let destination = everything(ipv4);
                    network.routes.push(Route { destination, via, metric: worse, servers: Vec::new() });
                }
            }
        }
    }
}

fn defaults(machine: &MachineNetwork, ipv4: bool) -> Vec<Default> {
    let mut defaults = Vec::new();
    for (place, network) in machine.networks.iter().enumerate() {
        if network.ipv4 == ipv4 && network.gateway.is_some() {
            defaults.push(Default { metric: 0, network: place, route: None });
        }
        for (index, route) in network.routes.iter().enumerate() {
            if route.destination == everything(ipv4) {
                defaults.push(Default { metric: route.metric.unwrap_or(0), network: place, route: Some(index) });
            }
        }
    }
    defaults
}

// === The meaning of a machine ===

fn meaning(machine: &MachineNetwork) -> Profiles {
    let mut profiles = BTreeMap::new();
    let servers = all_servers(machine);
    for link in &machine.links {
        let has_networks = machine.networks.iter().any(|network| network.link == link.id);
        let carries =
            machine.links.iter().any(|other| matches!(&other.kind, Kind::Vlan { parent, .. } if *parent == link.id));
        let mut profile = Profile { mtu: link.mtu, ..Profile::default() };
        match &link.kind {
            Kind::Nic { .. } => {
                profile.port_of = machine
                    .links
                    .iter()
                    .find(|bond| matches!(&bond.kind, Kind::Bond { ports, .. } if ports.contains(&link.id)))
                    .map(|bond| key(machine, &bond.id));
                // A NIC without networks gets no address. If the document also has no MAC address of the NIC, glowplug
                // leaves out the NIC.
                let is_unused = !has_networks && !carries && link.mtu.is_none() && profile.port_of.is_none();
                if is_unused && mac_of(&machine.links, &link.id).is_none() {
                    continue;
                }
            }
            Kind::Bond { options, mac, ports } => {
                profile.name.clone_from(&link.name);
                let first = ports.first().and_then(|port| mac_of(&machine.links, port));
                profile.cloned_mac = mac.clone().filter(|mac| first.as_ref() != Some(mac));
                for (option, value) in options {
                    let value = match *option {
                        "primary" => mac_of(&machine.links, value).unwrap_or_default(),
                        _ => value.clone(),
                    };
                    profile.bond_options.insert((*option).to_owned(), value);
                }
            }
            Kind::Vlan { parent, tag, mac } => {
                // NetworkManager reads the VLAN id from the digits at the end of the name.
                let before = |name: &String| name.trim_end_matches(|c: char| c.is_ascii_digit()).len();
                profile.name = link.name.clone().filter(|name| name[before(name)..] == tag.to_string());
                profile.cloned_mac =
                    Some(mac.clone()).filter(|mac| mac_of(&machine.links, parent).as_ref() != Some(mac));
            }
        }
        set_families(&mut profile, machine, &link.id);
        for (family, ipv4) in [(&mut profile.ipv4, true), (&mut profile.ipv6, false)] {
            if family.method != Method::Disabled {
                family.dns = servers.iter().copied().filter(|server| server.is_ipv4() == ipv4).collect();
            }
        }
        profiles.insert(key(machine, &link.id), profile);
    }
    Profiles(profiles)
}

fn key(machine: &MachineNetwork, id: &str) -> DeviceKey {
    let Some(link) = machine.links.iter().find(|link| link.id == id) else { return DeviceKey::Any };
    match &link.kind {
        Kind::Nic { mac } => {
            DeviceKey::Nic(mac.clone().or_else(|| link.name.clone()).unwrap_or_else(|| link.id.clone()))
        }
        Kind::Bond { ports, .. } => {
            let mut ports: Vec<String> = ports.iter().filter_map(|port| mac_of(&machine.links, port)).collect();
            ports.sort_unstable();
            DeviceKey::Bond(ports)
        }
        Kind::Vlan { parent, tag, .. } => DeviceKey::Vlan(Box::new(key(machine, parent)), *tag),
    }
}

fn set_families(profile: &mut Profile, machine: &MachineNetwork, link: &str) {
    let of = |ipv4: bool| machine.networks.iter().filter(move |network| network.link == *link && network.ipv4 == ipv4);
    let is_dynamic = |ipv4| of(ipv4).any(|network| matches!(network.addressing, Addressing::Dynamic { .. }));
    let is_static = |ipv4| of(ipv4).any(|network| matches!(network.addressing, Addressing::Static { .. }));
    let (dynamic_v4, dynamic_v6) = (is_dynamic(true), is_dynamic(false));
    let (static_v4, static_v6) = (is_static(true), is_static(false));
    // A family with a static address is required: without the address the interface fails. A dynamic family is required
    // only if it is the only family, because its failure must not stop another family.
    let (method_v4, required_v4) = match (dynamic_v4, static_v4) {
        (false, false) => (Method::Disabled, false),
        (false, true) => (Method::Manual, true),
        (true, true) => (Method::Auto, true),
        // If IPv6 is static and dynamic, a failure of IPv4 always stops the interface: no sequence of up to four
        // arguments makes NetworkManager tolerate such a failure.
        (true, false) => (Method::Auto, dynamic_v6 == static_v6),
    };
    let (method_v6, required_v6) = match (dynamic_v6, static_v6) {
        // `dhcp` also enables optional IPv6, because no argument requests DHCPv4 without IPv6.
        (false, false) if dynamic_v4 => (Method::Auto, false),
        (false, false) => (Method::Disabled, false),
        (false, true) => (Method::Manual, true),
        (true, true) => (Method::Auto, true),
        (true, false) => (Method::Auto, !dynamic_v4 && !static_v4),
    };
    profile.ipv4 = Family { method: method_v4, required: required_v4, ..Family::default() };
    profile.ipv6 = Family { method: method_v6, required: required_v6, ..Family::default() };
    for (family, ipv4) in [(&mut profile.ipv4, true), (&mut profile.ipv6, false)] {
        for network in of(ipv4) {
            if let Addressing::Static { address } = &network.addressing {
                family.addresses.insert(*address);
            }
        }
        let routes =
            machine.networks.iter().filter(|network| network.link == *link).flat_map(|network| &network.routes);
        let others = routes.filter(|route| route.destination.length > 0 && route.destination.address.is_ipv4() == ipv4);
        family.routes.extend(others.map(|route| (route.destination, route.via)));
        // No argument can express a metric, so only one default route of a family is kept.
        let all = defaults(machine, ipv4);
        let best = all.iter().min_by_key(|default| (default.metric, default.network, default.route));
        let Some(best) = best.filter(|best| machine.networks[best.network].link == *link) else { continue };
        let network = &machine.networks[best.network];
        let via = best.route.map_or(network.gateway, |route| network.routes[route].via);
        if family.method == Method::Manual {
            family.gateway = via;
        } else {
            family.routes.insert((everything(ipv4), via));
        }
    }
}

fn all_defaults(machine: &MachineNetwork) -> Vec<DefaultRoute> {
    let of = |ipv4: bool| {
        let mut all = defaults(machine, ipv4);
        all.sort_by_key(|default| (default.metric, default.network, default.route));
        all.into_iter().map(move |default| {
            let network = &machine.networks[default.network];
            let via = default.route.map_or(network.gateway, |route| network.routes[route].via);
            DefaultRoute { key: key(machine, &network.link), ipv4, metric: default.metric, via }
        })
    };
    of(true).chain(of(false)).collect()
}

/// Returns every name server once: first the servers of the networks, then the servers at the top level.
fn all_servers(machine: &MachineNetwork) -> Vec<IpAddr> {
    let mut servers: Vec<IpAddr> = Vec::new();
    for network in &machine.networks {
        servers.extend(network.routes.iter().flat_map(|route| &route.servers));
        let (Servers::Services(own) | Servers::Plain(own)) = &network.servers;
        servers.extend(own);
    }
    servers.extend(&machine.servers);
    let mut once = Vec::new();
    for server in servers {
        if !once.contains(&server) {
            once.push(server);
        }
    }
    once
}

// === The spelling of a machine ===

fn spell(machine: &MachineNetwork, random: &mut Random) -> Value {
    let mut document = Map::new();
    let mut links: Vec<Value> = machine.links.iter().map(|link| spell_link(link, random)).collect();
    for (alias, of) in &machine.aliases {
        let mac = mac_of(&machine.links, of).unwrap_or_default();
        let link = json!({"id": alias, "type": "phy", "mtu": null, "ethernet_mac_address": spell_mac(&mac, random)});
        let place = random.between(0, links.len() as u64) as usize;
        links.insert(place, link);
    }
    let mut networks: Vec<Value> = Vec::new();
    for (index, network) in machine.networks.iter().enumerate() {
        let mut spelled = spell_network(network, index, random);
        if let Some((alias, _)) = machine.aliases.iter().find(|(_, of)| *of == network.link)
            && random.chance(1, 2)
        {
            spelled["link"] = alias.clone().into();
        }
        networks.push(spelled);
    }
    if random.chance(1, 12) {
        // Add a network of an unknown type to a link that works without this network.
        let place = random.between(0, networks.len() as u64) as usize;
        networks.insert(place, json!({"id": "odd", "link": networks[0]["link"], "type": "ipv8", "network_id": ""}));
    }
    if random.chance(1, 12) {
        // Add a dynamic network on an unknown link. Other networks are not affected.
        let place = random.between(0, networks.len() as u64) as usize;
        networks.insert(place, json!({"id": "lost", "link": "no-such-link", "type": "ipv4_dhcp", "network_id": ""}));
    }
    document.insert("links".into(), links.into());
    document.insert("networks".into(), networks.into());
    let services = spell_services(&machine.servers, random);
    if !services.is_empty() || random.chance(2, 3) {
        document.insert("services".into(), services.into());
    } else if random.chance(1, 2) {
        document.insert("services".into(), Value::Null);
    }
    unknown_keys(&mut document, random);
    document.into()
}

fn spell_link(link: &Link, random: &mut Random) -> Value {
    let mut object = Map::new();
    object.insert("id".into(), link.id.clone().into());
    match &link.name {
        Some(name) => _ = object.insert("name".into(), name.clone().into()),
        None if random.chance(1, 10) => _ = object.insert("name".into(), Value::Null),
        None => {}
    }
    match (link.mtu, random.between(0, 3)) {
        (Some(mtu), 0) => _ = object.insert("mtu".into(), mtu.to_string().into()),
        (Some(mtu), _) => _ = object.insert("mtu".into(), mtu.into()),
        (None, 0) => _ = object.insert("mtu".into(), Value::Null),
        (None, _) => {}
    }
    if random.chance(1, 3) {
        object.insert("vif_id".into(), "cb5f5f8c-8c3c-4f7a-9d0c-2b5d3c1a6e11".into());
    }
    match &link.kind {
        Kind::Nic { mac } => {
            match random.between(0, 19) {
                0 => {}
                1 => _ = object.insert("type".into(), Value::Null),
                2 => _ = object.insert("type".into(), "macvtap".into()),
                _ => _ = object.insert("type".into(), (*random.pick(&NIC_TYPES)).into()),
            }
            match (mac, random.between(0, 3)) {
                (Some(mac), _) => _ = object.insert("ethernet_mac_address".into(), spell_mac(mac, random)),
                (None, 0) => _ = object.insert("ethernet_mac_address".into(), Value::Null),
                (None, 1) => _ = object.insert("ethernet_mac_address".into(), "".into()),
                (None, _) => {}
            }
        }
        Kind::Bond { ports, mac, options } => {
            object.insert("type".into(), "bond".into());
            object.insert("bond_links".into(), ports.clone().into());
            if let Some(mac) = mac {
                object.insert("ethernet_mac_address".into(), spell_mac(mac, random));
            }
            let prefix = *random.pick(&["bond_", "bond_", "bond-"]);
            let dashes = prefix == "bond-" && random.chance(1, 2);
            for (option, value) in options {
                let option_name = if dashes { option.replace('_', "-") } else { (*option).to_owned() };
                object.insert(format!("{prefix}{option_name}"), spell_bond_option(option, value, random));
            }
            if random.chance(1, 10) {
                object.insert("bond_sorcery".into(), "on".into());
            }
        }
        Kind::Vlan { parent, tag, mac } => {
            object.insert("type".into(), "vlan".into());
            object.insert("vlan_link".into(), parent.clone().into());
            object.insert("vlan_id".into(), if random.chance(1, 6) { tag.to_string().into() } else { (*tag).into() });
            object.insert("vlan_mac_address".into(), spell_mac(mac, random));
        }
    }
    unknown_keys(&mut object, random);
    object.into()
}

fn spell_mac(mac: &str, random: &mut Random) -> Value {
    let mac = if random.chance(1, 3) { mac.to_ascii_uppercase() } else { mac.to_owned() };
    if random.chance(1, 4) { mac.replace(':', "-").into() } else { mac.into() }
}

fn spell_bond_option(option: &str, value: &str, random: &mut Random) -> Value {
    let number = match option {
        "mode" => BOND_MODES.iter().position(|mode| *mode == value).map(|number| number.to_string()),
        "lacp_rate" => Some(if value == "fast" { "1" } else { "0" }.to_owned()),
        "xmit_hash_policy" => {
            let words = ["layer2", "layer3+4", "layer2+3"];
            words.iter().position(|word| *word == value).map(|number| number.to_string())
        }
        "miimon" | "updelay" | "downdelay" | "arp_interval" => Some(value.to_owned()),
        _ => None,
    };
    match (number, random.between(0, 2)) {
        (Some(number), 0) => number.parse::<u64>().map_or(Value::Null, Value::from),
        (Some(number), 1) => number.into(),
        _ => value.into(),
    }
}

fn spell_network(network: &Network, index: usize, random: &mut Random) -> Value {
    let mut object = Map::new();
    object.insert("link".into(), network.link.clone().into());
    if random.chance(9, 10) {
        object.insert("id".into(), format!("network{index}").into());
        object.insert("network_id".into(), "da5bb487-5193-4a65-a3df-4a0055a8c0d7".into());
    }
    match &network.addressing {
        Addressing::Static { address } => {
            let words = if network.ipv4 { ["ipv4", "static"] } else { ["ipv6", "static6"] };
            object.insert("type".into(), if random.chance(1, 4) { words[1] } else { words[0] }.into());
            spell_address(&mut object, *address, random);
        }
        Addressing::Dynamic { word } => {
            object.insert("type".into(), (*word).into());
            // Nova writes the address that the DHCP server will assign. The guest must not set this address.
            if *word != "ipv4_dhcp" && random.chance(1, 3) {
                object.insert("ip_address".into(), "2001:db8:ffff::17".into());
                object.insert("netmask".into(), "ffff:ffff:ffff:ffff::".into());
            }
        }
    }
    match (network.gateway, random.between(0, 15)) {
        (Some(gateway), _) => _ = object.insert("gateway".into(), spell_ip(gateway, random).into()),
        (None, 0) => _ = object.insert("gateway".into(), Value::Null),
        (None, 1) => _ = object.insert("gateway".into(), "".into()),
        (None, _) => {}
    }
    if random.chance(1, 10) {
        object.insert("dns_search".into(), json!(["example.com", "example.org"]));
    }
    let routes: Vec<Value> = network.routes.iter().map(|route| spell_route(route, random)).collect();
    if !routes.is_empty() || random.chance(1, 2) {
        object.insert("routes".into(), routes.into());
    } else if random.chance(1, 4) {
        object.insert("routes".into(), Value::Null);
    }
    match &network.servers {
        Servers::Services(servers) => {
            let services = spell_services(servers, random);
            if !services.is_empty() || random.chance(1, 3) {
                object.insert("services".into(), services.into());
            }
        }
        Servers::Plain(servers) => {
            let texts: Vec<String> = servers.iter().map(|server| spell_ip(*server, random)).collect();
            if !texts.is_empty() {
                let list = if random.chance(1, 2) { texts.join(" ").into() } else { texts.into() };
                object.insert("dns_nameservers".into(), list);
            }
        }
    }
    unknown_keys(&mut object, random);
    object.into()
}

fn spell_address(object: &mut Map<String, Value>, Cidr { address, length }: Cidr, random: &mut Random) {
    let default = if address.is_ipv4() { 24 } else { 64 };
    let ip = address;
    let address = spell_ip(address, random);
    let (text, mask): (String, Option<Value>) = match random.between(0, 10) {
        0 if length == default => (address, None),
        1 if length == default => (address, Some("".into())),
        10 if length == default => (address, Some(Value::Null)),
        0..=2 => (format!("{address}/{length}"), None),
        // The prefix length after the address takes precedence over the netmask.
        3 => (format!("{address}/{length}"), Some(mask_of(ip, 17).into())),
        4 => (format!("{address}/{length}"), Some("".into())),
        5 => (address, Some(length.into())),
        6 => (address, Some(length.to_string().into())),
        7 if ip.is_ipv4() => (format!("{address}/{}", mask_of(ip, length)), None),
        _ => (address, Some(mask_of(ip, length).into())),
    };
    object.insert("ip_address".into(), text.into());
    if let Some(mask) = mask {
        object.insert("netmask".into(), mask);
    }
}

/// Returns an address in a random spelling, of which IPv6 has several.
fn spell_ip(address: IpAddr, random: &mut Random) -> String {
    match (address, random.between(0, 7)) {
        (IpAddr::V6(address), 0) => address.to_string().to_ascii_uppercase(),
        (IpAddr::V6(address), 1) => address.segments().map(|segment| format!("{segment:04x}")).join(":"),
        (IpAddr::V6(address), 2) => address.segments().map(|segment| format!("{segment:X}")).join(":"),
        (address, _) => address.to_string(),
    }
}

/// Returns the netmask of a prefix length in the form of an address.
fn mask_of(address: IpAddr, length: u8) -> String {
    let zeros = u32::from(Cidr::bits(address) - length);
    match address {
        IpAddr::V4(_) => Ipv4Addr::from_bits(u32::MAX.checked_shl(zeros).unwrap_or(0)).to_string(),
        IpAddr::V6(_) => Ipv6Addr::from_bits(u128::MAX.checked_shl(zeros).unwrap_or(0)).to_string(),
    }
}

fn spell_route(route: &Route, random: &mut Random) -> Value {
    let mut object = Map::new();
    let Cidr { address, length } = route.destination;
    let mask = mask_of(address, length);
    let address_bits = Cidr::bits(address);
    // Host bits of a destination have no effect.
    let address = match address {
        IpAddr::V4(address) if length == 24 && random.chance(1, 6) => (address | Ipv4Addr::new(0, 0, 0, 9)).into(),
        IpAddr::V6(address) if length == 48 && random.chance(1, 6) => {
            (address | Ipv6Addr::new(0, 0, 0, 7, 0, 0, 0, 9)).into()
        }
        address => address,
    };
    let address = spell_ip(address, random);
    let (network, mask): (String, Option<Value>) = match (length, random.between(0, 3)) {
        (0, 0) => ("default".to_owned(), None),
        (0, 1) => (address, None),
        (_, 0) if length == address_bits => (address, None),
        (1.., 1) => (address, Some(length.into())),
        (_, 0..=2) => (format!("{address}/{length}"), None),
        (_, _) => (address, Some(mask.into())),
    };
    object.insert("network".into(), network.into());
    if let Some(mask) = mask {
        object.insert("netmask".into(), mask);
    }
    let none = everything(route.destination.address.is_ipv4()).address;
    match (route.via, random.between(0, 5)) {
        (Some(via), _) => _ = object.insert("gateway".into(), spell_ip(via, random).into()),
        (None, 0) => _ = object.insert("gateway".into(), none.to_string().into()),
        (None, 1) => _ = object.insert("gateway".into(), Value::Null),
        (None, 2) => _ = object.insert("gateway".into(), "".into()),
        (None, _) => {}
    }
    if let Some(metric) = route.metric {
        object.insert("metric".into(), metric.into());
    }
    if !route.servers.is_empty() {
        object.insert("services".into(), spell_services(&route.servers, random).into());
    }
    unknown_keys(&mut object, random);
    object.into()
}

fn spell_services(servers: &[IpAddr], random: &mut Random) -> Vec<Value> {
    let mut services: Vec<Value> =
        servers.iter().map(|server| json!({"type": "dns", "address": spell_ip(*server, random)})).collect();
    if random.chance(1, 8) {
        let place = random.between(0, services.len() as u64) as usize;
        services.insert(place, json!({"type": "ntp", "address": "192.0.2.123"}));
    }
    if random.chance(1, 12) {
        // Add an invalid name server, which has no effect on the others.
        let place = random.between(0, services.len() as u64) as usize;
        services.insert(place, json!({"type": "dns", "address": "resolver.example.com"}));
    }
    services
}

fn unknown_keys(object: &mut Map<String, Value>, random: &mut Random) {
    if random.chance(1, 8) {
        object.insert("x-comment".into(), json!({"ip_address": "192.0.2.66", "links": []}));
    }
}
