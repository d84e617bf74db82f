//! A leader that runs in the test process, without HTTP servers and election, and helpers for tests with claims.

use std::convert::Infallible;
use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use glowplug_controller::cluster::object::Object;
use glowplug_controller::kinds::pool::{MachineNetwork, PoolSpec, StaticIPLease, StaticIPPool};
use glowplug_controller::metrics::Metrics;
use glowplug_controller::pools::facts::Scope;
use glowplug_controller::pools::selection_cache::SelectionCache;
use glowplug_controller::program::run::reconcile;
use kube::api::{
    ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams, PostParams,
};
use kube::runtime::wait::{Condition, await_condition};
use kube::{Api, Client, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tower::{BoxError, service_fn};

use super::Cluster;

/// Time limit for an awaited state. The limit is long enough for a machine that is busy with other work.
pub const PATIENCE: Duration = Duration::from_secs(180);

/// A leader. Dropping this value simulates a crash: requests that were sent may still be processed, and no further
/// request is sent.
pub struct Controller {
    is_ready: watch::Receiver<bool>,
    task: JoinHandle<()>,
    /// Whether the leader has crashed. The client of the leader checks this flag, because the thread of the registry
    /// ends only some time after the task.
    has_crashed: Arc<AtomicBool>,
}

/// A namespace with claims.
#[derive(Clone)]
pub struct Site {
    pub namespace: String,
    pub pools: Api<StaticIPPool>,
    pub leases: Api<StaticIPLease>,
    pub claims: Api<DynamicObject>,
    pub addresses: Api<DynamicObject>,
    pub clusters: Api<DynamicObject>,
}

// === impl Controller ===

impl Controller {
    /// Starts a leader that works in the namespace of a site.
    pub fn start(cluster: &Cluster, site: &Site) -> Self {
        Self::of(cluster, &site.namespace)
    }

    /// Starts a leader that works in one namespace, or in all namespaces if the name is empty.
    pub fn of(cluster: &Cluster, namespace: &str) -> Self {
        Self::with_scope(cluster.controller(), Scope { namespace: namespace.to_owned(), ..Scope::default() })
    }

    /// Starts a leader that uses this client and works in this scope.
    pub fn with_scope(client: Client, scope: Scope) -> Self {
        let has_crashed = Arc::new(AtomicBool::new(false));
        let client = until_crash(client, Arc::clone(&has_crashed));
        let selection = Arc::new(SelectionCache::new(client.clone(), scope.clone()));
        let running = Arc::clone(&selection);
        Self::lead(client, scope, selection, has_crashed, async move { running.run().await })
    }

    /// Starts a leader whose process already has a running cache of pools, as a replica has before it leads.
    pub fn with_selection(client: Client, selection: Arc<SelectionCache>) -> Self {
        let has_crashed = Arc::new(AtomicBool::new(false));
        let client = until_crash(client, Arc::clone(&has_crashed));
        Self::lead(client, Scope::default(), selection, has_crashed, std::future::pending())
    }

    fn lead(
        client: Client,
        scope: Scope,
        selection: Arc<SelectionCache>,
        has_crashed: Arc<AtomicBool>,
        cache: impl Future<Output = Infallible> + Send + 'static,
    ) -> Self {
        let (ready, is_ready) = watch::channel(false);
        let progress = watch::Sender::default();
        let task = tokio::spawn(async move {
            let metrics = Arc::new(Metrics::default());
            tokio::select! {
                never = cache => match never {},
                ended = reconcile(&client, &scope, &selection, &metrics, (&ready, &progress)) => match ended.unwrap() {},
            }
        });
        Self { is_ready, task, has_crashed }
    }

    /// Waits until the claims and machines that existed at the start are processed.
    pub async fn until_ready(&mut self) {
        let ready = timeout(PATIENCE, self.is_ready.wait_for(|ready| *ready)).await;
        drop(ready.expect("a ready leader in time").expect("a leader that still runs"));
    }

    /// Ends the leadership, as a lost election does. Tasks that must not stop halfway continue until the crash.
    pub fn lose_election(&self) {
        self.task.abort();
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        self.has_crashed.store(true, Ordering::SeqCst);
        self.task.abort();
    }
}

/// Returns a client that sends no request after the crash.
fn until_crash(client: Client, has_crashed: Arc<AtomicBool>) -> Client {
    let namespace = client.default_namespace().to_owned();
    let service = service_fn(move |request| {
        let (client, has_crashed) = (client.clone(), Arc::clone(&has_crashed));
        async move {
            match has_crashed.load(Ordering::SeqCst) {
                true => Err("the leader has crashed".into()),
                false => client.send(request).await.map_err(BoxError::from),
            }
        }
    });
    Client::new(service, namespace)
}

// === impl Site ===

impl Site {
    pub async fn new(cluster: &Cluster) -> Self {
        Self::of(cluster, &cluster.namespace().await, "v1beta2")
    }

    /// Returns the site of an existing namespace. Its objects of Cluster API are read and written in this version.
    pub fn of(cluster: &Cluster, namespace: &str, version: &str) -> Self {
        let api = |group: &str, kind: &str, plural: &str| {
            let kind = ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), plural);
            Api::namespaced_with(cluster.client(), namespace, &kind)
        };
        Self {
            namespace: namespace.to_owned(),
            pools: Api::namespaced(cluster.client(), namespace),
            leases: Api::all(cluster.client()),
            claims: api("ipam.cluster.x-k8s.io", "IPAddressClaim", "ipaddressclaims"),
            addresses: api("ipam.cluster.x-k8s.io", "IPAddress", "ipaddresses"),
            clusters: api("cluster.x-k8s.io", "Cluster", "clusters"),
        }
    }

    /// Returns the specification of a pool on the network of this namespace.
    pub fn spec(&self, addresses: &[&str]) -> PoolSpec {
        let networks = ["10.0.0.0/16", "fd00::/64"].map(|cidr| MachineNetwork { cidr: cidr.to_owned() });
        PoolSpec {
            network: format!("{}/vlan10", self.namespace),
            addresses: addresses.iter().map(|text| (*text).to_owned()).collect(),
            gateway: vec!["10.0.0.1".to_owned()],
            machine_network: networks.into(),
            ..PoolSpec::default()
        }
    }

    pub async fn pool(&self, name: &str, addresses: &[&str]) -> StaticIPPool {
        let pool = StaticIPPool::new(name, self.spec(addresses));
        self.pools.create(&PostParams::default(), &pool).await.unwrap()
    }

    /// Creates a claim on pool `p`, with `changes` merged into it.
    pub async fn claim(&self, name: &str, changes: &Value) -> DynamicObject {
        let mut claim = json!({
            "metadata": {"name": name},
            "spec": {"poolRef": {"apiGroup": "ipam.glowplug.dev", "kind": "StaticIPPool", "name": "p"}},
        });
        json_patch::merge(&mut claim, changes);
        create(&self.claims, claim).await
    }

    pub async fn delete(&self, name: &str) {
        self.claims.delete(name, &DeleteParams::default()).await.unwrap();
    }

    /// Waits until the claim has an address, and returns the address.
    pub async fn address_of(&self, name: &str) -> String {
        until(&self.claims, name, |claim| is_ready(claim, "True", "AddressAllocated")).await;
        let address = self.addresses.get(name).await.unwrap();
        address.data["spec"]["address"].as_str().unwrap().to_owned()
    }

    /// Waits until the claim has this reason for not being ready, and returns the message.
    pub async fn until_not_ready(&self, name: &str, reason: &str) -> String {
        let claim = until(&self.claims, name, |claim| is_ready(claim, "False", reason)).await;
        condition(&claim)["message"].as_str().unwrap().to_owned()
    }

    pub async fn until_gone(&self, name: &str) {
        wait(&self.claims, name, |claim: Option<&DynamicObject>| claim.is_none()).await;
    }

    /// Returns the held leases whose holders are in this namespace, as address and name of the holder, sorted.
    pub async fn held(&self) -> Vec<(String, String)> {
        let leases = self.leases.list(&ListParams::default()).await.unwrap().items.into_iter().map(|lease| lease.spec);
        let held = leases.filter(|lease| lease.released.is_none() && lease.holder.namespace == self.namespace);
        let mut held: Vec<_> = held.map(|lease| (lease.address, lease.holder.name)).collect();
        held.sort();
        held
    }

    /// Returns the IPAddresses of this namespace, as address and name, sorted.
    pub async fn given(&self) -> Vec<(String, String)> {
        let addresses = self.addresses.list(&ListParams::default()).await.unwrap().items.into_iter();
        let row =
            |address: DynamicObject| (address.data["spec"]["address"].as_str().unwrap().to_owned(), address.name_any());
        let mut rows: Vec<_> = addresses.map(row).collect();
        rows.sort();
        rows
    }

    /// Waits until no address is held and no IPAddress exists.
    pub async fn until_empty(&self) {
        let empty = async {
            while !self.held().await.is_empty() || !self.given().await.is_empty() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        if timeout(PATIENCE, empty).await.is_err() {
            panic!("left behind: {:?} {:?}", self.held().await, self.given().await);
        }
    }
}

/// Creates an object of a kind of Cluster API.
pub async fn create(api: &Api<DynamicObject>, mut object: Value) -> DynamicObject {
    // The path of the API is `/apis/<group>/<version>/namespaces/<namespace>/<plural>`.
    let path: Vec<&str> = api.resource_url().split('/').collect();
    let kind = match path[path.len() - 1] {
        "ipaddressclaims" => "IPAddressClaim",
        "ipaddresses" => "IPAddress",
        _ => "Cluster",
    };
    object["apiVersion"] = format!("{}/{}", path[2], path[3]).into();
    object["kind"] = kind.into();
    api.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap()
}

pub async fn merge<K: Clone + Debug + DeserializeOwned>(api: &Api<K>, name: &str, patch: &Value) -> K {
    api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap()
}

pub async fn merge_status<K: DeserializeOwned>(api: &Api<K>, name: &str, patch: &Value) -> K {
    api.patch_status(name, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap()
}

/// Changes the managed fields of an object: they get a time that the API server accepts and the client cannot parse.
pub async fn make_fields_unreadable(client: &Client, kind: &ApiResource, namespace: Option<&str>, name: &str) {
    let entry = json!({
        "manager": "m", "operation": "Update", "apiVersion": kind.api_version, "time": "9999-12-31T23:59:59Z",
        "fieldsType": "FieldsV1", "fieldsV1": {"f:metadata": {"f:annotations": {"f:a": {}}}},
    });
    let objects: Api<Object> = match namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, kind),
        None => Api::all_with(client.clone(), kind),
    };
    for metadata in [json!({"annotations": {"a": "b"}}), json!({"managedFields": [entry]})] {
        merge(&objects, name, &json!({"metadata": metadata})).await;
    }
    let unreadable: Api<DynamicObject> = match namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, kind),
        None => Api::all_with(client.clone(), kind),
    };
    unreadable.get(name).await.unwrap_err();
}

/// Waits until an object meets the condition.
pub async fn until(api: &Api<DynamicObject>, name: &str, is: impl Fn(&DynamicObject) -> bool) -> DynamicObject {
    wait(api, name, |object: Option<&DynamicObject>| object.is_some_and(&is)).await.unwrap()
}

/// Waits until an object, which may be absent, meets the condition.
pub async fn wait(api: &Api<DynamicObject>, name: &str, is: impl Condition<DynamicObject>) -> Option<DynamicObject> {
    match timeout(PATIENCE, await_condition(api.clone(), name, is)).await {
        Ok(object) => object.unwrap(),
        Err(_) => panic!("{name} is not as it should be: {:#?}", api.get_opt(name).await),
    }
}

/// Returns the condition `Ready` of a claim. Null: the claim does not have the condition.
pub fn condition(claim: &DynamicObject) -> Value {
    let conditions = claim.data["status"]["conditions"].as_array().cloned().unwrap_or_default();
    conditions.into_iter().find(|condition| condition["type"] == "Ready").unwrap_or_default()
}

fn is_ready(claim: &DynamicObject, status: &str, reason: &str) -> bool {
    let condition = condition(claim);
    condition["status"] == status && condition["reason"] == reason
}
