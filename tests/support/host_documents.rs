//! Network documents of the host, for one or two interfaces, with the addresses of one family or of both, with or
//! without MAC addresses.

use std::net::IpAddr;

use glowplug::host::claim::{Allocation, Claimant, Machine};
use glowplug::host::expand::{Document, Grant, Template};
use glowplug::host::pool::Settings;
use glowplug::network::parse_mac_address;

/// Address families of a machine.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Families {
    Ipv4,
    Ipv6,
    Both,
}

/// Name, MAC address, addresses and gateways of each interface. The IPv4 values are first.
const INTERFACES: [(&str, &str, [&str; 2], [&str; 2]); 2] = [
    ("eno101", "52:54:00:12:34:56", ["192.168.1.100/24", "2620:0:860:2::10/64"], ["192.168.1.1", "2620:0:860:2::1"]),
    ("eno102", "52:54:00:12:34:57", ["10.9.0.7/16", "fd09::7/64"], ["10.9.0.1", "fd09::1"]),
];

const NAME_SERVERS: [&str; 2] = ["8.8.8.8", "2001:4860:4860::8888"];

/// Returns the document of a machine with this number of interfaces.
pub(crate) fn document(families: Families, interfaces: usize, has_mac_addresses: bool) -> Document {
    let of = |both: [&'static str; 2]| match families {
        Families::Ipv4 => both[..1].to_vec(),
        Families::Ipv6 => both[1..].to_vec(),
        Families::Both => both.to_vec(),
    };
    let ips = |both| -> Vec<IpAddr> { of(both).iter().map(|text| text.parse().unwrap()).collect() };
    let mut parts = Vec::new();
    for (name, mac_address, addresses, gateways) in &INTERFACES[..interfaces] {
        let claimant = Claimant { machine: Machine::new("clusters", "w", "u"), interface: name.parse().unwrap() };
        let addresses = of(*addresses).iter().map(|text| text.parse().unwrap()).collect();
        let mac_address = parse_mac_address(mac_address).filter(|_| has_mac_addresses);
        parts.push((Allocation { claimant, addresses }, ips(*gateways), mac_address));
    }
    let mut grants = Vec::new();
    for (allocation, gateways, mac_address) in &parts {
        let (gateways, nameservers) = (gateways.clone(), ips(NAME_SERVERS));
        let settings = Settings { gateways, nameservers, ..Settings::default() };
        grants.push(Grant { allocation, settings, mac_address: *mac_address, is_named: true });
    }
    let template = Template::minimal(parts.iter().map(|(allocation, ..)| &allocation.claimant.interface));
    template.expand(&grants).unwrap()
}
