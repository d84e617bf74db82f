//! glowplug-controller: allocates the first-boot addresses of machines on Kubernetes.

use std::io::{self, Write as _};
use std::time::Duration;

use anyhow::Context as _;
use clap::{Parser, Subcommand, ValueEnum};
use glowplug_controller::kinds::pool::definitions;
use glowplug_controller::program::run;
use glowplug_controller::program::run::Options;
use tracing_subscriber::EnvFilter;

/// Memory allocator of the statically linked program. A comment in `Cargo.toml` gives the reason.
#[cfg(all(target_env = "musl", target_arch = "x86_64"))]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Allocate the first-boot addresses of machines on Kubernetes.
#[derive(Debug, Parser)]
#[command(name = "glowplug-controller", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Print the CustomResourceDefinitions of pools and leases.
    Crd,
    /// Run the controller until SIGTERM.
    Run {
        #[command(flatten)]
        options: Box<Options>,
        /// Write logs in this format. RUST_LOG chooses what is logged
        #[arg(long, value_enum, default_value = "text")]
        log_format: LogFormat,
    },
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum LogFormat {
    /// Lines for people
    Text,
    /// One JSON object on each line
    Json,
}

fn main() -> anyhow::Result<()> {
    let Arguments { command } = Arguments::parse();
    match command {
        Command::Crd => print_definitions(),
        Command::Run { options, log_format } => {
            log(log_format);
            let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
            let runtime = runtime.context("starting threads")?;
            let result = runtime.block_on(run::run(*options));
            // A task that publishes the last events may still write log lines.
            runtime.shutdown_timeout(SHUTDOWN);
            if result.is_ok() {
                tracing::info!("ended");
            }
            result
        }
    }
}

/// Maximum time to wait for the threads after the work has ended.
const SHUTDOWN: Duration = Duration::from_secs(1);

/// Silences crates that log each failed request and each failed watch, because this program logs these failures itself.
/// RUST_LOG can set other levels.
const QUIET: &str = "kube_client=off,kube_runtime=off";

fn log(format: LogFormat) {
    let levels = std::env::var(EnvFilter::DEFAULT_ENV).unwrap_or_else(|_| "info".to_owned());
    let filter =
        EnvFilter::try_new(format!("{QUIET},{levels}")).unwrap_or_else(|_| EnvFilter::new(format!("{QUIET},info")));
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr);
    match format {
        LogFormat::Text => lines.with_ansi(false).init(),
        LogFormat::Json => lines.json().init(),
    }
}

fn print_definitions() -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    for definition in definitions() {
        let text = serde_saphyr::to_string(&definition).context("writing the definition")?;
        write!(out, "---\n{text}").context("writing to the standard output")?;
    }
    Ok(())
}

#[cfg(test)]
#[path = "../../tests/support/manual.rs"]
mod manual;

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_manual_pages_have_the_command_line_of_the_program() {
        manual::check(Arguments::command(), "8");
    }
}
