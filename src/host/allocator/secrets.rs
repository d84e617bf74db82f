//! Keeps in each lease of a machine the names of the Secrets from which its guests may read the addresses.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use super::state::Allocator;
use super::types::ClaimError;
use crate::host::change::{Change, Journal};
use crate::host::claim::{Claim, Lease, Machine};

/// Maximum number of Secret names in a lease. Without a limit, a user could add any number of names.
pub const MOST_SECRETS: usize = 64;

// === impl Allocator ===

impl Allocator {
    /// Records the names of the Secrets from which guests of a machine may read its addresses, in each lease of the
    /// machine. The names replace all earlier names.
    pub(crate) fn set_secrets(&mut self, machine: &Machine, secrets: &BTreeSet<String>, journal: &mut Journal) {
        let secrets: BTreeSet<String> = secrets.iter().take(MOST_SECRETS).cloned().collect();
        let held = self.held_by(machine).into_iter();
        let held =
            held.filter(|(network, address, lease)| lease.secrets != secrets && !self.is_refused(network, *address));
        let with_secrets = |lease: &Lease| Lease { secrets: secrets.clone(), ..lease.clone() };
        let changes = held.map(|(network, address, lease)| (Arc::clone(network), address, with_secrets(lease)));
        for (network, address, lease) in changes.collect::<Vec<_>>() {
            self.decide(Change::Lease { network, address, lease: Some(lease) }, journal);
        }
    }

    /// Adds the name of the Secret of a claim to the leases that the machine already has. A lease that already has the
    /// maximum number of names loses its earlier names.
    pub(super) fn note_secret(&mut self, claim: &Claim, journal: &mut Journal) -> Result<(), ClaimError> {
        let Some(secret) = &claim.secret else { return Ok(()) };
        let lacks = self.held_by(&claim.machine).into_iter().filter(|(_, _, lease)| !lease.secrets.contains(secret));
        let lacks: Vec<(Arc<str>, IpAddr, Lease)> =
            lacks.map(|(network, address, lease)| (Arc::clone(network), address, lease.clone())).collect();
        for (network, address, mut lease) in lacks {
            if self.is_refused(&network, address) {
                return Err(self.refused(&network, address));
            }
            if lease.secrets.len() >= MOST_SECRETS {
                lease.secrets.clear();
            }
            lease.secrets.insert(secret.clone());
            self.decide(Change::Lease { network, address, lease: Some(lease) }, journal);
        }
        Ok(())
    }
}
