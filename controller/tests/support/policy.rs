//! A policy of an administrator: a validating webhook that refuses writes of leases.

use glowplug_controller::serve::answer;
use http::{Request, StatusCode};
use hyper::body::Bytes;
use kube::api::{DeleteParams, PostParams};
use serde_json::{Value, json};

use super::Cluster;
use super::endpoint::Endpoint;
use super::replica::configurations;

const KIND: &str = "ValidatingWebhookConfiguration";

/// A policy that is in force until [`Policy::end`]. A real API server calls the webhook of the policy only some time
/// after the start, and still calls it for some time after the end.
pub struct Policy<'c> {
    cluster: &'c Cluster,
    name: String,
    _endpoint: Endpoint,
}

// === impl Policy ===

impl<'c> Policy<'c> {
    /// Creates a policy with this name. With the status `code`, the policy refuses each `operation` (`CREATE` or
    /// `UPDATE`) on a lease for which `is_refused` is true.
    pub async fn start(
        cluster: &'c Cluster,
        name: &str,
        (operation, code): (&str, u16),
        is_refused: impl Fn(&Value) -> bool + Clone + Send + Sync + 'static,
    ) -> Self {
        let handler = move |request: Request<Bytes>| {
            let review: Value = serde_json::from_slice(request.body()).unwrap();
            let (uid, allowed) = (review["request"]["uid"].clone(), !is_refused(&review["request"]["object"]));
            let status = json!({"code": code, "message": "refused by a policy"});
            let response = json!({"uid": uid, "allowed": allowed, "status": status});
            let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response});
            async move { answer(StatusCode::OK, "application/json", review.to_string()) }
        };
        let endpoint = Endpoint::start(handler).await;
        let rule = json!({
            "operations": [operation], "apiGroups": ["ipam.glowplug.dev"], "apiVersions": ["*"],
            "resources": ["staticipleases"],
        });
        let webhook = json!({
            "name": "leases.policy.example", "rules": [rule], "failurePolicy": "Ignore", "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
            "clientConfig": endpoint.client_config("/"),
        });
        let configuration = json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": KIND, "metadata": {"name": name},
            "webhooks": [webhook],
        });
        let configuration = serde_json::from_value(configuration).unwrap();
        configurations(cluster, KIND).create(&PostParams::default(), &configuration).await.unwrap();
        Self { cluster, name: name.to_owned(), _endpoint: endpoint }
    }

    /// Deletes the policy.
    pub async fn end(self) {
        configurations(self.cluster, KIND).delete(&self.name, &DeleteParams::default()).await.unwrap();
    }
}
