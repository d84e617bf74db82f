//! Runs the program with faults: failed system calls, killed programs, and full file systems. Under `strace`, the
//! program runs once for each of its system calls, with a fault at this call.
//!
//! After a failed system call, the network of the drive is complete, or the run has failed and left no network. After a
//! kill, the files are the complete old or new network with its report, or a part of one of the two networks without a
//! report. A mixture or a guessed network never appears, and the next run is not affected.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

use super::machine::{FakeMachine, Run, drive};

const FRAGMENT: &str = "etc/cmdline.d/50-glowplug-network-kargs.conf";
const PLAN: &str = "run/glowplug/plan.json";

/// The fragment that an earlier run wrote.
const OLD: &str = "ip=10.9.9.9::10.9.9.1:24::[52:54:00:99:99:99]:none\n";

/// A document with a VLAN on a bond, which needs several files for systemd-networkd.
const BOND: &str = r#"{"links":[
    {"id":"a","type":"phy","ethernet_mac_address":"52:54:00:00:00:01"},
    {"id":"b","type":"phy","ethernet_mac_address":"52:54:00:00:00:02"},
    {"id":"bond0","type":"bond","bond_links":["a","b"],"bond_mode":"active-backup"},
    {"id":"bond0.7","type":"vlan","vlan_link":"bond0","vlan_id":7,"vlan_mac_address":"52:54:00:00:00:07"}],
    "networks":[{"link":"bond0.7","type":"ipv4","ip_address":"10.0.0.5/24","gateway":"10.0.0.1"}]}"#;

/// A system call of a run: its name, and its number among the calls of this name.
#[derive(Clone, Debug)]
struct Call {
    name: String,
    nth: usize,
    text: String,
}

/// A machine and the arguments of the program.
struct Case {
    machine: fn() -> FakeMachine,
    arguments: Vec<String>,
}

/// Network files after a run: the fragment and the files of systemd-networkd, by path.
type Left = BTreeMap<String, String>;

impl Case {
    /// Returns a case with a drive on a disk, NetworkManager, and the files of an earlier run.
    fn disk() -> Self {
        let machine = || {
            let image = fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/images/hypershift.iso")).unwrap();
            with_an_earlier_run(FakeMachine::kubevirt().with_disk("vdb", image))
        };
        Self { machine, arguments: Vec::new() }
    }

    /// Returns a case with a drive in a directory, systemd-networkd, and the files of an earlier run.
    fn files(drive: &FakeMachine) -> Self {
        let arguments = ["--renderer", "systemd-networkd", "--neednet", "--config-drive"].map(str::to_owned);
        let path = drive.path("").to_str().unwrap().to_owned();
        Self { machine: || with_an_earlier_run(FakeMachine::kubevirt()), arguments: [&arguments[..], &[path]].concat() }
    }

    /// Runs the program without a fault.
    fn run_alone(&self, machine: &FakeMachine) -> Run {
        let arguments: Vec<&str> = self.arguments.iter().map(String::as_str).collect();
        machine.network_kargs(&arguments)
    }

    fn run(&self, machine: &FakeMachine, strace: &[&str]) -> Run {
        let mut command = Command::new("strace");
        command.args(["-qq", "-o"]).arg(machine.path("strace")).args(strace);
        command.arg(env!("CARGO_BIN_EXE_glowplug")).args(["network-kargs", "--root"]).arg(machine.path(""));
        Run::of(command.args(&self.arguments))
    }

    /// Returns the system calls of a run without a fault, from the first call that reads from the machine.
    fn calls(&self) -> Vec<Call> {
        let machine = (self.machine)();
        let Run { code, stderr, .. } = self.run(&machine, &[]);
        assert_eq!(code, Some(0), "{stderr}");
        let mut counts = BTreeMap::new();
        let mut calls = Vec::new();
        for text in machine.read("strace").unwrap().lines() {
            let name = text.split('(').next().unwrap_or_default().to_owned();
            let nth = counts.entry(name.clone()).and_modify(|count| *count += 1).or_insert(1);
            calls.push(Call { name, nth: *nth, text: text.to_owned() });
        }
        let start = calls.iter().position(|call| call.text.contains("/proc/cmdline")).unwrap();
        calls.drain(..start);
        // Skip the exit, calls for memory, and `close`. Calls for memory do not fail here; `close` takes effect even if
        // it fails.
        calls.retain(|call| {
            !["exit_group", "close", "brk", "mmap", "munmap", "mremap", "sigaltstack"].contains(&&*call.name)
        });
        calls
    }

    /// Runs the program on a new machine with a fault at this call. If `lasts`, all later calls of the same system call
    /// have the fault, too.
    fn run_with(&self, call: &Call, fault: &str, lasts: bool) -> (FakeMachine, Run) {
        let machine = (self.machine)();
        let Call { name, nth, text } = call;
        let inject = format!("inject={name}:{fault}:when={nth}{}", if lasts { "+" } else { "" });
        let run = self.run(&machine, &["-e", &format!("trace={name}"), "-e", &inject]);
        let log = machine.read("strace").unwrap();
        let hit = log.contains("(INJECTED)") || log.contains("--- SIGTERM");
        assert!(hit, "{inject} of {text} did not happen: {log}");
        (machine, run)
    }

    /// Returns the network files of a run without a fault.
    fn whole(&self) -> Left {
        let machine = (self.machine)();
        assert_eq!(self.run_alone(&machine).code, Some(0));
        left(&machine)
    }
}

fn with_an_earlier_run(machine: FakeMachine) -> FakeMachine {
    let record = r#"{"outcome":"of an earlier run"}"#;
    let machine = machine.with(FRAGMENT, OLD).with(PLAN, record).with("run/glowplug/plan.txt", record);
    let names = ["50-glowplug-0000-a.network", "50-glowplug-0001-b.netdev", "50-glowplug-9999.network"];
    names.into_iter().fold(machine, |machine, name| machine.with(&format!("run/systemd/network/{name}"), "old"))
}

/// Returns the network files of a machine with a suffix that some program reads.
fn left(machine: &FakeMachine) -> Left {
    left_in(&machine.path(""))
}

fn left_in(root: &Path) -> Left {
    let mut left = Left::new();
    for directory in ["etc/cmdline.d", "run/systemd/network"] {
        for entry in fs::read_dir(root.join(directory)).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            let path = format!("{directory}/{name}");
            if [".conf", ".network", ".netdev", ".link"].iter().any(|suffix| name.ends_with(suffix)) {
                left.insert(path.clone(), fs::read_to_string(root.join(path)).unwrap());
            }
        }
    }
    left
}

/// Returns the reason in the report of a refused run.
fn refusal(machine: &FakeMachine) -> String {
    let plan: serde_json::Value = serde_json::from_str(&machine.read(PLAN).unwrap()).unwrap();
    assert_eq!(plan["outcome"], "refused");
    plan["reason"].as_str().unwrap().to_owned()
}

fn outcome(machine: &FakeMachine) -> Option<String> {
    let plan: serde_json::Value = serde_json::from_str(&machine.read(PLAN)?).unwrap();
    Some(plan["outcome"].as_str().unwrap().to_owned())
}

/// Returns the paths of all files of a machine, except the log of `strace`.
fn paths(machine: &FakeMachine) -> Vec<String> {
    let files = machine.files();
    let paths = files.keys().map(|path| path.strip_prefix(machine.path("")).unwrap().to_str().unwrap().to_owned());
    paths.filter(|path| path != "strace").collect()
}

/// Runs the program once for each system call, and kills the program at this call. Checks that a machine with a report
/// has exactly the network of this report, and that a machine without a report has a part of one network. Returns the
/// calls after which no arguments exist.
fn end_at_every_call(case: &Case) -> Vec<Call> {
    let new = case.whole();
    let old = left(&(case.machine)());
    let clean = {
        let machine = (case.machine)();
        case.run_alone(&machine);
        paths(&machine)
    };
    let (mut seen, mut bare) = (BTreeSet::new(), Vec::new());
    for call in case.calls() {
        let (machine, run) = case.run_with(&call, "signal=SIGTERM", false);
        assert_eq!(run.code, None, "{call:?}");
        let (left_now, outcome) = (left(&machine), outcome(&machine));
        let is_part_of = |whole: &Left| left_now.iter().all(|(path, text)| whole.get(path) == Some(text));
        let state = match outcome.as_deref() {
            Some("of an earlier run") if left_now == old => "old",
            Some("configured") if left_now == new => "new",
            None if is_part_of(&old) => "part of the old one, no record",
            None if is_part_of(&new) => "part of the new one, no record",
            _ => panic!("{call:?}: {outcome:?} {left_now:?}"),
        };
        seen.insert(state);
        if !left_now.contains_key(FRAGMENT) {
            bare.push(call.clone());
        }
        // The next run succeeds and leaves the same files as a run without a fault.
        assert_eq!(case.run_alone(&machine).code, Some(0), "{call:?}");
        assert_eq!((left(&machine), paths(&machine)), (new.clone(), clean.clone()), "{call:?}");
    }
    // Each of the four states has occurred.
    assert_eq!(seen.len(), 4, "{seen:?}");
    bare
}

#[test]
fn a_run_that_is_killed_at_any_call_leaves_the_old_or_the_new_arguments() {
    assert_eq!(end_at_every_call(&Case::disk()).len(), 0);
}

#[test]
fn a_run_that_is_killed_at_any_call_leaves_no_mixture_of_two_networks() {
    // After some calls no arguments exist: the old arguments are removed together with the old files.
    assert_ne!(end_at_every_call(&Case::files(&drive(BOND))).len(), 0);
}

/// Runs the program once for each system call, and makes this call fail. Checks that the run writes the complete
/// network, or fails and leaves no network.
fn fail_at_every_call(case: &Case) {
    let new = case.whole();
    for call in case.calls() {
        let (machine, run) = case.run_with(&call, "error=EIO", false);
        let ended = (run.code, left(&machine), outcome(&machine));
        let configured = (Some(0), new.clone(), Some("configured".to_owned()));
        // The report is informational: a run that cannot write the report succeeds.
        let unrecorded = (Some(0), new.clone(), None);
        let refused = (Some(1), Left::new(), Some("refused".to_owned()));
        assert!([configured, unrecorded, refused].contains(&ended), "{call:?}: {ended:?}\n{}", run.stderr);
    }
}

#[test]
fn a_failing_system_call_leaves_the_complete_network_or_no_network() {
    fail_at_every_call(&Case::disk());
}

#[test]
fn a_failing_system_call_leaves_all_files_or_no_file() {
    fail_at_every_call(&Case::files(&drive(BOND)));
}

#[test]
fn a_file_that_cannot_be_removed_does_not_prevent_the_removal_of_the_other_files() {
    let unfinished = "etc/cmdline.d/.glowplug-a";
    let machine = (Case::disk().machine)().with(&format!("{unfinished}/file"), "");
    let machine = machine.with("run/systemd/network/.glowplug-b/file", "");
    let run = machine.network_kargs(&[]);
    assert_eq!((run.code, left(&machine)), (Some(1), Left::new()), "{}", run.stderr);
    assert_eq!(refusal(&machine), format!("writing /{unfinished}: Is a directory (os error 21)"));
}

/// Runs the program with a drive that fails from its n-th read on, for every n. The first read is the search for a
/// label.
fn fail_from_each_read_on(fault: &str) -> Vec<(Option<i32>, Left, String, String)> {
    let mut case = Case::disk();
    case.arguments = ["--wait", "0", "--default-value", "ip=dhcp"].map(str::to_owned).to_vec();
    let reads = case.calls().into_iter().filter(|call| call.name == "pread64");
    let ended = reads.map(|read| {
        let (machine, run) = case.run_with(&read, fault, true);
        let plan: serde_json::Value = serde_json::from_str(&machine.read(PLAN).unwrap()).unwrap();
        let text = |name: &str| plan[name].as_str().unwrap().to_owned();
        (run.code, left(&machine), text("outcome"), text("reason"))
    });
    ended.collect()
}

#[test]
fn a_drive_that_fails_from_any_read_on_is_refused() {
    let ended = fail_from_each_read_on("error=EIO");
    assert_eq!(ended.len(), 8);
    let reason = "reading /dev/vdb: Input/output error (os error 5)";
    assert_eq!(ended[0], (Some(1), Left::new(), "refused".to_owned(), reason.to_owned()));
    for (code, left, outcome, reason) in &ended[1..] {
        assert_eq!((*code, left, outcome.as_str()), (Some(1), &Left::new(), "refused"));
        assert!(reason.starts_with("reading config drive /dev/vdb: reading "), "{reason}");
        assert!(reason.ends_with(": Input/output error (os error 5)"), "{reason}");
    }
}

#[test]
fn a_drive_that_disappears_during_the_read_is_refused() {
    let no_drive = "no config drive appeared within 0 s".to_owned();
    let default = Left::from([(FRAGMENT.to_owned(), "ip=dhcp\n".to_owned())]);
    for fault in ["error=ENXIO", "error=ENODEV", "retval=0"] {
        let ended = fail_from_each_read_on(fault);
        // A drive that fails before its label is read counts as an absent drive.
        assert_eq!(ended[0], (Some(0), default.clone(), "default".to_owned(), no_drive.clone()), "{fault}");
        for (code, left, outcome, reason) in &ended[1..] {
            assert_eq!((*code, left, outcome.as_str()), (Some(1), &Left::new(), "refused"), "{fault}: {reason}");
        }
    }
}

/// Runs the program in its own mount namespace, after the commands `mounts`. Returns the exit status, the messages and
/// the network files. The paths of these files do not contain the root of the namespace.
fn run_where(machine: &FakeMachine, mounts: &str, arguments: &[&str]) -> (Option<i32>, String, Left) {
    let script = format!("set -e; cd \"$1\"; {mounts}; shift; set +e; \"$@\"; code=$?; cp -a . /tmp/left; exit $code");
    // The mounts end with the namespace, so the script copies the files before the namespace ends.
    let copy = tempfile::tempdir().unwrap();
    let script = script.replace("/tmp/left", copy.path().to_str().unwrap());
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", &script, "sh"]).arg(machine.path(""));
    command.arg(env!("CARGO_BIN_EXE_glowplug")).args(["network-kargs", "--root"]).arg(machine.path(""));
    let Run { code, stderr, .. } = Run::of(command.args(arguments));
    (code, stderr, left_in(copy.path()))
}

/// Full file systems: what is missing, the commands that mount the file system, and the error of a write. A new
/// directory needs an inode, too.
const FULL: [(&str, &str, &str); 2] = [
    (
        "no page",
        "mount -t tmpfs -o size=8k tmpfs etc/cmdline.d; echo old >etc/cmdline.d/50-glowplug-network-kargs.conf; \
         echo other >etc/cmdline.d/other",
        "No space left on device (os error 28)",
    ),
    (
        "no inode",
        "mount -t tmpfs -o nr_inodes=2 tmpfs etc/cmdline.d; echo old >etc/cmdline.d/50-glowplug-network-kargs.conf",
        "no storage space",
    ),
];

#[test]
fn a_run_without_room_for_the_arguments_fails_and_leaves_no_arguments() {
    let case = Case::disk();
    for (what, mounts, error) in FULL {
        let machine = (case.machine)();
        let (code, stderr, left) = run_where(&machine, mounts, &[]);
        assert_eq!((code, left), (Some(1), Left::new()), "{what}: {stderr}");
        assert_eq!(refusal(&machine), format!("writing /{FRAGMENT}: {error}"), "{what}");
    }
}

#[test]
fn a_run_without_room_for_all_files_fails_and_leaves_no_file() {
    let drive = drive(BOND);
    let case = Case::files(&drive);
    let arguments: Vec<&str> = case.arguments.iter().map(String::as_str).collect();
    let machine = (case.machine)();
    let mounts =
        "mount -t tmpfs -o size=12k tmpfs run/systemd/network; echo old >run/systemd/network/50-glowplug-0.link";
    let (code, stderr, left) = run_where(&machine, mounts, &arguments);
    assert_eq!((code, left), (Some(1), Left::new()), "{stderr}");
    let path = "run/systemd/network/50-glowplug-0002-bond0.network";
    assert_eq!(refusal(&machine), format!("writing /{path}: No space left on device (os error 28)"));
}

#[test]
fn without_room_for_the_report_the_network_is_still_written() {
    let case = Case::disk();
    let machine = (case.machine)();
    let (code, stderr, left) = run_where(&machine, "mount -t tmpfs -o nr_inodes=1 tmpfs run/glowplug", &[]);
    assert_eq!((code, left), (Some(0), case.whole()));
    let expected = "<4>cannot record the plan path=/run/glowplug/plan.json error=\"no storage space\"";
    assert_eq!(stderr.lines().last(), Some(expected));
}

#[test]
fn on_a_read_only_file_system_the_run_fails_and_the_old_arguments_stay() {
    let case = Case::disk();
    let machine = (case.machine)();
    let mounts = "mount --bind etc/cmdline.d etc/cmdline.d; mount -o remount,bind,ro etc/cmdline.d";
    let (code, stderr, left) = run_where(&machine, mounts, &[]);
    let old = left_in(&machine.path(""));
    assert_eq!((code, left.get(FRAGMENT)), (Some(1), old.get(FRAGMENT)));
    let error = format!("writing /{FRAGMENT}: read-only filesystem or storage medium");
    assert_eq!(refusal(&machine), error);
    let last: Vec<&str> = stderr.lines().rev().take(2).collect();
    let removing = format!(
        "<4>cannot remove the written files error=\"writing /{FRAGMENT}: Read-only file system (os error 30)\""
    );
    assert_eq!(last, [format!("<3>failed error=\"{error}\""), removing]);
}

/// Compiles `strange.c` as a library for the program, and returns the variable that preloads the library.
fn strange(machine: &FakeMachine) -> String {
    let library = machine.path("strange.so");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/guest/strange.c");
    let built =
        Command::new("cc").args(["-shared", "-fPIC", "-Wall", "-Werror", "-o"]).arg(&library).arg(source).status();
    assert!(built.unwrap().success());
    format!("LD_PRELOAD={}", library.display())
}

#[test]
fn short_and_interrupted_reads_and_writes_do_not_change_the_result() {
    let case = Case::disk();
    let machine = (case.machine)();
    let run = case.run(&machine, &["-E", &strange(&machine), "-e", "trace=pread64"]);
    assert_eq!((run.code, left(&machine), outcome(&machine)), (Some(0), case.whole(), Some("configured".to_owned())));
    // The program reads more than seven windows of 16 KiB, all of them in pieces of 7 bytes.
    let log = machine.read("strace").unwrap();
    assert!(log.lines().filter(|line| line.ends_with(" = 7")).count() > 7 * 16 * 1024 / 7, "{}", log.lines().count());
}

#[test]
fn the_program_never_reads_the_time_of_day() {
    let case = Case::disk();
    let machine = (case.machine)();
    let strange = strange(&machine);
    let time_of_day = Run::of(Command::new("env").args([strange.as_str(), "date"]));
    assert_eq!(time_of_day.code, None);
    let run = case.run(&machine, &["-E", &strange]);
    assert_eq!((run.code, left(&machine)), (Some(0), case.whole()));
    // The wait for a drive does not read the time of day either.
    let machine = FakeMachine::kubevirt();
    let mut command = Command::new("env");
    command.args([strange.as_str(), env!("CARGO_BIN_EXE_glowplug"), "network-kargs", "--wait", "1", "--root"]);
    assert_eq!(Run::of(command.arg(machine.path(""))).code, Some(0));
    assert_eq!(outcome(&machine).as_deref(), Some("default"));
}
