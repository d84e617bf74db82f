//! Whole runs of the guest's program on a machine in a directory, with their files and output.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a helper of a test may fail the test")]

mod boots;
mod faults;
mod hostile;
mod machine;
mod metadata;
mod usage;
mod vmware;
