//! Who uses an address, and which addresses have two users: the conflicts.
//!
//! | user | evidence | until |
//! |---|---|---|
//! | the holder | its lease | the release |
//! | a guest that migrated to another cluster | the released lease | the end of the reuse delay |
//! | the machine of a record | the record | the release of the machine, or the end of the record |
//! | a guest | its report | the end of the report |
//!
//! An address is a conflict while it has two users, and only then. A record of a gateway or of no pool has one user. These count
//! as one user, too:
//!
//! - the objects of one VirtualMachine, which has one guest
//! - an IPAddressClaim, and a machine of its namespace that has the address in network data of its own, or whose guest reports
//!   the address: the claim may be for this machine
//! - the unknown machine of a record that cannot be read, and any other: they may be the same
//! - several guests that report an address which no pool offers, such as a virtual address of MetalLB, kube-vip or EgressIP
//! - a guest that migrated to another cluster, and a guest that reports the address: they may be the same

use std::net::IpAddr;

use super::network::Network;
use super::state::Allocator;
use crate::host::claim::{Claimant, HolderKind, Machine, is_guest_of};

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
    /// The users that are not the holder and differ from another user.
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
    /// Whether a running guest reports the address. Else an object records it.
    pub is_report: bool,
}

/// Why a claimant counts as a user of an address.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Evidence {
    Lease,
    Migrated,
    Record,
    /// A record that asks for no lease: network data of a user, for example.
    OwnRecord,
    Report,
}

/// A user of an address.
#[derive(Clone, Debug)]
pub(super) struct User<'n> {
    pub(super) claimant: Claimant,
    pub(super) source: &'n str,
    pub(super) evidence: Evidence,
}

// === impl Allocator ===

impl Allocator {
    /// Whether two users have an address of a network.
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
                    claimant: user.claimant.clone(),
                    source: user.source.to_owned(),
                    is_report: user.evidence == Evidence::Report,
                });
                let (others, holder) = (others.collect(), holder.map(|holder| holder.claimant.clone()));
                all.push(Conflicted { network: name.to_string(), address, holder, others });
            }
        }
        all
    }

    /// Whether a pool of a network offers an address, to every machine or to one.
    fn is_offered(&self, network: &str, address: IpAddr) -> bool {
        let mut pools = self.pools_with(network, address);
        pools.any(|state| state.offered().offers(address) || state.pre_allocated.contains(&address))
    }
}

// === impl Network ===

impl Network {
    /// The users of an address: the holder first, and guests that report it last.
    pub(super) fn users(&self, address: IpAddr) -> Vec<User<'_>> {
        let (mut recorders, mut reporters) = (Vec::new(), Vec::new());
        for user in self.recorders(address).chain(self.reporters(address)) {
            let of_evidence = if user.evidence == Evidence::Report { &mut reporters } else { &mut recorders };
            of_evidence.push(user);
        }
        self.holding(address).into_iter().chain(recorders).chain(reporters).collect()
    }

    /// Whether the holder of an address is another user than a guest that reports the address. `false` without a holder.
    pub(super) fn holder_differs(&self, address: IpAddr, claimant: &Claimant) -> bool {
        let guest = User { claimant: claimant.clone(), source: "", evidence: Evidence::Report };
        self.holding(address).is_some_and(|holder| differs(&holder, &guest))
    }

    /// The holder of an address, or the machine whose guest migrated with the address.
    fn holding(&self, address: IpAddr) -> Option<User<'_>> {
        let held = self.held_at(address).map(|lease| (lease, Evidence::Lease));
        let (lease, evidence) = held.or_else(|| self.migrated_at(address).map(|lease| (lease, Evidence::Migrated)))?;
        Some(User { claimant: Claimant::clone(&lease.claimant), source: "", evidence })
    }
}

// === impl User ===

impl User<'_> {
    /// Whether this is the holder, or its guest.
    fn is_of(&self, holder: &User<'_>) -> bool {
        let (machine, other) = (&self.claimant.machine, &holder.claimant.machine);
        machine == other || holder.evidence == Evidence::Lease && is_guest_of(machine, other)
    }
}

/// Whether a user differs from any of the users of an address.
fn differs_from_any(user: &User<'_>, users: &[User<'_>], is_offered: &dyn Fn() -> bool) -> bool {
    let is_report = |user: &&User<'_>| user.evidence == Evidence::Report;
    let mut others = users.iter().take_while(|other| !is_report(other));
    if others.any(|other| differs(user, other)) {
        return true;
    }
    let mut reports = users.iter().filter(is_report);
    match is_report(&user) {
        true => is_offered() && reports.any(|other| differs(user, other)),
        false => reports.any(|other| differs(user, other)),
    }
}

/// Whether two users of one address are certainly not one user.
fn differs(one: &User<'_>, other: &User<'_>) -> bool {
    use Evidence::{Migrated, OwnRecord, Report};
    let (machine, other_machine) = (&one.claimant.machine, &other.claimant.machine);
    if machine == other_machine || !machine.may_exist() || !other_machine.may_exist() {
        return false;
    }
    // A new machine may have the name of the machine whose guest migrated.
    match (one.evidence, other.evidence) {
        (Migrated, Report) | (Report, Migrated) => return false,
        (Migrated, _) | (_, Migrated) => return true,
        _ => {}
    }
    let is_for = |claim: &Machine, user: &User<'_>| {
        claim.kind == HolderKind::IpAddressClaim
            && matches!(user.evidence, OwnRecord | Report)
            && !user.claimant.machine.kind.is_claim()
            && user.claimant.machine.served_in() == claim.served_in()
    };
    !is_guest_of(machine, other_machine) && !is_for(machine, other) && !is_for(other_machine, one)
}
