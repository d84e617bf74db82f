//! Answers of the allocator: refusals, counts, and what a resize did.

use std::fmt;
use std::net::IpAddr;

use crate::host::claim::{Allocation, Claimant};
use crate::host::pool::ReservedAddress;
use crate::network::{Family, InterfaceName};

/// Why a claim is refused.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum ClaimError {
    /// No address of a family is free. The machine waits, unless its claim names an address.
    Exhausted {
        /// The interface that gets none.
        interface: InterfaceName,
        /// Name of the pool.
        pool: String,
        /// The family.
        family: Family,
    },
    /// The claim requests nothing.
    Nothing,
    /// No pool has this name.
    UnknownPool(String),
    /// The pool has no addresses of the requested family.
    NoFamily {
        /// Name of the pool.
        pool: String,
        /// The family.
        family: Family,
    },
    /// Two requests, or two addresses of one request, are for the same family of one interface.
    Twice {
        /// The interface.
        interface: InterfaceName,
        /// The family.
        family: Family,
    },
    /// The interface holds an address of another pool.
    OtherPool {
        /// The interface.
        interface: InterfaceName,
        /// The held address.
        held: IpAddr,
        /// Name of the pool of the held address.
        pool: String,
    },
    /// The interface holds another address than the claim names.
    OtherAddress {
        /// The interface.
        interface: InterfaceName,
        /// The held address.
        held: IpAddr,
        /// The address that the claim names.
        named: IpAddr,
    },
    /// The named address is not in the pool.
    NotInPool {
        /// The address that the claim names.
        named: IpAddr,
        /// Name of the pool.
        pool: String,
    },
    /// The named address is reserved on the network of the pool.
    Reserved {
        /// The address that the claim names.
        named: IpAddr,
        /// Name of the pool.
        pool: String,
        /// The reason, and the pool that reserves the address.
        why: Option<ReservedAddress>,
    },
    /// Somebody else holds the named address, or has a record of it.
    Taken {
        /// The address that the claim names.
        named: IpAddr,
        /// The holder, or the claimant of the record.
        by: Claimant,
    },
    /// The reuse delay of the named address is not over.
    ReuseDelay {
        /// The address that the claim names.
        named: IpAddr,
        /// When the reuse delay ends, in milliseconds since 1970.
        until: u64,
    },
}

/// Counts of the addresses of one family of a pool, by state.
///
/// `total` is always the sum of `reserved`, `used`, `conflicting`, `reuse_delay` and `free`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Usage {
    /// The family.
    pub family: Family,
    /// All addresses of the pool.
    pub total: u128,
    /// Addresses that are never allocated: some pool of the network reserves them.
    pub reserved: u128,
    /// Held addresses, also those allocated from another pool of the network.
    pub used: u128,
    /// Addresses that nobody holds and that a record claims.
    pub conflicting: u128,
    /// Addresses in their reuse delay.
    pub reuse_delay: u128,
    /// Addresses that the next claim may get.
    pub free: u128,
    /// Addresses held from this pool that it does not offer, or no longer. Of the other counts only `reserved` may have
    /// them.
    pub outside: u128,
}

/// A new name for a pool of the ledger.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Rename {
    /// Name of the pool in the ledger.
    pub old: String,
    /// Name of the pool from now on.
    pub new: String,
}

/// What a resize did.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Resized {
    /// The pools that got another name, as requested or because nothing else fits.
    pub renamed: Vec<Rename>,
    /// Interfaces whose held addresses have another prefix length now. Their machines still use the old one.
    pub prefix_changed: Vec<Allocation>,
    /// Leases whose address is no longer in the pool.
    pub outside: Vec<Allocation>,
    /// What waiting machines got.
    pub served: Vec<Allocation>,
}

/// Why the pools of a ledger cannot be changed.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum PoolError {
    /// A rename names a pool that the ledger does not have.
    Unknown(String),
    /// The new name of a pool is that of another pool of the ledger, or of no given pool.
    NewName(String),
    /// A pool in use cannot have another network or interface.
    InUse {
        /// Name of the pool.
        pool: String,
        /// What would change: `network` or `interface`.
        member: &'static str,
        /// Its value in the ledger.
        known: String,
        /// Its value in the given pool.
        given: String,
    },
    /// A pool cannot be removed while machines hold addresses of it.
    Held {
        /// Name of the pool.
        pool: String,
        /// How many addresses are held.
        addresses: usize,
    },
}

// === impl ClaimError ===

impl fmt::Display for ClaimError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // The string of the enhancement, for which its users look.
            Self::Exhausted { interface, .. } => write!(f, "No available IPs in pool for interface {interface}"),
            Self::Nothing => f.write_str("no request in the claim, expected one for each pool"),
            Self::UnknownPool(pool) => write!(f, "unknown pool {pool:?}"),
            Self::NoFamily { pool, family } => write!(f, "pool {pool:?} has no {family} addresses"),
            Self::Twice { interface, family } => {
                write!(f, "{interface}: more than one {family} address, expected at most one")
            }
            Self::OtherPool { interface, held, pool } => {
                write!(f, "{interface}: has {held} of pool {pool:?} already, expected a release before another pool")
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
            Self::ReuseDelay { named, until } => write!(f, "{named}: not given again before {until} ms since 1970"),
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
                write!(f, "pool {pool:?} cannot be a new name, expected a given pool that the ledger does not have")
            }
            Self::InUse { pool, member, known, given } => write!(
                f,
                "pool {pool:?}: {member} {given:?} differs from {known:?} in the ledger, expected no change while \
                 machines hold or wait for its addresses"
            ),
            Self::Held { pool, addresses } => {
                write!(f, "pool {pool:?}: machines hold {addresses} of its addresses, expected none")
            }
        }
    }
}

impl std::error::Error for PoolError {}
