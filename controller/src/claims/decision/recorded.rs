//! Reads from the registry the state of a claim, of its pool and of its IPAddress.

use std::collections::BTreeSet;
use std::net::IpAddr;

use glowplug::host::allocator::Allocator;
use glowplug::host::claim::{Claimant, Lease, Machine, Record};
use glowplug::host::may_record::Source;
use glowplug::host::pool::Pool;
use glowplug::network::{Family, InterfaceName};
use ipnetwork::IpNetwork;

use crate::cluster::key::{Key, PoolId};
use crate::kinds::cluster_api::IpAddress;
use crate::kinds::pool::HolderKind;

/// State of a claim and of its pool in the registry.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Recorded {
    /// The pool of the claim in the registry. `None`: the registry does not have the pool.
    pub(crate) pool: Option<RegisteredPool>,
    /// Addresses that the claim holds on the network of the IPAddress. If there is no IPAddress, on the network of the
    /// pool of the claim: see [`held_by`]. The address with the earliest lease comes first. The claim holds several
    /// addresses if two leaders allocated an address.
    pub(crate) held: Vec<Held>,
    /// Whether the claim waits for an address.
    pub(crate) waits: bool,
    /// Whether the IPAddress belongs to an earlier claim of the name, and the current claim cannot have the address:
    /// see [`is_left_over`].
    pub(crate) is_left_over: bool,
    /// Whether an earlier claim of the name holds the address of the IPAddress.
    pub(crate) is_of_former: bool,
    /// Addresses that are reserved for the claim and are not in its IPAddress, each with its network.
    pub(crate) unrecorded: BTreeSet<(String, IpAddr)>,
}

/// A pool of the registry.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RegisteredPool {
    pub(crate) network: String,
    pub(crate) interface: InterfaceName,
    pub(crate) families: Vec<Family>,
    /// Gateways of the subnets from which the claim holds addresses.
    pub(crate) gateways: Vec<IpAddr>,
}

/// An address that a claim holds.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Held {
    pub(crate) address: IpNetwork,
    pub(crate) interface: InterfaceName,
    /// Name of the pool of the lease.
    pub(crate) pool: String,
}

// === impl RegisteredPool ===

impl RegisteredPool {
    fn of(pool: &Pool, held: &[Held]) -> Self {
        let families = pool.spaces().map(|space| space.family()).collect();
        Self {
            network: pool.network().to_owned(),
            interface: pool.interface(),
            families,
            // A pool without `subnets` has one gateway for all its addresses, including addresses that are no longer in
            // the pool.
            gateways: pool
                .settings_for(held.iter().map(|held| &held.address), &|_| None)
                .unwrap_or_else(|_| pool.settings().clone())
                .gateways,
        }
    }
}

// === impl Recorded ===

impl Recorded {
    /// Reads from the registry the state of the claim `uid` of a name, of its pool, and of its IPAddress. `former` has
    /// the UIDs of the earlier claims of the name.
    pub(crate) fn read(
        allocator: &Allocator,
        key: &Key,
        (uid, former): (&str, &BTreeSet<String>),
        pool: Option<&PoolId>,
        address: Option<&IpAddress>,
    ) -> Self {
        let holder = key.holder(HolderKind::IpAddressClaim, uid);
        // If the address of the IPAddress cannot be read, each reserved address counts as recorded.
        let is_recorded = |at: IpAddr| address.is_some_and(|address| address.ip().is_none_or(|ip| ip == at));
        let reserved = allocator.reserved_by_records_of(&holder).filter(|(_, address)| !is_recorded(*address));
        // The reference of a claim can be changed. The IPAddress keeps its pool.
        let of_address = address.and_then(|address| address.pool.resolve(&key.namespace));
        let in_registry = |pool: &PoolId| allocator.pool(&pool.to_string());
        let held = held_by(allocator, &holder, of_address.as_ref().or(pool).and_then(in_registry));
        let pool = pool.and_then(in_registry);
        Self {
            unrecorded: reserved.map(|(network, address)| (network.to_owned(), address)).collect(),
            pool: pool.map(|pool| RegisteredPool::of(pool, &held)),
            held,
            waits: allocator.waits(&holder),
            is_left_over: address.is_some_and(|address| is_left_over(allocator, address, uid)),
            is_of_former: address
                .is_some_and(|address| named_holders(allocator, address).any(|of| former.contains(&of.uid))),
        }
    }
}

/// The addresses that a claim holds on the network of a pool. The address with the earliest lease comes first. `None`:
/// the registry does not have the pool, so the addresses of every network count.
///
/// A lease protects its address on its own network only: the pool of another network can allocate the same address.
pub(crate) fn held_by(allocator: &Allocator, holder: &Machine, pool: Option<&Pool>) -> Vec<Held> {
    let mut held: Vec<_> = leases_on(allocator, holder, pool).collect();
    held.sort_by_key(|(address, lease)| (lease.since, *address));
    let held = held.into_iter().map(|(address, lease)| Held {
        address: with_prefix(address, lease.prefix),
        interface: lease.claimant.interface,
        pool: lease.pool.to_string(),
    });
    held.collect()
}

fn leases_on<'a>(
    allocator: &'a Allocator,
    holder: &Machine,
    pool: Option<&'a Pool>,
) -> impl Iterator<Item = (IpAddr, &'a Lease)> {
    let leases = allocator.leases_of(holder).filter(move |(on, ..)| pool.is_none_or(|pool| pool.network() == *on));
    leases.map(|(_, address, lease)| (address, lease))
}

/// Returns an address that the claim holds in addition to an address of `kept` on the same interface and of the same
/// family. The claim never got this address. `None`: there is no such address.
pub(crate) fn surplus<'h>(held: &'h [Held], kept: &[IpAddr]) -> Option<&'h Held> {
    let is_kept = |held: &&Held| kept.contains(&held.address.ip());
    let place = |held: &Held| (held.interface, Family::of(held.address.ip()));
    held.iter().find(|one| !is_kept(one) && held.iter().filter(is_kept).any(|other| place(one) == place(other)))
}

/// Whether an IPAddress was created for an earlier claim, and the current claim of the name, `uid`, cannot have its
/// address. The current claim cannot have the address if it holds another address, or if another claim or a machine
/// holds this address. If no claim owns the IPAddress, the proof is a lease of an earlier claim with this address.
///
/// The API server may receive such an IPAddress late: a leader that has lost the Lease sent it, and another leader has
/// released the address in the meantime.
pub(super) fn is_left_over(allocator: &Allocator, address: &IpAddress, uid: &str) -> bool {
    let key = address.key();
    let Some(owner) = address.owner() else { return named_holders(allocator, address).any(|of| of.uid != uid) };
    let Some(ip) = address.ip().filter(|_| owner != uid) else { return false };
    let pool = pool_of(allocator, address);
    holds(allocator, &key.holder(HolderKind::IpAddressClaim, owner), ip, pool)
        || allocator.leases_of(&key.holder(HolderKind::IpAddressClaim, uid)).any(|(_, held, _)| held != ip)
        || pool.is_some_and(|pool| {
            let holder = allocator.holder(pool.network(), ip);
            holder.is_some_and(|holder| holder.machine.uid != uid)
        })
}

/// The claims with the name of an IPAddress that hold the address of the IPAddress on its network.
pub(super) fn named_holders<'a>(allocator: &'a Allocator, address: &IpAddress) -> impl Iterator<Item = &'a Machine> {
    let (Key { namespace, name }, ip) = (address.key(), address.ip());
    let claims = allocator.namesakes(&namespace, &name).filter(|machine| machine.kind == HolderKind::IpAddressClaim);
    let pool = pool_of(allocator, address);
    claims.filter(move |claim| ip.is_some_and(|ip| holds(allocator, claim, ip, pool)))
}

/// Whether a claim holds an address on the network of a pool. For `None`, see [`held_by`].
pub(super) fn holds(allocator: &Allocator, holder: &Machine, ip: IpAddr, pool: Option<&Pool>) -> bool {
    leases_on(allocator, holder, pool).any(|(address, _)| address == ip)
}

/// The pool of an IPAddress. `None`: the registry does not have the pool.
pub(super) fn pool_of<'a>(allocator: &'a Allocator, address: &IpAddress) -> Option<&'a Pool> {
    allocator.pool(&address.pool.resolve(&address.key().namespace)?.to_string())
}

/// Returns the record of an IPAddress: the claim `uid` of the same name has the address on the interface of the pool.
pub(crate) fn record(address: &IpAddress, ip: IpAddr, uid: &str, interface: InterfaceName) -> Record {
    let key = address.key();
    let prefix = address.prefix.try_into().unwrap_or(u8::MAX);
    Record {
        claimant: Claimant { machine: key.holder(HolderKind::IpAddressClaim, uid), interface },
        node_pool: address.pool.resolve(&key.namespace).map(|pool| pool.to_string()),
        attachments: Vec::new(),
        network: None,
        addresses: vec![with_prefix(ip, prefix)],
        source: format!("IPAddress {key}"),
        kind: Source::IpAddress,
    }
}

/// Returns an address with its prefix length. An invalid prefix length is replaced by the longest, which stands for an
/// unknown prefix length.
fn with_prefix(address: IpAddr, prefix: u8) -> IpNetwork {
    IpNetwork::new(address, prefix).unwrap_or_else(|_| IpNetwork::from(address))
}
