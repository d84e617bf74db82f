//! The tests that need no real API server. `cluster.rs` runs the scenarios against a real API server.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![allow(clippy::disallowed_types, reason = "the objects come from the test, so their managed fields are readable")]

mod admission;
mod claims;
mod faults;
mod guide;
mod hosted;
mod hostile;
mod ipam_claims;
mod kinds;
mod layers;
mod ledger;
mod lines;
mod machines;
mod macs;
mod manifests;
mod monitoring;
mod plugin;
mod pools;
mod program;
mod registry;
mod rights;
mod serve;
mod skew;
mod support;
mod words;
