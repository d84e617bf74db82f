//! The thread that owns the registry: it runs the commands of the handles one after the other, and repeats each command
//! until the command succeeds.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::error::Error;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::thread;
use std::time::{Duration, Instant};

use glowplug::host::allocator::PoolError;
use glowplug::host::claim::{Allocation, Claim, HolderKind, Machine};
use glowplug::host::ledger::LedgerError;
use glowplug::host::pool::Pool;
use glowplug::host::registry::{Claimed, Registry, ResizeError};
use kube::Client;
use tokio::runtime::Handle;
use tokio::sync::{broadcast, mpsc, oneshot, watch};

use crate::cluster::clock::Clock;
use crate::ledger::leases::{ApiLedger, Learned};
use crate::ledger::types::{Answer, MacLeases, Progress, RefusedClaimants, Stopped, UnreadableLeases};
use crate::metrics::Metrics;
use crate::repeated::Repeated;

/// Size at which a group of claims gets no further claims. The claims of a group are processed together. The claims of
/// one caller are never divided, so a group may be larger.
const GROUP: usize = 64;
/// Time between two checks for ended reuse delays, and for leases that another client changed.
const PERIOD: Duration = Duration::from_secs(1);
/// Time between two searches for released leases that are not needed any more. Each failure doubles the time.
const FORGETTING: Duration = Duration::from_secs(10);
/// Longest time between two searches after a failure.
const LONGEST_FORGETTING: Duration = Duration::from_secs(600);
/// Maximum number of failed writes of one command that do not count as failures of the ledger, because another leader
/// was faster. Each further failed write of the command counts.
const DEFEATS: usize = 1000;
/// Pause after a write that failed because another leader was faster. Each failure of the ledger doubles the pause.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
/// Longest pause after a failure.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// A job for the registry. The owner repeats the job until it succeeds.
pub(super) type Job = Box<dyn FnMut(&mut Owner) -> Result<(), LedgerError> + Send>;

/// Commands for the owner.
pub(super) enum Command {
    Claims(Claims),
    Write(Job),
    Read(Job),
}

/// Claims of one caller, and the channel for their results.
pub(super) struct Claims {
    pub(super) claims: Vec<Claim>,
    pub(super) answers: oneshot::Sender<Vec<Answer>>,
}

/// The sticky pools. In a sticky pool, the newest released lease of each claim name is kept, so that a later claim of
/// the same name can get the same address. The newest released lease of each machine name is kept in every pool.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sticky {
    /// The pools that this program manages, by name. The value is `true` for a sticky pool.
    pub pools: BTreeMap<String, bool>,
    /// Whether other programs may manage other pools. If so, the leases of these pools are not deleted.
    pub has_others: bool,
}

/// The thread that owns the registry.
pub(super) struct Owner {
    pub(super) registry: Registry<ApiLedger>,
    /// The time of each call of the registry.
    pub(super) clock: Clock,
    /// Objects that are gone, and that hold addresses because the API server has refused their release. An object that
    /// claims, holds or records an address again is not gone, so it is removed from this set.
    pub(super) unreleased: BTreeSet<Machine>,
    /// The pools whose last change was rejected. They stay suspended until a change is accepted. Otherwise, each
    /// further attempt would end and begin their suspension, and their addresses would count as a growth each time.
    pub(super) rejected: BTreeSet<String>,
    /// The sticky pools. `None`: the pools are not known yet, so no released lease is deleted.
    pub(super) sticky: Option<Sticky>,
    pub(super) learned: Learned,
    pub(super) metrics: Arc<Metrics>,
    pub(super) link: Link,
}

/// The receiving side of the handles.
pub(super) struct Link {
    pub(super) commands: Receiver<Command>,
    /// Commands that have arrived and have not run yet.
    pub(super) queued: VecDeque<Command>,
    pub(super) served: Announcer,
    pub(super) changes: watch::Sender<u64>,
    pub(super) works: watch::Sender<bool>,
    pub(super) progress: Progress,
    pub(super) refused: RefusedClaimants,
    pub(super) unreadable: UnreadableLeases,
    pub(super) freed: broadcast::Sender<IpAddr>,
    /// Limits the log lines about repeated failures.
    pub(super) lines: Repeated,
}

/// Sends objects with new addresses to the receivers of [`Served`].
pub(super) struct Announcer {
    pub(super) claims: mpsc::UnboundedSender<Machine>,
    pub(super) ipam_claims: mpsc::UnboundedSender<Machine>,
    pub(super) machines: mpsc::UnboundedSender<Machine>,
}

// === impl Sticky ===

impl Sticky {
    /// Returns whether a pool is sticky. `None`: another program may manage the pool.
    fn of(&self, pool: &str) -> Option<bool> {
        self.pools.get(pool).copied().or((!self.has_others).then_some(false))
    }
}

// === impl Owner ===

impl Owner {
    /// Opens the registry, which lists the leases. `None`: every handle was dropped before.
    pub(super) fn open(
        client: &Client,
        runtime: &Handle,
        metrics: Arc<Metrics>,
        mac_leases: &MacLeases,
        mut link: Link,
        clock: Clock,
    ) -> Option<Self> {
        let open = |link: &mut Link| {
            let ledger = ApiLedger::new(client.clone(), runtime.clone(), Arc::clone(&metrics), mac_leases.clone());
            let ledger = ledger.with_progress(link.progress.clone()).with_freed(link.freed.clone());
            let ledger = ledger.with_unreadable(link.unreadable.clone());
            let learned = ledger.learned();
            Ok((Registry::open(ledger)?, learned))
        };
        let (registry, learned) = repeat(&mut link, |link| link, open)?;
        let (unreleased, rejected) = (BTreeSet::new(), BTreeSet::new());
        Some(Self { registry, clock, unreleased, rejected, sticky: None, learned, metrics, link })
    }

    /// Runs commands until every handle is dropped.
    pub(super) fn run(&mut self) -> Option<()> {
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
                    // There may be more leases to delete.
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
            self.repeat(|owner| owner.registry.claim_all(&group, owner.clock.now()))?;
        self.announce(served);
        group.iter().zip(&answers).for_each(|(claim, answer)| self.link.refused.note_answer(&claim.machine, answer));
        let mut answers = answers.into_iter();
        for (count, caller) in callers {
            let answers: Vec<Answer> = answers.by_ref().take(count).collect();
            answers.iter().for_each(|answer| self.metrics.count_claim(answer.as_ref().err()));
            // The send fails if the caller no longer waits.
            let _ = caller.send(answers);
        }
        self.link.note_change();
        Some(())
    }

    /// Allocates addresses to waiting machines after the end of a reuse delay, or after a release by another leader.
    /// Tries again each release that the API server has refused. Also announces the holders in leases of another
    /// leader, because such a lease may arrive after its holder is gone.
    fn serve(&mut self) -> Option<()> {
        let served = self.repeat(|owner| owner.registry.serve(owner.clock.now()))?;
        self.announce(served);
        if !self.unreleased.is_empty() {
            let served = self.repeat(Self::release_again)?;
            self.announce(served);
        }
        self.learned.take().into_iter().for_each(|machine| self.tell(machine));
        self.link.note_change();
        Some(())
    }

    /// Deletes released leases that are not needed any more, and returns their number. `None`: the deletion failed. The
    /// failure stops no other work, and a later search finds the leases again.
    fn forget(&mut self) -> Option<usize> {
        let Some(sticky) = &self.sticky else { return Some(0) };
        match self.registry.forget(|pool| sticky.of(pool), self.clock.now()) {
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

    /// Tries again to release the addresses whose release the API server has refused. Sends no request before the pause
    /// after the refusal has ended.
    fn release_again(&mut self) -> Result<Vec<Allocation>, LedgerError> {
        let served = self.registry.release_all(&self.unreleased, self.clock.now())?.served;
        let state = self.registry.state()?;
        self.unreleased.retain(|machine| state.leases_of(machine).next().is_some());
        Ok(served)
    }

    pub(super) fn resize(
        &mut self,
        pools: &[Pool],
        suspended: &BTreeSet<String>,
    ) -> Result<Vec<(String, PoolError)>, LedgerError> {
        let (mut pools, mut suspended) = (pools.to_vec(), suspended.clone());
        let is_gone = |known: &&Pool| !pools.iter().any(|pool| pool.name() == known.name());
        let gone: Vec<Pool> = self.registry.state()?.pools().filter(is_gone).cloned().collect();
        for pool in gone {
            match self.registry.remove_pool(pool.name(), self.clock.now()) {
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
            // Every pool of the registry is passed, so that the registry does not mistake a new pool for a renamed
            // pool.
            match self.registry.resize(pools.clone(), &[], self.clock.now()) {
                Ok(resized) => {
                    self.announce(resized.served);
                    self.rejected = refused.iter().map(|(name, _): &(String, PoolError)| name.clone()).collect();
                    self.registry.suspend(&suspended | &self.rejected);
                    let served = self.registry.serve(self.clock.now())?;
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

    pub(super) fn announce(&self, served: Vec<Allocation>) {
        served.into_iter().for_each(|allocation| self.tell(allocation.claimant.machine));
    }

    fn tell(&self, machine: Machine) {
        let Announcer { claims, ipam_claims, machines } = &self.link.served;
        let receiver = match machine.kind {
            HolderKind::IpAddressClaim => claims,
            HolderKind::IpamClaim => ipam_claims,
            HolderKind::KubevirtMachine | HolderKind::VirtualMachine => machines,
            // Services and Clusters never wait for an address.
            HolderKind::Service | HolderKind::Cluster => return,
        };
        // An error means that there is no receiver, which is allowed.
        let _ = receiver.send(machine);
    }

    fn repeat<T>(&mut self, work: impl FnMut(&mut Self) -> Result<T, LedgerError>) -> Option<T> {
        repeat(self, |owner| &mut owner.link, work)
    }
}

/// Repeats `work` until it succeeds. `None`: every handle was dropped before.
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
            // The ledger has now read the current holder of the address, so the next attempt makes another decision.
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
    /// Returns the next command. `None`: no command has arrived before `until`.
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

    /// Returns the next command if it has arrived and is a command for claims.
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

    /// Queues the commands that have arrived. `false`: every handle is dropped.
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
