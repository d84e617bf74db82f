//! A webhook for tests. A function of the test decides the responses, and the webhook records the requests.

use std::sync::{Arc, Mutex};

use http_body_util::Full;
use hyper::Request;
use hyper::body::Bytes;
use k8s_openapi::ByteString;
use kube::api::PostParams;
use serde_json::{Value, json};

use super::Cluster;
use super::endpoint::Endpoint;
use super::replica::configurations;

/// A running webhook. Dropping this value stops the webhook, but the API server continues to call the webhook.
pub struct Hook {
    endpoint: Endpoint,
    requests: Arc<Mutex<Vec<Value>>>,
}

// === impl Hook ===

impl Hook {
    /// Starts a webhook. `decide` returns the response to a request. The response needs no UID.
    pub async fn start(decide: impl Fn(&Value) -> Value + Send + Sync + 'static) -> Self {
        Self::with(decide, true).await
    }

    /// Starts a webhook that does not record its requests.
    pub async fn without_records(decide: impl Fn(&Value) -> Value + Send + Sync + 'static) -> Self {
        Self::with(decide, false).await
    }

    async fn with(decide: impl Fn(&Value) -> Value + Send + Sync + 'static, has_records: bool) -> Self {
        let requests = Arc::new(Mutex::new(Vec::new()));
        let (recorded, decide) = (Arc::clone(&requests), Arc::new(decide));
        let handler = move |request: Request<Bytes>| {
            let (recorded, decide) = (Arc::clone(&recorded), Arc::clone(&decide));
            async move {
                let review: Value = serde_json::from_slice(request.body()).unwrap();
                let mut response = decide(&review["request"]);
                response["uid"] = review["request"]["uid"].clone();
                if has_records {
                    recorded.lock().unwrap().push(review["request"].clone());
                }
                let review = json!({"apiVersion": review["apiVersion"], "kind": review["kind"], "response": response});
                hyper::Response::new(Full::from(review.to_string()))
            }
        };
        Self { endpoint: Endpoint::start(handler).await, requests }
    }

    /// Starts a webhook that allows every request and changes nothing.
    pub async fn allowing() -> Self {
        Self::start(|_| json!({"allowed": true})).await
    }

    /// Creates a webhook configuration of this kind. Its only webhook has the URL of this server, and `members`.
    pub async fn configure(&self, cluster: &Cluster, kind: &str, name: &str, members: &Value) -> kube::Result<()> {
        let mut webhook = json!({
            "name": format!("{name}.test.glowplug.dev"), "clientConfig": self.endpoint.client_config(""),
            "admissionReviewVersions": ["v1"], "sideEffects": "None", "failurePolicy": "Fail",
        });
        json_patch::merge(&mut webhook, members);
        let configuration = json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": {"name": name},
            "webhooks": [webhook],
        });
        let configuration = serde_json::from_value(configuration).unwrap();
        configurations(cluster, kind).create(&PostParams::default(), &configuration).await.map(drop)
    }

    /// Returns the requests that have arrived since the last call.
    pub fn take_requests(&self) -> Vec<Value> {
        std::mem::take(&mut self.requests.lock().unwrap())
    }
}

/// Returns the response of a webhook that changes the object with a JSON patch.
pub fn patching(patch: &Value) -> Value {
    json!({"allowed": true, "patchType": "JSONPatch", "patch": ByteString(patch.to_string().into_bytes())})
}
