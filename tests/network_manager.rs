//! Runs NetworkManager on the profiles that glowplug writes, and compares the result with the model.
//!
//! The networks come from generated documents and models, as in `tests/networkd.rs`, and from the documents in
//! `fixtures/guest`. NetworkManager runs in a network namespace with its own NICs and its own bus. The state of the
//! kernel and the name servers are then compared with the model, device by device. The kernel of the host might not
//! support bonds and VLANs, so the boot tests run networks with bonds and VLANs in a virtual machine.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a helper of a test may fail the test")]

use std::fs;
use std::ops::Range;
use std::path::Path;
use std::process::Command;

use glowplug::diagnostic::Diagnostics;
use glowplug::formats::{Meaning, read_network};
use glowplug::network::NetworkConfig;
use glowplug::render::dracut;

use crate::support::cases::{self, Program};
use crate::support::{models, network_manager, seeds_of};

/// Seeds of the generated networks. Each kind of network takes a minute. `NM_SEEDS=17..18` sets other seeds, for
/// example to repeat a failure.
const SEEDS: Range<u64> = 0..50;

#[test]
fn network_manager_configures_the_network_of_every_generated_openstack_document() {
    check(cases::openstack);
}

#[test]
fn network_manager_configures_the_network_of_every_generated_network_config() {
    check(cases::cloud_init);
}

#[test]
fn network_manager_configures_every_generated_model() {
    check(models::model);
}

#[test]
fn network_manager_configures_the_network_of_every_fixture() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/guest");
    let mut networks = Vec::new();
    for entry in fs::read_dir(fixtures).unwrap() {
        let directory = entry.unwrap().path();
        let document = fs::read(directory.join("openstack/latest/network_data.json")).unwrap();
        let Meaning::Network(network) = read_network(&document).meaning else { panic!("{}", directory.display()) };
        let name = directory.file_name().unwrap().to_str().unwrap().to_owned();
        networks.push((name, models::fitted(&network)));
    }
    Program::NetworkManager.check(&networks);
}

/// The profile of the pattern has a static address, so NetworkManager needs no DHCP server.
#[test]
fn a_pattern_is_not_used_on_a_nic_whose_own_profile_has_failed() {
    let document = "version: 2\nethernets:\n  any: {match: {name: 'en*', driver: veth}, addresses: [10.0.0.5/24]}\n  \
                    a: {match: {macaddress: '52:54:00:00:00:01'}, addresses: [10.0.0.6/24]}\n  \
                    eno2: {addresses: [10.0.0.7/24]}\n";
    let network = cases::meaning(document);
    let directory = tempfile::tempdir().unwrap();
    let case = directory.path().join("case");
    cases::write_case(&case, &network, Program::NetworkManager);
    // NetworkManager treats a NIC without its own profile like a NIC whose own profile has failed.
    for own in ["50-glowplug-0001-52-54-00-00-00-01", "50-glowplug-0002-eno2"] {
        fs::remove_file(case.join(format!("etc/NetworkManager/system-connections/{own}.nmconnection"))).unwrap();
    }
    fs::write(case.join("nics"), "eno1 52:54:00:00:00:01\neno2 52:54:00:00:00:02\neno3 52:54:00:00:00:03\n").unwrap();
    Program::NetworkManager.run_batch(directory.path(), 3000);
    let devices: Vec<serde_json::Value> = serde_json::from_slice(&fs::read(case.join("addr")).unwrap()).unwrap();
    let ipv4 = |device: &serde_json::Value| {
        let addresses = device["addr_info"].as_array().unwrap().iter().filter(|address| address["family"] == "inet");
        let addresses: Vec<&str> = addresses.map(|address| address["local"].as_str().unwrap()).collect();
        format!("{} {}", device["ifname"].as_str().unwrap(), addresses.join(" "))
    };
    let mut nics: Vec<String> = devices.iter().filter(|device| device["ifname"] != "lo").map(ipv4).collect();
    nics.sort();
    assert_eq!(nics, ["eno1 ", "eno2 ", "eno3 10.0.0.5"]);
}

#[test]
fn the_profile_of_a_pattern_applies_to_every_nic_that_it_matches() {
    let network = cases::meaning(cases::PATTERN);
    let write = |case: &Path| cases::write_case(case, &network, Program::NetworkManager);
    cases::check_pattern(Program::NetworkManager, write, |found, matched| found == matched);
}

/// glowplug warns that the arguments configure only one of the NICs that the pattern matches. On a machine with one
/// NIC, the arguments are correct.
#[test]
fn kernel_arguments_for_a_pattern_with_an_address_apply_to_one_nic() {
    let rendered = dracut::render(&cases::meaning(cases::PATTERN), &mut Diagnostics::default());
    let write = |case: &Path| {
        let mut generator = Command::new(network_manager::program().unwrap());
        for (option, directory) in [("-c", "etc/NetworkManager/system-connections"), ("-i", "initrd"), ("-r", "conf")] {
            fs::create_dir_all(case.join(directory)).unwrap();
            generator.arg(option).arg(case.join(directory));
        }
        cases::run(generator.arg("--").args(rendered.line.split(' ')));
    };
    cases::check_pattern(Program::NetworkManager, write, |found, _| found.len() == 1);
}

/// Runs NetworkManager on the network of each seed.
fn check(network: fn(u64) -> NetworkConfig) {
    Program::NetworkManager.check(&cases::generated(seeds_of("NM_SEEDS").unwrap_or(SEEDS), network));
}
