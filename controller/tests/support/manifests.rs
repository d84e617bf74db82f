//! The manifests in `config`, rendered as by `kubectl kustomize`.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::{Value, json};

/// The supported members of a `kustomization.yaml`. Any other member is an error, so no manifest uses a feature that
/// this renderer does not support.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Kustomization {
    #[serde(rename = "apiVersion")]
    _api_version: String,
    #[serde(rename = "kind")]
    _kind: String,
    resources: Vec<String>,
    #[serde(default)]
    patches: Vec<Patch>,
}

/// A JSON patch of the objects with this kind and name.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Patch {
    target: Target,
    patch: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Target {
    kind: String,
    name: String,
}

/// Copies a string of one object into other objects, as kustomize's `ReplacementTransformer` does.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Replacement {
    source: Source,
    targets: Vec<Destination>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Source {
    kind: String,
    name: String,
    field_path: String,
}

/// Where a replacement writes: a delimiter splits each string at these paths, and one part is replaced.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Destination {
    select: Target,
    field_paths: Vec<String>,
    options: Part,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Part {
    delimiter: String,
    index: usize,
}

/// Returns the path of a file or folder below `config`.
pub fn config(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("config").join(path)
}

/// Returns the documents of a YAML file.
pub fn documents(file: &Path) -> Vec<Value> {
    let text = fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    serde_saphyr::from_multiple(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}

/// Returns the objects of a folder of `config`, in the order in which its `kustomization.yaml` names them.
pub fn render(folder: &str) -> Vec<Value> {
    render_folder(&config(folder))
}

/// Returns the objects of a folder, changed as kustomize changes them for a `kustomization.yaml` with these `namespace`
/// and `transformers`.
pub fn render_in(folder: &str, namespace: &str, transformers: &[&str]) -> Vec<Value> {
    let mut objects = render(folder);
    let accounts: Vec<Value> = objects.iter().filter(|object| object["kind"] == "ServiceAccount").cloned().collect();
    for object in &mut objects {
        if object["kind"] == "Namespace" {
            object["metadata"]["name"] = namespace.into();
        } else if object["metadata"].get("namespace").is_some() {
            object["metadata"]["namespace"] = namespace.into();
        }
        let is_of_account = |subject: &&mut Value| {
            accounts.iter().any(|account| {
                account["metadata"]["name"] == subject["name"]
                    && account["metadata"]["namespace"] == subject["namespace"]
            })
        };
        for subject in list(object, "subjects").filter(is_of_account) {
            subject["namespace"] = namespace.into();
        }
        for webhook in list(object, "webhooks") {
            webhook["clientConfig"]["service"]["namespace"] = namespace.into();
        }
    }
    for transformer in transformers.iter().flat_map(|folder| render(folder)) {
        assert_eq!(transformer["kind"], "ReplacementTransformer");
        let replacements: Vec<Replacement> = serde_json::from_value(transformer["replacements"].clone()).unwrap();
        replacements.iter().for_each(|replacement| replace(&mut objects, replacement));
    }
    objects
}

/// Returns the items of a member, if the object has this member.
fn list<'v>(object: &'v mut Value, member: &str) -> impl Iterator<Item = &'v mut Value> {
    object.get_mut(member).and_then(Value::as_array_mut).into_iter().flatten()
}

fn replace(objects: &mut [Value], Replacement { source, targets }: &Replacement) {
    let value = object(objects, &source.kind, &source.name).pointer(&pointer(&source.field_path)).unwrap().clone();
    for Destination { select, field_paths, options } in targets {
        let is_selected =
            |object: &&mut Value| object["kind"] == select.kind && object["metadata"]["name"] == select.name;
        for selected in objects.iter_mut().filter(is_selected) {
            for path in field_paths {
                let place = selected.pointer_mut(&pointer(path)).unwrap_or_else(|| panic!("{path}: missing"));
                let text = place.as_str().unwrap().to_owned();
                let mut parts: Vec<&str> = text.split(options.delimiter.as_str()).collect();
                parts[options.index] = value.as_str().unwrap();
                *place = parts.join(&options.delimiter).into();
            }
        }
    }
}

/// Returns the JSON pointer for a path of kustomize, such as `metadata.annotations.[example.org/name]`.
fn pointer(path: &str) -> String {
    let (plain, in_brackets) = path.split_once(".[").unwrap_or((path, ""));
    let names = plain.split('.').chain(in_brackets.strip_suffix(']'));
    names.map(|name| format!("/{}", name.replace('~', "~0").replace('/', "~1"))).collect()
}

fn render_folder(folder: &Path) -> Vec<Value> {
    let file = folder.join("kustomization.yaml");
    let mut pages = documents(&file);
    assert_eq!(pages.len(), 1, "{}", file.display());
    let Kustomization { resources, patches, .. } =
        serde_json::from_value(pages.remove(0)).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let mut objects = Vec::new();
    for path in resources.iter().map(|resource| folder.join(resource)) {
        objects.extend(if path.is_dir() { render_folder(&path) } else { documents(&path) });
    }
    for Patch { target, patch } in patches {
        let patch: Value = serde_saphyr::from_str(&patch).unwrap();
        let patch: json_patch::Patch = serde_json::from_value(patch).unwrap();
        let is_target =
            |object: &&mut Value| object["kind"] == target.kind && object["metadata"]["name"] == target.name;
        let mut patched: Vec<&mut Value> = objects.iter_mut().filter(is_target).collect();
        assert_eq!(patched.len(), 1, "{}: {} {}", file.display(), target.kind, target.name);
        json_patch::patch(patched[0], &patch).unwrap();
    }
    objects
}

/// Returns the object with this kind and name.
pub fn object<'a>(objects: &'a [Value], kind: &str, name: &str) -> &'a Value {
    let found: Vec<&Value> =
        objects.iter().filter(|object| object["kind"] == kind && object["metadata"]["name"] == name).collect();
    assert_eq!(found.len(), 1, "{kind} {name}");
    found[0]
}

/// Returns the shipped webhook configuration of `kind`. Each webhook has `url` and the certificates `roots` instead of
/// a Service.
pub fn webhooks_at(kind: &str, url: &str, roots: &str) -> Value {
    let mut configuration = object(&render("webhook"), kind, "glowplug-controller").clone();
    for webhook in configuration["webhooks"].as_array_mut().unwrap() {
        let path = webhook["clientConfig"]["service"]["path"].as_str().unwrap().to_owned();
        let bundle = k8s_openapi::ByteString(roots.as_bytes().to_vec());
        webhook["clientConfig"] = json!({"url": format!("{url}{path}"), "caBundle": bundle});
    }
    configuration
}
