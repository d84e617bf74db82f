//! Leases that the ledger refuses to record. Such a refusal concerns one address or one machine; all others are served.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use super::state::{Allocator, Denied, REFUSAL, is_over};
use super::types::ClaimError;
use crate::host::claim::{Lease, Machine};
use crate::host::ledger::RefusedWrite;

/// Pause after the first refusal, before the allocator asks the ledger again. Each further refusal doubles the pause.
const FIRST_PAUSE: Duration = Duration::from_secs(2);

// === impl Allocator ===

impl Allocator {
    /// Notes that the ledger refuses to replace the lease `before` of an address with the lease `after`. The allocator
    /// has already undone this change.
    ///
    /// If the ledger has a lease of the address, the content of that lease may be the reason, so the address is set
    /// aside. If the ledger has no lease of the address, or has refused the new holder before, the new holder is the
    /// reason.
    pub(crate) fn note_refusal(&mut self, refused: &RefusedWrite, before: Option<&Lease>, after: Option<&Lease>) {
        let until = self.clock.saturating_add(REFUSAL).unwrap_or(self.clock);
        let machine = |lease: Option<&Lease>| {
            lease.filter(|lease| lease.released.is_none()).map(|lease| lease.claimant.machine.clone())
        };
        let new = machine(after).filter(|new| machine(before).as_ref() != Some(new));
        let Some(new) = new else { return self.refuse_change(refused) };
        let denied = self.denied.get(&new);
        let is_denied = refused.is_new || denied.is_some();
        let pause = denied.map_or(FIRST_PAUSE, |denied| denied.pause);
        // The second refusal shows that the holder was the reason for the first refusal, so the address is no longer
        // set aside.
        if let Some((network, address)) = denied.and_then(|denied| denied.aside.clone()) {
            self.refuse_address(&network, address, None);
        }
        let aside = (!is_denied).then(|| (Arc::clone(&refused.network), refused.address));
        if !is_denied {
            let change = Denied { until, pause: FIRST_PAUSE, reason: refused.reason.clone(), aside: None };
            self.unchanged.insert((Arc::clone(&refused.network), refused.address), change);
            self.refuse_address(&refused.network, refused.address, Some(until));
        }
        let (until, pause) = match is_denied {
            true => (self.clock.saturating_add(pause).unwrap_or(self.clock), REFUSAL.min(pause * 2)),
            false => (self.clock, pause),
        };
        self.denied.insert(new, Denied { until, pause, reason: refused.reason.clone(), aside });
    }

    /// Notes that the ledger refuses to change or release the lease of the holder of an address. Only this holder
    /// waits, so the first pause is short. Each further refusal doubles the pause.
    fn refuse_change(&mut self, refused: &RefusedWrite) {
        let path = (Arc::clone(&refused.network), refused.address);
        let pause = self.unchanged.get(&path).map_or(FIRST_PAUSE, |denied| denied.pause);
        let until = self.clock.saturating_add(pause).unwrap_or(self.clock);
        let change = Denied { until, pause: REFUSAL.min(pause * 2), reason: refused.reason.clone(), aside: None };
        self.unchanged.insert(path, change);
        self.refuse_address(&refused.network, refused.address, Some(until));
    }

    /// Ends the refusals of a machine and of the lease of an address, after the ledger has recorded a lease of this
    /// machine and address.
    pub(crate) fn note_recorded(&mut self, network: &Arc<str>, address: IpAddr, machine: &Machine) {
        self.denied.remove(machine);
        self.unchanged.remove(&(Arc::clone(network), address));
    }

    /// Why the ledger refuses to change a lease of a machine. `None`: the ledger refuses no such change.
    #[must_use]
    #[doc(hidden)]
    pub fn why_unchanged(&self, machine: &Machine) -> Option<ClaimError> {
        let mut held = self.held_by(machine).into_iter();
        let (network, address, _) = held.find(|(network, address, _)| self.is_refused(network, *address))?;
        Some(self.refused(network, address))
    }

    /// Returns the error of a claim that needs a change of this lease, which the ledger refuses.
    pub(super) fn refused(&self, network: &str, address: IpAddr) -> ClaimError {
        let why = self.unchanged.get(&(Arc::from(network), address)).map(|denied| format!(": {}", denied.reason));
        let reason = format!("the ledger refused to change the lease of {address}{}", why.unwrap_or_default());
        ClaimError::NotRecorded { reason }
    }

    /// Ends the pause of a machine whose lease the ledger refused.
    pub(crate) fn end_pause(&mut self, machine: &Machine) {
        if let Some(denied) = self.denied.get_mut(machine) {
            denied.until = self.clock.min(denied.until);
        }
    }

    /// Fails with the reason if a machine gets no further lease for now, because the ledger refused a lease of the
    /// machine.
    pub(super) fn check_denied(&self, machine: &Machine) -> Result<(), ClaimError> {
        match self.denied.get(machine).filter(|denied| !is_over(denied.until, self.clock)) {
            Some(denied) => Err(ClaimError::NotRecorded { reason: denied.reason.clone() }),
            None => Ok(()),
        }
    }

    /// Fails with the reason if the ledger refuses for now to record a lease of this address for this machine.
    pub(super) fn check_recordable(&self, network: &str, address: IpAddr, machine: &Machine) -> Result<(), ClaimError> {
        match self.is_refused(network, address) {
            true => Err(self.refused(network, address)),
            false => self.check_denied(machine),
        }
    }

    /// The time before which a machine gets no further lease. `None`: the ledger has refused no lease of the machine.
    #[cfg(test)]
    pub(crate) fn denied_until(&self, machine: &Machine) -> Option<jiff::Timestamp> {
        Some(self.denied.get(machine)?.until)
    }

    /// The time before which the lease of an address does not change. `None`: the ledger has refused no change.
    #[cfg(test)]
    pub(crate) fn unchanged_until(&self, network: &str, address: IpAddr) -> Option<jiff::Timestamp> {
        Some(self.unchanged.get(&(Arc::from(network), address))?.until)
    }

    /// Whether the ledger refuses to change the lease of an address.
    pub(super) fn is_refused(&self, network: &str, address: IpAddr) -> bool {
        self.networks.get(network).is_some_and(|network| network.is_refused(address))
    }

    /// Sets the time until which the lease of an address does not change. `None`: the lease can change.
    pub(super) fn refuse_address(&mut self, name: &Arc<str>, address: IpAddr, until: Option<jiff::Timestamp>) {
        let Some(network) = self.networks.get_mut(name) else { return };
        if until.is_none() && !network.is_refused(address) {
            return;
        }
        let was_occupied = network.is_occupied(address);
        network.set_refused(address, until);
        self.occupy_again(name, address, was_occupied);
    }
}
