//! A policy of an administrator: a validating webhook that refuses writes of leases.

use std::sync::Arc;

use glowplug_controller::serve::{Certificate, Limits, Phase, answer, serve};
use http::{Request, StatusCode};
use hyper::body::Bytes;
use k8s_openapi::ByteString;
use kube::api::{DeleteParams, PostParams};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::sync::watch;

use super::Cluster;
use super::replica::{configurations, write_certificate};

const KIND: &str = "ValidatingWebhookConfiguration";

/// A policy that is in force until [`Policy::end`]. A real API server calls the webhook of the policy only some time
/// after the start, and still calls it for some time after the end.
pub struct Policy<'c> {
    cluster: &'c Cluster,
    name: String,
    /// When this sender is dropped, the server of the webhook ends.
    _phase: watch::Sender<Phase>,
    _certificate: TempDir,
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
        let certificate = tempfile::tempdir().unwrap();
        let roots = write_certificate(certificate.path());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("https://{}/", listener.local_addr().unwrap());
        let (phase, phases) = watch::channel(Phase::Serving);
        let handler = move |request: Request<Bytes>| {
            let review: Value = serde_json::from_slice(request.body()).unwrap();
            let (uid, allowed) = (review["request"]["uid"].clone(), !is_refused(&review["request"]["object"]));
            let status = json!({"code": code, "message": "refused by a policy"});
            let response = json!({"uid": uid, "allowed": allowed, "status": status});
            let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response});
            async move { answer(StatusCode::OK, "application/json", review.to_string()) }
        };
        tokio::spawn(serve(
            listener,
            Some(Arc::new(Certificate::of(certificate.path()))),
            Limits::WEBHOOKS,
            handler,
            phases,
        ));
        let policy = Self { cluster, name: name.to_owned(), _phase: phase, _certificate: certificate };
        let rule = json!({
            "operations": [operation], "apiGroups": ["ipam.glowplug.dev"], "apiVersions": ["*"],
            "resources": ["staticipleases"],
        });
        let webhook = json!({
            "name": "leases.policy.example", "rules": [rule], "failurePolicy": "Ignore", "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
            "clientConfig": {"url": url, "caBundle": ByteString(roots.into_bytes())},
        });
        let configuration = json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": KIND, "metadata": {"name": name},
            "webhooks": [webhook],
        });
        let configuration = serde_json::from_value(configuration).unwrap();
        configurations(cluster, KIND).create(&PostParams::default(), &configuration).await.unwrap();
        policy
    }

    /// Deletes the policy.
    pub async fn end(self) {
        configurations(self.cluster, KIND).delete(&self.name, &DeleteParams::default()).await.unwrap();
    }
}
