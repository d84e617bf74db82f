//! Reads from a specification how a pool selects machines: by NodePools, by labels of machines, or by labels of
//! Namespaces.

use std::collections::BTreeMap;

use glowplug::host::claim::is_object_name;
use glowplug::host::pool::Namespaces;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::core::{Selector, SelectorExt as _};

use crate::cluster::key::{Key, PoolId};
use crate::cluster::object::Object;
use crate::kinds::pool::{NamespacedNodePoolRef, NodePoolRef, PoolSpec};

/// The labels of each Namespace of the cluster, by the name of the Namespace.
pub type NamespaceLabels = BTreeMap<String, BTreeMap<String, String>>;

/// The machines and claims that a pool may serve.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Membership {
    /// Namespaces in which records of machines count, with the possible namespaces of a missing NodePool.
    pub machines: Namespaces,
    /// Namespaces in which records of claims count, with the possible namespaces of a missing NodePool.
    pub claims: Namespaces,
    /// Namespaces whose claims can get addresses.
    pub served_claims: Namespaces,
    /// Name of the hosted cluster of the machines. `None`: the name is unknown, or there are several clusters.
    pub cluster: Option<String>,
    /// The NodePools to which the pool refers.
    pub node_pools: Vec<Key>,
    /// The NodePools to which the pool refers and that do not exist, or that name no cluster.
    pub missing: Vec<Key>,
    /// Number of Namespaces that the selector for Namespaces selects. `None`: the pool has no such selector, or the
    /// labels of Namespaces are unknown.
    pub selected: Option<usize>,
}

/// How a pool selects its machines.
#[derive(PartialEq)]
pub(super) enum Members<'p> {
    /// The pool selects no machines: it serves only claims.
    None,
    /// The pool selects the machines of these NodePools.
    NodePools(Vec<Key>),
    /// The pool selects the machines with these labels in one namespace.
    Namespace(&'p str, &'p LabelSelector),
    /// The pool selects the machines in the namespaces that the first selector selects. A second selector restricts
    /// them to machines whose labels match.
    Namespaces(&'p LabelSelector, Option<&'p LabelSelector>),
}

/// Returns the NodePools whose machines a pool with this specification selects.
#[must_use]
pub fn node_pools_of(id: &PoolId, spec: &PoolSpec) -> Vec<Key> {
    match Members::of(id, spec) {
        Members::NodePools(all) => all,
        Members::None | Members::Namespace(..) | Members::Namespaces(..) => Vec::new(),
    }
}

/// Returns the names of the Namespaces that a selector selects. The list is empty if the selector cannot be read.
pub(super) fn names_of<'n>(selector: &LabelSelector, namespaces: &'n NamespaceLabels) -> Vec<&'n str> {
    let Ok(selector) = Selector::try_from(selector.clone()) else { return Vec::new() };
    let selected = namespaces.iter().filter(|(_, labels)| selector.matches(labels));
    selected.map(|(name, _)| name.as_str()).filter(|name| is_object_name(name)).collect()
}

/// Returns the name of the HostedCluster of a NodePool, which is in the namespace of the NodePool. `None`: the NodePool
/// names no cluster, or an invalid name. An invalid name must not get into the path of a request.
#[must_use]
pub fn cluster_of(node_pool: &Object) -> Option<&str> {
    node_pool.data["spec"]["clusterName"].as_str().filter(|name| is_object_name(name))
}

/// Whether a NodePool has a configuration from which a pool is derived.
pub(in crate::pools) fn has_config(node_pool: &Object) -> bool {
    !node_pool.data["spec"]["platform"]["kubevirt"]["bootstrapNetworkConfig"].is_null()
}

// === impl Members ===

impl<'p> Members<'p> {
    /// Reads how a pool selects machines. A StaticIPPool selects only machines of its namespace and of the NodePools in
    /// its namespace: every user with the right to write the pool has the right to decide about these machines. Only a
    /// GlobalStaticIPPool can name other namespaces.
    pub(super) fn of(id: &'p PoolId, spec: &'p PoolSpec) -> Self {
        let PoolSpec { node_pool_ref, node_pool_refs, namespace_selector, machine_selector, .. } = spec;
        let Some(namespace) = &id.namespace else {
            let key = |of: &NamespacedNodePoolRef| Key { namespace: of.namespace.clone(), name: of.name.clone() };
            return match (node_pool_refs, namespace_selector) {
                (Some(all), _) => Self::NodePools(all.iter().map(key).collect()),
                (None, Some(namespaces)) => Self::Namespaces(namespaces, machine_selector.as_ref()),
                (None, None) => Self::None,
            };
        };
        match (node_pool_ref, machine_selector) {
            (Some(NodePoolRef { name }), _) => {
                Self::NodePools(vec![Key { namespace: namespace.clone(), name: name.clone() }])
            }
            (None, Some(selector)) => Self::Namespace(namespace, selector),
            (None, None) => Self::None,
        }
    }
}
