//! Adoption: adds leases from the records of Kubernetes objects, and reports records that do not fit. It never frees an
//! address.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use ipnetwork::IpNetwork;
use jiff::Timestamp;

use super::decide::PART;
use super::network::Network;
use super::pool_state::PoolState;
use super::standing::is_everywhere;
use super::state::Allocator;
use super::types::ClaimError;
use crate::host::change::{Change, Journal};
use crate::host::claim::{Claimant, Lease, Machine, Record, Reservation, is_namesake};
use crate::host::may_record::{Ignored, Source, Standing, State, Verdict, may_record};
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
    /// Number of addresses that are reserved for the machine of their record, and that need no lease: for example, a pool
    /// excludes them.
    pub reserved: usize,
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
    /// Another claimant holds the address, has a record of it, or runs with it. The holder keeps the address. The address
    /// is not allocated again before both machines are gone.
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
    /// The network of the pool with this name, which the record belongs to, reserves the address. The address is not
    /// allocated before the machine is gone. If the machine already held the address, it keeps the address.
    Reserved(String, Option<ReservedAddress>),
    /// The pool of the record has this other prefix length. The machine keeps the prefix length of the record.
    Prefix(u8),
    /// The record does nothing, for this reason.
    Ignored(Ignored),
}

/// The pool or the networks to which an address of a record belongs.
enum Attribution {
    /// The address belongs to this pool and network.
    Pool(Arc<str>, Arc<str>),
    /// The address belongs to one of these networks.
    Ambiguous(Vec<Arc<str>>),
    /// The address belongs to no pool. A conflict is recorded on each of these networks.
    NoPool(Vec<Arc<str>>),
}

/// A record without its addresses.
struct Origin {
    claimant: Arc<Claimant>,
    node_pool: Option<String>,
    attachments: Vec<String>,
    network: Option<String>,
    source: Arc<str>,
    kind: Source,
}

/// An address of a record, and where it belongs.
struct Found {
    origin: Arc<Origin>,
    address: IpAddr,
    prefix: Option<u8>,
    attribution: Attribution,
}

/// Two claimants for each address of a network that several records have and no claimant holds.
type Rivals = BTreeMap<(Arc<str>, IpAddr), Vec<Arc<Claimant>>>;

/// The pools that serve a claimant, by interface and network.
#[derive(Default)]
struct Audience {
    by_interface: BTreeMap<InterfaceName, BTreeMap<Arc<str>, Vec<Arc<str>>>>,
}

/// The pools for the claimants of many records, by what decides whether a pool serves a claimant.
#[derive(Default)]
struct Audiences(BTreeMap<Option<(bool, String)>, Arc<Audience>>);

/// Result for one address of a record.
enum Outcome {
    Added,
    Known,
    Reserved,
    Refused,
}

// === impl Origin ===

impl Origin {
    /// A problem of an address of the record.
    fn mismatch(&self, address: IpAddr, problem: Problem) -> Mismatch {
        let claimant = Claimant::clone(&self.claimant);
        Mismatch { source: self.source.to_string(), claimant, address, problem }
    }
}

// === impl Audiences ===

impl Audiences {
    /// The pools that serve a machine.
    fn of(&mut self, allocator: &Allocator, kind: Source, machine: &Machine) -> Arc<Audience> {
        let is_everywhere = is_everywhere(kind, machine);
        let namespace = if machine.kind.is_claim() { &machine.namespace } else { machine.served_in() };
        let key = (!is_everywhere).then(|| (machine.kind.is_claim(), namespace.to_owned()));
        let audience = self.0.entry(key).or_insert_with(|| {
            let mut audience = Audience::default();
            for (name, state) in &allocator.pools {
                if is_everywhere || state.pool.serves_holder(machine) {
                    let networks = audience.by_interface.entry(state.pool.interface).or_default();
                    networks.entry(Arc::from(state.pool.network.as_str())).or_default().push(Arc::clone(name));
                }
            }
            Arc::new(audience)
        });
        Arc::clone(audience)
    }
}

// === impl Allocator ===

impl Allocator {
    /// Adopts records: each recorded address becomes a lease or a reservation, or is ignored, as
    /// [`may_record`](crate::host::may_record::may_record) says.
    ///
    /// Adoption never frees an address and never changes its holder. An address that does not fit is reported at each
    /// adoption, and is not allocated to any machine. If two records have one address that no machine holds, none of their
    /// machines gets the address.
    pub(crate) fn adopt(
        &mut self,
        records: impl IntoIterator<Item = Record>,
        now: Timestamp,
        journal: &mut Journal,
    ) -> Adoption {
        self.advance(now);
        let (found, rivals) = self.attribute_all(records);
        let mut adoption = Adoption::default();
        for found in &found {
            let mut problems = Vec::new();
            match self.adopt_address(found, &rivals, &mut problems, journal) {
                Outcome::Added => adoption.adopted += 1,
                Outcome::Known => adoption.known += 1,
                Outcome::Reserved => adoption.reserved += 1,
                Outcome::Refused => {}
            }
            let Found { origin, address, .. } = found;
            adoption.mismatches.extend(problems.into_iter().map(|problem| origin.mismatch(*address, problem)));
        }
        self.leave_settled(journal);
        adoption
    }

    /// Finds the pool or the networks of each recorded address, and the addresses that several claimants would get.
    fn attribute_all(&self, records: impl IntoIterator<Item = Record>) -> (Vec<Found>, Rivals) {
        let mut audiences = Audiences::default();
        let (mut found, mut rivals) = (Vec::new(), Rivals::new());
        for Record { claimant, node_pool, attachments, network, addresses, source, kind } in records {
            let (claimant, source) = (Arc::new(claimant), Arc::from(source));
            let audience = audiences.of(self, kind, &claimant.machine);
            let origin = Arc::new(Origin { claimant, node_pool, attachments, network, source, kind });
            for recorded in addresses {
                let (address, prefix) = (recorded.ip(), recorded.prefix());
                let prefix = Some(prefix).filter(|prefix| *prefix < Family::of(address).bits());
                let attribution = self.attribute(&origin, address, &audience);
                if let Attribution::Pool(_, network) = &attribution
                    && self.standing(kind, &origin.claimant, network, address) == Standing::Offered
                {
                    let of_address = rivals.entry((Arc::clone(network), address)).or_default();
                    if of_address.len() < 2 && !of_address.contains(&origin.claimant) {
                        of_address.push(Arc::clone(&origin.claimant));
                    }
                }
                found.push(Found { origin: Arc::clone(&origin), address, prefix, attribution });
            }
        }
        rivals.retain(|_, claimants| claimants.len() > 1);
        (found, rivals)
    }

    /// Adopts one address of a record.
    fn adopt_address(
        &mut self,
        Found { origin, address, prefix, attribution }: &Found,
        rivals: &Rivals,
        problems: &mut Vec<Problem>,
        journal: &mut Journal,
    ) -> Outcome {
        let (address, family) = (*address, Family::of(*address));
        let claimant = &origin.claimant;
        let held: Vec<(Arc<str>, IpAddr)> = self
            .held_by(&claimant.machine)
            .into_iter()
            .filter(|(_, held, lease)| lease.claimant == *claimant && Family::of(*held) == family)
            .map(|(network, held, _)| (Arc::clone(network), held))
            .collect();
        let known = held.iter().find(|(_, held)| *held == address).map(|(network, _)| network);
        let (name, network) = match attribution {
            Attribution::Pool(name, network) => (name, network),
            // The record does not contain the network, but the ledger has a lease of the address for this claimant.
            Attribution::Ambiguous(networks) | Attribution::NoPool(networks)
                if known.is_some_and(|known| networks.contains(known)) =>
            {
                return Outcome::Known;
            }
            Attribution::Ambiguous(networks) | Attribution::NoPool(networks) => {
                let (mut counts, mut is_beyond) = (networks.is_empty(), false);
                for network in networks {
                    let verdict = self.may_record(origin.kind, claimant, network, address);
                    if matches!(verdict, Verdict::Ignore(_)) {
                        continue;
                    }
                    counts = true;
                    if self.exceeds_share(network, address, origin) {
                        is_beyond = true;
                    } else {
                        self.add_conflict(network, address, origin, State::Mismatch, journal);
                    }
                }
                problems.extend(is_beyond.then_some(Problem::Ignored(Ignored::Share)));
                problems.push(match attribution {
                    _ if !counts => Problem::Ignored(Ignored::OtherNamespace),
                    Attribution::Ambiguous(_) => Problem::Ambiguous(networks.iter().map(ToString::to_string).collect()),
                    _ => Problem::NoPool,
                });
                return Outcome::Refused;
            }
        };
        let standing = self.standing(origin.kind, claimant, network, address);
        let verdict = match may_record(origin.kind, standing) {
            Verdict::Lease if standing == Standing::Held => return Outcome::Known,
            Verdict::Ignore(why) => {
                problems.push(Problem::Ignored(why));
                return Outcome::Refused;
            }
            verdict => verdict,
        };
        if let Some((_, held)) = held.first().filter(|_| standing != Standing::HeldByOther) {
            let other_network = known.map(|known| Problem::OtherNetwork(known.to_string()));
            problems.push(other_network.unwrap_or(Problem::OtherAddress(*held)));
            if self.exceeds_share(network, address, origin) {
                problems.push(Problem::Ignored(Ignored::Share));
            } else {
                self.add_conflict(network, address, origin, State::Mismatch, journal);
            }
            return Outcome::Refused;
        }
        if let Verdict::Reserve(state) = verdict {
            if self.exceeds_share(network, address, origin) {
                problems.push(Problem::Ignored(Ignored::Share));
                return Outcome::Refused;
            }
            self.add_conflict(network, address, origin, state, journal);
            if state != State::Mismatch {
                return Outcome::Reserved;
            }
            problems.push(match self.rival(network, address, claimant) {
                Some(other) if standing == Standing::HeldByOther => Problem::Duplicate(other),
                _ => {
                    let named = self.named_on(network, address, &claimant.machine);
                    let end = || self.why_reserved(name, address, &claimant.machine);
                    Problem::Reserved(name.to_string(), named.or_else(end))
                }
            });
            return Outcome::Refused;
        }
        let rivals = rivals.get(&(Arc::clone(network), address)).into_iter().flatten();
        if let Some(other) = rivals.into_iter().find(|other| *other != claimant) {
            problems.push(Problem::Duplicate(Claimant::clone(other)));
            // A record of another namespace limits no record of this one.
            let is_of_namespace = other.machine.served_in() == claimant.machine.served_in();
            if is_of_namespace && self.exceeds_share(network, address, origin) {
                problems.push(Problem::Ignored(Ignored::Share));
            } else {
                self.add_conflict(network, address, origin, State::Mismatch, journal);
            }
            return Outcome::Refused;
        }
        let Some(state) = self.pools.get(name) else { return Outcome::Refused };
        let (pool, offers) = (Arc::clone(&state.pool), state.offers_to(&claimant.machine, address));
        let Some(of_network) = self.networks.get(network) else { return Outcome::Refused };
        // The address is not allocated before the machine is gone. The next adoption of the record may succeed.
        if of_network.is_refused(address) || self.check_denied(&claimant.machine).is_err() {
            self.add_conflict(network, address, origin, State::Mismatch, journal);
            return Outcome::Refused;
        }
        // The record of an unknown machine may be the record of this machine.
        if let Some(other) = of_network.conflict_at(address, |other| *other != **claimant) {
            problems.push(Problem::Duplicate(other));
        }
        let has_own = of_network.conflicts_of(address, &claimant.machine).contains(&claimant.interface);
        if !offers && !pool.is_external() {
            problems.push(if pool.contains(address) {
                Problem::Reserved(pool.name.clone(), self.why_reserved(name, address, &claimant.machine))
            } else {
                Problem::OutOfPool(pool.name.clone())
            });
        }
        let length = pool.prefix_of(address);
        if let (Some(prefix), Some(length)) = (prefix, length)
            && *prefix != length
        {
            problems.push(Problem::Prefix(length));
        }
        let lease = Lease {
            claimant: Arc::clone(claimant),
            pool: Arc::clone(name),
            prefix: prefix.or(length).unwrap_or(family.bits()),
            since: self.now,
            released: None,
            reuse_after: None,
            secrets: BTreeSet::new(),
            migrated: None,
        };
        if has_own {
            let (network, claimant) = (Arc::clone(network), Arc::clone(claimant));
            self.decide(Change::Conflict { network, address, claimant, record: None }, journal);
        }
        self.decide(Change::Lease { network: Arc::clone(network), address, lease: Some(lease) }, journal);
        Outcome::Added
    }

    /// The claimant that holds an address, whose guest migrated with it, or that has a record or a report of it.
    fn rival(&self, network: &str, address: IpAddr, claimant: &Claimant) -> Option<Claimant> {
        let state = self.networks.get(network)?;
        let holder = state.held_at(address).or_else(|| state.migrated_at(address));
        let holder = holder.map(|lease| Claimant::clone(&lease.claimant));
        let recorded = || state.conflict_at(address, |other| other != claimant);
        holder.or_else(recorded).or_else(|| state.reported_by_other(address, &claimant.machine).cloned())
    }

    /// Reserves an address for the machine of a record that asks for no lease, as
    /// [`may_record`](crate::host::may_record::may_record) says: on its network, or on every network that has a pool with the
    /// address. The reservation ends with the machine. Returns the address for each network of which the namespace of the machine
    /// reserves its part already: it is not reserved there.
    pub(crate) fn set_aside(
        &mut self,
        reservation: Reservation,
        now: Timestamp,
        journal: &mut Journal,
    ) -> Vec<Mismatch> {
        self.advance(now);
        let Reservation { address, network, claimant, source, kind } = reservation;
        let (claimant, source) = (Arc::new(claimant), Arc::from(source));
        let networks = match &network {
            Some(network) => {
                self.networks.get_key_value(&**network).map(|(name, _)| Arc::clone(name)).into_iter().collect()
            }
            None => self.networks_with(address),
        };
        let origin = Origin { claimant, node_pool: None, attachments: Vec::new(), network, source, kind };
        let mut beyond = Vec::new();
        for network in networks {
            match self.may_record(kind, &origin.claimant, &network, address) {
                Verdict::Reserve(_) | Verdict::Lease if self.exceeds_share(&network, address, &origin) => {
                    beyond.push(origin.mismatch(address, Problem::Ignored(Ignored::Share)));
                }
                Verdict::Reserve(state) => self.add_conflict(&network, address, &origin, state, journal),
                // The machine that holds the address has another UID than the machine whose guest reports it.
                Verdict::Lease if kind == Source::Report => {
                    self.add_conflict(&network, address, &origin, State::ByReport, journal);
                }
                // The caller asks for no lease.
                Verdict::Lease => self.add_conflict(&network, address, &origin, State::ByRecord, journal),
                Verdict::Ignore(_) => {}
            }
        }
        beyond
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
        for change in self.outdated(&network, &claimant, addresses, source) {
            self.decide(change, journal);
        }
        let mut changes = Vec::new();
        for (at, address) in addresses.iter().enumerate() {
            let (named, family) = (address.ip(), Family::of(address.ip()));
            if addresses[..at].iter().any(|other| Family::of(other.ip()) == family) {
                return Err(ClaimError::Twice { interface: claimant.interface, family });
            }
            let kind = Source::IpAddress;
            let verdict = self.may_record(kind, &claimant, &network, named);
            if let Verdict::Ignore(_) = verdict {
                return Err(ClaimError::NotInPool { named, pool: pool.to_owned() });
            }
            let checked = self.check_exact(&name, &network, &claimant, named);
            if let Verdict::Reserve(state) = verdict {
                // The other program uses the address already, so no other machine may get it later.
                let (source, claimant) = (Arc::from(source), Arc::clone(&claimant));
                let origin = Origin { claimant, node_pool: None, attachments: Vec::new(), network: None, source, kind };
                self.add_conflict(&network, named, &origin, state, journal);
                checked?;
                return Err(ClaimError::Reserved { named, pool: pool.to_owned(), why: None });
            }
            checked?;
            let state = self.networks.get(&network);
            if state.and_then(|state| state.held_at(named)).is_none() {
                self.check_denied(&claimant.machine)?;
                if state.is_some_and(|state| state.is_refused(named)) {
                    return Err(self.refused(&network, named));
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
        for change in changes {
            self.decide(change, journal);
        }
        self.leave_settled(journal);
        Ok(())
    }

    /// Removals of the records of a claimant at addresses that the same source chose before. The claimant never got these
    /// addresses.
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
        let is_own = |last: &Lease| last.migrated.is_none() && is_namesake(&last.claimant.machine, &claimant.machine);
        let last = state.lease(named).filter(|last| last.released.is_some() && !is_own(last));
        match last.and_then(|_| state.delayed_until(named)) {
            Some(until) => Err(ClaimError::ReuseDelay { named, until }),
            None => Ok(()),
        }
    }

    /// Why a pool or template of a network reserves exactly this address: as a gateway, as a name server, in a template
    /// or for another machine. An exclusion does not count: it may mean that another program allocates the address.
    pub(super) fn named_on(&self, network: &str, address: IpAddr, machine: &Machine) -> Option<ReservedAddress> {
        let is_kept = |reserved: &&ReservedAddress| {
            let pool = self.pool(&reserved.pool).filter(|_| reserved.why == Reserved::PreAllocated);
            pool.is_some_and(|pool| pool.pre_allocated(&machine.namespace, &machine.name).contains(&address))
        };
        let reasons = self.networks.get(network)?.named(address);
        reasons.iter().find(|reserved| !is_kept(reserved)).cloned()
    }

    /// Finds the pool or the networks of a recorded address, among the pools that serve the claimant. In this order, these
    /// decide: the NodePool of the object, the networks of the object, the network that the record names, and the address
    /// itself. The record of a claim belongs to the pool of the claim.
    fn attribute(&self, origin: &Origin, address: IpAddr, audience: &Audience) -> Attribution {
        let Claimant { machine, interface } = &*origin.claimant;
        let none = BTreeMap::new();
        let of_interface = audience.by_interface.get(interface).unwrap_or(&none);
        let named = origin.node_pool.as_deref();
        let on = |network: &Arc<str>| {
            let names = of_interface.get(network).map_or(&[][..], Vec::as_slice);
            self.pool_among(names, named, network, address, machine).map_or_else(
                || Attribution::NoPool(vec![Arc::clone(network)]),
                |name| Attribution::Pool(name, Arc::clone(network)),
            )
        };
        let node_pool = named.and_then(|name| self.pools.get(name)).map(|state| state.pool());
        let node_pool = node_pool.filter(|pool| pool.interface == *interface);
        if let Some(pool) = node_pool
            && let Some((network, names)) = of_interface.get_key_value(pool.network.as_str())
            && (!machine.kind.is_claim() || names.iter().any(|name| **name == *pool.name))
        {
            return on(network);
        }
        if machine.kind.is_claim() {
            return Attribution::NoPool(self.networks_with(address));
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
            let names = of_interface.get(**network).map_or(&[][..], Vec::as_slice);
            self.pools_with(network, address).any(|state| names.iter().any(|name| **name == *state.pool.name))
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
    /// pool of its network. A pool that allocates is chosen before one that is suspended, for example because it is being
    /// deleted.
    fn pool_among(
        &self,
        names: &[Arc<str>],
        named: Option<&str>,
        network: &str,
        address: IpAddr,
        machine: &Machine,
    ) -> Option<Arc<str>> {
        let name_of = |state: &PoolState| names.iter().find(|name| ***name == *state.pool.name).cloned();
        let is_named = |name: &&Arc<str>| Some(&***name) == named;
        let is_external = |name: &&Arc<str>| self.pool(name).is_some_and(Pool::is_external);
        let offers = |state: &&PoolState| state.offers_to(machine, address);
        let allocates = |state: &PoolState| !self.suspended.contains(&state.pool.name);
        let having = |is_wanted: &dyn Fn(&PoolState) -> bool| {
            self.pools_with(network, address).filter(|state| is_wanted(state)).filter_map(name_of).min()
        };
        let of_name = names.iter().find(is_named).cloned();
        let is_right = |name: &Arc<str>| machine.kind.is_claim() || self.pools.get(name).is_some_and(allocates);
        let found = of_name.clone().filter(is_right);
        let found = found.or_else(|| having(&|state| offers(&state) && allocates(state))).or(of_name);
        let found = found.or_else(|| having(&|state| offers(&state))).or_else(|| having(&allocates));
        let found = found.or_else(|| having(&|_| true));
        found.or_else(|| names.iter().find(is_external).or(names.first()).cloned())
    }

    /// The pools of a network that have an address.
    pub(super) fn pools_with(&self, network: &str, address: IpAddr) -> impl Iterator<Item = &PoolState> {
        let names = self.networks.get(network).into_iter().flat_map(move |state| state.pools_with(address));
        names.filter_map(|name| self.pools.get(name))
    }

    /// The networks that have a pool with the address.
    pub(super) fn networks_with(&self, address: IpAddr) -> Vec<Arc<str>> {
        let having = self.networks.iter().filter(|(_, network)| network.pools_with(address).next().is_some());
        having.map(|(name, _)| Arc::clone(name)).collect()
    }

    /// Notes that the objects of a machine no longer record these addresses of networks. The addresses stay reserved for the
    /// machine, because it may have one of them nevertheless. They are no longer reasons for a conflict.
    pub(crate) fn end_records(&mut self, machine: &Machine, addresses: &BTreeSet<(String, IpAddr)>) {
        for (network, address) in addresses {
            if let Some(state) = self.networks.get_mut(network.as_str()) {
                state.set_ended(*address, machine, true);
            }
        }
    }

    /// Whether a record would reserve one more address for its machine in a shared pool, of which records of the namespace reserve
    /// their part already. A user of one namespace could otherwise block all addresses for the others, with the annotation of one
    /// machine. Each machine has one address for each interface without this bound: it may run with the address. Reports, and the
    /// objects of claims, have bounds of their own.
    fn exceeds_share(&self, network: &str, address: IpAddr, origin: &Origin) -> bool {
        let machine = &origin.claimant.machine;
        if matches!(origin.kind, Source::Report | Source::Neighbour) || machine.kind.is_claim() || !machine.may_exist()
        {
            return false;
        }
        let mut pools = self.pools_with(network, address);
        // A pool that the namespace has left serves others.
        let is_shared = |of: &PoolState| of.pool().is_shared() || !of.pool().serves_holder(machine);
        let Some(of) = pools.next().filter(|of| is_shared(of) && pools.all(is_shared)) else { return false };
        let (Some(state), Some(space)) = (self.networks.get(network), of.pool().space(Family::of(address))) else {
            return false;
        };
        // A user of another namespace records the address, too. The machine of this record may still run with it.
        let is_of_other = |other: &Claimant| other.machine.served_in() != machine.served_in();
        let is_contested = || {
            state.held_at(address).is_none()
                && (state.conflict_at(address, is_of_other).is_some() || state.reporters_of(address).any(is_of_other))
        };
        if state.mentions(address, machine) || is_contested() || !self.has_address_of_each(network, address, machine) {
            return false;
        }
        let reserved = of.recorded.get(&(space.family(), machine.served_in().to_owned())).copied().unwrap_or_default();
        let most = usize::try_from((space.total() / PART).max(1)).unwrap_or(usize::MAX);
        reserved >= most
    }

    /// Whether a machine holds, or has records of, as many other addresses of the family of an address as it has interfaces: one for
    /// each interface of the shared pools of the network that serve the machine. The interfaces of a record do not count, because a
    /// user may write any number of them.
    fn has_address_of_each(&self, network: &str, address: IpAddr, machine: &Machine) -> bool {
        let Some(state) = self.networks.get(network) else { return false };
        let pools = state.pools().filter(|pool| pool.is_shared() && pool.serves_holder(machine));
        let interfaces: BTreeSet<InterfaceName> = pools.map(|pool| pool.interface).collect();
        let others = self.paths.get(machine).into_iter().flatten().filter(|(of, other)| {
            **of == *network
                && *other != address
                && Family::of(*other) == Family::of(address)
                && state.is_held_or_recorded_by(*other, machine)
        });
        let interfaces = interfaces.len().max(1);
        others.take(interfaces).count() == interfaces
    }

    /// Adds a record of an address that its claimant does not hold. A record that becomes a reservation only because a guest
    /// reports the address, or because it needs no lease, does not change an earlier record of the same claimant.
    fn add_conflict(
        &mut self,
        network: &Arc<str>,
        address: IpAddr,
        origin: &Origin,
        state: State,
        journal: &mut Journal,
    ) {
        let claimant = &origin.claimant;
        if let Some(of_network) = self.networks.get_mut(network) {
            of_network.set_ended(address, &claimant.machine, false);
        }
        let is_noted = self.networks.get(network).is_some_and(|of_network| {
            let is_weak = matches!(state, State::ByRecord | State::ByReport);
            of_network.held_at(address).is_some_and(|lease| lease.claimant == *claimant)
                || of_network.state_of(address, claimant).is_some_and(|known| known == state || is_weak)
        });
        if !is_noted {
            let (claimant, record) = (Arc::clone(claimant), Some((state, Arc::clone(&origin.source))));
            self.decide(Change::Conflict { network: Arc::clone(network), address, claimant, record }, journal);
        }
    }
}

// === impl Adoption ===

impl Adoption {
    /// Adds the result of a later adoption.
    pub(crate) fn extend(&mut self, later: Self) {
        let Self { adopted, known, reserved, mismatches } = later;
        self.adopted += adopted;
        self.known += known;
        self.reserved += reserved;
        self.mismatches.extend(mismatches);
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
            Problem::Ignored(why) => write!(f, "is ignored: {why}"),
            Problem::Prefix(length) => write!(f, "has another prefix length than its pool, which has {length}"),
        }
    }
}
