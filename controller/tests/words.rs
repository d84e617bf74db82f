//! Checks that the status of pools, metrics, alert rules, the dashboard, events and `glowplugctl` use one list of words
//! for the states of addresses and machines: `glowplug::host::counts`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use glowplug::host::Timestamp;
use glowplug::host::counts::Count;
use glowplug::host::ledger::MemoryLedger;
use glowplug::host::metrics;
use glowplug::host::pool::Pool;
use glowplug::host::registry::Registry;
use glowplug_controller::kinds::pool::definitions;
use serde_json::Value;

use crate::support::manifests::{config, documents};

/// Integer members of a status that do not count states of addresses or machines.
const OTHERS: [&str; 3] = ["machines", "notHeld", "observedGeneration"];

fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn words(counts: &[Count]) -> BTreeSet<String> {
    counts.iter().map(|count| count.word().to_owned()).collect()
}

fn all() -> BTreeSet<String> {
    words(&Count::ALL)
}

fn set(words: impl IntoIterator<Item = impl Into<String>>) -> BTreeSet<String> {
    words.into_iter().map(Into::into).collect()
}

/// Returns the values of the label `state` of `glowplug_ippool_addresses`, and the names of the other metrics of pools,
/// without their common prefix and without the suffixes `_addresses` and `_machines`.
fn of_metrics(text: &str) -> (BTreeSet<String>, BTreeSet<String>) {
    let (mut states, mut others) = (BTreeSet::new(), BTreeSet::new());
    for use_of in text.split("glowplug_ippool_").skip(1) {
        let name: String = use_of.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect();
        let selector = use_of[name.len()..].strip_prefix('{').and_then(|rest| rest.split('}').next());
        if name != "addresses" {
            others.insert(name.trim_end_matches("_addresses").trim_end_matches("_machines").to_owned());
            continue;
        }
        let labels = selector.unwrap_or_default().replace('\\', "");
        let values = labels.split("state").skip(1).filter_map(|rest| rest.split('"').nth(1).map(str::to_owned));
        states.extend(values.flat_map(|value| value.split('|').map(str::to_owned).collect::<Vec<_>>()));
    }
    (states, others)
}

#[test]
fn the_metrics_of_pools_use_the_common_words() {
    let pool = br#"{"namespace": "n", "name": "p", "network": "n/net", "addresses": ["10.0.0.8/30"]}"#;
    let mut registry = Registry::open(MemoryLedger::default()).unwrap();
    registry.resize(Pool::parse(pool).unwrap(), &[], Timestamp::UNIX_EPOCH).unwrap();
    let allocator = registry.state().unwrap();
    let (states, others) =
        of_metrics(&metrics::text(allocator, &allocator.usage(Timestamp::UNIX_EPOCH), &BTreeMap::new()));
    assert_eq!(states, words(&Count::STATES));
    assert!(others.is_subset(&all()), "{others:?}");
}

#[test]
fn refused_machines_count_as_waiting_in_the_metrics_and_change_no_other_metric() {
    let pool = br#"{"namespace": "n", "name": "p", "network": "n/net", "addresses": ["10.0.0.8/30"]}"#;
    let mut registry = Registry::open(MemoryLedger::default()).unwrap();
    registry.resize(Pool::parse(pool).unwrap(), &[], Timestamp::UNIX_EPOCH).unwrap();
    let allocator = registry.state().unwrap();
    let mut usage = allocator.usage(Timestamp::UNIX_EPOCH);
    let before = metrics::text(allocator, &usage, &BTreeMap::new());
    usage.get_mut("n/p").unwrap().refused = 2;
    let after = metrics::text(allocator, &usage, &BTreeMap::new());
    let waiting =
        |number| format!("glowplug_ippool_waiting_machines{{cluster=\"\",pool=\"n/p\",network=\"n/net\"}} {number}");
    assert_eq!(after, before.replace(&waiting(0), &waiting(2)));
    assert!(after.contains(&waiting(2)), "{after}");
}

#[test]
fn alerts_and_the_dashboard_use_the_common_words() {
    for file in ["prometheus/alerts.yaml", "prometheus/dashboard.json"] {
        let (states, others) = of_metrics(&read(&format!("config/{file}")));
        assert!(!states.is_empty() && states.is_subset(&words(&Count::STATES)), "{file}: {states:?}");
        assert!(others.is_subset(&all()), "{file}: {others:?}");
    }
}

/// Returns the members below a path of a schema.
fn members<'s>(schema: &'s Value, path: &str) -> impl Iterator<Item = (&'s String, &'s Value)> {
    let at = schema.pointer(&format!("{path}/properties")).unwrap_or_else(|| panic!("{path}"));
    at.as_object().unwrap().iter()
}

#[test]
fn the_status_and_the_columns_of_pools_use_the_common_words() {
    let written = documents(&config("crd/glowplug.yaml"));
    for kind in ["StaticIPPool", "GlobalStaticIPPool"] {
        let definition = written.iter().find(|it| it["spec"]["names"]["kind"] == kind).unwrap();
        let version = &definition["spec"]["versions"][0];
        let status = &version["schema"]["openAPIV3Schema"]["properties"]["status"];
        let families = set(members(status, "/properties/families/items").map(|(name, _)| name));
        let expected = words(&Count::OF_ADDRESSES);
        assert_eq!(families, expected.into_iter().chain(["family".to_owned()]).collect());
        let sums = set(members(status, "/properties/ipAddresses").map(|(name, _)| name));
        assert!(sums.is_subset(&all()), "{sums:?}");
        let counts = members(status, "").filter(|(_, schema)| schema["type"] == "integer").map(|(name, _)| name);
        let others: BTreeSet<String> = set(counts).difference(&all()).cloned().collect();
        assert_eq!(others, set(OTHERS));
        for column in version["additionalPrinterColumns"].as_array().unwrap() {
            let (name, path) = (column["name"].as_str().unwrap(), column["jsonPath"].as_str().unwrap());
            let last = path.rsplit('.').next().unwrap();
            let is_count = column["type"] == "integer" && !OTHERS.contains(&last) || path.contains("families");
            if is_count {
                let count = Count::ALL.into_iter().find(|count| count.word() == last);
                let count = count.unwrap_or_else(|| panic!("{path}"));
                let head = name.to_uppercase();
                assert!(head == count.head() || head.starts_with(&format!("{} IPV", count.head())), "{name}: {path}");
            }
        }
    }
    assert_eq!(definitions().len(), written.len());
}

#[test]
fn glowplugctl_uses_the_common_words() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/host/sessions");
    let (mut heads, mut members, mut states) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    let other_heads = set(["POOL", "NETWORK", "FAMILY"]);
    for file in fs::read_dir(path).unwrap() {
        let text = fs::read_to_string(file.unwrap().path()).unwrap();
        let (mut is_family, mut is_reserved, mut before) = (false, false, None);
        for line in text.lines() {
            let columns = || line.split("  ").map(str::trim).filter(|column| !column.is_empty());
            // Only the tables of `status` and `resize` have both of these columns.
            if columns().any(|column| column == "FAMILY") && columns().any(|column| column == "FREE") {
                heads.extend(columns().filter(|column| !other_heads.contains(*column)).map(str::to_owned));
            }
            // In the table of reserved addresses of `list`, the second column is the state.
            is_reserved = match line {
                line if line.starts_with("RESERVED  ") && line.contains("  STATE  ") => true,
                line if is_reserved && !line.is_empty() && !line.starts_with(['$', '[']) => {
                    states.extend(columns().nth(1).map(str::to_owned));
                    true
                }
                _ => false,
            };
            // In JSON, the counts of a family begin with the member `total`, directly after the member `family`.
            let member = line.trim().strip_prefix('"').and_then(|rest| rest.split_once("\": ")).map(|(name, _)| name);
            is_family = match member {
                Some("total") => before == Some("family"),
                Some(_) => is_family,
                None => false,
            };
            members.extend(member.filter(|_| is_family).map(str::to_owned));
            before = member;
        }
    }
    let of_resize = Count::OF_ADDRESSES.map(Count::head);
    assert_eq!(heads, set(of_resize.into_iter().chain([Count::Waiting.head()])));
    assert_eq!(members, words(&Count::OF_ADDRESSES));
    let reserved = words(&[Count::Excluded, Count::ByRecord, Count::ByReport]);
    assert!(!states.is_empty() && states.is_subset(&reserved), "{states:?}");
}

#[test]
fn events_about_counted_machines_use_the_common_words() {
    let guide = read("../docs/monitoring.md");
    for count in [Count::Outdated, Count::LeftAlone] {
        let word = count.word();
        let reason_end = word[..1].to_uppercase() + &word[1..];
        let is_of = |line: &&str| line.split('`').nth(1).is_some_and(|reason| reason.ends_with(&reason_end));
        assert_eq!(guide.lines().filter(|line| line.starts_with("| `")).filter(is_of).count(), 1, "{reason_end}");
    }
}
