//! Remembers the guests that migrated to another cluster, until the leases of their addresses have the migration.
//!
//! Only the status of the instance has the migration, and KubeVirt may remove the instance before a pass records the
//! migration in leases: the opening of a leader lasts a minute, or a pass fails and is repeated. Without this memory,
//! the addresses would be released without the reuse delay of migrated guests.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::cluster::key::Key;

/// Names of the Secrets from which the migrated guests of one name have read their addresses. `None`: a guest has read
/// no Secret of the controller, and may use every address of its name.
pub(crate) type Secrets = BTreeSet<Option<String>>;

/// The guests that migrated to another cluster, by the name of their VirtualMachine. The part that serves machines notes
/// and forgets them. Each part that releases addresses of guests looks here first.
#[derive(Debug, Default)]
pub(crate) struct LeftGuests(Mutex<BTreeMap<Key, Secrets>>);

// === impl LeftGuests ===

impl LeftGuests {
    /// Notes a guest that migrated, with the Secret that it has read.
    pub(crate) fn note(&self, vm: &Key, secret: Option<String>) {
        self.all().entry(vm.clone()).or_default().insert(secret);
    }

    /// Returns the Secrets of the guests of this name that migrated. Empty: no guest migrated, or the leases already
    /// record the migration.
    pub(crate) fn of(&self, vm: &Key) -> Secrets {
        self.all().get(vm).cloned().unwrap_or_default()
    }

    /// Forgets the guests of this name, when each lease that they may use has the migration.
    pub(crate) fn forget(&self, vm: &Key) {
        self.all().remove(vm);
    }

    fn all(&self) -> MutexGuard<'_, BTreeMap<Key, Secrets>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
