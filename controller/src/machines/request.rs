//! Sends the request of each step of a pass.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::time::Duration;

use glowplug::host::claim::{Machine, Record, is_object_name};
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use serde_json::Value;

use crate::cluster::key::Key;
use crate::cluster::object::Object;
use crate::cluster::request::{self, Refusal, ask, find, list, stored};
use crate::kinds::cluster_api::IpAddress;
use crate::kinds::kubevirt_machine;
use crate::kinds::kubevirt_machine::{Given, NetworkSecret, OwnSecret, STATUS_MAP, addresses_of, note_update};
use crate::kinds::network_data::ISSUED;
use crate::kinds::virtual_machine::VirtualMachine;
use crate::ledger::adoption::{self, Unheld};
use crate::machines::kind::MachineKind;
use crate::machines::recorded::{free_of, unreserved};
use crate::machines::secret::secret_in;
use crate::machines::source::{MachineClaim, ProviderAddress};
use crate::machines::step::{Hold, Notice, Release, Removal, Step, Updated};
use crate::machines::view::{Response, View};
use crate::machines::work::{Work, answered};
use crate::passes::{Error, Problem};

// === impl Work ===

impl Work<'_> {
    /// Sends the request of a step, and returns the response.
    pub(super) async fn request(&self, view: &View, step: Step) -> Result<Response, Error> {
        let key = &view.key;
        let registry = &self.machines.registry;
        let merge = PatchParams::default();
        match step {
            Step::Wait => {}
            Step::ReadMachine(machine) => drop(self.read(MachineKind::KubevirtMachine, &machine).await?),
            Step::ReadSecret(name) => {
                let secret = self.secret(key, &name).await;
                if let Err(error) = &secret {
                    self.report_denied(view, &name, error);
                }
                let secret = view.check(secret?);
                return Ok(Response::Secret(name, secret));
            }
            Step::ReadOtherSecret(name) => {
                // A Secret with an invalid name cannot exist, and an invalid name must not become a part of a path.
                let secret = match is_object_name(&name) {
                    true => ask(find(&self.secrets(key), &name)).await,
                    false => Ok(None),
                };
                if let Err(error) = &secret {
                    self.report_denied(view, &name, error);
                }
                return Ok(Response::OtherAddresses(name, addresses_of(secret?.map(secret_in).transpose()?)));
            }
            Step::RequestReference(patch, notice) => {
                if !self.patch_vm(view, &Patch::Merge(patch)).await? {
                    return Ok(Response::NotStored);
                }
                let has_reference = self.index().vm(key).is_some_and(|vm| vm.secret().is_some());
                if let Some(notice) = notice.filter(|_| has_reference) {
                    self.publish(view, &notice);
                }
            }
            Step::PatchVm(patch, notice) => {
                let patch = serde_json::from_value(patch).map_err(request::Error::Unreadable)?;
                let version = || self.index().vm(key).and_then(|vm| vm.metadata.resource_version.clone());
                let before = version();
                if !self.patch_vm(view, &Patch::<Value>::Json(patch)).await? {
                    return Ok(Response::NotStored);
                }
                // The webhook may have taken the change back.
                if let Some(notice) = notice.filter(|_| version() != before) {
                    self.publish(view, &notice);
                }
            }
            Step::ReadInstance => drop(self.read(MachineKind::Instance, key).await?),
            Step::CreateClaim(claim) => return self.create_claim(view, claim).await,
            Step::ReadAddress(name) => return self.read_address(key, &name).await,
            Step::PatchAddress(name, patch) => {
                let answer = ask(self.addresses(key)?.patch(&name, &merge, &Patch::Merge(patch))).await;
                return match stored(answer)? {
                    Some(address) => Ok(Response::Address(Box::new(Some(provider_address(address))))),
                    None => self.read_address(key, &name).await,
                };
            }
            Step::DeleteClaim(name, uid) => {
                let same = Preconditions { uid: Some(uid), resource_version: None };
                let params = DeleteParams::default().preconditions(same);
                let claim = Key { namespace: key.namespace.clone(), name };
                let kind = self.claims()?;
                stored(ask(self.api(kind, &claim).delete(&claim.name, &params)).await)?;
                self.read(kind, &claim).await?;
            }
            Step::PatchClaim(name, patch) => {
                let (claim, kind) = (Key { namespace: key.namespace.clone(), name }, self.claims()?);
                let answer = answered(self.api(kind, &claim).patch(&claim.name, &merge, &Patch::Merge(patch))).await;
                match stored(answer)? {
                    // When the last finalizer is removed, the API server deletes the object and responds with its last
                    // version.
                    Some(object) if object.metadata.finalizers.iter().flatten().next().is_some() => {
                        self.take(kind, &claim, Some(object)).await?;
                    }
                    _ => drop(self.read(kind, &claim).await?),
                }
            }
            Step::Hold(hold) => {
                let Hold { pool, claimant, addresses, source } = *hold;
                self.note_claimant(key, &claimant.machine);
                if let Err(error) = registry.hold(pool, claimant, addresses, source).await? {
                    return Ok(Response::Refused(Problem::Refused(error)));
                }
            }
            Step::Claim(claim) => {
                self.note_claimant(key, &claim.machine);
                return Ok(match registry.claim(*claim).await? {
                    Ok(allocations) => Response::Granted(allocations),
                    Err(error) => Response::Refused(Problem::Refused(error)),
                });
            }
            Step::CreateSecret(mut secret, updated, warnings, notice) => {
                match updated {
                    Updated::Never => {}
                    Updated::At(time) => note_update(&mut secret, time),
                    Updated::Now => note_update(&mut secret, Timestamp::now()),
                }
                return self.create_secret(view, *secret, warnings, notice).await;
            }
            Step::UpdateSecret(own, document) => return self.update_secret(view, *own, &document).await,
            Step::RecordSecrets(machine, secrets) => {
                if let Err(error) = registry.set_secrets(*machine, secrets).await? {
                    return Ok(Response::Refused(Problem::Refused(error)));
                }
            }
            Step::DropSecrets(machine, earlier, kept) => {
                for name in &earlier {
                    self.delete_secret(view, &machine, name).await?;
                }
                if !self.is_read(key, &earlier).await?
                    && let Err(error) = registry.set_secrets(*machine, kept).await?
                {
                    return Ok(Response::Refused(Problem::Refused(error)));
                }
            }
            Step::MoveLeases(machine, pools) => {
                let uid = machine.uid.clone();
                match registry.move_leases(*machine, pools.clone()).await? {
                    Ok(moved) if moved.is_empty() => {}
                    Ok(moved) => {
                        let (addresses, pools) = (list(moved), list(pools));
                        tracing::info!(machine = %key, uid, addresses, pools, "moved leases to the pools that serve the machine now");
                    }
                    Err(error) => return Ok(Response::Refused(Problem::Refused(error))),
                }
            }
            Step::RecordMigration(holders, mut addresses) => {
                let mut beyond = BTreeSet::new();
                for holder in holders {
                    beyond.extend(registry.note_migrated(holder).await?);
                }
                addresses.retain(|address| !beyond.contains(address));
                let is_new = view.memory.not_held != beyond;
                let not_held = Notice::of_not_held(&beyond).filter(|_| is_new);
                for notice in Notice::of_held(&addresses).into_iter().chain(not_held) {
                    self.publish(view, &notice);
                }
                self.index().remember(key, |memory| memory.not_held = beyond);
            }
            Step::Release(release) => return self.release(view, *release).await,
            Step::Adopt(records, secret) => return self.adopt(records, secret).await,
            Step::Restore(records) => return self.restore(records).await,
            Step::Keep(claimant, addresses) => {
                let uid = claimant.machine.uid.clone();
                let released = registry.keep(*claimant, addresses).await?;
                if !released.is_empty() {
                    let addresses = list(released);
                    tracing::info!(machine = %key, uid, addresses, "released addresses that the machine never got");
                }
            }
            Step::PatchMachine(patch) | Step::AnnotateWaiting(patch) => {
                drop(self.patch_machine(view, patch, false).await?)
            }
            Step::Retry(patch) => {
                if !view.memory.is_retry_logged {
                    tracing::info!(machine = %key, "requesting that capk create the VirtualMachine again");
                    self.index().remember(key, |memory| memory.is_retry_logged = true);
                }
                self.patch_machine(view, patch, false).await?;
            }
            Step::PatchStatus(patch) => {
                // Only the CRD, which is the same for all machines, decides whether there is a map after this patch. The
                // entries of the map depend on this machine, because users and other programs can write them.
                let kept = self.patch_machine(view, patch, true).await?;
                if kept.is_some_and(|kept| kept.data["status"][STATUS_MAP].is_null()) {
                    self.note_pruned();
                }
            }
            Step::LeaveAlone(patch, notice) => {
                if !self.patch_vm(view, &Patch::Merge(patch)).await? {
                    return Ok(Response::NotStored);
                }
                self.publish(view, &notice);
            }
            Step::AnnotateVm(patch) | Step::RemoveRecords(patch) | Step::MarkVm(patch) => {
                self.merge_vm(key, patch).await?;
            }
            Step::ReserveRecorded(late, notice) => {
                let beyond = registry.add_conflicts(late).await?;
                let end = unreserved(&beyond).unwrap_or_else(|| "no machine gets this address".to_owned());
                let note = format!("{}; {end}", notice.note);
                self.publish(view, &Notice { note, ..notice });
            }
            Step::EndRecords(machines) => {
                for (machine, addresses) in machines {
                    let uid = machine.uid.clone();
                    let ended = list(addresses.iter().map(|(_, address)| address));
                    registry.end_records(machine, addresses).await?;
                    tracing::info!(machine = %key, uid, addresses = ended, "no object of the machine records the addresses any more");
                }
            }
            Step::ReportDoubts(doubts) => {
                for note in doubts.difference(&view.memory.doubts) {
                    let notice = Notice { is_warning: true, reason: "IPAddressConflict", note: note.clone() };
                    self.publish(view, &notice);
                }
                self.index().remember(key, |memory| memory.doubts = doubts);
            }
            Step::Reserve(conflicts) => {
                let source = conflicts.first().map(|it| it.source.clone()).unwrap_or_default();
                if let Some(end) = unreserved(&registry.add_conflicts(conflicts).await?) {
                    let note = format!("{source}: {end}");
                    self.publish(view, &Notice { is_warning: true, reason: "IPAddressConflict", note });
                }
            }
            Step::Withdraw(machine) => {
                registry.withdraw(machine.clone()).await?;
                tracing::info!(machine = %key, uid = machine.uid, "removed the machine from the wait queue");
                self.index().remember(key, |memory| memory.claimed.retain(|holder| *holder != machine));
            }
            Step::Prove(holder) => return self.prove(view, holder).await,
            Step::Report(notice) => {
                self.publish(view, &notice);
                self.index().remember(key, |memory| memory.note(notice));
            }
        }
        Ok(Response::Done)
    }

    /// Whether an instance reads one of these Secrets, according to a consistent read.
    async fn is_read(&self, vm: &Key, secrets: &BTreeSet<String>) -> Result<bool, Error> {
        self.read(MachineKind::Instance, vm).await?;
        let index = self.index();
        let read = index.instance(vm).and_then(|instance| instance.secret());
        Ok(read.is_some_and(|secret| secrets.contains(secret)))
    }

    /// Returns an error while an adoption of records runs.
    fn check_adoption(&self) -> Result<(), Error> {
        match self.index().is_adopting() {
            true => Err(Error::NotReady("the records of machines are being adopted".to_owned())),
            false => Ok(()),
        }
    }

    /// Releases the addresses of interfaces that are on another network now.
    ///
    /// The record is removed before the release: otherwise an adoption would make the record a lease or a conflict of
    /// the machine again. After a crash between the two steps, the lease still holds the address. A running adoption
    /// may already have read the record, so the release waits until this adoption ends.
    async fn release(&self, view: &View, release: Release) -> Result<Response, Error> {
        let (key, Release { machine, addresses, secrets, records }) = (&view.key, release);
        self.check_adoption()?;
        for name in &secrets {
            self.delete_secret(view, &machine, name).await?;
        }
        if self.is_read(key, &secrets).await? {
            return Ok(Response::Done);
        }
        let is_removed = match records {
            Removal::Nothing => true,
            Removal::OfVm(patch) => self.merge_vm(key, patch).await?,
            Removal::OfMachine(patch, status) => {
                let is_removed = self.patch_machine(view, patch, false).await?.is_some();
                match status {
                    Some(status) if is_removed => self.patch_machine(view, status, true).await?.is_some(),
                    _ => is_removed,
                }
            }
        };
        if !is_removed {
            return Ok(Response::NotStored);
        }
        self.check_adoption()?;
        let uid = machine.uid.clone();
        let addresses = list(self.machines.registry.release_addresses(machine, addresses).await?);
        tracing::info!(machine = %key, uid, addresses, "released the addresses of another network");
        Ok(Response::Done)
    }

    /// Creates the Secret of a VirtualMachine, and publishes that the machine has its addresses.
    async fn create_secret(
        &self,
        view: &View,
        secret: Secret,
        warnings: Vec<String>,
        notice: Option<Notice>,
    ) -> Result<Response, Error> {
        let key = &view.key;
        for warning in warnings {
            tracing::warn!(machine = %key, warning, "the guest may miss a setting of its network data");
        }
        let name = secret.metadata.name.clone().unwrap_or_default();
        let stored = self.store_secret(key, &secret).await;
        if let Err(error) = &stored {
            self.report_denied(view, &name, error);
        }
        let secret = match stored? {
            Some(secret) => {
                let secret = NetworkSecret::read(Some(secret));
                if let NetworkSecret::Ours(own) = &secret {
                    self.note_secret(view, own);
                }
                if let Some(notice) = notice {
                    self.publish(view, &notice);
                }
                secret
            }
            // Another leader has created the Secret first, or the namespace is gone.
            None => view.check(self.secret(key, &name).await?),
        };
        if secret == NetworkSecret::Absent { Err(Error::Behind) } else { Ok(Response::Secret(name, secret)) }
    }

    /// Reports that the API server refuses to read or write the Secret of a machine, because of a quota, a policy or a
    /// missing right of the controller. The pass fails and is repeated.
    fn report_denied(&self, view: &View, secret: &str, error: &request::Error) {
        let Some(Refusal::ForGood(status)) = error.refusal() else { return };
        let note =
            format!("Secret {secret:?}: the API server refuses the request of the controller: {}", status.message);
        let notice = Notice { is_warning: true, reason: "NetworkDataMissing", note };
        if view.tell(notice.clone()) != Step::Wait {
            self.publish(view, &notice);
            self.index().remember(&view.key, |memory| memory.note(notice));
        }
    }

    /// Writes another document into the Secret of a machine. The addresses in the Secret stay the same.
    async fn update_secret(&self, view: &View, own: OwnSecret, document: &str) -> Result<Response, Error> {
        let (key, name) = (&view.key, own.name().to_owned());
        let vm = view.vm.as_ref().ok_or(Error::Behind)?;
        let secret = match self.store_secret(key, &own.updated(vm, document, Timestamp::now())).await? {
            Some(secret) => {
                tracing::info!(machine = %key, secret = name, "updated the network data of a machine");
                NetworkSecret::read(Some(secret))
            }
            None => view.check(self.secret(key, &name).await?),
        };
        Ok(Response::Secret(name, secret))
    }

    /// Creates the IPAddressClaim of a machine.
    async fn create_claim(&self, view: &View, claim: Value) -> Result<Response, Error> {
        let claim: Object = serde_json::from_value(claim).map_err(request::Error::Unreadable)?;
        let (key, kind) = (Key::of(&claim.metadata), self.claims()?);
        let answer = answered(self.api(kind, &key).create(&PostParams::default(), &claim)).await;
        if let Some(claim) = stored(answer)? {
            self.index().store(kind, claim);
            return Ok(Response::Done);
        }
        // Another leader has created the claim first, or another author has created a claim of this name.
        let claim = ask(find(&self.api(kind, &key), &key.name)).await?.ok_or(Error::Behind)?;
        let problem = match MachineClaim::read(claim.clone()) {
            Ok(known) => {
                self.index().store(kind, claim);
                if self.index().is_machine_of(&known.claimant.machine, &view.key) {
                    return Ok(Response::Done);
                }
                // An earlier version of the controller, or another author, created this claim for a machine of another
                // namespace.
                let machine = known.claimant.machine;
                format!(
                    "IPAddressClaim {key} is of another machine ({machine}), expected no IPAddressClaim of this name: delete it"
                )
            }
            Err(problem) => {
                format!(
                    "IPAddressClaim {key} is not of this controller ({problem}), expected no IPAddressClaim of this name"
                )
            }
        };
        Ok(Response::Refused(Problem::Mismatch(problem, Vec::new())))
    }

    /// Reads an IPAddress of another provider.
    async fn read_address(&self, key: &Key, name: &str) -> Result<Response, Error> {
        let address = ask(find(&self.addresses(key)?, name)).await?;
        Ok(Response::Address(Box::new(address.map(provider_address))))
    }

    /// Makes the registry adopt the addresses in a Secret. [`Error::Behind`]: the API server has leases of the machine
    /// that the registry does not have yet; all other addresses are adopted.
    async fn adopt(&self, records: Vec<Record>, secret: String) -> Result<Response, Error> {
        let records = records.into_iter().map(|record| {
            let network = record.network.clone().unwrap_or_default();
            (record, network)
        });
        let Unheld { records, is_behind, unreadable } = adoption::unheld(&self.machines.client, records).await?;
        let adoption = self.machines.registry.adopt(records.clone()).await?;
        // A crash before this write does no harm: a lease without names of Secrets counts as a lease whose Secrets are
        // not known.
        let machines: BTreeSet<&Machine> = records.iter().map(|record| &record.claimant.machine).collect();
        for machine in machines {
            self.machines.registry.add_secret(machine.clone(), secret.clone()).await?;
        }
        // If nothing is adopted, a notice reports the reason. Each pass tries the adoption again, so a log line would
        // be repeated.
        if adoption.adopted > 0 {
            self.log_adoption(&records, &adoption);
        }
        if is_behind {
            return Err(Error::Behind);
        }
        Ok(Problem::of_adoption(&unreadable, &adoption).map_or(Response::Done, Response::Refused))
    }

    /// Makes the registry adopt those addresses of an earlier machine that are free.
    async fn restore(&self, records: Vec<Record>) -> Result<Response, Error> {
        let records = match self.machines.registry.read(move |allocator| free_of(allocator, records)).await? {
            Ok(records) => records,
            Err(error) => return Ok(Response::Refused(Problem::Refused(error))),
        };
        if !records.is_empty() {
            let adoption = self.machines.registry.adopt(records.clone()).await?;
            self.log_adoption(&records, &adoption);
        }
        Ok(Response::Done)
    }

    /// Patches the VirtualMachine of a pass. The patch tests the version of the view. Returns whether the patch is
    /// stored, and updates the index with the VirtualMachine that the API server has now.
    async fn patch_vm(&self, view: &View, patch: &Patch<Value>) -> Result<bool, Error> {
        let (kind, key) = (MachineKind::VirtualMachine, &view.key);
        let known = self.index().version(kind, key);
        let tested = view.vm.as_ref().and_then(|vm| vm.metadata.resource_version.as_deref());
        let (vm, is_stored) = request::patch_version(&self.api(kind, key), &key.name, patch, tested).await?;
        match is_stored {
            true => self.take(kind, key, vm).await,
            false => {
                self.index().take(kind, key, known, vm);
                Ok(false)
            }
        }
    }

    /// Merges a patch into the VirtualMachine of a name. Returns whether the patch is stored.
    async fn merge_vm(&self, key: &Key, patch: Value) -> Result<bool, Error> {
        let vms = self.api(MachineKind::VirtualMachine, key);
        let answer = answered(vms.patch(&key.name, &PatchParams::default(), &Patch::Merge(patch))).await;
        self.take(MachineKind::VirtualMachine, key, stored(answer)?).await
    }

    /// Merges a patch into the KubevirtMachine or, if `is_status`, into its status. Returns the stored object. `None`:
    /// the patch was not stored.
    async fn patch_machine(&self, view: &View, patch: Value, is_status: bool) -> Result<Option<Object>, Error> {
        let Some(machine) = &view.machine else { return Ok(None) };
        let key = Key::of(&machine.metadata);
        let (api, params, patch) =
            (self.api(MachineKind::KubevirtMachine, &key), PatchParams::default(), Patch::Merge(patch));
        let answer = match is_status {
            true => answered(api.patch_status(&key.name, &params, &patch)).await,
            false => answered(api.patch(&key.name, &params, &patch)).await,
        };
        let object = stored(answer)?;
        self.take(MachineKind::KubevirtMachine, &key, object.clone()).await?;
        Ok(object)
    }

    fn note_pruned(&self) {
        if self.has_status_map.swap(false, Ordering::Relaxed) {
            tracing::warn!(
                "the CRD of KubevirtMachine has no status.{STATUS_MAP}: only the annotations record the addresses"
            );
        }
    }

    /// Publishes and logs that a machine has its addresses, and records in a metric how long the machine waited.
    fn note_secret(&self, view: &View, own: &OwnSecret) {
        let interfaces = own.interfaces.iter().map(|given| {
            let addresses: Vec<String> = given.addresses.iter().map(ToString::to_string).collect();
            format!("{} to {}", addresses.join(", "), given.interface)
        });
        let interfaces: Vec<String> = interfaces.collect();
        let note = format!("Allocated {}", interfaces.join(", "));
        // The label is [`ISSUED`] if the VirtualMachine got its reference when it was created. A machine that got its
        // reference later has not waited since its creation.
        let is_new = |vm: &&VirtualMachine| vm.mark.label.as_deref() == Some(ISSUED);
        let created = view.vm.as_ref().filter(is_new).and_then(|vm| kubevirt_machine::created(&vm.metadata));
        let waited = created.map(|created| {
            let waited = Timestamp::now().as_millisecond().saturating_sub(created.as_millisecond());
            Duration::from_millis(u64::try_from(waited).unwrap_or_default()).as_secs_f64()
        });
        if let Some(waited) = waited {
            self.machines.metrics.allocation_seconds.observe(waited);
        }
        let of_each = |name: fn(&Given) -> &String| {
            let names: BTreeSet<&str> = own.interfaces.iter().map(|given| name(given).as_str()).collect();
            names.into_iter().collect::<Vec<_>>().join(", ")
        };
        let (pools, networks) = (of_each(|given| &given.pool), of_each(|given| &given.network));
        let (reason, uid) = ("IPAddressAllocated", &own.machine.uid);
        tracing::info!(machine = %view.key, uid, reason, pools, networks, waited_seconds = waited, "{note}");
        self.index().remember(&view.key, |memory| (memory.notice, memory.is_retry_logged) = (None, false));
        self.publish_events(view, &Notice { is_warning: false, reason, note });
    }
}

fn provider_address(object: Object) -> ProviderAddress {
    IpAddress::read(object).map_err(|error| error.to_string())
}
