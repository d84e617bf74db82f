//! Tests the behaviour of API servers on which the controller depends.

use std::collections::BTreeMap;

use futures::{StreamExt, TryStreamExt};
use glowplug_controller::kinds::lease_name::lease_name;
use glowplug_controller::kinds::pool::{
    AddressCount, Holder, HolderKind, LeaseSpec, PoolSpec, PoolStatus, StaticIPLease, StaticIPPool,
};
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::api::{
    ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams, Preconditions, WatchEvent,
    WatchParams,
};
use kube::{Api, Resource, ResourceExt};
use serde_json::{Value, json};

use crate::support::Cluster;
use crate::support::apply::{apply, apply_server_side};
use crate::support::hosted::definitions::{VIRTUAL_MACHINE, resource};

fn pool(name: &str) -> StaticIPPool {
    let addresses = vec!["10.0.0.0/24".to_owned()];
    StaticIPPool::new(name, PoolSpec { network: "infra/vlan10".to_owned(), addresses, ..PoolSpec::default() })
}

fn secret(name: &str, data: &Value) -> Secret {
    serde_json::from_value(json!({"metadata": {"name": name}, "stringData": null, "data": data})).unwrap()
}

fn holder_of(name: &str) -> Holder {
    let [namespace, uid, interface] = ["clusters-c1", "5d30", "eno101"].map(str::to_owned);
    Holder {
        kind: HolderKind::KubevirtMachine,
        namespace,
        name: name.to_owned(),
        uid,
        interface,
        vm_namespace: None,
        unknown: Default::default(),
    }
}

fn lease(network: &str, holder: &str) -> StaticIPLease {
    let address = "10.0.0.5";
    let spec = LeaseSpec {
        network: network.to_owned(),
        address: address.to_owned(),
        prefix: 24,
        pool: "clusters/workers".to_owned(),
        holder: holder_of(holder),
        since: MicroTime(Timestamp::UNIX_EPOCH),
        released: None,
        reuse_after: None,
        secrets: None,
        migrated: None,
        unknown: Default::default(),
    };
    StaticIPLease::new(&lease_name(address.parse().unwrap(), network).unwrap(), spec)
}

/// Returns code and reason of a rejection.
fn refusal<T: std::fmt::Debug>(result: kube::Result<T>) -> (u16, String) {
    match result.unwrap_err() {
        kube::Error::Api(status) => (status.code, status.reason.clone()),
        other => panic!("no answer of the server: {other}"),
    }
}

fn is(code: u16, reason: &str) -> (u16, String) {
    (code, reason.to_owned())
}

fn patched() -> PatchParams {
    PatchParams::default()
}

pub async fn a_second_object_with_the_same_name_is_refused(cluster: &Cluster) {
    let network = format!("{}/vlan10", cluster.namespace().await);
    let leases: Api<StaticIPLease> = Api::all(cluster.client());
    let first = leases.create(&PostParams::default(), &lease(&network, "worker-0")).await.unwrap();
    let others: Api<StaticIPLease> = Api::all(cluster.client());
    let second = others.create(&PostParams::default(), &lease(&network, "worker-1")).await;
    assert_eq!(refusal(second), is(409, "AlreadyExists"));
    assert_eq!(leases.get(&first.name_any()).await.unwrap(), first);
}

pub async fn the_name_of_an_object_has_at_most_253_bytes(cluster: &Cluster) {
    let pools: Api<StaticIPPool> = Api::namespaced(cluster.client(), &cluster.namespace().await);
    let longest = format!("{}b", "a.".repeat(126));
    pools.create(&PostParams::default(), &pool(&longest)).await.unwrap();
    let longer = pools.create(&PostParams::default(), &pool(&format!("{longest}b"))).await;
    assert_eq!(refusal(longer), is(422, "Invalid"));
}

pub async fn no_object_can_be_created_in_a_namespace_that_does_not_exist(cluster: &Cluster) {
    let nowhere: Api<Secret> = Api::namespaced(cluster.client(), "nowhere");
    assert_eq!(refusal(nowhere.create(&PostParams::default(), &secret("a", &json!({}))).await), is(404, "NotFound"));
}

/// Only an answer about an object has the reason `NotFound` and the name of the object.
pub async fn the_answer_about_an_absent_object_differs_from_that_about_a_kind_that_is_not_served(cluster: &Cluster) {
    let namespace = cluster.namespace().await;
    let status = |result: kube::Result<DynamicObject>| match result.unwrap_err() {
        kube::Error::Api(status) => {
            let details = status.details.map(|it| (it.name, it.group, it.kind, it.causes.len())).unwrap_or_default();
            (status.code, status.reason, details)
        }
        other => panic!("no answer of the server: {other}"),
    };
    let absent = |name: &str, group: &str, kind: &str| {
        (404, "NotFound".to_owned(), (name.to_owned(), group.to_owned(), kind.to_owned(), 0))
    };
    let pools: Api<DynamicObject> =
        Api::namespaced_with(cluster.client(), &namespace, &ApiResource::erase::<StaticIPPool>(&()));
    let secrets: Api<DynamicObject> =
        Api::namespaced_with(cluster.client(), "nowhere", &ApiResource::erase::<Secret>(&()));
    let patch = Patch::Merge(json!({"metadata": {"labels": {"a": "b"}}}));
    assert_eq!(status(pools.get("a").await), absent("a", "ipam.glowplug.dev", "staticippools"));
    assert_eq!(status(pools.patch("a", &patched(), &patch).await), absent("a", "ipam.glowplug.dev", "staticippools"));
    assert_eq!(
        status(pools.patch_status("a", &patched(), &patch).await),
        absent("a", "ipam.glowplug.dev", "staticippools")
    );
    assert_eq!(status(secrets.get("a").await), absent("a", "", "secrets"));
    let object: DynamicObject = serde_json::from_value(json!({"metadata": {"name": "a"}})).unwrap();
    assert_eq!(status(secrets.create(&PostParams::default(), &object).await), absent("nowhere", "", "namespaces"));
    for (group, version, plural, reason) in [
        ("ipam.glowplug.dev", "v1beta9", "staticippools", "Failed to parse error data"),
        ("ipam.glowplug.dev", "v1alpha1", "others", "Failed to parse error data"),
        ("apps", "v9", "deployments", "NotFound"),
        ("apps", "v1", "others", "NotFound"),
    ] {
        let kind = kube::api::GroupVersionKind::gvk(group, version, "Other");
        let kind = ApiResource::from_gvk_with_plural(&kind, plural);
        let api: Api<DynamicObject> = Api::namespaced_with(cluster.client(), &namespace, &kind);
        let unserved = (404, reason.to_owned(), Default::default());
        assert_eq!(status(api.get("a").await), unserved, "{kind:?}");
        assert_eq!(status(api.patch("a", &patched(), &patch).await), unserved, "{kind:?}");
    }
}

pub async fn a_replacement_needs_the_current_resource_version(cluster: &Cluster) {
    let pools: Api<StaticIPPool> = Api::namespaced(cluster.client(), &cluster.namespace().await);
    let old = pools.create(&PostParams::default(), &pool("a")).await.unwrap();
    let mut new = old.clone();
    new.spec.sticky = true;
    let stored = pools.replace("a", &PostParams::default(), &new).await.unwrap();
    assert_eq!((old.metadata.generation, stored.metadata.generation), (Some(1), Some(2)));
    let number = |pool: &StaticIPPool| pool.resource_version().unwrap().parse::<u64>().unwrap();
    assert!(number(&old) < number(&stored));
    assert_eq!(refusal(pools.replace("a", &PostParams::default(), &new).await), is(409, "Conflict"));
    new.metadata.resource_version = None;
    assert_eq!(refusal(pools.replace("a", &PostParams::default(), &new).await), is(422, "Invalid"));
    assert_eq!(refusal(pools.replace("b", &PostParams::default(), &pool("b")).await), is(404, "NotFound"));
}

pub async fn a_replacement_without_a_change_makes_no_new_version(cluster: &Cluster) {
    let pools: Api<StaticIPPool> = Api::namespaced(cluster.client(), &cluster.namespace().await);
    let new = pools.create(&PostParams::default(), &pool("a")).await.unwrap();
    // A real API server adds the default status at the first write after the creation.
    let old = pools.replace("a", &PostParams::default(), &new).await.unwrap();
    let same = pools.replace("a", &PostParams::default(), &old).await.unwrap();
    assert_eq!(same.resource_version(), old.resource_version());
}

pub async fn a_deletion_is_refused_if_its_preconditions_do_not_hold(cluster: &Cluster) {
    let secrets: Api<Secret> = Api::namespaced(cluster.client(), &cluster.namespace().await);
    let stored = secrets.create(&PostParams::default(), &secret("a", &json!({}))).await.unwrap();
    let of = |uid: Option<String>, resource_version: Option<String>| {
        DeleteParams::default().preconditions(Preconditions { uid, resource_version })
    };
    let other = Some("00000000-0000-0000-0000-000000000000".to_owned());
    assert_eq!(refusal(secrets.delete("a", &of(other, None)).await), is(409, "Conflict"));
    assert_eq!(refusal(secrets.delete("a", &of(stored.uid(), Some("1".to_owned()))).await), is(409, "Conflict"));
    secrets.delete("a", &of(stored.uid(), stored.resource_version())).await.unwrap();
    assert_eq!(secrets.get_opt("a").await.unwrap(), None);
    assert_eq!(refusal(secrets.delete("a", &DeleteParams::default()).await), is(404, "NotFound"));
}

pub async fn a_finalizer_keeps_a_deleted_object(cluster: &Cluster) {
    let pools: Api<StaticIPPool> = Api::namespaced(cluster.client(), &cluster.namespace().await);
    let mut kept = pool("a");
    kept.finalizers_mut().push("test.glowplug.dev/keep".to_owned());
    pools.create(&PostParams::default(), &kept).await.unwrap();
    let deleted = pools.delete("a", &DeleteParams::default()).await.unwrap();
    assert!(deleted.left().unwrap().metadata.deletion_timestamp.is_some());
    let second = json!({"metadata": {"finalizers": ["test.glowplug.dev/keep", "test.glowplug.dev/second"]}});
    assert_eq!(refusal(pools.patch("a", &patched(), &Patch::Merge(&second)).await), is(422, "Invalid"));
    let none = json!({"metadata": {"finalizers": null}});
    pools.patch("a", &patched(), &Patch::Merge(&none)).await.unwrap();
    assert!(pools.get_opt("a").await.unwrap().is_none());
}

pub async fn a_list_with_a_limit_is_returned_in_pages(cluster: &Cluster) {
    let secrets: Api<Secret> = Api::namespaced(cluster.client(), &cluster.namespace().await);
    for name in ["a", "b", "c", "d", "e"] {
        secrets.create(&PostParams::default(), &secret(name, &json!({}))).await.unwrap();
    }
    let mut params = ListParams::default().limit(2);
    let mut pages = Vec::new();
    let mut versions = Vec::new();
    loop {
        let page = secrets.list(&params).await.unwrap();
        pages.push(page.items.iter().map(ResourceExt::name_any).collect::<Vec<String>>());
        versions.push(page.metadata.resource_version.clone().unwrap());
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => break,
        }
    }
    assert_eq!(pages, [vec!["a", "b"], vec!["c", "d"], vec!["e"]]);
    assert_eq!(versions, [versions[0].as_str(); 3]);
}

pub async fn a_watch_reports_every_change_after_the_list(cluster: &Cluster) {
    let pools: Api<StaticIPPool> = Api::namespaced(cluster.client(), &cluster.namespace().await);
    pools.create(&PostParams::default(), &pool("before")).await.unwrap();
    let version = pools.list(&ListParams::default()).await.unwrap().metadata.resource_version.unwrap();
    let mut events = pools.watch(&WatchParams::default().disable_bookmarks(), &version).await.unwrap().boxed();

    let stored = pools.create(&PostParams::default(), &pool("a")).await.unwrap();
    let changed = pools.patch("a", &patched(), &Patch::Merge(json!({"spec": {"sticky": true}}))).await.unwrap();
    pools.delete("a", &DeleteParams::default()).await.unwrap();

    let mut received = Vec::new();
    while received.len() < 3 {
        received.push(match events.try_next().await.unwrap().unwrap() {
            WatchEvent::Added(pool) => ("added", pool.resource_version()),
            WatchEvent::Modified(pool) => ("modified", pool.resource_version()),
            WatchEvent::Deleted(pool) => {
                let newer = |pool: &StaticIPPool| pool.resource_version().unwrap().parse::<u64>().unwrap();
                assert!(newer(&pool) > newer(&changed), "a deletion has a version of its own");
                ("deleted", None)
            }
            other => panic!("{other:?}"),
        });
    }
    assert_eq!(
        received,
        [("added", stored.resource_version()), ("modified", changed.resource_version()), ("deleted", None)]
    );
}

pub async fn a_watch_with_a_selector_reports_objects_that_no_longer_match_as_deleted(cluster: &Cluster) {
    let secrets: Api<Secret> = Api::namespaced(cluster.client(), &cluster.namespace().await);
    let version = secrets.list(&ListParams::default()).await.unwrap().metadata.resource_version.unwrap();
    let params = WatchParams::default().labels("team=a").disable_bookmarks();
    let mut events = secrets.watch(&params, &version).await.unwrap().boxed();
    secrets.create(&PostParams::default(), &secret("other", &json!({}))).await.unwrap();
    for team in [None, Some("a"), Some("b")] {
        let labels = json!({"metadata": {"labels": {"team": team}}});
        if team.is_none() {
            secrets.create(&PostParams::default(), &secret("s", &json!({}))).await.unwrap();
        }
        secrets.patch("s", &patched(), &Patch::Merge(&labels)).await.unwrap();
    }
    let mut received = Vec::new();
    while received.len() < 2 {
        received.push(match events.try_next().await.unwrap().unwrap() {
            WatchEvent::Added(secret) => ("added", secret.name_any()),
            WatchEvent::Deleted(secret) => ("deleted", secret.name_any()),
            other => panic!("{other:?}"),
        });
    }
    assert_eq!(received, [("added", "s".to_owned()), ("deleted", "s".to_owned())]);
}

pub async fn a_dry_run_stores_nothing(cluster: &Cluster) {
    let pools: Api<StaticIPPool> = Api::namespaced(cluster.client(), &cluster.namespace().await);
    let dry = PostParams { dry_run: true, ..PostParams::default() };
    pools.create(&dry, &pool("a")).await.unwrap();
    assert!(pools.get_opt("a").await.unwrap().is_none());
    let stored = pools.create(&PostParams::default(), &pool("a")).await.unwrap();
    pools.delete("a", &DeleteParams::default().dry_run()).await.unwrap();
    pools.patch("a", &patched().dry_run(), &Patch::Merge(json!({"spec": {"sticky": true}}))).await.unwrap();
    assert_eq!(pools.get("a").await.unwrap().resource_version(), stored.resource_version());
}

pub async fn the_status_is_written_only_through_its_own_endpoint(cluster: &Cluster) {
    let pools: Api<StaticIPPool> = Api::namespaced(cluster.client(), &cluster.namespace().await);
    let ip_addresses = Some(AddressCount { total: 254, ..AddressCount::default() });
    let status = PoolStatus { ip_addresses, waiting: 1, ..PoolStatus::default() };
    let mut with_status = pool("a");
    with_status.status = Some(status.clone());
    let stored = pools.create(&PostParams::default(), &with_status).await.unwrap();
    // The API server ignores the status in the request that creates the object.
    let unseen = PoolStatus { observed_generation: Some(-1), ..PoolStatus::default() };
    assert_eq!(stored.status, Some(unseen));
    let both = json!({"spec": {"sticky": true}, "status": status});
    let by_status = pools.patch_status("a", &patched(), &Patch::Merge(&both)).await.unwrap();
    let status = PoolStatus { observed_generation: Some(-1), ..status };
    assert_eq!(
        (by_status.status, by_status.spec.sticky, by_status.metadata.generation),
        (Some(status.clone()), false, Some(1))
    );
    let other = json!({"spec": {"sticky": true}, "status": {"waiting": 7}});
    let by_object = pools.patch("a", &patched(), &Patch::Merge(&other)).await.unwrap();
    assert_eq!((by_object.status, by_object.spec.sticky, by_object.metadata.generation), (Some(status), true, Some(2)));
}

fn annotated(name: &str, annotations: &Value) -> Patch<Value> {
    Patch::Apply(
        json!({"apiVersion": "ipam.glowplug.dev/v1alpha1", "kind": "StaticIPPool", "metadata": {"name": name, "annotations": annotations}}),
    )
}

pub async fn a_server_side_apply_conflicts_with_the_fields_of_another_manager(cluster: &Cluster) {
    let pools: Api<StaticIPPool> = Api::namespaced(cluster.client(), &cluster.namespace().await);
    pools.create(&PostParams::default(), &pool("a")).await.unwrap();
    let [one, two] = ["one", "two"].map(PatchParams::apply);
    pools.patch("a", &one, &annotated("a", &json!({"example.com/a": "1"}))).await.unwrap();
    pools.patch("a", &two, &annotated("a", &json!({"example.com/a": "1"}))).await.unwrap();
    let other = annotated("a", &json!({"example.com/a": "2"}));
    assert_eq!(refusal(pools.patch("a", &two, &other).await), is(409, "Conflict"));
    let forced = pools.patch("a", &two.force(), &other).await.unwrap();
    assert_eq!(forced.annotations()["example.com/a"], "2");
    let back = annotated("a", &json!({"example.com/a": "1"}));
    assert_eq!(refusal(pools.patch("a", &one, &back).await), is(409, "Conflict"));
}

pub async fn an_apply_removes_fields_that_its_manifest_no_longer_has(cluster: &Cluster) {
    let pools: Api<StaticIPPool> = Api::namespaced(cluster.client(), &cluster.namespace().await);
    let mut start = pool("a");
    start.annotations_mut().insert("example.com/other".to_owned(), "x".to_owned());
    pools.create(&PostParams::default(), &start).await.unwrap();
    let one = PatchParams::apply("one");
    pools.patch("a", &one, &annotated("a", &json!({"example.com/a": "1", "example.com/b": "1"}))).await.unwrap();
    let left = pools.patch("a", &one, &annotated("a", &json!({"example.com/b": "1"}))).await.unwrap();
    let expected =
        [("example.com/b", "1"), ("example.com/other", "x")].map(|(name, value)| (name.to_owned(), value.to_owned()));
    assert_eq!(*left.annotations(), BTreeMap::from(expected));
}

/// Returns the API for VirtualMachines of a new namespace, and the manifest of a VirtualMachine.
async fn vms(cluster: &Cluster) -> (Api<DynamicObject>, Value) {
    let vms = Api::namespaced_with(cluster.client(), &cluster.namespace().await, &resource(VIRTUAL_MACHINE));
    let volumes = json!([{"name": "cloudinitvolume", "cloudInitConfigDrive": {"secretRef": {"name": "u"}}}]);
    let manifest = json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": {"name": "w", "labels": {"a": "b"}},
        "spec": {"runStrategy": "Always", "template": {"spec": {"volumes": volumes, "hostname": "h"}}},
    });
    (vms, manifest)
}

/// Returns a patch that adds a reference inside a list of a VirtualMachine.
fn reference() -> Patch<Value> {
    let path = "/spec/template/spec/volumes/0/cloudInitConfigDrive/networkDataSecretRef";
    Patch::Json(serde_json::from_value(json!([{"op": "add", "path": path, "value": {"name": "s"}}])).unwrap())
}

pub async fn a_later_apply_conflicts_with_a_manager_that_patched_a_list(cluster: &Cluster) {
    let (vms, mut manifest) = vms(cluster).await;
    apply_server_side(&vms, &manifest, "user").await.unwrap();
    // The manifest changes the list. Only the manager of this manifest owns the list.
    manifest["spec"]["template"]["spec"]["volumes"][0]["name"] = "other".into();
    let second = apply_server_side(&vms, &manifest, "user").await.unwrap();
    assert_eq!(second.data["spec"], manifest["spec"]);
    vms.patch("w", &patched(), &reference()).await.unwrap();
    let message = match apply_server_side(&vms, &manifest, "user").await.unwrap_err() {
        kube::Error::Api(status) => status.message.clone(),
        other => panic!("{other}"),
    };
    let start = "Apply failed with 1 conflict: conflict with \"glowplug-controller\" using kubevirt.io/v1";
    assert!(message.starts_with(start) && message.ends_with(": .spec.template.spec.volumes"), "{message}");
    // The conflict ends when another manager writes the list of the manifest again.
    let own = PatchParams { field_manager: Some("own".to_owned()), ..PatchParams::default() };
    let volumes = &manifest["spec"]["template"]["spec"]["volumes"];
    let patch = json!({"spec": {"template": {"spec": {"volumes": volumes, "hostname": "i"}}}});
    vms.patch("w", &own, &Patch::Merge(&patch)).await.unwrap();
    manifest["spec"]["template"]["spec"]["hostname"] = "i".into();
    apply_server_side(&vms, &manifest, "user").await.unwrap();
}

pub async fn a_client_side_apply_replaces_lists_and_removes_members_that_its_manifest_no_longer_has(cluster: &Cluster) {
    let (vms, mut manifest) = vms(cluster).await;
    apply(&vms, &manifest).await.unwrap();
    vms.patch("w", &patched(), &reference()).await.unwrap();
    vms.patch("w", &patched(), &Patch::Merge(json!({"spec": {"other": 1}}))).await.unwrap();
    manifest["metadata"]["labels"] = json!({});
    let spec = &mut manifest["spec"]["template"]["spec"];
    spec.as_object_mut().unwrap().remove("hostname");
    let stored = apply(&vms, &manifest).await.unwrap();
    manifest["spec"]["other"] = 1.into();
    assert_eq!((&stored.data["spec"], stored.labels().len()), (&manifest["spec"], 0));
    manifest["spec"].as_object_mut().unwrap().remove("other");
    assert_eq!(apply(&vms, &manifest).await.unwrap().resource_version(), stored.resource_version());
}

pub async fn a_json_patch_with_a_failed_test_changes_nothing(cluster: &Cluster) {
    let secrets: Api<Secret> = Api::namespaced(cluster.client(), &cluster.namespace().await);
    secrets.create(&PostParams::default(), &secret("a", &json!({"key": "MQ=="}))).await.unwrap();
    let patch = |is: &str| {
        let steps = json!([{"op": "test", "path": "/data/key", "value": is}, {"op": "add", "path": "/data/other", "value": "Mg=="}]);
        Patch::Json::<()>(serde_json::from_value(steps).unwrap())
    };
    assert_eq!(refusal(secrets.patch("a", &patched(), &patch("Mw==")).await), is(422, "Invalid"));
    let stored = secrets.patch("a", &patched(), &patch("MQ==")).await.unwrap();
    assert_eq!(stored.data.unwrap().into_keys().collect::<Vec<_>>(), ["key", "other"]);
}

pub async fn null_in_a_merge_patch_removes_a_member(cluster: &Cluster) {
    let secrets: Api<Secret> = Api::namespaced(cluster.client(), &cluster.namespace().await);
    secrets.create(&PostParams::default(), &secret("a", &json!({"key": "MQ==", "other": "Mg=="}))).await.unwrap();
    let stored = secrets.patch("a", &patched(), &Patch::Merge(json!({"data": {"key": null}}))).await.unwrap();
    assert_eq!(stored.data.unwrap().into_keys().collect::<Vec<_>>(), ["other"]);
}

/// Returns a client that can also send an invalid specification of a pool.
async fn raw_pools(cluster: &Cluster) -> Api<DynamicObject> {
    let kind = ApiResource::erase::<StaticIPPool>(&());
    Api::namespaced_with(cluster.client(), &cluster.namespace().await, &kind)
}

fn raw_pool(spec: &Value) -> DynamicObject {
    let object = json!({"apiVersion": "ipam.glowplug.dev/v1alpha1", "kind": "StaticIPPool", "metadata": {"name": "a"}, "spec": spec});
    serde_json::from_value(object).unwrap()
}

pub async fn members_outside_the_schema_are_pruned(cluster: &Cluster) {
    let pools = raw_pools(cluster).await;
    let spec = json!({"network": "n/m", "addresses": ["10.0.0.0/24"], "adresses": [], "nodePoolRef": {"name": "a", "kind": "NodePool"}});
    let stored = pools.create(&PostParams::default(), &raw_pool(&spec)).await.unwrap();
    assert_eq!(
        stored.data["spec"],
        json!({"network": "n/m", "addresses": ["10.0.0.0/24"], "nodePoolRef": {"name": "a"}})
    );
}

pub async fn values_that_the_schema_forbids_are_rejected(cluster: &Cluster) {
    let pools = raw_pools(cluster).await;
    for spec in [
        json!({"addresses": ["10.0.0.0/24"]}),
        json!({"network": "n/m", "addresses": "10.0.0.0/24"}),
        json!({"network": "n/m", "addresses": ["10.0.0.0/24"], "machineNetwork": [{}]}),
        json!({"network": "n/m", "addresses": ["10.0.0.0/24"], "sticky": "yes"}),
        json!({"network": "n/m", "addresses": ["10.0.0.0/24"], "addressReuseGracePeriodSeconds": -1}),
        json!({"network": "n/m", "addresses": ["10.0.0.0/24"], "addressReuseGracePeriodSeconds": 4_294_967_296_u64}),
        json!({"network": "n/m", "addresses": ["10.0.0.0/24"], "interface": "sixteen-letters-"}),
        json!({"network": "n/m", "addresses": ["10.0.0.0/24"], "nameservers": vec!["10.0.0.1"; 65]}),
        json!({"network": "n/m", "addresses": ["10.0.0.0/24"], "excludedAddresses": ["10.0.0.9", "10.0.0.9"]}),
        json!({"network": "n/m", "machineSelector": {"matchExpressions": [{"key": "a", "operator": "Near"}]}}),
        json!({"network": "n/m", "machineSelector": {"matchLabels": {"a": "b".repeat(64)}}}),
    ] {
        assert_eq!(refusal(pools.create(&PostParams::default(), &raw_pool(&spec)).await), is(422, "Invalid"), "{spec}");
    }
}

pub async fn a_member_that_is_null_is_not_stored(cluster: &Cluster) {
    let pools = raw_pools(cluster).await;
    let spec = json!({"network": "n/m", "addresses": ["10.0.0.0/24"], "interface": null, "machineSelector": null});
    let stored = pools.create(&PostParams::default(), &raw_pool(&spec)).await.unwrap();
    assert_eq!(stored.data["spec"], json!({"network": "n/m", "addresses": ["10.0.0.0/24"]}));
}

pub async fn an_immutable_secret_keeps_its_data(cluster: &Cluster) {
    let secrets: Api<Secret> = Api::namespaced(cluster.client(), &cluster.namespace().await);
    let mut fixed = secret("a", &json!({"networkdata": "MQ=="}));
    fixed.immutable = Some(true);
    secrets.create(&PostParams::default(), &fixed).await.unwrap();
    for change in [json!({"data": {"networkdata": "Mg=="}}), json!({"immutable": false})] {
        assert_eq!(refusal(secrets.patch("a", &patched(), &Patch::Merge(&change)).await), is(422, "Invalid"));
    }
    secrets.delete("a", &DeleteParams::default()).await.unwrap();
}

pub async fn a_client_can_list_and_get_only_the_metadata_of_objects(cluster: &Cluster) {
    let pools: Api<StaticIPPool> = Api::namespaced(cluster.client(), &cluster.namespace().await);
    pools.create(&PostParams::default(), &pool("a")).await.unwrap();
    let list = pools.list_metadata(&ListParams::default()).await.unwrap();
    let types = list.items[0].types.clone().unwrap();
    assert_eq!((list.items[0].name_any().as_str(), types.kind.as_str()), ("a", "PartialObjectMetadata"));
    let one = pools.get_metadata("a").await.unwrap();
    assert_eq!(one.uid(), list.items[0].uid());
}

pub async fn discovery_lists_the_kinds_of_the_controller(cluster: &Cluster) {
    let client = cluster.client();
    let groups = client.list_api_groups().await.unwrap().groups;
    let group = groups.into_iter().find(|group| group.name == "ipam.glowplug.dev").unwrap();
    assert_eq!(group.versions.iter().map(|version| version.version.as_str()).collect::<Vec<_>>(), ["v1alpha1"]);
    let resources = client.list_api_group_resources("ipam.glowplug.dev/v1alpha1").await.unwrap().resources;
    let mut names: Vec<(&str, bool)> =
        resources.iter().map(|resource| (resource.name.as_str(), resource.namespaced)).collect();
    names.sort_unstable();
    let expected = [
        ("globalstaticippools", false),
        ("globalstaticippools/status", false),
        ("macpools", false),
        ("macpools/status", false),
        ("staticipleases", false),
        ("staticippools", true),
        ("staticippools/status", true),
    ];
    assert_eq!(names, expected);
}

pub async fn a_user_without_a_role_is_refused(cluster: &Cluster) {
    let namespace = cluster.namespace().await;
    let secrets: Api<Secret> = Api::namespaced(cluster.client_as("nobody"), &namespace);
    assert_eq!(refusal(secrets.get("a").await), is(403, "Forbidden"));
    assert_eq!(refusal(secrets.list(&ListParams::default()).await), is(403, "Forbidden"));
    assert_eq!(refusal(secrets.create(&PostParams::default(), &secret("a", &json!({}))).await), is(403, "Forbidden"));
}

pub async fn a_role_allows_only_the_requests_that_it_names(cluster: &Cluster) {
    let namespace = cluster.namespace().await;
    let user = format!("system:serviceaccount:{namespace}:manager");
    let create = async |version: &str, kind: &str, object: Value| {
        let kind = ApiResource::from_gvk(&kube::api::GroupVersionKind::gvk("rbac.authorization.k8s.io", version, kind));
        let object: DynamicObject = serde_json::from_value(object).unwrap();
        let api: Api<DynamicObject> = Api::namespaced_with(cluster.client(), &namespace, &kind);
        api.create(&PostParams::default(), &object).await.unwrap();
    };
    let rules = json!([
        {"apiGroups": [""], "resources": ["secrets"], "verbs": ["create"]},
        {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"], "resourceNames": ["a"]},
    ]);
    let api = "rbac.authorization.k8s.io/v1";
    create("v1", "Role", json!({"apiVersion": api, "kind": "Role", "metadata": {"name": "r"}, "rules": rules})).await;
    create(
        "v1",
        "RoleBinding",
        json!({
            "apiVersion": api, "kind": "RoleBinding", "metadata": {"name": "r"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "r"},
            "subjects": [{"kind": "ServiceAccount", "name": "manager", "namespace": namespace}],
        }),
    )
    .await;
    let secrets: Api<Secret> = Api::namespaced(cluster.client_as(&user), &namespace);
    // A real server uses a new role only after a delay.
    while secrets.get_opt("a").await.is_err() {
        tokio::task::yield_now().await;
    }
    secrets.create(&PostParams::default(), &secret("a", &json!({}))).await.unwrap();
    secrets.get("a").await.unwrap();
    assert_eq!(refusal(secrets.get("b").await), is(403, "Forbidden"));
    assert_eq!(refusal(secrets.delete("a", &DeleteParams::default()).await), is(403, "Forbidden"));
}

pub async fn a_user_needs_a_right_on_an_owner_to_block_its_deletion(cluster: &Cluster) {
    let namespace = cluster.namespace().await;
    let (user, group) = ("owner-blocker", "rbac.authorization.k8s.io");
    let create = async |kind: &str, object: Value| {
        let kind = ApiResource::from_gvk(&kube::api::GroupVersionKind::gvk(group, "v1", kind));
        let object: DynamicObject = serde_json::from_value(object).unwrap();
        let api: Api<DynamicObject> = Api::namespaced_with(cluster.client(), &namespace, &kind);
        api.create(&PostParams::default(), &object).await.unwrap();
    };
    let api = "rbac.authorization.k8s.io/v1";
    for (name, rule) in [
        ("secrets", json!({"apiGroups": [""], "resources": ["secrets"], "verbs": ["get", "create"]})),
        (
            "pools",
            json!({"apiGroups": ["ipam.glowplug.dev"], "resources": ["staticippools/finalizers"], "verbs": ["update"]}),
        ),
    ] {
        create("Role", json!({"apiVersion": api, "kind": "Role", "metadata": {"name": name}, "rules": [rule]})).await;
    }
    let bind = async |name: &str| {
        let binding = json!({
            "apiVersion": api, "kind": "RoleBinding", "metadata": {"name": name},
            "roleRef": {"apiGroup": group, "kind": "Role", "name": name},
            "subjects": [{"apiGroup": group, "kind": "User", "name": user}],
        });
        create("RoleBinding", binding).await;
    };
    bind("secrets").await;
    let secrets: Api<Secret> = Api::namespaced(cluster.client_as(user), &namespace);
    // A real server uses a new role only after a delay.
    while secrets.get_opt("a").await.is_err() {
        tokio::task::yield_now().await;
    }
    let pools: Api<StaticIPPool> = Api::namespaced(cluster.client(), &namespace);
    let owner = pools.create(&PostParams::default(), &pool("a")).await.unwrap();
    let owned = |name: &str, blocks: bool| {
        let mut secret = secret(name, &json!({}));
        let mut reference = owner.owner_ref(&()).unwrap();
        reference.block_owner_deletion = Some(blocks);
        secret.metadata.owner_references = Some(vec![reference]);
        secret
    };
    let create_secret = async |secret: Secret| secrets.create(&PostParams::default(), &secret).await;
    create_secret(owned("a", false)).await.unwrap();
    assert_eq!(refusal(create_secret(owned("b", true)).await), is(403, "Forbidden"));
    bind("pools").await;
    while create_secret(owned("b", true)).await.is_err() {
        tokio::task::yield_now().await;
    }
}
