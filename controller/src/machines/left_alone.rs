//! Leaves a machine alone if its guest ran before a pool selected the machine. Such a machine keeps its own network: it
//! gets no lease, no reference and no `acpiIndex`. The decisions are pure, like those of [`super::decision`].
//!
//! The leader writes an annotation to the VirtualMachine, so that the machine is still left alone after a stop, a start
//! or a change of the leader. The machine is served in these cases:
//!
//! - The VirtualMachine is created again: the annotation has the UID of the earlier VirtualMachine.
//! - A user has removed the annotation. The leader remembers this removal until the template refers to a Secret. A
//!   leader that starts after the removal adds the annotation again if the guest still runs.
//! - The records of the machine have become leases, because its pools offer the recorded addresses now. The leader then
//!   removes the annotation.
//!
//! In the same way, an interface keeps its network if a pool selected it after the Secret of its machine was written. The
//! Secret shows this, so the machine needs no annotation. A Secret of a new name serves the interface.

use std::collections::BTreeSet;

use glowplug::network::Family;
use serde_json::json;

use crate::cluster::request::list;
use crate::kinds::kubevirt_machine::{Instance, NetworkSecret, OwnSecret, uid};
use crate::kinds::network_data::{NETWORK_DATA_LABEL, REQUESTED};
use crate::kinds::virtual_machine::{LEFT_ALONE_ANNOTATION, NetworkData, VirtualMachine};
use crate::machines::recorded::Held;
use crate::machines::step::{Notice, Once, Step};
use crate::machines::view::{LEFT_ALONE, View};
use crate::pools::selection::Selected;

/// State of the network data of a machine that a pool selects, or of one of its interfaces, according to its
/// VirtualMachine, its instance and its Secret.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Standing {
    /// The template has network data of another author.
    OwnData,
    /// The template refers to network data of the controller.
    HasSecret,
    /// The template refers to network data of the controller, but this data has no address for the interface.
    NotServed,
    /// The guest migrates from another cluster, and keeps its addresses.
    Migrates,
    /// The leader has noted that the machine is left alone.
    LeftAlone,
    /// The guest comes from another cluster, and has the network that it had there. The machine gets addresses of its
    /// own, which the guest uses after a restart.
    Arrived,
    /// The guest runs with a network of its own. Without a lease, the machine is left alone.
    Runs,
    /// No guest runs with a network of its own, so the machine gets addresses like a new machine.
    New,
}

// === impl Standing ===

impl Standing {
    pub(crate) fn of(vm: &VirtualMachine, instance: Option<&Instance>) -> Self {
        let has_data = vm.cloud_init.as_ref().is_some_and(|volume| volume.network_data != NetworkData::None);
        match () {
            () if vm.secret().is_some() => Self::HasSecret,
            () if has_data => Self::OwnData,
            () if vm.awaits_migration => Self::Migrates,
            () if vm.is_left_alone() => Self::LeftAlone,
            () if instance.is_some_and(|instance| instance.has_arrived) => Self::Arrived,
            () if instance.is_some_and(Instance::runs_without_data) => Self::Runs,
            () => Self::New,
        }
    }

    /// State of the interface on a network that a pool selects. `secret` is the Secret of the template. `None`: the
    /// Secret does not exist or is not known.
    pub(crate) fn of_interface(
        vm: &VirtualMachine,
        instance: Option<&Instance>,
        secret: Option<&NetworkSecret>,
        network: &str,
    ) -> Self {
        match secret {
            Some(NetworkSecret::Ours(own)) if !own.serves(network) => Self::NotServed,
            _ => Self::of(vm, instance),
        }
    }
}

// === impl View ===

impl View {
    /// Returns the next step for a machine that is or must be left alone. If the decision needs the instance, this step
    /// reads the instance. `None`: the machine must be served, has network data, or waits for a guest that migrates.
    ///
    /// A machine whose guest comes from another cluster is served. After a restart without network data, the guest could
    /// use the address of its source again, and this address is held only for a limited time.
    pub(super) fn leave_alone(&self, vm: &VirtualMachine, selected: &[Selected]) -> Option<Step> {
        let standing = Standing::of(vm, self.instance.as_ref());
        match standing {
            Standing::OwnData | Standing::HasSecret | Standing::NotServed | Standing::Migrates | Standing::Arrived => {
                return None;
            }
            Standing::LeftAlone if self.holds_an_address_of_each(vm, selected) && !self.has_done(Once::Annotate) => {
                return Some(Step::AnnotateVm(json!({"metadata": {
                    "uid": vm.metadata.uid, "annotations": {(LEFT_ALONE_ANNOTATION): null},
                }})));
            }
            Standing::LeftAlone => {
                let recorded = self.reserve_recorded().or_else(|| self.end_records(&BTreeSet::new(), None));
                return Some(self.hold_back(recorded.unwrap_or(Step::Wait)));
            }
            Standing::Runs | Standing::New => {}
        }
        if !self.ledger.held.is_empty() || self.memory.is_freed {
            return None;
        }
        // This pass has added the annotation already, and the API server has dropped it.
        if self.has_done(Once::LeaveAlone) {
            return Some(self.hold_back(Step::Wait));
        }
        // The watch can report the start of the guest late, so the pass reads the instance first.
        if !self.has_done(Once::ReadInstance) {
            return Some(Step::ReadInstance);
        }
        (standing == Standing::Runs).then(|| {
            let pools = list(selected.iter().flat_map(Selected::pools));
            let note = format!(
                "The guest runs already, without network data of {pools}: the machine keeps its network. To give it an address, \
                 remove the annotation {LEFT_ALONE_ANNOTATION}, then restart the machine, or create the machine again"
            );
            let patch = json!({"metadata": {
                "uid": vm.metadata.uid,
                "resourceVersion": vm.metadata.resource_version,
                "annotations": {(LEFT_ALONE_ANNOTATION): vm.metadata.uid},
            }});
            Step::LeaveAlone(patch, Notice { is_warning: false, reason: LEFT_ALONE, note })
        })
    }

    /// Returns the step for a machine with interfaces that pools selected after its Secret was written: it reports that
    /// these interfaces keep their networks. If the records of these interfaces have become leases, the step requests a
    /// Secret that serves them. `None`: the machine has no such interface.
    pub(super) fn leave_interfaces(&self, vm: &VirtualMachine, own: &OwnSecret) -> Option<Step> {
        let left: Vec<Selected> = self.not_served(own).cloned().collect();
        if left.is_empty() {
            return None;
        }
        if self.holds_an_address_of_each(vm, &left) {
            return Some(self.request_reference(vm));
        }
        let note = format!(
            "Secret {:?} has no address of {}, which selected the machine later: the machine keeps its own network on {}. To give it an \
             address there, set the label {NETWORK_DATA_LABEL}={REQUESTED} in spec.template, then restart the machine",
            own.name(),
            list(left.iter().flat_map(Selected::pools)),
            list(left.iter().map(|it| &it.attachment)),
        );
        Some(self.tell(Notice { is_warning: false, reason: LEFT_ALONE, note }))
    }

    /// Returns the interfaces that pools select and that the Secret of the machine does not serve.
    fn not_served<'v>(&'v self, own: &'v OwnSecret) -> impl Iterator<Item = &'v Selected> {
        self.selected.iter().flatten().filter(|it| !own.serves(&it.network))
    }

    /// Whether a machine holds an address of each family on each interface that pools select. If so, its records have
    /// become leases, because the pools offer the recorded addresses now. Such a machine is served as if its pools had
    /// offered these addresses from the beginning. If another program chooses the addresses of a pool, the families are
    /// not known, and one address is enough.
    fn holds_an_address_of_each(&self, vm: &VirtualMachine, selected: &[Selected]) -> bool {
        let uids = [uid(&vm.metadata), self.machine.as_ref().map_or("", |machine| uid(&machine.metadata))];
        let own = || self.ledger.held.iter().filter(|held| uids.contains(&held.claimant.machine.uid.as_str()));
        let is_held = |it: &Selected| {
            let Some(pool) = self.ledger.pools.get(&it.pool.to_string()) else { return false };
            let is_here = |held: &&Held| (&held.network, held.claimant.interface) == (&it.network, it.interface);
            let held: Vec<Family> = own().filter(is_here).map(|held| Family::of(held.address)).collect();
            !held.is_empty() && pool.spaces().all(|space| held.contains(&space.family()))
        };
        selected.iter().all(is_held)
    }

    /// Returns the names of the pools that select the machine, if the machine is left alone. Otherwise, returns the
    /// pools of the interfaces that are left alone.
    pub(super) fn pools_that_leave_alone(&self) -> BTreeSet<String> {
        let Some(vm) = &self.vm else { return BTreeSet::new() };
        let selected: Vec<&Selected> = match vm.secret().map(|name| self.secrets.get(name)) {
            None => self.selected.iter().flatten().filter(|_| vm.is_left_alone()).collect(),
            Some(Some(NetworkSecret::Ours(own))) => self.not_served(own).collect(),
            Some(_) => Vec::new(),
        };
        selected.into_iter().map(|selected| selected.pool.to_string()).collect()
    }
}
