//! Kernel arguments and their serialization.

use std::fmt;
use std::net::IpAddr;

use ipnetwork::IpNetwork;
use pnet_base::MacAddr;

use crate::network::{InterfaceName, Mtu, Pairs};
use crate::render::Device;

/// One kernel argument.
///
/// Every value in an argument is a number, an address or a name with a fixed alphabet. So the kernel, dracut's
/// tokeniser and a shell all read an argument as one word.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Karg {
    /// Names the NIC that has this MAC address.
    Ifname {
        /// Name of the NIC in all other arguments.
        name: InterfaceName,
        /// Permanent MAC address of the NIC.
        mac_address: MacAddr,
    },
    /// Makes a bond.
    Bond {
        /// Name of the bond.
        name: InterfaceName,
        /// Members of the bond.
        ports: Vec<Device>,
        /// Options with the kernel's names and values; the first is `mode`.
        options: Vec<(&'static str, String)>,
        /// MTU of the bond, in bytes.
        mtu: Option<Mtu>,
    },
    /// Makes a bridge.
    Bridge {
        /// Name of the bridge.
        name: InterfaceName,
        /// Ports of the bridge.
        ports: Vec<Device>,
    },
    /// Makes a VLAN. The readers take the VLAN id from the end of the VLAN's name.
    Vlan {
        /// Name of the VLAN.
        vlan: Device,
        /// Name of the link below the VLAN.
        parent: Device,
    },
    /// Sets an address, or a method to get addresses.
    Ip {
        /// Static address, with the gateway of its family; `None` sets only the method.
        address: Option<(IpNetwork, Option<IpAddr>)>,
        /// Link that gets the address.
        device: Device,
        /// How the link gets further addresses.
        method: Method,
        /// MTU of the link, in bytes.
        mtu: Option<Mtu>,
        /// MAC address to set on the link instead of its own.
        mac_address: Option<MacAddr>,
    },
    /// Adds a route. Without a device NetworkManager adds the route to the first profile, so the device is written
    /// wherever it is known.
    Route {
        /// Network that the route leads to.
        destination: IpNetwork,
        /// Next hop; `None` for an on-link route.
        gateway: Option<IpAddr>,
        /// Link of the route.
        device: Device,
    },
    /// Sets a name server for the whole machine.
    Nameserver(IpAddr),
    /// Ignores the name servers of DHCP servers and routers.
    NoPeerDns,
}

/// How a link gets addresses, in dracut's words.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Method {
    /// Only the addresses in the arguments.
    None,
    /// No addresses at all.
    Off,
    /// Both families are dynamic. If there is also a static address, neither dynamic family is required.
    On,
    /// DHCPv4 is required.
    Dhcp,
    /// DHCPv6 is required.
    Dhcp6,
    /// Router advertisements are required.
    Auto6,
    /// An IPv6 link-local address is required, and no other IPv6 address is set.
    Link6,
    /// [`Method::Link6`] in the form that network-legacy recognises.
    LegacyLink6,
    /// Both families are dynamic, and at least one must succeed.
    DhcpDhcp6,
    /// DHCPv4, and DHCPv6 only if no DHCPv4 server answers. network-legacy reads the string `dhcp,dhcp6` in this way.
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
                    // network-legacy accepts these methods only in the long form.
                    None if matches!(method, Method::DhcpElseDhcp6 | Method::LegacyLink6) => {
                        write!(f, "ip=:::::{device}:{method}")?
                    }
                    None if *device == Device::Any && mtu.is_none() && mac_address.is_none() => {
                        return write!(f, "ip={method}");
                    }
                    None => write!(f, "ip={device}:{method}")?,
                }
                match (mtu, mac_address) {
                    (None, None) => Ok(()),
                    (Some(mtu), None) => write!(f, ":{mtu}"),
                    // The MAC address comes after the MTU; the MTU field may be empty.
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
            // An IPv6 address has no brackets here: network-legacy would copy them to resolv.conf.
            Self::Nameserver(server) => write!(f, "nameserver={server}"),
            Self::NoPeerDns => f.write_str("rd.peerdns=0"),
        }
    }
}

// === impl Device, Method ===

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // The brackets are necessary, because colons separate the fields of an argument.
            Self::MacAddress(mac_address) => write!(f, "[{}]", Pairs(*mac_address, b':')),
            Self::Name(name) => name.fmt(f),
            Self::Any => Ok(()),
        }
    }
}

impl fmt::Display for AsPort<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            // The pairs have dashes between them: with brackets, NetworkManager 1.42 loses the second member and the
            // mode of a bond.
            Device::MacAddress(mac_address) => Pairs(*mac_address, b'-').fmt(f),
            Device::Name(name) => name.fmt(f),
            Device::Any => Ok(()),
        }
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            // The word is never `static`: NetworkManager reads `static` as `auto`, and network-legacy stops the boot.
            Self::None => "none",
            Self::Off => "off",
            Self::On => "on",
            Self::Dhcp => "dhcp",
            Self::Dhcp6 => "dhcp6",
            Self::Auto6 => "auto6",
            Self::Link6 | Self::LegacyLink6 => "link6",
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
