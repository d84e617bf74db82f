//! Repeats the requests that other programs send to allocate one address, and measures them for a comparison with the
//! controller.
//!
//! `docs/measurements.md` lists these requests. They were found by reading the source code of each program. The
//! allocations run one after another, because each of these programs allocates one address of a pool at a time. The
//! choice of an address is not measured, because it needs no request, and much less time.

use std::time::{Duration, Instant};

use futures::{StreamExt as _, TryStreamExt as _, future};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, watcher};
use kube::{Api, ResourceExt as _};
use serde_json::{Map, Value, json};
use tokio::sync::Mutex;

use super::support::Cluster;
use super::support::controller::{Controller, Site, condition, create};
use super::support::hosted::definitions::{Names, resource};
use super::support::hosted::provider::object;
use super::support::real::RealServer;
use super::{etcd, milliseconds, percentile, row};

/// Number of allocations in one measurement.
const COUNT: usize = 20;
/// Numbers of addresses that a pool has already allocated. With 50,000 machines in 200 pools, a pool has allocated 250.
const ALLOCATED: [usize; 3] = [250, 1_000, 10_000];

const IP_POOL: Names = ("whereabouts.cni.cncf.io", "v1alpha1", "IPPool", "ippools", false);
const RESERVATION: Names =
    ("whereabouts.cni.cncf.io", "v1alpha1", "OverlappingRangeIPReservation", "overlappingrangeipreservations", false);
const METAL3_POOL: Names = ("ipam.metal3.io", "v1alpha1", "IPPool", "ippools", true);

pub(super) async fn measure(server: &RealServer, cluster: &Cluster) {
    let text = json!({"type": "string"});
    let map = |values: &Value| json!({"type": "object", "additionalProperties": values});
    let members = |members: Value| json!({"type": "object", "properties": members});
    let allocation = members(json!({"id": text, "podref": text, "ifname": text}));
    let range = members(json!({"range": text, "allocations": map(&allocation)}));
    cluster.define(&definition(IP_POOL, &members(json!({"spec": range})))).await;
    cluster.define(&definition(RESERVATION, &members(json!({"spec": allocation})))).await;
    let status = members(json!({"indexes": map(&text)}));
    cluster.define(&definition(METAL3_POOL, &members(json!({"status": status})))).await;
    let site = Site::new(cluster).await;
    site.pool("p", &["10.0.0.0/16"]).await;
    let mut controller = Controller::start(cluster, &site);
    controller.until_ready().await;
    let ready = watcher(site.claims.clone(), watcher::Config::default()).applied_objects();
    let ready = ready.try_filter(|claim| future::ready(condition(claim)["status"] == "True"));
    let ready = Mutex::new(Box::pin(ready));
    let result = each(server, async |n| {
        site.claim(&format!("c{n}"), &json!({})).await;
        while ready.lock().await.next().await.unwrap().unwrap().name_any() != format!("c{n}") {}
    });
    report("a claim of Cluster API, from its creation to Ready", result.await);
    drop(controller);

    let site = Site::new(cluster).await;
    claims(&site).await;
    report("requests of the in-cluster provider", each(server, async |n| provider(&site, n).await).await);
    for allocated in ALLOCATED {
        let site = Site::new(cluster).await;
        claims(&site).await;
        let pools: Api<DynamicObject> = Api::namespaced_with(cluster.client(), &site.namespace, &resource(METAL3_POOL));
        let indexes: Map<String, Value> = (0..allocated).map(|n| (format!("claim-{n}"), address(n).into())).collect();
        pools.create(&PostParams::default(), &object(METAL3_POOL, json!({"metadata": {"name": "p"}}))).await.unwrap();
        pools.patch_status("p", &PatchParams::default(), &indexes_of(indexes.into())).await.unwrap();
        let result = each(server, async |n| {
            provider(&site, n).await;
            let index = json!({format!("c{n}"): address(allocated + n)});
            pools.patch_status("p", &PatchParams::default(), &indexes_of(index)).await.unwrap();
        });
        report(&format!("requests of metal3, {allocated} addresses allocated"), result.await);
    }
    for allocated in ALLOCATED {
        let range = Range::new(cluster, allocated).await;
        let result = each(server, async |n| range.allocate(allocated + n).await).await;
        report(&format!("requests of whereabouts, {allocated} addresses allocated"), result);
    }
    let [.., mut size] = ALLOCATED;
    while Range::create(cluster, size).await.is_ok() {
        size += 500;
    }
    row("smallest range of whereabouts that etcd rejects", &size.to_string(), "");
}

/// Returns the CustomResourceDefinition of a kind with these members.
fn definition((group, version, kind, plural, has_status): Names, schema: &Value) -> CustomResourceDefinition {
    let schema = json!({"openAPIV3Schema": schema});
    let status = if has_status { json!({"status": {}}) } else { json!({}) };
    let version = json!({"name": version, "served": true, "storage": true, "schema": schema, "subresources": status});
    let names = json!({"kind": kind, "plural": plural});
    let spec = json!({"group": group, "scope": "Namespaced", "names": names, "versions": [version]});
    serde_json::from_value(json!({"metadata": {"name": format!("{plural}.{group}")}, "spec": spec})).unwrap()
}

/// Runs `allocate` [`COUNT`] times. Returns the median time of an allocation, and the mean number of bytes that an
/// allocation writes into the log of etcd.
async fn each(server: &RealServer, allocate: impl AsyncFn(usize)) -> (Duration, f64) {
    let before = etcd(server).await[1];
    let mut times = Vec::new();
    for n in 0..COUNT {
        let began = Instant::now();
        allocate(n).await;
        times.push(began.elapsed());
    }
    (percentile(&times, 50), (etcd(server).await[1] - before) / COUNT as f64)
}

fn report(what: &str, (time, bytes): (Duration, f64)) {
    row(&format!("{what}, p50"), &format!("{}, {:.0} KB", milliseconds(time), bytes / 1000.0), "");
}

fn address(n: usize) -> String {
    format!("10.0.{}.{}", n / 256, n % 256)
}

fn indexes_of(indexes: Value) -> Patch<Value> {
    Patch::Merge(json!({"status": {"indexes": indexes}}))
}

/// Creates claims on a pool of another provider.
async fn claims(site: &Site) {
    let pool = json!({"apiGroup": "ipam.cluster.x-k8s.io", "kind": "InClusterIPPool"});
    for n in 0..COUNT {
        site.claim(&format!("c{n}"), &json!({"spec": {"poolRef": pool}})).await;
    }
}

/// Sends the writes of a provider for one claim: finalizer, IPAddress, status.
async fn provider(site: &Site, n: usize) {
    let (name, params) = (format!("c{n}"), PatchParams::default());
    let finalizer = Patch::Merge(json!({"metadata": {"finalizers": ["example.org/claim"]}}));
    let claim = site.claims.patch(&name, &params, &finalizer).await.unwrap();
    let ip_address = json!({
        "metadata": {"name": name, "finalizers": ["example.org/address"]},
        "spec": {
            "address": address(n), "prefix": 16, "gateway": "10.0.0.1", "claimRef": {"name": name},
            "poolRef": claim.data["spec"]["poolRef"],
        },
    });
    create(&site.addresses, ip_address).await;
    let status = Patch::Merge(json!({"status": {"addressRef": {"name": name}}}));
    site.claims.patch_status(&name, &params, &status).await.unwrap();
}

/// A range of addresses of whereabouts, in which one object contains all allocations.
struct Range {
    pools: Api<DynamicObject>,
    reservations: Api<DynamicObject>,
    leases: Api<Lease>,
}

// === impl Range ===

impl Range {
    async fn new(cluster: &Cluster, allocated: usize) -> Self {
        Self::create(cluster, allocated).await.unwrap()
    }

    async fn create(cluster: &Cluster, allocated: usize) -> kube::Result<Self> {
        let namespace = cluster.namespace().await;
        let api = |names| Api::namespaced_with(cluster.client(), &namespace, &resource(names));
        let leases = Api::namespaced(cluster.client(), &namespace);
        let range = Self { pools: api(IP_POOL), reservations: api(RESERVATION), leases };
        let allocations: Map<String, Value> = (0..allocated).map(|n| (n.to_string(), allocation(n))).collect();
        let spec = json!({"range": "10.0.0.0/16", "allocations": allocations});
        let pool = object(IP_POOL, json!({"metadata": {"name": "10.0.0.0-16"}, "spec": spec}));
        range.pools.create(&PostParams::default(), &pool).await?;
        let lease = serde_json::from_value(json!({"metadata": {"name": "whereabouts"}})).unwrap();
        range.leases.create(&PostParams::default(), &lease).await?;
        Ok(range)
    }

    /// Allocates one address as whereabouts does: takes the Lease, reads all pools and this pool, reserves the address,
    /// adds it to the pool, and releases the Lease.
    async fn allocate(&self, n: usize) {
        self.set_holder(json!("pod")).await;
        self.pools.list(&ListParams::default()).await.unwrap();
        let pool = self.pools.get("10.0.0.0-16").await.unwrap();
        let reservation = json!({"metadata": {"name": address(n)}, "spec": allocation(n)});
        self.reservations.create(&PostParams::default(), &object(RESERVATION, reservation)).await.unwrap();
        let patch = json!([
            {"op": "test", "path": "/metadata/resourceVersion", "value": pool.metadata.resource_version},
            {"op": "add", "path": format!("/spec/allocations/{n}"), "value": allocation(n)},
        ]);
        let patch = Patch::<()>::Json(serde_json::from_value(patch).unwrap());
        self.pools.patch("10.0.0.0-16", &PatchParams::default(), &patch).await.unwrap();
        self.set_holder(Value::Null).await;
    }

    async fn set_holder(&self, pod: Value) {
        let mut lease = self.leases.get("whereabouts").await.unwrap();
        lease.spec.get_or_insert_default().holder_identity = pod.as_str().map(str::to_owned);
        self.leases.replace("whereabouts", &PostParams::default(), &lease).await.unwrap();
    }
}

/// Returns an allocation in a pool of whereabouts. The identifier of a container has 64 digits.
fn allocation(n: usize) -> Value {
    json!({"id": format!("{n:064x}"), "podref": format!("clusters/pod-{n}"), "ifname": "net1"})
}
