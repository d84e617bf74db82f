//! State changes, which the allocator and the ledger share, and the journal of one transaction.

use std::net::IpAddr;
use std::sync::Arc;

use jiff::Timestamp;

use super::claim::{Claim, Claimant, Lease, Machine};
use super::growth::Growth;
use super::may_record::State;
use super::pool::Pool;

/// One state change. Ledgers store and replay changes; applying a change twice has no further effect.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Change {
    /// The specification of a pool.
    Pool {
        /// Name of the pool, as `namespace/name`.
        name: Arc<str>,
        /// `None` removes the pool.
        pool: Option<Arc<Pool>>,
    },
    /// The lease of an address.
    Lease {
        /// Name of the network.
        network: Arc<str>,
        /// The leased address.
        address: IpAddr,
        /// `None` if the ledger has no lease of the address.
        lease: Option<Lease>,
    },
    /// A record of an address whose claimant does not hold the address.
    Conflict {
        /// Name of the network.
        network: Arc<str>,
        /// The address that the record names.
        address: IpAddr,
        /// The claimant that the record names.
        claimant: Arc<Claimant>,
        /// State of the address, and kind and name of the object with the record. `None` removes the conflict.
        record: Option<(State, Arc<str>)>,
    },
    /// The claim of a waiting machine.
    Waiter {
        /// The waiting machine.
        machine: Machine,
        /// `None` if the machine does not wait.
        claim: Option<Arc<Claim>>,
    },
    /// The time when a search first missed a machine.
    Missing {
        /// The missing machine.
        machine: Machine,
        /// `None` if the machine is not missing.
        since: Option<Timestamp>,
    },
}

/// A report of a ledger: the current state of its items, such as pools, addresses, conflicts and machines.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Update {
    /// The whole state. An item that is not in the list does not exist.
    Snapshot(Vec<Change>),
    /// The current state of each item that changed since the last report.
    Delta(Vec<Change>),
}

/// Changes decided in memory but not yet committed to the ledger.
#[derive(Debug, Default)]
pub(crate) struct Journal {
    before: Vec<Change>,
    after: Vec<Change>,
    // The closed addresses before the first change of a pool. No ledger stores them.
    growth: Option<Growth>,
}

/// Returns a time as ledgers store it: in whole milliseconds, and never before 1970.
pub(crate) fn storable(time: Timestamp) -> Timestamp {
    Timestamp::from_millisecond(milliseconds(time)).unwrap_or_default()
}

/// Returns the milliseconds since 1970 that ledgers store for a time.
pub(crate) fn milliseconds(time: Timestamp) -> i64 {
    // `Timestamp::from_millisecond` accepts no time after the start of the last second of jiff's calendar.
    time.as_millisecond().clamp(0, Timestamp::MAX.as_second() * 1000)
}

impl Journal {
    /// The changes to commit, in the order of the decisions.
    pub(crate) fn changes(&self) -> &[Change] {
        &self.after
    }

    pub(crate) fn push(&mut self, before: Change, after: Change) {
        self.before.push(before);
        self.after.push(after);
    }

    /// Stores the closed addresses before the first change of a pool, for [`Self::take_growth`]. Later calls change
    /// nothing.
    pub(crate) fn keep_growth(&mut self, growth: &Growth) {
        self.growth.get_or_insert_with(|| growth.clone());
    }

    /// The closed addresses before the first change of a pool. `None`: no pool has changed.
    pub(crate) fn take_growth(&mut self) -> Option<Growth> {
        self.growth.take()
    }

    /// Removes the last change, and returns the change that undoes it.
    pub(crate) fn pop(&mut self) -> Option<Change> {
        self.after.pop();
        self.before.pop()
    }
}
