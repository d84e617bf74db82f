//! Keeps the selection of a replica up to date with watches.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::{Stream, StreamExt as _, stream};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{ApiResource, ListParams};
use kube::{Api, Client};
use tokio::sync::watch;
use tokio::time::sleep;

use crate::cluster::client::serves;
use crate::cluster::key::{Key, PoolId};
use crate::cluster::object::Object;
use crate::cluster::request::{Refusal, ask, refusal};
use crate::cluster::watch::{Change, changes};
use crate::kinds::pool::StaticIPPool;
use crate::kinds::virtual_machine::node_pools;
use crate::pools::facts::{PoolObject, Scope};
use crate::pools::selection::{MachinePool, Selection};

/// Interval between two checks whether the API server serves NodePools.
const DISCOVERY: Duration = Duration::from_secs(60);
/// Pause after a failure.
const PAUSE: Duration = Duration::from_secs(1);

/// The selection, kept up to date by watches. Every replica has a cache: the webhook and the leader read it.
pub struct SelectionCache {
    scope: Scope,
    objects: Mutex<Objects>,
    current: watch::Sender<Option<Arc<Selection>>>,
    pools: Api<Object>,
    node_pools: Api<Object>,
    client: Client,
}

#[derive(Debug, Default)]
struct Objects {
    pools: BTreeMap<PoolId, Arc<MachinePool>>,
    node_pools: BTreeMap<Key, Arc<Object>>,
}

#[derive(Clone, Copy)]
enum Kind {
    Pool,
    NodePool,
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
        Self { scope, objects: Mutex::default(), current: watch::Sender::default(), pools, node_pools, client }
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

    /// Lists the objects from the API server, not from the cache. Use this function if a decision must include objects
    /// that were created a moment ago.
    ///
    /// # Errors
    ///
    /// The API server did not list the objects of a kind.
    pub async fn list(&self) -> kube::Result<Selection> {
        let pools = self.pools.list(&ListParams::default()).await?.items;
        let pools = pools.into_iter().filter(|object| self.scope.has_label(&object.metadata));
        let pools: Vec<_> = pools.map(|object| Arc::new(MachinePool::read(PoolObject::read(object)))).collect();
        let node_pools = match self.node_pools.list(&ListParams::default()).await {
            Ok(list) => list.items,
            // The API server does not serve the kind, so no such objects exist.
            Err(error) if refusal(&error) == Some(Refusal::Absent) => Vec::new(),
            Err(error) => return Err(error),
        };
        Ok(Selection::new(pools, node_pools.into_iter().map(Arc::new)))
    }

    /// Watches the objects and updates the selection. Never returns.
    pub async fn run(&self) -> Infallible {
        loop {
            let has_node_pools = self.has_node_pools().await;
            tokio::select! {
                never = self.follow(has_node_pools) => match never {},
                () = self.until_node_pools(!has_node_pools) => {}
            }
        }
    }

    async fn follow(&self, has_node_pools: bool) -> Infallible {
        let mut changes = self.changes(has_node_pools);
        *self.objects() = Objects::default();
        let mut lists = 1 + usize::from(has_node_pools);
        while let Some((kind, change)) = changes.next().await {
            lists = lists.saturating_sub(usize::from(matches!(change, Change::Listed)));
            let is_changed = self.objects().apply(kind, change, |metadata| self.scope.has_label(metadata));
            if lists == 0 && is_changed {
                self.current.send_replace(Some(Arc::new(self.objects().selection())));
            }
        }
        // Watches never end.
        std::future::pending().await
    }

    fn changes(&self, has_node_pools: bool) -> impl Stream<Item = (Kind, Change)> + Unpin + use<> {
        let pools = changes(self.pools.clone()).map(|change| (Kind::Pool, change)).boxed();
        let node_pools =
            has_node_pools.then(|| changes(self.node_pools.clone()).map(|change| (Kind::NodePool, change)).boxed());
        stream::select_all([pools].into_iter().chain(node_pools))
    }

    async fn has_node_pools(&self) -> bool {
        loop {
            match ask(serves(&self.client, &node_pools())).await {
                Ok(has_node_pools) => return has_node_pools,
                Err(error) => tracing::warn!(%error, "could not discover the kind NodePool"),
            }
            sleep(PAUSE).await;
        }
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
    /// Applies a change. Returns whether the selection may differ now. The counts in the status of a pool make no
    /// difference: every allocation changes them, and each new selection is compared with every machine.
    fn apply(&mut self, kind: Kind, change: Change, has_label: impl Fn(&ObjectMeta) -> bool) -> bool {
        match (kind, change) {
            (_, Change::Listed) => true,
            (Kind::Pool, Change::Apply(object)) if has_label(&object.metadata) => {
                let pool = MachinePool::read(PoolObject::read(object));
                if self.pools.get(&pool.id).is_some_and(|known| **known == pool) {
                    return false;
                }
                self.pools.insert(pool.id.clone(), Arc::new(pool));
                true
            }
            (Kind::Pool, Change::Apply(object)) => self.pools.remove(&PoolId::of(&object.metadata)).is_some(),
            (Kind::Pool, Change::Remove(Key { namespace, name }, _)) => {
                self.pools.remove(&PoolId { namespace: Some(namespace), name }).is_some()
            }
            (Kind::NodePool, Change::Apply(mut object)) => {
                object.metadata.managed_fields = None;
                self.node_pools.insert(Key::of(&object.metadata), Arc::new(object));
                true
            }
            (Kind::NodePool, Change::Remove(key, _)) => self.node_pools.remove(&key).is_some(),
        }
    }

    fn selection(&self) -> Selection {
        Selection::new(self.pools.values().cloned(), self.node_pools.values().cloned())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pool(status: &Value) -> Change {
        let object = json!({
            "apiVersion": "ipam.glowplug.dev/v1alpha1", "kind": "StaticIPPool", "metadata": {"namespace": "n", "name": "p"},
            "spec": {"network": "n/vlan10", "addresses": ["10.0.0.0/24"], "machineSelector": {}}, "status": status,
        });
        Change::Apply(serde_json::from_value(object).unwrap())
    }

    #[test]
    fn only_what_selects_or_refuses_a_machine_changes_the_selection() {
        let mut objects = Objects::default();
        let mut apply = |change, has_label| objects.apply(Kind::Pool, change, |_| has_label);
        let counts = |used| json!({"ipAddresses": {"total": 256, "free": 253 - used, "used": used, "outOfRange": 0}});
        let condition = json!({
            "type": "Exhausted", "status": "True", "reason": "NoFreeAddress", "message": "No available IPs",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        });
        let key = Key { namespace: "n".to_owned(), name: "p".to_owned() };
        assert!(apply(pool(&counts(0)), true));
        assert!(!apply(pool(&counts(1)), true));
        assert!(apply(pool(&json!({"conditions": [condition]})), true));
        assert!(apply(pool(&counts(1)), true));
        assert!(apply(pool(&counts(1)), false));
        assert!(!apply(Change::Remove(key.clone(), None), true));
        assert!(apply(pool(&counts(1)), true));
        assert!(apply(Change::Remove(key, None), true));
    }
}
