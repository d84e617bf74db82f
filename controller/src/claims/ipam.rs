//! Serves IPAMClaims: allocates their addresses from pools with `serveIPAMClaims`, and writes the addresses into
//! `status.ips`. The passes, the start and the release follow the same rules as for IPAddressClaims. The status of the
//! claim replaces the IPAddress.
//!
//! A claim names its network by the name in the configuration of a network attachment definition. Therefore the network
//! attachment definitions are watched, too.

pub(crate) mod decision;
pub(crate) mod known_ipam_claims;

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::BoxStream;
use glowplug::host::claim::{Machine, Reservation};
use k8s_openapi::jiff::Timestamp;
use kube::api::{ApiResource, ListParams, Patch, PatchParams};
use kube::runtime::events::EventType;
use kube::{Api, Client};
use tokio::sync::{mpsc, watch};

use crate::claims::ipam::decision::{Guest, Recorded, Serving, Step, View, decide, records_of, reservations};
use crate::claims::ipam::known_ipam_claims::{IpamKind, KnownIpamClaims};
use crate::claims::requests::{Provider, is_gone, json_patch};
use crate::cluster::client::{if_served, serves};
use crate::cluster::key::{Key, PoolId};
use crate::cluster::object::{Object, version_of};
use crate::cluster::request::{self, ask, find, list, one_line, stored};
use crate::cluster::watch::{Change, changes};
use crate::kinds::ipam_claim::{Failure, IpamClaim, IpsAllocated, ipam_claims, network_attachments};
use crate::kinds::kubevirt_machine::has_left;
use crate::kinds::pool::HolderKind;
use crate::kinds::virtual_machine::instances;
use crate::ledger::types::{Holders, Stopped};
use crate::passes::provider;
use crate::passes::{Ended, Error, LONGEST_PASS, Problem, Until};
use crate::pools::facts::Facts;
use crate::pools::selection::OpenPools;

/// Maximum number of instances that are read one by one. More instances are read in lists.
const MOST_GUESTS: usize = 16;
/// Maximum number of objects in the response to one list request.
const PAGE: u32 = 500;
const HOLDER: HolderKind = HolderKind::IpamClaim;

/// The work of the provider while the API server serves IPAMClaims.
struct Work<'p> {
    provider: &'p Provider,
    kinds: Kinds,
    index: Mutex<KnownIpamClaims>,
    /// Sends the names that need a pass because the pass of another name has adopted their addresses.
    others: mpsc::UnboundedSender<Key>,
}

/// The kinds of this part that the API server serves.
#[derive(Clone, Debug, PartialEq)]
struct Kinds {
    claims: ApiResource,
    /// The kind NetworkAttachmentDefinition. `None`: the API server does not serve this kind.
    attachments: Option<ApiResource>,
}

// === impl Provider ===

impl Provider {
    /// Serves IPAMClaims until the future is dropped, in the same way as [`Provider::run`] serves IPAddressClaims.
    pub async fn run_ipam_claims(
        &self,
        pools: watch::Receiver<Option<OpenPools>>,
        served: Holders,
        is_ready: impl Fn(),
    ) -> Result<Infallible, Stopped> {
        let discover = || Kinds::discover(&self.client);
        let work = |kinds, others| {
            tracing::info!("serving IPAMClaims of pools with serveIPAMClaims");
            Work { provider: self, kinds, index: Mutex::default(), others }
        };
        let part = self.part("IPAMClaims", "kinds of IPAMClaims", "an IPAMClaim");
        provider::run(part, pools, served, discover, work, is_ready).await
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

impl provider::Work for Work<'_> {
    type Kind = IpamKind;

    /// Watches network attachment definitions of every namespace, because a pool names the namespace of its network.
    fn watches(&self) -> Vec<BoxStream<'static, (IpamKind, Change)>> {
        let claims = self.provider.in_scope(&self.kinds.claims);
        let attachments = self.kinds.attachments.as_ref().map(|kind| Api::all_with(self.provider.client.clone(), kind));
        let watches = [(IpamKind::Claim, Some(claims)), (IpamKind::Attachment, attachments)].into_iter();
        watches.filter_map(|(kind, api)| Some(changes(api?).map(move |change| (kind, change)).boxed())).collect()
    }

    fn note_change(&self, kind: IpamKind, change: Change) -> BTreeSet<Key> {
        let mut index = self.index();
        let mut names = index.note(kind, change);
        names.retain(|key| index.concerns(key));
        names
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

    async fn adopt(&self, pools: &OpenPools) -> Result<(), Error> {
        self.index().forget_recorded();
        self.adopt_all(Some(&pools.facts)).await
    }

    async fn adopt_changes(&self, pools: &OpenPools) -> Result<(), Error> {
        // A claim that got its address meanwhile is recorded only in the earlier pool. New pools may serve it, too.
        self.adopt(pools).await
    }

    fn claimants(&self, holders: &BTreeSet<Machine>) -> Vec<Key> {
        // If the claim of a holder no longer exists, the addresses of the holder must be released.
        holders.iter().filter(|holder| holder.kind == HOLDER).for_each(|holder| drop(self.note_holder(holder)));
        self.concerned()
    }

    fn names(&self, _: &BTreeSet<Machine>, _: &BTreeSet<Machine>) -> Vec<(Key, Duration)> {
        self.concerned().into_iter().map(|key| (key, Duration::ZERO)).collect()
    }

    /// Makes the requests that the claim of a name needs.
    async fn pass(&self, key: Key, until: Until) -> Result<Ended, Error> {
        let mut view = self.look(&key, false).await?;
        for _ in 0..LONGEST_PASS {
            match decide(&view, Timestamp::now()) {
                Step::Wait if view.waits_for_guest() => return Ok(Ended::Later),
                Step::Wait if view.waits_for_address() || view.is_waiting() => {
                    let is_queued = view.ledger.waits && !view.waits_for_address();
                    return Ok(Ended::waiting(is_queued, view.problem.as_ref(), self.provider.registry.now()));
                }
                // The API server may have refused to release a lease whose address is not in the status.
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
    /// The names that may need a pass. Names of older claims come first.
    fn concerned(&self) -> Vec<Key> {
        let index = self.index();
        index.by_age().into_iter().filter(|key| index.concerns(key)).collect()
    }

    /// Collects the state of a name. Reads the claim from the API server if `is_outdated` is `true`, or if the next
    /// step could release an address: a release requires certainty that the claim does not exist.
    async fn look(&self, key: &Key, is_outdated: bool) -> Result<View, Error> {
        let mut view = self.index().view(key);
        if view.is_empty() {
            return Ok(view);
        }
        let may_release = view.claim.as_ref().is_none_or(IpamClaim::is_deleted) || !view.former.is_empty();
        if is_outdated || may_release {
            // If the claim now has another UID than a candidate, the candidate no longer exists. A claim that becomes
            // an earlier claim only after this line is not a candidate for a release.
            let mut candidates: BTreeSet<String> = view.former.keys().cloned().collect();
            candidates.extend(view.claim.as_ref().map(|claim| claim.uid().to_owned()));
            let known = || self.index().version(key);
            let take = |known, object| self.index().take(key, known, object);
            self.provider.read(&self.kinds.claims, key, known, take).await?;
            view = self.index().view(key);
            view.former.retain(|uid, _| candidates.contains(uid));
        }
        self.read_registry(&mut view).await?;
        Ok(view)
    }

    async fn read_registry(&self, view: &mut View) -> Result<(), Error> {
        let key = view.key.clone();
        let uid = view.claim.as_ref().map(|claim| claim.uid().to_owned()).unwrap_or_default();
        let addresses = view.claim.as_ref().and_then(|claim| claim.addresses().ok());
        let serving = view.pool.clone();
        let read = move |allocator: &_| Recorded::read(allocator, &key, (&uid, addresses.as_deref()), &serving);
        view.ledger = self.provider.registry.read(read).await?;
        Ok(())
    }

    /// Makes a request and applies its result. Returns `false` if an object has changed and must be read again.
    async fn apply(&self, step: Step, view: &mut View) -> Result<bool, Error> {
        let registry = &self.provider.registry;
        let (key, merge) = (view.key.clone(), PatchParams::default());
        let claims = self.provider.api(&self.kinds.claims, &key);
        match step {
            Step::Wait => {}
            Step::PatchClaim(patch) => {
                let answer = ask(claims.patch(&key.name, &merge, &Patch::Merge(patch))).await;
                let Some(object) = stored(answer)? else { return Ok(false) };
                self.take_claim(view, object);
            }
            Step::PatchStatus(patch, state) => {
                let answer = ask(claims.patch_status(&key.name, &merge, &json_patch(patch)?)).await;
                let Some(object) = stored(answer)? else { return Ok(false) };
                self.take_claim(view, object);
                (view.is_status_written, view.guests) = (true, None);
                if let (IpsAllocated::Done(_), Some(claim)) = (&state, &view.claim) {
                    self.note_recorded(view, claim);
                }
                self.publish(view, &state);
            }
            Step::ReadGuests(names) => {
                view.guests = Some(read_guests(&self.provider.client, &key.namespace, names.clone()).await?);
                let has_left = |name: &String| {
                    let vm = Key { namespace: key.namespace.clone(), name: name.clone() };
                    !registry.left_guests().of(&vm).is_empty()
                };
                view.left = names.into_iter().filter(has_left).collect();
            }
            Step::Adopt(record, network) => {
                if matches!(view.pool, Serving::Several(..)) && !view.has_adopted {
                    // The pools may be of several networks. A network that still lacks an address gets a request of its
                    // own, which finds the reason.
                    self.adopt_all(None).await?;
                    view.has_adopted = true;
                } else {
                    view.problem = Some(self.provider.adopt(record, &network).await?);
                    view.claim.iter().for_each(|claim| self.note_recorded(view, claim));
                }
                self.read_registry(view).await?;
            }
            Step::Claim(claim) => {
                self.adopt_all(None).await?;
                let answer = registry.claim(claim).await?;
                view.problem = answer.err().map(Problem::Refused);
                self.read_registry(view).await?;
            }
            Step::Keep(claimant, addresses) => {
                self.provider.keep(&key, claimant, addresses).await?;
                view.has_kept = true;
                self.read_registry(view).await?;
            }
            Step::Withdraw => {
                let uid = view.claim.as_ref().map(IpamClaim::uid).unwrap_or_default();
                registry.withdraw(key.holder(HOLDER, uid)).await?;
                view.ledger.waits = false;
            }
            Step::EndRecords(holder, addresses) => {
                registry.release_addresses(holder, addresses).await?;
                self.read_registry(view).await?;
            }
            Step::RecordMigration(holder) => {
                let uid = holder.uid.clone();
                // The pass of the machine reports the addresses that are not held.
                registry.note_migrated(holder).await?;
                view.migrated.insert(uid);
            }
            Step::Release(holder) => {
                let uid = holder.uid.clone();
                let addresses = self.provider.release(holder).await?;
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

    /// Reserves the addresses in the status of claims of unknown networks, in each pool to which a claim may belong.
    async fn reserve_doubted(&self, pools: Option<&Facts>) -> Result<(), Error> {
        let doubted = self.index().doubted(pools);
        if doubted.is_empty() {
            return Ok(());
        }
        let read = self.provider.registry.read(move |allocator| {
            let of = |(claim, pools): &(IpamClaim, Vec<PoolId>)| {
                let pools = pools.iter().filter_map(|pool| allocator.pool(&pool.to_string()));
                pools.flat_map(|pool| reservations(allocator, claim, pool)).collect::<Vec<_>>()
            };
            let reservations: Vec<Reservation> = doubted.iter().flat_map(of).collect();
            (doubted.into_iter().map(|(claim, _)| claim).collect::<Vec<IpamClaim>>(), reservations)
        });
        let (doubted, reservations) = read.await?;
        if !reservations.is_empty() {
            let addresses = reservations.len();
            tracing::warn!(
                addresses,
                "reserved the addresses of IPAMClaims whose network attachment definition is unknown"
            );
            for beyond in self.provider.registry.add_conflicts(reservations).await? {
                tracing::warn!(%beyond, "a record of a claim does not fit");
            }
        }
        let mut index = self.index();
        doubted.iter().for_each(|claim| index.note_doubted(claim));
        Ok(())
    }

    /// Makes the registry adopt the addresses in the status of claims, if the registry may lack these addresses. The
    /// pools of each claim are among `pools`. If `pools` is `None`, the pools in the index are used.
    async fn adopt_all(&self, pools: Option<&Facts>) -> Result<(), Error> {
        self.reserve_doubted(pools).await?;
        let unrecorded = self.index().unrecorded(pools);
        if unrecorded.is_empty() {
            return Ok(());
        }
        let adoptees = self.provider.registry.read(move |allocator| {
            // If an address cannot be read, the pass of the claim reports the error.
            let adoptee = |(claim, pools): (IpamClaim, Vec<PoolId>)| {
                let records = records_of(allocator, &claim, &pools)?;
                Some((claim, records))
            };
            unrecorded.into_iter().filter_map(adoptee).collect::<Vec<_>>()
        });
        let (recorded, records): (Vec<IpamClaim>, Vec<_>) = adoptees.await?.into_iter().unzip();
        let holders = self.provider.adopt_all(records.into_iter().flatten()).await?;
        // A claim may have ended during the adoption. No watch would then cause the pass that releases its address.
        for holder in &holders {
            // Sending fails only after the passes have ended.
            provider::Work::note_holder(self, holder).into_iter().for_each(|key| drop(self.others.send(key)));
        }
        let mut index = self.index();
        recorded.iter().for_each(|claim| index.note_recorded(claim));
        Ok(())
    }

    /// Notes that the registry has the addresses of a claim. The pools of a claim with several pools may be of several
    /// networks, and only [`Self::adopt_all`] records the addresses on all of them.
    fn note_recorded(&self, view: &View, claim: &IpamClaim) {
        if !matches!(view.pool, Serving::Several(..)) {
            self.index().note_recorded(claim);
        }
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
            self.index().store(object);
        }
        view.claim = Some(claim).filter(|_| !is_gone);
    }

    /// Logs the state that was written into the status, and publishes an event about a problem.
    fn publish(&self, view: &View, state: &IpsAllocated) {
        let pool = match &view.pool {
            Serving::Pool(pool, _) => Some(pool),
            Serving::None | Serving::Several(..) => None,
        };
        match state {
            IpsAllocated::Done(addresses) => {
                let created = view.claim.as_ref().map(IpamClaim::created).unwrap_or_default();
                self.provider.note_allocation(&view.key, pool, created, addresses.iter().copied());
            }
            IpsAllocated::Failed(reason, message) => {
                tracing::warn!(claim = %view.key, pool = pool.map(display), ?reason, "{}", one_line(message));
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
        if let Some(claim) = &view.claim {
            self.provider.publish(&self.kinds.claims, &claim.metadata, type_, reason, note);
        }
    }

    fn index(&self) -> MutexGuard<'_, KnownIpamClaims> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reads the instances with these names in a namespace. Without KubeVirt, there are no instances. A claim can name any
/// number of virtual machines as owners. So if there are many names, the instances come from a list of the namespace.
async fn read_guests(client: &Client, namespace: &str, names: BTreeSet<String>) -> Result<Vec<Guest>, Error> {
    let (kind, mut guests) = (instances(), Vec::new());
    let instances: Api<Object> = Api::namespaced_with(client.clone(), namespace, &kind);
    if names.len() <= MOST_GUESTS {
        for name in names {
            let guest = ask(async { if_served(client, &kind, find(&instances, &name).await).await }).await?;
            guests.extend(guest.flatten().map(|guest| guest_of(name, guest)));
        }
        return Ok(guests);
    }
    let mut params = ListParams::default().limit(PAGE);
    loop {
        let page = ask(async { if_served(client, &kind, instances.list(&params).await).await }).await?;
        let Some(page) = page else { return Ok(guests) };
        let named = page.items.into_iter().filter_map(|guest| Some((guest.metadata.name.clone()?, guest)));
        guests.extend(named.filter(|(name, _)| names.contains(name)).map(|(name, guest)| guest_of(name, guest)));
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => return Ok(guests),
        }
    }
}

fn guest_of(name: String, instance: Object) -> Guest {
    let has_left = has_left(&instance);
    let owners = instance.metadata.owner_references.unwrap_or_default().into_iter().map(|owner| owner.uid);
    Guest { name, uids: owners.chain(instance.metadata.uid).collect(), has_left }
}
