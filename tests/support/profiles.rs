//! What a network program is to do with each interface, in a form in which a truth and a reading can be compared.
//!
//! A device is known by what it is made of: a NIC by its MAC address, a bond by its ports, a VLAN by its parent and its
//! tag. So the names that glowplug is free to choose do not count, and two profiles for one NIC are found out however
//! they name it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// What is known about every interface.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct Profiles(pub(crate) BTreeMap<DeviceKey, Profile>);

/// Which interface a profile is for.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) enum DeviceKey {
    /// Whichever NIC comes first. Never what we want, but readers can be made to understand it.
    Any,
    /// A NIC, by its MAC address in lower case with colons, or by its name where nothing else is known.
    Nic(String),
    /// A bond, by its ports, sorted.
    Bond(Vec<String>),
    /// A bridge, by its ports, sorted.
    Bridge(Vec<String>),
    /// A VLAN, by its parent and its tag.
    Vlan(Box<DeviceKey>, u16),
}

/// What one interface is to be.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct Profile {
    /// The name of a VLAN, a bond or a bridge. In a truth only where the document may insist on it; see [`Profiles::with_names_of`].
    pub(crate) name: Option<String>,
    pub(crate) ipv4: Family,
    pub(crate) ipv6: Family,
    pub(crate) mtu: Option<u32>,
    /// The MAC address that the interface is to take on.
    pub(crate) cloned_mac: Option<String>,
    pub(crate) bond_options: BTreeMap<String, String>,
    /// The bond or the bridge to which the interface belongs.
    pub(crate) port_of: Option<DeviceKey>,
}

/// One address family on one interface.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct Family {
    pub(crate) method: Method,
    /// Whether the interface fails as a whole when this family does.
    pub(crate) required: bool,
    pub(crate) addresses: BTreeSet<Cidr>,
    pub(crate) gateway: Option<IpAddr>,
    pub(crate) routes: BTreeSet<(Cidr, Option<IpAddr>)>,
    /// In the order in which they are asked.
    pub(crate) dns: Vec<IpAddr>,
    /// Whether the name servers of whoever gives the addresses are not asked.
    pub(crate) ignores_dns: bool,
}

#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) enum Method {
    #[default]
    Disabled,
    Manual,
    Auto,
}

/// An address and the length of its network's prefix.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) struct Cidr {
    pub(crate) address: IpAddr,
    pub(crate) length: u8,
}

// === impl Profiles ===

impl Profiles {
    /// The same profiles, without the names of those interfaces that have none in `truth`.
    pub(crate) fn with_names_of(mut self, truth: &Self) -> Self {
        for (key, profile) in &mut self.0 {
            if truth.0.get(key).is_some_and(|meant| meant.name.is_none()) {
                profile.name = None;
            }
        }
        self
    }

    /// One argument is for all: servers that anybody is to take from others, everybody takes.
    pub(crate) fn agree_on_name_servers(&mut self) {
        let families = || self.0.values().flat_map(|profile| [&profile.ipv4, &profile.ipv6]);
        let ignored = families().filter(|family| family.method == Method::Auto).all(|family| family.ignores_dns);
        for family in self.0.values_mut().flat_map(|profile| [&mut profile.ipv4, &mut profile.ipv6]) {
            family.ignores_dns = ignored && family.method == Method::Auto;
        }
    }
}

impl fmt::Display for Profiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (key, profile) in &self.0 {
            writeln!(f, "{key}")?;
            write!(f, "{profile}")?;
        }
        Ok(())
    }
}

// === impl DeviceKey ===

impl DeviceKey {
    /// A NIC without the word, anything else as it is displayed.
    pub(crate) fn bare(&self) -> String {
        match self {
            Self::Nic(nic) => nic.clone(),
            other => other.to_string(),
        }
    }
}

impl fmt::Display for DeviceKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("any NIC"),
            Self::Nic(nic) => write!(f, "NIC {nic}"),
            Self::Bond(ports) => write!(f, "bond of {}", ports.join(" and ")),
            Self::Bridge(ports) => write!(f, "bridge of {}", ports.join(" and ")),
            Self::Vlan(parent, tag) => write!(f, "vlan {tag} on {parent}"),
        }
    }
}

// === impl Profile ===

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(name) = &self.name {
            writeln!(f, "  name {name}")?;
        }
        if let Some(bond) = &self.port_of {
            writeln!(f, "  port of {bond}")?;
        }
        if let Some(mtu) = self.mtu {
            writeln!(f, "  mtu {mtu}")?;
        }
        if let Some(mac) = &self.cloned_mac {
            writeln!(f, "  takes on {mac}")?;
        }
        for (option, value) in &self.bond_options {
            writeln!(f, "  {option} {value}")?;
        }
        for (name, family) in [("ipv4", &self.ipv4), ("ipv6", &self.ipv6)] {
            let method = match family.method {
                Method::Disabled => "disabled",
                Method::Manual => "manual",
                Method::Auto => "auto",
            };
            let required = if family.required { ", required" } else { "" };
            writeln!(f, "  {name} {method}{required}")?;
            for address in &family.addresses {
                writeln!(f, "    address {address}")?;
            }
            if let Some(gateway) = family.gateway {
                writeln!(f, "    gateway {gateway}")?;
            }
            for (destination, via) in &family.routes {
                match via {
                    Some(via) => writeln!(f, "    route {destination} via {via}")?,
                    None => writeln!(f, "    route {destination} on the link")?,
                }
            }
            for server in &family.dns {
                writeln!(f, "    dns {server}")?;
            }
            if family.ignores_dns {
                writeln!(f, "    no dns of others")?;
            }
        }
        Ok(())
    }
}

// === impl Cidr ===

impl Cidr {
    /// As many bits as an address of this family has.
    pub(crate) fn bits(address: IpAddr) -> u8 {
        if address.is_ipv4() { 32 } else { 128 }
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.length)
    }
}

impl FromStr for Cidr {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let read = || {
            let (address, length) = text.split_once('/')?;
            let address: IpAddr = address.parse().ok()?;
            let length: u8 = length.parse().ok()?;
            (length <= Self::bits(address)).then_some(Self { address, length })
        };
        read().ok_or_else(|| format!("{text:?} is no address with a prefix length"))
    }
}
