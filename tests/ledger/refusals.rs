//! Checks when a ledger is created, opened or refused, and the reported reasons.

use std::error::Error;
use std::fs;
use std::path::Path;
use std::process::Command;

use glowplug::host::ledger::SqliteLedger;
use glowplug::host::pool::Pool;
use glowplug::host::registry::Registry;
use rusqlite::Connection;

use super::{claim, database, machine, pool, registry, shown, time};

fn refusal(path: &std::path::Path) -> String {
    SqliteLedger::open(path).unwrap_err().to_string()
}

#[test]
fn a_ledger_is_created_only_on_request() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ledger");
    for open in [SqliteLedger::open, SqliteLedger::open_read_only] {
        let error = open(&path).unwrap_err();
        assert_eq!(error.to_string(), format!("{}: no such ledger", path.display()));
    }
    assert!(!path.exists());
    SqliteLedger::create(&path).unwrap();
    SqliteLedger::open(&path).unwrap();
}

#[test]
fn a_ledger_is_created_only_once_but_an_interrupted_creation_can_be_repeated() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ledger");
    fs::write(&path, "").unwrap();
    assert_eq!(refusal(&path), format!("{}: not a ledger", path.display()));
    SqliteLedger::create(&path).unwrap();
    // A ledger without a pool comes from an interrupted creation, so the program creates the ledger again.
    let workers = pool("workers", "eth0", "addresses: [10.0.0.0/24]");
    Registry::open(SqliteLedger::create(&path).unwrap()).unwrap().resize([workers], &[], time(1)).unwrap();
    let error = SqliteLedger::create(&path).unwrap_err().to_string();
    assert_eq!(error, format!("{}: exists, expected no file, since a ledger is created once", path.display()));
}

#[test]
fn the_log_of_a_lost_ledger_is_not_used_for_a_new_ledger() {
    let directory = tempfile::tempdir().unwrap();
    let (path, log) = (directory.path().join("ledger"), directory.path().join("ledger-wal"));
    fs::write(&log, "").unwrap();
    let error = SqliteLedger::create(&path).unwrap_err().to_string();
    assert_eq!(error, format!("{}: exists, expected no file, since a ledger is created once", log.display()));
}

#[test]
fn a_pipe_or_a_directory_is_not_a_ledger() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("pipe");
    nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
    assert_eq!(refusal(&path), format!("{}: not a ledger", path.display()));
    let path = directory.path();
    for open in [SqliteLedger::open, SqliteLedger::open_read_only, SqliteLedger::create] {
        assert_eq!(open(path).unwrap_err().to_string(), format!("{}: a directory, expected a file", path.display()));
    }
}

#[test]
fn a_ledger_that_is_cut_or_has_another_schema_is_damaged() {
    let directory = tempfile::tempdir().unwrap();
    let [path, cut] = ["ledger", "cut"].map(|name| directory.path().join(name));
    registry(&path, [pool("workers", "eth0", "addresses: [10.0.0.0/24]")]);
    let whole = fs::read(&path).unwrap();
    fs::write(&cut, &whole[..20_000]).unwrap();
    fs::write(directory.path().join("cut-wal"), "").unwrap();
    assert_eq!(refusal(&cut), format!("{}: damaged (database disk image is malformed)", cut.display()));
    database(&path).execute_batch("CREATE TABLE further (name TEXT)").unwrap();
    assert_eq!(refusal(&path), format!("{}: damaged (not the schema of a ledger)", path.display()));
}

/// Creates a ledger with this pool, whose only claim is in the log.
fn claim_in_log(path: &Path, workers: Pool) {
    let mut writer = registry(path, [workers]);
    // This reader begins before the claim, so the close of the writer leaves the claim in the log.
    let reader = database(path);
    reader.execute_batch("BEGIN; SELECT count(*) FROM leases").unwrap();
    writer.claim(&claim("a", 0, &["clusters/workers"]), time(1)).unwrap();
    drop(writer);
    drop(reader);
}

#[test]
fn a_ledger_that_is_cut_to_less_than_a_database_is_damaged_and_keeps_its_log() {
    let directory = tempfile::tempdir().unwrap();
    let [path, log] = ["ledger", "ledger-wal"].map(|name| directory.path().join(name));
    let workers = || pool("workers", "eth0", "addresses: [10.0.0.0/24]");
    claim_in_log(&path, workers());
    let [whole, claimed] = [&path, &log].map(|file| fs::read(file).unwrap());
    assert_ne!(claimed.len(), 0);
    // After a usual close, the log is empty.
    for content in [&claimed[..], &[]] {
        for bytes in [0, 1, 2, 511] {
            fs::write(&path, &whole[..bytes]).unwrap();
            fs::write(&log, content).unwrap();
            for open in [SqliteLedger::create, SqliteLedger::open, SqliteLedger::open_read_only] {
                let error = open(&path).unwrap_err().to_string();
                assert_eq!(error, format!("{}: damaged (cut to {bytes} bytes)", path.display()));
                assert_eq!((fs::read(&path).unwrap().len(), fs::read(&log).unwrap().as_slice()), (bytes, content));
            }
        }
    }
    fs::write(&path, whole).unwrap();
    fs::write(&log, claimed).unwrap();
    assert_eq!(registry(&path, [workers()]).state().unwrap().leases().count(), 1);
}

#[test]
fn damage_that_sqlite_finds_during_a_read_is_reported_as_damage_of_the_ledger() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ledger");
    let mut open = registry(&path, [pool("workers", "eth0", "addresses: [10.0.0.0/16]")]);
    let claims: Vec<_> = (0..200).map(|at| claim(&format!("worker-{at}"), at, &["clusters/workers"])).collect();
    open.claim_all(&claims, time(1)).unwrap();
    drop(open);
    let page: i64 = {
        let rows = database(&path);
        rows.query_row("SELECT rootpage FROM sqlite_schema WHERE name = 'leases'", [], |row| row.get(0)).unwrap()
    };
    let mut bytes = fs::read(&path).unwrap();
    let start = usize::try_from(page - 1).unwrap() * 4_096;
    bytes[start..start + 4_096].fill(0xff);
    fs::write(&path, bytes).unwrap();
    let error = Registry::open(SqliteLedger::open(&path).unwrap()).unwrap_err();
    assert_eq!(error.to_string(), "the ledger is damaged: database disk image is malformed");
}

#[test]
fn a_ledger_with_a_second_hard_link_is_refused_until_the_link_is_gone() {
    let directory = tempfile::tempdir().unwrap();
    let [path, link] = ["ledger", "other"].map(|name| directory.path().join(name));
    let workers = || pool("workers", "eth0", "addresses: [10.0.0.0/24]");
    registry(&path, [workers()]).claim(&claim("a", 0, &["clusters/workers"]), time(1)).unwrap();
    fs::hard_link(&path, &link).unwrap();
    let why = "the file has 2 hard links, expected one path: each path would have a log of its own";
    for path in [&path, &link] {
        for open in [SqliteLedger::open, SqliteLedger::open_read_only, SqliteLedger::create] {
            assert_eq!(open(path).unwrap_err().to_string(), format!("{}: {why}", path.display()));
        }
    }
    fs::remove_file(&link).unwrap();
    assert_eq!(registry(&path, [workers()]).state().unwrap().leases().count(), 1);
}

#[test]
fn a_symbolic_link_to_a_ledger_is_the_same_ledger() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ledger");
    let (file, folder) = (directory.path().join("file"), directory.path().join("folder"));
    std::os::unix::fs::symlink("ledger", &file).unwrap();
    std::os::unix::fs::symlink(".", &folder).unwrap();
    let workers = || pool("workers", "eth0", "addresses: [10.0.0.0/24]");
    let mut registries = [path.clone(), file, folder.join("ledger")].map(|path| registry(&path, [workers()]));
    let mut given = Vec::new();
    for at in 0..30 {
        let claim = claim(&format!("w{at}"), 0, &["clusters/workers"]);
        given.extend(shown(&registries[at % 3].claim(&claim, time(1)).unwrap()));
    }
    let expected: Vec<String> = (0..30).map(|at| format!("w{at}: 10.0.0.{}/24", at + 1)).collect();
    assert_eq!(given, expected);
}

#[test]
fn a_ledger_that_is_mounted_at_a_second_path_is_refused_there() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ledger");
    registry(&path, [pool("workers", "eth0", "addresses: [10.0.0.0/24]")]);
    // The program refuses only the mount of the file. If the folder is mounted, both paths have the same log.
    let script = "set -e; cd \"$1\"; mkdir file folder; : >file/ledger; mount --bind ledger file/ledger; \
                  mount --bind . folder; shift; \"$@\" folder/ledger; \"$@\" file/ledger";
    let mut command = Command::new("unshare");
    command.args(["--map-root-user", "--mount", "sh", "-c", script, "sh"]).arg(directory.path());
    let output = command.arg(env!("CARGO_BIN_EXE_glowplugctl")).args(["verify", "--ledger"]).output().unwrap();
    let why = "the file is mounted here from another path, expected one path: each path would have a log of its own";
    assert_eq!(String::from_utf8(output.stderr).unwrap(), format!("error: file/ledger: {why}\n"));
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn the_database_of_another_program_is_refused_and_unchanged() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ledger");
    Connection::open(&path).unwrap().execute_batch("CREATE TABLE bookmarks (address TEXT)").unwrap();
    let before = fs::read(&path).unwrap();
    for open in [SqliteLedger::open, SqliteLedger::create] {
        let error = open(&path).unwrap_err();
        assert_eq!(error.to_string(), format!("{}: not a ledger", path.display()));
    }
    assert_eq!(fs::read(&path).unwrap(), before);
}

#[test]
fn a_file_that_is_no_database_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ledger");
    fs::write(&path, "pools:\n".repeat(1000)).unwrap();
    let error = SqliteLedger::create(&path).unwrap_err();
    assert_eq!(error.to_string(), format!("{}: not a ledger", path.display()));
    assert_eq!(fs::read(&path).unwrap(), "pools:\n".repeat(1000).as_bytes());
}

#[test]
fn the_error_about_a_ledger_of_another_version_has_both_versions() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ledger");
    SqliteLedger::create(&path).unwrap();
    for version in [1, 3] {
        database(&path).pragma_update(None, "user_version", version).unwrap();
        let expected = format!(
            "{}: schema version {version}, expected 2: use the glowplugctl that created the ledger, or a newer one",
            path.display()
        );
        assert_eq!(refusal(&path), expected);
    }
}

#[test]
fn a_file_without_the_version_or_with_the_mark_of_another_program_is_not_a_ledger() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ledger");
    for (pragma, value) in [("user_version", 0), ("user_version", -1), ("application_id", 0), ("application_id", 7)] {
        for name in ["ledger", "ledger-wal"] {
            fs::remove_file(directory.path().join(name)).ok();
        }
        SqliteLedger::create(&path).unwrap();
        database(&path).pragma_update(None, pragma, value).unwrap();
        for open in [SqliteLedger::open, SqliteLedger::create] {
            let error = open(&path).unwrap_err();
            assert_eq!(error.to_string(), format!("{}: not a ledger", path.display()), "{pragma} = {value}");
        }
    }
}

#[test]
fn a_read_only_ledger_has_all_data_and_writes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ledger");
    let workers = || pool("workers", "eth0", "addresses: [10.0.0.0/24]");
    let mut writer = registry(&path, [workers()]);
    writer.claim(&claim("a", 0, &["clusters/workers"]), time(1)).unwrap();
    let ledger = SqliteLedger::open_read_only(&path).unwrap();
    let mut reader = Registry::open(ledger).unwrap();
    writer.claim(&claim("b", 0, &["clusters/workers"]), time(2)).unwrap();
    assert_eq!(reader.state().unwrap().leases().count(), 2);
    let error = reader.claim(&claim("c", 0, &["clusters/workers"]), time(3)).unwrap_err();
    assert_eq!(error.source().unwrap().to_string(), "attempt to write a readonly database");
    assert_eq!(reader.state().unwrap().leases().count(), 2);
}

#[test]
fn a_ledger_without_its_log_is_refused_and_a_backup_needs_no_log() {
    let directory = tempfile::tempdir().unwrap();
    let [path, copy, backup] = ["ledger", "copy ?#%", "backup"].map(|name| directory.path().join(name));
    let workers = || pool("workers", "eth0", "addresses: [10.0.0.0/24]");
    claim_in_log(&path, workers());
    SqliteLedger::open_read_only(&path).unwrap().backup(&backup).unwrap();
    fs::copy(&path, &copy).unwrap();
    let problem = "copied, moved or left without its log, expected";
    let expected = format!("{0}: {problem} {0}-wal, which may have further leases", copy.display());
    for open in [SqliteLedger::open, SqliteLedger::open_read_only, SqliteLedger::create] {
        assert_eq!(open(&copy).unwrap_err().to_string(), expected);
    }
    let [log, log_of_copy] = ["ledger-wal", "copy ?#%-wal"].map(|name| directory.path().join(name));
    assert_ne!(fs::metadata(&log).unwrap().len(), 0);
    fs::copy(&log, &log_of_copy).unwrap();
    for whole in [&copy, &backup, &path] {
        assert_eq!(registry(whole, [workers()]).state().unwrap().leases().count(), 1, "{}", whole.display());
    }
    // The last close has moved the content of the log into the file.
    assert_eq!(fs::metadata(&log).unwrap().len(), 0);
}

#[test]
fn a_refused_creation_of_a_ledger_that_exists_leaves_its_log() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ledger");
    registry(&path, [pool("workers", "eth0", "addresses: [10.0.0.0/24]")]);
    SqliteLedger::create(&path).unwrap_err();
    SqliteLedger::open(&path).unwrap();
}

#[test]
fn a_row_with_an_invalid_interface_name_is_damage() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ledger");
    let workers = || pool("workers", "eth0", "addresses: [10.0.0.0/24]");
    registry(&path, [workers()]).claim(&claim("a", 0, &["clusters/workers"]), time(1)).unwrap();
    database(&path).execute("UPDATE leases SET interface = 'eth0 rd.break'", []).unwrap();
    let ledger = SqliteLedger::open(&path).unwrap();
    let error = Registry::open(ledger).unwrap_err();
    assert_eq!(error.to_string(), "the ledger is damaged: Invalid column type Text at index: 6, name: interface");
}

#[test]
fn a_time_after_the_end_of_the_calendar_is_damage() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ledger");
    let workers = || pool("workers", "eth0", "addresses: [10.0.0.0/24]");
    registry(&path, [workers()]).claim(&claim("a", 0, &["clusters/workers"]), time(1)).unwrap();
    database(&path).execute("UPDATE leases SET reuse_after = 9223372036854775807", []).unwrap();
    let error = Registry::open(SqliteLedger::open(&path).unwrap()).unwrap_err();
    assert_eq!(error.to_string(), "the ledger is damaged: Integer 9223372036854775807 out of range at index 11");
}

#[test]
fn the_database_itself_rejects_a_second_lease_of_an_address() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ledger");
    let workers = || pool("workers", "eth0", "addresses: [10.0.0.0/24]");
    let mut registry = registry(&path, [workers()]);
    registry.claim(&claim("a", 0, &["clusters/workers"]), time(1)).unwrap();
    let rows = database(&path);
    let error = rows.execute(
        "INSERT INTO leases SELECT network, address, 16, 'other', 'n', 'b', 'u', 'eth1', 2, NULL, NULL, 0 FROM leases",
        [],
    );
    assert_eq!(error.unwrap_err().to_string(), "UNIQUE constraint failed: leases.network, leases.address");
    // The registry also reads a change that a person made in the database.
    rows.execute("DELETE FROM leases", []).unwrap();
    assert_eq!(shown(&registry.claim(&claim("b", 0, &["clusters/workers"]), time(2)).unwrap()), ["b: 10.0.0.1/24"]);
    assert_eq!(registry.release(&machine("a"), time(3)).unwrap().held, []);
}

#[test]
fn reuse_delays_waiting_machines_and_missing_machines_survive_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ledger");
    let open = || {
        let rest = "addresses: [10.0.0.8], machineNetwork: [{cidr: 10.0.0.0/24}], addressReuseGracePeriodSeconds: 60";
        registry(&path, [pool("workers", "eth0", rest)])
    };
    let (a, b) = (claim("a", 0, &["clusters/workers"]), claim("b", 0, &["clusters/workers"]));
    open().claim(&a, time(1_000)).unwrap();
    let missing = [a.machine.clone()];
    assert_eq!(open().note_looked_for(&[], &missing, time(2_000)).unwrap(), [None]);
    assert_eq!(open().note_looked_for(&[], &missing, time(3_000)).unwrap(), [Some(time(2_000))]);
    assert_eq!(shown(&open().release(&a.machine, time(4_000)).unwrap().held), ["a: 10.0.0.8/24"]);
    assert_eq!(open().state().unwrap().missing().count(), 0);
    open().claim(&b, time(5_000)).unwrap_err();
    assert_eq!(open().serve(time(63_999)).unwrap(), []);
    let mut last = open();
    assert_eq!(last.state().unwrap().waiters(), [&b]);
    assert_eq!(shown(&last.serve(time(64_000)).unwrap()), ["b: 10.0.0.8/24"]);
    assert_eq!(last.state().unwrap().waiters(), [] as [&glowplug::host::claim::Claim; 0]);
}

#[test]
fn every_reader_reports_a_row_that_does_not_match_its_checksum_as_damage() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ledger");
    let mut open = registry(&path, [pool("workers", "eth0", "addresses: [10.0.0.0/24]")]);
    open.claim(&claim("a", 0, &["clusters/workers"]), time(1)).unwrap();
    let rows = database(&path);
    rows.execute("UPDATE leases SET name = 'b'", []).unwrap();
    let damaged = "the ledger is damaged: a row of table leases does not match its checksum";
    assert_eq!(open.state().unwrap_err().to_string(), damaged);
    assert_eq!(Registry::open(SqliteLedger::open(&path).unwrap()).unwrap_err().to_string(), damaged);
    let problem = "a row of table leases does not match its checksum";
    assert_eq!(SqliteLedger::open(&path).unwrap().verify().unwrap(), [problem]);
}

#[test]
fn a_lost_row_is_detected() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ledger");
    registry(&path, [pool("workers", "eth0", "addresses: [10.0.0.0/24]")])
        .claim(&claim("a", 0, &["clusters/workers"]), time(1))
        .unwrap();
    let rows = database(&path);
    rows.execute_batch("DELETE FROM leases").unwrap();
    let error = Registry::open(SqliteLedger::open(&path).unwrap()).unwrap_err().to_string();
    assert_eq!(error, "the ledger is damaged: table leases does not have the rows that were written");
}

#[test]
fn a_backup_of_a_ledger_in_use_is_complete_and_replaces_no_file() {
    let directory = tempfile::tempdir().unwrap();
    let (path, copy) = (directory.path().join("ledger"), directory.path().join("copy"));
    let mut writer = registry(&path, [pool("workers", "eth0", "addresses: [10.0.0.0/24]")]);
    writer.claim(&claim("a", 0, &["clusters/workers"]), time(1)).unwrap();
    SqliteLedger::open_read_only(&path).unwrap().backup(&copy).unwrap();
    writer.claim(&claim("b", 0, &["clusters/workers"]), time(2)).unwrap();
    let mut restored = Registry::open(SqliteLedger::open(&copy).unwrap()).unwrap();
    assert_eq!(restored.state().unwrap().leases().count(), 1);
    let again = SqliteLedger::open(&path).unwrap().backup(&copy).unwrap_err();
    assert_eq!(again.to_string(), format!("{}: exists, expected a new file", copy.display()));
}

#[test]
fn damage_of_the_ledger_or_its_copy_is_a_failure_and_leaves_no_copy() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ledger");
    registry(&path, [pool("workers", "eth0", "addresses: [10.0.0.0/24]")])
        .claim(&claim("a", 0, &["clusters/workers"]), time(1))
        .unwrap();
    database(&path).execute("UPDATE leases SET name = 'b'", []).unwrap();
    let run = |words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_glowplugctl"));
        let output = command.current_dir(directory.path()).args(words).output().unwrap();
        (String::from_utf8(output.stderr).unwrap(), output.status.code())
    };
    let problem = "a row of table leases does not match its checksum\n";
    assert_eq!(run(&["verify", "--ledger", "ledger"]), (format!("error: {problem}"), Some(1)));
    let failed = (format!("error: the ledger is damaged: {problem}"), Some(1));
    assert_eq!([(); 2].map(|()| run(&["backup", "--ledger", "ledger", "copy"])), [failed.clone(), failed]);
    assert!(!directory.path().join("copy").exists());
}

#[test]
fn the_history_has_every_holder_of_an_address_with_the_times_of_its_lease() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ledger");
    let mut registry = registry(&path, [pool("workers", "eth0", "addresses: [10.0.0.0/24]")]);
    for (name, at) in [("a", 10), ("b", 20)] {
        registry.claim(&claim(name, 0, &["clusters/workers"]), time(at)).unwrap();
        registry.release(&machine(name), time(at + 5)).unwrap();
    }
    registry.claim(&claim("c", 0, &["clusters/workers"]), time(30)).unwrap();
    let held = registry.into_ledger().history(|tenure| tenure.address.to_string() == "10.0.0.1").unwrap();
    let held: Vec<_> = held
        .iter()
        .map(|tenure| (tenure.lease.claimant.machine.name.as_str(), tenure.lease.since, tenure.lease.released))
        .collect();
    assert_eq!(held, [("a", time(10), Some(time(15))), ("b", time(20), Some(time(25))), ("c", time(30), None)]);
}
