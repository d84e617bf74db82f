//! Access to an API server for all parts: objects, watches, requests, events and the client.

pub(crate) mod backoff;
pub mod client;
pub mod clock;
pub(crate) mod conditions;
pub(crate) mod digest;
pub(crate) mod edit;
pub mod events;
pub mod key;
pub(crate) mod newest;
pub mod object;
pub(crate) mod request;
pub(crate) mod shared_read;
pub mod term;
pub mod watch;
