//! Renders networks that no OpenStack document can describe, and lets the network programs read the arguments.

use std::net::IpAddr;

use glowplug::diagnostic::Diagnostics;
use glowplug::network::{BridgeOptions, Ipv6Dynamic, Link, LinkIndex, LinkKind, NetworkConfig, Nic, Route, VlanId};
use glowplug::render::{self, dracut};

use super::network_legacy;
use crate::support::network_manager;

fn link(kind: LinkKind) -> Link {
    Link::new("id".to_owned(), "links[0]".to_owned(), kind)
}

fn nic(number: u8) -> Link {
    let mac_address = [0x52, 0x54, 0, 0x12, 0x34, number].into();
    link(LinkKind::Nic(Nic::MacAddress { mac_address, name: None }))
}

fn bridge(ports: &[usize]) -> Link {
    let ports = ports.iter().copied().map(LinkIndex::new).collect();
    link(LinkKind::Bridge { name: "br0".parse().unwrap(), ports, options: BridgeOptions::default() })
}

fn vlan(parent: usize, id: i64) -> Link {
    link(LinkKind::Vlan { name: None, parent: LinkIndex::new(parent), id: VlanId::try_from(id).unwrap() })
}

fn with_address(mut link: Link) -> Link {
    link.ipv4.addresses.push("10.0.0.5/24".parse().unwrap());
    let [everywhere, gateway] = ["0.0.0.0/0", "10.0.0.1"];
    link.routes.push(Route::new(everywhere.parse().unwrap(), gateway.parse().ok(), None).unwrap());
    link
}

/// Returns the profiles that NetworkManager and dracut's own scripts make from the arguments for a network.
fn understood(links: Vec<Link>) -> [String; 2] {
    let mut config = NetworkConfig::new(links).unwrap();
    config.dns.nameservers = vec!["1.1.1.1".parse::<IpAddr>().unwrap().into()];
    let line = |render: fn(&NetworkConfig, &mut Diagnostics) -> dracut::Rendered| {
        let mut diagnostics = Diagnostics::default();
        let line = render(&config, &mut diagnostics).line;
        assert!(!diagnostics.has_errors());
        line
    };
    [
        network_manager::read(&line(dracut::render)).unwrap().to_string(),
        network_legacy::read(&line(render::network_legacy::render)).unwrap().to_string(),
    ]
}

const STATIC: &str = "    address 10.0.0.5/24\n    gateway 10.0.0.1\n    dns 1.1.1.1\n  ipv6 disabled\n";

#[test]
fn the_arguments_of_a_bridge_of_a_nic_and_a_vlan_are_understood() {
    let bridge_of = "bridge of 52:54:00:12:34:01 and vlan 5 on NIC 52:54:00:12:34:02";
    let port = format!("  port of {bridge_of}\n  ipv4 disabled\n  ipv6 disabled\n");
    let text = |parent: &str, required: &str| {
        format!(
            "NIC 52:54:00:12:34:01\n{port}{parent}{bridge_of}\n  name br0\n  ipv4 manual{required}\n{STATIC}\
             vlan 5 on NIC 52:54:00:12:34:02\n{port}"
        )
    };
    let [manager, scripts] = understood(vec![with_address(bridge(&[1, 2])), nic(1), vlan(3, 5), nic(2)])
        .map(|it| it.replace("  name kv0.5\n", ""));
    assert_eq!(manager, text("NIC 52:54:00:12:34:02\n  ipv4 disabled\n  ipv6 disabled\n", ", required"));
    assert_eq!(scripts, text("", ""));
}

#[test]
fn the_arguments_of_a_vlan_on_a_bridge_are_understood() {
    let text = |own: &str, required: &str| {
        format!(
            "NIC 52:54:00:12:34:01\n  port of bridge of 52:54:00:12:34:01\n  ipv4 disabled\n  ipv6 disabled\n\
             bridge of 52:54:00:12:34:01\n{own}  ipv4 disabled\n  ipv6 disabled\n\
             vlan 7 on bridge of 52:54:00:12:34:01\n  ipv4 manual{required}\n{STATIC}"
        )
    };
    let [manager, scripts] =
        understood(vec![with_address(vlan(1, 7)), bridge(&[2]), nic(1)]).map(|it| it.replace("  name br0.7\n", ""));
    assert_eq!(manager, text("  name br0\n", ", required"));
    assert_eq!(scripts, text("  name br0\n", ""));
}

#[test]
fn the_arguments_of_a_nic_with_another_mac_address_and_an_mtu_are_understood() {
    let mut nic = with_address(nic(1));
    nic.cloned_mac_address = Some([0x52, 0x54, 0, 0x12, 0x34, 9].into());
    nic.mtu = 1400.try_into().ok();
    let text = |required: &str| {
        format!("NIC 52:54:00:12:34:01\n  mtu 1400\n  takes on 52:54:00:12:34:09\n  ipv4 manual{required}\n{STATIC}")
    };
    assert_eq!(understood(vec![nic]), [text(", required"), text("")]);
}

#[test]
fn the_arguments_of_a_nic_that_a_pattern_identifies_are_understood() {
    let nic = || {
        let names = vec!["en*".parse().unwrap()];
        link(LinkKind::Nic(Nic::Pattern { names, drivers: Vec::new(), name: None }))
    };
    let text = |required: &str| format!("any NIC\n  ipv4 manual{required}\n{STATIC}");
    assert_eq!(understood(vec![with_address(nic())]), [text(", required"), text("")]);

    let mut dynamic = nic();
    dynamic.ipv6.dynamic = Some(Ipv6Dynamic::Slaac);
    assert_eq!(
        understood(vec![dynamic]),
        [
            "any NIC\n  ipv4 disabled\n  ipv6 auto, required\n".to_owned(),
            "any NIC\n  ipv4 disabled\n  ipv6 auto\n".to_owned()
        ]
    );
}
