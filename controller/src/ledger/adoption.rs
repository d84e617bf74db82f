//! Finds the recorded addresses that have a lease already, and the addresses that the registry has adopted from
//! records.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use glowplug::host::allocator::Adoption;
use glowplug::host::claim::{Claimant, Machine, Record};
use ipnetwork::IpNetwork;
use kube::api::ApiResource;
use kube::{Api, Client};

use crate::cluster::conditions::unreadable_lease;
use crate::cluster::object::Object;
use crate::cluster::request::{Error, ask, find};
use crate::kinds::lease_name::lease_name;
use crate::kinds::pool::StaticIPLease;
use crate::ledger::leases;

/// The lease of a recorded address on the API server.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Stored {
    /// The object of the record does not hold the address.
    NotHeld,
    /// The object of the record holds the address.
    Held,
    /// The lease cannot be read. The text names the lease, and says what to do.
    Unreadable(String),
}

/// Reads the lease of this address and network for the object with this UID. The API server is asked, because the
/// registry may receive a lease of another leader late.
pub(crate) async fn stored_lease(client: &Client, address: IpAddr, network: &str, uid: &str) -> Result<Stored, Error> {
    // If the name of a lease cannot contain a network, the network has no pool, and so no lease.
    let Ok(name) = lease_name(address, network) else { return Ok(Stored::NotHeld) };
    let leases: Api<Object> = Api::all_with(client.clone(), &ApiResource::erase::<StaticIPLease>(&()));
    let Some(lease) = ask(find(&leases, &name)).await? else { return Ok(Stored::NotHeld) };
    Ok(match leases::read(&lease, address, network) {
        Ok((spec, _)) if spec.released.is_none() && spec.holder.uid == uid => Stored::Held,
        Ok(_) => Stored::NotHeld,
        Err(reason) => {
            let line = unreadable_lease(&address, &name, &reason);
            Stored::Unreadable(format!("{line}: correct this lease, because the address is in use"))
        }
    })
}

/// Returns the addresses that the registry has adopted from records, by the holder in the record.
///
/// The records must not name addresses that the registry held before the adoption. The result leaves out the mismatches
/// of the adoption. It also leaves out addresses that are reserved without a lease, because each further adoption of
/// their records reserves them again.
pub(crate) fn adopted<'r>(
    records: impl IntoIterator<Item = &'r Record>,
    adoption: &Adoption,
) -> BTreeMap<Machine, Vec<IpNetwork>> {
    let mut adopted: BTreeMap<Machine, Vec<IpNetwork>> = BTreeMap::new();
    let mismatches = adoption.mismatches.iter().map(|mismatch| (&mismatch.claimant, mismatch.address));
    let reserved = adoption.reserved.iter().map(|(claimant, address)| (claimant, *address));
    let without_lease: BTreeSet<(&Claimant, IpAddr)> = mismatches.chain(reserved).collect();
    for Record { claimant, addresses, .. } in records {
        let is_adopted = |address: &&IpNetwork| !without_lease.contains(&(claimant, address.ip()));
        let addresses = addresses.iter().filter(is_adopted).copied();
        addresses.for_each(|address| adopted.entry(claimant.machine.clone()).or_default().push(address));
    }
    adopted
}

#[cfg(test)]
mod tests {
    use glowplug::host::may_record::Source;

    use super::*;

    #[test]
    fn an_address_that_is_reserved_without_a_lease_is_not_adopted() {
        let claimant = Claimant { machine: Machine::new("n", "a", "u"), interface: "eno101".parse().unwrap() };
        let addresses: Vec<IpNetwork> = ["10.0.0.7/24", "10.0.0.8/24"].map(|text| text.parse().unwrap()).to_vec();
        let record = Record {
            claimant: claimant.clone(),
            node_pool: None,
            attachments: Vec::new(),
            network: None,
            addresses: addresses.clone(),
            source: "KubevirtMachine n/a".to_owned(),
            kind: Source::Annotation,
        };
        let of_machine = |addresses: &[IpNetwork]| BTreeMap::from([(claimant.machine.clone(), addresses.to_vec())]);
        let mut adoption = Adoption::default();
        assert_eq!(adopted([&record], &adoption), of_machine(&addresses));
        adoption.reserved.push((claimant.clone(), addresses[0].ip()));
        assert_eq!(adopted([&record], &adoption), of_machine(&addresses[1..]));
        adoption.reserved.push((claimant.clone(), addresses[1].ip()));
        assert_eq!(adopted([&record], &adoption), BTreeMap::new());
    }
}
