//! The thread that owns the registry: it allocates and records addresses. Asynchronous code sends commands to the owner
//! through a handle.
//!
//! The owner responds only after the API server has stored the leases. A request that fails is repeated with back-off
//! until it succeeds or every handle is gone, so callers never mistake a failure for a refusal. Claims that arrive
//! meanwhile are processed together, and their leases are written concurrently.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::error::Error;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::time::{Duration, Instant};
use std::{io, thread};

use glowplug::host::Timestamp;
use glowplug::host::allocator::{Adoption, Allocator, ClaimError, Mismatch, PoolError, Reported};
use glowplug::host::audit::{self, Rebuilt};
use glowplug::host::claim::{Allocation, Claim, Claimant, HolderKind, Machine, Record};
use glowplug::host::ledger::LedgerError;
use glowplug::host::pool::Pool;
use glowplug::host::records::Inventory;
use glowplug::host::registry::{Claimed, Registry, RegistryError, ResizeError};
use ipnetwork::IpNetwork;
use kube::Client;
use tokio::runtime::Handle;
use tokio::sync::{broadcast, mpsc, oneshot, watch};

use crate::cluster::key::Key;
use crate::ledger::leases::{ApiLedger, Learned};
use crate::ledger::types::{
    Answer, MacLeases, Progress, RefusedClaimants, Reservation, Served, Stopped, UnreadableLeases,
};
use crate::metrics::Metrics;
use crate::repeated::Repeated;

/// Number of freed addresses that a receiver may not have read yet.
const FREED: usize = 1024;
/// Largest number of single claims that are processed together.
const GROUP: usize = 64;
/// Time between two checks for ended reuse delays, and for leases that another client changed.
const PERIOD: Duration = Duration::from_secs(1);
/// Time between two searches for released leases that are not needed any more. After failures the time doubles each time.
const FORGETTING: Duration = Duration::from_secs(10);
/// Longest time between two searches after a failure.
const LONGEST_FORGETTING: Duration = Duration::from_secs(600);
/// Number of writes in a row that may lose against another leader. More are a failure.
const DEFEATS: usize = 1000;
/// Pause after a write that lost against another leader. After failures the pause doubles each time.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
/// Longest pause after a failure.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Handle to the registry. The owner stops when every clone is dropped.
#[derive(Clone)]
pub struct RegistryHandle {
    commands: Sender<Command>,
    changes: watch::Receiver<u64>,
    works: watch::Receiver<bool>,
    progress: Progress,
    refused: RefusedClaimants,
    unreadable: UnreadableLeases,
    freed: broadcast::Sender<IpAddr>,
}

/// Opens a registry.
type Open = fn(ApiLedger) -> Result<Registry<ApiLedger>, LedgerError>;

/// A job for the registry. It is repeated until it succeeds.
type Job = Box<dyn FnMut(&mut Owner) -> Result<(), LedgerError> + Send>;

/// Commands for the owner.
enum Command {
    Claims(Claims),
    Write(Job),
    Read(Job),
}

/// Claims of one caller, and the channel for their results.
struct Claims {
    claims: Vec<Claim>,
    answers: oneshot::Sender<Vec<Answer>>,
}

/// The pools that remember the last address of each name of a claim.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sticky {
    /// Whether each pool that this program manages is sticky, by name.
    pub pools: BTreeMap<String, bool>,
    /// Whether other programs may manage other pools. Then the leases of other pools stay.
    pub has_others: bool,
}

/// The thread that owns the registry.
struct Owner {
    registry: Registry<ApiLedger>,
    /// Objects that are gone, and that hold addresses because the API server has refused their release. An object that claims,
    /// holds or records an address again is not gone.
    unreleased: BTreeSet<Machine>,
    /// The pools whose last change was rejected. They stay suspended until a change is accepted: otherwise each further attempt
    /// would open and close them, as a growth.
    rejected: BTreeSet<String>,
    /// `None` before the pools are known: nothing is forgotten.
    sticky: Option<Sticky>,
    learned: Learned,
    metrics: Arc<Metrics>,
    link: Link,
}

/// The receiving side of the handles.
struct Link {
    commands: Receiver<Command>,
    /// Commands that have arrived and have not run yet.
    queued: VecDeque<Command>,
    served: Announcer,
    changes: watch::Sender<u64>,
    works: watch::Sender<bool>,
    progress: Progress,
    refused: RefusedClaimants,
    unreadable: UnreadableLeases,
    freed: broadcast::Sender<IpAddr>,
    /// The lines of the log about failures.
    lines: Repeated,
}

/// Sends objects with new addresses to the receivers of [`Served`].
struct Announcer {
    claims: mpsc::UnboundedSender<Machine>,
    ipam_claims: mpsc::UnboundedSender<Machine>,
    machines: mpsc::UnboundedSender<Machine>,
}

// === impl RegistryHandle ===

impl RegistryHandle {
    /// Starts the owner of the leases of a cluster. The owner lists the leases before it responds to commands.
    /// `mac_leases` receives the leases of MAC addresses. New addresses of pools are open at once.
    ///
    /// # Errors
    ///
    /// The thread cannot be started.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    pub fn start(client: Client, metrics: Arc<Metrics>, mac_leases: MacLeases) -> io::Result<(Self, Served)> {
        Self::start_with(client, metrics, mac_leases, Registry::open)
    }

    /// As [`RegistryHandle::start`]. New addresses of pools are closed until [`RegistryHandle::open`].
    ///
    /// # Errors
    ///
    /// The thread cannot be started.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    pub fn start_closed(client: Client, metrics: Arc<Metrics>, mac_leases: MacLeases) -> io::Result<(Self, Served)> {
        Self::start_with(client, metrics, mac_leases, Registry::open_closed)
    }

    fn start_with(
        client: Client,
        metrics: Arc<Metrics>,
        mac_leases: MacLeases,
        open: Open,
    ) -> io::Result<(Self, Served)> {
        let (sender, commands) = channel();
        let (claims, of_claims) = mpsc::unbounded_channel();
        let (ipam_claims, of_ipam_claims) = mpsc::unbounded_channel();
        let (machines, of_machines) = mpsc::unbounded_channel();
        let served = Announcer { claims, ipam_claims, machines };
        let (changes, changed) = watch::channel(0);
        let (works, is_working) = watch::channel(true);
        let (progress, refused) = (Progress::default(), RefusedClaimants::default());
        let (of_owner, of_claimants) = (progress.clone(), refused.clone());
        let unreadable = UnreadableLeases::default();
        let queued = VecDeque::new();
        let freed = broadcast::Sender::new(FREED);
        let link = Link {
            commands,
            queued,
            served,
            changes,
            works,
            progress: of_owner,
            refused: of_claimants,
            unreadable: unreadable.clone(),
            freed: freed.clone(),
            lines: Repeated::default(),
        };
        let runtime = Handle::current();
        thread::Builder::new().name("registry".to_owned()).spawn(move || {
            if let Some(mut owner) = Owner::open(&client, &runtime, metrics, &mac_leases, link, open) {
                owner.run();
            }
        })?;
        Ok((
            Self { commands: sender, changes: changed, works: is_working, progress, refused, unreadable, freed },
            Served { claims: of_claims, ipam_claims: of_ipam_claims, machines: of_machines },
        ))
    }

    /// Allocates every address the claim requests, or none. The leases are stored before this returns. A repeated claim
    /// has the same result. After [`ClaimError::Exhausted`] the claimant waits, and [`Served`] reports when the
    /// claimant gets its addresses.
    ///
    /// # Errors
    ///
    /// [`Stopped`]; the inner error is the reason for the rejection of the claim.
    pub async fn claim(&self, claim: Claim) -> Result<Answer, Stopped> {
        self.claim_all(vec![claim]).await?.pop().ok_or(Stopped)
    }

    /// Processes claims in one transaction, in their order. The results have the order of the claims.
    ///
    /// # Errors
    ///
    /// As [`RegistryHandle::claim`].
    pub async fn claim_all(&self, claims: Vec<Claim>) -> Result<Vec<Answer>, Stopped> {
        let (answers, answered) = oneshot::channel();
        self.send(Command::Claims(Claims { claims, answers }))?;
        answered.await.map_err(|_| Stopped)
    }

    /// Releases everything that an object holds or waits for, and returns the released addresses. The object must be gone:
    /// others may get its addresses before this returns.
    ///
    /// An object of another kind keeps its addresses, even if a user has written the same UID into it. An address whose
    /// release the API server refuses stays with the object, and is released later.
    pub async fn release(&self, machine: Machine) -> Result<Vec<IpNetwork>, Stopped> {
        self.write(move |owner| {
            let released = owner.registry.release(&machine, Timestamp::now())?;
            owner.link.refused.forget(&machine);
            if owner.registry.state()?.leases_of(&machine).next().is_some() {
                owner.unreleased.insert(machine.clone());
            }
            owner.announce(released.served);
            Ok(released.held.into_iter().flat_map(|allocation| allocation.addresses).collect())
        })
        .await
    }

    /// Removes a machine from the wait queue. The machine keeps its addresses.
    pub async fn withdraw(&self, machine: Machine) -> Result<(), Stopped> {
        self.write(move |owner| owner.registry.withdraw([&machine])).await
    }

    /// Keeps the addresses of `keep`, and releases the claimant's other addresses of the same families. Two leaders may
    /// have allocated addresses to one claim; the claimant never received the other addresses. Returns the released
    /// addresses.
    pub async fn keep(&self, claimant: Claimant, keep: Vec<IpAddr>) -> Result<Vec<IpNetwork>, Stopped> {
        self.write(move |owner| {
            let released = owner.registry.keep(&claimant, &keep, Timestamp::now())?;
            owner.announce(released.served);
            Ok(released.held.into_iter().flat_map(|allocation| allocation.addresses).collect())
        })
        .await
    }

    /// Records the names of the Secrets from which guests of a machine may read its addresses. A Secret that is not named may
    /// have an address of another machine later. The inner error: the API server refuses to change a lease of the machine.
    pub async fn set_secrets(
        &self,
        machine: Machine,
        secrets: BTreeSet<String>,
    ) -> Result<Result<(), ClaimError>, Stopped> {
        self.write(move |owner| {
            owner.registry.set_secrets(&machine, &secrets)?;
            Ok(owner.registry.state()?.why_unchanged(&machine).map_or(Ok(()), Err))
        })
        .await
    }

    /// Moves the leases of a machine to the pools that serve it now, see [`Registry::move_leases`]. The inner error: the API server
    /// refuses to change a lease of the machine.
    pub async fn move_leases(
        &self,
        machine: Machine,
        pools: Vec<String>,
    ) -> Result<Result<Vec<IpAddr>, ClaimError>, Stopped> {
        self.write(move |owner| {
            let moved = owner.registry.move_leases(&machine, &pools)?;
            Ok(owner.registry.state()?.why_unchanged(&machine).map_or(Ok(moved), Err))
        })
        .await
    }

    /// Records that the guest of a machine migrated to another cluster, see [`Registry::note_migrated`].
    pub async fn note_migrated(&self, machine: Machine) -> Result<BTreeSet<IpAddr>, Stopped> {
        self.write(move |owner| owner.registry.note_migrated(&machine, Timestamp::now())).await
    }

    /// Records a further Secret from which guests of a machine may read its addresses.
    pub async fn add_secret(&self, machine: Machine, secret: String) -> Result<(), Stopped> {
        self.write(move |owner| {
            let leases = owner.registry.state()?.leases_of(&machine).flat_map(|(_, _, lease)| lease.secrets.iter());
            let secrets = leases.cloned().chain([secret.clone()]).collect();
            owner.registry.set_secrets(&machine, &secrets)
        })
        .await
    }

    /// Adopts the records in objects, see [`Registry::adopt`]. What a record may do is decided by
    /// [`may_record`](glowplug::host::may_record::may_record).
    pub async fn adopt(&self, records: Vec<Record>) -> Result<Adoption, Stopped> {
        self.write(move |owner| {
            for record in &records {
                owner.unreleased.remove(&record.claimant.machine);
            }
            owner.registry.adopt(records.iter().cloned(), Timestamp::now())
        })
        .await
    }

    /// Adds and removes addresses that running guests report, see [`Registry::change_reports`]. Returns the reports that the
    /// registry did not have.
    pub async fn change_reports(
        &self,
        begun: Vec<Reservation>,
        ended: Vec<Reservation>,
    ) -> Result<Vec<Reported>, Stopped> {
        let mut new = Vec::new();
        self.write(move |owner| {
            // The reports are new only for the first attempt.
            new.extend(owner.registry.change_reports(&begun, &ended, Timestamp::now())?.begun);
            let served = owner.registry.serve(Timestamp::now())?;
            owner.announce(served);
            // An error means that there is no receiver.
            ended.iter().for_each(|reported| drop(owner.link.freed.send(reported.address)));
            Ok(std::mem::take(&mut new))
        })
        .await
    }

    /// Number of the last growth of the allocatable addresses, see [`Registry::growth`].
    pub async fn growth(&self) -> Result<u64, Stopped> {
        self.read_owner(|owner| Ok(owner.registry.growth())).await
    }

    /// Opens the addresses of every growth up to this number, and serves waiting machines: see [`Registry::open_up_to`].
    pub async fn open(&self, growth: u64) -> Result<(), Stopped> {
        self.write(move |owner| {
            let served = owner.registry.open_up_to(growth, Timestamp::now())?;
            owner.announce(served);
            Ok(())
        })
        .await
    }

    /// Records that a claimant holds exactly these addresses of an external pool, see [`Registry::hold`]. `source` says
    /// who chose the addresses.
    ///
    /// # Errors
    ///
    /// [`Stopped`]; the inner error is the reason why the claimant cannot hold the addresses.
    pub async fn hold(
        &self,
        pool: String,
        claimant: Claimant,
        addresses: Vec<IpNetwork>,
        source: String,
    ) -> Result<Result<(), ClaimError>, Stopped> {
        self.write(move |owner| {
            owner.unreleased.remove(&claimant.machine);
            match owner.registry.hold(&pool, &claimant, &addresses, &source, Timestamp::now()) {
                Ok(()) => Ok(Ok(())),
                Err(RegistryError::Refused(error)) => Ok(Err(error)),
                Err(RegistryError::Ledger(error)) => Err(error),
            }
        })
        .await
    }

    /// Rebuilds the ledger from the records on the objects of a cluster, see [`rebuild`](audit::rebuild).
    pub async fn rebuild(&self, inventory: Inventory) -> Result<Rebuilt, Stopped> {
        self.write(move |owner| audit::rebuild(&mut owner.registry, &inventory, Timestamp::now())).await
    }

    /// Adds conflicts of objects. The addresses are not allocated before the objects are released: on a network, or on every
    /// network that has a pool with the address. Returns the addresses that are not reserved, see [`Registry::set_aside`].
    pub async fn add_conflicts(&self, conflicts: Vec<Reservation>) -> Result<Vec<Mismatch>, Stopped> {
        self.write(move |owner| owner.registry.set_aside(conflicts.iter().cloned(), Timestamp::now())).await
    }

    /// Notes that the objects of a machine or claim no longer record these addresses, see [`Registry::end_records`].
    pub async fn end_records(&self, machine: Machine, addresses: BTreeSet<(String, IpAddr)>) -> Result<(), Stopped> {
        self.write(move |owner| owner.registry.end_records(&machine, &addresses)).await
    }

    /// The objects that hold an address or have a record without a lease, without the holders of leases that cannot be read.
    pub async fn holders(&self) -> Result<BTreeSet<Machine>, Stopped> {
        self.read(|state| {
            let holders = state.leases().map(|(_, _, lease)| lease.claimant.machine.clone());
            let holders = holders.chain(state.conflicts().map(|(_, _, conflict)| conflict.claimant.machine));
            holders.filter(Machine::may_exist).collect()
        })
        .await
    }

    /// The objects that hold an address for a VirtualMachine in another namespace.
    pub async fn holders_elsewhere(&self) -> Result<BTreeSet<Machine>, Stopped> {
        self.read(|state| {
            let holders = state.leases().map(|(_, _, lease)| &lease.claimant.machine);
            holders.filter(|holder| holder.vm_namespace.is_some()).cloned().collect()
        })
        .await
    }

    /// Replaces the pools, and serves waiting machines. Pools of `suspended` allocate nothing.
    ///
    /// Removes pools of the registry that are not among `pools`. A pool with held addresses is not removed but
    /// suspended. A pool whose change is rejected keeps its previous definition and is suspended. Returns the rejected
    /// changes.
    pub async fn resize(
        &self,
        pools: Vec<Pool>,
        suspended: BTreeSet<String>,
    ) -> Result<Vec<(String, PoolError)>, Stopped> {
        self.write(move |owner| owner.resize(&pools, &suspended)).await
    }

    /// Sets the pools that remember the last address of each name of a claim. Before this, no released lease is deleted.
    pub async fn set_sticky(&self, sticky: Sticky) -> Result<(), Stopped> {
        self.write(move |owner| {
            owner.sticky = Some(sticky.clone());
            Ok(())
        })
        .await
    }

    /// Reads the state of the allocator, after the changes of other processes are applied.
    pub async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Allocator) -> T + Send + 'static,
    ) -> Result<T, Stopped> {
        let mut read = Some(read);
        let read = self.read_owner(move |owner| {
            let allocator = owner.registry.state()?;
            Ok(read.take().map(|read| read(allocator)))
        });
        read.await?.ok_or(Stopped)
    }

    async fn read_owner<T: Send + 'static>(
        &self,
        read: impl FnMut(&mut Owner) -> Result<T, LedgerError> + Send + 'static,
    ) -> Result<T, Stopped> {
        let (job, answer) = job(read);
        self.send(Command::Read(job))?;
        answer.await.map_err(|_| Stopped)
    }

    /// Changes its value after each command that may have changed the state, and once a second.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.clone()
    }

    /// Whether the API server works. While it fails, the value is `false` and nothing is allocated.
    #[must_use]
    pub fn works(&self) -> watch::Receiver<bool> {
        self.works.clone()
    }

    /// Notes that objects of these names have changed. A claimant of such a name whose lease the API server has refused is
    /// tried again at its next claim, without the rest of its pause.
    pub fn note_changes(&self, names: &BTreeSet<Key>) {
        self.refused.note_changes(names);
    }

    /// Receives each address that another claimant may get from now on: after a release, also by another leader, and after the
    /// end of a record or report.
    #[must_use]
    pub fn freed(&self) -> broadcast::Receiver<IpAddr> {
        self.freed.subscribe()
    }

    /// Why leases cannot be read, by the name of the lease.
    pub(crate) fn unreadable_leases(&self) -> Arc<BTreeMap<String, String>> {
        self.unreadable.get()
    }

    /// Since when the owner works on one command without progress.
    #[must_use]
    pub fn progress(&self) -> Progress {
        self.progress.clone()
    }

    async fn write<T: Send + 'static>(
        &self,
        work: impl FnMut(&mut Owner) -> Result<T, LedgerError> + Send + 'static,
    ) -> Result<T, Stopped> {
        let (job, answer) = job(work);
        self.send(Command::Write(job))?;
        answer.await.map_err(|_| Stopped)
    }

    fn send(&self, command: Command) -> Result<(), Stopped> {
        self.progress.enqueue();
        self.commands.send(command).map_err(|_| Stopped)
    }
}

/// A job, and the channel for its result.
fn job<T: Send + 'static>(
    mut work: impl FnMut(&mut Owner) -> Result<T, LedgerError> + Send + 'static,
) -> (Job, oneshot::Receiver<T>) {
    let (sender, answer) = oneshot::channel();
    let mut sender = Some(sender);
    let job = move |owner: &mut Owner| {
        let value = work(owner)?;
        if let Some(sender) = sender.take() {
            // The caller may have stopped waiting.
            let _ = sender.send(value);
        }
        Ok(())
    };
    (Box::new(job), answer)
}

// === impl Sticky ===

impl Sticky {
    /// Whether a pool is sticky. `None`: another program may manage the pool.
    fn of(&self, pool: &str) -> Option<bool> {
        self.pools.get(pool).copied().or((!self.has_others).then_some(false))
    }
}

// === impl Owner ===

impl Owner {
    /// Lists the leases. `None` when every handle is dropped first.
    fn open(
        client: &Client,
        runtime: &Handle,
        metrics: Arc<Metrics>,
        mac_leases: &MacLeases,
        mut link: Link,
        open: Open,
    ) -> Option<Self> {
        let open = |link: &mut Link| {
            let ledger = ApiLedger::new(client.clone(), runtime.clone(), Arc::clone(&metrics), mac_leases.clone());
            let ledger = ledger.with_progress(link.progress.clone()).with_freed(link.freed.clone());
            let ledger = ledger.with_unreadable(link.unreadable.clone());
            let learned = ledger.learned();
            Ok((open(ledger)?, learned))
        };
        let (registry, learned) = repeat(&mut link, |link| link, open)?;
        let (unreleased, rejected) = (BTreeSet::new(), BTreeSet::new());
        Some(Self { registry, unreleased, rejected, sticky: None, learned, metrics, link })
    }

    /// Runs commands until every handle is dropped.
    fn run(&mut self) -> Option<()> {
        let (mut next_serve, mut next_forget, mut pause) = (Instant::now(), Instant::now(), FORGETTING);
        loop {
            if next_serve <= Instant::now() {
                self.serve()?;
                next_serve = Instant::now() + PERIOD;
            }
            if next_forget <= Instant::now() {
                self.link.progress.begin();
                let forgotten = self.forget();
                self.link.progress.end();
                pause = match forgotten {
                    Some(0) => FORGETTING,
                    // There may be more.
                    Some(_) => PERIOD,
                    None => LONGEST_FORGETTING.min(FORGETTING.max(pause * 2)),
                };
                next_forget = Instant::now() + pause;
            }
            match self.link.next(next_serve) {
                Ok(Some(Command::Claims(claims))) => self.claim(claims)?,
                Ok(Some(Command::Write(mut job))) => {
                    self.repeat(|owner| job(owner))?;
                    self.link.note_change();
                }
                Ok(Some(Command::Read(mut job))) => self.repeat(|owner| job(owner))?,
                Ok(None) => {}
                Err(Stopped) => return None,
            }
        }
    }

    /// Processes claims, together with claims that have arrived in the queue.
    fn claim(&mut self, Claims { claims: mut group, answers }: Claims) -> Option<()> {
        let mut callers = vec![(group.len(), answers)];
        while group.len() < GROUP
            && let Some(Claims { claims, answers }) = self.link.next_claims()
        {
            callers.push((claims.len(), answers));
            group.extend(claims);
        }
        for claim in &group {
            self.unreleased.remove(&claim.machine);
            if self.link.refused.take_change(&claim.machine) {
                self.registry.end_pause(&claim.machine);
            }
        }
        let Claimed { answers, served, .. } =
            self.repeat(|owner| owner.registry.claim_all(&group, Timestamp::now()))?;
        self.announce(served);
        group.iter().zip(&answers).for_each(|(claim, answer)| self.link.refused.note_answer(&claim.machine, answer));
        let mut answers = answers.into_iter();
        for (count, caller) in callers {
            let answers: Vec<Answer> = answers.by_ref().take(count).collect();
            answers.iter().for_each(|answer| self.metrics.count_claim(answer.as_ref().err()));
            // The caller may have stopped waiting.
            let _ = caller.send(answers);
        }
        self.link.note_change();
        Some(())
    }

    /// Allocates addresses to waiting machines after the end of a reuse delay, or after a release by another leader. Announces
    /// the holders in leases of another leader: such a lease may arrive after its holder is gone.
    fn serve(&mut self) -> Option<()> {
        let served = self.repeat(|owner| owner.registry.serve(Timestamp::now()))?;
        self.announce(served);
        if !self.unreleased.is_empty() {
            let served = self.repeat(Self::release_again)?;
            self.announce(served);
        }
        self.learned.take().into_iter().for_each(|machine| self.tell(machine));
        self.link.note_change();
        Some(())
    }

    /// Deletes released leases that are not needed any more, and returns their number. `None`: it failed, which stops nothing else.
    /// A later search finds the leases again.
    fn forget(&mut self) -> Option<usize> {
        let Some(sticky) = &self.sticky else { return Some(0) };
        match self.registry.forget(|pool| sticky.of(pool), Timestamp::now()) {
            Ok(leases) => {
                tracing::debug!(leases, "deleted released leases that are not needed any more");
                Some(leases)
            }
            Err(error) => {
                let cause = error.source().map(tracing::field::display);
                tracing::debug!(%error, cause, "could not delete released leases");
                None
            }
        }
    }

    /// Releases the addresses whose release the API server has refused. Nothing is sent before it may accept the release.
    fn release_again(&mut self) -> Result<Vec<Allocation>, LedgerError> {
        let served = self.registry.release_all(&self.unreleased, Timestamp::now())?.served;
        let state = self.registry.state()?;
        self.unreleased.retain(|machine| state.leases_of(machine).next().is_some());
        Ok(served)
    }

    fn resize(
        &mut self,
        pools: &[Pool],
        suspended: &BTreeSet<String>,
    ) -> Result<Vec<(String, PoolError)>, LedgerError> {
        let (mut pools, mut suspended) = (pools.to_vec(), suspended.clone());
        let is_gone = |known: &&Pool| !pools.iter().any(|pool| pool.name() == known.name());
        let gone: Vec<Pool> = self.registry.state()?.pools().filter(is_gone).cloned().collect();
        for pool in gone {
            match self.registry.remove_pool(pool.name(), Timestamp::now()) {
                Ok(()) => {}
                Err(ResizeError::Ledger(error)) => return Err(error),
                Err(ResizeError::Refused(_)) => {
                    suspended.insert(pool.name().to_owned());
                    pools.push(pool);
                }
            }
        }
        let mut refused = Vec::new();
        loop {
            self.registry.suspend(&suspended | &self.rejected);
            // Every pool of the registry is passed, so that no new pool is taken for a renamed pool.
            match self.registry.resize(pools.clone(), &[], Timestamp::now()) {
                Ok(resized) => {
                    self.announce(resized.served);
                    self.rejected = refused.iter().map(|(name, _): &(String, PoolError)| name.clone()).collect();
                    self.registry.suspend(&suspended | &self.rejected);
                    let served = self.registry.serve(Timestamp::now())?;
                    self.announce(served);
                    return Ok(refused);
                }
                Err(ResizeError::Ledger(error)) => return Err(error),
                Err(ResizeError::Refused(error)) => {
                    let (PoolError::InUse { pool: name, .. }
                    | PoolError::Held { pool: name, .. }
                    | PoolError::Unknown(name)
                    | PoolError::NewName(name)) = error.clone();
                    pools.retain(|pool| pool.name() != name);
                    pools.extend(self.registry.state()?.pool(&name).cloned());
                    self.rejected.insert(name.clone());
                    refused.push((name, error));
                }
            }
        }
    }

    fn announce(&self, served: Vec<Allocation>) {
        served.into_iter().for_each(|allocation| self.tell(allocation.claimant.machine));
    }

    fn tell(&self, machine: Machine) {
        let Announcer { claims, ipam_claims, machines } = &self.link.served;
        let receiver = match machine.kind {
            HolderKind::IpAddressClaim => claims,
            HolderKind::IpamClaim => ipam_claims,
            HolderKind::KubevirtMachine | HolderKind::VirtualMachine => machines,
            // They never wait for an address.
            HolderKind::Service | HolderKind::Cluster => return,
        };
        // An error means that there is no receiver, which is allowed.
        let _ = receiver.send(machine);
    }

    fn repeat<T>(&mut self, work: impl FnMut(&mut Self) -> Result<T, LedgerError>) -> Option<T> {
        repeat(self, |owner| &mut owner.link, work)
    }
}

/// Repeats `work` until it succeeds. `None` when every handle is dropped first.
fn repeat<S, T>(
    subject: &mut S,
    link: fn(&mut S) -> &mut Link,
    mut work: impl FnMut(&mut S) -> Result<T, LedgerError>,
) -> Option<T> {
    let (mut pause, mut defeats) = (FIRST_PAUSE, 0);
    link(subject).progress.begin();
    loop {
        match work(subject) {
            Ok(value) => {
                link(subject).progress.end();
                link(subject).works.send_if_modified(|works| !std::mem::replace(works, true));
                return Some(value);
            }
            // The ledger now has the holder of the address, so the next attempt makes another decision.
            Err(error @ LedgerError::Held { .. }) if defeats < DEFEATS => {
                tracing::debug!(%error, "another leader was faster");
                (pause, defeats) = (FIRST_PAUSE, defeats + 1);
            }
            Err(error) => {
                let cause = error.source().map(ToString::to_string);
                let repeated = format!("{error} {}", cause.as_deref().unwrap_or_default());
                if let Some(hidden) = link(subject).lines.note(&repeated, Instant::now().into()) {
                    tracing::warn!(%error, cause, hidden, "the ledger failed");
                }
                link(subject).works.send_if_modified(|works| std::mem::replace(works, false));
                pause = LONGEST_PAUSE.min(pause * 2);
            }
        }
        thread::sleep(pause);
        if !link(subject).take_arrived() {
            return None;
        }
    }
}

// === impl Link ===

impl Link {
    /// The next command, or `None` at `until`.
    fn next(&mut self, until: Instant) -> Result<Option<Command>, Stopped> {
        if let Some(command) = self.queued.pop_front() {
            self.progress.dequeue();
            return Ok(Some(command));
        }
        match self.commands.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(command) => {
                self.progress.dequeue();
                Ok(Some(command))
            }
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(Stopped),
        }
    }

    /// The next command, if it has arrived and is a command for claims.
    fn next_claims(&mut self) -> Option<Claims> {
        self.take_arrived();
        match self.queued.pop_front()? {
            Command::Claims(claims) => {
                self.progress.dequeue();
                Some(claims)
            }
            other => {
                self.queued.push_front(other);
                None
            }
        }
    }

    /// Queues the commands that have arrived. `false` when every handle is dropped.
    fn take_arrived(&mut self) -> bool {
        loop {
            match self.commands.try_recv() {
                Ok(command) => self.queued.push_back(command),
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Disconnected) => return false,
            }
        }
    }

    fn note_change(&self) {
        self.changes.send_modify(|changes| *changes = changes.wrapping_add(1));
    }
}
