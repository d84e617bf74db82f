//! The specification of a pool as users write it, and how it is read from a document. The module
//! [`check`](super::check) checks the specification.

use std::fmt;
use std::net::IpAddr;

use jiff::Timestamp;

use super::Pool;
use super::settings::SettingsSpec;
use crate::diagnostic::{Diagnostics, FieldPath, Severity};
use crate::host::address::parse_address;
use crate::host::members::Members;

/// A pool as users write it, not checked yet. [`Pool::new`] checks the specification.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
#[doc(hidden)]
pub struct PoolSpec {
    /// Path in the document, such as `pools[0]`; empty for the document itself. For messages only.
    pub path: String,
    /// Name of the NodePool, or of the object of the pool.
    pub name: String,
    /// Namespace of the NodePool or of the object of the pool. `None` means `default`.
    pub namespace: Option<String>,
    /// Name of the hosted cluster of the NodePool. Key in a document: `clusterName`.
    pub cluster_name: Option<String>,
    /// Network: `namespace/name` of its network attachment definition, or a name in the pool's own namespace. `default`
    /// without a namespace is the network of pods.
    pub network: String,
    /// The network behind the name, if a NodePool specifies the attachments of its machines. It has the form of
    /// [`Pool::network`] and takes precedence over [`Self::network`].
    pub attachment: Option<String>,
    /// Interface on which machines configure the addresses. `None` means [`Pool::DEFAULT_INTERFACE`].
    pub interface: Option<String>,
    /// Addresses of the pool, each string an [`Entry`]. `None` when the document has no such list.
    pub addresses: Option<Vec<String>>,
    /// Addresses that are not allocated, each string an [`Entry`]. Only `preAllocations` can name such an address for a
    /// machine.
    pub excluded_addresses: Vec<String>,
    /// Names of machines or claims, or `namespace/name`, each with its addresses: one address, or one of each family
    /// with a comma between them. Key in a document: `preAllocations`, the name in metal3's address manager.
    pub pre_allocations: Vec<(String, String)>,
    /// Settings of the machines' documents.
    pub settings: SettingsSpec,
    /// Subnets of the machines, at most one of each family, as in a HostedCluster. Form in a document: a list of
    /// `cidr: …`.
    pub machine_network: Vec<String>,
    /// The subnets of the pool, in the order in which their addresses are allocated: their addresses, exclusions,
    /// settings and prefix lengths. Empty: the pool itself is its only subnet.
    pub subnets: Vec<PoolSpec>,
    /// Whether the document has an empty list of subnets.
    pub has_no_subnet: bool,
    /// Prefix length of the addresses, in a pool of one family. 0: the addresses have no common subnet. `None`: the
    /// prefix length comes from `machineNetwork`, the template, or the CIDRs among the addresses.
    pub prefix: Option<i64>,
    /// Whether the ends of subnets are allocated, too. Key in a document: `allocateReservedIPAddresses`.
    pub allocate_reserved_ip_addresses: bool,
    /// Whether a gateway may be outside the subnet of the machines. Machines then reach the gateway on the link,
    /// without a route.
    pub on_link_gateway: bool,
    /// Seconds after a release in which no other machine gets the address. Key in a document:
    /// `addressReuseGracePeriodSeconds`, the name in the in-cluster provider of Cluster API.
    pub address_reuse_grace_period_seconds: u32,
    /// Whether another program chooses the addresses, see [`Pool::is_external`]: a StaticIPPool with `addressesFrom`.
    pub is_external: bool,
    /// Whether the pool serves only IPAddressClaims of Cluster API.
    pub serves_claims_only: bool,
    /// Whether the pool belongs to no namespace: a GlobalStaticIPPool.
    pub is_global: bool,
    /// Whether the object of the pool says which machines get addresses without a claim. A GlobalStaticIPPool that
    /// selects no machines serves the claims of every namespace and no machine.
    pub selects_machines: bool,
    /// Template of a pool object for its machines. `None`: the pool has no template.
    pub template: Option<String>,
    /// Creation time of the NodePool, or of the object of the pool. `None` when unknown. If two pools overlap, the
    /// younger pool allocates no address.
    pub created: Option<Timestamp>,
    /// Whether the object of the pool is being deleted. Such a pool allocates no address.
    pub is_deleted: bool,
    /// Whether the document has an error in this pool. Such a pool is not usable.
    pub has_errors: bool,
}

// === impl PoolSpec ===

impl PoolSpec {
    /// Reads the members that pools and NodePools have.
    pub(crate) fn read(members: &mut Members<'_>, diagnostics: &mut Diagnostics) -> Self {
        Self {
            path: match members.path {
                FieldPath::Document => String::new(),
                path => path.to_string(),
            },
            network: members.text("network", diagnostics).unwrap_or_default(),
            interface: members.text("interface", diagnostics),
            addresses: members.has("addresses").then(|| members.texts("addresses", diagnostics)),
            excluded_addresses: members.texts("excludedAddresses", diagnostics),
            pre_allocations: members.text_map("preAllocations", diagnostics),
            settings: SettingsSpec::read(members, diagnostics),
            machine_network: members.machine_network(diagnostics),
            allocate_reserved_ip_addresses: members.switch("allocateReservedIPAddresses", diagnostics),
            on_link_gateway: members.switch("onLinkGateway", diagnostics),
            address_reuse_grace_period_seconds: members.seconds("addressReuseGracePeriodSeconds", diagnostics),
            ..Self::default()
        }
    }

    /// Reads the members of a pool that NodePools do not have.
    pub(crate) fn read_further(self, members: &mut Members<'_>, diagnostics: &mut Diagnostics) -> Self {
        let settings = self.settings.read_further(members, diagnostics);
        let prefix = members.number("prefix", "a prefix length", diagnostics);
        let mut subnets = Vec::new();
        let path = members.path;
        for (at, element) in members.objects("subnets", diagnostics) {
            let list = path.field("subnets");
            let mut members = Members::new(element, list.index(at));
            subnets.push(Self::read_subnet(&mut members, at, diagnostics));
            members.finish(Severity::Error, diagnostics);
        }
        let has_no_subnet = members.has("subnets") && subnets.is_empty();
        Self { settings, prefix, subnets, has_no_subnet, ..self }
    }

    /// Reads a subnet of a pool. The path of the subnet is relative to the pool.
    fn read_subnet(members: &mut Members<'_>, at: usize, diagnostics: &mut Diagnostics) -> Self {
        Self {
            path: format!("subnets[{at}]"),
            addresses: members.has("addresses").then(|| members.texts("addresses", diagnostics)),
            excluded_addresses: members.texts("excludedAddresses", diagnostics),
            settings: SettingsSpec::read(members, diagnostics).read_further(members, diagnostics),
            machine_network: members.machine_network(diagnostics),
            prefix: members.number("prefix", "a prefix length", diagnostics),
            ..Self::default()
        }
    }

    /// Returns a subnet of this pool, with the members of the pool that apply to each subnet.
    pub(super) fn subnet(&self, subnet: &Self) -> Self {
        Self {
            path: self.at(&subnet.path),
            pre_allocations: self.pre_allocations.clone(),
            allocate_reserved_ip_addresses: self.allocate_reserved_ip_addresses,
            on_link_gateway: self.on_link_gateway,
            serves_claims_only: self.serves_claims_only,
            ..subnet.clone()
        }
    }

    /// Name of the pool with its namespace. A global pool has a name without a namespace, which no other pool can have.
    #[must_use]
    pub fn full_name(&self) -> String {
        if self.is_global { self.name.clone() } else { format!("{}/{}", self.namespace(), self.name) }
    }

    fn namespace(&self) -> &str {
        self.namespace.as_deref().unwrap_or("default")
    }

    /// Network with its namespace. Pools with the same result share the network.
    pub(super) fn full_network(&self) -> String {
        if let Some(attachment) = &self.attachment {
            attachment.clone()
        } else if self.network == Pool::DEFAULT_NETWORK || self.network.contains('/') {
            self.network.clone()
        } else {
            format!("{}/{}", self.namespace(), self.network)
        }
    }

    /// The valid addresses of `preAllocations`.
    pub(super) fn kept_addresses(&self) -> impl Iterator<Item = IpAddr> {
        let texts = self.pre_allocations.iter().flat_map(|(_, text)| text.split(','));
        texts.filter_map(|text| parse_address(text.trim()).ok())
    }

    /// The path of a member of the pool.
    pub(crate) fn at(&self, member: impl fmt::Display) -> String {
        if self.path.is_empty() { member.to_string() } else { format!("{}.{member}", self.path) }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_network_without_a_namespace_belongs_to_the_namespace_of_the_pool() {
        let network = |members: &str| {
            let document = format!("{{name: a, addresses: [10.0.0.0/24], {members}}}");
            super::super::tests::pool(&document).network
        };
        assert_eq!(network("network: vlan10"), "default/vlan10");
        assert_eq!(network("network: vlan10, namespace: clusters"), "clusters/vlan10");
        assert_eq!(network("network: infra/vlan10, namespace: clusters"), "infra/vlan10");
        assert_eq!(network("network: default, namespace: clusters"), "default");
    }
}
