//! Decides which MAC addresses are recorded, assigned and released. Pure: the input is objects, the output is requests.
//!
//! | state | request |
//! |---|---|
//! | a VirtualMachine has an address of a pool, and no lease has the address | the lease, for this VirtualMachine |
//! | an interface of a VirtualMachine with the label needs an address | a lease of the lowest free address |
//! | the VirtualMachine has neither the label nor the address that it holds for an interface | the label and the address, in the VirtualMachine |
//! | every interface without an address has a lease | the addresses, in the VirtualMachine |
//! | the VirtualMachine of a lease is gone | consistent reads of the VirtualMachine and of its instance, then the release |
//!
//! These rules prevent two machines from using the same address:
//!
//! - An address is written into a VirtualMachine only after its lease is stored. The API server rejects a second lease of
//!   the same address, and a write to an outdated version of the VirtualMachine.
//! - An existing VirtualMachine keeps every lease, also when its interfaces change: KubeVirt may start an instance from an
//!   older version of the VirtualMachine.
//! - An address that a VirtualMachine or an instance uses without a lease is not allocated, if a pool with the address serves
//!   their namespace. Otherwise, the users of one namespace could use up the pools of all others.
//! - A running guest of another namespace keeps addresses of the pool from being allocated, too: at most
//!   [`MOST_OF_GUEST`] of one guest, and at most a quarter of the pool for all guests of a namespace. The oldest instances come
//!   first. Beyond this, an address may get a second guest, which is reported as a collision.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use glowplug::host::may_record::{Source, Standing, Verdict, may_record};
use glowplug::network::parse_mac_address;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::Timestamp;
use pnet_base::MacAddr;
use serde_json::{Value, json};

use crate::cluster::conditions::{
    DAMAGED_LEASES, DELETING, DUPLICATE_RECORDS, EARLIER_SCHEMA, INVALID_SPEC, SCHEMA_VIOLATED, UNREADABLE_LEASES,
    condition, stalled, unreadable_leases,
};
use crate::cluster::key::Key;
use crate::cluster::newest::Newest;
use crate::cluster::object::{Object, version_of};
use crate::cluster::request::one_line;
use crate::kinds::mac_pool::{
    MAC_BITS, MAC_NETWORK, MacPool, MacPoolSpec, MacPoolStatus, mac_lease_name, parse_mac_lease_name,
};
use crate::kinds::pool::{Holder, HolderKind, LeaseSpec};
use crate::kinds::schema::lines;
use crate::kinds::virtual_machine::{ASSIGNED_ANNOTATION, MAC_ADDRESSES_LABEL};
use crate::macs::machine::{Address, Guest, Vm};
use crate::metrics::MacPoolCount;

/// Maximum number of addresses of a pool that one running guest keeps from being allocated, if the pool does not serve the namespace of the
/// guest.
const MOST_OF_GUEST: usize = 4;

/// The objects of machines, pools and leases, and the requests that they need.
#[derive(Debug, Default)]
pub(super) struct Index {
    vms: Newest<Key, Vm>,
    guests: Newest<Key, Guest>,
    pools: Newest<String, Pool>,
    /// An error: why the lease cannot be read, in one line.
    leases: Newest<MacAddr, Result<LeaseSpec, String>>,
}

#[derive(Debug)]
struct Pool {
    metadata: ObjectMeta,
    status: MacPoolStatus,
    /// The pool, or every error of its specification.
    pool: Result<MacPool, String>,
    /// What the schema does not allow in the specification. `None`: it allows all of it.
    beyond_schema: Option<String>,
}

/// Everything that is to be done.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Plan {
    pub(super) actions: Vec<Action>,
    /// Merge patches of the status of pools, by name.
    pub(super) statuses: BTreeMap<String, Value>,
    /// State of the valid pools, by name.
    pub(super) counts: BTreeMap<String, MacPoolCount>,
    /// Why machines have no address: the reason and the note of an event.
    pub(super) waiting: BTreeMap<Key, (&'static str, String)>,
    /// Addresses that two or more running guests have, with the names of their machines.
    pub(super) collisions: BTreeMap<MacAddr, BTreeSet<Key>>,
    /// Number of leases that cannot be read.
    pub(super) unreadable: usize,
    /// Namespaces of the machines that pools serve.
    pub(super) namespaces: BTreeSet<String>,
}

/// A request to the API server.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Action {
    /// Stores the lease of an address. `version`: the version of the released lease that is replaced.
    Record { address: MacAddr, version: Option<u64>, lease: Box<LeaseSpec> },
    /// Writes addresses into a VirtualMachine: applies this merge patch, which asks the webhook to write them, and then, if no
    /// webhook answers, this JSON patch. The texts are `address to interface`.
    Assign { key: Key, request: Value, patch: Value, addresses: Vec<String> },
    /// Reads the VirtualMachine of a lease and its instance, and releases the lease if no guest can use the address.
    Prove { address: MacAddr, version: u64, lease: Box<LeaseSpec> },
}

/// The lease of one address.
enum Leased<'l> {
    /// No machine holds the address. `version`: the version of a released lease.
    Free {
        version: Option<u64>,
    },
    Held(&'l LeaseSpec),
    /// The lease cannot be read.
    Unreadable,
}

/// The held addresses by UID of the VirtualMachine and by interface.
type HeldBy<'i> = BTreeMap<(&'i str, &'i str), BTreeSet<MacAddr>>;

/// The machines that have each address.
type Used<'i> = BTreeMap<MacAddr, BTreeSet<&'i Key>>;

/// The free addresses of the pools during one plan.
struct Free<'i> {
    index: &'i Index,
    used: &'i Used<'i>,
    pools: Vec<(&'i MacPool, Box<dyn Iterator<Item = MacAddr> + 'i>)>,
    planned: BTreeSet<MacAddr>,
    /// Released leases by namespace, name and interface of their last holder.
    released: BTreeMap<(&'i str, &'i str, &'i str), MacAddr>,
    /// Names of the pools that had too few addresses for an older machine.
    exhausted: BTreeSet<&'i str>,
}

// === impl Index ===

impl Index {
    /// Stores a VirtualMachine, unless a newer version is known. Returns whether a decision may change.
    pub(super) fn apply_vm(&mut self, object: &Object) -> bool {
        self.store_vm(Key::of(&object.metadata), version_of(&object.metadata), Vm::read(object))
    }

    pub(super) fn store_vm(&mut self, key: Key, version: u64, vm: Vm) -> bool {
        store(&mut self.vms, key, version, vm, Vm::is_like)
    }

    /// Stores an instance, unless a newer version is known. Returns whether a decision may change.
    pub(super) fn store_guest(&mut self, key: Key, version: u64, guest: Guest) -> bool {
        store(&mut self.guests, key, version, guest, Guest::eq)
    }

    /// Removes a VirtualMachine that a watch reports as deleted at `version`. `None`: a list no longer contains it.
    pub(super) fn remove_vm(&mut self, key: &Key, version: Option<u64>) {
        self.vms.remove(key, version);
    }

    /// Removes an instance, as [`Index::remove_vm`].
    pub(super) fn remove_guest(&mut self, key: &Key, version: Option<u64>) {
        self.guests.remove(key, version);
    }

    /// Removes all VirtualMachines and instances.
    pub(super) fn forget_machines(&mut self) {
        (self.vms, self.guests) = (Newest::default(), Newest::default());
    }

    /// Stores a pool, unless a newer version is known.
    pub(super) fn apply_pool(&mut self, object: Object) -> bool {
        let Object { metadata, data, .. } = object;
        let metadata = ObjectMeta { managed_fields: None, ..metadata };
        let (name, version) = (metadata.name.clone().unwrap_or_default(), version_of(&metadata));
        let spec = serde_json::from_value::<MacPoolSpec>(data["spec"].clone());
        let beyond_schema = spec.as_ref().ok().and_then(|spec| lines(&spec.beyond_schema()));
        let pool = spec.map_err(|error| format!("spec: {error}")).and_then(|spec| {
            let (pool, diagnostics) = spec.check(&name);
            pool.ok_or_else(|| {
                let lines: Vec<String> = diagnostics.kept().iter().map(ToString::to_string).collect();
                lines.join("\n")
            })
        });
        // A status that cannot be read is replaced.
        let status = serde_json::from_value(data["status"].clone()).unwrap_or_default();
        self.pools.apply(name, version, Pool { metadata, status, pool, beyond_schema })
    }

    pub(super) fn remove_pool(&mut self, name: &str) {
        self.pools.remove(&name.to_owned(), None);
    }

    /// Stores a lease, unless a newer version is known. A lease of an IP address is ignored.
    pub(super) fn apply_lease(&mut self, object: &Object) -> bool {
        let Some(address) = object.metadata.name.as_deref().and_then(parse_mac_lease_name) else { return false };
        let spec = read_lease(object, address).map_err(|error| one_line(&error));
        if let Err(error) = &spec {
            tracing::error!(%address, error, "a StaticIPLease of a MAC address cannot be read; the address is not allocated");
        }
        store(&mut self.leases, address, version_of(&object.metadata), spec, Result::eq)
    }

    /// Removes a deleted lease.
    pub(super) fn remove_lease(&mut self, name: &str) {
        if let Some(address) = parse_mac_lease_name(name) {
            self.leases.remove(&address, None);
        }
    }

    /// Returns the VirtualMachine of a name.
    pub(super) fn vm(&self, key: &Key) -> Option<&Vm> {
        self.vms.get(key)
    }

    /// Returns everything that is to be done.
    pub(super) fn plan(&self, now: Timestamp) -> Plan {
        let used = self.used();
        let unreadable = self.unreadable().count();
        let mut plan = Plan { collisions: self.collisions(), unreadable, ..Plan::default() };
        let overlaps = self.overlaps();
        let valid = || self.pools.iter().filter_map(|(_, pool)| pool.pool.as_ref().ok());
        let is_serving = |(name, pool): &(&String, &Pool)| !pool.is_deleted() && !overlaps.contains_key(name.as_str());
        let serving = || self.pools.iter().filter(is_serving).filter_map(|(_, pool)| pool.pool.as_ref().ok());
        plan.namespaces = serving().flat_map(|pool| pool.namespaces().iter().cloned()).collect();

        let mut free = Free::new(self, &used, serving());
        let mut waiting: BTreeMap<&str, u32> = BTreeMap::new();
        let mut vms: Vec<(&Key, &Vm)> = self.vms.iter().collect();
        vms.sort_by_key(|(key, vm)| (vm.metadata.creation_timestamp.as_ref().map(|time| time.0), *key));
        // An address that a machine has is recorded before any address is allocated.
        for (key, vm) in vms.iter().filter(|(_, vm)| !vm.is_deleted()) {
            for (interface, address) in &vm.interfaces {
                let Address::Known(address) = *address else { continue };
                let Leased::Free { version } = self.lease(address) else { continue };
                let Some(pool) = valid().find(|pool| may_lease(pool, key, address)) else { continue };
                if free.planned.insert(address) {
                    let lease = Box::new(lease(address, pool.name(), key, vm, interface, now));
                    plan.actions.push(Action::Record { address, version, lease });
                }
            }
        }
        let held = self.held_by_machine();
        // A manifest that is applied again removes the label together with the addresses, so the leases count, too.
        let is_served = |vm: &Vm| vm.has_label || has_lost_address(vm, &held, || serving());
        let is_waiting = |vm: &Vm| vm.missing().next().is_some() && !vm.is_deleted() && is_served(vm);
        for (key, vm) in vms.into_iter().filter(|(_, vm)| is_waiting(vm)) {
            match self.serve(key, vm, &held, &mut free, now) {
                Ok(actions) => plan.actions.extend(actions),
                Err((pools, reason, note)) => {
                    pools.into_iter().for_each(|pool| *waiting.entry(pool).or_default() += 1);
                    plan.waiting.insert(key.clone(), (reason, note));
                }
            }
        }
        plan.actions.extend(self.proofs());
        for (name, pool) in self.pools.iter() {
            let waiting = waiting.get(name.as_str()).copied().unwrap_or_default();
            let overlap = overlaps.get(name.as_str()).map(String::as_str);
            let (count, patch) = self.report(pool, (&used, &plan.collisions), overlap, waiting, now);
            plan.counts.extend(pool.pool.is_ok().then(|| (name.clone(), count)));
            plan.statuses.extend(patch.map(|patch| (name.clone(), patch)));
        }
        plan
    }

    /// Returns the requests for a VirtualMachine with interfaces without an address. `Err`: the pools of the machine, and
    /// the reason and the note of an event.
    fn serve<'i>(
        &'i self,
        key: &'i Key,
        vm: &'i Vm,
        held: &HeldBy<'_>,
        free: &mut Free<'i>,
        now: Timestamp,
    ) -> Result<Vec<Action>, (Vec<&'i str>, &'static str, String)> {
        let pools: Vec<&str> = free
            .pools
            .iter()
            .map(|(pool, _)| *pool)
            .filter(|pool| pool.serves(&vm.metadata))
            .map(MacPool::name)
            .collect();
        let (mut records, mut operations, mut addresses) = (Vec::new(), Vec::new(), Vec::new());
        let mut assigned = BTreeMap::new();
        let is_of_guest = |address: &MacAddr| self.guests.get(key).is_some_and(|guest| guest.all.contains_key(address));
        for (index, interface) in vm.missing() {
            let own = held.get(&(vm.uid(), interface)).into_iter().flatten();
            // A guest of this machine may still use an address that was removed from the VirtualMachine.
            let is_unused = |address: &MacAddr| {
                let users = free.used.get(address).into_iter().flatten();
                users.into_iter().all(|user| *user == key) && vm.addresses().all(|other| other != *address)
            };
            let own = own.copied().filter(|address| is_unused(address) && !free.planned.contains(address));
            let own = own.min_by_key(|address| !is_of_guest(address));
            if let Some(address) = own {
                // The address must not be assigned to a second interface of the same name.
                free.planned.insert(address);
                let path = format!("/spec/template/spec/domain/devices/interfaces/{index}/macAddress");
                operations.push(json!({"op": "add", "path": path, "value": address.to_string()}));
                addresses.push(format!("{address} to {interface}"));
                assigned.insert(interface, address.to_string());
                continue;
            }
            let Some((pool, address)) = free.take(&pools, key, interface) else {
                free.exhausted.extend(&pools);
                if pools.is_empty() {
                    let note = format!("No MACPool serves the machine, and interface {interface} has no MAC address");
                    return Err((pools, "MACAddressMissing", note));
                }
                let note = format!("No available MAC addresses in pool {} for interface {interface}", pools.join(", "));
                return Err((pools, "MACPoolExhausted", note));
            };
            let version = self.leases.version(&address);
            let lease = Box::new(lease(address, pool, key, vm, interface, now));
            records.push(Action::Record { address, version, lease });
        }
        if !records.is_empty() {
            return Ok(records);
        }
        let version = vm.metadata.resource_version.as_deref();
        let test = json!({"op": "test", "path": "/metadata/resourceVersion", "value": version});
        let patch = [test].into_iter().chain(operations).collect();
        let mut metadata = json!({"annotations": {(ASSIGNED_ANNOTATION): json!(assigned).to_string()}});
        if !vm.has_label {
            metadata["labels"] = json!({(MAC_ADDRESSES_LABEL): "required"});
        }
        let request = json!({
            "metadata": {"uid": vm.metadata.uid, "resourceVersion": version},
            "spec": {"template": {"metadata": metadata}},
        });
        Ok(vec![Action::Assign { key: key.clone(), request, patch, addresses }])
    }

    /// Checks of the leases whose VirtualMachine is not known.
    fn proofs(&self) -> Vec<Action> {
        let proof = |(address, lease): (&MacAddr, &Result<LeaseSpec, String>)| {
            let lease = lease.as_ref().ok().filter(|lease| lease.released.is_none())?;
            let key = Key { namespace: lease.holder.namespace.clone(), name: lease.holder.name.clone() };
            let is_there = self.vm(&key).is_some_and(|vm| vm.uid() == lease.holder.uid);
            let is_used = self.guests.get(&key).is_some_and(|guest| guest.all.contains_key(address));
            let (version, lease) = (self.leases.version(address)?, Box::new(lease.clone()));
            (!is_there && !is_used).then_some(Action::Prove { address: *address, version, lease })
        };
        self.leases.iter().filter_map(proof).collect()
    }

    /// For each address that is not allocated because of its users: the machines whose VirtualMachine or instance has the address.
    fn used(&self) -> Used<'_> {
        let pools: Vec<&MacPool> = self.pools.iter().filter_map(|(_, pool)| pool.pool.as_ref().ok()).collect();
        let of_vms = self.vms.iter().flat_map(|(key, vm)| vm.addresses().map(move |address| (address, key)));
        let of_guests =
            self.guests.iter().flat_map(|(key, guest)| guest.all.keys().map(move |address| (*address, key)));
        let counts = |(address, key): &(MacAddr, &Key)| pools.iter().any(|pool| may_lease(pool, key, *address));
        let mut used = Used::new();
        for (address, key) in of_vms.chain(of_guests).filter(counts) {
            used.entry(address).or_default().insert(key);
        }
        let others = |pool: &&MacPool| {
            let is_other =
                |(key, guest): &(&Key, &Guest)| guest.is_running && !pool.namespaces().contains(&key.namespace);
            let mut others: Vec<(&Key, &Guest)> = self.guests.iter().filter(is_other).collect();
            others.sort_by_key(|(key, guest)| (guest.created, *key));
            others
        };
        for pool in &pools {
            let mut left: BTreeMap<&str, u64> = BTreeMap::new();
            for (key, guest) in others(pool) {
                let left = left.entry(&key.namespace).or_insert_with(|| (pool.total() / 4).max(1));
                let mut of_pool: Vec<(usize, MacAddr)> = guest.of(pool).collect();
                of_pool.sort_unstable();
                for (_, address) in
                    of_pool.into_iter().take(MOST_OF_GUEST.min(usize::try_from(*left).unwrap_or(usize::MAX)))
                {
                    used.entry(address).or_default().insert(key);
                    *left -= 1;
                }
            }
        }
        used
    }

    fn collisions(&self) -> BTreeMap<MacAddr, BTreeSet<Key>> {
        let mut unique = Used::new();
        for (key, guest) in self.guests.iter() {
            for address in &guest.unique {
                unique.entry(*address).or_default().insert(key);
            }
        }
        let shared = unique.into_iter().filter(|(_, keys)| keys.len() > 1);
        shared.map(|(address, keys)| (address, keys.into_iter().cloned().collect())).collect()
    }

    /// For each pool with addresses of an older pool: the overlaps, one line each.
    fn overlaps(&self) -> BTreeMap<&str, String> {
        let mut by_age: Vec<&Pool> = self.pools.iter().map(|(_, pool)| pool).collect();
        // Only objects in tests have no creation time. They count as the youngest.
        by_age.sort_by_key(|pool| {
            let created = pool.metadata.creation_timestamp.as_ref().map(|time| time.0);
            (Reverse(created.is_some()), created, pool.metadata.name.clone())
        });
        let pools: Vec<&MacPool> = by_age.into_iter().filter_map(|pool| pool.pool.as_ref().ok()).collect();
        let mut overlaps = BTreeMap::new();
        for (index, pool) in pools.iter().enumerate() {
            let lines: Vec<String> = pools[..index].iter().filter_map(|older| pool.overlap(older)).collect();
            if !lines.is_empty() {
                overlaps.insert(pool.name(), lines.join("\n"));
            }
        }
        overlaps
    }

    fn lease(&self, address: MacAddr) -> Leased<'_> {
        match self.leases.get(&address) {
            None => Leased::Free { version: None },
            Some(Err(_)) => Leased::Unreadable,
            Some(Ok(lease)) if lease.released.is_some() => Leased::Free { version: self.leases.version(&address) },
            Some(Ok(lease)) => Leased::Held(lease),
        }
    }

    fn held_by_machine(&self) -> HeldBy<'_> {
        let mut held = HeldBy::new();
        for (address, _) in self.leases.iter() {
            if let Leased::Held(lease) = self.lease(*address) {
                let holder = (lease.holder.uid.as_str(), lease.holder.interface.as_str());
                held.entry(holder).or_default().insert(*address);
            }
        }
        held
    }

    /// The addresses of the leases that cannot be read, each with the reason.
    fn unreadable(&self) -> impl Iterator<Item = (&MacAddr, &str)> {
        self.leases.iter().filter_map(|(address, lease)| Some((address, lease.as_ref().err()?.as_str())))
    }

    /// Returns the counts of a pool, and the patch of its status. `None`: the status is correct.
    fn report(
        &self,
        pool: &Pool,
        (used, collisions): (&Used<'_>, &BTreeMap<MacAddr, BTreeSet<Key>>),
        overlap: Option<&str>,
        waiting: u32,
        now: Timestamp,
    ) -> (MacPoolCount, Option<Value>) {
        let ready = match (&pool.pool, overlap) {
            _ if pool.is_deleted() => ("False", DELETING, "The pool is being deleted; machines keep their addresses"),
            (Err(errors), _) => ("False", INVALID_SPEC, errors.as_str()),
            (Ok(_), Some(overlap)) => ("False", "PoolOverlap", overlap),
            (Ok(_), None) => ("True", "Serving", "The pool allocates addresses"),
        };
        let of_pool = |address: &&MacAddr| pool.pool.as_ref().is_ok_and(|pool| pool.contains(**address));
        let leased = self.leases.iter().map(|(address, _)| address);
        let held = leased.filter(|address| !matches!(self.lease(**address), Leased::Free { .. }));
        let taken: BTreeSet<&MacAddr> = held.chain(used.keys()).filter(of_pool).collect();
        let mut shared: BTreeMap<&MacAddr, BTreeSet<&Key>> = BTreeMap::new();
        let of_used = used.iter().filter(|(_, keys)| keys.len() > 1);
        let of_used = of_used.flat_map(|(address, keys)| keys.iter().map(move |key| (address, *key)));
        // `used` lacks the addresses of guests of other namespaces beyond their limit, so the running guests that share an
        // address count, too.
        let running = collisions.iter().flat_map(|(address, keys)| keys.iter().map(move |key| (address, key)));
        for (address, key) in of_used.chain(running).filter(|(address, _)| of_pool(address)) {
            shared.entry(address).or_default().insert(key);
        }
        let shared: Vec<String> = shared
            .iter()
            .map(|(address, keys)| format!("{address}: machines {} have it", names(keys.iter().copied())))
            .collect();
        let shared = shared.join("\n");
        let total = pool.pool.as_ref().map_or(0, MacPool::total);
        let count = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        let used = u64::try_from(taken.len()).unwrap_or(u64::MAX);
        let free = total.saturating_sub(used);
        let exhausted = match &pool.pool {
            Err(_) => ("Unknown", "NotReady", "The addresses of the pool are not known"),
            Ok(_) if free == 0 => ("True", "NoFreeAddress", "No available MAC addresses in pool"),
            Ok(_) => ("False", "FreeAddresses", "The pool has free addresses"),
        };
        let duplicates = match shared.as_str() {
            "" => ("False", "NoDuplicates", "Every address has at most one machine"),
            lines => ("True", "ConflictingRecords", lines),
        };
        let damaged = self.unreadable().filter(|(address, _)| of_pool(address));
        let damaged: Vec<_> = damaged.map(|(address, reason)| (*address, mac_lease_name(*address), reason)).collect();
        let damaged =
            unreadable_leases(damaged.iter().map(|(address, name, reason)| (*address, name.as_str(), *reason)));
        let damaged = damaged.as_deref().map(|lines| (UNREADABLE_LEASES, ("True", DAMAGED_LEASES, lines)));
        let conditions =
            [(DUPLICATE_RECORDS, duplicates), ("Exhausted", exhausted), ("Ready", ready), ("Stalled", stalled(ready))];
        let beyond_schema = pool.beyond_schema.as_deref();
        let violated = beyond_schema.map(|lines| (SCHEMA_VIOLATED, ("True", EARLIER_SCHEMA, lines)));
        let conditions = conditions.into_iter().chain(violated);
        let status = MacPoolStatus {
            observed_generation: pool.metadata.generation,
            total: count(total),
            free: count(free),
            used: count(used),
            waiting,
            conditions: conditions
                .into_iter()
                .chain(damaged)
                .map(|(type_, verdict)| {
                    condition(&pool.status.conditions, type_, verdict, pool.metadata.generation, now)
                })
                .collect(),
        };
        let patch = (status != pool.status).then(|| {
            json!({"metadata": {"resourceVersion": pool.metadata.resource_version}, "status": {
                "observedGeneration": status.observed_generation, "total": status.total, "free": status.free,
                "used": status.used, "waiting": status.waiting, "conditions": status.conditions,
            }})
        });
        (MacPoolCount { free, used, waiting }, patch)
    }
}

/// The specification of a lease of a MAC address.
fn read_lease(object: &Object, address: MacAddr) -> Result<LeaseSpec, String> {
    let spec: LeaseSpec =
        serde_json::from_value(object.data["spec"].clone()).map_err(|error| format!("spec: {error}"))?;
    match spec.network == MAC_NETWORK && parse_mac_address(&spec.address) == Some(address) {
        true => Ok(spec),
        false => Err(format!(
            "spec: invalid address {:?} of {:?}, expected {address} of {MAC_NETWORK:?}",
            spec.address, spec.network
        )),
    }
}

/// Stores an object, unless a newer version is known. Returns whether the object differs from the version before.
fn store<K: Clone + Ord, T>(
    known: &mut Newest<K, T>,
    key: K,
    version: u64,
    new: T,
    is_like: impl Fn(&T, &T) -> bool,
) -> bool {
    let is_same = known.get(&key).is_some_and(|known| is_like(known, &new));
    known.apply(key, version, new) && !is_same
}

/// Whether a MAC address that an object of this name has may become a lease of a pool.
fn may_lease(pool: &MacPool, key: &Key, address: MacAddr) -> bool {
    let standing = match (pool.contains(address), pool.namespaces().contains(&key.namespace)) {
        (false, _) => Standing::NoPool,
        (true, false) => Standing::Foreign,
        (true, true) => Standing::Offered,
    };
    may_record(Source::MacAddress, standing) == Verdict::Lease
}

/// Whether a VirtualMachine holds an address of one of these pools for an interface that has none, and the pool still serves it.
fn has_lost_address<'p, P: Iterator<Item = &'p MacPool>>(vm: &Vm, held: &HeldBy<'_>, pools: impl Fn() -> P) -> bool {
    let mut lost = vm.missing().flat_map(|(_, interface)| held.get(&(vm.uid(), interface)).into_iter().flatten());
    lost.any(|address| pools().any(|pool| pool.contains(*address) && pool.serves(&vm.metadata)))
}

fn lease(address: MacAddr, pool: &str, key: &Key, vm: &Vm, interface: &str, now: Timestamp) -> LeaseSpec {
    LeaseSpec {
        network: MAC_NETWORK.to_owned(),
        address: address.to_string(),
        prefix: MAC_BITS,
        pool: pool.to_owned(),
        holder: Holder {
            kind: HolderKind::VirtualMachine,
            namespace: key.namespace.clone(),
            name: key.name.clone(),
            uid: vm.uid().to_owned(),
            interface: interface.to_owned(),
            vm_namespace: None,
            unknown: BTreeMap::new(),
        },
        since: k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime(now),
        released: None,
        reuse_after: None,
        secrets: None,
        migrated: None,
        unknown: BTreeMap::new(),
    }
}

/// Names of machines for a message, at most five.
pub(super) fn names<'k>(keys: impl ExactSizeIterator<Item = &'k Key>) -> String {
    let all = keys.len();
    let named: Vec<String> = keys.take(5).map(ToString::to_string).collect();
    match all.saturating_sub(named.len()) {
        0 => named.join(" and "),
        further => format!("{} and {further} more", named.join(", ")),
    }
}

// === impl Pool ===

impl Pool {
    fn is_deleted(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }
}

// === impl Free ===

impl<'i> Free<'i> {
    fn new(index: &'i Index, used: &'i Used<'i>, pools: impl Iterator<Item = &'i MacPool>) -> Self {
        let addresses = |pool: &'i MacPool| -> (_, Box<dyn Iterator<Item = MacAddr> + 'i>) {
            let is_free =
                |address: &MacAddr| !used.contains_key(address) && matches!(index.lease(*address), Leased::Free { .. });
            (pool, Box::new(pool.addresses().filter(is_free)))
        };
        let released = index.leases.iter().filter_map(|(address, lease)| {
            let holder = &lease.as_ref().ok().filter(|lease| lease.released.is_some())?.holder;
            Some(((holder.namespace.as_str(), holder.name.as_str(), holder.interface.as_str()), *address))
        });
        Self {
            index,
            used,
            pools: pools.map(addresses).collect(),
            planned: BTreeSet::new(),
            released: released.collect(),
            exhausted: BTreeSet::new(),
        }
    }

    /// Takes a free address from one of these pools: the address that a machine of the same name had on this interface,
    /// else the lowest address of the first pool with a free address. Returns the name of the pool, too.
    fn take(&mut self, pools: &[&str], key: &Key, interface: &str) -> Option<(&'i str, MacAddr)> {
        let Self { index, used, planned, released, exhausted, .. } = self;
        let may_serve = |name: &str| pools.contains(&name) && !exhausted.contains(name);
        let before = released.get(&(key.namespace.as_str(), key.name.as_str(), interface)).copied();
        let before = before.filter(|address| !used.contains_key(address) && !planned.contains(address));
        let before = before.filter(|address| matches!(index.lease(*address), Leased::Free { .. }));
        for (pool, addresses) in self.pools.iter_mut().filter(|(pool, _)| may_serve(pool.name())) {
            let before = before.filter(|address| pool.contains(*address));
            let found = before.or_else(|| addresses.find(|address| !planned.contains(address)));
            if let Some(address) = found {
                planned.insert(address);
                return Some((pool.name(), address));
            }
        }
        None
    }
}

#[cfg(test)]
mod tests;
