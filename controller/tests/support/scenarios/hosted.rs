//! Checks that the stand-ins for HyperShift, cluster-api-provider-kubevirt and KubeVirt behave as the real programs do.
//! No controller runs.

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{DeleteParams, DynamicObject, ListParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};

use crate::support::Cluster;
use crate::support::controller::{merge, until};
use crate::support::hosted::copies::{clone_machine, restore};
use crate::support::hosted::definitions::{INSTANCE, VIRTUAL_MACHINE, resource};
use crate::support::hosted::kubevirt::FINALIZER;
use crate::support::hosted::provider::{PATCH_ANNOTATION, object};
use crate::support::hosted::{Hosted, USER_DATA, is_running, mutator, provisioned};

/// Returns the changes of a NodePool that patch its VirtualMachines.
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
            {"name": "cloudinitvolume", "cloudInitConfigDrive": {"secretRef": {"name": "user-data-workers-userdata"}}},
        ],
    }}});
    assert_eq!(vm.data["spec"], expected);
}

const MAC: &str = "02:00:00:aa:bb:cc";

/// Returns a VirtualMachine with a cloud-init volume and two interfaces, one of which is being unplugged.
fn vm(name: &str, source: Value) -> DynamicObject {
    let volumes = json!([{"name": "cloudinitvolume", "cloudInitConfigDrive": source}]);
    let interfaces = json!([
        {"name": "a", "bridge": {}, "macAddress": MAC}, {"name": "unplugged", "bridge": {}, "state": "absent"},
    ]);
    let spec = json!({"domain": {"devices": {"interfaces": interfaces}}, "volumes": volumes});
    let metadata = json!({"labels": {"a.b/c": "d"}, "annotations": {"e.f/g": "h"}});
    let template = json!({"metadata": metadata, "spec": spec});
    object(
        VIRTUAL_MACHINE,
        json!({"metadata": {"name": name}, "spec": {"runStrategy": "Always", "template": template}}),
    )
}

/// Creates a Secret with network data of one address. Returns name and UID of the Secret, and the document.
async fn create_secret(hosted: &Hosted, name: &str, address: &str) -> ((String, String), Value) {
    let document = json!({
        "links": [{"id": "eno101", "type": "phy", "ethernet_mac_address": MAC}],
        "networks": [{"id": "n", "link": "eno101", "type": "ipv4", "ip_address": format!("{address}/24")}],
    });
    let data = json!({"networkdata": ByteString(document.to_string().into_bytes())});
    let secret: Secret = serde_json::from_value(json!({"metadata": {"name": name}, "data": data})).unwrap();
    let secret = hosted.secrets.create(&PostParams::default(), &secret).await.unwrap();
    ((name.to_owned(), secret.uid().unwrap()), document)
}

fn has_condition(vm: &DynamicObject, type_: &str) -> bool {
    vm.data["status"]["conditions"].as_array().into_iter().flatten().any(|condition| condition["type"] == type_)
}

pub async fn a_guest_starts_when_the_secrets_of_its_drive_exist(cluster: &Cluster) {
    let hosted = Hosted::new(cluster).await;
    let waits = vm("waits", json!({"networkDataSecretRef": {"name": "any-name"}}));
    hosted.vms.create(&PostParams::default(), &waits).await.unwrap();
    until(&hosted.instances, "waits", |instance| instance.data["status"]["phase"] == "Scheduling").await;
    // A machine that was created later runs. So the stand-in has had the time to start the other machine.
    hosted.vms.create(&PostParams::default(), &vm("runs", json!({}))).await.unwrap();
    assert_eq!(hosted.until_running("runs").await.network_data_secret, None);
    assert!(!is_running(&hosted.instances.get("waits").await.unwrap()));

    let (secret, document) = create_secret(&hosted, "any-name", "10.0.0.5").await;
    let drive = hosted.until_running("waits").await;
    assert_eq!((drive.document(), drive.image().len()), (document, 1024 * 1024));
    assert_eq!(drive.network_data_secret, Some(secret));
    let instance = hosted.instances.get("waits").await.unwrap();
    let reported = json!([{"name": "a", "mac": MAC, "ipAddress": "10.0.0.5", "ipAddresses": ["10.0.0.5"]}]);
    assert_eq!(instance.data["status"]["interfaces"], reported);
    assert_eq!((&instance.labels()["a.b/c"], &instance.annotations()["e.f/g"]), (&"d".to_owned(), &"h".to_owned()));

    // To migrate or restart a guest, KubeVirt needs the Secret again.
    assert!(hosted.kubevirt.migrate("waits").await);
    hosted.secrets.delete("any-name", &DeleteParams::default()).await.unwrap();
    assert!(!hosted.kubevirt.migrate("waits").await);
    assert_eq!(hosted.kubevirt.drives("waits").len(), 2);
}

pub async fn only_kubevirt_changes_the_status_of_an_instance_and_a_new_instance_is_pending(cluster: &Cluster) {
    let namespace = cluster.namespace().await;
    let of = |client: &Client| Api::<DynamicObject>::namespaced_with(client.clone(), &namespace, &resource(INSTANCE));
    let (users, kubevirt) = (of(&cluster.client()), of(&mutator::client(&cluster.client())));
    let interfaces = json!([{"name": "a", "ipAddresses": ["10.0.0.5"]}]);
    let invented = json!({"metadata": {"name": "w"}, "status": {"phase": "Running", "interfaces": interfaces}});
    users.create(&PostParams::default(), &object(INSTANCE, invented)).await.unwrap();
    let pending = json!({"phase": "Pending", "interfaces": interfaces});
    assert_eq!(users.get("w").await.unwrap().data["status"], pending);
    for status in [json!({"phase": "Running"}), json!(null)] {
        let changed = merge(&users, "w", &json!({"metadata": {"labels": {"a": "b"}}, "status": status})).await;
        assert_eq!((&changed.labels()["a"], &changed.data["status"]), (&"b".to_owned(), &pending));
    }
    let running = merge(&kubevirt, "w", &json!({"status": {"phase": "Running"}})).await;
    assert_eq!(running.data["status"], json!({"phase": "Running", "interfaces": interfaces}));
    kubevirt.create(&PostParams::default(), &object(INSTANCE, json!({"metadata": {"name": "v"}}))).await.unwrap();
    assert_eq!(users.get("v").await.unwrap().data["status"], json!({"phase": "Pending"}));
}

pub async fn a_halted_machine_has_no_guest_until_it_is_started(cluster: &Cluster) {
    let hosted = Hosted::new(cluster).await;
    let mut halted = vm("halted", json!({}));
    halted.data["spec"]["runStrategy"] = "Halted".into();
    hosted.vms.create(&PostParams::default(), &halted).await.unwrap();
    hosted.vms.create(&PostParams::default(), &vm("runs", json!({}))).await.unwrap();
    hosted.until_running("runs").await;
    assert!(hosted.instances.get_opt("halted").await.unwrap().is_none());
    merge(&hosted.vms, "halted", &json!({"spec": {"runStrategy": "Always"}})).await;
    hosted.until_running("halted").await;
    merge(&hosted.vms, "halted", &json!({"spec": {"runStrategy": null, "running": false}})).await;
    hosted.until_gone(&hosted.instances, "halted").await;
}

pub async fn a_changed_template_reaches_a_guest_at_a_restart_but_not_at_a_migration(cluster: &Cluster) {
    let hosted = Hosted::new(cluster).await;
    let [(first, _), (second, _)] =
        [create_secret(&hosted, "first", "10.0.0.5").await, create_secret(&hosted, "second", "10.0.0.6").await];
    let reference = |name: &str| json!({"networkDataSecretRef": {"name": name}});
    hosted.vms.create(&PostParams::default(), &vm("w", reference("first"))).await.unwrap();
    hosted.until_running("w").await;
    let volumes = json!([{"name": "cloudinitvolume", "cloudInitConfigDrive": reference("second")}]);
    let template = json!({"metadata": {"labels": {"i": "j"}}, "spec": {"volumes": volumes}});
    merge(&hosted.vms, "w", &json!({"spec": {"template": template}})).await;
    until(&hosted.vms, "w", |vm| has_condition(vm, "RestartRequired")).await;
    assert!(hosted.kubevirt.migrate("w").await);
    hosted.restart("w").await;
    let secrets: Vec<_> = hosted.kubevirt.drives("w").into_iter().map(|drive| drive.network_data_secret).collect();
    assert_eq!(secrets, [Some(first.clone()), Some(first), Some(second)]);
    until(&hosted.vms, "w", |vm| !has_condition(vm, "RestartRequired")).await;
    // A label alone does not require a restart.
    merge(&hosted.vms, "w", &json!({"spec": {"template": {"metadata": {"labels": {"i": "k"}}}}})).await;
    hosted.vms.create(&PostParams::default(), &vm("later", json!({}))).await.unwrap();
    hosted.until_running("later").await;
    assert!(!has_condition(&hosted.vms.get("w").await.unwrap(), "RestartRequired"));
}

pub async fn a_guest_keeps_running_if_the_garbage_collector_orphans_it_before_kubevirt_acts(cluster: &Cluster) {
    let hosted = Hosted::new(cluster).await;
    hosted.vms.create(&PostParams::default(), &vm("w", json!({}))).await.unwrap();
    hosted.until_running("w").await;
    // The garbage collector removes the owner of the instance first, and then its own finalizer `orphan` from the
    // VirtualMachine.
    merge(&hosted.instances, "w", &json!({"metadata": {"ownerReferences": null}})).await;
    hosted.vms.delete("w", &DeleteParams::default()).await.unwrap();
    hosted.until_gone(&hosted.vms, "w").await;
    assert_eq!(hosted.instances.get("w").await.unwrap().metadata.deletion_timestamp, None);
}

pub async fn a_copy_has_the_reference_of_its_source(cluster: &Cluster) {
    let hosted = Hosted::new(cluster).await;
    let source = vm("source", json!({"networkDataSecretRef": {"name": "of-source"}}));
    let source = hosted.vms.create(&PostParams::default(), &source).await.unwrap();
    let snapshot = hosted.snapshot("source").await;
    let macs = |vm: &DynamicObject| {
        let interfaces = &vm.data["spec"]["template"]["spec"]["domain"]["devices"]["interfaces"];
        interfaces.as_array().unwrap().iter().map(|interface| interface["macAddress"].clone()).collect::<Vec<_>>()
    };
    let parts = |vm: &DynamicObject| {
        let template = &vm.data["spec"]["template"];
        [&template["metadata"], &template["spec"]["volumes"]].map(Value::clone)
    };
    let clone = clone_machine(&hosted.vms, hosted.snapshot("source").await, "clone", false).await.unwrap();
    assert!(macs(&clone).iter().zip(macs(&source)).all(|(one, other)| *one != other));
    let same = clone_machine(&hosted.vms, hosted.snapshot("source").await, "same", true).await.unwrap();
    let restored = restore(&hosted.vms, &snapshot, "restored").await.unwrap();
    let copied = hosted.copy_manifest("source", "copied").await.unwrap();
    assert_eq!([&same, &restored, &copied].map(macs), [macs(&source), macs(&source), macs(&source)]);
    for (copy, strategy) in [(&clone, "Halted"), (&same, "Halted"), (&restored, "Halted"), (&copied, "Always")] {
        assert_eq!(parts(copy), parts(&source));
        assert_eq!(copy.data["spec"]["runStrategy"], strategy, "{}", copy.name_any());
    }

    let volumes = json!([{"name": "cloudinitvolume", "cloudInitConfigDrive": {}}]);
    merge(&hosted.vms, "source", &json!({"spec": {"template": {"spec": {"volumes": volumes}}}})).await;
    let restored = restore(&hosted.vms, &snapshot, "source").await.unwrap();
    assert_eq!((parts(&restored), restored.uid()), (parts(&source), source.uid()));
    assert_eq!(restored.data["spec"]["runStrategy"], "Always");
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

pub async fn a_kubevirt_machine_can_be_gone_before_its_guest_has_ended(cluster: &Cluster) {
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

pub async fn the_machines_of_a_node_pool_share_a_secret_that_is_created_again_after_each_deletion(cluster: &Cluster) {
    let hosted = Hosted::new(cluster).await;
    hosted.node_pool("workers", 2, &json!({})).await;
    hosted.until_running("workers-0").await;
    hosted.until_running("workers-1").await;
    let before = hosted.secrets.get("user-data-workers-userdata").await.unwrap().uid();
    hosted.scale("workers", 1).await;
    hosted.until_gone(&hosted.machines, "workers-1").await;
    assert_ne!(hosted.secrets.get("user-data-workers-userdata").await.unwrap().uid(), before);
    assert_eq!(hosted.restart("workers-0").await.user_data, USER_DATA.as_bytes());
    hosted.scale("workers", 0).await;
    hosted.until_gone(&hosted.machines, "workers-0").await;
    assert!(hosted.secrets.get_opt("user-data-workers-userdata").await.unwrap().is_none());
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
