//! Tests of the decisions about IPAddressClaims.

use glowplug::host::allocator::Allocator;
use glowplug::host::ledger::MemoryLedger;
use glowplug::host::may_record::Source;
use glowplug::host::pool::{Namespaces, Pool};
use glowplug::host::registry::Registry;
use glowplug::network::InterfaceName;

use super::recorded::RegisteredPool;
use super::*;
use crate::cluster::conditions::patched;
use crate::cluster::object::object;

const FREE: &str = "pool n/p has no free IPv4 address";

/// The claim `n/c` on the pool `n/p`, after `changes` are merged into the claim.
fn claim(changes: &Value) -> IpAddressClaim {
    let mut value = json!({
        "metadata": {
            "name": "c", "namespace": "n", "uid": "u1", "generation": 1, "resourceVersion": "7",
            "creationTimestamp": "1970-01-01T00:00:05Z", "finalizers": [CLAIM_FINALIZER],
        },
        "spec": {"poolRef": {"apiGroup": "ipam.glowplug.dev", "kind": "StaticIPPool", "name": "p"}},
    });
    json_patch::merge(&mut value, changes);
    IpAddressClaim::read(object(value)).unwrap()
}

/// The IPAddress of the claim, after `changes` are merged into the IPAddress.
fn address(changes: &Value) -> Option<IpAddress> {
    let mut value = json!({
        "metadata": {
            "name": "c", "namespace": "n", "uid": "a1", "resourceVersion": "9", "finalizers": [ADDRESS_FINALIZER],
            "ownerReferences": [owner("u1"), pool_owner()],
        },
        "spec": {
            "poolRef": {"apiGroup": "ipam.glowplug.dev", "kind": "StaticIPPool", "name": "p"},
            "claimRef": {"name": "c"}, "address": "10.0.0.8", "prefix": 24, "gateway": "10.0.0.1",
        },
    });
    json_patch::merge(&mut value, changes);
    Some(IpAddress::read(object(value)).unwrap())
}

fn owner(uid: &str) -> Value {
    json!({
        "apiVersion": "ipam.cluster.x-k8s.io/v1beta2", "kind": "IPAddressClaim", "name": "c", "uid": uid,
        "controller": true, "blockOwnerDeletion": true,
    })
}

fn pool_owner() -> Value {
    json!({
        "apiVersion": "ipam.glowplug.dev/v1alpha1", "kind": "StaticIPPool", "name": "p", "uid": "pool",
        "controller": false, "blockOwnerDeletion": true,
    })
}

fn deleted() -> Value {
    json!({"metadata": {"deletionTimestamp": "1970-01-01T00:00:09Z"}})
}

fn eno101() -> InterfaceName {
    "eno101".parse().unwrap()
}

fn held(address: &str) -> Held {
    Held { address: address.parse().unwrap(), interface: eno101(), pool: "n/p".to_owned() }
}

/// A claim with its finalizer. Its pool has IPv4 addresses.
fn view() -> View {
    let pool = PoolFacts {
        uid: "pool".to_owned(),
        sticky: false,
        ready: Ok(()),
        claims: Namespaces::every(),
        attachment: None,
    };
    let registered = RegisteredPool {
        network: "n/vlan10".to_owned(),
        interface: eno101(),
        families: vec![Family::Ipv4],
        gateways: ["10.0.0.1", "fd00::1"].map(|address| address.parse().unwrap()).into(),
    };
    View {
        key: Key { namespace: "n".to_owned(), name: "c".to_owned() },
        version: Version::V1Beta2,
        claim: Some(claim(&json!({}))),
        address: None,
        former: BTreeSet::new(),
        has_seen_owner: false,
        moved: BTreeSet::new(),
        cluster: Cluster::None,
        is_watched: true,
        pool: Some(pool),
        ledger: Recorded { pool: Some(registered), ..Recorded::default() },
        problem: None,
        is_released: false,
        has_kept: false,
        is_status_written: false,
    }
}

/// A claim that holds 10.0.0.8 and has its IPAddress.
fn served() -> View {
    let ledger = Recorded { held: vec![held("10.0.0.8/24")], ..view().ledger };
    View { address: address(&json!({})), ledger, ..view() }
}

fn next(view: &View) -> Step {
    decide(view, Timestamp::from_second(100).unwrap())
}

/// The reason and the message that a step writes into the status.
fn readiness(view: &View) -> (NotReady, String) {
    match next(view) {
        Step::PatchStatus(_, Readiness::NotReady(reason, message)) => (reason, message),
        other => panic!("{other:?}"),
    }
}

fn is(reason: NotReady, message: &str) -> (NotReady, String) {
    (reason, message.to_owned())
}

fn claim_finalizers(finalizers: &[&str]) -> Step {
    Step::PatchClaim(json!({"metadata": {"resourceVersion": "7", "finalizers": finalizers}}))
}

fn address_finalizers(finalizers: &[&str]) -> Step {
    Step::PatchAddress(json!({"metadata": {"resourceVersion": "9", "finalizers": finalizers}}))
}

fn holder(uid: &str) -> Machine {
    Machine::new("n", "c", uid).of_kind(HolderKind::IpAddressClaim)
}

fn request(family: Option<Family>) -> Claim {
    let request = Request { family, ..Request::of("n/p") };
    Claim {
        machine: holder("u1"),
        created: Timestamp::from_second(5).unwrap(),
        requests: vec![request],
        sticky: false,
        secret: None,
    }
}

#[test]
fn a_new_claim_gets_the_finalizer_before_anything_else() {
    let theirs = "machine.openshift.io/ip-claim-protection";
    let new = claim(&json!({"metadata": {"finalizers": [theirs]}}));
    let view = View { claim: Some(new), ..view() };
    assert_eq!(next(&view), claim_finalizers(&[theirs, CLAIM_FINALIZER]));
}

#[test]
fn a_claim_with_the_finalizer_claims_an_address() {
    assert_eq!(next(&view()), Step::Claim(request(None)));
}

#[test]
fn a_sticky_pool_makes_a_sticky_claim() {
    let mut view = view();
    view.pool.as_mut().unwrap().sticky = true;
    assert_eq!(next(&view), Step::Claim(Claim { sticky: true, ..request(None) }));
}

#[test]
fn the_address_of_a_lease_gets_an_ipaddress_with_the_name_of_its_claim() {
    let claim = claim(&json!({"spec": {"clusterName": "c1"}}));
    let view = View { claim: Some(claim), cluster: Cluster::Running, address: None, ..served() };
    let expected = json!({
        "metadata": {
            "name": "c", "namespace": "n", "finalizers": [ADDRESS_FINALIZER],
            "labels": {"cluster.x-k8s.io/cluster-name": "c1"},
            "ownerReferences": [owner("u1"), pool_owner()],
        },
        "spec": {
            "poolRef": {"apiGroup": "ipam.glowplug.dev", "kind": "StaticIPPool", "name": "p"},
            "claimRef": {"name": "c"}, "address": "10.0.0.8", "prefix": 24, "gateway": "10.0.0.1",
        },
    });
    assert_eq!(next(&view), Step::CreateAddress(expected));
}

#[test]
fn the_status_of_a_claim_whose_pool_reference_has_changed_says_that_the_address_stays() {
    let view = View { claim: Some(claim(&json!({"spec": {"poolRef": {"name": "q"}}}))), ..served() };
    let Step::PatchStatus(patch, _) = next(&view) else { panic!() };
    let ready = patched(&Value::Null, &patch)["conditions"][0].take();
    let message =
        "The claim has an address of StaticIPPool n/p: a change of spec.poolRef has no effect, create the claim again";
    assert_eq!([&ready["status"], &ready["message"]], ["True", message]);
}

#[test]
fn an_ipaddress_has_no_gateway_if_the_pool_has_no_gateway_of_its_family() {
    let mut view = View { address: None, ..served() };
    view.ledger.pool.as_mut().unwrap().gateways.remove(0);
    let Step::CreateAddress(created) = next(&view) else { panic!() };
    assert_eq!(created["spec"].get("gateway"), None);
}

#[test]
fn a_claim_with_its_ipaddress_becomes_ready_and_is_then_not_written_again() {
    let Step::PatchStatus(patch, readiness) = next(&served()) else { panic!() };
    let status = patched(&Value::Null, &patch);
    assert_eq!((readiness, &status["addressRef"]), (Readiness::Ready(None), &json!({"name": "c"})));
    let done = View { claim: Some(claim(&json!({"status": status}))), ..served() };
    assert_eq!(next(&done), Step::Wait);
}

#[test]
fn a_status_that_the_api_server_does_not_keep_is_written_only_once_in_a_pass() {
    assert_eq!(next(&View { is_status_written: true, ..served() }), Step::Wait);
}

#[test]
fn a_claim_on_a_pool_with_two_families_must_select_one_family() {
    let mut view = view();
    view.ledger.pool.as_mut().unwrap().families = vec![Family::Ipv4, Family::Ipv6];
    let message =
        "StaticIPPool n/p has IPv4 and IPv6 addresses, expected annotation ipam.glowplug.dev/family on the claim";
    assert_eq!(readiness(&view), is(NotReady::PoolNotReady, message));
    for (annotation, family) in [("IPv4", Family::Ipv4), ("IPv6", Family::Ipv6)] {
        view.claim = Some(claim(&json!({"metadata": {"annotations": {(FAMILY_ANNOTATION): annotation}}})));
        assert_eq!(next(&view), Step::Claim(request(Some(family))));
    }
    view.claim = Some(claim(&json!({"metadata": {"annotations": {(FAMILY_ANNOTATION): "ipv6"}}})));
    let message = "annotation ipam.glowplug.dev/family: invalid family \"ipv6\", expected IPv4 or IPv6";
    assert_eq!(readiness(&view), is(NotReady::AllocationFailed, message));
}

fn annotated(annotations: &Value) -> Option<IpAddressClaim> {
    Some(claim(&json!({"metadata": {"annotations": annotations}})))
}

#[test]
fn only_the_requested_address_is_claimed_and_its_family_is_the_family_of_the_claim() {
    let mut view = view();
    view.ledger.pool.as_mut().unwrap().families = vec![Family::Ipv4, Family::Ipv6];
    for (annotations, address) in [
        (json!({(REQUEST_ANNOTATION): "10.0.0.9"}), "10.0.0.9"),
        (json!({(REQUEST_ANNOTATION): "fd00::9", (FAMILY_ANNOTATION): "IPv6"}), "fd00::9"),
    ] {
        view.claim = annotated(&annotations);
        let address = address.parse().unwrap();
        let mut claim = request(Some(Family::of(address)));
        claim.requests[0].addresses = vec![address];
        assert_eq!(next(&view), Step::Claim(claim));
    }
}

#[test]
fn an_invalid_requested_address_is_reported() {
    let reported = |annotations: Value| readiness(&View { claim: annotated(&annotations), ..view() });
    let message =
        "annotation ipam.glowplug.dev/requested-address: leading zero in an address \"10.0.0.09\", expected 10.0.0.9";
    assert_eq!(reported(json!({(REQUEST_ANNOTATION): "10.0.0.09"})), is(NotReady::AllocationFailed, message));
    let message = "annotation ipam.glowplug.dev/requested-address: wrong family \"10.0.0.9\", expected IPv6 as in \
                   ipam.glowplug.dev/family";
    let annotations = json!({(REQUEST_ANNOTATION): "10.0.0.9", (FAMILY_ANNOTATION): "IPv6"});
    assert_eq!(reported(annotations), is(NotReady::AllocationFailed, message));
}

#[test]
fn a_claim_whose_address_is_not_available_stays_in_the_wait_queue_and_tries_again() {
    let by = Claimant { machine: holder("u2"), interface: eno101() };
    let taken = ClaimError::Taken { named: "10.0.0.9".parse().unwrap(), by: Box::new(by) };
    let mut view = View { problem: Some(Problem::Refused(taken)), ..view() };
    view.ledger.waits = true;
    let message =
        |at: &str| format!("{at}: 10.0.0.9: taken by IPAddressClaim n/c (u2), expected a free address of the pool");
    let kept = message("spec.preAllocations of StaticIPPool n/p");
    assert_eq!(readiness(&view), is(NotReady::AllocationFailed, &kept));
    assert!(view.waits_for_address());
    view.claim = Some(claim(&json!({"metadata": {"annotations": {(REQUEST_ANNOTATION): "10.0.0.9"}}})));
    let requested = message("annotation ipam.glowplug.dev/requested-address");
    assert_eq!(readiness(&view), is(NotReady::AllocationFailed, &requested));
    view.problem = Some(Problem::Refused(ClaimError::NotRecorded { reason: "quota".to_owned() }));
    let unrecorded = "the lease cannot be recorded: quota";
    assert_eq!(readiness(&view), is(NotReady::AllocationFailed, unrecorded));
}

#[test]
fn a_claim_whose_addresses_are_not_open_yet_waits_without_a_status() {
    let mut view = View { problem: Some(Problem::Refused(ClaimError::Closed("n/p".to_owned()))), ..view() };
    view.ledger.waits = true;
    assert_eq!(next(&view), Step::Wait);
}

#[test]
fn a_refusal_of_the_registry_becomes_a_reason_of_the_contract_of_cluster_api() {
    let exhausted = ClaimError::Exhausted {
        interface: eno101(),
        pool: "n/p".to_owned(),
        family: Family::Ipv4,
        overflow: Vec::new(),
    };
    let missing = ClaimError::NoFamily { pool: "n/p".to_owned(), family: Family::Ipv6 };
    let refused = |error| readiness(&View { problem: Some(Problem::Refused(error)), ..view() });
    assert_eq!(refused(exhausted), is(NotReady::PoolExhausted, FREE));
    assert_eq!(refused(missing), is(NotReady::AllocationFailed, "pool \"n/p\" has no IPv6 addresses"));
    let unknown = ClaimError::UnknownPool("n/p".to_owned());
    assert_eq!(refused(unknown), is(NotReady::PoolNotReady, "StaticIPPool n/p does not allocate addresses yet"));
}

#[test]
fn a_waiting_claim_stays_in_the_wait_queue_while_its_pool_is_exhausted() {
    let error = ClaimError::Exhausted {
        interface: eno101(),
        pool: "n/p".to_owned(),
        family: Family::Ipv4,
        overflow: Vec::new(),
    };
    let mut view = View { problem: Some(Problem::Refused(error)), ..view() };
    view.ledger.waits = true;
    assert_eq!(readiness(&view), is(NotReady::PoolExhausted, FREE));
}

#[test]
fn the_move_of_a_claim_to_another_cluster_is_recorded_before_any_other_request() {
    let moved: BTreeSet<String> = ["u1".to_owned()].into();
    let recorded = Step::RecordMove(holder("u1"));
    for cluster in [Cluster::Paused, Cluster::None] {
        for changes in [json!({}), deleted()] {
            let view = View { claim: Some(claim(&changes)), cluster, moved: moved.clone(), ..served() };
            assert_eq!(next(&view), recorded);
        }
    }
    let gone = View { claim: None, former: moved.clone(), moved, ..view() };
    assert_eq!(next(&gone), recorded);
    assert_eq!(next(&View { moved: BTreeSet::new(), ..gone }), Step::Release(holder("u1")));
}

#[test]
fn a_pool_that_allocates_nothing_is_not_ready() {
    let mut view = view();
    view.pool.as_mut().unwrap().ready = Err("gateway[0]: invalid address".to_owned());
    let message = "StaticIPPool n/p does not serve this claim: gateway[0]: invalid address";
    for problem in [None, Some(Problem::Refused(ClaimError::Suspended("n/p".to_owned())))] {
        view.problem = problem;
        assert_eq!(readiness(&view), is(NotReady::PoolNotReady, message));
    }
    view.problem = None;
    view.pool = None;
    assert_eq!(
        readiness(&view),
        is(
            NotReady::PoolNotReady,
            "StaticIPPool n/p does not exist, expected a StaticIPPool in the namespace of the claim, or a GlobalStaticIPPool"
        )
    );
}

#[test]
fn a_pool_that_the_registry_does_not_have_is_not_ready() {
    let mut view = view();
    view.ledger.pool = None;
    assert_eq!(readiness(&view), is(NotReady::PoolNotReady, "StaticIPPool n/p does not allocate addresses yet"));
}

#[test]
fn a_claim_that_cannot_be_served_is_removed_from_the_wait_queue() {
    let mut view = view();
    view.ledger.waits = true;
    view.pool = None;
    assert_eq!(next(&view), Step::Withdraw);
}

#[test]
fn a_paused_claim_has_a_condition_and_is_not_changed() {
    let mut annotated = json!({"metadata": {"finalizers": [], "annotations": {(PAUSED_ANNOTATION): "true"}}});
    let mut of_cluster = json!({"metadata": {"finalizers": []}, "spec": {"clusterName": "c1"}});
    let mut deleted = deleted();
    deleted["spec"]["clusterName"] = "c1".into();
    let [by_annotation, by_cluster] =
        ["The claim has the annotation cluster.x-k8s.io/paused", "Cluster n/c1 is paused"];
    for (object, cluster, message) in [
        (&mut annotated, Cluster::None, by_annotation),
        (&mut of_cluster, Cluster::Paused, by_cluster),
        (&mut deleted, Cluster::Paused, by_cluster),
    ] {
        let mut view = View { claim: Some(claim(object)), cluster, ..served() };
        let Step::PatchStatus(patch, paused) = next(&view) else { panic!("{view:?}") };
        assert_eq!(paused, Readiness::Paused(message.to_owned()));
        view.ledger.waits = true;
        assert_eq!(next(&view), Step::Withdraw);
        object["status"] = patched(&Value::Null, &patch);
        assert_eq!(next(&View { claim: Some(claim(object)), cluster, ..served() }), Step::Wait);
    }
    let new = Some(claim(&json!({"metadata": {"finalizers": []}})));
    for mut view in [
        View { claim: new.clone(), cluster: Cluster::Absent, ..view() },
        View { claim: new.clone(), is_watched: false, ..view() },
        View { claim: Some(claim(&annotated)), is_watched: false, ..view() },
    ] {
        assert_eq!(next(&view), Step::Wait, "{view:?}");
        view.ledger.waits = true;
        assert_eq!(next(&view), Step::Withdraw);
    }
    assert_eq!(next(&View { claim: new, cluster: Cluster::Running, ..view() }), claim_finalizers(&[CLAIM_FINALIZER]));
}

#[test]
fn a_deleted_claim_loses_its_ipaddress_then_its_lease_then_its_finalizer() {
    for cluster in [Cluster::None, Cluster::Running, Cluster::Absent] {
        let mut view = View { claim: Some(claim(&deleted())), cluster, ..served() };
        assert_eq!(next(&view), Step::DeleteAddress);
        view.address = address(&deleted());
        assert_eq!(next(&view), address_finalizers(&[]));
        view.address = None;
        assert_eq!(next(&view), Step::Release(holder("u1")));
        view.is_released = true;
        assert_eq!(next(&view), claim_finalizers(&[]));
        view.claim = Some(claim(&json!({"metadata": {"finalizers": [], "deletionTimestamp": "1970-01-01T00:00:09Z"}})));
        assert_eq!(next(&view), Step::Wait);
    }
}

#[test]
fn an_address_is_not_released_while_a_finalizer_keeps_its_ipaddress() {
    let kept = json!({"metadata": {"finalizers": ["example.com/keep"], "deletionTimestamp": "1970-01-01T00:00:09Z"}});
    let view = View { claim: Some(claim(&deleted())), address: address(&kept), ..served() };
    assert_eq!(next(&view), Step::Wait);
}

#[test]
fn an_address_is_not_released_while_an_infrastructure_provider_has_a_finalizer_on_the_claim() {
    let mut used = deleted();
    used["metadata"]["finalizers"] = json!([CLAIM_FINALIZER, "machine.openshift.io/ip-claim-protection"]);
    let mut view = View { claim: Some(claim(&used)), ..served() };
    assert_eq!(next(&view), Step::Wait);
    view.ledger.waits = true;
    assert_eq!(next(&view), Step::Withdraw);
}

#[test]
fn the_ipaddress_of_another_provider_is_not_changed() {
    let other = address(&json!({"spec": {"poolRef": {"kind": "InClusterIPPool"}}}));
    let mut view = View { address: other, ..view() };
    let message = "IPAddress \"c\" belongs to claim \"c\" of another pool, expected no IPAddress of this name";
    assert_eq!(readiness(&view), is(NotReady::AllocationFailed, message));
    view.claim = Some(claim(&deleted()));
    assert_eq!(next(&view), Step::Release(holder("u1")));
    view.claim = None;
    assert_eq!(next(&view), Step::Wait);
}

#[test]
fn an_ipaddress_that_the_ledger_does_not_have_is_adopted_before_anything_is_allocated() {
    let view = View { address: address(&json!({})), ..view() };
    let expected = Record {
        claimant: Claimant { machine: holder("u1"), interface: eno101() },
        node_pool: Some("n/p".to_owned()),
        attachments: Vec::new(),
        network: None,
        addresses: vec!["10.0.0.8/24".parse().unwrap()],
        source: "IPAddress n/c".to_owned(),
        kind: Source::IpAddress,
    };
    assert_eq!(next(&view), Step::Adopt(expected, "n/vlan10".to_owned()));
    let unknown = View { ledger: Recorded::default(), ..view };
    assert_eq!(readiness(&unknown), is(NotReady::PoolNotReady, "StaticIPPool n/p does not allocate addresses yet"));
}

#[test]
fn an_invalid_prefix_length_of_an_ipaddress_counts_as_unknown() {
    for prefix in [-1, 33, 256, i64::MAX] {
        let address = address(&json!({"spec": {"prefix": prefix}})).unwrap();
        let record = record(&address, address.ip().unwrap(), "u1", eno101());
        assert_eq!(record.addresses, ["10.0.0.8/32".parse().unwrap()]);
    }
}

#[test]
fn an_ipaddress_that_contradicts_the_ledger_is_reported_and_stays() {
    let contradiction =
        "IPAddress n/c: 10.0.0.9 of eno101 of n/c (u1) differs from the address that the interface holds, 10.0.0.8";
    let mut view = View { address: address(&json!({"spec": {"address": "10.0.0.9"}})), ..served() };
    assert!(matches!(next(&view), Step::Adopt(..)));
    view.problem = Some(Problem::Mismatch(contradiction.to_owned(), Vec::new()));
    assert_eq!(readiness(&view), is(NotReady::AllocationFailed, contradiction));
    view.problem = Some(Problem::Refused(ClaimError::NotRecorded { reason: "quota".to_owned() }));
    assert_eq!(readiness(&view), is(NotReady::AllocationFailed, "the lease cannot be recorded: quota"));
    view.address = address(&json!({"spec": {"address": "10.0.0.08"}}));
    let message = "IPAddress \"c\": invalid address \"10.0.0.08\", expected an IP address";
    assert_eq!(readiness(&view), is(NotReady::AllocationFailed, message));
}

#[test]
fn an_earlier_claim_is_released_before_its_address_is_refused_to_the_claim_of_the_ipaddress() {
    let problem = Some(Problem::Mismatch("10.0.0.8 is also of u0".to_owned(), Vec::new()));
    let mut view = View { address: served().address, former: ["u0".to_owned()].into(), problem, ..view() };
    assert_eq!(next(&view), Step::Release(holder("u0")));
    view.former.clear();
    assert_eq!(readiness(&view), is(NotReady::AllocationFailed, "10.0.0.8 is also of u0"));
    assert!(matches!(next(&View { problem: None, ..view }), Step::Adopt(..)));
}

#[test]
fn an_ipaddress_that_was_moved_or_restored_gets_its_owners_and_its_finalizer() {
    let moved = json!({"metadata": {"finalizers": null, "ownerReferences": [owner("u0")]}});
    let view = View { address: address(&moved), ..served() };
    let metadata = json!({
        "resourceVersion": "9", "finalizers": [ADDRESS_FINALIZER], "ownerReferences": [owner("u1"), pool_owner()],
    });
    assert_eq!(next(&view), Step::PatchAddress(json!({"metadata": metadata})));
}

#[test]
fn an_ipaddress_that_is_being_deleted_while_its_claim_exists_is_not_changed() {
    let view = View { address: address(&deleted()), ..served() };
    assert!(matches!(next(&view), Step::PatchStatus(_, Readiness::Ready(None))));
}

#[test]
fn a_claim_gets_an_address_after_the_ipaddress_and_the_lease_of_an_earlier_claim_are_removed() {
    let left = json!({"metadata": {"ownerReferences": [owner("u0")]}});
    let mut view = View { address: address(&left), former: ["u0".to_owned()].into(), ..view() };
    view.ledger.is_left_over = true;
    assert_eq!(next(&view), Step::DeleteAddress);
    view.address =
        address(&json!({"metadata": {"deletionTimestamp": "1970-01-01T00:00:09Z", "ownerReferences": [owner("u0")]}}));
    assert_eq!(next(&view), address_finalizers(&[]));
    view.address = None;
    assert_eq!(next(&view), Step::Release(holder("u0")));
    view.former.clear();
    assert_eq!(next(&view), Step::Claim(request(None)));
}

#[test]
fn the_ipaddress_of_a_deleted_claim_is_removed_before_its_lease_is_released() {
    let mut view = View { claim: None, former: ["u1".to_owned()].into(), ..served() };
    assert_eq!(next(&view), Step::DeleteAddress);
    view.address = address(&deleted());
    assert_eq!(next(&view), address_finalizers(&[]));
    view.address = None;
    assert_eq!(next(&view), Step::Release(holder("u1")));
    view.former.clear();
    assert_eq!(next(&view), Step::Wait);
}

#[test]
fn an_ipaddress_that_its_earlier_claim_no_longer_owns_is_deleted_before_the_release() {
    let ownerless = address(&json!({"metadata": {"finalizers": null, "ownerReferences": [pool_owner()]}}));
    let mut view = View { claim: None, former: ["u1".to_owned()].into(), address: ownerless, ..served() };
    view.ledger.is_of_former = true;
    assert_eq!(next(&view), Step::DeleteAddress);
    view.ledger.is_of_former = false;
    assert_eq!(next(&view), Step::Release(holder("u1")), "the earlier claim holds another address");
}

#[test]
fn a_claim_with_two_leases_keeps_the_lease_of_its_ipaddress() {
    let mut view = served();
    view.ledger.held = vec![held("10.0.0.7/24"), held("10.0.0.8/24")];
    let claimant = Claimant { machine: holder("u1"), interface: eno101() };
    assert_eq!(next(&view), Step::Keep(claimant, "10.0.0.8".parse().unwrap()));
    // The API server may refuse to release the second lease.
    let refused = View { has_kept: true, ..view.clone() };
    assert_eq!(next(&refused), next(&served()));
    // The second lease is of another family or of another interface.
    let other = Held { interface: "eno102".parse().unwrap(), ..held("10.0.0.7/24") };
    for other in [held("fd00::9/64"), other] {
        let ledger = Recorded { held: vec![other, held("10.0.0.8/24")], ..view.ledger.clone() };
        assert_eq!(next(&View { ledger, ..view.clone() }), next(&served()));
    }
    view.address = None;
    let Step::CreateAddress(created) = next(&view) else { panic!() };
    assert_eq!(created["spec"]["address"], "10.0.0.7");
}

#[test]
fn a_claim_whose_reference_now_names_a_pool_of_another_provider_is_changed_only_when_deleted() {
    let other = json!({"spec": {"poolRef": {"apiGroup": "example.com"}}});
    assert_eq!(next(&View { claim: Some(claim(&other)), ..view() }), Step::Wait);
    let mut ended = deleted();
    ended["spec"] = other["spec"].clone();
    assert_eq!(next(&View { claim: Some(claim(&ended)), ..served() }), Step::DeleteAddress);
}

#[test]
fn a_claim_with_a_mistake_in_its_pool_reference_has_the_mistake_in_its_status() {
    let mistaken = |changes: Value| {
        let metadata = json!({"finalizers": null});
        Some(claim(&json!({"metadata": metadata, "spec": {"poolRef": changes}})))
    };
    let kind = mistaken(json!({"kind": "StaticPool"}));
    let message = "spec.poolRef.kind: unknown kind \"StaticPool\", expected StaticIPPool or GlobalStaticIPPool";
    assert_eq!(readiness(&View { claim: kind.clone(), ..view() }), is(NotReady::AllocationFailed, message));
    let group = mistaken(json!({"apiGroup": "ipam.glowplug.dev/v1alpha1"}));
    let message = "spec.poolRef.apiGroup: version in \"ipam.glowplug.dev/v1alpha1\", expected ipam.glowplug.dev";
    assert_eq!(readiness(&View { claim: group, ..view() }), is(NotReady::AllocationFailed, message));
    // A claim that has an address keeps the address and its status.
    assert_eq!(next(&View { claim: kind.clone(), ..served() }), Step::Wait);
    assert_eq!(next(&View { claim: kind, is_watched: false, ..view() }), Step::Wait);
}

#[test]
fn an_ipaddress_of_another_pool_is_not_adopted_and_is_deleted_if_its_claim_is_gone() {
    let of = |owner: Value| {
        let spec = json!({"poolRef": {"apiGroup": "ipam.glowplug.dev", "kind": "StaticIPPool", "name": "other"}});
        let metadata = json!({"ownerReferences": [owner], "finalizers": ["ipam.glowplug.dev/protect-address"]});
        address(&json!({"metadata": metadata, "spec": spec}))
    };
    let foreign = View { address: of(owner("of-no-claim")), ..view() };
    let message = "IPAddress \"c\" has an address of pool n/other, expected an address of pool n/p";
    assert_eq!(readiness(&foreign), is(NotReady::AllocationFailed, message));
    let former = ["u0".to_owned()].into();
    let former = View { address: of(owner("u0")), former, has_seen_owner: true, ..view() };
    assert_eq!(next(&former), Step::DeleteAddress);
}

#[test]
fn the_record_of_an_address_ends_if_the_ipaddress_does_not_have_the_address() {
    let mut view = view();
    let noted = BTreeSet::from([("infra/vlan10".to_owned(), "10.0.0.9".parse().unwrap())]);
    view.ledger.unrecorded = noted.clone();
    let holder = view.key.holder(HolderKind::IpAddressClaim, view.claim.as_ref().unwrap().uid());
    assert_eq!(decide(&view, Timestamp::UNIX_EPOCH), Step::EndRecords(holder, noted));
}

/// A registry with the pools `n/p` on network `n/vlan10` and `n/q` on network `n/vlan20`. Both pools have the same
/// addresses. The claim `n/c` holds 10.0.0.8 of `n/p`.
fn two_networks() -> Registry<MemoryLedger> {
    let now = Timestamp::UNIX_EPOCH;
    let pool = |(name, network): (&str, &str)| {
        let machine_network = json!([{"cidr": "10.0.0.0/24"}]);
        let pool = json!({"namespace": "n", "name": name, "network": network, "addresses": ["10.0.0.8-10.0.0.9"],
            "machineNetwork": machine_network});
        Pool::parse(pool.to_string().as_bytes()).unwrap().remove(0)
    };
    let mut registry = Registry::open(MemoryLedger::default()).unwrap();
    registry.resize([("p", "n/vlan10"), ("q", "n/vlan20")].map(pool), &[], now).unwrap();
    registry.open_addresses(now).unwrap();
    assert_eq!(registry.claim(&request(None), now).unwrap()[0].addresses, ["10.0.0.8/24".parse().unwrap()]);
    registry
}

#[test]
fn a_lease_counts_only_on_the_network_of_the_ipaddress_or_of_the_pool_of_the_claim() {
    let mut registry = two_networks();
    let allocator = registry.state().unwrap();
    let on = |pool: &str, address: Option<IpAddress>| {
        let pool = PoolId { namespace: Some("n".to_owned()), name: pool.to_owned() };
        Recorded::read(allocator, &view().key, ("u1", &BTreeSet::new()), Some(&pool), address.as_ref()).held
    };
    let of_pool = |pool: &str| address(&json!({"spec": {"poolRef": {"name": pool}}}));
    assert_eq!(on("p", None), [held("10.0.0.8/24")]);
    assert_eq!(on("q", None), []);
    // The reference of the claim has changed.
    assert_eq!(on("q", of_pool("p")), [held("10.0.0.8/24")]);
    assert_eq!(on("q", of_pool("q")), []);
    // The registry does not know the network of this pool.
    assert_eq!(on("r", None), [held("10.0.0.8/24")]);
}

#[test]
fn an_ipaddress_is_adopted_on_the_network_of_its_pool_although_its_claim_holds_the_address_on_another_network() {
    let now = Timestamp::UNIX_EPOCH;
    let mut registry = two_networks();
    let lesson = |allocator: &Allocator, pool: &str, claim: Option<&str>| {
        let address = address(&json!({"spec": {"poolRef": {"name": pool}}})).unwrap();
        Adoptee::read_all(allocator, vec![Unrecorded { address, claim: claim.map(str::to_owned) }]).remove(0).lesson
    };
    let allocator = registry.state().unwrap();
    assert!([Some("u1"), None].iter().all(|claim| matches!(lesson(allocator, "p", *claim), Lesson::None)));
    let Lesson::Reservation(alone) = lesson(allocator, "q", None) else { panic!() };
    assert_eq!((alone.address.to_string(), alone.network.as_deref()), ("10.0.0.8".to_owned(), Some("n/vlan20")));
    let Lesson::Record(record, network) = lesson(allocator, "q", Some("u1")) else { panic!() };
    assert_eq!(network, "n/vlan20");
    let adoption = registry.adopt([record], now).unwrap();
    let mismatches: Vec<String> = adoption.mismatches.iter().map(ToString::to_string).collect();
    let message = "IPAddress n/c: 10.0.0.8 of IPAddressClaim n/c (u1) is held on another network, n/vlan10";
    assert_eq!(mismatches, [message]);
    let other = Claim { machine: holder("u2"), requests: vec![Request::of("n/q")], ..request(None) };
    assert_eq!(registry.claim(&other, now).unwrap()[0].addresses, ["10.0.0.9/24".parse().unwrap()]);
}

#[test]
fn a_claim_that_holds_an_address_of_another_pool_gets_no_ipaddress_with_this_address() {
    let changed = claim(&json!({"spec": {"poolRef": {"name": "q"}}}));
    let mut view = View { claim: Some(changed), address: None, ..served() };
    let asked = Claim { requests: vec![Request::of("n/q")], ..request(None) };
    assert_eq!(next(&view), Step::Claim(asked));
    let address = "10.0.0.8".parse().unwrap();
    let other = ClaimError::OtherPool { interface: eno101(), held: address, pool: "n/p".to_owned() };
    view.problem = Some(Problem::Refused(other));
    let message = "has 10.0.0.8 of pool \"n/p\" already, expected a release before another pool";
    assert_eq!(readiness(&view), is(NotReady::AllocationFailed, message));
    assert!(view.is_waiting());
}

#[test]
fn an_ipaddress_is_created_only_while_the_registry_has_the_gateway_of_its_pool() {
    let mut view = View { address: None, ..served() };
    view.ledger.pool = None;
    assert_eq!(readiness(&view), is(NotReady::PoolNotReady, "StaticIPPool n/p does not allocate addresses yet"));
    assert!(view.is_waiting());
}

/// A claim with these changes, and the IPAddress and the lease of an earlier claim of its name.
fn after_earlier(changes: &Value, cluster: Cluster) -> View {
    let left = address(&json!({"metadata": {"ownerReferences": [owner("u0")]}}));
    let former = ["u0".to_owned()].into();
    View { claim: Some(claim(changes)), cluster, address: left, former, has_seen_owner: true, ..view() }
}

#[test]
fn what_an_earlier_claim_left_is_removed_although_the_claim_names_no_pool_of_glowplug() {
    let foreign = json!({"metadata": {"finalizers": null}, "spec": {"poolRef": {"apiGroup": "example.com"}}});
    let mut of_cluster = foreign.clone();
    of_cluster["spec"]["clusterName"] = "c1".into();
    let mut ending = foreign.clone();
    ending["metadata"] = json!({"finalizers": ["example.com/x"], "deletionTimestamp": "1970-01-01T00:00:09Z"});
    let mistaken = json!({"metadata": {"finalizers": null}, "spec": {"poolRef": {"kind": "StaticPool"}}});
    for (changes, cluster) in [
        (&foreign, Cluster::None),
        (&of_cluster, Cluster::Running),
        (&of_cluster, Cluster::Absent),
        (&ending, Cluster::None),
        (&mistaken, Cluster::None),
    ] {
        let mut view = after_earlier(changes, cluster);
        assert_eq!(next(&view), Step::DeleteAddress, "{changes}");
        view.address.as_mut().unwrap().metadata.deletion_timestamp = claim(&deleted()).metadata.deletion_timestamp;
        assert_eq!(next(&view), address_finalizers(&[]), "{changes}");
        // The other provider may create its IPAddress at once.
        for address in [None, address(&json!({"spec": {"poolRef": {"kind": "InClusterIPPool"}}}))] {
            view.address = address;
            assert_eq!(next(&view), Step::Release(holder("u0")), "{changes}");
        }
        let done = View { address: None, former: BTreeSet::new(), ..view };
        assert!(matches!(next(&done), Step::Wait | Step::PatchStatus(..)), "{changes}");
    }
    // Nothing of a paused claim is changed, and nothing of a claim of another controller.
    let annotated = json!({"metadata": {"annotations": {(PAUSED_ANNOTATION): ""}}, "spec": foreign["spec"]});
    assert_eq!(next(&after_earlier(&of_cluster, Cluster::Paused)), Step::Wait);
    assert_eq!(next(&after_earlier(&annotated, Cluster::None)), Step::Wait);
    assert_eq!(next(&View { is_watched: false, ..after_earlier(&foreign, Cluster::None) }), Step::Wait);
}

#[test]
fn the_ipaddress_of_a_restored_claim_stays_although_the_reference_of_the_claim_has_changed() {
    for spec in [json!({"apiGroup": "example.com"}), json!({"kind": "StaticPool"}), json!({"name": "q"})] {
        // A restore has given the claim and the IPAddress other UIDs. The owner in the IPAddress is the claim before.
        let changes = json!({"metadata": {"finalizers": [CLAIM_FINALIZER]}, "spec": {"poolRef": spec}});
        let mut view = View { has_seen_owner: false, ..after_earlier(&changes, Cluster::None) };
        view.former.clear();
        assert!(matches!(next(&view), Step::Wait | Step::PatchStatus(..)), "{changes}");
    }
}

#[test]
fn the_lease_of_an_earlier_claim_is_released_while_the_ipaddress_of_the_name_is_of_another_provider() {
    let other = address(&json!({"spec": {"poolRef": {"kind": "InClusterIPPool"}}}));
    let mut view = View { address: other, ..after_earlier(&json!({}), Cluster::None) };
    assert_eq!(next(&view), Step::Release(holder("u0")));
    view.former.clear();
    let message = "IPAddress \"c\" belongs to claim \"c\" of another pool, expected no IPAddress of this name";
    assert_eq!(readiness(&view), is(NotReady::AllocationFailed, message));
}

#[test]
fn a_claim_says_that_its_cluster_does_not_exist_although_an_earlier_claim_left_an_ipaddress() {
    let mut view = after_earlier(&json!({"spec": {"clusterName": "c1"}}), Cluster::Absent);
    assert_eq!(readiness(&view), is(NotReady::AllocationFailed, "Cluster n/c1 does not exist"));
    view.address = address(&json!({}));
    assert_eq!(next(&view), Step::Wait, "the claim has an IPAddress");
}
