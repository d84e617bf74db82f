//! IPAMClaims that pools serve, from the creation of a claim to the release of its addresses.

use glowplug_controller::kinds::pool::{GlobalPoolSpec, GlobalStaticIPPool, PoolSpec, StaticIPPool};
use glowplug_controller::pools::facts::Scope;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::support::controller::{Controller, merge, merge_status, until};
use crate::support::gate::{Gate, is_list_of_services, is_watch_of_instances};
use crate::support::hosted::kubevirt::migrated;
use crate::support::hosted::poll;
use crate::support::ipam_claims::{NETWORK, PERSISTENT, Tenant, condition, owner};
use crate::support::scenarios::reports::Guests;
use crate::support::{Cluster, leader, until_event};

async fn tenant(cluster: &Cluster, addresses: &[&str]) -> (Tenant, Controller) {
    let tenant = Tenant::new(cluster).await;
    tenant.pool(addresses).await;
    let mut controller = Controller::start(cluster, &tenant.site);
    controller.until_ready().await;
    (tenant, controller)
}

fn rows<const N: usize>(rows: [(&str, &str); N]) -> Vec<(String, String)> {
    rows.map(|(address, name)| (address.to_owned(), name.to_owned())).into()
}

/// Waits until the pool reports an address with two users. Returns the message about this address.
async fn until_duplicates(tenant: &Tenant) -> String {
    until_condition(tenant, "True").await
}

async fn until_no_duplicates(tenant: &Tenant) {
    until_condition(tenant, "False").await;
}

async fn until_condition(tenant: &Tenant, is: &str) -> String {
    poll(&format!("DuplicateRecords {is}"), async || {
        let status = tenant.site.pools.get("p").await.unwrap().status?;
        let mut conditions = status.conditions.into_iter();
        let condition = conditions.find(|it| it.type_ == "DuplicateRecords" && it.status == is);
        condition.map(|condition| condition.message)
    })
    .await
}

pub async fn an_ipam_claim_gets_an_address_of_each_family(cluster: &Cluster) {
    let (tenant, _controller) = tenant(cluster, &["10.0.0.8/30", "fd00::8/125"]).await;
    let finalizers = json!({"metadata": {"finalizers": [PERSISTENT]}});
    tenant.claim("a", &finalizers).await;
    let claim = tenant.until("a", "True", "SuccessfulAllocation").await;
    assert_eq!(claim.finalizers(), [PERSISTENT, "ipam.glowplug.dev/release-address"]);
    let status = json!({
        "ips": ["10.0.0.8/16", "fd00::8/64"],
        "conditions": [{
            "type": "IPsAllocated", "status": "True", "reason": "SuccessfulAllocation",
            "message": "The claim has its addresses", "observedGeneration": 1,
            "lastTransitionTime": condition(&claim)["lastTransitionTime"],
        }],
    });
    assert_eq!(claim.data["status"], status);
    assert_eq!(tenant.site.held().await, rows([("10.0.0.8", "a.net1"), ("fd00::8", "a.net1")]));
}

pub async fn ipam_claims_that_no_pool_serves_stay_unchanged(cluster: &Cluster) {
    let tenant = Tenant::new(cluster).await;
    let pool = StaticIPPool::new("p", tenant.site.spec(&["10.0.0.8/30"]));
    tenant.site.pools.create(&PostParams::default(), &pool).await.unwrap();
    let controller = Controller::start(cluster, &tenant.site);
    tenant.claim("a", &json!({})).await;
    tenant.claim("other", &json!({"spec": {"network": "tenant-red"}})).await;
    // The name of the network attachment definition is not the name of the network.
    tenant.claim("named", &json!({"spec": {"network": "vlan10"}})).await;
    tenant.site.claim("later", &json!({})).await;
    tenant.site.address_of("later").await;
    let untouched = async |vm: &str| {
        let claim = tenant.claims.get(&format!("{vm}.net1")).await.unwrap();
        assert_eq!((claim.finalizers(), &claim.data["status"]), (&[] as &[String], &Value::Null), "{vm}");
    };
    untouched("a").await;
    let serving = |serves: bool| Patch::Merge(json!({"spec": {"serveIPAMClaims": serves}}));
    let _: StaticIPPool = tenant.site.pools.patch("p", &PatchParams::default(), &serving(true)).await.unwrap();
    assert_eq!(tenant.ips_of("a").await, ["10.0.0.9/16"]);
    untouched("other").await;
    untouched("named").await;
    // A claim keeps its address when the pool serves no further claims, and the next leader knows the address.
    let _: StaticIPPool = tenant.site.pools.patch("p", &PatchParams::default(), &serving(false)).await.unwrap();
    drop(controller);
    let mut next = Controller::start(cluster, &tenant.site);
    next.until_ready().await;
    assert_eq!(tenant.site.held().await, rows([("10.0.0.8", "later"), ("10.0.0.9", "a.net1")]));
    tenant.delete("a").await;
    tenant.until_gone("a").await;
    assert_eq!(tenant.site.held().await, rows([("10.0.0.8", "later")]));
}

pub async fn an_ipam_claim_on_an_exhausted_pool_gets_the_address_of_a_deleted_claim(cluster: &Cluster) {
    let (tenant, _controller) = tenant(cluster, &["10.0.0.8/32"]).await;
    tenant.claim("a", &json!({})).await;
    assert_eq!(tenant.ips_of("a").await, ["10.0.0.8/16"]);
    tenant.claim("b", &json!({})).await;
    let exhausted = format!("pool {}/p has no free IPv4 address", tenant.site.namespace);
    assert_eq!(tenant.until_failed("b", "SubnetExhausted").await, exhausted);
    assert_eq!(tenant.claims.get("b.net1").await.unwrap().data["status"]["ips"], json!([]));
    let event = until_event(cluster.client(), &tenant.site.namespace, Some("IPAMClaim"), "b.net1", "IPPoolExhausted");
    assert_eq!(event.await, exhausted);
    tenant.delete("a").await;
    tenant.until_gone("a").await;
    assert_eq!(tenant.ips_of("b").await, ["10.0.0.8/16"]);
    tenant.delete("b").await;
    tenant.until_gone("b").await;
    tenant.site.until_empty().await;
}

pub async fn an_ipam_claim_keeps_its_address_when_guests_start_and_end(cluster: &Cluster) {
    let (tenant, controller) = tenant(cluster, &["10.0.0.8/30"]).await;
    tenant.start("a", "uid-a").await;
    tenant.claim("a", &json!({"metadata": {"finalizers": [PERSISTENT]}})).await;
    assert_eq!(tenant.ips_of("a").await, ["10.0.0.8/16"]);
    // The network provider writes the name of the pod of the guest into the claim. A migration changes this name.
    let claim = tenant.claims.get("a.net1").await.unwrap();
    merge_status(&tenant.claims, "a.net1", &json!({"status": {"ownerPod": {"name": "virt-launcher-a-2"}}})).await;
    // The guest reports its address. The next leader, which reads the report at its start, knows the address.
    let networks = json!([{"name": "net1", "multus": {"networkName": "vlan10"}}]);
    let interfaces = json!([{"name": "net1", "ipAddress": "10.0.0.8", "ipAddresses": ["10.0.0.8"]}]);
    let report = json!({"spec": {"networks": networks}, "status": {"phase": "Running", "interfaces": interfaces}});
    merge(&tenant.instances, "a", &report).await;
    drop(controller);
    let mut controller = Controller::start(cluster, &tenant.site);
    controller.until_ready().await;
    tenant.claim("c", &json!({})).await;
    assert_eq!(tenant.ips_of("c").await, ["10.0.0.9/16"]);
    let status = tenant.site.pools.get("p").await.unwrap().status.unwrap();
    assert_eq!((&*status.families[0].conflicts, &*status.families[0].by_record), ("0", "0"));
    // The virtual machine is deleted, its claim stays, and the virtual machine is created again.
    tenant.stop("a").await;
    tenant.merge("a", &json!({"metadata": {"ownerReferences": null}})).await;
    drop(controller);
    let mut next = Controller::start(cluster, &tenant.site);
    next.until_ready().await;
    tenant.merge("a", &json!({"metadata": {"ownerReferences": [owner("a", "uid-a-2")]}})).await;
    tenant.start("a", "uid-a-2").await;
    tenant.claim("b", &json!({})).await;
    assert_eq!(tenant.ips_of("b").await, ["10.0.0.10/16"]);
    let status = tenant.claims.get("a.net1").await.unwrap().data["status"].clone();
    assert_eq!(status["ips"], claim.data["status"]["ips"]);
    assert_eq!(status["ownerPod"], json!({"name": "virt-launcher-a-2"}));
    // The leader writes a lost status again.
    merge_status(&tenant.claims, "a.net1", &json!({"status": {"ips": []}})).await;
    until(&tenant.claims, "a.net1", |claim| claim.data["status"]["ips"] == json!(["10.0.0.8/16"])).await;
}

pub async fn the_address_of_a_deleted_ipam_claim_is_free_only_after_its_guest_has_ended(cluster: &Cluster) {
    let (tenant, _controller) = tenant(cluster, &["10.0.0.8/32"]).await;
    tenant.claim("a", &json!({"metadata": {"finalizers": [PERSISTENT]}})).await;
    tenant.ips_of("a").await;
    tenant.start("a", "uid-a").await;
    tenant.delete("a").await;
    tenant.claim("b", &json!({})).await;
    tenant.until_failed("b", "SubnetExhausted").await;
    assert_eq!(tenant.site.held().await, rows([("10.0.0.8", "a.net1")]));
    // The program that creates the claims removes its own finalizer too early, while the guest still runs.
    let ours = json!({"metadata": {"finalizers": ["ipam.glowplug.dev/release-address"]}});
    tenant.merge("a", &ours).await;
    // A later claim on another pool is served. So the controller has had the time to release the address.
    tenant.site.pools.create(&PostParams::default(), &StaticIPPool::new("q", other(&tenant))).await.unwrap();
    let pool = json!({"spec": {"poolRef": {"name": "q"}}});
    tenant.site.claim("later", &pool).await;
    tenant.site.address_of("later").await;
    assert_eq!(tenant.given().await, ["10.0.0.8/16"]);
    assert!(tenant.has_finalizer("a").await);
    tenant.stop("a").await;
    tenant.until_gone("a").await;
    assert_eq!(tenant.ips_of("b").await, ["10.0.0.8/16"]);
}

/// Returns the specification of a pool on another network.
fn other(tenant: &Tenant) -> PoolSpec {
    PoolSpec { network: format!("{}/vlan20", tenant.site.namespace), ..tenant.site.spec(&["10.0.0.40/32"]) }
}

pub async fn a_new_virtual_machine_of_the_same_name_gets_a_new_ipam_claim_and_another_address(cluster: &Cluster) {
    let (tenant, _controller) = tenant(cluster, &["10.0.0.8/31"]).await;
    tenant.claim("a", &json!({})).await;
    assert_eq!(tenant.ips_of("a").await, ["10.0.0.8/16"]);
    // The pod of this instance may have read the status of the earlier claim.
    tenant.start("a", "uid-a-2").await;
    tenant.delete("a").await;
    tenant.until_gone("a").await;
    tenant.claim("a", &json!({"metadata": {"ownerReferences": [owner("a", "uid-a-2")]}})).await;
    assert_eq!(tenant.ips_of("a").await, ["10.0.0.9/16"]);
    tenant.claim("b", &json!({})).await;
    tenant.until_failed("b", "SubnetExhausted").await;
    tenant.stop("a").await;
    assert_eq!(tenant.ips_of("b").await, ["10.0.0.8/16"]);
    assert_eq!(tenant.ips_of("a").await, ["10.0.0.9/16"]);
}

pub async fn an_ipam_claim_that_is_restored_with_its_status_gets_its_address_after_the_guest_has_ended(
    cluster: &Cluster,
) {
    let (tenant, _controller) = tenant(cluster, &["10.0.0.8/32"]).await;
    tenant.claim("a", &json!({})).await;
    assert_eq!(tenant.ips_of("a").await, ["10.0.0.8/16"]);
    // The lease of the earlier claim is kept for this instance.
    tenant.start("a", "uid-a-2").await;
    tenant.delete("a").await;
    tenant.until_gone("a").await;
    tenant.claim("a", &json!({"metadata": {"ownerReferences": [owner("a", "uid-a-2")]}})).await;
    tenant.until_failed("a", "SubnetExhausted").await;
    merge_status(&tenant.claims, "a.net1", &json!({"status": {"ips": ["10.0.0.8/16"]}})).await;
    tenant.until_failed("a", "IPAddressConflict").await;
    tenant.stop("a").await;
    assert_eq!(tenant.ips_of("a").await, ["10.0.0.8/16"]);
    assert_eq!(tenant.site.held().await, rows([("10.0.0.8", "a.net1")]));
}

pub async fn an_ipam_claim_gets_an_offered_address_after_its_status_has_lost_an_excluded_one(cluster: &Cluster) {
    let tenant = Tenant::new(cluster).await;
    let spec = PoolSpec { excluded_addresses: vec!["10.0.0.9".to_owned()], ..tenant.spec(&["10.0.0.8/31"]) };
    tenant.site.pools.create(&PostParams::default(), &StaticIPPool::new("p", spec)).await.unwrap();
    tenant.claim("a", &json!({})).await;
    merge_status(&tenant.claims, "a.net1", &json!({"status": {"ips": ["10.0.0.9/16"]}})).await;
    tenant.start("a", "uid-a").await;
    let _controller = Controller::start(cluster, &tenant.site);
    tenant.until_failed("a", "IPAddressConflict").await;
    // The guest may still use the address that the status has lost.
    merge_status(&tenant.claims, "a.net1", &json!({"status": {"ips": []}})).await;
    let message = "keeps 10.0.0.9, which no pool offers, expected a release before another address";
    assert_eq!(tenant.until_failed("a", "AllocationFailed").await, message);
    tenant.stop("a").await;
    assert_eq!(tenant.ips_of("a").await, ["10.0.0.8/16"]);
    assert_eq!(tenant.site.held().await, rows([("10.0.0.8", "a.net1")]));
}

pub async fn ipam_claims_keep_the_addresses_that_they_have_when_a_leader_starts(cluster: &Cluster) {
    let tenant = Tenant::new(cluster).await;
    tenant.pool(&["10.0.0.8/30"]).await;
    tenant.claim("new", &json!({})).await;
    for (vm, ip) in [("a", "10.0.0.8/16"), ("b", "10.0.0.9/16"), ("twin", "10.0.0.9/16")] {
        tenant.claim(vm, &json!({})).await;
        merge_status(
            &tenant.claims,
            &format!("{vm}.net1"),
            &json!({"status": {"ips": [ip], "ownerPod": {"name": "pod"}}}),
        )
        .await;
    }
    let _controller = Controller::start(cluster, &tenant.site);
    assert_eq!(tenant.ips_of("new").await, ["10.0.0.10/16"]);
    assert_eq!(tenant.ips_of("a").await, ["10.0.0.8/16"]);
    // Two claims record one address, and no record shows which of the claims uses the address.
    let namespace = &tenant.site.namespace;
    for vm in ["b", "twin"] {
        let message = tenant.until_failed(vm, "IPAddressConflict").await;
        assert!(message.starts_with(&format!("IPAMClaim {namespace}/{vm}.net1: 10.0.0.9")), "{message}");
        let claim = tenant.claims.get(&format!("{vm}.net1")).await.unwrap();
        assert_eq!(claim.data["status"]["ips"], json!(["10.0.0.9/16"]));
    }
    assert!(until_duplicates(&tenant).await.contains("10.0.0.9"));
    let expected = rows([("10.0.0.10", "new.net1"), ("10.0.0.8", "a.net1")]);
    assert_eq!(tenant.site.held().await, expected);
    // The network provider writes another address into one of the two claims.
    merge_status(&tenant.claims, "twin.net1", &json!({"status": {"ips": ["10.0.0.11/16"]}})).await;
    until_no_duplicates(&tenant).await;
    assert_eq!(tenant.ips_of("twin").await, ["10.0.0.11/16"]);
}

pub async fn no_address_of_an_ipam_claim_is_allocated_while_its_network_attachment_definition_is_replaced(
    cluster: &Cluster,
) {
    let tenant = Tenant::without_network(cluster).await;
    tenant.claim("a", &json!({})).await;
    merge_status(&tenant.claims, "a.net1", &json!({"status": {"ips": ["10.0.0.8/16"]}})).await;
    let mut controller = Controller::start(cluster, &tenant.site);
    controller.until_ready().await;
    tenant.pool(&["10.0.0.8/30"]).await;
    tenant.site.claim("other", &json!({})).await;
    assert_eq!(tenant.site.address_of("other").await, "10.0.0.9");
    tenant.create_network(NETWORK).await;
    assert_eq!(tenant.ips_of("a").await, ["10.0.0.8/16"]);
    assert_eq!(tenant.site.held().await, rows([("10.0.0.8", "a.net1"), ("10.0.0.9", "other")]));
}

pub async fn the_readable_addresses_of_an_ipam_claim_are_its_own_although_another_address_cannot_be_read(
    cluster: &Cluster,
) {
    let tenant = Tenant::new(cluster).await;
    tenant.pool(&["10.0.0.8/30"]).await;
    let write = async |vm: &str, ips: Value| {
        merge_status(&tenant.claims, &format!("{vm}.net1"), &json!({"status": {"ips": ips}})).await;
    };
    let message = "status.ips[1]: invalid address \"x\", expected an IPv4 or IPv6 address";
    tenant.claim("a", &json!({})).await;
    write("a", json!(["10.0.0.8/16", "x"])).await;
    tenant.claim("b", &json!({})).await;
    let _controller = Controller::start(cluster, &tenant.site);
    assert_eq!(tenant.ips_of("b").await, ["10.0.0.9/16"]);
    assert_eq!(tenant.until_failed("a", "IPAddressConflict").await, message);
    assert_eq!(tenant.site.held().await, rows([("10.0.0.8", "a.net1"), ("10.0.0.9", "b.net1")]));
    // Another program writes the status while the leader runs.
    tenant.claim("c", &network_of("other")).await;
    write("c", json!(["10.0.0.10/16", "x"])).await;
    tenant.merge("c", &network_of(NETWORK)).await;
    assert_eq!(tenant.until_failed("c", "IPAddressConflict").await, message);
    tenant.claim("d", &json!({})).await;
    assert_eq!(tenant.ips_of("d").await, ["10.0.0.11/16"]);
    let given = [("10.0.0.10", "c.net1"), ("10.0.0.11", "d.net1"), ("10.0.0.8", "a.net1"), ("10.0.0.9", "b.net1")];
    assert_eq!(tenant.site.held().await, rows(given));
}

pub async fn each_address_of_an_ipam_claim_is_adopted_although_the_claim_has_the_lease_of_another_one(
    cluster: &Cluster,
) {
    let (tenant, controller) = tenant(cluster, &["10.0.0.8/31", "fd00::8/127"]).await;
    tenant.claim("a", &json!({})).await;
    assert_eq!(tenant.ips_of("a").await, ["10.0.0.8/16", "fd00::8/64"]);
    drop(controller);
    // Now only one address of the claim has a lease, as after a restore and a crash between the writes of the two
    // leases.
    let name = leader::name(&tenant.spec(&[]).network, "fd00::8");
    tenant.site.leases.delete(&name, &DeleteParams::default()).await.unwrap();
    tenant.claim("b", &json!({})).await;
    let _next = Controller::start(cluster, &tenant.site);
    assert_eq!(tenant.ips_of("b").await, ["10.0.0.9/16", "fd00::9/64"]);
    let leases = [("10.0.0.8", "a.net1"), ("10.0.0.9", "b.net1"), ("fd00::8", "a.net1"), ("fd00::9", "b.net1")];
    assert_eq!(tenant.site.held().await, rows(leases));
    // The claim holds one of these addresses, and another claim holds the other one.
    merge_status(&tenant.claims, "a.net1", &json!({"status": {"ips": ["10.0.0.8/16", "fd00::9/64"]}})).await;
    let mut holders = Vec::new();
    for name in ["a.net1", "b.net1"] {
        let uid = tenant.claims.get(name).await.unwrap().uid().unwrap();
        holders.push(format!("IPAMClaim {}/{name} ({uid})", tenant.site.namespace));
    }
    let [own, other] = &holders[..] else { panic!() };
    let source = format!("IPAMClaim {}/a.net1", tenant.site.namespace);
    let message = format!("{source}: fd00::9 of {own} is also of {other}");
    assert_eq!(tenant.until_failed("a", "IPAddressConflict").await, message);
}

pub async fn an_address_that_another_program_writes_into_an_ipam_claim_causes_an_event_and_stays(cluster: &Cluster) {
    let (tenant, _controller) = tenant(cluster, &["10.0.0.8/31"]).await;
    tenant.claim("a", &json!({})).await;
    assert_eq!(tenant.ips_of("a").await, ["10.0.0.8/16"]);
    merge_status(&tenant.claims, "a.net1", &json!({"status": {"ips": ["10.0.0.9/16"]}})).await;
    let message = tenant.until_failed("a", "IPAddressConflict").await;
    assert!(message.contains("10.0.0.9") && message.contains("10.0.0.8"), "{message}");
    let event = until_event(cluster.client(), &tenant.site.namespace, Some("IPAMClaim"), "a.net1", "IPAddressConflict");
    assert_eq!(event.await, message);
    // No other claim gets either of the two addresses.
    tenant.claim("b", &json!({})).await;
    tenant.until_failed("b", "SubnetExhausted").await;
    assert_eq!(tenant.claims.get("a.net1").await.unwrap().data["status"]["ips"], json!(["10.0.0.9/16"]));
    assert_eq!(tenant.site.held().await, rows([("10.0.0.8", "a.net1")]));
    // Each of the two addresses has only one user, so there is no conflict.
    crate::support::hosted::poll("a reserved address", async || {
        let counts = tenant.site.pools.get("p").await.unwrap().status?.families.first()?.clone();
        (counts.by_record == "1" && counts.conflicts == "0").then_some(())
    })
    .await;
    until_no_duplicates(&tenant).await;
    // Another program writes the leased address into the status again.
    merge_status(&tenant.claims, "a.net1", &json!({"status": {"ips": ["10.0.0.8/16"]}})).await;
    assert_eq!(tenant.ips_of("a").await, ["10.0.0.8/16"]);
}

pub async fn an_ipam_claim_gets_the_addresses_that_it_requests_or_that_its_pool_pre_allocates(cluster: &Cluster) {
    let tenant = Tenant::new(cluster).await;
    let mut spec = tenant.spec(&["10.0.0.8/29", "fd00::8/125"]);
    spec.pre_allocations = [("kept.net1".to_owned(), "10.0.0.8, fd00::9".to_owned())].into();
    tenant.site.pools.create(&PostParams::default(), &StaticIPPool::new("p", spec)).await.unwrap();
    let _controller = Controller::start(cluster, &tenant.site);
    let requests = |text: &str| json!({"metadata": {"annotations": {"ipam.glowplug.dev/requested-address": text}}});
    tenant.claim("a", &requests("fd00::c, 10.0.0.12")).await;
    assert_eq!(tenant.ips_of("a").await, ["10.0.0.12/16", "fd00::c/64"]);
    tenant.claim("kept", &json!({})).await;
    assert_eq!(tenant.ips_of("kept").await, ["10.0.0.8/16", "fd00::9/64"]);
    tenant.claim("wrong", &requests("10.0.0.13, 10.0.0.14")).await;
    assert_eq!(
        tenant.until_failed("wrong", "AllocationFailed").await,
        "annotation ipam.glowplug.dev/requested-address: \"10.0.0.13\" and \"10.0.0.14\", expected one address of each \
         family"
    );
    // The claim waits for the address that another claim has.
    tenant.claim("b", &requests("10.0.0.12")).await;
    let message = tenant.until_failed("b", "IPAddressConflict").await;
    assert!(message.contains("10.0.0.12"), "{message}");
    tenant.delete("a").await;
    assert_eq!(tenant.ips_of("b").await[0], "10.0.0.12/16");
}

pub async fn a_global_pool_serves_the_ipam_claims_of_every_namespace(cluster: &Cluster) {
    let (one, two) = (Tenant::without_network(cluster).await, Tenant::without_network(cluster).await);
    // Networks and global pools need names that no other scenario of the same server uses.
    let name = format!("p-{}", one.site.namespace);
    one.create_network(&name).await;
    let network = network_of(&name);
    let pools: Api<GlobalStaticIPPool> = Api::all(cluster.client());
    let spec = GlobalPoolSpec { pool: one.spec(&["10.0.0.8/31"]) };
    pools.create(&PostParams::default(), &GlobalStaticIPPool::new(&name, spec)).await.unwrap();
    let _controller = Controller::of(cluster, "");
    one.claim("a", &network).await;
    assert_eq!(one.ips_of("a").await, ["10.0.0.8/16"]);
    two.claim("a", &network).await;
    assert_eq!(two.ips_of("a").await, ["10.0.0.9/16"]);
    // A pool of the namespace takes precedence over a global pool. With two pools of the namespace, the claim is
    // refused.
    for pool in ["q", "r"] {
        let attachment = format!("{}/vlan10", one.site.namespace);
        let spec =
            PoolSpec { network: attachment, ..two.spec(&[if pool == "q" { "10.0.0.40/32" } else { "10.0.0.41/32" }]) };
        two.site.pools.create(&PostParams::default(), &StaticIPPool::new(pool, spec)).await.unwrap();
        if pool == "q" {
            two.claim("b", &network).await;
            assert_eq!(two.ips_of("b").await, ["10.0.0.40/16"]);
        }
    }
    two.claim("c", &network).await;
    let namespace = &two.site.namespace;
    let expected = format!(
        "StaticIPPool {namespace}/q and StaticIPPool {namespace}/r serve network \"{name}\", expected one pool"
    );
    let several = crate::support::hosted::poll("two pools", async || {
        let claim = two.claims.get("c.net1").await.unwrap();
        (condition(&claim)["reason"] == "PoolNotReady").then(|| condition(&claim)["message"].clone())
    });
    assert_eq!(several.await, expected.as_str());
}

pub async fn a_pool_on_another_network_does_not_allocate_the_address_of_an_ipam_claim_that_it_takes_over(
    cluster: &Cluster,
) {
    let tenant = Tenant::without_network(cluster).await;
    let namespace = tenant.site.namespace.clone();
    // Networks and global pools need names that no other scenario of the same server uses.
    let name = format!("o-{namespace}");
    tenant.create_network(&name).await;
    let network = network_of(&name);
    let pools: Api<GlobalStaticIPPool> = Api::all(cluster.client());
    let spec = GlobalPoolSpec { pool: tenant.spec(&["10.0.0.8/31"]) };
    pools.create(&PostParams::default(), &GlobalStaticIPPool::new(&name, spec)).await.unwrap();
    let controller = Controller::of(cluster, "");
    let uid = tenant.claim("a", &network).await.uid().unwrap();
    assert_eq!(tenant.ips_of("a").await, ["10.0.0.8/16"]);
    // The pool of the namespace takes precedence. Its network has the same name.
    let mut attachment = tenant.attachments.get("vlan10").await.unwrap();
    attachment.metadata = ObjectMeta { name: Some("vlan20".to_owned()), ..ObjectMeta::default() };
    tenant.attachments.create(&PostParams::default(), &attachment).await.unwrap();
    let other = PoolSpec { network: format!("{namespace}/vlan20"), ..tenant.spec(&["10.0.0.8/30"]) };
    tenant.site.pools.create(&PostParams::default(), &StaticIPPool::new("q", other)).await.unwrap();
    let expected = format!(
        "IPAMClaim {namespace}/a.net1: 10.0.0.8 of IPAMClaim {namespace}/a.net1 ({uid}) is held on another network, \
         {namespace}/vlan10"
    );
    assert_eq!(tenant.until_failed("a", "IPAddressConflict").await, expected);
    tenant.claim("b", &network).await;
    assert_eq!(tenant.ips_of("b").await, ["10.0.0.9/16"]);
    // The next leader knows the address, too.
    drop(controller);
    let _controller = Controller::of(cluster, "");
    tenant.claim("c", &network).await;
    assert_eq!(tenant.ips_of("c").await, ["10.0.0.10/16"]);
    assert_eq!(tenant.given().await, ["10.0.0.10/16", "10.0.0.8/16", "10.0.0.9/16"]);
    tenant.delete("a").await;
    tenant.until_gone("a").await;
    tenant.claim("d", &network).await;
    assert_eq!(tenant.ips_of("d").await, ["10.0.0.8/16"]);
}

fn network_of(name: &str) -> Value {
    json!({"spec": {"network": name}})
}

pub async fn an_ipam_claim_with_many_owners_is_released_after_the_last_guest(cluster: &Cluster) {
    let (tenant, controller) = tenant(cluster, &["10.0.0.8/32"]).await;
    let owner = |n: usize| {
        let (name, uid) = (format!("v{n}"), format!("uid-{n}"));
        json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": name, "uid": uid})
    };
    let owners: Vec<Value> = (0..40).map(owner).collect();
    tenant.claim("a", &json!({"metadata": {"ownerReferences": owners}})).await;
    tenant.ips_of("a").await;
    tenant.start("v17", "uid-17").await;
    tenant.delete("a").await;
    // One of the guests of claim `a` still runs, so the address is not free for claim `b`.
    tenant.claim("b", &json!({})).await;
    tenant.until_failed("b", "SubnetExhausted").await;
    // Without its finalizer, the claim is gone at once. The leader still knows the owners of the claim.
    tenant.merge("a", &json!({"metadata": {"finalizers": null}})).await;
    tenant.until_gone("a").await;
    // Claims that are created later are processed. So the controller has had the time to release the address.
    for later in ["c", "d"] {
        tenant.claim(later, &json!({})).await;
        tenant.until_failed(later, "SubnetExhausted").await;
    }
    assert_eq!(tenant.site.held().await, rows([("10.0.0.8", "a.net1")]));
    tenant.stop("v17").await;
    assert_eq!(tenant.ips_of("b").await, ["10.0.0.8/16"]);
    drop(controller);
}

pub async fn the_lease_of_an_ipam_claim_that_is_removed_by_force_is_released_after_its_guest(cluster: &Cluster) {
    let (tenant, controller) = tenant(cluster, &["10.0.0.8/31"]).await;
    for vm in ["a", "b"] {
        tenant.claim(vm, &json!({})).await;
        tenant.ips_of(vm).await;
    }
    let force = json!({"metadata": {"finalizers": null}});
    tenant.start("b", "uid-b").await;
    tenant.delete("b").await;
    drop(controller);
    tenant.merge("b", &force).await;
    tenant.delete("a").await;
    tenant.merge("a", &force).await;
    let mut next = Controller::start(cluster, &tenant.site);
    next.until_ready().await;
    // The guest of claim `b` still runs.
    while tenant.site.held().await != rows([("10.0.0.9", "b.net1")]) {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    tenant.stop("b").await;
    tenant.site.until_empty().await;
}

pub async fn no_claim_gets_the_address_of_a_guest_that_migrated_although_it_is_gone_before_the_first_pass_of_a_leader(
    cluster: &Cluster,
) {
    let (tenant, controller) = tenant(cluster, &["10.0.0.8/30"]).await;
    tenant.claim("a", &json!({})).await;
    assert_eq!(tenant.ips_of("a").await, ["10.0.0.8/16"]);
    tenant.start("a", "uid-a").await;
    drop(controller);
    let status = migrated(&tenant.instances.get("a").await.unwrap());
    merge(&tenant.instances, "a", &json!({"status": status})).await;
    // A new leader has listed the instances, and its opening waits for the list of another kind.
    let (opening, client) = Gate::new(cluster.controller(), is_list_of_services);
    let (watch, client) = Gate::new(client, is_watch_of_instances);
    opening.close();
    watch.close();
    let scope = Scope { namespace: tenant.site.namespace.clone(), ..Scope::default() };
    let _controller = Controller::with_scope(client, scope);
    opening.until_held().await;
    watch.until_held().await;
    tenant.stop("a").await;
    tenant.delete("a").await;
    // One watch reports the end of the instance, and then this guest. So the leader notes the end first.
    let guests = Guests::new(cluster, &tenant.site.namespace, &tenant.spec(&[]).network);
    guests.start("b", &["10.0.0.9"]).await;
    watch.open();
    poll("the reserved address of the guest", async || {
        (tenant.site.pools.get("p").await.unwrap().status?.families.first()?.by_report == "1").then_some(())
    })
    .await;
    opening.open();
    tenant.until_gone("a").await;
    let lease = tenant.site.leases.get(&leader::name(&tenant.spec(&[]).network, "10.0.0.8")).await.unwrap().spec;
    let [migrated, released, end] = [lease.migrated, lease.released, lease.reuse_after].map(|time| time.unwrap().0);
    assert_eq!((migrated <= released, end.as_second() - released.as_second()), (true, 30 * 24 * 60 * 60));
}

pub async fn no_claim_gets_the_address_of_a_guest_that_migrated_to_another_cluster(cluster: &Cluster) {
    let (tenant, _controller) = tenant(cluster, &["10.0.0.8/30"]).await;
    tenant.claim("a", &json!({"metadata": {"finalizers": [PERSISTENT]}})).await;
    assert_eq!(tenant.ips_of("a").await, ["10.0.0.8/16"]);
    tenant.start("a", "uid-a").await;
    let status = migrated(&tenant.instances.get("a").await.unwrap());
    merge(&tenant.instances, "a", &json!({"status": status})).await;
    let name = leader::name(&tenant.spec(&[]).network, "10.0.0.8");
    poll("the migration in the lease", async || tenant.site.leases.get(&name).await.unwrap().spec.migrated).await;
    // The instance is gone before ipam-extensions removes its finalizer from the claim.
    tenant.stop("a").await;
    tenant.delete("a").await;
    tenant.merge("a", &json!({"metadata": {"finalizers": ["ipam.glowplug.dev/release-address"]}})).await;
    tenant.until_gone("a").await;
    let lease = tenant.site.leases.get(&name).await.unwrap().spec;
    let [released, end] = [lease.released, lease.reuse_after].map(|time| time.unwrap().0.as_second());
    assert_eq!(end - released, 30 * 24 * 60 * 60);
    for (vm, address) in [("b", "10.0.0.9/16"), ("a", "10.0.0.10/16")] {
        tenant.claim(vm, &json!({})).await;
        assert_eq!(tenant.ips_of(vm).await, [address]);
    }
    // An administrator knows that the guest no longer uses the address, and deletes the lease of the address.
    tenant.site.leases.delete(&name, &DeleteParams::default()).await.unwrap();
    tenant.claim("c", &json!({})).await;
    assert_eq!(tenant.ips_of("c").await, ["10.0.0.8/16"]);
}
