//! The host's half: pools of addresses, who holds which, and the documents that tell the guest.
//!
//! A [`Pool`](pool::Pool) says which addresses of a network machines may have. A [`Registry`](registry::Registry) gives
//! them: it is an [`Allocator`](allocator::Allocator), which decides, over a [`Ledger`](ledger::Ledger), which remembers.
//! What it gives goes with a [`Template`](expand::Template) into the machine's document, and that onto a config drive.
//!
//! ```
//!
//! use glowplug::host::claim::{Claim, Machine, Request};
//! use glowplug::host::expand::{Grant, Template};
//! use glowplug::host::image::{ConfigDrive, Instance};
//! use glowplug::host::ledger::MemoryLedger;
//! use glowplug::host::pool::{Pool, TemplateFacts, read_pools};
//! use glowplug::host::registry::Registry;
//!
//! let (specs, mut findings) = read_pools(
//!     b"{name: workers, network: vlan10, addresses: [10.0.0.8-10.0.0.9], gateway: [10.0.0.1], machineNetwork: [{cidr: 10.0.0.0/24}]}",
//! );
//! let pool = Pool::new(&specs[0], &TemplateFacts::default(), &mut findings).ok_or("a mistake in the pool")?;
//! let gateways = pool.gateways.clone();
//! let template = Template::minimal([&pool.interface]);
//!
//! let machine = Machine { namespace: "clusters".into(), name: "worker-0".into(), uid: "5d30".into() };
//! let request = Request::of(&pool.name);
//! let claim = Claim { machine, created: 0, requests: vec![request], sticky: false };
//! let mut registry = Registry::open(MemoryLedger::default())?;
//! registry.resize([pool], &[], 0)?;
//! let allocations = registry.claim(&claim, 0)?;
//! assert_eq!(allocations[0].addresses, ["10.0.0.8/24".parse()?]);
//!
//! let grant = Grant { allocation: &allocations[0], gateways: &gateways, nameservers: &[], mac_address: None };
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
//! # The map
//!
//! | module | what it knows |
//! |---|---|
//! | [`address`] | addresses, ranges and prefixes as people write them, and what is refused of it |
//! | [`pool`] | which addresses may be given; pools in files, and where two of them overlap |
//! | [`nodepool`] | a NodePool's `bootstrapNetworkConfig`: a pool, and fields of a KubevirtMachineTemplate |
//! | [`free_ranges`] | what is free, of any size, as ranges |
//! | [`claim`] | the words: machine, claimant, claim, allocation, lease, record |
//! | [`allocator`] | decides; knows no disk, no clock and no Kubernetes |
//! | [`ledger`] | where decisions are durable: [`SqliteLedger`](ledger::SqliteLedger), or a store of the caller's |
//! | [`registry`] | both: whatever it answers is recorded before |
//! | [`records`] | what the objects of Kubernetes say about addresses, and the patches that say it to them |
//! | [`audit`] | the ledger and those records: taking them over; duplicates, strangers, who is missing |
//! | [`expand`] | a template and what was allocated make the machine's document |
//! | [`image`] | the config drive |
//! | [`metrics`] | the state of pools for Prometheus |
//! | [`timestamp`] | times as Kubernetes writes them |
//!
//! Nothing here speaks to a cluster: objects come as JSON, patches go as JSON, times come with each call.

pub mod address;
pub mod allocator;
pub mod audit;
pub mod change;
pub mod claim;
pub mod expand;
pub mod free_ranges;
pub mod image;
pub mod ledger;
pub mod metrics;
pub mod nodepool;
pub mod pool;
pub mod records;
pub mod registry;
pub mod timestamp;
