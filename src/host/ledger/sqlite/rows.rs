//! Rows of the ledger's tables: reading and writing them, each with its checksum.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use jiff::Timestamp;
use rusqlite::types::{FromSql, FromSqlError, FromSqlResult, ValueRef};
use rusqlite::{ErrorCode, Row, ToSql};
use serde::{Deserialize, Serialize};

use crate::host::change::{Change, milliseconds};
use crate::host::claim::{Claim, Claimant, Lease, Machine, Request};
use crate::host::ledger::LedgerError;
use crate::host::may_record::State;
use crate::host::pool::Pool;
use crate::network::{Family, InterfaceName};

/// A table with checksums.
pub(super) struct Table {
    /// Key in the table of totals.
    pub(super) id: i64,
    pub(super) name: &'static str,
    /// Columns in the order in which the functions here read them.
    pub(super) columns: &'static str,
}

pub(super) const POOLS: Table = Table { id: 1, name: "pools", columns: "checksum, name, specification" };
pub(super) const LEASES: Table = Table {
    id: 2,
    name: "leases",
    columns: "checksum, network, address, namespace, name, uid, interface, prefix, pool, since, released, reuse_after",
};
pub(super) const CONFLICTS: Table =
    Table { id: 3, name: "conflicts", columns: "checksum, network, address, namespace, name, uid, interface, source" };
pub(super) const WAITERS: Table =
    Table { id: 4, name: "waiters", columns: "checksum, namespace, name, uid, created, sticky, requests" };
pub(super) const MISSING: Table = Table { id: 5, name: "missing", columns: "checksum, namespace, name, uid, since" };

/// A CRC-32 of the values of a row. It detects every single flipped bit, and misses larger damage in one of 2^32 cases.
struct Checksum(crc32fast::Hasher);

/// A request of a waiting claim, as the ledger stores it.
#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct StoredRequest {
    pool: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    overflow: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    family: Option<u8>,
}

/// An address as bytes in network order.
pub(super) struct Octets(pub(super) IpAddr);

struct Interface(InterfaceName);

/// A stored time.
pub(super) struct Time(pub(super) Timestamp);

// === impl Table ===

impl Table {
    pub(super) fn select(&self) -> String {
        format!("SELECT {} FROM {}", self.columns, self.name)
    }

    /// Reads a row, and returns its change and its checksum. `network` returns the name of the network with an id.
    pub(super) fn read(
        &self,
        row: &Row<'_>,
        network: &dyn Fn(i64) -> Result<Arc<str>, LedgerError>,
    ) -> Result<(Change, i64), LedgerError> {
        let found: i64 = row.get(0).map_err(reading)?;
        let change = match self.id {
            1 => pool(row),
            2 => lease(row, network(row.get(1).map_err(reading)?)?),
            3 => conflict(row, network(row.get(1).map_err(reading)?)?),
            4 => waiter(row),
            _ => missing(row),
        };
        let change = change.map_err(reading)?;
        if checksum(&change) == Some(found) {
            Ok((change, found))
        } else {
            Err(LedgerError::Damaged(format!("a row of table {} does not match its checksum", self.name)))
        }
    }
}

// === impl Checksum ===

impl Checksum {
    fn of(table: &Table) -> Self {
        Self(crc32fast::Hasher::new()).text(table.name)
    }

    fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.update(&(bytes.len() as u64).to_le_bytes());
        self.0.update(bytes);
        self
    }

    fn text(self, text: &str) -> Self {
        self.bytes(text.as_bytes())
    }

    fn number(mut self, number: Option<i64>) -> Self {
        self.0.update(&[u8::from(number.is_some())]);
        self.0.update(&number.unwrap_or_default().to_le_bytes());
        self
    }

    fn address(self, address: IpAddr) -> Self {
        match address {
            IpAddr::V4(address) => self.bytes(&address.octets()),
            IpAddr::V6(address) => self.bytes(&address.octets()),
        }
    }

    fn machine(self, machine: &Machine) -> Self {
        self.text(&machine.namespace).text(&machine.name).text(&machine.uid)
    }

    fn end(self) -> i64 {
        i64::from(self.0.finalize())
    }
}

/// The checksum of the row that stores a change. `None` if the change removes the row.
pub(super) fn checksum(change: &Change) -> Option<i64> {
    Some(match change {
        Change::Pool { name, pool } => Checksum::of(&POOLS).text(name).text(&pool.as_ref()?.to_stored()).end(),
        Change::Lease { network, address, lease } => {
            let Lease { claimant, pool, prefix, since, released, reuse_after, .. } = lease.as_ref()?;
            let row = Checksum::of(&LEASES).text(network).address(*address).machine(&claimant.machine);
            let row = row.text(claimant.interface.as_str()).number(Some(i64::from(*prefix))).text(pool);
            row.number(Some(milliseconds(*since)))
                .number(released.map(milliseconds))
                .number(reuse_after.map(milliseconds))
                .end()
        }
        Change::Conflict { network, address, claimant, record } => {
            let row = Checksum::of(&CONFLICTS).text(network).address(*address).machine(&claimant.machine);
            row.text(claimant.interface.as_str()).text(&source_text(record.as_ref()?)).end()
        }
        Change::Waiter { machine, claim } => {
            let claim = claim.as_ref()?;
            let row = Checksum::of(&WAITERS).machine(machine).number(Some(milliseconds(claim.created)));
            row.number(Some(i64::from(claim.sticky))).text(&requests(claim)).end()
        }
        Change::Missing { machine, since } => {
            Checksum::of(&MISSING).machine(machine).number(Some(milliseconds((*since)?))).end()
        }
    })
}

/// The stored form of a record: the state of the address, then the source. A mismatch is stored as the source alone, as
/// in ledgers of earlier versions.
pub(super) fn source_text((state, source): &(State, Arc<str>)) -> Cow<'_, str> {
    match state.stored() {
        None => Cow::Borrowed(source),
        Some(word) => Cow::Owned(format!("{word}: {source}")),
    }
}

fn source(text: &str) -> (State, Arc<str>) {
    let parts = text.split_once(": ").and_then(|(word, source)| Some((State::of_stored(word)?, source)));
    let (state, source) = parts.unwrap_or((State::Mismatch, text));
    (state, source.into())
}

/// The requests of a claim as JSON.
pub(super) fn requests(claim: &Claim) -> String {
    let family = |family| if family == Family::Ipv4 { 4 } else { 6 };
    let stored = claim.requests.iter();
    let stored = stored.map(|Request { pool, overflow, family: of, .. }| StoredRequest {
        pool: pool.clone(),
        overflow: overflow.clone(),
        family: of.map(family),
    });
    serde_json::to_string(&stored.collect::<Vec<_>>()).unwrap_or_default()
}

fn pool(row: &Row<'_>) -> rusqlite::Result<Change> {
    let text: String = row.get(2)?;
    let pool = Pool::from_stored(&text).filter(|pool| pool.to_stored() == text);
    let pool = pool.ok_or_else(|| invalid(2, "no specification of a pool"))?;
    Ok(Change::Pool { name: row.get(1)?, pool: Some(Arc::new(pool)) })
}

fn lease(row: &Row<'_>, network: Arc<str>) -> rusqlite::Result<Change> {
    let Octets(address) = row.get(2)?;
    let (claimant, prefix, pool) = (Arc::new(claimant(row, 3)?), row.get(7)?, row.get(8)?);
    let Time(since) = row.get(9)?;
    let [released, reuse_after] = [row.get(10)?, row.get(11)?].map(|time: Option<Time>| time.map(|Time(time)| time));
    let lease =
        Lease { claimant, pool, prefix, since, released, reuse_after, secrets: BTreeSet::new(), migrated: None };
    Ok(Change::Lease { network, address, lease: Some(lease) })
}

fn conflict(row: &Row<'_>, network: Arc<str>) -> rusqlite::Result<Change> {
    let Octets(address) = row.get(2)?;
    let (claimant, text): (_, String) = (Arc::new(claimant(row, 3)?), row.get(7)?);
    Ok(Change::Conflict { network, address, claimant, record: Some(source(&text)) })
}

fn waiter(row: &Row<'_>) -> rusqlite::Result<Change> {
    let (machine, text): (_, String) = (machine(row, 1)?, row.get(6)?);
    let stored: Vec<StoredRequest> = serde_json::from_str(&text).map_err(|error| invalid(6, error))?;
    let mut requests = Vec::new();
    for StoredRequest { pool, overflow, family } in stored {
        let family = match family {
            None => None,
            Some(4) => Some(Family::Ipv4),
            Some(6) => Some(Family::Ipv6),
            Some(_) => return Err(invalid(6, "neither family 4 nor 6")),
        };
        requests.push(Request { overflow, family, ..Request::of(&pool) });
    }
    let Time(created) = row.get(4)?;
    let claim = Claim { machine: machine.clone(), created, requests, sticky: row.get(5)?, secret: None };
    Ok(Change::Waiter { machine, claim: Some(Arc::new(claim)) })
}

fn missing(row: &Row<'_>) -> rusqlite::Result<Change> {
    let Time(since) = row.get(4)?;
    Ok(Change::Missing { machine: machine(row, 1)?, since: Some(since) })
}

pub(super) fn claimant(row: &Row<'_>, at: usize) -> rusqlite::Result<Claimant> {
    Ok(Claimant { machine: machine(row, at)?, interface: row.get::<_, Interface>(at + 3)?.0 })
}

pub(super) fn machine(row: &Row<'_>, at: usize) -> rusqlite::Result<Machine> {
    let (namespace, name, uid): (String, String, String) = (row.get(at)?, row.get(at + 1)?, row.get(at + 2)?);
    Ok(Machine::new(namespace, name, uid))
}

pub(super) fn writing(source: rusqlite::Error) -> LedgerError {
    failed("writing the ledger", source)
}

pub(super) fn reading(source: rusqlite::Error) -> LedgerError {
    match source {
        rusqlite::Error::FromSqlConversionFailure(..)
        | rusqlite::Error::IntegralValueOutOfRange(..)
        | rusqlite::Error::InvalidColumnType(..) => LedgerError::Damaged(source.to_string()),
        source => failed("reading the ledger", source),
    }
}

fn failed(doing: &'static str, source: rusqlite::Error) -> LedgerError {
    let is_damage = is_damage(&source);
    let source = sqlite_error(source);
    if is_damage { LedgerError::Damaged(source.to_string()) } else { LedgerError::Store { doing, source } }
}

/// Whether SQLite finds the content of the file damaged.
pub(super) fn is_damage(error: &rusqlite::Error) -> bool {
    error.sqlite_error_code() == Some(ErrorCode::DatabaseCorrupt)
}

/// The message of SQLite without its error code, which has the same meaning.
pub(super) fn sqlite_error(error: rusqlite::Error) -> Box<dyn std::error::Error + Send + Sync> {
    match error {
        rusqlite::Error::SqliteFailure(_, Some(message)) => message.into(),
        error => Box::new(error),
    }
}

fn invalid(column: usize, error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(column, rusqlite::types::Type::Text, error.into())
}

impl FromSql for Interface {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        value.as_str()?.parse().map(Self).map_err(|_| FromSqlError::InvalidType)
    }
}

impl FromSql for Time {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        let milliseconds = value.as_i64()?;
        Timestamp::from_millisecond(milliseconds).map(Self).map_err(|_| FromSqlError::OutOfRange(milliseconds))
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

impl ToSql for Octets {
    fn to_sql(&self) -> rusqlite::Result<rusqlite::types::ToSqlOutput<'_>> {
        Ok(match self.0 {
            IpAddr::V4(address) => address.octets().to_vec().into(),
            IpAddr::V6(address) => address.octets().to_vec().into(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_of_earlier_versions_are_read_and_written_unchanged() {
        let rows = [
            ("list.json: items[0]", State::Mismatch, "list.json: items[0]"),
            ("conflict: items[0]", State::Mismatch, "conflict: items[0]"),
            ("excluded: items[0]", State::Excluded, "items[0]"),
            ("byRecord: Secret n/a", State::ByRecord, "Secret n/a"),
            ("byReport: guest: a", State::ByReport, "guest: a"),
        ];
        for (text, state, from) in rows {
            let record = source(text);
            assert_eq!((record.0, &*record.1, &*source_text(&record)), (state, from, text));
        }
    }
}
