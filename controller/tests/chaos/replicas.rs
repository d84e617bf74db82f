//! The replicas of the controller: processes of the program, each with a proxy between the replica and the API server,
//! and the Service of their webhooks.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use kube::api::{DynamicObject, PostParams};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::support::manifests::webhooks_at;
use crate::support::real::{RealServer, free_port, signal};
use crate::support::replica::{configurations, write_certificate};
use crate::support::{CONTROLLER, Cluster, SYSTEM};

/// Largest length of a line of the log, in bytes.
const LONGEST_LINE: usize = 4000;

/// Webhook that this test does not register: it would reject the overlapping pools of the test.
const POOLS_WEBHOOK: &str = "pools.ipam.glowplug.dev";

/// What a proxy does with the bytes of its connections.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Flow {
    Open,
    /// Requests arrive, and their answers are lost.
    AnswersLost,
    /// Nothing arrives.
    Held,
}

/// A TCP proxy in front of the API server.
pub struct Proxy {
    port: u16,
    flow: Arc<watch::Sender<Flow>>,
    /// Number of cuts so far. Each cut closes all connections that began before the cut.
    cut: Arc<watch::Sender<u64>>,
    task: JoinHandle<()>,
}

/// A replica. Dropping this value kills the process.
pub struct Replica {
    name: String,
    /// File with the difference between the clock of the replica and the clock of the machine.
    clock: PathBuf,
    child: Option<Child>,
    is_stopped: bool,
    command: Command,
    pub proxy: Proxy,
    webhooks: u16,
    probes: u16,
    diagnostics: u16,
}

/// A port of a replica.
#[derive(Clone, Copy, Debug)]
pub enum Port {
    Webhooks(u16),
    Probes(u16),
    Diagnostics(u16),
}

/// A Service: connects the API server with the webhooks of a replica. After a drop, it accepts no new connections.
pub struct Service {
    task: JoinHandle<()>,
}

/// Number of processes that ended without a signal of this program.
pub static EXITS: AtomicUsize = AtomicUsize::new(0);

// === impl Proxy ===

impl Proxy {
    async fn start(server: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (flow, cut) = (Arc::new(watch::Sender::new(Flow::Open)), Arc::new(watch::Sender::new(0)));
        let (flows, cuts) = (Arc::clone(&flow), Arc::clone(&cut));
        let task = tokio::spawn(async move {
            loop {
                let Ok((client, _)) = listener.accept().await else { continue };
                let (flow, mut answers, mut cut) = (flows.subscribe(), flows.subscribe(), cuts.subscribe());
                let began = *cut.borrow_and_update();
                tokio::spawn(async move {
                    let Ok(server) = TcpStream::connect(("127.0.0.1", server)).await else { return };
                    let (mut from_client, mut to_client) = client.into_split();
                    let (mut from_server, mut to_server) = server.into_split();
                    let requests = async {
                        let (mut flow, mut bytes) = (flow, vec![0; 65_536]);
                        while let Ok(count @ 1..) = from_client.read(&mut bytes).await {
                            let _ = flow.wait_for(|flow| *flow != Flow::Held).await;
                            if to_server.write_all(&bytes[..count]).await.is_err() {
                                break;
                            }
                        }
                    };
                    let responses = async {
                        let mut bytes = vec![0; 65_536];
                        let mut has_lost = false;
                        while let Ok(count @ 1..) = from_server.read(&mut bytes).await {
                            let _ = answers.wait_for(|flow| *flow != Flow::Held).await;
                            // The rest of a stream whose beginning was lost has no meaning, so all later bytes are
                            // dropped, too.
                            has_lost |= *answers.borrow() == Flow::AnswersLost;
                            if !has_lost && to_client.write_all(&bytes[..count]).await.is_err() {
                                break;
                            }
                        }
                    };
                    tokio::select! {
                        () = requests => {}
                        () = responses => {}
                        _ = cut.wait_for(|cut| *cut != began) => {}
                    }
                });
            }
        });
        Self { port, flow, cut, task }
    }

    pub fn set(&self, flow: Flow) {
        self.flow.send_replace(flow);
    }

    /// Closes every connection.
    pub fn cut(&self) {
        self.cut.send_modify(|cut| *cut += 1);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

// === impl Replica ===

impl Replica {
    /// Prepares a replica that has exactly the shipped rights. Its files, and the certificate of its webhooks, are in
    /// `folder`.
    pub async fn new(server: &RealServer, folder: &Path, name: &str) -> Self {
        let proxy = Proxy::start(server.port()).await;
        let mut config: Value = serde_json::from_slice(&fs::read(server.kubeconfig()).unwrap()).unwrap();
        config["clusters"][0]["cluster"]["server"] = format!("https://127.0.0.1:{}", proxy.port).into();
        config["users"][0]["user"]["as"] = CONTROLLER.into();
        config["contexts"][0]["context"]["namespace"] = SYSTEM.into();
        let file = folder.join(format!("{name}.kubeconfig"));
        fs::write(&file, config.to_string()).unwrap();
        let log = File::options().create(true).append(true).open(folder.join(format!("{name}.log"))).unwrap();
        let clock = folder.join(format!("{name}.clock"));
        let mut command = Command::new(env!("CARGO_BIN_EXE_glowplug-controller"));
        // The library changes only the wall clock. Timers continue, as when an administrator sets the clock.
        command.env("LD_PRELOAD", faketime()).env("FAKETIME_TIMESTAMP_FILE", &clock);
        command.envs([("FAKETIME_CACHE_DURATION", "1"), ("FAKETIME_DONT_FAKE_MONOTONIC", "1"), ("NO_FAKE_STAT", "1")]);
        let [webhooks, probes, diagnostics] = [(); 3].map(|()| free_port());
        command.args(["run", "--leader-elect", "--insecure-diagnostics"]);
        command.args(["--diagnostics-address", &format!("127.0.0.1:{diagnostics}")]);
        command.args(["--health-addr", &format!("127.0.0.1:{probes}")]);
        command.args(["--webhook-port", &webhooks.to_string(), "--webhook-cert-dir"]).arg(folder);
        command.arg("--kubeconfig").arg(file).env("HOSTNAME", name);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let name = name.to_owned();
        let replica =
            Self { name, clock, child: None, is_stopped: false, command, proxy, webhooks, probes, diagnostics };
        replica.set_clock(0);
        replica
    }

    /// Returns the ports on which the replica listens.
    pub fn ports(&self) -> [Port; 3] {
        [Port::Webhooks(self.webhooks), Port::Probes(self.probes), Port::Diagnostics(self.diagnostics)]
    }

    /// Sets the difference between the clock of the replica and the real time, in seconds.
    pub fn set_clock(&self, seconds: i64) {
        fs::write(&self.clock, format!("{seconds:+}")).unwrap();
    }

    pub fn start(&mut self) {
        if self.child.is_none() {
            self.child = Some(self.command.spawn().unwrap());
        }
    }

    /// Restarts the process if it has ended by itself, as a kubelet does.
    pub fn keep(&mut self) {
        if self.child.as_mut().is_some_and(|child| child.try_wait().unwrap().is_some()) {
            EXITS.fetch_add(1, Ordering::Relaxed);
            self.child = None;
            self.start();
        }
    }

    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            // The process may have ended already.
            let _ = child.kill();
            let _ = child.wait();
        }
        self.is_stopped = false;
    }

    pub fn pause(&mut self) {
        if let Some(child) = &self.child {
            signal(&child.id().to_string(), "STOP");
            self.is_stopped = true;
        }
    }

    pub fn resume(&mut self) {
        if let (true, Some(child)) = (self.is_stopped, &self.child) {
            signal(&child.id().to_string(), "CONT");
        }
        self.is_stopped = false;
    }

    /// Returns whether the holder in the Lease of the election is this replica.
    pub fn is(&self, identity: &str) -> bool {
        self.child.as_ref().is_some_and(|child| identity == format!("{}_{}", self.name, child.id()))
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        self.kill();
    }
}

// === impl Service ===

impl Service {
    /// Writes the certificate of the webhooks into `folder`, and configures the API server to call the webhooks of
    /// these replicas. Each connection goes to the next replica that accepts connections. A paused replica also accepts
    /// connections.
    pub async fn start(cluster: &Cluster, folder: &Path, replicas: &[Replica]) -> Self {
        let roots = write_certificate(folder);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("https://{}", listener.local_addr().unwrap());
        let mut ports: Vec<u16> = replicas.iter().map(|replica| replica.webhooks).collect();
        let task = tokio::spawn(async move {
            loop {
                let Ok((mut client, _)) = listener.accept().await else { continue };
                ports.rotate_left(1);
                let ports = ports.clone();
                tokio::spawn(async move {
                    for port in ports {
                        if let Ok(mut replica) = TcpStream::connect(("127.0.0.1", port)).await {
                            // The connection ends when one side closes it.
                            let _ = copy_bidirectional(&mut client, &mut replica).await;
                            return;
                        }
                    }
                });
            }
        });
        for kind in ["MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"] {
            let mut configuration = webhooks_at(kind, &url, &roots);
            configuration["webhooks"].as_array_mut().unwrap().retain(|webhook| webhook["name"] != POOLS_WEBHOOK);
            let configuration: DynamicObject = serde_json::from_value(configuration).unwrap();
            configurations(cluster, kind).create(&PostParams::default(), &configuration).await.unwrap();
        }
        Self { task }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Returns the path of the library that changes the clock of a program.
fn faketime() -> PathBuf {
    let file = format!("/usr/lib/{}-linux-gnu/faketime/libfaketime.so.1", std::env::consts::ARCH);
    assert!(Path::new(&file).exists(), "{file} does not exist, expected the Debian package libfaketime");
    file.into()
}

/// Returns the logs of all replicas, which are in a folder.
pub fn logs(folder: &Path) -> String {
    let files = fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
    let logs = files.filter(|file| file.extension().is_some_and(|extension| extension == "log"));
    logs.map(|log| String::from_utf8_lossy(&fs::read(log).unwrap()).into_owned()).collect()
}

/// Returns up to three lines of the logs that do not begin with a time, such as the lines of a panic, or that are too
/// long.
pub fn strange_lines(folder: &Path) -> Vec<String> {
    let logs = logs(folder);
    let is_strange = |line: &&str| !line.starts_with("20") || line.len() > LONGEST_LINE;
    let lines = logs.lines().filter(is_strange).take(3);
    lines.map(|line| format!("a line of the log: {}", line.chars().take(300).collect::<String>())).collect()
}

/// Loses the answers of a proxy for a time, and then closes its connections.
pub async fn lose_answers(proxy: &Proxy, time: Duration) {
    proxy.set(Flow::AnswersLost);
    sleep(time).await;
    proxy.cut();
    proxy.set(Flow::Open);
}
