//! Bounds the number of MAC addresses that one VirtualMachine can keep from all others.
//!
//! A VirtualMachine keeps the leases of all addresses that it ever had, because KubeVirt may start an instance from an
//! older version. Otherwise, a user who changes the addresses of one VirtualMachine again and again could use up a pool,
//! and store any number of leases. At the bound, the VirtualMachine gets no further lease, and the leases whose addresses
//! neither the VirtualMachine nor its instance has are released with a reuse delay. An address without a lease is still
//! not allocated while the VirtualMachine or its instance has the address.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;

use crate::macs::objects::{Leased, Objects};

/// Maximum number of leases of one VirtualMachine. KubeVirt allows 256 interfaces, and the instance may have other
/// addresses than the VirtualMachine.
pub(super) const MOST_OF_MACHINE: usize = 512;
/// Reuse delay of an address that is released while its VirtualMachine exists. Until then, KubeVirt has noticed the change
/// of the VirtualMachine, and an instance that it has started from an older version is known.
pub(super) const REUSE_DELAY: Duration = Duration::from_secs(10 * 60);
/// Reason of the event about a machine at the bound.
pub(super) const TOO_MANY: &str = "TooManyMACAddresses";

// === impl Objects ===

impl Objects {
    /// The number of leases that are held or have a reuse delay, by the UID of the VirtualMachine.
    pub(super) fn leases_by_machine(&self, now: Timestamp) -> BTreeMap<&str, usize> {
        let mut numbers = BTreeMap::new();
        for (address, lease) in self.leases.iter() {
            if let Ok(lease) = lease
                && !matches!(self.lease(*address, now), Leased::Free { .. })
            {
                *numbers.entry(lease.holder.uid.as_str()).or_default() += 1;
            }
        }
        numbers
    }
}

/// Returns the note of the event about a machine at the bound.
pub(super) fn too_many() -> String {
    format!(
        "The machine has leases of {MOST_OF_MACHINE} MAC addresses, the most of one machine: no further address gets a lease until \
         earlier addresses are released, which neither the VirtualMachine nor its instance has"
    )
}
