//! The commands `rebuild` and `audit`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::{ArgGroup, Args};
use glowplug::diagnostic::{Diagnostic, Severity};
use glowplug::formats::value::MAX_LIST_BYTES;
use glowplug::host::Timestamp;
use glowplug::host::audit::{self, Audit, Disagreement, Missing, Options, Store};
use glowplug::host::claim::{Allocation, Machine};
use glowplug::host::leases_file::{Leases, read_leases};
use glowplug::host::pool;
use glowplug::host::records::{ObjectDiagnostic, Objects};
use glowplug::host::registry::{self, Registry};
use ipnetwork::IpNetwork;
use serde::Serialize;
use slog::{Logger, debug};

use crate::Reported;
use crate::input::{LedgerFile, Lists, Pools, ServedPools, fetched, read, read_objects};
use crate::output::{VERSION, allocations_table, exit_code, print, print_json, say, sections, table, whole_seconds};

/// The ledger that `rebuild` fills, its pools, and the lists of machine objects.
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
#[command(
    group(ArgGroup::new("store").args(["ledger", "leases"]).required(true)),
    override_usage = "glowplugctl audit --pool <FILE> {--ledger <FILE>|--leases <FILE|->}\n       --machines <FILE|->... [OPTIONS]"
)]
pub(crate) struct AuditArgs {
    #[command(flatten)]
    pools: Pools,
    /// Ledger file, on a local disk
    #[arg(long, value_name = "FILE")]
    ledger: Option<PathBuf>,
    /// Leases of a cluster, in place of a ledger
    ///
    /// A YAML or JSON list of StaticIPLeases; - is standard input. `kubectl get staticipleases -o yaml` prints such a list.
    #[arg(long, value_name = "FILE|-", conflicts_with = "release_missing")]
    leases: Option<PathBuf>,
    #[command(flatten)]
    lists: Lists,
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

pub(crate) fn rebuild(args: Rebuild, log: &Logger) -> Result<ExitCode> {
    let Sources { pools, ledger, lists: Lists { lists } } = args.sources;
    let ServedPools { pools, deleted, .. } = pools.read_whole(log)?;
    let (objects, count) = read_objects(&lists, log)?;
    let inventory = objects.inventory();
    let mut registry = ledger.open(&pools, deleted, log)?;
    let now = Timestamp::now();
    let registry::Rebuilt { adoption, without_record, .. } = registry.adopt_inventory(&inventory, now)?;
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
    /// Number of recorded addresses that the ledger lacks, and that an adoption would lease to the claimants of their
    /// records.
    unrecorded: usize,
    diagnostics: Vec<String>,
    /// Reasons why no machine was released.
    brakes: Vec<String>,
    missing: Vec<AuditedMissing>,
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

/// Returns the earliest time of a release in whole seconds, rounded up so that the printed time is never too early.
fn releasable_from(missing: &Missing) -> String {
    let almost_a_second = Duration::from_millis(999);
    whole_seconds(missing.releasable_from.saturating_add(almost_a_second).unwrap_or(Timestamp::MAX))
}

pub(crate) fn audit(args: AuditArgs, log: &Logger) -> Result<ExitCode> {
    let Lists { lists } = &args.lists;
    // An audit of leases changes nothing, so it is safe without some of the pools.
    let served = if args.leases.is_some() { args.pools.read(log)? } else { args.pools.read_whole(log)? };
    let (objects, count) = read_objects(lists, log)?;
    if count == 0 {
        // With empty lists, all machines would count as missing. Lists from the wrong cluster can be empty.
        bail!("no object in the lists, expected the objects of all machines");
    }
    let ledger = match (&args.leases, args.ledger.clone()) {
        (None, Some(ledger)) => LedgerFile { ledger },
        (Some(leases), _) => return audit_leases(leases, served, objects, count, args.json, log),
        (None, None) => bail!("no ledger, expected --ledger or --leases"),
    };
    let inventory = objects.inventory();
    let ServedPools { pools, deleted, .. } = served;
    let mut registry = ledger.open(&pools, deleted, log)?;
    let now = Timestamp::now();
    let fetched = fetched(lists);
    let options = Options {
        // Without `--release-missing`, the time is used only to print when a release would be possible.
        fetched: if args.release_missing { fetched? } else { fetched.unwrap_or(now) },
        release: args.release_missing,
        max_release: args.max_release,
        dry_run: args.dry_run,
    };
    let audit = audit::audit(&mut registry, &inventory, &options, now)?;
    let Audit { adoption, disagreements, missing, brakes } = audit;
    let mut diagnostics = diagnostics(&inventory.diagnostics, &adoption.mismatches);
    diagnostics.extend(disagreements.iter().map(|it: &Disagreement| it.text(Store::Ledger)));
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
        })?;
        return Ok(status);
    }
    let counts = [count, adoption.known, adoption.adopted, diagnostics.len(), missing.len()];
    let head = ["OBJECTS", "KNOWN", "UNRECORDED", "DIAGNOSTICS", "MISSING"];
    let summary = table(head, &[counts.map(|count| count.to_string())]);
    let released = missing.iter().filter_map(|missing| missing.released.as_ref()).flatten();
    let head = if args.dry_run { "TO RELEASE" } else { "RELEASED" };
    print(&sections([summary, allocations_table(head, released)]))?;
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

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct AuditedLeases {
    version: u32,
    objects: usize,
    /// Number of leases that machines hold.
    leases: usize,
    /// Number of recorded addresses that have no lease, and that an adoption would lease to the claimants of their
    /// records.
    unrecorded: usize,
    diagnostics: Vec<String>,
    /// Machines that hold addresses and have no object.
    missing: Vec<Allocation>,
    not_compared: NotCompared,
}

/// Numbers of leases that are not compared, because the lists have no records of their holders.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct NotCompared {
    claims: usize,
    mac_addresses: usize,
}

/// Compares the leases of a cluster with its machines. Changes nothing.
fn audit_leases(
    file: &Path,
    served: ServedPools,
    mut objects: Objects,
    count: usize,
    json: bool,
    log: &Logger,
) -> Result<ExitCode> {
    let (leases, of_file) = read_leases(&read(file, MAX_LIST_BYTES, log)?);
    let is_read = !of_file.has_errors();
    let (of_file, further) = of_file.into_parts();
    let (errors, warnings): (Vec<Diagnostic>, Vec<Diagnostic>) =
        of_file.into_iter().partition(|diagnostic| diagnostic.severity == Severity::Error);
    let with_file = |diagnostic: &dyn fmt::Display| format!("{}: {diagnostic}", file.display());
    let mut warnings: Vec<String> = warnings.iter().map(|warning| with_file(warning)).collect();
    if further > 0 {
        warnings.push(with_file(&format_args!("{further} further diagnostics")));
    }
    let mut diagnostics: Vec<String> = errors.iter().map(|error| with_file(error)).collect();
    if !is_read && leases.is_empty() {
        errors.iter().for_each(|error| say(format_args!("error: {}", with_file(error))));
        bail!(Reported);
    }
    let of_claims = leases.of_claims();
    let compared = leases.held().count() - of_claims;
    debug!(log, "read leases"; "path" => %file.display(), "machines" => compared, "claims" => of_claims);
    let now = Timestamp::now();
    let ServedPools { mut pools, leaving, is_whole, .. } = served;
    for pool in leaving {
        // A pool that is being deleted still has the addresses that its machines hold.
        pools.push(pool);
        if !pool::overlaps(&pools).kept.is_empty() {
            pools.pop();
        }
    }
    let mut registry = Registry::open(leases.ledger()?)?;
    registry.resize(pools, &[], now)?;
    objects.ignore_labels();
    let mut inventory = objects.inventory();
    leases.name_machines(&mut inventory);
    let options = Options { fetched: now, dry_run: true, ..Options::default() };
    let Audit { adoption, disagreements, missing, .. } = audit::audit(&mut registry, &inventory, &options, now)?;
    diagnostics.extend(self::diagnostics(&inventory.diagnostics, &adoption.mismatches));
    let (right, wrong): (Vec<Disagreement>, Vec<Disagreement>) =
        disagreements.into_iter().partition(|it| it.is_right(Store::Leases));
    diagnostics.extend(wrong.iter().map(|it| it.text(Store::Leases)));
    let notes: Vec<String> = right.iter().map(|it| it.text(Store::Leases)).collect();
    let missing = allocations_of(&leases, &missing);
    let is_right = is_read && is_whole && diagnostics.is_empty() && missing.is_empty();
    let (known, unrecorded) = (adoption.known, adoption.adopted);
    if json {
        let not_compared = NotCompared { claims: of_claims, mac_addresses: leases.mac_addresses };
        let version = VERSION;
        let leases = compared;
        diagnostics.extend(warnings.into_iter().chain(notes));
        let objects = count;
        print_json(&AuditedLeases { version, objects, leases, unrecorded, diagnostics, missing, not_compared })?;
        return Ok(exit_code(is_right));
    }
    let counts = [count, compared, known, unrecorded, diagnostics.len(), missing.len()];
    let head = ["OBJECTS", "LEASES", "KNOWN", "UNRECORDED", "DIAGNOSTICS", "MISSING"];
    let summary = table(head, &[counts.map(|count| count.to_string())]);
    print(&sections([summary, allocations_table("MISSING", &missing)]))?;
    diagnostics.iter().for_each(|diagnostic| say(format_args!("error: {diagnostic}")));
    warnings.iter().for_each(|warning| say(format_args!("warning: {warning}")));
    notes.iter().for_each(|note| say(format_args!("note: {note}")));
    let not_compared = [(of_claims, "claims"), (leases.mac_addresses, "MAC addresses")];
    for (count, of) in not_compared.into_iter().filter(|(count, _)| *count > 0) {
        say(format_args!("note: leases of {of} not compared: {count}, the lists have no records of them"));
    }
    Ok(exit_code(is_right))
}

/// Returns the allocations of the missing machines.
fn allocations_of(leases: &Leases, missing: &[Missing]) -> Vec<Allocation> {
    let mut held = BTreeMap::new();
    for (_, address, lease) in leases.held() {
        let allocation = held.entry(&*lease.claimant).or_insert_with(Vec::new);
        allocation.extend(IpNetwork::new(address, lease.prefix));
    }
    let missing: BTreeSet<&Machine> = missing.iter().map(|missing| &missing.machine).collect();
    let held = held.into_iter().filter(|(claimant, _)| missing.contains(&claimant.machine));
    held.map(|(claimant, addresses)| Allocation { claimant: claimant.clone(), addresses }).collect()
}
