//! Tests that the next process serves and removes pools after a crash of the controller at each write.

use std::sync::Arc;

use glowplug::host::claim::{Claim, Request};
use glowplug_controller::kinds::pool::{MachineNetwork, PoolSpec, StaticIPPool};
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use kube::runtime::wait::await_condition;
use serde_json::{Value, json};
use tokio::sync::{Notify, Semaphore};

use crate::support::controller::{Controller, merge};
use crate::support::hosted::Hosted;
use crate::support::leader::{Work, claim, machine, stored};
use crate::support::server::{Fault, Server};
use crate::support::{CONTROLLER, Cluster, start_server};

const NETWORK: &str = "infra/vlan10";

/// Makes the controller crash at its n-th write, counted from 0: its later requests get no response. With `is_done`,
/// the server still stores the n-th write. Other clients are served.
fn crash_at(server: &Server, n: usize, is_done: bool) -> Arc<Notify> {
    let crashed = Arc::new(Notify::new());
    let (crash, mut writes) = (Arc::clone(&crashed), 0);
    server.set_faults(move |call| {
        if call.user != CONTROLLER {
            return Fault::None;
        }
        let is_write = !matches!(call.verb, "get" | "list" | "watch");
        writes += usize::from(is_write);
        if writes <= n {
            return Fault::None;
        }
        crash.notify_one();
        if is_done && is_write && writes == n + 1 { Fault::LostAnswer } else { Fault::LostRequest }
    });
    crashed
}

/// Lets a pool serve a claim, deletes the pool, releases the lease of the claim, and waits until the pool is removed.
/// Skips steps that an earlier run has already done.
async fn flow(cluster: &Cluster, work: &Work) {
    let pools: Api<StaticIPPool> = Api::namespaced(cluster.client(), "default");
    let is_serving = |pool: Option<&StaticIPPool>| {
        pool.is_none_or(|pool| {
            let conditions = pool.status.iter().flat_map(|status| &status.conditions);
            pool.metadata.deletion_timestamp.is_some()
                || conditions.clone().any(|condition| condition.type_ == "Ready" && condition.status == "True")
        })
    };
    let pool = await_condition(pools.clone(), "workers", is_serving).await.unwrap();
    if pool.is_some_and(|pool| pool.metadata.deletion_timestamp.is_none()) {
        let claim = Claim { requests: vec![Request::of("default/workers")], ..claim(&machine(NETWORK, 0)) };
        work.registry.claim(claim).await.unwrap().unwrap();
        assert_eq!(stored(cluster.client(), NETWORK).await, [("10.0.0.8".to_owned(), "worker-0".to_owned(), false)]);
        pools.delete("workers", &DeleteParams::default()).await.unwrap();
        tokio::task::yield_now().await;
        assert!(pools.get_opt("workers").await.unwrap().is_some(), "a pool with a lease stays");
    }
    work.registry.release(machine(NETWORK, 0)).await.unwrap();
    await_condition(pools, "workers", |pool: Option<&StaticIPPool>| pool.is_none()).await.unwrap();
}

#[tokio::test]
async fn after_a_crash_at_each_write_the_next_process_finishes_the_work_on_the_pool() {
    for n in 0.. {
        let mut has_crashed = false;
        for is_done in [false, true] {
            let (server, cluster) = start_server().await;
            let spec = PoolSpec {
                network: NETWORK.to_owned(),
                addresses: vec!["10.0.0.8/32".to_owned()],
                machine_network: vec![MachineNetwork { cidr: "10.0.0.0/24".to_owned() }],
                ..PoolSpec::default()
            };
            let pools: Api<StaticIPPool> = Api::namespaced(cluster.client(), "default");
            pools.create(&PostParams::default(), &StaticIPPool::new("workers", spec)).await.unwrap();

            let crashed = crash_at(&server, n, is_done);
            let first = async {
                let work = Work::start(cluster.controller(), "default").await;
                flow(&cluster, &work).await;
            };
            tokio::select! {
                () = first => {}
                () = crashed.notified() => {
                    has_crashed = true;
                    server.clear_faults();
                    let next = Work::start(cluster.controller(), "default").await;
                    flow(&cluster, &next).await;
                }
            }
            let leases = stored(cluster.client(), NETWORK).await;
            assert!(leases.iter().all(|(_, _, is_released)| *is_released), "crash at write {n}: {leases:?}");
        }
        if !has_crashed {
            // The flow makes at least five writes: the finalizer, a status, the lease, its release, and the removal of
            // the finalizer. The number of other writes varies.
            assert!(n >= 5, "{n}");
            return;
        }
    }
}

/// Returns the configuration of a NodePool for a derived pool with these addresses.
fn bootstrap(addresses: &str) -> Value {
    json!({"network": "any-name", "addresses": [addresses], "gateway": ["10.0.0.9"], "nameservers": ["10.0.0.9"]})
}

/// Pauses the leader when it reads a NodePool to decide whether to delete the derived pool. Returns a semaphore, which
/// ends the pause when it is closed, and a notification of the pause.
fn pause_before_deletion(server: &Server) -> (Arc<Semaphore>, Arc<Notify>) {
    let (gate, came) = (Arc::new(Semaphore::new(0)), Arc::new(Notify::new()));
    let (closed, coming) = (Arc::clone(&gate), Arc::clone(&came));
    server.set_faults(move |call| {
        let is_last_read = call.plural == "nodepools" && call.query.contains_key("fieldSelector");
        if call.user != CONTROLLER || !is_last_read {
            return Fault::None;
        }
        coming.notify_one();
        Fault::Hold(Arc::clone(&closed))
    });
    (gate, came)
}

#[tokio::test]
async fn a_derived_pool_is_deleted_although_the_pool_changes_before_the_deletion() {
    let (server, cluster) = start_server().await;
    let hosted = Hosted::new(&cluster).await;
    hosted.node_pool("workers", 0, &json!({})).await;
    hosted.set_bootstrap_network_config("workers").await;
    hosted.configure("workers", &bootstrap("10.0.0.8/30")).await;
    let _leader = Controller::of(&cluster, "");
    await_condition(hosted.pools.clone(), "workers", |pool: Option<&StaticIPPool>| pool.is_some()).await.unwrap();
    let (gate, came) = pause_before_deletion(&server);
    hosted.configure("workers", &Value::Null).await;
    came.notified().await;
    // The leader has read the pool already.
    merge(&hosted.pools, "workers", &json!({"metadata": {"annotations": {"example.org/note": "changed"}}})).await;
    gate.close();
    await_condition(hosted.pools.clone(), "workers", |pool: Option<&StaticIPPool>| pool.is_none()).await.unwrap();
}

#[tokio::test]
async fn a_derived_pool_stays_if_its_node_pool_has_the_configuration_again_before_the_deletion() {
    let (server, cluster) = start_server().await;
    let hosted = Hosted::new(&cluster).await;
    hosted.node_pool("workers", 0, &json!({})).await;
    hosted.set_bootstrap_network_config("workers").await;
    hosted.configure("workers", &bootstrap("10.0.0.8/30")).await;
    let _leader = Controller::of(&cluster, "");
    let until_addresses = async |addresses: &str| {
        let is = |pool: Option<&StaticIPPool>| pool.is_some_and(|pool| pool.spec.addresses == [addresses]);
        await_condition(hosted.pools.clone(), "workers", is).await.unwrap().unwrap()
    };
    let before = until_addresses("10.0.0.8/30").await;
    let (gate, came) = pause_before_deletion(&server);
    hosted.configure("workers", &Value::Null).await;
    came.notified().await;
    hosted.configure("workers", &bootstrap("10.0.0.8/30")).await;
    gate.close();
    // The next change of the configuration changes the same pool.
    hosted.configure("workers", &bootstrap("10.0.0.8/29")).await;
    let after = until_addresses("10.0.0.8/29").await;
    assert_eq!((after.metadata.uid, after.metadata.deletion_timestamp), (before.metadata.uid, None));
}
