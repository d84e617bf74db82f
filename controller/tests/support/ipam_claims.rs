//! A namespace with IPAMClaims, and the objects on which they depend.

use glowplug_controller::kinds::pool::{PoolSpec, StaticIPPool};
use kube::api::{DeleteParams, DynamicObject, ListParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use super::Cluster;
use super::controller::{Site, merge, until, wait};
use super::hosted::definitions::{INSTANCE, IPAM_CLAIM, NETWORK_ATTACHMENT, resource};
use super::hosted::mutator;
use super::hosted::provider::object;

/// Name of the network in the configuration of the network attachment definition `vlan10`. IPAMClaims refer to this
/// name.
pub const NETWORK: &str = "tenant-blue";
/// Finalizer of ipam-extensions on an IPAMClaim.
pub const PERSISTENT: &str = "kubevirt.io/persistent-ipam";

/// A namespace with IPAMClaims.
#[derive(Clone)]
pub struct Tenant {
    pub site: Site,
    pub claims: Api<DynamicObject>,
    /// The instances, written with the rights of KubeVirt.
    pub instances: Api<DynamicObject>,
    pub attachments: Api<DynamicObject>,
}

// === impl Tenant ===

impl Tenant {
    /// Creates a namespace with the network attachment definition `vlan10`.
    pub async fn new(cluster: &Cluster) -> Self {
        let tenant = Self::without_network(cluster).await;
        tenant.create_network(NETWORK).await;
        tenant
    }

    /// Creates a namespace without a network attachment definition.
    pub async fn without_network(cluster: &Cluster) -> Self {
        let site = Site::new(cluster).await;
        let api = |names| Api::namespaced_with(cluster.client(), &site.namespace, &resource(names));
        let kubevirt = mutator::client(&cluster.client());
        let instances = Api::namespaced_with(kubevirt, &site.namespace, &resource(INSTANCE));
        Self { claims: api(IPAM_CLAIM), instances, attachments: api(NETWORK_ATTACHMENT), site }
    }

    /// Creates the network attachment definition `vlan10` for the network of this name.
    pub async fn create_network(&self, name: &str) {
        let config = json!({"cniVersion": "0.3.1", "name": name, "type": "bridge"}).to_string();
        let attachment = json!({"metadata": {"name": "vlan10"}, "spec": {"config": config}});
        self.attachments.create(&PostParams::default(), &object(NETWORK_ATTACHMENT, attachment)).await.unwrap();
    }

    /// Returns the specification of a pool that serves IPAMClaims.
    pub fn spec(&self, addresses: &[&str]) -> PoolSpec {
        PoolSpec { serve_ipam_claims: true, ..self.site.spec(addresses) }
    }

    /// Creates pool `p`, which serves IPAMClaims.
    pub async fn pool(&self, addresses: &[&str]) {
        let pool = StaticIPPool::new("p", self.spec(addresses));
        self.site.pools.create(&PostParams::default(), &pool).await.unwrap();
    }

    /// Creates the claim of interface `net1` of virtual machine `vm`. The UID of the virtual machine is `uid-`,
    /// followed by its name. Merges `changes` into the claim.
    pub async fn claim(&self, vm: &str, changes: &Value) -> DynamicObject {
        let mut claim = json!({
            "metadata": {
                "name": format!("{vm}.net1"), "labels": {"kubevirt.io/vm": vm},
                "ownerReferences": [owner(vm, &format!("uid-{vm}"))],
            },
            "spec": {"network": NETWORK, "interface": ""},
        });
        json_patch::merge(&mut claim, changes);
        self.claims.create(&PostParams::default(), &object(IPAM_CLAIM, claim)).await.unwrap()
    }

    /// Creates the instance of virtual machine `vm`, whose UID is `uid`.
    pub async fn start(&self, vm: &str, uid: &str) {
        let instance = json!({"metadata": {"name": vm, "ownerReferences": [owner(vm, uid)]}, "spec": {}});
        self.instances.create(&PostParams::default(), &object(INSTANCE, instance)).await.unwrap();
    }

    pub async fn stop(&self, vm: &str) {
        self.instances.delete(vm, &DeleteParams::default()).await.unwrap();
    }

    pub async fn delete(&self, vm: &str) {
        self.claims.delete(&format!("{vm}.net1"), &DeleteParams::default()).await.unwrap();
    }

    pub async fn until_gone(&self, vm: &str) {
        wait(&self.claims, &format!("{vm}.net1"), |claim: Option<&DynamicObject>| claim.is_none()).await;
    }

    /// Waits until the claim has its addresses, and returns the addresses.
    pub async fn ips_of(&self, vm: &str) -> Vec<String> {
        let claim = self.until(vm, "True", "SuccessfulAllocation").await;
        serde_json::from_value(claim.data["status"]["ips"].clone()).unwrap()
    }

    /// Waits until the condition of the claim is false with this reason, and returns the message.
    pub async fn until_failed(&self, vm: &str, reason: &str) -> String {
        let claim = self.until(vm, "False", reason).await;
        condition(&claim)["message"].as_str().unwrap().to_owned()
    }

    /// Waits until the condition of the claim has this status and reason.
    pub async fn until(&self, vm: &str, status: &str, reason: &str) -> DynamicObject {
        let is_meant = |claim: &DynamicObject| {
            let condition = condition(claim);
            condition["status"] == status && condition["reason"] == reason
        };
        until(&self.claims, &format!("{vm}.net1"), is_meant).await
    }

    pub async fn merge(&self, vm: &str, patch: &Value) -> DynamicObject {
        merge(&self.claims, &format!("{vm}.net1"), patch).await
    }

    /// Returns the addresses in the statuses of all claims, sorted.
    pub async fn given(&self) -> Vec<String> {
        let claims = self.claims.list(&ListParams::default()).await.unwrap();
        let ips = |claim: &DynamicObject| claim.data["status"]["ips"].as_array().cloned().unwrap_or_default();
        let mut all: Vec<String> = claims.iter().flat_map(ips).map(|ip| ip.as_str().unwrap().to_owned()).collect();
        all.sort();
        all
    }

    /// Returns whether the claim has the finalizer of the controller.
    pub async fn has_finalizer(&self, vm: &str) -> bool {
        let claim = self.claims.get(&format!("{vm}.net1")).await.unwrap();
        claim.finalizers().iter().any(|name| name == "ipam.glowplug.dev/release-address")
    }
}

pub fn owner(vm: &str, uid: &str) -> Value {
    json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": vm, "uid": uid,
        "controller": true, "blockOwnerDeletion": true,
    })
}

/// Returns the condition `IPsAllocated` of a claim. Null: the claim does not have the condition.
pub fn condition(claim: &DynamicObject) -> Value {
    let conditions = claim.data["status"]["conditions"].as_array().cloned().unwrap_or_default();
    conditions.into_iter().find(|condition| condition["type"] == "IPsAllocated").unwrap_or_default()
}
