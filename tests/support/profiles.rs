//! Profiles of interfaces, in a form in which expected and actual profiles can be compared.
//!
//! A device is identified by its parts: a NIC by its MAC address, a bond by its members, a VLAN by its parent and its
//! VLAN id. So the comparison ignores names that glowplug may choose, and detects two profiles of one NIC.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// Profiles of all interfaces.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct Profiles(pub(crate) BTreeMap<DeviceKey, Profile>);

/// Identifies the interface of a profile.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) enum DeviceKey {
    /// Any NIC: the arguments name no NIC. glowplug writes such arguments for vSphere and for patterns.
    Any,
    /// The MAC address of a NIC, in lower case and with colons, or its name if the MAC address is unknown.
    Nic(String),
    /// The sorted members of a bond.
    Bond(Vec<String>),
    /// The sorted ports of a bridge.
    Bridge(Vec<String>),
    /// The parent of a VLAN, and the VLAN id.
    Vlan(Box<DeviceKey>, u16),
}

/// The configuration of one interface.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct Profile {
    /// Name of a VLAN, a bond or a bridge. An expected profile has a name only if the document can require the name;
    /// see [`Profiles::with_names_of`].
    pub(crate) name: Option<String>,
    pub(crate) ipv4: Family,
    pub(crate) ipv6: Family,
    pub(crate) mtu: Option<u32>,
    /// MAC address that the interface takes in place of its own.
    pub(crate) cloned_mac: Option<String>,
    pub(crate) bond_options: BTreeMap<String, String>,
    /// Bond or bridge to which the interface belongs.
    pub(crate) port_of: Option<DeviceKey>,
}

/// One address family on one interface.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct Family {
    pub(crate) method: Method,
    /// Whether a failure of this family makes the whole interface fail.
    pub(crate) required: bool,
    pub(crate) addresses: BTreeSet<Cidr>,
    pub(crate) gateway: Option<IpAddr>,
    pub(crate) routes: BTreeSet<(Cidr, Option<IpAddr>)>,
    /// Name servers, in the order of queries.
    pub(crate) dns: Vec<IpAddr>,
    /// Whether name servers from DHCP or router advertisements are ignored.
    pub(crate) ignores_dns: bool,
}

#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) enum Method {
    #[default]
    Disabled,
    Manual,
    LinkLocal,
    Auto,
}

/// An address and its prefix length.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) struct Cidr {
    pub(crate) address: IpAddr,
    pub(crate) length: u8,
}

// === impl Profiles ===

impl Profiles {
    /// Removes the names of interfaces to which `truth` gives no name.
    pub(crate) fn with_names_of(mut self, truth: &Self) -> Self {
        for (key, profile) in &mut self.0 {
            if truth.0.get(key).is_some_and(|meant| meant.name.is_none()) {
                profile.name = None;
            }
        }
        self
    }

    /// Applies a limit of kernel arguments, which ignore dynamic name servers on all interfaces or on none. If one
    /// interface accepts such servers, all interfaces accept them.
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
    /// Displays a NIC without the prefix `NIC`. Displays any other device as usual.
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
                Method::LinkLocal => "link-local",
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
    /// Returns the number of bits of an address of this family.
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
