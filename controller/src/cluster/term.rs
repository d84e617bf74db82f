//! The period in which a replica leads, and the writes of a leader that have no answer yet.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::RwLock;
use tokio::time::{Instant, timeout};

/// Name of the Lease that the leader holds, in the namespace of the program. If the controller does not serve every pool,
/// the name has a suffix.
pub(crate) const LEASE: &str = "glowplug-controller";

/// Whether a Lease has the name of a Lease of this program, with or without a suffix.
pub(crate) fn is_lease(name: &str) -> bool {
    name.strip_prefix(LEASE).is_some_and(|suffix| suffix.is_empty() || suffix.starts_with('-'))
}

/// A period in which a replica leads. A renewal of the Lease extends the term. Another replica leads only after the
/// term has ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Term {
    /// Number of the term: the replica counts its terms.
    pub(crate) number: u64,
    /// `None`: the term has no end, because there is no election.
    pub(crate) end: Option<Instant>,
}

/// The writes of a leader that the API server has not answered yet.
#[derive(Clone, Debug, Default)]
pub struct Writes(pub(crate) Arc<RwLock<()>>);

impl Term {
    /// The term of a replica without an election.
    pub const ENDLESS: Self = Self { number: 0, end: None };

    /// Whether the term includes this time.
    #[must_use]
    pub fn includes(self, time: Instant) -> bool {
        self.end.is_none_or(|end| time < end)
    }

    /// Whether `term` has the same number as this term. The end may differ, because a renewal changes it.
    #[must_use]
    pub fn is(self, term: Option<Self>) -> bool {
        term.is_some_and(|term| term.number == self.number)
    }
}

impl Writes {
    /// Waits until every write is answered, for at most `limit`. Returns `false` if a write has no answer then.
    pub async fn are_answered(&self, limit: Duration) -> bool {
        timeout(limit, self.0.write()).await.is_ok()
    }
}
