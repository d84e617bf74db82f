//! Index of the machine objects that watches and responses have reported. Pure: the input is objects, the output is the
//! names whose decision may have changed.
//!
//! Each of these names is the name of a VirtualMachine, because its KubevirtMachine may be in another namespace. Events
//! and responses arrive in any order, so an older version of an object never replaces a newer version.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use glowplug::host::claim::Machine;
use glowplug::host::records::ANNOTATION_PREFIX;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::cluster::key::{Key, PoolId};
use crate::cluster::newest::Newest;
use crate::cluster::object::{Object, version_of};
use crate::kinds::ipam_claim::IpamClaim;
use crate::kinds::kubevirt_machine::{Instance, KubevirtMachine, NetworkSecret};
use crate::kinds::pool::HolderKind;
use crate::kinds::virtual_machine::{VirtualMachine, kubevirt_machine_of};
use crate::machines::kind::Kind;
use crate::machines::source::MachineClaim;
use crate::machines::view::{Chosen, Memory};
use crate::pools::facts::{Facts, PoolFacts};
use crate::pools::selection::{OpenPools, Selection};

/// Largest number of VirtualMachines that one name of a KubevirtMachine can have, and of machines that the labels at one
/// name can name, as long as a leader leads.
const MOST_RELATIONS: usize = 16;

/// All known objects of machines, with the pools that select them.
#[derive(Debug, Default)]
pub(super) struct Index {
    machines: Newest<Key, KubevirtMachine>,
    vms: Newest<Key, VirtualMachine>,
    instances: Newest<Key, Instance>,
    claims: Newest<Key, MachineClaim>,
    ipam_claims: Newest<Key, IpamClaim>,
    /// Names of the VirtualMachines that may belong or have belonged to a machine, by the name of the machine. Also
    /// VirtualMachines that only name the machine in their labels.
    homes: BTreeMap<Key, BTreeSet<Key>>,
    /// The reverse of `homes`.
    relatives: BTreeMap<Key, BTreeSet<Key>>,
    /// Machines with the name of a VirtualMachine in another namespace that belongs or has belonged to them.
    confirmed: BTreeSet<(Machine, Key)>,
    /// Facts about each pool, by the name of the pool.
    facts: Facts,
    /// Names of the pools that allocate nothing.
    suspended: BTreeSet<String>,
    selection: Arc<Selection>,
    /// The pools that serve each existing VirtualMachine.
    selected: BTreeMap<Key, Chosen>,
    /// State of each name that no object records.
    memory: BTreeMap<Key, Memory>,
}

// === impl Index ===

impl Index {
    /// Stores an object. Returns the names whose decision may have changed.
    pub(super) fn apply(&mut self, kind: Kind, object: Object) -> BTreeSet<Key> {
        let (key, version) = (Key::of(&object.metadata), version_of(&object.metadata));
        match kind {
            Kind::KubevirtMachine => {
                let mut machine = KubevirtMachine::read(object);
                if machine.home != key && !self.may_confirm(&key, &machine.home) {
                    tracing::warn!(machine = %key, "ignored the namespace of a VirtualMachine: there were too many");
                    machine.home = key.clone();
                }
                let (home, holder) = (machine.home.clone(), machine.holder());
                if !self.machines.apply(key.clone(), version, machine) {
                    return BTreeSet::new();
                }
                self.confirm(&holder, &home);
                self.homes_of(&key)
            }
            Kind::VirtualMachine => {
                let vm = VirtualMachine::read(object);
                // capk gives the VirtualMachine the name of its KubevirtMachine.
                let relative = vm.kubevirt_machine().filter(|relative| relative.name == key.name);
                let selected = self.choose(&vm);
                if !self.vms.apply(key.clone(), version, vm) {
                    return BTreeSet::new();
                }
                self.selected.insert(key.clone(), selected);
                self.relate_named(relative, &key);
                [key].into()
            }
            Kind::Instance => {
                let instance = Instance::read(object);
                // A guest may outlive its VirtualMachine and its KubevirtMachine, and then only its labels name the machine.
                let relative = kubevirt_machine_of(&instance.metadata).filter(|relative| relative.name == key.name);
                if !self.instances.apply(key.clone(), version, instance) {
                    return BTreeSet::new();
                }
                self.relate_named(relative, &key);
                [key].into()
            }
            Kind::AddressClaim(_) => {
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
            Kind::IpamClaim => {
                let claim = IpamClaim::read(object);
                let vms = self.vms_of(&claim);
                if self.ipam_claims.apply(key.clone(), version, claim) { vms } else { BTreeSet::new() }
            }
        }
    }

    /// Removes an object that is gone. Returns the names whose decision may have changed.
    ///
    /// `version` is the last version of the object. `None`: a list no longer contains the object.
    pub(super) fn remove(&mut self, kind: Kind, key: &Key, version: Option<u64>) -> BTreeSet<Key> {
        let vms = match kind {
            Kind::AddressClaim(_) => self.claims.get(key).map(MachineClaim::vm).into_iter().collect(),
            Kind::IpamClaim => self.ipam_claims.get(key).map(|claim| self.vms_of(claim)).unwrap_or_default(),
            _ => BTreeSet::new(),
        };
        let is_gone = match kind {
            Kind::AddressClaim(_) => self.claims.remove(key, version),
            Kind::IpamClaim => self.ipam_claims.remove(key, version),
            Kind::KubevirtMachine => self.machines.remove(key, version),
            Kind::VirtualMachine => self.vms.remove(key, version),
            Kind::Instance => self.instances.remove(key, version),
        };
        match kind {
            _ if !is_gone => BTreeSet::new(),
            Kind::AddressClaim(_) | Kind::IpamClaim => vms,
            Kind::KubevirtMachine => {
                let homes = self.homes_of(key);
                homes.iter().for_each(|home| self.remember(home, |memory| memory.is_retry_logged = false));
                homes
            }
            Kind::VirtualMachine => {
                self.selected.remove(key);
                self.remember(key, |memory| (memory.notice, memory.is_retry_logged) = (None, false));
                [key.clone()].into()
            }
            Kind::Instance => [key.clone()].into(),
        }
    }

    /// Stores the response to a request. `known` is the version that was known before the request. Returns the names whose
    /// decision may have changed. The watch reports the deletion of an object later, also of one that is not found.
    ///
    /// An object that was known before the request and no longer is known has been deleted meanwhile. The response may be
    /// older, and no watch would report this deletion again. An object that was created after it is reported by the watch.
    pub(super) fn take(&mut self, kind: Kind, key: &Key, known: Option<u64>, object: Option<Object>) -> BTreeSet<Key> {
        match (object, known) {
            (Some(_), Some(_)) if self.version(kind, key).is_none() => {}
            (Some(object), _) => return self.apply(kind, object),
            (None, None) => {}
            (None, Some(version)) => match kind {
                Kind::KubevirtMachine => self.machines.forget(key, version),
                Kind::VirtualMachine => self.vms.forget(key, version),
                Kind::Instance => self.instances.forget(key, version),
                Kind::AddressClaim(_) => self.claims.forget(key, version),
                Kind::IpamClaim => self.ipam_claims.forget(key, version),
            },
        }
        BTreeSet::new()
    }

    /// Returns the known version of an object. `None`: the object is unknown.
    pub(super) fn version(&self, kind: Kind, key: &Key) -> Option<u64> {
        match kind {
            Kind::KubevirtMachine => self.machines.version(key),
            Kind::VirtualMachine => self.vms.version(key),
            Kind::Instance => self.instances.version(key),
            Kind::AddressClaim(_) => self.claims.version(key),
            Kind::IpamClaim => self.ipam_claims.version(key),
        }
    }

    /// Returns the IPAddressClaims that the controller created for machines of a VirtualMachine of this name.
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

    /// Returns the known VirtualMachines to which an IPAMClaim may belong: the name of the claim is the name of the
    /// VirtualMachine, a dot, and the name of an interface.
    fn vms_of(&self, claim: &IpamClaim) -> BTreeSet<Key> {
        let Key { namespace, name } = claim.key();
        let ends = name.match_indices('.').map(|(end, _)| end);
        let vms = ends.map(|end| Key { namespace: namespace.clone(), name: name[..end].to_owned() });
        vms.filter(|vm| self.vms.get(vm).is_some()).collect()
    }

    /// Replaces the pools. Returns the names whose decision may have changed.
    pub(super) fn set_pools(&mut self, pools: OpenPools) -> BTreeSet<Key> {
        let OpenPools { facts, suspended, selection } = pools;
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
        if !changed.is_empty() {
            let is_of = |chosen: &Chosen| chosen.iter().flatten().any(|selected| changed.contains(&selected.pool));
            names.extend(self.selected.iter().filter(|(_, chosen)| is_of(chosen)).map(|(key, _)| key.clone()));
        }
        names
    }

    fn set_selection(&mut self, selection: Arc<Selection>) -> BTreeSet<Key> {
        self.selection = selection;
        let mut names = BTreeSet::new();
        for (key, vm) in self.vms.iter() {
            let selected = self.selection.of(vm).map_err(|problem| problem.to_string());
            if self.selected.get(key) != Some(&selected) {
                self.selected.insert(key.clone(), selected);
                names.insert(key.clone());
            }
        }
        // The pools may have free addresses again.
        let refused = self.machines.iter().map(|(_, machine)| machine);
        names.extend(refused.filter(|machine| machine.refused.is_some()).map(|machine| machine.home.clone()));
        names
    }

    pub(super) fn selection(&self) -> &Arc<Selection> {
        &self.selection
    }

    pub(super) fn machine(&self, key: &Key) -> Option<&KubevirtMachine> {
        self.machines.get(key)
    }

    pub(super) fn vm(&self, key: &Key) -> Option<&VirtualMachine> {
        self.vms.get(key)
    }

    pub(super) fn instance(&self, key: &Key) -> Option<&Instance> {
        self.instances.get(key)
    }

    /// Returns the pools that serve an existing VirtualMachine.
    pub(super) fn selected(&self, key: &Key) -> Chosen {
        self.selected.get(key).cloned().unwrap_or_else(|| Ok(Vec::new()))
    }

    /// Returns the names of the VirtualMachines that may belong or have belonged to a machine, including the machine's
    /// own name.
    pub(super) fn homes_of(&self, machine: &Key) -> BTreeSet<Key> {
        let homes = self.homes.get(machine).into_iter().flatten();
        homes.chain([machine]).cloned().collect()
    }

    /// Returns the names of the machines to which a VirtualMachine may belong or have belonged, including its own name.
    pub(super) fn relatives_of(&self, vm: &Key) -> BTreeSet<Key> {
        let relatives = self.relatives.get(vm).into_iter().flatten();
        relatives.chain([vm]).cloned().collect()
    }

    /// Checks that the Secret of VirtualMachine `key` names a machine to which this VirtualMachine may belong. Any
    /// other Secret is returned as [`NetworkSecret::Foreign`]: otherwise a user who may create Secrets in one namespace
    /// could take addresses from machines of other namespaces.
    pub(super) fn check(&self, key: &Key, secret: NetworkSecret) -> NetworkSecret {
        let NetworkSecret::Ours(hand_out) = secret else { return secret };
        let machine = Key::of_machine(&hand_out.machine);
        let is_home = || self.machines.get(&machine).is_some_and(|machine| machine.home == *key);
        if machine == *key || is_home() {
            return NetworkSecret::Ours(hand_out);
        }
        let addresses = hand_out.interfaces.iter().flat_map(|handed| &handed.addresses).map(|address| address.ip());
        let problem = format!("it names {}, which is not the machine of {key}", hand_out.machine);
        NetworkSecret::Foreign(problem, addresses.collect())
    }

    /// The controller's own state for a name, which no object records.
    pub(super) fn memory(&self, key: &Key) -> Memory {
        self.memory.get(key).cloned().unwrap_or_default()
    }

    /// Updates the controller's own state for a name.
    pub(super) fn remember(&mut self, key: &Key, note: impl FnOnce(&mut Memory)) {
        let memory = self.memory.entry(key.clone()).or_default();
        note(memory);
        let is_empty = memory.claimed.is_empty() && memory.stripped.is_empty() && memory.notice.is_none();
        if is_empty && !memory.is_retry_logged {
            self.memory.remove(key);
        }
    }

    /// Updates the controller's own state for a name with its stored Secret. A holder may get a Secret again, for another
    /// VirtualMachine.
    pub(super) fn note_secret(&mut self, key: &Key, secret: &NetworkSecret) {
        if let NetworkSecret::Ours(hand_out) = secret {
            self.remember(key, |memory| drop(memory.stripped.remove(&hand_out.machine)));
        }
    }

    /// Removes a released holder from the controller's own state.
    pub(super) fn forget_holder(&mut self, holder: &Machine) {
        for key in self.homes_of(&Key::of_machine(holder)) {
            let is_gone = self.vm(&key).is_none() && self.instance(&key).is_none();
            self.remember(&key, |memory| {
                memory.claimed.remove(holder);
                memory.stripped.remove(holder);
                memory.notice.take_if(|_| is_gone);
            });
        }
    }

    /// Returns the names with a VirtualMachine or a KubevirtMachine, ordered by the creation of their oldest object.
    pub(super) fn by_age(&self) -> Vec<Key> {
        let of = |metadata: &ObjectMeta| crate::kinds::kubevirt_machine::created(metadata);
        let vms = self.vms.iter().map(|(key, vm)| (of(&vm.metadata), key));
        let machines = self.machines.iter().map(|(_, machine)| machine);
        let machines = machines.map(|machine| (of(&machine.metadata), &machine.home));
        let mut all: Vec<_> = vms.chain(machines).collect();
        all.sort_unstable();
        let mut seen = BTreeSet::new();
        all.into_iter().filter(|(_, key)| seen.insert(*key)).map(|(_, key)| key.clone()).collect()
    }

    /// Whether the VirtualMachine or its KubevirtMachine has the annotation with the addresses. The controller writes
    /// this annotation after the Secret, or when the webhook has refused a machine that holds an address.
    pub(super) fn is_annotated(&self, key: &Key) -> bool {
        let machines = self.relatives_of(key);
        let machines = machines.iter().filter_map(|machine| Some(&self.machine(machine)?.metadata));
        let mut all = machines.chain(self.vm(key).map(|vm| &vm.metadata));
        all.any(|metadata| {
            let names = metadata.annotations.iter().flat_map(|all| all.keys());
            names.into_iter().any(|name| name.starts_with(ANNOTATION_PREFIX))
        })
    }

    /// Returns the UIDs of all KubevirtMachines.
    pub(super) fn machine_uids(&self) -> impl Iterator<Item = String> {
        let machines = self.machines.iter().map(|(_, machine)| machine);
        machines.filter_map(|machine| machine.metadata.uid.clone())
    }

    /// Returns the KubevirtMachines whose VirtualMachine is in another namespace, with this namespace.
    pub(super) fn machines_elsewhere(&self) -> Vec<(Machine, String)> {
        let machines = self.machines.iter().map(|(_, machine)| machine);
        let homes = machines.map(|machine| (machine.holder(), machine.home.namespace.clone()));
        homes.filter(|(holder, namespace)| holder.namespace != *namespace).collect()
    }

    fn choose(&self, vm: &VirtualMachine) -> Chosen {
        self.selection.of(vm).map_err(|problem| problem.to_string())
    }

    /// Records that a VirtualMachine belongs or has belonged to a machine, according to the machine itself, to its leases
    /// or to its claims.
    pub(super) fn confirm(&mut self, machine: &Machine, vm: &Key) {
        let key = Key::of_machine(machine);
        if key != *vm {
            self.relate(&key, vm);
            self.confirmed.insert((machine.clone(), vm.clone()));
        }
    }

    /// Returns the names of the VirtualMachines that belong or have belonged to a machine, including the machine's own
    /// name. Not those that only name the machine in their labels: everyone who may write objects of one namespace can
    /// name any machine of another namespace.
    pub(super) fn confirmed_homes_of(&self, machine: &Machine) -> BTreeSet<Key> {
        let own = Key::of_machine(machine);
        let mut homes = self.homes_of(&own);
        homes.retain(|vm| self.is_confirmed(machine, vm));
        homes
    }

    /// Whether a VirtualMachine has the name of a machine, or belongs or has belonged to it.
    pub(super) fn is_confirmed(&self, machine: &Machine, vm: &Key) -> bool {
        Key::of_machine(machine) == *vm || self.confirmed.contains(&(machine.clone(), vm.clone()))
    }

    /// Returns the machines of other names to which a VirtualMachine belongs or has belonged.
    pub(super) fn confirmed_machines_of(&self, vm: &Key) -> BTreeSet<Machine> {
        let relatives = self.relatives.get(vm).into_iter().flatten();
        let confirmed = relatives.flat_map(|machine| self.confirmed_of(machine)).filter(|(_, home)| home == vm);
        confirmed.map(|(machine, _)| machine.clone()).collect()
    }

    /// Whether a machine may name this VirtualMachine as its own: a machine has a largest number of VirtualMachines.
    /// VirtualMachines whose labels name the machine do not count, because every user can write such labels.
    fn may_confirm(&self, machine: &Key, vm: &Key) -> bool {
        let homes: BTreeSet<&Key> = self.confirmed_of(machine).map(|(_, home)| home).collect();
        homes.contains(vm) || homes.len() < MOST_RELATIONS
    }

    /// The confirmed relations of all machines of a name.
    fn confirmed_of(&self, machine: &Key) -> impl Iterator<Item = &(Machine, Key)> {
        let first = (machine.holder(HolderKind::default(), ""), Key { namespace: String::new(), name: String::new() });
        self.confirmed.range(first..).take_while(|(it, _)| Key::of_machine(it) == *machine)
    }

    /// Whether VirtualMachine `vm` may belong to the KubevirtMachine that its labels name. In another namespace, the
    /// KubevirtMachine or a lease must say so. capk gives both the same name.
    pub(super) fn may_belong(&self, vm: &Key, machine: &Key) -> bool {
        let is_confirmed = || match self.machine(machine) {
            Some(known) => known.home == *vm || self.is_confirmed(&known.holder(), vm),
            None => vm == machine || self.confirmed_of(machine).any(|(_, home)| home == vm),
        };
        vm.name == machine.name && is_confirmed()
    }

    /// Returns the name of the VirtualMachine of a machine.
    pub(super) fn vm_of(&self, machine: &Machine) -> Key {
        let key = Key::of_machine(machine);
        self.machine(&key).map_or_else(|| key.clone(), |machine| machine.home.clone())
    }

    /// Returns the namespaces of the objects of a machine. Empty: no object has the UID of the machine.
    pub(super) fn namespaces_of(&self, machine: &Machine) -> BTreeSet<String> {
        let key = Key::of_machine(machine);
        let kubevirt_machine = self.machine(&key).filter(|known| known.metadata.uid.as_ref() == Some(&machine.uid));
        if let Some(kubevirt_machine) = kubevirt_machine {
            let home = &kubevirt_machine.home;
            return [Some(&key), Some(home).filter(|home| self.is_named(home, &key))]
                .into_iter()
                .flatten()
                .map(|it| it.namespace.clone())
                .collect();
        }
        let homes = self.homes_of(&key).into_iter().filter(|vm| self.is_of(vm, machine));
        homes.filter(|vm| *vm == key || self.belongs(vm, &key)).map(|vm| vm.namespace).collect()
    }

    /// Returns the machines among `machines` that are VirtualMachines in another namespace, with the VirtualMachine.
    pub(super) fn vms_elsewhere<'m>(&self, machines: impl Iterator<Item = &'m Machine>) -> Vec<(Machine, Key)> {
        let elsewhere = machines.flat_map(|machine| {
            let key = Key::of_machine(machine);
            let homes = self.homes_of(&key).into_iter();
            homes
                .filter(|vm| vm.namespace != machine.namespace && self.is_of(vm, machine))
                .filter(|vm| self.belongs(vm, &key))
                .map(|vm| (machine.clone(), vm))
                .collect::<Vec<_>>()
        });
        elsewhere.collect()
    }

    /// Whether a VirtualMachine belongs to a machine of another namespace: both must say so, because a user of one
    /// namespace can write one of them, and the owner of an instance.
    fn belongs(&self, vm: &Key, machine: &Key) -> bool {
        self.is_named(vm, machine) && self.may_belong(vm, machine)
    }

    /// Whether the labels of a VirtualMachine or of its instance name a machine.
    fn is_named(&self, vm: &Key, machine: &Key) -> bool {
        let of_vm = self.vm(vm).and_then(VirtualMachine::kubevirt_machine);
        let of_instance = self.instance(vm).and_then(|instance| kubevirt_machine_of(&instance.metadata));
        [of_vm, of_instance].iter().flatten().any(|named| named == machine)
    }

    /// Whether a VirtualMachine or its instance has the UID of a machine.
    fn is_of(&self, vm: &Key, machine: &Machine) -> bool {
        let is_vm = self.vm(vm).is_some_and(|vm| vm.metadata.uid.as_ref() == Some(&machine.uid));
        let is_guest =
            |instance: &Instance| instance.owner.as_ref().or(instance.metadata.uid.as_ref()) == Some(&machine.uid);
        is_vm || self.instance(vm).is_some_and(is_guest)
    }

    /// Records that the labels of a VirtualMachine or of its instance name a machine.
    fn relate_named(&mut self, machine: Option<Key>, vm: &Key) {
        if let Some(machine) = machine.filter(|machine| has_room(&self.relatives, vm, machine)) {
            self.relate(&machine, vm);
        }
    }

    fn relate(&mut self, machine: &Key, vm: &Key) {
        if machine != vm {
            self.homes.entry(machine.clone()).or_default().insert(vm.clone());
            self.relatives.entry(vm.clone()).or_default().insert(machine.clone());
        }
    }
}

/// Whether a name may get this relation. The relations of a name stay until the end of the leader, and users can change the
/// object that names the other one at any time.
fn has_room(relations: &BTreeMap<Key, BTreeSet<Key>>, of: &Key, to: &Key) -> bool {
    relations.get(of).is_none_or(|known| known.contains(to) || known.len() < MOST_RELATIONS)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::kinds::cluster_api::Version;
    use crate::kinds::kubevirt_machine::HandOut;
    use crate::kinds::pool::HolderKind;

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
    fn an_older_version_never_replaces_a_newer_one() {
        let mut index = Index::default();
        let names: BTreeSet<Key> = [key("n", "w")].into();
        assert_eq!(index.apply(Kind::VirtualMachine, object("n", "w", 9, &json!({}))), names);
        assert_eq!(index.apply(Kind::VirtualMachine, object("n", "w", 8, &json!({}))), [].into());
        assert_eq!(index.remove(Kind::VirtualMachine, &key("n", "w"), Some(8)), [].into());
        assert_eq!(index.remove(Kind::VirtualMachine, &key("n", "w"), Some(10)), names);
        assert_eq!(index.vm(&key("n", "w")), None);
    }

    #[test]
    fn a_machine_that_a_consistent_read_did_not_find_is_not_revived_by_a_late_event() {
        let mut index = Index::default();
        index.apply(Kind::Instance, object("n", "w", 9, &json!({})));
        index.take(Kind::Instance, &key("n", "w"), Some(9), None);
        assert_eq!(index.apply(Kind::Instance, object("n", "w", 9, &json!({}))), [].into());
        assert_eq!(index.instance(&key("n", "w")), None);
        index.remove(Kind::Instance, &key("n", "w"), Some(10));
        assert_eq!(index.apply(Kind::Instance, object("n", "w", 12, &json!({}))), [key("n", "w")].into());
    }

    #[test]
    fn a_late_response_does_not_revive_an_object_whose_deletion_the_watch_has_reported() {
        let mut index = Index::default();
        let (w, late) = (key("n", "w"), || Some(object("n", "w", 9, &json!({}))));
        index.apply(Kind::VirtualMachine, object("n", "w", 8, &json!({})));
        index.remove(Kind::VirtualMachine, &w, Some(10));
        assert_eq!(index.take(Kind::VirtualMachine, &w, Some(8), late()), [].into());
        assert_eq!(index.vm(&w), None);
        // The response to a later request finds a new object, also before the watch.
        assert_eq!(index.take(Kind::VirtualMachine, &w, None, late()), [w].into());
    }

    #[test]
    fn a_kubevirt_machine_concerns_the_virtual_machines_that_it_may_have() {
        let mut index = Index::default();
        let template = json!({"spec": {"virtualMachineTemplate": {"metadata": {"namespace": "infra"}}}});
        let names = index.apply(Kind::KubevirtMachine, object("n", "w", 1, &template));
        assert_eq!(names, [key("infra", "w"), key("n", "w")].into());
        assert_eq!(index.relatives_of(&key("infra", "w")), [key("infra", "w"), key("n", "w")].into());
        // The relation is kept: the guest of that VirtualMachine may still use an address.
        assert_eq!(index.remove(Kind::KubevirtMachine, &key("n", "w"), None), names);
        assert_eq!(index.homes_of(&key("n", "w")), names);
    }

    #[test]
    fn a_guest_concerns_the_kubevirt_machine_that_its_labels_name() {
        let mut index = Index::default();
        let labels = |name: &str| {
            let labels = json!({
                "capk.cluster.x-k8s.io/kubevirt-machine-name": name, "capk.cluster.x-k8s.io/kubevirt-machine-namespace": "n",
            });
            json!({"metadata": {"labels": labels}})
        };
        let names = [key("infra", "w"), key("n", "w")].into();
        assert_eq!(index.apply(Kind::Instance, object("infra", "w", 1, &labels("w"))), [key("infra", "w")].into());
        assert_eq!(index.homes_of(&key("n", "w")), names);
        assert_eq!(index.relatives_of(&key("infra", "w")), names);
        // capk gives the VirtualMachine the name of its KubevirtMachine.
        index.apply(Kind::Instance, object("infra", "other", 2, &labels("w")));
        assert_eq!(index.homes_of(&key("n", "w")), names);
    }

    #[test]
    fn an_instance_with_the_uid_of_a_virtual_machine_of_another_namespace_has_none_of_its_namespaces() {
        let mut index = Index::default();
        index.apply(Kind::VirtualMachine, object("victim", "w", 1, &json!({})));
        // A user of namespace `n` writes a machine whose VirtualMachine, as it says, is that of the other namespace.
        let template = json!({"spec": {"virtualMachineTemplate": {"metadata": {"namespace": "victim"}}}});
        index.apply(Kind::KubevirtMachine, object("n", "w", 2, &template));
        let owner = json!([{"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": "w", "uid": "victim-w"}]);
        let instance = json!({"metadata": {"uid": "i", "ownerReferences": owner}});
        index.apply(Kind::Instance, object("n", "w", 3, &instance));
        let holder = key("n", "w").holder(HolderKind::KubevirtMachine, "victim-w");
        assert_eq!(index.namespaces_of(&holder), ["n".to_owned()].into());
        assert_eq!(index.vms_elsewhere([&holder].into_iter()), []);
        // The machine of a VirtualMachine that names it.
        let labels = json!({"metadata": {"labels": {
            "capk.cluster.x-k8s.io/kubevirt-machine-name": "w", "capk.cluster.x-k8s.io/kubevirt-machine-namespace": "n",
        }}});
        index.apply(Kind::VirtualMachine, object("victim", "w", 4, &labels));
        assert_eq!(index.namespaces_of(&holder), ["n".to_owned(), "victim".to_owned()].into());
        assert_eq!(index.vms_elsewhere([&holder].into_iter()), [(holder.clone(), key("victim", "w"))]);
    }

    #[test]
    fn a_name_gets_a_limited_number_of_relations() {
        let mut index = Index::default();
        let labels = |namespace: &str| {
            json!({"metadata": {"labels": {
                "capk.cluster.x-k8s.io/kubevirt-machine-name": "w",
                "capk.cluster.x-k8s.io/kubevirt-machine-namespace": namespace,
            }}})
        };
        for version in 1..40 {
            let namespace = format!("x{version}");
            let template = json!({"spec": {"virtualMachineTemplate": {"metadata": {"namespace": namespace}}}});
            index.apply(Kind::KubevirtMachine, object("n", "w", version, &template));
            index.apply(Kind::VirtualMachine, object("infra", "w", version, &labels(&namespace)));
        }
        // One name is its own.
        assert_eq!((index.homes_of(&key("n", "w")).len(), index.relatives_of(&key("infra", "w")).len()), (17, 17));
        assert_eq!(index.machine(&key("n", "w")).unwrap().home, key("n", "w"));
        let template = json!({"spec": {"virtualMachineTemplate": {"metadata": {"namespace": "x16"}}}});
        index.apply(Kind::KubevirtMachine, object("n", "w", 40, &template));
        assert_eq!(index.machine(&key("n", "w")).unwrap().home, key("x16", "w"));
    }

    #[test]
    fn a_secret_names_no_machine_of_another_virtual_machine() {
        let mut index = Index::default();
        let template = json!({"spec": {"virtualMachineTemplate": {"metadata": {"namespace": "infra"}}}});
        index.apply(Kind::KubevirtMachine, object("n", "w", 1, &template));
        let hand_out = HandOut {
            uid: "s-1".to_owned(),
            is_deleted: false,
            vm: "v-1".to_owned(),
            machine: key("n", "w").holder(HolderKind::KubevirtMachine, "m-1"),
            interfaces: Vec::new(),
        };
        let ours = NetworkSecret::Ours(hand_out);
        for home in ["n", "infra"] {
            assert_eq!(index.check(&key(home, "w"), ours.clone()), ours);
        }
        let problem = "it names n/w (m-1), which is not the machine of other/w".to_owned();
        assert_eq!(index.check(&key("other", "w"), ours), NetworkSecret::Foreign(problem, Vec::new()));
    }

    #[test]
    fn a_claim_concerns_the_virtual_machine_of_its_name() {
        let mut index = Index::default();
        index.apply(Kind::VirtualMachine, object("n", "w", 1, &json!({})));
        index.apply(Kind::VirtualMachine, object("n", "w.x", 2, &json!({})));
        assert_eq!(index.apply(Kind::IpamClaim, object("n", "w.net1", 3, &json!({}))), [key("n", "w")].into());
        let names = [key("n", "w"), key("n", "w.x")].into();
        assert_eq!(index.apply(Kind::IpamClaim, object("n", "w.x.net1", 4, &json!({}))), names);
        assert_eq!(index.remove(Kind::IpamClaim, &key("n", "w.x.net1"), Some(5)), names);
        let kind = Kind::AddressClaim(Version::V1Beta2);
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
    fn names_come_in_the_order_of_their_oldest_object() {
        let mut index = Index::default();
        let at = |second: u32| json!({"metadata": {"creationTimestamp": format!("2026-08-01T10:00:{second:02}Z")}});
        index.apply(Kind::VirtualMachine, object("n", "a", 1, &at(30)));
        index.apply(Kind::VirtualMachine, object("n", "b", 2, &at(20)));
        index.apply(Kind::KubevirtMachine, object("n", "a", 3, &at(10)));
        assert_eq!(index.by_age(), [key("n", "a"), key("n", "b")]);
    }
}
