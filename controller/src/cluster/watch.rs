//! Watches objects. Also detects deleted objects, which a list does not report.
//!
//! A list is a consistent read: it has every object that was stored before the request. An older list, such as one from
//! a watch cache of the API server, may lack the newest record. At the start, a leader adopts the records of the listed
//! objects before it allocates any address. If a list lacked a record, and the lease of this record was lost too,
//! another machine could get the address.

use std::collections::BTreeSet;

use futures::{Stream, StreamExt as _, future, stream};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, ResourceExt as _};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::cluster::key::Key;
use crate::cluster::newest::Progress;
use crate::cluster::object::{Object, version_of};
use crate::cluster::request::{Reason, describe, one_line};
use crate::repeated::Repeated;

/// Limits the log lines about failed watches. All watches share this limit, because several parts watch the same kind.
static LINES: Repeated = Repeated::new();

/// Maximum number of changes that wait until the receiver takes them.
const QUEUE: usize = 1024;

/// A change of the objects of one kind.
#[derive(Clone, Debug)]
#[allow(clippy::large_enum_variant, reason = "nearly every change is the large variant")]
pub enum Change {
    /// An object exists in this version.
    Apply(Object),
    /// The object of this name no longer exists. The number is its last version. `None`: the object is missing from a
    /// list.
    Remove(Key, Option<u64>),
    /// A list begins.
    Lists,
    /// A list is complete.
    Listed,
}

/// Objects that are known to exist.
#[derive(Debug, Default)]
pub(crate) struct Known {
    keys: BTreeSet<Key>,
    /// Objects of the list that is being received. Empty between lists.
    listed: BTreeSet<Key>,
}

/// Watches the objects of `api`. Logs errors. After an error, the watch begins again with a list.
///
/// The watch runs in a task of its own, so that the lists of several kinds are read at the same time. The task ends
/// when the stream is dropped.
pub fn changes(api: Api<Object>) -> impl Stream<Item = Change> + Send + Unpin {
    changes_of(api, watcher::Config::default())
}

/// Watches the objects of `api` that `config` selects, like [`changes`].
pub fn changes_of(api: Api<Object>, config: watcher::Config) -> impl Stream<Item = Change> + Send + Unpin {
    let (sender, receiver) = mpsc::channel(QUEUE);
    let mut task = JoinSet::new();
    task.spawn(async move {
        let mut events = Box::pin(events(api, config));
        let mut known = Known::default();
        while let Some(event) = events.next().await {
            for change in known.changes(event) {
                if sender.send(change).await.is_err() {
                    return;
                }
            }
        }
    });
    Box::pin(stream::unfold((receiver, task), |(mut receiver, task)| async move {
        let change = receiver.recv().await?;
        Some((change, (receiver, task)))
    }))
}

/// Watches the objects of `api` that `config` selects, without a task of its own. Logs errors. After an error, the
/// watch begins again with a list.
pub(crate) fn events(api: Api<Object>, config: watcher::Config) -> impl Stream<Item = Event<Object>> + Send {
    let path = api.resource_url().to_owned();
    watcher(api, config).default_backoff().filter_map(move |event| {
        let event = event.map_err(|error| {
            let error = reason(&error);
            if let Some(hidden) = LINES.note(&format!("{path} {error}"), Instant::now()) {
                tracing::warn!(error, hidden, path, "could not watch");
            }
        });
        future::ready(event.ok())
    })
}

/// Returns why a watch failed, as one short line.
fn reason(error: &watcher::Error) -> String {
    match error {
        watcher::Error::InitialListFailed(error) => format!("list: {}", Reason(error)),
        watcher::Error::WatchStartFailed(error) | watcher::Error::WatchFailed(error) => {
            format!("watch: {}", Reason(error))
        }
        watcher::Error::WatchError(status) => format!("watch: {}", one_line(&describe(status))),
        watcher::Error::NoResourceVersion => "watch: an object without metadata.resourceVersion".to_owned(),
    }
}

// === impl Change ===

impl Change {
    /// Stores the change in an index. Also removes the objects whose versions the watch has passed without a report:
    /// see [`Newest::follow`](crate::cluster::newest::Newest::follow). Returns the names whose decision may have
    /// changed.
    pub(crate) fn note_in<I>(
        self,
        index: &mut I,
        apply: impl FnOnce(&mut I, Object) -> BTreeSet<Key>,
        remove: impl Fn(&mut I, &Key, Option<u64>) -> BTreeSet<Key>,
        follow: impl FnOnce(&mut I, &Progress<Key>) -> Vec<Key>,
    ) -> BTreeSet<Key> {
        let progress = self.progress();
        let mut names = match self {
            Self::Apply(object) => apply(index, object),
            Self::Remove(key, version) => remove(index, &key, version),
            Self::Lists | Self::Listed => BTreeSet::new(),
        };
        for key in progress.map(|progress| follow(index, &progress)).unwrap_or_default() {
            names.extend(remove(index, &key, None));
        }
        names
    }

    /// Returns how far the watch has come, as this change shows it. `None`: the change does not show it.
    pub(crate) fn progress(&self) -> Option<Progress<Key>> {
        match self {
            Self::Apply(object) => Some(Progress::Reported(key(object), version_of(&object.metadata))),
            Self::Remove(key, version) => version.map(|version| Progress::Reported(key.clone(), version)),
            Self::Lists => Some(Progress::Lists),
            Self::Listed => Some(Progress::Listed),
        }
    }
}

// === impl Known ===

impl Known {
    /// Converts an event of a watch to changes. If a complete list lacks a known object, the object is gone.
    pub(crate) fn changes(&mut self, event: Event<Object>) -> Vec<Change> {
        match event {
            Event::Init => {
                self.listed.clear();
                vec![Change::Lists]
            }
            Event::InitApply(object) => {
                self.listed.insert(key(&object));
                vec![Change::Apply(object)]
            }
            Event::InitDone => {
                let listed = std::mem::take(&mut self.listed);
                let before = std::mem::replace(&mut self.keys, listed);
                let gone = before.difference(&self.keys).cloned();
                gone.map(|key| Change::Remove(key, None)).chain([Change::Listed]).collect()
            }
            Event::Apply(object) => {
                self.keys.insert(key(&object));
                vec![Change::Apply(object)]
            }
            Event::Delete(object) => {
                let key = key(&object);
                self.keys.remove(&key);
                vec![Change::Remove(key, Some(version_of(&object.metadata)))]
            }
        }
    }
}

fn key(object: &Object) -> Key {
    Key { namespace: object.namespace().unwrap_or_default(), name: object.name_any() }
}

#[cfg(test)]
mod tests {
    use kube::core::Status;
    use serde_json::json;

    use super::*;

    fn object(name: &str) -> Object {
        serde_json::from_value(json!({"metadata": {"namespace": "n", "name": name, "resourceVersion": "7"}})).unwrap()
    }

    fn changes(known: &mut Known, events: Vec<Event<Object>>) -> Vec<String> {
        let text = |change| match change {
            Change::Apply(object) => format!("apply {}", object.name_any()),
            Change::Remove(key, Some(version)) => format!("remove {key} of version {version}"),
            Change::Remove(key, None) => format!("remove {key}"),
            Change::Lists => "lists".to_owned(),
            Change::Listed => "listed".to_owned(),
        };
        events.into_iter().flat_map(|event| known.changes(event)).map(text).collect()
    }

    #[test]
    fn an_object_that_a_later_list_lacks_is_gone() {
        let mut known = Known::default();
        let first = vec![Event::Init, Event::InitApply(object("a")), Event::InitApply(object("b")), Event::InitDone];
        assert_eq!(changes(&mut known, first), ["lists", "apply a", "apply b", "listed"]);
        let events = vec![Event::Apply(object("c")), Event::Apply(object("d")), Event::Delete(object("a"))];
        assert_eq!(changes(&mut known, events), ["apply c", "apply d", "remove n/a of version 7"]);
        let second = vec![Event::Init, Event::InitApply(object("c")), Event::InitDone];
        assert_eq!(changes(&mut known, second), ["lists", "apply c", "remove n/b", "remove n/d", "listed"]);
    }

    #[test]
    fn an_error_of_a_watch_is_one_line_with_the_answer_of_the_api_server() {
        let (reason_of, message) = ("TooManyRequests".to_owned(), "storage is\n(re)initializing".to_owned());
        let status = || {
            let status = Status { code: 429, reason: reason_of.clone(), message: message.clone(), ..Status::default() };
            Box::new(status)
        };
        let answer = r"the API server answered 429 TooManyRequests: storage is\n(re)initializing";
        let errors = [
            watcher::Error::InitialListFailed(kube::Error::Api(status())),
            watcher::Error::WatchStartFailed(kube::Error::Api(status())),
            watcher::Error::WatchFailed(kube::Error::Api(status())),
            watcher::Error::WatchError(status()),
        ];
        let expected = ["list", "watch", "watch", "watch"].map(|what| format!("{what}: {answer}"));
        assert_eq!(errors.map(|error| reason(&error)), expected);
    }

    #[test]
    fn an_object_that_an_incomplete_list_lacks_is_not_removed() {
        let mut known = Known::default();
        changes(&mut known, vec![Event::Init, Event::InitApply(object("a")), Event::InitDone]);
        let broken = vec![Event::Init, Event::Init, Event::InitApply(object("a")), Event::InitDone];
        assert_eq!(changes(&mut known, broken), ["lists", "lists", "apply a", "listed"]);
    }
}
