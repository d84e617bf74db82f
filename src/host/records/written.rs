//! An object as Kubernetes writes it in JSON: the members that matter for records. Other members are ignored.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;

use crate::host::pool::Pool;

/// A KubevirtMachine, a VirtualMachine or a VirtualMachineInstance.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Item {
    pub(super) kind: Option<String>,
    pub(super) metadata: Metadata,
    pub(super) spec: Option<Spec>,
    pub(super) status: Option<Status>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Metadata {
    pub(super) namespace: Option<String>,
    pub(super) name: Option<String>,
    pub(super) uid: Option<String>,
    pub(super) creation_timestamp: Option<String>,
    pub(super) deletion_timestamp: Option<String>,
    pub(super) labels: Option<BTreeMap<String, String>>,
    pub(super) annotations: Option<BTreeMap<String, String>>,
    pub(super) owner_references: Option<Vec<Owner>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Owner {
    pub(super) kind: String,
    pub(super) name: String,
    pub(super) uid: String,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Spec {
    /// In a KubevirtMachine: the template of its VirtualMachine.
    pub(super) virtual_machine_template: Option<Template>,
    /// In a KubevirtMachine: the Secret with the kubeconfig of the cluster that has its VirtualMachine.
    pub(super) infra_cluster_secret_ref: Option<IgnoredAny>,
    /// In a VirtualMachine: the template of its instance.
    pub(super) template: Option<Template>,
    /// In an instance: the networks of the guest.
    pub(super) networks: Option<Vec<Network>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Template {
    pub(super) metadata: Option<TemplateMetadata>,
    pub(super) spec: Option<Box<Spec>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct TemplateMetadata {
    pub(super) namespace: Option<String>,
    pub(super) annotations: Option<BTreeMap<String, String>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Network {
    pub(super) name: String,
    pub(super) multus: Option<Multus>,
    pub(super) pod: Option<IgnoredAny>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Multus {
    pub(super) network_name: String,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Status {
    pub(super) allocated_bootstrap_addresses: Option<Value>,
    /// In an instance: the interfaces that the guest reports.
    pub(super) interfaces: Option<Vec<Interface>>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Interface {
    pub(super) name: String,
    pub(super) ip_address: Option<String>,
    pub(super) ip_addresses: Option<Vec<String>>,
}

/// Collects the networks of a machine, spelled as in pools, by their names in the object.
pub(super) fn collect_networks(spec: &Spec, namespace: &str, found: &mut BTreeMap<String, String>) {
    for Network { name, multus, pod } in spec.networks.iter().flatten() {
        let network = match multus {
            Some(Multus { network_name }) if network_name.contains('/') => network_name.clone(),
            Some(Multus { network_name }) => format!("{namespace}/{network_name}"),
            None if pod.is_some() => Pool::DEFAULT_NETWORK.to_owned(),
            None => continue,
        };
        found.insert(name.clone(), network);
    }
    for template in [&spec.virtual_machine_template, &spec.template].into_iter().flatten() {
        let own = template.metadata.as_ref().and_then(|metadata| metadata.namespace.as_deref());
        if let Some(spec) = &template.spec {
            collect_networks(spec, own.unwrap_or(namespace), found);
        }
    }
}
