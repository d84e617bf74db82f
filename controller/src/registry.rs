//! The owner of the registry: one thread that decides and records. Asynchronous code asks the owner through a handle.
//!
//! The owner answers only after the API server has stored the leases. A request that fails is repeated with back-off until
//! it succeeds or every handle is gone, so callers never mistake a failure for a refusal. Claims that queued up meanwhile are
//! made together, and their leases are written concurrently.

use std::collections::{BTreeSet, VecDeque};
use std::error::Error;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::time::{Duration, Instant};
use std::{fmt, io, thread};

use glowplug::host::allocator::{Adoption, Allocator, ClaimError, PoolError};
use glowplug::host::claim::{Allocation, Claim, Claimant, Machine, Record};
use glowplug::host::ledger::LedgerError;
use glowplug::host::pool::Pool;
use glowplug::host::registry::{Claimed, Registry, ResizeError};
use glowplug::host::timestamp::Timestamp;
use kube::Client;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot, watch};

use crate::api::HolderKind;
use crate::ledger::{ApiLedger, Kinds};
use crate::metrics::Metrics;

/// Largest number of single claims that are made together.
const GROUP: usize = 64;
/// How often the owner looks for reuse delays that are over and for leases that somebody else changed.
const PERIOD: Duration = Duration::from_secs(1);
/// Pause after a write for which another leader was faster. After failures the pause doubles each time.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
/// Longest pause after a failure.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Access to the registry. The owner ends when every clone is dropped.
#[derive(Clone)]
pub struct RegistryHandle {
    commands: Sender<Command>,
    changes: watch::Receiver<u64>,
    works: watch::Receiver<bool>,
}

/// Allocations to machines that waited, each at least once.
pub type Served = mpsc::UnboundedReceiver<Allocation>;

/// What a claim got, or why it got nothing.
pub type Answer = Result<Vec<Allocation>, ClaimError>;

/// The registry has no owner any more.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Stopped;

/// Work on the registry, repeated until it succeeds.
type Job = Box<dyn FnMut(&mut Owner) -> Result<(), LedgerError> + Send>;

/// What a handle asks of the owner.
enum Command {
    Claims(Claims),
    Write(Job),
    Read(Job),
}

/// Claims of one caller, and where their answers arrive.
struct Claims {
    claims: Vec<(Claim, HolderKind)>,
    answers: oneshot::Sender<Vec<Answer>>,
}

/// The thread that owns the registry.
struct Owner {
    registry: Registry<ApiLedger>,
    kinds: Kinds,
    metrics: Arc<Metrics>,
    link: Link,
}

/// The owner's end of the handles.
struct Link {
    commands: Receiver<Command>,
    /// Commands that have arrived and are not carried out yet.
    queued: VecDeque<Command>,
    served: mpsc::UnboundedSender<Allocation>,
    changes: watch::Sender<u64>,
    works: watch::Sender<bool>,
}

// === impl RegistryHandle ===

impl RegistryHandle {
    /// Starts the owner of the leases of a cluster. It lists the leases before it answers anything.
    ///
    /// # Errors
    ///
    /// The thread cannot be started.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime, as every function that uses one.
    pub fn start(client: Client, metrics: Arc<Metrics>) -> io::Result<(Self, Served)> {
        let (sender, commands) = channel();
        let (served, allocations) = mpsc::unbounded_channel();
        let (changes, changed) = watch::channel(0);
        let (works, is_working) = watch::channel(true);
        let link = Link { commands, queued: VecDeque::new(), served, changes, works };
        let runtime = Handle::current();
        thread::Builder::new().name("registry".to_owned()).spawn(move || {
            if let Some(mut owner) = Owner::open(&client, &runtime, metrics, link) {
                owner.run();
            }
        })?;
        Ok((Self { commands: sender, changes: changed, works: is_working }, allocations))
    }

    /// Allocates every address the claim requests, or none. The leases are stored before the claim is answered. A repeated
    /// claim gets the same answer. After [`ClaimError::Exhausted`] the claimant waits, and [`Served`] tells when it is served.
    ///
    /// `kind` is the kind of the claimant's object.
    ///
    /// # Errors
    ///
    /// [`Stopped`]; the inner error says why the claim is refused.
    pub async fn claim(&self, claim: Claim, kind: HolderKind) -> Result<Answer, Stopped> {
        self.claim_all(vec![(claim, kind)]).await?.pop().ok_or(Stopped)
    }

    /// Makes claims in one transaction, in their order. The answers have the order of the claims.
    ///
    /// # Errors
    ///
    /// As [`RegistryHandle::claim`].
    pub async fn claim_all(&self, claims: Vec<(Claim, HolderKind)>) -> Result<Vec<Answer>, Stopped> {
        let (answers, answered) = oneshot::channel();
        self.send(Command::Claims(Claims { claims, answers }))?;
        answered.await.map_err(|_| Stopped)
    }

    /// Releases everything that a machine holds or waits for. The machine must be gone: others may get its addresses before
    /// this returns.
    ///
    /// # Errors
    ///
    /// [`Stopped`].
    pub async fn release(&self, machine: Machine) -> Result<(), Stopped> {
        self.write(move |owner| {
            let released = owner.registry.release(&machine, now())?;
            owner.kinds.forget(&machine);
            owner.link.announce(released.served);
            Ok(())
        })
        .await
    }

    /// Removes a machine from the wait queue. The machine keeps its addresses.
    ///
    /// # Errors
    ///
    /// [`Stopped`].
    pub async fn withdraw(&self, machine: Machine) -> Result<(), Stopped> {
        self.write(move |owner| {
            owner.registry.withdraw([&machine])?;
            owner.kinds.forget(&machine);
            Ok(())
        })
        .await
    }

    /// Keeps the addresses of `keep`, and releases the claimant's other addresses of the same families. Two leaders may have
    /// served one claim; the claimant never got these other addresses.
    ///
    /// # Errors
    ///
    /// [`Stopped`].
    pub async fn keep(&self, claimant: Claimant, keep: Vec<IpAddr>) -> Result<(), Stopped> {
        self.write(move |owner| {
            let released = owner.registry.keep(&claimant, &keep, now())?;
            owner.link.announce(released.served);
            Ok(())
        })
        .await
    }

    /// Adopts what objects of one kind record. An address that does not fit is reported and is not allocated to anybody.
    ///
    /// # Errors
    ///
    /// [`Stopped`].
    pub async fn adopt(&self, records: Vec<Record>, kind: HolderKind) -> Result<Adoption, Stopped> {
        self.write(move |owner| {
            records.iter().for_each(|record| owner.kinds.note(&record.claimant.machine, kind));
            owner.registry.adopt(records.iter().cloned(), now())
        })
        .await
    }

    /// Replaces the pools, and serves waiting machines. Pools of `suspended` allocate nothing.
    ///
    /// A pool of the registry that is not among `pools` is removed. While machines hold its addresses it stays, suspended.
    /// A pool whose change is refused stays as it was, suspended. Returns the refused changes.
    ///
    /// # Errors
    ///
    /// [`Stopped`].
    pub async fn resize(
        &self,
        pools: Vec<Pool>,
        suspended: BTreeSet<String>,
    ) -> Result<Vec<(String, PoolError)>, Stopped> {
        self.write(move |owner| owner.resize(&pools, &suspended)).await
    }

    /// Reads the state of the allocator, with what others wrote.
    ///
    /// # Errors
    ///
    /// [`Stopped`].
    pub async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Allocator) -> T + Send + 'static,
    ) -> Result<T, Stopped> {
        let mut read = Some(read);
        let (job, answer) = job(move |owner| {
            let allocator = owner.registry.state()?;
            Ok(read.take().map(|read| read(allocator)))
        });
        self.send(Command::Read(job))?;
        answer.await.ok().flatten().ok_or(Stopped)
    }

    /// Changes its value after each command that may have changed the state, and once a second.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.clone()
    }

    /// `false` while the API server fails: nothing is allocated then.
    #[must_use]
    pub fn works(&self) -> watch::Receiver<bool> {
        self.works.clone()
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
        self.commands.send(command).map_err(|_| Stopped)
    }
}

/// A job, and where its result arrives.
fn job<T: Send + 'static>(
    mut work: impl FnMut(&mut Owner) -> Result<T, LedgerError> + Send + 'static,
) -> (Job, oneshot::Receiver<T>) {
    let (sender, answer) = oneshot::channel();
    let mut sender = Some(sender);
    let job = move |owner: &mut Owner| {
        let value = work(owner)?;
        if let Some(sender) = sender.take() {
            // The caller may have given up.
            let _ = sender.send(value);
        }
        Ok(())
    };
    (Box::new(job), answer)
}

// === impl Owner ===

impl Owner {
    /// Lists the leases. `None` when every handle is gone before.
    fn open(client: &Client, runtime: &Handle, metrics: Arc<Metrics>, mut link: Link) -> Option<Self> {
        let open = |_: &mut Link| {
            let ledger = ApiLedger::new(client.clone(), runtime.clone(), Arc::clone(&metrics));
            let kinds = ledger.kinds();
            Ok((Registry::open(ledger)?, kinds))
        };
        let (registry, kinds) = repeat(&mut link, |link| link, open)?;
        Some(Self { registry, kinds, metrics, link })
    }

    /// Carries out commands until every handle is gone.
    fn run(&mut self) -> Option<()> {
        let mut next_serve = Instant::now();
        loop {
            if next_serve <= Instant::now() {
                self.serve()?;
                next_serve = Instant::now() + PERIOD;
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

    /// Makes claims together with the claims that queued up behind them.
    fn claim(&mut self, Claims { claims: mut group, answers }: Claims) -> Option<()> {
        let mut callers = vec![(group.len(), answers)];
        while group.len() < GROUP
            && let Some(Claims { claims, answers }) = self.link.next_claims()
        {
            callers.push((claims.len(), answers));
            group.extend(claims);
        }
        group.iter().for_each(|(claim, kind)| self.kinds.note(&claim.machine, *kind));
        let group: Vec<Claim> = group.into_iter().map(|(claim, _)| claim).collect();
        let Claimed { answers, served } = self.repeat(|owner| owner.registry.claim_all(&group, now()))?;
        self.link.announce(served);
        let mut answers = answers.into_iter();
        for (count, caller) in callers {
            let answers: Vec<Answer> = answers.by_ref().take(count).collect();
            answers.iter().for_each(|answer| self.metrics.count_claim(answer));
            // The caller may have given up.
            let _ = caller.send(answers);
        }
        self.link.note_change();
        Some(())
    }

    /// Serves machines that waited for the end of a reuse delay, or for an address that another leader released.
    fn serve(&mut self) -> Option<()> {
        let served = self.repeat(|owner| owner.registry.serve(now()))?;
        self.link.announce(served);
        self.link.note_change();
        Some(())
    }

    fn resize(
        &mut self,
        pools: &[Pool],
        suspended: &BTreeSet<String>,
    ) -> Result<Vec<(String, PoolError)>, LedgerError> {
        let (mut pools, mut suspended) = (pools.to_vec(), suspended.clone());
        let is_gone = |known: &&Pool| !pools.iter().any(|pool| pool.name == known.name);
        let gone: Vec<Pool> = self.registry.state()?.pools().filter(is_gone).cloned().collect();
        for pool in gone {
            match self.registry.remove_pool(&pool.name, now()) {
                Ok(()) => {}
                Err(ResizeError::Ledger(error)) => return Err(error),
                Err(ResizeError::Refused(_)) => {
                    suspended.insert(pool.name.clone());
                    pools.push(pool);
                }
            }
        }
        let mut refused = Vec::new();
        loop {
            self.registry.suspend(suspended.clone());
            // Every pool that the registry has is given: so no new pool counts as a renamed one.
            match self.registry.resize(pools.clone(), &[], now()) {
                Ok(resized) => {
                    self.link.announce(resized.served);
                    return Ok(refused);
                }
                Err(ResizeError::Ledger(error)) => return Err(error),
                Err(ResizeError::Refused(error)) => {
                    let (PoolError::InUse { pool: name, .. }
                    | PoolError::Held { pool: name, .. }
                    | PoolError::Unknown(name)
                    | PoolError::NewName(name)) = error.clone();
                    pools.retain(|pool| pool.name != name);
                    pools.extend(self.registry.state()?.pool(&name).cloned());
                    suspended.insert(name.clone());
                    refused.push((name, error));
                }
            }
        }
    }

    fn repeat<T>(&mut self, work: impl FnMut(&mut Self) -> Result<T, LedgerError>) -> Option<T> {
        repeat(self, |owner| &mut owner.link, work)
    }
}

/// Repeats `work` until it succeeds. `None` when every handle is gone before.
fn repeat<S, T>(
    subject: &mut S,
    link: fn(&mut S) -> &mut Link,
    mut work: impl FnMut(&mut S) -> Result<T, LedgerError>,
) -> Option<T> {
    let mut pause = FIRST_PAUSE;
    loop {
        match work(subject) {
            Ok(value) => {
                link(subject).works.send_if_modified(|works| !std::mem::replace(works, true));
                return Some(value);
            }
            // The ledger has learnt who holds the address, so the next decision is another one.
            Err(error @ LedgerError::Held { .. }) => {
                tracing::debug!(%error, "another leader was faster");
                pause = FIRST_PAUSE;
            }
            Err(error) => {
                tracing::warn!(%error, cause = error.source().map(tracing::field::display), "the ledger failed");
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

/// The time in milliseconds since 1970.
fn now() -> u64 {
    Timestamp::now().0
}

// === impl Link ===

impl Link {
    /// The next command, or `None` at `until`.
    fn next(&mut self, until: Instant) -> Result<Option<Command>, Stopped> {
        if let Some(command) = self.queued.pop_front() {
            return Ok(Some(command));
        }
        match self.commands.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(command) => Ok(Some(command)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(Stopped),
        }
    }

    /// The next command, if it has arrived and has claims.
    fn next_claims(&mut self) -> Option<Claims> {
        self.take_arrived();
        match self.queued.pop_front()? {
            Command::Claims(claims) => Some(claims),
            other => {
                self.queued.push_front(other);
                None
            }
        }
    }

    /// Queues the commands that have arrived. `false` when every handle is gone.
    fn take_arrived(&mut self) -> bool {
        loop {
            match self.commands.try_recv() {
                Ok(command) => self.queued.push_back(command),
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Disconnected) => return false,
            }
        }
    }

    fn announce(&self, served: Vec<Allocation>) {
        for allocation in served {
            // Without a receiver nobody needs to know.
            let _ = self.served.send(allocation);
        }
    }

    fn note_change(&self) {
        self.changes.send_modify(|changes| *changes = changes.wrapping_add(1));
    }
}

// === impl Stopped ===

impl fmt::Display for Stopped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the registry has ended")
    }
}

impl Error for Stopped {}
