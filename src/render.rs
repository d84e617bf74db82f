//! The model, written for the program that will bring the network up.

pub mod dracut;
pub mod network_legacy;
pub mod networkd;

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use pnet_base::MacAddr;
use serde::Serialize;

use crate::network::{InterfaceName, LinkIndex, LinkKind, NetworkConfig, Pairs, VlanId};

/// The network program of an initramfs.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Renderer {
    /// `nm-initrd-generator`, which reads kernel arguments, and NetworkManager.
    #[default]
    NetworkManager,
    /// systemd-networkd, which reads files.
    SystemdNetworkd,
    /// dracut's own scripts, which read kernel arguments.
    NetworkLegacy,
}

/// How a rendered network knows a link.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Device {
    /// By its permanent address.
    MacAddress(MacAddr),
    /// By its name.
    Name(InterfaceName),
    /// Whichever there is.
    Any,
}

/// A text that names no [`Renderer`].
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct RendererError(String);

/// The names that interfaces have.
#[derive(Debug, Default)]
struct Taken {
    names: BTreeSet<InterfaceName>,
    next: usize,
}

/// Names every VLAN, each after what it is on: the name that the document gives it, else one after the parent, else a
/// number, whichever is free first. No name of the kernel's own is given, since a card that comes later may have it.
///
/// `devices` has everything else. `known_as` has the names that cards get, where a device is called otherwise. `may_be`
/// says whether a reader finds the id in a name.
fn name_vlans(
    config: &NetworkConfig,
    mut devices: Vec<Option<Device>>,
    known_as: &[Option<InterfaceName>],
    taken: &mut Taken,
    may_be: impl Fn(&InterfaceName, VlanId) -> bool,
) -> Vec<Device> {
    for at in (0..devices.len()).map(LinkIndex) {
        let mut chain = Vec::new();
        let mut next = Some(at);
        while let Some(here) = next.filter(|next| devices[next.0].is_none()) {
            chain.push(here);
            next = config.link(here).kind.made_of().first().copied();
        }
        for here in chain.into_iter().rev() {
            if let LinkKind::Vlan { name: requested, parent, id } = &config.link(here).kind {
                let requested = requested.filter(|name| !name.is_kernels_own());
                let parent = match &devices[parent.0] {
                    Some(Device::Name(parent)) => Some(*parent),
                    _ => known_as.get(parent.0).copied().flatten(),
                };
                let after_parent = parent.and_then(|parent| format!("{parent}.{id}").parse().ok());
                let mut candidates = [requested, after_parent].into_iter().flatten().filter(|name| may_be(name, *id));
                let name = candidates.find_map(|name| taken.take(name));
                // A parent without a name, or one whose name leaves no room for the id.
                let name = name.unwrap_or_else(|| taken.number(&format!(".{id}")));
                devices[here.0] = Some(Device::Name(name));
            }
        }
    }
    devices.into_iter().flatten().collect()
}

// === impl Taken ===

impl Taken {
    /// Takes a name, if nobody has it.
    fn take(&mut self, name: InterfaceName) -> Option<InterfaceName> {
        self.names.insert(name).then_some(name)
    }

    /// Takes the next free one of `kv0`, `kv1` and so on, before the suffix. They are short, so that a VLAN's id fits
    /// behind.
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

// === impl Renderer ===

impl Renderer {
    const ALL: [(Self, &'static str); 3] = [
        (Self::NetworkManager, "network-manager"),
        (Self::SystemdNetworkd, "systemd-networkd"),
        (Self::NetworkLegacy, "network-legacy"),
    ];
}

impl FromStr for Renderer {
    type Err = RendererError;

    fn from_str(text: &str) -> Result<Self, RendererError> {
        let named = Self::ALL.iter().find(|(_, name)| *name == text);
        named.map(|(renderer, _)| *renderer).ok_or_else(|| RendererError(text.to_owned()))
    }
}

impl fmt::Display for Renderer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Self::ALL.iter().find(|(renderer, _)| renderer == self).map_or("", |(_, name)| name))
    }
}

// === impl Device ===

impl Device {
    /// The address or the name alone, for people.
    #[must_use]
    pub fn bare(&self) -> String {
        match self {
            Self::MacAddress(mac_address) => Pairs(*mac_address, b':').to_string(),
            Self::Name(name) => name.to_string(),
            Self::Any => "any card".to_owned(),
        }
    }
}

// === impl RendererError ===

impl fmt::Display for RendererError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unknown renderer {:?}, expected network-manager, systemd-networkd or network-legacy", self.0)
    }
}

impl std::error::Error for RendererError {}
