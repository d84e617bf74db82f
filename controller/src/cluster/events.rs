//! Publishes events about objects. `kubectl describe` prints these events.
//!
//! A separate task publishes the events one after another, so no pass waits for an event. If an event cannot be
//! published, only the log reports the failure, with the reason and the note of the event.

use std::collections::HashMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::api::ApiResource;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::cluster::key::Key;
use crate::cluster::request::{Error, Refusal, ask};
use crate::repeated::Repeated;

/// Maximum number of events that wait to be published. Any further event is only logged.
const QUEUE: usize = 10_000;
/// Maximum number of recorders. When this number is reached, all recorders are dropped, and further events start new
/// series.
const RECORDERS: usize = 1_000;
/// Longest note of an event that an API server accepts, in bytes.
const MAX_NOTE: usize = 1024;

/// Publishes events in a separate task. The task ends after the last clone of this value is dropped and the waiting
/// events are published.
#[derive(Clone, Debug)]
pub struct Events(mpsc::Sender<(Event, ObjectReference)>, Arc<Repeated>);

// === impl Events ===

impl Events {
    /// Starts the task that publishes the events.
    ///
    /// # Panics
    ///
    /// Panics outside a tokio runtime.
    #[must_use]
    pub fn start(client: Client) -> Self {
        let (sender, mut queued) = mpsc::channel::<(Event, ObjectReference)>(QUEUE);
        let reporter = Reporter::from("glowplug-controller");
        let lines = Arc::<Repeated>::default();
        let of_task = Arc::clone(&lines);
        // A recorder combines all events of an object with the same reason within six minutes into one series, and the
        // series keeps the note of the first event. Therefore each note of an object has its own recorder.
        let mut recorders: HashMap<_, Recorder> = HashMap::new();
        tokio::spawn(async move {
            while let Some((event, object)) = queued.recv().await {
                if recorders.len() == RECORDERS {
                    recorders.clear();
                }
                let recorder = recorders
                    .entry((object.uid.clone(), event.note.clone()))
                    .or_insert_with(|| Recorder::new(client.clone(), reporter.clone()));
                match ask(recorder.publish(&event, &object)).await {
                    Ok(()) => {}
                    Err(error) if is_of_ending_namespace(&error) => {
                        let (reason, note) = (&event.reason, &event.note);
                        tracing::debug!(namespace = object.namespace, reason, note, %error, "published no event");
                    }
                    Err(error) => warn(&of_task, &event, &object, &error.to_string()),
                }
            }
        });
        Self(sender, lines)
    }

    /// Publishes an event about an object. Events with the same note within six minutes become one series. An event
    /// with another note is a new event. A note that is too long for the API server is truncated. Returns `false` if too
    /// many events wait, so that this event is only logged.
    pub fn publish(&self, object: ObjectReference, type_: EventType, reason: &str, note: &str) -> bool {
        let end = (0..=MAX_NOTE.min(note.len())).rev().find(|end| note.is_char_boundary(*end));
        let event = Event {
            type_,
            reason: reason.to_owned(),
            note: Some(note[..end.unwrap_or_default()].to_owned()),
            action: "Allocate".to_owned(),
            secondary: None,
        };
        let sent = self.0.try_send((event, object));
        if let Err(mpsc::error::TrySendError::Full((event, object))) = &sent {
            warn(&self.1, event, object, "too many events wait");
        }
        sent.is_ok()
    }
}

/// Returns a reference to an object, for an event. `namespace` is `None` for a cluster-scoped object.
pub(crate) fn reference(
    kind: &ApiResource,
    namespace: Option<String>,
    name: String,
    uid: Option<String>,
) -> ObjectReference {
    ObjectReference {
        api_version: Some(kind.api_version.clone()),
        kind: Some(kind.kind.clone()),
        namespace,
        name: Some(name),
        uid,
        ..ObjectReference::default()
    }
}

/// Whether the API server refused an event because the namespace of the event is being deleted or is gone.
fn is_of_ending_namespace(error: &Error) -> bool {
    match error.refusal() {
        Some(Refusal::Absent) => true,
        Some(Refusal::ForGood(status)) => {
            let causes = status.details.iter().flat_map(|details| &details.causes);
            status.code == 403 && causes.into_iter().any(|cause| cause.reason == "NamespaceTerminating")
        }
        _ => false,
    }
}

fn warn(lines: &Repeated, event: &Event, object: &ObjectReference, error: &str) {
    let Some(hidden) = lines.note(error, Instant::now()) else { return };
    let ObjectReference { kind, namespace, name, .. } = object.clone();
    let object = Key { namespace: namespace.unwrap_or_default(), name: name.unwrap_or_default() };
    tracing::warn!(kind, %object, event.reason, event.note, error, hidden, "could not publish an event");
}

#[cfg(test)]
mod tests {
    use kube::core::Status;
    use serde_json::json;

    use super::*;

    #[tokio::test]
    async fn the_caller_learns_that_too_many_events_wait() {
        // This test never waits, so the task that publishes does not run.
        let service = tower::service_fn(async |_: http::Request<kube::client::Body>| {
            Ok::<_, tower::BoxError>(http::Response::new(kube::client::Body::empty()))
        });
        let events = Events::start(Client::new(service, "n"));
        let publish = || events.publish(ObjectReference::default(), EventType::Normal, "Reason", "note");
        assert_eq!((0..=QUEUE).filter(|_| publish()).count(), QUEUE);
    }

    #[test]
    fn a_failed_event_in_a_namespace_that_is_being_deleted_causes_no_warning() {
        let is_quiet = |status: serde_json::Value| {
            let status: Status = serde_json::from_value(status).unwrap();
            is_of_ending_namespace(&Error::Request(kube::Error::Api(Box::new(status))))
        };
        let causes = json!([{"reason": "NamespaceTerminating", "message": "x", "field": "metadata.namespace"}]);
        let forbidden = |details| json!({"status": "Failure", "code": 403, "reason": "Forbidden", "message": "x", "details": details});
        assert!(is_quiet(forbidden(json!({"causes": causes}))));
        assert!(is_quiet(json!({
            "status": "Failure", "code": 404, "reason": "NotFound", "message": "x",
            "details": {"name": "n", "kind": "namespaces"},
        })));
        assert!(!is_quiet(forbidden(json!({}))), "a right is missing");
        assert!(!is_quiet(json!({"status": "Failure", "code": 500, "reason": "InternalError", "message": "x"})));
    }
}
