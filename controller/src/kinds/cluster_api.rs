//! The kinds of Cluster API that the controller works on: IPAddressClaim, IPAddress and Cluster.
//!
//! Only the members that the controller needs are read; all other members of an object are left unchanged. `v1beta1`
//! and `v1beta2` have the same members, except for conditions: each version has its own list of conditions and, in
//! another member, a list in the form of the other version. API servers do not convert one list into the other, so the
//! controller writes both lists.
//!
//! Source: `docs/book/src/developer/providers/contracts/ipam.md` of Cluster API.

use std::net::IpAddr;

use glowplug::host::claim::is_object_name;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::Timestamp;
use kube::api::{ApiResource, GroupVersionKind};
use kube::{Client, ResourceExt as _};
use serde::{Deserialize, Serialize};

use crate::cluster::client::serves;
use crate::cluster::conditions::Stored;
use crate::cluster::key::{Key, PoolId};
use crate::cluster::object::{Object, trimmed};
use crate::kinds::pool::{CLUSTER_LABEL, GROUP as POOL_GROUP, GlobalStaticIPPool, StaticIPPool};

/// API group of claims and addresses.
pub const GROUP: &str = "ipam.cluster.x-k8s.io";
/// API group of clusters.
pub const CLUSTER_GROUP: &str = "cluster.x-k8s.io";
/// Finalizer that keeps a claim until its address is released.
pub const CLAIM_FINALIZER: &str = "ipam.glowplug.dev/release-address";
/// Finalizer that keeps an IPAddress while its claim needs the address.
pub const ADDRESS_FINALIZER: &str = "ipam.glowplug.dev/protect-address";
/// Annotation of a claim on a pool of two families: `IPv4` or `IPv6`.
pub const FAMILY_ANNOTATION: &str = "ipam.glowplug.dev/family";
/// Annotation of a claim with the only address that the claim accepts. Example: `192.168.1.20`.
pub const REQUEST_ANNOTATION: &str = "ipam.glowplug.dev/requested-address";
/// Annotation of a paused object. Controllers do not change a paused object.
pub const PAUSED_ANNOTATION: &str = "cluster.x-k8s.io/paused";
/// Annotation that `clusterctl move` writes into an object just before it deletes the object in the source cluster. The
/// target cluster has the object already. The annotation replaces all other annotations.
pub const MOVED_ANNOTATION: &str = "clusterctl.cluster.x-k8s.io/delete-for-move";
/// Label with the name of the controller that handles an object, if several controllers run.
pub const WATCH_FILTER_LABEL: &str = "cluster.x-k8s.io/watch-filter";

/// Paths of the lists of conditions of a claim: `status.conditions` in both versions, the old form in a `v1beta2`
/// claim, and the current form in a `v1beta1` claim.
const CONDITIONS: [&[&str]; 3] = [
    &["status", "conditions"],
    &["status", "deprecated", "v1beta1", "conditions"],
    &["status", "v1beta2", "conditions"],
];
/// Finalizers of Kubernetes itself. They define how dependents are deleted, and do not mean that an object is in use.
const GARBAGE_COLLECTION: [&str; 2] = ["foregroundDeletion", "orphan"];

/// A version of Cluster API.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Version {
    /// Deprecated version that API servers may still serve.
    V1Beta1,
    /// Version in which current releases store objects.
    V1Beta2,
}

/// The kinds of Cluster API that the API server serves.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Kinds {
    /// Version of claims and addresses.
    pub version: Version,
    /// IPAddressClaim.
    pub claims: ApiResource,
    /// IPAddress.
    pub addresses: ApiResource,
    /// Cluster. `None` when the API server does not serve this kind.
    pub clusters: Option<ApiResource>,
}

/// The reference to a pool in a claim.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PoolRef {
    /// API group of the pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_group: Option<String>,
    /// Kind of the pool. Machine API may write the plural or the singular of the kind, in upper or lower case letters.
    pub kind: String,
    /// Name of the pool.
    pub name: String,
}

/// A claim for one address of one family.
#[derive(Clone, Debug, PartialEq)]
pub struct IpAddressClaim {
    /// The members of the metadata that decisions read.
    pub metadata: ObjectMeta,
    /// The pool from which the claim requests an address.
    pub pool: PoolRef,
    /// Name of the Cluster to which the claim belongs. `None`: the claim belongs to no Cluster.
    pub cluster: Option<String>,
    /// Whether the claim has a status.
    pub(crate) has_status: bool,
    /// Whether the status names the IPAddress of the claim.
    pub(crate) has_address: bool,
    /// The conditions `Ready` and `Paused` in each list: in `status`, `status.deprecated.v1beta1` and `status.v1beta2`.
    pub(crate) conditions: [Stored; 3],
}

/// An IPAddress: the address that a claim received.
#[derive(Clone, Debug, PartialEq)]
pub struct IpAddress {
    /// The members of the metadata that decisions read.
    pub metadata: ObjectMeta,
    /// The pool of the address.
    pub pool: PoolRef,
    /// Name of the claim, in the namespace of the address.
    pub claim: String,
    /// The address, as stored in the object.
    pub address: String,
    /// Prefix length of the address, as stored in the object.
    pub prefix: i64,
    /// Default gateway, as stored in the object. `None`: the address has no gateway.
    pub gateway: Option<String>,
}

// === impl Version ===

impl Version {
    /// The version, as in `apiVersion`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::V1Beta1 => "v1beta1",
            Self::V1Beta2 => "v1beta2",
        }
    }
}

// === impl Kinds ===

impl Kinds {
    /// Requests the kinds from the API server. `None`: the API server does not serve claims and addresses.
    ///
    /// # Errors
    ///
    /// A request failed.
    pub async fn discover(client: &Client) -> kube::Result<Option<Self>> {
        let Some((version, claims)) = served(client, GROUP, "IPAddressClaim", "ipaddressclaims").await? else {
            return Ok(None);
        };
        let addresses = addresses(version);
        let clusters = clusters(client).await?;
        Ok(Some(Self { version, claims, addresses, clusters }))
    }
}

/// Requests the API resource of Clusters from the API server. `None`: the API server does not serve Clusters.
///
/// # Errors
///
/// A request failed.
pub async fn clusters(client: &Client) -> kube::Result<Option<ApiResource>> {
    Ok(served(client, CLUSTER_GROUP, "Cluster", "clusters").await?.map(|(_, clusters)| clusters))
}

/// API resource of IPAddressClaims in a version.
#[must_use]
pub fn claims(version: Version) -> ApiResource {
    resource(GROUP, version, "IPAddressClaim", "ipaddressclaims")
}

/// API resource of IPAddresses in a version.
#[must_use]
pub fn addresses(version: Version) -> ApiResource {
    resource(GROUP, version, "IPAddress", "ipaddresses")
}

fn resource(group: &str, version: Version, kind: &str, plural: &str) -> ApiResource {
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version.name(), kind), plural)
}

/// Returns the newest version of a kind that the API server serves, with its API resource. `None`: the API server does
/// not serve the kind.
async fn served(
    client: &Client,
    group: &str,
    kind: &str,
    plural: &str,
) -> kube::Result<Option<(Version, ApiResource)>> {
    for version in [Version::V1Beta2, Version::V1Beta1] {
        let resource = resource(group, version, kind, plural);
        if serves(client, &resource).await? {
            return Ok(Some((version, resource)));
        }
    }
    Ok(None)
}

/// Whether a Cluster is paused. Controllers do not change the objects of a paused Cluster.
#[must_use]
pub fn is_paused(cluster: &Object) -> bool {
    cluster.data["spec"]["paused"] == true || cluster.annotations().contains_key(PAUSED_ANNOTATION)
}

// === impl PoolRef ===

impl PoolRef {
    /// Returns the pool of this controller that the reference of an object in `namespace` names. `None`: the pool
    /// belongs to another provider, or no object can have the name in the reference.
    ///
    /// ```
    /// use glowplug_controller::kinds::cluster_api::PoolRef;
    ///
    /// let pool = |kind: &str| {
    ///     let pool = PoolRef { api_group: Some("ipam.glowplug.dev".into()), kind: kind.into(), name: "workers".into() };
    ///     pool.resolve("clusters").map(|pool| pool.to_string())
    /// };
    /// assert_eq!(pool("StaticIPPool").as_deref(), Some("clusters/workers"));
    /// assert_eq!(pool("staticippools").as_deref(), Some("clusters/workers"));
    /// assert_eq!(pool("GlobalStaticIPPool").as_deref(), Some("workers"));
    /// assert_eq!(pool("InClusterIPPool"), None);
    /// ```
    #[must_use]
    pub fn resolve(&self, namespace: &str) -> Option<PoolId> {
        // `namespace/name` would be the name of a pool of another namespace.
        if self.api_group.as_deref() != Some(POOL_GROUP) || !is_object_name(&self.name) {
            return None;
        }
        let namespace = self.has_namespace()?.then(|| namespace.to_owned());
        Some(PoolId { namespace, name: self.name.clone() })
    }

    /// Whether pools of this kind have a namespace. `None`: the kind is not a kind of pool of this controller.
    fn has_namespace(&self) -> Option<bool> {
        let names = |kind: &str| {
            let spelled = self.kind.to_lowercase();
            spelled == kind || spelled.strip_suffix('s') == Some(kind)
        };
        match () {
            () if names("staticippool") => Some(true),
            () if names("globalstaticippool") => Some(false),
            () => None,
        }
    }

    /// Returns the mistake in a reference that can only mean a pool of this controller, but names no such pool. `None`:
    /// the reference names a pool of this controller, or belongs to another provider.
    pub(crate) fn mistake(&self) -> Option<String> {
        let group = self.api_group.as_deref().unwrap_or_default();
        let is_versioned = group.strip_prefix(POOL_GROUP).is_some_and(|rest| rest.starts_with('/'));
        let (member, problem, expected) = match self.has_namespace() {
            _ if is_versioned => ("apiGroup", format!("version in {group:?}"), POOL_GROUP),
            Some(_) if group.is_empty() => ("apiGroup", "missing".to_owned(), POOL_GROUP),
            _ if group != POOL_GROUP => return None,
            None => ("kind", format!("unknown kind {:?}", self.kind), "StaticIPPool or GlobalStaticIPPool"),
            Some(_) if is_object_name(&self.name) => return None,
            Some(_) => ("name", format!("invalid name {:?}", self.name), "the name of a pool"),
        };
        Some(format!("spec.poolRef.{member}: {problem}, expected {expected}"))
    }

    /// Whether the reference of a claim in `namespace` names a pool of this controller, or means such a pool and has a
    /// mistake.
    pub(crate) fn concerns_us(&self, namespace: &str) -> bool {
        self.resolve(namespace).is_some() || self.mistake().is_some()
    }
}

// === impl IpAddressClaim ===

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ClaimSpec {
    pool_ref: PoolRef,
    #[serde(default)]
    cluster_name: String,
}

impl IpAddressClaim {
    /// Reads a claim.
    ///
    /// # Errors
    ///
    /// The specification does not have the expected structure.
    pub fn read(object: Object) -> Result<Self, serde_json::Error> {
        let (metadata, mut data) = (object.metadata, object.data);
        let ClaimSpec { pool_ref, cluster_name } = serde_json::from_value(data["spec"].take())?;
        let labels = metadata.labels.as_ref();
        let cluster = [Some(cluster_name), labels.and_then(|labels| labels.get(CLUSTER_LABEL).cloned())];
        let cluster = cluster.into_iter().flatten().find(|name| !name.is_empty());
        let status = &data["status"];
        let has_address = metadata.name.is_some() && status["addressRef"]["name"].as_str() == metadata.name.as_deref();
        let conditions = CONDITIONS.map(|path| Stored::read(&data, path, &["Ready", "Paused"]));
        let names = [WATCH_FILTER_LABEL, PAUSED_ANNOTATION, MOVED_ANNOTATION, FAMILY_ANNOTATION, REQUEST_ANNOTATION];
        let metadata = trimmed(metadata, &names, &[]);
        Ok(Self { metadata, pool: pool_ref, cluster, has_status: status.is_object(), has_address, conditions })
    }

    /// Namespace and name of the claim.
    #[must_use]
    pub fn key(&self) -> Key {
        Key::of(&self.metadata)
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

    /// Whether `clusterctl move` has moved the claim to another cluster, where its machine keeps the address.
    #[must_use]
    pub fn is_moved(&self) -> bool {
        self.metadata.annotations.as_ref().is_some_and(|all| all.contains_key(MOVED_ANNOTATION))
    }

    /// Whether an infrastructure provider still needs the address: the claim has a finalizer of the provider.
    ///
    /// Infrastructure providers keep a finalizer on the claims of a machine until the machine is gone. An example is
    /// `machine.openshift.io/ip-claim-protection` of Machine API.
    #[must_use]
    pub fn is_in_use(&self) -> bool {
        is_in_use(&self.metadata)
    }
}

// === impl IpAddress ===

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct AddressSpec {
    pool_ref: PoolRef,
    claim_ref: ClaimRef,
    address: String,
    prefix: i64,
    #[serde(default)]
    gateway: Option<String>,
}

#[derive(Deserialize)]
struct ClaimRef {
    #[serde(default)]
    name: String,
}

impl IpAddress {
    /// Reads an IPAddress.
    ///
    /// # Errors
    ///
    /// The specification does not have the expected structure.
    pub fn read(object: Object) -> Result<Self, serde_json::Error> {
        let (metadata, mut data) = (trimmed(object.metadata, &[], &["IPAddressClaim"]), object.data);
        let AddressSpec { pool_ref, claim_ref, address, prefix, gateway } =
            serde_json::from_value(data["spec"].take())?;
        Ok(Self { metadata, pool: pool_ref, claim: claim_ref.name, address, prefix, gateway })
    }

    /// Namespace and name of the object.
    #[must_use]
    pub fn key(&self) -> Key {
        Key::of(&self.metadata)
    }

    /// Whether this IPAddress was created for a claim with the same name on a pool of this controller.
    #[must_use]
    pub fn is_ours(&self) -> bool {
        let key = self.key();
        self.claim == key.name && self.pool.resolve(&key.namespace).is_some()
    }

    /// UID of the claim that controls this object. Kubernetes limits neither the length nor the characters of the UID
    /// of an owner, so a text that cannot be a UID counts as absent.
    #[must_use]
    pub fn owner(&self) -> Option<&str> {
        let owners = self.metadata.owner_references.iter().flatten();
        let mut claims =
            owners.filter(|owner| owner.kind == "IPAddressClaim" && owner.api_version.split('/').next() == Some(GROUP));
        let owner = claims.find(|owner| owner.controller == Some(true)).map(|owner| owner.uid.as_str());
        owner.filter(|uid| is_object_name(uid))
    }

    /// The address as a value. `None`: the string is not an address.
    #[must_use]
    pub fn ip(&self) -> Option<IpAddr> {
        self.address.parse().ok()
    }

    /// Whether the object is being deleted.
    #[must_use]
    pub fn is_deleted(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }
}

/// Whether another program has a finalizer on a claim. Such a finalizer means that the address is in use.
#[must_use]
pub fn is_in_use(claim: &ObjectMeta) -> bool {
    let finalizers = claim.finalizers.iter().flatten();
    finalizers.into_iter().any(|name| name != CLAIM_FINALIZER && !GARBAGE_COLLECTION.contains(&name.as_str()))
}

/// Whether an object has a finalizer.
#[must_use]
pub fn has_finalizer(metadata: &ObjectMeta, finalizer: &str) -> bool {
    metadata.finalizers.iter().flatten().any(|name| name == finalizer)
}

/// Returns the API resource of a pool, for owner references.
#[must_use]
pub fn pool_kind(pool: &PoolId) -> ApiResource {
    match pool.namespace {
        Some(_) => ApiResource::erase::<StaticIPPool>(&()),
        None => ApiResource::erase::<GlobalStaticIPPool>(&()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::cluster::object::object;

    fn claim(metadata: Value, spec: Value) -> IpAddressClaim {
        let mut value = json!({"metadata": {"name": "c", "namespace": "n"}, "spec": {"poolRef": {"kind": "StaticIPPool", "name": "p"}}});
        json_patch::merge(&mut value, &json!({"metadata": metadata, "spec": spec}));
        IpAddressClaim::read(object(value)).unwrap()
    }

    #[test]
    fn a_claim_belongs_to_the_cluster_in_its_specification_or_else_in_its_label() {
        let label = json!({"labels": {(CLUSTER_LABEL): "a"}});
        assert_eq!(claim(json!({}), json!({})).cluster, None);
        assert_eq!(claim(label.clone(), json!({"clusterName": ""})).cluster.as_deref(), Some("a"));
        assert_eq!(claim(label, json!({"clusterName": "b"})).cluster.as_deref(), Some("b"));
    }

    #[test]
    fn no_reference_names_a_pool_of_another_namespace() {
        for (kind, name) in [("GlobalStaticIPPool", "victim/p"), ("StaticIPPool", "../p"), ("GlobalStaticIPPool", "")] {
            let group = Some("ipam.glowplug.dev".to_owned());
            let pool = PoolRef { api_group: group, kind: kind.to_owned(), name: name.to_owned() };
            assert_eq!(pool.resolve("n"), None, "{kind} {name}");
        }
    }

    #[test]
    fn a_reference_names_the_kind_of_a_pool_in_plural_or_singular_and_in_upper_or_lower_case() {
        let resolve = |group: Option<&str>, kind: &str| {
            let pool = PoolRef { api_group: group.map(str::to_owned), kind: kind.to_owned(), name: "p".to_owned() };
            pool.resolve("n").map(|pool| pool.to_string())
        };
        for kind in ["StaticIPPool", "staticippool", "staticippools", "STATICIPPOOLS"] {
            assert_eq!(resolve(Some("ipam.glowplug.dev"), kind).as_deref(), Some("n/p"), "{kind}");
        }
        for kind in ["GlobalStaticIPPool", "globalstaticippools"] {
            assert_eq!(resolve(Some("ipam.glowplug.dev"), kind).as_deref(), Some("p"), "{kind}");
        }
        for (group, kind) in [
            (None, "StaticIPPool"),
            (Some("ipam.cluster.x-k8s.io"), "StaticIPPool"),
            (Some("ipam.glowplug.dev"), "InClusterIPPool"),
            (Some("ipam.glowplug.dev"), "staticippoolss"),
            (Some("ipam.glowplug.dev"), ""),
        ] {
            assert_eq!(resolve(group, kind), None, "{group:?} {kind}");
        }
    }

    #[test]
    fn a_mistake_in_a_reference_to_a_pool_has_its_member_its_value_and_the_expected_value() {
        let mistake = |group: Option<&str>, kind: &str, name: &str| {
            PoolRef { api_group: group.map(str::to_owned), kind: kind.to_owned(), name: name.to_owned() }.mistake()
        };
        let ours = Some("ipam.glowplug.dev");
        let missing = "spec.poolRef.apiGroup: missing, expected ipam.glowplug.dev";
        let version = "spec.poolRef.apiGroup: version in \"ipam.glowplug.dev/v1alpha1\", expected ipam.glowplug.dev";
        let kind = "spec.poolRef.kind: unknown kind \"StaticPool\", expected StaticIPPool or GlobalStaticIPPool";
        let name = "spec.poolRef.name: invalid name \"n/p\", expected the name of a pool";
        for (group, of_kind, of_name, expected) in [
            (None, "StaticIPPool", "p", missing),
            (Some(""), "globalstaticippools", "p", missing),
            (Some("ipam.glowplug.dev/v1alpha1"), "StaticIPPool", "p", version),
            (ours, "StaticPool", "p", kind),
            (ours, "StaticIPPool", "n/p", name),
        ] {
            assert_eq!(mistake(group, of_kind, of_name).as_deref(), Some(expected));
        }
        for (group, kind) in [
            (ours, "StaticIPPool"),
            (ours, "globalstaticippools"),
            (None, "InClusterIPPool"),
            (Some("ipam.cluster.x-k8s.io"), "StaticIPPool"),
            (Some("ipam.glowplug.dev.example"), "StaticIPPool"),
        ] {
            assert_eq!(mistake(group, kind, "p"), None);
        }
    }

    #[test]
    fn a_finalizer_of_an_infrastructure_provider_means_that_the_address_is_in_use() {
        let is_in_use = |finalizers: &[&str]| claim(json!({"finalizers": finalizers}), json!({})).is_in_use();
        assert!(!is_in_use(&[]));
        assert!(!is_in_use(&[CLAIM_FINALIZER, "foregroundDeletion", "orphan"]));
        assert!(is_in_use(&[CLAIM_FINALIZER, "machine.openshift.io/ip-claim-protection"]));
    }

    #[test]
    fn the_owner_of_an_ipaddress_is_the_claim_that_controls_it() {
        let owner = |api_version: &str, kind: &str, uid: &str, controller: bool| json!({"apiVersion": api_version, "kind": kind, "name": "c", "uid": uid, "controller": controller});
        let address = |owners: Value| {
            let spec = json!({"poolRef": {"kind": "k", "name": "p"}, "claimRef": {"name": "c"}, "address": "10.0.0.8", "prefix": 24});
            let metadata = json!({"name": "c", "namespace": "n", "ownerReferences": owners});
            IpAddress::read(object(json!({"metadata": metadata, "spec": spec}))).unwrap()
        };
        let [old, new] = ["ipam.cluster.x-k8s.io/v1beta1", "ipam.cluster.x-k8s.io/v1beta2"];
        let pool = owner("ipam.glowplug.dev/v1alpha1", "StaticIPPool", "p", false);
        assert_eq!(address(json!([])).owner(), None);
        assert_eq!(address(json!([pool, owner(old, "IPAddressClaim", "u", true)])).owner(), Some("u"));
        assert_eq!(address(json!([owner(new, "IPAddressClaim", "u", true)])).owner(), Some("u"));
        assert_eq!(address(json!([owner(new, "IPAddressClaim", "u", false)])).owner(), None);
        let long = "u".repeat(254);
        assert_eq!(address(json!([owner(new, "IPAddressClaim", &long, true)])).owner(), None);
    }

    #[test]
    fn a_cluster_is_paused_by_its_specification_or_by_an_annotation() {
        let cluster = |value: Value| is_paused(&object(value));
        assert!(!cluster(json!({"metadata": {}, "spec": {"paused": false}})));
        assert!(!cluster(json!({"metadata": {}})));
        assert!(cluster(json!({"metadata": {}, "spec": {"paused": true}})));
        assert!(cluster(json!({"metadata": {"annotations": {(PAUSED_ANNOTATION): ""}}})));
    }
}
