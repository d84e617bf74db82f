//! Queue of the names that need a pass, with the time of each pass. Pure: the caller passes the time.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;

use crate::cluster::key::Key;

/// Pause after the first unfinished pass of a name. The pause doubles with each further one.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// Longest pause after an unfinished pass.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// The same pauses for a name that waits for a change which is reported in most cases.
const FIRST_WAIT: Duration = Duration::from_secs(2);
const LONGEST_WAIT: Duration = Duration::from_secs(300);

/// How a pass has ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum End {
    Well,
    /// The name needs another pass after a pause, or earlier if something changes.
    Later,
    /// The same after a longer pause: most changes that the name waits for are reported.
    Waits,
    /// The name needs another pass after a pause.
    Failed,
}

/// Names that wait for a pass. At most one pass for each name is running.
///
/// The namespaces take turns: the next pass is for the namespace with the fewest running passes. So many
/// changes in one namespace do not delay the names of another namespace until all of them are done.
#[derive(Debug, Default)]
pub(super) struct Queue {
    /// The waiting names of each namespace, in the order of their times.
    due: BTreeMap<String, BTreeSet<(Instant, Key)>>,
    times: BTreeMap<Key, Instant>,
    /// Names with a running pass, each with the time of its next pass.
    under_way: BTreeMap<Key, Option<Instant>>,
    /// Number of running passes of each namespace.
    running: BTreeMap<String, usize>,
    /// The unfinished passes of each name since its last finished one.
    unfinished: BTreeMap<Key, Unfinished>,
}

/// Numbers of unfinished passes.
#[derive(Clone, Copy, Debug, Default)]
struct Unfinished {
    /// Those since the name last waited.
    failed: u32,
    waits: u32,
}

// === impl Queue ===

impl Queue {
    /// Requests a pass at `at`, unless an earlier one is requested.
    pub(super) fn add(&mut self, key: Key, at: Instant) {
        if let Some(again) = self.under_way.get_mut(&key) {
            *again = Some(again.map_or(at, |again| again.min(at)));
            return;
        }
        if let Some(known) = self.times.get(&key).copied() {
            if known <= at {
                return;
            }
            self.remove(known, &key);
        }
        self.times.insert(key.clone(), at);
        self.due.entry(key.namespace.clone()).or_default().insert((at, key));
    }

    /// Removes and returns the next name that is due, and marks its pass as running.
    pub(super) fn next(&mut self, now: Instant) -> Option<Key> {
        let first = self.due.values().filter_map(BTreeSet::first).filter(|(at, _)| *at <= now);
        let running = |key: &Key| self.running.get(&key.namespace).copied().unwrap_or_default();
        let (at, key) = first.min_by_key(|(at, key)| (running(key), *at)).cloned()?;
        self.remove(at, &key);
        self.times.remove(&key);
        self.under_way.insert(key.clone(), None);
        *self.running.entry(key.namespace.clone()).or_default() += 1;
        Some(key)
    }

    fn remove(&mut self, at: Instant, key: &Key) {
        if let Some(names) = self.due.get_mut(&key.namespace) {
            names.remove(&(at, key.clone()));
            if names.is_empty() {
                self.due.remove(&key.namespace);
            }
        }
    }

    /// Time at which the next name is due. `None` when no name waits.
    pub(super) fn next_time(&self) -> Option<Instant> {
        self.due.values().filter_map(BTreeSet::first).map(|(at, _)| *at).min()
    }

    /// Records that the pass for a name has ended.
    pub(super) fn end(&mut self, key: &Key, end: End, now: Instant) {
        let again = self.under_way.remove(key).flatten();
        if let Some(running) = self.running.get_mut(&key.namespace) {
            *running = running.saturating_sub(1);
            if *running == 0 {
                self.running.remove(&key.namespace);
            }
        }
        if let Some(at) = again.filter(|_| end != End::Failed) {
            self.add(key.clone(), at);
        }
        if end == End::Well {
            self.unfinished.remove(key);
            return;
        }
        let unfinished = self.unfinished.entry(key.clone()).or_default();
        let (first, longest, number) = match end {
            End::Waits => {
                unfinished.failed = 0;
                (FIRST_WAIT, LONGEST_WAIT, &mut unfinished.waits)
            }
            End::Well | End::Later | End::Failed => (FIRST_PAUSE, LONGEST_PAUSE, &mut unfinished.failed),
        };
        let pause = first.saturating_mul(1 << (*number).min(16)).min(longest);
        *number = number.saturating_add(1);
        self.add(key.clone(), now + pause);
    }

    /// Number of names whose pass is due. The caller needs it only while passes run for all places.
    pub(super) fn due(&self, now: Instant) -> usize {
        self.due.values().map(|names| names.iter().take_while(|(at, _)| *at <= now).count()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> Key {
        Key { namespace: "n".to_owned(), name: name.to_owned() }
    }

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn names_come_at_their_time_and_in_its_order() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        queue.add(key("late"), now + SECOND);
        queue.add(key("b"), now);
        queue.add(key("a"), now);
        assert_eq!([(); 3].map(|()| queue.next(now)), [Some(key("a")), Some(key("b")), None]);
        assert_eq!((queue.next_time(), queue.next(now + SECOND)), (Some(now + SECOND), Some(key("late"))));
        assert_eq!(queue.next_time(), None);
    }

    #[test]
    fn namespaces_take_turns() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        ["a", "b", "c"].iter().for_each(|name| queue.add(key(name), now));
        let other = |name: &str| Key { namespace: "other".to_owned(), name: name.to_owned() };
        assert_eq!([(); 2].map(|()| queue.next(now)), [Some(key("a")), Some(key("b"))]);
        ["x", "y", "z"].iter().for_each(|name| queue.add(other(name), now + SECOND));
        assert_eq!(queue.next(now), Some(key("c")));
        let later = now + SECOND;
        queue.add(key("d"), now);
        assert_eq!([(); 2].map(|()| queue.next(later)), [Some(other("x")), Some(other("y"))]);
        queue.end(&other("x"), End::Well, later);
        assert_eq!([(); 3].map(|()| queue.next(later)), [Some(other("z")), Some(key("d")), None]);
    }

    #[test]
    fn the_earliest_time_of_a_name_counts() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        for at in [now + SECOND * 2, now + SECOND, now + SECOND * 3] {
            queue.add(key("a"), at);
        }
        assert_eq!((queue.next_time(), queue.next(now + SECOND)), (Some(now + SECOND), Some(key("a"))));
        assert_eq!(queue.next(now + SECOND * 9), None);
    }

    #[test]
    fn a_name_has_one_pass_at_a_time() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        queue.add(key("a"), now);
        assert_eq!(queue.next(now), Some(key("a")));
        queue.add(key("a"), now);
        assert_eq!(queue.next(now), None);
        queue.end(&key("a"), End::Well, now);
        assert_eq!(queue.next(now), Some(key("a")));
        queue.end(&key("a"), End::Well, now);
        assert_eq!(queue.next(now), None);
    }

    #[test]
    fn an_unfinished_pass_is_repeated_after_a_pause_that_doubles() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        queue.add(key("a"), now);
        for (pause, end) in [(50, End::Failed), (100, End::Later), (200, End::Later), (400, End::Failed)] {
            assert_eq!(queue.next(now + LONGEST_PAUSE), Some(key("a")));
            queue.end(&key("a"), end, now);
            assert_eq!(queue.next_time(), Some(now + Duration::from_millis(pause)));
        }
        for _ in 0..40 {
            queue.next(now + LONGEST_PAUSE);
            queue.end(&key("a"), End::Failed, now);
        }
        assert_eq!(queue.next_time(), Some(now + LONGEST_PAUSE));
        queue.next(now + LONGEST_PAUSE);
        queue.end(&key("a"), End::Well, now);
        queue.add(key("a"), now);
        queue.next(now);
        queue.end(&key("a"), End::Failed, now);
        assert_eq!(queue.next_time(), Some(now + FIRST_PAUSE));
    }

    #[test]
    fn a_name_that_waits_gets_a_pass_after_a_change_and_after_pauses_up_to_five_minutes() {
        let (mut queue, mut now) = (Queue::default(), Instant::now());
        queue.add(key("a"), now);
        for pause in [2, 4, 8, 16, 32, 64, 128, 256, 300, 300] {
            assert_eq!(queue.next(now), Some(key("a")));
            queue.end(&key("a"), End::Waits, now);
            assert_eq!(queue.next_time(), Some(now + SECOND * pause));
            now += SECOND * pause;
        }
        queue.next(now);
        queue.end(&key("a"), End::Waits, now);
        queue.add(key("a"), now);
        assert_eq!(queue.next(now), Some(key("a")));
        queue.end(&key("a"), End::Failed, now);
        assert_eq!(queue.next_time(), Some(now + FIRST_PAUSE));
    }

    #[test]
    fn the_depth_is_the_number_of_names_that_are_due() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        let other = Key { namespace: "other".to_owned(), name: "x".to_owned() };
        for (key, at) in [(key("a"), now), (key("b"), now), (key("late"), now + SECOND), (other, now)] {
            queue.add(key, at);
        }
        queue.next(now);
        assert_eq!([now, now + SECOND].map(|now| queue.due(now)), [2, 3]);
    }

    #[test]
    fn what_changes_during_a_pass_shortens_the_pause_only_if_the_pass_does_not_fail() {
        for (end, expected) in [
            (End::Failed, FIRST_PAUSE),
            (End::Later, Duration::ZERO),
            (End::Waits, Duration::ZERO),
            (End::Well, Duration::ZERO),
        ] {
            let (mut queue, now) = (Queue::default(), Instant::now());
            queue.add(key("a"), now);
            queue.next(now);
            queue.add(key("a"), now);
            queue.end(&key("a"), end, now);
            assert_eq!(queue.next_time(), Some(now + expected), "{end:?}");
        }
    }
}
