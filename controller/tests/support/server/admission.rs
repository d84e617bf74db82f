//! Admission webhooks: the configurations that the server stores, and the calls that it makes for them.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use k8s_openapi::ByteString;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::conditions::{self, Decision};
use super::patch;
use super::store::{Call, Refusal, Store, Write};

/// A webhook whose rules and namespace selector match a write.
pub struct Hook {
    /// The webhook, as an element of `webhooks` in its configuration.
    webhook: Value,
    mutates: bool,
}

/// Returns the webhooks for a write, the mutating webhooks first.
pub fn hooks(store: &Store, call: &Call, write: &Write) -> Vec<Hook> {
    const GROUP: &str = "admissionregistration.k8s.io";
    let namespace = call.namespace.as_deref().and_then(|name| store.namespace(name));
    let mut hooks = Vec::new();
    // No webhook is called for the configurations of webhooks.
    if call.group == GROUP {
        return hooks;
    }
    for plural in ["mutatingwebhookconfigurations", "validatingwebhookconfigurations"] {
        let configurations = store.all(GROUP, plural);
        for webhook in configurations.filter_map(|configuration| configuration["webhooks"].as_array()).flatten() {
            let rules = webhook["rules"].as_array();
            if rules.into_iter().flatten().any(|rule| is_for(rule, call, write))
                && matches(&webhook["namespaceSelector"], namespace)
            {
                hooks.push(Hook { webhook: webhook.clone(), mutates: plural.starts_with("mutating") });
            }
        }
    }
    hooks
}

/// Calls the mutating webhooks one after the other, and applies their patches to the write. A webhook with the policy
/// `IfNeeded` is called once more if a later webhook changed the object.
pub async fn mutate(hooks: &[Hook], call: &Call, write: &mut Write) -> Result<(), Refusal> {
    let (mut called, mut again) = (BTreeSet::new(), BTreeSet::new());
    for round in 0..2 {
        for (index, hook) in hooks.iter().enumerate().filter(|(_, hook)| hook.mutates) {
            if round == 1 && !again.contains(&index) {
                continue;
            }
            let before = write.new.clone();
            let Some(response) = hook.review(call, write).await? else { continue };
            if let (Some(bytes), Some(new)) = (bytes(&response["patch"]), &mut write.new) {
                let decoded = serde_json::from_slice(&bytes)
                    .map_err(|error| Refusal::new(500, "InternalError", error.to_string()))?;
                *new = patch::json(new, &decoded)?;
            }
            if write.new != before {
                again.append(&mut called);
            }
            if hook.webhook["reinvocationPolicy"] == "IfNeeded" {
                called.insert(index);
            }
        }
    }
    Ok(())
}

/// Calls the validating webhooks.
pub async fn validate(hooks: &[Hook], call: &Call, write: &Write) -> Result<(), Refusal> {
    for hook in hooks.iter().filter(|hook| !hook.mutates) {
        hook.review(call, write).await?;
    }
    Ok(())
}

/// Returns the request of a review, with a new UID.
fn request(call: &Call, write: &Write) -> Value {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let uid = format!("00000000-0000-4000-9000-{:012x}", COUNT.fetch_add(1, Ordering::Relaxed));
    let mut groups = vec!["system:authenticated".to_owned()];
    if let Some((namespace, _)) =
        call.user.strip_prefix("system:serviceaccount:").and_then(|account| account.split_once(':'))
    {
        groups.extend(["system:serviceaccounts".to_owned(), format!("system:serviceaccounts:{namespace}")]);
    }
    let kind = json!({"group": call.group, "version": call.version, "kind": write.kind.kind});
    let resource = json!({"group": call.group, "version": call.version, "resource": call.plural});
    let mut request = json!({
        "uid": uid, "kind": kind, "resource": resource, "requestKind": kind, "requestResource": resource,
        "name": write.key.3, "namespace": call.namespace, "operation": write.operation,
        "userInfo": {"username": call.user, "groups": groups}, "dryRun": call.is_dry_run(),
        "object": write.new.as_ref().filter(|_| write.operation != "DELETE"), "oldObject": write.old,
    });
    if let Some(subresource) = &call.subresource {
        request["subResource"] = subresource.clone().into();
        request["requestSubResource"] = subresource.clone().into();
    }
    request
}

/// Reads bytes as Go does: from a base64 string, or from a list of numbers, which the crate `kube` writes.
fn bytes(value: &Value) -> Option<Vec<u8>> {
    match value {
        Value::Array(_) => serde_json::from_value(value.clone()).ok(),
        Value::String(_) => serde_json::from_value(value.clone()).ok().map(|ByteString(bytes)| bytes),
        _ => None,
    }
}

fn is_for(rule: &Value, call: &Call, write: &Write) -> bool {
    let has = |member: &str, wanted: &str| {
        rule[member].as_array().is_some_and(|all| all.iter().any(|one| one == wanted || one == "*"))
    };
    let is_resource = |text: &Value| {
        let text = text.as_str().unwrap_or_default();
        let (plural, subresource) = text.split_once('/').unwrap_or((text, ""));
        let asked = call.subresource.as_deref().unwrap_or_default();
        (plural == "*" || plural == call.plural) && (subresource == "*" || subresource == asked)
    };
    has("operations", write.operation)
        && has("apiGroups", &call.group)
        && has("apiVersions", &call.version)
        && rule["resources"].as_array().is_some_and(|all| all.iter().any(is_resource))
}

/// Returns whether a label selector matches an object. An absent selector matches everything.
fn matches(selector: &Value, object: Option<&Value>) -> bool {
    let label = |name: &str| object.and_then(|object| object["metadata"]["labels"].get(name)).and_then(Value::as_str);
    let mut pairs = selector["matchLabels"].as_object().into_iter().flatten();
    let mut terms = selector["matchExpressions"].as_array().into_iter().flatten();
    pairs.all(|(name, value)| label(name) == value.as_str())
        && terms.all(|term| {
            let is = label(term["key"].as_str().unwrap_or_default());
            let listed =
                term["values"].as_array().is_some_and(|values| values.iter().any(|value| value.as_str() == is));
            match term["operator"].as_str() {
                Some("Exists") => is.is_some(),
                Some("DoesNotExist") => is.is_none(),
                Some("In") => is.is_some() && listed,
                _ => is.is_none() || !listed,
            }
        })
}

// === impl Hook ===

impl Hook {
    /// Sends a write, in its current form, to the webhook. Returns the response, or `None` if the webhook is not called
    /// or its failure is ignored. An error: the webhook denies the write, or the call fails and the failure is not
    /// ignored.
    async fn review(&self, call: &Call, write: &Write) -> Result<Option<Value>, Refusal> {
        let selector = &self.webhook["objectSelector"];
        let (name, ignores_failure) = (&self.webhook["name"], self.webhook["failurePolicy"] == "Ignore");
        let objects = [write.new.as_ref().filter(|_| write.operation != "DELETE"), write.old.as_ref()];
        if !objects.into_iter().flatten().any(|object| matches(selector, Some(object))) {
            return Ok(None);
        }
        let request = request(call, write);
        match conditions::decide(&self.webhook, &request) {
            Decision::Call => {}
            Decision::Failed(errors) if !ignores_failure => {
                let message =
                    format!("{}.{} {:?} is forbidden: {}", call.plural, call.group, write.key.3, errors.join(", "));
                return Err(Refusal::new(403, "Forbidden", message));
            }
            Decision::Skip | Decision::Failed(_) => return Ok(None),
        }
        let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request});
        let mut answer = match self.ask(&review).await {
            Ok(answer) => answer,
            Err(_) if ignores_failure => return Ok(None),
            Err(error) => {
                let message = format!("Internal error occurred: failed calling webhook {name}: {error}");
                return Err(Refusal::new(500, "InternalError", message));
            }
        };
        let response = answer["response"].take();
        if response["allowed"] == true {
            return Ok(Some(response));
        }
        let status = &response["status"];
        let text = status["message"].as_str().unwrap_or("without explanation");
        let code = status["code"].as_u64().and_then(|code| u16::try_from(code).ok()).filter(|code| *code >= 400);
        let message = format!("admission webhook {name} denied the request: {text}");
        Err(Refusal::new(code.unwrap_or(400), "Forbidden", message))
    }

    /// Sends one request over TLS and HTTP/1.1 to the URL of the webhook. A certificate in the bundle of the
    /// configuration must have signed the certificate of the webhook.
    async fn ask(&self, review: &Value) -> Result<Value, Box<dyn std::error::Error + Send + Sync>> {
        let client = &self.webhook["clientConfig"];
        let uri: hyper::Uri = client["url"].as_str().unwrap_or_default().parse()?;
        let ca: Option<ByteString> = serde_json::from_value(client["caBundle"].clone()).ok();
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(&ca.unwrap_or_default().0) {
            roots.add(certificate?)?;
        }
        let config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let host = uri.host().unwrap_or_default().to_owned();
        let stream = TcpStream::connect((host.as_str(), uri.port_u16().unwrap_or(443))).await?;
        let stream = TlsConnector::from(Arc::new(config)).connect(ServerName::try_from(host.clone())?, stream).await?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        let connection = tokio::spawn(connection);
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        let request = Request::post(path).header("host", host).header("content-type", "application/json");
        let response = sender.send_request(request.body(Full::new(Bytes::from(review.to_string())))?).await?;
        let code = response.status();
        let body = response.into_body().collect().await?.to_bytes();
        connection.abort();
        if code.is_success() {
            Ok(serde_json::from_slice(&body)?)
        } else {
            Err(format!("the server answered {code}").into())
        }
    }
}
