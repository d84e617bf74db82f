//! Parses addresses and netmasks in every notation that cloud-init accepts
//! (`canonical/cloud-init:cloudinit/net/network_state.py`).

use std::net::{IpAddr, Ipv4Addr};

use ipnetwork::IpNetwork;

use crate::network::Family;

/// Description of a valid netmask, for messages.
pub(crate) const MASK_EXPECTED: &str = "a netmask without holes, or a prefix length above 0";

/// The invalid part of an address with a netmask.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Wrong {
    Address,
    Mask,
}

/// A network, and whether its prefix length is a guess.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Prefixed {
    pub(crate) network: IpNetwork,
    /// Whether the prefix length is a default, because the document has none.
    pub(crate) is_guessed: bool,
}

/// The prefix length of an address without a prefix length in the document, as in cloud-init.
fn default_prefix(family: Family) -> u8 {
    match family {
        Family::Ipv4 => 24,
        Family::Ipv6 => 64,
    }
}

/// The network that contains all addresses of the family: `0.0.0.0/0` or `::/0`.
pub(crate) fn everywhere(family: Family) -> IpNetwork {
    let unspecified = family.address(0);
    // The prefix length is valid, so the fallback is never used.
    IpNetwork::new(unspecified, 0).unwrap_or_else(|_| IpNetwork::from(unspecified))
}

/// Parses an address and drops its zone. The schema allows `fe80::1%eth0`, but the link of the address is in another
/// member of the document.
pub(crate) fn address(text: &str) -> Option<IpAddr> {
    match text.split_once('%') {
        Some((address, zone)) if !zone.is_empty() => address.parse().ok().map(IpAddr::V6),
        Some(_) => None,
        None => text.parse().ok(),
    }
}

/// Parses an address that a machine can have: not unspecified, loopback, multicast or broadcast.
pub(crate) fn host_address(text: &str) -> Option<IpAddr> {
    address(text).filter(|address| {
        let broadcast = *address == IpAddr::V4(Ipv4Addr::BROADCAST);
        !(address.is_unspecified() || address.is_loopback() || address.is_multicast() || broadcast)
    })
}

/// The prefix length of a netmask such as `24`, `255.255.255.0` or `ffff:ffff::`. `None` for an invalid netmask.
pub(crate) fn prefix_length(mask: &str, family: Family) -> Option<u8> {
    if mask.bytes().all(|b| b.is_ascii_digit()) {
        return mask.parse::<u8>().ok().filter(|length| *length <= family.bits());
    }
    let (ones, zeros_and_ones) = match (mask.parse::<IpAddr>().ok()?, family) {
        (IpAddr::V4(mask), Family::Ipv4) => (u32::from(mask).leading_ones(), u32::from(mask).count_ones()),
        (IpAddr::V6(mask), Family::Ipv6) => (u128::from(mask).leading_ones(), u128::from(mask).count_ones()),
        _ => return None,
    };
    u8::try_from(ones).ok().filter(|_| ones == zeros_and_ones)
}

/// Parses an address with a prefix length. The prefix length comes from the address (`10.0.0.5/24`,
/// `10.0.0.5/255.255.255.0`), else from the netmask, else it is 24 for IPv4 and 64 for IPv6. An empty netmask counts as
/// missing.
pub(crate) fn interface_address(text: &str, mask: Option<&str>) -> Result<Prefixed, Wrong> {
    let (address, own) = split(text);
    let address = host_address(address).ok_or(Wrong::Address)?;
    let family = Family::of(address);
    let given = prefix(own, mask, family)?;
    network(address, given.unwrap_or(default_prefix(family)), own, given.is_none())
}

/// Parses the destination of a route. `default` stands for all addresses of `family`. `0.0.0.0` or `::` without a
/// netmask stands for all addresses of its own family, and no other address does. Any other address without a netmask is
/// taken as a single host, which is a guess.
pub(crate) fn destination(text: &str, mask: Option<&str>, family: Family) -> Result<Prefixed, Wrong> {
    if text == "default" {
        return Ok(Prefixed { network: everywhere(family), is_guessed: false });
    }
    let (address, own) = split(text);
    let address = self::address(address).ok_or(Wrong::Address)?;
    let family = Family::of(address);
    let default = if address.is_unspecified() { 0 } else { family.bits() };
    let given = prefix(own, mask, family)?;
    let is_guessed = given.is_none() && !address.is_unspecified();
    network(address, given.unwrap_or(default), own, is_guessed)
}

/// The prefix length in the document: the length in the address, else the netmask. Both must be valid.
fn prefix(own: Option<&str>, mask: Option<&str>, family: Family) -> Result<Option<u8>, Wrong> {
    let read = |text: &str, wrong| prefix_length(text, family).ok_or(wrong);
    let own = own.map(|own| read(own, Wrong::Address)).transpose()?;
    let mask = mask.filter(|mask| !mask.is_empty()).map(|mask| read(mask, Wrong::Mask)).transpose()?;
    Ok(own.or(mask))
}

fn split(text: &str) -> (&str, Option<&str>) {
    match text.split_once('/') {
        Some((address, length)) => (address, Some(length)),
        None => (text, None),
    }
}

/// Makes the network of an address. `own` is the prefix length that is part of the address.
fn network(address: IpAddr, prefix: u8, own: Option<&str>, is_guessed: bool) -> Result<Prefixed, Wrong> {
    // With prefix length 0, every other address would count as directly on the link, and a route would be a default
    // route. Such a length usually comes from a template that did not fill in the netmask.
    let wrong = if own.is_some() { Wrong::Address } else { Wrong::Mask };
    let network = IpNetwork::new(address, prefix).ok().filter(|_| prefix > 0 || address.is_unspecified());
    network.map(|network| Prefixed { network, is_guessed }).ok_or(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str, mask: Option<&str>) -> Result<String, Wrong> {
        interface_address(text, mask).map(|prefixed| {
            let guess = if prefixed.is_guessed { " guessed" } else { "" };
            format!("{}{guess}", prefixed.network)
        })
    }

    macro_rules! addresses {
        ($($name:ident: $text:expr, $mask:expr => $expected:expr;)*) => {
            $(#[test] fn $name() {
                let expected: Result<&str, Wrong> = $expected;
                assert_eq!(read($text, $mask), expected.map(str::to_owned));
            })*
        };
    }

    addresses! {
        a_prefix_length_in_the_address_is_used: "10.0.0.5/24", None => Ok("10.0.0.5/24");
        a_netmask_in_the_address_is_used: "10.0.0.5/255.255.255.0", None => Ok("10.0.0.5/24");
        the_prefix_length_of_the_address_takes_precedence_over_the_netmask: "10.0.0.5/16", Some("255.255.255.0") => Ok("10.0.0.5/16");
        a_dotted_netmask_is_used: "10.0.0.5", Some("255.255.254.0") => Ok("10.0.0.5/23");
        a_number_as_a_netmask_is_a_prefix_length: "10.0.0.5", Some("20") => Ok("10.0.0.5/20");
        an_invalid_netmask_next_to_a_prefix_length_is_an_error: "10.0.0.5/16", Some("255.0.255.0") => Err(Wrong::Mask);
        an_empty_netmask_counts_as_missing: "10.0.0.5", Some("") => Ok("10.0.0.5/24 guessed");
        an_ipv4_address_without_a_netmask_gets_24_as_a_guess: "10.0.0.5", None => Ok("10.0.0.5/24 guessed");
        a_netmask_of_a_single_host_is_valid: "10.0.0.5", Some("255.255.255.255") => Ok("10.0.0.5/32");
        an_ipv6_address_with_a_prefix_length_is_read: "2001:DB8::5/48", None => Ok("2001:db8::5/48");
        an_ipv6_netmask_in_the_form_of_an_address_is_used: "2001:db8::5", Some("ffff:ffff:ffff:ffff::") => Ok("2001:db8::5/64");
        a_number_as_an_ipv6_netmask_is_a_prefix_length: "2001:db8::5", Some("120") => Ok("2001:db8::5/120");
        an_ipv6_address_without_a_netmask_gets_64_as_a_guess: "2001:db8::5", None => Ok("2001:db8::5/64 guessed");
        the_zone_of_an_ipv6_address_is_dropped: "fe80::5%eth0", None => Ok("fe80::5/64 guessed");
        the_zone_before_a_prefix_length_is_dropped: "fe80::5%eth0/64", None => Ok("fe80::5/64");
        a_netmask_with_holes_is_invalid: "10.0.0.5", Some("255.0.255.0") => Err(Wrong::Mask);
        a_prefix_length_above_32_is_invalid_for_ipv4: "10.0.0.5", Some("33") => Err(Wrong::Mask);
        a_prefix_length_with_a_sign_is_invalid: "10.0.0.5", Some("+24") => Err(Wrong::Mask);
        an_ipv6_netmask_of_an_ipv4_address_is_invalid: "10.0.0.5", Some("ffff::") => Err(Wrong::Mask);
        an_ipv4_netmask_of_an_ipv6_address_is_invalid: "2001:db8::5", Some("255.255.255.0") => Err(Wrong::Mask);
        a_netmask_of_zero_is_invalid: "10.0.0.5", Some("0.0.0.0") => Err(Wrong::Mask);
        an_address_with_prefix_length_0_is_invalid: "10.0.0.5/0", None => Err(Wrong::Address);
        an_address_with_an_empty_prefix_length_is_invalid: "10.0.0.5/", None => Err(Wrong::Address);
        an_empty_address_is_invalid: "", None => Err(Wrong::Address);
        an_address_with_leading_zeros_is_invalid: "10.0.0.05", None => Err(Wrong::Address);
        an_address_with_a_blank_is_invalid: "10.0.0.5 ", None => Err(Wrong::Address);
        an_address_in_brackets_is_invalid: "[2001:db8::5]", None => Err(Wrong::Address);
        an_address_with_an_empty_zone_is_invalid: "fe80::5%", None => Err(Wrong::Address);
        an_ipv4_address_with_a_zone_is_invalid: "10.0.0.5%eth0", None => Err(Wrong::Address);
        an_unspecified_address_is_no_host_address: "0.0.0.0", None => Err(Wrong::Address);
        a_loopback_address_is_no_host_address: "127.0.0.1", None => Err(Wrong::Address);
        a_multicast_address_is_no_host_address: "ff02::1", None => Err(Wrong::Address);
        the_broadcast_address_is_no_host_address: "255.255.255.255", None => Err(Wrong::Address);
    }

    #[test]
    fn a_destination_without_a_netmask_is_a_single_host_or_all_addresses() {
        let read = |text: &str, mask: Option<&str>, family: Family| {
            destination(text, mask, family).map(|prefixed| {
                let guess = if prefixed.is_guessed { " guessed" } else { "" };
                format!("{}{guess}", prefixed.network)
            })
        };
        assert_eq!(read("10.1.0.9", None, Family::Ipv4), Ok("10.1.0.9/32 guessed".to_owned()));
        assert_eq!(read("0.0.0.0", None, Family::Ipv4), Ok("0.0.0.0/0".to_owned()));
        assert_eq!(read("0.0.0.0", Some("0.0.0.0"), Family::Ipv4), Ok("0.0.0.0/0".to_owned()));
        assert_eq!(read("::", Some("::"), Family::Ipv6), Ok("::/0".to_owned()));
        assert_eq!(read("::", Some(""), Family::Ipv6), Ok("::/0".to_owned()));
        assert_eq!(read("2001:db8::9", None, Family::Ipv6), Ok("2001:db8::9/128 guessed".to_owned()));
        assert_eq!(read("default", None, Family::Ipv6), Ok("::/0".to_owned()));
        assert_eq!(read("10.1.0.0", Some("255.0.255.0"), Family::Ipv4), Err(Wrong::Mask));
        assert_eq!(read("10.1.0.0", Some("0.0.0.0"), Family::Ipv4), Err(Wrong::Mask));
        assert_eq!(read("2001:db8::", Some("0"), Family::Ipv6), Err(Wrong::Mask));
        assert_eq!(read("10.1.0.0/0", None, Family::Ipv4), Err(Wrong::Address));
        assert_eq!(read("somewhere", None, Family::Ipv4), Err(Wrong::Address));
    }
}
