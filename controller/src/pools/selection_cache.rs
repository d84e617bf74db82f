//! Watches the pools, NodePools and Namespaces of a replica, and keeps the selection up to date.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::{Stream, StreamExt as _, stream};
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{ApiResource, ListParams};
use kube::{Api, Client};
use tokio::sync::watch;
use tokio::time::sleep;

use crate::cluster::client::{if_served, serves_established};
use crate::cluster::key::{Key, PoolId};
use crate::cluster::newest::Newest;
use crate::cluster::object::{Object, version_of};
use crate::cluster::request::{Refusal, ask, discover, refusal, until_other};
use crate::cluster::shared_read::SharedRead;
use crate::cluster::watch::{Change, changes};
use crate::kinds::pool::{GlobalStaticIPPool, OWN_LABELS, StaticIPPool};
use crate::kinds::virtual_machine::node_pools;
use crate::pools::facts::{PoolObject, Scope};
use crate::pools::selection::{KnownPool, MachinePool, NamespaceLabels, Selection};

/// Interval between checks whether the API server serves NodePools.
const DISCOVERY: Duration = Duration::from_secs(60);

/// The pools, the NodePools and the labels of Namespaces, kept up to date by watches. Each version of a pool is checked
/// only one time.
///
/// Every replica has a cache. The webhooks use each new selection immediately. The other parts of a leader use a new
/// selection only after the registry has taken its pools: they read [`OpenPools`](crate::pools::selection::OpenPools).
pub struct SelectionCache {
    client: Client,
    scope: Scope,
    pools: Api<Object>,
    global_pools: Api<Object>,
    node_pools: Api<Object>,
    namespaces: Api<Object>,
    objects: Mutex<Objects>,
    current: watch::Sender<Option<Arc<Selection>>>,
    snapshots: watch::Sender<Option<Snapshot>>,
    /// Number of the round of lists that is requested. A new leader requests a new round.
    rounds: watch::Sender<u64>,
    /// Number of requests so far to list everything again.
    ages: watch::Sender<u64>,
    lists: SharedRead<Selection>,
}

/// The pools at one point in time.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// Number of the round of lists from which the pools come.
    pub round: u64,
    /// Every pool, of both kinds.
    pub pools: BTreeMap<PoolId, Arc<KnownPool>>,
    /// Which machines the pools select.
    pub selection: Arc<Selection>,
}

#[derive(Debug, Default)]
struct Objects {
    round: u64,
    /// Kinds whose first list is not complete yet.
    unlisted: BTreeSet<Cached>,
    pools: Newest<PoolId, Arc<KnownPool>>,
    node_pools: BTreeMap<Key, Arc<Object>>,
    /// The NodePools of the list that is being received. `None`: no list is being received.
    next_node_pools: Option<BTreeMap<Key, Arc<Object>>>,
    /// Whether a list of NodePools has been completed.
    has_node_pools: bool,
    /// The labels of Namespaces. `None`: the Namespaces are not listed yet, or the controller has no right to list
    /// them.
    namespaces: Option<NamespaceLabels>,
    /// The labels from the list of Namespaces that is being received. `None`: no list is being received.
    next_namespaces: Option<NamespaceLabels>,
}

/// Which published values change.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Effect {
    Nothing,
    /// The snapshot changes: the metadata or the counts of a pool differ.
    Pools,
    /// The snapshot and the selection change.
    Selection,
}

/// The kinds of objects in the cache.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
enum Cached {
    Pool,
    GlobalPool,
    NodePool,
    Namespace,
}

// === impl SelectionCache ===

impl SelectionCache {
    /// Creates a cache of the pools and NodePools of `scope`. The cache is empty until [`SelectionCache::run`] runs.
    #[must_use]
    pub fn new(client: Client, scope: Scope) -> Self {
        let api = |kind: ApiResource| match scope.namespace.as_str() {
            "" => Api::all_with(client.clone(), &kind),
            namespace => Api::namespaced_with(client.clone(), namespace, &kind),
        };
        let (pools, node_pools) = (api(ApiResource::erase::<StaticIPPool>(&())), api(node_pools()));
        let global_pools = Api::all_with(client.clone(), &ApiResource::erase::<GlobalStaticIPPool>(&()));
        let namespaces = Api::all_with(client.clone(), &ApiResource::erase::<Namespace>(&()));
        let (current, snapshots) = (watch::Sender::default(), watch::Sender::default());
        // The cache waits for the labels of Namespaces from the start, unless the controller has no right to list
        // Namespaces.
        let objects = Mutex::new(Objects { unlisted: [Cached::Namespace].into(), ..Objects::default() });
        let (rounds, ages) = (watch::Sender::default(), watch::Sender::default());
        let lists = SharedRead::default();
        Self {
            client,
            scope,
            pools,
            global_pools,
            node_pools,
            namespaces,
            objects,
            current,
            snapshots,
            rounds,
            ages,
            lists,
        }
    }

    /// The objects for which the controller is responsible.
    #[must_use]
    pub(crate) fn scope(&self) -> &Scope {
        &self.scope
    }

    /// Returns the current selection. `None`: the objects are not listed yet.
    #[must_use]
    pub fn current(&self) -> Option<Arc<Selection>> {
        self.current.borrow().clone()
    }

    /// Returns a receiver that has the current selection and is notified of every change.
    pub fn subscribe(&self) -> watch::Receiver<Option<Arc<Selection>>> {
        self.current.subscribe()
    }

    /// Returns a receiver that has the current pools and is notified of every change.
    pub fn snapshots(&self) -> watch::Receiver<Option<Snapshot>> {
        self.snapshots.subscribe()
    }

    /// Begins a new round, in which the pools are listed again. Returns the number of the round. A new leader needs
    /// this, because a watch may be minutes behind: the leader must not begin with pools that an earlier leader no
    /// longer had.
    pub fn begin_round(&self) -> u64 {
        self.rounds.send_modify(|round| *round += 1);
        *self.rounds.borrow()
    }

    /// Makes [`SelectionCache::run`] list all objects again, because the API server may have older objects than before.
    pub fn begin_age(&self) {
        self.ages.send_modify(|age| *age += 1);
    }

    /// Stores the response to a write of a pool, so that the next write does not wait for the watch. Ignores a pool
    /// that the cache does not have, because it has been deleted meanwhile.
    pub fn note(&self, object: Object) {
        let mut objects = self.objects();
        let id = PoolId::of(&object.metadata);
        if objects.pools.get(&id).is_some() {
            let effect = objects.apply_pool(id, object);
            self.publish(&objects, effect);
        }
    }

    /// Reads the objects from the API server instead of from the cache. Use this function if a decision must include
    /// objects that were created a moment ago. Callers that come at the same time share a read.
    ///
    /// # Errors
    ///
    /// The API server did not list the objects of a kind.
    pub async fn list(self: &Arc<Self>) -> Result<Arc<Selection>, Arc<kube::Error>> {
        self.lists.get(|| Arc::clone(self).read()).await
    }

    async fn read(self: Arc<Self>) -> kube::Result<Selection> {
        let (of_namespaces, of_cluster) =
            (self.pools.list(&ListParams::default()).await?, self.global_pools.list(&ListParams::default()).await?);
        let pools = of_namespaces
            .items
            .into_iter()
            .chain(of_cluster.items)
            .filter(|object| self.scope.serves(&object.metadata));
        let pools: Vec<_> = pools.map(|object| Arc::new(MachinePool::read(PoolObject::read(object)))).collect();
        let listed = self.node_pools.list(&ListParams::default()).await;
        let listed = if_served(&self.client, &node_pools(), listed).await?;
        let node_pools = listed.into_iter().flatten().map(Arc::new);
        let namespaces = match pools.iter().any(|pool| pool.selects_namespaces()) {
            true => match self.namespaces.list(&ListParams::default()).await {
                Ok(list) => Some(list.items.into_iter().map(|object| labels_of(object.metadata)).collect()),
                Err(error) if refusal(&error).is_some_and(is_denial) => None,
                Err(error) => return Err(error),
            },
            // No pool needs the labels of Namespaces.
            false => Some(NamespaceLabels::new()),
        };
        Ok(Selection::new(pools, node_pools, namespaces.as_ref()).of_part(!self.scope.is_whole()))
    }

    /// Watches the objects and updates the cache, until the future is dropped.
    pub async fn run(&self) -> Infallible {
        let (mut rounds, mut ages) = (self.rounds.subscribe(), self.ages.subscribe());
        loop {
            ages.mark_unchanged();
            let has_node_pools = self.has_node_pools().await;
            self.objects().begin_node_pools(has_node_pools);
            let node_pools = has_node_pools.then_some(Cached::NodePool);
            tokio::select! {
                never = self.follow(node_pools) => match never {},
                never = self.follow_namespaces() => match never {},
                never = self.follow_rounds(&mut rounds) => match never {},
                () = self.until_node_pools(!has_node_pools) => {}
                Ok(()) = ages.changed() => {}
            }
        }
    }

    /// Lists and watches the Namespaces, as long as the controller has the right to list them. Without this right, only
    /// pools that select by the labels of Namespaces do not work.
    async fn follow_namespaces(&self) -> Infallible {
        const WHAT: &str = "right to list Namespaces";
        let first = ListParams::default().limit(1);
        let may_list = || async {
            match ask(self.namespaces.list(&first)).await {
                Ok(_) => Ok(true),
                Err(error) if error.refusal().is_some_and(is_denial) => Ok(false),
                Err(error) => Err(error),
            }
        };
        loop {
            let may = discover(WHAT, &may_list).await;
            if !may {
                tracing::warn!(
                    "has no right to list and watch Namespaces: pools with namespaceSelector allocate nothing"
                );
            }
            self.begin_namespaces(may);
            tokio::select! {
                never = self.follow(may.then_some(Cached::Namespace)) => match never {},
                () = until_other(WHAT, &may_list, &may) => {}
            }
        }
    }

    fn begin_namespaces(&self, may_list: bool) {
        let mut objects = self.objects();
        let effect = objects.begin_namespaces(may_list);
        self.publish(&objects, effect);
    }

    /// Lists and watches the pools, and lists them again in each round. The watch of NodePools continues over the
    /// rounds: if the conversion webhook of HyperShift is down, NodePools cannot be listed, but a new leader must still
    /// get the pools.
    async fn follow_rounds(&self, rounds: &mut watch::Receiver<u64>) -> Infallible {
        loop {
            let round = *rounds.borrow_and_update();
            self.objects().begin_round(round);
            tokio::select! {
                never = self.follow([Cached::Pool, Cached::GlobalPool]) => match never {},
                Ok(()) = rounds.changed() => {}
            }
        }
    }

    async fn follow(&self, kinds: impl IntoIterator<Item = Cached>) -> Infallible {
        let mut changes = self.changes(kinds);
        while let Some((kind, change)) = changes.next().await {
            let mut objects = self.objects();
            let effect = objects.apply(kind, change, |metadata| self.scope.serves(metadata));
            self.publish(&objects, effect);
        }
        // A watch never ends, so this line is reached only without kinds.
        std::future::pending().await
    }

    /// Publishes the objects after a change. The caller holds the lock on the objects, which keeps the changes in
    /// order.
    fn publish(&self, objects: &Objects, effect: Effect) {
        if !objects.unlisted.is_empty() || effect == Effect::Nothing {
            return;
        }
        let selection = match self.current().filter(|_| effect == Effect::Pools) {
            Some(selection) => selection,
            None => {
                let selection = Arc::new(objects.selection().of_part(!self.scope.is_whole()));
                self.current.send_replace(Some(Arc::clone(&selection)));
                selection
            }
        };
        let pools = objects.pools.iter().map(|(id, pool)| (id.clone(), Arc::clone(pool))).collect();
        self.snapshots.send_replace(Some(Snapshot { round: objects.round, pools, selection }));
    }

    fn changes(&self, kinds: impl IntoIterator<Item = Cached>) -> impl Stream<Item = (Cached, Change)> + Unpin {
        let watches = kinds.into_iter().map(|kind| {
            let api = match kind {
                Cached::Pool => &self.pools,
                Cached::GlobalPool => &self.global_pools,
                Cached::NodePool => &self.node_pools,
                Cached::Namespace => &self.namespaces,
            };
            changes(api.clone()).map(move |change| (kind, change)).boxed()
        });
        stream::select_all(watches.collect::<Vec<_>>())
    }

    async fn has_node_pools(&self) -> bool {
        let kind = node_pools();
        discover("kind NodePool", &|| ask(serves_established(&self.client, &kind))).await
    }

    async fn until_node_pools(&self, are_there: bool) {
        loop {
            sleep(DISCOVERY).await;
            if self.has_node_pools().await == are_there {
                return;
            }
        }
    }

    fn objects(&self) -> MutexGuard<'_, Objects> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Objects ===

impl Objects {
    /// Removes the pools, because their lists begin again.
    fn begin_round(&mut self, round: u64) {
        self.round = round;
        self.pools = Newest::default();
        self.unlisted.extend([Cached::Pool, Cached::GlobalPool]);
    }

    /// Prepares for a new list of NodePools, or for an API server that does not serve NodePools. Known NodePools are
    /// kept until the list is complete: the list may take long, and a new leader must have the pools meanwhile.
    fn begin_node_pools(&mut self, are_there: bool) {
        if !are_there {
            self.node_pools.clear();
            (self.next_node_pools, self.has_node_pools) = (None, false);
            self.unlisted.remove(&Cached::NodePool);
            return;
        }
        self.next_node_pools = Some(BTreeMap::new());
        if !self.has_node_pools {
            self.unlisted.insert(Cached::NodePool);
        }
    }

    /// Prepares for a new list of Namespaces, or for a missing right to list them. Known labels are kept until the list
    /// is complete.
    fn begin_namespaces(&mut self, may_list: bool) -> Effect {
        self.next_namespaces = may_list.then(NamespaceLabels::new);
        if !may_list {
            self.namespaces = None;
            self.unlisted.remove(&Cached::Namespace);
            return Effect::Selection;
        }
        if self.namespaces.is_none() {
            self.unlisted.insert(Cached::Namespace);
        }
        Effect::Nothing
    }

    /// Whether the selection depends on the labels of Namespaces.
    fn select_namespaces(&self) -> bool {
        self.pools.iter().any(|(_, pool)| pool.checked.selects_namespaces())
    }

    /// Applies a change that a watch reports. Returns which published values change.
    fn apply(&mut self, kind: Cached, change: Change, serves: impl Fn(&ObjectMeta) -> bool) -> Effect {
        let is_gone = match (kind, change) {
            (_, Change::Lists) => false,
            (_, Change::Listed) => {
                if let Some(listed) = self.next_node_pools.take_if(|_| kind == Cached::NodePool) {
                    (self.node_pools, self.has_node_pools) = (listed, true);
                }
                if let Some(listed) = self.next_namespaces.take_if(|_| kind == Cached::Namespace) {
                    self.namespaces = Some(listed);
                }
                self.unlisted.remove(&kind);
                true
            }
            (Cached::NodePool, Change::Apply(object)) => {
                let (key, object) = (Key::of(&object.metadata), Arc::new(object));
                if let Some(next) = &mut self.next_node_pools {
                    next.insert(key.clone(), Arc::clone(&object));
                }
                self.node_pools.insert(key, object);
                true
            }
            (Cached::NodePool, Change::Remove(key, _)) => {
                if let Some(next) = &mut self.next_node_pools {
                    next.remove(&key);
                }
                self.node_pools.remove(&key).is_some()
            }
            (Cached::Namespace, Change::Apply(object)) => {
                let (name, labels) = labels_of(object.metadata);
                if let Some(next) = &mut self.next_namespaces {
                    next.insert(name.clone(), labels.clone());
                }
                let known = self.namespaces.as_mut().map(|known| known.insert(name, labels.clone()));
                known.is_some_and(|before| before != Some(labels)) && self.select_namespaces()
            }
            (Cached::Namespace, Change::Remove(key, _)) => {
                if let Some(next) = &mut self.next_namespaces {
                    next.remove(&key.name);
                }
                let known = self.namespaces.as_mut().and_then(|known| known.remove(&key.name));
                known.is_some() && self.select_namespaces()
            }
            (Cached::Pool | Cached::GlobalPool, Change::Apply(object)) if serves(&object.metadata) => {
                return self.apply_pool(PoolId::of(&object.metadata), object);
            }
            (Cached::Pool | Cached::GlobalPool, Change::Apply(object)) => {
                self.pools.remove(&PoolId::of(&object.metadata), None)
            }
            (Cached::Pool, Change::Remove(Key { namespace, name }, _)) => {
                self.pools.remove(&PoolId { namespace: Some(namespace), name }, None)
            }
            (Cached::GlobalPool, Change::Remove(key, _)) => {
                self.pools.remove(&PoolId { namespace: None, name: key.name }, None)
            }
        };
        if is_gone { Effect::Selection } else { Effect::Nothing }
    }

    /// Stores a pool, unless a newer version is known. If only the counts in the status of the pool differ, the
    /// selection is kept: every allocation changes the counts, and each new selection is compared with every machine.
    fn apply_pool(&mut self, id: PoolId, object: Object) -> Effect {
        let version = version_of(&object.metadata);
        if !self.pools.is_news(&id, version) {
            return Effect::Nothing;
        }
        let mut pool = KnownPool::read(PoolObject::read(object));
        let effect = match self.pools.get(&id).filter(|known| known.checked == pool.checked) {
            Some(known) => {
                pool.checked = Arc::clone(&known.checked);
                Effect::Pools
            }
            None => Effect::Selection,
        };
        self.pools.apply(id, version, Arc::new(pool));
        effect
    }

    fn selection(&self) -> Selection {
        let pools = self.pools.iter().map(|(_, pool)| Arc::clone(&pool.checked));
        Selection::new(pools, self.node_pools.values().cloned(), self.namespaces.as_ref())
    }
}

/// Returns the name and the labels of a Namespace, without the labels that the controller writes. The controller's
/// labels are a result of the selection, so no pool can select by them.
fn labels_of(metadata: ObjectMeta) -> (String, BTreeMap<String, String>) {
    let mut labels = metadata.labels.unwrap_or_default();
    labels.retain(|label, _| !label.starts_with(OWN_LABELS));
    (metadata.name.unwrap_or_default(), labels)
}

/// Whether the API server refused a request because the controller lacks a right.
fn is_denial(refusal: Refusal<'_>) -> bool {
    matches!(refusal, Refusal::ForGood(status) if status.code == 403)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pool(version: u64, status: &Value) -> Change {
        let object = json!({
            "apiVersion": "ipam.glowplug.dev/v1alpha1", "kind": "StaticIPPool", "metadata": {"namespace": "n", "name": "p", "resourceVersion": version.to_string()},
            "spec": {"network": "n/vlan10", "addresses": ["10.0.0.0/24"], "machineSelector": {}}, "status": status,
        });
        Change::Apply(serde_json::from_value(object).unwrap())
    }

    #[test]
    fn the_selection_changes_only_if_a_pool_could_select_or_refuse_other_machines() {
        let mut objects = Objects::default();
        let mut apply = |change, is_served| objects.apply(Cached::Pool, change, |_| is_served);
        let counts = |held| json!({"ipAddresses": {"total": 256, "free": 253 - held, "allocated": held, "outside": 0}});
        let condition = json!({
            "type": "Exhausted", "status": "True", "reason": "NoFreeAddress", "message": "No available IPs",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        });
        let key = Key { namespace: "n".to_owned(), name: "p".to_owned() };
        assert_eq!(apply(pool(1, &counts(0)), true), Effect::Selection);
        assert_eq!(apply(pool(2, &counts(1)), true), Effect::Pools);
        assert_eq!(apply(pool(3, &json!({"conditions": [condition]})), true), Effect::Selection);
        assert_eq!(apply(pool(4, &counts(1)), true), Effect::Selection);
        assert_eq!(apply(pool(5, &counts(1)), false), Effect::Selection);
        assert_eq!(apply(Change::Remove(key.clone(), None), true), Effect::Nothing);
        assert_eq!(apply(pool(6, &counts(1)), true), Effect::Selection);
        assert_eq!(apply(Change::Remove(key, None), true), Effect::Selection);
    }

    #[test]
    fn no_content_of_a_namespace_changes_the_selection_of_another_namespace() {
        let mut objects = Objects::default();
        let Change::Apply(mut object) = pool(1, &json!(null)) else { panic!() };
        object.metadata.namespace = None;
        object.data["spec"]["namespaceSelector"] = json!({"matchLabels": {"a": "b"}});
        objects.apply(Cached::GlobalPool, Change::Apply(object), |_| true);
        objects.begin_namespaces(true);
        for (name, labels) in [("honest", json!({"a": "b"})), ("other", json!({}))] {
            objects.apply(Cached::Namespace, namespace(name, &labels), |_| true);
        }
        objects.apply(Cached::Namespace, Change::Listed, |_| true);
        let valid = json!({
            "metadata": {"name": "hostile", "labels": {"a": "b"}, "annotations": {"a": "b"}},
            "spec": {"finalizers": ["kubernetes"]}, "status": {"phase": "Active"},
        });
        crate::variants::each_object(&valid, |object| {
            let name = object.metadata.name.clone().unwrap_or_default();
            objects.apply(Cached::Namespace, Change::Apply(object), |_| true);
            let mut served: Vec<String> = objects.selection().namespaces().map(str::to_owned).collect();
            served.retain(|served| *served != name && served != "hostile");
            assert_eq!(served, ["honest"]);
            let gone = Change::Remove(Key { namespace: String::new(), name }, None);
            objects.apply(Cached::Namespace, gone, |_| true);
        });
    }

    #[test]
    fn known_node_pools_are_kept_until_they_are_listed_again() {
        let mut objects = Objects::default();
        let node_pool = |name: &str| {
            let object = json!({"metadata": {"namespace": "n", "name": name, "resourceVersion": "1"}});
            Change::Apply(serde_json::from_value(object).unwrap())
        };
        let names = |objects: &Objects| objects.node_pools.keys().map(|key| key.name.clone()).collect::<Vec<_>>();
        objects.begin_node_pools(true);
        assert!(objects.unlisted.contains(&Cached::NodePool));
        for change in [node_pool("gone"), node_pool("stays"), Change::Listed] {
            objects.apply(Cached::NodePool, change, |_| true);
        }
        objects.begin_node_pools(true);
        objects.apply(Cached::NodePool, node_pool("stays"), |_| true);
        assert_eq!((names(&objects), objects.unlisted.len()), (vec!["gone".to_owned(), "stays".to_owned()], 0));
        objects.apply(Cached::NodePool, Change::Listed, |_| true);
        assert_eq!(names(&objects), ["stays"]);
        objects.begin_node_pools(false);
        assert_eq!((names(&objects), objects.unlisted.len()), (vec![], 0));
    }

    #[test]
    fn an_older_version_of_a_pool_is_ignored() {
        let mut objects = Objects::default();
        let mut apply = |version| objects.apply(Cached::Pool, pool(version, &json!(null)), |_| true);
        assert_eq!([apply(10), apply(9)], [Effect::Selection, Effect::Nothing]);
    }

    fn namespace(name: &str, labels: &Value) -> Change {
        Change::Apply(serde_json::from_value(json!({"metadata": {"name": name, "labels": labels}})).unwrap())
    }

    #[test]
    fn labels_of_namespaces_change_the_selection_only_if_a_pool_selects_by_them() {
        let mut objects = Objects::default();
        let mut apply = |kind, change| objects.apply(kind, change, |_| true);
        let Change::Apply(mut object) = pool(1, &json!(null)) else { panic!() };
        object.metadata.namespace = None;
        object.data["spec"]["namespaceSelector"] = json!({"matchLabels": {"a": "b"}});
        let gone = || Change::Remove(Key { namespace: String::new(), name: "n".to_owned() }, None);
        assert_eq!(apply(Cached::Namespace, namespace("n", &json!({}))), Effect::Nothing);
        assert_eq!(objects.begin_namespaces(true), Effect::Nothing);
        assert_eq!(objects.unlisted, [Cached::Namespace].into());
        let mut apply = |kind, change| objects.apply(kind, change, |_| true);
        assert_eq!(apply(Cached::Namespace, namespace("n", &json!({"a": "b"}))), Effect::Nothing);
        assert_eq!(apply(Cached::Namespace, Change::Listed), Effect::Selection);
        assert_eq!(apply(Cached::Namespace, namespace("n", &json!({"a": "c"}))), Effect::Nothing);
        assert_eq!(apply(Cached::GlobalPool, Change::Apply(object)), Effect::Selection);
        let served = |objects: &Objects| objects.selection().namespaces().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(served(&objects), [""; 0]);
        let mut apply = |kind, change| objects.apply(kind, change, |_| true);
        assert_eq!(apply(Cached::Namespace, namespace("n", &json!({"a": "b"}))), Effect::Selection);
        // The label that the controller itself sets on a Namespace does not change the selection.
        let labels = json!({"a": "b", "ipam.glowplug.dev/machines": "true"});
        assert_eq!(apply(Cached::Namespace, namespace("n", &labels)), Effect::Nothing);
        assert_eq!(served(&objects), ["n"]);
        // The known labels are kept until the next list is complete.
        assert_eq!(objects.begin_namespaces(true), Effect::Nothing);
        assert_eq!((served(&objects), objects.unlisted.len()), (vec!["n".to_owned()], 0));
        assert_eq!(objects.apply(Cached::Namespace, Change::Listed, |_| true), Effect::Selection);
        assert_eq!(served(&objects), [""; 0]);
        let mut apply = |kind, change| objects.apply(kind, change, |_| true);
        assert_eq!(apply(Cached::Namespace, namespace("n", &json!({"a": "b"}))), Effect::Selection);
        assert_eq!(
            [apply(Cached::Namespace, gone()), apply(Cached::Namespace, gone())],
            [Effect::Selection, Effect::Nothing]
        );
        assert!(objects.selection().has_every_namespace());
        assert_eq!(objects.begin_namespaces(false), Effect::Selection);
        assert!(!objects.selection().has_every_namespace());
        let id = PoolId { namespace: None, name: "p".to_owned() };
        assert_eq!((objects.selection().memberships()[&id].selected, objects.unlisted.len()), (None, 0));
    }
}
