//! Puts faults into a claim with `strace`: the process is killed at each of its writes, or each write fails.
//!
//! After every fault, a machine holds its addresses if they were printed. No machine holds only a part of its addresses
//! or addresses of another machine. When the same claim is then repeated, the machine gets the lowest free addresses.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use glowplug::host::ledger::SqliteLedger;
use glowplug::host::registry::Registry;
use rusqlite::Connection;

/// System calls that change a disk.
const WRITES: [&str; 6] = ["pwrite64", "write", "fsync", "fdatasync", "ftruncate", "unlink"];

const FIRST: &str = "10.0.0.1 fd00::1";
const SECOND: &str = "10.0.0.2 fd00::2";

/// Exit status of a claim, and whether the machine holds its addresses afterwards.
type End = (Option<i32>, bool);

fn claim(directory: &Path, machine: &str, strace: &[&str]) -> Output {
    run(
        directory,
        strace,
        &["claim", "--pool", "pool", "--ledger", "ledger", "--uid", machine, &format!("default/{machine}")],
    )
}

fn init(directory: &Path, strace: &[&str]) -> Output {
    run(directory, strace, &["init", "--ledger", "ledger", "--pool", "pool"])
}

fn run(directory: &Path, strace: &[&str], arguments: &[&str]) -> Output {
    let mut command = Command::new("strace");
    command.args(["-qq", "-o", "strace"]).args(strace).arg(env!("CARGO_BIN_EXE_glowplugctl"));
    command.args(arguments).current_dir(directory).output().unwrap()
}

/// Creates a directory with a ledger in which these machines hold addresses.
fn held_by(machines: &[&str]) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let pool = "{name: workers, network: vlan10, addresses: [10.0.0.0/16, fd00::/64]}";
    fs::write(directory.path().join("pool"), pool).unwrap();
    assert_eq!(init(directory.path(), &[]).status.code(), Some(0));
    for machine in machines {
        assert_eq!(claim(directory.path(), machine, &[]).status.code(), Some(0));
    }
    directory
}

/// Checks the ledger file, and returns the addresses of each machine.
fn held(directory: &Path) -> BTreeMap<String, String> {
    let path = directory.join("ledger");
    let mut held = BTreeMap::new();
    let mut registry = Registry::open(SqliteLedger::open(&path).unwrap()).unwrap();
    for (_, address, lease) in registry.state().unwrap().leases() {
        let addresses: &mut String = held.entry(lease.claimant.machine.name.clone()).or_default();
        *addresses = format!("{addresses} {address}").trim_start().to_owned();
    }
    let connection = Connection::open(path).unwrap();
    let answer: String = connection.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
    assert_eq!(answer, "ok");
    held
}

/// Repeats the claim of a machine, each time with a fault at another write. `others` already hold addresses. If `on` is
/// `+`, later calls of the same system call have the fault, too. Returns how the claims ended.
fn at_every_write(others: &[&str], machine: &str, addresses: &str, fault: &str, on: &str) -> BTreeSet<End> {
    let before = held_by(others);
    let without_fault = held_by(others);
    assert_eq!(claim(without_fault.path(), machine, &[]).status.code(), Some(0));
    let expected = held(without_fault.path());
    assert_eq!(expected.get(machine).map(String::as_str), Some(addresses));
    let log = fs::read_to_string(without_fault.path().join("strace")).unwrap();

    let mut ends = BTreeSet::new();
    for name in WRITES {
        let count = log.lines().filter(|line| line.starts_with(&format!("{name}("))).count();
        for nth in 1..=count {
            let directory = tempfile::tempdir().unwrap();
            for entry in fs::read_dir(before.path()).unwrap() {
                let entry = entry.unwrap();
                fs::copy(entry.path(), directory.path().join(entry.file_name())).unwrap();
            }
            let inject = format!("inject={name}:{fault}:when={nth}{on}");
            let run = claim(directory.path(), machine, &["-e", &format!("trace={name}"), "-e", &inject]);
            let (code, printed) = (run.status.code(), String::from_utf8(run.stdout).unwrap());
            let log = fs::read_to_string(directory.path().join("strace")).unwrap();
            assert!(log.contains("(INJECTED)") || log.contains("+++ killed by SIGKILL"), "{inject}: {log}");

            let held_now = held(directory.path());
            let holds = held_now.get(machine).map(String::as_str);
            let is_reported = code == Some(0) || !printed.is_empty();
            assert!(
                holds == Some(addresses) || (holds.is_none() && !is_reported),
                "{inject}: {code:?} {printed} {holds:?}"
            );
            let others_now = held_now.iter().filter(|(name, _)| *name != machine);
            let others_then = expected.iter().filter(|(name, _)| *name != machine);
            assert!(others_now.eq(others_then), "{inject}: {held_now:?}");
            ends.insert((code, holds.is_some()));

            let again = claim(directory.path(), machine, &[]);
            assert_eq!(again.status.code(), Some(0), "{inject}: {}", String::from_utf8_lossy(&again.stderr));
            assert_eq!(held(directory.path()), expected, "{inject}");
        }
    }
    ends
}

#[test]
fn an_init_that_is_killed_at_any_write_can_be_repeated() {
    let made = held_by(&[]);
    let log = fs::read_to_string(made.path().join("strace")).unwrap();
    let mut ends = BTreeSet::new();
    for name in WRITES {
        for nth in 1..=log.lines().filter(|line| line.starts_with(&format!("{name}("))).count() {
            let directory = tempfile::tempdir().unwrap();
            fs::copy(made.path().join("pool"), directory.path().join("pool")).unwrap();
            let inject = format!("inject={name}:signal=SIGKILL:when={nth}");
            init(directory.path(), &["-e", &format!("trace={name}"), "-e", &inject]);
            // Either the failed command has created the ledger, or this command creates the ledger.
            ends.insert(init(directory.path(), &[]).status.code());
            assert_eq!(claim(directory.path(), "worker-0", &[]).status.code(), Some(0), "{inject}");
        }
    }
    assert_eq!(ends, BTreeSet::from([Some(0), Some(1)]));
}

#[test]
fn a_first_claim_that_is_killed_at_any_write_can_be_repeated_and_gets_the_same_address() {
    let ends = at_every_write(&[], "worker-0", FIRST, "signal=SIGKILL", "");
    assert_eq!(ends, BTreeSet::from([(None, false), (None, true)]));
}

#[test]
fn a_claim_that_is_killed_at_any_write_can_be_repeated_and_gets_the_same_address() {
    let ends = at_every_write(&["worker-0"], "worker-1", SECOND, "signal=SIGKILL", "");
    assert_eq!(ends, BTreeSet::from([(None, false), (None, true)]));
}

/// Possible ends of a claim: success, because the failed call only cleans up; a failure without addresses; a failure of
/// standard output after the ledger has recorded the addresses.
const FAILED: [End; 3] = [(Some(0), true), (Some(1), false), (Some(1), true)];

#[test]
fn a_first_claim_whose_write_fails_can_be_repeated_and_gets_the_same_address() {
    assert_eq!(at_every_write(&[], "worker-0", FIRST, "error=EIO", ""), BTreeSet::from(FAILED));
}

#[test]
fn a_claim_whose_write_fails_can_be_repeated_and_gets_the_same_address() {
    assert_eq!(at_every_write(&["worker-0"], "worker-1", SECOND, "error=EIO", ""), BTreeSet::from(FAILED));
}

#[test]
fn a_claim_on_a_disk_that_gets_full_at_any_write_can_be_repeated_and_gets_the_same_address() {
    assert_eq!(at_every_write(&["worker-0"], "worker-1", SECOND, "error=ENOSPC", "+"), BTreeSet::from(FAILED));
}

#[test]
fn a_refusal_that_cannot_be_printed_has_the_exit_status_of_a_refusal() {
    let directory = held_by(&[]);
    let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_glowplugctl"));
    command.args(["claim", "--pool", "pool", "--ledger", "ledger", "--uid", "a", "default/a", "--ip", "10.9.9.9"]);
    assert_eq!(command.current_dir(directory.path()).stderr(full).status().unwrap().code(), Some(1));
}
