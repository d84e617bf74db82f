//! Pure decision logic: no disk, no clock, no Kubernetes.
//!
//! An allocator is built from the changes that a ledger reports. Each decision changes the state in memory at once and
//! is recorded in a journal. A [`Registry`](super::registry::Registry) commits the journal before it returns, or undoes
//! the decisions. Code outside this crate can only read an allocator.
//!
//! Addresses are unique on a network, whichever pool they come from. An address is allocated only if
//!
//! - a pool has the address, and no pool or template of the network reserves the address for another use or machine,
//! - no machine holds the address,
//! - no other machine has a record of the address, and no guest of another machine reports the address,
//! - the address is open: the records of new addresses are adopted first, see
//!   [`Registry::open`](super::registry::Registry::open), and
//! - the reuse delay of the address is over. A sticky claim, and a machine for whose name a pool keeps the address,
//!   need not wait for this delay if a machine of the same name released the address. Both wait if the guest of that
//!   machine migrated with the address to another cluster.

mod adopt;
mod attribution;
mod claim;
mod conflicts;
mod exhausted;
mod external;
mod forget;
mod mismatch;
mod moves;
mod network;
mod occupy;
mod order;
mod pool_state;
mod pools;
mod queue;
mod refusals;
mod release;
mod reports;
mod reuse_delay;
mod secrets;
mod serve;
mod share;
mod standing;
mod state;
#[cfg(test)]
mod tests;
mod types;
mod users;
mod want;

pub use conflicts::{Conflicted, OtherUser};
pub use exhausted::{EXHAUSTED_MESSAGE, exhausted_message};
#[doc(hidden)]
pub use forget::forgettable;
pub use mismatch::{Adoption, Mismatch, Problem};
pub use reports::{ReportChanges, Reported};
#[doc(hidden)]
pub use secrets::MOST_SECRETS;
pub use state::Allocator;
pub use types::{ClaimError, PoolError, PoolUsage, Rename, Resized, Usage};
