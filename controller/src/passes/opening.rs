//! Coordinates the start of a leader: all parts adopt their records before any address is allocated. Then the
//! outstanding claims of all kinds are processed together, in the order of their creation.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use glowplug::host::claim::Claim;
use tokio::sync::watch;

use crate::ledger::registry::RegistryHandle;
use crate::ledger::types::Stopped;

/// Synchronizes the parts of a leader before the first claim.
#[derive(Clone)]
pub struct Opening {
    registry: RegistryHandle,
    parts: usize,
    claims: Arc<Mutex<BTreeMap<&'static str, Vec<Claim>>>>,
    is_open: Arc<watch::Sender<bool>>,
}

// === impl Opening ===

impl Opening {
    /// Creates an opening that waits for this number of parts.
    #[must_use]
    pub fn new(registry: RegistryHandle, parts: usize) -> Self {
        Self { registry, parts, claims: Arc::default(), is_open: Arc::new(watch::Sender::new(false)) }
    }

    /// Processes the claims of a part that has adopted all its records. The claims of all parts are processed together
    /// after the last part has called this. If a part calls this again, its claims are processed at once.
    ///
    /// # Errors
    ///
    /// [`Stopped`]: the registry has ended.
    pub async fn claim(&self, part: &'static str, claims: Vec<Claim>) -> Result<(), Stopped> {
        if *self.is_open.borrow() {
            return self.registry.claim_all(claims).await.map(drop);
        }
        let all = {
            let mut parts = self.claims.lock().unwrap_or_else(PoisonError::into_inner);
            parts.insert(part, claims);
            (parts.len() == self.parts).then(|| std::mem::take(&mut *parts))
        };
        if let Some(all) = all {
            let mut all: Vec<Claim> = all.into_values().flatten().collect();
            all.sort_by(|one, other| (one.created, &one.machine).cmp(&(other.created, &other.machine)));
            self.registry.claim_all(all).await?;
            self.is_open.send_replace(true);
            return Ok(());
        }
        self.is_open.subscribe().wait_for(|is_open| *is_open).await.map(drop).map_err(|_| Stopped)
    }
}
