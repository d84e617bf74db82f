//! Proves that a machine is gone: reads all objects that may use its addresses with consistent reads, and concludes
//! whether one of them still may.

use std::net::IpAddr;

use glowplug::host::claim::Machine;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::cluster::key::Key;
use crate::kinds::kubevirt_machine::{HandOut, Instance, KubevirtMachine, NetworkSecret, created, uid};
use crate::kinds::pool::HolderKind;
use crate::kinds::virtual_machine::VirtualMachine;
use crate::machines::kind::Kind;
use crate::machines::recorded::Held;
use crate::machines::secret::delete;
use crate::machines::step::Notice;
use crate::machines::view::{Check, Response, Stripped, View, is_ending};
use crate::machines::work::{Work, reference};
use crate::passes::Error;

/// All objects that may use an address of a holder, from consistent reads in the order of the members.
#[derive(Clone, Debug)]
pub(super) struct Proof {
    pub(super) holder: Machine,
    /// Addresses that the holder holds.
    pub(super) held: Vec<IpAddr>,
    pub(super) secret: NetworkSecret,
    /// The KubevirtMachine with the name of the VirtualMachine. `None`: it does not exist.
    pub(super) machine: Option<KubevirtMachine>,
    pub(super) vm: Option<VirtualMachine>,
    pub(super) instance: Option<Instance>,
    /// The first consistent reads without the holder's Secret. `None`: the Secret may still have existed before these
    /// reads.
    pub(super) stripped: Option<Stripped>,
}

/// The conclusion from a proof.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Verdict {
    /// The Secret with this UID must be deleted first.
    Strip(String),
    /// An object may still use an address. `Some`: the holder's Secret is gone.
    Kept(Option<Stripped>),
    /// No object uses the addresses.
    Gone,
}

// === impl Work ===

impl Work<'_> {
    /// Reads every object that may use an address of a holder, and releases the addresses if no such object exists. All
    /// these objects have the name of the VirtualMachine.
    pub(super) async fn prove(&self, view: &View, holder: Machine) -> Result<Response, Error> {
        let key = &view.key;
        let of = holder.clone();
        let held = self.machines.registry.read(move |allocator| Held::all_of(allocator, &of)).await?;
        let secret = view.check(self.ask_secret(key).await?);
        let machine = match self.kinds.has_kubevirt_machines {
            true => self.read(Kind::KubevirtMachine, key).await?,
            false => None,
        };
        let vm = self.read(Kind::VirtualMachine, key).await?;
        let instance = self.read(Kind::Instance, key).await?;
        let proof = {
            // The index ignores a response if a watch has reported the end of an earlier object of this name meanwhile.
            let index = self.index();
            let machine = machine.map(KubevirtMachine::read).filter(|machine| !machine.has_vm_elsewhere);
            Proof {
                holder: holder.clone(),
                held: held.iter().map(|held| held.address).collect(),
                secret: secret.clone(),
                machine: index.machine(key).cloned().or(machine),
                vm: index.vm(key).cloned().or_else(|| vm.map(VirtualMachine::read)),
                instance: index.instance(key).cloned().or_else(|| instance.map(Instance::read)),
                stripped: index.memory(key).stripped.remove(&holder),
            }
        };
        let verdict = proof.verdict();
        let uid = &holder.uid;
        tracing::debug!(machine = %key, uid, ?verdict, "read the objects of a machine that may be gone");
        match verdict {
            Verdict::Strip(uid) => {
                delete(&self.secrets(key), key, Some(uid)).await?;
                return Ok(Response::Stripped);
            }
            Verdict::Kept(stripped) => {
                if let Some(stripped) = stripped {
                    self.index().remember(key, |memory| {
                        memory.stripped.entry(holder).or_insert(stripped);
                    });
                }
                let check = if proof.only_a_secret_is_left() { Check::Unsettled } else { Check::Kept };
                return Ok(Response::Checked(check, secret));
            }
            Verdict::Gone => {}
        }
        // Everyone who may create claims can name any machine. Only the holders of this name are gone, and only if no lease
        // says that the guest is in another namespace.
        let is_of_name = Key::of_machine(&holder) == *key || view.ledger.earlier.contains(&holder);
        if !is_of_name || held.iter().any(|held| Key::of_vm(&held.claimant.machine) != *key) {
            self.index().remember(key, |memory| drop(memory.stripped.remove(&holder)));
            return Ok(Response::Checked(Check::Gone, secret));
        }
        let released = self.machines.registry.release(holder.clone()).await?;
        // The API server may have refused the release.
        let is_released = |held: &&Held| released.iter().any(|address| address.ip() == held.address);
        if let Some(notice) = Notice::of_release(held.iter().filter(is_released)) {
            tracing::info!(machine = %key, uid, reason = notice.reason, "{}", notice.note);
            self.publish_about(reference(kind_of(holder.kind), &holder), &notice);
        }
        self.index().forget_holder(key, &holder);
        Ok(Response::Checked(Check::Gone, secret))
    }
}

// === impl Proof ===

impl Proof {
    /// Concludes whether the holder is gone.
    pub(super) fn verdict(&self) -> Verdict {
        let is_there = self.machine.as_ref().is_some_and(|machine| self.is(&machine.metadata));
        let has_vm = self.vm.as_ref().is_some_and(|vm| self.is_vm_of(vm));
        if let NetworkSecret::Ours(hand_out) = &self.secret
            && hand_out.machine == self.holder
            // The finalizer of another program may keep a Secret that is deleted.
            && !hand_out.is_deleted
            && self.no_longer_needs(hand_out)
        {
            return Verdict::Strip(hand_out.uid.clone());
        }
        let has_secret = self.secret.names(&self.holder, &self.held);
        let has_instance = self.instance.as_ref().is_some_and(|instance| self.is_instance_of(instance));
        if is_there || has_vm || has_secret || has_instance || self.may_have_read() {
            let instance = self.instance.as_ref().and_then(|instance| instance.metadata.uid.clone());
            return Verdict::Kept((!has_secret).then_some(Stripped { instance }));
        }
        Verdict::Gone
    }

    /// Whether the holder is the object with this metadata.
    fn is(&self, metadata: &ObjectMeta) -> bool {
        Key::of(metadata) == Key::of_machine(&self.holder) && uid(metadata) == self.holder.uid
    }

    /// Whether perhaps only a Secret keeps the addresses of a holder that is not gone. No watch reports the end of a Secret.
    fn only_a_secret_is_left(&self) -> bool {
        let is_ending = matches!(&self.secret, NetworkSecret::Ours(secret) if secret.is_deleted);
        is_ending || (self.vm.is_none() && self.instance.is_none())
    }

    /// Whether a VirtualMachine is the holder, or may belong to the holder.
    fn is_vm_of(&self, vm: &VirtualMachine) -> bool {
        let named = match &self.secret {
            NetworkSecret::Ours(hand_out) if hand_out.vm == uid(&vm.metadata) => Some(&hand_out.machine),
            _ => None,
        };
        let is_earlier = Key::of_machine(&self.holder) != vm.key();
        let is_of_another = match (self.holder.kind, &self.machine) {
            // The next guest of this VirtualMachine reads the Secret of another machine.
            _ if named.is_some_and(|machine| *machine != self.holder) => true,
            // A KubevirtMachine of another namespace holds its addresses until the VirtualMachine is gone.
            (HolderKind::KubevirtMachine, _) if is_earlier => false,
            (HolderKind::KubevirtMachine, Some(machine)) => {
                uid(&machine.metadata) != self.holder.uid
                    && created(&vm.metadata).zip(created(&machine.metadata)).is_some_and(|(vm, machine)| vm >= machine)
            }
            // capk removes a KubevirtMachine before its VirtualMachine is gone.
            (HolderKind::KubevirtMachine, None) => false,
            (HolderKind::VirtualMachine | HolderKind::IpAddressClaim | HolderKind::IpamClaim, _) => true,
        };
        uid(&vm.metadata) == self.holder.uid || named == Some(&self.holder) || !is_of_another
    }

    /// Whether an instance may be a guest of the holder.
    fn is_instance_of(&self, instance: &Instance) -> bool {
        let Some(vm) = self.vm.as_ref().filter(|_| uid(&instance.metadata) != self.holder.uid) else { return true };
        let is_of_vm = instance.owner.as_deref() == Some(uid(&vm.metadata));
        // In KubeVirt, a new VirtualMachine adopts an orphan instance. Such an instance is older than the
        // VirtualMachine.
        let is_younger =
            created(&instance.metadata).zip(created(&vm.metadata)).is_some_and(|(instance, vm)| instance >= vm);
        !(is_of_vm && is_younger) || self.is_vm_of(vm)
    }

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

fn kind_of(kind: HolderKind) -> Kind {
    match kind {
        HolderKind::KubevirtMachine => Kind::KubevirtMachine,
        HolderKind::VirtualMachine | HolderKind::IpAddressClaim | HolderKind::IpamClaim => Kind::VirtualMachine,
    }
}
