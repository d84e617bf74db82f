//! A ledger in a file that several processes of one host share.

mod rows;

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::fmt;
use std::fs::{self, File};
use std::io;
use std::net::IpAddr;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use nix::fcntl::{self, OFlag};
use nix::sys::stat::Mode;
use nix::sys::statfs::statfs;
use rusqlite::config::DbConfig;
use rusqlite::{
    Connection, ErrorCode, OpenFlags, OptionalExtension, Row, ToSql, Transaction, TransactionBehavior, params,
    params_from_iter,
};

use super::{Ledger, LedgerError};
use crate::host::change::{Change, Update, milliseconds};
use crate::host::claim::{Claimant, HolderKind, Lease, Machine};
use rows::{
    CONFLICTS, LEASES, MISSING, Octets, POOLS, Table, Time, WAITERS, checksum, claimant, machine, reading, requests,
    source_text, sqlite_error,
};

/// A ledger in an SQLite database.
///
/// A commit is on the disk when it returns: SQLite synchronises the write-ahead log at each commit. The database itself
/// rejects a lease of an address that another claimant holds. The database also records what was changed, so that
/// another process reads only the changes again. Each row has a checksum, and each table has the sum of these
/// checksums: a damaged table is an error.
///
/// The file and its two companions (`-wal`, `-shm`) belong together. They must be on a disk of this host, because locks
/// and shared memory do not work between hosts. The companions stay when no process has the ledger open, because a
/// process that may only read could not create them. The file itself then has everything that was committed.
#[derive(Debug)]
pub struct SqliteLedger {
    connection: Connection,
    networks: Networks,
    // ID of the last reported change. `None` if nothing has been reported.
    reported: Option<i64>,
}

/// Why a ledger cannot be opened or created.
#[derive(Debug)]
#[non_exhaustive]
pub enum OpenError {
    /// The file does not exist.
    Absent(PathBuf),
    /// The creation of a ledger would replace this file: a ledger, or the log of a ledger.
    Exists(PathBuf),
    /// The file is on a network file system of this kind.
    NetworkFileSystem(PathBuf, &'static str),
    /// The file is empty, or not a file or a database of this program.
    NotALedger(PathBuf),
    /// The file has, or may have, a second path, for this reason. Each path has a log of its own, so that two processes would
    /// not see each other's changes.
    SecondPath(PathBuf, String),
    /// The write-ahead log does not exist or cannot be read, and cannot be created.
    NoLog(PathBuf),
    /// Another version of this program created the ledger.
    OtherSchema {
        /// Path of the ledger.
        path: PathBuf,
        /// Version of the schema of the ledger.
        found: i64,
        /// The version that this program reads.
        known: i64,
    },
    /// The file or the database failed.
    Store {
        /// Path of the ledger.
        path: PathBuf,
        /// The error of the system or of SQLite.
        source: Box<dyn Error + Send + Sync>,
    },
}

/// A time in which a claimant held an address.
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

#[derive(Debug, Default)]
struct Networks {
    by_id: BTreeMap<i64, Arc<str>>,
    by_name: BTreeMap<Arc<str>, i64>,
}

/// How a ledger is opened.
#[derive(Clone, Copy, Eq, PartialEq)]
enum Access {
    Read,
    Write,
    Create,
}

/// Changes of the totals by one transaction, by the ID of the table.
#[derive(Default)]
struct Totals(BTreeMap<i64, Total>);

/// The number of rows, and the sum of their checksums.
#[derive(Default)]
struct Total {
    rows: i64,
    checksums: i64,
}

struct SqliteTransaction<'a> {
    transaction: Transaction<'a>,
    networks: &'a mut Networks,
    reported: &'a mut Option<i64>,
    has_reported: bool,
}

/// `glpg`, the SQLite application ID of a ledger. `file` and this program recognize a ledger by it.
const APPLICATION_ID: i64 = 0x676c_7067;

/// Version of the schema. No release wrote version 1.
const VERSION: i64 = 2;

const SCHEMA: &str = include_str!("schema-2.sql");

/// Number of changes that are kept for processes that are behind. A process that is further behind reads everything.
const CHANGES_KEPT: i64 = 10_000;

/// Number of earlier holders that are kept, the latest ones: about 20 MiB.
const HISTORY_KEPT: i64 = 100_000;

/// File systems whose locks or shared memory do not work between the hosts that mount them, by the magic number of
/// `statfs` (linux/magic.h; GPFS and Lustre from their own headers). FUSE is in the list because it hides the file
/// system behind it, which may be a network file system: sshfs, GlusterFS and virtiofs use FUSE.
const NETWORK_FILE_SYSTEMS: [(u32, &str); 16] = [
    (0x0000_517b, "SMB"),
    (0x0000_564c, "NCP"),
    (0x0000_6969, "NFS"),
    (0x00c3_6400, "Ceph"),
    (0x0102_1997, "9p"),
    (0x0116_1970, "GFS2"),
    (0x0bd0_0bd0, "Lustre"),
    (0x4750_4653, "GPFS"),
    (0x5346_414f, "AFS"),
    (0x6573_5546, "FUSE"),
    (0x6b41_4653, "AFS"),
    (0x7375_7245, "Coda"),
    (0x7461_636f, "OCFS2"),
    (0x786f_4256, "VirtualBox's shared folders"),
    (0xfe53_4d42, "SMB"),
    (0xff53_4d42, "CIFS"),
];

// === impl SqliteLedger ===

impl SqliteLedger {
    /// Creates a ledger at `path`. An interrupted creation may leave an empty file or a ledger without pools; both are
    /// accepted.
    ///
    /// Use one ledger for a network: two would allocate the same addresses.
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
        problems.extend(read.err().map(|error| error.to_string()));
        Ok(problems)
    }

    /// Writes a consistent copy of the ledger to a new file. Other processes may write to the ledger at the same time.
    /// The copy is on the disk and verified when this function returns.
    ///
    /// # Errors
    ///
    /// A file with the name of the copy exists, the ledger is damaged, or the copy cannot be written.
    pub fn backup(&mut self, copy: &Path) -> Result<(), LedgerError> {
        const DOING: &str = "writing the copy of the ledger";
        let failed = |source: Box<dyn Error + Send + Sync>| LedgerError::Store { doing: DOING, source };
        if copy.symlink_metadata().is_ok() {
            return Err(failed("the file exists, expected a new one".into()));
        }
        let target = copy.to_str().ok_or_else(|| failed("the name is not UTF-8".into()))?;
        self.connection.execute("VACUUM INTO ?", [target]).map_err(|error| failed(sqlite_error(error)))?;
        let synchronised = || -> std::io::Result<()> {
            File::open(copy)?.sync_all()?;
            File::open(directory_of(copy))?.sync_all()
        };
        synchronised().map_err(|error| failed(error.into()))?;
        let problems = Self::open_read_only(copy).map_err(|error| failed(error.into()))?.verify()?;
        problems.into_iter().next().map_or(Ok(()), |problem| Err(LedgerError::Damaged(problem)))
    }

    /// Returns the tenures for which `fits` is true, earliest first. The ledger keeps the latest 100,000 earlier
    /// holders.
    ///
    /// # Errors
    ///
    /// The ledger cannot be read.
    pub fn history(&mut self, fits: impl Fn(&Tenure) -> bool) -> Result<Vec<Tenure>, LedgerError> {
        const COLUMNS: &str = "network, address, prefix, pool, namespace, name, uid, interface, since, released";
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
        match path.metadata() {
            Err(_) if access != Access::Create && !path.try_exists().unwrap_or(true) => {
                return Err(OpenError::Absent(path.to_owned()));
            }
            // Opening a pipe would wait for a process at its other end.
            Ok(metadata) if !metadata.is_file() => return Err(OpenError::NotALedger(path.to_owned())),
            _ => {}
        }
        if let Some(kind) = network_file_system(path)? {
            return Err(OpenError::NetworkFileSystem(path.to_owned(), kind));
        }
        check_path(path)?;
        let store = |source| OpenError::Store { path: path.to_owned(), source: sqlite_error(source) };
        let flags = match access {
            Access::Read => OpenFlags::SQLITE_OPEN_READ_ONLY,
            Access::Write => OpenFlags::SQLITE_OPEN_READ_WRITE,
            Access::Create => OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE,
        };
        let flags = flags | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        // SQLite treats the name `:memory:` as no file and a name that begins with `file:` as a URI; the prefix `./`
        // avoids both.
        let mut connection = Connection::open_with_flags(Path::new(".").join(path), flags).map_err(store)?;
        connection.busy_handler(Some(wait)).map_err(store)?;
        // This check comes before the first write: the database may belong to another program.
        check_version(&connection, path, access)?;
        if access != Access::Read {
            Self::prepare(&mut connection, path, access)?;
        }
        connection.execute_batch("PRAGMA trusted_schema = OFF; PRAGMA cell_size_check = ON").map_err(store)?;
        let damaged = |source: String| OpenError::Store { path: path.to_owned(), source: source.into() };
        if statements(&connection).map_err(store)? != expected_statements().map_err(store)? {
            return Err(damaged("the schema is damaged".to_owned()));
        }
        connection.set_prepared_statement_cache_capacity(32);
        let networks = Networks::read(&connection).map_err(store)?;
        Ok(Self { connection, networks, reported: None })
    }

    /// Sets the file up for several processes, and makes a new file a ledger.
    fn prepare(connection: &mut Connection, path: &Path, access: Access) -> Result<(), OpenError> {
        let store = |source| OpenError::Store { path: path.to_owned(), source: sqlite_error(source) };
        // At the end SQLite would move the log into the file and remove the log. `drop` moves the log itself and keeps
        // it.
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true).map_err(store)?;
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

/// Moves the log into the file, so that the file alone is a whole copy of the ledger, and leaves the log empty. If
/// another process has the ledger open, the other process does this later.
impl Drop for SqliteLedger {
    fn drop(&mut self) {
        let _ = self.connection.busy_handler(None);
        let _ = self.connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()));
    }
}

impl Ledger for SqliteLedger {
    fn catch_up(&mut self) -> Result<Update, LedgerError> {
        let transaction = self.connection.transaction().map_err(reading)?;
        let (update, reported) = report(&transaction, &mut self.networks, self.reported)?;
        self.reported = Some(reported);
        Ok(update)
    }

    fn begin(&mut self) -> Result<Box<dyn super::Transaction + '_>, LedgerError> {
        let immediate = TransactionBehavior::Immediate;
        let transaction = self.connection.transaction_with_behavior(immediate).map_err(writing)?;
        let (networks, reported) = (&mut self.networks, &mut self.reported);
        Ok(Box::new(SqliteTransaction { transaction, networks, reported, has_reported: false }))
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
        let mut networks = Networks { by_id: self.networks.by_id.clone(), by_name: self.networks.by_name.clone() };
        for change in changes {
            if let Some(machine) = machine_of(change).filter(|machine| machine.kind != HolderKind::default()) {
                // After a restart this object would be another machine.
                let source =
                    format!("{machine} is no KubevirtMachine, and a ledger in a file keeps no other kind").into();
                return Err(LedgerError::Store { doing: "writing the ledger", source });
            }
            if is_of_cluster(change) {
                let source = "a ledger in a file keeps no names of Secrets, and no migrations".into();
                return Err(LedgerError::Store { doing: "writing the ledger", source });
            }
            if let Change::Pool { pool: Some(pool), .. } = change
                && !networks.by_name.contains_key(pool.network.as_str())
            {
                let sql = "INSERT INTO networks (name) VALUES (?)";
                self.transaction.execute(sql, [&pool.network]).map_err(writing)?;
                networks = Networks::read(&self.transaction).map_err(reading)?;
            }
            record(&self.transaction, &networks, change, &mut totals)?;
        }
        let last = last_change(&self.transaction).map_err(writing)?;
        let run = |sql: &str, values: &[i64]| {
            let statement = self.transaction.prepare_cached(sql);
            statement.and_then(|mut statement| statement.execute(params_from_iter(values))).map_err(writing)
        };
        for (table, Total { rows, checksums }) in totals.0 {
            let sql = "UPDATE totals SET rows = rows + ?, checksums = checksums + ? WHERE id = ?";
            run(sql, &[rows, checksums, table])?;
        }
        run("DELETE FROM changes WHERE number <= ?", &[last - CHANGES_KEPT])?;
        run("DELETE FROM history WHERE number <= (SELECT max(number) FROM history) - ?", &[HISTORY_KEPT])?;
        let Self { transaction, networks: known, reported, has_reported } = *self;
        transaction.commit().map_err(writing)?;
        *known = networks;
        // The next report must leave out the changes of this process, but not earlier changes of others that are
        // unreported.
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

fn writing(source: rusqlite::Error) -> LedgerError {
    LedgerError::Store { doing: "writing the ledger", source: sqlite_error(source) }
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

/// Whether a change has the name of a Secret or a migration to another cluster.
fn is_of_cluster(change: &Change) -> bool {
    match change {
        Change::Lease { lease, .. } => {
            lease.as_ref().is_some_and(|lease| !lease.secrets.is_empty() || lease.migrated.is_some())
        }
        Change::Waiter { claim, .. } => claim.as_ref().is_some_and(|claim| claim.secret.is_some()),
        Change::Pool { .. } | Change::Conflict { .. } | Change::Missing { .. } => false,
    }
}

/// The kind of network file system on which a file is, or will be. `None` for a local file system.
fn network_file_system(path: &Path) -> Result<Option<&'static str>, OpenError> {
    let at = if path.try_exists().unwrap_or(false) { path } else { directory_of(path) };
    let magic = match statfs(at) {
        Ok(statfs) => statfs.filesystem_type().0 as u32,
        Err(error) => return Err(OpenError::Store { path: path.to_owned(), source: Box::new(error) }),
    };
    Ok(kind_of(magic))
}

/// Refuses a ledger that can be reached under a second path. SQLite names the log and the shared memory after the path. It
/// follows symbolic links, so these are no second path, and a folder can have several paths.
fn check_path(path: &Path) -> Result<(), OpenError> {
    let Ok(real) = path.canonicalize() else { return Ok(()) };
    let failed = |source: io::Error| OpenError::Store { path: path.to_owned(), source: source.into() };
    let links = real.metadata().map_err(failed)?.nlink();
    if links > 1 {
        return Err(OpenError::SecondPath(path.to_owned(), format!("the file has {links} hard links")));
    }
    if mount_of(&real).map_err(failed)? != mount_of(directory_of(&real)).map_err(failed)? {
        let why = "the file is mounted here from another path".to_owned();
        return Err(OpenError::SecondPath(path.to_owned(), why));
    }
    Ok(())
}

/// The ID of the mount that has a file or folder.
fn mount_of(path: &Path) -> io::Result<String> {
    // Closing any other descriptor of the ledger would release the locks of SQLite in this process.
    let file = fcntl::open(path, OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty())?;
    let text = fs::read_to_string(format!("/proc/self/fdinfo/{}", file.as_raw_fd()))?;
    let id = text.lines().find_map(|line| line.strip_prefix("mnt_id:"));
    id.map(|id| id.trim().to_owned()).ok_or_else(|| io::Error::other("the system does not tell the mount of a file"))
}

fn kind_of(magic: u32) -> Option<&'static str> {
    NETWORK_FILE_SYSTEMS.iter().find(|(known, _)| *known == magic).map(|(_, kind)| *kind)
}

fn directory_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
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
        _ => OpenError::Store { path: path.to_owned(), source: sqlite_error(source) },
    })?;
    match (id, found) {
        (0, 0) if tables == 0 && access == Access::Create => Ok(0),
        (APPLICATION_ID, VERSION) if access == Access::Create => {
            let pools = connection.query_row("SELECT count(*) FROM pools", [], |row| row.get(0));
            match pools.map_err(|source| OpenError::Store { path: path.to_owned(), source: sqlite_error(source) })? {
                0_i64 => Ok(VERSION),
                _ => Err(OpenError::Exists(path.to_owned())),
            }
        }
        (APPLICATION_ID, VERSION) => Ok(VERSION),
        (APPLICATION_ID, 1..) => Err(OpenError::OtherSchema { path: path.to_owned(), found, known: VERSION }),
        _ => Err(OpenError::NotALedger(path.to_owned())),
    }
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

/// Returns what was changed since the change with the number `reported`, and the number of the last change.
fn report(
    transaction: &Transaction<'_>,
    networks: &mut Networks,
    reported: Option<i64>,
) -> Result<(Update, i64), LedgerError> {
    let last = last_change(transaction).map_err(reading)?;
    if reported == Some(last) {
        return Ok((Update::Delta(Vec::new()), last));
    }
    let first: Option<i64> =
        transaction.query_row("SELECT min(number) FROM changes", [], |row| row.get(0)).map_err(reading)?;
    // The numbers only rise. A lower last number means that the file was restored from a copy.
    let since = reported.filter(|reported| *reported < last && first.is_some_and(|first| first <= reported + 1));
    *networks = Networks::read(transaction).map_err(reading)?;
    let update = match since {
        Some(since) => Update::Delta(changes_since(transaction, networks, since)?),
        None => Update::Snapshot(everything(transaction, networks)?),
    };
    Ok((update, last))
}

fn last_change(transaction: &Transaction<'_>) -> rusqlite::Result<i64> {
    let mut last = transaction.prepare_cached("SELECT coalesce(max(number), 0) FROM changes")?;
    last.query_row([], |row| row.get(0))
}

/// Reads all rows of all tables, and checks that no row is missing or damaged.
fn everything(transaction: &Transaction<'_>, networks: &Networks) -> Result<Vec<Change>, LedgerError> {
    let mut changes = Vec::new();
    for table in [&POOLS, &LEASES, &CONFLICTS, &WAITERS, &MISSING] {
        let (mut count, mut sum) = (0_i64, 0_i64);
        let mut statement = transaction.prepare_cached(&table.select()).map_err(reading)?;
        let mut rows = statement.query([]).map_err(reading)?;
        while let Some(row) = rows.next().map_err(reading)? {
            let (change, checksum) = table.read(row, &|id| networks.name(id))?;
            (count, sum) = (count + 1, sum.wrapping_add(checksum));
            changes.push(change);
        }
        let sql = "SELECT rows, checksums FROM totals WHERE id = ?";
        let total = transaction.query_row(sql, [table.id], |row| Ok((row.get(0)?, row.get(1)?))).optional();
        let total: Option<(i64, i64)> = total.map_err(reading)?;
        if total != Some((count, sum)) {
            return Err(LedgerError::Damaged(format!("table {} does not have the rows that were written", table.name)));
        }
    }
    Ok(changes)
}

/// The current state of each item that changed after the change with the number `since`.
fn changes_since(transaction: &Transaction<'_>, networks: &Networks, since: i64) -> Result<Vec<Change>, LedgerError> {
    let mut changes = Vec::new();
    let sql = "SELECT DISTINCT pool, network, address, namespace, name, uid, interface FROM changes WHERE number > ?";
    let mut statement = transaction.prepare_cached(sql).map_err(reading)?;
    let mut rows = statement.query([since]).map_err(reading)?;
    while let Some(row) = rows.next().map_err(reading)? {
        let (pool, address): (Option<Arc<str>>, Option<Octets>) =
            (row.get(0).map_err(reading)?, row.get(2).map_err(reading)?);
        let interface: Option<String> = row.get(6).map_err(reading)?;
        if let Some(name) = pool {
            changes.push(Change::Pool { name, pool: None });
        } else if let Some(Octets(address)) = address {
            let network = networks.name(row.get(1).map_err(reading)?)?;
            changes.push(if interface.is_some() {
                let claimant = Arc::new(claimant(row, 3).map_err(reading)?);
                Change::Conflict { network, address, claimant, record: None }
            } else {
                Change::Lease { network, address, lease: None }
            });
        } else {
            let machine = machine(row, 3).map_err(reading)?;
            changes.push(Change::Waiter { machine: machine.clone(), claim: None });
            changes.push(Change::Missing { machine, since: None });
        }
    }
    for change in &mut changes {
        if let Some(now) = current(transaction, networks, change)? {
            *change = now;
        }
    }
    Ok(changes)
}

/// The row of the item that a change is about. `None` if there is no row.
fn current(transaction: &Transaction<'_>, networks: &Networks, change: &Change) -> Result<Option<Change>, LedgerError> {
    let find = |table: &Table, condition: &str, key: &[&dyn ToSql]| {
        let sql = format!("{} WHERE {condition}", table.select());
        let mut statement = transaction.prepare_cached(&sql).map_err(reading)?;
        let mut rows = statement.query(key).map_err(reading)?;
        let row = rows.next().map_err(reading)?;
        row.map(|row| Ok(table.read(row, &|id| networks.name(id))?.0)).transpose()
    };
    match change {
        Change::Pool { name, .. } => find(&POOLS, "name = ?", params![name]),
        Change::Lease { network, address, .. } => {
            find(&LEASES, "network = ? AND address = ?", params![networks.id(network)?, Octets(*address)])
        }
        Change::Conflict { network, address, claimant, .. } => {
            let Claimant { machine: Machine { namespace, name, uid, .. }, interface } = &**claimant;
            let key = params![networks.id(network)?, Octets(*address), namespace, name, uid, interface.as_str()];
            let condition = "network = ? AND address = ? AND namespace = ? AND name = ? AND uid = ? AND interface = ?";
            find(&CONFLICTS, condition, key)
        }
        Change::Waiter { machine: Machine { namespace, name, uid, .. }, .. } => {
            find(&WAITERS, "namespace = ? AND name = ? AND uid = ?", params![namespace, name, uid])
        }
        Change::Missing { machine: Machine { namespace, name, uid, .. }, .. } => {
            find(&MISSING, "namespace = ? AND name = ? AND uid = ?", params![namespace, name, uid])
        }
    }
}

/// Writes or removes the row of a change, and updates the totals of the table.
fn record(
    transaction: &Transaction<'_>,
    networks: &Networks,
    change: &Change,
    totals: &mut Totals,
) -> Result<(), LedgerError> {
    let run = |sql: &str, values: &[&dyn ToSql]| {
        transaction.prepare_cached(sql).and_then(|mut statement| statement.execute(values)).map_err(writing)
    };
    // The checksum of the row that a statement finds or deletes. `None` if there is no row.
    let old = |sql: &str, values: &[&dyn ToSql]| -> Result<Option<i64>, LedgerError> {
        let statement = transaction.prepare_cached(sql);
        let row = statement.and_then(|mut statement| statement.query_row(values, |row| row.get(0)).optional());
        row.map_err(writing)
    };
    let checksum = checksum(change);
    match change {
        Change::Pool { name, pool } => {
            totals.remove(&POOLS, old("DELETE FROM pools WHERE name = ? RETURNING checksum", params![name])?);
            if let Some(pool) = pool {
                let sql = "INSERT INTO pools (name, specification, checksum) VALUES (?, ?, ?)";
                run(sql, params![name, pool.to_stored(), checksum])?;
            }
            totals.add(&POOLS, checksum);
        }
        Change::Lease { network, address, lease: None } => {
            let sql = "DELETE FROM leases WHERE network = ? AND address = ? RETURNING checksum";
            totals.remove(&LEASES, old(sql, params![networks.id(network)?, Octets(*address)])?);
        }
        Change::Lease { network, address, lease: Some(lease) } => {
            let Claimant { machine: Machine { namespace, name, uid, .. }, interface } = &*lease.claimant;
            let (id, interface) = (networks.id(network)?, interface.as_str());
            let Lease { prefix, pool, .. } = lease;
            let (since, released) = (milliseconds(lease.since), lease.released.map(milliseconds));
            let reuse_after = lease.reuse_after.map(milliseconds);
            let address_row = params![id, Octets(*address)];
            #[rustfmt::skip]
            let row = params![
                id, Octets(*address), prefix, pool, namespace, name, uid, interface, since, released, reuse_after, checksum
            ];
            // Most leases of a large batch are new, and a new row needs no search for the row before it.
            let insert = "INSERT INTO leases
                              (network, address, prefix, pool, namespace, name, uid, interface, since, released,
                               reuse_after, checksum)
                          VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
                          ON CONFLICT (network, address) DO NOTHING";
            if run(insert, row)? == 0 {
                let before = old("SELECT checksum FROM leases WHERE network = ? AND address = ?", address_row)?;
                let update = "UPDATE leases SET
                                  (prefix, pool, namespace, name, uid, interface, since, released, reuse_after, checksum)
                                  = (?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)
                              WHERE (network, address) = (?1, ?2)
                                  AND (released IS NOT NULL OR (namespace, name, uid, interface) = (?5, ?6, ?7, ?8))";
                if run(update, row)? == 0 {
                    return Err(LedgerError::Held { network: network.to_string(), address: *address });
                }
                totals.remove(&LEASES, before);
            }
            totals.add(&LEASES, checksum);
        }
        Change::Conflict { network, address, claimant, record } => {
            let id = networks.id(network)?;
            let Claimant { machine: Machine { namespace, name, uid, .. }, interface } = &**claimant;
            let interface = interface.as_str();
            let sql = "DELETE FROM conflicts
                       WHERE (network, address, namespace, name, uid, interface) = (?, ?, ?, ?, ?, ?)
                       RETURNING checksum";
            let before = old(sql, params![id, Octets(*address), namespace, name, uid, interface])?;
            totals.remove(&CONFLICTS, before);
            if let Some(record) = record {
                let source = source_text(record);
                let sql = "INSERT INTO conflicts VALUES (?, ?, ?, ?, ?, ?, ?, ?)";
                run(sql, params![id, Octets(*address), namespace, name, uid, interface, source, checksum])?;
            }
            totals.add(&CONFLICTS, checksum);
        }
        Change::Waiter { machine: Machine { namespace, name, uid, .. }, claim } => {
            let sql = "DELETE FROM waiters WHERE (namespace, name, uid) = (?, ?, ?) RETURNING checksum";
            totals.remove(&WAITERS, old(sql, params![namespace, name, uid])?);
            if let Some(claim) = claim {
                let (created, requests) = (milliseconds(claim.created), requests(claim));
                let sql = "INSERT INTO waiters VALUES (?, ?, ?, ?, ?, ?, ?)";
                run(sql, params![namespace, name, uid, created, claim.sticky, requests, checksum])?;
            }
            totals.add(&WAITERS, checksum);
        }
        Change::Missing { machine: Machine { namespace, name, uid, .. }, since } => {
            let sql = "DELETE FROM missing WHERE (namespace, name, uid) = (?, ?, ?) RETURNING checksum";
            totals.remove(&MISSING, old(sql, params![namespace, name, uid])?);
            if let Some(since) = since {
                let sql = "INSERT INTO missing VALUES (?, ?, ?, ?, ?)";
                run(sql, params![namespace, name, uid, milliseconds(*since), checksum])?;
            }
            totals.add(&MISSING, checksum);
        }
    }
    Ok(())
}

/// Sort key of the row of a change in the file. Pools come first, because they add the networks.
fn path(change: &Change) -> Option<(&str, IpAddr)> {
    match change {
        Change::Lease { network, address, .. } | Change::Conflict { network, address, .. } => Some((network, *address)),
        Change::Pool { .. } | Change::Waiter { .. } | Change::Missing { .. } => None,
    }
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

// === impl Totals ===

impl Totals {
    /// Adds a row with this checksum to the totals. `None` is no row.
    fn add(&mut self, table: &Table, checksum: Option<i64>) {
        self.count(table, 1, checksum);
    }

    /// Removes a row with this checksum from the totals. `None` is no row.
    fn remove(&mut self, table: &Table, checksum: Option<i64>) {
        self.count(table, -1, checksum);
    }

    fn count(&mut self, table: &Table, sign: i64, checksum: Option<i64>) {
        let Some(checksum) = checksum else { return };
        let total = self.0.entry(table.id).or_default();
        total.rows += sign;
        // The checksum of a damaged row may be any number.
        total.checksums = total.checksums.wrapping_add(checksum.wrapping_mul(sign));
    }
}

// === impl Networks ===

impl Networks {
    fn read(connection: &Connection) -> rusqlite::Result<Self> {
        let mut networks = Self::default();
        let mut statement = connection.prepare_cached("SELECT id, name FROM networks")?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            let (id, name): (i64, String) = (row.get(0)?, row.get(1)?);
            let name: Arc<str> = Arc::from(name);
            networks.by_id.insert(id, Arc::clone(&name));
            networks.by_name.insert(name, id);
        }
        Ok(networks)
    }

    fn name(&self, id: i64) -> Result<Arc<str>, LedgerError> {
        let unknown = || LedgerError::Damaged(format!("there is no network with the id {id}"));
        self.by_id.get(&id).cloned().ok_or_else(unknown)
    }

    fn id(&self, name: &str) -> Result<i64, LedgerError> {
        self.by_name.get(name).copied().ok_or_else(|| LedgerError::UnknownNetwork(name.to_owned()))
    }
}

// === impl OpenError ===

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Absent(path) => write!(f, "{}: no such ledger", path.display()),
            Self::Exists(path) => {
                write!(f, "{}: exists, expected no file, since a ledger is created once", path.display())
            }
            Self::NetworkFileSystem(path, kind) => write!(
                f,
                "{}: on a network file system ({kind}), expected a local disk, on which file locks are reliable",
                path.display()
            ),
            Self::NotALedger(path) => write!(f, "{}: not a ledger", path.display()),
            Self::SecondPath(path, why) => {
                write!(f, "{}: {why}, expected one path: each path would have a log of its own", path.display())
            }
            Self::NoLog(path) => {
                let path = path.display();
                write!(
                    f,
                    "{path}: no write-ahead log, expected {path}-wal and {path}-shm, or a directory to make them in"
                )
            }
            Self::OtherSchema { path, found, known } => write!(
                f,
                "{}: schema version {found}, expected {known}: another version of glowplugctl created the ledger",
                path.display()
            ),
            Self::Store { path, .. } => write!(f, "opening {}", path.display()),
        }
    }
}

impl Error for OpenError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Store { source, .. } => Some(&**source),
            _ => None,
        }
    }
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
    fn network_file_systems_are_known_by_their_magic_numbers() {
        let kinds = [0x6969, 0xff53_4d42, 0xfe53_4d42, 0x0102_1997, 0x00c3_6400, 0x6573_5546].map(kind_of);
        assert_eq!(kinds, [Some("NFS"), Some("CIFS"), Some("SMB"), Some("9p"), Some("Ceph"), Some("FUSE")]);
        // ext4, XFS, Btrfs, tmpfs and overlayfs are not network file systems.
        let kinds = [0xef53, 0x5846_5342, 0x9123_683e, 0x0102_1994, 0x794c_7630].map(kind_of);
        assert_eq!(kinds, [None; 5]);
    }

    #[test]
    fn a_ledger_on_a_network_file_system_is_refused_with_the_reason() {
        assert_eq!(
            OpenError::NetworkFileSystem(PathBuf::from("/mnt/ledger"), "NFS").to_string(),
            "/mnt/ledger: on a network file system (NFS), expected a local disk, on which file locks are reliable"
        );
    }

    #[test]
    fn a_store_that_refuses_a_write_changes_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("ledger");
        let (specs, mut diagnostics) =
            read_pools(b"{name: one, namespace: n, network: vlan10, interface: eth0, addresses: [10.0.0.0/16]}");
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
            Registry::open(ledger).unwrap()
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

        // A kind that the file does not keep would make one machine two claimants after a restart.
        let of_another_kind = Machine::new("n", "w", "u").of_kind(HolderKind::IpamClaim);
        let error = registry.claim(&Claim { machine: of_another_kind, ..claim(0) }, Timestamp::UNIX_EPOCH).unwrap_err();
        let source = error.source().unwrap().to_string();
        let expected = "n/w (u) is no KubevirtMachine, and a ledger in a file keeps no other kind";
        assert_eq!((error.to_string().as_str(), source.as_str()), ("writing the ledger", expected));

        let error = registry.claim(&Claim { secret: Some("s".to_owned()), ..claim(full + 1) }, Timestamp::UNIX_EPOCH);
        let source = error.unwrap_err().source().unwrap().to_string();
        assert_eq!(source, "a ledger in a file keeps no names of Secrets, and no migrations");
    }
}
