//! Every deliberate difference from cloud-init: the rows of `docs/cloud-init.md`.
//!
//! A row says how its difference is taken back, as closely as it can. What is left of it is compared, so a row never
//! hides another mistake.

mod network_config;
mod openstack;

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

/// A difference.
pub(crate) struct Row {
    /// Its name in the table.
    pub(crate) id: &'static str,
    pub(crate) mend: Mend,
}

/// How a difference is taken back.
pub(crate) enum Mend {
    /// The document can say the same in words by which cloud-init understands what glowplug understands.
    Document(fn(&mut Value)),
    /// No words make cloud-init understand it: from the document, what it should have understood.
    Understood(fn(&Value, &mut Value)),
    /// Some of both.
    Both(fn(&mut Value), fn(&Value, &mut Value)),
    /// The text says it in words that cloud-init's reader of YAML takes for something else: what stands in the document is
    /// asked instead.
    Text(fn(&str) -> bool),
}

/// Documents that glowplug refuses and cloud-init does not: the row, and how the problem of the diagnostic begins.
pub(crate) const REFUSED: &[(&str, &str)] = &[
    ("no-address", "invalid address"),
    ("no-gateway", "invalid gateway"),
    ("no-mac-address", "invalid MAC address"),
    ("no-name", "invalid interface name"),
    ("no-vlan-id", "invalid VLAN id"),
    ("no-mode", "invalid mode"),
    ("no-network-type", "unknown network type"),
    ("no-subnet-type", "unknown subnet type"),
    ("no-link", "unknown link"),
    ("no-device", "route without a device"),
    ("no-port", "bond without a port"),
    ("port-addresses", "network on a bond's port"),
    ("port-addresses", "addresses on a port"),
    ("port-twice", "port more than once"),
    ("repeated-id", "repeated id"),
    ("repeated-name", "repeated name"),
    ("repeated-mac-address", "MAC address of"),
    ("repeated-vlan-id", "repeated VLAN id"),
    ("loop", "VLAN on itself"),
    ("misspelt", "unknown member"),
    ("mis-indented", "member beside the list"),
    ("unsupported", "unsupported section"),
    ("two-formats", "member of another format"),
];

/// All rows of a format, in the order in which they are applied.
pub(crate) fn all(is_openstack: bool) -> &'static [Row] {
    if is_openstack { openstack::ROWS } else { network_config::ROWS }
}

/// The names of all rows.
pub(crate) fn ids() -> BTreeSet<&'static str> {
    let refused = REFUSED.iter().map(|(id, _)| *id);
    [true, false].into_iter().flat_map(all).map(|row| row.id).chain(refused).collect()
}

/// The links of a meaning.
fn links(meaning: &mut Value) -> impl Iterator<Item = (&String, &mut Value)> {
    meaning.get_mut("links").and_then(Value::as_object_mut).into_iter().flatten()
}

/// The objects of a list.
fn objects<'a>(parent: &'a Value, name: &str) -> impl Iterator<Item = &'a Value> + use<'a> {
    parent.get(name).and_then(Value::as_array).into_iter().flatten().filter(|item| item.is_object())
}

fn objects_mut<'a>(parent: &'a mut Value, name: &str) -> impl Iterator<Item = &'a mut Value> + use<'a> {
    parent.get_mut(name).and_then(Value::as_array_mut).into_iter().flatten().filter(|item| item.is_object())
}

fn text<'a>(object: &'a Value, name: &str) -> Option<&'a str> {
    object.get(name).and_then(Value::as_str).filter(|text| !text.is_empty())
}

fn remove(object: &mut Value, name: &str) {
    if let Some(object) = object.as_object_mut() {
        object.remove(name);
    }
}

/// The words of a list, or of a text with blanks between them.
fn words(value: Option<&Value>) -> Vec<String> {
    match value {
        Some(Value::String(text)) => text.split_whitespace().map(str::to_owned).collect(),
        Some(Value::Array(list)) => {
            list.iter().map(|item| item.as_str().map_or_else(|| item.to_string(), str::to_owned)).collect()
        }
        _ => Vec::new(),
    }
}

/// A destination in words that leave nothing open: `to` as it stands, with the mask beside it.
fn destination(to: &str, has_mask: bool, is_v6: bool) -> String {
    match to {
        "default" if is_v6 => "::/0".to_owned(),
        "default" => "0.0.0.0/0".to_owned(),
        _ if has_mask || to.contains('/') => to.to_owned(),
        "0.0.0.0" => "0.0.0.0/0".to_owned(),
        _ => match to.parse::<std::net::IpAddr>() {
            Ok(address) if address.is_unspecified() => "::/0".to_owned(),
            Ok(address) => format!("{to}/{}", if address.is_ipv4() { 32 } else { 128 }),
            Err(_) => to.to_owned(),
        },
    }
}

/// Takes away routes of a family of which the link has no address.
fn without_unreachable_routes(link: &mut Value) {
    let has = |is_v6: bool| {
        let is_dynamic = if is_v6 { !link["dynamic6"].is_null() } else { link["dhcp4"] == true };
        let is_static = |address: &Value| address.as_str().is_some_and(|address| address.contains(':') == is_v6);
        is_dynamic || link["addresses"].as_array().is_some_and(|addresses| addresses.iter().any(is_static))
    };
    let families = [has(false), has(true)];
    if let Some(routes) = link["routes"].as_array_mut() {
        routes.retain(|route| families[usize::from(route.as_str().is_some_and(|route| route.contains(':')))]);
    }
}

/// Takes away the MTU of a VLAN that is above that of what it is on.
fn without_mtus_above_parents(meaning: &mut Value) {
    let mtus: BTreeMap<String, u64> =
        links(meaning).filter_map(|(key, link)| Some((key.clone(), link["mtu"].as_u64()?))).collect();
    for (key, link) in links(meaning) {
        let mut below = key.as_str();
        while let Some((_, parent)) = below.strip_prefix("vlan ").and_then(|below| below.split_once(" on ")) {
            if mtus.get(parent).zip(mtus.get(key)).is_some_and(|(parent, mtu)| mtu > parent) {
                link["mtu"] = Value::Null;
            }
            below = parent;
        }
    }
}

fn is_address(text: &str) -> bool {
    text.parse::<std::net::IpAddr>().is_ok()
}
