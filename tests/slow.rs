//! Tests that take minutes: boots of whole machines, and packages that are compiled from a clean tree.
//!
//! `cargo test` leaves this program out unless it is asked for with `--test slow`, as the Makefile does.

mod boot;
mod packaging;
mod support;
