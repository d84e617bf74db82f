//! Applies patches, and enforces the schema of a CRD.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::store::{Kind, Refusal};

/// The path of a leaf field.
pub type Field = Vec<String>;

/// Returns a copy of an object with a JSON merge patch (RFC 7386) applied.
pub fn merge(object: &Value, patch: &Value) -> Value {
    let mut object = object.clone();
    json_patch::merge(&mut object, patch);
    object
}

/// Returns a copy of an object with a JSON patch (RFC 6902) applied.
pub fn json(object: &Value, patch: &Value) -> Result<Value, Refusal> {
    let mut object = object.clone();
    let patch: json_patch::Patch =
        serde_json::from_value(patch.clone()).map_err(|error| Refusal::new(400, "BadRequest", error.to_string()))?;
    json_patch::patch(&mut object, &patch).map_err(|error| Refusal::invalid(error.to_string()))?;
    Ok(object)
}

/// Returns the leaf fields that managers can own, each with its value. A list is one leaf field, even if a real server
/// merges its items by key.
pub fn fields(object: &Value) -> BTreeMap<Field, Value> {
    fn walk(value: &Value, path: &mut Field, leaves: &mut BTreeMap<Field, Value>) {
        match value {
            Value::Object(members) if !members.is_empty() => {
                for (name, value) in members {
                    path.push(name.clone());
                    walk(value, path, leaves);
                    path.pop();
                }
            }
            leaf => drop(leaves.insert(path.clone(), leaf.clone())),
        }
    }
    let mut leaves = BTreeMap::new();
    let managed = object.as_object().cloned().unwrap_or_default();
    let managed: Map<String, Value> =
        managed.into_iter().filter(|(name, _)| !matches!(name.as_str(), "apiVersion" | "kind")).collect();
    walk(&Value::Object(managed), &mut Vec::new(), &mut leaves);
    let is_of_server = |field: &Field| {
        const OF_SERVER: [&str; 8] = [
            "name",
            "namespace",
            "uid",
            "resourceVersion",
            "generation",
            "creationTimestamp",
            "deletionTimestamp",
            "managedFields",
        ];
        matches!(&field[..], [metadata, member, ..] if metadata == "metadata" && OF_SERVER.contains(&member.as_str()))
    };
    leaves.retain(|field, _| !is_of_server(field));
    leaves
}

/// Removes a field, if it exists.
pub fn remove(object: &mut Value, field: &[String]) {
    match field {
        [] => {}
        [last] => drop(object.as_object_mut().and_then(|object| object.remove(last))),
        [first, rest @ ..] => {
            if let Some(member) = object.get_mut(first) {
                remove(member, rest);
            }
        }
    }
}

/// Prunes an object to the schema of its version, adds default values, and checks types, required members, enumerations
/// and limits. Also checks the items of sets and maps, unless those of the stored object already violate the schema.
pub fn shape(kind: &Kind, version: &str, object: &mut Value, old: Option<&Value>) -> Result<(), Refusal> {
    if let Some((_, Some(schema))) = kind.versions.iter().find(|(name, _)| name == version) {
        prune(schema, object, true);
        fill(schema, object);
        check(schema, object, "")?;
        if old.is_none_or(|old| check_lists(schema, old, "").is_ok()) {
            check_lists(schema, object, "")?;
        }
    }
    Ok(())
}

/// Removes each `null` that is not allowed, and adds the default values.
pub fn fill(schema: &Value, value: &mut Value) {
    match value {
        Value::Object(members) => {
            for (name, schema) in schema["properties"].as_object().into_iter().flatten() {
                if members.get(name).is_some_and(Value::is_null) && schema["nullable"] != true {
                    members.remove(name);
                }
                if let (false, Some(default)) = (members.contains_key(name), schema.get("default")) {
                    members.insert(name.clone(), default.clone());
                }
                if let Some(member) = members.get_mut(name) {
                    fill(schema, member);
                }
            }
            if let Some(schema) = schema.get("additionalProperties") {
                members.values_mut().for_each(|member| fill(schema, member));
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| fill(&schema["items"], item)),
        _ => {}
    }
}

/// Checks that the items of sets, and the keys of maps, are unique.
fn check_lists(schema: &Value, value: &Value, at: &str) -> Result<(), Refusal> {
    match value {
        Value::Object(members) => {
            for (name, member) in members {
                if let Some(schema) = schema["properties"].get(name).or(schema.get("additionalProperties")) {
                    check_lists(schema, member, &place(at, name))?;
                }
            }
        }
        Value::Array(items) => {
            let keys = schema["x-kubernetes-list-map-keys"].as_array();
            let mut known = Vec::new();
            for (index, item) in items.iter().enumerate() {
                let at = format!("{at}[{index}]");
                let key = match schema["x-kubernetes-list-type"].as_str() {
                    Some("set") => Some(item.clone()),
                    Some("map") => {
                        Some(keys.into_iter().flatten().map(|key| item[key.as_str().unwrap()].clone()).collect())
                    }
                    _ => None,
                };
                if key.as_ref().is_some_and(|key| known.contains(key)) {
                    return Err(Refusal::invalid(format!("{at}: Duplicate value: {}", key.unwrap())));
                }
                known.extend(key);
                check_lists(&schema["items"], item, &at)?;
            }
        }
        _ => {}
    }
    Ok(())
}

fn place(at: &str, name: &str) -> String {
    if at.is_empty() { name.to_owned() } else { format!("{at}.{name}") }
}

/// Removes the members that are not in the schema.
pub fn prune(schema: &Value, value: &mut Value, is_root: bool) {
    match value {
        Value::Object(members) => {
            let properties = schema["properties"].as_object();
            if schema["x-kubernetes-preserve-unknown-fields"] != true && schema.get("additionalProperties").is_none() {
                let is_meta = |name: &str| is_root && matches!(name, "apiVersion" | "kind" | "metadata");
                members.retain(|name, _| is_meta(name) || properties.is_some_and(|known| known.contains_key(name)));
            }
            for (name, member) in members.iter_mut().filter(|(name, _)| !is_root || *name != "metadata") {
                if let Some(schema) =
                    properties.and_then(|known| known.get(name)).or(schema.get("additionalProperties"))
                {
                    prune(schema, member, false);
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| prune(&schema["items"], item, false)),
        _ => {}
    }
}

fn check(schema: &Value, value: &Value, at: &str) -> Result<(), Refusal> {
    let is = match value {
        Value::Null if schema["nullable"] == true => return Ok(()),
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    let wanted = schema["type"].as_str();
    if wanted.is_some_and(|wanted| wanted != is && !(wanted == "number" && is == "integer")) {
        let wanted = wanted.unwrap_or_default();
        return Err(Refusal::invalid(format!("{at}: Invalid value: {is:?}: must be of type {wanted}: {is:?}")));
    }
    if schema["enum"].as_array().is_some_and(|values| !values.contains(value)) {
        return Err(Refusal::invalid(format!("{at}: Unsupported value: {value}")));
    }
    let out = |bound: &str, is_out: fn(f64, f64) -> bool| {
        schema[bound].as_f64().zip(value.as_f64()).is_some_and(|(bound, value)| is_out(value, bound))
    };
    if out("minimum", |value, bound| value < bound) || out("maximum", |value, bound| value > bound) {
        return Err(Refusal::invalid(format!("{at}: Invalid value: {value}: out of bounds")));
    }
    let (short, long) = match value {
        Value::String(text) => (
            text.chars().count() < limit(schema, "minLength", 0),
            text.chars().count() > limit(schema, "maxLength", usize::MAX),
        ),
        Value::Array(items) => (false, items.len() > limit(schema, "maxItems", usize::MAX)),
        Value::Object(members) => (false, members.len() > limit(schema, "maxProperties", usize::MAX)),
        _ => (false, false),
    };
    if short || long {
        return Err(Refusal::invalid(format!("{at}: Too {}", if long { "long" } else { "short" })));
    }
    if let Value::Object(members) = value {
        for name in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            if !members.contains_key(name) {
                return Err(Refusal::invalid(format!("{}: Required value", place(at, name))));
            }
        }
        for (name, member) in members {
            if let Some(schema) = schema["properties"].get(name).or(schema.get("additionalProperties")) {
                check(schema, member, &place(at, name))?;
            }
        }
    }
    for (index, item) in value.as_array().into_iter().flatten().enumerate() {
        check(&schema["items"], item, &format!("{at}[{index}]"))?;
    }
    Ok(())
}

fn limit(schema: &Value, name: &str, otherwise: usize) -> usize {
    schema[name].as_u64().map_or(otherwise, |limit| usize::try_from(limit).unwrap())
}
