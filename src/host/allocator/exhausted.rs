//! The message about an exhausted pool, for errors, events and conditions.

use std::fmt;

use crate::network::Family;

/// The beginning of the message about an exhausted pool, before the name of the interface. The enhancement
/// (openshift/enhancements pull request 1855) prescribes this string, and users search for it.
#[doc(hidden)]
pub const EXHAUSTED_MESSAGE: &str = "No available IPs in pool for interface ";

/// The message about exhausted pools, each with the families that have no free address.
#[doc(hidden)]
pub fn exhausted_message<'p>(
    interface: impl fmt::Display,
    pools: impl IntoIterator<Item = (&'p str, Vec<Family>)>,
) -> String {
    let pools = pools.into_iter().map(|(pool, families)| {
        let families: Vec<String> = families.into_iter().map(|family| family.to_string()).collect();
        format!("pool {pool}, {}", families.join(" and "))
    });
    format!("{EXHAUSTED_MESSAGE}{interface}: {}", pools.collect::<Vec<_>>().join("; "))
}
