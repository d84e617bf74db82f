//! What monitoring asks: text in Prometheus' exposition format, and when a pool counts as exhausted.
//!
//! The name and the label of `kubevirt_ippool_exhausted`, and the condition, are the enhancement's
//! (openshift/enhancements pull request 1855); the others stand beside it.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::allocator::{Allocator, Usage};

/// The condition of a NodePool with an exhausted pool. Its status is then `true`.
pub const EXHAUSTED_CONDITION: &str = "KubevirtIPPoolExhausted";

/// Whether the next machine gets no address: of one family of the pool there is none left.
#[must_use]
pub fn is_exhausted(usage: &[Usage]) -> bool {
    usage.iter().any(|usage| usage.free == 0)
}

/// The metrics of all pools that an allocator has, by name.
///
/// - `kubevirt_ippool_exhausted{cluster,namespace}`: 1 when a pool of the hosted cluster is exhausted, else 0. Pools of no
///   known cluster have an empty label. The namespace is that of the cluster and its NodePools.
/// - `glowplug_ippool_addresses{cluster,pool,network,family,state}`: how many addresses are in each state. The states
///   `reserved`, `used`, `conflicting`, `reuse_delay` and `free` add up to all that the pool has.
/// - `glowplug_ippool_outside_addresses{cluster,pool,network,family}`: how many are held from the pool although it does not
///   offer them, or no longer.
/// - `glowplug_ippool_waiting_machines{cluster,pool,network}`: how many machines wait for an address of the pool.
#[must_use]
pub fn text(allocator: &Allocator, now: u64) -> String {
    let mut exhausted = BTreeMap::new();
    let (mut addresses, mut outside, mut waiting) = (String::new(), String::new(), String::new());
    let pools: Vec<_> = allocator.pools().cloned().collect();
    for pool in pools {
        let cluster = pool.cluster.unwrap_or_default();
        let usage = allocator.usage(&pool.name, now).unwrap_or_default();
        // Two hosted clusters of one name are in two namespaces, which are those of their NodePools.
        let namespace = pool.name.split_once('/').map_or("", |(namespace, _)| namespace).to_owned();
        *exhausted.entry((cluster.clone(), namespace)).or_insert(false) |= is_exhausted(&usage);
        // What stands in them is of an alphabet that needs no escapes.
        let labels = format!(r#"cluster="{cluster}",pool="{}",network="{}""#, pool.name, pool.network);
        for usage in usage {
            let states = [
                ("reserved", usage.reserved),
                ("used", usage.used),
                ("conflicting", usage.conflicting),
                ("reuse_delay", usage.reuse_delay),
                ("free", usage.free),
            ];
            let labels = format!(r#"{labels},family="{}""#, usage.family);
            let _ = writeln!(outside, "glowplug_ippool_outside_addresses{{{labels}}} {}", usage.outside);
            for (state, count) in states {
                let _ = writeln!(addresses, r#"glowplug_ippool_addresses{{{labels},state="{state}"}} {count}"#);
            }
        }
        let is_for = |name: &str| pool.name == name;
        let waiters = allocator.waiters();
        let waiters = waiters.iter().filter(|claim| claim.requests.iter().any(|request| is_for(&request.pool)));
        let _ = writeln!(waiting, "glowplug_ippool_waiting_machines{{{labels}}} {}", waiters.count());
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
        "# HELP glowplug_ippool_outside_addresses Addresses that are held from a pool that does not offer them any more.\n\
         # TYPE glowplug_ippool_outside_addresses gauge\n",
    );
    text.push_str(&outside);
    text.push_str(
        "# HELP glowplug_ippool_waiting_machines Machines that wait for an address of a pool.\n\
         # TYPE glowplug_ippool_waiting_machines gauge\n",
    );
    text.push_str(&waiting);
    text
}
