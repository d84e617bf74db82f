//! Which recorded addresses have a lease already, and which addresses the registry has adopted from records.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use glowplug::host::allocator::Adoption;
use glowplug::host::claim::{Claimant, Machine, Record};
use ipnetwork::IpNetwork;
use kube::api::ApiResource;
use kube::{Api, Client};

use crate::cluster::object::Object;
use crate::cluster::request::{Error, ask};
use crate::kinds::lease_name::lease_name;
use crate::kinds::pool::{LeaseSpec, StaticIPLease};

/// Whether the API server has a lease of this address and network for the object with this UID, or a lease that cannot be
/// read. Another leader may have written the lease a moment ago, before the registry receives it.
pub(crate) async fn is_leased(
    client: &Client,
    address: std::net::IpAddr,
    network: &str,
    uid: &str,
) -> Result<bool, Error> {
    // A network that the name of a lease cannot contain has no pool, so it has no lease.
    let Ok(name) = lease_name(address, network) else { return Ok(false) };
    let leases: Api<Object> = Api::all_with(client.clone(), &ApiResource::erase::<StaticIPLease>(&()));
    let Some(lease) = ask(leases.get_opt(&name)).await? else { return Ok(false) };
    let spec = serde_json::from_value::<LeaseSpec>(lease.data["spec"].clone());
    Ok(spec.map_or(true, |spec| spec.released.is_none() && spec.holder.uid == uid))
}

/// Returns the addresses that the registry has adopted from records, by the holder in the record.
///
/// The registry must not have held the addresses before. The mismatches of the adoption are left out.
pub(crate) fn adopted<'r>(
    records: impl IntoIterator<Item = &'r Record>,
    adoption: &Adoption,
) -> BTreeMap<Machine, Vec<IpNetwork>> {
    let mut adopted: BTreeMap<Machine, Vec<IpNetwork>> = BTreeMap::new();
    let mismatches = adoption.mismatches.iter().map(|mismatch| (&mismatch.claimant, mismatch.address));
    let mismatches: BTreeSet<(&Claimant, IpAddr)> = mismatches.collect();
    for Record { claimant, addresses, .. } in records {
        let fits = |address: &&IpNetwork| !mismatches.contains(&(claimant, address.ip()));
        let addresses = addresses.iter().filter(fits).copied();
        addresses.for_each(|address| adopted.entry(claimant.machine.clone()).or_default().push(address));
    }
    adopted
}
