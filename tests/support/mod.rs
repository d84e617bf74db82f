//! Helpers that several test modules share, for example generators of documents and networks, and comparisons of
//! networks.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a helper of a test may fail the test")]
#![allow(dead_code, reason = "`quick` and `slow` use different parts of these modules")]

pub(crate) mod cases;
pub(crate) mod documents;
pub(crate) mod host_documents;
pub(crate) mod imports;
pub(crate) mod models;
pub(crate) mod network_config;
pub(crate) mod network_manager;
pub(crate) mod profiles;
pub(crate) mod random;
pub(crate) mod shell;
pub(crate) mod state;
pub(crate) mod versions;

use std::ops::Range;

use glowplug::host::Timestamp;

/// Returns a time from its milliseconds since 1970.
pub(crate) fn time(milliseconds: u64) -> Timestamp {
    Timestamp::from_millisecond(milliseconds.try_into().unwrap()).unwrap()
}

/// Returns the seeds of an environment variable, for example of `READERS_SEEDS=17..18`, if the variable is set.
pub(crate) fn seeds_of(variable: &str) -> Option<Range<u64>> {
    let range = std::env::var(variable).ok()?;
    let Some((first, end)) = range.split_once("..") else { panic!("{variable} is a range such as 17..18") };
    Some(first.parse().unwrap()..end.parse().unwrap())
}

/// Whether `UPDATE=1` is set: tests then rewrite the expected files with the current output.
pub(crate) fn is_update() -> bool {
    std::env::var_os("UPDATE").is_some()
}
