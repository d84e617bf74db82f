//! Reads pools from documents.

use std::collections::{BTreeMap, BTreeSet};

use super::members::Members;
use super::nodepool;
use super::pool::{Pool, PoolSpec};
use super::pool_object::{self, PoolKind};
use crate::diagnostic::{Diagnostic, Diagnostics, FieldPath, Severity};
use crate::formats::value::{self, Object, Value};

/// Reads the pools of a file, as JSON or YAML. YAML may have several documents.
///
/// A document is one pool, a list of pools, or an object with a list of `pools`. A pool may also be a NodePool with a
/// `bootstrapNetworkConfig`, or a StaticIPPool or GlobalStaticIPPool of the controller, alone or in a list such as
/// `kubectl get -o yaml` prints. A HostedCluster of the file sets the `machineNetwork` of each pool of its cluster that
/// has no `machineNetwork`.
///
/// In a pool, a StaticIPPool or a GlobalStaticIPPool, an unknown key is an error, because the setting of a misspelt key
/// would be lost. A repeated key is an error, too. A NodePool normally has other keys, so only unknown keys within
/// `bootstrapNetworkConfig` are reported, as warnings. A warning names each object of another kind.
///
/// The pools are not checked yet; pass them to [`Pool::new`]. An error in one pool does not affect the other pools.
#[must_use]
#[doc(hidden)]
pub fn read_pools(file: &[u8]) -> (Vec<PoolSpec>, Diagnostics) {
    let mut reader = PoolReader::default();
    let path = FieldPath::Document;
    match value::parse_documents(file) {
        Ok(documents) => match documents.as_slice() {
            [document] => reader.document(document, path),
            documents => {
                let path = path.field("documents");
                for (at, document) in documents.iter().enumerate() {
                    reader.document(document, path.index(at));
                }
            }
        },
        Err(diagnostic) => reader.diagnostics.push(diagnostic),
    }
    reader.complete();
    (reader.specs, reader.diagnostics)
}

impl Pool {
    /// Reads and checks the pools of a file, as JSON or YAML. YAML may have several documents.
    ///
    /// A document is one pool, a list of pools, or an object with a list of `pools`. A pool may also be a NodePool with
    /// a `bootstrapNetworkConfig`, or a pool of the controller, alone or in a list such as `kubectl get -o yaml`
    /// prints.
    ///
    /// ```
    /// use glowplug::host::pool::Pool;
    /// use glowplug::network::Family;
    ///
    /// let pools = Pool::parse(b"{name: workers, network: vlan10, addresses: [10.0.0.0/24], gateway: [10.0.0.1]}")?;
    /// assert_eq!(pools[0].count(Family::Ipv4).ok_or("no IPv4")?.allocatable, 253);
    ///
    /// let error = Pool::parse(b"{name: workers, network: vlan10, addresses: [10.0.0.5/24]}").unwrap_err();
    /// assert_eq!(
    ///     error.to_string(),
    ///     "addresses[0]: host bits are set \"10.0.0.5/24\", expected no bits after the prefix length: \
    ///      did you mean 10.0.0.0/24 or 10.0.0.5/32"
    /// );
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The document, or a pool of it, has an error. The diagnostics have every error and every warning. A document with
    /// warnings only is accepted, and its warnings are not returned.
    pub fn parse(document: &[u8]) -> Result<Vec<Self>, Diagnostics> {
        let (specs, mut diagnostics) = read_pools(document);
        let pools = specs.iter().filter_map(|spec| {
            let template = pool_object::template_facts(spec, &mut diagnostics);
            Self::new(spec, &template, &mut diagnostics)
        });
        let pools = pools.collect();
        if diagnostics.has_errors() { Err(diagnostics) } else { Ok(pools) }
    }
}

#[derive(Default)]
struct PoolReader {
    specs: Vec<PoolSpec>,
    /// Networks of hosted clusters, by namespace and name of the HostedCluster.
    machine_networks: BTreeMap<(String, String), MachineNetwork>,
    diagnostics: Diagnostics,
}

/// The networks of a hosted cluster.
struct MachineNetwork {
    cidrs: Vec<String>,
    has_errors: bool,
}

/// Description of a valid document, for messages.
const EXPECTED: &str =
    "a pool, a list of pools, NodePools with a bootstrapNetworkConfig, StaticIPPools or GlobalStaticIPPools";

// === impl PoolReader ===

impl PoolReader {
    fn document(&mut self, document: &Value, path: FieldPath<'_>) {
        match document {
            Value::Array(elements) => {
                for (at, element) in elements.iter().enumerate() {
                    self.item(element, path.index(at));
                }
            }
            Value::Object(object) if object.get("pools").is_some() => {
                let mut members = Members::new(object, path);
                self.list("pools", &mut members);
                members.finish(Severity::Error, &mut self.diagnostics);
            }
            Value::Object(object) if object.get("kind").is_some() && object.get("items").is_some() => {
                self.list("items", &mut Members::new(object, path));
            }
            Value::Null => {}
            other => self.item(other, path),
        }
    }

    fn list(&mut self, name: &'static str, members: &mut Members<'_>) {
        let path = members.path;
        let list = path.field(name);
        for (at, element) in members.list(name, &mut self.diagnostics).iter().enumerate() {
            self.item(element, list.index(at));
        }
    }

    fn item(&mut self, item: &Value, path: FieldPath<'_>) {
        let Value::Object(object) = item else {
            self.diagnostics.push(Diagnostic::error(path, "invalid pool", item, "an object"));
            return;
        };
        let errors = self.diagnostics.errors();
        match object.get("kind") {
            None | Some(Value::Null) => {
                let spec = self.pool(object, path);
                self.specs.push(PoolSpec { has_errors: self.diagnostics.errors() > errors, ..spec });
            }
            Some(Value::String(kind)) if kind == "NodePool" => {
                let spec = nodepool::read(object, path, &mut self.diagnostics);
                let has_errors = self.diagnostics.errors() > errors;
                self.specs.extend(spec.map(|spec| PoolSpec { has_errors, ..spec }));
            }
            Some(Value::String(kind)) if kind == "HostedCluster" => {
                let network = nodepool::read_machine_network(object, path, &mut self.diagnostics);
                let has_errors = self.diagnostics.errors() > errors;
                self.machine_networks.extend(network.map(|(name, cidrs)| (name, MachineNetwork { cidrs, has_errors })));
            }
            Some(Value::String(kind)) if kind == "StaticIPPool" || kind == "GlobalStaticIPPool" => {
                let kind = if kind == "StaticIPPool" { PoolKind::StaticIpPool } else { PoolKind::GlobalStaticIpPool };
                let spec = pool_object::read(object, kind, path, &mut self.diagnostics);
                let has_errors = self.diagnostics.errors() > errors;
                self.specs.push(PoolSpec { has_errors, ..spec });
            }
            Some(Value::String(kind)) if kind == "MACPool" => {
                let because = "only the controller allocates MAC addresses";
                self.diagnostics.push(Diagnostic::ignored(path.field("kind"), kind, because));
            }
            Some(kind) => {
                let expected = "NodePool, HostedCluster, StaticIPPool or GlobalStaticIPPool";
                self.diagnostics.push(Diagnostic::warning(path.field("kind"), "no pool", kind, expected));
            }
        }
    }

    fn pool(&mut self, object: &Object, path: FieldPath<'_>) -> PoolSpec {
        let diagnostics = &mut self.diagnostics;
        let mut members = Members::new(object, path);
        let name = members.text("name", diagnostics).unwrap_or_default();
        let namespace = members.text("namespace", diagnostics);
        let cluster_name = members.text("clusterName", diagnostics);
        let spec = PoolSpec::read(&mut members, diagnostics).read_further(&mut members, diagnostics);
        members.finish(Severity::Error, diagnostics);
        PoolSpec { name, namespace, cluster_name, ..spec }
    }

    /// Adds the machine networks of hosted clusters to the pools, and reports errors that concern several pools.
    fn complete(&mut self) {
        if self.specs.is_empty() && !self.diagnostics.has_errors() {
            self.diagnostics.push(Diagnostic::without_value(Severity::Error, "document", "no pool in it", EXPECTED));
        }
        let mut names = BTreeSet::new();
        for spec in &mut self.specs {
            let cluster = (spec.namespace.clone().unwrap_or_default(), spec.cluster_name.clone().unwrap_or_default());
            if let Some(network) = self.machine_networks.get(&cluster).filter(|_| spec.machine_network.is_empty()) {
                spec.machine_network.clone_from(&network.cidrs);
                // Without the network of an invalid HostedCluster, the pool could get another prefix length.
                spec.has_errors |= network.has_errors;
            }
            let name = spec.full_name();
            if !spec.name.is_empty() && !names.insert(name.clone()) {
                let path = spec.at("name");
                self.diagnostics.push(Diagnostic::error(path, "second pool of that name", name, "another name"));
                spec.has_errors = true;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::pool::{RouteSpec, SettingsSpec, TemplateFacts};
    use crate::network::Family;
    use proptest::prelude::*;

    fn names(document: &str) -> (Vec<String>, Vec<String>) {
        let (specs, diagnostics) = read_pools(document.as_bytes());
        let names = specs.iter().map(|spec| format!("{} {}", spec.path, spec.full_name())).collect();
        (names, diagnostics.kept().iter().map(ToString::to_string).collect())
    }

    fn refusal(document: &str) -> Vec<String> {
        names(document).1
    }

    #[test]
    fn a_document_is_a_pool_a_list_or_an_object_with_a_list() {
        let pool = "{name: a, network: 'n', addresses: [10.0.0.0/24]}";
        let alone = |path: &str| (vec![format!("{path} default/a")], Vec::new());
        assert_eq!(names(pool), alone(""));
        assert_eq!(names(&format!("[{pool}]")), alone("document[0]"));
        assert_eq!(names(&format!("pools:\n- {pool}\n")), alone("pools[0]"));
        assert_eq!(
            names(r#"{"pools": [{"name": "a", "network": "n", "addresses": ["10.0.0.5"]}]}"#),
            alone("pools[0]")
        );
    }

    #[test]
    fn a_network_that_yaml_reads_as_a_boolean_is_one_error() {
        let document = b"{name: a, network: n, addresses: [10.0.0.0/24]}";
        let error = Pool::parse(document).unwrap_err().to_string();
        let expected = "a string, written with quotes in YAML, where n, no and off mean false";
        assert_eq!(error, format!("network: invalid value \"false\", expected {expected}"));
    }

    #[test]
    fn every_key_of_a_pool_is_read() {
        let document = "
            pools:
            - name: workers
              namespace: clusters
              clusterName: blue
              network: infra/vlan10
              interface: eno102
              addresses: [10.0.0.0/24, 'fd00::10-fd00::20']
              excludedAddresses: [10.0.0.7]
              preAllocations:
                db: 10.0.0.7, fd00::17
              gateway: [10.0.0.1]
              nameservers: [8.8.8.8]
              searchDomains: [example.com]
              mtu: 9000
              routes: [{to: 10.9.0.0/16, via: 10.0.0.254}]
              prefix: 64
              machineNetwork:
              - cidr: fd00::/64
              allocateReservedIPAddresses: true
              onLinkGateway: yes
              addressReuseGracePeriodSeconds: 300
        ";
        let (specs, diagnostics) = read_pools(document.as_bytes());
        assert_eq!(diagnostics.kept(), []);
        let texts = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<String>>();
        assert_eq!(
            specs,
            [PoolSpec {
                path: "pools[0]".to_owned(),
                name: "workers".to_owned(),
                namespace: Some("clusters".to_owned()),
                cluster_name: Some("blue".to_owned()),
                network: "infra/vlan10".to_owned(),
                attachment: None,
                interface: Some("eno102".to_owned()),
                addresses: Some(texts(&["10.0.0.0/24", "fd00::10-fd00::20"])),
                excluded_addresses: texts(&["10.0.0.7"]),
                pre_allocations: vec![("db".to_owned(), "10.0.0.7, fd00::17".to_owned())],
                settings: SettingsSpec {
                    gateway: texts(&["10.0.0.1"]),
                    nameservers: texts(&["8.8.8.8"]),
                    search_domains: texts(&["example.com"]),
                    mtu: Some(9000),
                    routes: vec![RouteSpec { to: "10.9.0.0/16".to_owned(), via: "10.0.0.254".to_owned() }],
                },
                machine_network: texts(&["fd00::/64"]),
                allocate_reserved_ip_addresses: true,
                on_link_gateway: true,
                address_reuse_grace_period_seconds: 300,
                subnets: Vec::new(),
                has_no_subnet: false,
                prefix: Some(64),
                is_external: false,
                serves_claims_only: false,
                is_global: false,
                selects_machines: false,
                template: None,
                is_deleted: false,
                created: None,
                has_errors: false,
            }]
        );
    }

    #[test]
    fn a_misspelt_key_is_reported() {
        assert_eq!(
            refusal(
                "{pools: [{name: a, network: 'n', addresses: [10.0.0.0/24], exludedAddresses: [10.0.0.1]}], pool: []}"
            ),
            [
                "pool: unknown key, expected pools",
                "pools[0].exludedAddresses: unknown key, expected one of name, namespace, clusterName, network, \
                 interface, addresses, excludedAddresses, preAllocations, gateway, nameservers, machineNetwork, \
                 allocateReservedIPAddresses, onLinkGateway, addressReuseGracePeriodSeconds, searchDomains, mtu, routes, prefix, \
                 subnets",
            ]
        );
    }

    #[test]
    fn the_error_about_a_misspelt_key_lists_every_allowed_key() {
        let subnet = "addresses, excludedAddresses, gateway, nameservers, searchDomains, mtu, routes, machineNetwork, \
                      prefix";
        assert_eq!(
            refusal("{name: a, network: 'n', subnets: [{adresses: [10.0.0.0/24]}]}"),
            [format!("subnets[0].adresses: unknown key, expected one of {subnet}")]
        );
        let spec = "network, interface, addresses, excludedAddresses, preAllocations, gateway, nameservers, \
                    machineNetwork, allocateReservedIPAddresses, onLinkGateway, addressReuseGracePeriodSeconds, \
                    searchDomains, mtu, routes, prefix, subnets, sticky, serveIPAMClaims, ignoreNeighbours, priority, \
                    template, nodePoolRefs, nodePoolRef, namespaceSelector, machineSelector, addressesFrom";
        assert_eq!(
            refusal("{kind: StaticIPPool, metadata: {name: a}, spec: {network: 'n', adresses: [10.0.0.0/24]}}"),
            [format!("spec.adresses: unknown key, expected one of {spec}")]
        );
    }

    #[test]
    fn an_unknown_member_of_a_pool_of_the_controller_is_an_error() {
        let pool = |rest: &str| {
            let spec = format!("network: 'n', addresses: [10.0.0.0/24]{rest}");
            format!("{{apiVersion: v1, kind: StaticIPPool, metadata: {{name: a}}, spec: {{{spec}}}, status: {{}}}}")
        };
        let allowed = ", sticky: true, serveIPAMClaims: true, ignoreNeighbours: true, priority: 1, template: '', nodePoolRef: {name: w}";
        assert_eq!(refusal(&pool(allowed)), Vec::<String>::new());
        let expected = "expected one of network, interface, addresses, excludedAddresses, preAllocations, gateway, \
                        nameservers, machineNetwork, allocateReservedIPAddresses, onLinkGateway, \
                        addressReuseGracePeriodSeconds, searchDomains, mtu, routes, prefix, subnets, sticky, \
                        serveIPAMClaims, ignoreNeighbours, priority, template, nodePoolRefs, nodePoolRef, namespaceSelector, \
                        machineSelector, addressesFrom";
        assert_eq!(
            refusal(&pool(", exclude: [10.0.0.1], subnet: 24")),
            [format!("spec.exclude: unknown key, {expected}"), format!("spec.subnet: unknown key, {expected}")]
        );
        let range = |value: &str| format!("spec.priority: {value}, expected a number from -1000 to 1000");
        assert_eq!(refusal(&pool(", priority: -1001")), [range("out of range \"-1001\"")]);
        assert_eq!(refusal(&pool(", priority: low")), [range("invalid value \"low\"")]);
        assert_eq!(
            refusal("{kind: StaticIPPool, metadata: {name: a}, addresses: [10.0.0.0/24], spec: {network: 'n'}}"),
            ["addresses: unknown key, expected one of apiVersion, kind, metadata, spec, status"]
        );
    }

    #[test]
    fn the_name_and_the_namespace_of_a_pool_are_strings() {
        let pool =
            "{kind: StaticIPPool, metadata: {name: 7, namespace: n}, spec: {network: 'n', addresses: [10.0.0.0/24]}}";
        let expected = [
            "metadata.name: invalid value \"7\", expected a string, written with quotes in YAML",
            "metadata.namespace: invalid value \"false\", expected a string, written with quotes in YAML, where n, no and off mean \
             false",
        ];
        assert_eq!(refusal(pool)[..2], expected);
    }

    #[test]
    fn a_pool_of_the_controller_that_is_being_deleted_is_marked_as_deleted() {
        let deleted = |metadata: &str| {
            let spec = "spec: {network: 'n', addresses: [10.0.0.0/24]}";
            let text = format!("{{kind: StaticIPPool, metadata: {{name: a{metadata}}}, {spec}}}");
            let (specs, diagnostics) = read_pools(text.as_bytes());
            assert_eq!(diagnostics.kept(), []);
            specs[0].is_deleted
        };
        assert_eq!([deleted(""), deleted(", deletionTimestamp: null")], [false; 2]);
        assert!(deleted(", deletionTimestamp: '2026-08-01T10:00:00Z'"));
    }

    #[test]
    fn a_repeated_key_is_refused_in_json_as_in_yaml() {
        let refused = |path: &str| [format!(r#"{path}: repeated key "name", expected each key of a mapping once"#)];
        let json = r#"{"name": "a", "network": "n", "addresses": ["10.0.0.5/32"], "name": "a"}"#;
        assert_eq!(refusal(json), refused("line 1 column 66"));
        assert_eq!(refusal("name: a\nnetwork: n\nname: a\n"), refused("line 3 column 1"));
    }

    #[test]
    fn a_diagnostic_of_a_pool_has_the_path_of_the_pool() {
        let document =
            "pools:\n- {name: a, network: 'n', addresses: [10.0.0.0/24]}\n- {name: b, network: 'n', addresses: [x.y]}";
        let (specs, mut diagnostics) = read_pools(document.as_bytes());
        let pools: Vec<bool> =
            specs.iter().map(|spec| Pool::new(spec, &TemplateFacts::default(), &mut diagnostics).is_some()).collect();
        assert_eq!(pools, [true, false]);
        assert_eq!(
            diagnostics.kept().iter().map(ToString::to_string).collect::<Vec<String>>(),
            [r#"pools[1].addresses[0]: invalid address "x.y", expected an IPv4 or IPv6 address"#]
        );
    }

    #[test]
    fn an_error_of_one_pool_does_not_affect_the_other_pools() {
        let document = "
            - {name: a, network: 'n', adresses: [], addresses: [10.0.0.0/24]}
            - {name: b, network: 'n', addresses: [10.0.1.0/24]}
            - {name: b, network: 'n', addresses: [10.0.2.0/24]}
            - {name: c, network: 'n', addresses: [10.0.3.1/24]}
            - {kind: NodePool, metadata: {name: d}, spec: {clusterName: blue, platform: {kubevirt: {
               bootstrapNetworkConfig: {network: 'n', addresses: [10.0.4.0/24]}}}}}
            - {kind: HostedCluster, metadata: {name: blue}, spec: {networking: {machineNetwork: [{cdir: 10.0.4.0/23}]}}}
            - {name: e, network: 'n', addresses: [10.0.5.0/24]}
        ";
        let (specs, mut diagnostics) = read_pools(document.as_bytes());
        let pools = specs.iter().filter_map(|spec| Pool::new(spec, &TemplateFacts::default(), &mut diagnostics));
        assert_eq!(pools.map(|pool| pool.title()).collect::<Vec<_>>(), ["default/b", "default/e"]);
        assert_eq!(diagnostics.errors(), 5);
    }

    #[test]
    fn a_document_without_pools_is_refused() {
        let none = [
            "document: no pool in it, expected a pool, a list of pools, NodePools with a bootstrapNetworkConfig, StaticIPPools or GlobalStaticIPPools",
        ];
        assert_eq!(refusal(""), none);
        assert_eq!(refusal("[]"), none);
        assert_eq!(refusal("pools: []"), none);
        assert_eq!(refusal("{kind: NodePool, metadata: {name: a}, spec: {platform: {type: AWS}}}"), none);
        assert_eq!(refusal("text"), [r#"document: invalid pool "text", expected an object"#]);
        assert_eq!(refusal("[text]"), [r#"document[0]: invalid pool "text", expected an object"#]);
        assert_eq!(refusal("pools: {name: a}"), [r#"pools: invalid list "{name: a}", expected an array"#]);
        assert_eq!(
            refusal("[1"),
            [r#"line 1 column 2: not readable as JSON "EOF while parsing a list", expected a JSON or YAML document"#]
        );
    }

    #[test]
    fn a_file_has_the_pools_of_all_its_documents() {
        let file = "
---
# Written by hand.
{name: a, network: 'n', addresses: [10.0.0.0/24]}
---
# Nothing.
---
kind: List
items:
- {kind: StaticIPPool, metadata: {name: b, namespace: m}, spec: {network: 'n', addresses: [10.0.1.0/24]}}
- {kind: GlobalStaticIPPool, metadata: {name: b}, spec: {network: infra/n, addresses: [10.0.2.0/24]}}
---
- {name: c, network: 'n'}
---
pools: [{name: d, network: 'n'}]
";
        let paths = [
            "documents[0] default/a",
            "documents[2].items[0].spec m/b",
            "documents[2].items[1].spec b",
            "documents[3][0] default/c",
            "documents[4].pools[0] default/d",
        ];
        assert_eq!(names(file), (paths.map(str::to_owned).into(), Vec::new()));
    }

    #[test]
    fn the_path_of_an_error_names_its_document() {
        assert_eq!(
            refusal("name: a\nexclude: []\n---\nname: b\n---\nname: b\nspec: 1\n")
                .iter()
                .map(|line| line.split(", expected").next().unwrap_or_default())
                .collect::<Vec<_>>(),
            [
                "documents[0].exclude: unknown key",
                r#"documents[2].name: second pool of that name "default/b""#,
                "documents[2].spec: unknown key",
            ]
        );
    }

    #[test]
    fn a_mac_pool_is_reported_and_ignored() {
        let pool = "{kind: StaticIPPool, metadata: {name: a}, spec: {network: 'n', addresses: [10.0.0.0/24]}}";
        let macs = "{kind: MACPool, metadata: {name: m}, spec: {ranges: ['02:00:00:00:00:00-02:00:00:00:00:ff']}}";
        assert_eq!(
            refusal(&format!("{pool}\n---\n{macs}\n")),
            [r#"documents[1].kind: "MACPool" ignored, only the controller allocates MAC addresses"#]
        );
    }

    #[test]
    fn two_pools_with_the_same_name_are_refused() {
        let document = "[{name: a, network: 'n'}, {name: a, network: m}, {name: a, namespace: other, network: 'n'}]";
        assert_eq!(
            refusal(document),
            [r#"document[1].name: second pool of that name "default/a", expected another name"#]
        );
    }

    #[test]
    fn a_list_of_kubernetes_can_contain_other_objects() {
        let document = "
            apiVersion: v1
            kind: List
            items:
            - {kind: ConfigMap, metadata: {name: a}}
            - kind: NodePool
              metadata: {name: workers, namespace: clusters}
              spec:
                clusterName: blue
                platform: {kubevirt: {bootstrapNetworkConfig: {network: 'n', addresses: [10.0.0.10-10.0.0.20]}}}
            - kind: HostedCluster
              metadata: {name: blue, namespace: clusters}
              spec: {networking: {machineNetwork: [{cidr: 10.0.0.0/24}], clusterNetwork: [{cidr: 10.132.0.0/14}]}}
        ";
        let (specs, mut diagnostics) = read_pools(document.as_bytes());
        let pool = Pool::new(&specs[0], &TemplateFacts::default(), &mut diagnostics).unwrap();
        assert_eq!((pool.title().as_str(), pool.network.as_str()), ("blue/clusters/workers", "clusters-blue/n"));
        assert_eq!(
            diagnostics.kept().iter().map(ToString::to_string).collect::<Vec<String>>(),
            [
                r#"items[0].kind: no pool "ConfigMap", expected NodePool, HostedCluster, StaticIPPool or GlobalStaticIPPool"#
            ]
        );
    }

    #[test]
    fn a_pool_object_of_the_controller_is_read_as_a_pool() {
        let document = "
            kind: List
            items:
            - kind: StaticIPPool
              metadata: {name: a, namespace: clusters, creationTimestamp: '2026-08-14T10:00:00Z'}
              spec:
                network: 'n'
                addresses: [10.0.0.0/24]
                gateway: [10.0.0.1]
                interface: eno102
                sticky: true
                nodePoolRef: {name: workers}
              status: {waiting: 1}
            - kind: StaticIPPool
              metadata: {name: b, namespace: clusters}
              spec: {network: 'n', addresses: [x]}
        ";
        let (specs, mut diagnostics) = read_pools(document.as_bytes());
        let mut pools: Vec<_> =
            specs.iter().map(|spec| Pool::new(spec, &TemplateFacts::default(), &mut diagnostics)).collect();
        let pool = pools.remove(0).unwrap();
        assert_eq!(
            (pool.name.as_str(), pool.network.as_str(), pool.interface.as_str(), specs[0].created),
            ("clusters/a", "clusters/n", "eno102", "2026-08-14T10:00:00Z".parse().ok())
        );
        let lines: Vec<String> = diagnostics.kept().iter().map(ToString::to_string).collect();
        let expected = r#"items[1].spec.addresses[0]: invalid address "x", expected an address, a CIDR or a range, such as 10.0.0.5, 10.0.0.0/24 or 10.0.0.5-10.0.0.9"#;
        assert_eq!((pools, lines), (vec![None], vec![expected.to_owned()]));
    }

    /// Generates valid and invalid values of members.
    fn value() -> impl Strategy<Value = String> {
        let text = prop::sample::select(vec![
            "10.0.0.0/24",
            "10.0.0.0/31",
            "10.0.0.16/28",
            "10.0.0.5",
            "10.0.0.1-10.0.3.9",
            "fd00::/64",
            "fd00::1",
            "fd00::/8",
            "fd00::5-fd01::",
            "::/0",
            "255.255.255.255",
            "eno101",
            "default",
            "a/b",
            "-",
            "",
            "true",
            "7",
        ]);
        let text = text.prop_map(|text| format!("{text:?}"));
        let list = prop::collection::vec(text.clone(), 0..4).prop_map(|list| format!("[{}]", list.join(", ")));
        let cidrs = text.clone().prop_map(|text| format!("[{{cidr: {text}}}]"));
        let other = prop::sample::select(vec!["null", "true", "7", "{}", "[[]]", "[{}]", "[{cidr: {}}, {}]"]);
        prop_oneof![4 => list, 2 => cidrs, 1 => text, 1 => other.prop_map(str::to_owned)]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2048))]

        #[test]
        fn every_specification_gives_a_pool_or_an_error(
            members in prop::collection::vec(
                (prop::sample::select(vec![
                    "addresses", "addresses", "excludedAddresses", "gateway", "nameservers", "machineNetwork", "interface",
                    "allocateReservedIPAddresses", "onLinkGateway",
                ]), value()),
                0..6,
            ),
            prefixes in prop::collection::btree_map(prop::sample::select(vec![Family::Ipv4, Family::Ipv6]), 0_u8..=129, 0..2),
        ) {
            let template = TemplateFacts { prefixes, ..TemplateFacts::default() };
            let members: Vec<String> = members.iter().map(|(name, value)| format!("{name}: {value}")).collect();
            let document = format!("{{name: a, network: 'n', {}}}", members.join(", "));
            let (specs, mut diagnostics) = read_pools(document.as_bytes());
            let pool = specs.first().and_then(|spec| Pool::new(spec, &template, &mut diagnostics));
            prop_assert_eq!(pool.is_none(), diagnostics.has_errors());
            for space in pool.iter().flat_map(Pool::spaces) {
                let count = pool.as_ref().and_then(|pool| pool.count(space.family())).unwrap();
                prop_assert_eq!(count.total, count.allocatable + count.reserved.values().sum::<u128>());
            }
        }

        #[test]
        fn every_document_gives_pools_or_an_error(document in any::<Vec<u8>>()) {
            let (specs, diagnostics) = read_pools(&document);
            prop_assert!(diagnostics.has_errors() || !specs.is_empty());
        }
    }
}
