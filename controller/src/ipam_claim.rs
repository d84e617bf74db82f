//! The kind `IPAMClaim` of group `k8s.cni.cncf.io`: the addresses that a network provider keeps for one interface of a
//! virtual machine.
//!
//! Reading never fails: a member with an unexpected structure counts as absent.
//!
//! Sources: `pkg/crd/ipamclaims/v1alpha1` of k8snetworkplumbingwg/ipamclaims; kubevirt/ipam-extensions, which creates
//! the claims of virtual machines.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind};
use serde_json::Value;

use crate::cluster_api::Key;

/// Label of a claim with the name of its virtual machine. ipam-extensions sets the label.
pub const VM_LABEL: &str = "kubevirt.io/vm";
/// Maximum number of addresses that are read from the status of a claim. A valid claim has one of each family.
const MAX_IPS: usize = 16;

/// An IPAMClaim.
#[derive(Clone, Debug, PartialEq)]
pub struct IpamClaim {
    /// Metadata, without managed fields.
    pub metadata: ObjectMeta,
    /// The addresses in the status, as stored: `ip/prefix`.
    pub ips: Vec<String>,
    /// Reason and message of the condition `IPsAllocated` when it is `False`. `None`: the provider reports no problem.
    pub problem: Option<(String, String)>,
}

/// API resource of the kind `IPAMClaim`.
#[must_use]
pub fn ipam_claims() -> ApiResource {
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk("k8s.cni.cncf.io", "v1alpha1", "IPAMClaim"), "ipamclaims")
}

/// Returns the name of the claim of a virtual machine for an interface. `interface` is KubeVirt's name of the interface.
#[must_use]
pub fn claim_name(vm: &str, interface: &str) -> String {
    format!("{vm}.{interface}")
}

// === impl IpamClaim ===

impl IpamClaim {
    /// Reads a claim.
    #[must_use]
    pub fn read(object: DynamicObject) -> Self {
        let metadata = ObjectMeta { managed_fields: None, ..object.metadata };
        let status = &object.data["status"];
        let ips = status["ips"].as_array().into_iter().flatten().take(MAX_IPS);
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let conditions = status["conditions"].as_array().into_iter().flatten();
        let mut failed = conditions.filter(|it| it["type"] == "IPsAllocated" && it["status"] == "False");
        Self {
            metadata,
            ips: ips.map(text).collect(),
            problem: failed.next().map(|condition| (text(&condition["reason"]), text(&condition["message"]))),
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
    fn members_of_another_form_count_as_absent() {
        for status in [json!(null), json!([]), json!({"ips": {}, "conditions": "x"}), json!({"conditions": [1]})] {
            let claim = claim(&json!({"status": status}));
            assert_eq!((claim.ips, claim.problem), (Vec::new(), None), "{status}");
        }
    }
}
