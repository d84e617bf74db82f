//! Addresses as numbers: sets and ranges for pools, and strict parsers.
//!
//! If two spellings could name one address, two machines could get the address. So every string of a pool, a request or
//! a record is parsed into a number, and only the number is kept. The parsers reject addresses that no machine may
//! have. Only the parser of gateways accepts link-local IPv6 addresses.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use crate::diagnostic::{Diagnostic, shortened};
use crate::network::Family;

/// A range of addresses of one family, from the first to the last address, both included. Never empty.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct AddressRange {
    family: Family,
    first: u128,
    last: u128,
}

/// A set of addresses of one or both families, stored as the fewest possible ranges: sorted, disjoint, and never
/// adjacent.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct AddressSet(Vec<AddressRange>);

/// One string of a pool's `addresses` or `excludedAddresses`.
///
/// The string is a network (`10.0.0.0/24`), a range with both ends (`10.0.0.10-10.0.0.50`), or one address (`10.0.0.5`,
/// `10.0.0.5/32`, `fd00::5/128`). `Display` writes the form that both revisions of the API of NodePools accept.
///
/// ```
/// use glowplug::host::address::Entry;
///
/// assert_eq!("fd00:0::5".parse::<Entry>().unwrap().to_string(), "fd00::5/128");
/// assert_eq!(
///     "10.0.0.9-10.0.0.5".parse::<Entry>().unwrap_err().to_string(),
///     r#"reversed range "10.0.0.9-10.0.0.5", expected 10.0.0.5-10.0.0.9"#
/// );
/// ```
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[doc(hidden)]
pub struct Entry {
    range: AddressRange,
    length: Option<u8>,
}

/// A string that is not an address, or an address that no machine may have.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct AddressError {
    text: String,
    problem: String,
    expected: String,
}

/// Addresses that no machine may have.
struct Refused {
    kind: &'static str,
    cidr: &'static str,
    family: Family,
    first: u128,
    length: u8,
}

/// Kinds of addresses that no machine may have. An error reports the first kind that contains the address.
const REFUSED: [Refused; 8] = [
    Refused::of("unspecified", "0.0.0.0/8", Family::Ipv4, 0, 8),
    Refused::of("loopback", "127.0.0.0/8", Family::Ipv4, 0x7f00_0000, 8),
    Refused::of("multicast", "224.0.0.0/4", Family::Ipv4, 0xe000_0000, 4),
    Refused::of("reserved", "240.0.0.0/4", Family::Ipv4, 0xf000_0000, 4),
    // `::`, `::1`, and the deprecated IPv4-compatible addresses, such as `::a00:1` for 10.0.0.1.
    Refused::of("reserved", "::/96", Family::Ipv6, 0, 96),
    // An IPv4-mapped address is another spelling of an IPv4 address.
    Refused::of("IPv4-mapped", "::ffff:0:0/96", Family::Ipv6, 0xffff_0000_0000, 96),
    // Without a zone, a link-local address means a different machine on each link.
    Refused::of("link-local", "fe80::/10", Family::Ipv6, 0xfe80 << 112, 10),
    Refused::of("multicast", "ff00::/8", Family::Ipv6, 0xff00 << 112, 8),
];

/// Description of a valid entry, for messages.
const ENTRY_EXPECTED: &str = "an address, a CIDR or a range, such as 10.0.0.5, 10.0.0.0/24 or 10.0.0.5-10.0.0.9";

// === impl AddressRange ===

impl AddressRange {
    /// The range from `first` to `last`. `None` when the families differ, or when `first` is after `last`.
    #[must_use]
    pub fn new(first: IpAddr, last: IpAddr) -> Option<Self> {
        let family = Family::of(first);
        let (first, number) = (Family::number(first), Family::number(last));
        (family == Family::of(last) && first <= number).then_some(Self { family, first, last: number })
    }

    /// The family of the addresses.
    #[must_use]
    pub fn family(&self) -> Family {
        self.family
    }

    /// The network with this prefix length that contains an address. A prefix length above the maximum of the family
    /// counts as the maximum.
    pub(crate) fn subnet(address: IpAddr, length: u8) -> Self {
        let (family, number) = (Family::of(address), Family::number(address));
        let hosts = family.hosts(length);
        Self { family, first: number & !hosts, last: number | hosts }
    }

    /// The number of the first address.
    #[must_use]
    pub fn first(&self) -> u128 {
        self.first
    }

    /// The number of the last address.
    #[must_use]
    pub fn last(&self) -> u128 {
        self.last
    }

    /// Number of addresses in the range. The range of all IPv6 addresses has one address more than `u128::MAX`; its
    /// count is `u128::MAX`.
    #[must_use]
    pub fn count(&self) -> u128 {
        (self.last - self.first).saturating_add(1)
    }

    /// Whether all addresses of another range are in this range.
    #[must_use]
    pub fn covers(&self, other: &Self) -> bool {
        self.family == other.family && self.first <= other.first && other.last <= self.last
    }

    /// The addresses in both ranges. `None` when the ranges have no common address.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Option<Self> {
        let (first, last) = (self.first.max(other.first), self.last.min(other.last));
        (self.family == other.family && first <= last).then_some(Self { first, last, ..*self })
    }

    /// Whether an address is in the range.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        let number = Family::number(address);
        Family::of(address) == self.family && self.first <= number && number <= self.last
    }
}

/// Prints `10.0.0.5-10.0.0.9`, or the address of a range with one address.
impl fmt::Display for AddressRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.family.address(self.first).fmt(f)?;
        if self.first == self.last { Ok(()) } else { write!(f, "-{}", self.family.address(self.last)) }
    }
}

/// Prints the first 8 ranges and the number of the others, so that a person can read the line.
impl fmt::Display for AddressSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 8;
        for (at, range) in self.0.iter().take(SHOWN).enumerate() {
            write!(f, "{}{range}", if at == 0 { "" } else { ", " })?;
        }
        match self.0.len().saturating_sub(SHOWN) {
            0 => Ok(()),
            further => write!(f, " and {further} further ranges"),
        }
    }
}

// === impl AddressSet ===

impl AddressSet {
    /// The ranges, IPv4 first.
    #[must_use]
    pub fn ranges(&self) -> &[AddressRange] {
        &self.0
    }

    /// Whether the set has no address.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Number of addresses in the set, at most `u128::MAX`.
    #[must_use]
    pub fn count(&self) -> u128 {
        self.0.iter().map(AddressRange::count).fold(0, u128::saturating_add)
    }

    /// Whether an address is in the set.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        self.has(Family::of(address), Family::number(address))
    }

    /// Whether the address of a family with this number is in the set.
    #[must_use]
    pub fn has(&self, family: Family, number: u128) -> bool {
        self.up_to(family, number).is_some_and(|range| range.family == family && number <= range.last)
    }

    /// Whether all addresses of a range are in the set.
    #[must_use]
    pub fn covers(&self, range: &AddressRange) -> bool {
        self.up_to(range.family, range.first).is_some_and(|ours| ours.covers(range))
    }

    /// Whether any address of a range is in the set.
    #[must_use]
    pub fn meets(&self, range: &AddressRange) -> bool {
        self.up_to(range.family, range.last).is_some_and(|ours| ours.intersection(range).is_some())
    }

    /// The last range of the set that does not begin after the address with this family and number.
    fn up_to(&self, family: Family, number: u128) -> Option<&AddressRange> {
        let after = self.0.partition_point(|range| (range.family, range.first) <= (family, number));
        after.checked_sub(1).and_then(|at| self.0.get(at))
    }

    /// The addresses in both sets.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        let (mut ours, mut theirs) = (self.0.iter().peekable(), other.0.iter().peekable());
        let mut both = Vec::new();
        while let (Some(a), Some(b)) = (ours.peek(), theirs.peek()) {
            both.extend(a.intersection(b));
            if (a.family, a.last) < (b.family, b.last) {
                ours.next()
            } else {
                theirs.next()
            };
        }
        Self(both)
    }

    /// The addresses of this set that are not in the other set.
    #[must_use]
    pub fn difference(&self, other: &Self) -> Self {
        let mut rest = Vec::new();
        let mut theirs = other.0.iter().peekable();
        for ours in &self.0 {
            // The part of the range that is not compared yet.
            let mut left = Some(*ours);
            while let (Some(range), Some(cut)) = (left, theirs.peek()) {
                if cut.family != range.family || cut.last < range.first || range.last < cut.first {
                    if (cut.family, cut.last) < (range.family, range.first) {
                        theirs.next();
                        continue;
                    }
                    break;
                }
                if range.first < cut.first {
                    rest.push(AddressRange { last: cut.first - 1, ..range });
                }
                left = (cut.last < range.last).then(|| AddressRange { first: cut.last + 1, ..range });
            }
            rest.extend(left);
        }
        Self(rest)
    }
}

impl FromIterator<AddressRange> for AddressSet {
    /// Returns the union of the ranges, which may come in any order.
    fn from_iter<T: IntoIterator<Item = AddressRange>>(ranges: T) -> Self {
        let mut ranges: Vec<AddressRange> = ranges.into_iter().collect();
        ranges.sort_unstable();
        ranges.dedup_by(|next, last| {
            let joins = last.family == next.family && last.last.checked_add(1).is_none_or(|after| next.first <= after);
            if joins {
                last.last = last.last.max(next.last);
            }
            joins
        });
        Self(ranges)
    }
}

// === impl Entry ===

impl Entry {
    /// The addresses of the entry.
    #[must_use]
    pub fn range(&self) -> AddressRange {
        self.range
    }

    /// The prefix length, if the entry is a network. `None` for a range and for a single address: the `/32` of an
    /// address does not set the prefix length of a machine.
    #[must_use]
    pub fn length(&self) -> Option<u8> {
        self.length
    }

    fn cidr(text: &str, address: &str, length: &str) -> Result<Self, AddressError> {
        let address = syntax(text, address)?;
        let family = Family::of(address);
        let refused = |problem: &str, expected: String| AddressError::new(text, problem, expected);
        if let Ok(mask) = length.parse::<IpAddr>() {
            let bits = Family::number(mask) << (128 - u32::from(Family::of(mask).bits()));
            let is_mask = Family::of(mask) == family && bits.leading_ones() == bits.count_ones();
            let cidr = format!("{address}/{}", bits.leading_ones());
            return Err(refused("netmask instead of a prefix length", if is_mask { cidr } else { lengths(family) }));
        }
        let Some(length) = parse_length(length, family) else {
            return Err(refused("invalid prefix length", lengths(family)));
        };
        let range = AddressRange::subnet(address, length);
        if range.first != Family::number(address) {
            let (network, bits) = (family.address(range.first), family.bits());
            let expected =
                format!("no bits after the prefix length: did you mean {network}/{length} or {address}/{bits}");
            return Err(refused("host bits are set", expected));
        }
        Ok(Self { range, length: Some(length).filter(|length| *length < family.bits()) })
    }

    fn range_of(text: &str, first: &str, last: &str) -> Result<Self, AddressError> {
        if text.contains('/') {
            return Err(AddressError::new(text, "prefix length in a range", "two addresses, first-last"));
        }
        if first.is_empty() || last.is_empty() || last.contains('-') {
            return Err(AddressError::new(text, "invalid range", "two addresses, first-last"));
        }
        let first = syntax(text, first)?;
        // Some programs accept the last octet alone as the end of a range, so the message shows the whole address.
        if !last.contains(['.', ':']) {
            let expected = match (first, last.parse::<u8>()) {
                (IpAddr::V4(address), Ok(end)) => {
                    let [a, b, c, _] = address.octets();
                    format!("two whole addresses, such as {first}-{a}.{b}.{c}.{end}")
                }
                _ => "two whole addresses, first-last".to_owned(),
            };
            return Err(AddressError::new(text, "invalid range", expected));
        }
        let last = syntax(text, last)?;
        if Family::of(first) != Family::of(last) {
            return Err(AddressError::new(text, "range of two families", "two addresses of one family"));
        }
        let reversed = || AddressError::new(text, "reversed range", format!("{last}-{first}"));
        AddressRange::new(first, last).ok_or_else(reversed).map(|range| Self { range, length: None })
    }
}

impl FromStr for Entry {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let entry = match (text.split_once('-'), text.split_once('/')) {
            (Some((first, last)), _) => Self::range_of(text, first, last)?,
            (None, Some((address, length))) => Self::cidr(text, address, length)?,
            // A string with neither a dot nor a colon is a word, not a misspelt address.
            (None, None) if !text.contains(['.', ':']) => {
                return Err(AddressError::new(text, "invalid address", ENTRY_EXPECTED));
            }
            (None, None) => {
                let range = AddressRange::subnet(syntax(text, text)?, u8::MAX);
                Self { range, length: None }
            }
        };
        match REFUSED.iter().find(|refused| refused.range().intersection(&entry.range).is_some()) {
            Some(refused) if entry.range.first == entry.range.last => Err(refused.address(text)),
            Some(refused) => {
                let problem = format!("{} addresses", refused.kind);
                Err(AddressError::new(text, problem, format!("addresses outside {}", refused.cidr)))
            }
            None => Ok(entry),
        }
    }
}

/// Writes the form that both revisions of the API of NodePools accept: a single address has the full prefix length.
impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let AddressRange { family, first, last } = self.range;
        match self.length {
            Some(length) => write!(f, "{}/{length}", family.address(first)),
            None if first == last => write!(f, "{}/{}", family.address(first), family.bits()),
            None => self.range.fmt(f),
        }
    }
}

// === Addresses ===

/// Reads an address that a machine may have.
///
/// # Errors
///
/// - The string is no address, or it has a zone, a leading zero or blanks.
/// - The string is the IPv6 spelling of an IPv4 address.
/// - The address is unspecified, loopback, multicast, reserved or link-local.
///
/// ```
/// use glowplug::host::address::parse_address;
///
/// assert_eq!(parse_address("FD00:0::01").unwrap().to_string(), "fd00::1");
/// assert_eq!(
///     parse_address("::ffff:10.0.0.1").unwrap_err().to_string(),
///     r#"IPv4-mapped address "::ffff:10.0.0.1", expected 10.0.0.1"#
/// );
/// ```
#[doc(hidden)]
pub fn parse_address(text: &str) -> Result<IpAddr, AddressError> {
    let address = syntax(text, text)?;
    match REFUSED.iter().find(|refused| refused.range().contains(address)) {
        Some(refused) => Err(refused.address(text)),
        None => Ok(address),
    }
}

/// Reads the address of a gateway: an address that a machine may have, or a link-local IPv6 address. Routers usually
/// have a link-local address, which all machines on the link reach.
///
/// # Errors
///
/// The errors of [`parse_address`], except for a link-local IPv6 address.
///
/// ```
/// use glowplug::host::address::parse_gateway;
///
/// assert_eq!(parse_gateway("fe80::1"), Ok("fe80::1".parse().unwrap()));
/// assert_eq!(
///     parse_gateway("127.0.0.1").unwrap_err().to_string(),
///     r#"loopback address "127.0.0.1", expected an address outside 127.0.0.0/8"#
/// );
/// ```
#[doc(hidden)]
pub fn parse_gateway(text: &str) -> Result<IpAddr, AddressError> {
    match syntax(text, text)? {
        gateway if is_link_local(gateway) => Ok(gateway),
        _ => parse_address(text),
    }
}

/// Whether an address is a link-local IPv6 address. Every machine on the link reaches such an address, in any subnet.
#[doc(hidden)]
pub fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(address) if address.is_unicast_link_local())
}

/// Reads an address that a machine may have, with an optional prefix length: `10.0.0.5/24` or `10.0.0.5`. Records have
/// this form.
///
/// # Errors
///
/// The errors of [`parse_address`], or an invalid prefix length.
///
/// ```
/// use glowplug::host::address::parse_interface_address;
///
/// assert_eq!(parse_interface_address("10.0.0.5/24"), Ok(("10.0.0.5".parse().unwrap(), Some(24))));
/// assert_eq!(parse_interface_address("10.0.0.5"), Ok(("10.0.0.5".parse().unwrap(), None)));
/// ```
#[doc(hidden)]
pub fn parse_interface_address(text: &str) -> Result<(IpAddr, Option<u8>), AddressError> {
    let Some((address, length)) = text.split_once('/') else { return Ok((parse_address(text)?, None)) };
    let address = parse_address(address).map_err(|error| AddressError { text: text.to_owned(), ..error })?;
    let family = Family::of(address);
    let length = parse_length(length, family);
    length
        .map(|length| (address, Some(length)))
        .ok_or_else(|| AddressError::new(text, "invalid prefix length", lengths(family)))
}

/// Reads a prefix length: one to three digits, no leading zero, from 1 to the number of bits of the family.
fn parse_length(text: &str, family: Family) -> Option<u8> {
    let digits = text.len() <= 3 && text.bytes().all(|b| b.is_ascii_digit()) && !text.starts_with('0');
    text.parse().ok().filter(|length| digits && (1..=family.bits()).contains(length))
}

fn lengths(family: Family) -> String {
    format!("a length of 1 to {} without sign or leading zero", family.bits())
}

/// Reads the address in `part`, which is a part of the string `text`. Accepts addresses that no machine may have.
/// Errors show the whole string.
fn syntax(text: &str, part: &str) -> Result<IpAddr, AddressError> {
    let refused = |problem: &str, expected: &str| Err(AddressError::new(text, problem, expected));
    match part.parse() {
        Ok(address) => Ok(address),
        Err(_) if part.contains('%') => refused("address with a zone", "an address without a zone"),
        Err(_) if text.contains(char::is_whitespace) => refused("blanks in an address", "no blanks"),
        Err(_) => match without_leading_zeros(part) {
            // Some programs read a number with a leading zero as octal.
            Some(address) => refused("leading zero in an address", &address.to_string()),
            None => refused("invalid address", "an IPv4 or IPv6 address"),
        },
    }
}

fn without_leading_zeros(text: &str) -> Option<Ipv4Addr> {
    let octets: Vec<&str> = text.split('.').map(|octet| octet.trim_start_matches('0')).collect();
    let octets: Vec<&str> = octets.into_iter().map(|octet| if octet.is_empty() { "0" } else { octet }).collect();
    octets.join(".").parse().ok()
}

// === impl Refused ===

impl Refused {
    const fn of(kind: &'static str, cidr: &'static str, family: Family, first: u128, length: u8) -> Self {
        Self { kind, cidr, family, first, length }
    }

    fn range(&self) -> AddressRange {
        AddressRange::subnet(self.family.address(self.first), self.length)
    }

    fn address(&self, text: &str) -> AddressError {
        let problem = format!("{} address", self.kind);
        let mapped = text.split('/').next().and_then(|address| address.parse::<Ipv6Addr>().ok()?.to_ipv4_mapped());
        let expected =
            mapped.map_or_else(|| format!("an address outside {}", self.cidr), |address| address.to_string());
        AddressError::new(text, problem, expected)
    }
}

// === impl AddressError ===

impl AddressError {
    fn new(text: &str, problem: impl Into<String>, expected: impl Into<String>) -> Self {
        Self { text: text.to_owned(), problem: problem.into(), expected: expected.into() }
    }

    /// The error as a diagnostic about the string at `path`. The diagnostic makes the document invalid.
    #[must_use]
    pub fn at(&self, path: impl fmt::Display) -> Diagnostic {
        Diagnostic::error(path, &self.problem, &self.text, &self.expected)
    }
}

impl fmt::Display for AddressError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}, expected {}", self.problem, shortened(&self.text), self.expected)
    }
}

impl std::error::Error for AddressError {}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    macro_rules! accepts {
        ($($name:ident: $text:expr => $canonical:expr;)*) => {
            $(#[test] fn $name() {
                assert_eq!($text.parse::<Entry>().map(|entry| entry.to_string()), Ok($canonical.to_owned()));
            })*
        };
    }

    accepts! {
        a_network: "10.0.0.0/24" => "10.0.0.0/24";
        a_network_of_ipv6: "FD00:0::/8" => "fd00::/8";
        a_network_of_two_addresses: "10.0.0.4/31" => "10.0.0.4/31";
        a_range: "10.0.0.10-10.0.0.50" => "10.0.0.10-10.0.0.50";
        a_range_of_ipv6: "2620:0:860:2::10-2620:0:860:2::50" => "2620:0:860:2::10-2620:0:860:2::50";
        a_range_of_one_address: "10.0.0.5-10.0.0.5" => "10.0.0.5/32";
        an_address_without_a_prefix_length: "192.168.1.100" => "192.168.1.100/32";
        an_ipv6_address_without_a_prefix_length: "fd00::01" => "fd00::1/128";
        an_address_with_the_full_prefix_length: "192.168.1.100/32" => "192.168.1.100/32";
        an_ipv6_address_with_the_full_prefix_length: "fd00::1/128" => "fd00::1/128";
        the_ipv4_addresses_below_loopback: "1.0.0.0-126.255.255.255" => "1.0.0.0-126.255.255.255";
        the_address_before_multicast: "223.255.255.255" => "223.255.255.255/32";
        addresses_after_the_ipv4_mapped_addresses: "::1:0:0:0-::2:0:0:0" => "::1:0:0:0-::2:0:0:0";
        unique_local_addresses: "fd00::/8" => "fd00::/8";
    }

    macro_rules! rejects {
        ($($name:ident: $text:expr => $error:expr;)*) => {
            $(#[test] fn $name() {
                let error = $text.parse::<Entry>().map_err(|error| error.to_string());
                assert_eq!(error, Err($error.to_owned()));
            })*
        };
    }

    rejects! {
        a_reversed_range: "10.0.0.9-10.0.0.5"
            => r#"reversed range "10.0.0.9-10.0.0.5", expected 10.0.0.5-10.0.0.9"#;
        a_range_of_two_families: "10.0.0.5-fd00::9"
            => r#"range of two families "10.0.0.5-fd00::9", expected two addresses of one family"#;
        host_bits: "10.0.0.5/24"
            => "host bits are set \"10.0.0.5/24\", expected no bits after the prefix length: \
                did you mean 10.0.0.0/24 or 10.0.0.5/32";
        host_bits_of_ipv6: "fd00::5/64"
            => "host bits are set \"fd00::5/64\", expected no bits after the prefix length: \
                did you mean fd00::/64 or fd00::5/128";
        a_mapped_address: "::ffff:10.0.0.1" => r#"IPv4-mapped address "::ffff:10.0.0.1", expected 10.0.0.1"#;
        a_mapped_address_with_the_full_prefix_length: "::ffff:10.0.0.1/128"
            => r#"IPv4-mapped address "::ffff:10.0.0.1/128", expected 10.0.0.1"#;
        a_mapped_network: "::ffff:10.0.0.0/120"
            => r#"IPv4-mapped addresses "::ffff:10.0.0.0/120", expected addresses outside ::ffff:0:0/96"#;
        an_ipv4_compatible_address: "::10.0.0.1"
            => r#"reserved address "::10.0.0.1", expected an address outside ::/96"#;
        the_loopback_address_of_ipv6: "::1" => r#"reserved address "::1", expected an address outside ::/96"#;
        a_sign_in_the_prefix_length: "10.0.0.0/+24"
            => "invalid prefix length \"10.0.0.0/+24\", expected a length of 1 to 32 without sign or leading zero";
        a_leading_zero_in_the_prefix_length: "10.0.0.0/024"
            => "invalid prefix length \"10.0.0.0/024\", expected a length of 1 to 32 without sign or leading zero";
        a_prefix_length_that_is_too_long: "10.0.0.0/33"
            => "invalid prefix length \"10.0.0.0/33\", expected a length of 1 to 32 without sign or leading zero";
        a_prefix_length_that_is_too_long_for_ipv6: "fd00::/129"
            => "invalid prefix length \"fd00::/129\", expected a length of 1 to 128 without sign or leading zero";
        a_prefix_length_above_255: "10.0.0.0/256"
            => "invalid prefix length \"10.0.0.0/256\", expected a length of 1 to 32 without sign or leading zero";
        a_slash_without_a_prefix_length: "10.0.0.0/"
            => "invalid prefix length \"10.0.0.0/\", expected a length of 1 to 32 without sign or leading zero";
        two_prefix_lengths: "10.0.0.0/24/24"
            => "invalid prefix length \"10.0.0.0/24/24\", expected a length of 1 to 32 without sign or leading zero";
        a_netmask_instead_of_a_prefix_length: "10.0.0.0/255.255.255.0"
            => r#"netmask instead of a prefix length "10.0.0.0/255.255.255.0", expected 10.0.0.0/24"#;
        a_netmask_with_holes: "10.0.0.0/255.0.255.0"
            => "netmask instead of a prefix length \"10.0.0.0/255.0.255.0\", \
                expected a length of 1 to 32 without sign or leading zero";
        a_zone: "fd00::1%eth0" => r#"address with a zone "fd00::1%eth0", expected an address without a zone"#;
        a_leading_zero: "10.0.0.05" => r#"leading zero in an address "10.0.0.05", expected 10.0.0.5"#;
        a_leading_zero_in_a_range: "10.0.0.05-10.0.0.9"
            => r#"leading zero in an address "10.0.0.05-10.0.0.9", expected 10.0.0.5"#;
        blanks: " 10.0.0.5" => r#"blanks in an address " 10.0.0.5", expected no blanks"#;
        blanks_around_a_hyphen: "10.0.0.5 - 10.0.0.9" => r#"blanks in an address "10.0.0.5 - 10.0.0.9", expected no blanks"#;
        an_empty_string: ""
            => "invalid address \"\", expected an address, a CIDR or a range, \
                such as 10.0.0.5, 10.0.0.0/24 or 10.0.0.5-10.0.0.9";
        a_range_without_an_end: "10.0.0.5-" => r#"invalid range "10.0.0.5-", expected two addresses, first-last"#;
        a_range_without_a_beginning: "-10.0.0.5" => r#"invalid range "-10.0.0.5", expected two addresses, first-last"#;
        a_short_range: "192.168.1.10-12"
            => r#"invalid range "192.168.1.10-12", expected two whole addresses, such as 192.168.1.10-192.168.1.12"#;
        a_short_range_whose_end_does_not_fit_into_an_octet: "192.168.1.10-300" => r#"invalid range "192.168.1.10-300", expected two whole addresses, first-last"#;
        a_short_range_of_ipv6: "fd00::1-9" => r#"invalid range "fd00::1-9", expected two whole addresses, first-last"#;
        a_prefix_length_without_an_address: "/24" => r#"invalid address "/24", expected an IPv4 or IPv6 address"#;
        a_word: "dhcp"
            => "invalid address \"dhcp\", expected an address, a CIDR or a range, \
                such as 10.0.0.5, 10.0.0.0/24 or 10.0.0.5-10.0.0.9";
        a_range_of_three_addresses: "10.0.0.5-10.0.0.7-10.0.0.9"
            => r#"invalid range "10.0.0.5-10.0.0.7-10.0.0.9", expected two addresses, first-last"#;
        a_range_of_networks: "10.0.0.0/24-10.0.1.0/24"
            => r#"prefix length in a range "10.0.0.0/24-10.0.1.0/24", expected two addresses, first-last"#;
        an_address_that_is_too_large: "10.0.0.256" => r#"invalid address "10.0.0.256", expected an IPv4 or IPv6 address"#;
        three_octets: "10.0.0" => r#"invalid address "10.0.0", expected an IPv4 or IPv6 address"#;
        all_ipv4_addresses: "0.0.0.0/0"
            => "invalid prefix length \"0.0.0.0/0\", expected a length of 1 to 32 without sign or leading zero";
        all_ipv6_addresses: "::/0"
            => "invalid prefix length \"::/0\", expected a length of 1 to 128 without sign or leading zero";
        half_of_all_ipv4_addresses: "0.0.0.0/1"
            => r#"unspecified addresses "0.0.0.0/1", expected addresses outside 0.0.0.0/8"#;
        half_of_all_ipv6_addresses: "::/1" => r#"reserved addresses "::/1", expected addresses outside ::/96"#;
        the_unspecified_address: "0.0.0.0" => r#"unspecified address "0.0.0.0", expected an address outside 0.0.0.0/8"#;
        loopback: "127.0.0.1" => r#"loopback address "127.0.0.1", expected an address outside 127.0.0.0/8"#;
        a_range_that_meets_loopback: "126.0.0.0-128.0.0.0"
            => r#"loopback addresses "126.0.0.0-128.0.0.0", expected addresses outside 127.0.0.0/8"#;
        multicast: "224.0.0.0/4" => r#"multicast addresses "224.0.0.0/4", expected addresses outside 224.0.0.0/4"#;
        broadcast: "255.255.255.255" => r#"reserved address "255.255.255.255", expected an address outside 240.0.0.0/4"#;
        link_local: "fe80::1" => r#"link-local address "fe80::1", expected an address outside fe80::/10"#;
        multicast_of_ipv6: "ff02::1" => r#"multicast address "ff02::1", expected an address outside ff00::/8"#;
        an_ipv6_range_that_meets_link_local_and_multicast_addresses: "fd00::-ffff::"
            => r#"link-local addresses "fd00::-ffff::", expected addresses outside fe80::/10"#;
    }

    #[test]
    fn a_hostile_string_in_a_message_is_shortened_and_has_no_line_break() {
        let error = format!("a.\n{}", "x".repeat(100)).parse::<Entry>().unwrap_err().to_string();
        assert_eq!(error, format!("blanks in an address \"a.\\n{}…\", expected no blanks", "x".repeat(61)));
    }

    #[test]
    fn a_single_address_is_parsed_like_an_entry_with_one_address() {
        assert_eq!(parse_address("fd00:0::01"), Ok("fd00::1".parse().unwrap()));
        let refusal = |text: &str| parse_address(text).unwrap_err().to_string();
        assert_eq!(refusal("127.0.0.1"), r#"loopback address "127.0.0.1", expected an address outside 127.0.0.0/8"#);
        assert_eq!(refusal("::ffff:10.0.0.1"), r#"IPv4-mapped address "::ffff:10.0.0.1", expected 10.0.0.1"#);
        assert_eq!(refusal("10.0.0.5/24"), r#"invalid address "10.0.0.5/24", expected an IPv4 or IPv6 address"#);
    }

    #[test]
    fn a_recorded_address_can_have_a_prefix_length() {
        let read = |text: &str| parse_interface_address(text).map_err(|error| error.to_string());
        assert_eq!(read("10.10.0.42/24"), Ok(("10.10.0.42".parse().unwrap(), Some(24))));
        assert_eq!(read("fd41:1234::932/64"), Ok(("fd41:1234::932".parse().unwrap(), Some(64))));
        assert_eq!(read("10.10.0.42"), Ok(("10.10.0.42".parse().unwrap(), None)));
        assert_eq!(
            read("::ffff:10.0.0.1/96"),
            Err(r#"IPv4-mapped address "::ffff:10.0.0.1/96", expected 10.0.0.1"#.to_owned())
        );
        assert_eq!(
            read("10.0.0.5/024"),
            Err("invalid prefix length \"10.0.0.5/024\", expected a length of 1 to 32 without sign or leading zero"
                .to_owned())
        );
    }

    fn set(ranges: &[(u32, u32)]) -> AddressSet {
        let address = |number: u32| Ipv4Addr::from(number).into();
        ranges.iter().filter_map(|(first, last)| AddressRange::new(address(*first), address(*last))).collect()
    }

    fn naive(set: &AddressSet) -> Vec<u128> {
        set.ranges().iter().flat_map(|range| range.first()..=range.last()).collect()
    }

    #[test]
    fn adjacent_ranges_are_merged_unless_they_have_different_families() {
        assert_eq!(set(&[(7, 9), (1, 3), (4, 5)]), set(&[(1, 5), (7, 9)]));
        let v6 = AddressRange::new("::1".parse().unwrap(), "::3".parse().unwrap()).unwrap();
        let both: AddressSet = set(&[(1, 2)]).ranges().iter().copied().chain([v6]).collect();
        assert_eq!((both.ranges().len(), both.count()), (2, 5));
    }

    #[test]
    fn the_count_of_all_ipv6_addresses_is_the_maximum_of_u128() {
        let [first, last] = ["::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"].map(|text| text.parse().unwrap());
        let all: AddressSet = AddressRange::new(first, last).into_iter().chain(AddressRange::new(last, last)).collect();
        assert_eq!((all.ranges().len(), all.count()), (1, u128::MAX));
        assert_eq!(all.difference(&all), AddressSet::default());
    }

    proptest! {
        #[test]
        fn address_sets_agree_with_plain_lists_of_numbers(
            a in prop::collection::vec((0_u32..60, 0_u32..60), 0..8),
            b in prop::collection::vec((0_u32..60, 0_u32..60), 0..8),
        ) {
            let (a, b) = (set(&a), set(&b));
            let (list_a, list_b) = (naive(&a), naive(&b));
            let both: Vec<u128> = list_a.iter().copied().filter(|number| list_b.contains(number)).collect();
            let alone: Vec<u128> = list_a.iter().copied().filter(|number| !list_b.contains(number)).collect();
            prop_assert_eq!(naive(&a.intersection(&b)), both);
            prop_assert_eq!(naive(&a.difference(&b)), alone);
            prop_assert_eq!(a.count(), list_a.len() as u128);
            for number in 0..64 {
                let address = Family::Ipv4.address(number);
                prop_assert_eq!(a.contains(address), list_a.contains(&number));
            }
            for range in b.ranges() {
                let mut numbers = range.first()..=range.last();
                prop_assert_eq!(a.meets(range), numbers.clone().any(|number| list_a.contains(&number)));
                prop_assert_eq!(a.covers(range), numbers.all(|number| list_a.contains(&number)));
            }
            prop_assert!(a.ranges().windows(2).all(|pair| pair[0].last() + 1 < pair[1].first()));
        }

        #[test]
        fn an_entry_is_unchanged_after_it_is_written_and_parsed(text in "[0-9a-f:./-]{0,24}") {
            if let Ok(entry) = text.parse::<Entry>() {
                prop_assert_eq!(entry.to_string().parse(), Ok(entry));
            }
        }

        #[test]
        fn a_range_is_accepted_exactly_if_it_has_no_refused_address(a in any::<u32>(), b in any::<u32>()) {
            let [first, last] = [a.min(b), a.max(b).max(1)].map(|number| IpAddr::V4(Ipv4Addr::from(number)));
            let range = AddressRange::new(first, last).unwrap();
            let is_refused = REFUSED.iter().any(|refused| refused.range().intersection(&range).is_some());
            let read = format!("{first}-{last}").parse::<Entry>().ok().map(|entry| entry.range());
            prop_assert_eq!(read, Some(range).filter(|_| !is_refused));
        }
    }
}
