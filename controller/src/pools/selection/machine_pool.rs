//! A pool with its state in the cluster. Decides which machines the pool selects, and which interface of a machine the
//! pool serves.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use glowplug::host::nodepool::{acpi_index, machines_namespace};
use glowplug::host::pool::{Namespaces, Pool};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::Selector;

use super::members::{Members, Membership, NamespaceLabels, cluster_of, has_config, names_of, node_pools_of};
use super::problem::Problem;
use super::selected::Selected;
use crate::cluster::key::{Key, PoolId};
use crate::cluster::object::Object;
use crate::kinds::pool::{PoolSpec, PoolStatus};
use crate::kinds::schema::lines;
use crate::kinds::virtual_machine::{Attachment, NODE_POOL_LABEL, VirtualMachine};
use crate::pools::facts::PoolObject;

/// A pool of addresses, with its state in the cluster.
#[derive(Clone, Debug, PartialEq)]
pub struct MachinePool {
    /// Namespace and name of the pool.
    pub id: PoolId,
    /// UID of the pool.
    pub uid: String,
    /// The specification. If the stored specification cannot be read, this is the default specification.
    pub spec: PoolSpec,
    /// The addresses of the pool, or every error of the specification.
    pub pool: Result<Pool, String>,
    /// The parts of the specification that the schema of this version does not allow, one line each. `None`: the schema
    /// allows everything.
    pub beyond_schema: Option<String>,
    /// Message of the condition `Exhausted`: the leader found no free address. `None`: the pool has free addresses, or
    /// the leader has not counted its addresses yet.
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
    /// The checked pool, without the counts in its status.
    pub checked: Arc<MachinePool>,
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

    /// Network of the pool's addresses. `None`: the specification has errors.
    #[must_use]
    pub fn network(&self) -> Option<&str> {
        self.pool.as_ref().ok().map(Pool::network)
    }

    /// Position of the pool among the pools that select a machine for the same network. The pool with the lowest value
    /// serves first.
    #[must_use]
    pub fn priority(&self) -> i32 {
        self.spec.priority.unwrap_or_default()
    }

    /// Fails if two pools that select a machine for the same network have the same priority.
    pub(super) fn check_priority(&self, other: &Self, network: &str) -> Result<(), Problem> {
        if self.priority() != other.priority() {
            return Ok(());
        }
        let mut pools = [self.id.clone(), other.id.clone()];
        pools.sort();
        Err(Problem::SamePriority { pools, network: network.to_owned() })
    }

    /// Whether two pools select the same machines for the same network, with different priorities. If so, each pool can
    /// serve the machines when the other pool is exhausted.
    #[must_use]
    pub(crate) fn shares_machines_with(&self, other: &Self) -> bool {
        let is_alike = match (&self.pool, &other.pool) {
            (Ok(pool), Ok(of_other)) => pool.check_overflow(of_other).is_ok(),
            _ => false,
        };
        is_alike
            && self.priority() != other.priority()
            && !self.is_deleted
            && !other.is_deleted
            && self.id.namespace == other.id.namespace
            && self.members() == other.members()
            && self.members() != Members::None
    }

    /// Whether the pool serves only claims.
    pub(super) fn selects_no_machine(&self) -> bool {
        self.members() == Members::None
    }

    /// Whether two versions of a pool select the same machines.
    pub(crate) fn serves_same_as(&self, other: &Self) -> bool {
        self.members() == other.members()
    }

    /// Whether the pool is being deleted, and is derived from a NodePool that no longer has a configuration. If so, new
    /// machines start without addresses of the pool.
    pub(super) fn is_withdrawn(&self, node_pools: &BTreeMap<Key, Arc<Object>>) -> bool {
        let is_without = |it: &Arc<Object>| self.owner == it.metadata.uid && !has_config(it);
        let mut known = self.node_pools().into_iter().filter_map(|key| node_pools.get(&key));
        self.is_deleted && self.owner.is_some() && known.any(is_without)
    }

    fn members(&self) -> Members<'_> {
        Members::of(&self.id, &self.spec)
    }

    /// Returns the NodePools whose machines the pool selects.
    #[must_use]
    pub fn node_pools(&self) -> Vec<Key> {
        node_pools_of(&self.id, &self.spec)
    }

    /// Whether the pool selects machines by the labels of Namespaces.
    #[must_use]
    pub fn selects_namespaces(&self) -> bool {
        matches!(self.members(), Members::Namespaces(..))
    }

    /// Returns the machines and claims that the pool may serve.
    #[must_use]
    pub fn membership(
        &self,
        node_pools: &BTreeMap<Key, Arc<Object>>,
        namespaces: Option<&NamespaceLabels>,
    ) -> Membership {
        let none = || Namespaces::only(None::<String>);
        let own =
            || self.id.namespace.as_ref().map_or_else(Namespaces::every, |namespace| Namespaces::only([namespace]));
        let of = |machines: Namespaces, claims: Namespaces| Membership {
            machines,
            served_claims: claims.clone(),
            claims,
            cluster: None,
            node_pools: Vec::new(),
            missing: Vec::new(),
            selected: None,
        };
        match self.members() {
            Members::None => of(none(), own()),
            Members::Namespace(namespace, _) => of(Namespaces::only([namespace]), own()),
            Members::Namespaces(selector, _) => {
                let selected = namespaces.map(|namespaces| names_of(selector, namespaces));
                let machines = Namespaces::only(selected.iter().flatten().copied());
                Membership { selected: selected.map(|names| names.len()), ..of(machines.clone(), machines) }
            }
            Members::NodePools(all) => {
                let known = |key: &Key| {
                    let cluster = cluster_of(node_pools.get(key)?)?;
                    Some((cluster, machines_namespace(&key.namespace, cluster)))
                };
                // If the cluster of a NodePool is unknown, the machines of the NodePool may still run with their
                // addresses.
                let may_have = |key: &Key| match known(key) {
                    Some((_, namespace)) => Namespaces::only([namespace]),
                    None => Namespaces::of_clusters_in(&*key.namespace),
                };
                let machines = Namespaces::any_of(all.iter().map(may_have));
                let clusters: BTreeSet<(&str, String)> = all.iter().filter_map(known).collect();
                let (claims, served_claims) = match self.id.namespace {
                    Some(_) => (own(), own()),
                    None => (machines.clone(), Namespaces::only(clusters.iter().map(|(_, namespace)| &**namespace))),
                };
                let missing: Vec<Key> = all.iter().filter(|key| known(key).is_none()).cloned().collect();
                let only = clusters.first().filter(|_| clusters.len() == 1 && missing.is_empty());
                let cluster = only.map(|(cluster, _)| (*cluster).to_owned());
                Membership { served_claims, cluster, missing, node_pools: all, ..of(machines, claims) }
            }
        }
    }

    /// Returns the namespaces of the machines that the pool selects, each with the selector for the labels of the
    /// machines. A selector that cannot be read selects no machine, and the pool is then not ready: `InvalidSpec`.
    pub(super) fn selectors(
        &self,
        node_pools: &BTreeMap<Key, Arc<Object>>,
        namespaces: Option<&NamespaceLabels>,
    ) -> Vec<(String, Selector)> {
        match self.members() {
            Members::None => Vec::new(),
            Members::NodePools(all) => {
                let selector = |key: Key| {
                    let namespace = machines_namespace(&key.namespace, cluster_of(node_pools.get(&key)?)?);
                    Some((namespace, [(NODE_POOL_LABEL.to_owned(), key.name)].into_iter().collect()))
                };
                all.into_iter().filter_map(selector).collect()
            }
            Members::Namespace(namespace, selector) => {
                Selector::try_from(selector.clone()).ok().map(|it| (namespace.to_owned(), it)).into_iter().collect()
            }
            Members::Namespaces(of_namespaces, _) => {
                let Some(selector) = self.selector_in_namespaces() else { return Vec::new() };
                let names = namespaces.map(|namespaces| names_of(of_namespaces, namespaces)).unwrap_or_default();
                names.into_iter().map(|name| (name.to_owned(), selector.clone())).collect()
            }
        }
    }

    /// Returns the selector for the labels of machines, if the pool selects its namespaces by labels.
    pub(super) fn selector_in_namespaces(&self) -> Option<Selector> {
        let Members::Namespaces(_, machines) = self.members() else { return None };
        Selector::try_from(machines.cloned().unwrap_or_default()).ok()
    }

    /// Finds, among the interfaces of a machine, the interface on the network of this pool.
    pub(super) fn place<'m>(&self, machine: &'m VirtualMachine) -> Result<(&'m Attachment, Selected), Problem> {
        let id = &self.id;
        let pool = self.pool.as_ref().map_err(|errors| {
            let (pool, errors) = (id.clone(), errors.clone());
            Problem::InvalidPool { pool, errors }
        })?;
        let on_network: Vec<&Attachment> =
            machine.networks.iter().filter(|attachment| attachment.network == pool.network()).collect();
        let [attachment] = on_network[..] else {
            let interfaces = machine.networks.iter().map(|it| (it.name.clone(), it.network.clone())).collect();
            let (pool, network, vm) = (id.clone(), pool.network().to_owned(), Box::new(machine.key()));
            return Err(Problem::NoInterface { pool, network, vm, interfaces });
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
            overflow: Vec::new(),
            ending: Vec::new(),
            network: pool.network().to_owned(),
            interface: pool.interface(),
            attachment: attachment.name.clone(),
        };
        Ok((attachment, selected))
    }
}
