//! A namespace that is not the target of any fault. It shows that a fault affects no other user: a claim of this
//! namespace gets its address while the fault lasts.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use glowplug_controller::kinds::pool::{MachineNetwork, PoolSpec, StaticIPPool};
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{DeleteParams, DynamicObject, PostParams};
use kube::{Api, Client};
use serde_json::json;
use tokio::time::sleep;

use crate::place::CLAIM;
use crate::settle;
use crate::support::hosted::definitions::resource;
use crate::support::hosted::provider::object;

/// The namespace of the claims.
pub const WITNESS: &str = "witness";
/// The network of the pool for these claims.
pub const NETWORK: &str = "infra/witness";
/// Time limit for a claim to be served. Another replica may have to take the Lease first.
const PATIENCE: Duration = Duration::from_secs(120);

pub struct Witness {
    claims: Api<DynamicObject>,
    /// Number of claims so far.
    count: AtomicUsize,
}

// === impl Witness ===

impl Witness {
    /// Creates the namespace and its pool.
    pub async fn new(client: &Client) -> Self {
        let namespace: Namespace = serde_json::from_value(json!({"metadata": {"name": WITNESS}})).unwrap();
        Api::all(client.clone()).create(&PostParams::default(), &namespace).await.unwrap();
        let spec = PoolSpec {
            network: NETWORK.to_owned(),
            addresses: vec!["10.0.0.10-10.0.0.249".to_owned()],
            machine_network: vec![MachineNetwork { cidr: "10.0.0.0/16".to_owned() }],
            ..PoolSpec::default()
        };
        let pools = Api::namespaced(client.clone(), WITNESS);
        pools.create(&PostParams::default(), &StaticIPPool::new("a", spec)).await.unwrap();
        let claims = Api::namespaced_with(client.clone(), WITNESS, &resource(CLAIM));
        Self { claims, count: AtomicUsize::new(0) }
    }

    /// Creates a claim, waits until the claim has its address, and deletes the claim. An error: the claim had no
    /// address after [`PATIENCE`]. The error names `fault`, which lasts during the call.
    pub async fn serve(&self, fault: &str) -> Result<(), String> {
        let name = format!("c{}", self.count.fetch_add(1, Ordering::Relaxed));
        let pool = json!({"apiGroup": "ipam.glowplug.dev", "kind": "StaticIPPool", "name": "a"});
        let claim = object(CLAIM, json!({"metadata": {"name": name}, "spec": {"poolRef": pool}}));
        let began = Instant::now();
        settle(async || self.claims.create(&PostParams::default(), &claim).await).await;
        loop {
            let claim = settle(async || self.claims.get_opt(&name).await).await.flatten();
            let status = claim.map(|claim| claim.data["status"].clone()).unwrap_or_default();
            if !status["addressRef"]["name"].is_null() {
                break;
            }
            if began.elapsed() > PATIENCE {
                return Err(format!("{fault}: a claim of another namespace is not served: {status}"));
            }
            sleep(Duration::from_millis(200)).await;
        }
        settle(async || self.claims.delete(&name, &DeleteParams::default()).await).await;
        Ok(())
    }
}
