//! Selects the pools that serve a machine, and the interface for each pool. Pure: the input is objects, the output is
//! pools.
//!
//! | a pool has | it selects |
//! |---|---|
//! | `nodePoolRef` | VirtualMachines of this NodePool, in the namespace that HyperShift creates for the cluster of the NodePool |
//! | `machineSelector` | VirtualMachines in the namespace of the pool whose labels match |
//!
//! At most one pool of each network serves a machine. An ambiguous case is a [`Problem`]; the controller never guesses,
//! because a machine with an address of the wrong pool is harder to diagnose than a machine that does not start.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use glowplug::host::claim::is_object_name;
use glowplug::host::nodepool::{acpi_index, machines_namespace};
use glowplug::host::pool::{Namespaces, Pool};
use glowplug::network::InterfaceName;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::{Selector, SelectorExt as _};

use crate::cluster::key::{Key, PoolId};
use crate::cluster::object::Object;
use crate::kinds::pool::{NodePoolRef, PoolSpec, PoolStatus};
use crate::kinds::schema::lines;
use crate::kinds::virtual_machine::{Attachment, NODE_POOL_LABEL, VirtualMachine};
use crate::pools::facts::{Facts, PoolObject};

/// The pools that select machines, at one point in time.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    pools: BTreeMap<PoolId, Arc<MachinePool>>,
    /// Pools by the namespace of the machines that they select, each with the selector for the labels of these
    /// machines. Pools that are being deleted select no machine.
    selectors: BTreeMap<String, Vec<(Selector, PoolId)>>,
    /// The same for the pools that are being deleted and still refer to their machines.
    ending: BTreeMap<String, Vec<(Selector, PoolId)>>,
    node_pools: BTreeMap<Key, Arc<Object>>,
}

/// A pool of addresses, with its state in the cluster.
#[derive(Clone, Debug, PartialEq)]
pub struct MachinePool {
    /// Namespace and name of the pool.
    pub id: PoolId,
    /// UID of the pool.
    pub uid: String,
    /// The specification. If the object cannot be read, this is the default specification.
    pub spec: PoolSpec,
    /// The addresses of the pool, or every error of the specification.
    pub pool: Result<Pool, String>,
    /// What the schema of this version does not allow in the specification, one line each. `None`: it allows all of it.
    pub beyond_schema: Option<String>,
    /// Message of the condition `Exhausted`: the leader found no free address. `None`: the pool has free addresses, or
    /// the leader has not counted them yet.
    pub exhausted: Option<String>,
    /// Whether the pool is being deleted.
    pub is_deleted: bool,
    /// UID of the object that controls the pool: the NodePool from which the pool is derived. `None`: a user created
    /// the pool.
    pub owner: Option<String>,
}

/// A pool of either kind, read and checked once.
#[derive(Clone, Debug)]
pub struct KnownPool {
    /// Metadata of the object.
    pub metadata: ObjectMeta,
    /// The stored status.
    pub status: PoolStatus,
    /// The members that no count in the status changes.
    pub checked: Arc<MachinePool>,
}

/// The pools that the registry has. Everything that allocates works with these pools, so that it knows no pool that the
/// registry does not know yet.
#[derive(Clone, Debug, Default)]
pub struct OpenPools {
    /// Facts about each pool that claims need, by the name of the pool.
    pub facts: Facts,
    /// Names of the pools that allocate nothing.
    pub suspended: BTreeSet<String>,
    /// The pools that select machines.
    pub selection: Arc<Selection>,
    /// Number of the last growth of the allocatable addresses, see [`Registry::growth`](glowplug::host::registry::Registry::growth).
    /// The records of these addresses must be adopted before the pools are used.
    pub growth: u64,
}

/// One pool that serves a machine.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Selected {
    /// Namespace and name of the pool.
    pub pool: PoolId,
    /// Network of the addresses, in the notation of [`Pool::network`].
    pub network: String,
    /// Name of the interface in the guest. Example: `eno101`.
    pub interface: InterfaceName,
    /// KubeVirt's name of the interface, which the guest does not see.
    pub attachment: String,
}

/// Why the pools of a machine are ambiguous. The message names every object that is involved.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Problem {
    /// A pool that selects the machine has errors.
    InvalidPool {
        /// Namespace and name of the pool.
        pool: PoolId,
        /// Every error in the specification of the pool, one line each.
        errors: String,
    },
    /// Two pools select the machine and have the same network, or the same interface in the guest.
    TwoPools {
        /// Namespaces and names of the two pools, sorted.
        pools: [PoolId; 2],
        /// The common property: `network infra/vlan10` or `interface eno101`.
        both: String,
    },
    /// The machine has no interface on the network of a pool, or more than one.
    NoInterface {
        /// Namespace and name of the pool.
        pool: PoolId,
        /// Network of the pool.
        network: String,
        /// KubeVirt's names of the interfaces on the network: none, or at least two.
        found: Vec<String>,
    },
    /// The guest cannot give the interface on the network of the pool the name that the pool requires.
    OtherName {
        /// Namespace and name of the pool.
        pool: PoolId,
        /// KubeVirt's name of the interface with this index.
        attachment: String,
        /// `acpiIndex` of this interface.
        index: u32,
        /// The name that the pool requires.
        interface: InterfaceName,
        /// KubeVirt's name of the interface on the network of the pool.
        wanted: String,
    },
}

// === impl Selection ===

impl Selection {
    /// Creates the selection of these pools. A pool whose NodePool is not in `node_pools` selects no machine.
    #[must_use]
    pub fn new(
        pools: impl IntoIterator<Item = Arc<MachinePool>>,
        node_pools: impl IntoIterator<Item = Arc<Object>>,
    ) -> Self {
        let node_pools: BTreeMap<Key, Arc<Object>> =
            node_pools.into_iter().map(|node_pool| (Key::of(&node_pool.metadata), node_pool)).collect();
        let pools: BTreeMap<PoolId, Arc<MachinePool>> = pools.into_iter().map(|pool| (pool.id.clone(), pool)).collect();
        let [mut selectors, mut ending] = [BTreeMap::<String, Vec<(Selector, PoolId)>>::new(), BTreeMap::new()];
        for pool in pools.values().filter(|pool| !pool.is_withdrawn(&node_pools)) {
            if let Some((namespace, selector)) = pool.selector(&node_pools) {
                let known = if pool.is_deleted { &mut ending } else { &mut selectors };
                known.entry(namespace).or_default().push((selector, pool.id.clone()));
            }
        }
        Self { pools, selectors, ending, node_pools }
    }

    /// Returns the namespaces in which a pool may select machines, or a pool that is being deleted refers to machines.
    pub fn namespaces(&self) -> impl Iterator<Item = &str> {
        let all: BTreeSet<&String> = self.selectors.keys().chain(self.ending.keys()).collect();
        all.into_iter().map(String::as_str)
    }

    /// Returns the pool with this namespace and name.
    #[must_use]
    pub fn pool(&self, id: &PoolId) -> Option<&Arc<MachinePool>> {
        self.pools.get(id)
    }

    /// Returns the NodePools of the cluster.
    #[must_use]
    pub fn node_pools(&self) -> &BTreeMap<Key, Arc<Object>> {
        &self.node_pools
    }

    /// Returns every pool, sorted by name.
    pub fn pools(&self) -> impl Iterator<Item = &Arc<MachinePool>> {
        self.pools.values()
    }

    /// Returns the name of the hosted cluster for each pool with a NodePool.
    #[must_use]
    pub fn clusters(&self) -> BTreeMap<PoolId, String> {
        let cluster = |pool: &Arc<MachinePool>| {
            let cluster = cluster_of(self.node_pools.get(&pool.node_pool()?)?)?;
            Some((pool.id.clone(), cluster.to_owned()))
        };
        self.pools.values().filter_map(cluster).collect()
    }

    /// Returns the pools that serve a machine, at most one for each network, in the order of the machine's interfaces.
    /// Empty: no pool selects the machine.
    ///
    /// # Errors
    ///
    /// [`Problem`]: the machine must not start before a pool or the machine is changed.
    pub fn of(&self, machine: &VirtualMachine) -> Result<Vec<Selected>, Problem> {
        let none = BTreeMap::new();
        let namespace = machine.metadata.namespace.as_deref().unwrap_or_default();
        let labels = machine.metadata.labels.as_ref().unwrap_or(&none);
        let candidates = self.selectors.get(namespace).into_iter().flatten();
        let matching = candidates.filter(|(selector, _)| selector.matches(labels)).map(|(_, id)| &self.pools[id]);
        let mut chosen: Vec<(&Attachment, Selected)> = Vec::new();
        for pool in matching {
            let selected = pool.place(machine)?;
            for (_, other) in &chosen {
                other.check_distinct(&selected.1)?;
            }
            chosen.push(selected);
        }
        chosen.sort_by_key(|(attachment, _)| attachment.index);
        Ok(chosen.into_iter().map(|(_, selected)| selected).collect())
    }

    /// Returns a pool that is being deleted and refers to a machine, while no pool of `selected` is on its network. Such a machine
    /// must not be created: it would start without network data.
    #[must_use]
    pub fn ending(&self, machine: &VirtualMachine, selected: &[Selected]) -> Option<&MachinePool> {
        let none = BTreeMap::new();
        let namespace = machine.metadata.namespace.as_deref().unwrap_or_default();
        let labels = machine.metadata.labels.as_ref().unwrap_or(&none);
        let candidates = self.ending.get(namespace).into_iter().flatten();
        let matching = candidates.filter(|(selector, _)| selector.matches(labels)).map(|(_, id)| &*self.pools[id]);
        let is_served = |of: &Selected| selected.iter().any(|it| it.network == of.network);
        matching.into_iter().find(|pool| match pool.place(machine) {
            Ok((_, of)) => !is_served(&of),
            Err(Problem::InvalidPool { .. }) => selected.is_empty(),
            Err(_) => false,
        })
    }
}

// === impl KnownPool ===

impl KnownPool {
    /// Reads and checks a pool.
    #[must_use]
    pub fn read(object: PoolObject) -> Self {
        let (metadata, status) = (object.metadata.clone(), object.status.clone().unwrap_or_default());
        Self { metadata, status, checked: Arc::new(MachinePool::read(object)) }
    }
}

// === impl MachinePool ===

impl MachinePool {
    /// Reads a pool.
    #[must_use]
    pub fn read(object: PoolObject) -> Self {
        let PoolObject { metadata, spec, status } = object;
        let id = PoolId::of(&metadata);
        let (spec, error) = match spec {
            Ok(spec) => (spec, None),
            Err(error) => (PoolSpec::default(), Some(error)),
        };
        let pool = error.map_or_else(|| id.check_lines(&spec), Err);
        let beyond_schema = lines(&spec.beyond_schema());
        let conditions = status.into_iter().flat_map(|status| status.conditions);
        let owners = metadata.owner_references.into_iter().flatten();
        let owner = owners.into_iter().find(|owner| owner.controller == Some(true)).map(|owner| owner.uid);
        let exhausted = conditions.into_iter().find(|it| it.type_ == "Exhausted" && it.status == "True");
        Self {
            id,
            uid: metadata.uid.unwrap_or_default(),
            spec,
            pool,
            beyond_schema,
            exhausted: exhausted.map(|condition| condition.message),
            is_deleted: metadata.deletion_timestamp.is_some(),
            owner,
        }
    }

    /// Network of the addresses. `None`: the specification has errors.
    #[must_use]
    pub fn network(&self) -> Option<&str> {
        self.pool.as_ref().ok().map(Pool::network)
    }

    /// Returns the namespace and name of the pool's NodePool, which is in the namespace of the pool.
    #[must_use]
    pub fn node_pool(&self) -> Option<Key> {
        let NodePoolRef { name } = self.spec.node_pool_ref.as_ref()?;
        Some(Key { namespace: self.id.namespace.clone()?, name: name.clone() })
    }

    /// Whether the pool is derived from a NodePool that has no configuration any more: new machines start without its addresses.
    fn is_withdrawn(&self, node_pools: &BTreeMap<Key, Arc<Object>>) -> bool {
        let node_pool = self.node_pool().and_then(|key| node_pools.get(&key));
        self.is_deleted
            && node_pool.is_some_and(|it| self.owner.is_some() && self.owner == it.metadata.uid && !has_config(it))
    }

    /// Returns the namespaces of the machines that the pool may serve, and those of the claims. `cluster` is the cluster of
    /// the NodePool of the pool, if the NodePool exists.
    #[must_use]
    pub fn namespaces(&self, cluster: Option<&str>) -> [Namespaces; 2] {
        let claims =
            self.id.namespace.as_ref().map_or_else(Namespaces::every, |namespace| Namespaces::only([namespace]));
        let machines = match (self.node_pool(), cluster, &self.spec.machine_selector) {
            (Some(Key { namespace, .. }), Some(cluster), _) => {
                Namespaces::only([machines_namespace(&namespace, cluster)])
            }
            (Some(Key { namespace, .. }), None, _) => Namespaces::of_clusters_in(namespace),
            (None, _, Some(_)) => Namespaces::only(self.id.namespace.clone()),
            (None, _, None) => Namespaces::only(None::<String>),
        };
        [machines, claims]
    }

    /// Returns the namespace of the machines that the pool selects, and the selector for their labels.
    fn selector(&self, node_pools: &BTreeMap<Key, Arc<Object>>) -> Option<(String, Selector)> {
        if let Some(node_pool) = self.node_pool() {
            let namespace = machines_namespace(&node_pool.namespace, cluster_of(node_pools.get(&node_pool)?)?);
            let selector = [(NODE_POOL_LABEL.to_owned(), node_pool.name)].into_iter().collect();
            return Some((namespace, selector));
        }
        // A selector that cannot be read selects no machine. The pool then has the condition `InvalidSpec`.
        let selector = Selector::try_from(self.spec.machine_selector.clone()?).ok()?;
        Some((self.id.namespace.clone()?, selector))
    }

    /// Returns the interface of a machine that gets addresses of this pool.
    fn place<'m>(&self, machine: &'m VirtualMachine) -> Result<(&'m Attachment, Selected), Problem> {
        let id = &self.id;
        let pool = self.pool.as_ref().map_err(|errors| {
            let (pool, errors) = (id.clone(), errors.clone());
            Problem::InvalidPool { pool, errors }
        })?;
        let on_network: Vec<&Attachment> =
            machine.networks.iter().filter(|attachment| attachment.network == pool.network()).collect();
        let [attachment] = on_network[..] else {
            let found = on_network.into_iter().map(|attachment| attachment.name.clone()).collect();
            return Err(Problem::NoInterface { pool: id.clone(), network: pool.network().to_owned(), found });
        };
        let index = acpi_index(&pool.interface()).map(u32::from);
        let has_name = |other: &&Attachment| match other.acpi_index {
            Some(given) if other.index == attachment.index => index.is_some_and(|index| index != given),
            Some(given) => index == Some(given),
            None => false,
        };
        if let Some((other, given)) =
            machine.networks.iter().find(has_name).and_then(|other| Some((other, other.acpi_index?)))
        {
            return Err(Problem::OtherName {
                pool: id.clone(),
                attachment: other.name.clone(),
                index: given,
                interface: pool.interface(),
                wanted: attachment.name.clone(),
            });
        }
        let selected = Selected {
            pool: id.clone(),
            network: pool.network().to_owned(),
            interface: pool.interface(),
            attachment: attachment.name.clone(),
        };
        Ok((attachment, selected))
    }
}

/// Returns the name of the HostedCluster of a NodePool. The HostedCluster is in the namespace of the NodePool. `None`: the
/// NodePool has no name that an object may have. The name becomes a part of the path of a request.
#[must_use]
pub fn cluster_of(node_pool: &Object) -> Option<&str> {
    node_pool.data["spec"]["clusterName"].as_str().filter(|name| is_object_name(name))
}

/// Whether a NodePool has a configuration from which a pool is derived.
pub(super) fn has_config(node_pool: &Object) -> bool {
    !node_pool.data["spec"]["platform"]["kubevirt"]["bootstrapNetworkConfig"].is_null()
}

// === impl Selected ===

impl Selected {
    fn check_distinct(&self, other: &Self) -> Result<(), Problem> {
        let both = if self.network == other.network {
            format!("network {}", self.network)
        } else if self.interface == other.interface {
            format!("interface {}", self.interface)
        } else {
            return Ok(());
        };
        let pools = [self.pool.clone(), other.pool.clone()];
        Err(Problem::TwoPools { pools, both })
    }
}

// === impl Problem ===

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InvalidPool { pool, errors } => write!(f, "pool {pool} selects the machine and is invalid: {errors}"),
            Self::TwoPools { pools: [one, other], both } => {
                write!(f, "pools {one} and {other} both select the machine for {both}, expected one pool")
            }
            Self::NoInterface { pool, network, found } if found.is_empty() => {
                write!(f, "pool {pool}: the machine has no interface on network {network}, expected one")
            }
            Self::NoInterface { pool, network, found } => {
                let found = found.join(", ");
                write!(f, "pool {pool}: the machine has the interfaces {found} on network {network}, expected one")
            }
            Self::OtherName { pool, attachment, index, interface, wanted } if attachment == wanted => {
                write!(
                    f,
                    "pool {pool}: interface {wanted} of the machine has acpiIndex {index}, \
                     expected none or the one of {interface}, the interface of the pool"
                )
            }
            Self::OtherName { pool, attachment, index, interface, wanted } => {
                write!(
                    f,
                    "pool {pool}: interface {attachment} of the machine has acpiIndex {index}, \
                     expected another one: {interface} is the interface of the pool, and {wanted} is on its network"
                )
            }
        }
    }
}

impl std::error::Error for Problem {}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// Creates a pool of NodePool `clusters/p` on network `infra/vlan10`, and merges `changes` into it.
    fn pool(name: &str, changes: &Value) -> Arc<MachinePool> {
        let mut object = json!({
            "metadata": {"namespace": "clusters", "name": name},
            "spec": {"network": "infra/vlan10", "addresses": ["10.0.0.0/24"], "nodePoolRef": {"name": "p"}},
        });
        json_patch::merge(&mut object, changes);
        Arc::new(MachinePool::read(PoolObject::read(serde_json::from_value(object).unwrap())))
    }

    fn node_pool(namespace: &str, name: &str, cluster: &str) -> Arc<Object> {
        let object = json!({"metadata": {"namespace": namespace, "name": name}, "spec": {"clusterName": cluster}});
        Arc::new(serde_json::from_value(object).unwrap())
    }

    /// Creates a selection of pools, with NodePool `clusters/p` of cluster `c.1`.
    fn selection(pools: impl IntoIterator<Item = Arc<MachinePool>>) -> Selection {
        Selection::new(pools, [node_pool("clusters", "p", "c.1")])
    }

    /// Creates a machine of NodePool `p` in namespace `clusters-c-1`. `interfaces` has name, network and `acpiIndex` of
    /// each interface.
    fn machine(interfaces: &[(&str, &str, u32)]) -> VirtualMachine {
        machine_of("clusters-c-1", &json!({(NODE_POOL_LABEL): "p"}), interfaces)
    }

    fn machine_of(namespace: &str, labels: &Value, interfaces: &[(&str, &str, u32)]) -> VirtualMachine {
        let networks = interfaces.iter().map(|(name, network, _)| match *network {
            "default" => json!({"name": name, "pod": {}}),
            network => json!({"name": name, "multus": {"networkName": network}}),
        });
        let networks: Vec<Value> = networks.collect();
        let interfaces: Vec<Value> =
            interfaces.iter().map(|(name, _, index)| json!({"name": name, "acpiIndex": index})).collect();
        let spec = json!({"networks": networks, "domain": {"devices": {"interfaces": interfaces}}});
        let metadata = json!({"namespace": namespace, "name": "w-0", "labels": labels});
        let object = json!({"metadata": metadata, "spec": {"template": {"spec": spec}}});
        VirtualMachine::read(serde_json::from_value(object).unwrap())
    }

    /// Selects the pools of a machine. Returns each as text: pool, network, interface in the guest, KubeVirt's
    /// interface.
    fn of(selection: &Selection, machine: &VirtualMachine) -> Result<Vec<String>, String> {
        let row = |it: Selected| format!("{} {} {} {}", it.pool, it.network, it.interface, it.attachment);
        let selected = selection.of(machine).map_err(|problem| problem.to_string())?;
        Ok(selected.into_iter().map(row).collect())
    }

    fn selected(rows: &[&str]) -> Result<Vec<String>, String> {
        Ok(rows.iter().map(|&row| row.to_owned()).collect())
    }

    #[test]
    fn a_node_pool_reference_selects_the_machines_of_the_node_pool_in_the_namespace_of_its_cluster() {
        let selection = selection([pool("a", &json!({}))]);
        let interfaces = [("default", "default", 0), ("iface1", "infra/vlan10", 0)];
        assert_eq!(of(&selection, &machine(&interfaces)), selected(&["clusters/a infra/vlan10 eno101 iface1"]));
        let elsewhere = machine_of("clusters-c2", &json!({(NODE_POOL_LABEL): "p"}), &interfaces);
        assert_eq!(of(&selection, &elsewhere), selected(&[]));
        let other_node_pool = machine_of("clusters-c-1", &json!({(NODE_POOL_LABEL): "q"}), &interfaces);
        assert_eq!(of(&selection, &other_node_pool), selected(&[]));
        assert_eq!(selection.namespaces().collect::<Vec<_>>(), ["clusters-c-1"]);
        let id = PoolId { namespace: Some("clusters".to_owned()), name: "a".to_owned() };
        assert_eq!(selection.clusters(), [(id, "c.1".to_owned())].into());
    }

    #[test]
    fn a_pool_of_a_node_pool_that_does_not_exist_selects_no_machine() {
        for node_pools in [vec![], vec![node_pool("other", "p", "c.1")], vec![node_pool("clusters", "p", "")]] {
            let selection = Selection::new([pool("a", &json!({}))], node_pools);
            assert_eq!(of(&selection, &machine(&[("a", "infra/vlan10", 0)])), selected(&[]));
        }
    }

    #[test]
    fn a_machine_selector_selects_machines_of_the_namespace_of_the_pool_by_their_labels() {
        let by = |selector: Value| {
            selection([pool("a", &json!({"spec": {"nodePoolRef": null, "machineSelector": selector}}))])
        };
        let labels = json!({"role": "worker", "zone": "z1"});
        let here = machine_of("clusters", &labels, &[("x", "infra/vlan10", 0)]);
        let elsewhere = machine_of("other", &labels, &[("x", "infra/vlan10", 0)]);
        let is_selected = |selector: Value| of(&by(selector), &here).map(|rows| !rows.is_empty());
        let term = |operator: &str, values: Value| json!({"matchExpressions": [{"key": "zone", "operator": operator, "values": values}]});
        assert_eq!(is_selected(json!({})), Ok(true));
        assert_eq!(of(&by(json!({})), &elsewhere), selected(&[]));
        assert_eq!(is_selected(json!({"matchLabels": {"role": "worker"}})), Ok(true));
        assert_eq!(is_selected(json!({"matchLabels": {"role": "infra"}})), Ok(false));
        assert_eq!(is_selected(term("In", json!(["z1", "z2"]))), Ok(true));
        assert_eq!(is_selected(term("NotIn", json!(["z1"]))), Ok(false));
        assert_eq!(is_selected(term("Exists", Value::Null)), Ok(true));
        assert_eq!(is_selected(term("DoesNotExist", Value::Null)), Ok(false));
        assert_eq!(is_selected(term("Near", json!(["z1"]))), Ok(false));
    }

    #[test]
    fn a_pool_for_claims_only_selects_no_machine() {
        let selection = selection([pool("a", &json!({"spec": {"nodePoolRef": null}}))]);
        assert_eq!(of(&selection, &machine(&[("x", "infra/vlan10", 0)])), selected(&[]));
        assert_eq!(selection.namespaces().count(), 0);
    }

    #[test]
    fn a_pool_that_is_being_deleted_selects_no_machine() {
        let pool = pool("a", &json!({"metadata": {"deletionTimestamp": "2026-08-14T10:00:00Z"}}));
        let selection = selection([pool]);
        assert_eq!(of(&selection, &machine(&[("x", "infra/vlan10", 0)])), selected(&[]));
        assert_eq!(selection.pools().count(), 1);
    }

    #[test]
    fn a_machine_gets_one_pool_for_each_network_in_the_order_of_its_interfaces() {
        let selection = selection([
            pool("a", &json!({"spec": {"network": "infra/vlan20", "interface": "eno102"}})),
            pool("b", &json!({})),
        ]);
        let machine = machine(&[("one", "infra/vlan10", 0), ("two", "infra/vlan20", 102)]);
        let expected = ["clusters/b infra/vlan10 eno101 one", "clusters/a infra/vlan20 eno102 two"];
        assert_eq!(of(&selection, &machine), selected(&expected));
    }

    #[test]
    fn two_pools_of_one_network_that_select_a_machine_are_a_problem() {
        let selection = selection([pool("b", &json!({})), pool("a", &json!({"spec": {"interface": "eno102"}}))]);
        let expected =
            "pools clusters/a and clusters/b both select the machine for network infra/vlan10, expected one pool";
        assert_eq!(of(&selection, &machine(&[("x", "infra/vlan10", 0)])), Err(expected.to_owned()));
    }

    #[test]
    fn two_pools_of_one_interface_that_select_a_machine_are_a_problem() {
        let selection = selection([pool("a", &json!({})), pool("b", &json!({"spec": {"network": "default"}}))]);
        let machine = machine(&[("x", "infra/vlan10", 0), ("y", "default", 0)]);
        let expected =
            "pools clusters/a and clusters/b both select the machine for interface eno101, expected one pool";
        assert_eq!(of(&selection, &machine), Err(expected.to_owned()));
    }

    #[test]
    fn a_machine_without_an_interface_on_the_network_is_a_problem() {
        let selection = selection([pool("a", &json!({}))]);
        let expected = "pool clusters/a: the machine has no interface on network infra/vlan10, expected one";
        assert_eq!(of(&selection, &machine(&[("x", "default", 0)])), Err(expected.to_owned()));
        let two = machine(&[("x", "infra/vlan10", 101), ("y", "infra/vlan10", 0)]);
        let expected = "pool clusters/a: the machine has the interfaces x, y on network infra/vlan10, expected one";
        assert_eq!(of(&selection, &two), Err(expected.to_owned()));
    }

    #[test]
    fn an_index_that_gives_another_name_is_a_problem() {
        let selection = selection([pool("a", &json!({}))]);
        let expected = "pool clusters/a: interface x of the machine has acpiIndex 7, expected none or the one of eno101, \
                        the interface of the pool";
        assert_eq!(of(&selection, &machine(&[("x", "infra/vlan10", 7)])), Err(expected.to_owned()));
        let expected = "pool clusters/a: interface y of the machine has acpiIndex 101, expected another one: eno101 is the \
                        interface of the pool, and x is on its network";
        let taken = machine(&[("x", "infra/vlan10", 0), ("y", "default", 101)]);
        assert_eq!(of(&selection, &taken), Err(expected.to_owned()));
        let right = machine(&[("x", "infra/vlan10", 101), ("y", "default", 7)]);
        assert_eq!(of(&selection, &right), selected(&["clusters/a infra/vlan10 eno101 x"]));
    }

    #[test]
    fn an_interface_whose_name_comes_from_no_index_has_any_index() {
        let selection = selection([pool("a", &json!({"spec": {"interface": "ens3"}}))]);
        let machine = machine(&[("x", "infra/vlan10", 7)]);
        assert_eq!(of(&selection, &machine), selected(&["clusters/a infra/vlan10 ens3 x"]));
    }

    #[test]
    fn an_invalid_pool_that_selects_a_machine_is_a_problem() {
        let selection = selection([pool("a", &json!({"spec": {"addresses": ["x"]}}))]);
        let expected = "pool clusters/a selects the machine and is invalid: addresses[0]: invalid address \"x\", expected \
                        an address, a CIDR or a range, such as 10.0.0.5, 10.0.0.0/24 or 10.0.0.5-10.0.0.9";
        assert_eq!(of(&selection, &machine(&[("x", "infra/vlan10", 0)])), Err(expected.to_owned()));
    }

    #[test]
    fn a_pool_whose_addresses_are_all_allocated_has_the_message_of_its_condition() {
        let condition = |status: &str| {
            let condition = json!({
                "type": "Exhausted", "status": status, "reason": "r", "message": "No available IPs",
                "lastTransitionTime": "2026-08-14T10:00:00Z",
            });
            pool("a", &json!({"status": {"conditions": [condition]}})).exhausted.clone()
        };
        assert_eq!([condition("True"), condition("False")], [Some("No available IPs".to_owned()), None]);
    }

    #[test]
    fn no_content_of_a_pool_or_a_node_pool_changes_the_pools_of_a_machine_of_another_namespace() {
        let condition = json!({
            "type": "Exhausted", "status": "True", "reason": "NoFreeAddress", "message": "x",
            "lastTransitionTime": "2026-08-14T10:00:00Z",
        });
        let owner = json!({"apiVersion": "v1", "kind": "NodePool", "name": "p", "uid": "u", "controller": true});
        let of_user = json!({
            "metadata": {"namespace": "evil", "name": "hostile", "labels": {"a": "b"}, "ownerReferences": [owner]},
            "spec": {
                "network": "infra/vlan10", "addresses": ["10.0.0.0/24"], "nodePoolRef": {"name": "p"},
                "machineSelector": {"matchLabels": {"a": "b"}, "matchExpressions": [{"key": "a", "operator": "Exists"}]},
            },
            "status": {"conditions": [condition]},
        });
        let node_pool_of_user = json!({
            "metadata": {"namespace": "evil", "name": "p", "labels": {"a": "b"}}, "spec": {"clusterName": "c.1"},
        });
        let machine = machine(&[("iface1", "infra/vlan10", 0)]);
        let expected = selected(&["clusters/honest infra/vlan10 eno101 iface1"]);
        let check = |pool_of_user: Object, node_pool_of_user: Arc<Object>| {
            let pools = [pool("honest", &json!({})), Arc::new(MachinePool::read(PoolObject::read(pool_of_user)))];
            let selection = Selection::new(pools, [node_pool("clusters", "p", "c.1"), node_pool_of_user]);
            assert_eq!(of(&selection, &machine), expected);
            let id = PoolId { namespace: Some("clusters".to_owned()), name: "honest".to_owned() };
            assert_eq!(selection.clusters().get(&id).map(String::as_str), Some("c.1"));
            // Every namespace is one that an API server may have.
            assert!(selection.namespaces().all(is_object_name));
        };
        crate::hostile::each_object(&of_user, |object| check(object, node_pool("evil", "p", "c.1")));
        crate::hostile::each_object(&node_pool_of_user, |object| {
            check(serde_json::from_value(of_user.clone()).unwrap(), Arc::new(object));
        });
    }

    #[test]
    fn a_cluster_name_that_no_object_can_have_counts_as_absent() {
        for name in ["", "../other/hostedclusters/c1", "c1?x", "C1"] {
            assert_eq!(cluster_of(&node_pool("clusters", "p", name)), None, "{name}");
        }
    }
}
