//! Reads networkd's files without any code of the writer, and compares the files with the network.

use std::collections::{BTreeMap, BTreeSet};

use glowplug::network::{LinkIndex, LinkKind, NetworkConfig};
use glowplug::render::Device;
use glowplug::render::networkd::Rendered;

const SECTIONS: [&str; 12] = [
    "Match",
    "Link",
    "NetDev",
    "Bond",
    "Bridge",
    "VLAN",
    "Network",
    "Route",
    "DHCPv4",
    "DHCPv6",
    "IPv6AcceptRA",
    "RoutingPolicyRule",
];

/// The sections of a file with their lines, in order.
type File<'t> = Vec<(&'t str, Vec<(&'t str, &'t str)>)>;

fn read(text: &str) -> File<'_> {
    let mut file: File = Vec::new();
    assert!(text.ends_with('\n') && text.starts_with('['), "{text:?}");
    for line in text.lines().filter(|line| !line.is_empty()) {
        if let Some(section) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            assert!(SECTIONS.contains(&section), "{line:?} in {text:?}");
            file.push((section, Vec::new()));
            continue;
        }
        let (key, value) = line.split_once('=').unwrap();
        assert!(!key.is_empty() && key.bytes().all(|byte| byte.is_ascii_alphanumeric()), "{line:?}");
        let is_legal = |byte: u8| byte.is_ascii_alphanumeric() || b" .:/_+-*?[]!".contains(&byte);
        assert!(!value.is_empty() && value.bytes().all(is_legal), "{line:?}");
        file.last_mut().unwrap().1.push((key, value));
    }
    assert!(file.iter().all(|(_, lines)| !lines.is_empty()), "{text:?}");
    file
}

fn values<'t>(file: &File<'t>, section: &str, key: &str) -> Vec<&'t str> {
    let sections = file.iter().filter(|(name, _)| *name == section);
    sections.flat_map(|(_, lines)| lines.iter().filter(|(name, _)| *name == key).map(|(_, value)| *value)).collect()
}

/// Checks every file and, unless the network has errors, that the files describe the network.
pub(super) fn check(config: &NetworkConfig, rendered: &Rendered, has_errors: bool) {
    let mut files: BTreeMap<(usize, &str), File> = BTreeMap::new();
    let mut paths = BTreeSet::new();
    for file in &rendered.files {
        let path = &file.path;
        assert!(paths.insert(path), "{path:?} twice");
        let name = path.strip_prefix("run/systemd/network/").unwrap();
        let is_legal = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        assert!(name.bytes().all(is_legal) && name.len() < 64, "{path:?}");
        let number = name.strip_prefix("50-glowplug-").or_else(|| name.strip_prefix("51-glowplug-"));
        let number = number.and_then(|rest| rest.split_once('-')).unwrap().0.parse().unwrap();
        let kind = name.rsplit_once('.').unwrap().1;
        assert!(files.insert((number, kind), read(&file.text)).is_none(), "{path:?}");
    }
    assert_eq!(rendered.devices.len(), config.links().len());
    if has_errors {
        return;
    }
    let mut names = BTreeSet::new();
    for (at, (link, device)) in config.links().iter().zip(&rendered.devices).enumerate() {
        let index = LinkIndex::new(at);
        let network = &files[&(at, "network")];
        let netdev = files.get(&(at, "netdev"));
        assert_eq!(netdev.is_none(), matches!(link.kind, LinkKind::Nic(_)));
        if let (Device::Name(name), Some(netdev)) = (device, netdev) {
            assert_eq!(values(netdev, "NetDev", "Name"), [name.as_str()]);
            assert_eq!(values(network, "Match", "Name"), [name.as_str()]);
            assert!(name.as_str().len() <= 15 && names.insert(name.as_str()), "{name} twice");
            let (kind, id) = match &link.kind {
                LinkKind::Vlan { id, .. } => ("vlan", Some(id.to_string())),
                LinkKind::Bond { .. } => ("bond", None),
                _ => ("bridge", None),
            };
            assert_eq!(values(netdev, "NetDev", "Kind"), [kind]);
            assert_eq!(values(netdev, "VLAN", "Id"), id.iter().map(String::as_str).collect::<Vec<_>>());
        }
        let on = |index: LinkIndex| match &rendered.devices[index.position()] {
            Device::Name(name) => name.as_str(),
            _ => "",
        };
        let controller = config.controller_of(index);
        let stacked: Vec<&str> =
            values(network, "Network", "Bond").into_iter().chain(values(network, "Network", "Bridge")).collect();
        assert_eq!(stacked, controller.into_iter().map(on).collect::<Vec<_>>());
        let is_on =
            |link: &glowplug::network::Link| matches!(link.kind, LinkKind::Vlan { parent, .. } if parent == index);
        let vlans = config.links().iter().enumerate().filter(|(_, link)| is_on(link));
        let vlans: Vec<&str> = vlans.map(|(at, _)| on(LinkIndex::new(at))).collect();
        assert_eq!(values(network, "Network", "VLAN"), vlans);

        let has_own = controller.is_none();
        let ipv4 = link.ipv4.addresses.iter().map(ToString::to_string);
        let meant: Vec<String> =
            ipv4.chain(link.ipv6.addresses.iter().map(ToString::to_string)).filter(|_| has_own).collect();
        assert_eq!(values(network, "Network", "Address"), meant);
        let asks = values(network, "Network", "DHCP");
        assert_eq!(asks.iter().any(|asks| matches!(*asks, "ipv4" | "yes")), link.ipv4.dhcp && has_own);
        let is_unmanaged = !values(network, "Link", "Unmanaged").is_empty();
        assert!(!is_unmanaged || !link.has_addresses());
        if !is_unmanaged {
            check_routes(network, link, has_own);
        }
    }
}

/// Checks that the file has exactly the routes of the link, compared by destination, gateway and table. Duplicate
/// routes may be missing.
fn check_routes(network: &File<'_>, link: &glowplug::network::Link, has_own: bool) {
    let one = |lines: &[(&str, &str)], key: &str| {
        lines.iter().find(|(name, _)| *name == key).map(|(_, value)| (*value).to_owned())
    };
    let routes = network.iter().filter(|(name, _)| *name == "Route");
    let written: BTreeSet<_> =
        routes.map(|(_, lines)| (one(lines, "Destination"), one(lines, "Gateway"), one(lines, "Table"))).collect();
    let meant: BTreeSet<_> = link
        .routes
        .iter()
        .filter(|_| has_own)
        .map(|route| {
            let table = route.table.filter(|table| *table > 0).map(|table| table.to_string());
            (Some(route.destination().to_string()), route.gateway().map(|gateway| gateway.to_string()), table)
        })
        .collect();
    assert_eq!(written, meant);
}
