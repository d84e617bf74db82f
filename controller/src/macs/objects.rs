//! The machines, pools and leases on which decisions about MAC addresses depend.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use glowplug::network::parse_mac_address;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::Timestamp;
use pnet_base::MacAddr;

use crate::cluster::key::Key;
use crate::cluster::newest::{Newest, Progress};
use crate::cluster::object::{Object, version_of};
use crate::cluster::request::one_line;
use crate::kinds::mac_pool::{MAC_NETWORK, MacPool, MacPoolSpec, MacPoolStatus, parse_mac_lease_name};
use crate::kinds::pool::LeaseSpec;
use crate::kinds::schema::lines;
use crate::macs::machine::{Guest, Vm};

/// The known machines, pools and leases.
#[derive(Debug, Default)]
pub(super) struct Objects {
    pub(super) vms: Newest<Key, Vm>,
    pub(super) guests: Newest<Key, Guest>,
    pub(super) pools: Newest<String, Pool>,
    /// The lease of each address. An error has the reason, in one line, why the lease cannot be read.
    pub(super) leases: Newest<MacAddr, Result<LeaseSpec, String>>,
    /// Addresses of guests that migrated to another cluster, with the name of the machine here. An instance may be gone
    /// before the migration is in the lease of the address.
    pub(super) migrated: BTreeSet<(Key, MacAddr)>,
    /// Machines that are not served now, because the API server refuses a request for them.
    pub(super) set_aside: BTreeSet<Key>,
    /// VirtualMachines with the label and an interface without an address.
    awaiting: BTreeSet<Key>,
    /// Number of guests for which an address must be unique, by address.
    unique: BTreeMap<MacAddr, usize>,
    /// The addresses in `unique` with more than one guest.
    pub(super) shared: BTreeSet<MacAddr>,
}

#[derive(Debug)]
pub(super) struct Pool {
    pub(super) metadata: ObjectMeta,
    pub(super) status: MacPoolStatus,
    /// The pool, or all errors of its specification.
    pub(super) pool: Result<MacPool, String>,
    /// The parts of the specification that the schema does not allow. `None`: the schema allows everything.
    pub(super) beyond_schema: Option<String>,
}

/// The state of the lease of one address.
pub(super) enum Leased<'l> {
    /// No machine holds the address. `version` is the version of a released lease. `None`: there is no lease.
    Free { version: Option<u64> },
    /// The reuse delay of a released lease has not ended.
    Delayed(&'l LeaseSpec),
    /// A machine holds the address.
    Held,
    /// The lease cannot be read.
    Unreadable,
}

/// The held addresses, by the UID of the VirtualMachine and the interface.
pub(super) type HeldBy<'i> = BTreeMap<(&'i str, &'i str), BTreeSet<MacAddr>>;

// === impl Objects ===

impl Objects {
    /// Stores a VirtualMachine, unless a newer version is known. Returns whether this may affect a decision.
    pub(super) fn apply_vm(&mut self, object: &Object) -> bool {
        self.store_vm(Key::of(&object.metadata), version_of(&object.metadata), Vm::read(object))
    }

    pub(super) fn store_vm(&mut self, key: Key, version: u64, vm: Vm) -> bool {
        if self.vms.is_news(&key, version) {
            self.awaiting.remove(&key);
            self.awaiting.extend((vm.has_label && vm.missing().next().is_some()).then(|| key.clone()));
        }
        store(&mut self.vms, key, version, vm, Vm::is_like)
    }

    /// Stores an instance, unless a newer version is known. Returns whether this may affect a decision.
    pub(super) fn store_guest(&mut self, key: Key, version: u64, guest: Guest) -> bool {
        if self.guests.is_news(&key, version) {
            self.count_unique(&self.unique_of(&key), &guest.unique);
        }
        let migrated: Vec<MacAddr> = guest.all.keys().copied().filter(|_| guest.has_left).collect();
        let is_due = store(&mut self.guests, key.clone(), version, guest, Guest::eq);
        self.migrated.extend(migrated.into_iter().filter(|_| is_due).map(|address| (key.clone(), address)));
        is_due
    }

    /// Stores a VirtualMachine of a response, in the same way as [`Objects::apply_vm`]. The watch may report it later.
    pub(super) fn take_vm(&mut self, object: &Object) -> bool {
        let key = Key::of(&object.metadata);
        let is_unknown = self.vms.version(&key).is_none();
        let is_due = self.apply_vm(object);
        if is_unknown {
            self.vms.expect(&key);
        }
        is_due
    }

    /// Removes a VirtualMachine that a request did not find. The watch reports the deletion later.
    pub(super) fn forget_vm(&mut self, key: &Key, version: u64) {
        if self.vms.version(key).is_some_and(|known| known <= version) {
            self.vms.forget(key, version);
            self.awaiting.remove(key);
        }
    }

    /// Stores an instance of a response. The watch may report it later. Returns whether this may affect a decision.
    pub(super) fn take_guest(&mut self, object: &Object) -> bool {
        let (key, version) = (Key::of(&object.metadata), version_of(&object.metadata));
        let is_unknown = self.guests.version(&key).is_none();
        let is_due = self.store_guest(key.clone(), version, Guest::read(object));
        if is_unknown {
            self.guests.expect(&key);
        }
        is_due
    }

    /// Notes how far the watch of VirtualMachines has come. Removes the VirtualMachines that the watch should have
    /// reported by now and has not reported. Returns whether it has removed any.
    pub(super) fn follow_vms(&mut self, progress: &Progress<Key>) -> bool {
        let gone = self.vms.follow(progress);
        gone.iter().for_each(|key| self.remove_vm(key, None));
        !gone.is_empty()
    }

    /// Notes how far the watch of instances has come, in the same way as [`Objects::follow_vms`].
    pub(super) fn follow_guests(&mut self, progress: &Progress<Key>) -> bool {
        let gone = self.guests.follow(progress);
        gone.iter().for_each(|key| self.remove_guest(key, None));
        !gone.is_empty()
    }

    /// Removes a VirtualMachine that a watch reports as deleted at `version`. If `version` is `None`, a list no longer
    /// contains the VirtualMachine.
    pub(super) fn remove_vm(&mut self, key: &Key, version: Option<u64>) {
        if self.vms.remove(key, version) {
            self.awaiting.remove(key);
        }
    }

    /// Removes an instance in the same way as [`Objects::remove_vm`].
    pub(super) fn remove_guest(&mut self, key: &Key, version: Option<u64>) {
        let unique = self.unique_of(key);
        if self.guests.remove(key, version) {
            self.count_unique(&unique, &BTreeSet::new());
        }
    }

    /// Removes all VirtualMachines and instances from the index.
    pub(super) fn forget_machines(&mut self) {
        (self.vms, self.awaiting) = (Newest::default(), BTreeSet::new());
        (self.guests, self.unique, self.shared) = (Newest::default(), BTreeMap::new(), BTreeSet::new());
    }

    /// Whether no object needs a decision: there is no pool, no lease, no machine that waits for a pool, and no address
    /// that two guests use. Most clusters have no MACPool, so this check does not look at each machine.
    pub(super) fn is_idle(&self) -> bool {
        let has_any = self.pools.iter().next().is_some() || self.leases.iter().next().is_some();
        !has_any && self.awaiting.is_empty() && self.shared.is_empty()
    }

    /// The addresses that must be unique for the guest of this name.
    fn unique_of(&self, key: &Key) -> BTreeSet<MacAddr> {
        self.guests.get(key).map(|guest| guest.unique.clone()).unwrap_or_default()
    }

    /// Counts the addresses that must be unique for a guest, before and after a change of the guest.
    fn count_unique(&mut self, before: &BTreeSet<MacAddr>, after: &BTreeSet<MacAddr>) {
        for address in before.difference(after) {
            let left = self.unique.get(address).map_or(0, |count| count - 1);
            match left {
                0 => drop(self.unique.remove(address)),
                left => drop(self.unique.insert(*address, left)),
            }
            if left < 2 {
                self.shared.remove(address);
            }
        }
        for address in after.difference(before) {
            let count = self.unique.entry(*address).or_default();
            *count += 1;
            if *count > 1 {
                self.shared.insert(*address);
            }
        }
    }

    /// Stores a pool, unless a newer version is known. Returns whether the pool was stored.
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
        // If the status cannot be read, the controller replaces it.
        let status = serde_json::from_value(data["status"].clone()).unwrap_or_default();
        self.pools.apply(name, version, Pool { metadata, status, pool, beyond_schema })
    }

    pub(super) fn remove_pool(&mut self, name: &str) {
        self.pools.remove(&name.to_owned(), None);
    }

    /// Stores a lease of a MAC address, unless a newer version is known. Ignores a lease of an IP address. Returns
    /// whether this may affect a decision.
    pub(super) fn apply_lease(&mut self, object: &Object) -> bool {
        let Some(address) = object.metadata.name.as_deref().and_then(parse_mac_lease_name) else { return false };
        let spec = read_lease(object, address).map_err(|error| one_line(&error));
        if let Err(error) = &spec {
            tracing::error!(%address, error, "a StaticIPLease of a MAC address cannot be read; the address is not allocated");
        }
        store(&mut self.leases, address, version_of(&object.metadata), spec, Result::eq)
    }

    /// Removes a lease from the index in the same way as [`Objects::remove_vm`].
    pub(super) fn remove_lease(&mut self, name: &str, version: Option<u64>) {
        if let Some(address) = parse_mac_lease_name(name) {
            self.leases.remove(&address, version);
        }
    }

    /// Returns the VirtualMachine with this name.
    pub(super) fn vm(&self, key: &Key) -> Option<&Vm> {
        self.vms.get(key)
    }

    /// For each pool that has addresses of an older pool, a text with one line for each overlap.
    pub(super) fn overlaps(&self) -> BTreeMap<&str, String> {
        let mut by_age: Vec<&Pool> = self.pools.iter().map(|(_, pool)| pool).collect();
        // Only pools in tests have no creation time. They count as the youngest pools.
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

    /// Returns the state of the lease of an address at this time.
    pub(super) fn lease(&self, address: MacAddr, now: Timestamp) -> Leased<'_> {
        match self.leases.get(&address) {
            None => Leased::Free { version: None },
            Some(Err(_)) => Leased::Unreadable,
            Some(Ok(lease)) if lease.released.is_none() => Leased::Held,
            Some(Ok(lease)) if lease.reuse_after.as_ref().is_some_and(|end| now < end.0) => Leased::Delayed(lease),
            Some(Ok(_)) => Leased::Free { version: self.leases.version(&address) },
        }
    }

    pub(super) fn held_by_machine(&self) -> HeldBy<'_> {
        let mut held = HeldBy::new();
        for (address, lease) in self.leases.iter() {
            if let Some(lease) = lease.as_ref().ok().filter(|lease| lease.released.is_none()) {
                let holder = (lease.holder.uid.as_str(), lease.holder.interface.as_str());
                held.entry(holder).or_default().insert(*address);
            }
        }
        held
    }

    /// The addresses of the leases that cannot be read, each with the reason.
    pub(super) fn unreadable(&self) -> impl Iterator<Item = (&MacAddr, &str)> {
        self.leases.iter().filter_map(|(address, lease)| Some((address, lease.as_ref().err()?.as_str())))
    }
}

/// Reads the specification of a lease of a MAC address. Fails if it is not for `address`.
pub(super) fn read_lease(object: &Object, address: MacAddr) -> Result<LeaseSpec, String> {
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

/// Stores an object, unless a newer version is known. Returns `true` if the object is stored and differs from the
/// version before, according to `is_like`.
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

// === impl Pool ===

impl Pool {
    pub(super) fn is_deleted(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }
}
