//! Stand-in for KubeVirt: starts guests with drives for VirtualMachines. It follows these rules of the real program:
//!
//! - A VirtualMachine gets a finalizer, and then an instance with the same name. The finalizer is kept until the
//!   instance is gone. A deletion with the policy `Orphan` does not end the instance, even if the garbage collector
//!   acts before KubeVirt.
//! - A VirtualMachine that is halted has no instance. If a VirtualMachine is halted later, its instance is deleted.
//! - The phases of an instance are Pending, Scheduling, Scheduled and Running. An instance is Scheduling while its pod
//!   waits for the Secrets of its drive. A later change of a Secret has no effect on this drive.
//! - The first cloud-init volume becomes the drive. A Secret affects only the instances whose volumes name it.
//! - The template of a VirtualMachine is copied into its instance, with labels and annotations. An interface without a
//!   MAC address gets a new one at each start. An interface with state `absent` is left out.
//! - A migration builds the drive from the specification of the instance, a restart from the template.
//! - A running instance gets the name of another network from the template. The guest comes to this network with its
//!   next migration, which the real program starts itself, and keeps the network data that it has read.
//! - A VirtualMachine with the run strategy `WaitAsReceiver` gets an instance that waits for a guest of another
//!   cluster. When the guest arrives, the run strategy becomes the value of an annotation.
//! - A change of the cloud-init volume or of an `acpiIndex` under a running instance sets the condition
//!   `RestartRequired`.
//! - An instance that a webhook rejects is created again when the VirtualMachine or a webhook configuration changes.
//!   The real program also tries again after some time. Here, a test does this with [`KubeVirt::retry`].

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
use kube::api::{
    ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams, PostParams,
};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use tokio::sync::Notify;

use super::definitions::{INSTANCE, VIRTUAL_MACHINE, resource};
use super::provider::{next_mac, object};
use super::{changed, is_running, mutator, unless_gone};
use crate::support::controller::until;

/// Finalizer of KubeVirt on a VirtualMachine.
pub const FINALIZER: &str = "kubevirt.io/virtualMachineControllerFinalize";
/// Finalizer of KubeVirt on an instance. KubeVirt keeps the finalizer until the guest has ended.
const INSTANCE_FINALIZER: &str = "kubevirt.io/foregroundDeleteVirtualMachine";

/// Condition of a VirtualMachine whose running guest differs from the template.
const RESTART_REQUIRED: &str = "RestartRequired";
/// Run strategy of a VirtualMachine that receives a guest of another cluster.
pub const RECEIVER: &str = "WaitAsReceiver";
/// Annotation of a VirtualMachine with the run strategy that it gets after it has received a guest.
pub const RESTORED_STRATEGY: &str = "kubevirt.io/restore-run-strategy";
/// Annotation of an instance that waits for a guest of another cluster.
const MIGRATION_TARGET: &str = "kubevirt.io/create-migration-target";
/// The node of every guest.
const NODE: &str = "node-1";

/// The stand-in for KubeVirt in one namespace.
pub struct KubeVirt {
    namespace: String,
    vms: Api<DynamicObject>,
    instances: Api<DynamicObject>,
    secrets: Api<Secret>,
    changes: [(Source, Api<DynamicObject>); 5],
    guests: Mutex<Guests>,
    is_late: AtomicBool,
    retries: Notify,
}

/// The kinds of objects whose changes the stand-in watches.
#[derive(Clone, Copy)]
enum Source {
    /// A VirtualMachine or an instance: they have the same name.
    Machine,
    Secret,
    Webhooks,
}

#[derive(Default)]
struct Guests {
    /// The VirtualMachines whose instance a webhook rejects, each with the message of the webhook.
    rejected: BTreeMap<String, String>,
    /// The drives of each guest, oldest first. Each start and each migration builds a drive.
    drives: BTreeMap<String, Vec<Drive>>,
    /// The guests that run on the nodes, by name: UID of the instance, and the drive.
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
    /// Name and UID of the Secret with the network data.
    pub network_data_secret: Option<(String, String)>,
}

// === impl KubeVirt ===

impl KubeVirt {
    pub fn new(client: &Client, namespace: &str) -> Self {
        let client = mutator::client(client);
        let api = |kind: &ApiResource| Api::namespaced_with(client.clone(), namespace, kind);
        let (vms, instances) = (api(&resource(VIRTUAL_MACHINE)), api(&resource(INSTANCE)));
        let [mutating, validating] = ["MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"].map(|kind| {
            let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("admissionregistration.k8s.io", "v1", kind));
            Api::all_with(client.clone(), &kind)
        });
        Self {
            namespace: namespace.to_owned(),
            changes: [
                (Source::Machine, vms.clone()),
                (Source::Machine, instances.clone()),
                (Source::Secret, api(&ApiResource::erase::<Secret>(&()))),
                (Source::Webhooks, mutating),
                (Source::Webhooks, validating),
            ],
            vms,
            instances,
            secrets: Api::namespaced(client, namespace),
            guests: Mutex::default(),
            is_late: AtomicBool::new(false),
            retries: Notify::new(),
        }
    }

    /// Runs the stand-in until the future is dropped.
    pub async fn run(&self) {
        let changes = self.changes.clone();
        let changes = changes.map(|(source, api)| changed(api).map(move |object| (source, object.name_any())).boxed());
        let mut changes = stream::select_all(changes);
        loop {
            let change = tokio::select! {
                Some(change) = changes.next() => change,
                () = self.retries.notified() => (Source::Webhooks, String::new()),
            };
            match change {
                (Source::Machine, name) => {
                    self.run_machine(&name).await;
                    self.run_instance(&name).await;
                }
                (Source::Secret, secret) => {
                    let instances = self.instances.list(&ListParams::default()).await.unwrap().items;
                    for instance in instances.iter().filter(|instance| needs(&instance.data["spec"], &secret)) {
                        self.run_instance(&instance.name_any()).await;
                    }
                }
                (Source::Webhooks, _) => {
                    let rejected: Vec<String> = self.guests().rejected.keys().cloned().collect();
                    for name in rejected {
                        self.run_machine(&name).await;
                    }
                }
            }
        }
    }

    /// Creates and deletes the instance of a VirtualMachine.
    async fn run_machine(&self, name: &str) {
        self.guests().rejected.remove(name);
        let Some(vm) = self.vms.get_opt(name).await.unwrap() else { return };
        let instance = self.instances.get_opt(name).await.unwrap();
        if vm.metadata.deletion_timestamp.is_some() {
            let others: Vec<&String> = vm.finalizers().iter().filter(|finalizer| *finalizer != FINALIZER).collect();
            let is_owned = |instance: &DynamicObject| {
                instance.owner_references().iter().any(|owner| Some(&owner.uid) == vm.metadata.uid.as_ref())
            };
            // The garbage collector first orphans the instance, and then removes its own finalizer `orphan` from the
            // VirtualMachine.
            let is_orphaned = others.iter().any(|finalizer| *finalizer == "orphan");
            if instance.as_ref().is_some_and(is_owned) && !is_orphaned {
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
            // The watch reports this change, and the instance is created then, unless the VirtualMachine is gone now.
            return;
        }
        let template = &vm.data["spec"]["template"];
        if let Some(instance) = &instance {
            if is_halted(&vm) {
                unless_gone(self.instances.delete(name, &DeleteParams::default()).await);
            } else if is_receiver(&vm) && !is_target(instance) {
                let strategy = json!({"spec": {"runStrategy": vm.annotations().get(RESTORED_STRATEGY)}});
                unless_gone(self.vms.patch(name, &PatchParams::default(), &Patch::Merge(strategy)).await);
            } else {
                self.require_restart(&vm, instance).await;
                self.change_networks(&vm, instance).await;
            }
            return;
        }
        if is_halted(&vm) {
            return;
        }
        let lacks_mac = || {
            let interfaces = template["spec"]["domain"]["devices"]["interfaces"].as_array();
            interfaces.into_iter().flatten().any(|interface| !is_absent(interface) && mac_of(interface).is_empty())
        };
        let is_held = template["metadata"]["labels"].get(MAC_ADDRESSES_LABEL).is_some();
        let is_too_early = || {
            if self.is_late.load(Ordering::Relaxed) && is_held && lacks_mac() {
                return true;
            }
            let source = source(&template["spec"]).map(|(source, _)| source).unwrap_or_default();
            self.is_late.load(Ordering::Relaxed) && source.get("networkDataSecretRef").is_none()
        };
        if is_too_early() && !is_receiver(&vm) {
            return;
        }
        let owner = json!({
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": name, "uid": vm.uid(),
            "controller": true, "blockOwnerDeletion": true,
        });
        let metadata = &template["metadata"];
        let mut instance = json!({
            "metadata": {
                "name": name, "namespace": self.namespace, "labels": metadata["labels"],
                "annotations": metadata["annotations"], "finalizers": [INSTANCE_FINALIZER], "ownerReferences": [owner],
            },
            "spec": template["spec"],
        });
        if is_receiver(&vm) {
            instance["metadata"]["annotations"][MIGRATION_TARGET] = "true".into();
        }
        match self.instances.create(&PostParams::default(), &object(INSTANCE, instance)).await {
            Err(kube::Error::Api(status)) if status.message.contains("webhook") => {
                self.guests().rejected.insert(name.to_owned(), status.message.clone());
            }
            result => drop(result.unwrap()),
        }
    }

    /// Writes the names of networks that the template has changed into a running instance.
    async fn change_networks(&self, vm: &DynamicObject, instance: &DynamicObject) {
        let wanted = vm.data["spec"]["template"]["spec"]["networks"].as_array().cloned().unwrap_or_default();
        let before = instance.data["spec"]["networks"].as_array().cloned().unwrap_or_default();
        let mut after = before.clone();
        for network in after.iter_mut().filter(|network| network["multus"].is_object()) {
            let same = wanted.iter().find(|it| it["name"] == network["name"] && it["multus"].is_object());
            if let Some(same) = same {
                network["multus"]["networkName"] = same["multus"]["networkName"].clone();
            }
        }
        if before != after && instance.metadata.deletion_timestamp.is_none() {
            let patch = Patch::Merge(json!({"spec": {"networks": after}}));
            unless_gone(self.instances.patch(&vm.name_any(), &PatchParams::default(), &patch).await);
        }
    }

    /// Sets the condition `RestartRequired` if the template would give the guest another drive, or an interface with
    /// another name. Otherwise removes the condition.
    async fn require_restart(&self, vm: &DynamicObject, instance: &DynamicObject) {
        let guest = |spec: &Value| {
            let interfaces = spec["domain"]["devices"]["interfaces"].as_array().cloned().unwrap_or_default();
            let named = interfaces.iter().map(|interface| (interface["name"].clone(), interface["acpiIndex"].clone()));
            (source(spec), named.collect::<Vec<_>>())
        };
        let is_required = guest(&vm.data["spec"]["template"]["spec"]) != guest(&instance.data["spec"]);
        let before = vm.data["status"]["conditions"].as_array().cloned().unwrap_or_default();
        if before.iter().any(|condition| condition["type"] == RESTART_REQUIRED) == is_required {
            return;
        }
        let mut conditions: Vec<Value> =
            before.into_iter().filter(|condition| condition["type"] != RESTART_REQUIRED).collect();
        if is_required {
            let message = "a non-live-updatable field was changed in the template spec";
            conditions.push(json!({"type": RESTART_REQUIRED, "status": "True", "message": message}));
        }
        let patch = Patch::Merge(json!({"status": {"conditions": conditions}}));
        unless_gone(self.vms.patch_status(&vm.name_any(), &PatchParams::default(), &patch).await);
    }

    /// Starts and ends the guest of an instance.
    async fn run_instance(&self, name: &str) {
        let Some(instance) = self.instances.get_opt(name).await.unwrap() else { return };
        if instance.metadata.deletion_timestamp.is_some() {
            if !self.guests().endless.contains(name) {
                self.end_instance(name).await;
            }
            return;
        }
        match instance.data["status"]["phase"].as_str() {
            Some("Running" | "Failed" | "Succeeded" | "WaitingForSync") => return,
            _ if is_target(&instance) => return self.report(name, &json!({"phase": "WaitingForSync"})).await,
            // The pod is created and waits for the Secrets of its volumes. If the instance has changed since the read,
            // the watch reports the change and this function runs again.
            Some("Pending") | None => {
                let of_version = json!({"resourceVersion": instance.metadata.resource_version});
                let patch = Patch::Merge(json!({"metadata": of_version, "status": {"phase": "Scheduling"}}));
                match self.instances.patch(name, &PatchParams::default(), &patch).await {
                    Err(kube::Error::Api(status)) if status.code == 409 => return,
                    written => unless_gone(written),
                }
            }
            _ => {}
        }
        let running = self.guests().running.get(name).cloned();
        let drive = match running {
            // This guest runs already, but the report of its start has failed.
            Some((uid, drive)) if instance.metadata.uid.as_ref() == Some(&uid) => drive,
            _ => {
                let Some(drive) = self.build_drive(&instance).await else { return };
                self.report(name, &json!({"phase": "Scheduled", "nodeName": NODE})).await;
                self.guests().running.insert(name.to_owned(), (instance.uid().unwrap_or_default(), drive.clone()));
                self.guests().drives.entry(name.to_owned()).or_default().push(drive.clone());
                drive
            }
        };
        self.report(name, &json!({"phase": "Running", "interfaces": drive.interfaces(&instance)})).await;
    }

    /// Writes members of the status of an instance, as KubeVirt does for the agent of its guest.
    pub async fn report(&self, name: &str, status: &Value) {
        let patch = Patch::Merge(json!({"status": status}));
        unless_gone(self.instances.patch(name, &PatchParams::default(), &patch).await);
    }

    async fn end_instance(&self, name: &str) {
        self.guests().running.remove(name);
        let ended = Patch::Merge(json!({"metadata": {"finalizers": null}}));
        unless_gone(self.instances.patch(name, &PatchParams::default(), &ended).await);
    }

    /// Does what the nodes do after etcd was restored from a backup. A guest without an instance of its UID is ended: a
    /// node ends pods and guests that the API server does not know. A guest with its instance continues to run, and the
    /// node reports its phase and its addresses. An instance whose guest has ended since the backup fails and is
    /// deleted.
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
                self.report(&name, &json!({"phase": "Running", "interfaces": drive.interfaces(instance)})).await;
            } else if is_running(instance) {
                self.report(&name, &json!({"phase": "Failed", "interfaces": []})).await;
                unless_gone(self.instances.delete(&name, &DeleteParams::default()).await);
            }
        }
    }

    /// Lets the agent of a running guest report the addresses that the guest has read from its drive.
    pub async fn report_drive(&self, name: &str) {
        let Some(instance) = self.instances.get_opt(name).await.unwrap().filter(is_running) else { return };
        let running = self.guests().running.get(name).cloned();
        if let Some((_, drive)) = running.filter(|(uid, _)| instance.uid().as_ref() == Some(uid)) {
            self.report(name, &json!({"interfaces": drive.interfaces(&instance)})).await;
        }
    }

    /// From now on, a VirtualMachine gets its instance only after the controller has added the reference to the Secret
    /// and, if the template has the label for MAC addresses, the MAC addresses. So the guest never starts before the
    /// controller has finished.
    pub fn be_late(&self) {
        self.is_late.store(true, Ordering::Relaxed);
    }

    /// Tries again to create each instance that a webhook has rejected.
    pub fn retry(&self) {
        self.retries.notify_one();
    }

    /// Returns the message with which a webhook rejected the instance of a VirtualMachine. `None`: no webhook rejected
    /// it.
    pub fn rejection(&self, name: &str) -> Option<String> {
        self.guests().rejected.get(name).cloned()
    }

    /// Makes the guest continue to run after its instance is deleted.
    pub fn hold(&self, name: &str) {
        self.guests().endless.insert(name.to_owned());
    }

    /// Ends a guest that [`Self::hold`] has kept, and deletes its instance. If a VirtualMachine was gone before
    /// KubeVirt saw its deletion, KubeVirt does not delete the instance.
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

    /// Reports that a guest has migrated to another cluster, where the guest continues to run with the same addresses.
    pub async fn migrate_to_another_cluster(&self, name: &str) {
        let instance = self.instances.get(name).await.unwrap();
        self.report(name, &migrated(&instance)).await;
    }

    /// Lets the guest of another cluster arrive at the instance of a receiving machine. The guest has read no drive of
    /// this instance.
    pub async fn receive(&self, name: &str) {
        let instance = until(&self.instances, name, is_target).await;
        let source = json!({"virtualMachineInstanceUID": "of-another-cluster", "syncAddress": "192.0.2.1:9185"});
        let target = json!({"virtualMachineInstanceUID": instance.uid()});
        let migration = json!({"completed": true, "sourceState": source, "targetState": target});
        let status = json!({"phase": "Running", "nodeName": NODE, "migrationState": migration});
        let arrived = json!({"metadata": {"annotations": {(MIGRATION_TARGET): null}}, "status": status});
        self.instances.patch(name, &PatchParams::default(), &Patch::Merge(arrived)).await.unwrap();
    }

    /// Returns the drives of a guest, oldest first.
    pub fn drives(&self, name: &str) -> Vec<Drive> {
        self.guests().drives.get(name).cloned().unwrap_or_default()
    }

    /// Builds the drive of an instance. `None`: a Secret or the cloud-init volume is missing.
    async fn build_drive(&self, instance: &DynamicObject) -> Option<Drive> {
        let spec = &instance.data["spec"];
        let (source, is_no_cloud) = source(spec)?;
        let (user_data, _) = self.secret(&source["secretRef"], ["userdata", "userData"]).await?;
        let (network_data, network_data_secret) =
            self.secret(&source["networkDataSecretRef"], ["networkdata", "networkData"]).await?;
        let network_data = network_data.or(source["networkData"].as_str().map(|text| text.as_bytes().to_vec()));
        let uuid = spec["domain"]["firmware"]["uuid"].as_str().map(str::to_owned).or(instance.uid());
        Some(Drive {
            namespace: self.namespace.clone(),
            name: instance.name_any(),
            uuid: uuid.unwrap_or_default(),
            is_no_cloud,
            user_data: user_data.unwrap_or_default(),
            network_data,
            network_data_secret,
        })
    }

    /// Reads the value of the first of `keys` that a Secret has, and the name and UID of the Secret. Outer `None`: the
    /// Secret is missing. No value: the Secret has none of the keys. Neither value nor Secret: there is no reference.
    async fn secret(&self, reference: &Value, keys: [&str; 2]) -> Option<(Option<Vec<u8>>, Option<(String, String)>)> {
        let Some(name) = reference["name"].as_str() else { return Some((None, None)) };
        let secret = self.secrets.get_opt(name).await.unwrap()?;
        let identity = (name.to_owned(), secret.uid().unwrap_or_default());
        let mut data = secret.data.unwrap_or_default();
        Some((keys.into_iter().find_map(|key| data.remove(key)).map(|content| content.0), Some(identity)))
    }

    fn guests(&self) -> MutexGuard<'_, Guests> {
        self.guests.lock().unwrap()
    }
}

fn mac_of(interface: &Value) -> &str {
    interface["macAddress"].as_str().unwrap_or_default()
}

/// Returns whether an interface is being unplugged.
fn is_absent(interface: &Value) -> bool {
    interface["state"] == "absent"
}

/// Returns whether the specification of a VirtualMachine halts the machine.
fn is_halted(vm: &DynamicObject) -> bool {
    vm.data["spec"]["running"] == false || vm.data["spec"]["runStrategy"] == "Halted"
}

/// Returns whether a VirtualMachine waits for a guest of another cluster.
fn is_receiver(vm: &DynamicObject) -> bool {
    vm.data["spec"]["runStrategy"] == RECEIVER
}

/// Returns whether an instance waits for a guest of another cluster.
fn is_target(instance: &DynamicObject) -> bool {
    instance.annotations().contains_key(MIGRATION_TARGET)
}

/// Returns whether the drive of a machine needs the Secret of this name.
fn needs(spec: &Value, secret: &str) -> bool {
    let references =
        |source: &Value| ["secretRef", "networkDataSecretRef"].map(|member| source[member]["name"].clone());
    source(spec).is_some_and(|(source, _)| references(&source).iter().any(|name| name == secret))
}

/// Returns the source of the first cloud-init volume of a machine, and whether the kind of the volume is NoCloud.
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
        interfaces.unwrap_or_default().into_iter().filter(|interface| !is_absent(interface)).map(report).collect()
    }
}

/// Returns the status of an instance whose guest has migrated to another cluster. The status has the `syncAddress` of
/// the target, but not of the source.
pub fn migrated(instance: &DynamicObject) -> Value {
    let source = json!({"virtualMachineInstanceUID": instance.uid()});
    let target = json!({"virtualMachineInstanceUID": "of-another-cluster", "syncAddress": "192.0.2.1:9185"});
    let migration = json!({"completed": true, "sourceState": source, "targetState": target});
    json!({"phase": "Succeeded", "migrationState": migration})
}
