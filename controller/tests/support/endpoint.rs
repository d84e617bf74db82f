//! An HTTPS server in the test process, with a certificate of its own.

use std::sync::Arc;

use glowplug_controller::serve::{Certificate, Limits, Phase, serve};
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::{Request, Response};
use k8s_openapi::ByteString;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::replica::write_certificate;

/// A running server. Dropping this value stops the server.
pub struct Endpoint {
    pub url: String,
    certificate: TempDir,
    phase: watch::Sender<Phase>,
    task: JoinHandle<()>,
}

// === impl Endpoint ===

impl Endpoint {
    /// Starts a server with the limits of the webhooks.
    pub async fn start<H, F>(handler: H) -> Self
    where
        H: Fn(Request<Bytes>) -> F + Clone + Send + Sync + 'static,
        F: Future<Output = Response<Full<Bytes>>> + Send + 'static,
    {
        let certificate = tempfile::tempdir().unwrap();
        write_certificate(certificate.path());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("https://{}", listener.local_addr().unwrap());
        let (phase, phases) = watch::channel(Phase::Serving);
        let identity = Some(Arc::new(Certificate::of(certificate.path())));
        let task = tokio::spawn(serve(listener, identity, Limits::WEBHOOKS, handler, phases));
        Self { url, certificate, phase, task }
    }

    /// Returns the member `clientConfig` of a webhook that this server serves at `path`.
    pub fn client_config(&self, path: &str) -> Value {
        json!({"url": format!("{}{path}", self.url), "caBundle": ByteString(self.roots().into_bytes())})
    }

    /// Returns the certificate.
    pub fn roots(&self) -> String {
        std::fs::read_to_string(self.certificate.path().join("tls.crt")).unwrap()
    }

    /// Replaces the certificate.
    pub fn renew(&self) {
        write_certificate(self.certificate.path());
    }

    /// Stops the server after the responses to open requests.
    pub async fn end(&mut self) {
        self.phase.send_replace(Phase::Closing);
        if !self.task.is_finished() {
            (&mut self.task).await.unwrap();
        }
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.task.abort();
    }
}
