//! Stand-in for KubeVirt's mutating webhook for instances. The webhook protects the status of instances: users can
//! invent a status only in phase Pending.
//!
//! - At CREATE, the phase becomes Pending. The rest of the status stays.
//! - At UPDATE by another user than KubeVirt, the status stays as it is stored.

use http::{HeaderValue, Request};
use k8s_openapi::ByteString;
use kube::api::{DynamicObject, PostParams};
use kube::client::Body;
use kube::{Api, Client};
use serde_json::{Value, json};

use super::definitions::{INSTANCE, resource};
use super::poll;
use super::provider::object;
use crate::support::Cluster;
use crate::support::hook::Hook;
use crate::support::server::KUBEVIRT;

/// Starts the webhook, and waits until the API server calls it.
pub async fn start(cluster: &Cluster) -> Hook {
    let hook = Hook::without_records(review).await;
    let (group, version, _, plural, _) = INSTANCE;
    let rule = json!({
        "apiGroups": [group], "apiVersions": [version], "operations": ["CREATE", "UPDATE"], "resources": [plural],
    });
    let members = json!({"rules": [rule]});
    hook.configure(cluster, "MutatingWebhookConfiguration", "virt-api-mutator", &members).await.unwrap();
    let instances: Api<DynamicObject> = Api::namespaced_with(cluster.client(), "default", &resource(INSTANCE));
    let dry_run = PostParams { dry_run: true, ..PostParams::default() };
    let lying = object(INSTANCE, json!({"metadata": {"name": "probe"}, "status": {"phase": "Running"}}));
    // A real API server uses a new configuration only after its watch has reported it.
    poll("a call of the webhook of KubeVirt", async || {
        let made = instances.create(&dry_run, &lying).await.ok()?;
        (made.data["status"]["phase"] == "Pending").then_some(())
    })
    .await;
    hook
}

/// Returns a client as the user of KubeVirt, who has the right to write the status of instances.
pub fn client(client: &Client) -> Client {
    let (client, namespace) = (client.clone(), client.default_namespace().to_owned());
    let as_kubevirt = move |mut request: Request<Body>| {
        let headers = request.headers_mut();
        headers.insert("impersonate-user", HeaderValue::from_static(KUBEVIRT));
        headers.insert("impersonate-group", HeaderValue::from_static("system:masters"));
        let client = client.clone();
        async move { client.send(request).await }
    };
    Client::new(tower::service_fn(as_kubevirt), namespace)
}

/// Decides what happens to a write of an instance.
fn review(request: &Value) -> Value {
    let (new, old) = (&request["object"], &request["oldObject"]);
    let status = match request["operation"].as_str() {
        Some("CREATE") => {
            let mut status = new["status"].clone();
            if !status.is_object() {
                status = json!({});
            }
            status["phase"] = "Pending".into();
            Some(status)
        }
        _ if request["userInfo"]["username"] == KUBEVIRT => return json!({"allowed": true}),
        _ => old.get("status").cloned(),
    };
    let operation = match status {
        Some(status) => json!({"op": "add", "path": "/status", "value": status}),
        None if new.get("status").is_some() => json!({"op": "remove", "path": "/status"}),
        None => return json!({"allowed": true}),
    };
    json!({
        "allowed": true, "patchType": "JSONPatch", "patch": ByteString(json!([operation]).to_string().into_bytes()),
    })
}
