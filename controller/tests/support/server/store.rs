//! The objects of the server, and the effect of each request on them. This module uses no sockets and no tasks.

use std::collections::BTreeMap;

use k8s_openapi::jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::managers::{Manager, Managers};
use super::patch;

/// A request, as parsed from its method, path, query, headers and body.
#[derive(Clone, Debug, Default)]
pub struct Call {
    pub user: String,
    /// The verb as in a ClusterRole: `get`, `list`, `watch`, `create`, `update`, `patch` or `delete`.
    pub verb: &'static str,
    pub group: String,
    pub version: String,
    pub plural: String,
    pub namespace: Option<String>,
    pub name: Option<String>,
    pub subresource: Option<String>,
    pub query: BTreeMap<String, String>,
    pub content_type: String,
    pub user_agent: String,
    pub body: Value,
}

/// A response that is not the object: code, reason, message and details of a `Status`. Without a reason, the response
/// is the message as text.
#[derive(Clone, Debug)]
pub struct Refusal {
    pub code: u16,
    pub reason: &'static str,
    pub message: String,
    details: Value,
}

/// A kind that the server serves.
#[derive(Clone, Debug)]
pub struct Kind {
    pub group: String,
    /// Served versions, each with its schema if a CRD defines a schema.
    pub versions: Vec<(String, Option<Value>)>,
    pub plural: String,
    pub singular: String,
    pub kind: String,
    pub namespaced: bool,
    pub status: bool,
    pub custom: bool,
}

/// Finalizers of the garbage collector.
const FOREGROUND: &str = "foregroundDeletion";
const ORPHAN: &str = "orphan";

/// Group, plural, namespace and name.
pub type Key = (String, String, String, String);

/// An event of a watch.
#[derive(Clone, Debug)]
pub struct Event {
    pub version: u64,
    pub key: Key,
    /// The object before the change, because a selector of a watch may have matched it. `None`: the object did not
    /// exist.
    pub before: Option<Value>,
    /// The object after the change, or its last state if it was deleted.
    pub object: Value,
    pub deleted: bool,
}

/// A write that is decided but not stored yet. Admission is called between the two steps.
#[derive(Clone, Debug)]
pub struct Write {
    pub operation: &'static str,
    pub kind: Kind,
    pub key: Key,
    pub old: Option<Value>,
    pub new: Option<Value>,
    /// The managers of the fields after the write. Fields that webhooks change get no manager.
    pub managers: Managers,
}

#[derive(Default)]
pub struct Store {
    kinds: Vec<Kind>,
    objects: BTreeMap<Key, Value>,
    managers: BTreeMap<Key, Managers>,
    pub log: Vec<Event>,
    version: u64,
    uids: u64,
    /// Version of the last compaction: a watch from an older version, and a page of a list of this or an older version,
    /// get 410.
    pub compacted: u64,
}

/// The objects of a store at one time.
pub struct Backup {
    objects: BTreeMap<Key, Value>,
    managers: BTreeMap<Key, Managers>,
    version: u64,
}

// === impl Call ===

impl Call {
    /// Returns whether the request is a server-side apply.
    pub fn is_apply(&self) -> bool {
        self.content_type == "application/apply-patch+yaml"
    }

    /// Returns whether the request is a dry run, which stores nothing. A deletion has this option in its body.
    pub fn is_dry_run(&self) -> bool {
        self.query.contains_key("dryRun") || self.verb == "delete" && self.body.get("dryRun").is_some()
    }
}

// === impl Refusal ===

impl Refusal {
    pub fn new(code: u16, reason: &'static str, message: impl Into<String>) -> Self {
        Self { code, reason, message: message.into(), details: json!({}) }
    }

    /// Returns the response to a creation in a namespace that is being deleted.
    fn terminating(namespace: &str, message: String) -> Self {
        let cause = json!({
            "reason": "NamespaceTerminating", "message": format!("namespace {namespace} is being terminated"),
            "field": "metadata.namespace",
        });
        Self { details: json!({"causes": [cause]}), ..Self::new(403, "Forbidden", message) }
    }

    pub fn not_found(call: &Call) -> Self {
        Self::absent(call.name.as_deref().unwrap_or_default(), &call.group, &call.plural)
    }

    fn absent(name: &str, group: &str, plural: &str) -> Self {
        let dot = if group.is_empty() { "" } else { "." };
        let mut details = json!({"name": name, "kind": plural});
        if !group.is_empty() {
            details["group"] = group.into();
        }
        Self { details, ..Self::new(404, "NotFound", format!("{plural}{dot}{group} {name:?} not found")) }
    }

    /// Returns the response to a request for a kind that the server does not serve: a text.
    pub fn unserved() -> Self {
        Self::new(404, "", "404 page not found\n")
    }

    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(422, "Invalid", message)
    }

    pub fn status(&self) -> Value {
        json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": self.message,
               "reason": self.reason, "code": self.code, "details": self.details})
    }
}

// === impl Kind ===

impl Kind {
    fn builtin(group: &str, version: &str, plural: &str, kind: &str, namespaced: bool, status: bool) -> Self {
        Self {
            group: group.to_owned(),
            versions: vec![(version.to_owned(), None)],
            plural: plural.to_owned(),
            singular: kind.to_lowercase(),
            kind: kind.to_owned(),
            namespaced,
            status,
            custom: false,
        }
    }

    fn of_definition(definition: &Value) -> Self {
        let spec = &definition["spec"];
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let versions = spec["versions"].as_array().cloned().unwrap_or_default();
        let served = versions.iter().filter(|version| version["served"] == true);
        let served =
            served.map(|version| (text(&version["name"]), version.pointer("/schema/openAPIV3Schema").cloned()));
        Self {
            group: text(&spec["group"]),
            versions: served.collect(),
            plural: text(&spec["names"]["plural"]),
            singular: text(&spec["names"]["singular"]),
            kind: text(&spec["names"]["kind"]),
            namespaced: spec["scope"] == "Namespaced",
            status: versions.iter().any(|version| version.pointer("/subresources/status").is_some()),
            custom: true,
        }
    }

    /// Returns the object with the default values of the schema of `version`.
    fn filled(&self, version: &str, mut object: Value) -> Value {
        if let Some((_, Some(schema))) = self.versions.iter().find(|(name, _)| name == version) {
            patch::fill(schema, &mut object);
        }
        object
    }

    /// Returns the object in `version`. The server does not convert objects: the schema of the version only prunes the
    /// object and adds default values.
    pub fn show(&self, version: &str, object: &Value) -> Value {
        let mut object = object.clone();
        let group = if self.group.is_empty() { String::new() } else { format!("{}/", self.group) };
        object["apiVersion"] = format!("{group}{version}").into();
        object["kind"] = self.kind.clone().into();
        if let Some((_, Some(schema))) = self.versions.iter().find(|(name, _)| name == version) {
            patch::prune(schema, &mut object, true);
            patch::fill(schema, &mut object);
        }
        object
    }
}

// === impl Store ===

impl Store {
    pub fn new() -> Self {
        let builtin = [
            ("", "v1", "namespaces", "Namespace", false, true),
            ("", "v1", "secrets", "Secret", true, false),
            ("", "v1", "configmaps", "ConfigMap", true, false),
            ("", "v1", "serviceaccounts", "ServiceAccount", true, false),
            ("", "v1", "services", "Service", true, true),
            ("apps", "v1", "deployments", "Deployment", true, true),
            ("events.k8s.io", "v1", "events", "Event", true, false),
            ("coordination.k8s.io", "v1", "leases", "Lease", true, false),
            ("apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", false, true),
            (
                "admissionregistration.k8s.io",
                "v1",
                "mutatingwebhookconfigurations",
                "MutatingWebhookConfiguration",
                false,
                false,
            ),
            (
                "admissionregistration.k8s.io",
                "v1",
                "validatingwebhookconfigurations",
                "ValidatingWebhookConfiguration",
                false,
                false,
            ),
            ("rbac.authorization.k8s.io", "v1", "clusterroles", "ClusterRole", false, false),
            ("rbac.authorization.k8s.io", "v1", "clusterrolebindings", "ClusterRoleBinding", false, false),
            ("rbac.authorization.k8s.io", "v1", "roles", "Role", true, false),
            ("rbac.authorization.k8s.io", "v1", "rolebindings", "RoleBinding", true, false),
        ];
        let kinds = builtin.map(|(group, version, plural, kind, namespaced, status)| {
            Kind::builtin(group, version, plural, kind, namespaced, status)
        });
        let mut store = Self { kinds: kinds.into(), version: 1, ..Self::default() };
        let namespace = (String::new(), "namespaces".to_owned(), String::new(), "default".to_owned());
        let mut object = json!({"metadata": {"name": "default"}});
        store.birth(&mut object);
        store.put(namespace, object);
        store
    }

    pub fn version(&self) -> u64 {
        self.version
    }

    /// Returns a backup of the objects.
    pub fn backup(&self) -> Backup {
        Backup { objects: self.objects.clone(), managers: self.managers.clone(), version: self.version }
    }

    /// Replaces all objects by the objects of a backup, as if nothing had happened since the backup.
    pub fn restore(&mut self, backup: Backup) {
        let Backup { objects, managers, version } = backup;
        (self.objects, self.managers, self.version) = (objects, managers, version);
        self.log.retain(|event| event.version <= version);
    }

    pub fn kinds(&self) -> impl Iterator<Item = &Kind> {
        self.kinds.iter()
    }

    pub fn kind(&self, call: &Call) -> Result<Kind, Refusal> {
        let served = |kind: &&Kind| {
            kind.group == call.group
                && kind.plural == call.plural
                && kind.versions.iter().any(|(version, _)| *version == call.version)
        };
        let missing = || match self.kinds.iter().any(|kind| !kind.custom && kind.group == call.group) {
            // For its own groups, the API server answers differently than for the groups of CRDs.
            true => Refusal::new(404, "NotFound", "the server could not find the requested resource"),
            false => Refusal::unserved(),
        };
        self.kinds.iter().find(served).cloned().ok_or_else(missing)
    }

    /// Returns all objects of a kind.
    pub fn all<'a>(&'a self, group: &'a str, plural: &'a str) -> impl Iterator<Item = &'a Value> {
        self.objects.iter().filter(move |(key, _)| key.0 == group && key.1 == plural).map(|(_, object)| object)
    }

    pub fn namespace(&self, name: &str) -> Option<&Value> {
        self.objects.get(&(String::new(), "namespaces".to_owned(), String::new(), name.to_owned()))
    }

    pub fn get(&self, call: &Call) -> Result<Value, Refusal> {
        self.objects.get(&key(call)).cloned().ok_or_else(|| Refusal::not_found(call))
    }

    /// Returns a page of a list, and the metadata of the list. Pages after the first one show the current objects.
    pub fn list(&self, call: &Call) -> Result<(Vec<Value>, Value), Refusal> {
        let number = |name: &str| call.query.get(name).and_then(|text| text.parse::<usize>().ok());
        let (version, after) = match call.query.get("continue").filter(|token| !token.is_empty()) {
            Some(token) => {
                let (version, after) = token.split_once(' ').unwrap_or_default();
                let version: u64 = version.parse().unwrap_or_default();
                if version <= self.compacted {
                    return Err(Refusal::new(410, "Expired", "The provided continue parameter is too old"));
                }
                (version, after.split_once('/').map(|(space, name)| (space.to_owned(), name.to_owned())))
            }
            None => (self.version, None),
        };
        let limit = number("limit").filter(|limit| *limit > 0).unwrap_or(usize::MAX);
        let of_call = |(key, object): &(&Key, &Value)| is_of(call, key) && selects(call, object);
        let is_after = |key: &Key| after.as_ref().is_none_or(|after| (&key.2, &key.3) > (&after.0, &after.1));
        let mut rest = self.objects.iter().filter(of_call).filter(|(key, _)| is_after(key));
        let page: Vec<(&Key, &Value)> = rest.by_ref().take(limit).collect();
        let remaining = rest.count();
        let mut metadata = json!({"resourceVersion": version.to_string()});
        if let (Some((last, _)), 1..) = (page.last(), remaining) {
            metadata["continue"] = format!("{version} {}/{}", last.2, last.3).into();
            metadata["remainingItemCount"] = remaining.into();
        }
        Ok((page.into_iter().map(|(_, object)| object.clone()).collect(), metadata))
    }

    /// Decides the content of a write, from the stored objects.
    pub fn prepare(&mut self, call: &Call) -> Result<Write, Refusal> {
        let kind = self.kind(call)?;
        let key = key(call);
        let manager = Manager::of(call);
        if call.verb == "create" {
            let mut write = self.prepare_create(call, kind)?;
            write.managers.update(manager, &Value::Null, write.new.as_ref().unwrap_or(&Value::Null));
            return Ok(write);
        }
        // A server adds the default values of the current schema when it reads a stored object.
        let stored = self.objects.get(&key).map(|object| kind.filled(&call.version, object.clone()));
        let Some(old) = stored else {
            if call.is_apply() && call.subresource.is_none() {
                let mut create = Call { verb: "create", ..call.clone() };
                create.body["metadata"]["name"] = call.name.clone().into();
                let mut write = self.prepare_create(&create, kind)?;
                write.managers.apply(manager, call, &create.body, &json!({}))?;
                return Ok(write);
            }
            return Err(Refusal::not_found(call));
        };
        let mut managers = self.managers.get(&key).cloned().unwrap_or_default();
        if call.verb == "delete" {
            let new = self.delete(call, &old)?;
            return Ok(Write { operation: "DELETE", new, kind, key, old: Some(old), managers });
        }
        let mut new = match (call.verb, call.content_type.as_str()) {
            ("update", _) => call.body.clone(),
            (_, "application/merge-patch+json") => patch::merge(&old, &call.body),
            (_, "application/json-patch+json") => patch::json(&old, &call.body)?,
            (_, "application/apply-patch+yaml") => managers.apply(manager.clone(), call, &call.body, &old)?,
            (_, other) => {
                let message = format!("the body of the request was in an unknown format - {other}");
                return Err(Refusal::new(415, "UnsupportedMediaType", message));
            }
        };
        let conflict = |message: &str| {
            let name = call.name.as_deref().unwrap_or_default();
            let message =
                format!("Operation cannot be fulfilled on {}.{} {name:?}: {message}", call.plural, call.group);
            Refusal::new(409, "Conflict", message)
        };
        let meta = |object: &Value, member: &str| object["metadata"][member].as_str().unwrap_or_default().to_owned();
        if meta(&new, "name") != key.3 {
            return Err(Refusal::new(400, "BadRequest", "the name of the object does not match the name on the URL"));
        }
        let (asked, stored) = (meta(&new, "resourceVersion"), meta(&old, "resourceVersion"));
        if asked.is_empty() && kind.custom && call.verb == "update" {
            return Err(Refusal::invalid(
                "metadata.resourceVersion: Invalid value: 0x0: must be specified for an update",
            ));
        }
        if !asked.is_empty() && asked != stored {
            return Err(conflict(
                "the object has been modified; please apply your changes to the latest version and try again",
            ));
        }
        let uid = meta(&new, "uid");
        if !uid.is_empty() && uid != meta(&old, "uid") {
            return Err(conflict("Precondition failed: UID in precondition"));
        }
        for member in ["uid", "creationTimestamp", "generation", "resourceVersion", "deletionTimestamp", "namespace"] {
            set(&mut new["metadata"], member, old["metadata"].get(member).cloned());
        }
        if call.subresource.as_deref() == Some("finalize") {
            let finalizers = new["spec"].get("finalizers").cloned();
            new = old.clone();
            set(&mut new["spec"], "finalizers", finalizers);
        } else if kind.status {
            // A write of the object keeps its status, and a write of the status keeps everything else.
            let mut kept = if call.subresource.is_some() { old.clone() } else { new.clone() };
            let status = if call.subresource.is_some() { new.get("status") } else { old.get("status") };
            set(&mut kept, "status", status.cloned());
            new = kept;
        }
        if old.get("immutable") == Some(&json!(true))
            && (new.get("data") != old.get("data") || new["immutable"] != true)
        {
            return Err(Refusal::invalid("data: Forbidden: field is immutable when `immutable` is set"));
        }
        patch::shape(&kind, &call.version, &mut new, Some(&old))?;
        let adds =
            |finalizer: &Value| !old["metadata"]["finalizers"].as_array().is_some_and(|old| old.contains(finalizer));
        let is_deleted = old["metadata"].get("deletionTimestamp").is_some();
        if is_deleted && new["metadata"]["finalizers"].as_array().is_some_and(|finalizers| finalizers.iter().any(adds))
        {
            return Err(Refusal::invalid(
                "metadata.finalizers: Forbidden: no new finalizers can be added if the object is being deleted",
            ));
        }
        if kind.custom && without(&new) != without(&old) {
            new["metadata"]["generation"] = (old["metadata"]["generation"].as_i64().unwrap_or_default() + 1).into();
        }
        if !call.is_apply() {
            managers.update(manager, &old, &new);
        }
        Ok(Write { operation: "UPDATE", kind, key, old: Some(old), new: Some(new), managers })
    }

    /// Stores a prepared write, unless the request is a dry run, and returns the object. `None`: the object has changed
    /// since the write was decided.
    pub fn commit(&mut self, write: Write, call: &Call) -> Option<Value> {
        let version = |object: Option<&Value>| object.map(|object| object["metadata"]["resourceVersion"].clone());
        if version(self.objects.get(&write.key)) != version(write.old.as_ref()) {
            return None;
        }
        let is_dry = call.is_dry_run();
        // An object that is being deleted is removed together with its last finalizer.
        let is_gone = |new: &Value| new["metadata"].get("deletionTimestamp").is_some() && !is_kept(new);
        match write.new.filter(|new| !is_gone(new)) {
            Some(new) if is_dry => Some(new),
            Some(new) => {
                let managers = self.managers.insert(write.key.clone(), write.managers.clone());
                // An apply that changes only the managers of fields creates a new version, too.
                let has_new_owners = call.is_apply() && managers.as_ref() != Some(&write.managers);
                match Some(&new) == write.old.as_ref() && !has_new_owners {
                    true => Some(new),
                    false => Some(self.put(write.key, new)),
                }
            }
            None => {
                let mut gone = write.old.unwrap_or_default();
                if !is_dry {
                    let before = self.objects.remove(&write.key);
                    self.managers.remove(&write.key);
                    if write.kind.kind == "CustomResourceDefinition" {
                        self.kinds.retain(|kind| format!("{}.{}", kind.plural, kind.group) != write.key.3);
                    }
                    self.version += 1;
                    gone["metadata"]["resourceVersion"] = self.version.to_string().into();
                    let event =
                        Event { version: self.version, key: write.key, before, object: gone.clone(), deleted: true };
                    self.log.push(event);
                }
                Some(gone)
            }
        }
    }

    fn prepare_create(&mut self, call: &Call, kind: Kind) -> Result<Write, Refusal> {
        let mut new = call.body.clone();
        if !new["metadata"].is_object() {
            new["metadata"] = json!({});
        }
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        if let (true, Some(prefix)) =
            (new["metadata"].get("name").is_none(), new["metadata"].get("generateName").cloned())
        {
            self.uids += 1;
            new["metadata"]["name"] = format!("{}{:05}", text(&prefix), self.uids).into();
        }
        let name = text(&new["metadata"]["name"]);
        let legal = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'.');
        if name.is_empty()
            || name.len() > 253
            || !(name.bytes().all(legal) || call.group == "rbac.authorization.k8s.io")
        {
            return Err(Refusal::invalid(format!("metadata.name: Invalid value: {name:?}")));
        }
        if let Some(namespace) = call.namespace.as_deref().filter(|_| kind.namespaced) {
            let Some(object) = self.namespace(namespace) else {
                return Err(Refusal::absent(namespace, "", "namespaces"));
            };
            if object["metadata"].get("deletionTimestamp").is_some() {
                let problem = "unable to create new content in namespace";
                let message = format!(
                    "{}.{} {name:?} is forbidden: {problem} {namespace} because it is being terminated",
                    call.plural, call.group
                );
                return Err(Refusal::terminating(namespace, message));
            }
            new["metadata"]["namespace"] = namespace.into();
        }
        let mut key = key(call);
        key.3.clone_from(&name);
        if self.objects.contains_key(&key) {
            let message = format!("{}.{} {name:?} already exists", call.plural, call.group);
            return Err(Refusal::new(409, "AlreadyExists", message));
        }
        if !text(&new["metadata"]["resourceVersion"]).is_empty() {
            return Err(Refusal::new(400, "BadRequest", "resourceVersion should not be set on objects to be created"));
        }
        if kind.status && kind.custom {
            set(&mut new, "status", None);
        }
        new = kind.show(&call.version, &new);
        if kind.kind == "Namespace" {
            new["spec"] = json!({"finalizers": ["kubernetes"]});
            new["status"] = json!({"phase": "Active"});
        }
        patch::shape(&kind, &call.version, &mut new, None)?;
        Ok(Write { operation: "CREATE", kind, key, old: None, new: Some(new), managers: Managers::default() })
    }

    /// Returns the object after a request to delete it. `None`: no finalizer keeps the object.
    fn delete(&self, call: &Call, old: &Value) -> Result<Option<Value>, Refusal> {
        for (member, value) in call.body["preconditions"].as_object().into_iter().flatten() {
            if old["metadata"][member] != *value {
                let message = format!(
                    "Precondition failed: {member} in precondition: {value}, in object: {}",
                    old["metadata"][member]
                );
                return Err(Refusal::new(409, "Conflict", message));
            }
        }
        let mut kept = old.clone();
        if let Some(policy) = call.body["propagationPolicy"].as_str() {
            let all = old["metadata"]["finalizers"].as_array().into_iter().flatten();
            let mut finalizers: Vec<Value> =
                all.filter(|name| *name != FOREGROUND && *name != ORPHAN).cloned().collect();
            finalizers.extend(match policy {
                "Foreground" => Some(FOREGROUND.into()),
                "Orphan" => Some(ORPHAN.into()),
                _ => None,
            });
            kept["metadata"]["finalizers"] = finalizers.into();
        }
        let keeps = is_kept(&kept);
        if keeps && kept["metadata"].get("deletionTimestamp").is_none() {
            kept["metadata"]["deletionTimestamp"] = now().into();
            if call.plural == "namespaces" {
                kept["status"]["phase"] = "Terminating".into();
            }
        }
        Ok(keeps.then_some(kept))
    }

    fn birth(&mut self, object: &mut Value) {
        self.uids += 1;
        object["metadata"]["uid"] = format!("00000000-0000-4000-8000-{:012x}", self.uids).into();
        object["metadata"]["creationTimestamp"] = now().into();
        object["metadata"]["generation"] = 1.into();
    }

    fn put(&mut self, key: Key, mut object: Value) -> Value {
        if object["metadata"].get("uid").is_none() {
            self.birth(&mut object);
        }
        self.version += 1;
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        if key.1 == "customresourcedefinitions" {
            let kind = Kind::of_definition(&object);
            self.kinds.retain(|known| (&known.group, &known.plural) != (&kind.group, &kind.plural));
            let versions: Vec<&String> = kind.versions.iter().map(|(version, _)| version).collect();
            let conditions = ["NamesAccepted", "Established"];
            let conditions = conditions.map(|kind| json!({"type": kind, "status": "True", "reason": "Accepted"}));
            let names = object["spec"]["names"].clone();
            object["status"] = json!({"acceptedNames": names, "storedVersions": versions, "conditions": conditions});
            self.kinds.push(kind);
        }
        let before = self.objects.insert(key.clone(), object.clone());
        self.log.push(Event { version: self.version, key, before, object: object.clone(), deleted: false });
        object
    }
}

/// Returns whether a watch or a list includes objects of this key.
pub fn is_of(call: &Call, key: &Key) -> bool {
    key.0 == call.group && key.1 == call.plural && call.namespace.as_ref().is_none_or(|namespace| *namespace == key.2)
}

/// Returns whether the selectors of a list or watch match an object. Selectors of labels test equality and existence,
/// and selectors of fields test equality.
pub fn selects(call: &Call, object: &Value) -> bool {
    let terms = |name: &str| {
        let terms: Vec<String> =
            call.query.get(name).into_iter().flat_map(|text| text.split(',')).map(str::to_owned).collect();
        terms.into_iter().filter(|term| !term.is_empty())
    };
    let labels = &object["metadata"]["labels"];
    let has_label = |term: String| match term.split_once('=') {
        Some((name, value)) => labels[name] == value.trim_start_matches('='),
        None => term.strip_prefix('!').map_or_else(|| labels.get(&term).is_some(), |term| labels.get(term).is_none()),
    };
    let has_field = |term: String| match term.split_once('=') {
        Some((path, value)) => {
            object.pointer(&format!("/{}", path.replace('.', "/"))).and_then(Value::as_str) == Some(value)
        }
        None => false,
    };
    terms("labelSelector").all(has_label) && terms("fieldSelector").all(has_field)
}

fn key(call: &Call) -> Key {
    let namespace = call.namespace.clone().unwrap_or_default();
    (call.group.clone(), call.plural.clone(), namespace, call.name.clone().unwrap_or_default())
}

/// Returns whether a finalizer keeps an object that is being deleted.
fn is_kept(object: &Value) -> bool {
    let of_namespace = if object["kind"] == "Namespace" { &object["spec"]["finalizers"] } else { &Value::Null };
    let mut finalizers = [&object["metadata"]["finalizers"], of_namespace].into_iter();
    finalizers.any(|all| all.as_array().is_some_and(|all| !all.is_empty()))
}

fn now() -> String {
    Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

fn set(object: &mut Value, member: &str, value: Option<Value>) {
    if let Some(object) = object.as_object_mut() {
        match value {
            Some(value) => drop(object.insert(member.to_owned(), value)),
            None => drop(object.remove(member)),
        }
    }
}

/// Returns the parts of an object whose changes increase its generation.
fn without(object: &Value) -> Map<String, Value> {
    let mut members = object.as_object().cloned().unwrap_or_default();
    members.retain(|name, _| !matches!(name.as_str(), "metadata" | "status" | "apiVersion" | "kind"));
    members
}
