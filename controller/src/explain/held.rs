//! The type for an address that a machine or claim holds, for the answers of several commands.

use serde::Serialize;

use crate::kinds::mac_pool::MAC_NETWORK;
use crate::kinds::pool::LeaseSpec;

/// An address that a machine or claim holds.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub struct HeldAddress {
    /// The address with its prefix length, or a MAC address.
    pub address: String,
    /// Network to which the address belongs.
    pub network: String,
    /// Interface of the machine that has the address. For a claim, the interface that the pool names.
    pub interface: String,
    /// Pool to which the lease of the address belongs.
    pub pool: String,
    /// Time of the allocation, as RFC 3339.
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
