//! Decides when a leader gives up the Lease because it cannot record leases, and how long the replica then waits.
//!
//! The API server may answer some requests of a replica but not others: for example, if one of its connections is
//! broken, or a proxy in front of this replica fails. Without a watchdog, such a leader would renew the Lease for ever,
//! and no machine would get an address.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::ledger::types::Progress;

/// Maximum number of times that the pause doubles.
const DOUBLINGS: u32 = 3;
/// If this multiple of `limit` has passed since the end of the last pause, the next pause has the initial length again.
const CALM: u32 = 60;

/// Watches the progress of a leader's registry.
#[derive(Debug)]
pub struct Watchdog {
    progress: watch::Receiver<Progress>,
    limit: Duration,
    has_given_up: watch::Sender<bool>,
    /// How often in a row the replica has given up the Lease, and the end of the pause after the last time. `None`: the
    /// replica has never given up the Lease.
    surrenders: Option<(u32, Instant)>,
}

// === impl Watchdog ===

impl Watchdog {
    /// Creates a watchdog for the registry of the current term. `limit` is the time without progress in one command
    /// after which the watchdog is due.
    #[must_use]
    pub fn new(progress: watch::Receiver<Progress>, limit: Duration) -> Self {
        Self { progress, limit, has_given_up: watch::Sender::new(false), surrenders: None }
    }

    /// Creates a watchdog that never ends a term.
    #[must_use]
    pub fn none() -> Self {
        Self::new(watch::Sender::new(Progress::default()).subscribe(), Duration::MAX)
    }

    /// Returns a receiver whose value is `true` while the replica has given up the Lease and waits.
    #[must_use]
    pub fn has_given_up(&self) -> watch::Receiver<bool> {
        self.has_given_up.subscribe()
    }

    pub(super) fn set_given_up(&self, has_given_up: bool) {
        self.has_given_up.send_replace(has_given_up);
    }

    /// Whether the leader must give up the Lease. The Lease has just been renewed, so the API server answers other
    /// requests.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        let last = self.progress.borrow().last();
        last.is_some_and(|last| now.saturating_duration_since(last) >= self.limit)
    }

    /// Returns the pause after the replica has given up the Lease. The pause doubles each further time, up to a limit.
    ///
    /// A Lease that is not released expires: other replicas take it when `duration` has passed after they have seen its
    /// last renewal, and they see the renewal late. Therefore even the first pause is longer than `duration`.
    pub(super) fn pause(&mut self, duration: Duration, now: Instant) -> Duration {
        let is_calm = |end: Instant| now.saturating_duration_since(end) >= self.limit.saturating_mul(CALM);
        let before = self.surrenders.filter(|(_, end)| !is_calm(*end)).map_or(0, |(count, _)| count);
        let pause = duration * 2 * (1 << before.min(DOUBLINGS));
        self.surrenders = Some((before + 1, now + pause));
        pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);
    const LEASE: Duration = Duration::from_secs(15);

    #[tokio::test(start_paused = true)]
    async fn a_leader_gives_up_the_lease_if_a_command_makes_no_progress_within_the_limit() {
        let progress = Progress::default();
        let current = watch::Sender::new(progress.clone());
        let watchdog = Watchdog::new(current.subscribe(), LIMIT);
        let began = Instant::now();
        let is_due = |seconds: u64| watchdog.is_due(began + Duration::from_secs(seconds));
        assert!(!is_due(3600), "an owner without a command needs no progress");
        progress.begin();
        assert_eq!([59, 60].map(is_due), [false, true]);
        tokio::time::advance(Duration::from_secs(50)).await;
        progress.note();
        assert_eq!([109, 110].map(is_due), [false, true]);
        progress.end();
        assert!(!is_due(3600));
        progress.note();
        assert!(!is_due(3600), "only a command counts");
        progress.begin();
        current.send_replace(Progress::default());
        assert!(!is_due(3600), "the registry of an earlier term does not count");
    }

    #[test]
    fn the_pause_grows_up_to_a_limit_and_is_short_again_after_a_long_term() {
        let mut watchdog = Watchdog::new(watch::Sender::new(Progress::default()).subscribe(), LIMIT);
        let mut now = Instant::now();
        for factor in [2, 4, 8, 16, 16] {
            let pause = watchdog.pause(LEASE, now);
            assert_eq!(pause, LEASE * factor);
            now += pause + LIMIT;
        }
        assert_eq!(watchdog.pause(LEASE, now + LIMIT * CALM), LEASE * 2);
    }

    #[test]
    fn a_leader_without_a_watchdog_never_gives_up_the_lease() {
        let watchdog = Watchdog::none();
        watchdog.progress.borrow().begin();
        assert!(!watchdog.is_due(Instant::now() + LIMIT * 1000));
    }
}
