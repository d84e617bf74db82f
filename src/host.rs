//! The host side: pools of addresses, the leases of machines, and the documents that configure the guests.
//!
//! A [`Pool`](pool::Pool) lists the addresses of a network that machines may get. A [`Registry`](registry::Registry)
//! allocates these addresses. It joins an [`Allocator`](allocator::Allocator), which decides, and a
//! [`Ledger`](ledger::Ledger), which stores the decisions. A [`Template`](expand::Template) puts the allocated
//! addresses into the document of the machine, and the config drive carries this document.
//!
//! ```
//! use glowplug::host::Timestamp;
//! use glowplug::host::claim::{Claim, Machine, Request};
//! use glowplug::host::expand::{Grant, Template};
//! use glowplug::host::image::{ConfigDrive, Instance};
//! use glowplug::host::ledger::MemoryLedger;
//! use glowplug::host::pool::Pool;
//! use glowplug::host::registry::Registry;
//!
//! let pools = Pool::parse(
//!     b"{name: workers, network: vlan10, addresses: [10.0.0.8-10.0.0.9], gateway: [10.0.0.1], machineNetwork: [{cidr: 10.0.0.0/24}]}",
//! )?;
//! let template = Template::minimal([&pools[0].interface()]);
//!
//! let machine = Machine::new("clusters", "worker-0", "5d30");
//! let claim = Claim::new(machine, Timestamp::now()).request(Request::of(pools[0].name()));
//! let mut registry = Registry::open(MemoryLedger::default())?;
//! registry.resize(pools.clone(), &[], Timestamp::now())?;
//! // No machine uses this network yet. Otherwise, call `rebuild` with the objects of the machines.
//! registry.open_addresses(Timestamp::now())?;
//! let allocations = registry.claim(&claim, Timestamp::now())?;
//! assert_eq!(allocations[0].addresses, ["10.0.0.8/24".parse()?]);
//!
//! let settings = pools[0].settings_for(&allocations[0].addresses, &|_| None).map_err(|it| format!("no subnet has {it}"))?;
//! let grant = Grant { allocation: &allocations[0], settings, mac_address: None, is_named: true };
//! let document = template.expand(&[grant])?;
//!
//! let Machine { namespace, name, .. } = &claim.machine;
//! let instance =
//!     Instance { namespace, name, uuid: None, hostname: None, instance_type: None, public_keys: &[] };
//! let meta_data = instance.meta_data_json();
//! let drive = ConfigDrive {
//!     meta_data: meta_data.as_bytes(),
//!     network_data: Some(document.text().as_bytes()),
//!     user_data: b"",
//! };
//! assert_eq!(drive.image()?.len(), 1024 * 1024);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Modules
//!
//! | module | contents |
//! |---|---|
//! | [`address`] | ranges and sets of addresses |
//! | [`pool`] | the addresses that may be allocated; pools in files, and overlaps between pools |
//! | [`claim`] | types for machines, claimants, claims, allocations, leases and records |
//! | [`allocator`] | decides which address each machine gets; no disk, no clock, no Kubernetes |
//! | [`ledger`] | durable stores of decisions: [`SqliteLedger`](ledger::SqliteLedger), or a store of the caller |
//! | [`change`] | state changes, which allocator and ledger share |
//! | [`registry`] | joins an allocator and a ledger: each decision is recorded before the caller gets its result |
//! | [`records`] | records of addresses on Kubernetes objects: reading them, and the patches that write them |
//! | [`expand`] | makes the document of a machine from a template and the allocated addresses |
//! | [`image`] | the config drive |
//! | [`metrics`] | the state of pools for Prometheus |
//!
//! # Which records count
//!
//! At each start and after each change of pools, read the objects of all machines that may use the networks of the
//! pools with [`records::Objects`], and pass them to [`Registry::rebuild`](registry::Registry::rebuild). Only then, the
//! registry allocates the new addresses of the pools, and no address of these machines is allocated to another machine:
//!
//! - A record on a machine becomes a lease if a pool that serves the namespace of the machine offers the address.
//! - A record reserves its address if the address is excluded, held by another machine, or reserved on the network.
//! - An address that a running guest reports is reserved if a pool has the address, whichever namespaces the pool
//!   serves.
//! - A record in a namespace that no pool of the network serves is ignored, because every user can write a record.
//!
//! No module connects to a cluster. The caller passes objects (as JSON) and times with each call, and receives patches
//! (as JSON).

pub mod address;
pub mod allocator;
#[doc(hidden)]
pub mod audit;
pub mod change;
pub mod claim;
#[doc(hidden)]
pub mod counts;
pub mod expand;
#[doc(hidden)]
pub mod free_ranges;
mod growth;
pub mod image;
#[doc(hidden)]
pub mod lease_name;
#[doc(hidden)]
pub mod leases_file;
pub mod ledger;
#[doc(hidden)]
pub mod may_record;
mod members;
pub mod metrics;
#[doc(hidden)]
pub mod nodepool;
pub mod pool;
#[doc(hidden)]
pub mod pool_object;
#[doc(hidden)]
pub mod pools_file;
pub mod records;
pub mod registry;
#[cfg(feature = "vsphere")]
#[doc(hidden)]
pub mod vsphere;

pub use jiff::Timestamp;
