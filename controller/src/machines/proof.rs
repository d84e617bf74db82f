//! Proves that a machine is gone: reads all objects that may use its addresses with consistent reads, and concludes
//! whether one of them still may.

use std::net::IpAddr;

use glowplug::host::claim::Machine;

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

// === impl Work ===

impl Work<'_> {
    /// Reads every object that may use an address of a holder, and releases the addresses if no such object exists.
    pub(super) async fn prove(&self, view: &View, holder: Machine) -> Result<Response, Error> {
        let (name, of) = (Key::of_machine(&holder), holder.clone());
        let held = self.machines.registry.read(move |allocator| Held::all_of(allocator, &of)).await?;
        let vm_namespace = held.iter().find_map(|held| held.claimant.machine.vm_namespace.clone());
        let mut homes = {
            let mut index = self.index();
            // Perhaps only a lease of another leader says where the VirtualMachine is.
            if let Some(namespace) = vm_namespace {
                index.confirm(&holder, &Key { namespace, name: name.name.clone() });
            }
            index.confirmed_homes_of(&holder)
        };
        // A claim may be all that is left of a machine of another namespace.
        homes.insert(view.key.clone());
        let addresses = held.iter().map(|held| held.address).collect();
        let mut proof = Proof { holder: holder.clone(), held: addresses, guests: Vec::new(), machine: None };
        let mut own_secret = None;
        for key in homes {
            let secret = self.ask_secret(&key).await?;
            let checked = self.index().check(&key, secret.clone());
            if key == view.key {
                own_secret = Some(checked.clone());
            }
            // A KubevirtMachine that is gone no longer says which VirtualMachine is its own.
            let is_of_holder = matches!(&secret, NetworkSecret::Ours(hand_out) if hand_out.machine == holder);
            let secret = if is_of_holder { secret } else { checked };
            let machine = match self.kinds.has_kubevirt_machines {
                true => self.read(&view.key, Kind::KubevirtMachine, &name).await?,
                false => None,
            };
            let vm = self.read(&view.key, Kind::VirtualMachine, &key).await?;
            let instance = self.read(&view.key, Kind::Instance, &key).await?;
            // The index ignores a response if a watch has reported the end of an earlier object of this name meanwhile.
            let index = self.index();
            proof.machine = index.machine(&name).cloned().or_else(|| machine.map(KubevirtMachine::read));
            let stripped = index.memory(&key).stripped.remove(&holder);
            let vm = index.vm(&key).cloned().or_else(|| vm.map(VirtualMachine::read));
            let instance = index.instance(&key).cloned().or_else(|| instance.map(Instance::read));
            proof.guests.push(Guest { key, secret, vm, instance, stripped });
        }
        let verdict = proof.verdict();
        let uid = &holder.uid;
        tracing::debug!(machine = %view.key, uid, ?verdict, "read the objects of a machine that may be gone");
        match verdict {
            Verdict::Strip(key, uid) => {
                delete(&self.secrets(&key), &key, Some(uid)).await?;
                return Ok(Response::Stripped);
            }
            Verdict::Kept(stripped) => {
                for (key, stripped) in stripped {
                    self.index().remember(&key, |memory| {
                        memory.stripped.entry(holder.clone()).or_insert(stripped);
                    });
                }
                let check = if proof.only_a_secret_is_left() { Check::Unsettled } else { Check::Kept };
                return Ok(Response::Checked(check, own_secret));
            }
            Verdict::Gone => {}
        }
        self.machines.registry.release(holder.clone()).await?;
        if let Some(notice) = Notice::of_release(&held) {
            tracing::info!(machine = %view.key, uid, reason = notice.reason, "{}", notice.note);
            self.publish_about(reference(kind_of(holder.kind), &holder), &notice);
        }
        self.index().forget_holder(&holder);
        Ok(Response::Checked(Check::Gone, own_secret))
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

    /// Whether perhaps only a Secret keeps the addresses of a holder that is not gone. No watch reports the end of a Secret.
    fn only_a_secret_is_left(&self) -> bool {
        let is_ending = |guest: &Guest| matches!(&guest.secret, NetworkSecret::Ours(secret) if secret.is_deleted);
        self.guests.iter().any(is_ending)
            || self.guests.iter().all(|guest| guest.vm.is_none() && guest.instance.is_none())
    }

    /// Whether a VirtualMachine is the holder, or may belong to the holder.
    fn is_vm_of(&self, vm: &VirtualMachine, secret: &NetworkSecret) -> bool {
        let named = match secret {
            NetworkSecret::Ours(hand_out) if hand_out.vm == uid(&vm.metadata) => Some(&hand_out.machine),
            _ => None,
        };
        let is_of_another = match (self.holder.kind, &self.machine) {
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

fn kind_of(kind: HolderKind) -> Kind {
    match kind {
        HolderKind::KubevirtMachine => Kind::KubevirtMachine,
        HolderKind::VirtualMachine | HolderKind::IpAddressClaim | HolderKind::IpamClaim => Kind::VirtualMachine,
    }
}
