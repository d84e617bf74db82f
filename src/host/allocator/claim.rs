//! Decides which addresses a claim lacks, from which pool the claim gets them, and why a claim is refused.

use std::cmp::Reverse;
use std::net::IpAddr;
use std::sync::Arc;

use jiff::Timestamp;

use super::moves::home_in;
use super::pool_state::PoolState;
use super::state::{Allocator, with_prefix};
use super::types::ClaimError;
use super::want::{Move, Queue, Refusal, Want, Wants};
use crate::host::change::{Change, Journal};
use crate::host::claim::{Allocation, Claim, Claimant, Lease, Machine, Request, is_successor};
use crate::host::may_record::State;
use crate::network::{Family, InterfaceName};

// === impl Allocator ===

impl Allocator {
    /// Allocates every address the claim requests, or none. The machine keeps the addresses that it already holds.
    ///
    /// A repeated claim gets the same answer and changes nothing. A machine that claims is no longer missing. Waiting
    /// machines that can be served are served first.
    ///
    /// A claim that names no addresses waits if a pool is exhausted, or if the address that a pool keeps for the
    /// machine is not available. The wait is also a change, so the caller must commit the journal even if the claim is
    /// refused.
    pub(crate) fn claim(
        &mut self,
        claim: &Claim,
        now: Timestamp,
        journal: &mut Journal,
    ) -> Result<Vec<Allocation>, ClaimError> {
        self.serve(now, journal);
        self.note_seen(&claim.machine, journal);
        match self.allocate(claim, journal) {
            Ok(()) => {
                self.withdraw(&claim.machine, journal);
                Ok(self.answer(claim))
            }
            Err(Refusal::Exhausted(queue)) => {
                if claim.requests.iter().all(|request| request.addresses.is_empty()) {
                    self.wait(claim, journal);
                }
                if let Some((pool, _)) = queue.iter().find(|(pool, family)| self.has_closed(pool, *family)) {
                    return Err(ClaimError::Closed(pool.to_string()));
                }
                let mut exhausted = queue.iter().map(|(pool, family)| (pool.to_string(), *family));
                let Some((pool, family)) = exhausted.next() else { return Err(ClaimError::Nothing) };
                let overflow = exhausted.collect();
                match self.pools.get(pool.as_str()) {
                    Some(state) => {
                        Err(ClaimError::Exhausted { interface: state.pool().interface, pool, family, overflow })
                    }
                    None => Err(ClaimError::UnknownPool(pool)),
                }
            }
            Err(Refusal::Other(error)) => {
                let is_denied = matches!(error, ClaimError::NotRecorded { .. });
                // A machine that the ledger refuses waits for the end of a pause, not for a free address.
                if !is_denied
                    && error.is_about_address()
                    && claim.requests.iter().all(|request| request.addresses.is_empty())
                {
                    self.wait(claim, journal);
                }
                Err(error)
            }
        }
    }

    /// Allocates every address that a claim lacks. After a refusal nothing is allocated.
    pub(super) fn allocate(&mut self, claim: &Claim, journal: &mut Journal) -> Result<(), Refusal> {
        let Wants { lacks, moves } = self.wants(claim).map_err(Refusal::Other)?;
        if !lacks.is_empty() {
            self.check_denied(&claim.machine).map_err(Refusal::Other)?;
        }
        let begin = journal.changes().len();
        if let Err(error) = self.note_secret(claim, journal) {
            self.undo_to(begin, journal);
            return Err(Refusal::Other(error));
        }
        for want in lacks {
            if let Err(refusal) = self.allocate_one(&want, claim, journal) {
                self.undo_to(begin, journal);
                return Err(refusal);
            }
        }
        for Move { network, address, mut lease } in moves {
            lease.secrets.extend(claim.secret.clone());
            self.decide(Change::Lease { network, address, lease: Some(lease) }, journal);
        }
        Ok(())
    }

    /// Allocates the addresses that one interface lacks, from the first of its pools that has a free address of each
    /// requested family. The search ends at a pool with closed addresses, because these may be free. Otherwise the
    /// machine would get an address of an overflow pool, and keep this address until its release.
    fn allocate_one(&mut self, want: &Want, claim: &Claim, journal: &mut Journal) -> Result<(), Refusal> {
        let (begin, mut exhausted) = (journal.changes().len(), Queue::new());
        'pools: for pool in &want.pools {
            for (family, named) in &want.families {
                match self.pick(pool, *family, *named, claim).map_err(Refusal::Other)? {
                    Some((network, address, lease)) => {
                        self.remove_records(&network, address, &claim.machine, journal);
                        self.decide(Change::Lease { network, address, lease: Some(lease) }, journal);
                    }
                    None => {
                        self.undo_to(begin, journal);
                        exhausted.push((Arc::clone(pool), *family));
                        if self.has_closed(pool, *family) {
                            break 'pools;
                        }
                        continue 'pools;
                    }
                }
            }
            return Ok(());
        }
        Err(Refusal::Exhausted(exhausted))
    }

    /// Returns the pools of a request that exist, in the order of the request. The result is never empty.
    fn group(&self, request: &Request) -> Result<Vec<(&Arc<str>, &PoolState)>, ClaimError> {
        let known = request.pools().filter_map(|name| self.pools.get_key_value(name));
        let group: Vec<(&Arc<str>, &PoolState)> = known.collect();
        let Some(((_, first), overflow)) = group.split_first() else {
            return Err(ClaimError::UnknownPool(request.pool.clone()));
        };
        for (_, state) in overflow {
            let check = first.pool().check_overflow(state.pool());
            check.map_err(|problem| ClaimError::NoOverflow(Box::new(problem)))?;
        }
        Ok(group)
    }

    /// The pools of a group from which an interface may get the addresses that it lacks, in the order in which they are
    /// tried. Suspended pools are left out. If one of the following pools exists, only the first of them is tried:
    ///
    /// - `own`, the pool of the other addresses of the interface
    /// - if the claim names addresses: the pool that has all of them, or else the first pool of the group
    /// - the pool that keeps an address for the machine
    ///
    /// Otherwise all pools are tried. A sticky claim first tries the pool whose address a machine of the same name
    /// released last.
    fn candidates(
        &self,
        group: &[(&Arc<str>, &PoolState)],
        own: Option<&Arc<str>>,
        families: &[(Family, Option<IpAddr>)],
        claim: &Claim,
    ) -> Result<Vec<Arc<str>>, ClaimError> {
        let named: Vec<IpAddr> = families.iter().filter_map(|(_, named)| *named).collect();
        let has_named = |state: &PoolState| named.iter().all(|named| state.pool().contains(*named));
        let keeps = |state: &PoolState| {
            families.iter().any(|(family, _)| state.pre_allocated(&claim.machine, *family).is_some())
        };
        let is_suspended = |name: &str| self.suspended.contains(name);
        let only = match own {
            Some(own) => Some(own),
            None if !named.is_empty() => {
                group.iter().find(|(_, state)| has_named(state)).or(group.first()).map(|(name, _)| *name)
            }
            None => group.iter().find(|(name, state)| !is_suspended(name) && keeps(state)).map(|(name, _)| *name),
        };
        let all = only.map_or_else(|| group.iter().map(|(name, _)| *name).collect(), |only| vec![only]);
        let mut pools: Vec<Arc<str>> =
            all.iter().filter(|name| !is_suspended(name)).map(|name| Arc::clone(name)).collect();
        if pools.is_empty() {
            return Err(ClaimError::Suspended(all.first().map(ToString::to_string).unwrap_or_default()));
        }
        if claim.sticky && pools.len() > 1 {
            let released = |pool: &Arc<str>| {
                let of_families =
                    families.iter().filter_map(|(family, _)| self.remembered(pool, *family, &claim.machine));
                of_families.map(|(released, _)| released).max()
            };
            pools.sort_by_cached_key(|pool| Reverse(released(pool)));
        }
        Ok(pools)
    }

    /// Returns the addresses that a claim lacks, and the leases of its machine that move to another pool.
    pub(super) fn wants(&self, claim: &Claim) -> Result<Wants, ClaimError> {
        let held = self.held_by(&claim.machine);
        let mut wants = Wants::default();
        let mut seen = Vec::new();
        if claim.requests.is_empty() {
            return Err(ClaimError::Nothing);
        }
        for request in &claim.requests {
            let group = self.group(request)?;
            let Some((_, state)) = group.first() else { continue };
            let pool = state.pool();
            let interface = pool.interface;
            let families: Vec<Family> = pool.spaces().map(|space| space.family()).collect();
            if let Some(family) = request.family.filter(|family| !families.contains(family)) {
                return Err(ClaimError::NoFamily { pool: pool.name.clone(), family });
            }
            let families: Vec<Family> =
                families.into_iter().filter(|family| request.family.is_none_or(|only| only == *family)).collect();
            let unfit = request.addresses.iter().find(|named| !families.contains(&Family::of(**named)));
            if let Some(&named) = unfit {
                return Err(ClaimError::NotInPool { named, pool: pool.name.clone() });
            }
            let (mut lacks, mut own) = (Vec::new(), None);
            for family in families {
                let mut names = request.addresses.iter().copied().filter(|named| Family::of(*named) == family);
                let named = names.next();
                if names.next().is_some() || seen.contains(&(interface, family)) {
                    return Err(ClaimError::Twice { interface, family });
                }
                seen.push((interface, family));
                let its = held.iter().filter(|(_, address, lease)| {
                    lease.claimant.interface == interface && Family::of(*address) == family
                });
                let Some(&(network, held, lease)) = its.min_by_key(|(_, address, lease)| (lease.since, *address))
                else {
                    match self.kept(&claim.machine, interface, &pool.network, family) {
                        // A machine uses the address of its record. A claim has an address only if it holds the address.
                        Some(kept) if claim.machine.kind.is_claim() => {
                            return Err(ClaimError::Kept { interface, kept });
                        }
                        Some(_) => {}
                        None => lacks.push((family, named)),
                    }
                    continue;
                };
                let other = || ClaimError::OtherPool { interface, held, pool: lease.pool.to_string() };
                let name = home_in(&group, lease, held).ok_or_else(other)?;
                if *name == lease.pool && **network != *pool.network {
                    return Err(ClaimError::OtherNetwork { interface, held, network: network.to_string() });
                }
                if *name != lease.pool {
                    wants.moves.push(self.moved(network, held, lease, name).ok_or_else(other)?);
                }
                own = own.or(Some(name));
                if let Some(named) = named.filter(|named| *named != held) {
                    return Err(ClaimError::OtherAddress { interface, held, named });
                }
            }
            if !lacks.is_empty() {
                let pools = self.candidates(&group, own, &lacks, claim)?;
                wants.lacks.push(Want { pools, families: lacks });
            }
        }
        Ok(wants)
    }

    /// The address of a network that an interface keeps although no pool offers the address any more. The interface gets
    /// no other address of the family. `None`: there is no such address.
    fn kept(&self, machine: &Machine, interface: InterfaceName, network: &str, family: Family) -> Option<IpAddr> {
        let claimant = Claimant { machine: machine.clone(), interface };
        let own = self.paths.get(machine).into_iter().flatten();
        let mut own = own.filter(|(of, address)| **of == *network && Family::of(*address) == family);
        let state = self.networks.get(network)?;
        own.find(|(_, address)| state.state_of(*address, &claimant) == Some(State::Excluded)).map(|(_, kept)| *kept)
    }

    /// Chooses an address of one family of a pool for a claim. Returns the network, the address and the new lease.
    /// `None`: the pool has no free address of the family.
    fn pick(
        &mut self,
        name: &Arc<str>,
        family: Family,
        named: Option<IpAddr>,
        claim: &Claim,
    ) -> Result<Option<(Arc<str>, IpAddr, Lease)>, ClaimError> {
        let unknown = || ClaimError::UnknownPool(name.to_string());
        let kept = || self.pools.get(name)?.pre_allocated(&claim.machine, family);
        let address = match named.or_else(kept) {
            Some(named) => self.check_named(name, named, &claim.machine).map(|()| named)?,
            None => {
                let remembered = if claim.sticky { self.remembered(name, family, &claim.machine) } else { None };
                let remembered = remembered.map(|(_, address)| address);
                let Some(address) = remembered.or_else(|| self.lowest(name, family)) else { return Ok(None) };
                address
            }
        };
        let pool = self.pools.get(name).ok_or_else(unknown)?.pool();
        let (network, _) = self.networks.get_key_value(pool.network.as_str()).ok_or_else(unknown)?;
        let lease = Lease {
            claimant: Arc::new(Claimant { machine: claim.machine.clone(), interface: pool.interface }),
            pool: Arc::clone(name),
            prefix: pool.prefix_of(address).unwrap_or(family.bits()),
            since: self.now,
            released: None,
            reuse_after: None,
            secrets: claim.secret.iter().cloned().collect(),
            migrated: None,
        };
        Ok(Some((Arc::clone(network), address, lease)))
    }

    /// Checks that the address that a claim names, or that the pool keeps for the machine, can be allocated.
    fn check_named(&self, name: &str, named: IpAddr, machine: &Machine) -> Result<(), ClaimError> {
        let pool = || name.to_owned();
        let state = self.pools.get(name).ok_or_else(|| ClaimError::UnknownPool(pool()))?;
        let network =
            self.networks.get(state.pool().network.as_str()).ok_or_else(|| ClaimError::UnknownPool(pool()))?;
        if !state.pool().contains(named) {
            return Err(ClaimError::NotInPool { named, pool: pool() });
        }
        if !state.offers_to(machine, named) {
            return Err(ClaimError::Reserved { named, pool: pool(), why: self.why_reserved(name, named, machine) });
        }
        let holder = network.held_at(named).map(|lease| Claimant::clone(&lease.claimant));
        let is_kept = state.pre_allocated(machine, Family::of(named)) == Some(named);
        // An earlier record of the machine itself is no other user.
        let by = holder.or_else(|| network.conflict_at(named, |of| of.machine != *machine));
        // If the pool keeps the address for a name, a claim and a guest of this name may be two users. So for a claim,
        // even the report of the guest of this name is a conflict. The report of a Service or of a control plane is no
        // conflict: the machine of this name may have the reported address.
        let is_user = |by: &&Claimant| !is_kept || by.machine.kind.may_hold();
        let reported = || match is_kept && machine.kind.is_claim() {
            true => network.reporters_of(named).find(is_user),
            false => network.reported_by_others(named, machine).find(is_user),
        };
        if let Some(by) = by.or_else(|| reported().cloned()) {
            return Err(ClaimError::Taken { named, by: Box::new(by) });
        }
        if self.growth.is_closed(&state.pool().network, named) {
            return Err(ClaimError::Closed(pool()));
        }
        if network.is_refused(named) {
            return Err(self.refused(&state.pool().network, named));
        }
        // The reuse delay protects other users. A machine or claim that is created again gets the address that the pool
        // keeps for its name at once.
        let is_delayed = !is_kept || network.delayed_for(named, machine).is_some();
        let until = network.delayed_until(named).filter(|_| is_delayed);
        until.map_or(Ok(()), |until| Err(ClaimError::ReuseDelay { named, until }))
    }

    /// The free address of a pool that an earlier machine or claim of the same name released last, with the time of the
    /// release. Its reuse delay does not matter. `None`: no such address is free.
    ///
    /// For a claim, even an address that the guest of this name reports is not free: the claim and the guest may be two
    /// users.
    fn remembered(&self, pool: &str, family: Family, machine: &Machine) -> Option<(Timestamp, IpAddr)> {
        let state = self.pools.get(pool)?;
        let network = self.networks.get(state.pool().network.as_str())?;
        let is_reported = |address: IpAddr| match machine.kind.is_claim() {
            true => network.reporters_of(address).next().is_some(),
            false => network.reported_by_other(address, machine).is_some(),
        };
        let paths = self.paths_of_namesakes(machine).filter(|(network, _)| **network == *state.pool().network);
        let left = paths.filter_map(|(_, address)| {
            let lease = network.lease(*address)?;
            let is_own = lease.migrated.is_none()
                && is_successor(&lease.claimant.machine, machine)
                && lease.claimant.interface == state.pool().interface
                && Family::of(*address) == family;
            let is_free = is_own
                && state.offered().offers(*address)
                && !network.has_conflict(*address)
                && !is_reported(*address)
                && !self.growth.is_closed(&state.pool().network, *address)
                && !network.is_refused(*address);
            Some((lease.released?, *address)).filter(|_| is_free)
        });
        // Chooses the address that was released last. Of two addresses released at the same time, chooses the lower
        // address.
        left.max_by(|(a, lower), (b, higher)| a.cmp(b).then(higher.cmp(lower)))
    }

    /// The lowest free address of a pool.
    pub(super) fn lowest(&mut self, pool: &str, family: Family) -> Option<IpAddr> {
        self.pools.get_mut(pool)?.lowest(family)
    }

    /// The addresses that the interfaces of a claim hold, in the order of its requests. If an interface holds several
    /// addresses of one family, only the earliest is returned; for the other addresses see [`Allocator::doubles`].
    pub(super) fn answer(&self, claim: &Claim) -> Vec<Allocation> {
        let mut held = self.held_by(&claim.machine);
        held.sort_by_key(|(_, address, lease)| (Family::of(*address), lease.since, *address));
        let mut answer: Vec<Allocation> = Vec::with_capacity(claim.requests.len());
        for request in &claim.requests {
            let Some(state) = request.pools().find_map(|pool| self.pools.get(pool)) else { continue };
            let interface = state.pool().interface;
            if answer.iter().any(|allocation| allocation.claimant.interface == interface) {
                continue;
            }
            let mut addresses = Vec::new();
            for family in [Family::Ipv4, Family::Ipv6] {
                let mut its = held.iter().filter(|(network, address, lease)| {
                    // The interface is on the network of the pool. Addresses of other networks are ignored.
                    ***network == *state.pool().network
                        && lease.claimant.interface == interface
                        && Family::of(*address) == family
                });
                addresses.extend(its.next().map(|(_, address, lease)| with_prefix(*address, lease.prefix)));
            }
            let claimant = Claimant { machine: claim.machine.clone(), interface };
            answer.push(Allocation { claimant, addresses });
        }
        answer
    }
}
