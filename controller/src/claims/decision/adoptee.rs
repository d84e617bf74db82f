//! Decides whether the registry must record or reserve the address of an IPAddress that may be missing from the
//! registry.

use std::collections::BTreeMap;
use std::net::IpAddr;

use glowplug::host::allocator::Allocator;
use glowplug::host::claim::{Claimant, Machine, Record, Reservation};
use glowplug::host::may_record::{Source, State};
use glowplug::host::pool::Pool;
use glowplug::network::Family;

use super::recorded::{holds, is_left_over, named_holders, record};
use crate::cluster::key::PoolId;
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
    /// Nothing: the registry already has a lease of the address, or the IPAddress is a leftover of an earlier claim.
    None,
    /// The record of the address, and the network of its pool.
    Record(Record, String),
    /// The address is reserved, because the IPAddress has no claim on its pool.
    Reservation(Reservation),
    /// Nothing, although the IPAddress has no claim on its pool: the namespace of the IPAddress already reserves its
    /// share of the pool.
    TooMany(Reservation),
}

// === impl Adoptee ===

impl Adoptee {
    /// Compares an IPAddress with the registry. Returns `None` if the registry does not have the pool yet.
    pub(crate) fn read(allocator: &Allocator, unrecorded: Unrecorded) -> Option<Self> {
        let Unrecorded { address, claim } = unrecorded;
        let (key, ip) = (address.key(), address.ip()?);
        let is_known = |uid: &str| holds(allocator, &key.holder(HolderKind::IpAddressClaim, uid), ip);
        let is_known = claim.as_deref().is_some_and(is_known) || address.owner().is_some_and(is_known);
        // The lease of an earlier claim may still exist after the claim is gone, and after the garbage collector has
        // removed the claim from the owners of the IPAddress.
        let is_known = is_known || claim.is_none() && named_holders(allocator, &address).next().is_some();
        let pool = allocator.pool(&address.pool.resolve(&key.namespace)?.to_string());
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

/// Limits the reservations of a namespace in a GlobalStaticIPPool to a quarter of the pool. Otherwise, a user who has
/// the right to create IPAddresses in one namespace could reserve the whole pool. The oldest IPAddresses are reserved
/// first.
pub(crate) fn limit_reservations(allocator: &Allocator, mut adoptees: Vec<Adoptee>) -> Vec<Adoptee> {
    adoptees.sort_by_key(|adoptee| adoptee.address.metadata.creation_timestamp.as_ref().map(|time| time.0));
    let mut counts: BTreeMap<(PoolId, Family, String), u128> = BTreeMap::new();
    for Adoptee { address, lesson } in &mut adoptees {
        let Lesson::Reservation(reservation) = lesson else { continue };
        let (namespace, family) = (reservation.claimant.machine.namespace.clone(), Family::of(reservation.address));
        let Some(id) = address.pool.resolve(&namespace).filter(|id| id.namespace.is_none()) else { continue };
        let Some(pool) = allocator.pool(&id.to_string()) else { continue };
        let most = pool.space(family).map_or(0, |space| space.total() / 4).max(1);
        let count = counts.entry((id, family, namespace.clone())).or_insert_with(|| {
            let is_of = |network: &str, at: IpAddr, of: &Machine| {
                network == pool.network() && pool.contains(at) && Family::of(at) == family && of.namespace == namespace
            };
            let conflicts = allocator.conflicts().filter(|(network, at, conflict)| {
                // If an address has a holder, a record of the address uses up no further address of the pool.
                conflict.state == State::ByRecord && allocator.holder(network, *at).is_none()
            });
            conflicts.filter(|(network, at, conflict)| is_of(network, *at, &conflict.claimant.machine)).count() as u128
        });
        if is_reserved(allocator, reservation) {
            continue;
        }
        *count += 1;
        if *count > most {
            *lesson = Lesson::TooMany(reservation.clone());
        }
    }
    adoptees
}

/// Whether this IPAddress, or an earlier IPAddress of the same name, already reserves the same address.
fn is_reserved(allocator: &Allocator, reservation: &Reservation) -> bool {
    let machine = &reservation.claimant.machine;
    let mut namesakes = allocator.namesakes(&machine.namespace, &machine.name).filter(|of| of.kind == machine.kind);
    namesakes.any(|of| allocator.conflicts_of(of).any(|(_, address)| address == reservation.address))
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
