//! The pools of a cluster, and what their conditions have to say. Pure: watches feed it objects, and it emits the changes
//! that one place applies. It asks no server and no clock.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt;

use glowplug::host::pool::{Pool, overlaps};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta, Time};
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use crate::api::{GlobalStaticIPPool, PoolSpec, PoolStatus, StaticIPPool};

/// Which pool. The two kinds never share a name.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct PoolId {
    /// Namespace of a [`StaticIPPool`]. `None`: it is a [`GlobalStaticIPPool`].
    pub namespace: Option<String>,
    /// Name of the object.
    pub name: String,
}

/// A change of a pool's status that is wanted.
#[derive(Clone, Debug, PartialEq)]
pub struct Update {
    /// The pool.
    pub id: PoolId,
    /// A merge patch of the status. It names the version that it was made from, so that it is refused when somebody else
    /// has changed the object; the object then comes again.
    pub patch: Value,
}

/// The pools of a cluster.
#[derive(Debug, Default)]
pub struct Index {
    pools: BTreeMap<PoolId, Entry>,
}

#[derive(Debug)]
struct Entry {
    metadata: ObjectMeta,
    status: PoolStatus,
    /// The pool, or every mistake of its specification.
    pool: Result<Pool, String>,
}

/// The condition `Ready`: a status, a reason and a message.
struct Verdict {
    is_ready: bool,
    reason: &'static str,
    message: String,
}

/// Longest message of a condition, in bytes, that an API server accepts.
const MAX_MESSAGE: usize = 32_768;

// === impl Index ===

impl Index {
    /// Takes over a pool of a namespace.
    pub fn apply(&mut self, pool: StaticIPPool) {
        let id = PoolId::of(&pool.metadata);
        self.insert(id, pool.metadata, &pool.spec, pool.status);
    }

    /// Takes over a pool of the cluster.
    pub fn apply_global(&mut self, pool: GlobalStaticIPPool) {
        let id = PoolId { namespace: None, ..PoolId::of(&pool.metadata) };
        self.insert(id, pool.metadata, &pool.spec.pool, pool.status);
    }

    /// Removes a pool that is deleted.
    pub fn remove(&mut self, id: &PoolId) {
        self.pools.remove(id);
    }

    /// The pools that allocate addresses, by their names: valid ones that no older pool overlaps.
    #[must_use]
    pub fn serving(&self) -> Vec<&Pool> {
        let verdicts = self.verdicts();
        let serving = self.pools.iter().filter(|(id, _)| verdicts.get(*id).is_some_and(|verdict| verdict.is_ready));
        serving.filter_map(|(_, entry)| entry.pool.as_ref().ok()).collect()
    }

    /// The conditions that are not what they should be, by pool. `now` is the time of a transition.
    #[must_use]
    pub fn updates(&self, now: Timestamp) -> Vec<Update> {
        let verdicts = self.verdicts().into_iter();
        verdicts.filter_map(|(id, verdict)| self.pools[id].update(id, &verdict, now)).collect()
    }

    fn insert(&mut self, id: PoolId, metadata: ObjectMeta, spec: &PoolSpec, status: Option<PoolStatus>) {
        let (pool, findings) = spec.check(id.namespace.as_deref(), &id.name);
        let pool = pool.ok_or_else(|| {
            let lines: Vec<String> = findings.kept().iter().map(ToString::to_string).collect();
            lines.join("\n")
        });
        self.pools.insert(id, Entry { metadata, status: status.unwrap_or_default(), pool });
    }

    fn verdicts(&self) -> BTreeMap<&PoolId, Verdict> {
        // Of two pools the one that was there first keeps giving.
        let mut by_age: Vec<(&PoolId, &Entry, &Pool)> =
            self.pools.iter().filter_map(|(id, entry)| Some((id, entry, entry.pool.as_ref().ok()?))).collect();
        by_age.sort_by_key(|(id, entry, _)| (entry.created(), *id));
        let mut overlapped: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        for overlap in overlaps(by_age.iter().map(|(_, _, pool)| *pool)).kept {
            let [_, younger] = overlap.pools;
            overlapped.entry(&younger.name).or_default().push(overlap.to_string());
        }
        let verdict = |entry: &Entry| match &entry.pool {
            Err(message) => Verdict::not("InvalidSpec", message.clone()),
            Ok(pool) => match overlapped.get(pool.name.as_str()) {
                Some(problems) => Verdict::not("PoolOverlap", problems.join("\n")),
                None => {
                    Verdict { is_ready: true, reason: "Serving", message: "The pool allocates addresses".to_owned() }
                }
            },
        };
        self.pools.iter().map(|(id, entry)| (id, verdict(entry))).collect()
    }
}

// === impl Entry ===

impl Entry {
    /// Objects without a time are of tests and of nobody else: they are the youngest.
    fn created(&self) -> (Reverse<bool>, Option<Timestamp>) {
        let created = self.metadata.creation_timestamp.as_ref().map(|time| time.0);
        (Reverse(created.is_some()), created)
    }

    /// The patch that makes `Ready` what it should be. `None` if it is that already.
    fn update(&self, id: &PoolId, verdict: &Verdict, now: Timestamp) -> Option<Update> {
        let generation = self.metadata.generation;
        let before = self.status.conditions.iter().find(|condition| condition.type_ == "Ready");
        let status = if verdict.is_ready { "True" } else { "False" };
        let since = before.filter(|before| before.status == status).map(|before| before.last_transition_time.clone());
        let ready = Condition {
            type_: "Ready".to_owned(),
            status: status.to_owned(),
            reason: verdict.reason.to_owned(),
            message: verdict.message.clone(),
            observed_generation: generation,
            last_transition_time: since.unwrap_or(Time(now)),
        };
        if before == Some(&ready) && self.status.observed_generation == generation {
            return None;
        }
        let others = self.status.conditions.iter().filter(|condition| condition.type_ != "Ready").cloned();
        let mut conditions: Vec<Condition> = others.chain([ready]).collect();
        conditions.sort_by(|one, other| one.type_.cmp(&other.type_));
        let patch = json!({
            "metadata": {"resourceVersion": self.metadata.resource_version},
            "status": {"observedGeneration": generation, "conditions": conditions},
        });
        Some(Update { id: id.clone(), patch })
    }
}

// === impl Verdict ===

impl Verdict {
    fn not(reason: &'static str, mut message: String) -> Self {
        let end = (0..=MAX_MESSAGE.min(message.len())).rev().find(|end| message.is_char_boundary(*end));
        message.truncate(end.unwrap_or_default());
        Self { is_ready: false, reason, message }
    }
}

// === impl PoolId ===

impl PoolId {
    fn of(metadata: &ObjectMeta) -> Self {
        Self { namespace: metadata.namespace.clone(), name: metadata.name.clone().unwrap_or_default() }
    }
}

impl fmt::Display for PoolId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.namespace {
            Some(namespace) => write!(f, "{namespace}/{}", self.name),
            None => f.write_str(&self.name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::GlobalPoolSpec;

    fn spec(addresses: &str) -> PoolSpec {
        PoolSpec { network: "infra/vlan10".into(), addresses: vec![addresses.into()], ..PoolSpec::default() }
    }

    fn metadata(name: &str, second: i64) -> ObjectMeta {
        ObjectMeta {
            name: Some(name.to_owned()),
            generation: Some(1),
            resource_version: Some("7".to_owned()),
            creation_timestamp: Some(Time(at(second))),
            ..ObjectMeta::default()
        }
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn pool(name: &str, second: i64, addresses: &str) -> StaticIPPool {
        let metadata = ObjectMeta { namespace: Some("clusters".to_owned()), ..metadata(name, second) };
        StaticIPPool { metadata, spec: spec(addresses), status: None }
    }

    fn index<const N: usize>(pools: [StaticIPPool; N]) -> Index {
        let mut index = Index::default();
        pools.into_iter().for_each(|pool| index.apply(pool));
        index
    }

    fn serving(index: &Index) -> Vec<&str> {
        index.serving().into_iter().map(|pool| pool.name.as_str()).collect()
    }

    /// Reason and message of each update.
    fn said(index: &Index) -> Vec<(String, String, String)> {
        let condition = |update: Update| {
            let ready = &update.patch["status"]["conditions"][0];
            let text = |member: &str| ready[member].as_str().unwrap().to_owned();
            (update.id.to_string(), text("reason"), text("message"))
        };
        index.updates(at(100)).into_iter().map(condition).collect()
    }

    fn is(id: &str, reason: &str, message: &str) -> (String, String, String) {
        (id.to_owned(), reason.to_owned(), message.to_owned())
    }

    #[test]
    fn a_valid_pool_serves() {
        let index = index([pool("a", 1, "10.0.0.0/24")]);
        assert_eq!(serving(&index), ["clusters/a"]);
        let condition = json!({
            "type": "Ready", "status": "True", "reason": "Serving", "message": "The pool allocates addresses",
            "observedGeneration": 1, "lastTransitionTime": "1970-01-01T00:01:40Z",
        });
        let patch = json!({
            "metadata": {"resourceVersion": "7"},
            "status": {"observedGeneration": 1, "conditions": [condition]},
        });
        let id = PoolId { namespace: Some("clusters".to_owned()), name: "a".to_owned() };
        assert_eq!(index.updates(at(100)), [Update { id, patch }]);
    }

    #[test]
    fn every_mistake_of_a_pool_is_in_its_condition() {
        let mut wrong = pool("a", 1, "10.0.0.5/24");
        wrong.spec.gateway = vec!["x".to_owned()];
        let index = index([wrong, pool("b", 2, "10.0.0.0/24")]);
        assert_eq!(serving(&index), ["clusters/b"]);
        let message = "addresses[0]: host bits are set \"10.0.0.5/24\", expected no bits behind the length: \
                       did you mean 10.0.0.0/24 or 10.0.0.5/32\n\
                       gateway[0]: invalid address \"x\", expected an IPv4 or IPv6 address";
        assert_eq!(said(&index)[0], is("clusters/a", "InvalidSpec", message));
    }

    #[test]
    fn of_two_pools_with_one_address_the_younger_stops() {
        let index = index([pool("a", 2, "10.0.0.0/24"), pool("b", 1, "10.0.0.128/25"), pool("c", 3, "10.0.1.0/24")]);
        assert_eq!(serving(&index), ["clusters/b", "clusters/c"]);
        let message =
            "pools clusters/b and clusters/a offer the same addresses of network infra/vlan10: 10.0.0.129-10.0.0.254";
        assert_eq!(said(&index)[0], is("clusters/a", "PoolOverlap", message));
    }

    #[test]
    fn pools_of_one_age_are_ordered_by_name_whichever_comes_first() {
        let (a, b) = (pool("a", 1, "10.0.0.0/24"), pool("b", 1, "10.0.0.0/24"));
        let (one, other) = (index([a.clone(), b.clone()]), index([b, a]));
        assert_eq!(serving(&one), ["clusters/a"]);
        assert_eq!((serving(&one), one.updates(at(1))), (serving(&other), other.updates(at(1))));
    }

    #[test]
    fn a_younger_pool_serves_when_the_older_one_is_gone() {
        let mut index = index([pool("a", 1, "10.0.0.0/24"), pool("b", 2, "10.0.0.0/24")]);
        assert_eq!(serving(&index), ["clusters/a"]);
        index.remove(&PoolId { namespace: Some("clusters".to_owned()), name: "a".to_owned() });
        assert_eq!(serving(&index), ["clusters/b"]);
    }

    #[test]
    fn pools_of_both_kinds_overlap() {
        let mut index = index([pool("a", 2, "10.0.0.0/25")]);
        let spec = GlobalPoolSpec { pool: spec("10.0.0.0/24") };
        index.apply_global(GlobalStaticIPPool { metadata: metadata("a", 1), spec, status: None });
        assert_eq!(serving(&index), ["a"]);
        let message = "pools a and clusters/a offer the same addresses of network infra/vlan10: 10.0.0.1-10.0.0.126";
        assert_eq!(said(&index)[1], is("clusters/a", "PoolOverlap", message));
    }

    #[test]
    fn a_condition_that_is_right_is_not_written_again() {
        let mut index = index([pool("a", 1, "10.0.0.0/24")]);
        let update = index.updates(at(100)).remove(0);
        let mut written = pool("a", 1, "10.0.0.0/24");
        written.status = Some(serde_json::from_value(update.patch["status"].clone()).unwrap());
        index.apply(written);
        assert_eq!(index.updates(at(200)), []);
    }

    #[test]
    fn a_new_generation_keeps_the_time_and_the_other_conditions() {
        let mut changed = pool("a", 1, "10.0.0.0/24");
        let condition = |kind: &str| {
            json!({
                "type": kind, "status": "True", "reason": "Serving", "message": "The pool allocates addresses",
                "observedGeneration": 1, "lastTransitionTime": "1970-01-01T00:00:05Z",
            })
        };
        let [exhausted, mut ready] = ["Exhausted", "Ready"].map(condition);
        let status = json!({"observedGeneration": 1, "conditions": [ready, exhausted]});
        changed.status = Some(serde_json::from_value(status).unwrap());
        changed.metadata.generation = Some(2);
        let update = index([changed]).updates(at(100)).remove(0);
        ready["observedGeneration"] = 2.into();
        assert_eq!(update.patch["status"], json!({"observedGeneration": 2, "conditions": [exhausted, ready]}));
    }
}
