//! Index of the machine objects that watches and responses have reported. Pure: the input is objects, the output is the
//! names whose decision may have changed.
//!
//! A VirtualMachine and its KubevirtMachine have the same name, so one name stands for both. Events and responses
//! arrive in any order, so an older version of an object never replaces a newer version.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use glowplug::host::claim::{Machine, Record};
use glowplug::host::pool::{Pool, Space, Subnet};
use glowplug::host::records::{ANNOTATION_PREFIX, Inventory, ObjectDiagnostic, Objects};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::cluster::key::{Key, PoolId};
use crate::cluster::newest::{Newest, Progress};
use crate::cluster::object::{Object, version_of};
use crate::cluster::watch::Change;
use crate::kinds::guest::Life;
use crate::kinds::ipam_claim::IpamClaim;
use crate::kinds::kubevirt_machine::{Instance, KubevirtMachine, read_records_of_vm};
use crate::kinds::network_data::DIGEST_ANNOTATION;
use crate::kinds::pool::HolderKind;
use crate::kinds::virtual_machine::VirtualMachine;
use crate::ledger::left_guests::{LeftGuests, Secrets};
use crate::machines::kind::MachineKind;
use crate::machines::source::{CLAIM_LABEL, MachineClaim};
use crate::machines::view::{Chosen, Memory};
use crate::pools::changed::is_same;
use crate::pools::facts::{Facts, PoolFacts};
use crate::pools::selection::{MachinePool, OpenPools, Selected, Selection};

/// All known objects of machines, with the pools that select them.
#[derive(Debug, Default)]
pub(super) struct KnownMachines {
    machines: Newest<Key, KubevirtMachine>,
    vms: Newest<Key, VirtualMachine>,
    instances: Newest<Key, Instance>,
    claims: Newest<Key, MachineClaim>,
    ipam_claims: Newest<Key, IpamClaim>,
    /// KubevirtMachines with leases of version 0.2.0 or earlier for a VirtualMachine in another namespace, by the name of
    /// the VirtualMachine.
    earlier: BTreeMap<Key, BTreeSet<Machine>>,
    /// Facts about each pool, by the name of the pool.
    facts: Facts,
    /// Names of the suspended pools, which allocate nothing.
    suspended: BTreeSet<String>,
    /// Number of the last growth whose records are adopted, see [`OpenPools::growth`].
    growth: u64,
    /// Names whose objects have changed or are gone during the current adoption of records. `None`: no adoption is in
    /// progress.
    changed: Option<BTreeSet<Key>>,
    selection: Arc<Selection>,
    /// The pools that serve each existing VirtualMachine.
    selected: BTreeMap<Key, Chosen>,
    /// Number of VirtualMachines that each pool serves, and whether a number has changed since the last
    /// [`KnownMachines::take_numbers`].
    numbers: (BTreeMap<PoolId, u32>, bool),
    /// State of each name that the controller keeps only in memory.
    memory: BTreeMap<Key, Memory>,
    /// The guests that migrated to another cluster.
    left: Arc<LeftGuests>,
    /// Names whose first pass after the start only compares the objects from the lists: this pass is still due, and the
    /// objects have not changed since the start. The value is the pause between this pass and the pass that reads the
    /// Secret of the name.
    comparisons: BTreeMap<Key, Duration>,
}

/// Returns the networks of a VirtualMachine and of its instance on which there is a pool of `selection`, but no pool of
/// `selected`.
pub(super) fn other_networks(
    (vm, instance): (Option<&VirtualMachine>, Option<&Instance>),
    selection: &Selection,
    selected: &[Selected],
) -> BTreeSet<String> {
    let of_vm = vm.into_iter().flat_map(|vm| &vm.networks).map(|attachment| &attachment.network);
    let of_guest = instance.into_iter().flat_map(|instance| instance.networks.iter());
    selection.other_networks(of_vm.chain(of_guest), selected)
}

// === impl KnownMachines ===

impl KnownMachines {
    /// Creates an empty index, which notes the guests that migrated to another cluster in `left`.
    pub(super) fn new(left: Arc<LeftGuests>) -> Self {
        Self { left, ..Self::default() }
    }

    /// Notes a change that a watch reports. Returns the names whose decision may have changed.
    pub(super) fn note(&mut self, kind: MachineKind, change: Change) -> BTreeSet<Key> {
        let names = change.note_in(
            self,
            |index, object| index.apply(kind, object),
            |index, key, version| index.remove(kind, key, version),
            |index, progress| index.follow(kind, progress),
        );
        for key in &names {
            self.comparisons.remove(key);
        }
        names
    }

    /// Sets the names whose first pass only compares the objects from the lists. The value is the pause until a later
    /// pass reads the Secret.
    pub(super) fn set_comparisons(&mut self, comparisons: BTreeMap<Key, Duration>) {
        self.comparisons = comparisons;
    }

    /// Returns the pause until the pass that reads the Secret of a name. `None`: this is not the first pass of the
    /// name, or one of its objects has changed since the start.
    pub(super) fn take_comparison(&mut self, key: &Key) -> Option<Duration> {
        self.comparisons.remove(key)
    }

    /// Notes how far the watch of a kind has come. Returns the objects that the watch should have reported by now and
    /// has not reported: these objects are gone.
    fn follow(&mut self, kind: MachineKind, progress: &Progress<Key>) -> Vec<Key> {
        match kind {
            MachineKind::KubevirtMachine => self.machines.follow(progress),
            MachineKind::VirtualMachine => self.vms.follow(progress),
            MachineKind::Instance => self.instances.follow(progress),
            MachineKind::AddressClaim(_) => self.claims.follow(progress),
            MachineKind::IpamClaim => self.ipam_claims.follow(progress),
        }
    }

    /// Stores an object. Returns the names whose decision may have changed.
    pub(super) fn apply(&mut self, kind: MachineKind, object: Object) -> BTreeSet<Key> {
        let (key, version) = (Key::of(&object.metadata), version_of(&object.metadata));
        self.note_in_adoption(&key);
        match kind {
            MachineKind::KubevirtMachine => {
                let machine = KubevirtMachine::read(object);
                if self.machines.apply(key.clone(), version, machine) { [key].into() } else { BTreeSet::new() }
            }
            MachineKind::VirtualMachine => {
                let vm = VirtualMachine::read(object);
                let selected = self.choose(&vm);
                let is_freed = self.is_freed(&key, &vm);
                if !self.vms.apply(key.clone(), version, vm) {
                    return BTreeSet::new();
                }
                self.remember(&key, |memory| memory.is_freed = is_freed);
                self.select(&key, Some(selected));
                [key].into()
            }
            MachineKind::Instance => {
                let instance = Instance::read(object);
                let left = instance.has_left.then(|| instance.secret().map(str::to_owned));
                if !self.instances.apply(key.clone(), version, instance) {
                    return BTreeSet::new();
                }
                left.into_iter().for_each(|secret| self.left.note(&key, secret));
                [key].into()
            }
            MachineKind::AddressClaim(_) => {
                let claim = match MachineClaim::read(object) {
                    Ok(claim) => claim,
                    Err(problem) => {
                        tracing::warn!(claim = %key, problem, "ignored an IPAddressClaim that another author has labelled");
                        return BTreeSet::new();
                    }
                };
                let vm = claim.vm();
                if self.claims.apply(key.clone(), version, claim) { [vm].into() } else { BTreeSet::new() }
            }
            MachineKind::IpamClaim => {
                let claim = IpamClaim::read(object);
                let vms = self.vms_of(&claim);
                if self.ipam_claims.apply(key.clone(), version, claim) { vms } else { BTreeSet::new() }
            }
        }
    }

    /// Stores the object in a response. The watch may report the object later. Returns the names whose decision may
    /// have changed.
    pub(super) fn store(&mut self, kind: MachineKind, object: Object) -> BTreeSet<Key> {
        let key = Key::of(&object.metadata);
        // The watch of IPAddressClaims reports only claims with this label.
        let is_watched = object.metadata.labels.as_ref().is_some_and(|labels| labels.contains_key(CLAIM_LABEL));
        let is_expected =
            self.version(kind, &key).is_none() && (is_watched || !matches!(kind, MachineKind::AddressClaim(_)));
        let names = self.apply(kind, object);
        match kind {
            _ if !is_expected => {}
            MachineKind::KubevirtMachine => self.machines.expect(&key),
            MachineKind::VirtualMachine => self.vms.expect(&key),
            MachineKind::Instance => self.instances.expect(&key),
            MachineKind::AddressClaim(_) => self.claims.expect(&key),
            MachineKind::IpamClaim => self.ipam_claims.expect(&key),
        }
        names
    }

    /// Removes an object that is gone. Returns the names whose decision may have changed.
    ///
    /// `version` is the last version of the object. `None`: a list no longer contains the object.
    pub(super) fn remove(&mut self, kind: MachineKind, key: &Key, version: Option<u64>) -> BTreeSet<Key> {
        self.note_in_adoption(key);
        let vms = match kind {
            MachineKind::AddressClaim(_) => self.claims.get(key).map(MachineClaim::vm).into_iter().collect(),
            MachineKind::IpamClaim => self.ipam_claims.get(key).map(|claim| self.vms_of(claim)).unwrap_or_default(),
            _ => BTreeSet::new(),
        };
        let is_gone = match kind {
            MachineKind::AddressClaim(_) => self.claims.remove(key, version),
            MachineKind::IpamClaim => self.ipam_claims.remove(key, version),
            MachineKind::KubevirtMachine => self.machines.remove(key, version),
            MachineKind::VirtualMachine => self.vms.remove(key, version),
            MachineKind::Instance => self.instances.remove(key, version),
        };
        match kind {
            _ if !is_gone => BTreeSet::new(),
            MachineKind::AddressClaim(_) | MachineKind::IpamClaim => vms,
            MachineKind::Instance => [key.clone()].into(),
            MachineKind::KubevirtMachine => {
                self.remember(key, |memory| memory.is_retry_logged = false);
                [key.clone()].into()
            }
            MachineKind::VirtualMachine => {
                self.select(key, None);
                self.remember(key, |memory| {
                    (memory.notice, memory.is_retry_logged, memory.is_freed) = (None, false, false);
                });
                [key.clone()].into()
            }
        }
    }

    /// Stores the response to a request. `known` is the version that was known before the request. Returns the names
    /// whose decision may have changed. If the object was not found, no name is returned: the watch reports the
    /// deletion later.
    ///
    /// If the object was known before the request and is unknown now, a watch has reported its deletion. The response
    /// may be older than the deletion, so the response is ignored: the watch would not report the deletion again. If
    /// the response is newer, nothing is lost, because the watch also reports the object that was created after the
    /// deletion.
    pub(super) fn take(
        &mut self,
        kind: MachineKind,
        key: &Key,
        known: Option<u64>,
        object: Option<Object>,
    ) -> BTreeSet<Key> {
        match (object, known) {
            (Some(_), Some(_)) if self.version(kind, key).is_none() => {}
            (Some(object), _) => return self.store(kind, object),
            (None, None) => {}
            (None, Some(version)) => match kind {
                MachineKind::KubevirtMachine => self.machines.forget(key, version),
                MachineKind::VirtualMachine => self.vms.forget(key, version),
                MachineKind::Instance => self.instances.forget(key, version),
                MachineKind::AddressClaim(_) => self.claims.forget(key, version),
                MachineKind::IpamClaim => self.ipam_claims.forget(key, version),
            },
        }
        BTreeSet::new()
    }

    /// Returns the known version of an object. `None`: the object is unknown.
    pub(super) fn version(&self, kind: MachineKind, key: &Key) -> Option<u64> {
        match kind {
            MachineKind::KubevirtMachine => self.machines.version(key),
            MachineKind::VirtualMachine => self.vms.version(key),
            MachineKind::Instance => self.instances.version(key),
            MachineKind::AddressClaim(_) => self.claims.version(key),
            MachineKind::IpamClaim => self.ipam_claims.version(key),
        }
    }

    /// Returns the IPAddressClaims that the controller created for the machines of a VirtualMachine.
    pub(super) fn claims_of(&self, vm: &Key) -> Vec<MachineClaim> {
        let first = Key { namespace: vm.namespace.clone(), name: format!("{}-", vm.name) };
        let named = self.claims.since(&first);
        let named = named.take_while(|(key, _)| key.namespace == vm.namespace && key.name.starts_with(&first.name));
        named.map(|(_, claim)| claim).filter(|claim| claim.vm() == *vm).cloned().collect()
    }

    /// Returns the names of the VirtualMachines with an IPAddressClaim.
    pub(super) fn vms_with_claims(&self) -> BTreeSet<Key> {
        self.claims.iter().map(|(_, claim)| claim.vm()).collect()
    }

    pub(super) fn ipam_claim(&self, key: &Key) -> Option<&IpamClaim> {
        self.ipam_claims.get(key)
    }

    /// Returns the IPAMClaims that name a VirtualMachine. Its guest may use their addresses.
    pub(super) fn ipam_claims_of(&self, vm: &Key) -> BTreeSet<Machine> {
        let first = Key { namespace: vm.namespace.clone(), name: String::new() };
        let claims = self.ipam_claims.since(&first).take_while(|(key, _)| key.namespace == vm.namespace);
        let claims = claims.filter(|(_, claim)| claim.users().contains(&vm.name));
        claims.map(|(key, claim)| key.holder(HolderKind::IpamClaim, claim.uid())).collect()
    }

    /// Returns the known VirtualMachines to which an IPAMClaim may belong: the name of the claim is the name of the
    /// VirtualMachine, a dot, and the name of an interface.
    fn vms_of(&self, claim: &IpamClaim) -> BTreeSet<Key> {
        let Key { namespace, name } = claim.key();
        let ends = name.match_indices('.').map(|(end, _)| end);
        let vms = ends.map(|end| Key { namespace: namespace.clone(), name: name[..end].to_owned() });
        vms.filter(|vm| self.vms.get(vm).is_some()).collect()
    }

    /// Returns the reason why a pool allocates nothing. `None`: the pool allocates, or it is unknown.
    pub(super) fn why_not_ready(&self, pool: &PoolId) -> Option<&str> {
        self.facts.get(&pool.to_string())?.ready.as_ref().err().map(String::as_str)
    }

    /// Replaces the pools. Returns the names whose decision may have changed.
    pub(super) fn set_pools(&mut self, pools: OpenPools) -> BTreeSet<Key> {
        let OpenPools { facts, suspended, selection, growth } = pools;
        let has_grown = growth > std::mem::replace(&mut self.growth, growth);
        let changed_meanwhile = self.end_adoption();
        let ready = |facts: &PoolFacts| facts.ready.clone();
        let names = facts.keys().chain(self.facts.keys());
        let has_changed = |name: &&String| {
            self.facts.get(*name).map(ready) != facts.get(*name).map(ready)
                || self.suspended.contains(*name) != suspended.contains(*name)
        };
        let changed: BTreeSet<PoolId> = names.filter(has_changed).map(|name| PoolId::parse(name)).collect();
        (self.facts, self.suspended) = (facts, suspended);
        let is_same = Arc::ptr_eq(&self.selection, &selection);
        let mut names = if is_same { BTreeSet::new() } else { self.set_selection(selection) };
        names.extend(changed_meanwhile);
        // This growth may have turned the records of a machine that is left alone into leases.
        let left_alone = self.vms.iter().filter(|(_, vm)| has_grown && vm.is_left_alone());
        names.extend(left_alone.map(|(key, _)| key.clone()));
        if !changed.is_empty() {
            let is_of = |chosen: &Chosen| {
                let mut pools = chosen.iter().flatten().flat_map(Selected::all_pools);
                pools.any(|pool| changed.contains(pool))
            };
            names.extend(self.selected.iter().filter(|(_, chosen)| is_of(chosen)).map(|(key, _)| key.clone()));
        }
        names
    }

    fn set_selection(&mut self, selection: Arc<Selection>) -> BTreeSet<Key> {
        let before = std::mem::replace(&mut self.selection, selection);
        // The network data of a machine depends on the settings of its pools. It also depends on the other pools of the
        // network, because one of them may have the address of the machine now.
        let known = self.selection.pools().filter_map(|pool| Some((pool, before.pool(&pool.id)?)));
        let changed = known.filter(has_other_settings).filter_map(|(pool, before)| {
            let of = |pool: &MachinePool| pool.pool.as_ref().ok().map(|pool| pool.network().to_owned());
            of(pool).or_else(|| of(before))
        });
        let changed: BTreeSet<String> = changed.collect();
        let is_of = |vm: &VirtualMachine, chosen: &Chosen| {
            let kept = kept(&self.selection, vm, chosen);
            chosen.iter().flatten().chain(&kept).any(|selected| changed.contains(&selected.network))
        };
        let moves = Moves::between(&before, &self.selection);
        let mut chosen = Vec::new();
        for (key, vm) in self.vms.iter() {
            let selected = self.selection.of(vm).map_err(|problem| problem.to_string());
            let is_changed = self.selected.get(key) != Some(&selected) || is_of(vm, &selected);
            if is_changed || self.may_move(key, &selected, &moves) {
                chosen.push((key.clone(), selected));
            }
        }
        let mut names: BTreeSet<Key> = chosen.iter().map(|(key, _)| key.clone()).collect();
        chosen.into_iter().for_each(|(key, selected)| self.select(&key, Some(selected)));
        // The pools may have free addresses again for the machines that the webhook has rejected.
        names.extend(self.machines().filter(|(_, machine)| machine.refused.is_some()).map(|(key, _)| key.clone()));
        names
    }

    /// Whether the lease of a machine may move to another pool, or the settings for its address may come from another
    /// pool.
    fn may_move(&self, key: &Key, chosen: &Chosen, moves: &Moves<'_>) -> bool {
        let is_on = |selected: &Selected| moves.0.contains_key(selected.network.as_str());
        let mut networks = chosen.iter().flatten().filter(|selected| is_on(selected)).peekable();
        networks.peek().is_some() && {
            let (records, _) = self.records_of(key);
            let addresses: Vec<IpAddr> = records.iter().flat_map(|it| &it.addresses).map(|it| it.ip()).collect();
            networks.any(|selected| addresses.iter().any(|address| moves.has(&selected.network, *address)))
        }
    }

    /// Stores the pools that serve a VirtualMachine. `None`: the VirtualMachine is gone.
    fn select(&mut self, key: &Key, selected: Option<Chosen>) {
        let pools = |chosen: &Option<Chosen>| -> Vec<PoolId> {
            chosen.iter().flatten().flatten().flat_map(Selected::pools).cloned().collect()
        };
        let after = pools(&selected);
        let before = pools(&match selected {
            Some(selected) => self.selected.insert(key.clone(), selected),
            None => self.selected.remove(key),
        });
        let (numbers, has_changed) = &mut self.numbers;
        *has_changed |= before != after;
        for pool in before {
            match numbers.get_mut(&pool) {
                Some(number) if *number > 1 => *number -= 1,
                _ => drop(numbers.remove(&pool)),
            }
        }
        after.into_iter().for_each(|pool| *numbers.entry(pool).or_default() += 1);
    }

    /// Returns the number of VirtualMachines that each pool serves, if a number has changed since the last call.
    pub(super) fn take_numbers(&mut self) -> Option<BTreeMap<String, u32>> {
        let (numbers, has_changed) = &mut self.numbers;
        std::mem::take(has_changed).then(|| numbers.iter().map(|(pool, number)| (pool.to_string(), *number)).collect())
    }

    /// Starts to collect the names whose objects change or end while records are adopted: a new record may come too
    /// late for this adoption, and the record of an object that is gone may become a lease again after the lease is
    /// released.
    pub(super) fn begin_adoption(&mut self) {
        self.changed.get_or_insert_default();
    }

    /// Whether an adoption of records is in progress. Records may have changed since the adoption read them.
    pub(super) fn is_adopting(&self) -> bool {
        self.changed.is_some()
    }

    fn note_in_adoption(&mut self, key: &Key) {
        if let Some(changed) = &mut self.changed {
            changed.insert(key.clone());
        }
    }

    /// Returns the names with an object that were collected since [`KnownMachines::begin_adoption`], in the order of
    /// [`KnownMachines::by_age`].
    pub(super) fn changed_by_age(&self) -> Vec<Key> {
        let Some(changed) = self.changed.as_ref().filter(|changed| !changed.is_empty()) else { return Vec::new() };
        let mut names = self.by_age();
        names.retain(|key| changed.contains(key));
        names
    }

    /// Returns the names that were collected since [`KnownMachines::begin_adoption`], and ends the collection.
    pub(super) fn end_adoption(&mut self) -> BTreeSet<Key> {
        self.changed.take().unwrap_or_default()
    }

    pub(super) fn growth(&self) -> u64 {
        self.growth
    }

    pub(super) fn selection(&self) -> &Arc<Selection> {
        &self.selection
    }

    /// Returns the KubevirtMachine for the VirtualMachine of a name. `None` also if this KubevirtMachine has its
    /// VirtualMachine in another namespace: then the VirtualMachine of this name holds its addresses itself, like a
    /// VirtualMachine whose KubevirtMachine is in another cluster.
    pub(super) fn machine(&self, key: &Key) -> Option<&KubevirtMachine> {
        self.machines.get(key).filter(|machine| !machine.has_vm_elsewhere)
    }

    fn machines(&self) -> impl Iterator<Item = (&Key, &KubevirtMachine)> {
        self.machines.iter().filter(|(_, machine)| !machine.has_vm_elsewhere)
    }

    pub(super) fn vm(&self, key: &Key) -> Option<&VirtualMachine> {
        self.vms.get(key)
    }

    pub(super) fn instance(&self, key: &Key) -> Option<&Instance> {
        self.instances.get(key)
    }

    /// Returns the pools that serve an existing VirtualMachine. Empty: no pool serves it, or it does not exist.
    pub(super) fn selected(&self, key: &Key) -> Chosen {
        self.selected.get(key).cloned().unwrap_or_else(|| Ok(Vec::new()))
    }

    /// Returns the interfaces that pools served before they were deleted: see [`Selection::kept`].
    pub(super) fn kept(&self, key: &Key) -> Vec<Selected> {
        self.vm(key).map(|vm| kept(&self.selection, vm, &self.selected(key))).unwrap_or_default()
    }

    /// Returns the networks of a VirtualMachine and of its instance on which there is a pool of `selection`, but no pool
    /// of `selected`.
    pub(super) fn other_networks(&self, key: &Key, selection: &Selection, selected: &[Selected]) -> BTreeSet<String> {
        other_networks((self.vm(key), self.instance(key)), selection, selected)
    }

    /// Returns the state of a name that the controller keeps only in memory.
    pub(super) fn memory(&self, key: &Key) -> Memory {
        self.memory.get(key).cloned().unwrap_or_default()
    }

    /// Updates the state of a name that the controller keeps only in memory.
    pub(super) fn remember(&mut self, key: &Key, note: impl FnOnce(&mut Memory)) {
        let memory = self.memory.entry(key.clone()).or_default();
        note(memory);
        if memory.is_empty() {
            self.memory.remove(key);
        }
    }

    /// Returns the Secrets of the migrated guests of a name whose leases may lack the migration. The instances of these
    /// guests may be gone.
    pub(super) fn left(&self, key: &Key) -> Secrets {
        self.left.of(key)
    }

    /// Forgets the migrated guests of a name. The caller has checked that every lease of an address that they may use
    /// records the migration. `known` has the Secrets of the checked guests: if another guest has migrated since the
    /// check, no guest is forgotten. The same is true while the instance of a migrated guest exists, because a lease of
    /// the name may become known later.
    pub(super) fn forget_left(&mut self, key: &Key, known: &Secrets) {
        let is_there = self.instance(key).is_some_and(|instance| instance.has_left);
        if !is_there && self.left(key) == *known {
            self.left.forget(key);
            self.remember(key, |memory| memory.not_held.clear());
        }
    }

    /// Forgets a holder that has released its addresses. `vm` is the name of its VirtualMachine.
    pub(super) fn forget_holder(&mut self, vm: &Key, holder: &Machine) {
        if let Some(holders) = self.earlier.get_mut(vm) {
            holders.remove(holder);
            if holders.is_empty() {
                self.earlier.remove(vm);
            }
        }
        let is_gone = self.vm(vm).is_none() && self.instance(vm).is_none();
        self.remember(vm, |memory| {
            memory.claimed.remove(holder);
            memory.notice.take_if(|_| is_gone);
        });
    }

    /// Notes a holder that is in another namespace than its VirtualMachine. Returns `true` if such a holder is new, and
    /// `false` for every other holder.
    pub(super) fn note_earlier(&mut self, holder: &Machine) -> bool {
        let vm = Key::of_vm(holder);
        vm != Key::of_machine(holder) && self.earlier.entry(vm).or_default().insert(holder.clone())
    }

    /// Whether a user has removed the annotation with which a VirtualMachine was left alone. The removal counts until
    /// the template refers to a Secret, or the annotation is added again.
    fn is_freed(&self, key: &Key, vm: &VirtualMachine) -> bool {
        let same = self.vm(key).filter(|before| before.metadata.uid == vm.metadata.uid);
        let was_freed = self.memory.get(key).is_some_and(|memory| memory.is_freed);
        same.is_some_and(|before| was_freed || before.is_left_alone()) && !vm.is_left_alone() && vm.secret().is_none()
    }

    /// Returns the KubevirtMachines of other namespaces that hold addresses for a VirtualMachine, according to their leases.
    pub(super) fn earlier_of(&self, vm: &Key) -> BTreeSet<Machine> {
        self.earlier.get(vm).cloned().unwrap_or_default()
    }

    /// Whether a machine has the name of the VirtualMachine `vm`, or holds an address for `vm` from another namespace.
    pub(super) fn is_machine_of(&self, machine: &Machine, vm: &Key) -> bool {
        Key::of_machine(machine) == *vm || self.earlier.get(vm).is_some_and(|holders| holders.contains(machine))
    }

    /// Returns the names with a VirtualMachine, a KubevirtMachine or an instance, ordered by the creation of their oldest object.
    pub(super) fn by_age(&self) -> Vec<Key> {
        let of = |metadata: &ObjectMeta| crate::kinds::kubevirt_machine::created(metadata);
        let vms = self.vms.iter().map(|(key, vm)| (of(&vm.metadata), key));
        let machines = self.machines().map(|(key, machine)| (of(&machine.metadata), key));
        let instances = self.instances.iter().map(|(key, instance)| (of(&instance.metadata), key));
        let mut all: Vec<_> = vms.chain(machines).chain(instances).collect();
        all.sort_unstable();
        let mut seen = BTreeSet::new();
        all.into_iter().filter(|(_, key)| seen.insert(*key)).map(|(_, key)| key.clone()).collect()
    }

    /// Whether the VirtualMachine or its KubevirtMachine has the annotation with the addresses. The controller writes
    /// this annotation after the Secret, or when the webhook has refused a machine that holds an address.
    pub(super) fn is_annotated(&self, key: &Key) -> bool {
        let machine = self.machine(key).map(|machine| &machine.metadata);
        let mut all = machine.into_iter().chain(self.vm(key).map(|vm| &vm.metadata));
        all.any(has_record)
    }

    /// Whether a pass of this name may be urgent: a guest may wait for its network data, or another machine may wait
    /// for the addresses of this name. Otherwise, the controller only compares and repairs objects, because the guest
    /// has started, or the machine is served and has no guest.
    pub(super) fn may_wait(&self, key: &Key) -> bool {
        match (self.instance(key), self.vm(key)) {
            (Some(instance), _) => !instance.has_started,
            (None, Some(_)) => !self.is_annotated(key),
            (None, None) => true,
        }
    }

    /// Whether the machine of a name is served. At its start, a leader only compares the objects of such a machine.
    /// While an instance exists whose guest has not started, the result is `false`, because the guest may wait for its
    /// Secret. Otherwise, the machine is served if an object has the annotation with the addresses. A VirtualMachine
    /// without the annotation is served if the name had leases before the start (`had_addresses`).
    pub(super) fn is_served(&self, key: &Key, had_addresses: bool) -> bool {
        let is_waited_for = self.instance(key).is_some_and(|instance| !instance.has_started);
        !is_waited_for && (self.is_annotated(key) || self.vm(key).is_some() && had_addresses)
    }

    /// Whether the VirtualMachine or its KubevirtMachine has the digest of its Secret.
    pub(super) fn has_digest(&self, key: &Key) -> bool {
        let machine = self.machine(key).map(|machine| &machine.metadata);
        let mut all = machine.into_iter().chain(self.vm(key).map(|vm| &vm.metadata));
        all.any(|metadata| metadata.annotations.iter().any(|all| all.contains_key(DIGEST_ANNOTATION)))
    }

    /// Adds the records of the objects of a name to `records`.
    pub(super) fn read_records(&self, key: &Key, records: &mut Objects) {
        if let Some(machine) = self.machine(key) {
            machine.read_records(records);
        }
        if let Some(vm) = self.vm(key) {
            read_records_of_vm(vm, records);
        }
        if let Some(instance) = self.instance(key) {
            instance.read_records(records);
        }
    }

    /// Returns the valid records of the objects of a name, and the diagnostics about the invalid records, which cannot
    /// be read or contradict a valid record.
    pub(super) fn records_of(&self, key: &Key) -> (Vec<Record>, Vec<ObjectDiagnostic>) {
        let has_template_record = self.vm(key).is_some_and(|vm| !vm.template_records.is_empty());
        let has_map = self.machine(key).is_some_and(|machine| !machine.status_map.is_null());
        let is_instance_annotated = self.instance(key).is_some_and(|instance| has_record(&instance.metadata));
        if !(self.is_annotated(key) || has_map || has_template_record || is_instance_annotated) {
            return Default::default();
        }
        let mut objects = Objects::default();
        self.read_records(key, &mut objects);
        let inventory = self.inventory(objects);
        (inventory.records, inventory.diagnostics)
    }

    /// Returns the records of `objects`. Each machine in a record gets its kind: KubevirtMachine or VirtualMachine.
    pub(super) fn inventory(&self, objects: Objects) -> Inventory {
        inventory(objects, |key| self.machine(key)?.metadata.uid.as_deref())
    }

    /// Removes from `inventory` the records that are adopted after the reports of guests, and returns these records.
    pub(super) fn take_followers(&self, inventory: &mut Inventory) -> Inventory {
        take_followers(inventory, self.instances.iter().map(|(_, instance)| instance), |key| self.instance(key))
    }

    fn choose(&self, vm: &VirtualMachine) -> Chosen {
        self.selection.of(vm).map_err(|problem| problem.to_string())
    }
}

/// Returns the records of `objects`. Each machine in a record gets its kind: KubevirtMachine or VirtualMachine.
/// `uid_of` returns the UID of the KubevirtMachine for the VirtualMachine of a name.
pub(crate) fn inventory<'m>(mut objects: Objects, uid_of: impl Fn(&Key) -> Option<&'m str>) -> Inventory {
    objects.ignore_labels();
    let mut inventory = objects.inventory();
    inventory.each_machine(|machine| {
        if uid_of(&Key::of_machine(machine)) != Some(machine.uid.as_str()) {
            machine.kind = HolderKind::VirtualMachine;
        }
    });
    inventory
}

/// Removes from `inventory` the records that are adopted after the reports of guests, and returns these records: see
/// [`Record::follows_reports`]. `instance_of` returns the instance of a name.
pub(crate) fn take_followers<'i>(
    inventory: &mut Inventory,
    instances: impl Iterator<Item = &'i Instance>,
    instance_of: impl Fn(&Key) -> Option<&'i Instance>,
) -> Inventory {
    let running = instances.filter(|instance| instance.guest.life == Life::Running);
    let networks = running.flat_map(|instance| instance.guest.networks.values());
    let reported: BTreeSet<IpAddr> = networks.flat_map(|network| network.addresses.keys()).copied().collect();
    let follows = |record: &Record| {
        let key = Key::of_vm(&record.claimant.machine);
        record.follows_reports(&reported, instance_of(&key).is_some_and(|instance| !instance.has_ended))
    };
    let mut last = Inventory::default();
    (last.records, inventory.records) = std::mem::take(&mut inventory.records).into_iter().partition(follows);
    last
}

/// Whether an object has an annotation with recorded addresses.
fn has_record(metadata: &ObjectMeta) -> bool {
    metadata.annotations.iter().flat_map(|all| all.keys()).any(|name| name.starts_with(ANNOTATION_PREFIX))
}

/// The pools that have changed between two selections, by network.
struct Moves<'p>(BTreeMap<&'p str, Vec<ChangedPool<'p>>>);

/// A pool before and after a change.
struct ChangedPool<'p> {
    versions: [Option<&'p MachinePool>; 2],
    /// Whether the pool serves other machines than before, or machines of other namespaces than before.
    serves_others: bool,
}

// === impl Moves ===

impl<'p> Moves<'p> {
    fn between(before: &'p Selection, now: &'p Selection) -> Self {
        let names: BTreeSet<&PoolId> = before.pools().chain(now.pools()).map(|pool| &pool.id).collect();
        let mut changed: BTreeMap<&str, Vec<_>> = BTreeMap::new();
        for id in names {
            let both = [before, now].map(|selection| selection.pool(id));
            let namespaces = [before, now].map(|selection| selection.memberships().get(id).map(|it| &it.machines));
            let has_same_namespaces = namespaces[0] == namespaces[1];
            if has_same_namespaces && matches!(both, [Some(before), Some(now)] if is_same(before, now)) {
                continue;
            }
            let has_same_members = matches!(both, [Some(before), Some(now)] if before.serves_same_as(now));
            let versions = both.map(|pool| pool.map(|pool| &**pool));
            for network in versions.into_iter().flatten().filter_map(MachinePool::network).collect::<BTreeSet<&str>>() {
                let serves_others = !has_same_namespaces || !has_same_members;
                changed.entry(network).or_default().push(ChangedPool { versions, serves_others });
            }
        }
        Self(changed)
    }

    /// Whether a pool of the network has gained or lost this address, or has kept the address and serves other machines
    /// now.
    fn has(&self, network: &str, address: IpAddr) -> bool {
        let has = |pool: &MachinePool| {
            let is_usable = pool.network() == Some(network) && !pool.is_deleted;
            is_usable && pool.pool.as_ref().is_ok_and(|pool| pool.contains(address))
        };
        self.0.get(network).into_iter().flatten().any(|changed| {
            let [before, now] = changed.versions.map(|pool| pool.is_some_and(has));
            before != now || before && changed.serves_others
        })
    }
}

/// Whether a change of a pool changes the network data of its machines. A subnet that only grows does not change this
/// data.
fn has_other_settings((pool, before): &(&Arc<MachinePool>, &Arc<MachinePool>)) -> bool {
    let is_same = |pool: &Pool, before: &Pool| {
        let subnets = || pool.spaces().flat_map(Space::subnets);
        let single =
            |one: &Subnet, other: &Subnet| (one.prefix(), one.settings()) == (other.prefix(), other.settings());
        let is_single = !pool.has_subnets() && !before.has_subnets();
        let is_kept = |subnet: &Subnet| subnets().any(|it| subnet.is_in(it) || is_single && single(subnet, it));
        pool.settings() == before.settings() && before.spaces().flat_map(Space::subnets).all(is_kept)
    };
    // An external pool has no subnets, so its addresses get the prefix length of the machine network.
    let is_external = pool.pool.as_ref().is_ok_and(Pool::is_external);
    let has_other_prefix = is_external && pool.spec.machine_network != before.spec.machine_network;
    let is_other = match (&pool.pool, &before.pool) {
        (Ok(pool), Ok(before)) => !is_same(pool, before),
        (pool, before) => pool.is_ok() != before.is_ok(),
    };
    !Arc::ptr_eq(pool, before) && (pool.spec.template != before.spec.template || is_other || has_other_prefix)
}

/// Returns the interfaces that pools served before they were deleted: see [`Selection::kept`].
fn kept(selection: &Selection, vm: &VirtualMachine, chosen: &Chosen) -> Vec<Selected> {
    chosen.as_ref().ok().and_then(|selected| selection.kept(vm, selected)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::kinds::cluster_api::Version;
    use crate::kinds::kubevirt_machine::read_records;
    use crate::pools::facts::PoolObject;

    fn key(namespace: &str, name: &str) -> Key {
        Key { namespace: namespace.to_owned(), name: name.to_owned() }
    }

    fn object(namespace: &str, name: &str, version: u64, more: &Value) -> Object {
        let mut object = json!({"metadata": {"namespace": namespace, "name": name, "uid": format!("{namespace}-{name}"),
            "resourceVersion": version.to_string()}});
        json_patch::merge(&mut object, more);
        serde_json::from_value(object).unwrap()
    }

    #[test]
    fn a_machine_that_was_created_and_deleted_between_two_lists_is_forgotten() {
        let (mut index, machine, kind) = (KnownMachines::default(), key("n", "w"), MachineKind::KubevirtMachine);
        for change in [Change::Lists, Change::Listed, Change::Lists] {
            assert_eq!(index.note(kind, change), [].into());
        }
        index.take(kind, &machine, None, Some(object("n", "w", 5, &json!({}))));
        assert!(index.machine(&machine).is_some());
        assert_eq!(index.note(kind, Change::Apply(object("n", "other", 6, &json!({})))), [key("n", "other")].into());
        assert_eq!(index.note(kind, Change::Listed), [machine.clone()].into());
        assert!(index.machine(&machine).is_none());
    }

    #[test]
    fn a_machine_from_a_response_stays_known_when_the_watch_reports_the_machine_later() {
        let (mut index, kind) = (KnownMachines::default(), MachineKind::KubevirtMachine);
        index.note(kind, Change::Listed);
        index.take(kind, &key("n", "w"), None, Some(object("n", "w", 5, &json!({}))));
        // The watch has not reached the version of the machine yet.
        index.note(kind, Change::Apply(object("n", "a", 4, &json!({}))));
        index.note(kind, Change::Apply(object("n", "w", 5, &json!({}))));
        assert_eq!(index.note(kind, Change::Apply(object("n", "b", 6, &json!({})))), [key("n", "b")].into());
        assert!(index.machine(&key("n", "w")).is_some());
        // A late response adds a machine whose deletion the watch has reported already. The next event of the watch
        // removes the machine again.
        index.note(kind, Change::Remove(key("n", "w"), Some(7)));
        index.take(kind, &key("n", "w"), None, Some(object("n", "w", 5, &json!({}))));
        let names = [key("n", "b"), key("n", "w")].into();
        assert_eq!(index.note(kind, Change::Apply(object("n", "b", 8, &json!({})))), names);
        assert!(index.machine(&key("n", "w")).is_none());
    }

    #[test]
    fn a_pass_is_urgent_until_the_guest_has_started_or_a_machine_without_a_guest_is_annotated() {
        let (mut index, name) = (KnownMachines::default(), key("n", "w"));
        assert!(index.may_wait(&name), "another machine may wait for the addresses of a machine that is gone");
        index.apply(MachineKind::VirtualMachine, object("n", "w", 1, &json!({})));
        assert!(index.may_wait(&name));
        let annotations = json!({"kubevirt.cluster.x-k8s.io/allocated-ip-eno101": r#"["10.0.0.8/16"]"#});
        let annotated = json!({"metadata": {"annotations": annotations}});
        index.apply(MachineKind::VirtualMachine, object("n", "w", 2, &annotated));
        assert!(!index.may_wait(&name));
        for (version, phase, expected) in [(3, "Pending", true), (4, "Scheduling", true), (5, "Running", false)] {
            index.apply(MachineKind::Instance, object("n", "w", version, &json!({"status": {"phase": phase}})));
            assert_eq!(index.may_wait(&name), expected, "{phase}");
        }
        // The guest runs, and only the annotation is missing.
        index.apply(MachineKind::VirtualMachine, object("n", "w", 6, &json!({})));
        assert!(!index.may_wait(&name));
    }

    #[test]
    fn a_machine_that_got_its_first_lease_during_the_start_is_not_served_yet() {
        let (mut index, name) = (KnownMachines::default(), key("n", "w"));
        index.apply(MachineKind::VirtualMachine, object("n", "w", 1, &json!({})));
        assert_eq!([false, true].map(|had_addresses| index.is_served(&name, had_addresses)), [false, true]);
        let annotations = json!({"kubevirt.cluster.x-k8s.io/allocated-ip-eno101": r#"["10.0.0.8/16"]"#});
        index.apply(
            MachineKind::VirtualMachine,
            object("n", "w", 2, &json!({"metadata": {"annotations": annotations}})),
        );
        assert!(index.is_served(&name, false));
        index.apply(MachineKind::Instance, object("n", "w", 3, &json!({"status": {"phase": "Scheduling"}})));
        assert!(!index.is_served(&name, true));
    }

    #[test]
    fn an_older_version_of_an_object_never_replaces_a_newer_version() {
        let mut index = KnownMachines::default();
        let names: BTreeSet<Key> = [key("n", "w")].into();
        assert_eq!(index.apply(MachineKind::VirtualMachine, object("n", "w", 9, &json!({}))), names);
        assert_eq!(index.apply(MachineKind::VirtualMachine, object("n", "w", 8, &json!({}))), [].into());
        assert_eq!(index.remove(MachineKind::VirtualMachine, &key("n", "w"), Some(8)), [].into());
        assert_eq!(index.remove(MachineKind::VirtualMachine, &key("n", "w"), Some(10)), names);
        assert_eq!(index.vm(&key("n", "w")), None);
    }

    #[test]
    fn a_machine_that_a_consistent_read_did_not_find_is_not_revived_by_a_late_event() {
        let mut index = KnownMachines::default();
        index.apply(MachineKind::Instance, object("n", "w", 9, &json!({})));
        index.take(MachineKind::Instance, &key("n", "w"), Some(9), None);
        assert_eq!(index.apply(MachineKind::Instance, object("n", "w", 9, &json!({}))), [].into());
        assert_eq!(index.instance(&key("n", "w")), None);
        index.remove(MachineKind::Instance, &key("n", "w"), Some(10));
        assert_eq!(index.apply(MachineKind::Instance, object("n", "w", 12, &json!({}))), [key("n", "w")].into());
    }

    #[test]
    fn a_late_response_does_not_revive_an_object_whose_deletion_the_watch_has_reported() {
        let mut index = KnownMachines::default();
        let (w, late) = (key("n", "w"), || Some(object("n", "w", 9, &json!({}))));
        index.apply(MachineKind::VirtualMachine, object("n", "w", 8, &json!({})));
        index.remove(MachineKind::VirtualMachine, &w, Some(10));
        assert_eq!(index.take(MachineKind::VirtualMachine, &w, Some(8), late()), [].into());
        assert_eq!(index.vm(&w), None);
        // A later request may find a new object before the watch reports it.
        assert_eq!(index.take(MachineKind::VirtualMachine, &w, None, late()), [w].into());
    }

    /// Returns the specification of a KubevirtMachine whose VirtualMachine is in this namespace.
    fn template(namespace: &str) -> Value {
        json!({"spec": {"virtualMachineTemplate": {"metadata": {"namespace": namespace}}}})
    }

    #[test]
    fn a_kubevirt_machine_whose_virtual_machine_is_in_another_namespace_counts_as_absent() {
        let mut index = KnownMachines::default();
        index.apply(MachineKind::KubevirtMachine, object("n", "w", 1, &template("infra")));
        assert_eq!((index.machine(&key("n", "w")), index.by_age()), (None, vec![]));
        assert_eq!(
            index.apply(MachineKind::KubevirtMachine, object("n", "w", 2, &template("n"))),
            [key("n", "w")].into()
        );
        assert_eq!(index.machine(&key("n", "w")).unwrap().metadata.uid.as_deref(), Some("n-w"));
    }

    #[test]
    fn objects_that_name_a_machine_of_another_namespace_affect_only_their_own_name() {
        let mut index = KnownMachines::default();
        index.apply(MachineKind::KubevirtMachine, object("n", "w", 1, &json!({})));
        let labels = json!({"metadata": {"labels": {
            "capk.cluster.x-k8s.io/kubevirt-machine-name": "w", "capk.cluster.x-k8s.io/kubevirt-machine-namespace": "n",
        }}});
        let own: BTreeSet<Key> = [key("evil", "w")].into();
        assert_eq!(index.apply(MachineKind::VirtualMachine, object("evil", "w", 2, &labels)), own);
        assert_eq!(index.apply(MachineKind::Instance, object("evil", "w", 3, &labels)), own);
        assert_eq!(index.apply(MachineKind::KubevirtMachine, object("evil", "w", 4, &template("n"))), own);
        let holder = key("n", "w").holder(HolderKind::KubevirtMachine, "n-w");
        assert!(!index.note_earlier(&holder));
        assert_eq!(["n", "evil"].map(|namespace| index.is_machine_of(&holder, &key(namespace, "w"))), [true, false]);
        assert_eq!(index.remove(MachineKind::KubevirtMachine, &key("evil", "w"), None), own);
    }

    #[test]
    fn labels_that_name_a_machine_of_another_namespace_keep_no_address_of_this_machine() {
        let labels = json!({"metadata": {"labels": {
            "capk.cluster.x-k8s.io/kubevirt-machine-name": "w", "capk.cluster.x-k8s.io/kubevirt-machine-namespace": "n",
        }}});
        let mut index = KnownMachines::default();
        index.apply(MachineKind::VirtualMachine, object("evil", "w", 1, &labels));
        let mut objects = Objects::default();
        index.read_records(&key("evil", "w"), &mut objects);
        let inventory = index.inventory(objects);
        let is_there = |namespace| inventory.is_there(&Machine::new(namespace, "w", "u"));
        assert_eq!(["evil", "n"].map(is_there), [true, false]);
    }

    #[test]
    fn a_name_whose_object_changes_or_is_gone_during_an_adoption_gets_a_pass_after_it() {
        let mut index = KnownMachines::default();
        for (version, name) in (1..).zip(["a", "b", "c"]) {
            index.apply(MachineKind::VirtualMachine, object("n", name, version, &json!({})));
        }
        assert!(!index.is_adopting());
        index.begin_adoption();
        assert!(index.is_adopting());
        assert_eq!(index.changed_by_age(), []);
        index.apply(MachineKind::VirtualMachine, object("n", "a", 4, &json!({})));
        index.remove(MachineKind::VirtualMachine, &key("n", "b"), Some(5));
        assert_eq!(index.changed_by_age(), [key("n", "a")]);
        let selection = Arc::new(Selection::new([], [], None));
        let pools = OpenPools { facts: Facts::new(), suspended: BTreeSet::new(), selection, growth: 1 };
        assert_eq!(index.set_pools(pools), ["a", "b"].map(|name| key("n", name)).into());
        assert!(!index.is_adopting());
    }

    #[test]
    fn a_holder_in_another_namespace_is_known_for_its_virtual_machine_until_its_release() {
        let mut index = KnownMachines::default();
        let (holder, vm) = (Machine::new("n", "w", "m-1").with_vm_in("infra"), key("infra", "w"));
        assert_eq!([index.note_earlier(&holder), index.note_earlier(&holder)], [true, false]);
        // A claim names the holder without the namespace of the VirtualMachine. The holder is the same machine
        // nevertheless.
        let named = Machine::new("n", "w", "m-1");
        assert_eq!((index.is_machine_of(&named, &vm), index.earlier_of(&vm)), (true, [holder].into()));
        index.forget_holder(&vm, &named);
        assert_eq!((index.is_machine_of(&named, &vm), index.earlier_of(&vm)), (false, [].into()));
    }

    #[test]
    fn a_virtual_machine_has_the_ipam_claims_whose_name_label_or_owner_names_it() {
        let mut index = KnownMachines::default();
        let label = json!({"metadata": {"labels": {"kubevirt.io/vm": "w"}}});
        let owner = json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": "w", "uid": "v-1"});
        let owned = json!({"metadata": {"ownerReferences": [owner]}});
        let claims = [("n", "w.net1", json!({})), ("n", "a", label.clone()), ("n", "b", owned), ("m", "c", label)];
        for (namespace, name, more) in claims.into_iter().chain([("n", "w.x.net1", json!({}))]) {
            index.apply(MachineKind::IpamClaim, object(namespace, name, 1, &more));
        }
        let holder = |name: &str| key("n", name).holder(HolderKind::IpamClaim, &format!("n-{name}"));
        assert_eq!(index.ipam_claims_of(&key("n", "w")), ["a", "b", "w.net1"].map(holder).into());
    }

    #[test]
    fn a_claim_affects_the_virtual_machine_whose_name_is_in_the_name_of_the_claim() {
        let mut index = KnownMachines::default();
        index.apply(MachineKind::VirtualMachine, object("n", "w", 1, &json!({})));
        index.apply(MachineKind::VirtualMachine, object("n", "w.x", 2, &json!({})));
        assert_eq!(index.apply(MachineKind::IpamClaim, object("n", "w.net1", 3, &json!({}))), [key("n", "w")].into());
        let names = [key("n", "w"), key("n", "w.x")].into();
        assert_eq!(index.apply(MachineKind::IpamClaim, object("n", "w.x.net1", 4, &json!({}))), names);
        assert_eq!(index.remove(MachineKind::IpamClaim, &key("n", "w.x.net1"), Some(5)), names);
        let kind = MachineKind::AddressClaim(Version::V1Beta2);
        let note = r#"{"kind":"VirtualMachine","machine":{"namespace":"n","name":"w","uid":"u"},"interface":"eno101"}"#;
        let claim = json!({"metadata": {"annotations": {"ipam.glowplug.dev/claimant": note}}});
        assert_eq!(index.apply(kind, object("n", "w-eno101", 6, &claim)), [key("n", "w")].into());
        assert_eq!(index.apply(kind, object("n", "w-eno102", 7, &claim)), [].into());
        assert_eq!(index.claims_of(&key("n", "w")).len(), 1);
        assert_eq!(index.claims_of(&key("n", "w.x")), []);
        assert_eq!(index.remove(kind, &key("n", "w-eno101"), None), [key("n", "w")].into());
        assert_eq!(index.vms_with_claims(), [].into());
    }

    #[test]
    fn a_machine_gets_a_pass_when_a_setting_of_its_pool_changes() {
        let pools = |changes: &Value| {
            let mut pool = json!({"metadata": {"namespace": "n", "name": "p"}, "spec": {
                "network": "n/a", "addresses": ["10.0.0.0/24"], "gateway": ["10.0.0.1"], "machineSelector": {},
            }});
            json_patch::merge(&mut pool, &json!({"spec": changes}));
            let pool = MachinePool::read(PoolObject::read(serde_json::from_value(pool).unwrap()));
            let selection = Arc::new(Selection::new([Arc::new(pool)], [], None));
            OpenPools { facts: Facts::new(), suspended: BTreeSet::new(), selection, growth: 1 }
        };
        let spec = json!({
            "domain": {"devices": {"interfaces": [{"name": "a", "bridge": {}}]}},
            "networks": [{"name": "a", "multus": {"networkName": "n/a"}}],
        });
        let vm = object("n", "w", 1, &json!({"spec": {"template": {"spec": spec}}}));
        let mut index = KnownMachines::default();
        index.apply(MachineKind::VirtualMachine, vm);
        let names: BTreeSet<Key> = [key("n", "w")].into();
        assert_eq!(index.set_pools(pools(&json!({}))), names);
        for other in [json!({}), json!({"excludedAddresses": ["10.0.0.9"]})] {
            assert_eq!(index.set_pools(pools(&other)), [].into(), "{other}");
        }
        for setting in [
            json!({"gateway": ["10.0.0.2"]}),
            json!({"nameservers": ["10.0.0.3"]}),
            json!({"machineNetwork": [{"cidr": "10.0.0.0/16"}]}),
            json!({"template": "{}"}),
        ] {
            index.set_pools(pools(&json!({})));
            assert_eq!(index.set_pools(pools(&setting)), names, "{setting}");
        }
    }

    #[test]
    fn a_machine_gets_a_pass_when_another_pool_of_its_network_gains_or_loses_its_address() {
        let pools = |own: &[&str], other: &[&str], changes: &Value| {
            let pool = |name: &str, addresses: &[&str], changes: &Value| {
                let mut pool = json!({"metadata": {"namespace": "n", "name": name}, "spec": {
                    "network": "n/a", "addresses": addresses, "machineNetwork": [{"cidr": "10.0.0.0/24"}],
                }});
                json_patch::merge(&mut pool, changes);
                Arc::new(MachinePool::read(PoolObject::read(serde_json::from_value(pool).unwrap())))
            };
            let pools = [pool("p", own, &json!({"spec": {"machineSelector": {}}})), pool("q", other, changes)];
            let selection = Arc::new(Selection::new(pools, [], None));
            OpenPools { facts: Facts::new(), suspended: BTreeSet::new(), selection, growth: 1 }
        };
        let spec = json!({
            "domain": {"devices": {"interfaces": [{"name": "a", "bridge": {}}]}},
            "networks": [{"name": "a", "multus": {"networkName": "n/a"}}],
        });
        let annotations = json!({(format!("{ANNOTATION_PREFIX}eno101")): "[\"10.0.0.8/24\"]"});
        let template = json!({"metadata": {"annotations": annotations}, "spec": {"template": {"spec": spec}}});
        let mut index = KnownMachines::default();
        index.apply(MachineKind::VirtualMachine, object("n", "w", 1, &template));
        let (names, none): (BTreeSet<Key>, BTreeSet<Key>) = ([key("n", "w")].into(), BTreeSet::new());
        let unchanged = json!({});
        assert_eq!(index.set_pools(pools(&["10.0.0.8/31"], &["10.0.0.16"], &unchanged)), names);
        assert_eq!(index.set_pools(pools(&["10.0.0.8/31", "10.0.0.10"], &["10.0.0.16"], &unchanged)), none);
        assert_eq!(index.set_pools(pools(&["10.0.0.9"], &["10.0.0.16"], &unchanged)), names, "its pool loses it");
        assert_eq!(
            index.set_pools(pools(&["10.0.0.8/31"], &["10.0.0.16"], &unchanged)),
            names,
            "its pool has it again"
        );
        index.set_pools(pools(&["10.0.0.9"], &["10.0.0.16"], &unchanged));
        assert_eq!(index.set_pools(pools(&["10.0.0.9"], &["10.0.0.8"], &unchanged)), names, "another pool gains it");
        assert_eq!(index.set_pools(pools(&["10.0.0.9"], &["10.0.0.8", "10.0.0.20"], &unchanged)), none);
        let selector = json!({"spec": {"machineSelector": {"matchLabels": {"no": "machine"}}}});
        assert_eq!(index.set_pools(pools(&["10.0.0.9"], &["10.0.0.8"], &selector)), names, "other machines");
        let exhausted = json!({"status": {"conditions": [{"type": "Exhausted", "status": "True", "message": ""}]}});
        let mut exhausted_selector = selector.clone();
        json_patch::merge(&mut exhausted_selector, &exhausted);
        assert_eq!(index.set_pools(pools(&["10.0.0.9"], &["10.0.0.8"], &exhausted_selector)), none, "the status");
        let deleted = json!({"metadata": {"deletionTimestamp": "2026-08-14T10:00:00Z"}, "spec": selector["spec"]});
        assert_eq!(index.set_pools(pools(&["10.0.0.9"], &["10.0.0.8"], &deleted)), names, "the deletion of the pool");
    }

    #[test]
    fn a_machine_gets_a_pass_when_its_subnet_is_removed_and_when_this_subnet_is_added_again() {
        let pools = |subnets: &[&str]| {
            let subnet = |first: &&str| json!({"addresses": [format!("{first}.8/30")], "gateway": [format!("{first}.1")], "prefix": 24});
            let pool = json!({"metadata": {"namespace": "n", "name": "p"}, "spec": {
                "network": "n/a", "subnets": subnets.iter().map(subnet).collect::<Vec<_>>(), "machineSelector": {},
            }});
            let pool = MachinePool::read(PoolObject::read(serde_json::from_value(pool).unwrap()));
            assert_eq!(pool.pool.as_ref().err(), None);
            let selection = Arc::new(Selection::new([Arc::new(pool)], [], None));
            OpenPools { facts: Facts::new(), suspended: BTreeSet::new(), selection, growth: 1 }
        };
        let spec = json!({
            "domain": {"devices": {"interfaces": [{"name": "a", "bridge": {}}]}},
            "networks": [{"name": "a", "multus": {"networkName": "n/a"}}],
        });
        let mut index = KnownMachines::default();
        for (version, (name, address)) in (1..).zip([("w", "10.0.0.8/24"), ("x", "10.1.0.8/24")]) {
            let annotations = json!({(format!("{ANNOTATION_PREFIX}eno101")): json!([address]).to_string()});
            let vm = json!({"metadata": {"annotations": annotations}, "spec": {"template": {"spec": spec}}});
            index.apply(MachineKind::VirtualMachine, object("n", name, version, &vm));
        }
        let both: BTreeSet<Key> = ["w", "x"].map(|name| key("n", name)).into();
        assert_eq!(index.set_pools(pools(&["10.0.0", "10.1.0"])), both);
        assert_eq!(index.set_pools(pools(&["10.0.0"])), both);
        assert_eq!(index.set_pools(pools(&["10.0.0", "10.1.0"])), [key("n", "x")].into());
        assert_eq!(index.set_pools(pools(&["10.0.0", "10.1.0"])), [].into());
    }

    #[test]
    fn the_index_keeps_every_record_of_an_object() {
        let record = |name: &str, value: &str| json!({(format!("{ANNOTATION_PREFIX}{name}")): value});
        let networks = json!([{"name": "a", "multus": {"networkName": "vlan10"}}, {"name": "b", "pod": {}}]);
        let interfaces = json!({"devices": {"interfaces": [{"name": "a"}, {"name": "b"}]}});
        let template = json!({"spec": {"networks": networks, "domain": interfaces}});
        let mut annotated = template.clone();
        annotated["metadata"] = json!({"annotations": record("eno101", "10.0.0.8/16")});
        let map = json!({"eno102": ["10.0.0.9/16"], "eno103": "x 10.0.0.10"});
        let objects = [
            (
                MachineKind::KubevirtMachine,
                "KubevirtMachine",
                "w",
                json!({
                    "metadata": {"annotations": record("eno101", "10.0.0.8")},
                    "spec": {"virtualMachineTemplate": {"spec": {"template": template}}},
                    "status": {"allocatedBootstrapAddresses": map},
                }),
            ),
            (MachineKind::VirtualMachine, "VirtualMachine", "w", json!({"spec": {"template": annotated}})),
            (
                MachineKind::Instance,
                "VirtualMachineInstance",
                "orphan",
                json!({
                    "metadata": {"annotations": record("eno101", "10.0.0.11/16")}, "spec": template["spec"],
                }),
            ),
        ];
        let (mut index, mut whole) = (KnownMachines::default(), Objects::default());
        for (version, (kind, name, of, changes)) in (1..).zip(objects) {
            let object = object("n", of, version, &changes);
            read_records(&mut whole, name, &object);
            index.apply(kind, object);
        }
        let mut kept = Objects::default();
        ["orphan", "w"].iter().for_each(|name| index.read_records(&key("n", name), &mut kept));
        let (kept, whole) = (index.inventory(kept), index.inventory(whole));
        assert_eq!(kept.records, whole.records);
        assert_eq!(kept.records.len(), 3);
        assert_eq!((kept.diagnostics.len(), &kept.diagnostics), (1, &whole.diagnostics));
        assert_eq!(index.records_of(&key("n", "orphan")), (kept.records[..1].to_vec(), vec![]));
        assert_eq!(index.records_of(&key("n", "w")), (kept.records[1..].to_vec(), kept.diagnostics));
    }

    #[test]
    fn the_removal_of_a_left_alone_annotation_is_remembered_until_the_machine_has_a_reference() {
        let mut index = KnownMachines::default();
        let noted = |uid: Option<&str>| json!({"metadata": {"annotations": {"ipam.glowplug.dev/left-alone": uid}}});
        let mut apply = |version, changes: &Value| {
            index.apply(MachineKind::VirtualMachine, object("n", "w", version, changes));
            index.memory(&key("n", "w")).is_freed
        };
        assert!(!apply(1, &json!({})));
        assert!(!apply(2, &noted(Some("n-w"))));
        assert!(apply(3, &noted(None)));
        assert!(apply(4, &json!({"metadata": {"labels": {"a": "b"}}})));
        assert!(!apply(5, &noted(Some("n-w"))));
        assert!(apply(6, &noted(None)));
        let source = json!({"networkDataSecretRef": {"name": "w-networkdata-cccccccccccccccc"}});
        let volumes = json!([{"name": "c", "cloudInitConfigDrive": source}]);
        assert!(!apply(7, &json!({"spec": {"template": {"spec": {"volumes": volumes}}}})));
        // An annotation with the UID of another VirtualMachine is a copy, and does not count.
        assert!(!apply(8, &noted(Some("other"))));
        assert!(!apply(9, &noted(None)));
    }

    #[test]
    fn the_subjects_of_published_events_are_remembered_until_they_end() {
        let (mut index, name) = (KnownMachines::default(), key("n", "w"));
        let (doubts, not_held) = (BTreeSet::from(["x".to_owned()]), BTreeSet::from(["10.0.0.8".parse().unwrap()]));
        index.remember(&name, |memory| memory.doubts = doubts.clone());
        assert_eq!(index.memory(&name).doubts, doubts);
        index.apply(MachineKind::Instance, object("n", "w", 1, &json!({})));
        index.remember(&name, |memory| memory.not_held = not_held.clone());
        index.remember(&name, |memory| memory.doubts.clear());
        assert_eq!(index.memory(&name).not_held, not_held);
        index.remove(MachineKind::Instance, &name, Some(2));
        assert_eq!(index.memory(&name).not_held, not_held);
        index.forget_left(&name, &Secrets::new());
        assert!(index.memory.is_empty(), "{:?}", index.memory);
    }

    #[test]
    fn a_guest_that_migrated_to_another_cluster_is_remembered_after_the_removal_of_its_instance() {
        let left = Arc::<LeftGuests>::default();
        let (mut index, name) = (KnownMachines::new(Arc::clone(&left)), key("n", "w"));
        let uid = |uid: &str| json!({"virtualMachineInstanceUID": uid});
        let secret = "w-networkdata-cccccccccccccccc";
        let migrated = json!({
            "spec": {"volumes": [{"name": "c", "cloudInitConfigDrive": {"networkDataSecretRef": {"name": secret}}}]},
            "status": {"phase": "Succeeded", "migrationState": {
                "completed": true, "sourceState": uid("n-w"), "targetState": uid("other"),
            }},
        });
        let remembered: Secrets = [Some(secret.to_owned())].into();
        index.apply(MachineKind::Instance, object("n", "w", 1, &json!({"status": {"phase": "Running"}})));
        assert_eq!(index.left(&name), Secrets::new());
        index.apply(MachineKind::Instance, object("n", "w", 2, &migrated));
        // A lease of the name may become known later.
        index.forget_left(&name, &remembered);
        assert_eq!(index.left(&name), remembered);
        for kind in [MachineKind::Instance, MachineKind::VirtualMachine] {
            index.remove(kind, &name, Some(3));
        }
        assert_eq!(index.left(&name), remembered);
        // The part begins again because the API server serves other kinds.
        let mut index = KnownMachines::new(left);
        assert_eq!(index.left(&name), remembered);
        // The pass does not know this guest yet.
        index.forget_left(&name, &Secrets::new());
        assert_eq!(index.left(&name), remembered);
        index.forget_left(&name, &remembered);
        assert_eq!(index.left(&name), Secrets::new());
    }

    #[test]
    fn names_come_in_the_order_of_their_oldest_object() {
        let mut index = KnownMachines::default();
        let at = |second: u32| json!({"metadata": {"creationTimestamp": format!("2026-08-01T10:00:{second:02}Z")}});
        index.apply(MachineKind::VirtualMachine, object("n", "a", 1, &at(30)));
        index.apply(MachineKind::VirtualMachine, object("n", "b", 2, &at(20)));
        index.apply(MachineKind::KubevirtMachine, object("n", "a", 3, &at(10)));
        index.apply(MachineKind::Instance, object("n", "orphan", 4, &at(40)));
        assert_eq!(index.by_age(), [key("n", "a"), key("n", "b"), key("n", "orphan")]);
    }
}
