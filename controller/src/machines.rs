//! Serves the machines of KubeVirt: creates a Secret with network data for each VirtualMachine that a pool selects.
//!
//! Watches fill an index of objects. When a machine may need a change, its name gets a pass. A pass decides the next
//! request, sends the request, and decides again. The module stays correct while two leaders run at the same time: the
//! API server rejects a second lease or Secret of the same name, and a write to an outdated version of an object.
//!
//! At the start, the registry first adopts all addresses that objects record and guests report. Only then does the
//! registry allocate addresses: it processes the outstanding claims together with those of Cluster API, in the order of
//! their creation.

mod authority;
mod decision;
#[cfg(test)]
mod hostile;
mod index;
mod sources;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::{Stream, StreamExt as _, stream};
use glowplug::host::allocator::Adoption;
use glowplug::host::claim::{Claimant, Machine, Record, is_object_name};
use glowplug::host::pool::Pool;
use glowplug::host::records::{Inventory, Objects};
use ipnetwork::IpNetwork;
use k8s_openapi::api::core::v1::{ObjectReference, Secret};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::Timestamp;
use kube::api::{ApiResource, DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::runtime::events::EventType;
use kube::runtime::watcher;
use kube::{Api, Client};
use serde_json::Value;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, timeout};
use tracing::field::display;

use crate::cluster::client::serves;
use crate::cluster::events::Events;
use crate::cluster::key::Key;
use crate::cluster::object::{Object, version_of};
use crate::cluster::request::{self, DISCOVERY, PATIENCE, ask, discover, list, stored, until_other};
use crate::cluster::watch::{Change, changes_of};
use crate::kinds::cluster_api::{self, IpAddress, Version};
use crate::kinds::ipam_claim::{claim_name, ipam_claims};
use crate::kinds::kubevirt_machine::{
    self, Handed, Instance, KubevirtMachine, NetworkSecret, STATUS_MAP, addresses_of, read_records,
};
use crate::kinds::pool::HolderKind;
use crate::kinds::virtual_machine::{VirtualMachine, instances, kubevirt_machines, virtual_machines};
use crate::ledger::adoption;
use crate::ledger::registry::RegistryHandle;
use crate::ledger::types::{Holders, Reservation, Stopped};
use crate::machines::authority::Authority;
use crate::machines::decision::{
    Guest, Held, Hold, Notice, PoolSettings, Proof, Recorded, Step, Verdict, View, Written, addresses_of_ipam_claims,
    decide, refers,
};
use crate::machines::index::{Index, Kind};
use crate::machines::sources::{CLAIM_LABEL, MachineClaim, Source};
use crate::macs::Observer;
use crate::metrics::Metrics;
use crate::passes::opening::Opening;
use crate::passes::{self, ADDRESS_PAUSE, Ended, Error, LONGEST_PASS, Names, Problem, Until};
use crate::pools::facts::{Facts, Scope};
use crate::pools::reference::{self, Decision};
use crate::pools::selection::{Selected, Selection};
use crate::pools::selection_cache::SelectionCache;

/// Pause between the first passes of two machines whose objects are only compared after the start.
const COMPARISON: Duration = Duration::from_millis(2);
/// Time after which an API server no longer stores an object whose creation got no answer. Its own timeout is 60 seconds.
const LATEST_WRITE: Duration = Duration::from_secs(90);
/// Pause between two looks for a Secret that may be stored late.
const PAUSE: Duration = Duration::from_secs(5);
/// Name of this part of the leader in [`Opening::claim`].
const PART: &str = "machines";
/// The kinds of this part, for log messages.
const KINDS: &str = "kinds of KubeVirt";

/// The part of a leader that serves the machines of KubeVirt.
#[derive(Clone)]
pub struct Machines {
    client: Client,
    registry: RegistryHandle,
    opening: Opening,
    selection: Arc<SelectionCache>,
    events: Events,
    metrics: Arc<Metrics>,
    scope: Scope,
    macs: Observer,
}

/// The optional kinds that the API server serves.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Kinds {
    has_kubevirt_machines: bool,
    /// Version of IPAddressClaims and IPAddresses. `None`: the API server does not serve them.
    claims: Option<Version>,
    has_ipam_claims: bool,
}

/// A Secret that this leader creates for a VirtualMachine.
struct NewSecret {
    vms: Api<Object>,
    secrets: Api<Object>,
    vm: Key,
    /// UID of the VirtualMachine.
    uid: String,
}

/// Serves machines as long as the API server serves the same `kinds`.
struct Work<'m> {
    machines: &'m Machines,
    kinds: Kinds,
    index: Mutex<Index>,
    /// Whether KubevirtMachines may have a status map. `false` after the API server has dropped the map from a write.
    has_status_map: AtomicBool,
    /// Names that need a pass because the pass of another name has changed the index.
    others: mpsc::UnboundedSender<Key>,
}

// === impl Machines ===

impl Machines {
    /// Creates the part that serves the machines of the pools in `selection`. `opening` must count this part. `macs`
    /// receives every VirtualMachine and every instance.
    #[must_use]
    pub fn new(
        client: Client,
        registry: RegistryHandle,
        opening: Opening,
        selection: Arc<SelectionCache>,
        metrics: Arc<Metrics>,
        scope: Scope,
        macs: Observer,
    ) -> Self {
        let events = Events::start(client.clone());
        Self { client, registry, opening, selection, events, metrics, scope, macs }
    }

    /// Serves machines until the future is dropped. Calls `is_ready` after the claims of the machines that existed at
    /// the start are processed.
    ///
    /// `pools` has the pools after the registry has them, and `served` receives the machines with new addresses.
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
        let question = || Kinds::discover(&self.client);
        loop {
            let found = discover(KINDS, &question).await;
            let Some(kinds) = found else {
                self.opening.claim(PART, Vec::new()).await?;
                is_ready();
                sleep(DISCOVERY).await;
                continue;
            };
            tracing::info!(has_kubevirt_machines = kinds.has_kubevirt_machines, "serving the machines of KubeVirt");
            let (others, mut of_others) = mpsc::unbounded_channel();
            let (index, has_status_map) = (Mutex::default(), AtomicBool::new(true));
            let work = Work { machines: self, kinds, index, has_status_map, others };
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
        let mut selections = self.machines.selection.subscribe();
        let selection = selections.wait_for(Option::is_some).await.map_err(|_| Stopped)?.clone().unwrap_or_default();
        self.index().set_selection(selection);
        self.machines.macs.restart();
        let mut changes = Box::pin(self.changes());
        let mut lists = self.kinds.all().count();
        let mut records = Objects::default();
        while lists > 0 {
            let Some((kind, change)) = changes.next().await else { return Err(Stopped) };
            lists -= usize::from(matches!(change, Change::Listed));
            if let Change::Apply(object) = &change
                && kind.has_records()
            {
                read_records(&mut records, &kind.resource().kind, object);
            }
            self.note_change(kind, change);
        }
        self.machines.macs.listed();
        // The registry cannot attribute a record to a pool that it does not have yet.
        pools.wait_for(Option::is_some).await.map_err(|_| Stopped)?;
        self.rebuild(records).await?;
        passes::start("machine", || self.start()).await?;
        is_ready();
        self.serve(changes, selections, messages).await
    }

    /// Lets the registry adopt the addresses that machine objects record, and reserve the addresses that guests report.
    async fn rebuild(&self, mut records: Objects) -> Result<(), Stopped> {
        let kinds: HashMap<String, HolderKind> =
            self.index().machine_uids().map(|uid| (uid, HolderKind::KubevirtMachine)).collect();
        let registry = &self.machines.registry;
        // When its other objects are gone, only the lease of a machine names its VirtualMachine.
        for (holder, namespace) in registry.vm_namespaces().await? {
            let vm = Key { namespace, name: holder.name.clone() };
            self.index().confirm(&holder, &vm);
        }
        let leased = registry.read(|allocator| {
            let leases = allocator.leases().map(|(_, address, lease)| (Claimant::clone(&lease.claimant), address));
            leases.collect::<BTreeSet<(Claimant, IpAddr)>>()
        });
        let leased = leased.await?;
        records.confirm_machines(|vm, machine| self.index().may_belong(&vm.into(), &machine.into()));
        let mut inventory = records.inventory();
        let (conflicts, known_records) = self.limit(&mut inventory, &leased);
        let homes: Vec<(Machine, String)> = {
            let mut index = self.index();
            let records = inventory.records.iter().map(|record| &record.claimant.machine);
            let reports = inventory.reports.iter().map(|report| &report.machine);
            let conflicts = conflicts.iter().map(|(_, _, conflict)| &conflict.claimant.machine);
            let elsewhere = index.vms_elsewhere(records.chain(reports).chain(conflicts));
            for (machine, vm) in &elsewhere {
                index.confirm(machine, vm);
            }
            let elsewhere = elsewhere.into_iter().map(|(machine, vm)| (machine, vm.namespace));
            index.machines_elsewhere().into_iter().chain(elsewhere).collect()
        };
        for (machine, namespace) in homes {
            registry.note_vm_namespace(machine, namespace).await?;
        }
        let known = registry.read_with_kinds(addresses_of_ipam_claims).await?;
        // A guest may have any address on interfaces of its own. Only the networks of the machine count.
        inventory.reports.retain(|report| {
            let is_known =
                |network: &String| known.contains(&(network.clone(), report.address, Key::of_machine(&report.machine)));
            report.network.as_ref().is_some_and(|network| !is_known(network))
        });
        let (of_machines, of_vms): (Vec<_>, Vec<_>) =
            conflicts.into_iter().partition(|(_, _, conflict)| kinds.contains_key(&conflict.claimant.machine.uid));
        registry.add_conflicts(of_machines, HolderKind::KubevirtMachine).await?;
        registry.add_conflicts(of_vms, HolderKind::VirtualMachine).await?;
        // After the loss of leases, each machine has a line with its addresses.
        let unknown = inventory.records.clone();
        let rebuilt = registry.rebuild(inventory, kinds).await?;
        let (adopted, known) = (rebuilt.adoption.adopted, rebuilt.adoption.known + known_records);
        let without_record = rebuilt.without_record.len();
        tracing::info!(adopted, known, without_record, "adopted the addresses of machines");
        self.log_adoption(&unknown, &rebuilt.adoption);
        Ok(())
    }

    /// Logs what the registry adopted: a line for each machine, and a line for each address that does not fit.
    fn log_adoption(&self, records: &[Record], adoption: &Adoption) {
        for (holder, addresses) in adoption::adopted(records, adoption) {
            let (machine, addresses) = (self.vm_of(&holder), list(addresses));
            tracing::info!(%machine, uid = holder.uid, addresses, "adopted the recorded addresses of a machine");
        }
        for mismatch in &adoption.mismatches {
            let machine = self.vm_of(&mismatch.claimant.machine);
            tracing::warn!(%machine, %mismatch, "a record of a machine does not fit");
        }
    }

    /// The name of the VirtualMachine of a holder. Every line about a machine in the log has this name.
    fn vm_of(&self, holder: &Machine) -> Key {
        self.index().vm_of(holder)
    }

    /// Reduces an inventory to the addresses that the registry must adopt. Removes
    ///
    /// - addresses that no pool of the machine's namespace has,
    /// - addresses in `leased`, because the registry already has their leases, and
    /// - records that cannot be read.
    ///
    /// Returns the addresses of the unreadable records, which must not be allocated, and the number of addresses that
    /// already have a lease.
    fn limit(&self, inventory: &mut Inventory, leased: &BTreeSet<(Claimant, IpAddr)>) -> (Vec<Reservation>, usize) {
        let index = self.index();
        let mut authority = Authority::new(index.selection());
        let mut known = 0;
        for mut record in std::mem::take(&mut inventory.records) {
            let (claimant, all) = (record.claimant.clone(), record.addresses.len());
            let machine = claimant.machine.clone();
            record.addresses.retain(|address| !leased.contains(&(claimant.clone(), address.ip())));
            known += all - record.addresses.len();
            let (record, ignored) = authority.limit(&index.namespaces_of(&machine), record);
            if !ignored.is_empty() {
                let (machine, source) = (index.vm_of(&machine), &record.source);
                tracing::warn!(%machine, source, ignored = list(&ignored), "ignored addresses that no pool of the namespace has");
            }
            if !record.addresses.is_empty() {
                inventory.records.push(record);
            }
        }
        let mut conflicts = Vec::new();
        for diagnostic in std::mem::take(&mut inventory.diagnostics) {
            let machine = diagnostic.claimant.as_ref().map(|claimant| display(index.vm_of(&claimant.machine)));
            tracing::warn!(
                machine,
                %diagnostic,
                "a record of a machine cannot be used; its addresses are not allocated"
            );
            // The controller never writes a record of an unknown interface.
            let Some(claimant) = &diagnostic.claimant else { continue };
            conflicts.extend(authority.conflicts(&index.namespaces_of(&claimant.machine), &diagnostic));
        }
        (conflicts, known)
    }

    /// Adopts the addresses in the Secrets of machines whose leases are lost, then submits the outstanding claims. All
    /// other work is done later, because it needs requests for each machine.
    async fn start(&self) -> Result<(), Error> {
        let holders = self.machines.registry.holders().await?;
        let mut names = self.index().by_age();
        names.retain(|key| {
            let index = self.index();
            let is_selected = !matches!(index.selected(key), Ok(selected) if selected.is_empty());
            let may_have_secret = index.vm(key).is_some_and(refers);
            // Not every machine that names this VirtualMachine is its machine.
            let label = index.vm(key).and_then(VirtualMachine::kubevirt_machine);
            let is_held = [Some(key), label.as_ref()].into_iter().flatten().any(|relative| {
                let of_name = relative.holder("")..;
                holders.range(of_name).next().is_some_and(|(holder, _)| Key::of_machine(holder) == *relative)
            });
            (is_selected || may_have_secret) && !is_held
        });
        let claims = passes::claims("machine", names, |key| self.pass(key, Until::Claim)).await?;
        for (key, claim, kind) in &claims {
            self.note_claimant(key, &claim.machine, *kind).await?;
        }
        let claims = claims.into_iter().map(|(_, claim, kind)| (claim, kind)).collect();
        self.machines.opening.claim(PART, claims).await?;
        Ok(())
    }

    async fn serve(
        &self,
        changes: impl Stream<Item = (Kind, Change)> + Unpin,
        mut selections: watch::Receiver<Option<Arc<Selection>>>,
        (served, of_others): (&mut Holders, &mut mpsc::UnboundedReceiver<Key>),
    ) -> Result<Infallible, Stopped> {
        let changes = changes.map(|(kind, change)| -> Names { Some(self.note_change(kind, change)) });
        let selections = passes::each_value(&mut selections, |selection| {
            selection.map(|selection| self.index().set_selection(selection)).unwrap_or_default()
        });
        let served = passes::each_message(served, |holder| self.index().homes_of(&Key::of_machine(&holder)));
        let of_others = passes::each_message(of_others, |key| [key].into());
        let messages = stream::select(served, of_others);
        let wakes = stream::select(changes.chain(stream::iter([None])), stream::select(selections, messages));
        let names = self.names_at_the_start().await?;
        Err(passes::serve("machine", names, Box::pin(wakes), |key| self.pass(key, Until::Nothing)).await)
    }

    /// Returns the names that get a pass after the start, each with its pause. A machine that may wait for its Secret
    /// gets its pass at once. Machines whose objects are only compared get their passes one after another, so that a
    /// new machine does not wait for thousands of comparisons.
    async fn names_at_the_start(&self) -> Result<Vec<(Key, Duration)>, Stopped> {
        let holders = self.machines.registry.holders().await?;
        let index = self.index();
        let (done, mut names): (Vec<Key>, Vec<Key>) =
            index.by_age().into_iter().partition(|key| index.is_annotated(key));
        // Machines that no longer exist may still hold addresses.
        let holders = holders.into_iter().filter(|(_, kind)| !kind.is_claim());
        let left: BTreeSet<Key> = holders.flat_map(|(holder, _)| index.homes_of(&Key::of_machine(&holder))).collect();
        let known: BTreeSet<Key> = done.iter().chain(&names).cloned().collect();
        let left: BTreeSet<Key> = left.into_iter().chain(index.vms_with_claims()).collect();
        names.extend(left.into_iter().filter(|key| !known.contains(key)));
        let now = names.into_iter().map(|key| (key, Duration::ZERO));
        let later = done.into_iter().zip(1..).map(|(key, nth)| (key, COMPARISON.saturating_mul(nth)));
        Ok(now.chain(later).collect())
    }

    /// Watches every kind and returns the changes of its objects.
    fn changes(&self) -> impl Stream<Item = (Kind, Change)> + use<> {
        let watches = self.kinds.all().map(|kind| {
            let client = self.machines.client.clone();
            let api = Api::all_with(client, &kind.resource());
            let config = match kind {
                Kind::AddressClaim(_) => watcher::Config::default().labels(CLAIM_LABEL),
                _ => watcher::Config::default(),
            };
            changes_of(api, config).map(move |change| (kind, change)).boxed()
        });
        stream::select_all(watches.collect::<Vec<_>>())
    }

    /// Updates the index. Returns the names that may need a pass.
    fn note_change(&self, kind: Kind, change: Change) -> BTreeSet<Key> {
        match kind {
            Kind::KubevirtMachine | Kind::AddressClaim(_) | Kind::IpamClaim => {}
            Kind::VirtualMachine => self.machines.macs.vm(&change),
            Kind::Instance => self.machines.macs.instance(&change),
        }
        match change {
            Change::Apply(object) => self.index().apply(kind, object),
            Change::Remove(key, version) => self.index().remove(kind, &key, version),
            Change::Listed => BTreeSet::new(),
        }
    }

    /// Runs a pass for the machine of a name: decides and sends requests until nothing is left to do.
    async fn pass(&self, key: Key, until: Until) -> Result<Ended, Error> {
        let mut view = self.look(&key).await?;
        // One more step for the proof of each holder.
        for _ in 0..LONGEST_PASS + view.ledger.known.len() {
            if self.index().selected(&key) != view.selected {
                // A request of this pass found another version of the VirtualMachine. The watch causes no further pass for a
                // version that is known.
                view = self.look(&key).await?;
            }
            match decide(&view) {
                Step::Wait if view.is_early() => {
                    let problem = view.problem.as_ref().map(ToString::to_string);
                    return Err(Error::NotReady(problem.unwrap_or_default()));
                }
                Step::Wait if view.waits_for_address() => return Ok(Ended::Again(ADDRESS_PAUSE)),
                // The webhook of another replica may have rejected the machine once more.
                Step::Wait if view.written.retry || view.is_disputed() || view.is_unsettled => {
                    return Ok(Ended::waiting(false));
                }
                Step::Wait if view.is_waiting() => return Ok(Ended::waiting(!view.ledger.waiting.is_empty())),
                Step::Wait => return Ok(Ended::Well),
                Step::Claim(claim, kind) if until == Until::Claim => return Ok(Ended::BeforeClaim(claim, kind)),
                step => self.apply(step, &mut view).await?,
            }
        }
        Err(Error::Endless)
    }

    /// Collects the known state of a name from the index and the registry.
    async fn look(&self, key: &Key) -> Result<View, Error> {
        let mut view = View {
            key: key.clone(),
            vm: None,
            machine: None,
            instance: None,
            there: BTreeSet::new(),
            has_machines: self.kinds.has_kubevirt_machines,
            has_status_map: true,
            is_machine_read: false,
            selected: Ok(Vec::new()),
            operations: Vec::new(),
            pools: BTreeMap::new(),
            is_exhausted: true,
            secret: None,
            other_addresses: None,
            ledger: Recorded::default(),
            memory: index::Memory::default(),
            granted: None,
            problem: None,
            is_adopted: false,
            proven: BTreeSet::new(),
            gone: BTreeSet::new(),
            is_unsettled: false,
            sources: sources::Sources {
                version: self.kinds.claims,
                has_ipam_claims: self.kinds.has_ipam_claims,
                ..sources::Sources::default()
            },
            written: Written::default(),
        };
        {
            let index = self.index();
            // The pools and their settings belong together. A pass begins again when other pools serve the machine.
            view.selected = index.selected(key);
            view.pools = settings(index.selection(), &view.selected);
        }
        self.look_again(&mut view);
        self.read_registry(&mut view).await?;
        Ok(view)
    }

    /// Updates the view with the objects that watches and responses have reported since.
    fn look_again(&self, view: &mut View) {
        let index = self.index();
        let key = &view.key;
        view.vm = index.vm(key).cloned();
        view.instance = index.instance(key).cloned();
        view.memory = index.memory(key);
        view.sources.claims = index.claims_of(key);
        // Everyone who may create claims can name any machine. When no guest exists, such a claim only ends.
        let has_guest = view.vm.is_some() || view.instance.is_some();
        view.sources.claims.retain(|claim| !has_guest || index.is_confirmed(&claim.claimant.machine, key));
        let attachments = view.vm.iter().flat_map(|vm| &vm.networks);
        let ipam_claims = attachments.filter_map(|attachment| {
            let name = claim_name(&key.name, &attachment.name);
            let claim = index.ipam_claim(&Key { namespace: key.namespace.clone(), name: name.clone() })?;
            Some((name, claim.clone()))
        });
        view.sources.ipam_claims = ipam_claims.collect();
        view.has_status_map = self.has_status_map.load(Ordering::Relaxed);
        let relatives = index.relatives_of(key);
        let label = view.vm.as_ref().and_then(VirtualMachine::kubevirt_machine);
        let machines = || relatives.iter().filter_map(|relative| index.machine(relative));
        let is_home = |machine: &&KubevirtMachine| machine.home == *key;
        let labelled = label.as_ref().and_then(|label| index.machine(label));
        // Users of another namespace can write a KubevirtMachine whose VirtualMachine has this name.
        let own = || index.machine(key).filter(is_home);
        // capk waits for a new attempt only with the machine that was refused.
        let is_refused = |machine: &&KubevirtMachine| is_home(machine) && machine.refused.is_some();
        let other = || machines().find(is_refused).or_else(|| machines().find(is_home));
        view.machine = labelled.or_else(own).or_else(other).cloned();
        view.there = machines().filter_map(|machine| machine.metadata.uid.clone()).collect();
        let selection = index.selection();
        let refused = view.machine.as_ref().and_then(|machine| machine.refused.as_ref());
        view.is_exhausted = refused.is_some_and(|refused| is_exhausted(selection, refused));
        view.operations = view.vm.as_ref().map(|vm| operations(selection, vm, &view.selected)).unwrap_or_default();
    }

    async fn read_registry(&self, view: &mut View) -> Result<(), Error> {
        let key = view.key.clone();
        let (names, confirmed) = {
            let index = self.index();
            (index.relatives_of(&view.key), index.confirmed_machines_of(&view.key))
        };
        let (claimed, instance) = (view.memory.claimed.clone(), view.instance.clone());
        let selected = view.selected.iter().flatten();
        let pools: Vec<String> = selected.map(|selected| selected.pool.to_string()).collect();
        let scope = self.machines.scope.namespace.clone();
        let read = self.machines.registry.read_with_kinds(move |allocator, kinds| {
            Recorded::read(allocator, kinds, (&key, &names, &confirmed), &claimed, &pools, instance.as_ref(), &scope)
        });
        view.ledger = read.await?;
        Ok(())
    }

    /// Remembers an object that will claim for the VirtualMachine of a name.
    async fn note_claimant(&self, key: &Key, machine: &Machine, kind: HolderKind) -> Result<(), Stopped> {
        self.index().remember(key, |memory| memory.claimed.extend([(machine.clone(), kind)]));
        self.note_vm_namespace(key, machine).await
    }

    async fn note_vm_namespace(&self, key: &Key, machine: &Machine) -> Result<(), Stopped> {
        if machine.namespace == key.namespace {
            return Ok(());
        }
        self.index().confirm(machine, key);
        self.machines.registry.note_vm_namespace(machine.clone(), key.namespace.clone()).await
    }

    /// Sends the request of a step, and updates the view with the response.
    async fn apply(&self, step: Step, view: &mut View) -> Result<(), Error> {
        let key = view.key.clone();
        let registry = &self.machines.registry;
        let changes_registry = step.changes_registry();
        let merge = PatchParams::default();
        match step {
            Step::Wait => return Ok(()),
            Step::ReadMachine(machine) => {
                self.read(&key, Kind::KubevirtMachine, &machine).await?;
                view.is_machine_read = true;
            }
            Step::ReadSecret => view.secret = Some(self.read_secret(&key).await?),
            Step::ReadOtherSecret(name) => {
                let secret = match is_object_name(&name) {
                    true => ask(self.secrets(&key).get_opt(&name)).await?.map(secret_in).transpose()?,
                    // No such Secret can exist, and the name must not become a part of a path.
                    false => None,
                };
                view.other_addresses = Some(addresses_of(secret));
            }
            Step::PatchVm(patch, notice) => {
                let Ok(patch) = serde_json::from_value(patch) else { return Ok(()) };
                let vms = self.api(Kind::VirtualMachine, &key);
                let answer = answered(vms.patch(&key.name, &merge, &Patch::<()>::Json(patch))).await;
                view.written.reference = self.take(&key, Kind::VirtualMachine, &key, patched(answer)?).await?;
                if let Some(notice) = notice.filter(|_| view.written.reference) {
                    self.publish(view, &notice);
                }
            }
            Step::ReadInstance => {
                self.read(&key, Kind::Instance, &key).await?;
                view.sources.is_instance_read = true;
            }
            Step::CreateClaim(claim) => self.create_claim(view, claim).await?,
            Step::ReadAddress(name) => self.read_address(view, name).await?,
            Step::PatchAddress(name, patch) => {
                let answer = ask(self.addresses(&key)?.patch(&name, &merge, &Patch::Merge(patch))).await;
                match stored(answer)? {
                    Some(address) => drop(view.sources.addresses.insert(name, Some(provider_address(address)))),
                    None => self.read_address(view, name).await?,
                }
            }
            Step::DeleteClaim(name, uid) => {
                let same = Preconditions { uid: Some(uid), resource_version: None };
                let params = DeleteParams::default().preconditions(same);
                let claim = Key { namespace: key.namespace.clone(), name };
                let kind = self.claims()?;
                stored(ask(self.api(kind, &claim).delete(&claim.name, &params)).await)?;
                self.read(&key, kind, &claim).await?;
            }
            Step::PatchClaim(name, patch) => {
                let (claim, kind) = (Key { namespace: key.namespace.clone(), name }, self.claims()?);
                let answer = answered(self.api(kind, &claim).patch(&claim.name, &merge, &Patch::Merge(patch))).await;
                match stored(answer)? {
                    // The API server deletes the object with its last finalizer, and responds with its last version.
                    Some(object) if object.metadata.finalizers.iter().flatten().next().is_some() => {
                        self.take(&key, kind, &claim, Some(object)).await?;
                    }
                    _ => drop(self.read(&key, kind, &claim).await?),
                }
            }
            Step::Hold(hold) => {
                let Hold { pool, claimant, kind, addresses, source } = *hold;
                self.note_claimant(&key, &claimant.machine, kind).await?;
                if let Err(error) = registry.hold(pool, claimant, addresses, source, kind).await? {
                    view.problem = Some(Problem::Refused(error));
                }
            }
            Step::Claim(claim, kind) => {
                self.note_claimant(&key, &claim.machine, kind).await?;
                match registry.claim(claim, kind).await? {
                    Ok(allocations) => view.granted = Some(allocations),
                    Err(error) => view.problem = Some(Problem::Refused(error)),
                }
            }
            Step::CreateSecret(secret, warnings, notice) => {
                for warning in warnings {
                    tracing::warn!(machine = %key, warning, "the guest may miss a setting of its network data");
                }
                let (vms, secrets) = (self.api(Kind::VirtualMachine, &key), self.secrets(&key));
                let uid = view.vm.as_ref().map(|vm| kubevirt_machine::uid(&vm.metadata).to_owned()).unwrap_or_default();
                let new = NewSecret { vms, secrets, vm: key.clone(), uid };
                // The task goes on when this leader loses the election or stops waiting: it may have a Secret to delete.
                let written = tokio::spawn(async move { new.create(&secret).await });
                let written = timeout(PATIENCE, written).await.map_err(|_| request::Error::Unanswered)?;
                match written.map_err(|_| Error::Stopped)?? {
                    Some(secret) => {
                        let secret = NetworkSecret::read(Some(secret));
                        self.index().note_secret(&key, &secret);
                        view.secret = Some(secret);
                        self.note_hand_out(view);
                        if let Some(notice) = notice {
                            self.publish(view, &notice);
                        }
                    }
                    // Another leader has created the Secret first, the VirtualMachine is gone, or the namespace is gone.
                    None => {
                        self.read(&key, Kind::VirtualMachine, &key).await?;
                        view.secret = Some(self.read_secret(&key).await?);
                    }
                }
                if let Some(NetworkSecret::Absent) = view.secret {
                    return Err(Error::Behind);
                }
            }
            Step::Adopt(records, kind) => self.adopt(view, records, kind).await?,
            Step::Keep(claimant, addresses) => {
                let uid = claimant.machine.uid.clone();
                let addresses = list(registry.keep(claimant, addresses).await?);
                tracing::info!(machine = %key, uid, addresses, "released addresses that the machine never got");
            }
            Step::PatchMachine(patch) => {
                view.written.annotation = true;
                self.patch_machine(view, patch, false).await?;
            }
            Step::Retry(patch) => {
                view.written.retry = true;
                if !view.memory.is_retry_logged {
                    tracing::info!(machine = %key, "requesting that capk create the VirtualMachine again");
                    self.index().remember(&key, |memory| memory.is_retry_logged = true);
                }
                self.patch_machine(view, patch, false).await?;
            }
            Step::PatchStatus(patch) => {
                view.written.status = true;
                let wanted = patch["status"][STATUS_MAP].clone();
                let kept = self.patch_machine(view, patch, true).await?;
                if kept.is_some_and(|kept| kept.data["status"][STATUS_MAP] != wanted) {
                    self.note_pruned();
                }
            }
            Step::AnnotateVm(patch) => {
                view.written.annotation = true;
                let vms = self.api(Kind::VirtualMachine, &key);
                let answer = answered(vms.patch(&key.name, &merge, &Patch::Merge(patch))).await;
                self.take(&key, Kind::VirtualMachine, &key, stored(answer)?).await?;
            }
            Step::AddConflicts(conflicts, kind, notice) => {
                view.written.conflicts = true;
                registry.add_conflicts(conflicts, kind).await?;
                if let Some(notice) = notice {
                    self.publish(view, &notice);
                }
            }
            Step::Reserve(conflicts) => {
                view.written.reservation = true;
                let selection = Arc::clone(self.index().selection());
                let own = Authority::new(&selection).reservations(&[key.namespace.clone()].into(), conflicts);
                registry.add_conflicts(own, HolderKind::VirtualMachine).await?;
            }
            Step::Withdraw(machine) => {
                registry.withdraw(machine.clone()).await?;
                tracing::info!(machine = %key, uid = machine.uid, "removed the machine from the wait queue");
                self.index().remember(&key, |memory| memory.claimed.retain(|holder, _| *holder != machine));
            }
            Step::Prove(holder, kind) => match self.prove(view, holder.clone(), kind).await {
                // A user of that namespace can write objects that make the check fail. No other machine waits for it.
                Err(error) if view.is_stranger(&holder) && !matches!(error, Error::Stopped) => {
                    tracing::warn!(machine = %key, %holder, %error, "could not check whether a machine is gone");
                    view.is_unsettled = true;
                    view.proven.insert(holder);
                }
                result => result?,
            },
            Step::Report(notice) => {
                self.publish(view, &notice);
                self.index().remember(&key, |memory| memory.notice = Some(notice));
            }
        }
        self.look_again(view);
        if changes_registry {
            self.read_registry(view).await?;
        }
        Ok(())
    }

    /// Reads every object that may use an address of a holder, and releases the addresses if no such object exists.
    async fn prove(&self, view: &mut View, holder: Machine, kind: HolderKind) -> Result<(), Error> {
        let (name, of) = (Key::of_machine(&holder), holder.clone());
        let of_registry = self.machines.registry.read_with_kinds(move |allocator, kinds| {
            let held = Held::all_of(allocator, &of);
            (held, kinds.vm_namespace(&of))
        });
        let (held, vm_namespace) = of_registry.await?;
        let mut homes = {
            let mut index = self.index();
            // Perhaps only a lease of another leader says where the VirtualMachine is.
            if let Some(namespace) = vm_namespace {
                index.confirm(&holder, &Key { namespace, name: name.name.clone() });
            }
            index.confirmed_homes_of(&holder)
        };
        // A claim may be all that is left of a machine of another namespace.
        homes.insert(view.key.clone());
        let addresses = held.iter().map(|held| held.address).collect();
        let mut proof = Proof { holder: holder.clone(), kind, held: addresses, guests: Vec::new(), machine: None };
        for key in homes {
            let secret = self.ask_secret(&key).await?;
            let checked = self.index().check(&key, secret.clone());
            if key == view.key {
                view.secret = Some(checked.clone());
            }
            // A KubevirtMachine that is gone no longer says which VirtualMachine is its own.
            let is_of_holder = matches!(&secret, NetworkSecret::Ours(hand_out) if hand_out.machine == holder);
            let secret = if is_of_holder { secret } else { checked };
            let machine = match self.kinds.has_kubevirt_machines {
                true => self.read(&view.key, Kind::KubevirtMachine, &name).await?,
                false => None,
            };
            let vm = self.read(&view.key, Kind::VirtualMachine, &key).await?;
            let instance = self.read(&view.key, Kind::Instance, &key).await?;
            // The index ignores a response if a watch has reported the end of an earlier object of this name meanwhile.
            let index = self.index();
            proof.machine = index.machine(&name).cloned().or_else(|| machine.map(KubevirtMachine::read));
            let stripped = index.memory(&key).stripped.remove(&holder);
            let vm = index.vm(&key).cloned().or_else(|| vm.map(VirtualMachine::read));
            let instance = index.instance(&key).cloned().or_else(|| instance.map(Instance::read));
            proof.guests.push(Guest { key, secret, vm, instance, stripped });
        }
        let verdict = proof.verdict();
        let uid = &holder.uid;
        tracing::debug!(machine = %view.key, uid, ?verdict, "read the objects of a machine that may be gone");
        match verdict {
            Verdict::Strip(key, uid) => {
                delete(&self.secrets(&key), &key, Some(uid)).await?;
                (view.secret, view.problem) = (None, None);
            }
            Verdict::Kept(stripped) => {
                for (key, stripped) in stripped {
                    self.index().remember(&key, |memory| {
                        memory.stripped.entry(holder.clone()).or_insert(stripped);
                    });
                }
                // No watch reports the end of a Secret.
                let is_ending =
                    |guest: &Guest| matches!(&guest.secret, NetworkSecret::Ours(secret) if secret.is_deleted);
                view.is_unsettled |= proof.guests.iter().any(is_ending)
                    || proof.guests.iter().all(|guest| guest.vm.is_none() && guest.instance.is_none());
                view.proven.insert(holder);
            }
            Verdict::Gone => {
                if self.machines.registry.release(holder.clone(), kind).await?.is_none() {
                    // An object of a user names the UID of an object of another kind.
                    view.proven.insert(holder);
                    return Ok(());
                }
                if let Some(notice) = Notice::of_release(&held) {
                    tracing::info!(machine = %view.key, uid, reason = notice.reason, "{}", notice.note);
                    self.publish_about(reference(kind_of(kind), &holder), &notice);
                }
                self.index().forget_holder(&holder);
                view.proven.insert(holder.clone());
                view.gone.insert(holder);
            }
        }
        Ok(())
    }

    /// Creates the IPAddressClaim of a machine.
    async fn create_claim(&self, view: &mut View, claim: Value) -> Result<(), Error> {
        let claim: Object = serde_json::from_value(claim).map_err(request::Error::Unreadable)?;
        let (key, kind) = (Key::of(&claim.metadata), self.claims()?);
        let answer = answered(self.api(kind, &key).create(&PostParams::default(), &claim)).await;
        if let Some(claim) = stored(answer)? {
            self.index().apply(kind, claim);
            return Ok(());
        }
        // Another leader has created the claim first, or another author has created a claim of this name.
        let claim = ask(self.api(kind, &key).get_opt(&key.name)).await?.ok_or(Error::Behind)?;
        match MachineClaim::read(claim.clone()) {
            Ok(known) => {
                self.index().apply(kind, claim);
                // An earlier machine of another namespace had its VirtualMachine here, and left this claim.
                if !self.index().is_confirmed(&known.claimant.machine, &view.key) {
                    let problem = format!(
                        "IPAddressClaim {key} is of another machine ({}), expected none of this name: delete it",
                        known.claimant.machine
                    );
                    view.problem = Some(Problem::Mismatch(problem));
                }
            }
            Err(problem) => {
                let problem =
                    format!("IPAddressClaim {key} is not of this controller ({problem}), expected none of this name");
                view.problem = Some(Problem::Mismatch(problem));
            }
        }
        Ok(())
    }

    /// Reads an IPAddress of another provider.
    async fn read_address(&self, view: &mut View, name: String) -> Result<(), Error> {
        let address = ask(self.addresses(&view.key)?.get_opt(&name)).await?;
        view.sources.addresses.insert(name, address.map(provider_address));
        Ok(())
    }

    /// The kind of IPAddressClaims, if the API server serves them.
    fn claims(&self) -> Result<Kind, Error> {
        let version = self.kinds.claims.ok_or_else(|| Error::NotReady("no IPAddressClaims are served".to_owned()))?;
        Ok(Kind::AddressClaim(version))
    }

    fn addresses(&self, key: &Key) -> Result<Api<Object>, Error> {
        let Kind::AddressClaim(version) = self.claims()? else { return Err(Error::Behind) };
        let kind = cluster_api::addresses(version);
        Ok(Api::namespaced_with(self.machines.client.clone(), &key.namespace, &kind))
    }

    /// Lets the registry adopt the addresses that a Secret hands out.
    async fn adopt(&self, view: &mut View, mut records: Vec<Record>, kind: HolderKind) -> Result<(), Error> {
        let selection = Arc::clone(self.index().selection());
        let (mut authority, namespaces) = (Authority::new(&selection), [view.key.namespace.clone()].into());
        for record in &mut records {
            let (limited, ignored) = authority.limit(&namespaces, record.clone());
            if let Some(address) = ignored.first() {
                let problem = format!("{address}: no pool of namespace {} has this address", view.key.namespace);
                tracing::warn!(machine = %view.key, problem, "a Secret does not fit");
                view.problem = Some(Problem::Mismatch(problem));
            }
            *record = limited;
        }
        records.retain(|record| !record.addresses.is_empty());
        for record in &records {
            for address in &record.addresses {
                let (network, uid) = (record.network.as_deref().unwrap_or_default(), &record.claimant.machine.uid);
                if adoption::is_leased(&self.machines.client, address.ip(), network, uid).await? {
                    return Err(Error::Behind);
                }
            }
        }
        for record in &records {
            self.note_vm_namespace(&view.key, &record.claimant.machine).await?;
        }
        let adoption = self.machines.registry.adopt(records.clone(), kind).await?;
        view.is_adopted = true;
        // If nothing is adopted, a notice reports why. Each pass tries again, so a line here would be repeated.
        if adoption.adopted > 0 {
            self.log_adoption(&records, &adoption);
        }
        let mismatch = adoption.mismatches.first().map(|mismatch| Problem::Mismatch(mismatch.to_string()));
        view.problem = mismatch.or(view.problem.take());
        Ok(())
    }

    /// Reads the Secret of a VirtualMachine. A Secret that names the machine of another one is foreign.
    async fn read_secret(&self, key: &Key) -> Result<NetworkSecret, Error> {
        let secret = self.ask_secret(key).await?;
        Ok(self.index().check(key, secret))
    }

    async fn ask_secret(&self, key: &Key) -> Result<NetworkSecret, Error> {
        let secret = ask(self.secrets(key).get_opt(&secret_name(key))).await?.map(secret_in).transpose()?;
        let secret = NetworkSecret::read(secret);
        self.index().note_secret(key, &secret);
        Ok(secret)
    }

    /// Reads an object from the API server into the index. `pass` is the name of the running pass.
    async fn read(&self, pass: &Key, kind: Kind, key: &Key) -> Result<Option<Object>, Error> {
        let known = self.index().version(kind, key);
        let object = ask(self.api(kind, key).get_opt(&key.name)).await?;
        let names = self.index().take(kind, key, known, object.clone());
        self.wake_others(pass, names);
        Ok(object)
    }

    /// Updates the index with the object that a write stored. `false`: the write was not stored, and the index now has
    /// the object that a read returned, or none.
    async fn take(&self, pass: &Key, kind: Kind, key: &Key, object: Option<Object>) -> Result<bool, Error> {
        match object {
            // The pass knows the object that it has changed.
            Some(object) => {
                let known = Some(version_of(&object.metadata));
                let names = self.index().take(kind, key, known, Some(object));
                self.wake_others(pass, names);
                Ok(true)
            }
            None => {
                self.read(pass, kind, key).await?;
                Ok(false)
            }
        }
    }

    /// Makes the other names get a pass. The watch causes none, because it reports a version that is known.
    fn wake_others(&self, pass: &Key, names: BTreeSet<Key>) {
        for name in names.into_iter().filter(|name| name != pass) {
            // The receiver ends only together with the passes.
            let _ = self.others.send(name);
        }
    }

    /// Merges a patch into the KubevirtMachine or, if `is_status`, into its status. Returns the stored object. `None`:
    /// the patch was not stored.
    async fn patch_machine(&self, view: &View, patch: Value, is_status: bool) -> Result<Option<Object>, Error> {
        let Some(machine) = &view.machine else { return Ok(None) };
        let key = Key::of(&machine.metadata);
        let (api, params, patch) = (self.api(Kind::KubevirtMachine, &key), PatchParams::default(), Patch::Merge(patch));
        let answer = match is_status {
            true => answered(api.patch_status(&key.name, &params, &patch)).await,
            false => answered(api.patch(&key.name, &params, &patch)).await,
        };
        let object = stored(answer)?;
        self.take(&view.key, Kind::KubevirtMachine, &key, object.clone()).await?;
        Ok(object)
    }

    fn note_pruned(&self) {
        if self.has_status_map.swap(false, Ordering::Relaxed) {
            tracing::warn!(
                "the CRD of KubevirtMachine has no status.{STATUS_MAP}: only the annotations record the addresses"
            );
        }
    }

    /// Publishes and logs that a machine has its addresses, and records how long the machine waited.
    fn note_hand_out(&self, view: &View) {
        let Some(NetworkSecret::Ours(hand_out)) = &view.secret else { return };
        let interfaces = hand_out.interfaces.iter().map(|handed| {
            let addresses: Vec<String> = handed.addresses.iter().map(ToString::to_string).collect();
            format!("{} to {}", addresses.join(", "), handed.interface)
        });
        let interfaces: Vec<String> = interfaces.collect();
        let note = format!("Allocated {}", interfaces.join(", "));
        let created = view.vm.as_ref().and_then(|vm| kubevirt_machine::created(&vm.metadata));
        let waited = created.map(|created| {
            let waited = Timestamp::now().as_millisecond().saturating_sub(created.as_millisecond());
            Duration::from_millis(u64::try_from(waited).unwrap_or_default()).as_secs_f64()
        });
        if let Some(waited) = waited {
            self.machines.metrics.allocation_seconds.observe(waited);
        }
        let of_each = |name: fn(&Handed) -> &String| {
            let names: BTreeSet<&str> = hand_out.interfaces.iter().map(|handed| name(handed).as_str()).collect();
            names.into_iter().collect::<Vec<_>>().join(", ")
        };
        let (pools, networks) = (of_each(|handed| &handed.pool), of_each(|handed| &handed.network));
        let (reason, uid) = ("IPAddressAllocated", &hand_out.machine.uid);
        tracing::info!(machine = %view.key, uid, reason, pools, networks, waited_seconds = waited, "{note}");
        self.index().remember(&view.key, |memory| (memory.notice, memory.is_retry_logged) = (None, false));
        self.publish_events(view, &Notice { is_warning: false, reason, note });
    }

    /// Logs a notice, and publishes its events.
    fn publish(&self, view: &View, notice: &Notice) {
        let Notice { is_warning, reason, note } = notice;
        match is_warning {
            true => tracing::warn!(machine = %view.key, reason, "{note}"),
            false => tracing::info!(machine = %view.key, reason, "{note}"),
        }
        self.publish_events(view, notice);
    }

    /// Publishes an event about the VirtualMachine and an event about its KubevirtMachine. The two objects must name each
    /// other, because a user of another namespace can write one of them.
    fn publish_events(&self, view: &View, notice: &Notice) {
        if let Some(vm) = &view.vm {
            self.publish_about(reference_to(Kind::VirtualMachine, &vm.metadata), notice);
        }
        let label = view.vm.as_ref().map(VirtualMachine::kubevirt_machine);
        let is_own = |machine: &&KubevirtMachine| {
            machine.home == view.key && label.as_ref().is_none_or(|it| it.as_ref() == Some(&Key::of(&machine.metadata)))
        };
        if let Some(machine) = view.machine.as_ref().filter(is_own) {
            self.publish_about(reference_to(Kind::KubevirtMachine, &machine.metadata), notice);
        }
    }

    fn publish_about(&self, object: ObjectReference, notice: &Notice) {
        let Notice { is_warning, reason, note } = notice;
        let type_ = if *is_warning { EventType::Warning } else { EventType::Normal };
        self.machines.events.publish(object, type_, reason, note);
    }

    /// Objects of a kind in the namespace of a name. A user can write an object that only [`Object`] can read.
    fn api(&self, kind: Kind, key: &Key) -> Api<Object> {
        Api::namespaced_with(self.machines.client.clone(), &key.namespace, &kind.resource())
    }

    fn secrets(&self, key: &Key) -> Api<Object> {
        Api::namespaced_with(self.machines.client.clone(), &key.namespace, &ApiResource::erase::<Secret>(&()))
    }

    fn index(&self) -> MutexGuard<'_, Index> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Sends a write and waits for the object in the response.
async fn answered(write: impl Future<Output = kube::Result<Object>>) -> Result<Object, request::Error> {
    ask(write).await
}

/// Reads a Secret.
fn secret_in(object: Object) -> Result<Secret, request::Error> {
    serde_json::to_value(object).and_then(serde_json::from_value).map_err(request::Error::Unreadable)
}

/// Returns the object that a JSON patch stored. `None`: the API server has another version of the object, or no object.
fn patched(answer: Result<Object, request::Error>) -> Result<Option<Object>, request::Error> {
    match answer {
        // The patch tests the version of the object; the API server responds with 422 when this test fails.
        Err(request::Error::Request(kube::Error::Api(status))) if status.code == 422 => Ok(None),
        answer => stored(answer),
    }
}

/// Deletes the Secret of a VirtualMachine.
async fn delete(secrets: &Api<Object>, vm: &Key, uid: Option<String>) -> Result<(), request::Error> {
    let params = DeleteParams::default().preconditions(Preconditions { uid, resource_version: None });
    let secret = secret_name(vm);
    if stored(ask(secrets.delete(&secret, &params)).await)?.is_some() {
        tracing::info!(machine = %vm, secret, "deleted the Secret of a machine");
    }
    Ok(())
}

/// Returns the addresses that a KubevirtMachine records as its own.
pub(crate) fn recorded_addresses(machine: &Object) -> BTreeSet<IpAddr> {
    let mut records = Objects::default();
    read_records(&mut records, &kubevirt_machines().kind, machine);
    let records = records.inventory().records;
    records.iter().flat_map(|record| &record.addresses).map(IpNetwork::ip).collect()
}

fn provider_address(object: Object) -> sources::ProviderAddress {
    IpAddress::read(object).map_err(|error| error.to_string())
}

fn secret_name(key: &Key) -> String {
    format!("{}-networkdata", key.name)
}

fn kind_of(kind: HolderKind) -> Kind {
    match kind {
        HolderKind::KubevirtMachine => Kind::KubevirtMachine,
        HolderKind::VirtualMachine | HolderKind::IpAddressClaim | HolderKind::IpamClaim => Kind::VirtualMachine,
    }
}

fn reference(kind: Kind, machine: &Machine) -> ObjectReference {
    let resource = kind.resource();
    ObjectReference {
        api_version: Some(resource.api_version),
        kind: Some(resource.kind),
        namespace: Some(machine.namespace.clone()),
        name: Some(machine.name.clone()),
        uid: Some(machine.uid.clone()),
        ..ObjectReference::default()
    }
}

fn reference_to(kind: Kind, metadata: &ObjectMeta) -> ObjectReference {
    reference(kind, &Key::of(metadata).holder(kubevirt_machine::uid(metadata)))
}

/// Whether the webhook would find a pool of a machine exhausted. `true` also when no pool selects the machine.
fn is_exhausted(selection: &Selection, vm: &VirtualMachine) -> bool {
    let selected = selection.of(vm).unwrap_or_default();
    let lacks = |it: &Selected| selection.pool(&it.pool).is_some_and(|pool| pool.exhausted.is_some());
    selected.is_empty() || selected.iter().any(|it| lacks(it) && !reference::is_kept_for(vm, it, selection))
}

/// Returns the JSON patch operations of the webhook for a VirtualMachine that needs no free address.
fn operations(selection: &Selection, vm: &VirtualMachine, selected: &index::Chosen) -> Vec<Value> {
    let pools = selected.iter().flatten().map(|selected| selected.pool.clone()).collect();
    match reference::decide(vm, selection, &pools) {
        Decision::Patch(operations) => operations,
        _ => Vec::new(),
    }
}

/// Returns the settings of the selected pools, by name of the pool.
fn settings(selection: &Selection, selected: &index::Chosen) -> BTreeMap<String, PoolSettings> {
    let pools = selected.iter().flatten().filter_map(|selected| selection.pool(&selected.pool));
    let settings = pools.map(|pool| {
        let (is_sticky, template) = (pool.spec.sticky, pool.spec.template.clone().filter(|text| !text.is_empty()));
        let source = Source::of(&pool.spec, pool.pool.as_ref().map(Pool::gateways).unwrap_or_default());
        (pool.id.to_string(), PoolSettings { is_sticky, template, source })
    });
    settings.collect()
}

// === impl NewSecret ===

impl NewSecret {
    /// Creates the Secret. Returns the stored Secret. `None`: the Secret is not stored, or no longer.
    ///
    /// A leader that was paused may be here after another leader has proved that the VirtualMachine is gone and has released
    /// its addresses. A new VirtualMachine of the same name would start with a late Secret. Therefore the VirtualMachine is
    /// read before the Secret is created, and once more after that: the API server may have received the Secret late.
    async fn create(self, secret: &Secret) -> Result<Option<Secret>, request::Error> {
        if !self.has_vm().await? {
            return Ok(None);
        }
        let object =
            serde_json::to_value(secret).and_then(serde_json::from_value).map_err(request::Error::Unreadable)?;
        let answer = self.secrets.create(&PostParams::default(), &object).await.map_err(request::Error::Request);
        if matches!(&answer, Err(request::Error::Request(kube::Error::Api(status))) if status.code < 500) {
            return stored(answer)?.map(secret_in).transpose();
        }
        let state = async { Ok((answer?, self.has_vm().await?)) };
        match state.await {
            Ok((secret, true)) => secret_in(secret).map(Some),
            Ok((secret, false)) => delete(&self.secrets, &self.vm, secret.metadata.uid).await.map(|()| None),
            Err(error) => {
                tokio::spawn(self.delete_late());
                Err(error)
            }
        }
    }

    /// Looks for the Secret again and again, and deletes it if its VirtualMachine is gone. An API server may store the Secret
    /// after it has answered with an error, until its own timeout.
    async fn delete_late(self) {
        let began = Instant::now();
        while began.elapsed() < LATEST_WRITE {
            // The next attempt follows a failure.
            if let Err(error) = self.delete_without_vm().await {
                tracing::debug!(machine = %self.vm, %error, "could not look for a late Secret");
            }
            sleep(PAUSE).await;
        }
    }

    async fn delete_without_vm(&self) -> Result<(), request::Error> {
        if self.has_vm().await? {
            return Ok(());
        }
        let secret = ask(self.secrets.get_opt(&secret_name(&self.vm))).await?.map(|secret| secret.metadata);
        let is_own = |secret: &ObjectMeta| {
            secret.owner_references.iter().flatten().next().is_some_and(|owner| owner.uid == self.uid)
        };
        match secret.filter(is_own) {
            Some(secret) => delete(&self.secrets, &self.vm, secret.uid).await,
            None => Ok(()),
        }
    }

    async fn has_vm(&self) -> Result<bool, request::Error> {
        let vm = ask(self.vms.get_opt(&self.vm.name)).await?.map(|vm| vm.metadata);
        Ok(vm.is_some_and(|vm| kubevirt_machine::uid(&vm) == self.uid && !kubevirt_machine::is_deleted(&vm)))
    }
}

// === impl Kinds ===

impl Kinds {
    /// Asks which kinds the API server serves. `None`: the API server does not serve VirtualMachines.
    async fn discover(client: &Client) -> Result<Option<Self>, request::Error> {
        let has_machines = ask(serves(client, &virtual_machines())).await?;
        let has_kubevirt_machines = ask(serves(client, &kubevirt_machines())).await?;
        let claims = ask(cluster_api::Kinds::discover(client)).await?.map(|kinds| kinds.version);
        let has_ipam_claims = ask(serves(client, &ipam_claims())).await?;
        Ok(has_machines.then_some(Self { has_kubevirt_machines, claims, has_ipam_claims }))
    }

    /// The kinds that the leader watches.
    fn all(self) -> impl Iterator<Item = Kind> {
        let optional = [
            self.has_kubevirt_machines.then_some(Kind::KubevirtMachine),
            self.claims.map(Kind::AddressClaim),
            self.has_ipam_claims.then_some(Kind::IpamClaim),
        ];
        optional.into_iter().flatten().chain([Kind::VirtualMachine, Kind::Instance])
    }
}

// === impl Kind ===

impl Kind {
    /// Whether objects of this kind record the addresses of machines.
    fn has_records(self) -> bool {
        matches!(self, Self::KubevirtMachine | Self::VirtualMachine | Self::Instance)
    }

    fn resource(self) -> ApiResource {
        match self {
            Self::KubevirtMachine => kubevirt_machines(),
            Self::VirtualMachine => virtual_machines(),
            Self::Instance => instances(),
            Self::AddressClaim(version) => cluster_api::claims(version),
            Self::IpamClaim => ipam_claims(),
        }
    }
}
