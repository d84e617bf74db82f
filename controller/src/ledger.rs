//! The ledger of the library over [`StaticIPLease`] objects: one object for one address of one network.
//!
//! The API server refuses a second object of one name, and a `PUT` of an old `resourceVersion`. So no address has two
//! holders, with two leaders, with a leader that was paused, and after a crash between two writes. A write that is refused
//! tells what is stored instead, and the next update tells it to the allocator.
//!
//! The allocator of the library is synchronous: a thread of its own owns it, and this ledger blocks that thread.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::{StreamExt as _, stream};
use glowplug::host::change::{Change, Update};
use glowplug::host::claim::{Claimant, Lease, Machine};
use glowplug::host::ledger::{Ledger, LedgerError, Transaction};
use glowplug::host::pool::Pool;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::api::{ApiResource, DeleteParams, DynamicObject, PostParams, Preconditions};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, ResourceExt as _};
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout};

use crate::api::{Holder, HolderKind, LeaseSpec, StaticIPLease, lease_name, parse_lease_name};
use crate::metrics::Metrics;

/// How many writes are on their way at once.
const IN_FLIGHT: usize = 32;
/// How long a request may take, and how long the first list.
const PATIENCE: Duration = Duration::from_secs(30);

/// The leases of a cluster.
#[derive(Debug)]
pub struct ApiLedger {
    api: Api<DynamicObject>,
    runtime: Handle,
    metrics: Arc<Metrics>,
    /// By name. Names of deleted leases stay: an event from before the deletion may come after it.
    known: BTreeMap<String, Known>,
    kinds: Kinds,
    events: mpsc::Receiver<Event<DynamicObject>>,
    watch: AbortHandle,
    /// Names of the list that is coming, while one is.
    listed: Option<BTreeSet<String>>,
    /// Whether a list has come to its end.
    is_listed: bool,
    /// What the next update tells.
    untold: Vec<Change>,
    /// Names whose object may be another one than is known.
    doubtful: BTreeSet<String>,
    /// Names of leases that are gone although nobody released them.
    lost: BTreeSet<String>,
    has_reported: bool,
}

/// Kinds of the objects that claim, by UID. A lease names the kind, and a claim does not.
#[derive(Clone, Debug, Default)]
pub struct Kinds(Arc<Mutex<HashMap<String, HolderKind>>>);

/// What is known of a name.
#[derive(Clone, Debug, Default)]
struct Known {
    /// The newest version that was seen. What is not newer is old news.
    version: u64,
    /// The lease as it was stored last in a form that can be read. `None`: there is no object.
    spec: Option<LeaseSpec>,
}

/// A lease that is to be written.
#[derive(Clone, Debug)]
struct Write {
    name: String,
    network: Arc<str>,
    address: IpAddr,
    /// The version that it replaces. `None`: there is no object.
    version: Option<u64>,
    /// `None`: the object is to be deleted.
    spec: Option<LeaseSpec>,
}

/// What became of a write.
#[derive(Debug)]
enum Outcome {
    /// The object is as it should be, or, with `None`, gone.
    Done(Option<DynamicObject>),
    /// Another object is stored, or none is.
    Refused(Option<DynamicObject>),
    /// The request failed. Whether it was done is not known when `is_doubtful`.
    Failed { error: kube::Error, is_doubtful: bool },
    /// There was no answer in time.
    Unanswered,
}

/// A write of the ledger. It locks nothing: its commit says who was faster.
struct ApiTransaction<'l>(&'l mut ApiLedger);

// === impl ApiLedger ===

impl ApiLedger {
    /// The ledger of the cluster of `client`. Its requests run on `runtime`, which is not the runtime of the thread that
    /// calls the ledger.
    #[must_use]
    pub fn new(client: Client, runtime: Handle, metrics: Arc<Metrics>) -> Self {
        let api: Api<DynamicObject> = Api::all_with(client, &ApiResource::erase::<StaticIPLease>(&()));
        let (sender, events) = mpsc::channel(1024);
        let leases = api.clone();
        let watch = runtime.spawn(async move {
            let mut stream = watcher(leases, watcher::Config::default()).default_backoff().boxed();
            while let Some(event) = stream.next().await {
                match event {
                    Ok(event) => {
                        if sender.send(event).await.is_err() {
                            return;
                        }
                    }
                    Err(error) => tracing::warn!(%error, "could not watch the leases"),
                }
            }
        });
        Self {
            api,
            runtime,
            metrics,
            known: BTreeMap::new(),
            kinds: Kinds::default(),
            events,
            watch: watch.abort_handle(),
            listed: None,
            is_listed: false,
            untold: Vec::new(),
            doubtful: BTreeSet::new(),
            lost: BTreeSet::new(),
            has_reported: false,
        }
    }

    /// Where the kinds of objects are noted before they claim.
    #[must_use]
    pub fn kinds(&self) -> Kinds {
        self.kinds.clone()
    }

    fn update(&mut self) -> Result<Update, LedgerError> {
        let deadline = Instant::now() + PATIENCE;
        while !self.is_listed {
            let event = self.runtime.block_on(async { tokio::time::timeout_at(deadline, self.events.recv()).await });
            let event = event.map_err(|_| store("listing the leases", UNANSWERED))?;
            self.learn(event.ok_or_else(|| store("listing the leases", "the watch ended"))?);
        }
        loop {
            match self.events.try_recv() {
                Ok(event) => self.learn(event),
                Err(mpsc::error::TryRecvError::Empty) => break,
                Err(mpsc::error::TryRecvError::Disconnected) => {
                    return Err(store("watching the leases", "the watch ended"));
                }
            }
        }
        self.resolve()?;
        self.restore();
        let changes = std::mem::take(&mut self.untold);
        if std::mem::replace(&mut self.has_reported, true) {
            return Ok(Update::Delta(changes));
        }
        Ok(Update::Snapshot(changes))
    }

    fn learn(&mut self, event: Event<DynamicObject>) {
        match event {
            Event::Init => self.listed = Some(BTreeSet::new()),
            Event::InitApply(object) => {
                if let Some(listed) = &mut self.listed {
                    listed.insert(object.name_any());
                }
                self.tell_object(&object);
            }
            Event::InitDone => {
                let listed = self.listed.take().unwrap_or_default();
                // A list tells of no deletion. It may also be older than what is known, so each name is asked for.
                let there = self.known.iter().filter(|(_, known)| known.spec.is_some()).map(|(name, _)| name);
                self.doubtful.extend(there.filter(|name| !listed.contains(*name)).cloned());
                self.is_listed = true;
            }
            Event::Apply(object) => self.tell_object(&object),
            Event::Delete(object) => {
                let (name, version) = (object.name_any(), version_of(&object));
                if self.known.get(&name).is_none_or(|known| known.version < version) {
                    self.learn_absence(&name, version);
                }
            }
        }
    }

    /// Takes over an object, and tells it in the next update.
    fn tell_object(&mut self, object: &DynamicObject) {
        let change = self.learn_object(object);
        self.untold.extend(change);
    }

    /// Takes over an object and returns what is new, unless something newer is known of its name.
    fn learn_object(&mut self, object: &DynamicObject) -> Option<Change> {
        let (name, version) = (object.name_any(), version_of(object));
        let Some((address, network)) = parse_lease_name(&name) else {
            tracing::warn!(name, "a StaticIPLease whose name is no address of a network means nothing");
            return None;
        };
        let known = self.known.entry(name.clone()).or_default();
        if version <= known.version {
            return None;
        }
        known.version = version;
        self.lost.remove(&name);
        let lease = match read(object, address, &network) {
            Ok((spec, lease)) => {
                known.spec = Some(spec);
                lease
            }
            // It is held as it was before it was damaged; otherwise by nobody who is known, so that nobody gets it.
            Err(error) => {
                tracing::error!(name, error, "a StaticIPLease cannot be read; its address is not allocated");
                if known.spec.as_ref().is_some_and(|spec| spec.released.is_none()) {
                    return None;
                }
                unreadable(object, address)?
            }
        };
        Some(Change::Lease { network: network.into(), address, lease: Some(lease) })
    }

    /// Takes over that there is no object of a name. One that nobody released is not free: it is written again.
    fn learn_absence(&mut self, name: &str, version: u64) {
        let known = self.known.entry(name.to_owned()).or_default();
        known.version = known.version.max(version);
        if known.spec.as_ref().is_some_and(|spec| spec.released.is_none()) {
            self.lost.insert(name.to_owned());
            return;
        }
        known.spec = None;
        if let Some((address, network)) = parse_lease_name(name) {
            self.untold.push(Change::Lease { network: network.into(), address, lease: None });
        }
    }

    /// Reads every name of which it is not known what is stored.
    fn resolve(&mut self) -> Result<(), LedgerError> {
        let names: Vec<String> = self.doubtful.iter().cloned().collect();
        let api = &self.api;
        let read = stream::iter(names).map(|name| async move {
            let object = timeout(PATIENCE, api.get_opt(&name)).await;
            (name, object)
        });
        let read: Vec<_> = self.runtime.block_on(read.buffered(IN_FLIGHT).collect());
        let mut failed = None;
        for (name, object) in read {
            match object {
                Ok(Ok(object)) => {
                    self.doubtful.remove(&name);
                    match object {
                        Some(object) => self.tell_object(&object),
                        None if self.known.get(&name).is_some_and(|known| known.spec.is_some()) => {
                            self.learn_absence(&name, 0)
                        }
                        None => {}
                    }
                }
                Ok(Err(error)) => failed = Some(store("reading a lease", error)),
                Err(_) => failed = Some(store("reading a lease", UNANSWERED)),
            }
        }
        failed.map_or(Ok(()), Err)
    }

    /// Writes leases again that are gone. One that cannot be written stays held: the next update tries again.
    fn restore(&mut self) {
        let mut writes = Vec::new();
        for name in &self.lost {
            let spec = self.known.get(name).and_then(|known| known.spec.clone());
            if let (Some(spec), Some((address, network))) = (spec, parse_lease_name(name)) {
                tracing::error!(name, "a StaticIPLease of a machine was deleted; it is written again");
                writes.push(Write {
                    name: name.clone(),
                    network: network.into(),
                    address,
                    version: None,
                    spec: Some(spec),
                });
            }
        }
        for (write, outcome) in self.write(writes) {
            match outcome {
                Outcome::Done(object) | Outcome::Refused(object) => {
                    if let Some(object) = object {
                        self.tell_object(&object);
                    }
                }
                Outcome::Failed { error, .. } => {
                    tracing::warn!(name = write.name, %error, "could not write a lease again")
                }
                Outcome::Unanswered => tracing::warn!(name = write.name, "could not write a lease again: no answer"),
            }
        }
    }

    /// The writes that make `changes` true, one for each address. Nothing is refused but what takes an address from its
    /// holder.
    fn writes(&self, changes: &[Change]) -> Result<Vec<Write>, LedgerError> {
        let mut last: BTreeMap<String, Write> = BTreeMap::new();
        for change in changes {
            // Who waits, is missing or has a conflicting record is told by the objects of machines.
            let Change::Lease { network, address, lease } = change else { continue };
            let name = lease_name(*address, network).map_err(|error| store("naming a lease", error))?;
            let known = self.known.get(&name);
            let before = last
                .get(&name)
                .map_or_else(|| known.and_then(|known| known.spec.as_ref()), |write| write.spec.as_ref());
            let spec = match lease {
                Some(lease) => Some(self.spec(network, *address, lease, before)?),
                None => None,
            };
            let is_held = before.is_some_and(|before| before.released.is_none());
            if is_held && before.map(|before| &before.holder) != spec.as_ref().map(|after| &after.holder) {
                return Err(LedgerError::Held { network: network.to_string(), address: *address });
            }
            let is_there = known.is_some_and(|known| known.spec.is_some()) && !self.lost.contains(&name);
            let version = known.filter(|_| is_there).map(|known| known.version);
            last.insert(name.clone(), Write { name, network: Arc::clone(network), address: *address, version, spec });
        }
        Ok(last.into_values().filter(|write| write.spec.is_some() || write.version.is_some()).collect())
    }

    fn spec(
        &self,
        network: &str,
        address: IpAddr,
        lease: &Lease,
        before: Option<&LeaseSpec>,
    ) -> Result<LeaseSpec, LedgerError> {
        let Claimant { machine, interface } = &*lease.claimant;
        let before = before.map(|before| &before.holder).filter(|holder| holder.uid == machine.uid);
        let kind = before.map(|holder| holder.kind).or_else(|| self.kinds.get(machine));
        let kind = kind.ok_or_else(|| store(WRITING, format!("the kind of {machine} is not known")))?;
        Ok(LeaseSpec {
            network: network.to_owned(),
            address: address.to_string(),
            prefix: lease.prefix,
            pool: lease.pool.to_string(),
            holder: Holder {
                kind,
                namespace: machine.namespace.clone(),
                name: machine.name.clone(),
                uid: machine.uid.clone(),
                interface: interface.to_string(),
            },
            since: time(lease.since),
            released: lease.released.map(time),
            reuse_after: lease.reuse_after.map(time),
        })
    }

    fn write(&self, writes: Vec<Write>) -> Vec<(Write, Outcome)> {
        if writes.is_empty() {
            return Vec::new();
        }
        let (api, metrics) = (&self.api, &self.metrics);
        let done = stream::iter(writes).map(|write| async move {
            let began = Instant::now();
            let outcome = timeout(PATIENCE, write.send(api)).await.unwrap_or(Outcome::Unanswered);
            metrics.ledger_write_seconds.observe(began.elapsed().as_secs_f64());
            if matches!(outcome, Outcome::Refused(_)) {
                metrics.ledger_conflicts.inc();
            }
            (write, outcome)
        });
        self.runtime.block_on(done.buffered(IN_FLIGHT).collect())
    }

    fn commit(&mut self, changes: &[Change]) -> Result<(), LedgerError> {
        let writes = self.writes(changes)?;
        // The allocator takes everything back if something fails, and is then told what was recorded all the same.
        let (mut decided, mut others) = (Vec::new(), Vec::new());
        let (mut held, mut failed) = (None, None);
        for (write, outcome) in self.write(writes) {
            match outcome {
                Outcome::Done(None) => {
                    self.known.entry(write.name).or_default().spec = None;
                    decided.push(Change::Lease { network: write.network, address: write.address, lease: None });
                }
                Outcome::Done(Some(object)) => {
                    let is_own = spec_of(&object).ok() == write.spec;
                    let change = self.learn_object(&object);
                    if is_own { decided.extend(change) } else { others.extend(change) }
                }
                Outcome::Refused(Some(object)) => {
                    others.extend(self.learn_object(&object));
                    let (network, address) = (write.network.to_string(), write.address);
                    held.get_or_insert(LedgerError::Held { network, address });
                }
                Outcome::Refused(None) => {
                    self.doubtful.insert(write.name);
                    failed.get_or_insert_with(|| store(WRITING, "another leader deleted it"));
                }
                Outcome::Failed { error, is_doubtful } => {
                    if is_doubtful {
                        self.doubtful.insert(write.name);
                    }
                    failed.get_or_insert_with(|| store(WRITING, error));
                }
                Outcome::Unanswered => {
                    self.doubtful.insert(write.name);
                    failed.get_or_insert_with(|| store(WRITING, UNANSWERED));
                }
            }
        }
        if let Some(error) = held.or(failed) {
            self.untold.append(&mut decided);
            self.untold.append(&mut others);
            return Err(error);
        }
        self.untold.append(&mut others);
        Ok(())
    }
}

impl Drop for ApiLedger {
    fn drop(&mut self) {
        self.watch.abort();
    }
}

impl Ledger for ApiLedger {
    fn catch_up(&mut self) -> Result<Update, LedgerError> {
        self.update()
    }

    fn begin(&mut self) -> Result<Box<dyn Transaction + '_>, LedgerError> {
        Ok(Box::new(ApiTransaction(self)))
    }
}

impl Transaction for ApiTransaction<'_> {
    fn catch_up(&mut self) -> Result<Update, LedgerError> {
        self.0.update()
    }

    fn commit(self: Box<Self>, changes: &[Change]) -> Result<(), LedgerError> {
        self.0.commit(changes)
    }
}

// === impl Kinds ===

impl Kinds {
    /// Notes the kind of an object that claims.
    pub fn note(&self, machine: &Machine, kind: HolderKind) {
        self.lock().insert(machine.uid.clone(), kind);
    }

    fn get(&self, machine: &Machine) -> Option<HolderKind> {
        self.lock().get(&machine.uid).copied()
    }

    /// Forgets the kind of an object that will not claim again.
    pub fn forget(&self, machine: &Machine) {
        self.lock().remove(&machine.uid);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, HolderKind>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Write ===

impl Write {
    async fn send(&self, api: &Api<DynamicObject>) -> Outcome {
        let result = match (&self.spec, self.version) {
            (Some(spec), None) => api.create(&PostParams::default(), &self.object(spec)).await.map(Some),
            (Some(spec), Some(_)) => {
                api.replace(&self.name, &PostParams::default(), &self.object(spec)).await.map(Some)
            }
            (None, version) => {
                let resource_version = version.map(|version| version.to_string());
                let same = Preconditions { uid: None, resource_version };
                api.delete(&self.name, &DeleteParams::default().preconditions(same)).await.map(|_| None)
            }
        };
        match result {
            Ok(object) => Outcome::Done(object),
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => match api.get_opt(&self.name).await {
                Ok(Some(object)) if self.is_done_by(&object) => Outcome::Done(Some(object)),
                Ok(None) if self.spec.is_none() => Outcome::Done(None),
                Ok(object) => Outcome::Refused(object),
                Err(error) => Outcome::Failed { error, is_doubtful: true },
            },
            Err(error) => {
                let is_doubtful = !matches!(&error, kube::Error::Api(status) if status.code < 500);
                Outcome::Failed { error, is_doubtful }
            }
        }
    }

    fn object(&self, spec: &LeaseSpec) -> DynamicObject {
        let mut object = DynamicObject::new(&self.name, &ApiResource::erase::<StaticIPLease>(&()));
        object.metadata.resource_version = self.version.map(|version| version.to_string());
        object.data(serde_json::json!({ "spec": spec }))
    }

    /// Whether an object that is there says what this write would say: an answer was lost, or another leader was faster.
    fn is_done_by(&self, object: &DynamicObject) -> bool {
        let (Ok(is), Some(wanted)) = (spec_of(object), &self.spec) else { return false };
        is.holder == wanted.holder && is.released.is_some() == wanted.released.is_some()
    }
}

/// What is being done while a lease is written.
const WRITING: &str = "writing a lease";
/// Why a request failed that took too long.
const UNANSWERED: &str = "no answer of the API server";

fn store(doing: &'static str, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> LedgerError {
    LedgerError::Store { doing, source: source.into() }
}

/// The version of an object. API servers write a number that grows with each write.
fn version_of(object: &DynamicObject) -> u64 {
    object.resource_version().and_then(|version| version.parse().ok()).unwrap_or_default()
}

fn spec_of(object: &DynamicObject) -> Result<LeaseSpec, serde_json::Error> {
    serde_json::from_value(object.data.get("spec").cloned().unwrap_or_default())
}

/// The lease of an object whose name says the address and the network.
fn read(object: &DynamicObject, address: IpAddr, network: &str) -> Result<(LeaseSpec, Lease), String> {
    let spec = spec_of(object).map_err(|error| format!("spec: {error}"))?;
    if spec.network != network || spec.address.parse() != Ok(address) {
        return Err(format!(
            "spec: invalid address {:?} of {:?}, expected those of the name",
            spec.address, spec.network
        ));
    }
    let longest = if address.is_ipv4() { 32 } else { 128 };
    if spec.prefix > longest {
        return Err(format!("spec.prefix: invalid prefix length {}, expected at most {longest}", spec.prefix));
    }
    let holder = &spec.holder;
    let interface = holder.interface.parse();
    let interface =
        interface.map_err(|_| format!("spec.holder.interface: invalid interface {:?}", holder.interface))?;
    let machine = Machine { namespace: holder.namespace.clone(), name: holder.name.clone(), uid: holder.uid.clone() };
    let lease = Lease {
        claimant: Arc::new(Claimant { machine, interface }),
        pool: spec.pool.as_str().into(),
        prefix: spec.prefix,
        since: milliseconds(&spec.since),
        released: spec.released.as_ref().map(milliseconds),
        reuse_after: spec.reuse_after.as_ref().map(milliseconds),
    };
    Ok((spec, lease))
}

/// A lease of nobody, so that an address is not allocated. `None` never happens: the interface has a valid name.
fn unreadable(object: &DynamicObject, address: IpAddr) -> Option<Lease> {
    let machine = Machine {
        namespace: String::new(),
        name: format!("StaticIPLease {}", object.name_any()),
        uid: object.uid().unwrap_or_default(),
    };
    let interface = Pool::DEFAULT_INTERFACE.parse().ok()?;
    Some(Lease {
        claimant: Arc::new(Claimant { machine, interface }),
        pool: "".into(),
        prefix: if address.is_ipv4() { 32 } else { 128 },
        since: 0,
        released: None,
        reuse_after: None,
    })
}

fn time(milliseconds: u64) -> MicroTime {
    let milliseconds = i64::try_from(milliseconds).unwrap_or(i64::MAX);
    MicroTime(Timestamp::from_millisecond(milliseconds).unwrap_or(Timestamp::MAX))
}

fn milliseconds(time: &MicroTime) -> u64 {
    u64::try_from(time.0.as_millisecond()).unwrap_or_default()
}
