//! A ledger in a file that several processes of one host share.

mod changes;
mod path;
mod rows;

use std::collections::BTreeSet;
use std::error::Error;
use std::fs::{self, File, OpenOptions};
use std::io::ErrorKind;
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, MAIN_DB, OpenFlags, Row, Transaction, TransactionBehavior};

use super::{Ledger, LedgerError};
use crate::host::change::{Change, Update};
use crate::host::claim::{HolderKind, Lease, Machine};
use changes::{Networks, Totals, everything, last_change, path, record, report};
pub use path::OpenError;
use path::{Place, check_path, cut_to, directory_of, file_of, is_writable, lacks_log, network_file_system};
use rows::{Octets, Time, claimant, is_damage, reading, sqlite_error, writing};

/// A ledger in an SQLite database.
///
/// A commit is on the disk when it returns: SQLite synchronises the write-ahead log at each commit. The database itself
/// rejects a lease of an address that another claimant holds. The database also records which rows have changed, so
/// that another process reads only these rows again. Each row of the tables of pools, leases, conflicts, waiting
/// machines and missing machines has a checksum, and the ledger has the sum of the checksums of each of these tables:
/// a damaged table is an error.
///
/// The file and its two companions (`-wal`, `-shm`) belong together. They must be on a disk of this host, because locks
/// and shared memory do not work between hosts. The companions stay when no process has the ledger open, because a
/// process with only read access could not create them, and because the log may have committed changes: those of a
/// process that was killed, or that closed the ledger while another process read it. So a file without its log is
/// refused. [`SqliteLedger::backup`] writes a copy that needs no log.
///
/// Each read and each write checks that the path still leads to the file that was opened. If another file is in its
/// place, for example a backup, the call fails with [`LedgerError::Replaced`]: other processes allocate from the other
/// file.
#[derive(Debug)]
pub struct SqliteLedger {
    connection: Connection,
    place: Place,
    networks: Networks,
    // ID of the last reported change. `None` if nothing has been reported.
    reported: Option<i64>,
}

/// A period in which a claimant held an address.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct Tenure {
    /// Name of the network.
    pub network: String,
    /// The leased address.
    pub address: IpAddr,
    /// The lease with its times. `released` is `None` while the claimant still holds the address.
    pub lease: Lease,
}

/// How a ledger is opened.
#[derive(Clone, Copy, Eq, PartialEq)]
enum Access {
    Read,
    Write,
    Create,
}

struct SqliteTransaction<'a> {
    transaction: Transaction<'a>,
    place: &'a Place,
    networks: &'a mut Networks,
    reported: &'a mut Option<i64>,
    has_reported: bool,
}

/// `glpg`, the SQLite application ID of a ledger. The command `file` and this program recognize a ledger by this ID.
const APPLICATION_ID: i64 = 0x676c_7067;

/// Version of the schema. No release wrote version 1.
const VERSION: i64 = 2;

const SCHEMA: &str = include_str!("schema-2.sql");

/// Number of changes that are kept for processes that are behind. A process that is further behind reads everything.
const CHANGES_KEPT: i64 = 10_000;

/// Number of earlier holders that the ledger keeps, about 20 MiB. The oldest of them are removed first.
const HISTORY_KEPT: i64 = 100_000;

// === impl SqliteLedger ===

impl SqliteLedger {
    /// Creates a ledger at `path`. An interrupted creation may leave an empty file without a log, or a ledger without
    /// pools; both are accepted.
    ///
    /// Use one ledger for a network: two ledgers would allocate the same addresses.
    ///
    /// # Errors
    ///
    /// See [`OpenError`].
    pub fn create(path: &Path) -> Result<Self, OpenError> {
        let log = PathBuf::from(format!("{}-wal", path.display()));
        if !path.exists() && log.exists() {
            return Err(OpenError::Exists(log));
        }
        Self::connect(path, Access::Create)
    }

    /// Opens the ledger at `path`.
    ///
    /// # Errors
    ///
    /// See [`OpenError`].
    pub fn open(path: &Path) -> Result<Self, OpenError> {
        Self::connect(path, Access::Write)
    }

    /// Opens the ledger at `path` read-only. The process needs only read access to the files; writing to the ledger
    /// fails.
    ///
    /// # Errors
    ///
    /// See [`OpenError`].
    pub fn open_read_only(path: &Path) -> Result<Self, OpenError> {
        Self::connect(path, Access::Read)
    }

    /// Checks the whole ledger: the structures of SQLite, references, and every checksum. Returns the problems; the
    /// list is empty if the ledger is intact.
    ///
    /// # Errors
    ///
    /// The ledger cannot be read at all.
    pub fn verify(&mut self) -> Result<Vec<String>, LedgerError> {
        self.place.check()?;
        let transaction = self.connection.transaction().map_err(reading)?;
        let mut problems = Vec::new();
        let mut statement = transaction.prepare("PRAGMA integrity_check").map_err(reading)?;
        let mut rows = statement.query([]).map_err(reading)?;
        while let Some(row) = rows.next().map_err(reading)? {
            let line: String = row.get(0).map_err(reading)?;
            problems.extend(Some(line).filter(|line| line != "ok"));
        }
        let read =
            Networks::read(&transaction).map_err(reading).and_then(|networks| everything(&transaction, &networks));
        problems.extend(read.err().map(|error| match error {
            LedgerError::Damaged(what) => what,
            error => error.to_string(),
        }));
        Ok(problems)
    }

    /// Writes a consistent copy of the ledger to a new file. Other processes may write to the ledger at the same time.
    /// The copy is on the disk and verified when this function returns.
    ///
    /// # Errors
    ///
    /// A file with the name of the copy exists, the ledger is damaged, or the copy cannot be written. A copy that is
    /// not whole is removed.
    pub fn backup(&mut self, copy: &Path) -> Result<(), LedgerError> {
        self.place.check()?;
        // This call refuses a file that exists, so a copy that is removed below is never a file of another program.
        // SQLite writes the copy to a file that is empty.
        match OpenOptions::new().write(true).create_new(true).mode(0o644).open(copy) {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::AlreadyExists => return Err(LedgerError::Exists(copy.to_owned())),
            Err(error) => return Err(copying(error.into())),
        }
        let written = self.write_copy(copy);
        if written.is_err() {
            // The error of the copy matters more than the error of its removal.
            let _ = fs::remove_file(copy);
        }
        written
    }

    /// Writes the copy of [`SqliteLedger::backup`] to an empty file, and verifies it.
    fn write_copy(&self, copy: &Path) -> Result<(), LedgerError> {
        // SQLite reads a name that begins with `file:` as a URI.
        let path = Path::new(".").join(copy);
        let target = path.to_str().ok_or_else(|| copying("the name is not UTF-8".into()))?;
        self.connection.execute("VACUUM INTO ?", [target]).map_err(|error| copying(sqlite_error(error)))?;
        let synchronised = || -> std::io::Result<()> {
            File::open(copy)?.sync_all()?;
            File::open(directory_of(copy))?.sync_all()
        };
        synchronised().map_err(|error| copying(error.into()))?;
        let problems = Self::open_read_only(copy).map_err(|error| copying(error.into()))?.verify()?;
        problems.into_iter().next().map_or(Ok(()), |problem| Err(LedgerError::Damaged(problem)))
    }

    /// Returns the tenures for which `fits` is true, earliest first. Of the tenures that have ended, the ledger keeps
    /// the latest 100,000.
    ///
    /// # Errors
    ///
    /// The ledger cannot be read.
    pub fn history(&mut self, fits: impl Fn(&Tenure) -> bool) -> Result<Vec<Tenure>, LedgerError> {
        const COLUMNS: &str = "network, address, prefix, pool, namespace, name, uid, interface, since, released";
        self.place.check()?;
        let transaction = self.connection.transaction().map_err(reading)?;
        let networks = Networks::read(&transaction).map_err(reading)?;
        let mut tenures = Vec::new();
        for from in ["history ORDER BY number", "leases WHERE released IS NULL"] {
            let mut statement = transaction.prepare(&format!("SELECT {COLUMNS} FROM {from}")).map_err(reading)?;
            let mut rows = statement.query([]).map_err(reading)?;
            while let Some(row) = rows.next().map_err(reading)? {
                let network = networks.name(row.get(0).map_err(reading)?)?.to_string();
                let (address, lease) = tenure(row).map_err(reading)?;
                tenures.extend(Some(Tenure { network, address, lease }).filter(|tenure| fits(tenure)));
            }
        }
        tenures.sort_by_key(|tenure| tenure.lease.since);
        Ok(tenures)
    }

    fn connect(path: &Path, access: Access) -> Result<Self, OpenError> {
        // If the file is replaced before SQLite opens it, the first read or write fails.
        let before = file_of(path);
        match path.metadata() {
            Err(_) if access != Access::Create && !path.try_exists().unwrap_or(true) => {
                return Err(OpenError::Absent(path.to_owned()));
            }
            Ok(metadata) if metadata.is_dir() => return Err(OpenError::Directory(path.to_owned())),
            // Opening a pipe would wait for a process at its other end.
            Ok(metadata) if !metadata.is_file() => return Err(OpenError::NotALedger(path.to_owned())),
            _ => {}
        }
        if let Some(kind) = network_file_system(path)? {
            return Err(OpenError::NetworkFileSystem(path.to_owned(), kind));
        }
        check_path(path)?;
        if let Some(bytes) = cut_to(path) {
            return Err(OpenError::Damaged(path.to_owned(), format!("cut to {bytes} bytes")));
        }
        // Another process may be about to create the log.
        if (0..1_000).all(|times| lacks_log(path) && wait(times)) {
            return Err(OpenError::WithoutLog(path.to_owned()));
        }
        let store = |source| failed(path, source);
        let flags = match access {
            Access::Read => OpenFlags::SQLITE_OPEN_READ_ONLY,
            Access::Write => OpenFlags::SQLITE_OPEN_READ_WRITE,
            Access::Create => OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE,
        };
        let flags = flags | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        // SQLite treats the name `:memory:` as a database in memory, and a name that begins with `file:` as a URI. The
        // prefix `./` avoids both.
        let opened = Connection::open_with_flags(Path::new(".").join(path), flags);
        let mut connection = opened.map_err(|source| match source.sqlite_error_code() {
            // SQLite does not report why it cannot create a file.
            Some(ErrorCode::CannotOpen) if access == Access::Create && !is_writable(directory_of(path)) => {
                OpenError::NotWritable(path.to_owned())
            }
            _ => store(source),
        })?;
        // When the last connection closes, SQLite would move the log into the file and remove the log. Instead, `drop`
        // moves the content of the log and keeps the log.
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true).map_err(store)?;
        connection.busy_handler(Some(wait)).map_err(store)?;
        // This check comes before the first write: the database may belong to another program.
        check_version(&connection, path, access)?;
        if access != Access::Read {
            // If the process has no right to write the file, SQLite opens the file as a read-only database.
            if connection.is_readonly(MAIN_DB).map_err(store)? {
                return Err(OpenError::NotWritable(path.to_owned()));
            }
            Self::prepare(&mut connection, path, access)?;
        }
        connection.execute_batch("PRAGMA trusted_schema = OFF; PRAGMA cell_size_check = ON").map_err(store)?;
        if statements(&connection).map_err(store)? != expected_statements().map_err(store)? {
            return Err(OpenError::Damaged(path.to_owned(), "not the schema of a ledger".to_owned()));
        }
        connection.set_prepared_statement_cache_capacity(32);
        let networks = Networks::read(&connection).map_err(store)?;
        Ok(Self { connection, place: Place::new(path, before.or_else(|| file_of(path))), networks, reported: None })
    }

    /// Sets the file up for several processes, and makes a new file a ledger.
    fn prepare(connection: &mut Connection, path: &Path, access: Access) -> Result<(), OpenError> {
        let store = |source| failed(path, source);
        // If several processes create the ledger, one of them changes the mode, and the others have to wait in this
        // loop: SQLite does not call the busy handler here.
        let mut times = 0;
        let mode: String = loop {
            match connection.query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0)) {
                Err(error) if error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy) && wait(times) => times += 1,
                done => break done.map_err(store)?,
            }
        };
        if mode != "wal" {
            return Err(OpenError::Store { path: path.to_owned(), source: format!("journal mode {mode}").into() });
        }
        connection.execute_batch("PRAGMA synchronous = FULL; PRAGMA foreign_keys = ON").map_err(store)?;
        if access == Access::Create {
            let creation = connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(store)?;
            if check_version(&creation, path, access)? == 0 {
                creation.execute_batch(SCHEMA).map_err(store)?;
                creation.pragma_update(None, "application_id", APPLICATION_ID).map_err(store)?;
                creation.pragma_update(None, "user_version", VERSION).map_err(store)?;
            }
            creation.commit().map_err(store)?;
        }
        Ok(())
    }
}

/// Moves the log into the file, and leaves the log empty. If another process uses the ledger at this moment, the log
/// keeps its content until a later close of a process that may write.
impl Drop for SqliteLedger {
    fn drop(&mut self) {
        // The log may now belong to another file.
        if self.place.check().is_err() {
            return;
        }
        let _ = self.connection.busy_handler(None);
        let _ = self.connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()));
    }
}

impl Ledger for SqliteLedger {
    fn catch_up(&mut self) -> Result<Update, LedgerError> {
        self.place.check()?;
        let transaction = self.connection.transaction().map_err(reading)?;
        let (update, reported) = report(&transaction, &mut self.networks, self.reported)?;
        self.reported = Some(reported);
        Ok(update)
    }

    fn begin(&mut self) -> Result<Box<dyn super::Transaction + '_>, LedgerError> {
        let immediate = TransactionBehavior::Immediate;
        let transaction = self.connection.transaction_with_behavior(immediate).map_err(writing)?;
        self.place.check()?;
        let (place, networks, reported) = (&self.place, &mut self.networks, &mut self.reported);
        Ok(Box::new(SqliteTransaction { transaction, place, networks, reported, has_reported: false }))
    }
}

impl super::Transaction for SqliteTransaction<'_> {
    fn catch_up(&mut self) -> Result<Update, LedgerError> {
        let (update, reported) = report(&self.transaction, self.networks, *self.reported)?;
        *self.reported = Some(reported);
        self.has_reported = true;
        Ok(update)
    }

    fn commit(self: Box<Self>, changes: &[Change]) -> Result<(), LedgerError> {
        // Writing neighbouring rows together makes a large batch faster. The sort keeps the order of the changes of one
        // item.
        let mut changes: Vec<&Change> = changes.iter().collect();
        changes.sort_by(|a, b| path(a).cmp(&path(b)));
        let mut totals = Totals::default();
        let mut networks = self.networks.clone();
        for change in changes {
            if let Some(machine) = machine_of(change).filter(|machine| machine.kind != HolderKind::default()) {
                // The file does not store the kind, so after a restart this object would count as another machine.
                let source =
                    format!("{machine} is no KubevirtMachine, and a ledger in a file keeps no other kind").into();
                return Err(LedgerError::Store { doing: "writing the ledger", source });
            }
            if is_of_cluster(change) {
                let source = "a ledger in a file keeps no names of Secrets, and no migrations".into();
                return Err(LedgerError::Store { doing: "writing the ledger", source });
            }
            if let Change::Pool { pool: Some(pool), .. } = change
                && !networks.has(&pool.network)
            {
                let sql = "INSERT INTO networks (name) VALUES (?)";
                self.transaction.execute(sql, [&pool.network]).map_err(writing)?;
                networks = Networks::read(&self.transaction).map_err(reading)?;
            }
            record(&self.transaction, &networks, change, &mut totals)?;
        }
        totals.write(&self.transaction)?;
        let last = last_change(&self.transaction).map_err(writing)?;
        let run = |sql: &str, number: i64| {
            let statement = self.transaction.prepare_cached(sql);
            statement.and_then(|mut statement| statement.execute([number])).map_err(writing)
        };
        run("DELETE FROM changes WHERE number <= ?", last - CHANGES_KEPT)?;
        run("DELETE FROM history WHERE number <= (SELECT max(number) FROM history) - ?", HISTORY_KEPT)?;
        let Self { transaction, place, networks: known, reported, has_reported } = *self;
        transaction.commit().map_err(writing)?;
        // If the file was replaced during the transaction, the new file may lack these changes.
        place.check()?;
        *known = networks;
        // The next report must leave out the changes of this process, but not earlier changes of other processes that
        // are not reported yet.
        if has_reported {
            *reported = Some(last);
        }
        Ok(())
    }
}

/// Waits one millisecond for another process; a commit takes about as long. Gives up after half a minute: a write of
/// this program never takes so long, so the other process hangs.
fn wait(times: i32) -> bool {
    std::thread::sleep(Duration::from_millis(1));
    times < 30_000
}

/// The machine that a change is about.
fn machine_of(change: &Change) -> Option<&Machine> {
    match change {
        Change::Pool { .. } | Change::Lease { lease: None, .. } => None,
        Change::Lease { lease: Some(lease), .. } => Some(&lease.claimant.machine),
        Change::Conflict { claimant, .. } => Some(&claimant.machine),
        Change::Waiter { machine, .. } | Change::Missing { machine, .. } => Some(machine),
    }
}

/// Whether a change has the name of a Secret or a migration to another cluster, which a ledger in a file cannot store.
fn is_of_cluster(change: &Change) -> bool {
    match change {
        Change::Lease { lease, .. } => {
            lease.as_ref().is_some_and(|lease| !lease.secrets.is_empty() || lease.migrated.is_some())
        }
        Change::Waiter { claim, .. } => claim.as_ref().is_some_and(|claim| claim.secret.is_some()),
        Change::Pool { .. } | Change::Conflict { .. } | Change::Missing { .. } => false,
    }
}

/// The version of the schema; 0 if the database is empty and is to become a ledger.
fn check_version(connection: &Connection, path: &Path, access: Access) -> Result<i64, OpenError> {
    let sql = "SELECT application_id, user_version, (SELECT count(*) FROM sqlite_schema)
               FROM pragma_application_id, pragma_user_version";
    let read = connection.query_row(sql, [], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)));
    let (id, found, tables): (i64, i64, i64) = read.map_err(|source| match source.sqlite_error_code() {
        Some(ErrorCode::NotADatabase) => OpenError::NotALedger(path.to_owned()),
        // Reading the version opens or creates only the log and its index, so the log is the cause of this error.
        Some(ErrorCode::CannotOpen | ErrorCode::ReadOnly) => OpenError::NoLog(path.to_owned()),
        _ => failed(path, source),
    })?;
    match (id, found) {
        (0, 0) if tables == 0 && access == Access::Create => Ok(0),
        (APPLICATION_ID, VERSION) if access == Access::Create => {
            let pools = connection.query_row("SELECT count(*) FROM pools", [], |row| row.get(0));
            match pools.map_err(|source| failed(path, source))? {
                0_i64 => Ok(VERSION),
                _ => Err(OpenError::Exists(path.to_owned())),
            }
        }
        (APPLICATION_ID, VERSION) => Ok(VERSION),
        (APPLICATION_ID, 1..) => Err(OpenError::OtherSchema { path: path.to_owned(), found, known: VERSION }),
        _ => Err(OpenError::NotALedger(path.to_owned())),
    }
}

fn copying(source: Box<dyn Error + Send + Sync>) -> LedgerError {
    LedgerError::Store { doing: "writing the copy of the ledger", source }
}

fn failed(path: &Path, source: rusqlite::Error) -> OpenError {
    let (path, is_damage) = (path.to_owned(), is_damage(&source));
    let source = sqlite_error(source);
    if is_damage { OpenError::Damaged(path, source.to_string()) } else { OpenError::Store { path, source } }
}

/// The SQL statements that created a database.
fn statements(connection: &Connection) -> rusqlite::Result<Vec<String>> {
    let mut statement =
        connection.prepare("SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL ORDER BY type, name")?;
    let rows = statement.query_map([], |row| row.get(0))?;
    rows.collect()
}

fn expected_statements() -> rusqlite::Result<Vec<String>> {
    let connection = Connection::open_in_memory()?;
    connection.execute_batch(SCHEMA)?;
    statements(&connection)
}

fn tenure(row: &Row<'_>) -> rusqlite::Result<(IpAddr, Lease)> {
    let Octets(address) = row.get(1)?;
    let (claimant, prefix, pool) = (Arc::new(claimant(row, 4)?), row.get(2)?, row.get(3)?);
    let Time(since) = row.get(8)?;
    let released = row.get::<_, Option<Time>>(9)?.map(|Time(released)| released);
    Ok((
        address,
        Lease { claimant, pool, prefix, since, released, reuse_after: None, secrets: BTreeSet::new(), migrated: None },
    ))
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::host::claim::{Claim, Request};
    use crate::host::pool::{Pool, TemplateFacts};
    use crate::host::pools_file::read_pools;
    use crate::host::registry::Registry;

    #[test]
    fn a_store_that_refuses_a_write_changes_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("ledger");
        let (specs, mut diagnostics) =
            read_pools(b"{name: one, namespace: 'n', network: vlan10, interface: eth0, addresses: [10.0.0.0/16]}");
        let pool = Pool::new(&specs[0], &TemplateFacts::default(), &mut diagnostics).unwrap();
        Registry::open(SqliteLedger::create(&path).unwrap())
            .unwrap()
            .resize([pool], &[], Timestamp::UNIX_EPOCH)
            .unwrap();
        let claim = |at: usize| Claim {
            machine: Machine::new("n", at.to_string(), "x".repeat(1000)),
            created: Timestamp::UNIX_EPOCH,
            requests: vec![Request::of("n/one")],
            sticky: false,
            secret: None,
        };
        let with_room = |more: i64| {
            let ledger = SqliteLedger::open(&path).unwrap();
            let pages: i64 = ledger.connection.query_row("PRAGMA page_count", [], |row| row.get(0)).unwrap();
            let pragma = format!("PRAGMA max_page_count = {}", pages + more);
            let _: i64 = ledger.connection.query_row(&pragma, [], |row| row.get(0)).unwrap();
            let mut registry = Registry::open(ledger).unwrap();
            registry.open_addresses(Timestamp::UNIX_EPOCH).unwrap();
            registry
        };
        let mut registry = with_room(2);
        let full = (0..).find(|at| registry.claim(&claim(*at), Timestamp::UNIX_EPOCH).is_err()).unwrap();
        let error = registry.claim(&claim(full), Timestamp::UNIX_EPOCH).unwrap_err();
        let source = error.source().unwrap().to_string();
        assert_eq!((error.to_string().as_str(), source.as_str()), ("writing the ledger", "database or disk is full"));
        assert_eq!(registry.state().unwrap().leases().count(), full);
        drop(registry);
        let mut registry = with_room(1000);
        let given = registry.claim(&claim(full), Timestamp::UNIX_EPOCH).unwrap();
        assert_eq!(given[0].addresses[0].to_string(), format!("10.0.0.{}/16", full + 1));

        // The file does not store the kind of a holder, so a holder of another kind would be another machine after a
        // restart.
        let of_another_kind = Machine::new("n", "w", "u").of_kind(HolderKind::IpamClaim);
        let error = registry.claim(&Claim { machine: of_another_kind, ..claim(0) }, Timestamp::UNIX_EPOCH).unwrap_err();
        let source = error.source().unwrap().to_string();
        let expected = "n/w (u) is no KubevirtMachine, and a ledger in a file keeps no other kind";
        assert_eq!((error.to_string().as_str(), source.as_str()), ("writing the ledger", expected));

        let error = registry.claim(&Claim { secret: Some("s".to_owned()), ..claim(full + 1) }, Timestamp::UNIX_EPOCH);
        let source = error.unwrap_err().source().unwrap().to_string();
        assert_eq!(source, "a ledger in a file keeps no names of Secrets, and no migrations");
    }

    #[test]
    fn a_process_allocates_nothing_from_a_file_that_was_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let [path, log, index, backup, copy] =
            ["ledger", "ledger-wal", "ledger-shm", "backup", "copy"].map(|name| directory.path().join(name));
        let pools = Pool::parse(b"{name: one, namespace: 'n', network: vlan10, addresses: [10.0.0.0/24]}").unwrap();
        let mut registry = Registry::open(SqliteLedger::create(&path).unwrap()).unwrap();
        registry.resize(pools, &[], Timestamp::UNIX_EPOCH).unwrap();
        let mut ledger = registry.into_ledger();
        ledger.backup(&backup).unwrap();
        let expected = format!(
            "{}: replaced or removed after the ledger was opened, expected the same file: open the ledger again",
            path.display()
        );
        let replaced = |refused: Option<LedgerError>| assert_eq!(refused.unwrap().to_string(), expected);

        // The backup takes the place of the ledger between a decision and its commit. A later process opens the backup.
        let transaction = ledger.begin().unwrap();
        [&log, &index].into_iter().for_each(|file| std::fs::remove_file(file).unwrap());
        std::fs::rename(&backup, &path).unwrap();
        let mut later = SqliteLedger::open(&path).unwrap();
        replaced(transaction.commit(&[]).err());
        replaced(ledger.begin().err());
        replaced(ledger.catch_up().err());
        replaced(ledger.verify().err());
        replaced(ledger.backup(&copy).err());
        replaced(ledger.history(|_| true).err());
        later.begin().unwrap().commit(&[]).unwrap();
        drop(later);

        // The log and its index are replaced, and the file stays.
        let mut ledger = SqliteLedger::open(&path).unwrap();
        [&log, &index].into_iter().for_each(|file| std::fs::remove_file(file).unwrap());
        std::fs::write(&log, "").unwrap();
        let mut later = SqliteLedger::open(&path).unwrap();
        replaced(ledger.begin().err());
        later.begin().unwrap().commit(&[]).unwrap();
    }
}
