//! Creates and deletes the Secret of a VirtualMachine.

use std::time::Duration;

use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Api;
use kube::api::{DeleteParams, PostParams, Preconditions};
use tokio::time::{Instant, sleep};

use crate::cluster::key::Key;
use crate::cluster::object::Object;
use crate::cluster::request::{Error, ask, stored};
use crate::kinds::kubevirt_machine;

/// Time after which an API server no longer stores an object whose creation got no answer. Its own timeout is 60 seconds.
const LATEST_WRITE: Duration = Duration::from_secs(90);

/// Pause between two looks for a Secret that may be stored late.
const PAUSE: Duration = Duration::from_secs(5);

/// A Secret that this leader creates for a VirtualMachine.
pub(super) struct NewSecret {
    pub(super) vms: Api<Object>,
    pub(super) secrets: Api<Object>,
    pub(super) vm: Key,
    /// UID of the VirtualMachine.
    pub(super) uid: String,
}

// === impl NewSecret ===

impl NewSecret {
    /// Creates the Secret. Returns the stored Secret. `None`: the Secret is not stored, or no longer.
    ///
    /// A leader that was paused may be here after another leader has proved that the VirtualMachine is gone and has released
    /// its addresses. A new VirtualMachine of the same name would start with a late Secret. Therefore the VirtualMachine is
    /// read before the Secret is created, and once more after that: the API server may have received the Secret late.
    pub(super) async fn create(self, secret: &Secret) -> Result<Option<Secret>, Error> {
        if !self.has_vm().await? {
            return Ok(None);
        }
        let object = serde_json::to_value(secret).and_then(serde_json::from_value).map_err(Error::Unreadable)?;
        let answer = self.secrets.create(&PostParams::default(), &object).await.map_err(Error::Request);
        if matches!(&answer, Err(Error::Request(kube::Error::Api(status))) if status.code < 500) {
            return stored(answer)?.map(secret_in).transpose();
        }
        let state = async { Ok((answer?, self.has_vm().await?)) };
        match state.await {
            Ok((secret, true)) => secret_in(secret).map(Some),
            Ok((secret, false)) => delete(&self.secrets, &self.vm, secret.metadata.uid).await.map(|()| None),
            Err(error) => {
                tokio::spawn(self.delete_late());
                Err(error)
            }
        }
    }

    /// Looks for the Secret again and again, and deletes it if its VirtualMachine is gone. An API server may store the Secret
    /// after it has answered with an error, until its own timeout.
    async fn delete_late(self) {
        let began = Instant::now();
        while began.elapsed() < LATEST_WRITE {
            // The next attempt follows a failure.
            if let Err(error) = self.delete_without_vm().await {
                tracing::debug!(machine = %self.vm, %error, "could not look for a late Secret");
            }
            sleep(PAUSE).await;
        }
    }

    async fn delete_without_vm(&self) -> Result<(), Error> {
        if self.has_vm().await? {
            return Ok(());
        }
        let secret = ask(self.secrets.get_opt(&secret_name(&self.vm))).await?.map(|secret| secret.metadata);
        let is_own = |secret: &ObjectMeta| {
            secret.owner_references.iter().flatten().next().is_some_and(|owner| owner.uid == self.uid)
        };
        match secret.filter(is_own) {
            Some(secret) => delete(&self.secrets, &self.vm, secret.uid).await,
            None => Ok(()),
        }
    }

    async fn has_vm(&self) -> Result<bool, Error> {
        let vm = ask(self.vms.get_opt(&self.vm.name)).await?.map(|vm| vm.metadata);
        Ok(vm.is_some_and(|vm| kubevirt_machine::uid(&vm) == self.uid && !kubevirt_machine::is_deleted(&vm)))
    }
}

/// Reads a Secret.
pub(super) fn secret_in(object: Object) -> Result<Secret, Error> {
    serde_json::to_value(object).and_then(serde_json::from_value).map_err(Error::Unreadable)
}

/// Deletes the Secret of a VirtualMachine.
pub(super) async fn delete(secrets: &Api<Object>, vm: &Key, uid: Option<String>) -> Result<(), Error> {
    let params = DeleteParams::default().preconditions(Preconditions { uid, resource_version: None });
    let secret = secret_name(vm);
    if stored(ask(secrets.delete(&secret, &params)).await)?.is_some() {
        tracing::info!(machine = %vm, secret, "deleted the Secret of a machine");
    }
    Ok(())
}

pub(super) fn secret_name(key: &Key) -> String {
    format!("{}-networkdata", key.name)
}
