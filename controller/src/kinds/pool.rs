//! The kinds of group `ipam.glowplug.dev`: pools of addresses, and the leases that record their holders.
//!
//! `kubectl explain` prints the doc comments of these types. `glowplug-controller crd` generates the manifests in
//! `config/crd` from the types.

mod check;
mod lease;
mod spec;
mod status;

pub(crate) use check::OWN_LABELS;
pub use glowplug::host::claim::HolderKind;
pub use glowplug::host::pool_object::GROUP;
pub use lease::{Holder, LeaseSpec, StaticIPLease};
pub use spec::{
    AddressesFrom, CLUSTER_LABEL, GlobalPoolSpec, GlobalStaticIPPool, IpamClaimRef, MachineNetwork,
    NamespacedNodePoolRef, NodePoolRef, POOL_FINALIZER, PoolSpec, PoolSubnet, ProviderPoolRef, Route, StaticIPPool,
};
pub use status::{AddressCount, FamilyCount, Neighbour, PoolStatus, ReportsBeyond, Waiting};
pub(crate) use status::{MOST_NAMED, MOST_WAITING};

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;

use crate::kinds::mac_pool::MACPool;
use crate::kinds::schema::complete;

/// Returns the definitions of every kind, in the order in which `glowplug-controller crd` prints them.
#[must_use]
pub fn definitions() -> Vec<CustomResourceDefinition> {
    let mut definitions = vec![GlobalStaticIPPool::crd(), MACPool::crd(), StaticIPLease::crd(), StaticIPPool::crd()];
    for definition in &mut definitions {
        let labels = definition.metadata.labels.get_or_insert_default();
        labels.insert("cluster.x-k8s.io/provider".to_owned(), "ipam-glowplug".to_owned());
        complete(definition);
    }
    definitions
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_a_short_name_and_the_category_of_the_group() {
        let names = definitions().into_iter().map(|definition| definition.spec.names);
        let names: Vec<_> = names.map(|names| (names.kind, names.short_names, names.categories)).collect();
        let expected = |kind: &str, short: &str, categories: &[&str]| {
            let owned = |texts: &[&str]| Some(texts.iter().map(|&text| text.to_owned()).collect::<Vec<_>>());
            (kind.to_owned(), owned(&[short]), owned(categories))
        };
        let of_cluster_api = ["cluster-api", "glowplug"];
        let expected = [
            expected("GlobalStaticIPPool", "gsipp", &of_cluster_api),
            expected("MACPool", "macp", &["glowplug"]),
            expected("StaticIPLease", "sipl", &["glowplug"]),
            expected("StaticIPPool", "sipp", &of_cluster_api),
        ];
        assert_eq!(names, expected);
    }
}
