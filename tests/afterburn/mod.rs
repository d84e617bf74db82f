//! Asks afterburn for the kernel arguments of the host's documents, and NetworkManager for the meaning of these arguments.
//!
//! A machine with a stock image has afterburn instead of the glowplug guest. The first `make slow` compiles afterburn.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a helper of a test may fail the test")]

use std::array;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use glowplug::host::claim::{Allocation, Claimant, Machine};
use glowplug::host::expand::{Grant, Template};
use glowplug::host::pool::Settings;

use crate::support::host_documents::{Families, document};
use crate::support::network_manager;

/// Returns the kernel arguments that afterburn writes for each drive. A drive is given as its label, the path of its
/// document, and the document.
fn ask<const N: usize>(drives: [(&str, &str, &str); N]) -> [String; N] {
    let afterburn = env::var_os("AFTERBURN").expect("AFTERBURN, the path of the program: make afterburn sets it");
    let directory = tempfile::tempdir().unwrap();
    let case = |at: usize| directory.path().join(format!("{at:03}"));
    for (at, (label, path, text)) in drives.iter().enumerate() {
        let write = |path: &str, text: &str| {
            let path: PathBuf = case(at).join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("label", label);
        write("drive/openstack/latest/meta_data.json", r#"{"hostname": "w", "uuid": "u"}"#);
        write("drive/meta-data", r#"{"local-hostname": "w", "instance-id": "u"}"#);
        write(&format!("drive/{path}"), text);
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/afterburn/batch");
    let output = Command::new(script).arg(afterburn).arg(directory.path()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    array::from_fn(|at| fs::read_to_string(case(at).join("kargs")).unwrap().trim_end().to_owned())
}

fn config_drive(text: &str) -> (&str, &str, &str) {
    ("config-2", "openstack/latest/network_data.json", text)
}

fn no_cloud(text: &str) -> (&str, &str, &str) {
    ("cidata", "network-config", text)
}

/// Returns the profiles that NetworkManager makes from the arguments.
fn meaning(kargs: &str) -> String {
    network_manager::read(kargs).map_or_else(|error| error, |profiles| profiles.to_string())
}

/// Returns the document that the host makes from a template for a machine with an address on this interface.
fn expanded(template: &str, interface: &str) -> String {
    expanded_for(template, &[(interface, "192.168.1.100/24")])
}

/// Returns the document of a machine with these interfaces and addresses.
fn expanded_for(template: &str, addresses: &[(&str, &str)]) -> String {
    let allocation = |(interface, address): &(&str, &str)| {
        let claimant = Claimant { machine: Machine::new("clusters", "w", "u"), interface: interface.parse().unwrap() };
        Allocation { claimant, addresses: vec![address.parse().unwrap()] }
    };
    let allocations: Vec<Allocation> = addresses.iter().map(allocation).collect();
    let grant = |allocation| Grant { allocation, settings: Settings::default(), mac_address: None, is_named: true };
    let grants: Vec<Grant<'_>> = allocations.iter().map(grant).collect();
    Template::parse(template.as_bytes()).unwrap().expand(&grants).unwrap().text().to_owned()
}

/// Expected profiles of a machine with an IPv4 address on each of two interfaces, in the order of the interfaces.
const IPV4: [&str; 2] = [
    "\
NIC eno101
  ipv4 manual, required
    address 192.168.1.100/24
    route 0.0.0.0/0 via 192.168.1.1
    dns 8.8.8.8
  ipv6 disabled
",
    "\
NIC eno102
  ipv4 manual, required
    address 10.9.0.7/16
    dns 8.8.8.8
  ipv6 disabled
",
];

/// Expected profiles of a machine with an IPv6 address on each of two interfaces, in the order of the interfaces.
const IPV6: [&str; 2] = [
    "\
NIC eno101
  ipv4 disabled
  ipv6 manual, required
    address 2620:0:860:2::10/64
    route ::/0 via 2620:0:860:2::1
    dns 2001:4860:4860::8888
",
    "\
NIC eno102
  ipv4 disabled
  ipv6 manual, required
    address fd09::7/64
    dns 2001:4860:4860::8888
",
];

/// Expected profiles of a machine with an address of each family on each of two interfaces, in the order of the
/// interfaces.
const BOTH: [&str; 2] = [
    "\
NIC eno101
  ipv4 manual, required
    address 192.168.1.100/24
    route 0.0.0.0/0 via 192.168.1.1
    dns 8.8.8.8
  ipv6 manual, required
    address 2620:0:860:2::10/64
    route ::/0 via 2620:0:860:2::1
    dns 2001:4860:4860::8888
",
    "\
NIC eno102
  ipv4 manual, required
    address 10.9.0.7/16
    dns 8.8.8.8
  ipv6 manual, required
    address fd09::7/64
    dns 2001:4860:4860::8888
",
];

const FAMILIES: [(Families, [&str; 2]); 3] = [(Families::Ipv4, IPV4), (Families::Ipv6, IPV6), (Families::Both, BOTH)];

#[test]
fn afterburn_reads_the_allocated_network_from_every_document_of_the_host() {
    for (families, profiles) in FAMILIES {
        for (interfaces, has_mac_addresses) in [(1, false), (1, true), (2, false), (2, true)] {
            let document = document(families, interfaces, has_mac_addresses);
            let [kargs] = ask([config_drive(document.text())]);
            assert_eq!(meaning(&kargs), profiles[..interfaces].concat(), "{}\n{kargs}", document.text());
        }
    }
}

#[test]
fn afterburn_reads_the_allocated_network_from_a_network_config_without_mac_addresses() {
    for (families, profiles) in FAMILIES {
        for interfaces in [1, 2] {
            let document = document(families, interfaces, false).to_network_config().unwrap();
            let [kargs] = ask([no_cloud(document.text())]);
            assert_eq!(meaning(&kargs), profiles[..interfaces].concat(), "{}\n{kargs}", document.text());
        }
    }
}

#[test]
fn afterburn_writes_invalid_arguments_for_a_network_config_with_a_mac_address() {
    let document = document(Families::Ipv4, 1, true).to_network_config().unwrap();
    let [kargs] = ask([no_cloud(document.text())]);
    let expected =
        "ip=192.168.1.100:::255.255.255.0::52:54:00:12:34:56:off rd.route=0.0.0.0/0:192.168.1.1 nameserver=8.8.8.8";
    assert_eq!(kargs, expected);
    let invalid = "unknown line \"802-3-ethernet.cloned-mac-address: '12:34:56:off' is not a valid MAC address\"";
    assert_eq!(meaning(&kargs), invalid);
}

#[test]
fn afterburn_ignores_an_mtu_of_the_template() {
    let [with, without] = [r#""mtu": 9000, "#, ""]
        .map(|mtu| expanded(&format!(r#"{{"links": [{{{mtu}"id": "eno101", "type": "phy"}}]}}"#), "eno101"));
    let kargs = "ip=192.168.1.100:::255.255.255.0::eno101:off".to_owned();
    assert_eq!(ask([config_drive(&with), config_drive(&without)]), [kargs.clone(), kargs]);
}

#[test]
fn afterburn_ignores_a_vlan_or_bond_of_the_template_together_with_its_address() {
    let vlan = r#"{"links": [{"id": "eno101", "type": "phy"},
        {"id": "lan", "type": "vlan", "vlan_link": "eno101", "vlan_id": 7}]}"#;
    let bond = r#"{"links": [{"id": "eno101", "type": "phy"}, {"id": "eno102", "type": "phy"},
        {"id": "lan", "type": "bond", "bond_mode": "active-backup", "bond_links": ["eno101", "eno102"]}]}"#;
    let [vlan, bond] = [vlan, bond].map(|template| expanded(template, "lan"));
    let default = "default".to_owned();
    assert_eq!(ask([config_drive(&vlan), config_drive(&bond)]), [default.clone(), default]);
}

#[test]
fn networkmanager_puts_the_default_route_of_afterburn_on_the_first_interface() {
    let kargs = "ip=192.168.1.100:::255.255.255.0::eno101:off ip=10.9.0.7:::255.255.0.0::eno102:off rd.route=0.0.0.0/0:10.9.0.1";
    let template = r#"{"links": [{"id": "eno101", "type": "phy"}, {"id": "eno102", "type": "phy"}], "networks": [
        {"id": "n", "link": "eno102", "type": "ipv4", "netmask": "255.255.0.0",
         "routes": [{"network": "0.0.0.0", "netmask": "0.0.0.0", "gateway": "10.9.0.1"}]}]}"#;
    let document = expanded_for(template, &[("eno101", "192.168.1.100/24"), ("eno102", "10.9.0.7/16")]);
    assert_eq!(ask([config_drive(&document)]), [kargs.to_owned()]);
    let profiles = "\
NIC eno101
  ipv4 manual, required
    address 192.168.1.100/24
    route 0.0.0.0/0 via 10.9.0.1
  ipv6 disabled
NIC eno102
  ipv4 manual, required
    address 10.9.0.7/16
  ipv6 disabled
";
    assert_eq!(meaning(kargs), profiles);
}
