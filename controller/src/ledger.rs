//! The leases on the API server, and the thread that allocates and records addresses.

pub(crate) mod adoption;
pub mod leases;
pub(crate) mod left_guests;
pub mod registry;
pub mod types;
