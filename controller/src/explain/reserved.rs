//! Lists the addresses that no other machine gets, because an object or a guest has them without a lease.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use glowplug::host::allocator::{Allocator, Reported};
use glowplug::host::claim::{Claimant, Conflict};
use glowplug::host::may_record::State;
use glowplug::host::pool::Pool;
use serde::Serialize;

/// An address that no other machine gets, because an object or a guest has the address without a lease.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Reserved {
    /// The address.
    pub address: String,
    /// Network to which the address belongs.
    pub network: String,
    /// Why the address is reserved: `excluded`, `byRecord` or `byReport`.
    pub state: &'static str,
    /// Namespace and name of the machine or other object that has the address.
    pub object: String,
}

/// The column titles of the table of reserved addresses.
pub(super) const HEAD: [&str; 4] = ["RESERVED", "NETWORK", "STATE", "OBJECT"];

/// A user that has an address without a lease: the machine or claim of a record, a guest that reports the address, a
/// Service, or a Cluster.
#[derive(Debug)]
pub(super) struct User {
    pub(super) claimant: Claimant,
    /// Kind and name of the object with the record or report.
    pub(super) source: String,
    /// Why the address is reserved. `None`: this is a report that does not reserve the address.
    pub(super) state: Option<State>,
    is_report: bool,
}

/// The users that have an address without a lease, by network and address. Records come before reports.
#[derive(Debug)]
pub(super) struct Users(BTreeMap<(String, IpAddr), Vec<User>>);

/// Returns the addresses that a leader with this state reserves for an object or a guest. A report counts only if its
/// address is in a pool and has no holder.
pub(super) fn reserved(leader: &Allocator, users: &Users) -> Vec<Reserved> {
    let mut pools: BTreeMap<&str, Vec<&Pool>> = BTreeMap::new();
    leader.pools().for_each(|pool| pools.entry(pool.network()).or_default().push(pool));
    let is_in_pool = |network: &str, address: IpAddr| {
        let mut pools = pools.get(network).into_iter().flatten();
        pools.any(|pool| pool.contains(address) || pool.is_external())
    };
    let mut all = BTreeSet::new();
    for ((network, address), users) in &users.0 {
        let is_held = leader.holder(network, *address).is_some();
        for user in users {
            let is_counted = !user.is_report || !is_held && is_in_pool(network, *address);
            let Some(state) = user.state.filter(|state| *state != State::Mismatch && is_counted) else { continue };
            let (address, state) = (address.to_string(), state.count().word());
            let machine = &user.claimant.machine;
            let object = if machine.kind.may_hold() { machine.title() } else { user.claimant.to_string() };
            let network = network.clone();
            all.insert(Reserved { address, network, state, object });
        }
    }
    all.into_iter().collect()
}

// === impl Users ===

impl Users {
    pub(super) fn of(leader: &Allocator) -> Self {
        let mut users: BTreeMap<(String, IpAddr), Vec<User>> = BTreeMap::new();
        for (network, address, conflict) in leader.conflicts() {
            let Conflict { claimant, source, state, .. } = conflict;
            let user = User { claimant, source, state: Some(state), is_report: false };
            users.entry((network.to_owned(), address)).or_default().push(user);
        }
        for Reported { network, address, claimant, source, is_reserved, .. } in leader.reports() {
            let user = User { claimant, source, state: is_reserved.then_some(State::ByReport), is_report: true };
            users.entry((network, address)).or_default().push(user);
        }
        Self(users)
    }

    pub(super) fn at(&self, network: &str, address: IpAddr) -> &[User] {
        self.0.get(&(network.to_owned(), address)).map_or(&[], Vec::as_slice)
    }
}

// === impl User ===

impl User {
    /// Whether the user is a guest that reports the address.
    pub(super) fn is_of_guest(&self) -> bool {
        self.is_report && self.claimant.machine.kind.may_hold()
    }

    /// Returns the verb for messages: `reports` for a report, `records` for a record.
    pub(super) fn verb(&self) -> &'static str {
        if self.is_report { "reports" } else { "records" }
    }
}

// === impl Reserved ===

impl From<Reserved> for [String; 4] {
    fn from(Reserved { address, network, state, object }: Reserved) -> Self {
        [address, network, state.to_owned(), object]
    }
}
