//! Classifies a recorded address by the pools and leases of its network, and decides whether its record becomes a
//! lease, reserves the address, or is ignored.

use std::net::IpAddr;

use super::network::Network;
use super::pool_state::PoolState;
use super::state::Allocator;
use crate::host::claim::{Claimant, Lease, Machine, is_guest_of, is_successor};
use crate::host::may_record::{Source, Standing, Verdict, may_record};
use crate::host::pool::{Pool, Reserved, ReservedAddress};
use crate::network::Family;

// === impl Allocator ===

impl Allocator {
    /// Decides whether a record of an address becomes a lease, reserves the address, or is ignored: see [`may_record`].
    #[must_use]
    #[doc(hidden)]
    pub fn may_record(&self, source: Source, claimant: &Claimant, network: &str, address: IpAddr) -> Verdict {
        may_record(source, self.standing(source, claimant, network, address))
    }

    /// How the pools and leases of a network classify an address for the claimant of a record.
    pub(super) fn standing(&self, source: Source, claimant: &Claimant, network: &str, address: IpAddr) -> Standing {
        let machine = &claimant.machine;
        let Some(state) = self.networks.get(network) else { return Standing::NoPool };
        let holder = state.held_at(address).map(|lease| &*lease.claimant);
        // The holder of a reported address may be the machine, its VirtualMachine or its claim.
        let is_of_guest = |holder: &Claimant| source == Source::Report && is_guest_of(machine, &holder.machine);
        if holder.is_some_and(|holder| holder == claimant || is_of_guest(holder)) {
            return Standing::Held;
        }
        let serves = |pool: &Pool| is_everywhere(source, machine) || pool.serves_holder(machine);
        let having: Vec<&PoolState> = self.pools_with(network, address).collect();
        let own: Vec<&PoolState> = having.iter().copied().filter(|state| serves(state.pool())).collect();
        let is_served = || match is_everywhere(source, machine) {
            true => state.pools().next().is_some(),
            false => state.serves(machine),
        };
        let has_left = own.is_empty() && having.iter().any(|state| state.may_have_served(machine));
        if own.is_empty() && !has_left && (!having.is_empty() || !is_served()) {
            return Standing::Foreign;
        }
        // `clusterctl move` has moved the claim and its IPAddress to another cluster and back.
        let is_back = |last: &Lease| source == Source::IpAddress && is_successor(&last.claimant.machine, machine);
        let is_contested = !matches!(source, Source::Report | Source::Neighbour)
            && (state.delayed_for(address, machine).is_some_and(|last| !is_back(last))
                || is_contested(state, machine, address));
        if holder.is_some() || is_contested {
            return Standing::HeldByOther;
        }
        if own.iter().any(|state| state.offers_to(machine, address)) {
            return Standing::Offered;
        }
        let pools = if has_left { &having } else { &own };
        if self.named_on(network, address, machine).is_some() || pools.iter().any(|state| is_end(state, address)) {
            return Standing::Reserved;
        }
        // Another program may allocate an address that no pool offers.
        if state.pools().any(|pool| pool.is_external() && serves(pool)) {
            Standing::Offered
        } else {
            Standing::Excluded
        }
    }

    /// Why a pool or template of a network reserves exactly this address: as a gateway, as a name server, in a template
    /// or for another machine. An exclusion does not count, because another program may allocate the excluded address.
    pub(super) fn named_on(&self, network: &str, address: IpAddr, machine: &Machine) -> Option<ReservedAddress> {
        let is_kept = |reserved: &&ReservedAddress| {
            let pool = self.pool(&reserved.pool).filter(|_| reserved.why == Reserved::PreAllocated);
            pool.is_some_and(|pool| pool.pre_allocated(&machine.namespace, &machine.name).contains(&address))
        };
        let reasons = self.networks.get(network)?.named(address);
        reasons.iter().find(|reserved| !is_kept(reserved)).cloned()
    }
}

/// Whether a record counts for the pools of every namespace. A report does: its address is in use, even if no pool
/// serves the namespace of its claimant. A record of an unknown machine does, too: this machine may be in any
/// namespace.
pub(super) fn is_everywhere(source: Source, machine: &Machine) -> bool {
    matches!(source, Source::Report | Source::Neighbour) || !machine.may_exist()
}

/// Whether another machine has a record of an address, or a guest of another machine reports the address. The report of
/// a Service or a Cluster does not count, because the reported address may be that of the machine. For a claim, the
/// report of a guest in its namespace does not count, because the guest may use the claim.
fn is_contested(state: &Network, machine: &Machine, address: IpAddr) -> bool {
    let is_user = |guest: &Machine| machine.kind.is_claim() && guest.served_in() == machine.served_in();
    state.is_recorded_by_other(address, machine)
        || state
            .reported_by_others(address, machine)
            .any(|claimant| claimant.machine.kind.may_hold() && !is_user(&claimant.machine))
}

/// Whether an address is a reserved end of a subnet of a pool.
fn is_end(state: &PoolState, address: IpAddr) -> bool {
    let space = state.pool().space(Family::of(address)).filter(|space| space.contains(address));
    space.is_some_and(|space| space.is_end_of_subnet(Family::number(address)))
}
