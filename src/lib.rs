//! The first-boot network of CoreOS machines on KubeVirt.
//!
//! Ignition needs an address before it can fetch the configuration of a machine. Where there is no DHCP, the address
//! must come from elsewhere: KubeVirt attaches a drive with a document that describes the network. This library reads
//! the drive, parses the document into a model, and renders the model as kernel arguments or as files for the program
//! that configures the network.
//!
//! ```
//! use glowplug::formats::{Meaning, read_network};
//! use glowplug::render::dracut;
//!
//! let document = br#"{
//!     "links": [{"id": "eno101", "type": "phy", "ethernet_mac_address": "52:54:00:12:34:56"}],
//!     "networks": [{"link": "eno101", "type": "ipv4", "ip_address": "192.168.1.100", "netmask": "255.255.255.0",
//!                   "routes": [{"network": "0.0.0.0", "netmask": "0.0.0.0", "gateway": "192.168.1.1"}]}],
//!     "services": [{"type": "dns", "address": "8.8.8.8"}]
//! }"#;
//!
//! let mut reading = read_network(document);
//! let Meaning::Network(network) = reading.meaning else { panic!("the document asks for a network") };
//! let rendered = dracut::render(&network, &mut reading.diagnostics);
//! assert_eq!(
//!     rendered.line,
//!     "ip=192.168.1.100::192.168.1.1:24::[52:54:00:12:34:56]:none nameserver=8.8.8.8"
//! );
//! assert_eq!(reading.diagnostics.kept(), []);
//! ```
//!
//! # Modules
//!
//! | module | contents |
//! |---|---|
//! | [`network`] | the model of a machine's network, without file formats and renderers |
//! | [`formats`] | readers that parse documents into the model |
//! | [`render`] | the model as input for the program that configures the network |
//! | [`diagnostic`] | diagnostics about a document: path, value, expectation, and whether the boot can continue |
//! | `drive` | a config drive: its label, its layout, and bounded reads of its files |
//! | `guest` | a run in the initramfs: from a command line and a drive to the files of a boot |
//! | `host` | address pools, their leases, and the documents and drives for the guest |
//! | `log` | the logger of the programs |
//! | `atomic_file` | files of the programs, written in one step |
//! | `terminal` | escapes and tables in the output of the programs |
//!
//! Imports point down: `guest → formats, render → network, diagnostic`, and `host → formats, render → network,
//! diagnostic`. `drive` imports no other module. `guest` and `host` do not import each other. Both use the same type
//! for a document, so the guest can read every document that the host writes.
//!
//! The feature `guest` adds the modules `drive` and `guest`, which run in the initramfs. The feature `vmware` adds the
//! kernel arguments of a VMware machine to `guest`. The feature `host` adds the module `host`. Three more features
//! extend `host`: `sqlite` adds a ledger in a file, `vsphere` adds the machines of OpenShift on vSphere, and `ctl`
//! enables both and adds the dependencies of glowplugctl. `log`, `atomic_file` and `terminal` are for the programs.
//! `network`, `formats`, `render` and `diagnostic` touch no file, no process and no clock.
//!
//! The programs, tests and benchmarks also use items that this documentation hides, such as `drive` and `guest`. The
//! hidden items may change in any release.

#[cfg(any(feature = "guest", feature = "ctl"))]
#[doc(hidden)]
pub mod atomic_file;
pub mod diagnostic;
#[cfg(feature = "guest")]
#[doc(hidden)]
pub mod drive;
pub mod formats;
#[cfg(feature = "guest")]
#[doc(hidden)]
pub mod guest;
#[cfg(feature = "host")]
pub mod host;
#[cfg(any(feature = "guest", feature = "ctl"))]
#[doc(hidden)]
pub mod log;
pub mod network;
pub mod render;
#[cfg(any(feature = "guest", feature = "host"))]
#[doc(hidden)]
pub mod terminal;

/// The version that `glowplug` and `glowplugctl` print: `VERSION`, or `VERSION (1a2b3c4d5e6f)` with the commit. `make`
/// passes the version with the commit in `GLOWPLUG_VERSION`. Other builds use the version of the package.
#[cfg(any(feature = "guest", feature = "host"))]
#[doc(hidden)]
pub const VERSION: &str = match option_env!("GLOWPLUG_VERSION") {
    Some(version) => version,
    None => env!("CARGO_PKG_VERSION"),
};
