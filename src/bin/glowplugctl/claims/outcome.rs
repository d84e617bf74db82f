//! The outcome of the claim of a machine.

use std::fmt;

use glowplug::host::address::AddressSet;
use glowplug::host::allocator::ClaimError;
use glowplug::host::claim::Allocation;
use glowplug::network::Family;

/// Why a machine gets no address.
#[derive(Clone)]
pub(super) enum Refusal {
    /// The pools refuse the claim of the machine.
    Claim(ClaimError),
    /// The requested address is in none of the machine's pools, which have these addresses.
    Outside(ClaimError, AddressSet),
    /// The pools of the machine are unknown.
    NodePool(String),
    /// The machine belongs to the NodePool of this name, and no given pool does.
    OtherNodePool(String),
    /// The pool of the machine's NodePool of this name has an error, or overlaps an older pool.
    UnservedNodePool(String),
    /// The annotation of the machine has the first NodePool, and `--node-pool` the second.
    AnotherNodePool(String, String),
    /// A record of the machine has an address that does not fit, or cannot be read.
    Record(String),
    BeingDeleted,
    /// Another program chooses the addresses of this pool, and no record has an address of the machine.
    OtherProgram(String),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // The text from the OpenShift enhancement comes first, because people and programs search for this text.
            Self::Claim(error @ ClaimError::Exhausted { pool, family, .. }) => {
                write!(f, "{error}: pool {pool}, {family}")
            }
            Self::Claim(ClaimError::Closed(pool)) => {
                write!(f, "pool {pool}: changed by another command at the same time, expected the claim again")
            }
            Self::Claim(error) => error.fmt(f),
            Self::Outside(error, addresses) => write!(f, "{error}, expected a free address of {addresses}"),
            Self::NodePool(error) => f.write_str(error),
            Self::OtherNodePool(name) => {
                write!(f, "the machine is of NodePool {name}, and no given pool belongs to it")
            }
            Self::UnservedNodePool(name) => {
                write!(f, "pool {name} is not served, expected a pool without the error above")
            }
            Self::AnotherNodePool(own, given) => {
                write!(f, "the machine is of NodePool {own} by its annotation, expected {given} as in --node-pool")
            }
            Self::Record(problem) => write!(f, "the record of the machine does not fit: {problem}"),
            Self::BeingDeleted => {
                f.write_str("the machine is being deleted: it keeps its addresses and gets no new ones")
            }
            Self::OtherProgram(pool) => {
                write!(
                    f,
                    "another program chooses the addresses of pool {pool}, expected a record of the machine's address"
                )
            }
        }
    }
}

impl Refusal {
    /// Whether the refusal is normal for some machines of a list. Such a refusal does not count as an error.
    pub(super) fn is_usual(&self) -> bool {
        matches!(
            self,
            Self::OtherNodePool(_) | Self::UnservedNodePool(_) | Self::AnotherNodePool(..) | Self::BeingDeleted
        )
    }

    /// The exhausted pool, and the family without a free address.
    pub(super) fn exhausted(&self) -> Option<(&String, Family)> {
        match self {
            Self::Claim(ClaimError::Exhausted { pool, family, .. }) => Some((pool, *family)),
            _ => None,
        }
    }

    pub(super) fn is_exhaustion(&self) -> bool {
        self.exhausted().is_some()
    }
}

pub(super) type Outcome = Result<Vec<Allocation>, Refusal>;
