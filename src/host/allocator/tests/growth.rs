//! Tests of new addresses, which are closed until their records are adopted.

use super::*;
use crate::host::ledger::MemoryLedger;
use crate::host::pool::Namespaces;
use crate::host::registry::{Registry, RegistryError};

const SUBNET: &str = "machineNetwork: [{cidr: 10.0.0.0/24}]";

fn closed() -> Registry<MemoryLedger> {
    Registry::open(MemoryLedger::default()).unwrap()
}

fn grown(registry: &mut Registry<MemoryLedger>, pools: impl IntoIterator<Item = Pool>) -> u64 {
    registry.resize(pools, &[], at(0)).unwrap();
    registry.growth()
}

fn got(registry: &mut Registry<MemoryLedger>, name: &str) -> String {
    match registry.claim(&claim(name, "1", &["n/one"]), at(1)) {
        Ok(allocations) => allocations[0].addresses[0].to_string(),
        Err(RegistryError::Refused(error)) => error.to_string(),
        Err(RegistryError::Ledger(error)) => panic!("{error}"),
    }
}

fn open(registry: &mut Registry<MemoryLedger>, growth: u64) -> Vec<String> {
    let served = registry.open_up_to(growth, at(2)).unwrap();
    served.iter().map(|it| format!("{} {}", it.claimant.machine.name, it.addresses[0])).collect()
}

fn one(rest: &str) -> Pool {
    on("vlan10", "one", &format!("{rest}, {SUBNET}"))
}

const CLOSED: &str = "pool \"n/one\": its new addresses are not open yet, expected `Registry::rebuild` with the objects of \
                      all machines before the claim";

#[test]
fn a_new_pool_allocates_after_its_records_are_adopted_and_serves_the_waiting_machines() {
    let mut registry = closed();
    assert_eq!(registry.growth(), 1);
    let growth = grown(&mut registry, [one("addresses: [10.0.0.8-10.0.0.9]")]);
    assert_eq!(growth, 2);
    assert_eq!([got(&mut registry, "a"), got(&mut registry, "b")], [CLOSED, CLOSED]);
    assert_eq!(open(&mut registry, 1), [""; 0], "of an earlier growth");
    let usage = registry.state().unwrap().usage(at(1))["n/one"].clone();
    assert_eq!((usage.families[0].free, usage.waiting), (2, 2));
    // An adoption leases a recorded address while the address is closed.
    assert_eq!(registry.adopt([record("c", "10.0.0.8/24")], at(1)).unwrap().adopted, 1);
    assert_eq!(open(&mut registry, growth), ["a 10.0.0.9/24"]);
    assert_eq!(got(&mut registry, "b"), "No available IPs in pool for interface eth0");
}

#[test]
fn only_new_addresses_are_closed_while_a_pool_grows() {
    let mut registry = closed();
    let growth = grown(&mut registry, [one("addresses: [10.0.0.8-10.0.0.9]")]);
    open(&mut registry, growth);
    assert_eq!(got(&mut registry, "a"), "10.0.0.8/24");
    let growth = grown(&mut registry, [one("addresses: [10.0.0.4-10.0.0.15]")]);
    assert_eq!(got(&mut registry, "b"), "10.0.0.9/24");
    assert_eq!(got(&mut registry, "c"), CLOSED);
    // An address that a machine releases stays open.
    let released = registry.release(&machine("a", "1"), at(1)).unwrap();
    assert_eq!(released.served[0].addresses[0].to_string(), "10.0.0.8/24");
    assert_eq!(got(&mut registry, "d"), CLOSED);
    // An address that is adopted and released while it is closed is not allocated before it is opened.
    registry.adopt([record("x", "10.0.0.4/24")], at(1)).unwrap();
    registry.release(&machine("x", "1"), at(1)).unwrap();
    assert_eq!(got(&mut registry, "d"), CLOSED);
    assert_eq!(open(&mut registry, growth), ["d 10.0.0.4/24"]);
    registry.release(&machine("d", "1"), at(3)).unwrap();
    assert_eq!(got(&mut registry, "e"), "10.0.0.4/24");
}

#[test]
fn every_address_that_becomes_allocatable_is_closed() {
    let wide = "addresses: [10.0.0.8-10.0.0.9]";
    let other = |rest: &str| on("vlan10", "two", &format!("addresses: [10.0.0.30], {rest}, {SUBNET}"));
    let other_with = |addresses: &str| on("vlan10", "two", &format!("addresses: [{addresses}], {SUBNET}"));
    let serving = |pool: Pool, namespace: &str| {
        let only = || Namespaces::only([namespace]);
        pool.with_namespaces(only(), only())
    };
    let cases: [(&str, Vec<Pool>, Vec<Pool>); 7] = [
        ("a larger pool", vec![one("addresses: [10.0.0.8]")], vec![one(wide)]),
        ("an exclusion", vec![one(&format!("{wide}, excludedAddresses: [10.0.0.9]"))], vec![one(wide)]),
        ("a gateway", vec![one(&format!("{wide}, gateway: [10.0.0.9]"))], vec![one(wide)]),
        (
            "a router of a route",
            vec![one(&format!("{wide}, routes: [{{to: 10.9.0.0/16, via: 10.0.0.9}}]"))],
            vec![one(wide)],
        ),
        (
            "a reservation of another pool",
            vec![one(wide), other("nameservers: [10.0.0.9]")],
            vec![one(wide), other("nameservers: [10.0.0.31]")],
        ),
        (
            "a range of another pool",
            vec![one("addresses: [10.0.0.8]"), other_with("10.0.0.9, 10.0.0.30")],
            vec![one(wide), other_with("10.0.0.30")],
        ),
        ("a namespace", vec![serving(one(wide), "m")], vec![serving(one(wide), "n")]),
    ];
    for (what, before, after) in cases {
        let mut registry = closed();
        let growth = grown(&mut registry, before);
        open(&mut registry, growth);
        let was = registry.growth();
        let is = grown(&mut registry, after);
        assert_eq!(is, was + 1, "{what}");
        let first = got(&mut registry, "a");
        assert_eq!(first, if what == "a namespace" { CLOSED } else { "10.0.0.8/24" }, "{what}");
        assert_eq!(got(&mut registry, "b"), CLOSED, "{what}");
        assert_eq!(open(&mut registry, is).last().map(String::as_str), Some("b 10.0.0.9/24"), "{what}");
    }
}

#[test]
fn a_recorded_end_of_a_subnet_stays_reserved_when_the_pool_begins_to_offer_it() {
    let pool = |rest: &str| on("vlan10", "one", &format!("addresses: [10.0.0.254-10.0.0.255], {rest}"));
    for after in ["prefix: 32", "prefix: 24, allocateReservedIPAddresses: true"] {
        let mut registry = closed();
        let growth = grown(&mut registry, [pool(SUBNET)]);
        assert_eq!(registry.adopt([record("x", "10.0.0.255/24")], at(1)).unwrap().adopted, 0);
        open(&mut registry, growth);
        let growth = grown(&mut registry, [pool(after)]);
        open(&mut registry, growth);
        let length = &after[8..10];
        assert_eq!(got(&mut registry, "a"), format!("10.0.0.254/{length}"));
        assert_eq!(got(&mut registry, "b"), "No available IPs in pool for interface eth0");
        registry.release(&machine("x", "1"), at(2)).unwrap();
        assert_eq!(got(&mut registry, "b"), format!("10.0.0.255/{length}"));
    }
}

#[test]
fn a_new_subnet_is_allocated_after_its_records_are_adopted_and_after_the_first_subnet() {
    let first = "{addresses: [10.0.9.8-10.0.9.9], prefix: 24, gateway: [10.0.9.1]}";
    let second = "{addresses: [10.0.4.0/30], gateway: [10.0.4.1]}";
    let pool = |subnets: &str| on("vlan10", "one", &format!("subnets: [{subnets}]"));
    let mut registry = closed();
    let growth =
        grown(&mut registry, [on("vlan10", "one", "addresses: [10.0.9.8-10.0.9.9], prefix: 24, gateway: [10.0.9.1]")]);
    open(&mut registry, growth);
    assert_eq!([got(&mut registry, "a"), got(&mut registry, "b")], ["10.0.9.8/24", "10.0.9.9/24"]);
    assert_eq!(got(&mut registry, "c"), "No available IPs in pool for interface eth0");
    // The short form of a pool means one subnet, so this pool has no new addresses.
    assert_eq!(grown(&mut registry, [pool(first)]), growth);
    let growth = grown(&mut registry, [pool(&format!("{first}, {second}"))]);
    assert_eq!(got(&mut registry, "c"), CLOSED);
    assert_eq!(registry.adopt([record("x", "10.0.4.2/30")], at(1)).unwrap().adopted, 1);
    assert_eq!(open(&mut registry, growth), [""; 0]);
    assert_eq!(got(&mut registry, "c"), "No available IPs in pool for interface eth0");
    // An address of the first subnet is allocated before a lower address of the second subnet.
    registry.release(&machine("x", "1"), at(2)).unwrap();
    assert_eq!(got(&mut registry, "c"), "10.0.4.2/30");
    registry.release(&machine("c", "1"), at(2)).unwrap();
    registry.release(&machine("b", "1"), at(2)).unwrap();
    assert_eq!([got(&mut registry, "d"), got(&mut registry, "e")], ["10.0.9.9/24", "10.0.4.2/30"]);
    // After the subnet of its address is removed, a machine keeps the address and the prefix length.
    registry.resize([pool(first)], &[], at(3)).unwrap();
    assert_eq!(got(&mut registry, "e"), "10.0.4.2/30");
    let usage = registry.state().unwrap().usage(at(3))["n/one"].clone();
    assert_eq!((usage.families[0].total, usage.families[0].outside), (2, 1));
}

#[test]
fn a_pool_is_closed_after_a_suspension_and_after_it_was_removed_and_added_again() {
    let pool = || one("addresses: [10.0.0.8-10.0.0.9]");
    let mut registry = closed();
    let growth = grown(&mut registry, [pool()]);
    open(&mut registry, growth);
    registry.suspend(["n/one".to_owned()].into());
    registry.suspend(BTreeSet::new());
    assert_eq!((registry.growth(), got(&mut registry, "a")), (growth + 1, CLOSED.to_owned()));
    open(&mut registry, growth + 1);
    registry.withdraw([&machine("a", "1")]).unwrap();
    registry.release(&machine("a", "1"), at(3)).unwrap();
    registry.remove_pool("n/one", at(4)).unwrap();
    assert_eq!(grown(&mut registry, [pool()]), growth + 2);
    assert_eq!(got(&mut registry, "b"), CLOSED);
}

#[test]
fn addresses_that_a_pool_gains_during_an_adoption_stay_closed_until_the_next_opening() {
    let mut registry = closed();
    let first = grown(&mut registry, [one("addresses: [10.0.0.8]")]);
    let second = grown(&mut registry, [one("addresses: [10.0.0.8-10.0.0.9]")]);
    assert_eq!([got(&mut registry, "a"), got(&mut registry, "b")], [CLOSED, CLOSED]);
    assert_eq!(open(&mut registry, first), ["a 10.0.0.8/24"]);
    assert_eq!(got(&mut registry, "b"), CLOSED);
    assert_eq!(open(&mut registry, second), ["b 10.0.0.9/24"]);
}

#[test]
fn an_address_in_conflict_after_the_adoption_is_not_allocated() {
    let mut registry = closed();
    let growth = grown(&mut registry, [one("addresses: [10.0.0.8-10.0.0.11], gateway: [10.0.0.11]")]);
    let records = [record("x", "10.0.0.8/24"), record("y", "10.0.0.8/24"), record("z", "10.0.0.11/24")];
    let adoption = registry.adopt(records, at(1)).unwrap();
    assert_eq!((adoption.adopted, adoption.mismatches.len()), (0, 3));
    let Record { claimant, addresses, .. } = record("guest", "10.0.0.9");
    let (network, source) = (Some("n/vlan10".to_owned()), "guest".to_owned());
    let report = Reservation { address: addresses[0].ip(), network, claimant, source, kind: Source::Report };
    registry.change_reports(std::slice::from_ref(&report), &[], at(1)).unwrap();
    open(&mut registry, growth);
    assert_eq!(got(&mut registry, "a"), "10.0.0.10/24");
    assert_eq!(got(&mut registry, "b"), "No available IPs in pool for interface eth0");
    // When a report ends, its address is allocated at once.
    let changes = registry.change_reports(&[], &[report], at(2)).unwrap();
    let served = registry.serve(at(2)).unwrap();
    let served: Vec<String> = served.iter().map(|it| it.addresses[0].to_string()).collect();
    assert_eq!((changes.ended.len(), served), (1, vec!["10.0.0.9/24".to_owned()]));
}

#[test]
fn a_pre_allocated_address_is_allocated_only_after_it_is_opened() {
    let mut registry = closed();
    let growth = grown(&mut registry, [one("addresses: [10.0.0.8-10.0.0.9], preAllocations: {db: 10.0.0.9}")]);
    assert_eq!([got(&mut registry, "db"), got(&mut registry, "a")], [CLOSED, CLOSED]);
    let mut served = open(&mut registry, growth);
    served.sort();
    assert_eq!(served, ["a 10.0.0.8/24", "db 10.0.0.9/24"]);
}

#[test]
fn an_address_that_only_a_formerly_suspended_pool_offers_is_closed() {
    let two = |addresses: &str| on("vlan10", "two", &format!("addresses: [{addresses}], {SUBNET}"));
    let mut registry = closed();
    // Pool `one` is suspended while both pools have the address. The suspension ends before pool `two` loses the
    // address.
    registry.suspend(["n/one".to_owned()].into());
    let growth = grown(&mut registry, [one("addresses: [10.0.0.9]"), two("10.0.0.8-10.0.0.9")]);
    open(&mut registry, growth);
    registry.suspend(BTreeSet::new());
    let growth = grown(&mut registry, [one("addresses: [10.0.0.9]"), two("10.0.0.8")]);
    assert_eq!(got(&mut registry, "a"), CLOSED);
    assert!(registry.state().unwrap().is_closed("n/vlan10", "10.0.0.9".parse().unwrap()));
    assert_eq!(open(&mut registry, growth), ["a 10.0.0.9/24"]);
    registry.release(&machine("a", "1"), at(3)).unwrap();
    assert_eq!(got(&mut registry, "b"), "10.0.0.9/24", "a released address stays open");
}

#[test]
fn the_addresses_of_a_pool_that_is_no_longer_suspended_are_closed() {
    let both = || [one("addresses: [10.0.0.9]"), on("vlan10", "two", &format!("addresses: [10.0.0.9], {SUBNET}"))];
    let mut registry = closed();
    registry.suspend(["n/one".to_owned()].into());
    let growth = grown(&mut registry, both());
    open(&mut registry, growth);
    registry.suspend(["n/two".to_owned()].into());
    assert_eq!((registry.growth(), got(&mut registry, "a")), (growth + 1, CLOSED.to_owned()));
    assert_eq!(open(&mut registry, growth + 1), ["a 10.0.0.9/24"]);
}

#[test]
fn the_addresses_of_a_pool_that_is_renamed_or_read_again_stay_open() {
    let mut registry = closed();
    let growth = grown(&mut registry, [on("vlan10", "old", &format!("addresses: [10.0.0.8-10.0.0.9], {SUBNET}"))]);
    open(&mut registry, growth);
    let pool = || one("addresses: [10.0.0.8-10.0.0.10]");
    assert_eq!(registry.resize([pool()], &[], at(1)).unwrap().renamed.len(), 1);
    assert_eq!(registry.growth(), growth + 1);
    let names = ["a", "b", "c"];
    assert_eq!(names.map(|name| got(&mut registry, name)), ["10.0.0.8/24", "10.0.0.9/24", CLOSED]);
    open(&mut registry, growth + 1);
    assert_eq!(grown(&mut registry, [pool()]), growth + 1);
    let mut allocator = registry.state().unwrap().clone();
    let pools = Change::Pool { name: Arc::from("n/one"), pool: Some(Arc::new(pool())) };
    allocator.learn(Update::Snapshot(vec![pools]));
    assert_eq!(allocator.growth(), growth + 1);
}
