//! The state of pools for monitoring, in the text format of Prometheus, and the definition of an exhausted pool.
//!
//! The enhancement (openshift/enhancements pull request 1855) defines the name of `kubevirt_ippool_exhausted`, its
//! label `cluster`, and the condition. The label `namespace` and the other metrics are additions of this program.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::allocator::{Allocator, PoolUsage};
use super::counts::Count;
use super::pool::Pool;
use crate::network::Family;

/// Name of the NodePool condition whose status is `true` when the pool is exhausted.
pub const EXHAUSTED_CONDITION: &str = "KubevirtIPPoolExhausted";

/// The families of a pool that have no free address: the next machine gets no address of these families. A family whose
/// addresses are all kept for names is exhausted only while a machine waits.
#[doc(hidden)]
pub fn exhausted_families(pool: &Pool, usage: &PoolUsage) -> impl Iterator<Item = Family> {
    let has_waiting = usage.waiting > 0;
    let is_for_all = |family| pool.space(family).is_some_and(|space| space.allocatable() > 0);
    let families = usage.families.iter().filter(|usage| usage.free == 0).map(|usage| usage.family);
    families.filter(move |family| has_waiting || is_for_all(*family))
}

/// Returns the pool of `group` that serves further machines in place of an exhausted pool with this `usage`: the first
/// pool with a free address of each family. `None`: there is no such pool, or a machine waits for the exhausted pool.
/// `group` has the pools that serve the same machines.
#[doc(hidden)]
pub fn relief<'p>(usage: &PoolUsage, group: impl IntoIterator<Item = (&'p str, &'p PoolUsage)>) -> Option<&'p str> {
    let has_free = |usage: &PoolUsage| !usage.families.is_empty() && usage.families.iter().all(|of| of.free > 0);
    let relief = group.into_iter().find(|(_, other)| has_free(other));
    relief.map(|(name, _)| name).filter(|_| usage.waiting == 0)
}

/// Returns the metrics of all pools of an allocator, sorted by the name of the pool. `usage` is the result of
/// [`Allocator::usage`]. For the name of a pool, `groups` has the names of all pools that serve the same machines, in
/// the order in which the pools serve them. A pool without an entry is a group of its own.
///
/// - `kubevirt_ippool_exhausted{cluster,namespace}`: 1 when a pool of the hosted cluster is exhausted, and no other
///   pool serves its machines, else 0. The label `cluster` is empty for pools without a known cluster. `namespace` is
///   the namespace of the cluster and its NodePools.
/// - `glowplug_ippool_addresses{cluster,pool,group,network,family,state}`: number of addresses in each state. The
///   states `free`, `allocated`, `excluded`, `byRecord`, `byReport` and `reuseDelay` add up to all addresses of the
///   pool. `group` is the name of the first pool of the group.
/// - `glowplug_ippool_conflicts{cluster,pool,network,family}`: number of addresses with two users.
/// - `glowplug_ippool_outside_addresses{cluster,pool,network,family}`: number of addresses held from the pool that the
///   pool does not offer, or no longer offers.
/// - `glowplug_ippool_waiting_machines{cluster,pool,network}`: number of machines that wait for an address of the pool,
///   including machines that are not created while the pool is exhausted.
#[must_use]
pub fn text(
    allocator: &Allocator,
    usage: &BTreeMap<&str, PoolUsage>,
    groups: &BTreeMap<String, Vec<String>>,
) -> String {
    let mut exhausted = BTreeMap::new();
    let (mut addresses, mut conflicts) = (String::new(), String::new());
    let (mut outside, mut waiting) = (String::new(), String::new());
    for pool in allocator.pools() {
        let all = usage;
        let Some(usage) = all.get(pool.name()) else { continue };
        let group = groups.get(pool.name()).map_or(&[][..], Vec::as_slice);
        let first = group.first().map_or(pool.name(), String::as_str);
        let group = group.iter().filter_map(|name| Some((name.as_str(), all.get(name.as_str())?)));
        let cluster = pool.cluster().unwrap_or_default();
        // Hosted clusters of the same name are in different namespaces, and each NodePool is in the namespace of its
        // cluster. So the two labels identify a cluster.
        let namespace = pool.name.split_once('/').map_or("", |(namespace, _)| namespace);
        *exhausted.entry((cluster, namespace)).or_insert(false) |=
            exhausted_families(pool, usage).next().is_some() && relief(usage, group).is_none();
        // The values of the labels contain only characters that need no escape.
        let labels = format!(r#"cluster="{cluster}",pool="{}",network="{}""#, pool.name, pool.network);
        let machines = usage.waiting + usage.refused;
        for usage in &usage.families {
            let labels = format!(r#"{labels},family="{}""#, usage.family);
            let _ = writeln!(outside, "glowplug_ippool_outside_addresses{{{labels}}} {}", usage.outside);
            let _ = writeln!(conflicts, "glowplug_ippool_conflicts{{{labels}}} {}", usage.conflicts);
            for state in Count::STATES {
                let (word, count) = (state.word(), usage.number(state));
                let labels = format!(r#"{labels},group="{first}",state="{word}""#);
                let _ = writeln!(addresses, "glowplug_ippool_addresses{{{labels}}} {count}");
            }
        }
        let _ = writeln!(waiting, "glowplug_ippool_waiting_machines{{{labels}}} {machines}");
    }
    let mut text = String::from(
        "# HELP kubevirt_ippool_exhausted Whether a pool of the hosted cluster has no free address left.\n\
         # TYPE kubevirt_ippool_exhausted gauge\n",
    );
    for ((cluster, namespace), is_exhausted) in exhausted {
        let labels = format!(r#"cluster="{cluster}",namespace="{namespace}""#);
        let _ = writeln!(text, "kubevirt_ippool_exhausted{{{labels}}} {}", u8::from(is_exhausted));
    }
    text.push_str(
        "# HELP glowplug_ippool_addresses Addresses of a pool by state.\n\
         # TYPE glowplug_ippool_addresses gauge\n",
    );
    text.push_str(&addresses);
    text.push_str(
        "# HELP glowplug_ippool_conflicts Addresses of a pool with two users.\n\
         # TYPE glowplug_ippool_conflicts gauge\n",
    );
    text.push_str(&conflicts);
    text.push_str(
        "# HELP glowplug_ippool_outside_addresses Addresses that are held from a pool that does not offer them any more.\n\
         # TYPE glowplug_ippool_outside_addresses gauge\n",
    );
    text.push_str(&outside);
    text.push_str(
        "# HELP glowplug_ippool_waiting_machines Machines and claims that wait for an address of a pool.\n\
         # TYPE glowplug_ippool_waiting_machines gauge\n",
    );
    text.push_str(&waiting);
    text
}
