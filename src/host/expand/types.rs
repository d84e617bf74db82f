//! Types for making a document: the addresses and settings of an interface, the document, and the errors.

use std::fmt;

use ipnetwork::IpNetwork;
use pnet_base::MacAddr;

use crate::diagnostic::{Diagnostic, Diagnostics};
use crate::formats::{Meaning, read_network, write_network_config};
use crate::host::claim::Allocation;
use crate::host::pool::Settings;
use crate::network::{InterfaceName, NetworkConfig};

/// The addresses and settings of one interface.
#[derive(Clone, Debug)]
pub struct Grant<'a> {
    /// The interface and its addresses.
    pub allocation: &'a Allocation,
    /// Settings of the pool.
    pub settings: Settings,
    /// MAC address by which the guest identifies the NIC. `None`: the guest identifies the NIC by its name.
    pub mac_address: Option<MacAddr>,
    /// Whether the guest gives the NIC the name of the interface, for example because of its ACPI index. `false`: only
    /// the MAC address identifies the NIC, and the document has no name for the NIC.
    pub is_named: bool,
}

/// A machine's `network_data.json`, or its network-config. The guest's reader has checked that the document has the
/// allocated addresses.
#[derive(Clone, Debug, PartialEq)]
pub struct Document {
    text: String,
    warnings: Vec<Diagnostic>,
}

/// Why a document cannot be made.
#[derive(Debug)]
#[non_exhaustive]
pub enum ExpandError {
    /// The allocated addresses cannot be added to the template. Contains every reason.
    Template(Diagnostics),
    /// An interface is given twice.
    Twice(InterfaceName),
    /// An interface has no address, or two addresses of one family.
    Addresses(InterfaceName, Vec<IpNetwork>),
    /// An address of a machine has prefix length 0: its pool serves only claims.
    WithoutPrefix(InterfaceName, IpNetwork),
    /// The guest would reject the document. Contains the guest's diagnostics.
    Refused(Diagnostics),
    /// The guest would read other addresses than the allocated addresses.
    Differs {
        /// The interface whose addresses differ.
        interface: InterfaceName,
        /// Addresses that the guest would read, sorted.
        read: Vec<IpNetwork>,
        /// Allocated addresses, sorted.
        allocated: Vec<IpNetwork>,
    },
}

// === impl Document ===

impl Document {
    pub(super) fn new(text: String, diagnostics: Diagnostics) -> Self {
        Self { text, warnings: diagnostics.into_parts().0 }
    }

    /// The text of the document for the drive: JSON on one line, the same text for the same input.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Converts the document into cloud-init's network-config, version 2, for a NoCloud drive. The result is JSON on
    /// one line, which readers of YAML accept.
    ///
    /// The format has name servers only on links, so the name servers are written on the link with the default route. A
    /// setting that the format cannot express becomes a warning of the returned document, unless the setting is
    /// essential.
    ///
    /// # Errors
    ///
    /// [`ExpandError::Template`] when the format cannot express an essential setting.
    pub fn to_network_config(&self) -> Result<Self, ExpandError> {
        let network = match read_network(self.text.as_bytes()).meaning {
            Meaning::Network(network) => network,
            // The reader has already read the addresses from this text.
            Meaning::Unconfigured | Meaning::Disabled | Meaning::Refused => NetworkConfig::default(),
        };
        let (text, limits) = write_network_config(&network).map_err(ExpandError::Template)?;
        let warnings = self.warnings.iter().cloned().chain(limits).collect();
        Ok(Self { text, warnings })
    }

    /// Warnings of the guest about this document, and about gateways without a route, sorted by their paths. In a
    /// network-config, the warnings about settings that the format cannot express follow.
    #[must_use]
    pub fn warnings(&self) -> &[Diagnostic] {
        &self.warnings
    }
}

// === impl ExpandError ===

/// Joins addresses on one line.
struct List<'a>(&'a [IpNetwork]);

impl fmt::Display for List<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("none");
        }
        for (index, address) in self.0.iter().enumerate() {
            write!(f, "{}{address}", if index == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

impl fmt::Display for ExpandError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Template(diagnostics) => diagnostics.fmt(f),
            Self::Twice(interface) => write!(f, "interface {interface} is given twice, expected once"),
            Self::Addresses(interface, addresses) => {
                let addresses = List(addresses);
                write!(f, "interface {interface} is given {addresses}, expected one address, or one of each family")
            }
            Self::WithoutPrefix(interface, address) => {
                write!(f, "interface {interface} is given {address}, expected a prefix length: 0 is for claims alone")
            }
            Self::Refused(diagnostics) => write!(f, "the guest would refuse the document: {diagnostics}"),
            Self::Differs { interface, read, allocated } => {
                let (read, allocated) = (List(read), List(allocated));
                write!(f, "the guest would read other addresses on {interface}: {read}, expected {allocated}")
            }
        }
    }
}

impl std::error::Error for ExpandError {}
