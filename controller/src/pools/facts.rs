//! Types for the facts about pools that other parts need.

use std::collections::BTreeMap;

use glowplug::host::pool::Namespaces;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::cluster::key::Key;
use crate::cluster::object::Object;
use crate::kinds::pool::{PoolSpec, PoolStatus};

/// The objects for which this controller is responsible.
#[derive(Clone, Debug, Default)]
pub struct Scope {
    /// The only namespace of the controller. Empty: all namespaces. Cluster-scoped pools: see [`Scope::serves`].
    pub namespace: String,
    /// Required value of the label `cluster.x-k8s.io/watch-filter`. Empty: an object may have any value, or no such
    /// label.
    pub watch_filter: String,
}

/// For each pool, by name, the facts that claims need.
pub type Facts = BTreeMap<String, PoolFacts>;

/// A pool as a watch reports it.
#[derive(Clone, Debug)]
pub struct PoolObject {
    /// Metadata of the object.
    pub metadata: ObjectMeta,
    /// The specification, or the reason why it cannot be read.
    pub spec: Result<PoolSpec, String>,
    /// The stored status. `None`: there is no status that can be read.
    pub status: Option<PoolStatus>,
}

/// What claims need to know about a pool.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct PoolFacts {
    /// UID of the object.
    pub uid: String,
    /// Whether a claim reuses the address that an earlier claim of the same name had, if this address is free.
    pub sticky: bool,
    /// `Ok` if the pool allocates addresses, otherwise the reason why not.
    pub ready: Result<(), String>,
    /// Namespaces whose claims can get addresses of the pool.
    pub claims: Namespaces,
    /// The network attachment definition whose IPAMClaims the pool serves. `None`: the pool serves no IPAMClaims.
    pub attachment: Option<Key>,
}

impl PoolFacts {
    /// Returns the facts for a claim in `namespace`. If the pool does not serve this namespace, the pool is not ready.
    #[must_use]
    pub fn for_claim_in(self, namespace: &str) -> Self {
        match self.claims.has(namespace) {
            true => self,
            false => Self { ready: Err(format!("The pool selects other namespaces than {namespace}")), ..self },
        }
    }
}

impl PoolObject {
    /// Reads a pool of either kind. If the specification cannot be read, `spec` has the error.
    #[must_use]
    pub fn read(object: Object) -> Self {
        let member = |name: &str| object.data.get(name).cloned().unwrap_or_default();
        let spec = serde_json::from_value(member("spec")).map_err(|error| format!("spec: {error}"));
        // If the status cannot be read, the controller replaces it.
        let status = serde_json::from_value(member("status")).unwrap_or_default();
        Self { metadata: object.metadata, spec, status }
    }
}
