//! Decides about a machine whose network data exists: in its Secret, or from another author. Pure, as
//! [`super::decision`].

use std::collections::BTreeMap;
use std::net::IpAddr;

use glowplug::host::claim::{Allocation, Claimant, Conflict, Record};
use glowplug::host::pool::Pool;
use glowplug::host::records::{Report, annotation_patch, status_patch};
use glowplug::network::{Family, InterfaceName};
use ipnetwork::IpNetwork;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Value, json};

use crate::cluster::key::Key;
use crate::kinds::kubevirt_machine::{HandOut, STATUS_MAP, uid};
use crate::kinds::pool::HolderKind;
use crate::kinds::virtual_machine::{NetworkData, VirtualMachine};
use crate::machines::recorded::Held;
use crate::machines::step::{Notice, Once, Step};
use crate::machines::view::{KEPT, View, patch};
use crate::passes::Problem;
use crate::pools::selection::Selected;

impl View {
    /// Decides the next step for a VirtualMachine with a Secret: changes leases, annotation and status map to match the
    /// Secret.
    pub(super) fn settle(&self, vm: &VirtualMachine, hand_out: &HandOut) -> Step {
        if let Some(step) = self.adopt(hand_out).or_else(|| self.keep(hand_out)) {
            return step;
        }
        let has_data = vm.cloud_init.as_ref().is_none_or(|cloud_init| cloud_init.network_data != NetworkData::None);
        if !has_data && !self.operations.is_empty() && !self.has_done(Once::PatchVm) {
            return Step::PatchVm(patch(vm, &self.operations), None);
        }
        let step = self.project(vm, hand_out).or_else(|| self.reserve_reported(hand_out));
        step.or_else(|| self.compare_sources(vm, hand_out)).unwrap_or(Step::Wait)
    }

    /// Records the addresses that the Secret hands out and that the machine does not hold. `None`: the machine holds
    /// all of them.
    pub(super) fn adopt(&self, hand_out: &HandOut) -> Option<Step> {
        let records = hand_out.interfaces.iter().filter_map(|handed| {
            let claimant = Claimant { machine: hand_out.machine.clone(), interface: handed.interface };
            let is_held = |address: &IpNetwork| {
                self.ledger.held.iter().any(|held| {
                    held.address == address.ip() && held.network == handed.network && held.claimant == claimant
                })
            };
            let addresses: Vec<IpNetwork> = handed.addresses.iter().filter(|it| !is_held(it)).copied().collect();
            (!addresses.is_empty()).then(|| Record {
                claimant: claimant.clone(),
                node_pool: Some(handed.pool.clone()),
                attachments: Vec::new(),
                network: Some(handed.network.clone()),
                addresses,
                source: format!("Secret {}/{}-networkdata", self.key.namespace, self.key.name),
            })
        });
        let records: Vec<Record> = records.collect();
        match &self.problem {
            _ if records.is_empty() => None,
            Some(Problem::Mismatch(message)) => Some(self.report("IPAddressConflict", message.clone())),
            _ if self.has_done(Once::Adopt) => Some(Step::Wait),
            _ => Some(Step::Adopt(records)),
        }
    }

    /// Releases a second address of the same interface and family that is not in the Secret. Two leaders may have
    /// leased one address each; the address in the Secret is kept.
    fn keep(&self, hand_out: &HandOut) -> Option<Step> {
        hand_out.interfaces.iter().find_map(|handed| {
            let claimant = Claimant { machine: hand_out.machine.clone(), interface: handed.interface };
            let addresses: Vec<IpAddr> = handed.addresses.iter().map(IpNetwork::ip).collect();
            let is_double = |held: &&Held| {
                let of_family = |address: &IpAddr| Family::of(*address) == Family::of(held.address);
                held.claimant == claimant && !addresses.contains(&held.address) && addresses.iter().any(of_family)
            };
            self.ledger.held.iter().find(is_double).map(|_| Step::Keep(Box::new(claimant), addresses))
        })
    }

    /// Writes the annotation and the status map, which other programs read. `None`: both are correct or already
    /// written.
    fn project(&self, vm: &VirtualMachine, hand_out: &HandOut) -> Option<Step> {
        let allocations: Vec<Allocation> =
            hand_out.interfaces.iter().map(|handed| handed.allocation(hand_out)).collect();
        let networks: BTreeMap<InterfaceName, String> =
            hand_out.interfaces.iter().map(|handed| (handed.interface, handed.network.clone())).collect();
        let patch = annotation_patch(&hand_out.machine, &allocations, &networks, None).ok()?;
        if hand_out.machine.kind == HolderKind::VirtualMachine {
            let is_missing = !has_annotations(&vm.metadata, &patch) && !self.has_done(Once::Annotate);
            let annotations = &patch["metadata"]["annotations"];
            let patch = json!({"metadata": {"uid": vm.metadata.uid, "annotations": annotations}});
            return is_missing.then_some(Step::AnnotateVm(patch));
        }
        let machine = self.machine.as_ref().filter(|machine| machine.holder() == hand_out.machine)?;
        if !has_annotations(&machine.metadata, &patch) && !self.has_done(Once::Annotate) {
            return Some(Step::PatchMachine(patch));
        }
        let status = status_patch(&hand_out.machine, &allocations, None).ok()?;
        let is_right = machine.status_map == status["status"][STATUS_MAP];
        (!is_right && self.has_status_map && !self.has_done(Once::PatchStatus)).then_some(Step::PatchStatus(status))
    }

    /// Reserves addresses that the guest uses in addition to those in its Secret, so that no machine gets them.
    fn reserve_reported(&self, hand_out: &HandOut) -> Option<Step> {
        let interface = hand_out.interfaces.first()?.interface;
        let conflict = |report: &Report| {
            let claimant = Claimant { machine: hand_out.machine.clone(), interface };
            (report.address, report.network.clone(), Conflict { claimant, source: report.source.clone() })
        };
        let conflicts: Vec<_> = self.ledger.reported.iter().map(conflict).collect();
        let Report { address: first, source, .. } =
            self.ledger.reported.first().filter(|_| !self.has_done(Once::AddConflicts))?;
        let others = match conflicts.len() - 1 {
            0 => String::new(),
            others => format!(" and {others} more"),
        };
        let note =
            format!("{source}: the guest uses {first}{others}, expected its allocated addresses; nobody gets them");
        let notice = Notice { is_warning: true, reason: "IPAddressConflict", note };
        Some(Step::AddConflicts(conflicts, Some(notice)))
    }

    /// Reports a Secret of another author, which is not changed, and reserves its addresses, so that no machine gets
    /// them.
    pub(super) fn refuse_foreign(&self, vm: &VirtualMachine, problem: &str, addresses: &[IpAddr]) -> Step {
        let name = vm.secret_name();
        let source = format!("Secret {}/{name}", self.key.namespace);
        if let Some(step) = self.reserve(vm, &source, addresses) {
            return step;
        }
        let note = format!("Secret {name:?} is not of this controller ({problem}), expected none of this name");
        self.hold_back(self.report("IPAddressConflict", note))
    }

    /// Handles a machine that has network data of another author. The machine gets no address, and the addresses that its
    /// guest may use are reserved. `None`: the machine has no such network data.
    pub(super) fn stand_aside(&self, vm: &VirtualMachine, data: &NetworkData, selected: &[Selected]) -> Option<Step> {
        let (source, addresses) = match (data, &self.other_addresses) {
            (NetworkData::None, _) => return None,
            (NetworkData::Secret(name), _) if *name == vm.secret_name() => return None,
            (NetworkData::Secret(name), None) => return Some(Step::ReadOtherSecret(name.clone())),
            (NetworkData::Secret(name), Some(addresses)) => {
                (format!("Secret {}/{name}", self.key.namespace), addresses)
            }
            (NetworkData::Inline(addresses), _) => (format!("VirtualMachine {}", self.key), addresses),
        };
        if let Some(step) = self.reserve(vm, &source, addresses) {
            return Some(step);
        }
        let pools: Vec<String> = selected.iter().map(|selected| selected.pool.to_string()).collect();
        let note = format!("{source} has network data for the machine, so it gets no address of {}", pools.join(", "));
        Some(self.hold_back(self.report(KEPT, note)))
    }

    /// Reserves the addresses that a machine reads from `source` or reports, so that no machine gets them. `None`: no
    /// such address exists, or this pass has reserved all of them.
    fn reserve(&self, vm: &VirtualMachine, source: &str, addresses: &[IpAddr]) -> Option<Step> {
        let interface = self.selected.as_ref().ok().and_then(|selected| selected.first()).map(|it| it.interface);
        let interface = interface.or_else(|| Pool::DEFAULT_INTERFACE.parse().ok())?;
        let claimant = Claimant { machine: self.key.holder(HolderKind::VirtualMachine, uid(&vm.metadata)), interface };
        // A lease of a machine in another namespace, or of another network, is not a lease of this address.
        let is_held = |address: IpAddr, network: &Option<String>| {
            self.ledger.held.iter().any(|held| {
                let is_own = Key::of_machine(&held.claimant.machine) == self.key;
                held.address == address && is_own && network.as_ref().is_none_or(|network| *network == held.network)
            })
        };
        let networks: Vec<Option<String>> = match &self.selected {
            Ok(selected) => selected.iter().map(|selected| Some(selected.network.clone())).collect(),
            Err(_) => vec![None],
        };
        let conflict = |source: &str| Conflict { claimant: claimant.clone(), source: source.to_owned() };
        let of_network = |network: &Option<String>| {
            let unheld = addresses.iter().filter(|address| !is_held(**address, network));
            unheld.map(|address| (*address, network.clone(), conflict(source))).collect::<Vec<_>>()
        };
        let named: Vec<_> = networks.iter().flat_map(of_network).collect();
        if !named.is_empty() && !self.has_done(Once::Reserve) {
            return Some(Step::Reserve(named));
        }
        let reported = self.ledger.reported.iter();
        let reported = reported.map(|report| (report.address, report.network.clone(), conflict(&report.source)));
        let reported: Vec<_> = reported.collect();
        let is_left = !reported.is_empty() && !self.has_done(Once::AddConflicts);
        is_left.then_some(Step::AddConflicts(reported, None))
    }
}

/// Whether an object has the annotations of a merge patch.
pub(super) fn has_annotations(metadata: &ObjectMeta, patch: &Value) -> bool {
    let given = metadata.annotations.as_ref();
    patch["metadata"]["annotations"].as_object().into_iter().flatten().all(|(name, value)| {
        given.and_then(|given| given.get(name)).is_some_and(|given| Some(given.as_str()) == value.as_str())
    })
}
