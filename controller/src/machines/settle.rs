//! Decides about a machine whose network data exists in its Secret, or comes from another author. The decisions are
//! pure, like those of [`super::decision`].

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use glowplug::formats::have_same_network;
use glowplug::host::allocator::ClaimError;
use glowplug::host::claim::{Allocation, Claimant, Machine, Record};
use glowplug::host::may_record::Source;
use glowplug::host::pool::{Pool, home_in_group};
use glowplug::host::records::{ANNOTATION_PREFIX, NETWORK_PREFIX, annotation_patch, status_patch};
use glowplug::network::{Family, InterfaceName};
use ipnetwork::IpNetwork;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Value, json};

use crate::cluster::key::{Key, PoolId};
use crate::cluster::request::list;
use crate::kinds::kubevirt_machine::{Given, Instance, NetworkSecret, OwnSecret, STATUS_MAP, is_deleted, uid};
use crate::kinds::network_data::{DIGEST_ANNOTATION, ISSUED, NETWORK_DATA_LABEL, REQUESTED, VM_ANNOTATION};
use crate::kinds::pool::HolderKind;
use crate::kinds::virtual_machine::{ADDRESSES_ANNOTATION, NetworkData, VirtualMachine};
use crate::ledger::types::Reservation;
use crate::machines::recorded::Held;
use crate::machines::step::{Notice, Once, Removal, Step};
use crate::machines::view::{IGNORED, KEPT, OUTDATED, View};
use crate::passes::Problem;
use crate::pools::reference;
use crate::pools::selection::Selected;

/// Maximum number of earlier Secrets that a machine keeps while no instance reads one of its Secrets, or while its
/// instance ends.
const MOST_EARLIER: usize = 8;

/// A VirtualMachine with its Secret, and the document that the machine would get now with the addresses of the Secret.
pub(super) struct Served<'a> {
    pub(super) vm: &'a VirtualMachine,
    pub(super) own: &'a OwnSecret,
    /// Result of [`View::current_document`]. `Err` contains the reason why no document can be made.
    pub(super) document: Option<Result<String, String>>,
    /// Whether the guest reads the same network from the document and from the Secret.
    pub(super) is_current: bool,
}

impl View {
    /// Returns the next step for a VirtualMachine with a Secret. The steps change the leases, the annotation and the
    /// status map to match the Secret.
    pub(super) fn settle(&self, vm: &VirtualMachine, own: &OwnSecret) -> Step {
        let of_user = own.addresses_of_user();
        let known = self.reserve_in(own).or_else(|| self.adopt(own));
        let known = known.or_else(|| self.record_secret(own)).or_else(|| self.keep(own));
        let known = known.or_else(|| self.move_leases(&own.machine)).or_else(|| self.reserve_recorded());
        let named = || own.addresses().into_iter().chain(of_user.iter().copied()).collect();
        let known = known.or_else(|| self.end_records(&named(), Some(own.name())));
        if let Some(step) = known {
            return step;
        }
        let served = self.served(vm, own);
        // The machine gets a Secret of another name in two cases. A user has changed the document: no later guest may
        // read it. Or the guest has arrived from another cluster and uses the address that it had there: with another
        // name, the guest counts as outdated until a restart. Without a pool that selects the machine or without a
        // current document, no other Secret can be written.
        let has_arrived = |it: &Instance| it.has_arrived && it.has_started && it.secret() == Some(own.name());
        let has_arrived = !vm.awaits_migration && self.instance.as_ref().is_some_and(has_arrived);
        let is_renewed = !of_user.is_empty() || has_arrived;
        if is_renewed && self.has_pools() && matches!(served.document, Some(Ok(_))) {
            return self.request_reference(vm);
        }
        let step = self.update(&served).or_else(|| self.project(&served)).or_else(|| self.compare_sources(vm, own));
        let step = step.or_else(|| self.drop_secrets(&own.machine, own.name()));
        step.unwrap_or_else(|| self.report_outdated(&served))
    }

    /// Makes the document that a machine with a Secret would get now, and compares it with the Secret.
    pub(super) fn served<'a>(&self, vm: &'a VirtualMachine, own: &'a OwnSecret) -> Served<'a> {
        let document = self.current_document(vm, own);
        let is_current = document.iter().flatten().any(|it| have_same_network(it.as_bytes(), &own.document));
        Served { vm, own, document, is_current }
    }

    /// Returns the step that records the migration of the guest to another cluster, where the guest keeps its
    /// addresses. `None`: the guest has not migrated, or the leases have the migration already.
    pub(super) fn record_migration(&self) -> Option<Step> {
        let unnoted = || self.leases_of_left_guest().filter(|held| !held.has_left);
        let holders: BTreeSet<Machine> = unnoted().map(|held| held.claimant.machine.clone()).collect();
        let addresses = unnoted().map(|held| held.address).collect();
        let is_due = !holders.is_empty() && !self.has_done(Once::RecordMigration);
        is_due.then_some(Step::RecordMigration(holders, addresses))
    }

    /// Returns the pools of the addresses that a migrated guest uses in another cluster and that are not held for the
    /// guest. Either the namespace already keeps too many addresses for such guests, or the API server refuses the
    /// write.
    pub(super) fn pools_that_hold_no_more(&self) -> BTreeSet<String> {
        self.leases_of_left_guest().filter(|held| !held.has_left).map(|held| held.pool.clone()).collect()
    }

    /// Whether the migration is recorded in each lease of an address that a migrated guest may use.
    pub(super) fn has_recorded_migrations(&self) -> bool {
        self.leases_of_left_guest().all(|held| held.has_left)
    }

    /// Returns the leases of the addresses that a guest may use after it has migrated to another cluster: the leases of
    /// all machines and claims of the name. Leaves out a lease if the guest reads none of the Secrets with its address.
    /// The instance of the guest may be gone.
    fn leases_of_left_guest(&self) -> impl Iterator<Item = &Held> {
        let may_use = |secret: &Option<String>, held: &Held| {
            held.secrets.is_empty() || secret.as_ref().is_none_or(|secret| held.secrets.contains(secret))
        };
        let all = self.ledger.held.iter().chain(&self.ledger.of_claims);
        all.filter(move |held| self.left.iter().any(|secret| may_use(secret, held)))
    }

    /// Returns the step that adds the name of a Secret to the leases of its machine. `None`: all these leases have the
    /// name.
    pub(super) fn record_secret(&self, own: &OwnSecret) -> Option<Step> {
        let (mut secrets, mut is_missing) = (BTreeSet::from([own.name().to_owned()]), false);
        for held in self.ledger.held.iter().filter(|held| held.claimant.machine == own.machine) {
            is_missing |= !held.secrets.contains(own.name());
            secrets.extend(held.secrets.iter().cloned());
        }
        (is_missing && !self.named.contains(own.name()))
            .then(|| Step::RecordSecrets(Box::new(own.machine.clone()), secrets))
    }

    /// Returns the step that moves the leases of a machine to the pools that serve it now, after its labels or the
    /// selectors of pools have changed. The machine keeps its addresses, and its next document has the settings of the
    /// new pools. `None`: each lease belongs to the pool that serves its interface, or another program chooses the
    /// addresses of this pool.
    fn move_leases(&self, holder: &Machine) -> Option<Step> {
        let selected = self.selected.as_ref().ok().filter(|_| !self.has_done(Once::MoveLeases))?;
        let is_of_other = |it: &&Selected| {
            let is_allocated = self.pools.get(&it.pool.to_string()).is_some_and(|pool| pool.source.is_none());
            let of_machine = self.ledger.held.iter().filter(|held| held.claimant.machine == *holder);
            let mut of_interface = of_machine.filter(|held| held.claimant.interface == it.interface);
            let group: Vec<&Pool> =
                it.all_pools().filter_map(|pool| self.ledger.pools.get(&pool.to_string())).collect();
            is_allocated
                && of_interface.any(|held| {
                    let home = home_in_group(&group, &held.pool, held.address);
                    held.network == it.network && home.is_some_and(|home| *home.name() != *held.pool)
                })
        };
        let moved = selected.iter().filter(is_of_other).flat_map(Selected::all_pools);
        let pools: Vec<String> = moved.map(PoolId::to_string).collect();
        (!pools.is_empty()).then(|| Step::MoveLeases(Box::new(holder.clone()), pools))
    }

    /// Returns the name of the pool of an interface in a Secret. This is the pool of the lease, because a lease may
    /// move after the Secret is written. Without a lease, it is the pool in the Secret.
    fn pool_of(&self, given: &Given, own: &OwnSecret) -> String {
        let is_it = |held: &&Held| {
            held.claimant.machine == own.machine
                && held.claimant.interface == given.interface
                && held.network == given.network
        };
        self.ledger.held.iter().find(is_it).map_or_else(|| given.pool.clone(), |held| held.pool.clone())
    }

    /// Returns the step that removes the Secrets of a machine that no guest needs. Two Secrets are kept: `current`, to
    /// which the VirtualMachine refers, and the Secret that the instance reads, because a migration builds the drive
    /// from it. `None`: the machine needs all its Secrets.
    ///
    /// KubeVirt may start the next guest from an older version of the VirtualMachine, so a machine keeps some earlier
    /// Secrets while no instance reads one of its Secrets, or while the instance ends.
    pub(super) fn drop_secrets(&self, holder: &Machine, current: &str) -> Option<Step> {
        let held = self.ledger.held.iter().filter(|held| held.claimant.machine == *holder);
        let all: BTreeSet<String> = held.flat_map(|held| held.secrets.iter().cloned()).collect();
        let instance = self.instance.as_ref();
        let read = instance.and_then(|instance| instance.secret());
        let is_needed = |name: &String| *name == current || read == Some(name);
        let (kept, earlier): (BTreeSet<_>, BTreeSet<_>) = all.into_iter().partition(is_needed);
        let stays = read.is_some() && instance.is_some_and(|instance| !is_deleted(&instance.metadata));
        let is_due = !earlier.is_empty() && (stays || earlier.len() > MOST_EARLIER);
        // The leases must keep the name `current`: if a lease has no names, the Secrets of its machine are unknown.
        if !is_due || !kept.contains(current) || self.has_done(Once::DropSecrets) {
            return None;
        }
        Some(match self.has_done(Once::ReadInstance) {
            true => Step::DropSecrets(Box::new(holder.clone()), earlier, kept),
            false => Step::ReadInstance,
        })
    }

    /// Returns the step that writes the current document into the Secret, after the pools or the machine have changed.
    /// `None`: the guest reads the same network from both documents, no document can be made now, the Secret cannot be
    /// changed, or the Secret records addresses that a user has added.
    fn update(&self, served: &Served) -> Option<Step> {
        let (own, document) = (served.own, served.document.as_ref()?.as_ref().ok()?);
        let can_change = !own.is_immutable && !is_deleted(&own.metadata) && own.addresses_of_user().is_empty();
        let can_update = can_change && !self.has_done(Once::UpdateSecret);
        let current = || OwnSecret { interfaces: self.with_prefixes(own), ..own.clone() };
        (!served.is_current && can_update).then(|| Step::UpdateSecret(Box::new(current()), document.clone()))
    }

    /// Returns the addresses in a Secret with the current prefix lengths of their leases. A pool may have changed its
    /// prefix length.
    fn with_prefixes(&self, own: &OwnSecret) -> Vec<Given> {
        let with_prefix = |given: &Given, address: &IpNetwork| {
            let mut of_machine = self.ledger.held.iter().filter(|held| held.claimant.machine == own.machine);
            let lease = of_machine.find(|held| held.network == given.network && held.address == address.ip());
            lease.and_then(|held| IpNetwork::new(held.address, held.prefix).ok()).unwrap_or(*address)
        };
        let current = |given: &Given| {
            let addresses = given.addresses.iter().map(|address| with_prefix(given, address)).collect();
            Given { addresses, ..given.clone() }
        };
        own.interfaces.iter().map(current).collect()
    }

    /// Returns the document that the machine would get now with the addresses of its Secret, or the reason why no
    /// document can be made. `None`: no pool serves the machine any more, the choice of pools is ambiguous, or a source
    /// gives other addresses. Interfaces that the Secret does not serve are left out.
    pub(super) fn current_document(&self, vm: &VirtualMachine, own: &OwnSecret) -> Option<Result<String, String>> {
        let selected = self.interfaces(vm, &own.machine).filter(|selected| !selected.is_empty())?;
        let is_it = |it: &Selected, given: &Given| it.interface == given.interface && it.network == given.network;
        let is_served = |it: &&Selected| own.interfaces.iter().any(|given| is_it(it, given));
        let selected: Vec<Selected> = selected.iter().filter(is_served).cloned().collect();
        let mut missing = own.interfaces.iter().filter(|given| !selected.iter().any(|it| is_it(it, given)));
        if let Some(Given { interface, network, .. }) = missing.next() {
            return Some(Err(format!("no pool serves interface {interface} on network {network:?} any more")));
        }
        let allocations: Vec<Allocation> = self.with_prefixes(own).iter().map(|given| given.allocation(own)).collect();
        let offers = self.known_offers(vm, &selected, own)?;
        let document = self.document(vm, &selected, &allocations, &offers);
        Some(document.map(|document| document.text().to_owned()))
    }

    /// Returns the step that reports the first of these problems. [`Step::Wait`]: there is no problem.
    ///
    /// - The API server refuses to change a lease.
    /// - The guest has not read the current document of its machine, or this document cannot be made.
    /// - An interface keeps its network, because a pool selected it after the Secret was written.
    /// - The machine does not get an address that its template requests.
    fn report_outdated(&self, served: &Served) -> Step {
        if let Some(Problem::Refused(error @ ClaimError::NotRecorded { .. })) = &self.problem {
            return self.report("IPAddressUnavailable", error.to_string());
        }
        match self.outdated(served) {
            Some(note) => self.report(OUTDATED, note),
            None => self.leave_interfaces(served.vm, served.own).unwrap_or_else(|| {
                let ignored = self.ignored_request(served.vm, served.own);
                ignored.map_or(Step::Wait, |note| self.report(IGNORED, note))
            }),
        }
    }

    /// Returns the reason why a served machine does not get an address that its template requests. `None`: the machine
    /// has all addresses that the template requests for interfaces of its pools.
    fn ignored_request(&self, vm: &VirtualMachine, own: &OwnSecret) -> Option<String> {
        let requested = match &vm.requested {
            Ok(requested) => requested,
            Err(problem) => return Some(problem.clone()),
        };
        let selected = self.selected.as_ref().ok().filter(|selected| !selected.is_empty())?;
        for (name, addresses) in requested {
            let is_known = vm.networks.iter().any(|attachment| attachment.name == *name);
            let Some(interface) = selected.iter().find(|it| it.attachment == *name).map(|it| it.interface) else {
                if is_known {
                    continue;
                }
                let expected = list(selected.iter().map(|it| &it.attachment));
                return Some(format!(
                    "annotation {ADDRESSES_ANNOTATION}: no interface {name:?}, expected KubeVirt's name of an interface: {expected}"
                ));
            };
            let given = own.interfaces.iter().filter(|given| given.interface == interface);
            let given: Vec<IpAddr> = given.flat_map(|given| &given.addresses).map(IpNetwork::ip).collect();
            if let Some(other) = addresses.iter().map(IpNetwork::ip).find(|address| !given.contains(address)) {
                return Some(format!(
                    "annotation {ADDRESSES_ANNOTATION}: requests {other} for interface {name:?}, which keeps {}: a machine gets \
                     another address when its VirtualMachine is created again",
                    list(&given)
                ));
            }
        }
        None
    }

    /// Returns the pools whose current settings the guest of the machine has not read.
    pub(super) fn outdated_pools(&self) -> BTreeSet<String> {
        let Some(vm) = &self.vm else { return BTreeSet::new() };
        match vm.secret().and_then(|name| self.secrets.get(name)) {
            Some(NetworkSecret::Ours(own)) if self.outdated(&self.served(vm, own)).is_some() => {
                own.interfaces.iter().map(|given| self.pool_of(given, own)).collect()
            }
            _ => BTreeSet::new(),
        }
    }

    /// Returns the first of these problems with the network data of a machine:
    ///
    /// - The current network data cannot be made, so the Secret keeps earlier data.
    /// - The Secret is of version 0.2.0, cannot be changed, and has earlier data.
    /// - The guest runs with earlier data, or waits for a Secret that is never written.
    ///
    /// `None`: there is no such problem, or [`View::current_document`] is `None`.
    pub(super) fn outdated(&self, served: &Served) -> Option<String> {
        let (own, name) = (served.own, served.own.name());
        if let Err(problem) = served.document.as_ref()? {
            return Some(format!("Secret {name:?} keeps its network data: {problem}"));
        }
        if own.is_immutable && !served.is_current {
            return Some(format!(
                "Secret {name:?} is of version 0.2.0 and keeps its network data: set the label {NETWORK_DATA_LABEL}={REQUESTED} \
                 in spec.template, then restart the machine"
            ));
        }
        let instance = self.instance.as_ref()?;
        if !instance.has_started {
            // Before a Secret is written, its name is in a lease. So a Secret that no lease names is never written: the
            // reference to it was replaced earlier.
            let is_own = |held: &&Held| held.claimant.machine == own.machine;
            let mut own = self.ledger.held.iter().filter(is_own);
            let mut exists = |read: &str| read == name || own.any(|held| held.secrets.contains(read));
            let waits_for = instance.secret().filter(|read| !exists(read))?;
            return Some(format!(
                "The guest waits for Secret {waits_for:?}, and its machine has Secret {name:?}: restart the machine"
            ));
        }
        let note = "The guest runs with earlier network data: restart the machine";
        (!instance.has_read(own)).then(|| note.to_owned())
    }

    /// Returns the step that adopts the addresses of the Secret that the machine does not hold, or reports why they are
    /// not adopted. `None`: the machine holds all these addresses.
    pub(super) fn adopt(&self, own: &OwnSecret) -> Option<Step> {
        let records = own.interfaces.iter().filter_map(|given| {
            let claimant = Claimant { machine: own.machine.clone(), interface: given.interface };
            let is_held = |address: &IpNetwork| {
                self.ledger.held.iter().any(|held| {
                    held.address == address.ip() && held.network == given.network && held.claimant == claimant
                })
            };
            // An address that the pools no longer offer stays with its machine, without a lease.
            let is_excluded = |it: &&IpNetwork| {
                self.ledger.excluded().any(|(network, address)| *network == given.network && *address == it.ip())
            };
            let unheld = given.addresses.iter().filter(|it| !is_held(it) && !is_excluded(it));
            let addresses: Vec<IpNetwork> = unheld.copied().collect();
            (!addresses.is_empty()).then(|| given.record(own, &self.key.namespace, addresses))
        });
        let records: Vec<Record> = records.collect();
        match &self.problem {
            _ if records.is_empty() => None,
            _ if !self.adopted.contains(own.name()) => Some(Step::Adopt(records, own.name().to_owned())),
            Some(Problem::Mismatch(message, _)) => Some(self.report("IPAddressConflict", message.clone())),
            Some(Problem::Refused(error @ ClaimError::NotRecorded { .. })) => {
                Some(self.report("IPAddressUnavailable", error.to_string()))
            }
            _ => Some(Step::Wait),
        }
    }

    /// Returns the step that releases a second address of the same interface and family. Two leaders may have leased
    /// one address each; the address in the Secret is kept. An address that a guest may have from an earlier Secret is
    /// kept, too.
    fn keep(&self, own: &OwnSecret) -> Option<Step> {
        own.interfaces.iter().find_map(|given| {
            let claimant = Claimant { machine: own.machine.clone(), interface: given.interface };
            let addresses: Vec<IpAddr> = given.addresses.iter().map(IpNetwork::ip).collect();
            let is_double = |held: &&Held| {
                let of_family = |address: &IpAddr| Family::of(*address) == Family::of(held.address);
                let is_other = !addresses.contains(&held.address) && addresses.iter().any(of_family);
                held.claimant == claimant && is_other && held.secrets.iter().all(|name| *name == own.name())
            };
            let is_double = self.ledger.held.iter().any(|held| is_double(&held)) && !self.has_done(Once::Keep);
            is_double.then(|| Step::Keep(Box::new(claimant), addresses))
        })
    }

    /// Returns the next step that writes the marks of the template, the annotations, or the status map. Other programs
    /// read the annotations and the status map. `None`: everything is correct, or this pass has written it.
    fn project(&self, served: &Served) -> Option<Step> {
        let (vm, own) = (served.vm, served.own);
        let allocations: Vec<Allocation> = own.interfaces.iter().map(|given| given.allocation(own)).collect();
        let networks: BTreeMap<InterfaceName, String> =
            own.interfaces.iter().map(|given| (given.interface, given.network.clone())).collect();
        let mut patch = annotation_patch(&own.machine, &allocations, &networks, None).ok()?;
        if let Some(digest) = self.digest_of(served) {
            patch["metadata"]["annotations"][DIGEST_ANNOTATION] = digest.into();
        }
        if own.machine.kind == HolderKind::VirtualMachine {
            let is_missing = !has_annotations(&vm.metadata, &patch) || !vm.mark.is_of(&self.key);
            let annotations = &patch["metadata"]["annotations"];
            let patch = json!({
                "metadata": {"uid": vm.metadata.uid, "annotations": annotations},
                "spec": {"template": {"metadata": marks(&self.key, ISSUED)}},
            });
            return (is_missing && !self.has_done(Once::Annotate)).then_some(Step::AnnotateVm(patch));
        }
        if !vm.mark.is_of(&self.key) && !self.has_done(Once::MarkVm) {
            let marks = marks(&self.key, ISSUED);
            return Some(Step::MarkVm(json!({
                "metadata": {"uid": vm.metadata.uid}, "spec": {"template": {"metadata": marks}},
            })));
        }
        let machine = self.machine.as_ref().filter(|machine| machine.holder() == own.machine)?;
        if !has_annotations(&machine.metadata, &patch) && !self.has_done(Once::Annotate) {
            return Some(Step::PatchMachine(patch));
        }
        let status = status_patch(&own.machine, &allocations, None).ok()?;
        let is_right = has_entries(&machine.status_map, &status["status"][STATUS_MAP]);
        (!is_right && self.has_status_map && !self.has_done(Once::PatchStatus)).then_some(Step::PatchStatus(status))
    }

    /// Returns the patches that remove the records of these interfaces from the object that holds the addresses.
    /// [`View::project`] writes these records.
    pub(super) fn removal_of_records(&self, holder: &Machine, interfaces: &BTreeSet<InterfaceName>) -> Removal {
        let keys = interfaces.iter().flat_map(|interface| {
            [ANNOTATION_PREFIX, NETWORK_PREFIX].map(|prefix| (format!("{prefix}{interface}"), Value::Null))
        });
        let annotations: BTreeMap<String, Value> = keys.collect();
        let patch = json!({"metadata": {"uid": holder.uid, "annotations": annotations}});
        if holder.kind == HolderKind::VirtualMachine {
            return Removal::OfVm(patch);
        }
        let Some(machine) = self.machine.as_ref().filter(|machine| machine.holder() == *holder) else {
            return Removal::Nothing;
        };
        let map: BTreeMap<String, Value> = interfaces.iter().map(|it| (it.to_string(), Value::Null)).collect();
        let status = json!({"metadata": {"uid": holder.uid}, "status": {(STATUS_MAP): map}});
        Removal::OfMachine(patch, (!machine.status_map.is_null()).then_some(status))
    }

    /// Returns the step that reserves the addresses that objects of the machine record and that the machine does not
    /// hold. These records came after the addresses were open, and the machine may use the addresses. The response of
    /// the registry says which addresses are not reserved, and the event reports them. `None`: the machine holds all
    /// recorded addresses, or they are reserved for it.
    pub(super) fn reserve_recorded(&self) -> Option<Step> {
        let late = &self.ledger.late;
        let first = late.first().filter(|_| !self.has_done(Once::ReserveRecorded))?;
        let others = match late.len() - 1 {
            0 => String::new(),
            others => format!(" and {others} more"),
        };
        let (source, address) = (&first.source, first.address);
        let note = format!(
            "{source}: records {address}{others}, expected an address that the machine holds: remove the record and write the address into \
             preAllocations of the pool, or restart the controller"
        );
        Some(Step::ReserveRecorded(late.clone(), Notice { is_warning: true, reason: "IPAddressConflict", note }))
    }

    /// Returns the step that ends the records of addresses that are reserved for the machine and that no object of the
    /// machine records any more. These addresses stay reserved until the machine gives up further ones, but no longer cause
    /// a conflict. `None`: there is no such address, or a guest that runs or starts with other network data may have such an address.
    ///
    /// - `named`: the addresses in the current network data of the machine
    /// - `secret`: the name of the Secret with this network data
    pub(super) fn end_records(&self, named: &BTreeSet<IpAddr>, secret: Option<&str>) -> Option<Step> {
        let mut guest = self.instance.iter().filter(|instance| !instance.has_ended);
        if guest.any(|instance| secret.is_none() || instance.secret() != secret) {
            return None;
        }
        let of_machine = self.ledger.unrecorded.iter().map(|(machine, addresses)| {
            let addresses = addresses.iter().filter(|(_, address)| !named.contains(address)).cloned();
            (machine.clone(), addresses.collect::<BTreeSet<_>>())
        });
        let ended: BTreeMap<_, _> = of_machine.filter(|(_, addresses)| !addresses.is_empty()).collect();
        if ended.is_empty() || self.has_done(Once::EndRecords) {
            return None;
        }
        // A guest with the earlier network data may have started, and the watch can report this late.
        Some(match self.has_done(Once::ReadInstance) {
            true => Step::EndRecords(ended),
            false => Step::ReadInstance,
        })
    }

    /// Returns the step that reserves the addresses in a Secret of another author, so that no machine gets them. If
    /// they are reserved, returns the step that reports the Secret. The Secret is not changed.
    pub(super) fn refuse_foreign(&self, name: &str, problem: &str, addresses: &[IpAddr]) -> Step {
        if let Some(step) = self.reserve_foreign(name, addresses) {
            return step;
        }
        let note = format!("Secret {name:?} is not of this controller ({problem}), expected no Secret of this name");
        self.hold_back(self.report("IPAddressConflict", note))
    }

    /// Returns the step for a machine with network data of another author. The machine gets no address. `None`: the
    /// machine has no such network data.
    pub(super) fn stand_aside(&self, data: &NetworkData, selected: &[Selected]) -> Option<Step> {
        let (source, addresses) = match self.data_of_user(data, "VirtualMachine")? {
            Ok(data) => data,
            Err(step) => return Some(step),
        };
        if let Some(step) = self.end_records(&addresses.iter().copied().collect(), None) {
            return Some(step);
        }
        let pools: Vec<String> = selected.iter().flat_map(Selected::pools).map(PoolId::to_string).collect();
        let note = format!(
            "{source} has network data for the machine, so the machine gets no address of {}",
            pools.join(", ")
        );
        Some(self.hold_back(self.report(KEPT, note)))
    }

    /// Returns the source and the addresses of the network data of another author. `kind` is the kind of the object
    /// with the data. `Err`: this step must be done before the data is known. `None`: there is no such data.
    pub(super) fn data_of_user<'v>(
        &'v self,
        data: &'v NetworkData,
        kind: &str,
    ) -> Option<Result<(String, &'v [IpAddr]), Step>> {
        Some(match data {
            NetworkData::None => return None,
            NetworkData::Secret(_) if data.secret_of(&self.key.name).is_some() => return None,
            NetworkData::Secret(name) => match self.other_addresses.get(name) {
                None => Err(Step::ReadOtherSecret(name.clone())),
                Some(addresses) => Ok((self.title(name), addresses)),
            },
            NetworkData::Inline(addresses) => Ok((format!("{kind} {}", self.key), addresses)),
        })
    }

    /// Returns the step that ends the records of addresses from earlier network data of another author. The caller has
    /// found no pool that selects the machine. `None`: there is no such address, or a guest may have such an address.
    pub(super) fn end_data_of_user(&self, vm: &VirtualMachine) -> Option<Step> {
        if self.ledger.unrecorded.is_empty() {
            return None;
        }
        let data = vm.cloud_init.as_ref().and_then(|it| self.data_of_user(&it.network_data, "VirtualMachine"));
        match data.transpose() {
            Ok(data) => self.end_records(&data.into_iter().flat_map(|(_, all)| all).copied().collect(), None),
            Err(step) => Some(step),
        }
    }

    /// Whether only an instance without a VirtualMachine has the network data, and the instance has never run. Users can
    /// create such instances in any number, so the addresses become no leases: they are reserved within the share of
    /// the namespace.
    pub(super) fn is_unproven(&self) -> bool {
        self.vm.is_none() && self.instance.as_ref().is_some_and(|instance| !instance.has_started)
    }

    /// Returns the step that reserves the addresses in a Secret that has a name of the controller and another author,
    /// see [`View::reserve`].
    pub(super) fn reserve_foreign(&self, name: &str, addresses: &[IpAddr]) -> Option<Step> {
        self.reserve(&self.title(name), addresses)
    }

    /// Returns the step that reserves addresses in a Secret of the controller for which the machine has no lease, so that
    /// no machine gets them: the addresses that a user has added, and, on the network of the guest, the addresses of
    /// [`View::reservations_after_move`]. `None`: there is no such address, or this pass has reserved them.
    pub(super) fn reserve_in(&self, own: &OwnSecret) -> Option<Step> {
        let source = self.title(own.name());
        let of_user = self.reservations(&source, &own.addresses_of_user());
        self.reserve_all(&source, [of_user, self.reservations_after_move(own)].concat())
    }

    /// Returns the reservations of the addresses that the guest has read from a Secret of the controller and with which
    /// it is on another network now. The lease of such an address is of the network in the Secret. The reservations end
    /// with this lease: see [`View::move_to_other_pool`].
    pub(super) fn reservations_after_move(&self, own: &OwnSecret) -> Vec<Reservation> {
        let reads = |instance: &&Instance| !instance.has_ended && instance.secret() == Some(own.name());
        let mut all = Vec::new();
        for guest in self.instance.iter().filter(reads) {
            for given in &own.interfaces {
                for network in self.networks_after_move(&guest.attachments, given, own) {
                    let network = Some(network.to_owned());
                    let unheld = given.addresses.iter().map(IpNetwork::ip).filter(|it| !self.holds(*it, &network));
                    all.extend(unheld.map(|address| Reservation {
                        address,
                        network: network.clone(),
                        claimant: Claimant { machine: own.machine.clone(), interface: given.interface },
                        source: self.title(own.name()),
                        kind: Source::MovedGuest,
                    }));
                }
            }
        }
        all
    }

    /// Returns kind and name of a Secret of the machine, for messages.
    fn title(&self, secret: &str) -> String {
        format!("Secret {}/{secret}", self.key.namespace)
    }

    /// Whether a machine of this namespace and name has a lease of an address. `None`: the lease may be of any network.
    fn holds(&self, address: IpAddr, network: &Option<String>) -> bool {
        self.ledger.held.iter().any(|held| {
            let is_own = Key::of_machine(&held.claimant.machine) == self.key;
            held.address == address && is_own && network.as_ref().is_none_or(|network| *network == held.network)
        })
    }

    /// Returns the step that reserves the addresses that a machine reads from `source`, so that no machine gets them.
    /// `None`: the machine holds all these addresses, or this pass has reserved them.
    pub(super) fn reserve(&self, source: &str, addresses: &[IpAddr]) -> Option<Step> {
        self.reserve_all(source, self.reservations(source, addresses))
    }

    fn reserve_all(&self, source: &str, all: Vec<Reservation>) -> Option<Step> {
        (!all.is_empty() && !self.reserved.contains(source)).then_some(Step::Reserve(all))
    }

    /// Returns the reservations of the addresses that a machine reads from `source` and does not hold. The network of
    /// these addresses is not known, so they are reserved on each network of the machine and of its guest.
    fn reservations(&self, source: &str, addresses: &[IpAddr]) -> Vec<Reservation> {
        let interface = self.selected.as_ref().ok().and_then(|selected| selected.first()).map(|it| it.interface);
        let interface = interface.or_else(|| Pool::DEFAULT_INTERFACE.parse().ok());
        // Without a VirtualMachine, the reservation ends with the instance.
        let instance = || self.instance.as_ref().map(|instance| &instance.metadata);
        let object = self.vm.as_ref().map(|vm| &vm.metadata).or_else(instance);
        let Some((interface, object)) = interface.zip(object) else { return Vec::new() };
        let claimant = Claimant { machine: self.key.holder(HolderKind::VirtualMachine, uid(object)), interface };
        let kind = if self.is_unproven() { Source::IdleInstance } else { Source::NetworkData };
        let networks: Vec<Option<String>> = match &self.selected {
            Ok(selected) => {
                let networks = selected.iter().map(|selected| &selected.network);
                networks.chain(&self.other_networks).cloned().map(Some).collect()
            }
            Err(_) => vec![None],
        };
        let of_network = |network: &Option<String>| {
            let unheld = addresses.iter().filter(|address| !self.holds(**address, network));
            let reservation = |address: &IpAddr| Reservation {
                address: *address,
                network: network.clone(),
                claimant: claimant.clone(),
                source: source.to_owned(),
                kind,
            };
            unheld.map(reservation).collect::<Vec<_>>()
        };
        networks.iter().flat_map(of_network).collect()
    }
}

/// Whether an object has the annotations of a merge patch.
pub(super) fn has_annotations(metadata: &ObjectMeta, patch: &Value) -> bool {
    let given = metadata.annotations.as_ref();
    patch["metadata"]["annotations"].as_object().into_iter().flatten().all(|(name, value)| {
        given.and_then(|given| given.get(name)).is_some_and(|given| Some(given.as_str()) == value.as_str())
    })
}

/// Whether a status map has the entries of a patch. Other entries are left alone: another program may have written them,
/// and each entry is a record that reserves its addresses.
fn has_entries(map: &Value, written: &Value) -> bool {
    let mut written = written.as_object().into_iter().flatten();
    written.all(|(interface, addresses)| map.get(interface) == Some(addresses))
}

/// Returns the metadata of a template with the marks of a machine. `label` is the value of [`NETWORK_DATA_LABEL`].
pub(super) fn marks(vm: &Key, label: &str) -> Value {
    let [(_, label), (_, owner)] = reference::marks(vm, label);
    json!({"labels": {(NETWORK_DATA_LABEL): label}, "annotations": {(VM_ANNOTATION): owner}})
}
