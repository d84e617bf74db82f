//! The state of a network. The expected and the actual state have the same form.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;

use glowplug::network::{BondMode, Family, Ipv6Dynamic, Link, LinkIndex, LinkKind, NetworkConfig, Nic, Route};
use serde_json::Value;

use super::cases::Program;

/// All devices by their [`key`], and all routing rules except the kernel's own rules.
#[derive(Debug, Default, Eq, PartialEq)]
pub(crate) struct State {
    devices: BTreeMap<String, Device>,
    rules: BTreeSet<String>,
    /// Routing rules of links that this machine might not have. These rules are not compared.
    unsure: BTreeSet<String>,
}

#[derive(Debug, Default, Eq, PartialEq)]
struct Device {
    /// MTU, if the network sets it.
    mtu: Option<u64>,
    mac: Option<String>,
    master: Option<String>,
    addresses: BTreeSet<String>,
    link_local: bool,
    routes: BTreeSet<String>,
    dns: Vec<String>,
    domains: Vec<String>,
    /// Protocols by which the device requests addresses, as in [`ASKS`].
    asks: BTreeSet<&'static str>,
    /// Options of a bond or a bridge.
    options: BTreeMap<String, String>,
}

/// Abilities of the kernel on which a network program runs.
pub(crate) struct KernelAbilities {
    /// Whether the kernel supports bonds and VLANs, and NICs have a permanent address.
    is_whole: bool,
}

/// Protocols by which a link may request addresses. Each protocol has the message that networkd logs at its start.
const ASKS: [(&str, &str); 3] = [
    ("dhcp4", "DHCPv4 client: STARTED"),
    ("ra", "NDISC: Started"),
    ("dhcp6", "DHCPv6 client: Starting in Solicit mode"),
];

/// The protocols of [`ASKS`] with the messages of NetworkManager: the text before and after the name of the interface.
const NM_ASKS: [(&str, &str, &str); 3] = [
    ("dhcp4", "dhcp4 (", "): activation: beginning transaction"),
    ("ra", "ndisc[", "\"]: starting neighbor discovery for ifindex"),
    ("dhcp6", "dhcp6 (", "): activation: beginning transaction"),
];

/// Warnings of NetworkManager that the test environment causes.
const NM_SURROUNDINGS: [&str; 4] = [
    "modem-manager: error poking ModemManager",
    "failed to read bridge setting",
    "failed to create",
    "failed to open '/",
];

/// Warnings of NetworkManager that a kernel without bonds or VLANs causes.
const NM_WITHOUT_THE_KIND: [&str; 3] =
    ["Operation not supported", "Activation: failed for connection", "couldn't create the device"];

/// Messages of networkd that the test environment causes.
const SURROUNDINGS: [&str; 7] = [
    // A bridge takes the MAC address of a port.
    "Failed to manage link by its new hardware address, ignoring: File exists",
    "Failed to read $container of PID 1, ignoring:",
    "Failed to get driver, continuing without:",
    "rtnl: received rule message with invalid family",
    "rtnl: received neighbor message with invalid family",
    "Could not enumerate wireless LAN",
    "Could not create runtime directory: File exists",
];

/// Messages of networkd that a kernel without bonds or VLANs causes.
const WITHOUT_THE_KIND: [&str; 4] = [
    "netdev could not be created: Operation not supported",
    "Unknown device type. Operation not supported",
    ": Failed",
    "State changed: configuring -> failed",
];

// === impl KernelAbilities ===

impl KernelAbilities {
    /// Returns the abilities of the host. The host's kernel may lack bonds and VLANs. The NICs are veth pairs, which
    /// have no permanent address.
    pub(crate) fn here() -> Self {
        Self { is_whole: false }
    }

    /// Returns the abilities of a virtual machine with Debian's kernel and emulated NICs.
    pub(crate) fn whole() -> Self {
        Self { is_whole: true }
    }
}

/// Returns the names and MAC addresses of the NICs of a machine, one line each.
pub(crate) fn nics(network: &NetworkConfig) -> String {
    let mut nics = String::new();
    for (at, link) in network.links().iter().enumerate() {
        let index = LinkIndex::new(at);
        match &link.kind {
            LinkKind::Nic(Nic::MacAddress { mac_address, .. }) => {
                nics += &format!("{} {mac_address}\n", key(network, index));
            }
            LinkKind::Nic(_) => nics += &format!("{} 02:ff:00:00:00:{at:02x}\n", key(network, index)),
            _ => {}
        }
    }
    nics
}

/// Returns the key of a device: the name of a NIC, a bond or a bridge; the VLAN id and the parent of a VLAN. A VLAN may
/// have any name.
fn key(network: &NetworkConfig, index: LinkIndex) -> String {
    match &network.link(index).kind {
        LinkKind::Nic(Nic::MacAddress { .. }) => format!("nic{}", index.position()),
        LinkKind::Nic(Nic::Name(name)) | LinkKind::Bond { name, .. } | LinkKind::Bridge { name, .. } => {
            name.to_string()
        }
        LinkKind::Nic(Nic::Pattern { .. }) => format!("pat{}", index.position()),
        LinkKind::Vlan { parent, id, .. } => format!("vlan {id} on {}", key(network, *parent)),
    }
}

// === impl State ===

impl State {
    pub(crate) fn meant(network: &NetworkConfig, program: Program, machine: &KernelAbilities) -> Self {
        let routes = routes(network);
        let mut devices = BTreeMap::new();
        for (at, link) in network.links().iter().enumerate() {
            let index = LinkIndex::new(at);
            if !machine.is_whole && !is_possible_here(network, index) {
                continue;
            }
            let mut device = Device::meant(network, index, link, &routes[at]);
            match program {
                Program::Networkd => {}
                Program::NetworkManager => device.as_profile(network, index),
                Program::Netplan => device.as_netplan(network, index),
            }
            devices.insert(key(network, index), device);
        }
        let (rules, unsure) = rules(network, |index| machine.is_whole || is_possible_here(network, index));
        Self { devices, rules, unsure }
    }

    /// Reads the output of the batch for the devices of `meant`.
    pub(crate) fn found(read: impl Fn(&str) -> String, meant: &Self) -> Self {
        let json = |name: &str| serde_json::from_str::<Value>(&read(name)).unwrap_or_default();
        let links = json("link");
        let links = links.as_array().cloned().unwrap_or_default();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        // Key of each device, by the name of the device.
        let mut keys: BTreeMap<String, String> = BTreeMap::new();
        for _ in 0..links.len() {
            for link in &links {
                let name = text(&link["ifname"]);
                let info = &link["linkinfo"];
                let key = match (info["info_kind"].as_str(), keys.get(&text(&link["link"]))) {
                    (Some("vlan"), Some(parent)) => format!("vlan {} on {parent}", info["info_data"]["id"]),
                    (Some("vlan"), None) => continue,
                    _ => name.clone(),
                };
                keys.insert(name, key);
            }
        }
        let mut devices: BTreeMap<String, Device> = BTreeMap::new();
        let mut names = BTreeMap::new();
        for link in &links {
            let name = text(&link["ifname"]);
            let Some(key) = keys.get(&name).filter(|key| *key != "lo") else { continue };
            let mut device = Device::default();
            let expected = meant.devices.get(key);
            device.mtu = link["mtu"].as_u64().filter(|_| expected.is_some_and(|expected| expected.mtu.is_some()));
            device.mac =
                Some(text(&link["address"])).filter(|_| expected.is_some_and(|expected| expected.mac.is_some()));
            device.master = link["master"].as_str().map(str::to_owned);
            if let Some(expected) = expected {
                let data = &link["linkinfo"]["info_data"];
                let slave = &link["linkinfo"]["info_slave_data"];
                for option in expected.options.keys() {
                    let value = if data[option].is_null() { &slave[option] } else { &data[option] };
                    let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                    device.options.insert(option.clone(), value);
                }
            }
            names.insert(link["ifindex"].to_string(), key.clone());
            devices.insert(key.clone(), device);
        }
        for link in json("addr").as_array().into_iter().flatten() {
            let Some(device) = keys.get(&text(&link["ifname"])).and_then(|key| devices.get_mut(key)) else { continue };
            for address in link["addr_info"].as_array().into_iter().flatten() {
                if address["scope"] == "link" && address["family"] == "inet6" {
                    device.link_local = true;
                } else {
                    device.addresses.insert(format!("{}/{}", text(&address["local"]), address["prefixlen"]));
                }
            }
        }
        for (name, everything, bits) in [("route4", "0.0.0.0/0", 32), ("route6", "::/0", 128)] {
            for route in json(name).as_array().into_iter().flatten().filter(|route| route["protocol"] == "static") {
                let Some(device) = keys.get(&text(&route["dev"])).and_then(|key| devices.get_mut(key)) else {
                    continue;
                };
                let destination = match text(&route["dst"]) {
                    all if all == "default" => everything.to_owned(),
                    network if network.contains('/') => network,
                    host => format!("{host}/{bits}"),
                };
                let via = route["gateway"].as_str();
                let table = route["table"].as_str().unwrap_or("main");
                let metric = route["metric"].as_u64().unwrap_or(0);
                let flags = route["flags"].as_array();
                let on_link = flags.is_some_and(|flags| flags.contains(&"onlink".into()));
                device.routes.insert(spell_route(&destination, via, metric, table, on_link));
            }
        }
        for line in read("netif").lines() {
            let Some((at, value)) = line.strip_prefix("./").and_then(|line| line.split_once(':')) else { continue };
            let Some(device) = names.get(at).and_then(|key| devices.get_mut(key)) else { continue };
            let words = |list: &str| list.split(' ').filter(|word| !word.is_empty()).map(str::to_owned).collect();
            match value.split_once('=') {
                Some(("DNS", list)) => device.dns = words(list),
                Some(("DOMAINS", list)) => device.domains = words(list),
                _ => {}
            }
        }
        for line in read("log").lines() {
            let Some((name, message)) = line.split_once(": ") else { continue };
            let Some(device) = keys.get(name).and_then(|key| devices.get_mut(key)) else { continue };
            device.asks.extend(ASKS.iter().filter(|(_, words)| message.starts_with(words)).map(|(whom, _)| *whom));
        }
        for line in read("log").lines().filter_map(|line| line.split_once("] ")).map(|(_, line)| line) {
            let asked = NM_ASKS.iter().filter_map(|(whom, before, after)| {
                let (name, rest) = line.strip_prefix(before)?.split_once(after)?;
                let name = name.rsplit_once('"').map_or(name, |(_, name)| name);
                (!rest.is_empty()).then_some((name, *whom))
            });
            for (name, whom) in asked.collect::<Vec<_>>() {
                if let Some(device) = keys.get(name).and_then(|key| devices.get_mut(key)) {
                    device.asks.insert(whom);
                }
            }
        }
        devices.retain(|key, _| meant.devices.contains_key(key));
        let mut rules = BTreeSet::new();
        for (name, bits) in [("rule4", 32), ("rule6", 128)] {
            // These are the priorities of the kernel's own rules.
            let is_own = |rule: &&Value| [0, 32_766, 32_767].map(Value::from).contains(&rule["priority"]);
            for rule in json(name).as_array().into_iter().flatten().filter(|rule| !is_own(rule)) {
                let network = |side: &str| {
                    let address = rule[side].as_str().filter(|address| *address != "all")?;
                    Some(format!("{address}/{}", rule[format!("{side}len")].as_u64().unwrap_or(bits)))
                };
                let hex = |name: &str| {
                    u32::from_str_radix(rule[name].as_str()?.strip_prefix("0x")?, 16).ok().filter(|number| *number > 0)
                };
                let networks = [network("src"), network("dst")];
                let priority = rule["priority"].as_u64().unwrap_or(0);
                rules.insert(spell_rule(priority, networks, hex("fwmark"), hex("tos"), &text(&rule["table"])));
            }
        }
        Self { devices, rules: &rules - &meant.unsure, unsure: meant.unsure.clone() }
    }
}

impl State {
    /// Returns the same state with each name server of a device only once.
    pub(crate) fn without_repeated_servers(mut self) -> Self {
        for device in self.devices.values_mut() {
            let all = std::mem::take(&mut device.dns);
            once(&mut device.dns, all.into_iter());
        }
        self
    }
}

/// Whether a device can exist on a kernel without bonds and VLANs, where no NIC has a permanent address. A device below
/// a VLAN fails together with the VLAN.
fn is_possible_here(network: &NetworkConfig, index: LinkIndex) -> bool {
    let link = network.link(index);
    if network.carries_vlans(index) {
        return false;
    }
    match &link.kind {
        LinkKind::Nic(Nic::MacAddress { .. }) => {
            let controller = network.controller_of(index).map(|controller| &network.link(controller).kind);
            link.cloned_mac_address.is_none() && !matches!(controller, Some(LinkKind::Bond { .. }))
        }
        LinkKind::Nic(_) => {
            let controller = network.controller_of(index).map(|controller| &network.link(controller).kind);
            !matches!(controller, Some(LinkKind::Bond { .. }))
        }
        LinkKind::Bridge { ports, .. } => ports.iter().all(|port| is_possible_here(network, *port)),
        LinkKind::Bond { .. } | LinkKind::Vlan { .. } => false,
    }
}

/// Routes by table and destination: metric, link, and index in the link.
type Groups = BTreeMap<(Option<u32>, String), Vec<(u64, usize, usize)>>;

/// Returns the routes of each link, with their expected metrics.
fn routes(network: &NetworkConfig) -> Vec<BTreeSet<String>> {
    let mut routes = vec![BTreeSet::new(); network.links().len()];
    let mut groups = Groups::new();
    for (link, it) in network.links().iter().enumerate() {
        for (at, route) in it.routes.iter().enumerate().filter(|(_, route)| it.can_route(route)) {
            let group = groups.entry((route.table, route.destination().to_string())).or_default();
            group.push((u64::from(route.metric().unwrap_or(0)), link, at));
        }
    }
    for ((table, destination), mut group) in groups {
        group.sort_unstable();
        let mut seen = Vec::new();
        let mut last = if destination.contains(':') { Some(0) } else { None };
        for (metric, link, at) in group {
            let it = network.link(LinkIndex::new(link));
            let route = &it.routes[at];
            if seen.contains(&(link, route.gateway())) {
                continue;
            }
            seen.push((link, route.gateway()));
            let metric = last.map_or(metric, |last: u64| metric.max(last + 1));
            last = Some(metric);
            let table = table.map_or_else(|| "main".to_owned(), |table| table.to_string());
            let via = route.gateway().map(|via| via.to_string());
            let on_link = route.gateway().is_some_and(|via| route.on_link || !is_near(it, via));
            routes[link].insert(spell_route(&destination, via.as_deref(), metric, &table, on_link));
        }
    }
    routes
}

/// Whether a gateway is outside the subnets of its link. The kernel rejects a route through such a gateway without
/// `on-link`. glowplug adds `on-link`, netplan does not.
pub(crate) fn has_far_gateway(network: &NetworkConfig) -> bool {
    network.links().iter().any(|link| {
        let routes = link.routes.iter().filter(|route| link.can_route(route) && !route.on_link);
        routes.filter_map(Route::gateway).any(|gateway| !is_near(link, gateway))
    })
}

fn is_near(link: &Link, gateway: IpAddr) -> bool {
    match gateway {
        IpAddr::V4(gateway) => link.ipv4.addresses.iter().any(|network| network.contains(gateway)),
        IpAddr::V6(gateway) => {
            let is_link_local = gateway.segments()[0] & 0xffc0 == 0xfe80;
            link.ipv6.addresses.iter().any(|network| is_link_local || network.contains(gateway))
        }
    }
}

/// Returns two sets of routing rules, each rule with its priority: the rules of the links for which `is_set` is true,
/// and the rules of the other links. Rules without a priority come directly before the main table, in the order of the
/// document.
fn rules(network: &NetworkConfig, is_set: impl Fn(LinkIndex) -> bool) -> (BTreeSet<String>, BTreeSet<String>) {
    let all = || network.links().iter().flat_map(|link| &link.routing_policy);
    let mut next = 32_766 - all().filter(|rule| rule.priority.is_none()).count() as u32;
    let (mut rules, mut others) = (BTreeSet::new(), BTreeSet::new());
    for (at, link) in network.links().iter().enumerate() {
        let index = LinkIndex::new(at);
        for rule in &link.routing_policy {
            let priority = rule.priority.unwrap_or(next);
            next += u32::from(rule.priority.is_none());
            let is_used = if rule.family() == Family::Ipv4 { link.ipv4.is_used() } else { link.ipv6.is_used() };
            if is_used && network.controller_of(index).is_none() {
                let networks = [rule.from(), rule.to()].map(|network| Some(network?.to_string()));
                let (table, tos) = (rule.table.unwrap_or(254).to_string(), rule.type_of_service.map(u32::from));
                let rule = spell_rule(priority.into(), networks, rule.mark, tos, &table);
                if is_set(index) {
                    rules.insert(rule)
                } else {
                    others.insert(rule)
                };
            }
        }
    }
    (rules, others)
}

fn spell_rule(
    priority: u64,
    [from, to]: [Option<String>; 2],
    mark: Option<u32>,
    tos: Option<u32>,
    table: &str,
) -> String {
    format!("{priority} from {from:?} to {to:?} mark {mark:?} tos {tos:?} table {table}")
}

fn spell_route(destination: &str, via: Option<&str>, metric: u64, table: &str, on_link: bool) -> String {
    let via = via.map(|via| format!(" via {via}")).unwrap_or_default();
    let on_link = if on_link { " onlink" } else { "" };
    format!("{destination}{via} metric {metric} table {table}{on_link}")
}

/// Returns the messages of the program about mistakes in our files, and about its own failures.
pub(crate) fn complaints(log: &str, program: Program, machine: &KernelAbilities) -> Vec<String> {
    if program == Program::NetworkManager {
        let is_complaint = |line: &&str| line.starts_with("<warn>") || line.starts_with("<error>");
        let is_expected = |line: &&str| {
            NM_SURROUNDINGS.iter().any(|words| line.contains(words))
                || !machine.is_whole && NM_WITHOUT_THE_KIND.iter().any(|words| line.contains(words))
        };
        return log.lines().filter(is_complaint).filter(|line| !is_expected(line)).map(str::to_owned).collect();
    }
    let is_complaint = |line: &&str| {
        let lower = line.to_ascii_lowercase();
        let words =
            ["could not", "failed", "invalid", "ignoring", "unknown", "conflict", "unsupported", "not supported"];
        // A complaint about a file starts with its path. Other messages name a file in quotes or after a colon.
        line.starts_with("/run/systemd/network/") || words.iter().any(|word| lower.contains(word))
    };
    let is_expected = |line: &&str| {
        SURROUNDINGS.iter().any(|words| line.contains(words))
            || !machine.is_whole && WITHOUT_THE_KIND.iter().any(|words| line.ends_with(words))
    };
    log.lines().filter(is_complaint).filter(|line| !is_expected(line)).map(str::to_owned).collect()
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.devices.iter().try_for_each(|(key, device)| writeln!(f, "{key}: {device:?}"))?;
        self.rules.iter().try_for_each(|rule| writeln!(f, "rule {rule}"))
    }
}

// === impl Device ===

impl Device {
    fn meant(network: &NetworkConfig, index: LinkIndex, link: &Link, routes: &BTreeSet<String>) -> Self {
        let controller = network.controller_of(index).map(|controller| network.link(controller));
        let mut device = Self { mac: mac(network, index), ..Self::default() };
        let of_bond = controller.filter(|controller| matches!(controller.kind, LinkKind::Bond { .. }));
        device.mtu = of_bond.map_or(link.mtu, |bond| bond.mtu).map(|mtu| mtu.to_string().parse().unwrap());
        device.options = options(network, index);
        if controller.is_some() {
            device.master = network.controller_of(index).map(|controller| key(network, controller));
            return device;
        }
        device.addresses.extend(link.ipv4.addresses.iter().map(ToString::to_string));
        device.addresses.extend(link.ipv6.addresses.iter().map(ToString::to_string));
        device.routes.clone_from(routes);
        let ipv6 = &link.ipv6;
        // A bridge without ports has no carrier.
        let is_empty = matches!(&link.kind, LinkKind::Bridge { ports, .. } if ports.is_empty());
        let by_default = ipv6.is_used() || link.ipv4.is_used() && !is_empty;
        let is_needed = ipv6.dynamic.is_some() || ipv6.accept_ra == Some(true);
        device.link_local = is_needed || ipv6.link_local.unwrap_or(by_default);
        if link.ipv4.dhcp {
            device.asks.insert("dhcp4");
        }
        // A link whose only IPv6 address is link-local keeps networkd's default, which requests router advertisements.
        let is_default = device.link_local && ipv6.addresses.is_empty();
        if ipv6.accept_ra.unwrap_or(ipv6.dynamic.is_some() || is_default) {
            device.asks.insert("ra");
        }
        if link.ipv6.dynamic == Some(Ipv6Dynamic::StatefulDhcp) {
            device.asks.insert("dhcp6");
        }
        if link.has_addresses() {
            for dns in [&link.dns, &network.dns] {
                once(&mut device.dns, dns.nameservers.iter().map(ToString::to_string));
                once(&mut device.domains, dns.search.iter().map(ToString::to_string));
            }
        }
        device
    }
}

impl Device {
    /// Changes the expected state where NetworkManager configures a device differently from networkd.
    fn as_profile(&mut self, network: &NetworkConfig, index: LinkIndex) {
        let link = network.link(index);
        // NetworkManager sets these options only with STP.
        if let LinkKind::Bridge { options, .. } = &link.kind
            && options.stp != Some(true)
        {
            let with_stp = ["forward_delay", "hello_time", "max_age", "priority"];
            self.options.retain(|name, _| !with_stp.contains(&name.as_str()));
        }
        if network.controller_of(index).is_some() {
            return;
        }
        let (ipv4, ipv6) = (&link.ipv4, &link.ipv6);
        self.asks.remove("ra");
        self.asks.remove("dhcp6");
        let is_dynamic = ipv6.dynamic.is_some();
        let asks_routers = if is_dynamic {
            ipv6.accept_ra != Some(false)
        } else {
            ipv6.accept_ra == Some(true) && !self.is_by_kernel(link)
        };
        let asks_server = !asks_routers && ipv6.dynamic == Some(Ipv6Dynamic::StatefulDhcp);
        self.asks.extend(asks_routers.then_some("ra"));
        self.asks.extend(asks_server.then_some("dhcp6"));
        // NetworkManager sets a link-local address on each link on which it uses IPv6.
        self.link_local |= !ipv6.addresses.is_empty();
        let has_servers = !ipv6.addresses.is_empty() || asks_routers || asks_server;
        let is_used = |server: &String, ipv4: bool| server.contains(':') != ipv4;
        let servers =
            |has: bool, ipv4: bool| self.dns.iter().filter(move |server| has && is_used(server, ipv4)).cloned();
        let dns = servers(link.ipv4.is_used(), true).chain(servers(has_servers, false)).collect();
        if !ipv4.is_used() && !has_servers {
            self.domains.clear();
        } else if ipv4.is_used() && has_servers {
            // The search domains are listed once for each family.
            self.domains.extend(self.domains.clone());
        }
        self.dns = dns;
    }

    /// Changes the expected state where files of netplan differ from files of glowplug. With netplan, NICs have
    /// link-local addresses and accept router advertisements, even with static addresses. DHCPv6 waits for a router.
    /// Every route is set, with the metric of the document.
    fn as_netplan(&mut self, network: &NetworkConfig, index: LinkIndex) {
        let link = network.link(index);
        if network.controller_of(index).is_some() {
            return;
        }
        self.link_local = link.ipv6.link_local != Some(false);
        self.asks.remove("ra");
        self.asks.remove("dhcp6");
        if self.link_local && link.ipv6.accept_ra != Some(false) {
            self.asks.insert("ra");
        }
        let spell = |route: &Route| {
            let default = if route.destination().is_ipv4() { 0 } else { 1024 };
            let metric = route.metric().filter(|metric| *metric > 0).map_or(default, u64::from);
            let table = route.table.map_or_else(|| "main".to_owned(), |table| table.to_string());
            let via = route.gateway().map(|via| via.to_string());
            spell_route(&route.destination().to_string(), via.as_deref(), metric, &table, route.on_link)
        };
        self.routes = link.routes.iter().filter(|route| link.can_route(route)).map(spell).collect();
        // The name servers of IPv4 come first.
        self.dns.sort_by_key(|server| server.contains(':'));
    }

    /// Whether only the kernel configures IPv6 on the link.
    fn is_by_kernel(&self, link: &Link) -> bool {
        let is_used = link.ipv6.is_used() || link.ipv6.link_local.is_some();
        !is_used && (!link.ipv4.dhcp || link.ipv4.addresses.is_empty())
    }
}

fn once(list: &mut Vec<String>, more: impl Iterator<Item = String>) {
    for word in more {
        if !list.contains(&word) {
            list.push(word);
        }
    }
}

/// Returns the MAC address of a device, if the network determines this address.
fn mac(network: &NetworkConfig, index: LinkIndex) -> Option<String> {
    let link = network.link(index);
    if let Some(controller) = network.controller_of(index)
        && let LinkKind::Bond { options, .. } = &network.link(controller).kind
    {
        // A bond sets its MAC address on its members, unless `fail_over_mac` or a balancing mode prevents this.
        let keeps = options.get("fail_over_mac").is_some_and(|policy| policy != "none");
        let balances = matches!(options.mode(), BondMode::BalanceTlb | BondMode::BalanceAlb);
        return if keeps || balances { None } else { mac(network, controller) };
    }
    match &link.kind {
        LinkKind::Nic(_) => link.mac_address().map(|mac| mac.to_string()),
        LinkKind::Bond { options, .. } if options.get("fail_over_mac").is_some_and(|policy| policy == "active") => None,
        kind => {
            let own = |mac: Option<pnet_base::MacAddr>| mac.map(|mac| mac.to_string());
            own(link.cloned_mac_address).or_else(|| {
                let first = *kind.made_of().first()?;
                match &network.link(first).kind {
                    // This is the own MAC address of the first member, not the address that a bond sets on the member.
                    LinkKind::Nic(_) => own(network.link(first).mac_address()),
                    _ => mac(network, first),
                }
            })
        }
    }
}

/// Returns the options of a bond, a bridge or a port, with the names of `ip -d`.
fn options(network: &NetworkConfig, index: LinkIndex) -> BTreeMap<String, String> {
    let mut known = BTreeMap::new();
    match &network.link(index).kind {
        LinkKind::Bond { options, .. } => {
            known.insert("mode".to_owned(), options.mode().to_string());
            for option in options.others() {
                // networkd 252 accepts `LearnPacketIntervalSec=` but does not apply it. ip prints a disabled ARP check as null,
                // and switches as numbers.
                let differs = matches!(
                    (option.name, option.value.as_str()),
                    ("all_slaves_active" | "use_carrier" | "tlb_dynamic_lb" | "lp_interval", _)
                        | ("arp_validate", "none")
                );
                let value = option.value.clone();
                let name = match option.name {
                    "lacp_rate" => "ad_lacp_rate",
                    "num_grat_arp" | "num_unsol_na" => "num_peer_notif",
                    other => other,
                };
                if !differs {
                    known.insert(name.to_owned(), value);
                }
            }
            if let Some(primary) = options.primary() {
                known.insert("primary".to_owned(), key(network, primary));
            }
        }
        LinkKind::Bridge { options, .. } => {
            let mut tell = |name: &str, value: Option<u32>| {
                if let Some(value) = value {
                    known.insert(name.to_owned(), value.to_string());
                }
            };
            tell("stp_state", options.stp.map(u32::from));
            // The kernel's unit is a hundredth of a second.
            tell("ageing_time", options.ageing_time.map(|seconds| seconds * 100));
            tell("forward_delay", options.forward_delay.map(|seconds| seconds * 100));
            tell("hello_time", options.hello_time.map(|seconds| seconds * 100));
            tell("max_age", options.max_age.map(|seconds| seconds * 100));
            tell("priority", options.priority.map(u32::from));
        }
        _ => {}
    }
    if let Some(controller) = network.controller_of(index)
        && let LinkKind::Bridge { options, .. } = &network.link(controller).kind
        && let Some(port) = options.ports.iter().find(|port| port.port == index)
    {
        known.extend(port.path_cost.map(|cost| ("cost".to_owned(), cost.to_string())));
        known.extend(port.priority.map(|priority| ("priority".to_owned(), priority.to_string())));
    }
    known
}
