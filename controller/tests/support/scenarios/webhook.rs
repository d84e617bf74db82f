//! Pools that the webhook checks, with the shipped configuration of the webhook.

use std::net::SocketAddr;
use std::sync::Arc;

use glowplug_controller::api::{
    GlobalPoolSpec, GlobalStaticIPPool, MachineNetwork, PoolSpec, StaticIPLease, StaticIPPool,
};
use glowplug_controller::metrics::Metrics;
use glowplug_controller::serve::{Certificate, Phase, serve};
use glowplug_controller::webhook::{POOLS_PATH, Webhooks};
use http::{Request, StatusCode};
use http_body_util::BodyExt;
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Resource};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::support::Cluster;
use crate::support::leader::name;
use crate::support::manifests::webhooks_at;

/// A replica that answers webhooks, and the cluster that asks it.
struct Asked<'c> {
    cluster: &'c Cluster,
    namespace: String,
    phase: watch::Sender<Phase>,
    _certificate: TempDir,
}

fn spec(network: &str, addresses: &[&str]) -> PoolSpec {
    PoolSpec {
        network: network.to_owned(),
        addresses: addresses.iter().map(|&address| address.to_owned()).collect(),
        machine_network: vec![MachineNetwork { cidr: "10.0.0.0/16".to_owned() }],
        ..PoolSpec::default()
    }
}

/// The message of a refusal by the webhook for pools.
fn refusal<T>(result: kube::Result<T>) -> Option<String> {
    match result {
        Err(kube::Error::Api(status)) => {
            let start = "admission webhook \"pools.ipam.glowplug.dev\" denied the request: ";
            let message = status.message.strip_prefix(start).unwrap_or_else(|| panic!("{status:?}"));
            assert_eq!(status.code, 422);
            Some(message.to_owned())
        }
        Err(error) => panic!("{error}"),
        Ok(_) => None,
    }
}

// === impl Asked ===

impl<'c> Asked<'c> {
    async fn start(cluster: &'c Cluster) -> Self {
        let certificate = tempfile::tempdir().unwrap();
        let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
        std::fs::write(certificate.path().join("tls.crt"), made.cert.pem()).unwrap();
        std::fs::write(certificate.path().join("tls.key"), made.signing_key.serialize_pem()).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address: SocketAddr = listener.local_addr().unwrap();
        let (phase, phases) = watch::channel(Phase::Serving);
        let webhooks = Webhooks::new(cluster.controller(), Arc::new(Metrics::new(watch::channel(false).1)));
        let handler = move |request| webhooks.clone().answer(request);
        tokio::spawn(serve(listener, Some(Arc::new(Certificate::of(certificate.path()))), handler, phases));

        let configuration = webhooks_at(&format!("https://{address}"), &made.cert.pem());
        let configuration: ValidatingWebhookConfiguration = serde_json::from_value(configuration).unwrap();
        Self::configurations(cluster).create(&PostParams::default(), &configuration).await.unwrap();
        let asked = Self { cluster, namespace: cluster.namespace().await, phase, _certificate: certificate };
        asked.until(true).await;
        asked
    }

    fn configurations(cluster: &Cluster) -> Api<ValidatingWebhookConfiguration> {
        Api::all(cluster.client())
    }

    /// Waits until the API server asks the webhook, or asks it no more: a real server learns of a configuration from a
    /// watch.
    async fn until(&self, is_asked: bool) {
        let dry_run = PostParams { dry_run: true, ..PostParams::default() };
        let invalid = StaticIPPool::new("invalid", spec(&self.network(), &["x"]));
        while self.pools().create(&dry_run, &invalid).await.is_err() != is_asked {
            tokio::task::yield_now().await;
        }
    }

    /// A network that no other scenario uses.
    fn network(&self) -> String {
        format!("{}/vlan10", self.namespace)
    }

    fn pools(&self) -> Api<StaticIPPool> {
        Api::namespaced(self.cluster.client(), &self.namespace)
    }

    async fn create(&self, name: &str, spec: PoolSpec) -> Option<String> {
        refusal(self.pools().create(&PostParams::default(), &StaticIPPool::new(name, spec)).await)
    }

    async fn change(&self, name: &str, change: serde_json::Value) -> Option<String> {
        refusal(self.pools().patch(name, &PatchParams::default(), &Patch::Merge(change)).await)
    }

    /// Takes the configuration away, so that other scenarios may write pools, and ends the replica.
    async fn stop(self) {
        Self::configurations(self.cluster).delete("glowplug-controller", &DeleteParams::default()).await.unwrap();
        self.until(false).await;
        self.phase.send_replace(Phase::Closing);
    }
}

pub async fn an_invalid_pool_is_refused_with_every_error(cluster: &Cluster) {
    let asked = Asked::start(cluster).await;
    let mut wrong = spec(&asked.network(), &["10.0.0.5/24", "x"]);
    wrong.nameservers = vec!["y".to_owned()];
    let expected = "addresses[0]: host bits are set \"10.0.0.5/24\", expected no bits behind the length: \
                    did you mean 10.0.0.0/24 or 10.0.0.5/32\n\
                    addresses[1]: invalid address \"x\", expected an address, a CIDR or a range, \
             such as 10.0.0.5, 10.0.0.0/24 or 10.0.0.5-10.0.0.9\n\
                    nameservers[0]: invalid address \"y\", expected an IPv4 or IPv6 address";
    assert_eq!(asked.create("a", wrong).await.as_deref(), Some(expected));
    assert_eq!(asked.create("a", spec(&asked.network(), &["10.0.0.0/24"])).await, None);
    let network = asked.network();
    let expected =
        format!("network: immutable \"infra/vlan11\", expected \"{network}\": create a new pool for another network");
    // A server with CEL refuses this by the schema of the kind, before it asks a webhook.
    let (pools, change) = (asked.pools(), json!({"spec": {"network": "infra/vlan11"}}));
    match pools.patch("a", &PatchParams::default(), &Patch::Merge(change)).await {
        Err(kube::Error::Api(status)) => {
            let is_refused = status.message.contains(&expected) || status.message.contains("network: immutable");
            assert_eq!((status.code, is_refused), (422, true), "{status:?}");
        }
        other => panic!("{other:?}"),
    }
    asked.stop().await;
}

pub async fn an_overlap_of_pools_of_either_kind_is_refused(cluster: &Cluster) {
    let asked = Asked::start(cluster).await;
    let (network, namespace) = (asked.network(), asked.namespace.clone());
    assert_eq!(asked.create("a", spec(&network, &["10.0.0.0-10.0.0.50"])).await, None);
    assert_eq!(asked.create("b", spec(&network, &["10.0.0.60-10.0.0.90"])).await, None);
    let overlap = |pools: &str, addresses: &str| {
        Some(format!("pools {pools} offer the same addresses of network {network}: {addresses}"))
    };
    let grown = json!({"spec": {"addresses": ["10.0.0.10-10.0.0.90"]}});
    let pools = format!("{namespace}/a and {namespace}/b");
    assert_eq!(asked.change("b", grown).await, overlap(&pools, "10.0.0.10-10.0.0.50"));

    let global: Api<GlobalStaticIPPool> = Api::all(cluster.client());
    let pool = GlobalStaticIPPool::new(&namespace, GlobalPoolSpec { pool: spec(&network, &["10.0.0.80-10.0.0.99"]) });
    let pools = format!("{namespace}/b and {namespace}");
    assert_eq!(refusal(global.create(&PostParams::default(), &pool).await), overlap(&pools, "10.0.0.80-10.0.0.90"));
    asked.pools().delete("b", &DeleteParams::default()).await.unwrap();
    assert_eq!(refusal(global.create(&PostParams::default(), &pool).await), None);
    let pools = format!("{namespace} and {namespace}/b");
    assert_eq!(asked.create("b", spec(&network, &["10.0.0.90"])).await, overlap(&pools, "10.0.0.90"));
    global.delete(&namespace, &DeleteParams::default()).await.unwrap();
    asked.stop().await;
}

pub async fn a_pool_that_is_invalid_already_can_be_released_and_deleted(cluster: &Cluster) {
    let namespace = cluster.namespace().await;
    let pools: Api<StaticIPPool> = Api::namespaced(cluster.client(), &namespace);
    let mut invalid = StaticIPPool::new("a", spec(&format!("{namespace}/vlan10"), &["x"]));
    invalid.meta_mut().finalizers = Some(vec!["example.org/finalizer".to_owned()]);
    pools.create(&PostParams::default(), &invalid).await.unwrap();
    let asked = Asked::start(cluster).await;
    pools.delete("a", &DeleteParams::default()).await.unwrap();
    let released = json!({"metadata": {"finalizers": null}});
    pools.patch("a", &PatchParams::default(), &Patch::Merge(released)).await.unwrap();
    assert!(pools.get_opt("a").await.unwrap().is_none());
    asked.stop().await;
}

/// The answer of the webhook to a change of the pool `workers`.
async fn review(
    cluster: &Cluster,
    namespace: &str,
    operation: &str,
    old: Option<&PoolSpec>,
    new: Option<&PoolSpec>,
) -> Value {
    let object = |spec: &PoolSpec| {
        let mut pool = StaticIPPool::new("workers", spec.clone());
        pool.meta_mut().namespace = Some(namespace.to_owned());
        pool
    };
    let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
        "uid": "1234",
        "kind": {"group": "ipam.glowplug.dev", "version": "v1alpha1", "kind": "StaticIPPool"},
        "resource": {"group": "ipam.glowplug.dev", "version": "v1alpha1", "resource": "staticippools"},
        "name": "workers", "namespace": namespace, "operation": operation, "userInfo": {},
        "object": new.map(object), "oldObject": old.map(object),
    }});
    let (status, body) = post(cluster, POOLS_PATH, review.to_string()).await;
    let review: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(
        (status.as_u16(), &review["apiVersion"], &review["kind"], &review["response"]["uid"]),
        (200, &json!("admission.k8s.io/v1"), &json!("AdmissionReview"), &json!("1234"))
    );
    review["response"].clone()
}

async fn post(cluster: &Cluster, path: &str, body: String) -> (StatusCode, String) {
    let webhooks = Webhooks::new(cluster.controller(), Arc::new(Metrics::new(watch::channel(false).1)));
    let response = webhooks.answer(Request::post(path).body(body.into()).unwrap()).await;
    let status = response.status();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

pub async fn a_pool_in_use_shrinks_and_is_deleted_with_a_warning(cluster: &Cluster) {
    let namespace = cluster.namespace().await;
    let network = format!("{namespace}/vlan10");
    let leases: Api<StaticIPLease> = Api::all(cluster.client());
    for (address, holder, released) in [
        ("10.0.0.8", "worker-0", None),
        ("10.0.0.9", "worker-1", Some("2026-08-14T10:00:01.000000Z")),
        ("10.0.0.10", "worker-2", None),
    ] {
        let spec = json!({
            "network": network, "address": address, "prefix": 16, "pool": format!("{namespace}/workers"),
            "since": "2026-08-14T10:00:00.000000Z", "released": released,
            "holder": {"kind": "IPAddressClaim", "namespace": namespace, "name": holder, "uid": holder, "interface": "eno101"},
        });
        let lease = StaticIPLease::new(&name(&network, address), serde_json::from_value(spec).unwrap());
        leases.create(&PostParams::default(), &lease).await.unwrap();
    }
    let [old, grown, shrunk] = [
        spec(&network, &["10.0.0.8-10.0.0.11"]),
        spec(&network, &["10.0.0.8-10.0.0.20"]),
        spec(&network, &["10.0.0.9-10.0.0.20"]),
    ];
    let allowed = |warnings: Option<String>| {
        let mut response = json!({"uid": "1234", "allowed": true, "status": {}});
        if let Some(warning) = warnings {
            response["warnings"] = json!([warning]);
        }
        response
    };
    let update = async |new: &PoolSpec| review(cluster, &namespace, "UPDATE", Some(&old), Some(new)).await;
    assert_eq!(update(&grown).await, allowed(None));
    let stays = "no longer allocates these addresses, which stay with their holders: 10.0.0.8 (holders: 1)";
    assert_eq!(update(&shrunk).await, allowed(Some(format!("pool {namespace}/workers {stays}"))));
    let deleted = "is deleted when these addresses are released: 10.0.0.8, 10.0.0.10 (holders: 2)";
    let answer = review(cluster, &namespace, "DELETE", Some(&old), None).await;
    assert_eq!(answer, allowed(Some(format!("pool {namespace}/workers {deleted}"))));
}

pub async fn a_request_that_is_no_review_of_a_pool_is_refused(cluster: &Cluster) {
    let expected = "expected an AdmissionReview of admission.k8s.io/v1 with a request\n";
    for body in ["", "[]", "{}", r#"{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}"#] {
        assert_eq!(post(cluster, POOLS_PATH, body.to_owned()).await, (StatusCode::BAD_REQUEST, expected.to_owned()));
    }
    let missing = (StatusCode::NOT_FOUND, "no such webhook\n".to_owned());
    assert_eq!(post(cluster, "/validate", String::new()).await, missing);
    let answer = review(cluster, "clusters", "DELETE", None, None).await;
    let message = "operation Delete, expected Create, Update or Delete with its objects";
    assert_eq!((&answer["allowed"], &answer["status"]["message"]), (&json!(false), &json!(message)));
}
