//! Runs passes over names: a name gets a pass when its objects may need a change. Passes of different names run at the
//! same time, but a name has at most one running pass. A pass that fails is repeated with back-off.
//!
//! A pass brings the objects of one name, a machine or a claim, to the state that they must have:
//!
//! 1. **Look**: read what the watches and the registry know about the name.
//! 2. **Decide**: a pure function returns the next step, which is one request to the API server or to the registry.
//! 3. **Request**: send the request of the step.
//! 4. **Note**: keep the response, look again, and decide again, until no step is left.
//!
//! A decision depends only on what exists now: objects, leases, and the responses in this pass. So a pass may end after
//! any request, because of a crash, a failure or a lost election, and any leader may run it again from the beginning.
//! Each step can be repeated, and can run while another leader runs: the API server rejects a second object of a name,
//! and a change of an outdated version.
//!
//! A pass is bounded: it has at most [`LONGEST_PASS`] steps. The pass of a machine has one more step for each holder of
//! an address that the pass must check, and some more steps for claims that it must end. Each request has a time-out. A pass never waits for a change: if a name must wait, its pass ends. The
//! name gets another pass when an object changes or after a pause, see [`Ended`].

pub(crate) mod opening;
pub(crate) mod provider;
mod queue;

use std::collections::BTreeSet;
use std::fmt;
use std::future::Future;
use std::net::IpAddr;
use std::time::Duration;

use futures::stream::{self, FuturesUnordered};
use futures::{Stream, StreamExt as _, future};
use glowplug::host::Timestamp;
use glowplug::host::allocator::{self, Adoption, ClaimError};
use glowplug::host::claim::Claim;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use crate::cluster::key::Key;
use crate::cluster::request;
use crate::ledger::types::Stopped;
use crate::metrics::PassMetrics;
pub(crate) use crate::passes::queue::Turn;
use crate::passes::queue::{End, Queue};
use crate::repeated::Repeated;

/// Maximum number of passes that run at the same time.
pub(crate) const PASSES: usize = 64;
/// Maximum number of steps in one pass. The pass of a machine has more steps for the holders that it must check, and for
/// the claims that it must end.
pub(crate) const LONGEST_PASS: usize = 32;
/// Pause before the next pass for a name in the wait queue of the registry. The pause is long, because the registry
/// reports each allocation.
const RETRY_QUEUED: Duration = Duration::from_secs(600);
/// Shortest time between two updates of the metric of the queue's depth while [`PASSES`] passes run.
const DEPTH_PERIOD: Duration = Duration::from_secs(1);

/// An item of a stream of names that need a pass. `None`: the stream yields no further names.
pub(crate) type Names = Option<BTreeSet<Key>>;

/// Why a pass failed.
#[derive(Debug)]
pub(crate) enum Error {
    /// A request failed.
    Request(request::Error),
    /// The registry has ended.
    Stopped,
    /// The API server has objects that this leader has not received yet, such as a lease of another leader.
    Behind,
    /// The pass needs something that is missing now, such as random numbers. The text says what is missing.
    NotReady(String),
    /// The pass still had a next step after the maximum number of steps, see [`LONGEST_PASS`].
    Endless,
}

/// The result of a successful pass.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Ended {
    /// Nothing is left to do until an object or a pool changes.
    Well,
    /// Nothing is left to do, as for [`Ended::Well`]. The name gets another pass after this pause, because no watch
    /// reports some of its objects.
    Check(Duration),
    /// The name needs another pass after this pause, or earlier if one of these addresses may be free.
    Again(Duration, Vec<IpAddr>),
    /// The name needs another pass after a pause that doubles with each such pass, because nothing reports the change for
    /// which it waits.
    Later,
    /// The name waits: it needs another pass when one of its objects changes, when a pool of its networks changes, or
    /// when one of these addresses may be free. Not every change is reported, so the name also gets a pass after a
    /// pause, which grows to 5 minutes.
    Waits(Vec<IpAddr>),
    /// The pass has stopped before this claim. The claim must be processed together with other claims.
    BeforeClaim(Claim),
}

/// The step before which a pass stops.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Until {
    Nothing,
    Claim,
}

/// Reason why the registry did not allocate or adopt addresses in a pass.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Problem {
    /// The registry rejected the claim.
    Refused(ClaimError),
    /// Recorded addresses were not adopted, or another object prevents a request. The text is the reason. The list has
    /// the recorded addresses that were not adopted.
    Mismatch(String, Vec<IpAddr>),
}

/// Runs a pass for each of `names`, up to the claim of the pass. Returns the claims in the order of the names. If the
/// pass of a name fails, the result has no claim of this name, and the name gets another pass later.
///
/// The opening of addresses does not wait for a failed pass: a pass writes objects, and the webhook of another program
/// can make every write of one namespace fail. So a pass must not be the first to read a record:
/// [`provider::Work::adopt`] reads each record, and is repeated until it succeeds.
///
/// `what` names a served object in log messages. Example: `a machine`.
pub(crate) async fn claims<F>(
    what: &'static str,
    lines: &Repeated,
    names: impl IntoIterator<Item = Key>,
    pass: impl Fn(Key) -> F,
) -> Result<Vec<Claim>, Stopped>
where
    F: Future<Output = Result<Ended, Error>>,
{
    let passes = stream::iter(names).map(|key| {
        let ended = pass(key.clone());
        async move { (key, ended.await) }
    });
    let passes: Vec<(Key, Result<Ended, Error>)> = passes.buffered(PASSES).collect().await;
    let mut claims = Vec::new();
    for (key, ended) in passes {
        match ended {
            Ok(Ended::BeforeClaim(claim)) => claims.push(claim),
            Ok(Ended::Well | Ended::Check(_) | Ended::Again(..) | Ended::Later | Ended::Waits(_)) => {}
            Err(Error::Stopped) => return Err(Stopped),
            Err(error) => {
                if let Some(hidden) = lines.note(&error.to_string(), Instant::now()) {
                    tracing::warn!(name = %key, %error, hidden, "could not prepare the claim of {what}");
                }
            }
        }
    }
    Ok(claims)
}

/// Runs a pass for each of `names` after its pause, and for each name that `wakes` yields. Returns when the registry or
/// `wakes` has ended. `turn` says which names come first.
///
/// `what` names a served object in log messages. Example: `a machine`.
pub(crate) async fn serve<F>(
    what: &'static str,
    (lines, metrics): (&Repeated, &PassMetrics),
    names: impl IntoIterator<Item = (Key, Duration)>,
    mut wakes: impl Stream<Item = Names> + Unpin,
    turn: impl Fn(&Key) -> Turn,
    pass: impl Fn(Key) -> F,
) -> Stopped
where
    F: Future<Output = Result<Ended, Error>>,
{
    let mut queue = Queue::default();
    let mut passes = FuturesUnordered::new();
    let now = Instant::now();
    let mut next_depth = now;
    let add = |queue: &mut Queue, key: Key, at: Instant| {
        let turn = turn(&key);
        queue.add(key, at, turn);
    };
    names.into_iter().for_each(|(key, pause)| add(&mut queue, key, now + pause));
    loop {
        let now = Instant::now();
        while passes.len() < PASSES
            && let Some(key) = queue.next(now)
        {
            let ended = pass(key.clone());
            passes.push(async move { (key, ended.await) });
        }
        let until = queue.next_time().filter(|_| passes.len() < PASSES);
        if passes.len() < PASSES {
            metrics.depth.set(0);
        } else if next_depth <= now {
            metrics.depth.set(i64::try_from(queue.due(now)).unwrap_or(i64::MAX));
            next_depth = now + DEPTH_PERIOD;
        }
        let wait = async {
            match until {
                Some(time) => sleep_until(time).await,
                None => future::pending().await,
            }
        };
        tokio::select! {
            names = wakes.next() => match names.flatten() {
                Some(names) => {
                    let now = Instant::now();
                    names.into_iter().for_each(|key| add(&mut queue, key, now));
                }
                None => return Stopped,
            },
            Some((key, ended)) = passes.next() => {
                let now = Instant::now();
                let (end, counter) = match &ended {
                    Ok(Ended::Later) => (End::Later, &metrics.waits),
                    Ok(Ended::Waits(_)) => (End::Waits, &metrics.waits),
                    Ok(Ended::Again(..)) => (End::Well, &metrics.waits),
                    Ok(Ended::Well | Ended::Check(_) | Ended::BeforeClaim(_)) => (End::Well, &metrics.done),
                    Err(_) => (End::Failed, &metrics.failed),
                };
                counter.inc();
                queue.end(&key, end, now, turn(&key));
                match ended {
                    Ok(Ended::Again(pause, _) | Ended::Check(pause)) => add(&mut queue, key, now + pause),
                    Ok(Ended::Well | Ended::Later | Ended::Waits(_) | Ended::BeforeClaim(..)) => {}
                    Err(Error::Stopped) => return Stopped,
                    Err(error) => {
                        if let Some(hidden) = lines.note(&error.to_string(), now) {
                            tracing::warn!(name = %key, %error, hidden, "could not serve {what}");
                        }
                    }
                }
            }
            () = wait => {}
        }
    }
}

/// Turns each message into the names that need a pass.
pub(crate) fn each_message<'a, T: 'a>(
    messages: &'a mut mpsc::UnboundedReceiver<T>,
    names: impl Fn(T) -> BTreeSet<Key> + 'a,
) -> impl Stream<Item = Names> + 'a {
    let messages = stream::unfold((messages, names), |(messages, names)| async move {
        let message = messages.recv().await?;
        Some((Some(names(message)), (messages, names)))
    });
    messages.chain(stream::iter([None]))
}

// === impl Ended ===

impl Ended {
    /// Returns the result of a pass for a name that still waits: in the wait queue of the registry, because of
    /// `problem`, or for another reason.
    pub(crate) fn waiting(is_queued: bool, problem: Option<&Problem>, now: Timestamp) -> Self {
        match problem {
            _ if is_queued => Self::Again(RETRY_QUEUED, Vec::new()),
            // The address may be free before the delay ends, because a person may delete the lease.
            Some(problem @ Problem::Refused(ClaimError::ReuseDelay { until, .. })) => {
                let pause = Duration::try_from(until.duration_since(now)).unwrap_or_default();
                Self::Again(pause, problem.addresses())
            }
            problem => Self::Waits(problem.map(Problem::addresses).unwrap_or_default()),
        }
    }
}

// === impl Problem ===

impl Problem {
    /// Returns why claimants do not hold all addresses of their records after an adoption. `unreadable` has the
    /// addresses whose leases cannot be read, each with the reason. `None`: the claimants hold all these addresses.
    pub(crate) fn of_adoption(unreadable: &[(IpAddr, String)], adoption: &Adoption) -> Option<Self> {
        if unreadable.is_empty()
            && let Some(first) = adoption.mismatches.first()
            && let allocator::Problem::NotRecorded(error) = &first.problem
        {
            return Some(Self::Refused(error.clone()));
        }
        let mismatches = adoption.mismatches.iter().map(|mismatch| (mismatch.address, mismatch.to_string()));
        let (addresses, reasons): (Vec<IpAddr>, Vec<String>) = unreadable.iter().cloned().chain(mismatches).unzip();
        Some(Self::Mismatch(reasons.into_iter().next()?, addresses))
    }

    /// Returns the reason why recorded addresses were not adopted. `None`: the problem is about a claim.
    pub(crate) fn of_record(&self) -> Option<String> {
        let is_of_record = matches!(self, Self::Mismatch(..) | Self::Refused(ClaimError::NotRecorded { .. }));
        is_of_record.then(|| self.to_string())
    }

    /// Whether the problem is about a record, and an address of this record is not held yet. `held` has the held
    /// addresses. Not every change that resolves such a problem is reported.
    pub(crate) fn lacks_record(&self, held: impl IntoIterator<Item = IpAddr>) -> bool {
        let held: BTreeSet<IpAddr> = held.into_iter().collect();
        let addresses = self.addresses();
        self.of_record().is_some() && (addresses.is_empty() || addresses.iter().any(|address| !held.contains(address)))
    }

    /// Returns the addresses that the name needs and that are not available.
    fn addresses(&self) -> Vec<IpAddr> {
        match self {
            Self::Mismatch(_, addresses) => addresses.clone(),
            Self::Refused(
                ClaimError::Taken { named, .. }
                | ClaimError::Reserved { named, .. }
                | ClaimError::ReuseDelay { named, .. },
            ) => vec![*named],
            Self::Refused(_) => Vec::new(),
        }
    }

    /// Whether the claim was rejected because the addresses that it can get are not open yet. They are opened soon, so no
    /// status and no event shows this problem, and the claim keeps its place in the wait queue.
    pub(crate) fn is_of_opening(&self) -> bool {
        matches!(self, Self::Refused(ClaimError::Closed(_)))
    }

    /// Whether the claim was rejected because of the state of its pool.
    pub(crate) fn is_of_pool(&self) -> bool {
        matches!(self, Self::Refused(ClaimError::UnknownPool(_) | ClaimError::Suspended(_)))
    }
}

impl Problem {
    /// Returns the message for a claim. A claim has no interface, so the message names no interface.
    pub(crate) fn of_claim(&self) -> String {
        match self {
            Self::Refused(ClaimError::Exhausted { pool, family, overflow, .. }) => {
                let pools = [(pool, family)].into_iter().chain(overflow.iter().map(|(pool, family)| (pool, family)));
                let lines = pools.map(|(pool, family)| format!("pool {pool} has no free {family} address"));
                lines.collect::<Vec<_>>().join("; ")
            }
            Self::Refused(
                ClaimError::Twice { interface, .. }
                | ClaimError::OtherPool { interface, .. }
                | ClaimError::OtherNetwork { interface, .. }
                | ClaimError::Kept { interface, .. }
                | ClaimError::OtherAddress { interface, .. },
            ) => {
                let text = self.to_string();
                text.strip_prefix(&format!("{interface}: ")).unwrap_or(&text).to_owned()
            }
            other => other.to_string(),
        }
    }

    /// Returns the message for an object that requests an address, or to which a pool pre-allocates an address. `at` is
    /// the member that names this address.
    pub(crate) fn of_request(&self, at: &str) -> String {
        match self {
            Self::Refused(
                ClaimError::NotInPool { .. }
                | ClaimError::Reserved { .. }
                | ClaimError::Taken { .. }
                | ClaimError::ReuseDelay { .. },
            ) => format!("{at}: {self}, expected a free address of the pool"),
            other => other.of_claim(),
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(error) => error.fmt(f),
            Self::Mismatch(message, _) => f.write_str(message),
        }
    }
}

// === impl Error ===

impl From<request::Error> for Error {
    fn from(error: request::Error) -> Self {
        Self::Request(error)
    }
}

impl From<Stopped> for Error {
    fn from(_: Stopped) -> Self {
        Self::Stopped
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Request(error) => error.fmt(f),
            Self::Stopped => Stopped.fmt(f),
            Self::Behind => f.write_str("the API server has objects that this leader has not received yet"),
            Self::NotReady(reason) => f.write_str(reason),
            Self::Endless => f.write_str("the pass has not ended after its maximum number of steps, and is repeated"),
        }
    }
}
