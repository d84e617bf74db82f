//! Taking over what the records of Kubernetes say. It only adds, and reports what does not fit; it never frees.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use super::{Allocator, Change, Journal, PoolState};
use crate::host::claim::{Claimant, Conflict, Lease, Record};
use crate::host::pool::Reserved;
use crate::network::Family;

/// What became of some records.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Adoption {
    /// So many addresses were not held and now are.
    pub adopted: usize,
    /// So many were held by the same claimant already.
    pub known: usize,
    /// What does not fit, in the order of the records. Nobody gets such an address before it is released.
    pub mismatches: Vec<Mismatch>,
}

/// An address of a record that does not fit.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Mismatch {
    /// The record.
    pub source: String,
    /// Who holds the address by the record.
    pub claimant: Claimant,
    /// The address.
    pub address: IpAddr,
    /// What does not fit about it.
    pub problem: Problem,
}

/// What does not fit about an address of a record.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Problem {
    /// Somebody else has it. It stays with whom it is, and is not given again before both are gone.
    Duplicate(Claimant),
    /// No pool has such an interface and such an address. It is not given before this machine is gone.
    NoPool,
    /// The interface has another address of the family. It keeps that one, and this one is not given before the machine is
    /// gone.
    OtherAddress(IpAddr),
    /// The pool of the interface does not have it. The machine keeps it.
    OutOfPool(String),
    /// The pool of the interface never gives it. The machine keeps it.
    Reserved(String, Option<Reserved>),
    /// The pool of the interface has another prefix length, which is this. The machine keeps the one that it has.
    Prefix(u8),
}

/// A record without its addresses, whose leases share the claimant.
struct Told {
    claimant: Arc<Claimant>,
    network: Option<String>,
    source: String,
}

impl Allocator {
    /// Takes over what records say: who has an address by a record and not by the ledger, has it.
    ///
    /// It never frees and never changes who holds an address. What does not fit is reported, each time anew, and is given
    /// to nobody. Of two records with one address the first one counts.
    pub fn adopt(&mut self, records: impl IntoIterator<Item = Record>, now: u64, journal: &mut Journal) -> Adoption {
        self.advance(now);
        let records = records.into_iter();
        // After a loss all of them are new.
        let count = records.size_hint().0;
        self.reserve(count);
        journal.reserve(2 * count);
        let mut adoption = Adoption::default();
        // What the claimant of a record holds.
        let mut holds: Vec<IpAddr> = Vec::new();
        for Record { claimant, network, addresses, source, .. } in records {
            let record = Told { claimant: Arc::new(claimant), network, source };
            let its = self.held_by(&record.claimant.machine).into_iter();
            let its = its.filter(|(.., lease)| lease.claimant == record.claimant);
            holds.clear();
            holds.extend(its.map(|(_, address, _)| address));
            for network in addresses {
                let (address, prefix) = (network.ip(), network.prefix());
                let prefix = Some(prefix).filter(|prefix| *prefix < Family::of(address).bits());
                let mut tell = |problem| {
                    let (source, claimant) = (record.source.clone(), Claimant::clone(&record.claimant));
                    adoption.mismatches.push(Mismatch { source, claimant, address, problem });
                };
                let Some((pool, offers)) = self.pool_of(&record, address) else {
                    for at in self.networks_with(&record, address) {
                        self.add_conflict(at, address, &record, journal);
                    }
                    tell(Problem::NoPool);
                    continue;
                };
                let at = self.pools[pool].network;
                match self.networks[at].held(address).map(|lease| &lease.claimant) {
                    Some(holder) if *holder == record.claimant => {
                        adoption.known += 1;
                        continue;
                    }
                    Some(holder) => {
                        tell(Problem::Duplicate(Claimant::clone(holder)));
                        self.add_conflict(at, address, &record, journal);
                        continue;
                    }
                    None => {}
                }
                if let Some(held) = holds.iter().find(|held| Family::of(**held) == Family::of(address)) {
                    tell(Problem::OtherAddress(*held));
                    self.add_conflict(at, address, &record, journal);
                    continue;
                }
                let own = |conflict: &Conflict| conflict.claimant == *record.claimant;
                let conflicts = self.networks[at].conflicts.get(address).map_or(&[][..], Vec::as_slice);
                if let Some(other) = conflicts.iter().find(|conflict| !own(conflict)) {
                    tell(Problem::Duplicate(other.claimant.clone()));
                }
                let PoolState { pool, name, .. } = &self.pools[pool];
                let space = pool.space(Family::of(address));
                if !offers {
                    tell(if pool.contains(address) {
                        Problem::Reserved(pool.name.clone(), pool.why_reserved(address))
                    } else {
                        Problem::OutOfPool(pool.name.clone())
                    });
                }
                let pools = space.map(|space| space.prefix());
                if let (Some(prefix), Some(pools)) = (prefix, pools)
                    && prefix != pools
                {
                    tell(Problem::Prefix(pools));
                }
                let lease = Lease {
                    claimant: Arc::clone(&record.claimant),
                    pool: Arc::clone(name),
                    prefix: prefix.or(pools).unwrap_or(Family::of(address).bits()),
                    since: self.now,
                    released: None,
                    reuse_after: None,
                };
                let network = Arc::clone(&self.networks[at].name);
                if conflicts.iter().any(own) {
                    let conflicts = conflicts.iter().filter(|conflict| !own(conflict)).cloned().collect();
                    self.decide(Change::Conflicts { network: Arc::clone(&network), address, conflicts }, journal);
                }
                self.decide(Change::Lease { network, address, lease: Some(lease) }, journal);
                holds.push(address);
                adoption.adopted += 1;
            }
        }
        adoption
    }

    /// Gives an address to nobody before the machine of `conflict` is released, on every network of which a pool has it.
    pub fn set_aside(&mut self, address: IpAddr, conflict: Conflict, now: u64, journal: &mut Journal) {
        self.advance(now);
        let Conflict { claimant, source } = conflict;
        let record = Told { claimant: Arc::new(claimant), network: None, source };
        for at in self.networks_with(&record, address) {
            self.add_conflict(at, address, &record, journal);
        }
    }

    /// The pool from which an address of a record came: of those with its interface the one that offers the address, else
    /// one that has it, else the only one that there is. And whether it offers the address.
    fn pool_of(&self, record: &Told, address: IpAddr) -> Option<(usize, bool)> {
        let fits = |at: &&usize| {
            let pool = &self.pools[**at].pool;
            pool.interface == record.claimant.interface && record.network.as_ref().is_none_or(|is| *is == pool.network)
        };
        let has = |at: &usize| self.pools[*at].pool.contains(address);
        let mut candidates = self.pool_by_name.values().filter(fits).copied();
        let first = candidates.clone().next();
        if let Some(offering) = candidates.clone().find(|at| self.pools[*at].pool.offers(address)) {
            return Some((offering, true));
        }
        let having = candidates.clone().find(has);
        // Two pools on one network are one as far as the address goes.
        let network = first.map(|at| self.pools[at].network);
        let mut is_only = || candidates.all(|at| Some(self.pools[at].network) == network);
        having.or_else(|| first.filter(|_| is_only())).map(|at| (at, false))
    }

    /// The networks on which an address may be that no pool explains.
    fn networks_with(&self, record: &Told, address: IpAddr) -> Vec<usize> {
        let named = record.network.as_deref().map(|name| self.network_by_name.get(name).copied());
        let has = |at: &usize| {
            let mut pools = self.networks[*at].pools.iter().map(|pool| &self.pools[*pool].pool);
            pools.any(|pool| pool.contains(address))
        };
        match named {
            Some(named) => named.into_iter().collect(),
            None => self.network_by_name.values().copied().filter(has).collect(),
        }
    }

    /// Notes that a record names an address which is not its claimant's.
    fn add_conflict(&mut self, at: usize, address: IpAddr, record: &Told, journal: &mut Journal) {
        let network = &self.networks[at];
        if network.held(address).is_some_and(|lease| lease.claimant == record.claimant) {
            return;
        }
        let mut conflicts = network.conflicts.get(address).cloned().unwrap_or_default();
        if conflicts.iter().all(|conflict| conflict.claimant != *record.claimant) {
            conflicts.push(Conflict { claimant: Claimant::clone(&record.claimant), source: record.source.clone() });
            conflicts.sort_by(|a, b| a.claimant.cmp(&b.claimant));
            let network = Arc::clone(&network.name);
            self.decide(Change::Conflicts { network, address, conflicts }, journal);
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
            Problem::OtherAddress(held) => write!(f, "is not what it holds, which is {held}"),
            Problem::OutOfPool(pool) => write!(f, "is not in pool {pool:?}"),
            Problem::Reserved(pool, why) => {
                write!(f, "is reserved in pool {pool:?}")?;
                why.map_or(Ok(()), |why| write!(f, " ({why})"))
            }
            Problem::Prefix(length) => write!(f, "has another prefix length than its pool, which has {length}"),
        }
    }
}
