//! The commands `vsphere-kargs`, `install-hosts check` and `install-hosts manifests`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::Args;
use glowplug::diagnostic::{Diagnostic, Diagnostics};
use glowplug::formats::value::{MAX_BYTES, MAX_LIST_BYTES};
use glowplug::host::vsphere::{Host, InstallHosts, KargsReading, network_kargs, read_install_config};
use serde::Serialize;
use serde_json::json;
use slog::Logger;

use crate::Reported;
use crate::input::{object_name, read};
use crate::output::{VERSION, exit_code, print, print_json, say, table};

#[derive(Args)]
pub(crate) struct VsphereKargs {
    /// JSON or YAML with a Machine and IPAddresses; - is standard input
    ///
    /// Together the files have one Machine or one network device alone, and the IPAddresses of its pools.
    #[arg(value_name = "FILE|-", required = true)]
    files: Vec<PathBuf>,
    /// Machine to use, if the files have several
    #[arg(long, value_name = "NAME", value_parser = object_name)]
    machine: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Kargs {
    version: u32,
    /// Value of the property of the virtual machine. `null`: there is an error.
    network_kargs: Option<String>,
    diagnostics: Vec<KargsDiagnostic>,
}

#[derive(Serialize)]
struct KargsDiagnostic {
    file: String,
    #[serde(flatten)]
    diagnostic: Diagnostic,
}

#[derive(Args)]
pub(crate) struct HostsCheck {
    /// install-config.yaml; - is standard input
    #[arg(value_name = "FILE|-")]
    file: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
pub(crate) struct HostsManifests {
    /// install-config.yaml; - is standard input
    #[arg(value_name = "FILE|-")]
    file: PathBuf,
    /// Infrastructure ID of the cluster
    ///
    /// `oc get infrastructure cluster -o jsonpath='{.status.infrastructureName}'` prints it.
    #[arg(long, value_name = "ID", value_parser = object_name)]
    infra_id: String,
    /// Virtual machine to clone if the config names none
    #[arg(long, value_name = "NAME")]
    template: Option<String>,
}

#[derive(Serialize)]
struct CheckedHosts<'h> {
    version: u32,
    hosts: Vec<CheckedHost<'h>>,
    diagnostics: &'h [Diagnostic],
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct CheckedHost<'h> {
    role: String,
    failure_domain: Option<&'h str>,
    addresses: Vec<String>,
    gateway: Option<String>,
    nameservers: Vec<String>,
    /// Value of the property of the virtual machine.
    network_kargs: String,
}

impl<'h> From<&'h Host> for CheckedHost<'h> {
    fn from(host: &'h Host) -> Self {
        let device = &host.network_device;
        Self {
            role: host.role.to_string(),
            failure_domain: host.failure_domain.as_deref(),
            addresses: device.ip_addrs.iter().map(ToString::to_string).collect(),
            gateway: device.gateway.map(|gateway| gateway.to_string()),
            nameservers: device.nameservers.iter().map(ToString::to_string).collect(),
            network_kargs: host.kargs().to_string(),
        }
    }
}

pub(crate) fn vsphere_kargs(args: VsphereKargs, log: &Logger) -> Result<ExitCode> {
    let file = |path: &PathBuf| Ok((path.display().to_string(), read(path, MAX_LIST_BYTES, log)?));
    let documents = args.files.iter().map(file).collect::<Result<Vec<_>>>()?;
    let KargsReading { kargs, diagnostics } = network_kargs(&documents, args.machine.as_deref());
    if args.json {
        let status = if kargs.is_some() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
        let diagnostics = diagnostics.into_iter().map(|(file, diagnostic)| KargsDiagnostic { file, diagnostic });
        let (network_kargs, diagnostics) = (kargs.map(|kargs| kargs.to_string()), diagnostics.collect());
        print_json(&Kargs { version: VERSION, network_kargs, diagnostics })?;
        return Ok(status);
    }
    for (file, diagnostic) in &diagnostics {
        say(format_args!("{}: {file}: {diagnostic}", diagnostic.severity));
    }
    let Some(kargs) = kargs else { bail!(Reported) };
    if !kargs.property().is_empty() {
        print(&format!("{kargs}\n"))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn read_hosts(file: &Path, log: &Logger) -> Result<(Option<InstallHosts>, Diagnostics)> {
    Ok(read_install_config(&read(file, MAX_BYTES, log)?))
}

fn tell(file: &Path, diagnostics: &Diagnostics) {
    for diagnostic in diagnostics.kept() {
        say(format_args!("{}: {}: {diagnostic}", diagnostic.severity, file.display()));
    }
    if diagnostics.further() > 0 {
        say(format_args!("warning: {}: {} further diagnostics", file.display(), diagnostics.further()));
    }
}

pub(crate) fn hosts_check(args: HostsCheck, log: &Logger) -> Result<ExitCode> {
    let (found, diagnostics) = read_hosts(&args.file, log)?;
    let hosts: Vec<CheckedHost<'_>> = found.iter().flat_map(|found| &found.hosts).map(CheckedHost::from).collect();
    if args.json {
        print_json(&CheckedHosts { version: VERSION, hosts, diagnostics: diagnostics.kept() })?;
    } else {
        let or_nothing = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        let row = |host: CheckedHost<'_>| {
            let (domain, gateway) = (or_nothing(host.failure_domain.map(str::to_owned)), or_nothing(host.gateway));
            [host.role, domain, host.addresses.join(" "), gateway]
        };
        let rows: Vec<_> = hosts.into_iter().map(row).collect();
        print(&table(["ROLE", "FAILURE DOMAIN", "ADDRESSES", "GATEWAY"], &rows))?;
        tell(&args.file, &diagnostics);
    }
    Ok(exit_code(!diagnostics.has_errors()))
}

pub(crate) fn hosts_manifests(args: HostsManifests, log: &Logger) -> Result<ExitCode> {
    let (hosts, diagnostics) = read_hosts(&args.file, log)?;
    tell(&args.file, &diagnostics);
    let Some(hosts) = hosts else { bail!(Reported) };
    match hosts.machines(&args.infra_id, args.template.as_deref()) {
        Ok(machines) => print_json(&json!({"apiVersion": "v1", "kind": "List", "items": machines}))?,
        Err(diagnostics) => {
            tell(&args.file, &diagnostics);
            bail!(Reported);
        }
    }
    Ok(ExitCode::SUCCESS)
}
