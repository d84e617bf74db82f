//! Passes the pools of the cluster to the registry, and writes their status.
//!
//! Only the leader does this. The module [`status`] decides what to write, and this module makes the requests.

pub mod beyond;
pub(crate) mod changed;
pub mod facts;
pub mod machine_states;
pub mod namespaces;
pub mod node_pools;
pub mod reference;
pub mod selection;
pub mod selection_cache;
pub mod status;

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream;
use glowplug::host::allocator::Allocator;
use glowplug::host::metrics;
use glowplug::host::pool::Pool;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{ApiResource, Patch, PatchParams};
use kube::runtime::events::EventType;
use kube::{Api, Client};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use crate::cluster::backoff::{BackOff, Postponed};
use crate::cluster::digest::digest;
use crate::cluster::events::{Events, reference};
use crate::cluster::key::PoolId;
use crate::cluster::object::Object;
use crate::cluster::request::{ask, one_line, stored};
use crate::kinds::cluster_api::WATCH_FILTER_LABEL;
use crate::kinds::pool::{GlobalStaticIPPool, StaticIPPool};
use crate::ledger::registry::{RegistryHandle, Sticky};
use crate::ledger::types::Stopped;
use crate::metrics::Metrics;
use crate::pools::beyond::BeyondBounds;
use crate::pools::facts::Scope;
use crate::pools::machine_states::MachineStates;
use crate::pools::selection::OpenPools;
use crate::pools::selection_cache::{SelectionCache, Snapshot};
use crate::pools::status::{KnownPools, Part, Update, observe};
use crate::repeated::Repeated;

/// Pause between two passes. The pause limits the writes: while claims arrive, each pass writes a status.
const PAUSE: Duration = Duration::from_millis(200);
/// Pauses between attempts to write a pool, after failures.
const PAUSES: BackOff = BackOff::new(Duration::from_secs(1), Duration::from_secs(60));
/// Maximum number of concurrent writes.
const IN_FLIGHT: usize = 16;

/// The task that passes pools to the registry and writes their status.
pub struct Pools {
    registry: RegistryHandle,
    metrics: Arc<Metrics>,
    writer: Writer,
    index: KnownPools,
    cache: Arc<SelectionCache>,
    /// Number of the first round of lists that this leader uses. The leader ignores snapshots of earlier
    /// rounds.
    round: u64,
    /// The pools that were passed to the registry last, and the names of the pools that allocate nothing.
    given: Option<(Vec<Pool>, BTreeSet<String>)>,
    /// Whether the registry may accept a change that it rejected before.
    is_acceptable: bool,
    sticky: Option<Sticky>,
    states: Arc<MachineStates>,
    beyond: Arc<BeyondBounds>,
    obstacle: Box<Obstacle>,
    /// Pools whose last write failed.
    postponed: Postponed<PoolId>,
    /// The pools that other parts may use. `None`: the registry does not have the pools yet.
    open: watch::Sender<Option<OpenPools>>,
}

/// Returns why no new addresses are opened for allocation now. `None`: they are open, or are about to be opened.
type Obstacle = dyn Fn() -> Option<String> + Send + Sync;

/// Makes the requests of updates.
struct Writer {
    client: Client,
    events: Events,
    lines: Repeated,
}

/// Result of the request for an update.
enum Written {
    Done(Box<Object>),
    /// The API server has another version of the pool, or does not have the pool. The watch reports the change.
    Other,
    Failed,
}

/// The kinds of pools.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum PoolKind {
    OfNamespace,
    OfCluster,
}

// === impl Pools ===

impl Pools {
    /// Creates the task for the pools of `cache`. The cache must be running.
    #[must_use]
    pub fn new(client: Client, cache: Arc<SelectionCache>, registry: RegistryHandle, metrics: Arc<Metrics>) -> Self {
        let writer = Writer { events: Events::start(client.clone()), client, lines: Repeated::default() };
        let (round, postponed) = (cache.begin_round(), Postponed::new(PAUSES));
        let (index, open) = (KnownPools::default(), watch::Sender::default());
        let (states, beyond) = (Arc::default(), Arc::default());
        Self {
            registry,
            metrics,
            writer,
            index,
            cache,
            round,
            given: None,
            is_acceptable: false,
            sticky: None,
            states,
            beyond,
            obstacle: Box::new(|| None),
            postponed,
            open,
        }
    }

    /// Makes the status of each pool count the machines in `states`.
    #[must_use]
    pub fn with_states(self, states: Arc<MachineStates>) -> Self {
        Self { states, ..self }
    }

    /// Adds the reported addresses in `beyond` to the status of each pool.
    #[must_use]
    pub fn with_beyond(self, beyond: Arc<BeyondBounds>) -> Self {
        Self { beyond, ..self }
    }

    /// Makes the status of each pool say why its new addresses are not open yet.
    #[must_use]
    pub fn with_obstacle(self, obstacle: impl Fn() -> Option<String> + Send + Sync + 'static) -> Self {
        Self { obstacle: Box::new(obstacle), ..self }
    }

    /// Returns a receiver of the pools that the registry has. `None`: the registry does not have the pools yet. The
    /// registry allocates addresses from each pool whose facts are ready.
    #[must_use]
    pub fn open(&self) -> watch::Receiver<Option<OpenPools>> {
        self.open.subscribe()
    }

    /// Passes the pools to the registry. Then processes each change of the pools and of the registry. Does not return
    /// while the registry runs.
    ///
    /// # Errors
    ///
    /// The registry has stopped.
    pub async fn run(mut self) -> Result<Infallible, Stopped> {
        let (mut snapshots, mut changes) = (self.cache.snapshots(), self.registry.changes());
        let (mut states, mut beyond) = (self.states.changes(), self.beyond.changes());
        let round = self.round;
        loop {
            let is_current = |snapshot: &Option<Snapshot>| snapshot.as_ref().is_some_and(|it| it.round >= round);
            // Waiting cannot fail, because `self` keeps the cache that sends the snapshots.
            let snapshot = snapshots.wait_for(is_current).await.map_err(|_| Stopped)?.clone();
            if let Some(snapshot) = snapshot {
                self.pass(snapshot).await?;
            }
            sleep(PAUSE).await;
            tokio::select! {
                changed = snapshots.changed() => changed.map_err(|_| Stopped)?,
                changed = changes.changed() => changed.map_err(|_| Stopped)?,
                changed = states.changed() => changed.map_err(|_| Stopped)?,
                changed = beyond.changed() => changed.map_err(|_| Stopped)?,
            }
        }
    }

    /// Passes changed pools to the registry. Publishes them at once if no pool awaits its finalizer. Then writes the pools
    /// that need an update, and stores the answers in the cache, so that the webhooks see the new status immediately. At
    /// the end, publishes the pools in their state after the writes, so that a new pool allocates as soon as its finalizer
    /// is stored.
    async fn pass(&mut self, snapshot: Snapshot) -> Result<(), Stopped> {
        let mut open = self.resize(snapshot).await?;
        let groups = self.index.groups(&open.suspended);
        if !self.index.awaits_finalizer() {
            self.publish(open.clone());
        }
        let (now, unreadable) = (self.registry.now(), self.registry.unreadable_leases());
        let number = unreadable.len();
        let refusals = self.states.refusals();
        let refused: BTreeMap<String, usize> = refusals.iter().map(|(pool, it)| (pool.clone(), it.count)).collect();
        let obstacle = (self.obstacle)();
        let read = move |allocator: &Allocator| {
            let mut usage = allocator.usage(now);
            for (pool, usage) in &mut usage {
                usage.refused = refused.get(*pool).copied().unwrap_or_default();
            }
            let text = metrics::text(allocator, &usage, &groups);
            let mut observations = observe(allocator, usage, (&unreadable, &groups));
            for (pool, refusals) in &refusals {
                if let Some(observation) = observations.get_mut(pool) {
                    observation.refused = refusals.in_order(allocator, pool, observation.exhausted_family());
                }
            }
            for pool in obstacle.iter().flat_map(|_| allocator.closed_pools()) {
                observations.entry(pool.to_owned()).or_default().unadopted.clone_from(&obstacle);
            }
            (observations, text)
        };
        let (mut observations, text) = self.registry.read(read).await?;
        for (pool, beyond) in self.beyond.get() {
            observations.entry(pool).or_default().beyond = Some(beyond);
        }
        for (pool, counts) in self.states.counts() {
            observations.entry(pool).or_default().machines = counts;
        }
        self.is_acceptable = self.index.may_be_accepted(&observations);
        let conflicts: BTreeSet<_> = observations.values().flat_map(|known| known.conflicts.keys()).collect();
        self.metrics.set_pools(text, conflicts.len(), number);
        let updates = self.index.updates(&observations, now);
        self.postponed.retain(|id| updates.iter().any(|update| update.id == *id));
        let (now, writer, postponed) = (Instant::now(), &self.writer, &self.postponed);
        let updates = updates.into_iter().filter(|update| postponed.is_due(&update.id, now));
        let written = stream::iter(updates).map(async |update| (update.id.clone(), writer.write(update).await));
        let written: Vec<_> = written.buffer_unordered(IN_FLIGHT).collect().await;
        let mut has_written = false;
        for (pool, written) in written {
            self.postponed.note(&pool, matches!(written, Written::Failed), Instant::now());
            if let Written::Done(object) = written {
                self.cache.note(*object);
                has_written = true;
            }
        }
        if has_written || self.is_acceptable {
            let now = self.cache.snapshots().borrow().clone();
            if let Some(snapshot) = now.filter(|now| now.round >= self.round) {
                open = self.resize(snapshot).await?;
            }
        }
        self.publish(open);
        Ok(())
    }

    /// Passes the pools to the registry if they have changed. Also passes them if the registry rejected the last change
    /// and may accept it now. If every pass made an attempt, the passes would never end: each attempt causes the next
    /// pass, because the registry reports every command that may have changed leases.
    async fn resize(&mut self, Snapshot { pools, selection, .. }: Snapshot) -> Result<OpenPools, Stopped> {
        self.index.set(pools, Arc::clone(selection.memberships()));
        let pools = self.index.pools();
        let suspended = pools.1.clone();
        if self.given.as_ref() != Some(&pools) || std::mem::take(&mut self.is_acceptable) {
            let (all, suspended) = pools.clone();
            self.index.refuse(self.registry.resize(all, suspended).await?);
            self.given = Some(pools);
        }
        let facts = self.index.facts();
        let of_pools = facts.iter().map(|(name, facts)| (name.clone(), facts.sticky)).collect();
        let sticky = Sticky { pools: of_pools, has_others: !self.cache.scope().is_whole() };
        if self.sticky.as_ref() != Some(&sticky) {
            self.registry.set_sticky(sticky.clone()).await?;
            self.sticky = Some(sticky);
        }
        let growth = self.registry.growth().await?;
        Ok(OpenPools { facts, suspended, selection, growth })
    }

    fn publish(&self, now: OpenPools) {
        self.open.send_if_modified(|open| {
            let is_same = open.as_ref().is_some_and(|open| {
                open.growth == now.growth
                    && open.facts == now.facts
                    && open.suspended == now.suspended
                    && Arc::ptr_eq(&open.selection, &now.selection)
            });
            *open = Some(now);
            !is_same
        });
    }
}

// === impl Writer ===

impl Writer {
    /// Sends the request of an update.
    async fn write(&self, update: Update) -> Written {
        let kind = PoolKind::of(&update.id);
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
            Ok(None) => return Written::Other,
            Err(error) => {
                if let Some(hidden) = self.lines.note(&error.to_string(), Instant::now()) {
                    tracing::warn!(pool = %update.id, %error, hidden, "could not write a pool");
                }
                return Written::Failed;
            }
        };
        for (reason, note) in &update.events {
            tracing::warn!(pool = %update.id, reason, note = one_line(note));
            self.notify(kind, &update, reason, note);
        }
        Written::Done(Box::new(object))
    }

    fn notify(&self, kind: PoolKind, update: &Update, reason: &str, note: &str) {
        let PoolId { namespace, name } = update.id.clone();
        let object = reference(&kind.resource(), namespace, name, update.uid.clone());
        self.events.publish(object, EventType::Warning, reason, note);
    }
}

// === impl PoolKind ===

impl PoolKind {
    fn of(id: &PoolId) -> Self {
        if id.namespace.is_some() { Self::OfNamespace } else { Self::OfCluster }
    }

    fn resource(self) -> ApiResource {
        match self {
            Self::OfNamespace => ApiResource::erase::<StaticIPPool>(&()),
            Self::OfCluster => ApiResource::erase::<GlobalStaticIPPool>(&()),
        }
    }

    /// Returns the API client for the pools of a namespace, or for all pools of this kind if `namespace` is `None`.
    fn api(self, client: Client, namespace: Option<&str>) -> Api<Object> {
        match namespace {
            Some(namespace) => Api::namespaced_with(client, namespace, &self.resource()),
            None => Api::all_with(client, &self.resource()),
        }
    }
}

// === impl Scope ===

impl Scope {
    /// Whether the controller serves a pool: the pool has the label that the scope requires, if it requires one. A
    /// cluster-scoped pool is not served if only a namespace limits the scope. Controllers of other namespaces would
    /// serve the pool, too, and none of them would know the records and the waiting machines of all namespaces.
    #[must_use]
    pub fn serves(&self, pool: &ObjectMeta) -> bool {
        let value = pool.labels.as_ref().and_then(|labels| labels.get(WATCH_FILTER_LABEL));
        let has_label = self.watch_filter.is_empty() || value == Some(&self.watch_filter);
        has_label && (pool.namespace.is_some() || self.serves_cluster_scoped())
    }

    /// Whether the controller serves every pool of the cluster.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.namespace.is_empty() && self.watch_filter.is_empty()
    }

    /// Returns the name of an object or of a field manager that only the controllers of this scope use. Two controllers
    /// that serve different pools must not take each other's Lease, and must not remove each other's labels.
    #[must_use]
    pub fn name(&self, base: &str) -> String {
        let scope = digest(format!("{}/{}", self.namespace, self.watch_filter).as_bytes());
        match scope.filter(|_| !self.is_whole()) {
            Some(scope) => format!("{base}-{scope}"),
            None => base.to_owned(),
        }
    }

    /// Whether the controller serves cluster-scoped pools at all.
    #[must_use]
    pub fn serves_cluster_scoped(&self) -> bool {
        self.namespace.is_empty() || !self.watch_filter.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use glowplug::host::claim::is_object_name;

    use super::*;
    use crate::cluster::term::is_lease;

    #[test]
    fn a_controller_of_one_namespace_serves_a_cluster_scoped_pool_only_if_it_has_a_watch_filter() {
        let pool = |namespace: Option<&str>, label: Option<&str>| ObjectMeta {
            namespace: namespace.map(str::to_owned),
            labels: label.map(|label| [(WATCH_FILTER_LABEL.to_owned(), label.to_owned())].into()),
            ..ObjectMeta::default()
        };
        let serves = |namespace: &str, watch_filter: &str| {
            let scope = Scope { namespace: namespace.to_owned(), watch_filter: watch_filter.to_owned() };
            let of = |namespace| [None, Some("blue")].map(|label| scope.serves(&pool(namespace, label)));
            (of(Some("n")), of(None))
        };
        assert_eq!(serves("", ""), ([true, true], [true, true]));
        assert_eq!(serves("n", ""), ([true, true], [false, false]));
        assert_eq!(serves("", "blue"), ([false, true], [false, true]));
        assert_eq!(serves("n", "blue"), ([false, true], [false, true]));
    }

    #[test]
    fn controllers_of_different_scopes_use_different_names() {
        let name = |namespace: &str, watch_filter: &str| {
            Scope { namespace: namespace.to_owned(), watch_filter: watch_filter.to_owned() }.name("glowplug-controller")
        };
        assert_eq!(name("", ""), "glowplug-controller");
        let scopes = [("n", ""), ("", "n"), ("n", "blue"), ("n", "Blue_1"), ("macs", "")];
        let names: BTreeSet<String> = scopes.iter().map(|(namespace, filter)| name(namespace, filter)).collect();
        assert_eq!(names.len(), scopes.len());
        for name in names {
            assert!(is_object_name(&name) && is_lease(&name), "{name}");
        }
        assert!(!is_lease("glowplug-controllers"));
    }
}
