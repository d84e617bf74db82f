//! What is refused when a ledger is opened.

use std::error::Error;
use std::fs;

use glowplug::host::ledger::{OpenError, SqliteLedger};
use rusqlite::Connection;

use super::{NETWORK, claim, machine, pool, registry, shown};

fn refusal(path: &std::path::Path, networks: &[&str]) -> String {
    SqliteLedger::open(path, networks).unwrap_err().to_string()
}

#[test]
fn a_ledger_is_made_only_when_that_is_asked_for() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ledger");
    for open in [SqliteLedger::open, SqliteLedger::open_read_only] {
        let error = open(&path, &[NETWORK]).unwrap_err();
        assert_eq!(error.to_string(), format!("{}: no such ledger", path.display()));
    }
    assert!(!path.exists());
    SqliteLedger::create(&path, &[NETWORK]).unwrap();
    SqliteLedger::open(&path, &[NETWORK]).unwrap();
}

#[test]
fn a_ledger_for_other_networks_is_refused_by_both_names() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ledger");
    SqliteLedger::create(&path, &["a/one", "a/two"]).unwrap();
    assert_eq!(
        refusal(&path, &["b/three", "a/one"]),
        format!("{}: a ledger for a/one, a/two, not for b/three, expected pools of its networks", path.display())
    );
    let mut ledger = SqliteLedger::open(&path, &["a/two"]).unwrap();
    ledger.add_network("b/three").unwrap();
    assert_eq!(ledger.networks().collect::<Vec<_>>(), ["a/one", "a/two", "b/three"]);
    SqliteLedger::open(&path, &["b/three", "a/one"]).unwrap();
}

#[test]
fn the_database_of_another_program_is_refused_and_left_as_it_is() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ledger");
    Connection::open(&path).unwrap().execute_batch("CREATE TABLE bookmarks (address TEXT)").unwrap();
    let before = fs::read(&path).unwrap();
    for open in [SqliteLedger::open, SqliteLedger::create] {
        let error = open(&path, &[NETWORK]).unwrap_err();
        assert_eq!(error.to_string(), format!("{}: not a ledger", path.display()));
    }
    assert_eq!(fs::read(&path).unwrap(), before);
}

#[test]
fn a_file_that_is_no_database_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ledger");
    fs::write(&path, "pools:\n".repeat(1000)).unwrap();
    let error = SqliteLedger::create(&path, &[NETWORK]).unwrap_err();
    assert_eq!(error.to_string(), format!("{}: not a ledger", path.display()));
    assert_eq!(fs::read(&path).unwrap(), "pools:\n".repeat(1000).as_bytes());
}

#[test]
fn a_ledger_of_a_later_version_is_refused_by_that_version() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ledger");
    SqliteLedger::create(&path, &[NETWORK]).unwrap();
    Connection::open(&path).unwrap().pragma_update(None, "user_version", 2).unwrap();
    let error = SqliteLedger::open(&path, &[NETWORK]).unwrap_err();
    assert!(matches!(error, OpenError::NewerSchema { found: 2, known: 1, .. }));
    assert_eq!(
        error.to_string(),
        format!("{}: schema version 2, expected at most 1: made by a later version", path.display())
    );
}

#[test]
fn a_ledger_without_its_version_or_with_the_mark_of_another_program_is_none() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ledger");
    for (pragma, value) in [("user_version", 0), ("user_version", -1), ("application_id", 0), ("application_id", 7)] {
        fs::remove_file(&path).ok();
        SqliteLedger::create(&path, &[NETWORK]).unwrap();
        Connection::open(&path).unwrap().pragma_update(None, pragma, value).unwrap();
        for open in [SqliteLedger::open, SqliteLedger::create] {
            let error = open(&path, &[NETWORK]).unwrap_err();
            assert_eq!(error.to_string(), format!("{}: not a ledger", path.display()), "{pragma} = {value}");
        }
    }
}

#[test]
fn what_is_opened_to_be_read_knows_all_and_records_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ledger");
    let workers = || pool("workers", "eth0", "addresses: [10.0.0.0/24]");
    let mut writer = registry(&path, [workers()]);
    writer.claim(&claim("a", 0, &["clusters/workers"]), 1).unwrap();
    let ledger = SqliteLedger::open_read_only(&path, &[NETWORK]).unwrap();
    let mut reader = glowplug::host::registry::Registry::open(ledger, [workers()]).unwrap();
    writer.claim(&claim("b", 0, &["clusters/workers"]), 2).unwrap();
    assert_eq!(reader.allocator().unwrap().leases().count(), 2);
    let error = reader.claim(&claim("c", 0, &["clusters/workers"]), 3).unwrap_err();
    assert_eq!(error.source().unwrap().to_string(), "attempt to write a readonly database");
    assert_eq!(reader.allocator().unwrap().leases().count(), 2);
}

#[test]
fn when_nobody_has_it_open_the_file_is_the_whole_ledger_and_its_log_is_there_and_empty() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ledger");
    let workers = || pool("workers", "eth0", "addresses: [10.0.0.0/24]");
    registry(&path, [workers()]).claim(&claim("a", 0, &["clusters/workers"]), 1).unwrap();
    assert_eq!(fs::metadata(directory.path().join("ledger-wal")).unwrap().len(), 0);
    assert!(directory.path().join("ledger-shm").exists());
    let copy = directory.path().join("copy");
    fs::copy(&path, &copy).unwrap();
    assert_eq!(registry(&copy, [workers()]).allocator().unwrap().leases().count(), 1);
}

#[test]
fn a_row_that_nobody_could_have_written_is_damage() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ledger");
    let workers = || pool("workers", "eth0", "addresses: [10.0.0.0/24]");
    registry(&path, [workers()]).claim(&claim("a", 0, &["clusters/workers"]), 1).unwrap();
    Connection::open(&path).unwrap().execute("UPDATE leases SET interface = 'eth0 rd.break'", []).unwrap();
    let ledger = SqliteLedger::open(&path, &[NETWORK]).unwrap();
    let error = glowplug::host::registry::Registry::open(ledger, [workers()]).unwrap_err();
    assert_eq!(error.to_string(), "the ledger is damaged: Invalid column type Text at index: 7, name: interface");
}

#[test]
fn the_store_refuses_an_address_that_is_held_whatever_its_caller_believes() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ledger");
    let workers = || pool("workers", "eth0", "addresses: [10.0.0.0/24]");
    let mut registry = registry(&path, [workers()]);
    registry.claim(&claim("a", 0, &["clusters/workers"]), 1).unwrap();
    let rows = Connection::open(&path).unwrap();
    let error = rows.execute(
        "INSERT INTO leases SELECT network, address, 16, 'other', 'n', 'b', 'u', 'eth1', 2, NULL, NULL FROM leases",
        [],
    );
    assert_eq!(error.unwrap_err().to_string(), "UNIQUE constraint failed: leases.network, leases.address");
    // What somebody did by hand is learnt like everything else.
    rows.execute("DELETE FROM leases", []).unwrap();
    assert_eq!(shown(&registry.claim(&claim("b", 0, &["clusters/workers"]), 2).unwrap()), ["b: 10.0.0.1/24"]);
    assert_eq!(registry.release(&machine("a"), 3).unwrap().held, []);
}

#[test]
fn what_rests_and_who_waits_and_who_is_missing_survives_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ledger");
    let open = || {
        let one = pool("workers", "eth0", "addresses: [10.0.0.8], machineNetwork: [{cidr: 10.0.0.0/24}]");
        registry(&path, [one]).with_reuse_delay(std::time::Duration::from_secs(60))
    };
    let (a, b) = (claim("a", 0, &["clusters/workers"]), claim("b", 0, &["clusters/workers"]));
    open().claim(&a, 1_000).unwrap();
    let missing = [a.machine.clone()];
    assert_eq!(open().note_looked_for(&[], &missing, 2_000).unwrap(), [None]);
    assert_eq!(open().note_looked_for(&[], &missing, 3_000).unwrap(), [Some(2_000)]);
    assert_eq!(shown(&open().release(&a.machine, 4_000).unwrap().held), ["a: 10.0.0.8/24"]);
    assert_eq!(open().allocator().unwrap().missing().count(), 0);
    open().claim(&b, 5_000).unwrap_err();
    assert_eq!(open().serve(63_999).unwrap(), []);
    let mut last = open();
    assert_eq!(last.allocator().unwrap().waiters(), [&b]);
    assert_eq!(shown(&last.serve(64_000).unwrap()), ["b: 10.0.0.8/24"]);
    assert_eq!(last.allocator().unwrap().waiters(), [] as [&glowplug::host::claim::Claim; 0]);
}
