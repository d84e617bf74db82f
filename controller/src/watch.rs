//! Watches objects, and detects deleted objects, which a list does not report.

use std::collections::BTreeSet;

use futures::{Stream, StreamExt as _, stream};
use kube::api::DynamicObject;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, ResourceExt as _};

use crate::cluster_api::Key;

/// A change of the objects of one kind.
#[derive(Clone, Debug)]
pub enum Change {
    /// An object exists, in this version.
    Apply(DynamicObject),
    /// An object was deleted. This is its last version.
    Delete(DynamicObject),
    /// A list no longer has this object.
    Gone(Key),
    /// A list is complete.
    Listed,
}

/// Objects that are known to exist.
#[derive(Debug, Default)]
struct Known {
    keys: BTreeSet<Key>,
    /// Objects of the list that is being received. Empty between lists.
    listed: BTreeSet<Key>,
}

/// Watches the objects of `api`. After an error, a watch begins again with a list; errors are logged.
pub fn changes(api: Api<DynamicObject>) -> impl Stream<Item = Change> + Send {
    let events = watcher(api, watcher::Config::default()).default_backoff();
    let mut known = Known::default();
    let changes = events.map(move |event| match event {
        Ok(event) => known.learn(event),
        Err(error) => {
            tracing::warn!(%error, "could not watch");
            Vec::new()
        }
    });
    changes.flat_map(stream::iter)
}

// === impl Known ===

impl Known {
    fn learn(&mut self, event: Event<DynamicObject>) -> Vec<Change> {
        match event {
            Event::Init => {
                self.listed.clear();
                Vec::new()
            }
            Event::InitApply(object) => {
                self.listed.insert(key(&object));
                vec![Change::Apply(object)]
            }
            Event::InitDone => {
                let listed = std::mem::take(&mut self.listed);
                let before = std::mem::replace(&mut self.keys, listed);
                before.difference(&self.keys).cloned().map(Change::Gone).chain([Change::Listed]).collect()
            }
            Event::Apply(object) => {
                self.keys.insert(key(&object));
                vec![Change::Apply(object)]
            }
            Event::Delete(object) => {
                self.keys.remove(&key(&object));
                vec![Change::Delete(object)]
            }
        }
    }
}

fn key(object: &DynamicObject) -> Key {
    Key { namespace: object.namespace().unwrap_or_default(), name: object.name_any() }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(name: &str) -> DynamicObject {
        serde_json::from_value(json!({"metadata": {"namespace": "n", "name": name}})).unwrap()
    }

    fn told(known: &mut Known, events: Vec<Event<DynamicObject>>) -> Vec<String> {
        let tell = |change| match change {
            Change::Apply(object) => format!("apply {}", object.name_any()),
            Change::Delete(object) => format!("delete {}", object.name_any()),
            Change::Gone(key) => format!("gone {key}"),
            Change::Listed => "listed".to_owned(),
        };
        events.into_iter().flat_map(|event| known.learn(event)).map(tell).collect()
    }

    #[test]
    fn an_object_that_a_later_list_lacks_is_gone() {
        let mut known = Known::default();
        let first = vec![Event::Init, Event::InitApply(object("a")), Event::InitApply(object("b")), Event::InitDone];
        assert_eq!(told(&mut known, first), ["apply a", "apply b", "listed"]);
        let events = vec![Event::Apply(object("c")), Event::Apply(object("d")), Event::Delete(object("a"))];
        assert_eq!(told(&mut known, events), ["apply c", "apply d", "delete a"]);
        let second = vec![Event::Init, Event::InitApply(object("c")), Event::InitDone];
        assert_eq!(told(&mut known, second), ["apply c", "gone n/b", "gone n/d", "listed"]);
    }

    #[test]
    fn an_incomplete_list_does_not_prove_absence() {
        let mut known = Known::default();
        told(&mut known, vec![Event::Init, Event::InitApply(object("a")), Event::InitDone]);
        let broken = vec![Event::Init, Event::Init, Event::InitApply(object("a")), Event::InitDone];
        assert_eq!(told(&mut known, broken), ["apply a", "listed"]);
    }
}
