//! Compares random histories of a ledger with a naive model. Histories include failed writes and simulated crashes.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::LazyLock;
use std::time::Duration;

use glowplug::host::allocator::ClaimError;
use glowplug::host::change::{Change, Update};
use glowplug::host::claim::{Allocation, Claim, Claimant, Machine, Record, Request, Reservation};
use glowplug::host::ledger::{Ledger, LedgerError, MemoryLedger, SqliteLedger, Transaction};
use glowplug::host::may_record::{Source, State};
use glowplug::host::pool::{Namespaces, Pool, Reserved, ReservedAddress};
use glowplug::host::registry::{Registry, RegistryError};
use glowplug::network::Family;
use ipnetwork::IpNetwork;
use proptest::prelude::*;

use super::{pool, time};

/// An operation of a history.
#[derive(Clone, Debug)]
enum Step {
    Claim {
        machine: Machine,
        pools: Vec<usize>,
        /// Whether each of the first two pools is the overflow of the other.
        has_overflow: bool,
        named: Option<u8>,
        sticky: bool,
    },
    Release(Machine),
    Resize {
        pool: usize,
        size: usize,
    },
    Wait(u64),
    /// Adopts addresses that objects record.
    Adopt(Vec<Recorded>),
    /// Reserves an address that an object records, without a lease.
    SetAside(Recorded),
    /// Replaces the addresses that running guests report.
    Report(Vec<Recorded>),
    /// Opens all new addresses, because their records are adopted.
    Open,
}

/// A record of an address.
#[derive(Clone, Debug)]
struct Recorded {
    machine: Machine,
    interface: &'static str,
    address: IpAddr,
    kind: Source,
}

/// A fault of an operation.
#[derive(Clone, Copy, Debug)]
enum Fault {
    None,
    /// The store rejects the write.
    Full,
    /// The process crashes before the write.
    DiesBefore,
    /// The process crashes after the write, before it reports the result.
    DiesAfter,
}

/// A ledger in which a fault happens once.
#[derive(Debug)]
struct Faulty<L> {
    ledger: L,
    fault: Rc<Cell<Fault>>,
}

struct FaultyTransaction<'a> {
    transaction: Box<dyn Transaction + 'a>,
    fault: &'a Cell<Fault>,
}

impl<L: Ledger> Ledger for Faulty<L> {
    fn catch_up(&mut self) -> Result<Update, LedgerError> {
        self.ledger.catch_up()
    }

    fn begin(&mut self) -> Result<Box<dyn Transaction + '_>, LedgerError> {
        Ok(Box::new(FaultyTransaction { transaction: self.ledger.begin()?, fault: &self.fault }))
    }
}

impl Transaction for FaultyTransaction<'_> {
    fn catch_up(&mut self) -> Result<Update, LedgerError> {
        self.transaction.catch_up()
    }

    fn commit(self: Box<Self>, changes: &[Change]) -> Result<(), LedgerError> {
        let failed = Err(LedgerError::Store { doing: "writing the ledger", source: "full".into() });
        match self.fault.replace(Fault::None) {
            Fault::None => self.transaction.commit(changes),
            Fault::Full | Fault::DiesBefore => failed,
            Fault::DiesAfter => self.transaction.commit(changes).and(failed),
        }
    }
}

/// Names of the pools. The first two pools share addresses; the third pool has both families.
const POOLS: [&str; 3] = ["clusters/one", "clusters/two", "clusters/both"];

static SIZES: LazyLock<Vec<Vec<Pool>>> =
    LazyLock::new(|| (0..3).map(|at| (0..3).map(|size| of_size(at, size)).collect()).collect());

fn sized(at: usize, size: usize, delay: u64) -> Pool {
    let namespaces = || if serves(at, "other") { Namespaces::every() } else { Namespaces::only(["clusters"]) };
    SIZES[at][size].clone().with_reuse_delay(Duration::from_millis(delay)).with_namespaces(namespaces(), namespaces())
}

/// Whether a pool serves a namespace. The second pool serves only `clusters`.
fn serves(at: usize, namespace: &str) -> bool {
    at != 1 || namespace == "clusters"
}

fn of_size(at: usize, size: usize) -> Pool {
    let addresses = match (at, size) {
        (0, 0) => "10.0.0.0-10.0.0.3",
        (0, 1) => "10.0.0.0/29",
        (0, _) => "10.0.0.4-10.0.0.9, 10.0.0.12-10.0.0.15",
        (1, 0) => "10.0.0.6-10.0.0.7",
        (1, 1) => "10.0.0.4-10.0.0.9",
        (1, _) => "10.0.0.1-10.0.0.4",
        (_, 0) => "10.0.1.2-10.0.1.4, 'fd00::/126'",
        (_, 1) => "10.0.1.2-10.0.1.7, 'fd00::-fd00::5'",
        (_, _) => "10.0.1.4, 'fd00::2-fd00::9'",
    };
    let interface = INTERFACES[at];
    let name = POOLS[at].trim_start_matches("clusters/");
    let subnets = if at == 2 { "{cidr: 10.0.1.0/29}, {cidr: 'fd00::/124'}" } else { "{cidr: 10.0.0.0/28}" };
    let mut kept: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (name, address) in kept_for(at, size) {
        kept.entry(name).or_default().push(address);
    }
    let kept: Vec<String> =
        kept.iter().map(|(name, addresses)| format!("{name}: '{}'", addresses.join(", "))).collect();
    let (kept, excluded) = (kept.join(", "), excluded(at, size));
    pool(
        name,
        interface,
        &format!(
            "addresses: [{addresses}], machineNetwork: [{subnets}], excludedAddresses: [{excluded}], \
             preAllocations: {{{kept}}}"
        ),
    )
}

/// Returns the address that a pool of this size excludes.
fn excluded(at: usize, size: usize) -> &'static str {
    match (at, size) {
        (0, 2) => "10.0.0.11",
        (0, _) => "10.0.0.2",
        (1, 2) => "10.0.0.4",
        (1, _) => "10.0.0.8",
        (_, _) => "10.0.1.3",
    }
}

/// Returns the pre-allocated addresses of a pool of this size, each after the name of its machine.
fn kept_for(at: usize, size: usize) -> &'static [(&'static str, &'static str)] {
    match (at, size) {
        (0, 0) => &[("worker-1", "10.0.0.2")],
        (0, 1) => &[("clusters/worker-3", "10.0.0.2"), ("worker-4", "10.0.0.5"), ("other/worker-0", "10.0.0.1")],
        (0, _) => &[("worker-1", "10.0.0.11")],
        (1, 1) => &[("worker-2", "10.0.0.8")],
        // In two of its sizes, the first pool excludes this address.
        (1, 2) => &[("worker-2", "10.0.0.2")],
        (2, 1) => &[("worker-2", "10.0.1.3"), ("worker-2", "fd00::3"), ("worker-0", "fd00::2")],
        (_, _) => &[],
    }
}

/// The naive model: plain maps, and a linear search for a free address.
#[derive(Clone, Debug)]
struct Model {
    pools: Vec<Pool>,
    sizes: [usize; 3],
    held: BTreeMap<IpAddr, (Claimant, String, u8)>,
    /// For each released address: the last holder, the time of the release, and the end of the reuse delay.
    left: BTreeMap<IpAddr, (Claimant, u64, u64)>,
    waiters: Vec<Claim>,
    conflicts: BTreeMap<IpAddr, BTreeMap<Claimant, State>>,
    reports: BTreeMap<IpAddr, BTreeSet<Claimant>>,
    /// The open addresses.
    open: BTreeSet<IpAddr>,
    now: u64,
    delay: u64,
}

impl Model {
    /// Returns the addresses that the pools can allocate, even if only to one machine. The ends of subnets are
    /// included.
    fn allocatable(&self) -> BTreeSet<IpAddr> {
        self.offers().into_iter().map(|(_, address)| address).collect()
    }

    /// Returns the addresses of [`Self::allocatable`], each with its pool.
    fn offers(&self) -> BTreeSet<(usize, IpAddr)> {
        let is_kept = |pool: usize, address: IpAddr| {
            let kept = kept_for(pool, self.sizes[pool]);
            let mut names = kept.iter().filter(|(_, kept)| kept.parse() == Ok(address)).map(|(name, _)| *name);
            names.any(|name| {
                let (namespace, name) = name.split_once('/').unwrap_or(("clusters", name));
                self.why_reserved(pool, address, Some(&Machine::new(namespace, name, ""))).is_none()
            })
        };
        let mut all = BTreeSet::new();
        for pool in 0..3 {
            for family in [Family::Ipv4, Family::Ipv6] {
                for address in self.of(pool, family).unwrap_or_default() {
                    let is_end =
                        |why: &ReservedAddress| !matches!(why.why, Reserved::PreAllocated | Reserved::Excluded);
                    let others = (0..3).filter(|at| *at != pool).any(|at| self.names(at, address).is_some());
                    let own = self.why_reserved(pool, address, None);
                    if own.is_none() || own.is_some_and(|own| is_end(&own)) && !others || is_kept(pool, address) {
                        all.insert((pool, address));
                    }
                }
            }
        }
        all
    }

    /// Returns the reason if a pool names exactly this address as pre-allocated or excluded.
    fn names(&self, at: usize, address: IpAddr) -> Option<Reserved> {
        let has = |text: &str| text.parse() == Ok(address);
        let kept = kept_for(at, self.sizes[at]).iter().any(|(_, kept)| has(kept));
        let excluded = has(excluded(at, self.sizes[at]));
        kept.then_some(Reserved::PreAllocated).or(excluded.then_some(Reserved::Excluded))
    }

    fn is_open(&self, address: IpAddr) -> bool {
        self.open.contains(&address)
    }

    /// Whether a pool has a closed address of a family.
    fn has_closed(&self, pool: usize, family: Family) -> bool {
        let allocatable = self.allocatable();
        let of_pool = self.of(pool, family).unwrap_or_default();
        of_pool.into_iter().any(|address| allocatable.contains(&address) && !self.is_open(address))
    }

    /// Returns another claimant that has a record of the address, or whose guest runs with the address.
    fn rival(&self, address: IpAddr, machine: &Machine, is_other: impl Fn(&Claimant) -> bool) -> Option<Claimant> {
        let mut records = self.conflicts.get(&address).into_iter().flat_map(BTreeMap::keys);
        records.find(|claimant| is_other(claimant)).or_else(|| self.other_guest(address, machine)).cloned()
    }

    fn other_guest(&self, address: IpAddr, machine: &Machine) -> Option<&Claimant> {
        let mut reports = self.reports.get(&address)?.iter();
        reports.find(|claimant| !is_namesake(&claimant.machine, machine))
    }

    fn is_reserved(&self, address: IpAddr) -> bool {
        self.conflicts.contains_key(&address) || self.reports.contains_key(&address)
    }

    /// Whether an interface keeps an address of a family that no pool offers.
    fn keeps(&self, claimant: &Claimant, family: Family) -> bool {
        let mut own = self.conflicts.iter().filter(|(address, _)| Family::of(**address) == family);
        own.any(|(_, records)| records.get(claimant) == Some(&State::Excluded))
    }

    /// Decides by the rules of the documentation what becomes of a record, without the `may_record` of the library.
    /// `None`: the record is ignored.
    fn may_record(&self, Recorded { machine, interface, address, kind }: &Recorded) -> Option<May> {
        let claimant = Claimant { machine: machine.clone(), interface: interface.parse().unwrap() };
        let family = Family::of(*address);
        let has = |at: &usize| self.of(*at, family).is_some_and(|all| all.contains(address));
        let own = |at: &usize| *kind == Source::Report || serves(*at, &machine.namespace);
        let has_left =
            !(0..3).any(|at| has(&at) && own(&at)) && (0..3).any(|at| has(&at) && self.has_left(at, machine));
        let holder = self.held.get(address).map(|(holder, ..)| holder);
        let is_guests = |holder: &Claimant| *kind == Source::Report && is_namesake(&holder.machine, machine);
        if holder.is_some_and(|holder| *holder == claimant || is_guests(holder)) {
            return Some(May::Keep);
        }
        // A record cannot take or reserve an address that only pools of other namespaces have.
        if (0..3).any(|at| has(&at)) && !(0..3).any(|at| has(&at) && own(&at)) && !has_left {
            return None;
        }
        let is_contested = || {
            let mut records = self.conflicts.get(address).into_iter().flatten();
            let is_rival = |other: &Machine, state: State| {
                let needs_none = matches!(state, State::ByRecord | State::ByReport);
                *other != *machine && !(needs_none && is_namesake(other, machine))
            };
            let is_recorded = records.any(|(other, state)| is_rival(&other.machine, *state));
            is_recorded || self.other_guest(*address, machine).is_some()
        };
        if *kind == Source::Report {
            return Some(May::Reserve(State::ByReport));
        }
        let is_left_by_other = || {
            let last = self.rests(*address).and_then(|_| self.left.get(address));
            last.is_some_and(|(last, ..)| !is_namesake(&last.machine, machine))
        };
        if holder.is_some() || is_contested() || is_left_by_other() {
            let is_own = *kind == Source::NetworkData;
            return Some(May::Reserve(if is_own { State::ByRecord } else { State::Mismatch }));
        }
        let is_offered = (0..3).any(|at| own(&at) && self.offers_to(at, *address, machine));
        let is_kept_for_others = || {
            let is_own = |at: usize| self.kept(at, machine, family) == Some(*address);
            (0..3).any(|at| self.names(at, *address) == Some(Reserved::PreAllocated) && !is_own(at))
        };
        let is_end = || {
            let end = |at: usize| {
                let prefix = self.pools[at].space(family).unwrap().subnets()[0].prefix();
                Reserved::end_of_subnet(IpNetwork::new(*address, prefix).unwrap()).is_some()
            };
            (0..3).any(|at| (own(&at) || has_left) && has(&at) && end(at))
        };
        let is_kept_back = !is_offered && (is_kept_for_others() || is_end());
        Some(match kind {
            Source::Unreadable => May::Reserve(State::Mismatch),
            _ if is_kept_back => May::Reserve(State::Mismatch),
            Source::NetworkData | Source::LoneIpAddress => May::Reserve(State::ByRecord),
            _ if is_offered => May::Lease,
            _ => May::Reserve(State::Excluded),
        })
    }

    /// Whether a machine of the same namespace holds an address of the pool, and no pool of the namespace has this
    /// address. Either the pool served the namespace before, or a pool of the namespace had the address before. Other
    /// machines of the namespace may then also run with addresses of the pool.
    fn has_left(&self, pool: usize, machine: &Machine) -> bool {
        let has = |at: usize, address: IpAddr| self.of(at, Family::of(address)).unwrap_or_default().contains(&address);
        let is_of_pool = |address: IpAddr| {
            has(pool, address) && !(0..3).any(|at| serves(at, &machine.namespace) && has(at, address))
        };
        let mut held = self.held.iter();
        held.any(|(address, (by, ..))| by.machine.namespace == machine.namespace && is_of_pool(*address))
    }

    /// Whether an address has two users. If there is no lease or record of the address, the guests that report it count
    /// only if a pool offers the address.
    fn has_two_users(&self, address: IpAddr) -> bool {
        let family = Family::of(address);
        let name = |claimant: &Claimant| (claimant.machine.namespace.clone(), claimant.machine.name.clone());
        let holder = self.held.get(&address).map(|(holder, ..)| name(holder));
        let records = self.conflicts.get(&address).into_iter().flatten();
        let (reported, recorded): (Vec<_>, Vec<_>) = records.partition(|(_, state)| **state == State::ByReport);
        let users: BTreeSet<_> = holder.into_iter().chain(recorded.into_iter().map(|(by, _)| name(by))).collect();
        let guests = reported.into_iter().map(|(by, _)| name(by));
        let guests: BTreeSet<_> = guests.chain(self.reports.get(&address).into_iter().flatten().map(name)).collect();
        let is_kept = |at: usize| {
            kept_for(at, self.sizes[at]).iter().any(|(name, kept)| {
                let (namespace, name) = name.split_once('/').unwrap_or(("clusters", name));
                kept.parse() == Ok(address) && self.offers_to(at, address, &Machine::new(namespace, name, ""))
            })
        };
        let is_offered = || (0..3).any(|at| self.offered(at, family).contains(&address) || is_kept(at));
        (!users.is_empty() || is_offered()) && users.union(&guests).count() > 1
    }

    fn note(&mut self, recorded: &Recorded, state: State) {
        let claimant = recorded.claimant();
        if self.held.get(&recorded.address).is_some_and(|(holder, ..)| *holder == claimant) {
            return;
        }
        let of_address = self.conflicts.entry(recorded.address).or_default();
        let is_weak = matches!(state, State::ByRecord | State::ByReport);
        if !(is_weak && of_address.contains_key(&claimant)) {
            of_address.insert(claimant, state);
        }
    }

    /// Adopts records. Returns the number of new leases and the number of new reservations.
    fn adopt(&mut self, records: &[Recorded]) -> (usize, usize) {
        // The pools are in the order of their names.
        let pools_of = |recorded: &Recorded| -> Vec<usize> {
            let is_its = |at: &usize| serves(*at, &recorded.machine.namespace) && INTERFACES[*at] == recorded.interface;
            [2, 0, 1].into_iter().filter(is_its).collect()
        };
        let would = |model: &Self, recorded: &Recorded| {
            !pools_of(recorded).is_empty() && model.may_record(recorded) == Some(May::Lease)
        };
        let mut rivals: BTreeMap<IpAddr, BTreeSet<Claimant>> = BTreeMap::new();
        for recorded in records.iter().filter(|recorded| would(self, recorded)) {
            rivals.entry(recorded.address).or_default().insert(recorded.claimant());
        }
        let (mut adopted, mut reserved) = (0, 0);
        for recorded in records {
            let (claimant, family) = (recorded.claimant(), Family::of(recorded.address));
            let pools = pools_of(recorded);
            let has = |at: &usize| self.of(*at, family).is_some_and(|all| all.contains(&recorded.address));
            let held = self.holds(&claimant, family).map(|(held, _)| held);
            if held == Some(recorded.address) {
                continue;
            }
            let verdict = self.may_record(recorded);
            if pools.is_empty() {
                if verdict.is_some() && (0..3).any(|at| has(&at)) {
                    self.note(recorded, State::Mismatch);
                }
                continue;
            }
            match verdict {
                None | Some(May::Keep) => {}
                Some(_) if held.is_some() => self.note(recorded, State::Mismatch),
                Some(May::Reserve(state)) => {
                    self.note(recorded, state);
                    reserved += usize::from(state != State::Mismatch);
                }
                Some(May::Lease) if rivals.get(&recorded.address).is_some_and(|rivals| rivals.len() > 1) => {
                    self.note(recorded, State::Mismatch);
                }
                Some(May::Lease) => {
                    let offers = |at: &&usize| self.offers_to(**at, recorded.address, &recorded.machine);
                    let at = *pools.iter().find(offers).or(pools.iter().find(|at| has(at))).unwrap_or(&pools[0]);
                    let prefix =
                        self.pools[at].space(family).map_or(family.bits(), |space| space.subnets()[0].prefix());
                    if let Some(records) = self.conflicts.get_mut(&recorded.address) {
                        records.remove(&claimant);
                        if records.is_empty() {
                            self.conflicts.remove(&recorded.address);
                        }
                    }
                    self.held.insert(recorded.address, (claimant, POOLS[at].to_owned(), prefix));
                    self.left.remove(&recorded.address);
                    adopted += 1;
                }
            }
        }
        // A machine that has all addresses, or whose claim contradicts its lease, does not wait.
        let all = self.clone();
        let waits = |waiter: &Claim| {
            let contradicts = |error| matches!(error, ClaimError::OtherAddress { .. });
            !all.is_settled(waiter) && !all.clone().allocate(waiter).is_err_and(contradicts)
        };
        self.waiters.retain(waits);
        (adopted, reserved)
    }

    fn set_aside(&mut self, recorded: &Recorded) {
        match self.may_record(recorded) {
            Some(May::Reserve(state)) => self.note(recorded, state),
            Some(May::Lease) => self.note(recorded, State::ByRecord),
            // The guest of another machine of the same name reports the address.
            Some(May::Keep) => self.note(recorded, State::ByReport),
            None => {}
        }
    }

    fn report(&mut self, reports: &[Recorded]) {
        self.reports.clear();
        for recorded in reports {
            self.reports.entry(recorded.address).or_default().insert(recorded.claimant());
        }
    }

    /// Returns the reports that a later state no longer has.
    fn reports_without(&self, later: &Self) -> Vec<Reservation> {
        let is_over = |(address, claimant): &(&IpAddr, &Claimant)| {
            !later.reports.get(*address).is_some_and(|claimants| claimants.contains(*claimant))
        };
        let all = self.reports.iter().flat_map(|(address, of)| of.iter().map(move |claimant| (address, claimant)));
        all.filter(is_over)
            .map(|(address, claimant)| Reservation {
                address: *address,
                network: Some("clusters/vlan10".to_owned()),
                claimant: claimant.clone(),
                source: String::new(),
                kind: Source::Report,
            })
            .collect()
    }

    fn of(&self, pool: usize, family: Family) -> Option<Vec<IpAddr>> {
        let space = self.pools[pool].space(family)?;
        let all = space.ranges().iter().flat_map(|range| range.first()..=range.last());
        Some(all.map(|number| family.address(number)).collect())
    }

    fn offered(&self, pool: usize, family: Family) -> Vec<IpAddr> {
        let all = self.of(pool, family).unwrap_or_default();
        all.into_iter().filter(|address| self.why_reserved(pool, *address, None).is_none()).collect()
    }

    /// Returns the reason why a pool does not allocate an address to this machine. Without a machine, returns the
    /// reason for machines to which the address is not pre-allocated. All pools are on one network.
    fn why_reserved(&self, pool: usize, address: IpAddr, machine: Option<&Machine>) -> Option<ReservedAddress> {
        let has = |text: &str| text.parse() == Ok(address);
        let is_kept = machine.is_some_and(|machine| self.kept(pool, machine, Family::of(address)) == Some(address));
        let of_pool = |at: usize| {
            let kept = kept_for(at, self.sizes[at]).iter().find(|(_, kept)| has(kept));
            let excluded = has(excluded(at, self.sizes[at])).then_some(Reserved::Excluded);
            let why = kept.map(|_| Reserved::PreAllocated).or(excluded).filter(|_| at != pool || !is_kept);
            why.map(|why| ReservedAddress { why, pool: POOLS[at].to_owned() })
        };
        let prefix = self.pools[pool].space(Family::of(address)).unwrap().subnets()[0].prefix();
        let end = Reserved::end_of_subnet(IpNetwork::new(address, prefix).unwrap());
        let end = end.map(|why| ReservedAddress { why, pool: POOLS[pool].to_owned() });
        let others = (0..3).filter(|other| *other != pool).filter_map(of_pool);
        let first = others.min_by_key(|reserved| (reserved.why, reserved.pool.clone()));
        of_pool(pool).or(end).or(first)
    }

    /// Returns the address of a family that is pre-allocated to a machine in a pool.
    fn kept(&self, pool: usize, machine: &Machine, family: Family) -> Option<IpAddr> {
        let names = [machine.name.clone(), format!("{}/{}", machine.namespace, machine.name)];
        let kept = kept_for(pool, self.sizes[pool]).iter().filter(|(name, _)| names.iter().any(|own| own == name));
        kept.map(|(_, address)| address.parse().unwrap()).find(|address| Family::of(*address) == family)
    }

    fn rests(&self, address: IpAddr) -> Option<u64> {
        self.left.get(&address).map(|(_, _, until)| *until).filter(|until| *until > self.now)
    }

    fn holds(&self, claimant: &Claimant, family: Family) -> Option<(IpAddr, &str)> {
        let mut held = self.held.iter().filter(|(address, _)| Family::of(**address) == family);
        held.find(|(_, (holder, _, _))| holder == claimant).map(|(address, (_, pool, _))| (*address, pool.as_str()))
    }

    fn claim(&mut self, claim: &Claim) -> Result<Vec<Allocation>, ClaimError> {
        self.serve();
        let answer = self.allocate(claim);
        let names_none = claim.requests.iter().all(|request| request.addresses.is_empty());
        match &answer {
            Ok(_) => self.waiters.retain(|waiter| waiter.machine != claim.machine),
            Err(error) if names_none && may_pass(error) => {
                self.waiters.retain(|waiter| waiter.machine != claim.machine);
                self.waiters.push(claim.clone());
            }
            Err(_) => {}
        }
        answer
    }

    fn allocate(&mut self, claim: &Claim) -> Result<Vec<Allocation>, ClaimError> {
        let mut wanted = BTreeSet::new();
        let mut next = self.clone();
        // A mistake in the claim itself is reported before any conflict about an address.
        for check in [true, false] {
            for request in &claim.requests {
                if !check {
                    next.give(request, claim, self)?;
                    continue;
                }
                let at = POOLS.iter().position(|pool| *pool == request.pool).unwrap();
                let pool = self.pools[at].clone();
                let interface = pool.interface();
                let claimant = Claimant { machine: claim.machine.clone(), interface };
                if let Some(&named) = request.addresses.iter().find(|named| self.of(at, Family::of(**named)).is_none())
                {
                    return Err(ClaimError::NotInPool { named, pool: pool.name().to_owned() });
                }
                for family in [Family::Ipv4, Family::Ipv6] {
                    if self.of(at, family).is_none() {
                        continue;
                    }
                    let named = request.addresses.iter().copied().find(|named| Family::of(*named) == family);
                    if wanted.contains(&(interface, family)) {
                        return Err(ClaimError::Twice { interface, family });
                    }
                    match (self.holds(&claimant, family), named) {
                        (Some((held, _)), Some(named)) if held != named => {
                            return Err(ClaimError::OtherAddress { interface, held, named });
                        }
                        _ => {
                            wanted.insert((interface, family));
                        }
                    }
                }
            }
        }
        *self = next;
        let mut answer: Vec<Allocation> = Vec::new();
        for request in &claim.requests {
            let at = POOLS.iter().position(|pool| *pool == request.pool).unwrap();
            let claimant = Claimant { machine: claim.machine.clone(), interface: self.pools[at].interface() };
            if answer.iter().all(|allocation| allocation.claimant != claimant) {
                answer.push(self.allocation(claimant));
            }
        }
        Ok(answer)
    }

    /// Allocates to an interface the addresses of a request, all of them from one pool. Moves leases of other pools to
    /// the pools of the request. `before` is the state before the claim: another request of the claim may allocate the
    /// address that the interface keeps.
    fn give(&mut self, request: &Request, claim: &Claim, before: &Self) -> Result<(), ClaimError> {
        let index = |pool: &str| POOLS.iter().position(|known| *known == pool).unwrap();
        let group: Vec<usize> = request.pools().map(index).collect();
        let claimant = Claimant { machine: claim.machine.clone(), interface: self.pools[group[0]].interface() };
        let families: Vec<Family> = self.pools[group[0]].spaces().map(|space| space.family()).collect();
        let prefix_of = |model: &Self, at: usize, family| model.pools[at].space(family).unwrap().subnets()[0].prefix();
        let (mut own, mut lacks) = (Vec::new(), Vec::new());
        for family in families {
            let Some((held, pool)) = self.holds(&claimant, family) else {
                if !before.keeps(&claimant, family) {
                    lacks.push(family);
                }
                continue;
            };
            // If the request names the pool of the lease, the lease stays, unless only another pool of the request has
            // the address.
            let has = |at: &&usize| self.of(**at, family).unwrap().contains(&held);
            let known = group.iter().find(|at| POOLS[**at] == pool);
            if let Some(at) = known.filter(|at| has(at) || !group.iter().any(|at| has(&at))) {
                own.push(*at);
                continue;
            }
            // All pools are on one network, so a lease can move between them. An address outside its new pool keeps its
            // prefix length.
            let (at, is_inside) = (*group.iter().find(has).unwrap_or(&group[0]), group.iter().any(|at| has(&at)));
            let prefix = prefix_of(self, at, family);
            let lease = self.held.get_mut(&held).unwrap();
            (lease.1, lease.2) = (POOLS[at].to_owned(), if is_inside { prefix } else { lease.2 });
            own.push(at);
        }
        let named = |family: Family| request.addresses.iter().copied().find(|named| Family::of(*named) == family);
        let wanted: Vec<IpAddr> = lacks.iter().filter_map(|family| named(*family)).collect();
        let has_all = |at: &&usize| wanted.iter().all(|it| self.of(**at, Family::of(*it)).unwrap().contains(it));
        let keeps = |at: &&usize| lacks.iter().any(|family| self.kept(**at, &claim.machine, *family).is_some());
        let mut tried = match own.first() {
            Some(own) => vec![*own],
            None if !wanted.is_empty() => vec![*group.iter().find(has_all).unwrap_or(&group[0])],
            None => group.iter().find(keeps).map_or(group.clone(), |at| vec![*at]),
        };
        let released = |at: &usize| {
            let last = lacks.iter().filter_map(|family| self.remembered(*at, *family, claim));
            last.map(|address| self.left[&address].1).max()
        };
        tried.sort_by_key(|at| std::cmp::Reverse(released(at).filter(|_| claim.sticky)));
        let mut refused = Vec::new();
        'pools: for at in tried {
            let mut next = self.clone();
            for family in &lacks {
                let address = match next.pick(at, *family, named(*family), claim) {
                    Ok(address) => address,
                    Err(ClaimError::Exhausted { pool, family, .. }) => {
                        refused.push((pool, family));
                        continue 'pools;
                    }
                    // A machine gets addresses of the next pool only if this pool is exhausted. If this pool has closed
                    // addresses, the machine waits, because they are soon opened.
                    Err(error) => return Err(error),
                };
                let prefix = prefix_of(&next, at, *family);
                next.held.insert(address, (claimant.clone(), POOLS[at].to_owned(), prefix));
                next.left.remove(&address);
                if let Some(records) = next.conflicts.get_mut(&address) {
                    records.retain(|of, _| of.machine != claim.machine);
                    if records.is_empty() {
                        next.conflicts.remove(&address);
                    }
                }
            }
            *self = next;
            return Ok(());
        }
        let mut pools = refused.into_iter();
        let (pool, family) = pools.next().unwrap();
        Err(ClaimError::Exhausted { interface: claimant.interface, pool, family, overflow: pools.collect() })
    }

    /// Gives the prefix length of this pool to held addresses. An address gets the prefix length if its lease names
    /// this pool and the pool still has the address. If the pool in the lease no longer has the address, the address
    /// gets the prefix length only if this is the only pool that has the address and serves its machine.
    fn follow_prefix(&mut self, pool: usize) {
        let mut held = std::mem::take(&mut self.held);
        for (address, (by, of, prefix)) in &mut held {
            let family = Family::of(*address);
            let has = |at: &usize| self.of(*at, family).is_some_and(|all| all.contains(address));
            let own = (0..3).find(|at| POOLS[*at] == of).filter(has);
            let homes: Vec<usize> = (0..3).filter(|at| has(at) && serves(*at, &by.machine.namespace)).collect();
            if own.map_or(homes == [pool], |own| own == pool) {
                *prefix = self.pools[pool].space(family).unwrap().subnets()[0].prefix();
            }
        }
        self.held = held;
    }

    fn offers_to(&self, pool: usize, address: IpAddr, machine: &Machine) -> bool {
        let has = self.of(pool, Family::of(address)).is_some_and(|all| all.contains(&address));
        has && self.why_reserved(pool, address, Some(machine)).is_none()
    }

    /// Whether a waiting claim already has all requested addresses.
    fn is_settled(&self, claim: &Claim) -> bool {
        let mut families = Vec::new();
        for request in &claim.requests {
            let at = POOLS.iter().position(|pool| *pool == request.pool).unwrap();
            for family in [Family::Ipv4, Family::Ipv6].into_iter().filter(|family| self.of(at, *family).is_some()) {
                families.push((self.pools[at].interface(), family));
            }
        }
        let claimant = |interface| Claimant { machine: claim.machine.clone(), interface };
        families.into_iter().all(|(interface, family)| {
            let claimant = claimant(interface);
            self.holds(&claimant, family).is_some() || self.keeps(&claimant, family)
        })
    }

    fn allocation(&self, claimant: Claimant) -> Allocation {
        let held = self.held.iter().filter(|(_, (holder, _, _))| *holder == claimant);
        let addresses = held.map(|(address, (_, _, prefix))| IpNetwork::new(*address, *prefix).unwrap()).collect();
        Allocation { claimant, addresses }
    }

    fn pick(&self, at: usize, family: Family, named: Option<IpAddr>, claim: &Claim) -> Result<IpAddr, ClaimError> {
        let (pool, offered) = (&self.pools[at], self.offered(at, family));
        let kept = self.kept(at, &claim.machine, family);
        if let Some(named) = named.or(kept) {
            let name = pool.name().to_owned();
            let is_its = |left: &(Claimant, u64, u64)| is_namesake(&left.0.machine, &claim.machine);
            let was_own = kept == Some(named) && self.left.get(&named).is_some_and(is_its);
            return if !self.of(at, family).unwrap().contains(&named) {
                Err(ClaimError::NotInPool { named, pool: name })
            } else if let why @ Some(_) = self.why_reserved(at, named, Some(&claim.machine)) {
                Err(ClaimError::Reserved { named, pool: name, why })
            } else if let Some((by, _, _)) = self.held.get(&named) {
                Err(ClaimError::Taken { named, by: Box::new(by.clone()) })
            } else if let Some(by) = self.rival(named, &claim.machine, |of| of.machine != claim.machine) {
                Err(ClaimError::Taken { named, by: Box::new(by) })
            } else if !self.is_open(named) {
                Err(ClaimError::Closed(name))
            } else if let Some(until) = self.rests(named).filter(|_| !was_own) {
                Err(ClaimError::ReuseDelay { named, until: time(until) })
            } else {
                Ok(named)
            };
        }
        if let Some(address) = self.remembered(at, family, claim).filter(|_| claim.sticky) {
            return Ok(address);
        }
        let free = |address: &IpAddr| {
            !self.held.contains_key(address)
                && self.rests(*address).is_none()
                && !self.is_reserved(*address)
                && self.is_open(*address)
        };
        let none = || match self.has_closed(at, family) {
            true => ClaimError::Closed(pool.name().to_owned()),
            false => ClaimError::Exhausted {
                interface: pool.interface(),
                pool: pool.name().to_owned(),
                family,
                overflow: Vec::new(),
            },
        };
        offered.into_iter().find(free).ok_or_else(none)
    }

    /// Returns the address of a pool that the claimant gets again. Of the addresses that machines with the same name
    /// have released and that are free for the claimant, this is the address that was released last.
    fn remembered(&self, at: usize, family: Family, claim: &Claim) -> Option<IpAddr> {
        let (pool, offered) = (&self.pools[at], self.offered(at, family));
        let own = |by: &Claimant| is_namesake(&by.machine, &claim.machine) && by.interface == pool.interface();
        let is_free = |address: &IpAddr| {
            let is_other = self.other_guest(*address, &claim.machine).is_some();
            offered.contains(address) && !self.conflicts.contains_key(address) && !is_other && self.is_open(*address)
        };
        let left = self.left.iter().filter(|(address, (by, _, _))| own(by) && is_free(address));
        left.max_by_key(|(address, (_, at, _))| (*at, std::cmp::Reverse(**address))).map(|(address, _)| *address)
    }

    fn serve(&mut self) -> Vec<Allocation> {
        let mut served = Vec::new();
        self.waiters.sort_by_key(|claim| (claim.created, claim.machine.clone()));
        let all = self.clone();
        self.waiters.retain(|waiter| !all.is_settled(waiter));
        for waiter in self.waiters.clone() {
            match self.allocate(&waiter) {
                Err(error) if may_pass(&error) => continue,
                Ok(answer) => served.extend(answer),
                Err(_) => {}
            }
            self.waiters.retain(|other| *other != waiter);
        }
        served
    }

    fn release(&mut self, machine: &Machine) -> (Vec<Allocation>, Vec<Allocation>) {
        let own: Vec<IpAddr> =
            self.held.iter().filter(|(_, (by, _, _))| by.machine == *machine).map(|(address, _)| *address).collect();
        let claimants: BTreeSet<Claimant> = own.iter().map(|address| self.held[address].0.clone()).collect();
        let held = claimants.into_iter().map(|claimant| self.allocation(claimant)).collect();
        for address in own {
            let (by, _, _) = self.held.remove(&address).unwrap();
            self.left.insert(address, (by, self.now, if self.delay > 0 { self.now + self.delay } else { 0 }));
        }
        for records in self.conflicts.values_mut() {
            records.retain(|claimant, _| claimant.machine != *machine);
        }
        self.conflicts.retain(|_, records| !records.is_empty());
        self.waiters.retain(|waiter| waiter.machine != *machine);
        (held, self.serve())
    }

    fn outside(&self, at: usize) -> Vec<Allocation> {
        let pool = &self.pools[at];
        let mut outside: BTreeMap<Claimant, Vec<IpNetwork>> = BTreeMap::new();
        for (address, (by, from, prefix)) in &self.held {
            if *from == pool.name() && !self.offers_to(at, *address, &by.machine) {
                outside.entry(by.clone()).or_default().push(IpNetwork::new(*address, *prefix).unwrap());
            }
        }
        outside.into_iter().map(|(claimant, addresses)| Allocation { claimant, addresses }).collect()
    }
}

/// What becomes of a record.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum May {
    /// The claimant already holds the address. For a report: a machine of the same name holds the address.
    Keep,
    Lease,
    Reserve(State),
}

/// Names of the interfaces of the pools.
const INTERFACES: [&str; 3] = ["eth0", "eth0", "eth1"];

impl Recorded {
    fn claimant(&self) -> Claimant {
        Claimant { machine: self.machine.clone(), interface: self.interface.parse().unwrap() }
    }

    fn record(&self) -> Record {
        Record {
            claimant: self.claimant(),
            node_pool: None,
            attachments: Vec::new(),
            network: None,
            addresses: vec![IpNetwork::from(self.address)],
            source: self.kind.to_string(),
            kind: self.kind,
        }
    }

    fn reservation(&self) -> Reservation {
        Reservation {
            address: self.address,
            network: Some("clusters/vlan10".to_owned()),
            claimant: self.claimant(),
            source: self.kind.to_string(),
            kind: self.kind,
        }
    }
}

fn is_namesake(one: &Machine, other: &Machine) -> bool {
    one.name == other.name && one.namespace == other.namespace
}

/// Whether a claim without named addresses waits after this refusal.
fn may_pass(error: &ClaimError) -> bool {
    use ClaimError::{Closed, Exhausted, Reserved, ReuseDelay, Taken};
    matches!(error, Exhausted { .. } | Reserved { .. } | ReuseDelay { .. } | Taken { .. } | Closed(_))
}

fn step() -> impl Strategy<Value = Step> {
    // Each name belongs to two machines, one after the other.
    let machine = || {
        (0..5_u8, 0..2_u8)
            .prop_map(|(name, uid)| Machine::new("clusters", format!("worker-{name}"), format!("{name}{uid}")))
    };
    let pools = prop_oneof![
        4 => (0..3_usize).prop_map(|pool| vec![pool]),
        1 => Just(vec![0, 1]),
        3 => Just(vec![0, 2]),
        1 => Just(vec![2, 1]),
        1 => Just(Vec::new()),
    ];
    let named = prop_oneof![4 => Just(None), 1 => (0..20_u8).prop_map(Some)];
    let address = prop_oneof![
        4 => (0..18_u8).prop_map(|last| IpAddr::from([10, 0, 0, last])),
        1 => (0..9_u8).prop_map(|last| IpAddr::from([10, 0, 1, last])),
        1 => (0..10_u16).prop_map(|last| IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, last])),
    ];
    let any_machine = || {
        (prop_oneof![3 => Just("clusters"), 1 => Just("other")], machine())
            .prop_map(|(namespace, machine)| Machine { namespace: namespace.to_owned(), ..machine })
    };
    let interface = || prop_oneof![Just("eth0"), Just("eth1")];
    let recorded =
        |kind: Vec<Source>| {
            let kind = prop::sample::select(kind);
            (any_machine(), interface(), address.clone(), kind)
                .prop_map(|(machine, interface, address, kind)| Recorded { machine, interface, address, kind })
        };
    let records = || recorded(vec![Source::Annotation, Source::StatusMap, Source::Secret]);
    let others = recorded(vec![Source::LoneIpAddress, Source::NetworkData, Source::Unreadable, Source::Report]);
    prop_oneof![
        8 => (machine(), pools, any::<bool>(), named, any::<bool>())
            .prop_map(|(machine, pools, has_overflow, named, sticky)| {
                Step::Claim { machine, pools, has_overflow, named, sticky }
            }),
        4 => machine().prop_map(Step::Release),
        1 => (0..3_usize, 0..3_usize).prop_map(|(pool, size)| Step::Resize { pool, size }),
        1 => (0..30_u64).prop_map(Step::Wait),
        3 => prop::collection::vec(records(), 1..4).prop_map(Step::Adopt),
        1 => others.prop_map(Step::SetAside),
        1 => prop::collection::vec(recorded(vec![Source::Report]), 0..4).prop_map(Step::Report),
        1 => Just(Step::Open),
    ]
}

fn fault() -> impl Strategy<Value = Fault> {
    prop_oneof![6 => Just(Fault::None), 1 => Just(Fault::Full), 1 => Just(Fault::DiesBefore), 1 => Just(Fault::DiesAfter)]
}

fn history(length: usize) -> impl Strategy<Value = (bool, Vec<(Step, Fault, usize)>)> {
    (any::<bool>(), prop::collection::vec((step(), fault(), 0..2_usize), 1..length))
}

fn claim_of(machine: &Machine, pools: &[usize], has_overflow: bool, named: Option<u8>, sticky: bool) -> Claim {
    let request = |pool: &usize| {
        let overflow = if has_overflow && *pool < 2 { vec![POOLS[1 - pool].to_owned()] } else { Vec::new() };
        Request { overflow, ..Request::of(POOLS[*pool]) }
    };
    let mut requests: Vec<Request> = pools.iter().map(request).collect();
    if let (Some(named), Some(first)) = (named, requests.first_mut()) {
        first.addresses.push(IpAddr::from([10, 0, 0, named]));
        if named % 5 == 0 {
            first.addresses.push(format!("fd00::{named:x}").parse().unwrap());
        }
    }
    // The order of creation differs from the order of the names.
    let created = u64::from(machine.uid.as_bytes()[0] ^ 1);
    Claim { machine: machine.clone(), created: time(created), requests, sticky, secret: None }
}

/// Runs each step of a history on a model, and on one of several registries that share one ledger. Compares all
/// registries with the model after each step. `opens`: all registries open new addresses after each change of pools and
/// after each start, so that they have the same open addresses. Otherwise, only [`Step::Open`] opens addresses.
fn live<L: Ledger + std::fmt::Debug>(
    (delays, steps): (bool, Vec<(Step, Fault, usize)>),
    registries: usize,
    opens: bool,
    mut open: impl FnMut(Option<L>) -> L,
) {
    let delay = if delays { 20 } else { 0 };
    let pools: Vec<Pool> = (0..3).map(|at| sized(at, 0, delay)).collect();
    let mut model = Model {
        pools: pools.clone(),
        sizes: [0; 3],
        held: BTreeMap::new(),
        left: BTreeMap::new(),
        waiters: Vec::new(),
        conflicts: BTreeMap::new(),
        reports: BTreeMap::new(),
        open: BTreeSet::new(),
        now: 1_000,
        delay,
    };
    let next_fault = Rc::new(Cell::new(Fault::None));
    let mut start =
        |ledger: Option<L>| Registry::open(Faulty { ledger: open(ledger), fault: Rc::clone(&next_fault) }).unwrap();
    let mut ours: Vec<Registry<Faulty<L>>> = (0..registries).map(|_| start(None)).collect();
    ours[0].resize(pools, &[], time(0)).unwrap();
    if opens {
        open_all(&mut ours, &mut model);
    }
    for (step, fault, at) in steps {
        let at = at % registries;
        model.now += 1;
        let now = model.now;
        let mut after = model.clone();
        next_fault.set(fault);
        // `false`: the step failed because the ledger failed.
        let done = match &step {
            Step::Claim { machine, pools, has_overflow, named, sticky } => {
                let claim = claim_of(machine, pools, *has_overflow, *named, *sticky);
                let expected = if claim.requests.is_empty() {
                    after.serve();
                    Err(ClaimError::Nothing)
                } else {
                    after.claim(&claim)
                };
                match ours[at].claim(&claim, time(now)) {
                    Err(RegistryError::Ledger(_)) => false,
                    Err(RegistryError::Refused(error)) => {
                        assert_eq!(Err(error), expected);
                        true
                    }
                    Ok(given) => {
                        assert_eq!(Ok(given), expected);
                        true
                    }
                }
            }
            Step::Release(machine) => {
                let expected = after.release(machine);
                let released = ours[at].release(machine, time(now));
                released.is_ok_and(|released| {
                    assert_eq!((released.held, released.served), expected);
                    true
                })
            }
            Step::Resize { pool, size } => {
                let new = sized(*pool, *size, delay);
                after.pools[*pool] = new.clone();
                after.sizes[*pool] = *size;
                after.follow_prefix(*pool);
                let (allocatable, offers) = (after.allocatable(), after.offers());
                // An address that the pool gains is closed, even if another pool had the address and the address was
                // open.
                let gained: BTreeSet<IpAddr> =
                    offers.difference(&model.offers()).map(|(_, address)| *address).collect();
                after.open.retain(|address| allocatable.contains(address) && !gained.contains(address));
                let served = after.serve();
                ours[at].resize([new], &[], time(now)).is_ok_and(|resized| {
                    assert_eq!((resized.outside, resized.served), (after.outside(*pool), served));
                    true
                })
            }
            Step::Adopt(records) => {
                let expected = after.adopt(records);
                let adoption = ours[at].adopt(records.iter().map(Recorded::record), time(now));
                adoption.is_ok_and(|adoption| {
                    assert_eq!((adoption.adopted, adoption.reserved.len()), expected);
                    true
                })
            }
            Step::SetAside(recorded) => {
                after.set_aside(recorded);
                ours[at].set_aside([recorded.reservation()], time(now)).is_ok()
            }
            // No ledger stores reports, so only histories with one process have them.
            Step::Report(reports) => {
                let reports = if registries == 1 { reports.as_slice() } else { &[] };
                after.report(reports);
                let begun: Vec<Reservation> = reports.iter().map(Recorded::reservation).collect();
                let ended = model.reports_without(&after);
                // The reports take effect even if the ledger then fails to serve waiting machines.
                model = after.clone();
                let served = after.serve();
                let changed = ours[at].change_reports(&begun, &ended, time(now));
                changed.and_then(|_| ours[at].serve(time(now))).is_ok_and(|is| {
                    assert_eq!(is, served);
                    true
                })
            }
            Step::Open => {
                after.open.extend(after.allocatable());
                model = after.clone();
                let served = after.serve();
                ours[at].open_addresses(time(now)).is_ok_and(|is| {
                    assert_eq!(is, served);
                    true
                })
            }
            Step::Wait(more) => {
                model.now += more;
                after = model.clone();
                let served = after.serve();
                ours[at].serve(time(model.now)).is_ok_and(|is| {
                    assert_eq!(is, served);
                    true
                })
            }
        };
        if done || matches!(fault, Fault::DiesAfter) {
            model = after;
        }
        next_fault.set(Fault::None);
        if matches!(fault, Fault::DiesBefore | Fault::DiesAfter) {
            model.reports.clear();
            let dead = ours.remove(at).into_ledger().ledger;
            ours.insert(at, start(Some(dead)));
            model.open.clear();
        }
        if opens && (matches!(step, Step::Resize { .. }) || matches!(fault, Fault::DiesBefore | Fault::DiesAfter)) {
            open_all(&mut ours, &mut model);
        }
        compare(&mut ours, &model);
    }
}

/// Opens the addresses of all registries. Only the first one can serve waiting machines.
fn open_all<L: Ledger>(ours: &mut [Registry<Faulty<L>>], model: &mut Model) {
    model.open = model.allocatable();
    let mut expected = model.serve();
    for registry in ours {
        assert_eq!(registry.open_addresses(time(model.now)).unwrap(), std::mem::take(&mut expected));
    }
}

fn compare<L: Ledger>(ours: &mut [Registry<Faulty<L>>], model: &Model) {
    let expected: Vec<(IpAddr, Claimant, String, u8)> =
        model.held.iter().map(|(address, (by, pool, prefix))| (*address, by.clone(), pool.clone(), *prefix)).collect();
    let mut waiters = model.waiters.clone();
    waiters.sort_by_key(|claim| (claim.created, claim.machine.clone()));
    for registry in ours {
        let allocator = registry.state().unwrap();
        let held: Vec<(IpAddr, Claimant, String, u8)> = allocator
            .leases()
            .map(|(_, address, lease)| {
                (address, Claimant::clone(&lease.claimant), lease.pool.to_string(), lease.prefix)
            })
            .collect();
        assert_eq!(held, expected);
        let conflicts = allocator.conflicts().map(|(_, address, it)| (address, it.claimant, it.state));
        let all = model.conflicts.iter();
        let all = all.flat_map(|(address, of)| of.iter().map(|(claimant, state)| (*address, claimant.clone(), *state)));
        assert_eq!(conflicts.collect::<Vec<_>>(), all.collect::<Vec<_>>());
        assert_eq!(allocator.waiters(), waiters.iter().collect::<Vec<_>>());
        let mut all = allocator.usage(time(model.now));
        for (at, pool) in POOLS.iter().enumerate() {
            for usage in all.remove(pool).unwrap().families {
                let (all, offered) = (model.of(at, usage.family).unwrap(), model.offered(at, usage.family));
                let count = |is: &dyn Fn(&IpAddr) -> bool| offered.iter().filter(|address| is(address)).count() as u128;
                let used = count(&|address| model.held.contains_key(address));
                let is_kept = |address: &&IpAddr| {
                    let by = model.held.get(*address);
                    !offered.contains(*address)
                        && by.is_some_and(|(by, ..)| model.offers_to(at, **address, &by.machine))
                };
                let kept = all.iter().filter(is_kept).count() as u128;
                let reuse_delay = count(&|address| model.rests(*address).is_some() && !model.is_reserved(*address));
                let state = |address: &IpAddr| {
                    let records = model.conflicts.get(address).into_iter().flat_map(BTreeMap::values).copied();
                    let reported = model.reports.contains_key(address).then_some(State::ByReport);
                    let states: BTreeSet<State> = records.chain(reported).collect();
                    states.into_iter().next().filter(|_| !model.held.contains_key(address))
                };
                let in_state = |is: &[State]| count(&|address| state(address).is_some_and(|state| is.contains(&state)));
                let by_record = in_state(&[State::Mismatch, State::Excluded, State::ByRecord]);
                let by_report = in_state(&[State::ByReport]);
                assert_eq!(
                    (usage.total, usage.excluded, usage.allocated, usage.reuse_delay),
                    (all.len() as u128, (all.len() - offered.len()) as u128 - kept, used + kept, reuse_delay)
                );
                assert_eq!((usage.by_record, usage.by_report), (by_record, by_report));
                let free = offered.len() as u128 - used - reuse_delay;
                assert_eq!(usage.free, free - by_record - by_report);
                let conflicts = all.iter().filter(|address| model.has_two_users(**address)).count() as u128;
                assert_eq!(usage.conflicts, conflicts);
                let outside = model.outside(at).into_iter().flat_map(|allocation| allocation.addresses);
                let outside = outside.filter(|address| Family::of(address.ip()) == usage.family);
                assert_eq!(usage.outside, outside.count() as u128);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, max_shrink_iters: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_history_in_memory_agrees_with_the_model(history in history(40), opens in any::<bool>()) {
        live(history, 1, opens, |ledger: Option<MemoryLedger>| {
            // The next process must be able to read the complete state from the ledger.
            ledger.map_or_else(MemoryLedger::default, MemoryLedger::reopened)
        });
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, max_shrink_iters: 100, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_history_of_two_processes_with_one_file_agrees_with_the_model(history in history(30)) {
        let directory = tempfile::tempdir().unwrap();
        let path: PathBuf = directory.path().join("ledger");
        let open = |path: &PathBuf| if path.exists() { SqliteLedger::open(path) } else { SqliteLedger::create(path) };
        live(history, 2, true, |_: Option<SqliteLedger>| open(&path).unwrap());
    }
}
