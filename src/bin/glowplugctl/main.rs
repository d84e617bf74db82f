//! The program of the host: command line and exit status.
//!
//! A cron job can distinguish these exit statuses: 0 success; 1 failed or refused; 2 usage error; 3 a pool is exhausted
//! for at least one machine; 4 success with diagnostics. If several of 1, 3 and 4 apply, the first of them is the exit
//! status.

mod audit;
mod claims;
mod documents;
mod input;
mod ledger;
mod list;
mod output;
mod pools;
mod release;
mod status;
mod vsphere;

use std::fmt;
use std::process::ExitCode;

use anyhow::Result;
use clap::{CommandFactory, Parser, Subcommand};
use clap_complete::Shell;
use glowplug::log;
use slog::Level;

use crate::audit::{AuditArgs, Rebuild};
use crate::claims::ClaimArgs;
use crate::documents::{ConfigDriveArgs, NetworkData};
use crate::ledger::{Backup, History, Verify};
use crate::list::List;
use crate::output::{print, say};
use crate::pools::{Init, Metrics, Nodepool, PoolCheck, Resize};
use crate::release::Release;
use crate::status::Status;
use crate::vsphere::{HostsCheck, HostsManifests, VsphereKargs};

/// Manage address pools of CoreOS machines on KubeVirt and write their documents
#[derive(Parser)]
#[command(name = "glowplugctl", version = glowplug::VERSION, max_term_width = 80)]
struct Cli {
    /// Log each file that is read or written
    #[arg(short, long, global = true)]
    verbose: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Inspect pools
    #[command(subcommand)]
    Pool(PoolCommand),
    /// Create the ledger. Use one ledger per network
    ///
    /// Two ledgers for one network would allocate the same addresses. No other command creates a ledger.
    Init(Init),
    /// Allocate addresses to machines, or print those they hold
    Claim(ClaimArgs),
    /// Release the addresses of machines that are gone
    Release(Release),
    /// List leases, conflicts, waiting and missing machines
    List(List),
    /// Print pool usage, waiting machines and leases outside pools
    Status(Status),
    /// Apply changed pool files
    ///
    /// Reports the leases whose address is now outside its pool. No lease is lost. The next claim serves the waiting machines.
    Resize(Resize),
    /// Rebuild the ledger from the records on machine objects
    ///
    /// Never frees an address.
    Rebuild(Rebuild),
    /// Compare the ledger, or a cluster's leases, with the cluster
    ///
    /// Reports duplicate, unknown and missing machines.
    Audit(AuditArgs),
    /// Print the history of an address or a machine
    History(History),
    /// Check the ledger for damage
    Verify(Verify),
    /// Write a consistent copy of the ledger, also while it is in use
    Backup(Backup),
    /// Write network_data.json from a template and addresses
    NetworkData(NetworkData),
    /// Translate NodePools into fields of a KubevirtMachineTemplate
    Nodepool(Nodepool),
    /// Write a config drive as an ISO 9660 image
    ConfigDrive(ConfigDriveArgs),
    /// Write the kernel arguments of an OpenShift Machine on vSphere
    VsphereKargs(VsphereKargs),
    /// Check the vSphere hosts of an install-config.yaml
    #[command(subcommand)]
    InstallHosts(InstallHostsCommand),
    /// Write the state of the pools for Prometheus
    Metrics(Metrics),
    /// Write shell completions
    Completions {
        /// Shell that will use the completions
        shell: Shell,
    },
}

#[derive(Subcommand)]
enum PoolCommand {
    /// Check pool files: sizes, reserved addresses, overlaps
    #[command(after_help = A_POOL)]
    Check(PoolCheck),
}

#[derive(Subcommand)]
enum InstallHostsCommand {
    /// Check the hosts of an install-config.yaml
    Check(HostsCheck),
    /// Write Machines for the compute hosts of an install-config.yaml
    Manifests(HostsManifests),
}

/// Example of a pool for the help. `glowplugctl(1)` describes every member.
const A_POOL: &str = "\
A pool:
  name: workers
  namespace: clusters
  network: vlan10
  addresses: [192.168.1.100-192.168.1.150]
  gateway: [192.168.1.1]
  nameservers: [8.8.8.8]
  machineNetwork: [{cidr: 192.168.1.0/24}]";

fn main() -> ExitCode {
    let cli = Cli::parse();
    let log = &log::to_standard_error(if cli.verbose { Level::Debug } else { Level::Warning });
    let done = match cli.command {
        Command::Pool(PoolCommand::Check(args)) => pools::pool_check(args, log),
        Command::Init(args) => pools::init(args, log),
        Command::Claim(args) => claims::claim(args, log),
        Command::Release(args) => release::release(args, log),
        Command::List(args) => list::list(args, log),
        Command::Status(args) => status::status(args, log),
        Command::Resize(args) => pools::resize(args, log),
        Command::Rebuild(args) => audit::rebuild(args, log),
        Command::Audit(args) => audit::audit(args, log),
        Command::History(args) => ledger::history(args, log),
        Command::Verify(args) => ledger::verify(args, log),
        Command::Backup(args) => ledger::backup(args, log),
        Command::NetworkData(args) => documents::network_data(args, log),
        Command::Nodepool(args) => pools::nodepool(args, log),
        Command::ConfigDrive(args) => documents::config_drive(args, log),
        Command::VsphereKargs(args) => vsphere::vsphere_kargs(args, log),
        Command::InstallHosts(InstallHostsCommand::Check(args)) => vsphere::hosts_check(args, log),
        Command::InstallHosts(InstallHostsCommand::Manifests(args)) => vsphere::hosts_manifests(args, log),
        Command::Metrics(args) => pools::metrics(args, log),
        Command::Completions { shell } => completions(shell),
    };
    done.unwrap_or_else(|error| {
        if !error.is::<Reported>() {
            say(format_args!("error: {error:#}"));
        }
        ExitCode::FAILURE
    })
}

/// An error whose reasons are already on standard error.
#[derive(Debug)]
struct Reported;

impl fmt::Display for Reported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("refused")
    }
}

impl std::error::Error for Reported {}

fn completions(shell: Shell) -> Result<ExitCode> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "glowplugctl", &mut text);
    print(&String::from_utf8(text)?)?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
#[path = "../../../tests/support/manual.rs"]
mod manual;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_manual_pages_have_the_command_line_of_the_program() {
        manual::check(Cli::command(), "1");
    }
}
