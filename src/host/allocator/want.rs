//! What a claim lacks, and why a claim is not served.

use std::net::IpAddr;
use std::sync::Arc;

use super::types::ClaimError;
use crate::host::claim::Lease;
use crate::network::Family;

/// Name of a pool and the family that is exhausted.
pub(super) type Queue = (Arc<str>, Family);

/// Changes that serve a claim: addresses to allocate, and held addresses that move to another pool.
#[derive(Default)]
pub(super) struct Wants {
    pub(super) lacks: Vec<Want>,
    pub(super) moves: Vec<Move>,
}

/// An address that a claim lacks.
pub(super) struct Want {
    pub(super) pool: Arc<str>,
    pub(super) family: Family,
    pub(super) named: Option<IpAddr>,
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
