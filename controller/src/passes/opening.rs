//! Opens the new addresses of pools after every part of a leader has adopted the records of these addresses.
//!
//! When an address becomes allocatable, the registry closes it first: the address is in the registry, but is not
//! allocated. Each such growth of the allocatable addresses has a number, which is sent with the pools. Each part
//! adopts the records that its watches know, and then reports the number. When all parts have reported the number of a
//! growth, the addresses of the growth are opened.
//!
//! The start is the first growth. When its addresses are open, the outstanding claims of all parts are processed
//! together, in the order of their creation.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;

use glowplug::host::claim::Claim;
use tokio::sync::watch;

use crate::ledger::registry::RegistryHandle;
use crate::ledger::types::Stopped;

/// Synchronizes the parts of a leader before new addresses are allocated.
#[derive(Clone)]
pub struct Opening {
    registry: RegistryHandle,
    parts: usize,
    state: Arc<watch::Sender<State>>,
}

/// Reports of the parts, and the last growth that is open.
#[derive(Debug, Default)]
struct State {
    /// For each part, the number of the last growth whose records the part has adopted.
    adopted: BTreeMap<&'static str, u64>,
    /// Claims of the start that are not processed yet.
    claims: Vec<Claim>,
    /// The last growth whose addresses are open. `None`: the start is not over.
    open: Option<u64>,
}

// === impl Opening ===

impl Opening {
    /// Creates an opening that waits for this number of parts. It opens addresses only while [`Opening::run`] runs.
    #[must_use]
    pub fn new(registry: RegistryHandle, parts: usize) -> Self {
        Self { registry, parts, state: Arc::default() }
    }

    /// Opens the addresses of each growth after all parts have adopted its records. Does not return while the registry
    /// runs.
    pub async fn run(&self) -> Result<Infallible, Stopped> {
        let mut states = self.state.subscribe();
        loop {
            let next = states.wait_for(|state| state.next(self.parts).is_some()).await;
            let Some(growth) = next.map_err(|_| Stopped)?.next(self.parts) else { continue };
            self.registry.open(growth).await?;
            loop {
                let mut claims = Vec::new();
                self.state.send_modify(|state| {
                    claims = std::mem::take(&mut state.claims);
                    if claims.is_empty() {
                        state.open = Some(growth);
                    }
                });
                if claims.is_empty() {
                    break;
                }
                claims.sort_by(|one, other| (one.created, &one.machine).cmp(&(other.created, &other.machine)));
                self.registry.claim_all(claims).await?;
            }
            tracing::debug!(growth, "opened the new addresses of pools");
        }
    }

    /// Processes the claims of a part that has adopted all its records up to this growth. At the start, the claims of
    /// all parts are processed together. After the start, the claims of a part are processed without those of other
    /// parts. Returns when the addresses of the growth are open.
    pub async fn claim(&self, part: &'static str, growth: u64, claims: Vec<Claim>) -> Result<(), Stopped> {
        let mut claims = Some(claims);
        self.state.send_modify(|state| {
            if state.open.is_none() {
                state.claims.extend(claims.take().into_iter().flatten());
            }
        });
        if let Some(claims) = claims {
            self.registry.claim_all(claims).await?;
        }
        self.adopted(part, growth).await
    }

    /// Notes that a part has adopted all its records up to this growth, and waits until the addresses of the growth are
    /// open.
    pub async fn adopted(&self, part: &'static str, growth: u64) -> Result<(), Stopped> {
        let mut states = self.state.subscribe();
        self.state.send_modify(|state| {
            state.adopted.insert(part, growth);
        });
        states.wait_for(|state| state.open.is_some_and(|open| open >= growth)).await.map(drop).map_err(|_| Stopped)
    }
}

// === impl State ===

impl State {
    /// Returns the last growth that all parts have adopted. `parts` is the number of parts. `None`: this growth is open
    /// already, or a part has adopted no growth.
    fn next(&self, parts: usize) -> Option<u64> {
        let adopted = self.adopted.values().min().copied().filter(|_| self.adopted.len() == parts);
        adopted.filter(|adopted| self.open.is_none_or(|open| open < *adopted))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_growth_is_opened_when_the_last_part_has_adopted_it() {
        let mut state = State::default();
        let mut next = |part, growth, open| {
            state.adopted.insert(part, growth);
            state.open = open;
            state.next(2)
        };
        assert_eq!(next("machines", 1, None), None);
        assert_eq!(next("claims", 1, None), Some(1));
        assert_eq!(next("claims", 3, Some(1)), None);
        assert_eq!(next("machines", 2, Some(1)), Some(2));
        assert_eq!(next("machines", 3, Some(2)), Some(3));
        assert_eq!(next("machines", 3, Some(3)), None);
    }
}
