//! Reads the objects of a machine: its KubevirtMachine, its instance and its Secret.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use glowplug::host::allocator::EXHAUSTED_MESSAGE;
use glowplug::host::claim::{Machine, is_namespace, is_object_name};
use glowplug::host::pool::Pool;
use glowplug::host::records::Objects;
use glowplug::network::{Family, InterfaceName};
use ipnetwork::IpNetwork;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use k8s_openapi::jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::cluster::key::Key;
use crate::cluster::object::Object;
use crate::kinds::guest::Guest;
use crate::kinds::pool::HolderKind;
use crate::kinds::virtual_machine::{
    Attachment, CloudInit, MACHINE_NAME_LABEL, MACHINE_NAMESPACE_LABEL, NETWORK_DATA_KEY, NetworkData, VirtualMachine,
    addresses_in, addresses_of_links, attachments, instances, kubevirt_machines, networks, virtual_machines,
};

/// Maximum number of interfaces in the allocation of a Secret. A user can write any number, and the leader looks for the
/// lease of each address before it opens new addresses.
const MOST_INTERFACES: usize = 64;

/// Annotation of a Secret. The value is the allocation in the Secret, as JSON.
pub(crate) const ALLOCATION_ANNOTATION: &str = "ipam.glowplug.dev/allocation";
/// Annotation of a Secret with the time of the last update of its document.
const UPDATED_ANNOTATION: &str = "ipam.glowplug.dev/updated";
/// Label of a Secret that Velero must leave out of backups. In another cluster, the address in the Secret may belong
/// to another machine.
const NO_BACKUP_LABEL: &str = "velero.io/exclude-from-backup";
/// Name of the status map: the member of the status of a KubevirtMachine with the addresses.
pub(crate) const STATUS_MAP: &str = "allocatedBootstrapAddresses";

/// The members of a KubevirtMachine that the controller reads.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct KubevirtMachine {
    /// Metadata, without managed fields.
    pub(crate) metadata: ObjectMeta,
    /// Whether capk creates the VirtualMachine of the machine in another namespace.
    pub(crate) has_vm_elsewhere: bool,
    /// The networks of the VirtualMachine.
    pub(crate) networks: Box<[String]>,
    /// The status map. Null if the status has no map.
    pub(crate) status_map: Value,
    /// The VirtualMachine that the webhook rejected because a pool is exhausted. `None`: no such rejection.
    pub(crate) refused: Option<Box<VirtualMachine>>,
}

/// A VirtualMachineInstance: a running guest.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Instance {
    /// Metadata, without managed fields.
    pub(crate) metadata: ObjectMeta,
    /// UID of the VirtualMachine that owns the instance. `None`: the instance is an orphan.
    pub(crate) owner: Option<String>,
    /// The networks of the guest.
    pub(crate) networks: Box<[String]>,
    /// The interfaces of the guest. KubeVirt moves a running guest to another network when the template of its
    /// VirtualMachine names this network: the guest keeps its addresses and its network data.
    pub(crate) attachments: Box<[Attachment]>,
    /// What the instance says about its guest.
    pub(crate) guest: Guest,
    /// Whether the guest may have read its drive. A pod that waits for a Secret has not started its guest.
    pub(crate) has_started: bool,
    /// Whether the instance is in a final phase, so that its guest never runs again.
    pub(crate) has_ended: bool,
    /// The network data that the guest reads. It differs from the network data of the VirtualMachine after a change of
    /// the template.
    pub(crate) network_data: NetworkData,
    /// Whether the guest has migrated to another cluster or namespace, where it runs with the same addresses.
    pub(crate) has_left: bool,
    /// Whether the guest comes from an instance of another cluster or namespace, and has the network of this instance.
    pub(crate) has_arrived: bool,
}

/// A Secret with the network data of a VirtualMachine.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum NetworkSecret {
    Absent,
    /// A Secret that this program has written.
    Ours(Box<OwnSecret>),
    /// A Secret of another author: the reason why it does not count as written by this program, and the addresses in
    /// its network data.
    Foreign(String, Vec<IpAddr>),
}

/// The content of a Secret that this program has written. An update of the Secret never changes its addresses.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct OwnSecret {
    /// Metadata of the Secret, without managed fields.
    pub(crate) metadata: ObjectMeta,
    /// Whether the Secret is immutable, so that it cannot be updated. Version 0.2.0 wrote immutable Secrets.
    pub(crate) is_immutable: bool,
    /// Time of the last update of the document. `None`: the document was never updated.
    pub(crate) updated: Option<Timestamp>,
    /// The document that the guest reads.
    pub(crate) document: Vec<u8>,
    /// UID of the VirtualMachine for which the Secret was created.
    pub(crate) vm: String,
    /// The object that holds the addresses.
    pub(crate) machine: Machine,
    pub(crate) interfaces: Vec<Given>,
}

/// The addresses that a Secret gives to one interface.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct Given {
    #[serde(with = "as_text")]
    pub(crate) interface: InterfaceName,
    pub(crate) network: String,
    pub(crate) pool: String,
    #[serde(with = "as_texts")]
    pub(crate) addresses: Vec<IpNetwork>,
}

/// The value of [`ALLOCATION_ANNOTATION`].
#[derive(Deserialize, Serialize)]
struct Note {
    /// UID of the VirtualMachine. The owner reference of the Secret has this UID, too, but the deletion of a
    /// VirtualMachine with `--cascade=orphan` removes the reference.
    vm: String,
    kind: HolderKind,
    machine: Named,
    interfaces: Vec<Given>,
}

#[derive(Deserialize, Serialize)]
pub(crate) struct Named {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) uid: String,
}

mod as_text {
    use std::fmt::Display;
    use std::str::FromStr;

    use serde::de::Error as _;
    use serde::{Deserialize as _, Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(value: &impl Display, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(value)
    }

    pub(crate) fn deserialize<'de, T: FromStr, D: Deserializer<'de>>(from: D) -> Result<T, D::Error> {
        let text = String::deserialize(from)?;
        text.parse().map_err(|_| D::Error::custom(format!("invalid value {text:?}")))
    }
}

mod as_texts {
    use std::fmt::Display;
    use std::str::FromStr;

    use serde::de::Error as _;
    use serde::{Deserialize as _, Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(values: &[impl Display], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(values.iter().map(ToString::to_string))
    }

    pub(crate) fn deserialize<'de, T: FromStr, D: Deserializer<'de>>(from: D) -> Result<Vec<T>, D::Error> {
        let invalid = |text: &str| D::Error::custom(format!("invalid value {text:?}"));
        Vec::<String>::deserialize(from)?.iter().map(|text| text.parse().map_err(|_| invalid(text))).collect()
    }
}

/// Creation time of an object. `None`: the object is not stored.
pub(crate) fn created(metadata: &ObjectMeta) -> Option<Timestamp> {
    metadata.creation_timestamp.as_ref().map(|time| time.0)
}

/// UID of an object.
pub(crate) fn uid(metadata: &ObjectMeta) -> &str {
    metadata.uid.as_deref().unwrap_or_default()
}

/// Takes the member at a JSON pointer out of a value. Null if there is no such member.
fn take(value: &mut Value, pointer: &str) -> Value {
    // A mutable index such as `value["spec"]["x"]` panics if `spec` is a string.
    value.pointer_mut(pointer).map(Value::take).unwrap_or_default()
}

pub(crate) fn is_deleted(metadata: &ObjectMeta) -> bool {
    metadata.deletion_timestamp.is_some()
}

// === impl KubevirtMachine ===

impl KubevirtMachine {
    /// Reads a KubevirtMachine. A member with an unexpected structure counts as absent.
    pub(crate) fn read(object: Object) -> Self {
        let Object { metadata, mut data, .. } = object;
        let metadata = ObjectMeta { managed_fields: None, ..metadata };
        let elsewhere = vm_elsewhere(&metadata, &data).map(str::to_owned);
        let has_vm_elsewhere = elsewhere.is_some();
        let mut template = take(&mut data, "/spec/virtualMachineTemplate");
        let Key { namespace, name } = Key::of(&metadata);
        let networks = template.pointer("/spec/template/spec").map(|spec| networks(spec, &namespace));
        let conditions = data["status"]["conditions"].as_array().into_iter().flatten();
        let is_refused = conditions.into_iter().any(|condition| {
            condition["type"] == "VMProvisioned"
                && condition["status"] == "False"
                && condition["message"].as_str().is_some_and(|message| message.contains(EXHAUSTED_MESSAGE))
        });
        let refused = is_refused.then(|| {
            let labels = take(&mut template, "/metadata/labels");
            let mut labels: BTreeMap<String, String> = serde_json::from_value(labels).unwrap_or_default();
            labels.insert(MACHINE_NAME_LABEL.to_owned(), name.clone());
            labels.insert(MACHINE_NAMESPACE_LABEL.to_owned(), namespace.clone());
            let metadata = ObjectMeta {
                namespace: Some(elsewhere.unwrap_or(namespace)),
                name: Some(name),
                labels: Some(labels),
                ..ObjectMeta::default()
            };
            let data = json!({"spec": take(&mut template, "/spec")});
            Box::new(VirtualMachine::read(Object { types: None, metadata, data }))
        });
        let status_map = take(&mut data, &format!("/status/{STATUS_MAP}"));
        Self { metadata, has_vm_elsewhere, networks: networks.unwrap_or_default(), status_map, refused }
    }

    /// Adds the records of the machine to `objects`, as [`read_records`] does.
    pub(crate) fn read_records(&self, objects: &mut Objects) {
        let status = json!({(STATUS_MAP): self.status_map});
        let spec = json!({"networks": networks_of(&self.networks)});
        read_members(objects, &kubevirt_machines().kind, &self.metadata, spec, status);
    }

    /// Returns the machine as the ledger identifies it: namespace, name and UID.
    pub(crate) fn holder(&self) -> Machine {
        Key::of(&self.metadata).holder(HolderKind::KubevirtMachine, uid(&self.metadata))
    }
}

// === impl Instance ===

impl Instance {
    /// Reads an instance. A member with an unexpected structure counts as absent.
    pub(crate) fn read(object: Object) -> Self {
        let guest = Guest::read(&object);
        let (has_started, has_left, has_arrived) = (has_started(&object), has_left(&object), has_arrived(&object));
        let has_ended = ["Succeeded", "Failed"].contains(&phase(&object));
        let metadata = ObjectMeta { managed_fields: None, ..object.metadata };
        let owners = metadata.owner_references.iter().flatten();
        let owner = owners.into_iter().find(|owner| owner.kind == "VirtualMachine").map(|owner| owner.uid.clone());
        let network_data = match CloudInit::of(&object.data["spec"]).map(|volume| volume.network_data) {
            // A user can write a name of any length. A Secret with an invalid name cannot exist, so no guest reads it.
            Some(NetworkData::Secret(name)) if !is_object_name(&name) => NetworkData::None,
            network_data => network_data.unwrap_or(NetworkData::None),
        };
        let (spec, namespace) = (&object.data["spec"], metadata.namespace.as_deref().unwrap_or_default());
        let (networks, attachments) = (networks(spec, namespace), attachments(spec, namespace).into());
        Self {
            metadata,
            owner,
            networks,
            attachments,
            guest,
            has_started,
            has_ended,
            network_data,
            has_left,
            has_arrived,
        }
    }

    /// Name of the Secret from which the guest reads its network data. `None`: the guest reads no Secret with a name
    /// that the controller gives.
    pub(crate) fn secret(&self) -> Option<&str> {
        self.network_data.secret_of(self.metadata.name.as_deref().unwrap_or_default())
    }

    /// Whether the guest runs without network data of the controller: it has a network of its own.
    pub(crate) fn runs_without_data(&self) -> bool {
        self.has_started && !self.has_ended && self.secret().is_none()
    }

    /// Whether the guest has read the current document of this Secret, and not an earlier document. The guest must have
    /// started.
    pub(crate) fn has_read(&self, secret: &OwnSecret) -> bool {
        // The API server stores creation times in whole seconds.
        let is_older = |updated: Timestamp| {
            created(&self.metadata).is_some_and(|created| created.as_second() < updated.as_second())
        };
        self.secret() == Some(secret.name()) && !secret.updated.is_some_and(is_older)
    }

    /// Adds the records of the instance to `objects`, as [`read_records`] does, but not the addresses that the guest
    /// reports.
    pub(crate) fn read_records(&self, objects: &mut Objects) {
        let spec = json!({"networks": networks_of(&self.networks)});
        read_members(objects, &instances().kind, &self.metadata, spec, Value::Null);
    }
}

/// Phase of an instance. Empty: KubeVirt has not written the status.
fn phase(instance: &Object) -> &str {
    instance.data["status"]["phase"].as_str().unwrap_or_default()
}

/// Whether the guest of an instance may have read its drive. An instance in phase WaitingForSync receives a guest of
/// another cluster, and has no pod yet.
fn has_started(instance: &Object) -> bool {
    !["", "Pending", "Scheduling", "WaitingForSync"].contains(&phase(instance))
}

/// Returns the UIDs of the instances between which the guest of an instance migrates. Both instances have both UIDs in
/// their status. `None`: the guest does not migrate, or it migrates within its instance. KubeVirt writes the UIDs only if
/// the target is an instance of another cluster or namespace.
fn migration(instance: &Object) -> Option<[&str; 2]> {
    let migration = &instance.data["status"]["migrationState"];
    let [source, target] = ["sourceState", "targetState"].map(|it| migration[it]["virtualMachineInstanceUID"].as_str());
    Some([source?, target?])
}

/// Whether a migration has moved the guest of an instance to an instance of another cluster or namespace, where the
/// guest runs with the same addresses. If the source has failed, the guest may run at the target, too: a source that no
/// longer gets the state of the target marks the migration as failed.
pub(crate) fn has_left(instance: &Object) -> bool {
    let state = &instance.data["status"]["migrationState"];
    let has_succeeded = state["completed"] == true && state["failed"] != true;
    let own = uid(&instance.metadata);
    // Users can write any status of an instance that has not started.
    has_started(instance)
        && (has_succeeded || phase(instance) == "Failed")
        && migration(instance).is_some_and(|[source, target]| source == own && target != own)
}

/// Whether the guest of an instance comes from an instance of another cluster or namespace.
fn has_arrived(instance: &Object) -> bool {
    let own = uid(&instance.metadata);
    migration(instance).is_some_and(|[source, target]| source != own && target == own)
}

/// Returns the addresses that a KubevirtMachine records as its own.
pub(crate) fn recorded_addresses(machine: &Object) -> BTreeSet<IpAddr> {
    let mut records = Objects::default();
    read_records(&mut records, &kubevirt_machines().kind, machine);
    all_addresses(records)
}

/// Returns the addresses that a VirtualMachine records as its own.
pub(crate) fn recorded_addresses_of_vm(vm: &VirtualMachine) -> BTreeSet<IpAddr> {
    let mut records = Objects::default();
    read_records_of_vm(vm, &mut records);
    all_addresses(records)
}

fn all_addresses(records: Objects) -> BTreeSet<IpAddr> {
    let records = records.inventory().records;
    records.iter().flat_map(|record| &record.addresses).map(IpNetwork::ip).collect()
}

/// Returns the namespace that the template of a KubevirtMachine names for its VirtualMachine, if this is not the
/// namespace of the KubevirtMachine. `None`: capk creates the VirtualMachine in the namespace of the KubevirtMachine.
fn vm_elsewhere<'d>(metadata: &ObjectMeta, data: &'d Value) -> Option<&'d str> {
    let namespace = data.pointer("/spec/virtualMachineTemplate/metadata/namespace")?.as_str()?;
    (is_namespace(namespace) && Some(namespace) != metadata.namespace.as_deref()).then_some(namespace)
}

/// Adds the records of an object to `objects`. A KubevirtMachine whose VirtualMachine is in another namespace records
/// nothing: its VirtualMachine holds the addresses.
pub(crate) fn read_records(objects: &mut Objects, kind: &str, object: &Object) {
    let Object { metadata, data, .. } = object;
    if kind == kubevirt_machines().kind && vm_elsewhere(metadata, data).is_some() {
        return;
    }
    read_members(objects, kind, metadata, data["spec"].clone(), data["status"].clone());
}

/// Adds the records of a VirtualMachine to `objects`, as [`read_records`] does.
pub(crate) fn read_records_of_vm(vm: &VirtualMachine, objects: &mut Objects) {
    let networks: Vec<String> = vm.networks.iter().map(|attachment| attachment.network.clone()).collect();
    let template = json!({"metadata": {"annotations": vm.template_records}});
    let spec = json!({"template": template, "networks": networks_of(&networks)});
    read_members(objects, &virtual_machines().kind, &vm.metadata, spec, Value::Null);
}

/// Returns these networks in the form of `spec.networks` of an instance.
fn networks_of(networks: &[String]) -> Value {
    let item = |(at, network): (usize, &String)| match network.as_str() {
        Pool::DEFAULT_NETWORK => json!({"name": at.to_string(), "pod": {}}),
        network => json!({"name": at.to_string(), "multus": {"networkName": network}}),
    };
    networks.iter().enumerate().map(item).collect()
}

/// Adds the records in members of an object to `objects`.
fn read_members(objects: &mut Objects, kind: &str, metadata: &ObjectMeta, spec: Value, status: Value) {
    let item = json!({
        "kind": kind,
        "metadata": {
            "namespace": metadata.namespace,
            "name": metadata.name,
            "uid": metadata.uid,
            "creationTimestamp": metadata.creation_timestamp,
            "deletionTimestamp": metadata.deletion_timestamp,
            "labels": metadata.labels,
            "annotations": metadata.annotations,
            "ownerReferences": metadata.owner_references,
        },
        "spec": spec,
        "status": status,
    });
    objects.read_value(&format!("{kind} {}", Key::of(metadata)), &item);
}

// === impl NetworkSecret ===

impl NetworkSecret {
    /// Determines whether this program has written a Secret, and reads its addresses.
    pub(crate) fn read(secret: Option<Secret>) -> Self {
        let Some(Secret { metadata, data, immutable, .. }) = secret else { return Self::Absent };
        let document = document_of(data);
        let addresses = addresses_in(&document);
        match OwnSecret::read(&metadata, document, &addresses) {
            Ok(own) => Self::Ours(Box::new(OwnSecret { is_immutable: immutable == Some(true), ..own })),
            Err(problem) => Self::Foreign(problem, addresses),
        }
    }

    /// The addresses in the network data of the Secret, of any author.
    pub(crate) fn addresses(&self) -> Vec<IpAddr> {
        match self {
            Self::Absent => Vec::new(),
            Self::Ours(own) => addresses_in(&own.document),
            Self::Foreign(_, addresses) => addresses.clone(),
        }
    }
}

/// Returns the addresses in the network data of a Secret of another author.
pub(crate) fn addresses_of(secret: Option<Secret>) -> Vec<IpAddr> {
    NetworkSecret::read(secret).addresses()
}

/// Returns the network data in a Secret. KubeVirt reads either key. Empty: the Secret has no network data.
fn document_of(data: Option<BTreeMap<String, ByteString>>) -> Vec<u8> {
    let mut data = data.unwrap_or_default();
    let document = [NETWORK_DATA_KEY, "networkData"].into_iter().find_map(|key| data.remove(key));
    document.map(|ByteString(bytes)| bytes).unwrap_or_default()
}

// === impl Named ===

impl Named {
    /// Returns the machine. `None`: no object can have this namespace, name or UID. A user can write any text, of any
    /// length, and the machine becomes a part of leases.
    pub(crate) fn machine(self) -> Option<Machine> {
        let Self { namespace, name, uid } = self;
        let is_valid = [&namespace, &name, &uid].into_iter().all(|text| is_object_name(text));
        is_valid.then_some(Machine::new(namespace, name, uid))
    }
}

// === impl OwnSecret ===

impl OwnSecret {
    /// Returns the Secret with another document, in which each interface has the same allocated addresses.
    pub(crate) fn updated(&self, vm: &VirtualMachine, document: &str, now: Timestamp) -> Secret {
        let secret = secret(vm, self.name(), &self.machine, self.interfaces.clone(), document);
        // Labels, annotations and finalizers of other programs stay.
        let mut metadata = self.metadata.clone();
        let annotations = metadata.annotations.get_or_insert_default();
        annotations.extend(secret.metadata.annotations.unwrap_or_default());
        let mut secret = Secret { metadata, ..secret };
        note_update(&mut secret, now);
        secret
    }

    /// The addresses of all interfaces in the annotation of the Secret.
    pub(crate) fn addresses(&self) -> Vec<IpAddr> {
        self.interfaces.iter().flat_map(|given| &given.addresses).map(IpNetwork::ip).collect()
    }

    /// Whether the Secret gives addresses to the interface on a network.
    pub(crate) fn serves(&self, network: &str) -> bool {
        self.interfaces.iter().any(|given| given.network == network)
    }

    /// Returns the addresses that a user has added to the document. They are on a link with an allocated address, where
    /// the controller writes only the addresses in the annotation. Addresses of other links come from the template of
    /// the pool, which may have changed since, so they are left out.
    pub(crate) fn addresses_of_user(&self) -> Vec<IpAddr> {
        let allocated = self.addresses();
        let is_allocated = |address: &IpAddr| allocated.contains(address);
        let links = addresses_of_links(&self.document).into_iter().filter(|link| link.iter().any(is_allocated));
        links.flatten().filter(|address| !is_allocated(address)).collect()
    }

    /// Name of the Secret.
    pub(crate) fn name(&self) -> &str {
        self.metadata.name.as_deref().unwrap_or_default()
    }

    fn read(metadata: &ObjectMeta, document: Vec<u8>, addresses: &[IpAddr]) -> Result<Self, String> {
        let annotation = metadata.annotations.as_ref().and_then(|all| all.get(ALLOCATION_ANNOTATION));
        let annotation = annotation.ok_or_else(|| format!("no annotation {ALLOCATION_ANNOTATION}"))?;
        let note: Note =
            serde_json::from_str(annotation).map_err(|error| format!("annotation {ALLOCATION_ANNOTATION}: {error}"))?;
        let invalid = |what: String| Err(format!("annotation {ALLOCATION_ANNOTATION}: {what}"));
        if note.kind.is_claim() {
            return invalid(format!("invalid kind {}, expected KubevirtMachine or VirtualMachine", note.kind));
        }
        let Some(machine) = note.machine.machine().filter(|_| is_object_name(&note.vm)) else {
            return invalid("invalid name or UID".to_owned());
        };
        if note.interfaces.len() > MOST_INTERFACES {
            return invalid(format!("{} interfaces, expected at most {MOST_INTERFACES}", note.interfaces.len()));
        }
        let mut families = BTreeSet::new();
        for (given, address) in note.interfaces.iter().flat_map(|it| it.addresses.iter().map(move |of| (it, of))) {
            if !families.insert((given.interface, Family::of(address.ip()))) {
                return invalid(format!("several addresses of one family for {}", given.interface));
            }
        }
        let noted = note.interfaces.iter().flat_map(|given| &given.addresses);
        if let Some(absent) = noted.into_iter().find(|noted| !addresses.contains(&noted.ip())) {
            return Err(format!("annotation {ALLOCATION_ANNOTATION}: {absent} is not in the network data"));
        }
        let updated = metadata.annotations.as_ref().and_then(|all| all.get(UPDATED_ANNOTATION));
        Ok(Self {
            metadata: ObjectMeta { managed_fields: None, ..metadata.clone() },
            is_immutable: false,
            updated: updated.and_then(|text| text.parse().ok()),
            document,
            vm: note.vm,
            machine: machine.of_kind(note.kind),
            interfaces: note.interfaces,
        })
    }
}

/// Creates the Secret `secret` of a machine. `document` is its network data.
pub(crate) fn secret(
    vm: &VirtualMachine,
    secret: &str,
    machine: &Machine,
    interfaces: Vec<Given>,
    document: &str,
) -> Secret {
    let resource = virtual_machines();
    let owner = OwnerReference {
        api_version: resource.api_version,
        kind: resource.kind,
        name: vm.key().name,
        uid: uid(&vm.metadata).to_owned(),
        controller: None,
        block_owner_deletion: None,
    };
    let Machine { namespace, name, uid, kind, .. } = machine.clone();
    let note = Note { vm: owner.uid.clone(), kind, machine: Named { namespace, name, uid }, interfaces };
    // The note contains only strings, so its conversion to JSON cannot fail.
    let note = serde_json::to_string(&note).unwrap_or_default();
    Secret {
        metadata: ObjectMeta {
            namespace: vm.metadata.namespace.clone(),
            name: Some(secret.to_owned()),
            labels: Some(
                [("app.kubernetes.io/managed-by", "glowplug"), (NO_BACKUP_LABEL, "true")]
                    .map(|(name, value)| (name.to_owned(), value.to_owned()))
                    .into(),
            ),
            annotations: Some([(ALLOCATION_ANNOTATION.to_owned(), note)].into()),
            owner_references: Some(vec![owner]),
            ..ObjectMeta::default()
        },
        type_: Some("Opaque".to_owned()),
        data: Some([(NETWORK_DATA_KEY.to_owned(), ByteString(document.as_bytes().to_vec()))].into()),
        ..Secret::default()
    }
}

/// Notes the time of the last update of the document in a Secret.
pub(crate) fn note_update(secret: &mut Secret, updated: Timestamp) {
    let annotations = secret.metadata.annotations.get_or_insert_default();
    annotations.insert(UPDATED_ANNOTATION.to_owned(), updated.to_string());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vm() -> VirtualMachine {
        let object = json!({"metadata": {"namespace": "n", "name": "w", "uid": "v-1"}});
        VirtualMachine::read(serde_json::from_value(object).unwrap())
    }

    fn given() -> Given {
        Given {
            interface: "eno101".parse().unwrap(),
            network: "infra/vlan10".to_owned(),
            pool: "n/p".to_owned(),
            addresses: vec!["10.0.0.8/24".parse().unwrap()],
        }
    }

    const DOCUMENT: &str = r#"{"links": [{"id": "eno101", "type": "phy"}], "networks": [
        {"id": "a", "type": "ipv4", "link": "eno101", "ip_address": "10.0.0.8", "netmask": "255.255.255.0"}]}"#;

    fn written() -> Secret {
        let machine = Machine::new("n", "w", "m-1");
        let mut secret = secret(&vm(), "w-networkdata-abcdefghijklmnop", &machine, vec![given()], DOCUMENT);
        secret.metadata.uid = Some("s-1".to_owned());
        secret.metadata.resource_version = Some("7".to_owned());
        secret
    }

    #[test]
    fn a_secret_names_the_machine_that_holds_its_addresses() {
        let machine = Machine::new("n", "w", "m-1");
        let expected = OwnSecret {
            metadata: written().metadata,
            is_immutable: false,
            updated: None,
            document: DOCUMENT.as_bytes().to_vec(),
            vm: "v-1".to_owned(),
            machine: machine.clone(),
            interfaces: vec![given()],
        };
        let read = NetworkSecret::read(Some(written()));
        assert_eq!(read, NetworkSecret::Ours(Box::new(expected)));
        let NetworkSecret::Ours(of_0_2_0) = NetworkSecret::read(Some(Secret { immutable: Some(true), ..written() }))
        else {
            panic!()
        };
        assert!(of_0_2_0.is_immutable);
    }

    #[test]
    fn an_update_of_a_secret_keeps_its_addresses_and_notes_the_time() {
        let NetworkSecret::Ours(own) = NetworkSecret::read(Some(written())) else { panic!() };
        let now: Timestamp = "2026-08-14T10:00:00Z".parse().unwrap();
        let document = DOCUMENT.replace("\"netmask\"", "\"routes\": [], \"netmask\"");
        let updated = own.updated(&vm(), &document, now);
        let mut metadata = written().metadata;
        let time = "2026-08-14T10:00:00Z".to_owned();
        metadata.annotations.get_or_insert_default().insert("ipam.glowplug.dev/updated".to_owned(), time);
        assert_eq!(updated.metadata, metadata);
        let NetworkSecret::Ours(read) = NetworkSecret::read(Some(updated)) else { panic!() };
        let expected = OwnSecret { metadata, updated: Some(now), document: document.into_bytes(), ..*own.clone() };
        assert_eq!(*read, expected);
    }

    #[test]
    fn an_address_of_a_user_is_on_a_link_with_an_allocated_address() {
        let of_user = |document: &Value| {
            let document = document.to_string().into_bytes();
            let data = [(NETWORK_DATA_KEY.to_owned(), ByteString(document))].into();
            let NetworkSecret::Ours(own) = NetworkSecret::read(Some(Secret { data: Some(data), ..written() })) else {
                panic!()
            };
            own.addresses_of_user().iter().map(IpAddr::to_string).collect::<Vec<_>>()
        };
        let mut document: Value = serde_json::from_str(DOCUMENT).unwrap();
        document["links"].as_array_mut().unwrap().push(json!({"id": "eno102", "type": "phy"}));
        let networks = |document: &mut Value, added: Value| document["networks"].as_array_mut().unwrap().push(added);
        networks(&mut document, json!({"id": "b", "type": "ipv4", "link": "eno102", "ip_address": "10.0.9.9/24"}));
        assert_eq!(of_user(&document), [] as [&str; 0]);
        networks(&mut document, json!({"id": "c", "type": "ipv4", "link": "eno101", "ip_address": "10.0.0.9/24"}));
        networks(&mut document, json!({"id": "d", "type": "ipv6", "link": "eno101", "ip_address": "fd00::9/64"}));
        assert_eq!(of_user(&document), ["10.0.0.9", "fd00::9"]);
    }

    #[test]
    fn the_addresses_in_the_document_of_a_secret_of_another_author_are_read() {
        let mut secret = written();
        secret.metadata.annotations = None;
        let mut other_key = secret.clone();
        let data = other_key.data.take().unwrap().into_values().map(|document| ("networkData".to_owned(), document));
        other_key.data = Some(data.collect());
        let address: IpAddr = "10.0.0.8".parse().unwrap();
        let problem = format!("no annotation {ALLOCATION_ANNOTATION}");
        for secret in [secret, other_key] {
            assert_eq!(addresses_of(Some(secret.clone())), [address]);
            let read = NetworkSecret::read(Some(secret));
            assert_eq!(read, NetworkSecret::Foreign(problem.clone(), vec![address]));
        }
    }

    #[test]
    fn a_secret_whose_annotation_contradicts_its_document_is_foreign() {
        let mut secret = written();
        let note = secret.metadata.annotations.as_mut().unwrap().get_mut(ALLOCATION_ANNOTATION).unwrap();
        *note = note.replace("10.0.0.8", "10.0.0.9");
        let problem = format!("annotation {ALLOCATION_ANNOTATION}: 10.0.0.9/24 is not in the network data");
        let expected = NetworkSecret::Foreign(problem, vec!["10.0.0.8".parse().unwrap()]);
        assert_eq!(NetworkSecret::read(Some(secret)), expected);
    }

    #[test]
    fn a_secret_with_an_annotation_that_the_controller_never_writes_is_foreign() {
        let problem = |from: &str, to: &str| {
            let mut secret = written();
            let note = secret.metadata.annotations.as_mut().unwrap().get_mut(ALLOCATION_ANNOTATION).unwrap();
            assert!(note.contains(from), "{note}");
            *note = note.replace(from, to);
            match NetworkSecret::read(Some(secret)) {
                NetworkSecret::Foreign(problem, _) => problem,
                other => panic!("{other:?}"),
            }
        };
        let error = |what: &str| format!("annotation {ALLOCATION_ANNOTATION}: {what}");
        let long = "u".repeat(254);
        for (from, to) in [("m-1", long.as_str()), ("v-1", long.as_str()), ("\"w\"", "\"../w\""), ("\"n\"", "\"\"")] {
            assert_eq!(problem(from, to), error("invalid name or UID"));
        }
        assert_eq!(
            problem("KubevirtMachine", "IPAddressClaim"),
            error("invalid kind IPAddressClaim, expected KubevirtMachine or VirtualMachine")
        );
        let twice = error("several addresses of one family for eno101");
        assert_eq!(problem("\"10.0.0.8/24\"", "\"10.0.0.8/24\",\"10.0.0.8/24\""), twice);
        let interface = r#"{"interface":"eno1","network":"n/net","pool":"n/p","addresses":[]}"#;
        let many = format!("\"interfaces\":[{}", format!("{interface},").repeat(MOST_INTERFACES));
        assert_eq!(problem("\"interfaces\":[", &many), error("65 interfaces, expected at most 64"));
    }

    /// Returns an instance with what KubeVirt writes during a migration between `i-1` and `i-2`, which are instances of two
    /// clusters or namespaces. Merges `changes` into the status.
    fn migrating(uid: &str, changes: &Value) -> Object {
        let source = json!({
            "migrationUID": "source", "virtualMachineInstanceUID": "i-1", "node": "node-1", "pod": "virt-launcher-w-1",
            "nodeSelectors": {}, "selinuxContext": "none", "persistentStatePVCName": "",
        });
        let target = json!({
            "migrationUID": "target", "virtualMachineInstanceUID": "i-2", "node": "node-2", "pod": "virt-launcher-w-2",
            "domainName": "w", "domainNamespace": "n", "domainDetected": true, "nodeAddress": "192.0.2.7",
        });
        let state = json!({"migrationUID": "source", "sourceState": source, "targetState": target});
        let mut status = json!({"phase": "Running", "migrationState": state});
        // Each instance has the address of the other side.
        let other = if uid == "i-1" { "targetState" } else { "sourceState" };
        status["migrationState"][other]["syncAddress"] = json!("192.0.2.1:9185");
        json_patch::merge(&mut status, changes);
        let object = json!({"metadata": {"namespace": "n", "name": "w", "uid": uid}, "spec": {}, "status": status});
        serde_json::from_value(object).unwrap()
    }

    #[test]
    fn a_guest_has_left_the_source_and_has_arrived_at_the_target_of_a_migration_to_another_cluster() {
        let of = |uid: &str, changes: &Value| {
            let instance = Instance::read(migrating(uid, changes));
            (instance.has_left, instance.has_arrived)
        };
        let state = |changes: Value| json!({"migrationState": changes});
        let ended = |phase: &str, changes: Value| json!({"phase": phase, "migrationState": changes});
        let completed = json!({"completed": true});
        let failed = json!({"completed": true, "failed": true});
        let own_address = json!({"completed": true, "sourceState": {"syncAddress": "192.0.2.2:9185"}});
        assert_eq!(of("i-1", &json!({})), (false, false), "during the migration");
        assert_eq!(of("i-1", &state(completed.clone())), (true, false));
        assert_eq!(of("i-1", &ended("Succeeded", completed.clone())), (true, false));
        // After a restart, the controller that synchronizes the clusters also writes its own address.
        assert_eq!(of("i-1", &ended("Succeeded", own_address)), (true, false));
        // The guest continues to run here, or has ended here.
        assert_eq!(of("i-1", &state(failed.clone())), (false, false));
        assert_eq!(of("i-1", &ended("Succeeded", failed.clone())), (false, false));
        // The source no longer gets the state of the target, where the guest may run.
        assert_eq!(of("i-1", &ended("Failed", failed.clone())), (true, false));
        assert_eq!(of("i-1", &ended("Failed", json!({}))), (true, false));
        for changes in [json!({}), completed.clone(), failed.clone()] {
            assert_eq!(of("i-2", &state(changes)), (false, true));
        }
        assert_eq!(of("i-2", &ended("Failed", failed.clone())), (false, true));
        // A migration within a cluster writes no UID. If the guest waits for a migration to another cluster, KubeVirt
        // writes the UID of only one of the two instances.
        let without = json!({"virtualMachineInstanceUID": null});
        let within = json!({"completed": true, "sourceState": null, "targetState": null});
        let begun = json!({"completed": true, "sourceState": null});
        let waiting = json!({"completed": true, "targetState": without});
        for changes in [within, begun, waiting] {
            for (uid, phase) in [("i-1", "Running"), ("i-1", "Failed"), ("i-2", "Running")] {
                assert_eq!(of(uid, &ended(phase, changes.clone())), (false, false), "{uid} {phase} {changes}");
            }
        }
        // The instance is neither the source nor the target of the migration.
        assert_eq!(of("i-3", &state(completed.clone())), (false, false));
        // Users can write this status.
        for phase in ["", "Pending", "Scheduling", "WaitingForSync"] {
            let instance = Instance::read(migrating("i-1", &ended(phase, completed.clone())));
            assert_eq!((instance.has_started, instance.has_left), (false, false), "{phase}");
        }
    }

    #[test]
    fn a_refused_kubevirt_machine_has_the_virtual_machine_that_capk_tries_to_create() {
        let text = "Failed vm creation: admission webhook \"machines.ipam.glowplug.dev\" denied the request: \
                    No available IPs in pool for interface eno101";
        let object = json!({
            "metadata": {"namespace": "n", "name": "w", "uid": "m-1"},
            "spec": {"virtualMachineTemplate": {
                "metadata": {"labels": {"hypershift.openshift.io/nodepool-name": "workers"}},
                "spec": {"template": {"spec": {
                    "networks": [{"name": "a", "multus": {"networkName": "vlan10"}}],
                    "domain": {"devices": {"interfaces": [{"name": "a"}]}},
                }}},
            }},
            "status": {"conditions": [{"type": "VMProvisioned", "status": "False", "message": text}]},
        });
        let machine = KubevirtMachine::read(serde_json::from_value(object.clone()).unwrap());
        let refused = machine.refused.unwrap();
        assert_eq!(refused.key(), Key { namespace: "n".to_owned(), name: "w".to_owned() });
        assert_eq!(refused.networks[0].network, "n/vlan10");
        assert_eq!(refused.kubevirt_machine(), Some(Key { namespace: "n".to_owned(), name: "w".to_owned() }));
        assert_eq!(refused.label("hypershift.openshift.io/nodepool-name"), Some("workers"));
        let mut elsewhere = object.clone();
        elsewhere["spec"]["virtualMachineTemplate"]["metadata"]["namespace"] = "infra".into();
        let refused = KubevirtMachine::read(serde_json::from_value(elsewhere).unwrap()).refused.unwrap();
        assert_eq!(refused.key(), Key { namespace: "infra".to_owned(), name: "w".to_owned() });
        assert_eq!(refused.networks[0].network, "infra/vlan10");
        assert_eq!(refused.kubevirt_machine(), Some(Key { namespace: "n".to_owned(), name: "w".to_owned() }));
        let mut other = object;
        other["status"]["conditions"][0]["message"] = "quota exceeded".into();
        assert_eq!(KubevirtMachine::read(serde_json::from_value(other).unwrap()).refused, None);
    }

    #[test]
    fn a_machine_has_its_virtual_machine_in_its_namespace_unless_the_template_names_another() {
        let is_elsewhere = |namespace: &str| {
            let template = json!({"virtualMachineTemplate": {"metadata": {"namespace": namespace}}});
            let object = json!({"metadata": {"namespace": "n", "name": "w", "uid": "m-1"}, "spec": template});
            KubevirtMachine::read(serde_json::from_value(object).unwrap()).has_vm_elsewhere
        };
        // The first value is the machine's own namespace, and no other value is a valid name of a namespace.
        for namespace in ["n", "", "../../x", "a?b", "A", "a.b"] {
            assert!(!is_elsewhere(namespace), "{namespace:?}");
        }
        assert!(is_elsewhere("infra"));
    }

    #[test]
    fn a_machine_whose_virtual_machine_is_in_another_namespace_records_nothing() {
        let records = |namespace: &str| {
            let object = json!({
                "metadata": {"namespace": "n", "name": "w", "uid": "m-1", "annotations": {
                    "kubevirt.cluster.x-k8s.io/allocated-ip-eno101": "10.0.0.8/16",
                }},
                "spec": {"virtualMachineTemplate": {"metadata": {"namespace": namespace}}},
            });
            recorded_addresses(&serde_json::from_value(object).unwrap())
        };
        assert_eq!(records("n"), ["10.0.0.8".parse().unwrap()].into());
        assert_eq!(records("infra"), [].into());
    }
}
