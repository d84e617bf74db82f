//! Limits log lines about a repeated cause. The first line is written at once, then one line in a minute with the
//! number of suppressed lines. For example, if the controller loses a right, every pass of every name fails for the
//! same cause.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Time between two lines about a cause.
const PERIOD: Duration = Duration::from_secs(60);
/// Maximum number of causes that get a line of their own in a minute. All further causes count as one cause.
const CAUSES: usize = 1_000;

/// The causes that have a line: for each, the time of its last line and the number of occurrences since then.
#[derive(Debug, Default)]
pub(crate) struct Repeated(Mutex<BTreeMap<String, (Instant, u64)>>);

// === impl Repeated ===

impl Repeated {
    pub(crate) const fn new() -> Self {
        Self(Mutex::new(BTreeMap::new()))
    }

    /// Notes an error. If the error must get a line now, returns the number of suppressed occurrences since the last
    /// line. `None`: the error gets no line.
    ///
    /// Errors that differ only in quoted text, such as the name of an object, have the same cause.
    pub(crate) fn note(&self, error: &str, now: Instant) -> Option<u64> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_recent = |last: Instant| now.duration_since(last) < PERIOD;
        let mut cause = error.split('"').step_by(2).collect::<Vec<_>>().join("\"");
        if known.len() >= CAUSES && !known.contains_key(&cause) {
            known.retain(|_, (last, _)| is_recent(*last));
            if known.len() >= CAUSES {
                cause = String::new();
            }
        }
        match known.get_mut(&cause) {
            Some((last, hidden)) if is_recent(*last) => {
                *hidden += 1;
                None
            }
            Some(known) => Some(std::mem::replace(known, (now, 0)).1),
            None => {
                known.insert(cause, (now, 0));
                Some(0)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repeated_cause_has_one_line_a_minute_with_the_number_of_suppressed_lines() {
        let (repeated, now) = (Repeated::default(), Instant::now());
        let forbidden = |name: &str| format!("secrets \"{name}\" is forbidden: User \"u\" cannot create secrets");
        assert_eq!(repeated.note(&forbidden("a"), now), Some(0));
        assert_eq!(repeated.note(&forbidden("b"), now), None);
        assert_eq!(repeated.note("no answer of the API server", now), Some(0));
        assert_eq!(repeated.note(&forbidden("c"), now + PERIOD - Duration::from_secs(1)), None);
        assert_eq!(repeated.note(&forbidden("d"), now + PERIOD), Some(2));
        assert_eq!(repeated.note(&forbidden("e"), now + PERIOD), None);
    }

    #[test]
    fn the_number_of_lines_in_a_minute_is_limited() {
        let (repeated, now) = (Repeated::default(), Instant::now());
        let lines = |now| (0..3 * CAUSES).filter(|n| repeated.note(&n.to_string(), now).is_some()).count();
        // All further causes share one line.
        assert_eq!(lines(now), CAUSES + 1);
        assert_eq!(lines(now), 0);
        assert_eq!(lines(now + PERIOD), CAUSES + 1);
        assert_eq!(repeated.0.lock().unwrap().len(), CAUSES + 1);
    }
}
