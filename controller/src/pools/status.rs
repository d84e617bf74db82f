//! Index of the pools of a cluster, and the status that each pool must have. Pure logic: the watches and the registry
//! feed the index, and the index returns the changes to make. The index uses no API server and no clock.

mod conditions;
mod observation;

pub use observation::{Observation, Observations, OtherUsers, observe};

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use conditions::{NAMESPACES_UNKNOWN, OF_SOME, Verdict, first_lines, node_pool_found};
use glowplug::host::allocator::PoolError;
use glowplug::host::pool::{Pool, overlaps};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use crate::cluster::conditions::{
    DAMAGED_LEASES, DELETING, DUPLICATE_RECORDS, INVALID_SPEC, SCHEMA_VIOLATED, UNADOPTED_RECORDS, UNREADABLE_LEASES,
    condition,
};
use crate::cluster::key::{Key, PoolId};
use crate::kinds::pool::{
    AddressCount, CLUSTER_LABEL, FamilyCount, MOST_WAITING, POOL_FINALIZER, PoolStatus, ReportsBeyond,
};
use crate::pools::facts::PoolFacts;
use crate::pools::selection::{KnownPool, Membership};

/// A change of a pool that the controller must write.
#[derive(Clone, Debug, PartialEq)]
pub struct Update {
    /// Namespace and name of the pool.
    pub id: PoolId,
    /// UID of the pool that must be changed.
    pub uid: Option<String>,
    /// Endpoint to which the patch is sent.
    pub part: Part,
    /// A merge patch with the `resourceVersion` of the object from which the patch was made. If the object has changed
    /// since then, the API server rejects the patch, and the watch reports the new object.
    pub patch: Value,
    /// Events that the change causes: the reason and the note of each.
    pub events: Vec<(&'static str, String)>,
}

/// The endpoints of a pool object.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Part {
    /// Metadata and specification.
    Object,
    /// The status subresource.
    Status,
}

/// The pools of a cluster, and facts about them.
#[derive(Debug, Default)]
pub struct KnownPools {
    pools: BTreeMap<PoolId, Arc<KnownPool>>,
    /// The machines and claims that each pool may serve.
    memberships: Arc<BTreeMap<PoolId, Membership>>,
    /// The changes that the registry rejected: for the name of each pool, the reason.
    refused: BTreeMap<String, String>,
    /// The condition `Ready` of each pool, which depends on the members above.
    verdicts: BTreeMap<PoolId, Verdict>,
}

/// Reason of the condition `Ready` of a pool whose change the registry rejects.
const IN_USE: &str = "InUse";

// === impl KnownPools ===

impl KnownPools {
    /// Replaces the pools, and the machines and claims that each pool may serve. For a pool that is not in
    /// `memberships`, no NodePool and no label of a Namespace is known.
    pub fn set(&mut self, pools: BTreeMap<PoolId, Arc<KnownPool>>, memberships: Arc<BTreeMap<PoolId, Membership>>) {
        let is_same = |(one, other): (&Arc<KnownPool>, &Arc<KnownPool>)| Arc::ptr_eq(one, other);
        let has_same_pools = pools.len() == self.pools.len() && pools.values().zip(self.pools.values()).all(is_same);
        if !has_same_pools || !Arc::ptr_eq(&memberships, &self.memberships) {
            (self.pools, self.memberships) = (pools, memberships);
            self.verdicts = self.judged();
        }
    }

    fn membership(&self, entry: &KnownPool) -> Membership {
        let known = self.memberships.get(&entry.checked.id).cloned();
        known.unwrap_or_else(|| entry.checked.membership(&BTreeMap::new(), None))
    }

    /// Whether the registry may accept a change that it rejected before. The registry rejects a change of a pool only
    /// while a lease names the pool.
    #[must_use]
    pub fn may_be_accepted(&self, observations: &Observations) -> bool {
        let held = |pool: &String| observations.get(pool).map_or(0, |observation| observation.usage.held);
        self.refused.keys().any(|pool| held(pool) == 0)
    }

    /// Returns every pool with a valid specification, and the names of the pools that allocate nothing.
    #[must_use]
    pub fn pools(&self) -> (Vec<Pool>, BTreeSet<String>) {
        let with_cluster = |entry: &Arc<KnownPool>| {
            let pool = entry.checked.pool.as_ref().ok()?.clone();
            let labels = entry.metadata.labels.as_ref();
            let Membership { machines, claims, cluster, .. } = self.membership(entry);
            // The label of the pool has precedence over the cluster of its NodePool.
            let cluster = labels.and_then(|labels| labels.get(CLUSTER_LABEL)).cloned().or(cluster);
            Some(pool.with_cluster(cluster).with_namespaces(machines, claims))
        };
        let pools = self.pools.values().filter_map(with_cluster).collect();
        // If the registry rejected the change of a pool, the pool is passed to the registry again, because the registry
        // may accept the change now.
        let allocates = |id: &PoolId, ready: &Verdict| {
            (ready.status == "True" || ready.reason == IN_USE) && self.pools[id].is_protected()
        };
        let suspended = self.verdicts.iter().filter(|(id, ready)| !allocates(id, ready));
        (pools, suspended.map(|(id, _)| id.to_string()).collect())
    }

    /// Returns for each pool the names of all pools that share its machines, in the order of their priority. A pool
    /// that shares no machines is left out, and so is a pool of `suspended`, because it allocates nothing.
    #[must_use]
    pub fn groups(&self, suspended: &BTreeSet<String>) -> BTreeMap<String, Vec<String>> {
        let mut by_network: BTreeMap<_, Vec<(String, &KnownPool)>> = BTreeMap::new();
        for (id, pool) in &self.pools {
            let (name, Some(network)) = (id.to_string(), pool.checked.network()) else { continue };
            if !suspended.contains(&name) {
                by_network.entry((&id.namespace, network)).or_default().push((name, pool));
            }
        }
        let mut groups = BTreeMap::new();
        for pools in by_network.values().filter(|pools| pools.len() > 1) {
            for (name, pool) in pools {
                let is_in = |(other_name, other): &&(String, &KnownPool)| {
                    other_name == name || pool.checked.shares_machines_with(&other.checked)
                };
                let mut group: Vec<&(String, &KnownPool)> = pools.iter().filter(is_in).collect();
                group.sort_by_key(|(_, pool)| pool.checked.priority());
                if group.len() > 1 {
                    groups.insert(name.clone(), group.into_iter().map(|(name, _)| name.clone()).collect());
                }
            }
        }
        groups
    }

    /// Whether there is a pool that would allocate addresses if its finalizer were stored.
    #[must_use]
    pub fn awaits_finalizer(&self) -> bool {
        self.verdicts.iter().any(|(id, ready)| ready.status == "True" && !self.pools[id].is_protected())
    }

    /// Facts that claims need, by the name of the pool.
    #[must_use]
    pub fn facts(&self) -> BTreeMap<String, PoolFacts> {
        let facts = self.verdicts.iter().map(|(id, verdict)| {
            let entry = &self.pools[id];
            let ready = match (verdict.status, entry.source()) {
                ("True", Some(source)) => {
                    Err(format!("The pool takes addresses from {source}, and serves machines only"))
                }
                ("True", None) if entry.is_protected() => Ok(()),
                ("True", None) => Err("The pool has no finalizer yet".to_owned()),
                _ => Err(verdict.message.clone()),
            };
            let uid = entry.metadata.uid.clone().unwrap_or_default();
            let (sticky, attachment) = (entry.checked.spec.sticky, entry.attachment());
            let claims = self.membership(entry).served_claims;
            (id.to_string(), PoolFacts { uid, sticky, ready, claims, attachment })
        });
        facts.collect()
    }

    /// Sets which changes of pools the registry has rejected, with the reasons. Earlier rejections are forgotten.
    pub fn refuse(&mut self, refused: Vec<(String, PoolError)>) {
        let refused = refused.into_iter().map(|(name, error)| (name, error.to_string())).collect();
        if refused != self.refused {
            self.refused = refused;
            self.verdicts = self.judged();
        }
    }

    /// Returns the changes that bring every pool to its desired state, at most one for each pool. `now` becomes the
    /// transition time of each condition whose status changes.
    #[must_use]
    pub fn updates(&self, observations: &Observations, now: Timestamp) -> Vec<Update> {
        let none = Observation::default();
        let update = |(id, verdict): (&PoolId, &Verdict)| {
            let observation = observations.get(&id.to_string()).unwrap_or(&none);
            let entry = &self.pools[id];
            let stalled = verdict.stalled();
            let membership = self.membership(entry);
            let verdicts = [
                node_pool_found(&membership),
                entry.namespaces_listed(&membership),
                entry.schema_violated(),
                observation
                    .unreadable
                    .as_ref()
                    .map(|lines| (UNREADABLE_LEASES, Verdict::of("True", DAMAGED_LEASES, lines))),
                observation.unadopted.as_ref().map(|obstacle| {
                    let message = format!("New addresses are not allocated yet: {obstacle}. Its log has the reason");
                    (UNADOPTED_RECORDS, Verdict::of("True", "AdoptionFailed", &message))
                }),
                Some(("Ready", verdict.clone())),
                Some(("Stalled", stalled)),
            ];
            let verdicts = verdicts.into_iter().flatten();
            entry.finalize(id, observation).or_else(|| entry.report(id, verdicts, observation, now))
        };
        self.verdicts.iter().filter_map(update).collect()
    }

    /// Decides the condition `Ready` of each pool.
    fn judged(&self) -> BTreeMap<PoolId, Verdict> {
        // If two pools overlap, the older pool continues to allocate.
        let mut by_age: Vec<(&PoolId, &KnownPool, &Pool)> = self
            .pools
            .iter()
            .filter_map(|(id, entry)| Some((id, &**entry, entry.checked.pool.as_ref().ok()?)))
            .collect();
        by_age.sort_by_key(|(id, entry, _)| (entry.created(), *id));
        let mut overlapped: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        for overlap in overlaps(by_age.iter().map(|(_, _, pool)| *pool)).kept {
            let [_, younger] = overlap.pools;
            overlapped.entry(younger.name()).or_default().push(overlap.to_string());
        }
        let verdict = |id: &PoolId, entry: &KnownPool| {
            let name = id.to_string();
            match &entry.checked.pool {
                _ if entry.is_deleted() => {
                    Verdict::not(DELETING, "The pool is being deleted and keeps its leases until they are released")
                }
                Err(message) => Verdict::not(INVALID_SPEC, message),
                Ok(_) => match (overlapped.get(name.as_str()), self.refused.get(&name)) {
                    (Some(problems), _) => Verdict::not("PoolOverlap", &problems.join("\n")),
                    (None, Some(problem)) => Verdict::not(IN_USE, problem),
                    (None, None) if entry.lacks_namespaces(&self.membership(entry)) => {
                        Verdict::not("NamespacesUnknown", NAMESPACES_UNKNOWN)
                    }
                    (None, None) => match entry.source() {
                        Some(source) => {
                            Verdict::of("True", "Serving", &format!("The pool takes addresses from {source}"))
                        }
                        None => Verdict::of("True", "Serving", "The pool allocates addresses"),
                    },
                },
            }
        };
        self.pools.iter().map(|(id, entry)| (id.clone(), verdict(id, entry))).collect()
    }
}

// === impl KnownPool ===

impl KnownPool {
    /// Returns the key by which pools are sorted by age. Only pools in tests have no creation time. They count as the
    /// youngest pools.
    fn created(&self) -> (Reverse<bool>, Option<Timestamp>) {
        let created = self.metadata.creation_timestamp.as_ref().map(|time| time.0);
        (Reverse(created.is_some()), created)
    }

    fn attachment(&self) -> Option<Key> {
        let pool = self.checked.pool.as_ref().ok().filter(|_| self.checked.spec.serve_ipam_claims)?;
        let (namespace, name) = pool.network().split_once('/')?;
        Some(Key { namespace: namespace.to_owned(), name: name.to_owned() })
    }

    fn is_deleted(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }

    /// Whether the pool has the finalizer of the controller.
    fn is_protected(&self) -> bool {
        self.metadata.finalizers.iter().flatten().any(|finalizer| finalizer == POOL_FINALIZER)
    }

    /// Returns the patch of the finalizers. A pool gets the finalizer of the controller before its first lease, and
    /// loses it after its last lease. `None`: the finalizers need no change.
    fn finalize(&self, id: &PoolId, observation: &Observation) -> Option<Update> {
        let mut finalizers = self.metadata.finalizers.clone().unwrap_or_default();
        match (self.is_deleted(), self.is_protected()) {
            (false, false) => finalizers.push(POOL_FINALIZER.to_owned()),
            (true, true) if observation.usage.held == 0 => finalizers.retain(|finalizer| finalizer != POOL_FINALIZER),
            _ => return None,
        }
        let patch = json!({
            "metadata": {"resourceVersion": self.metadata.resource_version, "finalizers": finalizers},
        });
        Some(Update { id: id.clone(), uid: self.metadata.uid.clone(), part: Part::Object, patch, events: Vec::new() })
    }

    /// Returns the patch of the status. `None`: the stored status is correct.
    fn report(
        &self,
        id: &PoolId,
        others: impl IntoIterator<Item = (&'static str, Verdict)>,
        observation: &Observation,
        now: Timestamp,
    ) -> Option<Update> {
        let exhausted = self.exhausted(id, observation);
        let duplicates = match observation.conflicts.is_empty() {
            true => Verdict::of("False", "NoDuplicates", "Every address has at most one user"),
            false => Verdict::of("True", "ConflictingRecords", &first_lines(&observation.conflicts)),
        };
        let verdicts: Vec<(&str, Verdict)> =
            [(DUPLICATE_RECORDS, duplicates), ("Exhausted", exhausted)].into_iter().chain(others).collect();
        let events = [
            ("Exhausted", "IPPoolExhausted"),
            (DUPLICATE_RECORDS, "IPAddressConflict"),
            (SCHEMA_VIOLATED, "SchemaViolated"),
            (UNREADABLE_LEASES, "UnreadableLeases"),
            (UNADOPTED_RECORDS, "UnadoptedRecords"),
        ];
        let events = events.into_iter().filter_map(|(type_, reason)| {
            let (_, verdict) = verdicts.iter().find(|(of, verdict)| *of == type_ && verdict.status == "True")?;
            let was_true = self.condition(type_).is_some_and(|before| before.status == "True");
            (!was_true).then(|| (reason, verdict.message.clone()))
        });
        let events: Vec<(&str, String)> = events.collect();
        let others = self.status.conditions.iter().filter(|before| {
            !OF_SOME.contains(&before.type_.as_str()) && verdicts.iter().all(|(type_, _)| *type_ != before.type_)
        });
        let mut conditions: Vec<Condition> = others.cloned().collect();
        let verdicts = verdicts.into_iter().map(|(type_, Verdict { status, reason, message })| {
            let verdict = (status, reason, message.as_str());
            condition(&self.status.conditions, type_, verdict, self.metadata.generation, now)
        });
        conditions.extend(verdicts);
        conditions.sort_by(|one, other| one.type_.cmp(&other.type_));
        let families: Vec<FamilyCount> = observation.usage.families.iter().map(FamilyCount::from).collect();
        let status = PoolStatus {
            observed_generation: self.metadata.generation,
            ip_addresses: match self.source() {
                Some(_) => {
                    let held = i64::try_from(observation.usage.held).unwrap_or(i64::MAX);
                    Some(AddressCount { total: held, allocated: held, ..AddressCount::default() })
                }
                None => (!families.is_empty()).then(|| AddressCount::of(&observation.usage.families)),
            },
            families,
            waiting: u32::try_from(observation.usage.waiting + observation.usage.refused).unwrap_or(u32::MAX),
            first_waiting: observation
                .waiting
                .iter()
                .cloned()
                .chain(observation.refused())
                .take(MOST_WAITING)
                .collect(),
            machines: observation.machines.selected,
            outdated: observation.machines.outdated,
            left_alone: observation.machines.left_alone,
            not_held: observation.machines.not_held,
            reports_beyond: observation.beyond.as_ref().map(ReportsBeyond::from),
            neighbours: observation.neighbours.clone(),
            conditions,
        };
        if status == self.status {
            return None;
        }
        let patch = json!({
            "metadata": {"resourceVersion": self.metadata.resource_version},
            "status": {
                "observedGeneration": status.observed_generation,
                "ipAddresses": status.ip_addresses,
                "families": status.families,
                "waiting": status.waiting,
                "firstWaiting": status.first_waiting,
                "machines": status.machines,
                "outdated": status.outdated,
                "leftAlone": status.left_alone,
                "notHeld": status.not_held,
                "reportsBeyond": status.reports_beyond,
                "neighbours": status.neighbours,
                "conditions": status.conditions,
            },
        });
        Some(Update { id: id.clone(), uid: self.metadata.uid.clone(), part: Part::Status, patch, events })
    }

    fn condition(&self, type_: &str) -> Option<&Condition> {
        self.status.conditions.iter().find(|condition| condition.type_ == type_)
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use glowplug::host::allocator::{PoolUsage, Usage};
    use glowplug::host::claim::HolderKind;
    use glowplug::host::metrics::relief;
    use glowplug::host::pool::Namespaces;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};

    use super::*;
    use crate::cluster::conditions::MOST_LINES;
    use crate::kinds::pool::{PoolSpec, Waiting};
    use crate::pools::facts::PoolObject;

    fn metadata(namespace: Option<&str>, name: &str, second: i64) -> ObjectMeta {
        ObjectMeta {
            namespace: namespace.map(str::to_owned),
            name: Some(name.to_owned()),
            uid: Some(format!("uid-of-{name}")),
            generation: Some(1),
            resource_version: Some("7".to_owned()),
            creation_timestamp: Some(Time(at(second))),
            finalizers: Some(vec![POOL_FINALIZER.to_owned()]),
            ..ObjectMeta::default()
        }
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn pool(name: &str, second: i64, addresses: &str) -> PoolObject {
        let spec =
            PoolSpec { network: "infra/vlan10".into(), addresses: vec![addresses.into()], ..PoolSpec::default() };
        PoolObject { metadata: metadata(Some("clusters"), name, second), spec: Ok(spec), status: None }
    }

    impl KnownPools {
        fn apply(&mut self, object: PoolObject) {
            let pool = KnownPool::read(object);
            let mut pools = self.pools.clone();
            pools.insert(pool.checked.id.clone(), Arc::new(pool));
            self.set(pools, Arc::clone(&self.memberships));
        }

        fn remove(&mut self, id: &PoolId) {
            let mut pools = self.pools.clone();
            pools.remove(id);
            self.set(pools, Arc::clone(&self.memberships));
        }
    }

    fn index<const N: usize>(pools: [PoolObject; N]) -> KnownPools {
        let mut index = KnownPools::default();
        pools.into_iter().for_each(|pool| index.apply(pool));
        index
    }

    /// The names of the pools that allocate addresses.
    fn serving(index: &KnownPools) -> Vec<String> {
        let (pools, suspended) = index.pools();
        pools.into_iter().map(|pool| pool.name().to_owned()).filter(|name| !suspended.contains(name)).collect()
    }

    /// State of a pool in the registry, with these numbers of free and allocated addresses.
    fn observation(free: u128, allocated: u128) -> Observation {
        let usage = Usage {
            family: glowplug::network::Family::Ipv4,
            total: free + allocated + 2,
            allocated,
            excluded: 2,
            by_record: 0,
            by_report: 0,
            reuse_delay: 0,
            free,
            conflicts: 0,
            outside: 0,
        };
        let usage =
            PoolUsage { families: vec![usage], held: usize::try_from(allocated).unwrap(), ..PoolUsage::default() };
        Observation { usage, ..Observation::default() }
    }

    /// State of a pool that is not in the registry, with this number of held leases.
    fn held(held: usize) -> Observation {
        Observation { usage: PoolUsage { held, ..PoolUsage::default() }, ..Observation::default() }
    }

    fn waiting(waiting: usize, mut observation: Observation) -> Observation {
        observation.usage.waiting = waiting;
        observation
    }

    fn observations<const N: usize>(all: [(&str, Observation); N]) -> Observations {
        all.map(|(name, observation)| (name.to_owned(), observation)).into()
    }

    /// The status, the reason and the message of a condition that an update writes.
    fn condition(update: &Update, type_: &str) -> [String; 3] {
        let conditions = update.patch["status"]["conditions"].as_array().unwrap();
        let condition = conditions.iter().find(|condition| condition["type"] == type_).unwrap();
        ["status", "reason", "message"].map(|member| condition[member].as_str().unwrap().to_owned())
    }

    /// The condition `Ready` of each pool whose status would be written.
    fn ready(index: &KnownPools) -> Vec<(String, [String; 3])> {
        let updates = index.updates(&Observations::new(), at(100));
        updates.iter().map(|update| (update.id.to_string(), condition(update, "Ready"))).collect()
    }

    fn not_ready(id: &str, reason: &str, message: &str) -> (String, [String; 3]) {
        (id.to_owned(), ["False", reason, message].map(str::to_owned))
    }

    /// Returns the pool as it is stored after an update of its status.
    fn stored(mut object: PoolObject, update: &Update) -> PoolObject {
        object.status = Some(serde_json::from_value(update.patch["status"].clone()).unwrap());
        object.metadata.resource_version = Some("8".to_owned());
        object
    }

    #[test]
    fn a_valid_pool_allocates_and_reports_its_addresses() {
        let index = index([pool("a", 1, "10.0.0.0/24")]);
        assert_eq!(serving(&index), ["clusters/a"]);
        let known = observations([("clusters/a", observation(251, 3))]);
        let condition = |type_: &str, status: &str, reason: &str, message: &str| {
            json!({
                "type": type_, "status": status, "reason": reason, "message": message,
                "observedGeneration": 1, "lastTransitionTime": "1970-01-01T00:01:40Z",
            })
        };
        let patch = json!({
            "metadata": {"resourceVersion": "7"},
            "status": {
                "observedGeneration": 1,
                "ipAddresses": {"total": 254, "free": 251, "allocated": 3, "outside": 0},
                "families": [{
                    "family": "IPv4", "total": "256", "allocated": "3", "reserved": "2", "excluded": "2", "byRecord": "0",
                    "byReport": "0", "reuseDelay": "0", "free": "251", "conflicts": "0", "outside": "0",
                }],
                "waiting": 0,
                "firstWaiting": [],
                "machines": 0,
                "outdated": 0,
                "leftAlone": 0,
                "notHeld": 0,
                "reportsBeyond": null,
                "neighbours": [],
                "conditions": [
                    condition("DuplicateRecords", "False", "NoDuplicates", "Every address has at most one user"),
                    condition("Exhausted", "False", "FreeAddresses", "The pool has free addresses"),
                    condition("Ready", "True", "Serving", "The pool allocates addresses"),
                    condition("Stalled", "False", "NotStalled", "No user has to change the object"),
                ],
            },
        });
        let id = PoolId { namespace: Some("clusters".to_owned()), name: "a".to_owned() };
        let update = Update { id, uid: Some("uid-of-a".to_owned()), part: Part::Status, patch, events: Vec::new() };
        assert_eq!(index.updates(&known, at(100)), [update]);
    }

    #[test]
    fn a_pool_of_an_earlier_schema_allocates_and_has_a_condition_and_one_event() {
        let mut object = pool("a", 1, "10.0.0.0/24");
        let exclusions = ["10.0.0.8", "10.0.0.9", "10.0.0.8"].map(str::to_owned);
        object.spec.as_mut().unwrap().excluded_addresses = exclusions.into();
        let mut earlier = index([object.clone()]);
        assert_eq!(serving(&earlier), ["clusters/a"]);
        let update = earlier.updates(&Observations::new(), at(100)).remove(0);
        let line = "excludedAddresses[2]: repeated item \"10.0.0.8\", expected each item once";
        assert_eq!(condition(&update, "SchemaViolated"), ["True", "EarlierSchema", line]);
        assert_eq!(update.events, [("SchemaViolated", line.to_owned())]);
        let mut written = stored(object, &update);
        earlier.apply(written.clone());
        assert_eq!(earlier.updates(&Observations::new(), at(101)), []);
        written.spec.as_mut().unwrap().excluded_addresses.truncate(2);
        let update = index([written]).updates(&Observations::new(), at(102)).remove(0);
        let types =
            update.patch["status"]["conditions"].as_array().unwrap().iter().map(|it| it["type"].as_str().unwrap());
        assert_eq!(types.collect::<Vec<_>>(), ["DuplicateRecords", "Exhausted", "Ready", "Stalled"]);
    }

    #[test]
    fn a_pool_with_addresses_from_another_program_counts_its_leases_and_serves_no_claims() {
        let mut object = pool("a", 1, "10.0.0.0/24");
        let from = json!({"poolRef": {"apiGroup": "ipam.cluster.x-k8s.io", "kind": "InClusterIPPool", "name": "x"}});
        let spec = json!({"network": "infra/vlan10", "addressesFrom": from, "machineSelector": {}});
        object.spec = Ok(serde_json::from_value(spec).unwrap());
        let index = index([object]);
        assert_eq!(serving(&index), ["clusters/a"]);
        let known = observations([("clusters/a", held(2))]);
        let update = index.updates(&known, at(100)).remove(0);
        let count = json!({"total": 2, "free": null, "allocated": 2, "outside": 0});
        assert_eq!(update.patch["status"]["ipAddresses"], count);
        let ready = ["True", "Serving", "The pool takes addresses from InClusterIPPool x"];
        assert_eq!(condition(&update, "Ready"), ready);
        let exhausted = ["False", "AddressesFrom", "Another program chooses the addresses of the pool"];
        assert_eq!(condition(&update, "Exhausted"), exhausted);
        let message = "The pool takes addresses from InClusterIPPool x, and serves machines only";
        assert_eq!(index.facts()["clusters/a"].ready, Err(message.to_owned()));
    }

    #[test]
    fn a_pool_allocates_nothing_before_it_has_the_finalizer() {
        let mut new = pool("a", 1, "10.0.0.0/24");
        new.metadata.finalizers = Some(vec!["example.org/other".to_owned()]);
        let index = index([new]);
        assert_eq!(serving(&index), [] as [&str; 0]);
        let update = index.updates(&Observations::new(), at(100)).remove(0);
        let finalizers = json!({"resourceVersion": "7", "finalizers": ["example.org/other", POOL_FINALIZER]});
        assert_eq!((update.part, update.patch), (Part::Object, json!({"metadata": finalizers})));
    }

    #[test]
    fn the_facts_for_claims_say_which_pools_allocate_and_why_the_others_do_not() {
        let (mut sticky, mut new) = (pool("a", 1, "10.0.0.0/25"), pool("b", 1, "10.0.0.128/25"));
        sticky.spec.as_mut().unwrap().sticky = true;
        new.metadata.finalizers = None;
        let facts = |name: &str, sticky, ready: Result<(), &str>| {
            let (uid, ready) = (format!("uid-of-{name}"), ready.map_err(str::to_owned));
            (
                format!("clusters/{name}"),
                PoolFacts { uid, sticky, ready, claims: Namespaces::only(["clusters"]), attachment: None },
            )
        };
        let overlap =
            "pools clusters/a and clusters/c offer the same addresses of network infra/vlan10: 10.0.0.1-10.0.0.6";
        let expected = [
            facts("a", true, Ok(())),
            facts("b", false, Err("The pool has no finalizer yet")),
            facts("c", false, Err(overlap)),
        ];
        assert_eq!(index([sticky, new, pool("c", 2, "10.0.0.0/29")]).facts(), expected.into());
    }

    #[test]
    fn a_deleted_pool_allocates_nothing_and_loses_the_finalizer_with_its_last_lease() {
        let mut deleted = pool("a", 1, "10.0.0.0/24");
        deleted.metadata.deletion_timestamp = Some(Time(at(50)));
        let index = index([deleted]);
        assert_eq!(serving(&index), [] as [&str; 0]);
        let held = index.updates(&observations([("clusters/a", observation(253, 1))]), at(100)).remove(0);
        let message = "The pool is being deleted and keeps its leases until they are released";
        assert_eq!(condition(&held, "Ready"), ["False", "Deleting", message]);
        let free = index.updates(&observations([("clusters/a", observation(254, 0))]), at(100)).remove(0);
        let finalizers = json!({"resourceVersion": "7", "finalizers": []});
        assert_eq!((free.part, free.patch), (Part::Object, json!({"metadata": finalizers})));
    }

    #[test]
    fn an_invalid_pool_keeps_the_finalizer_while_a_lease_of_the_pool_is_held() {
        let mut deleted = pool("a", 1, "nothing");
        deleted.metadata.deletion_timestamp = Some(Time(at(50)));
        let known = observations([("clusters/a", held(1))]);
        let update = index([deleted]).updates(&known, at(100)).remove(0);
        assert_eq!(update.part, Part::Status);
    }

    #[test]
    fn every_error_of_a_pool_is_in_its_condition() {
        let mut wrong = pool("a", 1, "10.0.0.5/24");
        wrong.spec.as_mut().unwrap().gateway = vec!["x".to_owned()];
        let index = index([wrong, pool("b", 2, "10.0.0.0/24")]);
        assert_eq!(serving(&index), ["clusters/b"]);
        let message = "addresses[0]: host bits are set \"10.0.0.5/24\", expected no bits after the prefix length: \
                       did you mean 10.0.0.0/24 or 10.0.0.5/32\n\
                       gateway[0]: invalid address \"x\", expected an IPv4 or IPv6 address";
        assert_eq!(ready(&index)[0], not_ready("clusters/a", "InvalidSpec", message));
    }

    #[test]
    fn an_object_that_cannot_be_read_is_an_invalid_pool() {
        let mut wrong = pool("a", 1, "10.0.0.0/24");
        wrong.spec = Err("invalid type: string, expected a sequence".to_owned());
        let index = index([wrong]);
        let message = "invalid type: string, expected a sequence";
        assert_eq!(ready(&index), [not_ready("clusters/a", "InvalidSpec", message)]);
    }

    #[test]
    fn the_younger_of_two_pools_with_a_common_address_allocates_nothing() {
        let index = index([pool("a", 2, "10.0.0.0/24"), pool("b", 1, "10.0.0.128/25"), pool("c", 3, "10.0.1.0/24")]);
        assert_eq!(serving(&index), ["clusters/b", "clusters/c"]);
        let message =
            "pools clusters/b and clusters/a offer the same addresses of network infra/vlan10: 10.0.0.129-10.0.0.254";
        assert_eq!(ready(&index)[0], not_ready("clusters/a", "PoolOverlap", message));
    }

    #[test]
    fn pools_of_the_same_age_are_sorted_by_name() {
        let (a, b) = (pool("a", 1, "10.0.0.0/24"), pool("b", 1, "10.0.0.0/24"));
        let (one, other) = (index([a.clone(), b.clone()]), index([b, a]));
        assert_eq!(serving(&one), ["clusters/a"]);
        assert_eq!((serving(&one), ready(&one)), (serving(&other), ready(&other)));
    }

    #[test]
    fn a_younger_pool_allocates_when_the_older_pool_with_a_common_address_is_gone() {
        let mut index = index([pool("a", 1, "10.0.0.0/24"), pool("b", 2, "10.0.0.0/24")]);
        assert_eq!(serving(&index), ["clusters/a"]);
        index.remove(&PoolId { namespace: Some("clusters".to_owned()), name: "a".to_owned() });
        assert_eq!(serving(&index), ["clusters/b"]);
    }

    #[test]
    fn pools_of_different_kinds_can_overlap() {
        let global = PoolObject { metadata: metadata(None, "a", 1), ..pool("a", 1, "10.0.0.0/24") };
        let index = index([pool("a", 2, "10.0.0.0/25"), global]);
        assert_eq!(serving(&index), ["a"]);
        let message = "pools a and clusters/a offer the same addresses of network infra/vlan10: 10.0.0.1-10.0.0.126";
        assert_eq!(ready(&index)[1], not_ready("clusters/a", "PoolOverlap", message));
    }

    #[test]
    fn a_pool_has_the_cluster_of_its_label_or_of_its_node_pool() {
        let mut labelled = pool("b", 1, "10.1.0.0/24");
        labelled.metadata.labels = Some([(CLUSTER_LABEL.to_owned(), "blue".to_owned())].into());
        let mut index = index([pool("a", 1, "10.0.0.0/24"), labelled, pool("c", 1, "10.2.0.0/24")]);
        let red = |name: &str| {
            let id = PoolId::of(&metadata(Some("clusters"), name, 1));
            let membership = index.membership(&index.pools[&id]);
            (id, Membership { cluster: Some("red".to_owned()), ..membership })
        };
        index.set(index.pools.clone(), Arc::new([red("a"), red("b")].into()));
        let (pools, _) = index.pools();
        let clusters: Vec<Option<&str>> = pools.iter().map(Pool::cluster).collect();
        assert_eq!(clusters, [Some("red"), Some("blue"), None]);
    }

    #[test]
    fn a_pool_with_a_namespace_selector_allocates_only_while_the_labels_of_namespaces_are_known() {
        let spec = PoolSpec {
            namespace_selector: Some(Default::default()),
            network: "infra/vlan10".into(),
            addresses: vec!["10.0.0.0/24".into()],
            ..PoolSpec::default()
        };
        let mut index = index([PoolObject { metadata: metadata(None, "a", 1), spec: Ok(spec), status: None }]);
        let id = PoolId { namespace: None, name: "a".to_owned() };
        assert_eq!(
            (ready(&index), serving(&index)),
            (vec![not_ready("a", "NamespacesUnknown", NAMESPACES_UNKNOWN)], vec![])
        );
        let update = index.updates(&Observations::new(), at(100)).remove(0);
        assert_eq!(condition(&update, "NamespacesListed"), ["False", "Forbidden", NAMESPACES_UNKNOWN]);
        let namespaces = [("n".to_owned(), BTreeMap::new())].into();
        let membership = index.pools[&id].checked.membership(&BTreeMap::new(), Some(&namespaces));
        index.set(index.pools.clone(), Arc::new([(id, membership)].into()));
        assert_eq!(serving(&index), ["a"]);
        let facts = index.facts().remove("a").unwrap();
        assert_eq!(["n", "m"].map(|namespace| facts.claims.has(namespace)), [true, false]);
        let update = index.updates(&Observations::new(), at(100)).remove(0);
        assert_eq!(condition(&update, "NamespacesListed"), ["True", "Listed", "Namespaces that the pool selects: 1"]);
    }

    #[test]
    fn a_refused_change_is_in_the_condition_and_is_passed_to_the_registry_again_when_no_lease_names_the_pool() {
        let mut index = index([pool("a", 1, "10.0.0.0/24")]);
        let error = PoolError::InUse {
            pool: "clusters/a".to_owned(),
            member: "interface",
            known: "eno101".to_owned(),
            given: "eno102".to_owned(),
        };
        let held = |held: usize| {
            let usage = PoolUsage { held, ..PoolUsage::default() };
            observations([("clusters/a", Observation { usage, ..Observation::default() })])
        };
        assert!(!index.may_be_accepted(&held(0)), "no change is refused");
        index.refuse(vec![("clusters/a".to_owned(), error.clone())]);
        let may_be_accepted = [held(2), held(1), held(0), Observations::new()].map(|it| index.may_be_accepted(&it));
        assert_eq!(may_be_accepted, [false, false, true, true]);
        assert_eq!(ready(&index), [not_ready("clusters/a", "InUse", &error.to_string())]);
        assert_eq!(serving(&index), ["clusters/a"], "the registry decides again");
        index.refuse(Vec::new());
        let update = index.updates(&Observations::new(), at(100)).remove(0);
        assert_eq!(condition(&update, "Ready"), ["True", "Serving", "The pool allocates addresses"]);
    }

    #[test]
    fn a_correct_status_of_a_pool_is_not_written_again() {
        let known = observations([("clusters/a", observation(254, 0))]);
        let mut index = index([pool("a", 1, "10.0.0.0/24")]);
        let update = index.updates(&known, at(100)).remove(0);
        index.apply(stored(pool("a", 1, "10.0.0.0/24"), &update));
        assert_eq!(index.updates(&known, at(200)), []);
    }

    #[test]
    fn an_exhausted_pool_has_a_condition_and_one_event_with_the_message_of_the_openshift_enhancement() {
        let known = observations([("clusters/a", waiting(2, observation(0, 254)))]);
        let mut index = index([pool("a", 1, "10.0.0.0/24")]);
        let update = index.updates(&known, at(100)).remove(0);
        let message = "No available IPs in pool for interface eno101: pool clusters/a, IPv4";
        assert_eq!(condition(&update, "Exhausted"), ["True", "NoFreeAddress", message]);
        assert_eq!(update.patch["status"]["waiting"], 2);
        assert_eq!(update.events, [("IPPoolExhausted", message.to_owned())]);
        // Another machine waits. This changes the status, but the pool was exhausted before, so there is no event.
        index.apply(stored(pool("a", 1, "10.0.0.0/24"), &update));
        let known = observations([("clusters/a", waiting(3, observation(0, 254)))]);
        let update = index.updates(&known, at(200)).remove(0);
        assert_eq!((update.patch["status"]["waiting"].as_u64(), update.events), (Some(3), Vec::new()));
    }

    #[test]
    fn refused_machines_follow_the_wait_queue_in_the_status_and_change_nothing_else() {
        let index = index([pool("a", 1, "10.0.0.0/24")]);
        let row = |kind, name: &str, second| Waiting {
            kind,
            namespace: "n".to_owned(),
            name: name.to_owned(),
            family: Some("IPv4".to_owned()),
            since: Time(at(second)),
        };
        let machine = |name: &str, second| row(HolderKind::KubevirtMachine, name, second);
        let queue: Vec<Waiting> =
            (0..9).map(|number| row(HolderKind::IpAddressClaim, &format!("c-{number}"), 50)).collect();
        let before = Observation { waiting: queue.clone(), ..waiting(9, observation(0, 254)) };
        let mut known = before.clone();
        known.usage.refused = 2;
        known.refused = [("m-1", 10), ("m-2", 20)].map(|(name, second)| (at(second), ("n", name).into())).to_vec();
        let patch = |known: Observation| index.updates(&observations([("clusters/a", known)]), at(100)).remove(0).patch;
        let mut expected = patch(before);
        expected["status"]["waiting"] = 11.into();
        expected["status"]["firstWaiting"] = json!(queue.into_iter().chain([machine("m-1", 10)]).collect::<Vec<_>>());
        assert_eq!(patch(known), expected);
        // Rejected machines do not change the condition `Exhausted`: by this condition, the webhook decides whether to
        // reject a machine.
        let mut relieved = Observation { relief: Some("clusters/b".to_owned()), ..observation(0, 254) };
        relieved.usage.refused = 1;
        let update = index.updates(&observations([("clusters/a", relieved)]), at(100)).remove(0);
        assert_eq!(condition(&update, "Exhausted")[..2], ["False", "Overflow"]);
    }

    #[test]
    fn a_full_pool_whose_machines_get_addresses_of_another_pool_is_not_exhausted() {
        let selecting = |name: &str, addresses: &str, priority: i32| {
            let mut object = pool(name, 1, addresses);
            let spec = object.spec.as_mut().unwrap();
            (spec.machine_selector, spec.priority) = (Some(Default::default()), Some(priority));
            object
        };
        let (a, b) = (selecting("a", "10.0.0.0/24", 0), selecting("b", "10.0.1.0/24", 1));
        let first = selecting("c", "10.0.2.0/24", -1);
        let group = ["clusters/c", "clusters/a", "clusters/b"].map(str::to_owned).to_vec();
        let expected = ["clusters/a", "clusters/b", "clusters/c"].map(|name| (name.to_owned(), group.clone()));
        assert_eq!(index([a.clone(), b.clone(), first]).groups(&BTreeSet::new()), expected.into());
        assert_eq!(index([a.clone(), b.clone()]).groups(&["clusters/b".to_owned()].into()), BTreeMap::new());
        for other in [selecting("c", "10.0.1.0/24", 0), pool("c", 1, "10.0.1.0/24")] {
            assert_eq!(index([a.clone(), other]).groups(&BTreeSet::new()), BTreeMap::new());
        }
        let relieved = Observation { relief: Some("clusters/b".to_owned()), ..observation(0, 254) };
        let update = index([a.clone()]).updates(&observations([("clusters/a", relieved)]), at(100)).remove(0);
        let message = "The pool has no free IPv4 address, and its machines get addresses of pool clusters/b";
        assert_eq!(condition(&update, "Exhausted"), ["False", "Overflow", message]);
        assert_eq!(update.events, Vec::new());
    }

    #[test]
    fn an_exhausted_pool_has_relief_only_if_nothing_waits_for_its_addresses() {
        let full = observation(0, 254).usage;
        let free = observation(1, 253).usage;
        let waiting = PoolUsage { waiting: 1, ..full.clone() };
        let others = [("n/a", &full), ("n/b", &PoolUsage::default()), ("n/c", &free)];
        assert_eq!([&full, &waiting].map(|usage| relief(usage, others)), [Some("n/c"), None]);
        assert_eq!(relief(&full, [("n/a", &full), ("n/b", &PoolUsage::default())]), None);
    }

    #[test]
    fn the_condition_names_every_user_of_an_address_with_two_users() {
        let conflicts = ["10.0.0.8", "10.0.0.9"].map(|address| {
            (
                ("infra/vlan10".to_owned(), address.parse().unwrap()),
                OtherUsers { lines: vec![format!("{address} a"), format!("{address} b")], count: 2 },
            )
        });
        let known = observations([("clusters/a", Observation { conflicts: conflicts.into(), ..observation(252, 0) })]);
        let update = index([pool("a", 1, "10.0.0.0/24")]).updates(&known, at(100)).remove(0);
        let lines = "10.0.0.8 a\n10.0.0.8 b\n10.0.0.9 a\n10.0.0.9 b";
        assert_eq!(condition(&update, "DuplicateRecords"), ["True", "ConflictingRecords", lines]);
        assert_eq!(update.events, [("IPAddressConflict", lines.to_owned())]);
    }

    #[test]
    fn a_condition_has_a_line_for_each_address_before_a_second_line_for_the_same_address() {
        let of = |address: &str, count: usize| {
            let lines = (0..count.min(MOST_LINES)).map(|at| format!("{address} {at}")).collect();
            (("infra/vlan10".to_owned(), address.parse().unwrap()), OtherUsers { lines, count })
        };
        let conflicts = BTreeMap::from([of("10.0.0.8", 30), of("10.0.0.9", 1), of("10.0.0.10", 3)]);
        let of_first: Vec<String> = (0..16).map(|at| format!("10.0.0.8 {at}\n")).collect();
        let others = "10.0.0.9 0\n10.0.0.10 0\n10.0.0.10 1\n10.0.0.10 2\nand 14 more";
        assert_eq!(first_lines(&conflicts), of_first.concat() + others);
    }

    #[test]
    fn the_lines_about_conflicts_are_bounded_and_name_each_machine_once() {
        use glowplug::host::claim::{Claimant, HolderKind, Reservation};
        use glowplug::host::ledger::MemoryLedger;
        use glowplug::host::may_record::Source;
        use glowplug::host::registry::Registry;

        let pool = br#"{"namespace": "n", "name": "p", "network": "n/vlan10", "addresses": ["10.0.0.0/24"]}"#;
        let mut registry = Registry::open(MemoryLedger::default()).unwrap();
        registry.resize(Pool::parse(pool).unwrap(), &[], at(1)).unwrap();
        let of = |(name, uid): (&str, &str), last: u8, kind: Source| {
            let key = Key { namespace: "n".to_owned(), name: name.to_owned() };
            let machine = key.holder(HolderKind::VirtualMachine, uid);
            let claimant = Claimant { machine, interface: "eno101".parse().unwrap() };
            let (address, network) = (IpAddr::from([10, 0, 0, last]), Some("n/vlan10".to_owned()));
            Reservation { address, network, claimant, source: format!("VirtualMachine n/{name}"), kind }
        };
        for last in 1..=30 {
            for name in ["a", "b"] {
                registry.set_aside([of((name, "v"), last, Source::NetworkData)], at(1)).unwrap();
                registry.set_aside([of((name, "i"), last, Source::Report)], at(1)).unwrap();
            }
        }
        let allocator = registry.state().unwrap();
        let mut observed = observe(allocator, allocator.usage(at(2)), (&BTreeMap::new(), &BTreeMap::new()));
        let conflicts = observed.remove("n/p").unwrap().conflicts;
        let numbers: Vec<(usize, usize)> = conflicts.values().map(|users| (users.lines.len(), users.count)).collect();
        assert_eq!(numbers, [vec![(2, 2); MOST_LINES], vec![(0, 2); 30 - MOST_LINES]].concat());
        let text = first_lines(&conflicts);
        let line = |last: u8| {
            let end = "the address has no holder";
            format!("10.0.0.{last}: VirtualMachine n/a records this address for eno101 of n/a (v); {end}\n")
        };
        assert_eq!(text, (1..=20).map(line).collect::<String>() + "and 40 more");
    }

    #[test]
    fn a_new_generation_keeps_the_transition_time_and_the_conditions_of_other_programs() {
        let known = observations([("clusters/a", observation(254, 0))]);
        let first = index([pool("a", 1, "10.0.0.0/24")]).updates(&known, at(100)).remove(0);
        let mut changed = stored(pool("a", 1, "10.0.0.0/24"), &first);
        let foreign = json!({
            "type": "Paused", "status": "True", "reason": "Other", "message": "", "lastTransitionTime": "1970-01-01T00:00:05Z",
        });
        changed.status.as_mut().unwrap().conditions.push(serde_json::from_value(foreign.clone()).unwrap());
        changed.metadata.generation = Some(2);
        let update = index([changed]).updates(&known, at(200)).remove(0);
        let mut expected = first.patch["status"]["conditions"].as_array().unwrap().clone();
        for condition in &mut expected {
            condition["observedGeneration"] = 2.into();
        }
        expected.insert(2, foreign);
        assert_eq!(update.patch["status"]["conditions"], Value::from(expected));
    }

    #[test]
    fn a_pool_of_2_to_the_64_addresses_has_exact_counts_and_a_saturated_sum() {
        let spec = "fd00::/64".to_owned();
        let mut object = pool("a", 1, "fd00::/64");
        object.spec.as_mut().unwrap().addresses = vec![spec];
        let index = index([object]);
        let total = 1_u128 << 64;
        let mut observation = observation(0, 1);
        let usage = &mut observation.usage.families[0];
        *usage = Usage { family: glowplug::network::Family::Ipv6, total, free: total - 3, ..*usage };
        let known = observations([("clusters/a", observation)]);
        let status = index.updates(&known, at(100)).remove(0).patch["status"].clone();
        assert_eq!(status["families"][0]["free"], "18446744073709551613");
        assert_eq!(status["ipAddresses"]["free"], i64::MAX);
    }

    #[test]
    fn no_content_of_a_pool_changes_another_pool() {
        let condition = json!({
            "type": "Ready", "status": "True", "reason": "Ready", "message": "", "lastTransitionTime": "2026-08-14T10:00:00Z",
        });
        let metadata = |name: &str| json!({"namespace": "n", "name": name, "uid": name, "resourceVersion": "5", "finalizers": [POOL_FINALIZER]});
        let honest = json!({
            "metadata": metadata("honest"), "spec": {"network": "infra/vlan10", "addresses": ["10.0.0.0/24"]},
        });
        let valid = json!({
            "metadata": metadata("hostile"),
            "spec": {
                "network": "infra/vlan20", "addresses": ["10.0.1.8-10.0.1.20", "fd00::/112"],
                "excludedAddresses": ["10.0.1.9"], "preAllocations": {"a": "10.0.1.10"}, "gateway": ["10.0.1.1"],
                "nameservers": ["8.8.8.8"], "searchDomains": ["example.com"], "mtu": 9000, "prefix": 24, "subnets": [{"addresses": ["10.0.1.30"], "prefix": 24}],
                "routes": [{"to": "10.9.0.0/16", "via": "10.0.1.2"}], "machineNetwork": [{"cidr": "10.0.1.0/24"}, {"cidr": "fd00::/64"}],
                "interface": "eno102", "allocateReservedIPAddresses": true, "onLinkGateway": true,
                "addressReuseGracePeriodSeconds": 5, "sticky": true, "priority": 3, "template": r#"{"links": [], "networks": []}"#,
                "nodePoolRef": {"name": "w"}, "machineSelector": {"matchLabels": {"a": "b"}},
                "addressesFrom": {"poolRef": {"apiGroup": "a.b", "kind": "K", "name": "n"}},
            },
            "status": {"observedGeneration": 1, "waiting": 1, "conditions": [condition]},
        });
        let mut global = valid.clone();
        global["metadata"]["namespace"] = json!(null);
        let mut index = KnownPools::default();
        index.apply(PoolObject::read(serde_json::from_value(honest).unwrap()));
        let mut check = |object: crate::cluster::object::Object| {
            // A pool can reserve addresses of its own network, so the pools here must be on different networks.
            if object.data["spec"]["network"] == "infra/vlan10" {
                return;
            }
            let id = PoolId::of(&object.metadata);
            index.apply(PoolObject::read(object));
            assert_eq!(index.facts()["n/honest"].ready, Ok(()));
            let (pools, suspended) = index.pools();
            assert!(pools.iter().any(|pool| pool.name() == "n/honest") && !suspended.contains("n/honest"));
            let names: Vec<String> =
                index.updates(&Observations::new(), at(0)).iter().map(|update| update.id.to_string()).collect();
            assert!(names.iter().any(|name| name == "n/honest"), "{names:?}");
            index.remove(&id);
        };
        crate::variants::each_object(&valid, &mut check);
        crate::variants::each_object(&global, &mut check);
    }
}
