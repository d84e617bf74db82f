//! `rebuild` and `audit`.

use std::fmt;
use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::Args;
use glowplug::host::audit::{self, Audit, Missing};
use glowplug::host::records::ObjectFinding;
use glowplug::host::timestamp::Timestamp;
use serde::Serialize;

use crate::input::{LedgerFile, Lists, Pools, read_objects};
use crate::output::{
    Given, ListedMachine, VERSION, allocations_table, exit_code, given, print, print_json, say, sections, table,
};

#[derive(Args)]
#[command(
    override_usage = "glowplugctl rebuild --pool <FILE> --ledger <FILE> --machines <FILE|->...\n       [OPTIONS]"
)]
pub(crate) struct Rebuild {
    #[command(flatten)]
    pools: Pools,
    #[command(flatten)]
    ledger: LedgerFile,
    #[command(flatten)]
    lists: Lists,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
#[command(override_usage = "glowplugctl audit --pool <FILE> --ledger <FILE> --machines <FILE|->...\n       [OPTIONS]")]
pub(crate) struct AuditArgs {
    #[command(flatten)]
    pools: Pools,
    #[command(flatten)]
    ledger: LedgerFile,
    #[command(flatten)]
    lists: Lists,
    /// Release machines that two audits missed
    ///
    /// The audits have to be at least 5 minutes apart. The lists have to be complete.
    #[arg(long)]
    release_missing: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Rebuilt {
    version: u32,
    objects: usize,
    added: usize,
    known: usize,
    findings: Vec<String>,
}

pub(crate) fn rebuild(args: Rebuild) -> Result<ExitCode> {
    let pools = args.pools.read_whole()?;
    let (objects, count) = read_objects(&args.lists.lists)?;
    let inventory = objects.inventory();
    let mut registry = args.ledger.open(pools)?;
    let now = Timestamp::now().0;
    let adoption = audit::rebuild(&mut registry, &inventory, now)?;
    let findings = findings(&inventory.findings, &adoption.mismatches);
    let is_right = findings.is_empty();
    let rebuilt =
        Rebuilt { version: VERSION, objects: count, added: adoption.adopted, known: adoption.known, findings };
    if args.json {
        print_json(&rebuilt)?;
    } else {
        let Rebuilt { objects, added, known, findings, .. } = rebuilt;
        let row = [objects, added, known, findings.len()].map(|count| count.to_string());
        print(&table(["OBJECTS", "ADDED", "KNOWN", "FINDINGS"], &[row]))?;
        findings.iter().for_each(|finding| say(format_args!("error: {finding}")));
    }
    Ok(exit_code(is_right))
}

fn findings(findings: &[ObjectFinding], mismatches: &[impl fmt::Display]) -> Vec<String> {
    findings.iter().map(ToString::to_string).chain(mismatches.iter().map(ToString::to_string)).collect()
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Audited {
    version: u32,
    objects: usize,
    /// Addresses that objects record and the ledger does not have.
    unrecorded: usize,
    findings: Vec<String>,
    missing: Vec<AuditedMissing>,
    served: Vec<Given>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct AuditedMissing {
    #[serde(flatten)]
    machine: ListedMachine,
    /// When it was missed before, or null.
    missed_before: Option<String>,
    /// From when on an audit may release it.
    releasable_from: String,
    released: Option<Vec<Given>>,
}

impl From<&Missing> for AuditedMissing {
    fn from(missing: &Missing) -> Self {
        Self {
            machine: (&missing.machine).into(),
            missed_before: missing.since.map(|since| Timestamp(since).to_string()),
            releasable_from: releasable_from(missing).to_string(),
            released: missing.released.as_ref().map(given),
        }
    }
}

/// In whole seconds, and not before.
fn releasable_from(missing: &Missing) -> Timestamp {
    Timestamp(missing.releasable_from.saturating_add(999))
}

pub(crate) fn audit(args: AuditArgs) -> Result<ExitCode> {
    let pools = args.pools.read_whole()?;
    let (objects, count) = read_objects(&args.lists.lists)?;
    if count == 0 {
        // From an empty list everybody would be missing, and it is what the wrong cluster answers.
        bail!("no object in the lists, expected those of all machines");
    }
    let inventory = objects.inventory();
    let mut registry = args.ledger.open(pools)?;
    let now = Timestamp::now().0;
    let Audit { adoption, missing, served } = audit::audit(&mut registry, &inventory, args.release_missing, now)?;
    let findings = findings(&inventory.findings, &adoption.mismatches);
    let is_right = findings.is_empty() && missing.is_empty() && adoption.adopted == 0;
    if args.json {
        print_json(&Audited {
            version: VERSION,
            objects: count,
            unrecorded: adoption.adopted,
            findings,
            missing: missing.iter().map(AuditedMissing::from).collect(),
            served: given(&served),
        })?;
        return Ok(exit_code(is_right));
    }
    let counts = [count, adoption.known, adoption.adopted, findings.len(), missing.len()];
    let head = ["OBJECTS", "KNOWN", "UNRECORDED", "FINDINGS", "MISSING"];
    let summary = table(head, &[counts.map(|count| count.to_string())]);
    let released = missing.iter().filter_map(|missing| missing.released.as_ref()).flatten();
    print(&sections([summary, allocations_table("RELEASED", released), allocations_table("SERVED", &served)]))?;
    if adoption.adopted > 0 {
        say(format_args!("error: the ledger does not have all addresses that objects record, rebuild adds them"));
    }
    findings.iter().for_each(|finding| say(format_args!("error: {finding}")));
    for missing in &missing {
        let Missing { machine, since, released, .. } = missing;
        let since = since.map(|since| format!(" since {}", Timestamp(since))).unwrap_or_default();
        let what = if released.is_some() {
            "released".to_owned()
        } else if missing.releasable_from <= now {
            "--release-missing would release it".to_owned()
        } else {
            format!("--release-missing may release it from {} on", releasable_from(missing))
        };
        say(format_args!("error: {machine}: missing{since}, {what}"));
    }
    Ok(exit_code(is_right))
}
