//! The specification of a pool: its addresses, and the machines and claims that may get them.

#![allow(clippy::duplicated_attributes, reason = "columns of a kind have the same type")]
#![allow(unreachable_pub, reason = "KubeSchema repeats each struct in a function")]

use std::collections::BTreeMap;
use std::fmt;
use std::sync::LazyLock;

use glowplug::diagnostic::Diagnostics;
use glowplug::formats::value::MAX_BYTES;
use glowplug::network::InterfaceName;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::JSONSchemaProps;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::{CustomResource, CustomResourceExt, KubeSchema};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::status::PoolStatus;
use crate::kinds::schema::{MAX_ENTRY, MAX_LABEL, MAX_NAME, MAX_PATH, beyond, read, selector, specification};

/// Label with the name of the cluster of an object. Cluster API sets the label.
pub const CLUSTER_LABEL: &str = "cluster.x-k8s.io/cluster-name";

/// The finalizer that keeps a pool until no lease of the pool is held.
pub const POOL_FINALIZER: &str = "ipam.glowplug.dev/protect-pool";

/// Largest number of addresses, exclusions or pre-allocations of a pool. An object of etcd hardly has room for more,
/// and one range can replace any number of addresses.
const MAX_ENTRIES: usize = 65_536;
/// Maximum number of gateways, name servers, search domains, routes or subnets of a pool.
const MAX_SERVERS: usize = 64;
/// Maximum number of NodePools of a pool.
const MAX_NODE_POOLS: usize = 1024;

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
    /// Subnets of the pool, in place of `addresses`, `gateway`, `routes`, `machineNetwork` and `prefix`. An address
    /// comes from the first subnet that has a free address, and the machine gets the settings of this subnet.
    /// Example: `[{addresses: [192.168.1.0/24], gateway: [192.168.1.1]}, {addresses: [192.168.2.0/24], gateway: [192.168.2.1]}]`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = MAX_SERVERS))]
    pub subnets: Option<Vec<PoolSubnet>>,
    /// Another program that chooses the addresses of the machines. The pool adds gateway, name servers and network
    /// data. Not with `addresses`, and not in a GlobalStaticIPPool. Requires `nodePoolRef` or `machineSelector`,
    /// because such a pool serves only machines, and no claims.
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
    /// Prefix length of the addresses in a pool of one family, in place of `machineNetwork`. 32, or 128 for IPv6: each
    /// address is a subnet of its own, and the gateway is on the link. 0: the addresses have no common subnet, and only
    /// IPAddressClaims get them. Example: `24`.
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
    /// Whether the gateway may be outside the subnet of the machines. The machines then reach the gateway on the link.
    /// Example: `true`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub on_link_gateway: bool,
    /// Seconds after the release of an address in which no other machine gets the address. Example: `300`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub address_reuse_grace_period_seconds: Option<u32>,
    /// Whether a claim or machine gets the address that a claim or machine of the same namespace and name released
    /// last. A VirtualMachine without a KubevirtMachine gets this address in every pool. Example: `true`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub sticky: bool,
    /// Whether the pool serves IPAMClaims (`k8s.cni.cncf.io`) on its network. The controller then writes the addresses
    /// of these claims into their `status.ips`, and no other program may serve the claims. The network of a claim is
    /// the `name` in the configuration of the network attachment definition. Not with `addressesFrom`.
    /// Example: `true`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    #[serde(rename = "serveIPAMClaims")]
    pub serve_ipam_claims: bool,
    /// Whether the pool also allocates the addresses that Services of type LoadBalancer and the control planes of
    /// Clusters have. By default, the pool reserves such an address as long as the object exists. Example: `true`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ignore_neighbours: bool,
    /// Order of the pools that select one machine for one network, lowest number first. The machine gets addresses of
    /// the first pool that has free addresses. The later pools are the overflow of the first pool. Each of these pools
    /// needs a different number. Absent: 0. Example: `10`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = -1000, max = 1000))]
    pub priority: Option<i32>,
    /// `network_data.json` from which the document of each machine is made, as JSON or YAML. Absent: the document has
    /// only the interfaces, addresses and settings of the pools of the machine.
    /// Example: `{"links": [{"id": "eno101", "type": "phy", "mtu": 9000}]}`.
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
    /// Selects Namespaces by their labels. The VirtualMachines in these Namespaces get addresses of this
    /// GlobalStaticIPPool without a claim. The pool then serves only the claims in these Namespaces. `machineSelector`
    /// selects among the machines. Not with `nodePoolRefs`.
    /// Example: `{matchLabels: {network.example.com/vlan10: "true"}}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "selector")]
    pub namespace_selector: Option<LabelSelector>,
    /// VirtualMachines of this namespace that get addresses of this pool without a claim. Not with `nodePoolRef`. A
    /// StaticIPPool without `machineSelector` and `nodePoolRef` serves only claims. In a GlobalStaticIPPool, the
    /// selector restricts the machines of `namespaceSelector` to those with matching labels.
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
    /// The IPAMClaim of each machine on the network. The network provider writes the addresses and prefix lengths into
    /// `status.ips` of the claim. Example of a provider: OVN-Kubernetes with persistent addresses. Example: `{}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipam_claim: Option<IpamClaimRef>,
}

/// A pool of another IPAM provider. If its kind is namespaced, the pool must be in the namespace of the VirtualMachines.
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

/// The schema of [`PoolSpec::pre_allocations`].
fn pre_allocations(_: &mut SchemaGenerator) -> Schema {
    let addresses = json_schema!({"type": "string", "maxLength": MAX_ENTRY});
    json_schema!({"type": "object", "maxProperties": MAX_ENTRIES, "additionalProperties": addresses})
}

/// The schema of the specification of a pool. Both kinds of pools have the same members.
static POOL: LazyLock<JSONSchemaProps> = LazyLock::new(|| specification(StaticIPPool::crd()));

// === impl PoolSpec ===

impl PoolSpec {
    /// Reads the specification of a pool of either kind. Both kinds have the same members.
    ///
    /// # Errors
    ///
    /// The specification does not fit the schema. The error has one line for each problem.
    pub fn read(specification: &Value) -> Result<Self, String> {
        read(&POOL, specification)
    }

    /// Reports the values in the specification that the schema of this version does not allow. An API server stored
    /// them under an earlier schema. The pool works, but must possibly be corrected before it can be changed or
    /// restored.
    #[must_use]
    pub fn beyond_schema(&self) -> Diagnostics {
        beyond(&POOL, self)
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
