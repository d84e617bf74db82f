//! The result of an adoption: how many addresses were adopted, and which records contradict the ledger or the pools.

use std::fmt;
use std::net::IpAddr;

use super::types::ClaimError;
use crate::host::claim::Claimant;
use crate::host::may_record::Ignored;
use crate::host::pool::ReservedAddress;

/// Result of an adoption.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub struct Adoption {
    /// Number of addresses that had no holder and are now leased to the claimant of their record.
    pub adopted: usize,
    /// Number of addresses that the claimant of their record already held.
    pub known: usize,
    /// Addresses that are reserved for the claimant of their record and need no lease, in the order of the records. For
    /// example, a pool excludes such an address.
    pub reserved: Vec<(Claimant, IpAddr)>,
    /// The addresses that contradict the ledger or the pools, in the order of the records.
    pub mismatches: Vec<Mismatch>,
}

/// An address of a record that contradicts the ledger or the pools.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct Mismatch {
    /// Kind and name of the object with the record.
    pub source: String,
    /// The claimant that the record names.
    pub claimant: Claimant,
    /// The recorded address.
    pub address: IpAddr,
    /// How the address contradicts the ledger or the pools.
    pub problem: Problem,
}

/// How an address of a record contradicts the ledger or the pools.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum Problem {
    /// Another claimant holds the address, has a record of it, or has a guest that reports it or migrated with it. The
    /// holder keeps the address. The address is not allocated again before both machines are gone.
    Duplicate(Claimant),
    /// This other claimant held the address last, and the reuse delay of the address is not over. The address is not
    /// allocated to another machine before the machine of the record is gone.
    ReuseDelay(Claimant),
    /// No pool has the interface and the address of the record. The address is not allocated before the machine is
    /// gone.
    NoPool,
    /// The address may be on any of these networks. The address is not allocated on any of them before the machine is
    /// gone.
    Ambiguous(Vec<String>),
    /// The interface already holds this other address of the family, and keeps it. The address of the record is not
    /// allocated before the machine is gone.
    OtherAddress(IpAddr),
    /// The claimant holds the address on this other network. The address is not allocated on either network before the
    /// machine is gone.
    OtherNetwork(String),
    /// The record belongs to the pool with this name, which does not have the address. The machine keeps the address.
    OutOfPool(String),
    /// The record belongs to the pool with this name, and the address is reserved in this pool or on its network. No
    /// other machine gets the address before the machine of the record is gone.
    Reserved(String, Option<ReservedAddress>),
    /// The ledger refuses the lease of the address for now, with [`ClaimError::NotRecorded`]. No other machine gets the
    /// address before the machine of the record is gone. A later adoption of the record may add the lease.
    NotRecorded(ClaimError),
    /// The prefix length of the pool, which differs from the prefix length in the record. The machine keeps the prefix
    /// length of its record.
    Prefix(u8),
    /// The record has no effect, for this reason.
    Ignored(Ignored),
}

// === impl Adoption ===

impl Adoption {
    /// Adds the result of a later adoption.
    pub(crate) fn extend(&mut self, later: Self) {
        let Self { adopted, known, reserved, mismatches } = later;
        self.adopted += adopted;
        self.known += known;
        self.reserved.extend(reserved);
        self.mismatches.extend(mismatches);
    }
}

// === impl Mismatch ===

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { source, claimant, address, problem } = self;
        write!(f, "{source}: {address} of {claimant} ")?;
        match problem {
            Problem::Duplicate(other) => write!(f, "is also of {other}"),
            Problem::ReuseDelay(last) => write!(f, "was held by {last} before, and its reuse delay is not over"),
            Problem::NoPool => f.write_str("belongs to no pool"),
            Problem::Ambiguous(networks) => {
                write!(f, "is on one of the networks {}: reserved on each of them", networks.join(", "))
            }
            Problem::OtherAddress(held) => write!(f, "differs from the address that the interface holds, {held}"),
            Problem::OtherNetwork(network) => write!(f, "is held on another network, {network}"),
            Problem::OutOfPool(pool) => write!(f, "is not in pool {pool:?}"),
            Problem::Reserved(pool, why) => {
                write!(f, "is reserved in pool {pool:?}")?;
                why.as_ref().map_or(Ok(()), |why| write!(f, " ({})", why.of(pool)))
            }
            Problem::NotRecorded(error) => write!(f, "is reserved: {error}"),
            Problem::Ignored(why) => write!(f, "is ignored: {why}"),
            Problem::Prefix(length) => write!(f, "has another prefix length than its pool, which has {length}"),
        }
    }
}
