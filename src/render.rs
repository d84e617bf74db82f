//! The model, written for the program that will bring the network up.

pub mod dracut;
pub mod network_legacy;
pub mod networkd;

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

/// Names every VLAN, each after what it is on; everything else has been named. `name` gives a free one: from the wish of
/// the document, the id, the parent and how that is known.
fn name_vlans(
    config: &NetworkConfig,
    mut devices: Vec<Option<Device>>,
    mut name: impl FnMut(Option<&InterfaceName>, VlanId, LinkIndex, Option<&Device>) -> InterfaceName,
) -> Vec<Device> {
    for at in (0..devices.len()).map(LinkIndex) {
        let mut chain = Vec::new();
        let mut next = Some(at);
        while let Some(here) = next.filter(|next| devices[next.0].is_none()) {
            chain.push(here);
            next = config.link(here).kind.made_of().first().copied();
        }
        for here in chain.into_iter().rev() {
            if let LinkKind::Vlan { name: wish, parent, id } = &config.link(here).kind {
                let name = name(wish.as_ref(), *id, *parent, devices[parent.0].as_ref());
                devices[here.0] = Some(Device::Name(name));
            }
        }
    }
    devices.into_iter().flatten().collect()
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
