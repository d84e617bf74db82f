//! Reads the objects of a cluster on which the answers about pools, machines and claims depend.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use glowplug::host::claim::Machine;
use glowplug::host::records::Objects;
use k8s_openapi::api::core::v1::{Namespace, Secret};
use kube::api::{ApiResource, ListParams};
use serde_json::Value;

use crate::claims::ipam::known_ipam_claims::{IpamKind, KnownIpamClaims};
use crate::claims::known_claims::{ClaimKind, KnownClaims};
use crate::cluster::key::{Key, PoolId};
use crate::cluster::object::Object;
use crate::explain::read::{Listed, Reader};
use crate::kinds::cluster_api::{self, IpAddressClaim, Kinds, PAUSED_ANNOTATION, Version};
use crate::kinds::ipam_claim::{IpamClaim, ipam_claims, network_attachments};
use crate::kinds::kubevirt_machine::{Instance, KubevirtMachine, NetworkSecret, read_records, uid};
use crate::kinds::mac_pool::MAC_NETWORK;
use crate::kinds::neighbour::services;
use crate::kinds::pool::{GlobalStaticIPPool, HolderKind, LeaseSpec, POOL_FINALIZER, StaticIPLease, StaticIPPool};
use crate::kinds::virtual_machine::{VirtualMachine, instances, kubevirt_machines, node_pools, virtual_machines};
use crate::ledger::leases::holder_of;
use crate::machines::MachineObjects;
use crate::pools::facts::PoolObject;
use crate::pools::selection::{KnownPool, MachinePool, NamespaceLabels, Problem, Selection};
use crate::reports::{AtStart, neighbours};

/// Pools by their identity.
pub(super) type Pools = BTreeMap<PoolId, Arc<KnownPool>>;

/// The objects of a cluster that the plugin has read.
#[derive(Debug, Default)]
pub(super) struct Lists {
    /// The only namespace in which the controller works. `None`: the controller works in every namespace.
    pub(super) scope: Option<String>,
    /// The StaticIPPools and GlobalStaticIPPools, by name.
    pub(super) pools: Pools,
    /// The NodePools.
    pub(super) node_pools: Vec<Arc<Object>>,
    /// The labels of Namespaces. `None`: the user has no right to list Namespaces, or no pool selects by these labels.
    pub(super) namespaces: Option<NamespaceLabels>,
    /// The StaticIPLeases.
    pub(super) leases: Vec<Object>,
    /// The VirtualMachines.
    pub(super) vms: BTreeMap<Key, VirtualMachine>,
    /// The KubevirtMachines.
    pub(super) machines: BTreeMap<Key, KubevirtMachine>,
    /// The VirtualMachineInstances, each with its phase.
    pub(super) guests: BTreeMap<Key, (String, Instance)>,
    /// The records of machines in VirtualMachines, KubevirtMachines and instances.
    pub(super) objects: Objects,
    /// The addresses that running guests report.
    pub(super) reports: AtStart,
    /// The addresses of Services and Clusters.
    pub(super) neighbours: neighbours::AtStart,
    /// The IPAddressClaims and IPAddresses. `None`: they were not read, or the cluster does not have these kinds.
    pub(super) claims: Option<KnownClaims>,
    /// Holder and pool of each IPAddressClaim.
    pub(super) claimed: BTreeMap<Key, Claimed>,
    /// The IPAMClaims and network attachment definitions.
    pub(super) ipam: KnownIpamClaims,
    /// Each IPAMClaim.
    pub(super) ipam_claims: BTreeMap<Key, IpamClaim>,
    /// The Secrets with network data to which VirtualMachines and instances refer.
    pub(super) secrets: BTreeMap<Key, NetworkSecret>,
    /// Whether every NodePool was read.
    pub(super) has_node_pools: bool,
    /// Whether every machine and instance was read.
    pub(super) has_machines: bool,
    /// Whether every IPAddressClaim and IPAddress was read.
    pub(super) has_claims: bool,
    /// Whether every IPAMClaim was read, and every network attachment definition if there is an IPAMClaim.
    pub(super) has_ipam_claims: bool,
    /// Whether every Secret with network data to which a VirtualMachine or an instance refers was read.
    pub(super) has_secrets: bool,
}

/// Holder and pool of an IPAddressClaim.
#[derive(Debug)]
pub(super) struct Claimed {
    pub(super) holder: Machine,
    /// Pool of the claim. `None`: the claim names no pool of glowplug, is paused or is being deleted.
    pub(super) pool: Option<PoolId>,
}

// === impl Lists ===

impl Lists {
    /// Reads the objects on which the answers about pools and machines depend. `new` has the pools of a file: if one of
    /// them selects by the labels of Namespaces, these labels are read, too.
    ///
    /// # Errors
    ///
    /// A request failed, or the user has no right to list the pools or the leases.
    pub(super) async fn read(reader: &Reader, new: &[Object]) -> anyhow::Result<Self> {
        let mut lists =
            Self { leases: reader.required(&ApiResource::erase::<StaticIPLease>(&()), None).await?, ..Self::default() };
        let scope = reader.scope();
        lists.scope = scope.map(str::to_owned);
        let kinds =
            [(ApiResource::erase::<StaticIPPool>(&()), scope), (ApiResource::erase::<GlobalStaticIPPool>(&()), None)];
        for (kind, namespace) in kinds {
            reader.required(&kind, namespace).await?.into_iter().for_each(|pool| lists.add_pool(pool));
        }
        let all = ListParams::default;
        let of_node_pools = &mut lists.node_pools;
        let read = reader.each(&node_pools(), reader.scope(), all(), |it| of_node_pools.push(Arc::new(it))).await?;
        lists.has_node_pools = read == Listed::Whole;
        let new: Vec<MachinePool> = new.iter().map(|pool| MachinePool::read(PoolObject::read(pool.clone()))).collect();
        lists.namespaces = namespaces(reader, lists.pools.values().map(|pool| &*pool.checked).chain(&new)).await?;
        let machines = reader.each(&kubevirt_machines(), None, all(), |it| lists.add_machine(it)).await?;
        let vms = reader.each(&virtual_machines(), None, all(), |it| lists.add_vm(it)).await?;
        let guests = reader.each(&instances(), None, all(), |it| lists.add_instance(it)).await?;
        lists.has_machines = [machines, vms, guests] == [Listed::Whole; 3];
        if reader.has_no_answer() {
            // The call of `check` below fails. The other kinds are read first, so that the message of `check` names
            // every missing right.
            lists.read_neighbours(reader).await?;
            lists.read_claims(reader).await?;
        }
        reader.check()?;
        Ok(lists)
    }

    /// Reads the Services and Clusters, whose addresses are reserved.
    ///
    /// # Errors
    ///
    /// A request failed.
    pub(super) async fn read_neighbours(&mut self, reader: &Reader) -> anyhow::Result<()> {
        let all = ListParams::default;
        reader.each(&services(), reader.scope(), all(), |it| self.neighbours.note_service(&it)).await?;
        if let Some(clusters) = cluster_api::clusters(reader.client()).await? {
            reader.each(&clusters, reader.scope(), all(), |it| self.neighbours.note_cluster(&it)).await?;
        }
        Ok(())
    }

    /// Reads the IPAddressClaims, IPAddresses and IPAMClaims.
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
        let all = ListParams::default;
        let listed = reader.each(&ipam_claims(), None, all(), |it| self.add_ipam_claim(it)).await?;
        // The attachments are needed only for IPAMClaims.
        let attachments = match self.ipam_claims.is_empty() {
            true => Listed::Whole,
            false => reader.each(&network_attachments(), None, all(), |it| self.add_attachment(it)).await?,
        };
        self.has_ipam_claims = [listed, attachments] == [Listed::Whole; 2];
        Ok(())
    }

    /// Reads the Secrets of the controller with network data to which the machines and their instances refer.
    ///
    /// # Errors
    ///
    /// A request failed.
    pub(super) async fn read_secrets(&mut self, reader: &Reader) -> anyhow::Result<()> {
        let secret_of = |vm: &VirtualMachine| Some(Key { name: vm.secret()?.to_owned(), ..vm.key() });
        let of_guest = |(key, (_, guest)): (&Key, &(String, Instance))| {
            let name = guest.secret().filter(|_| !guest.has_ended)?;
            Some(Key { name: name.to_owned(), ..key.clone() })
        };
        let of_guests = self.guests.iter().filter_map(of_guest);
        let names = self.vms.values().filter_map(secret_of).chain(of_guests).collect();
        let read = self.read_each_secret(reader, names).await?;
        self.has_secrets = read == Listed::Whole && self.has_machines;
        Ok(())
    }

    /// Reads the Secrets with network data that users have written for machines, if the network data can reserve an
    /// address. `new` has the pools of a file.
    ///
    /// # Errors
    ///
    /// A request failed.
    pub(super) async fn read_secrets_of_users(&mut self, reader: &Reader, new: &[Object]) -> anyhow::Result<()> {
        let stored = self.pools.clone();
        new.iter().for_each(|pool| self.replace_pool(pool.clone()));
        let pools = std::mem::replace(&mut self.pools, stored);
        let selection = self.selection(&pools);
        let of_addresses = self.held().filter(|lease| lease.network != MAC_NETWORK);
        let holding = of_addresses.map(|lease| holder_of(&lease.holder).served_in().to_owned()).collect();
        let of_machine = |it: MachineObjects<'_>| {
            let names = it.secrets_of_users(&selection, &holding).into_iter();
            names.map(|name| Key { name: name.to_owned(), ..it.key.clone() }).collect::<Vec<_>>()
        };
        let names = self.machine_objects().flat_map(of_machine).collect();
        let read = self.read_each_secret(reader, names).await?;
        self.has_secrets &= read == Listed::Whole;
        Ok(())
    }

    async fn read_each_secret(&mut self, reader: &Reader, names: BTreeSet<Key>) -> anyhow::Result<Listed> {
        let names: Vec<Key> = names.into_iter().collect();
        reader.get_each(&ApiResource::erase::<Secret>(&()), &names, |it| self.add_secret(it)).await
    }

    /// Adds a pool of the cluster. Replaces a pool of the same name.
    pub(super) fn add_pool(&mut self, object: Object) {
        let pool = KnownPool::read(PoolObject::read(object));
        self.pools.insert(pool.checked.id.clone(), Arc::new(pool));
    }

    /// Adds a pool of a file. Replaces a pool of the same name. The pool counts as a pool that the controller already
    /// serves.
    pub(super) fn replace_pool(&mut self, mut object: Object) {
        object.metadata.finalizers.get_or_insert_default().push(POOL_FINALIZER.to_owned());
        if let Some(known) = self.pools.get(&PoolId::of(&object.metadata)) {
            object.metadata.uid.clone_from(&known.metadata.uid);
            object.metadata.creation_timestamp.clone_from(&known.metadata.creation_timestamp);
            object.metadata.deletion_timestamp.clone_from(&known.metadata.deletion_timestamp);
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

    /// Adds a VirtualMachineInstance.
    pub(super) fn add_instance(&mut self, mut object: Object) {
        let key = Key::of(&object.metadata);
        let phase = object.data["status"]["phase"].as_str().unwrap_or_default().to_owned();
        let instance = Instance::read(object.clone());
        self.reports.note(&key, &instance.guest);
        // The addresses that the guest reports are already in `reports`, which applies the bounds of the controller.
        // The status is removed, so that these addresses do not also count as records.
        if let Value::Object(members) = &mut object.data {
            members.remove("status");
        }
        read_records(&mut self.objects, &instances().kind, &object);
        self.guests.insert(key, (phase, instance));
    }

    /// Adds an IPAddressClaim. The controller ignores an object that cannot be read, so this method does, too.
    pub(super) fn add_claim(&mut self, object: Object) {
        if let Ok(claim) = IpAddressClaim::read(object.clone()) {
            let key = claim.key();
            let holder = key.holder(HolderKind::IpAddressClaim, claim.uid());
            let annotation = |name: &str| object.metadata.annotations.as_ref()?.get(name);
            // A claim that is being deleted or paused gets no address.
            let is_served = !claim.is_deleted() && annotation(PAUSED_ANNOTATION).is_none();
            let pool = claim.pool.resolve(&key.namespace).filter(|_| is_served);
            self.claimed.insert(key.clone(), Claimed { holder, pool });
        }
        self.claims().apply(ClaimKind::Claim, object);
    }

    /// Adds an IPAddress.
    pub(super) fn add_address(&mut self, object: Object) {
        self.claims().apply(ClaimKind::Address, object);
    }

    fn claims(&mut self) -> &mut KnownClaims {
        // The version matters only for decisions about a status. This program makes no such decision.
        self.claims.get_or_insert_with(|| KnownClaims::new(Version::V1Beta2, ""))
    }

    /// Adds an IPAMClaim.
    pub(super) fn add_ipam_claim(&mut self, object: Object) {
        let claim = IpamClaim::read(object.clone());
        self.ipam_claims.insert(claim.key(), claim);
        self.ipam.apply(IpamKind::Claim, object);
    }

    /// Adds a network attachment definition.
    pub(super) fn add_attachment(&mut self, object: Object) {
        self.ipam.apply(IpamKind::Attachment, object);
    }

    /// Adds a Secret to which a VirtualMachine or an instance refers.
    pub(super) fn add_secret(&mut self, object: Object) {
        self.secrets.insert(Key::of(&object.metadata), NetworkSecret::read(object.parse().ok()));
    }

    /// The VirtualMachines and instances, by name.
    pub(super) fn machine_objects(&self) -> impl Iterator<Item = MachineObjects<'_>> {
        let keys: BTreeSet<&Key> = self.vms.keys().chain(self.guests.keys()).collect();
        let instance = |key: &Key| self.guests.get(key).map(|(_, instance)| instance);
        keys.into_iter().map(move |key| MachineObjects { key, vm: self.vms.get(key), instance: instance(key) })
    }

    /// The holders of all claims.
    pub(super) fn claim_holders(&self) -> BTreeSet<Machine> {
        let of_ipam = self.ipam_claims.values().map(|it| it.key().holder(HolderKind::IpamClaim, it.uid()));
        self.claimed.values().map(|claim| claim.holder.clone()).chain(of_ipam).collect()
    }

    /// Returns the holder for the claim with this name, if the claim can get addresses of the network. An IPAMClaim
    /// counts for every network.
    pub(super) fn claim_of(&self, key: &Key, network: &str) -> Option<Machine> {
        let is_there = |pool: &PoolId| {
            let pool = self.pools.get(pool).and_then(|pool| pool.checked.pool.as_ref().ok());
            pool.is_some_and(|pool| pool.network() == network)
        };
        let claimed = self.claimed.get(key).filter(|claim| claim.pool.as_ref().is_some_and(is_there));
        let of_ipam = || self.ipam_claims.get(key).map(|it| key.holder(HolderKind::IpamClaim, it.uid()));
        claimed.map(|claim| claim.holder.clone()).or_else(of_ipam)
    }

    /// Returns the object that holds the addresses of a VirtualMachine in the ledger: its KubevirtMachine. A
    /// VirtualMachine without a KubevirtMachine holds its addresses itself.
    pub(super) fn holder(&self, vm: &VirtualMachine) -> Machine {
        let key = vm.key();
        match self.kubevirt_machine(&key) {
            Some(machine) => machine.holder(),
            None => key.holder(HolderKind::VirtualMachine, uid(&vm.metadata)),
        }
    }

    /// Whether the object of a machine exists. This is also `true` for a KubevirtMachine whose VirtualMachine is in
    /// another namespace, although such an object records nothing.
    pub(super) fn has(&self, machine: &Machine) -> bool {
        let key = Key::of_machine(machine);
        let known = [self.vms.get(&key).map(|it| &it.metadata), self.machines.get(&key).map(|it| &it.metadata)];
        known.into_iter().flatten().any(|metadata| uid(metadata) == machine.uid)
    }

    /// The KubevirtMachine of the VirtualMachine with this key.
    pub(super) fn kubevirt_machine(&self, key: &Key) -> Option<&KubevirtMachine> {
        self.machines.get(key).filter(|machine| !machine.has_vm_elsewhere)
    }

    /// The held leases that can be read, including those of MAC addresses.
    pub(super) fn held(&self) -> impl Iterator<Item = LeaseSpec> {
        let spec = |lease: &Object| serde_json::from_value::<LeaseSpec>(lease.data.get("spec")?.clone()).ok();
        self.leases.iter().filter_map(spec).filter(|lease| lease.released.is_none())
    }

    /// Whether every machine that a pool may select was read. If the pool selects by NodePools or by labels of
    /// Namespaces, these must have been read, too.
    pub(super) fn knows_machines_of(&self, pool: &MachinePool) -> bool {
        let knows_selected = match (pool.selects_namespaces(), pool.node_pools().is_empty()) {
            (true, _) => self.namespaces.is_some(),
            (false, false) => self.has_node_pools,
            (false, true) => true,
        };
        let selects =
            pool.selects_namespaces() || !pool.node_pools().is_empty() || pool.spec.machine_selector.is_some();
        !selects || knows_selected && self.has_machines
    }

    /// Whether every claim that a pool may serve was read.
    pub(super) fn knows_claims_of(&self, pool: &MachinePool) -> bool {
        self.has_claims && (self.has_ipam_claims || !pool.spec.serve_ipam_claims)
    }

    /// Returns which machines these pools select.
    pub(super) fn selection(&self, pools: &Pools) -> Selection {
        let pools = pools.values().map(|pool| Arc::clone(&pool.checked));
        Selection::new(pools, self.node_pools.iter().cloned(), self.namespaces.as_ref())
    }
}

/// Returns why the pools give a machine no address. If the labels of Namespaces are unknown, the message names the
/// missing right of the user, because the user, and not the controller, reads the Namespaces here.
pub(super) fn problem_text(problem: &Problem) -> String {
    match problem {
        Problem::UnknownNamespaces { pool } => format!(
            "whether pool {pool} selects the machine is not known: the pool selects by the labels of Namespaces, and you lack the right \
             to list namespaces"
        ),
        problem => problem.to_string(),
    }
}

/// Reads the labels of Namespaces, if a pool selects by them. `None`: no pool selects by them, or the user has no right
/// to list Namespaces.
///
/// # Errors
///
/// The request failed.
pub(super) async fn namespaces<'p>(
    reader: &Reader,
    mut pools: impl Iterator<Item = &'p MachinePool>,
) -> anyhow::Result<Option<NamespaceLabels>> {
    if !pools.any(MachinePool::selects_namespaces) {
        return Ok(None);
    }
    let (kind, mut all) = (ApiResource::erase::<Namespace>(&()), NamespaceLabels::new());
    let take = |object: Object| {
        all.insert(object.metadata.name.unwrap_or_default(), object.metadata.labels.unwrap_or_default());
    };
    let listed = reader.each(&kind, None, ListParams::default(), take).await?;
    Ok(Some(all).filter(|_| listed == Listed::Whole))
}
