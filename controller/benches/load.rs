//! What the controller costs: `make bench-controller`. One table; API server, etcd, load and controller share the machine.
//!
//! Rates stand beside that of creating objects with 32 clients and no controller, in the same run.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../tests/support/mod.rs"]
mod support;

use std::collections::BTreeSet;
use std::fs;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use futures::{StreamExt, stream};
use glowplug::host::claim::{Claim, Request};
use glowplug::host::pool::Pool;
use glowplug_controller::api::{Holder, HolderKind, LeaseSpec, MachineNetwork, PoolSpec, StaticIPLease, StaticIPPool};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::Api;
use kube::api::{DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::runtime::wait::await_condition;
use serde_json::json;
use tokio::net::TcpStream;
use tokio::time::sleep;

use support::controller::{Controller, Site, condition};
use support::http::get;
use support::leader::{Work, claim, machine, name, owner};
use support::real::RealServer;
use support::{Cluster, soak};

/// Objects and claims of one measurement.
const COUNT: usize = 1000;
/// Leases of the measurement of a start.
const LEASES: usize = 10_000;
const KIND: HolderKind = HolderKind::IpAddressClaim;

#[tokio::main]
async fn main() {
    let assets =
        std::env::var_os("KUBEBUILDER_ASSETS").expect("KUBEBUILDER_ASSETS: not set, see `make bench-controller`");
    let server = RealServer::start(&PathBuf::from(assets)).await;
    let cluster = Cluster::new(server.config()).await;
    println!("{:<58} {:>16} {:>16}", "measurement", "result", "limit");

    let (_, idle) = start(&server).await;
    row("memory of an idle leader", &megabytes(idle), "<= 40 MB");

    let mut raw = 0.0;
    for clients in [1, 10, 32] {
        raw = creates(&cluster, clients).await;
        row(&format!("objects created by {clients} clients, without a controller"), &per_second(raw), "");
    }
    let share = |rate: f64| format!("{} {:>4.0} %", per_second(rate), 100.0 * rate / raw);
    let single = claims(&cluster, "single", &["10.1.0.0/16"]).await;
    row("claims to stored leases", &share(single), ">= 75 %");
    let dual = claims(&cluster, "dual", &["10.1.0.0/16", "fd00::/64"]).await;
    row("claims of two addresses to stored leases", &share(dual), ">= 35 %");
    let million = claims(&cluster, "million", &["10.16.0.0/12"]).await;
    row("claims on a pool of 1,048,576 addresses", &share(million), ">= 75 %");
    let huge = claims(&cluster, "huge", &["fd00::/64"]).await;
    row("claims on a pool of 2^64 addresses", &share(huge), ">= 75 %");
    let provider = claims_of_cluster_api(&cluster).await;
    row("claims of Cluster API to their condition Ready", &share(provider), ">= 15 %");
    let (exhausted, grown) = exhaust(&cluster).await;
    row("pool exhausted to its condition", &milliseconds(exhausted), "<= 2000 ms");
    row("pool grown to stored leases of 100 waiting claims", &milliseconds(grown), "<= 3000 ms");

    fill(&cluster).await;
    let (time, full) = start(&server).await;
    row("start with 10,000 leases until /readyz", &milliseconds(time), "<= 5000 ms");
    row("memory of a leader with 10,000 leases", &megabytes(full), "<= 200 MB");
    drop(server);

    let rate = soak::run(10_000, 200).await;
    row("two leaders, 10,000 claims, 200 faults: duplicates", "0", "0");
    row("claims of that run, on the API server of the tests", &per_second(rate), "");
}

fn row(what: &str, result: &str, limit: &str) {
    println!("{what:<58} {result:>16} {limit:>16}");
}

fn per_second(rate: f64) -> String {
    format!("{rate:.0} /s")
}

fn milliseconds(time: Duration) -> String {
    format!("{} ms", time.as_millis())
}

fn megabytes(bytes: u64) -> String {
    format!("{} MB", bytes / 1_000_000)
}

/// Creates leases that no controller looks at. Returns the number in a second.
async fn creates(cluster: &Cluster, clients: usize) -> f64 {
    let network = format!("{}/raw", cluster.namespace().await);
    let apis: Vec<Api<StaticIPLease>> = (0..clients).map(|_| Api::all(cluster.client())).collect();
    let began = Instant::now();
    stream::iter(0..COUNT)
        .for_each_concurrent(clients, |n| {
            let (api, lease) = (&apis[n % clients], lease(&network, n));
            async move { drop(api.create(&PostParams::default(), &lease).await.unwrap()) }
        })
        .await;
    rate(COUNT, began)
}

/// The lease of the n-th address of a network.
fn lease(network: &str, n: usize) -> StaticIPLease {
    let address = format!("10.9.{}.{}", n / 256, n % 256);
    let holder = machine(network, n);
    let spec = LeaseSpec {
        network: network.to_owned(),
        address: address.clone(),
        prefix: 16,
        pool: "clusters/raw".to_owned(),
        holder: Holder {
            // The controller does not read the objects of this kind.
            kind: HolderKind::KubevirtMachine,
            namespace: holder.namespace,
            name: holder.name,
            uid: holder.uid,
            interface: Pool::DEFAULT_INTERFACE.to_owned(),
        },
        since: MicroTime(Timestamp::now()),
        released: None,
        reuse_after: None,
    };
    StaticIPLease::new(&name(network, &address), spec)
}

fn rate(count: usize, began: Instant) -> f64 {
    count as f64 / began.elapsed().as_secs_f64()
}

/// Claims addresses of a pool with 64 tasks. Returns the number of claims in a second.
async fn claims(cluster: &Cluster, name: &str, addresses: &[&str]) -> f64 {
    let namespace = cluster.namespace().await;
    // The pool and its network have one name.
    let network = format!("{namespace}/{name}");
    let (registry, _served) = owner(cluster.client());
    let addresses = addresses.iter().map(|cidr| (*cidr).to_owned()).collect();
    let spec = PoolSpec { network: network.clone(), addresses, ..PoolSpec::default() };
    let pool = spec.check(Some(&namespace), name).0.unwrap();
    registry.resize(vec![pool], BTreeSet::new()).await.unwrap();
    let began = Instant::now();
    stream::iter(0..COUNT)
        .for_each_concurrent(64, |n| {
            let claim = Claim { requests: vec![Request::of(&network)], ..claim(&machine(&network, n)) };
            let registry = &registry;
            async move { drop(registry.claim(claim, KIND).await.unwrap().unwrap()) }
        })
        .await;
    rate(COUNT, began)
}

/// Creates claims of Cluster API with 32 clients, and waits until all of them are ready. Returns the number of claims in a second.
async fn claims_of_cluster_api(cluster: &Cluster) -> f64 {
    let site = Site::new(cluster).await;
    site.pool("p", &["10.0.0.0/16"]).await;
    let mut controller = Controller::start(cluster, &site);
    controller.until_ready().await;
    let began = Instant::now();
    let create = |n| {
        let site = &site;
        async move { drop(site.claim(&format!("c{n}"), &json!({})).await) }
    };
    stream::iter(0..COUNT).for_each_concurrent(32, create).await;
    let is_ready = |claim: &DynamicObject| condition(claim)["status"] == "True";
    while site.claims.list(&ListParams::default()).await.unwrap().items.iter().filter(|claim| is_ready(claim)).count()
        < COUNT
    {
        sleep(Duration::from_millis(100)).await;
    }
    rate(COUNT, began)
}

/// The time from the last allocation of a pool to its condition, and the time from its growth until 100 waiting claims have
/// stored leases.
async fn exhaust(cluster: &Cluster) -> (Duration, Duration) {
    let namespace = cluster.namespace().await;
    let pools: Api<StaticIPPool> = Api::namespaced(cluster.client(), &namespace);
    let spec = |addresses: &str| PoolSpec {
        network: format!("{namespace}/vlan10"),
        addresses: vec![addresses.to_owned()],
        machine_network: vec![MachineNetwork { cidr: "10.0.0.0/16".to_owned() }],
        ..PoolSpec::default()
    };
    let pool = StaticIPPool::new("p", spec("10.0.1.1-10.0.1.100"));
    pools.create(&PostParams::default(), &pool).await.unwrap();
    let mut work = Work::start(cluster.controller(), &namespace).await;
    let until = async |type_: &str| {
        let is = |pool: Option<&StaticIPPool>| {
            let conditions = pool.and_then(|pool| pool.status.as_ref()).map(|status| &status.conditions);
            conditions.into_iter().flatten().any(|condition| condition.type_ == type_ && condition.status == "True")
        };
        await_condition(pools.clone(), "p", is).await.unwrap();
    };
    let claim = async |n: usize| {
        let claim = Claim { requests: vec![Request::of(&format!("{namespace}/p"))], ..claim(&machine(&namespace, n)) };
        work.registry.claim(claim, KIND).await.unwrap()
    };
    until("Ready").await;
    for n in 0..100 {
        claim(n).await.unwrap();
    }
    let began = Instant::now();
    until("Exhausted").await;
    let exhausted = began.elapsed();
    for n in 100..200 {
        claim(n).await.unwrap_err();
    }
    let began = Instant::now();
    let grown = json!({"spec": spec("10.0.1.1-10.0.1.200")});
    pools.patch("p", &PatchParams::default(), &Patch::Merge(grown)).await.unwrap();
    for _ in 0..100 {
        work.served.recv().await.unwrap();
    }
    (exhausted, began.elapsed())
}

/// Creates leases until there are enough of them.
async fn fill(cluster: &Cluster) {
    let leases: Api<StaticIPLease> = Api::all(cluster.client());
    let there = leases.list(&ListParams::default()).await.unwrap().items.len();
    let network = format!("{}/fill", cluster.namespace().await);
    let create = |n| {
        let (leases, lease) = (&leases, lease(&network, n));
        async move { drop(leases.create(&PostParams::default(), &lease).await.unwrap()) }
    };
    stream::iter(0..LEASES.checked_sub(there).expect("fewer leases before")).for_each_concurrent(32, create).await;
}

/// Starts the program and waits until it is ready. Returns the time, and the memory that the program has then.
async fn start(server: &RealServer) -> (Duration, u64) {
    let [diagnostics, health, webhook] =
        [(); 3].map(|()| TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap());
    let began = Instant::now();
    let mut program = Command::new(env!("CARGO_BIN_EXE_glowplug-controller"))
        .args(["run", "--insecure-diagnostics", "--diagnostics-address", &diagnostics.to_string(), "--kubeconfig"])
        .arg(server.kubeconfig())
        .args(["--health-addr", &health.to_string(), "--webhook-port", &webhook.port().to_string()])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    while TcpStream::connect(health).await.is_err() || get(health, "/readyz", None).await.0 != 200 {
        sleep(Duration::from_millis(5)).await;
    }
    let time = began.elapsed();
    let status = fs::read_to_string(format!("/proc/{}/status", program.id())).unwrap();
    let resident = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let kibibytes: u64 = resident.trim().trim_end_matches(" kB").parse().unwrap();
    program.kill().unwrap();
    program.wait().unwrap();
    (time, kibibytes * 1024)
}
