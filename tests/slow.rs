//! Tests that take minutes: boots of whole machines, and packages that are compiled from a clean tree.
//!
//! `cargo test` runs this program only with `--test slow`, as in the Makefile.

mod boot;
mod packaging;
mod support;
