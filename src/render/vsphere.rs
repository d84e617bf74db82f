//! The kernel arguments of a vSphere machine, byte for byte as OpenShift's Machine API writes them.
//!
//! Machine API writes the arguments into a property of the machine, and the guest reads them from this property. The
//! grammar of these arguments differs from the grammar of [`dracut`](super::dracut): a netmask for IPv4, brackets
//! around IPv6 name servers, and no interface, so every NIC gets the addresses.
//!
//! Source: `openshift/machine-api-operator:pkg/controller/vsphere/reconciler.go`.

#[cfg(feature = "vsphere")]
use std::fmt::Write as _;
#[cfg(feature = "vsphere")]
use std::net::IpAddr;

#[cfg(feature = "vsphere")]
use ipnetwork::IpNetwork;

/// Name of the property with the arguments, as afterburn defines it.
pub const PROPERTY: &str = "guestinfo.afterburn.initrd.network-kargs";

/// Largest size of the property, in bytes: as long as a kernel command line of 4 KiB.
pub(crate) const MAX_BYTES: usize = 4096;

/// The static network of one NIC.
#[cfg(feature = "vsphere")]
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct StaticDevice {
    /// Addresses, each with the prefix length of its subnet.
    pub(crate) addresses: Vec<IpNetwork>,
    /// Default gateway, for the addresses of its family.
    pub(crate) gateway: Option<IpAddr>,
    /// Name servers, the most important first.
    pub(crate) nameservers: Vec<IpAddr>,
}

/// The value of the property. There is a blank after each argument, also after the last one.
#[cfg(feature = "vsphere")]
pub(crate) fn property<'d>(devices: impl IntoIterator<Item = &'d StaticDevice>) -> String {
    let mut line = String::new();
    for device in devices {
        for address in &device.addresses {
            let gateway = device.gateway.filter(|gateway| gateway.is_ipv4() == address.is_ipv4());
            let gateway = gateway.map(bracketed).unwrap_or_default();
            let ip = bracketed(address.ip());
            // Writing to a string never fails.
            let _ = match address {
                IpNetwork::V4(v4) => write!(line, "ip={ip}::{gateway}:{}:::none ", v4.mask()),
                IpNetwork::V6(v6) => write!(line, "ip={ip}::{gateway}:{}:::none ", v6.prefix()),
            };
        }
        for nameserver in &device.nameservers {
            let _ = write!(line, "nameserver={} ", bracketed(*nameserver));
        }
    }
    line
}

#[cfg(feature = "vsphere")]
fn bracketed(address: IpAddr) -> String {
    match address {
        IpAddr::V4(address) => address.to_string(),
        IpAddr::V6(address) => format!("[{address}]"),
    }
}
