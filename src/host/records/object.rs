//! One object: whose it is, and what it records.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::ops::Deref;

use ipnetwork::IpNetwork;
use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::Value;
use smallvec::SmallVec;

use super::skim::{EVERYTHING, Kept, Key, Members};
use super::{ANNOTATION_PREFIX, NODE_POOL_ANNOTATION, ObjectFinding, STATUS_FIELD, list};
use crate::finding::{Finding, Place, Severity};
use crate::host::address::parse_interface_address;
use crate::host::timestamp::Timestamp;
use crate::network::{Family, InterfaceName};

/// What an object is.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) enum Kind {
    /// `KubevirtMachine`, of Cluster API's provider.
    Machine,
    /// `VirtualMachine`, of KubeVirt.
    VirtualMachine,
    /// `VirtualMachineInstance`, of KubeVirt: a guest that runs.
    Instance,
}

/// What is kept of an object.
#[derive(Debug)]
pub(super) struct Object {
    pub(super) kind: Kind,
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) uid: String,
    pub(super) created: Option<Timestamp>,
    pub(super) is_being_deleted: bool,
    pub(super) node_pool: Option<String>,
    /// Namespace and name of its KubevirtMachine, where labels say so.
    pub(super) machine: Option<Box<(String, String)>>,
    /// UID and name of the VirtualMachine that owns it.
    pub(super) owner: Option<Box<(String, String)>>,
    pub(super) holds: Holds,
    /// Its records that cannot be read.
    pub(super) doubts: Vec<Doubt>,
}

/// Mostly one, and of many objects: it is no block of memory of its own.
pub(super) type Holds = SmallVec<[Hold; 1]>;

/// What one interface holds, as one object says.
#[derive(Debug)]
pub(super) struct Hold {
    pub(super) interface: InterfaceName,
    /// Sorted, without repeats. An address that comes without a prefix length has the longest.
    pub(super) addresses: SmallVec<[IpNetwork; 2]>,
    pub(super) spot: Spot,
}

/// Where a record was read. Of most it is never told, so it is no text.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spot {
    /// The list, among those that were read.
    pub(super) source: usize,
    /// Which of its objects; `None` if it is no list.
    item: Option<usize>,
    member: Member,
}

#[derive(Clone, Copy, Debug)]
enum Member {
    Annotation,
    TemplateAnnotation,
    Status,
}

/// A record that cannot be read, or that another one contradicts.
#[derive(Clone, Debug)]
pub(super) struct Doubt {
    /// What is to be said about it, among the findings.
    pub(super) finding: usize,
    pub(super) interface: InterfaceName,
}

/// A text of an object, which mostly stands in what was read as it is.
#[derive(Debug, Default, Deserialize, Eq, Ord, PartialEq, PartialOrd)]
#[serde(transparent)]
pub(super) struct Text<'t>(#[serde(borrow)] pub(super) Cow<'t, str>);

/// An object as it is written. Members that do not matter here are passed over.
#[derive(Debug, Deserialize)]
#[serde(bound(deserialize = "M: Deserialize<'de>"))]
pub(super) struct Item<'t, M = StatusMap<'t>> {
    #[serde(borrow)]
    pub(super) kind: Option<Text<'t>>,
    #[serde(default, borrow)]
    pub(super) metadata: Metadata<'t>,
    #[serde(borrow)]
    pub(super) spec: Option<Spec<'t>>,
    pub(super) status: Option<Status<M>>,
}

/// The members of an [`Item`] that are not passed over.
pub(super) const MEMBERS: Members = {
    const ANNOTATIONS: Members =
        Members(&[(Key::BeginsWith(ANNOTATION_PREFIX), Kept::All), (Key::Is(NODE_POOL_ANNOTATION), Kept::All)]);
    const LABELS: Members = Members(&[(Key::Is(MACHINE_NAMESPACE), Kept::All), (Key::Is(MACHINE_NAME), Kept::All)]);
    const OWNER: Members =
        Members(&[(Key::Is("kind"), Kept::All), (Key::Is("name"), Kept::All), (Key::Is("uid"), Kept::All)]);
    const METADATA: Members = Members(&[
        (Key::Is("annotations"), Kept::Only(&ANNOTATIONS)),
        (Key::Is("creationTimestamp"), Kept::All),
        (Key::Is("labels"), Kept::Only(&LABELS)),
        (Key::Is("name"), Kept::All),
        (Key::Is("namespace"), Kept::All),
        (Key::Is("ownerReferences"), Kept::Only(&OWNER)),
        (Key::Is("uid"), Kept::All),
        (Key::Is("deletionTimestamp"), Kept::All),
        (Key::Is("continue"), Kept::All),
        (Key::Is("remainingItemCount"), Kept::All),
    ]);
    const TEMPLATE_METADATA: Members = Members(&[(Key::Is("annotations"), Kept::Only(&ANNOTATIONS))]);
    const TEMPLATE: Members = Members(&[(Key::Is("metadata"), Kept::Only(&TEMPLATE_METADATA))]);
    Members(&[
        (Key::Is("kind"), Kept::All),
        (Key::Is("metadata"), Kept::Only(&METADATA)),
        (Key::Is("spec"), Kept::Only(&Members(&[(Key::Is("template"), Kept::Only(&TEMPLATE))]))),
        (Key::Is("status"), Kept::Only(&Members(&[(Key::Is(STATUS_FIELD), Kept::Only(&EVERYTHING))]))),
    ])
};

/// Of an object or of a list.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Metadata<'t> {
    #[serde(rename = "continue", borrow)]
    pub(super) next: Option<Text<'t>>,
    pub(super) remaining_item_count: Option<i64>,
    #[serde(borrow)]
    namespace: Option<Text<'t>>,
    #[serde(borrow)]
    name: Option<Text<'t>>,
    #[serde(borrow)]
    uid: Option<Text<'t>>,
    #[serde(borrow)]
    creation_timestamp: Option<Text<'t>>,
    #[serde(borrow)]
    deletion_timestamp: Option<Text<'t>>,
    #[serde(borrow)]
    labels: Option<Labels<'t>>,
    #[serde(borrow)]
    annotations: Option<Annotations<'t>>,
    #[serde(borrow)]
    owner_references: Option<Vec<Owner<'t>>>,
}

/// By which a VirtualMachine knows its KubevirtMachine, which may be in another cluster and so owns nothing.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Labels<'t> {
    // MACHINE_NAMESPACE and MACHINE_NAME.
    #[serde(rename = "capk.cluster.x-k8s.io/kubevirt-machine-namespace", borrow)]
    namespace: Option<Text<'t>>,
    #[serde(rename = "capk.cluster.x-k8s.io/kubevirt-machine-name", borrow)]
    name: Option<Text<'t>>,
}

const MACHINE_NAMESPACE: &str = "capk.cluster.x-k8s.io/kubevirt-machine-namespace";
const MACHINE_NAME: &str = "capk.cluster.x-k8s.io/kubevirt-machine-name";

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Owner<'t> {
    #[serde(borrow)]
    kind: Text<'t>,
    #[serde(borrow)]
    name: Text<'t>,
    #[serde(borrow)]
    uid: Text<'t>,
}

/// What matters of the annotations.
#[derive(Debug, Default)]
struct Annotations<'t> {
    /// Key and value.
    records: Vec<(Text<'t>, Text<'t>)>,
    node_pool: Option<Text<'t>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Spec<'t> {
    #[serde(borrow)]
    template: Option<Template<'t>>,
}

/// What a VirtualMachine gives its instances.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Template<'t> {
    #[serde(borrow)]
    metadata: Option<TemplateMetadata<'t>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct TemplateMetadata<'t> {
    #[serde(borrow)]
    annotations: Option<Annotations<'t>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Status<M> {
    allocated_bootstrap_addresses: Option<M>,
}

/// A status map as it should be, by the name of the interface.
pub(super) type Texts<'t> = BTreeMap<Text<'t>, Vec<Text<'t>>>;

/// A status map, of which mostly no value has to be made.
#[derive(Debug)]
pub(super) enum StatusMap<'t> {
    Texts(Texts<'t>),
    Value(Value),
}

/// An object that has a member of another type.
pub(super) struct Unreadable<'t> {
    pub(super) error: serde_json::Error,
    /// All of it, as it is written.
    pub(super) text: &'t [u8],
}

/// Reads the object at one place.
pub(super) struct Reader<'a> {
    /// Which of a list; `None` if it is none.
    pub(super) item: Option<usize>,
    /// The list, among those that were read, and its name.
    pub(super) source: (usize, &'a str),
    pub(super) findings: &'a mut Vec<ObjectFinding>,
    pub(super) doubts: Vec<Doubt>,
}

// === impl Hold ===

impl Hold {
    pub(super) fn place(&self) -> String {
        self.spot.path(Some(self.interface.as_str()))
    }

    pub(super) fn push_place_onto(&self, text: &mut String) {
        self.spot.push_path_onto(Some(self.interface.as_str()), text);
    }
}

// === impl Spot ===

impl Spot {
    /// The place of the record of an interface, or without one of all of them.
    fn path(self, interface: Option<&str>) -> String {
        let mut path = String::new();
        self.push_path_onto(interface, &mut path);
        path
    }

    fn push_path_onto(self, interface: Option<&str>, path: &mut String) {
        let document = Place::Document;
        let items = document.field("items");
        let object = self.item.map_or(document, |item| items.index(item));
        let (spec, status) = (object.field("spec"), object.field("status"));
        let template = spec.field("template");
        let metadata = match self.member {
            Member::TemplateAnnotation => template.field("metadata"),
            _ => object.field("metadata"),
        };
        let (records, prefix) = match self.member {
            Member::Status => (status.field(STATUS_FIELD), ""),
            _ => (metadata.field("annotations"), ANNOTATION_PREFIX),
        };
        match interface {
            Some(interface) => records.field(&[prefix, interface].concat()).push_onto(path),
            None => records.push_onto(path),
        }
    }
}

/// What a message calls the value of a record.
const EXPECTED: &str = "a list of ip/prefix";

// === impl Reader ===

impl Reader<'_> {
    /// What is to be kept of an object. `None`: nobody can tell whose it is, which has been told.
    pub(super) fn object(&mut self, item: Result<Item<'_>, Unreadable<'_>>) -> Option<Object> {
        let items = Place::Document.field("items");
        let place = self.item.map_or(Place::Document, |item| items.index(item));
        let Item { kind, mut metadata, spec, status } = match item {
            Ok(item) => item,
            Err(Unreadable { error, text }) => {
                let message = list::message(&error);
                let finding = Finding::error(place, "invalid object", message, "an object as Kubernetes writes it");
                self.tell(finding, addresses_in(&String::from_utf8_lossy(text)));
                return None;
            }
        };
        let holds = self.holds(&metadata, spec.unwrap_or_default(), status);
        let node_pool =
            metadata.annotations.as_mut().and_then(|annotations| annotations.node_pool.take()).map(String::from);
        let owner = metadata.owner_references.into_iter().flatten().find(|owner| &*owner.kind == "VirtualMachine");
        let owner = owner.filter(|owner| is_identity(&owner.uid) && is_identity(&owner.name));
        let owner = owner.map(|owner| Box::new((owner.uid.into(), owner.name.into())));
        let machine = metadata.labels.and_then(|labels| labels.namespace.zip(labels.name));
        let kind = match kind.as_deref() {
            Some("KubevirtMachine") => Ok(Kind::Machine),
            Some("VirtualMachine") => Ok(Kind::VirtualMachine),
            Some("VirtualMachineInstance") => Ok(Kind::Instance),
            // Of a list without the objects' content; and KubeVirt's own server leaves the kind out.
            Some("PartialObjectMetadata") | None if owner.is_some() => Ok(Kind::Instance),
            Some("PartialObjectMetadata") | None if machine.is_some() => Ok(Kind::VirtualMachine),
            Some("PartialObjectMetadata") | None => Ok(Kind::Machine),
            Some(other) => Err(Finding::error(
                place.field("kind"),
                "unknown kind",
                other,
                "KubevirtMachine, VirtualMachine or VirtualMachineInstance",
            )),
        };
        let metadata_place = place.field("metadata");
        let identity = |name: &str, value: Option<Text<'_>>| match value {
            Some(value) if is_identity(&value) => Ok(String::from(value)),
            Some(value) => {
                let (place, expected) = (metadata_place.field(name), "letters, digits, '-' or '.', at most 253");
                Err(Finding::error(place, "invalid value", &*value, expected))
            }
            None => {
                let place = metadata_place.field(name);
                Err(Finding::without_value(Severity::Error, place, "missing", "the object as it is in the cluster"))
            }
        };
        let object = identity("namespace", metadata.namespace).and_then(|namespace| {
            let name = identity("name", metadata.name)?;
            let uid = identity("uid", metadata.uid)?;
            Ok((kind?, namespace, name, uid))
        });
        match object {
            Ok((kind, namespace, name, uid)) => {
                let created = metadata.creation_timestamp.as_deref().and_then(Timestamp::parse);
                let is_being_deleted = metadata.deletion_timestamp.is_some();
                // Only a VirtualMachine and what it owns are somebody else's.
                let machine = machine.filter(|(namespace, name)| is_identity(namespace) && is_identity(name));
                let machine = machine.map(|(namespace, name)| Box::new((namespace.into(), name.into())));
                let doubts = std::mem::take(&mut self.doubts);
                Some(Object {
                    kind,
                    namespace,
                    name,
                    uid,
                    created,
                    is_being_deleted,
                    node_pool,
                    machine,
                    owner,
                    holds,
                    doubts,
                })
            }
            Err(finding) => {
                let held = holds.iter().flat_map(|hold| &hold.addresses).map(IpNetwork::ip).collect();
                self.tell(finding, held);
                None
            }
        }
    }

    fn holds(&mut self, metadata: &Metadata<'_>, spec: Spec<'_>, status: Option<Status<StatusMap<'_>>>) -> Holds {
        let mut holds = Holds::new();
        self.annotations(metadata.annotations.as_ref(), Member::Annotation, &mut holds);
        let template = spec.template.and_then(|template| template.metadata);
        let annotations = template.and_then(|metadata| metadata.annotations);
        self.annotations(annotations.as_ref(), Member::TemplateAnnotation, &mut holds);
        let spot = self.spot(Member::Status);
        match status.and_then(|status| status.allocated_bootstrap_addresses) {
            None => {}
            Some(StatusMap::Texts(map)) => {
                for (interface, texts) in map {
                    self.hold(spot, &interface, &texts, &List(&texts), &mut holds);
                }
            }
            Some(StatusMap::Value(Value::Object(map))) => {
                for (interface, value) in map {
                    match texts(&value) {
                        Some(texts) => self.hold(spot, &interface, &texts, &value, &mut holds),
                        None => self.unreadable(spot, Some(&interface), &value),
                    }
                }
            }
            Some(StatusMap::Value(other)) => self.unreadable(spot, None, &other),
        }
        holds
    }

    fn annotations(&mut self, annotations: Option<&Annotations<'_>>, member: Member, holds: &mut Holds) {
        let spot = self.spot(member);
        for (key, value) in annotations.into_iter().flat_map(|annotations| &annotations.records) {
            let interface = key.strip_prefix(ANNOTATION_PREFIX).unwrap_or_default();
            let list = value.starts_with('[').then(|| serde_json::from_str::<Vec<Text<'_>>>(value));
            match list {
                Some(Ok(texts)) => self.hold(spot, interface, &texts, &value.0, holds),
                Some(Err(error)) if error.is_data() && serde_json::from_str::<IgnoredAny>(value).is_ok() => {
                    self.unreadable(spot, Some(interface), &value.0);
                }
                _ => {
                    let texts: Vec<&str> = value.split(',').map(str::trim_ascii).collect();
                    self.hold(spot, interface, &texts, &value.0, holds);
                }
            }
        }
    }

    fn spot(&self, member: Member) -> Spot {
        Spot { source: self.source.0, item: self.item, member }
    }

    /// One record. Every address of it counts that can be read.
    fn hold<T: AsRef<str>>(
        &mut self,
        spot: Spot,
        name: &str,
        texts: &[T],
        value: &dyn fmt::Display,
        holds: &mut Holds,
    ) {
        let Ok(interface) = name.parse::<InterfaceName>() else {
            let (place, expected) = (spot.path(Some(name)), InterfaceName::EXPECTED);
            let finding = Finding::error(place, "record of an invalid interface name", name, expected);
            return self.tell(finding, addresses_in(&value.to_string()));
        };
        let mut addresses: SmallVec<[IpNetwork; 2]> = SmallVec::with_capacity(texts.len());
        for text in texts.iter().map(AsRef::as_ref) {
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
            let finding = Finding::error(spot.path(Some(name)), "repeated address in", value, "each address once");
            self.tell_of_record(interface, finding, Vec::new());
        }
        if texts.is_empty() {
            self.unreadable(spot, Some(name), value);
        }
        // Mostly the annotation and the status say the same, and once is enough.
        let is_said = |said: &Hold| said.interface == interface && said.addresses == addresses;
        if !addresses.is_empty() && !holds.first().is_some_and(is_said) {
            holds.push(Hold { interface, addresses, spot });
        }
    }

    /// A record, or without the name of an interface all of them.
    fn unreadable(&mut self, spot: Spot, name: Option<&str>, value: &dyn fmt::Display) {
        let finding = Finding::error(spot.path(name), "unreadable record", value, EXPECTED);
        let addresses = addresses_in(&value.to_string());
        match name.and_then(|name| name.parse().ok()) {
            Some(interface) => self.tell_of_record(interface, finding, addresses),
            None => self.tell(finding, addresses),
        }
    }

    /// A finding about the record of an interface. Whose that is, is known when all objects are.
    fn tell_of_record(&mut self, interface: InterfaceName, finding: Finding, addresses: Vec<IpAddr>) {
        self.doubts.push(Doubt { finding: self.findings.len(), interface });
        self.tell(finding, addresses);
    }

    fn tell(&mut self, finding: Finding, addresses: Vec<IpAddr>) {
        self.findings.push(ObjectFinding { source: self.source.1.to_owned(), finding, claimant: None, addresses });
    }
}

/// A list of texts as JSON has it.
struct List<'l>(&'l [Text<'l>]);

impl fmt::Display for List<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Value::from_iter(self.0.iter().map(|text| &**text)).fmt(f)
    }
}

/// The texts of a list of texts.
fn texts(value: &Value) -> Option<Vec<&str>> {
    value.as_array()?.iter().map(Value::as_str).collect()
}

/// Every address that a person would find in a text, whatever is wrong with its spelling.
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

/// Whether a text is what Kubernetes takes for a name, a namespace or a UID.
fn is_identity(text: &str) -> bool {
    let legal = |b: u8| b.is_ascii_alphanumeric() | matches!(b, b'-' | b'.');
    // With no way out in between, several bytes are looked at at once.
    (1..=253).contains(&text.len()) && text.bytes().fold(true, |all, byte| all & legal(byte))
}

// === impl Text ===

impl Deref for Text<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl AsRef<str> for Text<'_> {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl From<Text<'_>> for String {
    fn from(text: Text<'_>) -> Self {
        text.0.into_owned()
    }
}

// === impl Item ===

impl<'t, M: Into<StatusMap<'t>>> Item<'t, M> {
    /// The same, whichever way its status map was read.
    pub(super) fn any(self) -> Item<'t> {
        let Self { kind, metadata, spec, status } = self;
        let status = status.map(|Status { allocated_bootstrap_addresses: map }| Status {
            allocated_bootstrap_addresses: map.map(M::into),
        });
        Item { kind, metadata, spec, status }
    }
}

// === impl StatusMap ===

impl<'t> From<Texts<'t>> for StatusMap<'t> {
    fn from(texts: Texts<'t>) -> Self {
        Self::Texts(texts)
    }
}

impl From<Value> for StatusMap<'_> {
    fn from(value: Value) -> Self {
        Self::Value(value)
    }
}

// === impl Annotations ===

impl<'de: 't, 't> Deserialize<'de> for Annotations<'t> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Records)
    }
}

/// Keeps what matters, and passes over what may be many times as large.
struct Records;

impl<'de> Visitor<'de> for Records {
    type Value = Annotations<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("annotations")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Annotations<'de>, A::Error> {
        let mut annotations = Annotations::default();
        while let Some(key) = members.next_key::<Text<'de>>()? {
            if key.starts_with(ANNOTATION_PREFIX) {
                annotations.records.push((key, members.next_value()?));
            } else if &*key == NODE_POOL_ANNOTATION {
                annotations.node_pool = Some(members.next_value()?);
            } else {
                members.next_value::<IgnoredAny>()?;
            }
        }
        Ok(annotations)
    }
}
