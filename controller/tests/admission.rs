//! Tests how the test API server calls admission webhooks. The real server of `make test-cluster` is too old for
//! `matchConditions`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::support::apply::apply_server_side;
use crate::support::controller::merge_status;
use crate::support::hook::{Hook, patching};
use crate::support::hosted::definitions::{INSTANCE, VIRTUAL_MACHINE, resource};
use crate::support::hosted::provider::object;
use crate::support::hosted::{Hosted, poll};
use crate::support::replica::configurations;
use crate::support::{CONTROLLER, Cluster, start_server};

const MUTATING: &str = "MutatingWebhookConfiguration";
const VALIDATING: &str = "ValidatingWebhookConfiguration";

/// Returns the rules of a webhook for these operations on these resources of KubeVirt.
fn rules(operations: &[&str], resources: &[&str]) -> Value {
    json!([{"apiGroups": ["kubevirt.io"], "apiVersions": ["v1"], "operations": operations, "resources": resources}])
}

/// Returns the API for VirtualMachines of the namespace `default`.
fn vms(cluster: &Cluster) -> Api<DynamicObject> {
    Api::namespaced_with(cluster.client(), "default", &resource(VIRTUAL_MACHINE))
}

fn vm(name: &str) -> DynamicObject {
    let volumes = json!([
        {"name": "root", "dataVolume": {"name": "root"}},
        {"name": "cloudinitvolume", "cloudInitConfigDrive": {"networkDataSecretRef": {"name": "s"}}},
    ]);
    let template = json!({"metadata": {"labels": {"ipam.glowplug.dev/machine": "yes"}}, "spec": {"volumes": volumes}});
    let metadata = json!({"name": name, "labels": {"kubevirt.io/size": "1"}});
    object(VIRTUAL_MACHINE, json!({"metadata": metadata, "spec": {"template": template, "replicas": 1}}))
}

/// Returns whether the API server calls a webhook with this condition when a VirtualMachine is created. `Err`: message
/// of the rejection.
async fn is_called(expression: &str, policy: &str) -> Result<bool, String> {
    let (_server, cluster) = start_server().await;
    let hook = Hook::allowing().await;
    let members = json!({
        "rules": rules(&["CREATE"], &["virtualmachines"]), "failurePolicy": policy,
        "matchConditions": [{"name": "only", "expression": expression}],
    });
    hook.configure(&cluster, VALIDATING, "a", &members).await.map_err(message)?;
    vms(&cluster).create(&PostParams::default(), &vm("w")).await.map_err(message)?;
    Ok(!hook.take_requests().is_empty())
}

fn message(error: kube::Error) -> String {
    match error {
        kube::Error::Api(status) => format!("{} {}: {}", status.code, status.reason, status.message),
        error => panic!("{error}"),
    }
}

async fn merge(vms: &Api<DynamicObject>, patch: &Value) {
    vms.patch("w", &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
}

#[tokio::test]
async fn a_webhook_is_called_only_if_its_condition_is_true() {
    for (expression, expected) in [
        ("!has(object.metadata.deletionTimestamp)", true),
        ("has(object.metadata.deletionTimestamp)", false),
        ("oldObject == null", true),
        ("object.spec.replicas == 1 && object.spec.replicas < 2", true),
        ("request.operation == 'CREATE' && request.userInfo.username == 'admin' && !request.dryRun", true),
        ("request.userInfo.username in ['system:serviceaccount:a:b']", false),
        ("object.metadata.labels['kubevirt.io/size'] == '1'", true),
        ("'kubevirt.io/size' in object.metadata.labels && !('a' in object.metadata.labels)", true),
        ("object.spec.template.metadata.labels[?'ipam.glowplug.dev/machine'].orValue('') == 'yes'", true),
        ("object.spec.template.?metadata.?annotations[?'a/b'].hasValue()", false),
        (
            "object.spec.template.spec.volumes\
             .exists(v, has(v.cloudInitConfigDrive) && has(v.cloudInitConfigDrive.networkData))",
            false,
        ),
        ("object.spec.template.spec.volumes.exists(v, v.name.matches('^cloud') && v.name.endsWith('volume'))", true),
        (
            "object.spec.template.spec.volumes.filter(v, has(v.cloudInitConfigDrive))[0]\
             .cloudInitConfigDrive.networkDataSecretRef.name.startsWith('s')",
            true,
        ),
        ("size(object.spec.template.spec.volumes.filter(v, has(v.cloudInitNoCloud))) == 0", true),
        ("object.spec.template.spec.volumes.map(v, v.name) == ['root', 'cloudinitvolume']", true),
        ("object.spec.template.spec.volumes.all(v, has(v.dataVolume))", false),
    ] {
        assert_eq!(is_called(expression, "Fail").await, Ok(expected), "{expression}");
    }
}

#[tokio::test]
async fn the_failure_policy_applies_when_a_condition_cannot_be_evaluated() {
    let expression = "object.metadata.labels['absent'] == '1'";
    let refused = "403 Forbidden: virtualmachines.kubevirt.io \"w\" is forbidden: only: expression \
                   'object.metadata.labels['absent'] == '1'' resulted in error: No such key: absent";
    assert_eq!(is_called(expression, "Fail").await, Err(refused.to_owned()));
    assert_eq!(is_called(expression, "Ignore").await, Ok(false));
    let expression = "object.spec.template.spec.volumes.exists(v, has(v.cloudInitConfigDrive.networkData))";
    for expression in [expression, "object.spec.replicas"] {
        assert_eq!(is_called(expression, "Ignore").await, Ok(false), "{expression}");
    }
}

#[tokio::test]
async fn a_false_condition_skips_the_webhook_even_if_another_condition_cannot_be_evaluated() {
    let (_server, cluster) = start_server().await;
    let hook = Hook::allowing().await;
    let conditions =
        json!([{"name": "error", "expression": "object.nothing.a"}, {"name": "false", "expression": "false"}]);
    let members = json!({"rules": rules(&["*"], &["*"]), "matchConditions": conditions});
    hook.configure(&cluster, MUTATING, "a", &members).await.unwrap();
    vms(&cluster).create(&PostParams::default(), &vm("w")).await.unwrap();
    assert_eq!(hook.take_requests(), [] as [Value; 0]);
}

#[tokio::test]
async fn a_webhook_configuration_with_an_invalid_cel_expression_is_refused() {
    let refused = is_called("has(object.a[", "Fail").await.unwrap_err();
    let path = "422 Invalid: webhooks[0].matchConditions[0].expression: Invalid value: \"has(object.a[\": compilation";
    assert!(refused.starts_with(path), "{refused}");
}

#[tokio::test]
async fn a_condition_of_a_webhook_can_compare_the_old_and_the_new_object_of_an_update() {
    let (_server, cluster) = start_server().await;
    let (hook, vms) = (Hook::allowing().await, vms(&cluster));
    let expression = "!has(object.metadata.deletionTimestamp) && object.spec.template != oldObject.spec.template";
    let conditions = json!([{"name": "template", "expression": expression}]);
    let members = json!({"rules": rules(&["UPDATE"], &["virtualmachines"]), "matchConditions": conditions});
    hook.configure(&cluster, MUTATING, "a", &members).await.unwrap();
    vms.create(&PostParams::default(), &vm("w")).await.unwrap();
    merge(&vms, &json!({"metadata": {"labels": {"a": "b"}}, "spec": {"replicas": 2}})).await;
    assert_eq!(hook.take_requests(), [] as [Value; 0]);
    merge(&vms, &json!({"spec": {"template": {"spec": {"domain": {}}}}})).await;
    assert_eq!(hook.take_requests().len(), 1);
    merge(&vms, &json!({"metadata": {"finalizers": ["a.b/c"]}})).await;
    vms.delete("w", &DeleteParams::default()).await.unwrap();
    merge(&vms, &json!({"spec": {"template": {"spec": {"domain": {"cpu": {}}}}}})).await;
    assert_eq!(hook.take_requests(), [] as [Value; 0]);
}

#[tokio::test]
async fn an_object_selector_matches_the_old_or_the_new_object() {
    let (_server, cluster) = start_server().await;
    let (hook, vms) = (Hook::allowing().await, vms(&cluster));
    let selector = json!({"matchLabels": {"a": "b"}});
    let members = json!({"rules": rules(&["*"], &["virtualmachines"]), "objectSelector": selector});
    hook.configure(&cluster, VALIDATING, "a", &members).await.unwrap();
    vms.create(&PostParams::default(), &vm("w")).await.unwrap();
    for (label, expected) in [(json!("b"), 1), (json!(null), 1), (json!("c"), 0)] {
        merge(&vms, &json!({"metadata": {"labels": {"a": label}}})).await;
        assert_eq!(hook.take_requests().len(), expected, "{label}");
    }
}

#[tokio::test]
async fn the_policy_if_needed_calls_a_mutating_webhook_again_after_a_change_by_a_later_webhook() {
    let label = |name: &'static str| {
        move |request: &Value| match request["object"]["metadata"]["labels"].get(name) {
            Some(_) => json!({"allowed": true}),
            None => patching(&json!([{"op": "add", "path": format!("/metadata/labels/{name}"), "value": "x"}])),
        }
    };
    for (policy, calls) in [("IfNeeded", 2), ("Never", 1)] {
        let (_server, cluster) = start_server().await;
        let (first, second, validating) =
            (Hook::start(label("first")).await, Hook::start(label("second")).await, Hook::allowing().await);
        let members = json!({"rules": rules(&["CREATE"], &["virtualmachines"]), "reinvocationPolicy": policy});
        first.configure(&cluster, MUTATING, "a", &members).await.unwrap();
        second.configure(&cluster, MUTATING, "b", &members).await.unwrap();
        let members = json!({"rules": rules(&["CREATE"], &["virtualmachines"])});
        validating.configure(&cluster, VALIDATING, "a", &members).await.unwrap();
        vms(&cluster).create(&PostParams::default(), &vm("w")).await.unwrap();
        let requests = first.take_requests();
        assert_eq!(requests.len(), calls, "{policy}");
        if let [one, two] = &requests[..] {
            assert_ne!(one["uid"], two["uid"]);
            assert_eq!(two["object"]["metadata"]["labels"]["second"], "x");
        }
        assert_eq!(second.take_requests().len(), 1, "{policy}");
        assert_eq!(validating.take_requests()[0]["object"]["metadata"]["labels"]["second"], "x");
        assert!(requests.iter().all(|request| request["object"]["metadata"].get("uid").is_none()));
    }
}

#[tokio::test]
async fn a_field_that_a_webhook_adds_has_no_manager_so_a_later_apply_has_no_conflict() {
    let (_server, cluster) = start_server().await;
    let reference = "/spec/template/spec/volumes/1/cloudInitConfigDrive/networkDataSecretRef";
    let hook =
        Hook::start(move |_| patching(&json!([{"op": "add", "path": reference, "value": {"name": "own"}}]))).await;
    let members = json!({"rules": rules(&["CREATE", "UPDATE"], &["virtualmachines"])});
    hook.configure(&cluster, MUTATING, "a", &members).await.unwrap();
    let (vms, manifest) = (vms(&cluster), serde_json::to_value(vm("w")).unwrap());
    for _ in 0..3 {
        let stored = apply_server_side(&vms, &manifest, "user").await.unwrap();
        assert_eq!(serde_json::to_value(&stored).unwrap().pointer(reference), Some(&json!({"name": "own"})));
    }
}

#[tokio::test]
async fn a_subresource_is_reviewed_only_if_a_rule_names_it() {
    let (_server, cluster) = start_server().await;
    let vms = vms(&cluster);
    vms.create(&PostParams::default(), &vm("w")).await.unwrap();
    let mut hooks = Vec::new();
    for (name, resource) in
        [("a", "virtualmachines"), ("b", "*"), ("c", "virtualmachines/status"), ("d", "*/*"), ("e", "*/scale")]
    {
        let hook = Hook::allowing().await;
        hook.configure(&cluster, VALIDATING, name, &json!({"rules": rules(&["*"], &[resource])})).await.unwrap();
        hooks.push(hook);
    }
    merge_status(&vms, "w", &json!({"status": {"ready": true}})).await;
    let seen =
        hooks.iter().map(|hook| hook.take_requests().iter().map(|request| request["subResource"].clone()).collect());
    let seen: Vec<Vec<Value>> = seen.collect();
    assert_eq!(seen, [vec![], vec![], vec![json!("status")], vec![json!("status")], vec![]]);
    merge(&vms, &json!({"metadata": {"labels": {"a": "b"}}})).await;
    let calls: Vec<usize> = hooks.iter().map(|hook| hook.take_requests().len()).collect();
    assert_eq!(calls, [1, 1, 0, 1, 0]);
}

#[tokio::test]
async fn an_admission_review_contains_the_groups_of_a_service_account() {
    let (_server, cluster) = start_server().await;
    let hook = Hook::allowing().await;
    let rules = json!([{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["secrets"]}]);
    hook.configure(&cluster, VALIDATING, "a", &json!({"rules": rules})).await.unwrap();
    let secrets: Api<Secret> = Api::namespaced(cluster.controller(), "default");
    let secret = serde_json::from_value(json!({"metadata": {"name": "s"}})).unwrap();
    secrets.create(&PostParams { dry_run: true, ..PostParams::default() }, &secret).await.unwrap();
    let groups = ["system:authenticated", "system:serviceaccounts", "system:serviceaccounts:ipam-glowplug-system"];
    let request = hook.take_requests().pop().unwrap();
    assert_eq!(request["userInfo"], json!({"username": CONTROLLER, "groups": groups}));
    assert_eq!((&request["dryRun"], &request["oldObject"]), (&json!(true), &Value::Null));
}

#[tokio::test]
async fn no_webhook_reviews_the_configurations_of_webhooks() {
    let (_server, cluster) = start_server().await;
    let hook = Hook::start(|_| json!({"allowed": false})).await;
    let everything = json!([{"apiGroups": ["*"], "apiVersions": ["*"], "operations": ["*"], "resources": ["*/*"]}]);
    hook.configure(&cluster, VALIDATING, "a", &json!({"rules": everything})).await.unwrap();
    configurations(&cluster, VALIDATING).delete("a", &DeleteParams::default()).await.unwrap();
    let instances: Api<DynamicObject> = Api::namespaced_with(cluster.client(), "default", &resource(INSTANCE));
    let instance = object(INSTANCE, json!({"metadata": {"name": "w"}}));
    instances.create(&PostParams::default(), &instance).await.unwrap();
}

#[tokio::test]
async fn a_rejected_instance_is_created_again_after_a_retry_or_a_change_of_a_webhook_configuration() {
    let (_server, cluster) = start_server().await;
    let hosted = Hosted::plain(&cluster).await;
    let is_open = Arc::new(AtomicBool::new(false));
    let opened = Arc::clone(&is_open);
    let hook = Hook::start(move |_| match opened.load(Ordering::SeqCst) {
        true => json!({"allowed": true}),
        false => json!({"allowed": false, "status": {"message": "not now"}}),
    })
    .await;
    let members = json!({"rules": rules(&["CREATE"], &["virtualmachineinstances"])});
    hook.configure(&cluster, VALIDATING, "a", &members).await.unwrap();
    for name in ["one", "two"] {
        hosted.vms.create(&PostParams::default(), &hosted.vm(name, &json!({}), &json!({}))).await.unwrap();
        let message = poll("a rejection", async || hosted.kubevirt.rejection(name)).await;
        assert_eq!(message, "admission webhook \"a.test.glowplug.dev\" denied the request: not now");
        is_open.store(true, Ordering::SeqCst);
        match name {
            "one" => hosted.kubevirt.retry(),
            _ => configurations(&cluster, VALIDATING).delete("a", &DeleteParams::default()).await.map(drop).unwrap(),
        }
        hosted.until_running(name).await;
        assert_eq!(hosted.kubevirt.rejection(name), None);
        is_open.store(false, Ordering::SeqCst);
    }
}
