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

mod forget;
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
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{ApiResource, DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::runtime::events::EventType;
use kube::runtime::watcher::Event;
use kube::{Api, Client};
use pnet_base::MacAddr;
use serde_json::{Value, json};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::time::{Instant, sleep, sleep_until};

use crate::cluster::backoff::{BackOff, Postponed};
use crate::cluster::clock::Clock;
use crate::cluster::edit::pointer;
use crate::cluster::events::{Events, reference};
use crate::cluster::key::Key;
use crate::cluster::newest::Progress;
use crate::cluster::object::{Object, version_of};
use crate::cluster::request::{Error, Refusal, ask, find, patch_version, stored};
use crate::cluster::watch::{Change, Known, changes};
use crate::kinds::mac_pool::{MACPool, mac_lease_name};
use crate::kinds::pool::{LeaseSpec, StaticIPLease};
use crate::kinds::virtual_machine::{ASSIGNED_ANNOTATION, awaits_mac_addresses, instances, virtual_machines};
use crate::macs::machine::{Guest, Vm};
use crate::macs::migrated::{held, not_held, release};
use crate::macs::objects::{Objects, read_lease};
use crate::macs::plan::{Action, Plan, Subject};
use crate::metrics::Metrics;
use crate::pools::facts::Scope;
use crate::repeated::Repeated;

/// Maximum number of concurrent writes.
const IN_FLIGHT: usize = 32;
/// Maximum number of concurrent writes for the machines of one namespace: the webhooks of its users may take long.
const OF_NAMESPACE: usize = 8;
/// Longest time in which a pass sends requests. All other requests belong to the next decision.
const SENDING: Duration = Duration::from_secs(1);
/// Pauses before the next request about a machine, an address or a pool, after a failure.
const PAUSES: BackOff = BackOff::new(Duration::from_secs(1), Duration::from_secs(30));
/// Pause before the next decision while the API server has newer objects.
const BEHIND: Duration = Duration::from_secs(1);
/// Longest time between two decisions while leases are deleted.
const DELETING: Duration = Duration::from_secs(1);
/// Longest time between two decisions while too many events wait to be published.
const UNPUBLISHED: Duration = Duration::from_secs(1);
/// Shortest pause between the first of several changes and the decision about them.
const BETWEEN: Duration = Duration::from_millis(50);
/// Ratio of the pause before a decision to the duration of the last decision. If there is a pool or a lease, each
/// decision looks at every machine, so with tens of thousands of machines, one decision for each change would take too
/// much time.
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
    /// Decides when the reuse delay of an address is over.
    clock: Clock,
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
    /// For each waiting machine, the reason in its last event.
    waiting: BTreeMap<Key, (&'static str, String)>,
    /// For each address, the machines with an event about another machine that has the address.
    collisions: BTreeMap<(MacAddr, Key), ()>,
    /// For each machine, the addresses that its last event named as not held for its migrated guest.
    not_held: BTreeMap<Key, BTreeSet<MacAddr>>,
    /// The machines, addresses and pools whose last request failed.
    postponed: Postponed<Subject>,
    /// For each machine that the API server refuses, the last answer that was reported in an event.
    refused: BTreeMap<Subject, String>,
    /// The namespace whose requests the next pass sends first.
    turn: String,
    /// Limits the log lines about failed requests.
    lines: Repeated,
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
    /// Progress of the watch of VirtualMachines, sent after the change with which the watch made the progress.
    VmProgress(Progress<Key>),
    GuestProgress(Progress<Key>),
    Lease(Box<Event<Object>>),
}

#[allow(clippy::large_enum_variant, reason = "an input is moved once, and pools are few")]
enum Input {
    Fact(Fact),
    Pool(Change),
}

/// Result of a decision and its requests.
enum Pass {
    /// The known objects have changed, so a new decision may differ.
    Changed,
    /// No request had an effect, because the API server has newer objects. The watches report these objects later.
    Behind,
    /// Nothing is left to request now. The next decision follows after the change of an object, or at this time.
    Done(Instant),
}

/// What a request has changed or read.
enum Outcome {
    Vm(Object),
    VmGone(Key, u64),
    Lease(Object),
    LeaseGone(String),
    /// This version of the lease was the last one.
    LeaseDeleted(MacAddr, u64),
    Pool(Object),
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
        change.progress().into_iter().for_each(|progress| self.send(Fact::VmProgress(progress)));
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
        change.progress().into_iter().for_each(|progress| self.send(Fact::GuestProgress(progress)));
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
    /// Creates the task, and the observer to which other parts of the leader must send machines and leases. `clock` is
    /// the clock of the registry of IP addresses, too.
    #[must_use]
    pub fn new(client: Client, metrics: Arc<Metrics>, scope: Scope, clock: Clock) -> (Self, Observer) {
        let (sender, facts) = mpsc::unbounded_channel();
        let macs = Self {
            events: Events::start(client.clone()),
            client,
            metrics,
            scope,
            clock,
            facts,
            objects: Objects::default(),
            took: Duration::ZERO,
            has_machines: false,
            leases: Known::default(),
            is_listed: [false; 2],
            waiting: BTreeMap::new(),
            collisions: BTreeMap::new(),
            not_held: BTreeMap::new(),
            postponed: Postponed::new(PAUSES),
            refused: BTreeMap::new(),
            turn: String::new(),
            lines: Repeated::default(),
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
        let mut is_due = false;
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
                    Pass::Changed => {}
                    Pass::Behind => {
                        next = Instant::now() + BEHIND;
                        break;
                    }
                    Pass::Done(again) => {
                        is_due = false;
                        latest = again;
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
            Input::Fact(Fact::VmProgress(progress)) => return objects.follow_vms(&progress),
            Input::Fact(Fact::GuestProgress(progress)) => return objects.follow_guests(&progress),
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
                        Change::Remove(key, version) => {
                            objects.remove_lease(&key.name, version);
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
    ///
    /// A failed request postpones only its machine, address or pool. Otherwise, a machine that the API server refuses
    /// to change would delay all others.
    async fn pass(&mut self) -> Pass {
        let began = Instant::now();
        let is_postponed = |key: &Key| !self.postponed.is_due(&Subject::Machine(key.clone()), began);
        self.objects.set_aside.retain(is_postponed);
        let mut plan = self.objects.plan(self.clock.now());
        self.took = began.elapsed();
        let is_published = self.report(&plan);
        let statuses = std::mem::take(&mut plan.statuses).into_iter();
        let statuses = statuses.map(|(pool, patch)| Action::Report { pool, patch });
        let actions: Vec<(Subject, Action)> =
            plan.actions.into_iter().chain(statuses).map(|action| (action.subject(), action)).collect();
        let mut wanted: BTreeSet<Subject> = actions.iter().map(|(subject, _)| subject.clone()).collect();
        wanted.extend(self.objects.set_aside.iter().cloned().map(Subject::Machine));
        self.postponed.retain(|subject| wanted.contains(subject));
        self.refused.retain(|subject, _| wanted.contains(subject));

        let due = actions.into_iter().filter(|(subject, _)| self.postponed.is_due(subject, began));
        let answers = self.send(due).await;
        let (mut has_changed, mut is_behind) = (false, false);
        // The namespaces of the requests that were sent, and of the requests that there was no time to send.
        let (mut sent, mut unsent) = (BTreeSet::new(), BTreeSet::new());
        let mut again = if is_published { AGAIN } else { UNPUBLISHED };
        let mut errors: BTreeMap<Subject, Option<Error>> = BTreeMap::new();
        for (namespace, answer) in answers {
            let Some((subject, answer)) = answer else {
                unsent.insert(namespace);
                continue;
            };
            sent.insert(namespace);
            let error = errors.entry(subject).or_default();
            match answer {
                Ok(Outcome::LeaseDeleted(address, version)) => {
                    self.objects.leases.forget(&address, version);
                    again = DELETING;
                }
                Ok(outcome) => {
                    has_changed |= self.note(outcome);
                    is_behind = true;
                }
                Err(failed) => *error = Some(failed),
            }
        }
        let now = Instant::now();
        for (subject, error) in errors {
            self.postponed.note(&subject, error.is_some(), now);
            // Only a request that is refused for good sets a machine aside. After another failure, the machine keeps its
            // place before younger machines, because a retry may succeed.
            if let (Subject::Machine(key), Some(Refusal::ForGood(_))) =
                (&subject, error.as_ref().and_then(Error::refusal))
            {
                self.objects.set_aside.insert(key.clone());
            }
            match error {
                Some(error) => self.report_failure(subject, &error),
                None => drop(self.refused.remove(&subject)),
            }
        }
        self.objects.forget_migrations();
        let mut left_out = unsent.difference(&sent);
        let first = left_out.clone().find(|namespace| **namespace >= self.turn).or_else(|| left_out.next());
        self.turn = first.cloned().unwrap_or_default();
        match (has_changed || !unsent.is_empty(), is_behind) {
            (true, _) => Pass::Changed,
            (false, true) => Pass::Behind,
            (false, false) => Pass::Done(self.postponed.next().map_or(now + again, |next| next.min(now + again))),
        }
    }

    /// Sends requests, beginning with those of the namespace whose turn it is. Returns the namespace of each request,
    /// with the subject and the answer of the request. `None`: there was no time to send the request.
    #[allow(clippy::type_complexity, reason = "only one caller takes the result apart")]
    async fn send(
        &self,
        due: impl Iterator<Item = (Subject, Action)>,
    ) -> Vec<(String, Option<(Subject, Result<Outcome, Error>)>)> {
        let mut later: BTreeMap<String, Vec<(Subject, Action)>> = BTreeMap::new();
        for (subject, action) in due {
            later.entry(action.namespace().to_owned()).or_default().push((subject, action));
        }
        let first = later.split_off(&self.turn);
        let (began, permits) = (Instant::now(), &Semaphore::new(IN_FLIGHT));
        let of_namespace = |(namespace, actions): (String, Vec<(Subject, Action)>)| {
            let send = move |(subject, action)| {
                let namespace = namespace.clone();
                async move {
                    let _permit = permits.acquire().await;
                    match began.elapsed() < SENDING {
                        true => (namespace, Some((subject, self.apply(action).await))),
                        false => (namespace, None),
                    }
                }
            };
            stream::iter(actions).map(send).buffer_unordered(OF_NAMESPACE).boxed()
        };
        stream::iter(first.into_iter().chain(later)).flat_map_unordered(None, of_namespace).collect().await
    }

    /// Stores what a request has changed or read. Returns whether this may affect a decision.
    fn note(&mut self, outcome: Outcome) -> bool {
        let objects = &mut self.objects;
        match outcome {
            Outcome::Vm(object) => {
                objects.take_vm(&object);
                true
            }
            Outcome::VmGone(key, version) => {
                objects.forget_vm(&key, version);
                true
            }
            Outcome::Lease(object) => objects.apply_lease(&object),
            Outcome::LeaseGone(name) => {
                objects.remove_lease(&name, None);
                true
            }
            Outcome::Machine(machine) => {
                let [vm, instance] = *machine;
                let is_news = vm.is_some_and(|object| objects.take_vm(&object));
                is_news | instance.is_some_and(|object| objects.take_guest(&object))
            }
            Outcome::Pool(object) => objects.apply_pool(object),
            Outcome::LeaseDeleted(..) | Outcome::Nothing => false,
        }
    }

    /// Reports a failed request: the answer of the API server about a machine in an event, any other failure in the log.
    fn report_failure(&mut self, subject: Subject, error: &Error) {
        let text = error.to_string();
        match (&subject, error) {
            (Subject::Machine(key), Error::Request(kube::Error::Api(_))) => {
                if self.refused.get(&subject) != Some(&text) {
                    let note = format!("Could not store the MAC addresses of the machine: {text}");
                    if self.publish(key, EventType::Warning, "MACAddressRefused", &note) {
                        self.refused.insert(subject, text);
                    }
                }
            }
            _ => {
                if let Some(hidden) = self.lines.note(&text, Instant::now()) {
                    tracing::warn!(%subject, error = text, hidden, "could not serve MAC addresses");
                }
            }
        }
    }

    /// Publishes the events, the metrics and the namespaces of a plan. Returns `false` if too many events wait: the next
    /// decision publishes the others.
    fn report(&mut self, plan: &Plan) -> bool {
        let (mut waiting, mut not_held_before) =
            (std::mem::take(&mut self.waiting), std::mem::take(&mut self.not_held));
        let mut collisions = std::mem::take(&mut self.collisions);
        let warn = |key: &Key, reason: &str, note: &str| self.publish(key, EventType::Warning, reason, note);
        let mut is_published = publish_news(&mut waiting, &plan.waiting, |key, (reason, note)| warn(key, reason, note));
        // A machine has one event for each address. With an event about each other machine, the number of events would
        // grow with the square of the machines.
        let members = plan.collisions.iter().flat_map(|(address, keys)| keys.iter().map(|key| (*address, key.clone())));
        let members = members.map(|member| (member, ())).collect();
        is_published &= publish_news(&mut collisions, &members, |(address, key), ()| {
            let other = plan.collisions.get(address).and_then(|keys| keys.iter().find(|other| *other != key));
            let other = other.map(ToString::to_string).unwrap_or_default();
            warn(key, "MACAddressConflict", &format!("{address}: machine {other} runs with this MAC address, too"))
        });
        is_published &= publish_news(&mut not_held_before, &plan.not_held, |key, addresses| {
            warn(key, "MACAddressNotHeld", &not_held(addresses))
        });
        (self.waiting, self.collisions, self.not_held) = (waiting, collisions, not_held_before);
        let collisions = plan.collisions.iter().map(|(address, keys)| (*address, keys.len()));
        let counts = plan.counts.iter().map(|(pool, count)| (pool.as_str(), *count));
        self.metrics.set_macs(collisions, counts, plan.unreadable);
        self.namespaces.send_if_modified(|known| {
            let is_new = known.as_ref() != Some(&plan.namespaces);
            *known = Some(plan.namespaces.clone());
            is_new
        });
        is_published
    }

    async fn apply(&self, action: Action) -> Result<Outcome, Error> {
        match action {
            Action::Record { address, version, lease } => Ok(self.store(address, version, &lease).await?.0),
            Action::Assign { key, request, patch, addresses } => {
                let (outcome, is_stored) = self.assign(&key, request, patch).await?;
                if is_stored {
                    let note = format!("Allocated {}", addresses.join(", "));
                    self.publish(&key, EventType::Normal, "MACAddressAllocated", &note);
                }
                Ok(outcome)
            }
            Action::Hold { address, version, lease } => {
                let (outcome, is_stored) = self.store(address, Some(version), &lease).await?;
                if is_stored {
                    let key = Key { namespace: lease.holder.namespace, name: lease.holder.name };
                    self.publish(&key, EventType::Normal, "MACAddressHeld", &held(address));
                }
                Ok(outcome)
            }
            Action::Prove { address, version, lease } => self.prove(address, version, *lease).await,
            Action::Delete { address, version, lease } => self.delete(address, version, &lease).await,
            Action::Report { pool, patch } => {
                let pools: Api<Object> = Api::all_with(self.client.clone(), &ApiResource::erase::<MACPool>(&()));
                let patched = ask(pools.patch_status(&pool, &PatchParams::default(), &Patch::Merge(patch))).await;
                Ok(stored(patched)?.map_or(Outcome::Nothing, Outcome::Pool))
            }
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
        let version = tested.and_then(|version| version.parse().ok()).unwrap_or_default();
        Ok((vm.map_or_else(|| Outcome::VmGone(key.clone(), version), Outcome::Vm), is_stored))
    }

    /// Stores a lease. `version` is the stored version that is replaced. `None`: there is no lease. Returns what the API
    /// server has now, and whether the lease is stored. If the lease is not stored, another leader was faster, or the
    /// response to an earlier write was lost.
    ///
    /// # Errors
    ///
    /// A request failed, or was refused. After a refusal, a repetition would have the same result.
    async fn store(&self, address: MacAddr, version: Option<u64>, lease: &LeaseSpec) -> Result<(Outcome, bool), Error> {
        let (leases, name) = (self.leases(), mac_lease_name(address));
        let mut object = Object::new(&name, &ApiResource::erase::<StaticIPLease>(&()), json!({"spec": lease}));
        object.metadata.resource_version = version.map(|version| version.to_string());
        let params = PostParams::default();
        let written = match version {
            Some(_) => ask(leases.replace(&name, &params, &object)).await,
            None => ask(leases.create(&params, &object)).await,
        };
        let error = match written {
            Ok(object) => return Ok((Outcome::Lease(object), true)),
            Err(error) => error,
        };
        if !matches!(error.refusal(), Some(Refusal::Absent | Refusal::Other)) {
            return Err(error);
        }
        // The API server answers 409 if it has another version, but a webhook can also answer 409.
        match ask(find(&leases, &name)).await? {
            found if found.as_ref().map(|object| version_of(&object.metadata)) == version => Err(error),
            Some(object) => Ok((Outcome::Lease(object), false)),
            None => Ok((Outcome::LeaseGone(name), false)),
        }
    }

    /// Reads the machine that a lease names. Releases the lease if the VirtualMachine is gone and no instance has the
    /// address. If a new VirtualMachine of this name exists and is not known yet, only returns what was read.
    async fn prove(&self, address: MacAddr, version: u64, mut lease: LeaseSpec) -> Result<Outcome, Error> {
        let holder = &lease.holder;
        let api = |kind: ApiResource| Api::<Object>::namespaced_with(self.client.clone(), &holder.namespace, &kind);
        // The VirtualMachine is read first: once it is gone, KubeVirt creates no instance for it.
        let vm = ask(find(&api(virtual_machines()), &holder.name)).await?;
        let instance = ask(find(&api(instances()), &holder.name)).await?;
        let is_there = vm.as_ref().is_some_and(|vm| vm.metadata.uid.as_ref() == Some(&holder.uid));
        let is_used = instance.as_ref().is_some_and(|instance| Guest::read(instance).all.contains_key(&address));
        // A watch may report a restored VirtualMachine after this read. The VirtualMachine may have the address, so the
        // address must not become free before a decision knows the VirtualMachine.
        let is_news = |vm: &Object| self.objects.vms.is_news(&Key::of(&vm.metadata), version_of(&vm.metadata));
        if is_there || is_used || vm.as_ref().is_some_and(is_news) {
            return Ok(Outcome::Machine(Box::new([vm, instance])));
        }
        let machine = Key { namespace: holder.namespace.clone(), name: holder.name.clone() };
        release(&mut lease, self.clock.now());
        let (outcome, is_stored) = self.store(address, Some(version), &lease).await?;
        if is_stored {
            tracing::info!(%machine, uid = lease.holder.uid, %address, "released the MAC address of a machine");
        }
        Ok(outcome)
    }

    /// Deletes a released lease, if the API server still has this lease. Another machine can get the address only with
    /// a new lease, so the deletion of a released lease makes no address free.
    async fn delete(&self, address: MacAddr, version: u64, lease: &LeaseSpec) -> Result<Outcome, Error> {
        let (leases, name) = (self.leases(), mac_lease_name(address));
        let Some(object) = ask(find(&leases, &name)).await? else { return Ok(Outcome::LeaseGone(name)) };
        // After a restore of etcd, another lease may have the same version.
        if version_of(&object.metadata) != version || read_lease(&object, address).as_ref() != Ok(lease) {
            return Ok(Outcome::Lease(object));
        }
        let ObjectMeta { uid, resource_version, .. } = object.metadata;
        let params = DeleteParams::default().preconditions(Preconditions { uid, resource_version });
        match ask(leases.delete(&name, &params)).await?.left() {
            Some(object) if object.metadata.deletion_timestamp.is_some() => Err(Error::Kept),
            _ => Ok(Outcome::LeaseDeleted(address, version)),
        }
    }

    fn leases(&self) -> Api<Object> {
        Api::all_with(self.client.clone(), &ApiResource::erase::<StaticIPLease>(&()))
    }

    /// Publishes an event of a machine. Returns `false` if too many events wait.
    fn publish(&self, key: &Key, type_: EventType, reason: &str, note: &str) -> bool {
        let uid = self.objects.vm(key).map(|vm| vm.uid().to_owned());
        let object = reference(&virtual_machines(), Some(key.namespace.clone()), key.name.clone(), uid);
        let is_published = self.events.publish(object, type_, reason, note);
        match type_ {
            EventType::Normal => tracing::info!(machine = %key, reason, "{note}"),
            // The warning is logged later, when its event is published.
            EventType::Warning if is_published => tracing::warn!(machine = %key, reason, "{note}"),
            EventType::Warning => {}
        }
        is_published
    }
}

/// Makes `published` equal to `now`: removes other values, then publishes and adds missing values. Stops at the first
/// value for which `publish` returns `false`. Returns whether everything in `now` is published.
fn publish_news<K: Clone + Ord, V: Clone + PartialEq>(
    published: &mut BTreeMap<K, V>,
    now: &BTreeMap<K, V>,
    publish: impl Fn(&K, &V) -> bool,
) -> bool {
    published.retain(|key, value| now.get(key) == Some(value));
    let news: Vec<(&K, &V)> = now.iter().filter(|(key, _)| !published.contains_key(key)).collect();
    let news = news.into_iter().take_while(|(key, value)| publish(key, value));
    published.extend(news.map(|(key, value)| (key.clone(), value.clone())));
    published.len() == now.len()
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use http::{Method, Request, Response};
    use k8s_openapi::jiff::Timestamp;
    use kube::client::Body;

    use super::*;
    use crate::macs::plan::tests::{instance, leased, objects, pool, vm};

    const LEASES: &str = "/apis/ipam.glowplug.dev/v1alpha1/staticipleases";
    const EVENTS: &str = "/apis/events.k8s.io/v1/namespaces/n/events";
    const VMS: &str = "/apis/kubevirt.io/v1/namespaces/n/virtualmachines";

    /// An API server: its objects by path, the holders of the leases that were stored, and the notes of all events.
    #[derive(Default)]
    struct Server {
        objects: BTreeMap<String, Value>,
        stored: Vec<String>,
        notes: Vec<String>,
    }

    impl Server {
        /// Answers a read of any object, and a write of a lease. All other objects cannot be written.
        fn answer(&mut self, method: &Method, path: &str, body: &[u8]) -> Value {
            let (path, name) = match *method {
                Method::POST => {
                    let name = serde_json::from_slice::<Value>(body).unwrap()["metadata"]["name"].clone();
                    (format!("{path}/{}", name.as_str().unwrap_or_default()), name)
                }
                _ => (path.to_owned(), path.rsplit('/').next().into()),
            };
            if path.starts_with(EVENTS) {
                let event: Value = serde_json::from_slice(body).unwrap();
                self.notes.push(format!("{}: {}", event["regarding"]["name"], event["note"]).replace('"', ""));
            }
            if path.starts_with(LEASES) && matches!(*method, Method::POST | Method::PUT) {
                let mut lease: Value = serde_json::from_slice(body).unwrap();
                let (spec, version) = (&lease["spec"], 100 + self.stored.len());
                let state = if spec["released"].is_null() { "held" } else { "released" };
                self.stored.push(format!("{} {state} by {}", spec["address"], spec["holder"]["uid"]).replace('"', ""));
                lease["metadata"]["resourceVersion"] = version.to_string().into();
                self.objects.insert(path.clone(), lease);
            }
            let kind = path.rsplit('/').nth(1);
            let absent = json!({"apiVersion": "v1", "kind": "Status", "status": "Failure", "code": 404,
                "reason": "NotFound", "message": "not found", "details": {"name": name, "kind": kind}});
            let is_known = *method != Method::PATCH;
            self.objects.get(&path).filter(|_| is_known).cloned().unwrap_or(absent)
        }
    }

    /// Returns a client for a server. A write for a machine of a namespace whose name begins with `slow` takes ten seconds.
    fn client(server: &Arc<Mutex<Server>>) -> Client {
        let server = Arc::clone(server);
        let answer = move |request: Request<Body>| {
            let server = Arc::clone(&server);
            async move {
                let (parts, body) = request.into_parts();
                let body = body.collect_bytes().await?;
                let is_of_slow = String::from_utf8_lossy(&body).contains("\"namespace\":\"slow");
                if is_of_slow || parts.uri.path().contains("/namespaces/slow") {
                    sleep(Duration::from_secs(10)).await;
                }
                let answer = server.lock().unwrap().answer(&parts.method, parts.uri.path(), &body);
                let code = answer["code"].as_u64().map_or(200, |_| 404);
                let response = Response::builder().status(code).body(Body::from(answer.to_string().into_bytes()))?;
                Ok::<_, tower::BoxError>(response)
            }
        };
        Client::new(tower::service_fn(answer), "glowplug-system")
    }

    /// Returns the task and its observer. The task has the pool `p` with only this address.
    fn macs(server: &Arc<Mutex<Server>>, address: &str) -> (Macs, Observer) {
        let clock = Clock::starting_at(Timestamp::UNIX_EPOCH);
        let (mut macs, observer) = Macs::new(client(server), Arc::default(), Scope::default(), clock);
        macs.objects = objects();
        macs.objects.apply_pool(pool("p", &format!("{address}-{address}"), 2));
        (macs, observer)
    }

    #[tokio::test]
    async fn a_machine_and_an_instance_that_only_a_response_has_shown_are_gone_once_the_watches_have_passed_them() {
        let address = "0a:00:00:00:00:00";
        let (mut macs, observer) = macs(&Arc::default(), address);
        let (vm, mut later) = (vm("w", 1, &[("a", address)]), vm("x", 2, &[("a", "")]));
        later.metadata.resource_version = Some("6".to_owned());
        let mut instance = instance(&[address]);
        instance.metadata = vm.metadata.clone();
        macs.note(Outcome::Machine(Box::new([Some(vm), Some(instance)])));
        let mut learn = |changes: [Change; 3]| {
            for change in changes {
                observer.vm(&change);
                observer.instance(&change);
            }
            while let Ok(fact) = macs.facts.try_recv() {
                macs.learn(Input::Fact(fact));
            }
            let names = |keys: Vec<&Key>| keys.into_iter().map(|key| key.name.clone()).collect::<Vec<_>>();
            let Objects { vms, guests, .. } = &macs.objects;
            [names(vms.iter().map(|(key, _)| key).collect()), names(guests.iter().map(|(key, _)| key).collect())]
        };
        // The object `x` stands for all other VirtualMachines and instances: only its version counts here.
        let later = || Change::Apply(later.clone());
        assert_eq!(learn([Change::Lists, later(), Change::Listed]), [["x"], ["x"]]);
    }

    #[tokio::test]
    async fn a_machine_that_does_not_exist_any_more_is_patched_once_and_its_address_is_released() {
        let address = "0a:00:00:00:00:00";
        let lease = leased(address, "w", None);
        let path = format!("{LEASES}/{}", lease.metadata.name.as_deref().unwrap());
        let server = Arc::new(Mutex::new(Server { objects: [(path, json!(lease))].into(), ..Server::default() }));
        let (mut macs, _observer) = macs(&server, address);
        macs.objects.apply_lease(&lease);
        macs.objects.apply_vm(&vm("w", 1, &[("a", "")]));
        for _ in 0..3 {
            macs.pass().await;
        }
        assert_eq!(server.lock().unwrap().stored, [format!("{address} released by uid-w")]);
    }

    /// Returns the task with a pool for these namespaces. In each namespace, this number of machines needs an address.
    fn macs_of(server: &Arc<Mutex<Server>>, namespaces: &[&str], machines: usize) -> Macs {
        let (mut macs, _) = macs(server, "0a:00:00:00:00:00");
        let mut wide = pool("p", "0a:00:00:00:00:00-0a:00:00:00:00:ff", 3);
        wide.data["spec"]["namespaces"] = json!(namespaces);
        macs.objects.apply_pool(wide);
        for (namespace, at) in namespaces.iter().flat_map(|namespace| (0..machines).map(move |at| (namespace, at))) {
            let mut vm = vm(&format!("w-{at}"), 1, &[("a", "")]);
            vm.metadata.namespace = Some((*namespace).to_owned());
            vm.metadata.uid = Some(format!("uid-{namespace}"));
            macs.objects.apply_vm(&vm);
        }
        macs
    }

    /// The number of leases that were stored for the machines of each namespace.
    fn leases_by_namespace(server: &Mutex<Server>) -> BTreeMap<String, usize> {
        let mut numbers = BTreeMap::new();
        for stored in &server.lock().unwrap().stored {
            *numbers.entry(stored.rsplit("uid-").next().unwrap().to_owned()).or_default() += 1;
        }
        numbers
    }

    #[tokio::test(start_paused = true)]
    async fn a_namespace_with_slow_requests_delays_other_namespaces_by_one_request() {
        let server = Arc::<Mutex<Server>>::default();
        macs_of(&server, &["slow", "z"], 20).pass().await;
        let expected = [("slow".to_owned(), OF_NAMESPACE), ("z".to_owned(), 20)];
        assert_eq!(leases_by_namespace(&server), expected.into());
    }

    #[tokio::test(start_paused = true)]
    async fn each_of_several_namespaces_with_slow_requests_is_the_first_in_its_turn() {
        let server = Arc::<Mutex<Server>>::default();
        let mut macs = macs_of(&server, &["slow-a", "slow-b", "slow-c", "slow-d", "slow-e"], 20);
        macs.pass().await;
        let mut expected: BTreeMap<String, usize> =
            ["slow-a", "slow-b", "slow-c", "slow-d"].map(|name| (name.to_owned(), OF_NAMESPACE)).into();
        assert_eq!(leases_by_namespace(&server), expected);
        // The other namespaces could write the addresses of their first machines now, but `slow-e` is first.
        macs.pass().await;
        expected.insert("slow-e".to_owned(), OF_NAMESPACE);
        assert_eq!(leases_by_namespace(&server), expected);
    }

    #[tokio::test]
    async fn each_guest_with_the_mac_address_of_other_guests_has_one_event() {
        let server = Arc::<Mutex<Server>>::default();
        let (mut macs, _observer) = macs(&server, "0a:00:00:00:00:00");
        for (version, name) in [(5, "a"), (6, "b"), (7, "c"), (8, "d")] {
            let key = Key { namespace: "n".to_owned(), name: name.to_owned() };
            macs.objects.store_guest(key, version, Guest::read(&instance(&["52:54:00:00:00:01"])));
            let plan = macs.objects.plan(Timestamp::UNIX_EPOCH);
            assert!(macs.report(&plan));
        }
        let end = Key { namespace: "n".to_owned(), name: "end".to_owned() };
        macs.publish(&end, EventType::Normal, "End", "end");
        let notes = || server.lock().unwrap().notes.clone();
        while notes().last().is_none_or(|note| note != "end: end") {
            tokio::task::yield_now().await;
        }
        let note =
            |(name, other)| format!("{name}: 52:54:00:00:00:01: machine n/{other} runs with this MAC address, too");
        let expected = [("a", "b"), ("b", "a"), ("c", "a"), ("d", "a")].map(note);
        assert_eq!(notes()[..4], expected);
        assert_eq!(notes()[4..], ["end: end"]);
    }

    #[test]
    fn an_event_that_could_not_be_published_is_published_later_and_once() {
        let mut published = BTreeMap::new();
        let mut publish = |now: &[(&'static str, u8)], most: usize| {
            let notes = std::cell::RefCell::new(Vec::new());
            let now = now.iter().copied().collect();
            let is_published = publish_news(&mut published, &now, |name, note| {
                let has_room = notes.borrow().len() < most;
                notes.borrow_mut().extend(has_room.then_some((*name, *note)));
                has_room
            });
            (is_published, notes.into_inner())
        };
        assert_eq!(publish(&[("a", 1), ("b", 1)], 1), (false, vec![("a", 1)]));
        assert_eq!(publish(&[("a", 1), ("b", 1)], 0), (false, vec![]));
        assert_eq!(publish(&[("a", 1), ("b", 1)], 1), (true, vec![("b", 1)]));
        assert_eq!(publish(&[("a", 2), ("b", 1)], 9), (true, vec![("a", 2)]));
        assert_eq!(publish(&[("b", 1)], 9), (true, vec![]));
        assert_eq!(publish(&[("a", 2), ("b", 1)], 9), (true, vec![("a", 2)]));
    }

    #[tokio::test]
    async fn a_restored_machine_keeps_its_address_although_no_watch_has_reported_the_machine_yet() {
        let address = "0a:00:00:00:00:00";
        let lease = leased(address, "w", None);
        let mut restored = vm("w", 2, &[("a", address)]);
        restored.metadata.uid = Some("uid-2".to_owned());
        let path = format!("{LEASES}/{}", lease.metadata.name.as_deref().unwrap());
        let stored = [(path, json!(lease)), (format!("{VMS}/w"), json!(restored))];
        let server = Arc::new(Mutex::new(Server { objects: stored.into(), ..Server::default() }));
        let (mut macs, _observer) = macs(&server, address);
        macs.objects.apply_lease(&lease);
        macs.objects.apply_vm(&vm("x", 1, &[("a", "")]));
        for _ in 0..5 {
            macs.pass().await;
        }
        let expected = ["released by uid-w", "held by uid-2"].map(|state| format!("{address} {state}"));
        assert_eq!(server.lock().unwrap().stored, expected);
    }
}
