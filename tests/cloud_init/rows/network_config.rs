//! Rows for cloud-init's own network-config. The name of a row begins with `v1` or `v2` for one version, and with `nc`
//! for both versions.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnetwork::IpNetwork;
use serde_json::{Value, json};

use super::Undo::{Both, Document, Text, Understood};
use super::{
    Row, destination, is_address, links, objects, objects_mut, remove, text, without_mtus_above_parents,
    without_unreachable_routes, words,
};

pub(super) const ROWS: &[Row] = &[
    Row { id: "nc-mac-of-digits", undo: Text(mac_of_digits) },
    Row { id: "nc-mac-dashes", undo: Document(mac_dashes) },
    Row { id: "nc-route-default", undo: Document(default_routes) },
    Row { id: "nc-route-mask", undo: Document(route_masks) },
    Row { id: "nc-text-for-list", undo: Document(texts_for_lists) },
    Row { id: "nc-name-server", undo: Document(name_servers) },
    Row { id: "nc-mtu", undo: Document(mtus) },
    Row { id: "v1-name", undo: Document(no_names) },
    Row { id: "v1-type", undo: Document(unknown_types) },
    Row { id: "v1-infiniband", undo: Document(infiniband) },
    Row { id: "v1-name-server-interface", undo: Document(name_server_interfaces) },
    Row { id: "v1-subnet-mtu", undo: Document(subnet_mtus) },
    Row { id: "v2-section", undo: Document(sections) },
    Row { id: "v2-null-device", undo: Document(null_devices) },
    Row { id: "v2-set-name-illegal", undo: Document(illegal_set_names) },
    Row { id: "v2-name-servers-shape", undo: Document(shapeless_name_servers) },
    Row { id: "v2-route-type", undo: Document(route_types) },
    Row { id: "v2-bridge-without-ports", undo: Document(bridges_without_ports) },
    Row { id: "v2-address-options", undo: Document(address_options) },
    Row { id: "v2-text-switch", undo: Document(text_switches) },
    Row { id: "v2-set-name-alone", undo: Document(set_names_alone) },
    Row { id: "v2-match-name", undo: Document(match_names) },
    Row { id: "v2-id", undo: Document(ids) },
    Row { id: "v2-parameter", undo: Both(without_parameters, parameters) },
    Row { id: "v2-match-pattern", undo: Understood(match_patterns) },
    Row { id: "v1-loopback", undo: Understood(loopback) },
    Row { id: "v1-global-route", undo: Understood(global_routes) },
    Row { id: "nc-bridge-option", undo: Understood(bridge_options) },
    Row { id: "v2-search-alone", undo: Understood(search_alone) },
    Row { id: "v2-name-servers-of-links", undo: Understood(name_servers_of_links) },
    Row { id: "v2-everywhere", undo: Understood(everywhere) },
    Row { id: "v2-routes-alone", undo: Understood(routes_alone) },
    Row { id: "v2-route-members", undo: Understood(route_members) },
    Row { id: "v2-gateway", undo: Understood(gateways) },
    Row { id: "v2-macaddress", undo: Understood(mac_addresses) },
    Row { id: "v2-accept-ra", undo: Understood(accept_ra_of_others) },
    Row { id: "nc-accept-ra", undo: Understood(accept_ra) },
    Row { id: "nc-unreachable-route", undo: Understood(unreachable_routes) },
    Row { id: "nc-vlan-mtu", undo: Understood(vlan_mtus) },
];

const SECTIONS: [&str; 4] = ["ethernets", "bonds", "bridges", "vlans"];

fn body(document: &Value) -> &Value {
    document.get("network").unwrap_or(document)
}

fn body_mut(document: &mut Value) -> &mut Value {
    if document.get("network").is_some() { &mut document["network"] } else { document }
}

/// Returns the items of a version 1 document.
fn commands(document: &Value) -> impl Iterator<Item = &Value> {
    objects(body(document), "config")
}

fn commands_mut(document: &mut Value) -> impl Iterator<Item = &mut Value> {
    objects_mut(body_mut(document), "config")
}

/// Returns the section, the key and the value of each device of a version 2 document.
fn devices(document: &Value) -> impl Iterator<Item = (&'static str, &String, &Value)> {
    let of = |section| body(document).get(section).and_then(Value::as_object).into_iter().flatten();
    SECTIONS.into_iter().flat_map(move |section| of(section).map(move |(key, device)| (section, key, device)))
}

fn each_device(document: &mut Value, mut change: impl FnMut(&'static str, &str, &mut Value)) {
    let body = body_mut(document);
    for section in SECTIONS {
        for (key, device) in body.get_mut(section).and_then(Value::as_object_mut).into_iter().flatten() {
            change(section, key, device);
        }
    }
}

// === Rewrites of the document ===

/// Whether a text has an unquoted MAC address without letters. YAML reads such an address as a number in base 60 if the
/// last five groups are below 60.
fn mac_of_digits(text: &str) -> bool {
    text.split(|c: char| c.is_whitespace() || ",{}[]".contains(c)).any(|word| {
        let groups: Vec<&str> = word.split(':').collect();
        groups.len() == 6 && groups.iter().all(|group| group.len() == 2 && group.bytes().all(|b| b.is_ascii_digit()))
    })
}

fn with_colons(object: &mut Value, name: &str) {
    if let Some(mac) = text(object, name).filter(|mac| mac.contains('-')) {
        object[name] = mac.replace('-', ":").into();
    }
}

fn mac_dashes(document: &mut Value) {
    commands_mut(document).for_each(|command| with_colons(command, "mac_address"));
    each_device(document, |_, _, device| {
        with_colons(device, "macaddress");
        if let Some(matched) = device.get_mut("match") {
            with_colons(matched, "macaddress");
        }
    });
}

fn each_route(document: &mut Value, change: impl Fn(&mut Value)) {
    for command in commands_mut(document) {
        if text(command, "type") == Some("route") {
            change(command);
        }
        objects_mut(command, "subnets").for_each(|subnet| objects_mut(subnet, "routes").for_each(&change));
    }
    each_device(document, |_, _, device| objects_mut(device, "routes").for_each(&change));
}

const DESTINATIONS: [&str; 3] = ["network", "destination", "to"];

fn default_routes(document: &mut Value) {
    each_route(document, |route| {
        let is_v6 = ["via", "gateway"].iter().any(|name| text(route, name).is_some_and(|hop| hop.contains(':')));
        for name in DESTINATIONS {
            if text(route, name) == Some("default") {
                route[name] = destination("default", false, is_v6).into();
            }
        }
    });
}

fn route_masks(document: &mut Value) {
    each_route(document, |route| {
        let has_mask = ["netmask", "prefix"].iter().any(|name| route.get(*name).is_some());
        for name in DESTINATIONS {
            if let Some(to) = text(route, name).filter(|to| *to != "default") {
                route[name] = destination(to, has_mask, false).into();
            }
        }
    });
}

fn name_servers(document: &mut Value) {
    let filter = |object: &mut Value, name: &str| {
        let servers = words(object.get(name));
        if servers.iter().any(|server| !is_address(server)) {
            object[name] = servers.into_iter().filter(|server| is_address(server)).collect::<Vec<_>>().into();
        }
    };
    for command in commands_mut(document) {
        filter(command, "address");
        objects_mut(command, "subnets").for_each(|subnet| filter(subnet, "dns_nameservers"));
    }
    each_device(document, |_, _, device| {
        device.get_mut("nameservers").into_iter().for_each(|of| filter(of, "addresses"))
    });
}

fn mtus(document: &mut Value) {
    let check = |object: &mut Value| {
        let mtu = object.get("mtu").and_then(Value::as_u64);
        if mtu.is_some_and(|mtu| !(68..=65_535).contains(&mtu)) {
            remove(object, "mtu");
        }
    };
    commands_mut(document).for_each(check);
    each_device(document, |_, _, device| check(device));
}

fn sections(document: &mut Value) {
    let is_devices = |value: &Value| value.as_object().is_some_and(|value| !value.is_empty());
    if let Some(members) = body_mut(document).as_object_mut() {
        members.retain(|name, value| SECTIONS.contains(&name.as_str()) || !is_devices(value));
    }
}

fn null_devices(document: &mut Value) {
    each_device(document, |_, _, device| {
        if device.is_null() {
            *device = json!({});
        }
    });
}

fn illegal_set_names(document: &mut Value) {
    each_device(document, |_, _, device| {
        let is_legal = |name: &str| {
            name.len() <= 15 && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
        };
        if text(device, "set-name").is_some_and(|name| !is_legal(name)) {
            remove(device, "set-name");
        }
    });
}

fn no_names(document: &mut Value) {
    for command in commands_mut(document) {
        if text(command, "type") == Some("physical") && text(command, "name").is_none() {
            // cloud_init.py reports no name for a NIC whose name is `nic` and a number.
            command["name"] = "nic99".into();
        }
    }
}

fn unknown_types(document: &mut Value) {
    let known = ["physical", "bond", "bridge", "vlan", "loopback", "nameserver", "route", "infiniband"];
    for command in commands_mut(document) {
        if text(command, "type").is_none_or(|kind| !known.contains(&kind)) {
            command["type"] = "physical".into();
        }
    }
}

fn name_server_interfaces(document: &mut Value) {
    let names: Vec<String> =
        commands(document).filter_map(|command| text(command, "name")).map(str::to_owned).collect();
    for command in commands_mut(document) {
        if text(command, "interface").is_some_and(|name| !names.iter().any(|other| other == name)) {
            remove(command, "interface");
        }
    }
}

fn subnet_mtus(document: &mut Value) {
    for command in commands_mut(document) {
        let mtu = objects(command, "subnets").find_map(|subnet| subnet.get("mtu")).cloned();
        if let Some(mtu) = mtu.filter(|_| command.get("mtu").is_none()) {
            command["mtu"] = mtu;
        }
    }
}

fn texts_for_lists(document: &mut Value) {
    let change = |object: &mut Value, name: &str| {
        let Some(text) = text(object, name) else { return };
        let words: Vec<&str> = text.split([' ', ',']).filter(|word| !word.is_empty()).collect();
        object[name] = json!(words);
    };
    for command in commands_mut(document) {
        ["bond_interfaces", "bridge_interfaces", "address", "search"].iter().for_each(|name| change(command, name));
    }
    each_device(document, |_, _, device| {
        ["interfaces", "addresses"].iter().for_each(|name| change(device, name));
    });
}

fn infiniband(document: &mut Value) {
    for command in commands_mut(document).filter(|command| text(command, "type") == Some("infiniband")) {
        remove(command, "mac_address");
    }
}

fn shapeless_name_servers(document: &mut Value) {
    each_device(document, |_, _, device| {
        if device.get("nameservers").is_some_and(|of| !of.is_object()) {
            remove(device, "nameservers");
        }
    });
}

fn route_types(document: &mut Value) {
    each_device(document, |_, _, device| {
        if let Some(routes) = device.get_mut("routes").and_then(Value::as_array_mut) {
            routes.retain(|route| text(route, "type").is_none_or(|kind| kind == "unicast"));
        }
    });
}

fn bridges_without_ports(document: &mut Value) {
    each_device(document, |section, _, device| {
        if section == "bridges" && device.get("interfaces").is_none_or(Value::is_null) {
            device["interfaces"] = json!([]);
        }
    });
}

fn address_options(document: &mut Value) {
    each_device(document, |_, _, device| {
        for address in device.get_mut("addresses").and_then(Value::as_array_mut).into_iter().flatten() {
            if let Some((bare, _)) = address.as_object().and_then(|object| object.iter().next()) {
                *address = bare.clone().into();
            }
        }
    });
}

fn text_switches(document: &mut Value) {
    each_device(document, |_, _, device| {
        for name in ["dhcp4", "dhcp6"] {
            if text(device, name).is_some_and(|word| ["false", "no", "n", "off"].contains(&word)) {
                device[name] = false.into();
            }
        }
    });
}

fn set_names_alone(document: &mut Value) {
    each_device(document, |_, _, device| {
        if device.get("match").is_none() {
            remove(device, "set-name");
        }
    });
}

/// Returns the name in `match`, if `match` has no MAC address and the name is no pattern.
fn matched_name(device: &Value) -> Option<&str> {
    let matched = device.get("match")?;
    text(matched, "name").filter(|name| text(matched, "macaddress").is_none() && !name.contains(['*', '?', '[']))
}

fn match_names(document: &mut Value) {
    if let Some(nics) = body_mut(document).get_mut("ethernets").and_then(Value::as_object_mut) {
        for (key, mut device) in std::mem::take(nics) {
            let name = matched_name(&device).map_or(key, str::to_owned);
            if matched_name(&device).is_some() {
                remove(&mut device, "match");
                remove(&mut device, "set-name");
            }
            nics.insert(name, device);
        }
    }
}

/// Replaces keys by names where one device refers to another. cloud-init does not find a NIC by its key if the NIC has
/// another name.
fn ids(document: &mut Value) {
    let mut names = BTreeMap::new();
    let nics = devices(document).filter(|(section, ..)| *section == "ethernets");
    for (at, (_, key, device)) in nics.enumerate() {
        if device.get("match").is_some_and(|matched| text(matched, "macaddress").is_some()) {
            names.insert(key.clone(), text(device, "set-name").map_or(format!("nic{at}"), str::to_owned));
        }
    }
    let replace = |value: &mut Value| {
        if let Some(name) = value.as_str().and_then(|key| names.get(key)) {
            *value = name.clone().into();
        }
    };
    each_device(document, |_, _, device| {
        device.get_mut("link").into_iter().for_each(replace);
        device.get_mut("interfaces").and_then(Value::as_array_mut).into_iter().flatten().for_each(replace);
        if let Some(parameters) = device.get_mut("parameters") {
            parameters.get_mut("primary").into_iter().for_each(replace);
            for name in ["path-cost", "port-priority"] {
                if let Some(pairs) = parameters.get_mut(name).and_then(Value::as_object_mut) {
                    *pairs = std::mem::take(pairs)
                        .into_iter()
                        .map(|(port, number)| (names.get(&port).cloned().unwrap_or(port), number))
                        .collect();
                }
            }
        }
    });
}

// === Changes of the meaning ===

/// Bond parameters that cloud-init 22.4.2 supports.
const TAKEN: [&str; 15] = [
    "ad-select",
    "arp-interval",
    "arp-ip-target",
    "arp-validate",
    "down-delay",
    "fail-over-mac-policy",
    "gratuitous-arp",
    "lacp-rate",
    "mii-monitor-interval",
    "min-links",
    "mode",
    "primary",
    "primary-reselect-policy",
    "transmit-hash-policy",
    "up-delay",
];

/// Bond parameters that cloud-init 22.4.2 lacks, each with the name of the kernel.
const LACKING: [(&str, &str); 7] = [
    ("all-slaves-active", "all_slaves_active"),
    ("all-members-active", "all_slaves_active"),
    ("arp-all-targets", "arp_all_targets"),
    ("arp-ip-targets", "arp_ip_target"),
    ("learn-packet-interval", "lp_interval"),
    ("packets-per-slave", "packets_per_slave"),
    ("resend-igmp", "resend_igmp"),
];

fn without_parameters(document: &mut Value) {
    each_device(document, |section, _, device| {
        if section == "bonds"
            && let Some(parameters) = device.get_mut("parameters").and_then(Value::as_object_mut)
        {
            parameters.retain(|name, _| TAKEN.contains(&name.as_str()));
        }
    });
}

fn parameters(document: &Value, meaning: &mut Value) {
    for (section, key, device) in devices(document) {
        for (name, kernels) in LACKING {
            if let Some(value) = device.get("parameters").and_then(|parameters| parameters.get(name))
                && section == "bonds"
                && let Some(link) = link(document, meaning, key)
            {
                let words = if value.is_array() { words(Some(value)) } else { words(Some(&json!([value]))) };
                link["options"][kernels] = words.join(",").into();
            }
        }
    }
}

/// Returns the key that a device of a version 2 document has in `links` of a meaning (see `meaning.rs`).
fn key_of(document: &Value, name: &str) -> String {
    let Some((section, key, device)) = devices(document).find(|(_, key, _)| *key == name) else {
        return name.to_owned();
    };
    match section {
        "bonds" => {
            let mut ports: Vec<String> =
                words(device.get("interfaces")).iter().map(|port| key_of(document, port)).collect();
            ports.sort_unstable();
            format!("bond of {}", ports.join(", "))
        }
        "bridges" => format!("bridge {key}"),
        "vlans" => {
            let parent = key_of(document, text(device, "link").unwrap_or_default());
            format!("vlan {} on {parent}", words(Some(&json!([device["id"]]))).concat())
        }
        _ => match device.get("match") {
            Some(matched) => match text(matched, "macaddress") {
                Some(mac) => mac.replace('-', ":").to_lowercase(),
                None => matched_name(device).map_or_else(|| pattern(matched), str::to_owned),
            },
            None => key.clone(),
        },
    }
}

fn pattern(matched: &Value) -> String {
    format!("NICs {} of {}", text(matched, "name").unwrap_or(""), text(matched, "driver").unwrap_or(""))
}

fn link<'m>(document: &Value, meaning: &'m mut Value, name: &str) -> Option<&'m mut Value> {
    meaning.get_mut("links")?.get_mut(key_of(document, name))
}

fn match_patterns(document: &Value, meaning: &mut Value) {
    for (_, key, device) in devices(document) {
        let is_pattern = |matched: &&Value| text(matched, "macaddress").is_none() && matched_name(device).is_none();
        let Some(matched) = device.get("match").filter(is_pattern) else { continue };
        let name = text(device, "set-name").unwrap_or(key);
        if let Some(links) = meaning["links"].as_object_mut()
            && let Some(mut link) = links.remove(name)
        {
            link["name"] = device.get("set-name").cloned().unwrap_or_default();
            links.insert(pattern(matched), link);
        }
    }
}

/// Removes duplicates of a list and keeps its order.
fn distinct(list: Vec<Value>) -> Value {
    let mut once = Vec::new();
    for item in list {
        if !once.contains(&item) {
            once.push(item);
        }
    }
    once.into()
}

fn loopback(_: &Value, meaning: &mut Value) {
    let Some(lo) = meaning["links"].as_object_mut().and_then(|links| links.remove("lo")) else { return };
    for name in ["servers", "search"] {
        let mut list = lo["dns"][name].as_array().cloned().unwrap_or_default();
        list.extend(meaning["dns"][name].as_array().cloned().unwrap_or_default());
        meaning["dns"][name] = distinct(list);
    }
}

fn global_routes(_: &Value, meaning: &mut Value) {
    let routes = meaning["routes"].as_array_mut().map(std::mem::take).unwrap_or_default();
    for route in routes {
        let hop: Option<IpAddr> =
            route.as_str().and_then(|route| route.split(' ').nth(2)).and_then(|hop| hop.parse().ok());
        let holds = |address: &Value| {
            let network = address.as_str().and_then(|address| address.parse::<IpNetwork>().ok());
            network.zip(hop).is_some_and(|(network, hop)| network.contains(hop))
        };
        let found =
            links(meaning).find(|(_, link)| link["addresses"].as_array().is_some_and(|of| of.iter().any(holds)));
        if let Some(routes) = found.and_then(|(_, link)| link["routes"].as_array_mut()) {
            routes.push(route);
            routes.sort_by(|a, b| a.as_str().cmp(&b.as_str()));
        }
    }
}

fn bridge_options(_: &Value, meaning: &mut Value) {
    for (_, link) in links(meaning).filter(|(key, _)| key.starts_with("bridge ")) {
        for name in ["gcint", "maxwait", "waitport"] {
            remove(&mut link["options"], name);
        }
        if link["options"]["forward_delay"] == "0" {
            remove(&mut link["options"], "forward_delay");
        }
    }
}

fn search_alone(document: &Value, meaning: &mut Value) {
    let is_alone = |device: &Value| {
        let servers = |of: &Value| words(of.get("addresses")).iter().any(|server| is_address(server));
        device.get("nameservers").is_some_and(|of| !servers(of))
    };
    for section in SECTIONS {
        let section = || devices(document).filter(move |(other, ..)| *other == section);
        if section().any(|(_, _, device)| is_alone(device)) {
            for (_, key, device) in section() {
                if let (Some(of), Some(link)) = (device.get("nameservers"), link(document, meaning, key)) {
                    let servers = words(of.get("addresses")).into_iter().filter(|server| is_address(server));
                    link["dns"]["servers"] = distinct(servers.map(Value::from).collect());
                    link["dns"]["search"] = distinct(words(of.get("search")).into_iter().map(Value::from).collect());
                }
            }
        }
    }
}

fn name_servers_of_links(document: &Value, meaning: &mut Value) {
    if devices(document).next().is_some() {
        meaning["dns"] = json!({"servers": [], "search": []});
    }
}

/// Returns destination and gateway of a version 2 route in the form of cloud-init's answers.
fn bare_route(route: &Value) -> Option<String> {
    let via = text(route, "via").map(|via| format!(" via {via}")).unwrap_or_default();
    let to: IpNetwork = destination(text(route, "to")?, false, via.contains(':')).parse().ok()?;
    Some(format!("{}/{}{via}", to.network(), to.prefix()))
}

fn everywhere(document: &Value, meaning: &mut Value) {
    for (_, key, device) in devices(document) {
        let routes: Vec<String> =
            objects(device, "routes").filter_map(bare_route).filter(|route| route.starts_with("::/0")).collect();
        let Some(link) = link(document, meaning, key) else { continue };
        let Some(mut written) = link["routes"].as_array().cloned() else { continue };
        for route in &mut written {
            let right = route.as_str().map(|route| route.replacen("::/64", "::/0", 1)).unwrap_or_default();
            if route.as_str().is_some_and(|route| route.starts_with("::/64")) && routes.contains(&right) {
                *route = right.into();
            }
        }
        link["routes"] = sorted(written);
    }
}

fn routes_alone(document: &Value, meaning: &mut Value) {
    for (_, key, device) in devices(document) {
        let Some(link) = link(document, meaning, key) else { continue };
        if link["addresses"] == json!([]) && link["dhcp4"] == false && link["dynamic6"].is_null() {
            link["routes"] = sorted(objects(device, "routes").filter_map(bare_route).map(Value::from).collect());
        }
    }
}

fn route_members(document: &Value, meaning: &mut Value) {
    for (_, key, device) in devices(document) {
        let Some(link) = link(document, meaning, key) else { continue };
        let Some(written) = link["routes"].as_array().cloned() else { continue };
        let mut routes = written.clone();
        let gateways = ["gateway4", "gateway6"].into_iter().filter_map(|name| text(device, name));
        let gateways: Vec<Value> = gateways.map(|gateway| default_route(gateway).into()).collect();
        let mut full = Vec::new();
        for route in objects(device, "routes") {
            let Some(mut text) = bare_route(route) else { continue };
            let base = Value::from(text.clone());
            if !written.contains(&base) {
                continue;
            }
            for name in ["metric", "table"] {
                if let Some(number) = route.get(name) {
                    text.push_str(&format!(" {name} {number}"));
                }
            }
            if route.get("on-link") == Some(&true.into()) {
                text.push_str(" on-link");
            }
            full.push(Value::from(text));
            routes.retain(|route| *route != base || gateways.contains(route));
        }
        routes.extend(full);
        link["routes"] = sorted(routes);
    }
}

fn sorted(mut routes: Vec<Value>) -> Value {
    routes.sort_by(|a, b| a.as_str().cmp(&b.as_str()));
    routes.dedup();
    routes.into()
}

fn default_route(gateway: &str) -> String {
    format!("{} via {gateway}", destination("default", false, gateway.contains(':')))
}

fn gateways(document: &Value, meaning: &mut Value) {
    for (_, key, device) in devices(document) {
        for name in ["gateway4", "gateway6"] {
            if let (Some(gateway), Some(link)) = (text(device, name), link(document, meaning, key))
                && let Some(mut routes) = link["routes"].as_array().cloned()
            {
                routes.push(default_route(gateway).into());
                link["routes"] = sorted(routes);
            }
        }
    }
}

fn mac_addresses(document: &Value, meaning: &mut Value) {
    for (_, key, device) in devices(document) {
        if let (Some(mac), Some(link)) = (text(device, "macaddress"), link(document, meaning, key)) {
            link["mac"] = mac.replace('-', ":").to_lowercase().into();
        }
    }
}

fn accept_ra_of_others(document: &Value, meaning: &mut Value) {
    for (section, key, device) in devices(document) {
        if let (Some(accept), Some(link)) = (device.get("accept-ra"), link(document, meaning, key))
            && section != "ethernets"
        {
            link["accept_ra"] = accept.clone();
        }
    }
}

fn accept_ra(_: &Value, meaning: &mut Value) {
    for (_, link) in links(meaning) {
        let has_v6 = link["addresses"].as_array().is_some_and(|addresses| {
            addresses.iter().any(|address| address.as_str().is_some_and(|address| address.contains(':')))
        });
        if link["accept_ra"] == true && link["dynamic6"].is_null() && !has_v6 {
            link["dynamic6"] = "slaac".into();
        }
    }
}

fn unreachable_routes(document: &Value, meaning: &mut Value) {
    let before = meaning.clone();
    links(meaning).for_each(|(_, link)| without_unreachable_routes(link));
    // cloud-init's meaning has no link-local addresses. A link that gets a link-local address keeps its IPv6 routes.
    for (_, key, _) in devices(document).filter(|(.., device)| words(device.get("link-local")).contains(&"ipv6".into()))
    {
        let mut before = before.clone();
        let Some(all) = link(document, &mut before, key).and_then(|link| link["routes"].as_array().cloned()) else {
            continue;
        };
        if let Some(link) = link(document, meaning, key)
            && let Some(kept) = link["routes"].as_array().cloned()
        {
            let ipv6 = all.into_iter().filter(|route| route.as_str().is_some_and(|route| route.contains(':')));
            link["routes"] = sorted(kept.into_iter().chain(ipv6).collect());
        }
    }
}

fn vlan_mtus(_: &Value, meaning: &mut Value) {
    without_mtus_above_parents(meaning);
}
