//! The command `release`.

use std::collections::BTreeSet;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use glowplug::host::Timestamp;
use glowplug::host::allocator::Allocator;
use glowplug::host::audit;
use glowplug::host::claim::{Allocation, Machine};
use glowplug::host::records::{Inventory, KubevirtMachine};
use serde::Serialize;
use slog::Logger;

use crate::input::{BATCH, LedgerFile, Machines, ReadMachines};
use crate::output::{VERSION, allocations_table, exit_code, print, print_json, say};

#[derive(Args)]
#[command(
    override_usage = "glowplugctl release --ledger <FILE>\n       {<MACHINE>... --uid <UID>...|--machines <FILE|->...} [OPTIONS]"
)]
pub(crate) struct Release {
    #[command(flatten)]
    ledger: LedgerFile,
    #[command(flatten)]
    machines: Machines,
    /// Also release machines that may still run
    ///
    /// Without this option, a machine of a list is released only if it has a deletionTimestamp, no guest in the lists, and no
    /// address that another guest of the lists reports. The lists must have VirtualMachines and VirtualMachineInstances of the
    /// namespace in which its VirtualMachine was, too. A machine with an infraClusterSecretRef is not released.
    #[arg(long, requires = "lists")]
    force: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct ReleasedDocument {
    version: u32,
    released: Vec<Allocation>,
}

pub(crate) fn release(args: Release, log: &Logger) -> Result<ExitCode> {
    let read = args.machines.read("release", log)?;
    let is_odd = read.has_diagnostics();
    let ReadMachines { machines, inventory } = read;
    let mut registry = args.ledger.open(&[], BTreeSet::new(), log)?;
    let mut released = Vec::new();
    let (machines, kept) = releasable(machines, inventory.as_ref(), args.force, registry.state()?);
    if let Some(inventory) = &inventory {
        audit::reserve_for_others(&mut registry, inventory, &machines, Timestamp::now())?;
    }
    for batch in machines.chunks(BATCH) {
        let waiting: BTreeSet<Machine> =
            registry.state()?.waiters().into_iter().map(|claim| claim.machine.clone()).collect();
        let done = registry.release_all(batch, Timestamp::now())?;
        let held: BTreeSet<&Machine> = done.held.iter().map(|allocation| &allocation.claimant.machine).collect();
        for machine in batch.iter().filter(|machine| !held.contains(machine) && !waiting.contains(machine)) {
            let other = namesake(machine, registry.state()?).map(|other| format!(", but {other} holds one"));
            say(format_args!("warning: {machine} holds no address{}", other.unwrap_or_default()));
        }
        released.extend(done.held);
    }
    if args.json {
        print_json(&ReleasedDocument { version: VERSION, released })?;
    } else {
        print(&allocations_table("RELEASED", &released))?;
    }
    Ok(if kept > 0 { ExitCode::FAILURE } else { exit_code(!is_odd) })
}

/// Returns the machines that can be released, and the number of other machines. Without `force`, a machine of a list
/// can be released only if the machine is being deleted, and the lists show the place of its VirtualMachine, but no guest
/// of the machine and no other user of its addresses. Otherwise the machine may still use its addresses.
fn releasable(
    machines: Vec<KubevirtMachine>,
    inventory: Option<&Inventory>,
    force: bool,
    allocator: &Allocator,
) -> (Vec<Machine>, usize) {
    let count = machines.len();
    let in_use = inventory.map(|inventory| audit::holders_in_use(allocator, inventory)).unwrap_or_default();
    let releasable = machines.into_iter().filter_map(|KubevirtMachine { machine, is_being_deleted, .. }| {
        let Some(inventory) = inventory.filter(|_| !force) else { return Some(machine) };
        let problem = if !is_being_deleted {
            "not being deleted, expected a deletionTimestamp, or --force".to_owned()
        } else if inventory.has_guest(&machine) {
            "its guest exists, expected neither a VirtualMachine nor an instance of it, or --force".to_owned()
        } else if in_use.contains(&machine) {
            "a guest or an unknown object of the lists has its address, expected no user of it, or --force".to_owned()
        } else if let Some(problem) = inventory.why_guest_is_unknown(&machine) {
            // With --force, every machine of the lists would be released.
            format!("{problem}, or the machine by name and --uid")
        } else {
            return Some(machine);
        };
        say(format_args!("error: {machine}: {problem}"));
        None
    });
    let releasable: Vec<Machine> = releasable.collect();
    let kept = count - releasable.len();
    (releasable, kept)
}

/// Returns a machine that holds an address and has the same name, but another UID. A wrong UID is a frequent mistake.
pub(crate) fn namesake<'a>(machine: &Machine, allocator: &'a Allocator) -> Option<&'a Machine> {
    let is_namesake = |other: &&Machine| {
        other.namespace == machine.namespace && other.name == machine.name && other.uid != machine.uid
    };
    allocator.leases().map(|(_, _, lease)| &lease.claimant.machine).find(is_namesake)
}
