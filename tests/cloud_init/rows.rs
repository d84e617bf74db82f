//! The rows of `docs/cloud-init.md`: all intended differences from cloud-init.
//!
//! A row undoes exactly its own difference. The rest of the document is still compared, so a row never hides another
//! mistake.

mod network_config;
mod openstack;

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

/// An intended difference from cloud-init.
pub(crate) struct Row {
    /// Name of the row in the table.
    pub(crate) id: &'static str,
    pub(crate) undo: Undo,
}

/// How a row undoes its difference.
pub(crate) enum Undo {
    /// Changes the document, so that cloud-init reads it as glowplug reads the original.
    Document(fn(&mut Value)),
    /// Changes the meaning that cloud-init read, with the help of the document. A row uses this variant if no change of
    /// the document can undo the difference.
    Understood(fn(&Value, &mut Value)),
    /// Changes the document, and then the meaning that cloud-init reads from it.
    Both(fn(&mut Value), fn(&Value, &mut Value)),
    /// Gives cloud-init the values of the document instead of its text. The function returns whether cloud-init's YAML
    /// parser reads the text differently.
    Text(fn(&str) -> bool),
}

/// Rows about documents that only glowplug rejects. Each row has the start of the problem in the diagnostic.
pub(crate) const REFUSED: &[(&str, &str)] = &[
    ("no-address", "invalid address"),
    ("no-gateway", "invalid gateway"),
    ("no-mask", "invalid netmask"),
    ("no-prefix", "invalid network"),
    ("no-mac-address", "invalid MAC address"),
    ("no-name", "invalid interface name"),
    ("no-vlan-id", "invalid VLAN id"),
    ("no-mode", "invalid mode"),
    ("no-network-type", "unknown network type"),
    ("no-subnet-type", "unknown subnet type"),
    ("no-link", "unknown link"),
    ("no-device", "route without a device"),
    ("no-port", "bond without a member"),
    ("port-addresses", "network on a bond member"),
    ("port-addresses", "addresses on a port"),
    ("port-twice", "port more than once"),
    ("repeated-id", "repeated id"),
    ("repeated-name", "repeated name"),
    ("repeated-mac-address", "MAC address of"),
    ("repeated-vlan-id", "repeated VLAN id"),
    ("loop", "VLAN on itself"),
    ("misspelt", "unknown member"),
    ("mis-indented", "member outside the list"),
    ("unsupported", "unsupported section"),
    ("two-formats", "member of another format"),
];

/// Returns all rows of a format, in the order of their application.
pub(crate) fn all(is_openstack: bool) -> &'static [Row] {
    if is_openstack { openstack::ROWS } else { network_config::ROWS }
}

/// Returns the names of all rows.
pub(crate) fn ids() -> BTreeSet<&'static str> {
    let refused = REFUSED.iter().map(|(id, _)| *id);
    [true, false].into_iter().flat_map(all).map(|row| row.id).chain(refused).collect()
}

/// Returns the links of a meaning.
fn links(meaning: &mut Value) -> impl Iterator<Item = (&String, &mut Value)> {
    meaning.get_mut("links").and_then(Value::as_object_mut).into_iter().flatten()
}

/// Returns the objects of a list.
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

/// Returns the words of a list, or of a string with blanks between words.
fn words(value: Option<&Value>) -> Vec<String> {
    match value {
        Some(Value::String(text)) => text.split_whitespace().map(str::to_owned).collect(),
        Some(Value::Array(list)) => {
            list.iter().map(|item| item.as_str().map_or_else(|| item.to_string(), str::to_owned)).collect()
        }
        _ => Vec::new(),
    }
}

/// Returns the destination `to` of a route. If the route has neither a netmask nor a prefix length, adds the prefix
/// length that glowplug assumes.
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

/// Removes the routes of each family in which the link neither has nor requests an address.
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

/// Removes the MTU of each VLAN whose MTU is larger than that of its parent, or of another link below the VLAN.
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
