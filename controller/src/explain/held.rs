//! The addresses that a machine or claim holds, as the answers of the commands show them.

use serde::Serialize;

use crate::kinds::mac_pool::MAC_NETWORK;
use crate::kinds::pool::LeaseSpec;

/// An address that a machine or claim holds.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub struct HeldAddress {
    /// The address with its prefix length, or a MAC address.
    pub address: String,
    /// Network of the address.
    pub network: String,
    /// Interface of the machine. For a claim, the interface of its pool.
    pub interface: String,
    /// Pool of the address.
    pub pool: String,
    /// Time of the allocation.
    pub since: String,
}

// === impl HeldAddress ===

impl From<&LeaseSpec> for HeldAddress {
    fn from(lease: &LeaseSpec) -> Self {
        Self {
            address: match &*lease.network {
                MAC_NETWORK => lease.address.clone(),
                _ => format!("{}/{}", lease.address, lease.prefix),
            },
            network: lease.network.clone(),
            interface: lease.holder.interface.clone(),
            pool: lease.pool.clone(),
            since: lease.since.0.to_string(),
        }
    }
}
