//! One name for each device in the whole output.
//!
//! A card with a MAC address is called by that, everywhere: the name that the guest's kernel gives it is not known yet
//! when the arguments are read. But `vlan=` and a bond's `primary` take names only, and two names for one card make two
//! profiles. So a card that needs a name is tied to one with `ifname=`, and called by it everywhere.

use std::collections::BTreeSet;

use pnet_base::MacAddr;

use super::Device;
use crate::network::{Card, InterfaceName, LinkIndex, LinkKind, NetworkConfig, VlanId};

pub(super) struct Names {
    /// How every argument calls each link: by a name, but for a card with a MAC address that nothing needs to name.
    pub(super) devices: Vec<Device>,
    /// Cards that are to get a name, in the document's order.
    pub(super) ties: Vec<(InterfaceName, MacAddr)>,
}

/// The names that are in use.
#[derive(Default)]
struct Taken {
    names: BTreeSet<InterfaceName>,
    next: usize,
}

// === impl Names ===

impl Names {
    pub(super) fn assign(config: &NetworkConfig) -> Self {
        let mut taken = Taken::default();
        let mut primaries = BTreeSet::new();
        for link in config.links() {
            match &link.kind {
                LinkKind::Card(Card::Name(name)) => _ = taken.take(name.clone()),
                LinkKind::Bond { name, options, .. } => {
                    _ = taken.take(name.clone());
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
                    if config.carries_vlans(index) || primaries.contains(&index) =>
                {
                    let wish = name.clone().filter(may_be_given);
                    let name = wish.and_then(|name| taken.take(name)).unwrap_or_else(|| taken.number(""));
                    ties.push((name.clone(), *mac_address));
                    Some(Device::Name(name))
                }
                LinkKind::Card(Card::MacAddress { mac_address, .. }) => Some(Device::MacAddress(*mac_address)),
                LinkKind::Card(Card::Name(name)) | LinkKind::Bond { name, .. } => Some(Device::Name(name.clone())),
                LinkKind::Vlan { .. } => None,
            };
            devices.push(device);
        }
        for at in 0..devices.len() {
            name_vlan(config, LinkIndex(at), &mut devices, &mut taken);
        }
        // None is left without: the cards and bonds were named above, and then the VLANs.
        Self { devices: devices.into_iter().flatten().collect(), ties }
    }
}

/// Names a VLAN, and before it what it is on.
fn name_vlan(config: &NetworkConfig, vlan: LinkIndex, devices: &mut [Option<Device>], taken: &mut Taken) {
    let mut chain = vec![vlan];
    while let Some(LinkKind::Vlan { parent, .. }) = chain.last().map(|last| &config.link(*last).kind)
        && devices[parent.0].is_none()
    {
        chain.push(*parent);
    }
    for index in chain.into_iter().rev() {
        let LinkKind::Vlan { name, parent, id, .. } = &config.link(index).kind else { continue };
        if devices[index.0].is_some() {
            continue;
        }
        // A name of the kernel's own may belong to a card that comes later.
        let wish = name.clone().filter(|name| ends_with_id(name, *id) && !name.is_kernels_own());
        let after_parent = || match &devices[parent.0] {
            Some(Device::Name(parent)) => format!("{parent}.{id}").parse().ok(),
            _ => None,
        };
        let name = wish
            .and_then(|name| taken.take(name))
            .or_else(|| after_parent().and_then(|name| taken.take(name)))
            // The parent's name leaves no room for the id.
            .unwrap_or_else(|| taken.number(&format!(".{id}")));
        devices[index.0] = Some(Device::Name(name));
    }
}

/// Whether a card can be renamed to this. A name of the kernel's own may be another card's, and a card whose name begins
/// with `ib` is InfiniBand to NetworkManager.
fn may_be_given(name: &InterfaceName) -> bool {
    !name.is_kernels_own() && !name.as_str().starts_with("ib")
}

/// The readers take a VLAN's id from the digits that its name ends with; a leading zero would make it octal to some.
fn ends_with_id(name: &InterfaceName, id: VlanId) -> bool {
    let digits = name.as_str().bytes().rev().take_while(u8::is_ascii_digit).count();
    name.as_str()[name.as_str().len() - digits..] == id.to_string()
}

// === impl Taken ===

impl Taken {
    /// A name, if nobody has it.
    fn take(&mut self, name: InterfaceName) -> Option<InterfaceName> {
        self.names.insert(name.clone()).then_some(name)
    }

    /// The next free one of `kv0`, `kv1` and so on, before the suffix. Short, so that a VLAN's id fits behind it.
    fn number(&mut self, suffix: &str) -> InterfaceName {
        loop {
            let name = format!("kv{}{suffix}", self.next);
            self.next += 1;
            if let Ok(name) = name.parse()
                && let Some(name) = self.take(name)
            {
                return name;
            }
        }
    }
}
