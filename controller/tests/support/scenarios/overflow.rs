//! A pool and its overflow: several pools of one network that select the same machines, in the order of their priority.

use glowplug_controller::kinds::pool::{PoolSpec, StaticIPPool};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Api;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::support::Cluster;
use crate::support::controller::{merge, until};
use crate::support::hosted::{Hosted, poll, provisioned};
use crate::support::installed::Installed;
use crate::support::scenarios::network_data::{Place, held, manifest, row, until_of_pool};

const EXHAUSTED: &str = "No available IPs in pool for interface eno101";

/// Returns the specification of a pool that selects the machines of a [`Place`]. Pools with different priorities have
/// different gateways.
fn spec(hosted: &Hosted, priority: i32, addresses: &[&str]) -> PoolSpec {
    PoolSpec {
        gateway: vec![format!("10.0.0.{}", priority + 1)],
        priority: (priority != 0).then_some(priority),
        node_pool_ref: None,
        machine_selector: serde_json::from_value(json!({"matchLabels": {"pool": "p"}})).unwrap(),
        ..hosted.spec("p", addresses)
    }
}

async fn create_pool(hosted: &Hosted, name: &str, spec: PoolSpec) {
    hosted.pools.create(&PostParams::default(), &StaticIPPool::new(name, spec)).await.unwrap();
}

/// Starts a namespace with pool `p`, its overflow pool `q`, and the controller.
async fn start<'c>(cluster: &'c Cluster, first: &[&str], second: &[&str]) -> Place<'c> {
    let hosted = Hosted::plain(cluster).await;
    create_pool(&hosted, "p", spec(&hosted, 0, first)).await;
    create_pool(&hosted, "q", spec(&hosted, 1, second)).await;
    Place::install(cluster, hosted).await
}

/// Waits until the condition `Exhausted` of a pool has this status and reason, and returns the message of the
/// condition.
async fn until_exhausted(hosted: &Hosted, pool: &str, status: &str, reason: &str) -> String {
    poll(&format!("Exhausted {status} {reason} of pool {pool}"), async || {
        let conditions = hosted.pools.get(pool).await.unwrap().status?.conditions;
        let condition = conditions.into_iter().find(|condition| condition.type_ == "Exhausted")?;
        ((&*condition.status, &*condition.reason) == (status, reason)).then_some(condition.message)
    })
    .await
}

/// Returns the gateway in the network data of a guest.
fn gateway(document: &Value) -> &Value {
    &document["networks"][0]["routes"][0]["gateway"]
}

pub async fn machines_of_an_exhausted_pool_get_addresses_and_the_gateway_of_its_overflow(cluster: &Cluster) {
    let mut place = start(cluster, &["10.0.0.8"], &["10.0.1.8-10.0.1.9"]).await;
    let (_, w) = place.run("w").await;
    let (_, v) = place.run("v").await;
    assert_eq!(gateway(&place.until_running("w").await.document()), "10.0.0.1");
    assert_eq!(gateway(&place.until_running("v").await.document()), "10.0.0.2");
    until_of_pool(&place, "10.0.1.8", "q").await;
    let message = until_exhausted(&place, "p", "False", "Overflow").await;
    let overflow = format!("{}/q", place.namespace);
    assert_eq!(
        message,
        format!("The pool has no free IPv4 address, and its machines get addresses of pool {overflow}")
    );
    // A machine with an address of the overflow keeps this address, also after the next leader has adopted all records.
    place.vms.delete("w", &DeleteParams::default()).await.unwrap();
    place.until_held(1).await;
    place.change_leaders().await;
    until_exhausted(&place, "p", "False", "FreeAddresses").await;
    let drive = place.restart("v").await;
    assert_eq!((gateway(&drive.document()), drive.network_data_secret.unwrap().0), (&json!("10.0.0.2"), v.clone()));
    until_of_pool(&place, "10.0.1.8", "q").await;
    let (_, x) = place.run("x").await;
    assert_eq!(place.held().await, held([("10.0.0.8", "x"), ("10.0.1.8", "v")]));
    // The records of the machines become leases of the pools that have their addresses.
    place.until_recorded("v").await;
    place.until_recorded("x").await;
    place.stop_leading();
    place.forget_leases().await;
    place.lead().await;
    let (_, u) = place.run("u").await;
    assert_eq!(place.held().await, held([("10.0.0.8", "x"), ("10.0.1.8", "v"), ("10.0.1.9", "u")]));
    for (address, pool) in [("10.0.0.8", "p"), ("10.0.1.8", "q"), ("10.0.1.9", "q")] {
        until_of_pool(&place, address, pool).await;
    }
    assert_ne!(w, x);
    place.end([row("u", &u, "10.0.1.9"), row("v", &v, "10.0.1.8"), row("x", &x, "10.0.0.8")]).await;
}

pub async fn a_machine_waits_for_a_pool_and_its_overflow_and_gets_the_first_free_address_of_either(cluster: &Cluster) {
    let place = start(cluster, &["10.0.0.8"], &["10.0.1.8"]).await;
    let (_, a) = place.run("a").await;
    place.run("b").await;
    until_exhausted(&place, "p", "True", "NoFreeAddress").await;
    until_exhausted(&place, "q", "True", "NoFreeAddress").await;
    let namespace = &place.namespace;
    let note = format!("{EXHAUSTED}: pool {namespace}/p, IPv4; pool {namespace}/q, IPv4");
    for name in ["c", "d"] {
        place.apply(&manifest(&place, name, "Always")).await;
        assert_eq!(place.until_event(name, "IPPoolExhausted").await, note);
    }
    poll("two waiting machines of each pool", async || {
        let pools = place.pools.list(&ListParams::default()).await.unwrap().items;
        pools.iter().all(|pool| pool.status.as_ref().is_some_and(|status| status.waiting == 2)).then_some(())
    })
    .await;
    place.vms.delete("b", &DeleteParams::default()).await.unwrap();
    assert_eq!(place.address_of("c").await, "10.0.1.8");
    place.resize("p", &["10.0.0.8-10.0.0.9"]).await;
    assert_eq!(place.address_of("d").await, "10.0.0.9");
    let (c, d) = (place.secret_name("c").await, place.secret_name("d").await);
    place.end([row("a", &a, "10.0.0.8"), row("c", &c, "10.0.1.8"), row("d", &d, "10.0.0.9")]).await;
}

pub async fn pools_of_equal_priority_and_pools_of_another_interface_are_no_overflow(cluster: &Cluster) {
    let place = start(cluster, &["10.0.0.8"], &["10.0.1.8"]).await;
    let namespace = place.namespace.clone();
    let refused = async |expected: String| {
        let dry_run = PostParams { dry_run: true, ..PostParams::default() };
        poll(&expected, async || {
            let vm = serde_json::from_value(manifest(&place, "w", "Halted")).unwrap();
            let error = place.vms.create(&dry_run, &vm).await.err()?.to_string();
            error.contains(&expected).then_some(())
        })
        .await;
    };
    let edit = async |pool: &str, spec: Value| {
        merge(&place.pools, pool, &json!({"spec": spec})).await;
    };
    edit("q", json!({"priority": 0})).await;
    let both = "both select the machine for network";
    let expected = "expected one pool, or different values of priority";
    refused(format!("pools {namespace}/p and {namespace}/q {both} {}, {expected}", place.network)).await;
    edit("q", json!({"priority": 1, "interface": "eno102"})).await;
    let problem = format!("pool {namespace}/q cannot be the overflow of pool {namespace}/p");
    refused(format!("{problem}: interface eno102, expected eno101")).await;
    edit("q", json!({"interface": null, "addresses": ["10.0.1.8", "fd00::8"]})).await;
    refused(format!("{problem}: families IPv4 and IPv6, expected IPv4")).await;
    edit("p", json!({"addresses": ["10.0.0.8", "fd00::9"]})).await;
    poll("both families of both pools", async || {
        let pools = place.pools.list(&ListParams::default()).await.unwrap().items;
        let families = |pool: &StaticIPPool| pool.status.as_ref().map_or(0, |status| status.families.len());
        pools.iter().all(|pool| families(pool) == 2).then_some(())
    })
    .await;
    let (_, w) = place.run("w").await;
    let rows = held([("10.0.0.8", "w"), ("fd00::9", "w")]);
    assert_eq!(place.held().await, rows);
    let addresses = ["10.0.0.8", "fd00::9"].map(str::to_owned).into();
    place.end([("w".to_owned(), Some(w), addresses)]).await;
}

pub async fn a_deleted_pool_keeps_its_machines_while_its_overflow_serves_new_machines(cluster: &Cluster) {
    let mut place = start(cluster, &["10.0.0.8-10.0.0.9"], &["10.0.1.8"]).await;
    let (_, w) = place.run("w").await;
    place.until_recorded("w").await;
    place.pools.delete("p", &DeleteParams::default()).await.unwrap();
    // The deleted pool has a free address, but no machine gets this address.
    poll("a machine of the overflow", async || {
        let dry_run = PostParams { dry_run: true, ..PostParams::default() };
        let vm = serde_json::from_value(manifest(&place, "v", "Halted")).unwrap();
        place.vms.create(&dry_run, &vm).await.ok().map(drop)
    })
    .await;
    until_exhausted(&place, "p", "False", "FreeAddresses").await;
    place.until_no_condition("p", "Ready").await;
    let (_, v) = place.run("v").await;
    assert_eq!(place.held().await, held([("10.0.0.8", "w"), ("10.0.1.8", "v")]));
    place.change_leaders().await;
    let drive = place.restart("w").await;
    assert_eq!((gateway(&drive.document()), drive.network_data_secret.unwrap().0), (&json!("10.0.0.1"), w));
    until_of_pool(&place, "10.0.0.8", "p").await;
    place.vms.delete("w", &DeleteParams::default()).await.unwrap();
    poll("the end of the pool", async || place.pools.get_opt("p").await.unwrap().is_none().then_some(())).await;
    place.end([row("v", &v, "10.0.1.8")]).await;
}

pub async fn a_node_pool_is_exhausted_when_its_pool_and_the_overflow_are_exhausted(cluster: &Cluster) {
    let hosted = Hosted::new(cluster).await;
    hosted.node_pool("workers", 0, &json!({})).await;
    hosted.pool("workers", &["10.0.0.8"]).await;
    let overflow = PoolSpec { priority: Some(10), ..hosted.spec("workers", &["10.0.1.8"]) };
    create_pool(&hosted, "spare", overflow).await;
    let installed = Installed::start_with_all_webhooks(cluster).await;
    installed.until_asked(&hosted, "workers").await;
    hosted.scale("workers", 1).await;
    assert_eq!(hosted.address_of("workers-0").await, "10.0.0.8");
    until_exhausted(&hosted, "workers", "False", "Overflow").await;
    let condition = async |status: &str| {
        let is_it =
            |condition: &&Value| condition["type"] == "KubevirtIPPoolExhausted" && condition["status"] == status;
        let node_pool = until(&hosted.node_pools, "workers", |node_pool| {
            node_pool.data["status"]["conditions"].as_array().is_some_and(|all| all.iter().any(|it| is_it(&it)))
        });
        let node_pool = node_pool.await;
        let all = node_pool.data["status"]["conditions"].as_array().unwrap();
        all.iter().find(is_it).unwrap()["message"].as_str().unwrap().to_owned()
    };
    assert_eq!(condition("False").await, "The pools of the NodePool have free addresses");
    // Only the controller can cause the next attempt of capk.
    hosted.be_slow_to_retry();
    hosted.scale("workers", 2).await;
    assert_eq!(hosted.address_of("workers-1").await, "10.0.1.8");
    let clusters = &hosted.clusters;
    let both = format!("{EXHAUSTED}: pool {clusters}/workers, IPv4; {EXHAUSTED}: pool {clusters}/spare, IPv4");
    let sorted = format!("{EXHAUSTED}: pool {clusters}/spare, IPv4; {EXHAUSTED}: pool {clusters}/workers, IPv4");
    poll("the condition with both pools", async || (condition("True").await == sorted).then_some(())).await;
    hosted.scale("workers", 3).await;
    let message = hosted.until_refused("workers-2").await;
    assert!(message.contains(&both), "{message}");
    hosted.resize("spare", &["10.0.1.8-10.0.1.9"]).await;
    assert_eq!(hosted.address_of("workers-2").await, "10.0.1.9");
    until(&hosted.machines, "workers-2", |machine| provisioned(machine)["status"] == "True").await;
    // The webhook refuses a second pool without a `priority`, and an overflow with another interface.
    let create = async |spec: PoolSpec| {
        let refused = hosted.pools.create(&PostParams::default(), &StaticIPPool::new("third", spec)).await;
        refused.unwrap_err().to_string()
    };
    let error = create(hosted.spec("workers", &["10.0.2.8"])).await;
    let expected = format!(
        "nodePoolRef: NodePool {clusters}/workers has pool {clusters}/workers on network {} already, expected one pool, or different \
         values of priority",
        hosted.network
    );
    assert!(error.contains(&expected), "{error}");
    let interface = Some("eno102".to_owned());
    let error = create(PoolSpec { interface, priority: Some(20), ..hosted.spec("workers", &["10.0.2.8"]) }).await;
    let expected = format!(
        "pool {clusters}/third cannot be the overflow of pool {clusters}/spare: interface eno102, expected eno101"
    );
    assert!(error.contains(&expected), "{error}");
    merge(&hosted.node_pools, "workers", &json!({"spec": {"replicas": 0}})).await;
    hosted.until_held(0).await;
    installed.stop().await;
}

/// Creates a stopped machine with network data of a user for this address. The network data is in the cloud-init
/// volume, or in the Secret `secret`.
async fn create_with_own_data(place: &Place<'_>, name: &str, address: &str, secret: Option<&str>) {
    let mut manifest = manifest(place, name, "Halted");
    manifest["metadata"]["labels"]["pool"] = json!("late");
    let spec = &mut manifest["spec"]["template"]["spec"];
    let mac = &spec["domain"]["devices"]["interfaces"][0]["macAddress"];
    let link = json!({"id": "eno101", "type": "phy", "ethernet_mac_address": mac});
    let network = json!({"id": "n", "link": "eno101", "type": "ipv4", "ip_address": format!("{address}/16")});
    let document = json!({"links": [link], "networks": [network]}).to_string();
    let source = match secret {
        Some(secret) => {
            let object = Secret {
                metadata: ObjectMeta { name: Some(secret.to_owned()), ..ObjectMeta::default() },
                data: Some([("networkdata".to_owned(), ByteString(document.into_bytes()))].into()),
                ..Secret::default()
            };
            let secrets: Api<Secret> = Api::namespaced(place.client.clone(), &place.namespace);
            secrets.create(&PostParams::default(), &object).await.unwrap();
            json!({"userData": "#cloud-config", "networkDataSecretRef": {"name": secret}})
        }
        None => json!({"userData": "#cloud-config", "networkData": document}),
    };
    spec["volumes"][0]["cloudInitConfigDrive"] = source;
    place.apply(&manifest).await;
}

pub async fn a_waiting_machine_gets_no_added_address_that_network_data_of_a_user_contains(cluster: &Cluster) {
    let place = Place::start(cluster, &["10.0.0.8"]).await;
    let (_, a) = place.run("a").await;
    // These machines are stopped, so no guest reports their addresses.
    create_with_own_data(&place, "u", "10.0.0.9", None).await;
    create_with_own_data(&place, "v", "10.0.0.10", Some("own")).await;
    place.apply(&manifest(&place, "w", "Always")).await;
    place.until_event("w", "IPPoolExhausted").await;
    // One edit of the pool selects the machines with network data of their own and adds their addresses to the pool.
    let both = json!([{"key": "pool", "operator": "In", "values": ["p", "late"]}]);
    let selector = json!({"matchLabels": null, "matchExpressions": both});
    let spec = json!({"addresses": ["10.0.0.8-10.0.0.11"], "machineSelector": selector});
    place.pools.patch("p", &PatchParams::default(), &Patch::Merge(json!({"spec": spec}))).await.unwrap();
    assert_eq!(place.address_of("w").await, "10.0.0.11");
    assert_eq!(place.held().await, held([("10.0.0.11", "w"), ("10.0.0.8", "a")]));
    let w = place.secret_name("w").await;
    for (name, address) in [("u", "10.0.0.9"), ("v", "10.0.0.10")] {
        merge(&place.vms, name, &json!({"spec": {"runStrategy": "Always"}})).await;
        assert_eq!(place.address_of(name).await, address);
    }
    let of_user = |name: &str, secret: Option<&str>, address: &str| {
        (name.to_owned(), secret.map(str::to_owned), vec![address.to_owned()])
    };
    let [u, v] = [of_user("u", None, "10.0.0.9"), of_user("v", Some("own"), "10.0.0.10")];
    place.end([row("a", &a, "10.0.0.8"), u, v, row("w", &w, "10.0.0.11")]).await;
}
