//! Runs whole shell sessions with `glowplugctl`, and compares their complete output.
//!
//! A session is a file of `fixtures/host/sessions`. A line that begins with `$` is a command. `sh` runs the command in
//! a directory with a link `host` to `fixtures/host`. The output of the command follows: standard output, each line of
//! standard error after `! `, and the exit status in brackets unless the status is 0. TIME replaces times. A line `~ 5
//! minutes later` moves the times of missing machines in the file `ledger` five minutes into the past. `UPDATE=1`
//! rewrites the files; read the difference before you commit it.

#![allow(clippy::unwrap_used, reason = "a helper of a test may fail the test")]

mod enhancement;
mod faults;
mod help;
mod processes;
mod sessions;
