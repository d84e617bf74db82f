//! The wait queue: machines whose claim found a pool exhausted. The oldest machine is served first. In a pool that
//! several namespaces share, the machines of the namespace with the fewest addresses come first.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;

use super::want::Queue;
use crate::host::claim::{Claim, Machine};

#[derive(Clone, Debug, Default)]
pub(super) struct Queues {
    pub(super) waiters: BTreeMap<Machine, Waiter>,
    // The machines in each queue, by their namespace.
    pub(super) turns: BTreeMap<Queue, BTreeMap<String, BTreeSet<Turn>>>,
    // Waiting machines that try to get an address even if their pools have no free address: their claim is sticky, a
    // pool keeps an address for the machine, or a machine of the same name was the last holder of an address.
    pub(super) entitled: BTreeSet<Turn>,
    // Waiting machines whose claim needs no further address, or can never be served. The next decision removes these
    // machines.
    pub(super) settled: BTreeSet<Machine>,
}

#[derive(Clone, Debug)]
pub(super) struct Waiter {
    pub(super) claim: Arc<Claim>,
    // `None` while the pools of the claim are unknown or suspended, or while the machine is settled.
    pub(super) queue: Option<Queue>,
}

/// The place of a machine in a queue: sorted by creation time, then by namespace and name.
pub(super) type Turn = (Timestamp, Machine);

// === impl Queues ===

impl Queues {
    pub(super) fn claims(&self) -> impl Iterator<Item = &Claim> {
        self.waiters.values().map(|waiter| &*waiter.claim)
    }

    /// The claim with which a machine waits.
    pub(super) fn claim_of(&self, machine: &Machine) -> Option<&Arc<Claim>> {
        self.waiters.get(machine).map(|waiter| &waiter.claim)
    }

    /// Entitles the waiting machines for which `is_meant` is true to try for an address that is not free for other
    /// machines.
    pub(super) fn stir(&mut self, is_meant: impl Fn(&Machine) -> bool) {
        let meant = self.waiters.iter().filter(|(machine, _)| is_meant(machine));
        self.entitled.extend(meant.map(|(machine, waiter)| (waiter.claim.created, machine.clone())));
    }

    /// Moves a machine into a queue. `None` removes the machine from its queue.
    pub(super) fn enqueue(&mut self, machine: &Machine, queue: Option<Queue>) {
        let Some(waiter) = self.waiters.get_mut(machine) else { return };
        let turn = (waiter.claim.created, waiter.claim.machine.clone());
        let namespace = turn.1.served_in().to_owned();
        if let Some(before) = std::mem::replace(&mut waiter.queue, queue.clone())
            && let Some(all) = self.turns.get_mut(&before)
        {
            if let Some(turns) = all.get_mut(&namespace) {
                turns.remove(&turn);
                if turns.is_empty() {
                    all.remove(&namespace);
                }
            }
            if all.is_empty() {
                self.turns.remove(&before);
            }
        }
        if let Some(queue) = queue {
            self.turns.entry(queue).or_default().entry(namespace).or_default().insert(turn);
        }
    }
}
