//! The ledger in a file that several processes of one host share.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use nix::sys::statfs::statfs;
use rusqlite::config::DbConfig;
use rusqlite::types::{FromSql, FromSqlError, FromSqlResult, ValueRef};
use rusqlite::{Connection, ErrorCode, OpenFlags, OptionalExtension, Row, Transaction, TransactionBehavior, params};

use super::{Ledger, LedgerError, Update};
use crate::host::allocator::Change;
use crate::host::claim::{Claim, Claimant, Conflict, Lease, Machine, Request};
use crate::network::InterfaceName;

/// A ledger in an SQLite database.
///
/// It is bound to the networks for which it was made, since two ledgers for one network would give its addresses twice.
/// A commit is on the disk when it returns (a write-ahead log, synchronised at each commit). The store itself refuses an
/// address that is held, and notes what was changed, so that another process catches up with that alone.
///
/// The file and the two that stand beside it (`-wal`, `-shm`) belong together, and on a disk of this host: its locks and
/// its shared memory do not hold between hosts. They stay when nobody has the ledger open, since who may only read could not
/// make them; all that was committed is in the file itself then.
#[derive(Debug)]
pub struct SqliteLedger {
    connection: Connection,
    networks: Networks,
    // The last change that was told. `None`: nothing was.
    told: Option<i64>,
}

/// Why a file cannot be the ledger.
#[derive(Debug)]
pub enum OpenError {
    /// There is none.
    Absent(PathBuf),
    /// It is on a network file system, of this kind.
    NetworkFileSystem(PathBuf, &'static str),
    /// It is a file or a database of something else, or an empty one.
    NotALedger(PathBuf),
    /// Its write-ahead log is not there, or may not be read, and cannot be made.
    NoLog(PathBuf),
    /// A later version of the program made it.
    NewerSchema {
        /// The file.
        path: PathBuf,
        /// The version of its schema.
        found: i64,
        /// The latest version that this program knows.
        known: i64,
    },
    /// It was made for other networks.
    OtherNetworks {
        /// The file.
        path: PathBuf,
        /// For which it was made, or has been since.
        made_for: Vec<String>,
        /// For which it was opened, too.
        lacks: Vec<String>,
    },
    /// The file or the database failed.
    Store {
        /// The file.
        path: PathBuf,
        /// What was said.
        source: Box<dyn Error + Send + Sync>,
    },
}

#[derive(Debug, Default)]
struct Networks {
    by_id: BTreeMap<i64, Arc<str>>,
    by_name: BTreeMap<Arc<str>, i64>,
}

/// What is to be done with a ledger.
#[derive(Clone, Copy, Eq, PartialEq)]
enum Access {
    Read,
    Write,
    /// As [`Access::Write`], and it need not be there.
    Create,
}

struct SqliteTransaction<'a> {
    transaction: Transaction<'a>,
    networks: &'a mut Networks,
    told: &'a mut Option<i64>,
    has_told: bool,
}

/// An address as bytes in network order.
struct Octets(IpAddr);

/// `glpg`: what the file is, for `file` and for us.
const APPLICATION_ID: i64 = 0x676c_7067;

/// Each makes the next version of the schema from the one before.
const MIGRATIONS: [&str; 1] = [include_str!("schema-1.sql")];

/// So many changes are kept for processes that are behind; who is further behind reads everything.
const CHANGES_KEPT: i64 = 10_000;

/// File systems whose locks or shared memory do not hold between the hosts that mount them, by the magic number that
/// `statfs` gives (linux/magic.h; GPFS and Lustre from their own headers). FUSE tells nothing of what is behind it, and sshfs,
/// GlusterFS and virtiofs are.
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
    /// Opens the ledger at `path`, which must be there and be for all of `networks`.
    ///
    /// # Errors
    ///
    /// See [`OpenError`].
    pub fn open(path: &Path, networks: &[&str]) -> Result<Self, OpenError> {
        Self::connect(path, networks, Access::Write)
    }

    /// Opens the ledger at `path`, which must be there and be for all of `networks`, for who may read its files and nothing
    /// else. To write to it is then an error.
    ///
    /// # Errors
    ///
    /// See [`OpenError`].
    pub fn open_read_only(path: &Path, networks: &[&str]) -> Result<Self, OpenError> {
        Self::connect(path, networks, Access::Read)
    }

    /// Opens the ledger at `path`, or makes it for `networks` if there is none.
    ///
    /// # Errors
    ///
    /// See [`OpenError`].
    pub fn create(path: &Path, networks: &[&str]) -> Result<Self, OpenError> {
        Self::connect(path, networks, Access::Create)
    }

    /// Makes it a ledger for one more network. That is for who means it: a network that is misspelt is another one, on which
    /// addresses would be given a second time.
    ///
    /// # Errors
    ///
    /// The store cannot be written.
    pub fn add_network(&mut self, network: &str) -> Result<(), LedgerError> {
        let sql = "INSERT INTO networks (name) VALUES (?) ON CONFLICT DO NOTHING";
        self.connection.execute(sql, [network]).map_err(writing)?;
        self.networks = Networks::read(&self.connection).map_err(reading)?;
        Ok(())
    }

    /// The networks for which it is.
    pub fn networks(&self) -> impl Iterator<Item = &str> {
        self.networks.by_name.keys().map(|name| &**name)
    }

    fn connect(path: &Path, networks: &[&str], access: Access) -> Result<Self, OpenError> {
        if access != Access::Create && !path.try_exists().unwrap_or(true) {
            return Err(OpenError::Absent(path.to_owned()));
        }
        if let Some(kind) = network_file_system(path)? {
            return Err(OpenError::NetworkFileSystem(path.to_owned(), kind));
        }
        // To open a pipe would wait for somebody to write to it.
        if path.metadata().is_ok_and(|metadata| !metadata.is_file()) {
            return Err(OpenError::NotALedger(path.to_owned()));
        }
        let store = |source| OpenError::Store { path: path.to_owned(), source: said(source) };
        let flags = match access {
            Access::Read => OpenFlags::SQLITE_OPEN_READ_ONLY,
            Access::Write => OpenFlags::SQLITE_OPEN_READ_WRITE,
            Access::Create => OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE,
        };
        let flags = flags | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        // To SQLite `:memory:` is no file, and `file:` begins a URI.
        let mut connection = Connection::open_with_flags(Path::new(".").join(path), flags).map_err(store)?;
        connection.busy_handler(Some(wait)).map_err(store)?;
        // Nothing is written to a database that is somebody else's.
        let version = version(&connection, path, access == Access::Create)?;
        if access != Access::Read {
            Self::prepare(&mut connection, path, networks, access)?;
        } else if version < MIGRATIONS.len() {
            let known = MIGRATIONS.len();
            let error = format!("schema version {version}, expected {known}: whatever writes brings it up to date");
            return Err(OpenError::Store { path: path.to_owned(), source: error.into() });
        }
        connection.execute_batch("PRAGMA trusted_schema = OFF").map_err(store)?;
        let known = Networks::read(&connection).map_err(store)?;
        let lacks: BTreeSet<&str> = networks.iter().copied().filter(|it| !known.by_name.contains_key(*it)).collect();
        if !lacks.is_empty() {
            return Err(OpenError::OtherNetworks {
                path: path.to_owned(),
                made_for: known.by_name.keys().map(|name| name.to_string()).collect(),
                lacks: lacks.into_iter().map(str::to_owned).collect(),
            });
        }
        connection.set_prepared_statement_cache_capacity(32);
        Ok(Self { connection, networks: known, told: None })
    }

    /// Makes it a database that may be written to, with the schema of this version.
    fn prepare(connection: &mut Connection, path: &Path, networks: &[&str], access: Access) -> Result<(), OpenError> {
        let store = |source| OpenError::Store { path: path.to_owned(), source: said(source) };
        // SQLite would move the log into the file and then remove it. We do the first ourselves.
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true).map_err(store)?;
        // Of several processes that make the ledger one does, and here SQLite does not wait for it.
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
        let migration = connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(store)?;
        let version = version(&migration, path, access == Access::Create)?;
        if version < MIGRATIONS.len() {
            for sql in &MIGRATIONS[version..] {
                migration.execute_batch(sql).map_err(store)?;
            }
            if version == 0 {
                for network in networks {
                    let sql = "INSERT INTO networks (name) VALUES (?) ON CONFLICT DO NOTHING";
                    migration.execute(sql, [network]).map_err(store)?;
                }
            }
            migration.pragma_update(None, "application_id", APPLICATION_ID).map_err(store)?;
            migration.pragma_update(None, "user_version", MIGRATIONS.len() as i64).map_err(store)?;
            migration.commit().map_err(store)?;
        }
        Ok(())
    }
}

/// Moves the log into the file, which is then a whole copy of the ledger, and leaves the log empty. Whoever still has it open
/// does so later, and so does the next one where this fails.
impl Drop for SqliteLedger {
    fn drop(&mut self) {
        let _ = self.connection.busy_handler(None);
        let _ = self.connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()));
    }
}

impl Ledger for SqliteLedger {
    fn catch_up(&mut self) -> Result<Update, LedgerError> {
        let transaction = self.connection.transaction().map_err(reading)?;
        let (update, told) = tell(&transaction, &mut self.networks, self.told)?;
        self.told = Some(told);
        Ok(update)
    }

    fn begin(&mut self) -> Result<Box<dyn super::Transaction + '_>, LedgerError> {
        let immediate = TransactionBehavior::Immediate;
        let transaction = self.connection.transaction_with_behavior(immediate).map_err(writing)?;
        let (networks, told) = (&mut self.networks, &mut self.told);
        Ok(Box::new(SqliteTransaction { transaction, networks, told, has_told: false }))
    }
}

impl super::Transaction for SqliteTransaction<'_> {
    fn catch_up(&mut self) -> Result<Update, LedgerError> {
        let (update, told) = tell(&self.transaction, self.networks, *self.told)?;
        *self.told = Some(told);
        self.has_told = true;
        Ok(update)
    }

    fn commit(self: Box<Self>, changes: &[Change]) -> Result<(), LedgerError> {
        // Neighbours are written together, which is what a batch costs. What is about one thing stays in its order.
        let mut changes: Vec<&Change> = changes.iter().collect();
        changes.sort_by(|a, b| place(a).cmp(&place(b)));
        for change in changes {
            record(&self.transaction, self.networks, change)?;
        }
        let last = last_change(&self.transaction).map_err(writing)?;
        let old = "DELETE FROM changes WHERE number <= ?";
        let mut old = self.transaction.prepare_cached(old).map_err(writing)?;
        old.execute([last - CHANGES_KEPT]).map_err(writing)?;
        drop(old);
        let Self { transaction, told, has_told, .. } = *self;
        transaction.commit().map_err(writing)?;
        // What this process did is no news to it, but what others did before that and it has not heard is.
        if has_told {
            *told = Some(last);
        }
        Ok(())
    }
}

/// Waits for another process, a millisecond at a time: a commit takes about as long. Half a minute is more than any write
/// of ours takes, so that its owner hangs.
fn wait(times: i32) -> bool {
    std::thread::sleep(Duration::from_millis(1));
    times < 30_000
}

fn reading(source: rusqlite::Error) -> LedgerError {
    match source {
        rusqlite::Error::FromSqlConversionFailure(..)
        | rusqlite::Error::IntegralValueOutOfRange(..)
        | rusqlite::Error::InvalidColumnType(..) => LedgerError::Damaged(source.to_string()),
        source => LedgerError::Store { doing: "reading the ledger", source: said(source) },
    }
}

fn writing(source: rusqlite::Error) -> LedgerError {
    LedgerError::Store { doing: "writing the ledger", source: said(source) }
}

/// What SQLite says. Its code, of which that is the meaning, would say it once more.
fn said(error: rusqlite::Error) -> Box<dyn Error + Send + Sync> {
    match error {
        rusqlite::Error::SqliteFailure(_, Some(message)) => message.into(),
        error => Box::new(error),
    }
}

/// The kind of network file system on which a file is, or will be.
fn network_file_system(path: &Path) -> Result<Option<&'static str>, OpenError> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let at = if path.try_exists().unwrap_or(false) { path } else { directory };
    let magic = match statfs(at) {
        Ok(statfs) => statfs.filesystem_type().0 as u32,
        Err(error) => return Err(OpenError::Store { path: path.to_owned(), source: Box::new(error) }),
    };
    Ok(kind_of(magic))
}

fn kind_of(magic: u32) -> Option<&'static str> {
    NETWORK_FILE_SYSTEMS.iter().find(|(known, _)| *known == magic).map(|(_, kind)| *kind)
}

/// The version of the schema: 0 if the database is empty and may be.
fn version(connection: &Connection, path: &Path, may_be_new: bool) -> Result<usize, OpenError> {
    let sql = "SELECT application_id, user_version, (SELECT count(*) FROM sqlite_schema)
               FROM pragma_application_id, pragma_user_version";
    let read = connection.query_row(sql, [], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)));
    let (id, found, tables): (i64, i64, i64) = read.map_err(|source| match source.sqlite_error_code() {
        Some(ErrorCode::NotADatabase) => OpenError::NotALedger(path.to_owned()),
        // Nothing else is opened, or would be made, to read that.
        Some(ErrorCode::CannotOpen | ErrorCode::ReadOnly) => OpenError::NoLog(path.to_owned()),
        _ => OpenError::Store { path: path.to_owned(), source: said(source) },
    })?;
    let known = MIGRATIONS.len() as i64;
    match (id, usize::try_from(found)) {
        (0, Ok(0)) if tables == 0 && may_be_new => Ok(0),
        (APPLICATION_ID, Ok(_)) if found > known => Err(OpenError::NewerSchema { path: path.to_owned(), found, known }),
        (APPLICATION_ID, Ok(found @ 1..)) => Ok(found),
        _ => Err(OpenError::NotALedger(path.to_owned())),
    }
}

/// What was changed since the change with the number `told`, and the number of the last one.
fn tell(
    transaction: &Transaction<'_>,
    networks: &mut Networks,
    told: Option<i64>,
) -> Result<(Update, i64), LedgerError> {
    let last = last_change(transaction).map_err(reading)?;
    if told == Some(last) {
        return Ok((Update::Delta(Vec::new()), last));
    }
    let first: Option<i64> =
        transaction.query_row("SELECT min(number) FROM changes", [], |row| row.get(0)).map_err(reading)?;
    // The numbers rise, so a lower one means that the file was put back from a copy.
    let since = told.filter(|told| *told < last && first.is_some_and(|first| first <= told + 1));
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

const LEASES: &str =
    "SELECT network, address, prefix, pool, namespace, name, uid, interface, since, released, reuse_after FROM leases";
const CONFLICTS: &str = "SELECT network, address, namespace, name, uid, interface, source FROM conflicts";
const WAITERS: &str = "SELECT namespace, name, uid, created, sticky, pools FROM waiters";
const MISSING: &str = "SELECT namespace, name, uid, since FROM missing";

fn everything(transaction: &Transaction<'_>, networks: &Networks) -> Result<Vec<Change>, LedgerError> {
    let mut changes = Vec::new();
    let mut statement = transaction.prepare_cached(LEASES).map_err(reading)?;
    let mut rows = statement.query([]).map_err(reading)?;
    while let Some(row) = rows.next().map_err(reading)? {
        let (network, address, lease) = lease(row).map_err(reading)?;
        changes.push(Change::Lease { network: networks.name(network)?, address, lease: Some(lease) });
    }
    let mut conflicts_of: BTreeMap<(i64, IpAddr), Vec<Conflict>> = BTreeMap::new();
    let mut statement = transaction.prepare_cached(CONFLICTS).map_err(reading)?;
    let mut rows = statement.query([]).map_err(reading)?;
    while let Some(row) = rows.next().map_err(reading)? {
        let (network, address, conflict) = conflict(row).map_err(reading)?;
        conflicts_of.entry((network, address)).or_default().push(conflict);
    }
    for ((network, address), conflicts) in conflicts_of {
        changes.push(Change::Conflicts { network: networks.name(network)?, address, conflicts });
    }
    let mut statement = transaction.prepare_cached(WAITERS).map_err(reading)?;
    let mut rows = statement.query([]).map_err(reading)?;
    while let Some(row) = rows.next().map_err(reading)? {
        let claim = waiter(row).map_err(reading)?;
        changes.push(Change::Waiter { machine: claim.machine.clone(), claim: Some(Arc::new(claim)) });
    }
    let mut statement = transaction.prepare_cached(MISSING).map_err(reading)?;
    let mut rows = statement.query([]).map_err(reading)?;
    while let Some(row) = rows.next().map_err(reading)? {
        let (machine, since) = missing(row).map_err(reading)?;
        changes.push(Change::Missing { machine, since: Some(since) });
    }
    Ok(changes)
}

/// How the things are now that were changed since a change.
fn changes_since(transaction: &Transaction<'_>, networks: &Networks, since: i64) -> Result<Vec<Change>, LedgerError> {
    let mut changes = Vec::new();
    let sql = "SELECT DISTINCT network, address FROM changes WHERE number > ? AND address IS NOT NULL";
    let mut statement = transaction.prepare_cached(sql).map_err(reading)?;
    let mut leases =
        transaction.prepare_cached(&format!("{LEASES} WHERE network = ? AND address = ?")).map_err(reading)?;
    let mut conflicts =
        transaction.prepare_cached(&format!("{CONFLICTS} WHERE network = ? AND address = ?")).map_err(reading)?;
    let mut rows = statement.query([since]).map_err(reading)?;
    while let Some(row) = rows.next().map_err(reading)? {
        let id: i64 = row.get(0).map_err(reading)?;
        let Octets(address) = row.get(1).map_err(reading)?;
        let network = networks.name(id)?;
        let key = params![id, Octets(address)];
        let row = leases.query_row(key, lease).optional().map_err(reading)?;
        let lease = row.map(|(_, _, lease)| lease);
        changes.push(Change::Lease { network: Arc::clone(&network), address, lease });
        let rows = conflicts.query_map(key, conflict).map_err(reading)?;
        let conflicts: rusqlite::Result<_> = rows.map(|row| row.map(|(_, _, conflict)| conflict)).collect();
        changes.push(Change::Conflicts { network, address, conflicts: conflicts.map_err(reading)? });
    }
    let sql = "SELECT DISTINCT namespace, name, uid FROM changes WHERE number > ? AND uid IS NOT NULL";
    let mut statement = transaction.prepare_cached(sql).map_err(reading)?;
    let who = "WHERE namespace = ? AND name = ? AND uid = ?";
    let mut waiters = transaction.prepare_cached(&format!("{WAITERS} {who}")).map_err(reading)?;
    let mut are_missing = transaction.prepare_cached(&format!("{MISSING} {who}")).map_err(reading)?;
    let mut rows = statement.query([since]).map_err(reading)?;
    while let Some(row) = rows.next().map_err(reading)? {
        let machine = machine(row, 0).map_err(reading)?;
        let key = params![machine.namespace, machine.name, machine.uid];
        let claim = waiters.query_row(key, waiter).optional().map_err(reading)?.map(Arc::new);
        let since = are_missing.query_row(key, missing).optional().map_err(reading)?.map(|(_, since)| since);
        changes.push(Change::Waiter { machine: machine.clone(), claim });
        changes.push(Change::Missing { machine, since });
    }
    Ok(changes)
}

fn record(transaction: &Transaction<'_>, networks: &Networks, change: &Change) -> Result<(), LedgerError> {
    let run = |sql: &str, values: &[&dyn rusqlite::ToSql]| {
        transaction.prepare_cached(sql).and_then(|mut statement| statement.execute(values)).map_err(writing)
    };
    match change {
        Change::Lease { network, address, lease: None } => {
            let id = networks.id(network)?;
            run("DELETE FROM leases WHERE network = ? AND address = ?", params![id, Octets(*address)])?;
        }
        Change::Lease { network, address, lease: Some(lease) } => {
            let sql = "INSERT INTO leases
                           (network, address, prefix, pool, namespace, name, uid, interface, since, released, reuse_after)
                       VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
                       ON CONFLICT (network, address) DO UPDATE SET
                           (prefix, pool, namespace, name, uid, interface, since, released, reuse_after)
                           = (excluded.prefix, excluded.pool, excluded.namespace, excluded.name, excluded.uid,
                              excluded.interface, excluded.since, excluded.released, excluded.reuse_after)
                       WHERE released IS NOT NULL OR (namespace, name, uid, interface)
                           = (excluded.namespace, excluded.name, excluded.uid, excluded.interface)";
            let Claimant { machine, interface } = &*lease.claimant;
            let Machine { namespace, name, uid } = machine;
            let (id, released, rests) = (networks.id(network)?, lease.released.map(time), lease.reuse_after.map(time));
            let (interface, since) = (interface.as_str(), time(lease.since));
            let Lease { prefix, pool, .. } = lease;
            let values =
                params![id, Octets(*address), prefix, pool, namespace, name, uid, interface, since, released, rests];
            if run(sql, values)? == 0 {
                return Err(LedgerError::Held { network: network.to_string(), address: *address });
            }
        }
        Change::Conflicts { network, address, conflicts } => {
            let id = networks.id(network)?;
            run("DELETE FROM conflicts WHERE network = ? AND address = ?", params![id, Octets(*address)])?;
            for Conflict { claimant: Claimant { machine, interface }, source } in conflicts {
                let Machine { namespace, name, uid } = machine;
                let interface = interface.as_str();
                let sql = "INSERT INTO conflicts VALUES (?, ?, ?, ?, ?, ?, ?)";
                run(sql, params![id, Octets(*address), namespace, name, uid, interface, source])?;
            }
        }
        Change::Waiter { machine: Machine { namespace, name, uid }, claim } => {
            let sql = "DELETE FROM waiters WHERE namespace = ? AND name = ? AND uid = ?";
            run(sql, params![namespace, name, uid])?;
            if let Some(claim) = claim {
                let pools: Vec<&str> = claim.requests.iter().map(|request| request.pool.as_str()).collect();
                let (created, pools) = (time(claim.created), serde_json::Value::from(pools).to_string());
                let sql = "INSERT INTO waiters VALUES (?, ?, ?, ?, ?, ?)";
                run(sql, params![namespace, name, uid, created, claim.sticky, pools])?;
            }
        }
        Change::Missing { machine: Machine { namespace, name, uid }, since } => {
            let sql = "DELETE FROM missing WHERE namespace = ? AND name = ? AND uid = ?";
            run(sql, params![namespace, name, uid])?;
            if let Some(since) = since {
                run("INSERT INTO missing VALUES (?, ?, ?, ?)", params![namespace, name, uid, time(*since)])?;
            }
        }
    }
    Ok(())
}

fn place(change: &Change) -> Option<(&str, IpAddr)> {
    match change {
        Change::Lease { network, address, .. } | Change::Conflicts { network, address, .. } => {
            Some((network, *address))
        }
        Change::Waiter { .. } | Change::Missing { .. } => None,
    }
}

/// SQLite's integers are signed.
fn time(milliseconds: u64) -> i64 {
    i64::try_from(milliseconds).unwrap_or(i64::MAX)
}

fn lease(row: &Row<'_>) -> rusqlite::Result<(i64, IpAddr, Lease)> {
    let (id, Octets(address)) = (row.get(0)?, row.get(1)?);
    let claimant = Claimant { machine: machine(row, 4)?, interface: row.get::<_, Interface>(7)?.0 };
    let (prefix, pool, since, released) = (row.get(2)?, row.get(3)?, row.get(8)?, row.get(9)?);
    let reuse_after = row.get(10)?;
    Ok((id, address, Lease { claimant: Arc::new(claimant), pool, prefix, since, released, reuse_after }))
}

fn conflict(row: &Row<'_>) -> rusqlite::Result<(i64, IpAddr, Conflict)> {
    let (id, Octets(address)) = (row.get(0)?, row.get(1)?);
    let claimant = Claimant { machine: machine(row, 2)?, interface: row.get::<_, Interface>(5)?.0 };
    Ok((id, address, Conflict { claimant, source: row.get(6)? }))
}

fn waiter(row: &Row<'_>) -> rusqlite::Result<Claim> {
    let pools = row.get::<_, Names>(5)?.0.into_iter();
    let requests = pools.map(|pool| Request { pool, addresses: Vec::new() }).collect();
    Ok(Claim { machine: machine(row, 0)?, created: row.get(3)?, requests, sticky: row.get(4)? })
}

fn missing(row: &Row<'_>) -> rusqlite::Result<(Machine, u64)> {
    Ok((machine(row, 0)?, row.get(3)?))
}

fn machine(row: &Row<'_>, at: usize) -> rusqlite::Result<Machine> {
    Ok(Machine { namespace: row.get(at)?, name: row.get(at + 1)?, uid: row.get(at + 2)? })
}

struct Interface(InterfaceName);

struct Names(Vec<String>);

impl FromSql for Interface {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        value.as_str()?.parse().map(Self).map_err(|_| FromSqlError::InvalidType)
    }
}

impl FromSql for Names {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        serde_json::from_str(value.as_str()?).map(Self).map_err(|error| FromSqlError::Other(Box::new(error)))
    }
}

impl FromSql for Octets {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        let bytes = value.as_blob()?;
        if let Ok(octets) = <[u8; 4]>::try_from(bytes) {
            Ok(Self(IpAddr::from(octets)))
        } else if let Ok(octets) = <[u8; 16]>::try_from(bytes) {
            Ok(Self(IpAddr::from(octets)))
        } else {
            Err(FromSqlError::InvalidBlobSize { expected_size: 16, blob_size: bytes.len() })
        }
    }
}

impl rusqlite::ToSql for Octets {
    fn to_sql(&self) -> rusqlite::Result<rusqlite::types::ToSqlOutput<'_>> {
        Ok(match self.0 {
            IpAddr::V4(address) => address.octets().to_vec().into(),
            IpAddr::V6(address) => address.octets().to_vec().into(),
        })
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
            Self::NetworkFileSystem(path, kind) => write!(
                f,
                "{}: on a network file system ({kind}), expected a disk of this host, whose locks hold",
                path.display()
            ),
            Self::NotALedger(path) => write!(f, "{}: not a ledger", path.display()),
            Self::NoLog(path) => {
                let path = path.display();
                write!(
                    f,
                    "{path}: no write-ahead log, expected {path}-wal and {path}-shm, or a directory to make them in"
                )
            }
            Self::NewerSchema { path, found, known } => {
                write!(
                    f,
                    "{}: schema version {found}, expected at most {known}: made by a later version",
                    path.display()
                )
            }
            Self::OtherNetworks { path, made_for, lacks } => {
                let [made_for, lacks] = [made_for, lacks].map(|names| names.join(", "));
                write!(
                    f,
                    "{}: a ledger for {made_for}, not for {lacks}, expected pools of its networks",
                    path.display()
                )
            }
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
    use super::*;
    use crate::host::pool::{Pool, TemplateFacts, read_pools};
    use crate::host::registry::Registry;

    #[test]
    fn network_file_systems_are_known_by_their_magic_numbers() {
        let kinds = [0x6969, 0xff53_4d42, 0xfe53_4d42, 0x0102_1997, 0x00c3_6400, 0x6573_5546].map(kind_of);
        assert_eq!(kinds, [Some("NFS"), Some("CIFS"), Some("SMB"), Some("9p"), Some("Ceph"), Some("FUSE")]);
        // ext4, XFS, Btrfs, tmpfs and overlayfs.
        let kinds = [0xef53, 0x5846_5342, 0x9123_683e, 0x0102_1994, 0x794c_7630].map(kind_of);
        assert_eq!(kinds, [None; 5]);
    }

    #[test]
    fn a_ledger_on_a_network_file_system_is_refused_with_the_reason() {
        assert_eq!(
            OpenError::NetworkFileSystem(PathBuf::from("/mnt/ledger"), "NFS").to_string(),
            "/mnt/ledger: on a network file system (NFS), expected a disk of this host, whose locks hold"
        );
    }

    #[test]
    fn a_full_store_changes_nothing_and_the_claim_may_be_made_again() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("ledger");
        let (specs, mut findings) =
            read_pools(b"{name: one, namespace: n, network: vlan10, interface: eth0, addresses: [10.0.0.0/16]}");
        let pool = Pool::new(&specs[0], &TemplateFacts::default(), &mut findings).unwrap();
        let mut registry = Registry::open(SqliteLedger::create(&path, &["n/vlan10"]).unwrap(), [pool]).unwrap();
        let claim = |at: usize| Claim {
            machine: Machine { namespace: "n".into(), name: at.to_string(), uid: "x".repeat(1000) },
            created: 0,
            requests: vec![Request { pool: "n/one".into(), addresses: Vec::new() }],
            sticky: false,
        };
        let pages: i64 = registry.ledger_mut().connection.query_row("PRAGMA page_count", [], |row| row.get(0)).unwrap();
        let limit = |registry: &mut Registry<SqliteLedger>, pages: i64| {
            let pragma = format!("PRAGMA max_page_count = {pages}");
            let _: i64 = registry.ledger_mut().connection.query_row(&pragma, [], |row| row.get(0)).unwrap();
        };
        limit(&mut registry, pages + 2);
        let full = (0..).find(|at| registry.claim(&claim(*at), 1).is_err()).unwrap();
        let error = registry.claim(&claim(full), 1).unwrap_err();
        let source = error.source().unwrap().to_string();
        assert_eq!((error.to_string().as_str(), source.as_str()), ("writing the ledger", "database or disk is full"));
        assert_eq!(registry.allocator().unwrap().leases().count(), full);
        limit(&mut registry, pages + 1000);
        let given = registry.claim(&claim(full), 1).unwrap();
        assert_eq!(given[0].addresses[0].to_string(), format!("10.0.0.{}/16", full + 1));
    }
}
