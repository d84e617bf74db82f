//! Reads the pools of files in the same way as `kubectl apply`.

use std::fmt;
use std::fs::File;
use std::io::{self, Read as _, stdin};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail, ensure};
use glowplug::diagnostic::{Diagnostic, FieldPath};
use glowplug::formats::value::{self, Value};
use glowplug::host::claim::{NAMESPACE_NAME, OBJECT_NAME, is_namespace, is_object_name};
use kube::Resource as _;
use serde::Serialize;

use crate::cluster::conditions::head;
use crate::cluster::object::Object;
use crate::kinds::mac_pool::MACPool;
use crate::kinds::pool::{GROUP, GlobalStaticIPPool, StaticIPLease, StaticIPPool};

/// The members that a pool in a file can have.
const MEMBERS: [&str; 5] = ["apiVersion", "kind", "metadata", "spec", "status"];
/// Endings of the names of files that kubectl reads in a folder.
const ENDINGS: [&str; 3] = ["json", "yaml", "yml"];
/// Maximum size of all files together, in bytes.
const MOST: u64 = 4 * 1024 * 1024;
/// Maximum number of values in all documents of a file that has a mistake. Each value takes about 100 bytes of memory.
const MOST_VALUES: usize = 1024 * 1024;
/// Maximum number of documents with a mistake in one file.
const MOST_MISTAKES: usize = 100;

/// The pools of files, in the order of the files, and the mistakes of documents that cannot be read.
#[derive(Debug, Default)]
pub(super) struct Contents {
    /// StaticIPPools and GlobalStaticIPPools.
    pub(super) pools: Vec<Object>,
    pub(super) mac_pools: Vec<Object>,
    pub(super) mistakes: Vec<Mistake>,
}

/// A pool of a file.
enum Read {
    Pool(Object),
    MacPool(Object),
}

/// A mistake that makes a document unusable as a pool.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Mistake {
    /// Name of the file. Absent if there is only one file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// Path of the document in the file. Example: `documents[1].items[0]`, or `document` if the file has only one
    /// document.
    pub document: String,
    /// The mistake. Its path begins at the document.
    pub error: String,
}

/// Whether the path `-` of a command line means standard input.
pub(super) fn is_stdin(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// Reads the pools of JSON and YAML files. `-` is standard input. A folder stands for those of its files that kubectl
/// would read. A StaticIPPool without a namespace gets `namespace`. After a document with a mistake, the other
/// documents are still read.
///
/// # Errors
///
/// A file cannot be read, or no document has a pool. In the second case, the error has every mistake.
pub(super) fn read_pools(paths: &[PathBuf], namespace: &str) -> anyhow::Result<Contents> {
    let (mut files, mut read, mut most) = (Vec::new(), Contents::default(), MOST);
    for path in paths {
        files.extend(files_of(path).with_context(|| format!("reading {}", path.display()))?);
    }
    for path in &files {
        let title = path.display().to_string();
        let text = match is_stdin(path) {
            true => bounded(stdin().lock(), most),
            false => File::open(path).map_err(anyhow::Error::from).and_then(|file| bounded(file, most)),
        };
        let text = text.with_context(|| format!("reading {title}"))?;
        most -= text.len() as u64;
        read.add(&text, namespace, (files.len() > 1).then_some(&title));
    }
    let titles: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
    read.check_any().with_context(|| format!("reading {}", titles.join(", ")))?;
    Ok(read)
}

/// The files of a folder that `kubectl apply` reads, sorted by name. If the path is not a folder, the path itself.
fn files_of(path: &Path) -> anyhow::Result<Vec<PathBuf>> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut files = Vec::new();
    for entry in path.read_dir()? {
        let file = entry?.path();
        let has_ending = file.extension().and_then(|it| it.to_str()).is_some_and(|it| ENDINGS.contains(&it));
        files.extend((has_ending && !file.is_dir()).then_some(file));
    }
    ensure!(!files.is_empty(), "no file in the folder, expected a name that ends with .{}", ENDINGS.join(" or ."));
    files.sort();
    Ok(files)
}

fn bounded(from: impl io::Read, most: u64) -> anyhow::Result<String> {
    let mut text = String::new();
    from.take(most + 1).read_to_string(&mut text)?;
    ensure!(text.len() as u64 <= most, "too large, expected at most {MOST} bytes in all files");
    Ok(text)
}

/// Removes the members whose value is null, as API servers do.
fn remove_nulls(value: &mut serde_json::Value) {
    match value {
        serde_json::Value::Object(members) => {
            members.retain(|_, member| !member.is_null());
            members.values_mut().for_each(remove_nulls);
        }
        serde_json::Value::Array(items) => items.iter_mut().for_each(remove_nulls),
        _ => {}
    }
}

fn member<'v>(value: &'v Value, name: &str) -> Option<&'v Value> {
    match value {
        Value::Object(members) => members.get(name),
        _ => None,
    }
}

/// Parses the documents of a file. Each document that cannot be parsed becomes one error. The documents beyond the
/// limits become one error together.
fn documents(text: &str) -> Vec<Result<Value, Diagnostic>> {
    let parse = |text: &str| value::parse_documents(text.as_bytes());
    if let Ok(all) = parse(text) {
        return all.into_iter().map(Ok).collect();
    }
    let (mut documents, mut values, mut mistakes) = (Vec::new(), 0, 0);
    for (line, part) in parts(text).into_iter().filter(|(_, part)| !part.trim().is_empty()) {
        match parse(part) {
            Ok(all) => {
                values += all.iter().map(number_of_values).sum::<usize>();
                documents.extend(all.into_iter().map(Ok));
            }
            // Parses the document again, with an empty line for each line that precedes it in the file, so that the
            // error names the line in the file.
            Err(error) => {
                mistakes += 1;
                documents.push(Err(parse(&("\n".repeat(line) + part)).err().unwrap_or(error)));
            }
        }
        if values > MOST_VALUES || mistakes > MOST_MISTAKES {
            let expected = format!("at most {MOST_VALUES} values, and {MOST_MISTAKES} documents with a mistake");
            documents.push(Err(Diagnostic::error("document", "too large", "the rest of the file", &expected)));
            break;
        }
    }
    documents
}

/// Splits a file before each separator of documents. Returns each part, with the number of lines that precede the part
/// in the file.
fn parts(text: &str) -> Vec<(usize, &str)> {
    let is_separator = |line: &str| {
        line.strip_prefix("---").is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', '\t', '\r', '\n']))
    };
    let (mut parts, mut begin, mut at, mut first_line) = (Vec::new(), 0, 0, 0);
    for (number, line) in text.split_inclusive('\n').enumerate() {
        if is_separator(line) {
            parts.push((first_line, &text[begin..at]));
            (begin, first_line) = (at, number);
        }
        at += line.len();
    }
    parts.push((first_line, &text[begin..]));
    parts
}

fn number_of_values(value: &Value) -> usize {
    1 + match value {
        Value::Array(items) => items.iter().map(number_of_values).sum(),
        Value::Object(members) => members.members().into_iter().map(|(_, member)| number_of_values(member)).sum(),
        _ => 0,
    }
}

/// Reads the pool in an object of a file. `None`: the object is of another kind.
fn pool(item: &Value, namespace: &str) -> anyhow::Result<Option<Read>> {
    let [version, kind] = ["apiVersion", "kind"].map(|name| match member(item, name) {
        Some(Value::String(text)) => text,
        _ => "",
    });
    let own = [StaticIPPool::kind(&()), GlobalStaticIPPool::kind(&()), MACPool::kind(&())];
    let is_own = own.iter().any(|own| *own == kind);
    ensure!(!(is_own && version.is_empty()), "apiVersion: missing, expected {}", StaticIPPool::api_version(&()));
    let is_of_group = version.split_once('/').is_some_and(|it| it.0 == GROUP);
    if !is_of_group || StaticIPLease::kind(&()) == kind {
        return Ok(None);
    }
    ensure!(is_own, "kind: unknown {kind:?}, expected StaticIPPool, GlobalStaticIPPool or MACPool");
    let (is_namespaced, is_of_macs) = (StaticIPPool::kind(&()) == kind, MACPool::kind(&()) == kind);
    let mut item = serde_json::to_value(item)?;
    remove_nulls(&mut item);
    for name in item.as_object().into_iter().flatten().map(|(name, _)| name) {
        ensure!(MEMBERS.contains(&&**name), "{name}: unknown key, expected one of {}", MEMBERS.join(", "));
    }
    let known = StaticIPPool::api_version(&());
    ensure!(version == known, "apiVersion: unknown {version:?}, expected {known}");
    let mut object: Object = serde_json::from_value(item)?;
    object.metadata.namespace = match is_namespaced {
        true => Some(object.metadata.namespace.unwrap_or_else(|| namespace.to_owned())),
        false => None,
    };
    let name = object.metadata.name.as_deref().unwrap_or_default();
    ensure!(!name.is_empty(), "metadata.name: missing, expected the name of the pool: {OBJECT_NAME}");
    ensure!(is_object_name(name), "metadata.name: invalid name {:?}, expected {OBJECT_NAME}", head(name));
    let namespace = object.metadata.namespace.as_deref();
    let invalid = head(namespace.filter(|it| !is_namespace(it)).unwrap_or_default());
    ensure!(
        namespace.is_none_or(is_namespace),
        "metadata.namespace: invalid name {invalid:?}, expected {NAMESPACE_NAME}"
    );
    Ok(Some(if is_of_macs { Read::MacPool(object) } else { Read::Pool(object) }))
}

// === impl Contents ===

impl Contents {
    /// Adds the pools of a text. `file` is the name of the file if there are several files.
    fn add(&mut self, text: &str, namespace: &str, file: Option<&String>) {
        let documents = documents(text);
        for (at, document) in documents.iter().enumerate() {
            let place = FieldPath::Document;
            let list = place.field("documents");
            let place = if documents.len() == 1 { place } else { list.index(at) };
            let mut add = |place: FieldPath<'_>, read: Result<Option<Read>, String>| match read {
                Ok(Some(Read::Pool(pool))) => self.pools.push(pool),
                Ok(Some(Read::MacPool(pool))) => self.mac_pools.push(pool),
                Ok(None) => {}
                Err(error) => {
                    self.mistakes.push(Mistake { file: file.cloned(), document: place.to_string(), error });
                }
            };
            match document {
                Err(error) => add(place, Err(error.to_string())),
                Ok(document) => match member(document, "items") {
                    Some(Value::Array(items)) => {
                        let list = place.field("items");
                        for (at, item) in items.iter().enumerate() {
                            add(list.index(at), pool(item, namespace).map_err(|error| format!("{error:#}")));
                        }
                    }
                    _ => add(place, pool(document, namespace).map_err(|error| format!("{error:#}"))),
                },
            }
        }
    }

    /// Fails if no document has a pool.
    fn check_any(&self) -> anyhow::Result<()> {
        if self.pools.is_empty() && self.mac_pools.is_empty() {
            self.check()?;
            bail!("no pool in it, expected a StaticIPPool, GlobalStaticIPPool or MACPool of {GROUP}");
        }
        Ok(())
    }

    /// Fails if a document could not be read.
    pub(super) fn check(&self) -> anyhow::Result<()> {
        let lines: Vec<String> = self.mistakes.iter().map(ToString::to_string).collect();
        ensure!(lines.is_empty(), "{}", lines.join("; "));
        Ok(())
    }
}

// === impl Mistake ===

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, document, error } = self;
        if let Some(file) = file {
            write!(f, "{file}: ")?;
        }
        match document.as_str() {
            "document" => f.write_str(error),
            _ if error.starts_with("line ") => write!(f, "{document}: {error}"),
            _ => write!(f, "{document}.{error}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::key::PoolId;

    fn pools(text: &str, namespace: &str) -> anyhow::Result<Contents> {
        let mut read = Contents::default();
        read.add(text, namespace, None);
        read.check_any()?;
        Ok(read)
    }

    fn names(text: &str) -> Result<Vec<String>, String> {
        let read =
            pools(text, "shop").and_then(|read| read.check().map(|()| read)).map_err(|error| format!("{error:#}"))?;
        Ok(read.pools.iter().map(|pool| PoolId::of(&pool.metadata).to_string()).collect())
    }

    #[test]
    fn a_file_has_the_pools_of_its_documents_and_lists() {
        let text = "\
            {apiVersion: ipam.glowplug.dev/v1alpha1, kind: StaticIPPool, metadata: {name: a}}\n---\n\
            {apiVersion: v1, kind: List, items: [\n\
            {apiVersion: ipam.glowplug.dev/v1alpha1, kind: StaticIPPool, metadata: {name: b, namespace: 'n'}},\n\
            {apiVersion: ipam.glowplug.dev/v1alpha1, kind: GlobalStaticIPPool, metadata: {name: g, namespace: 'n'}},\n\
            {apiVersion: v1, kind: Namespace, metadata: {name: 'n'}}]}\n";
        assert_eq!(names(text), Ok(["shop/a", "n/b", "g"].map(str::to_owned).to_vec()));
    }

    #[test]
    fn files_are_read_in_the_order_of_the_command_line_and_the_files_of_a_folder_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let pool = |kind: &str, name: &str| {
            format!("{{apiVersion: ipam.glowplug.dev/v1alpha1, kind: {kind}, metadata: {{name: {name}}}}}")
        };
        let folders = ["more", "more/deeper.yaml", "none"].map(at);
        folders.iter().for_each(|folder| std::fs::create_dir(folder).unwrap());
        let write = |name: &str, text: &str| std::fs::write(at(name), text).unwrap();
        write("z.txt", &pool("StaticIPPool", "z"));
        write("more/b.yml", &pool("GlobalStaticIPPool", "B"));
        write("more/a.json", &pool("MACPool", "m"));
        write("more/c.yaml", &pool("StaticIPPool", "c"));
        write("more/readme.md", "no pool");
        let read = |names: &[&str]| {
            read_pools(&names.iter().map(|name| at(name)).collect::<Vec<_>>(), "shop")
                .map_err(|error| format!("{error:#}").replace(&format!("{}/", folder.path().display()), ""))
        };
        let all = read(&["z.txt", "more"]).unwrap();
        let names = |pools: &[Object]| -> Vec<String> {
            pools.iter().map(|pool| PoolId::of(&pool.metadata).to_string()).collect()
        };
        assert_eq!([names(&all.pools), names(&all.mac_pools)], [vec!["shop/z", "shop/c"], vec!["m"]]);
        let letters = "at most 253 lower case letters, digits, '-' and '.', with a letter or digit at both ends";
        let mistake = format!("metadata.name: invalid name \"B\", expected {letters}");
        let place = at("more/b.yml").display().to_string();
        let mistakes: Vec<String> = all.mistakes.iter().map(ToString::to_string).collect();
        assert_eq!(mistakes, [format!("{place}: {mistake}")]);
        let error = |names: &[&str]| read(names).unwrap_err();
        assert_eq!(error(&["more/b.yml"]), format!("reading more/b.yml: {mistake}"));
        let none = "reading none: no file in the folder, expected a name that ends with .json or .yaml or .yml";
        assert_eq!(error(&["z.txt", "none"]), none);
        assert_eq!(error(&["z.txt", "absent"]), "reading absent: No such file or directory (os error 2)");
        let nothing = "reading more/readme.md: no pool in it, expected a StaticIPPool, GlobalStaticIPPool or MACPool of ipam.glowplug.dev";
        assert_eq!(error(&["more/readme.md"]), nothing);
    }

    #[test]
    fn a_file_without_a_pool_is_refused() {
        let none =
            "no pool in it, expected a StaticIPPool, GlobalStaticIPPool or MACPool of ipam.glowplug.dev".to_owned();
        for text in ["", "{}", "7", "[a]", "{apiVersion: v1, kind: StaticIPPool}", "{items: [7, null]}"] {
            assert_eq!(names(text), Err(none.clone()), "{text}");
        }
    }

    #[test]
    fn a_document_with_a_mistake_does_not_hide_the_other_documents() {
        let text = "\
            # a comment\n\
            ---\n\
            {apiVersion: ipam.glowplug.dev/v1alpha1, kind: StaticIpPool, metadata: {name: a}}\n\
            --- # broken\n\
            a: b\n\
            c: d: e\n\
            ---\n\
            {apiVersion: ipam.glowplug.dev/v1alpha1, kind: StaticIPPool, metadata: {name: b}}\n\
            ---\n\
            items:\n\
            - {apiVersion: v1, kind: Namespace}\n\
            - {apiVersion: ipam.glowplug.dev/v1alpha1, kind: GlobalStaticIPPool, metadata: {name: B}}\n\
            - {apiVersion: ipam.glowplug.dev/v1alpha1, kind: GlobalStaticIPPool, metadata: {name: g}}\n";
        let read = pools(text, "shop").unwrap();
        let of_pools: Vec<String> = read.pools.iter().map(|pool| PoolId::of(&pool.metadata).to_string()).collect();
        assert_eq!(of_pools, ["shop/b", "g"]);
        let lines = [
            "documents[0].kind: unknown \"StaticIpPool\", expected StaticIPPool, GlobalStaticIPPool or MACPool",
            "documents[1]: line 6 column 5: not readable as YAML \"mapping values are not allowed in this context\", expected a JSON or \
             YAML document",
            "documents[3].items[1].metadata.name: invalid name \"B\", expected at most 253 lower case letters, digits, '-' and '.', with a \
             letter or digit at both ends",
        ];
        assert_eq!(read.mistakes.iter().map(ToString::to_string).collect::<Vec<_>>(), lines);
        // If no document has a pool, the error has every mistake.
        let broken = "kind: StaticIPPool\n---\na: [\n---\nkind: GlobalStaticIPPool\n";
        let lines = "documents[0].apiVersion: missing, expected ipam.glowplug.dev/v1alpha1; \
                     documents[1]: line 4 column 1: not readable as YAML \"while parsing a node, did not find expected node content\", expected a \
                     JSON or YAML document; \
                     documents[2].apiVersion: missing, expected ipam.glowplug.dev/v1alpha1";
        assert_eq!(names(broken), Err(lines.to_owned()));
    }

    #[test]
    fn words_and_numbers_of_a_file_are_read_as_kubectl_reads_them() {
        let text = "\
            apiVersion: ipam.glowplug.dev/v1alpha1\n\
            kind: StaticIPPool\n\
            metadata: {name: a, namespace: 'n'}\n\
            spec: {sticky: y, ignoreNeighbours: off, network: 'yes', mtu: 0x5dc}\n";
        let empty = "{apiVersion: ipam.glowplug.dev/v1alpha1, kind: StaticIPPool, metadata: {name: a, labels: },\n\
            spec: {gateway: , sticky: ~, network: a, subnets: [{nameservers: , mtu: 1500}]}}";
        let expected = serde_json::json!({"network": "a", "subnets": [{"mtu": 1500}]});
        assert_eq!(pools(empty, "shop").unwrap().pools[0].data["spec"], expected);
        let spec = serde_json::json!({"sticky": true, "ignoreNeighbours": false, "network": "yes", "mtu": 1500});
        assert_eq!(pools(text, "shop").unwrap().pools[0].data["spec"], spec);
        let other = r#"{"items": [{"kind": "Deployment", "spec": {"cpu": 0.5}}, {"apiVersion": "ipam.glowplug.dev/v1alpha1",
            "kind": "GlobalStaticIPPool", "metadata": {"name": "g"}}]}"#;
        assert_eq!(names(other), Ok(vec!["g".to_owned()]), "a number of another object is not read");
    }

    #[test]
    fn a_pool_that_an_api_server_would_refuse_is_a_mistake() {
        let pool = |version: &str, metadata: &str| {
            names(&format!("{{apiVersion: ipam.glowplug.dev/{version}, kind: StaticIPPool, metadata: {metadata}}}"))
        };
        let expected = |line: &str| Err(line.to_owned());
        let letters = "at most 253 lower case letters, digits, '-' and '.', with a letter or digit at both ends";
        let nameless = expected(&format!("metadata.name: missing, expected the name of the pool: {letters}"));
        assert_eq!(pool("v1alpha1", "{}"), nameless);
        let upper = expected(&format!("metadata.name: invalid name \"A\", expected {letters}"));
        assert_eq!(pool("v1alpha1", "{name: A}"), upper);
        let namespace = expected(
            "metadata.namespace: invalid name \"a.b\", expected the name of a namespace: at most 63 lower case letters, digits and '-', \
             with a letter or digit at both ends",
        );
        assert_eq!(pool("v1alpha1", "{name: a, namespace: a.b}"), namespace);
        let version = expected("apiVersion: unknown \"ipam.glowplug.dev/v7\", expected ipam.glowplug.dev/v1alpha1");
        assert_eq!(pool("v7", "{name: a}"), version);
        let of = |members: &str| names(&format!("{{apiVersion: ipam.glowplug.dev/v1alpha1, {members}}}"));
        let missing = expected("apiVersion: missing, expected ipam.glowplug.dev/v1alpha1");
        assert_eq!(names("{kind: StaticIPPool, metadata: {name: a}}"), missing);
        let kind = expected("kind: unknown \"StaticIpPool\", expected StaticIPPool, GlobalStaticIPPool or MACPool");
        assert_eq!(of("kind: StaticIpPool"), kind);
        let member = expected("sepc: unknown key, expected one of apiVersion, kind, metadata, spec, status");
        assert_eq!(of("kind: StaticIPPool, metadata: {name: a}, sepc: {}"), member);
        let repeated = expected("line 1 column 83: repeated key \"metadata\", expected each key of a mapping once");
        assert_eq!(of("kind: StaticIPPool, metadata: {name: a}, metadata: {name: b}"), repeated);
    }
}
