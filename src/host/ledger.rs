//! Durable stores of leases.
//!
//! An address is recorded in a ledger before it is handed out, and released only after its machine is gone.
//! [`SqliteLedger`] is a file that several processes of one host share. [`MemoryLedger`] keeps everything in memory, for
//! tests and for callers that persist leases themselves.

mod sqlite;

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use super::change::{Change, Update};
use super::claim::{Claimant, Lease, Machine};

pub use sqlite::{OpenError, SqliteLedger, Tenure};

/// A store of leases.
///
/// It keeps the last [`Change`] of each thing, which is a pool, an address of a network, a conflict or a machine. It refuses an
/// address that somebody else holds, whatever its caller believes. A store may leave conflicts, waiting and missing machines
/// to its caller, if the caller reports them again after each start.
pub trait Ledger {
    /// What other writers changed since the last report, or everything in the first report.
    ///
    /// # Errors
    ///
    /// The store cannot be read. The next report has the same changes.
    fn catch_up(&mut self) -> Result<Update, LedgerError>;

    /// Begins a transaction. A store with a lock lets nobody else write until it is committed or dropped; a store without one
    /// finds out at the commit who was first.
    ///
    /// # Errors
    ///
    /// The store cannot be written, or others do not stop writing to it.
    fn begin(&mut self) -> Result<Box<dyn Transaction + '_>, LedgerError>;
}

/// A write to a ledger. Dropped, it leaves the ledger as before.
pub trait Transaction {
    /// What other writers changed since the last report. With a lock nothing is added to that until the write is over.
    ///
    /// # Errors
    ///
    /// As [`Ledger::catch_up`].
    fn catch_up(&mut self) -> Result<Update, LedgerError>;

    /// Records all of the changes, or fails. Once it returns `Ok`, no crash of the machine undoes them.
    ///
    /// After an error the caller takes all of its decisions back. A store that can record only some of the changes reports
    /// those in its next update, as it reports the changes of others; a store whose answer got lost does the same.
    ///
    /// # Errors
    ///
    /// [`LedgerError::Held`] when an address is held by somebody else; the store cannot be written.
    fn commit(self: Box<Self>, changes: &[Change]) -> Result<(), LedgerError>;
}

/// Why a ledger could not report or record.
#[derive(Debug)]
pub enum LedgerError {
    /// Somebody else holds the address on the network, and the caller did not know.
    Held {
        /// The network.
        network: String,
        /// The address.
        address: IpAddr,
    },
    /// The ledger has no pool of this network.
    UnknownNetwork(String),
    /// The store does not contain what this program wrote.
    Damaged(String),
    /// The store failed.
    Store {
        /// What was being done, as a gerund.
        doing: &'static str,
        /// What the store said.
        source: Box<dyn Error + Send + Sync>,
    },
}

/// A ledger in memory.
#[derive(Clone, Debug, Default)]
pub struct MemoryLedger {
    last: BTreeMap<Key, Change>,
    has_reported: bool,
}

/// What a change is about.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
enum Key {
    Pool(Arc<str>),
    Lease(Arc<str>, IpAddr),
    Conflict(Arc<str>, IpAddr, Arc<Claimant>),
    Waiter(Machine),
    Missing(Machine),
}

// === impl MemoryLedger ===

impl Ledger for MemoryLedger {
    fn catch_up(&mut self) -> Result<Update, LedgerError> {
        // Nobody else writes.
        if std::mem::replace(&mut self.has_reported, true) {
            return Ok(Update::Delta(Vec::new()));
        }
        Ok(Update::Snapshot(self.last.values().cloned().collect()))
    }

    fn begin(&mut self) -> Result<Box<dyn Transaction + '_>, LedgerError> {
        Ok(Box::new(self))
    }
}

impl Transaction for &mut MemoryLedger {
    fn catch_up(&mut self) -> Result<Update, LedgerError> {
        Ledger::catch_up(*self)
    }

    fn commit(self: Box<Self>, changes: &[Change]) -> Result<(), LedgerError> {
        let mut undo = Vec::new();
        for change in changes {
            let key = Key::of(change);
            if let (
                Some(Change::Lease { lease: Some(held), .. }),
                Change::Lease { network, address, lease: Some(lease) },
            ) = (self.last.get(&key), change)
                && !may_follow(held, lease)
            {
                for (key, before) in undo.into_iter().rev() {
                    self.set(key, before);
                }
                return Err(LedgerError::Held { network: network.to_string(), address: *address });
            }
            let before = self.set(key.clone(), Some(change.clone()));
            undo.push((key, before));
        }
        Ok(())
    }
}

impl MemoryLedger {
    /// The same ledger for another registry, with everything in its first report.
    #[must_use]
    pub fn reopened(self) -> Self {
        Self { has_reported: false, ..self }
    }

    fn set(&mut self, key: Key, change: Option<Change>) -> Option<Change> {
        match change {
            Some(change) => self.last.insert(key, change),
            None => self.last.remove(&key),
        }
    }
}

/// Whether a lease may replace another one: never while somebody else holds the address.
fn may_follow(before: &Lease, after: &Lease) -> bool {
    before.released.is_some() || before.claimant == after.claimant
}

// === impl Key ===

impl Key {
    fn of(change: &Change) -> Self {
        match change {
            Change::Lease { network, address, .. } => Self::Lease(Arc::clone(network), *address),
            Change::Pool { name, .. } => Self::Pool(Arc::clone(name)),
            Change::Conflict { network, address, claimant, .. } => {
                Self::Conflict(Arc::clone(network), *address, Arc::clone(claimant))
            }
            Change::Waiter { machine, .. } => Self::Waiter(machine.clone()),
            Change::Missing { machine, .. } => Self::Missing(machine.clone()),
        }
    }
}

// === impl LedgerError ===

impl fmt::Display for LedgerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Held { network, address } => write!(f, "{address} of network {network:?} is held by somebody else"),
            Self::UnknownNetwork(network) => write!(f, "the ledger has no pool of network {network:?}"),
            Self::Damaged(what) => write!(f, "the ledger is damaged: {what}"),
            Self::Store { doing, .. } => f.write_str(doing),
        }
    }
}

impl Error for LedgerError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Store { source, .. } => Some(&**source),
            _ => None,
        }
    }
}
