//! Who claims, and what is given.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use ipnetwork::IpNetwork;

use crate::network::{Family, InterfaceName, is_label};

/// A machine, as its Kubernetes object names it. The successor of a deleted machine has the same name and another UID,
/// and is another machine.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Machine {
    /// The namespace of the object.
    pub namespace: String,
    /// The name of the object.
    pub name: String,
    /// The UID of the object.
    pub uid: String,
}

/// A machine's interface that is to have addresses.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Claimant {
    /// Whose it is.
    pub machine: Machine,
    /// The interface, as the pool names it.
    pub interface: InterfaceName,
}

/// What an interface holds: at most one address of each family, IPv4 first.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Allocation {
    /// Who holds it.
    pub claimant: Claimant,
    /// The addresses with the prefix length of their subnet.
    pub addresses: Vec<IpNetwork>,
}

/// What a machine requests: addresses for one or several of its interfaces, all of them or none.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Claim {
    /// Who asks.
    pub machine: Machine,
    /// When the machine's object was created, in milliseconds since 1970. Machines that wait are served in this order,
    /// then by namespace and name.
    pub created: u64,
    /// One for each pool that is to serve it.
    pub requests: Vec<Request>,
    /// Whether what a machine of the same namespace and name gave back last is given first. A ledger remembers it until
    /// somebody else takes it; a reuse delay does not stand against it, since it is for others.
    pub sticky: bool,
}

/// Addresses of one pool for the pool's interface: one of each family, or of one family alone.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Request {
    /// The name of the pool.
    pub pool: String,
    /// The only family requested. `None`: each family of the pool.
    pub family: Option<Family>,
    /// The addresses that it has to be, at most one of each family. Of the others it is the lowest free one. A claim that
    /// names an address never waits for one.
    pub addresses: Vec<IpAddr>,
}

/// What is known of an address that is held, or was.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Lease {
    /// Who holds it, or held it last.
    pub claimant: Arc<Claimant>,
    /// The name of the pool that it came from.
    pub pool: Arc<str>,
    /// The prefix length that it was given with.
    pub prefix: u8,
    /// Since when, in milliseconds since 1970.
    pub since: u64,
    /// When it was given back, in milliseconds since 1970. `None` while it is held.
    pub released: Option<u64>,
    /// Until when it is given to nobody else, in milliseconds since 1970, if there is a reuse delay.
    pub reuse_after: Option<u64>,
}

/// A claimant whose record names an address that is not its own by the ledger. It may use it all the same, so nobody
/// else gets it before the machine is gone.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Conflict {
    /// Who.
    pub claimant: Claimant,
    /// The record that says so.
    pub source: String,
}

/// What a Kubernetes object says about who holds which addresses.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Record {
    /// Who holds them.
    pub claimant: Claimant,
    /// NodePool of the machine, as `namespace/name`. `None` if no object of the machine names one.
    pub node_pool: Option<String>,
    /// Networks that the machine's objects attach it to, spelled as [`Pool::network`](super::pool::Pool::network),
    /// sorted, each once. Empty if no object lists its networks.
    pub attachments: Vec<String>,
    /// Network that the record itself names, spelled as [`Pool::network`](super::pool::Pool::network).
    pub network: Option<String>,
    /// The addresses. One with its full length (/32, /128) has no prefix length: it is the spelling of a single address.
    pub addresses: Vec<IpNetwork>,
    /// Where it was found, for messages: the kind and the name of an object.
    pub source: String,
}

/// Whether Kubernetes takes a text for the name of an object or a namespace: a subdomain as RFC 1123 has it.
///
/// ```
/// use glowplug::host::claim::is_object_name;
///
/// assert_eq!(["worker-0", "u1.medium", "Worker", "-a", "a..b", ""].map(is_object_name), [true, true, false, false, false, false]);
/// ```
#[must_use]
pub fn is_object_name(text: &str) -> bool {
    text.len() <= 253 && text.split('.').all(is_label) && !text.bytes().any(|b| b.is_ascii_uppercase())
}

// === impl Request ===

impl Request {
    /// A request for one address of each family of a pool, any that is free.
    #[must_use]
    pub fn of(pool: &str) -> Self {
        Self { pool: pool.to_owned(), family: None, addresses: Vec::new() }
    }
}

// === impl Machine ===

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{} ({})", self.namespace, self.name, self.uid)
    }
}

// === impl Claimant ===

impl fmt::Display for Claimant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", self.interface, self.machine)
    }
}
