//! Claims of Cluster API, from the creation of a claim to the removal of its IPAddress.

use glowplug_controller::cluster::object::Object;
use glowplug_controller::kinds::lease_name::lease_name;
use glowplug_controller::kinds::pool::{
    GlobalPoolSpec, GlobalStaticIPPool, PoolSpec, Route, StaticIPLease, StaticIPPool,
};
use glowplug_controller::pools::facts::Scope;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::api::{
    ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams, PostParams,
};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::support::controller::{Controller, Site, condition, create, make_fields_unreadable, merge, until, wait};
use crate::support::hosted::poll;
use crate::support::leader;
use crate::support::policy::Policy;
use crate::support::{Cluster, until_event};

/// Returns the message of a claim that waits for an address of pool `p`.
fn exhausted(site: &Site) -> String {
    format!("pool {}/p has no free IPv4 address", site.namespace)
}

async fn site(cluster: &Cluster, addresses: &[&str]) -> (Site, Controller) {
    let site = Site::new(cluster).await;
    site.pool("p", addresses).await;
    let mut controller = Controller::start(cluster, &site);
    controller.until_ready().await;
    (site, controller)
}

/// Returns the conditions of a claim.
fn conditions(claim: &DynamicObject) -> Vec<Value> {
    claim.data["status"]["conditions"].as_array().cloned().unwrap_or_default()
}

/// Returns the condition `Paused` of a claim. Null: the claim does not have the condition.
fn paused_condition(claim: &DynamicObject) -> Value {
    conditions(claim).into_iter().find(|condition| condition["type"] == "Paused").unwrap_or_default()
}

fn rows<const N: usize>(rows: [(&str, &str); N]) -> Vec<(String, String)> {
    rows.map(|(address, name)| (address.to_owned(), name.to_owned())).into()
}

pub async fn a_claim_gets_an_ipaddress_of_the_same_name(cluster: &Cluster) {
    let (site, _controller) = site(cluster, &["10.0.0.8/30"]).await;
    create(&site.clusters, json!({"metadata": {"name": "c1"}, "spec": {}})).await;
    let created = site.claim("a", &json!({"spec": {"clusterName": "c1"}})).await;
    assert_eq!(site.address_of("a").await, "10.0.0.8");

    let claim = site.claims.get("a").await.unwrap();
    assert_eq!(claim.finalizers(), ["ipam.glowplug.dev/release-address"]);
    let since = condition(&claim)["lastTransitionTime"].clone();
    let status = json!({
        "addressRef": {"name": "a"},
        "conditions": [
            {
                "type": "Ready", "status": "True", "reason": "AddressAllocated",
                "message": "The claim has an address", "observedGeneration": 1, "lastTransitionTime": since,
            },
            {
                "type": "Paused", "status": "False", "reason": "NotPaused",
                "message": "The claim is not paused", "observedGeneration": 1, "lastTransitionTime": since,
            },
        ],
        "deprecated": {"v1beta1": {"conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": since}]}},
    });
    assert_eq!(claim.data["status"], status);

    let address = site.addresses.get("a").await.unwrap();
    let pool = site.pools.get("p").await.unwrap();
    let spec = json!({
        "poolRef": {"apiGroup": "ipam.glowplug.dev", "kind": "StaticIPPool", "name": "p"},
        "claimRef": {"name": "a"}, "address": "10.0.0.8", "prefix": 16, "gateway": "10.0.0.1",
    });
    assert_eq!(address.data["spec"], spec);
    assert_eq!(address.finalizers(), ["ipam.glowplug.dev/protect-address"]);
    assert_eq!(address.labels()["cluster.x-k8s.io/cluster-name"], "c1");
    let owners = json!([
        {
            "apiVersion": "ipam.cluster.x-k8s.io/v1beta2", "kind": "IPAddressClaim", "name": "a", "uid": created.uid(),
            "controller": true, "blockOwnerDeletion": true,
        },
        {
            "apiVersion": "ipam.glowplug.dev/v1alpha1", "kind": "StaticIPPool", "name": "p", "uid": pool.uid(),
            "controller": false, "blockOwnerDeletion": true,
        },
    ]);
    assert_eq!(serde_json::to_value(address.owner_references()).unwrap(), owners);
    assert_eq!(site.held().await, rows([("10.0.0.8", "a")]));
}

pub async fn an_ipaddress_of_a_pool_with_settings_has_only_the_members_of_its_kind(cluster: &Cluster) {
    let site = Site::new(cluster).await;
    let spec = PoolSpec {
        nameservers: vec!["10.0.0.9".into()],
        search_domains: vec!["example.com".into()],
        mtu: Some(9000),
        routes: vec![Route { to: "10.9.0.0/16".into(), via: "10.0.0.8".into() }],
        ..site.spec(&["10.0.0.8/30"])
    };
    site.pools.create(&PostParams::default(), &StaticIPPool::new("p", spec)).await.unwrap();
    let _controller = Controller::start(cluster, &site);
    site.claim("a", &json!({})).await;
    // No claim gets the address of the router or of the name server.
    assert_eq!(site.address_of("a").await, "10.0.0.10");
    let spec = json!({
        "poolRef": {"apiGroup": "ipam.glowplug.dev", "kind": "StaticIPPool", "name": "p"},
        "claimRef": {"name": "a"}, "address": "10.0.0.10", "prefix": 16, "gateway": "10.0.0.1",
    });
    assert_eq!(site.addresses.get("a").await.unwrap().data["spec"], spec);
}

pub async fn a_claim_gets_an_address_with_the_prefix_length_32_or_128_or_0(cluster: &Cluster) {
    let site = Site::new(cluster).await;
    for (name, address, prefix, gateway) in [
        ("host", "10.0.0.8", 32, "169.254.1.1"),
        ("bare", "203.0.113.9", 0, "192.0.2.1"),
        ("v6", "fd00::8", 128, "fe80::1"),
    ] {
        let spec = PoolSpec {
            addresses: vec![address.into()],
            gateway: vec![gateway.into()],
            machine_network: Vec::new(),
            prefix: Some(prefix),
            on_link_gateway: true,
            ..site.spec(&[])
        };
        site.pools.create(&PostParams::default(), &StaticIPPool::new(name, spec)).await.unwrap();
        let pool = json!({"apiGroup": "ipam.glowplug.dev", "kind": "StaticIPPool", "name": name});
        site.claim(name, &json!({"spec": {"poolRef": pool}})).await;
    }
    let controller = Controller::start(cluster, &site);
    let rows = async || {
        let mut rows = Vec::new();
        for name in ["bare", "host", "v6"] {
            site.address_of(name).await;
            let spec = site.addresses.get(name).await.unwrap().data["spec"].take();
            rows.push(json!([spec["address"], spec["prefix"], spec["gateway"]]));
        }
        rows
    };
    let expected = [
        json!(["203.0.113.9", 0, "192.0.2.1"]),
        json!(["10.0.0.8", 32, "169.254.1.1"]),
        json!(["fd00::8", 128, "fe80::1"]),
    ];
    assert_eq!(rows().await, expected);
    // The next leader reads leases and IPAddresses with these prefix lengths.
    drop(controller);
    let leases = async || {
        let leases = site.leases.list(&ListParams::default()).await.unwrap().items.into_iter().map(|lease| lease.spec);
        let own = leases.filter(|lease| lease.holder.namespace == site.namespace);
        let mut rows: Vec<(String, u8)> = own.map(|lease| (lease.address, lease.prefix)).collect();
        rows.sort();
        rows
    };
    let expected_leases = [("10.0.0.8", 32), ("203.0.113.9", 0), ("fd00::8", 128)];
    let expected_leases = expected_leases.map(|(address, prefix)| (address.to_owned(), prefix));
    assert_eq!(leases().await, expected_leases);
    Controller::start(cluster, &site).until_ready().await;
    assert_eq!(rows().await, expected);
    assert_eq!(leases().await, expected_leases);
}

pub async fn an_exhausted_pool_that_gets_a_second_subnet_first_adopts_the_records_in_this_subnet(cluster: &Cluster) {
    let (site, _controller) = site(cluster, &["10.0.0.8"]).await;
    site.claim("a", &json!({})).await;
    assert_eq!(site.address_of("a").await, "10.0.0.8");
    site.claim("b", &json!({})).await;
    assert_eq!(site.until_not_ready("b", "PoolExhausted").await, exhausted(&site));
    // This IPAddress has no claim, and no pool has its address yet.
    let lone = json!({
        "metadata": {"name": "lone"},
        "spec": {
            "poolRef": {"apiGroup": "ipam.glowplug.dev", "kind": "StaticIPPool", "name": "p"},
            "claimRef": {"name": "lone"}, "address": "10.1.0.8", "prefix": 24,
        },
    });
    create(&site.addresses, lone).await;
    // The first subnet has the same content as the pool had without subnets.
    let subnets = json!([
        {"addresses": ["10.0.0.8"], "gateway": ["10.0.0.1"], "machineNetwork": [{"cidr": "10.0.0.0/16"}]},
        {"addresses": ["10.1.0.8-10.1.0.11"], "gateway": ["10.1.0.9"], "prefix": 24},
    ]);
    let grown = json!({"spec": {"addresses": null, "gateway": null, "machineNetwork": null, "subnets": subnets}});
    site.pools.patch("p", &PatchParams::default(), &Patch::Merge(grown)).await.unwrap();
    // The new claim gets neither the recorded address nor the gateway of the second subnet.
    assert_eq!(site.address_of("b").await, "10.1.0.10");
    let mut rows = Vec::new();
    for name in ["a", "b"] {
        let spec = site.addresses.get(name).await.unwrap().data["spec"].take();
        rows.push(json!([spec["address"], spec["prefix"], spec["gateway"]]));
    }
    assert_eq!(rows, [json!(["10.0.0.8", 16, "10.0.0.1"]), json!(["10.1.0.10", 24, "10.1.0.9"])]);
    // A released address of the first subnet is allocated before an address of the second subnet.
    site.delete("a").await;
    site.until_gone("a").await;
    site.claim("c", &json!({})).await;
    assert_eq!(site.address_of("c").await, "10.0.0.8");
    assert_eq!(site.held().await, self::rows([("10.0.0.8", "c"), ("10.1.0.10", "b")]));
}

/// A user creates claims that look like those that the controller creates for machines.
pub async fn a_claim_that_names_another_claim_as_a_machine_releases_no_address(cluster: &Cluster) {
    let (site, controller) = site(cluster, &["10.0.0.8/32"]).await;
    let claim = site.claim("a", &json!({})).await;
    assert_eq!(site.address_of("a").await, "10.0.0.8");
    // If an address were released, this claim would get it.
    site.claim("b", &json!({})).await;
    assert_eq!(site.until_not_ready("b", "PoolExhausted").await, exhausted(&site));
    let other = Site::new(cluster).await;
    let forge = async |forger: &Site, (name, interface): (&str, &str), uid: &str, kind: &str| {
        let claimant = json!({
            "kind": kind, "interface": interface,
            "machine": {"namespace": site.namespace, "name": name, "uid": uid},
        });
        let forged = json!({
            "metadata": {
                "name": format!("{name}-{interface}"), "labels": {"ipam.glowplug.dev/machine-claim": "true"},
                "annotations": {"ipam.glowplug.dev/claimant": claimant.to_string()},
            },
            "spec": {"poolRef": {"apiGroup": "ipam.example.com", "kind": "Pool", "name": "p"}},
        });
        create(&forger.claims, forged).await;
    };
    let uid = claim.uid().unwrap();
    forge(&other, ("a", "eno101"), &uid, "IPAddressClaim").await;
    forge(&site, ("a", "eno101"), &uid, "VirtualMachine").await;
    forge(&site, ("a", "eno102"), &uid, "IPAddressClaim").await;
    // When the controller has deleted the claim of a machine that does not exist, it has also processed the earlier
    // claims.
    forge(&site, ("z", "eno101"), "of-nobody", "VirtualMachine").await;
    site.until_gone("z-eno101").await;
    drop(controller);
    let _next = {
        let mut controller = Controller::start(cluster, &site);
        controller.until_ready().await;
        controller
    };
    forge(&site, ("y", "eno101"), "of-nobody", "KubevirtMachine").await;
    site.until_gone("y-eno101").await;
    assert_eq!(site.held().await, rows([("10.0.0.8", "a")]));
    assert_eq!(site.given().await, rows([("10.0.0.8", "a")]));
    site.delete("a").await;
    assert_eq!(site.address_of("b").await, "10.0.0.8");
}

pub async fn an_ipaddress_takes_no_address_of_a_pool_of_another_namespace(cluster: &Cluster) {
    let (own, other) = (Site::new(cluster).await, Site::new(cluster).await);
    own.pool("p", &["10.0.0.8/31"]).await;
    let spec = PoolSpec { network: format!("{}/vlan10", own.namespace), ..other.spec(&["10.0.0.0/31"]) };
    other.pools.create(&PostParams::default(), &StaticIPPool::new("p", spec)).await.unwrap();
    let mut controller = Controller::of(cluster, "");
    controller.until_ready().await;
    // Pool `p2` is for another interface, and pool `none` does not exist.
    let spec = PoolSpec { interface: Some("eno102".to_owned()), ..other.spec(&["10.0.1.0/31"]) };
    other.pools.create(&PostParams::default(), &StaticIPPool::new("p2", spec)).await.unwrap();
    let namespace = &other.namespace;
    let of_pool = |name: &str, pool: &str| {
        format!(
            "IPAddress {name:?} has an address of pool {namespace}/{pool}, expected an address of pool {namespace}/p"
        )
    };
    for (name, pool, message) in
        [("x", "p", None), ("y", "p2", Some(of_pool("y", "p2"))), ("z", "none", Some(of_pool("z", "none")))]
    {
        let uid = other.claim(name, &json!({"metadata": {"annotations": {"cluster.x-k8s.io/paused": ""}}})).await.uid();
        let ignored = || {
            let claimant = format!("IPAddressClaim {namespace}/{name} ({})", uid.as_deref().unwrap());
            let reason = "no pool that serves the namespace has the address";
            format!("IPAddress {namespace}/{name}: 10.0.0.8 of {claimant} is ignored: {reason}")
        };
        let message = message.unwrap_or_else(ignored);
        create_address_of(&other, (name, pool), uid.as_ref(), "10.0.0.8").await;
        merge(&other.claims, name, &json!({"metadata": {"annotations": null}})).await;
        assert_eq!(other.until_not_ready(name, "AllocationFailed").await, message);
    }
    for (name, address) in [("b", "10.0.0.8"), ("c", "10.0.0.9")] {
        own.claim(name, &json!({})).await;
        assert_eq!(own.address_of(name).await, address);
    }
    assert_eq!(other.held().await, rows([]));
}

pub async fn a_claim_on_an_exhausted_pool_gets_the_address_of_a_deleted_claim(cluster: &Cluster) {
    let (site, _controller) = site(cluster, &["10.0.0.8/32"]).await;
    site.claim("a", &json!({})).await;
    assert_eq!(site.address_of("a").await, "10.0.0.8");
    site.claim("b", &json!({})).await;
    assert_eq!(site.until_not_ready("b", "PoolExhausted").await, exhausted(&site));
    assert_eq!(
        until_event(cluster.client(), &site.namespace, Some("IPAddressClaim"), "b", "IPPoolExhausted").await,
        exhausted(&site)
    );
    site.delete("a").await;
    site.until_gone("a").await;
    assert_eq!(site.address_of("b").await, "10.0.0.8");
    assert_eq!(site.given().await, rows([("10.0.0.8", "b")]));
    assert_eq!(site.held().await, rows([("10.0.0.8", "b")]));
    site.delete("b").await;
    site.until_gone("b").await;
    site.until_empty().await;
}

pub async fn leases_of_deleted_claims_are_deleted_except_the_last_lease_of_a_name_in_a_sticky_pool(cluster: &Cluster) {
    let (site, _controller) = site(cluster, &["10.0.0.8-10.0.0.31"]).await;
    let spec = PoolSpec { sticky: true, ..site.spec(&["10.0.0.32-10.0.0.63"]) };
    site.pools.create(&PostParams::default(), &StaticIPPool::new("sticky", spec)).await.unwrap();
    for (pool, first) in [("p", 20), ("sticky", 40)] {
        for n in 0..3 {
            let address = format!("10.0.0.{}", first + n);
            let annotations = json!({"ipam.glowplug.dev/requested-address": address});
            site.claim("a", &json!({"metadata": {"annotations": annotations}, "spec": {"poolRef": {"name": pool}}}))
                .await;
            assert_eq!(site.address_of("a").await, address);
            site.delete("a").await;
            site.until_gone("a").await;
        }
    }
    poll("the end of the released leases", async || {
        let leases = leader::stored(cluster.client(), &format!("{}/vlan10", site.namespace)).await;
        (leases == [("10.0.0.42".to_owned(), "a".to_owned(), true)]).then_some(())
    })
    .await;
}

pub async fn a_deleted_claim_with_unreadable_managed_fields_is_released(cluster: &Cluster) {
    let (site, _controller) = site(cluster, &["10.0.0.8/32"]).await;
    site.claim("a", &json!({})).await;
    site.address_of("a").await;
    let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("ipam.cluster.x-k8s.io", "v1beta2", "IPAddressClaim"));
    make_fields_unreadable(&cluster.client(), &kind, Some(&site.namespace), "a").await;
    let claims: Api<Object> = Api::namespaced_with(cluster.client(), &site.namespace, &kind);
    claims.delete("a", &DeleteParams::default()).await.unwrap();
    site.until_empty().await;
    poll("the end of the claim", async || claims.get_opt("a").await.unwrap().is_none().then_some(())).await;
}

pub async fn a_grown_pool_serves_claims_in_the_order_of_their_creation(cluster: &Cluster) {
    let (site, _controller) = site(cluster, &["10.0.0.8/32"]).await;
    for name in ["a", "b", "c", "d"] {
        site.claim(name, &json!({})).await;
        if name == "a" {
            site.address_of(name).await;
        } else {
            site.until_not_ready(name, "PoolExhausted").await;
        }
    }
    for (addresses, expected) in [(json!(["10.0.0.8/31"]), "b"), (json!(["10.0.0.8/31", "10.0.0.10/31"]), "c")] {
        let grown = Patch::Merge(json!({"spec": {"addresses": addresses}}));
        let _: StaticIPPool = site.pools.patch("p", &PatchParams::default(), &grown).await.unwrap();
        site.address_of(expected).await;
    }
    site.address_of("d").await;
    let expected = rows([("10.0.0.10", "c"), ("10.0.0.11", "d"), ("10.0.0.8", "a"), ("10.0.0.9", "b")]);
    assert_eq!(site.given().await, expected);
}

pub async fn a_claim_waits_while_its_cluster_is_paused_or_absent(cluster: &Cluster) {
    let (site, _controller) = site(cluster, &["10.0.0.8/29"]).await;
    create(&site.clusters, json!({"metadata": {"name": "paused"}, "spec": {"paused": true}})).await;
    site.claim("a", &json!({"spec": {"clusterName": "paused"}})).await;
    site.claim("b", &json!({"metadata": {"labels": {"cluster.x-k8s.io/cluster-name": "absent"}}})).await;
    site.claim("c", &json!({"metadata": {"annotations": {"cluster.x-k8s.io/paused": "true"}}})).await;
    // The later claim `d` is served. So the controller has had the time to serve the earlier claims.
    site.claim("d", &json!({})).await;
    site.address_of("d").await;
    let paused = format!("Cluster {}/paused is paused", site.namespace);
    for (name, message) in [("a", paused.as_str()), ("c", "The claim has the annotation cluster.x-k8s.io/paused")] {
        let is_paused = |claim: &DynamicObject| paused_condition(claim)["status"] == "True";
        let claim = until(&site.claims, name, is_paused).await;
        assert_eq!((claim.finalizers(), conditions(&claim).len()), (&[] as &[String], 1), "{name}");
        let condition = paused_condition(&claim);
        assert_eq!((condition["reason"].as_str(), condition["message"].as_str()), (Some("Paused"), Some(message)));
    }
    let message = format!("Cluster {}/absent does not exist", site.namespace);
    assert_eq!(site.until_not_ready("b", "AllocationFailed").await, message);
    assert_eq!(site.claims.get("b").await.unwrap().finalizers(), &[] as &[String]);
    merge(&site.clusters, "paused", &json!({"spec": {"paused": false}})).await;
    site.address_of("a").await;
    create(&site.clusters, json!({"metadata": {"name": "absent"}})).await;
    site.address_of("b").await;
    merge(&site.claims, "c", &json!({"metadata": {"annotations": null}})).await;
    site.address_of("c").await;
    for name in ["a", "b", "c", "d"] {
        let is_running = |claim: &DynamicObject| paused_condition(claim)["reason"] == "NotPaused";
        until(&site.claims, name, is_running).await;
    }
    // The Cluster is deleted before the claims of its machines are deleted.
    site.clusters.delete("absent", &DeleteParams::default()).await.unwrap();
    site.delete("b").await;
    site.until_gone("b").await;
}

pub async fn a_claim_on_a_pool_of_two_families_selects_one_family(cluster: &Cluster) {
    let (site, _controller) = site(cluster, &["10.0.0.8/30", "fd00::8/125"]).await;
    site.claim("a", &json!({})).await;
    let message = format!(
        "StaticIPPool {}/p has IPv4 and IPv6 addresses, expected annotation ipam.glowplug.dev/family on the claim",
        site.namespace
    );
    until(&site.claims, "a", |claim| condition(claim)["message"] == message.as_str()).await;
    assert_eq!(condition(&site.claims.get("a").await.unwrap())["reason"], "PoolNotReady");
    let family = |family: &str| json!({"metadata": {"annotations": {"ipam.glowplug.dev/family": family}}});
    merge(&site.claims, "a", &family("IPv6")).await;
    assert_eq!(site.address_of("a").await, "fd00::8");
    assert_eq!(site.addresses.get("a").await.unwrap().data["spec"].get("gateway"), None);
    site.claim("b", &family("IPv4")).await;
    assert_eq!(site.address_of("b").await, "10.0.0.8");
}

pub async fn a_claim_is_served_after_its_pool_has_lost_the_second_family(cluster: &Cluster) {
    let (site, _controller) = site(cluster, &["10.0.0.8/30", "fd00::8/125"]).await;
    site.claim("a", &json!({})).await;
    site.until_not_ready("a", "PoolNotReady").await;
    merge(&site.pools, "p", &json!({"spec": {"addresses": ["10.0.0.8/30"]}})).await;
    assert_eq!(site.address_of("a").await, "10.0.0.8");
}

pub async fn a_claim_with_a_mistake_in_its_pool_reference_has_a_condition_and_gets_no_address(cluster: &Cluster) {
    let (site, _controller) = site(cluster, &["10.0.0.8/29"]).await;
    let kind = "spec.poolRef.kind: unknown kind \"StaticPool\", expected StaticIPPool or GlobalStaticIPPool";
    let name = "spec.poolRef.name: invalid name \"n/p\", expected the name of a pool";
    for (claim, changes, expected) in [("a", json!({"kind": "StaticPool"}), kind), ("b", json!({"name": "n/p"}), name)]
    {
        site.claim(claim, &json!({"spec": {"poolRef": changes}})).await;
        assert_eq!(site.until_not_ready(claim, "AllocationFailed").await, expected);
        assert_eq!(site.claims.get(claim).await.unwrap().finalizers(), &[] as &[String]);
    }
    // Claim `c`, whose pool belongs to another provider, stays as it is.
    site.claim("c", &json!({"spec": {"poolRef": {"apiGroup": "ipam.cluster.x-k8s.io"}}})).await;
    site.claim("d", &json!({})).await;
    assert_eq!(site.address_of("d").await, "10.0.0.8");
    assert_eq!(site.claims.get("c").await.unwrap().data.get("status"), None);
    assert_eq!(site.held().await, [("10.0.0.8".to_owned(), "d".to_owned())]);
    for claim in ["a", "b"] {
        site.delete(claim).await;
        site.until_gone(claim).await;
    }
}

pub async fn a_claim_waits_for_its_pool(cluster: &Cluster) {
    let site = Site::new(cluster).await;
    let mut controller = Controller::start(cluster, &site);
    controller.until_ready().await;
    site.claim("a", &json!({})).await;
    let message = site.until_not_ready("a", "PoolNotReady").await;
    assert_eq!(
        message,
        format!(
            "StaticIPPool {}/p does not exist, expected a StaticIPPool in the namespace of the claim, or a GlobalStaticIPPool",
            site.namespace
        )
    );
    site.pool("p", &["10.0.0.8/30"]).await;
    assert_eq!(site.address_of("a").await, "10.0.0.8");
}

pub async fn a_global_pool_serves_claims_of_every_namespace(cluster: &Cluster) {
    let (site, other) = (Site::new(cluster).await, Site::new(cluster).await);
    let pools: Api<GlobalStaticIPPool> = Api::all(cluster.client());
    let spec = GlobalPoolSpec { pool: site.spec(&["10.0.0.8/30"]) };
    pools.create(&PostParams::default(), &GlobalStaticIPPool::new(&site.namespace, spec)).await.unwrap();
    // A controller of one namespace would not know the records of the other namespaces.
    let limited = Controller::start(cluster, &site);
    let pool = json!({"spec": {"poolRef": {"kind": "GlobalStaticIPPool", "name": site.namespace}}});
    site.claim("a", &pool).await;
    site.until_not_ready("a", "PoolNotReady").await;
    let unserved = pools.get(&site.namespace).await.unwrap();
    assert_eq!((unserved.finalizers().len(), unserved.status.unwrap_or_default().conditions.len()), (0, 0));
    drop(limited);
    let _controller = Controller::of(cluster, "");
    assert_eq!(site.address_of("a").await, "10.0.0.8");
    other.claim("a", &pool).await;
    assert_eq!(other.address_of("a").await, "10.0.0.9");
}

pub async fn ipaddresses_without_a_claim_reserve_a_quarter_of_a_global_pool_although_claims_hold_the_addresses(
    cluster: &Cluster,
) {
    let (site, other) = (Site::new(cluster).await, Site::new(cluster).await);
    let pools: Api<GlobalStaticIPPool> = Api::all(cluster.client());
    let spec = GlobalPoolSpec { pool: site.spec(&["10.0.0.8/29"]) };
    pools.create(&PostParams::default(), &GlobalStaticIPPool::new(&site.namespace, spec)).await.unwrap();
    let mut controller = Controller::of(cluster, "");
    controller.until_ready().await;
    let pool = json!({"apiGroup": "ipam.glowplug.dev", "kind": "GlobalStaticIPPool", "name": site.namespace});
    let holders = ["a", "b", "c", "d"];
    for (name, address) in holders.into_iter().zip(["10.0.0.8", "10.0.0.9", "10.0.0.10", "10.0.0.11"]) {
        site.claim(name, &json!({"spec": {"poolRef": pool}})).await;
        assert_eq!(site.address_of(name).await, address);
    }
    let lone = async |name: &str, address: &str| {
        let spec = json!({"poolRef": pool, "claimRef": {"name": name}, "address": address, "prefix": 16});
        create(&other.addresses, json!({"metadata": {"name": name}, "spec": spec})).await;
    };
    let conflicts =
        async || Some(pools.get(&site.namespace).await.unwrap().status?.families.first()?.conflicts.clone());
    // A quarter of eight addresses is two.
    for (name, address, count) in [("a", "10.0.0.8", "1"), ("b", "10.0.0.9", "2")] {
        lone(name, address).await;
        poll("a conflict", async || (conflicts().await? == count).then_some(())).await;
    }
    lone("c", "10.0.0.10").await;
    lone("d", "10.0.0.11").await;
    for name in holders {
        site.delete(name).await;
        site.until_gone(name).await;
    }
    site.claim("next", &json!({"spec": {"poolRef": pool}})).await;
    assert_eq!(site.address_of("next").await, "10.0.0.10");
}

pub async fn a_claim_of_machine_api_is_released_after_machine_api_has_removed_its_finalizer(cluster: &Cluster) {
    let (site, _controller) = site(cluster, &["10.0.0.8/32"]).await;
    let old = Site::of(cluster, &site.namespace, "v1beta1");
    let theirs = "machine.openshift.io/ip-claim-protection";
    let machine = json!({"metadata": {"finalizers": [theirs]}, "spec": {"poolRef": {"kind": "staticippools"}}});
    old.claim("a", &machine).await;
    assert_eq!(site.address_of("a").await, "10.0.0.8");
    let claim = old.claims.get("a").await.unwrap();
    assert_eq!(claim.data["status"]["addressRef"], json!({"name": "a"}));
    assert_eq!(old.addresses.get("a").await.unwrap().data["spec"]["poolRef"]["kind"], "staticippools");
    site.claim("b", &json!({})).await;
    site.until_not_ready("b", "PoolExhausted").await;
    site.delete("a").await;
    // The machine still uses the address. Claim `c` finds the pool exhausted, so the address has not been released.
    site.claim("c", &json!({})).await;
    site.until_not_ready("c", "PoolExhausted").await;
    assert_eq!(site.held().await, rows([("10.0.0.8", "a")]));
    let claim = site.claims.get("a").await.unwrap();
    let left: Vec<&String> = claim.finalizers().iter().filter(|name| *name != theirs).collect();
    merge(&site.claims, "a", &json!({"metadata": {"finalizers": left}})).await;
    site.until_gone("a").await;
    assert_eq!(site.address_of("b").await, "10.0.0.8");
}

/// Creates a claim and an IPAddress as `clusterctl move` does: with new UIDs, adapted owner references, and no status.
async fn move_in(site: &Site, name: &str, address: &str) {
    let claim = site.claim(name, &json!({"spec": {"clusterName": "moved"}, "metadata": {"finalizers": ["ipam.glowplug.dev/release-address"]}})).await;
    create_address(site, name, claim.uid().as_ref(), address).await;
}

/// Creates an IPAddress as the controller does, for the claim with this UID.
async fn create_address(site: &Site, name: &str, uid: Option<&String>, address: &str) {
    create_address_of(site, (name, "p"), uid, address).await;
}

async fn create_address_of(site: &Site, (name, pool): (&str, &str), uid: Option<&String>, address: &str) {
    let owner = json!({
        "apiVersion": "ipam.cluster.x-k8s.io/v1beta2", "kind": "IPAddressClaim", "name": name, "uid": uid,
        "controller": true, "blockOwnerDeletion": true,
    });
    let object = json!({
        "metadata": {"name": name, "finalizers": ["ipam.glowplug.dev/protect-address"], "ownerReferences": [owner]},
        "spec": {
            "poolRef": {"apiGroup": "ipam.glowplug.dev", "kind": "StaticIPPool", "name": pool},
            "claimRef": {"name": name}, "address": address, "prefix": 16, "gateway": "10.0.0.1",
        },
    });
    create(&site.addresses, object).await;
}

pub async fn a_moved_claim_keeps_its_address(cluster: &Cluster) {
    // The claim is moved once while no leader runs, and once while a leader runs.
    for is_leading in [false, true] {
        let site = Site::new(cluster).await;
        let mut controller = is_leading.then(|| Controller::start(cluster, &site));
        site.pool("p", &["10.0.0.8/31"]).await;
        create(&site.clusters, json!({"metadata": {"name": "moved"}, "spec": {"paused": true}})).await;
        move_in(&site, "a", "10.0.0.8").await;
        if !is_leading {
            site.claim("new", &json!({})).await;
            controller = Some(Controller::start(cluster, &site));
        } else {
            // The controller stores the lease although the Cluster is paused.
            while site.held().await != rows([("10.0.0.8", "a")]) {
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            }
            site.claim("new", &json!({})).await;
        }
        assert_eq!(site.address_of("new").await, "10.0.0.9");
        let is_paused = |claim: &DynamicObject| {
            let status = &claim.data["status"];
            let conditions = status["conditions"].as_array();
            let is_only = |all: &Vec<Value>| all.len() == 1 && all[0]["type"] == "Paused" && all[0]["status"] == "True";
            status["addressRef"].is_null() && conditions.is_some_and(is_only)
        };
        until(&site.claims, "a", is_paused).await;
        merge(&site.clusters, "moved", &json!({"spec": {"paused": false}})).await;
        assert_eq!(site.address_of("a").await, "10.0.0.8");
        assert_eq!(site.held().await, rows([("10.0.0.8", "a"), ("10.0.0.9", "new")]));
        drop(controller);
    }
}

pub async fn the_address_of_a_claim_that_clusterctl_moves_away_is_held_until_the_claim_is_back(cluster: &Cluster) {
    let (site, _controller) = site(cluster, &["10.0.0.8/31"]).await;
    create(&site.clusters, json!({"metadata": {"name": "moved"}, "spec": {}})).await;
    site.claim("a", &json!({"spec": {"clusterName": "moved"}})).await;
    assert_eq!(site.address_of("a").await, "10.0.0.8");
    merge(&site.clusters, "moved", &json!({"spec": {"paused": true}})).await;
    for objects in [&site.addresses, &site.claims] {
        let moved = json!({"metadata": {"annotations": {"clusterctl.cluster.x-k8s.io/delete-for-move": ""}}});
        merge(objects, "a", &moved).await;
        objects.delete("a", &DeleteParams::default()).await.unwrap();
        merge(objects, "a", &json!({"metadata": {"finalizers": []}})).await;
    }
    poll("the release of the lease", async || {
        let leases = leader::stored(cluster.client(), &format!("{}/vlan10", site.namespace)).await;
        (leases == [("10.0.0.8".to_owned(), "a".to_owned(), true)]).then_some(())
    })
    .await;
    site.claim("b", &json!({})).await;
    assert_eq!(site.address_of("b").await, "10.0.0.9");
    site.claim("c", &json!({})).await;
    site.until_not_ready("c", "PoolExhausted").await;
    move_in(&site, "a", "10.0.0.8").await;
    merge(&site.clusters, "moved", &json!({"spec": {"paused": false}})).await;
    assert_eq!(site.address_of("a").await, "10.0.0.8");
    assert_eq!(site.held().await, rows([("10.0.0.8", "a"), ("10.0.0.9", "b")]));
}

pub async fn a_paused_claim_that_is_created_after_its_ipaddress_holds_the_address(cluster: &Cluster) {
    let (site, _controller) = site(cluster, &["10.0.0.8/31"]).await;
    create(&site.clusters, json!({"metadata": {"name": "moved"}, "spec": {"paused": true}})).await;
    let pool = json!({"apiGroup": "ipam.glowplug.dev", "kind": "StaticIPPool", "name": "p"});
    let spec = json!({"poolRef": pool, "claimRef": {"name": "a"}, "address": "10.0.0.8", "prefix": 16});
    create(&site.addresses, json!({"metadata": {"name": "a"}, "spec": spec})).await;
    let reserved = async || site.pools.get("p").await.unwrap().status?.families.first().map(|it| it.by_record.clone());
    poll("a reserved address", async || (reserved().await? == "1").then_some(())).await;
    site.claim("a", &json!({"spec": {"clusterName": "moved"}})).await;
    poll("a lease", async || (site.held().await == rows([("10.0.0.8", "a")])).then_some(())).await;
    merge(&site.clusters, "moved", &json!({"spec": {"paused": false}})).await;
    assert_eq!(site.address_of("a").await, "10.0.0.8");
    poll("no reserved address", async || (reserved().await? == "0").then_some(())).await;
}

pub async fn an_ipaddress_that_is_removed_by_force_is_written_again(cluster: &Cluster) {
    let (site, _controller) = site(cluster, &["10.0.0.8/30"]).await;
    site.claim("a", &json!({})).await;
    assert_eq!(site.address_of("a").await, "10.0.0.8");
    let before = site.addresses.get("a").await.unwrap().uid();
    // The finalizer keeps an IPAddress that a user deletes.
    site.addresses.delete("a", &DeleteParams::default()).await.unwrap();
    assert!(site.addresses.get("a").await.unwrap().metadata.deletion_timestamp.is_some());
    merge(&site.addresses, "a", &json!({"metadata": {"finalizers": []}})).await;
    let after = until(&site.addresses, "a", |address| address.uid() != before).await;
    assert_eq!(after.data["spec"]["address"], "10.0.0.8");
}

pub async fn a_claim_that_is_removed_by_force_leaves_no_lease_and_no_ipaddress(cluster: &Cluster) {
    let (site, controller) = site(cluster, &["10.0.0.8/30"]).await;
    for name in ["a", "b"] {
        site.claim(name, &json!({})).await;
        site.address_of(name).await;
    }
    let remove = async |name: &str| {
        merge(&site.claims, name, &json!({"metadata": {"finalizers": []}})).await;
        site.delete(name).await;
    };
    remove("a").await;
    until_only(&site, "b").await;
    // A claim is removed by force while no leader runs.
    drop(controller);
    remove("b").await;
    let _controller = Controller::start(cluster, &site);
    site.until_empty().await;
}

async fn until_only(site: &Site, name: &str) {
    loop {
        let names = |rows: Vec<(String, String)>| rows.into_iter().map(|(_, name)| name).collect::<Vec<String>>();
        if names(site.held().await) == [name] && names(site.given().await) == [name] {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}

/// Returns a site after the claim `a` got an address and was removed by force. No controller runs.
async fn after_removal_by_force(cluster: &Cluster) -> Site {
    let (site, controller) = site(cluster, &["10.0.0.8/30"]).await;
    site.claim("a", &json!({})).await;
    site.address_of("a").await;
    drop(controller);
    merge(&site.claims, "a", &json!({"metadata": {"finalizers": []}})).await;
    site.delete("a").await;
    site
}

pub async fn a_new_claim_does_not_take_over_the_ipaddress_of_a_deleted_claim_of_the_same_name(cluster: &Cluster) {
    let site = after_removal_by_force(cluster).await;
    let uid = site.claim("a", &json!({})).await.uid();
    let _controller = Controller::start(cluster, &site);
    site.address_of("a").await;
    let owners = site.addresses.get("a").await.unwrap().owner_references().to_vec();
    assert_eq!(owners[0].uid, uid.unwrap());
    until_only(&site, "a").await;
}

/// A paused leader sends the request for an IPAddress. The request arrives after another leader has released the
/// address.
pub async fn a_late_ipaddress_of_a_deleted_claim_is_removed(cluster: &Cluster) {
    let (site, controller) = site(cluster, &["10.0.0.8/30"]).await;
    let uid = site.claim("a", &json!({})).await.uid();
    assert_eq!(site.address_of("a").await, "10.0.0.8");
    site.delete("a").await;
    site.until_gone("a").await;
    site.claim("b", &json!({})).await;
    assert_eq!(site.address_of("b").await, "10.0.0.8");
    for address in ["10.0.0.8", "10.0.0.9"] {
        create_address(&site, "a", uid.as_ref(), address).await;
        // The garbage collector of Kubernetes deletes an IPAddress whose owner does not exist.
        site.addresses.delete("a", &DeleteParams::default()).await.unwrap();
        wait(&site.addresses, "a", |address: Option<&DynamicObject>| address.is_none()).await;
    }
    until_only(&site, "b").await;
    // The late IPAddress arrives after a new claim of the same name. The claim gets an IPAddress with another address,
    // and the late IPAddress is deleted.
    drop(controller);
    let new = site.claim("a", &json!({})).await.uid();
    create_address(&site, "a", uid.as_ref(), "10.0.0.8").await;
    let controller = Controller::start(cluster, &site);
    assert_eq!(site.address_of("a").await, "10.0.0.9");
    assert_eq!(site.addresses.get("a").await.unwrap().owner_references()[0].uid, *new.as_ref().unwrap());
    // The late IPAddress arrives while the new claim holds an address but has lost its own IPAddress.
    drop(controller);
    merge(&site.addresses, "a", &json!({"metadata": {"finalizers": []}})).await;
    site.addresses.delete("a", &DeleteParams::default()).await.unwrap();
    create_address(&site, "a", uid.as_ref(), "10.0.0.10").await;
    let _controller = Controller::start(cluster, &site);
    let own = until(&site.addresses, "a", |address| address.owner_references()[0].uid == *new.as_ref().unwrap()).await;
    assert_eq!(own.data["spec"]["address"], "10.0.0.9");
    assert_eq!(site.held().await, rows([("10.0.0.8", "b"), ("10.0.0.9", "a")]));
    let conditions = site.pools.get("p").await.unwrap().status.unwrap().conditions;
    let duplicates = conditions.iter().find(|condition| condition.type_ == "DuplicateRecords").unwrap();
    assert_eq!((&*duplicates.status, &*duplicates.reason), ("False", "NoDuplicates"));
}

pub async fn claims_without_the_label_of_the_watch_filter_are_not_served(cluster: &Cluster) {
    let site = Site::new(cluster).await;
    let label = json!({"metadata": {"labels": {"cluster.x-k8s.io/watch-filter": "blue"}}});
    let mut pool = StaticIPPool::new("p", site.spec(&["10.0.0.8/30"]));
    pool.metadata.labels = serde_json::from_value(label["metadata"]["labels"].clone()).unwrap();
    site.pools.create(&PostParams::default(), &pool).await.unwrap();
    let scope = Scope { namespace: site.namespace.clone(), watch_filter: "blue".to_owned() };
    let _controller = Controller::with_scope(cluster.controller(), scope);
    site.claim("other", &json!({})).await;
    site.claim("mine", &label).await;
    site.address_of("mine").await;
    let other = site.claims.get("other").await.unwrap();
    assert_eq!((other.finalizers(), &other.data["status"]), (&[] as &[String], &Value::Null));
}

pub async fn an_ipaddress_of_another_provider_stays_unchanged(cluster: &Cluster) {
    let (site, _controller) = site(cluster, &["10.0.0.8/30"]).await;
    let spec = json!({
        "poolRef": {"apiGroup": "ipam.cluster.x-k8s.io", "kind": "InClusterIPPool", "name": "p"},
        "claimRef": {"name": "a"}, "address": "10.0.0.9", "prefix": 16,
    });
    let theirs = create(&site.addresses, json!({"metadata": {"name": "a"}, "spec": spec})).await;
    site.claim("a", &json!({})).await;
    let message = site.until_not_ready("a", "AllocationFailed").await;
    assert_eq!(message, "IPAddress \"a\" belongs to claim \"a\" of another pool, expected no IPAddress of this name");
    assert_eq!(site.addresses.get("a").await.unwrap(), theirs);
    site.delete("a").await;
    site.until_gone("a").await;
    assert_eq!(site.addresses.get("a").await.unwrap(), theirs);
}

pub async fn a_claim_gets_the_address_that_its_pool_pre_allocates_for_its_name(cluster: &Cluster) {
    let site = Site::new(cluster).await;
    let kept = [("db", "10.0.0.4"), ("web", "10.0.0.8")].map(|(name, address)| (name.to_owned(), address.to_owned()));
    let spec = site.spec(&["10.0.0.8/31"]);
    let spec = PoolSpec { excluded_addresses: vec!["10.0.0.4".to_owned()], pre_allocations: kept.into(), ..spec };
    site.pools.create(&PostParams::default(), &StaticIPPool::new("p", spec)).await.unwrap();
    let mut controller = Controller::start(cluster, &site);
    controller.until_ready().await;
    site.claim("a", &json!({})).await;
    assert_eq!(site.address_of("a").await, "10.0.0.9");
    site.claim("b", &json!({})).await;
    assert_eq!(site.until_not_ready("b", "PoolExhausted").await, exhausted(&site));
    for (name, address) in [("db", "10.0.0.4"), ("web", "10.0.0.8")] {
        site.claim(name, &json!({})).await;
        assert_eq!(site.address_of(name).await, address);
    }
    // After its release, the address is still reserved for the same name.
    site.delete("web").await;
    site.until_gone("web").await;
    site.claim("web", &json!({})).await;
    assert_eq!(site.address_of("web").await, "10.0.0.8");
    assert_eq!(site.held().await, rows([("10.0.0.4", "db"), ("10.0.0.8", "web"), ("10.0.0.9", "a")]));
}

pub async fn a_claim_waits_for_the_address_that_it_requests(cluster: &Cluster) {
    let (site, _controller) = site(cluster, &["10.0.0.8/29"]).await;
    let requests =
        |address: &str| json!({"metadata": {"annotations": {"ipam.glowplug.dev/requested-address": address}}});
    let first = site.claim("a", &requests("10.0.0.11")).await;
    assert_eq!(site.address_of("a").await, "10.0.0.11");
    site.claim("b", &requests("10.0.0.11")).await;
    let at = "annotation ipam.glowplug.dev/requested-address";
    let expected = "expected a free address of the pool";
    let by = format!("IPAddressClaim {}/a ({})", site.namespace, first.uid().unwrap());
    let taken = format!("{at}: 10.0.0.11: taken by {by}, {expected}");
    assert_eq!(site.until_not_ready("b", "AllocationFailed").await, taken);
    site.claim("c", &requests("10.0.0.20")).await;
    let outside = format!("{at}: 10.0.0.20: not in pool \"{}/p\", {expected}", site.namespace);
    assert_eq!(site.until_not_ready("c", "AllocationFailed").await, outside);
    site.delete("a").await;
    assert_eq!(site.address_of("b").await, "10.0.0.11");
    merge(&site.claims, "c", &requests("10.0.0.12")).await;
    assert_eq!(site.address_of("c").await, "10.0.0.12");
    assert_eq!(site.held().await, rows([("10.0.0.11", "b"), ("10.0.0.12", "c")]));
}

pub async fn the_status_of_a_claim_names_its_damaged_lease_until_the_lease_is_corrected(cluster: &Cluster) {
    let (site, controller) = site(cluster, &["10.0.0.8/30"]).await;
    site.claim("a", &json!({})).await;
    assert_eq!(site.address_of("a").await, "10.0.0.8");
    drop(controller);
    let leases: Api<StaticIPLease> = Api::all(cluster.client());
    let name = lease_name("10.0.0.8".parse().unwrap(), &format!("{}/vlan10", site.namespace)).unwrap();
    let write = async |interface: &str| {
        let patch = Patch::Merge(json!({"spec": {"holder": {"interface": interface}}}));
        leases.patch(&name, &PatchParams::default(), &patch).await.unwrap().spec.holder.interface
    };
    let interface = leases.get(&name).await.unwrap().spec.holder.interface;
    write("a/b").await;
    let mut next = Controller::start(cluster, &site);
    next.until_ready().await;
    let problem = "spec.holder.interface: invalid interface \"a/b\"";
    let message = format!(
        "10.0.0.8: StaticIPLease {name} cannot be read: {problem}: correct this lease, because the address is in use"
    );
    assert_eq!(site.until_not_ready("a", "AllocationFailed").await, message);
    site.claim("b", &json!({})).await;
    assert_eq!(site.address_of("b").await, "10.0.0.9");
    write(&interface).await;
    until(&site.claims, "a", |claim| condition(claim)["status"] == "True").await;
    assert_eq!(site.held().await, rows([("10.0.0.8", "a"), ("10.0.0.9", "b")]));
}

/// Tries to write a lease in a dry run. An error: the policy refuses the write.
async fn try_write(site: &Site, address: &str, holder: &str) -> Result<(), String> {
    let network = format!("{}/vlan10", site.namespace);
    let name = lease_name(address.parse().unwrap(), &network).unwrap();
    let time = MicroTime(Timestamp::UNIX_EPOCH);
    let holder = json!({
        "kind": "IPAddressClaim", "namespace": site.namespace, "name": holder, "uid": "u", "interface": "eno101",
    });
    let spec = json!({
        "network": network, "address": address, "prefix": 16, "pool": "n/p", "holder": holder, "since": time,
    });
    let dry_run = PostParams { dry_run: true, ..PostParams::default() };
    let written = match site.leases.get_opt(&name).await.unwrap() {
        Some(lease) => site.leases.replace(&name, &dry_run, &lease).await,
        None => site.leases.create(&dry_run, &StaticIPLease::new(&name, serde_json::from_value(spec).unwrap())).await,
    };
    written.map(drop).map_err(|error| error.to_string())
}

/// Starts a policy that refuses the leases of claim `denied`, and waits until the API server applies the policy.
async fn deny<'c>(cluster: &'c Cluster, site: &Site) -> Policy<'c> {
    let namespace = site.namespace.clone();
    let of_claim = move |lease: &Value| {
        let holder = &lease["spec"]["holder"];
        holder["namespace"] == namespace.as_str() && holder["name"] == "denied"
    };
    let policy = Policy::start(cluster, &format!("policy-{}", site.namespace), ("CREATE", 403), of_claim).await;
    poll("the policy", async || try_write(site, "10.0.0.8", "denied").await.err()).await;
    policy
}

/// Waits until claim `denied` says that the policy of [`deny`] refuses its lease.
async fn until_denied(site: &Site) {
    let message = site.until_not_ready("denied", "AllocationFailed").await;
    assert!(
        message.starts_with("the lease cannot be recorded: ") && message.contains("refused by a policy"),
        "{message}"
    );
}

pub async fn a_policy_that_refuses_the_leases_of_one_claim_does_not_delay_other_claims(cluster: &Cluster) {
    let (site, _controller) = site(cluster, &["10.0.0.8/30"]).await;
    let policy = deny(cluster, &site).await;
    site.claim("denied", &json!({})).await;
    until_denied(&site).await;
    for (name, address) in [("a", "10.0.0.8"), ("b", "10.0.0.9")] {
        site.claim(name, &json!({})).await;
        assert_eq!(site.address_of(name).await, address);
    }
    assert_eq!(site.held().await, rows([("10.0.0.8", "a"), ("10.0.0.9", "b")]));
    policy.end().await;
    assert_eq!(site.address_of("denied").await, "10.0.0.10");
}

pub async fn a_claim_whose_recorded_address_a_policy_refuses_keeps_it_and_says_so(cluster: &Cluster) {
    let (site, controller) = site(cluster, &["10.0.0.8/30"]).await;
    site.claim("denied", &json!({})).await;
    assert_eq!(site.address_of("denied").await, "10.0.0.8");
    drop(controller);
    let name = lease_name("10.0.0.8".parse().unwrap(), &format!("{}/vlan10", site.namespace)).unwrap();
    site.leases.delete(&name, &DeleteParams::default()).await.unwrap();
    let policy = deny(cluster, &site).await;
    let mut next = Controller::start(cluster, &site);
    next.until_ready().await;
    until_denied(&site).await;
    site.claim("a", &json!({})).await;
    assert_eq!(site.address_of("a").await, "10.0.0.9");
    policy.end().await;
    assert_eq!(site.address_of("denied").await, "10.0.0.8");
    assert_eq!(site.held().await, rows([("10.0.0.8", "denied"), ("10.0.0.9", "a")]));
}

pub async fn a_lease_that_the_api_server_refuses_to_change_blocks_only_its_own_address(cluster: &Cluster) {
    let (site, controller) = site(cluster, &["10.0.0.8/30"]).await;
    site.claim("a", &json!({})).await;
    assert_eq!(site.address_of("a").await, "10.0.0.8");
    site.delete("a").await;
    site.until_gone("a").await;
    let network = format!("{}/vlan10", site.namespace);
    let poison = lease_name("10.0.0.8".parse().unwrap(), &network).unwrap();
    let of_lease = move |lease: &Value| lease["metadata"]["name"] == poison.as_str();
    let policy = Policy::start(cluster, &format!("policy-{}", site.namespace), ("UPDATE", 422), of_lease).await;
    poll("the policy", async || try_write(&site, "10.0.0.8", "a").await.err()).await;
    site.claim("b", &json!({})).await;
    assert_eq!(site.address_of("b").await, "10.0.0.9");
    // The next leader finds the same lease.
    drop(controller);
    let mut next = Controller::start(cluster, &site);
    next.until_ready().await;
    site.claim("c", &json!({})).await;
    assert_eq!(site.address_of("c").await, "10.0.0.10");
    assert_eq!(site.held().await, rows([("10.0.0.10", "c"), ("10.0.0.9", "b")]));
    policy.end().await;
}

pub async fn a_claim_whose_ipaddress_is_removed_gets_no_ipaddress_of_another_network(cluster: &Cluster) {
    let (site, controller) = site(cluster, &["10.0.0.8/32"]).await;
    let other = PoolSpec { network: format!("{}/vlan20", site.namespace), ..site.spec(&["10.0.0.8/32"]) };
    site.pools.create(&PostParams::default(), &StaticIPPool::new("q", other)).await.unwrap();
    let on = |pool: &str| json!({"spec": {"poolRef": {"name": pool}}});
    site.claim("a", &json!({})).await;
    assert_eq!(site.address_of("a").await, "10.0.0.8");
    drop(controller);
    merge(&site.addresses, "a", &json!({"metadata": {"finalizers": []}})).await;
    site.addresses.delete("a", &DeleteParams::default()).await.unwrap();
    merge(&site.claims, "a", &on("q")).await;
    let _controller = Controller::start(cluster, &site);
    let message =
        format!("has 10.0.0.8 of pool \"{}/p\" already, expected a release before another pool", site.namespace);
    assert_eq!(site.until_not_ready("a", "AllocationFailed").await, message);
    // The claim has no address of this network, so another claim may get the address.
    site.claim("b", &on("q")).await;
    assert_eq!(site.address_of("b").await, "10.0.0.8");
    assert_eq!(site.given().await, rows([("10.0.0.8", "b")]));
    // With the earlier reference, the claim gets its IPAddress again.
    merge(&site.claims, "a", &on("p")).await;
    assert_eq!(site.address_of("a").await, "10.0.0.8");
    assert_eq!(site.held().await, rows([("10.0.0.8", "a"), ("10.0.0.8", "b")]));
}

pub async fn a_claim_that_is_replaced_by_a_claim_of_another_provider_leaves_no_lease_and_no_ipaddress(
    cluster: &Cluster,
) {
    let site = after_removal_by_force(cluster).await;
    let other = json!({"apiGroup": "ipam.cluster.x-k8s.io", "kind": "InClusterIPPool"});
    site.claim("a", &json!({"spec": {"poolRef": other}})).await;
    let _controller = Controller::start(cluster, &site);
    site.until_empty().await;
    let claim = site.claims.get("a").await.unwrap();
    assert_eq!((claim.finalizers(), &claim.data["status"]), (&[] as &[String], &Value::Null));
}
