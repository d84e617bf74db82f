//! The check of `preAllocations`: addresses that the pool keeps for the machines with a name.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::{Check, Entries};
use crate::diagnostic::{Diagnostic, FieldPath, Severity};
use crate::host::address::{AddressRange, AddressSet, parse_address};
use crate::host::claim::{OBJECT_NAME, is_object_name};
use crate::host::pool::{Reserved, Subnet};
use crate::network::Family;

// === impl Check ===

impl Check<'_> {
    /// Reads the pre-allocated addresses of each name, IPv4 first. `reserved` has the gateways, the name servers and
    /// the addresses in the template.
    pub(super) fn pre_allocations(
        &mut self,
        entries: &BTreeMap<Family, Entries>,
        excluded: &[AddressRange],
        reserved: &[AddressRange],
    ) -> BTreeMap<String, Vec<IpAddr>> {
        let all = entries.values().flatten().map(|(_, entry)| entry.range());
        let all: AddressSet = all.chain(excluded.iter().copied()).collect();
        let mut pre_allocations: BTreeMap<String, Vec<IpAddr>> = BTreeMap::new();
        let mut names: BTreeMap<IpAddr, &str> = BTreeMap::new();
        if self.spec.is_external && !self.spec.pre_allocations.is_empty() {
            let path = self.spec.at("preAllocations");
            let expected = "none, because another program chooses the addresses of the pool";
            self.diagnostics.push(Diagnostic::without_value(Severity::Error, path, "not allowed", expected));
        }
        for (name, text) in &self.spec.pre_allocations {
            let member = pre_allocation(name);
            if !name.splitn(2, '/').all(is_object_name) {
                let expected = format!("the name of a machine or claim, or namespace/name: {OBJECT_NAME}");
                self.error(&member, "invalid name", name, &expected);
                continue;
            }
            let mut addresses: Vec<IpAddr> = Vec::new();
            for text in text.split(',') {
                let address = match parse_address(text.trim()) {
                    Ok(address) => address,
                    Err(error) => {
                        self.diagnostics.push(error.at(self.spec.at(&member)));
                        continue;
                    }
                };
                let family = Family::of(address);
                let is_within = |ranges: &[AddressRange]| ranges.iter().any(|range| range.contains(address));
                if let Some(other) = names.insert(address, name) {
                    self.error(
                        &member,
                        "repeated address",
                        address,
                        &format!("an address that {other:?} does not have"),
                    );
                } else if addresses.iter().any(|other| Family::of(*other) == family) {
                    self.error(&member, &format!("second {family} address"), address, "at most one of each family");
                } else if is_within(reserved) {
                    let expected = "neither a gateway, a name server nor an address in the template";
                    self.error(&member, "reserved address", address, expected);
                } else if !(entries.is_empty() || entries.contains_key(&family) && all.contains(address)) {
                    let expected = "one of addresses or excludedAddresses, of a family in addresses";
                    self.error(&member, "address outside the pool", address, expected);
                }
                addresses.push(address);
            }
            addresses.sort_unstable();
            pre_allocations.insert(name.clone(), addresses);
        }
        for name in pre_allocations.keys() {
            let own = name.split_once('/').map(|(_, own)| own);
            if let Some(own) = own.filter(|own| pre_allocations.contains_key(*own)) {
                let expected = format!("no entry for {own:?}, which is the same name in each namespace");
                self.error(pre_allocation(name), "second entry of a name", name, &expected);
            }
        }
        pre_allocations
    }

    /// Reports pre-allocated addresses that are in no subnet of the pool, or at a reserved end of a subnet.
    pub(super) fn pre_allocated_subnets(
        &mut self,
        subnets: &[Subnet],
        pre_allocations: &BTreeMap<String, Vec<IpAddr>>,
    ) {
        for (name, addresses) in pre_allocations {
            for address in addresses {
                let (family, number) = Family::split(*address);
                let Some(first) = subnets.iter().find(|subnet| subnet.family() == Some(family)) else { continue };
                let subnet = Subnet::position(subnets, *address).map(|at| &subnets[at]);
                let end = subnet.and_then(|subnet| Reserved::end(family, subnet.prefix(), number));
                if subnet.is_none() {
                    let expected = format!("an address in a /{} subnet of addresses", first.prefix());
                    self.error(pre_allocation(name), "address outside the subnets", address, &expected);
                } else if let Some(end) = end.filter(|_| !self.spec.allocate_reserved_ip_addresses) {
                    let problem = format!("{end} of its subnet");
                    let expected = "another address, or allocateReservedIPAddresses";
                    self.error(pre_allocation(name), &problem, address, expected);
                }
            }
        }
    }
}

/// The path of an entry of `preAllocations` in its pool.
fn pre_allocation(name: &str) -> String {
    FieldPath::Document.field("preAllocations").field(name).to_string()
}
