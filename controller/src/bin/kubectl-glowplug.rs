//! kubectl-glowplug: a plugin of kubectl that explains pools and machines. Only `adopt --apply` changes an object.

use std::fmt::Display;
use std::io::{IsTerminal as _, Write as _, stderr, stdout};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, anyhow};
use clap::error::{ContextKind, ContextValue};
use clap::{Args, Parser, Subcommand};
use glowplug::host::claim::{NAMESPACE_NAME, is_namespace, is_object_name};
use glowplug::terminal::escaped;
use glowplug_controller::cluster::client::{connect_as, kubeconfig_message, naming_server, read_kubeconfig};
use glowplug_controller::cluster::key::Key;
use glowplug_controller::explain::adopt::{Commands, POOL_NAME, Place, adopt};
use glowplug_controller::explain::audit::audit;
use glowplug_controller::explain::plan::plan;
use glowplug_controller::explain::read::{Lacking, Reader};
use glowplug_controller::explain::status::status;
use glowplug_controller::explain::text::{json, quoted, with_bold_heads};
use glowplug_controller::explain::why::{machine_key, why};
use kube::Config;
use kube::config::{KubeConfigOptions, KubeconfigError};
use serde::Serialize;

/// Name and version of the program, as each request to the API server names them.
const PROGRAM: &str = concat!("kubectl-glowplug/", env!("CARGO_PKG_VERSION"));

/// Name of the argument with the machines of `adopt`, as in an error of clap.
const MACHINES: &str = "[NAMESPACE/NAME]...";

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
    /// Explain the controller that runs with this --namespace
    #[arg(long, value_name = "NAME", global = true, value_parser = namespace)]
    namespace: Option<String>,
    /// Print JSON
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Print all pools: free and allocated addresses, waiting machines and claims
    Status,
    /// Explain what a machine or claim holds, or what it waits for
    Why {
        /// The VirtualMachine, KubevirtMachine, IPAddressClaim or IPAMClaim
        #[arg(value_name = "NAMESPACE/NAME", value_parser = machine_key)]
        object: Key,
    },
    /// Compare the leases with machines, claims, Secrets and reports of guests
    Audit,
    /// Compare pools in files with the cluster, before you apply the files
    Plan {
        /// Files with pools, as JSON or YAML; a folder stands for its files that
        /// end with .json, .yaml or .yml; - is standard input
        #[arg(value_name = "FILE|FOLDER|-", required = true)]
        files: Vec<PathBuf>,
    },
    /// Show what a pool does to the machines that run already
    Adopt(Adopt),
}

#[derive(Args, Debug)]
struct Adopt {
    #[command(flatten)]
    of: PoolPlace,
    /// Limit the command to these VirtualMachines
    #[arg(value_name = "NAMESPACE/NAME", value_parser = machine_key)]
    machines: Vec<Key>,
    /// Write the changes of the run that printed this digest
    #[arg(long, value_name = "DIGEST")]
    apply: Option<String>,
}

#[derive(Args, Debug)]
#[group(required = true, multiple = false)]
struct PoolPlace {
    /// Read the pool from this file or folder; the cluster must not have it
    #[arg(short, long, value_name = "FILE|FOLDER|-")]
    file: Option<PathBuf>,
    /// Use this pool of the cluster
    #[arg(long, value_name = "[NAMESPACE/]NAME", value_parser = machine_pool)]
    pool: Option<String>,
}

/// Parses the name of a namespace.
fn namespace(text: &str) -> Result<String, String> {
    is_namespace(text).then(|| text.to_owned()).ok_or_else(|| format!("expected {NAMESPACE_NAME}"))
}

/// Parses `namespace/name` of a StaticIPPool, or the name of a GlobalStaticIPPool.
fn machine_pool(text: &str) -> Result<String, String> {
    let is_pool = is_object_name(text) || machine_key(text).is_ok();
    is_pool.then(|| text.to_owned()).ok_or_else(|| format!("expected {POOL_NAME}"))
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let arguments = Arguments::try_parse().unwrap_or_else(|error| with_tip(error).exit());
    run(arguments).await.unwrap_or_else(|error| {
        // If standard error is closed, the exit status still reports the error.
        let _ = writeln!(stderr(), "error: {}", escaped(&format!("{error:#}")));
        ExitCode::FAILURE
    })
}

/// Replaces the tip of clap about options that kubectl has and the plugin does not have: clap would suggest passing the
/// option as a value. If `adopt` gets a file in place of a machine, adds a tip about `--file`.
fn with_tip(mut error: clap::Error) -> clap::Error {
    let text = |kind: ContextKind| match error.get(kind) {
        Some(ContextValue::String(text)) => text.clone(),
        Some(ContextValue::StyledStr(text)) => text.to_string(),
        _ => String::new(),
    };
    let (argument, value) = (text(ContextKind::InvalidArg), text(ContextKind::InvalidValue));
    let usage = text(ContextKind::Usage);
    let takes_name = ["why", "adopt"].iter().any(|command| usage.contains(&format!(" {command} ")));
    let is_file = [".yaml", ".yml", ".json"].iter().any(|ending| value.ends_with(ending));
    let tip = match argument.as_str() {
        "-n" | "-A" | "--all-namespaces" if takes_name => "expected NAMESPACE/NAME".to_owned(),
        "-n" | "-A" | "--all-namespaces" => "every namespace is read".to_owned(),
        "-f" => "expected plan FILE".to_owned(),
        MACHINES if is_file => format!("--file {}", quoted(&value)),
        _ => return error,
    };
    error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    error
}

/// Runs a command. The exit status is 1 if the user lacks a right, or if the answer of `audit`, `plan` or `adopt` lists
/// something that a person must do.
async fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    let Arguments { kubeconfig, context, namespace, json, command } = arguments;
    let kubectl = kubectl(kubeconfig.as_deref(), context.as_deref());
    let config = config(kubeconfig, context).await?;
    let server = config.cluster_url.clone();
    let client = connect_as(PROGRAM, config).context("connecting to the API server")?;
    let reader = Reader::new(naming_server(&client, &server), namespace, stderr().is_terminal());
    let is_clean = match command {
        Command::Status => print(&status(&reader).await?, &reader, json).map(|()| true),
        Command::Why { object } => print(&why(&reader, &object).await?, &reader, json).map(|()| true),
        Command::Audit => {
            let answer = audit(&reader).await?;
            print(&answer, &reader, json).map(|()| answer.is_clean())
        }
        Command::Plan { files } => {
            let answer = plan(&reader, &files).await?;
            print(&answer, &reader, json).map(|()| answer.is_clean())
        }
        Command::Adopt(Adopt { of: PoolPlace { file, pool }, machines, apply }) => {
            let place = file.map(Place::File).or(pool.map(Place::Cluster)).context("--file or --pool: missing")?;
            let words = std::env::args_os().map(|word| word.to_string_lossy().into_owned());
            let commands = Commands { kubectl, adopt: command_line(words) };
            let answer = adopt(&reader, &place, &machines, apply.as_deref(), &commands).await?;
            print(&answer, &reader, json).map(|()| answer.is_clean())
        }
    };
    let is_clean = is_clean? && reader.lacking().is_empty();
    Ok(if is_clean { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Returns the beginning of a kubectl command line for the cluster of the user.
fn kubectl(kubeconfig: Option<&Path>, context: Option<&str>) -> String {
    let file = kubeconfig.map(|file| format!(" --kubeconfig {}", quoted(&file.to_string_lossy())));
    let context = context.map(|name| format!(" --context {}", quoted(name)));
    format!("kubectl{}{}", file.unwrap_or_default(), context.unwrap_or_default())
}

/// Returns the command line of a user who runs the plugin through kubectl, without the option `--apply` and its value.
/// Leaves out the word `--`, so that an option can follow: no name of a machine begins with `-`.
fn command_line(words: impl Iterator<Item = String>) -> String {
    let (mut line, mut words) = ("kubectl glowplug".to_owned(), words.skip(1));
    while let Some(word) = words.next() {
        match word.as_str() {
            "--" => {}
            "--apply" => drop(words.next()),
            word if word.starts_with("--apply=") => {}
            word => line += &format!(" {}", quoted(word)),
        }
    }
    line
}

async fn config(file: Option<PathBuf>, context: Option<String>) -> anyhow::Result<Config> {
    let alone = |error: KubeconfigError| anyhow!("{}", kubeconfig_message(&error));
    let read = read_kubeconfig(file.as_deref())?;
    let options = KubeConfigOptions { context, ..KubeConfigOptions::default() };
    Config::from_custom_kubeconfig(read, &options).await.map_err(alone).context("using the kubeconfig file")
}

/// Prints an answer. The rights that the user lacks go into the JSON object, or as warnings to standard error.
fn print(answer: &(impl Serialize + Display), reader: &Reader, as_json: bool) -> anyhow::Result<()> {
    let lacking = reader.lacking();
    let text = if as_json {
        let mut value = serde_json::to_value(answer)?;
        if let (false, Some(members)) = (lacking.is_empty(), value.as_object_mut()) {
            let rights: Vec<String> = lacking.into_iter().map(|lacking| lacking.right).collect();
            members.insert("missingRights".to_owned(), rights.into());
        }
        json(&value)
    } else {
        for Lacking { right, without } in lacking {
            let without = without.map(|without| format!(": {without}")).unwrap_or_default();
            // If standard error is closed, the exit status still reports the missing right.
            let _ = writeln!(stderr(), "warning: missing right: {}{without}", escaped(&right));
        }
        let tables = answer.to_string();
        let has_colour = stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        if has_colour { with_bold_heads(&tables) } else { tables }
    };
    stdout().write_all(text.as_bytes()).context("writing to standard output")
}

#[cfg(test)]
#[path = "../../../tests/support/manual.rs"]
mod manual;

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn a_namespace_has_at_most_63_characters_and_no_dot() {
        let longest = "a".repeat(63);
        assert_eq!(namespace(&longest), Ok(longest.clone()));
        let error = format!("expected {NAMESPACE_NAME}");
        for text in ["", "a.b", "A", "-a", &format!("{longest}a")] {
            assert_eq!(namespace(text), Err(error.clone()), "{text}");
        }
    }

    #[test]
    fn an_option_of_kubectl_and_a_file_in_place_of_a_machine_add_a_tip_to_the_error() {
        let name = "expected NAMESPACE/NAME";
        for (words, tip) in [
            (&["status", "-n", "t1"][..], Some("every namespace is read")),
            (&["status", "-A"], Some("every namespace is read")),
            (&["audit", "--all-namespaces"], Some("every namespace is read")),
            (&["plan", "-n", "t1", "pool.yaml"], Some("every namespace is read")),
            (&["why", "-n", "shop", "web-0"], Some(name)),
            (&["adopt", "--pool", "n/p", "-n", "shop"], Some(name)),
            (&["plan", "-f", "pool.yaml"], Some("expected plan FILE")),
            (&["adopt", "sp.yaml"], Some("--file sp.yaml")),
            (&["adopt", "a b.json"], Some("--file 'a b.json'")),
            (&["adopt", "--pool", "n/p", "web-0"], None),
            (&["why", "sp.yaml"], None),
        ] {
            let words = ["kubectl-glowplug"].into_iter().chain(words.iter().copied());
            let error = with_tip(Arguments::try_parse_from(words.clone()).unwrap_err()).to_string();
            let tips: Vec<&str> = error.lines().filter_map(|line| line.trim().strip_prefix("tip: ")).collect();
            assert_eq!(tips, Vec::from_iter(tip), "{:?}: {error}", Vec::from_iter(words));
        }
    }

    #[test]
    fn a_kubectl_command_line_has_the_kubeconfig_file_and_the_context_of_the_user() {
        assert_eq!(kubectl(None, None), "kubectl");
        assert_eq!(kubectl(Some(Path::new("a b")), Some("c")), "kubectl --kubeconfig 'a b' --context c");
    }

    #[test]
    fn the_command_line_of_a_user_is_shown_with_quotes_and_without_its_option_apply() {
        let line = |words: &[&str]| command_line(words.iter().map(|word| (*word).to_owned()));
        let words = ["kubectl-glowplug", "adopt", "--file=a b.yaml", "--apply", "x", "--context", "c", "shop/db-0"];
        assert_eq!(line(&words), "kubectl glowplug adopt '--file=a b.yaml' --context c shop/db-0");
        assert_eq!(line(&["x", "adopt", "--apply=y", "--pool", "n/p"]), "kubectl glowplug adopt --pool n/p");
        let after_options = ["x", "adopt", "--pool", "n/p", "--", "shop/db-0"];
        assert_eq!(line(&after_options), "kubectl glowplug adopt --pool n/p shop/db-0");
    }

    #[test]
    fn the_manual_pages_have_the_command_line_of_the_program() {
        manual::check(Arguments::command(), "1");
    }
}
