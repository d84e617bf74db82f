//! The guest's program: arguments, logger, exit code.
//!
//! Exit codes: 0 done or nothing to do, 1 refused or failed, 2 usage.

use std::env;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Error, Result, anyhow, bail};
use clap::{Args, Parser, Subcommand};
use glowplug::finding::Findings;
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

/// Where a distribution says its default arguments, in a drop-in of the unit.
const DEFAULT_VARIABLE: &str = "GLOWPLUG_NETWORK_KARGS_DEFAULT";

/// Names the least level that is logged, whatever the command.
const LOG_VARIABLE: &str = "GLOWPLUG_LOG";

#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;

/// The first-boot network of CoreOS machines on KubeVirt
#[derive(Parser)]
#[command(name = "glowplug", version = glowplug::VERSION, max_term_width = 100)]
struct Cli {
    /// Log each step and each device that was looked at; also GLOWPLUG_LOG=debug, and glowplug.debug at the boot loader
    #[arg(short, long, global = true)]
    verbose: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Write the kernel arguments that the config drive asks for, before dracut reads them
    NetworkKargs(NetworkKargs),
    /// Explain a config drive, an image or a document; without PATH, what this boot did
    Check(Check),
    /// Write what the drive says about the machine as an EnvironmentFile= for units
    Attributes(WriteAttributes),
    /// Write the hostname that the drive gives the machine
    Hostname(WriteHostname),
    /// Let the public keys of the drive log in as a user
    SshKeys(SshKeys),
    /// Tell what the drive says about the machine: one line for each KEY, or all of it as a table
    Metadata(Metadata),
    /// Accepted for units that were written for afterburn
    #[command(subcommand, hide = true)]
    Exp(Exp),
}

#[derive(Subcommand)]
enum Exp {
    /// The same as network-kargs
    RdNetworkKargs(NetworkKargs),
}

/// Which machine, and which drive.
#[derive(Args)]
struct Machine {
    /// Take the platform from the kernel command line alone (ignition.platform.id=)
    #[arg(long, conflicts_with = "provider")]
    cmdline: bool,
    /// Take this for the platform; glowplug acts on kubevirt
    #[arg(long, value_name = "NAME")]
    provider: Option<String>,
    /// Read this drive, a directory, an image or a device, instead of looking for one
    #[arg(long, value_name = "PATH")]
    config_drive: Option<PathBuf>,
    /// Take the drive of another machine when this machine's own is not there; else that is an error
    #[arg(long)]
    any_drive: bool,
    /// How long to wait for a drive where the machine is known to be KubeVirt
    #[arg(long, value_name = "SECONDS", default_value = "10")]
    wait: Wait,
    /// Read and write everything below this directory
    #[arg(long, value_name = "DIR", default_value = "/")]
    root: PathBuf,
}

#[derive(Args)]
struct NetworkKargs {
    #[command(flatten)]
    machine: Machine,
    /// The network program of the initramfs: network-manager, systemd-networkd or network-legacy
    #[arg(long, value_name = "NAME", default_value_t)]
    renderer: Renderer,
    /// Arguments for a machine whose drive configures nothing, or that has no drive; else those of the variable
    /// GLOWPLUG_NETWORK_KARGS_DEFAULT, else none
    #[arg(long, value_name = "KARGS")]
    default_value: Option<DefaultValue>,
    /// Fail where a default is needed and neither the option nor the variable is there; empty means none
    #[arg(long)]
    require_default: bool,
    /// What a broken document means: fail, or go on with the default value
    #[arg(long, value_name = "fail|default", default_value = "fail")]
    on_error: OnError,
    /// Ask dracut to start the network in any case (rd.neednet=1); Ignition asks for itself
    #[arg(long)]
    neednet: bool,
    /// Print the arguments as one line, and the files for systemd-networkd each below its path, and write nothing
    #[arg(long)]
    print: bool,
}

#[derive(Args)]
struct WriteAttributes {
    #[command(flatten)]
    machine: Machine,
    /// Write this file
    #[arg(long, value_name = "FILE")]
    output: PathBuf,
    /// What the names begin with, before KUBEVIRT_; AFTERBURN_ gives afterburn's own names
    #[arg(long, default_value_t)]
    prefix: Prefix,
}

#[derive(Args)]
struct WriteHostname {
    #[command(flatten)]
    machine: Machine,
    /// Write this file, such as /sysroot/etc/hostname
    #[arg(long, value_name = "FILE")]
    output: PathBuf,
}

#[derive(Args)]
struct SshKeys {
    #[command(flatten)]
    machine: Machine,
    /// Whose keys they are, by the name in /etc/passwd
    #[arg(long, value_name = "USER")]
    user: String,
    /// The file in ~/.ssh/authorized_keys.d: glowplug or afterburn
    #[arg(long, value_name = "NAME", default_value_t)]
    key_file: KeyFile,
}

#[derive(Args)]
struct Metadata {
    /// Such as hostname, instance-id, ipv4 or mac-1
    #[arg(value_name = "KEY")]
    keys: Vec<String>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Ask this drive, a directory, an image or a device, instead of this machine
    #[arg(long, value_name = "PATH")]
    config_drive: Option<PathBuf>,
    /// Read everything of this machine below this directory
    #[arg(long, value_name = "DIR", default_value = "/")]
    root: PathBuf,
}

#[derive(Args)]
struct Check {
    /// A directory, an image, a device or a single document; - reads a document from standard input
    path: Option<PathBuf>,
    /// Explain it for this network program: network-manager, systemd-networkd or network-legacy
    #[arg(long, value_name = "NAME", default_value_t)]
    renderer: Renderer,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Read everything of this machine below this directory
    #[arg(long, value_name = "DIR", default_value = "/")]
    root: PathBuf,
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
    /// The log of the command. `-v` wins over the variable, and the variable over the kernel command line.
    fn logger(&self) -> Logger {
        let (least, root) = match &self.command {
            // The report holds what is worth knowing.
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

impl Machine {
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
    // A machine of VMware has no drive, only a property.
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

/// The option wins over the variable. What is wrong with the variable costs nothing on a machine that needs no default.
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
    let recorded = match &args.path {
        Some(_) => None,
        None => guest::recorded(&args.root).with_context(|| format!("reading /{}", guest::PLAN))?,
    };
    if let Some(recorded) = recorded {
        print(if args.json { &recorded.json } else { &recorded.page })?;
        return Ok(exit_code(recorded.is_refused));
    }
    let source = match args.path {
        None => Source::Machine,
        Some(path) if path.as_os_str() == "-" => Source::StandardInput,
        Some(path) => Source::DriveOrDocument(path),
    };
    let is_named = source != Source::Machine;
    let options =
        Options { renderer: args.renderer, dry_run: true, ..Options::new(Selection::Detect, source, args.root) };
    let report = guest::plan(&options, &Linux::default(), log).report;
    print(&if args.json { serde_json::to_string_pretty(&report)? + "\n" } else { report.to_string() })?;
    // Nobody writes a document for a machine that is to have the default network.
    let is_without_effect = is_named && report.document.is_some() && report.outcome == Outcome::Default;
    Ok(exit_code(report.is_refused() || is_without_effect))
}

fn attributes(args: WriteAttributes, log: &Logger) -> Result<ExitCode> {
    let options = args.machine.options();
    if let Some(machine) = guest::machine(&options, &Linux::default(), log).map_err(Error::msg)? {
        guest::write_in_one_step(&args.output, &machine.attributes.environment_file(&args.prefix))
            .with_context(|| format!("writing {}", args.output.display()))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn hostname(args: WriteHostname, log: &Logger) -> Result<ExitCode> {
    let machine = guest::machine(&args.machine.options(), &Linux::default(), log).map_err(Error::msg)?;
    let Some(written) = machine.and_then(|machine| machine.meta_data.hostname) else { return Ok(ExitCode::SUCCESS) };
    let name: Hostname =
        written.parse().map_err(|e: HostnameError| anyhow!("hostname: invalid hostname {written:?}, {e}"))?;
    hostname::write(&args.output, &name).with_context(|| format!("writing {}", args.output.display()))?;
    info!(log, "wrote the hostname"; "hostname" => %name, "path" => %args.output.display());
    Ok(ExitCode::SUCCESS)
}

fn ssh_keys(args: SshKeys, log: &Logger) -> Result<ExitCode> {
    let options = args.machine.options();
    let Some(machine) = guest::machine(&options, &Linux::default(), log).map_err(Error::msg)? else {
        return Ok(ExitCode::SUCCESS);
    };
    let texts = &machine.meta_data.public_keys;
    let mut findings = Findings::default();
    let keys: Vec<AuthorizedKey> =
        texts.iter().flat_map(|(place, text)| ssh_keys::keys_in(text, place, &mut findings)).collect();
    for finding in findings.kept() {
        warn!(log, "ignored what is no public key"; "finding" => %finding);
    }
    let is_unsure = machine.meta_data.has_unread_keys || !findings.kept().is_empty();
    if keys.is_empty() && is_unsure {
        // Whether the owner wants nobody to log in is not known, so what an earlier run wrote stays.
        bail!("none of the drive's public keys can be read, expected lines of authorized_keys");
    }
    let account = Account::find(&args.user, &options.root)?
        .with_context(|| format!("unknown user {:?}, expected one of /etc/passwd", args.user))?;
    let path = ssh_keys::write(&account, args.key_file, &keys).context("writing public keys")?;
    let message = if keys.is_empty() { "the drive has no public keys" } else { "wrote public keys" };
    info!(log, "{}", message; "user" => args.user, "count" => keys.len(), "path" => %path.display());
    Ok(ExitCode::SUCCESS)
}

fn metadata(args: Metadata, log: &Logger) -> Result<ExitCode> {
    let keys: Vec<Key> = match args.keys.iter().map(|key| key.parse().map_err(|e| (key, e))).collect() {
        Ok(keys) => keys,
        Err((key, KeyError)) => {
            // Whether or not anybody listens.
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
            guest::machine(&options, &Linux::default(), log).map_err(Error::msg)?.unwrap_or_default().attributes
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
        // An empty line for what is absent, so that the lines stay those of the keys.
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
