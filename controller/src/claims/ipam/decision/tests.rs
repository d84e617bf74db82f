//! Tests of the decisions about IPAMClaims.

use serde_json::json;

use super::*;
use crate::cluster::conditions::patched;
use glowplug::host::ledger::MemoryLedger;
use glowplug::host::pool::Namespaces;
use glowplug::host::registry::Registry;

const FREE: &str = "pool n/p has no free IPv4 address";
const THEIRS: &str = "kubevirt.io/persistent-ipam";

/// The claim `n/a.net1` with its finalizer, after `changes` are merged into it.
fn claim(changes: &Value) -> IpamClaim {
    let owner = json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": "a", "uid": "vm-1"});
    let mut value = json!({
        "metadata": {
            "name": "a.net1", "namespace": "n", "uid": "u1", "generation": 1, "resourceVersion": "7",
            "creationTimestamp": "1970-01-01T00:00:05Z", "finalizers": [CLAIM_FINALIZER], "ownerReferences": [owner],
        },
        "spec": {"network": "tenant-blue", "interface": ""},
    });
    json_patch::merge(&mut value, changes);
    IpamClaim::read(serde_json::from_value(value).unwrap())
}

fn eno101() -> InterfaceName {
    "eno101".parse().unwrap()
}

fn held(address: &str) -> Held {
    Held { address: address.parse().unwrap(), interface: eno101(), pool: "n/p".to_owned() }
}

fn pool(name: &str) -> PoolId {
    PoolId { namespace: Some("n".to_owned()), name: name.to_owned() }
}

/// A claim with its finalizer. Its pool has addresses of both families.
fn view() -> View {
    let facts = PoolFacts {
        uid: "pool".to_owned(),
        sticky: false,
        ready: Ok(()),
        claims: Namespaces::every(),
        attachment: None,
    };
    let registered = RegisteredPool {
        id: pool("p"),
        network: "n/vlan10".to_owned(),
        interface: eno101(),
        families: [Family::Ipv4, Family::Ipv6].into(),
    };
    View {
        key: Key { namespace: "n".to_owned(), name: "a.net1".to_owned() },
        claim: Some(claim(&json!({}))),
        former: BTreeMap::new(),
        pool: Serving::Pool(pool("p"), facts),
        ledger: Recorded { pool: Some(registered), ..Recorded::default() },
        problem: None,
        guests: None,
        left: BTreeSet::new(),
        migrated: BTreeSet::new(),
        has_adopted: false,
        is_released: false,
        has_kept: false,
        is_status_written: false,
    }
}

/// A claim that holds the addresses `leases` and has the addresses `ips` in its status.
fn with(leases: &[&str], ips: &[&str]) -> View {
    let ledger = Recorded { held: leases.iter().map(|address| held(address)).collect(), ..view().ledger };
    View { claim: Some(claim(&json!({"status": {"ips": ips}}))), ledger, ..view() }
}

/// A claim that is being deleted, after `changes` are merged into it.
fn deleted(changes: &Value) -> View {
    let mut merged = json!({
        "metadata": {"deletionTimestamp": "1970-01-01T00:00:09Z"}, "status": {"ips": ["10.0.0.8/24"]},
    });
    json_patch::merge(&mut merged, changes);
    View { claim: Some(claim(&merged)), ..with(&["10.0.0.8/24"], &[]) }
}

fn guest(name: &str, uids: &[&str]) -> Guest {
    let uids = uids.iter().map(|uid| (*uid).to_owned()).collect();
    Guest { name: name.to_owned(), uids, has_left: false }
}

fn names(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

fn next(view: &View) -> Step {
    decide(view, Timestamp::from_second(100).unwrap())
}

/// The addresses, the reason and the message that a step writes into the status.
fn status(view: &View) -> (Value, String, String) {
    match next(view) {
        Step::PatchStatus(patch, _) => {
            let status = patched(&json!({"ips": view.claim.as_ref().unwrap().ips}), &patch);
            let text = |member: &str| status["conditions"][0][member].as_str().unwrap().to_owned();
            (status["ips"].clone(), text("reason"), text("message"))
        }
        other => panic!("{other:?}"),
    }
}

fn is(ips: Value, reason: &str, message: &str) -> (Value, String, String) {
    (ips, reason.to_owned(), message.to_owned())
}

fn set_finalizers(finalizers: &[&str]) -> Step {
    Step::PatchClaim(json!({"metadata": {"resourceVersion": "7", "finalizers": finalizers}}))
}

fn holder(uid: &str) -> Machine {
    Machine::new("n", "a.net1", uid).of_kind(HolderKind::IpamClaim)
}

fn request(addresses: &[&str]) -> Step {
    let addresses = addresses.iter().map(|address| address.parse().unwrap()).collect();
    let requests = vec![Request { addresses, ..Request::of("n/p") }];
    Step::Claim(Claim {
        machine: holder("u1"),
        created: Timestamp::from_second(5).unwrap(),
        requests,
        sticky: false,
        secret: None,
    })
}

#[test]
fn a_claim_gets_finalizer_leases_and_status_in_this_order() {
    let new = View { claim: Some(claim(&json!({"metadata": {"finalizers": [THEIRS]}}))), ..view() };
    assert_eq!(next(&new), set_finalizers(&[THEIRS, CLAIM_FINALIZER]));
    assert_eq!(next(&view()), request(&[]));
    let leased = with(&["fd00::8/64", "10.0.0.8/24"], &[]);
    let addresses = json!(["10.0.0.8/24", "fd00::8/64"]);
    assert_eq!(status(&leased), is(addresses.clone(), "SuccessfulAllocation", "The claim has its addresses"));
    let Step::PatchStatus(patch, _) = next(&leased) else { panic!() };
    let done = View { claim: Some(claim(&json!({"status": patched(&json!({"ips": []}), &patch)}))), ..leased };
    assert_eq!(next(&done), Step::Wait);
}

#[test]
fn a_claim_with_the_lease_of_one_family_claims_the_other_family() {
    assert_eq!(next(&with(&["10.0.0.8/24"], &[])), request(&[]));
}

#[test]
fn the_claim_of_another_program_is_not_changed() {
    let other = View { pool: Serving::None, claim: Some(claim(&json!({"metadata": {"finalizers": []}}))), ..view() };
    assert_eq!(next(&other), Step::Wait);
    let waiting = View { ledger: Recorded { waits: true, ..Recorded::default() }, ..other };
    assert_eq!(next(&waiting), Step::Withdraw);
}

#[test]
fn two_pools_of_a_network_serve_no_new_claim() {
    let several = View { pool: Serving::Several(pool("p"), vec![pool("q")]), ..view() };
    let message = "StaticIPPool n/p and StaticIPPool n/q serve network \"tenant-blue\", expected one pool";
    assert_eq!(status(&several), is(json!([]), "PoolNotReady", message));
    let served = View { pool: Serving::Several(pool("p"), vec![pool("q")]), ..with(&["10.0.0.8/24"], &[]) };
    assert_eq!(status(&served).0, json!(["10.0.0.8/24"]));
    // After a restore, the claim has its address and no lease. A guest may use the address.
    let restored = View { pool: Serving::Several(pool("p"), vec![pool("q")]), ..with(&[], &["10.0.0.8/24"]) };
    let Step::Adopt(record, network) = next(&restored) else { panic!() };
    assert_eq!((record.addresses, network.as_str()), (vec!["10.0.0.8/24".parse().unwrap()], "n/vlan10"));
}

#[test]
fn addresses_of_the_status_are_adopted_and_never_replaced() {
    let ips = ["10.0.0.9/24", "fd00::9/64"];
    // The claim has no lease, the lease of one of the addresses, or leases of other addresses.
    let cases: [(&[&str], &[&str]); 3] =
        [(&[], &ips), (&["fd00::9/64"], &["10.0.0.9/24"]), (&["10.0.0.8/24", "fd00::8/64"], &ips)];
    for (leases, unheld) in cases {
        let record = Record {
            claimant: Claimant { machine: holder("u1"), interface: eno101() },
            node_pool: Some("n/p".to_owned()),
            attachments: Vec::new(),
            network: None,
            addresses: unheld.iter().map(|ip| ip.parse().unwrap()).collect(),
            source: "IPAMClaim n/a.net1".to_owned(),
            kind: Source::IpamClaim,
        };
        assert_eq!(next(&with(leases, &ips)), Step::Adopt(record, "n/vlan10".to_owned()), "{leases:?}");
        let problem = Some(Problem::Mismatch("taken".to_owned(), Vec::new()));
        let refused = View { problem, ..with(leases, &ips) };
        assert_eq!(status(&refused), is(json!(ips), "IPAddressConflict", "taken"), "{leases:?}");
    }
    let invalid = status(&with(&["10.0.0.8/24"], &["10.0.0.256/24"]));
    assert_eq!(invalid.0, json!(["10.0.0.256/24"]));
    assert_eq!(invalid.1, "IPAddressConflict");
    assert!(invalid.2.starts_with("status.ips[0]: "), "{}", invalid.2);
}

#[test]
fn the_readable_addresses_of_a_status_are_adopted_although_another_address_cannot_be_read() {
    let ips = ["10.0.0.9/24", "x", "fd00::9"];
    let Step::Adopt(record, network) = next(&with(&["10.0.0.9/24"], &ips)) else { panic!() };
    assert_eq!((record.addresses, network.as_str()), (vec!["fd00::9/128".parse().unwrap()], "n/vlan10"));
    let message = "status.ips[1]: invalid address \"x\", expected an IPv4 or IPv6 address";
    let refused = is(json!(ips), "IPAddressConflict", message);
    let problem = Some(Problem::Mismatch("taken".to_owned(), Vec::new()));
    assert_eq!(status(&View { problem, ..with(&["10.0.0.9/24"], &ips) }), refused);
    assert_eq!(status(&with(&["10.0.0.9/24", "fd00::9/64"], &ips)), refused);
}

#[test]
fn a_lease_is_released_if_the_status_has_another_address_of_its_family() {
    let claimant = Claimant { machine: holder("u1"), interface: eno101() };
    let surplus = with(&["10.0.0.9/24", "fd00::9/64", "10.0.0.8/24"], &["10.0.0.8/24"]);
    assert_eq!(next(&surplus), Step::ReadGuests(names(&["a"])));
    // A guest may still use the address.
    let used = View { guests: Some(vec![guest("a", &["vmi-1", "vm-1"])]), ..surplus.clone() };
    assert_eq!((status(&used).1.as_str(), used.waits_for_guest()), ("SuccessfulAllocation", true));
    let surplus = View { guests: Some(Vec::new()), ..surplus };
    assert_eq!(next(&surplus), Step::Keep(claimant, vec!["10.0.0.8".parse().unwrap()]));
    // The API server may refuse to release the lease.
    assert_eq!(status(&View { has_kept: true, ..surplus }).1, "SuccessfulAllocation");
    // A lease of the other family is kept.
    assert_eq!(status(&with(&["10.0.0.8/24", "fd00::9/64"], &["10.0.0.8/24"])).1, "SuccessfulAllocation");
}

#[test]
fn a_claim_that_gets_no_address_has_the_reason_in_its_status() {
    let problem = |error: ClaimError| View { problem: Some(Problem::Refused(error)), ..view() };
    let exhausted = ClaimError::Exhausted {
        interface: eno101(),
        pool: "n/p".to_owned(),
        family: Family::Ipv4,
        overflow: Vec::new(),
    };
    assert_eq!(status(&problem(exhausted)), is(json!([]), "SubnetExhausted", FREE));
    let suspended = problem(ClaimError::Suspended("n/p".to_owned()));
    let message = "StaticIPPool n/p does not allocate addresses yet";
    assert_eq!(status(&suspended), is(json!([]), "PoolNotReady", message));
    let not_ready = PoolFacts {
        uid: "pool".to_owned(),
        sticky: false,
        ready: Err("The pool has no finalizer yet".to_owned()),
        claims: Namespaces::every(),
        attachment: None,
    };
    let not_ready = View { pool: Serving::Pool(pool("p"), not_ready), ..view() };
    let message = "StaticIPPool n/p does not serve this claim: The pool has no finalizer yet";
    assert_eq!(status(&not_ready), is(json!([]), "PoolNotReady", message));
    let address = "10.0.0.8".parse().unwrap();
    let kept = problem(ClaimError::Kept { interface: eno101(), kept: address });
    let message = "keeps 10.0.0.8, which no pool offers, expected a release before another address";
    assert_eq!(status(&kept), is(json!([]), "AllocationFailed", message));
    let network = "n/vlan20".to_owned();
    let elsewhere = problem(ClaimError::OtherNetwork { interface: eno101(), held: address, network });
    let message = "has 10.0.0.8 on network n/vlan20 already, expected a release before another network";
    assert_eq!(status(&elsewhere), is(json!([]), "AllocationFailed", message));
}

#[test]
fn a_claim_whose_addresses_are_not_open_yet_waits_without_a_status() {
    let mut view = View { problem: Some(Problem::Refused(ClaimError::Closed("n/p".to_owned()))), ..view() };
    view.ledger.waits = true;
    assert_eq!(next(&view), Step::Wait);
}

#[test]
fn a_claim_requests_at_most_one_address_of_each_family() {
    let requesting = |text: &str| {
        let annotations = json!({"metadata": {"annotations": {(REQUEST_ANNOTATION): text}}});
        View { claim: Some(claim(&annotations)), ..view() }
    };
    assert_eq!(next(&requesting("fd00::c, 10.0.0.12")), request(&["fd00::c", "10.0.0.12"]));
    let message = "annotation ipam.glowplug.dev/requested-address: \"10.0.0.1\" and \"10.0.0.2\", expected one address of \
                   each family";
    assert_eq!(status(&requesting("10.0.0.1,10.0.0.2")), is(json!([]), "AllocationFailed", message));
    let message =
        "annotation ipam.glowplug.dev/requested-address: invalid address \"\", expected an IPv4 or IPv6 address";
    assert_eq!(status(&requesting("10.0.0.1,")), is(json!([]), "AllocationFailed", message));
}

#[test]
fn a_deleted_claim_loses_its_lease_when_no_instance_of_its_virtual_machine_exists() {
    let ending = deleted(&json!({}));
    assert_eq!(next(&ending), Step::ReadGuests(names(&["a"])));
    let alone = View { guests: Some(Vec::new()), ..ending };
    // An instance that is created after this write must not find the address.
    assert_eq!(status(&alone), is(json!([]), "Released", "The claim is being deleted"));
    // The instances are read again after the write of the status.
    let cleared = deleted(&json!({"status": {"ips": []}}));
    let cleared = View { is_status_written: true, ..cleared };
    assert_eq!(next(&cleared), Step::ReadGuests(names(&["a"])));
    let alone = View { guests: Some(Vec::new()), ..cleared };
    assert_eq!(next(&alone), Step::Release(holder("u1")));
    assert_eq!(next(&View { is_released: true, ..alone }), set_finalizers(&[]));
}

#[test]
fn a_deleted_claim_waits_for_its_guest_and_for_other_programs() {
    let used = View { guests: Some(vec![guest("a", &["vmi-1", "vm-1"])]), ..deleted(&json!({})) };
    assert_eq!((next(&used), used.waits_for_guest()), (Step::Wait, true));
    let in_use = json!({"metadata": {"finalizers": [THEIRS, CLAIM_FINALIZER]}});
    assert_eq!(next(&deleted(&in_use)), Step::Wait);
    // Any instance with the name of the virtual machine may be the guest of a claim without an owner.
    let orphan = deleted(&json!({"metadata": {"ownerReferences": []}}));
    let orphan = View { guests: Some(vec![guest("a", &["vmi-2", "vm-2"])]), ..orphan };
    assert_eq!(next(&orphan), Step::Wait);
    // The lease does not show that the guest of another virtual machine may use the address, so the claim stays.
    let labelled = deleted(&json!({"metadata": {"labels": {"kubevirt.io/vm": "b"}}}));
    for name in ["a", "b"] {
        let labelled = View { guests: Some(vec![guest(name, &["vmi-2", "vm-2"])]), ..labelled.clone() };
        assert_eq!(next(&labelled), Step::Wait, "{name}");
    }
}

#[test]
fn the_lease_of_a_claim_that_ends_is_kept_while_another_instance_with_the_name_exists() {
    let guests = Some(vec![guest("a", &["vmi-2", "vm-2"])]);
    let ending = View { guests: guests.clone(), ..deleted(&json!({})) };
    assert_eq!(next(&ending), set_finalizers(&[]), "no release");
    let former = BTreeMap::from([("u1".to_owned(), names(&["a"]))]);
    let gone = View { claim: None, former: former.clone(), ledger: Recorded::default(), ..view() };
    assert_eq!(next(&gone), Step::ReadGuests(names(&["a"])));
    let kept = View { guests, ..gone.clone() };
    assert_eq!((next(&kept), kept.waits_for_guest()), (Step::Wait, true));
    assert_eq!(next(&View { guests: Some(Vec::new()), ..gone }), Step::Release(holder("u1")));
    // A new claim of the same name is served while this instance exists.
    let uid = json!({"metadata": {"uid": "u2"}});
    let new = View { claim: Some(claim(&uid)), former, guests: kept.guests, ..view() };
    assert!(matches!(next(&new), Step::Claim(claim) if claim.machine == holder("u2")));
}

#[test]
fn the_migration_of_a_guest_to_another_cluster_is_recorded_before_a_claim_of_the_guest_ends() {
    let left = || Some(vec![Guest { has_left: true, ..guest("a", &["vmi-1", "vm-1"]) }, guest("b", &["vmi-2"])]);
    let ending = View { guests: left(), ..deleted(&json!({})) };
    assert_eq!(next(&ending), Step::RecordMigration(holder("u1")));
    let noted = View { migrated: names(&["u1"]), ..ending };
    assert_eq!((next(&noted), noted.waits_for_guest()), (Step::Wait, true));
    // The claim is gone, and the lease names the virtual machine.
    let former = BTreeMap::from([("u0".to_owned(), names(&["b"])), ("u1".to_owned(), names(&["a"]))]);
    let gone = View { claim: None, former, guests: left(), ledger: Recorded::default(), ..view() };
    assert_eq!(next(&gone), Step::RecordMigration(holder("u1")));
    assert_eq!(next(&View { migrated: names(&["u1"]), ..gone.clone() }), Step::Wait);
    // The instance is gone, too, and the leader remembers that its guest has migrated.
    let former = BTreeMap::from([("u1".to_owned(), names(&["a"]))]);
    let remembered = View { former, guests: Some(Vec::new()), left: names(&["a"]), ..gone };
    assert_eq!(next(&remembered), Step::RecordMigration(holder("u1")));
    assert_eq!(next(&View { migrated: names(&["u1"]), ..remembered }), Step::Release(holder("u1")));
}

#[test]
fn a_claim_gets_the_address_of_its_status_from_an_earlier_claim_of_its_name_after_the_guest_has_ended() {
    let changes = json!({"metadata": {"uid": "u2"}, "status": {"ips": ["10.0.0.8/24"]}});
    let former = BTreeMap::from([("u1".to_owned(), names(&["a"]))]);
    let restored = View { claim: Some(claim(&changes)), former, ..view() };
    assert!(matches!(next(&restored), Step::Adopt(..)));
    let problem = Some(Problem::Mismatch("10.0.0.8 is also of u1".to_owned(), Vec::new()));
    let refused = View { problem, ..restored };
    assert_eq!(next(&refused), Step::ReadGuests(names(&["a"])));
    let used = View { guests: Some(vec![guest("a", &["vmi-1", "vm-1"])]), ..refused.clone() };
    assert_eq!(status(&used), is(json!(["10.0.0.8/24"]), "IPAddressConflict", "10.0.0.8 is also of u1"));
    assert!(used.waits_for_guest());
    assert_eq!(next(&View { guests: Some(Vec::new()), ..refused }), Step::Release(holder("u1")));
}

#[test]
fn the_status_of_a_claim_says_that_the_api_server_refuses_the_lease_of_the_address() {
    let refused = Some(Problem::Refused(ClaimError::NotRecorded { reason: "quota".to_owned() }));
    let claim = Some(claim(&json!({"status": {"ips": ["10.0.0.8/24"]}})));
    let view = View { claim, problem: refused, ..view() };
    let message = "the lease cannot be recorded: quota";
    assert_eq!(status(&view), is(json!(["10.0.0.8/24"]), "IPAddressConflict", message));
    assert!(view.waits_for_address());
}

#[test]
fn every_virtual_machine_that_a_claim_names_may_use_its_address() {
    let owner = json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "name": "c", "uid": "vmi-1"});
    let other = json!({"metadata": {"labels": {"kubevirt.io/vm": "b"}, "ownerReferences": [owner]}});
    assert_eq!(next(&deleted(&other)), Step::ReadGuests(names(&["a", "b", "c"])));
    // A virtual machine cannot have this name, so no instance of this name is read.
    let hostile = json!({"metadata": {"labels": {"kubevirt.io/vm": "../x"}, "ownerReferences": []}});
    assert_eq!(next(&deleted(&hostile)), Step::ReadGuests(names(&["a"])));
}

#[test]
fn the_record_of_an_address_ends_if_the_status_no_longer_has_the_address() {
    let mut view = with(&["10.0.0.8/24"], &["10.0.0.8/24"]);
    let noted = BTreeSet::from([("n/vlan10".to_owned(), "10.0.0.9".parse().unwrap())]);
    view.ledger.unrecorded = noted.clone();
    assert_eq!(next(&view), Step::ReadGuests(names(&["a"])));
    // A guest may still use the address.
    view.guests = Some(vec![guest("a", &["vmi-1", "vm-1"])]);
    assert!(!matches!(next(&view), Step::EndRecords(..) | Step::ReadGuests(_)));
    assert!(view.waits_for_guest());
    view.guests = Some(Vec::new());
    assert_eq!(next(&view), Step::EndRecords(holder("u1"), noted));
}

#[test]
fn only_reserved_addresses_that_the_status_does_not_have_are_unrecorded() {
    let now = Timestamp::UNIX_EPOCH;
    let text = json!({"namespace": "n", "name": "p", "network": "n/vlan10", "addresses": ["10.0.0.8/30"],
        "excludedAddresses": ["10.0.0.10"]});
    let mut registry = Registry::open(MemoryLedger::default()).unwrap();
    registry.resize(Pool::parse(text.to_string().as_bytes()).unwrap(), &[], now).unwrap();
    let reservation = Reservation {
        address: "10.0.0.9".parse().unwrap(),
        network: None,
        claimant: Claimant { machine: holder("u1"), interface: eno101() },
        source: "IPAMClaim n/a.net1".to_owned(),
        kind: Source::Unreadable,
    };
    registry.set_aside([reservation], now).unwrap();
    // The pool excludes the other address.
    let excluded = claim(&json!({"status": {"ips": ["10.0.0.10/24"]}}));
    registry.adopt([record(&excluded, &[], &pool("p"), eno101()).unwrap()], now).unwrap();
    let mut unrecorded = |addresses: Option<&[IpNetwork]>| {
        let allocator = registry.state().unwrap();
        let key = Key { namespace: "n".to_owned(), name: "a.net1".to_owned() };
        let unrecorded = Recorded::read(allocator, &key, ("u1", addresses), &Serving::None).unrecorded;
        registry.release_addresses(&holder("u1"), &unrecorded, now).unwrap();
        unrecorded.into_iter().map(|(_, address)| address.to_string()).collect::<Vec<_>>()
    };
    let none: [&str; 0] = [];
    assert_eq!(unrecorded(None), none, "the status cannot be read");
    let [noted, excluded] = ["10.0.0.9/24", "10.0.0.10/24"].map(|address| address.parse().unwrap());
    assert_eq!(unrecorded(Some(&[noted, excluded])), none);
    assert_eq!(unrecorded(Some(&[excluded])), ["10.0.0.9"]);
    assert_eq!(unrecorded(Some(&[])), ["10.0.0.10"]);
    assert_eq!(unrecorded(Some(&[])), none, "the records are removed");
}

#[test]
fn a_pool_that_takes_over_a_claim_of_another_network_does_not_allocate_the_address_of_the_claim() {
    let now = Timestamp::UNIX_EPOCH;
    let mut registry = registry([("p", "n/vlan10"), ("q", "n/vlan20")]);
    let Step::Claim(of_p) = request(&[]) else { panic!() };
    assert_eq!(registry.claim(&of_p, now).unwrap()[0].addresses, ["10.0.0.8/24".parse().unwrap()]);
    let view = with(&[], &["10.0.0.8/24"]);
    let Serving::Pool(_, facts) = view.pool.clone() else { panic!() };
    let ips = view.claim.as_ref().unwrap().addresses().unwrap();
    let allocator = registry.state().unwrap();
    let read = |serving: &Serving| Recorded::read(allocator, &view.key, ("u1", Some(&ips)), serving);
    let by_q = Serving::Pool(pool("q"), facts.clone());
    assert_eq!(read(&Serving::Pool(pool("p"), facts)).held, [held("10.0.0.8/24")]);
    assert_eq!(read(&by_q).held, []);
    // The network of `q` lacks the address until it is reserved there.
    let by_both = Serving::Several(pool("q"), vec![pool("p")]);
    assert_eq!(read(&by_both).held, []);
    let taken_over = View { ledger: read(&by_q), pool: by_q, ..view };
    let Step::Adopt(record, network) = next(&taken_over) else { panic!() };
    assert_eq!((&record.addresses, network.as_str()), (&ips, "n/vlan20"));
    let adoption = registry.adopt([record], now).unwrap();
    let mismatches: Vec<String> = adoption.mismatches.iter().map(ToString::to_string).collect();
    let message = "IPAMClaim n/a.net1: 10.0.0.8 of IPAMClaim n/a.net1 (u1) is held on another network, n/vlan10";
    assert_eq!(mismatches, [message]);
    let read = Recorded::read(registry.state().unwrap(), &taken_over.key, ("u1", Some(&ips)), &by_both);
    assert_eq!(read.held, [held("10.0.0.8/24")]);
    let other = Claim { machine: holder("u2"), requests: vec![Request::of("n/q")], ..of_p };
    assert_eq!(registry.claim(&other, now).unwrap()[0].addresses, ["10.0.0.9/24".parse().unwrap()]);
}

#[test]
fn the_addresses_of_a_claim_are_recorded_on_the_networks_that_the_registry_has_for_its_pools() {
    let mut registry = registry([("p", "n/vlan10"), ("q", "n/vlan20"), ("r", "n/vlan20")]);
    let claim = claim(&json!({"status": {"ips": ["10.0.0.8/24"]}}));
    let mut rows = |pools: &[&str]| {
        let pools: Vec<PoolId> = pools.iter().map(|name| pool(name)).collect();
        let records = records_of(registry.state().unwrap(), &claim, &pools)?;
        let row = |(record, network): (Record, String)| (record.node_pool.unwrap_or_default(), network);
        Some(records.into_iter().map(row).collect::<Vec<_>>())
    };
    let expected = [("n/p", "n/vlan10"), ("n/q", "n/vlan20")].map(|(pool, of)| (pool.to_owned(), of.to_owned()));
    assert_eq!(rows(&["p", "q", "r", "unknown"]), Some(expected.to_vec()));
    assert_eq!(rows(&["unknown"]), None);
}

#[test]
fn a_claim_on_two_networks_has_a_conflict_if_its_address_has_another_user_on_one_of_them() {
    let now = Timestamp::UNIX_EPOCH;
    let by_both = || Serving::Several(pool("p"), vec![pool("q")]);
    let view = View { pool: by_both(), ..with(&[], &["10.0.0.8/24"]) };
    let claim = view.claim.clone().unwrap();
    let ips = claim.addresses().unwrap();
    for (taken, network) in [(None, None), (Some("n/p"), Some("n/vlan10")), (Some("n/q"), Some("n/vlan20"))] {
        let mut registry = registry([("p", "n/vlan10"), ("q", "n/vlan20")]);
        if let (Some(taken), Step::Claim(other)) = (taken, request(&[])) {
            let machine = Machine { name: "b.net1".to_owned(), ..holder("u2") };
            let other = Claim { machine, requests: vec![Request::of(taken)], ..other };
            assert_eq!(registry.claim(&other, now).unwrap()[0].addresses, ["10.0.0.8/24".parse().unwrap()]);
        }
        let records = records_of(registry.state().unwrap(), &claim, &[pool("p"), pool("q")]).unwrap();
        registry.adopt(records.into_iter().map(|(record, _)| record), now).unwrap();
        let ledger = Recorded::read(registry.state().unwrap(), &view.key, ("u1", Some(&ips)), &by_both());
        let view = View { ledger, has_adopted: true, ..view.clone() };
        let Some(network) = network else {
            assert_eq!(status(&view).1, "SuccessfulAllocation");
            continue;
        };
        let Step::Adopt(record, of) = next(&view) else { panic!("{network}") };
        assert_eq!((record.node_pool.as_deref(), of.as_str()), (taken, network));
        let problem = Some(Problem::Mismatch("taken".to_owned(), Vec::new()));
        assert_eq!(status(&View { problem, ..view }), is(json!(["10.0.0.8/24"]), "IPAddressConflict", "taken"));
    }
}

/// A registry with open pools of namespace `n`, each given with its network.
fn registry<const N: usize>(pools: [(&str, &str); N]) -> Registry<MemoryLedger> {
    let parse = |(name, network): (&str, &str)| {
        let machine_network = json!([{"cidr": "10.0.0.0/24"}]);
        let pool = json!({"namespace": "n", "name": name, "network": network, "addresses": ["10.0.0.8-10.0.0.9"],
            "machineNetwork": machine_network});
        Pool::parse(pool.to_string().as_bytes()).unwrap().remove(0)
    };
    let mut registry = Registry::open(MemoryLedger::default()).unwrap();
    registry.resize(pools.map(parse), &[], Timestamp::UNIX_EPOCH).unwrap();
    registry.open_addresses(Timestamp::UNIX_EPOCH).unwrap();
    registry
}
