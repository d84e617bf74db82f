//! The webhooks for MAC addresses. They check MACPools, and reject the instance of a machine until the leader has
//! written the MAC addresses into its VirtualMachine.
//!
//! KubeVirt gives an interface without an address a random address, and another one at the next start. Therefore, the
//! first webhook puts a label into the template of a VirtualMachine. KubeVirt copies the template, including its
//! labels, into the instance. The second webhook refuses an instance that has this label and an interface without an
//! address. KubeVirt creates the instance again when the VirtualMachine changes. The webhooks choose no address,
//! because the request may be a dry run, and a later webhook may reject the machine.

use std::collections::BTreeSet;
use std::time::Duration;

use http::StatusCode;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{ApiResource, ListParams};
use kube::core::Status;
use kube::core::admission::AdmissionRequest;
use kube::{Api, Client};
use serde::Deserialize as _;
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::cluster::edit::Edit;
use crate::cluster::object::Object;
use crate::kinds::mac_pool::{MACPool, MacPool, MacPoolSpec};
use crate::kinds::virtual_machine::{ASSIGNED_ANNOTATION, MAC_ADDRESSES_LABEL, interfaces, requires_mac_addresses};
use crate::webhook::verdict::{Verdict, failure};

/// Path of the webhook for VirtualMachines of MACPools.
pub const MACS_PATH: &str = "/mutate-mac-addresses";
/// Path of the webhook for VirtualMachineInstances.
pub const INSTANCES_PATH: &str = "/validate-instances";

/// Timeout for listing the Namespaces. The list is only for a warning, so it must not use up the time of the request.
const NAMESPACES_LIMIT: Duration = Duration::from_secs(2);
/// Maximum number of warnings about namespaces.
const MOST_WARNINGS: usize = 5;

/// Checks the specification of the MACPool `name`. `others` has the valid pools of the cluster.
#[must_use]
pub fn validate_mac_pool(name: &str, spec: &MacPoolSpec, others: &[MacPool]) -> Verdict {
    let (pool, diagnostics) = spec.check(name);
    let mut verdict = Verdict::of(&diagnostics);
    let others = others.iter().filter(|other| other.name() != name);
    verdict.errors.extend(pool.iter().flat_map(|pool| others.clone().filter_map(|other| pool.overlap(other))));
    verdict
}

/// Returns a warning for each namespace that a MACPool names and the cluster does not have: at most `MOST_WARNINGS`
/// warnings. `exists` tells whether the cluster has a namespace.
#[must_use]
pub fn warn_of_namespaces(spec: &MacPoolSpec, exists: impl Fn(&str) -> bool) -> Vec<String> {
    let absent = spec.namespaces.iter().enumerate().filter(|(_, namespace)| !exists(namespace));
    let warning = |(index, namespace): (usize, &String)| {
        format!(
            "namespaces[{index}]: Namespace {namespace} does not exist: the pool serves no machine there until the Namespace exists"
        )
    };
    absent.map(warning).take(MOST_WARNINGS).collect()
}

/// Returns the JSON patch operations for a new VirtualMachine. The operations set the label [`MAC_ADDRESSES_LABEL`] if
/// one of the pools serves the machine, and remove the annotation of assigned addresses.
///
/// A machine without interfaces gets no label, because KubeVirt adds an interface without an address to its instance.
#[must_use]
pub fn require_addresses(machine: &Object, pools: &[MacPool]) -> Vec<Value> {
    let template = &machine.data["spec"]["template"];
    let is_served = pools.iter().any(|pool| pool.serves(&machine.metadata));
    let Ok(mut edit) = Edit::of(machine) else { return Vec::new() };
    // The manifest may be a copy of another machine's manifest, with the annotation of that machine.
    edit.remove(&["spec", "template", "metadata", "annotations", ASSIGNED_ANNOTATION]);
    if !is_served || requires_mac_addresses(template) || interfaces(&template["spec"]).next().is_none() {
        return edit.operations();
    }
    let path = ["spec", "template", "metadata", "labels", MAC_ADDRESSES_LABEL];
    edit.set(&path, json!("required"));
    edit.operations()
}

/// Returns the reasons to reject a new instance with the label [`MAC_ADDRESSES_LABEL`]: one for each interface without
/// an address.
pub(super) fn check_instance(instance: &Object) -> Vec<String> {
    if instance.metadata.labels.as_ref().is_none_or(|labels| !labels.contains_key(MAC_ADDRESSES_LABEL)) {
        return Vec::new();
    }
    let missing = interfaces(&instance.data["spec"]).enumerate().filter(|(_, (_, address))| address.is_none());
    let line = |(index, (name, _)): (usize, (&str, _))| {
        format!(
            "spec.domain.devices.interfaces[{index}].macAddress: missing for {name:?}, expected the address that the \
             controller writes into the VirtualMachine"
        )
    };
    missing.map(line).collect()
}

/// Decides on a change of a MACPool. `Err` has the reason why no decision is possible.
pub(super) async fn verdict(client: &Client, request: &AdmissionRequest<Object>) -> Result<Verdict, Box<Status>> {
    let Some(new) = &request.object else { return Ok(Verdict::default()) };
    if request.old_object.as_ref().is_some_and(|old| old.data["spec"] == new.data["spec"]) {
        return Ok(Verdict::default());
    }
    let spec = MacPoolSpec::deserialize(&new.data["spec"])
        .map_err(|error| failure(StatusCode::UNPROCESSABLE_ENTITY, "Invalid", &format!("spec: {error}")))?;
    let others = mac_pools(client).await.map_err(|error| {
        let message = format!("could not list the pools to compare with: {error}");
        failure(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable", &message)
    })?;
    let mut verdict = validate_mac_pool(new.metadata.name.as_deref().unwrap_or_default(), &spec, &others);
    // Without the right to list Namespaces, there is no warning.
    if let (true, Ok(Ok(all))) = (verdict.errors.is_empty(), timeout(NAMESPACES_LIMIT, namespaces(client)).await) {
        verdict.warnings.extend(warn_of_namespaces(&spec, |namespace| all.contains(namespace)));
    }
    Ok(verdict)
}

/// Lists the names of all Namespaces.
async fn namespaces(client: &Client) -> kube::Result<BTreeSet<String>> {
    let all: Api<Object> = Api::all_with(client.clone(), &ApiResource::erase::<Namespace>(&()));
    let all = all.list(&ListParams::default()).await?;
    Ok(all.items.into_iter().filter_map(|namespace| namespace.metadata.name).collect())
}

/// Lists the valid MACPools of the cluster, without pools that are being deleted.
pub(super) async fn mac_pools(client: &Client) -> kube::Result<Vec<MacPool>> {
    let pools: Api<Object> = Api::all_with(client.clone(), &ApiResource::erase::<MACPool>(&()));
    let pools = pools.list(&ListParams::default()).await?.items.into_iter();
    let pools = pools.filter(|pool| pool.metadata.deletion_timestamp.is_none());
    let read = |pool: Object| {
        let spec = MacPoolSpec::deserialize(&pool.data["spec"]).ok()?;
        spec.check(pool.metadata.name.as_deref().unwrap_or_default()).0
    };
    Ok(pools.filter_map(read).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(ranges: &[&str]) -> MacPoolSpec {
        MacPoolSpec {
            ranges: ranges.iter().map(|range| (*range).to_owned()).collect(),
            namespaces: vec!["n".to_owned()],
            ..MacPoolSpec::default()
        }
    }

    fn pool(name: &str, ranges: &[&str]) -> MacPool {
        spec(ranges).check(name).0.unwrap()
    }

    #[test]
    fn a_namespace_that_does_not_exist_has_a_warning() {
        let of = |namespaces: &[&str]| MacPoolSpec {
            namespaces: namespaces.iter().map(|&namespace| namespace.to_owned()).collect(),
            ..spec(&["02:00:00:00:00:00-02:00:00:00:00:ff"])
        };
        let warnings = |namespaces: &[&str]| warn_of_namespaces(&of(namespaces), |namespace| namespace == "n");
        assert_eq!(warnings(&["n"]), [""; 0]);
        let line = "namespaces[1]: Namespace nosuch does not exist: the pool serves no machine there until the Namespace exists";
        assert_eq!(warnings(&["n", "nosuch"]), [line]);
        assert_eq!(warnings(&["a", "b", "c", "d", "e", "f"]).len(), 5);
    }

    fn machine(namespace: &str, template: &Value) -> Object {
        let object = json!({"metadata": {"namespace": namespace, "name": "w"}, "spec": {"template": template}});
        serde_json::from_value(object).unwrap()
    }

    fn interfaces_of(interfaces: &Value) -> Value {
        json!({"domain": {"devices": {"interfaces": interfaces}}})
    }

    #[test]
    fn a_mac_pool_is_compared_with_every_other_mac_pool() {
        let range = "02:00:00:00:00:00-02:00:00:00:00:ff";
        let others = [pool("p", &[range]), pool("q", &["02:00:00:00:00:80-02:00:00:00:01:00"])];
        let verdict = validate_mac_pool("p", &spec(&[range]), &others);
        let expected = "MACPools p and q both have 02:00:00:00:00:80-02:00:00:00:00:ff, expected no common address";
        assert_eq!((verdict.errors, verdict.warnings), (vec![expected.to_owned()], vec![]));
        let verdict = validate_mac_pool("q", &spec(&["02:00:00:00:01:00-02:00:00:00:01:ff"]), &others);
        assert_eq!(verdict, Verdict::default());
    }

    #[test]
    fn a_machine_that_a_mac_pool_serves_gets_the_label_for_mac_addresses_in_its_template() {
        let pools = [pool("p", &["02:00:00:00:00:00-02:00:00:00:00:ff"])];
        let spec = interfaces_of(&json!([{"name": "a", "macAddress": "02:00:00:00:00:01"}]));
        let operations = |metadata: Value| {
            let mut template = json!({"spec": spec});
            if !metadata.is_null() {
                template["metadata"] = metadata;
            }
            require_addresses(&machine("n", &template), &pools)
        };
        let add = |path: &str, value: Value| vec![json!({"op": "add", "path": path, "value": value})];
        let path = "/spec/template/metadata/labels/ipam.glowplug.dev~1mac-addresses";
        assert_eq!(operations(json!({"labels": {"a": "b"}})), add(path, json!("required")));
        let labels = json!({(MAC_ADDRESSES_LABEL): "required"});
        assert_eq!(operations(json!({})), add("/spec/template/metadata/labels", labels.clone()));
        assert_eq!(operations(json!(null)), add("/spec/template/metadata", json!({"labels": labels})));
        assert_eq!(operations(json!({"labels": labels})), [] as [Value; 0]);
    }

    #[test]
    fn a_machine_without_interfaces_or_without_a_mac_pool_is_not_changed() {
        let pools = [pool("p", &["02:00:00:00:00:00-02:00:00:00:00:ff"])];
        let template = json!({"spec": interfaces_of(&json!([{"name": "a"}]))});
        assert_eq!(require_addresses(&machine("m", &template), &pools), [] as [Value; 0]);
        assert_eq!(require_addresses(&machine("n", &template), &[]), [] as [Value; 0]);
        let without = json!({"spec": interfaces_of(&json!([]))});
        assert_eq!(require_addresses(&machine("n", &without), &pools), [] as [Value; 0]);
    }

    #[test]
    fn an_instance_is_rejected_for_every_interface_without_an_address() {
        let instance = |interfaces: Value| -> Object {
            let labels = json!({(MAC_ADDRESSES_LABEL): "required"});
            let object = json!({"metadata": {"name": "w", "labels": labels}, "spec": interfaces_of(&interfaces)});
            serde_json::from_value(object).unwrap()
        };
        let some =
            json!([{"name": "a"}, {"name": "b", "macAddress": "02:00:00:00:00:01"}, {"name": "c", "macAddress": ""}]);
        let line = |index: usize, name: &str| {
            format!(
                "spec.domain.devices.interfaces[{index}].macAddress: missing for {name:?}, expected the address that the \
                 controller writes into the VirtualMachine"
            )
        };
        assert_eq!(check_instance(&instance(some)), [line(0, "a"), line(2, "c")]);
        let all = json!([{"name": "b", "macAddress": "02:00:00:00:00:01"}]);
        assert_eq!(check_instance(&instance(all)), [] as [String; 0]);
    }
}
