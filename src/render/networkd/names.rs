//! Assigns one name to each device that gets a name.

use crate::finding::{Finding, Findings};
use crate::network::{Card, InterfaceName, LinkKind, NetworkConfig};
use crate::render::{Device, Taken, name_vlans};

pub(super) struct Names {
    /// How the files identify each link.
    pub(super) devices: Vec<Device>,
    /// Name that udev gives each NIC, in the order of the links; `None` keeps the name.
    pub(super) wishes: Vec<Option<InterfaceName>>,
}

// === impl Names ===

impl Names {
    /// Names bonds, bridges and NICs as the document requests, then the VLANs after their parents.
    ///
    /// A NIC that is identified by its MAC address gets the name from the document, as with cloud-init. A name that the
    /// kernel itself assigns is refused: a NIC that appears later may get the same name.
    pub(super) fn assign(config: &NetworkConfig, findings: &mut Findings) -> Self {
        let mut taken = Taken::default();
        for link in config.links() {
            if let LinkKind::Card(Card::Name(name)) | LinkKind::Bond { name, .. } | LinkKind::Bridge { name, .. } =
                &link.kind
            {
                _ = taken.take(*name);
            }
        }
        let mut wishes = Vec::new();
        for link in config.links() {
            let (wish, may_be) = match &link.kind {
                LinkKind::Card(Card::MacAddress { name, .. }) => (name.as_ref(), true),
                // udev would rename the NIC before networkd compares its name with the pattern.
                LinkKind::Card(Card::Pattern { names, name, .. }) => (name.as_ref(), names.is_empty()),
                _ => (None, true),
            };
            let may_be = |name: &&InterfaceName| may_be && !name.is_kernels_own();
            let given = wish.filter(|name| may_be(name) && taken.take(**name).is_some()).copied();
            if let Some(wish) = wish.filter(|_| given.is_none()) {
                let expected = "a free name, none like eth0, for a card that no name matches";
                findings.push(Finding::warning(&link.name_place, "name that cannot be given", wish, expected));
            }
            wishes.push(given);
        }
        let devices = config.links().iter().map(|link| known(&link.kind)).collect();
        let devices = name_vlans(config, devices, &wishes, &mut taken, |_, _| true);
        for (link, device) in config.links().iter().zip(&devices) {
            if let (LinkKind::Vlan { name: Some(wish), .. }, Device::Name(given)) = (&link.kind, device)
                && wish != given
            {
                let expected = format!("a free name, none like eth0: {given} is taken instead");
                findings.push(Finding::warning(&link.name_place, "name that cannot be given", wish, &expected));
            }
        }
        Self { devices, wishes }
    }
}

fn known(kind: &LinkKind) -> Option<Device> {
    match kind {
        LinkKind::Card(Card::MacAddress { mac_address, .. }) => Some(Device::MacAddress(*mac_address)),
        LinkKind::Card(Card::Name(name)) | LinkKind::Bond { name, .. } | LinkKind::Bridge { name, .. } => {
            Some(Device::Name(*name))
        }
        LinkKind::Card(Card::Pattern { .. }) => Some(Device::Any),
        LinkKind::Vlan { .. } => None,
    }
}
