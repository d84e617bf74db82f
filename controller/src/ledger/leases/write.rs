//! Writes one lease, and classifies the answer of the API server. If the answer does not show what is stored, reads the
//! object.

use std::net::IpAddr;
use std::sync::Arc;

use kube::Api;
use kube::api::{ApiResource, DeleteParams, PostParams, Preconditions};

use super::object::spec_of;
use crate::cluster::object::Object;
use crate::cluster::request::{Error, Refusal, find, refusal};
use crate::kinds::pool::{LeaseSpec, StaticIPLease};

/// A lease to write.
#[derive(Clone, Debug)]
pub(super) struct Write {
    pub(super) name: String,
    pub(super) network: Arc<str>,
    pub(super) address: IpAddr,
    /// The version to replace. `None` when the object does not exist.
    pub(super) version: Option<u64>,
    /// UID of the object to replace or delete: after a restore of etcd, another object may have the same version.
    pub(super) uid: Option<String>,
    /// The new specification of the lease. `None`: delete the object.
    pub(super) spec: Option<LeaseSpec>,
}

/// Result of a write.
#[derive(Debug)]
pub(super) enum Outcome {
    /// The object is stored as requested or, with `None`, deleted.
    Done(Option<Object>),
    /// Another version of the object is stored, or, with `None`, the object does not exist.
    Refused(Option<Object>),
    /// The API server refuses the write, and would refuse it again. The text is the reason that the API server gives.
    Denied(String),
    /// The request failed. `is_doubtful`: the API server may have stored the object.
    Failed { error: Error, is_doubtful: bool },
}

// === impl Outcome ===

impl Outcome {
    fn failed(error: kube::Error, is_doubtful: bool) -> Self {
        Self::Failed { error: Error::Request(error), is_doubtful }
    }

    /// Whether the stored object is uncertain, so that it must be read.
    pub(super) fn is_doubtful(&self) -> bool {
        matches!(self, Self::Refused(None) | Self::Failed { is_doubtful: true, .. })
    }
}

// === impl Write ===

impl Write {
    pub(super) async fn send(&self, api: &Api<Object>) -> Outcome {
        let result = match (&self.spec, self.version) {
            (Some(spec), None) => api.create(&PostParams::default(), &self.object(spec)).await.map(Some),
            (Some(spec), Some(_)) => {
                api.replace(&self.name, &PostParams::default(), &self.object(spec)).await.map(Some)
            }
            (None, version) => {
                let resource_version = version.map(|version| version.to_string());
                let same = Preconditions { uid: self.uid.clone(), resource_version };
                let deleted = api.delete(&self.name, &DeleteParams::default().preconditions(same)).await;
                match deleted.map(|deleted| deleted.left()) {
                    Ok(Some(object)) if object.metadata.deletion_timestamp.is_some() => {
                        return Outcome::Denied("its finalizers keep the object".to_owned());
                    }
                    deleted => deleted.map(|_| None),
                }
            }
        };
        let error = match result {
            Ok(object) => return Outcome::Done(object),
            Err(error) => error,
        };
        let reason = match refusal(&error) {
            Some(Refusal::Absent | Refusal::Other) => None,
            Some(Refusal::ForGood(_)) if is_missing_right(&error) => return Outcome::failed(error, false),
            Some(Refusal::ForGood(status)) if self.version.is_some() => return Outcome::Denied(status.message.clone()),
            Some(Refusal::ForGood(status)) => Some(status.message.clone()),
            None => {
                let is_doubtful = !matches!(&error, kube::Error::Api(status) if (400..500).contains(&status.code));
                return Outcome::failed(error, is_doubtful);
            }
        };
        // The stored object decides the outcome. Even if the API server refuses a new lease, another leader may have
        // stored the lease before.
        match (find(api, &self.name).await, reason) {
            (Ok(Some(object)), _) if self.is_done_by(&object) => Outcome::Done(Some(object)),
            (Ok(None), Some(reason)) => Outcome::Denied(reason),
            (Ok(None), None) if self.spec.is_none() => Outcome::Done(None),
            (Ok(object), _) => Outcome::Refused(object),
            (Err(error), _) => Outcome::failed(error, true),
        }
    }

    fn object(&self, spec: &LeaseSpec) -> Object {
        let kind = ApiResource::erase::<StaticIPLease>(&());
        let mut object = Object::new(&self.name, &kind, serde_json::json!({ "spec": spec }));
        object.metadata.resource_version = self.version.map(|version| version.to_string());
        object.metadata.uid = self.uid.clone();
        object
    }

    /// Whether the stored object already has the content of this write, because a response was lost or another leader
    /// was faster.
    fn is_done_by(&self, object: &Object) -> bool {
        let (Ok(is), Some(wanted)) = (spec_of(object), &self.spec) else { return false };
        let is_of_pool = (&is.pool, is.prefix) == (&wanted.pool, wanted.prefix);
        let has_secrets = (wanted.secrets.is_none() || is.secrets == wanted.secrets)
            && is.migrated.is_some() == wanted.migrated.is_some();
        is.holder == wanted.holder && is.released.is_some() == wanted.released.is_some() && is_of_pool && has_secrets
    }
}

/// Whether the API server refused a request because the program lacks a right. A missing right affects every lease, but
/// a policy may refuse only some leases. Only the reason for a missing right begins with `User "`.
fn is_missing_right(error: &kube::Error) -> bool {
    let kube::Error::Api(status) = error else { return false };
    let reason = status.message.split_once(" is forbidden: ").map(|(_, reason)| reason);
    status.code == 403 && reason.is_some_and(|reason| reason.starts_with("User \""))
}
