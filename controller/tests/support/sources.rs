//! Stand-ins for programs that choose the addresses of machines: a network provider with IPAMClaims, and another IPAM
//! provider of Cluster API.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio::time::sleep;

use super::controller::create;
use super::hosted::definitions::{INSTANCE, IPAM_CLAIM, VIRTUAL_MACHINE, resource};
use super::hosted::provider::object;
use super::hosted::unless_gone;

/// Finalizer of ipam-extensions on an IPAMClaim.
const PERSISTENT: &str = "kubevirt.io/persistent-ipam";
/// Finalizers of the other provider on a claim and on its address.
const RELEASE: &str = "ipam.cluster.x-k8s.io/ReleaseAddress";
const PROTECT: &str = "ipam.cluster.x-k8s.io/ProtectAddress";

/// The addresses that a stand-in can allocate to claims. A test can change them.
#[derive(Clone, Default)]
pub struct Stock(Arc<Mutex<Vec<String>>>);

/// A network provider that fills IPAMClaims (OVN-Kubernetes), and the program that creates the claims of virtual
/// machines (ipam-extensions). Dropping this value stops both stand-ins.
pub struct Network {
    pub claims: Api<DynamicObject>,
    pub stock: Stock,
    task: JoinHandle<()>,
}

/// Another IPAM provider of Cluster API. Dropping this value stops the stand-in.
pub struct OtherProvider {
    pub claims: Api<DynamicObject>,
    pub addresses: Api<DynamicObject>,
    pub stock: Stock,
    task: JoinHandle<()>,
}

// === impl Stock ===

impl Stock {
    fn new(addresses: &[&str]) -> Self {
        let stock = Self::default();
        stock.set(addresses);
        stock
    }

    /// Replaces the addresses of the stock.
    pub fn set(&self, addresses: &[&str]) {
        *self.0.lock().unwrap() = addresses.iter().map(|text| (*text).to_owned()).collect();
    }

    /// Returns the first address that is not in use.
    fn next(&self, used: &BTreeSet<String>) -> Option<String> {
        self.0.lock().unwrap().iter().find(|address| !used.contains(*address)).cloned()
    }
}

// === impl Network ===

impl Network {
    /// Starts the stand-ins in the namespace of machines. The network has these addresses, with prefix length 24.
    pub fn start(client: &Client, namespace: &str, addresses: &[&str]) -> Self {
        let api = |names| Api::namespaced_with(client.clone(), namespace, &resource(names));
        let (claims, vms, instances) = (api(IPAM_CLAIM), api(VIRTUAL_MACHINE), api(INSTANCE));
        let stock = Stock::new(addresses);
        let (of_task, filled) = (claims.clone(), stock.clone());
        let task = tokio::spawn(async move {
            loop {
                create_claims(&of_task, &vms, &instances).await;
                fill_claims(&of_task, &vms, &instances, &filled).await;
                sleep(Duration::from_millis(100)).await;
            }
        });
        Self { claims, stock, task }
    }
}

/// Creates a claim for each interface of each instance.
async fn create_claims(claims: &Api<DynamicObject>, vms: &Api<DynamicObject>, instances: &Api<DynamicObject>) {
    for instance in instances.list(&ListParams::default()).await.unwrap() {
        let name = instance.name_any();
        let Some(vm) = vms.get_opt(&name).await.unwrap() else { continue };
        let networks = instance.data["spec"]["networks"].as_array().cloned().unwrap_or_default();
        for network in networks {
            let claim = format!("{name}.{}", network["name"].as_str().unwrap());
            if claims.get_opt(&claim).await.unwrap().is_some() {
                continue;
            }
            let owner = json!({
                "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": name, "uid": vm.uid(),
                "controller": true, "blockOwnerDeletion": true,
            });
            let claim = json!({
                "metadata": {
                    "name": claim, "labels": {"kubevirt.io/vm": name}, "finalizers": [PERSISTENT],
                    "ownerReferences": [owner],
                },
                "spec": {"network": network["multus"]["networkName"], "interface": ""},
            });
            claims.create(&PostParams::default(), &object(IPAM_CLAIM, claim)).await.unwrap();
        }
    }
}

/// Fills claims without an address, and deletes the claims of VirtualMachines that are gone.
async fn fill_claims(
    claims: &Api<DynamicObject>,
    vms: &Api<DynamicObject>,
    instances: &Api<DynamicObject>,
    stock: &Stock,
) {
    let all = claims.list(&ListParams::default()).await.unwrap().items;
    let ips = |claim: &DynamicObject| claim.data["status"]["ips"].as_array().cloned().unwrap_or_default();
    let used = all.iter().flat_map(ips).map(|ip| ip.as_str().unwrap().split('/').next().unwrap().to_owned());
    let mut used: BTreeSet<String> = used.collect();
    for claim in all {
        let name = claim.name_any();
        let vm = name.split('.').next().unwrap();
        let owner = claim.owner_references().first().map(|owner| owner.uid.clone());
        let is_orphan = owner.is_some() && vms.get_opt(vm).await.unwrap().and_then(|vm| vm.uid()) != owner;
        if claim.metadata.deletion_timestamp.is_some() {
            let is_alive = vms.get_opt(vm).await.unwrap().is_some_and(|vm| vm.metadata.deletion_timestamp.is_none());
            if instances.get_opt(vm).await.unwrap().is_none() || !is_alive || is_orphan {
                let released = Patch::Merge(json!({"metadata": {"finalizers": null}}));
                unless_gone(claims.patch(&name, &PatchParams::default(), &released).await);
            }
            continue;
        }
        if is_orphan {
            unless_gone(claims.delete(&name, &DeleteParams::default()).await);
        } else if ips(&claim).is_empty() {
            let condition = |status: &str, reason: &str| {
                json!([{
                    "type": "IPsAllocated", "status": status, "reason": reason, "message": "from the network",
                    "lastTransitionTime": "2026-08-01T10:00:00Z",
                }])
            };
            let status = match stock.next(&used) {
                Some(ip) => {
                    used.insert(ip.clone());
                    json!({"ips": [format!("{ip}/24")], "conditions": condition("True", "SuccessfulAllocation")})
                }
                None => json!({"ips": [], "conditions": condition("False", "SubnetExhausted")}),
            };
            let patch = Patch::Merge(json!({"status": status}));
            unless_gone(claims.patch_status(&name, &PatchParams::default(), &patch).await);
        }
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        self.task.abort();
    }
}

// === impl OtherProvider ===

impl OtherProvider {
    /// Returns a reference to the pool of this stand-in.
    pub fn pool_ref() -> Value {
        json!({"apiGroup": "ipam.cluster.x-k8s.io", "kind": "InClusterIPPool", "name": "theirs"})
    }

    /// Starts the stand-in in the namespace of machines, with a pool of these addresses.
    pub fn start(client: &Client, namespace: &str, addresses: &[&str]) -> Self {
        Self::of(client, namespace, "v1beta2", addresses)
    }

    /// Starts the stand-in as [`OtherProvider::start`] does, but with claims in this version of Cluster API.
    pub fn of(client: &Client, namespace: &str, version: &str, addresses: &[&str]) -> Self {
        let api = |kind: &'static str, plural: &'static str| {
            let names = ("ipam.cluster.x-k8s.io", "", kind, plural, true);
            let resource = kube::api::ApiResource::from_gvk_with_plural(
                &kube::api::GroupVersionKind::gvk(names.0, version, kind),
                plural,
            );
            Api::namespaced_with(client.clone(), namespace, &resource)
        };
        let claims: Api<DynamicObject> = api("IPAddressClaim", "ipaddressclaims");
        let addresses_api: Api<DynamicObject> = api("IPAddress", "ipaddresses");
        let stock = Stock::new(addresses);
        let (of_task, given, filled) = (claims.clone(), addresses_api.clone(), stock.clone());
        let task = tokio::spawn(async move {
            loop {
                for claim in of_task.list(&ListParams::default()).await.unwrap() {
                    if claim.data["spec"]["poolRef"]["kind"] == "InClusterIPPool" {
                        answer(&of_task, &given, &filled, claim).await;
                    }
                }
                sleep(Duration::from_millis(100)).await;
            }
        });
        Self { claims, addresses: addresses_api, stock, task }
    }

    /// Returns the names of the claims, sorted.
    pub async fn names(&self) -> Vec<String> {
        self.claims.list(&ListParams::default()).await.unwrap().iter().map(ResourceExt::name_any).collect()
    }
}

/// Allocates an address to a claim, or releases the address of a deleted claim.
async fn answer(claims: &Api<DynamicObject>, addresses: &Api<DynamicObject>, stock: &Stock, claim: DynamicObject) {
    let name = claim.name_any();
    let without = |object: &DynamicObject, finalizer: &str| {
        let kept: Vec<&String> = object.finalizers().iter().filter(|it| *it != finalizer).collect();
        Patch::Merge(json!({"metadata": {"resourceVersion": object.resource_version(), "finalizers": kept}}))
    };
    if claim.metadata.deletion_timestamp.is_some() {
        if let Some(address) = addresses.get_opt(&name).await.unwrap() {
            unless_gone(addresses.delete(&name, &DeleteParams::default()).await);
            if address.finalizers().iter().any(|it| it == PROTECT) {
                unless_behind(addresses.patch(&name, &PatchParams::default(), &without(&address, PROTECT)).await);
                return;
            }
        }
        if claim.finalizers().iter().any(|it| it == RELEASE) {
            unless_behind(claims.patch(&name, &PatchParams::default(), &without(&claim, RELEASE)).await);
        }
        return;
    }
    if !claim.finalizers().iter().any(|it| it == RELEASE) {
        let finalizers = [claim.finalizers(), &[RELEASE.to_owned()]].concat();
        let patch = json!({"metadata": {"resourceVersion": claim.resource_version(), "finalizers": finalizers}});
        unless_behind(claims.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await);
        return;
    }
    if addresses.get_opt(&name).await.unwrap().is_none() {
        let all = addresses.list(&ListParams::default()).await.unwrap();
        // An IPAddress that is being deleted still uses its address.
        let used = all.iter().map(|address| address.data["spec"]["address"].as_str().unwrap().to_owned()).collect();
        let Some(address) = stock.next(&used) else { return };
        let spec = json!({
            "poolRef": claim.data["spec"]["poolRef"], "claimRef": {"name": name}, "address": address, "prefix": 16,
            "gateway": "10.0.0.2",
        });
        create(addresses, json!({"metadata": {"name": name, "finalizers": [PROTECT]}, "spec": spec})).await;
    }
    if claim.data["status"]["addressRef"].is_null() {
        let patch = Patch::Merge(json!({"status": {"addressRef": {"name": name}}}));
        unless_gone(claims.patch_status(&name, &PatchParams::default(), &patch).await);
    }
}

/// Panics when a write fails, unless the object has changed or is gone: the next round writes again.
fn unless_behind<T>(result: kube::Result<T>) {
    match result {
        Err(kube::Error::Api(status)) if status.code == 409 => {}
        result => unless_gone(result),
    }
}

impl Drop for OtherProvider {
    fn drop(&mut self) {
        self.task.abort();
    }
}
