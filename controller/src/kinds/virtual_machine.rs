//! The members of a VirtualMachine of KubeVirt that the controller reads, and the labels that capk and HyperShift set
//! on a VirtualMachine.
//!
//! Reading never fails. KubeVirt validates its own objects, so a member with an unexpected structure counts as absent.
//!
//! Sources: `staging/src/kubevirt.io/api/core/v1/schema.go` of kubevirt/kubevirt; `pkg/kubevirt/machine.go` of
//! kubernetes-sigs/cluster-api-provider-kubevirt; `hypershift-operator/controllers/nodepool/kubevirt` of
//! openshift/hypershift.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

use glowplug::diagnostic::Diagnostic;
use glowplug::formats::{Meaning, read_network};
use glowplug::host::address::parse_address;
use glowplug::host::claim::is_object_name;
use glowplug::host::pool::Pool;
use glowplug::host::records::{ANNOTATION_PREFIX, NETWORK_PREFIX};
use glowplug::network::{Family, parse_mac_address};
use ipnetwork::IpNetwork;
use k8s_openapi::ByteString;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{ApiResource, GroupVersionKind};
use pnet_base::MacAddr;
use serde_json::Value;

use crate::cluster::key::Key;
use crate::cluster::object::Object;
use crate::kinds::network_data::{
    ISSUED, NETWORK_DATA_LABEL, REPLACED_ANNOTATION, REQUESTED, VM_ANNOTATION, is_of_controller,
};

/// Label of a VirtualMachine with the name of its KubevirtMachine. capk sets the label.
pub const MACHINE_NAME_LABEL: &str = "capk.cluster.x-k8s.io/kubevirt-machine-name";
/// Label of a VirtualMachine with the namespace of its KubevirtMachine. capk sets the label.
pub const MACHINE_NAMESPACE_LABEL: &str = "capk.cluster.x-k8s.io/kubevirt-machine-namespace";
/// Label of a VirtualMachine with the name of its NodePool. HyperShift sets the label.
pub const NODE_POOL_LABEL: &str = "hypershift.openshift.io/nodepool-name";
/// Label of a namespace whose VirtualMachines the webhook must receive. The controller sets the label to `"true"`.
pub const MACHINES_LABEL: &str = "ipam.glowplug.dev/machines";
/// Annotation of the template of a VirtualMachine with requested addresses, as JSON. A key is KubeVirt's name of an
/// interface, a value is a list of addresses. Example: `{"iface1": ["192.168.1.20/24"]}`.
pub const ADDRESSES_ANNOTATION: &str = "network.kubevirt.io/addresses";
/// Label of the template of a VirtualMachine: the instance starts only when every interface has a MAC address. The
/// webhook sets the label for the machines of a MACPool.
pub const MAC_ADDRESSES_LABEL: &str = "ipam.glowplug.dev/mac-addresses";
/// Annotation of the template of a VirtualMachine with the MAC address of each interface, by KubeVirt's names of the
/// interfaces, as JSON. The leader writes the annotation. The webhook then writes the addresses into the interfaces and
/// removes the annotation.
pub const ASSIGNED_ANNOTATION: &str = "ipam.glowplug.dev/assigned-mac-addresses";
/// Annotation of a VirtualMachine that keeps its own network, although a pool selects it. The value is the UID of the
/// VirtualMachine.
pub const LEFT_ALONE_ANNOTATION: &str = "ipam.glowplug.dev/left-alone";
/// Label of a namespace with VirtualMachines that a MACPool serves. The controller sets the label to `"true"`.
pub const MAC_POOLS_LABEL: &str = "ipam.glowplug.dev/mac-pools";
/// Key of the document in the Secret of a machine. KubeVirt reads this key.
pub const NETWORK_DATA_KEY: &str = "networkdata";

/// A VirtualMachine.
#[derive(Clone, Debug, PartialEq)]
pub struct VirtualMachine {
    /// Metadata, without managed fields.
    pub metadata: ObjectMeta,
    /// Networks that have an interface, in the order of the interfaces.
    pub networks: Vec<Attachment>,
    /// The first cloud-init volume: KubeVirt fills only this volume. `None`: the machine has no such volume.
    pub cloud_init: Option<CloudInit>,
    /// Addresses that the template requests, or the reason why the annotation is invalid.
    pub requested: Result<RequestedAddresses, String>,
    /// Whether the instance waits for the MAC address of an interface.
    pub awaits_mac_addresses: bool,
    /// The marks in the template.
    pub mark: Mark,
    /// Whether the machine waits for a guest that migrates from another cluster. Such a guest runs already, with an
    /// address of its own.
    pub awaits_migration: bool,
    /// The annotations of the template that record addresses.
    pub template_records: BTreeMap<String, String>,
}

/// The marks of network data in the metadata of a template or of an instance.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Mark {
    /// Value of the label [`NETWORK_DATA_LABEL`]. `None`: no label.
    pub label: Option<String>,
    /// Value of the annotation [`VM_ANNOTATION`]. `None`: no annotation.
    pub vm: Option<String>,
}

/// The requested addresses by KubeVirt's name of the interface, at most one of each family. The longest prefix length
/// (/32, /128) means that the request has no prefix length.
pub type RequestedAddresses = BTreeMap<String, Vec<IpNetwork>>;

/// The attachment of a machine to a network.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Attachment {
    /// KubeVirt's name of the interface and of its network. The guest does not see this name.
    pub name: String,
    /// Index of the interface in `domain.devices.interfaces`, from 0.
    pub index: usize,
    /// The network in the notation of [`Pool::network`]: `namespace/name` of the network attachment definition, or
    /// `default` for the network of pods.
    pub network: String,
    /// `acpiIndex` of the interface, from which the guest derives the name of the interface. `None`: not set.
    pub acpi_index: Option<u32>,
    /// MAC address of the interface. `None`: neither KubeVirt nor KubeMacPool has chosen an address yet.
    pub mac: Option<MacAddr>,
    /// Whether the interface is an SR-IOV function of a NIC of the node. KubeVirt gives such an interface no
    /// `acpiIndex`, so the guest can identify it only by its MAC address.
    pub is_sriov: bool,
}

/// The volume from which the guest reads its configuration.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct CloudInit {
    /// Format of the volume.
    pub kind: CloudInitKind,
    /// Index of the volume in `spec.template.spec.volumes`, from 0.
    pub volume: usize,
    /// The network data of the volume.
    pub network_data: NetworkData,
}

/// The formats of a cloud-init volume.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum CloudInitKind {
    /// `cloudInitConfigDrive`: the guest reads `network_data.json`.
    ConfigDrive,
    /// `cloudInitNoCloud`: the guest reads `network-config`.
    NoCloud,
}

/// The network data of a cloud-init volume.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum NetworkData {
    /// The volume has no network data.
    None,
    /// The network data is in this Secret, in the namespace of the machine.
    Secret(String),
    /// The network data is in the VirtualMachine itself, with these addresses.
    Inline(Vec<IpAddr>),
}

/// API resource of the kind `VirtualMachine` of KubeVirt.
#[must_use]
pub fn virtual_machines() -> ApiResource {
    resource("kubevirt.io", "v1", "VirtualMachine", "virtualmachines")
}

/// API resource of the kind `VirtualMachineInstance` of KubeVirt: a running guest.
#[must_use]
pub fn instances() -> ApiResource {
    resource("kubevirt.io", "v1", "VirtualMachineInstance", "virtualmachineinstances")
}

/// API resource of the kind `KubevirtMachine` of capk.
#[must_use]
pub fn kubevirt_machines() -> ApiResource {
    resource("infrastructure.cluster.x-k8s.io", "v1alpha1", "KubevirtMachine", "kubevirtmachines")
}

/// API resource of the kind `NodePool` of HyperShift.
#[must_use]
pub fn node_pools() -> ApiResource {
    resource("hypershift.openshift.io", "v1beta1", "NodePool", "nodepools")
}

/// API resource of the kind `HostedCluster` of HyperShift.
#[must_use]
pub fn hosted_clusters() -> ApiResource {
    resource("hypershift.openshift.io", "v1beta1", "HostedCluster", "hostedclusters")
}

fn resource(group: &str, version: &str, kind: &str, plural: &str) -> ApiResource {
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), plural)
}

// === impl VirtualMachine ===

impl VirtualMachine {
    /// Reads a VirtualMachine.
    #[must_use]
    pub fn read(object: Object) -> Self {
        let metadata = ObjectMeta { managed_fields: None, ..object.metadata };
        let template = &object.data["spec"]["template"];
        let spec = &template["spec"];
        let networks = attachments(spec, metadata.namespace.as_deref().unwrap_or_default());
        let cloud_init = CloudInit::of(spec);
        let annotation = &template["metadata"]["annotations"][ADDRESSES_ANNOTATION];
        let requested = annotation.as_str().map_or_else(|| Ok(BTreeMap::new()), requested_addresses);
        Self {
            metadata,
            networks,
            cloud_init,
            requested,
            awaits_mac_addresses: awaits_mac_addresses(template),
            mark: Mark::read(&template["metadata"]),
            awaits_migration: object.data["spec"]["runStrategy"] == "WaitAsReceiver",
            template_records: records_of(&template["metadata"]["annotations"]),
        }
    }

    /// Returns the namespace and name of the VirtualMachine.
    #[must_use]
    pub fn key(&self) -> Key {
        Key::of(&self.metadata)
    }

    /// Returns the valid names of objects in [`REPLACED_ANNOTATION`], the newest name last. A user can write any string
    /// into the annotation, and the names become parts of paths of requests.
    pub(crate) fn replaced(&self) -> impl DoubleEndedIterator<Item = &str> {
        let names = self.metadata.annotations.as_ref().and_then(|all| all.get(REPLACED_ANNOTATION));
        let is_name = |name: &&str| is_object_name(name);
        names.map(String::as_str).unwrap_or_default().split(',').filter(is_name)
    }

    /// Returns the value of a label. `None`: the VirtualMachine does not have the label.
    #[must_use]
    pub fn label(&self, name: &str) -> Option<&str> {
        self.metadata.labels.as_ref()?.get(name).map(String::as_str)
    }

    /// Whether the leader has noted that the machine keeps its own network, because its guest was already running when
    /// its pools first selected it. The note has the UID of this VirtualMachine, so a copy with the note is not left
    /// alone.
    #[must_use]
    pub fn is_left_alone(&self) -> bool {
        let noted = self.metadata.annotations.as_ref().and_then(|all| all.get(LEFT_ALONE_ANNOTATION));
        noted.is_some() && noted == self.metadata.uid.as_ref()
    }

    /// Returns the namespace and name of the KubevirtMachine, see [`kubevirt_machine_of`].
    #[must_use]
    pub fn kubevirt_machine(&self) -> Option<Key> {
        kubevirt_machine_of(&self.metadata)
    }

    /// Returns the name of the Secret with the network data of the machine. `None`: no Secret has this data, or its
    /// name is not a name that the controller gives to Secrets of this machine. The Secret is in the namespace of the
    /// machine.
    #[must_use]
    pub fn secret(&self) -> Option<&str> {
        let name = self.metadata.name.as_deref().unwrap_or_default();
        self.cloud_init.as_ref().and_then(|volume| volume.network_data.secret_of(name))
    }
}

/// Returns the annotations that record addresses.
fn records_of(annotations: &Value) -> BTreeMap<String, String> {
    let is_record = |name: &str| [ANNOTATION_PREFIX, NETWORK_PREFIX].iter().any(|prefix| name.starts_with(prefix));
    let records = annotations.as_object().into_iter().flatten().filter(|(name, _)| is_record(name));
    records.filter_map(|(name, value)| Some((name.clone(), value.as_str()?.to_owned()))).collect()
}

/// Returns the namespace and name of a KubevirtMachine, from the labels of its VirtualMachine or of its instance. capk
/// writes the labels, and the KubevirtMachine may be in another cluster. `None`: the object does not have these labels.
#[must_use]
pub fn kubevirt_machine_of(metadata: &ObjectMeta) -> Option<Key> {
    let label = |name: &str| metadata.labels.as_ref()?.get(name).cloned();
    Some(Key { namespace: label(MACHINE_NAMESPACE_LABEL)?, name: label(MACHINE_NAME_LABEL)? })
}

/// Returns the networks of a machine or of an instance in `namespace` that have an interface.
pub(super) fn attachments(spec: &Value, namespace: &str) -> Vec<Attachment> {
    let networks = by_name(&spec["networks"]);
    let network_of = |name: &str| network_of(networks.get(name)?, namespace);
    let attachment = |(index, interface): (usize, &Value)| {
        let name = interface["name"].as_str()?;
        Some(Attachment {
            name: name.to_owned(),
            index,
            network: network_of(name)?,
            acpi_index: interface["acpiIndex"]
                .as_u64()
                .and_then(|index| index.try_into().ok())
                .filter(|index| *index > 0),
            mac: interface["macAddress"].as_str().and_then(read_mac_address),
            is_sriov: interface["sriov"].is_object(),
        })
    };
    // KubeVirt unplugs an interface whose state is `absent`.
    let present = |(_, interface): &(usize, &Value)| interface["state"] != "absent";
    items(&spec["domain"]["devices"]["interfaces"]).enumerate().filter(present).filter_map(attachment).collect()
}

/// Returns the network of an item of `networks` of a machine in `namespace`.
pub(super) fn network_of(network: &Value, namespace: &str) -> Option<String> {
    match network["multus"]["networkName"].as_str().filter(|network| !network.is_empty()) {
        Some(network) if network.contains('/') => Some(network.to_owned()),
        Some(network) => Some(format!("{namespace}/{network}")),
        None => network["pod"].is_object().then(|| Pool::DEFAULT_NETWORK.to_owned()),
    }
}

/// Returns the networks of a machine in `namespace`, including networks without an interface. The result is a list,
/// because a list of one network needs less memory than a set.
pub(crate) fn networks(spec: &Value, namespace: &str) -> Box<[String]> {
    let networks: BTreeSet<String> =
        items(&spec["networks"]).filter_map(|network| network_of(network, namespace)).collect();
    networks.into_iter().collect()
}

/// Reads the annotation [`ADDRESSES_ANNOTATION`].
///
/// # Errors
///
/// The text is invalid, or has two addresses of one family for an interface.
pub fn requested_addresses(text: &str) -> Result<RequestedAddresses, String> {
    let at = || format!("annotation {ADDRESSES_ANNOTATION}");
    let Ok(lists) = serde_json::from_str::<BTreeMap<String, Vec<String>>>(text) else {
        let expected = r#"interfaces with their addresses, as {"iface1": ["192.168.1.20/24"]}"#;
        return Err(Diagnostic::error(at(), "invalid value", text, expected).to_string());
    };
    let mut requested = RequestedAddresses::new();
    for (interface, texts) in lists {
        let addresses = requested.entry(interface).or_default();
        for text in texts {
            let (address, length) =
                text.split_once('/').map_or((&*text, None), |(address, length)| (address, Some(length)));
            let address = parse_address(address).map_err(|error| error.at(at()).to_string())?;
            let length = length.map_or(Some(Family::of(address).bits()), |length| length.parse().ok());
            let Some(network) = length.and_then(|length| IpNetwork::new(address, length).ok()) else {
                return Err(
                    Diagnostic::error(at(), "invalid prefix length", &text, "as in 192.168.1.20/24").to_string()
                );
            };
            if addresses.iter().any(|other| Family::of(other.ip()) == Family::of(address)) {
                let expected = "at most one address of each family for an interface";
                return Err(Diagnostic::error(at(), "second address", &text, expected).to_string());
            }
            addresses.push(network);
        }
    }
    Ok(requested)
}

/// Returns KubeVirt's name and the MAC address of each interface in the specification of an instance.
pub(crate) fn interfaces(spec: &Value) -> impl Iterator<Item = (&str, Option<&str>)> {
    items(&spec["domain"]["devices"]["interfaces"]).map(|interface| {
        let address = interface["macAddress"].as_str().filter(|address| !address.is_empty());
        (interface["name"].as_str().unwrap_or_default(), address)
    })
}

/// Parses a MAC address in an object of KubeVirt. KubeVirt accepts the notations of Go's `net.ParseMAC`: pairs of hex
/// digits, or groups of four, such as `0200.0010.0000`.
pub(crate) fn read_mac_address(text: &str) -> Option<MacAddr> {
    let groups: Vec<Option<(&str, &str)>> =
        text.split('.').map(|group| group.split_at_checked(2).filter(|_| group.len() == 4)).collect();
    match groups[..] {
        [Some((a, b)), Some((c, d)), Some((e, f))] => parse_mac_address(&[a, b, c, d, e, f].join(":")),
        _ => parse_mac_address(text),
    }
}

/// Whether the instance of a template starts only when every interface has a MAC address.
pub(crate) fn requires_mac_addresses(template: &Value) -> bool {
    template["metadata"]["labels"].get(MAC_ADDRESSES_LABEL).is_some()
}

/// Whether the instance of a template waits for the MAC address of an interface.
pub(crate) fn awaits_mac_addresses(template: &Value) -> bool {
    requires_mac_addresses(template) && interfaces(&template["spec"]).any(|(_, address)| address.is_none())
}

/// Returns the items of a list. A value that is not a list has no items.
pub(crate) fn items(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten()
}

/// Returns the items of a list by their names. A user can write any number of items, and repeat a name: the first item
/// with a name counts.
pub(crate) fn by_name(list: &Value) -> HashMap<&str, &Value> {
    let mut all = HashMap::new();
    for item in items(list) {
        if let Some(name) = item["name"].as_str() {
            all.entry(name).or_insert(item);
        }
    }
    all
}

/// Returns the addresses of each link that a guest reads from its network data. A document that no guest can read has no
/// links.
pub(crate) fn addresses_of_links(document: &[u8]) -> Vec<Vec<IpAddr>> {
    let Meaning::Network(network) = read_network(document).meaning else { return Vec::new() };
    let of_link = network.links().iter().map(|link| {
        let ipv4 = link.ipv4.addresses.iter().map(|address| IpAddr::V4(address.ip()));
        ipv4.chain(link.ipv6.addresses.iter().map(|address| IpAddr::V6(address.ip()))).collect()
    });
    of_link.collect()
}

/// Returns the addresses that a guest reads from its network data. A document that no guest can read has no addresses.
pub(crate) fn addresses_in(document: &[u8]) -> Vec<IpAddr> {
    let mut addresses: Vec<IpAddr> = addresses_of_links(document).into_iter().flatten().collect();
    // Saves memory: the addresses are kept for each machine and instance with network data of its own.
    addresses.shrink_to_fit();
    addresses
}

// === impl Mark ===

impl Mark {
    /// Reads the marks in the metadata of a template or of an instance.
    #[must_use]
    pub fn read(metadata: &Value) -> Self {
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let (labels, annotations) = (&metadata["labels"], &metadata["annotations"]);
        Self { label: text(&labels[NETWORK_DATA_LABEL]), vm: text(&annotations[VM_ANNOTATION]) }
    }

    /// Whether the metadata has no mark.
    #[must_use]
    pub fn is_absent(&self) -> bool {
        self.label.is_none() && self.vm.is_none()
    }

    /// Whether the label requests a Secret with a new name.
    #[must_use]
    pub fn is_request(&self) -> bool {
        self.label.as_deref().is_some_and(|label| label.starts_with(REQUESTED))
    }

    /// Whether the marks belong to network data of the VirtualMachine `vm`.
    #[must_use]
    pub fn is_of(&self, vm: &Key) -> bool {
        self.label.as_deref() == Some(ISSUED) && self.vm.as_deref() == Some(vm.to_string().as_str())
    }
}

// === impl NetworkData ===

impl NetworkData {
    /// Returns the name of the Secret, if the name has the form of the controller for the VirtualMachine `vm`.
    #[must_use]
    pub fn secret_of(&self, vm: &str) -> Option<&str> {
        match self {
            Self::Secret(name) if is_of_controller(name, vm) => Some(name),
            _ => None,
        }
    }
}

// === impl CloudInit ===

impl CloudInit {
    /// Reads the first cloud-init volume in the specification of a machine. `None`: the machine has no such volume.
    #[must_use]
    pub fn of(spec: &Value) -> Option<Self> {
        items(&spec["volumes"]).enumerate().find_map(|(index, volume)| Self::read(index, volume))
    }

    fn read(volume: usize, object: &Value) -> Option<Self> {
        let kinds = [CloudInitKind::ConfigDrive, CloudInitKind::NoCloud];
        let (kind, source) =
            kinds.into_iter().map(|kind| (kind, &object[kind.member()])).find(|(_, source)| source.is_object())?;
        let text = |name: &str| source[name].as_str().filter(|text| !text.is_empty());
        let network_data = match (&source["networkDataSecretRef"], text("networkData"), text("networkDataBase64")) {
            (Value::Object(secret), _, _) => {
                let name = secret.get("name").and_then(Value::as_str);
                NetworkData::Secret(name.unwrap_or_default().to_owned())
            }
            (_, Some(document), _) => NetworkData::Inline(addresses_in(document.as_bytes())),
            (_, None, Some(encoded)) => {
                let document = serde_json::from_value::<ByteString>(encoded.into());
                NetworkData::Inline(document.map(|document| addresses_in(&document.0)).unwrap_or_default())
            }
            (_, None, None) => NetworkData::None,
        };
        Some(Self { kind, volume, network_data })
    }
}

// === impl CloudInitKind ===

impl CloudInitKind {
    /// Returns the name of the volume member for a source of this kind.
    #[must_use]
    pub fn member(self) -> &'static str {
        match self {
            Self::ConfigDrive => "cloudInitConfigDrive",
            Self::NoCloud => "cloudInitNoCloud",
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn machine(spec: &Value) -> VirtualMachine {
        let object =
            json!({"metadata": {"namespace": "clusters-c1", "name": "w-0"}, "spec": {"template": {"spec": spec}}});
        VirtualMachine::read(serde_json::from_value(object).unwrap())
    }

    fn cloud_init(volumes: &Value) -> Option<CloudInit> {
        machine(&json!({"volumes": volumes})).cloud_init
    }

    #[test]
    fn an_interface_is_attached_to_the_network_of_its_name() {
        let interfaces = json!([
            {"name": "default", "masquerade": {}},
            {"name": "iface1_infra-vlan10", "bridge": {}, "acpiIndex": 101, "macAddress": "02:00:00:00:00:01"},
            {"name": "storage", "bridge": {}, "acpiIndex": 0, "macAddress": ""},
            {"name": "without-network", "bridge": {}},
        ]);
        let networks = json!([
            {"name": "storage", "multus": {"networkName": "storage"}},
            {"name": "iface1_infra-vlan10", "multus": {"networkName": "infra/vlan10"}},
            {"name": "without-interface", "multus": {"networkName": "infra/vlan20"}},
            {"name": "default", "pod": {}},
        ]);
        let attachment = |index, name: &str, network: &str| Attachment {
            name: name.to_owned(),
            index,
            network: network.to_owned(),
            acpi_index: None,
            mac: None,
            is_sriov: false,
        };
        let spec = json!({"domain": {"devices": {"interfaces": interfaces}}, "networks": networks});
        let expected = [
            attachment(0, "default", "default"),
            Attachment {
                acpi_index: Some(101),
                mac: Some(MacAddr::new(2, 0, 0, 0, 0, 1)),
                ..attachment(1, "iface1_infra-vlan10", "infra/vlan10")
            },
            attachment(2, "storage", "clusters-c1/storage"),
        ];
        assert_eq!(machine(&spec).networks, expected);
    }

    #[test]
    fn a_mac_address_has_every_notation_that_kubevirt_accepts() {
        let address = MacAddr::new(2, 0, 0, 0x1a, 0, 0);
        for text in ["02:00:00:1a:00:00", "02-00-00-1A-00-00", "0200.001a.0000", "0200.001A.0000"] {
            assert_eq!(read_mac_address(text), Some(address), "{text}");
        }
        for text in [
            "",
            "0200.001a",
            "0200.001a.00",
            "0200.001a.000é",
            "0200.001a.0000.0000",
            "0200-001a-0000",
            "02:0.001a.0000",
            "0100.5e00.0001",
        ] {
            assert_eq!(read_mac_address(text), None, "{text}");
        }
    }

    #[test]
    fn only_the_first_cloud_init_volume_counts() {
        let volumes = json!([
            {"name": "root", "dataVolume": {"name": "root"}},
            {"name": "cloudinitvolume", "cloudInitConfigDrive": {"secretRef": {"name": "u-userdata"}}},
            {"name": "second", "cloudInitNoCloud": {"networkData": "x"}},
        ]);
        let expected = CloudInit { kind: CloudInitKind::ConfigDrive, volume: 1, network_data: NetworkData::None };
        assert_eq!(cloud_init(&volumes), Some(expected));
        assert_eq!(cloud_init(&json!([{"name": "root", "dataVolume": {"name": "root"}}])), None);
    }

    #[test]
    fn network_data_is_in_a_secret_or_in_the_object_or_absent() {
        let network_data = |source: Value| cloud_init(&json!([{"cloudInitNoCloud": source}])).unwrap().network_data;
        assert_eq!(network_data(json!({"userData": "x"})), NetworkData::None);
        assert_eq!(network_data(json!({"networkData": "", "networkDataSecretRef": null})), NetworkData::None);
        assert_eq!(network_data(json!({"networkData": "x"})), NetworkData::Inline(Vec::new()));
        assert_eq!(network_data(json!({"networkDataBase64": "eA=="})), NetworkData::Inline(Vec::new()));
        let text = r#"{"version": 2, "ethernets": {"eno101": {"addresses": ["10.0.0.8/24", "fd00::8/64"]}}}"#;
        let addresses = ["10.0.0.8", "fd00::8"].map(|text| text.parse().unwrap()).to_vec();
        assert_eq!(network_data(json!({"networkData": text})), NetworkData::Inline(addresses.clone()));
        let encoded = serde_json::to_value(ByteString(text.as_bytes().to_vec())).unwrap();
        assert_eq!(network_data(json!({"networkDataBase64": encoded})), NetworkData::Inline(addresses));
        assert_eq!(network_data(json!({"networkDataSecretRef": {"name": "s"}})), NetworkData::Secret("s".to_owned()));
        assert_eq!(network_data(json!({"networkDataSecretRef": {}})), NetworkData::Secret(String::new()));
    }

    #[test]
    fn members_of_another_form_count_as_absent() {
        for spec in [
            json!(null),
            json!([]),
            json!({"networks": 1, "volumes": {}, "domain": {"devices": {"interfaces": {"name": "x"}}}}),
            json!({"networks": ["x", {"name": 1, "pod": {}}], "volumes": ["x", {"cloudInitConfigDrive": true}]}),
            json!({"networks": [{"name": "x", "multus": "y"}], "domain": {"devices": {"interfaces": [{"name": "x"}]}}}),
        ] {
            let machine = machine(&spec);
            assert_eq!((machine.networks, machine.cloud_init), (Vec::new(), None), "{spec}");
        }
    }

    #[test]
    fn the_labels_of_capk_name_the_kubevirt_machine() {
        let of = |labels: Value| {
            let object = json!({"metadata": {"namespace": "n", "name": "w-0", "labels": labels}});
            VirtualMachine::read(serde_json::from_value(object).unwrap()).kubevirt_machine()
        };
        let key = Key { namespace: "clusters-c1".to_owned(), name: "w-0".to_owned() };
        let labels = json!({(MACHINE_NAME_LABEL): "w-0", (MACHINE_NAMESPACE_LABEL): "clusters-c1"});
        assert_eq!(of(labels), Some(key));
        assert_eq!(of(json!({(MACHINE_NAME_LABEL): "w-0"})), None);
        assert_eq!(of(json!({})), None);
    }

    #[test]
    fn a_secret_of_the_machine_has_a_name_of_the_controller() {
        let secret = |name: &str| {
            let volume = json!({"cloudInitNoCloud": {"networkDataSecretRef": {"name": name}}});
            machine(&json!({"volumes": [volume]})).secret().map(str::to_owned)
        };
        for name in ["w-0-networkdata", "w-0-networkdata-abcdefghijklmnop", "other-networkdata-abcdefghijklmnop"] {
            assert_eq!(secret(name).as_deref(), Some(name));
        }
        assert_eq!([secret("other-networkdata"), secret("mine"), secret("")], [None, None, None]);
        assert_eq!(machine(&json!({})).secret(), None);
    }

    #[test]
    fn an_interface_that_is_being_unplugged_does_not_count() {
        let interfaces = json!([{"name": "a", "state": "absent"}, {"name": "b", "sriov": {}, "state": "up"}]);
        let networks = json!([{"name": "a", "pod": {}}, {"name": "b", "multus": {"networkName": "n/b"}}]);
        let machine = machine(&json!({"domain": {"devices": {"interfaces": interfaces}}, "networks": networks}));
        let kept: Vec<_> = machine.networks.iter().map(|it| (it.index, it.name.as_str(), it.is_sriov)).collect();
        assert_eq!(kept, [(1, "b", true)]);
    }
}
