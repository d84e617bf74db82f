//! Reads the pools of the controller: the kinds `StaticIPPool` and `GlobalStaticIPPool`.
//!
//! The members with the addresses have the same names as in a pool file. The other members select machines, say how
//! machines are served, or name another program that chooses the addresses. The controller and `glowplugctl` read an
//! object by the rules of this module.

use std::ops::RangeInclusive;

use super::claim::{NAMESPACE_NAME, OBJECT_NAME, is_namespace, is_object_name};
use super::expand::{ExpandError, Template};
use super::members::Members;
use super::pool::{Pool, PoolSpec, TemplateFacts};
use crate::diagnostic::{Diagnostic, Diagnostics, FieldPath, Severity};
use crate::formats::value::{Object, Value, Whole};

/// The API group of the kinds.
pub const GROUP: &str = "ipam.glowplug.dev";

/// A kind of pool.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum PoolKind {
    /// A pool of a namespace, for machines and claims.
    StaticIpPool,
    /// A pool for the claims of every namespace, or for machines and claims of several namespaces.
    GlobalStaticIpPool,
}

/// The range of `priority`.
const PRIORITIES: RangeInclusive<i64> = -1000..=1000;
const EXPECTED_PRIORITY: &str = "a number from -1000 to 1000";

/// The members of a Kubernetes object.
const OBJECT_MEMBERS: [&str; 5] = ["apiVersion", "kind", "metadata", "spec", "status"];

/// Members of a pool that [`Check`] compares with each other.
#[derive(Clone, Copy)]
struct Selection<'o> {
    sticky: bool,
    has_reuse_delay: bool,
    serves_ipam_claims: bool,
    node_pool_ref: Option<&'o Object>,
    has_node_pool_refs: bool,
    namespace_selector: Option<&'o Object>,
    machine_selector: Option<&'o Object>,
    addresses_from: Option<&'o Object>,
}

/// The check of a pool, with the diagnostics so far.
struct Check<'a> {
    /// Path of the specification.
    path: FieldPath<'a>,
    /// The specification in the document.
    object: &'a Object,
    spec: &'a PoolSpec,
    selection: Selection<'a>,
    diagnostics: &'a mut Diagnostics,
}

/// Reads a pool object of the controller. `path` is the path of the object in its document. Diagnostics about the
/// specification have the path `path.spec.…`.
pub(crate) fn read(object: &Object, kind: PoolKind, path: FieldPath<'_>, diagnostics: &mut Diagnostics) -> PoolSpec {
    let empty = Object::EMPTY;
    let metadata = object.object("metadata").unwrap_or(&empty);
    let at = path.field("metadata");
    let mut of_metadata = Members::new(metadata, at);
    let [name, namespace, created] =
        ["name", "namespace", "creationTimestamp"].map(|member| of_metadata.text(member, diagnostics));
    let mut members = Members::new(object, path);
    members.allow(&OBJECT_MEMBERS);
    members.finish(Severity::Error, diagnostics);
    let path = path.field("spec");
    let object = object.object("spec").unwrap_or(&empty);
    let mut members = Members::new(object, path);
    let spec = PoolSpec::read(&mut members, diagnostics).read_further(&mut members, diagnostics);
    let is_global = kind == PoolKind::GlobalStaticIpPool;
    let has_reuse_delay = members.has("addressReuseGracePeriodSeconds");
    let sticky = members.switch("sticky", diagnostics);
    let serves_ipam_claims = members.switch("serveIPAMClaims", diagnostics);
    members.switch("ignoreNeighbours", diagnostics);
    if let Some(priority) = members.number("priority", EXPECTED_PRIORITY, diagnostics)
        && !PRIORITIES.contains(&priority)
    {
        diagnostics.push(Diagnostic::error(path.field("priority"), "out of range", priority, EXPECTED_PRIORITY));
    }
    let template = members.text("template", diagnostics);
    let has_node_pool_refs = members.has("nodePoolRefs");
    let node_pool_refs = path.field("nodePoolRefs");
    for (index, reference) in members.objects("nodePoolRefs", diagnostics) {
        let mut members = Members::new(reference, node_pool_refs.index(index));
        let namespace = members.required_text("namespace", "the namespace of a NodePool", diagnostics);
        if let Some(namespace) = namespace.filter(|namespace| !is_namespace(namespace)) {
            diagnostics.push(Diagnostic::warning(
                members.path.field("namespace"),
                "invalid name",
                namespace,
                NAMESPACE_NAME,
            ));
        }
        node_pool_name(&mut members, diagnostics);
        members.finish(Severity::Error, diagnostics);
    }
    let selection = Selection {
        sticky,
        has_reuse_delay,
        serves_ipam_claims,
        node_pool_ref: members.object("nodePoolRef", diagnostics),
        has_node_pool_refs,
        namespace_selector: members.object("namespaceSelector", diagnostics),
        machine_selector: members.object("machineSelector", diagnostics),
        addresses_from: members.object("addressesFrom", diagnostics),
    };
    members.finish(Severity::Error, diagnostics);
    let spec = PoolSpec {
        name: name.unwrap_or_default(),
        namespace: namespace.filter(|_| !is_global),
        created: created.and_then(|text| text.parse().ok()),
        is_deleted: metadata.get("deletionTimestamp").is_some_and(|time| *time != Value::Null),
        is_external: selection.addresses_from.is_some(),
        serves_claims_only: !selection.selects_machines() && !serves_ipam_claims,
        is_global,
        selects_machines: selection.selects_machines(),
        template,
        ..spec
    };
    let mut check = Check { path, object, spec: &spec, selection, diagnostics };
    check.machines();
    check.claims();
    check.source();
    spec
}

/// Checks the name of a NodePool. A name that no NodePool can have is only a warning: a stored pool with such a name
/// keeps its addresses and its other machines.
fn node_pool_name(members: &mut Members<'_>, diagnostics: &mut Diagnostics) {
    let name = members.required_text("name", "the name of a NodePool", diagnostics);
    if let Some(name) = name.filter(|name| !is_object_name(name)) {
        diagnostics.push(Diagnostic::warning(members.path.field("name"), "invalid name", name, OBJECT_NAME));
    }
}

/// Returns the prefix lengths and addresses in the template of a pool. In the paths of diagnostics about the template,
/// the path of the pool comes first, and then `template`.
#[must_use]
pub fn template_facts(spec: &PoolSpec, diagnostics: &mut Diagnostics) -> TemplateFacts {
    let interface = spec.interface.as_deref().unwrap_or(Pool::DEFAULT_INTERFACE).parse();
    // [`Pool::new`] reports an invalid interface.
    let (Some(template), Ok(interface)) = (&spec.template, interface) else { return TemplateFacts::default() };
    match Template::parse(template.as_bytes()).and_then(|template| template.facts(&interface)) {
        Ok(facts) => return facts,
        Err(ExpandError::Template(of_template)) => {
            for mut diagnostic in of_template.into_parts().0 {
                diagnostic.path = spec.at(match diagnostic.path.as_str() {
                    "document" => "template".to_owned(),
                    line if line.starts_with("line ") => format!("template {line}"),
                    path => format!("template.{path}"),
                });
                diagnostics.push(diagnostic);
            }
        }
        Err(error) => {
            diagnostics.push(Diagnostic::error(spec.at("template"), "invalid template", error, "network_data.json"));
        }
    }
    TemplateFacts::default()
}

// === impl Selection ===

impl Selection<'_> {
    fn selects_machines(&self) -> bool {
        let objects = [self.node_pool_ref, self.namespace_selector, self.machine_selector];
        self.has_node_pool_refs || objects.iter().any(Option::is_some)
    }
}

// === impl Check ===

impl Check<'_> {
    fn error(&mut self, member: &str, problem: &str, value: &str, expected: &str) {
        self.diagnostics.push(Diagnostic::error(self.path.field(member), problem, value, expected));
    }

    /// Reports an error in a member, with the value of the member.
    fn refuse(&mut self, member: &str, problem: &str, expected: &str) {
        let value = self.object.get(member).unwrap_or(&Value::Null);
        self.diagnostics.push(Diagnostic::error(self.path.field(member), problem, Whole(value), expected));
    }

    /// Reports a member that another member of the pool excludes.
    fn exclude(&mut self, member: &str, other: &str, expected: &str) {
        let (path, problem) = (self.path.field(member), format!("set together with {other}"));
        self.diagnostics.push(Diagnostic::without_value(Severity::Error, path, &problem, expected));
    }

    /// Checks the members that select machines.
    fn machines(&mut self) {
        let Selection {
            node_pool_ref, has_node_pool_refs, namespace_selector, machine_selector, addresses_from, ..
        } = self.selection;
        if self.spec.is_global {
            const PROBLEM: &str = "not of a GlobalStaticIPPool";
            if node_pool_ref.is_some() {
                self.refuse("nodePoolRef", PROBLEM, "nodePoolRefs, each with its namespace");
            }
            if machine_selector.is_some() && namespace_selector.is_none() && !has_node_pool_refs {
                let expected = "also namespaceSelector: users choose the labels of their machines";
                self.refuse("machineSelector", "alone in a GlobalStaticIPPool", expected);
            }
            if addresses_from.is_some() {
                self.refuse("addressesFrom", PROBLEM, "a StaticIPPool");
            }
            let selectors =
                [("namespaceSelector", namespace_selector.is_some()), ("machineSelector", machine_selector.is_some())];
            for (member, _) in selectors.into_iter().filter(|(_, is_set)| has_node_pool_refs && *is_set) {
                self.exclude(member, "nodePoolRefs", "one of the two");
            }
            return;
        }
        let of_several = [
            ("nodePoolRefs", has_node_pool_refs, "nodePoolRef, a NodePool of the namespace of the pool"),
            ("namespaceSelector", namespace_selector.is_some(), "a GlobalStaticIPPool"),
        ];
        for (member, _, expected) in of_several.into_iter().filter(|(_, is_set, _)| *is_set) {
            self.refuse(member, "not of a StaticIPPool", expected);
        }
        if node_pool_ref.is_some() && machine_selector.is_some() {
            self.exclude("machineSelector", "nodePoolRef", "one of the two");
        }
        if let Some(reference) = node_pool_ref {
            let mut members = Members::new(reference, self.path.field("nodePoolRef"));
            node_pool_name(&mut members, self.diagnostics);
            members.finish(Severity::Error, self.diagnostics);
        }
    }

    /// Checks the members that matter for claims.
    fn claims(&mut self) {
        let spec = self.spec;
        if spec.is_global {
            if !spec.network.is_empty() && spec.network != Pool::DEFAULT_NETWORK && !spec.network.contains('/') {
                self.error("network", "name without a namespace", &spec.network, "namespace/name or default");
            }
            // Users of any namespace can create a claim with any name, so each entry must name its namespace.
            for (name, _) in spec.pre_allocations.iter().filter(|(name, _)| !name.contains('/')) {
                let list = self.path.field("preAllocations");
                let diagnostic =
                    Diagnostic::error(list.field(name), "name without a namespace", name, "namespace/name");
                self.diagnostics.push(diagnostic);
            }
        }
        if self.selection.serves_ipam_claims {
            self.needs_attachment();
        }
    }

    /// Reports a pool on the network of pods: IPAMClaims name a network attachment definition, and this network has
    /// none.
    fn needs_attachment(&mut self) {
        if self.spec.network == Pool::DEFAULT_NETWORK {
            let expected = "the network attachment definition of the IPAMClaims, namespace/name or a name";
            self.error("network", "no attachment", Pool::DEFAULT_NETWORK, expected);
        }
    }

    /// Checks the member `addressesFrom`, which names the program that chooses the addresses, and the members that
    /// contradict it.
    fn source(&mut self) {
        const OTHER: &str = "addressesFrom";
        let Selection { node_pool_ref, machine_selector, addresses_from, .. } = self.selection;
        let (spec, Some(source)) = (self.spec, addresses_from) else { return };
        if spec.addresses.as_ref().is_some_and(|addresses| !addresses.is_empty()) {
            self.exclude("addresses", OTHER, "one of the two");
        }
        let choices = [
            ("excludedAddresses", !spec.excluded_addresses.is_empty()),
            ("allocateReservedIPAddresses", spec.allocate_reserved_ip_addresses),
            ("prefix", spec.prefix.is_some()),
            ("subnets", !spec.subnets.is_empty()),
            ("addressReuseGracePeriodSeconds", self.selection.has_reuse_delay),
            ("sticky", self.selection.sticky),
        ];
        for (member, _) in choices.into_iter().filter(|(_, is_set)| *is_set) {
            self.exclude(member, OTHER, "none: the other program decides this");
        }
        if self.selection.serves_ipam_claims {
            let expected = "one of the two: a pool serves IPAMClaims or takes addresses from elsewhere";
            self.exclude("serveIPAMClaims", OTHER, expected);
        }
        let of_spec = self.path;
        let path = of_spec.field("addressesFrom");
        if node_pool_ref.is_none() && machine_selector.is_none() {
            let expected = "nodePoolRef or machineSelector: the pool serves machines only";
            self.diagnostics.push(Diagnostic::without_value(Severity::Error, path, "no machines", expected));
        }
        let mut members = Members::new(source, path);
        let pool = members.object("poolRef", self.diagnostics);
        let ipam_claim = members.object("ipamClaim", self.diagnostics);
        members.finish(Severity::Error, self.diagnostics);
        match (pool, ipam_claim) {
            (Some(_), Some(_)) => {
                let (path, problem) = (path.field("ipamClaim"), "set together with poolRef");
                let diagnostic = Diagnostic::without_value(Severity::Error, path, problem, "one of the two");
                self.diagnostics.push(diagnostic);
            }
            (Some(pool), None) => self.provider_pool(pool, path.field("poolRef")),
            (None, Some(claim)) => {
                Members::new(claim, path.field("ipamClaim")).finish(Severity::Error, self.diagnostics);
                self.needs_attachment();
            }
            (None, None) => {
                let expected = "poolRef or ipamClaim";
                self.diagnostics.push(Diagnostic::without_value(Severity::Error, path, "empty object", expected));
            }
        }
    }

    /// Checks the reference to a pool of another IPAM provider.
    fn provider_pool(&mut self, pool: &Object, path: FieldPath<'_>) {
        let diagnostics = &mut *self.diagnostics;
        let mut members = Members::new(pool, path);
        if let Some(group) = members.required_text("apiGroup", "the API group of a pool", diagnostics) {
            let path = path.field("apiGroup");
            if group == GROUP {
                let expected = "the group of another provider: machines need no claim on a pool of this group";
                diagnostics.push(Diagnostic::error(path, "own pool", group, expected));
            } else if !is_object_name(&group) {
                let expected = "an API group, such as ipam.cluster.x-k8s.io";
                diagnostics.push(Diagnostic::error(path, "invalid API group", group, expected));
            }
        }
        let kind = members.required_text("kind", "the kind of a pool", diagnostics);
        if let Some(kind) = kind.filter(|kind| !is_object_name(&kind.to_ascii_lowercase())) {
            let expected = "a kind, such as InClusterIPPool";
            diagnostics.push(Diagnostic::error(path.field("kind"), "invalid kind", kind, expected));
        }
        let name = members.required_text("name", "the name of a pool", diagnostics);
        if let Some(name) = name.filter(|name| !is_object_name(name)) {
            diagnostics.push(Diagnostic::error(path.field("name"), "invalid name", name, OBJECT_NAME));
        }
        members.finish(Severity::Error, diagnostics);
    }
}

#[cfg(test)]
mod tests {
    use crate::host::claim::{HolderKind, Machine};
    use crate::host::pool::{Pool, TemplateFacts};
    use crate::host::pools_file::read_pools;

    use super::template_facts;

    /// The pool of an object in flow style, and the diagnostics.
    fn pool(kind: &str, members: &str) -> (Option<Pool>, Vec<String>) {
        let text = format!("{{kind: {kind}, metadata: {{name: p, namespace: 'n'}}, spec: {{{members}}}}}");
        let (specs, mut diagnostics) = read_pools(text.as_bytes());
        let pool = Pool::new(&specs[0], &TemplateFacts::default(), &mut diagnostics);
        (pool, diagnostics.kept().iter().map(ToString::to_string).collect())
    }

    fn refusal(kind: &str, members: &str) -> Vec<String> {
        let (pool, diagnostics) = pool(kind, members);
        assert_eq!(pool, None, "{members}");
        diagnostics
    }

    #[test]
    fn the_full_name_of_a_global_pool_has_no_namespace_and_the_pool_serves_only_claims() {
        let (pool, diagnostics) = pool("GlobalStaticIPPool", "network: infra/a, addresses: [10.0.0.0/24]");
        assert_eq!(diagnostics, [""; 0]);
        let pool = pool.unwrap();
        let machine = Machine::new("n", "p", "u");
        let claim = machine.clone().of_kind(HolderKind::IpAddressClaim);
        assert_eq!(
            (pool.name(), pool.network(), pool.serves_holder(&machine), pool.serves_holder(&claim)),
            ("p", "infra/a", false, true)
        );
    }

    #[test]
    fn a_global_pool_selects_machines_by_node_pools_with_namespaces_or_by_namespaces() {
        let with = |members: &str| format!("network: infra/a, addresses: [10.0.0.0/24], {members}");
        for members in [
            "nodePoolRefs: [{namespace: clusters, name: a}, {namespace: other, name: a}]",
            "nodePoolRefs: []",
            "namespaceSelector: {}",
            "namespaceSelector: {matchLabels: {a: b}}, machineSelector: {}",
        ] {
            let (pool, diagnostics) = pool("GlobalStaticIPPool", &with(members));
            assert_eq!((pool.unwrap().serves_machines(), diagnostics), (true, Vec::new()), "{members}");
        }
        let global = |members: &str| refusal("GlobalStaticIPPool", &with(members));
        let alone = "spec.machineSelector: alone in a GlobalStaticIPPool \"{}\", expected also namespaceSelector: \
                     users choose the labels of their machines";
        assert_eq!(global("machineSelector: {}"), [alone]);
        let both = ["machineSelector", "namespaceSelector"]
            .map(|member| format!("spec.{member}: set together with nodePoolRefs, expected one of the two"));
        assert_eq!(global("nodePoolRefs: [], namespaceSelector: {}, machineSelector: {}"), both);
        let missing = [
            "spec.nodePoolRefs[0].name: missing, expected the name of a NodePool",
            "spec.nodePoolRefs[0].uid: unknown key, expected one of namespace, name",
            "spec.nodePoolRefs[1].namespace: missing, expected the namespace of a NodePool",
        ];
        assert_eq!(global("nodePoolRefs: [{namespace: a, uid: u}, {name: b}]"), missing);
        let invalid = [
            "spec.nodePoolRefs[0].name: invalid name \"Blue\", expected at most 253 lower case letters, digits, '-' and '.', with a \
             letter or digit at both ends",
            "spec.nodePoolRefs[0].namespace: invalid name \"a.b\", expected the name of a namespace: at most 63 lower case letters, digits \
             and '-', with a letter or digit at both ends",
        ];
        // The pool keeps its addresses and other machines despite the invalid name of a NodePool.
        let kept = |kind: &str, members: &str| {
            let (pool, diagnostics) = pool(kind, members);
            (pool.is_some_and(|pool| pool.contains("10.0.0.8".parse().unwrap())), diagnostics)
        };
        let members = "network: infra/a, addresses: [10.0.0.0/24], nodePoolRefs: [{namespace: a.b, name: Blue}]";
        assert_eq!(kept("GlobalStaticIPPool", members), (true, invalid.map(str::to_owned).to_vec()));
        let invalid = "spec.nodePoolRef.name: invalid name \"a_b\", expected at most 253 lower case letters, digits, '-' and '.', with a \
                       letter or digit at both ends";
        assert_eq!(kept("StaticIPPool", &with("nodePoolRef: {name: a_b}")), (true, vec![invalid.to_owned()]));
        let of_several = [
            "spec.namespaceSelector: not of a StaticIPPool \"{}\", expected a GlobalStaticIPPool",
            "spec.nodePoolRefs: not of a StaticIPPool \"[]\", expected nodePoolRef, a NodePool of the namespace of the pool",
        ];
        assert_eq!(refusal("StaticIPPool", &with("nodePoolRefs: [], namespaceSelector: {}")), of_several);
    }

    #[test]
    fn a_global_pool_names_its_network_in_full_and_each_namespace_of_its_machines() {
        let members = "network: a, addresses: [10.0.0.0/24], nodePoolRef: {name: w}, machineSelector: {}, \
                       addressesFrom: {ipamClaim: {}}, preAllocations: {db: 10.0.0.5}";
        assert_eq!(
            refusal("GlobalStaticIPPool", members),
            [
                "spec.addresses: set together with addressesFrom, expected one of the two",
                "spec.addressesFrom: not of a GlobalStaticIPPool \"{ipamClaim: {}}\", expected a StaticIPPool",
                "spec.machineSelector: alone in a GlobalStaticIPPool \"{}\", expected also namespaceSelector: users \
                 choose the labels of their machines",
                "spec.network: name without a namespace \"a\", expected namespace/name or default",
                "spec.nodePoolRef: not of a GlobalStaticIPPool \"{name: w}\", expected nodePoolRefs, each with its namespace",
                "spec.preAllocations: not allowed, expected none, because another program chooses the addresses of the pool",
                "spec.preAllocations.db: name without a namespace \"db\", expected namespace/name",
            ]
        );
    }

    #[test]
    fn an_external_pool_has_no_addresses_of_its_own() {
        let external = |source: &str| {
            let (pool, diagnostics) = pool(
                "StaticIPPool",
                &format!(
                    "network: infra/a, gateway: [10.0.0.1], nodePoolRef: {{name: w}}, addressesFrom: {{{source}}}"
                ),
            );
            assert_eq!(diagnostics, [""; 0]);
            pool.map(|pool| (pool.is_external(), pool.spaces().count(), pool.settings().gateways.len()))
        };
        let pool_ref = "poolRef: {apiGroup: ipam.cluster.x-k8s.io, kind: InClusterIPPool, name: w}";
        assert_eq!([pool_ref, "ipamClaim: {}"].map(external), [Some((true, 0, 1)); 2]);
    }

    #[test]
    fn a_pool_for_claims_only_can_have_addresses_without_a_common_subnet() {
        let members = "network: infra/a, addresses: [10.0.0.0, 172.16.0.255], prefix: 0, gateway: [192.168.0.1]";
        for kind in ["StaticIPPool", "GlobalStaticIPPool"] {
            let (pool, diagnostics) = pool(kind, members);
            let pool = pool.unwrap();
            let space = pool.spaces().next().unwrap();
            assert_eq!((space.subnets()[0].prefix(), space.allocatable(), diagnostics), (0, 2, Vec::new()));
        }
        let expected = "spec.prefix: no prefix length for machines \"0\", expected 1 to 32: a machine needs a subnet, and the smallest one is \
                        32 with onLinkGateway";
        for served in ["machineSelector: {}", "nodePoolRef: {name: w}", "serveIPAMClaims: true"] {
            assert_eq!(refusal("StaticIPPool", &format!("{members}, {served}")), [expected]);
        }
    }

    #[test]
    fn members_about_which_the_other_program_decides_are_errors_in_an_external_pool() {
        let members = "network: default, addresses: [10.0.0.8], excludedAddresses: [10.0.0.9], sticky: true, \
                       allocateReservedIPAddresses: true, addressReuseGracePeriodSeconds: 0, serveIPAMClaims: true, \
                       addressesFrom: {poolRef: {kind: 'In Cluster', name: W, namespace: 'n'}, ipamClaims: {}}";
        let decides = |member: &str| {
            format!("spec.{member}: set together with addressesFrom, expected none: the other program decides this")
        };
        assert_eq!(
            refusal("StaticIPPool", members),
            [
                decides("addressReuseGracePeriodSeconds"),
                "spec.addresses: set together with addressesFrom, expected one of the two".to_owned(),
                "spec.addressesFrom: no machines, expected nodePoolRef or machineSelector: the pool serves machines only"
                    .to_owned(),
                "spec.addressesFrom.ipamClaims: unknown key, expected one of poolRef, ipamClaim".to_owned(),
                "spec.addressesFrom.poolRef.apiGroup: missing, expected the API group of a pool".to_owned(),
                "spec.addressesFrom.poolRef.kind: invalid kind \"In Cluster\", expected a kind, such as InClusterIPPool"
                    .to_owned(),
                "spec.addressesFrom.poolRef.name: invalid name \"W\", expected at most 253 lower case letters, digits, '-' and '.', with a letter or digit at both ends"
                    .to_owned(),
                "spec.addressesFrom.poolRef.namespace: unknown key, expected one of apiGroup, kind, name".to_owned(),
                decides("allocateReservedIPAddresses"),
                decides("excludedAddresses"),
                "spec.network: no attachment \"default\", expected the network attachment definition of the IPAMClaims, \
                 namespace/name or a name"
                    .to_owned(),
                "spec.serveIPAMClaims: set together with addressesFrom, expected one of the two: a pool serves \
                 IPAMClaims or takes addresses from elsewhere"
                    .to_owned(),
                decides("sticky"),
            ]
        );
    }

    #[test]
    fn addresses_come_either_from_a_pool_or_from_an_ipam_claim() {
        let source = |source: &str| {
            let members = format!("network: infra/a, machineSelector: {{}}, addressesFrom: {source}");
            refusal("StaticIPPool", &members)
        };
        assert_eq!(source("{}"), ["spec.addressesFrom: empty object, expected poolRef or ipamClaim"]);
        assert_eq!(
            source("{ipamClaim: {}, poolRef: {apiGroup: a, kind: B, name: c}}"),
            ["spec.addressesFrom.ipamClaim: set together with poolRef, expected one of the two"]
        );
        assert_eq!(
            source("{poolRef: {apiGroup: ipam.glowplug.dev, kind: StaticIPPool, name: p}}"),
            ["spec.addressesFrom.poolRef.apiGroup: own pool \"ipam.glowplug.dev\", expected the group of another \
              provider: machines need no claim on a pool of this group"]
        );
        assert_eq!(
            source("ipamClaim"),
            [
                "spec.addresses: missing, expected the addresses of the pool",
                "spec.addressesFrom: invalid value \"ipamClaim\", expected an object",
            ]
        );
    }

    #[test]
    fn the_reference_to_a_node_pool_has_only_a_name() {
        let members = "network: infra/a, addresses: [10.0.0.0/24], nodePoolRef: {namespace: 'n'}";
        assert_eq!(
            refusal("StaticIPPool", members),
            [
                "spec.nodePoolRef.name: missing, expected the name of a NodePool",
                "spec.nodePoolRef.namespace: unknown key, expected name",
            ]
        );
    }

    #[test]
    fn a_template_of_the_pool_sets_its_prefix_length_and_reserves_addresses() {
        let read = |template: &str| {
            let text = format!(
                "kind: List\nitems:\n- kind: StaticIPPool\n  metadata: {{name: p, namespace: 'n'}}\n  spec:\n    \
                 network: infra/a\n    addresses: [10.0.0.5-10.0.0.9]\n    template: '{template}'\n"
            );
            let (specs, mut diagnostics) = read_pools(text.as_bytes());
            let facts = template_facts(&specs[0], &mut diagnostics);
            let pool = Pool::new(&specs[0], &facts, &mut diagnostics);
            (pool, diagnostics.kept().iter().map(ToString::to_string).collect::<Vec<_>>())
        };
        let (pool, diagnostics) = read(
            r#"{"links": [{"id": "eno101", "type": "phy"}], "networks": [{"link": "eno101", "type": "ipv4", "netmask": "255.255.255.0"}], "services": [{"type": "dns", "address": "10.0.0.6"}]}"#,
        );
        assert_eq!(diagnostics, [""; 0]);
        let pool = pool.unwrap();
        let space = pool.spaces().next().unwrap();
        assert_eq!((space.subnets()[0].prefix(), space.allocatable()), (24, 4));
        let (pool, diagnostics) = read("{}");
        let line = "items[0].spec.template.links: no link for the interface \"eno101\", expected one link with this id or name";
        let no_length = "items[0].spec.addresses[0]: unknown subnet of \"10.0.0.5-10.0.0.9\", expected the item \
                         {cidr: 10.0.0.0/24} in machineNetwork: the subnet of the machines";
        assert_eq!((pool, diagnostics), (None, vec![no_length.to_owned(), line.to_owned()]));
    }
}
