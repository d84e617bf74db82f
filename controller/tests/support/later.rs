//! CRDs of a later version, and leases that a leader of the later version has written: each specification has one more
//! member.

use std::collections::BTreeMap;

use glowplug_controller::kinds::pool::{LeaseSpec, StaticIPLease, definitions};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{CustomResourceDefinition, JSONSchemaProps};
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use super::Cluster;
use super::hosted::poll;

/// Returns the CRD of the present version.
pub fn present(plural: &str) -> CustomResourceDefinition {
    let is_meant = |definition: &CustomResourceDefinition| definition.spec.names.plural == plural;
    definitions().into_iter().find(is_meant).unwrap()
}

/// Returns the CRD of a later version. The specification and each object in it have one more member: the string
/// `later`.
pub fn definition(plural: &str) -> CustomResourceDefinition {
    let mut definition = present(plural);
    let schema = definition.spec.versions[0].schema.as_mut().unwrap().open_api_v3_schema.as_mut().unwrap();
    let later: JSONSchemaProps = serde_json::from_value(json!({"type": "string"})).unwrap();
    let spec = schema.properties.as_mut().unwrap().get_mut("spec").unwrap();
    let members = spec.properties.as_mut().unwrap();
    for object in members.values_mut().filter_map(|member| member.properties.as_mut()) {
        object.insert("later".to_owned(), later.clone());
    }
    members.insert("later".to_owned(), later);
    definition
}

/// Replaces the versions of a CustomResourceDefinition in the cluster, as `kubectl apply` of a changed file does.
pub async fn apply(cluster: &Cluster, definition: CustomResourceDefinition) {
    let definitions: Api<CustomResourceDefinition> = Api::all(cluster.client());
    let (name, patch) = (definition.name_any(), Patch::Merge(json!({"spec": {"versions": definition.spec.versions}})));
    definitions.patch(&name, &PatchParams::default(), &patch).await.unwrap();
}

/// Writes the member `later` into the specification and the holder of leases, as a leader of the later version may do.
pub async fn note(cluster: &Cluster, names: impl Iterator<Item = &String>) {
    let leases: Api<StaticIPLease> = Api::all(cluster.client());
    let note = Patch::Merge(json!({"spec": {"later": "a", "holder": {"later": "b"}}}));
    for name in names {
        // A real API server uses a changed CRD some time later.
        poll("a lease with the member of a later version", async || {
            let lease = leases.patch(name, &PatchParams::default(), &note).await.unwrap();
            (!lease.spec.unknown.is_empty()).then_some(())
        })
        .await;
    }
}

/// Returns the specification of a lease after [`note`] has changed the lease.
pub fn noted(mut spec: LeaseSpec) -> LeaseSpec {
    spec.unknown = BTreeMap::from([("later".to_owned(), json!("a"))]);
    spec.holder.unknown = BTreeMap::from([("later".to_owned(), json!("b"))]);
    spec
}

/// Returns the leases of a network by name.
pub async fn leases(cluster: &Cluster, network: &str) -> BTreeMap<String, LeaseSpec> {
    let leases: Api<StaticIPLease> = Api::all(cluster.client());
    let leases = leases.list(&ListParams::default()).await.unwrap().items.into_iter();
    leases.filter(|lease| lease.spec.network == network).map(|lease| (lease.name_any(), lease.spec)).collect()
}

/// Address, name of the holder, whether the lease is released, and the members `later` of the lease and of its holder.
pub type Row = (String, String, bool, Option<Value>, Option<Value>);

/// Returns the rows of the leases of a network, sorted by address.
pub async fn rows(cluster: &Cluster, network: &str) -> Vec<Row> {
    let row = |spec: LeaseSpec| {
        let [of_lease, of_holder] = [&spec.unknown, &spec.holder.unknown].map(|members| members.get("later").cloned());
        (spec.address, spec.holder.name, spec.released.is_some(), of_lease, of_holder)
    };
    let mut rows: Vec<Row> = leases(cluster, network).await.into_values().map(row).collect();
    rows.sort_by(|one, other| one.0.cmp(&other.0));
    rows
}
