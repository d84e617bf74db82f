//! Answers of `kubectl glowplug` about pools and machines. Only `adopt --apply` changes an object.
//!
//! | module | contents |
//! |---|---|
//! | [`status`], [`why`], [`audit`], [`plan`], [`adopt`] | one command each: what it reads, the answer as a value, and the tables for people |
//! | [`claim`] | the answer of `why` about a claim |
//! | [`verdict`] | the state of a machine, the reason, and what a person can do |
//! | [`event`] | the events of the controller about a machine |
//! | [`election`] | which replica of the controller leads |
//! | [`waiting`] | claims and machines that wait or are refused |
//! | `file` | the pools of a file |
//! | [`held`] | the addresses that an object holds |
//! | [`refused`] | the machines that the webhook refuses because of their pools |
//! | [`reserved`] | the addresses that no machine gets because of an object or a guest |
//! | [`read`] | requests: pages, progress, missing rights |
//! | `lists` | the objects of a cluster |
//! | `leader` | what a leader would know after a start in this cluster |
//! | [`machines`] | the effects of pools on machines that exist already |
//! | [`mod@write`] | changes of objects |
//! | [`text`] | tables, JSON, and the style of table headings |
//!
//! The commands call the same functions as the controller, its webhooks and `glowplugctl`. The plugin itself decides
//! only which machines need a decision of a person, and what `adopt` writes.

pub mod adopt;
pub mod audit;
pub mod claim;
pub mod election;
pub mod event;
pub mod file;
pub mod held;
mod leader;
mod lists;
pub mod machines;
pub mod plan;
pub mod read;
pub mod refused;
pub mod reserved;
pub mod status;
pub mod text;
pub mod verdict;
pub mod waiting;
pub mod why;
pub mod write;
