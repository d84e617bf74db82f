//! The recovery procedure: what the objects of machines say, beside what the ledger says, and taken over into it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use super::allocator::Adoption;
use super::claim::{Allocation, Claimant, Conflict, Machine};
use super::ledger::{Ledger, LedgerError};
use super::pool::Pool;
use super::records::Inventory;
use super::registry::{Registry, Released};

/// A machine is released only when an audit missed it so long ago at least: who looks twice within a moment has looked
/// once. By then a list of a cache that lags is another one.
pub const SIGHTINGS_APART: Duration = Duration::from_secs(5 * 60);

/// What an audit found.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Audit {
    /// What a rebuild would do with the records: how many it would add, and which do not fit.
    pub adoption: Adoption,
    /// The machines that the ledger knows and that are not there any more.
    pub missing: Vec<Missing>,
    /// What those got who waited for what was released.
    pub served: Vec<Allocation>,
}

/// A machine that is not there any more.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Missing {
    /// Which.
    pub machine: Machine,
    /// When an audit missed it first, in milliseconds since 1970. `None`: only this one did.
    pub since: Option<u64>,
    /// From when on an audit may release it, in milliseconds since 1970.
    pub releasable_from: u64,
    /// What was released. `None`: nothing was.
    pub released: Option<Vec<Allocation>>,
}

/// Compares the ledger with the objects of all machines.
///
/// A machine is missing when the ledger knows it and there is no object of it, nor one that cannot be read and names its
/// address, provided that the inventory is of complete lists: KubevirtMachines, VirtualMachines and
/// VirtualMachineInstances of all namespaces. That is noted in the ledger. With `release_missing`, one that an audit missed
/// already [`SIGHTINGS_APART`] before, and none has seen since, is released: who looks once may look at the wrong moment.
/// Nothing else changes who holds an address.
///
/// # Errors
///
/// The ledger failed, and nothing was released; what was noted before stays so.
pub fn audit<L: Ledger>(
    registry: &mut Registry<L>,
    inventory: &Inventory,
    release_missing: bool,
    now: u64,
) -> Result<Audit, LedgerError> {
    let adoption = registry.preview(inventory.records.iter().cloned(), now)?;
    let allocator = registry.state()?;
    let holders = allocator.leases().map(|(_, _, lease)| lease.claimant.machine.clone());
    let waiters = allocator.waiters().into_iter().map(|claim| claim.machine.clone());
    let conflicts = allocator.conflicts().map(|(_, _, conflict)| conflict.claimant.machine);
    let known: BTreeSet<Machine> = holders
        .chain(waiters)
        .chain(conflicts)
        .chain(allocator.missing().map(|(machine, _)| machine.clone()))
        .collect();
    let mut unread: BTreeSet<Machine> = unreadable(inventory).map(|(_, conflict)| conflict.claimant.machine).collect();
    // An object that is there and of which nobody can tell whose it is may be whose address it names.
    let nobodys = inventory.findings.iter().filter(|finding| finding.claimant.is_none());
    let named: BTreeSet<IpAddr> = nobodys.flat_map(|finding| finding.addresses.iter().copied()).collect();
    let of_named = allocator.leases().filter(|(_, address, _)| named.contains(address));
    unread.extend(of_named.map(|(_, _, lease)| lease.claimant.machine.clone()));
    let is_there = |machine: &Machine| inventory.is_there(machine) || unread.contains(machine);
    let (there, missing): (Vec<Machine>, Vec<Machine>) = known.into_iter().partition(is_there);
    let since = registry.note_looked_for(&there, &missing, now)?;
    let apart = u64::try_from(SIGHTINGS_APART.as_millis()).unwrap_or(u64::MAX);
    let missed = |(machine, since): (Machine, Option<u64>)| Missing {
        machine,
        since,
        releasable_from: since.unwrap_or(now).saturating_add(apart),
        released: None,
    };
    let mut missing: Vec<Missing> = missing.into_iter().zip(since).map(missed).collect();
    let gone = missing.iter_mut().filter(|missing| release_missing && missing.releasable_from <= now);
    let mut released: BTreeMap<&Machine, &mut Vec<Allocation>> =
        gone.map(|missing| (&missing.machine, missing.released.insert(Vec::new()))).collect();
    let Released { held, served } = registry.release_all(released.keys().copied(), now)?;
    for allocation in held {
        if let Some(released) = released.get_mut(&allocation.claimant.machine) {
            released.push(allocation);
        }
    }
    Ok(Audit { adoption, missing, served })
}

/// Takes over what the objects of machines record; see [`Registry::adopt`].
///
/// The addresses of records that nobody can read are given to nobody, since somebody may use them: they are set aside in the
/// name of whose record it is. Where that cannot be told, it is no machine that could be, `-/unreadable-record`, with the
/// address for its UID; an audit misses it as soon as no such record is there any more.
///
/// # Errors
///
/// The ledger failed; what was set aside stays so.
pub fn rebuild<L: Ledger>(
    registry: &mut Registry<L>,
    inventory: &Inventory,
    now: u64,
) -> Result<Adoption, LedgerError> {
    registry.set_aside(unreadable(inventory), now)?;
    registry.adopt(inventory.records.iter().cloned(), now)
}

fn unreadable(inventory: &Inventory) -> impl Iterator<Item = (IpAddr, Conflict)> {
    inventory.findings.iter().flat_map(|finding| {
        finding.addresses.iter().filter_map(|address| {
            let nobodys = || {
                let machine =
                    Machine { namespace: "-".into(), name: "unreadable-record".into(), uid: address.to_string() };
                Some(Claimant { machine, interface: Pool::DEFAULT_INTERFACE.parse().ok()? })
            };
            let claimant = finding.claimant.clone().or_else(nobodys)?;
            Some((*address, Conflict { claimant, source: finding.to_string() }))
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::claim::{Claim, Request};
    use crate::host::pool::tests::pool;
    use crate::host::records::Objects;
    use crate::host::registry::tests::registry;

    #[test]
    fn whose_address_an_unreadable_object_names_is_not_missing() {
        let one = pool("{name: one, network: n, addresses: [10.0.0.0/24]}");
        let mut registry = registry([one]);
        let [named, other] = ["a", "b"].map(|name| {
            let machine = Machine { namespace: "n".into(), name: name.into(), uid: "u".into() };
            let requests = vec![Request::of("default/one")];
            registry.claim(&Claim { machine: machine.clone(), created: 0, requests, sticky: false }, 0).unwrap();
            machine
        });
        let list = r#"{"items": [{"kind": "KubevirtMachine", "metadata": {"namespace": "n", "name": "a", "uid": 7,
            "annotations": {"kubevirt.cluster.x-k8s.io/allocated-ip-eno101": "[\"10.0.0.1/24\"]"}}}]}"#;
        let mut objects = Objects::default();
        objects.read("list", list.as_bytes()).unwrap();
        let mut missing = |inventory: &Inventory| {
            let missing = audit(&mut registry, inventory, false, 1_000).unwrap().missing;
            missing.into_iter().map(|missing| missing.machine).collect::<Vec<_>>()
        };
        assert_eq!(missing(&objects.inventory()), vec![other.clone()]);
        assert_eq!(missing(&Inventory::default()), [named, other]);
    }

    #[test]
    fn who_looks_twice_within_a_moment_has_looked_once() {
        let one = pool("{name: one, network: n, addresses: [10.0.0.0/24]}");
        let mut registry = registry([one]);
        let machine = Machine { namespace: "n".into(), name: "a".into(), uid: "u".into() };
        let requests = vec![Request::of("default/one")];
        let claim = Claim { machine: machine.clone(), created: 0, requests, sticky: false };
        let held = registry.claim(&claim, 0).unwrap();
        let mut look = |now| audit(&mut registry, &Inventory::default(), true, now).unwrap().missing;
        let missing = |since, releasable_from, released| {
            vec![Missing { machine: machine.clone(), since, releasable_from, released }]
        };
        assert_eq!(look(1_000), missing(None, 301_000, None));
        assert_eq!(look(1_001), missing(Some(1_000), 301_000, None));
        assert_eq!(look(300_999), missing(Some(1_000), 301_000, None));
        assert_eq!(look(301_000), missing(Some(1_000), 301_000, Some(held)));
        assert_eq!(look(301_001), []);
    }
}
