//! The pools of the cluster: watches them, gives them to the registry, and writes their status.
//!
//! The leader alone does this. What is to be written is decided by the [`index`](crate::index); this module makes the requests.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{self, BoxStream};
use futures::{FutureExt as _, StreamExt as _};
use glowplug::host::metrics;
use glowplug::host::pool::Pool;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::jiff::Timestamp;
use kube::api::{ApiResource, DynamicObject, Patch, PatchParams};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::events::{Event as Notice, EventType, Recorder, Reporter};
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use crate::api::{GlobalStaticIPPool, StaticIPPool};
use crate::index::{Index, Part, PoolFacts, PoolId, PoolObject, Update, observe};
use crate::metrics::Metrics;
use crate::registry::{RegistryHandle, Stopped};

/// Pause between two passes: while claims come, each pass writes a status.
const PAUSE: Duration = Duration::from_millis(200);
/// How many writes are on their way at once.
const IN_FLIGHT: usize = 16;
/// How long a request may take.
const PATIENCE: Duration = Duration::from_secs(30);
/// Longest note of an event, in bytes, that an API server accepts.
const MAX_NOTE: usize = 1024;

/// The objects that the program works on.
#[derive(Clone, Debug, Default)]
pub struct Scope {
    /// The only namespace. Empty: every namespace. Objects of the cluster are always in the scope.
    pub namespace: String,
    /// Value of the label `cluster.x-k8s.io/watch-filter`. Empty: every value, and no label.
    pub watch_filter: String,
}

/// The task that works on pools.
pub struct Pools {
    registry: RegistryHandle,
    metrics: Arc<Metrics>,
    writer: Writer,
    index: Index,
    events: BoxStream<'static, (Kind, Event<DynamicObject>)>,
    /// Pools of the lists that are coming, while they are.
    listed: [Option<BTreeSet<PoolId>>; 2],
    /// What the registry was given last.
    given: Option<(Vec<Pool>, BTreeSet<String>)>,
    facts: watch::Sender<BTreeMap<String, PoolFacts>>,
}

/// Makes the requests that an update needs.
struct Writer {
    client: Client,
    recorder: Recorder,
}

/// The kinds of pools.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Kind {
    OfNamespace,
    OfCluster,
}

// === impl Pools ===

impl Pools {
    /// Lists the pools and gives them to the registry.
    ///
    /// # Errors
    ///
    /// The registry has ended.
    pub async fn start(
        client: Client,
        scope: &Scope,
        registry: RegistryHandle,
        metrics: Arc<Metrics>,
    ) -> Result<Self, Stopped> {
        let events = stream::select(
            watch(&client, scope, Kind::OfNamespace, &scope.namespace),
            watch(&client, scope, Kind::OfCluster, ""),
        );
        let recorder = Recorder::new(client.clone(), Reporter::from("glowplug-controller"));
        let mut pools = Self {
            registry,
            metrics,
            writer: Writer { client, recorder },
            index: Index::default(),
            events: events.boxed(),
            listed: [Some(BTreeSet::new()), Some(BTreeSet::new())],
            given: None,
            facts: watch::Sender::default(),
        };
        while pools.listed.iter().any(Option::is_some) {
            pools.learn().await;
        }
        pools.resize().await?;
        Ok(pools)
    }

    /// What claims have to know of each pool, by its name. A pool that is ready there allocates addresses.
    #[must_use]
    pub fn facts(&self) -> watch::Receiver<BTreeMap<String, PoolFacts>> {
        self.facts.subscribe()
    }

    /// Follows the pools and the registry, and never ends by itself.
    ///
    /// # Errors
    ///
    /// The registry has ended.
    pub async fn run(mut self) -> Result<Infallible, Stopped> {
        let mut changes = self.registry.changes();
        loop {
            self.pass().await?;
            sleep(PAUSE).await;
            tokio::select! {
                () = self.learn() => {}
                changed = changes.changed() => changed.map_err(|_| Stopped)?,
            }
            while self.learn().now_or_never().is_some() {}
        }
    }

    /// Gives the registry what has changed, and writes what is not as it should be.
    async fn pass(&mut self) -> Result<(), Stopped> {
        self.resize().await?;
        let now = Timestamp::now();
        let milliseconds = u64::try_from(now.as_millisecond()).unwrap_or_default();
        let read = move |allocator: &_| (observe(allocator, milliseconds), metrics::text(allocator, milliseconds));
        let (observations, text) = self.registry.read(read).await?;
        let conflicts: BTreeSet<&String> = observations.values().flat_map(|known| &known.conflicts).collect();
        self.metrics.set_pools(text, conflicts.len());
        let updates = stream::iter(self.index.updates(&observations, now));
        let writer = &self.writer;
        let written: Vec<_> = updates.map(|update| writer.write(update)).buffer_unordered(IN_FLIGHT).collect().await;
        for object in written.into_iter().flatten() {
            self.index.apply(read_pool(object));
        }
        Ok(())
    }

    /// Gives the pools to the registry if they have changed, or if it refused a change: leases may be released by now. Then
    /// reports the facts to the claims.
    async fn resize(&mut self) -> Result<(), Stopped> {
        let pools = self.index.pools();
        if self.given.as_ref() != Some(&pools) || self.index.is_refused() {
            let (all, suspended) = pools.clone();
            self.index.refuse(self.registry.resize(all, suspended).await?);
            self.given = Some(pools);
        }
        let facts = self.index.facts();
        self.facts.send_if_modified(|known| {
            let is_new = *known != facts;
            *known = facts;
            is_new
        });
        Ok(())
    }

    /// Takes over the next event of the watches.
    async fn learn(&mut self) {
        // Watches never end.
        let Some((kind, event)) = self.events.next().await else { return std::future::pending().await };
        let listed = &mut self.listed[kind as usize];
        match event {
            Event::Init => *listed = Some(BTreeSet::new()),
            Event::InitApply(object) => {
                listed.get_or_insert_default().insert(PoolId::of(&object.metadata));
                self.index.apply(read_pool(object));
            }
            Event::InitDone => {
                // A list tells of no deletion.
                let listed = listed.take().unwrap_or_default();
                self.index.retain(|id| Kind::of(id) != kind || listed.contains(id));
            }
            Event::Apply(object) => self.index.apply(read_pool(object)),
            Event::Delete(object) => self.index.remove(&PoolId::of(&object.metadata)),
        }
    }
}

// === impl Writer ===

impl Writer {
    /// Writes an update. Returns the object as it is stored then, or `None` when the update failed: the next pass decides
    /// again.
    async fn write(&self, update: Update) -> Option<DynamicObject> {
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
        let object = match timeout(PATIENCE, written).await {
            Ok(Ok(object)) => object,
            // The watch tells what has changed.
            Ok(Err(kube::Error::Api(status))) if matches!(status.code, 404 | 409) => return None,
            Ok(Err(error)) => {
                tracing::warn!(pool = %update.id, %error, "could not write a pool");
                return None;
            }
            Err(_) => {
                tracing::warn!(pool = %update.id, "could not write a pool: no answer of the API server");
                return None;
            }
        };
        for (reason, note) in &update.events {
            tracing::warn!(pool = %update.id, reason, note);
            self.notify(kind, &update, reason, note).await;
        }
        Some(object)
    }

    async fn notify(&self, kind: Kind, update: &Update, reason: &str, note: &str) {
        let resource = kind.resource();
        let object = ObjectReference {
            api_version: Some(resource.api_version),
            kind: Some(resource.kind),
            namespace: update.id.namespace.clone(),
            name: Some(update.id.name.clone()),
            uid: update.uid.clone(),
            ..ObjectReference::default()
        };
        let end = (0..=MAX_NOTE.min(note.len())).rev().find(|end| note.is_char_boundary(*end));
        let event = Notice {
            type_: EventType::Warning,
            reason: reason.to_owned(),
            note: Some(note[..end.unwrap_or_default()].to_owned()),
            action: "Allocate".to_owned(),
            secondary: None,
        };
        match timeout(PATIENCE, self.recorder.publish(&event, &object)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(pool = %update.id, reason, %error, "could not write an event"),
            Err(_) => {
                tracing::warn!(pool = %update.id, reason, "could not write an event: no answer of the API server")
            }
        }
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
    fn api(self, client: Client, namespace: Option<&str>) -> Api<DynamicObject> {
        match namespace {
            Some(namespace) => Api::namespaced_with(client, namespace, &self.resource()),
            None => Api::all_with(client, &self.resource()),
        }
    }
}

/// Watches the pools of a kind in a namespace, or, with an empty name, everywhere.
fn watch(
    client: &Client,
    scope: &Scope,
    kind: Kind,
    namespace: &str,
) -> BoxStream<'static, (Kind, Event<DynamicObject>)> {
    let api = kind.api(client.clone(), Some(namespace).filter(|namespace| !namespace.is_empty()));
    let events = watcher(api, scope.config()).default_backoff().filter_map(move |event| async move {
        let warn = |error| tracing::warn!(%error, kind = kind.resource().kind, "could not watch the pools");
        event.map_err(warn).ok().map(|event| (kind, event))
    });
    events.boxed()
}

/// Reads the object of a pool. One that cannot be read is a pool that is not valid.
fn read_pool(object: DynamicObject) -> PoolObject {
    let member = |name: &str| object.data.get(name).cloned().unwrap_or_default();
    let spec = serde_json::from_value(member("spec")).map_err(|error| format!("spec: {error}"));
    // A status that cannot be read is written anew.
    let status = serde_json::from_value(member("status")).unwrap_or_default();
    PoolObject { metadata: object.metadata, spec, status }
}

// === impl Scope ===

impl Scope {
    /// What a watch of objects of the scope asks for.
    #[must_use]
    pub fn config(&self) -> watcher::Config {
        let config = watcher::Config::default();
        match self.watch_filter.as_str() {
            "" => config,
            value => config.labels(&format!("cluster.x-k8s.io/watch-filter={value}")),
        }
    }
}
