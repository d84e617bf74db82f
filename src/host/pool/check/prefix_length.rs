//! Finds the prefix length of a pool or subnet: from `prefix`, else from `machineNetwork`, else from the template, else
//! from the CIDRs among the addresses. No other value is used. The lengths from the first three sources must be equal.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::{Check, Entries};
use crate::host::address::{AddressRange, AddressSet, Entry};
use crate::network::Family;

// === impl Check ===

impl Check<'_> {
    /// Returns the prefix length in the member `prefix`. `Ok(None)`: the pool does not have this member, or has no
    /// valid addresses. `Err`: an error was reported.
    pub(super) fn written_prefix(&mut self, entries: &BTreeMap<Family, Entries>) -> Result<Option<u8>, ()> {
        let Some(written) = self.spec.prefix else { return Ok(None) };
        let mut families = entries.keys();
        let Some(family) = families.next() else { return Ok(None) };
        if families.next().is_some() {
            let expected = "machineNetwork with a subnet of each family, or a pool of one family";
            self.error("prefix", "prefix length of two families", written, expected);
            return Err(());
        }
        let bits = family.bits();
        match u8::try_from(written).ok().filter(|length| *length <= bits) {
            Some(0) if !self.spec.serves_claims_only => {
                let expected =
                    format!("1 to {bits}: a machine needs a subnet, and the smallest one is {bits} with onLinkGateway");
                self.error("prefix", "no prefix length for machines", written, &expected);
            }
            Some(length) => return Ok(Some(length)),
            None => self.error("prefix", "invalid prefix length", written, &format!("0 to {bits}")),
        }
        Err(())
    }

    /// The prefix length of a family, `None` after an error. `written` is the member `prefix`.
    pub(super) fn prefix(
        &mut self,
        entries: &Entries,
        written: Option<u8>,
        (network, template): (Option<(usize, Entry)>, Option<u8>),
        gateway: Option<IpAddr>,
    ) -> Option<u8> {
        if let Some(written) = written {
            let of_network = network.and_then(|(_, network)| network.length());
            let others = [("machineNetwork", of_network), ("the template's netmask", template)];
            let other = others.into_iter().find_map(|(of, length)| Some((of, length.filter(|it| *it != written)?)));
            if let Some((of, length)) = other {
                self.error("prefix", "other prefix length", written, &format!("the length of {of}, {length}"));
                return None;
            }
            if network.is_none() {
                return Some(written);
            }
        }
        if let Some((at, network)) = network {
            let length = network.length()?;
            if let Some(template) = template.filter(|template| *template != length) {
                let expected = format!("the length of the template's netmask, {template}");
                self.error(
                    format_args!("machineNetwork[{at}].cidr"),
                    "other subnet than the template's",
                    network,
                    &expected,
                );
                return None;
            }
            let subnet = network.range();
            let outside: Entries =
                entries.iter().filter(|(_, entry)| !subnet.covers(&entry.range())).copied().collect();
            for (at, entry) in &outside {
                let expected = format!("addresses of {network}");
                self.error(format_args!("addresses[{at}]"), "outside the machine network", entry, &expected);
            }
            return outside.is_empty().then_some(length);
        }
        if template.is_some() {
            return template;
        }
        // The message names one item of `machineNetwork`, not the whole member, because each family of the pool may
        // lack an item.
        let item = || {
            format!("the item {{cidr: {}}} in machineNetwork: the subnet of the machines", subnet_of(entries, gateway))
        };
        let mut cidrs = entries.iter().filter_map(|(at, entry)| Some((at, entry, entry.length()?)));
        let common = cidrs.next().map(|(_, _, length)| length);
        if let Some((at, entry, _)) = cidrs.find(|(_, _, length)| Some(*length) != common) {
            self.error(format_args!("addresses[{at}]"), "second prefix length", entry, &item());
            return None;
        }
        let cidrs = entries.iter().filter(|(_, entry)| entry.length().is_some());
        let cidrs: AddressSet = cidrs.map(|(_, entry)| entry.range()).collect();
        if let Some((at, entry)) = entries.iter().find(|(_, entry)| !cidrs.covers(&entry.range())) {
            self.error(format_args!("addresses[{at}]"), "unknown subnet of", entry, &item());
            return None;
        }
        common
    }
}

/// Suggests a subnet that contains all entries and the gateway: a /24 or a /64, or a larger subnet if necessary.
fn subnet_of(entries: &Entries, gateway: Option<IpAddr>) -> String {
    let ranges = entries.iter().map(|(_, entry)| entry.range());
    let ranges: Vec<AddressRange> =
        ranges.chain(gateway.map(|gateway| AddressRange::subnet(gateway, u8::MAX))).collect();
    let Some(any) = ranges.first() else { return String::new() };
    let family = any.family();
    let longest = match family {
        Family::Ipv4 => 24,
        Family::Ipv6 => 64,
    };
    let first = family.address(any.first());
    let mut subnets = (1..=longest).rev().map(|length| (length, AddressRange::subnet(first, length)));
    let found = subnets.find(|(_, subnet)| ranges.iter().all(|range| subnet.covers(range)));
    let cidr = found.map(|(length, subnet)| format!("{}/{length}", family.address(subnet.first())));
    // Without a common subnet, the message has a placeholder, and the user must change the entries.
    cidr.filter(|cidr| cidr.parse::<Entry>().is_ok()).unwrap_or_else(|| "SUBNET".to_owned())
}
