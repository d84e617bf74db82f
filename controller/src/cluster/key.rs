//! Names of objects and of pools.

use std::fmt;

use glowplug::host::claim::{HolderKind, Machine};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

/// Namespace and name of an object.
#[derive(Clone, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Key {
    /// Namespace of the object.
    pub namespace: String,
    /// Name of the object.
    pub name: String,
}

/// Identity of a pool. A StaticIPPool and a GlobalStaticIPPool never have the same identity.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct PoolId {
    /// Namespace of a [`StaticIPPool`](crate::kinds::pool::StaticIPPool). `None`: a
    /// [`GlobalStaticIPPool`](crate::kinds::pool::GlobalStaticIPPool).
    pub namespace: Option<String>,
    /// Name of the object.
    pub name: String,
}

/// The key of an object in the namespace `n` of a unit test.
#[cfg(test)]
pub(crate) fn key(name: &str) -> Key {
    ("n", name).into()
}

impl Key {
    /// Returns the key of the object with this metadata.
    #[must_use]
    pub fn of(metadata: &ObjectMeta) -> Self {
        Self {
            namespace: metadata.namespace.clone().unwrap_or_default(),
            name: metadata.name.clone().unwrap_or_default(),
        }
    }

    /// The key of the object that a holder in the ledger stands for.
    #[must_use]
    pub fn of_machine(machine: &Machine) -> Self {
        Self { namespace: machine.namespace.clone(), name: machine.name.clone() }
    }

    /// Namespace and name of the VirtualMachine of a machine. The namespace may differ from that of the machine.
    #[must_use]
    pub fn of_vm(machine: &Machine) -> Self {
        let namespace = machine.vm_namespace.as_ref().unwrap_or(&machine.namespace);
        Self { namespace: namespace.clone(), name: machine.name.clone() }
    }

    /// Returns the holder in the ledger that stands for the object with this kind, key and UID.
    #[must_use]
    pub fn holder(&self, kind: HolderKind, uid: &str) -> Machine {
        Machine::new(self.namespace.clone(), self.name.clone(), uid).of_kind(kind)
    }
}

impl From<(&str, &str)> for Key {
    fn from((namespace, name): (&str, &str)) -> Self {
        Self { namespace: namespace.to_owned(), name: name.to_owned() }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

impl PoolId {
    /// The identity of the pool with this metadata.
    #[must_use]
    pub fn of(metadata: &ObjectMeta) -> Self {
        Self { namespace: metadata.namespace.clone(), name: metadata.name.clone().unwrap_or_default() }
    }

    /// Reads the identity of a pool from the string that [`Display`](fmt::Display) writes.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        match text.split_once('/') {
            Some((namespace, name)) => Self { namespace: Some(namespace.to_owned()), name: name.to_owned() },
            None => Self { namespace: None, name: text.to_owned() },
        }
    }
}

impl fmt::Display for PoolId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.namespace {
            Some(namespace) => write!(f, "{namespace}/{}", self.name),
            None => f.write_str(&self.name),
        }
    }
}
