//! Types of the host side: machines and their interfaces, claims, allocations, leases, conflicts and records.

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::net::IpAddr;
use std::sync::Arc;

use ipnetwork::IpNetwork;
use jiff::Timestamp;
use serde::{Deserialize, Serialize, Serializer};

use crate::host::may_record::{Source, State};
use crate::network::{Family, InterfaceName, is_label};

/// A machine, identified by its Kubernetes object: its kind, its namespace, its name and its UID.
///
/// A new machine may have the name of a deleted machine. Its UID differs, so it is another machine. Users can write the
/// UID of one object into an object of another kind. Such an object is another machine, too.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    /// Namespace of the object.
    pub namespace: String,
    /// Name of the object.
    pub name: String,
    /// UID of the object.
    pub uid: String,
    /// Kind of the object.
    #[serde(skip)]
    pub kind: HolderKind,
    /// Namespace of the VirtualMachine of this object. `None`: the namespace of the object. This namespace is no part
    /// of the identity of the machine.
    #[serde(skip)]
    pub vm_namespace: Option<String>,
}

/// The kinds of objects that hold addresses, or that use an address without a lease.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
pub enum HolderKind {
    /// A machine of cluster-api-provider-kubevirt.
    #[default]
    KubevirtMachine,
    /// A VirtualMachine of KubeVirt whose KubevirtMachine does not exist or cannot be read.
    VirtualMachine,
    /// An IPAddressClaim of Cluster API.
    #[serde(rename = "IPAddressClaim")]
    IpAddressClaim,
    /// An IPAMClaim: a claim for one network interface of a virtual machine.
    #[serde(rename = "IPAMClaim")]
    IpamClaim,
    /// A Service of type LoadBalancer. A Service never holds a lease.
    #[serde(skip_deserializing)]
    Service,
    /// A Cluster of Cluster API, whose control plane has an address. A Cluster never holds a lease.
    #[serde(skip_deserializing)]
    Cluster,
}

/// A machine and one of its interfaces: the holder of addresses.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
pub struct Claimant {
    /// The machine that has the interface.
    #[serde(flatten)]
    pub machine: Machine,
    /// Name of the interface, as in the pool.
    #[serde(serialize_with = "as_string")]
    pub interface: InterfaceName,
}

/// The addresses that one interface holds: at most one of each family, IPv4 first.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub struct Allocation {
    /// Holder of the addresses.
    #[serde(flatten)]
    pub claimant: Claimant,
    /// The addresses, each with the prefix length of its subnet.
    #[serde(serialize_with = "as_strings")]
    pub addresses: Vec<IpNetwork>,
}

/// The request of one machine for addresses on one or several of its interfaces. The machine gets all requested
/// addresses or none.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Claim {
    /// The machine that requests the addresses.
    pub machine: Machine,
    /// When the object of the machine was created. Waiting machines are served in this order, then by namespace and
    /// name.
    pub created: Timestamp,
    /// One request for each pool from which the machine needs addresses.
    pub requests: Vec<Request>,
    /// Whether to prefer the address last released by a machine of the same namespace and name, if this address is
    /// still free. The reuse delay does not matter here, because it applies only to other machines. An address with
    /// which a guest migrated to another cluster is not preferred.
    pub sticky: bool,
    /// Name of the Secret from which the guest will read the addresses. Every lease of the machine records the name
    /// before the claim is answered. `None`: the guest reads the addresses from elsewhere.
    pub secret: Option<String>,
}

/// A request for the addresses of one interface, from a pool or from one of its overflow pools: one address of each
/// family, or of a single family. All addresses of a request come from one pool.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Request {
    /// Name of the pool, as `namespace/name`.
    pub pool: String,
    /// Names of the overflow pools, in the order in which they are tried when the pool is exhausted. Each overflow pool
    /// must pass [`Pool::check_overflow`](super::pool::Pool::check_overflow). A machine that has an address stays with
    /// the pool of this address.
    pub overflow: Vec<String>,
    /// The only requested family. `None` requests each family of the pool.
    pub family: Option<Family>,
    /// The requested addresses, at most one of each family. A claim that names an address never waits. For a family
    /// without a requested address, the allocator uses the first of these addresses that exists: the address that the
    /// pool keeps for the machine, the last address of a sticky claim, the lowest free address.
    pub addresses: Vec<IpAddr>,
}

/// The record in the ledger that a claimant holds, or last held, an address.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Lease {
    /// The holder, or the last holder if the address is released.
    pub claimant: Arc<Claimant>,
    /// Name of the pool of the lease, as `namespace/name`: the pool that allocated the address, or the pool to which
    /// the lease moved last.
    pub pool: Arc<str>,
    /// Prefix length of the address. A resize of the pool, or a move of the lease, can change the prefix length.
    pub prefix: u8,
    /// When the address was allocated.
    pub since: Timestamp,
    /// When the address was released. `None` while the address is held.
    pub released: Option<Timestamp>,
    /// When the reuse delay ends. Before this time no other machine gets the address. `None` without a reuse delay.
    pub reuse_after: Option<Timestamp>,
    /// Names of the Secrets from which guests of the holder may read the address. Empty: not known, or the guests
    /// read no Secret. A ledger in a file keeps no names.
    pub secrets: BTreeSet<String>,
    /// When the guest of the holder migrated to another cluster, where the guest still has the address. `None`: the
    /// guest did not migrate. A ledger in a file does not keep this time.
    pub migrated: Option<Timestamp>,
}

/// A claimant with a record of an address that the claimant does not hold in the ledger.
///
/// The claimant may use the address nevertheless. So no other machine gets the address before the claimant's machine is
/// gone.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Conflict {
    /// The claimant that the record names.
    pub claimant: Claimant,
    /// Kind and name of the object with the record.
    pub source: String,
    /// Whether the record contradicts the ledger or the pools, or else why the address is reserved.
    pub state: State,
}

/// A record of one address that needs no lease: the address is reserved for its claimant.
#[derive(Clone, Debug, Eq, PartialEq)]
#[doc(hidden)]
pub struct Reservation {
    /// The recorded address.
    pub address: IpAddr,
    /// Network of the address. `None`: every network with a pool that has the address.
    pub network: Option<String>,
    /// The claimant that has the address, according to the record.
    pub claimant: Claimant,
    /// Where the record was read, for messages: the kind and the name of an object.
    pub source: String,
    /// Kind of the record.
    pub kind: Source,
}

/// The addresses of a machine, as one of its Kubernetes objects records them.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Record {
    /// The claimant that holds the addresses, according to the record.
    pub claimant: Claimant,
    /// NodePool of the machine, as `namespace/name`. `None` if no object of the machine names a NodePool.
    pub node_pool: Option<String>,
    /// Networks to which the objects of the machine attach the machine, spelled as
    /// [`Pool::network`](super::pool::Pool::network), sorted, each once. Empty if no object lists its networks.
    pub attachments: Vec<String>,
    /// Network that the record itself names, spelled as [`Pool::network`](super::pool::Pool::network).
    pub network: Option<String>,
    /// The addresses. The full length (/32, /128) means that the record has no prefix length for the address.
    pub addresses: Vec<IpNetwork>,
    /// Where the record was read, for messages: the kind and the name of an object.
    pub source: String,
    /// Kind of the record.
    pub kind: Source,
}

impl Record {
    /// Whether reported addresses are reserved before this record is adopted. This is so if the machine of the record
    /// has no guest, and a guest reports one of the addresses: then the running guest is the only user of the address.
    /// The record of a machine with a guest is adopted first, because its guest may use the address, even if other
    /// guests report the address, too.
    #[must_use]
    #[doc(hidden)]
    pub fn follows_reports(&self, reported: &BTreeSet<IpAddr>, has_guest: bool) -> bool {
        !has_guest && self.addresses.iter().any(|address| reported.contains(&address.ip()))
    }
}

/// Serializes a value as a string, by its `Display`.
pub(crate) fn as_string<S: Serializer>(value: &impl fmt::Display, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}

fn as_strings<S: Serializer>(addresses: &[IpNetwork], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(addresses.iter().map(ToString::to_string))
}

/// Whether Kubernetes accepts a string as the name of an object or of a namespace: a subdomain as in RFC 1123.
///
/// ```
/// use glowplug::host::claim::is_object_name;
///
/// assert_eq!(["worker-0", "u1.medium", "Worker", "-a", "a..b", ""].map(is_object_name), [true, true, false, false, false, false]);
/// ```
#[must_use]
#[doc(hidden)]
pub fn is_object_name(text: &str) -> bool {
    text.len() <= 253 && text.split('.').all(is_label) && !text.bytes().any(|b| b.is_ascii_uppercase())
}

/// Whether Kubernetes accepts a string as the name of a namespace: a label as in RFC 1123.
#[must_use]
#[doc(hidden)]
pub fn is_namespace(text: &str) -> bool {
    is_object_name(text) && text.len() <= 63 && !text.contains('.')
}

/// Description of a name that [`is_namespace`] accepts, for messages.
#[doc(hidden)]
pub const NAMESPACE_NAME: &str =
    "the name of a namespace: at most 63 lower case letters, digits and '-', with a letter or digit at both ends";

/// Description of a name that [`is_object_name`] accepts, for messages.
#[doc(hidden)]
pub const OBJECT_NAME: &str =
    "at most 253 lower case letters, digits, '-' and '.', with a letter or digit at both ends";

/// Whether two objects have the same namespace and name.
pub(crate) fn is_namesake(one: &Machine, other: &Machine) -> bool {
    one.name == other.name && one.namespace == other.namespace
}

/// Whether an object follows another object of its namespace and name, so that it may get the address of the earlier
/// object again: both are machines, or both are claims of one kind. A claim and a machine of one name may have
/// different users. A VirtualMachine also follows a KubevirtMachine of another namespace for which capk had created it.
pub(crate) fn is_successor(earlier: &Machine, later: &Machine) -> bool {
    let are_machines = !earlier.kind.is_claim() && !later.kind.is_claim();
    is_namesake(earlier, later) && successors(earlier.kind) == successors(later.kind)
        || are_machines && is_guest_of(earlier, later)
}

/// The kind of a claim. All other kinds are `None`, and so equal: a KubevirtMachine and a VirtualMachine of one name
/// have one guest.
pub(crate) fn successors(kind: HolderKind) -> Option<HolderKind> {
    Some(kind).filter(|kind| kind.is_claim())
}

/// Whether two objects belong to one VirtualMachine, which has one guest. For a Service or a Cluster, which has no
/// VirtualMachine: whether both are the same object.
pub(crate) fn is_guest_of(one: &Machine, other: &Machine) -> bool {
    fn vm(machine: &Machine) -> &str {
        match machine.kind {
            // An IPAMClaim is named `<machine>.<interface>`. The name of an interface in KubeVirt has no dot.
            HolderKind::IpamClaim => machine.name.rsplit_once('.').map_or(&machine.name, |(vm, _)| vm),
            _ => &machine.name,
        }
    }
    if !(one.kind.may_hold() && other.kind.may_hold()) {
        return one == other;
    }
    vm(one) == vm(other) && one.served_in() == other.served_in()
}

// === impl Claim ===

impl Claim {
    /// A claim of this machine, without requests. `created` is the time when the object of the machine was created.
    #[must_use]
    pub fn new(machine: Machine, created: Timestamp) -> Self {
        Self { machine, created, requests: Vec::new(), sticky: false, secret: None }
    }

    /// Adds a request.
    #[must_use]
    pub fn request(mut self, request: Request) -> Self {
        self.requests.push(request);
        self
    }
}

// === impl Request ===

impl Request {
    /// A request for one free address of each family of a pool.
    #[must_use]
    pub fn of(pool: &str) -> Self {
        Self { pool: pool.to_owned(), overflow: Vec::new(), family: None, addresses: Vec::new() }
    }

    /// Names of the pools that can allocate the addresses, in the order in which they are tried.
    pub fn pools(&self) -> impl Iterator<Item = &str> {
        [&self.pool].into_iter().chain(&self.overflow).map(String::as_str)
    }
}

// === impl Machine ===

impl Machine {
    /// A KubevirtMachine whose VirtualMachine is in the same namespace.
    #[must_use]
    pub fn new(namespace: impl Into<String>, name: impl Into<String>, uid: impl Into<String>) -> Self {
        let (kind, vm_namespace) = (HolderKind::KubevirtMachine, None);
        Self { namespace: namespace.into(), name: name.into(), uid: uid.into(), kind, vm_namespace }
    }

    /// The object of another kind with the same namespace, name and UID.
    #[must_use]
    pub fn of_kind(self, kind: HolderKind) -> Self {
        Self { kind, ..self }
    }

    /// The same object, with the namespace of its VirtualMachine.
    #[must_use]
    pub fn with_vm_in(self, namespace: &str) -> Self {
        Self { vm_namespace: Some(namespace.to_owned()).filter(|namespace| *namespace != self.namespace), ..self }
    }

    /// Whether Kubernetes allows an object with this namespace and name. `false` for the unknown machine of a record
    /// that cannot be read.
    #[must_use]
    #[doc(hidden)]
    pub fn may_exist(&self) -> bool {
        is_object_name(&self.namespace) && is_object_name(&self.name)
    }

    /// Name of the machine in tables: `namespace/name`.
    #[must_use]
    pub fn title(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }

    /// Namespace whose pools can serve the machine: the namespace of its VirtualMachine.
    #[must_use]
    #[doc(hidden)]
    pub fn served_in(&self) -> &str {
        self.vm_namespace.as_deref().unwrap_or(&self.namespace)
    }

    fn identity(&self) -> (&str, &str, &str, HolderKind) {
        (&self.namespace, &self.name, &self.uid, self.kind)
    }
}

impl PartialEq for Machine {
    fn eq(&self, other: &Self) -> bool {
        self.identity() == other.identity()
    }
}

impl Eq for Machine {}

impl PartialOrd for Machine {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Machine {
    fn cmp(&self, other: &Self) -> Ordering {
        self.identity().cmp(&other.identity())
    }
}

impl Hash for Machine {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.identity().hash(state);
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{} ({})", self.namespace, self.name, self.uid)
    }
}

// === impl HolderKind ===

impl HolderKind {
    /// Whether the object is a claim: an IPAddressClaim or an IPAMClaim.
    #[must_use]
    pub fn is_claim(self) -> bool {
        matches!(self, Self::IpAddressClaim | Self::IpamClaim)
    }

    /// Whether the object can hold a lease. Other objects use addresses that this program does not allocate.
    #[must_use]
    pub fn may_hold(self) -> bool {
        !matches!(self, Self::Service | Self::Cluster)
    }
}

impl fmt::Display for HolderKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::KubevirtMachine => "KubevirtMachine",
            Self::VirtualMachine => "VirtualMachine",
            Self::IpAddressClaim => "IPAddressClaim",
            Self::IpamClaim => "IPAMClaim",
            Self::Service => "Service",
            Self::Cluster => "Cluster",
        })
    }
}

// === impl Claimant ===

impl fmt::Display for Claimant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.machine.kind {
            kind @ (HolderKind::Service | HolderKind::Cluster) => write!(f, "{kind} {}", self.machine.title()),
            // The claimant of a claim has the interface of the pool, which says nothing about the claim.
            kind @ (HolderKind::IpAddressClaim | HolderKind::IpamClaim) => write!(f, "{kind} {}", self.machine),
            HolderKind::KubevirtMachine | HolderKind::VirtualMachine => {
                write!(f, "{} of {}", self.interface, self.machine)
            }
        }
    }
}
