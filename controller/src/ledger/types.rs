//! Types that callers of the registry pass to it or get from it.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use glowplug::host::allocator::ClaimError;
pub use glowplug::host::claim::Reservation;
use glowplug::host::claim::{Allocation, Machine};
use kube::runtime::watcher::Event;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::cluster::key::Key;
use crate::cluster::object::Object;

/// Result of a claim: the allocations, or the reason why nothing was allocated.
pub type Answer = Result<Vec<Allocation>, ClaimError>;

/// Receiver of objects with new addresses: objects that waited, and objects whose leases another leader wrote. Each
/// object is sent at least once.
pub type Holders = mpsc::UnboundedReceiver<Machine>;

/// Function that receives the events of leases of MAC addresses. One watch reports these leases and the leases of IP
/// addresses.
pub type MacLeases = Arc<dyn Fn(Event<Object>) + Send + Sync>;

/// Receivers of objects with new addresses, one for each kind of object.
#[derive(Debug)]
pub struct Served {
    /// IPAddressClaims.
    pub claims: Holders,
    /// IPAMClaims.
    pub ipam_claims: Holders,
    /// Machines.
    pub machines: Holders,
}

/// The claimants whose leases the API server refuses to store. The value says whether the object of the claimant has
/// changed since the last attempt to store its leases. Passes note the changes, and the owner of the registry reads
/// them.
#[derive(Clone, Debug, Default)]
pub(crate) struct RefusedClaimants(Arc<Mutex<BTreeMap<Key, bool>>>);

/// The leases of IP addresses that cannot be read. The key is the name of the lease, the value is the reason. The
/// ledger notes these leases, and the pools report them.
#[derive(Clone, Debug, Default)]
pub(crate) struct UnreadableLeases(Arc<Mutex<Arc<BTreeMap<String, String>>>>);

/// Progress of the owner of the registry: the time of its last progress with the current command, and the number of
/// commands that wait.
#[derive(Clone, Debug, Default)]
pub struct Progress {
    last: Arc<Mutex<Option<Instant>>>,
    queued: Arc<AtomicUsize>,
}

/// Error: the owner of the registry has stopped.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Stopped;

// === impl RefusedClaimants ===

impl RefusedClaimants {
    /// Adds a claimant if `answer` says that the API server has refused its lease. Otherwise removes the claimant.
    pub(super) fn note_answer(&self, machine: &Machine, answer: &Answer) {
        match answer {
            Err(ClaimError::NotRecorded { .. }) => drop(self.lock().entry(Key::of_machine(machine)).or_default()),
            _ => self.forget(machine),
        }
    }

    /// Notes that objects of these names have changed.
    pub(super) fn note_changes(&self, names: &BTreeSet<Key>) {
        let mut refused = self.lock();
        if !refused.is_empty() {
            for name in names {
                if let Some(has_changed) = refused.get_mut(name) {
                    *has_changed = true;
                }
            }
        }
    }

    /// Returns whether a change of the object of a claimant is noted, and clears the note.
    pub(super) fn take_change(&self, machine: &Machine) -> bool {
        let mut refused = self.lock();
        !refused.is_empty() && refused.get_mut(&Key::of_machine(machine)).is_some_and(std::mem::take)
    }

    /// Removes a claimant.
    pub(super) fn forget(&self, machine: &Machine) {
        let mut refused = self.lock();
        if !refused.is_empty() {
            refused.remove(&Key::of_machine(machine));
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Key, bool>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl UnreadableLeases ===

impl UnreadableLeases {
    /// Notes the reason why a lease cannot be read. `None`: the lease can be read, or does not exist.
    pub(super) fn note(&self, name: &str, reason: Option<String>) {
        let mut all = self.lock();
        match reason {
            Some(reason) => drop(Arc::make_mut(&mut all).insert(name.to_owned(), reason)),
            None if all.contains_key(name) => drop(Arc::make_mut(&mut all).remove(name)),
            None => {}
        }
    }

    /// Removes all leases, because a new ledger lists them again.
    pub(super) fn clear(&self) {
        *self.lock() = Arc::default();
    }

    /// Whether a lease cannot be read.
    pub(super) fn has(&self, name: &str) -> bool {
        self.lock().contains_key(name)
    }

    /// Returns the reason for each lease, by the name of the lease.
    pub(crate) fn get(&self) -> Arc<BTreeMap<String, String>> {
        Arc::clone(&self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, Arc<BTreeMap<String, String>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Progress ===

impl Progress {
    /// Returns the time of the last progress with the command that the owner works on. `None`: the owner has no
    /// command.
    #[must_use]
    pub fn last(&self) -> Option<Instant> {
        *self.lock()
    }

    /// Returns the number of commands that the owner has not begun.
    #[must_use]
    pub fn queued(&self) -> usize {
        self.queued.load(Ordering::Relaxed)
    }

    /// Notes that a command waits for the owner.
    pub(super) fn enqueue(&self) {
        self.queued.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes that the owner has taken a command.
    pub(super) fn dequeue(&self) {
        self.queued.fetch_sub(1, Ordering::Relaxed);
    }

    /// Notes that the owner has begun a command.
    pub(crate) fn begin(&self) {
        *self.lock() = Some(Instant::now());
    }

    /// Notes that a part of the command is done: for example, the API server has stored or definitely refused a lease.
    pub(crate) fn note(&self) {
        if let Some(last) = &mut *self.lock() {
            *last = Instant::now();
        }
    }

    /// Notes that the command is done.
    pub(crate) fn end(&self) {
        *self.lock() = None;
    }

    fn lock(&self) -> MutexGuard<'_, Option<Instant>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Display for Stopped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the registry has ended")
    }
}

impl Error for Stopped {}
