//! One pool for the machines of several clusters or namespaces.

use std::collections::BTreeSet;

use glowplug_controller::kinds::network_data::new_name;
use glowplug_controller::kinds::pool::{GlobalPoolSpec, GlobalStaticIPPool, PoolSpec};
use glowplug_controller::pools::node_pools::CONDITION;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{ApiResource, DeleteParams, DynamicObject, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::support::Cluster;
use crate::support::controller::{Site, merge, until};
use crate::support::hosted::{Hosted, poll};
use crate::support::installed::{Installed, labels};

const EXHAUSTED: &str = "No available IPs in pool for interface eno101";
const ANNOTATION: &str = "kubevirt.cluster.x-k8s.io/allocated-ip-eno101";

/// A GlobalStaticIPPool on the network of a hosted cluster.
pub(crate) struct Shared {
    pub(crate) name: String,
    pub(crate) pools: Api<GlobalStaticIPPool>,
}

impl Shared {
    /// Creates the pool. Its name is the namespace of the pools of `hosted`. Merges `members` into the specification of
    /// the pool.
    pub(crate) async fn new(cluster: &Cluster, hosted: &Hosted, addresses: &[&str], members: Value) -> Self {
        let (name, pools) = (hosted.clusters.clone(), Api::all(cluster.client()));
        let mut pool =
            serde_json::to_value(PoolSpec { node_pool_ref: None, ..hosted.spec("none", addresses) }).unwrap();
        json_patch::merge(&mut pool, &members);
        let pool = GlobalPoolSpec { pool: serde_json::from_value(pool).unwrap() };
        pools.create(&PostParams::default(), &GlobalStaticIPPool::new(&name, pool)).await.unwrap();
        Self { name, pools }
    }

    async fn change(&self, members: Value) {
        merge(&self.pools, &self.name, &json!({"spec": members})).await;
    }

    /// Waits until a condition of the pool has this status, and returns the reason and the message of the condition.
    pub(crate) async fn until_condition(&self, type_: &str, status: &str) -> [String; 2] {
        poll(&format!("{type_} {status} of {}", self.name), async || {
            let conditions = self.pools.get(&self.name).await.unwrap().status?.conditions;
            let found = conditions.into_iter().find(|it| it.type_ == type_ && it.status == status)?;
            Some([found.reason, found.message])
        })
        .await
    }
}

/// Returns references to NodePools of hosted clusters in one namespace.
fn references(hosted: &Hosted, names: &[&str]) -> Value {
    let reference = |name: &&str| json!({"namespace": hosted.clusters, "name": name});
    json!({"nodePoolRefs": names.iter().map(reference).collect::<Vec<_>>()})
}

/// Starts another hosted cluster on the network of the first cluster, and creates its NodePool.
async fn beside(cluster: &Cluster, first: &Hosted, name: &str, node_pool: &str) -> Hosted {
    let mut hosted = Hosted::start(cluster, &first.clusters, name, "{}").await;
    hosted.network.clone_from(&first.network);
    hosted.node_pool(node_pool, 0, &json!({})).await;
    hosted
}

/// Starts two hosted clusters with the NodePools `blue` and `green`, and creates a pool for both NodePools.
async fn two_clusters<'c>(cluster: &'c Cluster, addresses: &[&str]) -> (Hosted, Hosted, Shared, Installed<'c>) {
    let blue = Hosted::new(cluster).await;
    blue.node_pool("blue", 0, &json!({})).await;
    let green = beside(cluster, &blue, "c2", "green").await;
    let shared = Shared::new(cluster, &blue, addresses, references(&blue, &["blue", "green"])).await;
    let installed = Installed::start(cluster).await;
    installed.until_asked(&blue, "blue").await;
    installed.until_asked(&green, "green").await;
    (blue, green, shared, installed)
}

/// Scales a NodePool to `count` machines, and returns their addresses.
async fn addresses(hosted: &Hosted, node_pool: &str, count: usize) -> Vec<String> {
    hosted.scale(node_pool, count).await;
    let mut addresses = Vec::new();
    for n in 0..count {
        addresses.push(hosted.address_of(&format!("{node_pool}-{n}")).await);
    }
    addresses
}

pub async fn machines_of_two_clusters_get_addresses_of_one_pool(cluster: &Cluster) {
    let (blue, green, shared, installed) = two_clusters(cluster, &["10.0.0.8/29"]).await;
    let [reason, message] = shared.until_condition("NodePoolFound", "True").await;
    let of = |name: &str| format!("NodePool {}/{name}", blue.clusters);
    assert_eq!(
        (reason.as_str(), message),
        ("Found", format!("The pool serves the machines of {}, {}", of("blue"), of("green")))
    );
    let mut all = addresses(&blue, "blue", 3).await;
    all.extend(addresses(&green, "green", 5).await);
    let expected: BTreeSet<String> = (8..16).map(|n| format!("10.0.0.{n}")).collect();
    assert_eq!(BTreeSet::from_iter(all), expected);
    assert_eq!(blue.held().await.into_iter().map(|(address, _)| address).collect::<BTreeSet<_>>(), expected);

    // The NodePools of both clusters wait. A cluster that the pool does not name gets no address, even if its machines
    // have the same labels.
    for name in ["blue", "green"] {
        let node_pool = until(&blue.node_pools, name, |node_pool| exhausted(node_pool)["status"] == "True").await;
        assert_eq!(exhausted(&node_pool)["message"], format!("{EXHAUSTED}: pool {}, IPv4", shared.name));
    }
    let evil = beside(cluster, &blue, "c3", "evil").await;
    for (name, labelled_as) in [("blue-9", &blue), ("green-9", &green)] {
        let node_pool = name.trim_end_matches("-9");
        let vm = evil.vm(name, &labels(labelled_as, name, node_pool), &json!({}));
        evil.vms.create(&PostParams::default(), &vm).await.unwrap();
        assert_eq!(evil.until_running(name).await.network_data_secret, None);
    }
    assert_eq!(blue.held().await.len(), 8);
    green.scale("green", 4).await;
    green.until_gone(&green.machines, "green-4").await;
    blue.scale("blue", 4).await;
    assert!(expected.contains(&blue.address_of("blue-3").await));
    installed.stop().await;
}

/// Returns the condition of a NodePool about its pools. Null: the NodePool does not have the condition.
fn exhausted(node_pool: &DynamicObject) -> &Value {
    let conditions = node_pool.data["status"]["conditions"].as_array().into_iter().flatten();
    conditions.into_iter().find(|condition| condition["type"] == CONDITION).unwrap_or(&Value::Null)
}

pub async fn machines_of_two_clusters_keep_their_addresses_when_leases_are_lost(cluster: &Cluster) {
    let (blue, green, _shared, mut installed) = two_clusters(cluster, &["10.0.0.8/29"]).await;
    addresses(&blue, "blue", 2).await;
    addresses(&green, "green", 2).await;
    let held = blue.held().await;
    for (hosted, node_pool) in [(&blue, "blue"), (&green, "green")] {
        for n in 0..2 {
            hosted.until_annotated(&format!("{node_pool}-{n}"), ANNOTATION).await;
        }
    }
    installed.stop_leading();
    blue.forget_leases().await;
    // A user of another namespace writes the address of a machine into a record.
    let evil = beside(cluster, &blue, "c3", "evil").await;
    super::adoption::recorded_machine(&evil, "blue-0", &held[0].0).await;
    installed.lead().await;
    poll("the leases", async || (blue.held().await == held).then_some(())).await;
    let next = addresses(&blue, "blue", 4).await;
    assert!(held.iter().all(|(address, _)| !next[2..].contains(address)), "{held:?} {next:?}");
    installed.stop().await;
}

pub async fn the_machines_of_a_node_pool_that_a_pool_no_longer_names_keep_their_addresses(cluster: &Cluster) {
    let (blue, green, shared, installed) = two_clusters(cluster, &["10.0.0.8/30"]).await;
    let kept = addresses(&green, "green", 1).await.remove(0);
    shared.change(references(&blue, &["blue", "absent"])).await;
    installed.until_not_selected(&green, "green").await;
    let [reason, message] = shared.until_condition("NodePoolFound", "False").await;
    let expected = format!(
        "These NodePools do not exist, so the pool selects no machine of them: NodePool {}/absent",
        blue.clusters
    );
    assert_eq!((reason.as_str(), message), ("NodePoolNotFound", expected));
    let others = addresses(&blue, "blue", 3).await;
    let all: BTreeSet<String> = others.into_iter().chain([kept.clone()]).collect();
    assert_eq!(all, (8..12).map(|n| format!("10.0.0.{n}")).collect());
    assert!(green.held().await.contains(&(kept.clone(), "green-0".to_owned())));
    // The address is free after the machine is gone, but only for the cluster that the pool still names.
    green.scale("green", 0).await;
    green.until_gone(&green.vms, "green-0").await;
    blue.scale("blue", 4).await;
    assert_eq!(blue.address_of("blue-3").await, kept);
    installed.stop().await;
}

/// Sets or, with null, removes the label by which a pool selects a Namespace.
pub(crate) async fn label(cluster: &Cluster, hosted: &Hosted, key: &str, value: Value) {
    let namespaces: Api<DynamicObject> = Api::all_with(cluster.client(), &ApiResource::erase::<Namespace>(&()));
    merge(&namespaces, &hosted.namespace, &json!({"metadata": {"labels": {(key): value}}})).await;
}

/// Creates a machine without a KubevirtMachine. No program would create such a machine again, so the webhook does not
/// reject the machine when the pool is exhausted.
pub(crate) async fn create(hosted: &Hosted, name: &str) {
    let drive = json!({"networkDataSecretRef": {"name": new_name(name).unwrap()}});
    hosted.vms.create(&PostParams::default(), &hosted.vm(name, &json!({"app": "x"}), &drive)).await.unwrap();
}

pub async fn a_shared_pool_first_serves_the_namespace_with_the_fewest_addresses(cluster: &Cluster) {
    let [blue, mut green, mut other] =
        [Hosted::plain(cluster).await, Hosted::plain(cluster).await, Hosted::plain(cluster).await];
    green.network.clone_from(&blue.network);
    other.network.clone_from(&blue.network);
    let key = format!("example.com/{}", blue.namespace);
    for hosted in [&blue, &green] {
        label(cluster, hosted, &key, json!("true")).await;
    }
    let members = json!({
        "namespaceSelector": {"matchLabels": {key.clone(): "true"}}, "machineSelector": {"matchLabels": {"app": "x"}},
    });
    let shared = Shared::new(cluster, &blue, &["10.0.0.8", "10.0.0.9", "10.0.0.10"], members).await;
    let installed = Installed::start(cluster).await;
    let listed = shared.until_condition("NamespacesListed", "True").await;
    assert_eq!(listed, ["Listed", "Namespaces that the pool selects: 2"]);
    for name in ["a", "b", "c"] {
        create(&blue, name).await;
        blue.until_running(name).await;
    }
    // The machines of namespace `green` are the youngest, but wait at the front of the queue: `green` holds no address
    // yet.
    for (hosted, name) in [(&blue, "d"), (&blue, "e"), (&green, "f"), (&green, "g")] {
        create(hosted, name).await;
        let expected = format!("{EXHAUSTED}: pool {}, IPv4", shared.name);
        assert_eq!(hosted.until_event(name, "IPPoolExhausted").await, expected);
    }
    let waiting = poll("four machines that wait", async || {
        let status = shared.pools.get(&shared.name).await.unwrap().status?;
        (status.waiting == 4).then_some(status.first_waiting)
    })
    .await;
    let waiting: Vec<&str> = waiting.iter().map(|it| it.name.as_str()).collect();
    assert_eq!(waiting, ["f", "g", "d", "e"]);
    // A machine in a namespace that the pool does not select gets no address, even if it has the labels.
    let outside = other.vm("outside", &json!({"app": "x"}), &json!({}));
    other.vms.create(&PostParams::default(), &outside).await.unwrap();
    assert_eq!(other.until_running("outside").await.network_data_secret, None);
    // A claim in such a namespace gets no address either.
    let site = Site::of(cluster, &other.namespace, "v1beta2");
    let pool_ref = json!({"kind": "GlobalStaticIPPool", "name": shared.name});
    site.claim("outside", &json!({"spec": {"poolRef": pool_ref}})).await;
    let expected = format!(
        "GlobalStaticIPPool {} does not serve this claim: The pool selects other namespaces than {}",
        shared.name, other.namespace
    );
    assert_eq!(site.until_not_ready("outside", "PoolNotReady").await, expected);

    for (released, next, address) in [("a", (&green, "f"), "10.0.0.8"), ("b", (&blue, "d"), "10.0.0.9")] {
        blue.vms.delete(released, &DeleteParams::default()).await.unwrap();
        let (hosted, name) = next;
        assert_eq!(hosted.address_of(name).await, address);
    }
    installed.stop().await;
}

pub async fn machines_keep_their_addresses_when_their_namespace_gets_or_loses_the_label_of_a_pool(cluster: &Cluster) {
    let [blue, mut green] = [Hosted::plain(cluster).await, Hosted::plain(cluster).await];
    green.network.clone_from(&blue.network);
    let key = format!("example.com/{}", blue.namespace);
    label(cluster, &blue, &key, json!("true")).await;
    let members = json!({"namespaceSelector": {"matchLabels": {key.clone(): "true"}}});
    // A machine runs with the first address. The pool does not select the namespace of this machine yet.
    let record = json!({"metadata": {"annotations": {(ANNOTATION): r#"["10.0.0.8/16"]"#}}});
    let mut vm = green.vm("known", &json!({}), &json!({}));
    vm.annotations_mut().extend([(ANNOTATION.to_owned(), r#"["10.0.0.8/16"]"#.to_owned())]);
    green.vms.create(&PostParams::default(), &vm).await.unwrap();
    green.until_running("known").await;
    assert_eq!(
        green.vms.get("known").await.unwrap().annotations()[ANNOTATION],
        record["metadata"]["annotations"][ANNOTATION]
    );
    let shared = Shared::new(cluster, &blue, &["10.0.0.8/31"], members).await;
    let installed = Installed::start(cluster).await;
    shared.until_condition("Ready", "True").await;
    label(cluster, &green, &key, json!("true")).await;
    poll("the lease of the record", async || {
        green.held().await.contains(&("10.0.0.8".to_owned(), "known".to_owned())).then_some(())
    })
    .await;
    create(&blue, "new").await;
    assert_eq!(blue.address_of("new").await, "10.0.0.9");
    // The machine keeps its address when the namespace loses the label.
    label(cluster, &green, &key, Value::Null).await;
    let listed = async || (shared.until_condition("NamespacesListed", "True").await[1].ends_with(": 1")).then_some(());
    poll("one namespace", listed).await;
    create(&blue, "second").await;
    assert_eq!(blue.until_event("second", "IPPoolExhausted").await, format!("{EXHAUSTED}: pool {}, IPv4", shared.name));
    assert!(green.held().await.contains(&("10.0.0.8".to_owned(), "known".to_owned())));
    installed.stop().await;
}
