//! The program: options, start and stop, leader election, probes.

pub mod definitions;
pub mod election;
pub mod probes;
pub mod run;
pub mod watchdog;
