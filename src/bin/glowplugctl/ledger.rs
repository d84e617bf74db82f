//! The commands `verify`, `history` and `backup`.

use std::net::IpAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use clap::builder::{PathBufValueParser, TypedValueParser as _};
use glowplug::atomic_file::output_path;
use glowplug::host::address::parse_interface_address;
use glowplug::host::claim::Machine;
use glowplug::host::ledger::Tenure;
use serde::Serialize;
use slog::Logger;

use crate::input::{LedgerFile, Named, named};
use crate::output::{VERSION, check_directory, note_no_match, print, print_json, say, table, whole_seconds};

#[derive(Args)]
pub(crate) struct Verify {
    #[command(flatten)]
    ledger: LedgerFile,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Verified {
    version: u32,
    problems: Vec<String>,
}

#[derive(Args)]
pub(crate) struct Backup {
    #[command(flatten)]
    ledger: LedgerFile,
    /// New file for the copy
    #[arg(value_name = "FILE", value_parser = PathBufValueParser::new().try_map(output_path))]
    copy: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Copied {
    version: u32,
    /// The file with the copy.
    copy: String,
}

#[derive(Args)]
pub(crate) struct History {
    #[command(flatten)]
    ledger: LedgerFile,
    /// An address, or namespace and name of a machine
    ///
    /// The address may have its prefix length, as the tables print it.
    #[arg(value_name = "ADDRESS|NAMESPACE/NAME", value_parser = subject)]
    subject: Subject,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone)]
enum Subject {
    Address(IpAddr),
    Machine(Named),
}

#[derive(Serialize)]
struct Listed {
    version: u32,
    history: Vec<ListedTenure>,
}

#[derive(Serialize)]
struct ListedTenure {
    network: String,
    /// Address as `ip/prefix`.
    address: String,
    pool: String,
    #[serde(flatten)]
    machine: Machine,
    interface: String,
    since: String,
    /// `null` while the machine holds the address.
    released: Option<String>,
}

fn subject(text: &str) -> Result<Subject, String> {
    match text.split_once('/') {
        // The tables print an address with its prefix length. A namespace never has an address as its name.
        Some((first, _)) if first.parse::<IpAddr>().is_err() => {
            named(text).map(Subject::Machine).map_err(str::to_owned)
        }
        _ => parse_interface_address(text)
            .map(|(address, _)| Subject::Address(address))
            .map_err(|error| error.to_string()),
    }
}

impl Subject {
    fn is_of(&self, tenure: &Tenure) -> bool {
        let Machine { namespace, name, .. } = &tenure.lease.claimant.machine;
        match self {
            Self::Address(address) => tenure.address == *address,
            Self::Machine(named) => named.namespace == *namespace && named.name == *name,
        }
    }
}

impl From<Tenure> for ListedTenure {
    fn from(Tenure { network, address, lease, .. }: Tenure) -> Self {
        Self {
            network,
            address: format!("{address}/{}", lease.prefix),
            pool: lease.pool.to_string(),
            machine: lease.claimant.machine.clone(),
            interface: lease.claimant.interface.to_string(),
            since: whole_seconds(lease.since),
            released: lease.released.map(whole_seconds),
        }
    }
}

pub(crate) fn verify(args: Verify, log: &Logger) -> Result<ExitCode> {
    let problems = args.ledger.open_alone(log)?.verify()?;
    // The status is the same as for damage that prevents the opening of the ledger.
    let status = if problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    if args.json {
        let problems = problems.iter().map(ToString::to_string).collect();
        print_json(&Verified { version: VERSION, problems })?;
        return Ok(status);
    }
    problems.iter().for_each(|problem| say(format_args!("error: {problem}")));
    Ok(status)
}

pub(crate) fn backup(args: Backup, log: &Logger) -> Result<ExitCode> {
    check_directory(&args.copy).with_context(|| format!("writing {}", args.copy.display()))?;
    args.ledger.open_alone(log)?.backup(&args.copy)?;
    if args.json {
        print_json(&Copied { version: VERSION, copy: args.copy.display().to_string() })?;
    }
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn history(args: History, log: &Logger) -> Result<ExitCode> {
    let tenures = args.ledger.open_alone(log)?.history(|tenure| args.subject.is_of(tenure))?;
    let history: Vec<ListedTenure> = tenures.into_iter().map(ListedTenure::from).collect();
    if history.is_empty() {
        note_no_match();
    }
    if args.json {
        print_json(&Listed { version: VERSION, history })?;
        return Ok(ExitCode::SUCCESS);
    }
    let rows: Vec<_> = history
        .into_iter()
        .map(|held| {
            let (machine, released) = (held.machine.title(), held.released.unwrap_or_else(|| "-".to_owned()));
            [held.network, held.address, machine, held.machine.uid, held.interface, held.pool, held.since, released]
        })
        .collect();
    print(&table(["NETWORK", "ADDRESS", "MACHINE", "UID", "INTERFACE", "POOL", "SINCE", "RELEASED"], &rows))?;
    Ok(ExitCode::SUCCESS)
}
