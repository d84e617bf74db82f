//! The controller of glowplug: allocates the first-boot addresses of machines on Kubernetes.
//!
//! | module | contents |
//! |---|---|
//! | [`api`] | the kinds of pools and leases, and the names of leases |
//! | [`index`] | which pools allocate addresses, and their conditions; pure |
//! | [`ledger`] | the ledger of the library, stored in lease objects |
//! | [`registry`] | the thread that allocates and records addresses, and its handle |
//! | [`pools`] | work of the leader on pools: registers them and updates their status |
//! | [`watch`] | watches of objects, with detection of deleted objects |
//! | [`cluster_api`] | the kinds of Cluster API: claims, addresses, clusters, and the status of a claim |
//! | [`claims`] | IPAM provider for Cluster API and for IPAMClaims: requests for claims |
//! | [`ipam_claim`] | the kind IPAMClaim: addresses that a network provider keeps for a machine |
//! | [`machine`] | members of a VirtualMachine, and the labels of capk and HyperShift |
//! | [`object`] | objects of lists, watches and reviews, which no user can make unreadable |
//! | [`namespaces`] | the label of the namespaces with machines of pools |
//! | [`node_pools`] | the condition of NodePools, and the pools that are derived from them |
//! | [`selection`] | which pools serve a machine, and on which interface |
//! | [`definitions`] | whether the cluster has the definitions of this version |
//! | [`events`] | events of objects |
//! | [`opening`] | the first claims of a leader, in the order of their creation |
//! | `passes` | which names get a pass, when, and again after a failure |
//! | [`macs`] | MAC addresses of VirtualMachines: leases, assignment, release, collisions |
//! | [`machines`] | machines of KubeVirt: what each VirtualMachine needs |
//! | [`election`] | leader election |
//! | [`webhook`] | whether a change of a pool is allowed |
//! | [`serve`] | HTTP and TLS servers, and their graceful end |
//! | [`diagnostics`], [`metrics`] | probes, and metrics for Prometheus |
//! | [`client`] | client of the API server |
//! | [`run`] | the program: options, start and stop |
//!
//! The tests run against an API server in the test process (`make test-controller`) and against a real API server
//! (`make test-cluster`).

pub mod api;
pub mod claims;
pub mod client;
pub mod cluster_api;
pub mod definitions;
pub mod diagnostics;
pub mod election;
pub mod events;
#[cfg(test)]
mod hostile;
pub mod index;
pub mod ipam_claim;
pub mod ledger;
pub mod machine;
pub mod machines;
pub mod macs;
pub mod metrics;
pub mod namespaces;
pub mod node_pools;
pub mod object;
pub mod opening;
mod passes;
pub mod pools;
pub mod registry;
pub mod run;
pub mod selection;
pub mod serve;
pub mod watch;
pub mod webhook;
