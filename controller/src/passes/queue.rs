//! Queue of the names that need a pass, with the time of each pass. Pure: the caller passes the time.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;

use crate::cluster::key::Key;

/// Pause after the first pass of a name that does not end with [`End::Well`]. The pause doubles with each further
/// pass of this kind.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// Longest pause after an unfinished pass.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// First and longest pause of a name that waits, see [`End::Waits`]. These pauses are longer, because most changes are
/// reported.
const FIRST_WAIT: Duration = Duration::from_secs(2);
const LONGEST_WAIT: Duration = Duration::from_secs(300);
/// Maximum number of passes of [`Turn::Later`] that run at the same time, so that the API server has time for the other
/// passes.
const LATER_PASSES: usize = 16;

/// How a pass has ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum End {
    Well,
    /// The name needs another pass after a pause, or earlier if something changes.
    Later,
    /// Like [`End::Later`], but after a longer pause: most changes for which the name waits are reported.
    Waits,
    /// The pass has failed. The name needs another pass after a pause, which a change during the failed pass does not
    /// shorten.
    Failed,
}

/// Turn of a name among the names of its namespace. Names with [`Turn::First`] get their passes first.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) enum Turn {
    /// A machine or a claim may wait for this pass.
    First,
    /// The pass only compares and repairs the objects of a machine or claim that is served already.
    Later,
}

/// Names that wait for a pass. At most one pass for each name is running.
///
/// The namespaces take turns: the next pass is for the namespace with the fewest running passes. So the names of other
/// namespaces need not wait until all changes of a busy namespace are done. In each namespace, the names of
/// [`Turn::First`] come first.
#[derive(Debug, Default)]
pub(super) struct Queue {
    /// The waiting names of each namespace and turn, in the order of their times.
    due: BTreeMap<(String, Turn), BTreeSet<(Instant, Key)>>,
    times: BTreeMap<Key, (Instant, Turn)>,
    /// Names with a running pass. The value is the turn of this pass, with the time and turn of the requested next
    /// pass, if any.
    under_way: BTreeMap<Key, (Turn, Option<(Instant, Turn)>)>,
    /// Number of running passes of each namespace.
    running: BTreeMap<String, usize>,
    /// Number of running passes of [`Turn::Later`].
    running_later: usize,
    /// Numbers of unfinished passes of each name since its last pass that ended with [`End::Well`].
    unfinished: BTreeMap<Key, Unfinished>,
}

/// Counts of the unfinished passes of one name since its last pass that ended with [`End::Well`].
#[derive(Clone, Copy, Debug, Default)]
struct Unfinished {
    /// Passes that ended with [`End::Failed`] or [`End::Later`], since the last end with [`End::Waits`].
    failed: u32,
    /// Passes that ended with [`End::Waits`].
    waits: u32,
}

// === impl Queue ===

impl Queue {
    /// Requests a pass for a name at `at`, unless an earlier pass is requested already.
    pub(super) fn add(&mut self, key: Key, at: Instant, turn: Turn) {
        let earliest = |(known_at, known_turn): (Instant, Turn)| (at.min(known_at), turn.min(known_turn));
        if let Some((_, again)) = self.under_way.get_mut(&key) {
            *again = Some(again.map_or((at, turn), earliest));
            return;
        }
        let known = self.times.get(&key).copied();
        let (at, turn) = known.map_or((at, turn), earliest);
        if let Some(known) = known {
            self.remove(known, &key);
        }
        self.times.insert(key.clone(), (at, turn));
        self.due.entry((key.namespace.clone(), turn)).or_default().insert((at, key));
    }

    /// Removes and returns the next name that is due, and marks its pass as running.
    pub(super) fn next(&mut self, now: Instant) -> Option<Key> {
        let running = |key: &Key| self.running.get(&key.namespace).copied().unwrap_or_default();
        let due = self.open().filter(|(_, (at, _))| *at <= now);
        let (turn, (at, key)) = due.min_by_key(|(turn, (at, key))| (running(key), *turn, *at))?;
        let (at, key) = (*at, key.clone());
        self.remove((at, turn), &key);
        self.times.remove(&key);
        self.under_way.insert(key.clone(), (turn, None));
        *self.running.entry(key.namespace.clone()).or_default() += 1;
        self.running_later += usize::from(turn == Turn::Later);
        Some(key)
    }

    /// Returns the first waiting name of each namespace and turn, if passes of this turn may begin.
    fn open(&self) -> impl Iterator<Item = (Turn, &(Instant, Key))> {
        let is_full = self.running_later >= LATER_PASSES;
        let open = self.due.iter().filter(move |((_, turn), _)| *turn == Turn::First || !is_full);
        open.filter_map(|((_, turn), names)| Some((*turn, names.first()?)))
    }

    fn remove(&mut self, (at, turn): (Instant, Turn), key: &Key) {
        let of = (key.namespace.clone(), turn);
        if let Some(names) = self.due.get_mut(&of) {
            names.remove(&(at, key.clone()));
            if names.is_empty() {
                self.due.remove(&of);
            }
        }
    }

    /// Returns the time at which the next pass may begin. `None`: no name waits, or each waiting name must wait for the
    /// end of another pass.
    pub(super) fn next_time(&self) -> Option<Instant> {
        self.open().map(|(_, (at, _))| *at).min()
    }

    /// Records that the pass for a name has ended. `turn` is the turn of a pass that follows because of this end.
    pub(super) fn end(&mut self, key: &Key, end: End, now: Instant, turn: Turn) {
        let under_way = self.under_way.remove(key);
        self.running_later -= usize::from(under_way.is_some_and(|(turn, _)| turn == Turn::Later));
        let again = under_way.and_then(|(_, again)| again);
        if let Some(running) = self.running.get_mut(&key.namespace) {
            *running = running.saturating_sub(1);
            if *running == 0 {
                self.running.remove(&key.namespace);
            }
        }
        if let Some((at, turn)) = again.filter(|_| end != End::Failed) {
            self.add(key.clone(), at, turn);
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
        self.add(key.clone(), now + pause, turn);
    }

    /// Returns the number of names whose pass is due and not running.
    pub(super) fn due(&self, now: Instant) -> usize {
        self.due.values().map(|names| names.iter().take_while(|(at, _)| *at <= now).count()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::key::key;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn names_become_due_at_their_times_and_in_the_order_of_these_times() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        queue.add(key("late"), now + SECOND, Turn::First);
        queue.add(key("b"), now, Turn::First);
        queue.add(key("a"), now, Turn::First);
        assert_eq!([(); 3].map(|()| queue.next(now)), [Some(key("a")), Some(key("b")), None]);
        assert_eq!((queue.next_time(), queue.next(now + SECOND)), (Some(now + SECOND), Some(key("late"))));
        assert_eq!(queue.next_time(), None);
    }

    #[test]
    fn namespaces_take_turns() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        ["a", "b", "c"].iter().for_each(|name| queue.add(key(name), now, Turn::First));
        let other = |name: &str| Key { namespace: "other".to_owned(), name: name.to_owned() };
        assert_eq!([(); 2].map(|()| queue.next(now)), [Some(key("a")), Some(key("b"))]);
        ["x", "y", "z"].iter().for_each(|name| queue.add(other(name), now + SECOND, Turn::First));
        assert_eq!(queue.next(now), Some(key("c")));
        let later = now + SECOND;
        queue.add(key("d"), now, Turn::First);
        assert_eq!([(); 2].map(|()| queue.next(later)), [Some(other("x")), Some(other("y"))]);
        queue.end(&other("x"), End::Well, later, Turn::First);
        assert_eq!([(); 3].map(|()| queue.next(later)), [Some(other("z")), Some(key("d")), None]);
    }

    #[test]
    fn a_name_is_due_at_the_earliest_of_its_requested_times() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        for at in [now + SECOND * 2, now + SECOND, now + SECOND * 3] {
            queue.add(key("a"), at, Turn::First);
        }
        assert_eq!((queue.next_time(), queue.next(now + SECOND)), (Some(now + SECOND), Some(key("a"))));
        assert_eq!(queue.next(now + SECOND * 9), None);
    }

    #[test]
    fn a_name_has_one_pass_at_a_time() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        queue.add(key("a"), now, Turn::First);
        assert_eq!(queue.next(now), Some(key("a")));
        queue.add(key("a"), now, Turn::First);
        assert_eq!(queue.next(now), None);
        queue.end(&key("a"), End::Well, now, Turn::First);
        assert_eq!(queue.next(now), Some(key("a")));
        queue.end(&key("a"), End::Well, now, Turn::First);
        assert_eq!(queue.next(now), None);
    }

    #[test]
    fn an_unfinished_pass_is_repeated_after_a_pause_that_doubles() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        queue.add(key("a"), now, Turn::First);
        for (pause, end) in [(50, End::Failed), (100, End::Later), (200, End::Later), (400, End::Failed)] {
            assert_eq!(queue.next(now + LONGEST_PAUSE), Some(key("a")));
            queue.end(&key("a"), end, now, Turn::First);
            assert_eq!(queue.next_time(), Some(now + Duration::from_millis(pause)));
        }
        for _ in 0..40 {
            queue.next(now + LONGEST_PAUSE);
            queue.end(&key("a"), End::Failed, now, Turn::First);
        }
        assert_eq!(queue.next_time(), Some(now + LONGEST_PAUSE));
        queue.next(now + LONGEST_PAUSE);
        queue.end(&key("a"), End::Well, now, Turn::First);
        queue.add(key("a"), now, Turn::First);
        queue.next(now);
        queue.end(&key("a"), End::Failed, now, Turn::First);
        assert_eq!(queue.next_time(), Some(now + FIRST_PAUSE));
    }

    #[test]
    fn a_name_that_waits_gets_a_pass_after_a_change_and_after_pauses_up_to_five_minutes() {
        let (mut queue, mut now) = (Queue::default(), Instant::now());
        queue.add(key("a"), now, Turn::First);
        for pause in [2, 4, 8, 16, 32, 64, 128, 256, 300, 300] {
            assert_eq!(queue.next(now), Some(key("a")));
            queue.end(&key("a"), End::Waits, now, Turn::First);
            assert_eq!(queue.next_time(), Some(now + SECOND * pause));
            now += SECOND * pause;
        }
        queue.next(now);
        queue.end(&key("a"), End::Waits, now, Turn::First);
        queue.add(key("a"), now, Turn::First);
        assert_eq!(queue.next(now), Some(key("a")));
        queue.end(&key("a"), End::Failed, now, Turn::First);
        assert_eq!(queue.next_time(), Some(now + FIRST_PAUSE));
    }

    #[test]
    fn the_depth_is_the_number_of_names_that_are_due() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        let other = Key { namespace: "other".to_owned(), name: "x".to_owned() };
        for (key, at) in [(key("a"), now), (key("b"), now), (key("late"), now + SECOND), (other, now)] {
            queue.add(key, at, Turn::First);
        }
        queue.next(now);
        assert_eq!([now, now + SECOND].map(|now| queue.due(now)), [2, 3]);
    }

    #[test]
    fn a_change_during_a_pass_shortens_the_next_pause_unless_the_pass_fails() {
        for (end, expected) in [
            (End::Failed, FIRST_PAUSE),
            (End::Later, Duration::ZERO),
            (End::Waits, Duration::ZERO),
            (End::Well, Duration::ZERO),
        ] {
            let (mut queue, now) = (Queue::default(), Instant::now());
            queue.add(key("a"), now, Turn::First);
            queue.next(now);
            queue.add(key("a"), now, Turn::First);
            queue.end(&key("a"), end, now, Turn::First);
            assert_eq!(queue.next_time(), Some(now + expected), "{end:?}");
        }
    }

    #[test]
    fn a_name_for_which_a_machine_waits_comes_before_names_that_are_only_compared() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        let other = Key { namespace: "other".to_owned(), name: "x".to_owned() };
        for (key, turn) in [(key("a"), Turn::Later), (key("b"), Turn::Later), (other.clone(), Turn::Later)] {
            queue.add(key, now, turn);
        }
        queue.add(key("new"), now + SECOND, Turn::First);
        assert_eq!(queue.next(now + SECOND), Some(key("new")));
        // The namespaces still take turns.
        queue.add(key("newer"), now, Turn::First);
        assert_eq!(
            [(); 4].map(|()| queue.next(now)),
            [Some(other), Some(key("newer")), Some(key("a")), Some(key("b"))]
        );
        // A name with Turn::First keeps this turn if a pass with Turn::Later is requested.
        for turn in [Turn::Later, Turn::First, Turn::Later] {
            queue.add(key("y"), now, turn);
        }
        queue.add(key("c"), now, Turn::Later);
        assert_eq!([(); 2].map(|()| queue.next(now)), [Some(key("y")), Some(key("c"))]);
    }

    #[test]
    fn passes_that_only_compare_objects_leave_room_for_other_passes() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        (0..=LATER_PASSES).for_each(|n| queue.add(key(&n.to_string()), now, Turn::Later));
        let begun: Vec<Key> = std::iter::from_fn(|| queue.next(now)).collect();
        assert_eq!((begun.len(), queue.next_time(), queue.due(now)), (LATER_PASSES, None, 1));
        queue.add(key("new"), now, Turn::First);
        assert_eq!((queue.next(now), queue.next(now)), (Some(key("new")), None));
        queue.end(&key("new"), End::Well, now, Turn::First);
        assert_eq!(queue.next_time(), None);
        queue.add(begun[0].clone(), now + SECOND, Turn::First);
        queue.end(&begun[0], End::Well, now, Turn::Later);
        assert_eq!([now, now + SECOND].map(|now| queue.next(now).is_some()), [true, true]);
        assert_eq!((queue.next_time(), queue.running_later), (None, LATER_PASSES));
    }
}
