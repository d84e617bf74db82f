//! Networks that no OpenStack document can say, from the model to what the readers understand.

use std::net::IpAddr;

use glowplug::finding::Findings;
use glowplug::network::{BridgeOptions, Card, Ipv6Dynamic, Link, LinkIndex, LinkKind, NetworkConfig, Route, VlanId};
use glowplug::render::{self, dracut};

use super::{network_legacy, network_manager};

fn link(kind: LinkKind) -> Link {
    Link::new("id".to_owned(), "links[0]".to_owned(), kind)
}

fn card(number: u8) -> Link {
    let mac_address = [0x52, 0x54, 0, 0x12, 0x34, number].into();
    link(LinkKind::Card(Card::MacAddress { mac_address, name: None }))
}

fn bridge(ports: &[usize]) -> Link {
    let ports = ports.iter().copied().map(LinkIndex).collect();
    link(LinkKind::Bridge { name: "br0".parse().unwrap(), ports, options: BridgeOptions::default() })
}

fn vlan(parent: usize, id: i64) -> Link {
    link(LinkKind::Vlan { name: None, parent: LinkIndex(parent), id: VlanId::try_from(id).unwrap() })
}

fn with_address(mut link: Link) -> Link {
    link.ipv4.addresses.push("10.0.0.5/24".parse().unwrap());
    let [everywhere, gateway] = ["0.0.0.0/0", "10.0.0.1"];
    link.routes.push(Route::new(everywhere.parse().unwrap(), gateway.parse().ok(), None).unwrap());
    link
}

/// What NetworkManager and what dracut's own scripts understand of a network.
fn understood(links: Vec<Link>) -> [String; 2] {
    let mut config = NetworkConfig::new(links).unwrap();
    config.dns.nameservers = vec!["1.1.1.1".parse::<IpAddr>().unwrap().into()];
    let line = |render: fn(&NetworkConfig, &mut Findings) -> dracut::Rendered| {
        let mut findings = Findings::default();
        let line = render(&config, &mut findings).line;
        assert!(!findings.has_errors());
        line
    };
    [
        network_manager::read(&line(dracut::render)).unwrap().to_string(),
        network_legacy::read(&line(render::network_legacy::render)).unwrap().to_string(),
    ]
}

const STATIC: &str = "    address 10.0.0.5/24\n    gateway 10.0.0.1\n    dns 1.1.1.1\n  ipv6 disabled\n";

#[test]
fn a_bridge_of_a_card_and_a_vlan() {
    let bridge_of = "bridge of 52:54:00:12:34:01 and vlan 5 on card 52:54:00:12:34:02";
    let port = format!("  port of {bridge_of}\n  ipv4 disabled\n  ipv6 disabled\n");
    let text = |parent: &str, required: &str| {
        format!(
            "card 52:54:00:12:34:01\n{port}{parent}{bridge_of}\n  name br0\n  ipv4 manual{required}\n{STATIC}\
             vlan 5 on card 52:54:00:12:34:02\n{port}"
        )
    };
    let [manager, scripts] = understood(vec![with_address(bridge(&[1, 2])), card(1), vlan(3, 5), card(2)])
        .map(|it| it.replace("  name kv0.5\n", ""));
    assert_eq!(manager, text("card 52:54:00:12:34:02\n  ipv4 disabled\n  ipv6 disabled\n", ", required"));
    assert_eq!(scripts, text("", ""));
}

#[test]
fn a_vlan_on_a_bridge() {
    let text = |own: &str, required: &str| {
        format!(
            "card 52:54:00:12:34:01\n  port of bridge of 52:54:00:12:34:01\n  ipv4 disabled\n  ipv6 disabled\n\
             bridge of 52:54:00:12:34:01\n{own}  ipv4 disabled\n  ipv6 disabled\n\
             vlan 7 on bridge of 52:54:00:12:34:01\n  ipv4 manual{required}\n{STATIC}"
        )
    };
    let [manager, scripts] =
        understood(vec![with_address(vlan(1, 7)), bridge(&[2]), card(1)]).map(|it| it.replace("  name br0.7\n", ""));
    assert_eq!(manager, text("  name br0\n", ", required"));
    assert_eq!(scripts, text("  name br0\n", ""));
}

#[test]
fn a_card_with_another_mac_address() {
    let mut card = with_address(card(1));
    card.cloned_mac_address = Some([0x52, 0x54, 0, 0x12, 0x34, 9].into());
    card.mtu = 1400.try_into().ok();
    let text = |required: &str| {
        format!("card 52:54:00:12:34:01\n  mtu 1400\n  takes on 52:54:00:12:34:09\n  ipv4 manual{required}\n{STATIC}")
    };
    assert_eq!(understood(vec![card]), [text(", required"), text("")]);
}

#[test]
fn a_card_that_is_known_by_a_pattern() {
    let card = || {
        let names = vec!["en*".parse().unwrap()];
        link(LinkKind::Card(Card::Pattern { names, drivers: Vec::new(), name: None }))
    };
    let text = |required: &str| format!("any card\n  ipv4 manual{required}\n{STATIC}");
    assert_eq!(understood(vec![with_address(card())]), [text(", required"), text("")]);

    let mut dynamic = card();
    dynamic.ipv6.dynamic = Some(Ipv6Dynamic::Slaac);
    assert_eq!(
        understood(vec![dynamic]),
        [
            "any card\n  ipv4 disabled\n  ipv6 auto, required\n".to_owned(),
            "any card\n  ipv4 disabled\n  ipv6 auto\n".to_owned()
        ]
    );
}
