//! The leases on the API server, and the thread that allocates and records addresses.

pub mod leases;
pub mod registry;
