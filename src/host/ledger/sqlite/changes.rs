//! Reads and writes changes in the tables of a ledger.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension, ToSql, Transaction, params};

use super::rows::{
    CONFLICTS, LEASES, MISSING, Octets, POOLS, Table, WAITERS, checksum, claimant, machine, reading, requests,
    source_text, writing,
};
use crate::host::change::{Change, Update, milliseconds};
use crate::host::claim::{Claimant, Lease, Machine};
use crate::host::ledger::LedgerError;

#[derive(Clone, Debug, Default)]
pub(super) struct Networks {
    by_id: BTreeMap<i64, Arc<str>>,
    by_name: BTreeMap<Arc<str>, i64>,
}

/// The differences that one transaction adds to the totals, by the ID of the table.
#[derive(Default)]
pub(super) struct Totals(BTreeMap<i64, Total>);

/// The number of rows, and the sum of their checksums.
#[derive(Default)]
struct Total {
    rows: i64,
    checksums: i64,
}

/// Returns the changes after the change with the number `reported`, and the number of the last change. If the ledger no
/// longer has all of these changes, returns the whole state.
pub(super) fn report(
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

pub(super) fn last_change(transaction: &Transaction<'_>) -> rusqlite::Result<i64> {
    let mut last = transaction.prepare_cached("SELECT coalesce(max(number), 0) FROM changes")?;
    last.query_row([], |row| row.get(0))
}

/// Reads all rows of the tables with checksums, and checks that no row is missing or damaged.
pub(super) fn everything(transaction: &Transaction<'_>, networks: &Networks) -> Result<Vec<Change>, LedgerError> {
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
pub(super) fn record(
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
            // Most leases of a large batch are new. A new lease needs no search for an earlier row.
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

/// Sort key of a change: network and address. `None`, the key of a change without an address, comes first: the change
/// of a pool inserts the row of its network, to which the rows of leases and conflicts refer.
pub(super) fn path(change: &Change) -> Option<(&str, IpAddr)> {
    match change {
        Change::Lease { network, address, .. } | Change::Conflict { network, address, .. } => Some((network, *address)),
        Change::Pool { .. } | Change::Waiter { .. } | Change::Missing { .. } => None,
    }
}

// === impl Totals ===

impl Totals {
    /// Adds a row with this checksum to the totals. Does nothing for `None`.
    pub(super) fn add(&mut self, table: &Table, checksum: Option<i64>) {
        self.count(table, 1, checksum);
    }

    /// Removes a row with this checksum from the totals. Does nothing for `None`.
    pub(super) fn remove(&mut self, table: &Table, checksum: Option<i64>) {
        self.count(table, -1, checksum);
    }

    /// Writes the totals. The database adds them to the totals of earlier transactions.
    pub(super) fn write(self, transaction: &Transaction<'_>) -> Result<(), LedgerError> {
        for (table, Total { rows, checksums }) in self.0 {
            let sql = "UPDATE totals SET rows = rows + ?, checksums = checksums + ? WHERE id = ?";
            let statement = transaction.prepare_cached(sql);
            statement.and_then(|mut statement| statement.execute([rows, checksums, table])).map_err(writing)?;
        }
        Ok(())
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
    pub(super) fn read(connection: &Connection) -> rusqlite::Result<Self> {
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

    pub(super) fn has(&self, name: &str) -> bool {
        self.by_name.contains_key(name)
    }

    pub(super) fn name(&self, id: i64) -> Result<Arc<str>, LedgerError> {
        let unknown = || LedgerError::Damaged(format!("there is no network with the id {id}"));
        self.by_id.get(&id).cloned().ok_or_else(unknown)
    }

    pub(super) fn id(&self, name: &str) -> Result<i64, LedgerError> {
        self.by_name.get(name).copied().ok_or_else(|| LedgerError::UnknownNetwork(name.to_owned()))
    }
}
