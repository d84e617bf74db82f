//! Decides which reported addresses are reserved. Pure decision logic: the input is guests, pools and the time, and the
//! output is changes of the reservations.
//!
//! | event | effect |
//! |---|---|
//! | an instance in phase Running reports an address | its reservation begins, within the bounds |
//! | the instance is gone, has another UID, or is in a final phase | its reservations end |
//! | a connected agent has reported, for [`ABSENCE`], another address of a pool and of the family on the interface of the address | the reservation ends |
//! | no agent is connected, or the network is not reported | nothing: a reboot or a restart of the agent empties the report |
//! | the report has no such address, or another name of the interface | nothing: KubeVirt may hide the address, see `Reported` |
//!
//! The bounds limit how many addresses a guest can reserve with false reports:
//!
//! - A guest can reserve at most [`MOST_REPORTED`] addresses. No other bound applies to addresses of a pool that is in
//!   the namespace of the guest, or that serves only this namespace.
//! - In a pool that serves this namespace and other namespaces, the first address of each family of a guest on a
//!   network is always reserved, because the pool has normally allocated it. Further addresses count as in other pools.
//!   An object that names no network has no such first address: a user can create any number of these objects.
//! - In other pools, only the first [`MOST_OF_GUEST`] addresses of each family of a guest on a network count, and the
//!   guests of one namespace reserve at most a quarter of a pool.
//! - Addresses that were reported first stay reserved. When one of these reservations ends, the next address is
//!   reserved.
//!
//! The cost of a change of one instance does not depend on the number of instances. A new leader starts from the
//! current reports: it reserves no address that only earlier reports contained.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use glowplug::host::pool::Pool;
use glowplug::network::Family;

use crate::cluster::key::Key;
use crate::kinds::guest::{Guest, Life, MOST_REPORTED, Reported};
use crate::pools::beyond::Beyond;
use crate::reports::bounds::{Bound, MOST_OF_GUEST, Place, Pools, Queue, Share};

/// Time for which a connected agent must report other addresses in place of an address before the reservation of the
/// address ends.
pub(super) const ABSENCE: Duration = Duration::from_secs(600);

/// The reported addresses of all guests.
#[derive(Debug, Default)]
pub(super) struct Reservations {
    /// The pools of each network.
    pools: BTreeMap<String, Pools>,
    guests: BTreeMap<Key, Known>,
    /// Objects that name no network, with their UID and addresses. An address counts on each network that has a pool
    /// with the address.
    anywhere: BTreeMap<Key, (String, BTreeSet<IpAddr>)>,
    queues: BTreeMap<Share, Queue<Place>>,
    /// For each pool and guest, the number of addresses beyond the bounds.
    beyond: BTreeMap<String, BTreeMap<Key, usize>>,
    /// The absent addresses, sorted by the time at which their reservation ends.
    absent: BTreeSet<(Instant, Place)>,
    /// Number that the next new address gets.
    next: u64,
    /// The reservations that have begun (`true`) or ended (`false`) since the last [`Reservations::take_changes`], in
    /// this order.
    steps: Vec<(Reservation, bool)>,
}

/// A reservation that begins or ends.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) struct Reservation {
    pub(super) place: Place,
    /// UID of the instance or other object.
    pub(super) uid: String,
}

/// The reservations that begin and end.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(super) struct Changes {
    pub(super) begun: Vec<Reservation>,
    pub(super) ended: Vec<Reservation>,
}

/// The known addresses of a guest. A guest without an address is not stored.
#[derive(Debug)]
struct Known {
    uid: String,
    networks: BTreeMap<String, BTreeMap<IpAddr, Tracked>>,
}

/// An address that a guest reports, or has reported.
#[derive(Clone, Debug)]
struct Tracked {
    /// Number of the address. Addresses are numbered in the order in which they were first seen.
    seen: u64,
    /// Name of the interface on which the guest first reported the address. A later name may be that of an interface
    /// with the same MAC address.
    name: Option<Arc<str>>,
    /// Time at which the reservation ends, if the guest reports other addresses in place of this address until then.
    /// `None`: the last report of the guest has the address, or KubeVirt may hide the address.
    until: Option<Instant>,
    standing: Standing,
}

/// Whether an address is reserved, and why.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Standing {
    /// Not reserved: no pool has the address.
    Unused,
    /// Reserved, and not counted in the share of the namespace.
    Served,
    /// Reserved, and counted in the share of the namespace.
    Admitted,
    /// Not reserved: the share of the namespace is used up.
    Waiting,
    /// Not reserved: the guest already has the maximum number of addresses that count in shares.
    Crowded,
}

// === impl Reservations ===

impl Reservations {
    /// Replaces the pools, and decides again about the addresses on networks whose pools have changed.
    pub(super) fn set_pools(&mut self, pools: impl IntoIterator<Item = Pool>) {
        let mut by_network: BTreeMap<String, Vec<Pool>> = BTreeMap::new();
        for pool in pools {
            by_network.entry(pool.network().to_owned()).or_default().push(pool);
        }
        let has_changed = |network: &&String| {
            let before = self.pools.get(*network).map(|pools| pools.pools().collect::<Vec<_>>());
            by_network.get(*network).map(|pools| pools.iter().collect::<Vec<_>>()) != before
        };
        let networks: BTreeSet<&String> = self.pools.keys().chain(by_network.keys()).collect();
        let changed: BTreeSet<String> = networks.into_iter().filter(has_changed).cloned().collect();
        for network in &changed {
            let before = self.pools.remove(network);
            let names: BTreeSet<&str> = before.iter().flat_map(Pools::pools).map(Pool::name).collect();
            self.queues.retain(|share, _| !names.contains(share.pool.as_str()));
            self.beyond.retain(|pool, _| !names.contains(pool.as_str()));
            if let Some(pools) = by_network.remove(network) {
                self.pools.insert(network.clone(), Pools::new(pools));
            }
        }
        // Addresses that are reserved now come before other addresses. In each group, the address that was seen first
        // comes first.
        let mut places: Vec<(bool, u64, Place)> = Vec::new();
        for (guest, known) in &mut self.guests {
            for (network, addresses) in known.networks.iter_mut().filter(|(network, _)| changed.contains(*network)) {
                for (address, tracked) in addresses {
                    let place = Place { guest: guest.clone(), network: network.clone(), address: *address };
                    let before = std::mem::replace(&mut tracked.standing, Standing::Unused);
                    // The next report decides again whether the guest has replaced the address.
                    if let Some(until) = tracked.until.take() {
                        self.absent.remove(&(until, place.clone()));
                    }
                    if before.is_reserved() {
                        let uid = known.uid.clone();
                        self.steps.push((Reservation { place: place.clone(), uid }, false));
                    }
                    places.push((!before.is_reserved(), tracked.seen, place));
                }
            }
        }
        places.sort_unstable();
        places.iter().for_each(|(_, _, place)| self.settle(place));
        if !changed.is_empty() {
            self.anywhere.keys().cloned().collect::<Vec<_>>().iter().for_each(|key| self.spread(key));
        }
    }

    /// Updates the addresses of an object that names no network. The addresses count on each network that has a pool
    /// with the address. When the object no longer has an address, its reservation ends at once.
    pub(super) fn apply_anywhere(&mut self, key: &Key, uid: &str, addresses: BTreeSet<IpAddr>) {
        if self.anywhere.get(key).is_some_and(|(known, _)| known != uid) || addresses.is_empty() {
            self.remove(key);
        }
        let networks = self.guests.get(key).into_iter().flat_map(|known| &known.networks);
        let places = networks.flat_map(|(network, all)| {
            let place = |address: &IpAddr| Place { guest: key.clone(), network: network.clone(), address: *address };
            all.keys().filter(|address| !addresses.contains(*address)).map(place).collect::<Vec<_>>()
        });
        places.collect::<Vec<Place>>().iter().for_each(|place| self.untrack(place));
        if !addresses.is_empty() {
            self.anywhere.insert(key.clone(), (uid.to_owned(), addresses));
            self.spread(key);
        }
    }

    /// Tracks the addresses of an object on each network that has a pool with the address.
    fn spread(&mut self, key: &Key) {
        let Some((uid, addresses)) = self.anywhere.get(key).cloned() else { return };
        let known = self.guests.get(key).into_iter().flat_map(|known| &known.networks);
        let unused = known.flat_map(|(network, all)| {
            let unused = all.iter().filter(|(_, tracked)| tracked.standing == Standing::Unused);
            unused.map(|(at, _)| Place { guest: key.clone(), network: network.clone(), address: *at })
        });
        unused.collect::<Vec<_>>().iter().for_each(|place| self.untrack(place));
        let mut places = Vec::new();
        for (network, pools) in &self.pools {
            let is_had = |address: &&IpAddr| pools.bound(&key.namespace, **address) != Bound::Unused;
            let having = addresses.iter().filter(is_had);
            places.extend(having.map(|at| Place { guest: key.clone(), network: network.clone(), address: *at }));
        }
        places.into_iter().for_each(|place| self.track(&uid, place, None));
    }

    /// Updates the addresses that a guest reports.
    pub(super) fn apply(&mut self, key: &Key, guest: &Guest, now: Instant) {
        let is_other = self.guests.get(key).is_some_and(|known| known.uid != guest.uid);
        if is_other || guest.life == Life::Ended {
            self.remove(key);
        }
        if guest.life == Life::Ended {
            return;
        }
        self.note_absences(key, guest, now);
        if guest.life == Life::Running {
            for (network, reported) in &guest.networks {
                for (address, name) in &reported.addresses {
                    let place = Place { guest: key.clone(), network: network.clone(), address: *address };
                    self.track(&guest.uid, place, name.clone());
                }
            }
        }
    }

    /// Removes a guest whose instance is gone.
    pub(super) fn remove(&mut self, key: &Key) {
        self.anywhere.remove(key);
        let Some(known) = self.guests.get(key) else { return };
        let mut places: Vec<(u64, Place)> = Vec::new();
        for (network, addresses) in &known.networks {
            let place = |address: &IpAddr| Place { guest: key.clone(), network: network.clone(), address: *address };
            places.extend(addresses.iter().map(|(address, tracked)| (tracked.seen, place(address))));
        }
        // The last addresses are removed first. Otherwise another address of the same guest would be reserved in place
        // of a removed address.
        places.sort_unstable_by(|one, other| other.cmp(one));
        places.iter().for_each(|(_, place)| self.untrack(place));
    }

    /// Ends the reservations of addresses that have been absent for long enough.
    pub(super) fn expire(&mut self, now: Instant) {
        while let Some((until, _)) = self.absent.first()
            && *until <= now
            && let Some((_, place)) = self.absent.pop_first()
        {
            self.untrack(&place);
        }
    }

    /// Returns the reservations that have begun and ended since the last call.
    pub(super) fn take_changes(&mut self) -> Changes {
        // The first and last step of each reservation. If the first step is an end, the last call had the reservation.
        let mut effects: BTreeMap<Reservation, (bool, bool)> = BTreeMap::new();
        for (reservation, is_begin) in std::mem::take(&mut self.steps) {
            effects.entry(reservation).or_insert((is_begin, is_begin)).1 = is_begin;
        }
        let mut changes = Changes::default();
        for (reservation, effect) in effects {
            match effect {
                (true, true) => changes.begun.push(reservation),
                (false, false) => changes.ended.push(reservation),
                (true, false) | (false, true) => {}
            }
        }
        changes
    }

    /// Time at which the next reservation ends. `None`: no address is absent.
    pub(super) fn next_end(&self) -> Option<Instant> {
        self.absent.first().map(|(until, _)| *until)
    }

    /// The names of guests and other objects that have an address. The same name can occur twice.
    pub(super) fn guests(&self) -> impl Iterator<Item = &Key> {
        self.guests.keys().chain(self.anywhere.keys())
    }

    /// For each pool, by name, a summary of the addresses that are not reserved because they are beyond the bounds.
    pub(super) fn beyond(&self) -> BTreeMap<String, Beyond> {
        self.beyond.iter().map(|(pool, guests)| (pool.clone(), Beyond::of(guests))).collect()
    }

    /// Updates which addresses of a guest are absent, that is, replaced by another address of a pool. For an address
    /// that no pool has, any other address is enough: otherwise, daily changes would use up [`MOST_REPORTED`].
    fn note_absences(&mut self, key: &Key, guest: &Guest, now: Instant) {
        let Some(known) = self.guests.get_mut(key) else { return };
        for (network, addresses) in &mut known.networks {
            let (reported, pools) = (guest.networks.get(network), self.pools.get(network));
            let is_of_pool = |other: IpAddr| pools.is_some_and(|pools| pools.pools().any(|pool| pool.contains(other)));
            for (address, tracked) in addresses {
                let is_unused = tracked.standing == Standing::Unused;
                let has_replaced = |reported: &Reported| {
                    reported.has_replaced(*address, tracked.name.as_deref(), |other| is_unused || is_of_pool(other))
                };
                let is_absent = guest.life == Life::Running && reported.is_some_and(has_replaced);
                let place = || Place { guest: key.clone(), network: network.clone(), address: *address };
                match (tracked.until, is_absent) {
                    (None, true) => {
                        let until = now + ABSENCE;
                        tracked.until = Some(until);
                        self.absent.insert((until, place()));
                    }
                    (Some(until), false) => {
                        tracked.until = None;
                        self.absent.remove(&(until, place()));
                    }
                    (None, false) | (Some(_), true) => {}
                }
            }
        }
    }

    /// Adds an address that a running guest reports, unless the guest has too many addresses.
    fn track(&mut self, uid: &str, place: Place, name: Option<Arc<str>>) {
        let known = self
            .guests
            .entry(place.guest.clone())
            .or_insert_with(|| Known { uid: uid.to_owned(), networks: BTreeMap::new() });
        let is_known = known.networks.get(&place.network).is_some_and(|all| all.contains_key(&place.address));
        // The limit applies only to guests. An object that names no network has few addresses, and each of them may
        // count on several networks.
        let is_anywhere = self.anywhere.contains_key(&place.guest);
        let is_full = || known.networks.values().map(BTreeMap::len).sum::<usize>() >= MOST_REPORTED;
        if is_known || !is_anywhere && is_full() {
            return;
        }
        let tracked = Tracked { seen: self.next, name, until: None, standing: Standing::Unused };
        self.next += 1;
        known.networks.entry(place.network.clone()).or_default().insert(place.address, tracked);
        self.settle(&place);
    }

    /// Decides whether a tracked address is reserved. The address must not count in a share yet.
    fn settle(&mut self, place: &Place) {
        let Some(seen) = self.tracked(place).map(|tracked| tracked.seen) else { return };
        let standing = match self.bound(place) {
            Bound::Unused => Standing::Unused,
            Bound::Served => Standing::Served,
            Bound::Common(_) if self.is_first(place) => Standing::Served,
            Bound::Common(share) | Bound::Shared(share) if self.shared(place) < MOST_OF_GUEST => {
                let most = self.pools.get(&place.network).map_or(0, |pools| pools.most(&share));
                let queue = self.queues.entry(share.clone()).or_insert_with(|| Queue::new(most));
                if queue.add(seen, place.clone()) { Standing::Admitted } else { Standing::Waiting }
            }
            Bound::Common(_) | Bound::Shared(_) => Standing::Crowded,
        };
        self.set_standing(place, standing);
    }

    /// Whether an address is the first of its family that a guest reports on the network. `false` for an object that names
    /// no network: a guest needs a machine, but a user can create any number of Clusters.
    fn is_first(&self, place: &Place) -> bool {
        !self.anywhere.contains_key(&place.guest) && self.count(place, |standing| standing == Standing::Served) == 0
    }

    /// Number of addresses of the same guest, network and family that count in shares.
    fn shared(&self, place: &Place) -> usize {
        self.count(place, |standing| matches!(standing, Standing::Admitted | Standing::Waiting))
    }

    /// Number of addresses of the same guest, network and family whose standing satisfies `is_meant`.
    fn count(&self, place: &Place, is_meant: impl Fn(Standing) -> bool) -> usize {
        let Some(known) = self.guests.get(&place.guest) else { return 0 };
        let of_network = known.networks.get(&place.network).into_iter().flatten();
        let of_family = of_network.filter(|(address, _)| Family::of(**address) == Family::of(place.address));
        of_family.filter(|(_, tracked)| is_meant(tracked.standing)).count()
    }

    fn bound(&self, place: &Place) -> Bound {
        let pools = self.pools.get(&place.network);
        pools.map_or(Bound::Unused, |pools| pools.bound(&place.guest.namespace, place.address))
    }

    fn tracked(&self, place: &Place) -> Option<&Tracked> {
        self.guests.get(&place.guest)?.networks.get(&place.network)?.get(&place.address)
    }

    fn reservation(&self, place: &Place) -> Option<Reservation> {
        let uid = self.guests.get(&place.guest)?.uid.clone();
        Some(Reservation { place: place.clone(), uid })
    }

    fn set_standing(&mut self, place: &Place, standing: Standing) {
        let known = self.guests.get_mut(&place.guest).and_then(|known| known.networks.get_mut(&place.network));
        let Some(tracked) = known.and_then(|addresses| addresses.get_mut(&place.address)) else { return };
        let before = std::mem::replace(&mut tracked.standing, standing);
        if standing.is_reserved() && !before.is_reserved() {
            self.steps.extend(self.reservation(place).map(|reservation| (reservation, true)));
        }
        if before.is_beyond() != standing.is_beyond()
            && let Some(share) = self.bound(place).share()
        {
            self.count_beyond(share.pool, &place.guest, standing.is_beyond());
        }
    }

    fn count_beyond(&mut self, pool: String, guest: &Key, is_more: bool) {
        let guests = self.beyond.entry(pool.clone()).or_default();
        let count = guests.entry(guest.clone()).or_default();
        *count = if is_more { *count + 1 } else { count.saturating_sub(1) };
        if *count == 0 {
            guests.remove(guest);
        }
        if guests.is_empty() {
            self.beyond.remove(&pool);
        }
    }

    /// Removes an address. If this ends a reservation, the next address is reserved instead.
    fn untrack(&mut self, place: &Place) {
        let Some(Tracked { seen, until, standing, .. }) = self.tracked(place).cloned() else { return };
        if standing.is_reserved() {
            self.steps.extend(self.reservation(place).map(|reservation| (reservation, false)));
        }
        if let Some(until) = until {
            self.absent.remove(&(until, place.clone()));
        }
        self.set_standing(place, Standing::Unused);
        let bound = self.bound(place);
        if let Some(known) = self.guests.get_mut(&place.guest) {
            if let Some(addresses) = known.networks.get_mut(&place.network) {
                addresses.remove(&place.address);
                if addresses.is_empty() {
                    known.networks.remove(&place.network);
                }
            }
            if known.networks.is_empty() {
                self.guests.remove(&place.guest);
            }
        }
        let Some(share) = bound.share() else { return };
        if let Some(queue) = self.queues.get_mut(&share) {
            let next = queue.remove(seen);
            if queue.is_empty() {
                self.queues.remove(&share);
            }
            if let Some(next) = next {
                self.set_standing(&next, Standing::Admitted);
            }
        }
        if standing != Standing::Crowded {
            self.settle_next(place);
        }
    }

    /// Decides again about the earliest crowded address of the same guest, network and family.
    fn settle_next(&mut self, place: &Place) {
        let addresses = self.guests.get(&place.guest).and_then(|known| known.networks.get(&place.network));
        let of_family =
            addresses.into_iter().flatten().filter(|(address, _)| Family::of(**address) == Family::of(place.address));
        let crowded = of_family.filter(|(_, tracked)| tracked.standing == Standing::Crowded);
        let Some((address, _)) = crowded.min_by_key(|(_, tracked)| tracked.seen) else { return };
        let next = Place { address: *address, ..place.clone() };
        self.settle(&next);
    }
}

// === impl Standing ===

impl Standing {
    fn is_reserved(self) -> bool {
        matches!(self, Self::Served | Self::Admitted)
    }

    fn is_beyond(self) -> bool {
        matches!(self, Self::Waiting | Self::Crowded)
    }
}

// === impl Changes ===

impl Changes {
    pub(super) fn is_empty(&self) -> bool {
        self.begun.is_empty() && self.ended.is_empty()
    }
}

#[cfg(test)]
pub(super) mod tests;
