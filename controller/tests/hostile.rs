//! Tests that hostile objects of several kinds do not keep the controller from serving other claims and machines, and
//! that the webhooks answer reviews of any content.

#[path = "../src/variants.rs"]
#[allow(dead_code, unreachable_pub)]
mod variants;

use glowplug_controller::cluster;
use glowplug_controller::kinds::pool::{PoolSpec, StaticIPPool};
use glowplug_controller::metrics::Metrics;
use glowplug_controller::pools::facts::Scope;
use glowplug_controller::pools::reference::{MACHINES_PATH, UPDATES_PATH};
use glowplug_controller::pools::selection_cache::SelectionCache;
use glowplug_controller::webhook::{INSTANCES_PATH, MACS_PATH, POOLS_PATH, Webhooks};
use http::Request;
use http_body_util::BodyExt as _;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::Api;
use kube::api::{ApiResource, DynamicObject, PostParams};
use serde_json::{Value, json};
use std::sync::Arc;
use variants::{Random, Seed, variant, variants};

use crate::support::controller::{Controller, Site};
use crate::support::hosted::definitions::{INSTANCE, KUBEVIRT_MACHINE, Names, VIRTUAL_MACHINE, resource};
use crate::support::hosted::{Hosted, poll};
use crate::support::start_server;

/// Number of hostile objects that the first test makes of each kind.
const OBJECTS: u64 = 40;

/// Returns the template of a VirtualMachine on network `vlan10`.
fn template() -> Value {
    json!({
        "metadata": {"annotations": {"network.kubevirt.io/addresses": r#"{"iface1": ["10.0.0.20/16"]}"#}},
        "spec": {
            "domain": {"devices": {"interfaces": [{"name": "iface1", "bridge": {}, "acpiIndex": 101}]}},
            "networks": [{"name": "iface1", "multus": {"networkName": "vlan10"}}],
            "volumes": [{"name": "c", "cloudInitConfigDrive": {"networkDataSecretRef": {"name": "NAME-networkdata"}}}],
        },
    })
}

/// Returns the valid objects, named `NAME`, from which the first test makes hostile objects.
fn valid_objects(namespace: &str) -> Vec<(ApiResource, Value)> {
    let labels = json!({
        "capk.cluster.x-k8s.io/kubevirt-machine-name": "NAME", "capk.cluster.x-k8s.io/kubevirt-machine-namespace": namespace,
    });
    let of = |names: Names, object: Value| (resource(names), object);
    let site = |kind: &str, plural: &str| {
        ApiResource::from_gvk_with_plural(
            &kube::api::GroupVersionKind::gvk("ipam.cluster.x-k8s.io", "v1beta2", kind),
            plural,
        )
    };
    let record = json!({
        "kubevirt.cluster.x-k8s.io/allocated-ip-eno101": r#"["10.0.0.30/16"]"#,
        "ipam.glowplug.dev/network-eno101": format!("{namespace}/vlan10"),
    });
    let provider = json!({"apiGroup": "ipam.glowplug.dev", "kind": "StaticIPPool", "name": "p"});
    vec![
        of(
            KUBEVIRT_MACHINE,
            json!({
                "metadata": {"name": "NAME", "annotations": record},
                "spec": {"virtualMachineTemplate": {"metadata": {"labels": labels}, "spec": {"template": template()}}},
            }),
        ),
        of(
            VIRTUAL_MACHINE,
            json!({
                "metadata": {"name": "NAME", "labels": labels, "annotations": record}, "spec": {"template": template()},
            }),
        ),
        of(
            INSTANCE,
            json!({
                "metadata": {"name": "NAME", "labels": labels}, "spec": template()["spec"],
                "status": {"phase": "Running", "interfaces": [{"name": "iface1", "ipAddress": "10.0.0.40"}]},
            }),
        ),
        (
            ApiResource::erase::<StaticIPPool>(&()),
            json!({
                "metadata": {"name": "NAME"},
                "spec": {"network": "vlan20", "addresses": ["10.0.1.8-10.0.1.9"], "template": "{}", "gateway": ["10.0.1.1"],
                    "mtu": 9000, "prefix": 24, "subnets": [{"addresses": ["10.0.1.30"], "prefix": 24}], "searchDomains": ["example.com"], "routes": [{"to": "10.9.0.0/16", "via": "10.0.1.2"}]},
            }),
        ),
        (
            ApiResource::erase::<Service>(&()),
            json!({
                "metadata": {"name": "NAME"}, "spec": {"type": "LoadBalancer"},
                "status": {"loadBalancer": {"ingress": [{"ip": "10.0.0.71"}]}},
            }),
        ),
        (
            site("IPAddressClaim", "ipaddressclaims"),
            json!({
                "metadata": {"name": "NAME", "annotations": {"ipam.glowplug.dev/requested-address": "10.0.0.50"}},
                "spec": {"poolRef": provider},
            }),
        ),
        (
            site("IPAddress", "ipaddresses"),
            json!({
                "metadata": {"name": "NAME"},
                "spec": {"poolRef": provider, "claimRef": {"name": "NAME"}, "address": "10.0.0.60", "prefix": 16},
            }),
        ),
    ]
}

#[tokio::test]
async fn claims_and_machines_get_addresses_while_hostile_objects_of_several_kinds_exist() {
    let (_server, cluster) = start_server().await;
    let site = Site::new(&cluster).await;
    let spec = PoolSpec { machine_selector: Some(LabelSelector::default()), ..site.spec(&["10.0.0.0/24"]) };
    site.pools.create(&PostParams::default(), &StaticIPPool::new("p", spec)).await.unwrap();
    // The leader finds the first half of the objects at its start. Its watches report the second half.
    let mut leader = None;
    let mut stored = 0;
    for half in 0..2 {
        for (kind, valid) in valid_objects(&site.namespace) {
            let api: Api<DynamicObject> = Api::namespaced_with(cluster.client(), &site.namespace, &kind);
            for seed in (0..OBJECTS).filter(|seed| seed % 2 == half) {
                let text = variant(&mut Random(seed), &valid).to_string();
                let text = text.replace("NAME", &format!("hostile-{seed}"));
                let Ok(mut object) = serde_json::from_str::<DynamicObject>(&text) else { continue };
                object.types =
                    Some(kube::api::TypeMeta { api_version: kind.api_version.clone(), kind: kind.kind.clone() });
                stored += u32::from(api.create(&PostParams::default(), &object).await.is_ok());
            }
        }
        leader.get_or_insert_with(|| Controller::start(&cluster, &site)).until_ready().await;
        let claim = site.claim(&format!("honest-{half}"), &json!({})).await;
        poll("the address of a claim", async || {
            site.addresses.get_opt(claim.metadata.name.as_deref().unwrap()).await.unwrap()
        })
        .await;
        let vms: Api<DynamicObject> =
            Api::namespaced_with(cluster.client(), &site.namespace, &resource(VIRTUAL_MACHINE));
        let name = format!("machine-{half}");
        let mut template = template();
        template["metadata"] = json!({});
        let vm = json!({"metadata": {"name": "NAME"}, "spec": {"template": template}}).to_string();
        let vm = crate::support::hosted::provider::object(
            VIRTUAL_MACHINE,
            serde_json::from_str(&vm.replace("NAME", &name)).unwrap(),
        );
        vms.create(&PostParams::default(), &vm).await.unwrap();
        let secrets: Api<k8s_openapi::api::core::v1::Secret> = Api::namespaced(cluster.client(), &site.namespace);
        poll("the Secret of a machine", async || {
            let secret = Hosted::reference(&vms.get(&name).await.unwrap())?;
            secrets.get_opt(&secret).await.unwrap()
        })
        .await;
    }
    assert!(stored > 80, "{stored} objects are stored");
}

#[tokio::test]
async fn an_admission_review_of_any_content_gets_a_response() {
    let (_server, cluster) = start_server().await;
    let selection = Arc::new(SelectionCache::new(cluster.controller(), Scope::default()));
    let metrics = Arc::new(Metrics::default());
    let webhooks = Webhooks::new(cluster.controller(), metrics, selection);
    let review = |kind: Value, resource: Value, object: &Value| {
        json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
            "uid": "705ab4f5-6393-11e8-b7cc-42010a800002", "kind": kind, "resource": resource, "operation": "CREATE",
            "namespace": "n", "name": "w", "userInfo": {"username": "u"}, "dryRun": false, "object": object,
            "options": {},
        }})
    };
    let pool = json!({"metadata": {"namespace": "n", "name": "w"}, "spec": {
        "network": "infra/vlan10", "addresses": ["10.0.0.8-10.0.0.20"], "machineSelector": {"matchLabels": {"a": "b"}},
    }});
    let vm = json!({"metadata": {"namespace": "n", "name": "w"}, "spec": {"template": template()}});
    let instance = json!({"metadata": {"namespace": "n", "name": "w"}, "spec": template()["spec"]});
    let kind = |group: &str, version: &str, kind: &str| json!({"group": group, "version": version, "kind": kind});
    let plural =
        |group: &str, version: &str, plural: &str| json!({"group": group, "version": version, "resource": plural});
    let macs = json!({"metadata": {"name": "w"}, "spec": {
        "ranges": ["02:00:00:00:00:00-02:00:00:00:00:ff"], "namespaces": ["n"], "selector": {},
    }});
    let ours = |name: &str, resource: &str, object: &Value| {
        let group = "ipam.glowplug.dev";
        review(kind(group, "v1alpha1", name), plural(group, "v1alpha1", resource), object)
    };
    let changed = |operation: &str, new: &Value, old: &Value| {
        let mut review = ours("StaticIPPool", "staticippools", new);
        review["request"]["operation"] = operation.into();
        review["request"]["oldObject"] = old.clone();
        review
    };
    let of_kubevirt = |name: &str, resource: &str, object: &Value| {
        review(kind("kubevirt.io", "v1", name), plural("kubevirt.io", "v1", resource), object)
    };
    let mut replaced = of_kubevirt("VirtualMachine", "virtualmachines", &vm);
    replaced["request"]["operation"] = "UPDATE".into();
    replaced["request"]["oldObject"] = vm.clone();
    let reviews = [
        (POOLS_PATH, ours("StaticIPPool", "staticippools", &pool)),
        (POOLS_PATH, ours("GlobalStaticIPPool", "globalstaticippools", &pool)),
        (POOLS_PATH, changed("UPDATE", &pool, &pool)),
        (POOLS_PATH, changed("DELETE", &Value::Null, &pool)),
        (POOLS_PATH, ours("MACPool", "macpools", &macs)),
        (MACHINES_PATH, of_kubevirt("VirtualMachine", "virtualmachines", &vm)),
        (UPDATES_PATH, replaced),
        (MACS_PATH, of_kubevirt("VirtualMachine", "virtualmachines", &vm)),
        (INSTANCES_PATH, of_kubevirt("VirtualMachineInstance", "virtualmachineinstances", &instance)),
    ];
    let mut answered = 0;
    for (path, valid) in reviews {
        for seed in 0..variants(OBJECTS * 2) {
            let seed = Seed(seed);
            let body = variant(&mut Random(seed.0), &valid).to_string();
            let request = Request::post(path).body(body.clone().into()).unwrap();
            let response = webhooks.clone().answer(request).await;
            let status = response.status().as_u16();
            let bytes = response.into_body().collect().await.unwrap().to_bytes();
            match status {
                200 => {
                    let answer: Value = serde_json::from_slice(&bytes).unwrap();
                    assert!(answer["response"]["allowed"].is_boolean(), "{answer} to {body}");
                    answered += 1;
                }
                400 => assert!(bytes.starts_with(b"expected an AdmissionReview"), "{body}"),
                _ => panic!("{status} to {body}"),
            }
        }
    }
    assert!(answered > 100, "{answered} reviews");
}
