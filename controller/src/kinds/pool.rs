//! The kinds of group `ipam.glowplug.dev`: pools of addresses, and the leases that record their holders.
//!
//! The descriptions are the output of `kubectl explain`. `glowplug-controller crd` generates the manifests in
//! `config/crd` from these types.

#![allow(clippy::duplicated_attributes, reason = "columns of a kind have the same type")]
#![allow(unreachable_pub, reason = "KubeSchema repeats each struct in a function")]

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::sync::LazyLock;

use glowplug::diagnostic::{Diagnostic, Diagnostics};
use glowplug::formats::value::MAX_BYTES;
use glowplug::host::allocator::{MOST_SECRETS, Usage};
pub use glowplug::host::claim::HolderKind;
use glowplug::host::lease_name::{NameError, lease_name};
use glowplug::host::pool::{Pool, PoolSpec as FilePool};
pub use glowplug::host::pool_object::GROUP;
use glowplug::host::pool_object::template_facts;
use glowplug::host::pools_file::read_pools;
use glowplug::network::InterfaceName;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{CustomResourceDefinition, JSONSchemaProps};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, LabelSelector, MicroTime, Time};
use kube::core::{ParseExpressionError, Selector};
use kube::{CustomResource, CustomResourceExt, KubeSchema};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::cluster::key::PoolId;
use crate::kinds::mac_pool::MACPool;
use crate::kinds::schema::{
    MAX_LABEL, MAX_NAME, MAX_PATH, beyond, complete, conditions, family, read, selector, specification,
};

/// Label with the name of the cluster of an object. Cluster API sets the label.
pub const CLUSTER_LABEL: &str = "cluster.x-k8s.io/cluster-name";

/// Prefix of the labels that the controller writes on Namespaces.
pub(crate) const OWN_LABELS: &str = "ipam.glowplug.dev/";

/// Largest number of entries in [`PoolStatus::first_waiting`] and in [`PoolStatus::neighbours`].
pub(crate) const MOST_WAITING: usize = 10;
/// Largest number of guests in [`ReportsBeyond::first`].
pub(crate) const MOST_NAMED: usize = 3;
/// Largest number of addresses, exclusions or pre-allocations of a pool. An object of etcd hardly has room for more, and one range can
/// replace any number of addresses.
const MAX_ENTRIES: usize = 65_536;
/// Largest number of characters in an address, a range or a subnet, or in two addresses with a comma between them.
const MAX_ENTRY: usize = 128;
/// Largest number of gateways, name servers, search domains, routes or subnets of a pool.
const MAX_SERVERS: usize = 64;
/// Most NodePools of a pool.
const MAX_NODE_POOLS: usize = 1024;
/// Digits of the largest count.
const MAX_DIGITS: usize = 39;

/// The finalizer that keeps a pool until no lease of the pool is held.
pub const POOL_FINALIZER: &str = "ipam.glowplug.dev/protect-pool";

/// The addresses of a pool, and the machines and claims that may get them.
#[derive(Clone, CustomResource, Debug, Default, Deserialize, KubeSchema, PartialEq, Serialize)]
#[kube(
    group = "ipam.glowplug.dev",
    version = "v1alpha1",
    kind = "StaticIPPool",
    doc = "A pool of static addresses of one network, for machines, IPAddressClaims and IPAMClaims of its namespace.",
    namespaced,
    status = "PoolStatus",
    shortname = "sipp",
    category = "cluster-api",
    category = "glowplug",
    label("clusterctl.cluster.x-k8s.io/move-hierarchy", ""),
    printcolumn(name = "Network", type_ = "string", json_path = ".spec.network"),
    printcolumn(name = "Ready", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].status"),
    printcolumn(name = "Free", type_ = "integer", json_path = ".status.ipAddresses.free"),
    printcolumn(name = "Allocated", type_ = "integer", json_path = ".status.ipAddresses.allocated"),
    printcolumn(name = "Waiting", type_ = "integer", json_path = ".status.waiting"),
    printcolumn(name = "Outdated", type_ = "integer", json_path = ".status.outdated", priority = 1),
    printcolumn(name = "Machines", type_ = "integer", json_path = ".status.machines", priority = 1),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(
        name = "Free IPv4",
        type_ = "string",
        json_path = ".status.families[?(@.family==\"IPv4\")].free",
        priority = 1
    ),
    printcolumn(
        name = "Free IPv6",
        type_ = "string",
        json_path = ".status.families[?(@.family==\"IPv6\")].free",
        priority = 1
    ),
    printcolumn(name = "Addresses", type_ = "string", json_path = ".spec.addresses", priority = 1),
    printcolumn(
        name = "Cluster",
        type_ = "string",
        json_path = ".metadata.labels.cluster\\.x-k8s\\.io/cluster-name",
        priority = 1
    )
)]
#[serde(rename_all = "camelCase")]
pub struct PoolSpec {
    /// Network attachment definition of the addresses: `namespace/name`, or `name` in the namespace of the pool, or
    /// `default` for the network of pods. Immutable. Example: `infra/vlan10`.
    #[schemars(length(max = MAX_PATH))]
    #[x_kube(validation = Rule::new("self == oldSelf").message("immutable, expected a new pool for another network"))]
    pub network: String,
    /// Addresses of the pool: CIDRs, ranges and single addresses of either family.
    /// Example: `[192.168.1.10-192.168.1.50, 2620:0:860:2::/112]`. Not with `addressesFrom`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MAX_ENTRIES), inner(length(max = MAX_ENTRY)))]
    pub addresses: Vec<String>,
    /// Subnets of the pool, in place of `addresses`, `gateway`, `routes`, `machineNetwork` and `prefix`. An address comes from the
    /// first subnet that has a free one, and the machine gets the settings of this subnet.
    /// Example: `[{addresses: [192.168.1.0/24], gateway: [192.168.1.1]}, {addresses: [192.168.2.0/24], gateway: [192.168.2.1]}]`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = MAX_SERVERS))]
    pub subnets: Option<Vec<PoolSubnet>>,
    /// Another program that chooses the addresses of the machines. The pool adds gateway, name servers and network data.
    /// Not with `addresses`, and only with `nodePoolRef` or `machineSelector`: such a pool serves no IPAddressClaims.
    /// Example: `{poolRef: {apiGroup: ipam.cluster.x-k8s.io, kind: InClusterIPPool, name: workers}}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub addresses_from: Option<AddressesFrom>,
    /// Addresses that are never allocated, written like `addresses`, each item once. Example: `[192.168.1.20]`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MAX_ENTRIES), inner(length(max = MAX_ENTRY)))]
    #[schemars(extend("x-kubernetes-list-type" = "set"))]
    pub excluded_addresses: Vec<String>,
    /// Addresses that the pool keeps for machines and claims, by name. No other machine or claim gets these addresses, even while the named
    /// object does not exist yet. The key is the name of a machine or of a claim, or `namespace/name`. The value is an address of
    /// `addresses` or `excludedAddresses`, or one of each family with a comma between them.
    /// Example: `{db-0: "192.168.1.20, 2620:0:860:2::20"}`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "pre_allocations")]
    pub pre_allocations: BTreeMap<String, String>,
    /// Default gateway of the machines, at most one of each family. A gateway is never allocated.
    /// Example: `[192.168.1.1, 2620:0:860:2::1]`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MAX_SERVERS), inner(length(max = MAX_ENTRY)))]
    pub gateway: Vec<String>,
    /// Name servers of the machines, most important first. A name server is never allocated. Example: `[8.8.8.8]`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MAX_SERVERS), inner(length(max = MAX_ENTRY)))]
    pub nameservers: Vec<String>,
    /// Search domains of the machines for short host names, most important first. Example: `[c1.example.com]`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MAX_SERVERS), inner(length(max = MAX_NAME)))]
    pub search_domains: Vec<String>,
    /// MTU of the interface in bytes. Absent: the guest keeps the MTU of its driver. Example: `9000`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub mtu: Option<i32>,
    /// Routes of the machines in addition to the default routes. A router is never allocated.
    /// Example: `[{to: 10.0.0.0/8, via: 192.168.1.254}]`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MAX_SERVERS))]
    pub routes: Vec<Route>,
    /// Subnet of the machines, at most one of each family. The subnet determines the prefix length of the addresses. Required for a family
    /// whose `addresses` are not whole subnets. Example: `[{cidr: 192.168.1.0/24}]`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MAX_SERVERS))]
    pub machine_network: Vec<MachineNetwork>,
    /// Prefix length of the addresses in a pool of one family, in place of `machineNetwork`. 32, or 128 for IPv6: each address is a
    /// subnet of its own, and the gateway is on the link. 0: the addresses have no common subnet, which only IPAddressClaims accept.
    /// Example: `24`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub prefix: Option<i32>,
    /// Name of the interface in the guest that gets the addresses. Default: `eno101`, the interface with `acpiIndex` 101.
    /// Example: `eno102`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = InterfaceName::MAX))]
    pub interface: Option<String>,
    /// Whether the network, broadcast and subnet-router anycast addresses of the subnets are allocated too. Example: `true`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    #[serde(rename = "allocateReservedIPAddresses")]
    pub allocate_reserved_ip_addresses: bool,
    /// Whether the gateway may be outside the subnet of the machines: they reach it on the link. Example: `true`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub on_link_gateway: bool,
    /// Seconds after the release of an address in which no other machine gets the address. Example: `300`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub address_reuse_grace_period_seconds: Option<u32>,
    /// Whether a machine gets the address that a machine of the same namespace and name released last. Example: `true`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub sticky: bool,
    /// Whether the pool serves IPAMClaims (`k8s.cni.cncf.io`) on its network: it writes their addresses into `status.ips`.
    /// The network of a claim is the `name` in the configuration of the network attachment definition. No other program
    /// may serve these claims. Not with `addressesFrom`. Example: `true`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    #[serde(rename = "serveIPAMClaims")]
    pub serve_ipam_claims: bool,
    /// Whether the pool also allocates the addresses that Services of type LoadBalancer and the control planes of Clusters have. By
    /// default, it reserves them as long as these objects exist. Example: `true`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ignore_neighbours: bool,
    /// Order of the pools that select one machine for one network, lowest number first. The machine gets addresses of the first pool that
    /// has free ones. The later pools are the overflow of the first pool. No two of these pools may have the same number. Absent: 0.
    /// Example: `10`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = -1000, max = 1000))]
    pub priority: Option<i32>,
    /// `network_data.json` from which the document of each machine is made, as JSON or YAML. Absent: the document has only links and
    /// addresses of the pool. Example: `{"links": [{"id": "eno101", "type": "phy", "mtu": 9000}]}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = MAX_BYTES))]
    pub template: Option<String>,
    /// NodePool of HyperShift whose machines get addresses of this pool without a claim. Not with `machineSelector`, and not in
    /// a GlobalStaticIPPool. Example: `{name: workers}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_pool_ref: Option<NodePoolRef>,
    /// NodePools of HyperShift, each with its namespace, whose machines get addresses of this GlobalStaticIPPool without a claim.
    /// The pool then serves only the claims in the namespaces of these machines. Not with `namespaceSelector`.
    /// Example: `[{namespace: clusters, name: blue}, {namespace: clusters, name: green}]`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = MAX_NODE_POOLS))]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["namespace", "name"]))]
    pub node_pool_refs: Option<Vec<NamespacedNodePoolRef>>,
    /// Namespaces, by their labels, whose VirtualMachines get addresses of this GlobalStaticIPPool without a claim. The pool then
    /// serves only the claims in these namespaces. `machineSelector` selects among the machines. Not with `nodePoolRefs`.
    /// Example: `{matchLabels: {network.example.com/vlan10: "true"}}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "selector")]
    pub namespace_selector: Option<LabelSelector>,
    /// VirtualMachines of this namespace that get addresses of this pool without a claim. Not with `nodePoolRef`. Neither of the two: the
    /// pool serves claims only. In a GlobalStaticIPPool, the selector restricts the machines of `namespaceSelector` to those with matching
    /// labels.
    /// Example: `{matchLabels: {cluster.x-k8s.io/cluster-name: c1}}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "selector")]
    pub machine_selector: Option<LabelSelector>,
    /// Members that this version does not know. They exist only if the CRD in the cluster is of a later version.
    #[serde(flatten)]
    #[schemars(skip)]
    pub unknown: BTreeMap<String, Value>,
}

/// The addresses of a pool that serves the claims of every namespace, or the machines and claims of several namespaces.
#[derive(Clone, CustomResource, Debug, Default, Deserialize, KubeSchema, PartialEq, Serialize)]
#[kube(
    group = "ipam.glowplug.dev",
    version = "v1alpha1",
    kind = "GlobalStaticIPPool",
    doc = "A pool of static addresses of one network, for IPAddressClaims and IPAMClaims of every namespace, or for the machines and claims of several namespaces.",
    status = "PoolStatus",
    shortname = "gsipp",
    category = "cluster-api",
    category = "glowplug",
    label("clusterctl.cluster.x-k8s.io/move-hierarchy", ""),
    printcolumn(name = "Network", type_ = "string", json_path = ".spec.network"),
    printcolumn(name = "Ready", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].status"),
    printcolumn(name = "Free", type_ = "integer", json_path = ".status.ipAddresses.free"),
    printcolumn(name = "Allocated", type_ = "integer", json_path = ".status.ipAddresses.allocated"),
    printcolumn(name = "Waiting", type_ = "integer", json_path = ".status.waiting"),
    printcolumn(name = "Outdated", type_ = "integer", json_path = ".status.outdated", priority = 1),
    printcolumn(name = "Machines", type_ = "integer", json_path = ".status.machines", priority = 1),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(
        name = "Free IPv4",
        type_ = "string",
        json_path = ".status.families[?(@.family==\"IPv4\")].free",
        priority = 1
    ),
    printcolumn(
        name = "Free IPv6",
        type_ = "string",
        json_path = ".status.families[?(@.family==\"IPv6\")].free",
        priority = 1
    ),
    printcolumn(name = "Addresses", type_ = "string", json_path = ".spec.addresses", priority = 1)
)]
pub struct GlobalPoolSpec {
    /// The members of a pool.
    #[serde(flatten)]
    pub pool: PoolSpec,
}

/// A subnet of machines, as HostedCluster writes it.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
pub struct MachineNetwork {
    /// The subnet. Example: `192.168.1.0/24`.
    #[schemars(length(max = MAX_ENTRY))]
    pub cidr: String,
}

/// A subnet of a pool. Its members mean the same as the members of a pool with these names. A subnet without name servers, search domains
/// or MTU has those of the pool.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PoolSubnet {
    /// Addresses of the subnet. Example: `[192.168.1.0/24]`.
    #[schemars(length(max = MAX_ENTRIES), inner(length(max = MAX_ENTRY)))]
    pub addresses: Vec<String>,
    /// Addresses that are never allocated. Example: `[192.168.1.20]`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MAX_ENTRIES), inner(length(max = MAX_ENTRY)))]
    pub excluded_addresses: Vec<String>,
    /// Default gateway, at most one of each family. Example: `[192.168.1.1]`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MAX_SERVERS), inner(length(max = MAX_ENTRY)))]
    pub gateway: Vec<String>,
    /// Name servers, most important first. Example: `[192.168.1.53]`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MAX_SERVERS), inner(length(max = MAX_ENTRY)))]
    pub nameservers: Vec<String>,
    /// Search domains, most important first. Example: `[c1.example.com]`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MAX_SERVERS), inner(length(max = MAX_NAME)))]
    pub search_domains: Vec<String>,
    /// MTU of the interface in bytes. Example: `9000`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub mtu: Option<i32>,
    /// Routes in addition to the default routes. Example: `[{to: 10.0.0.0/8, via: 192.168.1.254}]`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MAX_SERVERS))]
    pub routes: Vec<Route>,
    /// Network of the subnet, at most one of each family. Example: `[{cidr: 192.168.1.0/24}]`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MAX_SERVERS))]
    pub machine_network: Vec<MachineNetwork>,
    /// Prefix length of the addresses in a subnet of one family, in place of `machineNetwork`. Example: `24`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub prefix: Option<i32>,
}

/// A route of machines through a router of their network.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
pub struct Route {
    /// The destination. Example: `10.0.0.0/8`.
    #[schemars(length(max = MAX_ENTRY))]
    pub to: String,
    /// The router, in the subnet of the machines unless `onLinkGateway` is set. Example: `192.168.1.254`.
    #[schemars(length(max = MAX_ENTRY))]
    pub via: String,
}

/// The program that chooses the addresses of machines: exactly one member.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AddressesFrom {
    /// Pool of another IPAM provider of Cluster API. The controller creates an IPAddressClaim for each machine, in the
    /// namespace of its VirtualMachine. Address, prefix length and gateway come from the IPAddress.
    /// Example: `{apiGroup: ipam.cluster.x-k8s.io, kind: GlobalInClusterIPPool, name: workers}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool_ref: Option<ProviderPoolRef>,
    /// The IPAMClaim of each machine on the network, which the network provider fills (OVN-Kubernetes with persistent
    /// addresses). Addresses and prefix lengths come from `status.ips` of the claim. Example: `{}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipam_claim: Option<IpamClaimRef>,
}

/// A pool of another IPAM provider. A pool with a namespace must be in the namespace of the VirtualMachines.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ProviderPoolRef {
    /// API group of the pool. Example: `ipam.cluster.x-k8s.io`.
    #[schemars(length(max = MAX_NAME))]
    pub api_group: String,
    /// Kind of the pool. Example: `InClusterIPPool`.
    #[schemars(length(max = MAX_NAME))]
    pub kind: String,
    /// Name of the pool. Example: `workers`.
    #[schemars(length(max = MAX_NAME))]
    pub name: String,
}

/// The IPAMClaim of a machine. Its name is the name of the VirtualMachine, a dot, and KubeVirt's name of the interface.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
pub struct IpamClaimRef {}

/// A NodePool of the namespace of the pool.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
pub struct NodePoolRef {
    /// Name of the NodePool. Example: `workers`.
    #[schemars(length(max = MAX_NAME))]
    pub name: String,
}

/// A NodePool of any namespace.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
pub struct NamespacedNodePoolRef {
    /// Namespace of the NodePool. Example: `clusters`.
    #[schemars(length(max = MAX_LABEL))]
    pub namespace: String,
    /// Name of the NodePool. Example: `workers`.
    #[schemars(length(max = MAX_NAME))]
    pub name: String,
}

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
    /// Number of claims and machines that wait for an address, with the KubevirtMachines whose VirtualMachine the webhook rejects because
    /// the pool is exhausted. Example: `2`.
    #[serde(default)]
    pub waiting: u32,
    /// The first of these claims and machines, in the order in which they are served, and then those that are rejected. Example: `[{name: workers-8fm2k, …}]`.
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
    /// the pool first selected them. Example: `0`.
    #[serde(default)]
    pub left_alone: u32,
    /// Number of machines whose guests migrated to another cluster, and whose addresses are not held after the deletion of the machine,
    /// because their namespace already has too many such addresses. Example: `0`.
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
    /// `Ready`: the pool allocates addresses. `Stalled`: the pool allocates no addresses before a user changes it. `Exhausted`: the pool
    /// has no free address of a family. `DuplicateRecords`: two users have the same address of the pool. `NodePoolFound`: every NodePool of
    /// the pool exists. `NamespacesListed`: the controller knows the labels of Namespaces, by which the pool selects. `SchemaViolated`: the
    /// specification was stored under an earlier schema, and the current schema does not allow all of it. `UnreadableLeases`: leases of the
    /// pool cannot be read, and their addresses are not allocated.
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

/// Reported addresses that are not reserved.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ReportsBeyond {
    /// Number of the addresses. Example: `60`.
    #[schemars(range(min = 0))]
    pub addresses: i64,
    /// Number of the guests that report them. Example: `4`.
    #[schemars(range(min = 0))]
    pub guests: i64,
    /// The first of these guests, as `namespace/name`. Example: `["tenant/vm-0"]`.
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
    /// Addresses that the next claims may get: the number of the family that has the fewest of them. Absent if another program chooses the
    /// addresses. Example: `79`.
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

/// Exact number of addresses of one family, as a decimal string: a pool may have 2^64 of them. `total` is the sum of `free`, `allocated`,
/// `reserved` and `reuseDelay`.
// The members have the words of `glowplug::host::counts`. A status of an earlier version does not have all of them.
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
    /// Reserved addresses: gateways, name servers, exclusions, ends of subnets, and pre-allocated addresses that their machine
    /// or claim does not hold. Example: `"0"`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = MAX_DIGITS))]
    pub excluded: String,
    /// Reserved addresses that an object has without a lease: the address of an IPAddress whose claim does not exist, an address in network
    /// data that a user wrote, an address that the pool no longer offers to its machine, or an address of a record that does not fit.
    /// Example: `"0"`.
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
    /// Addresses of two users: see the condition `DuplicateRecords`. They are allocated or reserved, too. Example: `"0"`.
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
    /// Adds up the counts of the families of a pool. A machine needs an address of each family, so `free` is the smallest count, not the
    /// sum.
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
    /// Secrets in the namespace of the VirtualMachine from which guests of a machine may read the address. Absent for an address
    /// of a claim, and in a lease of version 0.2.0, whose Secret is `NAME-networkdata`. Example: `workers-8fm2k-networkdata-4hs7c2mzq6ty3kwa`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = MOST_SECRETS), inner(length(max = MAX_NAME)))]
    #[schemars(extend("x-kubernetes-list-type" = "set"))]
    pub secrets: Option<BTreeSet<String>>,
    /// Time when the guest of the machine migrated to another cluster with the address. After the release, no machine gets the
    /// address for 30 days, or until this lease is deleted. Absent: it did not migrate. Example: `2026-08-15T10:00:00.000000Z`.
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
    /// Interface of the machine that has the address: its name in the guest, or, for a MAC address, in the
    /// VirtualMachine. Example: `eno101`.
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

/// The schema of the kind of a holder.
fn holder_kinds(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "string",
        "enum": [
            HolderKind::IpAddressClaim, HolderKind::IpamClaim, HolderKind::KubevirtMachine, HolderKind::VirtualMachine,
        ],
    })
}

/// The schema of [`PoolSpec::pre_allocations`].
fn pre_allocations(_: &mut SchemaGenerator) -> Schema {
    let addresses = json_schema!({"type": "string", "maxLength": MAX_ENTRY});
    json_schema!({"type": "object", "maxProperties": MAX_ENTRIES, "additionalProperties": addresses})
}

/// The schema of the specification of a pool. Both kinds of pools have the same members.
static POOL: LazyLock<JSONSchemaProps> = LazyLock::new(|| specification(StaticIPPool::crd()));

/// The schema of the specification of a lease.
static LEASE: LazyLock<JSONSchemaProps> = LazyLock::new(|| specification(StaticIPLease::crd()));

/// The definitions of every kind, in the order in which `glowplug-controller crd` prints them.
#[must_use]
pub fn definitions() -> Vec<CustomResourceDefinition> {
    let mut definitions = vec![GlobalStaticIPPool::crd(), MACPool::crd(), StaticIPLease::crd(), StaticIPPool::crd()];
    for definition in &mut definitions {
        let labels = definition.metadata.labels.get_or_insert_default();
        labels.insert("cluster.x-k8s.io/provider".to_owned(), "ipam-glowplug".to_owned());
        complete(definition);
    }
    definitions
}

// === impl PoolSpec ===

impl PoolSpec {
    /// Checks a specification as `glowplugctl` checks the object in a file, and returns the pool, with every diagnostic.
    ///
    /// `namespace` is `None` for a [`GlobalStaticIPPool`]. The name of the pool is `namespace/name`, or `name` alone, so that pools of
    /// different kinds never have the same name. Paths are those of the specification: `addresses[0]`.
    ///
    /// `None` when there is an error.
    #[must_use]
    pub fn check(&self, namespace: Option<&str>, name: &str) -> (Option<Pool>, Diagnostics) {
        let kind = if namespace.is_some() { "StaticIPPool" } else { "GlobalStaticIPPool" };
        let spec = serde_json::to_value(self).unwrap_or_default();
        let mut object = json!({"kind": kind, "metadata": {"name": name, "namespace": namespace}, "spec": spec});
        // The schema allows a pool without this list, which is an empty list.
        if let Some(members) = object["spec"].as_object_mut() {
            members.entry("addresses").or_insert_with(|| json!([]));
        }
        let (specs, read) = read_pools(object.to_string().as_bytes());
        let mut diagnostics = Diagnostics::default();
        for diagnostic in read.into_parts().0 {
            let path = diagnostic.path.strip_prefix("spec.").unwrap_or(&diagnostic.path).to_owned();
            diagnostics.push(Diagnostic { path, ..diagnostic });
        }
        let selectors = [("machineSelector", &self.machine_selector), ("namespaceSelector", &self.namespace_selector)];
        for (member, selector) in selectors {
            let selector = selector.clone().map(Selector::try_from);
            if let Some(Err(ParseExpressionError(problem))) = selector {
                let expected = "matchLabels and matchExpressions with the operators In, NotIn, Exists and DoesNotExist";
                diagnostics.push(Diagnostic::error(member, "invalid selector", &problem, expected));
            }
        }
        if let Some(label) = own_label(self.namespace_selector.as_ref()) {
            let expected = "labels that the controller does not write";
            diagnostics.push(Diagnostic::error("namespaceSelector", "label of the controller", label, expected));
        }
        // Without the path of the file, the further diagnostics have paths in the specification, too.
        let spec = specs.into_iter().next().map(|spec| FilePool { path: String::new(), ..spec });
        let pool = spec.and_then(|spec| {
            let template = template_facts(&spec, &mut diagnostics);
            Pool::new(&spec, &template, &mut diagnostics)
        });
        if let Some(pool) = &pool {
            check_lease_names(pool, &mut diagnostics);
        }
        (pool.filter(|_| !diagnostics.has_errors()), diagnostics)
    }
}

/// The first label in a selector that begins with [`OWN_LABELS`].
fn own_label(selector: Option<&LabelSelector>) -> Option<&str> {
    let selector = selector?;
    let labels = selector.match_labels.iter().flat_map(BTreeMap::keys);
    let mut keys = labels.chain(selector.match_expressions.iter().flatten().map(|expression| &expression.key));
    keys.find(|key| key.starts_with(OWN_LABELS)).map(String::as_str)
}

impl PoolSpec {
    /// Reads the specification of a pool of either kind. Both kinds have the same members.
    ///
    /// # Errors
    ///
    /// The specification does not fit the schema. The error has one line for each problem.
    pub fn read(specification: &Value) -> Result<Self, String> {
        read(&POOL, specification)
    }

    /// Reports what the schema of this version does not allow in the specification, which an API server has stored under an
    /// earlier schema. The pool works, but may have to be corrected before it can be changed or restored.
    #[must_use]
    pub fn beyond_schema(&self) -> Diagnostics {
        beyond(&POOL, self)
    }
}

// === impl LeaseSpec ===

impl LeaseSpec {
    /// The same as [`PoolSpec::beyond_schema`], of a lease.
    #[must_use]
    pub fn beyond_schema(&self) -> Diagnostics {
        beyond(&LEASE, self)
    }
}

// === impl AddressesFrom ===

impl fmt::Display for AddressesFrom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.pool_ref {
            Some(pool) => write!(f, "{} {}", pool.kind, pool.name),
            None => f.write_str("the IPAMClaims of the machines"),
        }
    }
}

/// Rejects a network that cannot be part of the name of a lease. A machine may record an address of any family, so the
/// longest address counts.
fn check_lease_names(pool: &Pool, diagnostics: &mut Diagnostics) {
    let longest = IpAddr::from([u16::MAX; 8]);
    let (problem, expected) = match lease_name(longest, pool.network()) {
        Err(NameError::Network(_)) => ("invalid network", "namespace/name or default"),
        Err(NameError::TooLong(_)) => ("name too long", "at most 253 bytes with the longest address"),
        Ok(_) => return,
    };
    diagnostics.push(Diagnostic::error("network", problem, pool.network(), expected));
}

// === impl PoolId ===

impl PoolId {
    /// Checks the specification of this pool, as [`PoolSpec::check`] does.
    #[must_use]
    pub fn check(&self, spec: &PoolSpec) -> (Option<Pool>, Diagnostics) {
        spec.check(self.namespace.as_deref(), &self.name)
    }

    /// Checks the specification of this pool.
    ///
    /// # Errors
    ///
    /// The specification is invalid. The error has one line for each diagnostic.
    pub fn check_lines(&self, spec: &PoolSpec) -> Result<Pool, String> {
        let (pool, diagnostics) = self.check(spec);
        pool.ok_or_else(|| {
            let lines: Vec<String> = diagnostics.kept().iter().map(ToString::to_string).collect();
            lines.join("\n")
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use glowplug::host::pool::TemplateFacts;

    use super::*;

    /// Whether the specification is accepted, and its diagnostics.
    type Verdict = (bool, Vec<String>);

    fn verdict(pool: Option<&Pool>, diagnostics: &Diagnostics) -> Verdict {
        (pool.is_some(), diagnostics.kept().iter().map(ToString::to_string).collect())
    }

    /// Result of the controller for an object. `None` when the schema of its kind rejects the object.
    fn of_object(spec: &Value) -> Option<Verdict> {
        let spec: PoolSpec = serde_json::from_value(spec.clone()).ok()?;
        let (pool, diagnostics) = spec.check(Some("clusters"), "workers");
        Some(verdict(pool.as_ref(), &diagnostics))
    }

    /// Result of `glowplugctl` for a pool file with the same members.
    fn of_file(spec: &Value) -> Verdict {
        let mut file = spec.clone();
        file["name"] = "workers".into();
        file["namespace"] = "clusters".into();
        let (specs, mut diagnostics) = read_pools(file.to_string().as_bytes());
        let pool = specs.first().and_then(|spec| Pool::new(spec, &TemplateFacts::default(), &mut diagnostics));
        verdict(pool.as_ref(), &diagnostics)
    }

    #[test]
    fn every_kind_has_a_short_name_and_the_category_of_the_group() {
        let names = definitions().into_iter().map(|definition| definition.spec.names);
        let names: Vec<_> = names.map(|names| (names.kind, names.short_names, names.categories)).collect();
        let expected = |kind: &str, short: &str, categories: &[&str]| {
            let owned = |texts: &[&str]| Some(texts.iter().map(|&text| text.to_owned()).collect::<Vec<_>>());
            (kind.to_owned(), owned(&[short]), owned(categories))
        };
        let of_cluster_api = ["cluster-api", "glowplug"];
        let expected = [
            expected("GlobalStaticIPPool", "gsipp", &of_cluster_api),
            expected("MACPool", "macp", &["glowplug"]),
            expected("StaticIPLease", "sipl", &["glowplug"]),
            expected("StaticIPPool", "sipp", &of_cluster_api),
        ];
        assert_eq!(names, expected);
    }

    #[test]
    fn an_object_and_a_pool_file_with_the_same_members_get_the_same_verdict() {
        for members in [
            json!({}),
            json!({"addresses": []}),
            json!({"addresses": ["10.0.0.5/24", "x"]}),
            json!({"addresses": ["10.0.0.5-10.0.0.9"]}),
            json!({"addresses": ["10.0.0.5-10.0.0.9", "fd00::5"], "machineNetwork": [{"cidr": "10.0.0.0/24"}, {"cidr": "fd00::/64"}]}),
            json!({"gateway": ["10.0.0.1"], "nameservers": ["8.8.8.8", "fd00::1"], "excludedAddresses": ["10.0.0.7", "10.0.9.9"]}),
            json!({"gateway": ["10.9.0.1"]}),
            json!({"gateway": ["10.9.0.1"], "onLinkGateway": true, "allocateReservedIPAddresses": true}),
            json!({"interface": "a b", "network": "a/b/c"}),
            json!({"network": ""}),
            json!({"network": "default", "interface": "eno102"}),
            json!({
                "searchDomains": ["example.com", "a b"], "mtu": 9000,
                "routes": [{"to": "10.9.0.0/16", "via": "10.0.0.254"}, {"to": "10.9.0.1/16", "via": "10.9.0.1"}],
            }),
            json!({"mtu": 67}),
            json!({"prefix": 32, "gateway": ["169.254.1.1"], "onLinkGateway": true}),
            json!({"prefix": 33}),
            json!({"addresses": [], "subnets": [
                {"addresses": ["10.0.0.0/24"], "gateway": ["10.0.0.1"], "mtu": 9000},
                {"addresses": ["10.0.1.0-10.0.1.9"], "prefix": 24, "excludedAddresses": ["10.0.1.3"],
                 "routes": [{"to": "10.9.0.0/16", "via": "10.0.1.9"}], "searchDomains": ["example.com"], "nameservers": ["10.0.1.8"]},
                {"addresses": ["10.0.2.5"], "machineNetwork": [{"cidr": "10.0.2.0/24"}]},
            ]}),
            json!({"subnets": [{"addresses": ["10.0.1.0/24"], "gateway": ["10.0.0.1"]}]}),
        ] {
            let mut spec = json!({"network": "infra/vlan10", "addresses": ["10.0.0.0/24"]});
            json_patch::merge(&mut spec, &members);
            assert_eq!(of_object(&spec), Some(of_file(&spec)), "{spec}");
        }
    }

    #[test]
    fn a_pool_file_with_values_that_the_schema_rejects_is_rejected_too() {
        for members in [
            json!({"addresses": "10.0.0.0/24"}),
            json!({"addresses": [["10.0.0.0/24"]]}),
            json!({"network": null}),
            json!({"machineNetwork": [{}]}),
            json!({"machineNetwork": ["10.0.0.0/24"]}),
            json!({"onLinkGateway": 1}),
            json!({"gateway": {"ip": "10.0.0.1"}}),
            json!({"mtu": "9000"}),
            json!({"routes": [{"to": "10.9.0.0/16"}]}),
            json!({"routes": ["10.9.0.0/16"]}),
            json!({"preAllocations": ["10.0.0.5"]}),
            json!({"preAllocations": {"db": ["10.0.0.5"]}}),
        ] {
            let mut spec = json!({"network": "infra/vlan10", "addresses": ["10.0.0.0/24"]});
            json_patch::merge(&mut spec, &members);
            assert_eq!((of_object(&spec), of_file(&spec).0), (None, false), "{spec}");
        }
    }

    #[test]
    fn members_that_pool_files_do_not_have_change_no_address() {
        let plain =
            PoolSpec { network: "default".into(), addresses: vec!["10.0.0.0/24".into()], ..PoolSpec::default() };
        let full = PoolSpec {
            sticky: true,
            template: Some(r#"{"links": [{"id": "eno101", "type": "phy"}]}"#.into()),
            node_pool_ref: Some(NodePoolRef { name: "workers".into() }),
            ..plain.clone()
        };
        assert_eq!(full.check(Some("a"), "b").0, plain.check(Some("a"), "b").0);
        assert!(plain.check(Some("a"), "b").0.is_some());
    }

    #[test]
    fn a_global_pool_keeps_addresses_for_names_with_their_namespace() {
        let spec = |name: &str| PoolSpec {
            network: "infra/vlan10".into(),
            addresses: vec!["10.0.0.0/24".into()],
            pre_allocations: [(name.to_owned(), "10.0.0.9".to_owned())].into(),
            ..PoolSpec::default()
        };
        let pool = spec("n/db").check(None, "global").0.unwrap();
        assert_eq!(pool.pre_allocated("n", "db"), ["10.0.0.9".parse::<IpAddr>().unwrap()]);
        let (pool, diagnostics) = spec("db").check(None, "global");
        let error = r#"preAllocations.db: no namespace "db", expected namespace/name"#;
        assert_eq!(verdict(pool.as_ref(), &diagnostics), (false, vec![error.to_owned()]));
        assert!(spec("db").check(Some("n"), "pool").0.is_some());
    }

    #[test]
    fn a_pool_whose_addresses_come_from_elsewhere_has_no_addresses_of_its_own() {
        let check = |members: Value| {
            let mut spec = json!({"network": "infra/vlan10", "machineSelector": {}});
            json_patch::merge(&mut spec, &members);
            let spec: PoolSpec = serde_json::from_value(spec).unwrap();
            let (pool, diagnostics) = spec.check(Some("clusters"), "workers");
            let is_external = pool.as_ref().map(Pool::is_external);
            (is_external, verdict(pool.as_ref(), &diagnostics).1)
        };
        let pool_ref = json!({"apiGroup": "ipam.cluster.x-k8s.io", "kind": "InClusterIPPool", "name": "p"});
        for source in [json!({"poolRef": pool_ref}), json!({"ipamClaim": {}})] {
            assert_eq!(check(json!({"addressesFrom": source})), (Some(true), Vec::new()));
        }
        let refused = |members: Value, lines: &[&str]| {
            assert_eq!(check(members), (None, lines.iter().map(|&line| line.to_owned()).collect()));
        };
        refused(json!({"addressesFrom": {}}), &["addressesFrom: empty object, expected poolRef or ipamClaim"]);
        refused(
            json!({"addressesFrom": {"poolRef": pool_ref, "ipamClaim": {}}}),
            &["addressesFrom.ipamClaim: set together with poolRef, expected one of the two"],
        );
        refused(
            json!({
                "addressesFrom": {"ipamClaim": {}}, "addresses": ["10.0.0.8"], "excludedAddresses": ["10.0.0.9"],
                "allocateReservedIPAddresses": true, "addressReuseGracePeriodSeconds": 1, "sticky": true,
            }),
            &[
                "addressReuseGracePeriodSeconds: set together with addressesFrom, expected none: the other \
                 program decides this",
                "addresses: set together with addressesFrom, expected one of the two",
                "allocateReservedIPAddresses: set together with addressesFrom, expected none: the other \
                 program decides this",
                "excludedAddresses: set together with addressesFrom, expected none: the other program \
                 decides this",
                "sticky: set together with addressesFrom, expected none: the other program decides this",
            ],
        );
        refused(
            json!({"addressesFrom": {"ipamClaim": {}}, "serveIPAMClaims": true}),
            &["serveIPAMClaims: set together with addressesFrom, expected one of the two: a pool serves \
                 IPAMClaims or takes addresses from elsewhere"],
        );
        refused(
            json!({"serveIPAMClaims": true, "addresses": ["10.0.0.0/24"], "network": "default"}),
            &["network: no attachment \"default\", expected the network attachment definition of the IPAMClaims, \
               namespace/name or a name"],
        );
        refused(
            json!({"addressesFrom": {"ipamClaim": {}}, "machineSelector": null}),
            &["addressesFrom: no machines, expected nodePoolRef or machineSelector: the pool serves machines only"],
        );
        refused(
            json!({"addressesFrom": {"ipamClaim": {}}, "network": "default"}),
            &["network: no attachment \"default\", expected the network attachment definition of the IPAMClaims, \
               namespace/name or a name"],
        );
        let pool_ref = |group: &str, kind: &str, name: &str| json!({"addressesFrom": {"poolRef": {"apiGroup": group, "kind": kind, "name": name}}});
        refused(
            pool_ref("ipam.glowplug.dev", "StaticIPPool", "p"),
            &[
                "addressesFrom.poolRef.apiGroup: own pool \"ipam.glowplug.dev\", expected the group of another provider: \
               machines need no claim on a pool of this group",
            ],
        );
        refused(
            pool_ref("a b", "In ClusterIPPool", "P"),
            &[
                "addressesFrom.poolRef.apiGroup: invalid API group \"a b\", expected an API group, such as \
                 ipam.cluster.x-k8s.io",
                "addressesFrom.poolRef.kind: invalid kind \"In ClusterIPPool\", expected a kind, such as InClusterIPPool",
                "addressesFrom.poolRef.name: invalid name \"P\", expected at most 253 lower case letters, digits, '-' and '.', with a letter \
                 or digit at both ends",
            ],
        );
    }

    #[test]
    fn an_address_in_the_template_is_never_allocated() {
        let template = json!({
            "links": [{"id": "eno101", "type": "phy"}, {"id": "eno102", "type": "phy"}],
            "networks": [{"id": "storage", "link": "eno102", "type": "ipv4", "ip_address": "10.0.0.9", "netmask": "255.255.255.0"}],
            "services": [{"type": "dns", "address": "10.0.0.10"}],
        });
        let spec = PoolSpec {
            network: "default".into(),
            addresses: vec!["10.0.0.0/24".into()],
            template: Some(template.to_string()),
            ..PoolSpec::default()
        };
        let pool = spec.check(Some("a"), "b").0.unwrap();
        let offers = ["10.0.0.8", "10.0.0.9", "10.0.0.10", "10.0.0.11"].map(|it| pool.offers(it.parse().unwrap()));
        assert_eq!(offers, [true, false, false, true]);
    }

    #[test]
    fn every_error_of_a_template_has_a_path_below_the_template() {
        let verdict_on = |template: &str| {
            let spec = PoolSpec {
                network: "default".into(),
                addresses: vec!["10.0.0.0/24".into()],
                template: Some(template.to_owned()),
                ..PoolSpec::default()
            };
            let (pool, diagnostics) = spec.check(Some("a"), "b");
            verdict(pool.as_ref(), &diagnostics)
        };
        let refused = |line: &str| (false, vec![line.to_owned()]);
        assert_eq!(verdict_on("[]"), refused(r#"template: invalid document "an array", expected an object"#));
        let missing = r#"template.links: no link for the interface "eno101", expected one link whose id or name it is"#;
        assert_eq!(verdict_on("{}"), refused(missing));
        let unreadable = "template line 1 column 10: not readable as JSON \"EOF while parsing a value\", expected a JSON or YAML document";
        assert_eq!(verdict_on("{\"links\": "), refused(unreadable));
        let netmask = json!({
            "links": [{"id": "eno101", "type": "phy"}],
            "networks": [{"link": "eno101", "type": "ipv4", "netmask": "255.0.255.0"}],
        });
        let invalid =
            r#"template.networks[0].netmask: invalid netmask "255.0.255.0", expected a mask without holes or a length"#;
        assert_eq!(verdict_on(&netmask.to_string()), refused(invalid));
    }

    #[test]
    fn the_reuse_delay_of_the_specification_is_that_of_the_pool() {
        let delay = |seconds| {
            let spec = PoolSpec {
                network: "default".into(),
                addresses: vec!["10.0.0.0/24".into()],
                address_reuse_grace_period_seconds: seconds,
                ..PoolSpec::default()
            };
            spec.check(Some("a"), "b").0.map(|pool| pool.reuse_delay())
        };
        assert_eq!([delay(None), delay(Some(300))], [Some(Duration::ZERO), Some(Duration::from_secs(300))]);
    }

    #[test]
    fn two_pools_of_different_kinds_never_have_the_same_name() {
        let spec = PoolSpec { network: "default".into(), addresses: vec!["10.0.0.0/24".into()], ..PoolSpec::default() };
        let name = |namespace| spec.check(namespace, "workers").0.unwrap().name().to_owned();
        assert_eq!([name(Some("default")), name(None)], ["default/workers", "workers"]);
    }

    #[test]
    fn a_selector_that_cannot_be_read_is_an_error() {
        let term = |operator: &str| json!({"matchExpressions": [{"key": "a", "operator": operator, "values": ["b"]}]});
        let check = |selector: Value| {
            let spec = PoolSpec {
                network: "default".into(),
                addresses: vec!["10.0.0.0/24".into()],
                machine_selector: serde_json::from_value(selector).unwrap(),
                ..PoolSpec::default()
            };
            let (pool, diagnostics) = spec.check(Some("clusters"), "workers");
            verdict(pool.as_ref(), &diagnostics)
        };
        assert_eq!(check(term("In")), (true, Vec::new()));
        let error = "machineSelector: invalid selector \"Invalid expression operator\", expected matchLabels and \
                     matchExpressions with the operators In, NotIn, Exists and DoesNotExist";
        assert_eq!(check(term("Near")), (false, vec![error.to_owned()]));
    }

    #[test]
    fn a_network_that_the_name_of_a_lease_cannot_hold_is_an_error() {
        let check = |network: &str, addresses: &str| {
            let spec = PoolSpec { network: network.into(), addresses: vec![addresses.into()], ..PoolSpec::default() };
            let (pool, diagnostics) = spec.check(Some("clusters"), "workers");
            verdict(pool.as_ref(), &diagnostics)
        };
        let network = |length: usize| format!("infra/{}", ["b"; 120].join(".").split_at(length).0);
        for addresses in ["10.0.0.0/24", "fd00::/64"] {
            assert_eq!(check(&network(207), addresses), (true, Vec::new()));
            let too_long = network(209);
            let shown = format!("{}…", &too_long[..64]);
            let error =
                format!("network: name too long {shown:?}, expected at most 253 bytes with the longest address");
            assert_eq!(check(&too_long, addresses), (false, vec![error]));
        }
        let error = r#"network: invalid network "a.b/c", expected namespace/name or default"#;
        assert_eq!(check("a.b/c", "10.0.0.0/24"), (false, vec![error.to_owned()]));
    }

    fn with_namespace_selector(selector: Value) -> PoolSpec {
        PoolSpec {
            network: "infra/vlan10".into(),
            addresses: vec!["10.0.0.0/24".into()],
            namespace_selector: serde_json::from_value(selector).unwrap(),
            ..PoolSpec::default()
        }
    }

    #[test]
    fn a_selector_for_namespaces_that_cannot_be_read_is_an_error() {
        let selector = json!({"matchExpressions": [{"key": "a", "operator": "Near"}]});
        let (pool, diagnostics) = with_namespace_selector(selector).check(None, "p");
        let (is_valid, lines) = verdict(pool.as_ref(), &diagnostics);
        assert_eq!((is_valid, lines.len()), (false, 1));
        assert!(lines[0].starts_with("namespaceSelector: invalid selector "), "{lines:?}");
    }

    #[test]
    fn a_selector_for_namespaces_with_a_label_of_the_controller_is_an_error() {
        let label = "ipam.glowplug.dev/machines";
        for selector in [
            json!({"matchLabels": {label: "true"}}),
            json!({"matchExpressions": [{"key": label, "operator": "DoesNotExist"}]}),
        ] {
            let (pool, diagnostics) = with_namespace_selector(selector).check(None, "p");
            let error = format!(
                "namespaceSelector: label of the controller {label:?}, expected labels that the controller does not write"
            );
            assert_eq!(verdict(pool.as_ref(), &diagnostics), (false, vec![error]));
        }
    }

    #[test]
    fn a_global_pool_names_its_network_in_full_and_each_namespace_of_its_machines() {
        let spec = PoolSpec {
            network: "vlan10".into(),
            addresses: vec!["10.0.0.0/24".into()],
            node_pool_ref: Some(NodePoolRef { name: "workers".into() }),
            machine_selector: Some(LabelSelector::default()),
            ..PoolSpec::default()
        };
        let (pool, diagnostics) = spec.check(None, "workers");
        assert_eq!(
            verdict(pool.as_ref(), &diagnostics),
            (
                false,
                [
                    "machineSelector: alone in a GlobalStaticIPPool \"{}\", expected namespaceSelector with it: users \
                     choose the labels of their machines",
                    r#"network: no namespace "vlan10", expected namespace/name or default"#,
                    r#"nodePoolRef: not of a GlobalStaticIPPool "{name: workers}", expected nodePoolRefs, each with its namespace"#,
                ]
                .map(str::to_owned)
                .into()
            )
        );
    }
}
