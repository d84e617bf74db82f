//! The controller of glowplug: allocates the first-boot addresses of machines on Kubernetes.

pub mod api;
pub mod client;
pub mod diagnostics;
pub mod election;
pub mod ledger;
pub mod metrics;
pub mod run;
pub mod serve;
