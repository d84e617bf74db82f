//! Runs several processes with one ledger, and kills processes.
//!
//! Each process is this test program again. The process runs only one test, and this test runs a [`Work`] instead of
//! its assertions.

use std::any::type_name;
use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use glowplug::host::ledger::SqliteLedger;
use glowplug::host::pool::Pool;
use glowplug::host::registry::{Registry, RegistryError};

use super::{claim, database, machine, pool, registry, shown, time};

/// The task of a process. Its parameters are the path of the ledger and the number of the process.
type Work = fn(&Path, usize);

/// All tasks by name. A process gets the name of its task in an environment variable.
const WORKS: [(&str, Work); 5] = [
    ("claim and release", claim_and_release),
    ("make the ledger and claim", make_the_ledger_and_claim),
    ("ask and wait", ask_and_wait),
    ("release", release),
    ("claim until killed", claim_until_killed),
];

const WORK: &str = "GLOWPLUG_TEST_WORK";
const LEDGER: &str = "GLOWPLUG_TEST_LEDGER";
const NUMBER: &str = "GLOWPLUG_TEST_NUMBER";

/// Starts the calling test as a separate process with a task.
fn start<T: Fn()>(_test: T, work: &str, ledger: &Path, number: usize) -> Child {
    // The test harness expects the path without the name of the crate.
    let (_, test) = type_name::<T>().split_once("::").unwrap();
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture", "--test-threads=1"]);
    command.env(WORK, work).env(LEDGER, ledger).env(NUMBER, number.to_string());
    command.stdout(Stdio::piped()).stdin(Stdio::null()).spawn().unwrap()
}

/// Runs the task if [`start`] has started this process. Returns `false` in the test itself.
fn has_worked() -> bool {
    let Ok(requested) = env::var(WORK) else { return false };
    let (_, work) = WORKS.iter().find(|(name, _)| *name == requested).unwrap();
    let (ledger, number) = (env::var_os(LEDGER).unwrap(), env::var(NUMBER).unwrap());
    work(Path::new(&ledger), number.parse().unwrap());
    true
}

fn finish(children: Vec<Child>) {
    for child in children {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    }
}

fn check_integrity(path: &Path) {
    let connection = database(path);
    let answer: String = connection.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
    assert_eq!(answer, "ok");
}

fn wide() -> Pool {
    pool("workers", "eth0", "addresses: [10.0.0.0/16, fd00::/64]")
}

fn narrow() -> Pool {
    pool("workers", "eth0", "addresses: [10.0.0.1-10.0.0.40], machineNetwork: [{cidr: 10.0.0.0/16}]")
}

#[test]
fn eight_processes_claim_and_release_without_a_duplicate_or_a_loss() {
    if has_worked() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ledger");
    registry(&path, [wide()]);
    finish(
        (0..8)
            .map(|number| {
                start(
                    eight_processes_claim_and_release_without_a_duplicate_or_a_loss,
                    "claim and release",
                    &path,
                    number,
                )
            })
            .collect(),
    );

    let mut registry = registry(&path, [wide()]);
    let allocator = registry.state().unwrap();
    // Each process releases every fourth of its 40 machines.
    let held: Vec<(String, String)> = allocator
        .leases()
        .map(|(_, address, lease)| (lease.claimant.machine.name.clone(), address.to_string()))
        .collect();
    let names: BTreeSet<&str> = held.iter().map(|(name, _)| name.as_str()).collect();
    let expected: BTreeSet<String> =
        (0..8).flat_map(|process| (0..40).filter(|at| at % 4 != 3).map(move |at| format!("{process}-{at}"))).collect();
    assert_eq!(names, expected.iter().map(String::as_str).collect());
    let addresses: BTreeSet<&str> = held.iter().map(|(_, address)| address.as_str()).collect();
    assert_eq!((held.len(), addresses.len()), (2 * 240, 2 * 240));
    check_integrity(&path);
}

fn claim_and_release(path: &Path, process: usize) {
    let mut registry = registry(path, [wide()]);
    for at in 0..40 {
        let name = format!("{process}-{at}");
        let given = registry.claim(&claim(&name, 0, &["clusters/workers"]), time(1)).unwrap();
        assert_eq!(registry.claim(&claim(&name, 0, &["clusters/workers"]), time(2)).unwrap(), given);
        if at % 4 == 3 {
            assert_eq!(registry.release(&machine(&name), time(3)).unwrap().held, given);
        }
    }
}

#[test]
fn eight_processes_that_start_together_create_one_ledger() {
    if has_worked() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ledger");
    finish(
        (0..8)
            .map(|number| {
                start(eight_processes_that_start_together_create_one_ledger, "make the ledger and claim", &path, number)
            })
            .collect(),
    );
    let mut registry = registry(&path, [narrow()]);
    assert_eq!(registry.state().unwrap().leases().count(), 8);
}

fn make_the_ledger_and_claim(path: &Path, process: usize) {
    registry(path, [narrow()]).claim(&claim(&process.to_string(), 0, &["clusters/workers"]), time(1)).unwrap();
}

#[test]
fn machines_that_wait_in_several_processes_are_served_in_order() {
    if has_worked() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ledger");
    let mut registry = registry(&path, [narrow()]);
    for at in 0..40 {
        registry.claim(&claim(&format!("first-{at}"), 0, &["clusters/workers"]), time(1)).unwrap();
    }
    finish(
        (0..8)
            .map(|number| {
                start(machines_that_wait_in_several_processes_are_served_in_order, "ask and wait", &path, number)
            })
            .collect(),
    );
    let expected: Vec<String> = (0..80).map(|at| format!("waiter-{at}")).collect();
    let waiting = |registry: &mut Registry<SqliteLedger>| -> Vec<String> {
        let waiters = registry.state().unwrap().waiters();
        waiters.iter().map(|claim| claim.machine.name.clone()).collect()
    };
    assert_eq!(waiting(&mut registry), expected);

    finish(
        (0..8)
            .map(|number| start(machines_that_wait_in_several_processes_are_served_in_order, "release", &path, number))
            .collect(),
    );
    assert_eq!(waiting(&mut registry), &expected[24..]);
    let held: BTreeSet<&str> = registry
        .state()
        .unwrap()
        .leases()
        .filter_map(|(_, _, lease)| {
            lease.claimant.machine.name.strip_prefix("waiter-").is_some().then_some(&*lease.claimant.machine.name)
        })
        .collect();
    assert_eq!(held, expected[..24].iter().map(String::as_str).collect());
}

fn ask_and_wait(path: &Path, process: usize) {
    let mut registry = registry(path, [narrow()]);
    for at in 0..10 {
        // The creation times of the machines interleave between the processes. Each process claims for its youngest
        // machine first.
        let number = 8 * (9 - at) + process;
        let refused =
            registry.claim(&claim(&format!("waiter-{number}"), number as u64, &["clusters/workers"]), time(1));
        let Err(RegistryError::Refused(error)) = refused else { panic!("{refused:?}") };
        assert_eq!(error.to_string(), "No available IPs in pool for interface eth0");
    }
}

fn release(path: &Path, process: usize) {
    let mut registry = registry(path, [narrow()]);
    for at in 0..3 {
        let released = registry.release(&machine(&format!("first-{}", 3 * process + at)), time(2)).unwrap();
        assert_eq!((released.held.len(), released.served.len()), (1, 1));
    }
}

/// Kills processes at random moments. `GLOWPLUG_TEST_KILLS` sets the number of kills.
#[test]
fn a_killed_process_neither_loses_nor_duplicates_a_committed_claim() {
    if has_worked() {
        return;
    }
    let kills = env::var("GLOWPLUG_TEST_KILLS").map_or(100, |kills| kills.parse().unwrap());
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ledger");
    registry(&path, [wide()]);
    // Machines that certainly hold addresses. A machine is not in this map if the result of its last request is
    // unknown.
    let mut held: BTreeMap<String, String> = BTreeMap::new();
    for kill in 0..kills {
        let mut child =
            start(a_killed_process_neither_loses_nor_duplicates_a_committed_claim, "claim until killed", &path, kill);
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        // Wait until the process has begun, and then for a random time in which some claims are made.
        let mut printed = String::new();
        while !printed.ends_with("begin\n") {
            assert_ne!(lines.read_line(&mut printed).unwrap(), 0, "{printed}");
        }
        std::thread::sleep(Duration::from_micros((kill as u64 * 7_919) % 6_000));
        child.kill().unwrap();
        lines.read_to_string(&mut printed).unwrap();
        child.wait().unwrap();

        let mut uncertain = BTreeSet::new();
        // The process may have been killed in the middle of a line.
        for line in printed.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')) {
            let words: Vec<&str> = line.split(' ').collect();
            match words[..] {
                ["claiming" | "releasing", name] => {
                    held.remove(name);
                    uncertain.insert(name.to_owned());
                }
                ["claimed", name, address] => {
                    uncertain.remove(name);
                    held.insert(name.to_owned(), address.to_owned());
                }
                ["released", name] => {
                    uncertain.remove(name);
                }
                _ => {}
            }
        }
        assert!(uncertain.len() <= 1, "{uncertain:?}");
        let mut registry = registry(&path, [wide()]);
        let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (_, address, lease) in registry.state().unwrap().leases() {
            found.entry(lease.claimant.machine.name.clone()).or_default().push(address.to_string());
        }
        for name in uncertain {
            // A machine holds all of its addresses or none.
            if let Some(addresses) = found.get(&name) {
                assert_eq!(addresses.len(), 2);
                held.insert(name, addresses.join("+"));
            }
        }
        let found: BTreeMap<String, String> =
            found.into_iter().map(|(name, addresses)| (name, addresses.join("+"))).collect();
        assert_eq!(found, held);
    }
    check_integrity(&path);
}

fn claim_until_killed(path: &Path, process: usize) {
    let mut registry = registry(path, [wide()]);
    // Bypass the test harness, which would capture the output.
    let mut out = std::io::stdout();
    let mut say = |line: String| {
        out.write_all(line.as_bytes()).unwrap();
        out.flush().unwrap();
    };
    say("\nbegin\n".to_owned());
    for at in 0.. {
        let name = format!("{process}-{at}");
        say(format!("claiming {name}\n"));
        let given = registry.claim(&claim(&name, 0, &["clusters/workers"]), time(1)).unwrap();
        let addresses: Vec<String> = given[0].addresses.iter().map(|network| network.ip().to_string()).collect();
        say(format!("claimed {name} {}\n", addresses.join("+")));
        if at % 2 == 1 {
            let name = format!("{process}-{}", at - 1);
            say(format!("releasing {name}\n"));
            registry.release(&machine(&name), time(2)).unwrap();
            say(format!("released {name}\n"));
        }
    }
}

#[test]
fn a_process_sees_changes_of_another_process_at_its_next_claim() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ledger");
    let (mut one, mut other) = (registry(&path, [narrow()]), registry(&path, [narrow()]));
    let given = |registry: &mut Registry<SqliteLedger>, name: &str| {
        shown(&registry.claim(&claim(name, 0, &["clusters/workers"]), time(1)).unwrap())
    };
    assert_eq!(given(&mut one, "a"), ["a: 10.0.0.1/16"]);
    assert_eq!(given(&mut other, "b"), ["b: 10.0.0.2/16"]);
    assert_eq!(given(&mut one, "b"), ["b: 10.0.0.2/16"]);
    assert_eq!(shown(&other.release(&machine("a"), time(2)).unwrap().held), ["a: 10.0.0.1/16"]);
    assert_eq!(given(&mut one, "c"), ["c: 10.0.0.1/16"]);
    // The ledger does not keep all changes of the claims below for a process that lags behind, so `other` must read the
    // whole ledger.
    let many = pool("many", "eth1", "addresses: [10.1.0.0/16, fd01::/64]");
    one.resize([many], &[], time(3)).unwrap();
    one.open_addresses(time(3)).unwrap();
    let claims: Vec<_> = (0..5_001).map(|at| claim(&at.to_string(), 0, &["clusters/many"])).collect();
    assert!(one.claim_all(&claims, time(4)).unwrap().answers.iter().all(Result::is_ok));
    assert_eq!(given(&mut one, "d"), ["d: 10.0.0.3/16"]);
    assert_eq!(given(&mut other, "e"), ["e: 10.0.0.4/16"]);
    assert_eq!(other.state().unwrap().leases().count(), 10_002 + 4);
}
