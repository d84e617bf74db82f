//! Checks that the guest understands documents of the host. The parser and the renderer of the guest must give each
//! interface exactly the addresses that the host allocated.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a helper of a test may fail the test")]

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use glowplug::formats::{Meaning, read_network};
use glowplug::host::claim::{Allocation, Claimant, Machine};
use glowplug::host::expand::{Grant, Template};
use glowplug::host::pool::Settings;
use glowplug::network::parse_mac_address;
use glowplug::render::Device;
use glowplug::render::dracut::{self, Karg};
use ipnetwork::IpNetwork;
use proptest::prelude::*;
use serde_json::{Map, Value, json};

/// A generated interface: its addresses and settings from the host, and its link in the template.
#[derive(Clone, Debug)]
struct Interface {
    name: String,
    addresses: Vec<IpNetwork>,
    gateways: Vec<IpAddr>,
    nameservers: Vec<IpAddr>,
    /// Last three bytes of the MAC address that the caller gives, and whether the template has this MAC address, too.
    mac_address: Option<([u8; 3], bool)>,
    template: Link,
}

#[derive(Clone, Debug)]
struct Link {
    /// Whether the link in the template has the interface as its `name`, and another `id`.
    by_name: bool,
    mtu: Option<u16>,
    /// For IPv4 and IPv6: whether the network in the template has a netmask. `None`: the template has no such network.
    entries: [Option<bool>; 2],
}

fn ipv4() -> impl Strategy<Value = IpAddr> {
    // Gateways and name servers are in 192.0.2.0/24, so no address of a machine is also a gateway or a name server.
    (0x0a00_0001_u32..0x0aff_ffff).prop_map(|number| Ipv4Addr::from(number).into())
}

fn ipv6() -> impl Strategy<Value = IpAddr> {
    any::<u64>().prop_map(|number| Ipv6Addr::from(0xfd00_u128 << 112 | u128::from(number)).into())
}

fn allocated() -> impl Strategy<Value = Vec<IpNetwork>> {
    let network = |(address, prefix): (IpAddr, u8)| IpNetwork::new(address, prefix).unwrap();
    let v4 = (ipv4(), 1_u8..=32).prop_map(network);
    let v6 = (ipv6(), 1_u8..=128).prop_map(network);
    (prop::option::of(v4), prop::option::of(v6))
        .prop_filter("an address", |(v4, v6)| v4.is_some() || v6.is_some())
        .prop_map(|(v4, v6)| v4.into_iter().chain(v6).collect())
}

fn interface(name: String) -> impl Strategy<Value = Interface> {
    let v4 = (1_u8..=254).prop_map(|last| IpAddr::from([192, 0, 2, last]));
    let v6 = (1_u16..).prop_map(|last| IpAddr::from([0xfd00, 0, 0, 1, 0, 0, 0, last]));
    let gateways = (prop::option::of(v4.clone()), prop::option::of(v6.clone()))
        .prop_map(|(v4, v6)| v4.into_iter().chain(v6).collect());
    let nameservers = prop::collection::vec(prop_oneof![v4, v6], 0..3);
    let mac_address = prop::option::of((any::<[u8; 3]>(), any::<bool>()));
    let link = (any::<bool>(), prop::option::of(1280_u16..), any::<[Option<bool>; 2]>())
        .prop_map(|(by_name, mtu, entries)| Link { by_name, mtu, entries });
    (allocated(), gateways, nameservers, mac_address, link).prop_map(
        move |(addresses, gateways, nameservers, mac_address, template)| {
            let name = name.clone();
            Interface { name, addresses, gateways, nameservers, mac_address, template }
        },
    )
}

fn interfaces() -> impl Strategy<Value = Vec<Interface>> {
    let of = |number: usize| (0..number).map(|at| interface(format!("eno{}", 101 + at))).collect::<Vec<_>>();
    prop_oneof![of(1), of(2), of(3)].prop_filter("no address and no NIC twice", |interfaces| {
        let addresses: Vec<IpAddr> = interfaces.iter().flat_map(|i| &i.addresses).map(IpNetwork::ip).collect();
        let nics: Vec<_> = interfaces.iter().filter_map(|interface| interface.mac_address).map(|mac| mac.0).collect();
        addresses.iter().collect::<BTreeSet<_>>().len() == addresses.len()
            && nics.iter().collect::<BTreeSet<_>>().len() == nics.len()
    })
}

fn mac_address(last: [u8; 3]) -> String {
    format!("52:54:00:{:02x}:{:02x}:{:02x}", last[0], last[1], last[2])
}

fn template(interfaces: &[Interface], unknown: &str) -> Value {
    let (mut links, mut networks) = (Vec::new(), Vec::new());
    for interface in interfaces {
        let Link { by_name, mtu, entries } = interface.template;
        let id = if by_name { format!("id of {}", interface.name) } else { interface.name.clone() };
        let mut link = Map::from_iter([("id".to_owned(), json!(id)), ("type".to_owned(), json!("phy"))]);
        if by_name {
            link.insert("name".to_owned(), json!(interface.name));
        }
        if let Some(mtu) = mtu {
            link.insert("mtu".to_owned(), json!(mtu));
        }
        if let Some((last, true)) = interface.mac_address {
            link.insert("ethernet_mac_address".to_owned(), json!(mac_address(last).to_uppercase()));
        }
        links.push(Value::Object(link));
        for address in &interface.addresses {
            let (at, kind) = if address.is_ipv4() { (0, "ipv4") } else { (1, "ipv6") };
            if let Some(has_netmask) = entries[at] {
                let netmask = if has_netmask { json!(address.mask()) } else { Value::Null };
                networks.push(json!({"id": "n", "link": id, "type": kind, "netmask": netmask, "x": unknown}));
            }
        }
    }
    json!({"x": {"y": [unknown]}, "links": links, "networks": networks})
}

/// Returns the addresses in kernel arguments, each with its device, sorted.
fn addresses(kargs: &[Karg]) -> Vec<(String, IpNetwork)> {
    let mut addresses: Vec<_> = kargs
        .iter()
        .filter_map(|karg| match karg {
            Karg::Ip { address: Some((address, _)), device, .. } => Some((device.to_string(), *address)),
            _ => None,
        })
        .collect();
    addresses.sort_unstable();
    addresses
}

proptest! {
    // proptest only prints a failure: a test must not write a file into the sources.
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_guest_reads_the_addresses_that_the_host_allocated(interfaces in interfaces(), unknown in ".{0,8}", bare: bool) {
        let machine = Machine::new("clusters", "worker-0", "u");
        let allocation = |interface: &Interface| {
            let claimant = Claimant { machine: machine.clone(), interface: interface.name.parse().unwrap() };
            Allocation { claimant, addresses: interface.addresses.clone() }
        };
        let allocations: Vec<Allocation> = interfaces.iter().map(allocation).collect();
        let grants: Vec<Grant<'_>> = interfaces.iter().zip(&allocations).map(|(interface, allocation)| Grant {
            allocation,
            settings: Settings {
                gateways: interface.gateways.clone(),
                nameservers: interface.nameservers.clone(),
                ..Settings::default()
            },
            mac_address: interface.mac_address.and_then(|(last, _)| parse_mac_address(&mac_address(last))),
            is_named: true,
        }).collect();
        let template = if bare {
            Template::minimal(allocations.iter().map(|allocation| &allocation.claimant.interface))
        } else {
            Template::parse(template(&interfaces, &unknown).to_string().as_bytes()).unwrap()
        };
        let document = template.expand(&grants).unwrap();
        prop_assert_eq!(&template.expand(&grants).unwrap(), &document);

        let mut reading = read_network(document.text().as_bytes());
        let Meaning::Network(network) = reading.meaning else { panic!("{}", document.text()) };
        let rendered = dracut::render(&network, &mut reading.diagnostics);
        prop_assert!(!reading.diagnostics.has_errors());

        let mut expected: Vec<(String, IpNetwork)> = Vec::new();
        for (interface, device) in interfaces.iter().zip(&rendered.devices) {
            match (interface.mac_address, device) {
                (Some((last, _)), Device::MacAddress(mac)) => prop_assert_eq!(mac.to_string(), mac_address(last)),
                (_, Device::Name(name)) => prop_assert_eq!(name.as_str(), &interface.name),
                (_, other) => prop_assert!(false, "unexpected device of a NIC: {other}"),
            }
            expected.extend(interface.addresses.iter().map(|address| (device.to_string(), *address)));
        }
        expected.sort_unstable();
        prop_assert_eq!(addresses(&rendered.kargs), expected);

        let families = |is_ipv4: bool| interfaces.iter().flat_map(move |interface| {
            let has = interface.addresses.iter().any(|address| address.is_ipv4() == is_ipv4);
            interface.gateways.iter().filter(move |gateway| has && gateway.is_ipv4() == is_ipv4)
        }).next().copied();
        let gateways: Vec<IpAddr> = [families(true), families(false)].into_iter().flatten().collect();
        let routes = network.links().iter().flat_map(|link| &link.routes);
        let mut read: Vec<IpAddr> = routes.filter_map(|route| route.gateway()).collect();
        read.sort_unstable();
        prop_assert_eq!(read, gateways);

        let mut nameservers: Vec<IpAddr> = Vec::new();
        for server in interfaces.iter().flat_map(|interface| &interface.nameservers) {
            if !nameservers.contains(server) {
                nameservers.push(*server);
            }
        }
        let read: Vec<IpAddr> = network.dns.nameservers.iter().map(|server| server.value).collect();
        prop_assert_eq!(read, nameservers);
    }
}
