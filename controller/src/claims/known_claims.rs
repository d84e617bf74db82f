//! Index of claims and of the objects on which they depend, filled from watches and from responses of the API server.
//! Pure logic: the input is objects, the output is the names that need a pass.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use crate::claims::decision::{Cluster, Recorded, Unrecorded, View};
use crate::cluster::key::{Key, PoolId};
use crate::cluster::newest::{Newest, Progress};
use crate::cluster::object::{Object, version_of};
use crate::cluster::watch::Change;
use crate::kinds::cluster_api::{IpAddress, IpAddressClaim, PoolRef, Version, WATCH_FILTER_LABEL, is_paused};
use crate::pools::facts::Facts;

/// Time after the end of a claim in which a late request of an earlier leader may still create the IPAddress of the
/// claim. The earlier leader stops waiting for the response before this time is over.
const LATEST: Duration = Duration::from_secs(300);

/// Index of the known claims, IPAddresses, Clusters and pools.
#[derive(Debug)]
pub(crate) struct KnownClaims {
    version: Version,
    /// Value of the label that selects claims. Empty: claims need no label.
    watch_filter: String,
    /// Claims and IPAddresses. A name has objects here only if it has a claim or an IPAddress on our pools, or a claim
    /// with a mistake in its reference to one of our pools.
    claims: Newest<Key, IpAddressClaim>,
    addresses: Newest<Key, IpAddress>,
    /// For each name, the UIDs of claims that may be gone and may still hold an address.
    former: BTreeMap<Key, BTreeSet<String>>,
    /// UIDs of claims that `clusterctl move` has moved to another cluster. The claim may be gone, and its leases may
    /// lack the move.
    moved: BTreeSet<String>,
    /// UIDs of claims that have ended, and the time of their end. Entries that are too old are removed from time to
    /// time.
    ended: BTreeMap<String, Instant>,
    /// Number of the claims in `ended` after the last removal.
    recent: usize,
    /// For each Cluster, whether it is paused.
    clusters: Newest<Key, bool>,
    /// Facts about pools, by the name of the pool.
    pools: Facts,
    /// IPAddresses that may be missing from the registry, by pool.
    unrecorded: BTreeSet<(PoolId, Key)>,
    /// UIDs of IPAddresses without a claim whose addresses are reserved within the share of the namespace, by name. An
    /// IPAddress in this map may be gone, or may have got its claim meanwhile.
    reserved: BTreeMap<Key, BTreeSet<String>>,
}

/// The watched kinds.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum ClaimKind {
    Claim,
    Address,
    Cluster,
}

// === impl KnownClaims ===

impl KnownClaims {
    pub(crate) fn new(version: Version, watch_filter: &str) -> Self {
        Self {
            version,
            watch_filter: watch_filter.to_owned(),
            claims: Newest::default(),
            addresses: Newest::default(),
            former: BTreeMap::new(),
            moved: BTreeSet::new(),
            ended: BTreeMap::new(),
            recent: 0,
            clusters: Newest::default(),
            pools: Facts::new(),
            unrecorded: BTreeSet::new(),
            reserved: BTreeMap::new(),
        }
    }

    /// Notes a change that a watch reports. Returns the names whose decision may have changed.
    pub(crate) fn note(&mut self, kind: ClaimKind, change: Change) -> BTreeSet<Key> {
        change.note_in(
            self,
            |index, object| index.apply(kind, object),
            |index, key, version| index.remove(kind, key, version),
            |index, progress| index.follow(kind, progress),
        )
    }

    /// Notes how far the watch of a kind has come. Returns the objects that are gone, because the watch has passed
    /// their versions without a report.
    fn follow(&mut self, kind: ClaimKind, progress: &Progress<Key>) -> Vec<Key> {
        match kind {
            ClaimKind::Claim => self.claims.follow(progress),
            ClaimKind::Address => self.addresses.follow(progress),
            ClaimKind::Cluster => self.clusters.follow(progress),
        }
    }

    /// Stores an object. Returns the names whose decision may have changed.
    pub(crate) fn apply(&mut self, kind: ClaimKind, object: Object) -> BTreeSet<Key> {
        let key = Key::of(&object.metadata);
        match kind {
            ClaimKind::Claim => match IpAddressClaim::read(object) {
                Ok(claim) => self.apply_claim(claim),
                Err(error) => {
                    tracing::error!(claim = %key, %error, "ignored an IPAddressClaim that cannot be read");
                    BTreeSet::new()
                }
            },
            ClaimKind::Address => match IpAddress::read(object) {
                Ok(address) => self.apply_address(address),
                Err(error) => {
                    tracing::error!(address = %key, %error, "ignored an IPAddress that cannot be read");
                    BTreeSet::new()
                }
            },
            ClaimKind::Cluster => {
                let (is_paused, before) = (is_paused(&object), self.clusters.get(&key).copied());
                let is_news = self.clusters.apply(key.clone(), version_of(&object.metadata), is_paused);
                self.of_cluster(&key, is_news && before != Some(is_paused))
            }
        }
    }

    /// Stores an object from a response. The watch may report the same object later. Returns the names whose decision
    /// may have changed.
    pub(crate) fn store(&mut self, kind: ClaimKind, object: Object) -> BTreeSet<Key> {
        let key = Key::of(&object.metadata);
        let is_unknown = self.version(kind, &key).is_none();
        let names = self.apply(kind, object);
        // The index ignores what the watch reports about an object of another provider. So the index does not expect a
        // report about such an object.
        let is_ours = |pool: &PoolRef| pool.resolve(&key.namespace).is_some();
        match kind {
            ClaimKind::Claim
                if is_unknown && self.claims.get(&key).is_some_and(|it| it.pool.concerns_us(&key.namespace)) =>
            {
                self.claims.expect(&key);
            }
            ClaimKind::Address if is_unknown && self.addresses.get(&key).is_some_and(|it| is_ours(&it.pool)) => {
                self.addresses.expect(&key);
            }
            ClaimKind::Cluster if is_unknown => self.clusters.expect(&key),
            ClaimKind::Claim | ClaimKind::Address | ClaimKind::Cluster => {}
        }
        names
    }

    /// Stores the facts about the pools. Returns the names whose decision may have changed.
    pub(crate) fn set_pools(&mut self, pools: Facts) -> BTreeSet<Key> {
        let before = std::mem::replace(&mut self.pools, pools);
        let is_changed = |pool: &PoolId| {
            let name = pool.to_string();
            before.get(&name) != self.pools.get(&name)
        };
        self.keys(|key, claim| claim.pool.resolve(&key.namespace).is_some_and(|pool| is_changed(&pool)))
    }

    /// Removes an object. Returns the names whose decision may have changed.
    ///
    /// `version` is the last version of the object. `None` when a list no longer has the object.
    pub(crate) fn remove(&mut self, kind: ClaimKind, key: &Key, version: Option<u64>) -> BTreeSet<Key> {
        match kind {
            ClaimKind::Claim => {
                let claim = self.claims.get(key).cloned();
                if !self.claims.remove(key, version) {
                    return BTreeSet::new();
                }
                claim.iter().for_each(|claim| self.note_gone(claim));
                [key.clone()].into()
            }
            ClaimKind::Address => {
                let address = self.addresses.get(key).cloned();
                if !self.addresses.remove(key, version) {
                    return BTreeSet::new();
                }
                address.iter().for_each(|address| self.note_recorded(address));
                [key.clone()].into()
            }
            ClaimKind::Cluster => {
                let is_removed = self.clusters.remove(key, version);
                self.of_cluster(key, is_removed)
            }
        }
    }

    /// Stores the answer to a consistent read. `known` is the version that the index had before the read. Returns
    /// `false` if the answer may be older than a deletion that a watch has reported. Then the object must be read
    /// again.
    pub(crate) fn take(&mut self, kind: ClaimKind, key: &Key, known: Option<u64>, object: Option<Object>) -> bool {
        match (object, known) {
            (Some(_), Some(_)) if self.version(kind, key).is_none() => return false,
            (Some(object), _) => drop(self.store(kind, object)),
            // The watch reports the deletion later.
            (None, Some(known)) => self.end(kind, key, known),
            (None, None) => {}
        }
        true
    }

    /// Returns the newest known version of an object. `None`: the object is unknown.
    pub(crate) fn version(&self, kind: ClaimKind, key: &Key) -> Option<u64> {
        match kind {
            ClaimKind::Claim => self.claims.version(key),
            ClaimKind::Address => self.addresses.version(key),
            ClaimKind::Cluster => self.clusters.version(key),
        }
    }

    /// Records that the object of a name no longer exists, where `version` is its last known version. The watch reports
    /// the deletion later.
    pub(crate) fn end(&mut self, kind: ClaimKind, key: &Key, version: u64) {
        match kind {
            ClaimKind::Claim => {
                let claim = self.claims.get(key).cloned();
                self.claims.forget(key, version);
                let is_gone = self.claims.get(key).is_none();
                claim.filter(|_| is_gone).iter().for_each(|claim| self.note_gone(claim));
            }
            ClaimKind::Address => {
                let address = self.addresses.get(key).cloned();
                self.addresses.forget(key, version);
                let is_gone = self.addresses.get(key).is_none();
                address.filter(|_| is_gone).iter().for_each(|address| self.note_recorded(address));
            }
            ClaimKind::Cluster => self.clusters.forget(key, version),
        }
    }

    /// Records that the claim `uid` of a name holds an address in the ledger. If the claim does not exist, the address
    /// must be released.
    pub(crate) fn note_holder(&mut self, key: &Key, uid: &str) {
        if self.claims.get(key).is_none_or(|claim| claim.uid() != uid) {
            self.note_former(key, uid.to_owned());
        }
    }

    /// Forgets an earlier claim of a name after all its objects and leases are removed. The owner of a restored IPAddress
    /// may be a claim that this leader has never seen. Such a claim has not ended: its IPAddress may be restored again.
    pub(crate) fn forget(&mut self, key: &Key, uid: &str) {
        let now = Instant::now();
        if self.former.get(key).is_some_and(|former| former.contains(uid)) {
            self.ended.insert(uid.to_owned(), now);
        }
        if self.ended.len() >= 2 * self.recent.max(512) {
            self.ended.retain(|_, ended| now.duration_since(*ended) <= LATEST);
            self.recent = self.ended.len();
        }
        self.moved.remove(uid);
        for of_names in [&mut self.former, &mut self.reserved] {
            if let Some(former) = of_names.get_mut(key) {
                former.remove(uid);
                if former.is_empty() {
                    of_names.remove(key);
                }
            }
        }
    }

    /// Notes that the registry reserves the address of an IPAddress that has no claim, or that the share of its namespace
    /// does not allow the reservation.
    pub(crate) fn note_reserved(&mut self, address: &IpAddress) {
        let uid = address.metadata.uid.clone().unwrap_or_default();
        self.reserved.entry(address.key()).or_default().insert(uid);
        // If the claim of the IPAddress has come meanwhile, the registry must still adopt the record of the claim.
        if self.claim_of(address).is_none() {
            self.note_recorded(address);
        }
    }

    /// All names. Names of older claims come first.
    pub(crate) fn by_age(&self) -> Vec<Key> {
        let names: BTreeSet<&Key> = self
            .claims
            .iter()
            .map(|(key, _)| key)
            .chain(self.addresses.iter().map(|(key, _)| key))
            .chain(self.former.keys())
            .chain(self.reserved.keys())
            .collect();
        let created = |key: &Key| self.claims.get(key).map(IpAddressClaim::created).unwrap_or_default();
        let mut all: Vec<&Key> = names.into_iter().collect();
        all.sort_by_key(|key| created(key));
        all.into_iter().cloned().collect()
    }

    /// The names that have a claim on a pool. Names of older claims come first.
    pub(crate) fn claimed_by_age(&self) -> Vec<Key> {
        self.by_age().into_iter().filter(|key| self.claim_on_pool(key).is_some()).collect()
    }

    /// Returns the claim of a name. Returns `None` also if the reference of the claim names no pool. Such a claim gets
    /// no address.
    fn claim_on_pool(&self, key: &Key) -> Option<&IpAddressClaim> {
        self.claims.get(key).filter(|claim| claim.pool.resolve(&key.namespace).is_some())
    }

    /// Returns the claim of an IPAddress: the claim of its name, if both are of the same pool. An IPAddress without such
    /// a claim counts as an IPAddress without a claim. Its address is reserved, but never becomes a lease: a user who
    /// has the right to create IPAddresses can name any pool, and the reference of a claim can be changed.
    fn claim_of(&self, address: &IpAddress) -> Option<&IpAddressClaim> {
        let key = address.key();
        let claim = self.claim_on_pool(&key)?;
        (claim.pool.resolve(&key.namespace) == address.pool.resolve(&key.namespace)).then_some(claim)
    }

    /// The state of a name, without the part from the registry.
    pub(crate) fn view(&self, key: &Key) -> View {
        let (claim, address) = (self.claims.get(key), self.addresses.get(key));
        let uid = claim.map(IpAddressClaim::uid);
        // If this leader has never seen a claim of the name, the claim may still be created: a restore may create the
        // IPAddress first.
        let owner = address.filter(|address| claim.is_some() && address.is_ours()).and_then(IpAddress::owner);
        let alone = address.filter(|address| self.claim_of(address).is_none());
        let own = alone.and_then(|address| address.metadata.uid.as_deref());
        let reserved = self.reserved.get(key).into_iter().flatten().map(String::as_str);
        let former = self.former.get(key).into_iter().flatten().map(String::as_str).chain(owner).chain(reserved);
        // After a start, the former holders include each IPAddress without a claim that has a reservation. If this
        // IPAddress still exists, the filter leaves out its UID.
        let former = former.filter(|former| Some(*former) != uid && Some(*former) != own);
        let former: BTreeSet<String> = former.map(str::to_owned).collect();
        let all = former.iter().map(String::as_str).chain(uid);
        let moved = all.filter(|uid| self.moved.contains(*uid)).map(str::to_owned).collect();
        let pool = claim.and_then(|claim| claim.pool.resolve(&key.namespace));
        let seen = self.former.get(key);
        View {
            key: key.clone(),
            version: self.version,
            claim: claim.cloned(),
            address: address.cloned(),
            former,
            has_seen_owner: owner.is_some_and(|owner| seen.is_some_and(|seen| seen.contains(owner))),
            moved,
            cluster: claim.map_or(Cluster::None, |claim| self.cluster_of(claim, &key.namespace)),
            is_watched: claim.is_none_or(|claim| self.is_watched(claim)),
            pool: pool
                .and_then(|pool| self.pools.get(&pool.to_string()))
                .map(|facts| facts.clone().for_claim_in(&key.namespace)),
            ledger: Recorded::default(),
            problem: None,
            is_released: false,
            has_kept: false,
            is_status_written: false,
        }
    }

    /// Notes that the registry may lack the addresses of every IPAddress, because pools have new addresses.
    pub(crate) fn forget_recorded(&mut self) {
        self.unrecorded = self.addresses.iter().filter_map(|(_, address)| unrecorded(address)).collect();
    }

    /// The IPAddresses of one pool, or of all pools, that may be missing from the registry.
    pub(crate) fn unrecorded(&self, pool: Option<&PoolId>) -> Vec<Unrecorded> {
        let of_pool = |(id, _): &&(PoolId, Key)| pool.is_none_or(|pool| pool == id);
        let unrecorded = self.unrecorded.iter().filter(of_pool).filter_map(|(_, key)| {
            let address = self.addresses.get(key)?;
            let claim = self.claim_of(address);
            let earlier = self.former.get(key);
            let owner = address.owner().filter(|owner| earlier.is_some_and(|earlier| earlier.contains(*owner)));
            let claim = claim.map(IpAddressClaim::uid).or(owner).map(str::to_owned);
            Some(Unrecorded { address: address.clone(), claim })
        });
        unrecorded.collect()
    }

    /// Whether the IPAddress of a name may be missing from the registry.
    pub(crate) fn is_unrecorded(&self, pool: &PoolId, key: &Key) -> bool {
        self.unrecorded.contains(&(pool.clone(), key.clone()))
    }

    /// Notes that an IPAddress may be missing from the registry.
    fn note_unrecorded(&mut self, address: &IpAddress) {
        self.unrecorded.extend(unrecorded(address));
    }

    /// Notes that the registry has the address of this version of an IPAddress. An adoption takes some time, and the
    /// IPAddress may have been replaced meanwhile by another one, whose address the registry still lacks.
    pub(crate) fn note_recorded(&mut self, address: &IpAddress) {
        let key = address.key();
        let is_current = self.addresses.get(&key).is_none_or(|known| has_same_record(known, address));
        if let Some(pool) = address.pool.resolve(&key.namespace).filter(|_| is_current) {
            self.unrecorded.remove(&(pool, key));
        }
    }

    fn apply_claim(&mut self, claim: IpAddressClaim) -> BTreeSet<Key> {
        let (key, version) = (claim.key(), version_of(&claim.metadata));
        let is_ours = claim.pool.concerns_us(&key.namespace);
        if !(is_ours || self.is_known(&key)) || !self.claims.is_news(&key, version) {
            return BTreeSet::new();
        }
        let before = self.claims.get(&key).filter(|known| known.uid() != claim.uid()).cloned();
        before.iter().for_each(|before| self.note_gone(before));
        if claim.is_moved() {
            self.moved.insert(claim.uid().to_owned());
        }
        // The IPAddress of this claim may have come before the claim, or the reference of the claim may have named
        // another pool or no pool before. Then the registry has a reservation for the IPAddress, and must now adopt a
        // record for the claim.
        let address = self.addresses.get(&key).filter(|address| self.claim_of(address).is_none()).cloned();
        self.claims.apply(key.clone(), version, claim);
        if let Some(address) = address.filter(|address| self.claim_of(address).is_some()) {
            self.note_unrecorded(&address);
        }
        [key].into()
    }

    fn apply_address(&mut self, address: IpAddress) -> BTreeSet<Key> {
        let (key, version) = (address.key(), version_of(&address.metadata));
        let is_of_pool = address.pool.resolve(&key.namespace).is_some();
        if !(is_of_pool || self.is_known(&key)) || !self.addresses.is_news(&key, version) {
            return BTreeSet::new();
        }
        let is_recorded = self.addresses.get(&key).is_some_and(|known| has_same_record(known, &address));
        if !is_recorded {
            if let Some(earlier) = self.addresses.get(&key).and_then(unrecorded) {
                self.unrecorded.remove(&earlier);
            }
            self.note_unrecorded(&address);
        }
        // A request of an earlier leader may create the IPAddress after the claim has ended.
        let owner = address.owner().filter(|_| address.is_ours() && self.addresses.version(&key).is_none());
        if let Some(owner) = owner.filter(|owner| self.has_just_ended(owner)).map(str::to_owned) {
            self.note_former(&key, owner);
        }
        self.addresses.apply(key.clone(), version, address);
        [key].into()
    }

    fn has_just_ended(&self, uid: &str) -> bool {
        self.ended.get(uid).is_some_and(|ended| ended.elapsed() <= LATEST)
    }

    fn is_known(&self, key: &Key) -> bool {
        let has_object = self.claims.version(key).is_some() || self.addresses.version(key).is_some();
        has_object || self.former.contains_key(key) || self.reserved.contains_key(key)
    }

    /// Notes that a claim no longer exists. A claim of a paused Cluster counts as moved: the controller ends no such
    /// claim, so another program has removed it by force, such as `clusterctl move`. The annotation of the move may
    /// reach this leader after a read that finds no claim, or never if a watch begins again with a list.
    fn note_gone(&mut self, claim: &IpAddressClaim) {
        let (key, uid) = (claim.key(), claim.uid().to_owned());
        if !claim.is_deleted() && self.cluster_of(claim, &key.namespace) == Cluster::Paused {
            self.moved.insert(uid.clone());
        }
        self.note_former(&key, uid);
    }

    fn note_former(&mut self, key: &Key, uid: String) {
        self.former.entry(key.clone()).or_default().insert(uid);
    }

    fn of_cluster(&self, cluster: &Key, is_changed: bool) -> BTreeSet<Key> {
        self.keys(|key, claim| {
            is_changed && key.namespace == cluster.namespace && claim.cluster.as_ref() == Some(&cluster.name)
        })
    }

    /// The names of the claims for which `belongs` is `true`.
    fn keys(&self, belongs: impl Fn(&Key, &IpAddressClaim) -> bool) -> BTreeSet<Key> {
        self.claims.iter().filter(|(key, claim)| belongs(key, claim)).map(|(key, _)| key.clone()).collect()
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
}

/// Whether two versions of a name are the same IPAddress, with the same address and pool.
fn has_same_record(one: &IpAddress, other: &IpAddress) -> bool {
    (&one.metadata.uid, &one.address, &one.pool) == (&other.metadata.uid, &other.address, &other.pool)
}

/// Returns the pool and the name of an IPAddress that the registry must have. `None`: the IPAddress has no valid
/// address, or is not of our pools.
fn unrecorded(address: &IpAddress) -> Option<(PoolId, Key)> {
    let (key, _) = (address.key(), address.ip().filter(|_| address.is_ours())?);
    Some((address.pool.resolve(&key.namespace)?, key))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::jiff::Timestamp;
    use serde_json::{Value, json};

    use super::super::decision::decide;
    use super::*;
    use crate::cluster::key::key;
    use crate::cluster::object::object;
    use crate::kinds::cluster_api::{ADDRESS_FINALIZER, MOVED_ANNOTATION};

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

    fn index() -> KnownClaims {
        KnownClaims::new(Version::V1Beta2, "")
    }

    fn version(index: &KnownClaims) -> Option<u64> {
        index.view(&key("a")).claim.map(|claim| version_of(&claim.metadata))
    }

    #[test]
    fn a_claim_that_was_created_and_deleted_between_two_lists_is_gone() {
        let mut index = index();
        assert!(index.take(ClaimKind::Claim, &key("a"), None, Some(claim("a", "u1", 9))));
        index.note(ClaimKind::Claim, Change::Apply(claim("b", "u2", 10)));
        assert_eq!(index.note(ClaimKind::Claim, Change::Listed), [key("a")].into());
        assert_eq!(index.version(ClaimKind::Claim, &key("a")), None);
        assert_eq!(index.view(&key("a")).former, ["u1".to_owned()].into());
    }

    #[test]
    fn an_older_version_of_a_claim_never_replaces_a_newer_version() {
        let mut index = index();
        assert_eq!(index.apply(ClaimKind::Claim, claim("a", "u1", 9)), [key("a")].into());
        assert_eq!(index.apply(ClaimKind::Claim, claim("a", "u1", 8)), [].into());
        assert_eq!(version(&index), Some(9));
        assert_eq!(index.remove(ClaimKind::Claim, &key("a"), Some(8)), [].into());
        assert_eq!(version(&index), Some(9));
    }

    #[test]
    fn an_ipaddress_of_another_provider_stays_known_after_the_watch_reports_newer_objects() {
        let (mut index, mut foreign) = (index(), address("a", 5));
        foreign.data["spec"]["poolRef"]["kind"] = "InClusterIPPool".into();
        index.note(ClaimKind::Address, Change::Listed);
        // The index ignores an IPAddress of another provider as long as no claim has the same name.
        assert_eq!(index.note(ClaimKind::Address, Change::Apply(foreign.clone())), [].into());
        index.note(ClaimKind::Claim, Change::Apply(claim("a", "u1", 6)));
        index.take(ClaimKind::Address, &key("a"), None, Some(foreign));
        assert_eq!(index.note(ClaimKind::Address, Change::Apply(address("b", 7))), [key("b")].into());
        assert_eq!(index.version(ClaimKind::Address, &key("a")), Some(5));
    }

    /// An IPAddress whose owner is the claim of this UID.
    fn owned(name: &str, uid: &str, version: u64) -> Object {
        let mut address = address(name, version);
        let owner = json!([{"apiVersion": "ipam.cluster.x-k8s.io/v1beta2", "kind": "IPAddressClaim", "name": name,
            "uid": uid, "controller": true}]);
        address.metadata.owner_references = serde_json::from_value(owner).unwrap();
        address.metadata.finalizers = Some(vec![ADDRESS_FINALIZER.to_owned()]);
        address
    }

    #[test]
    fn a_restored_ipaddress_is_not_left_over_although_the_leases_of_its_unknown_owner_were_released() {
        let mut index = index();
        index.note(ClaimKind::Claim, Change::Apply(claim("a", "u2", 4)));
        for version in [5, 7] {
            index.note(ClaimKind::Address, Change::Apply(owned("a", "u1", version)));
            let view = index.view(&key("a"));
            assert_eq!((view.former, view.has_seen_owner), (["u1".to_owned()].into(), false), "{version}");
            index.forget(&key("a"), "u1");
            index.remove(ClaimKind::Address, &key("a"), Some(version + 1));
        }
    }

    #[test]
    fn an_ipaddress_that_arrives_after_the_end_of_its_claim_belongs_to_an_earlier_claim() {
        let mut index = index();
        index.apply(ClaimKind::Claim, claim("a", "u1", 3));
        index.remove(ClaimKind::Claim, &key("a"), Some(4));
        index.forget(&key("a"), "u1");
        index.note(ClaimKind::Address, Change::Apply(owned("a", "u1", 5)));
        assert_eq!(index.view(&key("a")).former, ["u1".to_owned()].into());
        // A restore may create an IPAddress whose claim this leader has never seen.
        index.note(ClaimKind::Address, Change::Apply(owned("b", "u2", 6)));
        assert_eq!(index.view(&key("b")).former, [].into());
    }

    #[test]
    fn a_claim_that_has_ended_is_not_revived_by_a_late_event() {
        let mut index = index();
        index.apply(ClaimKind::Claim, claim("a", "u1", 9));
        index.end(ClaimKind::Claim, &key("a"), 9);
        index.forget(&key("a"), "u1");
        assert_eq!(index.apply(ClaimKind::Claim, claim("a", "u1", 9)), [].into());
        assert!(index.view(&key("a")).is_empty());
        assert_eq!(index.apply(ClaimKind::Claim, claim("a", "u2", 12)), [key("a")].into());
    }

    #[test]
    fn a_removed_claim_is_noted_as_an_earlier_claim_that_may_hold_an_address() {
        let mut index = index();
        index.apply(ClaimKind::Claim, claim("a", "u1", 9));
        assert_eq!(index.remove(ClaimKind::Claim, &key("a"), Some(10)), [key("a")].into());
        assert_eq!(index.view(&key("a")).former, ["u1".to_owned()].into());
        index.forget(&key("a"), "u1");
        assert_eq!(index.by_age(), []);
    }

    #[test]
    fn a_claim_that_clusterctl_moves_counts_as_moved_until_its_addresses_are_released() {
        let cluster = |paused: bool| {
            let metadata = json!({"namespace": "n", "name": "c1", "resourceVersion": "1"});
            object(json!({"metadata": metadata, "spec": {"paused": paused}}))
        };
        let with = |metadata: Value| {
            let mut value = serde_json::to_value(claim("a", "u1", 3)).unwrap();
            json_patch::merge(&mut value, &json!({"metadata": metadata}));
            object(value)
        };
        let moved = || with(json!({"annotations": {(MOVED_ANNOTATION): ""}}));
        let deleted = || with(json!({"deletionTimestamp": "1970-01-01T00:00:09Z"}));
        let none: BTreeSet<String> = [].into();
        // Whether the Cluster is paused, the last version of the claim, and whether the claim has moved.
        for (is_paused, last, is_moved) in [
            (false, None, false),
            (false, Some(moved()), true),
            (true, Some(moved()), true),
            // The claim is gone before the watch has reported its annotation.
            (true, None, true),
            (true, Some(deleted()), false),
        ] {
            for is_found_by_read in [false, true] {
                let mut index = index();
                index.apply(ClaimKind::Cluster, cluster(is_paused));
                index.apply(ClaimKind::Claim, claim("a", "u1", 2));
                assert_eq!(index.view(&key("a")).moved, none);
                if let Some(last) = &last {
                    index.apply(ClaimKind::Claim, last.clone());
                }
                match is_found_by_read {
                    true => index.end(ClaimKind::Claim, &key("a"), 3),
                    false => drop(index.remove(ClaimKind::Claim, &key("a"), None)),
                }
                let view = index.view(&key("a"));
                let former: BTreeSet<String> = ["u1".to_owned()].into();
                let expected = if is_moved { former.clone() } else { none.clone() };
                assert_eq!((view.former, view.moved), (former, expected), "{is_paused} {last:?}");
                index.forget(&key("a"), "u1");
                assert_eq!(index.moved, none);
            }
        }
    }

    #[test]
    fn a_changed_cluster_affects_its_claims() {
        let mut index = index();
        index.apply(ClaimKind::Claim, claim("a", "u1", 1));
        let cluster = |name: &str, version: u64, paused: bool| {
            let metadata = json!({"namespace": "n", "name": name, "resourceVersion": version.to_string()});
            object(json!({"metadata": metadata, "spec": {"paused": paused}}))
        };
        assert_eq!(index.view(&key("a")).cluster, Cluster::Absent);
        assert_eq!(index.apply(ClaimKind::Cluster, cluster("c2", 2, true)), [].into());
        assert_eq!(index.apply(ClaimKind::Cluster, cluster("c1", 3, true)), [key("a")].into());
        assert_eq!(index.view(&key("a")).cluster, Cluster::Paused);
        assert_eq!(index.apply(ClaimKind::Cluster, cluster("c1", 4, true)), [].into());
        assert_eq!(index.apply(ClaimKind::Cluster, cluster("c1", 5, false)), [key("a")].into());
        assert_eq!(
            index.store(ClaimKind::Cluster, cluster("c1", 4, true)),
            [].into(),
            "a list may be older than the watch"
        );
        assert_eq!(index.view(&key("a")).cluster, Cluster::Running);
        assert_eq!(index.remove(ClaimKind::Cluster, &key("c1"), None), [key("a")].into());
        assert_eq!(index.view(&key("a")).cluster, Cluster::Absent);
    }

    #[test]
    fn a_cluster_that_only_a_list_has_is_gone_after_the_watch_has_passed_its_version() {
        let mut index = index();
        index.apply(ClaimKind::Claim, claim("a", "u1", 1));
        index.note(ClaimKind::Cluster, Change::Lists);
        index.note(ClaimKind::Cluster, Change::Listed);
        let cluster = |name: &str, version: u64| {
            object(json!({"metadata": {"namespace": "n", "name": name, "resourceVersion": version.to_string()}}))
        };
        assert_eq!(index.store(ClaimKind::Cluster, cluster("c1", 3)), [key("a")].into());
        assert_eq!(index.view(&key("a")).cluster, Cluster::Running);
        assert_eq!(index.note(ClaimKind::Cluster, Change::Apply(cluster("c2", 4))), [key("a")].into());
        assert_eq!(index.view(&key("a")).cluster, Cluster::Absent);
    }

    #[test]
    fn an_ipaddress_is_noted_as_unrecorded_until_the_registry_has_it() {
        let mut index = index();
        index.apply(ClaimKind::Address, address("a", 1));
        let known = index.view(&key("a")).address.unwrap();
        let unrecorded =
            |claim: Option<&str>| vec![Unrecorded { address: known.clone(), claim: claim.map(str::to_owned) }];
        assert_eq!(index.unrecorded(None), unrecorded(None), "its claim may come");
        index.apply(ClaimKind::Claim, claim("a", "u1", 2));
        assert_eq!(index.unrecorded(None), unrecorded(Some("u1")));
        index.note_recorded(&known);
        index.apply(ClaimKind::Address, address("a", 3));
        assert_eq!(index.unrecorded(None), []);
        index.forget_recorded();
        assert_eq!(index.unrecorded(None).len(), 1, "a pool has new addresses");
    }

    #[test]
    fn an_ipaddress_that_replaces_another_during_its_adoption_is_still_unrecorded() {
        for (member, value) in [("/metadata/uid", "i2"), ("/spec/address", "10.0.0.9")] {
            let mut index = index();
            let metadata = json!({"namespace": "n", "name": "a", "uid": "i1", "resourceVersion": "1"});
            let pool = json!({"apiGroup": "ipam.glowplug.dev", "kind": "StaticIPPool", "name": "p"});
            let spec = json!({"poolRef": pool, "claimRef": {"name": "a"}, "address": "10.0.0.8", "prefix": 24});
            let mut now = json!({"metadata": metadata, "spec": spec});
            index.apply(ClaimKind::Address, object(now.clone()));
            let adopted = index.view(&key("a")).address.unwrap();
            *now.pointer_mut(member).unwrap() = value.into();
            now["metadata"]["resourceVersion"] = "2".into();
            index.apply(ClaimKind::Address, object(now.clone()));
            index.note_recorded(&adopted);
            index.note_reserved(&adopted);
            let address = IpAddress::read(object(now)).unwrap();
            assert_eq!(index.unrecorded(None), [Unrecorded { address: address.clone(), claim: None }]);
            index.note_recorded(&address);
            assert_eq!(index.unrecorded(None), []);
        }
    }

    #[test]
    fn a_reserved_ipaddress_without_a_claim_does_not_count_as_an_earlier_claim() {
        let mut index = index();
        let metadata = json!({"namespace": "n", "name": "a", "uid": "i1", "resourceVersion": "5"});
        let pool_ref = json!({"apiGroup": "ipam.glowplug.dev", "kind": "StaticIPPool", "name": "p"});
        let spec = json!({"address": "10.0.0.8", "prefix": 24, "claimRef": {"name": "a"}, "poolRef": pool_ref});
        index.apply(ClaimKind::Address, object(json!({"metadata": metadata, "spec": spec})));
        let address = index.view(&key("a")).address.unwrap();
        index.note_reserved(&address);
        // When a leader starts, it notes the holders in the registry.
        index.note_holder(&key("a"), "i1");
        assert_eq!(index.view(&key("a")).former, [].into());
        index.remove(ClaimKind::Address, &key("a"), Some(6));
        assert_eq!(index.view(&key("a")).former, ["i1".to_owned()].into(), "its reservation ends");
    }

    #[test]
    fn an_ipaddress_is_unrecorded_again_when_its_claim_comes() {
        let mut index = index();
        index.apply(ClaimKind::Address, address("a", 1));
        let known = index.addresses.get(&key("a")).unwrap().clone();
        index.note_reserved(&known);
        assert_eq!(index.unrecorded(None), []);
        index.apply(ClaimKind::Claim, claim("a", "u1", 2));
        assert_eq!(index.unrecorded(None), [Unrecorded { address: known.clone(), claim: Some("u1".to_owned()) }]);
        index.note_reserved(&known);
        assert_eq!(index.unrecorded(None).len(), 1, "the claim has come before the reservation");
    }

    #[test]
    fn an_ipaddress_is_treated_as_unclaimed_if_the_reference_of_its_claim_names_no_pool() {
        let mistaken = |version| {
            let mut claim = claim("a", "u1", version);
            claim.data["spec"]["poolRef"].as_object_mut().unwrap().remove("apiGroup");
            claim
        };
        for is_claim_first in [true, false] {
            let mut index = index();
            let mut known = address("a", 1);
            known.metadata.uid = Some("i1".to_owned());
            let mut objects = vec![(ClaimKind::Address, known), (ClaimKind::Claim, mistaken(2))];
            if is_claim_first {
                objects.reverse();
            }
            objects.into_iter().for_each(|(kind, object)| drop(index.apply(kind, object)));
            let known = index.addresses.get(&key("a")).unwrap().clone();
            assert_eq!(index.unrecorded(None), [Unrecorded { address: known.clone(), claim: None }]);
            assert_eq!(index.claimed_by_age(), []);
            index.note_reserved(&known);
            assert_eq!((index.unrecorded(None), index.view(&key("a")).former), (vec![], [].into()));
            // A later leader finds the reservation among the holders. Then a user corrects the claim.
            index.note_holder(&key("a"), "i1");
            index.apply(ClaimKind::Claim, mistaken(3));
            assert_eq!((index.unrecorded(None), index.view(&key("a")).former), (vec![], [].into()));
            index.apply(ClaimKind::Claim, claim("a", "u1", 4));
            assert_eq!(index.unrecorded(None), [Unrecorded { address: known, claim: Some("u1".to_owned()) }]);
            assert_eq!(index.view(&key("a")).former, ["i1".to_owned()].into());
        }
    }

    #[test]
    fn an_ipaddress_is_treated_as_unclaimed_while_its_claim_names_another_pool() {
        let on = |pool: &str, version| {
            let mut claim = claim("a", "u1", version);
            claim.data["spec"]["poolRef"]["name"] = pool.into();
            claim
        };
        let (mut index, mut known) = (index(), address("a", 1));
        known.metadata.uid = Some("i1".to_owned());
        index.apply(ClaimKind::Claim, on("q", 2));
        index.apply(ClaimKind::Address, known);
        let known = index.addresses.get(&key("a")).unwrap().clone();
        assert_eq!(index.unrecorded(None), [Unrecorded { address: known.clone(), claim: None }]);
        index.note_reserved(&known);
        assert_eq!((index.unrecorded(None), index.view(&key("a")).former), (vec![], [].into()));
        index.apply(ClaimKind::Claim, on("p", 3));
        assert_eq!(index.unrecorded(None), [Unrecorded { address: known.clone(), claim: Some("u1".to_owned()) }]);
        assert_eq!(index.view(&key("a")).former, ["i1".to_owned()].into());
        index.note_recorded(&known);
        index.apply(ClaimKind::Claim, on("q", 4));
        assert_eq!(index.unrecorded(None), [], "the claim keeps its lease");
    }

    #[test]
    fn no_content_of_an_object_changes_the_state_of_another_claim() {
        let state = |index: &KnownClaims| {
            let view = index.view(&key("honest"));
            (view.claim, view.address, view.cluster, index.unrecorded(None).len())
        };
        let mut honest = index();
        honest.apply(ClaimKind::Claim, claim("honest", "u", 9));
        honest.apply(ClaimKind::Address, address("honest", 9));
        let before = state(&honest);
        let annotations = json!({"annotations": {
            "ipam.glowplug.dev/family": "IPv4", "ipam.glowplug.dev/requested-address": "10.0.0.8",
        }});
        let condition = json!({"type": "Ready", "status": "False", "reason": "PoolExhausted", "message": "x"});
        let status = json!({"conditions": [condition], "addressRef": {"name": "a"}});
        let cluster = json!({"metadata": {"namespace": "n", "name": "other"}, "spec": {"paused": true}});
        for (kind, valid) in [
            (ClaimKind::Claim, serde_json::to_value(claim("hostile", "h", 9)).unwrap()),
            (ClaimKind::Address, serde_json::to_value(address("hostile", 9)).unwrap()),
            (ClaimKind::Cluster, cluster),
        ] {
            let mut valid = valid;
            json_patch::merge(&mut valid, &json!({"metadata": annotations, "status": status}));
            crate::variants::each_object(&valid, |object| {
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
