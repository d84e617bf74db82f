//! Deletes released leases, so that their number does not grow with every machine that ever existed.

use std::collections::BTreeSet;

use glowplug::host::allocator::forgettable;
use k8s_openapi::jiff::Timestamp;
use pnet_base::MacAddr;

use crate::macs::objects::{Leased, Objects};
use crate::macs::plan::Action;

// === impl Objects ===

impl Objects {
    /// Returns the actions that delete the released leases that are not needed any more, at most 32. The newest lease
    /// of each interface of a machine name stays, as for IP addresses. The leases of the addresses in `planned` stay:
    /// another action of the plan replaces them.
    pub(super) fn deletions(&self, planned: &BTreeSet<MacAddr>, now: Timestamp) -> Vec<Action> {
        let (mut held, mut released) = (0, Vec::new());
        for (address, lease) in self.leases.iter() {
            let Ok(lease) = lease else { continue };
            match &lease.released {
                None => held += 1,
                Some(time) => released.push((time.0, *address)),
            }
        }
        let spec = |address: &MacAddr| self.leases.get(address)?.as_ref().ok();
        let name = |address: &MacAddr| {
            let holder = &spec(address)?.holder;
            Some((holder.namespace.as_str(), holder.name.as_str(), holder.interface.as_str()))
        };
        let is_free =
            |address: &MacAddr| !planned.contains(address) && matches!(self.lease(*address, now), Leased::Free { .. });
        let deletion = |address: MacAddr| {
            let (version, lease) = (self.leases.version(&address)?, Box::new(spec(&address)?.clone()));
            Some(Action::Delete { address, version, lease })
        };
        forgettable(released, held, name, is_free).into_iter().filter_map(deletion).collect()
    }
}
