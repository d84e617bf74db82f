//! Tests the handle of the registry, through which tasks send commands.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use glowplug::host::Timestamp;
use glowplug::host::allocator::{ClaimError, PoolError};
use glowplug::host::claim::{Allocation, Claim, Claimant, Machine, Record, Request};
use glowplug::host::may_record::Source;
use glowplug::host::pool::Pool;
use glowplug_controller::kinds::pool::{HolderKind, PoolSpec, StaticIPLease};
use glowplug_controller::ledger::types::Answer;
use kube::Api;

use crate::support::Cluster;
use crate::support::leader::{self, claim, name, owner, pool, pool_spec, resize, stored};

const KIND: HolderKind = HolderKind::IpAddressClaim;

/// Returns the n-th claim of a network, as the holder of a lease.
fn machine(network: &str, n: usize) -> Machine {
    leader::machine(network, n).of_kind(KIND)
}

async fn network(cluster: &Cluster) -> String {
    format!("{}/vlan10", cluster.namespace().await)
}

/// Returns the addresses in an answer, or its error, as strings.
fn addresses(answer: Answer) -> Result<Vec<String>, String> {
    answer.map(|allocations| allocations.iter().flat_map(all).collect()).map_err(|error| error.to_string())
}

fn all(allocation: &Allocation) -> Vec<String> {
    allocation.addresses.iter().map(|address| address.ip().to_string()).collect()
}

fn got(address: &str) -> Result<Vec<String>, String> {
    Ok(vec![address.to_owned()])
}

fn exhausted() -> Result<Vec<String>, String> {
    Err("No available IPs in pool for interface eno101".to_owned())
}

pub async fn claims_of_many_tasks_are_stored_before_they_are_answered(cluster: &Cluster) {
    let network = network(cluster).await;
    let (registry, _served) = owner(cluster.controller());
    resize(&registry, vec![pool(&network, &["10.0.1.0/24"])]).await;
    let claims = (0..100).map(|n| {
        let (registry, machine, network) = (registry.clone(), machine(&network, n), network.clone());
        let leases: Api<StaticIPLease> = Api::all(cluster.client());
        async move {
            let answer = addresses(registry.claim(claim(&machine)).await.unwrap()).unwrap();
            let lease = leases.get(&name(&network, &answer[0])).await.unwrap();
            assert_eq!((lease.spec.holder.uid, lease.spec.holder.kind), (machine.uid, KIND));
            answer[0].clone()
        }
    });
    let answers: BTreeSet<String> = futures::future::join_all(claims).await.into_iter().collect();
    assert_eq!(answers.len(), 100);
    // A repeated claim gets the same answer.
    let again = addresses(registry.claim(claim(&machine(&network, 7))).await.unwrap()).unwrap();
    assert_eq!((answers.contains(&again[0]), stored(cluster.client(), &network).await.len()), (true, 100));
}

pub async fn a_machine_that_waits_is_announced_when_it_is_served(cluster: &Cluster) {
    let network = network(cluster).await;
    let (registry, mut served) = owner(cluster.controller());
    resize(&registry, vec![pool(&network, &["10.0.0.8/32"])]).await;
    let [first, second, third] = [0, 1, 2].map(|n| machine(&network, n));
    assert_eq!(addresses(registry.claim(claim(&first)).await.unwrap()), got("10.0.0.8"));
    for machine in [&second, &third] {
        assert_eq!(addresses(registry.claim(claim(machine)).await.unwrap()), exhausted());
    }
    registry.withdraw(second).await.unwrap();
    registry.release(first).await.unwrap();
    assert_eq!(served.claims.recv().await.unwrap(), third);
    let lease = Api::<StaticIPLease>::all(cluster.client()).get(&name(&network, "10.0.0.8")).await.unwrap();
    assert_eq!((lease.spec.holder.name.as_str(), lease.spec.released), ("worker-2", None));
}

pub async fn machines_that_wait_are_served_in_the_order_of_their_creation_when_a_pool_grows(cluster: &Cluster) {
    let network = network(cluster).await;
    let (registry, mut served) = owner(cluster.controller());
    resize(&registry, vec![pool(&network, &["10.0.0.8/32"])]).await;
    // At its start, a leader sends all claims as one group: the oldest claim gets the address.
    let claims = [(0, 5), (1, 3), (2, 4)].map(|(n, created)| {
        let created = Timestamp::from_second(created).unwrap();
        Claim { created, ..claim(&machine(&network, n)) }
    });
    let mut claims = Vec::from(claims);
    claims.sort_by_key(|claim| claim.created);
    let answers = registry.claim_all(claims).await.unwrap();
    assert_eq!(answers.into_iter().map(addresses).collect::<Vec<_>>(), [got("10.0.0.8"), exhausted(), exhausted()]);
    resize(&registry, vec![pool(&network, &["10.0.0.8/31"])]).await;
    assert_eq!(served.claims.recv().await.unwrap(), machine(&network, 2));
    resize(&registry, vec![pool(&network, &["10.0.0.8/30"])]).await;
    assert_eq!(served.claims.recv().await.unwrap(), machine(&network, 0));
}

pub async fn an_address_is_allocated_again_when_its_reuse_delay_is_over(cluster: &Cluster) {
    let network = network(cluster).await;
    let (registry, mut served) = owner(cluster.controller());
    let pool = pool(&network, &["10.0.0.8/32"]).with_reuse_delay(Duration::from_secs(1));
    resize(&registry, vec![pool]).await;
    let [first, second] = [0, 1].map(|n| machine(&network, n));
    registry.claim(claim(&first)).await.unwrap().unwrap();
    assert_eq!(addresses(registry.claim(claim(&second)).await.unwrap()), exhausted());
    registry.release(first).await.unwrap();
    // The test sends no command here: the task of the registry itself checks periodically whether reuse delays are
    // over.
    assert_eq!(served.claims.recv().await.unwrap(), second);
    let lease = Api::<StaticIPLease>::all(cluster.client()).get(&name(&network, "10.0.0.8")).await.unwrap();
    assert_eq!((lease.spec.holder.name.as_str(), lease.spec.reuse_after), ("worker-1", None));
}

pub async fn a_deleted_pool_allocates_nothing_and_stays_until_its_last_lease_is_released(cluster: &Cluster) {
    let network = network(cluster).await;
    let (registry, _served) = owner(cluster.controller());
    // No other scenario has leases of a pool of this name.
    let pool = pool(&network, &["10.0.0.8/30"]).with_name(network.clone());
    resize(&registry, vec![pool]).await;
    let [first, second] = [0, 1].map(|n| machine(&network, n));
    let claim = |machine| Claim { requests: vec![Request::of(&network)], ..claim(machine) };
    registry.claim(claim(&first)).await.unwrap().unwrap();
    let names = || registry.read(|allocator| allocator.pools().map(|pool| pool.name().to_owned()).collect::<Vec<_>>());
    assert_eq!(registry.resize(Vec::new(), BTreeSet::new()).await, Ok(Vec::new()));
    assert_eq!(names().await.unwrap(), [network.as_str()]);
    let refused = registry.claim(claim(&second)).await.unwrap();
    assert_eq!(refused, Err(ClaimError::Suspended(network.clone())));
    assert_eq!(addresses(registry.claim(claim(&first)).await.unwrap()), got("10.0.0.8"));
    registry.release(first.clone()).await.unwrap();
    resize(&registry, Vec::new()).await;
    assert_eq!(names().await.unwrap(), [] as [&str; 0]);
    let refused = registry.claim(claim(&second)).await.unwrap();
    assert_eq!(refused, Err(ClaimError::UnknownPool(network.clone())));
}

pub async fn a_refused_change_of_a_pool_does_not_stop_the_other_pools(cluster: &Cluster) {
    let network = network(cluster).await;
    let (registry, _served) = owner(cluster.controller());
    let used = pool(&network, &["10.0.0.8/30"]);
    resize(&registry, vec![used]).await;
    registry.claim(claim(&machine(&network, 0))).await.unwrap().unwrap();
    let changed = PoolSpec { interface: Some("eno102".to_owned()), ..pool_spec(&network, &["10.0.0.8/30"]) };
    let changed = changed.check(Some("clusters"), "workers").0.unwrap();
    let other = pool(&network, &["10.0.1.8/30"]).with_name("clusters/other".to_owned());
    let refused = resize(&registry, vec![changed, other]).await;
    let error = PoolError::InUse {
        pool: "clusters/workers".to_owned(),
        member: "interface",
        known: "eno101".to_owned(),
        given: "eno102".to_owned(),
    };
    assert_eq!(refused, [("clusters/workers".to_owned(), error)]);
    let request = |pool: &str| Claim { requests: vec![Request::of(pool)], ..claim(&machine(&network, 1)) };
    let refused = registry.claim(request("clusters/workers")).await.unwrap();
    assert_eq!(refused, Err(ClaimError::Suspended("clusters/workers".to_owned())));
    assert_eq!(addresses(registry.claim(request("clusters/other")).await.unwrap()), got("10.0.1.8"));
}

pub async fn an_adopted_record_becomes_a_lease_of_its_claimant(cluster: &Cluster) {
    let network = network(cluster).await;
    let (registry, _served) = owner(cluster.controller());
    resize(&registry, vec![pool(&network, &["10.0.0.8/30"])]).await;
    let machine = machine(&network, 0);
    let record = Record {
        claimant: Claimant { machine: machine.clone(), interface: Pool::DEFAULT_INTERFACE.parse().unwrap() },
        node_pool: Some("clusters/workers".to_owned()),
        attachments: Vec::new(),
        network: None,
        addresses: vec!["10.0.0.9/16".parse().unwrap()],
        source: "IPAddress clusters/worker-0".to_owned(),
        kind: Source::IpAddress,
    };
    let adoption = registry.adopt(vec![record]).await.unwrap();
    assert_eq!((adoption.adopted, adoption.known, adoption.mismatches), (1, 0, Vec::new()));
    assert_eq!(addresses(registry.claim(claim(&machine)).await.unwrap()), got("10.0.0.9"));
    let kinds: BTreeMap<String, HolderKind> = Api::<StaticIPLease>::all(cluster.client())
        .get(&name(&network, "10.0.0.9"))
        .await
        .map(|lease| [(lease.spec.holder.name, lease.spec.holder.kind)].into())
        .unwrap();
    assert_eq!(kinds, [("worker-0".to_owned(), KIND)].into());
}
