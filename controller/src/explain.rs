//! What `kubectl glowplug` says about pools and machines. Only `adopt --apply` changes an object.
//!
//! | module | contents |
//! |---|---|
//! | [`status`], [`why`], [`audit`] | one command each: what it reads, the answer as a value, and the tables for people |
//! | [`read`] | requests: pages, progress, missing rights |
//! | `lists` | the objects of a cluster, as the rules of the library and of the controller work on them |
//! | [`text`] | tables, JSON, and the colour of heads |
//!
//! No command has a rule of its own: each asks the functions that the controller, its webhooks and `glowplugctl` ask.

pub mod adopt;
pub mod audit;
mod file;
mod lists;
pub mod plan;
pub mod read;
pub mod reserved;
pub mod status;
pub mod text;
pub mod why;
