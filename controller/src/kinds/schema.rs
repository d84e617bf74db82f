//! The rules that the schemas of all kinds follow, and the comparison of a stored specification with its schema.
//!
//! **Lists.** The type of a list decides what a repeated item means, and what server-side apply does:
//!
//! - `map`: each item has a key, and each key occurs once. The maps are the conditions and the families in a status,
//!   and the NodePools of a pool.
//! - `set`: server-side apply keeps the items of other managers. A list that users write is a set only if it is safe to
//!   keep such an item. If an exclusion is kept by mistake, one address is not used, so exclusions are a set. If an
//!   address, a gateway or a namespace were kept by mistake, it would be used although the manifest does not have it.
//! - `atomic`: every other list. One manager owns all items, and their order stays.
//!
//! **Limits.** Each list, string and map has a limit of its size. If the code has a limit, the schema has the same
//! limit. Otherwise, the limit is far beyond what an object of etcd can hold. The webhook decides whether a value is
//! valid, and reports every error.
//!
//! **Rules in CEL.** The API server evaluates rules before it asks a webhook, so a rule hides every error that the
//! webhook would report. A rule exists only for members that never change: if no webhook is installed, nothing else can
//! prevent the change, and the changed object does not show it. The rule is part of the member, so that the refusal has
//! the path of the member.
//!
//! **Numbers.** API servers know only `int32` and `int64`. `null` is not allowed anywhere, because API servers remove
//! it.
//!
//! **Status.** `observedGeneration` is -1 until the controller has looked at the object. So a tool that compares it
//! with `metadata.generation` does not mistake a new object for a processed object.

use std::collections::{BTreeMap, BTreeSet};

use glowplug::diagnostic::{Diagnostic, Diagnostics, FieldPath, Severity, one_of};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSON, JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};
use schemars::{Schema, SchemaGenerator, json_schema};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::cluster::conditions::LONGEST_MESSAGE;

/// Longest name of a namespace, and longest value of a label.
pub(crate) const MAX_LABEL: usize = 63;
/// Longest name of any other object.
pub(crate) const MAX_NAME: usize = 253;
/// Longest `namespace/name`, and longest key of a label.
pub(crate) const MAX_PATH: usize = MAX_LABEL + 1 + MAX_NAME;
/// Maximum number of characters in an address, a range or a subnet, or in two addresses with a comma between them.
pub(crate) const MAX_ENTRY: usize = 128;
/// Maximum number of labels or requirements of a selector.
const MAX_TERMS: usize = 256;
/// Maximum number of values of a requirement of a selector.
const MAX_VALUES: usize = 1024;
/// Maximum number of conditions, including those of other programs.
const MAX_CONDITIONS: usize = 64;

/// Returns the schema of a list of conditions, with the limits of Kubernetes.
pub(crate) fn conditions(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "maxItems": MAX_CONDITIONS,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
        "items": {
            "description": "One aspect of the state of the object.",
            "type": "object",
            "required": ["lastTransitionTime", "message", "reason", "status", "type"],
            "properties": {
                "lastTransitionTime": {
                    "description": "Time of the last change of `status`. Example: `2026-08-14T10:00:00Z`.",
                    "type": "string",
                    "format": "date-time",
                },
                "message": {
                    "description": "Details for people. May be empty.",
                    "type": "string",
                    "maxLength": LONGEST_MESSAGE,
                },
                "observedGeneration": {
                    "description": "`metadata.generation` of the specification that the condition describes. Example: `3`.",
                    "type": "integer",
                    "format": "int64",
                    "minimum": 0,
                },
                "reason": {
                    "description": "Reason of the last change of `status`, for programs. Example: `Serving`.",
                    "type": "string",
                    "minLength": 1,
                    "maxLength": 1024,
                },
                "status": {
                    "description": "Whether the condition holds.",
                    "type": "string",
                    "enum": ["True", "False", "Unknown"],
                },
                "type": {
                    "description": "Type of the condition. Example: `Ready`.",
                    "type": "string",
                    "maxLength": MAX_PATH,
                },
            },
        },
    })
}

/// Returns the schema of a selector of labels.
pub(crate) fn selector(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "x-kubernetes-map-type": "atomic",
        "properties": {
            "matchExpressions": {
                "description": "Requirements that the labels must meet, all of them.",
                "type": "array",
                "maxItems": MAX_TERMS,
                "items": {
                    "description": "A requirement on the label `key`.",
                    "type": "object",
                    "required": ["key", "operator"],
                    "properties": {
                        "key": {
                            "description": "Key of the label. Example: `role`.",
                            "type": "string",
                            "maxLength": MAX_PATH,
                        },
                        "operator": {
                            "description": "Relation of the label to `values`.",
                            "type": "string",
                            "enum": ["In", "NotIn", "Exists", "DoesNotExist"],
                        },
                        "values": {
                            "description": "Values for `In` and `NotIn`. Absent for `Exists` and `DoesNotExist`.",
                            "type": "array",
                            "maxItems": MAX_VALUES,
                            "items": {"type": "string", "maxLength": MAX_LABEL},
                        },
                    },
                },
            },
            "matchLabels": {
                "description": "Labels that must have these values. Example: `{role: worker}`.",
                "type": "object",
                "maxProperties": MAX_TERMS,
                "additionalProperties": {"type": "string", "maxLength": MAX_LABEL},
            },
        },
    })
}

/// Returns the schema of an address family.
pub(crate) fn family(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "enum": ["IPv4", "IPv6"]})
}

/// Applies the rules of this module to a CRD.
pub(crate) fn complete(definition: &mut CustomResourceDefinition) {
    let schemas = definition.spec.versions.iter_mut().filter_map(|version| version.schema.as_mut());
    for schema in schemas.filter_map(|schema| schema.open_api_v3_schema.as_mut()) {
        complete_schema(schema);
        if let Some(status) = schema.properties.as_mut().and_then(|members| members.get_mut("status")) {
            status.default = Some(JSON(json!({"observedGeneration": -1})));
        }
    }
}

fn complete_schema(schema: &mut JSONSchemaProps) {
    schema.nullable = None;
    let known = match schema.format.as_deref() {
        Some("uint8") => Some(("int32", f64::from(u8::MAX))),
        // The format is `int64`, because earlier schemas allowed values beyond `int32`.
        Some("uint32") => Some(("int64", f64::from(u32::MAX))),
        _ => None,
    };
    if let Some((format, most)) = known {
        schema.format = Some(format.to_owned());
        schema.minimum.get_or_insert(0.0);
        schema.maximum.get_or_insert(most);
    }
    if schema.type_.as_deref() == Some("array") {
        schema.x_kubernetes_list_type.get_or_insert_with(|| "atomic".to_owned());
    }
    schema.properties.iter_mut().flat_map(|members| members.values_mut()).for_each(complete_schema);
    if let Some(JSONSchemaPropsOrArray::Schema(item)) = &mut schema.items {
        complete_schema(item);
    }
    if let Some(JSONSchemaPropsOrBool::Schema(value)) = &mut schema.additional_properties {
        complete_schema(value);
    }
}

/// Returns the schema of the specification in the only version of a definition.
pub(crate) fn specification(mut definition: CustomResourceDefinition) -> JSONSchemaProps {
    complete(&mut definition);
    let version = definition.spec.versions.into_iter().next();
    let schema = version.and_then(|version| version.schema).and_then(|schema| schema.open_api_v3_schema);
    schema.and_then(|schema| schema.properties).and_then(|mut members| members.remove("spec")).unwrap_or_default()
}

/// Reports the values that the schema does not allow in a specification that an API server has stored under an earlier
/// schema: other types, unknown values of an enumeration, repeated items of sets, and sizes beyond the limits. An API
/// server refuses to create such an object again. If a size is beyond a limit, Kubernetes before 1.30 refuses every
/// change of the object, even of its status or its finalizers.
pub(crate) fn beyond(schema: &JSONSchemaProps, specification: &impl Serialize) -> Diagnostics {
    let mut diagnostics = Diagnostics::default();
    let specification = serde_json::to_value(specification).unwrap_or_default();
    compare(schema, &specification, FieldPath::Document, &mut diagnostics);
    diagnostics
}

/// Reads a specification. `Err`: a line for each value with another type than in the schema, each unknown member and
/// each missing member. An API server that has the schema refuses wrong types and missing members, and removes unknown
/// members. Unknown members at the top of a readable specification are no errors here: its check reports them.
pub(crate) fn read<T: DeserializeOwned>(schema: &JSONSchemaProps, specification: &Value) -> Result<T, String> {
    let read = T::deserialize(specification);
    let mut mistakes = Diagnostics::default();
    demand(schema, specification, FieldPath::Document, read.is_ok(), &mut mistakes);
    match lines(&mistakes) {
        Some(lines) => Err(lines),
        None => read.map_err(|error| format!("spec: {error}")),
    }
}

/// Reports values with another type than in the schema, unknown members and missing members. `keeps_unknown`: whether
/// the unknown members of this object are reported elsewhere.
fn demand(
    schema: &JSONSchemaProps,
    value: &Value,
    path: FieldPath<'_>,
    keeps_unknown: bool,
    diagnostics: &mut Diagnostics,
) {
    let add = |diagnostics: &mut Diagnostics, path: FieldPath<'_>, problem: &str, expected: &str| {
        diagnostics.push(Diagnostic::without_value(Severity::Error, path, problem, expected));
    };
    match (value, schema.type_.as_deref()) {
        (Value::Object(members), Some("object")) => {
            let none = BTreeMap::new();
            let known = schema.properties.as_ref().unwrap_or(&none);
            let names: Vec<&str> = known.keys().map(String::as_str).collect();
            let of_each = match &schema.additional_properties {
                Some(JSONSchemaPropsOrBool::Schema(schema)) => Some(&**schema),
                _ => None,
            };
            let is_open = of_each.is_some() || schema.x_kubernetes_preserve_unknown_fields == Some(true);
            for name in schema.required.iter().flatten().filter(|name| !members.contains_key(*name)) {
                let type_ = known.get(name).and_then(|member| member.type_.as_deref()).unwrap_or("value");
                add(diagnostics, path.field(name), "missing", type_);
            }
            for (name, member) in members {
                match known.get(name).or(of_each) {
                    Some(schema) => demand(schema, member, path.field(name), false, diagnostics),
                    None if is_open || keeps_unknown => {}
                    None => {
                        add(diagnostics, path.field(name), "unknown key", &one_of(&names));
                    }
                }
            }
        }
        (Value::Array(items), Some("array")) => {
            if let Some(JSONSchemaPropsOrArray::Schema(schema)) = &schema.items {
                for (index, item) in items.iter().enumerate() {
                    demand(schema, item, path.index(index), false, diagnostics);
                }
            }
        }
        _ => {
            if let Some((problem, value, type_)) = mistyped(schema, value) {
                diagnostics.push(Diagnostic::error(path, problem, value, type_));
            }
        }
    }
}

/// Returns a line for each diagnostic. `None`: there is no diagnostic.
pub(crate) fn lines(diagnostics: &Diagnostics) -> Option<String> {
    let lines: Vec<String> = diagnostics.kept().iter().map(ToString::to_string).collect();
    Some(lines.join("\n")).filter(|lines| !lines.is_empty())
}

/// Compares the type of a value with the schema. If the types differ, returns the type of the value, the value, and the
/// type in the schema. Null fits every type, because a structure writes an absent member as null.
fn mistyped<'s>(schema: &'s JSONSchemaProps, value: &Value) -> Option<(&'static str, String, &'s str)> {
    let expected = schema.type_.as_deref()?;
    let (type_, text) = match value {
        Value::Null => return None,
        Value::Bool(_) => ("boolean", value.to_string()),
        Value::Number(number) if number.is_f64() => ("number", value.to_string()),
        Value::Number(_) => ("integer", value.to_string()),
        Value::String(text) => ("string", text.clone()),
        Value::Array(_) => ("array", value.to_string()),
        Value::Object(_) => ("object", value.to_string()),
    };
    let fits = type_ == expected || (type_, expected) == ("integer", "number");
    (!fits).then_some((type_, text, expected))
}

fn compare(schema: &JSONSchemaProps, value: &Value, path: FieldPath<'_>, diagnostics: &mut Diagnostics) {
    if let Some((problem, value, type_)) = mistyped(schema, value) {
        diagnostics.push(Diagnostic::warning(path, problem, value, type_));
        return;
    }
    let mut check_size = |limit: Option<i64>, size: usize, problem: &str| {
        if let Some(limit) = limit.filter(|limit| usize::try_from(*limit).is_ok_and(|limit| size > limit)) {
            diagnostics.push(Diagnostic::warning(path, problem, size, &format!("at most {limit}")));
        }
    };
    match value {
        Value::String(text) => {
            check_size(schema.max_length, text.chars().count(), "too many characters");
            let known = schema.enum_.iter().flatten();
            let known: Vec<&str> = known.filter_map(|known| known.0.as_str()).collect();
            if !known.is_empty() && !known.contains(&text.as_str()) {
                diagnostics.push(Diagnostic::warning(path, "unknown value", text, &one_of(&known)));
            }
        }
        Value::Array(items) => {
            check_size(schema.max_items, items.len(), "too many items");
            let is_set = schema.x_kubernetes_list_type.as_deref() == Some("set");
            let mut known = BTreeSet::new();
            for (index, item) in items.iter().enumerate() {
                let path = path.index(index);
                if let Some(text) = item.as_str().filter(|text| is_set && !known.insert(*text)) {
                    diagnostics.push(Diagnostic::warning(path, "repeated item", text, "each item once"));
                }
                if let Some(JSONSchemaPropsOrArray::Schema(schema)) = &schema.items {
                    compare(schema, item, path, diagnostics);
                }
            }
        }
        Value::Object(members) => {
            check_size(schema.max_properties, members.len(), "too many members");
            let of_each = match &schema.additional_properties {
                Some(JSONSchemaPropsOrBool::Schema(schema)) => Some(&**schema),
                _ => None,
            };
            for (name, member) in members {
                let schema = schema.properties.as_ref().and_then(|known| known.get(name)).or(of_each);
                if let Some(schema) = schema {
                    compare(schema, member, path.field(name), diagnostics);
                }
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::pool::definitions;

    /// Calls `visit` with each schema of a definition and its path.
    fn each(schema: &JSONSchemaProps, path: &str, visit: &mut impl FnMut(&str, &JSONSchemaProps)) {
        visit(path, schema);
        for (name, member) in schema.properties.iter().flatten() {
            each(member, &format!("{path}.{name}"), visit);
        }
        if let Some(JSONSchemaPropsOrArray::Schema(item)) = &schema.items {
            each(item, &format!("{path}[]"), visit);
        }
        if let Some(JSONSchemaPropsOrBool::Schema(value)) = &schema.additional_properties {
            each(value, &format!("{path}{{}}"), visit);
        }
    }

    /// Returns the results of `find` for each schema of every kind, with their paths.
    fn find<T>(find: impl Fn(&JSONSchemaProps) -> Option<T>) -> Vec<(String, T)> {
        let mut found = Vec::new();
        for definition in definitions() {
            let schema = definition.spec.versions[0].schema.as_ref().unwrap().open_api_v3_schema.as_ref().unwrap();
            each(schema, &definition.spec.names.kind, &mut |path, schema| {
                found.extend(find(schema).map(|it| (path.to_owned(), it)));
            });
        }
        found
    }

    #[test]
    fn every_list_string_and_map_has_a_limit() {
        let without_limit = find(|schema| {
            let is_unbounded = match schema.type_.as_deref()? {
                "array" => schema.max_items.is_none(),
                "string" => schema.max_length.or(schema.enum_.as_ref().map(|_| 0)).is_none() && schema.format.is_none(),
                "object" => schema.additional_properties.is_some() && schema.max_properties.is_none(),
                _ => false,
            };
            is_unbounded.then_some(())
        });
        assert_eq!(without_limit, []);
    }

    #[test]
    fn every_number_has_a_format_that_api_servers_know_and_no_value_is_null() {
        let numbers = find(|schema| (schema.type_.as_deref() == Some("integer")).then(|| schema.format.clone()));
        let is_known = |format: &Option<String>| matches!(format.as_deref(), Some("int32" | "int64"));
        let unknown: Vec<String> = numbers.into_iter().filter(|(_, it)| !is_known(it)).map(|(path, _)| path).collect();
        assert_eq!(unknown, Vec::<String>::new());
        let unbounded =
            find(|schema| (schema.type_.as_deref() == Some("integer") && schema.minimum.is_none()).then_some(()));
        assert_eq!(unbounded, []);
        assert_eq!(find(|schema| schema.nullable), []);
    }

    #[test]
    fn every_list_has_a_type_and_only_some_lists_are_merged() {
        let types =
            find(|schema| (schema.type_.as_deref() == Some("array")).then(|| schema.x_kubernetes_list_type.clone()));
        let merged: Vec<(&str, &str)> = types
            .iter()
            .map(|(path, list_type)| (path.as_str(), list_type.as_deref().unwrap_or("none")))
            .filter(|(_, list_type)| *list_type != "atomic")
            .collect();
        let expected = [
            ("GlobalStaticIPPool.spec.excludedAddresses", "set"),
            ("GlobalStaticIPPool.spec.nodePoolRefs", "map"),
            ("GlobalStaticIPPool.status.conditions", "map"),
            ("GlobalStaticIPPool.status.families", "map"),
            ("MACPool.status.conditions", "map"),
            ("StaticIPLease.spec.secrets", "set"),
            ("StaticIPPool.spec.excludedAddresses", "set"),
            ("StaticIPPool.spec.nodePoolRefs", "map"),
            ("StaticIPPool.status.conditions", "map"),
            ("StaticIPPool.status.families", "map"),
        ];
        assert_eq!(merged, expected);
    }

    #[test]
    fn rules_exist_only_for_members_that_never_change() {
        let rules = find(|schema| schema.x_kubernetes_validations.clone());
        let rules: Vec<_> = rules
            .into_iter()
            .flat_map(|(path, rules)| rules.into_iter().map(move |rule| (path.clone(), rule.rule)))
            .collect();
        let expected = [
            "GlobalStaticIPPool.spec.network",
            "StaticIPLease.spec.address",
            "StaticIPLease.spec.network",
            "StaticIPPool.spec.network",
        ];
        assert_eq!(rules, expected.map(|path| (path.to_owned(), "self == oldSelf".to_owned())));
    }

    #[test]
    fn a_status_that_no_controller_has_written_describes_no_generation() {
        let defaults = find(|schema| schema.default.clone().filter(|default| default.0.is_object()));
        let expected = ["GlobalStaticIPPool", "MACPool", "StaticIPPool"];
        let expected = expected.map(|kind| (format!("{kind}.status"), JSON(json!({"observedGeneration": -1}))));
        assert_eq!(defaults, expected);
    }

    #[test]
    fn values_that_only_an_earlier_schema_allowed_are_reported_with_their_paths() {
        let schema: JSONSchemaProps = serde_json::from_value(json!({
            "type": "object",
            "properties": {
                "set": {"type": "array", "x-kubernetes-list-type": "set", "maxItems": 3, "items": {"type": "string", "maxLength": 2}},
                "list": {"type": "array", "x-kubernetes-list-type": "atomic", "items": {"type": "string"}},
                "map": {"type": "object", "maxProperties": 1, "additionalProperties": {"type": "string", "enum": ["x", "y"]}},
            },
        }))
        .unwrap();
        let lines = |value: Value| -> Vec<String> {
            let mut diagnostics = Diagnostics::default();
            compare(&schema, &value, FieldPath::Document, &mut diagnostics);
            diagnostics.kept().iter().map(ToString::to_string).collect()
        };
        assert_eq!(lines(json!({"set": ["a", "b"], "list": ["a", "a"], "map": {"a": "x"}, "other": [1]})), [""; 0]);
        let expected = [
            "map: too many members \"2\", expected at most 1",
            "map.b: unknown value \"z\", expected one of x, y",
            "set: too many items \"4\", expected at most 3",
            "set[2]: repeated item \"a\", expected each item once",
            "set[3]: too many characters \"3\", expected at most 2",
        ];
        assert_eq!(lines(json!({"set": ["a", "b", "a", "ccc"], "map": {"a": "x", "b": "z"}})), expected);
    }
}
