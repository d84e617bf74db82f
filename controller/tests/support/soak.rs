//! Sends many claims to two leaders, while requests fail, responses are lost, watches break and leaders are replaced.
//! Checks that no address has two holders at any time.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use futures::{StreamExt, stream};
use glowplug::host::claim::Machine;
use glowplug_controller::kinds::pool::StaticIPLease;
use glowplug_controller::ledger::registry::RegistryHandle;
use kube::Api;

use super::Cluster;
use super::leader::{claim, machine, name, owner, pool, resize, stored};
use super::server::{Fault, Server};

const NETWORK: &str = "infra/vlan10";
const REPLACEMENTS: usize = 20;
const CUTS: usize = 20;

/// Two leaders of one cluster.
struct Leaders {
    cluster: Cluster,
    leading: Mutex<[RegistryHandle; 2]>,
}

impl Leaders {
    async fn start(cluster: Cluster) -> Self {
        let first = Self::leader(&cluster).await;
        let second = Self::leader(&cluster).await;
        Self { cluster, leading: Mutex::new([first, second]) }
    }

    async fn leader(cluster: &Cluster) -> RegistryHandle {
        let (registry, _) = owner(cluster.controller());
        resize(&registry, vec![pool(NETWORK, &["10.0.0.0/17"])]).await;
        registry
    }

    /// Replaces a leader. The old leader is not stopped, and finishes its commands.
    async fn replace(&self, n: usize) {
        let next = Self::leader(&self.cluster).await;
        self.leading.lock().unwrap()[n % 2] = next;
    }

    /// Releases everything that a machine holds. A new leader may not know the lease yet, so this function also reads
    /// the lease from the API server, and releases again until the lease is released.
    async fn release(&self, n: usize, machine: Machine, address: IpAddr) {
        let leases: Api<StaticIPLease> = Api::all(self.cluster.client());
        let name = name(NETWORK, &address.to_string());
        loop {
            self.get(n).release(machine.clone()).await.unwrap();
            let lease = leases.get(&name).await.unwrap().spec;
            if lease.holder.uid != machine.uid || lease.released.is_some() {
                return;
            }
        }
    }

    fn get(&self, n: usize) -> RegistryHandle {
        self.leading.lock().unwrap()[n % 2].clone()
    }
}

/// Makes every `period`-th write of a lease fail, until `faults` writes have failed. The kinds of failures take turns.
fn fail(server: &Server, period: usize, faults: usize) -> Arc<AtomicUsize> {
    let count = Arc::new(AtomicUsize::new(0));
    let (counted, mut writes) = (Arc::clone(&count), 0);
    server.set_faults(move |call| {
        if call.plural != "staticipleases" || !matches!(call.verb, "create" | "update") {
            return Fault::None;
        }
        writes += 1;
        let n = counted.load(Ordering::Relaxed);
        if writes % period != 0 || n == faults {
            return Fault::None;
        }
        counted.store(n + 1, Ordering::Relaxed);
        match n % 5 {
            0 => Fault::LostAnswer,
            1 => Fault::LostRequest,
            2 => Fault::Status(500),
            3 => Fault::Status(429),
            _ => Fault::Status(409),
        }
    });
    count
}

/// Sends `claims` claims to two leaders while `faults` of the writes fail. Releases the address of every third machine.
/// Panics if an address has two holders.
pub async fn run(claims: usize, faults: usize) {
    let server = Server::start().await;
    let leaders = Leaders::start(Cluster::of(&server).await).await;
    let failed = fail(&server, claims / faults, faults);
    let holders: Mutex<BTreeMap<IpAddr, usize>> = Mutex::default();
    let work = stream::iter(0..claims).for_each_concurrent(64, |n| {
        let (server, leaders, holders) = (&server, &leaders, &holders);
        async move {
            if n % (claims / REPLACEMENTS) == 1 {
                leaders.replace(n).await;
            }
            if n % (claims / CUTS) == 2 {
                server.cut_watches();
            }
            let machine = machine(NETWORK, n);
            let answer = leaders.get(n).claim(claim(&machine)).await.unwrap().unwrap();
            let address = answer[0].addresses[0].ip();
            let other = holders.lock().unwrap().insert(address, n);
            assert_eq!(other, None, "{address} has a second holder, machine {n}");
            if n % 3 == 0 {
                // From now on, the machine does not use the address.
                holders.lock().unwrap().remove(&address);
                leaders.release(n, machine, address).await;
            }
        }
    });
    work.await;
    assert_eq!(failed.load(Ordering::Relaxed), faults);

    let held = stored(leaders.cluster.client(), NETWORK).await.into_iter().filter(|(_, _, is_released)| !is_released);
    let held: BTreeMap<String, String> = held.map(|(address, holder, _)| (address, holder)).collect();
    let holders = holders.into_inner().unwrap().into_iter();
    let expected: BTreeMap<String, String> =
        holders.map(|(address, n)| (address.to_string(), format!("worker-{n}"))).collect();
    assert_eq!(held, expected);
}
