//! Checks that the stand-ins for HyperShift, cluster-api-provider-kubevirt and KubeVirt behave as the real programs do.
//! No controller runs.

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt;
use kube::api::{DeleteParams, ListParams, PostParams};
use serde_json::{Value, json};

use crate::support::Cluster;
use crate::support::controller::{merge, until};
use crate::support::hosted::definitions::VIRTUAL_MACHINE;
use crate::support::hosted::kubevirt::FINALIZER;
use crate::support::hosted::provider::{PATCH_ANNOTATION, object};
use crate::support::hosted::{Hosted, USER_DATA, is_running, provisioned};

/// A change of the VirtualMachines of a NodePool.
fn patched(patch: &Value) -> Value {
    json!({"metadata": {"annotations": {PATCH_ANNOTATION: patch.to_string()}}})
}

pub async fn a_node_pool_has_machines_with_the_labels_of_hypershift(cluster: &Cluster) {
    let hosted = Hosted::new(cluster).await;
    let mac = json!([{
        "op": "add", "path": "/spec/template/spec/domain/devices/interfaces/0/macAddress", "value": "52:54:00:12:34:56",
    }]);
    hosted.node_pool("workers", 1, &patched(&mac)).await;
    let drive = hosted.until_running("workers-0").await;
    assert_eq!((drive.user_data.as_slice(), drive.network_data.as_deref()), (USER_DATA.as_bytes(), None));

    let machine = hosted.machines.get("workers-0").await.unwrap();
    let pool = format!("{}/workers", hosted.clusters);
    assert_eq!(machine.annotations()["hypershift.openshift.io/nodePool"], pool);
    let vm = hosted.vms.get("workers-0").await.unwrap();
    let mut of_template =
        json!({"hypershift.openshift.io/infra-id": "c1", "hypershift.openshift.io/nodepool-name": "workers"});
    of_template["capk.cluster.x-k8s.io/kubevirt-machine-name"] = "workers-0".into();
    of_template["capk.cluster.x-k8s.io/kubevirt-machine-namespace"] = hosted.namespace.clone().into();
    let mut of_capk = of_template.clone();
    of_capk["cluster.x-k8s.io/cluster-name"] = "c1".into();
    of_capk["cluster.x-k8s.io/role"] = "worker".into();
    assert_eq!(serde_json::to_value(vm.labels()).unwrap(), of_capk);
    assert_eq!((vm.owner_references(), vm.finalizers()), (&[] as &[_], &[FINALIZER.to_owned()] as &[_]));
    let interface = format!("iface1_{}", hosted.network.replace('/', "-"));
    let expected = json!({"runStrategy": "Always", "template": {"metadata": {"labels": of_template}, "spec": {
        "domain": {"devices": {
            "disks": [{"name": "rhcos", "disk": {"bus": "virtio"}}, {"name": "cloudinitvolume", "disk": {"bus": "virtio"}}],
            "interfaces": [{"name": interface, "bridge": {}, "macAddress": "52:54:00:12:34:56"}],
        }},
        "networks": [{"name": interface, "multus": {"networkName": hosted.network}}],
        "volumes": [
            {"name": "rhcos", "dataVolume": {"name": "rhcos"}},
            {"name": "cloudinitvolume", "cloudInitConfigDrive": {"secretRef": {"name": "workers-0-userdata"}}},
        ],
    }}});
    assert_eq!(vm.data["spec"], expected);
}

pub async fn a_guest_starts_when_the_secrets_of_its_drive_exist(cluster: &Cluster) {
    let hosted = Hosted::new(cluster).await;
    let vm = |name: &str, source: Value| {
        let volumes = json!([{"name": "cloudinitvolume", "cloudInitConfigDrive": source}]);
        let interfaces = json!([{"name": "a", "bridge": {}, "macAddress": "02:00:00:aa:bb:cc"}]);
        let spec = json!({"domain": {"devices": {"interfaces": interfaces}}, "volumes": volumes});
        object(VIRTUAL_MACHINE, json!({"metadata": {"name": name}, "spec": {"template": {"spec": spec}}}))
    };
    let waits = vm("waits", json!({"networkDataSecretRef": {"name": "waits-networkdata"}}));
    hosted.vms.create(&PostParams::default(), &waits).await.unwrap();
    until(&hosted.instances, "waits", |instance| instance.data["status"]["phase"] == "Pending").await;
    // A later machine runs. So the stand-in would have started the other machine, too.
    hosted.vms.create(&PostParams::default(), &vm("runs", json!({}))).await.unwrap();
    hosted.until_running("runs").await;
    assert!(!is_running(&hosted.instances.get("waits").await.unwrap()));

    let document = json!({
        "links": [{"id": "eno101", "type": "phy", "ethernet_mac_address": "02:00:00:aa:bb:cc"}],
        "networks": [{"id": "n", "link": "eno101", "type": "ipv4", "ip_address": "10.0.0.5/24"}],
    });
    let data = json!({"networkdata": ByteString(document.to_string().into_bytes())});
    let secret: Secret =
        serde_json::from_value(json!({"metadata": {"name": "waits-networkdata"}, "data": data})).unwrap();
    hosted.secrets.create(&PostParams::default(), &secret).await.unwrap();
    let drive = hosted.until_running("waits").await;
    assert_eq!((drive.document(), drive.image().len()), (document, 1024 * 1024));
    let reported = json!([
        {"name": "a", "mac": "02:00:00:aa:bb:cc", "ipAddress": "10.0.0.5", "ipAddresses": ["10.0.0.5"]},
    ]);
    assert_eq!(hosted.instances.get("waits").await.unwrap().data["status"]["interfaces"], reported);

    // A migrated or restarted guest needs the Secret again.
    assert!(hosted.kubevirt.migrate("waits").await);
    hosted.secrets.delete("waits-networkdata", &DeleteParams::default()).await.unwrap();
    assert!(!hosted.kubevirt.migrate("waits").await);
    assert_eq!(hosted.kubevirt.drives("waits").len(), 2);
}

pub async fn a_refused_virtual_machine_is_created_when_its_machine_changes(cluster: &Cluster) {
    let hosted = Hosted::new(cluster).await;
    hosted.node_pool("workers", 1, &patched(&json!([{"op": "add", "path": "/spec/runStrategy", "value": 1}]))).await;
    let message = hosted.until_refused("workers-0").await;
    assert!(message.starts_with("Failed vm creation: ") && message.contains("spec.runStrategy"), "{message}");
    let corrected = json!({"spec": {"virtualMachineTemplate": {"spec": {"runStrategy": "Always"}}}});
    merge(&hosted.machines, "workers-0", &corrected).await;
    hosted.until_running("workers-0").await;
    until(&hosted.machines, "workers-0", |machine| provisioned(machine)["status"] == "True").await;
}

pub async fn a_virtual_machine_that_is_gone_is_created_again(cluster: &Cluster) {
    let hosted = Hosted::new(cluster).await;
    hosted.node_pool("workers", 1, &json!({})).await;
    hosted.until_running("workers-0").await;
    let machine = hosted.machines.get("workers-0").await.unwrap().uid();
    let vm = hosted.vms.get("workers-0").await.unwrap().uid();
    hosted.vms.delete("workers-0", &DeleteParams::default()).await.unwrap();
    until(&hosted.vms, "workers-0", |new| new.uid() != vm).await;
    assert_eq!(hosted.machines.get("workers-0").await.unwrap().uid(), machine);
}

pub async fn a_machine_is_gone_before_its_guest_has_ended(cluster: &Cluster) {
    let hosted = Hosted::new(cluster).await;
    hosted.node_pool("workers", 1, &json!({})).await;
    hosted.until_running("workers-0").await;
    hosted.kubevirt.hold("workers-0");
    hosted.scale("workers", 0).await;
    hosted.until_gone(&hosted.machines, "workers-0").await;
    until(&hosted.instances, "workers-0", |instance| instance.metadata.deletion_timestamp.is_some()).await;
    assert!(hosted.vms.get("workers-0").await.unwrap().metadata.deletion_timestamp.is_some());
    hosted.kubevirt.end("workers-0").await;
    hosted.until_gone(&hosted.vms, "workers-0").await;
    assert!(hosted.instances.get_opt("workers-0").await.unwrap().is_none());
}

pub async fn a_smaller_node_pool_deletes_its_newest_machines(cluster: &Cluster) {
    let hosted = Hosted::new(cluster).await;
    hosted.node_pool("workers", 3, &json!({})).await;
    hosted.until_running("workers-2").await;
    hosted.scale("workers", 1).await;
    for name in ["workers-1", "workers-2"] {
        hosted.until_gone(&hosted.vms, name).await;
    }
    hosted.scale("workers", 2).await;
    // No name is used twice.
    hosted.until_running("workers-3").await;
    let machines = hosted.machines.list(&ListParams::default()).await.unwrap().items;
    assert_eq!(machines.iter().map(ResourceExt::name_any).collect::<Vec<_>>(), ["workers-0", "workers-3"]);
}
