//! State of claims and of the objects on which they depend, from watches and from responses of the API server. Pure:
//! the input is objects, the output is the names that need a pass.
//!
//! Events and responses arrive in any order, so an object never replaces a newer version of itself.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::Timestamp;

use crate::claims::Facts;
use crate::claims::decision::{Cluster, Recorded, View};
use crate::cluster::key::{Key, PoolId};
use crate::cluster::object::Object;
use crate::cluster::object::version_of;
use crate::kinds::cluster_api::{IpAddress, IpAddressClaim, Version, WATCH_FILTER_LABEL, is_paused};

/// All known objects, by name.
#[derive(Debug)]
pub(crate) struct Index {
    version: Version,
    /// Value of the label that selects claims. Empty: claims need no label.
    watch_filter: String,
    entries: BTreeMap<Key, Entry>,
    /// Whether each Cluster is paused.
    clusters: BTreeMap<Key, bool>,
    /// Facts about pools, by the name of the pool.
    pools: Facts,
    /// IPAddresses that may be missing from the registry, by pool.
    unrecorded: BTreeSet<(PoolId, Key)>,
}

/// State of one name. Only names with a claim or an IPAddress on our pools have an entry.
#[derive(Debug, Default)]
struct Entry {
    claim: Option<IpAddressClaim>,
    address: Option<IpAddress>,
    /// UIDs of claims that may be gone and may hold an address.
    former: BTreeSet<String>,
    /// Versions of a claim and of an IPAddress that are gone. Kept until a watch reports the deletion, because events
    /// of older versions may arrive before that.
    ended: Ended,
}

/// Last known versions of deleted objects.
#[derive(Debug, Default, PartialEq)]
struct Ended {
    claim: Option<u64>,
    address: Option<u64>,
}

/// The watched kinds.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Kind {
    Claim,
    Address,
    Cluster,
}

// === impl Index ===

impl Index {
    pub(crate) fn new(version: Version, watch_filter: &str) -> Self {
        Self {
            version,
            watch_filter: watch_filter.to_owned(),
            entries: BTreeMap::new(),
            clusters: BTreeMap::new(),
            pools: Facts::new(),
            unrecorded: BTreeSet::new(),
        }
    }

    /// Stores an object. Returns the names whose decision may have changed.
    pub(crate) fn apply(&mut self, kind: Kind, object: Object) -> BTreeSet<Key> {
        let key = Key::of(&object.metadata);
        match kind {
            Kind::Claim => match IpAddressClaim::read(object) {
                Ok(claim) => self.apply_claim(claim),
                Err(error) => {
                    tracing::error!(claim = %key, %error, "ignored an IPAddressClaim that cannot be read");
                    BTreeSet::new()
                }
            },
            Kind::Address => match IpAddress::read(object) {
                Ok(address) => self.apply_address(address),
                Err(error) => {
                    tracing::error!(address = %key, %error, "ignored an IPAddress that cannot be read");
                    BTreeSet::new()
                }
            },
            Kind::Cluster => {
                let is_paused = is_paused(&object);
                let before = self.clusters.insert(key.clone(), is_paused);
                self.of_cluster(&key, before != Some(is_paused))
            }
        }
    }

    /// Stores the facts about the pools. Returns the names whose decision may have changed.
    pub(crate) fn set_pools(&mut self, pools: Facts) -> BTreeSet<Key> {
        let before = std::mem::replace(&mut self.pools, pools);
        let is_changed = |pool: &PoolId| {
            let name = pool.to_string();
            before.get(&name) != self.pools.get(&name)
        };
        let has_changed = |key: &Key, entry: &Entry| {
            let pool = entry.claim.as_ref().and_then(|claim| claim.pool.resolve(&key.namespace));
            pool.is_some_and(|pool| is_changed(&pool))
        };
        self.keys(has_changed)
    }

    /// Removes an object. Returns the names whose decision may have changed.
    ///
    /// `version` is the last version of the object. `None` when a list no longer has the object.
    pub(crate) fn remove(&mut self, kind: Kind, key: &Key, version: Option<u64>) -> BTreeSet<Key> {
        let is_gone = |metadata: &ObjectMeta| version.is_none_or(|version| version_of(metadata) <= version);
        let is_reported = |ended: &mut u64| version.is_none_or(|version| *ended <= version);
        match kind {
            Kind::Claim => {
                let Some(entry) = self.entries.get_mut(key) else { return BTreeSet::new() };
                entry.ended.claim.take_if(is_reported);
                let gone = entry.claim.take_if(|claim| is_gone(&claim.metadata));
                let names = gone.iter().map(|_| key.clone()).collect();
                entry.former.extend(gone.map(|claim| claim.uid().to_owned()));
                self.tidy(key);
                names
            }
            Kind::Address => {
                let Some(entry) = self.entries.get_mut(key) else { return BTreeSet::new() };
                entry.ended.address.take_if(is_reported);
                let gone = entry.address.take_if(|address| is_gone(&address.metadata));
                gone.iter().for_each(|address| self.note_recorded(address));
                self.tidy(key);
                gone.iter().map(|_| key.clone()).collect()
            }
            Kind::Cluster => {
                let before = self.clusters.remove(key);
                self.of_cluster(key, before.is_some())
            }
        }
    }

    /// Records that the claim `uid` of a name holds an address in the ledger. If the claim does not exist, the address
    /// must be released.
    pub(crate) fn note_holder(&mut self, key: &Key, uid: &str) {
        let entry = self.entries.entry(key.clone()).or_default();
        if entry.claim.as_ref().is_none_or(|claim| claim.uid() != uid) {
            entry.former.insert(uid.to_owned());
        }
    }

    /// Forgets a claim of a name after all its objects and leases are removed.
    pub(crate) fn forget(&mut self, key: &Key, uid: &str) {
        if let Some(entry) = self.entries.get_mut(key) {
            entry.former.remove(uid);
            let ended = entry.claim.take_if(|claim| claim.uid() == uid);
            entry.ended.claim = ended.map(|claim| version_of(&claim.metadata)).or(entry.ended.claim);
            self.tidy(key);
        }
    }

    /// Forgets the IPAddress of a name. A consistent read after `version` did not find it.
    pub(crate) fn forget_address(&mut self, key: &Key, version: u64) {
        self.remove(Kind::Address, key, Some(version));
        self.entries.entry(key.clone()).or_default().ended.address = Some(version);
    }

    /// All names. Names of older claims come first.
    pub(crate) fn by_age(&self) -> Vec<Key> {
        let mut all: Vec<(Timestamp, &Key)> = self.entries.iter().map(|(key, entry)| (entry.created(), key)).collect();
        all.sort_unstable();
        all.into_iter().map(|(_, key)| key.clone()).collect()
    }

    /// The names that have a claim. Names of older claims come first.
    pub(crate) fn claimed_by_age(&self) -> Vec<Key> {
        let has_claim = |key: &Key| self.entries.get(key).is_some_and(|entry| entry.claim.is_some());
        self.by_age().into_iter().filter(has_claim).collect()
    }

    /// The state of a name, without the part from the registry.
    pub(crate) fn view(&self, key: &Key) -> View {
        let empty = Entry::default();
        let entry = self.entries.get(key).unwrap_or(&empty);
        let claim = entry.claim.as_ref();
        let uid = claim.map(IpAddressClaim::uid);
        let owner = entry.address.as_ref().filter(|address| address.is_ours()).and_then(IpAddress::owner);
        let former = entry.former.iter().map(String::as_str).chain(owner).filter(|former| Some(*former) != uid);
        let pool = claim.and_then(|claim| claim.pool.resolve(&key.namespace));
        View {
            key: key.clone(),
            version: self.version,
            claim: claim.cloned(),
            address: entry.address.clone(),
            former: former.map(str::to_owned).collect(),
            cluster: claim.map_or(Cluster::None, |claim| self.cluster_of(claim, &key.namespace)),
            is_watched: claim.is_none_or(|claim| self.is_watched(claim)),
            pool: pool.and_then(|pool| self.pools.get(&pool.to_string())).cloned(),
            ledger: Recorded::default(),
            problem: None,
            is_released: false,
            is_status_written: false,
        }
    }

    /// The IPAddresses of one pool, or of all pools, that may be missing from the registry, each with the UID of its
    /// claim.
    pub(crate) fn unrecorded(&self, pool: Option<&PoolId>) -> Vec<(IpAddress, String)> {
        let of_pool = |(id, _): &&(PoolId, Key)| pool.is_none_or(|pool| pool == id);
        let unrecorded = self.unrecorded.iter().filter(of_pool).filter_map(|(_, key)| {
            let entry = self.entries.get(key)?;
            let address = entry.address.as_ref()?;
            // The claim of the name, else the claim for which the IPAddress was created.
            let uid = entry.claim.as_ref().map(IpAddressClaim::uid).or(address.owner())?;
            Some((address.clone(), uid.to_owned()))
        });
        unrecorded.collect()
    }

    /// Whether the IPAddress of a name may be missing from the registry.
    pub(crate) fn is_unrecorded(&self, pool: &PoolId, key: &Key) -> bool {
        self.unrecorded.contains(&(pool.clone(), key.clone()))
    }

    /// Records that the registry has an IPAddress.
    pub(crate) fn note_recorded(&mut self, address: &IpAddress) {
        let key = address.key();
        if let Some(pool) = address.pool.resolve(&key.namespace) {
            self.unrecorded.remove(&(pool, key));
        }
    }

    fn apply_claim(&mut self, claim: IpAddressClaim) -> BTreeSet<Key> {
        let key = claim.key();
        let is_ours = claim.pool.resolve(&key.namespace).is_some();
        if !is_ours && !self.entries.contains_key(&key) {
            return BTreeSet::new();
        }
        let entry = self.entries.entry(key.clone()).or_default();
        if entry.ended.claim.is_some_and(|ended| version_of(&claim.metadata) <= ended) {
            return BTreeSet::new();
        }
        if let Some(known) = &entry.claim {
            if !is_newer(&claim.metadata, &known.metadata) {
                return BTreeSet::new();
            }
            if known.uid() != claim.uid() {
                entry.former.insert(known.uid().to_owned());
            }
        }
        entry.claim = Some(claim);
        [key].into()
    }

    fn apply_address(&mut self, address: IpAddress) -> BTreeSet<Key> {
        let key = address.key();
        let pool = address.pool.resolve(&key.namespace);
        if pool.is_none() && !self.entries.contains_key(&key) {
            return BTreeSet::new();
        }
        let entry = self.entries.entry(key.clone()).or_default();
        let is_known = entry.address.as_ref().is_some_and(|known| !is_newer(&address.metadata, &known.metadata));
        if is_known || entry.ended.address.is_some_and(|ended| version_of(&address.metadata) <= ended) {
            return BTreeSet::new();
        }
        let is_recorded = entry.address.as_ref().is_some_and(|known| {
            known.metadata.uid == address.metadata.uid && known.address == address.address && known.pool == address.pool
        });
        if let Some(pool) = pool.filter(|_| !is_recorded && address.is_ours() && address.ip().is_some()) {
            self.unrecorded.insert((pool, key.clone()));
        }
        entry.address = Some(address);
        [key].into()
    }

    fn of_cluster(&self, cluster: &Key, is_changed: bool) -> BTreeSet<Key> {
        self.keys(|key, entry| {
            let name = entry.claim.as_ref().and_then(|claim| claim.cluster.as_ref());
            is_changed && key.namespace == cluster.namespace && name == Some(&cluster.name)
        })
    }

    fn keys(&self, belongs: impl Fn(&Key, &Entry) -> bool) -> BTreeSet<Key> {
        self.entries.iter().filter(|(key, entry)| belongs(key, entry)).map(|(key, _)| key.clone()).collect()
    }

    fn cluster_of(&self, claim: &IpAddressClaim, namespace: &str) -> Cluster {
        let Some(name) = &claim.cluster else { return Cluster::None };
        match self.clusters.get(&Key { namespace: namespace.to_owned(), name: name.clone() }) {
            None => Cluster::Absent,
            Some(true) => Cluster::Paused,
            Some(false) => Cluster::Running,
        }
    }

    fn is_watched(&self, claim: &IpAddressClaim) -> bool {
        let label = claim.metadata.labels.as_ref().and_then(|labels| labels.get(WATCH_FILTER_LABEL));
        self.watch_filter.is_empty() || label == Some(&self.watch_filter)
    }

    fn tidy(&mut self, key: &Key) {
        let is_empty = |entry: &Entry| {
            let is_unused = entry.claim.is_none() && entry.address.is_none() && entry.former.is_empty();
            is_unused && entry.ended == Ended::default()
        };
        if self.entries.get(key).is_some_and(is_empty) {
            self.entries.remove(key);
        }
    }
}

// === impl Entry ===

impl Entry {
    fn created(&self) -> Timestamp {
        self.claim.as_ref().map(IpAddressClaim::created).unwrap_or_default()
    }
}

fn is_newer(one: &ObjectMeta, known: &ObjectMeta) -> bool {
    version_of(one) > version_of(known)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::decision::decide;
    use super::*;

    fn object(value: Value) -> Object {
        serde_json::from_value(value).unwrap()
    }

    fn claim(name: &str, uid: &str, version: u64) -> Object {
        let pool = json!({"apiGroup": "ipam.glowplug.dev", "kind": "StaticIPPool", "name": "p"});
        object(json!({
            "metadata": {"namespace": "n", "name": name, "uid": uid, "resourceVersion": version.to_string()},
            "spec": {"poolRef": pool, "clusterName": "c1"},
        }))
    }

    fn address(name: &str, version: u64) -> Object {
        let pool = json!({"apiGroup": "ipam.glowplug.dev", "kind": "StaticIPPool", "name": "p"});
        object(json!({
            "metadata": {"namespace": "n", "name": name, "resourceVersion": version.to_string()},
            "spec": {"poolRef": pool, "claimRef": {"name": name}, "address": "10.0.0.8", "prefix": 24},
        }))
    }

    fn key(name: &str) -> Key {
        Key { namespace: "n".to_owned(), name: name.to_owned() }
    }

    fn index() -> Index {
        Index::new(Version::V1Beta2, "")
    }

    fn version(index: &Index) -> Option<u64> {
        index.view(&key("a")).claim.map(|claim| version_of(&claim.metadata))
    }

    #[test]
    fn an_older_version_never_replaces_a_newer_one() {
        let mut index = index();
        assert_eq!(index.apply(Kind::Claim, claim("a", "u1", 9)), [key("a")].into());
        assert_eq!(index.apply(Kind::Claim, claim("a", "u1", 8)), [].into());
        assert_eq!(version(&index), Some(9));
        assert_eq!(index.remove(Kind::Claim, &key("a"), Some(8)), [].into());
        assert_eq!(version(&index), Some(9));
    }

    #[test]
    fn a_claim_that_has_ended_is_not_revived_by_a_late_event() {
        let mut index = index();
        index.apply(Kind::Claim, claim("a", "u1", 9));
        index.forget(&key("a"), "u1");
        assert_eq!(index.apply(Kind::Claim, claim("a", "u1", 9)), [].into());
        assert!(index.view(&key("a")).is_empty());
        assert_eq!(index.apply(Kind::Claim, claim("a", "u2", 12)), [key("a")].into());
    }

    #[test]
    fn a_claim_that_vanishes_may_have_left_an_address() {
        let mut index = index();
        index.apply(Kind::Claim, claim("a", "u1", 9));
        assert_eq!(index.remove(Kind::Claim, &key("a"), Some(10)), [key("a")].into());
        assert_eq!(index.view(&key("a")).former, ["u1".to_owned()].into());
        index.forget(&key("a"), "u1");
        assert!(index.entries.is_empty());
    }

    #[test]
    fn a_changed_cluster_affects_its_claims() {
        let mut index = index();
        index.apply(Kind::Claim, claim("a", "u1", 1));
        let cluster = |name: &str, paused: bool| {
            object(json!({"metadata": {"namespace": "n", "name": name}, "spec": {"paused": paused}}))
        };
        assert_eq!(index.view(&key("a")).cluster, Cluster::Absent);
        assert_eq!(index.apply(Kind::Cluster, cluster("c2", true)), [].into());
        assert_eq!(index.apply(Kind::Cluster, cluster("c1", true)), [key("a")].into());
        assert_eq!(index.view(&key("a")).cluster, Cluster::Paused);
        assert_eq!(index.apply(Kind::Cluster, cluster("c1", true)), [].into());
        assert_eq!(index.apply(Kind::Cluster, cluster("c1", false)), [key("a")].into());
        assert_eq!(index.remove(Kind::Cluster, &key("c1"), None), [key("a")].into());
    }

    #[test]
    fn an_ipaddress_is_unrecorded_until_the_registry_has_it() {
        let mut index = index();
        index.apply(Kind::Address, address("a", 1));
        assert_eq!(index.unrecorded(None), [], "nobody owns it");
        index.apply(Kind::Claim, claim("a", "u1", 2));
        let known = index.view(&key("a")).address.unwrap();
        assert_eq!(index.unrecorded(None), [(known.clone(), "u1".to_owned())]);
        index.note_recorded(&known);
        index.apply(Kind::Address, address("a", 3));
        assert_eq!(index.unrecorded(None), []);
    }

    #[test]
    fn no_content_of_an_object_changes_the_state_of_another_claim() {
        let state = |index: &Index| {
            let view = index.view(&key("honest"));
            (view.claim, view.address, view.cluster, index.unrecorded(None).len())
        };
        let mut honest = index();
        honest.apply(Kind::Claim, claim("honest", "u", 9));
        honest.apply(Kind::Address, address("honest", 9));
        let before = state(&honest);
        let annotations = json!({"annotations": {
            "ipam.glowplug.dev/family": "IPv4", "ipam.glowplug.dev/requested-address": "10.0.0.8",
        }});
        let condition = json!({"type": "Ready", "status": "False", "reason": "PoolExhausted", "message": "x"});
        let status = json!({"conditions": [condition], "addressRef": {"name": "a"}});
        let cluster = json!({"metadata": {"namespace": "n", "name": "other"}, "spec": {"paused": true}});
        for (kind, valid) in [
            (Kind::Claim, serde_json::to_value(claim("hostile", "h", 9)).unwrap()),
            (Kind::Address, serde_json::to_value(address("hostile", 9)).unwrap()),
            (Kind::Cluster, cluster),
        ] {
            let mut valid = valid;
            json_patch::merge(&mut valid, &json!({"metadata": annotations, "status": status}));
            crate::hostile::each_object(&valid, |object| {
                let hostile = Key::of(&object.metadata);
                honest.apply(kind, object);
                decide(&honest.view(&key("hostile")), Timestamp::UNIX_EPOCH);
                honest.remove(kind, &hostile, None);
                honest.forget(&key("hostile"), "h");
            });
            assert!(state(&honest) == before, "after the objects of {kind:?}");
        }
    }
}
