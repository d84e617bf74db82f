//! Opens the new addresses of pools after every part of a leader has adopted the records of these addresses.
//!
//! When an address becomes allocatable, the registry closes it first: the address is in the registry, but is not
//! allocated. Each such growth of the allocatable addresses has a number, which is sent with the pools. Each growth has
//! two phases:
//!
//! 1. Each part adopts the records that its watches know, and then reports the number.
//! 2. When all parts have reported the number, each part adopts what its watches have reported since its own adoption,
//!    and reports the number again.
//!
//! When all parts have reported the number again, the addresses of the growth are opened.
//!
//! The first phase of one part may last for minutes, for example while its lists or the read of a Secret fail. An address
//! that another part learns meanwhile must count. The second phase adopts only changes, so it is short, and a change
//! during the second phase is like a change after the opening. If a part has to repeat its first phase, every part
//! repeats its second phase.
//!
//! The start is the first growth. When its addresses are open, the outstanding claims of all parts are processed
//! together, in the order of their creation.
//!
//! Nothing is opened while a part fails to adopt its records. [`Opening::obstacle`] says which part, and why.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use glowplug::host::claim::Claim;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::ledger::registry::RegistryHandle;
use crate::ledger::types::Stopped;

/// Synchronizes the parts of a leader before new addresses are allocated.
#[derive(Clone)]
pub struct Opening {
    registry: RegistryHandle,
    parts: usize,
    state: Arc<watch::Sender<State>>,
}

/// Reports of the parts, and the last growth that is open.
#[derive(Debug, Default)]
struct State {
    /// For each part, the last growth whose records the part has adopted.
    adopted: BTreeMap<&'static str, u64>,
    /// Number of the reports in `adopted` so far, including those that a later report has replaced.
    reports: u64,
    /// For each part, the growth whose second phase the part has completed since the last report in `adopted`.
    completed: BTreeMap<&'static str, u64>,
    /// Claims of each part at the start that are not processed yet.
    claims: BTreeMap<&'static str, Vec<Claim>>,
    /// The last growth whose addresses are open. `None`: the start is not over.
    open: Option<u64>,
    /// Each part that has not listed its objects yet: since when, and its kinds.
    listing: BTreeMap<&'static str, (Instant, &'static str)>,
    /// Each part whose adoption has failed since its last success: the number of failures, and the noun for its objects.
    failures: BTreeMap<&'static str, (u32, &'static str)>,
}

/// Time after which a list counts as an obstacle. The lists of a large cluster take some seconds.
const LONG_LIST: Duration = Duration::from_secs(60);

/// Number of failures in a row after which an adoption counts as an obstacle. A request fails now and then.
const OBSTACLE: u32 = 3;

/// A second phase that a part must begin now.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct SecondPhase {
    growth: u64,
    /// Value of [`State::reports`] when the phase begins.
    reports: u64,
}

// === impl Opening ===

impl Opening {
    /// Creates an opening that waits for this number of parts. It opens addresses only while [`Opening::run`] runs.
    #[must_use]
    pub fn new(registry: RegistryHandle, parts: usize) -> Self {
        Self { registry, parts, state: Arc::default() }
    }

    /// Opens the addresses of each growth after all parts have completed its second phase. Does not return while the
    /// registry runs.
    pub async fn run(&self) -> Result<Infallible, Stopped> {
        let mut states = self.state.subscribe();
        loop {
            let next = states.wait_for(|state| state.next(self.parts).is_some()).await;
            let Some(growth) = next.map_err(|_| Stopped)?.next(self.parts) else { continue };
            self.registry.open(growth).await?;
            loop {
                let mut claims = Vec::new();
                self.state.send_modify(|state| {
                    claims = std::mem::take(&mut state.claims).into_values().flatten().collect();
                    if claims.is_empty() {
                        state.open = Some(growth);
                    }
                });
                if claims.is_empty() {
                    break;
                }
                claims.sort_by(|one, other| (one.created, &one.machine).cmp(&(other.created, &other.machine)));
                self.registry.claim_all(claims).await?;
            }
            tracing::debug!(growth, "opened the new addresses of pools");
        }
    }

    /// Returns why no new addresses are opened now: a part cannot list its objects, or cannot adopt their records. `None`:
    /// each part has adopted its records, or is about to. The text names no object, because users of any namespace may
    /// read it, and it stays the same while the part fails.
    pub(crate) fn obstacle(&self) -> Option<String> {
        let state = self.state.borrow();
        let failure = state.failures.values().find(|(count, _)| *count >= OBSTACLE);
        let failure = failure.map(|(_, noun)| format!("the controller cannot adopt every record of {noun}"));
        let listing = || state.listing.values().find(|(since, _)| since.elapsed() >= LONG_LIST);
        failure.or_else(|| listing().map(|(_, kinds)| format!("the controller cannot list the objects of all {kinds}")))
    }

    /// Notes that a part begins to list the objects of these kinds.
    pub(crate) fn note_listing(&self, part: &'static str, kinds: &'static str) {
        self.state.send_modify(|state| {
            state.listing.insert(part, (Instant::now(), kinds));
        });
    }

    /// Notes that a part has failed to adopt its records. `noun` names one of its objects.
    pub(crate) fn note_failure(&self, part: &'static str, noun: &'static str) {
        self.state.send_modify(|state| state.failures.entry(part).or_insert((0, noun)).0 += 1);
    }

    /// Reports that a part has adopted all its records up to this growth, and processes the claims of the part. Returns
    /// when the addresses of the growth are open.
    ///
    /// Meanwhile, calls `adopt_changes` for the second phase of each growth, also of a growth before `growth`: another
    /// part may not know `growth` yet. After an error of `adopt_changes`, the part must repeat the adoption of its
    /// records and this call.
    ///
    /// At the start, the claims of all parts are processed together. After the start, the claims of a part are processed
    /// without those of other parts.
    pub(crate) async fn adopted<F, E>(
        &self,
        part: &'static str,
        growth: u64,
        claims: Vec<Claim>,
        adopt_changes: impl Fn() -> F,
    ) -> Result<(), E>
    where
        F: Future<Output = Result<(), E>>,
        E: From<Stopped>,
    {
        let mut claims = Some(claims);
        self.state.send_modify(|state| {
            if state.open.is_none() {
                state.claims.insert(part, claims.take().unwrap_or_default());
            }
        });
        if let Some(claims) = claims.filter(|claims| !claims.is_empty()) {
            self.registry.claim_all(claims).await?;
        }
        let mut states = self.state.subscribe();
        self.state.send_modify(|state| state.report(part, growth));
        loop {
            let phase = {
                let is_next = |state: &State| state.is_open(growth) || state.second_phase(part, self.parts).is_some();
                let state = states.wait_for(|state| is_next(state)).await.map_err(|_| Stopped)?;
                if state.is_open(growth) {
                    return Ok(());
                }
                state.second_phase(part, self.parts)
            };
            if let Some(phase) = phase {
                adopt_changes().await?;
                self.state.send_modify(|state| state.complete(part, phase));
            }
        }
    }
}

// === impl State ===

impl State {
    /// Notes that a part has adopted all its records up to this growth. A second phase that has begun before does not
    /// count.
    fn report(&mut self, part: &'static str, growth: u64) {
        self.adopted.insert(part, growth);
        self.listing.remove(part);
        self.failures.remove(part);
        self.reports += 1;
        self.completed.clear();
    }

    /// Returns the second phase that a part must begin now. `parts` is the number of parts. `None`: a part has not
    /// adopted its records, this part has completed the phase, or the growth is open.
    fn second_phase(&self, part: &str, parts: usize) -> Option<SecondPhase> {
        let growth = self.adopted.values().min().copied().filter(|_| self.adopted.len() == parts)?;
        let is_completed = self.completed.get(part).is_some_and(|completed| *completed >= growth);
        let phase = SecondPhase { growth, reports: self.reports };
        (!is_completed && !self.is_open(growth)).then_some(phase)
    }

    /// Notes that a part has completed a second phase. Does nothing if a part has reported its adoption since the phase
    /// began: then all parts begin the phase again.
    fn complete(&mut self, part: &'static str, phase: SecondPhase) {
        if phase.reports == self.reports {
            self.completed.insert(part, phase.growth);
        }
    }

    /// Returns the last growth whose second phase all parts have completed. `parts` is the number of parts. `None`: this
    /// growth is open already, or a part has not completed the phase.
    fn next(&self, parts: usize) -> Option<u64> {
        let completed = self.completed.values().min().copied().filter(|_| self.completed.len() == parts);
        completed.filter(|growth| !self.is_open(*growth))
    }

    fn is_open(&self, growth: u64) -> bool {
        self.open.is_some_and(|open| open >= growth)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Mutex;

    use futures::future;
    use http::{Request, Response};
    use k8s_openapi::jiff::Timestamp;
    use kube::Client;
    use kube::client::Body;
    use serde_json::json;
    use tokio::sync::mpsc;
    use tokio::task::yield_now;

    use super::*;
    use crate::cluster::clock::Clock;
    use crate::metrics::Metrics;

    #[test]
    fn a_growth_is_opened_after_all_parts_have_adopted_it_and_then_their_changes() {
        let mut state = State::default();
        let second = |state: &State| ["machines", "claims"].map(|part| state.second_phase(part, 2).map(|it| it.growth));
        state.report("machines", 1);
        assert_eq!((second(&state), state.next(2)), ([None; 2], None));
        state.report("claims", 1);
        let phase = state.second_phase("machines", 2).unwrap();
        assert_eq!((second(&state), state.next(2)), ([Some(1); 2], None));
        state.complete("machines", phase);
        assert_eq!((second(&state), state.next(2)), ([None, Some(1)], None));
        state.complete("claims", phase);
        assert_eq!((second(&state), state.next(2)), ([None; 2], Some(1)));
        state.open = Some(1);
        assert_eq!((second(&state), state.next(2)), ([None; 2], None));
        // One part knows a later growth earlier than the other part.
        state.report("claims", 3);
        state.report("machines", 2);
        assert_eq!((second(&state), state.next(2)), ([Some(2); 2], None));
        let phase = state.second_phase("machines", 2).unwrap();
        ["machines", "claims"].iter().for_each(|part| state.complete(part, phase));
        assert_eq!(state.next(2), Some(2));
        state.open = Some(2);
        state.report("machines", 3);
        assert_eq!((second(&state), state.next(2)), ([Some(3); 2], None));
    }

    #[tokio::test]
    async fn a_part_that_fails_again_and_again_is_an_obstacle_until_it_has_adopted_its_records() {
        let opening = Opening::new(registry(), 2);
        let note = || {
            opening.note_failure("machines", "a machine");
            opening.obstacle()
        };
        let expected = "the controller cannot adopt every record of a machine".to_owned();
        assert_eq!([note(), note(), note(), note()], [None, None, Some(expected.clone()), Some(expected)]);
        // The other part has not adopted its records, so the second phase does not begin.
        opening.state.send_modify(|state| state.report("machines", 1));
        assert_eq!((opening.obstacle(), note()), (None, None));
    }

    #[tokio::test(start_paused = true)]
    async fn a_part_that_has_not_listed_its_objects_after_a_minute_is_an_obstacle() {
        let opening = Opening::new(registry(), 2);
        opening.note_listing("machines", "kinds of KubeVirt");
        assert_eq!(opening.obstacle(), None);
        tokio::time::advance(LONG_LIST).await;
        let expected = "the controller cannot list the objects of all kinds of KubeVirt";
        assert_eq!(opening.obstacle().as_deref(), Some(expected));
        opening.state.send_modify(|state| state.report("machines", 1));
        assert_eq!(opening.obstacle(), None);
    }

    #[test]
    fn every_part_repeats_its_second_phase_after_a_part_has_repeated_its_first_phase() {
        let mut state = State::default();
        ["machines", "claims"].iter().for_each(|part| state.report(part, 1));
        let phase = state.second_phase("claims", 2).unwrap();
        state.complete("claims", phase);
        // The second phase of the machines has failed, or the machines are listed again.
        state.report("machines", 1);
        // This end belongs to the phase before the report.
        state.complete("machines", phase);
        assert_eq!((&state.completed, state.next(2)), (&BTreeMap::new(), None));
        let phase = SecondPhase { growth: 1, reports: 3 };
        assert_eq!(["machines", "claims"].map(|part| state.second_phase(part, 2)), [Some(phase); 2]);
        ["machines", "claims"].iter().for_each(|part| state.complete(part, phase));
        assert_eq!(state.next(2), Some(1));
    }

    /// Returns a registry whose API server has no lease, and whose new addresses are closed.
    fn registry() -> RegistryHandle {
        let answer = |request: Request<Body>| async move {
            if request.uri().query().is_some_and(|query| query.contains("watch=")) {
                future::pending::<()>().await;
            }
            let list = json!({"apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": "1"}, "items": []});
            Ok::<_, tower::BoxError>(Response::new(Body::from(list.to_string().into_bytes())))
        };
        let client = Client::new(tower::service_fn(answer), "glowplug-system");
        let (metrics, clock) = (Arc::new(Metrics::default()), Clock::starting_at(Timestamp::UNIX_EPOCH));
        RegistryHandle::start(client, metrics, Arc::new(|_| {}), clock).unwrap().0
    }

    #[tokio::test]
    async fn no_part_adopts_its_changes_before_the_last_part_has_adopted_its_records() {
        let opening = Opening::new(registry(), 2);
        let events = Mutex::new(Vec::new());
        let note = |event: &'static str| events.lock().unwrap().push(event);
        let (last, mut is_last) = mpsc::unbounded_channel::<()>();
        let adopt = async |part: &'static str, adopted, changes, open| {
            note(adopted);
            let adopt_changes = || async {
                note(changes);
                Ok::<_, Stopped>(())
            };
            opening.adopted(part, 1, Vec::new(), adopt_changes).await.unwrap();
            note(open);
        };
        let parts = async {
            let late = async {
                is_last.recv().await;
                adopt("b", "b: records", "b: changes", "b: open").await;
            };
            let early = adopt("a", "a: records", "a: changes", "a: open");
            let release = async {
                for _ in 0..100 {
                    yield_now().await;
                }
                note("the last part begins");
                drop(last);
            };
            tokio::join!(early, release, late)
        };
        tokio::select! {
            ended = opening.run() => match ended.unwrap() {},
            _ = parts => {}
        }
        let events = events.into_inner().unwrap();
        assert_eq!(events[..3], ["a: records", "the last part begins", "b: records"]);
        let rest = |range: std::ops::Range<usize>| events[range].iter().copied().collect::<BTreeSet<_>>();
        assert_eq!((rest(3..5), rest(5..7)), (["a: changes", "b: changes"].into(), ["a: open", "b: open"].into()));
        assert_eq!(events.len(), 7);
    }

    #[tokio::test]
    async fn parts_that_know_different_growths_open_the_earlier_growth_and_then_the_later_growth() {
        let opening = Opening::new(registry(), 2);
        let adopt = async |part, growth| {
            opening.adopted(part, growth, Vec::new(), || future::ready(Ok::<_, Stopped>(()))).await.unwrap();
            opening.state.borrow().open
        };
        let slow = async { [adopt("a", 2).await, adopt("a", 3).await] };
        let parts = async { tokio::join!(slow, adopt("b", 3)) };
        let open = tokio::select! {
            ended = opening.run() => match ended.unwrap() {},
            open = parts => open,
        };
        assert_eq!(open, ([Some(2), Some(3)], Some(3)));
    }

    #[tokio::test]
    async fn a_failed_second_phase_is_an_error_and_opens_nothing() {
        let opening = Opening::new(registry(), 1);
        let failed = opening.adopted("a", 1, Vec::new(), || future::ready(Err(Stopped))).await;
        assert_eq!((failed.is_err(), opening.state.borrow().next(1)), (true, None));
        let parts = opening.adopted("a", 1, Vec::new(), || future::ready(Ok::<_, Stopped>(())));
        tokio::select! {
            ended = opening.run() => match ended.unwrap() {},
            result = parts => result.unwrap(),
        }
        assert_eq!(opening.state.borrow().open, Some(1));
    }
}
