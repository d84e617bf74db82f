//! Which pools a reported address belongs to, and how many reported addresses of a namespace a pool reserves.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use glowplug::host::pool::{Pool, Reserved};
use glowplug::network::Family;

use crate::cluster::key::{Key, PoolId};

/// Largest number of addresses of one family that a guest may have in shares ([`Share`]) on one network.
pub(super) const MOST_OF_GUEST: usize = 4;
/// A share is the number of all addresses of the pool, divided by this number. Only a pool that does not serve the namespace of
/// the guest, or that also serves other namespaces, has a share for it.
const PART: u128 = 4;
/// Number of addresses in a share of a pool whose addresses come from elsewhere: such a pool has no number of addresses.
const MOST_OF_EXTERNAL: usize = 64;

/// A reported address: the guest, the network and the address.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) struct Place {
    pub(super) guest: Key,
    pub(super) network: String,
    pub(super) address: IpAddr,
}

/// The pools of one network.
#[derive(Debug, Default)]
pub(super) struct Pools(Vec<Offer>);

/// A pool, with its pre-allocated addresses, and the single addresses that it reserves for the network, such as gateways.
#[derive(Debug)]
struct Offer {
    pool: Pool,
    pre_allocated: BTreeSet<IpAddr>,
    of_network: BTreeSet<IpAddr>,
}

/// What the pools of a network say about an address that a guest reports.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Bound {
    /// No pool has the address.
    Unused,
    /// A pool that serves the namespace of the guest and no other one, or that is in this namespace, has the address.
    Served,
    /// A pool that serves the namespace of the guest and other ones has the address.
    Common(Share),
    /// Only other pools have the address.
    Shared(Share),
}

/// The part of a pool that the guests of a namespace may reserve, although the pool serves other namespaces.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) struct Share {
    /// Name of the pool.
    pub(super) pool: String,
    pub(super) namespace: String,
    pub(super) family: Family,
}

/// The places of a share in the order in which their addresses were first seen. The first ones stay.
#[derive(Debug)]
pub(super) struct Queue<P> {
    most: usize,
    admitted: BTreeMap<u64, P>,
    waiting: BTreeMap<u64, P>,
}

// === impl Pools ===

impl Pools {
    pub(super) fn new(pools: impl IntoIterator<Item = Pool>) -> Self {
        let offer = |pool: Pool| {
            let (pre_allocated, others): (Vec<_>, Vec<_>) =
                pool.named().into_iter().partition(|(_, why)| *why == Reserved::PreAllocated);
            let of_network = others.into_iter().filter(|(_, why)| *why != Reserved::Excluded);
            Offer {
                pre_allocated: pre_allocated.into_iter().map(|(address, _)| address).collect(),
                of_network: of_network.map(|(address, _)| address).collect(),
                pool,
            }
        };
        Self(pools.into_iter().map(offer).collect())
    }

    pub(super) fn pools(&self) -> impl Iterator<Item = &Pool> {
        self.0.iter().map(|offer| &offer.pool)
    }

    /// What the pools say about an address that a guest of a namespace reports.
    pub(super) fn bound(&self, namespace: &str, address: IpAddr) -> Bound {
        let mut pools = self.0.iter().filter(|offer| offer.has(address)).map(|offer| &offer.pool).peekable();
        let Some(first) = pools.peek().map(|pool| pool.name().to_owned()) else { return Bound::Unused };
        // A claim in the namespace may be for a guest there, so a pool in this namespace is its own. A global pool is in no
        // namespace: claims of every namespace get its addresses.
        let is_in = |pool: &Pool| PoolId::parse(pool.name()).namespace.as_deref() == Some(namespace);
        let (mut is_own, mut common) = (false, None);
        for pool in pools {
            is_own |= is_in(pool) || pool.serves(namespace) && !pool.is_shared();
            common = common.or_else(|| pool.serves(namespace).then(|| pool.name().to_owned()));
        }
        let share = |pool: String| Share { pool, namespace: namespace.to_owned(), family: Family::of(address) };
        match common {
            _ if is_own => Bound::Served,
            Some(pool) => Bound::Common(share(pool)),
            None => Bound::Shared(share(first)),
        }
    }

    /// Largest number of addresses in a share. It is at least one, also in a small pool, because a running guest has priority
    /// over a waiting machine.
    pub(super) fn most(&self, share: &Share) -> usize {
        let offer = self.0.iter().find(|offer| offer.pool.name() == share.pool);
        if offer.is_some_and(|offer| offer.pool.is_external()) {
            return MOST_OF_EXTERNAL;
        }
        // All addresses of the pool count. Otherwise a new exclusion or gateway could end the reservation of a running guest.
        let total = offer.and_then(|offer| offer.pool.space(share.family)).map_or(0, |space| space.total());
        usize::try_from((total / PART).max(1)).unwrap_or(usize::MAX)
    }
}

// === impl Bound ===

impl Bound {
    /// The share in which the address needs a place. `None`: it needs no place.
    pub(super) fn share(self) -> Option<Share> {
        match self {
            Self::Common(share) | Self::Shared(share) => Some(share),
            Self::Unused | Self::Served => None,
        }
    }
}

// === impl Offer ===

impl Offer {
    /// Whether a machine may have the address from this pool, now or before the pool excluded the address. A pool whose addresses
    /// come from elsewhere may have any address.
    fn has(&self, address: IpAddr) -> bool {
        let is_of_machines = self.pool.is_external() || self.pool.contains(address);
        (is_of_machines && !self.of_network.contains(&address)) || self.pre_allocated.contains(&address)
    }
}

// === impl Queue ===

impl<P: Clone> Queue<P> {
    pub(super) fn new(most: usize) -> Self {
        Self { most, admitted: BTreeMap::new(), waiting: BTreeMap::new() }
    }

    /// Adds an address. Returns whether the address is admitted: otherwise it waits.
    pub(super) fn add(&mut self, seen: u64, place: P) -> bool {
        let is_admitted = self.admitted.len() < self.most;
        let queue = if is_admitted { &mut self.admitted } else { &mut self.waiting };
        queue.insert(seen, place);
        is_admitted
    }

    /// Removes an address. Returns the address that is admitted instead.
    pub(super) fn remove(&mut self, seen: u64) -> Option<P> {
        if self.admitted.remove(&seen).is_none() {
            self.waiting.remove(&seen);
            return None;
        }
        let (seen, place) = self.waiting.pop_first()?;
        self.admitted.insert(seen, place.clone());
        Some(place)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.admitted.is_empty()
    }
}
