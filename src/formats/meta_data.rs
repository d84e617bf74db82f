//! What a drive says about its machine: OpenStack's `meta_data.json` and NoCloud's `meta-data`, in one model.
//!
//! The fields, and which drive has which, are KubeVirt's (`kubevirt/kubevirt:pkg/cloud-init/cloud-init.go`).

use super::value::{self, Object, Value};
use crate::finding::Finding;

/// What a drive says about its machine. A field that is missing, or of another kind, is absent.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct MetaData {
    /// The machine's firmware UUID, lower case. Two kinds of drive have it under two names.
    pub uuid: Option<String>,
    /// OpenStack only: KubeVirt writes `name.namespace` here.
    pub instance_id: Option<String>,
    /// The name without a domain.
    pub hostname: Option<String>,
}

// === impl MetaData ===

impl MetaData {
    /// Reads OpenStack's `meta_data.json`.
    ///
    /// # Errors
    ///
    /// The finding that keeps it from being read at all.
    pub fn read_openstack(document: &[u8]) -> Result<Self, Finding> {
        let object = object(document)?;
        Ok(Self {
            uuid: text(&object, &["uuid"]).map(|uuid| uuid.to_ascii_lowercase()),
            instance_id: text(&object, &["instance_id"]),
            hostname: text(&object, &["local_hostname", "hostname"]),
        })
    }

    /// Reads NoCloud's `meta-data` where it is JSON, as KubeVirt writes it. Its instance id is the firmware UUID.
    ///
    /// # Errors
    ///
    /// The finding that keeps it from being read at all.
    pub fn read_nocloud(document: &[u8]) -> Result<Self, Finding> {
        let object = object(document)?;
        Ok(Self {
            uuid: text(&object, &["instance-id", "instance_id"]).map(|uuid| uuid.to_ascii_lowercase()),
            instance_id: None,
            hostname: text(&object, &["local-hostname", "local_hostname"]),
        })
    }
}

fn object(document: &[u8]) -> Result<Object, Finding> {
    match value::parse(document)? {
        Value::Object(object) => Ok(object),
        other => Err(Finding::error("document", "invalid document", other.kind(), "an object")),
    }
}

/// The first of these members that is a text and not empty.
fn text(object: &Object, names: &[&str]) -> Option<String> {
    names.iter().find_map(|name| match object.get(name) {
        Some(Value::String(text)) if !text.is_empty() => Some(text.clone()),
        _ => None,
    })
}
