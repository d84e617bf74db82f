//! The share of one namespace in a pool: it limits the addresses that records of its machines, and records of its
//! claims, reserve without a lease, and the addresses of guests of the namespace that migrated to another cluster.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use super::attribution::Origin;
use super::pool_state::{PoolState, Recorders};
use super::state::Allocator;
use crate::host::change::Journal;
use crate::host::claim::{Lease, Machine};
use crate::host::may_record::{Ignored, Source, State};
use crate::network::{Family, InterfaceName};

/// The share of a namespace is the size of the pool, divided by this number. In a shared pool, the share limits how many
/// addresses are reserved without a lease: by records of machines of the namespace, and by records of its claims. In a
/// pool that serves several namespaces, the share also limits how many addresses are kept for guests of the namespace
/// that migrated to another cluster.
const PART: u128 = 4;

/// Maximum number of addresses that records of one claim reserve without a lease. The status of an IPAMClaim has at
/// most as many addresses.
const MOST_OF_CLAIM: usize = 16;

/// The share of a namespace in an external pool, for guests that migrated. The size of an external pool is not known.
const MOST_OF_EXTERNAL: u128 = 64;

// === impl Allocator ===

impl Allocator {
    /// Reserves an address for the machine or claim of a record without a lease. Returns why the limits do not allow
    /// this.
    pub(super) fn reserve(
        &mut self,
        network: &Arc<str>,
        address: IpAddr,
        origin: &Origin,
        state: State,
        journal: &mut Journal,
    ) -> Option<Ignored> {
        let why = self.exceeds_share(network, address, origin);
        if why.is_none() {
            self.add_conflict(network, address, origin, state, journal);
        }
        why
    }

    /// How this record exceeds the limits: records of its claim already reserve as many addresses as one claim may
    /// reserve, or records of the namespace already reserve its share of a shared pool. `None`: the record is within the
    /// limits. Without these limits, a user of one namespace could block all addresses with the annotation of one
    /// machine, or with one claim. Reports have other limits.
    ///
    /// The machines of a namespace have one share, and its claims of each kind have another one. A user may write the
    /// address of a claim into the network data of a machine: the records of such machines leave the share of the claims
    /// to the IPAddresses without a claim.
    ///
    /// One address of each family for each interface of a machine, and for a claim, is reserved despite the share, because
    /// the machine may use the address. The record must be of a machine or claim: see [`Source::is_of_holder`]. An address
    /// counts once, so a second record of an address needs no further place. But while the first addresses of machines
    /// exceed the share, no other machine gets a record of these addresses: the record would outlast these machines.
    fn exceeds_share(&self, network: &str, address: IpAddr, origin: &Origin) -> Option<Ignored> {
        let machine = &origin.claimant.machine;
        let state = self.networks.get(network)?;
        let is_report = matches!(origin.kind, Source::Report | Source::Neighbour);
        if is_report || !machine.may_exist() || state.mentions(address, machine) {
            return None;
        }
        if machine.kind.is_claim() && self.conflicts_of(machine).count() >= MOST_OF_CLAIM {
            return Some(Ignored::Claim);
        }
        let mut pools = self.pools_with(network, address);
        // A pool counts as shared if it no longer serves the namespace, because it then serves other namespaces. A pool
        // of the namespace that serves no machine is not shared: it has no users in other namespaces.
        let serves = |of: &PoolState| of.pool().serves_holder(machine) || of.serves_claims_beside(machine);
        let is_shared = |of: &PoolState| of.pool().is_shared() || !serves(of);
        let of = pools.next().filter(|of| is_shared(of) && pools.all(is_shared))?;
        let space = of.pool().space(Family::of(address))?;
        let is_first = || origin.kind.is_of_holder() && !self.has_address_of_each(network, address, origin);
        let recorders = Recorders::of(machine);
        let is_further = !state.is_recorded_by(address, &recorders);
        let reserved = of.recorded.get(&(space.family(), recorders)).copied().unwrap_or_default();
        let after = reserved + usize::from(is_further);
        let most = usize::try_from((space.total() / PART).max(1)).unwrap_or(usize::MAX);
        (after > most && !is_first()).then_some(Ignored::Share)
    }

    /// Whether the machine of a record already has another address of the same family for each of its interfaces. The
    /// machine holds such an address, or a record of the machine reserves it. A machine with network data of a user does
    /// not use the addresses that it holds, and a guest that KubeVirt has moved to the network has a further address, so
    /// the held addresses do not count for such a record. The interfaces are those of the shared pools of the network
    /// that serve the machine. Interfaces that only a record names do not count, because a user can write any number of
    /// them. A claim has one interface.
    fn has_address_of_each(&self, network: &str, address: IpAddr, origin: &Origin) -> bool {
        let machine = &origin.claimant.machine;
        let Some(state) = self.networks.get(network) else { return false };
        let pools = state.pools().filter(|pool| pool.is_shared() && pool.serves_holder(machine));
        let interfaces: BTreeSet<InterfaceName> = pools.map(|pool| pool.interface).collect();
        let count_held = !matches!(origin.kind, Source::NetworkData | Source::MovedGuest);
        let is_used = |other: &IpAddr| {
            let lease = state.held_at(*other).filter(|_| count_held);
            lease.is_some_and(|lease| lease.claimant.machine == *machine) || state.is_recorded_for(*other, machine)
        };
        let others = self.others_of(network, address, machine).filter(is_used);
        let interfaces = if machine.kind.is_claim() { 1 } else { interfaces.len().max(1) };
        others.take(interfaces).count() == interfaces
    }

    /// The other addresses of the same family and network that a machine holds, last held or records.
    fn others_of(&self, network: &str, address: IpAddr, machine: &Machine) -> impl Iterator<Item = IpAddr> {
        let paths = self.paths.get(machine).into_iter().flatten();
        let others = paths.filter(move |(of, other)| {
            **of == *network && *other != address && Family::of(*other) == Family::of(address)
        });
        others.map(|(_, other)| *other)
    }

    /// Whether the namespace of the holder may keep one more address of the pool for a guest that migrated to another
    /// cluster. Without this limit, one namespace could use up a pool of several namespaces for 30 days.
    pub(super) fn may_keep_for_migrated(&self, network: &str, address: IpAddr, lease: &Lease) -> bool {
        let namespace = lease.claimant.machine.served_in();
        // The lease may have moved away from a pool of several namespaces that still has the address. So every pool
        // with the address counts, too.
        let mut pools = self.pools_with(network, address).chain(self.pools.get(&lease.pool)).map(PoolState::pool);
        let Some(pool) = pools.find(|pool| !pool.serves_only(namespace)) else { return true };
        let Some(state) = self.networks.get(network) else { return true };
        let family = Family::of(address);
        let is_kept = |(at, other): &(IpAddr, &Lease)| {
            (*other.pool == pool.name || pool.contains(*at))
                && Family::of(*at) == family
                && other.claimant.machine.served_in() == namespace
                && other.migrated.is_some()
                && (other.released.is_none() || state.delayed_until(*at).is_some())
        };
        let most = match pool.is_external() {
            true => MOST_OF_EXTERNAL,
            false => (pool.space(family).map_or(0, |space| space.allocatable()) / PART).max(1),
        };
        (state.leases().filter(is_kept).count() as u128) < most
    }
}
