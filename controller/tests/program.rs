//! Tests the program as a process.

use std::net::SocketAddr;
use std::process::Stdio;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStderr, Command};

use crate::support::http::get;
use crate::support::server::Server;
use crate::support::{CONTROLLER, Cluster, SYSTEM};

fn free_address() -> SocketAddr {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

/// Reads the log up to a line with this message.
async fn until(lines: &mut Lines<BufReader<ChildStderr>>, message: &str) {
    loop {
        let line = lines.next_line().await.unwrap().expect("the message before the end of the log");
        let line: Value = serde_json::from_str(&line).unwrap();
        if line["fields"]["message"] == message {
            return;
        }
    }
}

fn send(program: &Child, signal: &str) {
    let id = program.id().unwrap().to_string();
    assert!(std::process::Command::new("kill").args([signal, &id]).status().unwrap().success());
}

/// Starts the program for a server, with the rights of its service account, and returns its log and its diagnostics
/// address.
async fn start(server: &Server, folder: &std::path::Path) -> (Child, Lines<BufReader<ChildStderr>>, SocketAddr) {
    Cluster::of(server).await;
    let file = folder.join("kubeconfig");
    let config = json!({
        "clusters": [{"name": "c", "cluster": {"server": server.url()}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "controller", "namespace": SYSTEM}}],
        "users": [{"name": "controller", "user": {"as": CONTROLLER}}],
        "current-context": "c",
    });
    std::fs::write(&file, config.to_string()).unwrap();
    let [diagnostics, health, webhook] = [(); 3].map(|()| free_address());
    let mut program = Command::new(env!("CARGO_BIN_EXE_glowplug-controller"))
        .args(["run", "--leader-elect", "--insecure-diagnostics", "--log-format", "json", "--kubeconfig"])
        .arg(file)
        .args(["--diagnostics-address", &diagnostics.to_string(), "--health-addr", &health.to_string()])
        .args(["--webhook-port", &webhook.port().to_string()])
        .env("RUST_LOG", "info")
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let lines = BufReader::new(program.stderr.take().unwrap()).lines();
    (program, lines, diagnostics)
}

/// Waits until the program is ready. A separate task sets it ready, after it leads.
async fn until_ready(diagnostics: SocketAddr) {
    while get(diagnostics, "/readyz", None).await.0 != 200 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn the_program_leads_and_becomes_unready_first_after_a_signal() {
    let (server, folder) = (Server::start().await, tempfile::tempdir().unwrap());
    let (mut program, mut lines, diagnostics) = start(&server, folder.path()).await;
    until(&mut lines, "leadership changed").await;
    assert!(get(diagnostics, "/metrics", None).await.1.contains("glowplug_leading 1\n"));
    until_ready(diagnostics).await;

    send(&program, "-TERM");
    until(&mut lines, "stopping").await;
    assert_eq!(
        get(diagnostics, "/readyz", None).await,
        (hyper::StatusCode::SERVICE_UNAVAILABLE, "the program is ending\n".to_owned())
    );
    assert_eq!(get(diagnostics, "/healthz", None).await.0, 200);

    until(&mut lines, "ended").await;
    assert!(program.wait().await.unwrap().success());
    let config = kube::Config::new(server.url().parse().unwrap());
    let leases: Api<Lease> = Api::namespaced(glowplug_controller::client::connect(config).unwrap(), SYSTEM);
    assert_eq!(leases.get("glowplug-controller").await.unwrap().spec.unwrap().holder_identity, None);
}

#[tokio::test]
async fn a_second_signal_stops_the_program_at_once() {
    let (server, folder) = (Server::start().await, tempfile::tempdir().unwrap());
    let (mut program, mut lines, _) = start(&server, folder.path()).await;
    until(&mut lines, "leadership changed").await;
    send(&program, "-TERM");
    until(&mut lines, "stopping").await;
    send(&program, "-INT");
    assert_eq!(program.wait().await.unwrap().code(), Some(1));
}

#[tokio::test]
async fn an_api_server_that_is_not_configured_is_an_error() {
    let program = |file: &'static str| async move {
        let output = Command::new(env!("CARGO_BIN_EXE_glowplug-controller"))
            .args(["run", "--kubeconfig", file])
            .output()
            .await
            .unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap().lines().next().map(str::to_owned))
    };
    assert_eq!(program("/nowhere").await, (Some(1), Some("Error: reading /nowhere".to_owned())));
}
