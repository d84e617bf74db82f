//! Runs the controller as an administrator installs it: a leader, and a replica whose webhooks the API server calls.

use glowplug_controller::kinds::pool::StaticIPPool;
use kube::Api;
use kube::api::PostParams;
use serde_json::{Value, json};

use super::Cluster;
use super::controller::Controller;
use super::hosted::{Hosted, poll};
use super::replica::Replica;

const WEBHOOK: &str = "machines.ipam.glowplug.dev";
const KINDS: &[&str] = &["MutatingWebhookConfiguration"];
const ALL_KINDS: &[&str] = &["MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"];

pub struct Installed<'c> {
    cluster: &'c Cluster,
    leader: Option<Controller>,
    replica: Replica<'c>,
    kinds: &'static [&'static str],
}

// === impl Installed ===

impl<'c> Installed<'c> {
    /// Starts a leader and a replica that work in every namespace, and configures the API server to call the mutating
    /// webhooks of the replica.
    pub async fn start(cluster: &'c Cluster) -> Self {
        Self::start_with(cluster, KINDS).await
    }

    /// Starts a leader and a replica, and configures the API server to call all webhooks of the replica.
    pub async fn start_with_all_webhooks(cluster: &'c Cluster) -> Self {
        Self::start_with(cluster, ALL_KINDS).await
    }

    async fn start_with(cluster: &'c Cluster, kinds: &'static [&'static str]) -> Self {
        let replica = Replica::start(cluster, kinds).await;
        let mut installed = Self { cluster, leader: None, replica, kinds };
        installed.lead().await;
        installed
    }

    /// Starts a leader and waits until it is ready.
    pub async fn lead(&mut self) {
        let mut leader = Controller::of(self.cluster, "");
        leader.until_ready().await;
        self.leader = Some(leader);
    }

    /// Drops the leader, which simulates a crash.
    pub fn stop_leading(&mut self) {
        self.leader = None;
    }

    /// Stops the replica. The API server is still configured to call the replica.
    pub async fn stop_answering(&mut self) {
        self.replica.end().await;
    }

    /// Starts another replica, and configures the API server to call this replica.
    pub async fn answer_again(&mut self) {
        self.replica = Replica::start(self.cluster, self.kinds).await;
    }

    /// Waits until the API server calls the webhook for the machines of a NodePool. The leader must label the namespace
    /// first, and a real API server sees labels and configurations some time later.
    pub async fn until_asked(&self, hosted: &Hosted, node_pool: &str) {
        poll("a question to the webhook", async || match probe(hosted, node_pool).await {
            Ok(is_changed) => is_changed.then_some(()),
            Err(message) => message.contains(&format!("{WEBHOOK:?} denied")).then_some(()),
        })
        .await;
    }

    /// Waits until no webhook changes the machines of a NodePool: no pool selects them, or no webhook is called.
    pub async fn until_not_selected(&self, hosted: &Hosted, node_pool: &str) {
        let is_unchanged = async || (probe(hosted, node_pool).await == Ok(false)).then_some(());
        poll("a machine that no pool selects", is_unchanged).await;
    }

    /// Deletes the configuration of the webhook, and waits until the API server no longer calls the webhook.
    pub async fn until_not_asked(&self, hosted: &Hosted, node_pool: &str) {
        self.replica.unask().await;
        self.until_not_selected(hosted, node_pool).await;
    }

    /// Deletes the configurations of the webhooks, so that other scenarios can create machines, and stops the leader
    /// and the replica.
    pub async fn stop(mut self) {
        self.replica.unask().await;
        self.replica.end().await;
        // A real API server continues to call the webhooks for some time, and refuses pools meanwhile.
        poll("a pool that no webhook refuses", async || is_unasked(self.cluster).await.then_some(())).await;
    }
}

/// Whether the API server no longer calls the webhook: a pool in a dry run does not fail with code 500.
async fn is_unasked(cluster: &Cluster) -> bool {
    let dry_run = PostParams { dry_run: true, ..PostParams::default() };
    let pools: Api<StaticIPPool> = Api::namespaced(cluster.client(), "default");
    let spec = json!({"network": "probe", "addresses": ["10.0.0.8"], "machineNetwork": [{"cidr": "10.0.0.0/24"}]});
    let pool = StaticIPPool::new("probe", serde_json::from_value(spec).unwrap());
    let answer = pools.create(&dry_run, &pool).await;
    !matches!(answer, Err(kube::Error::Api(status)) if status.code == 500)
}

/// Returns whether the webhook changes a machine of a NodePool. The machine is not stored. `Err`: the message of the
/// rejection.
async fn probe(hosted: &Hosted, node_pool: &str) -> Result<bool, String> {
    let dry_run = PostParams { dry_run: true, ..PostParams::default() };
    match hosted.vms.create(&dry_run, &hosted.vm("probe", &labels(hosted, "probe", node_pool), &json!({}))).await {
        Ok(vm) => {
            let drive = &vm.data["spec"]["template"]["spec"]["volumes"][0]["cloudInitConfigDrive"];
            Ok(drive.get("networkDataSecretRef").is_some())
        }
        Err(kube::Error::Api(status)) => Err(status.message),
        Err(error) => panic!("{error}"),
    }
}

/// Returns the labels of a VirtualMachine that capk creates for a machine of a NodePool.
pub fn labels(hosted: &Hosted, name: &str, node_pool: &str) -> Value {
    json!({
        "hypershift.openshift.io/nodepool-name": node_pool, "capk.cluster.x-k8s.io/kubevirt-machine-name": name,
        "capk.cluster.x-k8s.io/kubevirt-machine-namespace": hosted.namespace,
    })
}
