//! Names and small numbers that Linux accepts. The constructor of each type checks its value, so every value is valid.

use std::fmt;
use std::str::FromStr;

use pnet_base::MacAddr;

use super::is_label;

/// A name of a network interface that every reader of our output accepts without quotes.
///
/// Such a name has at most 15 bytes (the kernel's `IFNAMSIZ`): ASCII letters, digits, `.`, `_` and `-`. Invalid names:
///
/// - names that do not begin with a letter or a digit
/// - digits alone, since `systemd-network-generator` rejects them
/// - `all` and `default`, which are directories of `/proc/sys/net`
/// - `lo`, which always exists
///
/// ```
/// use glowplug::network::{InterfaceName, InterfaceNameError};
///
/// assert_eq!("eno101".parse::<InterfaceName>().unwrap().as_str(), "eno101");
/// assert_eq!("eth0 rd.break".parse::<InterfaceName>(), Err(InterfaceNameError));
/// ```
#[derive(Clone, Copy, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct InterfaceName {
    // Unused bytes are zero, so that arrays sort in the same order as names. An array instead of a `String` needs no
    // allocation: a list of machines contains many names.
    bytes: [u8; Self::MAX],
    length: u8,
}

/// The error for a string that is not an [`InterfaceName`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct InterfaceNameError;

/// A shell pattern for names of interfaces or drivers: letters, digits, `.`, `_` and `-` with the wildcards `*`, `?`
/// and `[...]`, at most 64 bytes.
///
/// ```
/// use glowplug::network::{Pattern, PatternError};
///
/// assert_eq!("en*".parse::<Pattern>().unwrap().as_str(), "en*");
/// assert_eq!("en* eth*".parse::<Pattern>(), Err(PatternError));
/// ```
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Pattern(String);

/// The error for a string that is not a [`Pattern`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PatternError;

/// A maximum transmission unit that Linux accepts on an Ethernet interface, in bytes: 68 to 65,535.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Mtu(u16);

/// The error for a number that is not an [`Mtu`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct MtuError;

/// A VLAN id for traffic (IEEE 802.1Q): 1 to 4,094.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct VlanId(u16);

/// The error for a number that is not a [`VlanId`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct VlanIdError;

/// A search domain for short host names, in lower case, without a final dot (RFC 1123).
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct DomainName(String);

/// The error for a string that is not a [`DomainName`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct DomainNameError;

// === impl InterfaceName ===

impl InterfaceName {
    /// Description of a valid interface name, for messages.
    pub const EXPECTED: &'static str =
        "1 to 15 letters, digits, '.', '_' or '-', not only digits, and not all, default or lo";

    /// The longest name, in bytes.
    pub const MAX: usize = 15;

    /// The interface name as a string.
    #[must_use]
    pub fn as_str(&self) -> &str {
        // The constructor accepts only ASCII.
        self.bytes.get(..usize::from(self.length)).and_then(|name| str::from_utf8(name).ok()).unwrap_or_default()
    }

    /// Whether the name is `eth` and a number. The kernel itself assigns such names to NICs, so renaming a NIC to such
    /// a name can fail: another NIC may already have the name.
    #[must_use]
    pub fn is_kernels_own(&self) -> bool {
        self.as_str()
            .strip_prefix("eth")
            .is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|b| b.is_ascii_digit()))
    }
}

impl FromStr for InterfaceName {
    type Err = InterfaceNameError;

    fn from_str(text: &str) -> Result<Self, InterfaceNameError> {
        let legal = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
        let begins = text.bytes().next().is_some_and(|b| b.is_ascii_alphanumeric());
        let digits = text.bytes().all(|b| b.is_ascii_digit());
        let reserved = matches!(text, "all" | "default" | "lo");
        if !begins || digits || reserved || !text.bytes().all(legal) {
            return Err(InterfaceNameError);
        }
        let mut bytes = [0; Self::MAX];
        let name = bytes.get_mut(..text.len()).ok_or(InterfaceNameError)?;
        name.copy_from_slice(text.as_bytes());
        Ok(Self { bytes, length: text.len() as u8 })
    }
}

impl fmt::Debug for InterfaceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("InterfaceName").field(&self.as_str()).finish()
    }
}

impl fmt::Display for InterfaceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

// === impl Pattern ===

impl Pattern {
    /// Description of a valid pattern, for messages.
    pub const EXPECTED: &'static str = "1 to 64 letters, digits, '.', '_', '-', '*', '?', '[' or ']'";

    /// The pattern as a string.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Pattern {
    type Err = PatternError;

    fn from_str(text: &str) -> Result<Self, PatternError> {
        let legal = |b: u8| b.is_ascii_alphanumeric() || b"._-*?[]".contains(&b);
        if (1..=64).contains(&text.len()) && text.bytes().all(legal) {
            Ok(Self(text.to_owned()))
        } else {
            Err(PatternError)
        }
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

// === impl Mtu ===

impl Mtu {
    /// Description of a valid MTU, for messages.
    pub const EXPECTED: &'static str = "68 to 65535 bytes";

    /// The smallest MTU that IPv6 supports: its minimum link MTU (RFC 8200).
    pub const IPV6_MINIMUM: Mtu = Mtu(1280);

    /// Description of an MTU that IPv6 supports, for messages.
    pub const EXPECTED_FOR_IPV6: &'static str = "at least 1280 bytes";
}

impl TryFrom<i64> for Mtu {
    type Error = MtuError;

    fn try_from(bytes: i64) -> Result<Self, MtuError> {
        match u16::try_from(bytes) {
            Ok(mtu) if mtu >= 68 => Ok(Self(mtu)),
            _ => Err(MtuError),
        }
    }
}

impl From<Mtu> for i64 {
    fn from(mtu: Mtu) -> Self {
        mtu.0.into()
    }
}

impl fmt::Display for Mtu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

// === impl VlanId ===

impl VlanId {
    /// Description of a valid VLAN id, for messages.
    pub const EXPECTED: &'static str = "1 to 4094";
}

impl TryFrom<i64> for VlanId {
    type Error = VlanIdError;

    fn try_from(id: i64) -> Result<Self, VlanIdError> {
        match u16::try_from(id) {
            Ok(id @ 1..=4094) => Ok(Self(id)),
            _ => Err(VlanIdError),
        }
    }
}

impl fmt::Display for VlanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

// === impl DomainName ===

impl DomainName {
    /// Description of a valid domain name, for messages.
    pub const EXPECTED: &'static str = "a domain name";
}

impl FromStr for DomainName {
    type Err = DomainNameError;

    fn from_str(text: &str) -> Result<Self, DomainNameError> {
        let name = text.strip_suffix('.').unwrap_or(text);
        // Resolvers accept an underscore wherever a letter is allowed.
        let label = |label: &str| label.len() <= 63 && is_label(&label.replace('_', "a"));
        if name.len() <= 253 && name.split('.').all(label) {
            Ok(Self(name.to_ascii_lowercase()))
        } else {
            Err(DomainNameError)
        }
    }
}

impl fmt::Display for DomainName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

// === MAC addresses ===

/// Description of a valid MAC address, for messages.
pub(crate) const MAC_ADDRESS_EXPECTED: &str = "six pairs of hex digits, unicast and not zero";

/// Parses the MAC address of an interface: six pairs of hex digits in either case, all separated by colons or all by
/// dashes. `None` for any other string, and for addresses that are zero or multicast.
///
/// `MacAddr`'s own parser rejects dashes, which OpenStack's schema allows, and accepts `0:1:2:3:4:5`.
///
/// ```
/// use glowplug::network::parse_mac_address;
///
/// assert_eq!(parse_mac_address("52-54-00-12-34-AB").unwrap().to_string(), "52:54:00:12:34:ab");
/// assert_eq!(parse_mac_address("52:54:00-12-34-ab"), None);
/// assert_eq!(parse_mac_address("01:00:5e:00:00:01"), None);
/// ```
#[must_use]
#[doc(hidden)]
pub fn parse_mac_address(text: &str) -> Option<MacAddr> {
    let separator = *text.as_bytes().get(2)?;
    if !matches!(separator, b':' | b'-') {
        return None;
    }
    let mut octets = [0_u8; 6];
    let mut pairs = text.split(char::from(separator));
    for octet in &mut octets {
        let pair = pairs.next().filter(|pair| pair.len() == 2 && pair.bytes().all(|b| b.is_ascii_hexdigit()))?;
        *octet = u8::from_str_radix(pair, 16).ok()?;
    }
    let is_group = octets[0] & 1 == 1;
    if pairs.next().is_some() || is_group || octets == [0; 6] { None } else { Some(MacAddr::from(octets)) }
}

/// Displays a MAC address with the given separator between its pairs of hex digits. `MacAddr`'s own `Display` calls a
/// formatter for each pair, which takes a twelfth of the total time for a document with 20 NICs.
pub(crate) struct Pairs(pub(crate) MacAddr, pub(crate) u8);

impl fmt::Display for Pairs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digit = |value: u8| b"0123456789abcdef"[usize::from(value & 0xf)];
        let mut text = [self.1; 17];
        for (pair, octet) in text.chunks_mut(3).zip(self.0.octets()) {
            (pair[0], pair[1]) = (digit(octet >> 4), digit(octet));
        }
        f.write_str(str::from_utf8(&text).map_err(|_| fmt::Error)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Option<String> {
        text.parse::<InterfaceName>().ok().map(|name| name.to_string())
    }

    #[test]
    fn interface_names_that_every_program_accepts_are_valid() {
        for text in ["eno101", "kv0", "a", "bond0.100", "enp1s0f0np0", "br-ex", "x_y", "0x", "abcdefghijklmno"] {
            assert_eq!(name(text), Some(text.to_owned()));
        }
    }

    #[test]
    fn interface_names_that_a_program_rejects_or_misinterprets_are_invalid() {
        for text in [
            "",
            ".",
            "..",
            "-a",
            ".hidden",
            "12",
            "all",
            "default",
            "lo",
            "abcdefghijklmnop",
            "eth0 ",
            "a b",
            "a:b",
            "a/b",
            "eth*",
            "a\n",
            "$(id)",
            "ä",
            "a\0",
            "[x]",
        ] {
            assert_eq!(name(text), None, "{text:?}");
        }
    }

    #[test]
    fn only_eth_with_a_number_is_a_name_that_the_kernel_assigns() {
        let own = |text: &str| text.parse::<InterfaceName>().unwrap().is_kernels_own();
        assert_eq!(["eth0", "eth12", "eth", "eth0a", "eno1"].map(own), [true, true, false, false, false]);
    }

    #[test]
    fn a_mac_address_is_six_pairs_of_hex_digits_with_one_kind_of_separator() {
        let read = |text: &str| parse_mac_address(text).map(|mac| mac.to_string());
        assert_eq!(read("FA:16:3E:00:00:01"), Some("fa:16:3e:00:00:01".to_owned()));
        for text in [
            "",
            "fa",
            "fa163e000001",
            "0:1:2:3:4:5",
            "+1:00:00:00:00:01",
            "fa:16:3e:00:00",
            "fa:16:3e:00:00:01:02",
            "fa:16:3e:00:00:0g",
            "00:00:00:00:00:00",
            "ff:ff:ff:ff:ff:ff",
            "fä:16:3e:00:00:01",
        ] {
            assert_eq!(read(text), None, "{text:?}");
        }
    }

    #[test]
    fn an_mtu_is_a_number_from_68_to_65535() {
        let read = |bytes: i64| Mtu::try_from(bytes).ok().map(|mtu| mtu.to_string());
        assert_eq!(
            [67, 68, 65_535, 65_536, -1].map(read),
            [None, Some("68".to_owned()), Some("65535".to_owned()), None, None]
        );
    }

    #[test]
    fn a_vlan_id_is_a_number_from_1_to_4094() {
        let error = Err(VlanIdError);
        let expected = [error, Ok(VlanId(1)), Ok(VlanId(4094)), error, error];
        assert_eq!([0, 1, 4094, 4095, -1].map(VlanId::try_from), expected);
    }

    #[test]
    fn a_search_domain_is_stored_in_lower_case_without_a_final_dot() {
        let read = |text: &str| text.parse::<DomainName>().ok().map(|name| name.to_string());
        assert_eq!(read("Example.ORG."), Some("example.org".to_owned()));
        for text in ["", ".", "a..b", "-a", "a b", "a\nb"] {
            assert_eq!(read(text), None, "{text:?}");
        }
    }
}
