//! Cluster API's IPAM provider: serves each IPAddressClaim on our pools with an IPAddress of its name.
//!
//! Watches feed an index; a name whose claim may need something gets a pass; a pass decides the next request, makes it, and
//! decides again. Passes of different names run side by side, and a name has one pass at a time. A pass that fails is
//! repeated with back-off. Nothing here relies on being the only leader: the names of leases and IPAddresses and the versions
//! of objects refuse what another leader has done already.
//!
//! At the start every IPAddress is adopted before any address is allocated, and the outstanding claims are made together, in
//! the order of their creation.

mod decision;
mod index;
mod queue;

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::stream::{self, FuturesUnordered};
use futures::{Stream, StreamExt as _, future};
use glowplug::host::claim::{Claim, Record};
use k8s_openapi::jiff::Timestamp;
use kube::api::{ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams, Preconditions};
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use kube::{Api, Client, Resource as _};
use serde_json::Value;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use self::decision::{Adoptee, Problem, Recorded, Step, View, decide};
use self::index::{Index, Kind, version_of};
use self::queue::Queue;
use crate::api::{HolderKind, LeaseSpec, StaticIPLease, lease_name};
use crate::cluster_api::{IpAddress, IpAddressClaim, Key, Kinds, NotReady, Readiness};
use crate::index::{PoolFacts, PoolId};
use crate::metrics::Metrics;
use crate::pools::Scope;
use crate::registry::{RegistryHandle, Served, Stopped};
use crate::watch::{Change, changes};

/// How many passes run side by side.
const PASSES: usize = 64;
/// How many requests of one pass are enough for every case.
const LONGEST_PASS: usize = 32;
/// How long a request may take.
const PATIENCE: Duration = Duration::from_secs(30);
/// Pause before a claim on a pool is made again that the registry does not have yet.
const EARLY: Duration = Duration::from_secs(1);
/// How often the API server is asked for the kinds of Cluster API.
const DISCOVERY: Duration = Duration::from_secs(60);
/// Pause after a failure at the start.
const PAUSE: Duration = Duration::from_secs(1);

/// What claims have to know of each pool, by its name.
type Facts = BTreeMap<String, PoolFacts>;

/// The IPAM provider of a leader.
#[derive(Clone)]
pub struct Provider {
    client: Client,
    registry: RegistryHandle,
    recorder: Recorder,
    metrics: Arc<Metrics>,
    scope: Scope,
}

/// The provider while the API server has the kinds.
struct Work<'p> {
    provider: &'p Provider,
    kinds: Kinds,
    index: Mutex<Index>,
}

/// How a pass ended.
enum Ended {
    /// Nothing is left to be done before something changes.
    Well,
    /// The claim has to be made again a moment later.
    Early,
    /// The next step is this claim, and it has to wait for claims of others.
    Claims(Claim),
}

/// Where a pass stops.
#[derive(Clone, Copy, Eq, PartialEq)]
enum Until {
    Nothing,
    Claim,
}

/// Why a pass failed.
#[derive(Debug)]
enum Error {
    Request(kube::Error),
    Unanswered,
    Unreadable(serde_json::Error),
    Stopped,
    /// The registry does not know a lease yet that another leader has written.
    Behind,
    Endless,
}

// === impl Provider ===

impl Provider {
    /// A provider that works on the claims of `scope`.
    #[must_use]
    pub fn new(client: Client, registry: RegistryHandle, metrics: Arc<Metrics>, scope: Scope) -> Self {
        let recorder = Recorder::new(client.clone(), Reporter::from("glowplug-controller"));
        Self { client, registry, recorder, metrics, scope }
    }

    /// Serves claims until the future is dropped. `is_ready` becomes `true` when the claims that were there are served.
    ///
    /// `pools` has the pools that the registry was given, and `served` reports claims that no longer wait.
    ///
    /// # Errors
    ///
    /// [`Stopped`]: the registry has ended.
    pub async fn run(
        &self,
        mut pools: watch::Receiver<Facts>,
        mut served: Served,
        is_ready: &watch::Sender<bool>,
    ) -> Result<Infallible, Stopped> {
        loop {
            let Some(kinds) = self.discover().await else {
                is_ready.send_replace(true);
                sleep(DISCOVERY).await;
                continue;
            };
            tracing::info!(version = kinds.version.name(), "serving the claims of Cluster API");
            let index = Mutex::new(Index::new(kinds.version, &self.scope.watch_filter));
            let work = Work { provider: self, kinds, index };
            tokio::select! {
                result = work.run(&mut pools, &mut served, is_ready) => return result,
                () = self.until_other_than(&work.kinds) => tracing::info!("the kinds of Cluster API have changed"),
            }
        }
    }

    /// The kinds of Cluster API. `None`: the API server does not have them.
    async fn discover(&self) -> Option<Kinds> {
        loop {
            match ask(Kinds::discover(&self.client)).await {
                Ok(kinds) => return kinds,
                Err(error) => tracing::warn!(%error, "could not ask for the kinds of Cluster API"),
            }
            sleep(PAUSE).await;
        }
    }

    async fn until_other_than(&self, kinds: &Kinds) {
        loop {
            sleep(DISCOVERY).await;
            if self.discover().await.as_ref() != Some(kinds) {
                return;
            }
        }
    }
}

// === impl Work ===

impl Work<'_> {
    async fn run(
        &self,
        pools: &mut watch::Receiver<Facts>,
        served: &mut Served,
        is_ready: &watch::Sender<bool>,
    ) -> Result<Infallible, Stopped> {
        let mut changes = Box::pin(self.changes());
        let mut lists = 2 + usize::from(self.kinds.clusters.is_some());
        while lists > 0 {
            let Some((kind, change)) = changes.next().await else { return Err(Stopped) };
            lists -= usize::from(matches!(change, Change::Listed));
            self.learn(kind, change);
        }
        let facts = pools.borrow_and_update().clone();
        self.index().set_pools(facts);
        while let Err(error) = self.start().await {
            if let Error::Stopped = error {
                return Err(Stopped);
            }
            tracing::warn!(%error, "could not start to serve claims");
            sleep(PAUSE).await;
        }
        is_ready.send_replace(true);
        self.serve(changes, pools, served).await
    }

    /// Brings the registry to what is there: adopts every IPAddress, and makes the outstanding claims in the order of their
    /// creation. What the claims left that are gone is released later, since each of them needs requests of its own.
    async fn start(&self) -> Result<(), Error> {
        self.note_holders().await?;
        self.adopt(None).await?;
        let names = self.index().claimed_by_age();
        let passes = stream::iter(names).map(|key| async move {
            let ended = self.pass(&key, Until::Claim).await;
            (key, ended)
        });
        let passes: Vec<(Key, Result<Ended, Error>)> = passes.buffered(PASSES).collect().await;
        let mut claims = Vec::new();
        for (key, ended) in passes {
            match ended {
                Ok(Ended::Claims(claim)) => claims.push((claim, HolderKind::IpAddressClaim)),
                Ok(_) => {}
                Err(Error::Stopped) => return Err(Error::Stopped),
                // It has a pass of its own later.
                Err(error) => tracing::warn!(claim = %key, %error, "could not prepare a claim"),
            }
        }
        // A pass may have found another IPAddress.
        self.adopt(None).await?;
        self.provider.registry.claim_all(claims).await?;
        Ok(())
    }

    /// Notes which claims hold addresses: those that are gone have to be released.
    async fn note_holders(&self) -> Result<(), Error> {
        let leases: Api<DynamicObject> =
            Api::all_with(self.provider.client.clone(), &ApiResource::erase::<StaticIPLease>(&()));
        let mut params = ListParams::default().limit(500);
        loop {
            let page = ask(leases.list(&params)).await?;
            for object in page.items {
                // The ledger reports leases that cannot be read.
                let Ok(LeaseSpec { holder, released: None, .. }) = serde_json::from_value(object.data["spec"].clone())
                else {
                    continue;
                };
                let is_here =
                    self.provider.scope.namespace.is_empty() || self.provider.scope.namespace == holder.namespace;
                if holder.kind == HolderKind::IpAddressClaim && is_here {
                    self.index().note_holder(&Key { namespace: holder.namespace, name: holder.name }, &holder.uid);
                }
            }
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => params = params.continue_token(&token),
                None => return Ok(()),
            }
        }
    }

    async fn serve(
        &self,
        mut changes: impl Stream<Item = (Kind, Change)> + Unpin,
        pools: &mut watch::Receiver<Facts>,
        served: &mut Served,
    ) -> Result<Infallible, Stopped> {
        let mut queue = Queue::default();
        let mut passes = FuturesUnordered::new();
        let mut names: BTreeSet<Key> = BTreeSet::new();
        let now = Instant::now();
        self.index().by_age().into_iter().for_each(|key| queue.add(key, now));
        loop {
            let now = Instant::now();
            std::mem::take(&mut names).into_iter().for_each(|key| queue.add(key, now));
            while passes.len() < PASSES
                && let Some(key) = queue.next(now)
            {
                passes.push(async move {
                    let ended = self.pass(&key, Until::Nothing).await;
                    (key, ended)
                });
            }
            let until = queue.next_time().filter(|_| passes.len() < PASSES);
            let wait = async {
                match until {
                    Some(time) => sleep_until(time).await,
                    None => future::pending().await,
                }
            };
            tokio::select! {
                change = changes.next() => match change {
                    Some((kind, change)) => names = self.learn(kind, change),
                    None => return Err(Stopped),
                },
                Some((key, ended)) = passes.next() => {
                    let now = Instant::now();
                    queue.end(&key, ended.is_ok(), now);
                    match ended {
                        Ok(Ended::Early) => queue.add(key, now + EARLY),
                        Ok(Ended::Well | Ended::Claims(_)) => {}
                        Err(Error::Stopped) => return Err(Stopped),
                        Err(error) => tracing::warn!(claim = %key, %error, "could not serve a claim"),
                    }
                }
                changed = pools.changed() => {
                    changed.map_err(|_| Stopped)?;
                    let facts = pools.borrow_and_update().clone();
                    names = self.index().set_pools(facts);
                }
                allocation = served.recv() => {
                    let machine = allocation.ok_or(Stopped)?.claimant.machine;
                    names = [Key { namespace: machine.namespace, name: machine.name }].into();
                }
                () = wait => {}
            }
        }
    }

    /// The changes of every kind that is watched.
    fn changes(&self) -> impl Stream<Item = (Kind, Change)> + use<'_> {
        let Kinds { claims, addresses, clusters, .. } = &self.kinds;
        let kinds = [(Kind::Claim, Some(claims)), (Kind::Address, Some(addresses)), (Kind::Cluster, clusters.as_ref())];
        let watches = kinds.into_iter().filter_map(|(kind, resource)| {
            let client = self.provider.client.clone();
            let api = match self.provider.scope.namespace.as_str() {
                "" => Api::all_with(client, resource?),
                namespace => Api::namespaced_with(client, namespace, resource?),
            };
            Some(changes(api).map(move |change| (kind, change)).boxed())
        });
        stream::select_all(watches.collect::<Vec<_>>())
    }

    fn learn(&self, kind: Kind, change: Change) -> BTreeSet<Key> {
        match change {
            Change::Apply(object) => self.index().apply(kind, object),
            Change::Delete(object) => {
                let version = Some(version_of(&object.metadata));
                self.index().remove(kind, &Key::of(&object.metadata), version)
            }
            Change::Gone(key) => self.index().remove(kind, &key, None),
            Change::Listed => BTreeSet::new(),
        }
    }

    /// Does what is to be done for the claim of a name.
    async fn pass(&self, key: &Key, until: Until) -> Result<Ended, Error> {
        let mut view = self.look(key, false).await?;
        for _ in 0..LONGEST_PASS {
            match decide(&view, Timestamp::now()) {
                Step::Wait if view.is_early() => return Ok(Ended::Early),
                Step::Wait => return Ok(Ended::Well),
                Step::Claim(claim) if until == Until::Claim => return Ok(Ended::Claims(claim)),
                step => {
                    if !self.apply(step, &mut view).await? {
                        view = self.look(key, true).await?;
                    }
                }
            }
        }
        Err(Error::Endless)
    }

    /// Collects what is known of a name. The claim and the IPAddress are read from the API server when `is_outdated`, and
    /// when something may be released: then their absence has to be certain.
    async fn look(&self, key: &Key, is_outdated: bool) -> Result<View, Error> {
        let mut view = self.index().view(key);
        if view.is_empty() {
            return Ok(view);
        }
        // This is done for a paused claim too: no other claim may get the address.
        let pool = view.address.as_ref().and_then(|address| address.pool.resolve(&key.namespace));
        if let Some(pool) = pool.filter(|pool| self.index().is_unrecorded(pool, key)) {
            self.adopt(Some(&pool)).await?;
        }
        let may_release = view.claim.as_ref().is_none_or(IpAddressClaim::is_deleted) || !view.former.is_empty();
        if is_outdated || may_release {
            let known = view.address.as_ref().map(|address| version_of(&address.metadata));
            self.read(Kind::Address, &self.kinds.addresses, key, known).await?;
            // Each of these was there before it is looked for: if the claim that is read is another one, they are gone.
            let mut candidates = self.index().view(key).former;
            candidates.extend(view.claim.as_ref().map(|claim| claim.uid().to_owned()));
            let known = view.claim.as_ref().map(|claim| version_of(&claim.metadata));
            self.read(Kind::Claim, &self.kinds.claims, key, known).await?;
            view = self.index().view(key);
            view.former.retain(|uid| candidates.contains(uid));
        }
        self.read_registry(&mut view).await?;
        Ok(view)
    }

    /// Reads an object of a name from the API server into the index, which knows the version `known`.
    async fn read(&self, kind: Kind, resource: &ApiResource, key: &Key, known: Option<u64>) -> Result<(), Error> {
        let object = ask(self.api(resource, key).get_opt(&key.name)).await?;
        match (object, known) {
            (Some(object), _) => drop(self.index().apply(kind, object)),
            // A watch may have reported a newer object meanwhile: that one stays.
            (None, Some(known)) if kind == Kind::Address => self.index().forget_address(key, known),
            (None, Some(known)) => drop(self.index().remove(kind, key, Some(known))),
            (None, None) => {}
        }
        Ok(())
    }

    async fn read_registry(&self, view: &mut View) -> Result<(), Error> {
        let (key, address) = (view.key.clone(), view.address.clone());
        let uid = view.claim.as_ref().map(|claim| claim.uid().to_owned()).unwrap_or_default();
        let pool = view.claim.as_ref().and_then(|claim| claim.pool.resolve(&key.namespace));
        let read = self
            .provider
            .registry
            .read(move |allocator| Recorded::read(allocator, &key, &uid, pool.as_ref(), address.as_ref()));
        view.ledger = read.await?;
        Ok(())
    }

    /// Makes a request and takes over its answer. `false`: an object is not what it was, and has to be read.
    async fn apply(&self, step: Step, view: &mut View) -> Result<bool, Error> {
        let Self { provider, kinds, .. } = self;
        let registry = &provider.registry;
        let (key, merge) = (view.key.clone(), PatchParams::default());
        let claims = self.api(&kinds.claims, &key);
        let addresses = self.api(&kinds.addresses, &key);
        match step {
            Step::Wait => {}
            Step::PatchClaim(patch) => {
                let answer = ask(claims.patch(&key.name, &merge, &Patch::Merge(patch))).await;
                let Some(object) = stored(answer)? else { return Ok(false) };
                self.take_claim(view, object)?;
            }
            Step::PatchStatus(patch, readiness) => {
                let answer = ask(claims.patch_status(&key.name, &merge, &Patch::Merge(patch))).await;
                let Some(object) = stored(answer)? else { return Ok(false) };
                self.take_claim(view, object)?;
                view.is_status_written = true;
                self.publish(view, &readiness).await;
            }
            Step::CreateAddress(address) => {
                let object = typed(&kinds.addresses, address).map_err(Error::Unreadable)?;
                let answer = ask(addresses.create(&PostParams::default(), &object)).await;
                let Some(object) = stored(answer)? else { return Ok(false) };
                self.take_address(view, object)?;
                if let Some(address) = &view.address {
                    self.index().note_recorded(address);
                }
            }
            Step::PatchAddress(patch) => {
                let answer = ask(addresses.patch(&key.name, &merge, &Patch::Merge(patch))).await;
                let Some(object) = stored(answer)? else { return Ok(false) };
                self.take_address(view, object)?;
            }
            Step::DeleteAddress => {
                let uid = view.address.as_ref().and_then(|address| address.metadata.uid.clone());
                let same = Preconditions { uid, resource_version: None };
                let params = DeleteParams::default().preconditions(same);
                stored(ask(addresses.delete(&key.name, &params)).await)?;
                // The finalizer of another controller may keep the IPAddress.
                return Ok(false);
            }
            Step::Adopt(record, network) => {
                if self.is_leased(&record, &network).await? {
                    return Err(Error::Behind);
                }
                let adoption = registry.adopt(vec![record], HolderKind::IpAddressClaim).await?;
                let mismatch = adoption.mismatches.first().map(ToString::to_string);
                let mismatch = mismatch.unwrap_or_else(|| format!("IPAddress {key} fits no pool"));
                view.problem = Some(Problem::Mismatch(mismatch));
                self.read_registry(view).await?;
            }
            Step::Claim(claim) => {
                let pool = view.claim.as_ref().and_then(|claim| claim.pool.resolve(&key.namespace));
                self.adopt(pool.as_ref()).await?;
                let answer = registry.claim(claim, HolderKind::IpAddressClaim).await?;
                view.problem = answer.err().map(Problem::Refused);
                self.read_registry(view).await?;
            }
            Step::Keep(claimant, address) => {
                registry.keep(claimant, vec![address]).await?;
                self.read_registry(view).await?;
            }
            Step::Withdraw => {
                let uid = view.claim.as_ref().map(IpAddressClaim::uid).unwrap_or_default();
                registry.withdraw(key.holder(uid)).await?;
                view.ledger.waits = false;
            }
            Step::Release(holder) => {
                let uid = holder.uid.clone();
                registry.release(holder).await?;
                tracing::info!(claim = %key, uid, "released the addresses of a claim");
                view.former.remove(&uid);
                if view.claim.as_ref().is_some_and(|claim| claim.uid() == uid) {
                    view.is_released = true;
                    for held in std::mem::take(&mut view.ledger.held) {
                        let note = format!("Released {}", held.address);
                        self.publish_event(view, EventType::Normal, "IPAddressReleased", note).await;
                    }
                } else {
                    self.index().forget(&key, &uid);
                }
            }
        }
        Ok(true)
    }

    /// Has the registry adopt the IPAddresses of a pool, or of all pools, that it may not know.
    async fn adopt(&self, pool: Option<&PoolId>) -> Result<(), Error> {
        let unrecorded = self.index().unrecorded(pool);
        if unrecorded.is_empty() {
            return Ok(());
        }
        let registry = &self.provider.registry;
        let adoptees = registry.read(move |allocator| {
            let adoptees = unrecorded.into_iter().filter_map(|(address, uid)| Adoptee::read(allocator, address, &uid));
            adoptees.collect::<Vec<Adoptee>>()
        });
        let (recorded, records): (Vec<IpAddress>, Vec<_>) =
            adoptees.await?.into_iter().map(|adoptee| (adoptee.address, adoptee.record)).unzip();
        let records = stream::iter(records.into_iter().flatten()).map(|(record, network)| async move {
            let is_leased = self.is_leased(&record, &network).await?;
            Ok((!is_leased).then_some(record))
        });
        let records: Vec<Result<Option<Record>, Error>> = records.buffered(PASSES).collect().await;
        let records: Vec<Record> = records.into_iter().filter_map(Result::transpose).collect::<Result<_, _>>()?;
        if !records.is_empty() {
            for Record { claimant, .. } in &records {
                let key = Key { namespace: claimant.machine.namespace.clone(), name: claimant.machine.name.clone() };
                self.index().note_holder(&key, &claimant.machine.uid);
            }
            let adoption = registry.adopt(records, HolderKind::IpAddressClaim).await?;
            tracing::info!(adopted = adoption.adopted, known = adoption.known, "adopted the addresses of claims");
            adoption.mismatches.iter().for_each(|mismatch| tracing::warn!(%mismatch, "an IPAddress does not fit"));
        }
        let mut index = self.index();
        recorded.iter().for_each(|address| index.note_recorded(address));
        Ok(())
    }

    /// Whether the API server has a lease for what an IPAddress records. Another leader has written the lease, and the
    /// registry learns of it a moment later.
    async fn is_leased(&self, record: &Record, network: &str) -> Result<bool, Error> {
        let leases: Api<StaticIPLease> = Api::all(self.provider.client.clone());
        for address in &record.addresses {
            // An address that no lease can name is refused by the registry.
            let Ok(name) = lease_name(address.ip(), network) else { continue };
            let lease = ask(leases.get_opt(&name)).await?;
            if lease.is_some_and(|lease| {
                lease.spec.released.is_none() && lease.spec.holder.uid == record.claimant.machine.uid
            }) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn take_claim(&self, view: &mut View, object: DynamicObject) -> Result<(), Error> {
        let is_gone = is_gone(&object);
        self.index().apply(Kind::Claim, object.clone());
        let claim = IpAddressClaim::read(object).map_err(Error::Unreadable)?;
        if is_gone {
            self.index().forget(&view.key, claim.uid());
        }
        view.claim = Some(claim);
        Ok(())
    }

    fn take_address(&self, view: &mut View, object: DynamicObject) -> Result<(), Error> {
        let (is_gone, version) = (is_gone(&object), version_of(&object.metadata));
        self.index().apply(Kind::Address, object.clone());
        if is_gone {
            self.index().forget_address(&view.key, version);
        }
        let address = IpAddress::read(object).map_err(Error::Unreadable)?;
        view.address = Some(address).filter(|_| !is_gone);
        Ok(())
    }

    async fn publish(&self, view: &View, readiness: &Readiness) {
        let is_mismatch = matches!(view.problem, Some(Problem::Mismatch(_)));
        let (kind, reason, note) = match readiness {
            Readiness::Ready => {
                let address = view.ledger.held.first().map(|held| held.address.to_string()).unwrap_or_default();
                tracing::info!(claim = %view.key, address, "allocated an address to a claim");
                let created = view.claim.as_ref().map(IpAddressClaim::created).unwrap_or_default();
                let now = u64::try_from(Timestamp::now().as_millisecond()).unwrap_or_default();
                let waited = Duration::from_millis(now.saturating_sub(created));
                self.provider.metrics.allocation_seconds.observe(waited.as_secs_f64());
                (EventType::Normal, "IPAddressAllocated", format!("Allocated {address}"))
            }
            Readiness::NotReady(NotReady::PoolExhausted, message) => {
                tracing::warn!(claim = %view.key, "{message}");
                (EventType::Warning, "IPPoolExhausted", message.clone())
            }
            Readiness::NotReady(NotReady::AllocationFailed, message) if is_mismatch => {
                (EventType::Warning, "IPAddressConflict", message.clone())
            }
            Readiness::NotReady(..) => return,
        };
        self.publish_event(view, kind, reason, note).await;
    }

    /// Publishes an event of the claim. Without it nothing is lost that the status does not say.
    async fn publish_event(&self, view: &View, type_: EventType, reason: &str, note: String) {
        let Some(claim) = &view.claim else { return };
        let object = DynamicObject { types: None, metadata: claim.metadata.clone(), data: Value::Null };
        let event = Event {
            type_,
            reason: reason.to_owned(),
            note: Some(note),
            action: "Allocate".to_owned(),
            secondary: None,
        };
        let reference = object.object_ref(&self.kinds.claims);
        if let Err(error) = ask(self.provider.recorder.publish(&event, &reference)).await {
            tracing::warn!(claim = %view.key, reason, %error, "could not publish an event");
        }
    }

    fn api(&self, resource: &ApiResource, key: &Key) -> Api<DynamicObject> {
        Api::namespaced_with(self.provider.client.clone(), &key.namespace, resource)
    }

    fn index(&self) -> MutexGuard<'_, Index> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn ask<T>(request: impl Future<Output = kube::Result<T>>) -> Result<T, Error> {
    timeout(PATIENCE, request).await.map_err(|_| Error::Unanswered)?.map_err(Error::Request)
}

/// What a write stored. `None`: another version of the object is stored, or none is.
fn stored<T>(answer: Result<T, Error>) -> Result<Option<T>, Error> {
    match answer {
        Ok(object) => Ok(Some(object)),
        Err(Error::Request(kube::Error::Api(status))) if matches!(status.code, 404 | 409) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether a write that took the last finalizer off a deleted object has removed it.
fn is_gone(object: &DynamicObject) -> bool {
    let finalizers = object.metadata.finalizers.as_ref();
    object.metadata.deletion_timestamp.is_some() && finalizers.is_none_or(Vec::is_empty)
}

fn typed(resource: &ApiResource, mut object: Value) -> Result<DynamicObject, serde_json::Error> {
    object["apiVersion"] = resource.api_version.clone().into();
    object["kind"] = resource.kind.clone().into();
    serde_json::from_value(object)
}

// === impl Error ===

impl From<Stopped> for Error {
    fn from(_: Stopped) -> Self {
        Self::Stopped
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Request(error) => error.fmt(f),
            Self::Unanswered => f.write_str("no answer of the API server"),
            Self::Unreadable(error) => write!(f, "the API server answered with another object: {error}"),
            Self::Stopped => Stopped.fmt(f),
            Self::Behind => f.write_str("the registry does not know the lease of the IPAddress yet"),
            Self::Endless => write!(f, "{LONGEST_PASS} requests did not bring the claim to an end"),
        }
    }
}
