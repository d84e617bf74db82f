//! A hosted cluster with stand-ins for HyperShift, cluster-api-provider-kubevirt and KubeVirt. The stand-ins change
//! objects as the real programs do. A guest is represented by the drive from which it would boot.

pub mod copies;
pub mod definitions;
pub mod kubevirt;
pub mod mutator;
pub mod provider;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::{Stream, StreamExt};
use glowplug_controller::kinds::pool::{MachineNetwork, NodePoolRef, PoolSpec, StaticIPLease, StaticIPPool};
use k8s_openapi::api::core::v1::{Namespace, Secret};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::runtime::WatchStreamExt;
use kube::runtime::wait::await_condition;
use kube::runtime::watcher::{self, watcher};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use self::definitions::{
    HOSTED_CLUSTER, INSTANCE, KUBEVIRT_MACHINE, Members, NODE_POOL, VIRTUAL_MACHINE, definition, resource,
};
use self::kubevirt::{Drive, KubeVirt};
use self::provider::{FIRST_PAUSE, Provider, next_mac, object};
use super::controller::{PATIENCE, merge, until, wait};
use super::{Cluster, until_event};

/// User data of the machines in the scenarios.
pub const USER_DATA: &str = r#"{"ignition":{"version":"3.3.0"}}"#;

/// A hosted cluster with its machines. Dropping this value stops the stand-ins but keeps the objects.
pub struct Hosted {
    pub name: String,
    /// Namespace of the HostedCluster, its NodePools and their pools.
    pub clusters: String,
    /// Namespace of the machines.
    pub namespace: String,
    /// Network of the machines, as `namespace/name`.
    pub network: String,
    pub client: Client,
    pub pools: Api<StaticIPPool>,
    pub node_pools: Api<DynamicObject>,
    pub machines: Api<DynamicObject>,
    pub vms: Api<DynamicObject>,
    pub instances: Api<DynamicObject>,
    pub secrets: Api<Secret>,
    pub kubevirt: Arc<KubeVirt>,
    cloud_init: Arc<Mutex<Value>>,
    pause: Arc<Mutex<Duration>>,
    tasks: Vec<JoinHandle<()>>,
}

// === impl Hosted ===

impl Hosted {
    /// Starts a hosted cluster in a namespace that no other scenario uses.
    pub async fn new(cluster: &Cluster) -> Self {
        Self::start(cluster, &cluster.namespace().await, "c1", USER_DATA).await
    }

    /// Starts a hosted cluster with this name. Its machines have one interface, on a network with the same name.
    pub async fn start(cluster: &Cluster, clusters: &str, name: &str, user_data: &str) -> Self {
        let client = cluster.client();
        let namespace = format!("{clusters}-{name}");
        let label = json!({"hypershift.openshift.io/hosted-control-plane": "true"});
        let made = json!({"metadata": {"name": namespace, "labels": label}});
        let made: Namespace = serde_json::from_value(made).unwrap();
        Api::all(client.clone()).create(&PostParams::default(), &made).await.unwrap();
        let hosted_clusters: Api<DynamicObject> =
            Api::namespaced_with(client.clone(), clusters, &resource(HOSTED_CLUSTER));
        let hosted_cluster = json!({"metadata": {"name": name}, "spec": {"infraID": name}});
        hosted_clusters.create(&PostParams::default(), &object(HOSTED_CLUSTER, hosted_cluster)).await.unwrap();
        let mut hosted = Self::with_kubevirt(client, clusters, name, namespace);
        let shared = (Arc::clone(&hosted.cloud_init), Arc::clone(&hosted.pause));
        let provider = Provider::new(&hosted.client, (clusters, name), &hosted.namespace, user_data, shared);
        hosted.tasks.push(tokio::spawn(provider.run()));
        hosted
    }

    /// Starts only the stand-in for KubeVirt, in a namespace that no other scenario uses. The pools are in the same
    /// namespace.
    pub async fn plain(cluster: &Cluster) -> Self {
        let namespace = cluster.namespace().await;
        Self::with_kubevirt(cluster.client(), &namespace, "plain", namespace.clone())
    }

    fn with_kubevirt(client: Client, clusters: &str, name: &str, namespace: String) -> Self {
        let api = |namespace: &str, names| Api::namespaced_with(client.clone(), namespace, &resource(names));
        let kubevirt = Arc::new(KubeVirt::new(&client, &namespace));
        let running = Arc::clone(&kubevirt);
        Self {
            name: name.to_owned(),
            clusters: clusters.to_owned(),
            network: format!("{clusters}/{name}"),
            pools: Api::namespaced(client.clone(), clusters),
            node_pools: api(clusters, NODE_POOL),
            machines: api(&namespace, KUBEVIRT_MACHINE),
            vms: api(&namespace, VIRTUAL_MACHINE),
            instances: api(&namespace, INSTANCE),
            secrets: Api::namespaced(client.clone(), &namespace),
            namespace,
            client,
            kubevirt,
            cloud_init: Arc::default(),
            pause: Arc::new(Mutex::new(FIRST_PAUSE)),
            tasks: vec![tokio::spawn(async move { running.run().await })],
        }
    }

    /// Sets the `machineNetwork` of the HostedCluster.
    pub async fn set_machine_network(&self, cidrs: &[&str]) {
        let hosted_clusters: Api<DynamicObject> =
            Api::namespaced_with(self.client.clone(), &self.clusters, &resource(HOSTED_CLUSTER));
        let networks: Vec<Value> = cidrs.iter().map(|cidr| json!({"cidr": cidr})).collect();
        merge(&hosted_clusters, &self.name, &json!({"spec": {"networking": {"machineNetwork": networks}}})).await;
    }

    /// Sets or, with null, removes the `bootstrapNetworkConfig` of a NodePool.
    pub async fn configure(&self, node_pool: &str, config: &Value) {
        let kubevirt = json!({"bootstrapNetworkConfig": config});
        merge(&self.node_pools, node_pool, &json!({"spec": {"platform": {"kubevirt": kubevirt}}})).await;
    }

    /// Returns the specification of a pool for the machines of a NodePool.
    pub fn spec(&self, node_pool: &str, addresses: &[&str]) -> PoolSpec {
        let networks = ["10.0.0.0/16", "fd00::/64"].map(|cidr| MachineNetwork { cidr: cidr.to_owned() });
        PoolSpec {
            network: self.network.clone(),
            addresses: addresses.iter().map(|text| (*text).to_owned()).collect(),
            gateway: vec!["10.0.0.1".to_owned()],
            machine_network: networks.into(),
            node_pool_ref: Some(NodePoolRef { name: node_pool.to_owned() }),
            ..PoolSpec::default()
        }
    }

    /// Creates a pool for the NodePool with the same name.
    pub async fn pool(&self, name: &str, addresses: &[&str]) -> StaticIPPool {
        let pool = StaticIPPool::new(name, self.spec(name, addresses));
        self.pools.create(&PostParams::default(), &pool).await.unwrap()
    }

    /// Replaces the addresses of a pool.
    pub async fn resize(&self, name: &str, addresses: &[&str]) {
        merge(&self.pools, name, &json!({"spec": {"addresses": addresses}})).await;
    }

    /// Creates a NodePool on the network of this cluster, with `changes` merged into it.
    pub async fn node_pool(&self, name: &str, replicas: usize, changes: &Value) -> DynamicObject {
        let kubevirt = json!({"additionalNetworks": [{"name": self.network}], "attachDefaultNetwork": false});
        let platform = json!({"type": "KubeVirt", "kubevirt": kubevirt});
        let mut node_pool = json!({
            "metadata": {"name": name},
            "spec": {"clusterName": self.name, "replicas": replicas, "platform": platform},
        });
        json_patch::merge(&mut node_pool, changes);
        self.node_pools.create(&PostParams::default(), &object(NODE_POOL, node_pool)).await.unwrap()
    }

    /// Sets `spec.cloudInit` of the KubevirtMachines that are created from now on. Pull request 393 of capk adds this
    /// member.
    pub fn set_cloud_init(&self, cloud_init: Value) {
        *self.cloud_init.lock().unwrap() = cloud_init;
    }

    /// Makes capk try again only after a change of the machine. The real capk also tries after pauses of up to a
    /// minute, which may end before the change if the computer of the tests is busy.
    pub fn be_slow_to_retry(&self) {
        *self.pause.lock().unwrap() = Duration::from_secs(3600);
    }

    pub async fn scale(&self, name: &str, replicas: usize) {
        merge(&self.node_pools, name, &json!({"spec": {"replicas": replicas}})).await;
    }

    /// Waits until a guest runs, and returns its last drive.
    pub async fn until_running(&self, name: &str) -> Drive {
        until(&self.instances, name, is_running).await;
        self.kubevirt.drives(name).pop().unwrap()
    }

    /// Returns the name of the Secret with network data to which the VirtualMachine of a machine refers.
    pub async fn secret_name(&self, name: &str) -> String {
        Self::reference(&self.vms.get(name).await.unwrap()).expect("a reference")
    }

    /// Returns the Secret with the network data of a machine.
    pub async fn secret(&self, name: &str) -> Secret {
        self.secrets.get(&self.secret_name(name).await).await.unwrap()
    }

    /// Returns the name of the Secret with network data to which a VirtualMachine or an instance refers.
    pub fn reference(vm: &DynamicObject) -> Option<String> {
        let spec = vm.data["spec"].get("template").map_or(&vm.data["spec"], |template| &template["spec"]);
        let volumes = spec["volumes"].as_array()?;
        let kinds = ["cloudInitConfigDrive", "cloudInitNoCloud"];
        let mut sources =
            volumes.iter().flat_map(|volume| kinds.map(|kind| &volume[kind]["networkDataSecretRef"]["name"]));
        sources.find_map(|name| name.as_str().map(str::to_owned))
    }

    /// Waits until a guest runs, and returns its address.
    pub async fn address_of(&self, name: &str) -> String {
        let addresses = self.until_running(name).await.addresses();
        assert_eq!(addresses.len(), 1, "{name}: {addresses:?}");
        addresses[0].1.clone()
    }

    /// Restarts a guest, and returns its new drive.
    pub async fn restart(&self, name: &str) -> Drive {
        let before = self.instances.get(name).await.unwrap().uid();
        self.instances.delete(name, &DeleteParams::default()).await.unwrap();
        until(&self.instances, name, |instance| instance.uid() != before && is_running(instance)).await;
        self.kubevirt.drives(name).pop().unwrap()
    }

    /// Waits until the VirtualMachine of a machine is rejected, and returns the message that capk reports.
    pub async fn until_refused(&self, name: &str) -> String {
        let machine = until(&self.machines, name, |machine| provisioned(machine)["status"] == "False").await;
        let condition = provisioned(&machine);
        assert_eq!(condition["reason"], "VMCreateFailed");
        condition["message"].as_str().unwrap().to_owned()
    }

    /// Returns a VirtualMachine that capk did not create. Its interface is on the network of this cluster.
    pub fn vm(&self, name: &str, labels: &Value, drive: &Value) -> DynamicObject {
        let spec = json!({
            "domain": {"devices": {"interfaces": [{"name": "net1", "bridge": {}, "macAddress": next_mac()}]}},
            "networks": [{"name": "net1", "multus": {"networkName": self.network}}],
            "volumes": [{"name": "cloudinitvolume", "cloudInitConfigDrive": drive}],
        });
        let vm = json!({"metadata": {"name": name, "labels": labels}, "spec": {"template": {"spec": spec}}});
        object(VIRTUAL_MACHINE, vm)
    }

    /// Waits until the KubevirtMachine has an annotation, and returns the value.
    pub async fn until_annotated(&self, name: &str, annotation: &str) -> String {
        let machine = until(&self.machines, name, |machine| machine.annotations().contains_key(annotation)).await;
        machine.annotations()[annotation].clone()
    }

    /// Waits for an event about an object in the namespace of the machines, and returns the note of the event.
    pub async fn until_event(&self, name: &str, reason: &str) -> String {
        self.until_event_in(&self.namespace, name, reason).await
    }

    /// Waits for an event about an object of a namespace, and returns the note of the event.
    pub async fn until_event_in(&self, namespace: &str, name: &str, reason: &str) -> String {
        until_event(self.client.clone(), namespace, None, name, reason).await
    }

    /// Waits until the machines hold exactly this number of leases.
    pub async fn until_held(&self, count: usize) {
        poll(&format!("{count} held leases"), async || (self.held().await.len() == count).then_some(())).await;
    }

    /// Waits until a condition of a pool is true.
    pub async fn until_condition(&self, pool: &str, type_: &str) {
        self.until_status(pool, type_, "True").await;
    }

    /// Waits until a condition of a pool is false.
    pub async fn until_no_condition(&self, pool: &str, type_: &str) {
        self.until_status(pool, type_, "False").await;
    }

    async fn until_status(&self, pool: &str, type_: &str, status: &str) {
        let is = |pool: Option<&StaticIPPool>| {
            let conditions = pool.and_then(|pool| pool.status.as_ref()).map(|status| &status.conditions);
            conditions.into_iter().flatten().any(|condition| condition.type_ == type_ && condition.status == status)
        };
        if timeout(PATIENCE, await_condition(self.pools.clone(), pool, is)).await.is_err() {
            panic!("{type_} of {pool} is not {status}: {:#?}", self.pools.get(pool).await.unwrap().status);
        }
    }

    /// Deletes all leases of the network. A restore of a backup that is older than the leases has the same effect.
    pub async fn forget_leases(&self) {
        let leases: Api<StaticIPLease> = Api::all(self.client.clone());
        for lease in leases.list(&ListParams::default()).await.unwrap() {
            if lease.spec.network == self.network {
                leases.delete(&lease.name_any(), &DeleteParams::default()).await.unwrap();
            }
        }
    }

    /// Adds a status map to the CRD of KubevirtMachines, or removes the status map, and waits until the API server uses
    /// the CRD. A machine of this name must exist.
    pub async fn set_status_map(&self, name: &str, status_map: bool) {
        self.define(definition(KUBEVIRT_MACHINE, Members { status_map, ..Members::default() })).await;
        let dry_run = PatchParams { dry_run: true, ..PatchParams::default() };
        let map = Patch::Merge(json!({"status": {"allocatedBootstrapAddresses": {"probe": []}}}));
        poll("the definition with its new members", async || {
            let machine = self.machines.patch_status(name, &dry_run, &map).await.unwrap();
            let has_map = !machine.data["status"]["allocatedBootstrapAddresses"].is_null();
            (has_map == status_map).then_some(())
        })
        .await;
    }

    /// Adds `bootstrapNetworkConfig` to the CRD of NodePools, and waits until the API server uses the CRD. A NodePool
    /// of this name must exist.
    pub async fn set_bootstrap_network_config(&self, name: &str) {
        self.define(definition(NODE_POOL, Members { bootstrap_network_config: true, ..Members::default() })).await;
        let dry_run = PatchParams { dry_run: true, ..PatchParams::default() };
        let config = json!({"network": "probe", "addresses": [], "nameservers": [], "gateway": []});
        let probe = Patch::Merge(json!({"spec": {"platform": {"kubevirt": {"bootstrapNetworkConfig": config}}}}));
        poll("the definition with its new members", async || {
            let node_pool = self.node_pools.patch(name, &dry_run, &probe).await.unwrap();
            let config = &node_pool.data["spec"]["platform"]["kubevirt"]["bootstrapNetworkConfig"];
            (config["network"] == "probe").then_some(())
        })
        .await;
    }

    async fn define(&self, new: CustomResourceDefinition) {
        let definitions: Api<CustomResourceDefinition> = Api::all(self.client.clone());
        merge(&definitions, &new.metadata.name.unwrap(), &json!({"spec": {"versions": new.spec.versions}})).await;
    }

    pub async fn delete(&self, name: &str) {
        self.machines.delete(name, &DeleteParams::default()).await.unwrap();
    }

    /// Waits until an object is gone.
    pub async fn until_gone(&self, api: &Api<DynamicObject>, name: &str) {
        wait(api, name, |object: Option<&DynamicObject>| object.is_none()).await;
    }

    pub async fn until_secret(&self, name: &str) -> Secret {
        poll(name, async || self.secrets.get_opt(name).await.unwrap()).await
    }

    pub async fn until_no_secret(&self, name: &str) {
        let is_gone = async || self.secrets.get_opt(name).await.unwrap().is_none().then_some(());
        poll(&format!("the end of Secret {name}"), is_gone).await;
    }

    /// Returns the held leases of the network as address and name of the holder, sorted.
    pub async fn held(&self) -> Vec<(String, String)> {
        let leases: Api<StaticIPLease> = Api::all(self.client.clone());
        let leases = leases.list(&ListParams::default()).await.unwrap().items.into_iter().map(|lease| lease.spec);
        let held = leases.filter(|lease| lease.released.is_none() && lease.network == self.network);
        let mut held: Vec<_> = held.map(|lease| (lease.address, lease.holder.name)).collect();
        held.sort();
        held
    }
}

impl Drop for Hosted {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

/// Returns whether the guest of an instance is running.
pub fn is_running(instance: &DynamicObject) -> bool {
    instance.data["status"]["phase"] == "Running"
}

/// Returns the condition of a KubevirtMachine about its VirtualMachine. Null: the KubevirtMachine does not have the
/// condition.
pub fn provisioned(machine: &DynamicObject) -> Value {
    let conditions = machine.data["status"]["conditions"].as_array().cloned().unwrap_or_default();
    conditions.into_iter().find(|condition| condition["type"] == "VMProvisioned").unwrap_or_default()
}

/// Repeats `ask` until it returns a value. `what` is the name of this value in the failure message.
pub async fn poll<T>(what: &str, mut ask: impl AsyncFnMut() -> Option<T>) -> T {
    let answer = async {
        loop {
            match ask().await {
                Some(answer) => return answer,
                None => sleep(Duration::from_millis(20)).await,
            }
        }
    };
    timeout(PATIENCE, answer).await.unwrap_or_else(|_| panic!("missing: {what}"))
}

/// Returns a stream of the existing objects of `api`, and then of each object that changes.
pub fn changed(api: Api<DynamicObject>) -> impl Stream<Item = DynamicObject> + Send {
    let events = watcher(api, watcher::Config::default()).default_backoff();
    events.filter_map(async |event| match event {
        Ok(watcher::Event::InitApply(object) | watcher::Event::Apply(object) | watcher::Event::Delete(object)) => {
            Some(object)
        }
        _ => None,
    })
}

/// Panics when a write fails, unless the write failed because the object is gone.
pub fn unless_gone<T>(result: kube::Result<T>) {
    match result {
        Ok(_) => {}
        Err(kube::Error::Api(status)) if status.code == 404 => {}
        Err(error) => panic!("{error}"),
    }
}
