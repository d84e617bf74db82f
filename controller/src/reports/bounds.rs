//! Decides to which pools a reported address belongs, and how many reported addresses of a namespace a pool reserves.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use glowplug::host::pool::{Pool, Reserved};
use glowplug::network::Family;

use crate::cluster::key::{Key, PoolId};

/// For each guest, network and family: the maximum number of reported addresses that count in shares ([`Share`]).
pub(super) const MOST_OF_GUEST: usize = 4;
/// The size of a share is the number of all addresses of the family in the pool, divided by this number. A pool has a
/// share for the namespace of a guest only if the pool does not serve this namespace, or also serves other namespaces.
const PART: u128 = 4;
/// Size of a share of a pool whose addresses come from another program: the size of such a pool is unknown.
const MOST_OF_EXTERNAL: usize = 64;

/// An address that a guest reports on a network.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) struct Place {
    pub(super) guest: Key,
    pub(super) network: String,
    pub(super) address: IpAddr,
}

/// The pools of one network.
#[derive(Debug, Default)]
pub(super) struct Pools(Vec<Offer>);

/// A pool, the addresses that it pre-allocates, and the single addresses that it reserves for the network, such as
/// gateways.
#[derive(Debug)]
struct Offer {
    pool: Pool,
    pre_allocated: BTreeSet<IpAddr>,
    of_network: BTreeSet<IpAddr>,
}

/// How the pools of a network classify an address that a guest reports.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Bound {
    /// No pool has the address, so it needs no reservation.
    Unused,
    /// The address is in a pool that serves only the namespace of the guest, or that is in this namespace.
    Served,
    /// The address is in a pool that serves the namespace of the guest and other namespaces.
    Common(Share),
    /// The address is only in pools that do not serve the namespace of the guest.
    Shared(Share),
}

/// Limits how many addresses of a pool the guests of one namespace can reserve. There is no limit if the pool is in
/// this namespace, or serves only this namespace.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) struct Share {
    /// Name of the pool whose addresses are limited.
    pub(super) pool: String,
    pub(super) namespace: String,
    pub(super) family: Family,
}

/// The reported addresses of a share, in the order in which they were first seen. The first `most` addresses are
/// admitted.
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

    /// Decides how the pools classify an address that a guest of a namespace reports.
    pub(super) fn bound(&self, namespace: &str, address: IpAddr) -> Bound {
        let mut pools = self.0.iter().filter(|offer| offer.has(address)).map(|offer| &offer.pool).peekable();
        let Some(first) = pools.peek().map(|pool| pool.name().to_owned()) else { return Bound::Unused };
        // A claim in the namespace of the guest may be for the guest, so a pool in this namespace counts as a pool that
        // serves the guest. A global pool is in no namespace, and claims of every namespace get its addresses.
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

    /// Maximum number of addresses in a share. The maximum is at least 1, even in a small pool, because a running guest
    /// has priority over a waiting machine.
    pub(super) fn most(&self, share: &Share) -> usize {
        let offer = self.0.iter().find(|offer| offer.pool.name() == share.pool);
        if offer.is_some_and(|offer| offer.pool.is_external()) {
            return MOST_OF_EXTERNAL;
        }
        // All addresses of the pool count. If only usable addresses counted, a new exclusion or gateway could end the
        // reservation of a running guest.
        let total = offer.and_then(|offer| offer.pool.space(share.family)).map_or(0, |space| space.total());
        usize::try_from((total / PART).max(1)).unwrap_or(usize::MAX)
    }
}

// === impl Bound ===

impl Bound {
    /// The share that limits the reservation of the address. `None`: no limit applies, or no pool has the address.
    pub(super) fn share(self) -> Option<Share> {
        match self {
            Self::Common(share) | Self::Shared(share) => Some(share),
            Self::Unused | Self::Served => None,
        }
    }
}

// === impl Offer ===

impl Offer {
    /// Whether a machine can get the address from this pool, or could get it before the pool excluded it. A pool whose
    /// addresses come from another program can have any address.
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

    /// Adds an address. Returns `true` if the address is admitted, and `false` if it waits.
    pub(super) fn add(&mut self, seen: u64, place: P) -> bool {
        let is_admitted = self.admitted.len() < self.most;
        let queue = if is_admitted { &mut self.admitted } else { &mut self.waiting };
        queue.insert(seen, place);
        is_admitted
    }

    /// Removes an address. Returns the waiting address that is admitted instead, if there is one.
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
