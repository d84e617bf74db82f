//! Objects as the API server sends them in lists, in watches and to webhooks.

use std::borrow::Cow;
use std::ops::Deref;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use kube::api::{ApiResource, DynamicObject, TypeMeta};
use kube::core::DynamicResourceScope;
use kube::runtime::watcher::Event;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

/// An object without its managed fields.
///
/// Every user who may write an object may also write its managed fields. An API server accepts a time there that the
/// client cannot parse, such as `9999-12-31T23:59:59Z`. With one such object, the whole list
/// would be unreadable, and no machine would be served. The controller does not need managed fields, so it never
/// parses them.
#[derive(Clone, Debug)]
pub struct Object(pub DynamicObject);

/// Converts an event of a watch.
pub(crate) fn plain(event: Event<Object>) -> Event<DynamicObject> {
    match event {
        Event::Init => Event::Init,
        Event::InitApply(Object(object)) => Event::InitApply(object),
        Event::InitDone => Event::InitDone,
        Event::Apply(Object(object)) => Event::Apply(object),
        Event::Delete(Object(object)) => Event::Delete(object),
    }
}

// === impl Object ===

impl<'de> Deserialize<'de> for Object {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let mut members = Map::deserialize(from)?;
        let metadata = match members.remove("metadata") {
            Some(Value::Object(mut metadata)) => {
                metadata.remove("managedFields");
                ObjectMeta::deserialize(Value::Object(metadata)).map_err(D::Error::custom)?
            }
            None | Some(Value::Null) => ObjectMeta::default(),
            Some(_) => return Err(D::Error::custom("metadata: invalid value, expected an object")),
        };
        let types = match (members.remove("apiVersion"), members.remove("kind")) {
            (Some(Value::String(api_version)), Some(Value::String(kind))) => Some(TypeMeta { api_version, kind }),
            _ => None,
        };
        Ok(Self(DynamicObject { types, metadata, data: Value::Object(members) }))
    }
}

impl Deref for Object {
    type Target = DynamicObject;

    fn deref(&self) -> &DynamicObject {
        &self.0
    }
}

impl Resource for Object {
    type DynamicType = ApiResource;
    type Scope = DynamicResourceScope;

    fn group(kind: &ApiResource) -> Cow<'_, str> {
        DynamicObject::group(kind)
    }

    fn version(kind: &ApiResource) -> Cow<'_, str> {
        DynamicObject::version(kind)
    }

    fn kind(kind: &ApiResource) -> Cow<'_, str> {
        DynamicObject::kind(kind)
    }

    fn plural(kind: &ApiResource) -> Cow<'_, str> {
        DynamicObject::plural(kind)
    }

    fn meta(&self) -> &ObjectMeta {
        &self.0.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.0.metadata
    }
}

#[cfg(test)]
mod tests {
    use serde_json::error::Category;
    use serde_json::json;

    use super::*;

    fn read(object: &Value) -> Result<DynamicObject, String> {
        serde_json::from_value::<Object>(object.clone()).map(|Object(object)| object).map_err(|error| error.to_string())
    }

    #[test]
    fn an_object_has_the_members_that_the_client_reads_without_managed_fields() {
        let labels = json!({"a": "b"});
        let object = json!({
            "apiVersion": "v1", "kind": "K", "metadata": {"name": "n", "labels": labels}, "spec": {"a": [1]},
        });
        assert_eq!(read(&object), Ok(serde_json::from_value(object).unwrap()));
        assert_eq!(read(&json!({"spec": {}})), Ok(serde_json::from_value(json!({"spec": {}})).unwrap()));
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
}
