//! Authorization: the roles and bindings in the store, for users and service accounts.

use serde_json::{Value, json};

use super::store::{Call, Refusal, Store, Write};

/// A user with all rights, like the group `system:masters`.
pub const ADMIN: &str = "admin";
/// The service account of KubeVirt, which has all rights in the tests.
pub const KUBEVIRT: &str = "system:serviceaccount:kubevirt:kubevirt-controller";

/// Rejects a call if no role of its user allows it.
pub fn authorize(store: &Store, call: &Call) -> Result<(), Refusal> {
    const GROUP: &str = "rbac.authorization.k8s.io";
    if [ADMIN, KUBEVIRT].contains(&call.user.as_str()) {
        return Ok(());
    }
    let bound = |binding: &&Value| {
        binding["subjects"].as_array().is_some_and(|all| all.iter().any(|one| is_subject(one, &call.user)))
    };
    let everywhere = store.all(GROUP, "clusterrolebindings").filter(bound);
    let here = store
        .all(GROUP, "rolebindings")
        .filter(|binding| binding["metadata"]["namespace"].as_str() == call.namespace.as_deref());
    for binding in everywhere.chain(here.filter(bound)) {
        let reference = &binding["roleRef"];
        let is_cluster = reference["kind"] == "ClusterRole";
        let mut roles = store.all(GROUP, if is_cluster { "clusterroles" } else { "roles" });
        let is_meant = |role: &&Value| {
            role["metadata"]["name"] == reference["name"]
                && (is_cluster || role["metadata"]["namespace"] == binding["metadata"]["namespace"])
        };
        let rules = roles.find(is_meant).and_then(|role| role["rules"].as_array());
        if rules.into_iter().flatten().any(|rule| allows(rule, call)) {
            return Ok(());
        }
    }
    let message = format!(
        "{}.{} is forbidden: User {:?} cannot {} resource {:?} in API group {:?}",
        call.plural, call.group, call.user, call.verb, call.plural, call.group
    );
    Err(Refusal::new(403, "Forbidden", message))
}

/// Returns the rights on owners that OpenShift requires for a write: the right to update the `finalizers` of each owner
/// whose `blockOwnerDeletion` the write adds.
pub fn of_owners(store: &Store, call: &Call, write: &Write) -> Vec<Call> {
    let blocking = |object: &Option<Value>| -> Vec<Value> {
        let owners = object.iter().flat_map(|object| object["metadata"]["ownerReferences"].as_array());
        owners.flatten().filter(|owner| owner["blockOwnerDeletion"] == true).cloned().collect()
    };
    let before = blocking(&write.old);
    let added = blocking(&write.new).into_iter().filter(|owner| !before.contains(owner));
    let right = |owner: Value| {
        let text = |member: &str| owner[member].as_str().unwrap_or_default().to_owned();
        let api_version = text("apiVersion");
        let (group, version) = api_version.split_once('/').unwrap_or(("", &api_version));
        let kind = store.kinds().find(|kind| kind.group == group && kind.kind == text("kind"))?;
        Some(Call {
            user: call.user.clone(),
            verb: "update",
            group: group.to_owned(),
            version: version.to_owned(),
            plural: kind.plural.clone(),
            namespace: call.namespace.clone().filter(|_| kind.namespaced),
            name: Some(text("name")),
            subresource: Some("finalizers".to_owned()),
            ..Call::default()
        })
    };
    added.filter_map(right).collect()
}

/// The token of [`ADMIN`]; there is no other token.
pub const TOKEN: &str = "token-of-the-test";

/// Returns the response to a review. Only [`TOKEN`] is valid, and only [`ADMIN`] has access: roles are ignored. `None`:
/// the call is no review.
pub fn review(call: &Call) -> Option<Value> {
    let spec = &call.body["spec"];
    let status = match call.plural.as_str() {
        "tokenreviews" if spec["token"] == TOKEN => {
            json!({"authenticated": true, "user": {"username": ADMIN, "groups": ["system:masters"]}})
        }
        "tokenreviews" => json!({"authenticated": false, "error": "invalid bearer token"}),
        "subjectaccessreviews" => json!({"allowed": spec["user"] == ADMIN}),
        _ => return None,
    };
    let mut review = call.body.clone();
    review["status"] = status;
    Some(review)
}

fn is_subject(subject: &Value, user: &str) -> bool {
    let text = |member: &str| subject[member].as_str().unwrap_or_default();
    match text("kind") {
        "ServiceAccount" => user == format!("system:serviceaccount:{}:{}", text("namespace"), text("name")),
        "User" => text("name") == user,
        _ => false,
    }
}

fn allows(rule: &Value, call: &Call) -> bool {
    let has = |member: &str, wanted: &str| {
        rule[member].as_array().is_some_and(|all| all.iter().any(|one| one == wanted || one == "*"))
    };
    let resource = match &call.subresource {
        Some(subresource) => format!("{}/{subresource}", call.plural),
        None => call.plural.clone(),
    };
    let names = rule["resourceNames"].as_array();
    has("verbs", call.verb)
        && has("apiGroups", &call.group)
        && has("resources", &resource)
        && names.is_none_or(|names| {
            names.is_empty() || call.name.as_ref().is_some_and(|name| names.iter().any(|one| one == name))
        })
}
