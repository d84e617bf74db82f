//! Runs the program of the guest on fake machines, and checks its files and output.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a helper of a test may fail the test")]

mod boots;
mod faults;
mod hostile;
mod machine;
mod metadata;
mod usage;
mod vmware;
