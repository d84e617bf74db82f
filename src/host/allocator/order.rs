//! The order in which waiting machines are served: the oldest machine first. In a shared pool, the machines of the
//! namespace with the fewest addresses come first.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::state::Allocator;
use crate::host::claim::{Claim, Request};
use crate::host::pool::Pool;
use crate::network::Family;

// === impl Allocator ===

impl Allocator {
    /// The rank of a namespace in a wait queue: the number of addresses that the namespace holds in the shared pools of
    /// the queue. The lowest rank is served first, and the oldest machine first within a rank. So no namespace keeps
    /// the others waiting.
    pub(super) fn rank(&self, queue: &[(Arc<str>, Family)], namespace: &str) -> usize {
        let shared = queue.iter().filter_map(|(pool, family)| {
            let state = self.pools.get(pool).filter(|state| state.pool().is_shared())?;
            state.held.get(&(*family, namespace.to_owned())).copied()
        });
        shared.sum()
    }

    /// Sorts claims that wait for a pool into the order in which they are served. Each claim comes with the family that
    /// it waits for.
    ///
    /// The oldest claim is served first. In a shared pool, the next claim is always of the namespace that then has the
    /// fewest addresses. Waiting claims without a family follow: they do not wait for an address of the pool now.
    /// Claims that are not in the wait queue come last, in the order in which they would be served later.
    #[doc(hidden)]
    #[must_use]
    pub fn in_order<'c>(
        &self,
        waiting: impl IntoIterator<Item = (&'c Claim, Option<Family>)>,
    ) -> Vec<(&'c Claim, Option<Family>)> {
        let is_later = |claim: &Claim| !self.queues.waiters.contains_key(&claim.machine);
        let mut waiting: Vec<_> = waiting.into_iter().collect();
        waiting.sort_by_key(|(claim, _)| (is_later(claim), claim.created, &claim.machine));
        let is_shared = |(pool, _): &(Arc<str>, Family)| self.pool(pool).is_some_and(Pool::is_shared);
        let mut before = BTreeMap::<(Option<Family>, &str), usize>::new();
        let ranked = waiting.into_iter().map(|(claim, family)| {
            let namespace = claim.machine.served_in();
            let of = |pool: &str| family.map(|family| (Arc::from(pool), family));
            let queue = match self.queues.waiters.get(&claim.machine) {
                Some(waiter) => waiter.queue.clone().unwrap_or_default(),
                None => claim.requests.iter().flat_map(Request::pools).filter_map(of).collect(),
            };
            let earlier = before.entry((family, namespace)).or_default();
            let rank = if queue.iter().any(is_shared) { self.rank(&queue, namespace) + *earlier } else { 0 };
            *earlier += 1;
            ((is_later(claim), family.is_none(), rank), claim, family)
        });
        let mut ranked: Vec<_> = ranked.collect();
        // The sort is stable, so the oldest claim stays first within a rank.
        ranked.sort_by_key(|(rank, ..)| *rank);
        ranked.into_iter().map(|(_, claim, family)| (claim, family)).collect()
    }
}
