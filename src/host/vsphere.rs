//! Static addresses of vSphere machines on OpenShift: the network devices of Machine API, and the `hosts` of the
//! installer.
//!
//! Machine API gives a vSphere machine its network as kernel arguments. Machine API takes addresses from the Machine
//! itself (`ipAddrs`) and from pools (`addressesFromPools`): for each pool, Machine API creates an `IPAddressClaim` and
//! waits for its `IPAddress`. The installer takes the addresses of the first machines from `platform.vsphere.hosts` of
//! its `install-config.yaml`.
//!
//! - [`network_kargs`] makes the kernel arguments of a Machine, as Machine API does.
//! - [`read_install_config`] checks the hosts of the installer. [`InstallHosts::machines`] writes the Machines of the
//!   compute hosts.

mod device;
mod hosts;
mod machine;
mod manifests;
#[cfg(test)]
mod tests;

pub use crate::render::vsphere::PROPERTY;
pub use device::{AddressesFromPool, NetworkDeviceSpec};
pub use hosts::{Host, InstallHosts, Role, read_install_config};
pub use machine::{KargsReading, NetworkKargs, network_kargs};
