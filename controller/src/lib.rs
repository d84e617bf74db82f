//! The controller of glowplug: allocates the first-boot addresses of machines on Kubernetes.
//!
//! | module | what it knows |
//! |---|---|
//! | [`api`] | the kinds of pools and leases, and the names of leases |
//! | [`index`] | which pools allocate addresses, and what their conditions say; pure |
//! | [`ledger`] | the library's ledger over lease objects: why no address has two holders |
//! | [`registry`] | the thread that decides and records, and the handle to it |
//! | [`pools`] | what the leader does with pools: the registry has them, and their status is right |
//! | [`watch`] | watches of objects, and which objects are gone |
//! | [`cluster_api`] | the kinds of Cluster API: claims, addresses, clusters, and the status of a claim |
//! | [`claims`] | Cluster API's IPAM provider: what is done for a claim, and when |
//! | [`election`] | which replica works |
//! | [`webhook`] | whether a change of a pool is allowed |
//! | [`serve`] | HTTP and TLS, and how connections end |
//! | [`diagnostics`], [`metrics`] | probes, and figures for Prometheus |
//! | [`client`] | the client of the API server |
//! | [`run`] | the program: options, start and end |
//!
//! The tests run against an API server in process (`make test-controller`) and against a real one (`make test-cluster`).

pub mod api;
pub mod claims;
pub mod client;
pub mod cluster_api;
pub mod diagnostics;
pub mod election;
pub mod index;
pub mod ledger;
pub mod metrics;
pub mod pools;
pub mod registry;
pub mod run;
pub mod serve;
pub mod watch;
pub mod webhook;
