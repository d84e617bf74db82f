//! Rows for OpenStack's `network_data.json`.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::Undo::{Document, Understood};
use super::{
    Row, destination, is_address, links, objects, objects_mut, remove, text, without_mtus_above_parents,
    without_unreachable_routes, words,
};

pub(super) const ROWS: &[Row] = &[
    Row { id: "os-null-list", undo: Document(null_lists) },
    Row { id: "os-mac-dashes", undo: Document(mac_dashes) },
    Row { id: "os-null-name", undo: Document(null_names) },
    Row { id: "os-nic-twice", undo: Document(nics_twice) },
    Row { id: "os-id-as-name", undo: Document(ids_as_names) },
    Row { id: "os-link-type", undo: Document(link_types) },
    Row { id: "os-network-services", undo: Document(network_services) },
    Row { id: "os-other-services", undo: Document(other_services) },
    Row { id: "os-name-server", undo: Document(name_servers) },
    Row { id: "os-route-default", undo: Document(default_routes) },
    Row { id: "os-route-mask", undo: Document(route_masks) },
    Row { id: "os-route-on-link", undo: Document(on_link_routes) },
    Row { id: "os-bond-option", undo: Document(bond_options) },
    Row { id: "os-bond-primary", undo: Document(bond_primaries) },
    Row { id: "os-vlan-on-vlan", undo: Document(vlans_on_vlans) },
    Row { id: "os-link-name", undo: Understood(link_names) },
    Row { id: "os-accept-ra", undo: Understood(accept_ra) },
    Row { id: "os-unreachable-route", undo: Understood(unreachable_routes) },
    Row { id: "os-name-servers-of-links", undo: Understood(name_servers_of_links) },
    Row { id: "os-vlan-mtu", undo: Understood(vlan_mtus) },
];

fn null_lists(document: &mut Value) {
    for name in ["links", "networks", "services"] {
        if document.get(name).is_some_and(Value::is_null) {
            remove(document, name);
        }
    }
    for network in objects_mut(document, "networks") {
        for name in ["routes", "services"] {
            if network.get(name).is_some_and(Value::is_null) {
                remove(network, name);
            }
        }
    }
}

fn mac_dashes(document: &mut Value) {
    for link in objects_mut(document, "links") {
        for name in ["ethernet_mac_address", "vlan_mac_address"] {
            if let Some(mac) = text(link, name).filter(|mac| mac.contains('-')) {
                link[name] = mac.replace('-', ":").into();
            }
        }
    }
}

fn null_names(document: &mut Value) {
    for link in objects_mut(document, "links") {
        if link.get("name").is_some_and(Value::is_null) {
            remove(link, "name");
        }
    }
}

fn is_nic(link: &Value) -> bool {
    !matches!(text(link, "type"), Some("bond" | "vlan"))
}

fn nics_twice(document: &mut Value) {
    let mut first: BTreeMap<String, String> = BTreeMap::new();
    let mut aliases = Vec::new();
    // Keep only the NICs that a network, a bond or a VLAN uses, or that have an MTU. The other NICs have no effect.
    let mut wanted: Vec<String> = Vec::new();
    wanted.extend(objects(document, "networks").filter_map(|network| text(network, "link")).map(str::to_owned));
    for link in objects(document, "links") {
        wanted.extend(words(link.get("bond_links")));
        wanted.extend(text(link, "vlan_link").map(str::to_owned));
        wanted.extend(text(link, "id").filter(|_| !link["mtu"].is_null()).map(str::to_owned));
    }
    if let Some(links) = document.get_mut("links").and_then(Value::as_array_mut) {
        links
            .retain(|link| !is_nic(link) || text(link, "id").is_none_or(|id| wanted.iter().any(|wanted| wanted == id)));
    }
    for link in objects(document, "links").filter(|link| is_nic(link)) {
        let (Some(mac), Some(id)) = (text(link, "ethernet_mac_address"), text(link, "id")) else { continue };
        let known = first.entry(mac.to_lowercase()).or_insert_with(|| id.to_owned());
        if known != id {
            aliases.push((id.to_owned(), known.clone(), link.clone()));
        }
    }
    for (alias, known, second) in aliases {
        if let Some(list) = document["links"].as_array_mut() {
            list.retain(|link| text(link, "id") != Some(&alias));
        }
        for link in objects_mut(document, "links").filter(|link| text(link, "id") == Some(&known)) {
            for name in ["name", "mtu"] {
                if link[name].is_null() && second.get(name).is_some_and(|value| !value.is_null()) {
                    link[name] = second[name].clone();
                }
            }
        }
        replace_ids(document, &BTreeMap::from([(alias, known)]));
    }
}

/// Replaces ids of links, and all references to these ids.
fn replace_ids(document: &mut Value, ids: &BTreeMap<String, String>) {
    let replace = |value: &mut Value| {
        if let Some(new) = value.as_str().and_then(|id| ids.get(id)) {
            *value = new.clone().into();
        }
    };
    for link in objects_mut(document, "links") {
        for name in ["id", "vlan_link", "bond_primary", "bond-primary"] {
            link.get_mut(name).into_iter().for_each(replace);
        }
        link.get_mut("bond_links").and_then(Value::as_array_mut).into_iter().flatten().for_each(replace);
    }
    for network in objects_mut(document, "networks") {
        network.get_mut("link").into_iter().for_each(replace);
    }
}

fn ids_as_names(document: &mut Value) {
    for link in objects_mut(document, "links") {
        if is_nic(link) && text(link, "ethernet_mac_address").is_none() && text(link, "name").is_none() {
            link["name"] = link["id"].clone();
        }
    }
}

fn link_types(document: &mut Value) {
    for link in objects_mut(document, "links") {
        if link.get("type").is_none() {
            link["type"] = "phy".into();
        }
    }
}

fn network_services(document: &mut Value) {
    for network in objects_mut(document, "networks") {
        let routes = objects(network, "routes").flat_map(|route| objects(route, "services"));
        let services: Vec<&Value> = routes.chain(objects(network, "services")).collect();
        let mut servers = words(network.get("dns_nameservers"));
        let mut search = words(network.get("dns_search"));
        for service in services {
            servers
                .extend(text(service, "address").filter(|_| text(service, "type") == Some("dns")).map(str::to_owned));
            search.extend(words(service.get("search")));
        }
        if !servers.is_empty() {
            network["dns_nameservers"] = servers.into();
        }
        if !search.is_empty() {
            network["dns_search"] = search.into();
        }
        remove(network, "services");
    }
}

fn other_services(document: &mut Value) {
    if let Some(services) = document.get_mut("services").and_then(Value::as_array_mut) {
        services.retain(|service| text(service, "type") == Some("dns"));
    }
}

fn name_servers(document: &mut Value) {
    if let Some(services) = document.get_mut("services").and_then(Value::as_array_mut) {
        services.retain(|service| text(service, "address").is_none_or(is_address));
    }
    for network in objects_mut(document, "networks") {
        let servers = words(network.get("dns_nameservers"));
        if servers.iter().any(|server| !is_address(server)) {
            let servers: Vec<String> = servers.into_iter().filter(|server| is_address(server)).collect();
            network["dns_nameservers"] = servers.into();
        }
    }
}

fn each_route(document: &mut Value, change: impl Fn(&mut Value, bool)) {
    for network in objects_mut(document, "networks") {
        let is_v6 = text(network, "type").is_some_and(|kind| kind.contains('6'))
            || text(network, "ip_address").is_some_and(|address| address.contains(':'));
        objects_mut(network, "routes").for_each(|route| change(route, is_v6));
    }
}

fn default_routes(document: &mut Value) {
    each_route(document, |route, is_v6| {
        if text(route, "network") == Some("default") {
            let is_v6 = text(route, "gateway").map_or(is_v6, |gateway| gateway.contains(':'));
            route["network"] = destination("default", false, is_v6).into();
        }
    });
}

fn route_masks(document: &mut Value) {
    each_route(document, |route, is_v6| {
        let has_mask = route.get("netmask").is_some_and(|mask| !mask.is_null() && mask != "");
        if let Some(to) = text(route, "network").filter(|to| *to != "default") {
            route["network"] = destination(to, has_mask, is_v6).into();
        }
    });
}

fn on_link_routes(document: &mut Value) {
    each_route(document, |route, _| {
        let is_none = |gateway: &str| gateway.parse::<std::net::IpAddr>().is_ok_and(|gateway| gateway.is_unspecified());
        if text(route, "gateway").is_some_and(is_none) {
            remove(route, "gateway");
        }
    });
}

/// Options of the kernel's bonding driver.
const BOND_OPTIONS: &[&str] = &[
    "mode",
    "primary",
    "miimon",
    "updelay",
    "downdelay",
    "arp_interval",
    "arp_ip_target",
    "arp_validate",
    "arp_all_targets",
    "lacp_rate",
    "xmit_hash_policy",
    "ad_select",
    "fail_over_mac",
    "min_links",
    "num_grat_arp",
    "num_unsol_na",
    "primary_reselect",
    "resend_igmp",
    "all_slaves_active",
    "packets_per_slave",
    "lp_interval",
    "tlb_dynamic_lb",
    "use_carrier",
];

fn bond_options(document: &mut Value) {
    for link in objects_mut(document, "links").filter(|link| text(link, "type") == Some("bond")) {
        if let Some(members) = link.as_object_mut() {
            members.retain(|name, _| {
                name == "bond_links"
                    || !name.starts_with("bond")
                    || BOND_OPTIONS.contains(&name[5..].replace('-', "_").as_str())
            });
        }
    }
}

/// Returns cloud-init's name of each link by the id of the link. NICs without a name have the names that cloud_init.py
/// gives them.
fn names(document: &Value) -> BTreeMap<String, String> {
    let mut names = BTreeMap::new();
    let (mut bonds, mut macs) = (0, BTreeMap::new());
    for (at, link) in objects(document, "links").enumerate() {
        let Some(id) = text(link, "id") else { continue };
        let mac = text(link, "ethernet_mac_address").map(str::to_lowercase);
        let at = mac.map_or(at, |mac| *macs.entry(mac).or_insert(at));
        match text(link, "type") {
            Some("vlan") => continue,
            Some("bond") => {
                names.insert(id.to_owned(), format!("bond{bonds}"));
                bonds += 1;
            }
            _ => _ = names.insert(id.to_owned(), text(link, "name").map_or(format!("nic{at}"), str::to_owned)),
        }
    }
    // A VLAN may come before its parent, so the loop runs several times.
    for _ in 0..4 {
        for link in objects(document, "links").filter(|link| text(link, "type") == Some("vlan")) {
            let parent = text(link, "vlan_link").and_then(|parent| names.get(parent)).cloned();
            if let (Some(id), Some(parent), Some(tag)) = (text(link, "id"), parent, link.get("vlan_id")) {
                names.insert(id.to_owned(), format!("{parent}.{}", words(Some(&json!([tag]))).concat()));
            }
        }
    }
    names
}

fn bond_primaries(document: &mut Value) {
    let names = names(document);
    for link in objects_mut(document, "links") {
        for option in ["bond_primary", "bond-primary"] {
            if let Some(name) = text(link, option).and_then(|port| names.get(port)) {
                link[option] = name.clone().into();
            }
        }
    }
}

fn vlans_on_vlans(document: &mut Value) {
    let vlans: Vec<&str> = objects(document, "links")
        .filter(|link| text(link, "type") == Some("vlan"))
        .filter_map(|link| text(link, "id"))
        .collect();
    let is_on_one = |link: &Value| text(link, "vlan_link").is_some_and(|parent| vlans.contains(&parent));
    if objects(document, "links").any(is_on_one) {
        let names = names(document);
        replace_ids(document, &names);
    }
}

/// Returns the key that the link with this id has in `links` of a meaning (see `meaning.rs`).
fn key(document: &Value, id: &str) -> String {
    let Some(link) = objects(document, "links").find(|link| text(link, "id") == Some(id)) else { return id.to_owned() };
    match text(link, "type") {
        Some("vlan") => {
            let parent = key(document, text(link, "vlan_link").unwrap_or_default());
            format!("vlan {} on {parent}", words(Some(&json!([link["vlan_id"]]))).concat())
        }
        Some("bond") => {
            let mut ports: Vec<String> = words(link.get("bond_links")).iter().map(|port| key(document, port)).collect();
            ports.sort_unstable();
            format!("bond of {}", ports.join(", "))
        }
        _ => match text(link, "ethernet_mac_address") {
            Some(mac) => mac.replace('-', ":").to_lowercase(),
            None => text(link, "name").unwrap_or(id).to_owned(),
        },
    }
}

fn link_names(document: &Value, meaning: &mut Value) {
    for link in objects(document, "links").filter(|link| !is_nic(link)) {
        let (Some(name), Some(id)) = (text(link, "name"), text(link, "id")) else { continue };
        if let Some(link) = meaning["links"].get_mut(key(document, id)) {
            link["name"] = name.into();
        }
    }
}

fn accept_ra(_: &Value, meaning: &mut Value) {
    links(meaning).for_each(|(_, link)| link["accept_ra"] = Value::Null);
}

fn unreachable_routes(_: &Value, meaning: &mut Value) {
    links(meaning).for_each(|(_, link)| without_unreachable_routes(link));
}

fn name_servers_of_links(_: &Value, meaning: &mut Value) {
    let mut gathered = json!({"servers": [], "search": []});
    for name in ["servers", "search"] {
        let mut list: Vec<Value> = Vec::new();
        for (_, link) in links(meaning) {
            list.extend(link["dns"][name].as_array_mut().map(std::mem::take).unwrap_or_default());
        }
        list.extend(meaning["dns"][name].as_array_mut().map(std::mem::take).unwrap_or_default());
        gathered[name] = list.into();
    }
    meaning["dns"] = gathered;
}

fn vlan_mtus(_: &Value, meaning: &mut Value) {
    without_mtus_above_parents(meaning);
}
