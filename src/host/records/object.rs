//! Reads one object: the machine to which the object belongs, and the addresses that the object records.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};

use ipnetwork::IpNetwork;
use jiff::Timestamp;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;

use super::hold::{Hold, Member, Spot};
use super::list;
use super::names::{ANNOTATION_PREFIX, NETWORK_PREFIX, NODE_POOL_ANNOTATION};
use super::written::{Interface, Item, Metadata, Spec, Status, collect_networks};
use crate::diagnostic::{Diagnostic, FieldPath, Severity};
use crate::host::address::parse_interface_address;
use crate::host::claim::{Claimant, is_object_name};
use crate::host::pool::Pool;
use crate::network::{Family, InterfaceName};

/// A diagnostic about an object or a record.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct ObjectDiagnostic {
    /// Name of the list with the object.
    pub source: String,
    /// The diagnostic.
    pub diagnostic: Diagnostic,
    /// Claimant of the record. `None` if the claimant is unknown.
    pub claimant: Option<Claimant>,
    /// Addresses that the object names, but that are missing from [`Inventory::records`](super::Inventory::records)
    /// because of the diagnostic. A machine may use these addresses.
    pub addresses: Vec<IpAddr>,
}

/// Kind of an object.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) enum ObjectKind {
    /// `KubevirtMachine`, of Cluster API's provider.
    Machine,
    /// `VirtualMachine`, of KubeVirt.
    VirtualMachine,
    /// `VirtualMachineInstance`, of KubeVirt: a running guest.
    Instance,
}

/// The members of an object that matter for records.
#[derive(Debug)]
pub(super) struct Object {
    pub(super) kind: ObjectKind,
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) uid: String,
    pub(super) created: Option<Timestamp>,
    pub(super) is_being_deleted: bool,
    pub(super) node_pool: Option<String>,
    /// Networks that the object attaches its machine to, as pools spell them.
    pub(super) attachments: Vec<String>,
    /// Addresses that the running guest of an instance reports.
    pub(super) reports: Vec<Reported>,
    /// Namespace and name of the KubevirtMachine that the labels name: see [`Labels`](super::labels::Labels).
    pub(super) machine: Option<Box<(String, String)>>,
    /// Namespace in which capk creates the VirtualMachine of a KubevirtMachine. `None`: unknown, and for other kinds.
    pub(super) vm_namespace: Option<String>,
    /// Whether capk creates the VirtualMachine of a KubevirtMachine in the cluster of an `infraClusterSecretRef`.
    pub(super) is_in_infra_cluster: bool,
    /// UID and name of the VirtualMachine that owns this object.
    pub(super) owner: Option<Box<(String, String)>>,
    pub(super) holds: Vec<Hold>,
    /// Records of the object that cannot be read.
    pub(super) doubts: Vec<Doubt>,
}

/// Addresses that a guest reports for one of its interfaces.
#[derive(Debug)]
pub(super) struct Reported {
    /// Network of the interface, spelled as in pools. `None` if the instance does not list the network of this
    /// interface.
    pub(super) network: Option<String>,
    pub(super) addresses: Vec<IpAddr>,
    /// Index of the list among the lists that were read.
    pub(super) source: usize,
    pub(super) path: String,
}

/// A record that cannot be read, or that contradicts another record.
#[derive(Clone, Debug)]
pub(super) struct Doubt {
    /// Index of the diagnostic about the record.
    pub(super) diagnostic: usize,
    pub(super) interface: InterfaceName,
}

// Labels with which capk (Cluster API's provider for KubeVirt) names the KubevirtMachine of a VirtualMachine. The two
// objects may be in different clusters, so there is no ownerReference.
const MACHINE_NAMESPACE: &str = "capk.cluster.x-k8s.io/kubevirt-machine-namespace";
const MACHINE_NAME: &str = "capk.cluster.x-k8s.io/kubevirt-machine-name";

/// Reader of one object.
pub(super) struct ObjectReader<'a> {
    /// Index of the object in the list. `None` if the input is a single object.
    pub(super) item: Option<usize>,
    /// Index of the list among the lists that were read, and the name of the list.
    pub(super) source: (usize, &'a str),
    pub(super) diagnostics: &'a mut Vec<ObjectDiagnostic>,
    pub(super) doubts: Vec<Doubt>,
    /// Number of addresses of the object that can still count.
    pub(super) left: usize,
    /// Number of addresses that do not count, because the object has too many.
    pub(super) cut: usize,
    /// Number of mistakes in the object.
    pub(super) mistakes: usize,
}

/// Maximum number of addresses of one object that count. A user can write any number of addresses into an object, and
/// each address costs every reader of the records time and memory.
pub(super) const MAX_ADDRESSES: usize = 256;

/// Maximum number of mistakes of one object that get a diagnostic. A user can write any number of unreadable records
/// into an object, and each diagnostic costs every reader of the records time and memory.
const MAX_DIAGNOSTICS: usize = 32;

/// The expected value of a record, for messages.
const EXPECTED: &str = "a list of ip/prefix";

// === impl ObjectKind ===

impl ObjectKind {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Machine => "KubevirtMachine",
            Self::VirtualMachine => "VirtualMachine",
            Self::Instance => "VirtualMachineInstance",
        }
    }
}

// === impl Object ===

impl Object {
    /// Merges another version of the same object into this object. The lists of the two versions may have been fetched
    /// at different times, so the contents of both versions count.
    pub(super) fn join(&mut self, other: &mut Self) {
        let is_new = |reported: &Reported| !self.reports.iter().any(|own| own.is_same(reported));
        let reports: Vec<Reported> = other.reports.drain(..).filter(is_new).collect();
        self.reports.extend(reports);
        self.holds.append(&mut other.holds);
        self.doubts.append(&mut other.doubts);
        self.attachments.append(&mut other.attachments);
        self.is_being_deleted |= other.is_being_deleted;
        self.created = self.created.or(other.created);
        self.node_pool = self.node_pool.take().or(other.node_pool.take());
        self.machine = self.machine.take().or(other.machine.take());
        self.vm_namespace = self.vm_namespace.take().or(other.vm_namespace.take());
        self.is_in_infra_cluster |= other.is_in_infra_cluster;
        self.owner = self.owner.take().or(other.owner.take());
    }

    /// Namespace and name of the object.
    pub(super) fn name(&self) -> (&str, &str) {
        (&self.namespace, &self.name)
    }

    /// Namespace and name of the KubevirtMachine that the labels of a VirtualMachine or an instance name.
    pub(super) fn labelled(&self) -> Option<(&str, &str)> {
        let named = self.machine.as_deref().filter(|_| self.kind != ObjectKind::Machine);
        named.map(|(namespace, name)| (namespace.as_str(), name.as_str()))
    }
}

// === impl Reported ===

impl Reported {
    fn is_same(&self, other: &Self) -> bool {
        self.network == other.network && self.addresses == other.addresses
    }
}

// === impl ObjectReader ===

impl ObjectReader<'_> {
    /// Reads the text of an object. Returns `None` and adds a diagnostic if the machine of the object cannot be
    /// identified.
    pub(super) fn object(&mut self, text: &str) -> Option<Object> {
        match serde_json::from_str(text) {
            Ok(item) => self.item(item),
            Err(error) => self.invalid(&error, text),
        }
    }

    /// Reads an object that is already parsed, as [`ObjectReader::object`] reads its text.
    pub(super) fn value(&mut self, object: &Value) -> Option<Object> {
        match Item::deserialize(object) {
            Ok(item) => self.item(item),
            Err(error) => self.invalid(&error, &object.to_string()),
        }
    }

    fn invalid(&mut self, error: &serde_json::Error, text: &str) -> Option<Object> {
        let items = FieldPath::Document.field("items");
        let path = self.item.map_or(FieldPath::Document, |item| items.index(item));
        let expected = "an object as Kubernetes writes it";
        self.tell(Diagnostic::error(path, "invalid object", list::message(error), expected), addresses_in(text));
        None
    }

    fn item(&mut self, item: Item) -> Option<Object> {
        let items = FieldPath::Document.field("items");
        let path = self.item.map_or(FieldPath::Document, |item| items.index(item));
        let Item { kind, mut metadata, spec, status } = item;
        let (spec, mut status) = (spec.unwrap_or_default(), status.unwrap_or_default());
        let namespace = metadata.namespace.as_deref().unwrap_or_default();
        let mut networks = BTreeMap::new();
        collect_networks(&spec, namespace, &mut networks);
        let vm_namespace = vm_namespace(&spec, namespace);
        let is_in_infra_cluster = spec.infra_cluster_secret_ref.is_some();
        let interfaces = status.interfaces.take().unwrap_or_default();
        let holds = self.holds(&metadata, &spec, status);
        let reports = self.reports(interfaces, &networks);
        let mut attachments: Vec<String> = networks.into_values().collect();
        attachments.sort_unstable();
        attachments.dedup();
        let node_pool = metadata.annotations.as_mut().and_then(|annotations| annotations.remove(NODE_POOL_ANNOTATION));
        let owner = metadata.owner_references.into_iter().flatten().find(|owner| owner.kind == "VirtualMachine");
        let owner = owner.filter(|owner| is_identity(&owner.uid) && is_identity(&owner.name));
        let owner = owner.map(|owner| Box::new((owner.uid, owner.name)));
        let machine =
            metadata.labels.and_then(|mut labels| labels.remove(MACHINE_NAMESPACE).zip(labels.remove(MACHINE_NAME)));
        let kind = match kind.as_deref() {
            Some("KubevirtMachine") => Ok(ObjectKind::Machine),
            Some("VirtualMachine") => Ok(ObjectKind::VirtualMachine),
            Some("VirtualMachineInstance") => Ok(ObjectKind::Instance),
            // A list with metadata only does not name the real kind, and KubeVirt's own server leaves the kind out.
            Some("PartialObjectMetadata") | None if owner.is_some() => Ok(ObjectKind::Instance),
            Some("PartialObjectMetadata") | None if machine.is_some() => Ok(ObjectKind::VirtualMachine),
            Some("PartialObjectMetadata") | None => Ok(ObjectKind::Machine),
            Some(other) => Err(Diagnostic::error(
                path.field("kind"),
                "unknown kind",
                other,
                "KubevirtMachine, VirtualMachine or VirtualMachineInstance",
            )),
        };
        let metadata_path = path.field("metadata");
        let identity = |name: &str, value: Option<String>| match value {
            Some(value) if is_identity(&value) => Ok(value),
            Some(value) => {
                let (path, expected) = (metadata_path.field(name), "letters, digits, '-' or '.', at most 253");
                Err(Diagnostic::error(path, "invalid value", &value, expected))
            }
            None => {
                let path = metadata_path.field(name);
                Err(Diagnostic::without_value(Severity::Error, path, "missing", "the object as it is in the cluster"))
            }
        };
        let object = identity("namespace", metadata.namespace).and_then(|namespace| {
            let name = identity("name", metadata.name)?;
            let uid = identity("uid", metadata.uid)?;
            Ok((kind?, namespace, name, uid))
        });
        match object {
            Ok((kind, namespace, name, uid)) => {
                let created = metadata.creation_timestamp.as_deref().and_then(|time| time.parse().ok());
                let is_being_deleted = metadata.deletion_timestamp.is_some();
                // Invalid labels are ignored.
                let machine = machine.filter(|(namespace, name)| is_identity(namespace) && is_identity(name));
                let machine = machine.map(Box::new);
                let vm_namespace = vm_namespace.filter(|_| kind == ObjectKind::Machine);
                let doubts = std::mem::take(&mut self.doubts);
                Some(Object {
                    kind,
                    namespace,
                    name,
                    uid,
                    created,
                    is_being_deleted,
                    node_pool,
                    attachments,
                    reports,
                    machine,
                    vm_namespace,
                    is_in_infra_cluster,
                    owner,
                    holds,
                    doubts,
                })
            }
            Err(diagnostic) => {
                let recorded = holds.iter().flat_map(|hold| &hold.addresses).map(IpNetwork::ip);
                let addresses =
                    recorded.chain(reports.iter().flat_map(|reported| reported.addresses.clone())).collect();
                self.tell(diagnostic, addresses);
                None
            }
        }
    }

    fn holds(&mut self, metadata: &Metadata, spec: &Spec, status: Status) -> Vec<Hold> {
        let mut holds = Vec::new();
        let own = metadata.annotations.as_ref();
        let template = spec.template.as_ref().and_then(|template| template.metadata.as_ref());
        let template = template.and_then(|metadata| metadata.annotations.as_ref());
        self.annotations(own, Member::Annotation, &mut holds);
        self.annotations(template, Member::TemplateAnnotation, &mut holds);
        let spot = self.spot(Member::Status);
        match status.allocated_bootstrap_addresses {
            None => {}
            Some(Value::Object(map)) => {
                for (interface, value) in map {
                    match texts(&value) {
                        Some(texts) => self.hold(spot, &interface, &texts, &value, &mut holds),
                        None => self.unreadable(spot, Some(&interface), &value),
                    }
                }
            }
            Some(other) => self.unreadable(spot, None, &other),
        }
        let mut networks = self.networks(template, Member::TemplateAnnotation);
        networks.extend(self.networks(own, Member::Annotation));
        for hold in &mut holds {
            hold.network = networks.get(&hold.interface).cloned();
        }
        holds
    }

    /// Reads the networks that annotations name for records, by interface.
    fn networks(
        &mut self,
        annotations: Option<&BTreeMap<String, String>>,
        member: Member,
    ) -> BTreeMap<InterfaceName, String> {
        let mut networks = BTreeMap::new();
        for (key, network) in annotations.into_iter().flatten() {
            let Some(name) = key.strip_prefix(NETWORK_PREFIX) else { continue };
            let is_network = network == Pool::DEFAULT_NETWORK
                || network.split_once('/').is_some_and(|(a, b)| is_object_name(a) && is_object_name(b));
            match name.parse::<InterfaceName>() {
                Ok(interface) if is_network => drop(networks.insert(interface, network.clone())),
                _ => {
                    let path = self.spot(member).annotation(key);
                    let expected = "an interface in the key, and namespace/name or default";
                    self.tell(Diagnostic::error(path, "invalid network of a record", network, expected), Vec::new());
                }
            }
        }
        networks
    }

    fn reports(&mut self, interfaces: Vec<Interface>, networks: &BTreeMap<String, String>) -> Vec<Reported> {
        let items = FieldPath::Document.field("items");
        let object = self.item.map_or(FieldPath::Document, |item| items.index(item));
        let (status, mut reports) = (object.field("status"), Vec::new());
        for (at, interface) in interfaces.into_iter().enumerate() {
            let texts = interface.ip_address.into_iter().chain(interface.ip_addresses.into_iter().flatten());
            let mut addresses: Vec<IpAddr> = texts.flat_map(|text| addresses_in(&text)).collect();
            addresses.sort_unstable();
            addresses.dedup();
            let counting = self.take(addresses.len());
            addresses.truncate(counting);
            if !addresses.is_empty() {
                let network = networks.get(&interface.name).cloned();
                let path = status.field("interfaces").index(at).to_string();
                reports.push(Reported { network, addresses, source: self.source.0, path });
            }
        }
        reports
    }

    fn annotations(&mut self, annotations: Option<&BTreeMap<String, String>>, member: Member, holds: &mut Vec<Hold>) {
        let spot = self.spot(member);
        for (key, value) in annotations.into_iter().flatten() {
            let Some(interface) = key.strip_prefix(ANNOTATION_PREFIX) else { continue };
            let list = value.starts_with('[').then(|| serde_json::from_str::<Vec<String>>(value));
            match list {
                Some(Ok(texts)) => self.hold(spot, interface, &texts, value, holds),
                Some(Err(error)) if error.is_data() && serde_json::from_str::<IgnoredAny>(value).is_ok() => {
                    self.unreadable(spot, Some(interface), value);
                }
                _ => {
                    let texts: Vec<&str> = value.split(',').map(str::trim_ascii).collect();
                    self.hold(spot, interface, &texts, value, holds);
                }
            }
        }
    }

    fn spot(&self, member: Member) -> Spot {
        Spot { source: self.source.0, item: self.item, member }
    }

    /// Reads one record. If some of its addresses cannot be read, the other addresses count.
    fn hold<T: AsRef<str>>(
        &mut self,
        spot: Spot,
        name: &str,
        texts: &[T],
        value: &dyn fmt::Display,
        holds: &mut Vec<Hold>,
    ) {
        let Ok(interface) = name.parse::<InterfaceName>() else {
            let (path, expected) = (spot.path(Some(name)), InterfaceName::EXPECTED);
            let diagnostic = Diagnostic::error(path, "record of an invalid interface name", name, expected);
            return self.tell(diagnostic, addresses_in(&value.to_string()));
        };
        let mut addresses: Vec<IpNetwork> = Vec::with_capacity(texts.len().min(MAX_ADDRESSES));
        let counting = self.take(texts.len());
        for text in texts.iter().take(counting).map(AsRef::as_ref) {
            let read = parse_interface_address(text).map(|(address, length)| {
                let length = length.unwrap_or(Family::of(address).bits());
                IpNetwork::new(address, length).unwrap_or_else(|_| IpNetwork::from(address))
            });
            match read {
                Ok(address) => addresses.push(address),
                Err(error) => {
                    self.tell_of_record(interface, error.at(spot.path(Some(name))), addresses_in(text));
                }
            }
        }
        addresses.sort_unstable();
        let written = addresses.len();
        addresses.dedup_by_key(|address| address.ip());
        if addresses.len() < written {
            let diagnostic =
                Diagnostic::error(spot.path(Some(name)), "repeated address in", value, "each address once");
            self.tell_of_record(interface, diagnostic, Vec::new());
        }
        if texts.is_empty() {
            self.unreadable(spot, Some(name), value);
        }
        // The annotation and the status usually have the same addresses. One copy is enough.
        let is_given = |given: &Hold| given.interface == interface && given.addresses == addresses;
        if !addresses.is_empty() && !holds.first().is_some_and(is_given) {
            holds.push(Hold { interface, addresses, network: None, spot });
        }
    }

    /// Adds a diagnostic about a record that cannot be read. If `name` is `None`, no record of the member can be read.
    fn unreadable(&mut self, spot: Spot, name: Option<&str>, value: &dyn fmt::Display) {
        let diagnostic = Diagnostic::error(spot.path(name), "unreadable record", value, EXPECTED);
        let addresses = addresses_in(&value.to_string());
        match name.and_then(|name| name.parse().ok()) {
            Some(interface) => self.tell_of_record(interface, diagnostic, addresses),
            None => self.tell(diagnostic, addresses),
        }
    }

    /// Adds a diagnostic about the record of an interface. The machine of the record is known only after all objects
    /// are read. Until then, a doubt keeps the index of the diagnostic.
    fn tell_of_record(&mut self, interface: InterfaceName, diagnostic: Diagnostic, addresses: Vec<IpAddr>) {
        let at = self.diagnostics.len();
        self.tell(diagnostic, addresses);
        if self.diagnostics.len() > at {
            self.doubts.push(Doubt { diagnostic: at, interface });
        }
    }

    /// Counts further addresses of the object, and returns how many of them are within the limit.
    fn take(&mut self, count: usize) -> usize {
        let counting = count.min(self.left);
        self.left -= counting;
        self.cut += count - counting;
        counting
    }

    /// Ends the reading of an object. Adds a diagnostic if the object has too many addresses, and another diagnostic if
    /// it has too many mistakes.
    pub(super) fn finish(mut self) {
        let (mistakes, addresses) = (self.mistakes, MAX_ADDRESSES + self.cut);
        for (problem, count, most) in
            [("too many addresses", addresses, MAX_ADDRESSES), ("too many mistakes", mistakes, MAX_DIAGNOSTICS)]
        {
            if count > most {
                let items = FieldPath::Document.field("items");
                let path = self.item.map_or(FieldPath::Document, |item| items.index(item));
                let expected = format!("at most {most}: the others do not count");
                self.push(Diagnostic::error(path, problem, count, &expected), Vec::new());
            }
        }
    }

    /// Adds a diagnostic, unless the object has too many of them.
    fn tell(&mut self, diagnostic: Diagnostic, addresses: Vec<IpAddr>) {
        self.mistakes += 1;
        if self.mistakes <= MAX_DIAGNOSTICS {
            self.push(diagnostic, addresses);
        }
    }

    fn push(&mut self, diagnostic: Diagnostic, mut addresses: Vec<IpAddr>) {
        let counting = self.take(addresses.len());
        addresses.truncate(counting);
        self.diagnostics.push(ObjectDiagnostic {
            source: self.source.1.to_owned(),
            diagnostic,
            claimant: None,
            addresses,
        });
    }
}

/// The namespace in which capk creates the VirtualMachine of a KubevirtMachine in `namespace`: the namespace of its
/// template, else its own. `None` without a template, and if the Secret of the infrastructure cluster may have another
/// namespace.
fn vm_namespace(spec: &Spec, namespace: &str) -> Option<String> {
    let metadata = spec.virtual_machine_template.as_ref()?.metadata.as_ref();
    let named = metadata.and_then(|metadata| metadata.namespace.as_deref()).filter(|named| !named.is_empty());
    let own = Some(namespace).filter(|_| spec.infra_cluster_secret_ref.is_none());
    named.or(own).filter(|namespace| is_identity(namespace)).map(str::to_owned)
}

/// The strings of a JSON list. `None` if the value is not a list of strings only.
fn texts(value: &Value) -> Option<Vec<&str>> {
    value.as_array()?.iter().map(Value::as_str).collect()
}

/// Every address that a person would recognize in a string, even if its spelling is invalid.
fn addresses_in(text: &str) -> Vec<IpAddr> {
    let pieces = text.split(|c: char| !(c.is_ascii_hexdigit() || matches!(c, ':' | '.')));
    let mut addresses: Vec<IpAddr> = pieces.filter_map(address_of).collect();
    addresses.sort_unstable();
    addresses.dedup();
    addresses
}

fn address_of(piece: &str) -> Option<IpAddr> {
    let without_zeros = || {
        let octets = piece.split('.').map(|octet| octet.parse::<u8>().ok());
        let octets: [u8; 4] = octets.collect::<Option<Vec<u8>>>()?.try_into().ok()?;
        Some(IpAddr::V4(Ipv4Addr::from(octets)))
    };
    piece.parse().ok().map(|address: IpAddr| address.to_canonical()).or_else(without_zeros)
}

/// Whether a string has a length and characters that are possible for a name, a namespace or a UID in Kubernetes.
fn is_identity(text: &str) -> bool {
    let legal = |b: u8| b.is_ascii_alphanumeric() | matches!(b, b'-' | b'.');
    // A fold has no early exit, so the compiler can check several bytes at once.
    (1..=253).contains(&text.len()) && text.bytes().fold(true, |all, byte| all & legal(byte))
}

// === impl ObjectDiagnostic ===

impl fmt::Display for ObjectDiagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.source, self.diagnostic)?;
        self.claimant.as_ref().map_or(Ok(()), |claimant| write!(f, ", in the record of {claimant}"))
    }
}
