//! Runs several processes with one ledger, interrupts a process, and runs processes with few file permissions or with a
//! pipe as the output.

use std::collections::BTreeSet;
use std::fs::{self, File, Permissions};
use std::io::Read;
use std::net::Ipv4Addr;
use std::os::unix::fs::{FileTypeExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use std::{iter, thread};

use nix::sys::stat::Mode;
use nix::unistd::{geteuid, mkfifo};
use serde_json::{Value, json};
use tempfile::TempDir;

const POOL: &str = "{name: workers, network: vlan10, addresses: [10.0.0.0/16]}";

/// Creates a directory with a pool and an empty ledger.
fn with_ledger() -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("pool"), POOL).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_glowplugctl"));
    command.args(["init", "--ledger", "ledger", "--pool", "pool"]).current_dir(directory.path());
    assert!(command.status().unwrap().success());
    directory
}

fn claim(directory: &Path, machines: &str) -> Child {
    let arguments = ["claim", "--pool", "pool", "--ledger", "ledger", "--json", "--machines", machines];
    let mut command = Command::new(env!("CARGO_BIN_EXE_glowplugctl"));
    command.args(arguments).current_dir(directory).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn write_list(path: &Path, names: impl Iterator<Item = String>) {
    let machine = |name: String| json!({"kind": "KubevirtMachine", "metadata": {"namespace": "clusters", "name": name, "uid": format!("u-{name}")}});
    fs::write(path, json!({"kind": "List", "items": names.map(machine).collect::<Vec<Value>>()}).to_string()).unwrap();
}

/// Returns name and address of each machine, in the order of the output of a claim.
fn allocations(child: Child) -> Vec<(String, String)> {
    let output = child.wait_with_output().unwrap();
    // A claim shows its progress only on a terminal.
    assert_eq!((output.status.code(), String::from_utf8(output.stderr).unwrap().as_str()), (Some(0), ""));
    let printed: Value = serde_json::from_slice(&output.stdout).unwrap();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let allocations = printed["allocations"].as_array().unwrap();
    allocations.iter().map(|given| (text(&given["name"]), text(&given["addresses"][0]))).collect()
}

/// Returns the first `count` addresses of the pool after the network address.
fn lowest(count: u32) -> BTreeSet<String> {
    (1..=count).map(|number| format!("{}/16", Ipv4Addr::from(0x0a00_0000 + number))).collect()
}

#[test]
fn several_processes_give_each_machine_an_address_of_its_own_and_leave_no_gap() {
    let directory = with_ledger();
    let mut children = Vec::new();
    for process in 0..8 {
        let list = directory.path().join(format!("list-{process}"));
        write_list(&list, (0..50).map(|number| format!("worker-{process}-{number}")));
        children.push(claim(directory.path(), list.to_str().unwrap()));
    }
    let given: Vec<(String, String)> = children.into_iter().flat_map(allocations).collect();
    assert_eq!(given.len(), 400);
    assert_eq!(given.into_iter().map(|(_, address)| address).collect::<BTreeSet<_>>(), lowest(400));
}

#[test]
fn several_processes_that_claim_for_the_same_machines_print_the_same_addresses() {
    let directory = with_ledger();
    write_list(&directory.path().join("list"), (0..50).map(|number| format!("worker-{number}")));
    let children: Vec<Child> = (0..4).map(|_| claim(directory.path(), "list")).collect();
    let given: BTreeSet<Vec<(String, String)>> = children.into_iter().map(allocations).collect();
    assert_eq!(given.len(), 1);
    let addresses = given.into_iter().flatten().map(|(_, address)| address);
    assert_eq!(addresses.collect::<BTreeSet<_>>(), lowest(50));
}

/// Whenever the process is interrupted, the ledger has whole batches and at least the printed addresses. The next claim
/// allocates the remaining addresses.
#[test]
fn an_interrupted_claim_continues_after_its_last_batch() {
    let directory = with_ledger();
    write_list(&directory.path().join("list"), (0..5_000).map(|number| format!("worker-{number}")));
    for pause in [50, 200, 400] {
        let mut child = claim(directory.path(), "list");
        thread::sleep(Duration::from_millis(pause));
        // The process may have ended before the interrupt, so the exit status of `kill` does not matter.
        let _ = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
        drop(child.stdout.take());
        child.wait().unwrap();
    }
    let given = allocations(claim(directory.path(), "list"));
    assert_eq!(given.len(), 5_000);
    let in_order: Vec<u32> = given
        .iter()
        .map(|(_, address)| u32::from(address.strip_suffix("/16").unwrap().parse::<Ipv4Addr>().unwrap()) - 0x0a00_0000)
        .collect();
    assert_eq!(in_order, (1..=5_000).collect::<Vec<u32>>());
}

/// Runs a command as `nobody` if the test runs as root, because root ignores file permissions.
fn as_nobody(command: &mut Command) -> &mut Command {
    const NOBODY: u32 = 65_534;
    if geteuid().is_root() { command.gid(NOBODY).uid(NOBODY) } else { command }
}

#[test]
fn a_user_with_only_the_right_to_read_the_ledger_gets_lists_and_metrics() {
    let directory = with_ledger();
    let path = |name: &str| directory.path().join(name);
    let set_mode = |name: &str, mode| fs::set_permissions(path(name), Permissions::from_mode(mode)).unwrap();
    // Every user can execute the copy, while the directory of the build may be private.
    fs::copy(env!("CARGO_BIN_EXE_glowplugctl"), path("glowplugctl")).unwrap();
    write_list(&path("list"), iter::once("worker-0".to_owned()));
    allocations(claim(directory.path(), "list"));
    for name in ["ledger", "ledger-wal", "ledger-shm"] {
        set_mode(name, 0o444);
    }
    set_mode(".", 0o555);
    let run = |arguments: &[&str]| {
        let mut command = Command::new(path("glowplugctl"));
        let output = as_nobody(command.args(arguments).current_dir(directory.path())).output().unwrap();
        let [printed, complaints] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
        (output.status.code(), printed.lines().count(), complaints)
    };
    let list = ["list", "--ledger", "ledger"];
    assert_eq!(run(&list), (Some(0), 2, String::new()));
    assert_eq!(run(&["metrics", "--pool", "pool", "--ledger", "ledger"]), (Some(0), 20, String::new()));
    let refused = run(&["claim", "--pool", "pool", "--ledger", "ledger", "a/b", "--uid", "c"]);
    let readonly = "error: ledger: not writable, expected the right to write the file and its folder\n";
    assert_eq!(refused, (Some(1), 0, readonly.to_owned()));
    let refused = run(&["init", "--pool", "pool", "--ledger", "new"]);
    assert_eq!(refused, (Some(1), 0, readonly.replace("ledger", "new")));
    set_mode(".", 0o755);
    fs::remove_file(path("ledger-shm")).unwrap();
    set_mode(".", 0o555);
    let log = "error: ledger: log not readable, expected the right to read ledger-wal and ledger-shm, or a directory to make \
               ledger-shm in\n";
    assert_eq!(run(&list), (Some(1), 0, log.to_owned()));
    set_mode(".", 0o755);
}

#[test]
fn output_to_a_pipe_or_a_symbolic_link_does_not_replace_the_pipe_or_the_link() {
    let directory = with_ledger();
    let path = |name: &str| directory.path().join(name);
    write_list(&path("list"), iter::once("worker-0".to_owned()));
    allocations(claim(directory.path(), "list"));
    let metrics = |output: &[&str]| {
        let arguments = ["metrics", "--pool", "pool", "--ledger", "ledger"].iter().chain(output);
        let mut command = Command::new(env!("CARGO_BIN_EXE_glowplugctl"));
        let output = command.args(arguments).current_dir(directory.path()).output().unwrap();
        assert_eq!(output.status.code(), Some(0));
        output.stdout
    };
    let text = metrics(&[]);
    mkfifo(&path("pipe"), Mode::S_IRWXU).unwrap();
    // The pipe is opened for reading and writing, so that the test does not wait for a writer, and the program does not
    // wait for a reader.
    let mut reader = File::options().read(true).write(true).open(path("pipe")).unwrap();
    metrics(&["--output", "pipe"]);
    assert!(fs::symlink_metadata(path("pipe")).unwrap().file_type().is_fifo());
    let mut read = vec![0; text.len()];
    reader.read_exact(&mut read).unwrap();
    assert_eq!(read, text);
    fs::write(path("file"), "").unwrap();
    symlink("file", path("link")).unwrap();
    metrics(&["--output", "link"]);
    assert!(fs::symlink_metadata(path("link")).unwrap().is_symlink());
    assert_eq!(fs::read(path("file")).unwrap(), text);
}
