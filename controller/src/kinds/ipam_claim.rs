//! The kind `IPAMClaim` of group `k8s.cni.cncf.io`: the addresses that a network provider keeps for one interface of a
//! virtual machine.
//!
//! Reading never fails: a member with an unexpected structure counts as absent.
//!
//! Sources: `pkg/crd/ipamclaims/v1alpha1` of k8snetworkplumbingwg/ipamclaims; kubevirt/ipam-extensions, which creates
//! the claims of virtual machines.

use std::collections::BTreeSet;
use std::net::IpAddr;

use glowplug::host::address::parse_interface_address;
use glowplug::host::claim::is_object_name;
use ipnetwork::IpNetwork;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use k8s_openapi::jiff::Timestamp;
use kube::api::{ApiResource, GroupVersionKind};
use serde_json::{Value, json};

use crate::cluster::conditions::{Stored, head, status_patch};
use crate::cluster::key::Key;
use crate::cluster::object::{Object, trimmed};
use crate::kinds::cluster_api::REQUEST_ANNOTATION;

/// Label of a claim with the name of its virtual machine. ipam-extensions sets the label.
pub const VM_LABEL: &str = "kubevirt.io/vm";
/// Maximum number of addresses that are read from the status of a claim. A valid claim has at most one address of each
/// family.
const MAX_IPS: usize = 16;
/// Maximum number of characters that are read of an address.
const MAX_IP: usize = 64;
/// Kinds of the owners of a claim that are read.
const OWNERS: [&str; 2] = ["VirtualMachine", "VirtualMachineInstance"];

/// An IPAMClaim.
#[derive(Clone, Debug, PartialEq)]
pub struct IpamClaim {
    /// The members of the metadata that decisions read.
    pub metadata: ObjectMeta,
    /// Name of the network: `name` in the configuration of the network attachment definition.
    pub network: String,
    /// The addresses in the status, as stored: `ip/prefix`. At most 16, of at most 64 characters each.
    pub ips: Vec<String>,
    /// Reason and message of the condition `IPsAllocated` when it is `False`. `None`: the provider reports no problem.
    pub problem: Option<(String, String)>,
    /// Whether the claim has a status.
    has_status: bool,
    /// Whether the status has a list of addresses.
    has_ips: bool,
    condition: Stored,
}

/// State of the condition `IPsAllocated` of a claim, and of the addresses in its status.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum IpsAllocated {
    /// `True`, `SuccessfulAllocation`: the claim has these addresses.
    Done(Vec<IpNetwork>),
    /// `False`: a reason, and a message for people. The addresses in the status stay as they are.
    Failed(Failure, String),
    /// `False`, `Released`: the status has no addresses, because the claim is being deleted.
    Released,
}

/// Reasons why a claim gets no address.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Failure {
    /// The pool has no free address.
    SubnetExhausted,
    /// The address in the status or the requested address is not available for the claim.
    AddressConflict,
    /// The pool allocates nothing, or several pools serve the network.
    PoolNotReady,
    /// The claim itself prevents the allocation.
    AllocationFailed,
}

/// API resource of the kind `IPAMClaim`.
#[must_use]
pub fn ipam_claims() -> ApiResource {
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk("k8s.cni.cncf.io", "v1alpha1", "IPAMClaim"), "ipamclaims")
}

/// API resource of network attachment definitions.
#[must_use]
pub fn network_attachments() -> ApiResource {
    let kind = GroupVersionKind::gvk("k8s.cni.cncf.io", "v1", "NetworkAttachmentDefinition");
    ApiResource::from_gvk_with_plural(&kind, "network-attachment-definitions")
}

/// Returns the name of the network of a network attachment definition: `name` in its configuration. `None`: the
/// configuration has no name, or is not in the object.
#[must_use]
pub fn network_name(attachment: &Object) -> Option<String> {
    let config = attachment.data["spec"]["config"].as_str()?;
    let config: Value = serde_json::from_str(config).ok()?;
    config["name"].as_str().filter(|name| !name.is_empty()).map(str::to_owned)
}

/// Returns the name of the virtual machine in the name of a claim.
#[must_use]
pub fn vm_of_name(claim: &str) -> &str {
    // KubeVirt's names of interfaces have no dot.
    claim.rsplit_once('.').map_or(claim, |(vm, _)| vm)
}

/// Returns the name of the claim of a virtual machine for an interface. `interface` is KubeVirt's name of the
/// interface.
#[must_use]
pub fn claim_name(vm: &str, interface: &str) -> String {
    format!("{vm}.{interface}")
}

// === impl IpamClaim ===

impl IpamClaim {
    /// Reads a claim.
    #[must_use]
    pub fn read(object: Object) -> Self {
        let status = &object.data["status"];
        let ips = status["ips"].as_array().into_iter().flatten().take(MAX_IPS);
        let text = |value: &Value| head(value.as_str().unwrap_or_default()).to_owned();
        // A string beyond this limit is no address, so it can be cut.
        let ip = |value: &Value| -> String { value.as_str().unwrap_or_default().chars().take(MAX_IP).collect() };
        let conditions = status["conditions"].as_array().into_iter().flatten();
        let mut failed = conditions.filter(|it| it["type"] == "IPsAllocated" && it["status"] == "False");
        Self {
            network: text(&object.data["spec"]["network"]),
            ips: ips.map(ip).collect(),
            problem: failed.next().map(|condition| (text(&condition["reason"]), text(&condition["message"]))),
            has_status: status.is_object(),
            has_ips: status["ips"].is_array(),
            condition: Stored::read(&object.data, &["status", "conditions"], &["IPsAllocated"]),
            metadata: trimmed(object.metadata, &[VM_LABEL, REQUEST_ANNOTATION], &OWNERS),
        }
    }

    /// Namespace and name of the claim.
    #[must_use]
    pub fn key(&self) -> Key {
        Key::of(&self.metadata)
    }

    /// Name of the virtual machine, from the label. `None`: the claim has no label.
    #[must_use]
    pub fn vm(&self) -> Option<&str> {
        self.metadata.labels.as_ref()?.get(VM_LABEL).map(String::as_str)
    }

    /// UID of the VirtualMachine that owns the claim. `None`: no VirtualMachine owns the claim.
    #[must_use]
    pub fn owner(&self) -> Option<&str> {
        let owners = self.metadata.owner_references.iter().flatten();
        owners.into_iter().find(|owner| owner.kind == "VirtualMachine").map(|owner| owner.uid.as_str())
    }

    /// The virtual machines and instances that own the claim. ipam-extensions writes one owner.
    pub fn owners(&self) -> impl Iterator<Item = &OwnerReference> {
        let owners = self.metadata.owner_references.iter().flatten();
        owners.filter(|owner| OWNERS.contains(&owner.kind.as_str()))
    }

    /// Names of the virtual machines that may use the addresses: from the label, the owners and the name of the claim.
    #[must_use]
    pub fn users(&self) -> BTreeSet<String> {
        let name = self.metadata.name.as_deref().unwrap_or_default();
        let owners = self.owners().map(|owner| owner.name.as_str());
        let names = owners.chain(self.vm()).chain([vm_of_name(name)]);
        names.filter(|name| is_object_name(name)).map(str::to_owned).collect()
    }

    /// UID of the claim.
    #[must_use]
    pub fn uid(&self) -> &str {
        self.metadata.uid.as_deref().unwrap_or_default()
    }

    /// When the claim was created.
    #[must_use]
    pub fn created(&self) -> Timestamp {
        self.metadata.creation_timestamp.as_ref().map(|time| time.0).unwrap_or_default()
    }

    /// Whether the claim is being deleted.
    #[must_use]
    pub fn is_deleted(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }

    /// The addresses in the status. An address without a prefix length gets the longest prefix length, which stands for
    /// an unknown prefix length.
    ///
    /// # Errors
    ///
    /// A message about the first string that is not an address.
    pub fn addresses(&self) -> Result<Vec<IpNetwork>, String> {
        self.read_ips().collect()
    }

    /// The addresses in the status, without the strings that are not addresses. A guest may use each of them.
    #[must_use]
    pub fn readable_addresses(&self) -> Vec<IpNetwork> {
        self.read_ips().filter_map(Result::ok).collect()
    }

    fn read_ips(&self) -> impl Iterator<Item = Result<IpNetwork, String>> {
        self.ips.iter().enumerate().map(|(index, text)| {
            let (address, length) =
                parse_interface_address(text).map_err(|error| error.at(format!("status.ips[{index}]")).to_string())?;
            let with_length = length.and_then(|length| IpNetwork::new(address, length).ok());
            Ok(with_length.unwrap_or_else(|| IpNetwork::from(address)))
        })
    }

    /// Returns the JSON patch that sets this state in the status. `None`: the status already has this state.
    ///
    /// Conditions of other programs and `ownerPod` are kept. `now` is the time of a transition.
    #[must_use]
    pub fn status_patch(&self, state: &IpsAllocated, now: Timestamp) -> Option<Value> {
        let sorted = |addresses: Vec<IpNetwork>| -> BTreeSet<IpAddr> { addresses.iter().map(IpNetwork::ip).collect() };
        let known = self.addresses().map(sorted);
        let ips = match state {
            IpsAllocated::Done(addresses) if known != Ok(sorted(addresses.clone())) => {
                Some(json!(addresses.iter().map(ToString::to_string).collect::<Vec<String>>()))
            }
            IpsAllocated::Released if !self.ips.is_empty() => Some(json!([])),
            // The CRD of IPAMClaim requires `status.ips`, so an empty list is written if the member is absent.
            _ => (!self.has_ips).then(|| json!([])),
        };
        let (status, reason, message) = match state {
            IpsAllocated::Done(_) => ("True", "SuccessfulAllocation", "The claim has its addresses"),
            IpsAllocated::Failed(failure, message) => ("False", failure.name(), head(message)),
            IpsAllocated::Released => ("False", "Released", "The claim is being deleted"),
        };
        let mut condition = json!({"type": "IPsAllocated", "status": status, "reason": reason, "message": message});
        if let Some(generation) = self.metadata.generation {
            condition["observedGeneration"] = generation.into();
        }
        let ips = ips.map(|ips| json!({"op": "add", "path": "/status/ips", "value": ips}));
        let operations = ips.into_iter().chain(self.condition.set([condition], now)).collect();
        status_patch(&self.metadata, self.has_status, operations)
    }
}

// === impl Failure ===

impl Failure {
    fn name(self) -> &'static str {
        match self {
            Self::SubnetExhausted => "SubnetExhausted",
            Self::AddressConflict => "IPAddressConflict",
            Self::PoolNotReady => "PoolNotReady",
            Self::AllocationFailed => "AllocationFailed",
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn claim(more: &Value) -> IpamClaim {
        let mut object = json!({"metadata": {"namespace": "n", "name": "w.net1"}});
        json_patch::merge(&mut object, more);
        IpamClaim::read(serde_json::from_value(object).unwrap())
    }

    #[test]
    fn a_claim_has_the_addresses_and_the_problem_of_its_status() {
        let condition = |status: &str| json!({"type": "IPsAllocated", "status": status, "reason": "SubnetExhausted", "message": "no address left"});
        let failed = claim(&json!({"status": {"conditions": [condition("False")]}}));
        let problem = Some(("SubnetExhausted".to_owned(), "no address left".to_owned()));
        assert_eq!((failed.ips, failed.problem), (Vec::new(), problem));
        let done = claim(&json!({"status": {"ips": ["10.0.0.8/24"], "conditions": [condition("True")]}}));
        assert_eq!((done.ips, done.problem), (vec!["10.0.0.8/24".to_owned()], None));
    }

    #[test]
    fn a_claim_belongs_to_the_virtual_machine_of_its_label_and_owner() {
        let owner = json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": "w", "uid": "v-1"});
        let metadata = json!({"metadata": {"labels": {(VM_LABEL): "w"}, "ownerReferences": [owner]}});
        let owned = claim(&metadata);
        assert_eq!((owned.vm(), owned.owner()), (Some("w"), Some("v-1")));
        let free = claim(&json!({}));
        assert_eq!((free.vm(), free.owner(), free.key().to_string()), (None, None, "n/w.net1".to_owned()));
    }

    #[test]
    fn a_claim_does_not_keep_a_large_status() {
        let failed =
            json!({"type": "IPsAllocated", "status": "False", "reason": "x", "message": "x".repeat(1_000_000)});
        let status = |others: usize| {
            let ips = vec!["x".repeat(64 + others); 16 + others];
            let conditions: Vec<Value> =
                [failed.clone()].into_iter().chain(vec![json!({"type": "Other"}); others]).collect();
            json!({"ips": ips, "conditions": conditions, "ownerPod": {"name": "x".repeat(others)}})
        };
        let large = claim(&json!({"status": status(1_000)}));
        assert_eq!(large, claim(&json!({"status": status(1)})));
        let length = format!("{large:?}").len();
        assert!(length < 25_000, "{length}");
    }

    #[test]
    fn a_claim_keeps_only_the_labels_annotations_and_owners_that_are_read() {
        let owner = json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": "w", "uid": "v-1"});
        let other = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "c", "uid": "c-1"});
        let read = json!({"metadata": {"labels": {(VM_LABEL): "w"}, "ownerReferences": [owner]}});
        let more = json!({"metadata": {
            "labels": {(VM_LABEL): "w", "a": "b"}, "annotations": {"a": "b"}, "ownerReferences": [other, owner],
        }});
        assert_eq!(claim(&more), claim(&read));
    }

    #[test]
    fn members_of_another_form_count_as_absent() {
        for status in [json!(null), json!([]), json!({"ips": {}, "conditions": "x"}), json!({"conditions": [1]})] {
            let claim = claim(&json!({"status": status}));
            assert_eq!((claim.ips, claim.problem), (Vec::new(), None), "{status}");
        }
    }
}
