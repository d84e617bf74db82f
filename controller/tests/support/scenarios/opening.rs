//! Addresses that objects record or guests report after one part of a leader has adopted the known records, and before
//! another part has done so.

use glowplug_controller::kinds::network_data::new_name;
use glowplug_controller::kinds::pool::{PoolSpec, StaticIPPool};
use glowplug_controller::pools::facts::Scope;
use hyper::Request;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{DeleteParams, PostParams};
use kube::client::Body;
use serde_json::{Value, json};

use crate::support::Cluster;
use crate::support::controller::{Controller, Site, merge};
use crate::support::gate::{Gate, is_list_of_services, is_watch_of_instances};
use crate::support::hosted::{Hosted, poll};
use crate::support::leader;
use crate::support::scenarios::reports::Guests;

/// A namespace with machines and claims of pool `p`. All machines are halted.
struct Place<'c> {
    cluster: &'c Cluster,
    hosted: Hosted,
    site: Site,
}

/// Returns a document with network data of a user, with this address.
fn document(address: &str) -> String {
    let network = json!({"id": "n", "link": "eno101", "type": "ipv4", "ip_address": format!("{address}/16")});
    json!({"links": [{"id": "eno101", "type": "phy"}], "networks": [network]}).to_string()
}

// === impl Place ===

impl<'c> Place<'c> {
    /// Creates pool `p` with these addresses.
    async fn new(cluster: &'c Cluster, addresses: &[&str]) -> Self {
        let hosted = Hosted::plain(cluster).await;
        let spec = PoolSpec {
            node_pool_ref: None,
            machine_selector: serde_json::from_value(json!({"matchLabels": {"pool": "p"}})).unwrap(),
            ..hosted.spec("p", addresses)
        };
        hosted.pools.create(&PostParams::default(), &StaticIPPool::new("p", spec)).await.unwrap();
        let site = Site::of(cluster, &hosted.namespace, "v1beta2");
        Self { cluster, hosted, site }
    }

    /// Creates a VirtualMachine on the network of the pool.
    async fn create(&self, name: &str, labels: &Value, annotations: &Value, drive: &Value) {
        let mut vm = self.hosted.vm(name, labels, drive);
        vm.metadata.annotations = serde_json::from_value(annotations.clone()).unwrap();
        vm.data["spec"]["runStrategy"] = "Halted".into();
        self.hosted.vms.create(&PostParams::default(), &vm).await.unwrap();
    }

    /// Creates a machine of the pool, as the webhook changes it.
    async fn create_machine(&self, name: &str) {
        let drive = json!({"networkDataSecretRef": {"name": new_name(name).unwrap()}});
        self.create(name, &json!({"pool": "p"}), &json!({}), &drive).await;
    }

    /// Creates machine `unread`, whose network data is in Secret `mine` of its user.
    async fn create_machine_of_user(&self) {
        let data = json!({"networkdata": ByteString(document("10.0.9.9").into_bytes())});
        let secret: Secret = serde_json::from_value(json!({"metadata": {"name": "mine"}, "data": data})).unwrap();
        self.hosted.secrets.create(&PostParams::default(), &secret).await.unwrap();
        self.create("unread", &json!({}), &json!({}), &json!({"networkDataSecretRef": {"name": "mine"}})).await;
    }

    /// Lets a guest report the first of these addresses, and creates machines that no pool selects: machine `recorded`
    /// records the second address, and the user of machine `own` has written network data with the third address.
    /// Then creates machine `last` of the pool. Returns after the leader has noted these objects: the leader then knows
    /// this number of machines of the pool.
    async fn use_addresses(&self, [reported, recorded, own]: [&str; 3], machines: u32) {
        let guests = Guests::new(self.cluster, &self.hosted.namespace, &self.hosted.network);
        guests.start("stray", &[reported]).await;
        let annotation = "kubevirt.cluster.x-k8s.io/allocated-ip-eno101";
        let record = json!({(annotation): format!(r#"["{recorded}/16"]"#)});
        self.create("recorded", &json!({}), &record, &json!({"userData": "#cloud-config"})).await;
        let drive = json!({"userData": "#cloud-config", "networkData": document(own)});
        self.create("own", &json!({}), &json!({}), &drive).await;
        self.create_machine("last").await;
        self.until_known(machines).await;
        poll("the reserved address of the guest", async || {
            (self.hosted.pools.get("p").await.unwrap().status?.families.first()?.by_report == "1").then_some(())
        })
        .await;
    }

    /// Waits until the leader knows this number of machines of the pool.
    async fn until_known(&self, machines: u32) {
        poll(&format!("{machines} machines in the status of the pool"), async || {
            (self.hosted.pools.get("p").await.unwrap().status?.machines == machines).then_some(())
        })
        .await;
    }

    /// Waits until machines `first` and `last` and claim `x` have addresses. Asserts that these are `addresses`, sorted
    /// as strings, and that machine `recorded` holds its address.
    async fn until_served(&self, addresses: [&str; 3], recorded: &str) {
        let names = ["first", "last", "x"].map(str::to_owned);
        let [others, own] = poll("the addresses of two machines and a claim", async || {
            let held = self.hosted.held().await;
            let (others, own): (Vec<_>, Vec<_>) = held.into_iter().partition(|(_, name)| names.contains(name));
            (others.len() == names.len()).then_some([others, own])
        })
        .await;
        let held: Vec<String> = others.into_iter().map(|(address, _)| address).collect();
        assert_eq!(held, addresses);
        assert_eq!(own, [(recorded.to_owned(), "recorded".to_owned())]);
    }
}

pub async fn no_machine_gets_an_address_that_is_used_while_a_new_leader_waits_for_the_list_of_another_kind(
    cluster: &Cluster,
) {
    let place = Place::new(cluster, &["10.0.0.8/29"]).await;
    place.create_machine("first").await;
    place.site.claim("x", &json!({})).await;
    let (gate, client) = Gate::new(cluster.controller(), is_list_of_services);
    gate.close();
    let _leader = Controller::with_scope(client, Scope::default());
    gate.until_held().await;
    // The leader has listed the machines, and knows the pool.
    place.until_known(1).await;
    place.use_addresses(["10.0.0.8", "10.0.0.9", "10.0.0.10"], 2).await;
    assert_eq!(place.hosted.held().await, []);
    gate.open();
    place.until_served(["10.0.0.11", "10.0.0.12", "10.0.0.13"], "10.0.0.9").await;
}

pub async fn no_machine_gets_an_address_of_a_guest_that_migrated_although_it_is_gone_before_the_first_pass_of_a_leader(
    cluster: &Cluster,
) {
    let place = Place::new(cluster, &["10.0.0.8/30"]).await;
    let Hosted { vms, instances, kubevirt, .. } = &place.hosted;
    let leader = Controller::of(cluster, "");
    for name in ["m", "v"] {
        place.create_machine(name).await;
        merge(vms, name, &json!({"spec": {"runStrategy": "Always"}})).await;
        place.hosted.until_running(name).await;
    }
    place.hosted.until_held(2).await;
    drop(leader);
    kubevirt.migrate_to_another_cluster("m").await;
    // A new leader has listed the instances, and its opening waits for the list of another kind.
    let (opening, client) = Gate::new(cluster.controller(), is_list_of_services);
    let (watch, client) = Gate::new(client, is_watch_of_instances);
    opening.close();
    watch.close();
    let _leader = Controller::with_scope(client, Scope::default());
    opening.until_held().await;
    watch.until_held().await;
    place.until_known(2).await;
    vms.delete("m", &DeleteParams::default()).await.unwrap();
    place.hosted.until_gone(vms, "m").await;
    place.hosted.until_gone(instances, "m").await;
    watch.open();
    place.until_known(1).await;
    opening.open();
    let name = leader::name(&place.hosted.network, "10.0.0.8");
    let lease = poll("the released lease", async || {
        let lease = place.site.leases.get(&name).await.unwrap().spec;
        lease.released.is_some().then_some(lease)
    })
    .await;
    let [migrated, released, end] = [lease.migrated, lease.released, lease.reuse_after].map(|time| time.unwrap().0);
    assert_eq!((migrated <= released, end.as_second() - released.as_second()), (true, 30 * 24 * 60 * 60));
}

pub async fn no_machine_gets_an_address_that_is_used_while_a_leader_adopts_the_records_of_a_larger_pool(
    cluster: &Cluster,
) {
    let place = Place::new(cluster, &["10.0.0.8/32"]).await;
    place.create_machine("first").await;
    place.create_machine_of_user().await;
    let is_read = |request: &Request<Body>| request.uri().path().ends_with("/secrets/mine");
    let (gate, client) = Gate::new(cluster.controller(), is_read);
    let _leader = Controller::with_scope(client, Scope::default());
    place.hosted.until_held(1).await;
    place.site.claim("x", &json!({})).await;
    place.site.until_not_ready("x", "PoolExhausted").await;
    // The leader reads the Secret after the records of the machines.
    gate.close();
    place.hosted.resize("p", &["10.0.0.8/29"]).await;
    gate.until_held().await;
    place.use_addresses(["10.0.0.9", "10.0.0.10", "10.0.0.11"], 2).await;
    gate.open();
    place.until_served(["10.0.0.12", "10.0.0.13", "10.0.0.8"], "10.0.0.10").await;
}
