//! NetworkManager's method for the IPv6 addresses of a link.

use std::fmt;

use crate::network::{Ipv6Dynamic, Link};

/// NetworkManager's method for the IPv6 addresses of a link.
#[derive(Clone, Copy, Eq, PartialEq)]
pub(super) enum Ipv6Method {
    Disabled,
    /// NetworkManager leaves IPv6 to the kernel: a link-local address and router advertisements.
    Ignore,
    LinkLocal,
    Manual,
    Auto,
    /// DHCPv6 without router advertisements.
    Dhcp,
}

// === impl Ipv6Method ===

impl Ipv6Method {
    pub(super) fn of(link: &Link) -> Self {
        let ipv6 = &link.ipv6;
        let with_routers = ipv6.accept_ra != Some(false);
        match ipv6.dynamic {
            Some(_) if with_routers => Self::Auto,
            Some(Ipv6Dynamic::StatefulDhcp) => Self::Dhcp,
            // SLAAC and stateless DHCPv6 give no address without router advertisements. Only the link-local address and
            // static addresses are left.
            Some(_) if ipv6.addresses.is_empty() => Self::LinkLocal,
            Some(_) => Self::Manual,
            None if !link.has_addresses() => Self::Disabled,
            None if ipv6.accept_ra == Some(true) && (ipv6.is_used() || ipv6.link_local == Some(false)) => Self::Auto,
            None if !ipv6.addresses.is_empty() => Self::Manual,
            None if ipv6.link_local == Some(true) => Self::LinkLocal,
            None if ipv6.link_local == Some(false) => Self::Disabled,
            None if !link.ipv4.is_used() => Self::Disabled,
            // `Ignore` would accept router advertisements. With `Ignore`, IPv6 also does not count as a family that
            // succeeded: if neither family succeeds, NetworkManager removes the static IPv4 addresses when no DHCP
            // server answers.
            None if !with_routers || link.ipv4.dhcp && !link.ipv4.addresses.is_empty() => Self::LinkLocal,
            None => Self::Ignore,
        }
    }
}

impl fmt::Display for Ipv6Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Disabled => "disabled",
            Self::Ignore => "ignore",
            Self::LinkLocal => "link-local",
            Self::Manual => "manual",
            Self::Auto => "auto",
            Self::Dhcp => "dhcp",
        })
    }
}
