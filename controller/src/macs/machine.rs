//! Reads the MAC addresses of a VirtualMachine and of its instance.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::Timestamp;
use pnet_base::MacAddr;

use crate::cluster::object::Object;
use crate::kinds::kubevirt_machine::has_left;
use crate::kinds::mac_pool::MacPool;
use crate::kinds::virtual_machine::{by_name, interfaces, items, read_mac_address, requires_mac_addresses};

/// A VirtualMachine with its MAC addresses.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Vm {
    /// Metadata that decisions read: namespace, name, UID, labels, version and times.
    pub(super) metadata: ObjectMeta,
    /// Whether the template has the label for MAC addresses. An instance with this label starts only if every interface
    /// has an address.
    pub(super) has_label: bool,
    /// The interfaces: the name that KubeVirt uses, and the address.
    pub(super) interfaces: Vec<(String, Address)>,
}

/// The MAC address of an interface of a VirtualMachine.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Address {
    /// The interface has no address yet.
    Missing,
    /// The value of the interface is not a unicast address.
    Invalid,
    Known(MacAddr),
}

/// An instance with its MAC addresses.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Guest {
    /// Every address of a named interface in the specification or the status, with the position of the interface.
    pub(super) all: BTreeMap<MacAddr, usize>,
    /// Addresses that must be unique in the cluster. Empty if the guest does not run.
    pub(super) unique: BTreeSet<MacAddr>,
    /// Whether the guest runs. If an instance does not run, a user may have invented its addresses.
    pub(super) is_running: bool,
    /// Whether the guest has migrated to another cluster or namespace, where it runs with the same addresses.
    pub(super) has_left: bool,
    pub(super) created: Option<Timestamp>,
}

// === impl Vm ===

impl Vm {
    /// Reads a VirtualMachine. A member with an unexpected structure counts as absent.
    pub(super) fn read(object: &Object) -> Self {
        let ObjectMeta {
            namespace, name, uid, labels, resource_version, creation_timestamp, deletion_timestamp, ..
        } = object.metadata.clone();
        let metadata = ObjectMeta {
            namespace,
            name,
            uid,
            labels,
            resource_version,
            creation_timestamp,
            deletion_timestamp,
            ..ObjectMeta::default()
        };
        let template = &object.data["spec"]["template"];
        let read = |(name, address): (&str, Option<&str>)| {
            let address = match address {
                None => Address::Missing,
                Some(text) => read_mac_address(text).map_or(Address::Invalid, Address::Known),
            };
            (name.to_owned(), address)
        };
        Self {
            metadata,
            has_label: requires_mac_addresses(template),
            interfaces: interfaces(&template["spec"]).map(read).collect(),
        }
    }

    pub(super) fn uid(&self) -> &str {
        self.metadata.uid.as_deref().unwrap_or_default()
    }

    pub(super) fn is_deleted(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }

    pub(super) fn addresses(&self) -> impl Iterator<Item = MacAddr> {
        self.interfaces.iter().filter_map(|(_, address)| match address {
            Address::Known(address) => Some(*address),
            Address::Missing | Address::Invalid => None,
        })
    }

    /// The interfaces without an address, with their positions.
    pub(super) fn missing(&self) -> impl Iterator<Item = (usize, &str)> {
        let missing = |(_, (_, address)): &(usize, &(String, Address))| *address == Address::Missing;
        self.interfaces.iter().enumerate().filter(missing).map(|(position, (name, _))| (position, name.as_str()))
    }

    /// Whether this version and `other` differ only in members that no decision reads.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        let metadata =
            ObjectMeta { resource_version: other.metadata.resource_version.clone(), ..self.metadata.clone() };
        Self { metadata, ..self.clone() } == *other
    }
}

// === impl Guest ===

impl Guest {
    /// Reads an instance. A member with an unexpected structure counts as absent.
    pub(super) fn read(object: &Object) -> Self {
        let (spec, status) = (&object.data["spec"], &object.data["status"]);
        // If an interface is on the network of pods with `bridge` or another direct binding, its address belongs to the
        // network plugin. The plugin may use one address on several isolated networks.
        let (networks, of_spec) = (by_name(&spec["networks"]), by_name(&spec["domain"]["devices"]["interfaces"]));
        let is_unique = |name: &str| {
            let (network, interface) = (networks.get(name), of_spec.get(name));
            let is_masquerade = interface.is_some_and(|interface| interface["masquerade"].is_object());
            network.is_some_and(|network| network["multus"].is_object() || is_masquerade)
        };
        let in_spec = interfaces(spec).filter_map(|(name, address)| Some((name, address?)));
        // An interface without a name exists only inside the guest, and does not count: otherwise a guest could use up
        // a pool.
        let in_status = items(&status["interfaces"])
            .filter_map(|interface| Some((interface["name"].as_str()?, interface["mac"].as_str()?)));
        let all = in_spec.chain(in_status).filter_map(|(name, address)| Some((name, read_mac_address(address)?)));
        let all: Vec<(&str, MacAddr)> = all.collect();
        let is_running = status["phase"] == "Running";
        let unique = all.iter().filter(|(name, _)| is_running && is_unique(name)).map(|(_, address)| *address);
        let unique = unique.collect();
        // If several interfaces have the same address, the first one counts.
        let all = all.iter().enumerate().rev().map(|(position, (_, address))| (*address, position)).collect();
        let created = object.metadata.creation_timestamp.as_ref().map(|time| time.0);
        Self { all, unique, is_running, has_left: has_left(object), created }
    }

    /// The addresses of a pool that the instance has, with the positions of their interfaces.
    pub(super) fn of(&self, pool: &MacPool) -> impl Iterator<Item = (usize, MacAddr)> {
        let of_pool = self.all.iter().filter(|(address, _)| pool.contains(**address));
        of_pool.map(|(address, position)| (*position, *address))
    }
}
