//! Checks the rights of the service account: the controller has each right that it uses, and uses each right that it
//! has.

use std::collections::BTreeSet;

use futures::{StreamExt as _, stream};
use serde_json::Value;

use crate::support::manifests::{object, render};
use crate::support::scenarios::ALL;
use crate::support::server::{Call, Server};
use crate::support::{CONTROLLER, Cluster, SYSTEM};

/// Verb, resource with its group, and scope: `every` namespace and the cluster itself, or the name of one namespace. A
/// right to certain definitions names the definition before the resource.
type Right = (String, String, String);

/// The rights of a role.
fn of_role(kind: &str, scope: &str) -> BTreeSet<Right> {
    let rights = render("rbac");
    let rules = object(&rights, kind, "glowplug-controller-manager")["rules"].as_array().unwrap();
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

/// The right that a request needs.
fn of_call(call: &Call) -> Right {
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

/// The additional rights that OpenShift requires: to set `blockOwnerDeletion`, a user needs the right to update the
/// finalizers of the owner.
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

#[tokio::test]
async fn every_right_that_is_shipped_is_used_and_no_other() {
    // One thread runs all of them. More at a time would use up the time limits of their requests.
    let runs = stream::iter(ALL).map(async |(_, scenario)| {
        let server = Server::start().await;
        scenario(&Cluster::of(&server).await).await;
        server.take_calls()
    });
    let calls: Vec<Vec<Call>> = runs.buffer_unordered(8).collect().await;
    let calls = calls.into_iter().flatten().filter(|call| call.user == CONTROLLER);
    let used: BTreeSet<Right> = calls.flat_map(|call| [vec![of_call(&call)], of_owners(&call)].concat()).collect();
    let shipped: BTreeSet<Right> = of_role("ClusterRole", "every").into_iter().chain(of_role("Role", SYSTEM)).collect();
    assert_eq!(used.difference(&shipped).collect::<Vec<_>>(), [] as [&Right; 0], "used without a right");
    assert_eq!(shipped.difference(&used).collect::<Vec<_>>(), [] as [&Right; 0], "shipped and never used");
}
