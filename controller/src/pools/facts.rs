//! What other parts know about the pools of the cluster.

use std::collections::BTreeMap;

use glowplug::host::pool::Namespaces;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::cluster::key::Key;
use crate::cluster::object::Object;
use crate::kinds::pool::{PoolSpec, PoolStatus};

/// The objects that the program works on.
#[derive(Clone, Debug, Default)]
pub struct Scope {
    /// The only namespace. Empty: every namespace. Cluster-scoped objects are always in the scope.
    pub namespace: String,
    /// Value of the label `cluster.x-k8s.io/watch-filter`. Empty: objects with any value, or without the label.
    pub watch_filter: String,
}

/// Facts about each pool that claims need, by the name of the pool.
pub type Facts = BTreeMap<String, PoolFacts>;

/// A pool, as reported by a watch.
#[derive(Clone, Debug)]
pub struct PoolObject {
    /// Metadata of the object.
    pub metadata: ObjectMeta,
    /// The specification, or the reason why it cannot be read.
    pub spec: Result<PoolSpec, String>,
    /// The stored status.
    pub status: Option<PoolStatus>,
}

/// Facts about a pool that claims need.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct PoolFacts {
    /// UID of the object.
    pub uid: String,
    /// Whether a claim reuses the address that an earlier claim of the same name had.
    pub sticky: bool,
    /// Whether the pool allocates addresses; if not, the reason.
    pub ready: Result<(), String>,
    /// Namespaces whose claims get addresses.
    pub claims: Namespaces,
    /// Network attachment definition of the IPAMClaims that the pool serves. `None`: the pool serves no IPAMClaims.
    pub attachment: Option<Key>,
}

impl PoolFacts {
    /// Returns the facts for a claim in `namespace`. A pool that does not serve this namespace is not ready.
    #[must_use]
    pub fn for_claim_in(self, namespace: &str) -> Self {
        match self.claims.has(namespace) {
            true => self,
            false => Self { ready: Err(format!("The pool selects other namespaces than {namespace}")), ..self },
        }
    }
}

impl PoolObject {
    /// Reads a pool of either kind. A specification that cannot be read is an error in the pool.
    #[must_use]
    pub fn read(object: Object) -> Self {
        let member = |name: &str| object.data.get(name).cloned().unwrap_or_default();
        let spec = serde_json::from_value(member("spec")).map_err(|error| format!("spec: {error}"));
        // A status that cannot be read is replaced.
        let status = serde_json::from_value(member("status")).unwrap_or_default();
        Self { metadata: object.metadata, spec, status }
    }
}
