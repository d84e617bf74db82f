//! Reserves the addresses of Services of type LoadBalancer, and of the control planes of Clusters, while these objects
//! exist.
//!
//! No machine and no claim gets such an address from a pool, unless the pool has `ignoreNeighbours`. If a machine
//! already holds the address, it remains the holder: the endpoint of a Cluster may be the address of one of its
//! machines. The bounds are the same as for reports: see `Reservations`.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::BoxStream;
use glowplug::host::allocator::Allocator;
use glowplug::host::claim::{Claimant, HolderKind, Machine};
use glowplug::host::may_record::Source;
use glowplug::host::pool::Pool;
use kube::api::ApiResource;
use kube::{Api, Client};
use tokio::sync::{mpsc, watch};

use crate::cluster::key::Key;
use crate::cluster::object::Object;
use crate::cluster::request::ask;
use crate::cluster::watch::{Change, changes};
use crate::kinds::cluster_api;
use crate::kinds::neighbour::{of_cluster, of_service, services};
use crate::ledger::registry::RegistryHandle;
use crate::ledger::types::Stopped;
use crate::metrics::Metrics;
use crate::passes::opening::Opening;
use crate::passes::provider::{self, Part};
use crate::passes::{Ended, Error, Until};
use crate::pools::beyond::{Beyond, BeyondBounds};
use crate::pools::facts::Scope;
use crate::pools::selection::OpenPools;
use crate::repeated::Repeated;
use crate::reports::bounds::Place;
use crate::reports::reservations::{Changes, Reservation, Reservations};

/// The part of a leader that reserves the addresses of Services and Clusters.
pub struct Neighbours {
    client: Client,
    registry: RegistryHandle,
    opening: Opening,
    metrics: Arc<Metrics>,
    scope: Scope,
    beyond: Arc<BeyondBounds>,
    known: Mutex<BTreeMap<NeighbourKind, Known>>,
}

/// The kinds of objects whose addresses are reserved.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
enum NeighbourKind {
    Service,
    Cluster,
}

/// The addresses of Services and Clusters that a leader would find at its start, for the plugin.
#[derive(Debug, Default)]
pub(crate) struct AtStart {
    services: Reservations,
    clusters: Reservations,
}

/// The watched kinds that the API server serves, with their API resources.
type NeighbourKinds = Vec<(NeighbourKind, ApiResource)>;

/// The known objects of one kind.
#[derive(Debug, Default)]
struct Known {
    reservations: Reservations,
    /// While the objects are listed again: the known objects that the list has not had yet.
    missing: BTreeSet<Key>,
}

/// The work of the part until the API server serves other kinds than `kinds`.
struct Work<'n> {
    of: &'n Neighbours,
    kinds: NeighbourKinds,
    /// New pools for the next pass. `None`: a pass has already taken the newest pools.
    pools: Mutex<Option<OpenPools>>,
    /// Keeps the channel for names open: the part ends when this channel closes.
    _others: mpsc::UnboundedSender<Key>,
}

// === impl Neighbours ===

impl Neighbours {
    /// Creates the part. `opening` must count the part. `beyond` receives the addresses that are not reserved.
    #[must_use]
    pub fn new(
        client: Client,
        registry: RegistryHandle,
        opening: Opening,
        metrics: Arc<Metrics>,
        scope: Scope,
        beyond: Arc<BeyondBounds>,
    ) -> Self {
        Self { client, registry, opening, metrics, scope, beyond, known: Mutex::default() }
    }

    /// Reserves addresses until the future is dropped. Calls `is_ready` when the addresses of all objects that existed
    /// at the start are reserved. `pools` must have only pools that the registry has.
    ///
    /// # Errors
    ///
    /// [`Stopped`]: the registry has ended.
    pub async fn run(
        &self,
        pools: watch::Receiver<Option<OpenPools>>,
        is_ready: impl Fn(),
    ) -> Result<Infallible, Stopped> {
        let discover = || async {
            let clusters = ask(cluster_api::clusters(&self.client)).await?;
            let clusters = clusters.map(|resource| (NeighbourKind::Cluster, resource));
            Ok(Some([(NeighbourKind::Service, services())].into_iter().chain(clusters).collect::<NeighbourKinds>()))
        };
        let work = |kinds: NeighbourKinds, others| Work { of: self, kinds, pools: Mutex::default(), _others: others };
        let part = Part {
            name: "neighbours",
            kinds: "kinds of Services and Clusters",
            noun: "a Service or Cluster",
            registry: &self.registry,
            opening: &self.opening,
            metrics: self.metrics.passes("neighbours"),
            lines: Repeated::default(),
        };
        // This part has no claims that wait for an address, so no holder is ever sent.
        let (_sender, served) = mpsc::unbounded_channel();
        provider::run(part, pools, served, discover, work, is_ready).await
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<NeighbourKind, Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn api(&self, resource: &ApiResource) -> Api<Object> {
        match self.scope.namespace.as_str() {
            "" => Api::all_with(self.client.clone(), resource),
            namespace => Api::namespaced_with(self.client.clone(), namespace, resource),
        }
    }

    /// Passes the pools to the reservations of each kind.
    async fn use_pools(&self, pools: &OpenPools) -> Result<(), Stopped> {
        let ignoring = pools.selection.pools().filter(|pool| pool.spec.ignore_neighbours);
        let ignoring: BTreeSet<String> = ignoring.map(|pool| pool.id.to_string()).collect();
        let read = move |allocator: &Allocator| {
            allocator.pools().filter(|pool| !ignoring.contains(pool.name())).cloned().collect::<Vec<Pool>>()
        };
        let pools = self.registry.read(read).await?;
        let mut known = self.known();
        for kind in [NeighbourKind::Service, NeighbourKind::Cluster] {
            known.entry(kind).or_default().reservations.set_pools(pools.iter().cloned());
        }
        Ok(())
    }

    /// Passes the changes to the registry.
    async fn flush(&self) -> Result<(), Stopped> {
        let (mut begun, mut ended, mut beyond) = (Vec::new(), Vec::new(), BTreeMap::new());
        for (kind, known) in &mut *self.known() {
            let Changes { begun: of_kind, ended: ended_of_kind } = known.reservations.take_changes();
            begun.extend(of_kind.into_iter().filter_map(|it| kind.reservation(it)));
            ended.extend(ended_of_kind.into_iter().filter_map(|it| kind.reservation(it)));
            for (pool, of_pool) in known.reservations.beyond() {
                beyond.entry(pool).or_insert_with(Beyond::default).add(of_pool);
            }
        }
        for pool in self.beyond.set("neighbours", beyond) {
            tracing::warn!(pool, "the pool does not reserve the addresses of all Services and Clusters: see status");
        }
        if !begun.is_empty() || !ended.is_empty() {
            for reported in self.registry.change_reports(begun, ended).await? {
                let (address, network, source) = (reported.address, reported.network, reported.source);
                tracing::info!(%address, network, source, "reserved the address of another object");
            }
        }
        Ok(())
    }
}

// === impl AtStart ===

impl AtStart {
    pub(crate) fn note_service(&mut self, service: &Object) {
        note(&mut self.services, NeighbourKind::Service, service);
    }

    pub(crate) fn note_cluster(&mut self, cluster: &Object) {
        note(&mut self.clusters, NeighbourKind::Cluster, cluster);
    }

    /// Returns the reservations that a leader with these pools makes. The caller must leave out pools with
    /// `ignoreNeighbours`.
    pub(crate) fn reserve(self, pools: &[Pool]) -> Vec<glowplug::host::claim::Reservation> {
        let reserve = |kind: NeighbourKind, mut reservations: Reservations| {
            reservations.set_pools(pools.iter().cloned());
            reservations.take_changes().begun.into_iter().filter_map(move |it| kind.reservation(it))
        };
        reserve(NeighbourKind::Service, self.services).chain(reserve(NeighbourKind::Cluster, self.clusters)).collect()
    }
}

/// Stores the addresses of an object in the reservations.
fn note(reservations: &mut Reservations, kind: NeighbourKind, object: &Object) {
    let uid = object.metadata.uid.clone().unwrap_or_default();
    reservations.apply_anywhere(&Key::of(&object.metadata), &uid, kind.addresses(object));
}

// === impl Work ===

impl provider::Work for Work<'_> {
    type Kind = NeighbourKind;

    fn watches(&self) -> Vec<BoxStream<'static, (NeighbourKind, Change)>> {
        for (kind, known) in &mut *self.of.known() {
            let all: BTreeSet<Key> = known.reservations.guests().cloned().collect();
            if self.kinds.iter().any(|(served, _)| served == kind) {
                known.missing = all;
            } else {
                all.iter().for_each(|key| known.reservations.remove(key));
            }
        }
        let watch = |(kind, resource): &(NeighbourKind, ApiResource)| {
            let kind = *kind;
            changes(self.of.api(resource)).map(move |change| (kind, change)).boxed()
        };
        self.kinds.iter().map(watch).collect()
    }

    fn note_change(&self, kind: NeighbourKind, change: Change) -> BTreeSet<Key> {
        let mut known = self.of.known();
        let Known { reservations, missing } = known.entry(kind).or_default();
        match change {
            Change::Apply(object) => {
                missing.remove(&Key::of(&object.metadata));
                note(reservations, kind, &object);
            }
            Change::Remove(key, _) => reservations.remove(&key),
            Change::Lists => return BTreeSet::new(),
            Change::Listed => std::mem::take(missing).iter().for_each(|key| reservations.remove(key)),
        }
        all()
    }

    fn set_pools(&self, pools: OpenPools) -> BTreeSet<Key> {
        *self.pools.lock().unwrap_or_else(PoisonError::into_inner) = Some(pools);
        all()
    }

    fn note_holder(&self, _: &Machine) -> BTreeSet<Key> {
        BTreeSet::new()
    }

    async fn adopt(&self, pools: &OpenPools) -> Result<(), Error> {
        self.of.use_pools(pools).await?;
        self.of.flush().await?;
        Ok(())
    }

    async fn adopt_changes(&self, pools: &OpenPools) -> Result<(), Error> {
        // A pass may have used earlier pools meanwhile.
        self.adopt(pools).await
    }

    fn claimants(&self, _: &BTreeSet<Machine>) -> Vec<Key> {
        Vec::new()
    }

    fn names(&self, _: &BTreeSet<Machine>, _: &BTreeSet<Machine>) -> Vec<(Key, Duration)> {
        all().into_iter().map(|key| (key, Duration::ZERO)).collect()
    }

    async fn pass(&self, _: Key, _: Until) -> Result<Ended, Error> {
        let pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(pools) = pools {
            self.of.use_pools(&pools).await?;
        }
        self.of.flush().await?;
        Ok(Ended::Well)
    }
}

/// Returns the only name that gets a pass. The pass sends all changes to the registry.
fn all() -> BTreeSet<Key> {
    [Key { namespace: String::new(), name: "all".to_owned() }].into()
}

// === impl NeighbourKind ===

impl NeighbourKind {
    fn addresses(self, object: &Object) -> BTreeSet<IpAddr> {
        match self {
            Self::Service => of_service(object),
            Self::Cluster => of_cluster(object),
        }
    }

    /// Converts the reservation of an object to a reservation for the registry. Never `None`, because
    /// [`Pool::DEFAULT_INTERFACE`] is a valid interface name.
    fn reservation(self, Reservation { place, uid }: Reservation) -> Option<glowplug::host::claim::Reservation> {
        let Place { guest, network, address } = place;
        let kind = match self {
            Self::Service => HolderKind::Service,
            Self::Cluster => HolderKind::Cluster,
        };
        let claimant = Claimant { machine: guest.holder(kind, &uid), interface: Pool::DEFAULT_INTERFACE.parse().ok()? };
        let source = format!("{self:?} {guest}");
        let (network, kind) = (Some(network), Source::Neighbour);
        Some(glowplug::host::claim::Reservation { address, network, claimant, source, kind })
    }
}
