//! Models a cluster. The model tracks the addresses that each guest really uses, and prints lists of the cluster's
//! objects.

use std::net::IpAddr;

use glowplug::host::claim::Machine;
use ipnetwork::IpNetwork;
use serde_json::{Map, Value, json};

use crate::support::random::Random;
use crate::support::time;

/// A machine with all of its objects. The index of a machine in the cluster never changes.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) machine: Machine,
    /// UID of the VirtualMachine.
    guest_uid: String,
    /// Creation time of the KubevirtMachine by the clock of the API server, in milliseconds since 1970.
    pub(super) created: u64,
    /// Creation time of the VirtualMachine and its instance, in the same unit.
    guest_created: u64,
    /// Names of the pools in the claim of the machine. When a pool is renamed, its name in this list changes, too.
    pub(super) pools: Vec<String>,
    pub(super) is_sticky: bool,
    style: Style,
    /// Value of the NodePool annotation: the name of the first pool at the creation of the machine.
    node_pool: String,
    pub(super) has_object: bool,
    /// Whether the objects of the machine record the addresses of its NICs.
    pub(super) has_record: bool,
    pub(super) has_guest: bool,
    pub(super) is_running: bool,
    pub(super) nics: Vec<Nic>,
}

/// An interface of a guest, with the addresses that it really uses.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Nic {
    pub(super) interface: String,
    pub(super) network: String,
    pub(super) addresses: Vec<IpNetwork>,
}

/// Selects the members that the objects of a machine have. Older programs wrote fewer members.
#[derive(Clone, Debug)]
struct Style {
    names_node_pool: bool,
    lists_networks: bool,
    names_network: bool,
    is_in_status: bool,
    is_in_annotation: bool,
    is_on_guest: bool,
    format: usize,
}

/// A record in a printed list, with the machine and the network to which the record really belongs.
#[derive(Clone, Debug)]
pub(super) struct Printed {
    pub(super) node: usize,
    pub(super) interface: String,
    pub(super) address: IpAddr,
    pub(super) network: String,
    /// Name of the NodePool in the objects. `None`: the objects name no NodePool.
    pub(super) node_pool: Option<String>,
    pub(super) names_network: bool,
}

/// The part of a cluster's objects that the lists contain.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Part {
    All,
    WithoutMachines,
    WithoutGuests,
    /// All objects, except the objects of machines whose index modulo four is this number.
    Some(u64),
}

/// Lists of objects, and a summary of their content.
pub(super) struct Lists {
    pub(super) texts: Vec<String>,
    pub(super) printed: Vec<Printed>,
    /// For each node: whether the lists contain an object of the node.
    pub(super) seen: Vec<bool>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Cluster {
    pub(super) nodes: Vec<Node>,
}

// === impl Node ===

impl Node {
    pub(super) fn new(name: String, at: usize, created: u64, pools: Vec<String>, rng: &mut Random) -> Self {
        let namespace = ["clusters-blue", "clusters-red"][at % 2].to_owned();
        let is_in_annotation = rng.chance(80, 100);
        let style = Style {
            names_node_pool: rng.chance(60, 100),
            lists_networks: rng.chance(70, 100),
            names_network: rng.chance(60, 100),
            is_in_status: !is_in_annotation || rng.chance(30, 100),
            is_in_annotation,
            is_on_guest: rng.chance(60, 100),
            format: rng.below(4),
        };
        Self {
            machine: Machine::new(namespace, name, format!("uid-{at}")),
            guest_uid: format!("guest-{at}"),
            created,
            guest_created: created,
            node_pool: pools[0].clone(),
            pools,
            is_sticky: rng.chance(25, 100),
            style,
            has_object: true,
            has_record: false,
            has_guest: false,
            is_running: false,
            nics: Vec::new(),
        }
    }

    /// Whether an object or a guest of the machine exists. Only then can the addresses of the machine be in use.
    pub(super) fn is_there(&self) -> bool {
        self.has_object || self.has_guest
    }

    pub(super) fn is_called(&self, machine: &Machine) -> bool {
        let same_name = self.machine.namespace == machine.namespace && self.machine.name == machine.name;
        same_name && [&self.machine.uid, &self.guest_uid].contains(&&machine.uid)
    }

    pub(super) fn is_namesake(&self, machine: &Machine) -> bool {
        self.machine.namespace == machine.namespace && self.machine.name == machine.name
    }

    /// Writes the record of the machine and creates its guest.
    pub(super) fn boot(&mut self, nics: Vec<Nic>, now: u64) {
        (self.nics, self.guest_created) = (nics, now);
        (self.has_record, self.has_guest, self.is_running) = (true, true, true);
    }

    fn networks(&self) -> Value {
        let network = |nic: &Nic| match nic.network.as_str() {
            "default" => json!({"name": nic.interface, "pod": {}}),
            network => json!({"name": nic.interface, "multus": {"networkName": network}}),
        };
        if self.style.lists_networks { self.nics.iter().map(network).collect() } else { Value::Null }
    }

    fn texts(&self, nic: &Nic) -> Vec<String> {
        let text = |address: &IpNetwork| match self.style.format {
            2 => address.ip().to_string(),
            _ => address.to_string(),
        };
        nic.addresses.iter().map(text).collect()
    }

    fn annotations(&self, has_record: bool) -> Map<String, Value> {
        let mut annotations = Map::new();
        if self.style.names_node_pool {
            annotations.insert("hypershift.openshift.io/nodePool".to_owned(), self.node_pool.as_str().into());
        }
        for nic in self.nics.iter().filter(|_| has_record && self.has_record) {
            let texts = self.texts(nic);
            let value = if self.style.format == 0 { json!(texts).to_string() } else { texts.join(",") };
            let Nic { interface, network, .. } = nic;
            annotations.insert(format!("kubevirt.cluster.x-k8s.io/allocated-ip-{interface}"), value.into());
            if self.style.names_network {
                annotations.insert(format!("ipam.glowplug.dev/network-{interface}"), network.as_str().into());
            }
        }
        annotations
    }

    fn metadata(&self, uid: &str, created: u64) -> Map<String, Value> {
        let mut metadata = Map::new();
        metadata.insert("namespace".to_owned(), self.machine.namespace.as_str().into());
        metadata.insert("name".to_owned(), self.machine.name.as_str().into());
        metadata.insert("uid".to_owned(), uid.into());
        metadata.insert("creationTimestamp".to_owned(), time(created).to_string().into());
        metadata
    }

    /// Returns the KubevirtMachine of the machine, as JSON.
    fn object(&self) -> Value {
        let mut metadata = self.metadata(&self.machine.uid, self.created);
        let is_annotated = self.style.is_in_annotation;
        metadata.insert("annotations".to_owned(), self.annotations(is_annotated).into());
        let mut map = Map::new();
        for nic in self.nics.iter().filter(|_| self.style.is_in_status && self.has_record) {
            map.insert(nic.interface.clone(), self.texts(nic).into());
        }
        json!({
            "kind": "KubevirtMachine",
            "metadata": metadata,
            "spec": {"virtualMachineTemplate": {"spec": {"template": {"spec": {"networks": self.networks()}}}}},
            "status": {"allocatedBootstrapAddresses": map},
        })
    }

    /// Returns the VirtualMachine of the machine, as JSON.
    fn guest(&self) -> Value {
        let mut metadata = self.metadata(&self.guest_uid, self.guest_created);
        let Machine { namespace, name, .. } = &self.machine;
        metadata.insert(
            "labels".to_owned(),
            json!({"capk.cluster.x-k8s.io/kubevirt-machine-namespace": namespace,
                "capk.cluster.x-k8s.io/kubevirt-machine-name": name}),
        );
        let annotations = self.annotations(self.style.is_on_guest);
        json!({
            "kind": "VirtualMachine",
            "metadata": metadata,
            "spec": {"template": {"metadata": {"annotations": annotations}, "spec": {"networks": self.networks()}}},
        })
    }

    /// Returns the VirtualMachineInstance of the machine, as JSON.
    fn instance(&self) -> Value {
        let mut metadata = self.metadata(&format!("instance-of-{}", self.guest_uid), self.guest_created);
        let owner = json!([{"kind": "VirtualMachine", "name": self.machine.name, "uid": self.guest_uid}]);
        metadata.insert("ownerReferences".to_owned(), owner);
        let interfaces = self.nics.iter().map(|nic| {
            let addresses: Vec<String> = nic.addresses.iter().map(|address| address.ip().to_string()).collect();
            json!({"name": nic.interface, "ipAddresses": addresses})
        });
        metadata.insert("annotations".to_owned(), self.annotations(self.style.is_on_guest).into());
        json!({
            "kind": "VirtualMachineInstance",
            "metadata": metadata,
            "spec": {"networks": self.networks()},
            "status": {"interfaces": interfaces.collect::<Vec<_>>()},
        })
    }

    /// Returns the records that the printed objects of the machine contain.
    fn printed(&self, node: usize, has_object: bool, has_guest: bool) -> Vec<Printed> {
        let Style {
            names_node_pool, lists_networks, names_network, is_in_annotation, is_in_status, is_on_guest, ..
        } = self.style;
        let on_object = has_object && (is_in_annotation || is_in_status);
        let is_recorded = self.has_record && (on_object || has_guest && is_on_guest);
        let is_annotated = has_object && is_in_annotation || has_guest && is_on_guest;
        let is_on_one = self.nics.iter().all(|nic| nic.network == self.nics[0].network);
        let addresses = self.nics.iter().flat_map(|nic| nic.addresses.iter().map(move |address| (nic, address.ip())));
        let printed = addresses.map(|(nic, address)| Printed {
            node,
            interface: nic.interface.clone(),
            address,
            network: nic.network.clone(),
            node_pool: names_node_pool.then(|| self.node_pool.clone()),
            names_network: lists_networks && is_on_one || names_network && is_annotated,
        });
        if is_recorded { printed.collect() } else { Vec::new() }
    }
}

// === impl Cluster ===

impl Cluster {
    /// Prints lists of the objects that `part` selects.
    pub(super) fn lists(&self, part: Part) -> Lists {
        let mut items: [Vec<Value>; 3] = Default::default();
        let (mut printed, mut seen) = (Vec::new(), vec![false; self.nodes.len()]);
        for (at, node) in self.nodes.iter().enumerate() {
            let is_left_out = matches!(part, Part::Some(left_out) if at as u64 % 4 == left_out);
            let has_object = node.has_object && !is_left_out && part != Part::WithoutMachines;
            let has_guest = node.has_guest && !is_left_out && part != Part::WithoutGuests;
            seen[at] = has_object || has_guest;
            items[0].extend(has_object.then(|| node.object()));
            items[1].extend(has_guest.then(|| node.guest()));
            items[2].extend((has_guest && node.is_running).then(|| node.instance()));
            printed.extend(node.printed(at, has_object, has_guest));
        }
        let texts = items.into_iter().map(|items| json!({"kind": "List", "items": items}).to_string()).collect();
        Lists { texts, printed, seen }
    }
}
