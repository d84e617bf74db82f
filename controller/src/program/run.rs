//! Runs the program: starts its tasks, and stops them in order.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow, ensure};
use clap::Args;
use futures::future;
use glowplug::host::Timestamp;
use kube::config::{KubeConfigOptions, KubeconfigError};
use kube::{Client, Config};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::claims::Provider;
use crate::cluster::client::{connect, counted, kubeconfig_message, of_leader, read_kubeconfig};
use crate::cluster::clock::Clock;
use crate::cluster::events::Events;
use crate::cluster::term::{LEASE, Term, Writes};
use crate::ledger::registry::RegistryHandle;
use crate::ledger::types::{Progress, Stopped};
use crate::machines::Machines;
use crate::macs::Macs;
use crate::metrics::Metrics;
use crate::passes::opening::Opening;
use crate::pools::Pools;
use crate::pools::beyond::BeyondBounds;
use crate::pools::facts::Scope;
use crate::pools::machine_states::MachineStates;
use crate::pools::namespaces::Namespaces;
use crate::pools::node_pools::NodePools;
use crate::pools::selection_cache::SelectionCache;
use crate::program::definitions;
use crate::program::election::Candidate;
use crate::program::probes::Diagnostics;
use crate::program::watchdog::Watchdog;
use crate::reports::Reports;
use crate::reports::neighbours::Neighbours;
use crate::serve::{Certificate, Limits, Phase, serve};
use crate::webhook::Webhooks;

/// Maximum time for which a leader leads without a response from the API server. Other controllers use the same value.
const LEASE_DURATION: Duration = Duration::from_secs(15);
/// Time without progress in the registry after which a leader ends its term, although the API server answers other
/// requests.
const STANDSTILL: Duration = Duration::from_secs(60);
/// Time for which requests are still served after `/readyz` fails, because the endpoints of a Service change later.
const LINGER: Duration = Duration::from_secs(10);

/// Options of `glowplug-controller run`: the options that clusterctl and the Cluster API operator pass to every
/// provider, and options of this program alone.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// Connect with this kubeconfig file instead of the service account of the pod
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Work in this namespace only; empty: in all namespaces
    #[arg(long, value_name = "NAME", default_value = "")]
    pub namespace: String,
    /// Work only while this replica holds the Lease
    #[arg(long, num_args = 0..=1, default_value_t = false, default_missing_value = "true", require_equals = true)]
    pub leader_elect: bool,
    /// Work only on objects with this value of the label cluster.x-k8s.io/watch-filter
    #[arg(long, value_name = "VALUE", default_value = "")]
    pub watch_filter: String,
    /// Serve /healthz, /readyz and /metrics on this address; empty: do not serve them
    #[arg(long, value_name = "ADDRESS", default_value = ":8443", value_parser = address)]
    pub diagnostics_address: Address,
    /// Serve diagnostics over plain HTTP, without authorization
    #[arg(long, num_args = 0..=1, default_value_t = false, default_missing_value = "true", require_equals = true)]
    pub insecure_diagnostics: bool,
    /// Serve /healthz and /readyz on this address over plain HTTP; empty: do not serve them
    #[arg(long, value_name = "ADDRESS", default_value = ":9440", value_parser = address)]
    pub health_addr: Address,
    /// Serve webhooks on this port
    #[arg(long, value_name = "PORT", default_value_t = 9443)]
    pub webhook_port: u16,
    /// Read tls.crt and tls.key of webhooks and diagnostics from this folder
    #[arg(long, value_name = "FOLDER", default_value = "/tmp/k8s-webhook-server/serving-certs")]
    pub webhook_cert_dir: PathBuf,
}

/// Address to listen on. `None`: the program does not listen.
pub type Address = Option<SocketAddr>;

/// Parses an address in the notation of Go programs: `:8443` means port 8443 on every address of the host. The empty
/// string is `None`.
///
/// # Errors
///
/// The string is not an address with a port.
pub fn address(text: &str) -> Result<Address, String> {
    let full = if text.starts_with(':') { format!("[::]{text}") } else { text.replace("localhost:", "127.0.0.1:") };
    match text {
        "" => Ok(None),
        _ => full.parse().map(Some).map_err(|_| format!("invalid address {text:?}, expected :PORT or ADDRESS:PORT")),
    }
}

/// Runs the program until SIGTERM or SIGINT. Then the program becomes unready, and continues to serve requests for ten
/// seconds. It then closes each connection after its current request, and releases the Lease. A second signal stops the
/// program at once.
///
/// # Errors
///
/// The API server is not configured, the program cannot listen on an address, or a task stopped early.
pub async fn run(options: Options) -> anyhow::Result<()> {
    check(&options)?;
    let client = connect(config(&options).await?).context("connecting to the API server")?;
    let (phase, phases) = watch::channel(Phase::Serving);
    let signals = tokio::spawn(stop_on_signals(phase));
    let result = work(&options, client, phases).await;
    signals.abort();
    result
}

/// Runs all tasks until `phase` is [`Phase::Closing`].
///
/// # Errors
///
/// The same errors as for [`run`].
pub async fn work(options: &Options, client: Client, phase: watch::Receiver<Phase>) -> anyhow::Result<()> {
    let (term, terms) = watch::channel((!options.leader_elect).then_some(Term::ENDLESS));
    let metrics = Arc::new(Metrics::default());
    let client = counted(&client, &metrics);
    let (ready, is_ready) = watch::channel(false);
    let certificate = Arc::new(Certificate::of(&options.webhook_cert_dir));
    let writes = Writes::default();
    let mut tasks = JoinSet::new();

    let (progress, of_registry) = watch::channel(Progress::default());
    let watchdog = Watchdog::new(of_registry.clone(), STANDSTILL);
    let probes = Diagnostics::probes(phase.clone(), is_ready).with_certificate(Arc::clone(&certificate));
    if let Some(address) = options.health_addr {
        let (listener, probes) = (listen(address).await?, probes.clone());
        let handler = move |request| probes.clone().answer(request);
        tasks.spawn(serve(listener, None, Limits::DIAGNOSTICS, handler, phase.clone()));
    }
    if let Some(address) = options.diagnostics_address {
        let is_open = options.insecure_diagnostics;
        let diagnostics = probes.with_metrics(Arc::clone(&metrics), (!is_open).then(|| client.clone()));
        let diagnostics = diagnostics.measuring(of_registry);
        let certificate = (!is_open).then(|| Arc::clone(&certificate));
        let handler = move |request| diagnostics.clone().answer(request);
        tasks.spawn(serve(listen(address).await?, certificate, Limits::DIAGNOSTICS, handler, phase.clone()));
    }
    let address = SocketAddr::from(([0_u16; 8], options.webhook_port));
    let scope = Scope { namespace: options.namespace.clone(), watch_filter: options.watch_filter.clone() };
    let selection = Arc::new(SelectionCache::new(client.clone(), scope.clone()));
    let webhooks = Webhooks::new(client.clone(), Arc::clone(&metrics), Arc::clone(&selection));
    let handler = move |request| webhooks.clone().answer(request);
    tasks.spawn(serve(listen(address).await?, Some(certificate), Limits::WEBHOOKS, handler, phase.clone()));

    let election = options.leader_elect.then(|| {
        let (stop, stopped) = watch::channel(false);
        let (namespace, lease) = (client.default_namespace(), scope.name(LEASE));
        let candidate = Candidate::new(client.clone(), namespace, &lease, &identity(), LEASE_DURATION);
        let candidate = candidate.with_watchdog(watchdog);
        let (mut ages, cache) = (candidate.ages(), Arc::clone(&selection));
        tokio::spawn(async move {
            while ages.changed().await.is_ok() {
                cache.begin_age();
            }
        });
        let (client, term, writes) = (client.clone(), term.clone(), writes.clone());
        let task = async move {
            let mut stop = stopped.clone();
            let is_current = tokio::select! {
                () = definitions::until_current(&client) => true,
                () = async { drop(stop.wait_for(|stop| *stop).await) } => false,
            };
            if is_current {
                candidate.run(term, stopped, writes).await;
            }
        };
        (stop, tokio::spawn(task))
    });
    let serves_cluster_scoped = scope.serves_cluster_scoped();
    let parts = (scope, Arc::clone(&selection));
    let cache = tokio::spawn(async move {
        let never = selection.run().await;
        match never {}
    });
    let mut leader = tokio::spawn(lead(client, parts, metrics, terms, writes, (ready, progress)));
    tracing::info!(namespace = options.namespace, watch_filter = options.watch_filter, "started");
    if !serves_cluster_scoped {
        tracing::info!("serving no GlobalStaticIPPools and no MACPools: --namespace without --watch-filter");
    }

    loop {
        tokio::select! {
            ended = tasks.join_next() => match ended {
                Some(ended) => ended.context("serving")?,
                None => break,
            },
            ended = &mut leader => ended.context("leading")??,
        }
        anyhow::ensure!(*phase.borrow() == Phase::Closing, "a task ended unexpectedly");
    }
    leader.abort();
    cache.abort();
    // After these tasks have ended, no pass runs, so no pass writes a log line.
    drop(tokio::join!(leader, cache));
    // The Lease is released last, because another replica must not lead while a write of this replica has no answer.
    if let Some((stop, task)) = election {
        stop.send_replace(true);
        task.await.context("releasing the Lease")?;
    }
    Ok(())
}

/// Does the work of a leader in each term. Each term starts from the beginning. A replica that does not lead is ready,
/// because it serves webhooks. A leader is ready after its start, while the API server responds. No replica is ready
/// before the cluster has the definitions of this version, so that a rolling upgrade keeps the earlier version until
/// then.
async fn lead(
    client: Client,
    (scope, selection): (Scope, Arc<SelectionCache>),
    metrics: Arc<Metrics>,
    mut terms: watch::Receiver<Option<Term>>,
    writes: Writes,
    (ready, progress): (watch::Sender<bool>, watch::Sender<Progress>),
) -> anyhow::Result<()> {
    definitions::until_current(&client).await;
    loop {
        // The registry of the previous term may still work on its last command. From now on, its progress does not
        // count.
        progress.send_replace(Progress::default());
        ready.send_replace(terms.borrow_and_update().is_none());
        let term = *terms.wait_for(Option::is_some).await.context("waiting for the Lease")?;
        let Some(term) = term else { continue };
        ready.send_replace(false);
        let client = of_leader(&client, term, terms.clone(), writes.clone());
        tokio::select! {
            ended = reconcile(&client, &scope, &selection, &metrics, (&ready, &progress)) => match ended? {},
            lost = terms.wait_for(|current| !term.is(*current)) => drop(lost.context("keeping the Lease")?),
        }
        metrics.set_leading(false);
        metrics.set_pools(String::new(), 0, 0);
        metrics.set_macs([], [], 0);
    }
}

/// Does the work of a leader: reads the leases, the pools, the claims and the machines at the same time, then serves
/// the claims and machines. `ready` becomes `true` when all existing claims and machines are processed, and is `false`
/// while the API server does not respond. `progress` becomes the progress of the registry.
///
/// The cache `selection` must be running. The work stops when the future is dropped.
///
/// # Errors
///
/// A thread cannot be started, or the registry has stopped. The function does not return otherwise.
pub async fn reconcile(
    client: &Client,
    scope: &Scope,
    selection: &Arc<SelectionCache>,
    metrics: &Arc<Metrics>,
    (ready, progress): (&watch::Sender<bool>, &watch::Sender<Progress>),
) -> anyhow::Result<Infallible> {
    let began = Instant::now();
    let clock = Clock::starting_at(Timestamp::now());
    let (macs, observer) = Macs::new(client.clone(), Arc::clone(metrics), scope.clone(), clock);
    let of_macs = observer.clone();
    let mac_leases = Arc::new(move |event| of_macs.lease(event));
    let registry = RegistryHandle::start(client.clone(), Arc::clone(metrics), mac_leases, clock);
    let (registry, served) = registry.context("starting a thread")?;
    progress.send_replace(registry.progress());
    let states = Arc::new(MachineStates::default());
    let pools = Pools::new(client.clone(), Arc::clone(selection), registry.clone(), Arc::clone(metrics));
    let beyond = Arc::new(BeyondBounds::default());
    let opening = Opening::new(registry.clone(), 4);
    let of_pools = opening.clone();
    let pools = pools.with_states(Arc::clone(&states)).with_beyond(Arc::clone(&beyond));
    let pools = pools.with_obstacle(move || of_pools.obstacle());
    let namespaces = Namespaces::new(client.clone(), selection);
    let namespaces_of_macs =
        scope.serves_cluster_scoped().then(|| Namespaces::of_macs(client.clone(), macs.namespaces(), scope));
    let namespaces_of_macs = async {
        match namespaces_of_macs {
            Some(namespaces) => namespaces.run().await,
            // The MACPools belong to other controllers, and so do the labels of their namespaces.
            None => future::pending().await,
        }
    };
    let node_pools = NodePools::new(client.clone(), Arc::clone(selection), Events::start(client.clone()));
    let around = async {
        let (never, _, _, _) = tokio::join!(namespaces.run(), node_pools.run(), macs.run(), namespaces_of_macs);
        Ok::<_, Stopped>(never)
    };
    let (of_claims, of_machines) = (opening.clone(), opening.clone());
    let provider = Provider::new(client.clone(), registry.clone(), of_claims, Arc::clone(metrics), scope.clone());
    let metrics_of_machines = Arc::clone(metrics);
    let (client, scope, seen) = (client.clone(), scope.clone(), Arc::clone(selection));
    let (reports, of_reports) = Reports::new(client.clone(), registry.clone(), Arc::clone(&beyond));
    let (of_neighbours, metrics_of_neighbours) = (opening.clone(), Arc::clone(metrics));
    let neighbours =
        Neighbours::new(client.clone(), registry.clone(), of_neighbours, metrics_of_neighbours, scope.clone(), beyond);
    let observers = (observer, of_reports);
    let machines = Machines::new(client, registry.clone(), of_machines, metrics_of_machines, scope, observers, seen);
    let machines = machines.with_states(states);
    let (started, mut is_started) = watch::channel([false; 4]);
    let start = |part: usize| started.send_modify(|started| started[part] = true);
    let claims = provider.run(pools.open(), served.claims, || start(0));
    let ipam_claims = provider.run_ipam_claims(pools.open(), served.ipam_claims, || start(1));
    let machines = machines.run(pools.open(), served.machines, || start(2));
    let neighbours = neighbours.run(pools.open(), || start(3));
    let mut open = pools.open();
    let report = async {
        // The pools are awaited separately, because a cluster may have neither claims nor machines.
        open.wait_for(Option::is_some).await.map_err(|_| Stopped)?;
        is_started.wait_for(|started| *started == [true; 4]).await.map_err(|_| Stopped)?;
        metrics.rebuild_seconds.set(began.elapsed().as_secs_f64());
        tracing::info!(seconds = began.elapsed().as_secs_f64(), "serving");
        report(registry.works(), metrics, ready).await
    };
    let (never, ..) = tokio::try_join!(
        pools.run(),
        opening.run(),
        claims,
        ipam_claims,
        machines,
        reports.run(),
        neighbours,
        around,
        report
    )?;
    Ok(never)
}

/// Writes into `ready` and into the leader metric whether the registry works. Writes at each change, until the registry
/// stops.
async fn report(
    mut works: watch::Receiver<bool>,
    metrics: &Metrics,
    ready: &watch::Sender<bool>,
) -> Result<Infallible, Stopped> {
    loop {
        let is_working = *works.borrow_and_update();
        metrics.set_leading(is_working);
        ready.send_replace(is_working);
        works.changed().await.map_err(|_| Stopped)?;
    }
}

async fn config(options: &Options) -> anyhow::Result<Config> {
    match &options.kubeconfig {
        Some(file) => {
            let alone = |error: KubeconfigError| anyhow!("{}", kubeconfig_message(&error));
            let read = read_kubeconfig(Some(file))?;
            let config = Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await;
            config.map_err(alone).with_context(|| format!("using {}", file.display()))
        }
        None => Config::incluster().context("no --kubeconfig, and not in a pod"),
    }
}

async fn listen(address: SocketAddr) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address).await.with_context(|| format!("listening on {address}"))
}

/// Identity of this replica in the Lease: the host name, which is the name of the pod, and the process ID.
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
    phase.send_replace(Phase::Unready);
    tracing::info!("stopping");
    tokio::select! {
        () = sleep(LINGER) => {}
        () = signal() => std::process::exit(1),
    }
    phase.send_replace(Phase::Closing);
    signal().await;
    std::process::exit(1);
}

/// Checks that the replica serves probes. Without probes, Kubernetes would not restart a replica that hangs.
fn check(options: &Options) -> anyhow::Result<()> {
    let is_probed = options.health_addr.is_some() || options.diagnostics_address.is_some();
    ensure!(is_probed, "--health-addr and --diagnostics-address: both are empty, expected one address for the probes");
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Arguments {
        #[command(flatten)]
        options: Options,
    }

    #[test]
    fn a_replica_without_an_address_for_its_probes_does_not_start() {
        let check = |arguments: &[&str]| {
            let arguments = ["glowplug-controller"].iter().chain(arguments);
            check(&Arguments::try_parse_from(arguments).unwrap().options).map_err(|error| error.to_string())
        };
        let [health, diagnostics] = ["--health-addr=", "--diagnostics-address="];
        assert_eq!(check(&[]), Ok(()));
        assert_eq!(check(&[health]), Ok(()));
        assert_eq!(check(&[diagnostics]), Ok(()));
        let expected = "--health-addr and --diagnostics-address: both are empty, expected one address for the probes";
        assert_eq!(check(&[health, diagnostics]), Err(expected.to_owned()));
    }

    #[test]
    fn an_address_option_has_the_notation_of_go_programs() {
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
