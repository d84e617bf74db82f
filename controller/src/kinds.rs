//! The kinds of objects that the controller reads and writes.

pub mod cluster_api;
pub(crate) mod guest;
pub mod ip_address_claim_status;
pub mod ipam_claim;
pub(crate) mod kubevirt_machine;
pub mod mac_pool;
pub mod neighbour;
pub mod network_data;
pub mod pool;
pub(crate) mod schema;
pub mod virtual_machine;

pub use glowplug::host::lease_name;
