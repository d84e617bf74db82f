//! Finds the users of an address. An address with two users is a conflict.
//!
//! | user | evidence | until |
//! |---|---|---|
//! | the holder | its lease | the release |
//! | a guest that migrated to another cluster | the released lease | the end of the reuse delay |
//! | the machine of a record | the record | the release of the machine, or the end of the record |
//! | a guest | its report | the end of the report |
//!
//! An address is a conflict while it has two users, and only then. A record of a gateway, or of an address of no pool,
//! is one user. These count as one user, too:
//!
//! - the objects of one VirtualMachine, which has one guest
//! - an IPAddressClaim, and a machine of its namespace whose own network data has the address: the claim may be for
//!   this machine. A guest that only reports the address is another user
//! - the unknown machine of an unreadable record, and any other user: they may be the same machine
//! - several guests that report an address that no pool offers, such as a virtual address of MetalLB, kube-vip or
//!   EgressIP
//! - a Service of type LoadBalancer or a Cluster of Cluster API, and any other user: the address may be that of a
//!   machine of the cluster
//! - a guest that migrated to another cluster, and a guest that reports the address: they may be the same guest

use crate::host::claim::{Claimant, HolderKind, Machine, is_guest_of};
use crate::network::InterfaceName;

/// Why a claimant counts as a user of an address.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Evidence {
    Lease,
    Migrated,
    Record,
    Report,
}

/// A user of an address.
#[derive(Clone, Debug)]
pub(super) struct User<'n> {
    pub(super) machine: &'n Machine,
    pub(super) interface: InterfaceName,
    /// Kind and name of the object with the record or report. Empty for a lease.
    pub(super) source: &'n str,
    pub(super) evidence: Evidence,
    /// Whether a record that needs no lease gives the address to the machine, such as network data that a user wrote.
    pub(super) is_own: bool,
}

// === impl User ===

impl User<'_> {
    pub(super) fn claimant(&self) -> Claimant {
        Claimant { machine: self.machine.clone(), interface: self.interface }
    }

    /// Whether this user is the holder, or another object of the holder's VirtualMachine, such as its guest.
    pub(super) fn is_of(&self, holder: &User<'_>) -> bool {
        self.machine == holder.machine
            || holder.evidence == Evidence::Lease && is_guest_of(self.machine, holder.machine)
    }
}

/// Whether a user differs from any of the users of an address. Two guests that only report the address differ only if a
/// pool offers the address.
pub(super) fn differs_from_any(user: &User<'_>, users: &[User<'_>], is_offered: &dyn Fn() -> bool) -> bool {
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

/// Whether two users of an address are certainly different.
pub(super) fn differs(one: &User<'_>, other: &User<'_>) -> bool {
    use Evidence::{Migrated, Report};
    let (machine, other_machine) = (one.machine, other.machine);
    let may_hold = machine.kind.may_hold() && other_machine.kind.may_hold();
    if machine == other_machine || !machine.may_exist() || !other_machine.may_exist() || !may_hold {
        return false;
    }
    // A new machine with the name of the migrated machine is another user.
    match (one.evidence, other.evidence) {
        (Migrated, Report) | (Report, Migrated) => return false,
        (Migrated, _) | (_, Migrated) => return true,
        _ => {}
    }
    let is_for = |claim: &Machine, user: &User<'_>| {
        claim.kind == HolderKind::IpAddressClaim
            && user.is_own
            && !user.machine.kind.is_claim()
            && user.machine.served_in() == claim.served_in()
    };
    !is_guest_of(machine, other_machine) && !is_for(machine, other) && !is_for(other_machine, one)
}
