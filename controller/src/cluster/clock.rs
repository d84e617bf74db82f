//! The clock by which a leader decides whether a delay is over.

use k8s_openapi::jiff::Timestamp;
use tokio::time::Instant;

/// The clock of one term of a leader. It shows the time of its start plus the time that has passed since then by the
/// monotonic clock. So a reuse delay ends neither too early nor too late if the wall clock is set during the term. The
/// monotonic clock does not count the time for which the node is suspended.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    start: Timestamp,
    began: Instant,
}

impl Clock {
    /// Starts a clock that shows this time now.
    #[must_use]
    pub fn starting_at(start: Timestamp) -> Self {
        Self { start, began: Instant::now() }
    }

    /// Returns the current time.
    #[must_use]
    pub fn now(self) -> Timestamp {
        self.start.saturating_add(self.began.elapsed()).unwrap_or(Timestamp::MAX)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_clock_shows_its_start_and_the_time_that_has_passed_since_then() {
        // The start is far from the time of the wall clock, so only the passed time counts.
        let clock = Clock::starting_at(Timestamp::from_second(1_000).unwrap());
        let shown = || clock.now().as_second();
        assert_eq!(shown(), 1_000);
        tokio::time::advance(Duration::from_secs(60)).await;
        assert_eq!(shown(), 1_060);
    }

    #[tokio::test(start_paused = true)]
    async fn a_clock_stops_at_the_latest_time() {
        let clock = Clock::starting_at(Timestamp::MAX);
        tokio::time::advance(Duration::from_secs(60)).await;
        assert_eq!(clock.now(), Timestamp::MAX);
    }
}
