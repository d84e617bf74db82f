//! Finds the pools that serve a machine, and the interface for each pool. Pure logic: the input is objects, the output
//! is pools.
//!
//! | a pool has | it selects |
//! |---|---|
//! | `nodePoolRef` | VirtualMachines of this NodePool, in the namespace that HyperShift creates for the cluster of the NodePool |
//! | `machineSelector` | VirtualMachines whose labels match, in the namespace of the pool |
//! | `nodePoolRefs` | VirtualMachines of these NodePools, each in the namespace of its cluster |
//! | `namespaceSelector` | VirtualMachines in the namespaces whose labels match; with `machineSelector`, only those whose own labels match |
//!
//! The last two members exist only in a GlobalStaticIPPool. Only the pool determines the namespaces of its machines: if
//! a user of another namespace writes a label on a machine, this never adds the machine to the pool.
//!
//! If several pools of one network select a machine, they are a pool and its overflow, in the order of `priority`. An
//! ambiguous case is a [`Problem`]. The controller never guesses, because a machine with an address of the wrong pool
//! is harder to diagnose than a machine that does not start.

mod machine_pool;
mod members;
mod problem;
mod selected;

pub use machine_pool::{KnownPool, MachinePool};
pub(super) use members::has_config;
pub use members::{Membership, NamespaceLabels, cluster_of, node_pools_of};
pub use problem::Problem;
pub use selected::Selected;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kube::core::{Selector, SelectorExt as _};

use crate::cluster::key::{Key, PoolId};
use crate::cluster::object::Object;
use crate::kinds::virtual_machine::{Attachment, VirtualMachine};
use crate::pools::facts::Facts;

/// The pools that select machines, at one point in time.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    pools: BTreeMap<PoolId, Arc<MachinePool>>,
    /// The pools by the namespace of the machines that they select, each with the selector for the labels of these
    /// machines. A pool that is being deleted selects no machine.
    selectors: BTreeMap<String, Vec<(Selector, PoolId)>>,
    /// The same as `selectors`, for pools that are being deleted and still refer to their machines.
    ending: BTreeMap<String, Vec<(Selector, PoolId)>>,
    /// Pools that select machines by the labels of Namespaces, while these labels are unknown. Includes pools that are
    /// being deleted. Each pool has its selector for the labels of machines.
    undecided: Vec<(Selector, PoolId)>,
    memberships: Arc<BTreeMap<PoolId, Membership>>,
    node_pools: BTreeMap<Key, Arc<Object>>,
    /// The networks of all valid pools.
    networks: BTreeSet<String>,
    /// Whether the cluster may have further pools, which belong to another controller.
    is_part: bool,
}

/// The pools that the registry has. Every part of the leader that allocates addresses uses only these pools, so no part
/// uses a pool before the registry has it.
#[derive(Clone, Debug, Default)]
pub struct OpenPools {
    /// The facts that claims need, by the name of the pool.
    pub facts: Facts,
    /// Names of the pools that allocate nothing.
    pub suspended: BTreeSet<String>,
    /// Which machines the pools select.
    pub selection: Arc<Selection>,
    /// Number of the last growth of the allocatable addresses: see
    /// [`Registry::growth`](glowplug::host::registry::Registry::growth). The records of added addresses must be adopted
    /// before the pools are used.
    pub growth: u64,
}

// === impl Selection ===

impl Selection {
    /// Creates the selection of these pools. A pool whose NodePool is not in `node_pools` selects no machine.
    /// `namespaces` is `None` if the controller does not know the labels of Namespaces.
    #[must_use]
    pub fn new(
        pools: impl IntoIterator<Item = Arc<MachinePool>>,
        node_pools: impl IntoIterator<Item = Arc<Object>>,
        namespaces: Option<&NamespaceLabels>,
    ) -> Self {
        let node_pools: BTreeMap<Key, Arc<Object>> =
            node_pools.into_iter().map(|node_pool| (Key::of(&node_pool.metadata), node_pool)).collect();
        let pools: BTreeMap<PoolId, Arc<MachinePool>> = pools.into_iter().map(|pool| (pool.id.clone(), pool)).collect();
        let [mut selectors, mut ending] = [BTreeMap::<String, Vec<(Selector, PoolId)>>::new(), BTreeMap::new()];
        let mut undecided = Vec::new();
        for pool in pools.values() {
            for (namespace, selector) in pool.selectors(&node_pools, namespaces) {
                let known = if pool.is_deleted { &mut ending } else { &mut selectors };
                known.entry(namespace).or_default().push((selector, pool.id.clone()));
            }
            // A pool that is being deleted is undecided, too: a machine to which it refers must not start without
            // network data.
            if namespaces.is_none() {
                undecided.extend(pool.selector_in_namespaces().map(|selector| (selector, pool.id.clone())));
            }
        }
        let memberships = pools.iter().map(|(id, pool)| (id.clone(), pool.membership(&node_pools, namespaces)));
        let memberships = Arc::new(memberships.collect());
        let networks = pools.values().filter_map(|pool| pool.network()).map(str::to_owned).collect();
        Self { pools, selectors, ending, undecided, memberships, node_pools, networks, is_part: false }
    }

    /// Sets whether the cluster may have pools of another controller, which this selection lacks.
    #[must_use]
    pub fn of_part(self, is_part: bool) -> Self {
        Self { is_part, ..self }
    }

    /// Whether another controller may serve a machine: no pool of this selection serves it, but the cluster may have
    /// other pools.
    pub(crate) fn may_be_of_another(&self, machine: &VirtualMachine) -> bool {
        self.is_part && self.of(machine).is_ok_and(|all| all.is_empty()) && self.kept(machine, &[]).is_none()
    }

    /// Whether records of machines in this namespace count on this network: a pool of the network serves the namespace,
    /// or is in the namespace and selects no machine.
    pub(crate) fn has_records_of(&self, namespace: &str, network: &str) -> bool {
        let mut pools = self.pools.iter().filter(|(_, pool)| pool.network() == Some(network));
        pools.any(|(id, pool)| {
            let is_own = id.namespace.as_deref() == Some(namespace) && pool.selects_no_machine();
            is_own || self.memberships.get(id).is_some_and(|membership| membership.machines.has(namespace))
        })
    }

    /// Whether a network has a pool.
    pub(crate) fn has_pool_of(&self, network: &str) -> bool {
        self.networks.contains(network)
    }

    /// The networks of `all` on which there is a pool, but no pool of `selected`.
    pub(crate) fn other_networks<'n>(
        &self,
        all: impl Iterator<Item = &'n String>,
        selected: &[Selected],
    ) -> BTreeSet<String> {
        let is_other = |network: &&String| selected.iter().all(|selected| selected.network != **network);
        all.filter(|network| self.networks.contains(*network)).filter(is_other).cloned().collect()
    }

    /// Returns the namespaces in which a pool can select machines, or in which a pool that is being deleted refers to
    /// machines.
    pub fn namespaces(&self) -> impl Iterator<Item = &str> {
        let refers = |(_, id): &(Selector, PoolId)| !self.is_withdrawn(id);
        let ending = self.ending.iter().filter(|(_, pools)| pools.iter().any(refers)).map(|(namespace, _)| namespace);
        let all: BTreeSet<&String> = self.selectors.keys().chain(ending).collect();
        all.into_iter().map(String::as_str)
    }

    /// Whether [`Selection::namespaces`] is complete. `false`: a pool has a `namespaceSelector`, and the labels of
    /// Namespaces are unknown.
    #[must_use]
    pub fn has_every_namespace(&self) -> bool {
        self.undecided.is_empty()
    }

    /// Whether new machines start without the addresses of a pool: see [`MachinePool::is_withdrawn`].
    fn is_withdrawn(&self, id: &PoolId) -> bool {
        self.pools.get(id).is_some_and(|pool| pool.is_withdrawn(&self.node_pools))
    }

    /// Returns the pool with this namespace and name.
    #[must_use]
    pub fn pool(&self, id: &PoolId) -> Option<&Arc<MachinePool>> {
        self.pools.get(id)
    }

    /// Returns the messages about exhaustion if a pool and its whole overflow are exhausted. `None`: one of these pools
    /// has free addresses.
    #[must_use]
    pub fn exhausted(&self, selected: &Selected) -> Option<String> {
        let message = |id: &PoolId| self.pools.get(id)?.exhausted.as_deref();
        let messages: Option<Vec<&str>> = selected.pools().map(message).collect();
        messages.map(|messages| messages.join("; "))
    }

    /// Returns the NodePools of the cluster, by namespace and name.
    #[must_use]
    pub fn node_pools(&self) -> &BTreeMap<Key, Arc<Object>> {
        &self.node_pools
    }

    /// Returns every pool, sorted by name.
    pub fn pools(&self) -> impl Iterator<Item = &Arc<MachinePool>> {
        self.pools.values()
    }

    /// Returns for each pool the machines and claims that it may serve.
    #[must_use]
    pub fn memberships(&self) -> &Arc<BTreeMap<PoolId, Membership>> {
        &self.memberships
    }

    /// Returns the pools that serve a machine: one entry for each network, in the order of the machine's interfaces.
    /// Empty: no pool selects the machine.
    ///
    /// # Errors
    ///
    /// [`Problem`]: the pools are ambiguous. The machine must not start before a pool or the machine is changed.
    pub fn of(&self, machine: &VirtualMachine) -> Result<Vec<Selected>, Problem> {
        if let Some(pool) = self.undecided(machine) {
            return Err(Problem::UnknownNamespaces { pool: pool.clone() });
        }
        let mut chosen: Vec<(&Attachment, Vec<&MachinePool>, Selected)> = Vec::new();
        for pool in self.matching(&self.selectors, machine) {
            let (attachment, selected) = pool.place(machine)?;
            if let Some((_, group, _)) = chosen.iter_mut().find(|(_, _, other)| other.network == selected.network) {
                for other in group.iter() {
                    other.check_priority(pool, &selected.network)?;
                }
                group.push(pool);
                continue;
            }
            for (_, _, other) in &chosen {
                other.check_distinct(&selected)?;
            }
            chosen.push((attachment, vec![pool], selected));
        }
        let ending: Vec<&MachinePool> = self.matching(&self.ending, machine).collect();
        for (_, group, selected) in &mut chosen {
            group.sort_by_key(|pool| pool.priority());
            let Some((first, overflow)) = group.split_first() else { continue };
            // The result is `None` if one of the pools has errors, which happens only for pools that are being deleted.
            let check = |pool: &MachinePool| Some(first.pool.as_ref().ok()?.check_overflow(pool.pool.as_ref().ok()?));
            for pool in overflow {
                check(pool).unwrap_or(Ok(())).map_err(Problem::NoOverflow)?;
            }
            let is_of_group = |pool: &&&MachinePool| check(pool) == Some(Ok(()));
            selected.pool = first.id.clone();
            selected.overflow = overflow.iter().map(|pool| pool.id.clone()).collect();
            selected.ending = ending.iter().filter(is_of_group).map(|pool| pool.id.clone()).collect();
        }
        chosen.sort_by_key(|(attachment, ..)| attachment.index);
        Ok(chosen.into_iter().map(|(_, _, selected)| selected).collect())
    }

    /// Returns the pools that select a machine, even if they contradict each other.
    pub(crate) fn selecting(&self, machine: &VirtualMachine) -> impl Iterator<Item = &MachinePool> {
        self.matching(&self.selectors, machine)
    }

    /// Returns the namespaces of the machines that a pool selects, each with the selector for their labels.
    pub(crate) fn selectors_of<'s>(&'s self, id: &'s PoolId) -> impl Iterator<Item = (&'s str, &'s Selector)> {
        self.selectors.iter().flat_map(move |(namespace, selectors)| {
            let of_pool = selectors.iter().filter(move |(_, pool)| pool == id);
            of_pool.map(move |(selector, _)| (namespace.as_str(), selector))
        })
    }

    /// Returns a pool for which it is unknown whether it selects the machine, because the labels of the Namespace are
    /// unknown.
    fn undecided(&self, machine: &VirtualMachine) -> Option<&PoolId> {
        let none = BTreeMap::new();
        let labels = machine.metadata.labels.as_ref().unwrap_or(&none);
        let is_on = |id: &PoolId| machine.networks.iter().any(|it| self.pools[id].network() == Some(&*it.network));
        let mut undecided = self.undecided.iter().filter(|(selector, id)| selector.matches(labels) && is_on(id));
        undecided.next().map(|(_, id)| id)
    }

    /// Returns the pools whose selectors match a machine, sorted by name.
    fn matching<'s>(
        &'s self,
        selectors: &'s BTreeMap<String, Vec<(Selector, PoolId)>>,
        machine: &VirtualMachine,
    ) -> impl Iterator<Item = &'s MachinePool> {
        let none = BTreeMap::new();
        let namespace = machine.metadata.namespace.as_deref().unwrap_or_default();
        let labels = machine.metadata.labels.as_ref().unwrap_or(&none);
        let candidates = selectors.get(namespace).into_iter().flatten();
        // Two selectors of one pool can match: two of its NodePools can have the same name and the same namespace of
        // machines.
        let matching: BTreeSet<&PoolId> =
            candidates.filter(|(selector, _)| selector.matches(labels)).map(|(_, id)| id).collect();
        matching.into_iter().map(|id| &*self.pools[id])
    }

    /// Returns a pool that is being deleted and refers to a machine, if no pool of `selected` is on the network of this
    /// pool. Such a machine must not be created, because it would start without network data.
    #[must_use]
    pub fn ending(&self, machine: &VirtualMachine, selected: &[Selected]) -> Option<&MachinePool> {
        let is_served = |of: &Selected| selected.iter().any(|it| it.network == of.network);
        self.referring(machine).find(|pool| match pool.place(machine) {
            Ok((_, of)) => !is_served(&of),
            Err(Problem::InvalidPool { .. }) => selected.is_empty(),
            Err(_) => false,
        })
    }

    /// Returns the interfaces for which a machine keeps its network data although their pool is being deleted. An
    /// interface is left out if `selected` has its network or its name in the guest, or if the pool cannot serve the
    /// machine as it is now. `None`: no pool that is being deleted refers to the machine, or the machine has no
    /// interface on the network of such a pool.
    pub(crate) fn kept(&self, machine: &VirtualMachine, selected: &[Selected]) -> Option<Vec<Selected>> {
        // The network of a pool with errors is unknown.
        let may_serve = |pool: &&MachinePool| {
            pool.network().is_none_or(|network| machine.networks.iter().any(|it| it.network == network))
        };
        let mut pools = self.referring(machine).filter(may_serve).peekable();
        pools.peek()?;
        let mut kept: Vec<Selected> = Vec::new();
        for (_, of) in pools.filter_map(|pool| pool.place(machine).ok()) {
            if let Some(same) = kept.iter_mut().find(|it| (&it.network, it.interface) == (&of.network, of.interface)) {
                same.ending.push(of.pool);
                continue;
            }
            let mut others = selected.iter().chain(&kept);
            if others.all(|other| other.network != of.network && other.interface != of.interface) {
                kept.push(of);
            }
        }
        Some(kept)
    }

    /// Returns the pools that are being deleted and refer to a machine, sorted by name.
    fn referring(&self, machine: &VirtualMachine) -> impl Iterator<Item = &MachinePool> {
        self.matching(&self.ending, machine).filter(|pool| !self.is_withdrawn(&pool.id))
    }
}

// === impl Problem ===

impl std::error::Error for Problem {}

#[cfg(test)]
mod tests {
    use glowplug::host::claim::is_object_name;
    use glowplug::host::pool::Namespaces;
    use serde_json::{Value, json};

    use super::*;
    use crate::kinds::virtual_machine::NODE_POOL_LABEL;
    use crate::pools::facts::PoolObject;

    /// Creates a pool of the NodePool `clusters/p` on the network `infra/vlan10`, and merges `changes` into it.
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

    /// Creates a selection of these pools, with the NodePool `clusters/p` of the cluster `c.1`.
    fn selection(pools: impl IntoIterator<Item = Arc<MachinePool>>) -> Selection {
        Selection::new(pools, [node_pool("clusters", "p", "c.1")], None)
    }

    /// Creates a machine of the NodePool `p` in the namespace `clusters-c-1`. `interfaces` has the name, the network
    /// and the `acpiIndex` of each interface.
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

    /// Selects the pools of a machine. Returns a line for each pool: the pool, the network, the interface in the guest,
    /// and KubeVirt's interface.
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
        assert_eq!(selection.memberships()[&id].cluster.as_deref(), Some("c.1"));
    }

    #[test]
    fn a_pool_of_a_node_pool_that_does_not_exist_selects_no_machine() {
        for node_pools in [vec![], vec![node_pool("other", "p", "c.1")], vec![node_pool("clusters", "p", "")]] {
            let selection = Selection::new([pool("a", &json!({}))], node_pools, None);
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
    fn a_pool_that_is_only_for_claims_selects_no_machine() {
        let selection = selection([pool("a", &json!({"spec": {"nodePoolRef": null}}))]);
        assert_eq!(of(&selection, &machine(&[("x", "infra/vlan10", 0)])), selected(&[]));
        assert_eq!(selection.namespaces().count(), 0);
    }

    /// Creates a GlobalStaticIPPool with these members.
    fn global(name: &str, members: &Value) -> Arc<MachinePool> {
        let mut changes = json!({"metadata": {"namespace": null}, "spec": {"nodePoolRef": null}});
        json_patch::merge(&mut changes["spec"], members);
        pool(name, &changes)
    }

    fn labels(namespaces: &[(&str, &Value)]) -> NamespaceLabels {
        let labels = |value: &Value| serde_json::from_value(value.clone()).unwrap();
        namespaces.iter().map(|(name, value)| ((*name).to_owned(), labels(value))).collect()
    }

    const ON_VLAN: [(&str, &str, u32); 1] = [("x", "infra/vlan10", 0)];

    #[test]
    fn node_pool_references_select_the_machines_of_each_node_pool_in_the_namespace_of_its_cluster() {
        let references = json!([
            {"namespace": "clusters", "name": "p"}, {"namespace": "other", "name": "q"}, {"namespace": "gone", "name": "r"},
        ]);
        let pool = global("a", &json!({"nodePoolRefs": references}));
        let node_pools =
            [node_pool("clusters", "p", "c.1"), node_pool("other", "q", "c2"), node_pool("other", "p", "c3")];
        let selection = Selection::new([Arc::clone(&pool)], node_pools, None);
        let of_node_pool =
            |namespace: &str, name: &str| machine_of(namespace, &json!({(NODE_POOL_LABEL): name}), &ON_VLAN);
        let one = selected(&["a infra/vlan10 eno101 x"]);
        assert_eq!(of(&selection, &of_node_pool("clusters-c-1", "p")), one);
        assert_eq!(of(&selection, &of_node_pool("other-c2", "q")), one);
        // The pool does not select a machine whose label names a NodePool of another cluster, or a NodePool that does
        // not exist (`gone/r`).
        for (namespace, name) in [("other-c3", "p"), ("clusters-c-1", "q"), ("other-c3", "q"), ("gone-c4", "r")] {
            assert_eq!(of(&selection, &of_node_pool(namespace, name)), selected(&[]), "{namespace} {name}");
        }
        assert_eq!(selection.namespaces().collect::<Vec<_>>(), ["clusters-c-1", "other-c2"]);
        let key = |namespace: &str, name: &str| Key { namespace: namespace.to_owned(), name: name.to_owned() };
        // Records in the namespaces of a missing NodePool count, but claims there get no address.
        let known = Namespaces::only(["clusters-c-1", "other-c2"]);
        let machines = Namespaces::any_of([known.clone(), Namespaces::of_clusters_in("gone")]);
        let expected = Membership {
            machines: machines.clone(),
            claims: machines,
            served_claims: known,
            cluster: None,
            node_pools: vec![key("clusters", "p"), key("other", "q"), key("gone", "r")],
            missing: vec![key("gone", "r")],
            selected: None,
        };
        assert_eq!(selection.memberships()[&pool.id], expected);
    }

    #[test]
    fn a_machine_that_two_node_pools_of_a_pool_match_is_selected_once() {
        let references = json!([{"namespace": "a", "name": "p"}, {"namespace": "a-b", "name": "p"}]);
        let pool = global("a", &json!({"nodePoolRefs": references}));
        let selection = Selection::new([pool], [node_pool("a", "p", "b-c"), node_pool("a-b", "p", "c")], None);
        let machine = machine_of("a-b-c", &json!({(NODE_POOL_LABEL): "p"}), &ON_VLAN);
        assert_eq!(of(&selection, &machine), selected(&["a infra/vlan10 eno101 x"]));
    }

    #[test]
    fn a_pool_can_select_machines_by_namespace_labels_and_by_machine_labels_in_these_namespaces() {
        let spec = json!({
            "namespaceSelector": {"matchLabels": {"vlan": "10"}}, "machineSelector": {"matchLabels": {"role": "worker"}},
        });
        let pool = global("a", &spec);
        let namespaces =
            labels(&[("one", &json!({"vlan": "10"})), ("two", &json!({"vlan": "10"})), ("evil", &json!({}))]);
        let selection = Selection::new([Arc::clone(&pool)], [], Some(&namespaces));
        let worker = json!({"role": "worker", "vlan": "10"});
        let is_selected = |namespace: &str, labels: &Value| {
            of(&selection, &machine_of(namespace, labels, &ON_VLAN)).map(|rows| !rows.is_empty())
        };
        assert_eq!(["one", "two", "evil"].map(|name| is_selected(name, &worker)), [Ok(true), Ok(true), Ok(false)]);
        assert_eq!(is_selected("one", &json!({"role": "infra"})), Ok(false));
        let Membership { machines, claims, served_claims, selected, .. } = &selection.memberships()[&pool.id];
        let expected = Namespaces::only(["one", "two"]);
        assert_eq!([machines, claims, served_claims, &expected], [&expected; 4]);
        assert_eq!(*selected, Some(2));
    }

    #[test]
    fn a_machine_that_a_pool_may_select_is_a_problem_while_the_labels_of_namespaces_are_unknown() {
        let narrow = json!({"namespaceSelector": {}, "machineSelector": {"matchLabels": {"role": "worker"}}});
        let selection =
            Selection::new([global("a", &narrow), pool("b", &json!({}))], [node_pool("clusters", "p", "c.1")], None);
        let of_role = |role: &str, network: &str| machine_of("n", &json!({"role": role}), &[("x", network, 0)]);
        let expected = "pool a selects machines by the labels of Namespaces, which the controller has no right to list, expected the \
                        right to list and watch namespaces";
        assert_eq!(of(&selection, &of_role("worker", "infra/vlan10")), Err(expected.to_owned()));
        assert!(!selection.has_every_namespace());
        // The problem does not affect machines of other pools, with other labels, or on other networks.
        assert_eq!(of(&selection, &of_role("worker", "infra/vlan20")), selected(&[]));
        assert_eq!(of(&selection, &of_role("infra", "infra/vlan10")), selected(&[]));
        assert_eq!(of(&selection, &machine(&ON_VLAN)), selected(&["clusters/b infra/vlan10 eno101 x"]));
        // A machine of a pool that is being deleted must not start without network data either.
        let mut deleted =
            json!({"metadata": {"namespace": null, "deletionTimestamp": "2026-08-14T10:00:00Z"}, "spec": narrow});
        deleted["spec"]["nodePoolRef"] = Value::Null;
        let selection = Selection::new([pool("a", &deleted)], [], None);
        assert_eq!(of(&selection, &of_role("worker", "infra/vlan10")), Err(expected.to_owned()));
        assert!(!selection.has_every_namespace());
    }

    #[test]
    fn a_pool_of_a_namespace_selects_no_machine_of_another_namespace() {
        let of_several = json!({"nodePoolRef": null, "namespaceSelector": {}, "nodePoolRefs": [{"namespace": "clusters", "name": "p"}]});
        let pool = pool("a", &json!({"metadata": {"namespace": "evil"}, "spec": of_several}));
        let global = global("g", &json!({"machineSelector": {}}));
        let selection =
            Selection::new([pool, global], [node_pool("clusters", "p", "c.1")], Some(&labels(&[("n", &json!({}))])));
        assert_eq!(selection.namespaces().count(), 0);
        assert_eq!(of(&selection, &machine(&ON_VLAN)), selected(&[]));
        let claims: Vec<&Namespaces> = selection.memberships().values().map(|it| &it.served_claims).collect();
        assert_eq!(claims, [&Namespaces::every(), &Namespaces::only(["evil"])]);
    }

    #[test]
    fn records_of_a_namespace_count_in_a_pool_of_the_namespace_that_selects_no_machine() {
        let selection = selection([pool("a", &json!({"spec": {"nodePoolRef": null}}))]);
        let counts = |namespace: &str, network: &str| selection.has_records_of(namespace, network);
        assert_eq!(
            [("clusters", "infra/vlan10"), ("clusters-c", "infra/vlan10"), ("clusters", "infra/vlan20")]
                .map(|(namespace, network)| counts(namespace, network)),
            [true, false, false]
        );
    }

    #[test]
    fn a_pool_that_is_being_deleted_selects_no_machine() {
        let pool = pool("a", &json!({"metadata": {"deletionTimestamp": "2026-08-14T10:00:00Z"}}));
        let selection = selection([pool]);
        assert_eq!(of(&selection, &machine(&[("x", "infra/vlan10", 0)])), selected(&[]));
        assert_eq!(selection.pools().count(), 1);
    }

    #[test]
    fn a_machine_keeps_the_interfaces_of_pools_that_are_being_deleted_if_no_other_pool_serves_them() {
        let ending = |name: &str, spec: Value| {
            pool(name, &json!({"metadata": {"deletionTimestamp": "2026-08-14T10:00:00Z"}, "spec": spec}))
        };
        let machine = machine(&[("x", "infra/vlan10", 0), ("y", "infra/vlan20", 0)]);
        let kept = |pools: Vec<Arc<MachinePool>>| {
            let selection = selection(pools);
            let selected = selection.of(&machine).unwrap();
            let kept = selection.kept(&machine, &selected)?;
            Some(kept.iter().map(|it| format!("{} {} {}", it.pool, it.interface, it.attachment)).collect::<Vec<_>>())
        };
        let rows = |rows: &[&str]| Some(rows.iter().map(|row| (*row).to_owned()).collect::<Vec<_>>());
        let (a, b) = (ending("a", json!({})), ending("b", json!({"network": "infra/vlan20", "interface": "eno102"})));
        assert_eq!(kept(vec![a.clone(), b.clone()]), rows(&["clusters/a eno101 x", "clusters/b eno102 y"]));
        assert_eq!(kept(vec![a.clone(), b, pool("c", &json!({}))]), rows(&["clusters/b eno102 y"]));
        // Another pool has the network and the interface of the pool, or only the interface.
        assert_eq!(kept(vec![a.clone(), ending("d", json!({}))]), rows(&["clusters/a eno101 x"]));
        assert_eq!(kept(vec![a, pool("e", &json!({"spec": {"network": "infra/vlan20"}}))]), rows(&[]));
        // The pool has errors, or the machine has no interface on the network of the pool.
        assert_eq!(kept(vec![ending("a", json!({"addresses": ["x"]}))]), rows(&[]));
        assert_eq!(kept(vec![ending("a", json!({"network": "infra/vlan30"}))]), None);
        assert_eq!(kept(vec![ending("a", json!({"nodePoolRef": {"name": "q"}}))]), None);
        assert_eq!(kept(vec![pool("a", &json!({}))]), None);
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
        let expected = "pools clusters/a and clusters/b both select the machine for network infra/vlan10, expected one pool, or different \
                        values of priority";
        assert_eq!(of(&selection, &machine(&[("x", "infra/vlan10", 0)])), Err(expected.to_owned()));
    }

    #[test]
    fn the_other_networks_of_a_machine_have_pools_that_do_not_select_the_machine() {
        let machine = machine(&[("x", "infra/vlan10", 0), ("y", "infra/vlan30", 1)]);
        let others = |pools: Vec<Arc<MachinePool>>| {
            let selection = selection(pools);
            let networks = machine.networks.iter().map(|attachment| &attachment.network);
            selection.other_networks(networks, &selection.of(&machine).unwrap()).into_iter().collect::<Vec<_>>()
        };
        let unselected = pool("c", &json!({"spec": {"nodePoolRef": null, "machineSelector": null}}));
        assert_eq!(others(vec![unselected.clone()]), ["infra/vlan10"]);
        assert_eq!(others(vec![pool("a", &json!({})), unselected]), [""; 0]);
    }

    #[test]
    fn pools_of_one_network_are_a_pool_and_its_overflow_in_the_order_of_their_priority() {
        let with = |name: &str, priority: i32, rest: Value| {
            let mut changes = json!({"spec": {"priority": priority}});
            json_patch::merge(&mut changes, &rest);
            pool(name, &changes)
        };
        let machine = machine(&[("x", "infra/vlan10", 0)]);
        let groups = |pools: Vec<Arc<MachinePool>>| {
            let selected = selection(pools).of(&machine).map_err(|problem| problem.to_string())?;
            let names = |ids: &[PoolId]| ids.iter().map(|id| id.name.clone()).collect::<Vec<_>>().join(" ");
            Ok::<_, String>(
                selected
                    .iter()
                    .map(|it| [&it.pool.name, &names(&it.overflow), &names(&it.ending)].map(String::clone))
                    .collect::<Vec<_>>(),
            )
        };
        let group = |all: [&str; 3]| Ok(vec![all.map(str::to_owned)]);
        let deleted = json!({"metadata": {"deletionTimestamp": "2026-08-14T10:00:00Z"}});
        let (a, b, c) = (pool("a", &json!({})), with("b", -3, json!({})), with("c", 7, json!({})));
        assert_eq!(groups(vec![a.clone(), b.clone(), c.clone()]), group(["b", "a c", ""]));
        assert_eq!(groups(vec![with("b", -3, deleted.clone()), a.clone(), c.clone()]), group(["a", "c", "b"]));
        assert_eq!(groups(vec![a.clone(), pool("d", &deleted)]), group(["a", "", "d"]));
        let expected = "pool clusters/d cannot be the overflow of pool clusters/a: interface eno102, expected eno101";
        let other = with("d", 1, json!({"spec": {"interface": "eno102"}}));
        assert_eq!(groups(vec![c, a.clone(), other]), Err(expected.to_owned()));
        let expected =
            "pool clusters/d cannot be the overflow of pool clusters/a: families IPv4 and IPv6, expected IPv4";
        let both = with(
            "d",
            1,
            json!({"spec": {"addresses": ["10.0.1.0/24", "fd00::/112"], "machineNetwork": [{"cidr": "10.0.0.0/16"}, {"cidr": "fd00::/64"}]}}),
        );
        assert_eq!(groups(vec![a, both]), Err(expected.to_owned()));
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
        let at = "pool clusters/a: spec.template.spec.networks of VirtualMachine clusters-c-1/w-0";
        let expected = format!("{at}: no interface on network infra/vlan10, expected one; the others are x on default");
        assert_eq!(of(&selection, &machine(&[("x", "default", 0)])), Err(expected));
        let expected = format!("{at}: no interface on network infra/vlan10, expected one");
        assert_eq!(of(&selection, &machine(&[])), Err(expected));
        let many: Vec<(&str, &str, u32)> = (0..7).map(|_| ("x\u{1b}", "default", 0)).collect();
        let others = [r"x\u{1b} on default"; 5].join(", ");
        let expected =
            format!("{at}: no interface on network infra/vlan10, expected one; the others are {others} and 2 more");
        assert_eq!(of(&selection, &machine(&many)), Err(expected));
        let two = machine(&[("x", "infra/vlan10", 101), ("y", "infra/vlan10", 0)]);
        let expected = format!("{at}: interfaces x, y on network infra/vlan10, expected one");
        assert_eq!(of(&selection, &two), Err(expected));
    }

    #[test]
    fn an_acpi_index_that_gives_the_interface_another_name_is_a_problem() {
        let selection = selection([pool("a", &json!({}))]);
        let expected = "pool clusters/a: interface x of the machine has acpiIndex 7, expected no acpiIndex or the acpiIndex of eno101, \
                        the interface of the pool";
        assert_eq!(of(&selection, &machine(&[("x", "infra/vlan10", 7)])), Err(expected.to_owned()));
        let expected = "pool clusters/a: interface y of the machine has acpiIndex 101, expected another acpiIndex: eno101 is the \
                        interface of the pool, and x is on its network";
        let taken = machine(&[("x", "infra/vlan10", 0), ("y", "default", 101)]);
        assert_eq!(of(&selection, &taken), Err(expected.to_owned()));
        let right = machine(&[("x", "infra/vlan10", 101), ("y", "default", 7)]);
        assert_eq!(of(&selection, &right), selected(&["clusters/a infra/vlan10 eno101 x"]));
    }

    #[test]
    fn an_interface_whose_name_does_not_depend_on_an_index_may_have_any_index() {
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
    fn an_exhausted_pool_has_the_message_of_its_condition() {
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
            let selection = Selection::new(pools, [node_pool("clusters", "p", "c.1"), node_pool_of_user], None);
            assert_eq!(of(&selection, &machine), expected);
            let id = PoolId { namespace: Some("clusters".to_owned()), name: "honest".to_owned() };
            assert_eq!(selection.memberships()[&id].cluster.as_deref(), Some("c.1"));
            // An API server accepts the name of every one of these namespaces.
            assert!(selection.namespaces().all(is_object_name));
        };
        crate::variants::each_object(&of_user, |object| check(object, node_pool("evil", "p", "c.1")));
        crate::variants::each_object(&node_pool_of_user, |object| {
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
