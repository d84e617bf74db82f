//! Checks the specification of a pool: everything that `glowplugctl` checks in a file, the selectors, and the names of
//! leases.

use std::collections::BTreeMap;
use std::net::IpAddr;

use glowplug::diagnostic::{Diagnostic, Diagnostics};
use glowplug::host::lease_name::{NameError, lease_name};
use glowplug::host::pool::{Pool, PoolSpec as FilePool};
use glowplug::host::pool_object::template_facts;
use glowplug::host::pools_file::read_pools;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::core::{ParseExpressionError, Selector};
use serde_json::json;

use super::spec::PoolSpec;
use crate::cluster::key::PoolId;

/// Prefix of the labels that the controller writes on Namespaces.
pub(crate) const OWN_LABELS: &str = "ipam.glowplug.dev/";

// === impl PoolSpec ===

impl PoolSpec {
    /// Checks a specification as `glowplugctl` checks the object in a file. Returns the pool, and every diagnostic.
    ///
    /// `namespace` is `None` for a [`GlobalStaticIPPool`](super::GlobalStaticIPPool). The name of the pool is
    /// `namespace/name`, or `name` alone, so that pools of different kinds never have the same name. Paths in
    /// diagnostics start in the specification. Example: `addresses[0]`.
    ///
    /// `None` when there is an error.
    #[must_use]
    pub fn check(&self, namespace: Option<&str>, name: &str) -> (Option<Pool>, Diagnostics) {
        let kind = if namespace.is_some() { "StaticIPPool" } else { "GlobalStaticIPPool" };
        let spec = serde_json::to_value(self).unwrap_or_default();
        let mut object = json!({"kind": kind, "metadata": {"name": name, "namespace": namespace}, "spec": spec});
        // The schema allows a pool without `addresses`, which means an empty list.
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
        // The path of the file is set to empty, so the paths of later diagnostics also start in the specification.
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

/// Returns the first label in a selector that begins with [`OWN_LABELS`].
fn own_label(selector: Option<&LabelSelector>) -> Option<&str> {
    let selector = selector?;
    let labels = selector.match_labels.iter().flat_map(BTreeMap::keys);
    let mut keys = labels.chain(selector.match_expressions.iter().flatten().map(|expression| &expression.key));
    keys.find(|key| key.starts_with(OWN_LABELS)).map(String::as_str)
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
    use serde_json::Value;

    use super::super::spec::NodePoolRef;
    use super::*;

    /// Whether the specification is accepted, and its diagnostics.
    type Verdict = (bool, Vec<String>);

    fn verdict(pool: Option<&Pool>, diagnostics: &Diagnostics) -> Verdict {
        (pool.is_some(), diagnostics.kept().iter().map(ToString::to_string).collect())
    }

    /// Returns the result of the controller for an object. `None`: the schema of its kind rejects the object.
    fn of_object(spec: &Value) -> Option<Verdict> {
        let spec: PoolSpec = serde_json::from_value(spec.clone()).ok()?;
        let (pool, diagnostics) = spec.check(Some("clusters"), "workers");
        Some(verdict(pool.as_ref(), &diagnostics))
    }

    /// Returns the result of `glowplugctl` for a pool file with the same members.
    fn of_file(spec: &Value) -> Verdict {
        let mut file = spec.clone();
        file["name"] = "workers".into();
        file["namespace"] = "clusters".into();
        let (specs, mut diagnostics) = read_pools(file.to_string().as_bytes());
        let pool = specs.first().and_then(|spec| Pool::new(spec, &TemplateFacts::default(), &mut diagnostics));
        verdict(pool.as_ref(), &diagnostics)
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
    fn the_members_sticky_template_and_node_pool_ref_do_not_change_the_addresses_of_a_pool() {
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
    fn a_global_pool_pre_allocates_addresses_only_to_names_with_a_namespace() {
        let spec = |name: &str| PoolSpec {
            network: "infra/vlan10".into(),
            addresses: vec!["10.0.0.0/24".into()],
            pre_allocations: [(name.to_owned(), "10.0.0.9".to_owned())].into(),
            ..PoolSpec::default()
        };
        let pool = spec("n/db").check(None, "global").0.unwrap();
        assert_eq!(pool.pre_allocated("n", "db"), ["10.0.0.9".parse::<IpAddr>().unwrap()]);
        let (pool, diagnostics) = spec("db").check(None, "global");
        let error = r#"preAllocations.db: name without a namespace "db", expected namespace/name"#;
        assert_eq!(verdict(pool.as_ref(), &diagnostics), (false, vec![error.to_owned()]));
        assert!(spec("db").check(Some("n"), "pool").0.is_some());
    }

    #[test]
    fn a_pool_whose_addresses_another_program_chooses_has_no_addresses_of_its_own() {
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
            "networks": [{"id": "storage", "link": "eno102", "type": "ipv4_dhcp", "gateway": "10.0.0.9"}],
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
    fn a_template_with_an_address_of_another_link_is_refused() {
        let template = json!({
            "links": [{"id": "eno101", "type": "phy"}, {"id": "eno102", "type": "phy"}],
            "networks": [{"id": "storage", "link": "eno102", "type": "ipv4", "ip_address": "10.9.0.9/24"}],
        });
        let spec = PoolSpec {
            network: "default".into(),
            addresses: vec!["10.0.0.0/24".into()],
            template: Some(template.to_string()),
            ..PoolSpec::default()
        };
        let (pool, diagnostics) = spec.check(Some("a"), "b");
        let refused = r#"template.networks[0].ip_address: address in a template "10.9.0.9/24", expected no address: a template serves many machines"#;
        assert_eq!(verdict(pool.as_ref(), &diagnostics), (false, vec![refused.to_owned()]));
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
        let missing = r#"template.links: no link for the interface "eno101", expected one link with this id or name"#;
        assert_eq!(verdict_on("{}"), refused(missing));
        let unreadable = "template line 1 column 10: not readable as JSON \"EOF while parsing a value\", expected a JSON or YAML document";
        assert_eq!(verdict_on("{\"links\": "), refused(unreadable));
        let netmask = json!({
            "links": [{"id": "eno101", "type": "phy"}],
            "networks": [{"link": "eno101", "type": "ipv4", "netmask": "255.0.255.0"}],
        });
        let invalid = r#"template.networks[0].netmask: invalid netmask "255.0.255.0", expected a netmask without holes, or a prefix length above 0"#;
        assert_eq!(verdict_on(&netmask.to_string()), refused(invalid));
    }

    #[test]
    fn a_pool_has_the_reuse_delay_of_its_specification() {
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
    fn a_network_that_the_name_of_a_lease_cannot_contain_is_an_error() {
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
                    "machineSelector: alone in a GlobalStaticIPPool \"{}\", expected also namespaceSelector: users \
                     choose the labels of their machines",
                    r#"network: name without a namespace "vlan10", expected namespace/name or default"#,
                    r#"nodePoolRef: not of a GlobalStaticIPPool "{name: workers}", expected nodePoolRefs, each with its namespace"#,
                ]
                .map(str::to_owned)
                .into()
            )
        );
    }
}
