//! A leader for the tests: a registry with the leases of a cluster, in its own thread as in the program.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use glowplug::host::Timestamp;
use glowplug::host::allocator::PoolError;
use glowplug::host::claim::{Allocation, Claim, Lease, Machine, Request};
use glowplug::host::pool::Pool;
use glowplug::host::registry::Registry;
use glowplug_controller::cluster::clock::Clock;
use glowplug_controller::kinds::pool::{LeaseSpec, PoolSpec, StaticIPLease};
use glowplug_controller::ledger::leases::ApiLedger;
use glowplug_controller::ledger::registry::RegistryHandle;
use glowplug_controller::ledger::types::{Served, Stopped};
use glowplug_controller::metrics::Metrics;
use glowplug_controller::pools::Pools;
use glowplug_controller::pools::facts::Scope;
use glowplug_controller::pools::selection_cache::SelectionCache;
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};
use tokio::runtime::Handle;
use tokio::task::{JoinHandle, spawn_blocking};

/// The time that the functions of a [`Leader`] use as the current time. A release uses a time that is one second later.
pub const NOW: Timestamp = Timestamp::constant(1_786_700_000, 123_000_000);

pub struct Leader(Option<Registry<ApiLedger>>);

/// Returns pool `clusters/workers` with these addresses. Each family of addresses has its own subnet.
pub fn pool(network: &str, addresses: &[&str]) -> Pool {
    pool_spec(network, addresses).check(Some("clusters"), "workers").0.unwrap()
}

/// Returns the specification of a pool with these addresses.
pub fn pool_spec(network: &str, addresses: &[&str]) -> PoolSpec {
    let networks = ["10.0.0.0/16", "fd00::/64"]
        .map(|cidr| glowplug_controller::kinds::pool::MachineNetwork { cidr: cidr.to_owned() });
    PoolSpec {
        network: network.to_owned(),
        addresses: addresses.iter().map(|text| (*text).to_owned()).collect(),
        machine_network: networks.into(),
        ..PoolSpec::default()
    }
}

/// Returns the n-th machine of a network. The UID contains the network, because a UID must be unique in a cluster.
pub fn machine(network: &str, n: usize) -> Machine {
    Machine::new("clusters", format!("worker-{n}"), format!("{network}-{n}"))
}

/// Returns the claim of a machine. The claim requests an address of each family of the pool.
pub fn claim(machine: &Machine) -> Claim {
    let request = Request::of("clusters/workers");
    Claim {
        machine: machine.clone(),
        created: Timestamp::UNIX_EPOCH,
        requests: vec![request],
        sticky: false,
        secret: None,
    }
}

/// Returns the leases of a network, as address, holder, and whether the lease is released.
pub async fn stored(client: Client, network: &str) -> Vec<(String, String, bool)> {
    let leases: Api<StaticIPLease> = Api::all(client);
    let leases = leases.list(&ListParams::default()).await.unwrap().items.into_iter();
    let of_network = |lease: &StaticIPLease| lease.spec.network == network;
    let mut leases: Vec<_> = leases.filter(of_network).map(|StaticIPLease { spec, .. }| row(spec)).collect();
    leases.sort();
    leases
}

fn row(spec: LeaseSpec) -> (String, String, bool) {
    (spec.address, spec.holder.name, spec.released.is_some())
}

/// Returns the name of the lease of an address.
pub fn name(network: &str, address: &str) -> String {
    glowplug_controller::kinds::lease_name::lease_name(address.parse().unwrap(), network).unwrap()
}

/// Returns the version of an object as a number.
pub fn version(object: &impl ResourceExt) -> u64 {
    object.resource_version().unwrap().parse().unwrap()
}

/// Returns a clock that starts at the time of the wall clock, like the clock of a leader.
pub fn clock() -> Clock {
    Clock::starting_at(Timestamp::now())
}

/// Changes the pools of a registry and opens their addresses, as if no machine used them. Returns the rejected changes.
pub async fn resize(registry: &RegistryHandle, pools: Vec<Pool>) -> Vec<(String, PoolError)> {
    let rejected = registry.resize(pools, BTreeSet::new()).await.unwrap();
    registry.open(registry.growth().await.unwrap()).await.unwrap();
    rejected
}

/// Starts the task that owns the registry of a cluster, as in the program.
pub fn owner(client: Client) -> (RegistryHandle, Served) {
    RegistryHandle::start(client, Arc::new(Metrics::default()), Arc::new(drop), clock()).unwrap()
}

/// A leader that works on the pools of a namespace, as the program does. Dropping this value simulates a crash.
pub struct Work {
    pub registry: RegistryHandle,
    pub served: Served,
    task: JoinHandle<()>,
}

// === impl Work ===

impl Work {
    pub async fn start(client: Client, namespace: &str) -> Self {
        let (registry, served) = owner(client.clone());
        let scope = Scope { namespace: namespace.to_owned(), ..Scope::default() };
        let metrics = Arc::new(Metrics::default());
        let cache = Arc::new(SelectionCache::new(client.clone(), scope));
        let pools = Pools::new(client, Arc::clone(&cache), registry.clone(), metrics);
        let mut open = pools.open();
        let (mut changed, opener) = (pools.open(), registry.clone());
        let opens = async move {
            while changed.changed().await.is_ok() {
                opener.open(opener.growth().await?).await?;
            }
            Err::<Infallible, _>(Stopped)
        };
        let task = tokio::spawn(async move {
            tokio::select! {
                never = cache.run() => match never {},
                Err(Stopped) = pools.run() => {}
                Err(Stopped) = opens => {}
            }
        });
        open.wait_for(Option::is_some).await.unwrap();
        registry.open(registry.growth().await.unwrap()).await.unwrap();
        Self { registry, served, task }
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        self.task.abort();
    }
}

// === impl Leader ===

impl Leader {
    /// Reads the leases and becomes the leader.
    pub async fn start(client: Client, pool: Pool) -> Self {
        Self::try_start(client, pool).await.unwrap()
    }

    /// Reads the leases and becomes the leader. An error: a request to the API server failed.
    pub async fn try_start(client: Client, pool: Pool) -> Result<Self, String> {
        let runtime = Handle::current();
        let metrics = Arc::new(Metrics::default());
        let ledger = ApiLedger::new(client, runtime, metrics, Arc::new(drop));
        let open = move || {
            let mut registry = Registry::open(ledger).map_err(text)?;
            registry.resize([pool], &[], NOW).map_err(text)?;
            registry.open_addresses(NOW).map_err(text)?;
            Ok(registry)
        };
        spawn_blocking(open).await.unwrap().map(|registry| Self(Some(registry)))
    }

    /// Runs a function on the registry, in a thread for blocking work.
    pub async fn run<T: Send + 'static>(
        &mut self,
        f: impl FnOnce(&mut Registry<ApiLedger>) -> T + Send + 'static,
    ) -> T {
        let mut registry = self.0.take().expect("the thread before did not panic");
        let (registry, result) = spawn_blocking(move || {
            let result = f(&mut registry);
            (registry, result)
        })
        .await
        .unwrap();
        self.0 = Some(registry);
        result
    }

    /// Claims an address of each family for a machine.
    pub async fn claim(&mut self, machine: Machine) -> Result<Vec<IpAddr>, String> {
        self.run(move |registry| {
            let allocations = registry.claim(&claim(&machine), NOW).map_err(text)?;
            Ok(allocations.iter().flat_map(|allocation| &allocation.addresses).map(|address| address.ip()).collect())
        })
        .await
    }

    /// Repeats a claim until it is served, as the controller does. The first attempts may fail, because the watch
    /// reports the writes of another leader some time later.
    pub async fn claim_until_done(&mut self, machine: &Machine) -> Vec<IpAddr> {
        let mut last = Ok(Vec::new());
        for _ in 0..60_000 {
            last = self.claim(machine.clone()).await;
            match last {
                Ok(addresses) => return addresses,
                Err(_) => tokio::time::sleep(std::time::Duration::from_millis(1)).await,
            }
        }
        panic!("the claims of {machine} fail: {last:?}");
    }

    /// Claims addresses for several machines in one write.
    pub async fn claim_all(&mut self, machines: Vec<Machine>) -> Result<Vec<Vec<IpAddr>>, String> {
        self.run(move |registry| {
            let claims: Vec<Claim> = machines.iter().map(claim).collect();
            let answers = registry.claim_all(&claims, NOW).map_err(text)?.answers;
            let addresses = |allocations: Vec<Allocation>| {
                allocations.iter().flat_map(|allocation| &allocation.addresses).map(|address| address.ip()).collect()
            };
            answers.into_iter().map(|answer| answer.map(addresses).map_err(|error| error.to_string())).collect()
        })
        .await
    }

    /// Releases everything that a machine holds.
    pub async fn release(&mut self, machine: Machine) -> Result<(), String> {
        self.run(move |registry| registry.release(&machine, NOW + Duration::from_secs(1)).map(drop).map_err(text)).await
    }

    /// Returns the holder of each held address of a network, and includes the changes of other leaders.
    pub async fn holders(&mut self, network: &str) -> Vec<(String, String)> {
        let network = network.to_owned();
        self.run(move |registry| {
            let leases = registry.state().map_err(text).unwrap().leases();
            let held = leases.filter(|(of, _, lease)| *of == network && lease.released.is_none());
            let row =
                |(_, address, lease): (_, IpAddr, &Lease)| (address.to_string(), lease.claimant.machine.name.clone());
            let mut rows: Vec<(String, String)> = held.map(row).collect();
            rows.sort();
            rows
        })
        .await
    }
}

/// Returns the text of an error and of its causes.
fn text(error: impl std::error::Error) -> String {
    error.source().map_or_else(|| error.to_string(), |source| format!("{error}: {source}"))
}
