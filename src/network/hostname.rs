//! The host name of a machine.

use std::fmt;
use std::net::Ipv4Addr;
use std::str::FromStr;

/// A host name according to RFC 1123, short enough for Linux. Upper and lower case are kept.
///
/// A host name consists of labels with single dots between them and no final dot. A label has 1 to 63 ASCII letters,
/// digits and `-`, and does not begin or end with `-`. An IPv4 address is not a host name, although it consists of
/// digits and dots.
///
/// A host name has at most 64 bytes. DNS would allow 253, but the kernel's `sethostname` rejects more than 64, and a
/// program that finds a longer name in `/etc/hostname` uses no name at all.
///
/// ```
/// use glowplug::network::{Hostname, HostnameError};
///
/// assert_eq!("Worker-0.example".parse::<Hostname>().unwrap().as_str(), "Worker-0.example");
/// assert_eq!("worker\nPermitRootLogin".parse::<Hostname>(), Err(HostnameError));
/// ```
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Hostname(String);

/// The error for a string that is not a [`Hostname`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct HostnameError;

/// Whether a string is a label according to RFC 1123: one or more ASCII letters, digits and `-`, with no `-` at either
/// end. The length is not checked: DNS allows 63 bytes, but Kubernetes has no limit for a label in the name of an
/// object.
pub(crate) fn is_label(label: &str) -> bool {
    let is_legal = |b: u8| b.is_ascii_alphanumeric() || b == b'-';
    !label.is_empty() && !label.starts_with('-') && !label.ends_with('-') && label.bytes().all(is_legal)
}

// === impl Hostname ===

impl Hostname {
    /// Description of a valid host name, for messages.
    pub const EXPECTED: &'static str = "a host name: at most 64 letters, digits, '-' and '.', each label of 1 to 63 characters, without '-' at either end";

    /// The longest name, in bytes (`HOST_NAME_MAX` of Linux).
    pub const MAX: usize = 64;

    /// The longest label, in bytes (RFC 1123).
    const MAX_LABEL: usize = 63;

    /// Parses a host name that may be too long or have a final dot. A final dot is removed. A name that is still too
    /// long, or has a label that is too long, is cut to its first label, and this label is cut to 63 bytes. afterburn
    /// shortens names in the same way.
    ///
    /// # Errors
    ///
    /// [`HostnameError`]: the string is invalid for a reason other than a final dot or a length.
    pub fn shortened(text: &str) -> Result<Self, HostnameError> {
        let name = text.strip_suffix('.').unwrap_or(text);
        let is_too_long = name.len() > Self::MAX || name.split('.').any(|label| label.len() > Self::MAX_LABEL);
        if !is_too_long || !name.split('.').all(is_label) {
            return name.parse();
        }
        let label = name.split('.').next().unwrap_or(name);
        // The label is ASCII, so it can be cut at any byte.
        label[..label.len().min(Self::MAX_LABEL)].trim_end_matches('-').parse()
    }

    /// The host name as a string.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Hostname {
    type Err = HostnameError;

    fn from_str(text: &str) -> Result<Self, HostnameError> {
        let label = |label: &str| label.len() <= Self::MAX_LABEL && is_label(label);
        if text.len() <= Self::MAX && text.split('.').all(label) && text.parse::<Ipv4Addr>().is_err() {
            Ok(Self(text.to_owned()))
        } else {
            Err(HostnameError)
        }
    }
}

impl fmt::Display for Hostname {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for HostnameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "expected {}", Hostname::EXPECTED)
    }
}

impl std::error::Error for HostnameError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn valid_host_names_are_accepted() {
        let long = format!("{}.{}", "a".repeat(32), "b".repeat(31));
        let label = "a".repeat(63);
        for name in ["worker-0", "Worker-0", "a", "0", "3com", "a--b", "worker-0.ns.example", &label, &long] {
            assert_eq!(name.parse(), Ok(Hostname(name.to_owned())));
        }
    }

    #[test]
    fn a_name_that_is_too_long_or_ends_with_a_dot_is_shortened() {
        let shortened = |text: &str| Hostname::shortened(text).map(|name| name.to_string());
        let (long, label) = (format!("worker-0.{}", "a".repeat(60)), "a".repeat(62));
        for (text, name) in [
            ("worker-0.example", "worker-0.example"),
            ("worker-0.example.", "worker-0.example"),
            (&long, "worker-0"),
            (&format!("{long}."), "worker-0"),
            (&format!("{label}bcd"), &format!("{label}b")),
            (&format!("{label}-bcd"), &label),
        ] {
            assert_eq!(shortened(text), Ok(name.to_owned()), "{text}");
        }
        for text in ["", ".", "a..", &format!("{long}..b"), &format!("{long} b"), &format!("-{long}")] {
            assert_eq!(shortened(text), Err(HostnameError), "{text}");
        }
    }

    #[test]
    fn invalid_host_names_are_rejected() {
        let long = format!("{}.{}", "a".repeat(32), "b".repeat(32));
        let label = "a".repeat(64);
        for text in [
            "", ".", "a.", ".a", "a..b", "-a", "a-", "a.-b", "a_b", "a b", "a\n", "a\nb", "a\0", "a/b", "$(id)", "ä",
            "10.0.0.5", "fd00::5", &label, &long,
        ] {
            assert_eq!(text.parse::<Hostname>(), Err(HostnameError), "{text:?}");
        }
        assert_eq!(HostnameError.to_string(), format!("expected {}", Hostname::EXPECTED));
    }
}
