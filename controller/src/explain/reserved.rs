//! The addresses that no machine gets, because an object or a guest has them without a lease.

use std::collections::BTreeSet;
use std::net::IpAddr;

use glowplug::host::allocator::Allocator;
use glowplug::host::may_record::State;
use serde::Serialize;

/// An address that is not allocated because of an object or a guest.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Reserved {
    /// The address.
    pub address: String,
    /// Network of the address.
    pub network: String,
    /// `excluded`, `byRecord` or `byReport`.
    pub state: &'static str,
    /// Namespace and name of the machine or of the object.
    pub object: String,
}

/// The head of a table of such addresses.
pub(super) const HEAD: [&str; 4] = ["RESERVED", "NETWORK", "STATE", "OBJECT"];

/// Returns the addresses that a leader with this state reserves for an object or a guest. Reports count for the addresses of pools.
pub(super) fn reserved(leader: &Allocator) -> Vec<Reserved> {
    let mut all = BTreeSet::new();
    let mut add = |address: IpAddr, network: &str, state: State, object: String| {
        let (address, network, state) = (address.to_string(), network.to_owned(), state.count().word());
        all.insert(Reserved { address, network, state, object });
    };
    for (network, address, conflict) in leader.conflicts().filter(|(_, _, it)| it.state != State::Mismatch) {
        add(address, network, conflict.state, conflict.claimant.machine.title());
    }
    let in_pool = |network: &str, address: IpAddr| {
        leader.pools().any(|pool| pool.network() == network && (pool.contains(address) || pool.is_external()))
    };
    for report in leader.reports().into_iter().filter(|it| it.is_reserved && it.holder.is_none()) {
        if in_pool(&report.network, report.address) {
            add(report.address, &report.network, State::ByReport, report.claimant.machine.title());
        }
    }
    all.into_iter().collect()
}

// === impl Reserved ===

impl From<Reserved> for [String; 4] {
    fn from(Reserved { address, network, state, object }: Reserved) -> Self {
        [address, network, state.to_owned(), object]
    }
}
