//! The addresses with two users: see [`super::users`].

use std::net::IpAddr;

use super::network::Network;
use super::state::Allocator;
use super::users::{Evidence, User, differs, differs_from_any};
use crate::host::claim::Claimant;

/// An address with two users.
#[derive(Clone, Debug, Eq, PartialEq)]
#[doc(hidden)]
pub struct Conflicted {
    /// Name of the network.
    pub network: String,
    /// The address.
    pub address: IpAddr,
    /// The holder, or the last holder if its guest migrated to another cluster. `None`: the address has neither.
    pub holder: Option<Claimant>,
    /// The users other than the holder. Only users that certainly differ from at least one other user are listed.
    pub others: Vec<OtherUser>,
}

/// A user of an address that another claimant uses, too.
#[derive(Clone, Debug, Eq, PartialEq)]
#[doc(hidden)]
pub struct OtherUser {
    /// The user.
    pub claimant: Claimant,
    /// Kind and name of the object with the record or report.
    pub source: String,
    /// Whether a running guest reports the address. Otherwise an object records the address.
    pub is_report: bool,
}

// === impl Allocator ===

impl Allocator {
    /// Whether an address of a network has two users.
    #[must_use]
    #[doc(hidden)]
    pub fn is_conflict(&self, network: &str, address: IpAddr) -> bool {
        let Some(state) = self.networks.get(network) else { return false };
        let users = state.users(address);
        let is_offered = || self.is_offered(network, address);
        users.len() > 1 && users.iter().any(|user| differs_from_any(user, &users, &is_offered))
    }

    /// The addresses with two users, sorted by network and address.
    #[must_use]
    #[doc(hidden)]
    pub fn conflicted(&self) -> Vec<Conflicted> {
        let mut all = Vec::new();
        for (name, state) in &self.networks {
            for address in state.recorded() {
                let users = state.users(address);
                let is_offered = || self.is_offered(name, address);
                let is_rival = |user: &&User<'_>| differs_from_any(user, &users, &is_offered);
                let rivals: Vec<&User<'_>> = users.iter().filter(is_rival).collect();
                if rivals.is_empty() {
                    continue;
                }
                let holder = users.first().filter(|user| matches!(user.evidence, Evidence::Lease | Evidence::Migrated));
                let is_other = |user: &&User<'_>| holder.is_none_or(|holder| !user.is_of(holder));
                let others = rivals.into_iter().filter(is_other).map(|user| OtherUser {
                    claimant: user.claimant(),
                    source: user.source.to_owned(),
                    is_report: user.evidence == Evidence::Report,
                });
                let (others, holder) = (others.collect(), holder.map(User::claimant));
                all.push(Conflicted { network: name.to_string(), address, holder, others });
            }
        }
        all
    }

    /// Whether a pool of a network offers an address, to all machines or to a single machine.
    pub(super) fn is_offered(&self, network: &str, address: IpAddr) -> bool {
        let mut pools = self.pools_with(network, address);
        pools.any(|state| state.offered().offers(address) || state.pre_allocated.contains(&address))
    }
}

// === impl Network ===

impl Network {
    /// The users of an address: first the holder, then the users with a record, and last the guests that report the
    /// address.
    pub(super) fn users(&self, address: IpAddr) -> Vec<User<'_>> {
        let (mut recorders, mut reporters) = (Vec::new(), Vec::new());
        for user in self.recorders(address).chain(self.reporters(address)) {
            let of_evidence = if user.evidence == Evidence::Report { &mut reporters } else { &mut recorders };
            of_evidence.push(user);
        }
        self.holding(address).into_iter().chain(recorders).chain(reporters).collect()
    }

    /// Whether the report of a guest contradicts the holder or another user of the address. `false` if the address has
    /// no holder, or if the guest is the holder's own guest.
    pub(super) fn guest_differs(&self, address: IpAddr, claimant: &Claimant, is_offered: &dyn Fn() -> bool) -> bool {
        let Claimant { machine, interface } = claimant;
        let is_own = self.has_own_record(address, machine);
        let guest = User { machine, interface: *interface, source: "", evidence: Evidence::Report, is_own };
        let Some(holder) = self.holding(address).filter(|holder| !guest.is_of(holder)) else { return false };
        let differs_from = |other: &User<'_>| differs(&guest, other);
        differs_from(&holder)
            || self.recorders(address).any(|other| differs_from(&other))
            || is_offered() && self.reporters(address).any(|other| differs_from(&other))
    }

    /// The holder of an address, or the machine whose guest migrated with the address.
    fn holding(&self, address: IpAddr) -> Option<User<'_>> {
        let held = self.held_at(address).map(|lease| (lease, Evidence::Lease));
        let (lease, evidence) = held.or_else(|| self.migrated_at(address).map(|lease| (lease, Evidence::Migrated)))?;
        let Claimant { machine, interface } = &*lease.claimant;
        Some(User { machine, interface: *interface, source: "", evidence, is_own: false })
    }
}
