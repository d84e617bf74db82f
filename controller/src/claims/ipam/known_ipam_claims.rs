//! Index of IPAMClaims and of the networks and pools on which they depend. Pure logic, as in the index of
//! IPAddressClaims.

use std::collections::{BTreeMap, BTreeSet};

use crate::claims::ipam::decision::{Recorded, Serving, View};
use crate::cluster::key::{Key, PoolId};
use crate::cluster::newest::{Newest, Progress};
use crate::cluster::object::{Object, version_of};
use crate::cluster::watch::Change;
use crate::kinds::cluster_api::{CLAIM_FINALIZER, has_finalizer};
use crate::kinds::ipam_claim::{IpamClaim, network_name, vm_of_name};
use crate::pools::facts::{Facts, PoolFacts};

/// All known IPAMClaims, networks and pools.
#[derive(Debug, Default)]
pub(crate) struct KnownIpamClaims {
    claims: Newest<Key, IpamClaim>,
    /// Claims whose addresses the registry has adopted or reserved.
    adopted: BTreeSet<Key>,
    /// Claims on unknown networks, with addresses that the registry has reserved: see [`KnownIpamClaims::doubted`].
    reserved: BTreeSet<Key>,
    /// Claims of each name that may be gone and may hold addresses: for the UID of each claim, the names of its virtual
    /// machines.
    former: BTreeMap<Key, BTreeMap<String, BTreeSet<String>>>,
    /// The name of each network, by its network attachment definition.
    networks: BTreeMap<Key, String>,
    /// Facts about the pools, by the name of the pool.
    pools: Facts,
    /// Claims whose addresses may be missing from the registry.
    unrecorded: BTreeSet<Key>,
}

/// The watched kinds.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum IpamKind {
    Claim,
    Attachment,
}

// === impl KnownIpamClaims ===

impl KnownIpamClaims {
    /// Notes a change that a watch reports. Returns the names whose decision may have changed.
    pub(crate) fn note(&mut self, kind: IpamKind, change: Change) -> BTreeSet<Key> {
        change.note_in(
            self,
            |index, object| index.apply(kind, object),
            |index, key, version| index.remove(kind, key, version),
            |index, progress| index.follow(kind, progress),
        )
    }

    /// Notes how far the watch of a kind has come. Returns the objects that are gone, because the watch has passed
    /// their versions without a report.
    fn follow(&mut self, kind: IpamKind, progress: &Progress<Key>) -> Vec<Key> {
        match kind {
            IpamKind::Claim => self.claims.follow(progress),
            IpamKind::Attachment => Vec::new(),
        }
    }

    /// Stores an object. Returns the names whose decision may have changed.
    pub(crate) fn apply(&mut self, kind: IpamKind, object: Object) -> BTreeSet<Key> {
        let key = Key::of(&object.metadata);
        match kind {
            IpamKind::Claim => self.apply_claim(IpamClaim::read(object)),
            IpamKind::Attachment => self.set_network(key, network_name(&object)),
        }
    }

    /// Stores a claim from a response. The watch may report the same claim later.
    pub(crate) fn store(&mut self, claim: Object) {
        let key = Key::of(&claim.metadata);
        let is_unknown = self.version(&key).is_none();
        self.apply(IpamKind::Claim, claim);
        if is_unknown {
            self.claims.expect(&key);
        }
    }

    /// Removes an object. Returns the names whose decision may have changed.
    ///
    /// `version` is the last version of the object. `None` when a list no longer has the object.
    pub(crate) fn remove(&mut self, kind: IpamKind, key: &Key, version: Option<u64>) -> BTreeSet<Key> {
        if kind == IpamKind::Attachment {
            return self.set_network(key.clone(), None);
        }
        let former =
            self.claims.get(key).filter(|_| self.concerns(key)).map(|claim| (claim.uid().to_owned(), claim.users()));
        if !self.claims.remove(key, version) {
            return BTreeSet::new();
        }
        self.note_absence(key, former);
        [key.clone()].into()
    }

    /// Stores the answer to a consistent read of a claim, like [`crate::claims::known_claims::KnownClaims::take`].
    pub(crate) fn take(&mut self, key: &Key, known: Option<u64>, object: Option<Object>) -> bool {
        match (object, known) {
            (Some(_), Some(_)) if self.version(key).is_none() => return false,
            (Some(object), _) => self.store(object),
            // The watch reports the deletion later.
            (None, Some(known)) => self.end(key, known),
            (None, None) => {}
        }
        true
    }

    /// Returns the newest known version of a claim. `None`: the claim is unknown.
    pub(crate) fn version(&self, key: &Key) -> Option<u64> {
        self.claims.version(key)
    }

    /// Records that the claim of a name no longer exists, where `version` is its last known version. The watch reports
    /// the deletion later.
    pub(crate) fn end(&mut self, key: &Key, version: u64) {
        let former =
            self.claims.get(key).filter(|_| self.concerns(key)).map(|claim| (claim.uid().to_owned(), claim.users()));
        self.claims.forget(key, version);
        if self.claims.get(key).is_none() {
            self.note_absence(key, former);
        }
    }

    /// Forgets an earlier claim of a name after all its leases are released.
    pub(crate) fn forget(&mut self, key: &Key, uid: &str) {
        if let Some(former) = self.former.get_mut(key) {
            former.remove(uid);
            if former.is_empty() {
                self.former.remove(key);
            }
        }
    }

    /// Records that the claim `uid` of a name holds or reserves an address in the ledger. If the claim does not exist,
    /// the address must be released.
    pub(crate) fn note_holder(&mut self, key: &Key, uid: &str) {
        if self.claims.get(key).is_some_and(|claim| claim.uid() == uid) {
            self.adopted.insert(key.clone());
        } else {
            let former = self.former.entry(key.clone()).or_default();
            former.entry(uid.to_owned()).or_insert_with(|| [vm_of_name(&key.name).to_owned()].into());
        }
    }

    fn note_absence(&mut self, key: &Key, former: Option<(String, BTreeSet<String>)>) {
        self.adopted.remove(key);
        self.reserved.remove(key);
        self.unrecorded.remove(key);
        if let Some((uid, users)) = former {
            self.former.entry(key.clone()).or_default().insert(uid, users);
        }
    }

    /// Stores the facts about the pools. Returns the names whose decision may have changed.
    pub(crate) fn set_pools(&mut self, pools: Facts) -> BTreeSet<Key> {
        let before = std::mem::replace(&mut self.pools, pools);
        let attachments = |facts: &Facts, other: &Facts| -> BTreeSet<Key> {
            let changed = facts.iter().filter(|(name, facts)| other.get(*name) != Some(facts));
            changed.filter_map(|(_, facts)| facts.attachment.clone()).collect()
        };
        let changed = &attachments(&before, &self.pools) | &attachments(&self.pools, &before);
        let networks: BTreeSet<&String> = changed.iter().filter_map(|key| self.networks.get(key)).collect();
        self.on_networks(&networks)
    }

    /// All names. Names of older claims come first.
    pub(crate) fn by_age(&self) -> Vec<Key> {
        let names: BTreeSet<&Key> = self.claims.iter().map(|(key, _)| key).chain(self.former.keys()).collect();
        let created = |key: &Key| self.claims.get(key).map(IpamClaim::created).unwrap_or_default();
        let mut all: Vec<&Key> = names.into_iter().collect();
        all.sort_by_key(|key| created(key));
        all.into_iter().cloned().collect()
    }

    /// The state of a name, without the parts that come from the registry and from consistent reads.
    pub(crate) fn view(&self, key: &Key) -> View {
        let claim = self.claims.get(key);
        let uid = claim.map(IpamClaim::uid);
        let former = self.former.get(key).into_iter().flatten();
        let former = former.filter(|(former, _)| Some(former.as_str()) != uid);
        View {
            key: key.clone(),
            claim: claim.cloned(),
            former: former.map(|(uid, users)| (uid.clone(), users.clone())).collect(),
            pool: claim.map_or(Serving::None, |claim| self.pool_of(claim)),
            ledger: Recorded::default(),
            problem: None,
            guests: None,
            left: BTreeSet::new(),
            migrated: BTreeSet::new(),
            has_adopted: false,
            is_released: false,
            has_kept: false,
            is_status_written: false,
        }
    }

    /// The claims whose addresses may be missing from the registry, each with its pools among `pools`. If `pools` is
    /// `None`, the pools in the index are used.
    pub(crate) fn unrecorded(&self, pools: Option<&Facts>) -> Vec<(IpamClaim, Vec<PoolId>)> {
        let pools = pools.unwrap_or(&self.pools);
        let unrecorded = self.unrecorded.iter().filter_map(|key| self.claims.get(key));
        let with_pools = unrecorded.map(|claim| (claim.clone(), self.pools_among(pools, claim)));
        with_pools.filter(|(_, pools)| !pools.is_empty()).collect()
    }

    /// The claims whose addresses may be missing from the registry and whose network is unknown. With each claim come
    /// those of `pools` to which it may belong: pools whose network attachment definition has no known name. If `pools`
    /// is `None`, the pools in the index are used.
    ///
    /// A network attachment definition is absent for a while if another program replaces it. Meanwhile, guests still
    /// run with the addresses of its claims.
    pub(crate) fn doubted(&self, pools: Option<&Facts>) -> Vec<(IpamClaim, Vec<PoolId>)> {
        let pools = pools.unwrap_or(&self.pools);
        let is_nameless = |attachment: &Key| !self.networks.contains_key(attachment);
        let nameless: Vec<(PoolId, &PoolFacts)> = pools
            .iter()
            .filter(|(_, facts)| facts.attachment.as_ref().is_some_and(is_nameless))
            .map(|(name, facts)| (PoolId::parse(name), facts))
            .collect();
        if nameless.is_empty() {
            return Vec::new();
        }
        let own: BTreeSet<(&str, &str)> =
            self.networks.iter().map(|(key, name)| (key.namespace.as_str(), name.as_str())).collect();
        let doubted = self.unrecorded.difference(&self.reserved).filter_map(|key| {
            let claim = self.claims.get(key)?;
            let namespace = key.namespace.as_str();
            // The networks of another namespace do not count: its users must not decide which claims are doubted.
            if own.contains(&(namespace, claim.network.as_str())) || self.pool_among(pools, claim).is_some() {
                return None;
            }
            let may_serve = |(pool, facts): &&(PoolId, &PoolFacts)| {
                pool.namespace.as_deref().is_none_or(|of| of == namespace) && facts.claims.has(namespace)
            };
            let pools: Vec<PoolId> = nameless.iter().filter(may_serve).map(|(pool, _)| pool.clone()).collect();
            (!pools.is_empty()).then(|| (claim.clone(), pools))
        });
        doubted.collect()
    }

    /// Notes that the addresses in this version of a claim of an unknown network are reserved. They are released with the
    /// claim. If the network becomes known, the registry must record the addresses.
    pub(crate) fn note_doubted(&mut self, claim: &IpamClaim) {
        let key = claim.key();
        self.note_adopted(&key);
        if self.claims.get(&key).is_some_and(|known| has_same_record(known, claim)) {
            self.reserved.insert(key);
        }
    }

    /// The first pool among `pools` that serves the network of a claim.
    pub(crate) fn pool_among(&self, pools: &Facts, claim: &IpamClaim) -> Option<PoolId> {
        self.pools_among(pools, claim).into_iter().next()
    }

    /// Notes that the registry may lack the addresses of every claim, because pools have new addresses.
    pub(crate) fn forget_recorded(&mut self) {
        let with_addresses = self.claims.iter().filter(|(_, claim)| !claim.ips.is_empty());
        self.unrecorded = with_addresses.map(|(key, _)| key.clone()).collect();
        self.reserved.clear();
    }

    /// Notes that the registry has the addresses in this version of a claim. An adoption takes some time, and the status
    /// may have got other addresses meanwhile, which the registry still lacks.
    pub(crate) fn note_recorded(&mut self, claim: &IpamClaim) {
        let key = claim.key();
        self.note_adopted(&key);
        if self.claims.get(&key).is_some_and(|known| has_same_record(known, claim)) {
            self.unrecorded.remove(&key);
        }
    }

    fn note_adopted(&mut self, key: &Key) {
        if self.claims.get(key).is_some() {
            self.adopted.insert(key.clone());
        }
    }

    fn apply_claim(&mut self, claim: IpamClaim) -> BTreeSet<Key> {
        let (key, version) = (claim.key(), version_of(&claim.metadata));
        if !self.claims.is_news(&key, version) {
            return BTreeSet::new();
        }
        let known = self.claims.get(&key);
        let is_recorded = known.is_some_and(|known| has_same_record(known, &claim));
        if let Some(known) = known.filter(|known| known.uid() != claim.uid()) {
            let former = self.concerns(&key).then(|| (known.uid().to_owned(), known.users()));
            self.note_absence(&key, former);
        }
        if !is_recorded {
            self.reserved.remove(&key);
        }
        match (is_recorded, claim.ips.is_empty()) {
            (true, _) => {}
            (false, true) => drop(self.unrecorded.remove(&key)),
            (false, false) => drop(self.unrecorded.insert(key.clone())),
        }
        self.claims.apply(key.clone(), version, claim);
        [key].into()
    }

    fn set_network(&mut self, attachment: Key, name: Option<String>) -> BTreeSet<Key> {
        let before = match &name {
            Some(name) => self.networks.insert(attachment, name.clone()),
            None => self.networks.remove(&attachment),
        };
        if before == name {
            return BTreeSet::new();
        }
        self.on_networks(&before.iter().chain(&name).collect())
    }

    fn on_networks(&self, networks: &BTreeSet<&String>) -> BTreeSet<Key> {
        let on_networks = self.claims.iter().filter(|(_, claim)| networks.contains(&claim.network));
        on_networks.map(|(key, _)| key.clone()).collect()
    }

    fn pool_of(&self, claim: &IpamClaim) -> Serving {
        match &self.pools_of(claim)[..] {
            [] => Serving::None,
            [pool] => match self.pools.get(&pool.to_string()) {
                Some(facts) => Serving::Pool(pool.clone(), facts.clone()),
                None => Serving::None,
            },
            [pool, others @ ..] => Serving::Several(pool.clone(), others.to_vec()),
        }
    }

    /// Returns the pools that serve a claim: the pools of its network in its namespace. If the namespace has no such
    /// pool, returns the pools of the network without a namespace, if they serve claims of this namespace.
    fn pools_of(&self, claim: &IpamClaim) -> Vec<PoolId> {
        let mut pools = self.pools_among(&self.pools, claim);
        let namespace = claim.metadata.namespace.as_deref().unwrap_or_default();
        pools.retain(|pool| self.pools.get(&pool.to_string()).is_some_and(|facts| facts.claims.has(namespace)));
        pools
    }

    fn pools_among(&self, pools: &Facts, claim: &IpamClaim) -> Vec<PoolId> {
        let namespace = claim.metadata.namespace.as_deref();
        let serves = |attachment: &Key| self.networks.get(attachment).is_some_and(|name| *name == claim.network);
        let pools = pools.iter().filter(|(_, facts)| facts.attachment.as_ref().is_some_and(serves));
        let (of_namespace, of_cluster): (Vec<PoolId>, Vec<PoolId>) = pools
            .map(|(name, _)| PoolId::parse(name))
            .filter(|pool| pool.namespace.is_none() || pool.namespace.as_deref() == namespace)
            .partition(|pool| pool.namespace.is_some());
        if of_namespace.is_empty() { of_cluster } else { of_namespace }
    }

    /// Whether a pool serves, or has served, the claim of a name. Claims of other programs need no pass.
    pub(crate) fn concerns(&self, key: &Key) -> bool {
        let is_ours =
            |claim: &IpamClaim| has_finalizer(&claim.metadata, CLAIM_FINALIZER) || !self.pools_of(claim).is_empty();
        self.adopted.contains(key) || self.former.contains_key(key) || self.claims.get(key).is_some_and(is_ours)
    }
}

/// Whether two versions of a name are the same claim, with the same addresses in the status.
fn has_same_record(one: &IpamClaim, other: &IpamClaim) -> bool {
    (one.uid(), &one.ips) == (other.uid(), &other.ips)
}

#[cfg(test)]
mod tests {
    use glowplug::host::claim::is_object_name;
    use glowplug::host::pool::Namespaces;
    use glowplug::network::Family;
    use k8s_openapi::jiff::Timestamp;
    use serde_json::{Value, json};

    use super::super::decision::{Guest, RegisteredPool, Step, decide};
    use super::super::guest_of;
    use super::*;
    use crate::variants::each_object;

    fn key(namespace: &str, name: &str) -> Key {
        Key { namespace: namespace.to_owned(), name: name.to_owned() }
    }

    fn claim(key: &Key, address: &str) -> Value {
        let vm = vm_of_name(&key.name);
        let owner = json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": vm, "uid": "vm-1"});
        let condition = json!({"type": "IPsAllocated", "status": "False", "reason": "SubnetExhausted", "message": "x"});
        json!({
            "metadata": {
                "namespace": key.namespace, "name": key.name, "uid": format!("u-{vm}"), "resourceVersion": "7",
                "finalizers": [CLAIM_FINALIZER], "ownerReferences": [owner], "labels": {"kubevirt.io/vm": vm},
                "annotations": {"ipam.glowplug.dev/requested-address": address},
            },
            "spec": {"network": "blue", "interface": ""},
            "status": {"ips": [format!("{address}/24")], "conditions": [condition], "ownerPod": {"name": "x"}},
        })
    }

    fn attachment(namespace: &str) -> Value {
        let config = json!({"cniVersion": "1.0.0", "name": "blue", "type": "ovn-k8s-cni-overlay"}).to_string();
        let metadata = json!({
            "namespace": namespace, "name": "net", "labels": {"a": "b"}, "annotations": {"a": "b", "c": "d"},
            "finalizers": ["a/b"],
        });
        json!({"metadata": metadata, "spec": {"config": config}})
    }

    /// An index with the claim `n/honest.net1` on the pool `n/p`, and with a pool in the namespace `evil`.
    fn index() -> KnownIpamClaims {
        let mut index = KnownIpamClaims::default();
        let facts = |namespace: &str| {
            let attachment = Some(key(namespace, "net"));
            PoolFacts { uid: "pool".to_owned(), sticky: false, ready: Ok(()), claims: Namespaces::every(), attachment }
        };
        index.set_pools([("n/p".to_owned(), facts("n")), ("evil/p".to_owned(), facts("evil"))].into());
        index.apply(IpamKind::Attachment, serde_json::from_value(attachment("n")).unwrap());
        let honest = claim(&key("n", "honest.net1"), "10.0.0.8");
        index.apply(IpamKind::Claim, serde_json::from_value(honest).unwrap());
        index
    }

    /// Returns what the index knows about the claim `n/honest.net1`, and the next request for the claim.
    fn state(index: &KnownIpamClaims) -> impl PartialEq + use<> {
        let honest = key("n", "honest.net1");
        let unrecorded: Vec<(IpamClaim, Vec<PoolId>)> =
            index.unrecorded(None).into_iter().filter(|(claim, _)| claim.key() == honest).collect();
        let view = index.view(&honest);
        let step = decide(&view, Timestamp::UNIX_EPOCH);
        (view.claim, view.former, view.pool, unrecorded, index.concerns(&honest), step)
    }

    /// Asserts that the next request for a claim concerns only this claim.
    fn check(view: &View) {
        match decide(view, Timestamp::UNIX_EPOCH) {
            Step::Claim(claim) => assert_eq!(Key::of_machine(&claim.machine), view.key),
            Step::Adopt(record, network) => {
                assert_eq!((Key::of_machine(&record.claimant.machine), network.as_str()), (view.key.clone(), "n/blue"));
            }
            Step::Keep(claimant, _) => assert_eq!(Key::of_machine(&claimant.machine), view.key),
            Step::Release(holder) | Step::EndRecords(holder, _) | Step::RecordMigration(holder) => {
                assert_eq!(Key::of_machine(&holder), view.key)
            }
            Step::ReadGuests(names) => assert!(names.iter().all(|name| is_object_name(name)), "{names:?}"),
            Step::PatchClaim(_) | Step::PatchStatus(..) | Step::Withdraw | Step::Wait => {}
        }
    }

    #[test]
    fn a_claim_of_an_unknown_network_may_belong_to_each_pool_whose_network_attachment_definition_has_no_name() {
        let mut index = index();
        let doubted = |index: &KnownIpamClaims| {
            let of = |(claim, pools): (IpamClaim, Vec<PoolId>)| {
                (claim.key().to_string(), pools.iter().map(ToString::to_string).collect::<Vec<_>>())
            };
            index.doubted(None).into_iter().map(of).collect::<Vec<_>>()
        };
        // The network of the pool of namespace `evil` has no known name, but this pool serves no other namespace.
        assert_eq!(doubted(&index), []);
        index.remove(IpamKind::Attachment, &key("n", "net"), None);
        // An attachment of another namespace with the name of the network decides nothing about the claim.
        index.apply(IpamKind::Attachment, serde_json::from_value(attachment("evil")).unwrap());
        let honest = ("n/honest.net1".to_owned(), vec!["n/p".to_owned()]);
        assert_eq!((doubted(&index), index.unrecorded(None)), (vec![honest.clone()], vec![]));
        index.note_doubted(&index.claims.get(&key("n", "honest.net1")).unwrap().clone());
        assert_eq!(doubted(&index), []);
        // A pool has new addresses.
        index.forget_recorded();
        assert_eq!(doubted(&index), [honest]);
        // The claim is released when it is gone, although no pool serves its network.
        index.remove(IpamKind::Claim, &key("n", "honest.net1"), None);
        assert_eq!(index.view(&key("n", "honest.net1")).former.keys().collect::<Vec<_>>(), ["u-honest"]);
        assert_eq!(doubted(&index), []);
    }

    #[test]
    fn a_claim_may_miss_its_addresses_in_each_pool_of_a_network_with_the_name_in_the_claim() {
        let mut index = index();
        let mut other = attachment("n");
        other["metadata"]["name"] = "other".into();
        index.apply(IpamKind::Attachment, serde_json::from_value(other).unwrap());
        let facts = |attachment: &str| {
            let attachment = Some(key("n", attachment));
            PoolFacts { uid: "pool".to_owned(), sticky: false, ready: Ok(()), claims: Namespaces::every(), attachment }
        };
        let pools = [("n/p", "net"), ("n/q", "other"), ("n/r", "net")];
        index.set_pools(pools.map(|(name, attachment)| (name.to_owned(), facts(attachment))).into());
        let of = |(claim, pools): (IpamClaim, Vec<PoolId>)| {
            (claim.key().to_string(), pools.iter().map(ToString::to_string).collect::<Vec<_>>())
        };
        let unrecorded: Vec<(String, Vec<String>)> = index.unrecorded(None).into_iter().map(of).collect();
        assert_eq!(unrecorded, [("n/honest.net1".to_owned(), ["n/p", "n/q", "n/r"].map(str::to_owned).into())]);
    }

    #[test]
    fn new_addresses_of_a_claim_whose_earlier_addresses_are_being_adopted_are_adopted_later() {
        let honest = key("n", "honest.net1");
        for (changed, path) in [("u-new", "/metadata/uid"), ("10.0.0.9/24", "/status/ips/0")] {
            for is_doubted in [false, true] {
                let mut index = index();
                if is_doubted {
                    index.remove(IpamKind::Attachment, &key("n", "net"), None);
                }
                let left = |index: &KnownIpamClaims| -> Vec<IpamClaim> {
                    let unrecorded = index.unrecorded(None).into_iter().map(|(claim, _)| claim);
                    unrecorded.chain(index.doubted(None).into_iter().map(|(claim, _)| claim)).collect()
                };
                let end = |index: &mut KnownIpamClaims, claim: &IpamClaim| match is_doubted {
                    true => index.note_doubted(claim),
                    false => index.note_recorded(claim),
                };
                let adopted = left(&index).pop().unwrap();
                let mut now = claim(&honest, "10.0.0.8");
                *now.pointer_mut(path).unwrap() = changed.into();
                now["metadata"]["resourceVersion"] = "8".into();
                index.apply(IpamKind::Claim, serde_json::from_value(now.clone()).unwrap());
                end(&mut index, &adopted);
                let changed = IpamClaim::read(serde_json::from_value(now.clone()).unwrap());
                assert_eq!(left(&index), std::slice::from_ref(&changed));
                // A change of other members needs no second adoption.
                now["metadata"]["resourceVersion"] = "9".into();
                index.apply(IpamKind::Claim, serde_json::from_value(now).unwrap());
                end(&mut index, &changed);
                assert_eq!(left(&index), []);
            }
        }
    }

    #[test]
    fn a_later_leader_releases_a_claim_that_is_gone_although_no_pool_serves_its_network() {
        let mut index = index();
        index.remove(IpamKind::Attachment, &key("n", "net"), None);
        index.note_holder(&key("n", "honest.net1"), "u-honest");
        index.remove(IpamKind::Claim, &key("n", "honest.net1"), None);
        assert_eq!(index.view(&key("n", "honest.net1")).former.keys().collect::<Vec<_>>(), ["u-honest"]);
    }

    #[test]
    fn no_content_of_an_ipam_claim_changes_the_state_of_another_claim() {
        let before = state(&index());
        for hostile in [key("n", "hostile.net1"), key("evil", "honest.net1")] {
            let mut index = index();
            index.apply(IpamKind::Attachment, serde_json::from_value(attachment("evil")).unwrap());
            for deleted in [None, Some("2026-08-14T10:00:00Z")] {
                let mut valid = claim(&hostile, "10.0.0.9");
                valid["metadata"]["deletionTimestamp"] = json!(deleted);
                each_object(&valid, |object| {
                    index.apply(IpamKind::Claim, object);
                    let registered = RegisteredPool {
                        id: PoolId::parse("n/p"),
                        network: "n/blue".to_owned(),
                        interface: "eno101".parse().unwrap(),
                        families: [Family::Ipv4].into(),
                    };
                    let mut view = index.view(&hostile);
                    check(&view);
                    view.ledger = Recorded { pool: Some(registered), ..Recorded::default() };
                    check(&view);
                    view.guests = Some(Vec::new());
                    check(&view);
                    index.remove(IpamKind::Claim, &hostile, None);
                    check(&index.view(&hostile));
                    index.forget(&hostile, index.view(&hostile).former.keys().next().cloned().as_deref().unwrap_or(""));
                });
                assert!(state(&index) == before, "after the claims {hostile}");
            }
        }
    }

    #[test]
    fn no_content_of_an_attachment_changes_the_state_of_a_claim_of_another_namespace() {
        let before = state(&index());
        let mut index = index();
        let mut named = 0;
        each_object(&attachment("evil"), |object| {
            named += u32::from(network_name(&object).is_some());
            index.apply(IpamKind::Attachment, object);
            assert!(state(&index) == before);
        });
        assert!(named > 20, "{named}");
    }

    #[test]
    fn an_instance_of_any_content_has_the_name_for_which_it_was_read() {
        let owner = json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": "honest", "uid": "vm-1"});
        let valid = json!({
            "metadata": {"namespace": "n", "name": "hostile", "uid": "i-1", "ownerReferences": [owner], "labels": {"a": "b"}},
            "status": {"phase": "Running"},
        });
        each_object(&valid, |object| {
            let owners = object.metadata.owner_references.iter().flatten().map(|owner| owner.uid.clone());
            let uids = owners.chain(["i-1".to_owned()]).collect();
            let expected = Guest { name: "hostile".to_owned(), uids, has_left: false };
            assert_eq!(guest_of("hostile".to_owned(), object), expected);
        });
    }
}
