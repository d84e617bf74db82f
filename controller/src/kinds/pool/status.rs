//! The status of a pool: counts of its addresses, the claims and machines that wait, and conditions.

#![allow(unreachable_pub, reason = "the module of the kinds re-exports these types")]

use glowplug::host::allocator::Usage;
use glowplug::host::claim::HolderKind;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::lease::holder_kinds;
use crate::kinds::schema::{MAX_ENTRY, MAX_LABEL, MAX_NAME, MAX_PATH, conditions, family};

/// Maximum number of entries in [`PoolStatus::first_waiting`] and in [`PoolStatus::neighbours`].
pub(crate) const MOST_WAITING: usize = 10;
/// Maximum number of objects in [`ReportsBeyond::first`].
pub(crate) const MOST_NAMED: usize = 3;
/// Maximum number of digits of a count.
const MAX_DIGITS: usize = 39;

/// What the controller last observed of a pool.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PoolStatus {
    /// `metadata.generation` of the specification that this status describes. -1: no controller has looked at the pool.
    /// Example: `3`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = -1))]
    pub observed_generation: Option<i64>,
    /// Number of addresses of both families.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ip_addresses: Option<AddressCount>,
    /// Exact number of addresses of each family, IPv4 first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 2))]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["family"]))]
    pub families: Vec<FamilyCount>,
    /// Number of claims and machines that wait for an address, including the KubevirtMachines whose VirtualMachine the
    /// webhook rejects because the pool is exhausted. Example: `2`.
    #[serde(default)]
    pub waiting: u32,
    /// The first claims and machines of `waiting`: first the objects that wait, in the order in which they are served,
    /// then the rejected KubevirtMachines, in the same order. Example: `[{name: workers-8fm2k, …}]`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MOST_WAITING))]
    pub first_waiting: Vec<Waiting>,
    /// Number of VirtualMachines that the pool serves, with or without an address. Example: `3`.
    #[serde(default)]
    pub machines: u32,
    /// Number of machines whose guests run with earlier network data, because the pool or the machine has changed since they
    /// started. Example: `0`.
    #[serde(default)]
    pub outdated: u32,
    /// Number of machines that keep a network of their own, because they were already running without network data of this controller when
    /// the pool first selected them, or because their network data was made earlier for other interfaces. Example: `0`.
    #[serde(default)]
    pub left_alone: u32,
    /// Number of machines whose guests migrated to another cluster, and whose addresses are not held after the deletion of the machine:
    /// the namespace already has too many such addresses, or the API server refuses to change a lease. Example: `0`.
    #[serde(default)]
    pub not_held: u32,
    /// Addresses that are not reserved because there are too many of them. Guests, Services or Clusters of other namespaces have them.
    /// Absent if every such address is reserved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reports_beyond: Option<ReportsBeyond>,
    /// The first Services of type LoadBalancer and Clusters that have an address of the pool. No machine gets such an address, but a
    /// machine that holds the address keeps it. Example: `[{kind: Service, name: web, …}]`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MOST_WAITING))]
    pub neighbours: Vec<Neighbour>,
    /// `Ready`: the pool allocates addresses. `Stalled`: the pool allocates no addresses before a user changes it.
    /// `Exhausted`: the pool has no free address of a family. `DuplicateRecords`: two users have the same address of
    /// the pool. `NodePoolFound`: every NodePool of the pool exists. `NamespacesListed`: the pool selects by labels of
    /// Namespaces, and the controller knows these labels. `SchemaViolated`: the specification was stored under an
    /// earlier schema, and the current schema does not allow all of it. `UnreadableLeases`: leases of the pool cannot
    /// be read, and their addresses are not allocated. `UnadoptedRecords`: the new addresses of the pool are not
    /// allocated yet, because the controller cannot read every record of an address.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "conditions")]
    pub conditions: Vec<Condition>,
}

/// A claim or machine that waits for an address.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Waiting {
    /// Kind of the object. Example: `KubevirtMachine`.
    #[schemars(schema_with = "holder_kinds")]
    pub kind: HolderKind,
    /// Namespace of the object. Example: `clusters-c1`.
    #[schemars(length(max = MAX_LABEL))]
    pub namespace: String,
    /// Name of the object. Example: `workers-8fm2k`.
    #[schemars(length(max = MAX_NAME))]
    pub name: String,
    /// `IPv4` or `IPv6`: the family without a free address. Absent: the object waits for an address of another pool, or the pool
    /// allocates nothing for now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "family")]
    pub family: Option<String>,
    /// Time of the creation of the object: objects are served in this order. Example: `2026-08-14T10:00:00Z`.
    pub since: Time,
}

/// An object that has an address of a pool, and that no pool serves.
#[derive(Clone, Debug, Deserialize, JsonSchema, Ord, PartialOrd, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Neighbour {
    /// The address. Example: `192.168.1.40`.
    #[schemars(length(max = MAX_ENTRY))]
    pub address: String,
    /// `Service` or `Cluster`: the kind of the object. Example: `Service`.
    #[schemars(length(max = MAX_LABEL))]
    pub kind: String,
    /// Namespace of the object. Example: `shop`.
    #[schemars(length(max = MAX_LABEL))]
    pub namespace: String,
    /// Name of the object. Example: `web`.
    #[schemars(length(max = MAX_NAME))]
    pub name: String,
}

/// Addresses of guests, Services and Clusters that are not reserved.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ReportsBeyond {
    /// Number of the addresses. Example: `60`.
    #[schemars(range(min = 0))]
    pub addresses: i64,
    /// Number of the guests, Services and Clusters with these addresses. Example: `4`.
    #[schemars(range(min = 0))]
    pub guests: i64,
    /// The first of these guests, Services and Clusters, as `namespace/name`. Example: `["tenant/vm-0"]`.
    #[serde(default)]
    #[schemars(length(max = MOST_NAMED), inner(length(max = MAX_PATH)))]
    pub first: Vec<String>,
}

/// Number of addresses of a pool. Each number is at most 9223372036854775807.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AddressCount {
    /// Addresses that the pool may allocate, allocated or not. Example: `82`.
    #[schemars(range(min = 0))]
    pub total: i64,
    /// Addresses that the next claims may get. In a pool with two families, this is the smaller number of the two
    /// families. Absent if another program chooses the addresses. Example: `79`.
    #[schemars(range(min = 0))]
    pub free: Option<i64>,
    /// Addresses that a claim or machine holds. Example: `3`.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub allocated: i64,
    /// Held addresses that the pool no longer contains, or keeps for another name. Example: `0`.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub outside: i64,
}

/// Exact numbers of addresses of one family, as decimal strings, because a pool may have 2^64 addresses. `total` is the
/// sum of `free`, `allocated`, `reserved` and `reuseDelay`.
// The members are named with the words of `glowplug::host::counts`. A status that an earlier version wrote lacks some
// of these members.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FamilyCount {
    /// `IPv4` or `IPv6`.
    #[schemars(schema_with = "family")]
    pub family: String,
    /// All addresses of the pool. Example: `"41"`.
    #[schemars(length(max = MAX_DIGITS))]
    pub total: String,
    /// Addresses that a claim or machine holds. Example: `"2"`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = MAX_DIGITS))]
    pub allocated: String,
    /// Addresses that no claim gets: the sum of `excluded`, `byRecord` and `byReport`. Example: `"0"`.
    #[schemars(length(max = MAX_DIGITS))]
    pub reserved: String,
    /// Addresses that the specification reserves, such as gateways, name servers, exclusions and ends of subnets. Also
    /// pre-allocated addresses that their machine or claim does not hold. Example: `"0"`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = MAX_DIGITS))]
    pub excluded: String,
    /// Reserved addresses that an object has without a lease: the address of an IPAddress whose claim does not exist,
    /// an address in network data that a user wrote, an address that the pool no longer offers to its machine, or a
    /// recorded address that cannot become a lease. Example: `"0"`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = MAX_DIGITS))]
    pub by_record: String,
    /// Reserved addresses that only a running guest reports, or that a Service of type LoadBalancer or the control plane of a Cluster
    /// has. Example: `"0"`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = MAX_DIGITS))]
    pub by_report: String,
    /// Released addresses in their reuse delay. Example: `"0"`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = MAX_DIGITS))]
    pub reuse_delay: String,
    /// Addresses that the next claims may get. Example: `"39"`.
    #[schemars(length(max = MAX_DIGITS))]
    pub free: String,
    /// Addresses of two users: see the condition `DuplicateRecords`. Each such address also counts as allocated or
    /// reserved.
    /// Example: `"0"`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = MAX_DIGITS))]
    pub conflicts: String,
    /// Held addresses that the pool no longer contains, or keeps for another name. Example: `"0"`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = MAX_DIGITS))]
    pub outside: String,
}

// === impl AddressCount ===

impl AddressCount {
    /// Adds up the counts of the families of a pool. A machine needs an address of each family, so `free` is the
    /// smallest count, not the sum.
    #[must_use]
    pub fn of(usage: &[Usage]) -> Self {
        let number = |count: u128| i64::try_from(count).unwrap_or(i64::MAX);
        let sum = |count: fn(&Usage) -> u128| number(usage.iter().map(count).fold(0, u128::saturating_add));
        Self {
            total: sum(|usage| usage.total - usage.excluded),
            free: usage.iter().map(|usage| number(usage.free)).min(),
            allocated: sum(|usage| usage.allocated),
            outside: sum(|usage| usage.outside),
        }
    }
}

// === impl FamilyCount ===

impl From<&Usage> for FamilyCount {
    fn from(usage: &Usage) -> Self {
        Self {
            family: usage.family.to_string(),
            total: usage.total.to_string(),
            allocated: usage.allocated.to_string(),
            reserved: usage.reserved().to_string(),
            excluded: usage.excluded.to_string(),
            by_record: usage.by_record.to_string(),
            by_report: usage.by_report.to_string(),
            reuse_delay: usage.reuse_delay.to_string(),
            free: usage.free.to_string(),
            conflicts: usage.conflicts.to_string(),
            outside: usage.outside.to_string(),
        }
    }
}
