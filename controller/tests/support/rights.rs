//! The rights of the roles of the manifests, and the rights that requests need.

use std::collections::BTreeSet;

use serde_json::Value;

use super::manifests::{object, render};
use super::server::Call;
use super::{CONTROLLER, SYSTEM};

const MANAGER: &str = "glowplug-controller-manager";

/// Verb, resource with its group, and scope. The scope is `every` for all namespaces and the cluster itself, or the
/// name of one namespace. A right to a certain CRD names the CRD before the resource.
pub type Right = (String, String, String);

/// Returns the rights of a role.
pub fn of_role(kind: &str, name: &str, scope: &str) -> BTreeSet<Right> {
    let rights = render("rbac");
    let rules = object(&rights, kind, name)["rules"].as_array().unwrap();
    let list = |rule: &Value, member: &str| -> Vec<String> { serde_json::from_value(rule[member].clone()).unwrap() };
    let mut all = BTreeSet::new();
    for rule in rules {
        let members: BTreeSet<&str> = rule.as_object().unwrap().keys().map(String::as_str).collect();
        let members: Vec<&str> = members.into_iter().filter(|member| *member != "resourceNames").collect();
        assert_eq!(members, ["apiGroups", "resources", "verbs"], "this test knows no other member");
        let of_names = |resource: String| match &rule["resourceNames"] {
            Value::Null => vec![resource],
            _ => list(rule, "resourceNames").iter().map(|name| format!("{name} {resource}")).collect(),
        };
        for group in list(rule, "apiGroups") {
            let resources = list(rule, "resources").into_iter().map(|resource| format!("{resource}.{group}"));
            for resource in resources.flat_map(of_names) {
                all.extend(list(rule, "verbs").into_iter().map(|verb| (verb, resource.clone(), scope.to_owned())));
            }
        }
    }
    all
}

/// Returns the right that a request needs.
pub fn of_call(call: &Call) -> Right {
    let resource = match &call.subresource {
        Some(subresource) => format!("{}/{subresource}.{}", call.plural, call.group),
        None => format!("{}.{}", call.plural, call.group),
    };
    let resource = match (call.plural.as_str(), &call.name) {
        ("customresourcedefinitions", Some(name)) => format!("{name} {resource}"),
        _ => resource,
    };
    let scope = if call.namespace.as_deref() == Some(SYSTEM) { SYSTEM } else { "every" };
    (call.verb.to_owned(), resource, scope.to_owned())
}

/// Returns the additional rights that OpenShift requires: to set `blockOwnerDeletion`, a user needs the right to update
/// the finalizers of the owner.
fn of_owners(call: &Call) -> Vec<Right> {
    let owners = call.body["metadata"]["ownerReferences"].as_array().into_iter().flatten();
    let blocking = owners.filter(|owner| owner["blockOwnerDeletion"] == true);
    let right = |owner: &Value| {
        let text = |member: &str| owner[member].as_str().unwrap().to_lowercase();
        let group = text("apiVersion").split('/').next().unwrap().to_owned();
        ("update".to_owned(), format!("{}s/finalizers.{group}", text("kind")), "every".to_owned())
    };
    blocking.map(right).collect()
}

/// Returns the rights that requests of the controller need.
pub fn used(calls: Vec<Call>) -> BTreeSet<Right> {
    let calls = calls.into_iter().filter(|call| call.user == CONTROLLER);
    calls.flat_map(|call| [vec![of_call(&call)], of_owners(&call)].concat()).collect()
}

/// Returns the rights of the controller's roles.
pub fn shipped() -> BTreeSet<Right> {
    of_role("ClusterRole", MANAGER, "every").into_iter().chain(of_role("Role", MANAGER, SYSTEM)).collect()
}

/// Asserts that the roles of the controller have every right that its requests need.
pub fn check_rights(calls: Vec<Call>) {
    let (used, shipped) = (used(calls), shipped());
    assert_eq!(used.difference(&shipped).collect::<Vec<_>>(), [] as [&Right; 0], "used without a right");
}
