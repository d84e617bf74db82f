//! The running program: what is started, in which order it ends.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::Args;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::claims::Provider;
use crate::client::connect;
use crate::diagnostics::Diagnostics;
use crate::election::Candidate;
use crate::metrics::Metrics;
use crate::pools::{Pools, Scope};
use crate::registry::{RegistryHandle, Stopped};
use crate::serve::{Certificate, Phase, serve};
use crate::webhook::Webhooks;

/// Name of the Lease that the leader holds, in the namespace of the program.
const LEASE: &str = "glowplug-controller";
/// How long a leader leads without an answer of the API server, as in other controllers.
const LEASE_DURATION: Duration = Duration::from_secs(15);
/// How long requests are served on after `/readyz` said no: the endpoints of a Service follow later.
const LINGER: Duration = Duration::from_secs(10);

/// Options of `glowplug-controller run`: those that clusterctl and the operator of Cluster API give a provider, and ours.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// Read the address of the API server from this file, not from the pod
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Work in this namespace only; empty: in all
    #[arg(long, value_name = "NAME", default_value = "")]
    pub namespace: String,
    /// Work only while this replica holds the Lease
    #[arg(long, num_args = 0..=1, default_value_t = false, default_missing_value = "true", require_equals = true)]
    pub leader_elect: bool,
    /// Work only on objects whose label cluster.x-k8s.io/watch-filter is this
    #[arg(long, value_name = "VALUE", default_value = "")]
    pub watch_filter: String,
    /// Serve /healthz, /readyz and /metrics here; empty: nowhere
    #[arg(long, value_name = "ADDRESS", default_value = ":8443", value_parser = address)]
    pub diagnostics_address: Address,
    /// Serve diagnostics as plain HTTP, to everybody
    #[arg(long, num_args = 0..=1, default_value_t = false, default_missing_value = "true", require_equals = true)]
    pub insecure_diagnostics: bool,
    /// Serve /healthz and /readyz here as plain HTTP; empty: nowhere
    #[arg(long, value_name = "ADDRESS", default_value = ":9440", value_parser = address)]
    pub health_addr: Address,
    /// Serve webhooks on this port
    #[arg(long, value_name = "PORT", default_value_t = 9443)]
    pub webhook_port: u16,
    /// Read tls.crt and tls.key of webhooks and diagnostics here
    #[arg(long, value_name = "FOLDER", default_value = "/tmp/k8s-webhook-server/serving-certs")]
    pub webhook_cert_dir: PathBuf,
}

/// Where to listen. `None`: nowhere.
pub type Address = Option<SocketAddr>;

/// Reads an address as Go's programs take it: `:8443` is port 8443 of every address. The empty string is nowhere.
///
/// # Errors
///
/// The text is no address with a port.
pub fn address(text: &str) -> Result<Address, String> {
    let full = if text.starts_with(':') { format!("[::]{text}") } else { text.replace("localhost:", "127.0.0.1:") };
    match text {
        "" => Ok(None),
        _ => full.parse().map(Some).map_err(|_| format!("invalid address {text:?}, expected :PORT or ADDRESS:PORT")),
    }
}

/// Runs until SIGTERM or SIGINT. Then it turns unready, serves on for ten seconds, closes its connections after their
/// requests, and gives the Lease back. A second signal ends it at once.
///
/// # Errors
///
/// The API server is not configured; an address cannot be listened on; a task ended before its time.
pub async fn run(options: Options) -> anyhow::Result<()> {
    let client = connect(config(&options).await?).context("connecting to the API server")?;
    let (phase, phases) = watch::channel(Phase::Serving);
    let signals = tokio::spawn(stop_on_signals(phase));
    let result = work(&options, client, phases).await;
    signals.abort();
    result
}

/// Runs everything until `phase` is [`Phase::Closing`].
///
/// # Errors
///
/// As [`run`].
pub async fn work(options: &Options, client: Client, phase: watch::Receiver<Phase>) -> anyhow::Result<()> {
    let (leading, leads) = watch::channel(!options.leader_elect);
    let metrics = Arc::new(Metrics::new(leads.clone()));
    let (ready, is_ready) = watch::channel(false);
    let certificate = Arc::new(Certificate::of(&options.webhook_cert_dir));
    let mut tasks = JoinSet::new();

    let probes = Diagnostics::probes(phase.clone(), is_ready);
    if let Some(address) = options.health_addr {
        let (listener, probes) = (listen(address).await?, probes.clone());
        tasks.spawn(serve(listener, None, move |request| probes.clone().answer(request), phase.clone()));
    }
    if let Some(address) = options.diagnostics_address {
        let is_open = options.insecure_diagnostics;
        let diagnostics = probes.with_metrics(Arc::clone(&metrics), (!is_open).then(|| client.clone()));
        let certificate = (!is_open).then(|| Arc::clone(&certificate));
        let handler = move |request| diagnostics.clone().answer(request);
        tasks.spawn(serve(listen(address).await?, certificate, handler, phase.clone()));
    }
    let address = SocketAddr::from(([0_u16; 8], options.webhook_port));
    let webhooks = Webhooks::new(client.clone(), Arc::clone(&metrics));
    let handler = move |request| webhooks.clone().answer(request);
    tasks.spawn(serve(listen(address).await?, Some(certificate), handler, phase.clone()));

    let election = options.leader_elect.then(|| {
        let (stop, stopped) = watch::channel(false);
        let candidate = Candidate::new(client.clone(), client.default_namespace(), LEASE, &identity(), LEASE_DURATION);
        (stop, tokio::spawn(candidate.run(leading.clone(), stopped)))
    });
    let scope = Scope { namespace: options.namespace.clone(), watch_filter: options.watch_filter.clone() };
    let mut leader = tokio::spawn(lead(client, scope, metrics, leads, ready));
    tracing::info!(namespace = options.namespace, watch_filter = options.watch_filter, "started");

    loop {
        tokio::select! {
            ended = tasks.join_next() => match ended {
                Some(ended) => ended.context("serving")?,
                None => break,
            },
            ended = &mut leader => ended.context("leading")??,
        }
        anyhow::ensure!(*phase.borrow() == Phase::Closing, "a task ended before its time");
    }
    leader.abort();
    // Last of all: nobody else may work while a request of this replica is answered.
    if let Some((stop, task)) = election {
        stop.send_replace(true);
        task.await.context("giving the Lease back")?;
    }
    tracing::info!("ended");
    Ok(())
}

/// Works while `leads` is `true`, each time from the start. A replica that does not lead is ready: it serves webhooks. The
/// leader is ready after its start, while the API server answers.
async fn lead(
    client: Client,
    scope: Scope,
    metrics: Arc<Metrics>,
    mut leads: watch::Receiver<bool>,
    ready: watch::Sender<bool>,
) -> anyhow::Result<()> {
    loop {
        ready.send_replace(!*leads.borrow_and_update());
        leads.wait_for(|leads| *leads).await.context("waiting for the Lease")?;
        ready.send_replace(false);
        tokio::select! {
            ended = reconcile(&client, &scope, &metrics, &ready) => match ended? {},
            lost = leads.wait_for(|leads| !*leads) => drop(lost.context("keeping the Lease")?),
        }
        metrics.set_pools(String::new(), 0);
    }
}

/// Reads the leases, the pools and the claims, then serves. It ends with an error only.
async fn reconcile(
    client: &Client,
    scope: &Scope,
    metrics: &Arc<Metrics>,
    ready: &watch::Sender<bool>,
) -> anyhow::Result<Infallible> {
    let began = Instant::now();
    let (registry, served) = RegistryHandle::start(client.clone(), Arc::clone(metrics)).context("starting a thread")?;
    let pools = Pools::start(client.clone(), scope, registry.clone(), Arc::clone(metrics)).await?;
    let provider = Provider::new(client.clone(), registry.clone(), Arc::clone(metrics), scope.clone());
    let (started, mut is_started) = watch::channel(false);
    let claims = provider.run(pools.facts(), served, &started);
    let report = async {
        is_started.wait_for(|started| *started).await.map_err(|_| Stopped)?;
        metrics.rebuild_seconds.set(began.elapsed().as_secs_f64());
        tracing::info!(seconds = began.elapsed().as_secs_f64(), "serving");
        report(registry.works(), ready).await
    };
    let (never, _, _) = tokio::try_join!(pools.run(), claims, report)?;
    Ok(never)
}

/// Keeps `ready` as the registry says.
async fn report(mut works: watch::Receiver<bool>, ready: &watch::Sender<bool>) -> Result<Infallible, Stopped> {
    loop {
        ready.send_replace(*works.borrow_and_update());
        works.changed().await.map_err(|_| Stopped)?;
    }
}

async fn config(options: &Options) -> anyhow::Result<Config> {
    match &options.kubeconfig {
        Some(file) => {
            let read = Kubeconfig::read_from(file).with_context(|| format!("reading {}", file.display()))?;
            let config = Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await;
            config.with_context(|| format!("using {}", file.display()))
        }
        None => Config::incluster().context("no --kubeconfig, and not in a pod"),
    }
}

async fn listen(address: SocketAddr) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address).await.with_context(|| format!("listening on {address}"))
}

/// The name of the pod, which is the name of its host.
fn identity() -> String {
    let host = std::env::var("HOSTNAME").unwrap_or_else(|_| "glowplug-controller".to_owned());
    format!("{host}_{}", std::process::id())
}

async fn stop_on_signals(phase: watch::Sender<Phase>) {
    let (Ok(mut term), Ok(mut interrupt)) = (signal(SignalKind::terminate()), signal(SignalKind::interrupt())) else {
        return tracing::error!("could not wait for signals: only SIGKILL ends the program");
    };
    let mut signal = async || {
        tokio::select! {
            _ = term.recv() => {}
            _ = interrupt.recv() => {}
        }
    };
    signal().await;
    tracing::info!("stopping");
    phase.send_replace(Phase::Unready);
    tokio::select! {
        () = sleep(LINGER) => {}
        () = signal() => std::process::exit(1),
    }
    phase.send_replace(Phase::Closing);
    signal().await;
    std::process::exit(1);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_written_as_for_programs_in_go() {
        let read = |text: &str| address(text).map(|address| address.map(|address| address.to_string()));
        assert_eq!(read(""), Ok(None));
        assert_eq!(read(":8443"), Ok(Some("[::]:8443".to_owned())));
        assert_eq!(read("127.0.0.1:0"), Ok(Some("127.0.0.1:0".to_owned())));
        assert_eq!(read("localhost:1"), Ok(Some("127.0.0.1:1".to_owned())));
        for wrong in ["8443", "a:b", ":", ":65536"] {
            let expected = format!("invalid address {wrong:?}, expected :PORT or ADDRESS:PORT");
            assert_eq!(read(wrong), Err(expected));
        }
    }
}
