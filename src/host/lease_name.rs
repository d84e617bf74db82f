//! Names of the controller's leases: one name for one address of one network.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::claim::{is_namespace, is_object_name};
use super::pool::Pool;

/// Longest name of a Kubernetes object, in bytes.
const MAX: usize = 253;

/// Why no lease name can be made for an address of a network.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum NameError {
    /// The network is neither `default` nor `namespace/name`, or its namespace has a dot.
    Network(String),
    /// The name would be longer than 253 bytes.
    TooLong(String),
}

/// Returns the name of the lease of `address` on `network`: `<address>.<network>`.
///
/// The address is written with `-`, an IPv6 address as eight groups. The `/` of the network becomes a `.`, which can be
/// read back because a namespace has no dot.
///
/// # Errors
///
/// The network cannot be part of an object's name.
///
/// ```
/// use glowplug::host::lease_name::lease_name;
///
/// assert_eq!(lease_name("10.0.0.5".parse()?, "infra/vlan10")?, "10-0-0-5.infra.vlan10");
/// assert_eq!(lease_name("fd00::5".parse()?, "default")?, "fd00-0-0-0-0-0-0-5.default");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn lease_name(address: IpAddr, network: &str) -> Result<String, NameError> {
    let suffix = match network.split_once('/') {
        Some((namespace, name)) if is_namespace(namespace) && is_object_name(name) => format!("{namespace}.{name}"),
        None if network == Pool::DEFAULT_NETWORK => network.to_owned(),
        _ => return Err(NameError::Network(network.to_owned())),
    };
    let address = match address {
        IpAddr::V4(address) => address.octets().map(|octet| octet.to_string()).join("-"),
        IpAddr::V6(address) => address.segments().map(|segment| format!("{segment:x}")).join("-"),
    };
    let name = format!("{address}.{suffix}");
    if name.len() > MAX { Err(NameError::TooLong(network.to_owned())) } else { Ok(name) }
}

/// Parses the address and the network from the name of a lease. `None` for every name that [`lease_name`] does not
/// produce.
///
/// ```
/// use glowplug::host::lease_name::parse_lease_name;
///
/// let read = parse_lease_name("10-0-0-5.infra.vlan10.a");
/// assert_eq!(read, Some(("10.0.0.5".parse()?, "infra/vlan10.a".to_owned())));
/// assert_eq!(parse_lease_name("010-0-0-5.infra.vlan10"), None);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use]
pub fn parse_lease_name(name: &str) -> Option<(IpAddr, String)> {
    let (address, suffix) = name.split_once('.')?;
    let network = suffix.replacen('.', "/", 1);
    let groups: Vec<&str> = address.split('-').collect();
    let address = if let Ok(octets) = <[&str; 4]>::try_from(&*groups) {
        Ipv4Addr::from(all(octets.map(|octet| octet.parse::<u8>().ok()))?).into()
    } else {
        let segments = <[&str; 8]>::try_from(&*groups).ok()?;
        Ipv6Addr::from(all(segments.map(|segment| u16::from_str_radix(segment, 16).ok()))?).into()
    };
    // A number with leading zeros, a sign or capital letters would be a second spelling: two names for one address.
    (lease_name(address, &network).as_deref() == Ok(name)).then_some((address, network))
}

fn all<T: Copy + Default, const N: usize>(parts: [Option<T>; N]) -> Option<[T; N]> {
    parts.iter().all(Option::is_some).then(|| parts.map(Option::unwrap_or_default))
}

// === impl NameError ===

impl fmt::Display for NameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Network(network) => {
                write!(f, "network: invalid network {network:?}, expected namespace/name or default")
            }
            Self::TooLong(network) => {
                write!(f, "network: name too long {network:?}, expected at most {MAX} bytes with the address")
            }
        }
    }
}

impl std::error::Error for NameError {}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn address() -> impl Strategy<Value = IpAddr> {
        let groups = prop::array::uniform8(prop_oneof![Just(0), any::<u16>()]);
        prop_oneof![any::<[u8; 4]>().prop_map(IpAddr::from), groups.prop_map(IpAddr::from)]
    }

    fn network() -> impl Strategy<Value = String> {
        let label = "[a-z0-9]([-a-z0-9]{0,4}[a-z0-9])?";
        let name = prop::collection::vec(label, 1..4).prop_map(|labels| labels.join("."));
        prop_oneof![1 => Just("default".to_owned()), 8 => (label, name).prop_map(|(space, name)| format!("{space}/{name}"))]
    }

    proptest! {
        #[test]
        fn the_lease_name_parser_returns_the_written_address_and_network(address in address(), network in network()) {
            let name = lease_name(address, &network).unwrap();
            prop_assert!(is_object_name(&name));
            prop_assert_eq!(parse_lease_name(&name), Some((address, network)));
        }

        #[test]
        fn two_addresses_never_have_the_same_lease_name(
            all in prop::collection::btree_set((address(), network()), 1..20),
        ) {
            let names: BTreeSet<String> = all.iter().map(|(address, network)| lease_name(*address, network).unwrap()).collect();
            prop_assert_eq!(names.len(), all.len());
        }

        #[test]
        fn only_names_that_the_writer_of_lease_names_produces_are_read(
            name in "[-+0-9a-fA-F]{1,4}(-[0-9a-f]{1,4}){2,8}\\.[a-z/.]{0,9}",
        ) {
            if let Some((address, network)) = parse_lease_name(&name) {
                prop_assert_eq!(lease_name(address, &network), Ok(name));
            }
        }

        #[test]
        fn no_string_makes_the_parser_or_the_writer_of_names_panic(name in any::<String>()) {
            let _ = parse_lease_name(&name);
            let _ = lease_name(IpAddr::from([10, 0, 0, 5]), &name);
        }
    }

    #[test]
    fn a_network_that_cannot_be_part_of_a_lease_name_is_refused() {
        let refused = |network: &str| lease_name(IpAddr::from([10, 0, 0, 5]), network).unwrap_err().to_string();
        for network in ["vlan10", "a.b/c", "a/b/c", "A/b", "/b", "a/", "", "a/b\n"] {
            let expected = format!("network: invalid network {network:?}, expected namespace/name or default");
            assert_eq!(refused(network), expected);
        }
        let long = format!("a/{}", ["b"; 125].join("."));
        let expected = format!("network: name too long {long:?}, expected at most 253 bytes with the address");
        assert_eq!(refused(&long), expected);
    }

    #[test]
    fn a_lease_name_of_253_bytes_is_accepted_and_a_longer_name_is_refused() {
        let network = format!("a/{}", "b".repeat(MAX - "10-0-0-5.a.".len()));
        assert_eq!(lease_name(IpAddr::from([10, 0, 0, 5]), &network).unwrap().len(), MAX);
        let refused = lease_name(IpAddr::from([10, 0, 0, 50]), &network).unwrap_err();
        let expected = format!("network: name too long {network:?}, expected at most 253 bytes with the address");
        assert_eq!(refused.to_string(), expected);
    }

    #[test]
    fn a_second_spelling_of_a_lease_name_is_rejected() {
        for name in [
            "10-0-0-05.default",
            "10-0-0-5.other",
            "10-0-0-5.",
            "10-0-0.default",
            "+1-0-0-5.default",
            "FD00-0-0-0-0-0-0-5.default",
            "10-0-0-5",
        ] {
            assert_eq!(parse_lease_name(name), None, "{name}");
        }
    }
}
