//! Tests that take minutes: boots of virtual machines, packages that are compiled from a clean tree, and afterburn,
//! which must be compiled once.
//!
//! `cargo test` runs this program only with `--test slow`, as in the Makefile.

mod afterburn;
mod boot;
mod netplan;
mod network_manager;
mod packaging;
mod support;
