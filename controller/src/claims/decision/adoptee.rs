//! Decides whether the registry must record or reserve the address of an IPAddress that may be missing from the
//! registry.

use std::net::IpAddr;

use glowplug::host::allocator::Allocator;
use glowplug::host::claim::{Claimant, Record, Reservation};
use glowplug::host::may_record::Source;
use glowplug::host::pool::Pool;

use super::recorded::{holds, is_left_over, named_holders, pool_of, record};
use crate::kinds::cluster_api::IpAddress;
use crate::kinds::pool::HolderKind;

/// An IPAddress that may be missing from the registry.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Unrecorded {
    pub(crate) address: IpAddress,
    /// UID of the claim to which the IPAddress belongs: the claim of the name, or an earlier claim that is gone.
    /// `None`: this leader knows no such claim.
    pub(crate) claim: Option<String>,
}

/// An IPAddress, and the result of its comparison with the registry.
pub(crate) struct Adoptee {
    pub(crate) address: IpAddress,
    pub(crate) lesson: Lesson,
}

/// What the registry must adopt from an IPAddress.
pub(crate) enum Lesson {
    /// Nothing: the registry already has a lease of the address on the network of the pool, or the IPAddress is a
    /// leftover of an earlier claim.
    None,
    /// The record of the address, and the network of its pool.
    Record(Record, String),
    /// The address is reserved, because the IPAddress has no claim on its pool.
    Reservation(Reservation),
}

// === impl Adoptee ===

impl Adoptee {
    /// Compares IPAddresses with the registry. IPAddresses whose pool the registry does not have yet are left out. The
    /// oldest IPAddresses come first, because a share limits the reservations of IPAddresses without a claim.
    pub(crate) fn read_all(allocator: &Allocator, unrecorded: Vec<Unrecorded>) -> Vec<Self> {
        let mut all: Vec<Self> = unrecorded.into_iter().filter_map(|it| Self::read(allocator, it)).collect();
        all.sort_by_key(|adoptee| adoptee.address.metadata.creation_timestamp.as_ref().map(|time| time.0));
        all
    }

    /// Compares an IPAddress with the registry. Returns `None` if the registry does not have the pool yet.
    fn read(allocator: &Allocator, unrecorded: Unrecorded) -> Option<Self> {
        let Unrecorded { address, claim } = unrecorded;
        let (key, ip) = (address.key(), address.ip()?);
        let pool = pool_of(allocator, &address);
        let is_known = |uid: &str| holds(allocator, &key.holder(HolderKind::IpAddressClaim, uid), ip, pool);
        let is_known = claim.as_deref().is_some_and(is_known) || address.owner().is_some_and(is_known);
        // The lease of an earlier claim may still exist after the claim is gone, and after the garbage collector has
        // removed the claim from the owners of the IPAddress.
        let is_known = is_known || claim.is_none() && named_holders(allocator, &address).next().is_some();
        let lesson = match (claim, pool) {
            _ if is_known => Lesson::None,
            (_, None) => return None,
            (Some(uid), _) if is_left_over(allocator, &address, &uid) => Lesson::None,
            (Some(uid), Some(pool)) => {
                Lesson::Record(record(&address, ip, &uid, pool.interface()), pool.network().to_owned())
            }
            (None, Some(pool)) => Lesson::Reservation(reservation(&address, ip, pool)),
        };
        Some(Self { address, lesson })
    }
}

/// Returns the reservation for an IPAddress without a claim. The claimant has the UID of the IPAddress.
fn reservation(address: &IpAddress, ip: IpAddr, pool: &Pool) -> Reservation {
    let (key, uid) = (address.key(), address.metadata.uid.as_deref().unwrap_or_default());
    Reservation {
        address: ip,
        network: Some(pool.network().to_owned()),
        claimant: Claimant { machine: key.holder(HolderKind::IpAddressClaim, uid), interface: pool.interface() },
        source: format!("IPAddress {key}"),
        kind: Source::LoneIpAddress,
    }
}
