//! Stand-in for KubeVirt: starts guests with drives for VirtualMachines. It follows these rules of the real program:
//!
//! - A VirtualMachine gets an instance with the same name, and a finalizer that is kept until the instance is gone. A deletion
//!   with orphans does not end the instance.
//! - A guest starts when all Secrets for its drive exist. A later change of a Secret has no effect on this drive.
//! - The first cloud-init volume becomes the drive.
//! - The template of a VirtualMachine is copied into its instance. An interface without a MAC address gets a new one at
//!   each start. An instance that a webhook rejects is created again when the VirtualMachine changes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};

use futures::stream::{self, StreamExt};
use glowplug::drive::{self, Volume};
use glowplug::formats::{Meaning, read_network};
use glowplug::host::image::{ConfigDrive, Instance, NoCloud};
use glowplug::network::{Link, NetworkConfig};
use glowplug_controller::kinds::virtual_machine::MAC_ADDRESSES_LABEL;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};

use super::definitions::{INSTANCE, VIRTUAL_MACHINE, resource};
use super::provider::{next_mac, object};
use super::{changed, is_running, unless_gone};

/// Finalizer of a VirtualMachine.
pub const FINALIZER: &str = "kubevirt.io/virtualMachineControllerFinalize";
/// Finalizer of an instance. It is kept until the guest has ended.
const INSTANCE_FINALIZER: &str = "kubevirt.io/foregroundDeleteVirtualMachine";

/// The stand-in, for one namespace.
pub struct KubeVirt {
    namespace: String,
    vms: Api<DynamicObject>,
    instances: Api<DynamicObject>,
    secrets: Api<Secret>,
    changes: [Api<DynamicObject>; 3],
    guests: Mutex<Guests>,
    is_late: AtomicBool,
}

#[derive(Default)]
struct Guests {
    /// The drives of each guest, oldest first. Each start and each migration builds a drive.
    drives: BTreeMap<String, Vec<Drive>>,
    /// The guests that run on the nodes: UID of the instance, and the drive.
    running: BTreeMap<String, (String, Drive)>,
    /// Guests that do not end when their instance is deleted.
    endless: BTreeSet<String>,
}

/// The content of a drive.
#[derive(Clone, Debug)]
pub struct Drive {
    namespace: String,
    name: String,
    uuid: String,
    is_no_cloud: bool,
    pub user_data: Vec<u8>,
    pub network_data: Option<Vec<u8>>,
}

// === impl KubeVirt ===

impl KubeVirt {
    pub fn new(client: &Client, namespace: &str) -> Self {
        let api = |kind: &ApiResource| Api::namespaced_with(client.clone(), namespace, kind);
        let (vms, instances) = (api(&resource(VIRTUAL_MACHINE)), api(&resource(INSTANCE)));
        Self {
            namespace: namespace.to_owned(),
            changes: [vms.clone(), instances.clone(), api(&ApiResource::erase::<Secret>(&()))],
            vms,
            instances,
            secrets: Api::namespaced(client.clone(), namespace),
            guests: Mutex::default(),
            is_late: AtomicBool::new(false),
        }
    }

    /// Runs until the future is dropped.
    pub async fn run(&self) {
        // The name of a machine's Secret is the name of the machine and a suffix.
        let name = |object: DynamicObject| {
            let name = object.name_any();
            let of_secret = ["-userdata", "-networkdata"].into_iter().find_map(|suffix| name.strip_suffix(suffix));
            of_secret.map(str::to_owned).unwrap_or(name)
        };
        let mut changes = stream::select_all(self.changes.clone().map(|api| changed(api).map(name).boxed()));
        while let Some(name) = changes.next().await {
            self.run_machine(&name).await;
            self.run_instance(&name).await;
        }
    }

    /// Creates and deletes the instance of a VirtualMachine.
    async fn run_machine(&self, name: &str) {
        let Some(vm) = self.vms.get_opt(name).await.unwrap() else { return };
        let instance = self.instances.get_opt(name).await.unwrap();
        if vm.metadata.deletion_timestamp.is_some() {
            let others: Vec<&String> = vm.finalizers().iter().filter(|finalizer| *finalizer != FINALIZER).collect();
            let is_orphaned = others.iter().any(|finalizer| *finalizer == "orphan");
            if instance.is_some() && !is_orphaned {
                unless_gone(self.instances.delete(name, &DeleteParams::default()).await);
            } else if others.len() < vm.finalizers().len() {
                let released = json!({"metadata": {"resourceVersion": vm.resource_version(), "finalizers": others}});
                match self.vms.patch(name, &PatchParams::default(), &Patch::Merge(released)).await {
                    // The next change of the VirtualMachine causes another attempt.
                    Err(kube::Error::Api(status)) if status.code == 409 => {}
                    result => unless_gone(result),
                }
            }
            return;
        }
        if !vm.finalizers().iter().any(|finalizer| finalizer == FINALIZER) {
            let added = Patch::Merge(json!({"metadata": {"finalizers": [FINALIZER]}}));
            unless_gone(self.vms.patch(name, &PatchParams::default(), &added).await);
        }
        let template = &vm.data["spec"]["template"];
        let lacks_mac = || {
            let interfaces = template["spec"]["domain"]["devices"]["interfaces"].as_array();
            interfaces.into_iter().flatten().any(|interface| mac_of(interface).is_empty())
        };
        let is_held = template["metadata"]["labels"].get(MAC_ADDRESSES_LABEL).is_some();
        let is_too_early = || {
            if self.is_late.load(Ordering::Relaxed) && is_held && lacks_mac() {
                return true;
            }
            let source = source(&template["spec"]).map(|(source, _)| source).unwrap_or_default();
            self.is_late.load(Ordering::Relaxed) && source.get("networkDataSecretRef").is_none()
        };
        if instance.is_none() && !is_too_early() {
            let owner = json!({
                "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": name, "uid": vm.uid(),
                "controller": true, "blockOwnerDeletion": true,
            });
            let instance = json!({
                "metadata": {
                    "name": name, "namespace": self.namespace, "labels": template["metadata"]["labels"],
                    "finalizers": [INSTANCE_FINALIZER], "ownerReferences": [owner],
                },
                "spec": template["spec"],
                "status": {"phase": "Pending"},
            });
            match self.instances.create(&PostParams::default(), &object(INSTANCE, instance)).await {
                Err(kube::Error::Api(status)) if status.message.contains("webhook") => {}
                result => drop(result.unwrap()),
            }
        }
    }

    /// Starts and ends the guest of an instance.
    async fn run_instance(&self, name: &str) {
        let Some(instance) = self.instances.get_opt(name).await.unwrap() else { return };
        if instance.metadata.deletion_timestamp.is_some() {
            if !self.guests().endless.contains(name) {
                self.end_instance(name).await;
            }
        } else if instance.data["status"]["phase"] != "Running"
            && instance.data["status"]["phase"] != "Failed"
            && let Some(drive) = self.drive_of(name, &instance).await
        {
            let status = json!({"status": {"phase": "Running", "interfaces": drive.interfaces(&instance)}});
            self.guests().running.insert(name.to_owned(), (instance.uid().unwrap_or_default(), drive.clone()));
            self.guests().drives.entry(name.to_owned()).or_default().push(drive);
            unless_gone(self.instances.patch(name, &PatchParams::default(), &Patch::Merge(status)).await);
        }
    }

    /// The drive of a guest that runs already, because the report of its start has failed, or a new drive.
    async fn drive_of(&self, name: &str, instance: &DynamicObject) -> Option<Drive> {
        let running = self.guests().running.get(name).cloned();
        match running {
            Some((uid, drive)) if instance.metadata.uid.as_ref() == Some(&uid) => Some(drive),
            _ => self.build_drive(instance).await,
        }
    }

    async fn end_instance(&self, name: &str) {
        self.guests().running.remove(name);
        let ended = Patch::Merge(json!({"metadata": {"finalizers": null}}));
        unless_gone(self.instances.patch(name, &PatchParams::default(), &ended).await);
    }

    /// Does what the nodes do after etcd was restored from a backup. A guest without an instance of its UID is ended: a node
    /// ends pods and guests that the API server does not know. A guest with its instance continues to run, and the node
    /// reports its phase and its addresses. An instance whose guest has ended since the backup fails and is deleted.
    pub async fn report_after_a_restore(&self) {
        let instances = self.instances.list(&ListParams::default()).await.unwrap().items;
        let of_name: BTreeMap<String, &DynamicObject> = instances.iter().map(|it| (it.name_any(), it)).collect();
        let guests = {
            let mut guests = self.guests();
            guests.running.retain(|name, (uid, _)| of_name.get(name).is_some_and(|it| it.uid().as_ref() == Some(uid)));
            guests.running.clone()
        };
        for (name, instance) in of_name {
            if let Some((_, drive)) = guests.get(&name) {
                let status = json!({"status": {"phase": "Running", "interfaces": drive.interfaces(instance)}});
                unless_gone(self.instances.patch(&name, &PatchParams::default(), &Patch::Merge(status)).await);
            } else if is_running(instance) {
                let status = Patch::Merge(json!({"status": {"phase": "Failed", "interfaces": []}}));
                unless_gone(self.instances.patch(&name, &PatchParams::default(), &status).await);
                unless_gone(self.instances.delete(&name, &DeleteParams::default()).await);
            }
        }
    }

    /// From now on, a VirtualMachine gets its instance only after the controller has added the reference to the network
    /// data, and the MAC addresses if its template has the label. The controller is then always faster.
    pub fn be_late(&self) {
        self.is_late.store(true, Ordering::Relaxed);
    }

    /// Makes the guest continue to run after its instance is deleted.
    pub fn hold(&self, name: &str) {
        self.guests().endless.insert(name.to_owned());
    }

    /// Ends a guest that continued to run, and deletes its instance. KubeVirt has not deleted the instance if the VirtualMachine
    /// was gone before KubeVirt saw its deletion.
    pub async fn end(&self, name: &str) {
        unless_gone(self.instances.delete(name, &DeleteParams::default()).await);
        self.guests().endless.remove(name);
        self.end_instance(name).await;
    }

    /// Migrates a guest: its instance stays, and a new pod builds the drive again. Returns whether the pod can start.
    pub async fn migrate(&self, name: &str) -> bool {
        let instance = self.instances.get(name).await.unwrap();
        let drive = self.build_drive(&instance).await;
        let can_start = drive.is_some();
        self.guests().drives.entry(name.to_owned()).or_default().extend(drive);
        can_start
    }

    /// Returns the drives of a guest, oldest first.
    pub fn drives(&self, name: &str) -> Vec<Drive> {
        self.guests().drives.get(name).cloned().unwrap_or_default()
    }

    /// Builds the drive of an instance. `None`: a Secret is missing.
    async fn build_drive(&self, instance: &DynamicObject) -> Option<Drive> {
        let spec = &instance.data["spec"];
        let (source, is_no_cloud) = source(spec)?;
        let user_data = self.secret(&source["secretRef"], ["userdata", "userData"]).await?;
        let network_data = self.secret(&source["networkDataSecretRef"], ["networkdata", "networkData"]).await?;
        let uuid = spec["domain"]["firmware"]["uuid"].as_str().map(str::to_owned).or(instance.uid());
        Some(Drive {
            namespace: self.namespace.clone(),
            name: instance.name_any(),
            uuid: uuid.unwrap_or_default(),
            is_no_cloud,
            user_data: user_data.unwrap_or_default(),
            network_data,
        })
    }

    /// Reads the content of the first of `keys` that a Secret has. Outer `None`: the Secret is missing. Inner `None`:
    /// the Secret has neither key.
    async fn secret(&self, reference: &Value, keys: [&str; 2]) -> Option<Option<Vec<u8>>> {
        let Some(name) = reference["name"].as_str() else { return Some(None) };
        let mut data = self.secrets.get_opt(name).await.unwrap()?.data.unwrap_or_default();
        Some(keys.into_iter().find_map(|key| data.remove(key)).map(|content| content.0))
    }

    fn guests(&self) -> MutexGuard<'_, Guests> {
        self.guests.lock().unwrap()
    }
}

fn mac_of(interface: &Value) -> &str {
    interface["macAddress"].as_str().unwrap_or_default()
}

/// Returns the first cloud-init volume of a machine, and whether its kind is NoCloud.
fn source(spec: &Value) -> Option<(Value, bool)> {
    let source = |volume: &Value| {
        let [config_drive, no_cloud] =
            ["cloudInitConfigDrive", "cloudInitNoCloud"].map(|kind| volume.get(kind).cloned());
        config_drive.map(|source| (source, false)).or(no_cloud.map(|source| (source, true)))
    };
    spec["volumes"].as_array()?.iter().find_map(source)
}

// === impl Drive ===

impl Drive {
    /// Returns the image of the drive.
    pub fn image(&self) -> Vec<u8> {
        let instance = Instance {
            namespace: &self.namespace,
            name: &self.name,
            uuid: Some(&self.uuid),
            hostname: None,
            instance_type: None,
            public_keys: &[],
        };
        let (network_data, user_data) = (self.network_data.as_deref(), self.user_data.as_slice());
        if self.is_no_cloud {
            let meta_data = instance.meta_data();
            NoCloud { meta_data: meta_data.as_bytes(), network_config: network_data, user_data }.image().unwrap()
        } else {
            let meta_data = instance.meta_data_json();
            ConfigDrive { meta_data: meta_data.as_bytes(), network_data, user_data }.image().unwrap()
        }
    }

    /// Returns the network data as JSON. Null: the drive has no network data.
    pub fn document(&self) -> Value {
        self.network_data.as_deref().map(|document| serde_json::from_slice(document).unwrap()).unwrap_or_default()
    }

    /// Reads the network from the image of the drive, as the guest does. `None`: the drive configures no network.
    pub fn network(&self) -> Option<NetworkConfig> {
        let image = self.image();
        let volume = Volume::probe(image.as_slice()).unwrap().unwrap();
        assert_eq!(volume.label, if self.is_no_cloud { "cidata" } else { "config-2" });
        let files = volume.open(image.as_slice()).unwrap();
        let documents = drive::ConfigDrive::read_from(&files).unwrap().unwrap();
        let reading = read_network(&documents.network.unwrap()?.bytes);
        match reading.meaning {
            Meaning::Network(network) => Some(network),
            Meaning::Unconfigured => None,
            other => panic!("{other:?}: {:?}", reading.diagnostics),
        }
    }

    /// Returns the addresses that the guest reads from the drive, each as MAC address and IP address.
    pub fn addresses(&self) -> Vec<(String, String)> {
        let network = self.network();
        let rows = |link: &Link| {
            let mac = link.mac_address().map(|mac| mac.to_string()).unwrap_or_default();
            let ipv4 = link.ipv4.addresses.iter().map(|address| address.ip().to_string());
            let ipv6 = link.ipv6.addresses.iter().map(|address| address.ip().to_string());
            ipv4.chain(ipv6).map(|address| (mac.clone(), address)).collect::<Vec<_>>()
        };
        network.iter().flat_map(|network| network.links()).flat_map(rows).collect()
    }

    /// Returns the interfaces that the guest agent reports.
    fn interfaces(&self, instance: &DynamicObject) -> Value {
        let addresses = self.addresses();
        let interfaces = instance.data["spec"]["domain"]["devices"]["interfaces"].as_array().cloned();
        let report = |interface: Value| {
            let mac = match mac_of(&interface) {
                "" => next_mac(),
                mac => mac.to_owned(),
            };
            let own = addresses.iter().filter(|(of, _)| of.eq_ignore_ascii_case(&mac));
            let own: Vec<&String> = own.map(|(_, address)| address).collect();
            json!({"name": interface["name"], "mac": mac, "ipAddress": own.first(), "ipAddresses": own})
        };
        interfaces.unwrap_or_default().into_iter().map(report).collect()
    }
}
