//! What the template of the machines' document says about the network of a pool.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use crate::network::Family;

/// What a template says about one interface. [`Template::facts`](crate::host::expand::Template::facts) reads it.
///
/// Nothing that a template names is ever allocated: the gateway of every machine would otherwise be the address of one of
/// them.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct TemplateFacts {
    /// Prefix length of the addresses of each family.
    pub prefixes: BTreeMap<Family, u8>,
    /// Gateways of the interface.
    pub gateways: BTreeSet<IpAddr>,
    /// Name servers of the machine.
    pub nameservers: BTreeSet<IpAddr>,
    /// Other addresses: those of other interfaces, and their gateways.
    pub addresses: BTreeSet<IpAddr>,
}

impl TemplateFacts {
    /// All addresses, in no order.
    pub(crate) fn all(&self) -> impl Iterator<Item = IpAddr> {
        self.gateways.iter().chain(&self.nameservers).chain(&self.addresses).copied()
    }
}
