//! Durable stores of leases.
//!
//! An address is recorded in a ledger before a machine gets it, and released only after its machine is gone.
//! [`SqliteLedger`] is a file that several processes of one host share. [`MemoryLedger`] keeps everything in memory,
//! for tests and for callers that persist leases themselves.

#[cfg(feature = "sqlite")]
mod sqlite;

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use super::change::{Change, Update};
use super::claim::{Claimant, Lease, Machine};

#[cfg(feature = "sqlite")]
pub use sqlite::{OpenError, SqliteLedger, Tenure};

/// A store of leases.
///
/// A ledger keeps the last [`Change`] of each item. An item is a pool, an address of a network, a conflict or a
/// machine. A ledger rejects the lease of an address that another claimant holds, even if the caller does not know of
/// the other lease. A store may leave pools, conflicts, waiting machines and missing machines to its caller. After each
/// start, the caller then passes the pools to [`Registry::resize`](crate::host::registry::Registry::resize), and
/// reports the conflicts and the machines again. Such a store reports its whole state only once, because a later report
/// of the whole state would remove the pools.
pub trait Ledger {
    /// Reports what other writers changed since the last report. The first report has the whole state.
    ///
    /// # Errors
    ///
    /// The store cannot be read. The next report has the same changes.
    fn catch_up(&mut self) -> Result<Update, LedgerError>;

    /// Begins a transaction.
    ///
    /// A store with a lock admits no other writer until the transaction is committed or dropped. A store without a lock
    /// detects at the commit that another writer was first.
    ///
    /// # Errors
    ///
    /// The store cannot be written, or another writer keeps it locked for too long.
    fn begin(&mut self) -> Result<Box<dyn Transaction + '_>, LedgerError>;
}

/// A write to a ledger. Dropping a transaction without a commit leaves the ledger unchanged.
pub trait Transaction {
    /// Reports what other writers changed since the last report. In a store with a lock, no other writer changes the
    /// ledger between this report and the end of the transaction.
    ///
    /// # Errors
    ///
    /// The same as [`Ledger::catch_up`].
    fn catch_up(&mut self) -> Result<Update, LedgerError>;

    /// Records all of the changes, or fails. After `Ok` the changes survive a crash of the host.
    ///
    /// After an error the caller undoes all of its decisions. If the store recorded only some of the changes, its next
    /// update reports these changes, like the changes of other writers. The same is true if the store recorded all
    /// changes, but its answer was lost.
    ///
    /// # Errors
    ///
    /// [`LedgerError::Held`] when another claimant holds an address, [`LedgerError::Refused`] when the store refuses
    /// some leases and would refuse them again, or another error when the store cannot be written.
    fn commit(self: Box<Self>, changes: &[Change]) -> Result<(), LedgerError>;
}

/// Why a ledger could not report or record changes.
#[derive(Debug)]
#[non_exhaustive]
pub enum LedgerError {
    /// Another claimant holds the address on the network, and the caller did not know of that lease.
    Held {
        /// Name of the network.
        network: String,
        /// The held address.
        address: IpAddr,
    },
    /// No pool of the ledger is on the network with this name.
    UnknownNetwork(String),
    /// The file for a copy of the ledger already exists.
    Exists(PathBuf),
    /// The path of the ledger leads to another file than at the opening, or to no file.
    Replaced(PathBuf),
    /// The store has content that this program did not write. The string describes the damage.
    Damaged(String),
    /// The store refuses some of the writes, and would refuse the same writes again. The other changes may be stored.
    Refused(Vec<RefusedWrite>),
    /// The store failed.
    Store {
        /// The operation that failed, as a gerund: `writing the copy of the ledger`.
        doing: &'static str,
        /// The error of the store.
        source: Box<dyn Error + Send + Sync>,
    },
}

/// A write of a lease that a store refuses.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct RefusedWrite {
    /// Name of the network.
    pub network: Arc<str>,
    /// The address of the lease.
    pub address: IpAddr,
    /// Whether the store had no lease of the address. `true`: the claimant is treated as the reason for the refusal.
    /// `false`: the stored lease of the address is treated as the reason.
    pub is_new: bool,
    /// Why the store refuses the write.
    pub reason: String,
}

/// A ledger in memory, for tests and for callers that persist leases themselves.
#[derive(Clone, Debug, Default)]
pub struct MemoryLedger {
    last: BTreeMap<Key, Change>,
    has_reported: bool,
}

/// Identifies the item that a change is about.
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
        // There are no other writers.
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
    /// Returns this ledger for another registry: the next report has the whole state again.
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

/// Whether a lease can replace the lease before it: never while another claimant holds the address.
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
            Self::Held { network, address } => {
                write!(f, "{address} of network {network:?} is held by another claimant")
            }
            Self::UnknownNetwork(network) => write!(f, "the ledger has no pool of network {network:?}"),
            Self::Refused(writes) => {
                let reasons = writes.iter().map(|write| format!("{}: {}", write.address, write.reason));
                write!(f, "the ledger refuses leases: {}", reasons.collect::<Vec<_>>().join("; "))
            }
            Self::Exists(path) => write!(f, "{}: exists, expected a new file", path.display()),
            Self::Replaced(path) => write!(
                f,
                "{}: replaced or removed after the ledger was opened, expected the same file: open the ledger again",
                path.display()
            ),
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
