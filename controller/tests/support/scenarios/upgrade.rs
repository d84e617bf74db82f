//! Tests an upgrade to a later version and the downgrade, while machines are created continuously.
//!
//! The versions differ in what an administrator applies: the CRDs, and the configurations of the webhooks. The replicas
//! of both versions are the same program.

use std::collections::{BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use glowplug_controller::kinds::network_data::is_issued_for;
use glowplug_controller::kinds::pool::{PoolSpec, StaticIPPool};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::support::Cluster;
use crate::support::hosted::{Hosted, poll};
use crate::support::later;
use crate::support::manifests::webhooks_at;
use crate::support::program::Program;
use crate::support::replica::{configurations, write_certificate};

const WEBHOOKS: [&str; 2] = ["MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"];
/// Kinds whose CRDs are different in the later version.
const KINDS: [&str; 2] = ["staticippools", "staticipleases"];

/// A stand-in for a Service: forwards each connection to one of the replicas, which take turns.
struct Service {
    address: SocketAddr,
    replicas: Arc<Mutex<VecDeque<SocketAddr>>>,
    task: JoinHandle<()>,
}

/// A Deployment of two replicas with `maxUnavailable` 0 and `maxSurge` 1, and its Service.
struct Deployment<'c> {
    cluster: &'c Cluster,
    namespace: String,
    folder: TempDir,
    roots: String,
    service: Service,
    replicas: VecDeque<Program>,
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

// === impl Deployment ===

impl<'c> Deployment<'c> {
    async fn start(cluster: &'c Cluster, namespace: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (roots, service) = (write_certificate(folder.path()), Service::start().await);
        let (namespace, replicas) = (namespace.to_owned(), VecDeque::new());
        let mut deployment = Self { cluster, namespace, folder, roots, service, replicas };
        deployment.add().await;
        deployment.add().await;
        deployment
    }

    /// Starts a replica, and adds it to the Service when it is ready.
    async fn add(&mut self) {
        let mut replica = Program::start(self.cluster.config(), self.folder.path(), &self.namespace);
        replica.until("started").await;
        replica.until_ready().await;
        self.service.add(replica.webhooks);
        self.replicas.push_back(replica);
    }

    /// Replaces every replica.
    async fn roll_out(&mut self) {
        let mut ending = Vec::new();
        for _ in 0..self.replicas.len() {
            self.add().await;
            let mut replica = self.replicas.pop_front().unwrap();
            replica.send("-TERM");
            replica.until("stopping").await;
            // The nodes of a cluster learn only a moment later that a replica ends.
            sleep(Duration::from_secs(1)).await;
            self.service.remove(replica.webhooks);
            ending.push(replica);
        }
        for replica in ending {
            replica.until_ended().await;
        }
    }

    /// Applies the configurations of the webhooks, with the label of a version.
    async fn apply_webhooks(&self, version: &str) {
        let params = PatchParams::apply("kubectl").force();
        for kind in WEBHOOKS {
            let url = format!("https://{}", self.service.address);
            let mut configuration = webhooks_at(kind, &url, &self.roots);
            configuration["metadata"]["labels"]["app.kubernetes.io/version"] = version.into();
            let api = configurations(self.cluster, kind);
            let applied = api.patch("glowplug-controller", &params, &Patch::Apply(&configuration)).await;
            // An API server before Kubernetes 1.28 refuses `matchConditions`. Then the conditions are removed, as
            // `docs/network-data.md` requires.
            let refuses = |error: &kube::Error| error.to_string().contains("matchConditions: field not declared");
            if applied.as_ref().is_err_and(refuses) {
                for webhook in configuration["webhooks"].as_array_mut().unwrap() {
                    webhook.as_object_mut().unwrap().remove("matchConditions");
                }
                api.patch("glowplug-controller", &params, &Patch::Apply(&configuration)).await.unwrap();
            } else {
                applied.unwrap();
            }
        }
    }
}

/// Returns the reference that the webhook adds to a machine. Null: the webhook has not changed the machine.
fn secret(vm: &DynamicObject) -> Value {
    vm.data["spec"]["template"]["spec"]["volumes"][0]["cloudInitConfigDrive"]["networkDataSecretRef"].clone()
}

pub async fn no_machine_is_refused_during_an_upgrade_and_a_downgrade(cluster: &Cluster) {
    let hosted = Hosted::plain(cluster).await;
    let mut deployment = Deployment::start(cluster, &hosted.namespace).await;
    deployment.apply_webhooks("0.2.0").await;
    let spec = PoolSpec {
        network: hosted.network.clone(),
        addresses: vec!["10.0.0.0/16".to_owned()],
        machine_selector: Some(LabelSelector::default()),
        ..PoolSpec::default()
    };
    hosted.pools.create(&PostParams::default(), &StaticIPPool::new("p", spec)).await.unwrap();
    let (dry_run, drive) =
        (PostParams { dry_run: true, ..PostParams::default() }, json!({"secretRef": {"name": "userdata"}}));
    let probe = hosted.vm("probe", &json!({}), &drive);
    // The leader labels the namespace. A real API server uses labels and configurations only after a delay.
    poll("a machine that the webhook changes", async || {
        let vm = hosted.vms.create(&dry_run, &probe).await.ok()?;
        (!secret(&vm).is_null()).then_some(())
    })
    .await;

    let is_over = AtomicBool::new(false);
    let create = async {
        let mut names = Vec::new();
        while !is_over.load(Ordering::Relaxed) {
            let name = format!("w-{}", names.len());
            let vm = hosted.vms.create(&PostParams::default(), &hosted.vm(&name, &json!({}), &drive)).await;
            let vm = vm.unwrap_or_else(|error| panic!("{name}: {error}"));
            let secret = secret(&vm)["name"].as_str().unwrap().to_owned();
            assert!(is_issued_for(&secret, &name), "{secret}");
            names.push((name, secret));
            sleep(Duration::from_millis(50)).await;
        }
        names
    };
    let change_versions = async {
        let before = poll("leases before the upgrade", async || {
            let leases = later::leases(cluster, &hosted.network).await;
            (leases.len() >= 3).then_some(leases)
        })
        .await;
        // The order of `kubectl apply`: the Deployment is last.
        for plural in KINDS {
            later::apply(cluster, later::definition(plural)).await;
        }
        deployment.apply_webhooks("0.3.0").await;
        deployment.roll_out().await;
        later::note(cluster, before.keys()).await;
        // The downgrade changes only the Deployment.
        deployment.roll_out().await;
        is_over.store(true, Ordering::Relaxed);
        before
    };
    let (names, before) = tokio::join!(create, change_versions);
    for (_, secret) in &names {
        hosted.until_secret(secret).await;
    }
    let held = hosted.held().await;
    let holders: BTreeSet<&String> = held.iter().map(|(_, name)| name).collect();
    assert_eq!((held.len(), holders), (names.len(), names.iter().map(|(name, _)| name).collect()));
    let after = later::leases(cluster, &hosted.network).await;
    for (name, spec) in before {
        assert_eq!(after[&name], later::noted(spec), "{name}");
    }

    // Undoes the changes: other scenarios use the CRDs of this version, and their own replicas.
    for kind in WEBHOOKS {
        configurations(cluster, kind).delete("glowplug-controller", &DeleteParams::default()).await.unwrap();
    }
    poll("a machine that no webhook changes", async || {
        secret(&hosted.vms.create(&dry_run, &probe).await.unwrap()).is_null().then_some(())
    })
    .await;
    for plural in KINDS {
        later::apply(cluster, later::present(plural)).await;
    }
}
