//! Pauses after failures. Each pause is twice as long as the pause before, up to a limit. So a failure that lasts, such
//! as a missing right, causes few requests.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

/// The pauses of one task after its failures.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BackOff {
    longest: Duration,
    next: Duration,
}

/// Names whose last attempt failed, with the time of their next attempt.
#[derive(Debug)]
pub(crate) struct Postponed<K> {
    pauses: BackOff,
    /// The pauses of each name, and the time of its next attempt.
    names: BTreeMap<K, (BackOff, Instant)>,
}

// === impl BackOff ===

impl BackOff {
    pub(crate) const fn new(first: Duration, longest: Duration) -> Self {
        Self { longest, next: first }
    }

    /// Returns the length of the pause after one more failure, and doubles the next pause.
    pub(crate) fn pause(&mut self) -> Duration {
        let pause = self.next;
        self.next = self.longest.min(pause * 2);
        pause
    }
}

// === impl Postponed ===

impl<K: Clone + Ord> Postponed<K> {
    pub(crate) const fn new(pauses: BackOff) -> Self {
        Self { pauses, names: BTreeMap::new() }
    }

    /// Whether `now` is late enough for the next attempt for a name.
    pub(crate) fn is_due(&self, name: &K, now: Instant) -> bool {
        self.names.get(name).is_none_or(|(_, at)| *at <= now)
    }

    /// Notes the result of an attempt.
    pub(crate) fn note(&mut self, name: &K, has_failed: bool, now: Instant) {
        if has_failed {
            let (pauses, at) = self.names.entry(name.clone()).or_insert((self.pauses, now));
            *at = now + pauses.pause();
        } else {
            self.names.remove(name);
        }
    }

    /// Forgets the names for which `is_there` is `false`.
    pub(crate) fn retain(&mut self, is_there: impl Fn(&K) -> bool) {
        self.names.retain(|name, _| is_there(name));
    }

    /// Time of the next attempt. `None`: no attempt is postponed.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.names.values().map(|(_, at)| *at).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn each_pause_is_twice_as_long_as_the_pause_before_up_to_a_limit() {
        let mut pauses = BackOff::new(SECOND, SECOND * 5);
        assert_eq!([(); 4].map(|()| pauses.pause()), [1, 2, 4, 5].map(|seconds| SECOND * seconds));
    }

    #[test]
    fn each_name_has_its_own_pauses() {
        let (mut postponed, now) = (Postponed::new(BackOff::new(SECOND, SECOND * 5)), Instant::now());
        postponed.note(&"a", true, now);
        postponed.note(&"a", true, now + SECOND);
        postponed.note(&"b", true, now);
        let due = |postponed: &Postponed<&'static str>, seconds: u32| {
            ["a", "b", "c"].map(|name| postponed.is_due(&name, now + SECOND * seconds))
        };
        assert_eq!(
            [0, 1, 3].map(|seconds| due(&postponed, seconds)),
            [[false, false, true], [false, true, true], [true, true, true]]
        );
        assert_eq!(postponed.next(), Some(now + SECOND));
        postponed.note(&"b", false, now);
        postponed.retain(|name| *name != "a");
        assert_eq!((due(&postponed, 0), postponed.next()), ([true; 3], None));
    }
}
