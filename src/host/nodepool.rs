//! A NodePool's `bootstrapNetworkConfig`, and its translation: the fields of the KubevirtMachineTemplate, and the
//! template of the document that every machine gets.
//!
//! The API is that of openshift/enhancements pull request 1855, in both its revisions. The older revision writes a
//! single address without a prefix length, the newer revision with the full length. This module reads both forms and
//! writes the newer form, which both revisions accept.
//!
//! # Errors that the validation of the API accepts
//!
//! The CEL rule of the enhancement cannot check the meaning of addresses. The table compares the rule, as tested on an
//! API server, with this module:
//!
//! | entry | CEL accepts | accepted here | reason |
//! |---|---|---|---|
//! | `10.0.0.5` | older revision only | yes | the other spelling of one address |
//! | `10.0.0.9-10.0.0.5` | yes | no | reversed |
//! | `10.0.0.5-fd00::9` | yes | no | two families |
//! | `10.0.0.5/24` | yes | no | host bits: one address or a network? |
//! | `0.0.0.0/0`, `224.0.0.0/4` | yes | no | no machine may have such an address |
//! | `[]` | yes | no | the pool could never allocate; an absent list means that nothing is allocated |
//! | zones, IPv4-mapped addresses, blanks, leading zeros, ranges of three, `/33`, an empty string | no | no | |
//!
//! CEL checks each entry separately. [`Pool::new`] checks that gateways, name servers and exclusions fit the addresses.
//! An API server accepts the CEL rule only with `maxItems`; this module needs no such limit.

use std::collections::BTreeSet;

use serde::Serialize;
use serde_json::{Value as Json, json};

use super::address::{AddressError, Entry};
use super::pool::{Pool, PoolSpec, SettingsSpec, StaticRoute, Subnet};
use crate::diagnostic::{Diagnostic, Diagnostics, FieldPath, Severity};
use crate::formats::value::{Object, Value, Whole};
use crate::host::members::Members;
use crate::network::{Family, InterfaceName};

/// The network settings of a NodePool, as fields of the KubevirtMachineTemplate.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MachineTemplate {
    /// `acpiIndex` of the machine's first NIC, which gives the NIC the name of the interface. `None` when no index
    /// gives this name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub acpi_index: Option<u16>,
    /// Value of `spec.template.spec.bootstrapNetworkConfig`.
    pub bootstrap_network_config: BootstrapNetworkConfig,
}

/// `bootstrapNetworkConfig` of a KubevirtMachine.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BootstrapNetworkConfig {
    /// Interface on which machines configure the addresses.
    pub interface: String,
    /// Name of the network, as the NodePool spells it.
    pub network_name: String,
    /// Entries with the addresses of the pool, in canonical form.
    pub subnets: Vec<String>,
    /// Entries with the excluded addresses, in canonical form.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub excluded_addresses: Vec<String>,
    /// Template document of [`template_document`], as JSON.
    pub network_data: String,
}

/// Annotation of a NodePool with the subnets of its machines, as CIDRs with commas between them, at most one CIDR of
/// each family. The annotation takes precedence over the `machineNetwork` of the HostedCluster, because the NodePools
/// of one HostedCluster may be on several subnets.
pub const MACHINE_NETWORK_ANNOTATION: &str = "ipam.glowplug.dev/machine-network";

// === Reading ===

/// Reads the pool of a NodePool. `None`: the NodePool allocates nothing, or an error in its name, its network or its
/// `bootstrapNetworkConfig` was reported.
pub(crate) fn read(object: &Object, path: FieldPath<'_>, diagnostics: &mut Diagnostics) -> Option<PoolSpec> {
    let (metadata, spec) = (path.field("metadata"), path.field("spec"));
    let (platform, config) = (spec.field("platform"), "bootstrapNetworkConfig");
    let kubevirt = platform.field("kubevirt");
    let path = kubevirt.field(config);
    let spec_object = object.object("spec")?;
    let kubevirt_object = spec_object.object("platform")?.object("kubevirt")?;
    let config = match kubevirt_object.get(config) {
        None | Some(Value::Null) => return None,
        Some(Value::Object(config)) => config,
        Some(other) => {
            diagnostics.push(Diagnostic::error(path, "invalid value", Whole(other), "an object"));
            return None;
        }
    };
    let mut members = Members::new(config, path);
    let mut pool = PoolSpec::read(&mut members, diagnostics);
    if let Some(cidrs) = annotated_network(object, metadata, diagnostics) {
        pool.machine_network = cidrs;
    }
    for (name, list) in [("gateway", &pool.settings.gateway), ("nameservers", &pool.settings.nameservers)] {
        if members.has(name) && !(1..=2).contains(&list.len()) {
            let expected = "one or two, or no list";
            diagnostics.push(Diagnostic::error(path.field(name), "invalid number of addresses", list.len(), expected));
        }
    }
    members.finish(Severity::Warning, diagnostics);
    if pool.addresses.is_none() {
        let expected = "addresses: else no machine of this NodePool gets an address";
        diagnostics.push(Diagnostic::without_value(Severity::Warning, path.field("addresses"), "missing", expected));
        return None;
    }
    let text = |object: Option<&Object>, name| match object?.get(name)? {
        Value::String(text) => Some(text.clone()),
        _ => None,
    };
    let created = text(object.object("metadata"), "creationTimestamp").and_then(|text| text.parse().ok());
    let name = text(object.object("metadata"), "name").unwrap_or_default();
    if name.is_empty() {
        diagnostics.push(Diagnostic::without_value(Severity::Error, metadata.field("name"), "missing", "a name"));
        return None;
    }
    let namespace = text(object.object("metadata"), "namespace").unwrap_or_else(|| "default".to_owned());
    let cluster_name = text(Some(spec_object), "clusterName");
    let machines = Machines {
        networks: names_of_networks(kubevirt_object, kubevirt, diagnostics),
        has_default: kubevirt_object.get("attachDefaultNetwork") != Some(&Value::Bool(false)),
        namespace: match &cluster_name {
            Some(cluster) => machines_namespace(&namespace, cluster),
            None => namespace.clone(),
        },
    };
    let attachment = match machines.attachment(&pool.network) {
        Ok(attachment) => attachment,
        Err(problem) => {
            let (path, expected) = (path.field("network"), format!("one of {}", machines.networks.join(", ")));
            diagnostics.push(match pool.network.as_str() {
                "" => Diagnostic::without_value(Severity::Error, path, "missing", &expected),
                network => Diagnostic::error(path, problem, network, &expected),
            });
            return None;
        }
    };
    if attachment == Pool::DEFAULT_NETWORK && !machines.networks.is_empty() {
        let (problem, expected) = ("the first NIC is on the network of pods", "false, or the name of another network");
        let path = kubevirt.field("attachDefaultNetwork");
        diagnostics.push(Diagnostic::without_value(Severity::Warning, path, problem, expected));
    }
    let network = if pool.network.is_empty() { attachment.clone() } else { pool.network.clone() };
    let (namespace, attachment, created) = (Some(namespace), Some(attachment), created);
    Some(PoolSpec { name, namespace, cluster_name, network, attachment, created, ..pool })
}

/// The namespace with the machines of a hosted cluster: HyperShift's namespace of the hosted control plane. `namespace`
/// is the namespace of the HostedCluster and its NodePools.
///
/// ```
/// use glowplug::host::nodepool::machines_namespace;
///
/// assert_eq!(machines_namespace("clusters", "blue.prod"), "clusters-blue-prod");
/// ```
#[must_use]
pub fn machines_namespace(namespace: &str, cluster: &str) -> String {
    format!("{namespace}-{}", cluster.replace('.', "-"))
}

/// The subnets in [`MACHINE_NETWORK_ANNOTATION`]. `None` without the annotation. An invalid CIDR is reported with the
/// path of the annotation.
fn annotated_network(object: &Object, metadata: FieldPath<'_>, diagnostics: &mut Diagnostics) -> Option<Vec<String>> {
    let value = object.object("metadata")?.object("annotations")?.get(MACHINE_NETWORK_ANNOTATION)?;
    let path = metadata.field("annotations");
    let path = path.field(MACHINE_NETWORK_ANNOTATION);
    let text = value.to_string();
    let mut cidrs = Vec::new();
    for cidr in text.split(',').map(str::trim) {
        match cidr.parse::<Entry>() {
            Ok(_) => cidrs.push(cidr.to_owned()),
            Err(error) => diagnostics.push(error.at(path.to_string())),
        }
    }
    Some(cidrs)
}

/// Reads the `machineNetwork` of a HostedCluster, with the namespace and name of the HostedCluster.
pub(crate) fn read_machine_network(
    object: &Object,
    path: FieldPath<'_>,
    diagnostics: &mut Diagnostics,
) -> Option<((String, String), Vec<String>)> {
    let text = |name| match object.object("metadata")?.get(name)? {
        Value::String(text) => Some(text.clone()),
        _ => None,
    };
    let name = (text("namespace").unwrap_or_else(|| "default".to_owned()), text("name")?);
    let (spec, networking) = (path.field("spec"), object.object("spec")?.object("networking")?);
    let networks = Members::new(networking, spec.field("networking")).machine_network(diagnostics);
    Some((name, networks))
}

/// The networks to which the machines of a NodePool are attached.
struct Machines {
    /// Networks as `namespace/name`, or as a name in the namespace of the machines, in the order of the NICs.
    networks: Vec<String>,
    /// Whether the first NIC is on the network of pods.
    has_default: bool,
    namespace: String,
}

fn names_of_networks(kubevirt: &Object, path: FieldPath<'_>, diagnostics: &mut Diagnostics) -> Vec<String> {
    let mut names = Vec::new();
    let list = path.field("additionalNetworks");
    for (at, network) in Members::new(kubevirt, path).list("additionalNetworks", diagnostics).iter().enumerate() {
        match network {
            Value::Object(network) => names.extend(Members::new(network, list.index(at)).text("name", diagnostics)),
            other => diagnostics.push(Diagnostic::error(
                list.index(at),
                "invalid item",
                Whole(other),
                "an object with a name",
            )),
        }
    }
    names
}

impl Machines {
    /// Returns the network attachment definition for the `network` of a pool.
    ///
    /// - An additional network with this name, with or without its namespace, is the result.
    /// - Without additional networks, the given name is the result.
    /// - With several additional networks and without the network of pods, any other name is an error: it does not tell
    ///   which of these networks the pool is for, so pools that share a network could not be recognized.
    /// - Otherwise the result is the network of the first NIC: the first NIC has the addresses, and the enhancement
    ///   allows any name for its network.
    fn attachment(&self, network: &str) -> Result<String, &'static str> {
        let whole = |name: &String| {
            if name.contains('/') { name.clone() } else { format!("{}/{name}", self.namespace) }
        };
        let is_named = |name: &&String| name.split_once('/').is_some_and(|(_, name)| name == network);
        let exact = self.networks.iter().find(|name| **name == network);
        let mut named: BTreeSet<String> = match exact {
            Some(name) => BTreeSet::from([whole(name)]),
            None => self.networks.iter().filter(is_named).map(whole).collect(),
        };
        match (named.pop_first(), self.networks.as_slice()) {
            (Some(name), _) if named.is_empty() => Ok(name),
            (Some(_), _) => Err("several additionalNetworks are called"),
            (None, []) if !network.is_empty() && network != Pool::DEFAULT_NETWORK => Ok(whole(&network.to_owned())),
            (None, []) => Ok(Pool::DEFAULT_NETWORK.to_owned()),
            (None, _) if self.has_default => Ok(Pool::DEFAULT_NETWORK.to_owned()),
            (None, [only]) => Ok(whole(only)),
            (None, _) => Err("none of several additionalNetworks is called"),
        }
    }
}

// === Writing ===

impl MachineTemplate {
    /// Makes the fields that HyperShift writes into the KubevirtMachineTemplate of a NodePool. `pool` is the result of
    /// [`Pool::new`] for `spec`.
    ///
    /// # Errors
    ///
    /// An entry is invalid. This error is impossible when the pool was made from this `spec`.
    pub fn new(spec: &PoolSpec, pool: &Pool) -> Result<Self, AddressError> {
        let canonical = |texts: &[String]| -> Result<Vec<String>, AddressError> {
            texts.iter().map(|text| Ok(text.parse::<Entry>()?.to_string())).collect()
        };
        Ok(Self {
            acpi_index: acpi_index(&pool.interface),
            bootstrap_network_config: BootstrapNetworkConfig {
                interface: pool.interface.to_string(),
                network_name: spec.network.clone(),
                subnets: canonical(spec.addresses.as_deref().unwrap_or_default())?,
                excluded_addresses: canonical(&spec.excluded_addresses)?,
                network_data: template_document(pool).to_string(),
            },
        })
    }
}

/// The `network_data.json` of a pool's machines without their addresses. It has the interface, a network of each family
/// with its netmask, and the settings of the pool. Each machine adds `ip_address` to each of the networks.
///
/// The link has a `name`, because afterburn and cloud-init do not take the name of the interface from its `id`.
/// The netmask is present because no other field of a KubevirtMachineTemplate has the prefix length.
#[must_use]
pub fn template_document(pool: &Pool) -> Json {
    let interface = pool.interface.as_str();
    let SettingsSpec { search_domains, mtu, .. } = pool.settings().written();
    let networks = pool.spaces().enumerate().map(|(at, space)| {
        let (family, id) = (space.family(), format!("network{at}"));
        let (kind, anywhere) = match family {
            Family::Ipv4 => ("ipv4", "0.0.0.0"),
            Family::Ipv6 => ("ipv6", "::"),
        };
        let gateways = pool.settings().gateways.iter().filter(|gateway| Family::of(**gateway) == family);
        let defaults = gateways.map(|gateway| json!({"network": anywhere, "netmask": anywhere, "gateway": gateway}));
        let others = pool.settings().routes.iter().filter(|route| Family::of(route.via) == family);
        let others = others
            .map(|StaticRoute { to, via }| json!({"network": to.network(), "netmask": to.mask(), "gateway": via}));
        let mut network = json!({
            "id": id,
            "network_id": id,
            "type": kind,
            "link": interface,
            "netmask": netmask(family, space.subnets().first().map_or(family.bits(), Subnet::prefix)),
            "routes": defaults.chain(others).collect::<Vec<Json>>(),
        });
        if at == 0 && !search_domains.is_empty() {
            network["dns_search"] = json!(search_domains);
        }
        network
    });
    let services = pool.settings().nameservers.iter().map(|server| json!({"type": "dns", "address": server}));
    let mut link = json!({"id": interface, "name": interface, "type": "phy"});
    if let Some(mtu) = mtu {
        link["mtu"] = mtu.into();
    }
    json!({
        "links": [link],
        "networks": networks.collect::<Vec<Json>>(),
        "services": services.collect::<Vec<Json>>(),
    })
}

/// A prefix length as a netmask, the form that OpenStack uses for both families.
fn netmask(family: Family, prefix: u8) -> String {
    family.address(u128::MAX ^ family.hosts(prefix)).to_string()
}

// === The name of a NIC ===

/// The largest index that QEMU accepts for a device. Every version of systemd names NICs up to this index.
const MAX_ACPI_INDEX: u16 = 16_383;

/// The name that systemd gives to a NIC with this `acpiIndex`. `None` for an index outside 1 to 16,383, which no device
/// has.
///
/// ```
/// use glowplug::host::nodepool::{acpi_index, interface_of};
///
/// let interface = interface_of(101).unwrap();
/// assert_eq!(interface.as_str(), "eno101");
/// assert_eq!(acpi_index(&interface), Some(101));
/// ```
#[must_use]
pub fn interface_of(acpi_index: u16) -> Option<InterfaceName> {
    (1..=MAX_ACPI_INDEX).contains(&acpi_index).then(|| format!("eno{acpi_index}").parse().ok())?
}

/// The `acpiIndex` for which systemd gives a NIC this name. `None` for a name that no index gives.
#[must_use]
pub fn acpi_index(interface: &InterfaceName) -> Option<u16> {
    let index = interface.as_str().strip_prefix("eno")?.parse().ok()?;
    interface_of(index).filter(|name| name == interface).map(|_| index)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::formats::{Meaning, read_network};
    use crate::host::pool::{Space, TemplateFacts};
    use crate::host::pools_file::read_pools;
    use crate::render::dracut;

    /// The example NodePool of the enhancement, with the subnet of the machines added.
    const NODE_POOL: &str = "
        apiVersion: hypershift.openshift.io/v1beta1
        kind: NodePool
        metadata:
          name: workers
          namespace: clusters
        spec:
          clusterName: blue
          replicas: 3
          platform:
            type: KubeVirt
            kubevirt:
              attachDefaultNetwork: false
              additionalNetworks:
              - name: my-nad-1
              bootstrapNetworkConfig:
                network: my-nad-1-network
                addresses:
                - 192.168.1.10-192.168.1.50
                - 2620:0:860:2::10-2620:0:860:2::50
                nameservers:
                - 8.8.8.8
                gateway:
                - 192.168.1.1
                - 2620:0:860:2::1
                machineNetwork:
                - cidr: 192.168.1.0/24
                - cidr: 2620:0:860:2::/64
    ";

    fn read_one(document: &str) -> (Option<(PoolSpec, Pool)>, Vec<String>) {
        let (specs, mut diagnostics) = read_pools(document.as_bytes());
        let spec = specs.into_iter().next();
        let pool = spec.and_then(|spec| Some((Pool::new(&spec, &TemplateFacts::default(), &mut diagnostics)?, spec)));
        (pool.map(|(pool, spec)| (spec, pool)), diagnostics.kept().iter().map(ToString::to_string).collect())
    }

    /// A NodePool with these members of `bootstrapNetworkConfig` and of `kubevirt`.
    fn node_pool(config: &str, kubevirt: &str) -> (Option<(PoolSpec, Pool)>, Vec<String>) {
        read_one(&format!(
            "{{kind: NodePool, metadata: {{name: workers, namespace: clusters}}, spec: {{clusterName: blue, \
             platform: {{kubevirt: {{bootstrapNetworkConfig: {{{config}}}, {kubevirt}}}}}}}}}"
        ))
    }

    #[test]
    fn the_node_pool_of_the_enhancement_becomes_its_machine_template() {
        let (Some((spec, pool)), diagnostics) = read_one(NODE_POOL) else { panic!("{:?}", read_one(NODE_POOL)) };
        assert_eq!(diagnostics, Vec::<String>::new());
        assert_eq!((pool.title().as_str(), pool.network.as_str()), ("blue/clusters/workers", "clusters-blue/my-nad-1"));
        let template = MachineTemplate::new(&spec, &pool).unwrap();
        let mut json = serde_json::to_value(&template).unwrap();
        let data = json["bootstrapNetworkConfig"]["networkData"].take();
        assert_eq!(
            json,
            json!({
                "acpiIndex": 101,
                "bootstrapNetworkConfig": {
                    "interface": "eno101",
                    "networkName": "my-nad-1-network",
                    "subnets": ["192.168.1.10-192.168.1.50", "2620:0:860:2::10-2620:0:860:2::50"],
                    "networkData": null,
                },
            })
        );
        let data: Json = serde_json::from_str(data.as_str().unwrap()).unwrap();
        assert_eq!(
            data,
            json!({
                "links": [{"id": "eno101", "name": "eno101", "type": "phy"}],
                "networks": [
                    {
                        "id": "network0",
                        "network_id": "network0",
                        "type": "ipv4",
                        "link": "eno101",
                        "netmask": "255.255.255.0",
                        "routes": [{"network": "0.0.0.0", "netmask": "0.0.0.0", "gateway": "192.168.1.1"}],
                    },
                    {
                        "id": "network1",
                        "network_id": "network1",
                        "type": "ipv6",
                        "link": "eno101",
                        "netmask": "ffff:ffff:ffff:ffff::",
                        "routes": [{"network": "::", "netmask": "::", "gateway": "2620:0:860:2::1"}],
                    },
                ],
                "services": [{"type": "dns", "address": "8.8.8.8"}],
            })
        );
    }

    #[test]
    fn the_guest_reads_the_expanded_template_correctly() {
        let (Some((_, pool)), _) = read_one(NODE_POOL) else { panic!() };
        let mut document = template_document(&pool);
        document["networks"][0]["ip_address"] = "192.168.1.10".into();
        document["networks"][1]["ip_address"] = "2620:0:860:2::10".into();
        let mut reading = read_network(document.to_string().as_bytes());
        let Meaning::Network(network) = reading.meaning else { panic!("{reading:?}") };
        let rendered = dracut::render(&network, &mut reading.diagnostics);
        assert_eq!(
            rendered.line,
            "ip=192.168.1.10::192.168.1.1:24::eno101:none ip=[2620:0:860:2::10]::[2620:0:860:2::1]:64::eno101:none \
             nameserver=8.8.8.8"
        );
        assert_eq!(reading.diagnostics.kept(), []);
    }

    #[test]
    fn the_template_has_every_setting_of_its_pool() {
        let pool = "{name: a, network: 'n', addresses: [10.0.0.0/24, 'fd00::/64'], gateway: [10.0.0.1], nameservers: [10.0.0.2], \
                    searchDomains: [example.com], mtu: 9000, routes: [{to: 10.9.0.0/16, via: 10.0.0.3}, {to: 'fd09::/48', via: 'fe80::9'}]}";
        let route = |network: &str, netmask: &str, gateway: &str| json!({"network": network, "netmask": netmask, "gateway": gateway});
        assert_eq!(
            template_document(&Pool::parse(pool.as_bytes()).unwrap()[0]),
            json!({
                "links": [{"id": "eno101", "name": "eno101", "type": "phy", "mtu": 9000}],
                "networks": [
                    {
                        "id": "network0", "network_id": "network0", "type": "ipv4", "link": "eno101", "netmask": "255.255.255.0",
                        "routes": [route("0.0.0.0", "0.0.0.0", "10.0.0.1"), route("10.9.0.0", "255.255.0.0", "10.0.0.3")],
                        "dns_search": ["example.com"],
                    },
                    {
                        "id": "network1", "network_id": "network1", "type": "ipv6", "link": "eno101",
                        "netmask": "ffff:ffff:ffff:ffff::", "routes": [route("fd09::", "ffff:ffff:ffff::", "fe80::9")],
                    },
                ],
                "services": [{"type": "dns", "address": "10.0.0.2"}],
            })
        );
    }

    #[test]
    fn an_annotation_sets_the_subnet_of_a_node_pool() {
        let node_pools = |annotation: &str| {
            let document = format!(
                "[{{kind: NodePool, metadata: {{name: a, annotations: {{ipam.glowplug.dev/machine-network: '{annotation}'}},
                creationTimestamp: '1970-01-01T00:00:01Z'}}, spec: {{clusterName: blue, platform: {{kubevirt: {{
                bootstrapNetworkConfig: {{network: 'n', addresses: [10.1.0.10-10.1.0.20, 'fd00::8']}}}}}}}}}},
                {{kind: HostedCluster, metadata: {{name: blue}}, spec: {{networking: {{machineNetwork: [{{cidr: 10.0.0.0/24}}]}}}}}}]"
            );
            let (specs, mut diagnostics) = read_pools(document.as_bytes());
            assert_eq!(specs[0].created, Some("1970-01-01T00:00:01Z".parse().unwrap()));
            let pool = Pool::new(&specs[0], &TemplateFacts::default(), &mut diagnostics);
            let prefixes: Vec<u8> =
                pool.iter().flat_map(Pool::spaces).flat_map(Space::subnets).map(Subnet::prefix).collect();
            (prefixes, diagnostics.kept().iter().map(ToString::to_string).collect::<Vec<_>>())
        };
        assert_eq!(node_pools("10.1.0.0/16, fd00::/64"), (vec![16, 64], vec![]));
        let path = "document[0].metadata.annotations.\"ipam.glowplug.dev/machine-network\"";
        assert_eq!(
            node_pools("10.1.0.0/16, fd00::1/64"),
            (
                vec![],
                vec![
                    format!(
                        "{path}: host bits are set \"fd00::1/64\", expected no bits after the prefix length: \
                         did you mean fd00::/64 or fd00::1/128"
                    ),
                    "document[0].spec.platform.kubevirt.bootstrapNetworkConfig.addresses[1]: unknown subnet of \
                     \"fd00::8/128\", expected the item {cidr: fd00::/64} in machineNetwork: the subnet of the machines"
                        .to_owned()
                ]
            )
        );
    }

    #[test]
    fn the_node_pool_of_the_enhancement_needs_the_subnet_of_its_machines() {
        let document: Vec<&str> = NODE_POOL.split("                machineNetwork:").collect();
        let (pool, diagnostics) = read_one(document[0]);
        assert_eq!(pool, None);
        let path = "spec.platform.kubevirt.bootstrapNetworkConfig";
        assert_eq!(
            diagnostics,
            [
                format!(
                    "{path}.addresses[0]: unknown subnet of \"192.168.1.10-192.168.1.50\", expected the item \
                     {{cidr: 192.168.1.0/24}} in machineNetwork: the subnet of the machines"
                ),
                format!(
                    "{path}.addresses[1]: unknown subnet of \"2620:0:860:2::10-2620:0:860:2::50\", expected the \
                     item {{cidr: 2620:0:860:2::/64}} in machineNetwork: the subnet of the machines"
                ),
            ]
        );
    }

    #[test]
    fn a_single_address_is_read_in_both_spellings_and_written_in_the_newer_one() {
        let (Some((spec, pool)), diagnostics) = node_pool(
            "network: 'n', addresses: [192.168.1.100, 192.168.1.101/32], excludedAddresses: [192.168.1.101], \
             machineNetwork: [{cidr: 192.168.1.0/24}]",
            "",
        ) else {
            panic!()
        };
        assert_eq!(diagnostics, Vec::<String>::new());
        let config = MachineTemplate::new(&spec, &pool).unwrap().bootstrap_network_config;
        assert_eq!(config.subnets, ["192.168.1.100/32", "192.168.1.101/32"]);
        assert_eq!(config.excluded_addresses, ["192.168.1.101/32"]);
    }

    /// Entries, and whether three validations accept them: the CEL rule of the older revision, the CEL rule of the
    /// newer revision, and this module.
    const DIFFERENCES: [(&str, bool, bool, bool); 17] = [
        ("10.0.0.0/24", true, true, true),
        ("10.0.0.10-10.0.0.50", true, true, true),
        ("10.0.0.5/32", true, true, true),
        ("fd00::5/128", true, true, true),
        ("10.0.0.5", true, false, true),
        ("10.0.0.9-10.0.0.5", true, true, false),
        ("10.0.0.5-fd00::9", true, true, false),
        ("10.0.0.5/24", true, true, false),
        ("0.0.0.0/0", true, true, false),
        ("224.0.0.0/4", true, true, false),
        ("fd00::1%eth0", false, false, false),
        ("::ffff:10.0.0.1", false, false, false),
        (" 10.0.0.5", false, false, false),
        ("10.0.0.05", false, false, false),
        ("10.0.0.1-10.0.0.2-10.0.0.3", false, false, false),
        ("10.0.0.0/33", false, false, false),
        ("", false, false, false),
    ];

    #[test]
    fn entries_are_accepted_or_rejected_as_in_the_table_of_differences() {
        let ours: Vec<(&str, bool)> =
            DIFFERENCES.iter().map(|(entry, ..)| (*entry, entry.parse::<Entry>().is_ok())).collect();
        let table: Vec<(&str, bool)> = DIFFERENCES.iter().map(|(entry, _, _, ours)| (*entry, *ours)).collect();
        assert_eq!(ours, table);
    }

    #[test]
    fn the_rules_of_the_enhancement_for_lists_are_enforced() {
        let path = "spec.platform.kubevirt.bootstrapNetworkConfig";
        let refusal = |members: &str| node_pool(&format!("network: 'n', {members}"), "").1;
        assert_eq!(refusal("addresses: []"), [format!("{path}.addresses: empty list, expected at least one address")]);
        assert_eq!(
            refusal("addresses: [10.0.0.0/24], gateway: [], nameservers: [10.0.0.1, 10.0.0.2, 10.0.0.3]"),
            [
                format!("{path}.gateway: invalid number of addresses \"0\", expected one or two, or no list"),
                format!("{path}.nameservers: invalid number of addresses \"3\", expected one or two, or no list"),
            ]
        );
        assert_eq!(
            refusal("gateway: [10.0.0.1]"),
            [
                "document: no pool in it, expected a pool, a list of pools, NodePools with a bootstrapNetworkConfig, StaticIPPools or GlobalStaticIPPools"
                    .to_owned(),
                format!(
                    "{path}.addresses: missing, expected addresses: else no machine of this NodePool gets an address"
                ),
            ]
        );
        assert_eq!(
            refusal("addresses: [10.0.0.0/24], exludedAddresses: []"),
            [format!(
                "{path}.exludedAddresses: unknown key, expected one of network, interface, addresses, \
                 excludedAddresses, preAllocations, gateway, nameservers, machineNetwork, allocateReservedIPAddresses, onLinkGateway, \
                 addressReuseGracePeriodSeconds"
            )]
        );
    }

    #[test]
    fn the_network_of_a_pool_is_an_attachment_of_its_machines() {
        let network = |name: &str, kubevirt: &str| {
            let (pool, diagnostics) = node_pool(&format!("{name} addresses: [10.0.0.0/24]"), kubevirt);
            (pool.map(|(spec, pool)| (spec.network, pool.network)), diagnostics)
        };
        let is = |name: &str, network: &str| (Some((name.to_owned(), network.to_owned())), Vec::new());
        let two = "additionalNetworks: [{name: infra/a}, {name: b}]";
        let alone = format!("attachDefaultNetwork: false, {two}");
        assert_eq!(network("network: a,", &alone), is("a", "infra/a"));
        assert_eq!(network("network: infra/a,", &alone), is("infra/a", "infra/a"));
        assert_eq!(network("network: b,", two), is("b", "clusters-blue/b"));
        let one = "attachDefaultNetwork: false, additionalNetworks: [{name: infra/a}]";
        assert_eq!(network("network: my-network,", one), is("my-network", "infra/a"));
        assert_eq!(network("", one), is("infra/a", "infra/a"));
        assert_eq!(network("network: 'n',", ""), is("n", "clusters-blue/n"));
        assert_eq!(network("network: infra/n,", ""), is("infra/n", "infra/n"));
        assert_eq!(network("network: default,", ""), is("default", "default"));
        assert_eq!(
            network("network: my-network,", two),
            (
                Some(("my-network".to_owned(), "default".to_owned())),
                vec![
                    "spec.platform.kubevirt.attachDefaultNetwork: the first NIC is on the network of pods, \
                     expected false, or the name of another network"
                        .to_owned()
                ]
            )
        );
    }

    #[test]
    fn with_several_networks_a_pool_must_name_its_network() {
        let refusal = |name: &str, networks: &str| {
            let kubevirt = format!("attachDefaultNetwork: false, additionalNetworks: [{networks}]");
            let (pool, diagnostics) = node_pool(&format!("{name} addresses: [10.0.0.0/24]"), &kubevirt);
            assert_eq!(pool, None);
            diagnostics
        };
        let path = "spec.platform.kubevirt.bootstrapNetworkConfig.network";
        let two = "{name: infra/a}, {name: b}";
        assert_eq!(
            refusal("network: my-network,", two),
            [format!(
                r#"{path}: none of several additionalNetworks is called "my-network", expected one of infra/a, b"#
            )]
        );
        assert_eq!(refusal("", two), [format!("{path}: missing, expected one of infra/a, b")]);
        assert_eq!(
            refusal("network: a,", "{name: infra/a}, {name: other/a}"),
            [format!(r#"{path}: several additionalNetworks are called "a", expected one of infra/a, other/a"#)]
        );
    }

    #[test]
    fn a_nic_is_named_after_its_acpi_index() {
        let index = |name: &str| acpi_index(&name.parse().unwrap());
        assert_eq!(
            ["eno1", "eno101", "eno16383", "eno16384", "eno0", "eno01", "eno", "ens101", "eno101np0"].map(index),
            [Some(1), Some(101), Some(16_383), None, None, None, None, None, None]
        );
        let name = |index: u16| interface_of(index).map(|name| name.to_string());
        assert_eq!([0, 101, 16_384].map(name), [None, Some("eno101".to_owned()), None]);
    }
}
