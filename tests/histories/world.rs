//! Runs one history with a cluster, a ledger and two processes, and checks the rules after each operation.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use glowplug::host::Timestamp;
use glowplug::host::allocator::{Adoption, Allocator, ClaimError, Rename};
use glowplug::host::audit::{Disagreement, Options, audit};
use glowplug::host::claim::{Allocation, Claim, Claimant, Machine, Request};
use glowplug::host::ledger::LedgerError;
use glowplug::host::may_record::State;
use glowplug::host::pool::Pool;
use glowplug::host::records::{Inventory, Objects};
use glowplug::host::registry::{Registry, RegistryError, ResizeError};

use super::cluster::{Cluster, Lists, Nic, Node, Part, Printed};
use super::pools::{NETWORKS, Pools, Spec, family, reserved};
use super::store::{Fault, Open, Store, in_file, in_memory};
use crate::support::random::Random;
use crate::support::time;

/// An operation: its kind, and the seed of its random details.
#[derive(Clone, Copy, Debug)]
pub(super) struct Op(Kind, u64);

#[derive(Clone, Copy, Debug)]
enum Kind {
    Create,
    Claim,
    ClaimSeveral,
    ClaimAgain,
    ClaimNamed,
    Boot,
    StartOrStop,
    DeleteObject,
    EndGuest,
    Release,
    Withdraw,
    Recreate,
    Resize,
    ResizeToOlder,
    Rename,
    AddPool,
    RemovePool,
    Wait,
    SetClock,
    Restart,
    Remember,
    Audit,
    Rebuild,
    LoseLedger,
    Copy,
    LoseRecord,
    Serve,
    Fail,
}

const WEIGHTS: [(u64, Kind); 28] = [
    (14, Kind::Create),
    (16, Kind::Claim),
    (5, Kind::ClaimSeveral),
    (7, Kind::ClaimAgain),
    (4, Kind::ClaimNamed),
    (8, Kind::Boot),
    (3, Kind::StartOrStop),
    (7, Kind::DeleteObject),
    (8, Kind::EndGuest),
    (8, Kind::Release),
    (2, Kind::Withdraw),
    (4, Kind::Recreate),
    (5, Kind::Resize),
    (2, Kind::ResizeToOlder),
    (2, Kind::Rename),
    (2, Kind::AddPool),
    (2, Kind::RemovePool),
    (4, Kind::Wait),
    (1, Kind::SetClock),
    (2, Kind::Restart),
    (2, Kind::Remember),
    (5, Kind::Audit),
    (4, Kind::Rebuild),
    (1, Kind::LoseLedger),
    (1, Kind::Copy),
    (1, Kind::LoseRecord),
    (3, Kind::Serve),
    (3, Kind::Fail),
];

/// A network and an address on this network.
type Place = (String, IpAddr);

#[derive(Clone, Debug, Eq, PartialEq)]
struct Held {
    claimant: Claimant,
    pool: String,
    prefix: u8,
}

/// An address that was released.
struct Freed {
    by: Machine,
    /// The reuse delay, in milliseconds.
    delay: u64,
    /// Time of the host's clock at the release, and the latest time that this clock showed until then, in milliseconds
    /// since 1970.
    clock: [u64; 2],
    /// Latest time that the host's clock has shown since the release.
    since: u64,
}

/// Content of the ledger, read by the process that did not make the last change.
#[derive(Default)]
struct Seen {
    leases: BTreeMap<Place, Held>,
    conflicts: BTreeMap<Place, BTreeSet<Machine>>,
    /// Addresses that no pool offers any more, each with the claimant that keeps the address.
    kept: BTreeSet<(Place, Claimant)>,
    waiting: Vec<Claim>,
    known: BTreeSet<Machine>,
}

pub(super) struct World {
    pub(super) log: Vec<String>,
    directory: Option<PathBuf>,
    ledgers: usize,
    open: Open,
    fault: Rc<Cell<Fault>>,
    /// Whether the commit of this operation failed. After a failed commit, no waiting machine was served.
    has_failed: bool,
    processes: Vec<Registry<Store>>,
    cluster: Cluster,
    /// Earlier states of the cluster, each with the time of the host's clock.
    remembered: Vec<(u64, Cluster)>,
    /// Pools of the ledger.
    pools: Pools,
    /// Pools of the ledger, and the same pools in the types of the library.
    expected: (Pools, Vec<Pool>),
    older: Vec<Spec>,
    /// Number of pools created so far, for new names.
    named: usize,
    seen: Seen,
    /// For each address, the machines that use the address, as the ledger knows from a claim or a record. The ledger
    /// must keep the address for these machines.
    owed: BTreeMap<Place, BTreeSet<usize>>,
    freed: BTreeMap<Place, Freed>,
    /// For each waiting machine, the creation time that decides its position in the wait queue.
    turns: BTreeMap<usize, Timestamp>,
    /// Real time, in milliseconds since 1970.
    time: u64,
    /// How many milliseconds the clock of the host is ahead of real time.
    ahead: i64,
    /// Latest time that the host's clock has shown.
    latest: u64,
}

type Outcome = Result<(), String>;

/// Changes of leases that an operation may make.
#[derive(Default)]
struct Allowed {
    /// Machines whose leases may end.
    released: Vec<Machine>,
    /// Records that may become leases.
    printed: Vec<Printed>,
    /// Whether the claim names addresses. Named addresses need not be the lowest.
    is_named: bool,
}

// === impl Op ===

impl Op {
    pub(super) fn random(rng: &mut Random) -> Self {
        Self(rng.weighted(&WEIGHTS), rng.next())
    }
}

// === impl World: operations ===

impl World {
    pub(super) fn new(start: u64, directory: Option<&Path>) -> Self {
        let mut rng = Random(start);
        let fault = Rc::default();
        let open = in_memory();
        let mut world = Self {
            log: Vec::new(),
            directory: directory.map(Path::to_owned),
            ledgers: 0,
            open,
            fault,
            has_failed: false,
            processes: Vec::new(),
            cluster: Cluster::default(),
            remembered: Vec::new(),
            pools: Pools::new(),
            expected: Default::default(),
            older: Vec::new(),
            named: 0,
            seen: Seen::default(),
            owed: BTreeMap::new(),
            freed: BTreeMap::new(),
            turns: BTreeMap::new(),
            time: 1_700_000_000_000,
            ahead: 0,
            latest: 0,
        };
        let pools: Vec<Spec> = (0..4 + rng.below(3)).map(|_| world.new_pool(&mut rng)).collect();
        world.create_ledger(pools);
        world
    }

    pub(super) fn apply(&mut self, Op(kind, seed): Op) -> Outcome {
        let mut rng = Random(seed);
        self.time += 1_000 * (1 + rng.number(10));
        let now = self.now();
        self.latest = self.latest.max(now);
        for freed in self.freed.values_mut() {
            freed.since = freed.since.max(now);
        }
        let nodes = 0..self.cluster.nodes.len();
        let which = |fits: &dyn Fn(&Node) -> bool| -> Vec<usize> {
            nodes.clone().filter(|at| fits(&self.cluster.nodes[*at])).collect()
        };
        let unserved = which(&|node| node.has_object && !node.has_guest);
        match kind {
            Kind::Create => {
                if which(&|node| node.is_there()).len() < 30 {
                    self.create(None, &mut rng);
                }
                Ok(())
            }
            Kind::Claim => match rng.one_of(&unserved) {
                Some(&node) => self.claim(node, &mut rng, false),
                None => Ok(()),
            },
            Kind::ClaimNamed => match rng.one_of(&unserved) {
                Some(&node) => self.claim(node, &mut rng, true),
                None => Ok(()),
            },
            Kind::ClaimAgain => match rng.one_of(&which(&|node| node.has_object)) {
                Some(&node) => self.claim(node, &mut rng, false),
                None => Ok(()),
            },
            Kind::ClaimSeveral => self.claim_several(&unserved, &mut rng),
            Kind::Boot => match rng.one_of(&unserved) {
                Some(&node) => {
                    self.boot(node);
                    Ok(())
                }
                None => Ok(()),
            },
            Kind::StartOrStop => {
                if let Some(&node) = rng.one_of(&which(&|node| node.has_guest)) {
                    let node = &mut self.cluster.nodes[node];
                    node.is_running = !node.is_running;
                    self.log.push(format!("{} runs: {}", node.machine, node.is_running));
                }
                Ok(())
            }
            Kind::DeleteObject => {
                if let Some(&node) = rng.one_of(&which(&|node| node.has_object)) {
                    self.cluster.nodes[node].has_object = false;
                    self.log.push(format!("the object of {} is gone", self.cluster.nodes[node].machine));
                }
                Ok(())
            }
            Kind::EndGuest => {
                if let Some(&node) = rng.one_of(&which(&|node| node.has_guest && !node.has_object)) {
                    self.cluster.nodes[node].has_guest = false;
                    self.log.push(format!("the guest of {} is gone", self.cluster.nodes[node].machine));
                }
                Ok(())
            }
            Kind::Release => {
                let gone = which(&|node| !node.is_there() && self.seen.known.contains(&node.machine));
                self.release(&gone, &mut rng)
            }
            Kind::Withdraw => match rng.one_of(&unserved) {
                Some(&node) => self.withdraw(node, &mut rng),
                None => Ok(()),
            },
            Kind::Recreate => {
                let old: Vec<usize> = which(&|node| !node.has_object);
                let is_free = |at: &usize| {
                    let machine = &self.cluster.nodes[*at].machine;
                    !self.cluster.nodes.iter().any(|node| node.has_object && node.is_namesake(machine))
                };
                let old: Vec<usize> = old.into_iter().filter(is_free).collect();
                if let Some(&old) = rng.one_of(&old) {
                    self.create(Some(old), &mut rng);
                }
                Ok(())
            }
            Kind::Resize => {
                let specs: Vec<Spec> = self.pools.values().cloned().collect();
                match rng.one_of(&specs) {
                    Some(spec) => {
                        let changed = spec.changed(&mut rng);
                        self.resize(vec![changed], &[], &mut rng)
                    }
                    None => Ok(()),
                }
            }
            Kind::ResizeToOlder => {
                let older = self.older.iter().filter(|spec| self.pools.contains_key(&spec.name)).cloned();
                match rng.one_of(&older.collect::<Vec<_>>()) {
                    Some(spec) => self.resize(vec![spec.clone()], &[], &mut rng),
                    None => Ok(()),
                }
            }
            Kind::Rename => self.rename(&mut rng),
            Kind::AddPool => {
                if self.pools.len() < 7 {
                    let mut specs: Vec<Spec> = self.pools.values().cloned().collect();
                    specs.push(self.new_pool(&mut rng));
                    return self.resize(specs, &[], &mut rng);
                }
                Ok(())
            }
            Kind::RemovePool => self.remove_pool(&mut rng),
            Kind::Wait => {
                self.time += 1_000 * rng.number(400);
                Ok(())
            }
            Kind::SetClock => {
                self.ahead = match rng.below(3) {
                    0 => 0,
                    1 => -3_600_000,
                    _ => 3_600_000,
                };
                // The clock has changed, so earlier lists may seem older or younger than they are.
                self.remembered.clear();
                self.log.push(format!("the clock is {} ms ahead", self.ahead));
                Ok(())
            }
            Kind::Restart => {
                let at = rng.below(2);
                self.processes[at] = Registry::open(Store::new(&self.open, &self.fault)).unwrap();
                self.open_addresses()?;
                self.check(at, &Allowed::default(), false)
            }
            Kind::Remember => {
                self.remembered.push((now, self.cluster.clone()));
                if self.remembered.len() > 3 {
                    self.remembered.remove(0);
                }
                Ok(())
            }
            Kind::Audit => self.audit(&mut rng),
            Kind::Rebuild => self.rebuild(&mut rng),
            Kind::LoseLedger => {
                let mut specs: Vec<Spec> = self.pools.values().cloned().collect();
                if rng.chance(30, 100) {
                    let left_out = specs.remove(rng.below(specs.len()));
                    self.log.push(format!("pool {} is left out", left_out.name));
                    self.older.push(left_out);
                }
                if !specs.is_empty() {
                    self.log.push("the ledger is lost".to_owned());
                    self.create_ledger(specs);
                }
                self.rebuild(&mut rng)
            }
            Kind::Copy => {
                // A person creates a machine from the manifest of another machine.
                let booted = which(&|node| node.has_guest && node.has_record);
                if let (Some(&from), Some(&to)) = (rng.one_of(&booted), rng.one_of(&unserved))
                    && !self.has_guest_of_name(to)
                    && self.owned(to).is_empty()
                {
                    let nics = self.cluster.nodes[from].nics.clone();
                    let time = self.time;
                    self.cluster.nodes[to].boot(nics, time);
                    let [from, to] = [from, to].map(|at| self.cluster.nodes[at].machine.to_string());
                    self.log.push(format!("{to} has the record of {from}"));
                }
                Ok(())
            }
            Kind::LoseRecord => {
                if let Some(&node) = rng.one_of(&which(&|node| node.has_record && !node.has_guest)) {
                    self.cluster.nodes[node].has_record = false;
                }
                Ok(())
            }
            Kind::Serve => {
                let at = rng.below(2);
                let served = self.processes[at].serve(time(now));
                self.done(&served)?;
                self.check(at, &Allowed::default(), true)
            }
            Kind::Fail => {
                self.fault.set([Fault::Refused, Fault::AnswerLost][rng.below(2)]);
                Ok(())
            }
        }
    }

    /// Returns the pools of the ledger as text, for a failure message.
    pub(super) fn pools_text(&self) -> String {
        self.pools.values().fold(String::new(), |text, pool| text + &format!("  {pool:?}\n"))
    }

    fn now(&self) -> u64 {
        self.time.saturating_add_signed(self.ahead)
    }

    fn new_pool(&mut self, rng: &mut Random) -> Spec {
        self.named += 1;
        Spec::random(format!("clusters/p{}", self.named), rng)
    }

    /// Starts a new, empty ledger.
    fn create_ledger(&mut self, specs: Vec<Spec>) {
        self.ledgers += 1;
        self.open = match &self.directory {
            Some(directory) => {
                let path = directory.join("ledger");
                for end in ["", "-wal", "-shm"] {
                    std::fs::remove_file(directory.join(format!("ledger{end}"))).ok();
                }
                in_file(&path)
            }
            None => in_memory(),
        };
        self.fault.set(Fault::None);
        let open = || Registry::open(Store::new(&self.open, &self.fault)).unwrap();
        self.processes = vec![open(), open()];
        let now = self.now();
        self.processes[0].resize(specs.iter().map(Spec::pool), &[], time(now)).unwrap();
        self.processes.iter_mut().for_each(|process| drop(process.open_addresses(time(now)).unwrap()));
        self.pools = specs.into_iter().map(|spec| (spec.name.clone(), spec)).collect();
        (self.owed, self.freed, self.turns) = Default::default();
        self.seen = Seen::read(self.processes[1].state().unwrap());
    }

    fn create(&mut self, old: Option<usize>, rng: &mut Random) {
        let mut specs: Vec<&Spec> = self.pools.values().collect();
        let Some(&first) = rng.one_of(&specs) else { return };
        let mut pools = vec![first.name.clone()];
        specs.retain(|spec| spec.interface != first.interface);
        if rng.chance(30, 100)
            && let Some(second) = rng.one_of(&specs)
        {
            pools.push(second.name.clone());
        }
        let at = self.cluster.nodes.len();
        let mut node = Node::new(format!("m{at}"), at, self.time, pools, rng);
        if let Some(old) = old {
            let Machine { namespace, name, .. } = self.cluster.nodes[old].machine.clone();
            node.machine = Machine::new(namespace, name, node.machine.uid);
        }
        self.log.push(format!("created {} for {:?}", node.machine, node.pools));
        self.cluster.nodes.push(node);
    }

    fn claim_of(&self, node: usize, rng: &mut Random, is_named: bool) -> Claim {
        let Node { machine, created, pools, is_sticky, .. } = &self.cluster.nodes[node];
        let request = |pool: &String| Request { overflow: self.overflow_of(node, pool), ..Request::of(pool) };
        let mut requests: Vec<Request> = pools.iter().map(request).collect();
        if is_named {
            let request = &mut requests[0];
            let pool = self.pools.get(&request.pool);
            let addresses = pool.map(|pool| pool.addresses(0).chain(pool.addresses(1)).collect::<Vec<_>>());
            request.addresses.extend(rng.one_of(&addresses.unwrap_or_default()));
        }
        // A machine that claims again keeps its position, even with a later creation time.
        let created = if rng.chance(20, 100) { created + rng.number(100_000) } else { *created };
        Claim { machine: machine.clone(), created: time(created), requests, sticky: *is_sticky, secret: None }
    }

    /// Returns the overflow of a claim on `pool`: all other pools with the same network, interface and families. Two of
    /// three machines have no overflow.
    fn overflow_of(&self, node: usize, pool: &str) -> Vec<String> {
        let Some(first) = self.pools.get(pool).filter(|_| node.is_multiple_of(3)) else { return Vec::new() };
        let is_alike = |other: &&Spec| {
            let families = |spec: &Spec| [spec.has(0), spec.has(1)];
            other.name != first.name
                && (&other.network, &other.interface) == (&first.network, &first.interface)
                && families(other) == families(first)
        };
        self.pools.values().filter(is_alike).map(|other| other.name.clone()).collect()
    }

    fn claim(&mut self, node: usize, rng: &mut Random, is_named: bool) -> Outcome {
        let (at, now) = (rng.below(2), self.now());
        let claim = self.claim_of(node, rng, is_named);
        let is_new = self.owned(node).is_empty() && !claim.sticky && !is_named;
        let answer = self.processes[at].claim(&claim, time(now));
        let answer = match answer {
            Ok(answer) => Ok(answer),
            Err(RegistryError::Refused(error)) => Err(error),
            Err(RegistryError::Ledger(error)) => {
                self.done::<()>(&Err(error))?;
                return self.check(at, &Allowed { is_named, ..Allowed::default() }, true);
            }
        };
        self.note_turn(node, &claim, &answer);
        self.check(at, &Allowed { is_named, ..Allowed::default() }, true)?;
        self.check_answer(&claim, &answer)?;
        if answer.is_ok() && is_new {
            self.check_overflow(node, &claim)?;
        }
        if answer.is_ok() && rng.chance(75, 100) {
            self.boot(node);
        }
        Ok(())
    }

    /// Checks that a new machine has all addresses of an interface from one pool, and that no earlier pool of its
    /// request has enough free addresses.
    fn check_overflow(&self, node: usize, claim: &Claim) -> Outcome {
        let owned = self.owned(node);
        for request in &claim.requests {
            let group: Vec<&Spec> = request.pools().filter_map(|pool| self.pools.get(pool)).collect();
            let own = owned.iter().filter(|(_, held)| request.pools().any(|pool| *held.pool == *pool));
            let (families, pools): (BTreeSet<usize>, BTreeSet<&str>) =
                own.map(|((_, address), held)| (family(*address), &*held.pool)).unzip();
            let Some(pool) = pools.first() else { continue };
            if pools.len() > 1 {
                return Err(format!("{} has addresses of {pools:?} for one interface", claim.machine));
            }
            let mut earlier = group.iter().take_while(|spec| spec.name != **pool);
            let has_all = |spec: &&&Spec| families.iter().all(|its| self.free(spec, *its).next().is_some());
            if let Some(earlier) = earlier.find(has_all) {
                return Err(format!(
                    "{} has addresses of {pool} although {} has free ones",
                    claim.machine, earlier.name
                ));
            }
        }
        Ok(())
    }

    fn claim_several(&mut self, unserved: &[usize], rng: &mut Random) -> Outcome {
        let (at, now) = (rng.below(2), self.now());
        let mut nodes: Vec<usize> = unserved.iter().copied().filter(|_| rng.chance(50, 100)).collect();
        if rng.chance(50, 100) {
            nodes.reverse();
        }
        let claims: Vec<Claim> = nodes.iter().map(|node| self.claim_of(*node, rng, false)).collect();
        let answers = self.processes[at].claim_all(&claims, time(now)).map(|claimed| claimed.answers);
        self.done(&answers)?;
        for ((node, claim), answer) in nodes.iter().zip(&claims).zip(answers.iter().flatten()) {
            self.note_turn(*node, claim, answer);
        }
        self.check(at, &Allowed::default(), true)?;
        for (claim, answer) in claims.iter().zip(answers.unwrap_or_default()) {
            self.check_answer(claim, &answer)?;
        }
        Ok(())
    }

    /// Writes the record of a machine and starts its guest, if the machine holds all of its addresses.
    fn boot(&mut self, node: usize) {
        if self.has_guest_of_name(node) {
            return;
        }
        let mut nics: Vec<Nic> = Vec::new();
        for pool in &self.cluster.nodes[node].pools {
            let Some(spec) = self.pools.get(pool) else { return };
            let own =
                self.owned(node).into_iter().filter(|(_, held)| held.claimant.interface.as_str() == spec.interface);
            let addresses: Vec<_> = own.map(|((_, address), held)| (address, held.prefix)).collect();
            let lacks = (0..2).any(|its| spec.has(its) && !addresses.iter().any(|(it, _)| family(*it) == its));
            if lacks {
                return;
            }
            let addresses = addresses.iter().map(|(it, prefix)| format!("{it}/{prefix}").parse().unwrap()).collect();
            nics.push(Nic { interface: spec.interface.clone(), network: spec.network.clone(), addresses });
        }
        self.log.push(format!("{} boots", self.cluster.nodes[node].machine));
        let time = self.time;
        self.cluster.nodes[node].boot(nics, time);
    }

    /// Whether a guest of an earlier machine with the same name exists. Kubernetes allows only one VirtualMachine with
    /// a name.
    fn has_guest_of_name(&self, node: usize) -> bool {
        let machine = &self.cluster.nodes[node].machine;
        self.cluster.nodes.iter().any(|other| other.has_guest && other.is_namesake(machine))
    }

    fn owned(&self, node: usize) -> Vec<(Place, Held)> {
        let machine = &self.cluster.nodes[node].machine;
        let own = self.seen.leases.iter().filter(|(_, held)| held.claimant.machine == *machine);
        own.map(|(place, held)| (place.clone(), held.clone())).collect()
    }

    fn release(&mut self, gone: &[usize], rng: &mut Random) -> Outcome {
        let (at, now) = (rng.below(2), self.now());
        let mut nodes: Vec<usize> = gone.iter().copied().filter(|_| rng.chance(60, 100)).collect();
        nodes.truncate(1 + rng.below(4));
        let machines: Vec<Machine> = nodes.iter().map(|node| self.cluster.nodes[*node].machine.clone()).collect();
        for machine in &machines {
            self.log.push(format!("release of {machine}"));
        }
        let released = self.processes[at].release_all(&machines, time(now));
        self.done(&released)?;
        self.check(at, &Allowed { released: machines, ..Allowed::default() }, true)
    }

    fn withdraw(&mut self, node: usize, rng: &mut Random) -> Outcome {
        let at = rng.below(2);
        let machine = self.cluster.nodes[node].machine.clone();
        let withdrawn = self.processes[at].withdraw([&machine]);
        self.done(&withdrawn)?;
        if withdrawn.is_ok() {
            self.turns.remove(&node);
        }
        self.check(at, &Allowed::default(), false)
    }

    fn resize(&mut self, specs: Vec<Spec>, renames: &[Rename], rng: &mut Random) -> Outcome {
        let specs: Vec<Spec> = specs.into_iter().filter(|spec| spec.valid().is_some()).collect();
        let (at, now) = (rng.below(2), self.now());
        // A resize serves waiting machines before the new addresses are open. The rules do not know closed addresses.
        // So the test first serves every machine that waits for an open address.
        let served = self.processes[at].serve(time(now));
        self.done(&served)?;
        self.check(at, &Allowed::default(), true)?;
        if served.is_err() {
            return Ok(());
        }
        let answer = self.processes[at].resize(specs.iter().map(Spec::pool), renames, time(now));
        let names: Vec<&str> = specs.iter().map(|spec| spec.name.as_str()).collect();
        self.log.push(format!("resize of {names:?}, renames {renames:?}: {answer:?}"));
        match answer {
            Ok(resized) => self.settle(specs, &resized.renamed),
            // For example, the network of a pool in use would change.
            Err(ResizeError::Refused(_)) => {}
            Err(ResizeError::Ledger(error)) => {
                self.done::<()>(&Err(error))?;
                // Only the ledger shows whether the change was written.
                let expected: Vec<Pool> = specs.iter().map(|spec| self.kept(spec, renames).pool()).collect();
                let state = self.processes[1 - at].state().map_err(|error| error.to_string())?;
                if expected.iter().all(|pool| state.pool(pool.name()) == Some(pool)) {
                    self.settle(specs, renames);
                }
            }
        }
        if self.older.len() > 20 {
            self.older.remove(0);
        }
        self.open_addresses()?;
        self.check(at, &Allowed::default(), true)
    }

    /// Opens the new addresses in both processes, as if no machine used them.
    fn open_addresses(&mut self) -> Outcome {
        let now = time(self.now());
        for at in 0..self.processes.len() {
            let opened = self.processes[at].open_addresses(now);
            self.done(&opened)?;
        }
        Ok(())
    }

    /// Returns a pool as the ledger stores it: if the pool has no template, it keeps the addresses of its last
    /// template.
    fn kept(&self, spec: &Spec, renames: &[Rename]) -> Spec {
        let rename = renames.iter().find(|rename| rename.new == spec.name);
        let known = self.pools.get(rename.map_or(&spec.name, |rename| &rename.old));
        known.map_or_else(|| spec.clone(), |known| spec.with_template_of(known))
    }

    /// Updates the model after a resize: renames pools in the cluster, and replaces the expected pools.
    fn settle(&mut self, specs: Vec<Spec>, renames: &[Rename]) {
        let kept: Vec<Spec> = specs.iter().map(|spec| self.kept(spec, renames)).collect();
        for Rename { old, new } in renames {
            self.older.extend(self.pools.remove(old));
            let pools = self.cluster.nodes.iter_mut().flat_map(|node| &mut node.pools);
            pools.filter(|pool| *pool == old).for_each(|pool| pool.clone_from(new));
        }
        for spec in kept {
            self.older.extend(self.pools.insert(spec.name.clone(), spec));
        }
    }

    fn rename(&mut self, rng: &mut Random) -> Outcome {
        let specs: Vec<Spec> = self.pools.values().cloned().collect();
        let Some(old) = rng.one_of(&specs) else { return Ok(()) };
        self.named += 1;
        let mut new = if rng.chance(50, 100) { old.changed(rng) } else { old.clone() };
        new.name = format!("clusters/p{}", self.named);
        if new.valid().is_none() {
            return Ok(());
        }
        let rename = Rename { old: old.name.clone(), new: new.name.clone() };
        self.resize(vec![new], &[rename], rng)
    }

    fn remove_pool(&mut self, rng: &mut Random) -> Outcome {
        let names: Vec<String> = self.pools.keys().cloned().collect();
        let Some(name) = rng.one_of(&names) else { return Ok(()) };
        if names.len() < 3 {
            return Ok(());
        }
        let (at, now) = (rng.below(2), self.now());
        let is_held = self.seen.leases.values().any(|held| held.pool == *name);
        let removed = self.processes[at].remove_pool(name, time(now));
        self.log.push(format!("removal of {name}: {removed:?}"));
        match removed {
            Ok(()) if is_held => return Err(format!("pool {name} is removed while machines hold its addresses")),
            Ok(()) => drop(self.pools.remove(name)),
            Err(ResizeError::Refused(_)) if is_held => {}
            Err(ResizeError::Refused(error)) => return Err(format!("pool {name} is not removed: {error}")),
            Err(ResizeError::Ledger(error)) => {
                self.done::<()>(&Err(error))?;
                if self.processes[1 - at].state().map_err(|error| error.to_string())?.pool(name).is_none() {
                    self.pools.remove(name);
                }
            }
        }
        self.open_addresses()?;
        self.check(at, &Allowed::default(), false)
    }

    /// Returns lists of objects, the time of the fetch if the lists are complete, and a description of the lists.
    fn lists(&self, rng: &mut Random) -> (Lists, Option<u64>, &'static str) {
        match rng.below(10) {
            0 => (self.cluster.lists(Part::WithoutMachines), None, "without machines"),
            1 => (self.cluster.lists(Part::WithoutGuests), None, "without guests"),
            2 => (self.cluster.lists(Part::Some(rng.number(4))), None, "partial"),
            3 | 4 if !self.remembered.is_empty() => {
                let (fetched, cluster) = &self.remembered[rng.below(self.remembered.len())];
                (cluster.lists(Part::All), Some(*fetched), "stale")
            }
            _ => (self.cluster.lists(Part::All), Some(self.now()), "complete"),
        }
    }

    fn rebuild(&mut self, rng: &mut Random) -> Outcome {
        let (at, now) = (rng.below(2), self.now());
        let (lists, _, which) = self.lists(rng);
        let inventory = inventory(&lists);
        // No machine is served, so the check sees the result of the adoption alone. All addresses are open.
        let answer = self.processes[at].adopt_inventory(&inventory, time(now));
        self.log.push(format!("rebuild from {which} lists"));
        self.done(&answer)?;
        let allowed = Allowed { printed: lists.printed.clone(), ..Allowed::default() };
        self.check(at, &allowed, false)?;
        let Ok(rebuilt) = answer else { return Ok(()) };
        let adoption = rebuilt.adoption;
        for printed in &lists.printed {
            self.check_reported(printed, &adoption, &inventory, &[])?;
            if self.is_attributable(printed) {
                let place = (printed.network.clone(), printed.address);
                let is_known = self.pools.values().any(|pool| pool.network == printed.network);
                let is_occupied = self.seen.leases.contains_key(&place) || self.seen.conflicts.contains_key(&place);
                if is_known
                    && !is_occupied
                    && self.pools.values().any(|pool| pool.network == printed.network && pool.contains(printed.address))
                {
                    return Err(format!("the record {printed:?} is lost: {adoption:?}"));
                }
                if is_known && self.cluster.nodes[printed.node].is_there() {
                    self.owed.entry(place).or_default().insert(printed.node);
                }
            }
        }
        Ok(())
    }

    fn audit(&mut self, rng: &mut Random) -> Outcome {
        let (at, now) = (rng.below(2), self.now());
        let (lists, fetched, which) = self.lists(rng);
        let is_fresh = fetched == Some(now);
        let inventory = inventory(&lists);
        let releases = fetched.is_some() && rng.chance(70, 100);
        let known = self.seen.known.clone();
        let options =
            Options { fetched: time(fetched.unwrap_or(0)), release: releases, max_release: Some(100), dry_run: false };
        let answer = audit(&mut self.processes[at], &inventory, &options, time(now));
        self.log.push(format!("audit of {which} lists, releases: {releases}"));
        self.done(&answer)?;
        let Ok(report) = answer else {
            // The commit may have written the releases.
            let gone = known
                .into_iter()
                .filter(|machine| !self.cluster.nodes.iter().any(|node| node.is_there() && node.is_called(machine)));
            let released = if releases { gone.collect() } else { Vec::new() };
            return self.check(at, &Allowed { released, ..Allowed::default() }, false);
        };
        let released: Vec<Machine> =
            report.missing.iter().filter(|missing| missing.released.is_some()).map(|it| it.machine.clone()).collect();
        for machine in &known {
            let namesakes = self.cluster.nodes.iter().enumerate().filter(|(_, node)| node.is_namesake(machine));
            let may_be_there = namesakes.into_iter().any(|(at, _)| lists.seen.get(at) == Some(&true));
            // A node of another name that uses an address of the machine may be its guest.
            let is_used = self.seen.leases.iter().any(|(place, held)| {
                let uses = |node: &Node| {
                    !node.is_namesake(machine)
                        && node.nics.iter().flat_map(|nic| &nic.addresses).any(|it| it.ip() == place.1)
                };
                held.claimant.machine == *machine && self.cluster.nodes.iter().any(uses)
            });
            if !may_be_there && !is_used && !report.missing.iter().any(|missing| missing.machine == *machine) {
                return Err(format!("the audit does not report that {machine} is missing"));
            }
        }
        for printed in &lists.printed {
            self.check_reported(printed, &report.adoption, &inventory, &report.disagreements)?;
        }
        for (place, held) in &self.seen.leases {
            let has_object = |(at, node): (usize, &Node)| {
                let is_listed = lists.seen.get(at) == Some(&true) && node.has_object;
                is_fresh && is_listed && node.machine == held.claimant.machine
            };
            let is_recorded = |printed: &Printed| {
                printed.address == place.1 && self.cluster.nodes[printed.node].is_namesake(&held.claimant.machine)
            };
            let is_reported = |disagreement: &Disagreement| matches!(disagreement, Disagreement::NotRecorded { claimant, address } if *claimant == held.claimant && *address == place.1);
            if self.cluster.nodes.iter().enumerate().any(has_object)
                && !lists.printed.iter().any(is_recorded)
                && !report.disagreements.iter().any(is_reported)
            {
                return Err(format!(
                    "nothing is reported about the lease of {place:?} of {}, which no object records",
                    held.claimant
                ));
            }
        }
        self.check(at, &Allowed { released, ..Allowed::default() }, false)
    }

    /// Returns an error, unless the answer is a success or an injected fault.
    fn done<T>(&mut self, answer: &Result<T, LedgerError>) -> Outcome {
        match answer {
            Err(LedgerError::Store { doing: "writing", .. }) => {
                self.log.push("the commit failed".to_owned());
                self.has_failed = true;
                Ok(())
            }
            Err(error) => Err(format!("the ledger failed: {error}: {error:?}")),
            Ok(_) => Ok(()),
        }
    }

    /// Adds a claim to the wait queue of the model if the pool is exhausted and the claim names no addresses.
    fn note_turn(&mut self, node: usize, claim: &Claim, answer: &Result<Vec<Allocation>, ClaimError>) {
        let is_named = claim.requests.iter().any(|request| !request.addresses.is_empty());
        if matches!(answer, Err(ClaimError::Exhausted { .. })) && !is_named {
            let turn = self.turns.entry(node).or_insert(claim.created);
            *turn = claim.created.min(*turn);
        }
    }
}

/// Reads lists with the library.
fn inventory(lists: &Lists) -> Inventory {
    let mut objects = Objects::default();
    for (at, text) in lists.texts.iter().enumerate() {
        objects.read(&format!("list-{at}"), text.as_bytes()).unwrap();
    }
    objects.inventory()
}

// === impl World: rules ===

impl World {
    /// Checks all rules after an operation of a process.
    fn check(&mut self, at: usize, allowed: &Allowed, serves: bool) -> Outcome {
        let serves = serves && !std::mem::take(&mut self.has_failed);
        let before = std::mem::take(&mut self.seen);
        let state = self.processes[1 - at].state().map_err(|error| error.to_string())?;
        let pools: Vec<_> = state.pools().cloned().collect();
        if self.expected.0 != self.pools {
            self.expected = (self.pools.clone(), self.pools.values().map(Spec::pool).collect());
        }
        let expected = &self.expected.1;
        if pools != *expected {
            return Err(format!("the ledger has the pools {pools:?}, expected {expected:?}"));
        }
        self.seen = Seen::read(state);
        let own = Seen::read(self.processes[at].state().map_err(|error| error.to_string())?);
        if own.leases != self.seen.leases || own.waiting != self.seen.waiting || own.conflicts != self.seen.conflicts {
            return Err("two processes see different states".to_owned());
        }
        self.check_ended(&before, allowed)?;
        self.check_begun(&before, allowed)?;
        self.check_queue(&before, serves)?;
        self.check_kept()
    }

    /// Checks that the ledger keeps the addresses of machines that exist.
    fn check_kept(&self) -> Outcome {
        for (place, nodes) in &self.owed {
            let is_occupied = self.seen.leases.contains_key(place) || self.seen.conflicts.contains_key(place);
            let has = |spec: &Spec| spec.network == place.0 && spec.contains(place.1);
            if let Some(node) = nodes.first().filter(|_| !is_occupied && self.pools.values().any(has)) {
                return Err(format!(
                    "{place:?} is free, and the ledger has read a record of {:?}",
                    self.cluster.nodes[*node]
                ));
            }
        }
        Ok(())
    }

    /// Checks that a lease ends only with the release of its machine, and that its holder does not change before.
    fn check_ended(&mut self, before: &Seen, allowed: &Allowed) -> Outcome {
        for machine in &allowed.released {
            for node in 0..self.cluster.nodes.len() {
                let gone = &self.cluster.nodes[node];
                if gone.is_called(machine) && !gone.is_there() {
                    self.owed.values_mut().for_each(|nodes| nodes.retain(|it| *it != node));
                    self.turns.remove(&node);
                }
            }
        }
        for (place, held) in &before.leases {
            let is_kept = self.seen.leases.get(place).is_some_and(|now| now.claimant == held.claimant);
            let machine = &held.claimant.machine;
            if !is_kept && !allowed.released.contains(machine) {
                return Err(format!("the lease of {place:?} of {} is lost", held.claimant));
            }
            if !is_kept {
                // The reuse delay is the longest delay of the lease's pool and of the pools that have the address.
                let counts = |pool: &&Spec| pool.name == held.pool || pool.network == place.0 && pool.contains(place.1);
                let delay = self.pools.values().filter(counts).map(|pool| pool.delay * 1_000).max().unwrap_or(0);
                let (now, by) = (self.now(), machine.clone());
                let clock = [now, self.latest];
                self.freed.insert(place.clone(), Freed { by, delay, clock, since: now });
            }
        }
        for (place, machines) in &before.conflicts {
            let now = self.seen.conflicts.get(place);
            for machine in machines.iter().filter(|machine| !allowed.released.contains(machine)) {
                let holds = self.seen.leases.get(place).is_some_and(|held| held.claimant.machine == *machine);
                if !holds && !now.is_some_and(|now| now.contains(machine)) {
                    return Err(format!("the record without a lease of {place:?} of {machine} is lost"));
                }
            }
        }
        Ok(())
    }

    /// Checks that a lease begins only by a claim or by a record.
    fn check_begun(&mut self, before: &Seen, allowed: &Allowed) -> Outcome {
        let begun: Vec<(Place, Held)> = self
            .seen
            .leases
            .iter()
            .filter(|(place, held)| before.leases.get(*place).is_none_or(|it| it.claimant != held.claimant))
            .map(|(place, held)| (place.clone(), held.clone()))
            .collect();
        for (place, held) in begun {
            self.log.push(format!("{} of {} has {}/{}", held.claimant, place.0, place.1, held.prefix));
            let is_recorded = |printed: &Printed| {
                let interface = held.claimant.interface.as_str();
                printed.address == place.1
                    && printed.interface == interface
                    && self.cluster.nodes[printed.node].is_namesake(&held.claimant.machine)
            };
            if !allowed.printed.iter().any(is_recorded) {
                self.check_allocated(&place, &held, before, allowed)?;
                let node = self.node_of(&held.claimant.machine);
                self.owed.entry(place.clone()).or_default().extend(node);
            }
            self.freed.remove(&place);
        }
        Ok(())
    }

    fn node_of(&self, machine: &Machine) -> Option<usize> {
        self.cluster.nodes.iter().position(|node| node.machine == *machine)
    }

    /// Checks that an allocated address was free, and that it was the lowest free address of its pool.
    fn check_allocated(&self, place: &Place, held: &Held, before: &Seen, allowed: &Allowed) -> Outcome {
        let (network, address) = place;
        let claimant = &held.claimant;
        let fail = |why: &str| Err(format!("{claimant} was given {address} of {network}, but {why}"));
        let Some(spec) = self.pools.get(&held.pool) else { return fail("its pool is unknown") };
        if spec.network != *network || spec.interface != claimant.interface.as_str() {
            return fail("its pool is of another network or interface");
        }
        if held.prefix != spec.length(family(*address)) {
            return fail("it has another prefix length than its pool");
        }
        if let Some(why) = reserved(&self.pools, spec, *address) {
            return fail(&why);
        }
        if let Some(other) = before.leases.get(place).filter(|held| !allowed.released.contains(&held.claimant.machine))
        {
            return fail(&format!("{} has it", other.claimant));
        }
        let conflicts = before.conflicts.get(place).into_iter().flatten();
        if let Some(other) = conflicts.into_iter().find(|it| !allowed.released.contains(it)) {
            return fail(&format!("{other} has a record of it"));
        }
        let node = self.node_of(&claimant.machine).unwrap_or(usize::MAX);
        if let Some(other) = self.owed.get(place).into_iter().flatten().find(|other| **other != node) {
            return fail(&format!("the ledger has read a record of {:?}", self.cluster.nodes[*other]));
        }
        let is_sticky = self.cluster.nodes.get(node).is_some_and(|node| node.is_sticky);
        if let Some(freed) = self.freed.get(place) {
            let is_namesakes = is_sticky
                && (&freed.by.namespace, &freed.by.name) == (&claimant.machine.namespace, &claimant.machine.name);
            if !freed.may_be_over() && !is_namesakes {
                return fail(&format!("{} left it less than the reuse delay before", freed.by));
            }
        }
        let lower = self.free(spec, family(*address)).find(|free| free < address);
        match lower.filter(|_| !is_sticky && !allowed.is_named) {
            Some(lower) => fail(&format!("{lower} is free")),
            None => Ok(()),
        }
    }

    /// Whether an interface keeps an address of this family that no pool offers any more.
    fn keeps(&self, machine: &Machine, interface: &str, network: &str, its: usize) -> bool {
        let mut kept = self.seen.kept.iter();
        kept.any(|((of, address), claimant)| {
            of == network
                && family(*address) == its
                && claimant.machine == *machine
                && claimant.interface.as_str() == interface
        })
    }

    /// Returns the addresses that a claim may get now, lowest first.
    fn free<'s>(&'s self, spec: &'s Spec, family: usize) -> impl Iterator<Item = IpAddr> + 's {
        spec.addresses(family).filter(|address| {
            let place = (spec.network.clone(), *address);
            reserved(&self.pools, spec, *address).is_none()
                && !self.seen.leases.contains_key(&place)
                && !self.seen.conflicts.contains_key(&place)
                && self.freed.get(&place).is_none_or(|freed| freed.is_over_for_all(self.now()))
        })
    }

    /// Checks that waiting machines are served in order, and that no machine waits without a reason.
    fn check_queue(&mut self, before: &Seen, serves: bool) -> Outcome {
        let waiting: BTreeSet<usize> =
            self.seen.waiting.iter().filter_map(|claim| self.node_of(&claim.machine)).collect();
        let in_order = |claims: &[Claim]| claims.is_sorted_by_key(|claim| (claim.created, claim.machine.clone()));
        if !in_order(&self.seen.waiting) {
            return Err("the queue is not in the order of creation".to_owned());
        }
        for claim in &self.seen.waiting {
            let Some(node) = self.node_of(&claim.machine) else { continue };
            match self.turns.get(&node) {
                Some(turn) if *turn < claim.created => {
                    return Err(format!(
                        "{} lost its place in the queue: {turn} became {}",
                        claim.machine, claim.created
                    ));
                }
                _ => {}
            }
            if !serves {
                continue;
            }
            let [request] = &claim.requests[..] else { continue };
            let Some(spec) = self.pools.get(&request.pool) else { continue };
            let lacks: Vec<usize> = (0..2)
                .filter(|its| spec.has(*its))
                .filter(|its| !self.keeps(&claim.machine, spec.interface.as_str(), &spec.network, *its))
                .filter(|its| {
                    !self.owned(node).iter().any(|((_, address), held)| {
                        family(*address) == *its && held.claimant.interface.as_str() == spec.interface
                    })
                })
                .collect();
            if lacks.is_empty() {
                return Err(format!("{} waits and lacks nothing", claim.machine));
            }
            let group: Vec<&Spec> = request.pools().filter_map(|pool| self.pools.get(pool)).collect();
            let owned = self.owned(node);
            let mut own = owned.iter().filter(|(_, held)| held.claimant.interface.as_str() == spec.interface);
            // An interface must get all addresses from one pool.
            let tried = own.next().map_or(group.clone(), |((_, address), held)| {
                let is_own = |spec: &&&Spec| spec.name == *held.pool;
                let has = |spec: &&&Spec| spec.contains(*address);
                vec![*group.iter().find(is_own).or(group.iter().find(has)).unwrap_or(&group[0])]
            });
            let has_all = |spec: &&&Spec| lacks.iter().all(|its| self.free(spec, *its).next().is_some());
            if let Some(spec) = tried.iter().find(has_all) {
                return Err(format!("{} waits although {} has free addresses", claim.machine, spec.name));
            }
        }
        // A machine that already holds some of its addresses needs fewer than another machine.
        let holds = |machine: &Machine| {
            before.leases.values().any(|held| held.claimant.machine == *machine)
                || before.kept.iter().any(|(_, claimant)| claimant.machine == *machine)
        };
        // Since the claim of a waiting machine, the pools that fit as its overflow may have changed.
        let has_same_pools = |claim: &Claim| {
            let node = self.node_of(&claim.machine);
            node.is_some_and(|node| claim.requests.iter().all(|it| it.overflow == self.overflow_of(node, &it.pool)))
        };
        let simple = |claim: &&Claim| {
            claim.requests.len() == 1 && !claim.sticky && !holds(&claim.machine) && has_same_pools(claim)
        };
        for left in before
            .waiting
            .iter()
            .filter(simple)
            .filter(|claim| !self.seen.waiting.iter().any(|it| it.machine == claim.machine))
        {
            let is_served = |place: &Place, held: &Held| {
                held.claimant.machine == left.machine && !before.leases.contains_key(place)
            };
            if !self.seen.leases.iter().any(|(place, held)| is_served(place, held)) {
                continue;
            }
            let overtaken = before.waiting.iter().filter(simple).find(|claim| {
                (claim.created, &claim.machine) < (left.created, &left.machine)
                    && claim.requests == left.requests
                    && self.seen.waiting.iter().any(|it| it.machine == claim.machine)
                    && self.node_of(&claim.machine).is_some_and(|node| self.owned(node).is_empty())
            });
            if let Some(overtaken) = overtaken {
                return Err(format!("{} was served before {}", left.machine, overtaken.machine));
            }
        }
        self.turns.retain(|node, _| waiting.contains(node));
        Ok(())
    }

    /// Checks that the ledger has exactly the answer of a claim, and that the reason of a refusal is true.
    fn check_answer(&self, claim: &Claim, answer: &Result<Vec<Allocation>, ClaimError>) -> Outcome {
        let Some(node) = self.node_of(&claim.machine) else { return Ok(()) };
        let owned = self.owned(node);
        match answer {
            Ok(allocations) => {
                for request in &claim.requests {
                    let Some(spec) = self.pools.get(&request.pool) else { return Err("an unknown pool".to_owned()) };
                    let own = owned.iter().filter(|((network, _), held)| {
                        *network == spec.network && held.claimant.interface.as_str() == spec.interface
                    });
                    let own: Vec<String> =
                        own.map(|((network, address), held)| format!("{network} {address}/{}", held.prefix)).collect();
                    let of = |it: &&Allocation| it.claimant.interface.as_str() == spec.interface;
                    let answered = allocations.iter().filter(of).flat_map(|it| &it.addresses);
                    let answered: Vec<String> = answered.map(|it| format!("{} {it}", spec.network)).collect();
                    if own != answered {
                        return Err(format!("{} got the answer {answered:?} and has {own:?}", claim.machine));
                    }
                    let interface = spec.interface.as_str();
                    let keeps = |its: usize| self.keeps(&claim.machine, interface, &spec.network, its);
                    for its in (0..2).filter(|its| spec.has(*its) && !keeps(*its)) {
                        if !allocations.iter().filter(of).flat_map(|it| &it.addresses).any(|it| family(it.ip()) == its)
                        {
                            return Err(format!("{} has not all of {request:?}: {answered:?}", claim.machine));
                        }
                    }
                }
                Ok(())
            }
            Err(ClaimError::Exhausted { pool, family, overflow, .. }) => {
                for (pool, family) in [(pool, family)].into_iter().chain(overflow.iter().map(|(pool, of)| (pool, of))) {
                    let Some(spec) = self.pools.get(pool) else { return Err(format!("pool {pool} is unknown")) };
                    let its = usize::from(family.bits() == 128);
                    match self.free(spec, its).next() {
                        // Another interface of the same claim takes the last address.
                        Some(_) if claim.requests.len() > 1 => {}
                        Some(free) => {
                            return Err(format!("{} is refused, but {free} of {pool} is free", claim.machine));
                        }
                        None => {}
                    }
                }
                Ok(())
            }
            Err(ClaimError::UnknownPool(pool)) if !self.pools.contains_key(pool) => Ok(()),
            Err(ClaimError::OtherPool { held, pool, .. }) => {
                let wanted: Vec<&Spec> = claim.requests.iter().filter_map(|it| self.pools.get(&it.pool)).collect();
                let own = owned.iter().find(|((_, address), it)| address == held && it.pool == *pool);
                let Some(((network, _), _)) = own else { return Err(format!("{held} is not held")) };
                let fits = |spec: &&&Spec| {
                    let is_own = own.is_some_and(|(_, it)| it.claimant.interface.as_str() == spec.interface);
                    is_own && spec.network == *network
                };
                match wanted.iter().find(fits) {
                    Some(spec) => Err(format!("{held} does not move to {} of its network", spec.name)),
                    None => Ok(()),
                }
            }
            Err(ClaimError::OtherNetwork { held, network, .. }) => {
                let wanted = claim.requests.iter().filter_map(|it| self.pools.get(&it.pool));
                let own = owned.iter().any(|((of, address), _)| (of, address) == (network, held));
                match own && wanted.clone().any(|spec| spec.network != *network) {
                    true => Ok(()),
                    false => Err(format!("{held} is not held on another network")),
                }
            }
            Err(_) if claim.requests.iter().any(|request| !request.addresses.is_empty()) => Ok(()),
            Err(error) => Err(format!("{} is refused: {error}", claim.machine)),
        }
    }

    /// Whether the objects of a record determine the network of the record.
    fn is_attributable(&self, printed: &Printed) -> bool {
        let fits = |spec: &Spec| spec.network == printed.network && spec.interface == printed.interface;
        let named = printed.node_pool.as_ref().and_then(|name| self.pools.get(name));
        if let Some(named) = named.filter(|spec| spec.interface == printed.interface) {
            return fits(named);
        }
        // The ledger may have derived another network from the address of this record. A lease of the machine then has
        // the address in that network, and the record stays in that network.
        let is_elsewhere = self.seen.leases.iter().any(|((network, address), held)| {
            *network != printed.network
                && *address == printed.address
                && held.claimant.interface.as_str() == printed.interface
                && self.cluster.nodes[printed.node].is_called(&held.claimant.machine)
        });
        let has = |spec: &Spec| fits(spec) && spec.contains(printed.address);
        printed.names_network || !is_elsewhere && self.pools.values().any(has)
    }

    /// Checks that a record is a lease, or that the adoption, the lists or the audit report its address.
    fn check_reported(
        &self,
        printed: &Printed,
        adoption: &Adoption,
        inventory: &Inventory,
        disagreements: &[Disagreement],
    ) -> Outcome {
        let node = &self.cluster.nodes[printed.node];
        let place = (printed.network.clone(), printed.address);
        let is_own =
            |claimant: &Claimant| claimant.interface.as_str() == printed.interface && node.is_called(&claimant.machine);
        let is_lease = self.seen.leases.get(&place).is_some_and(|held| is_own(&held.claimant));
        let is_reserved = self.seen.conflicts.get(&place).is_some_and(|of| of.iter().any(|it| node.is_called(it)));
        let is_reported =
            is_reserved || adoption.mismatches.iter().any(|it| it.address == printed.address && is_own(&it.claimant));
        let is_found = inventory.diagnostics.iter().any(|diagnostic| diagnostic.addresses.contains(&printed.address));
        let is_unleased = disagreements.iter().any(|it| {
            matches!(it, Disagreement::NotLeased { claimant, address, .. } if *address == printed.address && is_own(claimant))
        });
        // A record whose objects do not name its network may belong to another network.
        if is_lease || is_reported || is_found || is_unleased || !self.is_attributable(printed) {
            return Ok(());
        }
        let mut text = format!("nothing is reported about {printed:?} of {}", node.machine);
        let _ = write!(text, ", the ledger has {:?}", self.seen.leases.get(&place));
        Err(text)
    }
}

// === impl Freed ===

impl Freed {
    /// Whether the reuse delay may be over for one of the processes. If the clock went back, a process that has read a
    /// later time need not wait.
    fn may_be_over(&self) -> bool {
        self.clock[0] < self.clock[1] || self.since >= self.clock[0] + self.delay
    }

    /// Whether the reuse delay is over for every process. The delay counts from the latest time that the clock had
    /// shown until the release.
    fn is_over_for_all(&self, now: u64) -> bool {
        self.delay == 0 || now >= self.clock[1] + self.delay
    }
}

// === impl Seen ===

impl Seen {
    fn read(state: &Allocator) -> Self {
        let mut seen = Self::default();
        for (network, address, lease) in state.leases() {
            let held =
                Held { claimant: Claimant::clone(&lease.claimant), pool: lease.pool.to_string(), prefix: lease.prefix };
            seen.known.insert(held.claimant.machine.clone());
            assert!(NETWORKS.contains(&network));
            assert_eq!(seen.leases.insert((network.to_owned(), address), held), None, "{network} {address}");
        }
        for (network, address, conflict) in state.conflicts() {
            seen.known.insert(conflict.claimant.machine.clone());
            if conflict.state == State::Excluded {
                seen.kept.insert(((network.to_owned(), address), conflict.claimant.clone()));
            }
            seen.conflicts.entry((network.to_owned(), address)).or_default().insert(conflict.claimant.machine);
        }
        seen.waiting = state.waiters().into_iter().cloned().collect();
        seen.known.extend(seen.waiting.iter().map(|claim| claim.machine.clone()));
        seen
    }
}
