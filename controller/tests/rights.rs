//! Checks the rights of the controller and of the plugin. The controller uses every right of its roles, and no other right. The plugin
//! uses every right of its role. It also reads Secrets, for which its role has no right.

use std::collections::BTreeSet;

use futures::{StreamExt as _, stream};
use glowplug_controller::kinds::ipam_claim::ipam_claims;
use glowplug_controller::kinds::pool::{GlobalStaticIPPool, StaticIPPool};
use glowplug_controller::kinds::virtual_machine::virtual_machines;
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::api::rbac::v1::ClusterRoleBinding;
use kube::Api;
use kube::api::{ApiResource, DynamicObject, PostParams, TypeMeta};
use serde_json::{Value, json};

use crate::support::manifests::{object, render};
use crate::support::plugin::Plugin;
use crate::support::scenarios::ALL;
use crate::support::server::rbac::KUBEVIRT;
use crate::support::server::{Call, Server};
use crate::support::{CONTROLLER, Cluster, SYSTEM, start_server};

/// Verb, resource with its group, and scope. The scope is `every` for all namespaces and the cluster itself, or the
/// name of one namespace. A right to a certain CRD names the CRD before the resource.
type Right = (String, String, String);

const MANAGER: &str = "glowplug-controller-manager";
const PLUGIN: &str = "glowplug-plugin";

/// Returns the rights of a role.
fn of_role(kind: &str, name: &str, scope: &str) -> BTreeSet<Right> {
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

#[tokio::test]
async fn the_controller_uses_every_shipped_right_and_no_other() {
    // One thread runs all scenarios. With more than eight at a time, requests would exceed their time limits.
    let runs = stream::iter(ALL).map(async |(_, scenario)| {
        let server = Server::start().await;
        scenario(&Cluster::of(&server).await).await;
        server.take_calls()
    });
    let calls: Vec<Vec<Call>> = runs.buffer_unordered(8).collect().await;
    let calls = calls.into_iter().flatten().filter(|call| call.user == CONTROLLER);
    let used: BTreeSet<Right> = calls.flat_map(|call| [vec![of_call(&call)], of_owners(&call)].concat()).collect();
    let shipped: BTreeSet<Right> =
        of_role("ClusterRole", MANAGER, "every").into_iter().chain(of_role("Role", MANAGER, SYSTEM)).collect();
    assert_eq!(used.difference(&shipped).collect::<Vec<_>>(), [] as [&Right; 0], "used without a right");
    assert_eq!(shipped.difference(&used).collect::<Vec<_>>(), [] as [&Right; 0], "shipped and never used");
}

/// Creates a machine with network data, a StaticIPPool, a GlobalStaticIPPool and an IPAMClaim. No controller runs.
async fn fill(cluster: &Cluster) {
    let create = async |kind: &ApiResource, namespace: Option<&str>, value: Value| {
        let api: Api<DynamicObject> = match namespace {
            Some(namespace) => Api::namespaced_with(cluster.client_as(KUBEVIRT), namespace, kind),
            None => Api::all_with(cluster.client(), kind),
        };
        let mut object: DynamicObject = serde_json::from_value(value).unwrap();
        object.types = Some(TypeMeta { api_version: kind.api_version.clone(), kind: kind.kind.clone() });
        api.create(&PostParams::default(), &object).await.unwrap();
    };
    let network = json!({"network": "infra/vlan10", "addresses": ["10.0.0.8/29"]});
    create(&ApiResource::erase::<Namespace>(&()), None, json!({"metadata": {"name": "n"}})).await;
    let mut spec = network.clone();
    spec["machineSelector"] = json!({"matchLabels": {"a": "b"}});
    let pool = json!({"metadata": {"namespace": "n", "name": "p"}, "spec": spec});
    create(&ApiResource::erase::<StaticIPPool>(&()), Some("n"), pool).await;
    let mut spec = network.clone();
    (spec["network"], spec["serveIPAMClaims"]) = (json!("infra/vlan11"), json!(true));
    spec["namespaceSelector"] = json!({"matchLabels": {"a": "b"}});
    let pool = json!({"metadata": {"name": "g"}, "spec": spec});
    create(&ApiResource::erase::<GlobalStaticIPPool>(&()), None, pool).await;
    let volume = json!({"name": "c", "cloudInitConfigDrive": {"networkDataSecretRef": {"name": SECRET}}});
    let vm = json!({
        "metadata": {"namespace": "n", "name": "w", "labels": {"a": "b"}},
        "spec": {"template": {"spec": {
            "domain": {"devices": {"interfaces": [{"name": "net1", "bridge": {}}]}},
            "networks": [{"name": "net1", "multus": {"networkName": "infra/vlan10"}}], "volumes": [volume],
        }}},
    });
    create(&virtual_machines(), Some("n"), vm).await;
    let claim =
        json!({"metadata": {"namespace": "n", "name": "i"}, "spec": {"network": "vlan10", "interface": "net1"}});
    create(&ipam_claims(), Some("n"), claim).await;
}

const SECRET: &str = "w-networkdata-abcdefghijklmnop";

#[tokio::test]
async fn the_role_for_the_plugin_has_every_right_that_the_plugin_uses_except_the_right_to_secrets() {
    let (server, cluster) = start_server().await;
    fill(&cluster).await;
    let role_ref = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": PLUGIN});
    let subject = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "alice"});
    let binding = json!({"metadata": {"name": "alice"}, "roleRef": role_ref, "subjects": [subject]});
    let binding: ClusterRoleBinding = serde_json::from_value(binding).unwrap();
    Api::all(cluster.client()).create(&PostParams::default(), &binding).await.unwrap();
    let alice = Plugin::of_user(cluster.config(), Some("alice"));
    let spec = json!({"network": "infra/vlan12", "addresses": ["10.0.0.8/29"], "machineSelector": {"matchLabels": {"x": "y"}}});
    let pool = json!({
        "apiVersion": "ipam.glowplug.dev/v1alpha1", "kind": "StaticIPPool", "metadata": {"namespace": "n", "name": "q"}, "spec": spec,
    });
    let file = alice.file("pool.yaml", &pool);
    drop(server.take_calls());
    let not_found = alice.run(&["why", "n/absent"]).await;
    let line = "error: n/absent: no VirtualMachine, KubevirtMachine, IPAddressClaim or IPAMClaim\n";
    assert_eq!(not_found, (Some(1), String::new(), line.to_owned()));
    for (command, rights) in [
        (&["status"][..], Value::Null),
        (&["plan", &file], Value::Null),
        (&["why", "n/w"], json!(["get secrets in namespace n"])),
        (&["audit"], json!(["get secrets in namespace n"])),
        (&["adopt", "--pool", "n/p"], json!(["get secrets in namespace n"])),
    ] {
        let (_, answer) = alice.json(command).await;
        assert_eq!(answer["missingRights"], rights, "{command:?}");
    }
    let calls = server.take_calls().into_iter().filter(|call| call.user == "alice");
    let mut used: BTreeSet<Right> = calls.map(|call| of_call(&call)).collect();
    assert!(used.remove(&("get".to_owned(), "secrets.".to_owned(), "every".to_owned())));
    let shipped = of_role("ClusterRole", PLUGIN, "every");
    assert_eq!(used.difference(&shipped).collect::<Vec<_>>(), [] as [&Right; 0], "used without a right");
    assert_eq!(shipped.difference(&used).collect::<Vec<_>>(), [] as [&Right; 0], "shipped and never used");
}

#[tokio::test]
async fn the_plugin_lists_all_missing_rights_of_a_user_at_once() {
    let (_server, cluster) = start_server().await;
    let mallory = Plugin::of_user(cluster.config(), Some("mallory"));
    let pools = "list staticippools.ipam.glowplug.dev in every namespace; list globalstaticippools.ipam.glowplug.dev";
    let machines = "list kubevirtmachines.infrastructure.cluster.x-k8s.io in every namespace; \
                    list virtualmachines.kubevirt.io in every namespace; \
                    list virtualmachineinstances.kubevirt.io in every namespace";
    let leases = "list staticipleases.ipam.glowplug.dev";
    let node_pools = "list nodepools.hypershift.openshift.io in every namespace";
    let claims = "list ipaddressclaims.ipam.cluster.x-k8s.io in every namespace";
    let ipam_claims = "list ipamclaims.k8s.cni.cncf.io in every namespace";
    let lists = format!(
        "{leases}; {pools}; {node_pools}; {machines}; list services in every namespace; \
         list clusters.cluster.x-k8s.io in every namespace; {claims}; \
         list ipaddresses.ipam.cluster.x-k8s.io in every namespace; {ipam_claims}"
    );
    let vms = "list virtualmachines.kubevirt.io in every namespace; \
               list kubevirtmachines.infrastructure.cluster.x-k8s.io in every namespace; \
               list virtualmachineinstances.kubevirt.io in every namespace";
    let status = format!(
        "{pools}; list macpools.ipam.glowplug.dev; {claims}; {ipam_claims}; {leases}; {node_pools}; {vms}; \
         list leases.coordination.k8s.io in every namespace"
    );
    let why = format!(
        "{pools}; {leases}; {node_pools}; get virtualmachines.kubevirt.io in namespace n; list events in namespace n; \
         get virtualmachineinstances.kubevirt.io in namespace n; \
         get kubevirtmachines.infrastructure.cluster.x-k8s.io in namespace n; \
         get ipaddressclaims.ipam.cluster.x-k8s.io in namespace n; get ipamclaims.k8s.cni.cncf.io in namespace n"
    );
    for (command, rights) in [(&["status"][..], status), (&["why", "n/w"], why), (&["audit"], lists)] {
        let expected = (
            Some(1),
            String::new(),
            format!("error: missing rights: {rights}; the ClusterRole glowplug-plugin has them\n"),
        );
        assert_eq!(mallory.run(command).await, expected);
    }
}
