//! Pool objects: how the leader serves them, and the status that the leader writes into them.

use glowplug::host::Timestamp;
use glowplug::host::allocator::ClaimError;
use glowplug::host::claim::{Claim, Machine, Request};
use glowplug_controller::kinds::pool::{
    GlobalPoolSpec, GlobalStaticIPPool, HolderKind, MachineNetwork, POOL_FINALIZER, PoolSpec, PoolStatus,
    StaticIPLease, StaticIPPool,
};
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::runtime::wait::await_condition;
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::support::controller::merge_status;
use crate::support::hosted::poll;
use crate::support::leader::{self, Work, claim};
use crate::support::{Cluster, later, until_event};

const KIND: HolderKind = HolderKind::IpAddressClaim;

/// Returns the n-th claim of a network, as the holder of a lease.
fn machine(network: &str, n: usize) -> Machine {
    leader::machine(network, n).of_kind(KIND)
}

/// A namespace with pools of its network `vlan10`.
struct Place {
    namespace: String,
    pools: Api<StaticIPPool>,
}

impl Place {
    async fn new(cluster: &Cluster) -> Self {
        let namespace = cluster.namespace().await;
        Self { pools: Api::namespaced(cluster.client(), &namespace), namespace }
    }

    async fn create(&self, name: &str, addresses: &str) {
        let spec = PoolSpec {
            network: "vlan10".to_owned(),
            addresses: vec![addresses.to_owned()],
            machine_network: vec![MachineNetwork { cidr: "10.0.0.0/16".to_owned() }],
            ..PoolSpec::default()
        };
        self.pools.create(&PostParams::default(), &StaticIPPool::new(name, spec)).await.unwrap();
    }

    async fn patch(&self, name: &str, patch: Value) {
        self.pools.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    }

    /// Waits until the pool meets the condition.
    async fn until(&self, name: &str, is: impl Fn(&StaticIPPool) -> bool) -> StaticIPPool {
        let is = |pool: Option<&StaticIPPool>| pool.is_some_and(&is);
        await_condition(self.pools.clone(), name, is).await.unwrap().unwrap()
    }

    async fn until_gone(&self, name: &str) {
        await_condition(self.pools.clone(), name, |pool: Option<&StaticIPPool>| pool.is_none()).await.unwrap();
    }

    /// Returns the claim of the n-th machine on a pool.
    fn claim(&self, pool: &str, n: usize) -> Claim {
        let request = Request::of(&format!("{}/{pool}", self.namespace));
        let created = Timestamp::from_second(i64::try_from(n).unwrap()).unwrap();
        Claim { requests: vec![request], created, ..claim(&machine(&self.namespace, n)) }
    }
}

/// Returns whether a condition of the pool has this status and reason.
fn has(pool: &StaticIPPool, type_: &str, status: &str, reason: &str) -> bool {
    let conditions = pool.status.iter().flat_map(|status| &status.conditions);
    conditions.clone().any(|is| is.type_ == type_ && is.status == status && is.reason == reason)
}

fn message(pool: &StaticIPPool, type_: &str) -> String {
    let conditions = &pool.status.as_ref().unwrap().conditions;
    conditions.iter().find(|condition| condition.type_ == type_).unwrap().message.clone()
}

fn is_serving(pool: &StaticIPPool) -> bool {
    has(pool, "Ready", "True", "Serving")
}

pub async fn a_pool_gets_a_finalizer_and_a_status(cluster: &Cluster) {
    let place = Place::new(cluster).await;
    place.create("before", "10.0.0.8/30").await;
    let unseen = place.pools.get("before").await.unwrap().status.unwrap();
    assert_eq!(unseen, PoolStatus { observed_generation: Some(-1), ..PoolStatus::default() });
    let work = Work::start(cluster.controller(), &place.namespace).await;
    place.create("after", "10.0.1.8/30").await;
    for name in ["before", "after"] {
        let pool = place.until(name, is_serving).await;
        assert_eq!(pool.finalizers(), [POOL_FINALIZER]);
        assert!(has(&pool, "Stalled", "False", "NotStalled"), "{pool:?}");
        assert_eq!(pool.status.as_ref().unwrap().observed_generation, pool.metadata.generation);
        let status = serde_json::to_value(pool.status.unwrap().ip_addresses).unwrap();
        assert_eq!(status, json!({"total": 4, "free": 4, "allocated": 0, "outside": 0}));
        let answer = work.registry.claim(place.claim(name, name.len())).await.unwrap();
        assert_eq!(answer.unwrap()[0].addresses.len(), 1);
        let used =
            |pool: &StaticIPPool| pool.status.as_ref().unwrap().ip_addresses.is_some_and(|count| count.allocated == 1);
        let families = place.until(name, used).await.status.unwrap().families;
        assert_eq!((families[0].allocated.as_str(), families[0].free.as_str()), ("1", "3"));
    }
}

pub async fn a_lease_that_cannot_be_read_is_in_the_status_of_its_pool_until_it_is_gone(cluster: &Cluster) {
    let place = Place::new(cluster).await;
    place.create("workers", "10.0.0.8/30").await;
    let leases: Api<StaticIPLease> = Api::all(cluster.client());
    let name = format!("10-0-0-8.{}.vlan10", place.namespace);
    let network = format!("{}/vlan10", place.namespace);
    let holder =
        json!({"kind": "IPAddressClaim", "namespace": place.namespace, "name": "c", "uid": "u", "interface": "eno101"});
    let spec = json!({
        "network": network, "address": "10.0.0.9", "prefix": 16, "pool": format!("{}/workers", place.namespace),
        "holder": holder, "since": "2026-08-14T10:00:00.000000Z",
    });
    leases
        .create(&PostParams::default(), &StaticIPLease::new(&name, serde_json::from_value(spec).unwrap()))
        .await
        .unwrap();
    let work = Work::start(cluster.controller(), &place.namespace).await;
    let pool = place.until("workers", |pool| has(pool, "UnreadableLeases", "True", "DamagedLeases")).await;
    let line = format!(
        "10.0.0.8: StaticIPLease {name} cannot be read: spec: invalid address \"10.0.0.9\" of {network:?}, expected the address and the network in the name of the lease"
    );
    assert_eq!(message(&pool, "UnreadableLeases"), line);
    assert!(is_serving(&pool), "{pool:?}");
    assert_eq!(until_event(cluster.client(), &place.namespace, None, "workers", "UnreadableLeases").await, line);
    let first = work.registry.claim(place.claim("workers", 0)).await.unwrap().unwrap();
    assert_eq!(first[0].addresses, ["10.0.0.9/16".parse().unwrap()]);

    leases.delete(&name, &DeleteParams::default()).await.unwrap();
    let is_well = |pool: &StaticIPPool| {
        let conditions = pool.status.iter().flat_map(|status| &status.conditions);
        conditions.clone().all(|condition| condition.type_ != "UnreadableLeases")
    };
    place.until("workers", is_well).await;
    let second = work.registry.claim(place.claim("workers", 1)).await.unwrap().unwrap();
    assert_eq!(second[0].addresses, ["10.0.0.8/16".parse().unwrap()]);
}

/// Returns the earlier CRD of pools, in which the list of exclusions has no list type.
pub(super) fn earlier_definition() -> CustomResourceDefinition {
    let mut definition = later::present("staticippools");
    let schema = definition.spec.versions[0].schema.as_mut().unwrap().open_api_v3_schema.as_mut().unwrap();
    let spec = schema.properties.as_mut().unwrap().get_mut("spec").unwrap();
    let exclusions = spec.properties.as_mut().unwrap().get_mut("excludedAddresses").unwrap();
    assert_eq!(exclusions.x_kubernetes_list_type.take().as_deref(), Some("set"));
    definition
}

pub async fn a_pool_of_an_earlier_schema_works_and_has_a_condition_until_it_is_corrected(cluster: &Cluster) {
    let place = Place::new(cluster).await;
    let pool = |exclusions: Value| -> StaticIPPool {
        let spec = json!({"network": "vlan10", "addresses": ["10.0.0.8/30"], "machineNetwork": [{"cidr": "10.0.0.0/16"}], "excludedAddresses": exclusions});
        StaticIPPool::new("workers", serde_json::from_value(spec).unwrap())
    };
    let repeated = pool(json!(["10.0.0.8", "10.0.0.9", "10.0.0.8"]));
    later::apply(cluster, earlier_definition()).await;
    // A real API server uses a changed CRD only after a delay.
    poll("a pool of the earlier definition", async || {
        place.pools.create(&PostParams::default(), &repeated).await.ok().map(drop)
    })
    .await;
    later::apply(cluster, later::present("staticippools")).await;
    let dry_run = PostParams { dry_run: true, ..PostParams::default() };
    let mut again = repeated.clone();
    again.metadata.name = Some("again".to_owned());
    let refusal =
        poll("a refusal of the present definition", async || match place.pools.create(&dry_run, &again).await {
            Err(kube::Error::Api(status)) => Some(status.message),
            _ => None,
        })
        .await;
    let line = "spec.excludedAddresses[2]: Duplicate value: \"10.0.0.8\"";
    assert!(refusal.ends_with(line), "{refusal}");

    let work = Work::start(cluster.controller(), &place.namespace).await;
    let pool = place.until("workers", |pool| has(pool, "SchemaViolated", "True", "EarlierSchema")).await;
    let line = "excludedAddresses[2]: repeated item \"10.0.0.8\", expected each item once";
    assert_eq!(message(&pool, "SchemaViolated"), line);
    assert!(is_serving(&pool), "{pool:?}");
    assert_eq!(until_event(cluster.client(), &place.namespace, None, "workers", "SchemaViolated").await, line);
    let allocations = work.registry.claim(place.claim("workers", 0)).await.unwrap().unwrap();
    assert_eq!(allocations[0].addresses, ["10.0.0.10/16".parse().unwrap()]);
    place.patch("workers", json!({"spec": {"sticky": true}})).await;
    place.patch("workers", json!({"spec": {"excludedAddresses": ["10.0.0.8", "10.0.0.9"]}})).await;
    let is_right = |pool: &StaticIPPool| {
        let status = pool.status.as_ref().unwrap();
        status.observed_generation == pool.metadata.generation
            && status.conditions.iter().all(|condition| condition.type_ != "SchemaViolated")
    };
    place.until("workers", is_right).await;
    // A person removes all conditions, and the controller writes its own conditions again.
    merge_status(&place.pools, "workers", &json!({"status": {"conditions": []}})).await;
    place.until("workers", is_serving).await;
    place.pools.delete("workers", &DeleteParams::default()).await.unwrap();
    work.registry.release(machine(&place.namespace, 0)).await.unwrap();
    place.until_gone("workers").await;
}

pub async fn an_exhausted_pool_has_a_condition_and_a_grown_pool_serves_waiting_claims(cluster: &Cluster) {
    let place = Place::new(cluster).await;
    place.create("workers", "10.0.0.8/32").await;
    let mut work = Work::start(cluster.controller(), &place.namespace).await;
    place.until("workers", is_serving).await;
    work.registry.claim(place.claim("workers", 0)).await.unwrap().unwrap();
    for n in [2, 1] {
        let refused = work.registry.claim(place.claim("workers", n)).await.unwrap();
        assert_eq!(refused.unwrap_err().to_string(), "No available IPs in pool for interface eno101");
    }
    let waits = |pool: &StaticIPPool| pool.status.as_ref().unwrap().waiting == 2;
    let pool = place.until("workers", |pool| has(pool, "Exhausted", "True", "NoFreeAddress") && waits(pool)).await;
    let note = format!("No available IPs in pool for interface eno101: pool {}/workers, IPv4", place.namespace);
    assert_eq!(message(&pool, "Exhausted"), note);
    let events: Api<Event> = Api::namespaced(cluster.client(), &place.namespace);
    let reasons = |events: &[Event]| -> Vec<(Option<String>, Option<String>)> {
        events.iter().map(|event| (event.reason.clone(), event.note.clone())).collect()
    };
    let mut known = Vec::new();
    while known.is_empty() {
        known = reasons(&events.list(&ListParams::default()).await.unwrap().items);
    }
    assert_eq!(known, [(Some("IPPoolExhausted".to_owned()), Some(note))]);

    place.patch("workers", json!({"spec": {"addresses": ["10.0.0.8/30"]}})).await;
    for n in [1, 2] {
        assert_eq!(work.served.claims.recv().await.unwrap(), machine(&place.namespace, n));
    }
    let is_served = |pool: &StaticIPPool| pool.status.as_ref().unwrap().waiting == 0;
    place.until("workers", |pool| has(pool, "Exhausted", "False", "FreeAddresses") && is_served(pool)).await;

    // The pool is exhausted a second time. The second event is equal to the first one, so both events become a series.
    work.registry.claim(place.claim("workers", 3)).await.unwrap().unwrap();
    place.until("workers", |pool| has(pool, "Exhausted", "True", "NoFreeAddress")).await;
    let mut count = None;
    while count.is_none() {
        let events = events.list(&ListParams::default()).await.unwrap().items;
        assert_eq!(events.len(), 1);
        count = events[0].series.as_ref().map(|series| series.count);
    }
    assert_eq!(count, Some(2));
}

pub async fn a_pool_of_a_node_pool_that_does_not_exist_has_a_condition(cluster: &Cluster) {
    let place = Place::new(cluster).await;
    place.create("workers", "10.0.0.8/30").await;
    let _work = Work::start(cluster.controller(), &place.namespace).await;
    place.until("workers", is_serving).await;
    place.patch("workers", json!({"spec": {"nodePoolRef": {"name": "w"}}})).await;
    let pool = place.until("workers", |pool| has(pool, "NodePoolFound", "False", "NodePoolNotFound")).await;
    let expected = format!("NodePool {}/w does not exist, so the pool selects no machine", place.namespace);
    assert_eq!(message(&pool, "NodePoolFound"), expected);
    assert!(is_serving(&pool));
    place.patch("workers", json!({"spec": {"nodePoolRef": null}})).await;
    let has_condition =
        |pool: &StaticIPPool| pool.status.iter().flat_map(|it| &it.conditions).any(|it| it.type_ == "NodePoolFound");
    place.until("workers", |pool| !has_condition(pool)).await;
}

pub async fn the_status_of_a_pool_counts_the_free_addresses_of_each_family(cluster: &Cluster) {
    let place = Place::new(cluster).await;
    let create = async |name: &str, spec: Value| {
        let networks = json!([{"cidr": "10.0.0.0/16"}, {"cidr": "fd00::/64"}]);
        let mut pool = json!({"network": "vlan10", "machineNetwork": networks});
        json_patch::merge(&mut pool, &spec);
        let pool = StaticIPPool::new(name, serde_json::from_value(pool).unwrap());
        place.pools.create(&PostParams::default(), &pool).await.unwrap();
    };
    create("dual", json!({"addresses": ["10.0.0.8", "fd00::/64"]})).await;
    create("kept", json!({"addresses": ["10.0.1.8"], "preAllocations": {"db-0": "10.0.1.8"}})).await;
    let work = Work::start(cluster.controller(), &place.namespace).await;
    let free = |free: i64| {
        move |pool: &StaticIPPool| {
            pool.status.as_ref().and_then(|status| status.ip_addresses).is_some_and(|count| count.free == Some(free))
        }
    };
    place.until("dual", free(1)).await;
    work.registry.claim(place.claim("dual", 0)).await.unwrap().unwrap();
    place.until("dual", free(0)).await;
    work.registry.claim(place.claim("dual", 1)).await.unwrap().unwrap_err();
    let waits = |pool: &StaticIPPool| pool.status.as_ref().unwrap().waiting == 1;
    let pool = place.until("dual", |pool| has(pool, "Exhausted", "True", "NoFreeAddress") && waits(pool)).await;
    let expected = format!("No available IPs in pool for interface eno101: pool {}/dual, IPv4", place.namespace);
    assert_eq!(message(&pool, "Exhausted"), expected);
    let status = pool.status.unwrap();
    let machine = machine(&place.namespace, 1);
    let first = json!([{
        "kind": "IPAddressClaim", "namespace": machine.namespace, "name": machine.name, "family": "IPv4",
        "since": "1970-01-01T00:00:01Z",
    }]);
    assert_eq!(json!(status.first_waiting), first);
    let free: Vec<(&str, &str)> =
        status.families.iter().map(|count| (count.family.as_str(), count.free.as_str())).collect();
    assert_eq!(free, [("IPv4", "0"), ("IPv6", "18446744073709551614")]);

    // A pool that pre-allocates each of its addresses to a name is exhausted only for other names.
    place.until("kept", |pool| has(pool, "Exhausted", "False", "PreAllocated")).await;
    work.registry.claim(place.claim("kept", 2)).await.unwrap().unwrap_err();
    place.until("kept", |pool| has(pool, "Exhausted", "True", "NoFreeAddress")).await;
}

pub async fn a_global_pool_gets_a_finalizer_and_a_status(cluster: &Cluster) {
    let namespace = cluster.namespace().await;
    let pools: Api<GlobalStaticIPPool> = Api::all(cluster.client());
    let spec = PoolSpec {
        network: format!("{namespace}/vlan10"),
        addresses: vec!["10.0.0.8/30".to_owned()],
        machine_network: vec![MachineNetwork { cidr: "10.0.0.0/16".to_owned() }],
        ..PoolSpec::default()
    };
    let pool = GlobalStaticIPPool::new(&namespace, GlobalPoolSpec { pool: spec });
    pools.create(&PostParams::default(), &pool).await.unwrap();
    let work = Work::start(cluster.controller(), "").await;
    let is_serving = |pool: Option<&GlobalStaticIPPool>| {
        let conditions = pool.and_then(|pool| pool.status.as_ref()).into_iter().flat_map(|status| &status.conditions);
        conditions.clone().any(|condition| condition.type_ == "Ready" && condition.status == "True")
    };
    await_condition(pools.clone(), &namespace, is_serving).await.unwrap();
    let claim = Claim { requests: vec![Request::of(&namespace)], ..claim(&machine(&namespace, 0)) };
    let allocations = work.registry.claim(claim).await.unwrap().unwrap();
    assert_eq!(allocations[0].addresses, ["10.0.0.8/16".parse().unwrap()]);
    pools.delete(&namespace, &DeleteParams::default()).await.unwrap();
    work.registry.release(machine(&namespace, 0)).await.unwrap();
    await_condition(pools, &namespace, |pool: Option<&GlobalStaticIPPool>| pool.is_none()).await.unwrap();
}

pub async fn a_deleted_pool_stays_until_its_last_lease_is_released(cluster: &Cluster) {
    let place = Place::new(cluster).await;
    place.create("workers", "10.0.0.8/30").await;
    let work = Work::start(cluster.controller(), &place.namespace).await;
    place.until("workers", is_serving).await;
    work.registry.claim(place.claim("workers", 0)).await.unwrap().unwrap();
    place.pools.delete("workers", &DeleteParams::default()).await.unwrap();
    let deleted = place.until("workers", |pool| has(pool, "Ready", "False", "Deleting")).await;
    assert!(has(&deleted, "Stalled", "False", "NotStalled"), "{deleted:?}");
    let refused = work.registry.claim(place.claim("workers", 1)).await.unwrap();
    assert_eq!(refused, Err(ClaimError::Suspended(format!("{}/workers", place.namespace))));
    work.registry.release(machine(&place.namespace, 0)).await.unwrap();
    place.until_gone("workers").await;
}

pub async fn a_change_of_the_interface_of_a_pool_in_use_is_accepted_after_the_last_release(cluster: &Cluster) {
    let place = Place::new(cluster).await;
    let work = Work::start(cluster.controller(), &place.namespace).await;
    place.create("workers", "10.0.0.8/32").await;
    place.until("workers", |pool| has(pool, "Ready", "True", "Serving")).await;
    work.registry.claim(place.claim("workers", 0)).await.unwrap().unwrap();
    work.registry.claim(place.claim("workers", 1)).await.unwrap().unwrap_err();
    place.patch("workers", json!({"spec": {"interface": "eno102"}})).await;
    let pool = place.until("workers", |pool| has(pool, "Ready", "False", "InUse")).await;
    let name = format!("{}/workers", place.namespace);
    let expected = format!(
        "pool {name:?}: interface \"eno102\" differs from \"eno101\" in the ledger, expected no change while machines hold its addresses"
    );
    assert_eq!(message(&pool, "Ready"), expected);
    // A waiting claim does not prevent the change of the pool.
    work.registry.release(machine(&place.namespace, 0)).await.unwrap();
    place.until("workers", |pool| has(pool, "Ready", "True", "Serving")).await;
    let holder = machine(&place.namespace, 1);
    let interfaces = work.registry.read(move |allocator| {
        allocator
            .leases_of(&holder)
            .map(|(_, address, lease)| (address.to_string(), lease.claimant.interface.to_string()))
            .collect::<Vec<_>>()
    });
    assert_eq!(interfaces.await.unwrap(), [("10.0.0.8".to_owned(), "eno102".to_owned())]);
}

pub async fn the_younger_of_two_overlapping_pools_allocates_after_the_older_pool_is_gone(cluster: &Cluster) {
    let place = Place::new(cluster).await;
    // A server stores the creation time in seconds. For equal times, the name decides.
    place.create("a-older", "10.0.0.8/30").await;
    place.create("b-younger", "10.0.0.8/31").await;
    let work = Work::start(cluster.controller(), &place.namespace).await;
    let overlap = place.until("b-younger", |pool| has(pool, "Ready", "False", "PoolOverlap")).await;
    let namespace = &place.namespace;
    let expected = format!(
        "pools {namespace}/a-older and {namespace}/b-younger offer the same addresses of network {namespace}/vlan10: \
         10.0.0.8-10.0.0.9"
    );
    assert_eq!(message(&overlap, "Ready"), expected);
    assert!(has(&overlap, "Stalled", "False", "NotStalled"), "{overlap:?}");
    let refused = work.registry.claim(place.claim("b-younger", 0)).await.unwrap();
    assert_eq!(refused, Err(ClaimError::Suspended(format!("{namespace}/b-younger"))));
    place.pools.delete("a-older", &DeleteParams::default()).await.unwrap();
    place.until("b-younger", is_serving).await;
    work.registry.claim(place.claim("b-younger", 0)).await.unwrap().unwrap();
}

pub async fn a_pool_with_an_error_keeps_its_leases_and_allocates_when_it_is_corrected(cluster: &Cluster) {
    let place = Place::new(cluster).await;
    place.create("workers", "10.0.0.8/30").await;
    let work = Work::start(cluster.controller(), &place.namespace).await;
    place.until("workers", is_serving).await;
    let held = work.registry.claim(place.claim("workers", 0)).await.unwrap().unwrap();
    place.patch("workers", json!({"spec": {"addresses": ["10.0.0.9/30"]}})).await;
    let wrong = place.until("workers", |pool| has(pool, "Ready", "False", "InvalidSpec")).await;
    assert!(message(&wrong, "Ready").starts_with("addresses[0]: host bits are set"), "{wrong:?}");
    assert_eq!(work.registry.claim(place.claim("workers", 0)).await.unwrap().unwrap(), held);
    let refused = work.registry.claim(place.claim("workers", 1)).await.unwrap();
    assert_eq!(refused, Err(ClaimError::Suspended(format!("{}/workers", place.namespace))));
    place.patch("workers", json!({"spec": {"addresses": ["10.0.0.8/30"]}})).await;
    place.until("workers", is_serving).await;
    work.registry.claim(place.claim("workers", 1)).await.unwrap().unwrap();
}

pub async fn the_next_leader_keeps_the_leases_and_applies_a_change_of_the_pool(cluster: &Cluster) {
    let place = Place::new(cluster).await;
    place.create("workers", "10.0.0.8/31").await;
    let first = Work::start(cluster.controller(), &place.namespace).await;
    place.until("workers", is_serving).await;
    let held = first.registry.claim(place.claim("workers", 0)).await.unwrap().unwrap();
    drop(first);
    place.patch("workers", json!({"spec": {"addresses": ["10.0.0.8/30"]}})).await;
    let next = Work::start(cluster.controller(), &place.namespace).await;
    assert_eq!(next.registry.claim(place.claim("workers", 0)).await.unwrap().unwrap(), held);
    let counts = |pool: &StaticIPPool| {
        pool.status.as_ref().unwrap().ip_addresses.is_some_and(|count| (count.total, count.allocated) == (4, 1))
    };
    place.until("workers", counts).await;
}
