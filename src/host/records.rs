//! Records of allocations on Kubernetes objects, both directions.
//!
//! There are two, and both are written and read: the annotation of the enhancement's first text, and the status map of its
//! newer one (`openshift/enhancements` pull request 1855). The text has no grammar for the annotation's value; it is written
//! as the status map and the proof of concept have it, a JSON list of `ip/prefix`, IPv4 first. One bare address, one
//! `ip/prefix`, and several with commas between them are read, too.

mod list;
mod merge;
mod object;
#[cfg(test)]
mod tests;

pub use list::{MAX_OBJECT, MAX_OBJECTS, ReadError};
pub use merge::{Inventory, ObjectFinding, Report, Unrecorded};

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io::Read;

use ipnetwork::IpNetwork;
use serde_json::{Map, Value, json};

use super::claim::{Allocation, Machine};
use super::timestamp::Timestamp;
use crate::network::InterfaceName;
use object::{Kind, Object};

/// What the key of the annotation begins with; the name of the interface follows.
pub const ANNOTATION_PREFIX: &str = "kubevirt.cluster.x-k8s.io/allocated-ip-";

/// The annotation by which HyperShift says of which NodePool a machine is, `namespace/name`. Cluster API hands it down from
/// the MachineDeployment to the KubevirtMachine.
pub const NODE_POOL_ANNOTATION: &str = "hypershift.openshift.io/nodePool";

/// Start of the key of our own annotation that names the network of a record; the name of the interface follows. The
/// enhancement has no place for the network, and its formats stay as they are.
pub const NETWORK_PREFIX: &str = "ipam.glowplug.dev/network-";

/// The member of the status that holds the map.
pub const STATUS_FIELD: &str = "allocatedBootstrapAddresses";

/// API version of KubevirtMachines. Cluster API's provider for KubeVirt has no other one.
pub const API_VERSION: &str = "infrastructure.cluster.x-k8s.io/v1alpha1";

/// The objects of lists, as far as they matter for records.
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
/// assert_eq!(inventory.findings, []);
/// ```
#[derive(Debug, Default)]
pub struct Objects {
    objects: Vec<Object>,
    sources: Vec<String>,
    findings: Vec<ObjectFinding>,
    unidentified: usize,
}

/// A KubevirtMachine of a list.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct KubevirtMachine {
    /// Which.
    pub machine: Machine,
    /// When it was created.
    pub created: Option<Timestamp>,
    /// Whether it has a `deletionTimestamp`: it is on its way out, and needs no address that it does not have.
    pub is_being_deleted: bool,
    /// Its NodePool, `namespace/name`, where [`NODE_POOL_ANNOTATION`] says it.
    pub node_pool: Option<String>,
}

/// Why there is no patch.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum PatchError {
    /// The name of the interface would make an illegal key: a key ends with a letter or a digit.
    Key(InterfaceName),
    /// One of the allocations is another machine's, this one's.
    Machine(Box<Machine>),
}

// === Writing ===

/// The key of the annotation for an interface.
///
/// # Errors
///
/// [`PatchError::Key`] for a name that ends with `-`, `_` or `.`: Kubernetes takes no such key. Whoever has such an
/// interface has the status map, and should know before anything is allocated.
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
    // What comes before it is 13 characters, and a name has at most 15: the limit of 63 is far.
    if interface.as_str().ends_with(|last: char| last.is_ascii_alphanumeric()) {
        Ok(format!("{ANNOTATION_PREFIX}{interface}"))
    } else {
        Err(PatchError::Key(*interface))
    }
}

/// The value of the annotation: a JSON list of `ip/prefix`.
#[must_use]
pub fn annotation_value(addresses: &[IpNetwork]) -> String {
    list(addresses).to_string()
}

/// The JSON merge patch that annotates a machine's object with its allocations, and with the network of each interface
/// that is in `networks`.
///
/// The patch names the object, so it can be sent by itself. It names the UID, which the server lets nobody change, so that the successor of a machine never gets its record; and the
/// resource version, if it is given, so that of two writers the second one is refused (409).
///
/// # Errors
///
/// [`PatchError`]
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

/// The JSON merge patch of the `status` subresource of a KubevirtMachine, with the same conditions.
///
/// A server whose definition of KubevirtMachine does not know the map drops it and reports success: read back what was
/// written.
///
/// # Errors
///
/// [`PatchError::Machine`]
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

/// The allocations, as long as they are the machine's.
fn own<'a>(
    machine: &Machine,
    allocations: &'a [Allocation],
) -> impl Iterator<Item = Result<&'a Allocation, PatchError>> {
    allocations.iter().map(move |allocation| {
        let found = &allocation.claimant.machine;
        if found == machine { Ok(allocation) } else { Err(PatchError::Machine(Box::new(found.clone()))) }
    })
}

/// The part of a patch that says whose object it is for.
fn patch(machine: &Machine, resource_version: Option<&str>) -> Value {
    let Machine { namespace, name, uid } = machine;
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
    // IPv4 is less than IPv6.
    addresses.sort_unstable();
    addresses.iter().map(IpNetwork::to_string).collect()
}

// === Reading ===

impl Objects {
    /// Reads KubevirtMachines, VirtualMachines and VirtualMachineInstances: a list of one kind or of several, as
    /// `kubectl get -o json` or the server itself writes it, whole or metadata only, or a single object. `source` names it
    /// in messages. Returns how many objects there were.
    ///
    /// One object at a time is in memory. Of the others only identities and records are kept.
    ///
    /// # Errors
    ///
    /// [`ReadError`]: it is no list, or only a part of one. An object or a record that cannot be read is no error but a
    /// [`ObjectFinding`].
    pub fn read(&mut self, source: &str, input: impl Read) -> Result<usize, ReadError> {
        let source = (self.sources.len(), source);
        self.sources.push(source.1.to_owned());
        let Self { objects, findings, unidentified, .. } = self;
        list::read(input, |index, text| {
            let mut reader = object::Reader { item: index, source, findings: &mut *findings, doubts: Vec::new() };
            match reader.object(text) {
                Some(object) => objects.push(object),
                None => *unidentified += 1,
            }
        })
    }

    /// The KubevirtMachines in the order of the lists, each once.
    pub fn machines(&self) -> impl Iterator<Item = KubevirtMachine> {
        let machines = || self.objects.iter().filter(|object| object.kind == Kind::Machine);
        // Of two lists one may be older.
        let leaving: BTreeSet<&str> =
            machines().filter(|object| object.is_being_deleted).map(|object| object.uid.as_str()).collect();
        let mut seen = BTreeSet::new();
        machines().filter(move |object| seen.insert(&object.uid)).map(move |object| {
            let (namespace, name, uid) = (object.namespace.clone(), object.name.clone(), object.uid.clone());
            KubevirtMachine {
                machine: Machine { namespace, name, uid },
                created: object.created,
                is_being_deleted: leaving.contains(object.uid.as_str()),
                node_pool: object.node_pool.clone(),
            }
        })
    }

    /// What is odd about single objects and records, in the order of the lists. [`Objects::inventory`] has more.
    #[must_use]
    pub fn findings(&self) -> &[ObjectFinding] {
        &self.findings
    }

    /// What they say together.
    #[must_use]
    pub fn inventory(self) -> Inventory {
        let mut inventory = merge::merge(self.objects, &self.sources, self.findings);
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
