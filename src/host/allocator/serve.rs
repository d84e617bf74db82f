//! Serves the waiting machines in their order. For the status of a pool, [`Allocator::in_order`] computes the same
//! order.

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::Timestamp;

use super::pool_state::PoolState;
use super::queue::{Queues, Turn, Waiter};
use super::state::Allocator;
use super::types::ClaimError;
use super::want::{Queue, Refusal, Want};
use crate::host::change::{Change, Journal, storable};
use crate::host::claim::{Allocation, Claim, Machine, is_namesake};
use crate::network::Family;

impl Allocator {
    /// Serves the waiting machines in their order, and returns their new allocations.
    pub(crate) fn serve(&mut self, now: Timestamp, journal: &mut Journal) -> Vec<Allocation> {
        self.advance(now);
        let mut served = self.leave_settled(journal);
        // Serving allocates addresses and frees none. So a claim that is refused once stays refused during this call,
        // and an exhausted pool stays exhausted.
        let mut tried: BTreeSet<Turn> = BTreeSet::new();
        let mut open: Vec<Queue> = self.queues.turns.keys().cloned().collect();
        loop {
            self.queues.entitled.retain(|turn| !tried.contains(turn));
            open.retain(|queue| queue.iter().any(|(pool, family)| self.lowest(pool, *family).is_some()));
            let untried = |queue: &Queue| {
                let first = self.queues.turns.get(queue)?.iter().filter_map(|(namespace, turns)| {
                    let turn = turns.iter().find(|turn| !tried.contains(*turn))?;
                    Some((self.rank(queue, namespace), turn))
                });
                first.min()
            };
            let entitled = self.queues.entitled.first().map(|turn| {
                let rank = |waiter: &Waiter| Some(self.rank(waiter.queue.as_ref()?, waiter.claim.machine.served_in()));
                (self.queues.waiters.get(&turn.1).and_then(rank).unwrap_or_default(), turn)
            });
            let turn = open.iter().filter_map(untried).chain(entitled).min().map(|(_, turn)| turn.clone());
            let Some(turn) = turn else { return served };
            self.queues.entitled.remove(&turn);
            tried.insert(turn.clone());
            let (_, machine) = turn;
            let Some(claim) = self.queues.claim_of(&machine).cloned() else { continue };
            match self.allocate(&claim, journal) {
                Ok(()) => {
                    self.decide(Change::Waiter { machine, claim: None }, journal);
                    served.extend(self.answer(&claim));
                }
                Err(Refusal::Exhausted(queue)) => self.queues.enqueue(&machine, Some(queue)),
                // The machine keeps waiting: the pool may allocate again.
                Err(Refusal::Other(ClaimError::UnknownPool(_) | ClaimError::Suspended(_))) => {}
                Err(Refusal::Other(error)) if error.is_about_address() => {}
                // This claim can never be served. The machine gets the reason with its next claim.
                Err(Refusal::Other(_)) => self.decide(Change::Waiter { machine, claim: None }, journal),
            }
        }
    }

    /// Adds a machine to the wait queue with a claim. A machine that already waits keeps its place.
    pub(super) fn wait(&mut self, claim: &Claim, journal: &mut Journal) {
        let mut claim = Claim { created: storable(claim.created), ..claim.clone() };
        if let Some(waits) = self.queues.claim_of(&claim.machine) {
            claim.created = claim.created.min(waits.created);
            if **waits == claim {
                return;
            }
        }
        let machine = claim.machine.clone();
        self.decide(Change::Waiter { machine, claim: Some(Arc::new(claim)) }, journal);
    }

    /// Removes a machine from the wait queue. Its leases are kept.
    pub(crate) fn withdraw(&mut self, machine: &Machine, journal: &mut Journal) {
        if self.queues.waiters.contains_key(machine) {
            self.decide(Change::Waiter { machine: machine.clone(), claim: None }, journal);
        }
    }

    /// Removes the settled machines from the wait queue. Returns the allocations of the settled machines that hold
    /// every address of their claim. A machine can get its addresses while it waits: a ledger without a lock may record
    /// a lease although the response to the writer is lost.
    pub(super) fn leave_settled(&mut self, journal: &mut Journal) -> Vec<Allocation> {
        let mut served = Vec::new();
        for machine in std::mem::take(&mut self.queues.settled) {
            if let Some(claim) = self.queues.claim_of(&machine).filter(|claim| self.wants(claim).is_ok()) {
                served.extend(self.answer(claim));
            }
            self.withdraw(&machine, journal);
        }
        served
    }

    /// Replaces the claim with which a machine waits, and returns the previous claim. `None` removes the machine from
    /// the wait queue.
    pub(super) fn set_waiter(&mut self, machine: &Machine, claim: Option<Arc<Claim>>) -> Option<Arc<Claim>> {
        self.queues.enqueue(machine, None);
        self.queues.settled.remove(machine);
        let before = self.queues.waiters.remove(machine).map(|waiter| waiter.claim);
        if let Some(claim) = &before {
            self.queues.entitled.remove(&(claim.created, machine.clone()));
        }
        if let Some(claim) = claim {
            self.queues.waiters.insert(machine.clone(), Waiter { claim, queue: None });
            self.enqueue_again(machine);
        }
        before
    }

    /// Returns the queue for the pools of a want, and whether every pool in the queue is exhausted. The queue ends with
    /// the first exhausted pool that has closed addresses, as the search of `allocate_one` does.
    fn queue_of(&mut self, want: &Want) -> (Queue, bool) {
        let (mut queue, mut is_exhausted) = (Queue::new(), true);
        for pool in &want.pools {
            let mut families = want.families.iter().map(|(family, _)| *family);
            let exhausted = families.clone().find(|family| self.lowest(pool, *family).is_none());
            is_exhausted &= exhausted.is_some();
            queue.extend(exhausted.or(families.next()).map(|family| (Arc::clone(pool), family)));
            if exhausted.is_some_and(|family| self.has_closed(pool, family)) {
                break;
            }
        }
        (queue, is_exhausted)
    }

    /// Moves a waiting machine into the queue of the first want of its claim whose pools are all exhausted. If there is
    /// no such want, moves the machine into the queue of the first want.
    pub(super) fn enqueue_again(&mut self, machine: &Machine) {
        let Some(claim) = self.queues.claim_of(machine).cloned() else { return };
        self.queues.settled.remove(machine);
        let mut is_entitled = claim.sticky;
        let queue = match self.wants(&claim) {
            Ok(wants) if !wants.lacks.is_empty() => {
                let is_kept = |want: &Want| {
                    let keeps =
                        |state: &PoolState, (family, _): &(Family, _)| state.pre_allocated(machine, *family).is_some();
                    let mut states = want.pools.iter().filter_map(|pool| self.pools.get(pool));
                    states.any(|state| want.families.iter().any(|family| keeps(state, family)))
                };
                is_entitled |= wants.lacks.iter().any(is_kept);
                let queues: Vec<(Queue, bool)> = wants.lacks.iter().map(|want| self.queue_of(want)).collect();
                let exhausted = queues.iter().find(|(_, is_exhausted)| *is_exhausted);
                exhausted.or(queues.first()).map(|(queue, _)| queue.clone())
            }
            Err(ClaimError::UnknownPool(_) | ClaimError::Suspended(_)) => None,
            Ok(_) | Err(_) => {
                self.queues.settled.insert(machine.clone());
                None
            }
        };
        self.queues.enqueue(machine, queue);
        if is_entitled {
            self.queues.entitled.insert((claim.created, machine.clone()));
        }
    }

    pub(super) fn enqueue_all_again(&mut self) {
        for machine in self.queues.waiters.keys().cloned().collect::<Vec<_>>() {
            self.enqueue_again(&machine);
        }
    }

    /// Marks the waiting machines with the name of a machine as entitled: they try to get an address that this machine
    /// released.
    pub(super) fn stir_namesakes(&mut self, machine: &Machine) {
        let first = Machine::new(machine.namespace.clone(), machine.name.clone(), "");
        let Queues { waiters, entitled, .. } = &mut self.queues;
        let namesakes = waiters.range(first..).take_while(|(waiting, _)| is_namesake(waiting, machine));
        entitled.extend(namesakes.map(|(machine, waiter)| (waiter.claim.created, machine.clone())));
    }
}
