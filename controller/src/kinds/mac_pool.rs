//! Pools of MAC addresses, and the names of the leases of MAC addresses.

#![allow(clippy::duplicated_attributes, reason = "columns of a kind have the same type")]
#![allow(unreachable_pub, reason = "KubeSchema repeats each struct in a function")]

use std::collections::BTreeMap;
use std::sync::LazyLock;

use glowplug::diagnostic::{Diagnostic, Diagnostics, Severity};
use glowplug::host::claim::{NAMESPACE_NAME, is_namespace};
use glowplug::network::parse_mac_address;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::JSONSchemaProps;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, LabelSelector, ObjectMeta};
use kube::core::{ParseExpressionError, Selector, SelectorExt as _};
use kube::{CustomResource, CustomResourceExt as _, KubeSchema};
use pnet_base::MacAddr;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::kinds::schema::{MAX_LABEL, beyond, conditions, selector, specification};

/// The network in the leases of MAC addresses. No network of IP addresses has this name: such a network is `default` or
/// has a namespace.
pub const MAC_NETWORK: &str = "mac";
/// The number of bits of a MAC address, which is the prefix length in its lease.
pub const MAC_BITS: u8 = 48;

/// The MAC addresses of a pool, and the machines that the pool serves.
#[derive(Clone, CustomResource, Debug, Default, Deserialize, KubeSchema, PartialEq, Serialize)]
#[kube(
    group = "ipam.glowplug.dev",
    version = "v1alpha1",
    kind = "MACPool",
    doc = "A pool of MAC addresses for the interfaces of VirtualMachines. A MAC address is unique in the cluster.",
    status = "MacPoolStatus",
    derive = "PartialEq",
    shortname = "macp",
    category = "glowplug",
    printcolumn(name = "Ready", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].status"),
    printcolumn(name = "Free", type_ = "integer", json_path = ".status.free"),
    printcolumn(name = "Used", type_ = "integer", json_path = ".status.used"),
    printcolumn(name = "Waiting", type_ = "integer", json_path = ".status.waiting"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Ranges", type_ = "string", json_path = ".spec.ranges", priority = 1)
)]
#[serde(rename_all = "camelCase")]
pub struct MacPoolSpec {
    /// Addresses of the pool as ranges `first-last`: unicast addresses that are locally administered.
    /// Example: `["02:00:00:00:00:00-02:00:00:00:ff:ff"]`.
    #[schemars(length(max = MacPoolSpec::MAX_RANGES), inner(length(max = MAX_LABEL)))]
    pub ranges: Vec<String>,
    /// Namespaces of the VirtualMachines that get addresses of this pool. Example: `[clusters-c1]`.
    #[schemars(length(max = MacPoolSpec::MAX_NAMESPACES), inner(length(max = MAX_LABEL)))]
    pub namespaces: Vec<String>,
    /// VirtualMachines in `namespaces` that get addresses of this pool. Absent: every VirtualMachine in `namespaces`.
    /// Example: `{matchLabels: {cluster.x-k8s.io/cluster-name: c1}}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "selector")]
    pub machine_selector: Option<LabelSelector>,
    /// Whether the ranges may have universally administered addresses. Such addresses belong to the owner of their first
    /// three octets. Example: `true`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub allow_universally_administered: bool,
    /// Members that this version does not know. They exist only if the CRD in the cluster is of a later version.
    #[serde(flatten)]
    #[schemars(skip)]
    pub unknown: BTreeMap<String, Value>,
}

/// What the controller last observed of a pool of MAC addresses.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MacPoolStatus {
    /// `metadata.generation` of the specification that this status describes. -1: no controller has looked at the pool.
    /// Example: `3`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = -1))]
    pub observed_generation: Option<i64>,
    /// Addresses of the pool. Example: `65536`.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub total: i64,
    /// Addresses that the next machines may get. Example: `65533`.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub free: i64,
    /// Addresses that a machine holds or uses without a lease, and addresses of guests that migrated to another cluster.
    /// Example: `3`.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub used: i64,
    /// Number of machines that wait for an address of this pool. Example: `0`.
    #[serde(default)]
    pub waiting: u32,
    /// `Ready`: the pool allocates addresses. `Stalled`: the pool allocates no addresses before a user changes it. `Exhausted`: the pool
    /// has no free address, or fewer than a machine that waits needs. `DuplicateRecords`: two machines have the same address of the pool. `SchemaViolated`: the specification was
    /// stored under an earlier schema, and the current schema does not allow all of it. `UnreadableLeases`: leases of the pool cannot be
    /// read, and their addresses are not allocated.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "conditions")]
    pub conditions: Vec<Condition>,
}

/// A valid pool of MAC addresses.
#[derive(Clone, Debug)]
pub struct MacPool {
    name: String,
    ranges: Vec<MacRange>,
    namespaces: Vec<String>,
    selector: Selector,
}

/// A range of MAC addresses, from the first to the last address.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct MacRange {
    first: u64,
    last: u64,
}

/// Returns the name of the lease of a MAC address: `02-00-00-00-00-01.mac`.
///
/// The name contains no network, because a MAC address is unique in the cluster.
#[must_use]
pub fn mac_lease_name(address: MacAddr) -> String {
    format!("{}.{MAC_NETWORK}", address.to_string().replace(':', "-"))
}

/// Parses the MAC address from the name of a lease. `None` for every name that [`mac_lease_name`] does not produce.
#[must_use]
pub fn parse_mac_lease_name(name: &str) -> Option<MacAddr> {
    let address = parse_mac_address(name.strip_suffix(MAC_NETWORK)?.strip_suffix('.')?)?;
    // Capital letters and colons would be a second spelling: two names for one address.
    (mac_lease_name(address) == name).then_some(address)
}

fn number(address: MacAddr) -> u64 {
    address.octets().into_iter().fold(0, |number, octet| number << 8 | u64::from(octet))
}

fn address(number: u64) -> MacAddr {
    let [_, _, a, b, c, d, e, f] = number.to_be_bytes();
    MacAddr::new(a, b, c, d, e, f)
}

/// The schema of the specification of a pool.
static POOL: LazyLock<JSONSchemaProps> = LazyLock::new(|| specification(MACPool::crd()));

// === impl MacPoolSpec ===

impl MacPoolSpec {
    /// Maximum number of ranges of a pool.
    const MAX_RANGES: usize = 256;
    /// Maximum number of namespaces of a pool.
    const MAX_NAMESPACES: usize = 1024;

    /// Checks the specification of the pool `name` and returns the pool, with every diagnostic.
    ///
    /// `None` when there is an error.
    #[must_use]
    pub fn check(&self, name: &str) -> (Option<MacPool>, Diagnostics) {
        let mut diagnostics = Diagnostics::default();
        for member in self.unknown.keys() {
            let expected = "a member of this version: a later version may restrict the pool with it";
            diagnostics.push(Diagnostic::without_value(Severity::Error, member, "unknown key", expected));
        }
        let ranges = self.check_ranges(&mut diagnostics);
        if self.namespaces.is_empty() {
            diagnostics.push(Diagnostic::error("namespaces", "empty list", "[]", "at least one namespace"));
        }
        if self.namespaces.len() > Self::MAX_NAMESPACES {
            let expected = format!("at most {}", Self::MAX_NAMESPACES);
            diagnostics.push(Diagnostic::error("namespaces", "too many", self.namespaces.len(), &expected));
        }
        for (index, namespace) in self.namespaces.iter().enumerate().take(Self::MAX_NAMESPACES) {
            if !is_namespace(namespace) {
                let at = format!("namespaces[{index}]");
                diagnostics.push(Diagnostic::error(at, "invalid namespace", namespace, NAMESPACE_NAME));
            }
        }
        let selector = match self.machine_selector.clone().map(Selector::try_from) {
            None => Selector::default(),
            Some(Ok(selector)) => selector,
            Some(Err(ParseExpressionError(problem))) => {
                let expected = "matchLabels and matchExpressions with the operators In, NotIn, Exists and DoesNotExist";
                diagnostics.push(Diagnostic::error("machineSelector", "invalid selector", &problem, expected));
                Selector::default()
            }
        };
        let namespaces = self.namespaces.clone();
        let pool = MacPool { name: name.to_owned(), ranges, namespaces, selector };
        (Some(pool).filter(|_| !diagnostics.has_errors()), diagnostics)
    }

    /// Reports the values in the specification that the schema of this version does not allow. An API server stored
    /// them under an earlier schema.
    #[must_use]
    pub fn beyond_schema(&self) -> Diagnostics {
        beyond(&POOL, self)
    }

    fn check_ranges(&self, diagnostics: &mut Diagnostics) -> Vec<MacRange> {
        if self.ranges.is_empty() {
            diagnostics.push(Diagnostic::error("ranges", "empty list", "[]", "at least one range"));
        }
        if self.ranges.len() > Self::MAX_RANGES {
            let expected = format!("at most {}", Self::MAX_RANGES);
            diagnostics.push(Diagnostic::error("ranges", "too many", self.ranges.len(), &expected));
        }
        let mut ranges: Vec<MacRange> = Vec::new();
        for (index, text) in self.ranges.iter().enumerate().take(Self::MAX_RANGES) {
            let at = format!("ranges[{index}]");
            let range = match MacRange::parse(text) {
                Ok(range) => range,
                Err((problem, expected)) => {
                    diagnostics.push(Diagnostic::error(at, problem, text, expected));
                    continue;
                }
            };
            if !range.is_local() && !self.allow_universally_administered {
                let expected = "a first octet such as 02, or allowUniversallyAdministered: true";
                diagnostics.push(Diagnostic::error(&at, "universally administered range", text, expected));
            }
            if let Some(other) = ranges.iter().find(|other| other.common(&range).is_some()) {
                let expected = format!("no address of {other}");
                diagnostics.push(Diagnostic::error(&at, "overlapping range", text, &expected));
            }
            ranges.push(range);
        }
        ranges.sort_by_key(|range| range.first);
        ranges
    }
}

// === impl MacPool ===

impl MacPool {
    /// Name of the pool.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Namespaces of the machines that the pool serves.
    #[must_use]
    pub fn namespaces(&self) -> &[String] {
        &self.namespaces
    }

    /// Number of addresses of the pool.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.ranges.iter().map(|range| range.last - range.first + 1).sum()
    }

    /// Maximum number of addresses of the pool that one namespace keeps: for its guests if the pool does not serve the
    /// namespace, and the same number for its guests that migrated to another cluster.
    #[must_use]
    pub fn share(&self) -> u64 {
        (self.total() / 4).max(1)
    }

    /// Whether an address is in the pool.
    #[must_use]
    pub fn contains(&self, address: MacAddr) -> bool {
        let number = number(address);
        self.ranges.iter().any(|range| (range.first..=range.last).contains(&number))
    }

    /// Returns the addresses of the pool, lowest first.
    pub fn addresses(&self) -> impl Iterator<Item = MacAddr> {
        self.ranges.iter().flat_map(|range| range.first..=range.last).map(address)
    }

    /// Whether the pool serves the VirtualMachine with this metadata.
    #[must_use]
    pub fn serves(&self, machine: &ObjectMeta) -> bool {
        let none = std::collections::BTreeMap::new();
        let is_here = machine.namespace.as_ref().is_some_and(|namespace| self.namespaces.contains(namespace));
        is_here && self.selector.matches(machine.labels.as_ref().unwrap_or(&none))
    }

    /// Returns the addresses that both pools have, as a sentence with the names of both pools. `None`: the pools have
    /// no common address.
    #[must_use]
    pub fn overlap(&self, other: &Self) -> Option<String> {
        let common = |range: &MacRange| other.ranges.iter().filter_map(|of_other| range.common(of_other)).collect();
        let common: Vec<String> =
            self.ranges.iter().flat_map(|range| -> Vec<MacRange> { common(range) }).map(|it| it.to_string()).collect();
        let first = common.first()?;
        let further = match common.len() - 1 {
            0 => String::new(),
            further => format!(" and {further} more"),
        };
        let mut names = [self.name(), other.name()];
        names.sort_unstable();
        let [one, two] = names;
        Some(format!("MACPools {one} and {two} both have {first}{further}, expected no common address"))
    }
}

// === impl MacRange ===

impl MacRange {
    /// Parses `first-last`. `Err`: the problem and the expected value.
    fn parse(text: &str) -> Result<Self, (&'static str, &'static str)> {
        let parse = |text: &str| {
            let octets = parse_octets(text)?;
            Some((octets[0], number(MacAddr::from(octets))))
        };
        let invalid = ("invalid range", "first-last, such as 02:00:00:00:00:00-02:00:00:00:ff:ff");
        let (first, last) = text.split_once('-').ok_or(invalid)?;
        let ((octet, first), (last_octet, last)) = parse(first).zip(parse(last)).ok_or(invalid)?;
        if first > last {
            return Err(("reversed range", "first-last with the lower address first"));
        }
        if first == 0 {
            return Err(("zero address in a range", "addresses from 02:00:00:00:00:00"));
        }
        // A range from one even first octet to another contains an odd first octet, so it contains multicast addresses.
        if octet & 1 == 1 || octet != last_octet {
            return Err(("multicast addresses in a range", "one even first octet, such as 02, 06, 0a or 0e"));
        }
        Ok(Self { first, last })
    }

    fn is_local(&self) -> bool {
        address(self.first).octets()[0] & 2 == 2
    }

    fn common(&self, other: &Self) -> Option<Self> {
        let (first, last) = (self.first.max(other.first), self.last.min(other.last));
        (first <= last).then_some(Self { first, last })
    }
}

/// Parses six pairs of hexadecimal digits with colons between them. The octets of a multicast address are parsed, too.
fn parse_octets(text: &str) -> Option<[u8; 6]> {
    let mut octets = [0; 6];
    let mut pairs = text.split(':');
    for octet in &mut octets {
        let pair = pairs.next().filter(|pair| pair.len() == 2 && pair.bytes().all(|byte| byte.is_ascii_hexdigit()))?;
        *octet = u8::from_str_radix(pair, 16).ok()?;
    }
    pairs.next().is_none().then_some(octets)
}

impl std::fmt::Display for MacRange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.first == self.last {
            write!(f, "{}", address(self.first))
        } else {
            write!(f, "{}-{}", address(self.first), address(self.last))
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn check(spec: Value) -> Result<MacPool, Vec<String>> {
        let spec: MacPoolSpec = serde_json::from_value(spec).unwrap();
        let (pool, diagnostics) = spec.check("p");
        pool.ok_or_else(|| diagnostics.kept().iter().map(ToString::to_string).collect())
    }

    fn ranges(ranges: &[&str]) -> Result<MacPool, Vec<String>> {
        check(json!({"ranges": ranges, "namespaces": ["n"]}))
    }

    fn error(range: &str) -> String {
        ranges(&[range]).unwrap_err().join("\n")
    }

    #[test]
    fn a_pool_has_every_address_of_its_ranges() {
        let pool = ranges(&["02:00:00:00:01:00-02:00:00:00:01:00", "02:00:00:00:00:fe-02:00:00:00:00:ff"]).unwrap();
        let all: Vec<String> = pool.addresses().map(|address| address.to_string()).collect();
        assert_eq!(all, ["02:00:00:00:00:fe", "02:00:00:00:00:ff", "02:00:00:00:01:00"]);
        assert_eq!(pool.total(), 3);
        assert!(pool.contains(MacAddr::new(2, 0, 0, 0, 1, 0)) && !pool.contains(MacAddr::new(2, 0, 0, 0, 1, 1)));
        assert_eq!(ranges(&["02:00:00:00:00:00-02:ff:ff:ff:ff:ff"]).unwrap().total(), 1 << 40);
    }

    #[test]
    fn text_that_is_not_a_range_is_an_error() {
        for text in ["", "02:00:00:00:00:00", "x-y", "02-00-00-00-00-00", "02:00:00:00:00:00:00-02:00:00:00:00:01"] {
            let expected = format!(
                "ranges[0]: invalid range {text:?}, expected first-last, such as 02:00:00:00:00:00-02:00:00:00:ff:ff"
            );
            assert_eq!(error(text), expected);
        }
    }

    #[test]
    fn a_reversed_range_is_an_error() {
        let expected = "ranges[0]: reversed range \"02:00:00:00:00:02-02:00:00:00:00:01\", expected first-last with the \
                        lower address first";
        assert_eq!(error("02:00:00:00:00:02-02:00:00:00:00:01"), expected);
    }

    #[test]
    fn a_range_with_multicast_addresses_is_an_error() {
        for text in ["01:00:5e:00:00:00-01:00:5e:00:00:01", "02:00:00:00:00:00-06:00:00:00:00:00"] {
            let expected = format!(
                "ranges[0]: multicast addresses in a range {text:?}, expected one even first octet, such as 02, 06, 0a or 0e"
            );
            assert_eq!(error(text), expected);
        }
    }

    #[test]
    fn a_range_with_the_zero_address_is_an_error() {
        let expected = "ranges[0]: zero address in a range \"00:00:00:00:00:00-00:00:00:00:00:01\", expected addresses \
                        from 02:00:00:00:00:00";
        assert_eq!(error("00:00:00:00:00:00-00:00:00:00:00:01"), expected);
    }

    #[test]
    fn a_universally_administered_range_needs_the_member_that_allows_it() {
        let range = "52:54:00:00:00:00-52:54:00:00:00:ff";
        assert_eq!(ranges(&[range]).unwrap().total(), 256);
        let range = "00:16:3e:00:00:00-00:16:3e:00:00:ff";
        let expected = "ranges[0]: universally administered range \"00:16:3e:00:00:00-00:16:3e:00:00:ff\", expected a \
                        first octet such as 02, or allowUniversallyAdministered: true";
        assert_eq!(error(range), expected);
        let allowed = json!({"ranges": [range], "namespaces": ["n"], "allowUniversallyAdministered": true});
        assert_eq!(check(allowed).unwrap().total(), 256);
    }

    #[test]
    fn all_mistakes_in_a_mac_pool_are_reported_together() {
        let spec = json!({
            "ranges": ["x", "02:00:00:00:00:00-02:00:00:00:00:0f", "02:00:00:00:00:0f-02:00:00:00:00:10"],
            "namespaces": ["n", "N"],
            "machineSelector": {"matchExpressions": [{"key": "a", "operator": "Near"}]},
        });
        let expected = [
            "machineSelector: invalid selector \"Invalid expression operator\", expected matchLabels and matchExpressions \
             with the operators In, NotIn, Exists and DoesNotExist",
            "namespaces[1]: invalid namespace \"N\", expected the name of a namespace: at most 63 lower case letters, digits and '-', with a \
             letter or digit at both ends",
            "ranges[0]: invalid range \"x\", expected first-last, such as 02:00:00:00:00:00-02:00:00:00:ff:ff",
            "ranges[2]: overlapping range \"02:00:00:00:00:0f-02:00:00:00:00:10\", expected no address of \
             02:00:00:00:00:00-02:00:00:00:00:0f",
        ];
        assert_eq!(check(spec).unwrap_err(), expected);
        let expected = [
            "namespaces: empty list \"[]\", expected at least one namespace",
            "ranges: empty list \"[]\", expected at least one range",
        ];
        assert_eq!(check(json!({"ranges": [], "namespaces": []})).unwrap_err(), expected);
    }

    #[test]
    fn an_overlap_names_both_pools_and_their_common_addresses() {
        let pool = |name: &str, ranges: &[&str]| {
            let spec = MacPoolSpec {
                ranges: ranges.iter().map(|range| (*range).to_owned()).collect(),
                namespaces: vec!["n".to_owned()],
                ..MacPoolSpec::default()
            };
            spec.check(name).0.unwrap()
        };
        let one = pool("b", &["02:00:00:00:00:00-02:00:00:00:00:0f", "02:00:00:00:01:00-02:00:00:00:01:0f"]);
        let other = pool("a", &["02:00:00:00:00:0f-02:00:00:00:01:00"]);
        let expected = "MACPools a and b both have 02:00:00:00:00:0f and 1 more, expected no common address";
        assert_eq!(one.overlap(&other).as_deref(), Some(expected));
        assert_eq!(one.overlap(&pool("c", &["06:00:00:00:00:00-06:00:00:00:00:0f"])), None);
    }

    #[test]
    fn a_pool_serves_machines_of_its_namespaces_with_the_labels_of_its_selector() {
        let machine = |namespace: &str, labels: Value| -> ObjectMeta {
            serde_json::from_value(json!({"namespace": namespace, "name": "w", "labels": labels})).unwrap()
        };
        let range = ["02:00:00:00:00:00-02:00:00:00:00:0f"];
        let all = check(json!({"ranges": range, "namespaces": ["n"]})).unwrap();
        let some =
            json!({"ranges": range, "namespaces": ["n"], "machineSelector": {"matchLabels": {"role": "worker"}}});
        let some = check(some).unwrap();
        let worker = machine("n", json!({"role": "worker"}));
        assert!(all.serves(&worker) && some.serves(&worker));
        let other = machine("n", json!({}));
        assert!(all.serves(&other) && !some.serves(&other));
        let elsewhere = machine("m", json!({"role": "worker"}));
        assert!(!all.serves(&elsewhere) && !some.serves(&elsewhere));
    }

    #[test]
    fn the_name_of_a_lease_has_one_spelling() {
        let address = MacAddr::new(2, 0, 0, 0, 0, 0xab);
        assert_eq!(mac_lease_name(address), "02-00-00-00-00-ab.mac");
        assert_eq!(parse_mac_lease_name("02-00-00-00-00-ab.mac"), Some(address));
        for name in ["02-00-00-00-00-AB.mac", "02:00:00:00:00:ab.mac", "02-00-00-00-00-ab", "10-0-0-5.default"] {
            assert_eq!(parse_mac_lease_name(name), None, "{name}");
        }
    }
}
