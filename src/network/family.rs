//! The two address families.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// An address family.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Family {
    /// IPv4
    Ipv4,
    /// IPv6
    Ipv6,
}

// === impl Family ===

impl Family {
    /// The family of an address.
    #[must_use]
    pub fn of(address: IpAddr) -> Self {
        if address.is_ipv4() { Self::Ipv4 } else { Self::Ipv6 }
    }

    /// The length of an address in bits: 32 or 128. This is also the longest prefix length.
    #[must_use]
    pub fn bits(self) -> u8 {
        match self {
            Self::Ipv4 => 32,
            Self::Ipv6 => 128,
        }
    }

    /// A number whose 1 bits are the host bits of an address with this prefix length.
    #[must_use]
    pub fn hosts(self, length: u8) -> u128 {
        u128::MAX.checked_shr(128 - u32::from(self.bits().saturating_sub(length))).unwrap_or(0)
    }

    /// The address with this number. Bits beyond the family's length are ignored.
    #[must_use]
    pub fn address(self, number: u128) -> IpAddr {
        match self {
            Self::Ipv4 => IpAddr::V4(Ipv4Addr::from((number & u128::from(u32::MAX)) as u32)),
            Self::Ipv6 => IpAddr::V6(Ipv6Addr::from(number)),
        }
    }

    /// The number of an address: its bits as an integer.
    #[must_use]
    pub fn number(address: IpAddr) -> u128 {
        match address {
            IpAddr::V4(address) => u128::from(u32::from(address)),
            IpAddr::V6(address) => u128::from(address),
        }
    }

    /// The family of an address, and the number of the address in that family.
    #[must_use]
    pub fn split(address: IpAddr) -> (Self, u128) {
        (Self::of(address), Self::number(address))
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ipv4 => "IPv4",
            Self::Ipv6 => "IPv6",
        })
    }
}
