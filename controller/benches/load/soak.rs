//! A soak test: `make soak`. Machines and claims come and go for a long time, without faults. The memory of the
//! controller must not grow with the number of objects that it has served. Only anonymous memory is compared, because
//! the other resident pages are those parts of the program file that have run.

use std::collections::VecDeque;
use std::path::Path;
use std::time::Duration;

use kube::api::{DeleteParams, ListParams, PostParams};
use kube::runtime::wait::await_condition;
use kube::{Api, ResourceExt as _};
use serde_json::json;
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::support::Cluster;
use super::support::controller::Site;
use super::support::hosted::Hosted;
use super::support::hosted::definitions::KUBEVIRT_MACHINE;
use super::support::hosted::provider::object;
use super::support::real::RealServer;
use super::{Fleet, memory, run, until_ready};
use glowplug_controller::kinds::pool::StaticIPLease;

/// Number of machines, and also of claims, that exist at the same time.
const ALIVE: usize = 100;
/// Time between the creation of two machines, and of two claims.
const PACE: Duration = Duration::from_secs(1);
/// Number of served machines and claims after which the growth is measured. Until then, the caches of the program fill.
const WARM_UP: u64 = 2000;
/// Maximum growth, in bytes, for each machine and claim that is served after the warm-up. An existing machine needs
/// about 20 KB.
const PER_OBJECT: u64 = 256;
/// Growth, in bytes, that the memory allocator can cause without a leak.
const NOISE: u64 = 2_000_000;

/// Runs one replica for this number of minutes. Prints one line each minute. Panics if the memory grows beyond the
/// limit.
pub(super) async fn soak(assets: &Path, minutes: u64) {
    let server = RealServer::start(assets).await;
    let cluster = Cluster::new(server.config()).await;
    let mut fleet = Fleet::new(&cluster).await;
    let site = Site::new(&cluster).await;
    site.pool("p", &["10.0.0.0/16"]).await;
    let leases: Api<StaticIPLease> = Api::all(cluster.client());
    let (mut program, [_, health]) = run(&server, &[]);
    until_ready(health).await;

    let header = ["bytes of RSS", "anonymous", "objects alive", "leases", "objects served"];
    println!("minute {}", header.map(|title| format!("{title:>15}")).concat());
    let began = Instant::now();
    let mut ticks = interval(PACE);
    // After a delay on a busy computer, the missed objects must not be created all at once.
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // The names of the existing machines and of their Secrets. Each claim has the name of its machine.
    let mut alive: VecDeque<(String, String)> = VecDeque::new();
    let (mut served, mut minute, mut warm) = (0, 0, None);
    while minute < minutes {
        ticks.tick().await;
        if alive.len() == ALIVE {
            let (name, secret) = alive.pop_front().unwrap();
            // The oldest objects are deleted only after they have been served.
            await_condition(fleet.secrets.clone(), &secret, |secret: Option<&_>| secret.is_some()).await.unwrap();
            site.address_of(&name).await;
            served += 2;
            fleet.vms.delete(&name, &DeleteParams::default()).await.unwrap();
            fleet.machines.delete(&name, &DeleteParams::default()).await.unwrap();
            site.delete(&name).await;
        }
        let vm = fleet.vm(fleet.count);
        let name = vm.name_any();
        let machine = object(KUBEVIRT_MACHINE, json!({"metadata": {"name": name}}));
        fleet.machines.create(&PostParams::default(), &machine).await.unwrap();
        fleet.vms.create(&PostParams::default(), &vm).await.unwrap();
        site.claim(&name, &json!({})).await;
        alive.push_back((name, Hosted::reference(&vm).unwrap()));
        fleet.count += 1;

        if began.elapsed().as_secs() / 60 > minute {
            minute += 1;
            let [resident, anonymous] = ["VmRSS:", "RssAnon:"].map(|line| memory(&program, line));
            let stored = leases.list(&ListParams::default()).await.unwrap().items.len();
            println!("{minute:>6} {resident:>15}{anonymous:>15}{:>15}{stored:>15}{served:>15}", 2 * alive.len());
            if warm.is_none() && served >= WARM_UP {
                warm = Some((anonymous, served));
            }
        }
    }
    let last = memory(&program, "RssAnon:");
    program.kill().unwrap();
    program.wait().unwrap();
    let (first, before) = warm.expect("SOAK: too few minutes: the warm-up has not ended, expected more");
    let count = served - before;
    let (growth, limit) = (last.saturating_sub(first), NOISE + PER_OBJECT * count);
    println!(
        "anonymous: {first} bytes after {before} objects, {last} bytes after {served}: {growth} bytes more for {count} objects, \
         limit {limit}"
    );
    assert!(growth <= limit, "the memory grows: {growth} bytes for {count} objects, expected at most {limit}");
}
