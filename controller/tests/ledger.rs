//! Tests the ledger when requests, responses, watches and processes fail.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use glowplug_controller::kinds::pool::{HolderKind, StaticIPLease};
use kube::Api;
use kube::api::DeleteParams;
use tokio::sync::Semaphore;

use crate::support::leader::{Leader, NOW, machine, name, pool, stored};
use crate::support::server::{Fault, Server};
use crate::support::{is_lease_write, start_server};

const NETWORK: &str = "infra/vlan10";

fn addresses<const N: usize>(all: [&str; N]) -> Vec<IpAddr> {
    all.map(|address| address.parse().unwrap()).into()
}

/// Injects the fault into the first write of a lease. All other requests succeed.
fn fault_once(server: &Server, fault: Fault) {
    let mut fault = Some(fault);
    server.set_faults(move |call| if is_lease_write(call) { fault.take().unwrap_or(Fault::None) } else { Fault::None });
}

#[tokio::test]
async fn after_a_failed_write_of_a_lease_two_machines_get_different_addresses() {
    for (fault, error) in [
        (Fault::LostAnswer, "writing a lease"),
        (Fault::LostRequest, "writing a lease"),
        (Fault::Status(500), "writing a lease"),
        (Fault::Status(429), "writing a lease"),
    ] {
        let (server, cluster) = start_server().await;
        let mut leader = Leader::start(cluster.controller(), pool(NETWORK, &["10.0.0.8/29"])).await;
        fault_once(&server, fault);
        let refused = leader.claim(machine(NETWORK, 0)).await.unwrap_err();
        assert!(refused.starts_with(error), "{refused}");
        // Another machine claims first. This machine must not get the address that may already be stored.
        let other = leader.claim(machine(NETWORK, 1)).await.unwrap();
        let first = leader.claim(machine(NETWORK, 0)).await.unwrap();
        assert_ne!(other, first);
        let mut expected = [(first, "worker-0"), (other, "worker-1")]
            .map(|(address, name)| (address[0].to_string(), name.to_owned(), false));
        expected.sort();
        assert_eq!(stored(cluster.client(), NETWORK).await, expected);
    }
}

#[tokio::test]
async fn a_release_is_an_update_with_the_uid_and_the_version_of_the_lease() {
    let (server, cluster) = start_server().await;
    let mut leader = Leader::start(cluster.controller(), pool(NETWORK, &["10.0.0.8/32"])).await;
    leader.claim(machine(NETWORK, 0)).await.unwrap();
    let leases: Api<StaticIPLease> = Api::all(cluster.client());
    let lease = leases.get(&name(NETWORK, "10.0.0.8")).await.unwrap().metadata;
    server.take_calls();
    leader.release(machine(NETWORK, 0)).await.unwrap();
    let writes = server.take_calls().into_iter().filter(is_lease_write);
    let named = writes.map(|call| {
        let metadata = &call.body["metadata"];
        (
            call.verb,
            metadata["uid"].as_str().map(str::to_owned),
            metadata["resourceVersion"].as_str().map(str::to_owned),
        )
    });
    assert_eq!(named.collect::<Vec<_>>(), [("update", lease.uid, lease.resource_version)]);
}

#[tokio::test]
async fn a_release_with_a_lost_response_takes_effect() {
    let (server, cluster) = start_server().await;
    let mut leader = Leader::start(cluster.controller(), pool(NETWORK, &["10.0.0.8/32"])).await;
    leader.claim(machine(NETWORK, 0)).await.unwrap();
    fault_once(&server, Fault::LostAnswer);
    leader.release(machine(NETWORK, 0)).await.unwrap_err();
    assert_eq!(leader.claim(machine(NETWORK, 1)).await, Ok(addresses(["10.0.0.8"])));
}

#[tokio::test]
async fn while_the_result_of_a_write_is_unknown_nothing_is_allocated() {
    let (server, cluster) = start_server().await;
    let mut leader = Leader::start(cluster.controller(), pool(NETWORK, &["10.0.0.8/29"])).await;
    server.crash_at(0, true);
    for n in [0, 1, 1] {
        leader.claim(machine(NETWORK, n)).await.unwrap_err();
    }
    server.clear_faults();
    assert_eq!(leader.claim(machine(NETWORK, 1)).await, Ok(addresses(["10.0.0.9"])));
    assert_eq!(leader.claim(machine(NETWORK, 0)).await, Ok(addresses(["10.0.0.8"])));
}

#[tokio::test]
async fn after_a_refused_claim_a_leader_knows_the_lease_of_another_leader() {
    let (server, cluster) = start_server().await;
    let pool = pool(NETWORK, &["10.0.0.8/29"]);
    let mut paused = Leader::start(cluster.controller(), pool.clone()).await;
    // From now on, the paused leader receives no watch events.
    let gate = Arc::new(Semaphore::new(0));
    server.set_faults(move |call| if call.verb == "watch" { Fault::Hold(Arc::clone(&gate)) } else { Fault::None });
    server.cut_watches();
    let mut other = Leader::start(cluster.controller(), pool).await;
    assert_eq!(other.claim(machine(NETWORK, 0)).await, Ok(addresses(["10.0.0.8"])));

    let refused = paused.claim(machine(NETWORK, 1)).await;
    assert_eq!(refused, Err(format!("10.0.0.8 of network {NETWORK:?} is held by another claimant")));
    assert_eq!(paused.claim(machine(NETWORK, 1)).await, Ok(addresses(["10.0.0.9"])));
    // Both leaders claim for machine 2. The paused leader gets the lease that the other leader wrote, because a lease
    // belongs to its machine, not to a leader.
    assert_eq!(
        other.claim(machine(NETWORK, 2)).await,
        Err(format!("10.0.0.9 of network {NETWORK:?} is held by another claimant"))
    );
    assert_eq!(other.claim(machine(NETWORK, 2)).await, Ok(addresses(["10.0.0.10"])));
    assert_eq!(paused.claim(machine(NETWORK, 2)).await, Ok(addresses(["10.0.0.10"])));
    assert_eq!(stored(cluster.client(), NETWORK).await.len(), 3);
}

#[tokio::test]
async fn a_paused_leader_cannot_release_an_address_that_has_a_new_holder() {
    let (server, cluster) = start_server().await;
    let pool = pool(NETWORK, &["10.0.0.8/32"]);
    let mut paused = Leader::start(cluster.controller(), pool.clone()).await;
    paused.claim(machine(NETWORK, 0)).await.unwrap();
    let gate = Arc::new(Semaphore::new(0));
    server.set_faults(move |call| if call.verb == "watch" { Fault::Hold(Arc::clone(&gate)) } else { Fault::None });
    server.cut_watches();
    let mut other = Leader::start(cluster.controller(), pool).await;
    other.release(machine(NETWORK, 0)).await.unwrap();
    other.claim(machine(NETWORK, 1)).await.unwrap();
    // The paused leader still sees `worker-0` as the holder. It sends the release with an old version of the lease, so
    // the API server rejects the release.
    let refused = paused.release(machine(NETWORK, 0)).await;
    assert_eq!(refused, Err(format!("10.0.0.8 of network {NETWORK:?} is held by another claimant")));
    assert_eq!(stored(cluster.client(), NETWORK).await, [("10.0.0.8".to_owned(), "worker-1".to_owned(), false)]);
    assert_eq!(paused.release(machine(NETWORK, 0)).await, Ok(()));
}

#[tokio::test]
async fn changes_while_no_watch_is_open_are_read_from_the_next_list() {
    let (server, cluster) = start_server().await;
    let mut leader = Leader::start(cluster.controller(), pool(NETWORK, &["10.0.0.8/30"])).await;
    for n in [0, 1] {
        leader.claim(machine(NETWORK, n)).await.unwrap();
    }
    leader.release(machine(NETWORK, 1)).await.unwrap();
    let gate = Arc::new(Semaphore::new(0));
    let closed = Arc::clone(&gate);
    server.set_faults(move |call| if call.verb == "watch" { Fault::Hold(Arc::clone(&closed)) } else { Fault::None });
    server.cut_watches();
    let leases: Api<StaticIPLease> = Api::all(cluster.client());
    let before = leases.get(&name(NETWORK, "10.0.0.8")).await.unwrap();
    for address in ["10.0.0.8", "10.0.0.9"] {
        leases.delete(&name(NETWORK, address), &DeleteParams::default()).await.unwrap();
    }
    server.compact();
    server.clear_faults();
    gate.add_permits(1000);
    // The leader writes the held lease again, but not the released lease.
    while leases.get_opt(&before.metadata.name.clone().unwrap()).await.unwrap().is_none() {
        leader.holders(NETWORK).await;
    }
    assert_eq!(leases.get(&name(NETWORK, "10.0.0.8")).await.unwrap().spec, before.spec);
    assert_eq!(leader.claim_until_done(&machine(NETWORK, 2)).await, addresses(["10.0.0.9"]));
    assert_eq!(stored(cluster.client(), NETWORK).await.len(), 2);
}

#[tokio::test]
async fn claims_of_64_machines_cause_at_most_32_concurrent_writes() {
    let (server, cluster) = start_server().await;
    let mut leader = Leader::start(cluster.controller(), pool(NETWORK, &["10.0.0.0/25"])).await;
    let gate = Arc::new(Semaphore::new(0));
    let closed = Arc::clone(&gate);
    server.set_faults(move |call| if is_lease_write(call) { Fault::Hold(Arc::clone(&closed)) } else { Fault::None });
    server.take_calls();
    let machines = (0..64).map(|n| machine(NETWORK, n)).collect();
    let claims = tokio::spawn(async move { leader.claim_all(machines).await });
    let mut writes = 0;
    while writes < 32 {
        writes += server.take_calls().iter().filter(|call| is_lease_write(call)).count();
        tokio::task::yield_now().await;
    }
    // No further request arrives before a response is sent.
    for _ in 0..1000 {
        writes += server.take_calls().iter().filter(|call| is_lease_write(call)).count();
        tokio::task::yield_now().await;
    }
    assert_eq!(writes, 32);
    gate.add_permits(1000);
    assert_eq!(claims.await.unwrap().unwrap().len(), 64);
}

/// Runs the steps of the test: three machines claim in one group, the second releases its addresses, and a fourth
/// machine gets these addresses.
async fn flow(leader: &mut Leader) -> Result<(), String> {
    leader.claim_all((0..3).map(|n| machine(NETWORK, n)).collect()).await?;
    leader.release(machine(NETWORK, 1)).await?;
    leader.claim(machine(NETWORK, 3)).await.map(drop)
}

#[tokio::test]
async fn after_a_crash_at_each_write_each_machine_holds_one_address_of_each_family() {
    let mut crashes = 0;
    for n in 0.. {
        let mut has_crashed = false;
        for is_done in [false, true] {
            let (server, cluster) = start_server().await;
            let pool = pool(NETWORK, &["10.0.0.8/29", "fd00::8/125"]);
            let mut leader = Leader::start(cluster.controller(), pool.clone()).await;
            server.crash_at(n, is_done);
            has_crashed |= flow(&mut leader).await.is_err();
            drop(leader);
            server.clear_faults();

            let mut next = Leader::start(cluster.controller(), pool).await;
            for n in [3, 0, 2] {
                assert_eq!(next.claim(machine(NETWORK, n)).await.unwrap().len(), 2, "one address of each family");
            }
            let mut held: BTreeMap<String, usize> = BTreeMap::new();
            for (_, holder, is_released) in stored(cluster.client(), NETWORK).await {
                *held.entry(holder).or_default() += usize::from(!is_released);
            }
            held.retain(|holder, count| holder != "worker-1" && *count > 0);
            let expected = ["worker-0", "worker-2", "worker-3"].map(|name| (name.to_owned(), 2));
            assert_eq!(held, expected.into(), "crash at write {n}, done: {is_done}");
        }
        if !has_crashed {
            break;
        }
        crashes += 1;
    }
    // Six leases are created, two are released, and two are written for the next holder.
    assert_eq!(crashes, 10);
}

#[tokio::test]
async fn a_released_lease_that_has_a_new_holder_is_not_deleted() {
    let (server, cluster) = start_server().await;
    let pool = pool(NETWORK, &["10.0.0.8/32"]);
    let claim = |n| machine(NETWORK, n).of_kind(HolderKind::IpAddressClaim);
    let mut paused = Leader::start(cluster.controller(), pool.clone()).await;
    let mut other = Leader::start(cluster.controller(), pool).await;
    paused.claim(claim(0)).await.unwrap();
    paused.release(claim(0)).await.unwrap();
    // Another leader allocates the address to another claim while the request to delete the lease is held back.
    let (gate, is_sent) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let (held, sent) = (Arc::clone(&gate), Arc::clone(&is_sent));
    server.set_faults(move |call| match (call.plural.as_str(), call.verb) {
        ("staticipleases", "delete") => {
            sent.add_permits(1);
            Fault::Hold(Arc::clone(&held))
        }
        _ => Fault::None,
    });
    let later = NOW + Duration::from_secs(9);
    let forget = paused.run(move |registry| registry.forget(|_| Some(false), later).map_err(|error| error.to_string()));
    let take = async {
        drop(is_sent.acquire().await);
        let addresses = other.claim_until_done(&claim(1)).await;
        gate.add_permits(1);
        addresses
    };
    let (forgotten, taken) = tokio::join!(forget, take);
    assert_eq!(forgotten, Err(format!("10.0.0.8 of network {NETWORK:?} is held by another claimant")));
    assert_eq!(taken, addresses(["10.0.0.8"]));
    let row = |name: &str, is_released| vec![("10.0.0.8".to_owned(), name.to_owned(), is_released)];
    assert_eq!(stored(cluster.client(), NETWORK).await, row("worker-1", false));
    // After its new holder has released the lease, the lease can be deleted. Both leaders then claim the address, and
    // exactly one of them gets it.
    other.release(claim(1)).await.unwrap();
    server.clear_faults();
    let done =
        other.run(move |registry| registry.forget(|_| Some(false), later).map_err(|error| error.to_string())).await;
    assert_eq!((done, stored(cluster.client(), NETWORK).await), (Ok(1), vec![]));
    let (two, three) = (claim(2), claim(3));
    let (one, another) = tokio::join!(paused.claim(two), other.claim(three));
    assert_eq!(usize::from(one.is_ok()) + usize::from(another.is_ok()), 1, "{one:?} {another:?}");
    assert_eq!(stored(cluster.client(), NETWORK).await, row(if one.is_ok() { "worker-2" } else { "worker-3" }, false));
}
