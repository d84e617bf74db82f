//! Compares the networks that netplan and glowplug read from the same documents of version 2.
//!
//! `netplan generate` makes files for systemd-networkd from generated documents. The real networkd runs on these files,
//! in a network namespace with its own NICs. The state of the kernel and of networkd is then compared with glowplug's
//! model of the same document. `docs/cloud-init.md` lists the differences, and `State::meant` takes the differences
//! into account.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a helper of a test may fail the test")]

use std::fs::{self, Permissions};
use std::ops::Range;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use glowplug::formats::{Meaning, read_network};
use glowplug::network::{LinkKind, NetworkConfig};
use serde_json::Value;

use crate::support::cases::Program;
use crate::support::state::{self, KernelAbilities, State};
use crate::support::{models, network_config, seeds_of};

/// Seeds of the documents. `NETPLAN_SEEDS=17..18` sets other seeds, for example to repeat a failure.
const SEEDS: Range<u64> = 0..200;

/// Number of differences that a failing test shows.
const DIFFERENCES: usize = 3;

/// Parts of netplan's messages about documents that netplan refuses, although cloud-init and glowplug read them.
const REFUSED: [&str; 7] = [
    "Invalid MAC address",
    "expected sequence",
    "invalid boolean value '1'",
    "networkd requires that use-dns has the same value",
    "malformed address 'resolver.example.com'",
    "unknown bond mode",
    "'set-name:' requires 'match:' properties",
];

/// A document with routing rules. The generator of documents writes no routing rules.
const RULES: &str = r#"{"network": {"version": 2, "ethernets": {"eno1": {"addresses": ["10.0.0.5/24", "2001:db8::5/64"],
    "routes": [{"to": "default", "via": "10.0.0.1", "table": 100}], "routing-policy": [
    {"from": "10.0.0.5", "table": 100, "priority": 7}, {"to": "2001:db8:1::/48", "table": 1000, "priority": 8, "mark": 255},
    {"from": "10.0.0.0/24", "to": "192.0.2.0/24", "table": 254, "priority": 40000, "type-of-service": 16}]}}}}"#;

/// Returns the document of a generated tree, and the network that glowplug reads from the document. `None`: this test
/// cannot compare the network, because the network does not fit the NICs and bridges of the tests, or because netplan is
/// known to read another network than glowplug.
fn document(tree: Value) -> Option<(Value, NetworkConfig)> {
    let text = tree.to_string();
    let reading = read_network(text.as_bytes());
    let Meaning::Network(network) = reading.meaning else { panic!("{text}") };
    let is_empty = |kind: &LinkKind| matches!(kind, LinkKind::Bridge { ports, .. } if ports.is_empty());
    let has_empty_bridge = network.links().iter().any(|link| is_empty(&link.kind));
    let is_shown = models::fitted(&network) == network && !has_empty_bridge && !state::has_far_gateway(&network);
    // netplan reads another network if a destination is an unspecified address, or if a route has a family in which the
    // device has no address.
    let is_same = [r#""to":"::""#, r#""to":"0.0.0.0""#].iter().all(|words| !text.contains(words))
        && !reading.diagnostics.kept().iter().any(|diagnostic| diagnostic.problem() == "unreachable route");
    let document = if tree.get("network").is_some() { tree } else { serde_json::json!({"network": tree}) };
    (is_shown && is_same).then_some((document, network))
}

/// Runs `netplan generate` on a document, in the directory of a case, and adapts the generated files to the NICs of the
/// test. Fails with netplan's message if netplan refuses the document.
fn generate(case: &Path, document: &Value, network: &NetworkConfig) -> Result<(), String> {
    let place = case.join("etc/netplan");
    fs::create_dir_all(&place).unwrap();
    let file = place.join("document.yaml");
    fs::write(&file, document.to_string()).unwrap();
    fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
    let answer = Command::new("netplan").args(["generate", "--root-dir"]).arg(case).output();
    let answer = answer.expect("netplan runs: install netplan.io");
    if !answer.status.success() {
        return Err(String::from_utf8_lossy(&answer.stderr).into_owned());
    }
    for file in files(case) {
        let text = fs::read_to_string(&file).unwrap();
        // The NICs of this test have no permanent MAC address, and no udev renames them.
        let by_mac = text.contains("PermanentMACAddress=");
        let lines = text.lines().filter(|line| !(by_mac && line.starts_with("Name=")));
        let lines = lines.map(|line| line.replace("PermanentMACAddress=", "MACAddress=") + "\n");
        fs::write(&file, lines.collect::<String>()).unwrap();
    }
    fs::write(case.join("nics"), state::nics(network)).unwrap();
    Ok(())
}

/// Returns the paths of networkd's files in the directory of a case.
fn files(case: &Path) -> Vec<std::path::PathBuf> {
    let files = fs::read_dir(case.join("run/systemd/network")).unwrap();
    files.map(|file| file.unwrap().path()).collect()
}

#[test]
fn netplan_and_glowplug_read_the_same_network_from_every_generated_document() {
    let directory = tempfile::tempdir().unwrap();
    let mut documents = Vec::new();
    let seeds = seeds_of("NETPLAN_SEEDS").unwrap_or(SEEDS);
    let trees = seeds.map(|seed| network_config::tree(seed, 2)).chain([serde_json::from_str(RULES).unwrap()]);
    for (number, (document, network)) in trees.filter_map(document).enumerate() {
        let case = directory.path().join(number.to_string());
        match generate(&case, &document, &network) {
            Ok(()) => documents.push((case, document, network)),
            Err(problem) => {
                assert!(REFUSED.iter().any(|known| problem.contains(known)), "{document}\n{problem}");
                fs::remove_dir_all(case).unwrap();
            }
        }
    }
    assert!(!documents.is_empty());
    Program::Netplan.run_batch(directory.path(), 400);
    let mut differences = Vec::new();
    for (case, document, network) in &documents {
        let meant = State::meant(network, Program::Netplan, &KernelAbilities::here());
        let read = |name: &str| fs::read_to_string(case.join(name)).unwrap_or_default();
        let found = State::found(read, &meant).without_repeated_servers();
        if found != meant {
            let text =
                |file: std::path::PathBuf| format!("--- {}\n{}", file.display(), fs::read_to_string(&file).unwrap());
            let files: String = files(case).into_iter().map(text).collect();
            differences.push(format!("{document}\n{files}=== glowplug\n{meant}\n=== netplan\n{found}"));
        }
    }
    let (count, total) = (differences.len(), documents.len());
    differences.truncate(DIFFERENCES);
    assert!(count == 0, "{count} of {total} documents have another meaning:\n{}", differences.join("\n"));
}
