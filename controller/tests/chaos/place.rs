//! A namespace with machines, claims and pools, the operations on them, and the stand-ins of capk, KubeVirt and the
//! garbage collector. The stand-ins continue when the API server answers again after a restart.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use glowplug_controller::kinds::network_data::NETWORK_DATA_LABEL;
use glowplug_controller::kinds::pool::{LeaseSpec, MachineNetwork, PoolSpec, StaticIPLease, StaticIPPool};
use k8s_openapi::api::core::v1::{Namespace, Secret};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::api::{
    ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams, PropagationPolicy, TypeMeta,
};
use kube::{Api, Client, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::task::{JoinHandle, spawn_local};
use tokio::time::{sleep, timeout};

use crate::observer::own_network_data;
use crate::random::Random;
use crate::support::hosted::copies::{clone_machine, restore, snapshot};
use crate::support::hosted::definitions::{INSTANCE, KUBEVIRT_MACHINE, Names, VIRTUAL_MACHINE, resource};
use crate::support::hosted::kubevirt::KubeVirt;
use crate::support::hosted::provider::{next_mac, object};
use crate::support::hosted::{Hosted, is_running};
use crate::support::leader::name;
use crate::tenant::Victim;
use crate::{count, settle};

/// The gateways of the pools. They are never addresses of machines.
const GATEWAYS: [&str; 2] = ["10.0.0.1", "10.0.255.1"];

/// Time after which the stand-in of KubeVirt lists all objects again.
const RESYNC: Duration = Duration::from_secs(90);
const POOLS: [&str; 2] = ["a", "b"];
/// Labels of machines: one for each of the two pools, one for the pool [`LATE`], and one that no pool selects.
const LABELS: [&str; 4] = ["a", "b", LATE, "none"];
/// Name and label of a pool that is created after its machines.
const LATE: &str = "late";
/// Last octets of the addresses of the pool [`LATE`].
const LATE_ADDRESSES: RangeInclusive<usize> = 220..=249;
/// Largest number of IPAddresses without a claim at the same time.
const RESTORED_ADDRESSES: usize = 2;
/// Sizes of a pool during the run. The last size is enough for every machine and claim.
const SIZES: [usize; 4] = [8, 25, 60, 200];
/// Finalizer of an object that is deleted with `--cascade=orphan`. The garbage collector removes the finalizer after it
/// has removed the owner reference from the dependents.
const ORPHAN: &str = "orphan";
const MACHINES: usize = 50;
const CLAIMS: usize = 40;

pub const CLAIM: Names = ("ipam.cluster.x-k8s.io", "v1beta2", "IPAddressClaim", "ipaddressclaims", true);
/// Annotation of a KubevirtMachine with the network of the address in [`RECORD`].
const NETWORK: &str = "ipam.glowplug.dev/network-eno101";
const ADDRESS: Names = ("ipam.cluster.x-k8s.io", "v1beta2", "IPAddress", "ipaddresses", false);

/// Annotation of an instance whose guest has reported false or changed addresses, or has been silent.
pub const AGENT: &str = "chaos.example/agent";
/// First letter of the name of an IPAddress that was restored without its claim, and of this claim.
const RESTORED_NAME: char = 'r';
/// Annotation of an IPAddress that a restore has brought back before its claim.
pub const RESTORED: &str = "chaos.example/restored";
/// Annotation of a KubevirtMachine with the address of its machine.
pub const RECORD: &str = "kubevirt.cluster.x-k8s.io/allocated-ip-eno101";

/// Suffix of the namespace of KubevirtMachines whose VirtualMachines are in the namespace without this suffix.
pub const ELSEWHERE: &str = "-machines";

/// A machine that HyperShift or a person wants.
#[derive(Clone, Debug)]
struct Wanted {
    of: Of,
    /// Index of the machine's label in [`LABELS`].
    label: usize,
    /// Address in the network data that a person has written. `None`: no such network data.
    own: Option<String>,
    /// The address that the KubevirtMachine of this machine records before the pool exists.
    record: Option<String>,
}

/// The owner for which a VirtualMachine is created.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Of {
    Nothing,
    /// A KubevirtMachine in the namespace of the VirtualMachine.
    Machine,
    /// A KubevirtMachine in another namespace.
    MachineElsewhere,
}

#[derive(Default)]
struct Desired {
    machines: BTreeMap<String, Wanted>,
    /// Last manifest with which each VirtualMachine was created, by name.
    manifests: BTreeMap<String, Value>,
    /// Snapshots of VirtualMachines, by name, each with the UID of the VirtualMachine.
    snapshots: BTreeMap<String, (Option<String>, Value)>,
    /// Current names of the pools.
    pools: [String; 2],
    /// Guests that continue to run after the deletion of their instance.
    endless: BTreeSet<String>,
    /// Addresses that persons have chosen or that objects record. No address is chosen twice.
    chosen: BTreeSet<String>,
    claims: usize,
    names: usize,
}

pub struct Place {
    pub namespace: String,
    pub network: String,
    /// Third octet of the addresses of the first pool.
    octet: usize,
    is_dual: bool,
    has_mac_pool: bool,
    kubevirt: Arc<KubeVirt>,
    pools: Api<StaticIPPool>,
    leases: Api<DynamicObject>,
    /// KubevirtMachines in this namespace, and in the namespace with the suffix [`ELSEWHERE`].
    machines: [Api<DynamicObject>; 2],
    vms: Api<DynamicObject>,
    instances: Api<DynamicObject>,
    claims: Api<DynamicObject>,
    addresses: Api<DynamicObject>,
    secrets: Api<Secret>,
    desired: Mutex<Desired>,
    tasks: Mutex<Vec<JoinHandle<()>>>,
}

// === impl Wanted ===

impl Wanted {
    fn new(random: &mut Random) -> Self {
        let of = [Of::Nothing, Of::Machine, Of::MachineElsewhere][random.below(3)];
        Self { of, ..Self::with_label(random.below(2)) }
    }

    fn with_label(label: usize) -> Self {
        Self { of: Of::Nothing, label, own: None, record: None }
    }

    /// Returns the wanted machine for a copy of a VirtualMachine with these labels.
    fn like(labels: &Value) -> Self {
        Self::with_label(LABELS.iter().position(|label| labels["pool"] == *label).unwrap_or_default())
    }

    /// Returns whether one of the two permanent pools serves the machine.
    fn is_served(&self) -> bool {
        self.own.is_none() && self.label < POOLS.len()
    }
}

// === impl Place ===

impl Place {
    pub async fn new(client: &Client, namespace: &str, network: &str, octet: usize, has_mac_pool: bool) -> Arc<Self> {
        let elsewhere = format!("{namespace}{ELSEWHERE}");
        let namespaces = [namespace, &elsewhere];
        for name in namespaces {
            let made: Namespace = serde_json::from_value(json!({"metadata": {"name": name}})).unwrap();
            Api::all(client.clone()).create(&PostParams::default(), &made).await.unwrap();
        }
        let api = |kind: &ApiResource| Api::namespaced_with(client.clone(), namespace, kind);
        let kubevirt = Arc::new(KubeVirt::new(client, namespace));
        let place = Arc::new(Self {
            namespace: namespace.to_owned(),
            network: network.to_owned(),
            octet,
            is_dual: has_mac_pool,
            has_mac_pool,
            kubevirt,
            pools: Api::namespaced(client.clone(), namespace),
            leases: Api::all_with(client.clone(), &ApiResource::erase::<StaticIPLease>(&())),
            machines: namespaces.map(|name| Api::namespaced_with(client.clone(), name, &resource(KUBEVIRT_MACHINE))),
            vms: api(&resource(VIRTUAL_MACHINE)),
            instances: api(&resource(INSTANCE)),
            claims: api(&resource(CLAIM)),
            addresses: api(&resource(ADDRESS)),
            secrets: Api::namespaced(client.clone(), namespace),
            desired: Mutex::new(Desired { pools: POOLS.map(str::to_owned), ..Desired::default() }),
            tasks: Mutex::default(),
        });
        place.ensure_pools(SIZES[1]).await;
        place
    }

    /// Starts the stand-ins. A stand-in that fails is started again.
    pub fn start(self: &Arc<Self>) {
        let (place, kubevirt) = (Arc::clone(self), Arc::clone(&self.kubevirt));
        let provider = spawn_local(async move {
            loop {
                place.provide().await;
                place.kubevirt.retry();
                sleep(Duration::from_millis(500)).await;
            }
        });
        let kubevirt = tokio::spawn(async move {
            loop {
                let mut running = Running(tokio::spawn({
                    let kubevirt = Arc::clone(&kubevirt);
                    async move { kubevirt.run().await }
                }));
                // Waits until the task ends because a request of the stand-in failed, or until the time is over.
                // Watches may lose events when the API server restarts. So the stand-in then starts again, and lists
                // all objects.
                let _ = timeout(RESYNC, &mut running.0).await;
                sleep(Duration::from_millis(200)).await;
            }
        });
        self.tasks.lock().unwrap().extend([provider, kubevirt]);
    }

    /// Waits until the API server calls the webhooks for machines of this namespace.
    pub async fn until_asked(&self) {
        let probe: DynamicObject = serde_json::from_value(self.vm("probe", POOLS[0], None, None)).unwrap();
        let dry_run = PostParams { dry_run: true, ..PostParams::default() };
        loop {
            if let Ok(vm) = self.vms.create(&dry_run, &probe).await {
                let labels = &vm.data["spec"]["template"]["metadata"]["labels"];
                let has_macs = labels.get("ipam.glowplug.dev/mac-addresses").is_some();
                if Hosted::reference(&vm).is_some() && has_macs == self.has_mac_pool {
                    return;
                }
            }
            sleep(Duration::from_millis(200)).await;
        }
    }

    pub fn stop(&self) {
        self.tasks.lock().unwrap().drain(..).for_each(|task| task.abort());
    }

    /// After a restore, lets the nodes report which guests run.
    pub async fn report_after_a_restore(&self) {
        loop {
            let kubevirt = Arc::clone(&self.kubevirt);
            if tokio::spawn(async move { kubevirt.report_after_a_restore().await }).await.is_ok() {
                return;
            }
            sleep(Duration::from_millis(200)).await;
        }
    }

    /// Runs one random operation.
    pub async fn operate(&self, random: &mut Random) {
        let operation = random.weighted(&[
            (30, "machine created"),
            (14, "machine deleted"),
            (8, "machine recreated with its name"),
            (5, "VirtualMachine lost"),
            (2, "VirtualMachine deleted with orphans"),
            (2, "machine deleted with orphans"),
            (8, "machine restarted"),
            (3, "guest outlives its instance"),
            (4, "guest ends after its instance"),
            (20, "claim created"),
            (14, "claim deleted"),
            (4, "pool resized"),
            (2, "gateway changed"),
            (4, "MAC address changed"),
            (8, "manifest applied again"),
            (4, "template replaced"),
            (4, "machine cloned"),
            (4, "snapshot taken"),
            (3, "snapshot restored"),
            (3, "machine stopped"),
            (10, "machine started"),
            (8, "machine created with network data that a person wrote"),
            (2, "machine created before its pool"),
            (2, "machine with a record created before its pool"),
            (2, "pool created after its machines"),
            (2, "pool of earlier machines deleted"),
            (10, "guest reports false addresses"),
            (5, "guest reboots"),
            (6, "agent of a guest is back"),
            (3, "guest changes its address"),
            (2, "IPAddress restored"),
            (1, "claim of a restored IPAddress created"),
            (1, "restored IPAddress deleted"),
            (1, "pool renamed"),
            (1, "overlapping pool created"),
            (1, "overlapping pool deleted"),
        ]);
        let names: Vec<String> = self.desired.lock().unwrap().machines.keys().cloned().collect();
        let name = random.one_of(&names).cloned();
        match (operation, name) {
            ("machine created", _) if names.len() < MACHINES => self.want(Wanted::new(random)),
            ("machine created with network data that a person wrote", _) if names.len() < MACHINES => {
                let label = random.below(LABELS.len());
                let Some(address) = self.free_address(label == 2, random).await else { return };
                self.want(Wanted { own: Some(address), ..Wanted::with_label(label) });
            }
            ("machine created before its pool", _) if names.len() < MACHINES => self.want(Wanted::with_label(2)),
            ("machine with a record created before its pool", _) if names.len() < MACHINES => {
                let Some(address) = self.free_address(true, random).await else { return };
                self.want(Wanted { of: Of::Machine, record: Some(address), ..Wanted::with_label(2) });
            }
            ("pool created after its machines", _) => {
                let [first, last] = [LATE_ADDRESSES.start(), LATE_ADDRESSES.end()].map(|it| self.address(0, *it));
                self.create_pool(LATE, LATE, &[format!("{first}-{last}")]).await;
            }
            ("pool of earlier machines deleted", _) => {
                settle(async || self.pools.delete(LATE, &DeleteParams::default()).await).await;
            }
            ("guest reports false addresses", Some(name)) => {
                let Some(mut interface) = self.reported(&name, "lies").await else { return };
                let mut addresses = interface["ipAddresses"].as_array().cloned().unwrap_or_default();
                for _ in 0..=random.below(3) {
                    addresses.push(self.address(random.below(2), 10 + random.below(SIZES[2])).into());
                }
                interface["ipAddresses"] = addresses.into();
                self.report(&name, interface).await;
            }
            ("guest reboots", Some(name)) => {
                let Some(mut interface) = self.reported(&name, "is silent").await else { return };
                for member in ["ipAddress", "ipAddresses"] {
                    interface[member].take();
                }
                self.report(&name, interface).await;
            }
            ("agent of a guest is back", Some(name)) => self.report_drive(&name).await,
            ("guest changes its address", _) => {
                let desired = self.desired.lock().unwrap().machines.clone();
                let own: Vec<(&String, &Wanted)> = desired.iter().filter(|(_, it)| it.own.is_some()).collect();
                let Some((name, wanted)) = random.one_of(&own) else { return };
                let Some(address) = self.free_address(wanted.label == 2, random).await else { return };
                let Some(mut interface) = self.reported(name, "tells the truth").await else { return };
                interface["ipAddress"] = address.clone().into();
                interface["ipAddresses"] = json!([address]);
                self.report(name, interface).await;
            }
            ("IPAddress restored", _) => {
                if self.restored_addresses().await.len() >= RESTORED_ADDRESSES {
                    return;
                }
                let is_late = random.below(2) == 0;
                let Some(address) = self.free_address(is_late, random).await else { return };
                let pool = if is_late { LATE.to_owned() } else { self.desired.lock().unwrap().pools[0].clone() };
                self.restore_address(&address, &pool).await;
            }
            ("claim of a restored IPAddress created", _) => {
                let Some(restored) = random.one_of(&self.restored_addresses().await).cloned() else { return };
                let spec = json!({"poolRef": restored.data["spec"]["poolRef"]});
                let claim = object(CLAIM, json!({"metadata": {"name": restored.name_any()}, "spec": spec}));
                settle(async || self.claims.create(&PostParams::default(), &claim).await).await;
            }
            ("restored IPAddress deleted", _) => {
                let Some(restored) = random.one_of(&self.restored_addresses().await).cloned() else { return };
                self.delete(&self.addresses, &restored.name_any()).await;
            }
            ("machine deleted", Some(name)) => {
                self.desired.lock().unwrap().machines.remove(&name);
                self.delete_machine(&name).await;
            }
            ("machine recreated with its name", Some(name)) => {
                let wanted = Wanted::new(random);
                self.desired.lock().unwrap().machines.insert(name.clone(), wanted);
                self.delete_machine(&name).await;
            }
            ("VirtualMachine lost", Some(name)) => self.delete(&self.vms, &name).await,
            ("VirtualMachine deleted with orphans", Some(name)) => {
                self.orphan(&name).await;
            }
            ("machine deleted with orphans", Some(name)) => {
                self.desired.lock().unwrap().machines.remove(&name);
                self.orphan(&name).await;
                self.delete_machine(&name).await;
            }
            ("machine restarted", Some(name)) => self.delete(&self.instances, &name).await,
            ("guest outlives its instance", Some(name)) => {
                self.kubevirt.hold(&name);
                self.desired.lock().unwrap().endless.insert(name.clone());
                self.desired.lock().unwrap().machines.remove(&name);
                self.delete_machine(&name).await;
            }
            ("guest ends after its instance", _) => {
                let endless: Vec<String> = self.desired.lock().unwrap().endless.iter().cloned().collect();
                let Some(name) = random.one_of(&endless) else { return };
                self.end(name).await;
            }
            ("claim created", _) => {
                let (name, pool) = {
                    let mut desired = self.desired.lock().unwrap();
                    desired.claims += 1;
                    let pool =
                        [&desired.pools[0], &desired.pools[1], &"intruder".to_owned()][random.below(9) / 4].clone();
                    (format!("c{}", desired.claims % CLAIMS), pool)
                };
                let family = if random.below(2) == 0 { "IPv4" } else { "IPv6" };
                let metadata = if self.is_dual {
                    json!({"name": name, "annotations": {"ipam.glowplug.dev/family": family}})
                } else {
                    json!({"name": name})
                };
                let pool_ref = json!({"apiGroup": "ipam.glowplug.dev", "kind": "StaticIPPool", "name": pool});
                let claim = object(CLAIM, json!({"metadata": metadata, "spec": {"poolRef": pool_ref}}));
                settle(async || self.claims.create(&PostParams::default(), &claim).await).await;
            }
            ("claim deleted", _) => self.delete(&self.claims, &format!("c{}", random.below(CLAIMS))).await,
            ("pool resized", _) => {
                let (pool, size) = (random.below(2), SIZES[random.below(3)]);
                self.resize(pool, size).await;
            }
            ("gateway changed", _) => {
                let name = self.desired.lock().unwrap().pools[random.below(2)].clone();
                let gateway = GATEWAYS[random.below(2)];
                let patch = Patch::Merge(json!({"spec": {"gateway": [gateway]}}));
                settle(async || self.pools.patch(&name, &PatchParams::default(), &patch).await).await;
            }
            ("MAC address changed", Some(name)) if !self.has_mac_pool => {
                let interface = json!({"name": "iface1", "bridge": {}, "macAddress": next_mac()});
                let spec = json!({"domain": {"devices": {"interfaces": [interface]}}});
                self.patch_vm(&name, &json!({"spec": {"template": {"spec": spec}}})).await;
            }
            ("manifest applied again", Some(name)) => {
                let Some(manifest) = self.manifest(&name) else { return };
                let params = PatchParams::apply("kubectl").force();
                let _ = self.vms.patch(&name, &params, &Patch::Apply(manifest)).await;
            }
            ("template replaced", Some(name)) => {
                let Some(manifest) = self.manifest(&name) else { return };
                let Ok(mut vm) = self.vms.get(&name).await else { return };
                let (template, of_manifest) = (&mut vm.data["spec"]["template"], &manifest["spec"]["template"]);
                // A machine gets a MAC address of a MACPool only with the label in its template, so the labels of the
                // template stay.
                if self.has_mac_pool || random.below(2) == 0 {
                    template["spec"] = of_manifest["spec"].clone();
                } else {
                    *template = of_manifest.clone();
                }
                let _ = self.vms.replace(&name, &PostParams::default(), &vm).await;
            }
            // A copy with network data of a person would have the address of its source.
            ("machine cloned", Some(name)) if names.len() < MACHINES && !self.has_own_data(&name) => {
                let Ok(vm) = self.vms.get(&name).await else { return };
                let (clone, wanted) = (format!("{name}-c"), Wanted::like(&json!(vm.labels())));
                self.desired.lock().unwrap().machines.insert(clone.clone(), wanted);
                let _ = clone_machine(&self.vms, snapshot(&vm), &clone, false).await;
            }
            ("snapshot taken", Some(name)) if !self.has_own_data(&name) => {
                let Ok(vm) = self.vms.get(&name).await else { return };
                self.desired.lock().unwrap().snapshots.insert(name, (vm.uid(), snapshot(&vm)));
            }
            ("snapshot restored", _) => {
                let snapshots = self.desired.lock().unwrap().snapshots.clone();
                let names: Vec<&String> = snapshots.keys().collect();
                let Some(name) = random.one_of(&names) else { return };
                self.restore(name, &snapshots[*name]).await;
            }
            ("machine stopped", Some(name)) => {
                self.patch_vm(&name, &json!({"spec": {"runStrategy": "Halted"}})).await;
            }
            ("machine started", Some(name)) => self.patch_vm(&name, &json!({"spec": {"runStrategy": "Always"}})).await,
            ("pool renamed", _) => {
                let pool = random.below(2);
                let (before, after) = {
                    let mut desired = self.desired.lock().unwrap();
                    let before = desired.pools[pool].clone();
                    desired.names += 1;
                    desired.pools[pool] = format!("{}-{}", POOLS[pool], desired.names);
                    (before, desired.pools[pool].clone())
                };
                settle(async || self.pools.delete(&before, &DeleteParams::default()).await).await;
                self.create_pool(&after, POOLS[pool], &self.ranges(pool, SIZES[1])).await;
            }
            ("overlapping pool created", _) => {
                self.create_pool("intruder", "nobody", &self.ranges(random.below(2), SIZES[0])).await;
            }
            ("overlapping pool deleted", _) => {
                settle(async || self.pools.delete("intruder", &DeleteParams::default()).await).await;
            }
            _ => return,
        }
        count(operation);
    }

    /// Returns a random object of this namespace and a random address of its pools, which the hostile tenant names in
    /// its objects.
    pub async fn victim(&self, random: &mut Random) -> Option<Victim> {
        let kinds = [&self.machines[0], &self.machines[1], &self.vms, &self.instances, &self.claims];
        let objects = kinds[random.below(kinds.len())].list(&ListParams::default()).await.ok()?;
        let types = objects.types.clone();
        let mut object = random.one_of(&objects.items)?.clone();
        // The objects of a list do not contain their kind, so the kind comes from the kind of the list.
        object.types =
            Some(types).map(|types| TypeMeta { kind: types.kind.trim_end_matches("List").to_owned(), ..types });
        let address = format!("10.0.{}.{}", self.octet + random.below(2), 10 + random.below(SIZES[1]));
        Some(Victim { object, namespace: self.namespace.clone(), network: self.network.clone(), address })
    }

    /// Ends the work of the round in this namespace. Grows the pools, starts halted machines, ends the guests that
    /// outlive their instances, and deletes what the pools can never serve, such as machines of deleted pools.
    /// `unrecorded` are guests that have run since a restore with an address that their machine does not hold. They are
    /// restarted, so that they get the addresses of their machines.
    ///
    /// `minutes` is the number of full minutes of quiet time, or `None` between two full minutes. After each full
    /// minute, guests that wait for an earlier Secret are restarted. After the first minute, these guests are
    /// restarted, too: guests without an address, guests whose network data has another author than the template, and
    /// guests that use the lease of an earlier machine of their name. The last ones may have read the Secret of the
    /// earlier machine before a leader deleted this Secret. After the second minute, the function recreates the
    /// machines whose leases are still wrong: a VirtualMachine without a Secret may be that of a deleted
    /// KubevirtMachine.
    pub async fn settle(&self, unrecorded: &BTreeSet<String>, minutes: Option<u32>) {
        self.ensure_pools(SIZES[3]).await;
        let endless: Vec<String> = self.desired.lock().unwrap().endless.iter().cloned().collect();
        for name in endless {
            self.end(&name).await;
        }
        for vm in all(&self.vms).await.iter().filter(|vm| vm.data["spec"]["runStrategy"] == "Halted") {
            self.patch_vm(&vm.name_any(), &json!({"spec": {"runStrategy": "Always"}})).await;
        }
        let wanted = self.desired.lock().unwrap().machines.clone();
        for vm in all(&self.vms).await {
            let Some(wanted) = wanted.get(&vm.name_any()) else { continue };
            // A backup or a snapshot has restored an earlier machine of this name, with another pool or other network
            // data than wanted.
            let is_of_other_pool = vm.labels().get("pool").is_none_or(|label| label != LABELS[wanted.label]);
            let has_other_data = own_network_data(&vm.data["spec"]["template"]["spec"]) != wanted.own.is_some();
            if has_other_data || is_of_other_pool {
                count("machine deleted that is not the wanted one of its name");
                self.delete_machine(&vm.name_any()).await;
            }
        }
        for instance in all(&self.instances).await {
            let name = instance.name_any();
            let Some(vm) = settle(async || self.vms.get_opt(&name).await).await else { continue };
            let owner = instance.owner_references().first().map(|owner| owner.uid.clone());
            let refers_to_other = vm.as_ref().is_some_and(|vm| Hosted::reference(vm) != Hosted::reference(&instance));
            // The pod of the guest waits for an earlier Secret, and KubeVirt says that the machine requires a restart.
            let waits = minutes.is_some() && !is_running(&instance) && refers_to_other;
            if waits {
                count("guest restarted that waited for an earlier Secret");
            }
            // The network data in the template and in the running guest come from different authors: while the guest
            // ran, a person applied a manifest without that network data. An event says that such a guest must be
            // restarted.
            let has_other_data = vm.as_ref().is_some_and(|vm| {
                own_network_data(&vm.data["spec"]["template"]["spec"]) != own_network_data(&instance.data["spec"])
            });
            let is_mute = minutes == Some(1) && is_running(&instance) && addresses_of(&instance).is_empty();
            if instance.annotations().contains_key(AGENT) {
                self.report_drive(&name).await;
            }
            let is_of_pool = instance.labels().contains_key(NETWORK_DATA_LABEL) && !self.is_served(&name);
            // The pools that remain do not serve the machine, so the controller does not write the Secret for which the
            // guest waits.
            if is_of_pool && !is_running(&instance) && minutes.is_some() {
                self.delete_machine(&name).await;
                continue;
            }
            let is_orphan = owner.is_none() || vm.and_then(|vm| vm.uid()) != owner;
            let is_unrecorded = unrecorded.contains(&format!("{}/{name}", self.namespace));
            let must_restart = is_orphan || is_unrecorded || is_mute || waits || (has_other_data && minutes == Some(1));
            if instance.metadata.deletion_timestamp.is_none() && must_restart {
                self.delete(&self.instances, &name).await;
            }
        }
        for restored in self.restored_addresses().await {
            self.delete(&self.addresses, &restored.name_any()).await;
        }
        // Claims of restored IPAddresses are deleted even if their IPAddress is gone. They have no annotation for the
        // family, so a pool of two families cannot serve them.
        for claim in all(&self.claims).await.iter().filter(|claim| claim.name_any().starts_with(RESTORED_NAME)) {
            self.delete(&self.claims, &claim.name_any()).await;
        }
        {
            let mut desired = self.desired.lock().unwrap();
            let chosen = desired.machines.values().flat_map(|wanted| wanted.own.iter().chain(&wanted.record));
            desired.chosen = chosen.cloned().collect();
        }
        let pools = all(&self.pools).await;
        let stays =
            |name: &str| pools.iter().any(|pool| pool.name_any() == name && pool.metadata.deletion_timestamp.is_none());
        for claim in all(&self.claims).await {
            if !stays(claim.data["spec"]["poolRef"]["name"].as_str().unwrap_or_default()) {
                self.delete(&self.claims, &claim.name_any()).await;
            }
        }
        let mut uids = BTreeSet::new();
        for object in self.all_machines().await.iter().chain(&all(&self.vms).await).chain(&all(&self.claims).await) {
            uids.extend(object.uid());
        }
        for spec in readable(all(&self.leases).await) {
            let is_gone = spec.released.is_none() && !uids.contains(&spec.holder.uid);
            if is_gone && self.is_here(&spec.holder.namespace) {
                match minutes {
                    None | Some(0) => {}
                    Some(1) => self.delete(&self.instances, &spec.holder.name).await,
                    Some(_) => self.delete_machine(&spec.holder.name).await,
                }
            }
            let Some(pool) = spec.pool.strip_prefix(&format!("{}/", self.namespace)) else { continue };
            let of_machine = spec.network != "mac" && spec.released.is_none() && self.is_here(&spec.holder.namespace);
            if of_machine && !stays(pool) {
                self.delete_machine(&spec.holder.name).await;
            }
        }
    }

    /// Returns the problems that must not remain after the quiet time: machines and claims without their addresses,
    /// objects and leases that should be gone, and pools whose status differs from the leases.
    pub async fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let wanted = self.desired.lock().unwrap().machines.clone();
        let (machines, vms) = (self.all_machines().await, all(&self.vms).await);
        let (instances, claims) = (all(&self.instances).await, all(&self.claims).await);
        let (addresses, pools) = (all(&self.addresses).await, all(&self.pools).await);
        let leases = readable(all(&self.leases).await);
        let held: Vec<_> = leases.iter().filter(|spec| spec.released.is_none()).collect();
        let held: Vec<_> = held.into_iter().filter(|spec| self.is_here(&spec.holder.namespace)).collect();
        let uids: BTreeSet<String> =
            machines.iter().chain(&vms).chain(&claims).filter_map(|object| object.uid()).collect();
        let mut of_interface = BTreeSet::new();
        for spec in &held {
            let holder = &spec.holder;
            if !uids.contains(&holder.uid) {
                problems.push(format!("leaked lease {} of {} {}", spec.address, holder.name, holder.uid));
            }
            let family = spec.address.contains('.');
            // Two leaders may each store a lease of a MAC address for one interface. The VirtualMachine keeps both
            // leases.
            if spec.network != "mac" && !of_interface.insert((&holder.uid, &holder.interface, &spec.network, family)) {
                problems.push(format!("second lease {} of {} {}", spec.address, holder.name, holder.uid));
            }
        }
        let count_of = |name: &str| if self.is_dual { 2 } else { usize::from(!name.is_empty()) };
        for (name, wanted) in &wanted {
            let vm = vms.iter().find(|vm| vm.name_any() == *name);
            let Some(instance) = instances.iter().find(|instance| instance.name_any() == *name) else {
                problems.push(format!("machine {name} has no guest; VirtualMachine: {}", vm.is_some()));
                continue;
            };
            let ips = addresses_of(instance);
            if !wanted.is_served() {
                let phase = &instance.data["status"]["phase"];
                problems.extend((!is_running(instance)).then(|| format!("machine {name} of no pool is {phase}")));
                continue;
            }
            if !is_running(instance) || ips.len() != count_of(name) {
                let macs = [vm.map(macs_of), Some(macs_of(instance))];
                let phase = &instance.data["status"]["phase"];
                problems.push(format!(
                    "machine {name} is {phase} with {ips:?}; MAC addresses of VirtualMachine and guest: {macs:?}"
                ));
            }
            for ip in ips {
                if !held.iter().any(|spec| spec.holder.name == *name && same(&spec.address, ip)) {
                    problems.push(format!("machine {name} uses {ip} without a lease"));
                }
            }
        }
        for object in vms.iter().chain(&instances).chain(&machines) {
            if !wanted.contains_key(&object.name_any()) {
                problems.push(format!("an object of machine {} is left", object.name_any()));
            }
        }
        let read: BTreeSet<String> = vms.iter().chain(&instances).filter_map(Hosted::reference).collect();
        // Earlier Secrets of a machine stay until the guest reads the newest Secret.
        let is_outdated = |secret: &Secret| {
            let of_secret =
                |object: &&DynamicObject| secret.owner_references().iter().any(|owner| owner.name == object.name_any());
            let [vm, instance] = [&vms, &instances].map(|objects| objects.iter().find(of_secret));
            instance.is_some_and(|instance| vm.and_then(Hosted::reference) != Hosted::reference(instance))
        };
        for secret in all(&self.secrets).await {
            let is_ours = secret.annotations().contains_key("ipam.glowplug.dev/allocation");
            if is_ours && !read.contains(&secret.name_any()) && !is_outdated(&secret) {
                problems.push(format!("Secret {} is left", secret.name_any()));
            }
        }
        for claim in &claims {
            let name = claim.name_any();
            let ready = claim.data["status"]["conditions"].as_array().into_iter().flatten();
            let is_ready = ready.into_iter().any(|it| it["type"] == "Ready" && it["status"] == "True");
            let address = addresses.iter().find(|address| address.name_any() == name);
            if !is_ready || address.is_none() || claim.metadata.deletion_timestamp.is_some() {
                problems.push(format!("claim {name} is not served: {}", claim.data["status"]));
            }
        }
        for address in &addresses {
            let owner = address.owner_references().iter().find(|owner| owner.kind == "IPAddressClaim");
            let owner = owner.map(|owner| &owner.uid);
            if !claims.iter().any(|claim| claim.name_any() == address.name_any() && claim.uid().as_ref() == owner) {
                problems.push(format!("IPAddress {} has no claim", address.name_any()));
            }
        }
        for pool in &pools {
            let name = format!("{}/{}", self.namespace, pool.name_any());
            let counts = pool.status.as_ref().and_then(|status| status.ip_addresses).unwrap_or_default();
            let all = leases.iter().filter(|spec| spec.released.is_none());
            let all = all.filter(|spec| spec.network == pool.spec.network);
            let (inside, outside): (Vec<_>, Vec<_>) =
                all.partition(|spec| pool.spec.addresses.iter().any(|range| is_in(range, &spec.address)));
            let outside = outside.into_iter().filter(|spec| spec.pool == name).count();
            let [allocated, not_offered] = [counts.allocated, counts.outside].map(usize::try_from);
            if (allocated, not_offered) != (Ok(inside.len()), Ok(outside)) {
                let expected = format!("{} leases in its range and {outside} outside", inside.len());
                problems.push(format!("status of pool {name}: {counts:?}, expected {expected}"));
            }
            if pool.metadata.deletion_timestamp.is_some() {
                problems.push(format!("pool {name} is still being deleted"));
            }
        }
        problems.iter().map(|problem| format!("{}: {problem}", self.namespace)).collect()
    }

    /// Does the work of capk and of the garbage collector: creates the objects of the wanted machines, and deletes all
    /// other machines and the Secrets of deleted VirtualMachines.
    async fn provide(&self) {
        let secrets = all(&self.secrets).await;
        let (machines, vms) = (self.all_machines().await, all(&self.vms).await);
        for secret in secrets {
            let owner = secret.owner_references().iter().find(|owner| owner.kind == "VirtualMachine");
            let Some(owner) = owner else { continue };
            if !vms.iter().any(|vm| vm.uid().as_ref() == Some(&owner.uid)) {
                let now = settle(async || self.vms.get_opt(&owner.name).await).await;
                // The list of VirtualMachines may be older than this answer, so the answer decides.
                if now.is_some_and(|vm| vm.and_then(|vm| vm.uid()).as_ref() != Some(&owner.uid)) {
                    settle(async || self.secrets.delete(&secret.name_any(), &DeleteParams::default()).await).await;
                }
            }
        }
        for vm in &vms {
            if vm.metadata.deletion_timestamp.is_some() && vm.finalizers().iter().any(|finalizer| finalizer == ORPHAN) {
                self.end_orphaning(vm).await;
            }
        }
        let wanted = self.desired.lock().unwrap().machines.clone();
        let live = |object: &&DynamicObject| object.metadata.deletion_timestamp.is_none();
        for object in machines.iter().chain(&vms).filter(live) {
            if !wanted.contains_key(&object.name_any()) {
                self.delete_machine(&object.name_any()).await;
            }
        }
        for (name, wanted) in wanted {
            if wanted.of != Of::Nothing && !machines.iter().any(|machine| machine.name_any() == name) {
                let mut metadata = json!({"name": name, "labels": {"pool": LABELS[wanted.label]}});
                if let Some(address) = &wanted.record {
                    let address = json!([format!("{address}/16")]).to_string();
                    metadata["annotations"] = json!({(RECORD): address, (NETWORK): self.network});
                }
                let template = json!({"metadata": {"namespace": self.namespace}});
                let spec = json!({"virtualMachineTemplate": template});
                let machine = object(KUBEVIRT_MACHINE, json!({"metadata": metadata, "spec": spec}));
                let machines = &self.machines[usize::from(wanted.of == Of::MachineElsewhere)];
                settle(async || machines.create(&PostParams::default(), &machine).await).await;
            }
            if !vms.iter().any(|vm| vm.name_any() == name) {
                // The label comes from the KubevirtMachine, which may be older than the wanted machine of this name.
                let machine = machines.iter().find(|machine| machine.name_any() == name);
                let pool = machine.and_then(|machine| machine.labels().get("pool").cloned());
                let pool = pool.unwrap_or_else(|| LABELS[wanted.label].to_owned());
                let of = machine.and_then(DynamicObject::namespace).or_else(|| match wanted.of {
                    Of::Nothing => None,
                    Of::Machine => Some(self.namespace.clone()),
                    Of::MachineElsewhere => Some(format!("{}{ELSEWHERE}", self.namespace)),
                });
                let manifest = self.vm(&name, &pool, of, wanted.own.as_deref());
                let vm = serde_json::from_value(manifest.clone()).unwrap();
                self.desired.lock().unwrap().manifests.insert(name.clone(), manifest);
                settle(async || self.vms.create(&PostParams::default(), &vm).await).await;
            }
        }
    }

    fn want(&self, wanted: Wanted) {
        let mut desired = self.desired.lock().unwrap();
        desired.names += 1;
        // Names are used again after some time, for other machines.
        let name = format!("m{}", desired.names % (3 * MACHINES));
        desired.machines.entry(name).or_insert(wanted);
    }

    fn address(&self, pool: usize, last: usize) -> String {
        format!("10.0.{}.{last}", self.octet + pool)
    }

    /// Chooses a random address of the pools of this namespace. `None`: a lease has the address, or the address was
    /// chosen before. With `is_late`, the address is from the pool that is created after its machines.
    pub async fn free_address(&self, is_late: bool, random: &mut Random) -> Option<String> {
        let address = if is_late {
            self.address(0, LATE_ADDRESSES.start() + random.below(LATE_ADDRESSES.count()))
        } else {
            self.address(random.below(2), 10 + random.below(SIZES[2]))
        };
        let leases = self.leases.list(&ListParams::default()).await.ok()?;
        let is_held = leases.iter().any(|lease| lease.name_any() == name(&self.network, &address));
        (!is_held && self.desired.lock().unwrap().chosen.insert(address.clone())).then_some(address)
    }

    /// Returns what the guest of a running machine reports about its interface. Also notes in an annotation of the
    /// instance what the agent of the guest does from now on.
    async fn reported(&self, name: &str, agent: &str) -> Option<Value> {
        let instance = self.instances.get(name).await.ok().filter(is_running)?;
        let annotation = Patch::Merge(json!({
            "metadata": {"uid": instance.uid(), "annotations": {(AGENT): agent}},
        }));
        self.instances.patch(name, &PatchParams::default(), &annotation).await.ok()?;
        instance.data["status"]["interfaces"][0].as_object().cloned().map(Value::from)
    }

    async fn report(&self, name: &str, interface: Value) {
        let (kubevirt, name) = (Arc::clone(&self.kubevirt), name.to_owned());
        // The stand-in panics when the API server does not answer.
        let _ = tokio::spawn(async move { kubevirt.report(&name, &json!({"interfaces": [interface]})).await }).await;
    }

    async fn report_drive(&self, name: &str) {
        let (kubevirt, name) = (Arc::clone(&self.kubevirt), name.to_owned());
        let _ = tokio::spawn(async move { kubevirt.report_drive(&name).await }).await;
    }

    /// Returns the IPAddresses that were restored without their claim.
    async fn restored_addresses(&self) -> Vec<DynamicObject> {
        let addresses = self.addresses.list(&ListParams::default()).await.map(|list| list.items).unwrap_or_default();
        addresses.into_iter().filter(|address| address.annotations().contains_key(RESTORED)).collect()
    }

    /// Creates an IPAddress whose claim does not exist, as a restore does.
    async fn restore_address(&self, address: &str, pool: &str) {
        let name = format!("{RESTORED_NAME}{}", address.replace('.', "-"));
        let pool = json!({"apiGroup": "ipam.glowplug.dev", "kind": "StaticIPPool", "name": pool});
        let spec = json!({"claimRef": {"name": name}, "poolRef": pool, "address": address, "prefix": 16});
        let restored =
            object(ADDRESS, json!({"metadata": {"name": name, "annotations": {(RESTORED): ""}}, "spec": spec}));
        settle(async || self.addresses.create(&PostParams::default(), &restored).await).await;
    }

    fn has_own_data(&self, name: &str) -> bool {
        self.desired.lock().unwrap().machines.get(name).is_none_or(|wanted| wanted.own.is_some())
    }

    /// Returns whether one of the two permanent pools serves the wanted machine of this name.
    fn is_served(&self, name: &str) -> bool {
        self.desired.lock().unwrap().machines.get(name).is_some_and(Wanted::is_served)
    }

    /// Returns the manifest with which a VirtualMachine was created.
    fn manifest(&self, name: &str) -> Option<Value> {
        self.desired.lock().unwrap().manifests.get(name).cloned()
    }

    async fn patch_vm(&self, name: &str, patch: &Value) {
        settle(async || self.vms.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await).await;
    }

    /// Restores a snapshot, in place if the VirtualMachine exists.
    async fn restore(&self, name: &str, (uid, snapshot): &(Option<String>, Value)) {
        let Ok(vm) = self.vms.get_opt(name).await else { return };
        let mut snapshot = snapshot.clone();
        // Meanwhile, the pool may have allocated the MAC address of the snapshot to another machine.
        if self.has_mac_pool && vm.and_then(|vm| vm.uid()) != *uid {
            let interfaces = snapshot["spec"]["template"]["spec"]["domain"]["devices"]["interfaces"].as_array_mut();
            for interface in interfaces.into_iter().flatten().filter_map(Value::as_object_mut) {
                interface.remove("macAddress");
            }
        }
        let wanted = Wanted::like(&snapshot["metadata"]["labels"]);
        self.desired.lock().unwrap().machines.entry(name.to_owned()).or_insert(wanted);
        let _ = restore(&self.vms, &snapshot, name).await;
    }

    /// Returns a VirtualMachine, as capk or a person creates it.
    ///
    /// `of` is the namespace of its KubevirtMachine. `None`: a person, not capk, creates the VirtualMachine. `own` is
    /// the address in network data that a person wrote.
    fn vm(&self, name: &str, pool: &str, of: Option<String>, own: Option<&str>) -> Value {
        let mut of_template = json!({});
        if let Some(namespace) = of {
            of_template["capk.cluster.x-k8s.io/kubevirt-machine-name"] = name.into();
            of_template["capk.cluster.x-k8s.io/kubevirt-machine-namespace"] = namespace.into();
        }
        let mut labels = of_template.clone();
        labels["pool"] = pool.into();
        let mut interface = json!({"name": "iface1", "bridge": {}});
        if !self.has_mac_pool || own.is_some() {
            interface["macAddress"] = next_mac().into();
        }
        let mut source = json!({"userData": "#cloud-config"});
        if let Some(address) = own {
            let link = json!({"id": "eno101", "type": "phy", "ethernet_mac_address": interface["macAddress"]});
            let network = json!({"id": "n", "link": "eno101", "type": "ipv4", "ip_address": format!("{address}/16")});
            source["networkData"] = json!({"links": [link], "networks": [network]}).to_string().into();
        }
        json!({
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": {"name": name, "labels": labels},
            "spec": {"runStrategy": "Always", "template": {"metadata": {"labels": of_template}, "spec": {
                "domain": {"devices": {"interfaces": [interface]}},
                "networks": [{"name": "iface1", "multus": {"networkName": self.network}}],
                "volumes": [{"name": "cloudinitvolume", "cloudInitConfigDrive": source}],
            }}},
        })
    }

    async fn delete_machine(&self, name: &str) {
        for machines in &self.machines {
            self.delete(machines, name).await;
        }
        self.delete(&self.vms, name).await;
    }

    /// Deletes a VirtualMachine and keeps its guest, as `kubectl delete --cascade=orphan` does.
    async fn orphan(&self, name: &str) {
        let params = DeleteParams { propagation_policy: Some(PropagationPolicy::Orphan), ..DeleteParams::default() };
        settle(async || self.vms.delete(name, &params).await).await;
    }

    /// Ends the deletion of a VirtualMachine whose dependents become orphans, as the garbage collector does.
    async fn end_orphaning(&self, vm: &DynamicObject) {
        let name = vm.name_any();
        let orphaned = Patch::Merge(json!({"metadata": {"ownerReferences": null}}));
        let params = PatchParams::default();
        settle(async || self.instances.patch(&name, &params, &orphaned).await).await;
        if let Some(secret) = Hosted::reference(vm) {
            settle(async || self.secrets.patch(&secret, &params, &orphaned).await).await;
        }
        let kept: Vec<&String> = vm.finalizers().iter().filter(|finalizer| *finalizer != ORPHAN).collect();
        let released = Patch::Merge(json!({"metadata": {
            "resourceVersion": vm.resource_version(), "finalizers": kept,
        }}));
        settle(async || self.vms.patch(&name, &params, &released).await).await;
    }

    /// Returns the KubevirtMachines whose VirtualMachines are in this namespace.
    async fn all_machines(&self) -> Vec<DynamicObject> {
        let [here, elsewhere] = &self.machines;
        [all(here).await, all(elsewhere).await].concat()
    }

    /// Returns whether the VirtualMachines of holders in `namespace` are in the namespace of this place.
    fn is_here(&self, namespace: &str) -> bool {
        namespace.strip_suffix(ELSEWHERE).unwrap_or(namespace) == self.namespace
    }

    async fn delete(&self, api: &Api<DynamicObject>, name: &str) {
        settle(async || api.delete(name, &DeleteParams::default()).await).await;
    }

    async fn end(&self, name: &str) {
        let kubevirt = Arc::clone(&self.kubevirt);
        let of_task = name.to_owned();
        let ended = tokio::spawn(async move { kubevirt.end(&of_task).await }).await.is_ok();
        if ended {
            self.desired.lock().unwrap().endless.remove(name);
        }
    }

    /// Returns the ranges of a pool with this number of addresses.
    fn ranges(&self, pool: usize, size: usize) -> Vec<String> {
        let (octet, last) = (self.octet + pool, 9 + size);
        let mut ranges = vec![format!("10.0.{octet}.10-10.0.{octet}.{last}")];
        if self.is_dual {
            ranges.push(format!("fd00::{octet:x}:10-fd00::{octet:x}:{:x}", 15 + size));
        }
        ranges
    }

    async fn resize(&self, pool: usize, size: usize) {
        let name = self.desired.lock().unwrap().pools[pool].clone();
        let patch = Patch::Merge(json!({"spec": {"addresses": self.ranges(pool, size)}}));
        settle(async || self.pools.patch(&name, &PatchParams::default(), &patch).await).await;
    }

    /// Creates the missing pools, deletes all other pools, and gives each pool this number of addresses.
    async fn ensure_pools(&self, size: usize) {
        let names = self.desired.lock().unwrap().pools.clone();
        for pool in all(&self.pools).await {
            if !names.contains(&pool.name_any()) && pool.metadata.deletion_timestamp.is_none() {
                settle(async || self.pools.delete(&pool.name_any(), &DeleteParams::default()).await).await;
            }
        }
        for (pool, name) in names.iter().enumerate() {
            self.create_pool(name, POOLS[pool], &self.ranges(pool, size)).await;
            self.resize(pool, size).await;
        }
    }

    async fn create_pool(&self, name: &str, label: &str, ranges: &[String]) {
        let networks = ["10.0.0.0/16", "fd00::/64"].map(|cidr| MachineNetwork { cidr: cidr.to_owned() });
        let labels = [("pool".to_owned(), label.to_owned())].into();
        let spec = PoolSpec {
            network: self.network.clone(),
            addresses: ranges.to_vec(),
            gateway: vec![GATEWAYS[0].to_owned()],
            machine_network: networks.into(),
            machine_selector: Some(LabelSelector { match_labels: Some(labels), match_expressions: None }),
            ..PoolSpec::default()
        };
        let pool = StaticIPPool::new(name, spec);
        settle(async || self.pools.create(&PostParams::default(), &pool).await).await;
    }
}

/// A task that is stopped when this value is dropped.
struct Running(JoinHandle<()>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Returns whether an address is in a range. The range is written as `first-last`.
fn is_in(range: &str, address: &str) -> bool {
    let [first, last, address] = [range.split('-').next(), range.split('-').nth(1), Some(address)]
        .map(|text| text.unwrap().parse::<IpAddr>().unwrap());
    (first..=last).contains(&address)
}

/// Returns the contents of the leases that a program can read. Leases whose holder has a name of more than 253 bytes
/// are left out: no request can name such a holder.
pub fn readable(leases: Vec<DynamicObject>) -> Vec<LeaseSpec> {
    let specs = leases.into_iter().filter_map(|lease| Some(lease.try_parse::<StaticIPLease>().ok()?.spec));
    specs.filter(|spec| spec.holder.name.len() <= 253).collect()
}

/// Returns the IP addresses that a guest reports.
fn addresses_of(instance: &DynamicObject) -> Vec<&str> {
    let addresses = instance.data["status"]["interfaces"][0]["ipAddresses"].as_array();
    addresses.into_iter().flatten().filter_map(Value::as_str).collect()
}

/// Returns the MAC addresses that a VirtualMachine or an instance specifies.
fn macs_of(object: &DynamicObject) -> Vec<&Value> {
    let spec = object.data["spec"].get("template").map_or(&object.data["spec"], |template| &template["spec"]);
    let interfaces = spec["domain"]["devices"]["interfaces"].as_array();
    interfaces.into_iter().flatten().map(|interface| &interface["macAddress"]).collect()
}

fn same(a: &str, b: &str) -> bool {
    a.parse::<IpAddr>().ok() == b.parse().ok()
}

/// Lists the objects of `api`, and repeats the request until the API server answers.
pub async fn all<K: Clone + DeserializeOwned + std::fmt::Debug>(api: &Api<K>) -> Vec<K> {
    loop {
        match api.list(&ListParams::default()).await {
            Ok(list) => return list.items,
            Err(_) => sleep(Duration::from_millis(200)).await,
        }
    }
}
