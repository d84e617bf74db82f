//! Lines of the log about a cause that repeats: the first line comes at once, and then one line a minute with the number of the
//! lines between them. A right that is lost makes every pass of every name fail for one cause.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

/// Time between two lines about a cause.
const PERIOD: Duration = Duration::from_secs(60);
/// Largest number of causes that are remembered. After more, each cause is a new one.
const CAUSES: usize = 1_000;

/// The causes that have a line, each with the time of its last line and the number of occurrences since.
#[derive(Debug, Default)]
pub(crate) struct Repeated(BTreeMap<String, (Instant, u64)>);

// === impl Repeated ===

impl Repeated {
    /// Notes an error. Returns the number of earlier occurrences without a line if the error must get a line now.
    ///
    /// Errors that differ only in quoted text, such as the name of an object, have one cause.
    pub(crate) fn note(&mut self, error: &str, now: Instant) -> Option<u64> {
        if self.0.len() == CAUSES {
            self.0.clear();
        }
        let cause = error.split('"').step_by(2).collect::<Vec<_>>().join("\"");
        match self.0.get_mut(&cause) {
            Some((last, hidden)) if now.duration_since(*last) < PERIOD => {
                *hidden += 1;
                None
            }
            Some(known) => Some(std::mem::replace(known, (now, 0)).1),
            None => {
                self.0.insert(cause, (now, 0));
                Some(0)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repeated_cause_has_one_line_a_minute_with_the_number_of_the_others() {
        let (mut repeated, now) = (Repeated::default(), Instant::now());
        let forbidden = |name: &str| format!("secrets \"{name}\" is forbidden: User \"u\" cannot create secrets");
        assert_eq!(repeated.note(&forbidden("a"), now), Some(0));
        assert_eq!(repeated.note(&forbidden("b"), now), None);
        assert_eq!(repeated.note("no answer of the API server", now), Some(0));
        assert_eq!(repeated.note(&forbidden("c"), now + PERIOD - Duration::from_secs(1)), None);
        assert_eq!(repeated.note(&forbidden("d"), now + PERIOD), Some(2));
        assert_eq!(repeated.note(&forbidden("e"), now + PERIOD), None);
    }

    #[test]
    fn the_number_of_remembered_causes_is_limited() {
        let (mut repeated, now) = (Repeated::default(), Instant::now());
        let lines = (0..3 * CAUSES).filter(|n| repeated.note(&n.to_string(), now).is_some()).count();
        assert_eq!(lines, 3 * CAUSES);
        assert!(repeated.0.len() <= CAUSES);
    }
}
