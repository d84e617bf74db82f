//! One name for each device that gets one.

use std::collections::BTreeSet;

use crate::finding::{Finding, Findings};
use crate::network::{Card, InterfaceName, LinkKind, NetworkConfig, VlanId};
use crate::render::{Device, name_vlans};

pub(super) struct Names {
    /// How each link is known.
    pub(super) devices: Vec<Device>,
    /// The names that cards are to get.
    pub(super) wishes: Vec<Option<InterfaceName>>,
}

// === impl Names ===

impl Names {
    /// Names bonds, bridges and cards as the document says, then the VLANs, from what they are on.
    ///
    /// A card that is known by its address gets the name that the document gives it, as cloud-init would do, but none of
    /// those that the kernel counts itself: it may belong to a card that comes later.
    pub(super) fn assign(config: &NetworkConfig, findings: &mut Findings) -> Self {
        let mut taken = BTreeSet::new();
        for link in config.links() {
            if let LinkKind::Card(Card::Name(name)) | LinkKind::Bond { name, .. } | LinkKind::Bridge { name, .. } =
                &link.kind
            {
                taken.insert(*name);
            }
        }
        let mut wishes = Vec::new();
        for link in config.links() {
            let (wish, may_be) = match &link.kind {
                LinkKind::Card(Card::MacAddress { name, .. }) => (name.as_ref(), true),
                // udev names a card before it has the name that a pattern would match.
                LinkKind::Card(Card::Pattern { names, name, .. }) => (name.as_ref(), names.is_empty()),
                _ => (None, true),
            };
            let may_be = |name: &&InterfaceName| may_be && !name.is_kernels_own();
            let given = wish.filter(|name| may_be(name) && taken.insert(*(*name))).cloned();
            if let Some(wish) = wish.filter(|_| given.is_none()) {
                let expected = "a free name, none like eth0, for a card that no name matches";
                findings.push(Finding::warning(&link.name_place, "name that cannot be given", wish, expected));
            }
            wishes.push(given);
        }
        let devices = config.links().iter().map(|link| known(&link.kind)).collect();
        let mut next = 0;
        let devices = name_vlans(config, devices, |name, id, parent, known| {
            let parent = match known {
                Some(Device::Name(parent)) => Some(parent),
                _ => wishes[parent.0].as_ref(),
            };
            vlan_name(name, parent, id, &mut taken, &mut next)
        });
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

/// The name that the document wishes, else one after the parent, else a number: whichever is free first.
fn vlan_name(
    wish: Option<&InterfaceName>,
    parent: Option<&InterfaceName>,
    id: VlanId,
    taken: &mut BTreeSet<InterfaceName>,
    next: &mut usize,
) -> InterfaceName {
    let wish = wish.filter(|name| !name.is_kernels_own()).cloned();
    let after_parent = parent.and_then(|parent| format!("{parent}.{id}").parse().ok());
    for name in [wish, after_parent].into_iter().flatten() {
        if taken.insert(name) {
            return name;
        }
    }
    loop {
        let name = format!("kv{next}.{id}").parse();
        *next += 1;
        if let Ok(name) = name
            && taken.insert(InterfaceName::clone(&name))
        {
            return name;
        }
    }
}
