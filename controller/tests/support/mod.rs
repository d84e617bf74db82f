//! What the tests run against: the server of the tests in process, or a real one.

#![allow(dead_code, unreachable_pub, reason = "each test program uses a part of it")]

pub mod http;
pub mod leader;
pub mod real;
pub mod scenarios;
pub mod server;

use std::sync::atomic::{AtomicUsize, Ordering};

use glowplug_controller::api::definitions;
use glowplug_controller::client::connect;
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::PostParams;
use kube::runtime::conditions::is_crd_established;
use kube::runtime::wait::await_condition;
use kube::{Api, Client, Config};
use serde_json::json;

/// An API server with the CRDs of the controller.
pub struct Cluster {
    config: Config,
}

// === impl Cluster ===

impl Cluster {
    /// The cluster that `config` names, with the CRDs installed.
    pub async fn new(config: Config) -> Self {
        let cluster = Self { config };
        let definitions_api: Api<CustomResourceDefinition> = Api::all(cluster.client());
        for definition in definitions() {
            let name = definition.metadata.name.clone().unwrap();
            definitions_api.create(&PostParams::default(), &definition).await.unwrap();
            await_condition(definitions_api.clone(), &name, is_crd_established()).await.unwrap();
        }
        cluster
    }

    /// The cluster of a server in process.
    pub async fn of(server: &server::Server) -> Self {
        let config = Config::new(server.url().parse().unwrap());
        Self::new(config).await
    }

    /// A client that may do everything, with connections of its own.
    pub fn client(&self) -> Client {
        connect(self.config.clone()).unwrap()
    }

    /// A client with the rights of a user.
    pub fn client_as(&self, user: &str) -> Client {
        let mut config = self.config.clone();
        config.auth_info.impersonate = Some(user.to_owned());
        connect(config).unwrap()
    }

    /// Makes a namespace that no other scenario uses.
    pub async fn namespace(&self) -> String {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let name = format!("scenario-{}", COUNT.fetch_add(1, Ordering::Relaxed));
        let namespace: Namespace = serde_json::from_value(json!({"metadata": {"name": name}})).unwrap();
        Api::all(self.client()).create(&PostParams::default(), &namespace).await.unwrap();
        name
    }
}
