//! Chooses how the arguments identify each device: by its MAC address or by a name.
//!
//! If the document has the MAC address of a NIC, every argument identifies the NIC by this address: the name that the
//! kernel gives the NIC is not known. But `vlan=` and a bond's `primary` accept only names, and NetworkManager makes
//! two profiles for a NIC with two names. So a NIC that needs a name gets a name from `ifname=`, and every argument
//! uses this name. If the boot loader or the image already names the NIC by `ifname=`, every argument uses that name:
//! with a second `ifname=`, dracut would give the NIC one of the two names.
//!
//! In network-legacy the members of bonds, the ports of bridges and the NIC of a route need names, too.

use std::collections::BTreeSet;

use pnet_base::MacAddr;

use super::program::Program;
use crate::network::{InterfaceName, Link, LinkIndex, LinkKind, NetworkConfig, Nic, VlanId};
use crate::render::{Device, Taken, name_vlans};

pub(super) struct DeviceNames {
    /// How every argument identifies each link. A NIC with a known MAC address has a name only if an argument needs a
    /// name.
    pub(super) devices: Vec<Device>,
    /// NICs that get a name from our own `ifname=`, in the order of the document.
    pub(super) ties: Vec<(InterfaceName, MacAddr)>,
}

// === impl DeviceNames ===

impl DeviceNames {
    pub(super) fn assign(config: &NetworkConfig, program: Program) -> Self {
        let mut taken = Taken::of(config);
        let mut primaries = BTreeSet::new();
        for link in config.links() {
            match &link.kind {
                LinkKind::Nic(Nic::Name(name)) => _ = taken.take(*name),
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
                LinkKind::Nic(Nic::MacAddress { mac_address, name })
                    if config.carries_vlans(index)
                        || primaries.contains(&index)
                        || (program == Program::NetworkLegacy
                            && (config.controller_of(index).is_some() || has_route_argument(link))) =>
                {
                    let name = config.given_name(*mac_address).unwrap_or_else(|| {
                        let requested = (*name).filter(may_be_given);
                        let name = requested.and_then(|name| taken.take(name)).unwrap_or_else(|| taken.number(""));
                        ties.push((name, *mac_address));
                        name
                    });
                    Some(Device::Name(name))
                }
                LinkKind::Nic(Nic::MacAddress { mac_address, .. }) => Some(Device::MacAddress(*mac_address)),
                LinkKind::Nic(Nic::Name(name)) | LinkKind::Bond { name, .. } | LinkKind::Bridge { name, .. } => {
                    Some(Device::Name(*name))
                }
                LinkKind::Nic(Nic::Pattern { .. }) => Some(Device::Any),
                LinkKind::Vlan { .. } => None,
            };
            devices.push(device);
        }
        let says_id = |name: &InterfaceName, id: VlanId| id_in(name, program) == id.to_string();
        let devices = name_vlans(config, devices, &[], &mut taken, says_id);
        Self { devices, ties }
    }
}

/// Returns whether `ifname=` may give a NIC this name. Two kinds of names are refused: names that the kernel itself
/// assigns, because another NIC may get the name, and names that begin with `ib`, because NetworkManager treats such a
/// NIC as InfiniBand.
fn may_be_given(name: &InterfaceName) -> bool {
    !name.is_kernels_own() && !name.as_str().starts_with("ib")
}

/// Returns whether the link needs an `rd.route=`. Every route needs this argument, except a default route with a
/// gateway in a family with a static address: `ip=` has this gateway.
fn has_route_argument(link: &Link) -> bool {
    link.routes.iter().any(|route| {
        let ipv4 = route.destination().is_ipv4();
        let has_static = if ipv4 { !link.ipv4.addresses.is_empty() } else { !link.ipv6.addresses.is_empty() };
        !route.is_default() || route.gateway().is_none() || !has_static
    })
}

/// Returns the part of a name from which the program takes the VLAN id. NetworkManager takes the digits at the end.
/// Leading zeros are part of the result, so `lan05` is not a name for VLAN 5: some readers take `05` for an octal
/// number. network-legacy takes the part after `vlan`, or after the last dot.
fn id_in(name: &InterfaceName, program: Program) -> &str {
    let name = name.as_str();
    match program {
        Program::NetworkManager => &name[name.trim_end_matches(|c: char| c.is_ascii_digit()).len()..],
        Program::NetworkLegacy => {
            name.strip_prefix("vlan").unwrap_or_else(|| name.rsplit_once('.').map_or("", |(_, id)| id))
        }
    }
}
