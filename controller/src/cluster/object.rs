//! Objects in the form in which the API server sends them in lists, watches and responses, and to webhooks.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::Resource;
use kube::api::{ApiResource, TypeMeta};
use kube::core::DynamicResourceScope;
use serde::de::{DeserializeOwned, DeserializeSeed, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

/// Maximum depth of nested lists and objects that is read. In the text of a list, the client reads at most 127 levels,
/// and each object begins at the third level.
const MAX_DEPTH: usize = 100;

/// An object of any kind, without its managed fields. Every object of the API server is read as this type.
///
/// Every user who has the right to write an object can also write its managed fields. An API server accepts a time
/// there that the client cannot parse, such as `9999-12-31T23:59:59Z`. With one such object, the whole list would be
/// unreadable, and no machine would be served. The controller does not need managed fields, so it never parses them. If
/// an object is replaced by an object without managed fields, the API server keeps the managed fields.
///
/// An object may also be too deep for the client. The definition of a kind may leave a member open, such as the
/// metadata in the template of a VirtualMachine. An API server accepts deeper values there than the client reads.
/// Values below 100 levels become null.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Object {
    /// API version and kind. `None` for an item of a list: such an item does not have these members.
    #[serde(flatten)]
    pub types: Option<TypeMeta>,
    /// Metadata of the object.
    pub metadata: ObjectMeta,
    /// All other members of the object.
    #[serde(flatten)]
    pub data: Value,
}

/// Reads a value with at most this number of levels of nested lists and objects. Replaces deeper values by null. Skips
/// the managed fields of an object: they are up to half of its text.
#[derive(Clone, Copy)]
struct Shallow {
    levels: usize,
    place: Place,
}

/// Where a value is.
#[derive(Clone, Copy)]
enum Place {
    /// The value is an object of the API server.
    Object,
    /// The value is the metadata of an object.
    Metadata,
    Elsewhere,
}

/// Returns the version of an object. API servers use a number that increases with each write.
pub(crate) fn version_of(metadata: &ObjectMeta) -> u64 {
    metadata.resource_version.as_ref().and_then(|version| version.parse().ok()).unwrap_or_default()
}

/// Reads an object for a unit test.
#[cfg(test)]
pub(crate) fn object(value: Value) -> Object {
    serde_json::from_value(value).unwrap()
}

// === impl Object ===

impl Object {
    /// Creates an object of a kind with this name.
    #[must_use]
    pub fn new(name: &str, kind: &ApiResource, data: Value) -> Self {
        let types = Some(TypeMeta { api_version: kind.api_version.clone(), kind: kind.kind.clone() });
        Self { types, metadata: ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() }, data }
    }

    /// Converts an object of a typed kind to this type.
    pub(crate) fn of(typed: &impl Serialize) -> Result<Self, serde_json::Error> {
        serde_json::from_value(serde_json::to_value(typed)?)
    }

    /// Converts the object to a typed kind.
    pub(crate) fn parse<K: DeserializeOwned>(self) -> Result<K, serde_json::Error> {
        serde_json::from_value(serde_json::to_value(self)?)
    }
}

impl<'de> Deserialize<'de> for Object {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let object = Shallow { levels: MAX_DEPTH, place: Place::Object };
        let Value::Object(mut members) = object.deserialize(from)? else {
            return Err(D::Error::custom("invalid value, expected an object"));
        };
        let metadata = match members.remove("metadata") {
            Some(metadata @ Value::Object(_)) => ObjectMeta::deserialize(metadata).map_err(D::Error::custom)?,
            None | Some(Value::Null) => ObjectMeta::default(),
            Some(_) => return Err(D::Error::custom("metadata: invalid value, expected an object")),
        };
        let types = match (members.remove("apiVersion"), members.remove("kind")) {
            (Some(Value::String(api_version)), Some(Value::String(kind))) => Some(TypeMeta { api_version, kind }),
            _ => None,
        };
        Ok(Self { types, metadata, data: Value::Object(members) })
    }
}

// === impl Shallow ===

impl Shallow {
    /// Returns how a member of this value is read. `None`: the member is skipped.
    fn member(self, name: &str) -> Option<Self> {
        let place = match (self.place, name) {
            (Place::Object, "metadata") => Place::Metadata,
            (Place::Metadata, "managedFields") => return None,
            _ => Place::Elsewhere,
        };
        Some(Self { levels: self.levels - 1, place })
    }
}

impl<'de> DeserializeSeed<'de> for Shallow {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Value, D::Error> {
        match self.levels {
            // serde_json can skip a value of any depth.
            0 => IgnoredAny::deserialize(from).map(|IgnoredAny| Value::Null),
            _ => from.deserialize_any(self),
        }
    }
}

impl<'de> Visitor<'de> for Shallow {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<Value, A::Error> {
        let (item, mut items) = (Self { levels: self.levels - 1, place: Place::Elsewhere }, Vec::new());
        while let Some(item) = from.next_element_seed(item)? {
            items.push(item);
        }
        Ok(Value::Array(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut from: A) -> Result<Value, A::Error> {
        let mut members = Map::new();
        while let Some(name) = from.next_key::<String>()? {
            match self.member(&name) {
                Some(member) => drop(members.insert(name, from.next_value_seed(member)?)),
                None => drop(from.next_value::<IgnoredAny>()?),
            }
        }
        Ok(Value::Object(members))
    }
}

impl Resource for Object {
    type DynamicType = ApiResource;
    type Scope = DynamicResourceScope;

    fn group(kind: &ApiResource) -> Cow<'_, str> {
        kind.group.as_str().into()
    }

    fn version(kind: &ApiResource) -> Cow<'_, str> {
        kind.version.as_str().into()
    }

    fn kind(kind: &ApiResource) -> Cow<'_, str> {
        kind.kind.as_str().into()
    }

    fn plural(kind: &ApiResource) -> Cow<'_, str> {
        kind.plural.as_str().into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

/// Returns metadata with only the members that decisions read. Of labels, annotations and owners, keeps only those with
/// these names and kinds, because users can write any number of them.
pub(crate) fn trimmed(metadata: ObjectMeta, names: &[&str], owners: &[&str]) -> ObjectMeta {
    let ObjectMeta {
        namespace,
        name,
        uid,
        resource_version,
        generation,
        creation_timestamp,
        deletion_timestamp,
        finalizers,
        ..
    } = metadata;
    let kept = |all: Option<BTreeMap<String, String>>| {
        let all = all.unwrap_or_default().into_iter().filter(|(name, _)| names.contains(&name.as_str()));
        Some(all.collect()).filter(|kept: &BTreeMap<_, _>| !kept.is_empty())
    };
    let owners = metadata.owner_references.map(|all| {
        all.into_iter().filter(|owner| owners.contains(&owner.kind.as_str())).collect::<Vec<OwnerReference>>()
    });
    ObjectMeta {
        namespace,
        name,
        uid,
        resource_version,
        generation,
        creation_timestamp,
        deletion_timestamp,
        finalizers,
        labels: kept(metadata.labels),
        annotations: kept(metadata.annotations),
        owner_references: owners.filter(|owners| !owners.is_empty()),
        ..ObjectMeta::default()
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_types, reason = "the type of the client is the comparison")]
mod tests {
    use kube::core::{DynamicObject, ObjectList, WatchEvent};
    use serde_json::error::Category;
    use serde_json::json;

    use super::*;

    fn read(object: &Value) -> Result<Object, String> {
        serde_json::from_value(object.clone()).map_err(|error: serde_json::Error| error.to_string())
    }

    #[test]
    fn an_object_has_all_members_that_the_client_reads_except_managed_fields() {
        let labels = json!({"a": "b"});
        let object = json!({
            "apiVersion": "v1", "kind": "K", "metadata": {"name": "n", "labels": labels}, "spec": {"a": [1]},
        });
        let expected = |object: &Value| {
            let DynamicObject { types, metadata, data } = serde_json::from_value(object.clone()).unwrap();
            Ok(Object { types, metadata, data })
        };
        for object in [object, json!({"spec": {}})] {
            assert_eq!(read(&object), expected(&object));
        }
    }

    #[test]
    fn a_time_in_managed_fields_that_the_client_cannot_parse_is_ignored() {
        let entry = |time: &str| json!([{"manager": "m", "operation": "Update", "time": time}]);
        let object = |time: &str| json!({"metadata": {"name": "n", "managedFields": entry(time)}});
        for time in ["9999-12-31T23:59:59Z", "10000-01-01T00:00:00Z", "-0001-12-31T23:59:59Z"] {
            assert_eq!(read(&object(time)).unwrap().metadata.managed_fields, None, "{time}");
            let error = serde_json::from_value::<DynamicObject>(object(time)).unwrap_err();
            assert_eq!(error.classify(), Category::Data, "{time}");
        }
    }

    #[test]
    fn invalid_metadata_is_an_error() {
        let error = "metadata: invalid value, expected an object";
        assert_eq!(read(&json!({"metadata": "x"})), Err(error.to_owned()));
    }

    #[test]
    fn a_deep_object_does_not_make_its_list_unreadable() {
        let deep = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        let object = |name: &str, member: &str| format!(r#"{{"metadata":{{"name":"{name}"}},"spec":{member}}}"#);
        let hostile = object("hostile", &deep(10_000));
        let list = format!(r#"{{"metadata":{{}},"items":[{hostile},{}]}}"#, object("honest", &deep(99)));
        let list = serde_json::from_str::<ObjectList<Object>>(&list).unwrap();
        let read: Vec<String> = list.items.iter().map(|object| object.data["spec"].to_string()).collect();
        let cut = format!("{}null{}", "[".repeat(99), "]".repeat(99));
        assert_eq!(read, [cut.clone(), deep(99)]);
        let event = format!(r#"{{"type":"ADDED","object":{hostile}}}"#);
        let WatchEvent::Added(object) = serde_json::from_str::<WatchEvent<Object>>(&event).unwrap() else { panic!() };
        assert_eq!(object.data["spec"].to_string(), cut);
    }

    /// Replaces the values below this depth by null.
    fn cut(value: Value, depth: usize) -> Value {
        match value {
            _ if depth == 0 => Value::Null,
            Value::Array(items) => items.into_iter().map(|item| cut(item, depth - 1)).collect(),
            Value::Object(members) => {
                members.into_iter().map(|(name, member)| (name, cut(member, depth - 1))).collect()
            }
            value => value,
        }
    }

    #[test]
    fn an_object_of_any_content_is_read_if_its_metadata_is_valid() {
        let entry = json!({"manager": "m", "operation": "Update", "time": "2026-08-14T10:00:00Z"});
        let valid = json!({
            "apiVersion": "v1", "kind": "K",
            "metadata": {
                "namespace": "n", "name": "hostile", "labels": {"a": "b"}, "annotations": {"a": "{}"}, "managedFields": [entry],
                "ownerReferences": [{"apiVersion": "v1", "kind": "K", "name": "honest", "uid": "u"}], "finalizers": ["a/b"],
            },
            "spec": {"list": [1, -1, 0.5, true, null, {"a": "b"}]},
        });
        crate::variants::each_text(&valid, |text| {
            // serde_json reads no `Value` from a text with more than 127 levels.
            let Ok(value) = serde_json::from_str::<Value>(text) else {
                return serde_json::from_str::<Object>(text).is_ok();
            };
            let mut value = cut(value, MAX_DEPTH);
            if let Some(metadata) = value["metadata"].as_object_mut() {
                metadata.remove("managedFields");
            }
            let Ok(expected) = serde_json::from_value::<DynamicObject>(value) else { return false };
            let read: Object = serde_json::from_str(text).unwrap();
            assert_eq!((&read.metadata, &read.data["spec"]), (&expected.metadata, &expected.data["spec"]));
            true
        });
    }
}
