//! Serves IPAMClaims: allocates their addresses from pools with `serveIPAMClaims`, and writes the addresses into
//! `status.ips`. The passes, the start and the release follow the rules of IPAddressClaims; the status takes the place of
//! the IPAddress.
//!
//! The network of a claim is a name in the configuration of a network attachment definition. So the network attachment
//! definitions are watched, too.

mod decision;
mod index;

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::{Stream, StreamExt as _, stream};
use glowplug::host::claim::Record;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::api::{ApiResource, ListParams, Patch, PatchParams};
use kube::runtime::events::EventType;
use kube::{Api, Client, Resource as _};
use serde_json::Value;
use tokio::sync::watch;
use tokio::time::sleep;
use tracing::field::display;

use crate::claims::ipam::decision::{Guest, Recorded, Serving, Step, View, decide, record};
use crate::claims::ipam::index::{Index, Kind};
use crate::claims::{EARLY, Provider, is_gone, log_adoption, log_keep, log_release};
use crate::cluster::client::serves;
use crate::cluster::key::{Key, PoolId};
use crate::cluster::object::{Object, version_of};
use crate::cluster::request::{self, DISCOVERY, ask, discover, list, stored, until_other};
use crate::cluster::watch::{Change, changes};
use crate::kinds::ipam_claim::{Failure, IpamClaim, IpsAllocated, ipam_claims, network_attachments};
use crate::kinds::pool::HolderKind;
use crate::kinds::virtual_machine::instances;
use crate::ledger::adoption;
use crate::ledger::types::{Holders, Stopped};
use crate::passes::{self, ADDRESS_PAUSE, Ended, Error, LONGEST_PASS, Names, PASSES, Problem, Until};
use crate::pools::facts::Facts;

/// Largest number of instances that are read one by one.
const MOST_GUESTS: usize = 16;
/// Maximum number of objects in the response to one list request.
const PAGE: u32 = 500;
/// Name of this part in the opening.
const PART: &str = "IPAMClaims";
/// The kinds of this part, for log messages.
const KINDS: &str = "kinds of IPAMClaims";

/// The provider while the API server serves IPAMClaims.
struct Work<'p> {
    provider: &'p Provider,
    kinds: &'p Kinds,
    index: Mutex<Index>,
}

/// The kinds that the API server serves.
#[derive(Clone, Debug, PartialEq)]
struct Kinds {
    claims: ApiResource,
    /// NetworkAttachmentDefinition. `None` when the API server does not serve this kind.
    attachments: Option<ApiResource>,
}

// === impl Provider ===

impl Provider {
    /// Serves IPAMClaims until the future is dropped, as [`Provider::run`] serves IPAddressClaims.
    ///
    /// # Errors
    ///
    /// [`Stopped`]: the registry has ended.
    pub async fn run_ipam_claims(
        &self,
        mut pools: watch::Receiver<Option<Facts>>,
        mut served: Holders,
        is_ready: impl Fn(),
    ) -> Result<Infallible, Stopped> {
        let question = || Kinds::discover(&self.client);
        loop {
            let found = discover(KINDS, &question).await;
            let Some(kinds) = &found else {
                self.opening.claim(PART, Vec::new()).await?;
                is_ready();
                sleep(DISCOVERY).await;
                continue;
            };
            tracing::info!("serving IPAMClaims of pools with serveIPAMClaims");
            let work = Work { provider: self, kinds, index: Mutex::default() };
            tokio::select! {
                result = work.run(&mut pools, &mut served, &is_ready) => return result,
                () = until_other(KINDS, &question, &found) => {}
            }
        }
    }
}

// === impl Kinds ===

impl Kinds {
    /// Asks which kinds the API server serves. `None`: the API server does not serve IPAMClaims.
    async fn discover(client: &Client) -> Result<Option<Self>, request::Error> {
        let (claims, attachments) = (ipam_claims(), network_attachments());
        if !ask(serves(client, &claims)).await? {
            return Ok(None);
        }
        let attachments = ask(serves(client, &attachments)).await?.then_some(attachments);
        Ok(Some(Self { claims, attachments }))
    }
}

// === impl Work ===

impl Work<'_> {
    async fn run(
        &self,
        pools: &mut watch::Receiver<Option<Facts>>,
        served: &mut Holders,
        is_ready: impl Fn(),
    ) -> Result<Infallible, Stopped> {
        let mut changes = Box::pin(self.changes());
        let mut lists = 1 + usize::from(self.kinds.attachments.is_some());
        while lists > 0 {
            let Some((kind, change)) = changes.next().await else { return Err(Stopped) };
            lists -= usize::from(matches!(change, Change::Listed));
            self.note_change(kind, change);
        }
        // The registry cannot attribute addresses to a pool that it does not have yet.
        let facts = pools.wait_for(Option::is_some).await.map_err(|_| Stopped)?.clone();
        self.index().set_pools(facts.unwrap_or_default());
        passes::start("IPAMClaim", || self.start()).await?;
        is_ready();
        self.serve(changes, pools, served).await
    }

    /// Synchronizes the registry with the cluster: adopts the addresses of every claim, and processes the outstanding
    /// claims in the order of their creation.
    async fn start(&self) -> Result<(), Error> {
        let holders = self.provider.registry.holders().await?;
        let scope = &self.provider.scope;
        for (holder, _) in holders.into_iter().filter(|(_, kind)| *kind == HolderKind::IpamClaim) {
            if scope.namespace.is_empty() || scope.namespace == holder.namespace {
                self.index().note_holder(&Key::of_machine(&holder), &holder.uid);
            }
        }
        self.adopt().await?;
        let names = self.concerned();
        let claims = passes::claims("IPAMClaim", names, |key| self.pass(key, Until::Claim)).await?;
        // A pass may have found other addresses.
        self.adopt().await?;
        let claims = claims.into_iter().map(|(_, claim, kind)| (claim, kind)).collect();
        self.provider.opening.claim(PART, claims).await?;
        Ok(())
    }

    async fn serve(
        &self,
        changes: impl Stream<Item = (Kind, Change)> + Unpin,
        pools: &mut watch::Receiver<Option<Facts>>,
        served: &mut Holders,
    ) -> Result<Infallible, Stopped> {
        let changes = changes.map(|(kind, change)| -> Names { Some(self.note_change(kind, change)) });
        let pools = passes::each_value(pools, |facts| self.index().set_pools(facts.unwrap_or_default()));
        let served = passes::each_message(served, |holder| [Key::of_machine(&holder)].into());
        let wakes = stream::select(changes.chain(stream::iter([None])), stream::select(pools, served));
        let names = self.concerned().into_iter().map(|key| (key, Duration::ZERO));
        Err(passes::serve("IPAMClaim", names, Box::pin(wakes), |key| self.pass(key, Until::Nothing)).await)
    }

    /// The changes of all watched kinds. Network attachment definitions of every namespace are watched: a pool names the
    /// namespace of its network.
    fn changes(&self) -> impl Stream<Item = (Kind, Change)> + use<'_> {
        let client = || self.provider.client.clone();
        let claims = match self.provider.scope.namespace.as_str() {
            "" => Api::all_with(client(), &self.kinds.claims),
            namespace => Api::namespaced_with(client(), namespace, &self.kinds.claims),
        };
        let attachments = self.kinds.attachments.as_ref().map(|kind| Api::all_with(client(), kind));
        let watches = [(Kind::Claim, Some(claims)), (Kind::Attachment, attachments)].into_iter();
        let watches = watches.filter_map(|(kind, api)| Some(changes(api?).map(move |change| (kind, change)).boxed()));
        stream::select_all(watches.collect::<Vec<_>>())
    }

    /// Updates the index. Returns the names that may need a pass.
    fn note_change(&self, kind: Kind, change: Change) -> BTreeSet<Key> {
        let mut index = self.index();
        let mut names = match change {
            Change::Apply(object) => index.apply(kind, object),
            Change::Remove(key, version) => index.remove(kind, &key, version),
            Change::Listed => BTreeSet::new(),
        };
        names.retain(|key| index.concerns(key));
        names
    }

    /// The names that may need a pass. Names of older claims come first.
    fn concerned(&self) -> Vec<Key> {
        let index = self.index();
        index.by_age().into_iter().filter(|key| index.concerns(key)).collect()
    }

    /// Makes the requests that the claim of a name needs.
    async fn pass(&self, key: Key, until: Until) -> Result<Ended, Error> {
        let mut view = self.look(&key, false).await?;
        for _ in 0..LONGEST_PASS {
            match decide(&view, Timestamp::now()) {
                Step::Wait if view.is_early() => return Ok(Ended::Again(EARLY)),
                Step::Wait if view.waits_for_guest() => return Ok(Ended::Later),
                Step::Wait if view.waits_for_address() => return Ok(Ended::Again(ADDRESS_PAUSE)),
                Step::Wait if view.is_waiting() => return Ok(Ended::waiting(view.ledger.waits)),
                Step::Wait => return Ok(Ended::Well),
                Step::Claim(claim) if until == Until::Claim => {
                    return Ok(Ended::BeforeClaim(claim, HolderKind::IpamClaim));
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

    /// Collects the state of a name. The claim is read from the API server when `is_outdated`, and when an address may
    /// be released: a release requires certainty that the claim does not exist.
    async fn look(&self, key: &Key, is_outdated: bool) -> Result<View, Error> {
        let mut view = self.index().view(key);
        if view.is_empty() {
            return Ok(view);
        }
        let may_release = view.claim.as_ref().is_none_or(IpamClaim::is_deleted) || !view.former.is_empty();
        if is_outdated || may_release {
            // If the claim that is read has another UID, the earlier claims of the name no longer exist. A claim that is
            // noted as an earlier one only after this is not a candidate for a release.
            let mut candidates: BTreeSet<String> = view.former.keys().cloned().collect();
            candidates.extend(view.claim.as_ref().map(|claim| claim.uid().to_owned()));
            loop {
                let known = self.index().version(key);
                let object = ask(self.claims(key).get_opt(&key.name)).await?;
                if self.index().take(key, known, object) {
                    break;
                }
            }
            view = self.index().view(key);
            view.former.retain(|uid, _| candidates.contains(uid));
        }
        self.read_registry(&mut view).await?;
        Ok(view)
    }

    async fn read_registry(&self, view: &mut View) -> Result<(), Error> {
        let key = view.key.clone();
        let uid = view.claim.as_ref().map(|claim| claim.uid().to_owned()).unwrap_or_default();
        let pool = match &view.pool {
            Serving::Pool(pool, _) | Serving::Several(pool, _) => Some(pool.clone()),
            Serving::None => None,
        };
        let read = move |allocator: &_| Recorded::read(allocator, &key, &uid, pool.as_ref());
        view.ledger = self.provider.registry.read(read).await?;
        Ok(())
    }

    /// Makes a request and applies its result. `false` when an object has changed and must be read again.
    async fn apply(&self, step: Step, view: &mut View) -> Result<bool, Error> {
        let registry = &self.provider.registry;
        let (key, merge) = (view.key.clone(), PatchParams::default());
        let claims = self.claims(&key);
        match step {
            Step::Wait => {}
            Step::PatchClaim(patch) => {
                let answer = ask(claims.patch(&key.name, &merge, &Patch::Merge(patch))).await;
                let Some(object) = stored(answer)? else { return Ok(false) };
                self.take_claim(view, object);
            }
            Step::PatchStatus(patch, state) => {
                let answer = ask(claims.patch_status(&key.name, &merge, &Patch::Merge(patch))).await;
                let Some(object) = stored(answer)? else { return Ok(false) };
                self.take_claim(view, object);
                (view.is_status_written, view.guests) = (true, None);
                self.index().note_recorded(&key);
                self.publish(view, &state);
            }
            Step::ReadGuests(names) => {
                let api: Api<Object> = Api::namespaced_with(self.provider.client.clone(), &key.namespace, &instances());
                view.guests = Some(read_guests(&api, names).await?);
            }
            Step::Adopt(record, network) => {
                if self.is_leased(&record, &network).await? {
                    return Err(Error::Behind);
                }
                let adoption = registry.adopt(vec![record.clone()], HolderKind::IpamClaim).await?;
                // If nothing is adopted, the status reports why. Each pass tries again, so a line here would be repeated.
                if adoption.adopted > 0 {
                    log_adoption(&[record], &adoption);
                }
                let mismatch = adoption.mismatches.first().map(ToString::to_string);
                let mismatch = mismatch.unwrap_or_else(|| format!("IPAMClaim {key} fits no pool"));
                view.problem = Some(Problem::Mismatch(mismatch));
                self.index().note_recorded(&key);
                self.read_registry(view).await?;
            }
            Step::Claim(claim) => {
                self.adopt().await?;
                let answer = registry.claim(claim, HolderKind::IpamClaim).await?;
                view.problem = answer.err().map(Problem::Refused);
                self.read_registry(view).await?;
            }
            Step::Keep(claimant, addresses) => {
                log_keep(&key, &registry.keep(claimant, addresses).await?);
                self.read_registry(view).await?;
            }
            Step::Withdraw => {
                let uid = view.claim.as_ref().map(IpamClaim::uid).unwrap_or_default();
                registry.withdraw(key.holder(uid)).await?;
                view.ledger.waits = false;
            }
            Step::Release(holder) => {
                let uid = holder.uid.clone();
                let addresses = registry.release(holder, HolderKind::IpamClaim).await?.unwrap_or_default();
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

    /// Makes the registry adopt the addresses of claims that may be missing from the registry.
    async fn adopt(&self) -> Result<(), Error> {
        let unrecorded = self.index().unrecorded();
        if unrecorded.is_empty() {
            return Ok(());
        }
        let registry = &self.provider.registry;
        let adoptees = registry.read(move |allocator| {
            let adoptee = |(claim, pool): (IpamClaim, PoolId)| {
                // The registry cannot attribute the addresses to a pool that it does not have yet.
                let (interface, network) =
                    allocator.pool(&pool.to_string()).map(|pool| (pool.interface(), pool.network().to_owned()))?;
                let key = claim.key();
                // A pass reports an address that cannot be read.
                let addresses = claim.addresses().unwrap_or_default();
                let record = record(&claim, addresses, &pool, interface);
                let holder = &record.claimant.machine;
                let is_held = |address: &ipnetwork::IpNetwork| {
                    allocator.leases_of(holder).any(|(_, held, _)| held == address.ip())
                };
                let is_known = record.addresses.iter().all(is_held);
                Some((key, (!is_known).then_some((record, network))))
            };
            unrecorded.into_iter().filter_map(adoptee).collect::<Vec<_>>()
        });
        let (recorded, records): (Vec<Key>, Vec<_>) = adoptees.await?.into_iter().unzip();
        let records = stream::iter(records.into_iter().flatten()).map(|(record, network)| async move {
            let is_leased = self.is_leased(&record, &network).await?;
            Ok((!is_leased).then_some(record))
        });
        let records: Vec<Result<Option<Record>, Error>> = records.buffered(PASSES).collect().await;
        let records: Vec<Record> = records.into_iter().filter_map(Result::transpose).collect::<Result<_, _>>()?;
        if !records.is_empty() {
            let adoption = registry.adopt(records.clone(), HolderKind::IpamClaim).await?;
            log_adoption(&records, &adoption);
        }
        let mut index = self.index();
        recorded.iter().for_each(|key| index.note_recorded(key));
        Ok(())
    }

    /// Whether the API server has a lease of an address of the record, which the registry has not received yet.
    async fn is_leased(&self, record: &Record, network: &str) -> Result<bool, Error> {
        for address in &record.addresses {
            let uid = &record.claimant.machine.uid;
            if adoption::is_leased(&self.provider.client, address.ip(), network, uid).await? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn take_claim(&self, view: &mut View, object: Object) {
        let (is_gone, version) = (is_gone(&object), version_of(&object.metadata));
        let claim = IpamClaim::read(object.clone());
        if is_gone {
            let mut index = self.index();
            index.end(&view.key, version);
            if view.is_released {
                index.forget(&view.key, claim.uid());
            }
            view.former = index.view(&view.key).former;
        } else {
            self.index().apply(Kind::Claim, object);
        }
        view.claim = Some(claim).filter(|_| !is_gone);
    }

    /// Logs the state that was written into the status, and publishes an event about a problem.
    fn publish(&self, view: &View, state: &IpsAllocated) {
        let pool = match &view.pool {
            Serving::Pool(pool, _) => Some(display(pool)),
            Serving::None | Serving::Several(..) => None,
        };
        match state {
            IpsAllocated::Done(addresses) => {
                let addresses = list(addresses);
                tracing::info!(claim = %view.key, pool, addresses, "allocated the addresses of a claim");
                let created = view.claim.as_ref().map(IpamClaim::created).unwrap_or_default();
                // The clock of the API server may be ahead.
                let waited = Timestamp::now().duration_since(created).max(SignedDuration::ZERO);
                self.provider.metrics.allocation_seconds.observe(waited.as_secs_f64());
            }
            IpsAllocated::Failed(reason, message) => {
                tracing::warn!(claim = %view.key, pool, ?reason, "{message}");
                let reason = match reason {
                    Failure::SubnetExhausted => "IPPoolExhausted",
                    Failure::AddressConflict => "IPAddressConflict",
                    Failure::PoolNotReady | Failure::AllocationFailed => return,
                };
                self.publish_event(view, EventType::Warning, reason, message);
            }
            IpsAllocated::Released => {}
        }
    }

    fn publish_event(&self, view: &View, type_: EventType, reason: &str, note: &str) {
        let Some(claim) = &view.claim else { return };
        let object = Object { types: None, metadata: claim.metadata.clone(), data: Value::Null };
        self.provider.events.publish(object.object_ref(&self.kinds.claims), type_, reason, note);
    }

    fn claims(&self, key: &Key) -> Api<Object> {
        Api::namespaced_with(self.provider.client.clone(), &key.namespace, &self.kinds.claims)
    }

    fn index(&self) -> MutexGuard<'_, Index> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reads the instances with these names. A user can name any number of virtual machines as owners of a claim, so many names
/// are looked up in a list of the namespace.
async fn read_guests(instances: &Api<Object>, names: BTreeSet<String>) -> Result<Vec<Guest>, Error> {
    let mut guests = Vec::new();
    if names.len() <= MOST_GUESTS {
        for name in names {
            let guest = ask(instances.get_opt(&name)).await?;
            guests.extend(guest.map(|guest| guest_of(name, guest.metadata)));
        }
        return Ok(guests);
    }
    let mut params = ListParams::default().limit(PAGE);
    loop {
        let page = ask(instances.list(&params)).await?;
        let named = page.items.into_iter().filter_map(|guest| Some((guest.metadata.name.clone()?, guest.metadata)));
        guests.extend(named.filter(|(name, _)| names.contains(name)).map(|(name, metadata)| guest_of(name, metadata)));
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => return Ok(guests),
        }
    }
}

fn guest_of(name: String, instance: ObjectMeta) -> Guest {
    let owners = instance.owner_references.unwrap_or_default().into_iter().map(|owner| owner.uid);
    Guest { name, uids: owners.chain(instance.uid).collect() }
}
