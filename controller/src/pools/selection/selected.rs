//! The pool that serves an interface of a machine, and its overflow.

use glowplug::network::InterfaceName;

use super::problem::Problem;
use crate::cluster::key::PoolId;

/// The pool that serves an interface of a machine, and its overflow.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Selected {
    /// Namespace and name of the pool that serves the machine first.
    pub pool: PoolId,
    /// The overflow pools, in the order in which they serve the machine when the pool has no free address.
    pub overflow: Vec<PoolId>,
    /// The pools that are being deleted and refer to the machine. They allocate no addresses, and the machine keeps its
    /// leases of them.
    pub ending: Vec<PoolId>,
    /// Network of the addresses, in the notation of [`Pool::network`](glowplug::host::pool::Pool::network).
    pub network: String,
    /// Name of the interface in the guest. Example: `eno101`.
    pub interface: InterfaceName,
    /// KubeVirt's name of the interface. The guest does not see this name.
    pub attachment: String,
}

// === impl Selected ===

impl Selected {
    /// The pools that can allocate addresses to the machine, in the order in which they are tried.
    pub fn pools(&self) -> impl Iterator<Item = &PoolId> {
        [&self.pool].into_iter().chain(&self.overflow)
    }

    /// The pools that can allocate addresses to the machine, and the pools of which it keeps leases.
    pub fn all_pools(&self) -> impl Iterator<Item = &PoolId> {
        self.pools().chain(&self.ending)
    }

    pub(super) fn check_distinct(&self, other: &Self) -> Result<(), Problem> {
        if self.interface != other.interface {
            return Ok(());
        }
        let pools = [self.pool.clone(), other.pool.clone()];
        Err(Problem::TwoPools { pools, interface: self.interface })
    }
}
