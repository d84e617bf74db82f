//! Tests the registry and the task that owns it when requests and responses fail.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use glowplug::host::allocator::ClaimError;
use glowplug::host::claim::{Claimant, Machine, Record, Reservation};
use glowplug::host::may_record::Source;
use glowplug::host::pool::Namespaces;
use glowplug::host::records::Inventory;
use glowplug_controller::cluster::clock::Clock;
use glowplug_controller::cluster::key::Key;
use glowplug_controller::cluster::term::Writes;
use glowplug_controller::kinds::lease_name::lease_name;
use glowplug_controller::kinds::pool::{AddressesFrom, HolderKind, PoolSpec, StaticIPLease};
use glowplug_controller::ledger::registry::RegistryHandle;
use glowplug_controller::ledger::types::{Answer, Progress, Stopped};
use glowplug_controller::metrics::Metrics;
use glowplug_controller::program::election::Candidate;
use glowplug_controller::program::watchdog::Watchdog;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::rbac::v1::ClusterRoleBinding;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, MicroTime};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Api, ResourceExt as _};
use serde_json::json;
use tokio::sync::{Semaphore, watch};

use crate::support::controller::merge;
use crate::support::leader::{self, claim, clock, owner, pool, pool_spec, resize, stored};
use crate::support::server::{Call, Fault, Server};
use crate::support::{SYSTEM, is_lease_write, soak, start_server};

const NETWORK: &str = "infra/vlan10";
const KIND: HolderKind = HolderKind::IpAddressClaim;

/// Returns the n-th claim of a network, as the holder of a lease.
fn machine(network: &str, n: usize) -> Machine {
    leader::machine(network, n).of_kind(KIND)
}

/// Injects the fault into the next `count` writes of leases.
fn fault(server: &Server, fault: Fault, mut count: usize) {
    server.set_faults(move |call| {
        if is_lease_write(call) && count > 0 {
            count -= 1;
            return fault.clone();
        }
        Fault::None
    });
}

fn row(address: &str, holder: &str, is_released: bool) -> (String, String, bool) {
    (address.to_owned(), holder.to_owned(), is_released)
}

/// Makes the server answer with a status to each write of a lease for which `is_refused` is true.
fn refuse(server: &Server, code: u16, is_refused: impl Fn(&Call) -> bool + Send + 'static) {
    server.set_faults(move |call| match is_lease_write(call) && is_refused(call) {
        true => Fault::Status(code),
        false => Fault::None,
    });
}

/// Returns the first address of each answer, or its error, as strings.
fn texts(answers: &[Answer]) -> Vec<String> {
    let text = |answer: &Answer| match answer {
        Ok(allocations) => allocations[0].addresses[0].to_string(),
        Err(error) => error.to_string(),
    };
    answers.iter().map(text).collect()
}

#[tokio::test]
async fn a_policy_that_denies_the_lease_of_one_holder_does_not_delay_other_claims() {
    for code in [400, 403, 413, 422] {
        let (server, cluster) = start_server().await;
        let (registry, _served) = owner(cluster.controller());
        resize(&registry, vec![pool(NETWORK, &["10.0.0.8/29"])]).await;
        refuse(&server, code, |call| call.body["spec"]["holder"]["name"] == "worker-0");
        let group: Vec<_> = (0..3).map(|n| claim(&machine(NETWORK, n))).collect();
        let answers = texts(&registry.claim_all(group).await.unwrap());
        assert!(answers[0].starts_with("the lease cannot be recorded: "), "{answers:?}");
        assert_eq!(answers[1..], ["10.0.0.9/16", "10.0.0.10/16"]);
        assert!(*registry.works().borrow(), "a refusal is no failure of the API server");
        server.clear_faults();
        let answer = loop {
            match registry.claim(claim(&machine(NETWORK, 0))).await.unwrap() {
                Ok(answer) => break answer,
                Err(_) => tokio::time::sleep(std::time::Duration::from_millis(50)).await,
            }
        };
        assert_eq!(texts(&[Ok(answer)]), ["10.0.0.8/16"]);
    }
}

#[tokio::test]
async fn a_refused_claim_is_tried_once_more_after_each_change_of_its_object() {
    let (server, cluster) = start_server().await;
    let (registry, _served) = owner(cluster.controller());
    resize(&registry, vec![pool(NETWORK, &["10.0.0.8/29"])]).await;
    refuse(&server, 403, |call| call.body["spec"]["holder"]["name"] == "worker-0");
    let writes_of_claim = async || {
        server.take_calls();
        registry.claim(claim(&machine(NETWORK, 0))).await.unwrap().unwrap_err();
        server.take_calls().iter().filter(|call| is_lease_write(call)).count()
    };
    // After several refusals, the pause is so long that it does not end during the test.
    let change = || registry.note_changes(&[Key::of_machine(&machine(NETWORK, 0))].into());
    for _ in 0..6 {
        change();
        writes_of_claim().await;
    }
    assert_eq!(writes_of_claim().await, 0);
    registry.note_changes(&[Key::of_machine(&machine(NETWORK, 1))].into());
    assert_eq!(writes_of_claim().await, 0, "the change of another object");
    change();
    assert_eq!([writes_of_claim().await, writes_of_claim().await], [1, 0]);
    server.clear_faults();
    change();
    assert_eq!(texts(&[registry.claim(claim(&machine(NETWORK, 0))).await.unwrap()]), ["10.0.0.8/16"]);
}

#[tokio::test]
async fn the_registry_does_not_work_while_the_program_has_no_right_to_write_leases() {
    let (_server, cluster) = start_server().await;
    let (registry, _served) = owner(cluster.controller());
    resize(&registry, vec![pool(NETWORK, &["10.0.0.8/29"])]).await;
    let mut works = registry.works();
    assert!(*works.borrow_and_update());
    let bindings: Api<ClusterRoleBinding> = Api::all(cluster.client());
    let of_controller = |binding: &ClusterRoleBinding| binding.name_any().contains("glowplug");
    let all = bindings.list(&ListParams::default()).await.unwrap().items;
    let all: Vec<ClusterRoleBinding> = all.into_iter().filter(of_controller).collect();
    assert!(!all.is_empty());
    for binding in &all {
        bindings.delete(&binding.name_any(), &DeleteParams::default()).await.unwrap();
    }
    let claimed = tokio::spawn({
        let registry = registry.clone();
        async move { registry.claim(claim(&machine(NETWORK, 0))).await }
    });
    works.wait_for(|works| !works).await.unwrap();
    for mut binding in all {
        binding.metadata.resource_version = None;
        bindings.create(&PostParams::default(), &binding).await.unwrap();
    }
    works.wait_for(|works| *works).await.unwrap();
    assert_eq!(texts(&[claimed.await.unwrap().unwrap()]), ["10.0.0.8/16"]);
}

#[tokio::test]
async fn a_leader_that_cannot_write_leases_gives_up_the_leadership_and_another_replica_leads() {
    // With this duration, a candidate on a busy machine does not lose the Lease because of a delay.
    const DURATION: Duration = Duration::from_secs(5);
    for is_silent in [false, true] {
        let gate = Arc::new(Semaphore::new(0));
        let fault = if is_silent { Fault::Hold(Arc::clone(&gate)) } else { Fault::Status(500) };
        let (server, cluster) = start_server().await;
        let candidate = |name: &str| Candidate::new(cluster.controller(), SYSTEM, "standstill", name, DURATION);
        let start = |candidate: Candidate| {
            let (term, terms) = watch::channel(None);
            let (stop, stopped) = watch::channel(false);
            (terms, stop, tokio::spawn(candidate.run(term, stopped, Writes::default())))
        };
        let (progress, of_registry) = watch::channel(Progress::default());
        let watchdog = Watchdog::new(of_registry, Duration::from_millis(100));
        let mut has_given_up = watchdog.has_given_up();
        let (mut first, stop_first, first_task) = start(candidate("first").with_watchdog(watchdog));
        first.wait_for(Option::is_some).await.unwrap();
        let (registry, _served) = owner(cluster.controller());
        progress.send_replace(registry.progress());
        resize(&registry, vec![pool(NETWORK, &["10.0.0.8/29"])]).await;
        let (mut second, stop_second, second_task) = start(candidate("second"));
        server.set_faults(move |call| if is_lease_write(call) { fault.clone() } else { Fault::None });
        let request = claim(&machine(NETWORK, 0));
        let claimed = tokio::spawn({
            let registry = registry.clone();
            async move { registry.claim(request).await }
        });
        has_given_up.wait_for(|given_up| *given_up).await.unwrap();
        first.wait_for(Option::is_none).await.unwrap();
        second.wait_for(Option::is_some).await.unwrap();
        assert_eq!((*first.borrow(), *has_given_up.borrow()), (None, true));
        let lease = Api::<Lease>::namespaced(cluster.client(), SYSTEM).get("standstill").await.unwrap();
        assert_eq!(lease.spec.unwrap().holder_identity.as_deref(), Some("second"));
        claimed.abort();
        server.clear_faults();
        gate.add_permits(1000);
        for (stop, task) in [(stop_first, first_task), (stop_second, second_task)] {
            stop.send_replace(true);
            task.await.unwrap();
        }
    }
}

#[tokio::test]
async fn a_lease_that_the_server_refuses_to_change_blocks_only_its_own_address() {
    let (server, cluster) = start_server().await;
    let (registry, _served) = owner(cluster.controller());
    resize(&registry, vec![pool(NETWORK, &["10.0.0.8/29"])]).await;
    registry.claim(claim(&machine(NETWORK, 0))).await.unwrap().unwrap();
    registry.release(machine(NETWORK, 0)).await.unwrap();
    let poison = leader::name(NETWORK, "10.0.0.8");
    refuse(&server, 422, move |call| call.name.as_ref() == Some(&poison));
    let group: Vec<_> = (1..3).map(|n| claim(&machine(NETWORK, n))).collect();
    assert_eq!(texts(&registry.claim_all(group).await.unwrap()), ["10.0.0.10/16", "10.0.0.9/16"]);
    // The next leader finds the same lease.
    let (next, _served) = owner(cluster.controller());
    resize(&next, vec![pool(NETWORK, &["10.0.0.8/29"])]).await;
    assert_eq!(texts(&[next.claim(claim(&machine(NETWORK, 3))).await.unwrap()]), ["10.0.0.11/16"]);
    let stored = stored(cluster.client(), NETWORK).await;
    assert!(stored.contains(&row("10.0.0.8", "worker-0", true)), "{stored:?}");
}

#[tokio::test]
async fn a_machine_keeps_its_address_if_the_server_refuses_its_release_and_others_are_released() {
    let (server, cluster) = start_server().await;
    let (registry, _served) = owner(cluster.controller());
    resize(&registry, vec![pool(NETWORK, &["10.0.0.8/31"])]).await;
    for n in 0..2 {
        registry.claim(claim(&machine(NETWORK, n))).await.unwrap().unwrap();
    }
    refuse(&server, 403, |call| call.body["spec"]["holder"]["name"] == "worker-0");
    assert_eq!(registry.release(machine(NETWORK, 0)).await.unwrap(), []);
    assert_eq!(registry.release(machine(NETWORK, 1)).await.unwrap(), ["10.0.0.9/16".parse().unwrap()]);
    assert_eq!(texts(&[registry.claim(claim(&machine(NETWORK, 2))).await.unwrap()]), ["10.0.0.9/16"]);
    assert!(registry.holders().await.unwrap().contains(&machine(NETWORK, 0)));
    // The registry repeats the release when the server may accept it again, here after a change of the lease.
    server.clear_faults();
    let leases: Api<StaticIPLease> = Api::all(cluster.client());
    merge(&leases, &leader::name(NETWORK, "10.0.0.8"), &json!({"metadata": {"labels": {"changed": "true"}}})).await;
    while registry.holders().await.unwrap().contains(&machine(NETWORK, 0)) {
        tokio::task::yield_now().await;
    }
    let rows = [row("10.0.0.8", "worker-0", true), row("10.0.0.9", "worker-2", false)];
    assert_eq!(stored(cluster.client(), NETWORK).await, rows);
}

#[tokio::test]
async fn a_refused_release_of_a_machine_that_claims_again_is_not_repeated() {
    let (server, cluster) = start_server().await;
    let (registry, _served) = owner(cluster.controller());
    resize(&registry, vec![pool(NETWORK, &["10.0.0.8/32"])]).await;
    registry.claim(claim(&machine(NETWORK, 0))).await.unwrap().unwrap();
    refuse(&server, 403, |call| call.body["spec"]["holder"]["name"] == "worker-0");
    assert_eq!(registry.release(machine(NETWORK, 0)).await.unwrap(), []);
    server.clear_faults();
    assert_eq!(texts(&[registry.claim(claim(&machine(NETWORK, 0))).await.unwrap()]), ["10.0.0.8/16"]);
    // After this change of the lease, the registry would repeat a refused release.
    let leases: Api<StaticIPLease> = Api::all(cluster.client());
    merge(&leases, &leader::name(NETWORK, "10.0.0.8"), &json!({"metadata": {"labels": {"changed": "true"}}})).await;
    // Waits for three periods, because the registry repeats releases once in each period.
    let mut changes = registry.changes();
    for _ in 0..3 {
        changes.changed().await.unwrap();
    }
    assert_eq!(stored(cluster.client(), NETWORK).await, [row("10.0.0.8", "worker-0", false)]);
}

#[tokio::test]
async fn a_claim_is_repeated_until_it_is_stored() {
    for kind in [Fault::LostAnswer, Fault::LostRequest, Fault::Status(500), Fault::Status(429), Fault::Status(409)] {
        let (server, cluster) = start_server().await;
        let (registry, _served) = owner(cluster.controller());
        resize(&registry, vec![pool(NETWORK, &["10.0.0.8/29"])]).await;
        fault(&server, kind, 3);
        let answer = registry.claim(claim(&machine(NETWORK, 0))).await.unwrap().unwrap();
        assert_eq!(answer[0].addresses[0].to_string(), "10.0.0.8/16");
        assert_eq!(stored(cluster.client(), NETWORK).await, [row("10.0.0.8", "worker-0", false)]);
    }
}

#[tokio::test]
async fn the_end_of_an_object_releases_no_address_of_an_object_of_another_kind() {
    let (_server, cluster) = start_server().await;
    let (registry, _served) = owner(cluster.controller());
    resize(&registry, vec![pool(NETWORK, &["10.0.0.8/32"])]).await;
    registry.claim(claim(&machine(NETWORK, 0))).await.unwrap().unwrap();
    // A user can write the UID of the claim into an object that names another kind.
    for kind in [HolderKind::VirtualMachine, HolderKind::KubevirtMachine, HolderKind::IpamClaim] {
        assert_eq!(registry.release(machine(NETWORK, 0).of_kind(kind)).await.unwrap(), []);
    }
    assert_eq!(stored(cluster.client(), NETWORK).await, [row("10.0.0.8", "worker-0", false)]);
    registry.release(machine(NETWORK, 0)).await.unwrap();
    assert_eq!(stored(cluster.client(), NETWORK).await, [row("10.0.0.8", "worker-0", true)]);
}

#[tokio::test]
async fn an_object_cannot_get_or_release_the_address_of_another_kind_of_object_with_the_same_uid() {
    let (_server, cluster) = start_server().await;
    let (registry, _served) = owner(cluster.controller());
    resize(&registry, vec![pool(NETWORK, &["10.0.0.8/29"])]).await;
    let fake = |n: usize| machine(NETWORK, n).of_kind(HolderKind::VirtualMachine);
    let record = |n: usize, address: &str| Record {
        claimant: Claimant { machine: fake(n), interface: "eno101".parse().unwrap() },
        node_pool: None,
        attachments: Vec::new(),
        network: Some(NETWORK.to_owned()),
        addresses: vec![address.parse().unwrap()],
        source: "Secret of a user".to_owned(),
        kind: Source::Secret,
    };
    // A claim holds the address 10.0.0.8.
    registry.claim(claim(&machine(NETWORK, 0))).await.unwrap().unwrap();
    let adoption = registry.adopt(vec![record(0, "10.0.0.8/16")]).await.unwrap();
    let mismatches: Vec<String> = adoption.mismatches.iter().map(ToString::to_string).collect();
    assert_eq!((adoption.adopted, adoption.known), (0, 0));
    let both = format!("eno101 of {0} is also of IPAddressClaim {0}", machine(NETWORK, 0));
    assert_eq!(mismatches, [format!("Secret of a user: 10.0.0.8 of {both}")]);
    let mut named = claim(&fake(0));
    named.requests[0].addresses = vec!["10.0.0.8".parse().unwrap()];
    let refused = registry.claim(named).await.unwrap().unwrap_err();
    assert_eq!(refused.to_string(), format!("10.0.0.8: taken by IPAddressClaim {}", machine(NETWORK, 0)));
    // A machine has the UID of a claim that is not served yet. The record of the machine is adopted, and the claim gets
    // another address.
    assert_eq!(registry.adopt(vec![record(1, "10.0.0.9/16")]).await.unwrap().adopted, 1);
    let both = [claim(&machine(NETWORK, 1)), claim(&machine(NETWORK, 2))];
    let answers = registry.claim_all(both.into()).await.unwrap();
    let addresses = answers.iter().map(|answer| answer.as_ref().unwrap()[0].addresses[0].to_string());
    assert_eq!(addresses.collect::<Vec<_>>(), ["10.0.0.10/16", "10.0.0.11/16"]);
    assert_eq!(registry.release(fake(1)).await.unwrap(), ["10.0.0.9/16".parse().unwrap()]);
    let holders = [fake(0), machine(NETWORK, 0), machine(NETWORK, 1), machine(NETWORK, 2)];
    assert_eq!(registry.holders().await.unwrap(), holders.clone().into());
    // The address of a claim is allocated again only after each object that records the address is gone.
    assert_eq!(registry.release(machine(NETWORK, 0)).await.unwrap(), ["10.0.0.8/16".parse().unwrap()]);
    let mut named = claim(&machine(NETWORK, 3));
    named.requests[0].addresses = vec!["10.0.0.8".parse().unwrap()];
    let refused = registry.claim(named.clone()).await.unwrap().unwrap_err();
    assert_eq!(refused.to_string(), format!("10.0.0.8: taken by eno101 of {}", fake(0)));
    registry.release(fake(0)).await.unwrap();
    registry.claim(named).await.unwrap().unwrap();
}

#[tokio::test]
async fn the_holder_of_a_lease_that_another_leader_stores_during_a_claim_is_reported() {
    let (server, cluster) = start_server().await;
    let (registry, mut served) = owner(cluster.controller());
    resize(&registry, vec![pool(NETWORK, &["10.0.0.8/31"])]).await;
    let gate = Arc::new(Semaphore::new(0));
    fault(&server, Fault::Hold(Arc::clone(&gate)), 1);
    let request = claim(&machine(NETWORK, 0));
    let claimed = {
        let registry = registry.clone();
        tokio::spawn(async move { registry.claim(request).await })
    };
    while !server.take_calls().iter().any(is_lease_write) {
        tokio::task::yield_now().await;
    }
    let holder = machine(NETWORK, 1);
    let spec = json!({
        "network": NETWORK, "address": "10.0.0.8", "prefix": 16, "pool": "clusters/workers",
        "since": "2026-08-01T10:00:00.000000Z",
        "holder": {
            "kind": "IPAddressClaim", "namespace": holder.namespace, "name": holder.name, "uid": holder.uid,
            "interface": "eno101",
        },
    });
    let name = lease_name("10.0.0.8".parse().unwrap(), NETWORK).unwrap();
    let lease = StaticIPLease::new(&name, serde_json::from_value(spec).unwrap());
    Api::all(cluster.client()).create(&PostParams::default(), &lease).await.unwrap();
    gate.add_permits(1);
    assert_eq!(claimed.await.unwrap().unwrap().unwrap()[0].addresses[0].to_string(), "10.0.0.9/16");
    assert_eq!(served.claims.recv().await, Some(holder));
}

#[tokio::test]
async fn neither_a_later_claim_nor_a_late_lease_changes_the_holder_of_a_held_lease() {
    let (_server, cluster) = start_server().await;
    let (registry, _served) = owner(cluster.controller());
    resize(&registry, vec![pool(NETWORK, &["10.0.0.8/29"])]).await;
    let machine = leader::machine(NETWORK, 0);
    registry.claim(claim(&machine)).await.unwrap().unwrap();
    // A user changes the namespace in the template of the KubevirtMachine. The holder in the lease stays.
    registry.claim(claim(&machine.clone().with_vm_in("other"))).await.unwrap().unwrap();
    // A lease of another leader arrives late.
    let holder = json!({
        "kind": "VirtualMachine", "namespace": machine.namespace, "name": machine.name, "uid": machine.uid,
        "interface": "eno102",
    });
    let spec = json!({
        "network": NETWORK, "address": "10.0.0.9", "prefix": 16, "pool": "clusters/workers", "holder": holder,
        "since": "2026-08-01T10:00:00.000000Z",
    });
    let name = lease_name("10.0.0.9".parse().unwrap(), NETWORK).unwrap();
    let lease = StaticIPLease::new(&name, serde_json::from_value(spec).unwrap());
    Api::all(cluster.client()).create(&PostParams::default(), &lease).await.unwrap();
    while registry.read(|allocator| allocator.leases().count()).await.unwrap() < 2 {
        tokio::task::yield_now().await;
    }
    registry.release(machine.clone().of_kind(HolderKind::VirtualMachine)).await.unwrap();
    let rows = [row("10.0.0.8", "worker-0", false), row("10.0.0.9", "worker-0", true)];
    assert_eq!(stored(cluster.client(), NETWORK).await, rows);
    registry.release(machine).await.unwrap();
    let lease = Api::<StaticIPLease>::all(cluster.client()).get(&leader::name(NETWORK, "10.0.0.8")).await.unwrap();
    let holder = lease.spec.holder;
    assert_eq!((holder.kind, holder.vm_namespace), (HolderKind::KubevirtMachine, None));
    assert!(lease.spec.released.is_some());
}

#[tokio::test]
async fn records_of_objects_of_different_kinds_with_one_uid_all_reserve_their_addresses() {
    let (_server, cluster) = start_server().await;
    let (registry, _served) = owner(cluster.controller());
    let other = pool_spec("infra/other", &["10.0.0.8/30"]).check(Some("b"), "p").0.unwrap();
    resize(&registry, vec![pool(NETWORK, &["10.0.0.8/30"]), other]).await;
    let record = |address: &str, kind: HolderKind| Record {
        claimant: Claimant { machine: machine(NETWORK, 0).of_kind(kind), interface: "eno101".parse().unwrap() },
        node_pool: Some("clusters/workers".to_owned()),
        attachments: vec![NETWORK.to_owned()],
        network: None,
        addresses: vec![address.parse().unwrap()],
        source: "an object".to_owned(),
        kind: Source::Annotation,
    };
    // The leases are lost. The records of three objects of different kinds name one UID, for example because a user
    // wrote the UID of a machine into the owner of an IPAddress.
    registry.adopt(vec![record("10.0.0.8/16", KIND)]).await.unwrap();
    let mut inventory = Inventory::default();
    inventory.records = vec![record("10.0.0.9/16", HolderKind::VirtualMachine)];
    registry.rebuild(inventory).await.unwrap();
    registry.adopt(vec![record("10.0.0.10/16", HolderKind::KubevirtMachine)]).await.unwrap();
    let answer = registry.claim(claim(&machine(NETWORK, 1))).await.unwrap().unwrap();
    assert_eq!(answer[0].addresses[0].to_string(), "10.0.0.11/16");
    let kinds =
        [KIND, HolderKind::VirtualMachine, HolderKind::KubevirtMachine].map(|kind| machine(NETWORK, 0).of_kind(kind));
    assert_eq!(registry.holders().await.unwrap(), kinds.into_iter().chain([machine(NETWORK, 1)]).collect());
}

#[tokio::test]
async fn a_claim_cannot_record_or_hold_an_address_that_only_pools_of_another_namespace_have() {
    let (_server, cluster) = start_server().await;
    let (registry, _served) = owner(cluster.controller());
    let of = |namespace: &str, addresses: &str| {
        let pool = pool_spec(NETWORK, &[addresses]).check(Some(namespace), "p").0.unwrap();
        pool.with_namespaces(Namespaces::only([namespace]), Namespaces::only([namespace]))
    };
    let from: AddressesFrom = serde_json::from_value(json!({"ipamClaim": {}})).unwrap();
    let spec = PoolSpec {
        addresses_from: Some(from),
        machine_selector: Some(LabelSelector::default()),
        ..pool_spec(NETWORK, &[])
    };
    let external = spec.check(Some("a"), "x").0.unwrap();
    let pools = vec![of("a", "10.0.0.0/30"), of("b", "10.0.0.8/30"), external];
    resize(&registry, pools).await;
    let machine = Machine::new("a", "c", "1").of_kind(KIND);
    let addresses = ["10.0.0.1/16", "10.0.0.9/16"].map(|text| text.parse().unwrap());
    let record = Record {
        claimant: Claimant { machine: machine.clone(), interface: "eno101".parse().unwrap() },
        node_pool: Some("a/p".to_owned()),
        attachments: Vec::new(),
        network: None,
        addresses: addresses.into(),
        source: "IPAddress a/c".to_owned(),
        kind: Source::IpAddress,
    };
    let adoption = registry.adopt(vec![record.clone()]).await.unwrap();
    let ignored: Vec<String> = adoption.mismatches.iter().map(ToString::to_string).collect();
    let why = "is ignored: no pool that serves the namespace has the address";
    assert_eq!(
        (adoption.adopted, ignored),
        (1, vec![format!("IPAddress a/c: 10.0.0.9 of IPAddressClaim a/c (1) {why}")])
    );
    assert_eq!(stored(cluster.client(), NETWORK).await, [row("10.0.0.1", "c", false)]);
    // Another program chooses the addresses of pool `a/x`, so a record may have an address that no pool lists.
    let interface = record.claimant.interface;
    let other = Claimant { machine: Machine { uid: "2".to_owned(), ..machine.clone() }, interface };
    let former = Record { claimant: other, addresses: vec!["10.0.0.20/16".parse().unwrap()], ..record };
    assert_eq!(registry.adopt(vec![former]).await.unwrap().adopted, 1);
    // Pool `a/x` may hold an address that no pool lists, but not an address of a pool of another namespace.
    let external = Claimant { machine: Machine { uid: "3".to_owned(), ..machine }, interface };
    let hold = |address: &str| {
        let (addresses, source) = (vec![address.parse().unwrap()], "IPAddress a/c".to_owned());
        registry.hold("a/x".to_owned(), external.clone(), addresses, source)
    };
    let refused = hold("10.0.0.10/16").await.unwrap().unwrap_err();
    assert_eq!(refused.to_string(), "10.0.0.10: not in pool \"a/x\"");
    hold("10.0.0.30/16").await.unwrap().unwrap();
}

#[tokio::test]
async fn the_release_of_another_machine_with_the_uid_of_a_waiting_machine_changes_nothing() {
    let (_server, cluster) = start_server().await;
    let (registry, _served) = owner(cluster.controller());
    resize(&registry, vec![pool(NETWORK, &["10.0.0.8/32"])]).await;
    registry.claim(claim(&machine(NETWORK, 0))).await.unwrap().unwrap();
    registry.claim(claim(&machine(NETWORK, 1))).await.unwrap().unwrap_err();
    let other = Machine { name: "other".to_owned(), ..machine(NETWORK, 1) };
    assert_eq!(registry.release(other).await.unwrap(), []);
    let released = registry.release(machine(NETWORK, 0)).await.unwrap();
    assert_eq!(released, ["10.0.0.8/16".parse().unwrap()]);
    assert_eq!(stored(cluster.client(), NETWORK).await, [row("10.0.0.8", "worker-1", false)]);
}

#[tokio::test]
async fn while_the_server_fails_the_registry_reports_that_it_does_not_work() {
    let (server, cluster) = start_server().await;
    let (registry, _served) = owner(cluster.controller());
    resize(&registry, vec![pool(NETWORK, &["10.0.0.8/29"])]).await;
    let mut works = registry.works();
    assert!(*works.borrow_and_update());
    fault(&server, Fault::Status(503), usize::MAX);
    let claim = tokio::spawn({
        let registry = registry.clone();
        async move { registry.claim(claim(&machine(NETWORK, 0))).await }
    });
    works.wait_for(|works| !works).await.unwrap();
    server.clear_faults();
    works.wait_for(|works| *works).await.unwrap();
    let allocations = claim.await.unwrap().unwrap().unwrap();
    assert_eq!(allocations[0].addresses, ["10.0.0.8/16".parse().unwrap()]);
}

#[tokio::test]
async fn a_served_machine_is_announced_even_if_the_response_to_the_write_of_its_lease_was_lost() {
    let (server, cluster) = start_server().await;
    let (registry, mut served) = owner(cluster.controller());
    resize(&registry, vec![pool(NETWORK, &["10.0.0.8/32"])]).await;
    registry.claim(claim(&machine(NETWORK, 0))).await.unwrap().unwrap();
    registry.claim(claim(&machine(NETWORK, 1))).await.unwrap().unwrap_err();
    fault(&server, Fault::LostAnswer, 1);
    registry.release(machine(NETWORK, 0)).await.unwrap();
    assert_eq!(served.claims.recv().await.unwrap(), machine(NETWORK, 1));
    assert_eq!(stored(cluster.client(), NETWORK).await, [row("10.0.0.8", "worker-1", false)]);
}

#[tokio::test]
async fn a_new_pool_allocates_nothing_before_it_is_opened_and_skips_reported_addresses() {
    let (_server, cluster) = start_server().await;
    let metrics = Arc::new(Metrics::default());
    let (registry, mut served) = RegistryHandle::start(cluster.client(), metrics, Arc::new(|_| {}), clock()).unwrap();
    assert_eq!(registry.growth().await.unwrap(), 1);
    registry.resize(vec![pool(NETWORK, &["10.0.0.8/31"])], BTreeSet::new()).await.unwrap();
    let growth = registry.growth().await.unwrap();
    assert_eq!(growth, 2);
    let refused = registry.claim(claim(&machine(NETWORK, 0))).await.unwrap().unwrap_err();
    assert_eq!(refused, ClaimError::Closed("clusters/workers".to_owned()));
    let report = Reservation {
        address: "10.0.0.8".parse().unwrap(),
        network: Some(NETWORK.to_owned()),
        claimant: Claimant { machine: Machine::new("n", "guest", "1"), interface: "eno101".parse().unwrap() },
        source: "VirtualMachineInstance n/guest".to_owned(),
        kind: Source::Report,
    };
    let new = registry.change_reports(vec![report.clone()], Vec::new()).await.unwrap();
    assert_eq!((new.len(), new[0].is_reserved, new[0].is_conflict), (1, true, false));
    registry.open(growth).await.unwrap();
    assert_eq!(served.claims.recv().await, Some(machine(NETWORK, 0)));
    assert_eq!(stored(cluster.client(), NETWORK).await, [row("10.0.0.9", "worker-0", false)]);
    let refused = registry.claim(claim(&machine(NETWORK, 1))).await.unwrap().unwrap_err();
    assert_eq!(refused.to_string(), "No available IPs in pool for interface eno101");
    // A repeated report changes nothing. After the end of the report, the waiting claim is served.
    assert_eq!(registry.change_reports(vec![report.clone()], Vec::new()).await.unwrap(), []);
    assert_eq!(registry.change_reports(Vec::new(), vec![report]).await.unwrap(), []);
    assert_eq!(served.claims.recv().await, Some(machine(NETWORK, 1)));
}

#[tokio::test]
async fn a_reuse_delay_ends_by_the_clock_of_the_term_and_not_by_the_wall_clock() {
    let (_server, cluster) = start_server().await;
    // Since the term began, the wall clock was set one hour ahead.
    let start = Timestamp::now().saturating_sub(SignedDuration::from_hours(1)).unwrap();
    let (metrics, clock) = (Arc::new(Metrics::default()), Clock::starting_at(start));
    let in_minutes = |minutes| MicroTime(start.saturating_add(SignedDuration::from_mins(minutes)).unwrap());
    let holder = json!({"kind": "VirtualMachine", "namespace": "n", "name": "a", "uid": "1", "interface": "eno101"});
    let delayed = json!({
        "network": NETWORK, "address": "10.0.0.8", "prefix": 16, "pool": "clusters/workers", "holder": holder,
        "since": in_minutes(-20), "released": in_minutes(-10), "reuseAfter": in_minutes(30),
    });
    let leases: Api<StaticIPLease> = Api::all(cluster.client());
    let delayed = StaticIPLease::new(&leader::name(NETWORK, "10.0.0.8"), serde_json::from_value(delayed).unwrap());
    leases.create(&PostParams::default(), &delayed).await.unwrap();
    let (registry, _served) = RegistryHandle::start(cluster.controller(), metrics, Arc::new(|_| {}), clock).unwrap();
    let spec = PoolSpec { address_reuse_grace_period_seconds: Some(600), ..pool_spec(NETWORK, &["10.0.0.8/31"]) };
    resize(&registry, vec![spec.check(Some("clusters"), "workers").0.unwrap()]).await;
    let first = registry.claim(claim(&machine(NETWORK, 0))).await.unwrap().unwrap();
    assert_eq!(first[0].addresses, ["10.0.0.9/16".parse().unwrap()]);
    registry.release(machine(NETWORK, 0)).await.unwrap();
    let refused = registry.claim(claim(&machine(NETWORK, 1))).await.unwrap().unwrap_err();
    assert_eq!(refused.to_string(), "No available IPs in pool for interface eno101");
    // The times in the released lease come from the same clock.
    let lease = leases.get(&leader::name(NETWORK, "10.0.0.9")).await.unwrap().spec;
    let [released, end] = [lease.released, lease.reuse_after].map(Option::unwrap);
    assert_eq!(end.0.duration_since(released.0), SignedDuration::from_secs(600));
    assert!(lease.since <= released && released < in_minutes(50), "{released:?}");
}

#[tokio::test]
async fn the_registry_announces_each_address_that_becomes_free() {
    let (_server, cluster) = start_server().await;
    let [(registry, _served), (other, _others)] = [(); 2].map(|()| owner(cluster.controller()));
    for leader in [&registry, &other] {
        resize(leader, vec![pool(NETWORK, &["10.0.0.8/30"])]).await;
    }
    let mut freed = registry.freed();
    let mut next = async || freed.recv().await.unwrap().to_string();
    registry.claim(claim(&machine(NETWORK, 0))).await.unwrap().unwrap();
    registry.release(machine(NETWORK, 0)).await.unwrap();
    assert_eq!(next().await, "10.0.0.8");
    // Another leader releases its lease of the address.
    other.claim(claim(&machine(NETWORK, 1))).await.unwrap().unwrap();
    other.release(machine(NETWORK, 1)).await.unwrap();
    assert_eq!(next().await, "10.0.0.8");
    let of = |address: &str, kind: Source| Reservation {
        address: address.parse().unwrap(),
        network: Some(NETWORK.to_owned()),
        claimant: Claimant { machine: machine(NETWORK, 2), interface: "eno101".parse().unwrap() },
        source: "VirtualMachine worker-2".to_owned(),
        kind,
    };
    registry.add_conflicts(vec![of("10.0.0.9", Source::NetworkData)]).await.unwrap();
    registry.release(machine(NETWORK, 2)).await.unwrap();
    assert_eq!(next().await, "10.0.0.9");
    let report = of("10.0.0.10", Source::Report);
    registry.change_reports(vec![report.clone()], Vec::new()).await.unwrap();
    registry.change_reports(Vec::new(), vec![report]).await.unwrap();
    assert_eq!(next().await, "10.0.0.10");
}

#[tokio::test]
async fn a_repeated_rejected_change_of_a_pool_does_not_count_as_growth() {
    let (_server, cluster) = start_server().await;
    let metrics = Arc::new(Metrics::default());
    let (registry, _served) = RegistryHandle::start(cluster.client(), metrics, Arc::new(|_| {}), clock()).unwrap();
    let used = || pool(NETWORK, &["10.0.0.8/30"]);
    registry.resize(vec![used()], BTreeSet::new()).await.unwrap();
    registry.open(registry.growth().await.unwrap()).await.unwrap();
    registry.claim(claim(&machine(NETWORK, 0))).await.unwrap().unwrap();
    let changed = || {
        let spec = PoolSpec { interface: Some("eno102".to_owned()), ..pool_spec(NETWORK, &["10.0.0.8/30"]) };
        spec.check(Some("clusters"), "workers").0.unwrap()
    };
    let growth = registry.growth().await.unwrap();
    for _ in 0..10 {
        let rejected = registry.resize(vec![changed()], BTreeSet::new()).await.unwrap();
        assert_eq!(rejected.len(), 1);
        assert_eq!(registry.growth().await.unwrap(), growth);
        let refused = registry.claim(claim(&machine(NETWORK, 1))).await.unwrap();
        assert_eq!(refused, Err(ClaimError::Suspended("clusters/workers".to_owned())));
    }
    // The administrator undoes the change. Only the first of these calls counts as growth.
    for _ in 0..2 {
        assert_eq!(registry.resize(vec![used()], BTreeSet::new()).await.unwrap(), []);
        assert_eq!(registry.growth().await.unwrap(), growth + 1);
    }
    let refused = registry.claim(claim(&machine(NETWORK, 1))).await.unwrap();
    assert_eq!(refused, Err(ClaimError::Closed("clusters/workers".to_owned())));
}

#[tokio::test]
async fn the_registry_still_lists_a_withdrawn_machine_whose_network_data_reserves_an_address() {
    let (_server, cluster) = start_server().await;
    let (registry, _served) = owner(cluster.controller());
    resize(&registry, vec![pool(NETWORK, &["10.0.0.8/29"])]).await;
    let [machine, other] = [0, 1].map(|n| machine(NETWORK, n));
    let claimant = Claimant { machine: machine.clone(), interface: "eno101".parse().unwrap() };
    let reservation = Reservation {
        address: "10.0.0.9".parse().unwrap(),
        network: Some(NETWORK.to_owned()),
        claimant,
        source: "VirtualMachine worker-0".to_owned(),
        kind: Source::NetworkData,
    };
    registry.add_conflicts(vec![reservation]).await.unwrap();
    for machine in [&machine, &other] {
        registry.withdraw(machine.clone()).await.unwrap();
    }
    assert_eq!(registry.holders().await.unwrap(), BTreeSet::from([machine]));
}

#[tokio::test]
async fn claims_that_arrive_during_a_write_are_written_as_one_group() {
    let (server, cluster) = start_server().await;
    let (registry, _served) = owner(cluster.controller());
    resize(&registry, vec![pool(NETWORK, &["10.0.0.0/25"])]).await;
    let gate = Arc::new(Semaphore::new(0));
    let closed = Arc::clone(&gate);
    server.set_faults(move |call| if is_lease_write(call) { Fault::Hold(Arc::clone(&closed)) } else { Fault::None });
    let until_writes = async |count: usize| {
        let mut writes = 0;
        while writes < count {
            writes += server.take_calls().iter().filter(|call| is_lease_write(call)).count();
            tokio::task::yield_now().await;
        }
    };
    let claim_of = |n| {
        let registry = registry.clone();
        async move { registry.claim(claim(&machine(NETWORK, n))).await }
    };
    let first = tokio::spawn(claim_of(0));
    until_writes(1).await;
    let mut others = futures::future::join_all((1..21).map(claim_of));
    assert!((&mut others).now_or_never().is_none(), "the first poll sends every claim");
    gate.add_permits(1);
    // All 20 writes are sent, but none has a response yet.
    until_writes(20).await;
    gate.add_permits(1000);
    let mut answers = others.await;
    answers.push(first.await.unwrap());
    let all: BTreeSet<_> = answers.into_iter().map(|answer| answer.unwrap().unwrap()[0].addresses[0]).collect();
    assert_eq!(all.len(), 21);
}

#[tokio::test]
async fn the_leases_are_listed_again_until_the_server_answers() {
    let (server, cluster) = start_server().await;
    let mut failures = 2;
    server.set_faults(move |call| {
        if call.plural == "staticipleases" && failures > 0 {
            failures -= 1;
            return Fault::Status(500);
        }
        Fault::None
    });
    let (registry, _served) = owner(cluster.controller());
    assert_eq!(registry.read(|allocator| allocator.pools().count()).await, Ok(0));
}

#[tokio::test]
async fn a_claim_fails_after_the_task_of_the_registry_has_ended() {
    let (_server, cluster) = start_server().await;
    let (registry, _served) = owner(cluster.controller());
    registry.read(|_| panic!("of the test")).await.unwrap_err();
    assert_eq!(registry.claim(claim(&machine(NETWORK, 0))).await, Err(Stopped));
}

#[tokio::test]
async fn no_address_ever_has_two_holders() {
    soak::run(300, 30).await;
}
