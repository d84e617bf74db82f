//! Slow tests, for example boots of virtual machines and builds of packages from a clean tree.
//!
//! `cargo test` runs this program only with `--test slow`, as in the Makefile.

mod afterburn;
mod boot;
mod netplan;
mod network_manager;
mod packaging;
mod support;
