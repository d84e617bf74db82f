//! Generates documents of cloud-init's own format: versions 1 and 2, with most features in random combinations.
//!
//! A seed and a version determine a machine and a spelling of its document. The programs that read the document must
//! agree about its meaning. The documents are similar to documents that people write.

use std::net::IpAddr;

use serde_json::{Map, Value, json};

use super::random::Random;

struct Device {
    /// Name, by which other devices refer to this device.
    name: String,
    what: What,
    mtu: Option<u64>,
    accept_ra: Option<bool>,
    /// Families in which the device gets a link-local address. Version 1 has no such member.
    link_local: Option<&'static [&'static str]>,
    /// `None`: no DHCPv4. Else the metric of its routes, if the document has a metric.
    dhcp4: Option<Option<u64>>,
    /// `None`: no dynamic IPv6. Else its type name in version 1, and the metric of its routes.
    dynamic6: Option<(&'static str, Option<u64>)>,
    /// Addresses with their prefix lengths.
    addresses: Vec<(IpAddr, u8)>,
    gateways: Vec<IpAddr>,
    routes: Vec<Route>,
    servers: Vec<String>,
    search: Vec<&'static str>,
}

enum What {
    Nic(Nic),
    Bond { ports: Vec<String>, mac: Option<String> },
    Bridge { ports: Vec<String>, mac: Option<String> },
    Vlan { parent: String, tag: u64, mac: Option<String> },
}

/// The members of a document that identify a NIC.
enum Nic {
    Name,
    Mac(String),
    /// The members of `match`, which only version 2 has.
    Like(Value),
}

struct Route {
    to: String,
    length: Option<u8>,
    via: Option<IpAddr>,
    metric: Option<u64>,
}

/// Generates the document of a seed, as a tree of values.
pub(crate) fn tree(seed: u64, version: u64) -> Value {
    let mut random = Random(seed.wrapping_mul(0x9e37).wrapping_add(version));
    let devices = machine(&mut random, version);
    let mut document = if version == 1 { version_1(&devices, &mut random) } else { version_2(&devices, &mut random) };
    document["version"] = version.into();
    if random.chance(1, 3) { json!({"network": document}) } else { document }
}

// === The machine ===

fn machine(random: &mut Random, version: u64) -> Vec<Device> {
    let mut names = vec!["eno1", "ens3", "lan0", "enp1s0f1", "data", "eth0", "eth7", "wan"];
    random.shuffle(&mut names);
    let mut devices = Vec::new();
    let mut free = Vec::new();
    for index in 0..random.between(1, 4) {
        let Some(name) = names.pop() else { break };
        let what = match random.between(0, 9) {
            0..=4 => Nic::Mac(mac_address(random, index)),
            5 if version == 2 => Nic::Like(match random.between(0, 3) {
                0 => json!({"name": format!("ens9{index}")}),
                1 => json!({"name": format!("enp{index}s*")}),
                2 => json!({"driver": format!("virtio{index}")}),
                _ => json!({"name": format!("enp7{index}*"), "driver": "e1000*"}),
            }),
            _ => Nic::Name,
        };
        if !matches!(what, Nic::Like(_)) {
            free.push(name.to_owned());
        }
        devices.push(device(name.to_owned(), What::Nic(what)));
    }
    let mut upper = free.clone();
    if free.len() >= 2 && random.chance(1, 3) {
        let ports: Vec<String> = free.drain(..2).collect();
        upper.retain(|name| !ports.contains(name));
        let name = random.pick(&["bond0", "agg1"]).to_string();
        upper.push(name.clone());
        free.push(name.clone());
        let mac = random.chance(1, 3).then(|| mac_address(random, 0x40));
        devices.push(device(name, What::Bond { ports, mac }));
    }
    for index in 0..random.one_in(3, 1, 3) {
        let Some(parent) = (!upper.is_empty()).then(|| random.pick(&upper).clone()) else { break };
        let on_vlan = devices.iter().any(|of| of.name == parent && matches!(of.what, What::Vlan { .. }));
        let tag = random.between(0, 1000) * 4 + index + 1;
        let name = match random.between(0, 2) {
            0 if !on_vlan => format!("{parent}.{tag}"),
            1 => format!("vlan{tag}"),
            _ => format!("storage{index}"),
        };
        let mac = random.chance(1, 4).then(|| mac_address(random, 0x80 + index));
        free.push(name.clone());
        upper.push(name.clone());
        devices.push(device(name, What::Vlan { parent, tag, mac }));
    }
    if random.chance(1, 4) {
        let used = |name: &String| {
            devices.iter().any(|other| matches!(&other.what, What::Vlan { parent, .. } if parent == name))
        };
        free.retain(|name| !used(name));
        random.shuffle(&mut free);
        let count = random.between(0, free.len().min(2) as u64) as usize;
        let ports: Vec<String> = free.drain(..count).collect();
        let mac = random.chance(1, 4).then(|| mac_address(random, 0xc0));
        devices.push(device("br0".to_owned(), What::Bridge { ports, mac }));
    }
    let ports: Vec<String> = devices
        .iter()
        .flat_map(|device| match &device.what {
            What::Bond { ports, .. } | What::Bridge { ports, .. } => ports.clone(),
            _ => Vec::new(),
        })
        .collect();
    for (index, device) in devices.iter_mut().enumerate() {
        if random.chance(1, 4) {
            device.mtu = Some(*random.pick(&[1280, 1400, 1450, 1500, 9000]));
        }
        if !ports.contains(&device.name) && random.chance(5, 6) {
            settings(device, index as u8, random);
        }
    }
    random.shuffle(&mut devices);
    devices
}

fn device(name: String, what: What) -> Device {
    Device {
        name,
        what,
        mtu: None,
        accept_ra: None,
        link_local: None,
        dhcp4: None,
        dynamic6: None,
        addresses: Vec::new(),
        gateways: Vec::new(),
        routes: Vec::new(),
        servers: Vec::new(),
        search: Vec::new(),
    }
}

fn mac_address(random: &mut Random, index: u64) -> String {
    let bytes = random.next().to_be_bytes();
    // Some MAC addresses consist of decimal digits only. Without quotes, YAML reads such an address as a number in base
    // 60.
    if random.chance(1, 4) {
        return format!("52:54:00:{:02}:{:02}:{:02}", bytes[0] % 60, bytes[1] % 60, index % 60);
    }
    let vendor = random.pick(&["52:54:00", "fa:16:3e", "02:00:00", "0a:58:0a"]);
    format!("{vendor}:{:02x}:{:02x}:{index:02x}", bytes[0], bytes[1])
}

fn settings(device: &mut Device, index: u8, random: &mut Random) {
    let metric = |random: &mut Random| random.chance(1, 5).then(|| random.between(1, 300));
    if random.chance(1, 3) {
        device.dhcp4 = Some(metric(random));
    }
    if random.chance(1, 4) {
        let word = *random.pick(&["dhcp6", "ipv6_slaac", "ipv6_dhcpv6-stateless", "ipv6_dhcpv6-stateful"]);
        device.dynamic6 = Some((word, metric(random)));
    }
    if random.chance(1, 8) {
        device.accept_ra = Some(random.chance(1, 2));
    }
    if random.chance(1, 6) {
        device.link_local = Some(random.pick::<&[&str]>(&[&["ipv6"], &["ipv6"], &[], &["ipv4"]]));
    }
    for nth in 0..random.one_in(2, 1, 2) as u8 {
        let length = *random.pick(&[16, 20, 24, 24, 28, 32]);
        device.addresses.push(([10, index, 3, 65 + nth].into(), length));
    }
    for nth in 0..random.one_in(3, 1, 2) as u16 {
        let address = [0x2001, 0xdb8, u16::from(index), 0, 0, 0, 0, 0x1000 + nth].into();
        device.addresses.push((address, *random.pick(&[48, 64, 64, 120, 128])));
    }
    if random.chance(1, 3) {
        random.shuffle(&mut device.addresses);
    }
    for (is_v6, hop) in [(false, IpAddr::from([10, index, 3, 1])), (true, [0xfe80, 0, 0, 0, 0, 0, 0, 1].into())] {
        let is_static = device.addresses.iter().any(|(address, _)| address.is_ipv6() == is_v6);
        let is_used = is_static || if is_v6 { device.dynamic6.is_some() } else { device.dhcp4.is_some() };
        if is_used && random.chance(1, 3) {
            device.gateways.push(hop);
        }
        // Some routes have no effect, because the device does not use their family.
        for nth in 0..random.one_in(if is_used { 2 } else { 16 }, 1, 3) {
            device.routes.push(route(is_v6, index, nth, hop, random));
        }
    }
    let servers = ["1.1.1.1", "8.8.8.8", "10.0.0.53", "2001:4860:4860::8888", "2001:db8::53"];
    for _ in 0..random.one_in(3, 1, 3) {
        let server = if random.chance(1, 20) { "resolver.example.com" } else { *random.pick(&servers) };
        device.servers.push(server.to_owned());
    }
    for _ in 0..random.one_in(5, 1, 2) {
        device.search.push(random.pick::<&'static str>(&["example.com", "corp.example.org", "lan"]));
    }
}

fn route(is_v6: bool, index: u8, nth: u64, hop: IpAddr, random: &mut Random) -> Route {
    let (to, length): (String, Option<u8>) = match (random.between(0, 6), is_v6) {
        (0, _) => ("default".into(), None),
        (1, false) => ("0.0.0.0".into(), Some(0)),
        (1, true) => ("::".into(), Some(0)),
        (2, false) => ("0.0.0.0".into(), None),
        (2, true) => ("::".into(), None),
        (3, false) => (format!("198.51.100.{nth}"), None),
        (3, true) => (format!("2001:db8:77::{nth}"), None),
        (_, false) => (format!("172.{}.{nth}.0", 16 + index), Some(24)),
        (_, true) => (format!("2001:db8:{:x}::", 0x9000 + u64::from(index) * 16 + nth), Some(48)),
    };
    let via = (to == "default" || random.chance(4, 5)).then_some(hop);
    Route { to, length, via, metric: random.chance(1, 4).then(|| random.between(0, 300)) }
}

// === Both versions ===

fn spell_mac(mac: &str, random: &mut Random) -> Value {
    let mac = if random.chance(1, 4) { mac.to_ascii_uppercase() } else { mac.to_owned() };
    if random.chance(1, 6) { mac.replace(':', "-").into() } else { mac.into() }
}

fn number(number: u64, random: &mut Random) -> Value {
    if random.chance(1, 8) { number.to_string().into() } else { number.into() }
}

/// Returns a list, or sometimes a string if there is only one word.
fn list(words: &[String], random: &mut Random) -> Value {
    match words {
        [one] if random.chance(1, 3) => one.clone().into(),
        words => words.into(),
    }
}

/// Returns bond options with the kernel's names. The kernel accepts each option in the mode of the bond.
fn bond_options(ports: &[String], random: &mut Random) -> Vec<(&'static str, Value)> {
    let modes = ["balance-rr", "active-backup", "balance-xor", "broadcast", "802.3ad", "balance-tlb", "balance-alb"];
    let at = random.between(0, 6) as usize;
    let mode = modes[at];
    let mut options = vec![("mode", if random.chance(1, 4) { at.into() } else { mode.into() })];
    if mode == "active-backup" && random.chance(1, 3) {
        options.push(("arp_interval", 1000.into()));
        let targets = ["10.0.0.1", "10.0.0.2"];
        options.push(("arp_ip_target", if random.chance(1, 2) { json!(targets) } else { json!(["10.0.0.1"]) }));
        if random.chance(1, 2) {
            options.push(("arp_validate", "all".into()));
        }
    } else if random.chance(2, 3) {
        options.push(("miimon", number(100, random)));
        if random.chance(1, 3) {
            options.push(("updelay", 400.into()));
            options.push(("downdelay", number(200, random)));
        }
    }
    if matches!(mode, "active-backup" | "balance-tlb" | "balance-alb") && random.chance(1, 2) {
        options.push(("primary", random.pick(ports).clone().into()));
        if random.chance(1, 2) {
            options.push(("primary_reselect", "better".into()));
        }
    }
    if mode == "802.3ad" {
        options.push(("lacp_rate", if random.chance(1, 3) { 1.into() } else { "fast".into() }));
        options.push(("ad_select", "bandwidth".into()));
    }
    if matches!(mode, "802.3ad" | "balance-xor") {
        options.push(("xmit_hash_policy", random.pick(&["layer2", "layer2+3", "layer3+4"]).to_string().into()));
    }
    for (name, value) in [("min_links", 1), ("num_grat_arp", 3), ("resend_igmp", 2), ("all_slaves_active", 1)] {
        if random.chance(1, 8) {
            options.push((name, value.into()));
        }
    }
    options
}

fn bridge_options(ports: &[String], random: &mut Random) -> Vec<(&'static str, Value)> {
    let mut options = vec![("stp", random.chance(1, 2).into())];
    for (name, value) in
        [("ageing_time", 250), ("priority", 4096), ("forward_delay", 12), ("hello_time", 2), ("max_age", 20)]
    {
        if random.chance(1, 3) {
            options.push((name, number(value, random)));
        }
    }
    if let Some(port) = ports.first().filter(|_| random.chance(1, 2)) {
        let mut pairs = Map::new();
        pairs.insert(port.clone(), 50.into());
        options.push((if random.chance(1, 2) { "path_cost" } else { "port_priority" }, pairs.into()));
    }
    options
}

// === Version 1 ===

fn version_1(devices: &[Device], random: &mut Random) -> Value {
    let mut config: Vec<Value> = devices.iter().map(|device| device_1(device, random)).collect();
    for device in devices {
        // Add a route of the machine with a gateway in a subnet of this device.
        if let Some((IpAddr::V4(address), 16..=24)) = device.addresses.first().filter(|_| random.chance(1, 6)) {
            let [a, b, c, _] = address.octets();
            let mut route =
                json!({"type": "route", "destination": "203.0.113.0/24", "gateway": format!("{a}.{b}.{c}.1")});
            if random.chance(1, 2) {
                route["destination"] = "203.0.113.0".into();
                route["netmask"] = "255.255.255.0".into();
            }
            if random.chance(1, 3) {
                route["metric"] = 7.into();
            }
            config.push(route);
        }
        if random.chance(1, 8) {
            let name = if random.chance(1, 6) { "nowhere".to_owned() } else { device.name.clone() };
            config.push(json!({"type": "nameserver", "address": ["9.9.9.9"], "interface": name}));
        }
    }
    for _ in 0..random.one_in(2, 1, 2) {
        let address = if random.chance(1, 2) { json!("149.112.112.112") } else { json!(["1.0.0.1", "2620:fe::fe"]) };
        let mut command = json!({"type": "nameserver", "address": address});
        if random.chance(1, 2) {
            command["search"] = if random.chance(1, 2) { json!("example.net") } else { json!(["example.net", "test"]) };
        }
        config.push(command);
    }
    if random.chance(1, 10) {
        let subnets = json!([{"type": "loopback", "dns_nameservers": ["127.0.0.53"]}]);
        config.insert(0, json!({"type": "loopback", "name": "lo", "subnets": subnets}));
    }
    json!({"config": config})
}

fn device_1(device: &Device, random: &mut Random) -> Value {
    let mut object = json!({"name": device.name});
    let set_mac = |object: &mut Value, mac: &Option<String>, random: &mut Random| {
        if let Some(mac) = mac {
            object["mac_address"] = spell_mac(mac, random);
        }
    };
    match &device.what {
        What::Nic(nic) => {
            object["type"] = if random.chance(1, 30) { "ethernet" } else { "physical" }.into();
            if let Nic::Mac(mac) = nic {
                object["mac_address"] = spell_mac(mac, random);
            }
        }
        What::Bond { ports, mac } => {
            object["type"] = "bond".into();
            object["bond_interfaces"] = ports.clone().into();
            set_mac(&mut object, mac, random);
            let dash = if random.chance(1, 2) { "bond-" } else { "bond_" };
            let mut params = Map::new();
            for (name, value) in bond_options(ports, random) {
                let name = if dash == "bond-" { name.replace('_', "-") } else { name.to_owned() };
                params.insert(format!("{dash}{name}"), value);
            }
            object["params"] = params.into();
        }
        What::Bridge { ports, mac } => {
            object["type"] = "bridge".into();
            object["bridge_interfaces"] = ports.clone().into();
            set_mac(&mut object, mac, random);
            let mut params = Map::new();
            for (name, value) in bridge_options(ports, random) {
                let name = match name {
                    "ageing_time" => "ageing",
                    "priority" => "bridgeprio",
                    "forward_delay" => "fd",
                    "hello_time" => "hello",
                    "max_age" => "maxage",
                    "path_cost" => "pathcost",
                    "port_priority" => "portprio",
                    name => name,
                };
                let value = match &value {
                    Value::Bool(on) if random.chance(1, 2) => if *on { "on" } else { "off" }.into(),
                    Value::Object(pairs) => {
                        let pairs: Vec<String> =
                            pairs.iter().map(|(port, number)| format!("{port} {number}")).collect();
                        list(&pairs, random)
                    }
                    value => value.clone(),
                };
                params.insert(format!("bridge_{name}"), value);
            }
            if random.chance(1, 3) {
                params.insert("bridge_fd".into(), 0.into());
                params.insert("bridge_waitport".into(), 0.into());
            }
            if random.chance(3, 4) {
                object["params"] = params.into();
            }
        }
        What::Vlan { parent, tag, mac } => {
            object["type"] = "vlan".into();
            object["vlan_link"] = parent.clone().into();
            object["vlan_id"] = number(*tag, random);
            set_mac(&mut object, mac, random);
        }
    }
    if let Some(accept) = device.accept_ra {
        object["accept-ra"] = accept.into();
    }
    let mut subnets = Vec::new();
    if let Some(metric) = device.dhcp4 {
        subnets.push(dynamic(if random.chance(1, 2) { "dhcp" } else { "dhcp4" }, metric));
    }
    if let Some((word, metric)) = device.dynamic6 {
        subnets.push(dynamic(word, metric));
    }
    let mut gateways = device.gateways.clone();
    for (address, length) in &device.addresses {
        let mut subnet = static_subnet(*address, *length, random);
        if let Some(at) = gateways.iter().position(|gateway| gateway.is_ipv4() == address.is_ipv4()) {
            subnet["gateway"] = gateways.remove(at).to_string().into();
            if random.chance(1, 6) {
                subnet["metric"] = 42.into();
            }
        }
        subnets.push(subnet);
    }
    if random.chance(1, 4) {
        random.shuffle(&mut subnets);
    }
    if subnets.is_empty() && random.chance(1, 4) {
        subnets.push(json!({"type": "manual"}));
    }
    if let Some(last) = subnets.len().checked_sub(1) {
        for route in &device.routes {
            let at = random.between(0, last as u64) as usize;
            let route = route_1(route, random);
            match subnets[at].get_mut("routes").and_then(Value::as_array_mut) {
                Some(routes) => routes.push(route),
                None => subnets[at]["routes"] = json!([route]),
            }
        }
        let at = random.between(0, last as u64) as usize;
        let blanks = random.chance(1, 3);
        if !device.servers.is_empty() {
            subnets[at]["dns_nameservers"] =
                if blanks { device.servers.join(" ").into() } else { device.servers.clone().into() };
        }
        if !device.search.is_empty() {
            subnets[at]["dns_search"] =
                if blanks { device.search.join(" ").into() } else { device.search.clone().into() };
        }
    }
    if let Some(mtu) = device.mtu {
        match subnets.first_mut().filter(|_| random.chance(1, 12)) {
            Some(subnet) => subnet["mtu"] = mtu.into(),
            None => object["mtu"] = number(mtu, random),
        }
    }
    if !subnets.is_empty() {
        object["subnets"] = subnets.into();
    }
    object
}

fn dynamic(word: &str, metric: Option<u64>) -> Value {
    let mut subnet = json!({"type": word});
    if let Some(metric) = metric {
        subnet["metric"] = metric.into();
    }
    subnet
}

fn static_subnet(address: IpAddr, length: u8, random: &mut Random) -> Value {
    let kind = if address.is_ipv6() && random.chance(1, 2) { "static6" } else { "static" };
    let mut subnet = json!({"type": kind, "address": address.to_string()});
    match (address, length, random.between(0, 6)) {
        (IpAddr::V4(_), 24, 0) | (IpAddr::V6(_), 64, 0) => {}
        (_, _, 1) => subnet["netmask"] = length.into(),
        (_, _, 2) => subnet["netmask"] = length.to_string().into(),
        (_, _, 3) => subnet["prefix"] = length.into(),
        (_, _, 4) => subnet["netmask"] = mask(address, length).into(),
        (IpAddr::V4(_), _, 5) => subnet["address"] = format!("{address}/{}", mask(address, length)).into(),
        _ => subnet["address"] = format!("{address}/{length}").into(),
    }
    subnet
}

fn mask(of: IpAddr, length: u8) -> String {
    match of {
        IpAddr::V4(_) => {
            std::net::Ipv4Addr::from(u32::MAX.checked_shl(32 - u32::from(length)).unwrap_or(0)).to_string()
        }
        IpAddr::V6(_) => {
            std::net::Ipv6Addr::from(u128::MAX.checked_shl(128 - u32::from(length)).unwrap_or(0)).to_string()
        }
    }
}

fn route_1(route: &Route, random: &mut Random) -> Value {
    let mut object = Map::new();
    let name = *random.pick(&["network", "destination"]);
    let address = route.to.parse::<IpAddr>().ok();
    match (route.length, address, random.between(0, 2)) {
        (Some(length), Some(address), 0) => {
            object.insert(name.into(), route.to.clone().into());
            object.insert("netmask".into(), mask(address, length).into());
        }
        // cloud-init ignores a prefix length of 0.
        (Some(length @ 1..), Some(_), 1) => {
            object.insert(name.into(), route.to.clone().into());
            object.insert("prefix".into(), length.into());
        }
        (Some(length), ..) => _ = object.insert(name.into(), format!("{}/{length}", route.to).into()),
        (None, ..) => _ = object.insert(name.into(), route.to.clone().into()),
    }
    if let Some(via) = route.via {
        object.insert("gateway".into(), via.to_string().into());
    }
    if let Some(metric) = route.metric {
        object.insert("metric".into(), number(metric, random));
    }
    object.into()
}

// === Version 2 ===

fn version_2(devices: &[Device], random: &mut Random) -> Value {
    let mut document = json!({});
    for device in devices {
        let (section, name, value) = device_2(device, random);
        document[section][name] = value;
    }
    if random.chance(1, 6) {
        document["renderer"] = "networkd".into();
    }
    document
}

fn device_2(device: &Device, random: &mut Random) -> (&'static str, String, Value) {
    let mut object = json!({});
    let parameters = |options: Vec<(&'static str, Value)>| -> Value {
        let name = |name: &str| match name {
            "miimon" => "mii-monitor-interval".to_owned(),
            "updelay" => "up-delay".to_owned(),
            "downdelay" => "down-delay".to_owned(),
            "num_grat_arp" => "gratuitous-arp".to_owned(),
            "xmit_hash_policy" => "transmit-hash-policy".to_owned(),
            "primary_reselect" => "primary-reselect-policy".to_owned(),
            "arp_ip_target" => "arp-ip-targets".to_owned(),
            other => other.replace('_', "-"),
        };
        options.into_iter().map(|(option, value)| (name(option), value)).collect::<Map<_, _>>().into()
    };
    let mut mac_to_set = None;
    let section = match &device.what {
        What::Nic(nic) => {
            match nic {
                Nic::Name => {}
                Nic::Mac(mac) => {
                    object["match"] = json!({"macaddress": spell_mac(mac, random)});
                    if random.chance(1, 2) {
                        let name = if random.chance(1, 2) { device.name.clone() } else { format!("my{}", device.name) };
                        object["set-name"] = name.into();
                    }
                    if random.chance(1, 12) {
                        mac_to_set = Some(mac_address(random, 0xf0));
                    }
                }
                Nic::Like(like) => {
                    object["match"] = like.clone();
                }
            }
            if matches!(nic, Nic::Name) && random.chance(1, 12) {
                object["set-name"] = "other0".into();
            }
            if random.chance(1, 10) {
                object["wakeonlan"] = true.into();
            }
            "ethernets"
        }
        What::Bond { ports, mac } => {
            object["interfaces"] = ports.clone().into();
            object["parameters"] = parameters(bond_options(ports, random));
            mac_to_set.clone_from(mac);
            "bonds"
        }
        What::Bridge { ports, mac } => {
            object["interfaces"] = ports.clone().into();
            object["parameters"] = parameters(bridge_options(ports, random));
            mac_to_set.clone_from(mac);
            "bridges"
        }
        What::Vlan { parent, tag, mac } => {
            object["link"] = parent.clone().into();
            object["id"] = number(*tag, random);
            mac_to_set.clone_from(mac);
            "vlans"
        }
    };
    if let Some(mac) = mac_to_set {
        object["macaddress"] = spell_mac(&mac, random);
    }
    if let Some(accept) = device.accept_ra {
        object["accept-ra"] = accept.into();
    }
    if let Some(families) = device.link_local {
        object["link-local"] = families.to_vec().into();
    }
    if let Some(mtu) = device.mtu {
        object["mtu"] = number(mtu, random);
    }
    let switch = |on: bool, random: &mut Random| {
        if random.chance(1, 20) { if on { "true" } else { "false" }.into() } else { Value::Bool(on) }
    };
    for (name, dynamic) in [("dhcp4", device.dhcp4), ("dhcp6", device.dynamic6.map(|(_, metric)| metric))] {
        match dynamic {
            Some(metric) => {
                object[name] = switch(true, random);
                if let Some(metric) = metric {
                    object[format!("{name}-overrides")] = json!({"route-metric": metric, "use-dns": false});
                }
            }
            None if random.chance(1, 3) => object[name] = switch(false, random),
            None => {}
        }
    }
    let addresses: Vec<String> =
        device.addresses.iter().map(|(address, length)| format!("{address}/{length}")).collect();
    if !addresses.is_empty() {
        object["addresses"] = list(&addresses, random);
        if let Some(Value::Array(list)) = object.get_mut("addresses")
            && random.chance(1, 12)
        {
            list[0] = json!({addresses[0].clone(): {"label": "x:1"}});
        }
    }
    for gateway in &device.gateways {
        object[if gateway.is_ipv4() { "gateway4" } else { "gateway6" }] = gateway.to_string().into();
    }
    let routes: Vec<Value> = device.routes.iter().map(|route| route_2(route, random)).collect();
    if !routes.is_empty() {
        object["routes"] = routes.into();
    }
    if !device.servers.is_empty() || !device.search.is_empty() {
        object["nameservers"] = json!({});
        if !device.servers.is_empty() {
            object["nameservers"]["addresses"] = list(&device.servers, random);
        }
        if !device.search.is_empty() {
            let search: Vec<String> = device.search.iter().map(ToString::to_string).collect();
            object["nameservers"]["search"] = search.into();
        }
    }
    if random.chance(1, 12) {
        object["optional"] = true.into();
    }
    (section, device.name.clone(), object)
}

fn route_2(route: &Route, random: &mut Random) -> Value {
    let to = route.length.map_or_else(|| route.to.clone(), |length| format!("{}/{length}", route.to));
    let mut object = json!({"to": to});
    if let Some(via) = route.via {
        object["via"] = via.to_string().into();
        if random.chance(1, 8) {
            object["on-link"] = true.into();
        }
    }
    if let Some(metric) = route.metric {
        object["metric"] = metric.into();
    }
    if random.chance(1, 12) {
        object["table"] = 100.into();
    }
    object
}
