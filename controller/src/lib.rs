//! The controller of glowplug: allocates the first-boot addresses of machines on Kubernetes.
//!
//! | module | contents |
//! |---|---|
//! | [`cluster`] | access to an API server for all parts: objects, watches, requests, events, the client |
//! | [`kinds`] | the kinds of objects: pools, leases, machines, claims |
//! | [`ledger`] | the ledger of the library in lease objects, and the thread that allocates and records addresses |
//! | [`pools`] | which pools allocate addresses and which machines they serve; their conditions; pools of NodePools |
//! | `passes` | decides which names get a pass and when, and repeats failed passes |
//! | [`claims`] | IPAM provider for Cluster API and for IPAMClaims |
//! | [`macs`] | MAC addresses of VirtualMachines: leases, assignment, release, collisions |
//! | [`reports`] | reservations of addresses that guests report, and of addresses of Services and Clusters |
//! | [`webhook`] | admission of pools, machines and instances |
//! | [`machines`] | machines of KubeVirt: what each VirtualMachine needs |
//! | [`explain`] | answers of `kubectl glowplug` about pools and machines |
//! | [`program`] | options, start and stop, leader election, definitions, probes |
//! | [`serve`], [`metrics`], `repeated` | HTTP and TLS servers; metrics for Prometheus; log lines for repeated causes |
//!
//! The tests run against an API server in the test process (`make test-controller`) and against a real API server
//! (`make test-cluster`).

pub mod claims;
pub mod cluster;
pub mod explain;
pub mod kinds;
pub mod ledger;
pub mod machines;
pub mod macs;
pub mod metrics;
mod passes;
pub mod pools;
pub mod program;
mod repeated;
pub mod reports;
pub mod serve;
#[cfg(test)]
mod variants;
pub mod webhook;
