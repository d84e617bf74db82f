//! Helpers of the tests: API servers, stand-ins for other programs, clients and scenarios.

#![allow(dead_code, unreachable_pub, reason = "each test program uses only some of the helpers")]

pub mod apply;
pub mod cluster_api;
pub mod collector;
pub mod controller;
pub mod endpoint;
pub mod gate;
pub mod hook;
pub mod hosted;
pub mod http;
pub mod installed;
pub mod ipam_claims;
pub mod later;
pub mod leader;
pub mod machine_api;
pub mod manifests;
pub mod plugin;
pub mod policy;
pub mod program;
pub mod promql;
pub mod real;
pub mod replica;
pub mod rights;
pub mod scenarios;
pub mod server;
pub mod soak;
pub mod sources;
pub mod trouble;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use glowplug_controller::cluster::client::connect;
use glowplug_controller::kinds::pool::{StaticIPLease, definitions};
use http_body_util::BodyExt as _;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Namespace, ObjectReference};
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, ListParams, PostParams};
use kube::client::Body;
use kube::runtime::conditions::is_crd_established;
use kube::runtime::wait::await_condition;
use kube::{Api, Client, Config};
use serde_json::json;

/// Namespace of the controller in the manifests.
pub const SYSTEM: &str = "ipam-glowplug-system";

/// The user name of the controller in a cluster.
pub const CONTROLLER: &str = "system:serviceaccount:ipam-glowplug-system:glowplug-controller-manager";

/// An API server with the CRDs of the controller, of Cluster API and of hosted clusters, and with the rights of the
/// service account.
#[derive(Clone)]
pub struct Cluster {
    config: Config,
    /// The stand-in for the webhook of KubeVirt. `None`: the cluster does not have the kind VirtualMachineInstance.
    kubevirt: Option<Arc<hook::Hook>>,
}

/// Starts an API server in the test process.
pub async fn start_server() -> (server::Server, Cluster) {
    let server = server::Server::start().await;
    let cluster = Cluster::of(&server).await;
    (server, cluster)
}

/// Returns whether a request writes a lease.
pub fn is_lease_write(call: &server::Call) -> bool {
    call.plural == "staticipleases" && matches!(call.verb, "create" | "update" | "delete")
}

/// Waits for an event about an object, and returns the note of the event. `kind` is `None`: an object of any kind.
pub async fn until_event(client: Client, namespace: &str, kind: Option<&str>, name: &str, reason: &str) -> String {
    let events: Api<Event> = Api::namespaced(client, namespace);
    let is_about = |object: &ObjectReference| {
        object.name.as_deref() == Some(name) && kind.is_none_or(|kind| object.kind.as_deref() == Some(kind))
    };
    let is_meant =
        |event: &Event| event.reason.as_deref() == Some(reason) && event.regarding.as_ref().is_some_and(is_about);
    hosted::poll(&format!("event {reason} of {name}"), async || {
        let events = events.list(&ListParams::default()).await.unwrap().items;
        let event = events.into_iter().find(is_meant);
        event.map(|event| event.note.unwrap_or_default())
    })
    .await
}

/// Returns a client that repeats a request to which the API server answers 429. This answer means that nothing was
/// changed. An API server answers 429 for a kind whose storage it is still initializing.
fn patient(client: Client) -> Client {
    let namespace = client.default_namespace().to_owned();
    let send = move |request: hyper::Request<Body>| {
        let client = client.clone();
        async move {
            let (parts, body) = request.into_parts();
            let body = body.collect().await?.to_bytes();
            loop {
                let request = hyper::Request::from_parts(parts.clone(), Body::from(body.clone()));
                let answer = client.send(request).await?;
                if answer.status() != hyper::StatusCode::TOO_MANY_REQUESTS {
                    return Ok::<_, tower::BoxError>(answer);
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    };
    Client::new(tower::service_fn(send), namespace)
}

// === impl Cluster ===

impl Cluster {
    /// Installs the CRDs of the controller, of Cluster API and of hosted clusters, and the rights of the controller, in
    /// the cluster of `config`.
    pub async fn new(config: Config) -> Self {
        Self::with(config, cluster_api::definitions().into_iter().chain(hosted::definitions::definitions())).await
    }

    /// Installs the CRDs of the controller, the CRDs `others`, and the rights of the controller in the cluster of
    /// `config`. If `others` contains the kind VirtualMachineInstance, also starts the stand-in for the webhook of
    /// KubeVirt.
    pub async fn with(config: Config, others: impl IntoIterator<Item = CustomResourceDefinition>) -> Self {
        let mut cluster = Self { config, kubevirt: None };
        let mut has_instances = false;
        for definition in definitions().into_iter().chain(others) {
            has_instances |= definition.spec.names.kind == hosted::definitions::INSTANCE.2;
            cluster.define(&definition).await;
        }
        cluster.install_rights().await;
        if has_instances {
            cluster.kubevirt = Some(Arc::new(hosted::mutator::start(&cluster).await));
        }
        cluster
    }

    /// Installs a CRD.
    pub async fn define(&self, definition: &CustomResourceDefinition) {
        let api: Api<CustomResourceDefinition> = Api::all(self.client());
        let name = definition.metadata.name.clone().unwrap();
        api.create(&PostParams::default(), definition).await.unwrap();
        await_condition(api, &name, is_crd_established()).await.unwrap();
    }

    async fn install_rights(&self) {
        let namespace = manifests::object(&manifests::render("manager"), "Namespace", SYSTEM).clone();
        let rights = manifests::render("rbac").into_iter().filter(|object| object["kind"] != "ServiceAccount");
        for object in [namespace].into_iter().chain(rights) {
            let object: DynamicObject = serde_json::from_value(object).unwrap();
            let kind = ApiResource::from_gvk(&GroupVersionKind::try_from(object.types.clone().unwrap()).unwrap());
            let api: Api<DynamicObject> = match &object.metadata.namespace {
                Some(namespace) => Api::namespaced_with(self.client(), namespace, &kind),
                None => Api::all_with(self.client(), &kind),
            };
            api.create(&PostParams::default(), &object).await.unwrap();
        }
        // A real server receives roles and bindings through watches, so the rights apply some time later.
        let leases: Api<StaticIPLease> = Api::all(self.controller());
        let elections: Api<Lease> = Api::namespaced(self.controller(), SYSTEM);
        while leases.list(&ListParams::default()).await.is_err() || elections.get_opt("none").await.is_err() {
            tokio::task::yield_now().await;
        }
    }

    /// Returns the cluster of a server in the test process.
    pub async fn of(server: &server::Server) -> Self {
        Self::new(Self::config_of(server)).await
    }

    /// Returns the client configuration for a server in the test process.
    pub fn config_of(server: &server::Server) -> Config {
        let mut config = Config::new(server.url().parse().unwrap());
        // Without this line, each client reads all root certificates of the machine, which takes a third of the time of
        // these tests.
        config.root_cert = Some(Vec::new());
        config
    }

    /// Returns the client configuration for this cluster, with all rights.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Returns a client with all rights, with connections of its own.
    pub fn client(&self) -> Client {
        patient(connect(self.config.clone()).unwrap())
    }

    /// Returns a client with exactly the rights of the controller. Almost all tests run the controller with this
    /// client.
    pub fn controller(&self) -> Client {
        self.client_as(CONTROLLER)
    }

    /// Returns a client with the rights of a user.
    pub fn client_as(&self, user: &str) -> Client {
        let mut config = self.config.clone();
        config.auth_info.impersonate = Some(user.to_owned());
        connect(config).unwrap()
    }

    /// Creates a namespace that no other scenario uses.
    pub async fn namespace(&self) -> String {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let name = format!("scenario-{}", COUNT.fetch_add(1, Ordering::Relaxed));
        let namespace: Namespace = serde_json::from_value(json!({"metadata": {"name": name}})).unwrap();
        Api::all(self.client()).create(&PostParams::default(), &namespace).await.unwrap();
        name
    }
}
