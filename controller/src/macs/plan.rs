//! Decides which MAC addresses are recorded, assigned and released. Pure decision logic: the input is objects, the
//! output is requests.
//!
//! | state | request |
//! |---|---|
//! | a VirtualMachine has an address of a pool, and no lease has the address | the lease, for this VirtualMachine |
//! | an interface of a VirtualMachine with the label needs an address | a lease of the lowest free address |
//! | the VirtualMachine has neither the label nor the address that it holds for an interface | the label and the address, in the VirtualMachine |
//! | every interface without an address has a lease | the addresses, in the VirtualMachine |
//! | the guest of a lease has migrated to another cluster | the time of the migration, in the lease |
//! | the VirtualMachine of a lease is gone | consistent reads of the VirtualMachine and of its instance, then the release |
//! | a released lease is not needed any more | a consistent read of the lease, then its deletion |
//!
//! Machines are served in the order of their creation. A machine that needs more addresses than are free waits, and so
//! do the younger machines of its namespace, which could otherwise take each address that becomes free. The machines of
//! other namespaces do not wait: a user of one namespace could block the pools of all others with one machine. No
//! machine waits for a machine that needs more addresses than its pools have.
//!
//! These rules prevent two machines from using the same address:
//!
//! - An address is written into a VirtualMachine only after its lease is stored. The API server rejects a second lease
//!   of the same address, and a write to an outdated version of the VirtualMachine.
//! - An existing VirtualMachine keeps all its leases, even if its interfaces change: KubeVirt may start an instance
//!   from an older version of the VirtualMachine.
//! - The address of a guest that migrated to another cluster has a reuse delay after its release: the module `migrated`.
//! - An address that a VirtualMachine or instance uses without a lease is not allocated, if the pool of the address
//!   serves the namespace of this object. A use in another namespace does not count here: otherwise the users of one
//!   namespace could use up the pools of all others.
//! - A running guest of another namespace also keeps addresses of the pool from being allocated: at most
//!   [`MOST_OF_GUEST`](super::used::MOST_OF_GUEST) for one guest, and at most a quarter of the pool for all guests of a
//!   namespace. The addresses of the oldest instances count first. A further address may get a second guest, which is
//!   reported as a collision.

#[cfg(test)]
pub(super) mod tests;

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::jiff::Timestamp;
use pnet_base::MacAddr;
use serde_json::{Value, json};

use crate::cluster::key::Key;
use crate::kinds::mac_pool::{MAC_BITS, MAC_NETWORK, MacPool};
use crate::kinds::pool::{Holder, HolderKind, LeaseSpec};
use crate::kinds::virtual_machine::{ASSIGNED_ANNOTATION, MAC_ADDRESSES_LABEL};
use crate::macs::free::Free;
use crate::macs::machine::{Address, Vm};
use crate::macs::objects::{HeldBy, Leased, Objects, Pool};
use crate::macs::used::may_lease;
use crate::metrics::MacPoolCount;

/// The result of a decision: requests, and the state to report.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Plan {
    pub(super) actions: Vec<Action>,
    /// Merge patches for the status of pools, by the name of the pool.
    pub(super) statuses: BTreeMap<String, Value>,
    /// Counts of the valid pools, by the name of the pool.
    pub(super) counts: BTreeMap<String, MacPoolCount>,
    /// For each machine that waits, why it has no address: the reason and the note of an event.
    pub(super) waiting: BTreeMap<Key, (&'static str, String)>,
    /// Addresses that at least two running guests use, with the names of the machines.
    pub(super) collisions: BTreeMap<MacAddr, BTreeSet<Key>>,
    /// For each machine whose guest migrated to another cluster, the addresses that get no reuse delay, because their
    /// namespace already keeps too many addresses for such guests.
    pub(super) not_held: BTreeMap<Key, BTreeSet<MacAddr>>,
    /// Number of leases that cannot be read.
    pub(super) unreadable: usize,
    /// Namespaces of the machines that pools serve.
    pub(super) namespaces: BTreeSet<String>,
}

/// A request to the API server.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Action {
    /// Stores the lease of an address. `version` is the version of the released lease that is replaced. `None`: there
    /// is no lease.
    Record { address: MacAddr, version: Option<u64>, lease: Box<LeaseSpec> },
    /// Writes addresses into a VirtualMachine. The merge patch `request` asks the webhook to write them. If no webhook
    /// answers, the JSON patch `patch` follows. Each string in `addresses` has the form `address to interface`.
    Assign { key: Key, request: Value, patch: Value, addresses: Vec<String> },
    /// Stores the lease of an address with the time at which its guest migrated to another cluster.
    Hold { address: MacAddr, version: u64, lease: Box<LeaseSpec> },
    /// Reads the VirtualMachine of a lease and its instance. Releases the lease if no guest can use the address.
    Prove { address: MacAddr, version: u64, lease: Box<LeaseSpec> },
    /// Deletes the released lease of an address.
    Delete { address: MacAddr, version: u64, lease: Box<LeaseSpec> },
    /// Writes the status of a pool.
    Report { pool: String, patch: Value },
}

/// What a request, and its failure, concerns.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) enum Subject {
    Machine(Key),
    /// An address whose machine is gone or needs no decision.
    Address(MacAddr),
    /// The name of a pool.
    Pool(String),
}

// === impl Action ===

impl Action {
    pub(super) fn subject(&self) -> Subject {
        match self {
            Self::Record { lease, .. } => {
                let Holder { namespace, name, .. } = &lease.holder;
                Subject::Machine(Key { namespace: namespace.clone(), name: name.clone() })
            }
            Self::Assign { key, .. } => Subject::Machine(key.clone()),
            Self::Hold { address, .. } | Self::Prove { address, .. } | Self::Delete { address, .. } => {
                Subject::Address(*address)
            }
            Self::Report { pool, .. } => Subject::Pool(pool.clone()),
        }
    }

    /// The namespace of the machine. Empty for the status of a pool.
    pub(super) fn namespace(&self) -> &str {
        match self {
            Self::Record { lease, .. }
            | Self::Hold { lease, .. }
            | Self::Prove { lease, .. }
            | Self::Delete { lease, .. } => &lease.holder.namespace,
            Self::Assign { key, .. } => &key.namespace,
            Self::Report { .. } => "",
        }
    }
}

// === impl Subject ===

impl std::fmt::Display for Subject {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Machine(key) => write!(f, "machine {key}"),
            Self::Address(address) => write!(f, "address {address}"),
            Self::Pool(name) => write!(f, "MACPool {name}"),
        }
    }
}

// === impl Objects ===

impl Objects {
    /// Decides from the known objects which requests to make, and what to report.
    pub(super) fn plan(&self, now: Timestamp) -> Plan {
        if self.is_idle() {
            return Plan::default();
        }
        let used = self.used();
        let unreadable = self.unreadable().count();
        let mut plan = Plan { collisions: self.collisions(), unreadable, ..Plan::default() };
        let overlaps = self.overlaps();
        let valid = || self.pools.iter().filter_map(|(_, pool)| pool.pool.as_ref().ok());
        let is_serving = |(name, pool): &(&String, &Pool)| !pool.is_deleted() && !overlaps.contains_key(name.as_str());
        let serving = || self.pools.iter().filter(is_serving).filter_map(|(_, pool)| pool.pool.as_ref().ok());
        plan.namespaces = serving().flat_map(|pool| pool.namespaces().iter().cloned()).collect();

        let mut free = Free::new(self, &used, serving(), now);
        let mut waiting: BTreeMap<&str, u32> = BTreeMap::new();
        let mut vms: Vec<(&Key, &Vm)> = self.vms.iter().collect();
        vms.sort_by_key(|(key, vm)| (vm.metadata.creation_timestamp.as_ref().map(|time| time.0), *key));
        // Addresses that machines already have are recorded before any address is allocated.
        vms.retain(|(key, vm)| !vm.is_deleted() && !self.set_aside.contains(*key));
        for (key, vm) in &vms {
            for (interface, address) in &vm.interfaces {
                let Address::Known(address) = *address else { continue };
                let (version, migrated) = match self.lease(address, now) {
                    Leased::Free { version } => (version, None),
                    // The guest may still use the address in the other cluster, also after this machine is gone.
                    Leased::Delayed(before) => (self.leases.version(&address), before.migrated.clone()),
                    Leased::Held | Leased::Unreadable => continue,
                };
                let Some(pool) = valid().find(|pool| may_lease(pool, key, address)) else { continue };
                if free.planned.insert(address) {
                    let new = lease(address, pool.name(), key, vm, interface, now);
                    let lease = Box::new(LeaseSpec { migrated, ..new });
                    plan.actions.push(Action::Record { address, version, lease });
                }
            }
        }
        let held = self.held_by_machine();
        // If a user applies a manifest again, this removes the label together with the addresses. Therefore a machine
        // that holds a lease is served without the label, too.
        let is_served = |vm: &Vm| vm.has_label || has_lost_address(vm, &held, || serving());
        let is_waiting = |vm: &Vm| vm.missing().next().is_some() && is_served(vm);
        for (key, vm) in vms.into_iter().filter(|(_, vm)| is_waiting(vm)) {
            match self.serve(key, vm, &held, &mut free, now) {
                Ok(actions) => plan.actions.extend(actions),
                Err((pools, reason, note)) => {
                    pools.into_iter().for_each(|pool| *waiting.entry(pool).or_default() += 1);
                    plan.waiting.insert(key.clone(), (reason, note));
                }
            }
        }
        let (migrations, not_held) = self.migrations(now);
        plan.actions.extend(self.proofs(&migrations));
        plan.actions.extend(migrations.into_values());
        plan.actions.extend(self.deletions(&free.planned, now));
        plan.not_held = not_held;
        for (name, pool) in self.pools.iter() {
            let waiting = waiting.get(name.as_str()).copied().unwrap_or_default();
            let overlap = overlaps.get(name.as_str()).map(String::as_str);
            let (count, patch) = self.report(pool, (&used, &plan.collisions), overlap, waiting, now);
            plan.counts.extend(pool.pool.is_ok().then(|| (name.clone(), count)));
            plan.statuses.extend(patch.map(|patch| (name.clone(), patch)));
        }
        plan
    }

    /// Returns the requests for a VirtualMachine that has interfaces without an address. An error has the pools that
    /// serve the machine, and the reason and the note of an event.
    fn serve<'i>(
        &'i self,
        key: &'i Key,
        vm: &'i Vm,
        held: &HeldBy<'_>,
        free: &mut Free<'i>,
        now: Timestamp,
    ) -> Result<Vec<Action>, (Vec<&'i str>, &'static str, String)> {
        let serving = free.pools.iter().map(|it| it.pool).filter(|pool| pool.serves(&vm.metadata));
        let serving: Vec<&MacPool> = serving.collect();
        let pools: Vec<&str> = serving.iter().map(|pool| pool.name()).collect();
        let (mut lacking, mut operations, mut addresses) = (Vec::new(), Vec::new(), Vec::new());
        let mut assigned = BTreeMap::new();
        let is_of_guest = |address: &MacAddr| self.guests.get(key).is_some_and(|guest| guest.all.contains_key(address));
        for (index, interface) in vm.missing() {
            let own = held.get(&(vm.uid(), interface)).into_iter().flatten();
            // A use by the machine itself does not count: its guest may still use an address that was removed from the
            // VirtualMachine.
            let is_unused = |address: &MacAddr| {
                let users = free.used.get(address).into_iter().flatten();
                users.into_iter().all(|user| *user == key) && vm.addresses().all(|other| other != *address)
            };
            let own = own.copied().filter(|address| is_unused(address) && !free.planned.contains(address));
            let Some(address) = own.min_by_key(|address| !is_of_guest(address)) else {
                lacking.push(interface);
                continue;
            };
            // A second interface with the same name must not get this address.
            free.planned.insert(address);
            let path = format!("/spec/template/spec/domain/devices/interfaces/{index}/macAddress");
            operations.push(json!({"op": "add", "path": path, "value": address.to_string()}));
            addresses.push(format!("{address} to {interface}"));
            assigned.insert(interface, address.to_string());
        }
        if let Some(interface) = lacking.first().filter(|_| pools.is_empty()) {
            let note = format!("No MACPool serves the machine, and interface {interface} has no MAC address");
            return Err((pools, "MACAddressMissing", note));
        }
        let (needed, total) = (lacking.len(), serving.iter().map(|pool| pool.total()).sum());
        if u64::try_from(needed).unwrap_or(u64::MAX) > total {
            let pool = pools.join(", ");
            let note = format!("The machine needs {needed} MAC addresses, and pool {pool} has {total} in total");
            return Err((pools, "MACPoolExhausted", note));
        }
        let (mut records, mut taken) = (Vec::new(), Vec::new());
        for interface in lacking {
            let Some((pool, address)) = free.take(&pools, key, interface) else {
                free.free_again(taken);
                let namespace = key.namespace.as_str();
                // The note does not name the older machine: its name would change the event of each younger machine.
                let has_older = pools.iter().any(|pool| free.waiting.contains(&(namespace, pool)));
                let why = if has_older { ": an older machine of its namespace waits, too" } else { "" };
                let pool = pools.join(", ");
                let note = format!("No available MAC addresses in pool {pool} for interface {interface}{why}");
                free.waiting.extend(pools.iter().map(|pool| (namespace, *pool)));
                return Err((pools, "MACPoolExhausted", note));
            };
            taken.push(address);
            let version = self.leases.get(&address).and(self.leases.version(&address));
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

    /// Returns the actions that check each lease whose VirtualMachine is not known, and whose address no known instance
    /// of the same name has. A lease to which this plan adds the time of a migration is checked later.
    fn proofs(&self, migrations: &BTreeMap<MacAddr, Action>) -> Vec<Action> {
        let proof = |(address, lease): (&MacAddr, &Result<LeaseSpec, String>)| {
            let is_checked = |lease: &&LeaseSpec| lease.released.is_none() && !migrations.contains_key(address);
            let lease = lease.as_ref().ok().filter(is_checked)?;
            let key = Key { namespace: lease.holder.namespace.clone(), name: lease.holder.name.clone() };
            let is_there = self.vm(&key).is_some_and(|vm| vm.uid() == lease.holder.uid);
            let is_used = self.guests.get(&key).is_some_and(|guest| guest.all.contains_key(address));
            let (version, lease) = (self.leases.version(address)?, Box::new(lease.clone()));
            (!is_there && !is_used).then_some(Action::Prove { address: *address, version, lease })
        };
        self.leases.iter().filter_map(proof).collect()
    }
}

/// Whether a VirtualMachine holds an address for an interface that has no address now, and one of these pools has the
/// address and still serves the VirtualMachine.
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
