//! The guest's program: arguments, logger, exit code.
//!
//! Exit codes: 0 done or nothing to do, 1 refused or failed, 2 usage.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Args, Parser, Subcommand};
use glowplug::guest::platform::Selection;
use glowplug::guest::report::Report;
use glowplug::guest::system::Linux;
use glowplug::guest::{self, DefaultValue, OnError, Options, Source};
use glowplug::log;
use glowplug::render::Renderer;
use slog::Level;

#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;

/// The first-boot network of CoreOS machines on KubeVirt
#[derive(Parser)]
#[command(name = "glowplug", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Write the kernel arguments that the config drive asks for, before dracut reads them
    NetworkKargs(NetworkKargs),
    /// Explain a config drive, an image or a document; without PATH, what this boot did
    Check(Check),
    /// Accepted for units that were written for afterburn
    #[command(subcommand, hide = true)]
    Exp(Exp),
}

#[derive(Subcommand)]
enum Exp {
    /// The same as network-kargs
    RdNetworkKargs(NetworkKargs),
}

#[derive(Args)]
struct NetworkKargs {
    /// Take the platform from the kernel command line alone (ignition.platform.id=)
    #[arg(long, conflicts_with = "provider")]
    cmdline: bool,
    /// Take this for the platform; glowplug acts on kubevirt
    #[arg(long, value_name = "NAME")]
    provider: Option<String>,
    /// Read this drive, a directory, an image or a device, instead of looking for one
    #[arg(long, value_name = "PATH")]
    config_drive: Option<PathBuf>,
    /// The network program of the initramfs: network-manager
    #[arg(long, value_name = "NAME", default_value_t)]
    renderer: Renderer,
    /// Arguments for a machine whose drive configures nothing, or that has no drive
    #[arg(long, value_name = "KARGS")]
    default_value: Option<DefaultValue>,
    /// What a broken document means: fail, or go on with the default value
    #[arg(long, value_name = "fail|default", default_value = "fail")]
    on_error: OnError,
    /// How long to wait for a drive where the machine is known to be KubeVirt
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    wait: u64,
    /// Ask dracut to start the network in any case (rd.neednet=1); Ignition asks for itself
    #[arg(long)]
    neednet: bool,
    /// Read and write everything below this directory
    #[arg(long, value_name = "DIR", default_value = "/")]
    root: PathBuf,
    /// Print the arguments as one line, and write nothing
    #[arg(long)]
    print: bool,
}

#[derive(Args)]
struct Check {
    /// A directory, an image, a device or a single document
    path: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Read everything of this machine below this directory
    #[arg(long, value_name = "DIR", default_value = "/")]
    root: PathBuf,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let done = match cli.command {
        Command::NetworkKargs(args) | Command::Exp(Exp::RdNetworkKargs(args)) => network_kargs(args),
        Command::Check(args) => check(args),
    };
    done.unwrap_or_else(|error| {
        slog::error!(log::to_standard_error(Level::Error), "failed"; "error" => format_args!("{error:#}"));
        ExitCode::FAILURE
    })
}

fn network_kargs(args: NetworkKargs) -> Result<ExitCode> {
    let log = log::to_standard_error(Level::Info);
    let selection = match args.provider {
        Some(provider) => Selection::Provider(provider),
        None if args.cmdline => Selection::CommandLine,
        None => Selection::Detect,
    };
    let options = Options {
        selection,
        source: args.config_drive.map_or(Source::Machine, Source::Drive),
        renderer: args.renderer,
        default_value: args.default_value,
        on_error: args.on_error,
        wait: Duration::from_secs(args.wait),
        root: args.root,
        dry_run: args.print,
        neednet: args.neednet,
    };
    let plan = guest::plan(&options, &Linux::default(), &log);
    if !options.dry_run {
        guest::apply(&plan, &options.root, &log).with_context(|| format!("writing /{}", guest::FRAGMENT))?;
    } else if let Some(line) = &plan.line {
        writeln!(io::stdout(), "{line}").context("writing to standard output")?;
    }
    Ok(exit_code(&plan.report))
}

fn check(args: Check) -> Result<ExitCode> {
    // The report holds what is worth knowing.
    let log = log::to_standard_error(Level::Critical);
    let recorded = match &args.path {
        Some(_) => None,
        None => guest::recorded(&args.root).with_context(|| format!("reading /{}", guest::PLAN))?,
    };
    let report = recorded.unwrap_or_else(|| {
        let options = Options {
            selection: Selection::Detect,
            source: args.path.map_or(Source::Machine, Source::DriveOrDocument),
            renderer: Renderer::default(),
            default_value: None,
            on_error: OnError::Fail,
            wait: Duration::ZERO,
            root: args.root,
            dry_run: true,
            neednet: false,
        };
        guest::plan(&options, &Linux::default(), &log).report
    });
    let text = if args.json { serde_json::to_string_pretty(&report)? + "\n" } else { report.to_string() };
    io::stdout().write_all(text.as_bytes()).context("writing to standard output")?;
    Ok(exit_code(&report))
}

fn exit_code(report: &Report) -> ExitCode {
    if report.is_refused() { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
