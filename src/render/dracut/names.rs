//! One name for each device in the whole output.
//!
//! A card with a MAC address is called by that, everywhere: the name that the guest's kernel gives it is not known yet
//! when the arguments are read. But `vlan=` and a bond's `primary` take names only, and two names for one card make two
//! profiles. So a card that needs a name is tied to one with `ifname=`, and called by it everywhere. network-legacy takes
//! names alone for the ports of bonds and bridges, too, and never finds the card of a route by anything else.

use std::collections::BTreeSet;

use pnet_base::MacAddr;

use super::Reader;
use crate::network::{Card, InterfaceName, Link, LinkIndex, LinkKind, NetworkConfig, VlanId};
use crate::render::{Device, Taken, name_vlans};

pub(super) struct Names {
    /// How every argument calls each link: by a name, but for a card with a MAC address that nothing needs to name.
    pub(super) devices: Vec<Device>,
    /// Cards that are to get a name, in the document's order.
    pub(super) ties: Vec<(InterfaceName, MacAddr)>,
}

// === impl Names ===

impl Names {
    pub(super) fn assign(config: &NetworkConfig, reader: Reader) -> Self {
        let mut taken = Taken::default();
        let mut primaries = BTreeSet::new();
        for link in config.links() {
            match &link.kind {
                LinkKind::Card(Card::Name(name)) => _ = taken.take(*name),
                LinkKind::Bridge { name, .. } => _ = taken.take(*name),
                LinkKind::Bond { name, options, .. } => {
                    _ = taken.take(*name);
                    primaries.extend(options.primary);
                }
                _ => {}
            }
        }
        let mut ties = Vec::new();
        let mut devices = Vec::new();
        for (at, link) in config.links().iter().enumerate() {
            let index = LinkIndex(at);
            let device = match &link.kind {
                LinkKind::Card(Card::MacAddress { mac_address, name })
                    if config.carries_vlans(index)
                        || primaries.contains(&index)
                        || (reader == Reader::NetworkLegacy
                            && (config.controller_of(index).is_some() || has_route_argument(link))) =>
                {
                    let wish = (*name).filter(may_be_given);
                    let name = wish.and_then(|name| taken.take(name)).unwrap_or_else(|| taken.number(""));
                    ties.push((name, *mac_address));
                    Some(Device::Name(name))
                }
                LinkKind::Card(Card::MacAddress { mac_address, .. }) => Some(Device::MacAddress(*mac_address)),
                LinkKind::Card(Card::Name(name)) | LinkKind::Bond { name, .. } | LinkKind::Bridge { name, .. } => {
                    Some(Device::Name(*name))
                }
                LinkKind::Card(Card::Pattern { .. }) => Some(Device::Any),
                LinkKind::Vlan { .. } => None,
            };
            devices.push(device);
        }
        let says_id = |name: &InterfaceName, id: VlanId| id_in(name, reader) == id.to_string();
        let devices = name_vlans(config, devices, &[], &mut taken, says_id);
        Self { devices, ties }
    }
}

/// Whether a card can be renamed to this. A name of the kernel's own may be another card's, and a card whose name begins
/// with `ib` is InfiniBand to NetworkManager.
fn may_be_given(name: &InterfaceName) -> bool {
    !name.is_kernels_own() && !name.as_str().starts_with("ib")
}

/// Whether an `rd.route=` will be about this link: all of its routes but the gateway of a static address.
fn has_route_argument(link: &Link) -> bool {
    link.routes.iter().any(|route| {
        let ipv4 = route.destination().is_ipv4();
        let has_static = if ipv4 { !link.ipv4.addresses.is_empty() } else { !link.ipv6.addresses.is_empty() };
        !route.is_default() || route.gateway().is_none() || !has_static
    })
}

/// Where the readers take a VLAN's id from: the digits that its name ends with (a leading zero would make it octal to
/// some); for network-legacy what is behind `vlan`, else behind the last dot.
fn id_in(name: &InterfaceName, reader: Reader) -> &str {
    let name = name.as_str();
    match reader {
        Reader::NetworkManager => &name[name.trim_end_matches(|c: char| c.is_ascii_digit()).len()..],
        Reader::NetworkLegacy => {
            name.strip_prefix("vlan").unwrap_or_else(|| name.rsplit_once('.').map_or("", |(_, id)| id))
        }
    }
}
