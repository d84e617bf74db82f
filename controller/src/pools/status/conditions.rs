//! Decides the conditions of one pool, without their times.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use glowplug::host::allocator::exhausted_message;
use glowplug::host::metrics::exhausted_families;
use glowplug::network::Family;

use super::observation::{Observation, OtherUsers};
use crate::cluster::conditions::{
    EARLIER_SCHEMA, MOST_LINES, SCHEMA_VIOLATED, UNADOPTED_RECORDS, UNREADABLE_LEASES, stalled,
};
use crate::cluster::key::{Key, PoolId};
use crate::pools::selection::{KnownPool, Membership};

/// A condition without its generation and times.
#[derive(Clone, Debug)]
pub(super) struct Verdict {
    pub(super) status: &'static str,
    pub(super) reason: &'static str,
    pub(super) message: String,
}

/// Type of the condition of a pool that refers to NodePools.
const NODE_POOL_FOUND: &str = "NodePoolFound";

/// Type of the condition of a pool that selects by the labels of Namespaces.
const NAMESPACES_LISTED: &str = "NamespacesListed";

/// Message for a pool that selects by the labels of Namespaces, while the controller does not know these labels.
pub(super) const NAMESPACES_UNKNOWN: &str =
    "The controller has no right to list and watch Namespaces, so the pool selects no machine and allocates nothing";

/// Types of the conditions that only some pools have.
pub(super) const OF_SOME: [&str; 5] =
    [NODE_POOL_FOUND, NAMESPACES_LISTED, SCHEMA_VIOLATED, UNREADABLE_LEASES, UNADOPTED_RECORDS];

/// Returns the first lines about conflicts in the order of their addresses, and the number of users that have no line.
/// Each address gets one line before any address gets a second line: one machine may record or report any number of
/// addresses, and one address may have any number of users.
pub(super) fn first_lines(conflicts: &BTreeMap<(String, IpAddr), OtherUsers>) -> String {
    let in_turn = |at: usize| conflicts.values().enumerate().filter(move |(_, users)| users.lines.len() > at);
    let turns = (0..MOST_LINES).flat_map(|at| in_turn(at).map(move |(address, _)| (address, at)));
    let first: BTreeSet<(usize, usize)> = turns.take(MOST_LINES).collect();
    let all: usize = conflicts.values().map(|users| users.count).sum();
    let of_address = conflicts.values().enumerate().flat_map(|(address, users)| {
        let lines = users.lines.iter().enumerate();
        lines.filter_map({
            let first = &first;
            move |(at, line)| first.contains(&(address, at)).then(|| line.clone())
        })
    });
    let mut lines: Vec<String> = of_address.collect();
    let others = all - lines.len();
    lines.extend((others > 0).then(|| format!("and {others} more")));
    lines.join("\n")
}

// === impl KnownPool ===

impl KnownPool {
    /// The object from which the pool takes its addresses, as text for messages. `None`: the pool allocates its own
    /// addresses.
    pub(super) fn source(&self) -> Option<String> {
        self.checked.spec.addresses_from.as_ref().map(ToString::to_string)
    }

    /// Whether the pool selects by the labels of Namespaces while these labels are unknown.
    pub(super) fn lacks_namespaces(&self, membership: &Membership) -> bool {
        self.checked.selects_namespaces() && membership.selected.is_none()
    }

    /// Decides the condition of a pool that selects by the labels of Namespaces. `None`: the pool does not select by
    /// these labels.
    pub(super) fn namespaces_listed(&self, membership: &Membership) -> Option<(&'static str, Verdict)> {
        let verdict = match membership.selected {
            None if self.checked.selects_namespaces() => Verdict::not("Forbidden", NAMESPACES_UNKNOWN),
            None => return None,
            Some(selected) => {
                let message = format!("Namespaces that the pool selects: {selected}");
                Verdict::of("True", "Listed", &message)
            }
        };
        Some((NAMESPACES_LISTED, verdict))
    }

    /// Decides the condition `SchemaViolated`: the current schema does not allow the pool, which the API server stored
    /// under an earlier schema. `None`: the current schema allows the pool.
    pub(super) fn schema_violated(&self) -> Option<(&'static str, Verdict)> {
        let lines = self.checked.beyond_schema.as_deref()?;
        Some((SCHEMA_VIOLATED, Verdict::of("True", EARLIER_SCHEMA, lines)))
    }

    /// Decides the condition `Exhausted`.
    pub(super) fn exhausted(&self, id: &PoolId, Observation { usage, relief, .. }: &Observation) -> Verdict {
        let has_free = usage.families.iter().all(|usage| usage.free > 0);
        match &self.checked.pool {
            _ if usage.families.is_empty() && self.source().is_some() => {
                Verdict::of("False", "AddressesFrom", "Another program chooses the addresses of the pool")
            }
            Ok(pool) if !usage.families.is_empty() => {
                let families: Vec<Family> = exhausted_families(pool, usage).collect();
                match (has_free, relief) {
                    (_, Some(other)) if !families.is_empty() => {
                        let families: Vec<String> = families.iter().map(Family::to_string).collect();
                        let message = format!(
                            "The pool has no free {} address, and its machines get addresses of pool {other}",
                            families.join(" and no free ")
                        );
                        Verdict::of("False", "Overflow", &message)
                    }
                    _ if !families.is_empty() => {
                        let message = exhausted_message(pool.interface(), [(id.to_string().as_str(), families)]);
                        Verdict::of("True", "NoFreeAddress", &message)
                    }
                    (true, _) => Verdict::of("False", "FreeAddresses", "The pool has free addresses"),
                    (false, _) => Verdict::of(
                        "False",
                        "PreAllocated",
                        "The pool pre-allocates each address to a name, and no machine or claim waits",
                    ),
                }
            }
            _ => Verdict::of("Unknown", "NotReady", "The addresses of the pool are not known"),
        }
    }
}

/// Decides the condition of a pool that refers to NodePools. `None`: the pool refers to no NodePool.
pub(super) fn node_pool_found(membership: &Membership) -> Option<(&'static str, Verdict)> {
    let names = |keys: &[Key]| {
        let named: Vec<String> = keys.iter().take(MOST_LINES).map(|key| format!("NodePool {key}")).collect();
        let further = keys.len() - named.len();
        named.join(", ") + &if further > 0 { format!(" and {further} more") } else { String::new() }
    };
    let Membership { node_pools, missing, .. } = membership;
    let verdict = match (node_pools.len(), missing.len()) {
        (0, _) => return None,
        (_, 0) => Verdict::of("True", "Found", &format!("The pool serves the machines of {}", names(node_pools))),
        (1, 1) => {
            let message = format!("{} does not exist, so the pool selects no machine", names(missing));
            Verdict::not("NodePoolNotFound", &message)
        }
        _ => {
            let message =
                format!("These NodePools do not exist, so the pool selects no machine of them: {}", names(missing));
            Verdict::not("NodePoolNotFound", &message)
        }
    };
    Some((NODE_POOL_FOUND, verdict))
}

// === impl Verdict ===

impl Verdict {
    pub(super) fn of(status: &'static str, reason: &'static str, message: &str) -> Self {
        Self { status, reason, message: message.to_owned() }
    }

    pub(super) fn not(reason: &'static str, message: &str) -> Self {
        Self::of("False", reason, message)
    }

    /// Derives the condition `Stalled` from this condition `Ready`.
    pub(super) fn stalled(&self) -> Self {
        let (status, reason, message) = stalled((self.status, self.reason, &self.message));
        Self::of(status, reason, message)
    }
}
