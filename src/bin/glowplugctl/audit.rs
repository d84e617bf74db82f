//! The commands `rebuild` and `audit`.

use std::fmt;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::Args;
use glowplug::host::Timestamp;
use glowplug::host::audit::{self, Audit, Missing, Options};
use glowplug::host::claim::{Allocation, Machine};
use glowplug::host::records::ObjectDiagnostic;
use serde::Serialize;

use crate::input::{LedgerFile, Lists, Pools, ServedPools, fetched, read_objects};
use crate::output::{VERSION, allocations_table, exit_code, print, print_json, say, sections, table, whole_seconds};

/// The ledger, and everything that it is compared with.
#[derive(Args)]
struct Sources {
    #[command(flatten)]
    pools: Pools,
    #[command(flatten)]
    ledger: LedgerFile,
    #[command(flatten)]
    lists: Lists,
}

#[derive(Args)]
#[command(
    override_usage = "glowplugctl rebuild --pool <FILE> --ledger <FILE> --machines <FILE|->...\n       [OPTIONS]"
)]
pub(crate) struct Rebuild {
    #[command(flatten)]
    sources: Sources,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
#[command(override_usage = "glowplugctl audit --pool <FILE> --ledger <FILE> --machines <FILE|->...\n       [OPTIONS]")]
pub(crate) struct AuditArgs {
    #[command(flatten)]
    sources: Sources,
    /// Release machines that two audits missed
    ///
    /// List the KubevirtMachines, VirtualMachines and VirtualMachineInstances of all namespaces. Fetch these lists into files,
    /// at least 5 minutes after the first audit that missed the machine. The modification time of a file counts as the time of
    /// its list.
    #[arg(long)]
    release_missing: bool,
    /// Release at most this many machines
    ///
    /// The default is 10, or 5 % of the leases if that is more. If more machines are missing, the command releases none of them.
    #[arg(long, value_name = "NUMBER", requires = "release_missing")]
    max_release: Option<usize>,
    /// Show what would be released
    #[arg(long, requires = "release_missing")]
    dry_run: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Rebuilt {
    version: u32,
    objects: usize,
    added: usize,
    known: usize,
    diagnostics: Vec<String>,
    /// Machines that have neither a record nor a lease.
    without_record: Vec<Machine>,
}

pub(crate) fn rebuild(args: Rebuild) -> Result<ExitCode> {
    let Sources { pools, ledger, lists: Lists { lists } } = args.sources;
    let ServedPools { pools, deleted, .. } = pools.read_whole()?;
    let (objects, count) = read_objects(&lists)?;
    let inventory = objects.inventory();
    let mut registry = ledger.open(&pools, deleted)?;
    let now = Timestamp::now();
    let audit::Rebuilt { adoption, without_record } = audit::rebuild(&mut registry, &inventory, now)?;
    let diagnostics = diagnostics(&inventory.diagnostics, &adoption.mismatches);
    let is_right = diagnostics.is_empty() && without_record.is_empty();
    if args.json {
        let (added, known) = (adoption.adopted, adoption.known);
        print_json(&Rebuilt { version: VERSION, objects: count, added, known, diagnostics, without_record })?;
    } else {
        let counts = [count, adoption.adopted, adoption.known, diagnostics.len(), without_record.len()];
        let head = ["OBJECTS", "ADDED", "KNOWN", "DIAGNOSTICS", "WITHOUT RECORD"];
        print(&table(head, &[counts.map(|count| count.to_string())]))?;
        diagnostics.iter().for_each(|diagnostic| say(format_args!("error: {diagnostic}")));
        for machine in &without_record {
            say(format_args!(
                "warning: {machine}: no record and no lease, expected a record: the machine may use an unknown address"
            ));
        }
    }
    Ok(exit_code(is_right))
}

fn diagnostics(diagnostics: &[ObjectDiagnostic], mismatches: &[impl fmt::Display]) -> Vec<String> {
    diagnostics.iter().map(ToString::to_string).chain(mismatches.iter().map(ToString::to_string)).collect()
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Audited {
    version: u32,
    objects: usize,
    /// Number of addresses that objects record and the ledger lacks.
    unrecorded: usize,
    diagnostics: Vec<String>,
    /// Reasons why no machine was released.
    brakes: Vec<String>,
    missing: Vec<AuditedMissing>,
    served: Vec<Allocation>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct AuditedMissing {
    #[serde(flatten)]
    machine: Machine,
    /// Time at which an earlier audit first missed the machine. `None`: no earlier audit missed it.
    missed_before: Option<String>,
    /// Earliest time at which an audit may release the machine.
    releasable_from: String,
    released: Option<Vec<Allocation>>,
}

impl From<&Missing> for AuditedMissing {
    fn from(missing: &Missing) -> Self {
        Self {
            machine: missing.machine.clone(),
            missed_before: missing.since.map(whole_seconds),
            releasable_from: releasable_from(missing).to_string(),
            released: missing.released.clone(),
        }
    }
}

/// Rounds up to whole seconds, so that the printed time is never too early.
fn releasable_from(missing: &Missing) -> String {
    let almost_a_second = Duration::from_millis(999);
    whole_seconds(missing.releasable_from.saturating_add(almost_a_second).unwrap_or(Timestamp::MAX))
}

pub(crate) fn audit(args: AuditArgs) -> Result<ExitCode> {
    let Sources { pools, ledger, lists: Lists { lists } } = args.sources;
    let ServedPools { pools, deleted, .. } = pools.read_whole()?;
    let (objects, count) = read_objects(&lists)?;
    if count == 0 {
        // If the list is empty, all machines would be missing. A connection to the wrong cluster also gives an empty
        // list.
        bail!("no object in the lists, expected those of all machines");
    }
    let inventory = objects.inventory();
    let mut registry = ledger.open(&pools, deleted)?;
    let now = Timestamp::now();
    let fetched = fetched(&lists);
    let options = Options {
        // Without a release the time explains when a release would be possible.
        fetched: if args.release_missing { fetched? } else { fetched.unwrap_or(now) },
        release: args.release_missing,
        max_release: args.max_release,
        dry_run: args.dry_run,
    };
    let audit = audit::audit(&mut registry, &inventory, &options, now)?;
    let Audit { adoption, disagreements, missing, brakes, served } = audit;
    let mut diagnostics = diagnostics(&inventory.diagnostics, &adoption.mismatches);
    diagnostics.extend(disagreements.iter().map(ToString::to_string));
    let is_right = diagnostics.is_empty() && missing.iter().all(|missing| missing.released.is_some());
    let status = if brakes.is_empty() { exit_code(is_right) } else { ExitCode::FAILURE };
    if args.json {
        print_json(&Audited {
            version: VERSION,
            objects: count,
            unrecorded: adoption.adopted,
            diagnostics,
            brakes: brakes.iter().map(ToString::to_string).collect(),
            missing: missing.iter().map(AuditedMissing::from).collect(),
            served,
        })?;
        return Ok(status);
    }
    let counts = [count, adoption.known, adoption.adopted, diagnostics.len(), missing.len()];
    let head = ["OBJECTS", "KNOWN", "UNRECORDED", "DIAGNOSTICS", "MISSING"];
    let summary = table(head, &[counts.map(|count| count.to_string())]);
    let released = missing.iter().filter_map(|missing| missing.released.as_ref()).flatten();
    let head = if args.dry_run { "TO RELEASE" } else { "RELEASED" };
    print(&sections([summary, allocations_table(head, released), allocations_table("SERVED", &served)]))?;
    diagnostics.iter().for_each(|diagnostic| say(format_args!("error: {diagnostic}")));
    brakes.iter().for_each(|brake| say(format_args!("error: nothing released: {brake}")));
    for missing in &missing {
        let Missing { machine, since, released, .. } = missing;
        let since = since.map(|since| format!(" since {since:.0}")).unwrap_or_default();
        if released.is_some() {
            let what = if args.dry_run { "would be released" } else { "released" };
            say(format_args!("note: {machine}: missing{since}, {what}"));
        } else if missing.since.is_some() && missing.releasable_from <= options.fetched {
            say(format_args!("error: {machine}: missing{since}, --release-missing would release the machine"));
        } else {
            let from = releasable_from(missing);
            say(format_args!("error: {machine}: missing{since}, expected lists fetched after {from} for a release"));
        }
    }
    Ok(status)
}
