//! The reasons for which the pools of a machine are ambiguous.

use std::fmt;

use glowplug::host::pool::NoOverflow;
use glowplug::network::InterfaceName;

use crate::cluster::key::{Key, PoolId};
use crate::cluster::request::one_line;

/// Maximum number of interfaces of a machine that a message names.
const MOST_NAMED: usize = 5;

/// Why the controller cannot use the pools of a machine. The message names one pool, or two pools that contradict each
/// other.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Problem {
    /// A pool that selects the machine has errors.
    InvalidPool {
        /// Namespace and name of the pool.
        pool: PoolId,
        /// Every error in the specification of the pool, one line each.
        errors: String,
    },
    /// Two pools of different networks select the machine for the same interface in the guest.
    TwoPools {
        /// Namespaces and names of the two pools, sorted.
        pools: [PoolId; 2],
        /// The common interface.
        interface: InterfaceName,
    },
    /// Two pools of one network select the machine, and have the same priority, so neither is the overflow.
    SamePriority {
        /// Namespaces and names of the two pools, sorted.
        pools: [PoolId; 2],
        /// The common network.
        network: String,
    },
    /// A pool that selects the machine cannot be the overflow of another pool that selects it.
    NoOverflow(NoOverflow),
    /// The machine has no interface on the network of a pool, or more than one.
    NoInterface {
        /// Namespace and name of the pool.
        pool: PoolId,
        /// Network of the pool.
        network: String,
        /// The VirtualMachine.
        vm: Box<Key>,
        /// KubeVirt's names of all interfaces, each with its network. Either none of them or at least two are on the
        /// network of the pool.
        interfaces: Vec<(String, String)>,
    },
    /// It is unknown whether a pool selects the machine: this depends on the labels of Namespaces, which the controller
    /// does not know.
    UnknownNamespaces {
        /// Name of the pool.
        pool: PoolId,
    },
    /// In the guest, the interface on the network of the pool cannot get the name that the pool requires.
    OtherName {
        /// Namespace and name of the pool.
        pool: PoolId,
        /// KubeVirt's name of the interface whose `acpiIndex` prevents this name.
        attachment: String,
        /// `acpiIndex` of this interface.
        index: u32,
        /// The name that the pool requires.
        interface: InterfaceName,
        /// KubeVirt's name of the interface on the network of the pool.
        wanted: String,
    },
}

/// Joins the first [`MOST_NAMED`] items, and adds how many more there are. The list is limited because a user decides
/// how many items there are.
fn first_of<T>(items: Vec<T>, text: impl Fn(T) -> String) -> String {
    let more = items.len().saturating_sub(MOST_NAMED);
    let first: Vec<String> = items.into_iter().take(MOST_NAMED).map(text).collect();
    if more == 0 { first.join(", ") } else { format!("{} and {more} more", first.join(", ")) }
}

// === impl Problem ===

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InvalidPool { pool, errors } => write!(f, "pool {pool} selects the machine and is invalid: {errors}"),
            Self::TwoPools { pools: [one, other], interface } => {
                write!(
                    f,
                    "pools {one} and {other} both select the machine for interface {interface}, expected one pool"
                )
            }
            Self::SamePriority { pools: [one, other], network } => write!(
                f,
                "pools {one} and {other} both select the machine for network {network}, expected one pool, or different values of \
                 priority"
            ),
            Self::UnknownNamespaces { pool } => write!(
                f,
                "pool {pool} selects machines by the labels of Namespaces, which the controller has no right to list, expected the right \
                 to list and watch namespaces"
            ),
            Self::NoOverflow(problem) => problem.fmt(f),
            Self::NoInterface { pool, network, vm, interfaces } => {
                let (found, others): (Vec<_>, Vec<_>) = interfaces.iter().partition(|(_, of)| of == network);
                let found = first_of(found, |(name, _)| one_line(name));
                let others = first_of(others, |(name, of)| one_line(&format!("{name} on {of}")));
                let found = if found.is_empty() { "no interface".to_owned() } else { format!("interfaces {found}") };
                let others = if others.is_empty() { String::new() } else { format!("; the others are {others}") };
                write!(
                    f,
                    "pool {pool}: spec.template.spec.networks of VirtualMachine {vm}: {found} on network {network}, expected \
                     one{others}"
                )
            }
            Self::OtherName { pool, attachment, index, interface, wanted } if attachment == wanted => {
                write!(
                    f,
                    "pool {pool}: interface {wanted} of the machine has acpiIndex {index}, \
                     expected no acpiIndex or the acpiIndex of {interface}, the interface of the pool"
                )
            }
            Self::OtherName { pool, attachment, index, interface, wanted } => {
                write!(
                    f,
                    "pool {pool}: interface {attachment} of the machine has acpiIndex {index}, \
                     expected another acpiIndex: {interface} is the interface of the pool, and {wanted} is on its network"
                )
            }
        }
    }
}
