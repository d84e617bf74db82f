//! CRDs of HyperShift, cluster-api-provider-kubevirt and KubeVirt. They have only the members that matter for
//! addresses. Some schemas preserve unknown members. With the other schemas, an API server prunes unknown members, as
//! it does with the full CRDs.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{ApiResource, GroupVersionKind};
use serde_json::{Value, json};

/// Group, version, kind, plural, and whether the status is a subresource.
pub type Names = (&'static str, &'static str, &'static str, &'static str, bool);

pub const NODE_POOL: Names = ("hypershift.openshift.io", "v1beta1", "NodePool", "nodepools", true);
pub const HOSTED_CLUSTER: Names = ("hypershift.openshift.io", "v1beta1", "HostedCluster", "hostedclusters", true);
pub const KUBEVIRT_MACHINE: Names =
    ("infrastructure.cluster.x-k8s.io", "v1alpha1", "KubevirtMachine", "kubevirtmachines", true);
pub const VIRTUAL_MACHINE: Names = ("kubevirt.io", "v1", "VirtualMachine", "virtualmachines", true);
// The status of an instance is a part of the object: KubeVirt's CRD has no status subresource.
pub const INSTANCE: Names = ("kubevirt.io", "v1", "VirtualMachineInstance", "virtualmachineinstances", false);
pub const IPAM_CLAIM: Names = ("k8s.cni.cncf.io", "v1alpha1", "IPAMClaim", "ipamclaims", true);
pub const NETWORK_ATTACHMENT: Names =
    ("k8s.cni.cncf.io", "v1", "NetworkAttachmentDefinition", "network-attachment-definitions", false);

/// Selects members that only some versions of the CRDs have.
#[derive(Clone, Copy, Debug, Default)]
pub struct Members {
    /// Whether a KubevirtMachine has `status.allocatedBootstrapAddresses`.
    pub status_map: bool,
    /// Whether a NodePool has `spec.platform.kubevirt.bootstrapNetworkConfig`.
    pub bootstrap_network_config: bool,
}

/// Returns all CRDs, without the members that [`Members`] selects.
pub fn definitions() -> Vec<CustomResourceDefinition> {
    [HOSTED_CLUSTER, NODE_POOL, KUBEVIRT_MACHINE, VIRTUAL_MACHINE, INSTANCE, IPAM_CLAIM, NETWORK_ATTACHMENT]
        .map(|names| definition(names, Members::default()))
        .into()
}

/// Returns the CRD of a kind.
pub fn definition(names: Names, members: Members) -> CustomResourceDefinition {
    let (group, version, kind, plural, has_status) = names;
    let schema =
        json!({"type": "object", "properties": {"spec": spec(kind, members), "status": status(kind, members)}});
    let version = json!({
        "name": version, "served": true, "storage": true, "schema": {"openAPIV3Schema": schema},
        "subresources": if has_status { json!({"status": {}}) } else { json!({}) },
    });
    let names =
        json!({"kind": kind, "plural": plural, "singular": kind.to_lowercase(), "listKind": format!("{kind}List")});
    let definition = json!({
        "metadata": {"name": format!("{plural}.{group}")},
        "spec": {"group": group, "scope": "Namespaced", "names": names, "versions": [version]},
    });
    serde_json::from_value(definition).unwrap()
}

/// Returns the API resource of a kind, for a client.
pub fn resource((group, version, kind, plural, _): Names) -> ApiResource {
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), plural)
}

fn object(properties: Value) -> Value {
    json!({"type": "object", "properties": properties})
}

fn list(items: Value) -> Value {
    json!({"type": "array", "items": items})
}

/// Returns the schema of an object whose members are all preserved.
fn open() -> Value {
    json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true})
}

fn spec(kind: &str, members: Members) -> Value {
    let text = json!({"type": "string"});
    match kind {
        "NodePool" => {
            let mut kubevirt = json!({
                "additionalNetworks": list(object(json!({"name": text}))), "attachDefaultNetwork": {"type": "boolean"},
            });
            if members.bootstrap_network_config {
                kubevirt["bootstrapNetworkConfig"] = bootstrap_network_config();
            }
            let platform = object(json!({"type": text, "kubevirt": object(kubevirt)}));
            object(json!({"clusterName": text, "replicas": {"type": "integer"}, "platform": platform}))
        }
        "HostedCluster" => {
            let networks = list(object(json!({"cidr": text})));
            object(json!({"infraID": text, "networking": object(json!({"machineNetwork": networks}))}))
        }
        "VirtualMachine" => {
            json!({"type": "object", "properties": {"runStrategy": text}, "x-kubernetes-preserve-unknown-fields": true})
        }
        "NetworkAttachmentDefinition" => object(json!({"config": text})),
        _ => open(),
    }
}

/// Returns the schema of `bootstrapNetworkConfig` of a NodePool, with the members that the enhancement proposal
/// defines.
fn bootstrap_network_config() -> Value {
    let texts = list(json!({"type": "string"}));
    let mut config = object(json!({
        "network": {"type": "string"}, "addresses": texts, "excludedAddresses": texts, "nameservers": texts,
        "gateway": texts,
    }));
    config["required"] = json!(["network", "addresses", "nameservers", "gateway"]);
    config
}

fn status(kind: &str, members: Members) -> Value {
    let text = json!({"type": "string"});
    let condition = object(json!({
        "type": text, "status": text, "reason": text, "message": text, "severity": text,
        "lastTransitionTime": {"type": "string", "format": "date-time"}, "observedGeneration": {"type": "integer"},
    }));
    match kind {
        "KubevirtMachine" => {
            let mut status = json!({"ready": {"type": "boolean"}, "conditions": list(condition)});
            if members.status_map {
                status["allocatedBootstrapAddresses"] =
                    json!({"type": "object", "additionalProperties": {"type": "array", "items": {"type": "string"}}});
            }
            object(status)
        }
        "NodePool" | "HostedCluster" => object(json!({"conditions": list(condition)})),
        "IPAMClaim" => {
            let mut condition = condition;
            condition["required"] = json!(["lastTransitionTime", "message", "reason", "status", "type"]);
            let owner = object(json!({"name": text}));
            let mut status = object(json!({"ips": list(text), "ownerPod": owner, "conditions": list(condition)}));
            status["required"] = json!(["ips"]);
            status
        }
        _ => open(),
    }
}
