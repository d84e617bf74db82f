//! Runs systemd-networkd on the files that glowplug writes, and compares the result with the model.
//!
//! Generators make documents and models from seeds. The real networkd runs on the files that glowplug writes for the
//! resulting networks, in a network namespace with its own NICs. The state of the kernel and of networkd is then
//! compared with the model, device by device. The kernel of the host might not support bonds and VLANs, so the boot
//! tests run networks with bonds and VLANs in a virtual machine.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a helper of a test may fail the test")]

use std::env;
use std::fs;
use std::ops::Range;
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::thread;

use glowplug::network::NetworkConfig;

use crate::support::cases::Program;
use crate::support::state::KernelAbilities;
use crate::support::{cases, models};

/// Seeds of the generated networks of each kind. `NETWORKD_SEEDS=17..18` sets other seeds, for example to repeat a
/// failure.
const SEEDS: Range<u64> = 0..50;

/// Number of disagreements that a failing test shows.
const DISAGREEMENTS: usize = 3;

/// Number of batches that run at the same time.
const BATCHES: usize = 2;

fn seeds() -> Range<u64> {
    let Ok(range) = env::var("NETWORKD_SEEDS") else { return SEEDS };
    let (first, end) = range.split_once("..").expect("NETWORKD_SEEDS is a range such as 17..18");
    first.parse().unwrap()..end.parse().unwrap()
}

#[test]
fn networkd_configures_the_network_of_every_generated_openstack_document() {
    ask(cases::openstack);
}

#[test]
fn networkd_configures_the_network_of_every_generated_network_config() {
    ask(cases::cloud_init);
}

#[test]
fn networkd_configures_every_generated_model() {
    ask(models::model);
}

#[test]
fn the_file_of_a_pattern_applies_to_every_nic_that_it_matches() {
    let network = cases::meaning(cases::PATTERN);
    let write = |case: &Path| cases::write_case(case, &network, Program::Networkd);
    cases::check_pattern(&QUIET, write, run_batch, |found, matched| found == matched);
}

/// A macvlan stands for every kind of device that has the MAC address of a NIC. The NIC of this test is a veth. Only
/// the loopback interface has no kind here, as a NIC of a virtual machine has none.
#[test]
fn the_file_of_a_nic_does_not_apply_to_a_device_with_the_mac_address_of_the_nic() {
    let network = cases::meaning(
        "version: 2\nethernets:\n  lan: {match: {macaddress: '52:54:00:00:01:00'}, addresses: [10.0.0.5/24]}\n  \
         loopback: {match: {name: 'l?'}, addresses: [10.0.1.5/24]}\n",
    );
    let meant = [vec!["en0".to_owned()], vec!["lo".to_owned()]];
    let mut found = [Vec::new(), Vec::new()];
    for quiet in QUIET {
        let directory = tempfile::tempdir().unwrap();
        let case = directory.path().join("copy");
        cases::write_case(&case, &network, Program::Networkd);
        fs::write(case.join("nics"), "en0 52:54:00:00:01:00\ncopy 52:54:00:00:01:00 en0\n").unwrap();
        run_batch(directory.path(), quiet);
        found = ["10.0.0.5", "10.0.1.5"].map(|address| cases::devices_with(&case, address));
        if found == meant {
            break;
        }
    }
    assert_eq!(found, meant);
}

/// Runs networkd on the cases of a directory.
fn run_batch(directory: &Path, quiet: u32) {
    let batch = cases::script("networkd/batch");
    cases::run(Command::new("unshare").args(["--net", "--mount"]).arg(batch).arg(directory).arg(quiet.to_string()));
}

/// Runs networkd on the network of each seed. Fails with the first [`DISAGREEMENTS`] differences from the models.
fn ask(network: fn(u64) -> NetworkConfig) {
    let seeds: Vec<u64> = seeds().collect();
    let disagreements = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for seeds in seeds.chunks(seeds.len().div_ceil(BATCHES)) {
            scope.spawn(|| disagreements.lock().unwrap().extend(disagreements_of(seeds, network)));
        }
    });
    let mut disagreements = disagreements.into_inner().unwrap();
    disagreements.sort();
    let (count, total) = (disagreements.len(), seeds.len());
    disagreements.truncate(DISAGREEMENTS);
    let reports: Vec<String> = disagreements.into_iter().map(|(_, disagreement)| disagreement).collect();
    assert!(count == 0, "{count} of {total} networks are not as they were meant:\n{}", reports.join("\n"));
}

/// Milliseconds without a log line after which a case ends, for each attempt. On a busy host, networkd may log nothing
/// because it gets no CPU time, so a case with a disagreement runs again with a longer time.
const QUIET: [u32; 3] = [60, 400, 999];

fn disagreements_of(seeds: &[u64], network: fn(u64) -> NetworkConfig) -> Vec<(u64, String)> {
    let mut disagreements = compare(seeds, network, QUIET[0]);
    for quiet in &QUIET[1..] {
        let slow: Vec<u64> = disagreements.into_iter().map(|(seed, _)| seed).collect();
        if slow.is_empty() {
            return Vec::new();
        }
        disagreements = compare(&slow, network, *quiet);
    }
    disagreements
}

fn compare(seeds: &[u64], network: fn(u64) -> NetworkConfig, quiet: u32) -> Vec<(u64, String)> {
    let directory = tempfile::tempdir().unwrap();
    for seed in seeds {
        cases::write_case(&directory.path().join(seed.to_string()), &network(*seed), Program::Networkd);
    }
    let directory = directory.path();
    run_batch(directory, quiet);
    let compare = |seed: &u64| {
        let case = directory.join(seed.to_string());
        Some((*seed, cases::disagreement(&case, &network(*seed), Program::Networkd, &KernelAbilities::here())?))
    };
    seeds.iter().filter_map(compare).collect()
}
