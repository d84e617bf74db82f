//! Adoption: adds leases from the records of Kubernetes objects, and reports records that do not fit. It never frees an
//! address.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use ipnetwork::IpNetwork;
use jiff::Timestamp;

use super::decide::refused;
use super::network::Network;
use super::state::{Allocator, is_namesake};
use super::types::ClaimError;
use crate::host::change::{Change, Journal};
use crate::host::claim::{Claimant, Lease, Machine, Record, Reservation};
use crate::host::may_record::{Source, State};
use crate::host::pool::{Pool, Reserved, ReservedAddress};
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
    kind: Source,
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
        for Record { claimant, node_pool, attachments, network, addresses, source, kind } in records {
            let (claimant, source) = (Arc::new(claimant), Arc::from(source));
            let origin = Origin { claimant, node_pool, attachments, network, source, kind };
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
        let machine = &origin.claimant.machine;
        let Some((pool, offers)) =
            self.pools.get(&name).map(|state| (state.pool().clone(), state.offers_to(machine, address)))
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
        // The address is not allocated before the machine is gone. The next adoption of the record may succeed.
        if state.is_refused(address) || self.check_denied(machine).is_err() {
            self.add_conflict(&network, address, origin, journal);
            return Outcome::Refused;
        }
        let state = self.networks.entry(Arc::clone(&network)).or_default();
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
        if !offers && !pool.is_external() {
            problems.push(if pool.contains(address) {
                Problem::Reserved(pool.name.clone(), self.why_reserved(&name, address, machine))
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
            secrets: BTreeSet::new(),
            migrated: None,
        };
        if has_own {
            let (network, claimant) = (Arc::clone(&network), Arc::clone(&origin.claimant));
            self.decide(Change::Conflict { network, address, claimant, record: None }, journal);
        }
        self.decide(Change::Lease { network, address, lease: Some(lease) }, journal);
        Outcome::Added
    }

    /// Adds a conflict, so that nobody gets the address before the machine of the conflict is released. The conflict is
    /// added on every network that has a pool with the address; on `network` only, if the network is known.
    pub(crate) fn set_aside(&mut self, reservation: Reservation, now: Timestamp, journal: &mut Journal) {
        self.advance(now);
        let Reservation { address, network, claimant, source, kind } = reservation;
        let (claimant, source) = (Arc::new(claimant), Arc::from(source));
        let origin = Origin { claimant, node_pool: None, attachments: Vec::new(), network: None, source, kind };
        let is_meant = |name: &Arc<str>| network.as_ref().is_none_or(|network| **network == **name);
        for network in self.networks_with(address).into_iter().filter(is_meant) {
            self.add_conflict(&network, address, &origin, journal);
        }
    }

    /// Leases exactly these addresses to a claimant, for its interface on the network of an external pool: all of them
    /// or none. A repeated call changes nothing.
    ///
    /// If another machine holds one of the addresses or has a record of it, a conflict is added: nobody else gets the
    /// address before both machines are gone. `source` says who chose the addresses. The caller must commit the journal
    /// even when the addresses are refused.
    pub(crate) fn hold(
        &mut self,
        pool: &str,
        claimant: &Claimant,
        addresses: &[IpNetwork],
        source: &str,
        now: Timestamp,
        journal: &mut Journal,
    ) -> Result<(), ClaimError> {
        self.advance(now);
        let unknown = || ClaimError::UnknownPool(pool.to_owned());
        let (name, state) = self.pools.get_key_value(pool).ok_or_else(unknown)?;
        if self.suspended.contains(pool) {
            return Err(ClaimError::Suspended(pool.to_owned()));
        }
        if let Some(address) = addresses.first().filter(|_| !state.pool().is_external()) {
            return Err(ClaimError::NotInPool { named: address.ip(), pool: pool.to_owned() });
        }
        let (name, network) = (Arc::clone(name), Arc::from(state.pool().network.as_str()));
        let claimant = Arc::new(claimant.clone());
        let mut changes = Vec::new();
        for (at, address) in addresses.iter().enumerate() {
            let (named, family) = (address.ip(), Family::of(address.ip()));
            if addresses[..at].iter().any(|other| Family::of(other.ip()) == family) {
                return Err(ClaimError::Twice { interface: claimant.interface, family });
            }
            if let Err(error) = self.check_exact(&name, &network, &claimant, named) {
                // The other program uses the address already, so nobody else may get it later.
                let is_kept = |why: &ReservedAddress| why.why == Reserved::PreAllocated;
                if matches!(&error, ClaimError::Taken { .. })
                    || matches!(&error, ClaimError::Reserved { why: Some(why), .. } if is_kept(why))
                {
                    let (source, claimant) = (Arc::from(source), Arc::clone(&claimant));
                    let kind = Source::IpAddress;
                    let origin =
                        Origin { claimant, node_pool: None, attachments: Vec::new(), network: None, source, kind };
                    self.add_conflict(&network, named, &origin, journal);
                }
                return Err(error);
            }
            let state = self.networks.get(&network);
            if state.and_then(|state| state.held_at(named)).is_none() {
                self.check_denied(&claimant.machine)?;
                if state.is_some_and(|state| state.is_refused(named)) {
                    return Err(refused(named));
                }
                let lease = Lease {
                    claimant: Arc::clone(&claimant),
                    pool: Arc::clone(&name),
                    prefix: address.prefix(),
                    since: self.now,
                    released: None,
                    reuse_after: None,
                    secrets: BTreeSet::new(),
                    migrated: None,
                };
                if state.is_some_and(|state| state.has_conflict(named)) {
                    let (network, claimant) = (Arc::clone(&network), Arc::clone(&claimant));
                    changes.push(Change::Conflict { network, address: named, claimant, record: None });
                }
                changes.push(Change::Lease { network: Arc::clone(&network), address: named, lease: Some(lease) });
            }
        }
        changes.extend(self.outdated(&network, &claimant, addresses, source));
        for change in changes {
            self.decide(change, journal);
        }
        self.leave_settled(journal);
        Ok(())
    }

    /// Removals of the conflicts of a claimant at addresses that the same source chose before. The claimant never got
    /// these addresses.
    fn outdated(
        &self,
        network: &Arc<str>,
        claimant: &Arc<Claimant>,
        addresses: &[IpNetwork],
        source: &str,
    ) -> Vec<Change> {
        let conflicts = self.networks.get(network).into_iter().flat_map(|state| state.conflicts());
        let is_chosen = |address: &IpAddr| addresses.iter().any(|chosen| chosen.ip() == *address);
        let outdated = conflicts.filter(|(address, conflict)| {
            conflict.claimant == **claimant && conflict.source == source && !is_chosen(address)
        });
        let removal = |(address, _)| {
            let (network, claimant) = (Arc::clone(network), Arc::clone(claimant));
            Change::Conflict { network, address, claimant, record: None }
        };
        outdated.map(removal).collect()
    }

    /// Checks that a claimant may hold exactly this address of an external pool.
    fn check_exact(
        &self,
        pool: &Arc<str>,
        network: &Arc<str>,
        claimant: &Claimant,
        named: IpAddr,
    ) -> Result<(), ClaimError> {
        let of_machine = self.held_by(&claimant.machine).into_iter();
        let mut own = of_machine.filter(|(_, _, lease)| *lease.claimant == *claimant).map(|(of, held, _)| (of, held));
        let other = own.find(|(of, held)| Family::of(*held) == Family::of(named) && (*of, *held) != (network, named));
        if let Some((_, held)) = other {
            return Err(ClaimError::OtherAddress { interface: claimant.interface, held, named });
        }
        if let Some(why) = self.named_on(network, named, &claimant.machine) {
            return Err(ClaimError::Reserved { named, pool: pool.to_string(), why: Some(why) });
        }
        let Some(state) = self.networks.get(network) else { return Ok(()) };
        let holder = state.held_at(named).map(|lease| Claimant::clone(&lease.claimant));
        let contested = |state: &Network| {
            let reported = || state.reported_by_other(named, &claimant.machine).cloned();
            state.conflict_at(named, |by| by != claimant).or_else(reported)
        };
        if let Some(by) = holder.filter(|by| by != claimant).or_else(|| contested(state)) {
            return Err(ClaimError::Taken { named, by: Box::new(by) });
        }
        let is_own = |last: &Lease| is_namesake(&last.claimant.machine, &claimant.machine);
        let last = state.lease(named).filter(|last| last.released.is_some() && !is_own(last));
        match last.and_then(|_| state.delayed_until(named)) {
            Some(until) => Err(ClaimError::ReuseDelay { named, until }),
            None => Ok(()),
        }
    }

    /// Why a pool or template of a network reserves exactly this address: as a gateway, as a name server, in a template
    /// or for another machine. An exclusion does not count: it may mean that another program allocates the address.
    pub(super) fn named_on(&self, network: &str, address: IpAddr, machine: &Machine) -> Option<ReservedAddress> {
        let is_kept = |pool: &Pool| pool.pre_allocated(&machine.namespace, &machine.name).contains(&address);
        let pools = self.pools().filter(|pool| *pool.network == *network);
        let mut reasons = pools.filter_map(|pool| {
            let why = pool.named().remove(&address)?;
            if why == Reserved::PreAllocated && is_kept(pool) {
                return None;
            }
            Some(ReservedAddress { why, pool: pool.name.clone() })
        });
        reasons.next()
    }

    /// Finds the pool or the networks of a recorded address. In this order, these decide: the NodePool of the object,
    /// the networks of the object, the network that the record names, and the address itself.
    fn attribute(&self, origin: &Origin, address: IpAddr, pools: &PoolsOf) -> Attribution {
        let none = BTreeMap::new();
        let of_interface = pools.get(&origin.claimant.interface).unwrap_or(&none);
        let named = origin.node_pool.as_deref();
        let on = |network: &Arc<str>| {
            let names = of_interface.get(network).map_or(&[][..], Vec::as_slice);
            self.pool_among(names, named, address, &origin.claimant.machine)
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
    /// a pool that has the address, else an external pool, else the first pool, since an address may move to another
    /// pool of its network.
    fn pool_among(
        &self,
        names: &[Arc<str>],
        named: Option<&str>,
        address: IpAddr,
        machine: &Machine,
    ) -> Option<Arc<str>> {
        let is_named = |name: &&Arc<str>| Some(&***name) == named;
        let offers = |name: &&Arc<str>| self.pools.get(*name).is_some_and(|state| state.offers_to(machine, address));
        let has = |name: &&Arc<str>| self.pools.get(*name).is_some_and(|state| state.pool().contains(address));
        let is_external = |name: &&Arc<str>| self.pools.get(*name).is_some_and(|state| state.pool().is_external());
        let found = names.iter().find(is_named).or_else(|| names.iter().find(offers));
        let found = found.or_else(|| names.iter().find(has)).or_else(|| names.iter().find(is_external));
        found.or(names.first()).cloned()
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
    pub(super) fn networks_with(&self, address: IpAddr) -> Vec<Arc<str>> {
        let has = |name: &&Arc<str>| self.pools().any(|pool| *pool.network == ***name && pool.contains(address));
        self.networks.keys().filter(has).cloned().collect()
    }

    /// Adds a conflict for a record of an address that its claimant does not hold.
    fn add_conflict(&mut self, network: &Arc<str>, address: IpAddr, origin: &Origin, journal: &mut Journal) {
        let state = State::Conflict;
        let Claimant { machine, interface } = &*origin.claimant;
        let is_noted = self.networks.get(network).is_some_and(|state| {
            state.held_at(address).is_some_and(|lease| lease.claimant == origin.claimant)
                || state.conflicts_of(address, machine).contains(interface)
        });
        if !is_noted {
            let (claimant, record) = (Arc::clone(&origin.claimant), Some((state, Arc::clone(&origin.source))));
            self.decide(Change::Conflict { network: Arc::clone(network), address, claimant, record }, journal);
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
