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

use std::collections::BTreeSet;

use glowplug::network::Family;
use serde_json::json;

use crate::cluster::request::list;
use crate::kinds::kubevirt_machine::{Instance, uid};
use crate::kinds::virtual_machine::{LEFT_ALONE_ANNOTATION, NetworkData, VirtualMachine};
use crate::machines::recorded::Held;
use crate::machines::step::{Notice, Once, Step};
use crate::machines::view::View;
use crate::pools::selection::Selected;

/// State of the network data of a machine that a pool selects, according to its VirtualMachine and its instance.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Standing {
    /// The template has network data of another author.
    OwnData,
    /// The template refers to network data of the controller.
    HasSecret,
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
            Standing::OwnData | Standing::HasSecret | Standing::Migrates | Standing::Arrived => return None,
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
            Step::LeaveAlone(patch, Notice { is_warning: false, reason: "LeftAlone", note })
        })
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

    /// Returns the names of the pools that select the machine, if the machine is left alone.
    pub(super) fn pools_that_leave_alone(&self) -> BTreeSet<String> {
        let is_left_alone = self.vm.as_ref().is_some_and(|vm| vm.is_left_alone() && vm.secret().is_none());
        let selected = self.selected.iter().flatten().filter(|_| is_left_alone);
        selected.map(|selected| selected.pool.to_string()).collect()
    }
}
