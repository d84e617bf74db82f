//! The program as a process.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use k8s_openapi::ByteString;
use kube::Config;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, ChildStderr, Command};
use tokio::sync::mpsc;
use tokio::time::sleep;

use super::http::get;
use super::replica::write_certificate;
use super::{CONTROLLER, SYSTEM};

/// A replica with the rights of its service account. Dropping this value kills the process.
pub struct Program {
    child: Child,
    /// The lines of the log. A task reads them continuously, because a program stops while its pipe is full.
    log: mpsc::UnboundedReceiver<Value>,
    /// Address of `/readyz` and `/metrics`.
    pub diagnostics: SocketAddr,
    /// Address of the webhooks.
    pub webhooks: SocketAddr,
    /// The certificate of the webhooks, as PEM.
    pub roots: String,
}

// === impl Program ===

impl Program {
    /// Starts the program for the API server of `config`, with its files in `folder`. The program works in one
    /// namespace, or in all namespaces if the name is empty.
    pub fn start(config: &Config, folder: &Path, namespace: &str) -> Self {
        let file = folder.join("kubeconfig");
        // A program that starts again keeps its certificate.
        let roots = std::fs::read_to_string(folder.join("tls.crt")).unwrap_or_else(|_| write_certificate(folder));
        std::fs::write(&file, kubeconfig(config).to_string()).unwrap();
        let [diagnostics, health, webhooks] = [(); 3].map(|()| free_address());
        let mut child = Command::new(env!("CARGO_BIN_EXE_glowplug-controller"))
            .args(["run", "--leader-elect", "--insecure-diagnostics", "--log-format", "json", "--kubeconfig"])
            .arg(file)
            .args(["--diagnostics-address", &diagnostics.to_string(), "--health-addr", &health.to_string()])
            .args(["--namespace", namespace, "--webhook-port", &webhooks.port().to_string(), "--webhook-cert-dir"])
            .arg(folder)
            .env("RUST_LOG", "info")
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let log = read(child.stderr.take().unwrap());
        Self { child, log, diagnostics, webhooks, roots }
    }

    /// Reads the next line of the log.
    pub async fn line(&mut self) -> Value {
        self.log.recv().await.expect("the message before the end of the log")
    }

    /// Returns the next line in the log of a program that has ended. `None`: all lines are read.
    pub async fn last_line(&mut self) -> Option<Value> {
        self.log.recv().await
    }

    /// Reads the log up to a line with this message. Returns the members of the line.
    pub async fn until(&mut self, message: &str) -> Value {
        loop {
            let mut line = self.line().await;
            if line["fields"]["message"] == message {
                return line["fields"].take();
            }
        }
    }

    /// Waits until the program is ready. The program becomes ready some time after it leads.
    pub async fn until_ready(&self) {
        while get(self.diagnostics, "/readyz", None).await.0 != 200 {
            sleep(Duration::from_millis(20)).await;
        }
    }

    pub fn send(&self, signal: &str) {
        let id = self.child.id().unwrap().to_string();
        assert!(std::process::Command::new("kill").args([signal, &id]).status().unwrap().success());
    }

    /// Waits until the program has ended, and returns its exit status.
    pub async fn status(&mut self) -> Option<i32> {
        self.child.wait().await.unwrap().code()
    }

    /// Waits until the program has ended without an error: the last line of its log has the message `ended`.
    pub async fn until_ended(mut self) {
        self.until("ended").await;
        assert_eq!((self.status().await, self.last_line().await), (Some(0), None));
    }
}

fn free_address() -> SocketAddr {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

fn read(stderr: ChildStderr) -> mpsc::UnboundedReceiver<Value> {
    let (sender, lines) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        let mut read = BufReader::new(stderr).lines();
        while let Some(line) = read.next_line().await.unwrap() {
            // The test may have ended.
            drop(sender.send(serde_json::from_str(&line).unwrap()));
        }
    });
    lines
}

/// Returns a kubeconfig for the API server of `config`. Its user acts as the service account of the program.
pub fn kubeconfig(config: &Config) -> Value {
    let mut cluster = json!({"server": config.cluster_url.to_string()});
    let roots: Vec<String> = config.root_cert.iter().flatten().map(|root| pem(root)).collect();
    if !roots.is_empty() {
        cluster["certificate-authority-data"] = base64(roots.concat().as_bytes()).into();
    }
    let mut user = serde_json::to_value(&config.auth_info).unwrap();
    user["as"] = CONTROLLER.into();
    json!({
        "clusters": [{"name": "c", "cluster": cluster}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "controller", "namespace": SYSTEM}}],
        "users": [{"name": "controller", "user": user}],
        "current-context": "c",
    })
}

fn pem(certificate: &[u8]) -> String {
    format!("-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n", base64(certificate))
}

fn base64(bytes: &[u8]) -> String {
    serde_json::from_value(json!(ByteString(bytes.to_vec()))).unwrap()
}
