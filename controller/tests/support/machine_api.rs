//! Stand-in for OpenShift's Machine API on vSphere: MachineSets, Machines, their claims, and virtual machines.
//!
//! A virtual machine is represented by the value of its property with kernel arguments. The stand-in follows these
//! rules of the real controllers (`openshift/machine-api-operator:pkg/controller/vsphere`, `pkg/util/ipam`):
//!
//! - A Machine has one claim for each item of `addressesFromPools` of each device. The name of the claim is
//!   `<machine>-claim-<index of the device>-<index of the item>`. The claim has a finalizer, and the Machine as its
//!   controller. The kind in `poolRef` is the string in `resource`. If the claim exists and has no owner, the Machine
//!   becomes its owner.
//! - The virtual machine is cloned when every claim has an address. Until then the Machine has a condition.
//! - When a Machine is deleted, its virtual machine is destroyed first. Then its claims lose their finalizer, and then
//!   the Machine is removed.
//! - Kubernetes collects the claims of a Machine that is gone. Neither API server of the tests does this, so the
//!   stand-in deletes these claims.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use glowplug::host::vsphere::network_kargs;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{
    ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams, PostParams,
};
use kube::runtime::conditions::is_crd_established;
use kube::runtime::wait::await_condition;
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::Cluster;
use super::cluster_api::definition;
use super::controller::{PATIENCE, Site, create, merge};
use super::hosted::poll;

const GROUP: &str = "machine.openshift.io";
const VERSION: &str = "v1beta1";
const KINDS: [(&str, &str); 2] = [("Machine", "machines"), ("MachineSet", "machinesets")];
/// Time between two passes.
const PAUSE: Duration = Duration::from_millis(100);
const MACHINE_FINALIZER: &str = "machine.machine.openshift.io";
/// Finalizer of a claim whose address a virtual machine may use.
pub const CLAIM_FINALIZER: &str = "machine.openshift.io/ip-claim-protection";

/// The stand-in for Machine API in one namespace.
pub struct MachineApi {
    site: Site,
    pub machines: Api<DynamicObject>,
    pub machine_sets: Api<DynamicObject>,
    /// Value of the property with kernel arguments of each virtual machine, by the name of its Machine.
    pub vms: BTreeMap<String, String>,
    /// Number of the next Machine, so that no name is used twice.
    next: usize,
}

// === impl MachineApi ===

impl MachineApi {
    /// Creates the stand-in in the namespace of a site. The stand-in uses claims in the version of the site.
    pub async fn new(cluster: &Cluster, site: &Site) -> Self {
        let definitions: Api<CustomResourceDefinition> = Api::all(cluster.client());
        for (kind, plural) in KINDS {
            let open = |_: &str| json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
            let definition = definition(GROUP, kind, plural, &[VERSION], open);
            let name = definition.name_any();
            if definitions.get_opt(&name).await.unwrap().is_none() {
                definitions.create(&PostParams::default(), &definition).await.unwrap();
            }
            await_condition(definitions.clone(), &name, is_crd_established()).await.unwrap();
        }
        let [machines, machine_sets] = KINDS.map(|(kind, plural)| {
            let kind = ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(GROUP, VERSION, kind), plural);
            Api::namespaced_with(cluster.client(), &site.namespace, &kind)
        });
        let all = Self { site: site.clone(), machines, machine_sets, vms: BTreeMap::new(), next: 0 };
        all.until_owners_are_known().await;
        all
    }

    /// Waits until the API server accepts a Machine as an owner whose deletion a claim blocks. A real API server
    /// updates its list of kinds only every few seconds.
    async fn until_owners_are_known(&self) {
        let owner = json!({
            "apiVersion": format!("{GROUP}/{VERSION}"), "kind": "Machine", "name": "probe", "uid": "probe",
            "controller": true, "blockOwnerDeletion": true,
        });
        let types = self.site.claims.resource_url().split('/').skip(2).take(2).collect::<Vec<_>>().join("/");
        let claim = json!({
            "apiVersion": types, "kind": "IPAddressClaim", "metadata": {"name": "probe", "ownerReferences": [owner]},
            "spec": {"poolRef": {"apiGroup": "ipam.glowplug.dev", "kind": "StaticIPPool", "name": "probe"}},
        });
        let claim: DynamicObject = serde_json::from_value(claim).unwrap();
        let dry_run = PostParams { dry_run: true, ..PostParams::default() };
        poll("an owner of the kind Machine", async || self.site.claims.create(&dry_run, &claim).await.ok()).await;
    }

    /// Creates a MachineSet without replicas. `devices` are the network devices of its provider specification.
    pub async fn machine_set(&self, name: &str, devices: &Value) {
        let value = json!({"kind": "VSphereMachineProviderSpec", "network": {"devices": devices}});
        let spec = json!({"replicas": 0, "template": {"spec": {"providerSpec": {"value": value}}}});
        let set = json!({
            "apiVersion": format!("{GROUP}/{VERSION}"), "kind": "MachineSet", "metadata": {"name": name}, "spec": spec,
        });
        self.machine_sets.create(&PostParams::default(), &serde_json::from_value(set).unwrap()).await.unwrap();
    }

    pub async fn scale(&self, name: &str, replicas: usize) {
        merge(&self.machine_sets, name, &json!({"spec": {"replicas": replicas}})).await;
    }

    /// Runs passes until a condition holds and a pass changes nothing.
    pub async fn until(&mut self, what: &str, holds: impl Fn(&Self) -> bool) {
        let work = async {
            while self.pass().await || !holds(self) {
                tokio::time::sleep(PAUSE).await;
            }
        };
        let result = timeout(PATIENCE, work).await;
        assert_eq!(result, Ok(()), "{what}: virtual machines {:?}", self.vms);
    }

    /// Runs passes until exactly these Machines have virtual machines.
    pub async fn until_cloned(&mut self, names: &[&str]) {
        let what = format!("virtual machines of {names:?}");
        self.until(&what, |all| all.vms.keys().eq(names)).await;
    }

    /// Runs passes until the Machine waits for an address and its claim is not ready with this reason. Returns the
    /// message of the claim.
    pub async fn until_waiting(&mut self, name: &str, reason: &str) -> String {
        self.until("a waiting Machine", |all| all.next > 0).await;
        let message = self.site.until_not_ready(&format!("{name}-claim-0-0"), reason).await;
        let machine = self.machines.get(name).await.unwrap();
        let condition = &machine.data["status"]["conditions"][0];
        assert_eq!(
            (&condition["type"], &condition["status"], &condition["reason"]),
            (&json!("IPAddressClaimed"), &json!("False"), &json!("WaitingForIPAddress"))
        );
        message
    }

    /// Does the next step of each controller. Returns whether anything has changed.
    async fn pass(&mut self) -> bool {
        let mut is_changed = false;
        for set in self.machine_sets.list(&ListParams::default()).await.unwrap() {
            is_changed |= self.replicate(&set).await;
        }
        for machine in self.machines.list(&ListParams::default()).await.unwrap() {
            is_changed |= match machine.metadata.deletion_timestamp {
                Some(_) => self.end(&machine).await,
                None => self.provide(&machine).await,
            };
        }
        self.collect().await || is_changed
    }

    /// Creates missing Machines of a MachineSet, and deletes its newest Machines if there are too many.
    async fn replicate(&mut self, set: &DynamicObject) -> bool {
        let replicas = usize::try_from(set.data["spec"]["replicas"].as_u64().unwrap()).unwrap();
        let all = self.machines.list(&ListParams::default()).await.unwrap().items.into_iter();
        let is_alive = |machine: &DynamicObject| machine.metadata.deletion_timestamp.is_none();
        let number =
            |machine: &DynamicObject| -> usize { machine.name_any().rsplit_once('-').unwrap().1.parse().unwrap() };
        let mut numbers: Vec<usize> = all.filter(is_alive).map(|machine| number(&machine)).collect();
        numbers.sort_unstable();
        for number in numbers.iter().skip(replicas) {
            self.machines.delete(&format!("{}-{number}", set.name_any()), &DeleteParams::default()).await.unwrap();
        }
        for _ in numbers.len()..replicas {
            let name = format!("{}-{}", set.name_any(), self.next);
            self.next += 1;
            let machine = json!({
                "apiVersion": format!("{GROUP}/{VERSION}"), "kind": "Machine",
                "metadata": {"name": name, "finalizers": [MACHINE_FINALIZER]},
                "spec": set.data["spec"]["template"]["spec"],
            });
            self.machines.create(&PostParams::default(), &serde_json::from_value(machine).unwrap()).await.unwrap();
        }
        numbers.len() != replicas
    }

    /// Claims the addresses of a Machine, and clones its virtual machine when all claims have addresses.
    async fn provide(&mut self, machine: &DynamicObject) -> bool {
        let name = machine.name_any();
        let mut is_changed = false;
        let mut objects = Vec::new();
        let devices = machine.data["spec"]["providerSpec"]["value"]["network"]["devices"].as_array().unwrap();
        for (at, device) in devices.iter().enumerate() {
            for (of, pool) in device["addressesFromPools"].as_array().into_iter().flatten().enumerate() {
                let claim = self.claim(machine, &format!("{name}-claim-{at}-{of}"), pool, &mut is_changed).await;
                objects.push(claim);
            }
        }
        let bound = |claim: &DynamicObject| claim.data["status"]["addressRef"]["name"].as_str().map(str::to_owned);
        let waits = objects.iter().any(|claim| bound(claim).is_none());
        is_changed |= self.set_condition(machine, waits).await;
        if waits || self.vms.contains_key(&name) {
            return is_changed;
        }
        for address in objects.iter().filter_map(bound).collect::<Vec<_>>() {
            objects.push(self.site.addresses.get(&address).await.unwrap());
        }
        let list = serde_json::to_vec(&json!({"kind": "List", "items": objects})).unwrap();
        // Reads the Machine again, because an item of a list may lack its kind.
        let machine = serde_json::to_vec(&self.machines.get(&name).await.unwrap()).unwrap();
        let reading = network_kargs(&[("Machine".to_owned(), machine), ("addresses".to_owned(), list)], None);
        assert_eq!(reading.diagnostics, []);
        self.vms.insert(name, reading.kargs.unwrap().property().to_owned());
        true
    }

    /// Returns a claim of a Machine. Creates a missing claim, and adopts a claim without an owner.
    async fn claim(&self, machine: &DynamicObject, name: &str, pool: &Value, is_changed: &mut bool) -> DynamicObject {
        let owners = json!([{
            "apiVersion": format!("{GROUP}/{VERSION}"), "kind": "Machine", "name": machine.name_any(),
            "uid": machine.uid(), "controller": true, "blockOwnerDeletion": true,
        }]);
        match self.site.claims.get_opt(name).await.unwrap() {
            Some(claim) if claim.owner_references().is_empty() => {
                *is_changed = true;
                merge(&self.site.claims, name, &json!({"metadata": {"ownerReferences": owners}})).await
            }
            Some(claim) => claim,
            None => {
                *is_changed = true;
                let pool = json!({"apiGroup": pool["group"], "kind": pool["resource"], "name": pool["name"]});
                let metadata = json!({"name": name, "finalizers": [CLAIM_FINALIZER], "ownerReferences": owners});
                create(&self.site.claims, json!({"metadata": metadata, "spec": {"poolRef": pool}})).await
            }
        }
    }

    async fn set_condition(&self, machine: &DynamicObject, waits: bool) -> bool {
        let (status, reason) = if waits { ("False", "WaitingForIPAddress") } else { ("True", "IPAddressesClaimed") };
        let conditions = json!([{"type": "IPAddressClaimed", "status": status, "reason": reason}]);
        if machine.data["status"]["conditions"] == conditions {
            return false;
        }
        merge(&self.machines, &machine.name_any(), &json!({"status": {"conditions": conditions}})).await;
        true
    }

    /// Destroys the virtual machine of a deleted Machine. Then removes the finalizer from the claims of the Machine,
    /// and then from the Machine.
    async fn end(&mut self, machine: &DynamicObject) -> bool {
        self.vms.remove(&machine.name_any());
        for claim in self.site.claims.list(&ListParams::default()).await.unwrap() {
            let is_own = claim.owner_references().iter().any(|owner| Some(&owner.uid) == machine.uid().as_ref());
            let left: Vec<&String> = claim.finalizers().iter().filter(|name| *name != CLAIM_FINALIZER).collect();
            if is_own && left.len() < claim.finalizers().len() {
                let version = claim.resource_version();
                let patch = json!({"metadata": {"finalizers": left, "resourceVersion": version}});
                let patch = Patch::Merge(patch);
                let result = self.site.claims.patch(&claim.name_any(), &PatchParams::default(), &patch).await;
                // Another controller has changed the claim since it was listed. The next pass tries again.
                if matches!(&result, Err(kube::Error::Api(status)) if status.code == 409) {
                    return true;
                }
                result.unwrap();
            }
        }
        merge(&self.machines, &machine.name_any(), &json!({"metadata": {"finalizers": null}})).await;
        true
    }

    /// Deletes the claims whose Machines are gone, as Kubernetes does.
    async fn collect(&self) -> bool {
        let machines = self.machines.list(&ListParams::default()).await.unwrap();
        let uids: BTreeSet<String> = machines.iter().filter_map(ResourceExt::uid).collect();
        let mut is_changed = false;
        for claim in self.site.claims.list(&ListParams::default()).await.unwrap() {
            let owners = claim.owner_references();
            let is_orphan = !owners.is_empty() && owners.iter().all(|owner| !uids.contains(&owner.uid));
            if is_orphan && claim.metadata.deletion_timestamp.is_none() {
                // The claim may have been deleted since it was listed.
                let _ = self.site.claims.delete(&claim.name_any(), &DeleteParams::default()).await;
                is_changed = true;
            }
        }
        is_changed
    }
}
