//! Reserves the addresses that running guests report, so that no other machine gets them.
//!
//! Only the leader does this, for every instance that its rights let it see, even if no pool selects the VirtualMachine
//! or the namespace has no pool. `Reservations` decides. This module passes the changes to the registry and publishes
//! events. The module [`neighbours`] does the same for the addresses of Services and Clusters.
//!
//! A report never becomes a lease. If another machine already holds the address, that machine remains the holder, and
//! both machines get an event.

mod bounds;
pub mod neighbours;
mod reservations;

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Instant;

use futures::future;
use glowplug::host::allocator::{Allocator, Reported};
use glowplug::host::claim::{Claimant, HolderKind, Machine};
use glowplug::host::may_record::Source;
use glowplug::host::pool::Pool;
use kube::Client;
use kube::api::ApiResource;
use kube::runtime::events::EventType;
use tokio::sync::{mpsc, oneshot};
use tokio::time::sleep_until;

use crate::cluster::events::{Events, reference};
use crate::cluster::key::{Key, PoolId};
use crate::cluster::watch::Change;
use crate::kinds::guest::Guest;
use crate::kinds::pool::{GlobalStaticIPPool, StaticIPPool};
use crate::kinds::virtual_machine::{kubevirt_machines, virtual_machines};
use crate::ledger::registry::RegistryHandle;
use crate::ledger::types::Stopped;
use crate::pools::beyond::BeyondBounds;
use crate::reports::bounds::Place;
use crate::reports::reservations::{Changes, Reservation, Reservations};

/// Maximum number of facts that are processed together before their changes go to the registry.
const GROUP: usize = 10_000;
/// Reason of the event about a guest that reports an address of another machine. The other machine gets the same event.
const CONFLICT: &str = "IPAddressConflict";
/// Reason of the event about a pool that does not reserve all reported addresses.
const BEYOND: &str = "ReportedAddressNotReserved";

/// Sends VirtualMachineInstances to [`Reports`]. Another part of the leader watches these objects.
#[derive(Clone, Debug)]
pub struct Observer(mpsc::UnboundedSender<Fact>);

/// The task that reserves reported addresses.
pub struct Reports {
    registry: RegistryHandle,
    events: Events,
    beyond: Arc<BeyondBounds>,
    facts: mpsc::UnboundedReceiver<Fact>,
    reservations: Reservations,
    /// Whether the records of the start are adopted: see [`Fact::Settle`]. Until then, the task ignores the pools,
    /// because a report must not reserve an address before a record of the same address is adopted.
    has_settled: bool,
    /// While the instances are listed again: the known guests that the list has not contained so far.
    missing: BTreeSet<Key>,
}

/// The reports that a leader would find at its start, for the plugin.
#[derive(Debug, Default)]
pub(crate) struct AtStart(Reservations);

#[derive(Debug)]
enum Fact {
    /// The list of all instances begins.
    Restart,
    /// The list of all instances is complete.
    Listed,
    Guest(Key, Box<Guest>),
    Gone(Key),
    /// The registry may have other pools now. Has no effect before the first [`Fact::Settle`].
    Pools,
    /// Requests an answer, which is sent as soon as the registry has the changes of every earlier fact.
    Settle(oneshot::Sender<()>),
}

// === impl Observer ===

impl Observer {
    pub(crate) fn restart(&self) {
        self.send(Fact::Restart);
    }

    pub(crate) fn listed(&self) {
        self.send(Fact::Listed);
    }

    pub(crate) fn instance(&self, change: &Change) {
        match change {
            Change::Apply(object) => {
                self.send(Fact::Guest(Key::of(&object.metadata), Box::new(Guest::read(object))));
            }
            Change::Remove(key, _) => self.send(Fact::Gone(key.clone())),
            Change::Lists | Change::Listed => {}
        }
    }

    /// Notes that the registry may have other pools now.
    pub(crate) fn pools(&self) {
        self.send(Fact::Pools);
    }

    /// Waits until the registry has the reservations for all instances that were sent before, with its current pools.
    pub(crate) async fn settle(&self) -> Result<(), Stopped> {
        let (settled, is_settled) = oneshot::channel();
        self.send(Fact::Settle(settled));
        is_settled.await.map_err(|_| Stopped)
    }

    fn send(&self, fact: Fact) {
        // Sending fails only after the leader has ended.
        let _ = self.0.send(fact);
    }
}

// === impl AtStart ===

impl AtStart {
    /// Notes the addresses that the guest of an instance reports. If there are too many addresses, only the first
    /// addresses count.
    pub(crate) fn note(&mut self, key: &Key, guest: &Guest) {
        self.0.apply(key, guest, Instant::now());
    }

    /// Returns the reservations that a leader with these pools makes.
    pub(crate) fn reserve(mut self, pools: impl IntoIterator<Item = Pool>) -> Vec<glowplug::host::claim::Reservation> {
        self.0.set_pools(pools);
        self.0.take_changes().begun.into_iter().filter_map(reservation).collect()
    }
}

// === impl Reports ===

impl Reports {
    /// Creates the task, and the observer to which another part must send the instances. `beyond` receives the reported
    /// addresses that are not reserved.
    #[must_use]
    pub fn new(client: Client, registry: RegistryHandle, beyond: Arc<BeyondBounds>) -> (Self, Observer) {
        let (sender, facts) = mpsc::unbounded_channel();
        let (events, reservations) = (Events::start(client), Reservations::default());
        (
            Self { registry, events, beyond, facts, reservations, has_settled: false, missing: BTreeSet::new() },
            Observer(sender),
        )
    }

    /// Reserves addresses until the future is dropped or the registry stops.
    pub async fn run(mut self) -> Result<Infallible, Stopped> {
        loop {
            let end = self.reservations.next_end();
            let until_end = async {
                match end {
                    Some(end) => sleep_until(end.into()).await,
                    None => future::pending().await,
                }
            };
            let first = tokio::select! {
                Some(fact) = self.facts.recv() => Some(fact),
                () = until_end => None,
            };
            let later = std::iter::from_fn(|| self.facts.try_recv().ok());
            let facts = first.into_iter().chain(later).take(GROUP).collect();
            self.process(facts).await?;
        }
    }

    /// Processes facts, and sends the resulting changes to the registry.
    async fn process(&mut self, facts: Vec<Fact>) -> Result<(), Stopped> {
        let mut settled = Vec::new();
        let mut has_other_pools = false;
        for fact in facts {
            match fact {
                Fact::Pools => has_other_pools = true,
                Fact::Settle(receiver) => settled.push(receiver),
                fact => self.learn(fact),
            }
        }
        self.reservations.expire(Instant::now());
        self.has_settled |= !settled.is_empty();
        if has_other_pools && self.has_settled || !settled.is_empty() {
            let read = |allocator: &Allocator| allocator.pools().cloned().collect::<Vec<Pool>>();
            self.reservations.set_pools(self.registry.read(read).await?);
        }
        self.pass().await?;
        // The send fails if the caller no longer waits.
        for receiver in settled {
            let _ = receiver.send(());
        }
        Ok(())
    }

    fn learn(&mut self, fact: Fact) {
        match fact {
            Fact::Restart => self.missing = self.reservations.guests().cloned().collect(),
            Fact::Listed => {
                for key in std::mem::take(&mut self.missing) {
                    self.reservations.remove(&key);
                }
            }
            Fact::Guest(key, guest) => {
                self.missing.remove(&key);
                self.reservations.apply(&key, &guest, Instant::now());
            }
            Fact::Gone(key) => self.reservations.remove(&key),
            Fact::Pools | Fact::Settle(_) => {}
        }
    }

    /// Passes the changes to the registry, and publishes the resulting events.
    async fn pass(&mut self) -> Result<(), Stopped> {
        let changes = self.reservations.take_changes();
        if !changes.is_empty() {
            let Changes { begun, ended } = changes;
            let [begun, ended] = [begun, ended].map(|all| all.into_iter().filter_map(reservation).collect());
            for reported in self.registry.change_reports(begun, ended).await? {
                self.tell(&reported);
            }
        }
        for pool in self.beyond.set("guests", self.reservations.beyond()) {
            let note = "The pool does not reserve all addresses that guests report: see status.reportsBeyond";
            tracing::warn!(pool, reason = BEYOND, "{note}");
            let PoolId { namespace, name } = PoolId::parse(&pool);
            let kind = match namespace {
                Some(_) => ApiResource::erase::<StaticIPPool>(&()),
                None => ApiResource::erase::<GlobalStaticIPPool>(&()),
            };
            self.events.publish(reference(&kind, namespace, name, None), EventType::Warning, BEYOND, note);
        }
        Ok(())
    }

    /// Publishes events about both machines if another machine holds a reported address. Otherwise, logs the
    /// reservation if there is one.
    fn tell(&self, reported: &Reported) {
        let Reported { network, address, claimant, is_reserved, is_conflict, holder, .. } = reported;
        let guest = Key::of_vm(&claimant.machine);
        match holder {
            Some(holder) if *is_conflict => {
                let note =
                    format!("{address} of network {network}: the guest of {guest} reports it, and {holder} holds it");
                tracing::warn!(machine = %guest, reason = CONFLICT, "{note}");
                let vm = |key: Key| reference(&virtual_machines(), Some(key.namespace), key.name, None);
                self.events.publish(vm(guest), EventType::Warning, CONFLICT, &note);
                self.events.publish(vm(Key::of_vm(&holder.machine)), EventType::Warning, CONFLICT, &note);
                if holder.machine.kind == HolderKind::KubevirtMachine {
                    let Machine { namespace, name, uid, .. } = holder.machine.clone();
                    let machine = reference(&kubevirt_machines(), Some(namespace), name, Some(uid));
                    self.events.publish(machine, EventType::Warning, CONFLICT, &note);
                }
            }
            _ if *is_reserved => tracing::info!(machine = %guest, %address, network, "reserved a reported address"),
            _ => {}
        }
    }
}

/// Converts a reservation of a guest to a reservation for the registry. Never `None`, because
/// [`Pool::DEFAULT_INTERFACE`] is a valid interface name.
fn reservation(Reservation { place, uid }: Reservation) -> Option<glowplug::host::claim::Reservation> {
    let Place { guest, network, address } = place;
    let interface = Pool::DEFAULT_INTERFACE.parse().ok()?;
    let claimant = Claimant { machine: guest.holder(HolderKind::VirtualMachine, &uid), interface };
    let source = format!("VirtualMachineInstance {guest}");
    Some(glowplug::host::claim::Reservation { address, network: Some(network), claimant, source, kind: Source::Report })
}

#[cfg(test)]
mod tests {
    use glowplug::host::Timestamp;
    use kube::client::Body;
    use serde_json::json;

    use super::*;
    use crate::cluster::clock::Clock;
    use crate::metrics::Metrics;
    use crate::reports::reservations::tests::{guest, key, pool};

    /// Returns a client whose API server has no lease, and whose watches report nothing.
    fn client() -> Client {
        let answer = |request: http::Request<Body>| async move {
            if request.uri().query().is_some_and(|query| query.contains("watch=")) {
                future::pending::<()>().await;
            }
            let list = json!({"apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": "1"}, "items": []});
            Ok::<_, tower::BoxError>(http::Response::new(Body::from(list.to_string().into_bytes())))
        };
        Client::new(tower::service_fn(answer), "glowplug-system")
    }

    #[tokio::test]
    async fn a_report_reserves_nothing_before_the_records_of_the_start_are_adopted() {
        let metrics = Arc::new(Metrics::default());
        let clock = Clock::starting_at(Timestamp::UNIX_EPOCH);
        let (registry, _served) = RegistryHandle::start(client(), metrics, Arc::new(|_| {}), clock).unwrap();
        let pools = vec![pool("n/p", "n/net", &["10.0.0.0/24"], &[])];
        assert_eq!(registry.resize(pools, BTreeSet::new()).await.unwrap(), []);
        let (mut reports, _observer) = Reports::new(client(), registry.clone(), Arc::default());
        let reserved = async || {
            let address = |report: &Reported| report.address.to_string();
            let read = move |allocator: &Allocator| allocator.reports().iter().map(address).collect();
            registry.read::<Vec<String>>(read).await.unwrap()
        };
        let running = Fact::Guest(key("n/a"), Box::new(guest(&["10.0.0.5"])));
        reports.process(vec![Fact::Restart, running, Fact::Listed, Fact::Pools]).await.unwrap();
        assert_eq!(reserved().await, [""; 0]);
        let (settled, is_settled) = oneshot::channel();
        reports.process(vec![Fact::Settle(settled)]).await.unwrap();
        is_settled.await.unwrap();
        assert_eq!(reserved().await, ["10.0.0.5"]);
    }
}
