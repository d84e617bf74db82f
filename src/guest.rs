//! Configures the guest: reads the kernel command line and the config drive, and writes files for dracut or the network
//! program.
//!
//! [`plan()`] makes all decisions and writes nothing; [`apply()`] writes the result. A plan has these steps:
//!
//! 1. Do nothing if kernel arguments of the boot loader or of the image configure the network.
//! 2. Decide whether the machine runs on KubeVirt.
//! 3. Find the drive.
//! 4. Read the network document of the drive.
//! 5. Render the network.

mod apply;
pub mod attributes;
mod command_line;
pub mod hostname;
mod options;
mod plan;
pub mod platform;
mod recorded;
pub mod report;
pub mod ssh_keys;
pub mod storage;
pub mod system;
#[cfg(feature = "vmware")]
pub mod vmware;

pub use apply::apply;
pub use command_line::CommandLine;
pub use options::{DefaultValue, OnError, OptionError, Options, Source, Wait};
pub use plan::{FRAGMENT, MachineData, Output, Plan, machine_data, plan};
pub use recorded::{PAGE, PLAN, Recorded, recorded};
