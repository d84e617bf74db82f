//! Types for the addresses that a claim lacks, and for the refusal of a claim.

use std::net::IpAddr;
use std::sync::Arc;

use super::types::ClaimError;
use crate::host::claim::Lease;
use crate::network::Family;

/// The pools for which a claim waits, in the order in which they are tried. Each pool comes with a requested family:
/// the first exhausted family, or else the first family. The claim is tried again when one of these pools has a free
/// address of its family.
pub(super) type Queue = Vec<(Arc<str>, Family)>;

/// Changes that serve a claim: addresses to allocate, and held addresses that move to another pool.
#[derive(Default)]
pub(super) struct Wants {
    pub(super) lacks: Vec<Want>,
    pub(super) moves: Vec<Move>,
}

/// The addresses that an interface of a claim lacks. All of them come from one pool.
pub(super) struct Want {
    // The pools that can allocate the addresses, in their order. Never empty.
    pub(super) pools: Vec<Arc<str>>,
    // The families, each with the address that the claim names. `None`: the claim names no address of the family.
    pub(super) families: Vec<(Family, Option<IpAddr>)>,
}

/// A held address whose lease moves to another pool of its network.
pub(super) struct Move {
    pub(super) network: Arc<str>,
    pub(super) address: IpAddr,
    pub(super) lease: Lease,
}

/// Why a claim is not served.
pub(super) enum Refusal {
    Exhausted(Queue),
    Other(ClaimError),
}
