//! Reads the pools of a file, as `kubectl apply` reads them.

use std::fs::File;
use std::io::{Read, stdin};
use std::path::Path;

use anyhow::{Context as _, anyhow, ensure};
use glowplug::host::claim::is_object_name;
use kube::Resource as _;
use serde_json::Value;

use crate::cluster::object::Object;
use crate::kinds::mac_pool::MACPool;
use crate::kinds::pool::{GROUP, GlobalStaticIPPool, StaticIPLease, StaticIPPool};
use crate::kinds::schema::MAX_LABEL;

/// The members of a pool in a file.
const MEMBERS: [&str; 5] = ["apiVersion", "kind", "metadata", "spec", "status"];
/// Largest size of a file, in bytes.
const MOST: u64 = 4 * 1024 * 1024;

/// Reads the StaticIPPools and GlobalStaticIPPools of a file with JSON or YAML. `-` is standard input. A StaticIPPool without a
/// namespace gets `namespace`.
///
/// # Errors
///
/// The file cannot be read, or has no pool.
pub(super) fn read_pools(path: &Path, namespace: &str) -> anyhow::Result<Vec<Object>> {
    let title = path.display();
    let text = match path.as_os_str().to_str() {
        Some("-") => bounded(stdin().lock()),
        _ => File::open(path).map_err(anyhow::Error::from).and_then(bounded),
    };
    pools(&text.with_context(|| format!("reading {title}"))?, namespace).with_context(|| format!("reading {title}"))
}

fn bounded(from: impl Read) -> anyhow::Result<String> {
    let mut text = String::new();
    from.take(MOST + 1).read_to_string(&mut text)?;
    ensure!(text.len() as u64 <= MOST, "too large, expected at most {MOST} bytes");
    Ok(text)
}

fn pools(text: &str, namespace: &str) -> anyhow::Result<Vec<Object>> {
    // A namespace may be `n`, which kubectl reads as a string, too.
    let options = serde_saphyr::options! { strict_booleans: true };
    // The rest of the text is a picture of the place.
    let first_line = |error: serde_saphyr::Error| anyhow!("{}", error.to_string().lines().next().unwrap_or_default());
    let documents: Vec<Value> = serde_saphyr::from_multiple_with_options(text, options).map_err(first_line)?;
    let items = documents.into_iter().flat_map(|mut document| match document.get_mut("items").map(Value::take) {
        Some(Value::Array(items)) => items,
        _ => vec![document],
    });
    let mut pools = Vec::new();
    for item in items {
        let is_of_group = item["apiVersion"].as_str().and_then(|it| it.split_once('/')).is_some_and(|it| it.0 == GROUP);
        let is_global = item["kind"] == *GlobalStaticIPPool::kind(&());
        let is_other = [MACPool::kind(&()), StaticIPLease::kind(&())].iter().any(|kind| item["kind"] == **kind);
        if !is_of_group || is_other {
            continue;
        }
        let is_pool = is_global || item["kind"] == *StaticIPPool::kind(&());
        ensure!(is_pool, "kind: unknown {}, expected StaticIPPool or GlobalStaticIPPool", item["kind"]);
        for name in item.as_object().into_iter().flatten().map(|(name, _)| name) {
            ensure!(MEMBERS.contains(&&**name), "{name}: unknown key, expected one of {}", MEMBERS.join(", "));
        }
        let version = StaticIPPool::api_version(&());
        ensure!(item["apiVersion"] == *version, "apiVersion: unknown {}, expected {version}", item["apiVersion"]);
        let mut object: Object = serde_json::from_value(item)?;
        object.metadata.namespace = match is_global {
            true => None,
            false => Some(object.metadata.namespace.unwrap_or_else(|| namespace.to_owned())),
        };
        let name = object.metadata.name.as_deref().unwrap_or_default();
        ensure!(is_object_name(name), "metadata.name: invalid name {name:?}, expected the name of the pool");
        let namespace = object.metadata.namespace.as_deref();
        let is_valid = namespace.is_none_or(|it| is_object_name(it) && !it.contains('.') && it.len() <= MAX_LABEL);
        ensure!(is_valid, "metadata.namespace: invalid name {:?}, expected a namespace", namespace.unwrap_or_default());
        pools.push(object);
    }
    ensure!(!pools.is_empty(), "no pool in it, expected a StaticIPPool or GlobalStaticIPPool of {GROUP}");
    Ok(pools)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::key::PoolId;

    fn names(text: &str) -> Result<Vec<String>, String> {
        let pools = pools(text, "shop").map_err(|error| format!("{error:#}"))?;
        Ok(pools.iter().map(|pool| PoolId::of(&pool.metadata).to_string()).collect())
    }

    #[test]
    fn a_file_has_the_pools_of_its_documents_and_lists() {
        let text = "\
            {apiVersion: ipam.glowplug.dev/v1alpha1, kind: StaticIPPool, metadata: {name: a}}\n---\n\
            {apiVersion: v1, kind: List, items: [\n\
            {apiVersion: ipam.glowplug.dev/v1alpha1, kind: StaticIPPool, metadata: {name: b, namespace: n}},\n\
            {apiVersion: ipam.glowplug.dev/v1alpha1, kind: GlobalStaticIPPool, metadata: {name: g, namespace: n}},\n\
            {apiVersion: v1, kind: Namespace, metadata: {name: n}}]}\n";
        assert_eq!(names(text), Ok(["shop/a", "n/b", "g"].map(str::to_owned).to_vec()));
    }

    #[test]
    fn a_file_without_a_pool_is_refused() {
        let none = "no pool in it, expected a StaticIPPool or GlobalStaticIPPool of ipam.glowplug.dev".to_owned();
        for text in ["", "{}", "7", "[a]", "{apiVersion: v1, kind: StaticIPPool}", "{items: [7, null]}"] {
            assert_eq!(names(text), Err(none.clone()), "{text}");
        }
    }

    #[test]
    fn a_pool_that_no_api_server_stores_is_refused() {
        let pool = |version: &str, metadata: &str| {
            names(&format!("{{apiVersion: ipam.glowplug.dev/{version}, kind: StaticIPPool, metadata: {metadata}}}"))
        };
        let expected = |line: &str| Err(line.to_owned());
        let nameless = expected("metadata.name: invalid name \"\", expected the name of the pool");
        assert_eq!(pool("v1alpha1", "{}"), nameless);
        let upper = expected("metadata.name: invalid name \"A\", expected the name of the pool");
        assert_eq!(pool("v1alpha1", "{name: A}"), upper);
        let namespace = expected("metadata.namespace: invalid name \"a.b\", expected a namespace");
        assert_eq!(pool("v1alpha1", "{name: a, namespace: a.b}"), namespace);
        let version = expected("apiVersion: unknown \"ipam.glowplug.dev/v7\", expected ipam.glowplug.dev/v1alpha1");
        assert_eq!(pool("v7", "{name: a}"), version);
        let of = |members: &str| names(&format!("{{apiVersion: ipam.glowplug.dev/v1alpha1, {members}}}"));
        let kind = expected("kind: unknown \"StaticIpPool\", expected StaticIPPool or GlobalStaticIPPool");
        assert_eq!(of("kind: StaticIpPool"), kind);
        let member = expected("sepc: unknown key, expected one of apiVersion, kind, metadata, spec, status");
        assert_eq!(of("kind: StaticIPPool, metadata: {name: a}, sepc: {}"), member);
        let syntax = names("a: {\nb").unwrap_err();
        assert!(!syntax.contains('\n'), "{syntax}");
    }
}
