//! The loop of each part of a leader that serves objects:
//!
//! 1. Discover the kinds, and list and watch their objects.
//! 2. Wait for the pools, and adopt the records.
//! 3. Wait until every part has adopted its records, and adopt the records that the watches have reported meanwhile.
//! 4. Process the outstanding claims in the order of their creation.
//! 5. Run passes until the API server serves other kinds or the registry ends.
//!
//! Whenever pools have new addresses, the part adopts the records that its watches know before it uses these pools, in
//! the same two phases: see [`Opening`]. Meanwhile, its passes go on with the earlier pools.
//!
//! The part notes each change that its watches report, also while it adopts records and waits for other parts.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::future::Future;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use futures::stream::BoxStream;
use futures::{Stream, StreamExt as _, future, stream};
use glowplug::host::claim::{Claim, Machine};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{broadcast, mpsc, watch};
use tokio::time::{Instant, sleep, sleep_until};

use crate::cluster::key::Key;
use crate::cluster::request::{self, PAUSES};
use crate::cluster::watch::Change;
use crate::ledger::registry::RegistryHandle;
use crate::ledger::types::{Holders, Stopped};
use crate::metrics::PassMetrics;
use crate::passes::opening::Opening;
use crate::passes::{Ended, Error, Names, Turn, Until, claims, each_message, serve};
use crate::pools::changed::changed_networks;
use crate::pools::selection::OpenPools;
use crate::repeated::Repeated;

/// Shortest time from the arrival of pools with new addresses to the second phase of their growth, see [`Opening`]. The
/// watches of several kinds have no common order: an object that was written before its pool may arrive after the pool.
/// The pause also follows a start that takes longer, because the pools may be newer than the lists of objects.
const SETTLE: Duration = Duration::from_millis(250);

/// A part of a leader, which serves the objects of some kinds.
pub(crate) struct Part<'p> {
    /// Name of the part in [`Opening`].
    pub(crate) name: &'static str,
    /// Noun for the kinds in log messages. Example: `kinds of KubeVirt`.
    pub(crate) kinds: &'static str,
    /// Noun for a served object in log messages. Example: `a machine`.
    pub(crate) noun: &'static str,
    pub(crate) registry: &'p RegistryHandle,
    pub(crate) opening: &'p Opening,
    pub(crate) metrics: PassMetrics,
    /// Limits the log lines about repeated failures.
    pub(crate) lines: Repeated,
}

/// Names that wait, each with the addresses that the name needs and that are not available.
#[derive(Debug, Default)]
struct Waits(Mutex<BTreeMap<Key, Vec<IpAddr>>>);

/// What a part does with its objects while the API server serves the same kinds. In the methods, a name is the name of
/// an object that may need a pass.
pub(crate) trait Work {
    type Kind: Copy + 'static;

    /// Watches each kind.
    fn watches(&self) -> Vec<BoxStream<'static, (Self::Kind, Change)>>;

    /// Updates the index. Returns the names that may need a pass.
    fn note_change(&self, kind: Self::Kind, change: Change) -> BTreeSet<Key>;

    /// Stores the pools. Returns the names that may need a pass.
    fn set_pools(&self, pools: OpenPools) -> BTreeSet<Key>;

    /// Whether a change of the pools of these networks may help a waiting name.
    fn is_on(&self, _: &Key, _: &BTreeSet<String>) -> bool {
        true
    }

    /// Notes that an object holds addresses. Returns the names that may need a pass.
    fn note_holder(&self, holder: &Machine) -> BTreeSet<Key>;

    /// Makes the registry adopt the addresses of these pools that a known object records and that have no lease. The
    /// part may still use earlier pools.
    async fn adopt(&self, pools: &OpenPools) -> Result<(), Error>;

    /// Does the same as [`Work::adopt`] for the records that watches and passes have found since the last successful
    /// call of that function.
    async fn adopt_changes(&self, pools: &OpenPools) -> Result<(), Error>;

    /// Returns the names with an outstanding claim. Names of older objects come first.
    fn claimants(&self, holders: &BTreeSet<Machine>) -> Vec<Key>;

    /// Returns the names that get a pass after the start, each with the pause before this pass. `before` has the
    /// holders from before the start, `holders` has the holders now.
    fn names(&self, before: &BTreeSet<Machine>, holders: &BTreeSet<Machine>) -> Vec<(Key, Duration)>;

    /// Returns the turn of a name: whether its pass comes before the passes of other names.
    fn turn(&self, _: &Key) -> Turn {
        Turn::First
    }

    /// Runs the pass of a name: makes the requests that the name needs. `until` is the step before which the pass
    /// stops.
    async fn pass(&self, key: Key, until: Until) -> Result<Ended, Error>;
}

/// Runs a part until the future is dropped. Calls `is_ready` after the claims of the objects that existed at the start
/// are processed.
///
/// - `pools` sends the pools after each change, as soon as the registry has them.
/// - `served` sends the holders with new addresses.
/// - `discover` asks which kinds the API server serves. `None`: the part has nothing to do.
/// - `work` gets these kinds, and a sender for names that need a pass because the pass of another name has changed
///   their state.
///
/// # Errors
///
/// [`Stopped`]: the registry has ended.
pub(crate) async fn run<K, F, W>(
    part: Part<'_>,
    mut pools: watch::Receiver<Option<OpenPools>>,
    mut served: Holders,
    discover: impl Fn() -> F,
    work: impl Fn(K, mpsc::UnboundedSender<Key>) -> W,
    is_ready: impl Fn(),
) -> Result<Infallible, Stopped>
where
    K: Clone + PartialEq,
    F: Future<Output = Result<Option<K>, request::Error>>,
    W: Work,
{
    loop {
        part.opening.note_listing(part.name, part.kinds);
        let found = request::discover(part.kinds, &discover).await;
        let others = request::until_other(part.kinds, &discover, &found);
        let Some(kinds) = found.clone() else {
            tokio::select! {
                result = adopt_nothing(&part, &mut pools, &is_ready) => return result,
                () = others => continue,
            }
        };
        let (names, mut of_others) = mpsc::unbounded_channel();
        let work = work(kinds, names);
        tokio::select! {
            result = run_kinds(&part, &work, &mut pools, (&mut served, &mut of_others), &is_ready) => return result,
            () = others => {}
        }
    }
}

/// Lets each growth open without adopted records, while the API server serves none of the kinds of the part.
async fn adopt_nothing(
    part: &Part<'_>,
    pools: &mut watch::Receiver<Option<OpenPools>>,
    is_ready: impl Fn(),
) -> Result<Infallible, Stopped> {
    loop {
        let growth = first(pools).await?.growth;
        part.opening.adopted(part.name, growth, Vec::new(), || future::ready(Ok::<_, Stopped>(()))).await?;
        is_ready();
        pools.changed().await.map_err(|_| Stopped)?;
    }
}

/// Waits until the registry has the pools, and returns the pools.
async fn first(pools: &mut watch::Receiver<Option<OpenPools>>) -> Result<OpenPools, Stopped> {
    let pools = pools.wait_for(Option::is_some).await.map_err(|_| Stopped)?;
    pools.clone().ok_or(Stopped)
}

/// Serves the objects of the discovered kinds. The caller stops it when the API server serves other kinds.
async fn run_kinds<W: Work>(
    part: &Part<'_>,
    work: &W,
    pools: &mut watch::Receiver<Option<OpenPools>>,
    (served, of_others): (&mut Holders, &mut mpsc::UnboundedReceiver<Key>),
    is_ready: impl Fn(),
) -> Result<Infallible, Stopped> {
    let (waits, freed, began) = (Waits::default(), part.registry.freed(), Instant::now());
    let watches = work.watches();
    let unlisted = (0..watches.len()).collect();
    let numbered = |(number, watch): (usize, BoxStream<'static, (W::Kind, Change)>)| {
        watch.map(move |(kind, change)| (number, kind, change)).boxed()
    };
    let mut changes = stream::select_all(watches.into_iter().enumerate().map(numbered));
    until_listed(&mut changes, unlisted, |kind, change| drop(work.note_change(kind, change))).await?;
    let note = |kind, change| {
        let names = work.note_change(kind, change);
        part.registry.note_changes(&names);
        names
    };
    let begin = async {
        // The registry cannot attribute a record to a pool that it does not have yet, so the part waits for the pools.
        let first = first(pools).await?;
        work.set_pools(first.clone());
        let now = Instant::now();
        let settled = if now < began + SETTLE { now } else { now + SETTLE };
        let before = part.registry.holders().await?;
        start(part, || open(part, work, &first, settled)).await?;
        Ok((first, before))
    };
    let ((first, before), changed) = noting(&mut changes, note, begin).await?;
    is_ready();
    let mut names = work.names(&before, &part.registry.holders().await?);
    names.extend(changed.into_iter().map(|key| (key, Duration::ZERO)));
    let changes = changes.map(|(_, kind, change)| -> Names { Some(note(kind, change)) });
    let pools = each_pools(part, work, pools, first, &waits);
    let served = each_message(served, |holder| work.note_holder(&holder));
    let of_others = each_message(of_others, |key| [key].into());
    let messages = stream::select(stream::select(served, of_others), each_freed(freed, &waits));
    let wakes = stream::select(changes.chain(stream::iter([None])), stream::select(pools, messages));
    let pass = async |key: Key| {
        let ended = work.pass(key.clone(), Until::Nothing).await;
        waits.note(key, &ended);
        ended
    };
    Err(serve(part.noun, (&part.lines, &part.metrics), names, Box::pin(wakes), |key| work.turn(key), pass).await)
}

/// Notes changes until each watch of `unlisted` has listed its objects, because every record must be known when the
/// first addresses are allocated. Each watch counts once: one watch may list its objects twice before another watch has
/// listed its objects.
async fn until_listed<K>(
    changes: &mut (impl Stream<Item = (usize, K, Change)> + Unpin),
    mut unlisted: BTreeSet<usize>,
    note: impl Fn(K, Change),
) -> Result<(), Stopped> {
    while !unlisted.is_empty() {
        let (number, kind, change) = changes.next().await.ok_or(Stopped)?;
        if matches!(change, Change::Listed) {
            unlisted.remove(&number);
        }
        note(kind, change);
    }
    Ok(())
}

/// Runs `work` to its end, and notes each change that arrives meanwhile. Returns the result, and the names that `note`
/// has returned.
async fn noting<K, T>(
    changes: &mut (impl Stream<Item = (usize, K, Change)> + Unpin),
    note: impl Fn(K, Change) -> BTreeSet<Key>,
    work: impl Future<Output = Result<T, Stopped>>,
) -> Result<(T, BTreeSet<Key>), Stopped> {
    let (mut work, mut names) = (pin!(work), BTreeSet::new());
    loop {
        tokio::select! {
            result = &mut work => return Ok((result?, names)),
            change = changes.next() => {
                let (_, kind, change) = change.ok_or(Stopped)?;
                names.extend(note(kind, change));
            }
        }
    }
}

/// Synchronizes the registry with the cluster: adopts every record, and processes the outstanding claims in the order
/// of their creation. Addresses of deleted objects are released later, because each release needs its own requests.
async fn open<W: Work>(part: &Part<'_>, work: &W, pools: &OpenPools, settled: Instant) -> Result<(), Error> {
    work.adopt(pools).await?;
    let names = work.claimants(&part.registry.holders().await?);
    let claims = claims(part.noun, &part.lines, names, |key| work.pass(key, Until::Claim)).await?;
    adopted(part, work, pools, claims, settled).await
}

/// Adopts the records of a growth after the start.
async fn grow<W: Work>(part: &Part<'_>, work: &W, pools: &OpenPools, settled: Instant) -> Result<(), Error> {
    work.adopt(pools).await?;
    adopted(part, work, pools, Vec::new(), settled).await
}

/// Reports the first phase of a growth, and waits until its addresses are open. The second phase begins at `settled` or
/// later. It also adopts the records that the passes of the part have found meanwhile.
async fn adopted<W: Work>(
    part: &Part<'_>,
    work: &W,
    pools: &OpenPools,
    claims: Vec<Claim>,
    settled: Instant,
) -> Result<(), Error> {
    let adopt_changes = || async {
        sleep_until(settled).await;
        work.adopt_changes(pools).await
    };
    part.opening.adopted(part.name, pools.growth, claims, adopt_changes).await
}

/// Runs `start` until it succeeds, with a pause after each failure.
async fn start<F>(part: &Part<'_>, start: impl Fn() -> F) -> Result<(), Stopped>
where
    F: Future<Output = Result<(), Error>>,
{
    let (noun, mut pauses) = (part.noun, PAUSES);
    loop {
        match start().await {
            Ok(()) => return Ok(()),
            Err(Error::Stopped) => return Err(Stopped),
            Err(error) => {
                part.metrics.failed.inc();
                part.opening.note_failure(part.name, noun);
                if let Some(hidden) = part.lines.note(&error.to_string(), Instant::now()) {
                    tracing::warn!(%error, hidden, "could not adopt every record of {noun}");
                }
            }
        }
        sleep(pauses.pause()).await;
    }
}

/// Adopts the records of each growth after the growth of `first`, then uses the new pools. Yields the names that may
/// need a pass. Names that wait are included if the change can help them: a pool may have the addresses of their
/// records now, or may no longer reserve the address that they request.
fn each_pools<'a, W: Work>(
    part: &'a Part<'_>,
    work: &'a W,
    pools: &'a mut watch::Receiver<Option<OpenPools>>,
    first: OpenPools,
    waits: &'a Waits,
) -> impl Stream<Item = Names> + 'a {
    // Networks of the pools that have changed since the last growth. They count until the next growth, because the
    // selection may have a change before the registry accepts it.
    let pending = BTreeSet::new();
    let names = stream::unfold((pools, first, pending), move |(pools, before, mut pending)| async move {
        pools.changed().await.ok()?;
        let mut now = pools.borrow_and_update().clone()?;
        now.growth = now.growth.max(before.growth);
        let has_grown = now.growth > before.growth;
        if has_grown {
            let settled = Instant::now() + SETTLE;
            start(part, || grow(part, work, &now, settled)).await.ok()?;
        }
        let mut names = work.set_pools(now.clone());
        let mut changed = changed_networks(&before.selection, &now.selection);
        pending.extend(changed.iter().cloned());
        if has_grown {
            changed = std::mem::take(&mut pending);
        }
        // Another object than a pool, such as a NodePool, may have caused the growth. Then the networks are not known.
        let may_be_anywhere = has_grown && changed.is_empty();
        if may_be_anywhere || !changed.is_empty() {
            names.extend(waits.names(|key, _| may_be_anywhere || work.is_on(key, &changed)));
        }
        Some((Some(names), (pools, now, pending)))
    });
    names.chain(stream::iter([None]))
}

/// Yields the names that wait for an address, each time this address may be free.
fn each_freed(freed: broadcast::Receiver<IpAddr>, waits: &Waits) -> impl Stream<Item = Names> + '_ {
    stream::unfold(freed, move |mut freed| async move {
        let names = match freed.recv().await {
            Ok(address) => waits.names(|_, addresses| addresses.contains(&address)),
            // The channel has no room for so many released addresses, so some of them are lost.
            Err(RecvError::Lagged(_)) => waits.names(|_, addresses| !addresses.is_empty()),
            Err(RecvError::Closed) => return None,
        };
        Some((Some(names), freed))
    })
}

// === impl Waits ===

impl Waits {
    /// Notes the end of a pass. After a failed pass, the name waits as before.
    fn note(&self, key: Key, ended: &Result<Ended, Error>) {
        let mut waits = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match ended {
            Ok(Ended::Waits(addresses)) => drop(waits.insert(key, addresses.clone())),
            Ok(Ended::Again(_, addresses)) if !addresses.is_empty() => drop(waits.insert(key, addresses.clone())),
            Ok(Ended::Well | Ended::Check(_) | Ended::Again(..) | Ended::BeforeClaim(_)) => drop(waits.remove(&key)),
            Ok(Ended::Later) | Err(_) => {}
        }
    }

    fn names(&self, is_meant: impl Fn(&Key, &Vec<IpAddr>) -> bool) -> BTreeSet<Key> {
        let waits = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        waits.iter().filter(|(key, addresses)| is_meant(key, addresses)).map(|(key, _)| key.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_watch_that_lists_its_objects_twice_does_not_count_for_another_watch() {
        let events =
            [(0, Change::Listed), (0, Change::Lists), (0, Change::Listed), (1, Change::Listed), (1, Change::Lists)];
        let mut changes = stream::iter(events.map(|(number, change)| (number, (), change)));
        until_listed(&mut changes, [0, 1].into(), |(), _| {}).await.unwrap();
        let left: Vec<_> = changes.collect().await;
        assert!(matches!(left[..], [(1, (), Change::Lists)]), "{left:?}");
    }

    #[tokio::test]
    async fn each_change_is_noted_once_during_the_start_or_after_it() {
        let key = |name: &str| Key { namespace: "n".to_owned(), name: name.to_owned() };
        let (sender, mut receiver) = mpsc::unbounded_channel();
        let send = |name: &str| sender.send((0, (), Change::Remove(key(name), None))).unwrap();
        let mut changes = Box::pin(stream::poll_fn(move |context| receiver.poll_recv(context)));
        let (is_noted, noted) = watch::channel(0);
        let note = |(), change| {
            is_noted.send_modify(|noted| *noted += 1);
            match change {
                Change::Remove(key, _) => [key].into(),
                _ => BTreeSet::new(),
            }
        };
        send("a");
        let start = async {
            // The start waits for another part.
            noted.clone().wait_for(|noted| *noted == 1).await.unwrap();
            send("b");
            noted.clone().wait_for(|noted| *noted == 2).await.unwrap();
            Ok("started")
        };
        let (started, names) = noting(&mut changes, note, start).await.unwrap();
        assert_eq!((started, names), ("started", ["a", "b"].map(key).into()));
        send("c");
        drop(sender);
        let left: Vec<_> = changes.map(|(_, (), change)| note((), change)).collect().await;
        assert_eq!((left, *noted.borrow()), (vec![[key("c")].into()], 3));
    }

    #[tokio::test]
    async fn a_name_gets_a_pass_when_an_address_that_it_waits_for_is_free() {
        let (waits, sender) = (Waits::default(), broadcast::Sender::new(2));
        let key = |name: &str| Key { namespace: "n".to_owned(), name: name.to_owned() };
        let waiting =
            |addresses: &[&str]| Ok(Ended::Waits(addresses.iter().map(|text| text.parse().unwrap()).collect()));
        let free = |address: &str| drop(sender.send(address.parse().unwrap()));
        waits.note(key("a"), &waiting(&["10.0.0.8", "fd00::8"]));
        waits.note(key("b"), &Ok(Ended::Again(Duration::from_secs(60), vec!["10.0.0.9".parse().unwrap()])));
        waits.note(key("c"), &waiting(&[]));
        let mut names = Box::pin(each_freed(sender.subscribe(), &waits));
        let mut next = async || names.next().await.flatten().map(|names| names.into_iter().collect::<Vec<_>>());
        free("fd00::8");
        assert_eq!(next().await, Some(vec![key("a")]));
        // After a failed pass, the name still waits.
        waits.note(key("a"), &Err(Error::Behind));
        free("10.0.0.8");
        assert_eq!(next().await, Some(vec![key("a")]));
        waits.note(key("a"), &Ok(Ended::Well));
        free("10.0.0.8");
        assert_eq!(next().await, Some(vec![]));
        // The channel has no room for so many addresses, so every name that needs an address gets a pass.
        ["10.0.0.1", "10.0.0.2", "10.0.0.3"].into_iter().for_each(free);
        assert_eq!(next().await, Some(vec![key("b")]));
    }
}
