//! The controller of glowplug: allocates the first-boot addresses of machines on Kubernetes.

pub mod api;
pub mod client;
