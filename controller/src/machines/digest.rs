//! The digest of the network data in the Secret of a machine, so that a leader does not read each Secret when it starts.
//!
//! A Secret can only be read by its name: the controller has no right to list Secrets. So the object that holds the addresses has a
//! digest of what its Secret says. The digest is written together with the annotation of the addresses, after the Secret. When a leader
//! starts, it lists this object, and compares the digest with that of the Secret that it would write now: of the leases that name
//! the Secret, of the pools, and of the VirtualMachine.
//!
//! Users may write these objects, and may change a Secret. So a digest has one effect only: a pass with nothing to do makes no request.
//! Before any request, the pass reads the Secret and decides again. So no digest records, releases or allocates an address.
//!
//! What the digest does not show is that a Secret was changed or deleted while no leader ran. Each Secret that the start has not read is
//! read later, a few each second, and whenever an object of its machine changes. The Secret of an instance that has not started yet is
//! read at once: its pod may wait for the Secret.

use glowplug::formats::have_same_network;
use ipnetwork::IpNetwork;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::json;

use crate::cluster::digest::digest;
use crate::kinds::kubevirt_machine::{Given, NetworkSecret, OwnSecret, is_deleted, uid};
use crate::kinds::network_data::{DIGEST_ANNOTATION, is_issued_for};
use crate::kinds::pool::HolderKind;
use crate::kinds::virtual_machine::VirtualMachine;
use crate::machines::view::View;

impl View {
    /// Lets a pass that has made no request yet work without reading the Secret: the view gets the Secret that the leader would write now,
    /// if the annotation has the digest of this Secret.
    pub(super) fn trust_digest(&mut self) {
        if let Some(secret) = self.digested() {
            self.secrets.insert(secret.name().to_owned(), NetworkSecret::Ours(Box::new(secret)));
            self.trusts_digest = true;
        }
    }

    /// Removes the Secret that the pass has not read, so that the pass reads the stored one.
    pub(super) fn distrust_digest(&mut self) {
        self.secrets.clear();
        self.trusts_digest = false;
    }

    /// The value of the annotation with the digest of a Secret. `None`: the Secret is not what the leader would write now, no document can
    /// be made now, or the guest has earlier network data. So a changed pool causes no write of the annotation while guests still have
    /// their earlier network data.
    pub(super) fn digest_of(&self, vm: &VirtualMachine, secret: &OwnSecret) -> Option<String> {
        let document = self.current_document(vm, secret)?.ok()?;
        let is_current = have_same_network(document.as_bytes(), &secret.document);
        let is_settled = is_current && self.outdated(vm, secret).is_none();
        if !is_settled || secret.is_immutable || is_deleted(&secret.metadata) {
            return None;
        }
        // The leases of an interface have no order.
        let mut interfaces = secret.interfaces.clone();
        interfaces.iter_mut().for_each(|given| given.addresses.sort_unstable_by_key(IpNetwork::ip));
        interfaces.sort_unstable_by_key(|given| given.interface);
        let sorted = OwnSecret { interfaces, ..secret.clone() };
        let document = self.current_document(vm, &sorted)?.ok()?;
        let networks: Vec<_> = sorted.interfaces.iter().map(|it| (it.interface.to_string(), &it.network)).collect();
        let holder = &secret.machine;
        let holder = (holder.kind, &holder.namespace, &holder.name, &holder.uid);
        let digest = digest(json!([secret.name(), secret.vm, holder, networks, document]).to_string().as_bytes())?;
        Some(match secret.updated {
            Some(updated) => format!("{digest}@{updated}"),
            None => digest,
        })
    }

    /// The Secret that the leader would write now for the leases, the pools and the VirtualMachine of the machine, if the annotation has
    /// the digest of this Secret.
    fn digested(&self) -> Option<OwnSecret> {
        let vm = self.vm.as_ref()?;
        let name = vm.secret().filter(|name| is_issued_for(name, &self.key.name))?;
        // The pod of the instance may wait for the Secret.
        if self.instance.as_ref().is_some_and(|instance| !instance.has_started) {
            return None;
        }
        let of_secret = || self.ledger.held.iter().filter(|held| held.secrets.contains(name));
        let machine = of_secret().next()?.claimant.machine.clone();
        let metadata = match machine.kind {
            HolderKind::VirtualMachine => &vm.metadata,
            _ => &self.machine.as_ref().filter(|it| it.holder() == machine)?.metadata,
        };
        let annotation = metadata.annotations.as_ref()?.get(DIGEST_ANNOTATION)?;
        let interfaces = self.selected.as_ref().ok()?.iter().map(|selected| {
            let (interface, network) = (selected.interface, selected.network.clone());
            let held = of_secret().filter(|held| held.claimant.machine == machine);
            let held = held.filter(|held| held.claimant.interface == interface && held.network == network);
            let addresses = held.filter_map(|held| IpNetwork::new(held.address, held.prefix).ok()).collect();
            Given { interface, network, pool: selected.pool.to_string(), addresses }
        });
        let interfaces = interfaces.collect();
        let updated = annotation.split_once('@').and_then(|(_, updated)| updated.parse().ok());
        let (namespace, name) = (Some(self.key.namespace.clone()), Some(name.to_owned()));
        let mut secret = OwnSecret {
            metadata: ObjectMeta { namespace, name, ..ObjectMeta::default() },
            is_immutable: false,
            updated,
            document: Vec::new(),
            vm: uid(&vm.metadata).to_owned(),
            machine,
            interfaces,
        };
        secret.document = self.current_document(vm, &secret)?.ok()?.into_bytes();
        (self.digest_of(vm, &secret)? == *annotation).then_some(secret)
    }
}
