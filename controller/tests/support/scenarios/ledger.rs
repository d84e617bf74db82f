//! The ledger that stores its leases as StaticIPLease objects in the API server.

use std::collections::BTreeSet;
use std::net::IpAddr;

use glowplug_controller::kinds::pool::{HolderKind, StaticIPLease};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::json;

use crate::support::Cluster;
use crate::support::leader::{Leader, NOW, machine, name, pool, stored, version};

async fn network(cluster: &Cluster) -> String {
    format!("{}/vlan10", cluster.namespace().await)
}

fn rows<const N: usize>(rows: [(&str, &str, bool); N]) -> Vec<(String, String, bool)> {
    rows.map(|(address, holder, is_released)| (address.to_owned(), holder.to_owned(), is_released)).into()
}

fn held<const N: usize>(rows: [(&str, &str); N]) -> Vec<(String, String)> {
    rows.map(|(address, holder)| (address.to_owned(), holder.to_owned())).into()
}

fn addresses<const N: usize>(all: [&str; N]) -> Vec<IpAddr> {
    all.map(|address| address.parse().unwrap()).into()
}

pub async fn a_lease_is_stored_before_its_claim_is_answered(cluster: &Cluster) {
    let network = network(cluster).await;
    let mut leader = Leader::start(cluster.controller(), pool(&network, &["10.0.0.8/30", "fd00::8/125"])).await;
    assert_eq!(leader.claim(machine(&network, 0)).await, Ok(addresses(["10.0.0.8", "fd00::8"])));
    let leases: Api<StaticIPLease> = Api::all(cluster.client());
    let spec = leases.get(&name(&network, "fd00::8")).await.unwrap().spec;
    let time = MicroTime(NOW);
    assert_eq!(
        (spec.network, spec.address.as_str(), spec.prefix, spec.pool.as_str()),
        (network.clone(), "fd00::8", 64, "clusters/workers")
    );
    assert_eq!((spec.since, spec.released, spec.reuse_after), (time, None, None));
    let holder = spec.holder;
    assert_eq!((holder.kind, holder.interface.as_str()), (HolderKind::KubevirtMachine, "eno101"));
    assert_eq!(
        (holder.namespace, holder.name, holder.uid),
        ("clusters".to_owned(), "worker-0".to_owned(), format!("{network}-0"))
    );
    // A repeated claim has no further effect.
    assert_eq!(leader.claim(machine(&network, 0)).await, Ok(addresses(["10.0.0.8", "fd00::8"])));
}

pub async fn another_leader_reads_the_stored_leases(cluster: &Cluster) {
    let network = network(cluster).await;
    let pool = pool(&network, &["10.0.0.8/29"]);
    let mut first = Leader::start(cluster.controller(), pool.clone()).await;
    let machines = [0, 1, 2].map(|n| machine(&network, n));
    first.claim_all(machines.to_vec()).await.unwrap();
    first.release(machines[1].clone()).await.unwrap();
    let mut second = Leader::start(cluster.controller(), pool).await;
    assert_eq!(second.holders(&network).await, held([("10.0.0.10", "worker-2"), ("10.0.0.8", "worker-0")]));
    assert_eq!(second.claim(machines[2].clone()).await, Ok(addresses(["10.0.0.10"])));
    assert_eq!(second.claim(machine(&network, 3)).await, Ok(addresses(["10.0.0.9"])));
}

pub async fn two_leaders_at_once_never_allocate_one_address(cluster: &Cluster) {
    let network = network(cluster).await;
    let pool = pool(&network, &["10.0.1.0/24"]);
    let leaders = [(0..40, pool.clone()), (40..80, pool)];
    let work = leaders.map(|(numbers, pool)| {
        let (client, network) = (cluster.controller(), network.clone());
        tokio::spawn(async move {
            let mut leader = Leader::start(client, pool).await;
            let mut allocated = Vec::new();
            for n in numbers {
                let mine = leader.claim_until_done(&machine(&network, n)).await;
                allocated.push((mine[0].to_string(), format!("worker-{n}"), false));
            }
            allocated
        })
    });
    let mut allocated: Vec<_> = Vec::new();
    for work in work {
        allocated.extend(work.await.unwrap());
    }
    allocated.sort();
    let distinct: BTreeSet<&String> = allocated.iter().map(|(address, _, _)| address).collect();
    assert_eq!(distinct.len(), 80);
    assert_eq!(stored(cluster.client(), &network).await, allocated);
}

pub async fn a_released_address_goes_to_the_next_machine(cluster: &Cluster) {
    let network = network(cluster).await;
    let mut leader = Leader::start(cluster.controller(), pool(&network, &["10.0.0.8/32"])).await;
    assert_eq!(leader.claim(machine(&network, 0)).await, Ok(addresses(["10.0.0.8"])));
    leader.release(machine(&network, 0)).await.unwrap();
    assert_eq!(stored(cluster.client(), &network).await, rows([("10.0.0.8", "worker-0", true)]));
    assert_eq!(leader.claim(machine(&network, 1)).await, Ok(addresses(["10.0.0.8"])));
    let exhausted = leader.claim(machine(&network, 2)).await;
    assert_eq!(exhausted, Err("No available IPs in pool for interface eno101".to_owned()));
    // The release and the next allocation are one write.
    leader.release(machine(&network, 1)).await.unwrap();
    assert_eq!(stored(cluster.client(), &network).await, rows([("10.0.0.8", "worker-2", false)]));
}

pub async fn a_deleted_lease_of_a_machine_is_written_again(cluster: &Cluster) {
    let network = network(cluster).await;
    let pool = pool(&network, &["10.0.0.8/31"]);
    let mut leader = Leader::start(cluster.controller(), pool).await;
    leader.claim(machine(&network, 0)).await.unwrap();
    let (leases, name): (Api<StaticIPLease>, _) = (Api::all(cluster.client()), name(&network, "10.0.0.8"));
    let before = leases.get(&name).await.unwrap();
    leases.delete(&name, &DeleteParams::default()).await.unwrap();
    // The address stays with its machine, even before the leader knows that the lease was deleted.
    assert_eq!(leader.claim(machine(&network, 1)).await, Ok(addresses(["10.0.0.9"])));
    while leases.get_opt(&name).await.unwrap().is_none() {
        leader.holders(&network).await;
    }
    let after = leases.get(&name).await.unwrap();
    assert_eq!(after.spec, before.spec);
    assert!(version(&after) > version(&before));
}

pub async fn the_address_of_a_released_lease_that_is_deleted_is_free(cluster: &Cluster) {
    let network = network(cluster).await;
    let mut leader = Leader::start(cluster.controller(), pool(&network, &["10.0.0.8/32"])).await;
    leader.claim(machine(&network, 0)).await.unwrap();
    leader.release(machine(&network, 0)).await.unwrap();
    let leases: Api<StaticIPLease> = Api::all(cluster.client());
    leases.delete(&name(&network, "10.0.0.8"), &DeleteParams::default()).await.unwrap();
    assert_eq!(leader.claim_until_done(&machine(&network, 1)).await, addresses(["10.0.0.8"]));
    assert_eq!(stored(cluster.client(), &network).await, rows([("10.0.0.8", "worker-1", false)]));
}

pub async fn an_address_whose_lease_cannot_be_read_is_not_allocated(cluster: &Cluster) {
    let network = network(cluster).await;
    let pool = pool(&network, &["10.0.0.8/31"]);
    let mut first = Leader::start(cluster.controller(), pool.clone()).await;
    first.claim(machine(&network, 0)).await.unwrap();
    first.release(machine(&network, 0)).await.unwrap();
    let leases: Api<StaticIPLease> = Api::all(cluster.client());
    let damage = json!({"spec": {"holder": {"interface": "not an interface"}}});
    leases.patch(&name(&network, "10.0.0.8"), &PatchParams::default(), &Patch::Merge(damage)).await.unwrap();

    let mut second = Leader::start(cluster.controller(), pool).await;
    assert_eq!(second.claim(machine(&network, 1)).await, Ok(addresses(["10.0.0.9"])));
    let exhausted = second.claim(machine(&network, 2)).await;
    assert_eq!(exhausted, Err("No available IPs in pool for interface eno101".to_owned()));

    let mended = json!({"spec": {"holder": {"interface": "eno101"}}});
    leases.patch(&name(&network, "10.0.0.8"), &PatchParams::default(), &Patch::Merge(mended)).await.unwrap();
    assert_eq!(second.claim_until_done(&machine(&network, 2)).await, addresses(["10.0.0.8"]));
}

pub async fn an_object_of_another_kind_with_the_same_uid_is_another_holder(cluster: &Cluster) {
    let network = network(cluster).await;
    let mut leader = Leader::start(cluster.controller(), pool(&network, &["10.0.0.8/31"])).await;
    let (own, fake) = (machine(&network, 0), machine(&network, 0).of_kind(HolderKind::VirtualMachine));
    assert_eq!(leader.claim(own.clone()).await, Ok(addresses(["10.0.0.8"])));
    assert_eq!(leader.claim(fake.clone()).await, Ok(addresses(["10.0.0.9"])));
    leader.release(fake).await.unwrap();
    let held = rows([("10.0.0.8", "worker-0", false), ("10.0.0.9", "worker-0", true)]);
    assert_eq!(stored(cluster.client(), &network).await, held);
    // The next leader reads the kinds of the holders from the leases.
    let mut next = Leader::start(cluster.controller(), pool(&network, &["10.0.0.8/31"])).await;
    assert_eq!(next.claim(own).await, Ok(addresses(["10.0.0.8"])));
}
