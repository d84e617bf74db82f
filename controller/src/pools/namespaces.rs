//! Labels the namespaces that contain machines of pools, so that the API server calls the webhooks for these machines.
//!
//! Only the leader does this. The label is written by server-side apply, under a field manager for the scope of the
//! controller. If no pool serves a namespace any more, the controller removes its own field, and the label remains if a
//! user or a controller of another scope has also set it. If a pool selects by the labels of Namespaces, and the
//! controller does not know these labels, no label is removed: without the label, new machines would start without
//! network data.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{ApiResource, Patch, PatchParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use crate::cluster::backoff::{BackOff, Postponed};
use crate::cluster::object::Object;
use crate::cluster::request::{Refusal, ask};
use crate::cluster::watch::{Change, changes};
use crate::kinds::virtual_machine::{MAC_POOLS_LABEL, MACHINES_LABEL};
use crate::pools::facts::Scope;
use crate::pools::selection::Selection;
use crate::pools::selection_cache::SelectionCache;
use crate::repeated::Repeated;

/// Pauses between attempts for a namespace, after failures.
const PAUSES: BackOff = BackOff::new(Duration::from_secs(1), Duration::from_secs(60));

/// The task that labels namespaces. From a value of type `T`, the task derives the namespaces that get the label.
pub struct Namespaces<T> {
    api: Api<Object>,
    label: &'static str,
    /// Field manager of the label.
    manager: String,
    values: watch::Receiver<Option<T>>,
    namespaces: fn(&T) -> Served,
    known: Known,
}

/// The namespaces that need the label.
struct Served {
    names: BTreeSet<String>,
    /// Whether `names` is complete. If it is not, all other namespaces keep their label.
    is_complete: bool,
}

#[derive(Debug)]
struct Known {
    label: &'static str,
    /// For each namespace, whether it has the label.
    labelled: BTreeMap<String, bool>,
    /// For each namespace, whether the controller last set the label (`true`) or gave it up. The label may have further
    /// owners. An entry is removed when the namespace has no label.
    applied: BTreeMap<String, bool>,
    is_listed: bool,
}

// === impl Namespaces ===

impl Namespaces<Arc<Selection>> {
    /// Creates the task that writes the label of namespaces that have machines of IP pools.
    #[must_use]
    pub fn new(client: Client, selection: &SelectionCache) -> Self {
        let namespaces = |selection: &Arc<Selection>| Served {
            names: selection.namespaces().map(str::to_owned).collect(),
            is_complete: selection.has_every_namespace(),
        };
        let manager = selection.scope().name("glowplug-controller");
        Self::of(client, MACHINES_LABEL, manager, selection.subscribe(), namespaces)
    }
}

impl Namespaces<BTreeSet<String>> {
    /// Creates the task that writes the label of namespaces that have machines of MAC pools.
    #[must_use]
    pub fn of_macs(client: Client, namespaces: watch::Receiver<Option<BTreeSet<String>>>, scope: &Scope) -> Self {
        let served = |names: &BTreeSet<String>| Served { names: names.clone(), is_complete: true };
        Self::of(client, MAC_POOLS_LABEL, scope.name("glowplug-controller-macs"), namespaces, served)
    }
}

impl<T> Namespaces<T> {
    fn of(
        client: Client,
        label: &'static str,
        manager: String,
        values: watch::Receiver<Option<T>>,
        namespaces: fn(&T) -> Served,
    ) -> Self {
        let api = Api::all_with(client, &ApiResource::erase::<Namespace>(&()));
        Self { api, label, manager, values, namespaces, known: Known::new(label) }
    }

    /// Watches the namespaces and the value, and updates the labels, until the future is dropped.
    pub async fn run(mut self) -> Infallible {
        let mut namespaces = Box::pin(changes(self.api.clone()));
        let (mut postponed, lines) = (Postponed::new(PAUSES), Repeated::default());
        loop {
            let served = self.values.borrow_and_update().as_ref().map(self.namespaces);
            if let Some(served) = served.filter(|_| self.known.is_listed) {
                let updates = self.known.updates(&served);
                postponed.retain(|name| updates.iter().any(|(update, _)| update == name));
                for (name, is_served) in updates {
                    if !postponed.is_due(&name, Instant::now()) {
                        continue;
                    }
                    let labelled = self.label(&name, is_served).await;
                    postponed.note(&name, labelled.is_err(), Instant::now());
                    match labelled {
                        Ok(()) => self.known.note(&name, is_served),
                        Err(error) => {
                            if let Some(hidden) = lines.note(&error, Instant::now()) {
                                tracing::warn!(namespace = name, error, hidden, "could not label a namespace");
                            }
                        }
                    }
                }
            }
            let next = postponed.next();
            tokio::select! {
                Some(change) = namespaces.next() => self.known.apply(change),
                Ok(()) = self.values.changed() => {}
                () = sleep_until(next.unwrap_or_else(Instant::now)), if next.is_some() => {}
            }
        }
    }

    async fn label(&self, name: &str, is_served: bool) -> Result<(), String> {
        // Without the label, the manager must own nothing: not even an empty map of labels.
        let labels = is_served.then(|| ("labels", json!({(self.label): "true"})));
        let metadata: Value = labels.into_iter().chain([("name", json!(name))]).collect();
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata});
        let params = PatchParams::apply(&self.manager);
        let Err(error) = ask(self.api.patch(name, &params, &Patch::Apply(namespace))).await else { return Ok(()) };
        match error.refusal() {
            // The namespace is gone. The apply would create it, but the controller has no right to do so.
            Some(Refusal::Absent | Refusal::ForGood(_)) if !is_served => Ok(()),
            _ => Err(error.to_string()),
        }
    }
}

// === impl Known ===

impl Known {
    fn new(label: &'static str) -> Self {
        Self { label, labelled: BTreeMap::new(), applied: BTreeMap::new(), is_listed: false }
    }

    fn apply(&mut self, change: Change) {
        match change {
            Change::Apply(object) if object.metadata.deletion_timestamp.is_none() => {
                let labels = object.metadata.labels.unwrap_or_default();
                let name = object.metadata.name.unwrap_or_default();
                let is_labelled = labels.contains_key(self.label);
                if !is_labelled {
                    self.applied.remove(&name);
                }
                self.labelled.insert(name, is_labelled);
            }
            Change::Apply(object) => self.remove(&object.metadata.name.unwrap_or_default()),
            Change::Remove(key, _) => self.remove(&key.name),
            Change::Lists => {}
            Change::Listed => self.is_listed = true,
        }
    }

    fn remove(&mut self, name: &str) {
        self.labelled.remove(name);
        self.applied.remove(name);
    }

    /// Returns the namespaces that need the label (`true`), and the namespaces from which the label can be removed
    /// (`false`). A namespace whose label has another owner needs the label, too: that owner may remove it later.
    fn updates(&self, served: &Served) -> Vec<(String, bool)> {
        let update = |(name, is_labelled): (&String, &bool)| {
            let is_served = served.names.contains(name);
            let is_meant = is_served || *is_labelled && served.is_complete;
            (is_meant && self.applied.get(name) != Some(&is_served)).then(|| (name.clone(), is_served))
        };
        // A namespace without the label comes first: the webhooks do not see its new machines.
        let (without, with): (Vec<_>, Vec<_>) = self.labelled.iter().partition(|(_, is_labelled)| !**is_labelled);
        without.into_iter().chain(with).filter_map(update).collect()
    }

    fn note(&mut self, name: &str, is_served: bool) {
        self.applied.insert(name.to_owned(), is_served);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn namespace(name: &str, labels: &[&str]) -> Change {
        let labels: BTreeMap<&str, &str> = labels.iter().map(|label| (*label, "true")).collect();
        Change::Apply(serde_json::from_value(json!({"metadata": {"name": name, "labels": labels}})).unwrap())
    }

    fn known(changes: impl IntoIterator<Item = Change>) -> Known {
        let mut known = Known::new(MACHINES_LABEL);
        changes.into_iter().for_each(|change| known.apply(change));
        known
    }

    fn served<const N: usize>(names: [&str; N]) -> Served {
        Served { names: names.map(str::to_owned).into(), is_complete: true }
    }

    #[test]
    fn a_namespace_of_a_pool_gets_the_label_once() {
        let mut known = known([namespace("a", &[]), namespace("b", &["other"]), namespace("c", &[MACHINES_LABEL])]);
        let served = served(["a", "c", "absent"]);
        // The label of the namespace `c` may belong to a controller of another scope.
        assert_eq!(known.updates(&served), [("a".to_owned(), true), ("c".to_owned(), true)]);
        known.note("a", true);
        known.note("c", true);
        known.apply(namespace("a", &[MACHINES_LABEL]));
        assert_eq!(known.updates(&served), []);
    }

    #[test]
    fn a_namespace_that_no_pool_serves_loses_the_label_unless_a_person_has_set_it() {
        let mut known = known([namespace("a", &[MACHINES_LABEL])]);
        assert_eq!(known.updates(&served([])), [("a".to_owned(), false)]);
        known.note("a", false);
        known.apply(namespace("a", &[MACHINES_LABEL]));
        assert_eq!(known.updates(&served([])), []);
        known.apply(namespace("a", &[]));
        known.apply(namespace("a", &[MACHINES_LABEL]));
        assert_eq!(known.updates(&served([])), [("a".to_owned(), false)]);
    }

    #[test]
    fn a_namespace_keeps_the_label_while_the_labels_of_namespaces_are_unknown() {
        let known = known([namespace("a", &[]), namespace("b", &[MACHINES_LABEL])]);
        let unknown = Served { is_complete: false, ..served(["a"]) };
        assert_eq!(known.updates(&unknown), [("a".to_owned(), true)]);
        assert_eq!(known.updates(&served(["a"])), [("a".to_owned(), true), ("b".to_owned(), false)]);
    }

    #[test]
    fn the_label_of_a_namespace_that_is_being_deleted_is_not_changed() {
        let mut known = known([namespace("a", &[])]);
        let deleted = json!({"metadata": {"name": "a", "deletionTimestamp": "2026-08-14T10:00:00Z"}});
        known.apply(Change::Apply(serde_json::from_value(deleted).unwrap()));
        assert_eq!(known.updates(&served(["a"])), []);
    }

    #[test]
    fn no_content_of_a_namespace_changes_the_label_of_another_namespace() {
        let valid = json!({
            "metadata": {"name": "hostile", "labels": {(MACHINES_LABEL): "true"}, "annotations": {"a": "b"}},
            "spec": {"finalizers": ["kubernetes"]}, "status": {"phase": "Active"},
        });
        let served = served(["honest", "hostile"]);
        // The namespace without the label comes first, because the webhooks do not see its new machines.
        let expected = [("honest".to_owned(), true), ("b".to_owned(), false)];
        crate::variants::each_object(&valid, |object| {
            let mut known = known([namespace("honest", &[]), namespace("b", &[MACHINES_LABEL])]);
            known.apply(Change::Apply(object));
            let mut updates = known.updates(&served);
            updates.retain(|(name, _)| name != "hostile");
            assert_eq!(updates, expected);
        });
    }
}
