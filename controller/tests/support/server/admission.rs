//! Admission webhooks: the configurations that the server stores, and the calls that it makes for them.

use std::sync::Arc;

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

use super::patch;
use super::store::{Call, Refusal, Store, Write};

/// A webhook that must allow a write.
pub struct Hook {
    name: String,
    url: String,
    ca: Vec<u8>,
    ignores_failure: bool,
    mutates: bool,
}

/// The webhooks for a write, the mutating ones first.
pub fn hooks(store: &Store, call: &Call, write: &Write) -> Vec<Hook> {
    const GROUP: &str = "admissionregistration.k8s.io";
    let object = write.new.as_ref().or(write.old.as_ref());
    let namespace = call.namespace.as_deref().and_then(|name| store.namespace(name));
    let mut hooks = Vec::new();
    for plural in ["mutatingwebhookconfigurations", "validatingwebhookconfigurations"] {
        for hook in store.all(GROUP, plural).filter_map(|configuration| configuration["webhooks"].as_array()).flatten()
        {
            let rules = hook["rules"].as_array();
            let is_meant = rules.into_iter().flatten().any(|rule| is_for(rule, call, write))
                && matches(&hook["namespaceSelector"], namespace)
                && matches(&hook["objectSelector"], object);
            if !is_meant {
                continue;
            }
            let client = &hook["clientConfig"];
            let ca: Option<ByteString> = serde_json::from_value(client["caBundle"].clone()).ok();
            hooks.push(Hook {
                name: hook["name"].as_str().unwrap_or_default().to_owned(),
                url: client["url"].as_str().unwrap_or_default().to_owned(),
                ca: ca.unwrap_or_default().0,
                ignores_failure: hook["failurePolicy"] == "Ignore",
                mutates: plural.starts_with("mutating"),
            });
        }
    }
    hooks
}

/// Calls the webhooks one after the other, and applies their patches to the write.
pub async fn admit(hooks: Vec<Hook>, call: &Call, write: &mut Write) -> Result<(), Refusal> {
    for (index, hook) in hooks.into_iter().enumerate() {
        let uid = format!("{index}-{}", write.key.3);
        let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
            "uid": uid,
            "kind": {"group": call.group, "version": call.version, "kind": write.kind.kind},
            "resource": {"group": call.group, "version": call.version, "resource": call.plural},
            "requestKind": {"group": call.group, "version": call.version, "kind": write.kind.kind},
            "requestResource": {"group": call.group, "version": call.version, "resource": call.plural},
            "name": write.key.3, "namespace": call.namespace, "operation": write.operation,
            "userInfo": {"username": call.user}, "dryRun": call.is_dry_run(),
            "object": write.new.as_ref().filter(|_| write.operation != "DELETE"), "oldObject": write.old,
        }});
        let answer = match hook.ask(&review).await {
            Ok(answer) => answer["response"].clone(),
            Err(_) if hook.ignores_failure => continue,
            Err(error) => {
                let message = format!("Internal error occurred: failed calling webhook {:?}: {error}", hook.name);
                return Err(Refusal::new(500, "InternalError", message));
            }
        };
        if answer["allowed"] != true {
            let status = &answer["status"];
            let text = status["message"].as_str().unwrap_or("without explanation");
            let code = status["code"].as_u64().and_then(|code| u16::try_from(code).ok()).filter(|code| *code >= 400);
            let message = format!("admission webhook {:?} denied the request: {text}", hook.name);
            return Err(Refusal::new(code.unwrap_or(400), "Forbidden", message));
        }
        if let (true, Some(bytes), Some(new)) = (hook.mutates, bytes(&answer["patch"]), &mut write.new) {
            let decoded = serde_json::from_slice(&bytes)
                .map_err(|error| Refusal::new(500, "InternalError", error.to_string()))?;
            *new = patch::json(new, &decoded)?;
        }
    }
    Ok(())
}

/// Bytes as Go decodes them: a base64 string, or a list of numbers, as kube writes them.
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
    has("operations", write.operation)
        && has("apiGroups", &call.group)
        && has("apiVersions", &call.version)
        && has("resources", &call.plural)
        && call.subresource.is_none()
}

/// Whether a label selector matches an object; an absent selector matches everything.
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
    /// Sends one request over TLS and HTTP/1.1 to the URL of the webhook. The bundle of the configuration must have signed the
    /// certificate of the webhook.
    async fn ask(&self, review: &Value) -> Result<Value, Box<dyn std::error::Error + Send + Sync>> {
        let uri: hyper::Uri = self.url.parse()?;
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(&self.ca) {
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
