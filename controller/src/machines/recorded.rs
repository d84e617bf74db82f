//! Reads what the registry knows about the machines of one name.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use glowplug::host::allocator::{Allocator, ClaimError, Mismatch};
use glowplug::host::claim::{Claimant, Lease, Machine, Record, Reservation};
use glowplug::host::may_record::{Ignored, Source, Verdict};
use glowplug::host::pool::Pool;
use glowplug::network::InterfaceName;
use ipnetwork::IpNetwork;

use crate::cluster::key::Key;
use crate::cluster::request::list;
use crate::machines::step::Notice;

/// State of all machines of one name in the registry.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Recorded {
    /// The pools that serve the machine, by name.
    pub(super) pools: BTreeMap<String, Pool>,
    /// Addresses that machines of this name hold, oldest lease first.
    pub(super) held: Vec<Held>,
    /// Pools of some addresses of `held`, by network and address: the only pool that now has the address, serves the
    /// machine and allocates addresses. An entry exists only if the pool of the lease no longer has the address, or if
    /// the leases of the interface are from several pools.
    pub(super) homes: BTreeMap<(String, IpAddr), Pool>,
    /// Addresses that claims of the VirtualMachine hold, see [`Recorded::read`].
    pub(super) of_claims: Vec<Held>,
    /// Machines of this name that hold an address or have a record without a lease.
    pub(super) known: BTreeSet<Machine>,
    /// Whether machines of this name hold addresses of pools that belong to another controller.
    pub(super) is_of_another: bool,
    /// KubevirtMachines of other namespaces that hold an address for the VirtualMachine, according to a lease of version 0.2.0
    /// or earlier. Each of them is in `known`.
    pub(super) earlier: BTreeSet<Machine>,
    /// KubevirtMachines of this name that hold an address for a VirtualMachine in another namespace.
    pub(super) elsewhere: BTreeSet<Machine>,
    /// Addresses that are reserved for machines of this name and that no pool offers. Each address comes with its
    /// network.
    pub(super) excluded: BTreeMap<Machine, BTreeSet<(String, IpAddr)>>,
    /// Addresses that are reserved for machines of this name, without those of `excluded`. Each address comes with its
    /// network.
    pub(super) reserved: BTreeMap<Machine, BTreeSet<(String, IpAddr)>>,
    /// Reservations that the registry does not have yet and that the machine needs. An object of the machine records each
    /// of these addresses, but the record was written after the address had been opened for allocation. So the record
    /// was not adopted, and the machine has neither a lease nor a reservation of the address.
    pub(super) late: Vec<Reservation>,
    /// Addresses that are reserved for machines of this name, and that no object of the machine records any more.
    pub(super) unrecorded: BTreeMap<Machine, BTreeSet<(String, IpAddr)>>,
    /// Addresses that are reserved for machines of this name and that have another user, too. Each address comes with its
    /// network.
    pub(super) conflicts: BTreeSet<(String, IpAddr)>,
    /// Machines of this name that wait for an address.
    pub(super) waiting: BTreeSet<Machine>,
}

/// An address that a machine holds.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Held {
    pub(super) claimant: Claimant,
    pub(super) network: String,
    pub(super) address: IpAddr,
    /// Name of the pool of the address.
    pub(super) pool: String,
    /// Prefix length of the address.
    pub(super) prefix: u8,
    /// Secrets from which guests may read the address. Empty: the Secrets are not known, or the holder is a claim.
    pub(super) secrets: BTreeSet<String>,
    /// Whether the guest migrated to another cluster with the address.
    pub(super) has_left: bool,
}

/// Returns the records of an earlier machine, reduced to their free addresses. `Err`: an address of a record is closed,
/// so other machines may have records of this address that are not adopted yet.
pub(super) fn free_of(allocator: &Allocator, mut records: Vec<Record>) -> Result<Vec<Record>, ClaimError> {
    for Record { claimant, node_pool, network, addresses, kind, .. } in &mut records {
        let network = network.as_deref().unwrap_or_default();
        addresses.retain(|it| allocator.may_record(*kind, claimant, network, it.ip()) == Verdict::Lease);
        if addresses.iter().any(|it| allocator.is_closed(network, it.ip())) {
            return Err(ClaimError::Closed(node_pool.clone().unwrap_or_default()));
        }
    }
    records.retain(|record| !record.addresses.is_empty());
    Ok(records)
}

// === impl Recorded ===

impl Recorded {
    /// Reads the state of the machines of one VirtualMachine, and the state of its pools.
    ///
    /// - `earlier`: KubevirtMachines of other namespaces that may hold an address for the VirtualMachine
    /// - `claims`: claims that name the VirtualMachine. Claims whose name is `VM.INTERFACE` may be left out: the
    ///   allocator finds them
    /// - `doubted`: addresses of records that cannot be read or contradict another record
    /// - `may_be_copies`: whether the records may come from another machine, see `View::may_have_copies`
    pub(super) fn read(
        allocator: &Allocator,
        (key, earlier, claims): (&Key, &BTreeSet<Machine>, &BTreeSet<Machine>),
        (records, doubted, may_be_copies, growth): (&[Record], &BTreeSet<IpAddr>, bool, u64),
        pools: &[String],
        scope: &str,
    ) -> Self {
        let mut recorded = Self::default();
        let mut since = Vec::new();
        // If the controller has a scope, leases from pools of other namespaces belong to another controller.
        let is_ours = |pool: &str| scope.is_empty() || pool.split_once('/').is_some_and(|(name, _)| name == scope);
        for machine in allocator.namesakes(&key.namespace, &key.name).chain(earlier) {
            if machine.kind.is_claim() {
                continue;
            }
            let is_earlier = earlier.contains(machine);
            if Key::of_vm(machine) != *key {
                recorded.elsewhere.insert(machine.clone());
                continue;
            }
            let before = since.len();
            let (ours, others): (Vec<_>, Vec<_>) =
                allocator.leases_of(machine).partition(|(_, _, lease)| is_ours(&lease.pool));
            recorded.is_of_another |= !others.is_empty();
            since.extend(
                ours.into_iter()
                    .map(|(network, address, lease)| ((lease.since, address), Held::of(network, address, lease))),
            );
            if since.len() > before || allocator.conflicts_of(machine).next().is_some() {
                recorded.known.insert(machine.clone());
                recorded.earlier.extend(is_earlier.then(|| machine.clone()));
            }
        }
        since.sort_by_key(|(since, _)| *since);
        recorded.held = since.into_iter().map(|(_, held)| held).collect();
        let claims: BTreeSet<&Machine> = allocator.claims_of_guest(&key.namespace, &key.name).chain(claims).collect();
        recorded.of_claims = claims.into_iter().flat_map(|claim| Held::all_of(allocator, claim)).collect();
        recorded.of_claims.retain(|held| is_ours(&held.pool));
        for Held { network, address, pool, claimant, .. } in &recorded.held {
            let is_other =
                |other: &Held| (&other.claimant, &other.network) == (claimant, network) && other.pool != *pool;
            // The document of an interface has the settings of one pool. If the leases of the interface are from
            // several pools, the pass needs the current pool of each address.
            let is_split = recorded.held.iter().any(is_other);
            if is_split || allocator.pool(pool).is_none_or(|pool| !pool.contains(*address)) {
                let home = allocator.home(network, *address, &claimant.machine);
                recorded.homes.extend(home.map(|home| ((network.clone(), *address), home.clone())));
            }
        }
        let waiting = allocator.waiting_namesakes(&key.namespace, &key.name);
        let waiting = waiting.filter(|machine| !machine.kind.is_claim() && Key::of_vm(machine) == *key);
        recorded.waiting = waiting.chain(earlier.iter().filter(|machine| allocator.waits(machine))).cloned().collect();
        recorded.pools = pools.iter().filter_map(|name| Some((name.clone(), allocator.pool(name)?.clone()))).collect();
        for machine in &recorded.known {
            let of_machine = allocator.conflicts_of(machine).map(|(network, address)| (network.to_owned(), address));
            let (excluded, reserved): (BTreeSet<_>, BTreeSet<_>) =
                of_machine.partition(|(network, at)| allocator.is_excluded_for(network, *at, machine));
            if !excluded.is_empty() {
                recorded.excluded.insert(machine.clone(), excluded);
            }
            if !reserved.is_empty() {
                recorded.reserved.insert(machine.clone(), reserved);
            }
            let conflicts = allocator.conflicts_of(machine).filter(|(network, at)| allocator.is_conflict(network, *at));
            recorded.conflicts.extend(conflicts.map(|(network, address)| (network.to_owned(), address)));
        }
        let is_recorded = |address: IpAddr| {
            let has = |record: &Record| record.addresses.iter().any(|recorded| recorded.ip() == address);
            doubted.contains(&address) || records.iter().any(has)
        };
        for machine in &recorded.known {
            let reserved = allocator.reserved_by_records_of(machine).filter(|(_, address)| !is_recorded(*address));
            let unrecorded: BTreeSet<_> = reserved.map(|(network, address)| (network.to_owned(), address)).collect();
            if !unrecorded.is_empty() {
                recorded.unrecorded.insert(machine.clone(), unrecorded);
            }
        }
        // While the addresses of a growth are closed, their records are possibly not adopted yet. So no record counts
        // as late.
        let records = if allocator.growth() == growth { records } else { &[] };
        recorded.late = records.iter().flat_map(|record| recorded.late(allocator, record, may_be_copies)).collect();
        recorded
    }

    /// Returns all addresses of [`Recorded::excluded`], each with its network.
    pub(super) fn excluded(&self) -> impl Iterator<Item = &(String, IpAddr)> {
        self.excluded.values().flatten()
    }

    /// Returns reservations for the addresses of a late record, because the machine may use these addresses. An address
    /// is left out in these cases:
    ///
    /// - Machines of this name hold the address, or have a reservation of it.
    /// - The record is possibly a copy, and another machine holds the address.
    /// - The registry ignores the record.
    fn late(&self, allocator: &Allocator, record: &Record, may_be_copy: bool) -> Vec<Reservation> {
        let Record { claimant, network, attachments, source, .. } = record;
        let networks: BTreeSet<&String> = match network {
            Some(network) => [network].into(),
            None => attachments.iter().collect(),
        };
        let has_pool = |network: &&&String| {
            let mut pools = allocator.pools().filter(|pool| *pool.network() == ***network);
            pools.any(|pool| pool.interface() == claimant.interface)
        };
        let noted_of = |machine| {
            let of_machine = allocator.conflicts_of(machine);
            of_machine.filter(move |(network, address)| !allocator.has_ended(network, *address, machine))
        };
        let noted: BTreeSet<(&str, IpAddr)> = self.known.iter().flat_map(noted_of).collect();
        let mut late = Vec::new();
        for network in networks.iter().filter(has_pool) {
            for address in record.addresses.iter().map(IpNetwork::ip) {
                let is_held = self.held.iter().any(|held| held.network == **network && held.address == address);
                // A copied machine has the records of the original machine until the controller removes them.
                let is_copied = may_be_copy && self.held.is_empty() && allocator.holder(network, address).is_some();
                // `may_record` has no source of its own for late records. A late record counts like a record that
                // cannot be read: it never becomes a lease, but its address is reserved.
                let kind = Source::Unreadable;
                let counts = !matches!(allocator.may_record(kind, claimant, network, address), Verdict::Ignore(_));
                if !is_held && !is_copied && counts && !noted.contains(&(network.as_str(), address)) {
                    let (claimant, source) = (claimant.clone(), source.clone());
                    late.push(Reservation { address, network: Some((*network).clone()), claimant, source, kind });
                }
            }
        }
        late
    }
}

// === impl Held ===

impl Held {
    /// Returns the addresses that a machine holds.
    pub(super) fn all_of(allocator: &Allocator, machine: &Machine) -> Vec<Self> {
        allocator.leases_of(machine).map(|(network, address, lease)| Self::of(network, address, lease)).collect()
    }

    fn of(network: &str, address: IpAddr, lease: &Lease) -> Self {
        let claimant = Claimant::clone(&lease.claimant);
        Self {
            claimant,
            network: network.to_owned(),
            address,
            pool: lease.pool.to_string(),
            prefix: lease.prefix,
            secrets: lease.secrets.clone(),
            has_left: lease.migrated.is_some(),
        }
    }
}

// === impl Notice ===

impl Notice {
    /// Creates the event about the addresses that stay held for a guest after its migration to another cluster. `None`:
    /// there are no such addresses.
    pub(super) fn of_held(addresses: &BTreeSet<IpAddr>) -> Option<Self> {
        let note = format!(
            "The guest migrated to another cluster with {}: no machine gets these addresses until 30 days after the deletion of the \
             VirtualMachine, or until their StaticIPLeases are deleted after that",
            list(addresses)
        );
        (!addresses.is_empty()).then_some(Self { is_warning: false, reason: "IPAddressHeld", note })
    }

    /// Creates the event about the addresses that are not held for a guest after its migration to another cluster:
    /// its namespace already keeps too many addresses for such guests, or the API server refuses the write. `None`:
    /// there are no such addresses.
    pub(super) fn of_not_held(addresses: &BTreeSet<IpAddr>) -> Option<Self> {
        let note = format!(
            "The guest migrated to another cluster with {}, and its namespace has a quarter of the pool for such guests already, or the \
             API server refuses to change the lease: after the deletion of the VirtualMachine, other machines may get these addresses; exclude them from the pool before the deletion",
            list(addresses)
        );
        (!addresses.is_empty()).then_some(Self { is_warning: true, reason: "IPAddressNotHeld", note })
    }

    /// Creates the event about the addresses that a holder has released. `None`: the holder has released no address.
    pub(super) fn of_release<'h>(held: impl IntoIterator<Item = &'h Held>) -> Option<Self> {
        let mut interfaces: BTreeMap<InterfaceName, Vec<IpAddr>> = BTreeMap::new();
        for Held { claimant, address, .. } in held {
            interfaces.entry(claimant.interface).or_default().push(*address);
        }
        let of_each = interfaces.iter().map(|(interface, addresses)| format!("{} of {interface}", list(addresses)));
        let note = format!("Released {}", list(of_each));
        (!interfaces.is_empty()).then_some(Self { is_warning: false, reason: "IPAddressReleased", note })
    }
}

/// Returns the part of an event's note that names recorded addresses which are not reserved, because the records of the
/// namespace already use its share of the pool. `None`: all recorded addresses are reserved.
pub(super) fn unreserved(beyond: &[Mismatch]) -> Option<String> {
    let addresses: BTreeSet<IpAddr> = beyond.iter().map(|mismatch| mismatch.address).collect();
    let why = Ignored::Share;
    (!addresses.is_empty()).then(|| format!("another machine may get {}: {why}", list(addresses)))
}

#[cfg(test)]
mod tests;
