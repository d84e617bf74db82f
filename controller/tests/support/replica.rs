//! A replica that serves webhooks, and the cluster that calls the webhooks.

use std::path::Path;
use std::sync::Arc;

use glowplug_controller::metrics::Metrics;
use glowplug_controller::pools::facts::Scope;
use glowplug_controller::pools::selection_cache::SelectionCache;
use glowplug_controller::webhook::Webhooks;
use kube::Api;
use kube::api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams};
use serde_json::json;
use tokio::task::JoinHandle;

use super::Cluster;
use super::endpoint::Endpoint;
use super::manifests::webhooks_at;

/// A replica, and the shipped webhook configurations, with which the API server calls the replica.
pub struct Replica<'c> {
    cluster: &'c Cluster,
    kinds: Vec<&'static str>,
    endpoint: Endpoint,
    cache: JoinHandle<()>,
}

// === impl Replica ===

impl<'c> Replica<'c> {
    /// Starts a replica and creates the configurations of these kinds. A real API server uses the configurations some
    /// time later.
    pub async fn start(cluster: &'c Cluster, kinds: &[&'static str]) -> Self {
        let selection = Arc::new(SelectionCache::new(cluster.controller(), Scope::default()));
        let webhooks = webhooks(cluster, &selection);
        let endpoint = Endpoint::start(move |request| webhooks.clone().answer(request)).await;
        let mut selections = selection.subscribe();
        let cache = tokio::spawn(async move {
            let never = selection.run().await;
            match never {}
        });
        selections.wait_for(Option::is_some).await.unwrap();

        let kinds = kinds.to_vec();
        let replica = Self { cluster, kinds, endpoint, cache };
        for kind in &replica.kinds {
            let configuration = webhooks_at(kind, &replica.endpoint.url, &replica.endpoint.roots());
            let webhooks = Patch::Merge(json!({"webhooks": configuration["webhooks"]}));
            let configurations = configurations(cluster, kind);
            let new = serde_json::from_value(configuration).unwrap();
            match configurations.create(&PostParams::default(), &new).await {
                // The configuration exists already. It is changed in place, so that no machine is created without the
                // webhook.
                Err(kube::Error::Api(status)) if status.code == 409 => {
                    configurations.patch("glowplug-controller", &PatchParams::default(), &webhooks).await.unwrap();
                }
                result => drop(result.unwrap()),
            }
        }
        replica
    }

    /// Replaces the certificate of the replica, and writes the new certificate into the configurations.
    pub async fn renew(&self) {
        self.endpoint.renew();
        for kind in &self.kinds {
            let webhooks = webhooks_at(kind, &self.endpoint.url, &self.endpoint.roots())["webhooks"].take();
            let patch = Patch::Merge(json!({"webhooks": webhooks}));
            let configurations = configurations(self.cluster, kind);
            configurations.patch("glowplug-controller", &PatchParams::default(), &patch).await.unwrap();
        }
    }

    /// Deletes the configurations, waits until the API server no longer calls the webhooks, and stops the replica.
    pub async fn stop(mut self, until_unasked: impl AsyncFnOnce()) {
        self.unask().await;
        until_unasked().await;
        self.end().await;
    }

    /// Deletes the configurations, if they exist. A real API server continues to call the webhooks for some time.
    pub async fn unask(&self) {
        for kind in &self.kinds {
            let configurations = configurations(self.cluster, kind);
            match configurations.delete("glowplug-controller", &DeleteParams::default()).await {
                Err(kube::Error::Api(status)) if status.code == 404 => {}
                result => drop(result.unwrap()),
            }
        }
    }

    /// Stops the replica. The API server continues to call the replica while configurations exist.
    pub async fn end(&mut self) {
        self.endpoint.end().await;
    }
}

impl Drop for Replica<'_> {
    fn drop(&mut self) {
        self.cache.abort();
    }
}

/// Writes a new certificate and its key into a folder, and returns the certificate.
pub fn write_certificate(folder: &Path) -> String {
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    std::fs::write(folder.join("tls.crt"), made.cert.pem()).unwrap();
    std::fs::write(folder.join("tls.key"), made.signing_key.serialize_pem()).unwrap();
    made.cert.pem()
}

/// Returns the webhooks of a replica that uses this cache of pools.
pub fn webhooks(cluster: &Cluster, selection: &Arc<SelectionCache>) -> Webhooks {
    Webhooks::new(cluster.controller(), Arc::new(Metrics::default()), Arc::clone(selection))
}

/// Returns the API for the webhook configurations of a kind.
pub fn configurations(cluster: &Cluster, kind: &str) -> Api<DynamicObject> {
    Api::all_with(
        cluster.client(),
        &ApiResource::from_gvk(&GroupVersionKind::gvk("admissionregistration.k8s.io", "v1", kind)),
    )
}
