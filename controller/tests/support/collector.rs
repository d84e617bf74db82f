//! Stand-in for two parts of Kubernetes' controller manager: the garbage collector and the controller of namespaces. It
//! works on the objects of some namespaces, and follows these rules of the real program:
//!
//! - An owner is gone if no object has its name **and** UID. An owner that is deleted in the foreground waits for its
//!   dependents.
//! - An object that has at least one owner which exists and does not wait loses its other owners, and is not deleted.
//! - If every owner of an object is gone or waits, the object is deleted. If an owner waits and the object has
//!   dependents, the deletion is in the foreground. Otherwise, the finalizer `orphan` or `foregroundDeletion` of the
//!   object decides. Without these finalizers, the deletion is in the background.
//! - An owner that waits loses the finalizer `foregroundDeletion` after the last dependent that blocks its deletion is
//!   gone.
//! - The dependents of an object that is deleted with the policy `Orphan` lose this owner. Then the object loses its
//!   finalizer `orphan`.
//! - A namespace that is being deleted stays until all its objects are deleted. Then the namespace loses its finalizer.

use std::collections::BTreeMap;

use futures::stream::{self, StreamExt};
use glowplug_controller::kinds::pool::StaticIPPool;
use k8s_openapi::api::core::v1::{Namespace, Secret};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{
    ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams, PostParams,
    Preconditions, PropagationPolicy,
};
use kube::{Api, Client, ResourceExt};
use serde_json::json;
use tokio::task::JoinHandle;

use super::Cluster;
use super::hosted::changed;
use super::hosted::definitions::{HOSTED_CLUSTER, INSTANCE, KUBEVIRT_MACHINE, NODE_POOL, VIRTUAL_MACHINE, resource};

/// Finalizers of the garbage collector.
const FOREGROUND: &str = "foregroundDeletion";
const ORPHAN: &str = "orphan";

/// The stand-in for the garbage collector. Dropping this value stops the stand-in.
pub struct Collector(JoinHandle<()>);

struct Work {
    client: Client,
    /// Each kind in each namespace: the namespace, the kind, and the API for the objects.
    kinds: Vec<(String, ApiResource, Api<DynamicObject>)>,
}

/// What the collector does with an object.
#[derive(Clone, Debug, PartialEq)]
enum Action {
    Delete(PropagationPolicy),
    RemoveOwners(Vec<String>),
    RemoveFinalizer(&'static str),
}

/// An object, and the index of its kind in `Work::kinds`.
type Found = (usize, DynamicObject);

// === impl Collector ===

impl Collector {
    /// Starts the stand-in for these namespaces.
    pub fn start(cluster: &Cluster, namespaces: &[&str]) -> Self {
        let work = Work::new(cluster.client(), namespaces);
        Self(tokio::spawn(async move { work.run().await }))
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        self.0.abort();
    }
}

// === impl Work ===

impl Work {
    fn new(client: Client, namespaces: &[&str]) -> Self {
        let ipam = |kind: &str| {
            let kind = GroupVersionKind::gvk("ipam.cluster.x-k8s.io", "v1beta2", kind);
            let plural = if kind.kind == "IPAddress" { "ipaddresses" } else { "ipaddressclaims" };
            ApiResource::from_gvk_with_plural(&kind, plural)
        };
        let kinds = [NODE_POOL, HOSTED_CLUSTER, KUBEVIRT_MACHINE, VIRTUAL_MACHINE, INSTANCE].map(resource).into_iter();
        let kinds = kinds.chain([ipam("IPAddressClaim"), ipam("IPAddress")]);
        let kinds = kinds.chain([ApiResource::erase::<StaticIPPool>(&()), ApiResource::erase::<Secret>(&())]);
        let kinds: Vec<ApiResource> = kinds.collect();
        let of_namespaces = namespaces.iter().flat_map(|namespace| {
            let api = |kind: &ApiResource| Api::namespaced_with(client.clone(), namespace, kind);
            kinds.iter().map(move |kind| ((*namespace).to_owned(), kind.clone(), api(kind)))
        });
        Self { kinds: of_namespaces.collect(), client: client.clone() }
    }

    async fn run(&self) {
        let namespaces = Api::all_with(self.client.clone(), &ApiResource::erase::<Namespace>(&()));
        let watched = self.kinds.iter().map(|(_, _, api)| api.clone()).chain([namespaces]);
        let mut changes = stream::select_all(watched.map(|api| changed(api).boxed())).ready_chunks(1000);
        while changes.next().await.is_some() {
            while self.round().await {}
        }
    }

    /// Does everything that the objects need now. Returns whether there was anything to do.
    async fn round(&self) -> bool {
        let mut found = Vec::new();
        for (at, (_, _, api)) in self.kinds.iter().enumerate() {
            found.extend(api.list(&ListParams::default()).await.unwrap().items.into_iter().map(|object| (at, object)));
        }
        let mut is_busy = self.end_namespaces(&found).await;
        for (at, object) in &found {
            let Some(action) = decide(object, &found) else { continue };
            is_busy = true;
            self.act(*at, object, action).await;
        }
        is_busy
    }

    async fn act(&self, at: usize, object: &DynamicObject, action: Action) {
        let (api, name) = (&self.kinds[at].2, object.name_any());
        let patch = |member: &str, value| {
            let mut metadata = json!({"uid": object.uid(), "resourceVersion": object.resource_version()});
            metadata[member] = value;
            Patch::Merge(json!({"metadata": metadata}))
        };
        let result = match action {
            Action::Delete(policy) => {
                let preconditions = Preconditions { uid: object.uid(), resource_version: object.resource_version() };
                let params = DeleteParams { propagation_policy: Some(policy), ..DeleteParams::default() };
                api.delete(&name, &params.preconditions(preconditions)).await.map(drop)
            }
            Action::RemoveOwners(uids) => {
                let owners = object.owner_references().iter().filter(|owner| !uids.contains(&owner.uid));
                let owners = json!(owners.collect::<Vec<_>>());
                api.patch(&name, &PatchParams::default(), &patch("ownerReferences", owners)).await.map(drop)
            }
            Action::RemoveFinalizer(finalizer) => {
                let others: Vec<&String> = object.finalizers().iter().filter(|other| *other != finalizer).collect();
                api.patch(&name, &PatchParams::default(), &patch("finalizers", json!(others))).await.map(drop)
            }
        };
        unless_changed(result);
    }

    /// Deletes the objects of the namespaces that are being deleted, and then the namespaces. Returns whether there was
    /// anything to do.
    async fn end_namespaces(&self, found: &[Found]) -> bool {
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        let mut is_busy = false;
        let mut names: Vec<&String> = self.kinds.iter().map(|(namespace, _, _)| namespace).collect();
        names.dedup();
        for name in names {
            let Some(mut namespace) = namespaces.get_opt(name).await.unwrap() else { continue };
            let has_finalizer = namespace.spec.as_ref().is_some_and(|spec| spec.finalizers.is_some());
            if namespace.metadata.deletion_timestamp.is_none() || !has_finalizer {
                continue;
            }
            let of_namespace = || found.iter().filter(|(at, _)| self.kinds[*at].0 == *name);
            for (at, object) in of_namespace().filter(|(_, object)| object.metadata.deletion_timestamp.is_none()) {
                is_busy = true;
                self.act(*at, object, Action::Delete(PropagationPolicy::Background)).await;
            }
            if of_namespace().next().is_none() {
                is_busy = true;
                namespace.spec = None;
                let params = PostParams::default();
                unless_changed(namespaces.replace_subresource("finalize", name, &params, &namespace).await);
            }
        }
        is_busy
    }
}

/// Decides what to do with an object, as `attemptToDeleteItem` and `processDeletingDependentsItem` of the garbage
/// collector do.
fn decide(object: &DynamicObject, found: &[Found]) -> Option<Action> {
    let of_uid: BTreeMap<_, _> = found.iter().map(|(_, object)| (object.uid(), object)).collect();
    let uid = object.uid();
    let dependents = || {
        let owned = found.iter().map(|(_, other)| other);
        owned.filter_map(|other| {
            Some((other, other.owner_references().iter().find(|owner| Some(&owner.uid) == uid.as_ref())?))
        })
    };
    let owners = object.owner_references();
    let owner_of = |uid: &String| of_uid.get(&Some(uid.clone()));
    let is_deleted_with = |owner: &DynamicObject, finalizer: &str| {
        owner.metadata.deletion_timestamp.is_some() && owner.finalizers().iter().any(|other| other == finalizer)
    };
    let orphaned =
        owners.iter().filter(|owner| owner_of(&owner.uid).is_some_and(|owner| is_deleted_with(owner, ORPHAN)));
    let orphaned: Vec<String> = orphaned.map(|owner| owner.uid.clone()).collect();
    if !orphaned.is_empty() {
        return Some(Action::RemoveOwners(orphaned));
    }
    let has = |finalizer: &str| object.finalizers().iter().any(|other| other == finalizer);
    if object.metadata.deletion_timestamp.is_some() {
        let blocks = |owner: &OwnerReference| owner.block_owner_deletion == Some(true);
        return match () {
            () if has(ORPHAN) && dependents().next().is_none() => Some(Action::RemoveFinalizer(ORPHAN)),
            () if has(FOREGROUND) && !dependents().any(|(_, owner)| blocks(owner)) => {
                Some(Action::RemoveFinalizer(FOREGROUND))
            }
            () => None,
        };
    }
    let (mut solid, mut others, mut is_awaited) = (0, Vec::new(), false);
    for owner in owners {
        match owner_of(&owner.uid).filter(|known| known.name_any() == owner.name) {
            Some(known) if !is_deleted_with(known, FOREGROUND) => solid += 1,
            known => {
                others.push(owner.uid.clone());
                is_awaited |= known.is_some();
            }
        }
    }
    if others.is_empty() {
        return None;
    }
    if solid > 0 {
        return Some(Action::RemoveOwners(others));
    }
    let policy = match () {
        () if is_awaited && dependents().next().is_some() => PropagationPolicy::Foreground,
        () if has(ORPHAN) => PropagationPolicy::Orphan,
        () if has(FOREGROUND) => PropagationPolicy::Foreground,
        () => PropagationPolicy::Background,
    };
    Some(Action::Delete(policy))
}

/// Panics if a write fails, unless the object has changed or is gone: then the next round decides again.
fn unless_changed<T>(result: kube::Result<T>) {
    match result {
        Ok(_) => {}
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {}
        Err(error) => panic!("{error}"),
    }
}
