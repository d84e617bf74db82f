//! Decides the next request for the machine of one name. Pure: the input is objects, the output is a request. This
//! module uses no server and no clock.
//!
//! A pass decides, sends the request, updates its view with the response and decides again, until nothing is left to
//! do. Each decision depends only on the current state, so a pass may end after any request and another process can
//! continue.
//!
//! | state of the machine | requests, in this order |
//! |---|---|
//! | needs its network data | reference to the Secret in the VirtualMachine, leases, Secret, annotation, status map |
//! | VirtualMachine is being deleted | delete the Secret |
//! | gone, according to consistent reads | delete the Secret, release the leases, end the IPAddressClaims |
//!
//! These rules prevent two machines from using the same address:
//!
//! - A Secret is created once and never changed. When the Secret of a machine and the leases differ, the Secret is
//!   right, and the controller changes the leases.
//! - An address is released only when its machine is gone and no guest that still exists can have read its Secret.
//! - A VirtualMachine gets the addresses of a KubevirtMachine only if capk creates this VirtualMachine for that
//!   machine. Labels alone are no proof: any user who may create a VirtualMachine can choose its labels.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use glowplug::diagnostic::Diagnostic;
use glowplug::host::allocator::{Allocator, ClaimError};
use glowplug::host::claim::{Allocation, Claim, Claimant, Conflict, Lease, Machine, Record, Request};
use glowplug::host::expand::{Document, Grant, Template};
use glowplug::host::pool::Pool;
use glowplug::host::records::{Report, annotation_key, annotation_patch, status_patch};
use glowplug::network::{Family, InterfaceName};
use ipnetwork::IpNetwork;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use crate::cluster::key::Key;
use crate::cluster::request::list;
use crate::kinds::ipam_claim::vm_of_name;
use crate::kinds::kubevirt_machine::{
    HandOut, Handed, Instance, KubevirtMachine, NetworkSecret, STATUS_MAP, created, is_deleted, secret, uid,
};
use crate::kinds::pool::HolderKind;
use crate::kinds::virtual_machine::{
    ADDRESSES_ANNOTATION, CloudInitKind, NetworkData, VirtualMachine, kubevirt_machine_of,
};
use crate::ledger::leases::Kinds;
use crate::ledger::types::Reservation;
use crate::machines::index::{Chosen, Memory};
use crate::machines::sources::{Offer, Source, Sources};
use crate::passes::Problem;
use crate::pools::selection::Selected;

/// Largest number of checks of machines that a guest does not name, in one pass.
const MOST_STRANGERS: usize = 4;
/// Annotation of a KubevirtMachine. The controller changes the value so that capk retries at once.
const RETRY_ANNOTATION: &str = "ipam.glowplug.dev/retry";
/// Reason of the event about a machine with network data of another author.
const KEPT: &str = "NetworkDataKept";

/// The known state of the machine of one name: the complete input of a decision.
#[derive(Clone, Debug)]
pub(super) struct View {
    /// Name of the VirtualMachine.
    pub(super) key: Key,
    pub(super) vm: Option<VirtualMachine>,
    /// The KubevirtMachine of the VirtualMachine. Without one, the KubevirtMachine for which capk creates a
    /// VirtualMachine of this name.
    pub(super) machine: Option<KubevirtMachine>,
    pub(super) instance: Option<Instance>,
    /// UIDs of the existing KubevirtMachines to which this VirtualMachine may belong.
    pub(super) there: BTreeSet<String>,
    /// Whether the API server serves the kind KubevirtMachine.
    pub(super) has_machines: bool,
    /// Whether KubevirtMachines may have a status map. `true` until the API server drops the map from a write.
    pub(super) has_status_map: bool,
    /// Whether this pass has read the KubevirtMachine with a consistent read.
    pub(super) is_machine_read: bool,
    /// The pools that serve the machine, or the reason why the choice is ambiguous.
    pub(super) selected: Chosen,
    /// JSON patch operations of the webhook for the VirtualMachine. Empty: the VirtualMachine needs no change.
    pub(super) operations: Vec<Value>,
    /// Settings of the pools that serve the machine, by name of the pool.
    pub(super) pools: BTreeMap<String, PoolSettings>,
    /// Whether a pool for the rejected VirtualMachine is still exhausted, according to the data that the webhook uses.
    pub(super) is_exhausted: bool,
    /// The Secret of the machine. `None`: not read in this pass.
    pub(super) secret: Option<NetworkSecret>,
    /// Addresses in the other Secret from which the guest reads its network data. `None`: not read in this pass.
    pub(super) other_addresses: Option<Vec<IpAddr>>,
    pub(super) ledger: Recorded,
    pub(super) memory: Memory,
    /// Addresses that the registry allocated in this pass. `None`: no successful claim in this pass.
    pub(super) granted: Option<Vec<Allocation>>,
    /// Reason why the registry did not allocate or adopt in this pass. `None`: no failure.
    pub(super) problem: Option<Problem>,
    /// Whether this pass has asked the registry to adopt the addresses in the Secret.
    pub(super) is_adopted: bool,
    /// Holders whose absence this pass has checked. Each of them may be absent or present.
    pub(super) proven: BTreeSet<Machine>,
    /// Holders that this pass has proved to be gone. Their leases are released.
    pub(super) gone: BTreeSet<Machine>,
    /// Whether a holder must be checked again after a pause. Either only a Secret may keep its address, and no watch reports
    /// the end of a Secret; or its check has failed, and it is a stranger, see [`View::is_stranger`].
    pub(super) is_unsettled: bool,
    /// Objects of other programs that choose addresses of the machine.
    pub(super) sources: Sources,
    /// Writes of this pass. Each write is made once in a pass: an API server may drop the written members, and a
    /// comparison would then never succeed.
    pub(super) written: Written,
}

/// Writes that a pass has made.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Written {
    pub(super) annotation: bool,
    pub(super) status: bool,
    pub(super) retry: bool,
    pub(super) reference: bool,
    pub(super) conflicts: bool,
    pub(super) reservation: bool,
}

/// The settings of a pool that a decision about its machines needs.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct PoolSettings {
    pub(super) is_sticky: bool,
    pub(super) template: Option<String>,
    /// The program that chooses the addresses. `None`: the pool allocates its own addresses.
    pub(super) source: Option<Source>,
}

/// State of the machines of a name in the registry.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Recorded {
    /// The pools that serve the machine, by name.
    pub(super) pools: BTreeMap<String, Pool>,
    /// Addresses that machines of this name hold, oldest lease first.
    pub(super) held: Vec<Held>,
    /// Machines of this name that hold an address or have a conflicting record.
    pub(super) known: BTreeMap<Machine, HolderKind>,
    /// Whether machines of this name hold addresses of pools that belong to another controller.
    pub(super) is_of_another: bool,
    /// Machines of this name that wait for an address.
    pub(super) waiting: BTreeSet<Machine>,
    /// Pool addresses that the guest reports and that machines of this name neither hold nor have a conflicting record
    /// of. Each report has its source.
    pub(super) reported: Vec<Report>,
}

/// An address that a machine holds.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Held {
    pub(super) claimant: Claimant,
    pub(super) network: String,
    pub(super) address: IpAddr,
    /// Prefix length of the address.
    pub(super) prefix: u8,
}

/// An event about a machine.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Notice {
    pub(super) is_warning: bool,
    pub(super) reason: &'static str,
    pub(super) note: String,
}

/// The next request of a pass.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Step {
    /// Nothing is to do until an object or a pool changes.
    Wait,
    /// Reads the KubevirtMachine of this name.
    ReadMachine(Key),
    /// Reads the Secret of the machine.
    ReadSecret,
    /// Reads the Secret of another author with this name, in which the machine has its network data.
    ReadOtherSecret(String),
    /// Applies this JSON patch to the VirtualMachine, then publishes this event.
    PatchVm(Value, Option<Notice>),
    /// Reads the instance of the machine.
    ReadInstance,
    /// Creates this IPAddressClaim.
    CreateClaim(Value),
    /// Reads the IPAddress of this name.
    ReadAddress(String),
    /// Applies this merge patch to the IPAddress of this name.
    PatchAddress(String, Value),
    /// Deletes the IPAddressClaim of this name and UID.
    DeleteClaim(String, String),
    /// Applies this merge patch to the IPAddressClaim of this name.
    PatchClaim(String, Value),
    /// Records that a claimant holds exactly the addresses that a source has given.
    Hold(Box<Hold>),
    /// Claims addresses.
    Claim(Claim, HolderKind),
    /// Creates the Secret, which hands out the addresses, then publishes this event. The texts are warnings about the network
    /// data in the Secret.
    CreateSecret(Box<Secret>, Vec<String>, Option<Notice>),
    /// Records that a machine holds the addresses in its Secret.
    Adopt(Vec<Record>, HolderKind),
    /// Keeps these addresses of the claimant and releases its other addresses, which the claimant never received.
    Keep(Claimant, Vec<IpAddr>),
    /// Applies this merge patch to the KubevirtMachine.
    PatchMachine(Value),
    /// Applies this merge patch to the VirtualMachine.
    AnnotateVm(Value),
    /// Applies this merge patch to the status of the KubevirtMachine.
    PatchStatus(Value),
    /// Applies this merge patch to the KubevirtMachine, so that capk retries.
    Retry(Value),
    /// Reserves these addresses, so that no machine gets them, then publishes this event.
    AddConflicts(Vec<Reservation>, HolderKind, Option<Notice>),
    /// Reserves those of these addresses that are of pools which may serve the namespace of the VirtualMachine.
    Reserve(Vec<Reservation>),
    /// Removes a machine from the wait queue.
    Withdraw(Machine),
    /// Reads all objects of a machine with consistent reads, and releases its addresses if no object may use them.
    Prove(Machine, HolderKind),
    /// Publishes an event.
    Report(Notice),
}

/// Addresses that a source has given to an interface.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Hold {
    /// Name of the pool.
    pub(super) pool: String,
    pub(super) claimant: Claimant,
    pub(super) kind: HolderKind,
    pub(super) addresses: Vec<IpNetwork>,
    /// Kind and name of the object with the addresses, for messages.
    pub(super) source: String,
}

/// All objects that may use an address of a holder, from consistent reads in the order of the members.
#[derive(Clone, Debug)]
pub(super) struct Proof {
    pub(super) holder: Machine,
    pub(super) kind: HolderKind,
    /// Addresses that the holder holds.
    pub(super) held: Vec<IpAddr>,
    /// The objects that may belong to the holder, one entry for each VirtualMachine name.
    pub(super) guests: Vec<Guest>,
    /// The KubevirtMachine with the name of the holder. `None`: it does not exist.
    pub(super) machine: Option<KubevirtMachine>,
}

/// The objects at the name of one VirtualMachine that may use an address.
#[derive(Clone, Debug)]
pub(super) struct Guest {
    pub(super) key: Key,
    pub(super) secret: NetworkSecret,
    pub(super) vm: Option<VirtualMachine>,
    pub(super) instance: Option<Instance>,
    /// The first consistent reads without the holder's Secret. `None`: the Secret may still have existed before these
    /// reads.
    pub(super) stripped: Option<Stripped>,
}

/// Consistent reads that found no Secret of a holder, at the name of one VirtualMachine.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Stripped {
    /// UID of the instance that existed then, and that may have read the Secret. `None`: no instance existed. An instance
    /// with another UID was created later and cannot have read the Secret.
    pub(super) instance: Option<String>,
}

/// The conclusion from a proof.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Verdict {
    /// The Secret of the VirtualMachine with this name must be deleted first. The text is the UID of the Secret.
    Strip(Key, String),
    /// An object may still use an address. At these names, the holder's Secret is gone.
    Kept(Vec<(Key, Stripped)>),
    /// No object uses the addresses.
    Gone,
}

/// Decides the next request.
pub(super) fn decide(view: &View) -> Step {
    if let Some(step) = view.look_for_the_gone().or_else(|| view.end_claims()) {
        return step;
    }
    match &view.vm {
        Some(vm) if is_deleted(&vm.metadata) => view.end(vm),
        Some(vm) => view.serve(vm),
        None => view.wake(),
    }
}

// === impl Notice ===

impl Notice {
    /// The event about a guest that has started before its Secret or the reference to it existed.
    fn of_early_guest() -> Self {
        let note = "The guest started without its network data: restart the machine".to_owned();
        Self { is_warning: true, reason: "NetworkDataMissing", note }
    }

    /// The event about the addresses that a holder has released. `None`: the holder had no address.
    pub(super) fn of_release<'h>(held: impl IntoIterator<Item = &'h Held>) -> Option<Self> {
        let mut interfaces: BTreeMap<InterfaceName, Vec<IpAddr>> = BTreeMap::new();
        for Held { claimant, address, .. } in held {
            interfaces.entry(claimant.interface).or_default().push(*address);
        }
        let of_each = interfaces.iter().map(|(interface, addresses)| format!("{} of {interface}", list(addresses)));
        let note = format!("Released {}", list(of_each));
        (!interfaces.is_empty()).then_some(Self { is_warning: false, reason: "IPAddressReleased", note })
    }
}

// === impl Step ===

impl Step {
    /// Whether the request may change the state of the registry.
    pub(super) fn changes_registry(&self) -> bool {
        use Step::{AddConflicts, Adopt, Claim, Hold, Keep, Prove, Reserve, Withdraw};
        let is_record = matches!(self, Adopt(..) | Hold(..) | Keep(..) | AddConflicts(..) | Reserve(_));
        is_record || matches!(self, Claim(..) | Prove(..) | Withdraw(_))
    }
}

// === impl Proof ===

impl Proof {
    /// Concludes whether the holder is gone.
    pub(super) fn verdict(&self) -> Verdict {
        let is_there = self.machine.as_ref().is_some_and(|machine| uid(&machine.metadata) == self.holder.uid);
        let mut stripped = Vec::new();
        let mut is_used = is_there;
        for guest in &self.guests {
            let has_vm = guest.vm.as_ref().is_some_and(|vm| self.is_vm_of(vm, &guest.secret));
            if let NetworkSecret::Ours(hand_out) = &guest.secret
                && hand_out.machine == self.holder
                // The finalizer of another program may keep a Secret that is deleted.
                && !hand_out.is_deleted
                && guest.no_longer_needs(hand_out)
            {
                return Verdict::Strip(guest.key.clone(), hand_out.uid.clone());
            }
            let has_secret = guest.secret.names(&self.holder, &self.held);
            let has_instance = guest.instance.as_ref().is_some_and(|instance| self.is_instance_of(instance, guest));
            if !has_secret {
                let instance = guest.instance.as_ref().and_then(|instance| instance.metadata.uid.clone());
                stripped.push((guest.key.clone(), Stripped { instance }));
            }
            is_used |= has_vm || has_secret || has_instance || guest.may_have_read();
        }
        if is_used { Verdict::Kept(stripped) } else { Verdict::Gone }
    }

    /// Whether a VirtualMachine is the holder, or may belong to the holder.
    fn is_vm_of(&self, vm: &VirtualMachine, secret: &NetworkSecret) -> bool {
        let named = match secret {
            NetworkSecret::Ours(hand_out) if hand_out.vm == uid(&vm.metadata) => Some(&hand_out.machine),
            _ => None,
        };
        let is_of_another = match (self.kind, &self.machine) {
            // The next guest of this VirtualMachine reads the Secret of another machine.
            _ if named.is_some_and(|machine| *machine != self.holder) => true,
            (HolderKind::KubevirtMachine, Some(machine)) => {
                uid(&machine.metadata) != self.holder.uid
                    && machine.home == vm.key()
                    && created(&vm.metadata).zip(created(&machine.metadata)).is_some_and(|(vm, machine)| vm >= machine)
            }
            // capk removes a KubevirtMachine before its VirtualMachine is gone.
            (HolderKind::KubevirtMachine, None) => false,
            (HolderKind::VirtualMachine | HolderKind::IpAddressClaim | HolderKind::IpamClaim, _) => true,
        };
        uid(&vm.metadata) == self.holder.uid || named == Some(&self.holder) || !is_of_another
    }

    /// Whether an instance may be a guest of the holder.
    fn is_instance_of(&self, instance: &Instance, guest: &Guest) -> bool {
        let Some(vm) = guest.vm.as_ref().filter(|_| uid(&instance.metadata) != self.holder.uid) else { return true };
        let is_of_vm = instance.owner.as_deref() == Some(uid(&vm.metadata));
        // In KubeVirt, a new VirtualMachine adopts an orphan instance. Such an instance is older than the
        // VirtualMachine.
        let is_younger =
            created(&instance.metadata).zip(created(&vm.metadata)).is_some_and(|(instance, vm)| instance >= vm);
        !(is_of_vm && is_younger) || self.is_vm_of(vm, &guest.secret)
    }
}

// === impl Guest ===

impl Guest {
    /// Whether no guest of the VirtualMachine for which a Secret was created starts or migrates any more.
    fn no_longer_needs(&self, hand_out: &HandOut) -> bool {
        match &self.vm {
            Some(vm) => uid(&vm.metadata) != hand_out.vm || is_ending(vm),
            // An orphan may migrate, and a migration needs the Secret.
            None => self.instance.is_none(),
        }
    }

    /// Whether the instance may have read the holder's Secret.
    fn may_have_read(&self) -> bool {
        let Some(instance) = &self.instance else { return false };
        self.stripped.as_ref().is_none_or(|stripped| stripped.instance == instance.metadata.uid)
    }
}

/// Whether a VirtualMachine is being deleted and will not start a guest again.
fn is_ending(vm: &VirtualMachine) -> bool {
    // An instance that the deletion orphans may migrate, and a migration needs the Secret.
    is_deleted(&vm.metadata) && !vm.metadata.finalizers.iter().flatten().any(|finalizer| finalizer == "orphan")
}

// === impl View ===

impl View {
    /// Whether the registry does not allocate yet from a pool that is ready. The registry may receive the pool a moment
    /// later.
    pub(super) fn is_early(&self) -> bool {
        self.problem.as_ref().is_some_and(Problem::is_of_pool)
    }

    /// Whether the machine waits for its network data. An event has named the reason. A machine with network data of another
    /// author does not wait.
    pub(super) fn is_waiting(&self) -> bool {
        self.memory.notice.as_ref().is_some_and(|notice| notice.reason != KEPT)
    }

    /// Whether the machine needs a certain address that is not available for now. A claim that requests an address does
    /// not wait in the queue of an exhausted pool either.
    pub(super) fn waits_for_address(&self) -> bool {
        let requests = self.vm.as_ref().is_some_and(|vm| vm.requested.as_ref().is_ok_and(|all| !all.is_empty()));
        match &self.problem {
            Some(Problem::Refused(ClaimError::Exhausted { .. })) => requests,
            Some(Problem::Refused(error)) => error.is_about_address(),
            _ => false,
        }
    }

    /// Whether the machine waits for a change that no watch reports: another machine holds the address that its source
    /// gives, another author has the name of its claim, or the IPAddress of its claim does not exist yet.
    pub(super) fn is_disputed(&self) -> bool {
        let is_taken = |error: &ClaimError| matches!(error, ClaimError::Taken { .. } | ClaimError::ReuseDelay { .. });
        let has_source = self.pools.values().any(|pool| pool.source.is_some());
        let is_refused = match &self.problem {
            Some(Problem::Refused(error)) => is_taken(error),
            Some(Problem::Mismatch(_)) => true,
            None => false,
        };
        has_source && (is_refused || self.sources.addresses.values().any(Option::is_none))
    }

    /// Returns a check of a holder of this name that may be gone, or whose VirtualMachine is being deleted. `None`: all
    /// such holders are checked.
    ///
    /// Users of another namespace can make any number of their machines holders of this name, and each check needs requests.
    /// While a guest exists, a pass checks only some of the holders of other namespaces that the guest does not name.
    fn look_for_the_gone(&self) -> Option<Step> {
        let claims = self.sources.claims.iter().map(|claim| (&claim.claimant.machine, &claim.kind));
        let known = self.ledger.known.iter().chain(&self.memory.claimed).chain(claims);
        let mut known = known.filter(|(holder, _)| !self.proven.contains(holder));
        let vm = self.vm.as_ref();
        let has_guest = vm.is_some() || self.instance.is_some();
        let has_room = !has_guest || self.proven.iter().filter(|it| self.is_stranger(it)).count() < MOST_STRANGERS;
        let may_be_gone = |holder: &Machine| {
            let is_there = self.there.contains(&holder.uid) || vm.is_some_and(|vm| uid(&vm.metadata) == holder.uid);
            let is_ending = vm.is_some_and(is_ending) && !self.memory.stripped.contains_key(holder);
            (!is_there || is_ending) && (has_room || !self.is_stranger(holder))
        };
        known.find(|(holder, _)| may_be_gone(holder)).map(|(holder, kind)| Step::Prove(holder.clone(), *kind))
    }

    /// Whether a holder is a stranger: it is in another namespace, and neither the VirtualMachine nor its guest names it.
    pub(super) fn is_stranger(&self, holder: &Machine) -> bool {
        let of_instance = self.instance.as_ref().and_then(|instance| kubevirt_machine_of(&instance.metadata));
        let labels = [self.vm.as_ref().and_then(VirtualMachine::kubevirt_machine), of_instance];
        let is_named = labels.iter().flatten().any(|label| *label == Key::of_machine(holder));
        holder.namespace != self.key.namespace && !is_named
    }

    /// Makes capk retry the creation of a rejected VirtualMachine when the pools have free addresses again, or when the
    /// machine already holds an address and no annotation says so. The webhook reads this annotation.
    fn wake(&self) -> Step {
        let refused =
            self.machine.as_ref().filter(|machine| machine.refused.is_some() && !is_deleted(&machine.metadata));
        if let Some(patch) = refused.and_then(|machine| self.annotate_held(machine)) {
            return Step::PatchMachine(patch);
        }
        match refused {
            Some(machine) if !self.is_exhausted && !self.written.retry => {
                // Each attempt changes the version of the machine, so the next value of the annotation is different.
                let value = machine.metadata.resource_version.clone().unwrap_or_default();
                Step::Retry(json!({"metadata": {
                    "uid": machine.metadata.uid, "annotations": {(RETRY_ANNOTATION): value},
                }}))
            }
            _ => Step::Wait,
        }
    }

    /// Returns the patch that records the addresses that a machine holds. `None`: it holds none, or they are recorded.
    fn annotate_held(&self, machine: &KubevirtMachine) -> Option<Value> {
        let holder = machine.holder();
        let mut allocations: BTreeMap<InterfaceName, (String, BTreeMap<Family, IpNetwork>)> = BTreeMap::new();
        for Held { claimant, network, address, prefix } in &self.ledger.held {
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
        let is_missing = !has_annotations(&machine.metadata, &patch) && !self.written.annotation;
        is_missing.then_some(patch)
    }

    /// Removes a VirtualMachine that is being deleted from the wait queue, so that it gets no address.
    fn end(&self, vm: &VirtualMachine) -> Step {
        let is_own = |holder: &&Machine| holder.uid == uid(&vm.metadata);
        self.ledger.waiting.iter().find(is_own).map_or(Step::Wait, |holder| Step::Withdraw(holder.clone()))
    }

    fn serve(&self, vm: &VirtualMachine) -> Step {
        let is_selected = self.selected.as_ref().map_or(true, |selected| !selected.is_empty());
        if !is_selected && !refers(vm) {
            return self.hold_back(Step::Wait);
        }
        // A machine that no pool selects concerns this program only if the registry knows a machine of this name, or if
        // its leases are lost and its Secret records them. A user may also have created a Secret with this name.
        if !is_selected && self.ledger.known.is_empty() {
            let is_attached =
                |handed: &Handed| vm.networks.iter().any(|attachment| attachment.network == handed.network);
            match &self.secret {
                _ if self.ledger.is_of_another => return self.hold_back(Step::Wait),
                None => return Step::ReadSecret,
                Some(NetworkSecret::Ours(hand_out)) if hand_out.interfaces.iter().all(is_attached) => {}
                Some(_) => return self.hold_back(Step::Wait),
            }
        }
        let claimant = match self.claimant(vm) {
            Ok(claimant) => claimant,
            Err(step) => return step,
        };
        match &self.secret {
            None => Step::ReadSecret,
            Some(NetworkSecret::Foreign(problem, addresses)) => self.refuse_foreign(vm, problem, addresses),
            Some(NetworkSecret::Ours(hand_out)) if hand_out.vm == uid(&vm.metadata) => self.settle(vm, hand_out),
            Some(NetworkSecret::Ours(hand_out)) => self.replace(hand_out),
            Some(NetworkSecret::Absent) => self.hand_out(vm, claimant),
        }
    }

    /// Handles a Secret of an earlier VirtualMachine. The Secret is deleted if a consistent read shows that the earlier
    /// VirtualMachine is gone.
    fn replace(&self, hand_out: &HandOut) -> Step {
        let holder = &hand_out.machine;
        match self.adopt(hand_out) {
            Some(adopt @ Step::Adopt(..)) => adopt,
            // The address may belong to another machine by now. In this case, no guest may read the Secret.
            _ if !self.proven.contains(holder) => Step::Prove(holder.clone(), hand_out.kind),
            _ => Step::Wait,
        }
    }

    /// Returns the object that claims addresses for a VirtualMachine. `None`: no object may claim now. `Err`: the
    /// object is not known before this step is done.
    fn claimant(&self, vm: &VirtualMachine) -> Result<Option<Claimed>, Step> {
        let label = vm.kubevirt_machine().filter(|label| self.has_machines && label.name == self.key.name);
        let itself = || Claimed {
            machine: self.key.holder(uid(&vm.metadata)),
            kind: HolderKind::VirtualMachine,
            created: created(&vm.metadata).unwrap_or_default(),
        };
        let Some(label) = label else { return Ok(Some(itself())) };
        match &self.machine {
            Some(machine) if Key::of(&machine.metadata) == label && machine.home == self.key => {
                let claimed = Claimed {
                    machine: machine.holder(),
                    kind: HolderKind::KubevirtMachine,
                    created: created(&machine.metadata).unwrap_or_default(),
                };
                Ok(Some(claimed).filter(|_| !is_deleted(&machine.metadata)))
            }
            _ if !self.is_machine_read => Err(Step::ReadMachine(label)),
            // The labels name a KubevirtMachine that has another VirtualMachine.
            Some(machine) if Key::of(&machine.metadata) == label => Ok(Some(itself())),
            // The KubevirtMachine is gone. Its guest keeps the addresses that this machine holds.
            _ if self
                .ledger
                .known
                .iter()
                .any(|(holder, kind)| *kind == HolderKind::KubevirtMachine && Key::of_machine(holder) == label) =>
            {
                Ok(None)
            }
            // The KubevirtMachine is in another cluster, or the labels are invented.
            _ => Ok(Some(itself())),
        }
    }

    /// Decides the next step for a VirtualMachine without a Secret: claim addresses, then create the Secret.
    fn hand_out(&self, vm: &VirtualMachine, claimant: Option<Claimed>) -> Step {
        let selected = match &self.selected {
            Ok(selected) => selected,
            Err(problem) => return self.refuse(problem.clone()),
        };
        if selected.is_empty() {
            return self
                .refuse(format!("Secret {:?} does not exist, and no pool selects the machine", vm.secret_name()));
        }
        let Some(cloud_init) = &vm.cloud_init else {
            return self.refuse("no cloud-init volume, expected cloudInitConfigDrive or cloudInitNoCloud".to_owned());
        };
        if let Some(step) = self.stand_aside(vm, &cloud_init.network_data, selected) {
            return step;
        }
        // The document has the MAC addresses of the machine, and it is written only once.
        if vm.awaits_mac_addresses {
            return self.hold_back(Step::Wait);
        }
        let keys = selected.iter().map(|selected| annotation_key(&selected.interface));
        if let Err(error) = keys.collect::<Result<Vec<String>, _>>() {
            return self.refuse(error.to_string());
        }
        let Some(claimant) = claimant else { return Step::Wait };
        if claimant.kind == HolderKind::KubevirtMachine && !self.is_machine_read {
            // A new machine may have replaced this machine under the same name, and the watch may not have reported it
            // yet.
            return Step::ReadMachine(Key::of_machine(&claimant.machine));
        }
        if cloud_init.network_data == NetworkData::None && !self.operations.is_empty() && !self.written.reference {
            return Step::PatchVm(
                patch(vm, &self.operations),
                self.instance.as_ref().map(|_| Notice::of_early_guest()),
            );
        }
        let offers = match self.offers(vm, selected, &claimant) {
            Ok(offers) => offers,
            Err(step) => return step,
        };
        // During the pass, a VirtualMachine of the same name may have replaced this one.
        let is_own = |allocation: &Allocation| allocation.claimant.machine == claimant.machine;
        match (self.granted.as_ref().filter(|granted| granted.iter().all(is_own)), &self.problem) {
            (Some(allocations), _) => self.write_secret(vm, selected, &claimant, allocations, &offers),
            (None, None) => match self.claim(vm, selected, &claimant) {
                Ok(claim) => Step::Claim(claim, claimant.kind),
                Err(problem) => self.refuse(problem),
            },
            (None, Some(Problem::Refused(error @ ClaimError::Exhausted { .. }))) => {
                self.report("IPPoolExhausted", error.to_string())
            }
            (None, Some(Problem::Refused(_))) if self.is_early() => Step::Wait,
            (None, Some(Problem::Refused(error))) if error.is_about_address() => {
                self.report("IPAddressUnavailable", error.to_string())
            }
            (None, Some(Problem::Refused(error))) => self.refuse(error.to_string()),
            (None, Some(Problem::Mismatch(message))) => self.refuse(message.clone()),
        }
    }

    /// Returns the claim of a machine. `Err`: why the addresses that the VirtualMachine requests are invalid.
    fn claim(&self, vm: &VirtualMachine, selected: &[Selected], claimant: &Claimed) -> Result<Claim, String> {
        let is_sticky =
            |selected: &Selected| self.pools.get(&selected.pool.to_string()).is_some_and(|pool| pool.is_sticky);
        let requested = vm.requested.as_ref().map_err(Clone::clone)?;
        let mut requests = Vec::new();
        for selected in selected {
            let name = selected.pool.to_string();
            // A machine keeps the address that it holds, also when another address is requested later.
            let is_held = |address: &IpNetwork| {
                self.ledger.held.iter().any(|held| {
                    (&held.claimant.machine, held.claimant.interface) == (&claimant.machine, selected.interface)
                        && Family::of(held.address) == Family::of(address.ip())
                })
            };
            let addresses = requested.get(&selected.attachment).into_iter().flatten();
            let addresses: Vec<&IpNetwork> = addresses.filter(|address| !is_held(address)).collect();
            for address in &addresses {
                let family = Family::of(address.ip());
                let space = self.ledger.pools.get(&name).and_then(|pool| pool.space(family));
                let length = space.map_or(family.bits(), |space| space.prefix());
                if ![length, family.bits()].contains(&address.prefix()) {
                    let problem = format!("other prefix length than that of pool {name:?}");
                    let at = format!("annotation {ADDRESSES_ANNOTATION}");
                    return Err(Diagnostic::error(at, &problem, address, &format!("/{length}")).to_string());
                }
            }
            requests
                .push(Request { addresses: addresses.into_iter().map(IpNetwork::ip).collect(), ..Request::of(&name) });
        }
        Ok(Claim {
            machine: claimant.machine.clone(),
            created: claimant.created,
            requests,
            // A VirtualMachine that is created again has another UID, so it is another holder.
            sticky: claimant.kind == HolderKind::VirtualMachine || selected.iter().any(is_sticky),
        })
    }

    fn write_secret(
        &self,
        vm: &VirtualMachine,
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
        let document = match self.document(vm, selected, allocations, offers) {
            Ok(document) => document,
            Err(problem) => return self.refuse(problem),
        };
        let interfaces = selected.iter().filter_map(|selected| {
            let allocation = allocations.iter().find(|it| it.claimant.interface == selected.interface)?;
            Some(Handed {
                interface: selected.interface,
                network: selected.network.clone(),
                pool: selected.pool.to_string(),
                addresses: allocation.addresses.clone(),
            })
        });
        let holder = (&claimant.machine, claimant.kind);
        let warnings = document.warnings().iter().map(ToString::to_string).collect();
        // The guest has read the Secret of an earlier VirtualMachine, with other MAC addresses.
        let started = self.instance.as_ref().filter(|instance| instance.has_started);
        let notice = started.map(|_| Notice::of_early_guest());
        Step::CreateSecret(Box::new(secret(vm, holder, interfaces.collect(), document.text())), warnings, notice)
    }

    /// Creates the network data of the machine: one document with the addresses of all pools.
    fn document(
        &self,
        vm: &VirtualMachine,
        selected: &[Selected],
        allocations: &[Allocation],
        offers: &BTreeMap<InterfaceName, Offer>,
    ) -> Result<Document, String> {
        let mut grants = Vec::new();
        let mut templates = BTreeMap::new();
        for selected in selected {
            let name = selected.pool.to_string();
            let pool = self.ledger.pools.get(&name).ok_or_else(|| format!("unknown pool {name:?}"))?;
            let allocation = allocations.iter().find(|it| it.claimant.interface == selected.interface);
            let allocation = allocation.ok_or_else(|| format!("pool {name:?} allocated nothing"))?;
            let attachment = vm.networks.iter().find(|attachment| attachment.name == selected.attachment);
            let gateways = offers.get(&selected.interface).map_or(pool.gateways(), |offer| &offer.gateways);
            let nameservers = pool.nameservers();
            let mac_address = attachment.and_then(|attachment| attachment.mac);
            grants.push(Grant { allocation, gateways, nameservers, mac_address });
            if let Some(text) = self.pools.get(&name).and_then(|pool| pool.template.as_deref()) {
                templates.insert(text, name);
            }
        }
        if templates.len() > 1 {
            let pools: Vec<String> = templates.into_values().collect();
            return Err(format!("pools {} have different templates, expected one template", pools.join(" and ")));
        }
        let interfaces = selected.iter().map(|selected| &selected.interface);
        let document = match templates.first_key_value() {
            Some((text, _)) => Template::parse(text.as_bytes()).and_then(|template| template.expand(&grants)),
            None => Template::minimal(interfaces).expand(&grants),
        };
        let is_no_cloud = vm.cloud_init.as_ref().is_some_and(|it| it.kind == CloudInitKind::NoCloud);
        let document = if is_no_cloud { document.and_then(|it| it.to_network_config()) } else { document };
        document.map_err(|error| format!("template: {error}"))
    }

    /// Decides the next step for a VirtualMachine with a Secret: changes leases, annotation and status map to match the
    /// Secret.
    fn settle(&self, vm: &VirtualMachine, hand_out: &HandOut) -> Step {
        if let Some(step) = self.adopt(hand_out).or_else(|| self.keep(hand_out)) {
            return step;
        }
        let has_data = vm.cloud_init.as_ref().is_none_or(|cloud_init| cloud_init.network_data != NetworkData::None);
        if !has_data && !self.operations.is_empty() && !self.written.reference {
            return Step::PatchVm(patch(vm, &self.operations), None);
        }
        let step = self.project(vm, hand_out).or_else(|| self.reserve_reported(hand_out));
        step.or_else(|| self.compare_sources(vm, hand_out)).unwrap_or(Step::Wait)
    }

    /// Records the addresses that the Secret hands out and that the machine does not hold. `None`: the machine holds
    /// all of them.
    fn adopt(&self, hand_out: &HandOut) -> Option<Step> {
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
            _ if self.is_adopted => Some(Step::Wait),
            _ => Some(Step::Adopt(records, hand_out.kind)),
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
            self.ledger.held.iter().find(is_double).map(|_| Step::Keep(claimant, addresses))
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
        if hand_out.kind == HolderKind::VirtualMachine {
            let is_missing = !has_annotations(&vm.metadata, &patch) && !self.written.annotation;
            let annotations = &patch["metadata"]["annotations"];
            let patch = json!({"metadata": {"uid": vm.metadata.uid, "annotations": annotations}});
            return is_missing.then_some(Step::AnnotateVm(patch));
        }
        let machine = self.machine.as_ref().filter(|machine| machine.holder() == hand_out.machine)?;
        if !has_annotations(&machine.metadata, &patch) && !self.written.annotation {
            return Some(Step::PatchMachine(patch));
        }
        let status = status_patch(&hand_out.machine, &allocations, None).ok()?;
        let is_right = machine.status_map == status["status"][STATUS_MAP];
        (!is_right && self.has_status_map && !self.written.status).then_some(Step::PatchStatus(status))
    }

    /// Reserves addresses that the guest uses in addition to those in its Secret, so that no machine gets them.
    fn reserve_reported(&self, hand_out: &HandOut) -> Option<Step> {
        let interface = hand_out.interfaces.first()?.interface;
        let conflict = |report: &Report| {
            let claimant = Claimant { machine: hand_out.machine.clone(), interface };
            (report.address, report.network.clone(), Conflict { claimant, source: report.source.clone() })
        };
        let conflicts: Vec<_> = self.ledger.reported.iter().map(conflict).collect();
        let Report { address: first, source, .. } = self.ledger.reported.first().filter(|_| !self.written.conflicts)?;
        let others = match conflicts.len() - 1 {
            0 => String::new(),
            others => format!(" and {others} more"),
        };
        let note =
            format!("{source}: the guest uses {first}{others}, expected its allocated addresses; nobody gets them");
        let notice = Notice { is_warning: true, reason: "IPAddressConflict", note };
        Some(Step::AddConflicts(conflicts, hand_out.kind, Some(notice)))
    }

    /// Reports a Secret of another author, which is not changed, and reserves its addresses, so that no machine gets
    /// them.
    fn refuse_foreign(&self, vm: &VirtualMachine, problem: &str, addresses: &[IpAddr]) -> Step {
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
    fn stand_aside(&self, vm: &VirtualMachine, data: &NetworkData, selected: &[Selected]) -> Option<Step> {
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

    /// Reserves the addresses that a machine reads from `source` or reports, so that no machine gets them. `None`: there
    /// are none, or this pass has reserved them.
    fn reserve(&self, vm: &VirtualMachine, source: &str, addresses: &[IpAddr]) -> Option<Step> {
        let interface = self.selected.as_ref().ok().and_then(|selected| selected.first()).map(|it| it.interface);
        let interface = interface.or_else(|| Pool::DEFAULT_INTERFACE.parse().ok())?;
        let claimant = Claimant { machine: self.key.holder(uid(&vm.metadata)), interface };
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
        if !named.is_empty() && !self.written.reservation {
            return Some(Step::Reserve(named));
        }
        let reported = self.ledger.reported.iter();
        let reported = reported.map(|report| (report.address, report.network.clone(), conflict(&report.source)));
        let reported: Vec<_> = reported.collect();
        let is_left = !reported.is_empty() && !self.written.conflicts;
        is_left.then_some(Step::AddConflicts(reported, HolderKind::VirtualMachine, None))
    }

    /// Reports why the machine gets no network data, and removes it from the wait queue, because waiting does not help.
    pub(super) fn refuse(&self, note: String) -> Step {
        self.hold_back(self.report("NetworkDataMissing", note))
    }

    /// Removes a waiting machine from the wait queue, because it must not get an address now. Returns `step` if no
    /// machine of this name waits.
    pub(super) fn hold_back(&self, step: Step) -> Step {
        self.ledger.waiting.first().map_or(step, |holder| Step::Withdraw(holder.clone()))
    }

    pub(super) fn report(&self, reason: &'static str, note: String) -> Step {
        self.tell(Notice { is_warning: true, reason, note })
    }

    /// Publishes an event, unless it was the last one about this machine.
    pub(super) fn tell(&self, notice: Notice) -> Step {
        if self.memory.notice.as_ref() == Some(&notice) { Step::Wait } else { Step::Report(notice) }
    }
}

/// The object that claims addresses for a machine.
pub(super) struct Claimed {
    pub(super) machine: Machine,
    pub(super) kind: HolderKind,
    pub(super) created: Timestamp,
}

/// Whether the network data of a VirtualMachine is in the Secret with the controller's name for it,
/// [`VirtualMachine::secret_name`].
pub(super) fn refers(vm: &VirtualMachine) -> bool {
    let cloud_init = vm.cloud_init.as_ref();
    cloud_init.is_some_and(|it| it.network_data == NetworkData::Secret(vm.secret_name()))
}

/// Whether an object has the annotations of a merge patch.
fn has_annotations(metadata: &ObjectMeta, patch: &Value) -> bool {
    let given = metadata.annotations.as_ref();
    patch["metadata"]["annotations"].as_object().into_iter().flatten().all(|(name, value)| {
        given.and_then(|given| given.get(name)).is_some_and(|given| Some(given.as_str()) == value.as_str())
    })
}

/// Returns a JSON patch with the operations of the webhook. The patch fails if the VirtualMachine has another version.
fn patch(vm: &VirtualMachine, operations: &[Value]) -> Value {
    let test = json!({"op": "test", "path": "/metadata/resourceVersion", "value": vm.metadata.resource_version});
    [test].into_iter().chain(operations.iter().cloned()).collect()
}

// === impl Handed ===

impl Handed {
    pub(super) fn allocation(&self, hand_out: &HandOut) -> Allocation {
        let claimant = Claimant { machine: hand_out.machine.clone(), interface: self.interface };
        Allocation { claimant, addresses: self.addresses.clone() }
    }
}

// === impl Held ===

impl Held {
    /// Returns the addresses that a machine holds.
    pub(super) fn all_of(allocator: &Allocator, machine: &Machine) -> Vec<Self> {
        allocator.leases_of(machine).map(|(network, address, lease)| Self::of(network, address, lease)).collect()
    }

    fn of(network: &str, address: IpAddr, lease: &Lease) -> Self {
        let claimant = Claimant::clone(&lease.claimant);
        Self { claimant, network: network.to_owned(), address, prefix: lease.prefix }
    }
}

// === impl Recorded ===

impl Recorded {
    /// Reads the state of the machines of a VirtualMachine, of its pools, and of the addresses that its guest reports.
    ///
    /// `names` has the names of all machines to which the VirtualMachine may belong. Only machines with the VirtualMachine's
    /// own name, `key`, and the `confirmed` machines count.
    pub(super) fn read(
        allocator: &Allocator,
        kinds: &Kinds,
        (key, names, confirmed): (&Key, &BTreeSet<Key>, &BTreeSet<Machine>),
        claimed: &BTreeMap<Machine, HolderKind>,
        pools: &[String],
        instance: Option<&Instance>,
        scope: &str,
    ) -> Self {
        let machines = names.iter().flat_map(|name| allocator.namesakes(&name.namespace, &name.name));
        let machines = machines.filter(|machine| Key::of_machine(machine) == *key || confirmed.contains(machine));
        let mut recorded = Self::default();
        let mut since = Vec::new();
        for machine in machines {
            let Some(kind) = kinds.get(machine).filter(|kind| !kind.is_claim()) else { continue };
            let before = since.len();
            // Leases from pools of other namespaces belong to another controller.
            let is_ours = |pool: &str| scope.is_empty() || pool.split_once('/').is_some_and(|(name, _)| name == scope);
            let (ours, others): (Vec<_>, Vec<_>) =
                allocator.leases_of(machine).partition(|(_, _, lease)| is_ours(&lease.pool));
            recorded.is_of_another |= !others.is_empty();
            since.extend(
                ours.into_iter()
                    .map(|(network, address, lease)| ((lease.since, address), Held::of(network, address, lease))),
            );
            if since.len() > before || allocator.conflicts_of(machine).next().is_some() {
                recorded.known.insert(machine.clone(), kind);
            }
        }
        since.sort_by_key(|(since, _)| *since);
        recorded.held = since.into_iter().map(|(_, held)| held).collect();
        recorded.waiting = claimed.keys().filter(|machine| allocator.waits(machine)).cloned().collect();
        recorded.pools = pools.iter().filter_map(|name| Some((name.clone(), allocator.pool(name)?.clone()))).collect();
        recorded.reported = recorded.reported(allocator, instance);
        if !recorded.reported.is_empty() {
            let known = addresses_of_ipam_claims(allocator, kinds);
            recorded.reported.retain(|report| {
                let network = report.network.clone().unwrap_or_default();
                !names.iter().any(|name| known.contains(&(network.clone(), report.address, name.clone())))
            });
        }
        recorded
    }

    /// Returns the pool addresses that a guest reports and that machines of its name neither hold nor have a
    /// conflicting record of.
    fn reported(&self, allocator: &Allocator, instance: Option<&Instance>) -> Vec<Report> {
        let reports = instance.into_iter().flat_map(|instance| &instance.reports);
        let held = self.held.iter().map(|held| (held.network.as_str(), held.address));
        let noted = self.known.keys().flat_map(|machine| allocator.conflicts_of(machine));
        let known: BTreeSet<(&str, IpAddr)> = held.chain(noted).collect();
        let is_unknown = |network: &str, address: IpAddr| {
            let mut of_pools = allocator.pools().filter(|pool| pool.network() == network);
            of_pools.any(|pool| pool.contains(address)) && !known.contains(&(network, address))
        };
        let unknown =
            reports.filter(|report| report.network.as_ref().is_some_and(|network| is_unknown(network, report.address)));
        unknown.cloned().collect()
    }
}

/// The addresses that IPAMClaims hold, each with its network and the virtual machine of the claim. The guest of this
/// machine may report the address.
pub(super) fn addresses_of_ipam_claims(allocator: &Allocator, kinds: &Kinds) -> BTreeSet<(String, IpAddr, Key)> {
    let leases = allocator.leases();
    let claims = leases.filter(|(_, _, lease)| kinds.get(&lease.claimant.machine) == Some(HolderKind::IpamClaim));
    let addresses = claims.map(|(network, address, lease)| {
        let Machine { namespace, name, .. } = &lease.claimant.machine;
        let vm = Key { namespace: namespace.clone(), name: vm_of_name(name).to_owned() };
        (network.to_owned(), address, vm)
    });
    addresses.collect()
}

#[cfg(test)]
mod tests;
