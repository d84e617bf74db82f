//! Tests clusters in which kinds or objects of KubeVirt, cluster-api-provider-kubevirt and HyperShift are missing, are
//! installed later, or cannot be listed.

use std::sync::Arc;
use std::time::Duration;

use glowplug_controller::cluster::events::Events;
use glowplug_controller::kinds::network_data::is_issued_for;
use glowplug_controller::kinds::pool::{StaticIPLease, StaticIPPool};
use glowplug_controller::pools::facts::Scope;
use glowplug_controller::pools::node_pools::NodePools;
use glowplug_controller::pools::selection_cache::SelectionCache;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DeleteParams, DynamicObject, ListParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::support::cluster_api;
use crate::support::controller::{Controller, Site, merge, until};
use crate::support::hosted::definitions::{
    HOSTED_CLUSTER, INSTANCE, IPAM_CLAIM, KUBEVIRT_MACHINE, Members, NETWORK_ATTACHMENT, NODE_POOL, Names,
    VIRTUAL_MACHINE, definition,
};
use crate::support::hosted::provider::object;
use crate::support::hosted::{Hosted, poll};
use crate::support::installed::{Installed, labels};
use crate::support::ipam_claims::{NETWORK, Tenant};
use crate::support::replica::Replica;
use crate::support::server::{Call, Fault, Server};
use crate::support::{CONTROLLER, Cluster, start_server};

const ANNOTATION: &str = "kubevirt.cluster.x-k8s.io/allocated-ip-eno101";

fn of(kinds: &[Names]) -> Vec<CustomResourceDefinition> {
    kinds.iter().map(|names| definition(*names, Members::default())).collect()
}

/// Installs kinds, and advances the clock by a minute: replicas then ask the API server again which kinds it serves.
async fn install(cluster: &Cluster, kinds: &[Names]) {
    for definition in of(kinds) {
        cluster.define(&definition).await;
    }
    pass_a_minute().await;
}

async fn pass_a_minute() {
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(61)).await;
    tokio::time::resume();
}

/// Creates one pool that selects all VirtualMachines of the namespace.
async fn create_pool(hosted: &Hosted, addresses: &[&str]) {
    let mut spec = hosted.spec("", addresses);
    spec.node_pool_ref = None;
    spec.machine_selector = Some(Default::default());
    hosted.pools.create(&PostParams::default(), &StaticIPPool::new("p", spec)).await.unwrap();
}

/// Creates a VirtualMachine without a reference to network data.
async fn create_vm(hosted: &Hosted, name: &str, labels: &Value) -> DynamicObject {
    let vm = hosted.vm(name, labels, &json!({"userData": "#ignition"}));
    hosted.vms.create(&PostParams::default(), &vm).await.unwrap()
}

/// Returns the kind and the UID of the holder of an address. Null: the address has no holder.
async fn holder(hosted: &Hosted, address: &str) -> Value {
    let leases: Api<StaticIPLease> = Api::all(hosted.client.clone());
    let leases = leases.list(&ListParams::default()).await.unwrap().items.into_iter().map(|lease| lease.spec);
    let is_meant = |lease: &glowplug_controller::kinds::pool::LeaseSpec| {
        lease.address == address && lease.network == hosted.network && lease.released.is_none()
    };
    let holder = leases.into_iter().find(is_meant).map(|lease| json!([lease.holder.kind, lease.holder.uid]));
    holder.unwrap_or_default()
}

#[tokio::test]
async fn claims_are_served_without_kubevirt_and_kubevirt_can_be_installed_later() {
    let server = Server::start().await;
    let cluster = Cluster::with(Cluster::config_of(&server), cluster_api::definitions()).await;
    let site = Site::new(&cluster).await;
    site.pool("p", &["10.0.0.8/31"]).await;
    let mut leader = Controller::of(&cluster, "");
    leader.until_ready().await;
    site.claim("c", &json!({})).await;
    assert_eq!(site.address_of("c").await, "10.0.0.8");

    install(&cluster, &[VIRTUAL_MACHINE, INSTANCE]).await;
    let hosted = Hosted::plain(&cluster).await;
    hosted.kubevirt.be_late();
    create_pool(&hosted, &["10.0.0.8/31"]).await;
    create_vm(&hosted, "a", &json!({})).await;
    assert_eq!(hosted.address_of("a").await, "10.0.0.8");
    assert_eq!(site.held().await, [("10.0.0.8".to_owned(), "c".to_owned())]);
}

#[tokio::test]
async fn without_the_kind_kubevirt_machine_a_vm_holds_its_address_until_its_guest_has_ended() {
    let server = Server::start().await;
    let cluster = Cluster::with(Cluster::config_of(&server), of(&[VIRTUAL_MACHINE, INSTANCE])).await;
    let hosted = Hosted::plain(&cluster).await;
    create_pool(&hosted, &["10.0.0.8/32"]).await;
    let installed = Installed::start(&cluster).await;
    installed.until_asked(&hosted, "").await;
    let a = create_vm(&hosted, "a", &json!({})).await;
    let source = &a.data["spec"]["template"]["spec"]["volumes"][0]["cloudInitConfigDrive"];
    let name = source["networkDataSecretRef"]["name"].as_str().unwrap();
    assert!(is_issued_for(name, "a"), "{name}");
    assert_eq!(hosted.address_of("a").await, "10.0.0.8");
    assert_eq!(holder(&hosted, "10.0.0.8").await, json!(["VirtualMachine", a.uid()]));
    let written = until(&hosted.vms, "a", |vm| vm.annotations().contains_key(ANNOTATION)).await;
    assert_eq!(written.annotations()[ANNOTATION], r#"["10.0.0.8/16"]"#);

    // The webhook does not reject a machine without a KubevirtMachine if the pool is exhausted: no program would create
    // the machine again.
    hosted.until_condition("p", "Exhausted").await;
    let b = create_vm(&hosted, "b", &json!({})).await;
    let exhausted = format!("No available IPs in pool for interface eno101: pool {}/p, IPv4", hosted.namespace);
    assert_eq!(hosted.until_event("b", "IPPoolExhausted").await, exhausted);
    // The VirtualMachine is gone, but its guest still runs.
    hosted.kubevirt.hold("a");
    hosted.vms.delete("a", &DeleteParams::default()).await.unwrap();
    until(&hosted.instances, "a", |instance| instance.metadata.deletion_timestamp.is_some()).await;
    merge(&hosted.vms, "a", &json!({"metadata": {"finalizers": null}})).await;
    hosted.until_gone(&hosted.vms, "a").await;
    // When the leader has served a later machine of another pool, it has also processed the deletion of machine `a`.
    let other = Hosted::plain(&cluster).await;
    create_pool(&other, &["10.0.0.8/32"]).await;
    installed.until_asked(&other, "").await;
    create_vm(&other, "c", &json!({})).await;
    assert_eq!(other.address_of("c").await, "10.0.0.8");
    assert_eq!(holder(&hosted, "10.0.0.8").await, json!(["VirtualMachine", a.uid()]));
    hosted.kubevirt.end("a").await;
    assert_eq!(hosted.address_of("b").await, "10.0.0.8");
    assert_eq!(holder(&hosted, "10.0.0.8").await, json!(["VirtualMachine", b.uid()]));
    installed.stop().await;
}

#[tokio::test]
async fn without_the_kind_ipam_claim_other_claims_are_served_and_the_kind_can_be_installed_later() {
    let server = Server::start().await;
    let cluster = Cluster::with(Cluster::config_of(&server), cluster_api::definitions()).await;
    let tenant = Tenant::without_network(&cluster).await;
    tenant.pool(&["10.0.0.8/30"]).await;
    let mut leader = Controller::of(&cluster, "");
    leader.until_ready().await;
    tenant.site.claim("c", &json!({})).await;
    assert_eq!(tenant.site.address_of("c").await, "10.0.0.8");

    install(&cluster, &[IPAM_CLAIM]).await;
    tenant.claim("a", &json!({})).await;
    install(&cluster, &[NETWORK_ATTACHMENT]).await;
    tenant.create_network(NETWORK).await;
    assert_eq!(tenant.ips_of("a").await, ["10.0.0.9/16"]);
    // The API server does not serve the kind of instances, so no guest can use the address.
    tenant.delete("a").await;
    tenant.until_gone("a").await;
    assert_eq!(tenant.site.held().await, [("10.0.0.8".to_owned(), "c".to_owned())]);
}

#[tokio::test]
async fn kubevirt_machines_hold_addresses_as_soon_as_the_kind_is_installed() {
    let server = Server::start().await;
    let cluster = Cluster::with(Cluster::config_of(&server), of(&[VIRTUAL_MACHINE, INSTANCE])).await;
    let hosted = Hosted::plain(&cluster).await;
    create_pool(&hosted, &["10.0.0.8/30"]).await;
    let installed = Installed::start(&cluster).await;
    installed.until_asked(&hosted, "").await;
    // The KubevirtMachine of this VirtualMachine is in another cluster.
    let a = create_vm(&hosted, "a", &labels(&hosted, "a", "workers")).await;
    assert_eq!(hosted.address_of("a").await, "10.0.0.8");

    server.take_calls();
    install(&cluster, &[KUBEVIRT_MACHINE]).await;
    poll("a leader that watches the kind", async || {
        let is_meant = |call: &Call| call.user == CONTROLLER && call.plural == "kubevirtmachines";
        server.take_calls().iter().any(is_meant).then_some(())
    })
    .await;
    let machine = object(KUBEVIRT_MACHINE, json!({"metadata": {"name": "b"}, "spec": {}}));
    let machine = hosted.machines.create(&PostParams::default(), &machine).await.unwrap();
    create_vm(&hosted, "b", &labels(&hosted, "b", "workers")).await;
    assert_eq!(hosted.address_of("b").await, "10.0.0.9");
    assert_eq!(holder(&hosted, "10.0.0.9").await, json!(["KubevirtMachine", machine.uid()]));
    assert_eq!(hosted.until_annotated("b", ANNOTATION).await, r#"["10.0.0.9/16"]"#);
    assert_eq!(holder(&hosted, "10.0.0.8").await, json!(["VirtualMachine", a.uid()]));
    assert_eq!(hosted.restart("a").await.addresses()[0].1, "10.0.0.8");
    hosted.vms.delete("a", &DeleteParams::default()).await.unwrap();
    poll("a released address", async || holder(&hosted, "10.0.0.8").await.is_null().then_some(())).await;
    installed.stop().await;
}

#[tokio::test]
async fn a_machine_that_waits_leaves_the_queue_if_no_pool_selects_it_when_a_kind_is_installed() {
    let server = Server::start().await;
    let cluster = Cluster::with(Cluster::config_of(&server), of(&[VIRTUAL_MACHINE, INSTANCE])).await;
    let hosted = Hosted::plain(&cluster).await;
    hosted.kubevirt.be_late();
    let mut spec = hosted.spec("", &["10.0.0.8/32"]);
    let selected = json!({"pool": "p"});
    spec.machine_selector = serde_json::from_value(json!({"matchLabels": selected})).unwrap();
    spec.node_pool_ref = None;
    hosted.pools.create(&PostParams::default(), &StaticIPPool::new("p", spec)).await.unwrap();
    let mut leader = Controller::of(&cluster, "");
    leader.until_ready().await;
    create_vm(&hosted, "a", &selected).await;
    assert_eq!(hosted.address_of("a").await, "10.0.0.8");
    for name in ["b", "c"] {
        create_vm(&hosted, name, &selected).await;
        hosted.until_event(name, "IPPoolExhausted").await;
    }
    // The leader learns that no pool selects the machine only after it has learned of the new kind.
    let is_watch = |call: &Call, plural: &str| call.user == CONTROLLER && call.plural == plural;
    server.set_faults(move |call| match is_watch(call, "virtualmachines") && ["list", "watch"].contains(&call.verb) {
        true => Fault::Status(500),
        false => Fault::None,
    });
    server.cut_watches();
    merge(&hosted.vms, "b", &json!({"metadata": {"labels": {"pool": null}}})).await;
    server.take_calls();
    install(&cluster, &[KUBEVIRT_MACHINE]).await;
    poll("a leader that watches the kind", async || {
        server.take_calls().iter().any(|call| is_watch(call, "kubevirtmachines")).then_some(())
    })
    .await;
    server.clear_faults();
    hosted.until_event("b", "NetworkDataMissing").await;
    hosted.vms.delete("a", &DeleteParams::default()).await.unwrap();
    assert_eq!(hosted.address_of("c").await, "10.0.0.8");
}

#[tokio::test]
async fn a_virtual_machine_holds_its_address_itself_if_its_kubevirt_machine_is_in_another_cluster() {
    let (_server, cluster) = start_server().await;
    let hosted = Hosted::plain(&cluster).await;
    create_pool(&hosted, &["10.0.0.8/31"]).await;
    let mut installed = Installed::start(&cluster).await;
    installed.until_asked(&hosted, "").await;
    let mut labels = labels(&hosted, "a", "workers");
    labels["capk.cluster.x-k8s.io/kubevirt-machine-namespace"] = "clusters-of-another-cluster".into();
    let a = create_vm(&hosted, "a", &labels).await;
    assert_eq!(hosted.address_of("a").await, "10.0.0.8");
    until(&hosted.vms, "a", |vm| vm.annotations().contains_key(ANNOTATION)).await;
    let leases: Api<StaticIPLease> = Api::all(cluster.client());
    let of_a = async || {
        let all = leases.list(&ListParams::default()).await.unwrap().items.into_iter().map(|lease| lease.spec);
        let holders: Vec<_> = all.map(|lease| (lease.holder.namespace, lease.holder.name, lease.holder.uid)).collect();
        holders
    };
    let own = [(hosted.namespace.clone(), "a".to_owned(), a.uid().unwrap())];
    assert_eq!(of_a().await, own);

    // The leases are lost. The machine keeps its address, and no other machine gets this address.
    installed.stop_leading();
    hosted.forget_leases().await;
    installed.lead().await;
    assert_eq!(of_a().await, own);
    create_vm(&hosted, "b", &json!({})).await;
    assert_eq!(hosted.address_of("b").await, "10.0.0.9");
    // No event about this machine is a warning.
    let events: Api<Event> = Api::namespaced(cluster.client(), &hosted.namespace);
    let events = events.list(&ListParams::default()).await.unwrap().items;
    let is_about_a = |event: &Event| event.regarding.as_ref().is_some_and(|object| object.name.as_deref() == Some("a"));
    let warnings = events.into_iter().filter(is_about_a).filter(|event| event.type_.as_deref() == Some("Warning"));
    assert_eq!(warnings.filter_map(|event| event.note).collect::<Vec<_>>(), [""; 0]);
    hosted.vms.delete("a", &DeleteParams::default()).await.unwrap();
    hosted.until_held(1).await;
    installed.stop().await;
}

#[tokio::test]
async fn a_pool_that_names_a_node_pool_serves_machines_as_soon_as_hypershift_is_installed() {
    let server = Server::start().await;
    let kinds = of(&[VIRTUAL_MACHINE, INSTANCE, KUBEVIRT_MACHINE]);
    let cluster = Cluster::with(Cluster::config_of(&server), kinds).await;
    let plain = Hosted::plain(&cluster).await;
    create_pool(&plain, &["10.0.0.8/32"]).await;
    let clusters = cluster.namespace().await;
    let mut spec = plain.spec("workers", &["10.0.0.8/32"]);
    spec.network = format!("{clusters}/c1");
    let pools: Api<StaticIPPool> = Api::namespaced(cluster.client(), &clusters);
    pools.create(&PostParams::default(), &StaticIPPool::new("workers", spec)).await.unwrap();
    let installed = Installed::start(&cluster).await;
    installed.until_asked(&plain, "").await;
    create_vm(&plain, "a", &json!({})).await;
    assert_eq!(plain.address_of("a").await, "10.0.0.8");

    install(&cluster, &[NODE_POOL, HOSTED_CLUSTER]).await;
    let hosted = Hosted::start(&cluster, &clusters, "c1", "{}").await;
    hosted.node_pool("workers", 0, &json!({})).await;
    installed.until_asked(&hosted, "workers").await;
    hosted.scale("workers", 1).await;
    assert_eq!(hosted.address_of("workers-0").await, "10.0.0.8");
    installed.stop().await;
}

#[tokio::test]
async fn a_new_leader_serves_claims_and_machines_while_node_pools_cannot_be_listed() {
    let (server, cluster) = start_server().await;
    let site = Site::new(&cluster).await;
    site.pool("p", &["10.0.0.8/31"]).await;
    let hosted = Hosted::new(&cluster).await;
    hosted.kubevirt.be_late();
    hosted.pool("workers", &["10.0.0.8/31"]).await;
    hosted.node_pool("workers", 1, &json!({})).await;
    let selection = Arc::new(SelectionCache::new(cluster.controller(), Scope::default()));
    let running = Arc::clone(&selection);
    let cache = tokio::spawn(async move { match running.run().await {} });
    let mut first = Controller::with_selection(cluster.controller(), Arc::clone(&selection));
    first.until_ready().await;
    assert_eq!(hosted.address_of("workers-0").await, "10.0.0.8");
    drop(first);

    // NodePools cannot be listed, for example because HyperShift's conversion webhook is down.
    let of_node_pools = |call: &Call| call.user == CONTROLLER && call.plural == "nodepools";
    server.set_faults(move |call| if of_node_pools(call) { Fault::Status(500) } else { Fault::None });
    server.cut_watches();
    let mut second = Controller::with_selection(cluster.controller(), selection);
    second.until_ready().await;
    site.claim("c", &json!({})).await;
    assert_eq!(site.address_of("c").await, "10.0.0.8");
    hosted.scale("workers", 2).await;
    assert_eq!(hosted.address_of("workers-1").await, "10.0.0.9");
    cache.abort();
}

#[tokio::test]
async fn a_node_pool_configuration_that_overlaps_a_pool_becomes_a_pool_after_the_other_pool_is_gone() {
    let (_server, cluster) = start_server().await;
    let hosted = Hosted::new(&cluster).await;
    hosted.node_pool("workers", 0, &json!({})).await;
    hosted.set_bootstrap_network_config("workers").await;
    hosted.pool("other", &["10.0.0.8/30"]).await;
    let config = json!({
        "network": "any-name", "addresses": ["10.0.0.8/31"], "gateway": ["10.0.0.1"], "nameservers": ["10.0.0.1"],
    });
    hosted.set_machine_network(&["10.0.0.0/16"]).await;
    hosted.configure("workers", &config).await;
    let replica = Replica::start(&cluster, &["ValidatingWebhookConfiguration"]).await;
    let client = cluster.controller();
    let selection = Arc::new(SelectionCache::new(client.clone(), Scope::default()));
    let node_pools = NodePools::new(client.clone(), Arc::clone(&selection), Events::start(client));
    let mut tasks = tokio::task::JoinSet::new();
    tasks.spawn(async move { match selection.run().await {} });
    tasks.spawn(async move { match node_pools.run().await {} });
    let note = hosted.until_event_in(&hosted.clusters, "workers", "InvalidSpec").await;
    assert!(note.contains(&format!("{}/other", hosted.clusters)), "{note}");
    hosted.pools.delete("other", &DeleteParams::default()).await.unwrap();
    pass_a_minute().await;
    let is_there = async || hosted.pools.get_opt("workers").await.unwrap().map(drop);
    poll("the pool of the NodePool", is_there).await;
    drop(replica);
}
