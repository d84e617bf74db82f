//! Writes generated networks as cases for `tests/networkd/batch` and `tests/network_manager/batch`, and compares the
//! results with the networks.

use std::fs::{self, Permissions};
use std::ops::Range;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::thread;

use glowplug::diagnostic::Diagnostics;
use glowplug::formats::{Meaning, read_network};
use glowplug::network::NetworkConfig;
use glowplug::render::networkd::File;
use glowplug::render::{network_manager_profiles, networkd};
use serde_json::Value;

use super::state::{self, KernelAbilities, State};
use super::{documents, models, network_config};

/// Number of disagreements that a failing test shows.
const DISAGREEMENTS: usize = 3;

/// Number of batches that run at the same time.
const BATCHES: usize = 2;

/// A network, and the name of its directory.
pub(crate) type Case = (String, NetworkConfig);

/// Returns a case for each seed. The name of a case is its seed.
pub(crate) fn generated(seeds: Range<u64>, network: fn(u64) -> NetworkConfig) -> Vec<Case> {
    seeds.map(|seed| (seed.to_string(), network(seed))).collect()
}

/// Returns the network of the OpenStack document of a seed.
pub(crate) fn openstack(seed: u64) -> NetworkConfig {
    models::fitted(&network(&documents::case(seed).document))
}

/// Returns the network of the cloud-init document of a seed.
pub(crate) fn cloud_init(seed: u64) -> NetworkConfig {
    models::fitted(&network(&network_config::tree(seed, 1 + seed % 2)))
}

fn network(document: &Value) -> NetworkConfig {
    meaning(&document.to_string())
}

/// Returns the network of a document.
pub(crate) fn meaning(document: &str) -> NetworkConfig {
    match read_network(document.as_bytes()).meaning {
        Meaning::Network(network) => network,
        other => panic!("{other:?} is meant by:\n{document}"),
    }
}

/// A network program that reads files.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Program {
    Networkd,
    NetworkManager,
    /// networkd with files that netplan has written from the document.
    Netplan,
}

impl Program {
    fn render(self, network: &NetworkConfig) -> (Vec<File>, Diagnostics) {
        let mut diagnostics = Diagnostics::default();
        let files = match self {
            Self::Networkd => networkd::render(network, &mut diagnostics).files,
            Self::Netplan => Vec::new(),
            Self::NetworkManager => network_manager_profiles::render(network, &mut diagnostics).files,
        };
        (files, diagnostics)
    }

    /// Milliseconds without a log line after which a case ends, for each attempt. On a busy host, a program may log
    /// nothing because it gets no CPU time, so a case with a disagreement runs again with a longer time.
    pub(crate) fn quiet(self) -> [u32; 3] {
        match self {
            Self::Networkd | Self::Netplan => [60, 400, 999],
            Self::NetworkManager => [200, 800, 3000],
        }
    }

    /// Runs the program on the cases of a directory. A case ends after `quiet` milliseconds without a log line.
    pub(crate) fn run_batch(self, directory: &Path, quiet: u32) {
        let batch = match self {
            Self::Networkd | Self::Netplan => "tests/networkd/batch",
            Self::NetworkManager => "tests/network_manager/batch",
        };
        let batch = Path::new(env!("CARGO_MANIFEST_DIR")).join(batch);
        run(Command::new("unshare").args(["--net", "--mount"]).arg(batch).arg(directory).arg(quiet.to_string()));
    }

    /// Runs the program on each network. Fails with the first [`DISAGREEMENTS`] differences from the networks.
    pub(crate) fn check(self, networks: &[Case]) {
        let mut disagreements: Vec<String> = thread::scope(|scope| {
            let batches = networks.chunks(networks.len().div_ceil(BATCHES));
            let batches: Vec<_> = batches.map(|batch| scope.spawn(move || self.disagreements(batch))).collect();
            batches.into_iter().flat_map(|batch| batch.join().unwrap()).collect()
        });
        let (count, total) = (disagreements.len(), networks.len());
        disagreements.truncate(DISAGREEMENTS);
        assert!(count == 0, "{count} of {total} networks are not as they were meant:\n{}", disagreements.join("\n"));
    }

    fn disagreements(self, networks: &[Case]) -> Vec<String> {
        let mut left: Vec<&Case> = networks.iter().collect();
        let mut disagreements = Vec::new();
        for quiet in self.quiet() {
            let directory = tempfile::tempdir().unwrap();
            let directory = directory.path();
            for (name, network) in &left {
                write_case(&directory.join(name), network, self);
            }
            self.run_batch(directory, quiet);
            disagreements.clear();
            left.retain(|(name, network)| {
                let found = disagreement(&directory.join(name), network, self, &KernelAbilities::here());
                found.is_some_and(|disagreement| {
                    disagreements.push(disagreement);
                    true
                })
            });
            if left.is_empty() {
                break;
            }
        }
        disagreements
    }
}

/// Renders a network into the directory of a case, where `batch` reads the files.
pub(crate) fn write_case(case: &Path, network: &NetworkConfig, program: Program) {
    let (files, diagnostics) = program.render(network);
    assert!(!diagnostics.has_errors(), "{diagnostics:?}");
    for file in &files {
        let path = case.join(&file.path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, &file.text).unwrap();
        if file.is_private {
            fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        }
    }
    fs::write(case.join("nics"), state::nics(network)).unwrap();
}

/// Number of NICs that [`PATTERN`] matches, for each machine of [`check_pattern`].
const MATCHES: [usize; 5] = [0, 1, 2, 5, 40];

/// A document whose pattern matches any number of NICs. The address is static, so no network program needs a DHCP
/// server.
pub(crate) const PATTERN: &str = "version: 2\nethernets: {any: {match: {name: 'en*'}, addresses: [10.0.0.5/24]}}\n";

/// Returns the names of the devices that have the address at the end of a case, sorted.
pub(crate) fn devices_with(case: &Path, address: &str) -> Vec<String> {
    let devices: Vec<Value> = serde_json::from_slice(&fs::read(case.join("addr")).unwrap()).unwrap();
    let has = |device: &&Value| device["addr_info"].as_array().unwrap().iter().any(|found| found["local"] == address);
    let mut names: Vec<String> =
        devices.iter().filter(has).map(|device| device["ifname"].as_str().unwrap().to_owned()).collect();
    names.sort();
    names
}

/// Checks which NICs have the address of [`PATTERN`], on machines with different numbers of NICs. Each machine has one
/// more NIC, `other`.
///
/// `write` adds the files of the program to the directory of a machine. `is_meant` gets the names of the NICs that have
/// the address, and the names of the NICs that the pattern matches.
pub(crate) fn check_pattern(program: Program, write: impl Fn(&Path), is_meant: impl Fn(&[String], &[String]) -> bool) {
    let mut wrong = Vec::new();
    for quiet in program.quiet() {
        let directory = tempfile::tempdir().unwrap();
        for count in MATCHES {
            let case = directory.path().join(count.to_string());
            write(&case);
            let nic = |at: usize| format!("en{at} 52:54:00:00:01:{at:02x}\n");
            let nics: String = (0..count).map(nic).collect();
            fs::write(case.join("nics"), format!("{nics}other 52:54:00:00:02:00\n")).unwrap();
        }
        program.run_batch(directory.path(), quiet);
        let has_address = |count: &usize| devices_with(&directory.path().join(count.to_string()), "10.0.0.5");
        let matched = |count: usize| {
            let mut names: Vec<String> = (0..count).map(|at| format!("en{at}")).collect();
            names.sort();
            names
        };
        let found = MATCHES.map(|count| (count, has_address(&count)));
        wrong = found.into_iter().filter(|(count, found)| !is_meant(found, &matched(*count))).collect();
        if wrong.is_empty() {
            break;
        }
    }
    assert_eq!(wrong, [], "machines with so many NICs that the pattern matches, and the NICs with its address");
}

pub(crate) fn run(command: &mut Command) {
    let answer = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let log = String::from_utf8_lossy(&answer.stderr);
    let status = answer.status;
    assert!(
        status.success(),
        "{command:?} ended with {status}; it needs root, iproute2, and systemd or network-manager and dbus-daemon:\n{log}"
    );
}

/// Returns the difference between the result of a case and its network, if there is a difference.
pub(crate) fn disagreement(
    case: &Path,
    network: &NetworkConfig,
    program: Program,
    machine: &KernelAbilities,
) -> Option<String> {
    let read = |name: &str| fs::read_to_string(case.join(name)).unwrap_or_default();
    let meant = State::meant(network, program, machine);
    let (found, complaints) = (State::found(read, &meant), state::complaints(&read("log"), program, machine));
    if found == meant && complaints.is_empty() {
        return None;
    }
    let (files, _) = program.render(network);
    let files: Vec<String> = files.into_iter().map(|file| format!("--- {}\n{}", file.path, file.text)).collect();
    let (name, files, complaints) = (case.display(), files.join(""), complaints.join("\n"));
    Some(format!("{name}\n{files}\n=== complaints\n{complaints}\n=== meant\n{meant}\n=== found\n{found}"))
}
