//! kubectl-glowplug: a plugin of kubectl that explains pools and machines. It reads the API server and changes nothing.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Args, Parser, Subcommand};
use glowplug::terminal::escaped;
use glowplug_controller::cluster::client::connect;
use glowplug_controller::cluster::key::Key;
use glowplug_controller::cluster::object::Object;
use glowplug_controller::explain::list;
use glowplug_controller::explain::machine::{Answer, Event, Facts, explain, explain_rejected, machine_key};
use glowplug_controller::explain::pools::summarize;
use glowplug_controller::kinds::mac_pool::MACPool;
use glowplug_controller::kinds::pool::{GlobalStaticIPPool, LeaseSpec, StaticIPLease, StaticIPPool};
use glowplug_controller::kinds::virtual_machine::{
    VirtualMachine, instances, kubevirt_machines, node_pools, virtual_machines,
};
use glowplug_controller::pools::facts::PoolObject;
use glowplug_controller::pools::selection::KnownPool;
use kube::api::{Api, ApiResource, ListParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::GroupVersionKind;
use kube::{Client, Config};
use serde::Serialize;

/// Explain the pools and machines of glowplug-controller
#[derive(Debug, Parser)]
#[command(name = "kubectl-glowplug", bin_name = "kubectl glowplug", version, max_term_width = 80)]
struct Arguments {
    /// Connect with this kubeconfig file
    #[arg(long, value_name = "FILE", global = true)]
    kubeconfig: Option<PathBuf>,
    /// Use this context of the kubeconfig file
    #[arg(long, value_name = "NAME", global = true)]
    context: Option<String>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Print all pools: free and allocated addresses, waiting machines
    Status(Output),
    /// Explain what a machine holds, or what it waits for
    Why {
        /// The VirtualMachine, or the KubevirtMachine whose VirtualMachine is rejected
        #[arg(value_name = "NAMESPACE/NAME", value_parser = machine_key)]
        machine: Key,
        #[command(flatten)]
        output: Output,
    },
}

#[derive(Args, Debug)]
struct Output {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let done = run(Arguments::parse()).await;
    done.map_or_else(
        |error| {
            // If standard error is closed, the exit status still reports the error.
            let _ = writeln!(std::io::stderr(), "error: {}", escaped(&format!("{error:#}")));
            ExitCode::FAILURE
        },
        |()| ExitCode::SUCCESS,
    )
}

async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let Arguments { kubeconfig, context, command } = arguments;
    let client = connect(config(kubeconfig, context).await?).context("connecting to the API server")?;
    match command {
        Command::Status(output) => {
            let mut pools = all(&client, &ApiResource::erase::<StaticIPPool>(&())).await?;
            pools.extend(all(&client, &ApiResource::erase::<GlobalStaticIPPool>(&())).await?);
            let mac_pools = all(&client, &ApiResource::erase::<MACPool>(&())).await?;
            print(&summarize(pools, mac_pools), &output)
        }
        Command::Why { machine, output } => print(&why(&client, &machine).await?, &output),
    }
}

async fn config(file: Option<PathBuf>, context: Option<String>) -> anyhow::Result<Config> {
    let read = match &file {
        Some(file) => Kubeconfig::read_from(file).with_context(|| format!("reading {}", file.display())),
        None => Kubeconfig::read().context("reading the kubeconfig file"),
    };
    let options = KubeConfigOptions { context, ..KubeConfigOptions::default() };
    Config::from_custom_kubeconfig(read?, &options).await.context("using the kubeconfig file")
}

async fn all(client: &Client, kind: &ApiResource) -> anyhow::Result<Vec<Object>> {
    let api = Api::all_with(client.clone(), kind);
    list(&api, &ListParams::default()).await.with_context(|| format!("listing {}", kind.plural))
}

/// Reads what the cluster says about a machine, and explains it.
async fn why(client: &Client, key: &Key) -> anyhow::Result<Answer> {
    let named = |kind: &ApiResource| Api::<Object>::namespaced_with(client.clone(), &key.namespace, kind);
    let pools = all(client, &ApiResource::erase::<StaticIPPool>(&())).await?;
    let pools: Vec<KnownPool> = pools.into_iter().map(|pool| KnownPool::read(PoolObject::read(pool))).collect();
    let leases = all(client, &ApiResource::erase::<StaticIPLease>(&())).await?;
    let spec = |lease: Object| serde_json::from_value::<LeaseSpec>(lease.data.get("spec")?.clone()).ok();
    let leases: Vec<LeaseSpec> = leases.into_iter().filter_map(spec).collect();
    let machine = named(&virtual_machines()).get_opt(&key.name).await.context("reading the VirtualMachine")?;
    let Some(machine) = machine else {
        let machine = named(&kubevirt_machines()).get_opt(&key.name).await.context("reading the KubevirtMachine")?;
        let machine = machine.with_context(|| format!("{key}: neither a VirtualMachine nor a KubevirtMachine"))?;
        return Ok(explain_rejected(&machine, &pools, &leases));
    };
    let instance = named(&instances()).get_opt(&key.name).await.context("reading the instance")?;
    let phase = instance.and_then(|instance| Some(instance.data["status"]["phase"].as_str()?.to_owned()));
    let of_machine = format!("involvedObject.kind=VirtualMachine,involvedObject.name={}", key.name);
    let kind = ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk("", "v1", "Event"), "events");
    let events = list(&named(&kind), &ListParams::default().fields(&of_machine)).await.context("listing events")?;
    Ok(explain(Facts {
        machine: VirtualMachine::read(machine),
        phase,
        pools,
        node_pools: all(client, &node_pools()).await?,
        leases,
        events: events.iter().filter_map(Event::of_controller).collect(),
    }))
}

fn print(answer: &(impl Serialize + std::fmt::Display), output: &Output) -> anyhow::Result<()> {
    let text = match output.json {
        // The escapes of JSON, so that no text of the API server acts on a terminal.
        true => serde_json::to_string_pretty(answer)?.lines().map(|line| escaped_json(line) + "\n").collect(),
        false => answer.to_string(),
    };
    std::io::stdout().write_all(text.as_bytes()).context("writing to standard output")
}

fn escaped_json(line: &str) -> String {
    let escape = |c: char| match glowplug::terminal::acts_on_terminal(c) {
        true => format!("\\u{:04x}", u32::from(c)),
        false => c.to_string(),
    };
    line.chars().map(escape).collect()
}

#[cfg(test)]
#[path = "../../../tests/support/manual.rs"]
mod manual;

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_manual_pages_have_the_command_line_of_the_program() {
        manual::check(Arguments::command(), "1");
    }
}
