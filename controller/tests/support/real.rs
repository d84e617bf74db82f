//! A real API server: the programs kube-apiserver and etcd on free ports of the loopback address.

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::json;
use tempfile::TempDir;

use super::server::TOKEN;

/// Folders of the certificates of the API servers.
const FIRST: &str = "certificates";
const SECOND: &str = "second";

/// The running programs of a real API server. Dropping this value stops the programs.
pub struct RealServer {
    /// etcd, kube-apiserver, and the second API server, if there is one.
    programs: Vec<Program>,
    etcd_port: u16,
    config: Config,
    folder: TempDir,
}

struct Program {
    command: Command,
    /// `None`: the program has not started, or was killed.
    child: Option<Child>,
}

/// An API server: its port, and the names of its folder of certificates and of its kubeconfig file.
struct Endpoint {
    port: u16,
    certificates: &'static str,
    kubeconfig: &'static str,
}

// === impl RealServer ===

impl RealServer {
    /// Starts the programs in the folder `assets`, and waits until the API server is ready.
    pub async fn start(assets: &Path) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).display().to_string();
        let [etcd_port, peer, secure] = [(); 3].map(|()| free_port());
        let (client, peer) = (format!("http://127.0.0.1:{etcd_port}"), format!("http://127.0.0.1:{peer}"));
        let mut etcd = Command::new(assets.join("etcd"));
        // The data is needed only during the test, so etcd does not have to flush it to the disk.
        etcd.args(["--unsafe-no-fsync", "--data-dir", &path("etcd")]);
        etcd.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
        etcd.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
        etcd.args(["--initial-cluster", &format!("default={peer}")]);

        let status =
            Command::new("openssl").args(["genrsa", "-out", &path("key.pem"), "2048"]).stderr(Stdio::null()).status();
        assert!(status.expect("openssl is installed").success());
        fs::write(path("tokens.csv"), format!("{TOKEN},admin,1,system:masters\n")).unwrap();
        let mut server = Command::new(assets.join("kube-apiserver"));
        server.args(["--etcd-servers", &client, "--bind-address", "127.0.0.1", "--secure-port", &secure.to_string()]);
        server.args(["--cert-dir", &path(FIRST), "--token-auth-file", &path("tokens.csv")]);
        server.args(["--service-account-issuer", "https://kubernetes.default.svc"]);
        server.args([
            "--service-account-signing-key-file",
            &path("key.pem"),
            "--service-account-key-file",
            &path("key.pem"),
        ]);
        server.args(["--authorization-mode", "RBAC", "--service-cluster-ip-range", "10.0.0.0/24"]);
        server.args(["--endpoint-reconciler-type", "none", "--disable-admission-plugins", "ServiceAccount"]);
        // OpenShift enables this plugin: to block the deletion of an owner, a user needs a right on the owner.
        server.args(["--enable-admission-plugins", "OwnerReferencesPermissionEnforcement"]);

        let config = Config::new("http://127.0.0.1".parse().unwrap());
        let mut running = Self { programs: Vec::new(), etcd_port, config, folder };
        running.add(etcd, "etcd.log");
        running.add(server, "kube-apiserver.log");
        running.config = running.wait_until_ready(&Endpoint::first(secure)).await;
        running
    }

    /// Starts a second API server on the same etcd. Only `restore` restarts the second server, so its watches report
    /// every version. The watches of the first API server lose versions when that server restarts.
    pub async fn start_second(&mut self) -> Config {
        let first = &self.programs[1].command;
        let port = free_port();
        let mut command = Command::new(first.get_program());
        let mut last = "";
        for argument in first.get_args().map(|argument| argument.to_str().unwrap()) {
            let text = match last {
                "--secure-port" => port.to_string(),
                "--cert-dir" => self.folder.path().join(SECOND).display().to_string(),
                _ => argument.to_owned(),
            };
            command.arg(text);
            last = argument;
        }
        command.arg("--watch-cache=false");
        self.add(command, "second.log");
        self.wait_until_ready(&Endpoint { port, certificates: SECOND, kubeconfig: "second.kubeconfig" }).await
    }

    /// Kills the API server and starts it again. With `etcd`, kills and starts etcd, too.
    pub async fn restart(&mut self, etcd: bool) {
        let range = if etcd { 0..2 } else { 1..2 };
        for program in &mut self.programs[range] {
            program.kill();
        }
        self.run().await;
    }

    /// Copies the current data of etcd. The new copy replaces the last copy.
    pub fn save(&self) {
        let etcd = self.programs[0].child.as_ref().unwrap().id().to_string();
        signal(&etcd, "STOP");
        let [data, saved] = self.data();
        // Before the first copy, there is nothing to remove.
        let _ = fs::remove_dir_all(&saved);
        let status = Command::new("cp").arg("-r").args([data, saved]).status().unwrap();
        signal(&etcd, "CONT");
        assert!(status.success(), "copying the data of etcd");
    }

    /// Stops all programs, restores the copy of [`save`](Self::save), and starts the programs.
    pub async fn restore(&mut self) {
        self.programs.iter_mut().for_each(Program::kill);
        let [data, saved] = self.data();
        fs::remove_dir_all(&data).unwrap();
        let status = Command::new("cp").arg("-r").args([saved, data]).status().unwrap();
        assert!(status.success(), "restoring the data of etcd");
        self.run().await;
    }

    /// Returns the folders of the data of etcd and of its copy.
    fn data(&self) -> [PathBuf; 2] {
        ["etcd", "etcd.saved"].map(|name| self.folder.path().join(name))
    }

    /// Returns the port of the API server.
    pub fn port(&self) -> u16 {
        self.config.cluster_url.port_u16().unwrap()
    }

    /// Returns the address of the metrics of etcd.
    pub fn etcd_metrics(&self) -> SocketAddr {
        ([127, 0, 0, 1], self.etcd_port).into()
    }

    /// Returns the configuration of a client with all rights.
    pub fn config(&self) -> Config {
        self.config.clone()
    }

    /// Returns the path of a kubeconfig file for a program with all rights.
    pub fn kubeconfig(&self) -> PathBuf {
        self.folder.path().join("kubeconfig")
    }

    fn add(&mut self, mut command: Command, log: &str) {
        let log = fs::File::create(self.folder.path().join(log)).unwrap();
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        let mut program = Program { command, child: None };
        program.start();
        self.programs.push(program);
    }

    /// Starts the programs that were killed, and waits until the API server is ready.
    async fn run(&mut self) {
        self.programs.iter_mut().for_each(Program::start);
        self.config = self.wait_until_ready(&Endpoint::first(self.port())).await;
    }

    async fn wait_until_ready(&mut self, endpoint: &Endpoint) -> Config {
        let Endpoint { port, certificates, kubeconfig } = endpoint;
        let certificate = self.folder.path().join(certificates).join("apiserver.crt");
        let kubeconfig = self.folder.path().join(kubeconfig);
        for _ in 0..1200 {
            tokio::time::sleep(Duration::from_millis(100)).await;
            for program in &mut self.programs {
                if let Some(status) = program.child.as_mut().and_then(|child| child.try_wait().unwrap()) {
                    panic!("a program of the cluster ended with {status}:\n{}", self.logs());
                }
            }
            if !certificate.exists() {
                continue;
            }
            let file = json!({
                "clusters": [{"name": "real", "cluster": {"server": format!("https://127.0.0.1:{port}"), "certificate-authority": certificate}}],
                "users": [{"name": "admin", "user": {"token": TOKEN}}],
                "contexts": [{"name": "real", "context": {"cluster": "real", "user": "admin"}}],
                "current-context": "real",
            });
            fs::write(&kubeconfig, file.to_string()).unwrap();
            let file = Kubeconfig::read_from(&kubeconfig).unwrap();
            let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await.unwrap();
            let client = Client::try_from(config.clone()).unwrap();
            let request = hyper::Request::get("/readyz").body(Vec::new()).unwrap();
            if client.request_text(request).await.is_ok_and(|text| text == "ok") {
                return config;
            }
        }
        panic!("the API server was not ready after two minutes:\n{}", self.logs());
    }

    fn logs(&self) -> String {
        let logs =
            ["etcd.log", "kube-apiserver.log"].map(|log| fs::read_to_string(self.folder.path().join(log)).unwrap());
        logs.join("\n")
    }
}

// === impl Endpoint ===

impl Endpoint {
    fn first(port: u16) -> Self {
        Self { port, certificates: FIRST, kubeconfig: "kubeconfig" }
    }
}

// === impl Program ===

impl Program {
    fn start(&mut self) {
        if self.child.is_none() {
            let child = self.command.spawn();
            let program = self.command.get_program().display();
            self.child = Some(child.unwrap_or_else(|error| panic!("{program}: {error}")));
        }
    }

    fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            // The program may have ended already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Drop for RealServer {
    fn drop(&mut self) {
        self.programs.iter_mut().rev().for_each(Program::kill);
    }
}

/// Sends a signal to a process.
pub fn signal(process: &str, name: &str) {
    let status = Command::new("kill").args([&format!("-{name}"), process]).status();
    assert!(status.expect("kill is installed").success(), "signal {name} to process {process}");
}

/// Returns a port of the loopback address that no program uses.
pub fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}
