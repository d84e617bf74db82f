//! The first-boot network of CoreOS machines on KubeVirt.
//!
//! A machine that is to fetch its configuration with Ignition needs an address before anything else, and where there is
//! no DHCP, somebody has to tell it. KubeVirt attaches a drive with a document about the network; this library reads the
//! drive, says what the document means, and renders it for the program that brings the network up: as kernel arguments
//! or as files.
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
//! let rendered = dracut::render(&network, &mut reading.findings);
//! assert_eq!(
//!     rendered.line,
//!     "ip=192.168.1.100::192.168.1.1:24::[52:54:00:12:34:56]:none nameserver=8.8.8.8"
//! );
//! assert_eq!(reading.findings.kept(), []);
//! ```
//!
//! # The map
//!
//! | module | what it knows |
//! |---|---|
//! | [`network`] | the model: what the machine's network should be. No file format, no renderer |
//! | [`formats`] | documents, and the model that they mean |
//! | [`render`] | the model, written for the program that brings the network up |
//! | [`finding`] | what is to be said about a document: place, value, expectation, and whether the boot may go on |
//! | `drive` | a config drive: its label, its layout, and reading it without trust |
//! | `guest` | from a command line and a drive to the files of a boot |
//! | `host` | pools of addresses, who holds which, and the documents and drives that tell the guest |
//! | `log` | the logger of the programs |
//!
//! Nobody imports upwards: `guest → formats, render, drive → network, finding`, and `host → formats → network, finding`.
//! Guest and host never know each other; a document is one type for both, so the host cannot write what the guest cannot
//! read. `drive` and `guest` come with the feature `guest`, which is what runs in the initramfs, `host` with the feature
//! `host`, and `log` with either. The first four touch no file, no process and no clock.

#[cfg(feature = "guest")]
pub mod drive;
pub mod finding;
pub mod formats;
#[cfg(feature = "guest")]
pub mod guest;
#[cfg(feature = "host")]
pub mod host;
#[cfg(any(feature = "guest", feature = "host"))]
pub mod log;
pub mod network;
pub mod render;

/// The version of both programs: `0.1.0`, with the commit, `0.1.0 (1a2b3c4d5e6f)`, where the build is told in
/// `GLOWPLUG_VERSION`, as `make` does.
#[cfg(any(feature = "guest", feature = "host"))]
pub const VERSION: &str = match option_env!("GLOWPLUG_VERSION") {
    Some(version) => version,
    None => env!("CARGO_PKG_VERSION"),
};
