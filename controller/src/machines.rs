//! Serves the machines of KubeVirt: creates a Secret with network data for each VirtualMachine that a pool selects.
//!
//! Watches fill an index of objects. When a machine may need a change, a pass for its name decides the next request,
//! sends the request, and decides again, see `crate::passes`. The module stays correct while two leaders run at the
//! same time: the API server rejects a second lease or Secret of the same name, and a write to an outdated version of
//! an object.
//!
//! At the start, the registry first adopts the addresses that objects record, and reserves the addresses that guests
//! report. Only then does the registry allocate addresses: it processes the outstanding claims together with those of
//! Cluster API, in the order of their creation.

#[cfg(test)]
mod any_content;
mod before_opening;
mod data_of_users;
mod decision;
mod digest;
mod document;
mod kind;
mod known_machines;
mod left_alone;
mod pass;
mod proof;
mod recorded;
mod request;
mod restored;
mod secret;
mod serve;
mod settle;
mod source;
mod sources;
mod start;
mod step;
mod view;
mod work;

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::stream::BoxStream;
use glowplug::host::claim::Machine;
use tokio::sync::watch;

use crate::cluster::key::Key;
use crate::cluster::watch::Change;
use crate::ledger::types::{Holders, Stopped};
pub(crate) use crate::machines::data_of_users::{MachineObjects, reservations_of_users};
use crate::machines::kind::{Kinds, MachineKind};
use crate::machines::known_machines::KnownMachines;
pub(crate) use crate::machines::known_machines::{inventory, take_followers};
pub(crate) use crate::machines::left_alone::Standing;
pub use crate::machines::work::Machines;
use crate::machines::work::Work;
use crate::passes::provider::{self, Part};
use crate::passes::{Ended, Error, Turn, Until};
use crate::pools::selection::OpenPools;
use crate::repeated::Repeated;

// === impl Machines ===

impl Machines {
    /// Serves machines until the future is dropped or the registry ends. Calls `is_ready` after the outstanding claims
    /// of the machines that existed at the start are processed.
    ///
    /// `pools` sends the pools after each change, as soon as the registry has them. `served` sends each machine that
    /// has got new addresses.
    pub async fn run(
        &self,
        pools: watch::Receiver<Option<OpenPools>>,
        served: Holders,
        is_ready: impl Fn(),
    ) -> Result<Infallible, Stopped> {
        let discover = || Kinds::discover(&self.client);
        let work = |kinds: Kinds, others| {
            tracing::info!(has_kubevirt_machines = kinds.has_kubevirt_machines, "serving the machines of KubeVirt");
            let index = Mutex::new(KnownMachines::new(Arc::clone(self.registry.left_guests())));
            let has_status_map = AtomicBool::new(true);
            Work { machines: self, kinds, index, has_status_map, others }
        };
        let part = Part {
            name: "machines",
            kinds: "kinds of KubeVirt",
            noun: "a machine",
            registry: &self.registry,
            opening: &self.opening,
            metrics: self.metrics.passes("machines"),
            lines: Repeated::default(),
        };
        provider::run(part, pools, served, discover, work, is_ready).await
    }
}

// === impl Work ===

impl provider::Work for Work<'_> {
    type Kind = MachineKind;

    fn watches(&self) -> Vec<BoxStream<'static, (MachineKind, Change)>> {
        self.machines.macs.restart();
        self.machines.reports.restart();
        self.machines.states.forget();
        self.watches_of_kinds()
    }

    fn note_change(&self, kind: MachineKind, change: Change) -> BTreeSet<Key> {
        let names = self.note_object(kind, change);
        self.note_numbers();
        names
    }

    fn set_pools(&self, pools: OpenPools) -> BTreeSet<Key> {
        self.machines.reports.pools();
        let names = self.index().set_pools(pools);
        self.note_numbers();
        names
    }

    fn is_on(&self, key: &Key, networks: &BTreeSet<String>) -> bool {
        let index = self.index();
        index.vm(key).is_some_and(|vm| vm.networks.iter().any(|attachment| networks.contains(&attachment.network)))
    }

    fn note_holder(&self, holder: &Machine) -> BTreeSet<Key> {
        self.index().note_earlier(holder);
        [Key::of_vm(holder)].into()
    }

    async fn adopt(&self, pools: &OpenPools) -> Result<(), Error> {
        self.machines.macs.listed();
        self.machines.reports.listed();
        self.index().begin_adoption();
        let names = self.index().by_age();
        self.adopt_of(names, &pools.selection).await
    }

    async fn adopt_changes(&self, pools: &OpenPools) -> Result<(), Error> {
        let names = self.index().changed_by_age();
        match names.is_empty() {
            true => Ok(()),
            false => self.adopt_of(names, &pools.selection).await,
        }
    }

    fn claimants(&self, holders: &BTreeSet<Machine>) -> Vec<Key> {
        self.outstanding(holders)
    }

    fn names(&self, before: &BTreeSet<Machine>, holders: &BTreeSet<Machine>) -> Vec<(Key, Duration)> {
        let changed = self.index().end_adoption();
        self.names_at_the_start((before, holders), &changed)
    }

    fn turn(&self, key: &Key) -> Turn {
        if self.index().may_wait(key) { Turn::First } else { Turn::Later }
    }

    async fn pass(&self, key: Key, until: Until) -> Result<Ended, Error> {
        self.run(key, until).await
    }
}
