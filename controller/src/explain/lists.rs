//! What the lists of a cluster say about pools, leases, machines, guests and claims, in the form that the rules of the library and of
//! the controller work on.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use glowplug::host::allocator::Allocator;
use glowplug::host::audit::{self, Rebuilt};
use glowplug::host::change::Change;
use glowplug::host::claim::{Claimant, Machine, Reservation};
use glowplug::host::ledger::{Ledger as _, MemoryLedger};
use glowplug::host::may_record::Source;
use glowplug::host::pool::Pool;
use glowplug::host::records::{Inventory, Objects};
use glowplug::host::registry::Registry;
use k8s_openapi::jiff::Timestamp;
use kube::api::{ApiResource, ListParams};
use kube::core::GroupVersionKind;
use serde_json::Value;

use crate::claims::{record, record_of_ipam_claim, reservation};
use crate::cluster::key::{Key, PoolId};
use crate::cluster::object::Object;
use crate::explain::read::{Listed, Reader};
use crate::kinds::cluster_api::{IpAddress, IpAddressClaim, Kinds};
use crate::kinds::guest::Life;
use crate::kinds::ipam_claim::{IpamClaim, ipam_claims};
use crate::kinds::kubevirt_machine::{Instance, KubevirtMachine, NetworkSecret, read_records, uid};
use crate::kinds::lease_name::parse_lease_name;
use crate::kinds::mac_pool::parse_mac_lease_name;
use crate::kinds::pool::{GlobalStaticIPPool, HolderKind, LeaseSpec, POOL_FINALIZER, StaticIPLease, StaticIPPool};
use crate::kinds::virtual_machine::{VirtualMachine, instances, kubevirt_machines, node_pools, virtual_machines};
use crate::ledger::leases;
use crate::machines::inventory;
use crate::pools::facts::PoolObject;
use crate::pools::selection::{KnownPool, Selection};
use crate::pools::status::Index;

/// Label of the Secrets that the controller writes.
const OUR_SECRETS: &str = "app.kubernetes.io/managed-by=glowplug";

/// The objects of a cluster.
#[derive(Debug, Default)]
pub(super) struct Lists {
    /// The pools of addresses, by name.
    pub(super) pools: BTreeMap<PoolId, Arc<KnownPool>>,
    /// The NodePools.
    pub(super) node_pools: Vec<Arc<Object>>,
    /// The StaticIPLeases.
    pub(super) leases: Vec<Object>,
    /// The VirtualMachines.
    pub(super) vms: BTreeMap<Key, VirtualMachine>,
    /// The KubevirtMachines.
    pub(super) machines: BTreeMap<Key, KubevirtMachine>,
    /// The instances, each with its phase.
    pub(super) guests: BTreeMap<Key, (String, Instance)>,
    /// The records of machines.
    objects: Objects,
    claims: BTreeMap<Key, IpAddressClaim>,
    addresses: Vec<IpAddress>,
    ipam_claims: Vec<IpamClaim>,
    /// The Secrets with network data, each with its namespace.
    pub(super) secrets: Vec<(String, NetworkSecret)>,
    /// Whether every machine and instance was read.
    pub(super) has_machines: bool,
    /// Whether every IPAddressClaim and IPAddress was read.
    pub(super) has_claims: bool,
    /// Whether every IPAMClaim was read.
    pub(super) has_ipam_claims: bool,
    /// Whether every Secret with network data was read.
    pub(super) has_secrets: bool,
}

/// The records of a cluster, and what cannot be read.
#[derive(Debug, Default)]
pub(super) struct Recorded {
    /// The records of machines and claims.
    pub(super) inventory: Inventory,
    /// The IPAddresses without a claim.
    pub(super) alone: Vec<Reservation>,
    /// What running guests report.
    pub(super) reports: Vec<Reservation>,
}

// === impl Lists ===

impl Lists {
    /// Reads what decides about pools and machines.
    ///
    /// # Errors
    ///
    /// A request failed, or the user has no right to list the pools or the leases.
    pub(super) async fn read(reader: &Reader) -> anyhow::Result<Self> {
        let mut lists =
            Self { leases: reader.required(&ApiResource::erase::<StaticIPLease>(&())).await?, ..Self::default() };
        for kind in [ApiResource::erase::<StaticIPPool>(&()), ApiResource::erase::<GlobalStaticIPPool>(&())] {
            reader.required(&kind).await?.into_iter().for_each(|pool| lists.add_pool(pool));
        }
        lists.node_pools = reader.list(&node_pools()).await?.into_iter().map(Arc::new).collect();
        let all = ListParams::default;
        let machines = reader.each(&kubevirt_machines(), None, all(), |it| lists.add_machine(it)).await?;
        let vms = reader.each(&virtual_machines(), None, all(), |it| lists.add_vm(it)).await?;
        let guests = reader.each(&instances(), None, all(), |it| lists.add_instance(it)).await?;
        lists.has_machines = [machines, vms, guests] == [Listed::Whole; 3];
        Ok(lists)
    }

    /// Reads the claims and the Secrets with network data, too.
    ///
    /// # Errors
    ///
    /// A request failed.
    pub(super) async fn read_claims(&mut self, reader: &Reader) -> anyhow::Result<()> {
        let kinds = Kinds::discover(reader.client()).await?;
        let (mut has_claims, mut has_addresses) = (Listed::Whole, Listed::Whole);
        if let Some(kinds) = kinds {
            let all = ListParams::default;
            has_claims = reader.each(&kinds.claims, None, all(), |it| self.add_claim(it)).await?;
            has_addresses = reader.each(&kinds.addresses, None, all(), |it| self.add_address(it)).await?;
        }
        self.has_claims = [has_claims, has_addresses] == [Listed::Whole; 2];
        let listed = reader.each(&ipam_claims(), None, ListParams::default(), |it| self.add_ipam_claim(it)).await?;
        self.has_ipam_claims = listed == Listed::Whole;
        let secrets = ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk("", "v1", "Secret"), "secrets");
        let ours = ListParams::default().labels(OUR_SECRETS);
        self.has_secrets = reader.each(&secrets, None, ours, |it| self.add_secret(it)).await? == Listed::Whole;
        Ok(())
    }

    /// Adds a pool, in place of a pool of the same name.
    pub(super) fn add_pool(&mut self, object: Object) {
        let pool = KnownPool::read(PoolObject::read(object));
        self.pools.insert(pool.checked.id.clone(), Arc::new(pool));
    }

    /// Adds a pool of a file, in place of the pool of the same name. The pool counts as one that the controller serves already.
    pub(super) fn replace_pool(&mut self, mut object: Object) {
        object.metadata.finalizers.get_or_insert_default().push(POOL_FINALIZER.to_owned());
        if let Some(known) = self.pools.get(&PoolId::of(&object.metadata)) {
            object.metadata.uid.clone_from(&known.metadata.uid);
            object.metadata.creation_timestamp.clone_from(&known.metadata.creation_timestamp);
        }
        self.add_pool(object);
    }

    /// Adds a KubevirtMachine.
    pub(super) fn add_machine(&mut self, object: Object) {
        read_records(&mut self.objects, &kubevirt_machines().kind, &object);
        self.machines.insert(Key::of(&object.metadata), KubevirtMachine::read(object));
    }

    /// Adds a VirtualMachine.
    pub(super) fn add_vm(&mut self, object: Object) {
        read_records(&mut self.objects, &virtual_machines().kind, &object);
        self.vms.insert(Key::of(&object.metadata), VirtualMachine::read(object));
    }

    /// Adds an instance.
    pub(super) fn add_instance(&mut self, mut object: Object) {
        let key = Key::of(&object.metadata);
        let phase = object.data["status"]["phase"].as_str().unwrap_or_default().to_owned();
        let instance = Instance::read(object.clone());
        // What a guest reports counts by the rule of the controller, see [`Lists::recorded`].
        if let Value::Object(members) = &mut object.data {
            members.remove("status");
        }
        read_records(&mut self.objects, &instances().kind, &object);
        self.guests.insert(key, (phase, instance));
    }

    /// Adds an IPAddressClaim. An object that cannot be read is no claim of the controller.
    pub(super) fn add_claim(&mut self, object: Object) {
        if let Ok(claim) = IpAddressClaim::read(object) {
            self.claims.insert(claim.key(), claim);
        }
    }

    /// Adds an IPAddress. An object that cannot be read is no address of the controller.
    pub(super) fn add_address(&mut self, object: Object) {
        self.addresses.extend(IpAddress::read(object));
    }

    /// Adds an IPAMClaim.
    pub(super) fn add_ipam_claim(&mut self, object: Object) {
        self.ipam_claims.push(IpamClaim::read(object));
    }

    /// Adds a Secret of the controller.
    pub(super) fn add_secret(&mut self, object: Object) {
        let namespace = object.metadata.namespace.clone().unwrap_or_default();
        self.secrets.push((namespace, NetworkSecret::read(object.parse().ok())));
    }

    /// The machine of a VirtualMachine as the ledger identifies it: its KubevirtMachine, or else the VirtualMachine itself.
    pub(super) fn holder(&self, vm: &VirtualMachine) -> Machine {
        let key = vm.key();
        match self.kubevirt_machine(&key) {
            Some(machine) => machine.holder(),
            None => key.holder(HolderKind::VirtualMachine, uid(&vm.metadata)),
        }
    }

    /// Whether the object of a machine exists. A KubevirtMachine in another namespace than its VirtualMachine records nothing, and is
    /// there nevertheless.
    pub(super) fn has(&self, machine: &Machine) -> bool {
        let key = Key::of_machine(machine);
        let known = [self.vms.get(&key).map(|it| &it.metadata), self.machines.get(&key).map(|it| &it.metadata)];
        known.into_iter().flatten().any(|metadata| uid(metadata) == machine.uid)
    }

    /// The KubevirtMachine of the VirtualMachine of a name.
    pub(super) fn kubevirt_machine(&self, key: &Key) -> Option<&KubevirtMachine> {
        self.machines.get(key).filter(|machine| !machine.has_vm_elsewhere)
    }

    /// The held leases of addresses, and those of MAC addresses, as far as they can be read.
    pub(super) fn held(&self) -> impl Iterator<Item = LeaseSpec> {
        let spec = |lease: &Object| serde_json::from_value::<LeaseSpec>(lease.data.get("spec")?.clone()).ok();
        self.leases.iter().filter_map(spec).filter(|lease| lease.released.is_none())
    }

    /// The selection of these pools.
    pub(super) fn selection(&self, pools: &BTreeMap<PoolId, Arc<KnownPool>>) -> Selection {
        Selection::new(pools.values().map(|pool| Arc::clone(&pool.checked)), self.node_pools.iter().cloned())
    }

    /// A registry with the leases and these pools, before the records are adopted, and the leases that cannot be read, each with its
    /// name and the problem.
    ///
    /// # Errors
    ///
    /// The pools cannot be in one registry.
    pub(super) fn registry(
        &self,
        pools: &BTreeMap<PoolId, Arc<KnownPool>>,
        now: Timestamp,
    ) -> anyhow::Result<(Registry<MemoryLedger>, Vec<(String, String)>)> {
        let (mut changes, mut damaged) = (Vec::new(), Vec::new());
        for object in &self.leases {
            let name = object.metadata.name.clone().unwrap_or_default();
            let Some((address, network)) = parse_lease_name(&name) else {
                if parse_mac_lease_name(&name).is_none() {
                    damaged.push((name, "name: neither an address and a network nor a MAC address".to_owned()));
                }
                continue;
            };
            let lease = match leases::read(object, address, &network) {
                Ok((_, lease)) => Some(lease),
                Err(problem) => {
                    damaged.push((name, problem));
                    leases::unreadable(object, address)
                }
            };
            changes.push(Change::Lease { network: network.into(), address, lease });
        }
        let mut ledger = MemoryLedger::default();
        ledger.begin()?.commit(&changes)?;
        let mut registry = Registry::open(ledger)?;
        let mut index = Index::default();
        index.set_clusters(self.selection(pools).clusters());
        index.set(pools.clone());
        let (pools, suspended) = index.pools();
        registry.suspend(suspended);
        registry.resize(pools, &[], now)?;
        Ok((registry, damaged))
    }

    /// Takes the records of the objects. `allocator` has the leases and the pools.
    pub(super) fn recorded(&mut self, allocator: &Allocator) -> Recorded {
        let objects = std::mem::take(&mut self.objects);
        let uid_of = |key: &Key| self.kubevirt_machine(key)?.metadata.uid.as_deref();
        let mut recorded = Recorded { inventory: inventory(objects, uid_of), ..Recorded::default() };
        self.add_claims(allocator, &mut recorded);
        let interface = Pool::DEFAULT_INTERFACE.parse();
        for (key, (_, instance)) in self.guests.iter().filter(|(_, (_, it))| it.guest.life == Life::Running) {
            let Ok(interface) = interface else { continue };
            let machine = key.holder(HolderKind::VirtualMachine, &instance.guest.uid);
            for (network, reported) in &instance.guest.networks {
                recorded.reports.extend(reported.addresses.iter().map(|address| Reservation {
                    address: *address,
                    network: Some(network.clone()),
                    claimant: Claimant { machine: machine.clone(), interface },
                    source: format!("VirtualMachineInstance {key}"),
                    kind: Source::Report,
                }));
            }
        }
        recorded
    }

    /// Adds the claims and their records.
    fn add_claims(&self, allocator: &Allocator, recorded: &mut Recorded) {
        let Recorded { inventory, alone, .. } = recorded;
        let mut claims = BTreeSet::new();
        claims.extend(self.claims.values().map(|it| it.key().holder(HolderKind::IpAddressClaim, it.uid())));
        claims.extend(self.ipam_claims.iter().map(|it| it.key().holder(HolderKind::IpamClaim, it.uid())));
        for address in self.addresses.iter().filter(|address| address.is_ours()) {
            let key = address.key();
            let pool = address.pool.resolve(&key.namespace).and_then(|id| allocator.pool(&id.to_string()));
            let (Some(ip), Some(pool)) = (address.ip(), pool) else { continue };
            match self.claims.get(&key) {
                Some(claim) => inventory.records.push(record(address, ip, claim.uid(), pool.interface())),
                None => alone.push(reservation(address, ip, pool)),
            }
        }
        for claim in &self.ipam_claims {
            let holder = claim.key().holder(HolderKind::IpamClaim, claim.uid());
            // The lease says which pool serves the claim.
            let lease =
                allocator.leases_of(&holder).next().map(|(.., lease)| (PoolId::parse(&lease.pool), &lease.claimant));
            if let (Some((pool, claimant)), Ok(addresses)) = (lease, claim.addresses()) {
                inventory.records.push(record_of_ipam_claim(claim, addresses, &pool, claimant.interface));
            }
        }
        inventory.claims = (self.has_claims && self.has_ipam_claims).then_some(claims);
    }
}

// === impl Recorded ===

impl Recorded {
    /// Makes a registry that has the leases and pools know what a leader knows after its start.
    ///
    /// # Errors
    ///
    /// The ledger in memory failed.
    pub(super) fn adopt(&self, registry: &mut Registry<MemoryLedger>, now: Timestamp) -> anyhow::Result<Rebuilt> {
        let rebuilt = audit::rebuild(registry, &self.inventory, now)?;
        registry.set_aside(self.alone.iter().cloned(), now)?;
        registry.change_reports(&self.reports, &[], now)?;
        Ok(rebuilt)
    }
}
