//! Allocates MAC addresses of pools to VirtualMachines, and reports addresses that two guests use.
//!
//! Only the leader does this. The webhook puts a label into the template of a VirtualMachine that a pool serves.
//! Because of this label, the API server refuses the instance until every interface has a MAC address. Meanwhile, the
//! leader stores a lease for each address, and then writes the addresses into the VirtualMachine. The module `plan`
//! decides, and this module makes the requests.
//!
//! The allocator of the library cannot allocate MAC addresses. It allocates one address of each family, with a network,
//! a gateway and a prefix length, to the interface that a pool names. A machine needs one MAC address for each of its
//! interfaces, and a MAC address has no network, gateway or prefix length. Therefore this module itself allocates the
//! lowest free MAC address. The leases of MAC addresses have the same kind and the same rules as those of IP addresses.

mod free;
mod machine;
mod migrated;
mod objects;
mod plan;
mod status;
mod used;

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{self, BoxStream};
use futures::{FutureExt as _, StreamExt as _};
use k8s_openapi::jiff::Timestamp;
use kube::api::{ApiResource, Patch, PatchParams, PostParams};
use kube::runtime::events::EventType;
use kube::runtime::watcher::Event;
use kube::{Api, Client};
use pnet_base::MacAddr;
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, sleep_until};

use crate::cluster::backoff::BackOff;
use crate::cluster::edit::pointer;
use crate::cluster::events::{Events, reference};
use crate::cluster::key::Key;
use crate::cluster::object::{Object, version_of};
use crate::cluster::request::{Error, ask, find, patch_version, stored};
use crate::cluster::watch::{Change, Known, changes};
use crate::kinds::mac_pool::{MACPool, mac_lease_name};
use crate::kinds::pool::{LeaseSpec, StaticIPLease};
use crate::kinds::virtual_machine::{ASSIGNED_ANNOTATION, awaits_mac_addresses, instances, virtual_machines};
use crate::macs::machine::{Guest, Vm};
use crate::macs::migrated::{held, not_held, release};
use crate::macs::objects::Objects;
use crate::macs::plan::{Action, Plan};
use crate::macs::status::names;
use crate::metrics::Metrics;
use crate::pools::facts::Scope;
use crate::repeated::Repeated;

/// Maximum number of concurrent writes.
const IN_FLIGHT: usize = 32;
/// Pauses before the next decision, after a failure or while the API server has newer objects.
const PAUSES: BackOff = BackOff::new(Duration::from_secs(1), Duration::from_secs(30));
/// Shortest pause between the first of several changes and the decision about them.
const BETWEEN: Duration = Duration::from_millis(50);
/// Ratio of the pause before a decision to the duration of the last decision. Each decision looks at every machine, so
/// with tens of thousands of machines, one decision for each change would take too much time.
const RATIO: u32 = 9;
/// Longest pause between two decisions. The end of a reuse delay is no change of an object, so no watch reports it.
const AGAIN: Duration = Duration::from_secs(60 * 60);

/// Sends VirtualMachines, instances, and the leases of MAC addresses to [`Macs`]. Other parts of the leader watch these
/// objects.
#[derive(Clone, Debug)]
pub struct Observer(mpsc::UnboundedSender<Fact>);

/// The task that allocates MAC addresses.
pub struct Macs {
    client: Client,
    events: Events,
    metrics: Arc<Metrics>,
    scope: Scope,
    facts: mpsc::UnboundedReceiver<Fact>,
    objects: Objects,
    /// Duration of the last decision.
    took: Duration,
    /// Whether the lists of VirtualMachines and instances are complete.
    has_machines: bool,
    /// The names of the leases that are known to exist.
    leases: Known,
    /// Whether the lists of pools and of leases are complete.
    is_listed: [bool; 2],
    /// For each waiting machine, the reason that was last reported.
    waiting: BTreeMap<Key, (&'static str, String)>,
    /// For each address with a collision, the machines that were last reported.
    collisions: BTreeMap<MacAddr, BTreeSet<Key>>,
    /// For each machine, the addresses that were last reported as not held for its migrated guest.
    not_held: BTreeMap<Key, BTreeSet<MacAddr>>,
    namespaces: watch::Sender<Option<BTreeSet<String>>>,
}

/// A change of a watched object.
#[derive(Debug)]
enum Fact {
    /// The lists of all machines begin.
    Restart,
    /// The lists of all machines are complete.
    Listed,
    Vm(Key, u64, Box<Vm>),
    Guest(Key, u64, Box<Guest>),
    VmGone(Key, Option<u64>),
    GuestGone(Key, Option<u64>),
    Lease(Box<Event<Object>>),
}

#[allow(clippy::large_enum_variant, reason = "an input is moved once, and pools are few")]
enum Input {
    Fact(Fact),
    Pool(Change),
}

/// Result of a decision and its requests.
enum Pass {
    /// The known objects have changed, so another decision may differ.
    Changed,
    /// No request had an effect, because the API server has newer objects. The watches report these objects later.
    Behind,
    Done,
}

/// What a request has changed or read.
enum Outcome {
    Vm(Object),
    Lease(Object),
    LeaseGone(String),
    /// The VirtualMachine and the instance that a lease names, as they were read. `None`: the object does not exist.
    Machine(Box<[Option<Object>; 2]>),
    Nothing,
}

// === impl Observer ===

impl Observer {
    pub(crate) fn restart(&self) {
        self.send(Fact::Restart);
    }

    pub(crate) fn listed(&self) {
        self.send(Fact::Listed);
    }

    pub(crate) fn vm(&self, change: &Change) {
        match change {
            Change::Apply(object) => {
                let (key, version) = (Key::of(&object.metadata), version_of(&object.metadata));
                self.send(Fact::Vm(key, version, Box::new(Vm::read(object))));
            }
            Change::Remove(key, version) => self.send(Fact::VmGone(key.clone(), *version)),
            Change::Lists | Change::Listed => {}
        }
    }

    pub(crate) fn instance(&self, change: &Change) {
        match change {
            Change::Apply(object) => {
                let (key, version) = (Key::of(&object.metadata), version_of(&object.metadata));
                self.send(Fact::Guest(key, version, Box::new(Guest::read(object))));
            }
            Change::Remove(key, version) => self.send(Fact::GuestGone(key.clone(), *version)),
            Change::Lists | Change::Listed => {}
        }
    }

    pub(crate) fn lease(&self, event: Event<Object>) {
        self.send(Fact::Lease(Box::new(event)));
    }

    fn send(&self, fact: Fact) {
        // Sending fails only after the leader has ended.
        let _ = self.0.send(fact);
    }
}

// === impl Macs ===

impl Macs {
    /// Creates the task, and the observer to which other parts of the leader must send machines and leases.
    #[must_use]
    pub fn new(client: Client, metrics: Arc<Metrics>, scope: Scope) -> (Self, Observer) {
        let (sender, facts) = mpsc::unbounded_channel();
        let macs = Self {
            events: Events::start(client.clone()),
            client,
            metrics,
            scope,
            facts,
            objects: Objects::default(),
            took: Duration::ZERO,
            has_machines: false,
            leases: Known::default(),
            is_listed: [false; 2],
            waiting: BTreeMap::new(),
            collisions: BTreeMap::new(),
            not_held: BTreeMap::new(),
            namespaces: watch::Sender::default(),
        };
        (macs, Observer(sender))
    }

    /// The namespaces of the machines that pools serve. `None`: the list of pools is not complete yet.
    #[must_use]
    pub fn namespaces(&self) -> watch::Receiver<Option<BTreeSet<String>>> {
        self.namespaces.subscribe()
    }

    /// Allocates MAC addresses until the future is dropped.
    pub async fn run(mut self) -> Infallible {
        let facts = std::mem::replace(&mut self.facts, mpsc::unbounded_channel().1);
        let facts = stream::unfold(facts, async |mut facts| facts.recv().await.map(|fact| (Input::Fact(fact), facts)));
        let pools = changes(Api::all_with(self.client.clone(), &ApiResource::erase::<MACPool>(&()))).map(Input::Pool);
        let mut inputs: BoxStream<'_, Input> = stream::select(facts.chain(stream::pending()), pools).boxed();
        let (mut is_due, mut pauses, lines) = (false, PAUSES, Repeated::default());
        // Earliest and latest time of the next pass.
        let (mut next, mut latest) = (Instant::now(), Instant::now() + AGAIN);
        loop {
            tokio::select! {
                Some(input) = inputs.next() => is_due |= self.learn(input),
                () = sleep_until(next), if is_due && self.has_everything() => {}
                () = sleep_until(latest), if !is_due => is_due = true,
            }
            while let Some(Some(input)) = inputs.next().now_or_never() {
                is_due |= self.learn(input);
            }
            let is_ready = self.has_everything() && next <= Instant::now();
            if is_due && is_ready {
                sleep(BETWEEN.max(self.took * RATIO)).await;
            }
            while is_due && is_ready && self.has_everything() {
                match self.pass().await {
                    Ok(Pass::Changed) => {}
                    // The next pass follows after a pause.
                    Ok(Pass::Behind) => {
                        pauses.reset();
                        next = Instant::now() + pauses.pause();
                        break;
                    }
                    Ok(Pass::Done) => {
                        pauses.reset();
                        is_due = false;
                        latest = Instant::now() + AGAIN;
                    }
                    Err(error) => {
                        if let Some(hidden) = lines.note(&error.to_string(), Instant::now()) {
                            tracing::warn!(%error, hidden, "could not serve MAC addresses");
                        }
                        next = Instant::now() + pauses.pause();
                        break;
                    }
                }
                while let Some(Some(input)) = inputs.next().now_or_never() {
                    is_due |= self.learn(input);
                }
            }
        }
    }

    /// Whether all objects that a decision needs are known.
    fn has_everything(&self) -> bool {
        self.has_machines && self.is_listed == [true; 2]
    }

    /// Stores a change. Returns whether the change may affect a decision.
    fn learn(&mut self, input: Input) -> bool {
        let objects = &mut self.objects;
        match input {
            Input::Fact(Fact::Restart) => {
                self.has_machines = false;
                objects.forget_machines();
                return false;
            }
            Input::Fact(Fact::Listed) => self.has_machines = true,
            Input::Fact(Fact::Vm(key, version, vm)) => return objects.store_vm(key, version, *vm),
            Input::Fact(Fact::Guest(key, version, guest)) => return objects.store_guest(key, version, *guest),
            Input::Fact(Fact::VmGone(key, version)) => objects.remove_vm(&key, version),
            Input::Fact(Fact::GuestGone(key, version)) => objects.remove_guest(&key, version),
            Input::Pool(Change::Lists) => return false,
            Input::Pool(Change::Listed) => self.is_listed[0] = true,
            Input::Pool(Change::Apply(object)) if self.scope.serves(&object.metadata) => {
                return objects.apply_pool(object);
            }
            Input::Pool(Change::Apply(object)) => objects.remove_pool(&Key::of(&object.metadata).name),
            Input::Pool(Change::Remove(key, _)) => objects.remove_pool(&key.name),
            Input::Fact(Fact::Lease(event)) => {
                let mut is_due = false;
                for change in self.leases.changes(*event) {
                    is_due |= match change {
                        Change::Apply(object) => objects.apply_lease(&object),
                        Change::Remove(key, _) => {
                            objects.remove_lease(&key.name);
                            true
                        }
                        Change::Lists => false,
                        Change::Listed => {
                            self.is_listed[1] = true;
                            true
                        }
                    };
                }
                return is_due;
            }
        }
        true
    }

    /// Makes a decision, sends its requests, and writes the statuses of the pools.
    async fn pass(&mut self) -> Result<Pass, Error> {
        let began = Instant::now();
        let plan = self.objects.plan(Timestamp::now());
        self.took = began.elapsed();
        self.report(&plan);
        let Plan { actions, statuses, .. } = plan;
        let this = &*self;
        let outcomes = stream::iter(actions).map(|action| this.apply(action)).buffer_unordered(IN_FLIGHT);
        let outcomes: Vec<Result<Outcome, Error>> = outcomes.collect().await;
        let pools: Api<Object> = Api::all_with(self.client.clone(), &ApiResource::erase::<MACPool>(&()));
        let mut is_behind = !outcomes.is_empty();
        let mut has_changed = false;
        let mut failed = None;
        for outcome in outcomes {
            match outcome {
                Ok(Outcome::Vm(object)) => {
                    self.objects.apply_vm(&object);
                    has_changed = true;
                }
                Ok(Outcome::Lease(object)) => has_changed |= self.objects.apply_lease(&object),
                Ok(Outcome::LeaseGone(name)) => {
                    self.objects.remove_lease(&name);
                    has_changed = true;
                }
                Ok(Outcome::Machine(objects)) => {
                    let [vm, instance] = *objects;
                    if let Some(object) = vm {
                        has_changed |= self.objects.apply_vm(&object);
                    }
                    if let Some(object) = instance {
                        let (key, version) = (Key::of(&object.metadata), version_of(&object.metadata));
                        has_changed |= self.objects.store_guest(key, version, Guest::read(&object));
                    }
                }
                Ok(Outcome::Nothing) => {}
                Err(error) => failed = Some(error),
            }
        }
        for (name, patch) in statuses {
            let patched = ask(pools.patch_status(&name, &PatchParams::default(), &Patch::Merge(patch))).await;
            match stored(patched)? {
                Some(object) => has_changed |= self.objects.apply_pool(object),
                None => is_behind = true,
            }
        }
        self.objects.forget_migrations();
        match failed {
            Some(error) => Err(error),
            None if has_changed => Ok(Pass::Changed),
            None if is_behind => Ok(Pass::Behind),
            None => Ok(Pass::Done),
        }
    }

    /// Publishes the events, the metrics and the namespaces of a plan.
    fn report(&mut self, plan: &Plan) {
        for (key, notice) in &plan.waiting {
            if self.waiting.get(key) != Some(notice) {
                let (reason, note) = notice;
                self.publish(key, EventType::Warning, reason, note);
            }
        }
        self.waiting.clone_from(&plan.waiting);
        for (address, keys) in &plan.collisions {
            if self.collisions.get(address) != Some(keys) {
                let note = format!("{address}: machines {} run with this MAC address", names(keys.iter()));
                for key in keys {
                    self.publish(key, EventType::Warning, "MACAddressConflict", &note);
                }
            }
        }
        self.collisions.clone_from(&plan.collisions);
        for (key, addresses) in &plan.not_held {
            if self.not_held.get(key) != Some(addresses) {
                self.publish(key, EventType::Warning, "MACAddressNotHeld", &not_held(addresses));
            }
        }
        self.not_held.clone_from(&plan.not_held);
        let collisions = plan.collisions.iter().map(|(address, keys)| (*address, keys.len()));
        let counts = plan.counts.iter().map(|(pool, count)| (pool.as_str(), *count));
        self.metrics.set_macs(collisions, counts, plan.unreadable);
        self.namespaces.send_if_modified(|known| {
            let is_new = known.as_ref() != Some(&plan.namespaces);
            *known = Some(plan.namespaces.clone());
            is_new
        });
    }

    async fn apply(&self, action: Action) -> Result<Outcome, Error> {
        match action {
            Action::Record { address, version, lease } => self.write(address, version, &lease).await,
            Action::Assign { key, request, patch, addresses } => {
                let (outcome, is_stored) = self.assign(&key, request, patch).await?;
                if is_stored {
                    let note = format!("Allocated {}", addresses.join(", "));
                    self.publish(&key, EventType::Normal, "MACAddressAllocated", &note);
                }
                Ok(outcome)
            }
            Action::Hold { address, version, lease } => {
                let Some(object) = self.store(address, Some(version), &lease).await? else {
                    return self.read(address).await;
                };
                let key = Key { namespace: lease.holder.namespace, name: lease.holder.name };
                self.publish(&key, EventType::Normal, "MACAddressHeld", &held(address));
                Ok(Outcome::Lease(object))
            }
            Action::Prove { address, version, lease } => self.prove(address, version, *lease).await,
        }
    }

    /// Writes addresses into a VirtualMachine. The first patch asks the webhook to write the addresses: the user's
    /// tools own the interfaces, and the leader must not become their owner. If no webhook has written the addresses,
    /// the second patch writes them. The API server stores each patch only for the version from which the patch was
    /// made.
    async fn assign(&self, key: &Key, request: Value, mut patch: Value) -> Result<(Outcome, bool), Error> {
        let tested = patch[0]["value"].as_str().map(str::to_owned);
        let vm = match self.patch_vm(key, &Patch::Merge(request), tested).await? {
            (Outcome::Vm(vm), true) if awaits_mac_addresses(&vm.data["spec"]["template"]) => vm,
            answer => return Ok(answer),
        };
        let version = vm.metadata.resource_version.clone();
        patch[0]["value"] = json!(version);
        let annotation = ["spec", "template", "metadata", "annotations", ASSIGNED_ANNOTATION];
        let remove = json!({"op": "remove", "path": pointer(&annotation)});
        patch.as_array_mut().into_iter().for_each(|operations| operations.push(remove.clone()));
        let Ok(patch) = serde_json::from_value(patch) else { return Ok((Outcome::Vm(vm), false)) };
        self.patch_vm(key, &Patch::<Value>::Json(patch), version).await
    }

    /// Patches a VirtualMachine. The patch must fail if the version of the VirtualMachine is not `tested`. Returns the
    /// stored VirtualMachine, if it exists, and whether the patch is stored.
    async fn patch_vm(
        &self,
        key: &Key,
        patch: &Patch<Value>,
        tested: Option<String>,
    ) -> Result<(Outcome, bool), Error> {
        let vms: Api<Object> = Api::namespaced_with(self.client.clone(), &key.namespace, &virtual_machines());
        let (vm, is_stored) = patch_version(&vms, &key.name, patch, tested.as_deref()).await?;
        Ok((vm.map_or(Outcome::Nothing, Outcome::Vm), is_stored))
    }

    /// Stores a lease. If another version is stored already, reads that version.
    async fn write(&self, address: MacAddr, version: Option<u64>, lease: &LeaseSpec) -> Result<Outcome, Error> {
        match self.store(address, version, lease).await? {
            Some(object) => Ok(Outcome::Lease(object)),
            None => self.read(address).await,
        }
    }

    /// Stores a lease. `version` is the stored version that is replaced. Returns `None` if the API server has another
    /// version: another leader was faster, or the response to an earlier write was lost.
    async fn store(&self, address: MacAddr, version: Option<u64>, lease: &LeaseSpec) -> Result<Option<Object>, Error> {
        let (leases, name) = (self.leases(), mac_lease_name(address));
        let mut object = Object::new(&name, &ApiResource::erase::<StaticIPLease>(&()), json!({"spec": lease}));
        object.metadata.resource_version = version.map(|version| version.to_string());
        let params = PostParams::default();
        let written = match version {
            Some(_) => ask(leases.replace(&name, &params, &object)).await,
            None => ask(leases.create(&params, &object)).await,
        };
        stored(written)
    }

    /// Reads the lease of an address.
    async fn read(&self, address: MacAddr) -> Result<Outcome, Error> {
        let name = mac_lease_name(address);
        Ok(ask(find(&self.leases(), &name)).await?.map_or(Outcome::LeaseGone(name), Outcome::Lease))
    }

    /// Reads the machine that a lease names. Releases the lease if the VirtualMachine is gone and no instance has the
    /// address.
    async fn prove(&self, address: MacAddr, version: u64, mut lease: LeaseSpec) -> Result<Outcome, Error> {
        let holder = &lease.holder;
        let api = |kind: ApiResource| Api::<Object>::namespaced_with(self.client.clone(), &holder.namespace, &kind);
        // The VirtualMachine is read first: once it is gone, KubeVirt creates no instance for it.
        let vm = ask(find(&api(virtual_machines()), &holder.name)).await?;
        let instance = ask(find(&api(instances()), &holder.name)).await?;
        let is_there = vm.as_ref().is_some_and(|vm| vm.metadata.uid.as_ref() == Some(&holder.uid));
        let is_used = instance.as_ref().is_some_and(|instance| Guest::read(instance).all.contains_key(&address));
        if is_there || is_used {
            return Ok(Outcome::Machine(Box::new([vm, instance])));
        }
        let machine = Key { namespace: holder.namespace.clone(), name: holder.name.clone() };
        release(&mut lease, Timestamp::now());
        let Some(object) = self.store(address, Some(version), &lease).await? else { return self.read(address).await };
        tracing::info!(%machine, uid = lease.holder.uid, %address, "released the MAC address of a machine");
        Ok(Outcome::Lease(object))
    }

    fn leases(&self) -> Api<Object> {
        Api::all_with(self.client.clone(), &ApiResource::erase::<StaticIPLease>(&()))
    }

    fn publish(&self, key: &Key, type_: EventType, reason: &str, note: &str) {
        match type_ {
            EventType::Normal => tracing::info!(machine = %key, reason, "{note}"),
            EventType::Warning => tracing::warn!(machine = %key, reason, "{note}"),
        }
        let uid = self.objects.vm(key).map(|vm| vm.uid().to_owned());
        let object = reference(&virtual_machines(), Some(key.namespace.clone()), key.name.clone(), uid);
        self.events.publish(object, type_, reason, note);
    }
}
