//! Writes the copies of a VirtualMachine that KubeVirt's controllers and people write: clones, restored snapshots, and
//! manifests under another name. A copy has the template of its source, with the reference to the Secret of the source.

use kube::Api;
use kube::api::{DynamicObject, PostParams};
use serde_json::{Value, json};

use super::Hosted;
use super::definitions::VIRTUAL_MACHINE;
use super::provider::{next_mac, object};

/// Returns what a snapshot keeps of a VirtualMachine: labels, annotations and specification.
pub fn snapshot(vm: &DynamicObject) -> Value {
    json!({
        "metadata": {"labels": vm.metadata.labels, "annotations": vm.metadata.annotations}, "spec": vm.data["spec"],
    })
}

/// Writes what a VirtualMachineRestore writes. A target that exists gets the specification of the snapshot, and keeps
/// its metadata and its run strategy. A new target is halted.
pub async fn restore(vms: &Api<DynamicObject>, snapshot: &Value, target: &str) -> kube::Result<DynamicObject> {
    loop {
        let Some(mut vm) = vms.get_opt(target).await? else { return create_copy(vms, snapshot, target).await };
        let strategy = vm.data["spec"]["runStrategy"].take();
        vm.data["spec"] = snapshot["spec"].clone();
        vm.data["spec"]["runStrategy"] = if strategy.is_null() { "Always".into() } else { strategy };
        match vms.replace(target, &PostParams::default(), &vm).await {
            // Another client has changed the object meanwhile, so the loop tries again.
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            result => return result,
        }
    }
}

/// Writes what a VirtualMachineClone writes from the snapshot of its source: a halted VirtualMachine. Its interfaces
/// get new MAC addresses, as from KubeMacPool, unless the clone keeps the MAC addresses of its source.
pub async fn clone_machine(
    vms: &Api<DynamicObject>,
    mut snapshot: Value,
    target: &str,
    keeps_macs: bool,
) -> kube::Result<DynamicObject> {
    let spec = &mut snapshot["spec"]["template"]["spec"]["domain"];
    for interface in spec["devices"]["interfaces"].as_array_mut().into_iter().flatten() {
        if !keeps_macs {
            interface["macAddress"] = next_mac().into();
        }
    }
    if spec["firmware"].is_object() {
        spec["firmware"]["uuid"] = "".into();
    }
    create_copy(vms, &snapshot, target).await
}

async fn create_copy(vms: &Api<DynamicObject>, snapshot: &Value, target: &str) -> kube::Result<DynamicObject> {
    let mut copy = snapshot.clone();
    copy["metadata"]["name"] = target.into();
    copy["spec"]["runStrategy"] = "Halted".into();
    vms.create(&PostParams::default(), &object(VIRTUAL_MACHINE, copy)).await
}

impl Hosted {
    /// Returns a snapshot of a VirtualMachine.
    pub async fn snapshot(&self, name: &str) -> Value {
        snapshot(&self.vms.get(name).await.unwrap())
    }

    /// Creates a VirtualMachine from the manifest of another VirtualMachine, as a person does who changes only the
    /// name.
    pub async fn copy_manifest(&self, source: &str, target: &str) -> kube::Result<DynamicObject> {
        let mut copy = self.snapshot(source).await;
        copy["metadata"]["name"] = target.into();
        self.vms.create(&PostParams::default(), &object(VIRTUAL_MACHINE, copy)).await
    }
}
