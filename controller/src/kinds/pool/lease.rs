//! The lease: the record of one allocated address, and of the object that holds it.

#![allow(clippy::duplicated_attributes, reason = "columns of a kind have the same type")]
#![allow(unreachable_pub, reason = "KubeSchema repeats each struct in a function")]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use glowplug::diagnostic::Diagnostics;
use glowplug::host::allocator::MOST_SECRETS;
use glowplug::host::claim::HolderKind;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::JSONSchemaProps;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::{CustomResource, CustomResourceExt, KubeSchema};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::kinds::schema::{MAX_ENTRY, MAX_LABEL, MAX_NAME, MAX_PATH, beyond, specification};

/// The holder of one address of one network.
// The kind has no status, because a restored backup and `clusterctl move` lose the status of objects.
#[derive(Clone, CustomResource, Debug, Deserialize, KubeSchema, PartialEq, Serialize)]
#[kube(
    group = "ipam.glowplug.dev",
    version = "v1alpha1",
    kind = "StaticIPLease",
    doc = "The record of one allocated address of one network. Only the controller should write leases.",
    shortname = "sipl",
    category = "glowplug",
    derive = "PartialEq",
    printcolumn(name = "Network", type_ = "string", json_path = ".spec.network"),
    printcolumn(name = "Address", type_ = "string", json_path = ".spec.address"),
    printcolumn(name = "Kind", type_ = "string", json_path = ".spec.holder.kind"),
    printcolumn(name = "Namespace", type_ = "string", json_path = ".spec.holder.namespace"),
    printcolumn(name = "Name", type_ = "string", json_path = ".spec.holder.name"),
    printcolumn(name = "Released", type_ = "date", json_path = ".spec.released"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Pool", type_ = "string", json_path = ".spec.pool", priority = 1),
    printcolumn(name = "Interface", type_ = "string", json_path = ".spec.holder.interface", priority = 1)
)]
#[serde(rename_all = "camelCase")]
pub struct LeaseSpec {
    /// Network of the address: `namespace/name` of the network attachment definition, or `default`. `mac` for a MAC
    /// address. Example: `infra/vlan10`.
    #[schemars(length(max = MAX_PATH))]
    #[x_kube(validation = Rule::new("self == oldSelf").message("part of the name of the lease, expected no change"))]
    pub network: String,
    /// The address: an IP address, or a MAC address on the network `mac`. Example: `192.168.1.10`.
    #[schemars(length(max = MAX_ENTRY))]
    #[x_kube(validation = Rule::new("self == oldSelf").message("part of the name of the lease, expected no change"))]
    pub address: String,
    /// Prefix length of the address. 48 for a MAC address. Example: `24`.
    #[schemars(range(min = 0, max = 128))]
    pub prefix: u8,
    /// Pool that the address was allocated from: `namespace/name` of a StaticIPPool, `name` of a GlobalStaticIPPool or of
    /// a MACPool.
    /// Example: `clusters/workers`.
    #[schemars(length(max = MAX_PATH))]
    pub pool: String,
    /// Object that holds the address, or held it last.
    pub holder: Holder,
    /// Time of the allocation. Example: `2026-08-14T10:00:00.000000Z`.
    pub since: MicroTime,
    /// Time of the release. Absent while the address is held. Example: `2026-08-15T10:00:00.000000Z`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub released: Option<MicroTime>,
    /// End of the reuse delay of a released address. Absent: no delay. Example: `2026-08-15T10:05:00.000000Z`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reuse_after: Option<MicroTime>,
    /// Secrets from which guests of the machine may read the address, in the namespace of its VirtualMachine. Absent
    /// for an address of a claim, and in a lease of version 0.2.0: that version wrote the Secret `NAME-networkdata`.
    /// Example: `workers-8fm2k-networkdata-4hs7c2mzq6ty3kwa`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = MOST_SECRETS), inner(length(max = MAX_NAME)))]
    #[schemars(extend("x-kubernetes-list-type" = "set"))]
    pub secrets: Option<BTreeSet<String>>,
    /// Time when the guest of the machine migrated, or the claim moved, to another cluster with the address. After the
    /// release, no machine gets the address for 30 days, or until this lease is deleted. Absent: neither happened.
    /// Example: `2026-08-15T10:00:00.000000Z`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub migrated: Option<MicroTime>,
    /// Members that this version does not know. They exist only if the CRD in the cluster is of a later version.
    #[serde(flatten)]
    #[schemars(skip)]
    pub unknown: BTreeMap<String, Value>,
}

/// The object that holds an address. An object made again under the same name has another UID and is another holder.
#[derive(Clone, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
pub struct Holder {
    /// Kind of the object. Example: `KubevirtMachine`.
    #[schemars(schema_with = "holder_kinds")]
    pub kind: HolderKind,
    /// Namespace of the object. Example: `clusters-c1`.
    #[schemars(length(max = MAX_LABEL))]
    pub namespace: String,
    /// Name of the object. Example: `workers-8fm2k`.
    #[schemars(length(max = MAX_NAME))]
    pub name: String,
    /// UID of the object. Example: `0b5f6c4e-77ab-4a0a-9c6e-1b7c5a2f4b11`.
    #[schemars(length(max = MAX_NAME))]
    pub uid: String,
    /// Name of the interface that has the address. For an IP address, this is the name in the guest. For a MAC address,
    /// this is the name in the VirtualMachine. Example: `eno101`.
    #[schemars(length(max = MAX_NAME))]
    pub interface: String,
    /// Namespace of the VirtualMachine, if it is not the namespace of the object. Example: `infra`.
    #[serde(rename = "virtualMachineNamespace", default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = MAX_LABEL))]
    pub vm_namespace: Option<String>,
    /// Members that this version does not know. They exist only if the CRD in the cluster is of a later version.
    #[serde(flatten)]
    #[schemars(skip)]
    pub unknown: BTreeMap<String, Value>,
}

/// Returns the schema of the kind of a holder.
pub(super) fn holder_kinds(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "string",
        "enum": [
            HolderKind::IpAddressClaim, HolderKind::IpamClaim, HolderKind::KubevirtMachine, HolderKind::VirtualMachine,
        ],
    })
}

/// The schema of the specification of a lease.
static LEASE: LazyLock<JSONSchemaProps> = LazyLock::new(|| specification(StaticIPLease::crd()));

// === impl LeaseSpec ===

impl LeaseSpec {
    /// Does the same as [`PoolSpec::beyond_schema`](super::PoolSpec::beyond_schema) for a lease.
    #[must_use]
    pub fn beyond_schema(&self) -> Diagnostics {
        beyond(&LEASE, self)
    }
}
