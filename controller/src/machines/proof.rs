//! Checks whether a machine is gone: consistent reads return all objects that may use the addresses of the machine, and
//! the machine is gone if no object can use them any more.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use glowplug::host::claim::Machine;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::cluster::key::Key;
use crate::kinds::kubevirt_machine::{Instance, KubevirtMachine, NetworkSecret, created, uid};
use crate::kinds::pool::HolderKind;
use crate::kinds::virtual_machine::VirtualMachine;
use crate::machines::kind::MachineKind;
use crate::machines::recorded::Held;
use crate::machines::step::Notice;
use crate::machines::view::{Check, Response, View};
use crate::machines::work::{Work, reference};
use crate::passes::Error;

/// Maximum number of holders of one name whose leases last only because a guest reports their addresses, and of holders
/// whose leases last only because a guest has unknown network data: no Secret, or a Secret that no lease names. The
/// holders with the oldest leases count. Otherwise one instance could keep any number of addresses: a user can create a
/// VirtualMachine of the same name again and again while the instance exists.
const MOST_UNCERTAIN: usize = 4;

/// A holder, its addresses and Secrets, and all objects that may use one of these addresses. Consistent reads return
/// the objects in this order: KubevirtMachine, VirtualMachine, the Secret in `absent`, instance.
#[derive(Clone, Debug)]
pub(super) struct Proof {
    pub(super) holder: Machine,
    /// Addresses that the holder holds, and addresses that are recorded for the holder without a lease.
    pub(super) addresses: BTreeSet<IpAddr>,
    /// Secrets from which guests of the holder may read its addresses. Empty: the Secrets are not known.
    pub(super) secrets: BTreeSet<String>,
    /// Secrets in the leases of other holders with the same name.
    pub(super) of_others: BTreeSet<String>,
    /// For each other holder with the same name and an older lease: its addresses.
    pub(super) older: Vec<BTreeSet<IpAddr>>,
    /// The VirtualMachine refers to the Secret of this name, which does not exist and never had an address of the holder.
    /// The leases of the holder show this: a lease gets the name of a Secret before the Secret exists, and they name
    /// other Secrets only.
    pub(super) absent: Option<String>,
    /// Whether the holder is a KubevirtMachine in another namespace than its VirtualMachine.
    pub(super) is_earlier: bool,
    /// The KubevirtMachine with the name of the VirtualMachine. `None`: it does not exist.
    pub(super) machine: Option<KubevirtMachine>,
    pub(super) vm: Option<VirtualMachine>,
    pub(super) instance: Option<Instance>,
}

// === impl Work ===

impl Work<'_> {
    /// Reads every object that may use an address of a holder. If none of these objects can use an address, deletes the
    /// Secrets of the holder and releases its addresses. All these objects have the name of the holder's
    /// VirtualMachine.
    pub(super) async fn prove(&self, view: &View, holder: Machine) -> Result<Response, Error> {
        let key = &view.key;
        let of = holder.clone();
        let read = self.machines.registry.read(move |allocator| {
            let recorded: BTreeSet<IpAddr> = allocator.conflicts_of(&of).map(|(_, address)| address).collect();
            (Held::all_of(allocator, &of), recorded)
        });
        let (held, recorded) = read.await?;
        let machine = match self.kinds.has_kubevirt_machines {
            true => self.read(MachineKind::KubevirtMachine, key).await?,
            false => None,
        };
        let vm = self.read(MachineKind::VirtualMachine, key).await?;
        let mut older: BTreeMap<&Machine, BTreeSet<IpAddr>> = BTreeMap::new();
        for held in view.ledger.held.iter().take_while(|held| held.claimant.machine != holder) {
            older.entry(&held.claimant.machine).or_default().insert(held.address);
        }
        let of_others = view.ledger.held.iter().filter(|held| held.claimant.machine != holder);
        let of_others: BTreeSet<String> = of_others.flat_map(|held| held.secrets.iter().cloned()).collect();
        let secrets: BTreeSet<String> = held.iter().flat_map(|held| held.secrets.iter().cloned()).collect();
        // If the holder is a VirtualMachine, the reference of another VirtualMachine does not count.
        let are_known = holder.kind == HolderKind::KubevirtMachine && held.iter().all(|held| !held.secrets.is_empty());
        let refers_to = self.index().vm(key).and_then(|vm| vm.secret().map(str::to_owned));
        let is_unnamed = |name: &String| !secrets.contains(name) && !of_others.contains(name);
        let absent = match refers_to.filter(|name| !secrets.is_empty() && are_known && is_unnamed(name)) {
            Some(name) if self.secret(key, &name).await? == NetworkSecret::Absent => Some(name),
            _ => None,
        };
        let instance = self.read(MachineKind::Instance, key).await?;
        let mut proof = {
            // The index ignores the response if a watch has meanwhile reported the deletion of an earlier object of
            // this name. The proof then uses the object in the response.
            let index = self.index();
            let machine = machine.map(KubevirtMachine::read).filter(|machine| !machine.has_vm_elsewhere);
            Proof {
                addresses: held.iter().map(|held| held.address).chain(recorded).collect(),
                secrets,
                of_others,
                older: older.into_values().collect(),
                absent,
                is_earlier: view.ledger.earlier.contains(&holder),
                holder: holder.clone(),
                machine: index.machine(key).cloned().or(machine),
                vm: index.vm(key).cloned().or_else(|| vm.map(VirtualMachine::read)),
                instance: index.instance(key).cloned().or_else(|| instance.map(Instance::read)),
            }
        };
        let (check, uid) = (proof.check(), &holder.uid);
        tracing::debug!(machine = %key, uid, ?check, "read the objects of a machine that may be gone");
        // A user who has the right to create claims can name any machine in a claim. So the proof is valid only for a
        // machine of this name, and only if no lease says that the VirtualMachine of the machine is in another
        // namespace.
        let is_of_name = Key::of_machine(&holder) == *key || proof.is_earlier;
        if check == Check::Kept || !is_of_name || held.iter().any(|held| Key::of_vm(&held.claimant.machine) != *key) {
            return Ok(Response::Checked(check));
        }
        // Kubernetes deletes the Secrets together with the VirtualMachine, which owns them. If the VirtualMachine was
        // deleted without its instance, the Secrets still exist.
        for secret in &proof.secrets {
            self.delete_secret(view, &holder, secret).await?;
        }
        // An instance may have begun to read a Secret after the first reads. The Secrets are deleted now, so no further
        // instance can begin.
        if !proof.secrets.is_empty() {
            let instance = self.read(MachineKind::Instance, key).await?;
            proof.instance = self.index().instance(key).cloned().or_else(|| instance.map(Instance::read));
            if proof.check() == Check::Kept {
                return Ok(Response::Checked(Check::Kept));
            }
        }
        let released = self.machines.registry.release(holder.clone()).await?;
        // The API server may have refused to release some of the addresses.
        let is_released = |held: &&Held| released.iter().any(|address| address.ip() == held.address);
        if let Some(notice) = Notice::of_release(held.iter().filter(is_released)) {
            tracing::info!(machine = %key, uid, reason = notice.reason, "{}", notice.note);
            self.publish_about(reference(kind_of(holder.kind), &holder), &notice);
        }
        self.index().forget_holder(key, &holder);
        Ok(Response::Checked(check))
    }
}

// === impl Proof ===

impl Proof {
    /// Returns [`Check::Gone`] if none of the objects can use an address of the holder, otherwise [`Check::Kept`].
    pub(super) fn check(&self) -> Check {
        let is = |metadata: &ObjectMeta| {
            Key::of(metadata) == Key::of_machine(&self.holder) && uid(metadata) == self.holder.uid
        };
        let is_there = self.machine.as_ref().is_some_and(|machine| is(&machine.metadata))
            || self.vm.as_ref().is_some_and(|vm| is(&vm.metadata) || self.is_earlier);
        // The Secrets of the holder are deleted before the release, so a later VirtualMachine cannot read them.
        let own = self.vm.as_ref().filter(|_| self.successor().is_none());
        let refers = own.and_then(VirtualMachine::secret);
        let refers = refers.is_some_and(|secret| self.may_read(secret) && !self.is_absent(secret));
        let runs = self.instance.as_ref().is_some_and(|instance| self.is_guest(instance));
        if is_there || refers || runs { Check::Kept } else { Check::Gone }
    }

    /// Whether an instance may use an address of the holder.
    fn is_guest(&self, instance: &Instance) -> bool {
        let older = self.older.iter().filter(|addresses| instance.guest.reports(addresses)).count();
        let reports = older < MOST_UNCERTAIN && instance.guest.reports(&self.addresses);
        let runs = match instance.secret() {
            // The pod of an instance waits for a Secret that does not exist.
            Some(secret) => self.may_read(secret) && (instance.has_started || !self.is_absent(secret)),
            // The guest may still use an address that it got at an earlier start. An instance that has not started may
            // have the disk of an earlier guest.
            None => self.is_among_oldest() && !self.is_of_successor(instance),
        };
        reports || runs
    }

    /// Whether a guest with a reference to this Secret may use an address of the holder. A Secret that no lease names
    /// counts as a Secret of the oldest holders, unless a later VirtualMachine refers to this Secret: version 0.2.0 does
    /// not keep the names of Secrets in leases.
    fn may_read(&self, secret: &str) -> bool {
        let is_of_successor = self.successor().is_some_and(|vm| vm.secret() == Some(secret));
        let is_unknown = !self.of_others.contains(secret) && !is_of_successor;
        self.secrets.contains(secret) || (is_unknown && self.is_among_oldest())
    }

    /// Whether the holder may keep its addresses because of unknown network data, see [`MOST_UNCERTAIN`].
    fn is_among_oldest(&self) -> bool {
        self.older.len() < MOST_UNCERTAIN
    }

    fn is_absent(&self, secret: &str) -> bool {
        self.absent.as_deref() == Some(secret)
    }

    /// Whether the VirtualMachine of a later machine has created the instance. The owner reference alone is no proof:
    /// in KubeVirt, a VirtualMachine also takes over an older instance without an owner.
    fn is_of_successor(&self, instance: &Instance) -> bool {
        self.successor().is_some_and(|vm| {
            let is_younger = is_younger(&instance.metadata, &vm.metadata);
            instance.owner.as_deref() == Some(uid(&vm.metadata)) && is_younger
        })
    }

    /// Returns the VirtualMachine if it certainly belongs to a later machine than the holder. capk removes a
    /// KubevirtMachine before its VirtualMachine is gone, so a VirtualMachine without its KubevirtMachine may still
    /// belong to the holder. If the holder itself is a VirtualMachine, any VirtualMachine is returned:
    /// [`Proof::check`] finds the holder by its UID.
    fn successor(&self) -> Option<&VirtualMachine> {
        let machine = self.machine.as_ref();
        self.vm.as_ref().filter(|vm| match self.holder.kind {
            HolderKind::KubevirtMachine => machine.is_some_and(|machine| is_younger(&vm.metadata, &machine.metadata)),
            _ => true,
        })
    }
}

/// Whether `object` was created after `other`, or in the same second.
fn is_younger(object: &ObjectMeta, other: &ObjectMeta) -> bool {
    created(object).zip(created(other)).is_some_and(|(object, other)| object >= other)
}

pub(super) fn kind_of(kind: HolderKind) -> MachineKind {
    match kind {
        HolderKind::KubevirtMachine => MachineKind::KubevirtMachine,
        _ => MachineKind::VirtualMachine,
    }
}
