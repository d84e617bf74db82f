//! Stores the ledger of the library in [`StaticIPLease`] objects: one object for each address of a network.
//!
//! The API server rejects a second object of the same name, and a `PUT` with an old `resourceVersion`. So no address
//! has two holders: not with two leaders, not with a leader that was paused, and not after a crash between two writes.
//! If a write is rejected, the stored object is read, and the next update reports it to the allocator.
//!
//! Therefore, safety does not depend on how new the lists of a leader are:
//!
//! - An address that another claimant has cannot be allocated, because a second lease of the address would have the
//!   same name.
//! - A release has the UID and the version of the lease that the leader knows. Before a release, the leader reads the
//!   machine or claim that may be gone, and the guest that may use the addresses.
//!
//! The allocator of the library is synchronous. It runs on its own thread, and this ledger blocks that thread.

mod object;
mod write;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::{StreamExt as _, stream};
use glowplug::host::change::{Change, Update};
use glowplug::host::claim::{Claimant, Lease, Machine};
use glowplug::host::ledger::{Ledger, LedgerError, RefusedWrite, Transaction};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::ApiResource;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client, ResourceExt as _};
use serde_json::Value;
use tokio::runtime::Handle;
use tokio::sync::{broadcast, mpsc};
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout};

use crate::cluster::object::Object;
use crate::cluster::request::{Error, PATIENCE, ask, find};
use crate::cluster::watch::events;
use crate::kinds::lease_name::{lease_name, parse_lease_name};
use crate::kinds::pool::{Holder, LeaseSpec, StaticIPLease};
use crate::ledger::types::{MacLeases, Progress, UnreadableLeases};
use crate::metrics::Metrics;
use crate::repeated::Repeated;

pub(crate) use object::{holder_of, read, unreadable};
use object::{is_of_mac, spec_of, version_of};
use write::{Outcome, Write};

/// Maximum number of concurrent writes.
const IN_FLIGHT: usize = 32;

/// Time between two attempts to write a lease that the API server refuses.
const REFUSAL: Duration = Duration::from_secs(300);

/// The leases of a cluster.
#[derive(Debug)]
pub struct ApiLedger {
    api: Api<Object>,
    runtime: Handle,
    metrics: Arc<Metrics>,
    /// State of each lease, by name. The name of a deleted lease is kept until the watch reports the deletion, because
    /// the watch may report older versions before.
    known: BTreeMap<String, Known>,
    learned: Learned,
    progress: Progress,
    events: mpsc::Receiver<Event<Object>>,
    watch: AbortHandle,
    /// Number of the newest list, complete or not.
    round: u64,
    /// Whether a complete list has been received.
    is_listed: bool,
    /// Changes that the next update reports.
    unreported: Vec<Change>,
    /// Names of all doubtful and lost leases. There may also be names of leases that are no longer doubtful or lost. The
    /// next update removes these names.
    unsettled: BTreeSet<String>,
    has_reported: bool,
    unreadable: UnreadableLeases,
    /// Receives each address that another claimant may get from now on.
    freed: broadcast::Sender<IpAddr>,
    /// Limits the log lines about leases that cannot be written.
    lines: Repeated,
}

/// Holders in leases that another client has written since the leases were listed.
#[derive(Clone, Debug, Default)]
pub struct Learned(Arc<Mutex<BTreeSet<Machine>>>);

/// State of the lease of one name.
#[derive(Clone, Debug, Default)]
struct Known {
    /// The newest version that was seen. Older versions are ignored.
    version: u64,
    /// The last readable version of the lease. `None`: the object does not exist, or no version of it could be read.
    spec: Option<LeaseSpec>,
    /// UID of the object of this version.
    uid: Option<String>,
    /// Number of the newest list that contains the name.
    round: u64,
    /// Whether the stored object may differ from the known object, so that the next update reads it.
    is_doubtful: bool,
    /// `Some`: the lease was deleted without a release. It is written again, but not before this time.
    lost: Option<Instant>,
}

/// A write transaction of the ledger. It takes no lock: a conflict is detected at commit.
struct ApiTransaction<'l>(&'l mut ApiLedger);

// === impl ApiLedger ===

impl ApiLedger {
    /// Creates the ledger for the cluster of `client`. Requests run on `runtime`, which must not be the runtime of the
    /// thread that calls the ledger. `mac_leases` receives the leases of MAC addresses, which are not part of this
    /// ledger.
    #[must_use]
    pub fn new(client: Client, runtime: Handle, metrics: Arc<Metrics>, mac_leases: MacLeases) -> Self {
        let kind = ApiResource::erase::<StaticIPLease>(&());
        let leases = events(Api::all_with(client.clone(), &kind), watcher::Config::default());
        let api: Api<Object> = Api::all_with(client, &kind);
        let (sender, events) = mpsc::channel(1024);
        let watch = runtime.spawn(async move {
            let mut leases = Box::pin(leases);
            while let Some(event) = leases.next().await {
                match &event {
                    Event::InitApply(lease) | Event::Apply(lease) | Event::Delete(lease) if is_of_mac(lease) => {
                        mac_leases(event);
                        continue;
                    }
                    Event::InitApply(_) | Event::Apply(_) | Event::Delete(_) => {}
                    Event::Init | Event::InitDone => mac_leases(event.clone()),
                }
                if sender.send(event).await.is_err() {
                    return;
                }
            }
        });
        Self {
            api,
            runtime,
            metrics,
            known: BTreeMap::new(),
            learned: Learned::default(),
            progress: Progress::default(),
            events,
            watch: watch.abort_handle(),
            round: 0,
            is_listed: false,
            unreported: Vec::new(),
            unsettled: BTreeSet::new(),
            has_reported: false,
            unreadable: UnreadableLeases::default(),
            freed: broadcast::Sender::new(1),
            lines: Repeated::default(),
        }
    }

    /// Makes the ledger note its progress in `progress`.
    #[must_use]
    pub(super) fn with_progress(mut self, progress: Progress) -> Self {
        self.progress = progress;
        self
    }

    /// Makes the ledger send freed addresses to `freed`.
    #[must_use]
    pub(super) fn with_freed(mut self, freed: broadcast::Sender<IpAddr>) -> Self {
        self.freed = freed;
        self
    }

    /// Makes the ledger note in `unreadable` the leases that cannot be read.
    #[must_use]
    pub(super) fn with_unreadable(mut self, unreadable: UnreadableLeases) -> Self {
        unreadable.clear();
        self.unreadable = unreadable;
        self
    }

    /// Returns the holders in leases that another client has written.
    #[must_use]
    pub fn learned(&self) -> Learned {
        self.learned.clone()
    }

    fn update(&mut self) -> Result<Update, LedgerError> {
        while !self.is_listed {
            // A long list may take more time, so only the time between two events is limited.
            let event = self.runtime.block_on(async { timeout(PATIENCE, self.events.recv()).await });
            let event = event.map_err(|_| store("listing the leases", Error::Unanswered))?;
            self.handle(event.ok_or_else(|| store("listing the leases", "the watch ended"))?);
            self.progress.note();
        }
        loop {
            match self.events.try_recv() {
                Ok(event) => self.handle(event),
                Err(mpsc::error::TryRecvError::Empty) => break,
                Err(mpsc::error::TryRecvError::Disconnected) => {
                    return Err(store("watching the leases", "the watch ended"));
                }
            }
        }
        self.resolve()?;
        self.restore();
        let changes = std::mem::take(&mut self.unreported);
        if std::mem::replace(&mut self.has_reported, true) {
            self.report_freed(&changes);
            return Ok(Update::Delta(changes));
        }
        Ok(Update::Snapshot(changes))
    }

    fn report_freed(&self, changes: &[Change]) {
        // An error means that there is no receiver.
        changes.iter().filter_map(freed_by).for_each(|address| drop(self.freed.send(address)));
    }

    fn handle(&mut self, event: Event<Object>) {
        match event {
            Event::Init => self.round += 1,
            Event::InitApply(object) => {
                self.report_object(&object);
                if let Some(known) = self.known.get_mut(&object.name_any()) {
                    known.round = self.round;
                }
            }
            Event::InitDone => {
                // A list does not report deletions, and can be older than the known state. So the next update reads
                // each lease that is missing in the list.
                for (name, known) in &mut self.known {
                    let is_there = known.spec.is_some() || self.unreadable.has(name);
                    if is_there && known.round != self.round {
                        known.is_doubtful = true;
                        self.unsettled.insert(name.clone());
                    }
                }
                self.is_listed = true;
            }
            Event::Apply(object) => self.report_object(&object),
            Event::Delete(object) => {
                let (name, version) = (object.name_any(), version_of(&object));
                if self.known.get(&name).is_none_or(|known| known.version < version) {
                    self.note_absence(&name, version);
                    // There would otherwise be an entry for each address that was ever allocated.
                    if self.known.get(&name).is_some_and(|known| known.spec.is_none() && !known.is_doubtful) {
                        self.known.remove(&name);
                    }
                }
            }
        }
    }

    /// Stores an object, and reports it in the next update.
    fn report_object(&mut self, object: &Object) {
        let change = self.note_object(object);
        if let Some(Change::Lease { lease: Some(lease), .. }) = &change
            && self.has_reported
            && lease.released.is_none()
        {
            self.learned.add(&lease.claimant.machine);
        }
        self.unreported.extend(change);
    }

    /// Stores an object and returns the change. `None`: a newer version is known, or the object changes no lease.
    fn note_object(&mut self, object: &Object) -> Option<Change> {
        let (name, version) = (object.name_any(), version_of(object));
        let Some((address, network)) = parse_lease_name(&name) else {
            tracing::warn!(name, "ignored a StaticIPLease whose name does not contain an address and a network");
            return None;
        };
        let known = self.known.entry(name.clone()).or_default();
        if version <= known.version {
            return None;
        }
        known.version = version;
        known.uid = object.uid();
        known.lost = None;
        let lease = match read(object, address, &network) {
            Ok((spec, lease)) => {
                known.spec = Some(spec);
                self.unreadable.note(&name, None);
                lease
            }
            // A damaged lease keeps the holder of its last readable version. The holder is unknown if there is no such
            // version, or if the lease was released in that version. In each case, the address is not allocated.
            Err(error) => {
                tracing::error!(name, error, "a StaticIPLease cannot be read; its address is not allocated");
                self.unreadable.note(&name, Some(error));
                if known.spec.as_ref().is_some_and(|spec| spec.released.is_none()) {
                    return None;
                }
                unreadable(object, address)?
            }
        };
        Some(Change::Lease { network: network.into(), address, lease: Some(lease) })
    }

    /// Records that the object of a name does not exist. If the lease was not released, its address is not free, and
    /// the lease is written again.
    fn note_absence(&mut self, name: &str, version: u64) {
        self.unreadable.note(name, None);
        let known = self.known.entry(name.to_owned()).or_default();
        known.version = known.version.max(version);
        if known.spec.as_ref().is_some_and(|spec| spec.released.is_none()) {
            if known.lost.is_none() {
                tracing::error!(name, "a StaticIPLease of a machine was deleted; it is written again");
                known.lost = Some(Instant::now());
            }
            self.unsettled.insert(name.to_owned());
            return;
        }
        known.spec = None;
        if let Some((address, network)) = parse_lease_name(name) {
            self.unreported.push(Change::Lease { network: network.into(), address, lease: None });
        }
    }

    /// Reads each doubtful lease from the API server.
    fn resolve(&mut self) -> Result<(), LedgerError> {
        let (api, known) = (&self.api, &self.known);
        let is = |name: &String, of: fn(&Known) -> bool| known.get(name).is_some_and(of);
        self.unsettled.retain(|name| is(name, |known| known.is_doubtful || known.lost.is_some()));
        let doubtful: Vec<_> =
            self.unsettled.iter().filter(|name| is(name, |known| known.is_doubtful)).cloned().collect();
        let read = stream::iter(doubtful).map(|name| async move {
            let object = ask(find(api, &name)).await;
            (name, object)
        });
        let read: Vec<_> = self.runtime.block_on(read.buffered(IN_FLIGHT).collect());
        let mut failed = None;
        for (name, object) in read {
            let known = self.known.entry(name.clone()).or_default();
            known.is_doubtful = object.is_err();
            match object {
                Ok(Some(object)) => self.report_object(&object),
                Ok(None) if known.spec.is_some() || self.unreadable.has(&name) => self.note_absence(&name, 0),
                Ok(None) => {}
                Err(error) => failed = Some(store("reading a lease", error)),
            }
        }
        failed.map_or(Ok(()), Err)
    }

    /// Writes deleted leases again. If a write fails, the address stays held, and the next update tries again.
    fn restore(&mut self) {
        let mut writes = Vec::new();
        for name in &self.unsettled {
            let known = self.known.get(name).filter(|known| known.lost.is_some_and(|time| time <= Instant::now()));
            let spec = known.and_then(|known| known.spec.clone());
            if let (Some(spec), Some((address, network))) = (spec, parse_lease_name(name)) {
                let (name, network) = (name.clone(), network.into());
                writes.push(Write { name, network, address, version: None, uid: None, spec: Some(spec) });
            }
        }
        for (write, outcome) in self.write(writes) {
            match outcome {
                Outcome::Done(object) | Outcome::Refused(object) => {
                    object.iter().for_each(|object| self.report_object(object));
                }
                // The lease still counts as lost. If it was stored nevertheless, the next write finds it and reads it.
                Outcome::Failed { error, .. } => {
                    if let Some(hidden) = self.lines.note(&error.to_string(), Instant::now()) {
                        tracing::warn!(name = write.name, %error, hidden, "could not write a lease again");
                    }
                }
                Outcome::Denied(reason) => {
                    if let Some(hidden) = self.lines.note(&reason, Instant::now()) {
                        tracing::warn!(
                            name = write.name,
                            reason,
                            hidden,
                            "the API server refuses a lease of a machine"
                        );
                    }
                    self.known.entry(write.name).or_default().lost = Some(Instant::now() + REFUSAL);
                }
            }
        }
    }

    /// Returns the writes for `changes`, one for each address. `Err`: a change takes an address from its holder, or the
    /// name of a lease is invalid.
    fn writes(&self, changes: &[Change]) -> Result<Vec<Write>, LedgerError> {
        let mut last: BTreeMap<String, Write> = BTreeMap::new();
        for change in changes {
            // No other change is stored: waiting machines, missing machines and records without a lease are read from
            // the machine objects.
            let Change::Lease { network, address, lease } = change else { continue };
            let name = lease_name(*address, network).map_err(|error| store("naming a lease", error))?;
            let known = self.known.get(&name);
            let before = last
                .get(&name)
                .map_or_else(|| known.and_then(|known| known.spec.as_ref()), |write| write.spec.as_ref());
            let spec = lease.as_ref().map(|lease| self.spec(network, *address, lease, before));
            let is_held = before.is_some_and(|before| before.released.is_none());
            if is_held && before.map(|before| &before.holder) != spec.as_ref().map(|after| &after.holder) {
                return Err(LedgerError::Held { network: network.to_string(), address: *address });
            }
            let is_there = |known: &&Known| known.spec.is_some() && known.lost.is_none();
            let known = known.filter(is_there);
            let (version, uid) = (known.map(|known| known.version), known.and_then(|known| known.uid.clone()));
            let network = Arc::clone(network);
            last.insert(name.clone(), Write { name, network, address: *address, version, uid, spec });
        }
        Ok(last.into_values().filter(|write| write.spec.is_some() || write.version.is_some()).collect())
    }

    fn spec(&self, network: &str, address: IpAddr, lease: &Lease, before: Option<&LeaseSpec>) -> LeaseSpec {
        let Claimant { machine, interface } = &*lease.claimant;
        let before = before.filter(|before| holder_of(&before.holder) == *machine);
        // The VirtualMachine of a holder never moves to another namespace, and a held lease keeps the recorded
        // namespace.
        let recorded = before.and_then(|before| before.holder.vm_namespace.clone());
        let is_held = before.is_some_and(|before| before.released.is_none());
        let vm_namespace = if is_held { recorded } else { recorded.or_else(|| machine.vm_namespace.clone()) };
        // A member that a later version of the controller wrote for this holder is kept, and must not pass to another
        // holder.
        let before = before.filter(|before| before.holder.interface == interface.to_string());
        let unknown = |of: fn(&LeaseSpec) -> &BTreeMap<String, Value>| before.map(of).cloned().unwrap_or_default();
        LeaseSpec {
            network: network.to_owned(),
            address: address.to_string(),
            prefix: lease.prefix,
            pool: lease.pool.to_string(),
            holder: Holder {
                kind: machine.kind,
                namespace: machine.namespace.clone(),
                name: machine.name.clone(),
                uid: machine.uid.clone(),
                interface: interface.to_string(),
                vm_namespace,
                unknown: unknown(|before| &before.holder.unknown),
            },
            since: MicroTime(lease.since),
            released: lease.released.map(MicroTime),
            reuse_after: lease.reuse_after.map(MicroTime),
            secrets: (!machine.kind.is_claim()).then(|| lease.secrets.clone()),
            migrated: lease.migrated.map(MicroTime),
            unknown: unknown(|before| &before.unknown),
        }
    }

    fn write(&self, writes: Vec<Write>) -> Vec<(Write, Outcome)> {
        if writes.is_empty() {
            return Vec::new();
        }
        let (api, metrics, progress) = (&self.api, &self.metrics, &self.progress);
        let done = stream::iter(writes).map(|write| async move {
            let began = Instant::now();
            let unanswered = Outcome::Failed { error: Error::Unanswered, is_doubtful: true };
            let outcome = timeout(PATIENCE, write.send(api)).await.unwrap_or(unanswered);
            metrics.ledger_write_seconds.observe(began.elapsed().as_secs_f64());
            match outcome {
                Outcome::Done(_) => progress.note(),
                Outcome::Refused(_) => drop(metrics.ledger_conflicts.inc()),
                Outcome::Denied(_) | Outcome::Failed { .. } => {}
            }
            (write, outcome)
        });
        self.runtime.block_on(done.buffered(IN_FLIGHT).collect())
    }

    fn commit(&mut self, changes: &[Change]) -> Result<(), LedgerError> {
        let writes = self.writes(changes)?;
        // If a write fails, the allocator undoes all changes. The next update then reports the changes that were stored
        // nevertheless.
        let (mut decided, mut others) = (Vec::new(), Vec::new());
        let (mut held, mut failed, mut denied) = (None, None, Vec::new());
        for (write, outcome) in self.write(writes) {
            if outcome.is_doubtful() {
                self.known.entry(write.name.clone()).or_default().is_doubtful = true;
                self.unsettled.insert(write.name.clone());
            }
            match outcome {
                Outcome::Done(None) => {
                    self.unreadable.note(&write.name, None);
                    self.known.entry(write.name).or_default().spec = None;
                    decided.push(Change::Lease { network: write.network, address: write.address, lease: None });
                }
                Outcome::Done(Some(object)) => {
                    let is_own = spec_of(&object).ok() == write.spec;
                    let change = self.note_object(&object);
                    if is_own { decided.extend(change) } else { others.extend(change) }
                }
                Outcome::Refused(Some(object)) => {
                    self.report_object(&object);
                    let (network, address) = (write.network.to_string(), write.address);
                    held.get_or_insert(LedgerError::Held { network, address });
                }
                // The API server refused to delete a released lease. The lease stays, and its address stays free.
                Outcome::Denied(reason) if write.spec.is_none() => {
                    failed.get_or_insert_with(|| store(DELETING, reason));
                }
                Outcome::Denied(reason) => {
                    if let Some(hidden) = self.lines.note(&reason, Instant::now()) {
                        tracing::warn!(
                            name = write.name,
                            reason,
                            hidden,
                            "the API server refuses a lease; claims of other machines are served"
                        );
                    }
                    let Write { network, address, version, .. } = write;
                    denied.push(RefusedWrite { network, address, is_new: version.is_none(), reason });
                }
                Outcome::Refused(None) => {
                    failed.get_or_insert_with(|| store(WRITING, "another leader deleted it"));
                }
                Outcome::Failed { error, .. } => {
                    failed.get_or_insert_with(|| store(WRITING, error));
                }
            }
        }
        let denied = Some(denied).filter(|denied| !denied.is_empty()).map(LedgerError::Refused);
        if let Some(error) = failed.or(held).or(denied) {
            if matches!(error, LedgerError::Refused(_)) {
                self.progress.note();
            }
            self.unreported.append(&mut decided);
            self.unreported.append(&mut others);
            return Err(error);
        }
        self.unreported.append(&mut others);
        self.report_freed(changes);
        Ok(())
    }
}

/// Returns the address that another claimant may get after a change. `None`: the change frees no address.
fn freed_by(change: &Change) -> Option<IpAddr> {
    match change {
        Change::Lease { address, lease, .. } => {
            Some(*address).filter(|_| lease.as_ref().is_none_or(|lease| lease.released.is_some()))
        }
        Change::Conflict { address, record: None, .. } => Some(*address),
        _ => None,
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

// === impl Learned ===

impl Learned {
    /// Removes and returns the holders.
    #[must_use]
    pub fn take(&self) -> BTreeSet<Machine> {
        std::mem::take(&mut *self.lock())
    }

    fn add(&self, machine: &Machine) {
        self.lock().insert(machine.clone());
    }

    fn lock(&self) -> MutexGuard<'_, BTreeSet<Machine>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Descriptions of operations, for errors.
const WRITING: &str = "writing a lease";
const DELETING: &str = "deleting a released lease";

fn store(doing: &'static str, source: impl ToString) -> LedgerError {
    LedgerError::Store { doing, source: source.to_string().into() }
}

#[cfg(test)]
mod tests {
    use http::{Request, Response};
    use kube::client::Body;
    use serde_json::json;

    use super::*;
    use crate::cluster::object::object;

    fn lease(version: u64, released: Option<&str>) -> Object {
        let spec = json!({
            "network": "infra/vlan10", "address": "10.0.0.8", "prefix": 24, "pool": "infra/p", "since": "2026-01-01T00:00:00.000000Z",
            "holder": {"kind": "VirtualMachine", "namespace": "n", "name": "w", "uid": "u", "interface": "eno101"},
            "released": released,
        });
        let name = lease_name([10, 0, 0, 8].into(), "infra/vlan10").unwrap();
        object(json!({"metadata": {"name": name, "uid": "l", "resourceVersion": version.to_string()}, "spec": spec}))
    }

    #[tokio::test]
    async fn a_deleted_lease_is_forgotten_if_it_was_released() {
        let silent = tower::service_fn(|_: Request<Body>| std::future::pending::<kube::Result<Response<Body>>>());
        let (client, runtime) = (Client::new(silent, "n"), Handle::current());
        let mut ledger = ApiLedger::new(client, runtime, Arc::default(), Arc::new(|_| {}));
        for (released, left) in [(Some("2026-01-02T00:00:00.000000Z"), 0), (None, 1)] {
            ledger.handle(Event::Apply(lease(7, released)));
            assert_eq!(ledger.known.len(), 1);
            ledger.handle(Event::Delete(lease(8, released)));
            assert_eq!(ledger.known.len(), left, "{released:?}");
        }
    }
}
