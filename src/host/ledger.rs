//! Where allocations are durable.
//!
//! A ledger is what outlives the process: recorded there before it is handed out, given back only after the machine is
//! gone. [`SqliteLedger`] is a file that several processes of one host share; [`MemoryLedger`] is for tests and for who has
//! a store of his own.

mod sqlite;

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use super::allocator::Change;
use super::claim::{Lease, Machine};

pub use sqlite::{OpenError, SqliteLedger};

/// What a store must do to be a ledger.
///
/// It keeps the last [`Change`] of each thing, which is an address of a network or a machine, and it refuses an address
/// that somebody else holds, whatever its caller believes.
pub trait Ledger {
    /// What others did since the last time it told, or everything if it never told.
    ///
    /// # Errors
    ///
    /// The store cannot be read. The same is told the next time.
    fn catch_up(&mut self) -> Result<Update, LedgerError>;

    /// Begins a write. Until it is committed or dropped nobody else can write.
    ///
    /// # Errors
    ///
    /// The store cannot be written, or others do not stop writing to it.
    fn begin(&mut self) -> Result<Box<dyn Transaction + '_>, LedgerError>;
}

/// A write to a ledger. Dropped, it leaves the ledger as it was.
pub trait Transaction {
    /// What others did since the last time the ledger told. Nothing is added to that until the write is over.
    ///
    /// # Errors
    ///
    /// As [`Ledger::catch_up`].
    fn catch_up(&mut self) -> Result<Update, LedgerError>;

    /// Records all of the changes, in their order, or none. Once it returns, no crash of the machine undoes them.
    ///
    /// # Errors
    ///
    /// [`LedgerError::Held`] when an address is held by somebody else; the store cannot be written. If it is not known
    /// whether they were recorded, they are in the next update if they were.
    fn commit(self: Box<Self>, changes: &[Change]) -> Result<(), LedgerError>;
}

/// What a ledger tells: what is now the case.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Update {
    /// All that it knows. Whatever it does not tell is no more.
    Snapshot(Vec<Change>),
    /// What was changed since it told last.
    Delta(Vec<Change>),
}

/// Why a ledger could not tell or record.
#[derive(Debug)]
pub enum LedgerError {
    /// Somebody else holds the address on the network. Whoever decided to give it had not learnt that.
    Held {
        /// The network.
        network: String,
        /// The address.
        address: IpAddr,
    },
    /// The ledger is not for this network.
    UnknownNetwork(String),
    /// A row cannot be what this program wrote.
    Damaged(String),
    /// The store failed.
    Store {
        /// What was being done, as a gerund.
        doing: &'static str,
        /// What the store said.
        source: Box<dyn Error + Send + Sync>,
    },
}

/// A ledger that lasts as long as its process.
#[derive(Clone, Debug, Default)]
pub struct MemoryLedger {
    last: BTreeMap<Key, Change>,
    has_told: bool,
}

/// What a change is about.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
enum Key {
    Lease(Arc<str>, IpAddr),
    Conflicts(Arc<str>, IpAddr),
    Waiter(Machine),
    Missing(Machine),
}

// === impl MemoryLedger ===

impl Ledger for MemoryLedger {
    fn catch_up(&mut self) -> Result<Update, LedgerError> {
        // Nobody else writes.
        if std::mem::replace(&mut self.has_told, true) {
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
    /// The same for another registry, which is told everything.
    #[must_use]
    pub fn reopened(self) -> Self {
        Self { has_told: false, ..self }
    }

    fn set(&mut self, key: Key, change: Option<Change>) -> Option<Change> {
        match change {
            Some(change) => self.last.insert(key, change),
            None => self.last.remove(&key),
        }
    }
}

/// Whether a lease may stand where another one stood: nobody is put out of what he holds.
fn may_follow(before: &Lease, after: &Lease) -> bool {
    before.released.is_some() || before.claimant == after.claimant
}

// === impl Key ===

impl Key {
    fn of(change: &Change) -> Self {
        match change {
            Change::Lease { network, address, .. } => Self::Lease(Arc::clone(network), *address),
            Change::Conflicts { network, address, .. } => Self::Conflicts(Arc::clone(network), *address),
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
            Self::UnknownNetwork(network) => write!(f, "the ledger is not for network {network:?}"),
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
