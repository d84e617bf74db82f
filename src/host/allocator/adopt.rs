//! Adoption: makes leases and reservations from the records of Kubernetes objects, and reports each record that
//! contradicts the ledger or the pools. Adoption never frees an address.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use jiff::Timestamp;

use super::attribution::{Attribution, Audiences, Origin};
use super::mismatch::{Adoption, Mismatch, Problem};
use super::state::Allocator;
use crate::host::change::{Change, Journal};
use crate::host::claim::{Claimant, Lease, Machine, Record, Reservation};
use crate::host::may_record::{Ignored, Source, Standing, State, Verdict, may_record};
use crate::network::Family;

/// A recorded address, and the pool or the networks to which it belongs.
struct Found {
    origin: Arc<Origin>,
    address: IpAddr,
    prefix: Option<u8>,
    attribution: Attribution,
}

/// Addresses that no claimant holds and that several claimants record, by network and address. Two of these claimants
/// are listed for each address.
type Rivals = BTreeMap<(Arc<str>, IpAddr), Vec<Arc<Claimant>>>;

/// Result for one address of a record.
enum Outcome {
    Added,
    Known,
    Reserved,
    Refused,
}

// === impl Allocator ===

impl Allocator {
    /// Adopts records: each recorded address becomes a lease or a reservation, or is ignored, as
    /// [`may_record`](crate::host::may_record::may_record) decides.
    ///
    /// Adoption never frees an address and never changes its holder. Each adoption reports the recorded addresses that
    /// contradict the ledger or the pools. If two machines have a record of an address that no machine holds, neither
    /// machine gets the address.
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
                Outcome::Reserved => adoption.reserved.push((Claimant::clone(&found.origin.claimant), found.address)),
                Outcome::Refused => {}
            }
            let Found { origin, address, .. } = found;
            adoption.mismatches.extend(problems.into_iter().map(|problem| origin.mismatch(*address, problem)));
        }
        self.leave_settled(journal);
        adoption
    }

    /// Finds the pool or the networks of each recorded address. Also finds the free addresses that several claimants
    /// record.
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
            // The pool of the record is not certain, but the claimant already holds the address on one of the possible
            // networks.
            Attribution::Ambiguous(networks) | Attribution::NoPool(networks)
                if known.is_some_and(|known| networks.contains(known)) =>
            {
                return Outcome::Known;
            }
            Attribution::Ambiguous(networks) | Attribution::NoPool(networks) => {
                let (mut counts, mut beyond) = (networks.is_empty(), None);
                for network in networks {
                    let verdict = self.may_record(origin.kind, claimant, network, address);
                    if matches!(verdict, Verdict::Ignore(_)) {
                        continue;
                    }
                    counts = true;
                    beyond = self.reserve(network, address, origin, State::Mismatch, journal).or(beyond);
                }
                problems.extend(beyond.map(Problem::Ignored));
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
            let beyond = self.reserve(network, address, origin, State::Mismatch, journal);
            problems.extend(beyond.map(Problem::Ignored));
            return Outcome::Refused;
        }
        if let Verdict::Reserve(state) = verdict {
            if let Some(why) = self.reserve(network, address, origin, state, journal) {
                problems.push(Problem::Ignored(why));
                return Outcome::Refused;
            }
            if state != State::Mismatch {
                return Outcome::Reserved;
            }
            let is_used = standing == Standing::HeldByOther;
            let other_use = self.other_use(network, address, claimant).filter(|_| is_used);
            problems.push(other_use.unwrap_or_else(|| {
                let named = self.named_on(network, address, &claimant.machine);
                let end = || self.why_reserved(name, address, &claimant.machine);
                Problem::Reserved(name.to_string(), named.or_else(end))
            }));
            return Outcome::Refused;
        }
        let rivals = rivals.get(&(Arc::clone(network), address)).into_iter().flatten();
        if let Some(other) = rivals.into_iter().find(|other| *other != claimant) {
            problems.push(Problem::Duplicate(Claimant::clone(other)));
            let beyond = self.reserve(network, address, origin, State::Mismatch, journal);
            problems.extend(beyond.map(Problem::Ignored));
            return Outcome::Refused;
        }
        let Some(state) = self.pools.get(name) else { return Outcome::Refused };
        let (pool, offers) = (Arc::clone(&state.pool), state.offers_to(&claimant.machine, address));
        if let Err(error) = self.check_recordable(network, address, &claimant.machine) {
            problems.push(Problem::NotRecorded(error));
            self.add_conflict(network, address, origin, State::Mismatch, journal);
            return Outcome::Refused;
        }
        let Some(of_network) = self.networks.get(network) else { return Outcome::Refused };
        // The other record does not prevent the lease: its unknown machine may be this machine, or the other record is
        // an earlier record of this machine. See `Network::is_recorded_by_other`.
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

    /// Returns why another claimant prevents this claimant from holding an address. `None`: no other claimant does.
    fn other_use(&self, network: &str, address: IpAddr, claimant: &Claimant) -> Option<Problem> {
        if let Some(other) = self.rival(network, address, claimant) {
            return Some(Problem::Duplicate(other));
        }
        let last = self.networks.get(network)?.delayed_for(address, &claimant.machine)?;
        Some(Problem::ReuseDelay(Claimant::clone(&last.claimant)))
    }

    /// Returns the claimant that holds an address. If there is no holder, returns the last holder whose guest migrated
    /// with the address, or else another claimant that has a record or a report of the address.
    fn rival(&self, network: &str, address: IpAddr, claimant: &Claimant) -> Option<Claimant> {
        let state = self.networks.get(network)?;
        let holder = state.held_at(address).or_else(|| state.migrated_at(address));
        let holder = holder.map(|lease| Claimant::clone(&lease.claimant));
        let recorded = || state.conflict_at(address, |other| other != claimant);
        holder.or_else(recorded).or_else(|| state.reported_by_other(address, &claimant.machine).cloned())
    }

    /// Reserves an address for the machine of a record that needs no lease, if
    /// [`may_record`](crate::host::may_record::may_record) allows it. The address is reserved on the network of the
    /// record. If the record names no network, the address is reserved on every network that has a pool with the
    /// address.
    ///
    /// The reservation ends with the machine. Returns a mismatch for each network on which the limits do not allow the
    /// reservation: see [`Self::reserve`].
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
            let state = match self.may_record(kind, &origin.claimant, &network, address) {
                Verdict::Reserve(state) => state,
                // If the holder is the reporting claimant, `add_conflict` adds nothing. If the holder is another object
                // of the same VirtualMachine, `add_conflict` adds the report.
                Verdict::Lease if kind == Source::Report => State::ByReport,
                // A record of this kind needs no lease.
                Verdict::Lease => State::ByRecord,
                Verdict::Ignore(_) => continue,
            };
            let why = self.reserve(&network, address, &origin, state, journal);
            beyond.extend(why.map(|why| origin.mismatch(address, Problem::Ignored(why))));
        }
        beyond
    }

    /// Notes that no object of a machine records these addresses any more. Each address is given with its network. The
    /// addresses stay reserved, because the machine may still use them, but the machine no longer counts as their user.
    ///
    /// The addresses that were ended before are free from now on. Otherwise a user could block a whole pool by changing the
    /// record of one machine again and again. A claim keeps them, because nothing shows that its machine has given them up.
    pub(crate) fn end_records(
        &mut self,
        machine: &Machine,
        addresses: &BTreeSet<(String, IpAddr)>,
        journal: &mut Journal,
    ) {
        let of_machine = self.paths.get(machine).into_iter().flatten().filter(|_| !machine.kind.is_claim());
        let has_ended =
            |network: &str, address| self.networks.get(network).is_some_and(|it| it.has_ended(address, machine));
        let earlier = of_machine.filter(|(network, address)| {
            has_ended(network, *address) && !addresses.contains(&(network.to_string(), *address))
        });
        for (network, address) in earlier.cloned().collect::<Vec<_>>() {
            self.remove_records(&network, address, machine, journal);
        }
        for (network, address) in addresses {
            if let Some(state) = self.networks.get_mut(network.as_str()) {
                state.set_ended(*address, machine, true);
            }
        }
    }

    /// Adds a record of an address to the conflicts, unless the claimant of the record holds the address. A record that
    /// needs no lease, or a report of a guest, does not replace an earlier record of the claimant.
    pub(super) fn add_conflict(
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
