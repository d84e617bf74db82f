//! Results of the allocator: refusals, counts, and the result of a resize.

use std::fmt;
use std::net::IpAddr;

use jiff::Timestamp;
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

use super::exhausted::EXHAUSTED_MESSAGE;
use crate::host::claim::{Allocation, Claimant};
use crate::host::counts::Count;
use crate::host::pool::{NoOverflow, ReservedAddress};
use crate::network::{Family, InterfaceName};

/// Why a claim is refused.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum ClaimError {
    /// The pool has no free address of a family. The machine waits, unless its claim names an address.
    Exhausted {
        /// Interface of the pool.
        interface: InterfaceName,
        /// Name of the pool.
        pool: String,
        /// Address family.
        family: Family,
        /// The overflow pools, which are exhausted, too: the name of each pool, and the address family in which the
        /// pool has no free address.
        overflow: Vec<(String, Family)>,
    },
    /// The ledger refuses to record the lease, for example because a policy denies it. A repeated claim may succeed:
    /// the ledger is asked again after a pause, which grows to at most 5 minutes.
    NotRecorded {
        /// Why the ledger refuses the lease.
        reason: String,
    },
    /// The claim has no request.
    Nothing,
    /// No pool has this name.
    UnknownPool(String),
    /// A pool of a request cannot be the overflow of the first pool of this request.
    NoOverflow(Box<NoOverflow>),
    /// The pool with this name allocates nothing for now, see
    /// [`Registry::suspend`](crate::host::registry::Registry::suspend).
    Suspended(String),
    /// The free addresses of the pool with this name are closed until their records are adopted: see
    /// [`Registry::open`](crate::host::registry::Registry::open). The machine waits, unless its claim names an address.
    Closed(String),
    /// The pool has no addresses of the requested family.
    NoFamily {
        /// Name of the pool.
        pool: String,
        /// Address family.
        family: Family,
    },
    /// The claim asks twice for one family of one interface: in two requests, or with two addresses of one request.
    Twice {
        /// Name of the interface.
        interface: InterfaceName,
        /// Address family.
        family: Family,
    },
    /// The interface already holds an address of another pool.
    OtherPool {
        /// Name of the interface.
        interface: InterfaceName,
        /// The held address.
        held: IpAddr,
        /// Name of the pool of the held address.
        pool: String,
    },
    /// The interface already holds an address of a pool with the same name on another network.
    OtherNetwork {
        /// Name of the interface.
        interface: InterfaceName,
        /// The held address.
        held: IpAddr,
        /// The network of the held address.
        network: String,
    },
    /// An address is reserved for the claim, and no pool offers the address any more. The claim gets no other address of
    /// the family, because its machine may use this one.
    Kept {
        /// Name of the interface.
        interface: InterfaceName,
        /// The reserved address.
        kept: IpAddr,
    },
    /// The interface already holds another address than the address that the claim names.
    OtherAddress {
        /// Name of the interface.
        interface: InterfaceName,
        /// The held address.
        held: IpAddr,
        /// The address that the claim names.
        named: IpAddr,
    },
    /// The pool does not have the named address.
    NotInPool {
        /// The address that the claim names.
        named: IpAddr,
        /// Name of the pool.
        pool: String,
    },
    /// The named address is reserved on the network of the pool.
    Reserved {
        /// The address that the claim names, or that a pool keeps for the machine.
        named: IpAddr,
        /// Name of the pool.
        pool: String,
        /// Why the address is reserved, and by which pool. `None` if no reason is known.
        why: Option<ReservedAddress>,
    },
    /// Another claimant holds the named address, or has a record or a report of the address.
    Taken {
        /// The address that the claim names, or that a pool keeps for the machine.
        named: IpAddr,
        /// The holder, or the claimant of the record or report.
        by: Box<Claimant>,
    },
    /// The reuse delay of the named address is not over.
    ReuseDelay {
        /// The address that the claim names, or that a pool keeps for the machine.
        named: IpAddr,
        /// When the reuse delay ends.
        until: Timestamp,
    },
}

/// Counts of the addresses of one family of a pool, by state.
///
/// `total` is always the sum of `allocated`, `excluded`, `by_record`, `by_report`, `reuse_delay` and `free`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Usage {
    /// Address family.
    pub family: Family,
    /// Number of all addresses of the pool.
    pub total: u128,
    /// Number of held addresses, including addresses that were allocated from another pool of the network.
    pub allocated: u128,
    /// Addresses that a pool or template of the network reserves. A pre-allocated address that its machine holds counts
    /// as allocated instead.
    pub excluded: u128,
    /// Addresses that an object records, and that are neither held nor excluded.
    pub by_record: u128,
    /// Addresses that a running guest reports, or that a Service or Cluster uses. Held, excluded and recorded addresses
    /// do not count.
    pub by_report: u128,
    /// Addresses in their reuse delay.
    pub reuse_delay: u128,
    /// Addresses that a claim can get, including closed addresses: see
    /// [`Registry::open`](crate::host::registry::Registry::open).
    pub free: u128,
    /// Addresses with two users. Each of them also has one of the states above.
    pub conflicts: u128,
    /// Held leases of this pool whose address the pool does not offer, or no longer offers, to the holder. In the
    /// states above, such an address counts as `excluded` or not at all.
    pub outside: u128,
}

/// Counts of a pool.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct PoolUsage {
    /// Counts for each family, IPv4 first. Empty for an external pool, and for a pool that the allocator does not have.
    pub families: Vec<Usage>,
    /// Number of held leases of the pool.
    pub held: usize,
    /// Number of machines that wait for an address of the pool.
    pub waiting: usize,
    /// Number of machines that are not created because the pool is exhausted. Such machines make no claim.
    /// [`Allocator::usage`] always sets 0.
    ///
    /// [`Allocator::usage`]: super::Allocator::usage
    pub refused: usize,
}

/// A new name for a pool of the ledger.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub struct Rename {
    /// Name of the pool in the ledger.
    pub old: String,
    /// New name of the pool.
    pub new: String,
}

/// Result of a resize.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub struct Resized {
    /// The renamed pools: the requested renames, and the renames that the allocator recognized.
    pub renamed: Vec<Rename>,
    /// Allocations whose prefix length has changed. The machines still use the old prefix length.
    pub prefix_changed: Vec<Allocation>,
    /// Held addresses that their pool does not offer, or no longer offers, to their holders.
    pub outside: Vec<Allocation>,
    /// Allocations to waiting machines.
    pub served: Vec<Allocation>,
}

/// Why the pools of a ledger cannot be changed.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum PoolError {
    /// A rename names a pool that the ledger does not have.
    Unknown(String),
    /// The new name of a pool is already used in the ledger, or no given pool has this name.
    NewName(String),
    /// The network or the interface of a pool cannot change while the pool is in use.
    InUse {
        /// Name of the pool.
        pool: String,
        /// Member that would change: `network` or `interface`.
        member: &'static str,
        /// Value of the member in the ledger.
        known: String,
        /// Value of the member in the given pool.
        given: String,
    },
    /// A pool cannot be removed while machines hold its addresses.
    Held {
        /// Name of the pool.
        pool: String,
        /// Number of held addresses.
        addresses: usize,
    },
}

// === impl Usage ===

impl Usage {
    /// Number of addresses that no claim gets.
    #[must_use]
    pub fn reserved(&self) -> u128 {
        self.excluded + self.by_record + self.by_report
    }

    /// The value of a count. 0 for a count that does not count addresses.
    #[must_use]
    #[doc(hidden)]
    pub fn number(&self, count: Count) -> u128 {
        match count {
            Count::Total => self.total,
            Count::Free => self.free,
            Count::Allocated => self.allocated,
            Count::Reserved => self.reserved(),
            Count::Excluded => self.excluded,
            Count::ByRecord => self.by_record,
            Count::ByReport => self.by_report,
            Count::ReuseDelay => self.reuse_delay,
            Count::Conflicts => self.conflicts,
            Count::Outside => self.outside,
            Count::Waiting | Count::Outdated | Count::LeftAlone => 0,
        }
    }
}

impl Serialize for Usage {
    /// Writes a map with the family and the counts of addresses. [`Count::word`] gives the name of each count.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("family", &self.family.to_string())?;
        for count in Count::OF_ADDRESSES {
            map.serialize_entry(count.word(), &self.number(count))?;
        }
        map.end()
    }
}

// === impl ClaimError ===

impl ClaimError {
    /// Whether the claim needs something that is not available for now: a requested or pre-allocated address, a closed
    /// address, or a lease that the ledger refuses. The claim may succeed later.
    #[must_use]
    pub fn is_about_address(&self) -> bool {
        matches!(
            self,
            Self::NotInPool { .. }
                | Self::Reserved { .. }
                | Self::Taken { .. }
                | Self::ReuseDelay { .. }
                | Self::NotRecorded { .. }
                | Self::Closed(_)
        )
    }
}

impl fmt::Display for ClaimError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exhausted { interface, .. } => write!(f, "{EXHAUSTED_MESSAGE}{interface}"),
            Self::NotRecorded { reason } => write!(f, "the lease cannot be recorded: {reason}"),
            Self::Nothing => f.write_str("no request in the claim, expected one for each pool"),
            Self::UnknownPool(pool) => write!(f, "unknown pool {pool:?}"),
            Self::NoOverflow(problem) => problem.fmt(f),
            Self::Suspended(pool) => write!(f, "pool {pool:?} allocates nothing for now"),
            Self::Closed(pool) => {
                write!(
                    f,
                    "pool {pool:?}: its new addresses are not open yet, expected `Registry::rebuild` with the objects of \
                     all machines before the claim"
                )
            }
            Self::NoFamily { pool, family } => write!(f, "pool {pool:?} has no {family} addresses"),
            Self::Twice { interface, family } => {
                write!(f, "{interface}: more than one {family} address, expected at most one")
            }
            Self::OtherPool { interface, held, pool } => {
                write!(f, "{interface}: has {held} of pool {pool:?} already, expected a release before another pool")
            }
            Self::OtherNetwork { interface, held, network } => {
                write!(
                    f,
                    "{interface}: has {held} on network {network} already, expected a release before another network"
                )
            }
            Self::Kept { interface, kept } => {
                write!(f, "{interface}: keeps {kept}, which no pool offers, expected a release before another address")
            }
            Self::OtherAddress { interface, held, named } => {
                write!(f, "{interface}: has {held} already, expected a release before it gets {named}")
            }
            Self::NotInPool { named, pool } => write!(f, "{named}: not in pool {pool:?}"),
            Self::Reserved { named, pool, why } => {
                write!(f, "{named}: reserved in pool {pool:?}")?;
                why.as_ref().map_or(Ok(()), |why| write!(f, " ({})", why.of(pool)))
            }
            Self::Taken { named, by } => write!(f, "{named}: taken by {by}"),
            Self::ReuseDelay { named, until } => write!(f, "{named}: in its reuse delay until {until}"),
        }
    }
}

impl std::error::Error for ClaimError {}

// === impl PoolError ===

impl fmt::Display for PoolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown(pool) => write!(f, "unknown pool {pool:?}, expected a pool of the ledger"),
            Self::NewName(pool) => {
                write!(
                    f,
                    "pool {pool:?} cannot be the new name of a pool, expected a given pool that is not in the ledger yet"
                )
            }
            Self::InUse { pool, member, known, given } => write!(
                f,
                "pool {pool:?}: {member} {given:?} differs from {known:?} in the ledger, expected no change while \
                 machines hold its addresses"
            ),
            Self::Held { pool, addresses } => {
                write!(f, "pool {pool:?}: machines hold {addresses} of its addresses, expected none")
            }
        }
    }
}

impl std::error::Error for PoolError {}
