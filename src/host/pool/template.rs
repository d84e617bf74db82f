//! Settings of the machines' template for the network of a pool.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use crate::diagnostic::Diagnostic;
use crate::network::Family;

/// Settings of a template for one interface. [`Template::facts`](crate::host::expand::Template::facts) reads them.
///
/// An address in a template is never allocated. Otherwise a machine could get the address of the gateway of all
/// machines.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
#[doc(hidden)]
pub struct TemplateFacts {
    /// Prefix length of the addresses of each family.
    pub prefixes: BTreeMap<Family, u8>,
    /// Gateways of the interface.
    pub gateways: BTreeSet<IpAddr>,
    /// Name servers of the machine.
    pub nameservers: BTreeSet<IpAddr>,
    /// Other addresses that the template names, such as the gateways of other interfaces.
    pub addresses: BTreeSet<IpAddr>,
    /// Warnings about links that afterburn does not read completely. Their paths are relative to the template.
    /// [`Pool::new`](super::Pool::new) reports these warnings, and the pool does not keep the warnings.
    pub unread: Vec<Diagnostic>,
}

impl TemplateFacts {
    /// All addresses, in no particular order.
    pub(crate) fn all(&self) -> impl Iterator<Item = IpAddr> {
        self.gateways.iter().chain(&self.nameservers).chain(&self.addresses).copied()
    }
}
