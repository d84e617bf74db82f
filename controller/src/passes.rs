//! Runs passes over names: a name gets a pass when its objects may need a change. Passes of different names run at the
//! same time, but a name has at most one running pass. A pass that fails is repeated with back-off.
//!
//! A pass brings the objects of one name, a machine or a claim, to the state that they must have:
//!
//! 1. **Look**: read what the watches and the registry know about the name.
//! 2. **Decide**: a pure function returns the next step, which is one request to the API server or to the registry.
//! 3. **Request**: send it.
//! 4. **Note**: keep the response, look again, and decide again, until no step is left.
//!
//! A decision depends only on what exists now: objects, leases, and the responses in this pass. So a pass may end after
//! any request, because of a crash, a failure or a lost election, and any leader may run it again from the beginning. Each
//! step is safe to repeat and safe beside another leader: the API server rejects a second object of a name, and a change of
//! an outdated version.
//!
//! A pass is bounded: it has at most [`LONGEST_PASS`] steps, and one more for each holder of an address that it must check.
//! Each request has a time-out. A pass never waits for a change: a name that must wait ends its pass, and gets the next
//! one when an object changes or after a pause, see [`Ended`].

pub(crate) mod opening;
pub(crate) mod provider;
mod queue;

use std::collections::BTreeSet;
use std::fmt;
use std::future::Future;
use std::time::Duration;

use futures::stream::{self, FuturesUnordered};
use futures::{Stream, StreamExt as _, future};
use glowplug::host::allocator::ClaimError;
use glowplug::host::claim::Claim;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until};

use crate::cluster::key::Key;
use crate::cluster::repeated::Repeated;
use crate::cluster::request::{self, PAUSE};
use crate::ledger::types::Stopped;
use crate::passes::queue::{End, Queue};

/// Maximum number of passes that run at the same time.
pub(crate) const PASSES: usize = 64;
/// Maximum number of requests in one pass. No correct pass needs more.
pub(crate) const LONGEST_PASS: usize = 32;
/// Pause before the next attempt for an address that is requested or kept for a name, and is not available.
pub(crate) const ADDRESS_PAUSE: Duration = Duration::from_secs(2);
/// Pause before the next pass for a name that still waits. Not everything that a name waits for causes a pass: a corrected
/// pool, or another name that gives up an address.
const RETRY: Duration = Duration::from_secs(10);
/// The same for a name in the wait queue of the registry, which reports allocations.
const RETRY_QUEUED: Duration = Duration::from_secs(600);

/// Names that need a pass. `None`: the stream will yield no further names.
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
    /// The registry rejects a claim because of the state of its pool, which may change. The text is the reason.
    NotReady(String),
    /// The pass still had a next request after [`LONGEST_PASS`] requests.
    Endless,
}

/// The result of a successful pass.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Ended {
    /// Nothing is left to do until an object or a pool changes.
    Well,
    /// The name needs another pass after this pause.
    Again(Duration),
    /// The name needs another pass after a pause that doubles with each such pass, because nothing reports the change for
    /// which it waits.
    Later,
    /// The next step is this claim. It must be processed together with other claims.
    BeforeClaim(Claim),
}

/// The step before which a pass stops.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Until {
    Nothing,
    Claim,
}

/// Why the registry did not allocate or adopt in a pass.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Problem {
    /// The registry rejected the claim.
    Refused(ClaimError),
    /// The registry did not adopt the recorded addresses. The text is the reason.
    Mismatch(String),
}

/// Runs `start` until it succeeds.
///
/// `what` is the noun for the served objects in log messages. Example: `machine`.
pub(crate) async fn start<F>(what: &'static str, start: impl Fn() -> F) -> Result<(), Stopped>
where
    F: Future<Output = Result<(), Error>>,
{
    loop {
        match start().await {
            Ok(()) => return Ok(()),
            Err(Error::Stopped) => return Err(Stopped),
            Err(error) => tracing::warn!(%error, "could not adopt the records of every {what}"),
        }
        sleep(PAUSE).await;
    }
}

/// Runs a pass for each of `names` until its claim. Returns the claims in the order of the names. A name whose pass
/// fails has no claim here; it gets another pass later.
///
/// `what` is the noun for the served objects in log messages. Example: `machine`.
pub(crate) async fn claims<F>(
    what: &'static str,
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
    let (mut claims, mut lines) = (Vec::new(), Repeated::default());
    for (key, ended) in passes {
        match ended {
            Ok(Ended::BeforeClaim(claim)) => claims.push(claim),
            Ok(Ended::Well | Ended::Again(_) | Ended::Later) => {}
            Err(Error::Stopped) => return Err(Stopped),
            Err(error) => {
                if let Some(hidden) = lines.note(&error.to_string(), Instant::now()) {
                    tracing::warn!(name = %key, %error, hidden, "could not prepare the claim of a {what}");
                }
            }
        }
    }
    Ok(claims)
}

/// Runs a pass for each of `names` after its pause, and for each name that `wakes` yields. Returns when the registry or
/// `wakes` has ended.
///
/// `what` is the noun for the served objects in log messages. Example: `machine`.
pub(crate) async fn serve<F>(
    what: &'static str,
    names: impl IntoIterator<Item = (Key, Duration)>,
    mut wakes: impl Stream<Item = Names> + Unpin,
    pass: impl Fn(Key) -> F,
) -> Stopped
where
    F: Future<Output = Result<Ended, Error>>,
{
    let (mut queue, mut lines) = (Queue::default(), Repeated::default());
    let mut passes = FuturesUnordered::new();
    let now = Instant::now();
    names.into_iter().for_each(|(key, pause)| queue.add(key, now + pause));
    loop {
        let now = Instant::now();
        while passes.len() < PASSES
            && let Some(key) = queue.next(now)
        {
            let ended = pass(key.clone());
            passes.push(async move { (key, ended.await) });
        }
        let until = queue.next_time().filter(|_| passes.len() < PASSES);
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
                    names.into_iter().for_each(|key| queue.add(key, now));
                }
                None => return Stopped,
            },
            Some((key, ended)) = passes.next() => {
                let now = Instant::now();
                let end = match &ended {
                    Ok(Ended::Later) => End::Later,
                    Ok(_) => End::Well,
                    Err(_) => End::Failed,
                };
                queue.end(&key, end, now);
                match ended {
                    Ok(Ended::Again(pause)) => queue.add(key, now + pause),
                    Ok(Ended::Well | Ended::Later | Ended::BeforeClaim(..)) => {}
                    Err(Error::Stopped) => return Stopped,
                    Err(error) => {
                        if let Some(hidden) = lines.note(&error.to_string(), now) {
                            tracing::warn!(name = %key, %error, hidden, "could not serve a {what}");
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
    /// The result of a pass for a name that still waits, in the queue of the registry or for another reason.
    pub(crate) fn waiting(is_queued: bool) -> Self {
        Self::Again(if is_queued { RETRY_QUEUED } else { RETRY })
    }
}

// === impl Problem ===

impl Problem {
    /// Whether the claim was rejected because of the state of its pool.
    pub(crate) fn is_of_pool(&self) -> bool {
        matches!(self, Self::Refused(ClaimError::UnknownPool(_) | ClaimError::Suspended(_)))
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(error) => error.fmt(f),
            Self::Mismatch(message) => f.write_str(message),
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
            Self::Endless => write!(f, "{LONGEST_PASS} requests did not come to an end"),
        }
    }
}
