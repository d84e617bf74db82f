//! What every part needs of an API server: objects, watches, requests, events and the client.

pub mod client;
pub mod events;
pub mod object;
pub mod watch;
