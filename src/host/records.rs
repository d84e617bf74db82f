//! Reads and writes the records of allocations on Kubernetes objects.
//!
//! A record has one of two formats, and this module reads and writes both: the annotation of the enhancement's first
//! version, and the status map of its newer version (`openshift/enhancements` pull request 1855). The enhancement has
//! no grammar for the value of the annotation. This module writes a JSON list of `ip/prefix`, IPv4 first, like the
//! status map and the proof of concept. It also reads one address without a prefix length, one `ip/prefix`, and several
//! such values with commas between them.

mod hold;
mod labels;
mod list;
mod merge;
mod names;
mod object;
#[cfg(test)]
mod tests;
mod written;

pub use list::{MAX_OBJECT, MAX_OBJECTS, ReadError};
pub use merge::{Inventory, Report, Unrecorded};
#[doc(hidden)]
pub use names::{ANNOTATION_PREFIX, API_VERSION, NETWORK_PREFIX, NODE_POOL_ANNOTATION, STATUS_FIELD};
pub use object::ObjectDiagnostic;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io::Read;

use ipnetwork::IpNetwork;
use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::claim::{Allocation, Machine};
use crate::network::InterfaceName;
use object::{Object, ObjectKind, ObjectReader};

/// The objects of lists, reduced to the members that matter for records.
///
/// ```
/// use glowplug::host::records::Objects;
///
/// let list = br#"{"kind": "List", "items": [{
///     "kind": "KubevirtMachine",
///     "metadata": {
///         "namespace": "clusters", "name": "worker-0", "uid": "u-1",
///         "annotations": {"kubevirt.cluster.x-k8s.io/allocated-ip-eno101": "[\"10.0.0.5/24\"]"}
///     }
/// }]}"#;
/// let mut objects = Objects::default();
/// objects.read("machines.json", list.as_slice()).unwrap();
/// let inventory = objects.inventory();
/// assert_eq!(inventory.records[0].claimant.machine.to_string(), "clusters/worker-0 (u-1)");
/// assert_eq!(inventory.records[0].addresses, ["10.0.0.5/24".parse().unwrap()]);
/// assert_eq!(inventory.diagnostics, []);
/// ```
#[derive(Debug, Default)]
pub struct Objects {
    objects: Vec<Object>,
    sources: Vec<String>,
    diagnostics: Vec<ObjectDiagnostic>,
    unidentified: usize,
}

/// A KubevirtMachine of a list.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct KubevirtMachine {
    /// Namespace, name and UID of the object.
    pub machine: Machine,
    /// Creation time. `None` if the object has no valid `creationTimestamp`.
    pub created: Option<Timestamp>,
    /// Whether the object has a `deletionTimestamp`. Such a machine needs no further address.
    pub is_being_deleted: bool,
    /// NodePool of the machine, as `namespace/name`. `None` without [`NODE_POOL_ANNOTATION`].
    pub node_pool: Option<String>,
}

/// Why a patch cannot be made.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum PatchError {
    /// The name of the interface would make an invalid key: a key must end with a letter or a digit.
    Key(InterfaceName),
    /// One of the allocations belongs to this other machine.
    Machine(Box<Machine>),
}

// === Writing ===

/// Returns the key of the annotation for an interface.
///
/// # Errors
///
/// [`PatchError::Key`] for a name that ends with `-`, `_` or `.`: Kubernetes rejects such a key. For such an interface
/// only the status map can be used. A caller should check the key before addresses are allocated.
///
/// ```
/// use glowplug::host::records::annotation_key;
///
/// assert_eq!(
///     annotation_key(&"eno101".parse().unwrap()).unwrap(),
///     "kubevirt.cluster.x-k8s.io/allocated-ip-eno101"
/// );
/// assert_eq!(
///     annotation_key(&"eno-".parse().unwrap()).unwrap_err().to_string(),
///     r#"no annotation key for interface "eno-", expected a letter or a digit at its end"#
/// );
/// ```
pub fn annotation_key(interface: &InterfaceName) -> Result<String, PatchError> {
    // `allocated-ip-` has 13 characters and a name at most 15, so the key never reaches the limit of 63.
    if interface.as_str().ends_with(|last: char| last.is_ascii_alphanumeric()) {
        Ok(format!("{ANNOTATION_PREFIX}{interface}"))
    } else {
        Err(PatchError::Key(*interface))
    }
}

/// Returns the value of the annotation: a JSON list of `ip/prefix`.
#[must_use]
pub fn annotation_value(addresses: &[IpNetwork]) -> String {
    list(addresses).to_string()
}

/// Returns the JSON merge patch that annotates the object of a machine with its allocations, and with the network of
/// each interface in `networks`.
///
/// The patch is complete: it names the object, a KubevirtMachine. If a VirtualMachine holds the addresses, the caller
/// can use only `metadata.uid` and `metadata.annotations` of the patch. The server rejects the patch if the object has
/// another UID, so a new machine of the same name never gets the record of the old machine. With a resource version,
/// the server rejects the second of two concurrent writers (409).
///
/// # Errors
///
/// See [`PatchError`].
pub fn annotation_patch(
    machine: &Machine,
    allocations: &[Allocation],
    networks: &BTreeMap<InterfaceName, String>,
    resource_version: Option<&str>,
) -> Result<Value, PatchError> {
    let mut annotations = Map::new();
    for allocation in own(machine, allocations) {
        let Allocation { claimant, addresses } = allocation?;
        let interface = &claimant.interface;
        annotations.insert(annotation_key(interface)?, annotation_value(addresses).into());
        if let Some(network) = networks.get(interface) {
            annotations.insert(format!("{NETWORK_PREFIX}{interface}"), network.as_str().into());
        }
    }
    let mut patch = patch(machine, resource_version);
    patch["metadata"]["annotations"] = annotations.into();
    Ok(patch)
}

/// Returns the JSON merge patch of the `status` subresource of a KubevirtMachine. UID and resource version work as in
/// [`annotation_patch`].
///
/// A server whose definition of KubevirtMachine lacks the status map drops the map and reports success. So read the
/// object back after the write.
///
/// # Errors
///
/// [`PatchError::Machine`] for an allocation of another machine.
pub fn status_patch(
    machine: &Machine,
    allocations: &[Allocation],
    resource_version: Option<&str>,
) -> Result<Value, PatchError> {
    let mut map = Map::new();
    for allocation in own(machine, allocations) {
        let Allocation { claimant, addresses } = allocation?;
        map.insert(claimant.interface.to_string(), list(addresses));
    }
    let mut patch = patch(machine, resource_version);
    patch["status"] = json!({STATUS_FIELD: map});
    Ok(patch)
}

/// Returns each allocation, or an error for an allocation of another machine.
fn own<'a>(
    machine: &Machine,
    allocations: &'a [Allocation],
) -> impl Iterator<Item = Result<&'a Allocation, PatchError>> {
    allocations.iter().map(move |allocation| {
        let found = &allocation.claimant.machine;
        if found == machine { Ok(allocation) } else { Err(PatchError::Machine(Box::new(found.clone()))) }
    })
}

/// The part of a patch that identifies the object.
fn patch(machine: &Machine, resource_version: Option<&str>) -> Value {
    let Machine { namespace, name, uid, .. } = machine;
    let mut patch = json!({
        "apiVersion": API_VERSION,
        "kind": "KubevirtMachine",
        "metadata": {"namespace": namespace, "name": name, "uid": uid},
    });
    if let Some(version) = resource_version {
        patch["metadata"]["resourceVersion"] = version.into();
    }
    patch
}

fn list(addresses: &[IpNetwork]) -> Value {
    let mut addresses = addresses.to_vec();
    // IPv4 addresses sort before IPv6 addresses.
    addresses.sort_unstable();
    addresses.iter().map(IpNetwork::to_string).collect()
}

// === Reading ===

impl Objects {
    /// Reads KubevirtMachines, VirtualMachines and VirtualMachineInstances. Returns the number of objects.
    ///
    /// The input is a list of one or several kinds, or a single object, as `kubectl get -o json` or the API server
    /// writes it. The objects may be whole or metadata only. `source` names the input in messages.
    ///
    /// Only one object at a time is in memory as a whole. Of earlier objects, only the members that matter for records
    /// are kept.
    ///
    /// # Errors
    ///
    /// [`ReadError`]: the input is neither a list nor an object, is only a part of a list, or is too large. An object
    /// or a record that cannot be read is not an error, but becomes an [`ObjectDiagnostic`].
    pub fn read(&mut self, source: &str, input: impl Read) -> Result<usize, ReadError> {
        let source = (self.sources.len(), source);
        self.sources.push(source.1.to_owned());
        list::read(input, |index, text| self.push(index, source, |reader| reader.object(text)))
    }

    /// Reads a single object that is already parsed, as [`Objects::read`] reads its text.
    pub fn read_value(&mut self, source: &str, object: &Value) {
        let source = (self.sources.len(), source);
        self.sources.push(source.1.to_owned());
        self.push(None, source, |reader| reader.value(object));
    }

    fn push(
        &mut self,
        item: Option<usize>,
        source: (usize, &str),
        read: impl FnOnce(&mut ObjectReader<'_>) -> Option<Object>,
    ) {
        let diagnostics = &mut self.diagnostics;
        let (doubts, left) = (Vec::new(), object::MAX_ADDRESSES);
        let mut reader = ObjectReader { item, source, diagnostics, doubts, left, cut: 0, mistakes: 0 };
        let object = read(&mut reader);
        reader.finish();
        match object {
            Some(object) => self.objects.push(object),
            None => self.unidentified += 1,
        }
    }

    /// The KubevirtMachines in the order of the lists, without repeats.
    pub fn machines(&self) -> impl Iterator<Item = KubevirtMachine> {
        let machines = || self.objects.iter().filter(|object| object.kind == ObjectKind::Machine);
        // One list may be older than another, so a machine is being deleted if one of its objects has a deletion
        // timestamp.
        let leaving: BTreeSet<&str> =
            machines().filter(|object| object.is_being_deleted).map(|object| object.uid.as_str()).collect();
        let mut seen = BTreeSet::new();
        machines().filter(move |object| seen.insert(&object.uid)).map(move |object| {
            let (namespace, name, uid) = (object.namespace.clone(), object.name.clone(), object.uid.clone());
            KubevirtMachine {
                machine: Machine::new(namespace, name, uid),
                created: object.created,
                is_being_deleted: leaving.contains(object.uid.as_str()),
                node_pool: object.node_pool.clone(),
            }
        })
    }

    /// Removes the labels that name the KubevirtMachine of a VirtualMachine or an instance. Call this for addresses
    /// that glowplug-controller allocates: there, a VirtualMachine in another namespace than its KubevirtMachine holds
    /// its addresses itself, and its labels keep no address of another machine.
    #[doc(hidden)]
    pub fn ignore_labels(&mut self) {
        self.objects.iter_mut().for_each(|object| object.machine = None);
    }

    /// The diagnostics about single objects and records, in the order of the lists. [`Objects::inventory`] adds
    /// diagnostics about objects that contradict each other.
    #[must_use]
    pub fn diagnostics(&self) -> &[ObjectDiagnostic] {
        &self.diagnostics
    }

    /// Merges the objects of all lists, and returns the records of each machine.
    #[must_use]
    pub fn inventory(self) -> Inventory {
        let mut inventory = merge::merge(self.objects, &self.sources, self.diagnostics);
        inventory.unidentified = self.unidentified;
        inventory
    }
}

// === impl PatchError ===

impl fmt::Display for PatchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Key(interface) => {
                let interface = interface.as_str();
                write!(f, "no annotation key for interface {interface:?}, expected a letter or a digit at its end")
            }
            Self::Machine(found) => {
                write!(f, "allocation of another machine, {found}, expected one of the object's own")
            }
        }
    }
}

impl std::error::Error for PatchError {}
