//! Leader election over a Lease: one replica leads, and the other replicas wait.
//!
//! The election only saves work. Two leaders cannot allocate one address, because the name of a lease object contains
//! the address. The protocol is that of client-go. A candidate measures by its own monotonic clock how long the Lease
//! has not changed. After the lease duration of the holder, the candidate takes the Lease with a `PUT` that names the
//! `resourceVersion` that it read. Therefore the clocks of nodes are not compared, two candidates never both win, and a
//! leader whose renewals fail stops before another candidate starts.
//!
//! The Lease also shows that etcd was restored from a backup: the Lease then differs from the one that its holder
//! wrote, or has a lower version than before. After a restore, objects of any kind may be missing, and watches may
//! report nothing for a long time. Therefore the leader begins another term, and every replica lists the pools again.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::Timestamp;
use kube::api::{ApiResource, PostParams};
use kube::{Api, Client};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use crate::cluster::object::{Object, version_of};
use crate::cluster::request::{Reason, find};
use crate::cluster::term::{Term, Writes};
use crate::program::watchdog::Watchdog;
use crate::repeated::Repeated;

/// Time limit for the API server to answer the last writes of a leader that stops, and the release of its Lease.
const PATIENCE: Duration = Duration::from_secs(5);

/// A replica that takes part in the election.
#[derive(Debug)]
pub struct Candidate {
    api: Api<Object>,
    name: String,
    view: View,
    watchdog: Watchdog,
    /// Changes its value when lists and watches must begin again.
    ages: watch::Sender<u64>,
}

/// State of a candidate that does not depend on an API server.
#[derive(Debug)]
struct View {
    identity: String,
    duration: Duration,
    /// The last seen version of the Lease of another holder, and the time at which this version was first seen.
    seen: Option<(String, Instant)>,
    /// The renewal times that this replica has sent in its term: the last one that the API server confirmed, and all
    /// later ones.
    written: Vec<MicroTime>,
    /// Version and tenure of the Lease that was read last.
    last: Option<(u64, Tenure)>,
    /// Number of times so far that this replica saw another leader, or that the Lease was restored or deleted.
    ages: u64,
    /// The term of this candidate. The term may have expired. No other holder of the Lease was seen since the start of
    /// the term.
    term: Option<Term>,
    /// Number of the terms of this candidate so far.
    terms: u64,
}

/// Identifies the tenure of a holder of the Lease: the number of transitions, and the time at which the holder acquired
/// the Lease.
type Tenure = (Option<i32>, Option<MicroTime>);

/// The next step of a candidate after it has read the Lease.
#[derive(Clone, Debug, PartialEq)]
enum Step {
    Create(LeaseSpec),
    Replace(Box<Lease>),
    Wait,
}

// === impl Candidate ===

impl Candidate {
    /// Creates a candidate with the name `identity` for the Lease `namespace/name`. A leader that cannot renew the
    /// Lease leads for at most `duration`.
    #[must_use]
    pub fn new(client: Client, namespace: &str, name: &str, identity: &str, duration: Duration) -> Self {
        let view = View::new(identity, duration);
        let api = Api::namespaced_with(client, namespace, &ApiResource::erase::<Lease>(&()));
        Self { api, name: name.to_owned(), view, watchdog: Watchdog::none(), ages: watch::Sender::default() }
    }

    /// Returns a receiver that is notified when objects that the replica has read may no longer exist: when another
    /// replica leads, or when the API server has older objects than before.
    pub fn ages(&self) -> watch::Receiver<u64> {
        self.ages.subscribe()
    }

    /// Sets the watchdog of the candidate. When the watchdog is due, the candidate gives up the Lease, and waits before
    /// it takes part again.
    #[must_use]
    pub fn with_watchdog(self, watchdog: Watchdog) -> Self {
        Self { watchdog, ..self }
    }

    /// Takes part in the election until `stop` is `true`, then releases the Lease. `term` is set to the term of this
    /// candidate. `None`: this candidate does not lead.
    ///
    /// If one of `writes` has no answer a few seconds after the end of a term, the Lease is not released, and expires
    /// later.
    pub async fn run(mut self, term: watch::Sender<Option<Term>>, mut stop: watch::Receiver<bool>, writes: Writes) {
        let period = self.view.duration / 5;
        let set = |now: Option<Term>| {
            let before = term.send_replace(now);
            if now.map(|term| term.number) != before.map(|term| term.number) {
                tracing::info!(leading = now.is_some(), "leadership changed");
            }
        };
        let (mut was_due, lines) = (false, Repeated::default());
        loop {
            let before = self.view.term;
            let round = timeout(period * 2, self.campaign());
            tokio::select! {
                result = round => match result {
                    Ok(Ok(())) => {}
                    Ok(Err(error)) => {
                        let error = Reason(&error).to_string();
                        if let Some(hidden) = lines.note(&error, Instant::now()) {
                            tracing::warn!(error, hidden, lease = self.name, "could not renew or take the Lease");
                        }
                    }
                    Err(_) => {
                        if let Some(hidden) = lines.note("", Instant::now()) {
                            tracing::warn!(hidden, lease = self.name, "no answer for the Lease");
                        }
                    }
                },
                _ = stop.wait_for(|stop| *stop) => break,
            }
            let now = Instant::now();
            let is_renewed = before.is_some() && self.view.term.is_some() && self.view.term != before;
            // The watchdog may be due once after the process was paused, although the registry makes progress before
            // the next renewal. Therefore a leader gives up the Lease only if the watchdog is due at two renewals in a
            // row.
            let is_due = is_renewed && self.watchdog.is_due(now);
            if std::mem::replace(&mut was_due, is_due) && is_due {
                was_due = false;
                let pause = self.watchdog.pause(self.view.duration, now);
                tracing::error!(
                    lease = self.name,
                    pause = pause.as_secs(),
                    "the API server stores no lease of an address although it answers other requests: giving up the Lease"
                );
                self.watchdog.set_given_up(true);
                self.view.term = None;
                set(None);
                self.release(&writes).await;
                tokio::select! {
                    () = sleep(pause) => {}
                    _ = stop.wait_for(|stop| *stop) => return,
                }
                self.watchdog.set_given_up(false);
                continue;
            }
            set(self.view.term_at(now));
            // The end of the term is reported on time, even if the API server does not respond.
            let end = self.view.term.and_then(|term| term.end);
            let until = end.map_or(period, |end| end.saturating_duration_since(now)).min(period);
            tokio::select! {
                () = sleep(until) => set(self.view.term_at(Instant::now())),
                _ = stop.wait_for(|stop| *stop) => break,
            }
        }
        set(None);
        self.release(&writes).await;
    }

    /// Releases the Lease after the end of a term, if every write of the term is answered.
    async fn release(&mut self, writes: &Writes) {
        // A write without an answer could arrive while another candidate leads.
        if !writes.are_answered(PATIENCE).await {
            tracing::warn!(lease = self.name, "a write has no answer, so the Lease expires later");
            return;
        }
        match timeout(PATIENCE, self.resign()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                let error = Reason(&error).to_string();
                tracing::warn!(error, lease = self.name, "could not release the Lease: it expires later");
            }
            Err(_) => tracing::warn!(lease = self.name, "no answer to the release of the Lease: it expires later"),
        }
    }

    async fn campaign(&mut self) -> kube::Result<()> {
        let lease = find(&self.api, &self.name).await?.map(read).transpose()?;
        // The term is measured from this time. Other candidates measure from the time at which they see the write,
        // which is later.
        let now = Instant::now();
        let step = self.view.decide(lease, now, Timestamp::now());
        let ages = self.view.ages;
        self.ages.send_if_modified(|known| std::mem::replace(known, ages) != ages);
        let written = match step {
            Step::Wait => return Ok(()),
            Step::Create(spec) => {
                let metadata = ObjectMeta { name: Some(self.name.clone()), ..ObjectMeta::default() };
                self.api.create(&PostParams::default(), &object(&Lease { metadata, spec: Some(spec) })?).await
            }
            Step::Replace(lease) => self.api.replace(&self.name, &PostParams::default(), &object(&lease)?).await,
        };
        match written {
            Ok(_) => {
                self.view.lead_until(now + self.view.duration);
                Ok(())
            }
            // Another candidate was faster. The next attempt reads the new Lease.
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
            Err(error) => Err(error),
        }
    }

    async fn resign(&mut self) -> kube::Result<()> {
        let Some(mut lease) = find(&self.api, &self.name).await?.map(read).transpose()? else { return Ok(()) };
        let spec = lease.spec.get_or_insert_default();
        if spec.holder_identity.as_ref() != Some(&self.view.identity) {
            return Ok(());
        }
        spec.holder_identity = None;
        match self.api.replace(&self.name, &PostParams::default(), &object(&lease)?).await {
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
            result => result.map(drop),
        }
    }
}

/// Reads a Lease. A time that the client cannot parse counts as absent, so that this time does not stop the election.
fn read(mut object: Object) -> kube::Result<Lease> {
    if let Some(spec) = object.data["spec"].as_object_mut() {
        spec.retain(|name, value| {
            !name.ends_with("Time") || serde_json::from_value::<MicroTime>(value.clone()).is_ok()
        });
    }
    object.parse().map_err(kube::Error::SerdeError)
}

fn object(lease: &Lease) -> kube::Result<Object> {
    Object::of(lease).map_err(kube::Error::SerdeError)
}

// === impl View ===

impl View {
    fn new(identity: &str, duration: Duration) -> Self {
        let identity = identity.to_owned();
        Self { identity, duration, seen: None, written: Vec::new(), last: None, ages: 0, term: None, terms: 0 }
    }

    /// Returns the term, if it includes this time.
    fn term_at(&self, now: Instant) -> Option<Term> {
        self.term.filter(|term| term.includes(now))
    }

    /// Extends the term until `end`, or begins a new term.
    fn lead_until(&mut self, end: Instant) {
        self.written.drain(..self.written.len().saturating_sub(1));
        self.terms += u64::from(self.term.is_none());
        self.term = Some(Term { number: self.terms, end: Some(end) });
    }

    /// Returns the step that writes a Lease with this specification. Notes its renewal time and its tenure.
    fn write(&mut self, lease: Option<Lease>, spec: LeaseSpec) -> Step {
        if self.term.is_none() {
            self.written.clear();
        }
        self.written.extend(spec.renew_time.clone());
        // When the Lease is read next, the tenure that this replica begins must not count as the tenure of another
        // leader.
        if let Some((_, tenure)) = &mut self.last {
            *tenure = (spec.lease_transitions, spec.acquire_time.clone());
        }
        match lease {
            Some(lease) => Step::Replace(Box::new(Lease { spec: Some(spec), ..lease })),
            None => Step::Create(spec),
        }
    }

    fn decide(&mut self, lease: Option<Lease>, now: Instant, time: Timestamp) -> Step {
        let time = Timestamp::from_microsecond(time.as_microsecond()).unwrap_or(time);
        let seconds = i32::try_from(self.duration.as_secs().max(1)).unwrap_or(i32::MAX);
        let identity = self.identity.clone();
        let mine = |transitions: i32, since: Option<MicroTime>| LeaseSpec {
            holder_identity: Some(identity.clone()),
            acquire_time: since.or(Some(MicroTime(time))),
            renew_time: Some(MicroTime(time)),
            lease_duration_seconds: Some(seconds),
            lease_transitions: Some(transitions),
            ..LeaseSpec::default()
        };
        let Some(mut lease) = lease else {
            self.ages += u64::from(self.last.take().is_some());
            self.term = None;
            return self.write(None, mine(0, None));
        };
        let spec = lease.spec.take().unwrap_or_default();
        let version = version_of(&lease.metadata);
        let last = self.last.replace((version, (spec.lease_transitions, spec.acquire_time.clone())));
        // The version can be lower only after a restore: a consistent read never returns an earlier version of an
        // object.
        let is_restored = last.as_ref().is_some_and(|(last, _)| version < *last)
            || self.term.is_some()
                && spec.holder_identity.as_ref() == Some(&self.identity)
                && !spec.renew_time.as_ref().is_some_and(|time| self.written.contains(time));
        let has_other_tenure =
            last.is_some_and(|(_, tenure)| tenure != (spec.lease_transitions, spec.acquire_time.clone()));
        self.ages += u64::from(is_restored || has_other_tenure);
        let transitions = spec.lease_transitions.unwrap_or_default();
        let holder = spec.holder_identity.filter(|holder| !holder.is_empty());
        if holder.as_ref() == Some(&self.identity) {
            let had_term = self.term.is_some();
            if is_restored && had_term {
                tracing::warn!(
                    "the Lease is not as this replica wrote it: the objects of the cluster may be older than before"
                );
                self.term = None;
            }
            let spec = match is_restored && had_term {
                true => mine(transitions.saturating_add(1), None),
                false => mine(transitions, spec.acquire_time),
            };
            return self.write(Some(lease), spec);
        }
        self.term = None;
        let version = lease.metadata.resource_version.clone().unwrap_or_default();
        let since = match &self.seen {
            Some((seen, since)) if *seen == version => *since,
            _ => {
                self.seen = Some((version, now));
                now
            }
        };
        let promised = spec.lease_duration_seconds.and_then(|seconds| u64::try_from(seconds).ok()).unwrap_or_default();
        if holder.is_some() && now.saturating_duration_since(since) < Duration::from_secs(promised) {
            return Step::Wait;
        }
        self.write(Some(lease), mine(transitions.saturating_add(1), None))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::future::pending;

    use kube::client::Body;

    use super::*;
    use crate::cluster::client::of_leader;

    const DURATION: Duration = Duration::from_secs(15);

    fn view(identity: &str) -> View {
        View::new(identity, DURATION)
    }

    pub(crate) fn term(number: u64, end: Instant) -> Term {
        Term { number, end: Some(end) }
    }

    fn lease(holder: Option<&str>, version: &str, transitions: i32) -> Lease {
        let metadata = ObjectMeta { resource_version: Some(version.to_owned()), ..ObjectMeta::default() };
        let spec = LeaseSpec {
            holder_identity: holder.map(str::to_owned),
            acquire_time: Some(MicroTime(Timestamp::UNIX_EPOCH)),
            renew_time: Some(MicroTime(Timestamp::UNIX_EPOCH)),
            lease_duration_seconds: Some(15),
            lease_transitions: Some(transitions),
            ..LeaseSpec::default()
        };
        Lease { metadata, spec: Some(spec) }
    }

    #[tokio::test(start_paused = true)]
    async fn a_leader_does_not_release_the_lease_while_a_write_has_no_answer() {
        let silent = tower::service_fn(|_: http::Request<Body>| pending::<kube::Result<http::Response<Body>>>());
        let (client, writes) = (Client::new(silent, "glowplug-system"), Writes::default());
        let (current, terms) = watch::channel(Some(Term::ENDLESS));
        let leader = of_leader(&client, Term::ENDLESS, terms, writes.clone());
        let request = http::Request::post("/").body(Body::empty()).unwrap();
        timeout(DURATION, leader.send(request)).await.unwrap_err();
        let (_stop, stopped) = watch::channel(true);
        // The API server would never answer a request to release the Lease, so the timeout below would fail the test.
        let candidate = Candidate::new(client, "glowplug-system", "l", "a", DURATION);
        timeout(DURATION, candidate.run(current, stopped, writes)).await.unwrap();
    }

    #[test]
    fn a_lease_that_is_absent_is_created() {
        let step = view("a").decide(None, Instant::now(), Timestamp::UNIX_EPOCH);
        assert_eq!(step, Step::Create(lease(Some("a"), "", 0).spec.unwrap()));
    }

    #[test]
    fn a_released_lease_is_taken_with_its_version() {
        for holder in [None, Some("")] {
            let step = view("a").decide(Some(lease(holder, "7", 3)), Instant::now(), Timestamp::UNIX_EPOCH);
            assert_eq!(step, Step::Replace(Box::new(lease(Some("a"), "7", 4))));
        }
    }

    #[test]
    fn a_renewed_lease_keeps_the_time_at_which_it_was_acquired() {
        let later = Timestamp::from_second(60).unwrap();
        let step = view("a").decide(Some(lease(Some("a"), "7", 3)), Instant::now(), later);
        let mut renewed = lease(Some("a"), "7", 3);
        renewed.spec.as_mut().unwrap().renew_time = Some(MicroTime(later));
        assert_eq!(step, Step::Replace(Box::new(renewed)));
    }

    #[test]
    fn a_lease_that_keeps_changing_is_never_taken() {
        let (mut view, now) = (view("a"), Instant::now());
        for round in 0..10 {
            let seen = Some(lease(Some("b"), &round.to_string(), 3));
            assert_eq!(view.decide(seen, now + DURATION * 2 * round, Timestamp::UNIX_EPOCH), Step::Wait);
        }
    }

    #[test]
    fn a_lease_that_does_not_change_for_its_duration_is_taken_regardless_of_its_times() {
        let (mut view, now) = (view("a"), Instant::now());
        let mut seen = lease(Some("b"), "7", 3);
        seen.spec.as_mut().unwrap().renew_time = Some(MicroTime(Timestamp::MAX));
        let before = now + DURATION - Duration::from_millis(1);
        assert_eq!(view.decide(Some(seen.clone()), now, Timestamp::UNIX_EPOCH), Step::Wait);
        assert_eq!(view.decide(Some(seen.clone()), before, Timestamp::UNIX_EPOCH), Step::Wait);
        let step = view.decide(Some(seen), now + DURATION, Timestamp::UNIX_EPOCH);
        assert_eq!(step, Step::Replace(Box::new(lease(Some("a"), "7", 4))));
    }

    #[test]
    fn a_renewal_extends_the_term() {
        let (mut view, now) = (view("a"), Instant::now());
        let taken = stored(view.decide(Some(lease(None, "7", 3)), now, Timestamp::UNIX_EPOCH), "8");
        view.lead_until(now + DURATION);
        view.decide(Some(taken), now, Timestamp::UNIX_EPOCH);
        view.lead_until(now + DURATION * 2);
        assert_eq!(view.term, Some(term(1, now + DURATION * 2)));
    }

    /// Returns the Lease that a step of the candidate stores, with this version.
    fn stored(step: Step, version: &str) -> Lease {
        let Step::Replace(mut lease) = step else { panic!("{step:?}") };
        lease.metadata.resource_version = Some(version.to_owned());
        *lease
    }

    #[test]
    fn a_leader_begins_another_term_if_the_lease_differs_from_what_it_wrote() {
        let (mut view, now) = (view("a"), Instant::now());
        let at = |second| Timestamp::from_second(second).unwrap();
        let first = stored(view.decide(Some(lease(None, "7", 3)), now, at(1)), "8");
        view.lead_until(now + DURATION);
        view.decide(Some(first.clone()), now, at(2));
        view.lead_until(now + DURATION);
        // When the replica itself becomes the leader, nothing has to be read again.
        assert_eq!((view.term, view.ages), (Some(term(1, now + DURATION)), 0));
        // After a restore from a backup, the Lease is an earlier version of what the leader wrote.
        let again = stored(view.decide(Some(first), now, at(3)), "9");
        assert_eq!(again.spec.unwrap().lease_transitions, Some(5));
        view.lead_until(now + DURATION);
        assert_eq!((view.term, view.ages), (Some(term(2, now + DURATION)), 1));
    }

    #[test]
    fn a_leader_keeps_its_term_if_the_answers_to_its_renewals_are_lost() {
        let at = |second| Timestamp::from_second(second).unwrap();
        for read in 0..3 {
            let (mut view, now) = (view("a"), Instant::now());
            let first = stored(view.decide(Some(lease(None, "7", 3)), now, at(1)), "8");
            view.lead_until(now + DURATION);
            let second = stored(view.decide(Some(first.clone()), now, at(2)), "9");
            let third = stored(view.decide(Some(first.clone()), now, at(3)), "9");
            let leases = [first, second, third];
            view.decide(Some(leases[read].clone()), now, at(4));
            assert_eq!((view.term, view.ages), (Some(term(1, now + DURATION)), 0), "{read}");
        }
    }

    #[test]
    fn everything_is_listed_again_if_the_lease_is_of_another_tenure_or_an_earlier_version_or_is_absent() {
        let (mut view, now) = (view("a"), Instant::now());
        let mut ages = |version, transitions| {
            view.decide(Some(lease(Some("b"), version, transitions)), now, Timestamp::UNIX_EPOCH);
            view.ages
        };
        let seen = [ages("7", 3), ages("8", 3), ages("9", 4), ages("10", 4), ages("8", 4), ages("9", 4)];
        assert_eq!(seen, [0, 0, 1, 1, 2, 2]);
        view.decide(None, now, Timestamp::UNIX_EPOCH);
        assert_eq!(view.ages, 3);
    }

    #[test]
    fn a_leader_that_sees_another_holder_stops_leading() {
        let (mut view, now) = (view("a"), Instant::now());
        view.lead_until(now + DURATION);
        assert_eq!(view.term_at(now), Some(term(1, now + DURATION)));
        assert_eq!(view.decide(Some(lease(Some("b"), "7", 3)), now, Timestamp::UNIX_EPOCH), Step::Wait);
        assert_eq!(view.term_at(now), None);
    }

    #[test]
    fn a_leader_that_takes_a_released_lease_again_begins_another_term() {
        let (mut view, now) = (view("a"), Instant::now());
        view.lead_until(now + DURATION);
        // While this process was paused, another leader took and released the Lease.
        let step = view.decide(Some(lease(None, "9", 5)), now, Timestamp::UNIX_EPOCH);
        assert_eq!(step, Step::Replace(Box::new(lease(Some("a"), "9", 6))));
        view.lead_until(now + DURATION);
        assert_eq!(view.term, Some(term(2, now + DURATION)));
    }

    #[test]
    fn a_leader_without_an_answer_leads_until_the_lease_duration_is_over() {
        let (mut view, now) = (view("a"), Instant::now());
        let end = now + DURATION;
        view.lead_until(end);
        let before = end - Duration::from_millis(1);
        assert_eq!(view.term_at(before), view.term);
        assert_eq!(view.term_at(end), None);
    }

    #[test]
    fn a_term_without_an_election_has_no_end() {
        assert!(Term::ENDLESS.includes(Instant::now() + DURATION));
    }

    #[test]
    fn a_term_with_another_end_is_the_same_term() {
        let now = Instant::now();
        let is = |other| term(1, now).is(other);
        assert!(is(Some(term(1, now + DURATION))));
        assert!(!is(Some(term(2, now))));
        assert!(!is(None));
    }

    #[test]
    fn an_expired_lease_of_any_content_is_taken_with_its_version() {
        let mut valid = serde_json::to_value(lease(Some("b"), "7", 3)).unwrap();
        valid["metadata"]["annotations"] = serde_json::json!({"a": "b"});
        valid["spec"]["strategy"] = "OldestEmulationVersion".into();
        let mut taken = 0;
        crate::variants::each_object(&valid, |object| {
            // An API server rejects a Lease whose members have other JSON types.
            let Ok(lease) = read(object) else { return };
            let spec = lease.spec.clone().unwrap_or_default();
            let transitions = spec.lease_transitions.unwrap_or_default();
            let is_own = spec.holder_identity.as_deref() == Some("honest");
            let expected = LeaseSpec {
                holder_identity: Some("honest".to_owned()),
                acquire_time: spec.acquire_time.filter(|_| is_own).or(Some(MicroTime(Timestamp::UNIX_EPOCH))),
                renew_time: Some(MicroTime(Timestamp::UNIX_EPOCH)),
                lease_duration_seconds: Some(15),
                lease_transitions: Some(if is_own { transitions } else { transitions.saturating_add(1) }),
                ..LeaseSpec::default()
            };
            let expected = Step::Replace(Box::new(Lease { metadata: lease.metadata.clone(), spec: Some(expected) }));
            let is_held = spec.holder_identity.is_some_and(|holder| !["", "honest"].contains(&holder.as_str()))
                && spec.lease_duration_seconds.is_some_and(|seconds| seconds > 0);
            let (mut view, now) = (view("honest"), Instant::now());
            let first = view.decide(Some(lease.clone()), now, Timestamp::UNIX_EPOCH);
            assert_eq!(first, if is_held { Step::Wait } else { expected.clone() });
            let later = now + Duration::from_secs(u64::from(i32::MAX.unsigned_abs()));
            assert_eq!(view.decide(Some(lease), later, Timestamp::UNIX_EPOCH), expected);
            taken += 1;
        });
        assert!(taken > 50, "{taken}");
    }

    #[test]
    fn a_time_in_a_lease_that_cannot_be_parsed_counts_as_absent() {
        let object = serde_json::from_value(serde_json::json!({
            "metadata": {"name": "l", "managedFields": [{"time": "9999-12-31T23:59:59Z"}]},
            "spec": {"holderIdentity": "b", "renewTime": "9999-12-31T23:59:59.000000Z"},
        }));
        let spec = LeaseSpec { holder_identity: Some("b".to_owned()), ..LeaseSpec::default() };
        assert_eq!(read(object.unwrap()).unwrap().spec, Some(spec));
    }
}
