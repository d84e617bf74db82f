//! The digest of the network data in the Secret of a machine. With this digest, a leader need not read each Secret when
//! it starts.
//!
//! The controller has no right to list Secrets, so it must read each Secret by its name. To avoid these reads, the
//! object that holds the addresses has an annotation with a digest of its Secret. The digest is written after the
//! Secret, together with the annotation of the addresses. A leader that starts lists this object. From the leases, the
//! pools and the VirtualMachine, the leader makes the Secret that it would write now, and compares the digest of this
//! Secret with the annotation.
//!
//! Users can write the objects with this annotation, and can change a Secret. So no digest records, releases or
//! allocates an address. A digest has only two effects:
//!
//! - A pass with nothing to do makes no request. A pass with something to do reads the Secret before its first request,
//!   and decides again.
//! - When a user has deleted a Secret, the leader creates it again. The digest then decides whether the new Secret says
//!   that a running guest may have read another document.
//!
//! A digest does not show that a Secret was changed or deleted while no leader ran. So each Secret that was not read at
//! the start is read later: ten Secrets each second, and a Secret whenever an object of its machine changes. The Secret
//! of an instance that has not started yet is read at once, because the pod of the instance may wait for the Secret.

use ipnetwork::IpNetwork;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::json;

use crate::cluster::digest::digest;
use crate::kinds::kubevirt_machine::{Given, Instance, NetworkSecret, OwnSecret, is_deleted, uid};
use crate::kinds::network_data::{DIGEST_ANNOTATION, is_issued_for};
use crate::kinds::pool::HolderKind;
use crate::machines::settle::Served;
use crate::machines::step::Updated;
use crate::machines::view::View;

impl View {
    /// Lets a pass work without the stored Secret until its first request: if the annotation has the digest of the
    /// Secret that the leader would write now, the view gets this Secret.
    pub(super) fn trust_digest(&mut self) {
        if let Some(secret) = self.digested() {
            self.secrets.insert(secret.name().to_owned(), NetworkSecret::Ours(Box::new(secret)));
            self.trusts_digest = true;
        }
    }

    /// Removes the Secret that the pass has not read, so that the pass reads the stored Secret.
    pub(super) fn distrust_digest(&mut self) {
        self.secrets.clear();
        self.trusts_digest = false;
    }

    /// Returns the time of the last update for a Secret that the leader creates with the current document. If a user has
    /// deleted an earlier Secret of this name, a running guest may have read another document in that Secret. The
    /// annotation is written only while no guest has earlier network data. So if the annotation has the digest of the
    /// current document, the guest has read this document. Exception: a leader stopped before it wrote the digest of a
    /// later document.
    pub(super) fn updated(&self, name: &str) -> Updated {
        let reads = |instance: &&Instance| instance.has_started && instance.secret() == Some(name);
        match self.digested().map(|secret| secret.updated) {
            Some(updated) => updated.map_or(Updated::Never, Updated::At),
            None if self.instance.as_ref().filter(reads).is_some() => Updated::Now,
            None => Updated::Never,
        }
    }

    /// Returns the value of the annotation with the digest of a Secret. `None` in these cases:
    ///
    /// - The Secret is not what the leader would write now, or no document can be made now.
    /// - The Secret is immutable, or is being deleted.
    /// - The guest has earlier network data. So a changed pool causes no write of the annotation while guests still
    ///   have their earlier network data.
    pub(super) fn digest_of(&self, served: &Served) -> Option<String> {
        let (vm, secret) = (served.vm, served.own);
        let document = served.document.as_ref()?.as_ref().ok()?;
        let is_settled = served.is_current && self.outdated(served).is_none();
        if !is_settled || secret.is_immutable || is_deleted(&secret.metadata) {
            return None;
        }
        // Addresses and interfaces are sorted, because the leases of an interface have no order.
        let mut interfaces = secret.interfaces.clone();
        interfaces.iter_mut().for_each(|given| given.addresses.sort_unstable_by_key(IpNetwork::ip));
        interfaces.sort_unstable_by_key(|given| given.interface);
        let sorted = OwnSecret { interfaces, ..secret.clone() };
        let document = match sorted.interfaces == secret.interfaces {
            true => document.clone(),
            false => self.current_document(vm, &sorted)?.ok()?,
        };
        let networks: Vec<_> = sorted.interfaces.iter().map(|it| (it.interface.to_string(), &it.network)).collect();
        let holder = &secret.machine;
        let holder = (holder.kind, &holder.namespace, &holder.name, &holder.uid);
        let digest = digest(json!([secret.name(), secret.vm, holder, networks, document]).to_string().as_bytes())?;
        Some(match secret.updated {
            Some(updated) => format!("{digest}@{updated}"),
            None => digest,
        })
    }

    /// Returns the Secret that the leader would write now for the leases, the pools and the VirtualMachine of the
    /// machine, if the annotation has the digest of this Secret. `None`: the stored Secret must be read.
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
        let served = self.interfaces(vm, &machine)?;
        let interfaces = served.iter().map(|selected| {
            let (interface, network) = (selected.interface, selected.network.clone());
            let held = of_secret().filter(|held| held.claimant.machine == machine);
            let held = held.filter(|held| held.claimant.interface == interface && held.network == network);
            let addresses = held.filter_map(|held| IpNetwork::new(held.address, held.prefix).ok()).collect();
            Given { interface, network, pool: selected.pool.to_string(), addresses }
        });
        let interfaces = interfaces.filter(|given| !given.addresses.is_empty()).collect();
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
        let document = self.current_document(vm, &secret)?.ok()?;
        secret.document = document.clone().into_bytes();
        let served = Served { vm, own: &secret, document: Some(Ok(document)), is_current: true };
        (self.digest_of(&served)? == *annotation).then_some(secret)
    }
}
