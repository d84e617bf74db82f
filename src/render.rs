//! Renders the model of a network for the program that will configure the network.

mod device_names;
pub mod dracut;
mod files;
mod metrics;
pub mod network_legacy;
#[doc(hidden)]
pub mod network_manager_profiles;
pub mod networkd;
mod settings;
#[cfg(test)]
mod test_links;
mod text;
#[cfg(any(feature = "vsphere", feature = "vmware"))]
pub(crate) mod vsphere;

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use pnet_base::MacAddr;
use serde::Serialize;

use crate::network::{InterfaceName, LinkIndex, LinkKind, NetworkConfig, Pairs, VlanId};

/// The program that configures the network in an initramfs, and the input that it reads.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[doc(hidden)]
pub enum Renderer {
    /// `nm-initrd-generator`, which reads kernel arguments, and NetworkManager.
    #[default]
    NetworkManager,
    /// NetworkManager, which reads profiles.
    NetworkManagerProfiles,
    /// systemd-networkd, which reads files.
    SystemdNetworkd,
    /// dracut's own scripts, which read kernel arguments.
    NetworkLegacy,
}

/// How the rendered output identifies a link.
#[derive(Clone, Debug, Eq, PartialEq)]
#[doc(hidden)]
pub enum Device {
    /// Permanent MAC address of the NIC.
    MacAddress(MacAddr),
    /// Interface name.
    Name(InterfaceName),
    /// Any NIC: the document identifies the link by a pattern only.
    Any,
}

/// Error: a string is not the name of a [`Renderer`].
#[derive(Clone, Debug, Eq, PartialEq)]
#[doc(hidden)]
pub struct RendererError(String);

/// Interface names that are already in use.
#[derive(Debug, Default)]
struct Taken {
    names: BTreeSet<InterfaceName>,
    next: usize,
}

/// Names every VLAN, and returns how each link is identified, in the order of the links.
///
/// A VLAN gets the first free name of these: the name from the document, a name after its parent (`parent.id`), a
/// numbered name (`kv0.id`). A parent is named before its VLANs. A VLAN never gets a name that the kernel itself
/// assigns: a NIC that appears later may get the same name.
///
/// `devices` identifies every link that is not a VLAN. `known_as` has the names of NICs that `devices` does not
/// identify by name. `may_be` returns whether the network program accepts a name for a VLAN with this id.
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
                // No candidate is valid and free, for example because the parent has no name, or a name that leaves no
                // room for the id.
                let name = name.unwrap_or_else(|| taken.number(&format!(".{id}")));
                devices[here.0] = Some(Device::Name(name));
            }
        }
    }
    devices.into_iter().flatten().collect()
}

// === impl Taken ===

impl Taken {
    /// Takes the names that NICs get without the document.
    fn of(config: &NetworkConfig) -> Self {
        let mut taken = Self::default();
        for (name, _) in &config.given_names {
            _ = taken.take(*name);
        }
        taken
    }

    /// Takes the name and returns it; `None` when another link has the name.
    fn take(&mut self, name: InterfaceName) -> Option<InterfaceName> {
        self.names.insert(name).then_some(name)
    }

    /// Takes the next free name of `kv0`, `kv1` and so on, followed by the suffix. The names are short, so that a
    /// suffix with a VLAN id fits into the maximum length.
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
    const ALL: [(Self, &'static str); 4] = [
        (Self::NetworkManager, "network-manager"),
        (Self::NetworkManagerProfiles, "network-manager-profiles"),
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
    /// Returns the MAC address or the name without brackets, for messages and file names.
    #[must_use]
    pub fn bare(&self) -> String {
        match self {
            Self::MacAddress(mac_address) => Pairs(*mac_address, b':').to_string(),
            Self::Name(name) => name.to_string(),
            Self::Any => "any NIC".to_owned(),
        }
    }
}

// === impl RendererError ===

impl fmt::Display for RendererError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let expected = "network-manager, network-manager-profiles, systemd-networkd or network-legacy";
        write!(f, "unknown renderer {:?}, expected {expected}", self.0)
    }
}

impl std::error::Error for RendererError {}
