//! The reasons for which a pool reserves an address.

use std::fmt;

use ipnetwork::IpNetwork;

use crate::network::Family;

/// Why a pool reserves an address.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
#[non_exhaustive]
pub enum Reserved {
    /// The address is a gateway.
    Gateway,
    /// The address is a name server.
    Nameserver,
    /// The template of the machines' document contains the address for another use, for example as the gateway of
    /// another interface.
    Template,
    /// The pool keeps the address for a name, and allocates it only to a machine of this name.
    PreAllocated,
    /// The pool excludes the address.
    Excluded,
    /// The address is the first of an IPv4 subnet.
    NetworkAddress,
    /// The address is the last of an IPv4 subnet.
    Broadcast,
    /// The address is the first of an IPv6 subnet. All routers of the subnet answer to this address.
    SubnetRouterAnycast,
}

// === impl Reserved ===

impl Reserved {
    /// Returns the reason if an address is a reserved end of its subnet. `None` for any other address.
    ///
    /// ```
    /// use glowplug::host::pool::Reserved;
    ///
    /// let end = |text: &str| Reserved::end_of_subnet(text.parse().unwrap());
    /// assert_eq!(end("10.0.0.255/24"), Some(Reserved::Broadcast));
    /// assert_eq!([end("10.0.0.5/24"), end("10.0.0.4/31")], [None; 2]);
    /// ```
    #[must_use]
    pub fn end_of_subnet(address: IpNetwork) -> Option<Self> {
        Self::end(Family::of(address.ip()), address.prefix(), Family::number(address.ip()))
    }

    pub(super) fn end(family: Family, prefix: u8, number: u128) -> Option<Self> {
        let hosts = family.hosts(prefix);
        let (first, last) = Self::ends_are(family);
        if family.bits().saturating_sub(prefix) < 2 {
            None
        } else if number & hosts == 0 {
            Some(first)
        } else if number & hosts == hosts && family == Family::Ipv4 {
            Some(last)
        } else {
            None
        }
    }

    /// The reasons for reserving the first and the last address of a subnet.
    pub(super) fn ends_are(family: Family) -> (Self, Self) {
        match family {
            Family::Ipv4 => (Self::NetworkAddress, Self::Broadcast),
            Family::Ipv6 => (Self::SubnetRouterAnycast, Self::Broadcast),
        }
    }
}

impl fmt::Display for Reserved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Gateway => "gateway",
            Self::Nameserver => "name server",
            Self::Template => "address in the template",
            Self::PreAllocated => "pre-allocated",
            Self::Excluded => "excluded",
            Self::NetworkAddress => "network address",
            Self::Broadcast => "broadcast address",
            Self::SubnetRouterAnycast => "subnet-router anycast",
        })
    }
}
