//! Tests what the leader writes into objects other than machines: labels of namespaces, conditions of NodePools, and
//! pools that are derived from NodePools.

use std::sync::Arc;

use futures::StreamExt as _;
use glowplug::diagnostic::Diagnostics;
use glowplug::render::dracut;
use glowplug_controller::cluster::events::Events;
use glowplug_controller::kinds::pool::{MachineNetwork, NodePoolRef, PoolSpec, StaticIPPool};
use glowplug_controller::kinds::virtual_machine::MACHINES_LABEL;
use glowplug_controller::pools::facts::Scope;
use glowplug_controller::pools::namespaces::Namespaces;
use glowplug_controller::pools::node_pools::{CONDITION, NodePools};
use glowplug_controller::pools::selection_cache::SelectionCache;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::wait::await_condition;
use kube::runtime::watcher::{self, watcher};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::support::Cluster;
use crate::support::controller::{PATIENCE, make_fields_unreadable, merge, merge_status, until};
use crate::support::hosted::Hosted;
use crate::support::hosted::definitions::{HOSTED_CLUSTER, NODE_POOL, resource};
use crate::support::hosted::provider::object;
use crate::support::installed::Installed;

/// Starts the tasks of a leader that label namespaces, write conditions of NodePools, and write the pools that are
/// derived from NodePools. Dropping the returned set ends the tasks.
fn start(cluster: &Cluster, hosted: &Hosted) -> JoinSet<()> {
    let client = cluster.controller();
    let scope = Scope { namespace: hosted.clusters.clone(), ..Scope::default() };
    let selection = Arc::new(SelectionCache::new(client.clone(), scope));
    let namespaces = Namespaces::new(client.clone(), &selection);
    let node_pools = NodePools::new(client.clone(), Arc::clone(&selection), Events::start(client));
    let mut tasks = JoinSet::new();
    tasks.spawn(async move { match selection.run().await {} });
    tasks.spawn(async move { match namespaces.run().await {} });
    tasks.spawn(async move { match node_pools.run().await {} });
    tasks
}

async fn until_labelled(cluster: &Cluster, namespace: &str, is_labelled: bool) {
    let namespaces: Api<DynamicObject> = Api::all_with(cluster.client(), &ApiResource::erase::<Namespace>(&()));
    until(&namespaces, namespace, |namespace| namespace.labels().contains_key(MACHINES_LABEL) == is_labelled).await;
}

/// Waits until the pool `workers` has these addresses.
async fn until_addresses(hosted: &Hosted, addresses: &'static str) -> StaticIPPool {
    let is = |pool: Option<&StaticIPPool>| pool.is_some_and(|pool| pool.spec.addresses == [addresses]);
    timeout(PATIENCE, await_condition(hosted.pools.clone(), "workers", is)).await.unwrap().unwrap().unwrap()
}

/// Returns the condition of a NodePool about its pools. Null: the NodePool does not have the condition.
fn condition(node_pool: &DynamicObject) -> &Value {
    let conditions = node_pool.data["status"]["conditions"].as_array().into_iter().flatten();
    conditions.into_iter().find(|condition| condition["type"] == CONDITION).unwrap_or(&Value::Null)
}

/// Sets the condition of a pool, as the reconciler of pools does.
async fn set_exhausted(hosted: &Hosted, pool: &str, status: &str) {
    let condition = json!({
        "type": "Exhausted", "status": status, "reason": "r", "lastTransitionTime": "2026-08-14T10:00:00Z",
        "message": "No available IPs in pool for interface eno101",
    });
    merge_status(&hosted.pools, pool, &json!({"status": {"conditions": [condition]}})).await;
}

pub async fn a_namespace_has_the_label_while_a_pool_serves_its_machines(cluster: &Cluster) {
    let hosted = Hosted::new(cluster).await;
    let _tasks = start(cluster, &hosted);
    hosted.node_pool("workers", 0, &json!({})).await;
    hosted.pool("workers", &["10.0.0.8-10.0.0.9"]).await;
    until_labelled(cluster, &hosted.namespace, true).await;
    hosted.pools.delete("workers", &DeleteParams::default()).await.unwrap();
    until_labelled(cluster, &hosted.namespace, false).await;
}

pub async fn a_label_that_a_person_has_set_on_a_namespace_stays(cluster: &Cluster) {
    label_stays(cluster, "kubectl").await;
}

/// Earlier versions of the controller have one field manager for every scope.
pub async fn a_label_that_an_earlier_version_has_set_on_a_namespace_stays(cluster: &Cluster) {
    label_stays(cluster, "glowplug-controller").await;
}

/// Checks that the label of another field manager stays on a namespace until this manager removes it.
async fn label_stays(cluster: &Cluster, manager: &str) {
    let hosted = Hosted::new(cluster).await;
    let namespaces: Api<Namespace> = Api::all(cluster.client());
    let apply = async |metadata: Value| {
        let namespace = Patch::Apply(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}));
        namespaces.patch(&hosted.clusters, &PatchParams::apply(manager), &namespace).await.unwrap();
    };
    apply(json!({"name": hosted.clusters, "labels": {(MACHINES_LABEL): "true"}})).await;
    let _tasks = start(cluster, &hosted);
    hosted.node_pool("workers", 0, &json!({})).await;
    hosted.pool("workers", &["10.0.0.8-10.0.0.9"]).await;
    until_labelled(cluster, &hosted.namespace, true).await;
    hosted.pools.delete("workers", &DeleteParams::default()).await.unwrap();
    // The leader updates all namespaces in one pass, in the order of their names. When the second namespace has no
    // label any more, the leader has also processed the first one.
    until_labelled(cluster, &hosted.namespace, false).await;
    until_labelled(cluster, &hosted.clusters, true).await;
    apply(json!({"name": hosted.clusters})).await;
    until_labelled(cluster, &hosted.clusters, false).await;
}

pub async fn a_leader_never_removes_the_label_that_a_leader_of_another_scope_has_set(cluster: &Cluster) {
    let (hosted, other) = (Hosted::new(cluster).await, Hosted::new(cluster).await);
    let serve = async |hosted: &Hosted| {
        let tasks = start(cluster, hosted);
        hosted.node_pool("workers", 0, &json!({})).await;
        hosted.pool("workers", &["10.0.0.8-10.0.0.9"]).await;
        until_labelled(cluster, &hosted.namespace, true).await;
        tasks
    };
    let _tasks = serve(&hosted).await;
    let namespaces: Api<Namespace> = Api::all(cluster.client());
    let of_name = watcher::Config::default().fields(&format!("metadata.name={}", hosted.namespace));
    let mut seen = Box::pin(watcher(namespaces.clone(), of_name).applied_objects());
    assert!(seen.next().await.unwrap().unwrap().labels().contains_key(MACHINES_LABEL));
    let _others = serve(&other).await;
    // The second update of a namespace follows a pass over all namespaces.
    other.pools.delete("workers", &DeleteParams::default()).await.unwrap();
    until_labelled(cluster, &other.namespace, false).await;
    merge(&namespaces, &hosted.namespace, &json!({"metadata": {"annotations": {"last": "true"}}})).await;
    loop {
        let namespace = seen.next().await.unwrap().unwrap();
        assert!(namespace.labels().contains_key(MACHINES_LABEL));
        if namespace.annotations().contains_key("last") {
            break;
        }
    }
    hosted.pools.delete("workers", &DeleteParams::default()).await.unwrap();
    until_labelled(cluster, &hosted.namespace, false).await;
}

pub async fn a_node_pool_with_an_exhausted_pool_gets_a_condition_and_an_event(cluster: &Cluster) {
    let hosted = Hosted::new(cluster).await;
    let _tasks = start(cluster, &hosted);
    hosted.node_pool("workers", 0, &json!({})).await;
    hosted.pool("workers", &["10.0.0.8-10.0.0.9"]).await;
    let is = |status: &'static str| move |node_pool: &DynamicObject| condition(node_pool)["status"] == status;
    until(&hosted.node_pools, "workers", is("False")).await;
    set_exhausted(&hosted, "workers", "True").await;
    let node_pool = until(&hosted.node_pools, "workers", is("True")).await;
    let message = "No available IPs in pool for interface eno101";
    assert_eq!(condition(&node_pool)["message"], message);
    assert_eq!(hosted.until_event_in(&hosted.clusters, "workers", "IPPoolExhausted").await, message);

    // HyperShift writes the whole list of conditions from its cache, without the condition of the controller.
    let ready = json!({"type": "Ready", "status": "True"});
    merge_status(&hosted.node_pools, "workers", &json!({"status": {"conditions": [ready]}})).await;
    let node_pool = until(&hosted.node_pools, "workers", is("True")).await;
    assert_eq!(node_pool.data["status"]["conditions"][0], ready);
    set_exhausted(&hosted, "workers", "False").await;
    until(&hosted.node_pools, "workers", is("False")).await;
    hosted.pools.delete("workers", &DeleteParams::default()).await.unwrap();
    until(&hosted.node_pools, "workers", |node_pool| condition(node_pool).is_null()).await;
}

pub async fn a_pool_of_the_same_name_is_derived_from_the_configuration_of_a_node_pool(cluster: &Cluster) {
    let hosted = Hosted::new(cluster).await;
    let node_pool = hosted.node_pool("workers", 0, &json!({})).await;
    hosted.set_bootstrap_network_config("workers").await;
    let _tasks = start(cluster, &hosted);
    let config = json!({
        "network": "any-name", "addresses": ["10.0.0.8/30"], "gateway": ["10.0.0.9"], "nameservers": ["10.0.0.9"],
    });
    hosted.configure("workers", &config).await;
    let pool = until_addresses(&hosted, "10.0.0.8/30").await;
    let expected = PoolSpec {
        network: hosted.network.clone(),
        addresses: vec!["10.0.0.8/30".to_owned()],
        gateway: vec!["10.0.0.9".to_owned()],
        nameservers: vec!["10.0.0.9".to_owned()],
        node_pool_ref: Some(NodePoolRef { name: "workers".to_owned() }),
        ..PoolSpec::default()
    };
    assert_eq!((&pool.spec, &pool.owner_references()[0].uid), (&expected, &node_pool.uid().unwrap()));
    hosted.configure("workers", &json!({"addresses": ["10.0.0.8/29"], "excludedAddresses": ["10.0.0.10"]})).await;
    let pool = until_addresses(&hosted, "10.0.0.8/29").await;
    assert_eq!((pool.spec.excluded_addresses, pool.spec.gateway), (vec!["10.0.0.10".to_owned()], expected.gateway));
    hosted.configure("workers", &Value::Null).await;
    let is_gone = |pool: Option<&StaticIPPool>| pool.is_none();
    timeout(PATIENCE, await_condition(hosted.pools.clone(), "workers", is_gone)).await.unwrap().unwrap();
}

pub async fn a_node_pool_with_unreadable_managed_fields_gets_its_pool_and_its_events(cluster: &Cluster) {
    let hosted = Hosted::plain(cluster).await;
    let network = json!({"networking": {"machineNetwork": [{"cidr": "10.0.0.0/16"}]}});
    let hosted_cluster = object(HOSTED_CLUSTER, json!({"metadata": {"name": hosted.name}, "spec": network}));
    let hosted_clusters: Api<DynamicObject> =
        Api::namespaced_with(cluster.client(), &hosted.clusters, &resource(HOSTED_CLUSTER));
    hosted_clusters.create(&PostParams::default(), &hosted_cluster).await.unwrap();
    hosted.node_pool("workers", 0, &json!({})).await;
    hosted.set_bootstrap_network_config("workers").await;
    let config = json!({"network": "any-name", "addresses": ["10.0.0.8-10.0.0.9"], "gateway": ["10.0.0.1"], "nameservers": ["10.0.0.1"]});
    hosted.configure("workers", &config).await;
    for (kind, name) in [(HOSTED_CLUSTER, hosted.name.as_str()), (NODE_POOL, "workers")] {
        make_fields_unreadable(&cluster.client(), &resource(kind), Some(&hosted.clusters), name).await;
    }
    let _tasks = start(cluster, &hosted);
    let pool = until_addresses(&hosted, "10.0.0.8-10.0.0.9").await;
    assert_eq!(pool.spec.machine_network, [MachineNetwork { cidr: "10.0.0.0/16".to_owned() }]);
    set_exhausted(&hosted, "workers", "True").await;
    let message = "No available IPs in pool for interface eno101";
    assert_eq!(hosted.until_event_in(&hosted.clusters, "workers", "IPPoolExhausted").await, message);
}

pub async fn a_pool_that_a_user_has_created_keeps_its_specification(cluster: &Cluster) {
    let hosted = Hosted::new(cluster).await;
    hosted.node_pool("workers", 0, &json!({})).await;
    hosted.set_bootstrap_network_config("workers").await;
    let own = hosted.pool("workers", &["10.0.0.8-10.0.0.9"]).await;
    let config = json!({
        "network": "any-name", "addresses": ["10.0.0.16/30"], "gateway": ["10.0.0.17"], "nameservers": ["10.0.0.17"],
    });
    hosted.configure("workers", &config).await;
    let _tasks = start(cluster, &hosted);
    let note =
        format!("pool {}/workers is not derived from this NodePool, expected no pool of this name", hosted.clusters);
    assert_eq!(hosted.until_event_in(&hosted.clusters, "workers", "PoolNotDerived").await, note);
    // The pool stays, even if the configuration is removed.
    hosted.configure("workers", &Value::Null).await;
    hosted.node_pool("others", 0, &json!({})).await;
    hosted.configure("others", &config).await;
    let is_there = |pool: Option<&StaticIPPool>| pool.is_some();
    timeout(PATIENCE, await_condition(hosted.pools.clone(), "others", is_there)).await.unwrap().unwrap();
    let pool = hosted.pools.get("workers").await.unwrap();
    assert_eq!((pool.metadata, pool.spec), (own.metadata, own.spec));
}

/// Tests the example of the enhancement proposal, from the NodePool to the kernel arguments of a guest.
pub async fn machines_boot_with_addresses_from_the_configuration_of_their_node_pool(cluster: &Cluster) {
    let mut hosted = Hosted::new(cluster).await;
    hosted.network = format!("{}/my-nad-1", hosted.namespace);
    hosted.set_machine_network(&["192.168.1.0/24", "2620:0:860:2::/64"]).await;
    let networks = json!({"additionalNetworks": [{"name": "my-nad-1"}], "attachDefaultNetwork": false});
    hosted.node_pool("workers", 0, &json!({"spec": {"platform": {"kubevirt": networks}}})).await;
    hosted.set_bootstrap_network_config("workers").await;
    let config = json!({
        "network": "my-nad-1-network",
        "addresses": ["192.168.1.10-192.168.1.50", "2620:0:860:2::10-2620:0:860:2::50"],
        "nameservers": ["8.8.8.8"],
        "gateway": ["192.168.1.1", "2620:0:860:2::1"],
    });
    hosted.configure("workers", &config).await;
    let installed = Installed::start(cluster).await;
    installed.until_asked(&hosted, "workers").await;
    hosted.scale("workers", 1).await;
    let drive = hosted.until_running("workers-0").await;
    let vm = hosted.vms.get("workers-0").await.unwrap();
    let interface = &vm.data["spec"]["template"]["spec"]["domain"]["devices"]["interfaces"][0];
    assert_eq!(interface["acpiIndex"], 101);
    let mac = interface["macAddress"].as_str().unwrap();
    let arguments = dracut::render(&drive.network().unwrap(), &mut Diagnostics::default()).line;
    let expected = format!(
        "ip=192.168.1.10::192.168.1.1:24::[{mac}]:none ip=[2620:0:860:2::10]::[2620:0:860:2::1]:64::[{mac}]:none \
         nameserver=8.8.8.8"
    );
    assert_eq!(arguments, expected);

    // A change of the configuration changes the pool. The machines keep their addresses.
    let held = hosted.held().await;
    hosted.configure("workers", &json!({"addresses": ["192.168.1.60", "2620:0:860:2::60"]})).await;
    let is_changed = |pool: Option<&StaticIPPool>| {
        let counts = pool.and_then(|pool| pool.status.as_ref()).and_then(|status| status.ip_addresses);
        counts.is_some_and(|counts| counts.total == 2)
    };
    timeout(PATIENCE, await_condition(hosted.pools.clone(), "workers", is_changed)).await.unwrap().unwrap();
    hosted.scale("workers", 2).await;
    let addresses = hosted.until_running("workers-1").await.addresses();
    let addresses: Vec<&str> = addresses.iter().map(|(_, address)| address.as_str()).collect();
    assert_eq!(addresses, ["192.168.1.60", "2620:0:860:2::60"]);
    let mut kept = hosted.held().await;
    kept.retain(|(_, name)| name == "workers-0");
    assert_eq!(kept, held);

    // Without the configuration, machines keep their addresses, and new machines get no address.
    hosted.configure("workers", &Value::Null).await;
    installed.until_not_selected(&hosted, "workers").await;
    hosted.scale("workers", 3).await;
    assert_eq!(hosted.until_running("workers-2").await.network_data, None);
    assert_eq!(hosted.restart("workers-0").await.network_data, drive.network_data);
    // The pool is derived again after its last address is released.
    hosted.configure("workers", &config).await;
    let note =
        format!("pool {}/workers is being deleted, and stays until its last address is released", hosted.clusters);
    assert_eq!(hosted.until_event_in(&hosted.clusters, "workers", "PoolNotDerived").await, note);
    hosted.scale("workers", 0).await;
    hosted.until_held(0).await;
    let is_new = |pool: Option<&StaticIPPool>| {
        pool.is_some_and(|pool| pool.metadata.deletion_timestamp.is_none() && pool.spec.addresses.len() == 2)
    };
    timeout(PATIENCE, await_condition(hosted.pools.clone(), "workers", is_new)).await.unwrap().unwrap();
    installed.stop().await;
}
