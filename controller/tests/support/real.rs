//! A real API server: the programs kube-apiserver and etcd on free ports of the loopback address.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::json;
use tempfile::TempDir;

use super::server::TOKEN;

/// Both programs. Dropping this value stops them.
pub struct RealServer {
    programs: Vec<Child>,
    config: Config,
    folder: TempDir,
}

// === impl RealServer ===

impl RealServer {
    /// Starts the programs of the folder `assets` and waits until the server is ready.
    pub async fn start(assets: &Path) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).display().to_string();
        let [client, peer, secure] = [(); 3].map(|()| free_port());
        let (client, peer) = (format!("http://127.0.0.1:{client}"), format!("http://127.0.0.1:{peer}"));
        let mut etcd = Command::new(assets.join("etcd"));
        // The stored data is needed for a minute only, so no write has to reach the disk.
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
        server.args(["--cert-dir", &path("certificates"), "--token-auth-file", &path("tokens.csv")]);
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

        let programs = [(etcd, "etcd.log"), (server, "kube-apiserver.log")].map(|(mut command, log)| {
            let log = fs::File::create(path(log)).unwrap();
            command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
            command.spawn().unwrap_or_else(|error| panic!("{}: {error}", command.get_program().display()))
        });
        let mut running =
            Self { programs: programs.into(), config: Config::new("http://127.0.0.1".parse().unwrap()), folder };
        running.config = running.wait_until_ready(secure).await;
        running
    }

    /// Configuration of a client with all rights.
    pub fn config(&self) -> Config {
        self.config.clone()
    }

    /// A kubeconfig file for a program with all rights.
    pub fn kubeconfig(&self) -> PathBuf {
        self.folder.path().join("kubeconfig")
    }

    async fn wait_until_ready(&mut self, port: u16) -> Config {
        let certificate = self.folder.path().join("certificates/apiserver.crt");
        for _ in 0..1200 {
            tokio::time::sleep(Duration::from_millis(100)).await;
            for program in &mut self.programs {
                if let Some(status) = program.try_wait().unwrap() {
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
            fs::write(self.kubeconfig(), file.to_string()).unwrap();
            let file = Kubeconfig::read_from(self.kubeconfig()).unwrap();
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

impl Drop for RealServer {
    fn drop(&mut self) {
        for program in self.programs.iter_mut().rev() {
            // The program may have ended already.
            let _ = program.kill();
            let _ = program.wait();
        }
    }
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}
