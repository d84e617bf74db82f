//! Whole runs of the host's program: sessions of a shell, with everything that they print.
//!
//! A session is a file of `fixtures/host/sessions`. A line that begins with `$` is a command, for `sh` in an empty directory
//! in which `host` is `fixtures/host`; below it stands what it prints: standard output as it is, each line of standard
//! error after `! `, and its exit code in brackets unless it is 0. Times stand there as TIME. A line `~ 5 minutes later`
//! has what is noted in `ledger` be noted so much earlier.
//! `UPDATE=1` writes the files again, and the difference is to be read.

#![allow(clippy::unwrap_used, reason = "a helper of a test may fail the test")]

mod enhancement;
mod faults;
mod help;
mod processes;
mod sessions;
