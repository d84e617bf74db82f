//! glowplug-controller: allocates the first-boot addresses of machines on Kubernetes.

use std::io::{self, Write as _};

use anyhow::Context as _;
use clap::{Parser, Subcommand};
use glowplug_controller::api::definitions;

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
}

fn main() -> anyhow::Result<()> {
    let Arguments { command } = Arguments::parse();
    match command {
        Command::Crd => print_definitions(),
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
