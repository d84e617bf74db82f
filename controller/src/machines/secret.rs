//! Reads, writes and deletes the Secrets of machines.

use glowplug::host::claim::Machine;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{DeleteParams, PostParams, Preconditions};

use crate::cluster::key::Key;
use crate::cluster::object::Object;
use crate::cluster::request::{Error, ask, find, stored};
use crate::kinds::kubevirt_machine::NetworkSecret;
use crate::machines::view::View;
use crate::machines::work::Work;

// === impl Work ===

impl Work<'_> {
    /// Reads a Secret in the namespace of `vm`.
    pub(super) async fn secret(&self, vm: &Key, name: &str) -> Result<NetworkSecret, Error> {
        let secret = ask(find(&self.secrets(vm), name)).await?.map(secret_in).transpose()?;
        Ok(NetworkSecret::read(secret))
    }

    /// Creates a Secret, or replaces it if the API server still has the version in `secret`. Returns the stored Secret.
    /// `None`: the API server has another version of the Secret, or the namespace is gone.
    pub(super) async fn store_secret(&self, vm: &Key, secret: &Secret) -> Result<Option<Secret>, Error> {
        let object: Object =
            serde_json::to_value(secret).and_then(serde_json::from_value).map_err(Error::Unreadable)?;
        let (secrets, params) = (self.secrets(vm), PostParams::default());
        let name = object.metadata.name.clone().unwrap_or_default();
        let answer = match object.metadata.resource_version {
            None => ask(secrets.create(&params, &object)).await,
            Some(_) => ask(secrets.replace(&name, &params, &object)).await,
        };
        stored(answer)?.map(secret_in).transpose()
    }

    /// Deletes a Secret that this program has written for a holder. A Secret of another author or of another holder is
    /// not deleted.
    pub(super) async fn delete_secret(&self, view: &View, holder: &Machine, secret: &str) -> Result<(), Error> {
        let vm = &view.key;
        let own = match view.check(self.secret(vm, secret).await?) {
            NetworkSecret::Ours(own) if own.machine == *holder => own,
            _ => return Ok(()),
        };
        let same = Preconditions { uid: own.metadata.uid, resource_version: None };
        let params = DeleteParams::default().preconditions(same);
        if stored(ask(self.secrets(vm).delete(secret, &params)).await)?.is_some() {
            tracing::info!(machine = %vm, secret, "deleted a Secret of a machine");
        }
        Ok(())
    }
}

/// Converts an object into a Secret.
pub(super) fn secret_in(object: Object) -> Result<Secret, Error> {
    serde_json::to_value(object).and_then(serde_json::from_value).map_err(Error::Unreadable)
}
