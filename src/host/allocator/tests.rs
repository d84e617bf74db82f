mod counts;
mod growth;
mod overflow;
mod records;
mod shared;
mod users;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use ipnetwork::IpNetwork;
use jiff::Timestamp;

use super::*;
use crate::host::address::AddressRange;
use crate::host::change::{Change, Journal, Update, storable};
use crate::host::claim::{Allocation, Claim, Claimant, HolderKind, Lease, Machine, Record, Request, Reservation};
use crate::host::may_record::Source;
use crate::host::pool::{Namespaces, Pool, Settings, Space, Subnet, TemplateFacts};
use crate::host::pools_file::read_pools;
use crate::host::registry::tests::at;
use crate::network::Family;

fn pool(name: &str, interface: &str, rest: &str) -> Pool {
    let text = format!("{{name: {name}, namespace: 'n', network: vlan10, interface: {interface}, {rest}}}");
    let (specs, mut diagnostics) = read_pools(text.as_bytes());
    let pool = specs.first().and_then(|spec| Pool::new(spec, &TemplateFacts::default(), &mut diagnostics));
    pool.unwrap_or_else(|| panic!("{text}: {:?}", diagnostics.kept()))
}

/// An allocator with these pools and with other changes that a ledger reports.
fn allocator(pools: impl IntoIterator<Item = Pool>, known: impl IntoIterator<Item = Change>) -> Allocator {
    let pools =
        pools.into_iter().map(|pool| Change::Pool { name: Arc::from(pool.name.as_str()), pool: Some(Arc::new(pool)) });
    let mut allocator = Allocator::default();
    allocator.learn(Update::Snapshot(pools.chain(known).collect()));
    allocator.open_growths(u64::MAX);
    allocator
}

/// Changes a pool and opens its addresses. The result has all waiting machines that are served.
fn resize(allocator: &mut Allocator, pool: Pool) -> Resized {
    resize_all(allocator, vec![pool], &[], at(0))
}

fn resize_all(allocator: &mut Allocator, pools: Vec<Pool>, renames: &[Rename], now: Timestamp) -> Resized {
    let mut resized = allocator.resize(pools, renames, now, &mut Journal::default()).unwrap();
    resized.served.extend(allocator.open_up_to(u64::MAX, now, &mut Journal::default()));
    resized
}

fn machine(name: &str, uid: &str) -> Machine {
    Machine::new("n", name, uid)
}

fn claim(name: &str, uid: &str, pools: &[&str]) -> Claim {
    let requests = pools.iter().map(|pool| Request::of(pool));
    Claim { machine: machine(name, uid), created: at(0), requests: requests.collect(), sticky: false, secret: None }
}

fn given(allocator: &mut Allocator, claim: &Claim, now: u64) -> String {
    match allocator.claim(claim, at(now), &mut Journal::default()) {
        Ok(allocations) => {
            let addresses = allocations.iter().flat_map(|allocation| &allocation.addresses);
            addresses.map(ToString::to_string).collect::<Vec<_>>().join(" ")
        }
        Err(error) => error.to_string(),
    }
}

fn named(name: &str, uid: &str, pool: &str, addresses: &[&str]) -> Claim {
    let mut claim = claim(name, uid, &[pool]);
    claim.requests[0].addresses = addresses.iter().map(|address| address.parse().unwrap()).collect();
    claim
}

fn free_and_reserved(allocator: &mut Allocator, pool: &str) -> Vec<(u128, u128, u128)> {
    let usage = &allocator.usage(at(0))[pool];
    usage.families.iter().map(|usage| (usage.total, usage.excluded, usage.free)).collect()
}

#[test]
fn leases_and_waiting_machines_count_for_their_pool_also_after_the_ledger_lost_the_pool() {
    let [one, two] = ["one", "two"]
        .map(|name| pool(name, "eth0", "addresses: [10.0.0.8-10.0.0.9], machineNetwork: [{cidr: 10.0.0.0/24}]"));
    let mut allocator = allocator([one.clone()], []);
    given(&mut allocator, &claim("a", "1", &["n/one"]), 0);
    given(&mut allocator, &claim("b", "1", &["n/one"]), 0);
    given(&mut allocator, &claim("c", "1", &["n/one"]), 0);
    let [gone, other] = [(one, None), (two.clone(), Some(Arc::new(two)))]
        .map(|(pool, after)| Change::Pool { name: Arc::from(pool.name.as_str()), pool: after });
    allocator.learn(Update::Delta(vec![gone, other]));
    let families = vec![Usage {
        family: Family::Ipv4,
        total: 2,
        allocated: 2,
        excluded: 0,
        by_record: 0,
        by_report: 0,
        reuse_delay: 0,
        free: 0,
        conflicts: 0,
        outside: 0,
    }];
    let expected = [
        ("n/one", PoolUsage { held: 2, waiting: 1, ..PoolUsage::default() }),
        ("n/two", PoolUsage { families, ..PoolUsage::default() }),
    ];
    assert_eq!(allocator.usage(at(1)), expected.into());
}

#[test]
fn a_claim_on_an_exhausted_pool_gets_the_message_of_the_enhancement_and_waits() {
    let one = pool("one", "eno101", "addresses: [10.0.0.8], machineNetwork: [{cidr: 10.0.0.0/24}]");
    let mut allocator = allocator([one], []);
    assert_eq!(given(&mut allocator, &claim("a", "1", &["n/one"]), 0), "10.0.0.8/24");
    let refused = given(&mut allocator, &claim("b", "1", &["n/one"]), 0);
    assert_eq!(refused, "No available IPs in pool for interface eno101");
    assert_eq!(allocator.waiters(), [&claim("b", "1", &["n/one"])]);
}

#[test]
fn a_late_release_of_a_deleted_machine_frees_no_address_of_a_new_machine_of_its_name() {
    let mut allocator = allocator([pool("one", "eth0", "addresses: [10.0.0.0/24]")], []);
    assert_eq!(given(&mut allocator, &claim("a", "1", &["n/one"]), 0), "10.0.0.1/24");
    assert_eq!(given(&mut allocator, &claim("a", "2", &["n/one"]), 0), "10.0.0.2/24");
    allocator.release(&machine("a", "1"), at(1), &mut Journal::default());
    assert_eq!(allocator.release(&machine("a", "1"), at(1), &mut Journal::default()), []);
    assert_eq!(given(&mut allocator, &claim("b", "3", &["n/one"]), 2), "10.0.0.1/24");
    assert_eq!(given(&mut allocator, &claim("a", "2", &["n/one"]), 2), "10.0.0.2/24");
}

#[test]
fn a_machine_that_waits_for_an_absent_pool_keeps_waiting() {
    let waits = Claim { sticky: true, ..claim("a", "1", &["n/one"]) };
    let change = Change::Waiter { machine: waits.machine.clone(), claim: Some(Arc::new(waits.clone())) };
    let mut allocator = allocator([pool("two", "eth0", "addresses: [10.0.0.0/24]")], [change]);
    let mut journal = Journal::default();
    assert_eq!(allocator.serve(at(1), &mut journal), []);
    assert_eq!((journal.changes(), allocator.waiters()), (&[][..], vec![&waits]));
    let served = resize(&mut allocator, pool("one", "eth0", "addresses: [10.0.1.0/24]")).served;
    assert_eq!(served[0].addresses, ["10.0.1.1/24".parse().unwrap()]);
}

#[test]
fn a_machine_that_claims_is_not_missing() {
    let mut allocator = allocator([pool("one", "eth0", "addresses: [10.0.0.0/24]")], []);
    let (machine, mut journal) = (machine("a", "1"), Journal::default());
    given(&mut allocator, &claim("a", "1", &["n/one"]), 0);
    assert_eq!(allocator.note_missing(&machine, at(1), &mut journal), None);
    assert_eq!(given(&mut allocator, &claim("a", "1", &["n/one"]), 2), "10.0.0.1/24");
    assert_eq!(allocator.note_missing(&machine, at(3), &mut journal), None);
    assert_eq!(allocator.note_missing(&machine, at(4), &mut journal), Some(at(3)));
}

#[test]
fn a_sticky_claim_gets_the_last_address_of_its_name_until_another_machine_holds_it() {
    let one = pool("one", "eth0", "addresses: [10.0.0.0/24], addressReuseGracePeriodSeconds: 1");
    let mut allocator = allocator([one], []);
    let sticky = |name: &str, uid: &str| Claim { sticky: true, ..claim(name, uid, &["n/one"]) };
    for name in ["a", "b", "c"] {
        given(&mut allocator, &claim(name, "1", &["n/one"]), 0);
    }
    allocator.release(&machine("a", "1"), at(1), &mut Journal::default());
    // The reuse delay applies only to other machines, not to a new machine of the same name.
    allocator.release(&machine("c", "1"), at(1_000), &mut Journal::default());
    assert_eq!(given(&mut allocator, &sticky("c", "2"), 1_001), "10.0.0.3/24");
    assert_eq!(given(&mut allocator, &claim("d", "1", &["n/one"]), 1_001), "10.0.0.1/24");
    assert_eq!(given(&mut allocator, &sticky("a", "2"), 1_001), "10.0.0.4/24");
}

/// The claim of an object of a kind.
fn of_kind(kind: HolderKind, claim: Claim) -> Claim {
    Claim { machine: claim.machine.of_kind(kind), ..claim }
}

#[test]
fn a_sticky_claim_does_not_get_the_address_of_an_object_of_another_kind_in_its_reuse_delay() {
    use HolderKind::{IpAddressClaim, IpamClaim, KubevirtMachine, VirtualMachine};
    let sticky = |kind, uid: &str| of_kind(kind, Claim { sticky: true, ..claim("a", uid, &["n/one"]) });
    let second = |first, second| {
        let one = pool("one", "eth0", "addresses: [10.0.0.0/24], addressReuseGracePeriodSeconds: 1");
        let mut allocator = allocator([one], []);
        let first = sticky(first, "1");
        assert_eq!(given(&mut allocator, &first, 0), "10.0.0.1/24");
        allocator.release(&first.machine, at(1), &mut Journal::default());
        given(&mut allocator, &sticky(second, "2"), 2)
    };
    for kind in [IpAddressClaim, IpamClaim, KubevirtMachine, VirtualMachine] {
        assert_eq!(second(kind, kind), "10.0.0.1/24", "{kind}");
    }
    // A KubevirtMachine and its VirtualMachine have one guest.
    assert_eq!(second(KubevirtMachine, VirtualMachine), "10.0.0.1/24");
    assert_eq!(second(VirtualMachine, KubevirtMachine), "10.0.0.1/24");
    for [first, other] in
        [[IpAddressClaim, VirtualMachine], [KubevirtMachine, IpAddressClaim], [IpAddressClaim, IpamClaim]]
    {
        assert_eq!(second(first, other), "10.0.0.2/24", "{first} {other}");
        assert_eq!(second(other, first), "10.0.0.2/24", "{other} {first}");
    }
}

#[test]
fn a_time_is_stored_in_whole_milliseconds_and_not_before_1970() {
    let times = ["-009999-01-02T01:59:59Z", "1969-12-31T23:59:59Z", "1970-01-01T00:00:00.0019Z"];
    assert_eq!(times.map(|time| storable(time.parse().unwrap())), [at(0), at(0), at(1)]);
    assert_eq!(storable(Timestamp::MAX).to_string(), "9999-12-30T22:00:00Z");
}

#[test]
fn a_reuse_delay_ends_no_later_than_the_last_time_of_the_calendar() {
    let mut one = pool("one", "eth0", "addresses: [10.0.0.1/32], machineNetwork: [{cidr: 10.0.0.0/24}]");
    one.reuse_delay = Duration::MAX;
    let mut allocator = allocator([one], []);
    given(&mut allocator, &claim("a", "1", &["n/one"]), 0);
    allocator.release(&machine("a", "1"), at(1), &mut Journal::default());
    let refused = given(&mut allocator, &named("b", "1", "n/one", &["10.0.0.1"]), 2);
    assert_eq!(refused, "10.0.0.1: in its reuse delay until 9999-12-30T22:00:00Z");
}

#[test]
fn a_waiting_claim_keeps_the_creation_time_that_a_ledger_stores() {
    let mut allocator = allocator([pool("one", "eth0", "addresses: [10.0.0.0/31]")], []);
    for name in ["a", "b"] {
        given(&mut allocator, &claim(name, "1", &["n/one"]), 0);
    }
    let waits = Claim { created: "1970-01-01T00:00:00.0019Z".parse().unwrap(), ..claim("c", "1", &["n/one"]) };
    let mut journal = Journal::default();
    for _ in 0..2 {
        allocator.claim(&waits, at(1), &mut journal).unwrap_err();
    }
    let stored = Arc::new(Claim { created: at(1), ..waits.clone() });
    assert_eq!(journal.changes(), [Change::Waiter { machine: waits.machine, claim: Some(stored) }]);
}

#[test]
fn a_requested_address_is_allocated_or_refused_with_the_reason() {
    let one = pool("one", "eth0", "addresses: [10.0.0.0/24], gateway: [10.0.0.254], addressReuseGracePeriodSeconds: 1");
    let mut allocator = allocator([one], []);
    let mut ask = |name: &str, address: &str| given(&mut allocator, &named(name, "1", "n/one", &[address]), 0);
    assert_eq!(ask("a", "10.0.0.77"), "10.0.0.77/24");
    assert_eq!(ask("a", "10.0.0.77"), "10.0.0.77/24");
    assert_eq!(ask("a", "10.0.0.78"), "eth0: has 10.0.0.77 already, expected a release before it gets 10.0.0.78");
    assert_eq!(ask("b", "10.0.0.77"), "10.0.0.77: taken by eth0 of n/a (1)");
    assert_eq!(ask("b", "10.0.0.254"), r#"10.0.0.254: reserved in pool "n/one" (gateway)"#);
    assert_eq!(ask("b", "10.0.0.0"), r#"10.0.0.0: reserved in pool "n/one" (network address)"#);
    assert_eq!(ask("b", "10.0.1.1"), r#"10.0.1.1: not in pool "n/one""#);
    assert_eq!(ask("b", "fd00::1"), r#"fd00::1: not in pool "n/one""#);
    allocator.release(&machine("a", "1"), at(5), &mut Journal::default());
    let mut ask = |now| given(&mut allocator, &named("b", "1", "n/one", &["10.0.0.77"]), now);
    assert_eq!(ask(1_004), "10.0.0.77: in its reuse delay until 1970-01-01T00:00:01.005Z");
    assert_eq!(ask(1_005), "10.0.0.77/24");
    assert_eq!(allocator.waiters(), Vec::<&Claim>::new());
}

#[test]
fn the_reserved_ends_of_any_number_of_subnets_are_not_allocated() {
    let of = |name: &str, interface: &str, prefix, first: &str, last: &str| {
        let range = AddressRange::new(first.parse().unwrap(), last.parse().unwrap()).unwrap();
        let subnet = Subnet::new(prefix, [range], Settings::default());
        let space = Space::new(range.family(), vec![subnet], Vec::new(), true);
        let interface = interface.parse().unwrap();
        Pool::from_spaces(name.to_owned(), "n/vlan10".to_owned(), interface, Settings::default(), vec![space])
    };
    let huge = of("n/huge", "eth0", 64, "fd00::", "fd00:0:ffff:ffff:ffff:ffff:ffff:ffff");
    let small = of("n/small", "eth1", 30, "10.0.0.0", "10.0.3.255");
    let mut allocator = allocator([huge, small], []);
    assert_eq!(given(&mut allocator, &claim("a", "1", &["n/huge"]), 0), "fd00::1/64");
    assert_eq!(free_and_reserved(&mut allocator, "n/huge"), [(1 << 96, 1 << 32, (1 << 96) - (1 << 32) - 1)]);
    let mut all = BTreeSet::new();
    for at in 0..512 {
        all.insert(given(&mut allocator, &claim(&at.to_string(), "1", &["n/small"]), 0));
    }
    assert_eq!((all.len(), all.first().map(String::as_str)), (512, Some("10.0.0.1/30")));
    assert_eq!(free_and_reserved(&mut allocator, "n/small"), [(1024, 512, 0)]);
}

#[test]
fn each_address_of_a_slash_16_is_allocated_once_until_the_pool_is_exhausted() {
    let mut allocator = allocator([pool("one", "eth0", "addresses: [10.0.0.0/16]")], []);
    for at in 1..65_535_u32 {
        let expected = format!("10.0.{}.{}/16", at / 256, at % 256);
        assert_eq!(given(&mut allocator, &claim(&at.to_string(), "1", &["n/one"]), 0), expected);
    }
    assert_eq!(free_and_reserved(&mut allocator, "n/one"), [(65_536, 2, 0)]);
    let late = claim("late", "1", &["n/one"]);
    assert_eq!(given(&mut allocator, &late, 0), "No available IPs in pool for interface eth0");
    // The machine is served when the pool gets more addresses.
    let served = resize(&mut allocator, pool("one", "eth0", "addresses: [10.0.0.0/15]")).served;
    let network: IpNetwork = "10.0.255.255/15".parse().unwrap();
    assert_eq!((served.len(), &served[0].addresses[..]), (1, &[network][..]));
}

#[test]
fn a_claim_for_two_interfaces_gets_all_addresses_or_none() {
    let eth0 = pool("one", "eth0", "addresses: [10.0.0.0/24, fd00::/64]");
    let eth1 = pool("two", "eth1", "addresses: [10.0.1.8], machineNetwork: [{cidr: 10.0.1.0/24}]");
    let mut allocator = allocator([eth0, eth1], []);
    let both = |name: &str| claim(name, "1", &["n/one", "n/two"]);
    assert_eq!(given(&mut allocator, &both("a"), 0), "10.0.0.1/24 fd00::1/64 10.0.1.8/24");
    assert_eq!(given(&mut allocator, &both("b"), 0), "No available IPs in pool for interface eth1");
    assert_eq!(given(&mut allocator, &claim("c", "1", &["n/one"]), 0), "10.0.0.2/24 fd00::2/64");
}

#[test]
fn an_adoption_leases_addresses_that_fit_and_reserves_the_address_of_a_mismatch() {
    let one = pool("one", "eth0", "addresses: [10.0.0.0/29], gateway: [10.0.0.6]");
    let mut allocator = allocator([one], []);
    assert_eq!(given(&mut allocator, &claim("a", "1", &["n/one"]), 0), "10.0.0.1/29");
    let record = |name: &str, interface: &str, addresses: &[&str]| Record {
        claimant: Claimant { machine: machine(name, "1"), interface: interface.parse().unwrap() },
        node_pool: None,
        attachments: Vec::new(),
        network: None,
        addresses: addresses.iter().map(|address| address.parse().unwrap()).collect(),
        source: format!("KubevirtMachine n/{name}"),
        kind: Source::Annotation,
    };
    let records = [
        record("a", "eth0", &["10.0.0.1"]),
        record("b", "eth0", &["10.0.0.2/29"]),
        record("c", "eth0", &["10.0.0.1"]),
        record("a", "eth0", &["10.0.0.3"]),
        record("d", "eth9", &["10.0.0.4"]),
        record("e", "eth0", &["10.9.9.9/16"]),
        record("f", "eth0", &["10.0.0.6"]),
    ];
    let adoption = allocator.adopt(records.clone(), at(1), &mut Journal::default());
    let mismatches: Vec<String> = adoption.mismatches.iter().map(ToString::to_string).collect();
    assert_eq!((adoption.adopted, adoption.known, adoption.reserved.len()), (1, 1, 1));
    assert_eq!(
        mismatches,
        [
            "KubevirtMachine n/c: 10.0.0.1 of eth0 of n/c (1) is also of eth0 of n/a (1)",
            "KubevirtMachine n/a: 10.0.0.3 of eth0 of n/a (1) differs from the address that the interface holds, 10.0.0.1",
            "KubevirtMachine n/d: 10.0.0.4 of eth9 of n/d (1) belongs to no pool",
            r#"KubevirtMachine n/f: 10.0.0.6 of eth0 of n/f (1) is reserved in pool "n/one" (gateway)"#,
        ]
    );
    let again = allocator.adopt(records, at(2), &mut Journal::default());
    assert_eq!((again.adopted, again.known, again.reserved.len(), again.mismatches.len()), (0, 2, 1, 4));
    let usage = allocator.usage(at(2))["n/one"].families[0];
    assert_eq!((usage.allocated, usage.by_record, usage.conflicts), (2, 2, 1));
    assert_eq!((usage.outside, usage.excluded, usage.free), (0, 3, 1));
    // One address is free. A released address does not become free while a conflict remains.
    assert_eq!(given(&mut allocator, &claim("x", "1", &["n/one"]), 3), "10.0.0.5/29");
    allocator.release(&machine("a", "1"), at(4), &mut Journal::default());
    assert_eq!(given(&mut allocator, &claim("y", "1", &["n/one"]), 5), "10.0.0.3/29");
    assert_eq!(given(&mut allocator, &claim("z", "1", &["n/one"]), 5), "No available IPs in pool for interface eth0");
    allocator.release(&machine("c", "1"), at(6), &mut Journal::default());
    assert_eq!(given(&mut allocator, &claim("z", "1", &["n/one"]), 7), "10.0.0.1/29");
}

#[test]
fn an_address_with_an_unreadable_record_is_adopted_when_the_record_is_fixed() {
    let mut allocator = allocator([pool("one", "eth0", "addresses: [10.0.0.0/24]")], []);
    let claimant = Claimant { machine: machine("a", "1"), interface: "eth0".parse().unwrap() };
    let (address, mut journal) = ("10.0.0.1".parse().unwrap(), Journal::default());
    let (source, kind) = ("unreadable".to_owned(), Source::Unreadable);
    let reservation = Reservation { address, network: None, claimant: claimant.clone(), source, kind };
    allocator.set_aside(reservation.clone(), at(1), &mut journal);
    assert_eq!(given(&mut allocator, &claim("b", "1", &["n/one"]), 2), "10.0.0.2/24");
    let addresses = vec!["10.0.0.1/24".parse().unwrap()];
    let record = Record {
        claimant,
        node_pool: None,
        attachments: Vec::new(),
        network: None,
        addresses,
        source: "mended".into(),
        kind: Source::Annotation,
    };
    let adoption = allocator.adopt([record], at(3), &mut journal);
    assert_eq!((adoption.adopted, adoption.mismatches), (1, vec![]));
    // The holder of an address has no conflict with itself.
    allocator.set_aside(reservation, at(4), &mut journal);
    assert_eq!(allocator.conflicts().count(), 0);
}

#[test]
fn a_shrink_keeps_leases_but_addresses_outside_the_pool_are_not_allocated_again() {
    let mut allocator = allocator([pool("one", "eth0", "addresses: [10.0.0.0/24]")], []);
    let (a, b) = (claim("a", "1", &["n/one"]), claim("b", "1", &["n/one"]));
    given(&mut allocator, &a, 0);
    given(&mut allocator, &b, 0);
    resize(
        &mut allocator,
        pool("one", "eth0", "addresses: [10.0.0.2-10.0.0.9], machineNetwork: [{cidr: 10.0.0.0/24}]"),
    );
    let outside = allocator.outside("n/one");
    assert_eq!((outside.len(), &outside[0].claimant.machine), (1, &a.machine));
    assert_eq!(given(&mut allocator, &a, 1), "10.0.0.1/24");
    allocator.release(&a.machine, at(2), &mut Journal::default());
    assert_eq!(allocator.outside("n/one"), []);
    assert_eq!(given(&mut allocator, &a, 3), "10.0.0.3/24");
}

fn on(network: &str, name: &str, rest: &str) -> Pool {
    let text = format!("{{name: {name}, namespace: 'n', network: {network}, interface: eth0, {rest}}}");
    let (specs, mut diagnostics) = read_pools(text.as_bytes());
    Pool::new(&specs[0], &TemplateFacts::default(), &mut diagnostics)
        .unwrap_or_else(|| panic!("{text}: {:?}", diagnostics.kept()))
}

fn record(name: &str, address: &str) -> Record {
    Record {
        claimant: Claimant { machine: machine(name, "1"), interface: "eth0".parse().unwrap() },
        node_pool: None,
        attachments: Vec::new(),
        network: None,
        addresses: vec![address.parse().unwrap()],
        source: format!("KubevirtMachine n/{name}"),
        kind: Source::Annotation,
    }
}

/// An allocator with two networks whose pools have the same addresses.
fn twins() -> Allocator {
    let rest = "addresses: [10.0.0.10-10.0.0.20], machineNetwork: [{cidr: 10.0.0.0/24}]";
    allocator([on("infra/vlan10", "a", rest), on("infra/vlan20", "b", rest)], [])
}

fn problems(adoption: &Adoption) -> Vec<Problem> {
    adoption.mismatches.iter().map(|mismatch| mismatch.problem.clone()).collect()
}

fn held(allocator: &Allocator) -> Vec<String> {
    let held = allocator.leases();
    held.map(|(network, address, lease)| {
        format!("{network} {address}/{} {} {}", lease.prefix, lease.pool, lease.claimant.machine.name)
    })
    .collect()
}

#[test]
fn records_of_equal_addresses_belong_to_the_network_of_their_node_pool() {
    let mut allocator = twins();
    let records = [("x", "n/a"), ("y", "n/b")]
        .map(|(name, pool)| Record { node_pool: Some(pool.to_owned()), ..record(name, "10.0.0.10/24") });
    let adoption = allocator.adopt(records, at(1), &mut Journal::default());
    assert_eq!((adoption.adopted, problems(&adoption)), (2, vec![]));
    assert_eq!(held(&allocator), ["infra/vlan10 10.0.0.10/24 n/a x", "infra/vlan20 10.0.0.10/24 n/b y"]);
    assert_eq!(given(&mut allocator, &claim("z", "1", &["n/b"]), 2), "10.0.0.11/24");
}

#[test]
fn without_a_known_node_pool_an_attached_network_decides_before_the_network_of_the_record() {
    let mut allocator = twins();
    let attached = Record {
        node_pool: Some("n/unknown".to_owned()),
        attachments: vec!["infra/other".to_owned(), "infra/vlan20".to_owned()],
        network: Some("infra/vlan10".to_owned()),
        ..record("x", "10.0.0.10/24")
    };
    let named = Record { network: Some("infra/vlan10".to_owned()), ..record("y", "10.0.0.10/24") };
    let adoption = allocator.adopt([attached, named], at(1), &mut Journal::default());
    assert_eq!((adoption.adopted, problems(&adoption)), (2, vec![]));
    assert_eq!(held(&allocator), ["infra/vlan10 10.0.0.10/24 n/a y", "infra/vlan20 10.0.0.10/24 n/b x"]);
}

#[test]
fn a_record_belongs_to_no_pool_if_it_names_a_network_of_its_object_that_has_no_pool() {
    let rest = "addresses: [10.0.0.10-10.0.0.20], machineNetwork: [{cidr: 10.0.0.0/24}]";
    let mut allocator = allocator([on("infra/vlan10", "a", rest)], []);
    let attachments = vec!["infra/vlan10".to_owned(), "infra/vlan20".to_owned()];
    let network = Some("infra/vlan20".to_owned());
    let named = Record { attachments, network, ..record("x", "10.0.0.10/24") };
    let adoption = allocator.adopt([named], at(1), &mut Journal::default());
    assert_eq!((adoption.adopted, problems(&adoption)), (0, vec![Problem::NoPool]));
}

#[test]
fn a_record_belongs_to_no_pool_if_no_network_of_its_object_has_a_pool() {
    let mut allocator = twins();
    let attached = Record { attachments: vec!["infra/other".to_owned()], ..record("x", "10.0.0.10/24") };
    let adoption = allocator.adopt([attached], at(1), &mut Journal::default());
    assert_eq!((adoption.adopted, problems(&adoption)), (0, vec![Problem::NoPool]));
}

#[test]
fn the_answer_to_a_claim_has_no_address_of_another_network() {
    let one = on("infra/vlan10", "a", "addresses: [10.0.0.10], machineNetwork: [{cidr: 10.0.0.0/24}]");
    let other = on("infra/vlan20", "b", "addresses: [\"fd00::10\"], machineNetwork: [{cidr: \"fd00::/64\"}]");
    let mut allocator = allocator([one, other], []);
    let named = Record { network: Some("infra/vlan20".to_owned()), ..record("x", "fd00::10/64") };
    allocator.adopt([named], at(1), &mut Journal::default());
    assert_eq!(given(&mut allocator, &claim("x", "1", &["n/a"]), 2), "10.0.0.10/24");
}

#[test]
fn an_ambiguous_record_reserves_its_address_on_each_possible_network() {
    let mut allocator = twins();
    let ambiguous = Problem::Ambiguous(vec!["infra/vlan10".to_owned(), "infra/vlan20".to_owned()]);
    let adoption = allocator.adopt([record("x", "10.0.0.10/24")], at(1), &mut Journal::default());
    assert_eq!((adoption.adopted, problems(&adoption)), (0, vec![ambiguous]));
    assert_eq!(given(&mut allocator, &claim("y", "1", &["n/a"]), 2), "10.0.0.11/24");
    assert_eq!(given(&mut allocator, &claim("z", "1", &["n/b"]), 2), "10.0.0.11/24");
    allocator.release(&machine("x", "1"), at(3), &mut Journal::default());
    assert_eq!(given(&mut allocator, &claim("v", "1", &["n/a"]), 4), "10.0.0.10/24");
    // A record is not ambiguous if the ledger has a lease of the address for the claimant.
    let adoption = allocator.adopt([record("v", "10.0.0.10/24")], at(5), &mut Journal::default());
    assert_eq!((adoption.known, problems(&adoption)), (1, vec![]));
}

#[test]
fn a_record_that_belongs_to_another_network_than_the_lease_is_reported() {
    let mut allocator = twins();
    given(&mut allocator, &claim("x", "1", &["n/a"]), 1);
    let elsewhere = Record { node_pool: Some("n/b".to_owned()), ..record("x", "10.0.0.10/24") };
    let adoption = allocator.adopt([elsewhere], at(2), &mut Journal::default());
    assert_eq!(problems(&adoption), [Problem::OtherNetwork("infra/vlan10".to_owned())]);
    assert_eq!(given(&mut allocator, &claim("y", "1", &["n/b"]), 3), "10.0.0.11/24");
}

#[test]
fn no_pool_allocates_an_address_that_another_pool_of_its_network_reserves() {
    let a = on(
        "vlan10",
        "a",
        "addresses: [10.0.0.10-10.0.0.20], gateway: [10.0.0.25], machineNetwork: [{cidr: 10.0.0.0/24}]",
    );
    let b = on(
        "vlan10",
        "b",
        "addresses: [10.0.0.25-10.0.0.28], excludedAddresses: [10.0.0.27], machineNetwork: [{cidr: 10.0.0.0/24}]",
    );
    let other = on("vlan20", "c", "addresses: [10.0.0.25], machineNetwork: [{cidr: 10.0.0.0/24}]");
    let mut allocator = allocator([a, b, other], []);
    assert_eq!(given(&mut allocator, &claim("x", "1", &["n/b"]), 1), "10.0.0.26/24");
    assert_eq!(given(&mut allocator, &claim("y", "1", &["n/b"]), 1), "10.0.0.28/24");
    assert_eq!(given(&mut allocator, &claim("z", "1", &["n/c"]), 1), "10.0.0.25/24");
    let refused = given(&mut allocator, &named("v", "1", "n/b", &["10.0.0.25"]), 1);
    assert_eq!(refused, r#"10.0.0.25: reserved in pool "n/b" (gateway of pool "n/a")"#);
    assert_eq!(free_and_reserved(&mut allocator, "n/b"), [(4, 2, 0)]);
    // A new exclusion of one pool applies to all pools of the network.
    let a = on(
        "vlan10",
        "a",
        "addresses: [10.0.0.10-10.0.0.20], excludedAddresses: [10.0.0.26], machineNetwork: [{cidr: 10.0.0.0/24}]",
    );
    resize(&mut allocator, a);
    assert_eq!(free_and_reserved(&mut allocator, "n/b"), [(4, 2, 1)]);
    assert_eq!(given(&mut allocator, &claim("w", "1", &["n/b"]), 2), "10.0.0.25/24");
}

#[test]
fn a_lease_moves_to_the_claimed_pool_of_its_network_without_a_release() {
    let a = on("vlan10", "a", "addresses: [10.0.0.10-10.0.0.20], machineNetwork: [{cidr: 10.0.0.0/24}]");
    let b = on("vlan10", "b", "addresses: [10.0.0.30-10.0.0.40], machineNetwork: [{cidr: 10.0.0.0/24}]");
    let c = on("vlan20", "c", "addresses: [10.0.0.30-10.0.0.40], machineNetwork: [{cidr: 10.0.0.0/24}]");
    let mut allocator = allocator([a, b, c], []);
    // The record names another pool of the network than the pool that has the address.
    let adopted = Record { node_pool: Some("n/a".to_owned()), ..record("x", "10.0.0.30/24") };
    assert_eq!(allocator.adopt([adopted], at(1), &mut Journal::default()).adopted, 1);
    assert_eq!(given(&mut allocator, &claim("x", "1", &["n/b"]), 2), "10.0.0.30/24");
    assert_eq!(held(&allocator), ["n/vlan10 10.0.0.30/24 n/b x"]);
    let other_pool = r#"eth0: has 10.0.0.30 of pool "n/b" already, expected a release before another pool"#;
    assert_eq!(given(&mut allocator, &claim("x", "1", &["n/c"]), 2), other_pool);
    // A claim names its pool, so its lease does not move to a pool without the address.
    let of_claim = |pool: &str| of_kind(HolderKind::IpAddressClaim, claim("z", "1", &[pool]));
    assert_eq!(given(&mut allocator, &of_claim("n/b"), 2), "10.0.0.31/24");
    let refused = r#"eth0: has 10.0.0.31 of pool "n/b" already, expected a release before another pool"#;
    assert_eq!(given(&mut allocator, &of_claim("n/a"), 2), refused);
}

#[test]
fn a_claim_is_refused_while_its_lease_is_on_another_network_although_the_pool_of_the_lease_has_the_claimed_name() {
    let pool =
        |network: &str| on(network, "p", "addresses: [10.0.0.10-10.0.0.20], machineNetwork: [{cidr: 10.0.0.0/24}]");
    let of_claim = || of_kind(HolderKind::IpAddressClaim, claim("z", "1", &["n/p"]));
    let mut before = allocator([pool("vlan10")], []);
    assert_eq!(given(&mut before, &claim("x", "1", &["n/p"]), 1), "10.0.0.10/24");
    assert_eq!(given(&mut before, &of_claim(), 1), "10.0.0.11/24");
    // A person has removed the pool by force, and created it again on another network. The new leader has the leases.
    let leases = before.leases().map(|(network, address, lease)| Change::Lease {
        network: Arc::from(network),
        address,
        lease: Some(lease.clone()),
    });
    let mut after = allocator([pool("vlan20")], leases);
    let refused =
        |held: &str| format!("eth0: has {held} on network n/vlan10 already, expected a release before another network");
    assert_eq!(given(&mut after, &claim("x", "1", &["n/p"]), 2), refused("10.0.0.10"));
    assert_eq!(given(&mut after, &of_claim(), 2), refused("10.0.0.11"));
    assert_eq!(held(&after), ["n/vlan10 10.0.0.10/24 n/p x", "n/vlan10 10.0.0.11/24 n/p z"]);
    after.release(&machine("x", "1"), at(3), &mut Journal::default());
    assert_eq!(given(&mut after, &claim("x", "1", &["n/p"]), 4), "10.0.0.10/24");
}

#[test]
fn a_lease_moves_to_the_pool_that_serves_its_machine_even_if_the_pool_lacks_the_address() {
    let a = on("vlan10", "a", "addresses: [10.0.0.10-10.0.0.11], machineNetwork: [{cidr: 10.0.0.0/24}]");
    let b = on("vlan10", "b", "addresses: [10.0.0.30-10.0.0.31], machineNetwork: [{cidr: 10.0.0.0/16}]");
    let c = on("vlan20", "c", "addresses: [10.0.0.10-10.0.0.11], machineNetwork: [{cidr: 10.0.0.0/24}]");
    let mut allocator = allocator([a, b, c], []);
    assert_eq!(given(&mut allocator, &claim("x", "1", &["n/a"]), 1), "10.0.0.10/24");
    assert_eq!(given(&mut allocator, &claim("y", "1", &["n/a"]), 1), "10.0.0.11/24");
    let mut moved = |machine: &Machine, pools: &[&str]| {
        let pools: Vec<String> = pools.iter().map(|pool| (*pool).to_owned()).collect();
        let mut journal = Journal::default();
        let moved = allocator.move_leases(machine, &pools, &mut journal);
        (moved.iter().map(ToString::to_string).collect::<Vec<_>>(), journal.changes().len(), held(&allocator))
    };
    let before = ["n/vlan10 10.0.0.10/24 n/a x", "n/vlan10 10.0.0.11/24 n/a y"].map(str::to_owned);
    for pools in [&["n/a"][..], &["n/c"], &["n/gone"], &[]] {
        assert_eq!(moved(&machine("x", "1"), pools), (vec![], 0, before.to_vec()), "{pools:?}");
    }
    let after = ["n/vlan10 10.0.0.10/24 n/b x", "n/vlan10 10.0.0.11/24 n/a y"].map(str::to_owned);
    assert_eq!(moved(&machine("x", "2"), &["n/b"]), (vec![], 0, before.to_vec()));
    assert_eq!(moved(&machine("x", "1"), &["n/c", "n/b"]), (vec!["10.0.0.10".to_owned()], 1, after.to_vec()));
    assert_eq!(moved(&machine("x", "1"), &["n/b"]), (vec![], 0, after.to_vec()));
    // A claim of the machine moves the lease of the machine, too.
    assert_eq!(given(&mut allocator, &claim("y", "1", &["n/b"]), 2), "10.0.0.11/24");
    let outside = |pool: &str| allocator.outside(pool).iter().map(|it| it.addresses[0].to_string()).collect::<Vec<_>>();
    assert_eq!((outside("n/a"), outside("n/b")), (vec![], vec!["10.0.0.10/24".to_owned(), "10.0.0.11/24".to_owned()]));
    let counts = |allocator: &Allocator, pool: &str| {
        let usage = &allocator.usage(at(2))[pool];
        (usage.held, usage.families[0].allocated, usage.families[0].free, usage.families[0].outside)
    };
    assert_eq!((counts(&allocator, "n/a"), counts(&allocator, "n/b")), ((0, 2, 0, 0), (2, 0, 2, 2)));
    // No other machine gets the address, even after the first pool of the lease is removed and another pool has the
    // address.
    assert_eq!(given(&mut allocator, &claim("z", "1", &["n/a"]), 3), "No available IPs in pool for interface eth0");
    allocator.remove_pool("n/a", at(3), &mut Journal::default()).unwrap();
    resize(
        &mut allocator,
        on("vlan10", "b", "addresses: [10.0.0.10-10.0.0.12], machineNetwork: [{cidr: 10.0.0.0/16}]"),
    );
    assert_eq!(given(&mut allocator, &claim("v", "1", &["n/b"]), 4), "10.0.0.12/16");
    assert_eq!(held(&allocator)[..2], ["n/vlan10 10.0.0.10/16 n/b x", "n/vlan10 10.0.0.11/16 n/b y"]);
    allocator.release(&machine("x", "1"), at(5), &mut Journal::default());
    assert_eq!(given(&mut allocator, &claim("u", "1", &["n/b"]), 6), "10.0.0.10/16");
}

#[test]
fn a_renamed_pool_keeps_its_leases_and_its_waiting_machines() {
    let of = |name: &str, last: u8| {
        on("vlan10", name, &format!("addresses: [10.0.0.10-10.0.0.{last}], machineNetwork: [{{cidr: 10.0.0.0/24}}]"))
    };
    let mut allocator = allocator([of("old", 10)], []);
    given(&mut allocator, &claim("x", "1", &["n/old"]), 1);
    given(&mut allocator, &claim("y", "1", &["n/old"]), 1);
    let resized = resize(&mut allocator, of("new", 11));
    assert_eq!(resized.renamed, [Rename { old: "n/old".to_owned(), new: "n/new".to_owned() }]);
    assert_eq!(resized.served.len(), 1);
    assert_eq!(held(&allocator), ["n/vlan10 10.0.0.10/24 n/new x", "n/vlan10 10.0.0.11/24 n/new y"]);
    assert_eq!(given(&mut allocator, &claim("x", "1", &["n/new"]), 2), "10.0.0.10/24");
    // A requested rename needs no common addresses.
    let rename = Rename { old: "n/new".to_owned(), new: "n/last".to_owned() };
    let far = on("vlan10", "last", "addresses: [10.0.0.30], machineNetwork: [{cidr: 10.0.0.0/24}]");
    let resized = resize_all(&mut allocator, vec![far], std::slice::from_ref(&rename), at(3));
    assert_eq!((resized.renamed, resized.outside.len()), (vec![rename], 2));
}

#[test]
fn a_new_pool_that_lacks_an_address_of_the_old_pool_is_no_rename() {
    let of = |name: &str, addresses: &str| {
        on("vlan10", name, &format!("addresses: [{addresses}], machineNetwork: [{{cidr: 10.0.0.0/24}}]"))
    };
    let mut allocator = allocator([of("a", "10.0.0.10-10.0.0.11")], []);
    assert_eq!(resize(&mut allocator, of("b", "10.0.0.11-10.0.0.12")).renamed, []);
    assert_eq!(resize(&mut allocator, of("a", "10.0.0.10-10.0.0.11")).renamed, []);
}

#[test]
fn a_resize_without_a_template_keeps_the_addresses_that_the_template_reserved() {
    let rest = "addresses: [10.0.0.10-10.0.0.13], machineNetwork: [{cidr: 10.0.0.0/24}]";
    let (specs, mut diagnostics) =
        read_pools(format!("{{name: a, namespace: 'n', network: vlan10, {rest}}}").as_bytes());
    let template =
        TemplateFacts { gateways: BTreeSet::from(["10.0.0.10".parse().unwrap()]), ..TemplateFacts::default() };
    let with_template = Pool::new(&specs[0], &template, &mut diagnostics).unwrap();
    let mut allocator = allocator([with_template], []);
    resize(&mut allocator, on("vlan10", "a", rest));
    assert_eq!(given(&mut allocator, &claim("x", "1", &["n/a"]), 1), "10.0.0.11/24");
    let renamed = resize(&mut allocator, on("vlan10", "b", rest)).renamed;
    assert_eq!(renamed, [Rename { old: "n/a".to_owned(), new: "n/b".to_owned() }]);
    assert_eq!(given(&mut allocator, &claim("y", "1", &["n/b"]), 2), "10.0.0.12/24");
    let why = allocator.why_reserved("n/b", "10.0.0.10".parse().unwrap(), &machine("a", "1")).unwrap();
    assert_eq!(why.of("n/b"), "gateway");
}

#[test]
fn a_new_pool_that_can_be_either_of_two_old_pools_is_no_rename() {
    let of = |name: &str, addresses: &str| {
        on("vlan10", name, &format!("addresses: [{addresses}], machineNetwork: [{{cidr: 10.0.0.0/24}}]"))
    };
    let mut allocator = allocator([of("a", "10.0.0.10"), of("b", "10.0.0.11")], []);
    let resized = resize(&mut allocator, of("c", "10.0.0.10-10.0.0.11"));
    assert_eq!(resized.renamed, []);
    assert_eq!(allocator.pools().count(), 3);
}

#[test]
fn a_pool_in_use_keeps_its_network_and_interface() {
    let rest = "addresses: [10.0.0.10], machineNetwork: [{cidr: 10.0.0.0/24}]";
    let mut allocator = allocator([on("vlan10", "a", rest)], []);
    given(&mut allocator, &claim("x", "1", &["n/a"]), 1);
    let refused = allocator.resize(vec![on("vlan20", "a", rest)], &[], at(2), &mut Journal::default()).unwrap_err();
    assert_eq!(
        refused.to_string(),
        r#"pool "n/a": network "n/vlan20" differs from "n/vlan10" in the ledger, expected no change while machines hold its addresses"#
    );
    allocator.release(&machine("x", "1"), at(3), &mut Journal::default());
    resize(&mut allocator, on("vlan20", "a", rest));
    assert_eq!(allocator.pool("n/a").unwrap().network, "n/vlan20");
}

#[test]
fn a_claim_that_waits_for_a_pool_gets_an_address_of_the_pool_as_it_is_now() {
    let rest = "addresses: [10.0.0.10], machineNetwork: [{cidr: 10.0.0.0/24}]";
    let waits = claim("x", "1", &["n/a"]);
    for network in ["vlan10", "vlan20"] {
        // A running guest reports the only address, so no lease names the pool.
        let mut allocator = allocator([on("vlan10", "a", rest)], []);
        let report = Reservation {
            address: "10.0.0.10".parse().unwrap(),
            network: Some("n/vlan10".to_owned()),
            claimant: Claimant { machine: machine("guest", "9"), interface: "eth0".parse().unwrap() },
            source: "guest".to_owned(),
            kind: Source::Report,
        };
        allocator.change_reports(std::slice::from_ref(&report), &[], at(0));
        let exhausted = "No available IPs in pool for interface eth0";
        assert_eq!(given(&mut allocator, &waits, 1), exhausted, "{network}");
        let changed = format!("{{name: a, namespace: 'n', network: {network}, interface: eth1, {rest}}}");
        let (specs, mut diagnostics) = read_pools(changed.as_bytes());
        let changed = Pool::new(&specs[0], &TemplateFacts::default(), &mut diagnostics).unwrap();
        let mut served = resize(&mut allocator, changed).served;
        if network == "vlan10" {
            assert_eq!((served, allocator.waiters()), (vec![], vec![&waits]));
            let changes = allocator.change_reports(&[], &[report], at(2));
            assert_eq!(changes.ended.len(), 1);
            served = allocator.serve(at(3), &mut Journal::default());
        }
        let claimant = Claimant { machine: machine("x", "1"), interface: "eth1".parse().unwrap() };
        let expected = Allocation { claimant, addresses: vec!["10.0.0.10/24".parse().unwrap()] };
        assert_eq!((served, allocator.waiters()), (vec![expected], vec![]), "{network}");
    }
}

#[test]
fn leases_take_the_prefix_length_of_a_widened_subnet_and_the_resize_lists_them() {
    let mut allocator = allocator([on("vlan10", "a", "addresses: [10.0.0.0/24]")], []);
    given(&mut allocator, &claim("x", "1", &["n/a"]), 1);
    let wider = on("vlan10", "a", "addresses: [10.0.0.0/24], machineNetwork: [{cidr: 10.0.0.0/16}]");
    let changed = resize(&mut allocator, wider).prefix_changed;
    assert_eq!((changed.len(), &changed[0].addresses[..]), (1, &["10.0.0.1/16".parse().unwrap()][..]));
    assert_eq!(given(&mut allocator, &claim("x", "1", &["n/a"]), 2), "10.0.0.1/16");
}

#[test]
fn a_waiting_machine_that_claims_again_keeps_its_position_in_the_queue() {
    let mut allocator =
        allocator([on("vlan10", "a", "addresses: [10.0.0.10], machineNetwork: [{cidr: 10.0.0.0/24}]")], []);
    given(&mut allocator, &claim("holder", "1", &["n/a"]), 1);
    for (name, created) in [("first", 10), ("second", 20), ("first", 30)] {
        given(&mut allocator, &Claim { created: at(created), ..claim(name, "1", &["n/a"]) }, created);
    }
    allocator.release(&machine("holder", "1"), at(40), &mut Journal::default());
    let served = allocator.serve(at(41), &mut Journal::default());
    assert_eq!(served[0].claimant.machine.name, "first");
}

#[test]
fn a_waiting_machine_that_needs_no_address_any_more_leaves_the_queue() {
    let subnet = "machineNetwork: [{cidr: 10.0.0.0/24}]";
    let one = on("vlan10", "a", &format!("addresses: [10.0.0.10], {subnet}"));
    let two = on("vlan10", "b", &format!("addresses: [10.0.0.11], {subnet}"));
    let mut allocator = allocator([one, two], []);
    given(&mut allocator, &claim("holder", "1", &["n/a"]), 1);
    for name in ["x", "y"] {
        given(&mut allocator, &claim(name, "1", &["n/a"]), 1);
    }
    // An adoption gives one machine an address, and reserves for the other machine an address that no pool has.
    let of = |name, address| Record { node_pool: Some("n/a".to_owned()), ..record(name, address) };
    let records = [of("x", "10.0.0.11/24"), of("y", "10.0.0.99/24")];
    let adoption = allocator.adopt(records, at(2), &mut Journal::default());
    assert_eq!((adoption.adopted, adoption.reserved.len()), (1, 1));
    assert_eq!(allocator.waiters(), Vec::<&Claim>::new());
}

#[test]
fn a_waiting_machine_leaves_the_queue_when_the_pool_loses_the_family_that_the_machine_lacks() {
    let both = on(
        "vlan10",
        "a",
        "addresses: [10.0.0.0/24, 'fd00::1'], machineNetwork: [{cidr: 10.0.0.0/24}, {cidr: 'fd00::/64'}]",
    );
    let mut allocator = allocator([both.clone()], []);
    given(&mut allocator, &claim("holder", "1", &["n/a"]), 1);
    let only = Request { family: Some(Family::Ipv4), ..Request::of("n/a") };
    given(&mut allocator, &Claim { requests: vec![only], ..claim("x", "1", &[]) }, 2);
    assert_eq!(given(&mut allocator, &claim("x", "1", &["n/a"]), 3), "No available IPs in pool for interface eth0");
    resize(&mut allocator, on("vlan10", "a", "addresses: [10.0.0.0/24]"));
    assert_eq!(allocator.waiters(), Vec::<&Claim>::new());
}

#[test]
fn a_machine_that_releases_one_of_its_addresses_keeps_the_others() {
    let mut second = on("vlan20", "b", "addresses: [10.1.0.0/30]");
    second.interface = "eth1".parse().unwrap();
    let mut allocator = allocator([on("vlan10", "a", "addresses: [10.0.0.0/30]"), second], []);
    let both = claim("x", "1", &["n/a", "n/b"]);
    assert_eq!(given(&mut allocator, &both, 1), "10.0.0.1/30 10.1.0.1/30");
    let address = |network: &str, address: &str| (network.to_owned(), address.parse().unwrap());
    let addresses =
        [address("n/vlan20", "10.1.0.1"), address("n/vlan20", "10.1.0.2"), address("n/vlan10", "10.1.0.1")].into();
    let mut journal = Journal::default();
    let released = allocator.release_addresses(&both.machine, &addresses, at(2), &mut journal);
    let eth1 = Claimant { machine: both.machine.clone(), interface: "eth1".parse().unwrap() };
    assert_eq!(released, [Allocation { claimant: eth1, addresses: vec!["10.1.0.1/30".parse().unwrap()] }]);
    assert_eq!(journal.changes().len(), 1);
    let held: Vec<(&str, IpAddr)> = allocator.leases_of(&both.machine).map(|(network, it, _)| (network, it)).collect();
    assert_eq!(held, [("n/vlan10", "10.0.0.1".parse().unwrap())]);
    // A later machine of the same name releases nothing.
    let other = Machine { uid: "2".to_owned(), ..both.machine };
    let addresses = [address("n/vlan10", "10.0.0.1")].into();
    assert_eq!(allocator.release_addresses(&other, &addresses, at(3), &mut Journal::default()), []);
}

#[test]
fn a_machine_that_releases_addresses_loses_its_records_of_them() {
    let mut allocator = allocator([on("vlan10", "a", "addresses: [10.0.0.0/29]")], []);
    given(&mut allocator, &claim("x", "1", &["n/a"]), 1);
    let addresses = ["10.0.0.2", "10.0.0.3"];
    allocator.adopt(addresses.map(|address| record("x", address)), at(2), &mut Journal::default());
    assert_eq!(given(&mut allocator, &claim("y", "1", &["n/a"]), 2), "10.0.0.4/29");
    let records = [("n/vlan10".to_owned(), addresses[0].parse().unwrap())].into();
    assert_eq!(allocator.release_addresses(&machine("x", "1"), &records, at(3), &mut Journal::default()), []);
    assert_eq!(given(&mut allocator, &claim("z", "1", &["n/a"]), 4), "10.0.0.2/29");
    assert_eq!(allocator.conflicts().map(|(_, address, _)| address.to_string()).collect::<Vec<_>>(), [addresses[1]]);
}

#[test]
fn a_claimant_with_two_addresses_is_reported_and_keeps_the_address_that_the_caller_names() {
    let lease = |since: u64| Lease {
        claimant: Arc::new(record("x", "10.0.0.1").claimant),
        pool: "n/a".into(),
        prefix: 24,
        since: at(since),
        released: None,
        reuse_after: None,
        secrets: Default::default(),
        migrated: None,
    };
    // The store has no lock, and two writers have served the machine.
    let twice = [("10.0.0.1", 5), ("10.0.0.2", 4)].map(|(address, since)| Change::Lease {
        network: "n/vlan10".into(),
        address: address.parse().unwrap(),
        lease: Some(lease(since)),
    });
    let pool = on("vlan10", "a", "addresses: [10.0.0.0/24], addressReuseGracePeriodSeconds: 9");
    let mut allocator = allocator([pool], twice);
    assert_eq!(allocator.doubles()[0].addresses.len(), 2);
    assert_eq!(given(&mut allocator, &claim("x", "1", &["n/a"]), 6), "10.0.0.2/24");
    let released = allocator.keep(
        &record("x", "10.0.0.1").claimant,
        &["10.0.0.1".parse().unwrap()],
        at(7),
        &mut Journal::default(),
    );
    assert_eq!(released[0].addresses, ["10.0.0.2/24".parse().unwrap()]);
    assert_eq!(allocator.doubles(), []);
    assert_eq!(given(&mut allocator, &claim("x", "1", &["n/a"]), 8), "10.0.0.1/24");
    // The released address has the reuse delay of its pool.
    assert_eq!(given(&mut allocator, &claim("y", "1", &["n/a"]), 8), "10.0.0.3/24");
    assert_eq!(given(&mut allocator, &claim("z", "1", &["n/a"]), 9007), "10.0.0.2/24");
}

/// A pool of `n/vlan10` whose addresses another program chooses.
fn external(name: &str, rest: &str) -> Pool {
    let text = format!("{{name: {name}, namespace: 'n', network: vlan10, interface: eth0{rest}}}");
    let (mut specs, mut diagnostics) = read_pools(text.as_bytes());
    specs[0].is_external = true;
    let pool = Pool::new(&specs[0], &TemplateFacts::default(), &mut diagnostics);
    pool.unwrap_or_else(|| panic!("{text}: {:?}", diagnostics.kept()))
}

/// Leases exactly these addresses of pool `n/ext` to a machine. Returns `held`, or the message of the error.
fn hold(allocator: &mut Allocator, name: &str, addresses: &[&str], now: u64) -> String {
    let claimant = record(name, "10.0.0.1").claimant;
    let addresses: Vec<IpNetwork> = addresses.iter().map(|address| address.parse().unwrap()).collect();
    let held = allocator.hold("n/ext", &claimant, &addresses, "source", at(now), &mut Journal::default());
    held.map_or_else(|error| error.to_string(), |()| "held".to_owned())
}

#[test]
fn a_machine_holds_exactly_the_addresses_that_another_program_chose() {
    let mut allocator = allocator([external("ext", "")], []);
    let both = ["10.0.0.8/24", "fd00::8/64"];
    assert_eq!(hold(&mut allocator, "a", &both, 1), "held");
    let mut again = Journal::default();
    let claimant = record("a", "10.0.0.1").claimant;
    let addresses = both.map(|address| address.parse().unwrap());
    assert_eq!(allocator.hold("n/ext", &claimant, &addresses, "source", at(2), &mut again), Ok(()));
    assert_eq!(again.changes(), []);
    let claim = claim("a", "1", &["n/ext"]);
    assert_eq!(given(&mut allocator, &claim, 3), "10.0.0.8/24 fd00::8/64");
    assert_eq!(allocator.usage(at(3)), [("n/ext", PoolUsage { held: 2, ..PoolUsage::default() })].into());
}

#[test]
fn a_ledger_stores_whether_a_pool_is_external() {
    let pool = external("ext", ", nameservers: [10.0.0.53]");
    assert_eq!(Pool::from_stored(&pool.to_stored()), Some(pool));
}

#[test]
fn a_claim_on_an_external_pool_allocates_nothing() {
    let mut allocator = allocator([external("ext", "")], []);
    assert_eq!(given(&mut allocator, &claim("a", "1", &["n/ext"]), 1), "");
    assert_eq!(allocator.waiters(), Vec::<&Claim>::new());
}

#[test]
fn an_external_address_that_another_machine_holds_is_refused_and_reserved_for_both() {
    let own = on("vlan10", "own", "addresses: [10.0.0.8], machineNetwork: [{cidr: 10.0.0.0/24}]");
    let mut allocator = allocator([own, external("ext", "")], []);
    assert_eq!(given(&mut allocator, &claim("x", "1", &["n/own"]), 1), "10.0.0.8/24");
    let taken = format!("10.0.0.8: taken by eth0 of {}", machine("x", "1"));
    assert_eq!(hold(&mut allocator, "a", &["fd00::8/64", "10.0.0.8/24"], 2), taken);
    let held: Vec<String> = allocator.leases().map(|(_, address, _)| address.to_string()).collect();
    assert_eq!(held, ["10.0.0.8"], "all of the addresses or none");
    let conflicts: Vec<String> = allocator.conflicts().map(|(_, at, it)| format!("{at} {}", it.source)).collect();
    assert_eq!(conflicts, ["10.0.0.8 source"]);
    let of = |name: &str| allocator.conflicts_of(&machine(name, "1")).map(|(_, at)| at.to_string()).collect::<Vec<_>>();
    assert_eq!((of("a"), of("x")), (vec!["10.0.0.8".to_owned()], Vec::new()));
    // The other program chooses another address. The machine never got the first address, so the conflict ends.
    let mut changed = allocator.clone();
    assert_eq!(hold(&mut changed, "a", &["10.0.0.9/24"], 3), "held");
    assert_eq!(changed.conflicts().count(), 0);
    allocator.release(&machine("x", "1"), at(3), &mut Journal::default());
    assert_eq!(given(&mut allocator, &claim("y", "1", &["n/own"]), 4), "No available IPs in pool for interface eth0");
    assert_eq!(hold(&mut allocator, "a", &["10.0.0.8/24"], 5), "held");
    assert_eq!(allocator.conflicts().count(), 0);
}

#[test]
fn an_external_address_that_the_guest_of_another_machine_reports_is_refused() {
    let mut allocator = allocator([external("ext", ""), on("vlan10", "own", "addresses: [10.0.0.0/24]")], []);
    let Record { claimant, addresses, .. } = record("x", "10.0.0.8");
    let (address, source, kind) = (addresses[0].ip(), "guest".to_owned(), Source::Report);
    let reservation = Reservation { address, network: None, claimant, source, kind };
    allocator.set_aside(reservation, at(1), &mut Journal::default());
    let taken = format!("10.0.0.8: taken by eth0 of {}", record("x", "10.0.0.8").claimant.machine);
    assert_eq!(hold(&mut allocator, "a", &["10.0.0.8/24"], 2), taken);
    assert_eq!(allocator.leases().count(), 0);
}

#[test]
fn an_address_held_from_an_external_pool_is_not_allocated_from_another_pool() {
    let own = on("vlan10", "own", "addresses: [10.0.0.8], machineNetwork: [{cidr: 10.0.0.0/24}]");
    let mut allocator = allocator([own, external("ext", "")], []);
    assert_eq!(hold(&mut allocator, "a", &["10.0.0.8/24"], 1), "held");
    let exhausted = "No available IPs in pool for interface eth0";
    assert_eq!(given(&mut allocator, &claim("x", "1", &["n/own"]), 2), exhausted);
    allocator.release(&record("a", "10.0.0.8").claimant.machine, at(3), &mut Journal::default());
    assert_eq!(given(&mut allocator, &claim("x", "1", &["n/own"]), 4), "10.0.0.8/24");
}

#[test]
fn a_refusal_of_an_external_address_names_its_reason() {
    let own = on(
        "vlan10",
        "own",
        "addresses: [10.0.0.8-10.0.0.9], machineNetwork: [{cidr: 10.0.0.0/24}], gateway: [10.0.0.1], \
         excludedAddresses: [10.0.0.9], addressReuseGracePeriodSeconds: 1",
    );
    let mut allocator = allocator([own, external("ext", ", nameservers: [10.0.0.53]")], []);
    assert_eq!(
        hold(&mut allocator, "a", &["10.0.0.1/24"], 1),
        "10.0.0.1: reserved in pool \"n/ext\" (gateway of pool \"n/own\")"
    );
    assert_eq!(hold(&mut allocator, "a", &["10.0.0.53/24"], 1), "10.0.0.53: reserved in pool \"n/ext\" (name server)");
    let twice = "eth0: more than one IPv4 address, expected at most one";
    assert_eq!(hold(&mut allocator, "a", &["10.0.0.7/24", "10.0.0.6/24"], 1), twice);
    given(&mut allocator, &claim("x", "1", &["n/own"]), 2);
    allocator.release(&machine("x", "1"), at(2), &mut Journal::default());
    let delayed = "10.0.0.8: in its reuse delay until 1970-01-01T00:00:01.002Z";
    assert_eq!(hold(&mut allocator, "a", &["10.0.0.8/24"], 3), delayed);
    // The program that chooses the addresses of `n/ext` may choose an address that `n/own` excludes.
    assert_eq!(hold(&mut allocator, "a", &["10.0.0.9/24"], 3), "held");
    let other = "eth0: has 10.0.0.9 already, expected a release before it gets 10.0.0.7";
    assert_eq!(hold(&mut allocator, "a", &["10.0.0.7/24"], 4), other);
    let claimant = record("b", "10.0.0.7").claimant;
    let own = ["10.0.0.8/24".parse().unwrap()];
    let refused = allocator.hold("n/own", &claimant, &own, "source", at(4), &mut Journal::default());
    assert_eq!(refused.unwrap_err().to_string(), "10.0.0.8: not in pool \"n/own\"");
    allocator.suspend(["n/ext".to_owned()].into());
    assert_eq!(hold(&mut allocator, "b", &["10.0.0.7/24"], 4), "pool \"n/ext\" allocates nothing for now");
}

#[test]
fn a_refused_external_address_that_is_pre_allocated_to_another_name_is_not_allocated_before_its_release() {
    let mut allocator = allocator([keeping(), external("ext", "")], []);
    assert_eq!(
        hold(&mut allocator, "a", &["10.0.0.5/24"], 1),
        r#"10.0.0.5: reserved in pool "n/ext" (pre-allocated of pool "n/one")"#
    );
    let by = record("a", "10.0.0.5").claimant;
    assert_eq!(given(&mut allocator, &claim("db", "1", &["n/one"]), 2), format!("10.0.0.5: taken by {by}"));
    assert_eq!(hold(&mut allocator, "db", &["10.0.0.5/24"], 3), format!("10.0.0.5: taken by {by}"));
    allocator.release(&by.machine, at(4), &mut Journal::default());
    assert_eq!(hold(&mut allocator, "db", &["10.0.0.5/24"], 5), "held");
}

#[test]
fn a_record_of_an_external_pool_is_adopted_without_a_mismatch() {
    let mut allocator = allocator([external("ext", ""), on("vlan10", "own", "addresses: [10.0.0.0/24]")], []);
    let records = [("n/ext", "a", "10.9.0.9/16"), ("n/other", "b", "10.9.0.10/16")];
    let records = records.map(|(pool, name, text)| Record { node_pool: Some(pool.to_owned()), ..record(name, text) });
    let adoption = allocator.adopt(records, at(1), &mut Journal::default());
    assert_eq!((adoption.adopted, adoption.mismatches), (2, Vec::new()));
    let pools: Vec<&str> = allocator.leases().map(|(_, _, lease)| &*lease.pool).collect();
    assert_eq!(pools, ["n/ext", "n/ext"]);
}

#[test]
fn the_gateway_of_an_external_pool_must_be_in_the_subnet_of_its_machines() {
    let check = |rest: &str| {
        let text = format!("{{name: ext, namespace: 'n', network: vlan10{rest}}}");
        let (mut specs, mut diagnostics) = read_pools(text.as_bytes());
        specs[0].is_external = true;
        let pool = Pool::new(&specs[0], &TemplateFacts::default(), &mut diagnostics);
        (pool.is_some(), diagnostics.kept().iter().map(ToString::to_string).collect::<Vec<_>>())
    };
    let network = ", machineNetwork: [{cidr: 10.0.0.0/24}]";
    assert_eq!(check(&format!("{network}, gateway: [10.0.0.1]")), (true, Vec::new()));
    assert_eq!(check(", gateway: [10.9.0.1, 'fd00::1']"), (true, Vec::new()));
    assert_eq!(check(&format!("{network}, gateway: [10.9.0.1], onLinkGateway: true")), (true, Vec::new()));
    let error = "gateway[0]: gateway outside the subnet \"10.9.0.1\", expected an address of 10.0.0.0/24, or \
                 onLinkGateway: true";
    assert_eq!(check(&format!("{network}, gateway: [10.9.0.1]")), (false, vec![error.to_owned()]));
}

/// A pool with 10.0.0.5 for `db` of any namespace, 10.0.0.9 for `web` of namespace `n`, and 10.0.0.6 for all machines.
fn keeping() -> Pool {
    let kept = "excludedAddresses: [10.0.0.9], preAllocations: {db: 10.0.0.5, n/web: 10.0.0.9}";
    let subnet = "machineNetwork: [{cidr: 10.0.0.0/24}]";
    pool("one", "eth0", &format!("addresses: [10.0.0.5-10.0.0.6], {kept}, {subnet}"))
}

#[test]
fn a_pre_allocated_address_is_allocated_only_to_a_machine_of_its_name() {
    let mut allocator = allocator([keeping()], []);
    assert_eq!(free_and_reserved(&mut allocator, "n/one"), [(3, 2, 1)]);
    assert_eq!(given(&mut allocator, &claim("a", "1", &["n/one"]), 0), "10.0.0.6/24");
    let refused = "No available IPs in pool for interface eth0";
    assert_eq!(given(&mut allocator, &claim("b", "2", &["n/one"]), 0), refused);
    assert_eq!(
        given(&mut allocator, &named("c", "3", "n/one", &["10.0.0.9"]), 0),
        r#"10.0.0.9: reserved in pool "n/one" (pre-allocated)"#
    );
    assert_eq!(given(&mut allocator, &claim("db", "4", &["n/one"]), 0), "10.0.0.5/24");
    assert_eq!(given(&mut allocator, &claim("web", "5", &["n/one"]), 0), "10.0.0.9/24");
    let of_other_namespace = Machine { namespace: "other".into(), ..machine("web", "6") };
    let other = Claim { machine: of_other_namespace, ..claim("web", "6", &["n/one"]) };
    assert_eq!(given(&mut allocator, &other, 0), refused);
    assert_eq!(free_and_reserved(&mut allocator, "n/one"), [(3, 0, 0)]);
    assert_eq!(allocator.outside("n/one"), []);
    // After its release, the address is still kept for the name.
    allocator.release(&machine("db", "4"), at(1), &mut Journal::default());
    assert_eq!(given(&mut allocator, &claim("b", "2", &["n/one"]), 2), refused);
    assert_eq!(given(&mut allocator, &claim("db", "7", &["n/one"]), 2), "10.0.0.5/24");
}

#[test]
fn the_holder_keeps_an_address_that_is_pre_allocated_later_and_the_machine_of_the_name_waits() {
    let mut allocator = allocator([pool("one", "eth0", "addresses: [10.0.0.4/30]")], []);
    assert_eq!(given(&mut allocator, &claim("a", "1", &["n/one"]), 0), "10.0.0.5/30");
    let kept = pool("one", "eth0", "addresses: [10.0.0.4/30], preAllocations: {db: 10.0.0.5}");
    let outside = resize(&mut allocator, kept).outside;
    assert_eq!(outside.iter().map(|it| it.claimant.to_string()).collect::<Vec<_>>(), ["eth0 of n/a (1)"]);
    assert_eq!(given(&mut allocator, &claim("a", "1", &["n/one"]), 1), "10.0.0.5/30");
    assert_eq!(given(&mut allocator, &claim("db", "2", &["n/one"]), 1), "10.0.0.5: taken by eth0 of n/a (1)");
    assert_eq!(given(&mut allocator, &claim("b", "3", &["n/one"]), 1), "10.0.0.6/30");
    let journal = &mut Journal::default();
    allocator.release(&machine("a", "1"), at(2), journal);
    let served = allocator.serve(at(2), journal);
    assert_eq!(served.iter().map(|it| it.claimant.to_string()).collect::<Vec<_>>(), ["eth0 of n/db (2)"]);
    assert_eq!(served[0].addresses, ["10.0.0.5/30".parse().unwrap()]);
}

#[test]
fn a_waiting_machine_gets_the_address_that_a_pool_begins_to_keep_for_it() {
    let mut allocator = allocator([pool("one", "eth0", "addresses: [10.0.0.4/31]")], []);
    for (name, uid) in [("a", "1"), ("b", "2")] {
        given(&mut allocator, &claim(name, uid, &["n/one"]), 0);
    }
    assert_eq!(given(&mut allocator, &claim("db", "3", &["n/one"]), 0), "No available IPs in pool for interface eth0");
    let subnet = "addresses: [10.0.0.4-10.0.0.5], machineNetwork: [{cidr: 10.0.0.0/24}]";
    let kept = format!("{subnet}, excludedAddresses: [10.0.0.9], preAllocations: {{db: 10.0.0.9}}");
    let served = resize(&mut allocator, pool("one", "eth0", &kept)).served;
    assert_eq!(served.iter().map(|it| it.addresses[0].to_string()).collect::<Vec<_>>(), ["10.0.0.9/24"]);
}

#[test]
fn a_pre_allocated_address_that_another_pool_reserves_is_allocated_to_no_machine() {
    let other = pool("two", "eth1", "addresses: [10.0.0.0/24], gateway: [10.0.0.5]");
    let mut allocator = allocator([keeping(), other], []);
    assert_eq!(
        given(&mut allocator, &claim("db", "1", &["n/one"]), 0),
        r#"10.0.0.5: reserved in pool "n/one" (gateway of pool "n/two")"#
    );
}

#[test]
fn the_reuse_delay_of_a_pre_allocated_address_does_not_apply_to_a_machine_of_its_name() {
    let mut allocator = allocator([keeping().with_reuse_delay(Duration::from_millis(10))], []);
    given(&mut allocator, &claim("db", "1", &["n/one"]), 0);
    given(&mut allocator, &claim("a", "2", &["n/one"]), 0);
    for (name, uid) in [("db", "1"), ("a", "2")] {
        allocator.release(&machine(name, uid), at(1), &mut Journal::default());
    }
    assert_eq!(given(&mut allocator, &claim("db", "3", &["n/one"]), 2), "10.0.0.5/24");
    let refused = "No available IPs in pool for interface eth0";
    assert_eq!(given(&mut allocator, &claim("b", "4", &["n/one"]), 2), refused);
    // A claim with the name of the machine may be of another user.
    allocator.release(&machine("db", "3"), at(3), &mut Journal::default());
    let of_claim = of_kind(HolderKind::IpAddressClaim, claim("db", "5", &["n/one"]));
    let delayed = "10.0.0.5: in its reuse delay until 1970-01-01T00:00:00.013Z";
    assert_eq!(given(&mut allocator, &of_claim, 4), delayed);
    assert_eq!(given(&mut allocator, &of_claim, 13), "10.0.0.5/24");
}

#[test]
fn for_30_days_no_machine_gets_the_address_of_a_guest_that_migrated_to_another_cluster() {
    let one = pool("one", "eth0", "addresses: [10.0.0.8], machineNetwork: [{cidr: 10.0.0.0/24}]");
    let mut allocator = allocator([one], []);
    let sticky = |uid: &str| Claim { sticky: true, ..claim("a", uid, &["n/one"]) };
    assert_eq!(given(&mut allocator, &sticky("1"), 1), "10.0.0.8/24");
    allocator.note_migrated(&machine("a", "1"), at(2), &mut Journal::default());
    allocator.release(&machine("a", "1"), at(3), &mut Journal::default());
    // A machine of the same name does not get the address either. The tests count times in milliseconds.
    let refused = "No available IPs in pool for interface eth0";
    let end = 3 + 30 * 24 * 60 * 60 * 1000;
    assert_eq!(given(&mut allocator, &sticky("2"), 4), refused);
    assert_eq!(given(&mut allocator, &sticky("2"), end - 1), refused);
    assert_eq!(given(&mut allocator, &sticky("2"), end), "10.0.0.8/24");
}

#[test]
fn a_namespace_keeps_at_most_a_quarter_of_a_shared_pool_for_guests_that_migrated() {
    let text = "addresses: [10.0.0.8-10.0.0.15], machineNetwork: [{cidr: 10.0.0.0/24}]";
    let beyond = |pool: Pool| {
        let mut allocator = allocator([pool], []);
        let note = |allocator: &mut Allocator, name: &str, now: u64| {
            let beyond = allocator.note_migrated(&machine(name, "1"), at(now), &mut Journal::default());
            beyond.into_iter().map(|address| address.to_string()).collect::<Vec<_>>()
        };
        for name in ["a", "b", "c"] {
            given(&mut allocator, &claim(name, "1", &["n/one"]), 1);
        }
        let first = ["a", "b", "c"].map(|name| note(&mut allocator, name, 2));
        // The share counts released addresses, too, until their 30 days are over.
        for name in ["a", "b"] {
            allocator.release(&machine(name, "1"), at(3), &mut Journal::default());
        }
        let later = 4 + 30 * 24 * 60 * 60 * 1000;
        [first.into(), vec![note(&mut allocator, "c", 4), note(&mut allocator, "c", later)]].concat()
    };
    let none: Vec<String> = Vec::new();
    let refused = vec!["10.0.0.10".to_owned()];
    let shared = pool("one", "eth0", text);
    assert_eq!(beyond(shared.clone()), [&none, &none, &refused, &refused, &none].map(Clone::clone));
    // A pool that serves only one namespace needs no limit for this namespace.
    let own = shared.with_namespaces(Namespaces::only(["n"]), Namespaces::only(["n"]));
    assert_eq!(beyond(own), [&none; 5].map(Clone::clone));
}

#[test]
fn a_claim_adds_the_name_of_its_secret_to_all_leases_of_its_machine() {
    let mut allocator = allocator([pool("one", "eth0", "addresses: [10.0.0.0/24, \"fd00::/120\"]")], []);
    let with = |secret: &str| Claim { secret: Some(secret.to_owned()), ..claim("a", "1", &["n/one"]) };
    let secrets = |allocator: &Allocator| {
        allocator.leases().map(|(_, _, lease)| Vec::from_iter(lease.secrets.clone())).collect::<Vec<_>>()
    };
    assert_eq!(given(&mut allocator, &with("s-1"), 1), "10.0.0.1/24 fd00::1/120");
    assert_eq!(secrets(&allocator), [["s-1"], ["s-1"]]);
    assert_eq!(given(&mut allocator, &with("s-2"), 2), "10.0.0.1/24 fd00::1/120");
    assert_eq!(secrets(&allocator), [["s-1", "s-2"], ["s-1", "s-2"]]);
    let kept = BTreeSet::from(["s-2".to_owned()]);
    allocator.set_secrets(&machine("a", "1"), &kept, &mut Journal::default());
    assert_eq!(secrets(&allocator), [["s-2"], ["s-2"]]);
}

#[test]
fn the_home_pool_of_an_address_has_the_address_and_can_allocate_to_the_machine() {
    let a = "addresses: [10.0.0.10/31], machineNetwork: [{cidr: 10.0.0.0/24}]";
    let b = "addresses: [10.0.0.20/31], machineNetwork: [{cidr: 10.0.0.0/24}]";
    let mut allocator = allocator([pool("a", "eth0", a), pool("b", "eth0", b)], []);
    let home = |allocator: &Allocator, network: &str, address: &str| {
        let home = allocator.home(network, address.parse().unwrap(), &machine("x", "1"));
        home.map(|pool| pool.name().to_owned())
    };
    assert_eq!(home(&allocator, "n/vlan10", "10.0.0.10"), Some("n/a".to_owned()));
    assert_eq!(home(&allocator, "n/vlan10", "10.0.0.12"), None);
    assert_eq!(home(&allocator, "n/vlan20", "10.0.0.10"), None);
    allocator.suspended = ["n/a".to_owned()].into();
    assert_eq!(home(&allocator, "n/vlan10", "10.0.0.10"), None);
}
