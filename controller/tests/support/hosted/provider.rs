//! Stand-in for HyperShift and cluster-api-provider-kubevirt ("capk"): creates KubevirtMachines and VirtualMachines for
//! NodePools.
//!
//! A NodePool gets as many KubevirtMachines as it has replicas. A KubevirtMachine gets a Secret with its user data, and
//! a VirtualMachine of the same name. The stand-in follows these rules of the real programs:
//!
//! - The stand-in works on up to ten KubevirtMachines at the same time. So a webhook may see a burst of VirtualMachines
//!   before any of them has an address.
//! - When a VirtualMachine is rejected, the KubevirtMachine gets a condition. Each change of the KubevirtMachine causes
//!   a new attempt. Without a change, the first pause between two attempts is 5 milliseconds. Each further pause is
//!   twice as long, up to a minute.
//! - All machines of a NodePool share one Secret with user data. The deletion of each machine deletes this Secret. The
//!   Secret is created again while other machines exist.
//! - A VirtualMachine that is gone is created again for the same KubevirtMachine.
//! - A deleted KubevirtMachine is gone as soon as the deletion of its VirtualMachine is requested, so the guest may
//!   still run.
//! - Interfaces get MAC addresses when the VirtualMachine is created, as from KubeMacPool.
//! - `spec.cloudInit` of a KubevirtMachine, from pull request 393 of capk, sets the format of the cloud-init volume and
//!   a Secret with network data. capk copies the network data into the Secret with the user data. In this stand-in,
//!   such a machine has a Secret of its own.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::stream::{self, FuturesUnordered, StreamExt};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::definitions::{KUBEVIRT_MACHINE, NODE_POOL, VIRTUAL_MACHINE, resource};
use super::{changed, unless_gone};

/// Number of KubevirtMachines that capk works on at once.
const WORKERS: usize = 10;
/// Pause of capk before the second attempt for a machine.
pub const FIRST_PAUSE: Duration = Duration::from_millis(5);
/// Longest pause between two attempts: capk processes every machine again once a minute.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
const FINALIZER: &str = "kubevirtmachine.infrastructure.cluster.x-k8s.io";
/// Annotation of a KubevirtMachine with its NodePool.
const POOL_ANNOTATION: &str = "hypershift.openshift.io/nodePool";
/// Annotation of a NodePool with a JSON patch for its VirtualMachines.
pub const PATCH_ANNOTATION: &str = "hypershift.openshift.io/kubevirt-vm-jsonpatch";

/// The stand-in for HyperShift and capk in one hosted cluster.
pub struct Provider {
    cluster: String,
    namespace: String,
    user_data: String,
    node_pools: Api<DynamicObject>,
    machines: Api<DynamicObject>,
    vms: Api<DynamicObject>,
    secrets: Api<Secret>,
    /// `spec.cloudInit` of the KubevirtMachines that are created from now on. Null: such a KubevirtMachine gets no
    /// `spec.cloudInit`.
    cloud_init: Arc<Mutex<Value>>,
    /// Pause before the second attempt for a machine. Each further pause is twice as long.
    pause: Arc<Mutex<Duration>>,
    /// Number of the next machine of each NodePool, so that no name is used twice.
    next: Mutex<BTreeMap<String, usize>>,
}

/// An object that has changed, by name.
enum Changed {
    NodePool(String),
    Machine(String),
}

// === impl Provider ===

impl Provider {
    /// Creates the stand-in for the hosted cluster `clusters/cluster`, whose machines are in `namespace` and get
    /// `user_data` and `cloud_init`.
    pub fn new(
        client: &Client,
        (clusters, cluster): (&str, &str),
        namespace: &str,
        user_data: &str,
        (cloud_init, pause): (Arc<Mutex<Value>>, Arc<Mutex<Duration>>),
    ) -> Self {
        let api = |namespace, names| Api::namespaced_with(client.clone(), namespace, &resource(names));
        Self {
            cluster: cluster.to_owned(),
            namespace: namespace.to_owned(),
            user_data: user_data.to_owned(),
            node_pools: api(clusters, NODE_POOL),
            machines: api(namespace, KUBEVIRT_MACHINE),
            vms: api(namespace, VIRTUAL_MACHINE),
            secrets: Api::namespaced(client.clone(), namespace),
            cloud_init,
            pause,
            next: Mutex::default(),
        }
    }

    /// Runs the stand-in until the future is dropped.
    pub async fn run(self) {
        // A VirtualMachine and its KubevirtMachine have the same name, so a change of either one is a change of this
        // machine.
        let changes = [
            changed(self.node_pools.clone()).map(|object| Changed::NodePool(object.name_any())).boxed(),
            changed(self.machines.clone()).map(|object| Changed::Machine(object.name_any())).boxed(),
            changed(self.vms.clone()).map(|object| Changed::Machine(object.name_any())).boxed(),
        ];
        let mut changes = stream::select_all(changes);
        let (mut running, mut retries) = (FuturesUnordered::new(), FuturesUnordered::new());
        let (mut waiting, mut busy): (BTreeSet<String>, BTreeSet<String>) = Default::default();
        let mut pauses: BTreeMap<String, Duration> = BTreeMap::new();
        loop {
            while let Some(name) = waiting.iter().find(|name| !busy.contains(*name)).cloned()
                && running.len() < WORKERS
            {
                waiting.remove(&name);
                busy.insert(name.clone());
                let this = &self;
                running.push(async move { (this.provide(&name).await, name) });
            }
            tokio::select! {
                Some(change) = changes.next() => match change {
                    Changed::NodePool(name) => self.scale(&name).await,
                    Changed::Machine(name) => drop(waiting.insert(name)),
                },
                Some((is_refused, name)) = running.next() => {
                    busy.remove(&name);
                    // The name of a machine is the name of its NodePool, a hyphen and a number.
                    if let Some((pool, _)) = name.rsplit_once('-') {
                        self.scale(pool).await;
                    }
                    if is_refused {
                        let pause = pauses.entry(name.clone()).or_insert_with(|| *self.pause.lock().unwrap());
                        let now = *pause;
                        *pause = (now * 2).clamp(now, LONGEST_PAUSE.max(now));
                        retries.push(async move { (sleep(now).await, name).1 });
                    } else {
                        pauses.remove(&name);
                    }
                }
                Some(name) = retries.next() => drop(waiting.insert(name)),
            }
        }
    }

    /// Creates and deletes KubevirtMachines of a NodePool.
    async fn scale(&self, pool: &str) {
        let node_pool = self.node_pools.get_opt(pool).await.unwrap();
        let node_pool = node_pool.filter(|node_pool| node_pool.data["spec"]["clusterName"] == self.cluster);
        let replicas = node_pool.as_ref().map_or(0, |pool| pool.data["spec"]["replicas"].as_u64().unwrap_or_default());
        let replicas = usize::try_from(replicas).unwrap();
        let mut machines: Vec<usize> = self.machines_of(pool).await.iter().map(number).collect();
        machines.sort_unstable();
        for number in machines.iter().skip(replicas) {
            unless_gone(self.machines.delete(&format!("{pool}-{number}"), &DeleteParams::default()).await);
        }
        let Some(node_pool) = node_pool else { return };
        for _ in machines.len()..replicas {
            let name = {
                let mut next = self.next.lock().unwrap();
                let next = next.entry(pool.to_owned()).or_default();
                *next += 1;
                format!("{pool}-{}", *next - 1)
            };
            let machine = self.machine(&node_pool, &name);
            self.machines.create(&PostParams::default(), &machine).await.unwrap();
        }
    }

    /// Returns a KubevirtMachine of a NodePool, as HyperShift writes it.
    fn machine(&self, node_pool: &DynamicObject, name: &str) -> DynamicObject {
        let kubevirt = &node_pool.data["spec"]["platform"]["kubevirt"];
        let additional = kubevirt["additionalNetworks"].as_array().cloned().unwrap_or_default();
        let mut networks = Vec::new();
        if kubevirt["attachDefaultNetwork"] != false {
            networks.push(json!({"name": "default", "pod": {}}));
        }
        for (index, network) in additional.iter().enumerate() {
            let network = network["name"].as_str().unwrap();
            let interface = format!("iface{}_{}", index + 1, network.replace('/', "-"));
            networks.push(json!({"name": interface, "multus": {"networkName": network}}));
        }
        let interfaces = networks.iter().map(|network| json!({"name": network["name"], "bridge": {}}));
        let labels = json!({
            "hypershift.openshift.io/infra-id": self.cluster,
            "hypershift.openshift.io/nodepool-name": node_pool.name_any(),
        });
        let mut template = json!({
            "metadata": {"labels": labels},
            "spec": {
                "runStrategy": "Always",
                "template": {
                    "metadata": {"labels": labels},
                    "spec": {
                        "domain": {"devices": {
                            "disks": [{"name": "rhcos", "disk": {"bus": "virtio"}}],
                            "interfaces": interfaces.collect::<Vec<_>>(),
                        }},
                        "networks": networks,
                        "volumes": [{"name": "rhcos", "dataVolume": {"name": "rhcos"}}],
                    },
                },
            },
        });
        if let Some(patch) = node_pool.annotations().get(PATCH_ANNOTATION) {
            let patch: json_patch::Patch = serde_json::from_str(patch).unwrap();
            json_patch::patch(&mut template, &patch).unwrap();
        }
        let pool = format!("{}/{}", node_pool.namespace().unwrap(), node_pool.name_any());
        let mut spec = json!({"virtualMachineTemplate": template});
        let cloud_init = self.cloud_init.lock().unwrap().clone();
        if !cloud_init.is_null() {
            spec["cloudInit"] = cloud_init;
        }
        object(
            KUBEVIRT_MACHINE,
            json!({
                "metadata": {
                    "name": name, "namespace": self.namespace, "finalizers": [FINALIZER],
                    "labels": {"cluster.x-k8s.io/cluster-name": self.cluster}, "annotations": {POOL_ANNOTATION: pool},
                },
                "spec": spec,
            }),
        )
    }

    /// Returns the machines of a NodePool that are not being deleted.
    async fn machines_of(&self, pool: &str) -> Vec<DynamicObject> {
        let machines = self.machines.list(&ListParams::default()).await.unwrap().items.into_iter();
        let is_meant =
            |machine: &DynamicObject| pool_of(machine) == pool && machine.metadata.deletion_timestamp.is_none();
        machines.filter(is_meant).collect()
    }

    /// Creates or deletes the VirtualMachine of a KubevirtMachine. Returns whether another attempt is necessary.
    async fn provide(&self, name: &str) -> bool {
        let Some(machine) = self.machines.get_opt(name).await.unwrap() else { return false };
        if machine.metadata.deletion_timestamp.is_some() {
            unless_gone(self.vms.delete(name, &DeleteParams::default()).await);
            unless_gone(self.secrets.delete(&user_data_of(&machine), &DeleteParams::default()).await);
            if let Some(other) = self.machines_of(pool_of(&machine)).await.first() {
                self.create_user_data(other).await;
            }
            let released = Patch::Merge(json!({"metadata": {"finalizers": null}}));
            unless_gone(self.machines.patch(name, &PatchParams::default(), &released).await);
            return false;
        }
        if self.vms.get_opt(name).await.unwrap().is_some() {
            return false;
        }
        if let Some(condition) = self.create_user_data(&machine).await {
            self.set_condition(&machine, condition).await;
            return true;
        }
        let (condition, is_refused) = match self.vms.create(&PostParams::default(), &self.vm(&machine)).await {
            Ok(_) => (json!({"type": "VMProvisioned", "status": "True"}), false),
            Err(kube::Error::Api(status)) => {
                let message = format!("Failed vm creation: {}", status.message);
                let condition = json!({
                    "type": "VMProvisioned", "status": "False", "reason": "VMCreateFailed", "severity": "Error",
                    "message": message,
                });
                (condition, true)
            }
            Err(error) => panic!("{name}: {error}"),
        };
        self.set_condition(&machine, condition).await;
        is_refused
    }

    /// Creates the Secret with the user data of a machine, unless the Secret exists. Returns a condition if the network
    /// data of the machine is missing.
    async fn create_user_data(&self, machine: &DynamicObject) -> Option<Value> {
        let mut data = json!({"userdata": ByteString(self.user_data.clone().into_bytes())});
        if let Some(name) = machine.data["spec"]["cloudInit"]["networkDataSecretRef"]["name"].as_str() {
            let secret = self.secrets.get_opt(name).await.unwrap();
            let mut given = secret.and_then(|secret| secret.data).unwrap_or_default();
            let Some(document) = ["networkdata", "networkData"].into_iter().find_map(|key| given.remove(key)) else {
                let message = format!("Secret {name:?} has no network data");
                return Some(json!({
                    "type": "VMProvisioned", "status": "False", "reason": "WaitingForNetworkData", "message": message,
                }));
            };
            data["networkdata"] = serde_json::to_value(document).unwrap();
        }
        let secret = json!({"metadata": {"name": user_data_of(machine)}, "data": data});
        let secret: Secret = serde_json::from_value(secret).unwrap();
        match self.secrets.create(&PostParams::default(), &secret).await {
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            result => drop(result.unwrap()),
        }
        None
    }

    /// Returns the VirtualMachine of a KubevirtMachine, as capk writes it.
    fn vm(&self, machine: &DynamicObject) -> DynamicObject {
        let name = machine.name_any();
        let mut vm = machine.data["spec"]["virtualMachineTemplate"].clone();
        vm["metadata"]["name"] = name.clone().into();
        let labels = &mut vm["metadata"]["labels"];
        labels["cluster.x-k8s.io/cluster-name"] = self.cluster.clone().into();
        labels["cluster.x-k8s.io/role"] = "worker".into();
        let label = |labels: &mut Value| {
            labels["capk.cluster.x-k8s.io/kubevirt-machine-name"] = name.clone().into();
            labels["capk.cluster.x-k8s.io/kubevirt-machine-namespace"] = self.namespace.clone().into();
        };
        label(&mut vm["metadata"]["labels"]);
        label(&mut vm["spec"]["template"]["metadata"]["labels"]);
        let spec = &mut vm["spec"]["template"]["spec"];
        let cloud_init = &machine.data["spec"]["cloudInit"];
        let secret = json!({"name": user_data_of(machine)});
        let mut source = json!({"secretRef": secret});
        if cloud_init["networkDataSecretRef"].is_object() {
            source["networkDataSecretRef"] = secret;
        }
        let kind = if cloud_init["dataSource"] == "noCloud" { "cloudInitNoCloud" } else { "cloudInitConfigDrive" };
        spec["volumes"].as_array_mut().unwrap().push(json!({"name": "cloudinitvolume", (kind): source}));
        let devices = &mut spec["domain"]["devices"];
        devices["disks"].as_array_mut().unwrap().push(json!({"name": "cloudinitvolume", "disk": {"bus": "virtio"}}));
        for interface in devices["interfaces"].as_array_mut().unwrap() {
            if interface.get("macAddress").is_none() {
                interface["macAddress"] = next_mac().into();
            }
        }
        object(VIRTUAL_MACHINE, vm)
    }

    async fn set_condition(&self, machine: &DynamicObject, mut condition: Value) {
        let mut conditions = machine.data["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let before = conditions.iter().position(|other| other["type"] == condition["type"]);
        if let Some(index) = before {
            condition["lastTransitionTime"] = conditions[index]["lastTransitionTime"].clone();
            if conditions[index] == condition {
                return;
            }
            conditions.remove(index);
        }
        condition["lastTransitionTime"] = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string().into();
        conditions.push(condition);
        let patch = Patch::Merge(json!({"status": {"conditions": conditions}}));
        unless_gone(self.machines.patch_status(&machine.name_any(), &PatchParams::default(), &patch).await);
    }
}

/// Returns a MAC address that no other interface has, as KubeMacPool does.
pub fn next_mac() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let [a, b, c, d] = COUNT.fetch_add(1, Ordering::Relaxed).to_be_bytes();
    format!("02:00:{a:02x}:{b:02x}:{c:02x}:{d:02x}")
}

/// Converts JSON to an object of a kind.
pub fn object(names: super::definitions::Names, mut object: Value) -> DynamicObject {
    let (group, version, kind, _, _) = names;
    object["apiVersion"] = format!("{group}/{version}").into();
    object["kind"] = kind.into();
    serde_json::from_value(object).unwrap()
}

/// Returns the name of the NodePool of a machine.
fn pool_of(machine: &DynamicObject) -> &str {
    let owner = machine.annotations().get(POOL_ANNOTATION).and_then(|owner| owner.split_once('/'));
    owner.map(|(_, name)| name).unwrap_or_default()
}

/// Returns the name of the Secret with the user data of a machine.
fn user_data_of(machine: &DynamicObject) -> String {
    match machine.data["spec"]["cloudInit"]["networkDataSecretRef"].is_object() {
        true => format!("{}-userdata", machine.name_any()),
        false => format!("user-data-{}-userdata", pool_of(machine)),
    }
}

/// Returns the number at the end of the name of a machine.
fn number(machine: &DynamicObject) -> usize {
    machine.name_any().rsplit_once('-').unwrap().1.parse().unwrap()
}
