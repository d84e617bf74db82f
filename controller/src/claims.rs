//! Cluster API's IPAM provider: creates an IPAddress for each IPAddressClaim on our pools. The IPAddress has the name
//! of its claim.
//!
//! Watches update an index. A name whose claim may need work gets a pass. A pass decides the next request, makes the
//! request, and decides again. This code is safe with two leaders: the names of leases and IPAddresses, and the versions of
//! objects, make the API server reject a request that another leader has already made.
//!
//! At the start, every IPAddress is adopted before any address is allocated. Then the outstanding claims are processed
//! together, in the order of their creation.

mod decision;
mod index;
mod ipam;

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::{Stream, StreamExt as _, stream};
use glowplug::host::allocator::Adoption;
use glowplug::host::claim::{Machine, Record};
use ipnetwork::IpNetwork;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::api::{ApiResource, DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::runtime::events::EventType;
use kube::{Api, Client, Resource as _};
use serde_json::Value;
use tokio::sync::{mpsc, watch};
use tokio::time::sleep;
use tracing::field::display;

use crate::claims::decision::{Adoptee, Recorded, Step, View, decide};
use crate::claims::index::{Index, Kind};
use crate::cluster::events::Events;
use crate::cluster::key::{Key, PoolId};
use crate::cluster::object::{Object, version_of};
use crate::cluster::request::{self, DISCOVERY, ask, discover, list, stored, until_other};
use crate::cluster::watch::{Change, changes};
use crate::kinds::cluster_api::{IpAddress, IpAddressClaim, Kinds};
use crate::kinds::ip_address_claim_status::{NotReady, Readiness};
use crate::kinds::pool::HolderKind;
use crate::ledger::adoption;
use crate::ledger::registry::RegistryHandle;
use crate::ledger::types::{Holders, Stopped};
use crate::metrics::Metrics;
use crate::passes::opening::Opening;
use crate::passes::{self, ADDRESS_PAUSE, Ended, Error, LONGEST_PASS, Names, PASSES, Problem, Until};
use crate::pools::facts::{Facts, Scope};

/// Pause before the next attempt for a claim on a pool that the registry does not have yet.
const EARLY: Duration = Duration::from_secs(1);
/// Name of this part in the opening.
const PART: &str = "claims";
/// The kinds of this part, for log messages.
const KINDS: &str = "kinds of Cluster API";

/// The IPAM provider of a leader.
#[derive(Clone)]
pub struct Provider {
    client: Client,
    registry: RegistryHandle,
    events: Events,
    opening: Opening,
    metrics: Arc<Metrics>,
    scope: Scope,
}

/// The provider while the API server serves the kinds of Cluster API.
struct Work<'p> {
    provider: &'p Provider,
    kinds: &'p Kinds,
    index: Mutex<Index>,
    /// Receives the names that need a pass because the pass of another name has adopted their IPAddresses.
    others: mpsc::UnboundedSender<Key>,
}

// === impl Provider ===

impl Provider {
    /// A provider for the claims of `scope`. The provider is a part of `opening`.
    #[must_use]
    pub fn new(
        client: Client,
        registry: RegistryHandle,
        opening: Opening,
        metrics: Arc<Metrics>,
        scope: Scope,
    ) -> Self {
        let events = Events::start(client.clone());
        Self { client, registry, events, opening, metrics, scope }
    }

    /// Serves claims until the future is dropped. Calls `is_ready` after all claims that existed at the start are served.
    ///
    /// `pools` has the pools after the registry has them, and `served` reports claims that no longer wait.
    ///
    /// # Errors
    ///
    /// [`Stopped`]: the registry has ended.
    pub async fn run(
        &self,
        mut pools: watch::Receiver<Option<Facts>>,
        mut served: Holders,
        is_ready: impl Fn(),
    ) -> Result<Infallible, Stopped> {
        let question = || ask(Kinds::discover(&self.client));
        loop {
            let found = discover(KINDS, &question).await;
            let Some(kinds) = &found else {
                self.opening.claim(PART, Vec::new()).await?;
                is_ready();
                sleep(DISCOVERY).await;
                continue;
            };
            tracing::info!(version = kinds.version.name(), "serving the claims of Cluster API");
            let index = Mutex::new(Index::new(kinds.version, &self.scope.watch_filter));
            let (others, mut of_others) = mpsc::unbounded_channel();
            let work = Work { provider: self, kinds, index, others };
            tokio::select! {
                result = work.run(&mut pools, (&mut served, &mut of_others), &is_ready) => return result,
                () = until_other(KINDS, &question, &found) => {}
            }
        }
    }
}

// === impl Work ===

impl Work<'_> {
    async fn run(
        &self,
        pools: &mut watch::Receiver<Option<Facts>>,
        messages: (&mut Holders, &mut mpsc::UnboundedReceiver<Key>),
        is_ready: impl Fn(),
    ) -> Result<Infallible, Stopped> {
        let mut changes = Box::pin(self.changes());
        let mut lists = 2 + usize::from(self.kinds.clusters.is_some());
        while lists > 0 {
            let Some((kind, change)) = changes.next().await else { return Err(Stopped) };
            lists -= usize::from(matches!(change, Change::Listed));
            self.note_change(kind, change);
        }
        // The registry cannot attribute an IPAddress to a pool that it does not have yet.
        let facts = pools.wait_for(Option::is_some).await.map_err(|_| Stopped)?.clone();
        self.index().set_pools(facts.unwrap_or_default());
        passes::start("claim", || self.start()).await?;
        is_ready();
        self.serve(changes, pools, messages).await
    }

    /// Synchronizes the registry with the cluster: adopts every IPAddress, and processes the outstanding claims in the
    /// order of their creation. Addresses of deleted claims are released later, because each of these claims needs
    /// requests of its own.
    async fn start(&self) -> Result<(), Error> {
        self.note_holders().await?;
        self.adopt(None).await?;
        let names = self.index().claimed_by_age();
        let claims = passes::claims("claim", names, |key| self.pass(key, Until::Claim)).await?;
        // A pass may have found another IPAddress.
        self.adopt(None).await?;
        let claims = claims.into_iter().map(|(_, claim, kind)| (claim, kind)).collect();
        self.provider.opening.claim(PART, claims).await?;
        Ok(())
    }

    /// Collects the claims that hold addresses. If such a claim no longer exists, its addresses must be released.
    async fn note_holders(&self) -> Result<(), Error> {
        let holders = self.provider.registry.holders().await?;
        let claims = holders.into_iter().filter(|(_, kind)| *kind == HolderKind::IpAddressClaim);
        claims.for_each(|(holder, _)| drop(self.note_holder(&holder)));
        Ok(())
    }

    /// Notes a claim that holds addresses. Returns its name.
    fn note_holder(&self, holder: &Machine) -> Key {
        let (scope, key) = (&self.provider.scope, Key::of_machine(holder));
        if scope.namespace.is_empty() || scope.namespace == holder.namespace {
            self.index().note_holder(&key, &holder.uid);
        }
        key
    }

    async fn serve(
        &self,
        changes: impl Stream<Item = (Kind, Change)> + Unpin,
        pools: &mut watch::Receiver<Option<Facts>>,
        (served, of_others): (&mut Holders, &mut mpsc::UnboundedReceiver<Key>),
    ) -> Result<Infallible, Stopped> {
        let changes = changes.map(|(kind, change)| -> Names { Some(self.note_change(kind, change)) });
        let pools = passes::each_value(pools, |facts| self.index().set_pools(facts.unwrap_or_default()));
        let served = passes::each_message(served, |holder| [self.note_holder(&holder)].into());
        let of_others = passes::each_message(of_others, |key| [key].into());
        let messages = stream::select(served, of_others);
        let wakes = stream::select(changes.chain(stream::iter([None])), stream::select(pools, messages));
        let names: Vec<Key> = self.index().by_age();
        let names = names.into_iter().map(|key| (key, Duration::ZERO));
        Err(passes::serve("claim", names, Box::pin(wakes), |key| self.pass(key, Until::Nothing)).await)
    }

    /// The changes of all watched kinds.
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

    /// Updates the index. Returns the names that may need a pass.
    fn note_change(&self, kind: Kind, change: Change) -> BTreeSet<Key> {
        match change {
            Change::Apply(object) => self.index().apply(kind, object),
            Change::Remove(key, version) => self.index().remove(kind, &key, version),
            Change::Listed => BTreeSet::new(),
        }
    }

    /// Makes the requests that the claim of a name needs.
    async fn pass(&self, key: Key, until: Until) -> Result<Ended, Error> {
        let mut view = self.look(&key, false).await?;
        for _ in 0..LONGEST_PASS {
            match decide(&view, Timestamp::now()) {
                Step::Wait if view.is_early() => return Ok(Ended::Again(EARLY)),
                Step::Wait if view.waits_for_address() => return Ok(Ended::Again(ADDRESS_PAUSE)),
                Step::Wait if view.is_waiting() => return Ok(Ended::waiting(view.ledger.waits)),
                Step::Wait => return Ok(Ended::Well),
                Step::Claim(claim) if until == Until::Claim => {
                    return Ok(Ended::BeforeClaim(claim, HolderKind::IpAddressClaim));
                }
                step => {
                    if !self.apply(step, &mut view).await? {
                        view = self.look(&key, true).await?;
                    }
                }
            }
        }
        Err(Error::Endless)
    }

    /// Collects the state of a name. The claim and the IPAddress are read from the API server when `is_outdated`, and
    /// when an address may be released: a release requires certainty that the objects do not exist.
    async fn look(&self, key: &Key, is_outdated: bool) -> Result<View, Error> {
        let mut view = self.index().view(key);
        if view.is_empty() {
            return Ok(view);
        }
        // This is also done for a paused claim, because no other claim may get the address.
        let pool = view.address.as_ref().and_then(|address| address.pool.resolve(&key.namespace));
        if let Some(pool) = pool.filter(|pool| self.index().is_unrecorded(pool, key)) {
            self.adopt(Some(&pool)).await?;
        }
        let may_release = view.claim.as_ref().is_none_or(IpAddressClaim::is_deleted) || !view.former.is_empty();
        if is_outdated || may_release {
            self.read(Kind::Address, &self.kinds.addresses, key).await?;
            // The candidates are collected before the claim is read. If the claim that is read has another UID, the
            // candidates no longer exist.
            let mut candidates = self.index().view(key).former;
            candidates.extend(view.claim.as_ref().map(|claim| claim.uid().to_owned()));
            self.read(Kind::Claim, &self.kinds.claims, key).await?;
            view = self.index().view(key);
            view.former.retain(|uid| candidates.contains(uid));
        }
        self.read_registry(&mut view).await?;
        Ok(view)
    }

    /// Reads an object of a name from the API server into the index.
    async fn read(&self, kind: Kind, resource: &ApiResource, key: &Key) -> Result<(), Error> {
        loop {
            let known = self.index().version(kind, key);
            let object = ask(self.api(resource, key).get_opt(&key.name)).await?;
            if self.index().take(kind, key, known, object) {
                return Ok(());
            }
        }
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

    /// Makes a request and applies its result. `false` when an object has changed and must be read again.
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
                self.publish(view, &readiness);
            }
            Step::CreateAddress(address) => {
                let object = typed(&kinds.addresses, address).map_err(request::Error::Unreadable)?;
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
                let adoption = registry.adopt(vec![record.clone()], HolderKind::IpAddressClaim).await?;
                // If nothing is adopted, the status reports why. Each pass tries again, so a line here would be repeated.
                if adoption.adopted > 0 {
                    log_adoption(&[record], &adoption);
                }
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
                log_keep(&key, &registry.keep(claimant, vec![address]).await?);
                self.read_registry(view).await?;
            }
            Step::Withdraw => {
                let uid = view.claim.as_ref().map(IpAddressClaim::uid).unwrap_or_default();
                registry.withdraw(key.holder(uid)).await?;
                view.ledger.waits = false;
            }
            Step::Release(holder) => {
                let uid = holder.uid.clone();
                // Users can write the UID of any object into the owner of an IPAddress.
                let addresses = registry.release(holder, HolderKind::IpAddressClaim).await?.unwrap_or_default();
                log_release(&key, &uid, &addresses);
                view.former.remove(&uid);
                if view.claim.as_ref().is_some_and(|claim| claim.uid() == uid) {
                    view.is_released = true;
                    view.ledger.held.clear();
                    if !addresses.is_empty() {
                        let note = format!("Released {}", list(addresses));
                        self.publish_event(view, EventType::Normal, "IPAddressReleased", &note);
                    }
                } else {
                    self.index().forget(&key, &uid);
                }
            }
        }
        Ok(true)
    }

    /// Makes the registry adopt the IPAddresses of a pool, or of all pools, that may be missing from the registry.
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
            let adoption = registry.adopt(records.clone(), HolderKind::IpAddressClaim).await?;
            log_adoption(&records, &adoption);
            // Meanwhile, the pass of such a claim may have ended the claim. Then no watch would cause a pass that releases
            // the address again.
            for Record { claimant, .. } in &records {
                let key = Key::of_machine(&claimant.machine);
                self.index().note_holder(&key, &claimant.machine.uid);
                // The receiver ends only together with the passes.
                let _ = self.others.send(key);
            }
        }
        let mut index = self.index();
        recorded.iter().for_each(|address| index.note_recorded(address));
        Ok(())
    }

    /// Whether the API server has the lease of the address that an IPAddress records.
    async fn is_leased(&self, record: &Record, network: &str) -> Result<bool, Error> {
        for address in &record.addresses {
            let uid = &record.claimant.machine.uid;
            if adoption::is_leased(&self.provider.client, address.ip(), network, uid).await? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn take_claim(&self, view: &mut View, object: Object) -> Result<(), Error> {
        let (is_gone, version) = (is_gone(&object), version_of(&object.metadata));
        let claim = IpAddressClaim::read(object.clone()).map_err(request::Error::Unreadable)?;
        let mut index = self.index();
        if is_gone {
            index.end(Kind::Claim, &view.key, version);
            index.forget(&view.key, claim.uid());
        } else {
            index.apply(Kind::Claim, object);
        }
        view.claim = Some(claim);
        Ok(())
    }

    fn take_address(&self, view: &mut View, object: Object) -> Result<(), Error> {
        let (is_gone, version) = (is_gone(&object), version_of(&object.metadata));
        let address = IpAddress::read(object.clone()).map_err(request::Error::Unreadable)?;
        match is_gone {
            true => self.index().end(Kind::Address, &view.key, version),
            false => drop(self.index().apply(Kind::Address, object)),
        }
        view.address = Some(address).filter(|_| !is_gone);
        Ok(())
    }

    /// Logs the readiness that was written into the status, and publishes an event about a problem. Success has no event,
    /// which would be a fifth write for each claim: the status has the same information.
    fn publish(&self, view: &View, readiness: &Readiness) {
        let is_mismatch = matches!(view.problem, Some(Problem::Mismatch(_)));
        let pool = view.claim.as_ref().and_then(|claim| claim.pool.resolve(&view.key.namespace)).map(display);
        let (reason, note) = match readiness {
            Readiness::Ready => {
                let addresses = list(view.ledger.held.iter().map(|held| held.address));
                tracing::info!(claim = %view.key, pool, addresses, "allocated the addresses of a claim");
                let created = view.claim.as_ref().map(IpAddressClaim::created).unwrap_or_default();
                // The clock of the API server may be ahead.
                let waited = Timestamp::now().duration_since(created).max(SignedDuration::ZERO);
                self.provider.metrics.allocation_seconds.observe(waited.as_secs_f64());
                return;
            }
            Readiness::NotReady(reason, message) => {
                tracing::warn!(claim = %view.key, pool, ?reason, "{message}");
                match reason {
                    NotReady::PoolExhausted => ("IPPoolExhausted", message),
                    NotReady::AllocationFailed if is_mismatch => ("IPAddressConflict", message),
                    NotReady::AllocationFailed | NotReady::PoolNotReady => return,
                }
            }
        };
        self.publish_event(view, EventType::Warning, reason, note);
    }

    fn publish_event(&self, view: &View, type_: EventType, reason: &str, note: &str) {
        let Some(claim) = &view.claim else { return };
        let object = Object { types: None, metadata: claim.metadata.clone(), data: Value::Null };
        self.provider.events.publish(object.object_ref(&self.kinds.claims), type_, reason, note);
    }

    fn api(&self, resource: &ApiResource, key: &Key) -> Api<Object> {
        Api::namespaced_with(self.provider.client.clone(), &key.namespace, resource)
    }

    fn index(&self) -> MutexGuard<'_, Index> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Logs what the registry adopted: a line for each claim, and a line for each address that does not fit.
fn log_adoption(records: &[Record], adoption: &Adoption) {
    for (holder, addresses) in adoption::adopted(records, adoption) {
        let (claim, addresses) = (Key::of_machine(&holder), list(addresses));
        tracing::info!(%claim, uid = holder.uid, addresses, "adopted the recorded addresses of a claim");
    }
    for mismatch in &adoption.mismatches {
        let claim = Key::of_machine(&mismatch.claimant.machine);
        tracing::warn!(%claim, %mismatch, "a record of a claim does not fit");
    }
}

/// Logs that addresses are released which two leaders have allocated to one claim.
fn log_keep(claim: &Key, addresses: &[IpNetwork]) {
    tracing::info!(%claim, addresses = list(addresses), "released addresses that the claim never got");
}

/// Logs that a claim is released. A claim that held nothing has no line.
fn log_release(claim: &Key, uid: &str, addresses: &[IpNetwork]) {
    if !addresses.is_empty() {
        tracing::info!(%claim, uid, addresses = list(addresses), "released the addresses of a claim");
    }
}

/// Whether the object is gone after a write that removed its last finalizer.
fn is_gone(object: &Object) -> bool {
    let finalizers = object.metadata.finalizers.as_ref();
    object.metadata.deletion_timestamp.is_some() && finalizers.is_none_or(Vec::is_empty)
}

fn typed(resource: &ApiResource, mut object: Value) -> Result<Object, serde_json::Error> {
    object["apiVersion"] = resource.api_version.clone().into();
    object["kind"] = resource.kind.clone().into();
    serde_json::from_value(object)
}
