//! Chaos test (`make chaos`): random operations and faults on several replicas of the controller, with a real API
//! server. An observer checks every change. `MINUTES` is the duration (default: 60), and `SEED` is the seed of the
//! random choices.
//!
//! | part | what it is |
//! |---|---|
//! | API server | kube-apiserver and etcd, as in `make test-cluster` |
//! | controller | three processes of the program with leader election and exactly the shipped rights. Each process connects to the API server through a TCP proxy of its own, and the API server calls the webhooks through a Service ([`replicas`]) |
//! | machines | four namespaces on three networks, stand-ins of capk, KubeVirt and the garbage collector ([`place`]) |
//! | hostile tenant | writes objects in a namespace of its own that name the machines, UIDs and addresses of the others ([`tenant`]) |
//! | witness | a namespace that is not the target of any fault. During the faults marked "the witness is served" below, a claim of this namespace must get its address ([`witness`]) |
//! | observer | a client with code of its own, which replays the history of every address ([`observer`]) |
//!
//! The run consists of rounds. In each round, operations and faults happen at random. Then the faults end, and the
//! pools grow until every machine can have an address. The test waits until all machines and claims are served and all
//! deletions are done (the quiet time). At the end of each round, and before each restore, the observer checks every
//! version that the API server stored.
//!
//! # Faults
//!
//! | fault | what must work during the fault |
//! |---|---|
//! | a replica is killed or paused, has no connection, loses its watches or the answers to its requests, or gets a wrong clock | |
//! | the API server, or the API server and etcd, are killed and start again | |
//! | an administrator writes a lease with a mistake ([`poison`]): the controller cannot read the lease, or the holder of the lease does not exist | the witness is served, also from the pool of such a lease. The log of a replica names each lease that cannot be read |
//! | an administrator edits a lease, so that the controller cannot read the lease ([`poison`]) | the log of a replica names each such lease |
//! | a policy denies the controller's writes of one kind in one namespace ([`denial`]) | the witness is served. The log names the reason, and the controller pauses between attempts |
//! | clients open more connections than a port of a replica accepts, and send nothing after the first byte ([`stalls`]) | the API server calls the webhooks; probes and metrics are served |
//! | etcd is restored from a backup, with and without running replicas | see below |
//!
//! When the faults of a round end, the leases that the administrator wrote are removed, and the leases that were edited
//! are repaired.
//!
//! # Invariants
//!
//! | checked on | invariant |
//! |---|---|
//! | every version | no two guests, and no two IPAddresses, use the same address of a network. No two guests use the same MAC address. A guest uses the addresses that it has read from its Secret, and the addresses that it reports |
//! | every version | an address is not allocated if another guest has reported it, or another object has recorded it, for at least half a minute |
//! | every version | a machine gets the address that its KubevirtMachine recorded before the pool existed |
//! | every version | a guest reads only the Secret of its own VirtualMachine. No guest starts without network data if a pool selects its machine |
//! | every version | if a guest was running without network data when its pool was created, its machine gets no lease and no reference to a Secret as long as this guest runs, unless the KubevirtMachine of the machine records an address |
//! | every version | before an IP address is in an IPAddress, or a MAC address of a pool in a VirtualMachine, its claim or machine has a lease of the address |
//! | every version | a new Secret contains only addresses that its machine, identified by UID, holds at this time |
//! | every version | a lease is not released while its guest or IPAddress uses the address, or while a Secret gives the address to its machine |
//! | every version | a Secret has at most one address of each family |
//! | every version | the hostile tenant holds addresses only on its own network |
//! | after quiet time | every machine and claim has its addresses; every IPAddress belongs to its claim; the holder of every lease exists; an interface has at most one lease of each family |
//! | after quiet time | the status of each pool has the number of its leases |
//! | end of the faults | each line of the log begins with its time, and is at most 4000 bytes long |
//!
//! # Restore of etcd
//!
//! A backup is a copy of the data of etcd while all programs run. Before about half of the restores, the replicas are
//! killed, as `docs/backup.md` requires. The replicas start again only after the nodes have reported their guests. The
//! nodes do what kubelet and virt-handler do:
//!
//! - A guest whose instance is in the backup, with the same UID, continues to run. Its node reports phase and
//!   addresses.
//! - A guest without an instance is ended: a node ends pods that the API server does not know.
//! - An instance whose guest has ended since the backup fails, and KubeVirt starts it again from the restored objects.
//!
//! After such a restore, a guest may run with an address that no restored lease has. The controller must not allocate
//! this address to another machine as long as the guest runs. At the end of the round, the guest is restarted, and gets
//! the address of its machine.
//!
//! It is possible that a machine is deleted after the backup, and that another machine gets its address. Then the
//! restore brings back the deleted machine, with its lease and its Secret, and KubeVirt starts this machine again. The
//! controller cannot prevent this. In the same way, a deleted claim comes back with its IPAddress. The observer counts
//! these cases, and `docs/backup.md` says what an administrator does.
//!
//! In the other restores, the replicas keep running. Until the nodes report, a leader does not know the guests that
//! started after the backup, so it may allocate their addresses. The observer counts these cases, too. The term of the
//! leader must end, and the leader of the next term reads everything again. The observer begins again with this term:
//! from then on, every invariant holds.
//!
//! # Late requests
//!
//! A leader sends the request for an `IPAddress`. The API server receives the request only after the claim was deleted
//! and another leader has released the address. The controller cannot prevent this. The claim of this `IPAddress` is
//! gone, so no machine uses the address. In the same way, a Secret may arrive after its VirtualMachine was deleted. The
//! observer counts these objects, and checks that none of them is left after the quiet time.
//!
//! # Guests without network data
//!
//! If no replica answers, the API server accepts changes of machines without the webhook (`failurePolicy: Ignore`). If
//! a person meanwhile replaces the whole template of a machine, the template loses its label
//! `ipam.glowplug.dev/network-data`, and the next guest may start without network data. The observer counts these
//! guests. At the end of the round, they are restarted, as an event of the controller requires.
//!
//! # Addresses that persons choose
//!
//! A person may choose an address for a guest at the moment when the controller allocates the same address to a
//! machine. The controller never takes an address away from its holder, so the observer only counts these cases. If a
//! guest reported the address, or an object recorded it, less than half a minute before the allocation, the observer
//! also only counts the case.
//!
//! # What this test does not cover
//!
//! - The webhook for pools is not registered, because it would reject the overlapping pools of this test.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, unreachable_pub)]
#![allow(clippy::disallowed_types, reason = "the objects come from the test, so their managed fields are readable")]

#[path = "chaos/denial.rs"]
mod denial;
#[path = "chaos/observer.rs"]
mod observer;
#[path = "chaos/place.rs"]
mod place;
#[path = "chaos/poison.rs"]
mod poison;
#[path = "../../tests/support/random.rs"]
mod random;
#[path = "chaos/replicas.rs"]
mod replicas;
#[path = "chaos/stalls.rs"]
mod stalls;
mod support;
#[path = "chaos/tenant.rs"]
mod tenant;
#[path = "chaos/witness.rs"]
mod witness;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use futures::future::join_all;
use glowplug_controller::cluster::client::connect;
use glowplug_controller::kinds::mac_pool::{MACPool, MacPoolSpec};
use glowplug_controller::kinds::pool::{LeaseSpec, StaticIPLease};
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{ApiResource, PostParams};
use kube::{Api, Client};
use tokio::signal::ctrl_c;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::{LocalSet, spawn_local};
use tokio::time::{sleep, timeout};

use denial::Denial;
use observer::{Counts, Observer, POOL_MACS};
use place::{Place, all, readable};
use poison::Poison;
use random::Random;
use replicas::{EXITS, Flow, Replica, Service, logs, lose_answers, strange_lines};
use stalls::stall;
use support::real::RealServer;
use support::{Cluster, SYSTEM};
use tenant::Tenant;
use witness::{WITNESS, Witness};

const REPLICAS: usize = 3;
/// Duration of the operations and faults in each round.
const ROUND: Duration = Duration::from_secs(75);
/// Duration of a long fault. Another replica takes the Lease in this time.
const LONG: Duration = Duration::from_secs(20);
/// Time limit for all machines and claims to be served after the faults.
const QUIET: Duration = Duration::from_secs(420);
/// Time limit instead of [`QUIET`] after a policy has denied writes of leases: the controller may wait ten minutes
/// longer before it tries again.
const QUIET_AFTER_DENIAL: Duration = Duration::from_secs(420 + 600);

/// Differences between a wrong clock and the real time, in seconds. With a clock that is two days slow, the certificate
/// of the API server is not valid yet.
const CLOCKS: [i64; 6] = [-172_800, -3600, -60, 60, 3600, 172_800];

static COUNTS: Mutex<BTreeMap<&str, u64>> = Mutex::new(BTreeMap::new());

/// Counts an operation or a fault.
fn count(what: &'static str) {
    *COUNTS.lock().unwrap().entry(what).or_default() += 1;
}

/// Repeats a request until it succeeds, or until the API server rejects the request with the status 403, 404, 409 or
/// 422. `None`: the request was rejected.
async fn settle<T>(ask: impl AsyncFn() -> kube::Result<T>) -> Option<T> {
    loop {
        match ask().await {
            Ok(answer) => return Some(answer),
            Err(kube::Error::Api(status)) if matches!(status.code, 403 | 404 | 409 | 422) => return None,
            Err(_) => sleep(Duration::from_millis(200)).await,
        }
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    // A signal cancels `run`. This drops the [`World`], which ends all of its programs.
    let mut terminate = signal(SignalKind::terminate()).unwrap();
    tokio::select! {
        code = async { LocalSet::new().run_until(run()).await } => code,
        _ = terminate.recv() => ExitCode::FAILURE,
        _ = ctrl_c() => ExitCode::FAILURE,
    }
}

async fn run() -> ExitCode {
    let Some(assets) = std::env::var_os("KUBEBUILDER_ASSETS") else {
        eprintln!("KUBEBUILDER_ASSETS: not set, expected a folder with kube-apiserver and etcd: see `make chaos`");
        return ExitCode::FAILURE;
    };
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let minutes = number("MINUTES").unwrap_or(60);
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
    let seed = number("SEED").unwrap_or(now);
    println!("chaos: seed {seed}, {minutes} minutes");
    // The stand-ins of KubeVirt panic when the API server does not answer, and are started again. These panics are
    // expected, so the hook does not print them.
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if !panic.location().is_some_and(|place| place.file().contains("hosted")) {
            print(panic);
        }
    }));
    let began = Instant::now();
    let mut world = World::start(PathBuf::from(assets), seed).await;
    let mut rounds = 0;
    let violations = loop {
        rounds += 1;
        let violations = world.round(rounds).await;
        if !violations.is_empty() || began.elapsed() > Duration::from_secs(minutes * 60) {
            break violations;
        }
    };
    for (what, times) in COUNTS.lock().unwrap().iter() {
        println!("{times:>8} {what}");
    }
    let Counts { changes, gaps, returned, late, stripped, taken } = world.observer.counts();
    println!("{:>8} seconds, {rounds} rounds, seed {seed}", began.elapsed().as_secs());
    println!("{changes:>8} stored versions checked, {gaps} gaps in the history");
    println!("{returned:>8} guests whose address a restored machine or claim uses, too");
    println!("{late:>8} IPAddresses and Secrets arrived after their claim or machine had ended");
    println!("{stripped:>8} guests without network data, because a change removed the mark while no webhook answered");
    println!(
        "{taken:>8} addresses allocated shortly after their first report or record, or while their guest was silent"
    );
    println!("{:>8} replicas ended by themselves", EXITS.load(Ordering::Relaxed));
    println!("{:>8} violations", violations.len());
    if violations.is_empty() {
        return ExitCode::SUCCESS;
    }
    for violation in violations.iter().take(20) {
        println!("VIOLATION {violation}");
    }
    println!("logs of the replicas: {}", world.folder.keep().display());
    ExitCode::FAILURE
}

struct World {
    server: RealServer,
    /// The cluster. While this value exists, the stand-in for the webhook of KubeVirt runs.
    cluster: Cluster,
    _service: Service,
    client: Client,
    places: Vec<Arc<Place>>,
    tenant: Arc<Tenant>,
    witness: Witness,
    poison: Poison,
    denial: Denial,
    observer: Observer,
    replicas: Vec<Replica>,
    random: Random,
    folder: tempfile::TempDir,
    has_backup: bool,
    /// Guests that have run since a restore with an address that their machine does not hold, as `namespace/name`.
    unrecorded: BTreeSet<String>,
    /// Violations of this round that the observer does not find: a fault affected other users, a log is incomplete, or
    /// a line of a log has a wrong form.
    violations: Vec<String>,
}

// === impl World ===

impl World {
    async fn start(assets: PathBuf, seed: u64) -> Self {
        let mut server = RealServer::start(&assets).await;
        let cluster = Cluster::new(server.config()).await;
        let client = cluster.client();
        let second = connect(server.start_second().await).unwrap();
        // Two namespaces share a network. A third namespace has the same addresses as the first, but on another
        // network.
        let places = [
            ("east", "infra/vlan10", 0, false),
            ("west", "infra/vlan10", 2, false),
            ("south", "infra/vlan20", 0, true),
            ("north", "infra/vlan30", 4, true),
        ];
        let mut started = Vec::new();
        for (namespace, network, octet, has_mac_pool) in places {
            started.push(Place::new(&client, namespace, network, octet, has_mac_pool).await);
        }
        let tenant = Arc::new(Tenant::new(&client).await);
        let spec = MacPoolSpec {
            ranges: vec![format!("{POOL_MACS}00:00:00:00:00-{POOL_MACS}00:00:00:00:ff")],
            namespaces: vec!["south".to_owned(), "north".to_owned()],
            ..MacPoolSpec::default()
        };
        let pools: Api<MACPool> = Api::all(client.clone());
        pools.create(&PostParams::default(), &MACPool::new("macs", spec)).await.unwrap();
        let witness = Witness::new(&client).await;
        let networks = started.iter().map(|place| (place.namespace.clone(), place.network.clone()));
        let networks = networks.chain([(WITNESS.to_owned(), witness::NETWORK.to_owned())]).collect();
        let observer = Observer::start(second, networks).await;
        let folder = tempfile::tempdir().unwrap();
        let mut replicas = Vec::new();
        for n in 0..REPLICAS {
            replicas.push(Replica::new(&server, folder.path(), &format!("replica-{n}")).await);
        }
        let service = Service::start(&cluster, folder.path(), &replicas).await;
        replicas.iter_mut().for_each(Replica::start);
        for place in &started {
            place.until_asked().await;
            place.start();
        }
        Self {
            server,
            cluster,
            _service: service,
            places: started,
            tenant,
            witness,
            poison: Poison::new(&client, folder.path()),
            denial: Denial::new().await,
            client,
            observer,
            replicas,
            random: Random(seed),
            folder,
            has_backup: false,
            unrecorded: BTreeSet::new(),
            violations: Vec::new(),
        }
    }

    /// Runs one round: operations and faults, the quiet time, and the checks. Returns the violations.
    async fn round(&mut self, number: usize) -> Vec<String> {
        let until = Instant::now() + ROUND;
        self.operate(until, true).await;
        // Every second round restores the last backup, if it is newer than the last restore.
        if number.is_multiple_of(2) && self.has_backup {
            let violations = self.restore().await;
            if !violations.is_empty() {
                return violations;
            }
            self.operate(Instant::now() + ROUND / 3, false).await;
        }
        self.calm().await
    }

    /// Runs operations in every namespace until the time is over. With `faults`, also injects faults.
    async fn operate(&mut self, until: Instant, faults: bool) {
        let operations: Vec<_> = self
            .places
            .iter()
            .map(|place| {
                let (place, tenant) = (Arc::clone(place), Arc::clone(&self.tenant));
                let mut random = Random(self.random.below(usize::MAX) as u64);
                spawn_local(async move {
                    while Instant::now() < until {
                        place.operate(&mut random).await;
                        if random.below(5) == 0
                            && let Some(victim) = place.victim(&mut random).await
                        {
                            tenant.operate(&mut random, &victim).await;
                        }
                        sleep(Duration::from_millis(20 + random.below(300) as u64)).await;
                    }
                })
            })
            .collect();
        while Instant::now() < until {
            sleep(Duration::from_millis(500 + self.random.below(5000) as u64)).await;
            self.replicas.iter_mut().for_each(Replica::keep);
            if faults {
                self.fault().await;
            }
        }
        for operation in operations {
            operation.await.unwrap();
        }
    }

    /// Injects one random fault. A changed clock and a mistake in a lease stay until the quiet time. Every other fault
    /// ends before the function returns.
    async fn fault(&mut self) {
        let leader = self.leader().await.unwrap_or_else(|| self.random.below(REPLICAS));
        let any = self.random.below(REPLICAS);
        let fault = self.random.weighted(&[
            (8, "leader killed"),
            (6, "leader paused for longer than its Lease"),
            (4, "replica killed"),
            (4, "leader paused for a moment"),
            (10, "watches cut"),
            (10, "answers lost"),
            (4, "leader without connection for longer than its Lease"),
            (5, "clock of the leader changed"),
            (3, "API server restarted"),
            (2, "API server and etcd restarted"),
            (4, "backup of etcd"),
            (4, "lease with a mistake written"),
            (3, "lease edited by mistake"),
            (4, "writes denied by a policy"),
            (3, "connections stalled"),
        ]);
        let place = Arc::clone(&self.places[self.random.below(self.places.len())]);
        let moment = Duration::from_millis(100 + self.random.below(2000) as u64);
        match fault {
            "leader killed" => self.replicas[leader].kill(),
            "replica killed" => self.replicas[any].kill(),
            "leader paused for longer than its Lease" => {
                self.replicas[leader].pause();
                sleep(LONG).await;
                self.replicas[leader].resume();
            }
            "leader paused for a moment" => {
                self.replicas[leader].pause();
                sleep(moment).await;
                self.replicas[leader].resume();
            }
            "clock of the leader changed" => {
                let seconds = self.random.one_of(&CLOCKS).copied().unwrap_or_default();
                self.replicas[leader].set_clock(seconds);
            }
            "watches cut" => self.replicas.iter().for_each(|replica| replica.proxy.cut()),
            "answers lost" => lose_answers(&self.replicas[leader].proxy, moment).await,
            "leader without connection for longer than its Lease" => {
                self.replicas[leader].proxy.set(Flow::Held);
                sleep(LONG).await;
                self.replicas[leader].proxy.set(Flow::Open);
            }
            "API server restarted" => self.server.restart(false).await,
            "API server and etcd restarted" => self.server.restart(true).await,
            "lease with a mistake written" => {
                self.poison.write(&mut self.random, &place).await;
                self.violations.extend(self.witness.serve(fault).await.err());
            }
            "lease edited by mistake" => self.poison.edit(&mut self.random, &place).await,
            "writes denied by a policy" => {
                let others = (&*place.namespace, &self.witness);
                let logs = || logs(self.folder.path());
                self.violations.extend(self.denial.run(&mut self.random, &self.cluster, others, logs).await);
            }
            "connections stalled" => {
                let problems = stall(&mut self.random, self.folder.path(), &self.replicas, &place).await;
                self.violations.extend(problems);
            }
            _ => {
                self.server.save();
                self.has_backup = true;
            }
        }
        count(fault);
        sleep(moment / 4).await;
        self.replicas.iter_mut().for_each(Replica::start);
    }

    /// Returns the index of the leading replica.
    async fn leader(&self) -> Option<usize> {
        let leases: Api<Lease> = Api::namespaced(self.client.clone(), SYSTEM);
        let lease = timeout(Duration::from_secs(5), leases.get_opt("glowplug-controller")).await.ok()?.ok()??;
        let identity = lease.spec?.holder_identity?;
        self.replicas.iter().position(|replica| replica.is(&identity))
    }

    /// Restores the last backup. Returns the violations that the observer found before the restore, or the violation
    /// that the term of the leader does not end. In about half of the restores, the replicas continue to run, against
    /// the advice of `docs/backup.md`.
    async fn restore(&mut self) -> Vec<String> {
        let keeps_running = self.random.below(2) == 0;
        if !keeps_running {
            self.replicas.iter_mut().for_each(Replica::kill);
        }
        self.places.iter().for_each(|place| place.stop());
        let violations = self.observer.check().await.to_vec();
        if !violations.is_empty() {
            return violations;
        }
        self.observer.stop();
        let before = self.tenure().await;
        self.server.restore().await;
        self.has_backup = false;
        for place in &self.places {
            place.report_after_a_restore().await;
        }
        if keeps_running {
            // A leader of the term before the restore may still write what it knew before the restore. So the observer
            // starts again only in the next term.
            if timeout(LONG * 3, self.until_other_term(&before)).await.is_err() {
                return vec!["the term of the leader does not end with a restore".to_owned()];
            }
            count("etcd restored under running replicas");
        }
        self.observer.watch().await;
        self.unrecorded.extend(self.observer.unrecorded().iter().cloned());
        println!("{:>8} guests run with an address that is newer than the backup", self.observer.unrecorded().len());
        self.places.iter().for_each(Place::start);
        self.replicas.iter_mut().for_each(Replica::start);
        count("etcd restored from a backup");
        Vec::new()
    }

    /// Returns the current term of the election (number of transitions and start time), and the version of the Lease.
    async fn tenure(&self) -> (String, Option<String>) {
        let leases: Api<Lease> = Api::namespaced(self.client.clone(), SYSTEM);
        loop {
            if let Ok(Ok(lease)) = timeout(Duration::from_secs(5), leases.get("glowplug-controller")).await {
                let spec = lease.spec.unwrap_or_default();
                return (
                    format!("{:?} {:?}", spec.lease_transitions, spec.acquire_time),
                    lease.metadata.resource_version,
                );
            }
            sleep(Duration::from_millis(200)).await;
        }
    }

    /// Waits until a replica leads in another term than `before`, and has written the Lease since the restore.
    async fn until_other_term(&self, (before, _): &(String, Option<String>)) {
        let restored = self.tenure().await;
        loop {
            let now = self.tenure().await;
            if now.0 != *before && now.1 != restored.1 {
                return;
            }
            sleep(Duration::from_millis(200)).await;
        }
    }

    /// Ends the faults, waits until all machines and claims are served, and runs the checks. Returns the violations.
    async fn calm(&mut self) -> Vec<String> {
        self.replicas.iter_mut().for_each(|replica| {
            replica.keep();
            replica.start();
        });
        let unreported = self.poison.end().await;
        self.violations.extend(unreported.into_iter().chain(strange_lines(self.folder.path())));
        let began = Instant::now();
        let quiet = if self.denial.take_denied_leases() { QUIET_AFTER_DENIAL } else { QUIET };
        self.replicas.iter().for_each(|replica| replica.set_clock(0));
        let (mut problems, mut shown, mut minutes) = (Vec::new(), Duration::ZERO, 0);
        let unrecorded = std::mem::take(&mut self.unrecorded);
        let mut restarts = Some(unrecorded);
        while began.elapsed() < quiet {
            self.replicas.iter_mut().for_each(|replica| {
                replica.keep();
                replica.start();
            });
            let restarted = restarts.take().unwrap_or_default();
            // The restarts that depend on `full` happen in one pass a minute, because each restart needs some time.
            let is_full = began.elapsed() > Duration::from_secs(60) * (minutes + 1);
            minutes += u32::from(is_full);
            let full = is_full.then_some(minutes);
            join_all(self.places.iter().map(|place| place.settle(&restarted, full))).await;
            problems = join_all(self.places.iter().map(|place| place.problems())).await.concat();
            problems.extend(self.problems_of_macs().await);
            problems.extend(self.poison.problems().await);
            if problems.is_empty() {
                break;
            }
            if began.elapsed() > shown + Duration::from_secs(30) {
                shown = began.elapsed();
                println!(
                    "{:>8} problems left after {} s: {:?}",
                    problems.len(),
                    shown.as_secs(),
                    problems.iter().take(3).collect::<Vec<_>>()
                );
            }
            sleep(Duration::from_secs(2)).await;
        }
        let violations = self.observer.check().await.to_vec();
        println!("{:>8} s of quiet time, {} violations", began.elapsed().as_secs(), violations.len());
        let problems = problems.iter().map(|problem| format!("after {} s of quiet time: {problem}", quiet.as_secs()));
        violations.into_iter().chain(problems).chain(std::mem::take(&mut self.violations)).collect()
    }

    /// Returns a problem if the number of leases in the status of the MAC pool is wrong.
    async fn problems_of_macs(&self) -> Vec<String> {
        let pools: Api<MACPool> = Api::all(self.client.clone());
        let leases = Api::all_with(self.client.clone(), &ApiResource::erase::<StaticIPLease>(&()));
        let of_pool = |lease: &&LeaseSpec| lease.network == "mac" && lease.released.is_none();
        let held = readable(all(&leases).await).iter().filter(of_pool).count();
        let used = all(&pools).await.first().and_then(|pool| pool.status.as_ref()).map(|status| status.used);
        let is_right = used.and_then(|used| usize::try_from(used).ok()) == Some(held);
        (!is_right).then(|| format!("status of the MAC pool: {used:?}, expected {held} leases")).into_iter().collect()
    }
}
