//! Assigns interface names to links, and finds how the files identify each link.

use super::{Device, Taken, name_vlans};
use crate::diagnostic::{Diagnostic, Diagnostics};
use crate::network::{InterfaceName, LinkIndex, LinkKind, NetworkConfig, Nic};

pub(super) struct DeviceNames {
    /// How the files identify each link.
    pub(super) devices: Vec<Device>,
    /// Name that each NIC gets from udev or `ifname=`, in the order of the links; `None` keeps the name. The name may
    /// come from an `ifname=` of the boot loader or of the image.
    pub(super) set_names: Vec<Option<InterfaceName>>,
}

/// How NICs get their names.
#[derive(Clone, Copy, Eq, PartialEq)]
pub(super) enum Naming {
    /// Files of udev give names to NICs.
    Udev,
    /// The kernel argument `ifname=` gives names to NICs that are identified by a MAC address.
    Arguments,
}

// === impl DeviceNames ===

impl DeviceNames {
    /// Names bonds, bridges and NICs as the document requests, then each VLAN after its parent is named.
    ///
    /// A NIC that is identified by its MAC address gets the name from the document, as with cloud-init. A name that the
    /// kernel itself assigns is refused: a NIC that appears later may get the same name.
    pub(super) fn assign(config: &NetworkConfig, naming: Naming, diagnostics: &mut Diagnostics) -> Self {
        let mut taken = Taken::of(config);
        for link in config.links() {
            if let LinkKind::Nic(Nic::Name(name)) | LinkKind::Bond { name, .. } | LinkKind::Bridge { name, .. } =
                &link.kind
            {
                _ = taken.take(*name);
            }
        }
        let mut known_as = Vec::new();
        for link in config.links() {
            let (requested, may_be) = match &link.kind {
                LinkKind::Nic(Nic::MacAddress { name, .. }) => (name.as_ref(), true),
                // udev would rename the NIC before networkd compares its name with the pattern.
                LinkKind::Nic(Nic::Pattern { names, name, .. }) => {
                    (name.as_ref(), naming == Naming::Udev && names.is_empty())
                }
                _ => (None, true),
            };
            let may_be = |name: &&InterfaceName| may_be && !name.is_kernels_own();
            let already = match &link.kind {
                LinkKind::Nic(Nic::MacAddress { mac_address, .. }) => config.given_name(*mac_address),
                _ => None,
            };
            let take = || requested.filter(|name| may_be(name) && taken.take(**name).is_some()).copied();
            let given = already.or_else(take);
            if let Some(requested) = requested.filter(|requested| given != Some(**requested)) {
                let expected = match already {
                    Some(name) => format!("{name}, the name from ifname="),
                    None => "a free name, not one like eth0, for a NIC that is not matched by name".to_owned(),
                };
                diagnostics.push(Diagnostic::warning(&link.name_path, "name that cannot be set", requested, &expected));
            }
            known_as.push(given);
        }
        if naming == Naming::Arguments {
            // The profile of a bond refers to the preferred member by its interface name, so this NIC needs a name.
            for (at, _) in config.links().iter().enumerate().filter(|(at, _)| is_primary(config, LinkIndex(*at))) {
                let is_free = matches!(config.links()[at].kind, LinkKind::Nic(Nic::MacAddress { .. }));
                if is_free && known_as[at].is_none() {
                    known_as[at] = Some(taken.number(""));
                }
            }
        }
        let devices = config.links().iter().map(|link| known(&link.kind)).collect();
        let devices = name_vlans(config, devices, &known_as, &mut taken, |_, _| true);
        for (link, device) in config.links().iter().zip(&devices) {
            if let (LinkKind::Vlan { name: Some(requested), .. }, Device::Name(given)) = (&link.kind, device)
                && requested != given
            {
                let expected = format!("a free name, not one like eth0: {given} is used instead");
                diagnostics.push(Diagnostic::warning(&link.name_path, "name that cannot be set", requested, &expected));
            }
        }
        Self { devices, set_names: known_as }
    }
}

/// Whether the link is the preferred member of its bond.
fn is_primary(config: &NetworkConfig, index: LinkIndex) -> bool {
    let controller = config.controller_of(index).map(|controller| &config.link(controller).kind);
    matches!(controller, Some(LinkKind::Bond { options, .. }) if options.primary() == Some(index))
}

fn known(kind: &LinkKind) -> Option<Device> {
    match kind {
        LinkKind::Nic(Nic::MacAddress { mac_address, .. }) => Some(Device::MacAddress(*mac_address)),
        LinkKind::Nic(Nic::Name(name)) | LinkKind::Bond { name, .. } | LinkKind::Bridge { name, .. } => {
            Some(Device::Name(*name))
        }
        LinkKind::Nic(Nic::Pattern { .. }) => Some(Device::Any),
        LinkKind::Vlan { .. } => None,
    }
}
