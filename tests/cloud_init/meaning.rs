//! Converts the meaning that glowplug reads from a document to the form of cloud-init's answers.

use std::net::IpAddr;

use glowplug::formats::{Meaning, Reading};
use glowplug::network::{BondOptions, BridgeOptions, Dns, Link, LinkIndex, LinkKind, NetworkConfig, Nic, Route};
use serde_json::{Map, Value, json};

/// Converts a reading to `links` by key, `routes` without a link, and `dns` of the machine.
pub(crate) fn of(reading: &Reading) -> Value {
    match &reading.meaning {
        Meaning::Network(config) => network(config),
        Meaning::Unconfigured => network(&NetworkConfig::default()),
        Meaning::Disabled => json!({"disabled": true}),
        Meaning::Refused => {
            let diagnostics: Vec<String> = reading.diagnostics.kept().iter().map(ToString::to_string).collect();
            json!({"refused": diagnostics.join("; ")})
        }
    }
}

/// Whether a program rejected the document because of mistakes in the document.
pub(crate) fn is_refused(meaning: &Value) -> bool {
    meaning.get("refused").is_some()
}

fn network(config: &NetworkConfig) -> Value {
    let links: Map<String, Value> =
        config.links().iter().enumerate().map(|(at, of)| (key(config, LinkIndex::new(at)), link(config, of))).collect();
    json!({"links": links, "routes": [], "dns": dns(&config.dns)})
}

/// Returns a key that identifies a link: the MAC address or name of a NIC, or the kind of the link with the keys of the
/// links below it. The key of a bridge has the name of the bridge instead.
fn key(config: &NetworkConfig, at: LinkIndex) -> String {
    match &config.link(at).kind {
        LinkKind::Nic(Nic::MacAddress { mac_address, .. }) => mac_address.to_string(),
        LinkKind::Nic(Nic::Name(name)) => name.to_string(),
        LinkKind::Nic(Nic::Pattern { names, drivers, .. }) => {
            let words = |patterns: &[glowplug::network::Pattern]| {
                patterns.iter().map(|pattern| pattern.as_str().to_owned()).collect::<Vec<_>>().join(" ")
            };
            format!("NICs {} of {}", words(names), words(drivers))
        }
        LinkKind::Bond { ports, .. } => format!("bond of {}", keys(config, ports).join(", ")),
        LinkKind::Bridge { name, .. } => format!("bridge {name}"),
        LinkKind::Vlan { parent, id, .. } => format!("vlan {id} on {}", key(config, *parent)),
    }
}

fn keys(config: &NetworkConfig, ports: &[LinkIndex]) -> Vec<String> {
    let mut keys: Vec<String> = ports.iter().map(|port| key(config, *port)).collect();
    keys.sort_unstable();
    keys
}

/// Returns the requested name of a link.
fn name(link: &Link) -> Option<String> {
    match &link.kind {
        LinkKind::Nic(Nic::MacAddress { name, .. } | Nic::Pattern { name, .. }) | LinkKind::Vlan { name, .. } => {
            name.as_ref().map(ToString::to_string)
        }
        LinkKind::Nic(Nic::Name(name)) | LinkKind::Bond { name, .. } | LinkKind::Bridge { name, .. } => {
            Some(name.to_string())
        }
    }
}

fn link(config: &NetworkConfig, link: &Link) -> Value {
    let mut addresses: Vec<String> = link.ipv4.addresses.iter().map(ToString::to_string).collect();
    addresses.extend(link.ipv6.addresses.iter().map(ToString::to_string));
    addresses.sort_unstable();
    let mut routes: Vec<String> = link.routes.iter().map(route).collect();
    routes.sort_unstable();
    routes.dedup();
    let mut described = json!({
        "name": name(link),
        "mac": link.cloned_mac_address.map(|address| address.to_string()),
        "mtu": link.mtu.map(|mtu| mtu.to_string().parse::<u32>().unwrap()),
        "addresses": addresses,
        "dhcp4": link.ipv4.dhcp,
        "metric4": link.ipv4.dhcp_overrides.route_metric.as_ref().map(|metric| metric.value),
        "dynamic6": link.ipv6.dynamic.map(|dynamic| dynamic.to_string()),
        "metric6": link.ipv6.dhcp_overrides.route_metric.as_ref().map(|metric| metric.value),
        "accept_ra": link.ipv6.accept_ra,
        "routes": routes,
        "dns": dns(&link.dns),
    });
    match &link.kind {
        LinkKind::Nic(_) => {}
        LinkKind::Bond { options, .. } => described["options"] = bond_options(config, options),
        LinkKind::Bridge { options, ports, .. } => {
            described["options"] = bridge_options(config, options);
            described["ports"] = keys(config, ports).into();
        }
        LinkKind::Vlan { parent, id, .. } => {
            // The usual name of a VLAN is not a requested name.
            let usual = name(config.link(*parent)).map(|parent| format!("{parent}.{id}"));
            if usual.is_some() && name(link) == usual {
                described["name"] = Value::Null;
            }
        }
    }
    described
}

fn bond_options(config: &NetworkConfig, options: &BondOptions) -> Value {
    let mut described = Map::new();
    described.insert("mode".into(), options.mode().to_string().into());
    if let Some(primary) = options.primary() {
        described.insert("primary".into(), key(config, primary).into());
    }
    if !options.arp_ip_target().is_empty() {
        let targets: Vec<String> = options.arp_ip_target().iter().map(ToString::to_string).collect();
        described.insert("arp_ip_target".into(), targets.join(",").into());
    }
    for option in options.others() {
        described.insert(option.name.into(), option.value.clone().into());
    }
    described.into()
}

fn bridge_options(config: &NetworkConfig, options: &BridgeOptions) -> Value {
    let mut described = Map::new();
    let mut tell = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            described.insert(name.into(), value.into());
        }
    };
    let text = |number: Option<u32>| number.map(|number| number.to_string());
    tell("stp", options.stp.map(|stp| if stp { "True" } else { "False" }.to_owned()));
    tell("ageing_time", text(options.ageing_time));
    tell("forward_delay", text(options.forward_delay));
    tell("hello_time", text(options.hello_time));
    tell("max_age", text(options.max_age));
    tell("priority", text(options.priority.map(u32::from)));
    for (name, of) in [
        ("path_cost", (|port| port.path_cost.map(u32::from)) as fn(&glowplug::network::BridgePort) -> Option<u32>),
        ("port_priority", |port| port.priority.map(u32::from)),
    ] {
        let mut pairs: Vec<String> =
            options.ports.iter().filter_map(|port| Some(format!("{}={}", key(config, port.port), of(port)?))).collect();
        pairs.sort_unstable();
        tell(name, (!pairs.is_empty()).then(|| pairs.join(" ")));
    }
    described.into()
}

fn route(route: &Route) -> String {
    let mut text = route.destination().to_string();
    let mut add = |word: &str, value: Option<String>| {
        if let Some(value) = value {
            text.push_str(&format!(" {word} {value}"));
        }
    };
    add("via", route.gateway().map(|gateway: IpAddr| gateway.to_string()));
    add("metric", route.metric().map(|metric| metric.to_string()));
    add("table", route.table.map(|table| table.to_string()));
    if route.on_link {
        text.push_str(" on-link");
    }
    text
}

fn dns(dns: &Dns) -> Value {
    let servers: Vec<String> = dns.nameservers.iter().map(ToString::to_string).collect();
    let search: Vec<String> = dns.search.iter().map(ToString::to_string).collect();
    json!({"servers": servers, "search": search})
}
