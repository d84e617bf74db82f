//! Reads events of the controller about a machine.

use serde::Serialize;
use serde_json::Value;

use crate::cluster::conditions::head;
use crate::cluster::object::Object;

/// An event that the controller published about a machine.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd, Serialize)]
pub struct Event {
    /// Time at which the event last occurred, as RFC 3339. Empty: unknown.
    pub time: String,
    /// Reason of the event. Example: `IPPoolExhausted`.
    pub reason: String,
    /// Message of the event.
    pub message: String,
}

// === impl Event ===

impl Event {
    /// Whether the event is older than an object that was created at `created`, a time as RFC 3339. Compares whole
    /// seconds, because creation times have no fraction.
    pub(super) fn is_before(&self, created: Option<&str>) -> bool {
        const SECONDS: usize = "2026-08-14T10:00:00".len();
        created.is_some_and(|created| self.time.get(..SECONDS) < created.get(..SECONDS))
    }

    /// Reads an event about the machine with this UID. `None`: another program wrote the event, or the event is about an
    /// earlier machine of the same name.
    #[must_use]
    pub fn of_controller(event: &Object, uid: Option<&str>) -> Option<Self> {
        const REPORTER: &str = "glowplug-controller";
        let data = &event.data;
        if data["reportingComponent"] != REPORTER && data["source"]["component"] != REPORTER {
            return None;
        }
        if data["involvedObject"]["uid"].as_str().is_some_and(|of| Some(of) != uid) {
            return None;
        }
        // Other programs can publish events under the name of the controller, with any text.
        let text = |value: &Value| value.as_str().map(|text| head(text).to_owned());
        let times = [&data["series"]["lastObservedTime"], &data["lastTimestamp"], &data["eventTime"]];
        Some(Self {
            time: times.into_iter().find_map(text).unwrap_or_default(),
            reason: text(&data["reason"]).unwrap_or_default(),
            message: text(&data["message"]).unwrap_or_default(),
        })
    }
}
