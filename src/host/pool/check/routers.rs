//! The check that each machine can reach its gateways and the routers of its routes. This check finds most wrong prefix
//! lengths.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::{Check, Entries};
use crate::host::address::{AddressRange, Entry, is_link_local};
use crate::host::pool::Reserved;
use crate::host::pool::settings::Router;
use crate::network::Family;

// === impl Check ===

impl Check<'_> {
    /// Reports a gateway or another router that a machine cannot reach, or that is at the end of an IPv4 subnet.
    pub(super) fn router(&mut self, entries: &Entries, prefix: u8, member: &str, gateway: IpAddr) {
        if is_link_local(gateway) {
            return;
        }
        let (family, outside_subnet) = (Family::of(gateway), outside_subnet(member));
        let subnet = AddressRange::subnet(gateway, prefix);
        let outside = entries.iter().find(|(_, entry)| !subnet.covers(&entry.range()));
        if prefix == family.bits() && !self.spec.on_link_gateway {
            let expected =
                format!("onLinkGateway: true, because no machine with a /{prefix} has a router in its subnet");
            self.error(member, outside_subnet, gateway, &expected);
        } else if let Some((at, entry)) = outside.filter(|_| !self.spec.on_link_gateway) {
            let far = if subnet.contains(family.address(entry.range().first())) {
                entry.range().last()
            } else {
                entry.range().first()
            };
            let far = AddressRange::subnet(family.address(far), prefix);
            let network = family.address(far.first());
            let expected = format!("an address of {network}/{prefix} like addresses[{at}], or onLinkGateway: true");
            self.error(member, outside_subnet, gateway, &expected);
        } else if family == Family::Ipv4 && Reserved::end(family, prefix, Family::number(gateway)).is_some() {
            let problem =
                if is_of_route(member) { "router" } else { "gateway" }.to_owned() + " at the end of its subnet";
            self.error(member, &problem, gateway, "neither its first nor its last address");
        }
    }

    /// Reports routers that the machines of an external pool cannot reach. A router is not checked if the pool has no
    /// subnet of its family.
    pub(super) fn external_routers(&mut self, networks: &BTreeMap<Family, (usize, Entry)>, routers: &[Router]) {
        for (member, router) in routers {
            let Some((_, network)) = networks.get(&Family::of(*router)) else { continue };
            let is_outside = !network.range().contains(*router) && !is_link_local(*router);
            if is_outside && !self.spec.on_link_gateway {
                let expected = format!("an address of {network}, or onLinkGateway: true");
                self.error(member, outside_subnet(member), router, &expected);
            }
        }
    }

    /// Reports addresses of the pool whose machines cannot reach a gateway of the template.
    pub(super) fn template_gateway(&mut self, entries: &Entries, prefix: u8, gateway: IpAddr) {
        let subnet = AddressRange::subnet(gateway, prefix);
        let outside = entries.iter().find(|(_, entry)| !subnet.covers(&entry.range()));
        if let Some((at, entry)) = outside.filter(|_| !self.spec.on_link_gateway && !is_link_local(gateway)) {
            let network = subnet.family().address(subnet.first());
            let expected = format!("addresses of {network}/{prefix} like gateway {gateway}, or onLinkGateway: true");
            self.error(
                format_args!("addresses[{at}]"),
                "outside the subnet of the template's gateway",
                entry,
                &expected,
            );
        }
    }
}

/// Whether the member contains the router of a route, and not a gateway.
fn is_of_route(member: &str) -> bool {
    member.starts_with("routes")
}

/// Returns the problem for messages: the machines cannot reach the router in this member.
fn outside_subnet(member: &str) -> &'static str {
    if is_of_route(member) { "router outside the subnet" } else { "gateway outside the subnet" }
}
