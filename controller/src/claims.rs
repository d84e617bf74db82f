//! The IPAM provider for Cluster API: creates an IPAddress for each IPAddressClaim on a pool of glowplug. The IPAddress
//! has the same name as its claim.
//!
//! Watches update an index. Each name whose claim may need a request gets a pass. A pass decides the next request,
//! makes the request, and decides again. Two leaders at the same time do no harm: because of the names of leases and
//! IPAddresses, and the versions of objects, the API server rejects a request that another leader has already made.
//!
//! When a leader starts, it adopts every IPAddress before it allocates any address. Then it processes the outstanding
//! claims together, in the order of their creation.

pub(crate) mod decision;
pub(crate) mod ipam;
pub(crate) mod known_claims;
mod requests;

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::BoxStream;
use glowplug::host::claim::{Machine, is_object_name};
use k8s_openapi::jiff::Timestamp;
use kube::api::{ApiResource, DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions};
use kube::runtime::events::EventType;
use serde_json::Value;
use tokio::sync::{mpsc, watch};

use crate::claims::decision::{Adoptee, Cluster, Lesson, Recorded, Step, View, decide};
use crate::claims::known_claims::{ClaimKind, KnownClaims};
pub use crate::claims::requests::Provider;
use crate::claims::requests::{is_gone, json_patch};
use crate::cluster::key::{Key, PoolId};
use crate::cluster::object::{Object, version_of};
use crate::cluster::request::{self, ask, list, one_line, stored};
use crate::cluster::watch::{Change, changes};
use crate::kinds::cluster_api::{IpAddress, IpAddressClaim, Kinds};
use crate::kinds::ip_address_claim_status::{NotReady, Readiness};
use crate::kinds::pool::HolderKind;
use crate::ledger::types::{Holders, Stopped};
use crate::passes::provider;
use crate::passes::{Ended, Error, LONGEST_PASS, Problem, Until};
use crate::pools::selection::OpenPools;

const HOLDER: HolderKind = HolderKind::IpAddressClaim;

/// The work of the provider while the API server serves the kinds of Cluster API.
struct Work<'p> {
    provider: &'p Provider,
    kinds: Kinds,
    index: Mutex<KnownClaims>,
    /// Sends the names that need a pass because the pass of another name has adopted their IPAddresses or found their
    /// Cluster.
    others: mpsc::UnboundedSender<Key>,
}

// === impl Provider ===

impl Provider {
    /// Serves claims until the future is dropped or the registry ends. Calls `is_ready` after all claims that existed
    /// at the start are processed.
    ///
    /// `pools` changes only after the registry has applied a change of the pools. `served` names the claims that have
    /// got new addresses.
    pub async fn run(
        &self,
        pools: watch::Receiver<Option<OpenPools>>,
        served: Holders,
        is_ready: impl Fn(),
    ) -> Result<Infallible, Stopped> {
        let discover = || ask(Kinds::discover(&self.client));
        let work = |kinds: Kinds, others| {
            tracing::info!(version = kinds.version.name(), "serving the claims of Cluster API");
            let index = Mutex::new(KnownClaims::new(kinds.version, &self.scope.watch_filter));
            Work { provider: self, kinds, index, others }
        };
        let part = self.part("claims", "kinds of Cluster API", "a claim");
        provider::run(part, pools, served, discover, work, is_ready).await
    }
}

// === impl Work ===

impl provider::Work for Work<'_> {
    type Kind = ClaimKind;

    fn watches(&self) -> Vec<BoxStream<'static, (ClaimKind, Change)>> {
        let Kinds { claims, addresses, clusters, .. } = &self.kinds;
        let kinds = [
            (ClaimKind::Claim, Some(claims)),
            (ClaimKind::Address, Some(addresses)),
            (ClaimKind::Cluster, clusters.as_ref()),
        ];
        let watches = kinds.into_iter().filter_map(|(kind, resource)| {
            Some(changes(self.provider.in_scope(resource?)).map(move |change| (kind, change)).boxed())
        });
        watches.collect()
    }

    fn note_change(&self, kind: ClaimKind, change: Change) -> BTreeSet<Key> {
        self.index().note(kind, change)
    }

    fn set_pools(&self, pools: OpenPools) -> BTreeSet<Key> {
        self.index().set_pools(pools.facts)
    }

    fn note_holder(&self, holder: &Machine) -> BTreeSet<Key> {
        let key = Key::of_machine(holder);
        if self.provider.has(holder) {
            self.index().note_holder(&key, &holder.uid);
        }
        [key].into()
    }

    async fn adopt(&self, _: &OpenPools) -> Result<(), Error> {
        self.index().forget_recorded();
        self.adopt_of(None).await
    }

    async fn adopt_changes(&self, _: &OpenPools) -> Result<(), Error> {
        self.adopt_of(None).await
    }

    fn claimants(&self, holders: &BTreeSet<Machine>) -> Vec<Key> {
        // If the claim of a holder no longer exists, the addresses of the holder must be released.
        holders.iter().filter(|holder| holder.kind == HOLDER).for_each(|holder| drop(self.note_holder(holder)));
        self.index().claimed_by_age()
    }

    fn names(&self, _: &BTreeSet<Machine>, _: &BTreeSet<Machine>) -> Vec<(Key, Duration)> {
        self.index().by_age().into_iter().map(|key| (key, Duration::ZERO)).collect()
    }

    /// Makes the requests that the claim of a name needs.
    async fn pass(&self, key: Key, until: Until) -> Result<Ended, Error> {
        let mut view = self.look(&key, false).await?;
        for _ in 0..LONGEST_PASS {
            match decide(&view, Timestamp::now()) {
                Step::Wait if view.waits_for_address() || view.is_waiting() => {
                    let is_queued = view.ledger.waits && !view.waits_for_address();
                    return Ok(Ended::waiting(is_queued, view.problem.as_ref(), self.provider.registry.now()));
                }
                // The API server may have refused to release a second lease of the claim.
                Step::Wait if view.has_kept => return Ok(Ended::Later),
                Step::Wait => return Ok(Ended::Well),
                Step::Claim(claim) if until == Until::Claim => {
                    return Ok(Ended::BeforeClaim(claim));
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
}

impl Work<'_> {
    /// Collects the state of a name. Reads the claim and the IPAddress from the API server if `is_outdated` is `true`,
    /// or if the next step could release an address: a release requires certainty that the objects do not exist.
    async fn look(&self, key: &Key, is_outdated: bool) -> Result<View, Error> {
        let mut view = self.index().view(key);
        if view.is_empty() {
            return Ok(view);
        }
        let may_release = view.claim.as_ref().is_none_or(IpAddressClaim::is_deleted) || !view.former.is_empty();
        if is_outdated || may_release {
            self.read(ClaimKind::Address, &self.kinds.addresses, key).await?;
            // Only a claim that is known before the next read is a candidate for a release. If the read returns another
            // UID, the candidate no longer exists.
            let mut candidates = self.index().view(key).former;
            candidates.extend(view.claim.as_ref().map(|claim| claim.uid().to_owned()));
            self.read(ClaimKind::Claim, &self.kinds.claims, key).await?;
            view = self.index().view(key);
            view.former.retain(|uid| candidates.contains(uid));
        }
        // The IPAddress of a paused claim must be adopted, too: otherwise, another claim could get its address. The
        // adoption comes after the read, because the watch does not report an IPAddress that the read has already
        // found.
        let pool = view.address.as_ref().and_then(|address| address.pool.resolve(&key.namespace));
        if let Some(pool) = pool.filter(|pool| self.index().is_unrecorded(pool, key)) {
            self.adopt_of(Some(&pool)).await?;
        }
        self.read_registry(&mut view).await?;
        Ok(view)
    }

    /// Reads the object of this kind and name from the API server into the index.
    async fn read(&self, kind: ClaimKind, resource: &ApiResource, key: &Key) -> Result<(), Error> {
        let known = || self.index().version(kind, key);
        let take = |known, object| self.index().take(kind, key, known, object);
        self.provider.read(resource, key, known, take).await
    }

    async fn read_registry(&self, view: &mut View) -> Result<(), Error> {
        let (key, address) = (view.key.clone(), view.address.clone());
        let uid = view.claim.as_ref().map(|claim| claim.uid().to_owned()).unwrap_or_default();
        let (former, pool) =
            (view.former.clone(), view.claim.as_ref().and_then(|claim| claim.pool.resolve(&key.namespace)));
        let read = self
            .provider
            .registry
            .read(move |allocator| Recorded::read(allocator, &key, (&uid, &former), pool.as_ref(), address.as_ref()));
        view.ledger = read.await?;
        Ok(())
    }

    /// Makes the request of a step and applies the response. Returns `false` if an object may have changed and must be
    /// read again.
    async fn apply(&self, step: Step, view: &mut View) -> Result<bool, Error> {
        let Self { provider, kinds, .. } = self;
        let registry = &provider.registry;
        let (key, merge) = (view.key.clone(), PatchParams::default());
        // The watches of two kinds have no common order, so a paused Cluster may exist although no watch has reported a
        // Cluster.
        if matches!(step, Step::PatchStatus(..)) && view.cluster == Cluster::Absent && self.find_cluster(view).await? {
            return Ok(false);
        }
        if let Some(holder) = step.frees_of() {
            self.adopt_beside(holder.clone()).await?;
        }
        let claims = provider.api(&kinds.claims, &key);
        let addresses = provider.api(&kinds.addresses, &key);
        match step {
            Step::Wait => {}
            Step::PatchClaim(patch) => {
                let answer = ask(claims.patch(&key.name, &merge, &Patch::Merge(patch))).await;
                let Some(object) = stored(answer)? else { return Ok(false) };
                self.take_claim(view, object)?;
            }
            Step::PatchStatus(patch, readiness) => {
                let answer = ask(claims.patch_status(&key.name, &merge, &json_patch(patch)?)).await;
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
                // An IPAddress of this name may now belong to a later claim of the same name, so only the known version
                // is deleted.
                let metadata = view.address.as_ref().map(|address| address.metadata.clone()).unwrap_or_default();
                let same = Preconditions { uid: metadata.uid, resource_version: metadata.resource_version };
                let params = DeleteParams::default().preconditions(same);
                stored(ask(addresses.delete(&key.name, &params)).await)?;
                // The IPAddress may still exist because of the finalizer of another controller, so it is read again.
                return Ok(false);
            }
            Step::Adopt(record, network) => {
                view.problem = Some(provider.adopt(record, &network).await?);
                self.read_registry(view).await?;
            }
            Step::Claim(claim) => {
                let pool = view.claim.as_ref().and_then(|claim| claim.pool.resolve(&key.namespace));
                self.adopt_of(pool.as_ref()).await?;
                let answer = registry.claim(claim).await?;
                view.problem = answer.err().map(Problem::Refused);
                self.read_registry(view).await?;
            }
            Step::Keep(claimant, address) => {
                provider.keep(&key, claimant, vec![address]).await?;
                view.has_kept = true;
                self.read_registry(view).await?;
            }
            Step::Withdraw => {
                let uid = view.claim.as_ref().map(IpAddressClaim::uid).unwrap_or_default();
                registry.withdraw(key.holder(HOLDER, uid)).await?;
                view.ledger.waits = false;
            }
            Step::EndRecords(holder, addresses) => {
                registry.end_records(holder, addresses).await?;
                self.read_registry(view).await?;
            }
            Step::RecordMove(holder) => {
                let uid = holder.uid.clone();
                let beyond = registry.note_migrated(holder).await?;
                if !beyond.is_empty() {
                    tracing::warn!(
                        claim = %key, uid, addresses = list(beyond),
                        "did not hold the addresses of a claim that clusterctl moved to another cluster: its namespace has a quarter of \
                         the pool for such claims already, or the API server refuses to change the leases"
                    );
                }
                view.moved.remove(&uid);
            }
            Step::Release(holder) => {
                let uid = holder.uid.clone();
                let addresses = provider.release(holder).await?;
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
                    // The earlier claim may have held the addresses that this claim did not get.
                    view.problem = None;
                }
            }
        }
        Ok(true)
    }

    /// Lists the Cluster of a claim, because no watch has reported the Cluster. Returns whether the Cluster exists.
    async fn find_cluster(&self, view: &View) -> Result<bool, Error> {
        let name = view.claim.as_ref().and_then(|claim| claim.cluster.as_ref()).filter(|name| is_object_name(name));
        let (Some(kind), Some(name)) = (&self.kinds.clusters, name) else { return Ok(false) };
        let params = ListParams::default().fields(&format!("metadata.name={name}"));
        let Some(cluster) = ask(self.provider.api(kind, &view.key).list(&params)).await?.items.pop() else {
            return Ok(false);
        };
        // The Cluster is now known, so a later report of the watch causes no pass. The other claims of the Cluster get
        // their pass now.
        self.index().store(ClaimKind::Cluster, cluster).into_iter().for_each(|key| drop(self.others.send(key)));
        Ok(true)
    }

    /// Makes the registry adopt the IPAddresses on every network where a holder has leases or records. This adoption
    /// must come before the release of the holder's addresses, because the registry allocates a released address to a
    /// waiting claim at once.
    async fn adopt_beside(&self, holder: Machine) -> Result<(), Error> {
        let pools = self.provider.registry.read(move |allocator| {
            let held = allocator.leases_of(&holder).map(|(network, ..)| network);
            let recorded = allocator.conflicts_of(&holder).map(|(network, _)| network);
            let networks: BTreeSet<&str> = held.chain(recorded).collect();
            let pools = allocator.pools().filter(|pool| networks.contains(pool.network()));
            pools.map(|pool| PoolId::parse(pool.name())).collect::<Vec<PoolId>>()
        });
        for pool in pools.await? {
            self.adopt_of(Some(&pool)).await?;
        }
        Ok(())
    }

    /// Makes the registry adopt the IPAddresses of a pool, or of all pools, that may be missing from the registry.
    async fn adopt_of(&self, pool: Option<&PoolId>) -> Result<(), Error> {
        let unrecorded = self.index().unrecorded(pool);
        if unrecorded.is_empty() {
            return Ok(());
        }
        let adoptees = self.provider.registry.read(move |allocator| Adoptee::read_all(allocator, unrecorded));
        let (mut recorded, mut alone) = (vec![], vec![]);
        let (mut records, mut reservations) = (vec![], vec![]);
        for Adoptee { address, lesson } in adoptees.await? {
            match lesson {
                Lesson::None => recorded.push(address),
                Lesson::Record(record, network) => {
                    recorded.push(address);
                    records.push((record, network));
                }
                Lesson::Reservation(reservation) => {
                    alone.push(address);
                    reservations.push(reservation);
                }
            }
        }
        if !reservations.is_empty() {
            let all = reservations.len();
            let beyond = self.provider.registry.add_conflicts(reservations).await?;
            for mismatch in &beyond {
                tracing::warn!(%mismatch, "did not reserve the address of an IPAddress without a claim");
            }
            let addresses = all - beyond.len();
            tracing::info!(addresses, "reserved the addresses of IPAddresses without a claim");
        }
        let holders = self.provider.adopt_all(records).await?;
        // A claim may have ended during the adoption. No watch would then cause the pass that releases its adopted
        // address.
        for holder in &holders {
            // Sending fails only after the passes have ended.
            provider::Work::note_holder(self, holder).into_iter().for_each(|key| drop(self.others.send(key)));
        }
        let mut index = self.index();
        recorded.iter().for_each(|address| index.note_recorded(address));
        alone.iter().for_each(|address| index.note_reserved(address));
        Ok(())
    }

    fn take_claim(&self, view: &mut View, object: Object) -> Result<(), Error> {
        let (is_gone, version) = (is_gone(&object), version_of(&object.metadata));
        let claim = IpAddressClaim::read(object.clone()).map_err(request::Error::Unreadable)?;
        let mut index = self.index();
        if is_gone {
            index.end(ClaimKind::Claim, &view.key, version);
            index.forget(&view.key, claim.uid());
        } else {
            index.store(ClaimKind::Claim, object);
        }
        view.claim = Some(claim);
        Ok(())
    }

    fn take_address(&self, view: &mut View, object: Object) -> Result<(), Error> {
        let (is_gone, version) = (is_gone(&object), version_of(&object.metadata));
        let address = IpAddress::read(object.clone()).map_err(request::Error::Unreadable)?;
        match is_gone {
            true => self.index().end(ClaimKind::Address, &view.key, version),
            false => drop(self.index().store(ClaimKind::Address, object)),
        }
        view.address = Some(address).filter(|_| !is_gone);
        Ok(())
    }

    /// Logs the readiness that was written into the status, and publishes an event about a problem.
    fn publish(&self, view: &View, readiness: &Readiness) {
        let is_mismatch = matches!(view.problem, Some(Problem::Mismatch(..)));
        let pool = view.claim.as_ref().and_then(|claim| claim.pool.resolve(&view.key.namespace));
        let (reason, note) = match readiness {
            Readiness::Ready(Some(_)) => return,
            Readiness::Ready(None) => {
                let created = view.claim.as_ref().map(IpAddressClaim::created).unwrap_or_default();
                let addresses = view.ledger.held.iter().map(|held| held.address);
                return self.provider.note_allocation(&view.key, pool.as_ref(), created, addresses);
            }
            Readiness::NotReady(reason, message) => {
                tracing::warn!(claim = %view.key, pool = pool.map(display), ?reason, "{}", one_line(message));
                match reason {
                    NotReady::PoolExhausted => ("IPPoolExhausted", message),
                    NotReady::AllocationFailed if is_mismatch => ("IPAddressConflict", message),
                    NotReady::AllocationFailed | NotReady::PoolNotReady => return,
                }
            }
            Readiness::Paused(_) => return,
        };
        self.publish_event(view, EventType::Warning, reason, note);
    }

    fn publish_event(&self, view: &View, type_: EventType, reason: &str, note: &str) {
        if let Some(claim) = &view.claim {
            self.provider.publish(&self.kinds.claims, &claim.metadata, type_, reason, note);
        }
    }

    fn index(&self) -> MutexGuard<'_, KnownClaims> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn typed(resource: &ApiResource, mut object: Value) -> Result<Object, serde_json::Error> {
    object["apiVersion"] = resource.api_version.clone().into();
    object["kind"] = resource.kind.clone().into();
    serde_json::from_value(object)
}
