//! Compares glowplug with cloud-init, the established reader of these documents.
//!
//! glowplug and Debian 12's cloud-init read the same document, and the test compares the two meanings completely.
//! `docs/cloud-init.md` has a row for each intended difference, and the code of the row undoes the difference here. Any
//! other difference fails the test.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a helper of a test may fail the test")]

mod host;
mod meaning;
mod program;
mod rows;
mod written;
mod yaml;

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use glowplug::diagnostic::{Diagnostic, Diagnostics, Severity};
use glowplug::formats::{Format, Meaning, read_network, value, write_network_config};
use serde_json::Value;

use self::meaning::is_refused;
pub(crate) use self::program::VERSION as CLOUD_INIT_VERSION;
use self::program::{CloudInit, Question};
use self::rows::{Row, Undo};
use crate::support::random::Random;
use crate::support::{documents, network_config, seeds_of};

/// Seeds of the generated documents of each kind. `CLOUD_INIT_SEEDS=17..18` sets other seeds, for example to repeat a
/// failure. The test then does not check that each row is needed.
const SEEDS: std::ops::Range<u64> = 0..700;

/// Number of disagreements after which the test stops. A few show whether all disagreements have the same cause.
const DISAGREEMENTS: usize = 5;

struct Document {
    /// Name of the document in messages: the fixture, or the kind and the seed.
    name: String,
    text: String,
    /// Values of the document.
    tree: Value,
    /// Whether glowplug may reject the document for an error that a row allows. Generated documents are never rejected.
    may_be_refused: bool,
}

/// Rows that have been needed so far. Without such a row, the two programs disagree about at least one document.
#[derive(Default)]
struct Met(BTreeSet<&'static str>);

/// A document, and the network that cloud-init reads from it.
struct Case<'d> {
    document: &'d Document,
    is_openstack: bool,
    /// Meaning of the document for cloud-init, before any row is applied.
    understood: Value,
}

/// Compares the two meanings of a document, and returns the difference, if any.
fn disagreement(cloud_init: &mut CloudInit, document: &Document, met: &mut Met) -> Option<String> {
    let reading = read_network(document.text.as_bytes());
    let is_openstack = match reading.format {
        Some(format) => format == Format::NetworkData,
        None => ["links", "networks", "services"].iter().any(|name| document.tree.get(name).is_some()),
    };
    let ours = comparable(meaning::of(&reading), is_openstack);
    let (read, understood) = cloud_init.ask(is_openstack, Question::Text(&document.text));
    // The rows apply only if cloud-init has read the values of the document.
    let is_row = |row: &Row| matches!(row.undo, Undo::Text(is_met) if is_met(&document.text));
    if read != document.tree && !rows::all(is_openstack).iter().any(is_row) {
        return Some(report(document, &document.tree, &read, &[]));
    }
    let theirs = comparable(understood.clone(), is_openstack);
    if ours == theirs || document.may_be_refused && is_refused(&ours) && is_refused(&theirs) {
        return None;
    }
    if is_refused(&ours) {
        let errors = reading.diagnostics.kept().iter().filter(|diagnostic| diagnostic.severity == Severity::Error);
        let row = |diagnostic: &Diagnostic| {
            rows::REFUSED.iter().find(|(_, problem)| diagnostic.problem().starts_with(problem))
        };
        return match errors.map(row).collect::<Option<Vec<_>>>() {
            Some(rows) if document.may_be_refused => {
                met.0.extend(rows.into_iter().map(|(id, _)| *id));
                None
            }
            _ => Some(report(document, &ours, &theirs, &[])),
        };
    }
    let case = Case { document, is_openstack, understood };
    let (undone, used) = case.undone(cloud_init, None);
    if ours != undone {
        return Some(report(document, &ours, &undone, &used));
    }
    for id in used {
        if !met.0.contains(id) && case.undone(cloud_init, Some(id)).0 != ours {
            met.0.insert(id);
        }
    }
    None
}

impl Case<'_> {
    /// Applies all rows except `without`. Returns cloud-init's meaning after the rows, and the rows that changed
    /// something.
    fn undone(&self, cloud_init: &mut CloudInit, without: Option<&str>) -> (Value, Vec<&'static str>) {
        let rows = || rows::all(self.is_openstack).iter().filter(|row| Some(row.id) != without);
        let mut used = Vec::new();
        let mut tree = self.document.tree.clone();
        for row in rows() {
            let is_used = match row.undo {
                Undo::Document(change) | Undo::Both(change, _) => {
                    let before = tree.clone();
                    change(&mut tree);
                    tree != before
                }
                Undo::Text(is_met) => is_met(&self.document.text),
                Undo::Understood(_) => false,
            };
            used.extend(is_used.then_some(row.id));
        }
        let mut understood = if used.is_empty() {
            self.understood.clone()
        } else {
            cloud_init.ask(self.is_openstack, Question::Tree(&tree)).1
        };
        if is_refused(&understood) {
            return (understood, used);
        }
        for row in rows() {
            if let Undo::Understood(change) | Undo::Both(_, change) = row.undo {
                let before = understood.clone();
                change(&self.document.tree, &mut understood);
                used.extend((understood != before).then_some(row.id));
            }
        }
        (comparable(understood, self.is_openstack), used)
    }
}

/// Removes those parts of a meaning that have no effect, and sorts the name servers and search domains of an OpenStack
/// document.
fn comparable(mut meaning: Value, is_openstack: bool) -> Value {
    if let Some(links) = meaning.get("links").and_then(Value::as_object) {
        let is_empty = |list: &Value| *list == Value::Array(Vec::new());
        let is_used = |key: &str| {
            let has = |link: &Value| link["ports"].as_array().is_some_and(|ports| ports.iter().any(|port| port == key));
            links.iter().any(|(other, link)| other != key && other.contains(key) || has(link))
        };
        // A NIC without settings has no effect, whether or not the document names the NIC.
        let asks = |key: &str, link: &Value| {
            key.contains(' ')
                || ["mtu", "mac", "dynamic6", "accept_ra"].iter().any(|name| !link[name].is_null())
                || ["addresses", "routes"].iter().any(|name| !is_empty(&link[name]))
                || link["dhcp4"] == true
                || ["servers", "search"].iter().any(|name| !is_empty(&link["dns"][name]))
                // Exception: another link refers to this NIC by a name other than its key.
                || !link["name"].is_null() && link["name"] != key && is_used(key)
        };
        let left: serde_json::Map<String, Value> =
            links.iter().filter(|(key, link)| asks(key, link)).map(|(key, link)| (key.clone(), link.clone())).collect();
        meaning["links"] = left.into();
    }
    if is_openstack && let Some(dns) = meaning.get_mut("dns").and_then(Value::as_object_mut) {
        // cloud-init orders name servers by link, but glowplug by network.
        for list in dns.values_mut().filter_map(Value::as_array_mut) {
            list.sort_unstable_by_key(ToString::to_string);
            list.dedup();
        }
    }
    meaning
}

fn report(document: &Document, ours: &Value, theirs: &Value, used: &[&str]) -> String {
    let Document { name, text, .. } = document;
    format!(
        "{name}\n{text}\n=== rows applied: {}\n=== glowplug\n{ours:#}\n=== cloud-init\n{theirs:#}\n{}\n",
        used.join(" "),
        difference("", ours, theirs).join("\n")
    )
}

/// Returns the paths at which two meanings differ.
fn difference(place: &str, ours: &Value, theirs: &Value) -> Vec<String> {
    match (ours, theirs) {
        (Value::Object(a), Value::Object(b)) => {
            let names: BTreeSet<&String> = a.keys().chain(b.keys()).collect();
            let of = |object: &serde_json::Map<String, Value>, name: &str| {
                object.get(name).cloned().unwrap_or(Value::String("nothing".into()))
            };
            names
                .into_iter()
                .flat_map(|name| difference(&format!("{place}.{name}"), &of(a, name), &of(b, name)))
                .collect()
        }
        _ if ours == theirs => Vec::new(),
        _ => vec![format!("{place}: glowplug {ours}, cloud-init {theirs}")],
    }
}

fn openstack(seed: u64) -> Document {
    let tree = documents::case(seed).document;
    let text = serde_json::to_string_pretty(&tree).unwrap();
    Document { name: format!("openstack, seed {seed}"), text, tree, may_be_refused: false }
}

fn network_config(version: u64, seed: u64) -> Document {
    let tree = network_config::tree(seed, version);
    let mut random = Random(seed);
    let text = if random.chance(1, 4) {
        serde_json::to_string_pretty(&tree).unwrap()
    } else {
        yaml::spell(&tree, &mut random)
    };
    Document { name: format!("version {version}, seed {seed}"), text, tree, may_be_refused: false }
}

/// Returns the network-config that the host writes for a NoCloud drive from an OpenStack document, and the limitations
/// that the host reports.
fn converted(openstack: &Document) -> (Document, Vec<Diagnostic>) {
    let Meaning::Network(network) = read_network(openstack.text.as_bytes()).meaning else {
        panic!("{}: no network", openstack.name)
    };
    let (text, limits) = match write_network_config(&network) {
        Ok(written) => written,
        Err(diagnostics) => panic!("{}\n{}\n{diagnostics}", openstack.name, openstack.text),
    };
    let tree = serde_json::from_str(&text).unwrap();
    let name = format!("{}, as network-config", openstack.name);
    (Document { name, text, tree, may_be_refused: false }, limits)
}

fn written() -> impl Iterator<Item = Document> {
    let document = |text: &&str| Document {
        name: "written".to_owned(),
        tree: serde_json::from_str(text).unwrap(),
        text: (*text).to_owned(),
        may_be_refused: true,
    };
    written::DOCUMENTS.iter().map(document)
}

fn fixtures() -> Vec<Document> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures");
    let entries = |directory| fs::read_dir(root.join(directory)).unwrap().map(|entry| entry.unwrap().path());
    let mut paths: Vec<PathBuf> =
        entries("guest").map(|drive| drive.join("openstack/latest/network_data.json")).collect();
    paths.extend(entries("documents"));
    paths.sort();
    let document = |path: PathBuf| {
        let text = fs::read_to_string(&path).unwrap();
        Document {
            name: path.display().to_string(),
            tree: tree(&value::parse(text.as_bytes(), &mut Diagnostics::default()).unwrap()),
            text,
            may_be_refused: true,
        }
    };
    paths.into_iter().map(document).collect()
}

/// Converts the values that the parser of glowplug has read.
fn tree(value: &value::Value) -> Value {
    match value {
        value::Value::Array(items) => items.iter().map(tree).collect(),
        value::Value::Object(object) => {
            object.members().into_iter().map(|(name, value)| (name.to_owned(), tree(value))).collect()
        }
        value::Value::Null => Value::Null,
        value::Value::Bool(switch) => (*switch).into(),
        value::Value::Integer(number) => (*number).into(),
        other => other.to_string().into(),
    }
}

#[test]
fn cloud_init_and_glowplug_read_the_same_network_or_a_row_explains_the_difference() {
    let mut cloud_init = CloudInit::start();
    let mut met = Met::default();
    let asked = seeds_of("CLOUD_INIT_SEEDS");
    let mut disagreements = Vec::new();
    let fixtures: Vec<Document> =
        if asked.is_none() { fixtures().into_iter().chain(written()).collect() } else { Vec::new() };
    let generated = asked.clone().unwrap_or(SEEDS).flat_map(|seed| {
        let openstack = openstack(seed);
        let (converted, _) = converted(&openstack);
        [openstack, converted, network_config(1, seed), network_config(2, seed)]
    });
    for document in fixtures.into_iter().chain(generated) {
        disagreements.extend(disagreement(&mut cloud_init, &document, &mut met));
        if disagreements.len() >= DISAGREEMENTS {
            break;
        }
    }
    assert!(disagreements.is_empty(), "{}", disagreements.join("\n"));
    if asked.is_none() {
        let stale: BTreeSet<&str> = rows::ids().difference(&met.0).copied().collect();
        assert!(stale.is_empty(), "rows that no document needs: {stale:?}");
    }
}

#[test]
fn a_document_in_yaml_means_the_same_as_in_json() {
    for document in SEEDS.flat_map(|seed| [network_config(1, seed), network_config(2, seed)]) {
        let json = document.tree.to_string();
        let [yaml, json] = [&document.text, &json].map(|text| meaning::of(&read_network(text.as_bytes())));
        assert_eq!(yaml, json, "{}\n{}", document.name, document.text);
    }
}

#[test]
fn a_network_config_of_the_host_means_the_same_as_its_openstack_document() {
    let mut written = 0;
    for openstack in SEEDS.map(openstack) {
        let (converted, limits) = converted(&openstack);
        let [expected, found] = [&openstack, &converted]
            .map(|document| without_form(meaning::of(&read_network(document.text.as_bytes())), &limits));
        assert_eq!(expected, found, "{}\n{}\n{}\n{limits:?}", openstack.name, openstack.text, converted.text);
        written += 1;
    }
    assert_eq!(written, 700);
}

/// Removes from a meaning what the two formats express differently: which link has a name server, the names of VLANs,
/// how router advertisements are requested, and the mark `on-link`. Also removes the options and default routes that
/// the diagnostics `limits` name.
fn without_form(mut meaning: Value, limits: &[Diagnostic]) -> Value {
    let is_ordered = limits.iter().any(|limit| limit.to_string().contains("another default route comes first"));
    let mut dns = BTreeSet::new();
    let mut take = |of: &mut Value| {
        let lists = ["servers", "search"].map(|name| of["dns"][name].as_array().cloned().unwrap_or_default());
        dns.extend(lists.into_iter().flatten().map(|value| value.to_string()));
        of["dns"] = Value::Null;
    };
    take(&mut meaning);
    for (key, link) in meaning["links"].as_object_mut().into_iter().flatten() {
        take(link);
        if key.starts_with("vlan ") {
            link["name"] = Value::Null;
        }
        if link["dynamic6"] != "dhcp6" && (!link["dynamic6"].is_null() || link["accept_ra"] == true) {
            (link["dynamic6"], link["accept_ra"]) = ("router advertisements".into(), Value::Null);
        }
        let routes = link["routes"].as_array_mut().unwrap();
        for route in routes.iter_mut() {
            *route = route.as_str().unwrap().trim_end_matches(" on-link").into();
        }
        if is_ordered {
            routes.retain(|route| !["0.0.0.0/0", "::/0"].iter().any(|all| route.as_str().unwrap().starts_with(all)));
        }
        if let Some(options) = link.get_mut("options").and_then(Value::as_object_mut) {
            options.retain(|name, _| !limits.iter().any(|limit| limit.path.ends_with(&format!(".bond_{name}"))));
        }
    }
    meaning["dns"] = dns.into_iter().collect();
    meaning
}

#[test]
fn the_table_of_differences_has_a_line_for_every_row() {
    let table = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/cloud-init.md")).unwrap();
    let lines = table.lines().filter_map(|line| line.strip_prefix("| `")?.split_once('`'));
    let listed: Vec<&str> = lines.map(|(id, _)| id).collect();
    let once: BTreeSet<&str> = listed.iter().copied().collect();
    assert_eq!((once.len(), once), (listed.len(), rows::ids()));
}

#[test]
fn a_seed_always_gives_the_same_document() {
    let [first, second] = [2, 2].map(|version| network_config(version, 17).text);
    assert_eq!(first, second);
}
