//! Addresses that guests report, even without a pool, and the addresses of Services and Clusters.

use std::collections::BTreeSet;
use std::ops::Deref;

use glowplug_controller::kinds::pool::{PoolSpec, StaticIPPool};
use k8s_openapi::api::core::v1::Service;
use kube::api::{DeleteParams, DynamicObject, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::support::controller::{Site, create, merge, merge_status};
use crate::support::hosted::definitions::{INSTANCE, resource};
use crate::support::hosted::provider::object;
use crate::support::hosted::{Hosted, mutator, poll};
use crate::support::installed::Installed;
use crate::support::scenarios::adoption::recorded_machine;
use crate::support::{Cluster, until_event};

/// A hosted cluster. At the start, its NodePool `workers` has no machines.
struct Place<'c> {
    cluster: &'c Cluster,
    hosted: Hosted,
    installed: Installed<'c>,
}

/// Guests of one namespace on the network of a hosted cluster. They have no VirtualMachines.
pub(super) struct Guests {
    namespace: String,
    network: String,
    /// The instances, written as a user and as KubeVirt.
    users: Api<DynamicObject>,
    kubevirt: Api<DynamicObject>,
}

impl Deref for Place<'_> {
    type Target = Hosted;

    fn deref(&self) -> &Hosted {
        &self.hosted
    }
}

// === impl Place ===

impl<'c> Place<'c> {
    /// Starts a hosted cluster without a pool, and the controller.
    async fn without_pool(cluster: &'c Cluster) -> Self {
        let hosted = Hosted::new(cluster).await;
        hosted.node_pool("workers", 0, &json!({})).await;
        Self { cluster, hosted, installed: Installed::start(cluster).await }
    }

    /// Starts a hosted cluster with a pool for the machines of `workers`, and the controller.
    async fn start(cluster: &'c Cluster, addresses: &[&str]) -> Self {
        let place = Self::without_pool(cluster).await;
        place.create_pool(addresses).await;
        place
    }

    async fn create_pool(&self, addresses: &[&str]) {
        self.pool("workers", addresses).await;
        self.installed.until_asked(&self.hosted, "workers").await;
        self.until_condition("workers", "Ready").await;
    }

    /// Returns the guests of the namespace of the machines.
    fn own_guests(&self) -> Guests {
        Guests::new(self.cluster, &self.namespace, &self.network)
    }

    /// Returns the guests of a new namespace, which no pool serves.
    async fn other_guests(&self) -> Guests {
        Guests::new(self.cluster, &self.cluster.namespace().await, &self.network)
    }

    /// Returns the status of the pool.
    async fn status(&self) -> Value {
        serde_json::to_value(self.pools.get("workers").await.unwrap().status).unwrap()
    }

    /// Waits until reports of guests, Services and Clusters reserve this number of addresses of the pool.
    async fn until_reserved(&self, addresses: i64) {
        let expected = Value::from(addresses.to_string());
        poll(&format!("{addresses} reported addresses"), async || {
            (self.status().await["families"][0]["byReport"] == expected).then_some(())
        })
        .await;
    }

    async fn stop(self) {
        self.installed.stop().await;
    }
}

// === impl Guests ===

impl Guests {
    pub(super) fn new(cluster: &Cluster, namespace: &str, network: &str) -> Self {
        let of = |client| Api::namespaced_with(client, namespace, &resource(INSTANCE));
        let (users, kubevirt) = (of(cluster.client()), of(mutator::client(&cluster.client())));
        Self { namespace: namespace.to_owned(), network: network.to_owned(), users, kubevirt }
    }

    /// Creates an instance as a user does, with this status. The instance has no cloud-init volume.
    async fn create(&self, name: &str, status: &Value) {
        let spec = json!({
            "domain": {"devices": {"interfaces": [{"name": "net1", "bridge": {}}]}},
            "networks": [{"name": "net1", "multus": {"networkName": self.network}}],
        });
        let instance = json!({"metadata": {"name": name}, "spec": spec, "status": status});
        self.users.create(&PostParams::default(), &object(INSTANCE, instance)).await.unwrap();
    }

    /// Starts a guest that reports these addresses.
    pub(super) async fn start(&self, name: &str, addresses: &[&str]) {
        self.create(name, &json!({})).await;
        self.report(name, addresses).await;
    }

    /// Lets the connected agent of a running guest report these addresses.
    async fn report(&self, name: &str, addresses: &[&str]) {
        let conditions = json!([{"type": "AgentConnected", "status": "True"}]);
        let interface = json!({"name": "net1", "infoSource": "domain, guest-agent", "ipAddresses": addresses});
        let status = json!({"phase": "Running", "conditions": conditions, "interfaces": [interface]});
        merge(&self.kubevirt, name, &json!({"status": status})).await;
    }

    /// Does what KubeVirt does while a guest reboots: no agent is connected, and no address is reported.
    async fn be_silent(&self, name: &str) {
        let interface = json!({"name": "net1", "infoSource": "domain"});
        merge(&self.kubevirt, name, &json!({"status": {"conditions": null, "interfaces": [interface]}})).await;
    }

    async fn end(&self, name: &str) {
        self.kubevirt.delete(name, &DeleteParams::default()).await.unwrap();
    }

    /// Waits for the event about a guest that reports an address which a machine holds. Returns the note.
    async fn until_conflict(&self, cluster: &Cluster, name: &str) -> String {
        until_event(cluster.client(), &self.namespace, Some("VirtualMachine"), name, "IPAddressConflict").await
    }
}

/// Waits for the event about reported addresses that the pool does not reserve. Returns the note.
async fn until_beyond(place: &Place<'_>) -> String {
    until_event(place.client.clone(), &place.clusters, Some("StaticIPPool"), "workers", "ReportedAddressNotReserved")
        .await
}

fn rows<const N: usize>(rows: [(&str, &str); N]) -> Vec<(String, String)> {
    rows.map(|(address, name)| (address.to_owned(), name.to_owned())).into()
}

pub async fn an_address_that_a_guest_without_a_pool_reports_is_not_allocated_until_the_guest_ends(cluster: &Cluster) {
    let place = Place::start(cluster, &["10.0.0.8-10.0.0.10"]).await;
    let own = place.own_guests();
    let other = place.other_guests().await;
    own.start("stray", &["10.0.0.8"]).await;
    other.start("stray", &["10.0.0.9", "10.0.1.9"]).await;
    place.until_reserved(2).await;
    place.scale("workers", 1).await;
    assert_eq!(place.address_of("workers-0").await, "10.0.0.10");
    place.scale("workers", 2).await;
    // The second machine waits until the guest has ended.
    other.end("stray").await;
    assert_eq!(place.address_of("workers-1").await, "10.0.0.9");
    assert_eq!(place.held().await, rows([("10.0.0.10", "workers-0"), ("10.0.0.9", "workers-1")]));
    place.until_reserved(1).await;
    place.until_no_condition("workers", "DuplicateRecords").await;
    place.stop().await;
}

pub async fn an_address_that_a_guest_reports_before_its_pool_exists_is_not_allocated(cluster: &Cluster) {
    let mut place = Place::without_pool(cluster).await;
    let (own, other) = (place.own_guests(), place.other_guests().await);
    other.start("early", &["10.0.0.8"]).await;
    place.create_pool(&["10.0.0.8-10.0.0.10"]).await;
    place.scale("workers", 1).await;
    assert_eq!(place.address_of("workers-0").await, "10.0.0.9");
    // The pool gets an address that is already in use. The leader knows the guest, because the guest also reports an
    // address that was in the pool before.
    own.start("later", &["10.0.0.10", "10.0.0.11"]).await;
    place.until_reserved(2).await;
    place.resize("workers", &["10.0.0.8-10.0.0.12"]).await;
    place.scale("workers", 2).await;
    assert_eq!(place.address_of("workers-1").await, "10.0.0.12");
    // The next leader also knows the addresses that guests reported while no leader ran.
    place.installed.stop_leading();
    place.resize("workers", &["10.0.0.8-10.0.0.14"]).await;
    own.report("later", &["10.0.0.10", "10.0.0.11", "10.0.0.13"]).await;
    place.installed.lead().await;
    place.scale("workers", 3).await;
    assert_eq!(place.address_of("workers-2").await, "10.0.0.14");
    place.stop().await;
}

pub async fn the_record_of_a_machine_without_a_guest_takes_no_address_from_a_running_guest(cluster: &Cluster) {
    let hosted = Hosted::plain(cluster).await;
    Guests::new(cluster, &hosted.namespace, &hosted.network).start("stray", &["10.0.0.8"]).await;
    recorded_machine(&hosted, "idle", "10.0.0.8").await;
    recorded_machine(&hosted, "other", "10.0.0.9").await;
    let mut spec = PoolSpec { node_pool_ref: None, ..hosted.spec("p", &["10.0.0.8/30"]) };
    spec.machine_selector = Some(serde_json::from_value(json!({"matchLabels": {"pool": "p"}})).unwrap());
    hosted.pools.create(&PostParams::default(), &StaticIPPool::new("p", spec)).await.unwrap();
    // A leader that starts knows all of these objects.
    let mut installed = Installed::start(cluster).await;
    hosted.until_event("idle", "IPAddressConflict").await;
    hosted.until_held(1).await;
    assert_eq!(hosted.held().await, rows([("10.0.0.9", "other")]));
    installed.stop_leading();
    installed.lead().await;
    assert_eq!(hosted.held().await, rows([("10.0.0.9", "other")]));
    installed.stop().await;
}

pub async fn an_instance_that_never_ran_reserves_nothing(cluster: &Cluster) {
    let place = Place::start(cluster, &["10.0.0.8-10.0.0.9"]).await;
    let invented: Vec<String> = (1..=255).map(|last| format!("10.0.0.{last}")).collect();
    let interfaces = json!([{"name": "net1", "ipAddresses": invented}]);
    let others = [place.own_guests(), place.other_guests().await];
    for guests in &others {
        for at in 0..4 {
            guests.create(&format!("lying-{at}"), &json!({"phase": "Running", "interfaces": interfaces})).await;
        }
    }
    place.scale("workers", 2).await;
    // Either machine may get the first address.
    let addresses = [place.address_of("workers-0").await, place.address_of("workers-1").await];
    assert_eq!(BTreeSet::from(addresses), ["10.0.0.8".to_owned(), "10.0.0.9".to_owned()].into());
    assert_eq!(place.status().await["families"][0]["byReport"], "0");
    place.stop().await;
}

pub async fn false_reports_of_guests_reserve_only_a_quarter_of_a_pool_of_another_namespace(cluster: &Cluster) {
    // The pool has 16 addresses. It reserves at most four of them for reports of each other namespace.
    let place = Place::start(cluster, &["10.0.0.8-10.0.0.23"]).await;
    let other = place.other_guests().await;
    let all: Vec<String> = (8..24).map(|last| format!("10.0.0.{last}")).collect();
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    for at in 0..4 {
        other.start(&format!("lying-{at}"), &all).await;
    }
    let beyond = poll("addresses beyond the bounds", async || {
        let status = place.status().await;
        (status["reportsBeyond"]["guests"] == 4).then(|| status["reportsBeyond"].clone())
    })
    .await;
    let first: Vec<String> = (0..3).map(|at| format!("{}/lying-{at}", other.namespace)).collect();
    assert_eq!(beyond, json!({"addresses": 60, "guests": 4, "first": first}));
    let note = "The pool does not reserve all addresses that guests report: see status.reportsBeyond";
    assert_eq!(until_beyond(&place).await, note);
    place.until_reserved(4).await;
    place.scale("workers", 12).await;
    place.until_held(12).await;
    let held: Vec<String> = place.held().await.into_iter().map(|(address, _)| address).collect();
    assert_eq!(held, all[4..]);
    place.stop().await;
}

/// Creates a Service of type LoadBalancer that requests the address `requested`, if any.
async fn create_service(services: &Api<Service>, name: &str, requested: Option<&str>) {
    let ports = json!([{"port": 80}]);
    let spec = json!({"type": "LoadBalancer", "ports": ports, "loadBalancerIP": requested});
    let service = serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec})).unwrap();
    services.create(&PostParams::default(), &service).await.unwrap();
}

/// Writes these addresses into the status of a Service, as a controller of load balancers does.
async fn give(services: &Api<Service>, name: &str, addresses: &[&str]) {
    let ingress: Vec<Value> = addresses.iter().map(|address| json!({"ip": address})).collect();
    merge_status(services, name, &json!({"status": {"loadBalancer": {"ingress": ingress}}})).await;
}

// All scenarios of a server share its Services and Clusters, and each Service reserves addresses in the pools of all
// scenarios. So these scenarios use addresses that no other scenario uses.

pub async fn no_machine_gets_the_address_of_a_service_or_of_the_control_plane_of_a_cluster(cluster: &Cluster) {
    let hosted = Hosted::new(cluster).await;
    hosted.node_pool("workers", 0, &json!({})).await;
    let services: Api<Service> = Api::namespaced(hosted.client.clone(), &hosted.namespace);
    create_service(&services, "web", Some("10.0.90.13")).await;
    give(&services, "web", &["10.0.90.8", "10.0.90.9", "10.0.91.1"]).await;
    let clusters = Site::of(cluster, &hosted.namespace, "v1beta2").clusters;
    let endpoint = |host: &str| json!({"spec": {"controlPlaneEndpoint": {"host": host, "port": 6443}}});
    let mut c1 = endpoint("10.0.90.10");
    c1["metadata"] = json!({"name": "c1"});
    create(&clusters, c1).await;
    let place = Place { cluster, hosted, installed: Installed::start(cluster).await };
    place.create_pool(&["10.0.90.8-10.0.90.13"]).await;
    place.until_reserved(3).await;
    let neighbour = |address: &str, kind: &str, name: &str| json!({"address": address, "kind": kind, "namespace": place.namespace, "name": name});
    let expected = json!([
        neighbour("10.0.90.8", "Service", "web"),
        neighbour("10.0.90.9", "Service", "web"),
        neighbour("10.0.90.10", "Cluster", "c1"),
    ]);
    let neighbours = async |expected: &Value| {
        poll("the neighbours of the pool", async || (place.status().await["neighbours"] == *expected).then_some(()))
            .await;
    };
    neighbours(&expected).await;
    place.scale("workers", 1).await;
    assert_eq!(place.address_of("workers-0").await, "10.0.90.11");
    // A machine keeps the address that the Cluster names, because this machine may be a machine of the control plane.
    merge(&clusters, "c1", &endpoint("10.0.90.11")).await;
    give(&services, "web", &["10.0.90.8"]).await;
    neighbours(&json!([neighbour("10.0.90.8", "Service", "web"), neighbour("10.0.90.11", "Cluster", "c1")])).await;
    place.scale("workers", 2).await;
    assert_eq!(place.address_of("workers-1").await, "10.0.90.9");
    assert_eq!(place.restart("workers-0").await.addresses()[0].1, "10.0.90.11");
    place.until_no_condition("workers", "DuplicateRecords").await;
    merge(&clusters, "c1", &endpoint("api.example")).await;
    services.delete("web", &DeleteParams::default()).await.unwrap();
    neighbours(&Value::Null).await;
    place.scale("workers", 4).await;
    let both = [place.address_of("workers-2").await, place.address_of("workers-3").await];
    assert_eq!(
        both.iter().collect::<BTreeSet<_>>(),
        ["10.0.90.8".to_owned(), "10.0.90.10".to_owned()].iter().collect()
    );
    clusters.delete("c1", &DeleteParams::default()).await.unwrap();
    place.scale("workers", 0).await;
    place.until_held(0).await;
    place.stop().await;
}

pub async fn services_of_another_namespace_reserve_a_quarter_of_a_pool_unless_the_pool_ignores_them(cluster: &Cluster) {
    let place = Place::start(cluster, &["10.0.92.8-10.0.92.23"]).await;
    let namespace = cluster.namespace().await;
    let services: Api<Service> = Api::namespaced(place.client.clone(), &namespace);
    for last in 8..24 {
        create_service(&services, &format!("s{last}"), None).await;
        give(&services, &format!("s{last}"), &[&format!("10.0.92.{last}")]).await;
    }
    place.until_reserved(4).await;
    let beyond = poll("addresses beyond the bounds", async || {
        let status = place.status().await;
        (status["reportsBeyond"]["addresses"] == 12).then(|| status["reportsBeyond"].clone())
    })
    .await;
    assert_eq!(beyond["guests"], 12);
    place.scale("workers", 12).await;
    place.until_held(12).await;
    // With `ignoreNeighbours`, the pool also allocates the addresses of the Services.
    merge(&place.pools, "workers", &json!({"spec": {"ignoreNeighbours": true}})).await;
    place.until_reserved(0).await;
    place.scale("workers", 16).await;
    place.until_held(16).await;
    assert_eq!(place.status().await["neighbours"], Value::Null);
    place.scale("workers", 0).await;
    place.until_held(0).await;
    for last in 8..24 {
        services.delete(&format!("s{last}"), &DeleteParams::default()).await.unwrap();
    }
    place.stop().await;
}

pub async fn a_guest_that_reports_no_address_keeps_its_reservation(cluster: &Cluster) {
    let place = Place::start(cluster, &["10.0.0.8-10.0.0.10"]).await;
    let own = place.own_guests();
    own.start("rebooting", &["10.0.0.8"]).await;
    own.start("absent", &["10.0.0.9"]).await;
    place.until_reserved(2).await;
    own.be_silent("rebooting").await;
    // The agent reports the interface without its address. Such a report ends nothing.
    own.report("absent", &[]).await;
    // The leader has processed the report of a guest that started later. So it has also processed the earlier changes.
    own.start("later", &["10.0.0.10"]).await;
    place.until_reserved(3).await;
    place.scale("workers", 1).await;
    own.end("later").await;
    assert_eq!(place.address_of("workers-0").await, "10.0.0.10");
    place.until_reserved(2).await;
    place.stop().await;
}

pub async fn holder_and_guest_get_an_event_if_a_guest_reports_an_address_that_is_already_allocated(cluster: &Cluster) {
    let place = Place::start(cluster, &["10.0.0.8-10.0.0.10"]).await;
    place.scale("workers", 1).await;
    assert_eq!(place.address_of("workers-0").await, "10.0.0.8");
    let other = place.other_guests().await;
    other.start("stray", &["10.0.0.8"]).await;
    let holder = place.machines.get("workers-0").await.unwrap();
    let note = format!(
        "10.0.0.8 of network {}: the guest of {}/stray reports it, and eno101 of {}/workers-0 ({}) holds it",
        place.network,
        other.namespace,
        place.namespace,
        holder.uid().unwrap()
    );
    assert_eq!(other.until_conflict(cluster, "stray").await, note);
    for kind in ["VirtualMachine", "KubevirtMachine"] {
        let told = until_event(cluster.client(), &place.namespace, Some(kind), "workers-0", "IPAddressConflict").await;
        assert_eq!(told, note);
    }
    place.until_condition("workers", "DuplicateRecords").await;
    // The holder keeps the address.
    assert_eq!(place.held().await, rows([("10.0.0.8", "workers-0")]));
    assert_eq!(place.restart("workers-0").await.addresses()[0].1, "10.0.0.8");
    other.end("stray").await;
    place.until_no_condition("workers", "DuplicateRecords").await;
    place.stop().await;
}

pub async fn an_excluded_address_that_several_guests_report_is_no_conflict(cluster: &Cluster) {
    let place = Place::start(cluster, &["10.0.0.8-10.0.0.10"]).await;
    let exclude = async |addresses: Value| {
        merge(&place.pools, "workers", &json!({"spec": {"excludedAddresses": addresses}})).await;
    };
    exclude(json!(["10.0.0.8"])).await;
    let own = place.own_guests();
    for node in ["node-0", "node-1"] {
        own.start(node, &["10.0.0.8"]).await;
    }
    // The leader has processed a later report, so it has also processed the earlier reports.
    own.start("other", &["10.0.0.9"]).await;
    place.until_reserved(1).await;
    place.scale("workers", 1).await;
    assert_eq!(place.address_of("workers-0").await, "10.0.0.10");
    place.until_no_condition("workers", "DuplicateRecords").await;
    assert_eq!(place.status().await["families"][0]["conflicts"], "0");
    // If the pool offers the address, the reports of two guests are a conflict: only an excluded address can be a
    // virtual address.
    exclude(Value::Null).await;
    place.until_condition("workers", "DuplicateRecords").await;
    own.end("node-1").await;
    place.until_no_condition("workers", "DuplicateRecords").await;
    place.stop().await;
}
