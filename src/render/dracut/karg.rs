//! The arguments, and the only place where they are spelled.

use std::fmt;
use std::net::IpAddr;

use ipnetwork::IpNetwork;
use pnet_base::MacAddr;

use crate::network::{InterfaceName, Mtu, Pairs};
use crate::render::Device;

/// One kernel argument.
///
/// Everything in it is a number, an address or a name of a fixed alphabet, so an argument is one word for the kernel,
/// for dracut's tokeniser and for a shell.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Karg {
    /// The card with this address gets this name.
    Ifname {
        /// Its name in every other argument.
        name: InterfaceName,
        /// Its permanent address.
        mac_address: MacAddr,
    },
    /// Several cards act as one.
    Bond {
        /// Its name.
        name: InterfaceName,
        /// Its cards.
        ports: Vec<Device>,
        /// Names and values of the kernel's; the first is `mode`.
        options: Vec<(&'static str, String)>,
        /// In bytes.
        mtu: Option<Mtu>,
    },
    /// Several links are one network.
    Bridge {
        /// Its name.
        name: InterfaceName,
        /// What it is made of.
        ports: Vec<Device>,
    },
    /// A tagged network; the tag is what the name ends with.
    Vlan {
        /// Called by its name.
        vlan: Device,
        /// What it is on, called by its name.
        parent: Device,
    },
    /// An address, or a way to get some.
    Ip {
        /// With its gateway, if it has one of its own family.
        address: Option<(IpNetwork, Option<IpAddr>)>,
        /// Where.
        device: Device,
        /// How the device gets further addresses.
        method: Method,
        /// In bytes.
        mtu: Option<Mtu>,
        /// The address that the device shall take on.
        mac_address: Option<MacAddr>,
    },
    /// A route, with its device wherever that is known: without one it goes to whichever profile is first.
    Route {
        /// Where it leads.
        destination: IpNetwork,
        /// The next hop, `None` on the link.
        gateway: Option<IpAddr>,
        /// Through which device.
        device: Device,
    },
    /// A name server for the whole machine.
    Nameserver(IpAddr),
    /// The name servers of DHCP servers and routers do not count.
    NoPeerDns,
}

/// dracut's words for how a device gets addresses.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Method {
    /// No more than the addresses that are given.
    None,
    /// No addresses at all.
    Off,
    /// Both families are asked for, and neither is waited for beside a static one.
    On,
    /// DHCPv4 is required.
    Dhcp,
    /// DHCPv6 is required.
    Dhcp6,
    /// Router advertisements are required.
    Auto6,
    /// Both families, one of them at least.
    DhcpDhcp6,
    /// DHCPv6 where nobody answers to DHCPv4: what network-legacy makes of the same word.
    DhcpElseDhcp6,
}

struct Bracketed(IpAddr);

struct OrNothing<T>(Option<T>);

struct AsPort<'a>(&'a Device);

// === impl Karg ===

impl fmt::Display for Karg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ifname { name, mac_address } => write!(f, "ifname={name}:{mac_address}"),
            Self::Bond { name, ports, options, mtu } => {
                write!(f, "bond={name}")?;
                for (at, port) in ports.iter().enumerate() {
                    write!(f, "{}{}", if at == 0 { ":" } else { "," }, AsPort(port))?;
                }
                for (at, (name, value)) in options.iter().enumerate() {
                    write!(f, "{}{name}={value}", if at == 0 { ":" } else { "," })?;
                }
                mtu.map_or(Ok(()), |mtu| write!(f, ":{mtu}"))
            }
            Self::Bridge { name, ports } => {
                write!(f, "bridge={name}")?;
                for (at, port) in ports.iter().enumerate() {
                    write!(f, "{}{}", if at == 0 { ":" } else { "," }, AsPort(port))?;
                }
                Ok(())
            }
            Self::Vlan { vlan, parent } => write!(f, "vlan={vlan}:{parent}"),
            Self::Ip { address, device, method, mtu, mac_address } => {
                match address {
                    Some((address, gateway)) => {
                        let (ip, gateway) = (Bracketed(address.ip()), OrNothing(gateway.map(Bracketed)));
                        write!(f, "ip={ip}::{gateway}:{}::{device}:{method}", address.prefix())?;
                    }
                    // network-legacy takes a list of words in the long form alone.
                    None if *method == Method::DhcpElseDhcp6 => write!(f, "ip=:::::{device}:{method}")?,
                    None if *device == Device::Any && mtu.is_none() && mac_address.is_none() => {
                        return write!(f, "ip={method}");
                    }
                    None => write!(f, "ip={device}:{method}")?,
                }
                match (mtu, mac_address) {
                    (None, None) => Ok(()),
                    (Some(mtu), None) => write!(f, ":{mtu}"),
                    // The address comes after the MTU, said or not.
                    (mtu, Some(mac_address)) => write!(f, ":{}:{mac_address}", OrNothing(*mtu)),
                }
            }
            Self::Route { destination, gateway, device } => {
                let gateway = OrNothing(gateway.map(Bracketed));
                match destination {
                    IpNetwork::V4(destination) => write!(f, "rd.route={destination}:{gateway}")?,
                    IpNetwork::V6(destination) => write!(f, "rd.route=[{destination}]:{gateway}")?,
                }
                if *device == Device::Any { Ok(()) } else { write!(f, ":{device}") }
            }
            // Bare for IPv6 too: brackets end up in network-legacy's resolv.conf.
            Self::Nameserver(server) => write!(f, "nameserver={server}"),
            Self::NoPeerDns => f.write_str("rd.peerdns=0"),
        }
    }
}

// === impl Device, Method ===

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // In brackets: the fields are separated by colons.
            Self::MacAddress(mac_address) => write!(f, "[{}]", Pairs(*mac_address, b':')),
            Self::Name(name) => name.fmt(f),
            Self::Any => Ok(()),
        }
    }
}

impl fmt::Display for AsPort<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            // With dashes: NetworkManager 1.42 loses the second port and the mode over brackets.
            Device::MacAddress(mac_address) => Pairs(*mac_address, b'-').fmt(f),
            Device::Name(name) => name.fmt(f),
            Device::Any => Ok(()),
        }
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            // Never `static`: NetworkManager takes it for `auto`, network-legacy stops the boot.
            Self::None => "none",
            Self::Off => "off",
            Self::On => "on",
            Self::Dhcp => "dhcp",
            Self::Dhcp6 => "dhcp6",
            Self::Auto6 => "auto6",
            Self::DhcpDhcp6 | Self::DhcpElseDhcp6 => "dhcp,dhcp6",
        })
    }
}

// === impl Bracketed, OrNothing ===

impl fmt::Display for Bracketed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            IpAddr::V4(address) => address.fmt(f),
            IpAddr::V6(address) => write!(f, "[{address}]"),
        }
    }
}

impl<T: fmt::Display> fmt::Display for OrNothing<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.as_ref().map_or(Ok(()), |value| value.fmt(f))
    }
}
