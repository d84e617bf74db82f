//! Tests the program as a process.

use std::collections::{BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use glowplug_controller::api::{PoolSpec, StaticIPPool};
use glowplug_controller::machine::MACHINES_LABEL;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, ChildStderr, Command};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::support::hosted::{Hosted, poll};
use crate::support::http::get;
use crate::support::manifests::webhooks_at;
use crate::support::replica::write_certificate;
use crate::support::server::Server;
use crate::support::{CONTROLLER, Cluster, SYSTEM};

fn free_address() -> SocketAddr {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

/// The lines of a log. A task reads them all the time: a program would wait while its pipe is full.
type Log = mpsc::UnboundedReceiver<Value>;

fn log(stderr: ChildStderr) -> Log {
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

/// Reads the log up to a line with this message. Returns the members of the line.
async fn until(lines: &mut Log, message: &str) -> Value {
    loop {
        let mut line = lines.recv().await.expect("the message before the end of the log");
        if line["fields"]["message"] == message {
            return line["fields"].take();
        }
    }
}

fn send(program: &Child, signal: &str) {
    let id = program.id().unwrap().to_string();
    assert!(std::process::Command::new("kill").args([signal, &id]).status().unwrap().success());
}

/// Starts the program for a server, with the rights of its service account, and returns its log and its diagnostics
/// address.
async fn start(server: &Server, folder: &std::path::Path) -> (Child, Log, SocketAddr) {
    Cluster::of(server).await;
    let (program, lines, diagnostics, _) = start_replica(server, folder);
    (program, lines, diagnostics)
}

/// As [`start`], for a server that is already set up. Returns the address of the webhooks, too. Their certificate is in
/// `folder`.
fn start_replica(server: &Server, folder: &std::path::Path) -> (Child, Log, SocketAddr, SocketAddr) {
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
        .args(["--webhook-port", &webhook.port().to_string(), "--webhook-cert-dir"])
        .arg(folder)
        .env("RUST_LOG", "info")
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let lines = log(program.stderr.take().unwrap());
    (program, lines, diagnostics, webhook)
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
    until(&mut lines, "serving").await;
    while !get(diagnostics, "/metrics", None).await.1.contains("glowplug_leading 1\n") {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
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
async fn no_replica_works_before_the_cluster_has_the_definitions_of_its_version() {
    let (server, folder) = (Server::start().await, tempfile::tempdir().unwrap());
    let cluster = Cluster::of(&server).await;
    let definitions: Api<CustomResourceDefinition> = Api::all(cluster.client());
    let name = "staticippools.ipam.glowplug.dev";
    let current = definitions.get(name).await.unwrap();
    let mut earlier = current.clone();
    let schema = earlier.spec.versions[0].schema.as_mut().unwrap().open_api_v3_schema.as_mut().unwrap();
    let spec = schema.properties.as_mut().unwrap().get_mut("spec").unwrap();
    spec.properties.as_mut().unwrap().remove("excludedAddresses").unwrap();
    definitions.replace(name, &PostParams::default(), &earlier).await.unwrap();

    let (mut program, mut lines, diagnostics, _) = start_replica(&server, folder.path());
    let waiting = until(&mut lines, "waiting for the definitions of this version: apply the output of `crd`").await;
    assert_eq!(waiting["problem"], format!("definition {name} has no v1alpha1.spec.excludedAddresses"));
    assert_eq!(get(diagnostics, "/readyz", None).await.0, 503);
    assert!(get(diagnostics, "/metrics", None).await.1.contains("glowplug_leading 0\n"));

    let version = definitions.get(name).await.unwrap().metadata.resource_version;
    let current =
        CustomResourceDefinition { metadata: ObjectMeta { resource_version: version, ..current.metadata }, ..current };
    definitions.replace(name, &PostParams::default(), &current).await.unwrap();
    until(&mut lines, "leadership changed").await;
    until_ready(diagnostics).await;
    send(&program, "-TERM");
    until(&mut lines, "ended").await;
    assert!(program.wait().await.unwrap().success());
}

#[tokio::test]
async fn a_program_without_its_definitions_ends_after_a_signal() {
    let (server, folder) = (Server::start().await, tempfile::tempdir().unwrap());
    let (mut program, mut lines, ..) = start_replica(&server, folder.path());
    until(&mut lines, "waiting for the definitions of this version: apply the output of `crd`").await;
    send(&program, "-TERM");
    until(&mut lines, "ended").await;
    assert!(program.wait().await.unwrap().success());
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

/// A Service: forwards each connection to one of the replicas that it knows, in turn.
struct Service {
    address: SocketAddr,
    replicas: Arc<Mutex<VecDeque<SocketAddr>>>,
    task: JoinHandle<()>,
}

// === impl Service ===

impl Service {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let replicas: Arc<Mutex<VecDeque<SocketAddr>>> = Arc::default();
        let known = Arc::clone(&replicas);
        let task = tokio::spawn(async move {
            loop {
                let (mut client, _) = listener.accept().await.unwrap();
                let replica = {
                    let mut known = known.lock().unwrap();
                    known.rotate_left(1);
                    *known.front().expect("a ready replica")
                };
                tokio::spawn(async move {
                    let mut server = TcpStream::connect(replica).await?;
                    copy_bidirectional(&mut client, &mut server).await
                });
            }
        });
        Self { address, replicas, task }
    }

    fn add(&self, replica: SocketAddr) {
        self.replicas.lock().unwrap().push_back(replica);
    }

    fn remove(&self, replica: SocketAddr) {
        self.replicas.lock().unwrap().retain(|known| *known != replica);
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[tokio::test]
async fn no_machine_is_refused_while_every_replica_is_replaced() {
    let (server, folder) = (Server::start().await, tempfile::tempdir().unwrap());
    let cluster = Cluster::of(&server).await;
    let hosted = Hosted::plain(&cluster).await;
    let spec = PoolSpec {
        network: hosted.network.clone(),
        addresses: vec!["10.0.0.0/16".to_owned()],
        machine_selector: Some(LabelSelector::default()),
        ..PoolSpec::default()
    };
    hosted.pools.create(&PostParams::default(), &StaticIPPool::new("p", spec)).await.unwrap();
    let (service, roots) = (Service::start().await, write_certificate(folder.path()));
    let replica = async || {
        let (program, mut lines, diagnostics, webhooks) = start_replica(&server, folder.path());
        until(&mut lines, "started").await;
        until_ready(diagnostics).await;
        service.add(webhooks);
        (program, lines, webhooks)
    };
    let mut replicas = VecDeque::from([replica().await, replica().await]);
    let configuration = webhooks_at("MutatingWebhookConfiguration", &format!("https://{}", service.address), &roots);
    let kind = GroupVersionKind::gvk("admissionregistration.k8s.io", "v1", "MutatingWebhookConfiguration");
    let configurations: Api<DynamicObject> = Api::all_with(cluster.client(), &ApiResource::from_gvk(&kind));
    let configuration = serde_json::from_value(configuration).unwrap();
    configurations.create(&PostParams::default(), &configuration).await.unwrap();
    let namespaces: Api<Namespace> = Api::all(cluster.client());
    poll("the label for the webhook", async || {
        namespaces.get(&hosted.namespace).await.unwrap().labels().contains_key(MACHINES_LABEL).then_some(())
    })
    .await;

    let (is_over, drive) = (AtomicBool::new(false), json!({"secretRef": {"name": "userdata"}}));
    let create = async || {
        let mut names = Vec::new();
        while !is_over.load(Ordering::Relaxed) {
            let name = format!("w-{}", names.len());
            let vm = hosted.vms.create(&PostParams::default(), &hosted.vm(&name, &json!({}), &drive)).await;
            let vm = vm.unwrap_or_else(|error| panic!("{name}: {error}"));
            let volume = &vm.data["spec"]["template"]["spec"]["volumes"][0];
            let secret = json!({"name": format!("{name}-networkdata")});
            assert_eq!(volume["cloudInitConfigDrive"]["networkDataSecretRef"], secret);
            names.push(name);
            sleep(Duration::from_millis(20)).await;
        }
        names
    };
    let mut replace = async || {
        for _ in 0..2 {
            replicas.push_back(replica().await);
            let (mut program, mut lines, webhooks) = replicas.pop_front().unwrap();
            send(&program, "-TERM");
            until(&mut lines, "stopping").await;
            // The nodes of a cluster learn a moment later that a replica ends.
            sleep(Duration::from_secs(1)).await;
            service.remove(webhooks);
            until(&mut lines, "ended").await;
            assert!(program.wait().await.unwrap().success());
        }
        is_over.store(true, Ordering::Relaxed);
    };
    let (names, ()) = tokio::join!(create(), replace());
    for name in &names {
        let secret = format!("{name}-networkdata");
        poll(&secret, async || hosted.secrets.get_opt(&secret).await.unwrap()).await;
    }
    let held = hosted.held().await;
    let holders: BTreeSet<&String> = held.iter().map(|(_, name)| name).collect();
    assert_eq!((held.len(), holders), (names.len(), names.iter().collect()));
}
