//! Finds the recorded addresses that the registry must adopt, because no lease has them yet, and the addresses that the
//! registry has adopted from records.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::pin::pin;

use futures::{StreamExt as _, TryStreamExt as _, stream};
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

/// Maximum number of records whose leases are read at the same time.
const READS: usize = 64;

/// Records of addresses that the object of the record does not hold yet, according to the leases on the API server.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Unheld {
    /// The records that the registry must adopt. Each of them has an address.
    pub(crate) records: Vec<Record>,
    /// Whether an address was left out. Another leader has written its lease, and the registry receives the lease later.
    pub(crate) is_behind: bool,
    /// The addresses in `records` whose leases cannot be read. Each text names the lease, and says what to do.
    pub(crate) unreadable: Vec<(IpAddr, String)>,
}

/// The lease of a recorded address on the API server.
#[derive(Clone, Debug, Eq, PartialEq)]
enum Stored {
    /// The object of the record does not hold the address.
    NotHeld,
    /// The object of the record holds the address.
    Held,
    /// The lease cannot be read. The text names the lease, and says what to do.
    Unreadable(String),
}

/// Reads the leases of the addresses in records, and leaves out the addresses that the object of the record holds. Each
/// record comes with its network. The leases are read from the API server, because the registry may receive a lease of
/// another leader late.
///
/// The records must not name addresses that the registry has for the same object. The leader decides about each address
/// of a record on its own: after a crash, the API server may have the lease of only one of two addresses.
pub(crate) async fn unheld(
    client: &Client,
    records: impl IntoIterator<Item = (Record, String)>,
) -> Result<Unheld, Error> {
    let read = stream::iter(records).map(|(record, network)| async move {
        let mut leases = Vec::new();
        for address in &record.addresses {
            leases.push(stored_lease(client, address.ip(), &network, &record.claimant.machine.uid).await?);
        }
        Ok::<_, Error>((record, leases))
    });
    let (mut read, mut unheld) = (pin!(read.buffered(READS)), Unheld::default());
    while let Some((record, leases)) = read.try_next().await? {
        unheld.add(record, leases);
    }
    Ok(unheld)
}

/// Reads the lease of this address and network for the object with this UID.
async fn stored_lease(client: &Client, address: IpAddr, network: &str, uid: &str) -> Result<Stored, Error> {
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

// === impl Unheld ===

impl Unheld {
    /// Adds a record. `leases` has the lease of each of its addresses.
    fn add(&mut self, mut record: Record, leases: Vec<Stored>) {
        for (address, lease) in std::mem::take(&mut record.addresses).into_iter().zip(leases) {
            match lease {
                Stored::Held => {
                    self.is_behind = true;
                    continue;
                }
                Stored::NotHeld => {}
                Stored::Unreadable(reason) => self.unreadable.push((address.ip(), reason)),
            }
            record.addresses.push(address);
        }
        if !record.addresses.is_empty() {
            self.records.push(record);
        }
    }
}

#[cfg(test)]
mod tests {
    use glowplug::host::may_record::Source;

    use super::*;

    /// Returns the record of machine `n/a` with these addresses.
    fn record(addresses: &[&str]) -> Record {
        Record {
            claimant: Claimant { machine: Machine::new("n", "a", "u"), interface: "eno101".parse().unwrap() },
            node_pool: None,
            attachments: Vec::new(),
            network: None,
            addresses: addresses.iter().map(|text| text.parse().unwrap()).collect(),
            source: "KubevirtMachine n/a".to_owned(),
            kind: Source::Annotation,
        }
    }

    #[test]
    fn an_address_is_left_out_of_a_record_only_if_a_lease_shows_that_the_object_of_the_record_holds_it() {
        let unreadable = || Stored::Unreadable("correct it".to_owned());
        let mut unheld = Unheld::default();
        unheld.add(record(&["10.0.0.7/24", "fd00::7/64"]), vec![Stored::NotHeld, unreadable()]);
        assert!(!unheld.is_behind);
        unheld.add(record(&["10.0.0.8/24", "fd00::8/64"]), vec![Stored::Held, Stored::NotHeld]);
        unheld.add(record(&["10.0.0.9/24", "fd00::9/64"]), vec![Stored::Held, Stored::Held]);
        unheld.add(record(&["10.0.0.10/24", "fd00::10/64"]), vec![unreadable(), Stored::Held]);
        let records = [&["10.0.0.7/24", "fd00::7/64"] as &[&str], &["fd00::8/64"], &["10.0.0.10/24"]];
        let addresses = ["fd00::7", "10.0.0.10"].map(|text| text.parse().unwrap());
        let expected = Unheld {
            records: records.map(record).into(),
            is_behind: true,
            unreadable: addresses.map(|address| (address, "correct it".to_owned())).into(),
        };
        assert_eq!(unheld, expected);
    }

    #[test]
    fn an_address_that_is_reserved_without_a_lease_is_not_adopted() {
        let record = record(&["10.0.0.7/24", "10.0.0.8/24"]);
        let (claimant, addresses) = (record.claimant.clone(), record.addresses.clone());
        let of_machine = |addresses: &[IpNetwork]| BTreeMap::from([(claimant.machine.clone(), addresses.to_vec())]);
        let mut adoption = Adoption::default();
        assert_eq!(adopted([&record], &adoption), of_machine(&addresses));
        adoption.reserved.push((claimant.clone(), addresses[0].ip()));
        assert_eq!(adopted([&record], &adoption), of_machine(&addresses[1..]));
        adoption.reserved.push((claimant.clone(), addresses[1].ip()));
        assert_eq!(adopted([&record], &adoption), BTreeMap::new());
    }
}
