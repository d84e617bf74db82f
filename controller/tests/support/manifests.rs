//! The manifests in `config`, rendered as by `kubectl kustomize`.

use std::collections::BTreeSet;
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
    #[serde(default)]
    images: Vec<Image>,
    namespace: Option<String>,
    name_suffix: Option<String>,
    /// Folders with objects of the kind `ReplacementTransformer`.
    #[serde(default)]
    transformers: Vec<String>,
}

/// A JSON patch of the objects with this kind and name, or their removal.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Patch {
    target: Target,
    patch: String,
}

/// The objects of a kind. `name: None` means every object of the kind.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Target {
    kind: String,
    name: Option<String>,
}

/// The name and tag that replace those of an image.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Image {
    name: String,
    new_name: String,
    new_tag: String,
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

/// Where a replacement writes: at these paths. `options: Some`: only into a part of the string.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Destination {
    select: Target,
    field_paths: Vec<String>,
    options: Option<Part>,
}

/// A part of a string that a delimiter splits.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Part {
    delimiter: String,
    index: usize,
}

impl Target {
    fn is(&self, object: &Value) -> bool {
        object["kind"] == self.kind && self.name.as_ref().is_none_or(|name| object["metadata"]["name"] == **name)
    }
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

/// Changes the namespace and the names of objects, and the references to them, as kustomize does.
fn rename(objects: &mut [Value], namespace: Option<&str>, suffix: &str) {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let known: BTreeSet<(String, String)> =
        objects.iter().map(|object| (text(&object["kind"]), text(&object["metadata"]["name"]))).collect();
    // Changes a reference, if its object is one of these.
    let refer = |reference: &mut Value, kind: &Value| {
        let (kind, name) = (text(kind), text(&reference["name"]));
        if known.contains(&(kind, name.clone())) {
            reference["name"] = format!("{name}{suffix}").into();
            if let (Some(namespace), Some(known)) = (namespace, reference.get_mut("namespace")) {
                *known = namespace.into();
            }
        }
    };
    for object in objects {
        match (object["kind"].as_str().unwrap(), namespace) {
            ("Namespace", Some(namespace)) => object["metadata"]["name"] = namespace.into(),
            ("CustomResourceDefinition" | "Namespace", _) => {}
            _ => {
                let kind = object["kind"].clone();
                refer(&mut object["metadata"], &kind);
            }
        }
        for subject in list(object, "subjects") {
            let kind = subject["kind"].clone();
            refer(subject, &kind);
        }
        for webhook in list(object, "webhooks") {
            refer(&mut webhook["clientConfig"]["service"], &"Service".into());
        }
        if let Some(role) = object.get_mut("roleRef") {
            let kind = role["kind"].clone();
            refer(role, &kind);
        }
        if let Some(pod) = object.pointer_mut("/spec/template/spec") {
            let mut account = json!({"name": pod["serviceAccountName"]});
            refer(&mut account, &"ServiceAccount".into());
            pod["serviceAccountName"] = account["name"].take();
        }
    }
}

/// Returns the items of a member, if the object has this member.
fn list<'v>(object: &'v mut Value, member: &str) -> impl Iterator<Item = &'v mut Value> {
    object.get_mut(member).and_then(Value::as_array_mut).into_iter().flatten()
}

/// Applies a replacement to objects whose names have got this suffix. The replacement has their names without it.
fn replace(objects: &mut [Value], suffix: &str, Replacement { source, targets }: &Replacement) {
    let with_suffix = |name: &str| format!("{name}{suffix}");
    let value = object(objects, &source.kind, &with_suffix(&source.name)).pointer(&pointer(&source.field_path));
    let value = value.unwrap().as_str().unwrap().to_owned();
    for Destination { select, field_paths, options } in targets {
        let select = Target { kind: select.kind.clone(), name: select.name.as_deref().map(with_suffix) };
        for selected in objects.iter_mut().filter(|object| select.is(object)) {
            for path in field_paths {
                let place = selected.pointer_mut(&pointer(path)).unwrap_or_else(|| panic!("{path}: missing"));
                let text = place.as_str().unwrap().to_owned();
                *place = match options {
                    Some(Part { delimiter, index }) => {
                        let mut parts: Vec<&str> = text.split(delimiter.as_str()).collect();
                        parts[*index] = &value;
                        parts.join(delimiter).into()
                    }
                    None => value.as_str().into(),
                };
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

/// Returns the objects of any folder with a `kustomization.yaml`.
pub fn render_folder(folder: &Path) -> Vec<Value> {
    let file = folder.join("kustomization.yaml");
    let mut pages = documents(&file);
    assert_eq!(pages.len(), 1, "{}", file.display());
    let page: Kustomization =
        serde_json::from_value(pages.remove(0)).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let mut objects = Vec::new();
    for path in page.resources.iter().map(|resource| folder.join(resource)) {
        objects.extend(if path.is_dir() { render_folder(&path) } else { documents(&path) });
    }
    for Patch { target, patch } in page.patches {
        let selected = objects.iter().filter(|object| target.is(object)).count();
        assert!(selected > 0, "{}: {} {:?}", file.display(), target.kind, target.name);
        let patch: Value = serde_saphyr::from_str(&patch).unwrap();
        if patch["$patch"] == "delete" {
            objects.retain(|object| !target.is(object));
            continue;
        }
        let patch: json_patch::Patch = serde_json::from_value(patch).unwrap();
        for object in objects.iter_mut().filter(|object| target.is(object)) {
            json_patch::patch(object, &patch).unwrap();
        }
    }
    let suffix = page.name_suffix.unwrap_or_default();
    rename(&mut objects, page.namespace.as_deref(), &suffix);
    for image in objects.iter_mut().filter_map(|object| object.pointer_mut("/spec/template/spec/containers/0/image")) {
        let name = image.as_str().unwrap().split(':').next().unwrap().to_owned();
        for Image { new_name, new_tag, .. } in page.images.iter().filter(|image| image.name == name) {
            *image = format!("{new_name}:{new_tag}").into();
        }
    }
    for transformer in page.transformers.iter().flat_map(|of| render_folder(&folder.join(of))) {
        assert_eq!(transformer["kind"], "ReplacementTransformer");
        let replacements: Vec<Replacement> = serde_json::from_value(transformer["replacements"].clone()).unwrap();
        replacements.iter().for_each(|replacement| replace(&mut objects, &suffix, replacement));
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
