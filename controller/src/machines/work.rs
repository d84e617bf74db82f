//! What the passes of machines share: the index, and the requests that read and write objects.

use std::collections::BTreeSet;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::StreamExt as _;
use futures::stream::BoxStream;
use glowplug::host::allocator::Adoption;
use glowplug::host::claim::{Machine, Record};
use k8s_openapi::api::core::v1::{ObjectReference, Secret};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::ApiResource;
use kube::runtime::events::EventType;
use kube::runtime::watcher;
use kube::{Api, Client};
use tokio::sync::mpsc;

use crate::cluster::events::{self, Events};
use crate::cluster::key::Key;
use crate::cluster::object::{Object, version_of};
use crate::cluster::request::{self, ask, find, list};
use crate::cluster::watch::{Change, changes_of};
use crate::kinds::cluster_api;
use crate::kinds::kubevirt_machine;
use crate::kinds::pool::HolderKind;
use crate::kinds::virtual_machine::VirtualMachine;
use crate::ledger::adoption;
use crate::ledger::registry::RegistryHandle;
use crate::machines::kind::{Kinds, MachineKind};
use crate::machines::known_machines::KnownMachines;
use crate::machines::source::CLAIM_LABEL;
use crate::machines::step::Notice;
use crate::machines::view::View;
use crate::metrics::Metrics;
use crate::passes::Error;
use crate::passes::opening::Opening;
use crate::pools::facts::Scope;
use crate::pools::machine_states::MachineStates;
use crate::pools::selection_cache::SelectionCache;
use crate::{macs, reports};

/// The part of a leader that serves the machines of KubeVirt.
#[derive(Clone)]
pub struct Machines {
    pub(super) client: Client,
    pub(super) registry: RegistryHandle,
    pub(super) opening: Opening,
    pub(super) events: Events,
    pub(super) metrics: Arc<Metrics>,
    pub(super) scope: Scope,
    pub(super) macs: macs::Observer,
    pub(super) reports: reports::Observer,
    /// The pools that the webhooks use. A changed pool is here before the registry has it.
    pub(super) pools: Arc<SelectionCache>,
    pub(super) states: Arc<MachineStates>,
}

/// The work of [`Machines`] while the API server serves the same `kinds`.
pub(super) struct Work<'m> {
    pub(super) machines: &'m Machines,
    pub(super) kinds: Kinds,
    pub(super) index: Mutex<KnownMachines>,
    /// Whether KubevirtMachines may have a status map. `false` after the API server has dropped the map from a write.
    pub(super) has_status_map: AtomicBool,
    /// VirtualMachines that need a pass because the pass of another name has found a lease for them.
    pub(super) others: mpsc::UnboundedSender<Key>,
}

// === impl Machines ===

impl Machines {
    /// Creates the part that serves the machines of pools. The number of parts of `opening` must include this part.
    /// `macs` receives every VirtualMachine and every instance, `reports` every instance. `pools` has the pools that
    /// the webhooks use.
    #[must_use]
    pub fn new(
        client: Client,
        registry: RegistryHandle,
        opening: Opening,
        metrics: Arc<Metrics>,
        scope: Scope,
        (macs, reports): (macs::Observer, reports::Observer),
        pools: Arc<SelectionCache>,
    ) -> Self {
        let events = Events::start(client.clone());
        Self { client, registry, opening, events, metrics, scope, macs, reports, pools, states: Arc::default() }
    }

    /// Sets where the part notes the states of machines.
    #[must_use]
    pub fn with_states(self, states: Arc<MachineStates>) -> Self {
        Self { states, ..self }
    }
}

// === impl Work ===

impl Work<'_> {
    /// Returns a stream of changes for each kind that the leader watches.
    pub(super) fn watches_of_kinds(&self) -> Vec<BoxStream<'static, (MachineKind, Change)>> {
        let watches = self.kinds.all().map(|kind| {
            let client = self.machines.client.clone();
            let api = Api::all_with(client, &kind.resource());
            let config = match kind {
                MachineKind::AddressClaim(_) => watcher::Config::default().labels(CLAIM_LABEL),
                _ => watcher::Config::default(),
            };
            changes_of(api, config).map(move |change| (kind, change)).boxed()
        });
        watches.collect()
    }

    /// Updates the index. Returns the names that may need a pass.
    pub(super) fn note_object(&self, kind: MachineKind, change: Change) -> BTreeSet<Key> {
        match kind {
            MachineKind::KubevirtMachine | MachineKind::AddressClaim(_) | MachineKind::IpamClaim => {}
            MachineKind::VirtualMachine => self.machines.macs.vm(&change),
            MachineKind::Instance => {
                self.machines.macs.instance(&change);
                self.machines.reports.instance(&change);
            }
        }
        self.index().note(kind, change)
    }

    /// Notes the number of VirtualMachines that each pool serves, for the status of the pools.
    pub(super) fn note_numbers(&self) {
        if let Some(numbers) = self.index().take_numbers() {
            self.machines.states.set_selected(numbers);
        }
    }

    /// Notes that `machine` claims addresses for the VirtualMachine of a name.
    pub(super) fn note_claimant(&self, key: &Key, machine: &Machine) {
        self.index().remember(key, |memory| memory.claimed.extend([machine.clone()]));
    }

    /// Notes KubevirtMachines that hold addresses for VirtualMachines of other namespaces. These VirtualMachines get a
    /// pass.
    pub(super) fn note_earlier(&self, earlier: &BTreeSet<Machine>) {
        let new = earlier.iter().filter(|holder| self.index().note_earlier(holder));
        // A send fails only after the passes have ended.
        new.for_each(|holder| drop(self.others.send(Key::of_vm(holder))));
    }

    /// Logs what the registry adopted: a line for each machine, and a line for each recorded address that does not
    /// match the registry. Every line about a machine in the log has the name of its VirtualMachine.
    pub(super) fn log_adoption(&self, records: &[Record], adoption: &Adoption) {
        for (holder, addresses) in adoption::adopted(records, adoption) {
            let (machine, addresses) = (Key::of_vm(&holder), list(addresses));
            tracing::info!(%machine, uid = holder.uid, addresses, "adopted the recorded addresses of a machine");
        }
        for mismatch in &adoption.mismatches {
            let machine = Key::of_vm(&mismatch.claimant.machine);
            tracing::warn!(%machine, %mismatch, "a record of a machine does not fit");
        }
    }

    /// Reads an object from the API server into the index. A pass reads only objects of its own name.
    pub(super) async fn read(&self, kind: MachineKind, key: &Key) -> Result<Option<Object>, Error> {
        let known = self.index().version(kind, key);
        let object = ask(find(&self.api(kind, key), &key.name)).await?;
        self.index().take(kind, key, known, object.clone());
        Ok(object)
    }

    /// Updates the index with the object that a write stored. `false`: the write was not stored, and the object is read
    /// again into the index.
    pub(super) async fn take(&self, kind: MachineKind, key: &Key, object: Option<Object>) -> Result<bool, Error> {
        match object {
            // The object was known before the write. If a watch has reported its deletion since, the index ignores the
            // response.
            Some(object) => {
                let known = Some(version_of(&object.metadata));
                self.index().take(kind, key, known, Some(object));
                Ok(true)
            }
            None => {
                self.read(kind, key).await?;
                Ok(false)
            }
        }
    }

    /// Logs a notice, and publishes its events.
    pub(super) fn publish(&self, view: &View, notice: &Notice) {
        let Notice { is_warning, reason, note } = notice;
        match is_warning {
            true => tracing::warn!(machine = %view.key, reason, "{note}"),
            false => tracing::info!(machine = %view.key, reason, "{note}"),
        }
        self.publish_events(view, notice);
    }

    /// Publishes an event about the VirtualMachine and an event about its KubevirtMachine.
    pub(super) fn publish_events(&self, view: &View, notice: &Notice) {
        if let Some(vm) = &view.vm {
            self.publish_about(reference_to(MachineKind::VirtualMachine, &vm.metadata), notice);
        }
        let label = view.vm.as_ref().map(VirtualMachine::kubevirt_machine);
        let is_own = label.is_none_or(|label| label.as_ref() == Some(&view.key));
        if let Some(machine) = view.machine.as_ref().filter(|_| is_own) {
            self.publish_about(reference_to(MachineKind::KubevirtMachine, &machine.metadata), notice);
        }
    }

    pub(super) fn publish_about(&self, object: ObjectReference, notice: &Notice) {
        let Notice { is_warning, reason, note } = notice;
        let type_ = if *is_warning { EventType::Warning } else { EventType::Normal };
        self.machines.events.publish(object, type_, reason, note);
    }

    /// Returns the kind of IPAddressClaims. `Err`: the API server does not serve them.
    pub(super) fn claims(&self) -> Result<MachineKind, Error> {
        let unserved = || Error::NotReady("the API server does not serve IPAddressClaims".to_owned());
        let version = self.kinds.claims.ok_or_else(unserved)?;
        Ok(MachineKind::AddressClaim(version))
    }

    pub(super) fn addresses(&self, key: &Key) -> Result<Api<Object>, Error> {
        let MachineKind::AddressClaim(version) = self.claims()? else { return Err(Error::Behind) };
        let kind = cluster_api::addresses(version);
        Ok(Api::namespaced_with(self.machines.client.clone(), &key.namespace, &kind))
    }

    /// Returns the API for objects of a kind in the namespace of a name. The API uses [`Object`], because a user can
    /// write an object that only this type can read.
    pub(super) fn api(&self, kind: MachineKind, key: &Key) -> Api<Object> {
        Api::namespaced_with(self.machines.client.clone(), &key.namespace, &kind.resource())
    }

    pub(super) fn secrets(&self, key: &Key) -> Api<Object> {
        Api::namespaced_with(self.machines.client.clone(), &key.namespace, &ApiResource::erase::<Secret>(&()))
    }

    pub(super) fn index(&self) -> MutexGuard<'_, KnownMachines> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Sends a write and waits for the object in the response.
pub(super) async fn answered(write: impl Future<Output = kube::Result<Object>>) -> Result<Object, request::Error> {
    ask(write).await
}

pub(super) fn reference(kind: MachineKind, machine: &Machine) -> ObjectReference {
    let Machine { namespace, name, uid, .. } = machine.clone();
    events::reference(&kind.resource(), Some(namespace), name, Some(uid))
}

fn reference_to(kind: MachineKind, metadata: &ObjectMeta) -> ObjectReference {
    reference(kind, &Key::of(metadata).holder(HolderKind::default(), kubevirt_machine::uid(metadata)))
}
