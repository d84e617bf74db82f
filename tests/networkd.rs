//! Runs systemd-networkd on the files that glowplug writes, and compares the result with the model.
//!
//! Generators make documents and models from seeds. The real networkd runs on the files that glowplug writes for the
//! resulting networks, in a network namespace with its own NICs. The state of the kernel and of networkd is then
//! compared with the model, device by device. The kernel of the host might not support bonds and VLANs, so the boot
//! tests run networks with bonds and VLANs in a virtual machine.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a helper of a test may fail the test")]

use std::fs;
use std::ops::Range;
use std::path::Path;

use glowplug::network::NetworkConfig;

use crate::support::cases::{self, Program};
use crate::support::{models, seeds_of};

/// Seeds of the generated networks of each kind. `NETWORKD_SEEDS=17..18` sets other seeds, for example to repeat a
/// failure.
const SEEDS: Range<u64> = 0..50;

#[test]
fn networkd_configures_the_network_of_every_generated_openstack_document() {
    check(cases::openstack);
}

#[test]
fn networkd_configures_the_network_of_every_generated_network_config() {
    check(cases::cloud_init);
}

#[test]
fn networkd_configures_every_generated_model() {
    check(models::model);
}

#[test]
fn the_file_of_a_pattern_applies_to_every_nic_that_it_matches() {
    let network = cases::meaning(cases::PATTERN);
    let write = |case: &Path| cases::write_case(case, &network, Program::Networkd);
    cases::check_pattern(Program::Networkd, write, |found, matched| found == matched);
}

/// A macvlan stands for every kind of device that has the MAC address of a NIC. The NIC of a virtual machine has no
/// kind. In this test, only the loopback interface has no kind, because the NIC is a veth.
#[test]
fn the_file_of_a_nic_does_not_apply_to_a_device_with_the_mac_address_of_the_nic() {
    let network = cases::meaning(
        "version: 2\nethernets:\n  lan: {match: {macaddress: '52:54:00:00:01:00'}, addresses: [10.0.0.5/24]}\n  \
         loopback: {match: {name: 'l?'}, addresses: [10.0.1.5/24]}\n",
    );
    let meant = [vec!["en0".to_owned()], vec!["lo".to_owned()]];
    let mut found = [Vec::new(), Vec::new()];
    for quiet in Program::Networkd.quiet() {
        let directory = tempfile::tempdir().unwrap();
        let case = directory.path().join("copy");
        cases::write_case(&case, &network, Program::Networkd);
        fs::write(case.join("nics"), "en0 52:54:00:00:01:00\ncopy 52:54:00:00:01:00 en0\n").unwrap();
        Program::Networkd.run_batch(directory.path(), quiet);
        found = ["10.0.0.5", "10.0.1.5"].map(|address| cases::devices_with(&case, address));
        if found == meant {
            break;
        }
    }
    assert_eq!(found, meant);
}

/// Runs networkd on the network of each seed.
fn check(network: fn(u64) -> NetworkConfig) {
    Program::Networkd.check(&cases::generated(seeds_of("NETWORKD_SEEDS").unwrap_or(SEEDS), network));
}
