//! Decides how a machine gets its network data: a reference, addresses, then the Secret. The decisions are pure, like
//! those of [`super::decision`].

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use glowplug::diagnostic::Diagnostic;
use glowplug::host::allocator::{ClaimError, exhausted_message};
use glowplug::host::claim::{Allocation, Claim, Claimant, Machine, Request};
use glowplug::host::records::{ANNOTATION_PREFIX, annotation_key, annotation_patch};
use glowplug::network::{Family, InterfaceName};
use ipnetwork::IpNetwork;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use crate::cluster::key::{Key, PoolId};
use crate::cluster::request::list;
use crate::kinds::kubevirt_machine::{
    Given, Instance, KubevirtMachine, NetworkSecret, OwnSecret, created, is_deleted, secret, uid,
};
use crate::kinds::network_data::{NETWORK_DATA_LABEL, REQUESTED, VM_ANNOTATION, is_issued, is_issued_for, renewed};
use crate::kinds::pool::HolderKind;
use crate::kinds::virtual_machine::{ADDRESSES_ANNOTATION, Attachment, VirtualMachine};
use crate::machines::before_opening::unread_secret_of_guest;
use crate::machines::recorded::Held;
use crate::machines::settle::{has_annotations, marks};
use crate::machines::source::Offer;
use crate::machines::step::{Notice, Once, Release, Step};
use crate::machines::view::{Claimed, Granted, View, patch};
use crate::passes::Problem;
use crate::pools::reference;
use crate::pools::selection::Selected;

/// Annotation of a KubevirtMachine. The controller changes the value so that capk retries at once.
const RETRY_ANNOTATION: &str = "ipam.glowplug.dev/retry";

impl View {
    /// Returns the step that checks a holder of this name in the registry that is possibly gone. `None`: there is no such
    /// holder, or this pass has checked all of these holders.
    pub(super) fn look_for_the_gone(&self) -> Option<Step> {
        self.check_first(self.ledger.known.iter().chain(&self.ledger.waiting).chain(&self.memory.claimed))
    }

    /// Returns the step that checks the first of these holders that is possibly gone and that this pass has not checked.
    /// `None`: there is no such holder.
    ///
    /// A holder is possibly gone if no known object has its UID. A KubevirtMachine of another namespace is possibly
    /// gone if no VirtualMachine of this name is known.
    pub(super) fn check_first<'v>(&self, holders: impl Iterator<Item = &'v Machine>) -> Option<Step> {
        let mut unchecked = holders.filter(|holder| !self.checked.contains_key(*holder));
        let vm = self.vm.as_ref();
        let uids = [vm.map(|vm| uid(&vm.metadata)), self.machine.as_ref().map(|machine| uid(&machine.metadata))];
        let may_be_gone = |holder: &Machine| {
            let is_there = match self.ledger.earlier.contains(holder) {
                true => vm.is_some(),
                false => uids.contains(&Some(holder.uid.as_str())),
            };
            !is_there
        };
        unchecked.find(|holder| may_be_gone(holder)).map(|holder| Step::Prove(holder.clone()))
    }

    pub(super) fn serve(&self, vm: &VirtualMachine) -> Step {
        let is_selected = self.selected.as_ref().map_or(true, |selected| !selected.is_empty());
        let Some(name) = vm.secret() else {
            return match is_selected {
                true => self.provide(vm, None),
                false => self.end_data_of_user(vm).unwrap_or_else(|| self.leave(vm)),
            };
        };
        // If no pool selects a machine, the controller handles it only in two cases: the registry knows a machine of
        // this name, or the leases are lost and the Secret of the machine has its addresses. But a user may also have
        // created this Secret.
        if !is_selected && self.ledger.known.is_empty() {
            match self.secrets.get(name) {
                _ if self.ledger.is_of_another => return self.hold_back(Step::Wait),
                None => return Step::ReadSecret(name.to_owned()),
                Some(NetworkSecret::Ours(_)) => {}
                // The pool of the machine was deleted before the machine was served.
                Some(NetworkSecret::Absent) => return self.refuse(without_secret(name)),
                Some(NetworkSecret::Foreign(_, addresses)) => {
                    return self.reserve_foreign(name, addresses).unwrap_or_else(|| self.hold_back(Step::Wait));
                }
            }
        }
        let has_pools = self.has_pools();
        let is_copied = is_issued(name) && !is_issued_for(name, &self.key.name);
        if has_pools && (vm.mark.is_request() || is_copied) {
            return self.request_reference(vm);
        }
        // The Secret belongs to another machine, and only a pool can give this machine a Secret of its own.
        if is_copied {
            let note = format!(
                "The template refers to Secret {name:?} of another machine, and no pool gives the machine another Secret"
            );
            return self.refuse(note);
        }
        match self.secrets.get(name) {
            None => Step::ReadSecret(name.to_owned()),
            // A user has copied the reference of another machine, or has changed the Secret.
            Some(NetworkSecret::Foreign(_, addresses)) if is_selected && is_issued(name) => {
                self.reserve_foreign(name, addresses).unwrap_or_else(|| self.request_reference(vm))
            }
            Some(NetworkSecret::Foreign(problem, addresses)) => self.refuse_foreign(name, problem, addresses),
            Some(NetworkSecret::Ours(own)) if self.is_on_other_network(vm, own) => match is_selected {
                true => self.request_reference(vm),
                false => self.remove_reference(vm, name),
            },
            Some(NetworkSecret::Ours(own)) if own.vm == uid(&vm.metadata) => self.settle(vm, own),
            // The Secret belongs to another machine. The guest of this machine must not read it.
            Some(NetworkSecret::Ours(_)) if is_selected => {
                self.restore_first(vm).unwrap_or_else(|| self.request_reference(vm))
            }
            Some(NetworkSecret::Ours(_)) => self.hold_back(Step::Wait),
            Some(NetworkSecret::Absent) => self.provide(vm, Some(name)),
        }
    }

    /// Whether pools select the machine without ambiguity, so that it can get a new Secret. A pool that is being deleted
    /// does not count.
    pub(super) fn has_pools(&self) -> bool {
        self.selected.as_ref().is_ok_and(|selected| !selected.is_empty())
    }

    /// Returns the next step that adopts the addresses in the Secret of a guest, reserves the addresses that a user has
    /// written, or adds the name of this Secret to the leases. `None`: nothing is left to do, [`View::settle`] reads
    /// the same Secret for the template, the guest reads no Secret of this controller, or another controller
    /// serves the machine.
    pub(super) fn adopt_guest(&self) -> Option<Step> {
        let (objects, selected) = ((self.vm.as_ref(), self.instance.as_ref()), self.selected.as_deref());
        let name = unread_secret_of_guest(objects, selected.unwrap_or_default(), |name| self.leased_on(name))?;
        match self.secrets.get(name) {
            _ if self.ledger.is_of_another => None,
            None => Some(Step::ReadSecret(name.to_owned())),
            Some(NetworkSecret::Ours(own)) => {
                let record = || self.record_secret(own).filter(|_| !self.is_unproven());
                self.adopt_or_reserve(own).or_else(record)
            }
            Some(NetworkSecret::Foreign(_, addresses)) => self.reserve_foreign(name, addresses),
            Some(NetworkSecret::Absent) => None,
        }
    }

    /// Returns the step that requests a reference to a Secret with a new name. The webhook adds the reference, because
    /// KubeVirt and the user's tools own the volumes and interfaces of a VirtualMachine. The leader adds the reference
    /// only if no webhook answers.
    pub(super) fn request_reference(&self, vm: &VirtualMachine) -> Step {
        let early = self.instance.as_ref().filter(|instance| instance.secret().is_none());
        let notice = early.map(|_| Notice::of_early_guest());
        if !self.has_done(Once::RequestReference) {
            let version = vm.metadata.resource_version.as_deref().unwrap_or_default();
            let marks = marks(&self.key, &format!("{REQUESTED}-{version}"));
            let ObjectMeta { uid, resource_version, .. } = &vm.metadata;
            let patch = json!({
                "metadata": {"uid": uid, "resourceVersion": resource_version},
                "spec": {"template": {"metadata": marks}},
            });
            return Step::RequestReference(patch, notice);
        }
        if self.has_done(Once::PatchVm) {
            // The webhook has added no reference: it may still use older pools.
            return self.report("NetworkDataMissing", "The template refers to no Secret of the machine".to_owned());
        }
        // If the choice of pools is ambiguous, the instance waits for its new Secret until the choice is clear.
        let selected = self.selected.iter().flatten().chain(&self.kept);
        let selected: Vec<Selected> = selected.cloned().collect();
        let members = reference::reference(vm, &selected, &self.new_name, &renewed(&self.new_name));
        Step::PatchVm(patch(vm, &reference::operations(members)), notice)
    }

    /// Returns the step that removes the reference to a Secret whose address is on another network than the machine. No
    /// pool selects the machine, so the machine gets no other network data.
    fn remove_reference(&self, vm: &VirtualMachine, name: &str) -> Step {
        if self.ledger.is_of_another {
            return self.hold_back(Step::Wait);
        }
        let note = format!(
            "Secret {name:?} has an address of another network, and no pool selects the machine: the controller removes the reference \
             to this Secret; the guest has no network data after its next start"
        );
        let notice = Notice { is_warning: true, reason: "NetworkDataMissing", note };
        self.hold_back(match self.has_done(Once::PatchVm) {
            // The webhook may still use older pools.
            true => self.tell(notice),
            false => Step::PatchVm(patch(vm, &reference::removal(vm)), Some(notice)),
        })
    }

    /// Whether a lease says that this Secret belonged to an earlier machine. A VirtualMachine that was restored while
    /// no webhook answered still refers to such a Secret, and the garbage collector may have deleted the Secret.
    fn is_of_earlier(&self, secret: &str, vm: &VirtualMachine, machine: &Machine) -> bool {
        let is_other = |holder: &Machine| holder != machine && holder.uid != uid(&vm.metadata);
        self.ledger.held.iter().any(|held| is_other(&held.claimant.machine) && held.secrets.contains(secret))
    }

    /// Whether an interface that has an address in a Secret is on another network now.
    fn is_on_other_network(&self, vm: &VirtualMachine, own: &OwnSecret) -> bool {
        own.interfaces.iter().any(|given| !self.networks_after_move(&vm.networks, given, own).is_empty())
    }

    /// Returns the networks on which an interface may be now that has addresses of another network in a Secret, see
    /// [`reference::networks_after_move`]. `all`: the interfaces of the machine, or of its guest.
    pub(super) fn networks_after_move<'a>(
        &self,
        all: &'a [Attachment],
        given: &Given,
        own: &OwnSecret,
    ) -> BTreeSet<&'a str> {
        let is_new = |it: &Attachment| own.interfaces.iter().all(|given| given.network != it.network);
        let selected = self.selected.as_deref().unwrap_or_default();
        reference::networks_after_move(all, (given.interface, &given.network), selected, is_new)
    }

    /// Returns the step that removes the marks from the template of a machine without network data, so that the machine
    /// starts. No pool selects the machine.
    fn leave(&self, vm: &VirtualMachine) -> Step {
        if vm.mark.is_absent() || self.ledger.is_of_another || self.has_done(Once::Annotate) {
            return self.hold_back(Step::Wait);
        }
        let marks = json!({"labels": {(NETWORK_DATA_LABEL): null}, "annotations": {(VM_ANNOTATION): null}});
        self.hold_back(Step::AnnotateVm(json!({
            "metadata": {"uid": vm.metadata.uid}, "spec": {"template": {"metadata": marks}},
        })))
    }

    /// Returns the object that claims addresses for a VirtualMachine. `None`: no object can claim now. `Err`: this step
    /// must be done before the object is known.
    pub(super) fn claimant(&self, vm: &VirtualMachine) -> Result<Option<Claimed>, Step> {
        let label = vm.kubevirt_machine().filter(|_| self.kinds.has_kubevirt_machines);
        let itself = || Claimed {
            machine: self.key.holder(HolderKind::VirtualMachine, uid(&vm.metadata)),
            created: created(&vm.metadata).unwrap_or_default(),
        };
        let of_machine =
            |machine: Machine, created: Option<Timestamp>| Claimed { machine, created: created.unwrap_or_default() };
        let Some(label) = label else { return Ok(Some(itself())) };
        if label != self.key {
            // The KubevirtMachine is in another cluster or in another namespace, or the labels are false. An earlier
            // version of the controller may have allocated an address to this KubevirtMachine.
            let earlier = self.ledger.earlier.iter().find(|holder| Key::of_machine(holder) == label);
            let earlier = earlier.map(|holder| of_machine(holder.clone(), created(&vm.metadata)));
            return Ok(Some(earlier.unwrap_or_else(itself)));
        }
        let holds = |holder: &Machine| Key::of_machine(holder) == label;
        match &self.machine {
            // This KubevirtMachine holds addresses that a guest in another namespace uses.
            Some(machine) if self.ledger.elsewhere.contains(&machine.holder()) => Ok(Some(itself())),
            Some(machine) => {
                let claimed = of_machine(machine.holder(), created(&machine.metadata));
                Ok(Some(claimed).filter(|_| !is_deleted(&machine.metadata)))
            }
            None if !self.has_done(Once::ReadMachine) => Err(Step::ReadMachine(label)),
            // The KubevirtMachine is gone, but a guest may use its addresses. After their release, the VirtualMachine
            // claims addresses itself, and gets the same addresses again.
            None if self
                .ledger
                .known
                .iter()
                .any(|holder| holder.kind == HolderKind::KubevirtMachine && holds(holder)) =>
            {
                Ok(None)
            }
            // The KubevirtMachine is in another cluster, its VirtualMachine is in another namespace, or the labels are
            // false.
            None => Ok(Some(itself())),
        }
    }

    /// Whether an interface keeps its network although the Secret `name` of the template does not exist: a pool selected
    /// the interface after the template got the reference, so the template has no index for it. For an interface
    /// that never has an index, a guest that has read this Secret and a lease with its name show this. Only a Secret of
    /// a new name serves the interface.
    fn keeps_its_network(&self, (vm, name): (&VirtualMachine, &str), selected: &Selected, machine: &Machine) -> bool {
        let is_named = |held: &Held| held.claimant.machine == *machine && held.secrets.contains(name);
        let is_excluded = || self.ledger.excluded().any(|(network, _)| *network == selected.network);
        // Without a guest that has read the Secret, a refused lease may be the reason why the Secret does not exist.
        let is_read = self.instance.as_ref().is_some_and(|it| it.has_started && it.secret() == Some(name));
        let is_later = || reference::lacks_index(vm, selected) || is_read && self.ledger.held.iter().any(is_named);
        !self.holds_address(machine, selected) && !reference::has_index(vm, selected) && !is_excluded() && is_later()
    }

    /// Returns the next step for a VirtualMachine without a Secret: request a reference to a Secret, claim addresses,
    /// or create the Secret. `name` is the name in the reference, or `None` without a reference.
    fn provide(&self, vm: &VirtualMachine, name: Option<&str>) -> Step {
        let selected = match &self.selected {
            Ok(selected) => selected,
            Err(problem) => {
                let data = vm.cloud_init.as_ref().map(|cloud_init| &cloud_init.network_data);
                // A machine with network data of its own starts without a pool, even if its pools contradict each other.
                return match data.and_then(|data| self.data_of_user(data, "VirtualMachine")) {
                    Some(Ok(_)) => self.hold_back(Step::Wait),
                    Some(Err(step)) => step,
                    None => self.refuse(problem.clone()),
                };
            }
        };
        if selected.is_empty() {
            let name = name.unwrap_or_default();
            return self.refuse(without_secret(name));
        }
        if let Some(step) = self.leave_alone(vm, selected) {
            return step;
        }
        let Some(cloud_init) = &vm.cloud_init else {
            return self.refuse(reference::without_volume(selected));
        };
        if let Some(step) = self.stand_aside(&cloud_init.network_data, selected) {
            return step;
        }
        // The document needs the MAC addresses of the machine. A guest that migrates from another cluster has an
        // address already.
        if vm.awaits_mac_addresses || vm.awaits_migration {
            return self.hold_back(Step::Wait);
        }
        let keys = selected.iter().map(|selected| annotation_key(&selected.interface));
        if let Err(error) = keys.collect::<Result<Vec<String>, _>>() {
            return self.refuse(error.to_string());
        }
        let claimant = match self.claimant(vm) {
            Ok(Some(claimant)) => claimant,
            Ok(None) if self.machine.is_none() => {
                return self.refuse(format!(
                    "KubevirtMachine {} is gone, and a guest may use its addresses: stop the guest, or delete the VirtualMachine",
                    self.key
                ));
            }
            Ok(None) => return Step::Wait,
            Err(step) => return step,
        };
        let selected = &self.interfaces(vm, &claimant.machine).unwrap_or_default()[..];
        let is_of_namespace = claimant.machine.namespace == self.key.namespace;
        if claimant.machine.kind == HolderKind::KubevirtMachine && is_of_namespace && !self.has_done(Once::ReadMachine)
        {
            // A new machine with the same name may have replaced this machine, and the watch can report this late.
            return Step::ReadMachine(Key::of_machine(&claimant.machine));
        }
        // If another program chooses addresses, the pass asks this program before it ends records.
        let has_source = self.pools.values().any(|pool| pool.source.is_some());
        let ended = || self.end_records(&BTreeSet::new(), None).filter(|_| !has_source);
        let recorded = || self.reserve_recorded().or_else(ended);
        if let Some(step) = self.restore(vm, selected, &claimant).or_else(recorded) {
            return step;
        }
        if let Some(patch) = self.remove_copied_records(vm) {
            return Step::RemoveRecords(patch);
        }
        let Some(name) = name.filter(|name| !self.is_of_earlier(name, vm, &claimant.machine)) else {
            return self.request_reference(vm);
        };
        let is_served = |it: &&Selected| !self.keeps_its_network((vm, name), it, &claimant.machine);
        let selected = &selected.iter().filter(is_served).cloned().collect::<Vec<Selected>>()[..];
        // With another name, each interface gets its index.
        if selected.is_empty() || selected.iter().any(|it| reference::lacks_index(vm, it)) {
            return self.request_reference(vm);
        }
        let offers = match self.offers(vm, selected, &claimant) {
            Ok(offers) => offers,
            Err(step) => return step,
        };
        // During the pass, the VirtualMachine may have been replaced by another one of its name, or may have got
        // another reference. The Secret is written only after the leases have its name.
        let is_own = |allocation: &Allocation| allocation.claimant.machine == claimant.machine;
        let is_current = |granted: &&Granted| granted.secret == name && granted.allocations.iter().all(is_own);
        match (self.granted.as_ref().filter(is_current), &self.problem) {
            // Each new reference adds the name of a Secret to the leases, even if no document can be made. So earlier
            // Secrets are removed here, too.
            (Some(granted), _) => self
                .drop_secrets(&claimant.machine, name)
                .unwrap_or_else(|| self.write_secret((vm, name), selected, &claimant, &granted.allocations, &offers)),
            (None, None) => match self.claim((vm, name), selected, &claimant) {
                Ok(claim) => Step::Claim(Box::new(claim)),
                Err(problem) => self.refuse(problem),
            },
            (None, Some(Problem::Refused(ClaimError::Exhausted { interface, pool, family, overflow }))) => {
                let overflow = overflow.iter().map(|(pool, family)| (pool.as_str(), vec![*family]));
                let pools = [(pool.as_str(), vec![*family])].into_iter().chain(overflow);
                self.report("IPPoolExhausted", exhausted_message(interface, pools))
            }
            (None, Some(problem)) if problem.is_of_opening() => Step::Wait,
            // The machine keeps its place in the wait queue. A change of the pool causes another pass.
            (None, Some(problem)) if problem.is_of_pool() => self.report("NetworkDataMissing", self.of_pool(problem)),
            (
                None,
                Some(Problem::Refused(
                    error @ (ClaimError::OtherPool { interface, .. } | ClaimError::OtherNetwork { interface, .. }),
                )),
            ) => self
                .move_to_other_pool(*interface, selected, &claimant.machine, name)
                .unwrap_or_else(|| self.refuse(error.to_string())),
            (None, Some(problem @ Problem::Refused(error))) if error.is_about_address() => {
                let at = self.place_of(error, vm, selected, &claimant.machine);
                self.report("IPAddressUnavailable", problem.of_request(&at))
            }
            (None, Some(Problem::Refused(error))) => self.refuse(error.to_string()),
            (None, Some(Problem::Mismatch(message, _))) => self.refuse(message.clone()),
        }
    }

    /// Returns the message about a claim that was rejected because of the state of its pool: the reason in the
    /// condition `Ready` of the pool, if it is known.
    fn of_pool(&self, problem: &Problem) -> String {
        let Problem::Refused(ClaimError::Suspended(pool)) = problem else { return problem.to_string() };
        let reason = self.pools.get(pool).and_then(|settings| settings.not_ready.as_deref());
        reason.map_or_else(|| problem.to_string(), |reason| format!("pool {pool} does not serve the machine: {reason}"))
    }

    /// Returns the member that names the address which the machine does not get: the annotation of the VirtualMachine,
    /// or `preAllocations` of the pool. If the error names a pool, only the interfaces of this pool count, because
    /// another interface may request the same address on another network.
    fn place_of(&self, error: &ClaimError, vm: &VirtualMachine, selected: &[Selected], machine: &Machine) -> String {
        let (named, of) = match error {
            ClaimError::NotInPool { named, pool } | ClaimError::Reserved { named, pool, .. } => (*named, Some(pool)),
            ClaimError::Taken { named, .. } | ClaimError::ReuseDelay { named, .. } => (*named, None),
            _ => return "the claim of the machine".to_owned(),
        };
        let requested = vm.requested.as_ref().ok();
        let is_requested = |selected: &Selected| {
            let mut all = requested.and_then(|all| all.get(&selected.attachment)).into_iter().flatten();
            all.any(|address| address.ip() == named)
        };
        let keeps = |pool: &String| {
            let pool = self.ledger.pools.get(pool);
            pool.is_some_and(|pool| pool.pre_allocated(&machine.namespace, &machine.name).contains(&named))
        };
        let place = |selected: &Selected| {
            let pools: Vec<String> = selected.pools().map(PoolId::to_string).collect();
            if of.is_some_and(|of| !pools.contains(of)) {
                return None;
            }
            let annotation = || format!("annotation {ADDRESSES_ANNOTATION}");
            let keeping = || Some(format!("spec.preAllocations of pool {}", pools.iter().find(|pool| keeps(pool))?));
            is_requested(selected).then(annotation).or_else(keeping)
        };
        selected.iter().find_map(place).unwrap_or_else(|| "spec.preAllocations of the pool".to_owned())
    }

    /// Returns the step that releases leases whose interfaces have another network or pool now, so that the machine can
    /// get addresses of its current pools. Reads the instance first, if this pass has not read it yet.
    ///
    /// A lease is released if its interface is on another network now. The claim of `interface` was refused with
    /// [`ClaimError::OtherPool`] or [`ClaimError::OtherNetwork`], so a lease of this interface is also released if the
    /// pool of the lease no longer serves the interface. If the address of such a lease is reserved for the holder, even
    /// on another network, this reservation ends.
    ///
    /// `None`: there is no such lease, a guest or the Secret `name` may have one of the addresses, the Secrets of a lease
    /// are unknown, or this pass has already released the addresses.
    fn move_to_other_pool(
        &self,
        interface: InterfaceName,
        selected: &[Selected],
        holder: &Machine,
        name: &str,
    ) -> Option<Step> {
        let is_left = |held: &&Held| {
            let now = selected.iter().find(|selected| selected.interface == held.claimant.interface);
            let is_other = |now: &Selected| {
                let is_of_other_pool = || now.all_pools().all(|pool| pool.to_string() != held.pool);
                now.network != held.network || now.interface == interface && is_of_other_pool()
            };
            held.claimant.machine == *holder && now.is_some_and(is_other)
        };
        let left: Vec<&Held> = self.ledger.held.iter().filter(is_left).collect();
        let secrets: BTreeSet<String> = left.iter().flat_map(|held| held.secrets.iter().cloned()).collect();
        // A guest that KubeVirt has moved has the addresses on its new network, too: see `View::reservations_after_move`.
        // No guest reads the Secrets any more.
        let is_moved = |(_, address): &&(String, IpAddr)| left.iter().any(|held| held.address == *address);
        let moved = self.ledger.reserved.get(holder).into_iter().flatten().filter(is_moved).cloned();
        let addresses = left.iter().map(|held| (held.network.clone(), held.address)).chain(moved).collect();
        let reads_other =
            self.instance.as_ref().is_some_and(|instance| instance.secret() != Some(name) || instance.has_started);
        let is_unknown = left.is_empty() || left.iter().any(|held| held.secrets.is_empty());
        if is_unknown || secrets.contains(name) || reads_other || self.has_done(Once::Release) {
            return None;
        }
        if !self.has_done(Once::ReadInstance) {
            return Some(Step::ReadInstance);
        }
        let interfaces = left.iter().map(|held| held.claimant.interface).collect();
        let records = self.removal_of_records(holder, &interfaces);
        Some(Step::Release(Box::new(Release { machine: holder.clone(), addresses, secrets, records })))
    }

    /// Returns the claim of a machine. `Err`: the reason why an address that the VirtualMachine requests is invalid.
    fn claim(
        &self,
        (vm, name): (&VirtualMachine, &str),
        selected: &[Selected],
        claimant: &Claimed,
    ) -> Result<Claim, String> {
        let is_sticky = |selected: &Selected| {
            let mut pools = selected.pools().filter_map(|pool| self.pools.get(&pool.to_string()));
            pools.any(|pool| pool.is_sticky)
        };
        let requested = vm.requested.as_ref().map_err(Clone::clone)?;
        let held_families = |selected: &Selected| {
            let own = self.ledger.held.iter().filter(|held| Self::is_on(held, &claimant.machine, selected));
            own.map(|held| Family::of(held.address)).collect::<BTreeSet<Family>>()
        };
        let mut requests = Vec::new();
        for selected in selected {
            let name = selected.pool.to_string();
            // A machine keeps the address that it holds, even if the VirtualMachine requests another address later.
            let is_held = |address: &IpNetwork| {
                self.ledger.held.iter().any(|held| {
                    (&held.claimant.machine, held.claimant.interface) == (&claimant.machine, selected.interface)
                        && Family::of(held.address) == Family::of(address.ip())
                })
            };
            // A pool that is being deleted allocates nothing, so the claim names only the addresses that the machine holds.
            let is_kept = self.kept.iter().any(|kept| kept.interface == selected.interface);
            let family = match held_families(selected).into_iter().collect::<Vec<Family>>()[..] {
                [family] if is_kept => Some(family),
                _ => None,
            };
            let addresses = requested.get(&selected.attachment).into_iter().flatten().filter(|_| !is_kept);
            let addresses: Vec<&IpNetwork> = addresses.filter(|address| !is_held(address)).collect();
            for address in &addresses {
                let family = Family::of(address.ip());
                let mut pools = selected.pools().filter_map(|pool| self.ledger.pools.get(&pool.to_string()));
                let length = pools.find_map(|pool| pool.prefix_of(address.ip())).unwrap_or(family.bits());
                if ![length, family.bits()].contains(&address.prefix()) {
                    let at = format!("annotation {ADDRESSES_ANNOTATION}");
                    let expected = format!("/{length}");
                    return Err(Diagnostic::error(at, "wrong prefix length", address, &expected).to_string());
                }
            }
            // The machine keeps its leases of a pool that is being deleted, so the claim names this pool, too.
            let keeps = |pool: &String| self.ledger.held.iter().any(|held| held.pool == *pool);
            let ending = selected.ending.iter().map(PoolId::to_string).filter(keeps);
            let overflow = selected.overflow.iter().map(PoolId::to_string).chain(ending).collect();
            let addresses = addresses.into_iter().map(IpNetwork::ip).collect();
            requests.push(Request { overflow, family, addresses, ..Request::of(&name) });
        }
        Ok(Claim {
            machine: claimant.machine.clone(),
            created: claimant.created,
            requests,
            // A VirtualMachine that is created again has another UID, so it is another holder. With `sticky`, it gets
            // the address of the earlier holder if this address is free.
            sticky: claimant.machine.kind == HolderKind::VirtualMachine || selected.iter().any(is_sticky),
            secret: Some(name.to_owned()),
        })
    }

    fn write_secret(
        &self,
        (vm, name): (&VirtualMachine, &str),
        selected: &[Selected],
        claimant: &Claimed,
        allocations: &[Allocation],
        offers: &BTreeMap<InterfaceName, Offer>,
    ) -> Step {
        for (interface, offer) in offers {
            let allocation = allocations.iter().find(|it| it.claimant.interface == *interface);
            if let Some(Err(problem)) = allocation.map(|allocation| Self::check_offer(offer, allocation)) {
                return self.hold_back(self.report("IPAddressConflict", problem));
            }
        }
        if let Some(excluded) = self.excluded_of(selected, allocations) {
            return self.refuse(format!(
                "the machine keeps {excluded}, which its pools exclude: include this address again, or delete the machine"
            ));
        }
        let document = match self.document(vm, selected, allocations, offers) {
            Ok(document) => document,
            Err(problem) => return self.refuse(problem),
        };
        let interfaces = selected.iter().filter_map(|selected| {
            let allocation = allocations.iter().find(|it| it.claimant.interface == selected.interface)?;
            Some(Given {
                interface: selected.interface,
                network: selected.network.clone(),
                pool: self.pool_of_allocation(selected, allocation),
                addresses: allocation.addresses.clone(),
            })
        });
        let holder = &claimant.machine;
        let warnings = document.warnings().iter().map(ToString::to_string).collect();
        let is_early = |instance: &&Instance| instance.has_started && instance.secret().is_none();
        let started = self.instance.as_ref().filter(is_early);
        let notice = started.map(|_| Notice::of_early_guest());
        let secret = secret(vm, name, holder, interfaces.collect(), document.text());
        Step::CreateSecret(Box::new(secret), self.updated(name), warnings, notice)
    }

    /// Returns the excluded addresses that the machine keeps and whose family is missing in its allocations. The
    /// machine gets no other address of this family, so its Secret would have no address of this family. `None`: there
    /// is no such address.
    fn excluded_of(&self, selected: &[Selected], allocations: &[Allocation]) -> Option<String> {
        let has = |interface: InterfaceName, family: Family| {
            let mut own = allocations.iter().filter(|allocation| allocation.claimant.interface == interface);
            own.any(|allocation| allocation.addresses.iter().any(|address| Family::of(address.ip()) == family))
        };
        let is_lacked = |(network, address): &&(String, IpAddr)| {
            let mut of_network = selected.iter().filter(|selected| selected.network == *network);
            of_network.any(|selected| !has(selected.interface, Family::of(*address)))
        };
        let excluded = list(self.ledger.excluded().filter(is_lacked).map(|(_, address)| address));
        (!excluded.is_empty()).then_some(excluded)
    }

    /// Returns the patch that removes copied records of addresses from a VirtualMachine. If a VirtualMachine neither
    /// holds an address nor keeps an excluded address, its records were copied from another VirtualMachine. `None`:
    /// the VirtualMachine has no copied record.
    fn remove_copied_records(&self, vm: &VirtualMachine) -> Option<Value> {
        let held = self.ledger.held.iter().map(|held| &held.claimant.machine);
        let mut own = held.chain(self.ledger.excluded.keys()).filter(|machine| machine.uid == uid(&vm.metadata));
        if own.next().is_some() || self.has_done(Once::RemoveRecords) {
            return None;
        }
        let names = vm.metadata.annotations.iter().flatten().map(|(name, _)| name);
        let copied: BTreeMap<&String, Value> =
            names.filter(|name| name.starts_with(ANNOTATION_PREFIX)).map(|name| (name, Value::Null)).collect();
        (!copied.is_empty()).then(|| json!({"metadata": {"uid": vm.metadata.uid, "annotations": copied}}))
    }

    /// Returns the step that withdraws the claim of a VirtualMachine that is being deleted, so that the machine gets no
    /// address.
    pub(super) fn end(&self, vm: &VirtualMachine) -> Step {
        let is_own = |holder: &&Machine| holder.uid == uid(&vm.metadata);
        self.ledger.waiting.iter().find(is_own).map_or(Step::Wait, |holder| Step::Withdraw(holder.clone()))
    }

    /// Returns the next step for a machine whose VirtualMachine the webhook has rejected. If the machine already holds
    /// an address, the step records the address in an annotation, which the webhook reads. If the pools have free
    /// addresses again, the step makes capk create the VirtualMachine again.
    pub(super) fn wake(&self) -> Step {
        if let Some(step) = self.reserve_recorded() {
            return step;
        }
        let refused =
            self.machine.as_ref().filter(|machine| machine.refused.is_some() && !is_deleted(&machine.metadata));
        if let Some(patch) = refused.and_then(|machine| self.annotate_held(machine)) {
            return Step::PatchMachine(patch);
        }
        match refused {
            Some(machine) if self.lacking.as_ref().is_some_and(BTreeSet::is_empty) && !self.has_done(Once::Retry) => {
                // Each attempt changes the version of the machine, so the next value of the annotation is different.
                let value = machine.metadata.resource_version.clone().unwrap_or_default();
                Step::Retry(json!({"metadata": {
                    "uid": machine.metadata.uid, "annotations": {(RETRY_ANNOTATION): value},
                }}))
            }
            _ => Step::Wait,
        }
    }

    /// Returns the patch that records the addresses that a machine holds. `None`: the machine holds no address, or all
    /// its addresses are recorded.
    fn annotate_held(&self, machine: &KubevirtMachine) -> Option<Value> {
        let holder = machine.holder();
        let mut allocations: BTreeMap<InterfaceName, (String, BTreeMap<Family, IpNetwork>)> = BTreeMap::new();
        for Held { claimant, network, address, prefix, .. } in &self.ledger.held {
            let Ok(address) = IpNetwork::new(*address, *prefix) else { continue };
            if claimant.machine == holder {
                let (_, addresses) =
                    allocations.entry(claimant.interface).or_insert_with(|| (network.clone(), BTreeMap::new()));
                addresses.entry(Family::of(address.ip())).or_insert(address);
            }
        }
        let networks = allocations.iter().map(|(interface, (network, _))| (*interface, network.clone())).collect();
        let allocations = allocations.into_iter().map(|(interface, (_, addresses))| {
            let claimant = Claimant { machine: holder.clone(), interface };
            Allocation { claimant, addresses: addresses.into_values().collect() }
        });
        let allocations: Vec<Allocation> = allocations.collect();
        let patch = annotation_patch(&holder, &allocations, &networks, None).ok()?;
        let is_missing = !has_annotations(&machine.metadata, &patch) && !self.has_done(Once::Annotate);
        is_missing.then_some(patch)
    }
}

/// Returns the message about a machine whose Secret does not exist and that no pool selects.
fn without_secret(name: &str) -> String {
    format!("Secret {name:?} does not exist, and no pool selects the machine")
}
