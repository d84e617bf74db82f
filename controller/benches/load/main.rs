//! Measures the controller: `make bench-controller`. Prints one table. The API server, etcd, the load and the
//! controller share one computer.
//!
//! Each rate of claims is printed with a percentage: the rate at which 32 clients create objects without a controller
//! in the same run is 100 percent.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![allow(clippy::disallowed_types, reason = "the objects come from the test, so their managed fields are readable")]

mod growth;
mod peers;
mod soak;
#[path = "../../tests/support/mod.rs"]
mod support;

use std::collections::BTreeSet;
use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::{StreamExt, TryStreamExt, future, stream};
use glowplug::host::claim::{Claim, Request};
use glowplug::host::pool::Pool;
use glowplug_controller::kinds::network_data::{is_issued, new_name};
use glowplug_controller::kinds::pool::{
    Holder, HolderKind, LeaseSpec, MachineNetwork, PoolSpec, StaticIPLease, StaticIPPool,
};
use glowplug_controller::pools::facts::Scope;
use glowplug_controller::pools::reference::MACHINES_PATH;
use glowplug_controller::pools::selection_cache::SelectionCache;
use http_body_util::BodyExt;
use hyper::body::Bytes;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::api::{DynamicObject, ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams};
use kube::runtime::WatchStreamExt;
use kube::runtime::wait::await_condition;
use kube::runtime::watcher::{self, watcher};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::time::sleep;

use support::Cluster;
use support::controller::{Controller, Site, condition};
use support::hosted::definitions::{KUBEVIRT_MACHINE, VIRTUAL_MACHINE, resource};
use support::hosted::provider::{next_mac, object};
use support::http::get;
use support::leader::{Work, claim, machine, name, owner, resize};
use support::real::RealServer;
use support::replica::{webhooks, write_certificate};

/// Number of objects and claims in one measurement.
const COUNT: usize = 1000;
/// Number of machines that exist when the measured start of the controller begins.
const MACHINES: usize = 10_000;
/// Number of pools in the measurement of many machines. Each pool is in a namespace of its own.
const SCALE_POOLS: usize = 200;
/// Number of subnets in each pool, for the comparison with pools that have one range.
const SUBNETS: usize = 10;

#[tokio::main]
async fn main() {
    let assets =
        std::env::var_os("KUBEBUILDER_ASSETS").expect("KUBEBUILDER_ASSETS: not set, see `make bench-controller`");
    if let Ok(minutes) = std::env::var("SOAK") {
        return soak::soak(&PathBuf::from(assets), minutes.parse().expect("SOAK: a number of minutes")).await;
    }
    println!("{:<58} {:>16} {:>16}", "measurement", "result", "limit");
    if let Ok(sizes) = std::env::var("SIZES") {
        let sizes: Vec<usize> =
            sizes.split_whitespace().map(|size| size.parse().expect("SIZES: numbers of machines")).collect();
        let picture = std::env::var_os("PICTURE").expect("PICTURE: the file to draw");
        return growth::growth(&PathBuf::from(assets), &sizes, &PathBuf::from(picture)).await;
    }
    if let Ok(machines) = std::env::var("SCALE") {
        return scale(&PathBuf::from(assets), machines.parse().expect("SCALE: a number of machines")).await;
    }
    let server = RealServer::start(&PathBuf::from(&assets)).await;
    let cluster = Cluster::new(server.config()).await;
    row("kube-apiserver", &version(&cluster).await, "");

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

    drop(server);

    machines_of_hosted_clusters(&PathBuf::from(assets)).await;
}

/// Prints the rows about machines. Uses a server of its own.
async fn machines_of_hosted_clusters(assets: &Path) {
    let server = RealServer::start(assets).await;
    let cluster = Cluster::new(server.config()).await;
    let mut fleet = Fleet::new(&cluster).await;
    let webhook = fleet.ask_the_webhook(&cluster, 16, 4000).await;
    row("machine in the webhook, 16 at once, p99", &microseconds(percentile(&webhook, 99)), "<= 5000 µs");

    let mut controller = Controller::of(&cluster, &fleet.namespace);
    controller.until_ready().await;
    let mut times = Vec::new();
    for _ in 0..200 {
        times.push(fleet.serve(1, 1).await[0]);
    }
    row("from a new VirtualMachine to its Secret, one client, p50", &milliseconds(percentile(&times, 50)), "");
    row("from a new VirtualMachine to its Secret, one client, p99", &milliseconds(percentile(&times, 99)), "<= 250 ms");
    let [time, _] = fleet.serve(COUNT, 16).await;
    row("from 1,000 new VirtualMachines to the last Secret", &milliseconds(time), "<= 10000 ms");
    drop(controller);
    let time = fleet.lose_the_leader(&server).await;
    row("leader killed to the Secret of the next machine", &milliseconds(time), "<= 18000 ms");
    let mut controller = Controller::of(&cluster, &fleet.namespace);
    controller.until_ready().await;
    fleet.serve(MACHINES - fleet.count, 16).await;
    let time = open_a_pool(&cluster, &fleet).await;
    row("new pool beside 10,000 machines to its first address", &milliseconds(time), "<= 5000 ms");
    drop(controller);

    let (time, memory) = start(&server).await;
    row("start with 10,000 machines until /readyz", &milliseconds(time), "<= 5000 ms");
    row("memory of a leader with 10,000 machines", &megabytes(memory), "<= 200 MB");
    let time = fleet.lose_the_leader(&server).await;
    row("the leader of 10,000 machines killed", &milliseconds(time), "");
}

/// Creates a claim, and then its pool on the network of the machines. Returns the time from the creation of the pool to
/// the address of the claim.
async fn open_a_pool(cluster: &Cluster, fleet: &Fleet) -> Duration {
    let site = Site::of(cluster, &fleet.namespace, "v1beta2");
    site.claim("c", &json!({"spec": {"poolRef": {"name": "later"}}})).await;
    let addresses = vec!["fd00::8/125".to_owned()];
    let spec = PoolSpec { network: fleet.network.clone(), addresses, ..PoolSpec::default() };
    let began = Instant::now();
    site.pools.create(&PostParams::default(), &StaticIPPool::new("later", spec)).await.unwrap();
    site.address_of("c").await;
    began.elapsed()
}

/// A server with 200 pools, and a controller that has served all machines of these pools.
struct Served {
    server: RealServer,
    cluster: Cluster,
    fleets: Vec<Fleet>,
    program: Child,
    /// Number of machines.
    count: usize,
    /// Time from the start of the controller to the last Secret.
    time: Duration,
    /// Result of [`etcd`] before the start of the controller.
    before: [f64; 3],
}

// === impl Served ===

impl Served {
    /// Creates machines in 200 pools, each with this number of subnets. Then starts the controller, and waits until it
    /// has served all machines. Therefore every counted write to etcd is a write of the controller.
    async fn start(assets: &Path, machines: usize, subnets: usize) -> Self {
        let server = RealServer::start(assets).await;
        let cluster = Cluster::new(server.config()).await;
        let each = machines / SCALE_POOLS;
        let mut fleets = Vec::new();
        for _ in 0..SCALE_POOLS {
            fleets.push(Fleet::with(&cluster, addresses_in(subnets, each)).await);
        }
        stream::iter(&mut fleets).for_each_concurrent(32, |fleet| fleet.create(each)).await;
        let count = each * SCALE_POOLS;
        let before = etcd(&server).await;
        let began = Instant::now();
        let (program, [_, health]) = run(&server, &[]);
        until_served(&cluster, count).await;
        let time = began.elapsed();
        until_ready(health).await;
        until_idle(&server).await;
        Self { server, cluster, fleets, program, count, time, before }
    }

    fn pace(&self) -> f64 {
        self.count as f64 / self.time.as_secs_f64()
    }

    /// The current memory of the controller, and its largest memory until now.
    fn memory(&self) -> [u64; 2] {
        ["VmRSS:", "VmHWM:"].map(|line| memory(&self.program, line))
    }

    fn end(&mut self) {
        self.program.kill().unwrap();
        self.program.wait().unwrap();
    }
}

/// Returns the members of a pool that has addresses for this number of machines: one range, or several subnets. The
/// machines need all of these subnets, and a few addresses are spare.
fn addresses_in(subnets: usize, machines: usize) -> Value {
    if subnets == 1 {
        return json!({"addresses": ["10.0.0.0/16"]});
    }
    let last = (machines + 2).div_ceil(subnets);
    assert!(last < 254, "{machines} machines in {subnets} subnets, expected less than 254 in each");
    let subnet = |n| {
        let (addresses, gateway) = (format!("10.0.{n}.1-10.0.{n}.{last}"), format!("10.0.{n}.254"));
        json!({"addresses": [addresses], "gateway": [gateway], "prefix": 24})
    };
    json!({"subnets": (0..subnets).map(subnet).collect::<Vec<_>>()})
}

/// Prints the rows about many machines in 200 pools: `make bench-scale`. First, the same number of machines is served
/// in pools of several subnets.
async fn scale(assets: &Path, machines: usize) {
    let mut with_subnets = Served::start(assets, machines, SUBNETS).await;
    row("machines in 200 pools of ten subnets", &with_subnets.count.to_string(), "");
    row("machines served", &per_second(with_subnets.pace()), "");
    let (pace, [of_subnets, largest_of_subnets]) = (with_subnets.pace(), with_subnets.memory());
    row("memory of the leader after the last Secret", &megabytes(of_subnets), "");
    row("the largest memory until then", &megabytes(largest_of_subnets), "");
    with_subnets.end();
    drop(with_subnets);

    let served = Served::start(assets, machines, 1).await;
    row("kube-apiserver", &version(&served.cluster).await, "");
    row("machines in 200 pools of one range", &served.count.to_string(), "");
    row("start with machines that wait, to the last Secret", &milliseconds(served.time), "");
    row("machines served", &per_second(served.pace()), "");
    row("processor time of the controller until then", &milliseconds(processor_time(&served.program)), "");
    let [resident, largest] = served.memory();
    let Served { server, cluster, mut fleets, mut program, count, time, before } = served;
    let after = etcd(&server).await;
    let per_machine = |at: usize| format!("{:.1}", (after[at] - before[at]) / count as f64);
    row("writes to etcd for each machine", &per_machine(0), "");
    row("bytes in the log of etcd for each machine", &per_machine(1), "");
    row("database of etcd", &format!("{:.0} MB", after[2] / 1e6), "");
    row("memory of the leader after the last Secret", &megabytes(resident), "");
    row("the largest memory until then", &megabytes(largest), "");
    let share = |of: f64, all: f64| format!("{:.0} %", 100.0 * of / all);
    row("ten subnets: pace, compared with one range", &share(pace, count as f64 / time.as_secs_f64()), ">= 90 %");
    row("ten subnets: memory, compared with one range", &share(of_subnets as f64, resident as f64), "<= 110 %");
    row("ten subnets: largest memory", &share(largest_of_subnets as f64, largest as f64), "<= 110 %");
    let (mut times, mut stored) = (Vec::new(), Vec::new());
    let used = processor_time(&program);
    for n in 0..100 {
        let [time, until_stored] = fleets[n * 7 % SCALE_POOLS].serve(1, 1).await;
        times.push(time);
        stored.push(until_stored);
    }
    row("one more VirtualMachine to its Secret, p50", &milliseconds(percentile(&times, 50)), "");
    row("one more VirtualMachine to its Secret, p99", &milliseconds(percentile(&times, 99)), "");
    row("until the API server stored this VirtualMachine, p50", &milliseconds(percentile(&stored, 50)), "");
    let used = (processor_time(&program) - used) / 100;
    row("processor time of the controller for this machine", &microseconds(used), "");
    program.kill().unwrap();
    program.wait().unwrap();

    let (time, largest) = start(&server).await;
    row("start with served machines until /readyz", &milliseconds(time), "");
    row("largest memory of this start", &megabytes(largest), "");
    let before = secret_reads(&cluster).await;
    let (mut program, [_, health]) = run(&server, &[]);
    until_ready(health).await;
    row("processor time of the controller for this start", &milliseconds(processor_time(&program)), "");
    let mut times = Vec::new();
    for n in 0..100 {
        times.push(fleets[n * 7 % SCALE_POOLS].serve(1, 1).await[0]);
    }
    row("one more VirtualMachine after this start, p50", &milliseconds(percentile(&times, 50)), "");
    row("one more VirtualMachine after this start, p99", &milliseconds(percentile(&times, 99)), "");
    row("Secrets read after this start", &(secret_reads(&cluster).await - before).to_string(), "");
    program.kill().unwrap();
    program.wait().unwrap();

    // Removes the annotations of all KubevirtMachines, as a restore of objects from an older backup does.
    for fleet in &fleets {
        fleet.remove_annotations().await;
    }
    let (mut program, [_, health]) = run(&server, &[]);
    until_ready(health).await;
    let mut times = Vec::new();
    for n in 0..20 {
        times.push(fleets[n * 7 % SCALE_POOLS].serve(1, 1).await[0]);
    }
    row("the same while every machine lacks its annotations, p50", &milliseconds(percentile(&times, 50)), "");
    row("the same while every machine lacks its annotations, p99", &milliseconds(percentile(&times, 99)), "");
    program.kill().unwrap();
    program.wait().unwrap();
    peers::measure(&server, &cluster).await;
}

/// Waits until this number of machines have their Secrets.
async fn until_served(cluster: &Cluster, count: usize) {
    let secrets: Api<Secret> = Api::all(cluster.client());
    let written = watcher(secrets, watcher::Config::default()).applied_objects();
    let written = written.try_filter(|secret| future::ready(is_issued(&secret.name_any())));
    let mut written = pin!(written);
    let mut names = BTreeSet::new();
    while names.len() < count {
        let secret = written.next().await.unwrap().unwrap();
        names.insert((secret.namespace(), secret.name_any()));
    }
}

/// Returns the number of writes, the bytes in the log, and the size of the database of etcd in bytes.
async fn etcd(server: &RealServer) -> [f64; 3] {
    let (_, text) = get(server.etcd_metrics(), "/metrics", None).await;
    ["etcd_mvcc_put_total ", "etcd_disk_wal_write_bytes_total ", "etcd_mvcc_db_total_size_in_bytes "].map(|name| {
        let value = text.lines().find_map(|line| line.strip_prefix(name));
        value.unwrap_or_else(|| panic!("etcd has no metric {name}")).trim().parse().unwrap()
    })
}

/// Version of the API server.
async fn version(cluster: &Cluster) -> String {
    cluster.client().apiserver_version().await.unwrap().git_version
}

/// Waits until the number of reads of Secrets stays the same for five seconds. Returns this number.
async fn secret_reads(cluster: &Cluster) -> u64 {
    let count = async || {
        let request = http::Request::get("/metrics").body(Vec::new()).unwrap();
        let text = cluster.client().request_text(request).await.unwrap();
        let is_read = |line: &&str| {
            let mut parts = [r#"resource="secrets""#, r#"verb="GET""#].into_iter();
            line.starts_with("apiserver_request_total{") && parts.all(|part| line.contains(part))
        };
        let numbers = text.lines().filter(is_read).filter_map(|line| line.rsplit(' ').next());
        numbers.map(|number| number.parse::<f64>().unwrap() as u64).sum()
    };
    let mut last = count().await;
    loop {
        sleep(Duration::from_secs(5)).await;
        let now = count().await;
        if now == last {
            return now;
        }
        last = now;
    }
}

/// Waits until the controller writes almost nothing for some seconds.
async fn until_idle(server: &RealServer) {
    let mut last = etcd(server).await[0];
    loop {
        sleep(Duration::from_secs(5)).await;
        let now = etcd(server).await[0];
        if now - last < 25.0 {
            return;
        }
        last = now;
    }
}

/// Returns the value of a line of `/proc/PID/status` of a process, in bytes.
fn memory(program: &Child, line: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", program.id())).unwrap();
    let value = status.lines().find_map(|text| text.strip_prefix(line)).unwrap();
    let kibibytes: u64 = value.trim().trim_end_matches(" kB").parse().unwrap();
    kibibytes * 1024
}

/// Returns the processor time that a process has used until now, with a resolution of 10 ms.
fn processor_time(program: &Child) -> Duration {
    let status = fs::read_to_string(format!("/proc/{}/stat", program.id())).unwrap();
    // The second field is the name of the program, in parentheses.
    let (_, fields) = status.rsplit_once(") ").unwrap();
    let fields = fields.split(' ').skip(11).take(2);
    Duration::from_millis(10 * fields.map(|ticks| ticks.parse::<u64>().unwrap()).sum::<u64>())
}

/// Returns the percentile: the time that this percentage of the measurements does not exceed.
fn percentile(times: &[Duration], percent: usize) -> Duration {
    let mut times = times.to_vec();
    times.sort_unstable();
    times[(times.len() * percent).div_ceil(100) - 1]
}

fn microseconds(time: Duration) -> String {
    format!("{} µs", time.as_micros())
}

/// Machines in a namespace with a pool. KubeVirt does not run.
struct Fleet {
    namespace: String,
    network: String,
    machines: Api<DynamicObject>,
    vms: Api<DynamicObject>,
    secrets: Api<Secret>,
    /// Number of machines that were created so far.
    count: usize,
}

// === impl Fleet ===

impl Fleet {
    async fn new(cluster: &Cluster) -> Self {
        Self::with(cluster, addresses_in(1, MACHINES)).await
    }

    /// Creates a pool whose addresses are set by the members `addresses`. Creates no machines.
    async fn with(cluster: &Cluster, addresses: Value) -> Self {
        let namespace = cluster.namespace().await;
        let network = format!("{namespace}/vlan10");
        let mut spec = json!({"network": network, "machineSelector": {}});
        json_patch::merge(&mut spec, &addresses);
        let spec: PoolSpec = serde_json::from_value(spec).unwrap();
        let pools: Api<StaticIPPool> = Api::namespaced(cluster.client(), &namespace);
        pools.create(&PostParams::default(), &StaticIPPool::new("p", spec)).await.unwrap();
        let api = |names| Api::namespaced_with(cluster.client(), &namespace, &resource(names));
        Self {
            machines: api(KUBEVIRT_MACHINE),
            vms: api(VIRTUAL_MACHINE),
            secrets: Api::namespaced(cluster.client(), &namespace),
            network,
            namespace,
            count: 0,
        }
    }

    /// Returns the n-th machine, in the form in which capk creates it and the webhook changes it.
    fn vm(&self, n: usize) -> DynamicObject {
        let name = format!("worker-{n}");
        let source = json!({
            "secretRef": {"name": format!("{name}-userdata")},
            "networkDataSecretRef": {"name": new_name(&name).unwrap()},
        });
        let interface = json!({"name": "iface1", "bridge": {}, "acpiIndex": 101, "macAddress": next_mac()});
        let vm = json!({
            "metadata": {"name": name, "labels": {
                "capk.cluster.x-k8s.io/kubevirt-machine-name": name,
                "capk.cluster.x-k8s.io/kubevirt-machine-namespace": self.namespace,
            }},
            "spec": {"template": {"spec": {
                "domain": {"devices": {"interfaces": [interface]}},
                "networks": [{"name": "iface1", "multus": {"networkName": self.network}}],
                "volumes": [{"name": "cloudinitvolume", "cloudInitConfigDrive": source}],
            }}},
        });
        object(VIRTUAL_MACHINE, vm)
    }

    /// Creates machines one after another, so that they wait for the controller.
    async fn create(&mut self, count: usize) {
        for n in self.count..self.count + count {
            let machine = object(KUBEVIRT_MACHINE, json!({"metadata": {"name": format!("worker-{n}")}}));
            self.machines.create(&PostParams::default(), &machine).await.unwrap();
            self.vms.create(&PostParams::default(), &self.vm(n)).await.unwrap();
        }
        self.count += count;
    }

    /// Removes the annotations of the KubevirtMachines.
    async fn remove_annotations(&self) {
        let patch = Patch::Merge(json!({"metadata": {"annotations": null}}));
        for n in 0..self.count {
            self.machines.patch(&format!("worker-{n}"), &PatchParams::default(), &patch).await.unwrap();
        }
    }

    /// Creates machines with this number of clients. Returns two times: from the first VirtualMachine to the last
    /// Secret, and until the API server had stored all VirtualMachines.
    async fn serve(&mut self, count: usize, clients: usize) -> [Duration; 2] {
        let numbers = self.count..self.count + count;
        let create = async |n: usize| {
            let machine = object(KUBEVIRT_MACHINE, json!({"metadata": {"name": format!("worker-{n}")}}));
            drop(self.machines.create(&PostParams::default(), &machine).await.unwrap());
        };
        stream::iter(numbers.clone()).for_each_concurrent(clients, create).await;
        let vms: Vec<DynamicObject> = numbers.map(|n| self.vm(n)).collect();
        let version = self.secrets.list(&ListParams::default().limit(1)).await.unwrap().metadata.resource_version;
        let secrets = self.secrets.watch(&WatchParams::default(), &version.unwrap()).await.unwrap();
        let added = secrets.filter(|event| future::ready(matches!(event, Ok(WatchEvent::Added(_)))));
        let began = Instant::now();
        let create = async |vm: &DynamicObject| drop(self.vms.create(&PostParams::default(), vm).await.unwrap());
        let creating = async {
            stream::iter(&vms).for_each_concurrent(clients, create).await;
            began.elapsed()
        };
        let (stored, served) = future::join(creating, added.take(count).count()).await;
        assert_eq!(served, count);
        self.count += count;
        [began.elapsed(), stored]
    }

    /// Asks the webhook about new machines. Returns the time of each answer.
    async fn ask_the_webhook(&self, cluster: &Cluster, clients: usize, requests: usize) -> Vec<Duration> {
        let selection = Arc::new(SelectionCache::new(cluster.controller(), Scope::default()));
        let webhooks = webhooks(cluster, &selection);
        let mut selections = selection.subscribe();
        let running = Arc::clone(&selection);
        let cache = tokio::spawn(async move { match running.run().await {} });
        selections.wait_for(Option::is_some).await.unwrap();
        let mut vm = self.vm(0);
        let drive = &mut vm.data["spec"]["template"]["spec"]["volumes"][0]["cloudInitConfigDrive"];
        drive.as_object_mut().unwrap().remove("networkDataSecretRef");
        vm.metadata.namespace = Some(self.namespace.clone());
        let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
            "uid": "1234", "operation": "CREATE", "userInfo": {}, "object": vm,
            "kind": {"group": "kubevirt.io", "version": "v1", "kind": "VirtualMachine"},
            "resource": {"group": "kubevirt.io", "version": "v1", "resource": "virtualmachines"},
            "name": "worker-0", "namespace": self.namespace,
        }});
        let review = Bytes::from(review.to_string());
        let ask = |_| {
            let (webhooks, review) = (webhooks.clone(), review.clone());
            tokio::spawn(async move {
                let began = Instant::now();
                let answer = webhooks.answer(http::Request::post(MACHINES_PATH).body(review).unwrap()).await;
                let time = began.elapsed();
                let answer = answer.into_body().collect().await.unwrap().to_bytes();
                let answer: Value = serde_json::from_slice(&answer).unwrap();
                assert!(answer["response"]["patch"].is_array() || answer["response"]["patch"].is_string(), "{answer}");
                time
            })
        };
        let times = stream::iter(0..requests).map(ask).buffer_unordered(clients).map(Result::unwrap).collect().await;
        cache.abort();
        times
    }

    /// Kills the leader of two replicas, then creates a machine. Returns the time from the kill to the Secret of the
    /// machine.
    async fn lose_the_leader(&mut self, server: &RealServer) -> Duration {
        let (mut first, [diagnostics, health]) = run(server, &["--leader-elect"]);
        until(diagnostics, "/metrics", "glowplug_leading 1").await;
        until_ready(health).await;
        let (mut second, [_, health]) = run(server, &["--leader-elect"]);
        until_ready(health).await;
        first.kill().unwrap();
        let began = Instant::now();
        first.wait().unwrap();
        self.serve(1, 1).await;
        let time = began.elapsed();
        second.kill().unwrap();
        second.wait().unwrap();
        time
    }
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

/// Creates leases without a controller. Returns the number of leases per second.
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

/// Returns a lease of the n-th address of a network.
fn lease(network: &str, n: usize) -> StaticIPLease {
    let address = format!("10.9.{}.{}", n / 256, n % 256);
    let holder = machine(network, n);
    let spec = LeaseSpec {
        network: network.to_owned(),
        address: address.clone(),
        prefix: 16,
        pool: "clusters/raw".to_owned(),
        holder: Holder {
            kind: HolderKind::KubevirtMachine,
            namespace: holder.namespace,
            name: holder.name,
            uid: holder.uid,
            interface: Pool::DEFAULT_INTERFACE.to_owned(),
            vm_namespace: None,
            unknown: Default::default(),
        },
        since: MicroTime(Timestamp::now()),
        released: None,
        reuse_after: None,
        secrets: None,
        migrated: None,
        unknown: Default::default(),
    };
    StaticIPLease::new(&name(network, &address), spec)
}

fn rate(count: usize, began: Instant) -> f64 {
    count as f64 / began.elapsed().as_secs_f64()
}

/// Claims addresses of a pool with 64 tasks. Returns the number of claims per second.
async fn claims(cluster: &Cluster, name: &str, addresses: &[&str]) -> f64 {
    let namespace = cluster.namespace().await;
    // The pool has the same name as its network.
    let network = format!("{namespace}/{name}");
    let (registry, _served) = owner(cluster.client());
    let addresses = addresses.iter().map(|cidr| (*cidr).to_owned()).collect();
    let spec = PoolSpec { network: network.clone(), addresses, ..PoolSpec::default() };
    let pool = spec.check(Some(&namespace), name).0.unwrap();
    resize(&registry, vec![pool]).await;
    let began = Instant::now();
    stream::iter(0..COUNT)
        .for_each_concurrent(64, |n| {
            let claim = Claim { requests: vec![Request::of(&network)], ..claim(&machine(&network, n)) };
            let registry = &registry;
            async move { drop(registry.claim(claim).await.unwrap().unwrap()) }
        })
        .await;
    rate(COUNT, began)
}

/// Creates claims of Cluster API with 32 clients, and waits until all of them are ready. Returns the number of claims
/// per second.
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
    // Uses a watch, because repeated lists of all claims would cost more than the claims.
    let all_ready = async {
        let claims = watcher(site.claims.clone(), watcher::Config::default()).applied_objects();
        let ready = claims.try_filter(|claim| future::ready(condition(claim)["status"] == "True"));
        let mut ready = pin!(ready);
        let mut names = BTreeSet::new();
        while names.len() < COUNT {
            names.insert(ready.next().await.unwrap().unwrap().name_any());
        }
    };
    tokio::join!(stream::iter(0..COUNT).for_each_concurrent(32, create), all_ready);
    rate(COUNT, began)
}

/// Returns two times: from the last allocation of a pool to its condition `Exhausted`, and from the growth of the pool
/// until 100 waiting claims have stored leases.
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
        work.registry.claim(claim).await.unwrap()
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
        work.served.machines.recv().await.unwrap();
    }
    (exhausted, began.elapsed())
}

/// Starts the program, and ends it when it is ready. Returns the time until then, and the largest memory that the
/// program has used.
async fn start(server: &RealServer) -> (Duration, u64) {
    let began = Instant::now();
    let (mut program, [_, health]) = run(server, &[]);
    until_ready(health).await;
    let time = began.elapsed();
    let resident = memory(&program, "VmHWM:");
    program.kill().unwrap();
    program.wait().unwrap();
    (time, resident)
}

/// Starts the program that the variable `CONTROLLER` names, for example the static program of an image. Without the
/// variable, starts the program of this build. Returns the program, and the addresses of its diagnostics and its
/// probes.
fn run(server: &RealServer, options: &[&str]) -> (Child, [SocketAddr; 2]) {
    let [diagnostics, health, webhook] =
        [(); 3].map(|()| TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap());
    let kubeconfig = server.kubeconfig();
    let folder = kubeconfig.parent().unwrap();
    write_certificate(folder);
    let built = || env!("CARGO_BIN_EXE_glowplug-controller").into();
    let program = Command::new(std::env::var_os("CONTROLLER").unwrap_or_else(built))
        .args(["run", "--insecure-diagnostics", "--diagnostics-address", &diagnostics.to_string(), "--kubeconfig"])
        .arg(&kubeconfig)
        .arg("--webhook-cert-dir")
        .arg(folder)
        .args(["--health-addr", &health.to_string(), "--webhook-port", &webhook.port().to_string()])
        .args(options)
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    (program, [diagnostics, health])
}

async fn until_ready(health: SocketAddr) {
    until(health, "/readyz", "ok").await;
}

/// Waits until the server answers with a page that contains a text.
async fn until(address: SocketAddr, path: &str, text: &str) {
    loop {
        if TcpStream::connect(address).await.is_ok() {
            let (code, page) = get(address, path, None).await;
            if code == 200 && page.contains(text) {
                return;
            }
        }
        sleep(Duration::from_millis(5)).await;
    }
}
