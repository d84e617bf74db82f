//! Tests the webhooks for pools and for machines, with the shipped configurations.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use glowplug_controller::kinds::network_data::is_issued_for;
use glowplug_controller::kinds::pool::{
    GlobalPoolSpec, GlobalStaticIPPool, MachineNetwork, NodePoolRef, PoolSpec, StaticIPLease, StaticIPPool,
};
use glowplug_controller::kinds::virtual_machine::{
    MACHINE_NAME_LABEL, MACHINE_NAMESPACE_LABEL, MACHINES_LABEL, NODE_POOL_LABEL, kubevirt_machines, node_pools,
    virtual_machines,
};
use glowplug_controller::pools::facts::Scope;
use glowplug_controller::pools::reference::MACHINES_PATH;
use glowplug_controller::pools::selection_cache::SelectionCache;
use glowplug_controller::webhook::POOLS_PATH;
use http::{Request, StatusCode};
use http_body_util::BodyExt;
use k8s_openapi::api::core::v1::{Namespace, Secret};
use kube::api::{
    ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams, PostParams,
};
use kube::{Api, Resource, ResourceExt};
use serde_json::{Value, json};

use crate::support::Cluster;
use crate::support::controller::merge_status;
use crate::support::leader::name;
use crate::support::manifests::documents;
use crate::support::replica::{Replica, webhooks};
use crate::support::scenarios::manifests::find_lost;

/// A replica with the webhook for pools, and the cluster that calls the webhook.
struct Asked<'c> {
    cluster: &'c Cluster,
    namespace: String,
    replica: Replica<'c>,
}

fn spec(network: &str, addresses: &[&str]) -> PoolSpec {
    PoolSpec {
        network: network.to_owned(),
        addresses: addresses.iter().map(|&address| address.to_owned()).collect(),
        machine_network: vec![MachineNetwork { cidr: "10.0.0.0/16".to_owned() }],
        ..PoolSpec::default()
    }
}

/// Returns the message with which the webhook for pools refused a request. `None`: the request succeeded.
fn refusal<T>(result: kube::Result<T>) -> Option<String> {
    refusal_of("pools", result).map(|(code, message)| {
        assert_eq!(code, 422);
        message
    })
}

/// Returns the code and the message with which a webhook refused a request. `None`: the request succeeded.
fn refusal_of<T>(webhook: &str, result: kube::Result<T>) -> Option<(u16, String)> {
    match result {
        Err(kube::Error::Api(status)) => {
            let start = format!("admission webhook \"{webhook}.ipam.glowplug.dev\" denied the request: ");
            let message = status.message.strip_prefix(&start).unwrap_or_else(|| panic!("{status:?}"));
            Some((status.code, message.to_owned()))
        }
        Err(error) => panic!("{error}"),
        Ok(_) => None,
    }
}

// === impl Asked ===

impl<'c> Asked<'c> {
    async fn start(cluster: &'c Cluster) -> Self {
        let replica = Replica::start(cluster, &["ValidatingWebhookConfiguration"]).await;
        let asked = Self { cluster, namespace: cluster.namespace().await, replica };
        asked.until(true).await;
        asked
    }

    /// Waits until the API server calls the webhook or, with `false`, no longer calls the webhook. A real server
    /// receives a configuration through a watch.
    async fn until(&self, is_asked: bool) {
        until(&self.pools(), &self.network(), is_asked).await;
    }

    /// Returns the name of a network that no other scenario uses.
    fn network(&self) -> String {
        format!("{}/vlan10", self.namespace)
    }

    fn pools(&self) -> Api<StaticIPPool> {
        Api::namespaced(self.cluster.client(), &self.namespace)
    }

    async fn create(&self, name: &str, spec: PoolSpec) -> Option<String> {
        refusal(self.pools().create(&PostParams::default(), &StaticIPPool::new(name, spec)).await)
    }

    async fn change(&self, name: &str, change: serde_json::Value) -> Option<String> {
        refusal(self.pools().patch(name, &PatchParams::default(), &Patch::Merge(change)).await)
    }

    /// Deletes the configuration, so that other scenarios can write pools, and stops the replica.
    async fn stop(self) {
        let (pools, network) = (self.pools(), self.network());
        self.replica.stop(async || until(&pools, &network, false).await).await;
    }
}

async fn until(pools: &Api<StaticIPPool>, network: &str, is_asked: bool) {
    let dry_run = PostParams { dry_run: true, ..PostParams::default() };
    let invalid = StaticIPPool::new("invalid", spec(network, &["x"]));
    while pools.create(&dry_run, &invalid).await.is_err() != is_asked {
        tokio::task::yield_now().await;
    }
}

/// Returns the objects of all files in `examples/manifests`, in one namespace. Cluster-wide names are changed to names
/// that no other scenario uses.
fn examples(namespace: &str) -> Vec<Value> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/manifests");
    let mut files: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|file| file.unwrap().path()).collect();
    files.sort_unstable();
    let mut objects: Vec<Value> = files.iter().flat_map(|file| documents(file)).collect();
    for object in &mut objects {
        if object["metadata"].get("namespace").is_some() {
            object["metadata"]["namespace"] = namespace.into();
        }
        let network =
            object["spec"]["network"].as_str().map(|network| network.replace("infra/", &format!("{namespace}/")));
        if let Some(network) = network {
            object["spec"]["network"] = network.into();
        }
        if object["kind"] == "MACPool" {
            object["spec"]["namespaces"] = json!([namespace]);
        }
    }
    objects
}

pub async fn every_example_is_accepted_with_all_its_members(cluster: &Cluster) {
    let asked = Asked::start(cluster).await;
    let objects = examples(&asked.namespace);
    let kinds: BTreeSet<&str> = objects.iter().map(|object| object["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["GlobalStaticIPPool", "IPAddressClaim", "MACPool", "StaticIPPool"].into());
    let mut lost = Vec::new();
    let mut of_cluster = Vec::new();
    for sent in &objects {
        let object: DynamicObject = serde_json::from_value(sent.clone()).unwrap();
        let kind = ApiResource::from_gvk(&GroupVersionKind::try_from(object.types.clone().unwrap()).unwrap());
        let api: Api<DynamicObject> = match &object.metadata.namespace {
            Some(namespace) => Api::namespaced_with(cluster.client(), namespace, &kind),
            None => Api::all_with(cluster.client(), &kind),
        };
        let name = object.name_any();
        let stored = api.create(&PostParams::default(), &object).await;
        let stored = serde_json::to_value(stored.unwrap_or_else(|error| panic!("{name}: {error}"))).unwrap();
        find_lost(sent, &stored, &format!("{} {name}", kind.kind), &mut lost);
        if object.metadata.namespace.is_none() {
            of_cluster.push((api, name));
        }
    }
    assert_eq!(lost, [] as [String; 0]);
    for (api, name) in of_cluster {
        api.delete(&name, &DeleteParams::default()).await.unwrap();
    }
    asked.stop().await;
}

pub async fn the_refusal_of_an_invalid_pool_lists_every_error(cluster: &Cluster) {
    let asked = Asked::start(cluster).await;
    let mut wrong = spec(&asked.network(), &["10.0.0.5/24", "x"]);
    wrong.nameservers = vec!["y".to_owned()];
    wrong.node_pool_ref = Some(NodePoolRef { name: "w".to_owned() });
    wrong.machine_selector = Some(Default::default());
    let expected = "addresses[0]: host bits are set \"10.0.0.5/24\", expected no bits after the prefix length: \
                    did you mean 10.0.0.0/24 or 10.0.0.5/32\n\
                    addresses[1]: invalid address \"x\", expected an address, a CIDR or a range, \
             such as 10.0.0.5, 10.0.0.0/24 or 10.0.0.5-10.0.0.9\n\
                    machineSelector: set together with nodePoolRef, expected one of the two\n\
                    nameservers[0]: invalid address \"y\", expected an IPv4 or IPv6 address";
    assert_eq!(asked.create("a", wrong).await.as_deref(), Some(expected));
    assert_eq!(asked.create("a", spec(&asked.network(), &["10.0.0.0/24"])).await, None);
    let network = asked.network();
    let expected =
        format!("network: immutable \"infra/vlan11\", expected \"{network}\": create a new pool for another network");
    // A server with CEL refuses this change by the schema of the kind, before it calls a webhook.
    let of_schema = "spec.network: Invalid value: \"infra/vlan11\": immutable, expected a new pool for another network";
    let (pools, change) = (asked.pools(), json!({"spec": {"network": "infra/vlan11"}}));
    match pools.patch("a", &PatchParams::default(), &Patch::Merge(change)).await {
        Err(kube::Error::Api(status)) => {
            let is_refused = status.message.ends_with(&expected) || status.message.ends_with(of_schema);
            assert_eq!((status.code, is_refused), (422, true), "{status:?}");
        }
        other => panic!("{other:?}"),
    }
    asked.stop().await;
}

pub async fn a_second_pool_of_a_node_pool_is_refused_when_it_is_written(cluster: &Cluster) {
    let asked = Asked::start(cluster).await;
    let of_node_pool = |addresses: &[&str]| PoolSpec {
        node_pool_ref: Some(NodePoolRef { name: "w".to_owned() }),
        ..spec(&asked.network(), addresses)
    };
    assert_eq!(asked.create("a", of_node_pool(&["10.0.0.8"])).await, None);
    let expected = format!(
        "nodePoolRef: NodePool {namespace}/w has pool {namespace}/a on network {} already, expected one pool, or different values of \
         priority",
        asked.network(),
        namespace = asked.namespace
    );
    assert_eq!(asked.create("b", of_node_pool(&["10.0.0.9"])).await, Some(expected.clone()));
    assert_eq!(asked.create("b", spec(&asked.network(), &["10.0.0.9"])).await, None);
    assert_eq!(asked.change("b", json!({"spec": {"nodePoolRef": {"name": "w"}}})).await, Some(expected));
    asked.stop().await;
}

pub async fn an_overlap_of_pools_of_either_kind_is_refused(cluster: &Cluster) {
    let asked = Asked::start(cluster).await;
    let (network, namespace) = (asked.network(), asked.namespace.clone());
    assert_eq!(asked.create("a", spec(&network, &["10.0.0.0-10.0.0.50"])).await, None);
    assert_eq!(asked.create("b", spec(&network, &["10.0.0.60-10.0.0.90"])).await, None);
    let overlap = |pools: &str, addresses: &str| {
        Some(format!("pools {pools} offer the same addresses of network {network}: {addresses}"))
    };
    let grown = json!({"spec": {"addresses": ["10.0.0.10-10.0.0.90"]}});
    let pools = format!("{namespace}/a and {namespace}/b");
    assert_eq!(asked.change("b", grown).await, overlap(&pools, "10.0.0.10-10.0.0.50"));

    let global: Api<GlobalStaticIPPool> = Api::all(cluster.client());
    let pool = GlobalStaticIPPool::new(&namespace, GlobalPoolSpec { pool: spec(&network, &["10.0.0.80-10.0.0.99"]) });
    let pools = format!("{namespace}/b and {namespace}");
    assert_eq!(refusal(global.create(&PostParams::default(), &pool).await), overlap(&pools, "10.0.0.80-10.0.0.90"));
    asked.pools().delete("b", &DeleteParams::default()).await.unwrap();
    assert_eq!(refusal(global.create(&PostParams::default(), &pool).await), None);
    let pools = format!("{namespace} and {namespace}/b");
    assert_eq!(asked.create("b", spec(&network, &["10.0.0.90"])).await, overlap(&pools, "10.0.0.90"));
    global.delete(&namespace, &DeleteParams::default()).await.unwrap();
    asked.stop().await;
}

pub async fn a_stored_pool_that_is_invalid_can_be_deleted_and_lose_its_finalizer(cluster: &Cluster) {
    let namespace = cluster.namespace().await;
    let pools: Api<StaticIPPool> = Api::namespaced(cluster.client(), &namespace);
    let mut invalid = StaticIPPool::new("a", spec(&format!("{namespace}/vlan10"), &["x"]));
    invalid.meta_mut().finalizers = Some(vec!["example.org/finalizer".to_owned()]);
    pools.create(&PostParams::default(), &invalid).await.unwrap();
    let asked = Asked::start(cluster).await;
    pools.delete("a", &DeleteParams::default()).await.unwrap();
    let released = json!({"metadata": {"finalizers": null}});
    pools.patch("a", &PatchParams::default(), &Patch::Merge(released)).await.unwrap();
    assert!(pools.get_opt("a").await.unwrap().is_none());
    asked.stop().await;
}

/// Returns the answer of the webhook to a change of the pool `workers`.
async fn review(
    cluster: &Cluster,
    namespace: &str,
    operation: &str,
    old: Option<&PoolSpec>,
    new: Option<&PoolSpec>,
) -> Value {
    let object = |spec: &PoolSpec| {
        let mut pool = StaticIPPool::new("workers", spec.clone());
        pool.meta_mut().namespace = Some(namespace.to_owned());
        pool
    };
    let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
        "uid": "1234",
        "kind": {"group": "ipam.glowplug.dev", "version": "v1alpha1", "kind": "StaticIPPool"},
        "resource": {"group": "ipam.glowplug.dev", "version": "v1alpha1", "resource": "staticippools"},
        "name": "workers", "namespace": namespace, "operation": operation, "userInfo": {},
        "object": new.map(object), "oldObject": old.map(object),
    }});
    let (status, body) = post(cluster, POOLS_PATH, review.to_string()).await;
    let review: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(
        (status.as_u16(), &review["apiVersion"], &review["kind"], &review["response"]["uid"]),
        (200, &json!("admission.k8s.io/v1"), &json!("AdmissionReview"), &json!("1234"))
    );
    review["response"].clone()
}

async fn post(cluster: &Cluster, path: &str, body: String) -> (StatusCode, String) {
    // The cache is not running, as in a replica that has just started. Such a replica must answer, too.
    let selection = Arc::new(SelectionCache::new(cluster.controller(), Scope::default()));
    let response = webhooks(cluster, &selection).answer(Request::post(path).body(body.into()).unwrap()).await;
    let status = response.status();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

pub async fn the_webhook_allows_a_pool_in_use_to_shrink_or_to_be_deleted_with_a_warning(cluster: &Cluster) {
    let namespace = cluster.namespace().await;
    let network = format!("{namespace}/vlan10");
    let leases: Api<StaticIPLease> = Api::all(cluster.client());
    for (address, holder, released) in [
        ("10.0.0.8", "worker-0", None),
        ("10.0.0.9", "worker-1", Some("2026-08-14T10:00:01.000000Z")),
        ("10.0.0.10", "worker-2", None),
    ] {
        let spec = json!({
            "network": network, "address": address, "prefix": 16, "pool": format!("{namespace}/workers"),
            "since": "2026-08-14T10:00:00.000000Z", "released": released,
            "holder": {"kind": "IPAddressClaim", "namespace": namespace, "name": holder, "uid": holder, "interface": "eno101"},
        });
        let lease = StaticIPLease::new(&name(&network, address), serde_json::from_value(spec).unwrap());
        leases.create(&PostParams::default(), &lease).await.unwrap();
    }
    let [old, grown, shrunk] = [
        spec(&network, &["10.0.0.8-10.0.0.11"]),
        spec(&network, &["10.0.0.8-10.0.0.20"]),
        spec(&network, &["10.0.0.9-10.0.0.20"]),
    ];
    let allowed = |warnings: Option<String>| {
        let mut response = json!({"uid": "1234", "allowed": true, "status": {}});
        if let Some(warning) = warnings {
            response["warnings"] = json!([warning]);
        }
        response
    };
    let update = async |new: &PoolSpec| review(cluster, &namespace, "UPDATE", Some(&old), Some(new)).await;
    assert_eq!(update(&grown).await, allowed(None));
    let stays = "no longer allocates these addresses, which stay with their holders: 10.0.0.8 (holders: 1)";
    assert_eq!(update(&shrunk).await, allowed(Some(format!("pool {namespace}/workers {stays}"))));
    let answer = update(&PoolSpec { interface: Some("eno102".to_owned()), ..old.clone() }).await;
    let message = "interface: immutable \"eno102\", expected \"eno101\" while machines or claims hold addresses of the pool \
                   (holders: 2): create a new pool for another interface";
    assert_eq!((&answer["allowed"], &answer["status"]["message"]), (&json!(false), &json!(message)));
    let routed = PoolSpec { gateway: vec!["10.0.0.10".to_owned()], ..spec(&network, &["10.0.1.8"]) };
    let held =
        format!("gateway 10.0.0.10: held by IPAddressClaim {namespace}/worker-2, expected an address without a holder");
    let answer = review(cluster, &namespace, "CREATE", None, Some(&routed)).await;
    assert_eq!(answer, allowed(Some(held)));
    let deleted = "is deleted when these addresses are released: 10.0.0.8, 10.0.0.10 (holders: 2)";
    let answer = review(cluster, &namespace, "DELETE", Some(&old), None).await;
    assert_eq!(answer, allowed(Some(format!("pool {namespace}/workers {deleted}"))));
}

pub async fn a_request_that_is_no_review_of_a_pool_is_refused(cluster: &Cluster) {
    let expected = "expected an AdmissionReview of admission.k8s.io/v1 with a request\n";
    for body in ["", "[]", "{}", r#"{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}"#] {
        assert_eq!(post(cluster, POOLS_PATH, body.to_owned()).await, (StatusCode::BAD_REQUEST, expected.to_owned()));
    }
    let missing = (StatusCode::NOT_FOUND, "no such webhook\n".to_owned());
    assert_eq!(post(cluster, "/validate", String::new()).await, missing);
    let answer = review(cluster, "clusters", "DELETE", None, None).await;
    let message = "operation Delete, expected Create, Update or Delete with its objects";
    assert_eq!((&answer["allowed"], &answer["status"]["message"]), (&json!(false), &json!(message)));
}

// === Machines ===

/// The namespaces of a hosted cluster, with a pool for its NodePool `workers`.
struct Hosted<'c> {
    cluster: &'c Cluster,
    /// The namespace of NodePools and pools.
    clusters: String,
    /// The namespace of the machines.
    machines: String,
}

// === impl Hosted ===

impl<'c> Hosted<'c> {
    async fn new(cluster: &'c Cluster) -> Self {
        let clusters = cluster.namespace().await;
        let hosted = Self { cluster, machines: format!("{clusters}-c1"), clusters };
        let namespace = json!({"metadata": {"name": hosted.machines, "labels": {(MACHINES_LABEL): "true"}}});
        let namespace: Namespace = serde_json::from_value(namespace).unwrap();
        Api::all(cluster.client()).create(&PostParams::default(), &namespace).await.unwrap();
        let node_pool = json!({
            "apiVersion": "hypershift.openshift.io/v1beta1", "kind": "NodePool",
            "metadata": {"name": "workers"}, "spec": {"clusterName": "c1"},
        });
        let api: Api<DynamicObject> = Api::namespaced_with(cluster.client(), &hosted.clusters, &node_pools());
        api.create(&PostParams::default(), &serde_json::from_value(node_pool).unwrap()).await.unwrap();
        hosted
    }

    fn network(&self) -> String {
        format!("{}/vlan10", self.clusters)
    }

    fn pools(&self) -> Api<StaticIPPool> {
        Api::namespaced(self.cluster.client(), &self.clusters)
    }

    async fn pool(&self) {
        let mut spec = spec(&self.network(), &["10.0.0.8-10.0.0.9"]);
        spec.node_pool_ref = Some(NodePoolRef { name: "workers".to_owned() });
        self.pools().create(&PostParams::default(), &StaticIPPool::new("p", spec)).await.unwrap();
    }

    async fn set_exhausted(&self, status: &str) {
        let condition = json!({
            "type": "Exhausted", "status": status, "reason": "r", "lastTransitionTime": "2026-08-14T10:00:00Z",
            "message": "No available IPs in pool for interface eno101",
        });
        merge_status(&self.pools(), "p", &json!({"status": {"conditions": [condition]}})).await;
    }

    fn machines(&self, namespace: &str) -> Api<DynamicObject> {
        Api::namespaced_with(self.cluster.client(), namespace, &virtual_machines())
    }

    /// Returns a machine as capk creates it, with `changes` merged into it.
    fn machine(&self, name: &str, changes: &Value) -> DynamicObject {
        let spec = json!({
            "domain": {"devices": {"interfaces": [{"name": "iface1", "bridge": {}}]}},
            "networks": [{"name": "iface1", "multus": {"networkName": self.network()}}],
            "volumes": [{"name": "cloudinitvolume", "cloudInitConfigDrive": {"secretRef": {"name": "u"}}}],
        });
        let labels = json!({
            (MACHINE_NAME_LABEL): name, (MACHINE_NAMESPACE_LABEL): self.machines, (NODE_POOL_LABEL): "workers",
        });
        let mut machine = json!({
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine",
            "metadata": {"name": name, "labels": labels}, "spec": {"template": {"spec": spec}},
        });
        json_patch::merge(&mut machine, changes);
        serde_json::from_value(machine).unwrap()
    }

    /// Waits until the API server calls the webhook for machines of the hosted cluster or, with `false`, until the API
    /// server no longer calls the webhook for these machines.
    async fn until(&self, is_asked: bool) {
        let (machines, dry_run) =
            (self.machines(&self.machines), PostParams { dry_run: true, ..PostParams::default() });
        let machine = self.machine("asked", &json!({"spec": {"template": {"spec": {"volumes": []}}}}));
        while machines.create(&dry_run, &machine).await.is_err() != is_asked {
            tokio::task::yield_now().await;
        }
    }

    async fn create(&self, name: &str) -> kube::Result<DynamicObject> {
        let machine = self.machine(name, &json!({}));
        self.machines(&self.machines).create(&PostParams::default(), &machine).await
    }

    /// Returns whether a machine refers to a Secret of a new name, and the index of its interface. Null: the machine
    /// has no reference, or no index.
    fn added(machine: &DynamicObject) -> Value {
        let spec = &machine.data["spec"]["template"]["spec"];
        let secret = &spec["volumes"][0]["cloudInitConfigDrive"]["networkDataSecretRef"];
        let is_new = secret["name"].as_str().map(|name| is_issued_for(name, &machine.name_any()));
        json!([is_new, spec["domain"]["devices"]["interfaces"][0]["acpiIndex"]])
    }
}

pub async fn a_machine_of_a_pool_is_created_with_a_reference_to_its_secret(cluster: &Cluster) {
    let hosted = Hosted::new(cluster).await;
    hosted.pool().await;
    let replica = Replica::start(cluster, &["MutatingWebhookConfiguration"]).await;
    hosted.until(true).await;
    let expected = json!([true, 101]);
    let (machines, machine) = (hosted.machines(&hosted.machines), hosted.machine("w-0", &json!({})));
    let dry_run = PostParams { dry_run: true, ..PostParams::default() };
    assert_eq!(Hosted::added(&machines.create(&dry_run, &machine).await.unwrap()), expected);
    assert!(machines.get_opt("w-0").await.unwrap().is_none());
    hosted.create("w-0").await.unwrap();
    assert_eq!(Hosted::added(&machines.get("w-0").await.unwrap()), expected);

    let other = hosted.machine("w-1", &json!({"metadata": {"labels": {(MACHINE_NAME_LABEL): null}}}));
    let other = machines.create(&PostParams::default(), &other).await.unwrap();
    assert_eq!(Hosted::added(&other), json!([true, 101]), "not of capk");
    let untouched = json!([null, null]);
    let elsewhere = hosted.machines(&hosted.clusters).create(&PostParams::default(), &machine).await.unwrap();
    assert_eq!(Hosted::added(&elsewhere), untouched, "in a namespace without the label");
    let of_no_pool = hosted.machine("w-2", &json!({"metadata": {"labels": {(NODE_POOL_LABEL): "infra"}}}));
    let of_no_pool = machines.create(&PostParams::default(), &of_no_pool).await.unwrap();
    assert_eq!(Hosted::added(&of_no_pool), untouched, "of no pool");

    let secrets: Api<Secret> = Api::namespaced(cluster.client(), &hosted.machines);
    assert!(secrets.list(&ListParams::default()).await.unwrap().items.is_empty(), "a webhook writes nothing");
    replica.stop(async || hosted.until(false).await).await;
}

pub async fn machines_are_served_before_and_after_a_renewal_of_the_certificate(cluster: &Cluster) {
    let hosted = Hosted::new(cluster).await;
    hosted.pool().await;
    let replica = Replica::start(cluster, &["MutatingWebhookConfiguration"]).await;
    hosted.until(true).await;
    hosted.create("w-0").await.unwrap();
    replica.renew().await;
    // A real API server uses the new configuration only after a delay.
    while hosted.create("w-1").await.is_err() {
        tokio::task::yield_now().await;
    }
    let machine = hosted.machines(&hosted.machines).get("w-1").await.unwrap();
    assert_eq!(Hosted::added(&machine), json!([true, 101]));
    replica.stop(async || hosted.until(false).await).await;
}

pub async fn a_machine_of_an_exhausted_pool_is_refused_unless_it_has_an_address(cluster: &Cluster) {
    let hosted = Hosted::new(cluster).await;
    hosted.pool().await;
    let replica = Replica::start(cluster, &["MutatingWebhookConfiguration"]).await;
    hosted.until(true).await;
    hosted.set_exhausted("True").await;
    let message = "No available IPs in pool for interface eno101".to_owned();
    // A replica receives the status through a watch.
    let dry_run = PostParams { dry_run: true, ..PostParams::default() };
    let (machines, machine) = (hosted.machines(&hosted.machines), hosted.machine("w-0", &json!({})));
    while machines.create(&dry_run, &machine).await.is_ok() {
        tokio::task::yield_now().await;
    }
    assert_eq!(refusal_of("machines", hosted.create("w-0").await), Some((403, message.clone())));

    let network = hosted.network();
    let lease = json!({
        "network": network, "address": "10.0.0.8", "prefix": 16, "pool": format!("{}/p", hosted.clusters),
        "since": "2026-08-14T10:00:00.000000Z",
        "holder": {
            "kind": "KubevirtMachine", "namespace": hosted.machines, "name": "w-1", "uid": "u", "interface": "eno101",
        },
    });
    let lease = StaticIPLease::new(&name(&network, "10.0.0.8"), serde_json::from_value(lease).unwrap());
    Api::all(cluster.client()).create(&PostParams::default(), &lease).await.unwrap();
    // The leader records the address of each machine. A user can record any address.
    let machine = kubevirt_machines();
    let kubevirt_machines: Api<DynamicObject> = Api::namespaced_with(cluster.client(), &hosted.machines, &machine);
    for (name, address) in [("w-1", "10.0.0.8"), ("w-2", "10.0.0.8"), ("w-3", "10.0.0.9")] {
        let mut object = DynamicObject::new(name, &machine);
        let recorded = format!(r#"["{address}/16"]"#);
        object.metadata.annotations =
            Some([("kubevirt.cluster.x-k8s.io/allocated-ip-eno101".to_owned(), recorded)].into());
        kubevirt_machines.create(&PostParams::default(), &object).await.unwrap();
    }
    for refused in ["w-0", "w-2", "w-3"] {
        assert_eq!(refusal_of("machines", hosted.create(refused).await), Some((403, message.clone())), "{refused}");
    }
    assert_eq!(refusal_of("machines", hosted.create("w-1").await), None);

    // Version 0.2.0 allocated the address to a KubevirtMachine whose VirtualMachine is in another namespace.
    let mut spec = serde_json::to_value(&lease.spec).unwrap();
    let holder = json!({"namespace": hosted.clusters, "name": "w-4", "virtualMachineNamespace": hosted.machines});
    json_patch::merge(&mut spec, &json!({"address": "10.0.0.10", "holder": holder}));
    let lease = StaticIPLease::new(&name(&network, "10.0.0.10"), serde_json::from_value(spec).unwrap());
    Api::all(cluster.client()).create(&PostParams::default(), &lease).await.unwrap();
    let labels = json!({"metadata": {"labels": {(MACHINE_NAMESPACE_LABEL): hosted.clusters}}});
    let create = async |name: &str| machines.create(&PostParams::default(), &hosted.machine(name, &labels)).await;
    assert_eq!(refusal_of("machines", create("w-5").await), Some((403, message)));
    assert_eq!(refusal_of("machines", create("w-4").await), None);

    hosted.set_exhausted("False").await;
    assert_eq!(refusal_of("machines", hosted.create("w-0").await), None);
    replica.stop(async || hosted.until(false).await).await;
}

pub async fn a_replica_whose_cache_is_not_ready_reads_the_pools_from_the_api_server(cluster: &Cluster) {
    let hosted = Hosted::new(cluster).await;
    let object = |name: &str| {
        let mut machine = hosted.machine(name, &json!({}));
        machine.metadata.namespace = Some(hosted.machines.clone());
        machine
    };
    let review = async |kind: &str, operation: &str, object: &DynamicObject| {
        let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
            "uid": "1234", "kind": {"group": "kubevirt.io", "version": "v1", "kind": kind},
            "resource": {"group": "kubevirt.io", "version": "v1", "resource": "virtualmachines"},
            "name": "w-0", "namespace": hosted.machines, "operation": operation, "userInfo": {}, "object": object,
        }});
        let (status, body) = post(cluster, MACHINES_PATH, review.to_string()).await;
        assert_eq!(status, StatusCode::OK);
        serde_json::from_str::<Value>(&body).unwrap()["response"].clone()
    };
    let allowed = json!({"uid": "1234", "allowed": true, "status": {}});
    assert_eq!(review("VirtualMachine", "CREATE", &object("w-0")).await, allowed);
    hosted.pool().await;
    let response = review("VirtualMachine", "CREATE", &object("w-0")).await;
    assert_eq!((&response["allowed"], &response["patchType"]), (&json!(true), &json!("JSONPatch")));
    let response = review("VirtualMachine", "DELETE", &object("w-0")).await;
    let message = "Delete of \"VirtualMachine\", expected Create of VirtualMachine";
    assert_eq!((&response["allowed"], &response["status"]["message"]), (&json!(false), &json!(message)));
}
