//! Parses the command line of `glowplug`, makes the logger and chooses the exit status.
//!
//! Exit status: 0 done or nothing to do, 1 refused or failed, 2 usage.

use std::env;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Error, Result, anyhow, bail};
use clap::builder::{PathBufValueParser, TypedValueParser as _};
use clap::{Args, Parser, Subcommand};
use glowplug::atomic_file::output_path;
use glowplug::diagnostic::Diagnostics;
use glowplug::guest::attributes::{self, Attributes, Key, KeyError, Prefix};
use glowplug::guest::hostname;
use glowplug::guest::platform::Selection;
use glowplug::guest::report::Outcome;
use glowplug::guest::ssh_keys::{self, Account, AuthorizedKey, KeyFile};
use glowplug::guest::system::Linux;
#[cfg(feature = "vmware")]
use glowplug::guest::vmware;
use glowplug::guest::{self, CommandLine, DefaultValue, OnError, Options, Source, Wait};
use glowplug::log;
use glowplug::network::{Hostname, HostnameError};
use glowplug::render::Renderer;
use slog::{Level, Logger, debug, info, warn};

/// Environment variable with the default kernel arguments. A distribution sets the variable in a drop-in of the unit.
const DEFAULT_VARIABLE: &str = "GLOWPLUG_NETWORK_KARGS_DEFAULT";

/// Environment variable with the least level that is logged. The variable replaces the default level of the command.
const LOG_VARIABLE: &str = "GLOWPLUG_LOG";

#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;

/// The first-boot network of CoreOS machines on KubeVirt
#[derive(Parser)]
#[command(name = "glowplug", version = glowplug::VERSION, max_term_width = 80)]
struct Cli {
    /// Log each step and each device
    ///
    /// GLOWPLUG_LOG=debug in the environment and glowplug.debug on the kernel command line have the same effect.
    #[arg(short, long, global = true)]
    verbose: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Write the network of the config drive as kernel arguments
    ///
    /// This must run before dracut reads the kernel arguments. For systemd-networkd, and with network-manager-profiles, it
    /// writes files instead.
    NetworkKargs(NetworkKargs),
    /// Explain a config drive or a document, or report this boot
    ///
    /// Without PATH, it prints the report of this boot. It fails if there is no report.
    Check(Check),
    /// Write the metadata of the drive as an EnvironmentFile=
    Attributes(WriteAttributes),
    /// Write the hostname of the drive to a file
    Hostname(WriteHostname),
    /// Write the public keys of the drive to a user's home directory
    SshKeys(SshKeys),
    /// Print the metadata of the drive
    ///
    /// Each KEY is one line. Without KEY it prints all values as a table.
    Metadata(Metadata),
    /// Run a command by the name that afterburn uses
    #[command(subcommand, hide = true)]
    Exp(Exp),
}

#[derive(Subcommand)]
enum Exp {
    /// Run network-kargs
    RdNetworkKargs(NetworkKargs),
}

/// Options that select the machine and its drive.
#[derive(Args)]
struct MachineOptions {
    /// Detect the platform by kernel arguments only
    ///
    /// The platform is the value of ignition.platform.id=, flatcar.oem.id= or coreos.oem.id= on the kernel command line. DMI and the drive
    /// are ignored.
    #[arg(long, conflicts_with = "provider")]
    cmdline: bool,
    /// Set the platform instead of detecting it
    ///
    /// Every build supports kubevirt.
    #[arg(long, value_name = "NAME")]
    provider: Option<String>,
    /// Read this drive: directory, image or device
    ///
    /// Without this option glowplug searches for the drive of this machine.
    #[arg(long, value_name = "PATH")]
    config_drive: Option<PathBuf>,
    /// Accept the drive of another machine
    ///
    /// Such a drive is used only if this machine's own drive is missing. Without this option the run fails in this case.
    #[arg(long)]
    any_drive: bool,
    /// Wait this long for the drive
    ///
    /// glowplug waits only on a machine that is known to run on KubeVirt.
    #[arg(long, value_name = "SECONDS", default_value = "10")]
    wait: Wait,
    /// Use this directory as root
    ///
    /// The files of the machine are below this directory. A symbolic link may lead outside it.
    #[arg(long, value_name = "DIR", default_value = "/")]
    root: PathBuf,
}

#[derive(Args)]
struct NetworkKargs {
    #[command(flatten)]
    machine: MachineOptions,
    /// Select the renderer
    ///
    /// This is the network program of the initramfs: network-manager, systemd-networkd or network-legacy. NetworkManager
    /// reads kernel arguments, or profiles with network-manager-profiles.
    #[arg(long, value_name = "NAME", default_value_t)]
    renderer: Renderer,
    /// Use these arguments if the drive has none
    ///
    /// They are for a machine that has no drive, or whose drive configures nothing. Without this option glowplug uses the
    /// variable GLOWPLUG_NETWORK_KARGS_DEFAULT, or else no arguments.
    #[arg(long, value_name = "KARGS")]
    default_value: Option<DefaultValue>,
    /// Fail if a default is needed and not set
    ///
    /// --default-value or the variable GLOWPLUG_NETWORK_KARGS_DEFAULT sets the default. An empty value is valid and means
    /// no arguments.
    #[arg(long)]
    require_default: bool,
    /// Handle an invalid document
    ///
    /// fail: write nothing and exit with status 1. default: use the default arguments.
    #[arg(long, value_name = "fail|default", default_value = "fail")]
    on_error: OnError,
    /// Write rd.neednet=1 with the network
    ///
    /// Then dracut starts the network at each boot. Without this option dracut starts the network only on demand: Ignition
    /// requests the network itself. For network-legacy, glowplug always writes rd.neednet=1 with a network. Default
    /// arguments stay as they are.
    #[arg(long)]
    neednet: bool,
    /// Print the result and write nothing
    ///
    /// The arguments are one line. Each file follows its path. With --config-drive, the kernel command line and the platform
    /// are not read.
    #[arg(long)]
    print: bool,
}

#[derive(Args)]
struct WriteAttributes {
    #[command(flatten)]
    machine: MachineOptions,
    /// Write to this file
    #[arg(long, value_name = "FILE", value_parser = PathBufValueParser::new().try_map(output_path))]
    output: PathBuf,
    /// Set the prefix of the names
    ///
    /// KUBEVIRT_ follows the prefix. With AFTERBURN_ the names and the instance id are those of afterburn.
    #[arg(long, default_value_t)]
    prefix: Prefix,
}

#[derive(Args)]
struct WriteHostname {
    #[command(flatten)]
    machine: MachineOptions,
    /// Write to this file, such as /sysroot/etc/hostname
    #[arg(long, value_name = "FILE", value_parser = PathBufValueParser::new().try_map(output_path))]
    output: PathBuf,
}

#[derive(Args)]
struct SshKeys {
    #[command(flatten)]
    machine: MachineOptions,
    /// Write the keys for this user of /etc/passwd
    #[arg(long, value_name = "USER")]
    user: String,
    /// Select the file name
    ///
    /// This is the file in ~/.ssh/authorized_keys.d: glowplug or afterburn.
    #[arg(long, value_name = "NAME", default_value_t)]
    key_file: KeyFile,
}

#[derive(Args)]
struct Metadata {
    /// Print this value, such as hostname, instance_id, ipv4 or mac_1
    #[arg(value_name = "KEY")]
    keys: Vec<String>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Read this drive: directory, image or device
    ///
    /// Without this option glowplug prints the metadata of this machine.
    #[arg(long, value_name = "PATH")]
    config_drive: Option<PathBuf>,
    /// Use this directory as root
    ///
    /// The files of the machine are below this directory. A symbolic link may lead outside it.
    #[arg(long, value_name = "DIR", default_value = "/", value_parser = PathBufValueParser::new().try_map(existing))]
    root: PathBuf,
}

#[derive(Args)]
struct Check {
    /// Explain this directory, image, device or document; - is standard input
    path: Option<PathBuf>,
    /// Select the renderer
    ///
    /// This is the network program of the initramfs: network-manager, systemd-networkd or network-legacy. NetworkManager
    /// reads kernel arguments, or profiles with network-manager-profiles.
    #[arg(long, value_name = "NAME", default_value_t)]
    renderer: Renderer,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Use this directory as root
    ///
    /// The files of the machine are below this directory. A symbolic link may lead outside it.
    #[arg(long, value_name = "DIR", default_value = "/", value_parser = PathBufValueParser::new().try_map(existing))]
    root: PathBuf,
}

/// Checks a root from which files are only read. Without this check, a misspelt root would look like a machine without
/// a drive.
fn existing(root: PathBuf) -> Result<PathBuf, &'static str> {
    if root.is_dir() { Ok(root) } else { Err("no such directory") }
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let log = cli.logger();
    debug!(log, "started"; "version" => glowplug::VERSION);
    let done = match cli.command {
        Command::NetworkKargs(args) | Command::Exp(Exp::RdNetworkKargs(args)) => network_kargs(args, &log),
        Command::Check(args) => check(args, &log),
        Command::Attributes(args) => attributes(args, &log),
        Command::Hostname(args) => hostname(args, &log),
        Command::SshKeys(args) => ssh_keys(args, &log),
        Command::Metadata(args) => metadata(args, &log),
    };
    done.unwrap_or_else(|error| {
        slog::error!(log::to_standard_error(Level::Error), "failed"; "error" => format_args!("{error:#}"));
        ExitCode::FAILURE
    })
}

impl Cli {
    /// Makes the logger of the command. The level comes from `-v`, else from the variable, else from the kernel command
    /// line, else from the command.
    fn logger(&self) -> Logger {
        let (least, root) = match &self.command {
            // The report that `check` prints has the same information as the log.
            Command::Check(_) => (Level::Critical, None),
            Command::Metadata(_) => (Level::Warning, None),
            Command::NetworkKargs(args) | Command::Exp(Exp::RdNetworkKargs(args)) => {
                (Level::Info, Some(&args.machine.root))
            }
            Command::Attributes(args) => (Level::Info, Some(&args.machine.root)),
            Command::Hostname(args) => (Level::Info, Some(&args.machine.root)),
            Command::SshKeys(args) => (Level::Info, Some(&args.machine.root)),
        };
        if self.verbose {
            return log::to_standard_error(Level::Debug);
        }
        let value = env::var_os(LOG_VARIABLE).unwrap_or_default();
        if let Some(level) = value.to_str().and_then(|text| text.parse().ok()) {
            return log::to_standard_error(level);
        }
        let is_debugged =
            |root: &Path| CommandLine::read_from(root).is_ok_and(|line| line.has_switch("glowplug.debug"));
        let log = log::to_standard_error(if root.is_some_and(|root| is_debugged(root)) { Level::Debug } else { least });
        if !value.is_empty() {
            warn!(log, "ignored GLOWPLUG_LOG"; "value" => %value.display(), "expected" => "error, warning, info or debug");
        }
        log
    }
}

impl MachineOptions {
    fn options(self) -> Options {
        let selection = match self.provider {
            Some(provider) => Selection::Provider(provider),
            None if self.cmdline => Selection::CommandLine,
            None => Selection::Detect,
        };
        let source = self.config_drive.map_or(Source::Machine, Source::Drive);
        Options { wait: self.wait.into(), any_drive: self.any_drive, ..Options::new(selection, source, self.root) }
    }
}

fn network_kargs(args: NetworkKargs, log: &Logger) -> Result<ExitCode> {
    let options = Options {
        renderer: args.renderer,
        default_value: default_value(args.default_value, args.require_default),
        on_error: args.on_error,
        dry_run: args.print,
        neednet: args.neednet,
        ..args.machine.options()
    };
    // A VMware machine has no config drive, only a property.
    #[cfg(feature = "vmware")]
    let options = match &options.selection {
        Selection::Provider(name) if name == vmware::VMWARE => {
            Options { source: Source::Property(vmware::read(&vmware::Backdoor)), ..options }
        }
        _ => options,
    };
    let plan = guest::plan(&options, &Linux::default(), log);
    if !options.dry_run {
        guest::apply(&plan, &options.root, log)?;
    } else {
        print(&plan.output.to_string())?;
    }
    Ok(exit_code(plan.report.is_refused()))
}

/// Returns the default arguments from the option, else from the variable. An error in the variable is returned as a
/// value, because the error does not matter on a machine that needs no default.
fn default_value(given: Option<DefaultValue>, required: bool) -> Result<Option<DefaultValue>, String> {
    match env::var_os(DEFAULT_VARIABLE) {
        _ if given.is_some() => Ok(given),
        Some(text) => match text.to_string_lossy().parse() {
            Ok(value) => Ok(Some(value)),
            Err(e) => Err(format!("{DEFAULT_VARIABLE}: invalid value {text:?}, {e}")),
        },
        None if required => {
            Err(format!("{DEFAULT_VARIABLE} is not set, expected kernel arguments, or nothing for none"))
        }
        None => Ok(None),
    }
}

fn check(args: Check, log: &Logger) -> Result<ExitCode> {
    let Some(path) = args.path else {
        let recorded = guest::recorded(&args.root).with_context(|| format!("reading /{}", guest::PLAN))?;
        let recorded = recorded.ok_or_else(|| anyhow!("no report of this boot, expected /{}", guest::PLAN))?;
        print(if args.json { &recorded.json } else { &recorded.page })?;
        return Ok(exit_code(recorded.is_refused));
    };
    let source = if path.as_os_str() == "-" { Source::StandardInput } else { Source::DriveOrDocument(path) };
    let options =
        Options { renderer: args.renderer, dry_run: true, ..Options::new(Selection::Detect, source, args.root) };
    let report = guest::plan(&options, &Linux::default(), log).report;
    print(&if args.json { serde_json::to_string_pretty(&report)? + "\n" } else { report.to_string() })?;
    // A document that leaves the machine to the default network is probably a mistake.
    let is_without_effect = report.document.is_some() && report.outcome == Outcome::Default;
    Ok(exit_code(report.is_refused() || is_without_effect))
}

fn attributes(args: WriteAttributes, log: &Logger) -> Result<ExitCode> {
    let options = args.machine.options();
    if let Some(machine) = guest::machine_data(&options, &Linux::default(), log).map_err(Error::msg)? {
        machine
            .attributes
            .write(&args.output, &args.prefix)
            .with_context(|| format!("writing {}", args.output.display()))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn hostname(args: WriteHostname, log: &Logger) -> Result<ExitCode> {
    let machine = guest::machine_data(&args.machine.options(), &Linux::default(), log).map_err(Error::msg)?;
    let Some(written) = machine.and_then(|machine| machine.meta_data.hostname) else { return Ok(ExitCode::SUCCESS) };
    let name: Hostname = Hostname::shortened(&written)
        .map_err(|e: HostnameError| anyhow!("hostname: invalid hostname {written:?}, {e}"))?;
    if name.as_str() != written {
        warn!(log, "shortened the hostname"; "from" => &written, "hostname" => %name);
    }
    hostname::write(&args.output, &name).with_context(|| format!("writing {}", args.output.display()))?;
    info!(log, "wrote the hostname"; "hostname" => %name, "path" => %args.output.display());
    Ok(ExitCode::SUCCESS)
}

fn ssh_keys(args: SshKeys, log: &Logger) -> Result<ExitCode> {
    let options = args.machine.options();
    let Some(machine) = guest::machine_data(&options, &Linux::default(), log).map_err(Error::msg)? else {
        return Ok(ExitCode::SUCCESS);
    };
    let texts = &machine.meta_data.public_keys;
    let mut diagnostics = Diagnostics::default();
    let keys: Vec<AuthorizedKey> =
        texts.iter().flat_map(|(path, text)| ssh_keys::keys_in(text, path, &mut diagnostics)).collect();
    for diagnostic in diagnostics.kept() {
        warn!(log, "ignored an invalid public key"; "diagnostic" => %diagnostic);
    }
    let is_unsure = machine.meta_data.has_unread_keys || !diagnostics.kept().is_empty();
    if keys.is_empty() && is_unsure {
        // The keys that cannot be read may be keys that the owner wants to allow, so the keys of an earlier run stay.
        bail!("none of the drive's public keys can be read, expected lines of authorized_keys");
    }
    let account = Account::find(&args.user, &options.root)?;
    let path = ssh_keys::write(&account, args.key_file, &keys).context("writing public keys")?;
    let message = if keys.is_empty() { "the drive has no public keys" } else { "wrote public keys" };
    info!(log, "{}", message; "user" => args.user, "count" => keys.len(), "path" => %path.display());
    Ok(ExitCode::SUCCESS)
}

fn metadata(args: Metadata, log: &Logger) -> Result<ExitCode> {
    let keys: Vec<Key> = match args.keys.iter().map(|key| key.parse().map_err(|e| (key, e))).collect() {
        Ok(keys) => keys,
        Err((key, KeyError)) => {
            // If standard error is closed, the exit status still reports the error.
            let _ = writeln!(io::stderr(), "error: unknown key {key:?}, {KeyError}");
            return Ok(ExitCode::from(2));
        }
    };
    let cached = match args.config_drive {
        Some(_) => None,
        None => Attributes::cached(&args.root).with_context(|| format!("reading /{}", attributes::CACHE))?,
    };
    let known = match cached {
        Some(known) => known,
        None => {
            let source = args.config_drive.map_or(Source::Machine, Source::Drive);
            let options = Options { dry_run: true, ..Options::new(Selection::Detect, source, args.root) };
            guest::machine_data(&options, &Linux::default(), log).map_err(Error::msg)?.unwrap_or_default().attributes
        }
    };
    let mut asked = known.by_key();
    asked.retain(|name, _| keys.is_empty() || keys.iter().any(|key| key.to_string() == *name));
    let is_complete = keys.iter().all(|key| known.get(key).is_some());
    if args.json {
        print(&(serde_json::to_string_pretty(&asked)? + "\n"))?;
    } else if keys.is_empty() {
        let width = asked.keys().map(String::len).max().unwrap_or(0);
        print(&asked.iter().map(|(key, value)| format!("{key:width$}  {value}\n")).collect::<String>())?;
    } else if keys.len() > 1 || is_complete {
        // A missing value is an empty line, so that the lines stay in the order of the keys.
        print(&keys.iter().map(|key| format!("{}\n", known.get(key).unwrap_or_default())).collect::<String>())?;
    }
    Ok(if is_complete { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn print(text: &str) -> Result<()> {
    io::stdout().write_all(text.as_bytes()).context("writing to standard output")
}

fn exit_code(is_refused: bool) -> ExitCode {
    if is_refused { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

#[cfg(test)]
#[path = "../../tests/support/completions.rs"]
mod completions;
#[cfg(test)]
#[path = "../../tests/support/manual.rs"]
mod manual;

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    #[test]
    fn the_manual_pages_have_the_command_line_of_the_program() {
        crate::manual::check(crate::Cli::command(), "8");
    }

    #[test]
    fn the_completions_have_the_command_line_of_the_program() {
        crate::completions::check(crate::Cli::command());
    }
}
