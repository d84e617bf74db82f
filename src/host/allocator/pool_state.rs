//! The addresses that a pool offers, and which of them are free.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use crate::host::claim::{HolderKind, Machine};
use crate::host::free_ranges::FreeRanges;
use crate::host::pool::Pool;
use crate::network::Family;

#[derive(Clone, Debug)]
pub(super) struct PoolState {
    pub(super) pool: Arc<Pool>,
    // The pool without the addresses that other pools of the network reserve.
    pub(super) offered: Pool,
    // Pre-allocated addresses that the pool can allocate to their machines: only the pre-allocation, and possibly an
    // exclusion of this pool, reserves such an address.
    pub(super) pre_allocated: BTreeSet<IpAddr>,
    // One set for each subnet, in the order of the subnets. The sets include the reserved first and last addresses of
    // subnets: see `Network::free_of`.
    pub(super) free: BTreeMap<Family, Vec<FreeRanges>>,
    // The families of which addresses are closed: see `Registry::open`.
    pub(super) closed: BTreeSet<Family>,
    // Number of addresses that records reserve.
    pub(super) recorded: Counts<Recorders>,
    // Number of held addresses, by namespace: see `Allocator::counted_in`.
    pub(super) held: Counts<String>,
}

/// The machines of a namespace, or its claims of one kind. The share of a pool limits their records.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) struct Recorders {
    namespace: String,
    // `None`: the machines.
    claims: Option<HolderKind>,
}

/// A number of addresses, by family and by those who hold or record the addresses.
pub(super) type Counts<B> = BTreeMap<(Family, B), usize>;

/// Adds one address to the counts, or removes one address.
pub(super) fn count<B: Ord>(counts: &mut Counts<B>, family: Family, by: B, is_added: bool) {
    let key = (family, by);
    let count = counts.get(&key).copied().unwrap_or_default();
    match if is_added { count + 1 } else { count.saturating_sub(1) } {
        0 => counts.remove(&key),
        count => counts.insert(key, count),
    };
}

// === impl Recorders ===

impl Recorders {
    /// The machines of one namespace, or its claims of one kind, to which a machine or claim belongs.
    pub(super) fn of(machine: &Machine) -> Self {
        Self { namespace: machine.served_in().to_owned(), claims: machine.kind.is_claim().then_some(machine.kind) }
    }
}

// === impl PoolState ===

impl PoolState {
    /// The pool as it is specified.
    pub(super) fn pool(&self) -> &Pool {
        &self.pool
    }

    /// The pool, changed to reserve also the addresses that other pools of its network reserve.
    pub(super) fn offered(&self) -> &Pool {
        &self.offered
    }

    /// The address of a family that the pool keeps for a machine.
    pub(super) fn pre_allocated(&self, machine: &Machine, family: Family) -> Option<IpAddr> {
        let kept = self.pool.pre_allocated(&machine.namespace, &machine.name);
        kept.iter().copied().find(|address| Family::of(*address) == family)
    }

    /// Whether the pool can allocate an address to a machine: every machine can get the address, or the pool keeps the
    /// address for this machine.
    pub(super) fn offers_to(&self, machine: &Machine, address: IpAddr) -> bool {
        self.offered.offers(address)
            || self.pre_allocated.contains(&address)
                && self.pre_allocated(machine, Family::of(address)) == Some(address)
    }

    /// Whether records of machines in the namespace of `machine` count although the pool no longer serves the
    /// namespace. They count if machines of the namespace hold addresses of the pool. After a loss of leases, no lease
    /// shows that the pool served the namespace, so records also count in a pool of their own namespace that serves no
    /// machine.
    pub(super) fn may_have_served(&self, machine: &Machine) -> bool {
        let holds = |family| self.held.contains_key(&(family, machine.served_in().to_owned()));
        let has_holders = || [Family::Ipv4, Family::Ipv6].into_iter().any(holds);
        !machine.kind.is_claim() && (self.serves_claims_beside(machine) || has_holders())
    }

    /// Whether the pool is in the namespace of this machine, but serves only claims.
    pub(super) fn serves_claims_beside(&self, machine: &Machine) -> bool {
        let is_of_namespace = self.pool.name.split_once('/').is_some_and(|(of, _)| of == machine.served_in());
        is_of_namespace && !self.pool.serves_machines()
    }

    /// The lowest free address of a family, from the first subnet with a free address.
    pub(super) fn lowest(&mut self, family: Family) -> Option<IpAddr> {
        let (space, subnets) = (self.offered.space(family)?, self.free.get_mut(&family)?);
        subnets.iter_mut().find_map(|free| {
            loop {
                let number = free.lowest()?;
                if !space.is_end_of_subnet(number) {
                    return Some(family.address(number));
                }
                free.take(number).ok()?;
            }
        })
    }

    /// Removes an address from the free addresses, or adds it to them. Does nothing if the pool does not offer the
    /// address on this network.
    pub(super) fn occupy(&mut self, network: &str, address: IpAddr, is_occupied: bool) {
        let (family, number) = Family::split(address);
        if *self.pool.network == *network
            && let Some(space) = self.offered.space(family).filter(|space| space.offers_number(number))
            && let Some(subnet) = space.index_of(number)
            && let Some(free) = self.free.get_mut(&family).and_then(|subnets| subnets.get_mut(subnet))
        {
            let done = if is_occupied { free.take(number) } else { free.add(number) };
            debug_assert_eq!(done, Ok(()), "{address}");
        }
    }
}
