//! Checks that the pages of `docs` for users of the controller agree with the program.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use glowplug::host::pool::Pool;
use glowplug::host::records::ANNOTATION_PREFIX;
use glowplug_controller::cluster::key::PoolId;
use glowplug_controller::cluster::object::Object;
use glowplug_controller::kinds::cluster_api::PoolRef;
use glowplug_controller::kinds::pool::{LeaseSpec, PoolSpec, definitions};
use glowplug_controller::kinds::virtual_machine::{LEFT_ALONE_ANNOTATION, NODE_POOL_LABEL};
use glowplug_controller::metrics::{MacPoolCount, Metrics};
use glowplug_controller::pools::facts::PoolObject;
use glowplug_controller::pools::reference::{Decision, NewMachine, admit_new};
use glowplug_controller::pools::selection::{MachinePool, Selection};
use glowplug_controller::webhook::{Change, validate, warn_of_holders};
use pnet_base::MacAddr;
use serde_json::{Value, json};

use crate::support::manifests::{config, documents};

fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Reads the page about pools and claims, which these tests call the guide.
fn guide() -> String {
    read("../docs/pools.md")
}

/// Reads the page about conditions, events and metrics.
fn monitoring() -> String {
    read("../docs/monitoring.md")
}

/// Returns the content of all Rust files below these folders of the package.
fn sources(folders: &[&str]) -> String {
    let mut sources = String::new();
    let mut folders: Vec<_> = folders.iter().map(|folder| Path::new(env!("CARGO_MANIFEST_DIR")).join(folder)).collect();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                sources += &fs::read_to_string(path).unwrap();
            }
        }
    }
    sources
}

/// Returns the code blocks of a page that have this language.
fn blocks<'a>(guide: &'a str, fence: &str) -> Vec<&'a str> {
    let start = format!("\n```{fence}\n");
    guide.split(start.as_str()).skip(1).map(|rest| rest.split("\n```").next().unwrap_or_default()).collect()
}

/// Returns the strings in backquotes in the first two cells of the table rows below a heading. Leaves out rows whose
/// first non-empty cell does not begin with such a string.
fn named<'a>(guide: &'a str, heading: &str) -> Vec<&'a str> {
    let (_, section) = guide.split_once(&format!("\n## {heading}\n")).unwrap_or_else(|| panic!("no heading {heading}"));
    let section = section.split("\n## ").next().unwrap_or_default();
    let rows = section.lines().filter(|line| line.starts_with("| `") || line.starts_with("| | `"));
    let cells = rows.flat_map(|row| row.split('|').skip(1).take(2));
    cells.flat_map(|cell| cell.split('`').skip(1).step_by(2)).collect()
}

/// Returns the specification of the only StaticIPPool in the guide. The tests check it as pool `clusters/workers`.
fn pool() -> PoolSpec {
    let guide = guide();
    let objects = blocks(&guide, "yaml").into_iter().map(|block| serde_saphyr::from_str::<Value>(block).unwrap());
    let mut pools = objects.filter(|object| object["kind"] == "StaticIPPool");
    let pool = pools.next().unwrap();
    assert!(pools.next().is_none());
    serde_json::from_value(pool["spec"].clone()).unwrap()
}

fn id() -> PoolId {
    PoolId { namespace: Some("clusters".to_owned()), name: "workers".to_owned() }
}

#[test]
fn the_pool_of_the_guide_is_valid_and_has_the_number_of_addresses_in_the_guide() {
    let (pool, diagnostics) = id().check(&pool());
    let total: u128 = pool.unwrap().spaces().map(|space| space.allocatable()).sum();
    assert_eq!((total, diagnostics.kept()), (41, &[][..]));
    assert!(guide().contains("This pool has 41 IPv4 addresses"));
}

#[test]
fn the_pre_allocations_in_the_guide_are_valid() {
    let guide = guide();
    let mut specs = blocks(&guide, "yaml").into_iter().map(|block| serde_saphyr::from_str::<Value>(block).unwrap());
    let mut spec =
        specs.find_map(|object| object["spec"].get("preAllocations").map(|_| object["spec"].clone())).unwrap();
    spec["network"] = "infra/vlan10".into();
    spec["machineNetwork"] = json!([{"cidr": "192.168.1.0/24"}, {"cidr": "2620:0:860:2::/64"}]);
    let (pool, diagnostics) = id().check(&serde_json::from_value(spec).unwrap());
    let kept: Vec<String> = pool.unwrap().pre_allocated("clusters", "db-1").iter().map(ToString::to_string).collect();
    assert_eq!((kept, diagnostics.kept()), (vec!["192.168.1.5".to_owned(), "2620:0:860:2::20".to_owned()], &[][..]));
}

#[test]
fn the_pools_and_the_reasons_on_the_page_about_address_sources_are_valid() {
    let page = read("../docs/address-sources.md");
    let pools: Vec<PoolSpec> = blocks(&page, "yaml")
        .into_iter()
        .map(|block| serde_saphyr::from_str::<Value>(block).unwrap())
        .map(|object| serde_json::from_value(object["spec"].clone()).unwrap())
        .collect();
    let verdicts = pools.iter().map(|pool| {
        let (pool, diagnostics) = id().check(pool);
        (pool.map(|pool| pool.is_external()), diagnostics.kept().len())
    });
    assert_eq!(verdicts.collect::<Vec<_>>(), [(Some(true), 0), (Some(true), 0)]);
    let sources = sources(&["src"]);
    let reasons = named(&page, "What you see");
    let reasons = reasons.iter().filter(|reason| reason.starts_with(char::is_uppercase) && !reason.contains(' '));
    let missing: Vec<&&str> = reasons.filter(|reason| !sources.contains(&format!("\"{reason}\""))).collect();
    assert_eq!(missing, [] as [&&str; 0]);
}

#[test]
fn the_pool_and_the_reasons_on_the_page_about_ipam_claims_agree_with_the_program() {
    let page = read("../docs/ipam-claims.md");
    let pool: Value = serde_saphyr::from_str(blocks(&page, "yaml")[0]).unwrap();
    let spec: PoolSpec = serde_json::from_value(pool["spec"].clone()).unwrap();
    let (_, diagnostics) = id().check(&spec);
    assert_eq!((spec.serve_ipam_claims, diagnostics.kept()), (true, &[][..]));
    let sources = sources(&["src"]);
    let reasons = named(&page, "What you see");
    let reasons = reasons.into_iter().filter(|reason| reason.starts_with(char::is_uppercase));
    let missing: Vec<&str> = reasons.filter(|reason| !sources.contains(&format!("\"{reason}\""))).collect();
    assert_eq!(missing, [] as [&str; 0]);
}

#[test]
fn the_refusal_and_the_warning_in_the_guide_are_those_of_the_webhook() {
    let mut wrong = pool();
    wrong.addresses = vec!["192.168.1.10/24".to_owned()];
    wrong.gateway = vec!["192.168.1".to_owned()];
    let refusal = validate(&id(), &Change::Create(wrong), &[]).errors.join("\n");
    let guide = guide();
    let blocks = blocks(&guide, "text");
    let start = "admission webhook \"pools.ipam.glowplug.dev\" denied the request:\n";
    assert!(blocks.contains(&format!("{start}{refusal}").as_str()), "{refusal}");

    let lease: LeaseSpec = serde_json::from_value(json!({
        "network": "infra/vlan10", "address": "192.168.1.10", "prefix": 24, "pool": "clusters/workers",
        "since": "2026-08-14T10:00:00.000000Z",
        "holder": {"kind": "IPAddressClaim", "namespace": "clusters", "name": "worker-0", "uid": "5d30", "interface": "eno101"},
    }))
    .unwrap();
    let new = PoolSpec { addresses: vec!["192.168.1.20-192.168.1.50".to_owned()], ..pool() };
    let change = Change::Update { old: Some(pool()), new: Box::new(new) };
    let warning = warn_of_holders(&id(), &change, [&lease]).unwrap();
    assert!(blocks.contains(&format!("Warning: {warning}").as_str()), "{warning}");
}

#[test]
fn the_kubectl_columns_in_the_guide_are_those_of_the_crds() {
    let guide = guide();
    for kind in ["StaticIPPool", "StaticIPLease"] {
        let definition = definitions().into_iter().find(|definition| definition.spec.names.kind == kind).unwrap();
        let columns = definition.spec.versions[0].additional_printer_columns.iter().flatten();
        let columns = columns.filter(|column| column.priority.unwrap_or_default() == 0);
        let header: Vec<String> =
            ["NAME".to_owned()].into_iter().chain(columns.map(|column| column.name.to_uppercase())).collect();
        let is_header = |line: &str| line.split("  ").map(str::trim).filter(|word| !word.is_empty()).eq(&header);
        assert!(guide.lines().any(is_header), "{header:?}");
    }
}

/// Returns a function that checks whether the program has a metric of this name.
fn metrics() -> impl Fn(&&str) -> bool {
    let metrics = Metrics::default();
    metrics.count_request("GET", Some(200));
    metrics.set_macs([(MacAddr::new(2, 0, 0, 0, 0, 1), 2)], [("workers", MacPoolCount::default())], 0);
    // The metrics of pools are in the library, not in the controller.
    let text = metrics.text() + &read("../src/host/metrics.rs");
    move |name| text.contains(&format!("# TYPE {} ", name.trim_end_matches("_total").trim_end_matches("_info")))
}

/// Returns the strings of all members with this name, at any depth of a value.
fn strings<'v>(value: &'v Value, member: &str) -> Vec<&'v str> {
    match value {
        Value::Array(items) => items.iter().flat_map(|item| strings(item, member)).collect(),
        Value::Object(members) => {
            let below = members.values().flat_map(|value| strings(value, member));
            members.get(member).and_then(Value::as_str).into_iter().chain(below).collect()
        }
        _ => Vec::new(),
    }
}

#[test]
fn every_alert_is_on_the_monitoring_page() {
    let alerts = documents(&config("prometheus/alerts.yaml")).remove(0);
    let mut missing = strings(&alerts, "alert");
    let guide = monitoring();
    missing.retain(|alert| !guide.contains(&format!("| `{alert}` |")));
    assert_eq!(missing, [] as [&str; 0]);
}

#[test]
fn every_alert_links_to_a_section_that_names_it() {
    let rules = documents(&config("prometheus/alerts.yaml")).remove(0)["spec"]["groups"][0]["rules"].take();
    let anchor = |heading: &str| -> String {
        let kept = heading.trim().chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-'));
        kept.map(|c| if c == ' ' { '-' } else { c.to_ascii_lowercase() }).collect()
    };
    for rule in rules.as_array().unwrap() {
        let (alert, url) = (rule["alert"].as_str().unwrap(), rule["annotations"]["runbook_url"].as_str().unwrap());
        let (page, section) =
            url.strip_prefix(concat!(env!("CARGO_PKG_HOMEPAGE"), "/")).unwrap().split_once('#').unwrap();
        let text = read(&format!("../{page}"));
        let sections = text.split("\n##").skip(1);
        let is_meant =
            |text: &&str| text.lines().next().is_some_and(|heading| anchor(heading.trim_start_matches('#')) == section);
        let sections: Vec<&str> = sections.filter(is_meant).collect();
        assert_eq!(sections.len(), 1, "{url}");
        assert!(sections[0].contains(&format!("`{alert}`")), "{url} does not name {alert}");
    }
}

#[test]
fn every_reason_and_metric_on_the_monitoring_page_exists_in_the_program() {
    let guide = monitoring();
    // Some of the reasons are constants of the library, not of the controller.
    let sources = sources(&["src", "../src/host"]);
    let standard = ["True", "False", "Unknown"];
    let reasons = ["Conditions", "Events"].iter().flat_map(|heading| named(&guide, heading));
    let mut missing: Vec<&str> =
        reasons.filter(|reason| !standard.contains(reason) && !sources.contains(&format!("\"{reason}\""))).collect();
    let is_there = metrics();
    missing.extend(named(&guide, "Metrics").into_iter().filter(|name| name.contains('_') && !is_there(name)));
    assert_eq!(missing, [] as [&str; 0]);
}

#[test]
fn every_test_that_the_recovery_page_names_exists() {
    let guide = read("../docs/recovery.md");
    let (_, table) = guide.split_once("\n## Tests\n").unwrap();
    let names: Vec<&str> = table.split('`').skip(1).step_by(2).collect();
    assert_eq!(names.len(), 3);
    let sources = sources(&["tests"]);
    let missing: Vec<&&str> = names.iter().filter(|name| !sources.contains(&format!("fn {name}("))).collect();
    assert_eq!(missing, [] as [&&str; 0]);
}

#[test]
fn the_annotations_on_the_page_about_existing_machines_are_those_of_the_program() {
    let page = read("../docs/existing-machines.md");
    let commands = page.lines().filter_map(|line| line.strip_prefix("$ kubectl annotate vm "));
    let keys: Vec<&str> = commands.filter_map(|command| command.split(' ').nth(3)).collect();
    let record = format!("{ANNOTATION_PREFIX}{}='[\"192.168.1.12/24\"]'", Pool::DEFAULT_INTERFACE);
    assert_eq!(keys, [record, format!("{LEFT_ALONE_ANNOTATION}-")]);
}

#[test]
fn the_pool_and_the_refusals_on_the_page_about_hypershift_agree_with_the_program() {
    let page = read("../docs/hypershift.md");
    let yaml = blocks(&page, "yaml")[0];
    let pool: Value = serde_saphyr::from_str(yaml).unwrap();
    let machine = |interfaces: &[(&str, &str, u32)]| -> Object {
        let networks =
            interfaces.iter().map(|(name, network, _)| json!({"name": name, "multus": {"networkName": network}}));
        let devices = interfaces.iter().map(|(name, _, index)| json!({"name": name, "acpiIndex": index}));
        let (networks, devices): (Vec<Value>, Vec<Value>) = (networks.collect(), devices.collect());
        let spec = json!({"networks": networks, "domain": {"devices": {"interfaces": devices}}});
        let metadata = json!({
            "namespace": "clusters-c1", "name": "w-0", "labels": {(NODE_POOL_LABEL): "workers"},
        });
        let object = json!({"metadata": metadata, "spec": {"template": {"spec": spec}}});
        serde_json::from_value(object).unwrap()
    };
    let decide = |pools: &[Value], object: &Object| {
        let pools = pools
            .iter()
            .map(|pool| Arc::new(MachinePool::read(PoolObject::read(serde_json::from_value(pool.clone()).unwrap()))));
        let node_pool =
            json!({"metadata": {"namespace": "clusters", "name": "workers"}, "spec": {"clusterName": "c1"}});
        let selection = Selection::new(pools, [Arc::new(serde_json::from_value(node_pool).unwrap())], None);
        let new = NewMachine { object, is_copy: false, held: &BTreeSet::new(), name: "" };
        match admit_new(new, &selection).unwrap() {
            Decision::Refuse(message) | Decision::Exhausted(message, _) => message,
            other => panic!("{other:?}"),
        }
    };
    let changed = |name: &str, changes: Value| {
        let mut pool = pool.clone();
        pool["metadata"]["name"] = name.into();
        json_patch::merge(&mut pool, &changes);
        pool
    };
    let on_network = machine(&[("iface1", "infra/vlan10", 0)]);
    let two = [changed("a", json!({})), changed("b", json!({}))];
    let other_interface = json!({"spec": {"priority": 10, "interface": "eno102"}});
    let no_overflow = [changed("a", json!({})), changed("b", other_interface)];
    let one_interface = [changed("a", json!({})), changed("b", json!({"spec": {"network": "infra/vlan20"}}))];
    let refusals = [
        decide(&two, &on_network),
        decide(&no_overflow, &on_network),
        decide(&one_interface, &machine(&[("iface1", "infra/vlan10", 0), ("iface2", "infra/vlan20", 0)])),
        decide(std::slice::from_ref(&pool), &machine(&[("iface1", "infra/vlan20", 0)])),
        decide(std::slice::from_ref(&pool), &machine(&[("iface1", "infra/vlan10", 7)])),
        decide(std::slice::from_ref(&pool), &on_network),
    ];
    for refusal in refusals {
        assert!(page.contains(&format!("| `{refusal}` |")), "{refusal}");
    }
}

#[test]
fn every_option_on_the_install_page_exists_in_the_program() {
    let help = Command::new(env!("CARGO_BIN_EXE_glowplug-controller")).args(["run", "--help"]).output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    let guide = read("../docs/install.md");
    let options = named(&guide, "Options").into_iter().filter_map(|option| option.split(' ').next());
    let options: Vec<&str> = options.filter(|option| option.starts_with("--")).collect();
    assert_eq!(options.len(), 10);
    let missing: Vec<&&str> = options.iter().filter(|option| !help.contains(**option)).collect();
    assert_eq!(missing, [] as [&&str; 0]);
}

#[test]
fn the_machine_set_on_the_page_about_vsphere_names_the_pool_on_that_page() {
    let page = read("../docs/vsphere.md");
    let [pool, set] = blocks(&page, "yaml")[..] else { panic!("two blocks") };
    let pools = Pool::parse(pool.as_bytes()).unwrap();
    let set: Value = serde_saphyr::from_str(set).unwrap();
    let device = &set["spec"]["template"]["spec"]["providerSpec"]["value"]["network"]["devices"][0];
    let text = |name: &str| device["addressesFromPools"][0][name].as_str().unwrap().to_owned();
    let claim = PoolRef { api_group: Some(text("group")), kind: text("resource"), name: text("name") };
    let pool = claim.resolve("openshift-machine-api").unwrap();
    assert_eq!([pool.to_string()], [pools[0].name()]);
}
