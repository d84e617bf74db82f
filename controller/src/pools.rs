//! Watches the pools of the cluster, passes them to the registry, and writes their status.
//!
//! Only the leader does this. The [`index`](crate::pools::status) decides what to write; this module makes the requests.

pub mod facts;
pub mod namespaces;
pub mod node_pools;
pub mod reference;
pub mod selection;
pub mod selection_cache;
pub mod status;

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{self, BoxStream};
use futures::{FutureExt as _, StreamExt as _};
use glowplug::host::allocator::Allocator;
use glowplug::host::metrics;
use glowplug::host::pool::Pool;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::Timestamp;
use kube::api::{ApiResource, Patch, PatchParams};
use kube::runtime::events::EventType;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client};
use tokio::sync::watch;
use tokio::time::sleep;

use crate::cluster::events::{Events, reference};
use crate::cluster::key::PoolId;
use crate::cluster::object::Object;
use crate::cluster::request::{ask, stored};
use crate::cluster::watch::events;
use crate::kinds::cluster_api::WATCH_FILTER_LABEL;
use crate::kinds::pool::{GlobalStaticIPPool, StaticIPPool};
use crate::ledger::registry::RegistryHandle;
use crate::ledger::types::Stopped;
use crate::metrics::Metrics;
use crate::pools::facts::{Facts, PoolObject, Scope};
use crate::pools::selection::Selection;
use crate::pools::selection_cache::SelectionCache;
use crate::pools::status::{Index, Part, Update, observe};

/// Pause between two passes. While claims arrive, each pass writes a status.
const PAUSE: Duration = Duration::from_millis(200);
/// Largest number of concurrent writes.
const IN_FLIGHT: usize = 16;

/// The task that manages pools.
pub struct Pools {
    registry: RegistryHandle,
    metrics: Arc<Metrics>,
    writer: Writer,
    index: Index,
    events: BoxStream<'static, (Kind, Event<Object>)>,
    /// Pools of the lists that are being received. `None` between lists.
    listed: [Option<BTreeSet<PoolId>>; 2],
    /// The pools that were last passed to the registry.
    given: Option<(Vec<Pool>, BTreeSet<String>)>,
    /// `None`: the registry does not have the pools yet.
    facts: watch::Sender<Option<Facts>>,
    /// The selection, from which pools get the names of their clusters.
    selections: Option<watch::Receiver<Option<Arc<Selection>>>>,
}

/// Makes the requests for updates.
struct Writer {
    client: Client,
    events: Events,
}

/// The kinds of pools.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Kind {
    OfNamespace,
    OfCluster,
}

// === impl Pools ===

impl Pools {
    /// Creates the task for the pools of `scope`.
    #[must_use]
    pub fn new(client: Client, scope: &Scope, registry: RegistryHandle, metrics: Arc<Metrics>) -> Self {
        let events = stream::select(
            watch(&client, scope, Kind::OfNamespace, &scope.namespace),
            watch(&client, scope, Kind::OfCluster, ""),
        );
        let writer = Writer { events: Events::start(client.clone()), client };
        Self {
            registry,
            metrics,
            writer,
            index: Index::default(),
            events: events.boxed(),
            listed: [Some(BTreeSet::new()), Some(BTreeSet::new())],
            given: None,
            facts: watch::Sender::default(),
            selections: None,
        }
    }

    /// Sets the cluster of each pool, from its NodePool. The cluster is a label of the metrics of the pool.
    #[must_use]
    pub fn with_clusters_of(mut self, selection: &SelectionCache) -> Self {
        self.selections = Some(selection.subscribe());
        self
    }

    /// The facts that claims need. `None`: the registry does not have the pools yet. A pool that is ready here allocates
    /// addresses.
    #[must_use]
    pub fn facts(&self) -> watch::Receiver<Option<Facts>> {
        self.facts.subscribe()
    }

    /// Lists the pools and passes them to the registry, then follows the pools and the registry. Does not return while
    /// the registry runs.
    ///
    /// # Errors
    ///
    /// The registry has stopped.
    pub async fn run(mut self) -> Result<Infallible, Stopped> {
        while self.listed.iter().any(Option::is_some) {
            self.handle_next_event().await;
        }
        let mut changes = self.registry.changes();
        let mut selections = self.selections.clone();
        loop {
            self.pass().await?;
            sleep(PAUSE).await;
            let selected = async {
                // The cache runs until the program stops.
                if let Some(selections) = &mut selections
                    && selections.changed().await.is_ok()
                {
                    return;
                }
                std::future::pending().await
            };
            tokio::select! {
                () = self.handle_next_event() => {}
                changed = changes.changed() => changed.map_err(|_| Stopped)?,
                () = selected => {}
            }
            while self.handle_next_event().now_or_never().is_some() {}
        }
    }

    /// Passes changed pools to the registry, and writes the status of pools that need an update.
    async fn pass(&mut self) -> Result<(), Stopped> {
        self.resize().await?;
        let now = Timestamp::now();
        let read = move |allocator: &Allocator| {
            let usage = allocator.usage(now);
            let text = metrics::text(allocator, &usage);
            (observe(allocator, usage), text)
        };
        let (observations, text) = self.registry.read(read).await?;
        let conflicts: BTreeSet<&String> = observations.values().flat_map(|known| &known.conflicts).collect();
        self.metrics.set_pools(text, conflicts.len());
        let updates = stream::iter(self.index.updates(&observations, now));
        let writer = &self.writer;
        let written: Vec<_> = updates.map(|update| writer.write(update)).buffer_unordered(IN_FLIGHT).collect().await;
        for object in written.into_iter().flatten() {
            self.index.apply(PoolObject::read(object));
        }
        Ok(())
    }

    /// Passes the pools to the registry if they have changed, or if the registry rejected a change: leases may have
    /// been released since then. Then reports the facts for claims.
    async fn resize(&mut self) -> Result<(), Stopped> {
        if let Some(selection) = self.selections.as_ref().and_then(|selections| selections.borrow().clone()) {
            self.index.set_clusters(selection.clusters());
        }
        let pools = self.index.pools();
        if self.given.as_ref() != Some(&pools) || self.index.is_refused() {
            let (all, suspended) = pools.clone();
            self.index.refuse(self.registry.resize(all, suspended).await?);
            self.given = Some(pools);
        }
        let facts = Some(self.index.facts());
        self.facts.send_if_modified(|known| {
            let is_new = *known != facts;
            *known = facts;
            is_new
        });
        Ok(())
    }

    /// Waits for the next event of the watches and handles it.
    async fn handle_next_event(&mut self) {
        // Watches never end.
        let Some((kind, event)) = self.events.next().await else { return std::future::pending().await };
        let listed = &mut self.listed[kind as usize];
        match event {
            Event::Init => *listed = Some(BTreeSet::new()),
            Event::InitApply(object) => {
                listed.get_or_insert_default().insert(PoolId::of(&object.metadata));
                self.index.apply(PoolObject::read(object));
            }
            Event::InitDone => {
                // A list does not report deletions.
                let listed = listed.take().unwrap_or_default();
                self.index.retain(|id| Kind::of(id) != kind || listed.contains(id));
            }
            Event::Apply(object) => self.index.apply(PoolObject::read(object)),
            Event::Delete(object) => self.index.remove(&PoolId::of(&object.metadata)),
        }
    }
}

// === impl Writer ===

impl Writer {
    /// Writes an update. Returns the stored object, or `None` when the update failed: the next pass decides again.
    async fn write(&self, update: Update) -> Option<Object> {
        let kind = Kind::of(&update.id);
        let api = kind.api(self.client.clone(), update.id.namespace.as_deref());
        let (name, patch) = (&update.id.name, Patch::Merge(&update.patch));
        let params = PatchParams::default();
        let written = async {
            match update.part {
                Part::Object => api.patch(name, &params, &patch).await,
                Part::Status => api.patch_status(name, &params, &patch).await,
            }
        };
        let object = match stored(ask(written).await) {
            Ok(Some(object)) => object,
            // The watch reports the change.
            Ok(None) => return None,
            Err(error) => {
                tracing::warn!(pool = %update.id, %error, "could not write a pool");
                return None;
            }
        };
        for (reason, note) in &update.events {
            tracing::warn!(pool = %update.id, reason, note);
            self.notify(kind, &update, reason, note);
        }
        Some(object)
    }

    fn notify(&self, kind: Kind, update: &Update, reason: &str, note: &str) {
        let PoolId { namespace, name } = update.id.clone();
        let object = reference(&kind.resource(), namespace, name, update.uid.clone());
        self.events.publish(object, EventType::Warning, reason, note);
    }
}

// === impl Kind ===

impl Kind {
    fn of(id: &PoolId) -> Self {
        if id.namespace.is_some() { Self::OfNamespace } else { Self::OfCluster }
    }

    fn resource(self) -> ApiResource {
        match self {
            Self::OfNamespace => ApiResource::erase::<StaticIPPool>(&()),
            Self::OfCluster => ApiResource::erase::<GlobalStaticIPPool>(&()),
        }
    }

    /// The pools of a namespace. `None`: all pools of this kind.
    fn api(self, client: Client, namespace: Option<&str>) -> Api<Object> {
        match namespace {
            Some(namespace) => Api::namespaced_with(client, namespace, &self.resource()),
            None => Api::all_with(client, &self.resource()),
        }
    }
}

/// Watches the pools of a kind in a namespace or, with an empty name, in all namespaces.
fn watch(client: &Client, scope: &Scope, kind: Kind, namespace: &str) -> BoxStream<'static, (Kind, Event<Object>)> {
    let api = kind.api(client.clone(), Some(namespace).filter(|namespace| !namespace.is_empty()));
    events(api, scope.config()).map(move |event| (kind, event)).boxed()
}

// === impl Scope ===

impl Scope {
    /// Configuration of a watch for objects of the scope.
    #[must_use]
    pub fn config(&self) -> watcher::Config {
        let config = watcher::Config::default();
        match self.watch_filter.as_str() {
            "" => config,
            value => config.labels(&format!("{WATCH_FILTER_LABEL}={value}")),
        }
    }

    /// Whether an object has the label that the scope requires.
    #[must_use]
    pub fn has_label(&self, metadata: &ObjectMeta) -> bool {
        let value = metadata.labels.as_ref().and_then(|labels| labels.get(WATCH_FILTER_LABEL));
        self.watch_filter.is_empty() || value == Some(&self.watch_filter)
    }
}
