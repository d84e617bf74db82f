//! Reads cloud-init's network-config: version 1, and the parts of version 2 that netplan defines.
//!
//! `canonical/cloud-init:cloudinit/net/network_state.py` decides what a document means. Where cloud-init passes a
//! document on to netplan, `canonical/netplan:doc/netplan-yaml.md` decides.
//!
//! This module reads the tree of the document directly, without a type for each version: both versions express the same
//! settings with different names ([`Dialect`](converter::Dialect)).
//!
//! `docs/cloud-init.md` lists every difference from the meaning of a document in cloud-init 22.4, with the reason.
//! `tests/cloud_init` checks this list.

mod converter;
mod options;
mod routes;
#[cfg(test)]
mod tests;
mod v1;
mod v2;
#[cfg(feature = "host")]
mod write;

pub(super) use v1::convert as convert_v1;
pub(super) use v2::convert as convert_v2;
#[cfg(feature = "host")]
pub use write::{have_same_network, write_network_config};
