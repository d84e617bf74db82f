//! Adoption: adds leases from the records of Kubernetes objects, and reports records that do not fit. It never frees an
//! address.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use jiff::Timestamp;

use super::Allocator;
use crate::host::change::{Change, Journal};
use crate::host::claim::{Claimant, Conflict, Lease, Record};
use crate::host::pool::ReservedAddress;
use crate::network::{Family, InterfaceName};

/// Result of an adoption.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub struct Adoption {
    /// Number of addresses that had no holder and are now leased to the claimant of their record.
    pub adopted: usize,
    /// Number of addresses that the claimant of their record already held.
    pub known: usize,
    /// The addresses that do not fit the ledger or the pools, in the order of the records.
    pub mismatches: Vec<Mismatch>,
}

/// An address of a record that does not fit the ledger or the pools.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct Mismatch {
    /// Kind and name of the object with the record.
    pub source: String,
    /// The claimant that the record names.
    pub claimant: Claimant,
    /// The recorded address.
    pub address: IpAddr,
    /// Why the address does not fit.
    pub problem: Problem,
}

/// Why an address of a record does not fit the ledger or the pools.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum Problem {
    /// Another claimant holds the address or has a record of it. The holder keeps the address. The address is not
    /// allocated again before both machines are gone.
    Duplicate(Claimant),
    /// No pool has the interface and the address of the record. The address is not allocated before the machine is
    /// gone.
    NoPool,
    /// The address may be on any of these networks. The address is not allocated on any of them before the machine is
    /// gone.
    Ambiguous(Vec<String>),
    /// The interface already holds this other address of the family, and keeps it. The address of the record is not
    /// allocated before the machine is gone.
    OtherAddress(IpAddr),
    /// The claimant holds the address on this other network. The address is not allocated on either network before the
    /// machine is gone.
    OtherNetwork(String),
    /// The pool with this name, which the record belongs to, does not have the address. The machine keeps the address.
    OutOfPool(String),
    /// The pool with this name, which the record belongs to, reserves the address. The machine keeps the address.
    Reserved(String, Option<ReservedAddress>),
    /// The pool of the record has this other prefix length. The machine keeps the prefix length of the record.
    Prefix(u8),
}

/// The pool or the networks to which an address of a record belongs.
enum Attribution {
    /// The address belongs to this pool.
    Pool(Arc<str>),
    /// The address belongs to one of these networks.
    Ambiguous(Vec<Arc<str>>),
    /// The address belongs to no pool. A conflict is recorded on each of these networks.
    NoPool(Vec<Arc<str>>),
}

/// Pools by interface and network.
type PoolsOf = BTreeMap<InterfaceName, BTreeMap<Arc<str>, Vec<Arc<str>>>>;

/// A record without its addresses.
struct Origin {
    claimant: Arc<Claimant>,
    node_pool: Option<String>,
    attachments: Vec<String>,
    network: Option<String>,
    source: Arc<str>,
}

/// Result for one address of a record.
enum Outcome {
    Added,
    Known,
    Refused,
}

// === impl Allocator ===

impl Allocator {
    /// Adopts records: adds a lease for each recorded address that the ledger does not have.
    ///
    /// Adoption never frees an address and never changes its holder. An address that does not fit is reported at each
    /// adoption, and is not allocated to anybody. If two records have one address, the first record counts.
    pub(crate) fn adopt(
        &mut self,
        records: impl IntoIterator<Item = Record>,
        now: Timestamp,
        journal: &mut Journal,
    ) -> Adoption {
        self.advance(now);
        let pools = self.pools_by_interface();
        let mut adoption = Adoption::default();
        for Record { claimant, node_pool, attachments, network, addresses, source } in records {
            let (claimant, source) = (Arc::new(claimant), Arc::from(source));
            let origin = Origin { claimant, node_pool, attachments, network, source };
            for network in addresses {
                let (address, prefix) = (network.ip(), network.prefix());
                let prefix = Some(prefix).filter(|prefix| *prefix < Family::of(address).bits());
                let mut problems = Vec::new();
                match self.adopt_address(&origin, address, prefix, &pools, &mut problems, journal) {
                    Outcome::Added => adoption.adopted += 1,
                    Outcome::Known => adoption.known += 1,
                    Outcome::Refused => {}
                }
                adoption.mismatches.extend(problems.into_iter().map(|problem| Mismatch {
                    source: origin.source.to_string(),
                    claimant: Claimant::clone(&origin.claimant),
                    address,
                    problem,
                }));
            }
        }
        self.leave_settled(journal);
        adoption
    }

    /// Adopts one address of a record.
    fn adopt_address(
        &mut self,
        origin: &Origin,
        address: IpAddr,
        prefix: Option<u8>,
        pools: &PoolsOf,
        problems: &mut Vec<Problem>,
        journal: &mut Journal,
    ) -> Outcome {
        let family = Family::of(address);
        let held: Vec<(Arc<str>, IpAddr)> = self
            .held_by(&origin.claimant.machine)
            .into_iter()
            .filter(|(_, held, lease)| lease.claimant == origin.claimant && Family::of(*held) == family)
            .map(|(network, held, _)| (Arc::clone(network), held))
            .collect();
        let known = held.iter().find(|(_, held)| *held == address).map(|(network, _)| network);
        let name = match self.attribute(origin, address, pools) {
            Attribution::Pool(name) => name,
            Attribution::Ambiguous(networks) if !known.is_some_and(|known| networks.contains(known)) => {
                networks.iter().for_each(|network| self.add_conflict(network, address, origin, journal));
                problems.push(Problem::Ambiguous(networks.iter().map(ToString::to_string).collect()));
                return Outcome::Refused;
            }
            Attribution::NoPool(networks) if !known.is_some_and(|known| networks.contains(known)) => {
                networks.iter().for_each(|network| self.add_conflict(network, address, origin, journal));
                problems.push(Problem::NoPool);
                return Outcome::Refused;
            }
            // The record does not contain the network, but the ledger has a lease of the address for this claimant.
            Attribution::Ambiguous(_) | Attribution::NoPool(_) => return Outcome::Known,
        };
        let Some((pool, offers)) =
            self.pools.get(&name).map(|state| (state.pool().clone(), state.offered().offers(address)))
        else {
            return Outcome::Refused;
        };
        let network: Arc<str> = Arc::from(pool.network.as_str());
        let state = self.networks.entry(Arc::clone(&network)).or_default();
        match state.held_at(address).map(|lease| Arc::clone(&lease.claimant)) {
            Some(holder) if holder == origin.claimant => return Outcome::Known,
            Some(holder) => {
                problems.push(Problem::Duplicate(Claimant::clone(&holder)));
                self.add_conflict(&network, address, origin, journal);
                return Outcome::Refused;
            }
            None => {}
        }
        if let Some((_, held)) = held.first() {
            let other_network = known.map(|known| Problem::OtherNetwork(known.to_string()));
            problems.push(other_network.unwrap_or(Problem::OtherAddress(*held)));
            self.add_conflict(&network, address, origin, journal);
            return Outcome::Refused;
        }
        if let Some(other) = state.conflict_at(address, |other| *other != *origin.claimant) {
            problems.push(Problem::Duplicate(other));
        }
        let has_own = state.conflicts_of(address, &origin.claimant.machine).contains(&origin.claimant.interface);
        if !offers {
            problems.push(if pool.contains(address) {
                Problem::Reserved(pool.name.clone(), self.why_reserved(&name, address))
            } else {
                Problem::OutOfPool(pool.name.clone())
            });
        }
        let length = pool.space(family).map(|space| space.prefix());
        if let (Some(prefix), Some(length)) = (prefix, length)
            && prefix != length
        {
            problems.push(Problem::Prefix(length));
        }
        let lease = Lease {
            claimant: Arc::clone(&origin.claimant),
            pool: name,
            prefix: prefix.or(length).unwrap_or(family.bits()),
            since: self.now,
            released: None,
            reuse_after: None,
        };
        if has_own {
            let (network, claimant) = (Arc::clone(&network), Arc::clone(&origin.claimant));
            self.decide(Change::Conflict { network, address, claimant, source: None }, journal);
        }
        self.decide(Change::Lease { network, address, lease: Some(lease) }, journal);
        Outcome::Added
    }

    /// Adds a conflict, so that nobody gets the address before the machine of the conflict is released. The conflict is
    /// added on every network that has a pool with the address; on `network` only, if the network is known.
    pub(crate) fn set_aside(
        &mut self,
        address: IpAddr,
        network: Option<&str>,
        conflict: Conflict,
        now: Timestamp,
        journal: &mut Journal,
    ) {
        self.advance(now);
        let (claimant, source) = (Arc::new(conflict.claimant), Arc::from(conflict.source));
        let origin = Origin { claimant, node_pool: None, attachments: Vec::new(), network: None, source };
        let is_meant = |name: &Arc<str>| network.is_none_or(|network| *network == **name);
        for network in self.networks_with(address).into_iter().filter(is_meant) {
            self.add_conflict(&network, address, &origin, journal);
        }
    }

    /// Finds the pool or the networks of a recorded address. In this order, these decide: the NodePool of the object,
    /// the networks of the object, the network that the record names, and the address itself.
    fn attribute(&self, origin: &Origin, address: IpAddr, pools: &PoolsOf) -> Attribution {
        let none = BTreeMap::new();
        let of_interface = pools.get(&origin.claimant.interface).unwrap_or(&none);
        let named = origin.node_pool.as_deref();
        let on = |network: &Arc<str>| {
            let names = of_interface.get(network).map_or(&[][..], Vec::as_slice);
            self.pool_among(names, named, address)
                .map_or_else(|| Attribution::NoPool(vec![Arc::clone(network)]), Attribution::Pool)
        };
        let node_pool = named.and_then(|name| self.pools.get(name)).map(|state| state.pool());
        let node_pool = node_pool.filter(|pool| pool.interface == origin.claimant.interface);
        if let Some((network, _)) = node_pool.and_then(|pool| of_interface.get_key_value(pool.network.as_str())) {
            return on(network);
        }
        let is_attached = |network: &&Arc<str>| origin.attachments.iter().any(|attached| **attached == ***network);
        let attached: Vec<&Arc<str>> = of_interface.keys().filter(is_attached).collect();
        // The record may name one of the networks of its object, also a network without a pool in the ledger.
        let names_attached = origin.network.as_ref().is_some_and(|name| origin.attachments.contains(name));
        if let [network] = attached[..]
            && !names_attached
        {
            return on(network);
        }
        if let Some(name) = &origin.network {
            return match self.networks.get_key_value(name.as_str()) {
                Some((network, _)) => on(network),
                None => Attribution::NoPool(Vec::new()),
            };
        }
        let candidates = if origin.attachments.is_empty() { of_interface.keys().collect() } else { attached };
        let has = |network: &&&Arc<str>| {
            let names = of_interface.get(**network).into_iter().flatten();
            names.into_iter().any(|name| self.pools.get(name).is_some_and(|state| state.pool().contains(address)))
        };
        let having: Vec<&Arc<str>> = candidates.iter().filter(has).copied().collect();
        match if having.is_empty() { &candidates[..] } else { &having[..] } {
            [] => Attribution::NoPool(self.networks_with(address)),
            [network] => on(network),
            several => Attribution::Ambiguous(several.iter().map(|network| Arc::clone(network)).collect()),
        }
    }

    /// Chooses one of the pools of one interface and network: the named pool, else a pool that offers the address, else
    /// a pool that has the address, else the first pool, since an address may move to another pool of its network.
    fn pool_among(&self, names: &[Arc<str>], named: Option<&str>, address: IpAddr) -> Option<Arc<str>> {
        let is_named = |name: &&Arc<str>| Some(&***name) == named;
        let offers = |name: &&Arc<str>| self.pools.get(*name).is_some_and(|state| state.offered().offers(address));
        let has = |name: &&Arc<str>| self.pools.get(*name).is_some_and(|state| state.pool().contains(address));
        let found = names.iter().find(is_named).or_else(|| names.iter().find(offers));
        found.or_else(|| names.iter().find(has)).or(names.first()).cloned()
    }

    fn pools_by_interface(&self) -> PoolsOf {
        let mut pools = PoolsOf::new();
        for (name, state) in &self.pools {
            let networks = pools.entry(state.pool().interface).or_default();
            networks.entry(Arc::from(state.pool().network.as_str())).or_default().push(Arc::clone(name));
        }
        pools
    }

    /// The networks that have a pool with the address.
    fn networks_with(&self, address: IpAddr) -> Vec<Arc<str>> {
        let has = |name: &&Arc<str>| self.pools().any(|pool| *pool.network == ***name && pool.contains(address));
        self.networks.keys().filter(has).cloned().collect()
    }

    /// Adds a conflict for a record of an address that its claimant does not hold.
    fn add_conflict(&mut self, network: &Arc<str>, address: IpAddr, origin: &Origin, journal: &mut Journal) {
        let Claimant { machine, interface } = &*origin.claimant;
        let is_noted = self.networks.get(network).is_some_and(|state| {
            state.held_at(address).is_some_and(|lease| lease.claimant == origin.claimant)
                || state.conflicts_of(address, machine).contains(interface)
        });
        if !is_noted {
            let (claimant, source) = (Arc::clone(&origin.claimant), Some(Arc::clone(&origin.source)));
            self.decide(Change::Conflict { network: Arc::clone(network), address, claimant, source }, journal);
        }
    }
}

// === impl Mismatch ===

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { source, claimant, address, problem } = self;
        write!(f, "{source}: {address} of {claimant} ")?;
        match problem {
            Problem::Duplicate(other) => write!(f, "is also of {other}"),
            Problem::NoPool => f.write_str("belongs to no pool"),
            Problem::Ambiguous(networks) => {
                write!(f, "is on one of the networks {}: reserved on each of them", networks.join(", "))
            }
            Problem::OtherAddress(held) => write!(f, "is not what it holds, which is {held}"),
            Problem::OtherNetwork(network) => write!(f, "is held on another network, {network}"),
            Problem::OutOfPool(pool) => write!(f, "is not in pool {pool:?}"),
            Problem::Reserved(pool, why) => {
                write!(f, "is reserved in pool {pool:?}")?;
                why.as_ref().map_or(Ok(()), |why| write!(f, " ({})", why.of(pool)))
            }
            Problem::Prefix(length) => write!(f, "has another prefix length than its pool, which has {length}"),
        }
    }
}
