//! Tests of a pool that several namespaces share.

use std::ops::RangeInclusive;

use super::*;
use crate::host::claim::HolderKind;
use crate::host::may_record::{Ignored, State};

/// A pool of ten addresses for the machines of these namespaces.
fn of(namespaces: &[&str], rest: &str) -> Pool {
    let of = || Namespaces::only(namespaces.iter().copied());
    let text = format!("addresses: [10.0.0.10-10.0.0.19], machineNetwork: [{{cidr: 10.0.0.0/24}}]{rest}");
    on("vlan10", "one", &text).with_namespaces(of(), of())
}

/// The claim of `namespace/name`, created at this second.
fn claim_of(title: &str, second: u64) -> Claim {
    let (namespace, name) = title.split_once('/').unwrap();
    Claim { machine: Machine::new(namespace, name, "1"), created: at(second * 1000), ..claim(name, "1", &["n/one"]) }
}

fn hold(allocator: &mut Allocator, titles: &[&str]) {
    for title in titles {
        allocator.claim(&claim_of(title, 0), at(0), &mut Journal::default()).unwrap();
    }
}

/// Releases the machines one after the other. Returns the waiting machines that get addresses after each release.
fn release(allocator: &mut Allocator, titles: &[&str]) -> Vec<String> {
    let mut served = Vec::new();
    for title in titles {
        allocator.release(&claim_of(title, 0).machine, at(9000), &mut Journal::default());
        let now = allocator.serve(at(9000), &mut Journal::default());
        served.extend(now.into_iter().map(|it| it.claimant.machine.title()));
    }
    served
}

fn in_order(allocator: &Allocator) -> Vec<String> {
    let waiting = allocator.waiting().map(|(claim, queue)| (claim, queue.first().map(|(_, family)| *family)));
    allocator.in_order(waiting).into_iter().map(|(claim, _)| claim.machine.title()).collect()
}

/// An allocator with an exhausted pool. Namespace `a` holds eight of the ten addresses; `b` and `c` hold one each. Four
/// machines of `a` wait, and then two machines of `b` and two of `c`.
fn exhausted(pool: Pool) -> Allocator {
    let mut allocator = allocator([pool], []);
    let many: Vec<String> = (0..8).map(|at| format!("a/h-{at}")).collect();
    hold(&mut allocator, &many.iter().map(String::as_str).collect::<Vec<_>>());
    hold(&mut allocator, &["b/h-0", "c/h-0"]);
    let waiting = ["a/w-0", "a/w-1", "a/w-2", "a/w-3", "b/w-0", "c/w-0", "b/w-1", "c/w-1"];
    for (second, title) in waiting.into_iter().enumerate() {
        let claim = claim_of(title, second as u64 + 1);
        let refused = allocator.claim(&claim, at(8000), &mut Journal::default()).unwrap_err();
        assert_eq!(refused.to_string(), "No available IPs in pool for interface eth0");
    }
    allocator
}

#[test]
fn the_namespace_with_the_fewest_addresses_is_served_first_and_then_the_earliest_machine() {
    let mut allocator = exhausted(of(&["a", "b", "c"], ""));
    let expected = ["b/w-0", "c/w-0", "b/w-1", "c/w-1", "a/w-0", "a/w-1", "a/w-2", "a/w-3"];
    assert_eq!(in_order(&allocator), expected);
    // Namespace `a` releases all these addresses, but its own waiting machines are served last.
    let released: Vec<String> = (0..8).map(|at| format!("a/h-{at}")).collect();
    let released: Vec<&str> = released.iter().map(String::as_str).collect();
    assert_eq!(release(&mut allocator, &released), expected);
    assert_eq!(in_order(&allocator), [""; 0]);
}

#[test]
fn claims_outside_the_wait_queue_follow_the_queue_in_the_order_of_service() {
    let order = |pool: Pool, later: &[&str]| {
        let allocator = exhausted(pool);
        let later: Vec<Claim> =
            later.iter().enumerate().map(|(second, title)| claim_of(title, second as u64)).collect();
        let waiting = allocator.waiting().map(|(claim, queue)| (claim, queue.first().map(|(_, family)| *family)));
        let all: Vec<_> = waiting.chain(later.iter().map(|claim| (claim, Some(Family::Ipv4)))).collect();
        let titles: Vec<String> = allocator.in_order(all).into_iter().map(|(claim, _)| claim.machine.title()).collect();
        let (queue, later) = titles.split_at(8);
        assert_eq!(queue, in_order(&allocator));
        later.to_vec()
    };
    // Namespace `a` holds eight addresses and waits for four. `b` and `c` hold one address each and wait for two each.
    // `d` holds no address.
    let later = ["a/x", "a/y", "b/x", "d/x", "d/y", "c/x", "d/z", "d/v"];
    let shared = of(&["a", "b", "c", "d"], "");
    assert_eq!(order(shared, &later), ["d/x", "d/y", "d/z", "b/x", "c/x", "d/v", "a/x", "a/y"]);
    assert_eq!(order(of(&["a"], ""), &later), later);
}

#[test]
fn the_order_counts_the_addresses_of_each_pool_of_a_queue_and_claims_of_other_pools_come_last() {
    let one = of(&["a", "b"], "");
    let text = "addresses: [10.0.0.30-10.0.0.32], machineNetwork: [{cidr: 10.0.0.0/24}]";
    let two = on("vlan10", "two", text).with_namespaces(one.machines.clone(), one.claims.clone());
    let mut allocator = allocator([one, two], []);
    hold(&mut allocator, &["a/h-0"]);
    let held = (0..9).map(|at| format!("b/h-{at}")).collect::<Vec<_>>();
    hold(&mut allocator, &held.iter().map(String::as_str).collect::<Vec<_>>());
    let of_two = |title: &str, second| Claim { requests: vec![Request::of("n/two")], ..claim_of(title, second) };
    let both = |title: &str, second| {
        let requests = vec![Request { overflow: vec!["n/two".to_owned()], ..Request::of("n/one") }];
        Claim { requests, ..claim_of(title, second) }
    };
    for title in ["a/t-0", "a/t-1", "b/t-0"] {
        allocator.claim(&of_two(title, 0), at(0), &mut Journal::default()).unwrap();
    }
    // Namespace `a` holds one address of pool `one` and two of pool `two`. Namespace `b` holds nine addresses of pool
    // `one` and one of pool `two`.
    let refuse = |allocator: &mut Allocator, claim: &Claim| {
        allocator.claim(claim, at(8000), &mut Journal::default()).unwrap_err();
    };
    for claim in [of_two("a/x", 1), both("b/y", 2), both("a/z", 3), both("a/v", 4)] {
        refuse(&mut allocator, &claim);
    }
    let rows = |pool: &str| {
        let waiting = allocator.waiting().map(|(claim, queue)| {
            let family = queue.iter().find(|(of, _)| **of == *pool).map(|(_, family)| *family);
            (claim, family)
        });
        let all = allocator.in_order(waiting).into_iter();
        all.map(|(claim, family)| format!("{} {}", claim.machine.title(), family.is_some())).collect::<Vec<_>>()
    };
    assert_eq!(rows("n/one"), ["a/z true", "a/v true", "b/y true", "a/x false"]);
    assert_eq!(rows("n/two"), ["a/x true", "a/z true", "a/v true", "b/y true"]);
}

#[test]
fn a_pool_of_one_namespace_and_a_pool_of_a_file_serve_in_the_order_of_creation() {
    let expected = ["a/w-0", "a/w-1", "a/w-2", "a/w-3", "b/w-0", "c/w-0", "b/w-1", "c/w-1"];
    for pool in [of(&["a"], ""), of(&[], "").with_namespaces(Namespaces::every(), Namespaces::every())] {
        let mut allocator = exhausted(pool);
        assert_eq!(in_order(&allocator), expected);
        assert_eq!(release(&mut allocator, &["a/h-0", "a/h-1", "a/h-2", "a/h-3", "a/h-4"]), expected[..5]);
    }
}

#[test]
fn a_pool_for_claims_of_all_namespaces_serves_the_namespace_with_the_fewest_addresses_first() {
    let pool = of(&[], "").with_namespaces(Namespaces::only([""; 0]), Namespaces::every());
    let mut allocator = exhausted(pool);
    assert_eq!(release(&mut allocator, &["a/h-0", "a/h-1"]), ["b/w-0", "c/w-0"]);
}

#[test]
fn after_a_restart_the_namespace_with_the_fewest_addresses_is_still_served_first() {
    let before = exhausted(of(&["a", "b", "c"], ""));
    let leases = before.networks.iter().flat_map(|(network, state)| {
        let change = |(address, lease): (std::net::IpAddr, &Lease)| Change::Lease {
            network: Arc::clone(network),
            address,
            lease: Some(lease.clone()),
        };
        state.leases().map(change).collect::<Vec<_>>()
    });
    let mut after = allocator([of(&["a", "b", "c"], "")], leases);
    let counts = |allocator: &Allocator| allocator.pools["n/one"].held.values().copied().collect::<Vec<_>>();
    assert_eq!((counts(&after), counts(&before)), (vec![8, 1, 1], vec![8, 1, 1]));
    for (second, title) in ["a/w-0", "b/w-0"].into_iter().enumerate() {
        after.claim(&claim_of(title, second as u64), at(8000), &mut Journal::default()).unwrap_err();
    }
    assert_eq!(release(&mut after, &["a/h-0", "a/h-1"]), ["b/w-0", "a/w-0"]);
}

#[test]
fn a_namespace_is_not_served_earlier_when_its_leases_move_to_another_shared_pool() {
    let two = || {
        let text = "addresses: [10.0.0.30], machineNetwork: [{cidr: 10.0.0.0/24}]";
        on("vlan10", "two", text).with_namespaces(Namespaces::only(["a", "b", "c"]), Namespaces::only([""; 0]))
    };
    let mut allocator = exhausted(of(&["a", "b", "c"], ""));
    resize_all(&mut allocator, vec![two()], &[], at(8000));
    for number in 0..8 {
        let machine = claim_of(&format!("a/h-{number}"), 0).machine;
        let pools = ["n/two".to_owned()];
        assert_eq!(allocator.move_leases(&machine, &pools, &mut Journal::default()).len(), 1);
    }
    // Each address counts for the pool that has it.
    let counts = |allocator: &Allocator| {
        allocator.pools.values().map(|state| state.held.values().copied().collect::<Vec<_>>()).collect::<Vec<_>>()
    };
    assert_eq!(counts(&allocator), [vec![8, 1, 1], vec![]]);
    let expected = ["b/w-0", "c/w-0", "b/w-1", "c/w-1"];
    assert_eq!(release(&mut allocator, &["a/h-0", "a/h-1", "a/h-2", "a/h-3"]), expected);
    assert_eq!(counts(&allocator), [vec![4, 3, 3], vec![]]);
    // The counts are the same after a change of the pools.
    allocator
        .resize(vec![two(), of(&["a", "b", "c"], ", gateway: [10.0.0.1]")], &[], at(9000), &mut Journal::default())
        .unwrap();
    assert_eq!(counts(&allocator), [vec![4, 3, 3], vec![]]);
}

/// A record of ten addresses in the annotation of a machine.
fn greedy(title: &str) -> Record {
    let record = record("w", "10.0.0.10");
    let claimant = Claimant { machine: claim_of(title, 0).machine, ..record.claimant };
    let addresses = (10..20).map(|last| format!("10.0.0.{last}").parse().unwrap()).collect();
    Record { claimant, addresses, ..record }
}

fn reserved(allocator: &Allocator) -> Vec<String> {
    allocator.conflicts().map(|(_, address, it)| format!("{address} {}", it.claimant.machine.title())).collect()
}

#[test]
fn records_of_one_namespace_reserve_a_quarter_of_a_shared_pool() {
    let adopted = |pool: Pool| {
        let mut allocator = allocator([pool], []);
        hold(&mut allocator, &["b/h-0"]);
        let mut counts = Vec::new();
        let pools = |allocator: &Allocator| allocator.pools.values().map(|it| it.recorded.clone()).collect::<Vec<_>>();
        // The adoptions after later starts reserve the same addresses, and no others.
        for second in 1..4 {
            allocator.adopt([greedy("a/x"), greedy("a/y")], at(second), &mut Journal::default());
            let addresses: BTreeSet<String> = reserved(&allocator).into_iter().map(|row| row[..9].to_owned()).collect();
            counts.push((addresses.len(), allocator.leases().count()));
            // A refresh of the network computes the same counts again.
            let counted = pools(&allocator);
            assert_eq!(counted[0].values().sum::<usize>(), addresses.len());
            allocator.refresh(&[Arc::from("n/vlan10")].into());
            assert_eq!(pools(&allocator), counted);
        }
        counts
    };
    // A quarter of ten addresses is two. Both machines record each of the two addresses, so neither gets a lease.
    assert_eq!(adopted(of(&["a", "b"], "")), [(2, 1); 3]);
    let every = of(&["a", "b"], "").with_namespaces(Namespaces::every(), Namespaces::every());
    assert_eq!(adopted(every), [(10, 1); 3]);
}

/// Network data that a user wrote, with an address for the machine `namespace/name`.
fn network_data(title: &str, last: usize) -> Reservation {
    let Record { claimant, source, .. } = record("w", "10.0.0.10");
    let (machine, address) = (claim_of(title, 0).machine, format!("10.0.0.{last}").parse().unwrap());
    let claimant = Claimant { machine, ..claimant };
    Reservation { address, network: None, claimant, source, kind: Source::NetworkData }
}

fn set_aside(allocator: &mut Allocator, title: &str, last: usize) -> Vec<String> {
    let beyond = allocator.set_aside(network_data(title, last), at(1), &mut Journal::default());
    beyond.iter().map(ToString::to_string).collect()
}

#[test]
fn each_machine_with_network_data_of_a_user_keeps_its_address_of_a_shared_pool() {
    let mut allocator = allocator([of(&["a", "b"], "")], []);
    for last in 10..19 {
        assert_eq!(set_aside(&mut allocator, &format!("a/w-{last}"), last), [""; 0]);
    }
    // A machine reserves no second address, and the caller gets the reason.
    let beyond = "KubevirtMachine n/w: 10.0.0.19 of eth0 of a/w-10 (1) is ignored: records of the namespace reserve a quarter of the \
                  shared pool already";
    assert_eq!(set_aside(&mut allocator, "a/w-10", 19), [beyond]);
    // No machine of the other namespace gets an address that one of these machines may use.
    assert_eq!(given(&mut allocator, &claim_of("b/new", 1), 2), "10.0.0.19/24");
    assert_eq!(given(&mut allocator, &claim_of("b/next", 1), 2), "No available IPs in pool for interface eth0");
    assert_eq!(reserved(&allocator).len(), 9);
}

#[test]
fn a_machine_reserves_its_new_address_beyond_the_share_and_loses_the_one_before_the_last() {
    let end = |allocator: &mut Allocator, title: &str, last: usize| {
        let ended = [("n/vlan10".to_owned(), format!("10.0.0.{last}").parse().unwrap())];
        allocator.end_records(&claim_of(title, 0).machine, &ended.into(), &mut Journal::default());
    };
    let mut allocator = allocator([of(&["a", "b"], "")], []);
    for (title, last) in [("a/x", 10), ("a/y", 11), ("a/w", 12)] {
        assert_eq!(set_aside(&mut allocator, title, last), [""; 0]);
    }
    // The pass of a machine reserves the new address before it ends the record of the earlier one.
    assert_eq!(set_aside(&mut allocator, "a/w", 13).len(), 1);
    for last in 13..19 {
        end(&mut allocator, "a/w", last - 1);
        assert_eq!(set_aside(&mut allocator, "a/w", last), [""; 0]);
        let row = |(last, title): (usize, &str)| format!("10.0.0.{last} {title}");
        assert_eq!(reserved(&allocator), [(10, "a/x"), (11, "a/y"), (last - 1, "a/w"), (last, "a/w")].map(row));
    }
    assert_eq!(given(&mut allocator, &claim_of("b/new", 1), 2), "10.0.0.12/24");
    // Within the share, the earlier address stays reserved.
    release(&mut allocator, &["a/x", "a/y"]);
    end(&mut allocator, "a/w", 18);
    assert_eq!(set_aside(&mut allocator, "a/w", 19), [""; 0]);
    assert_eq!(reserved(&allocator), ["10.0.0.18 a/w", "10.0.0.19 a/w"]);
}

#[test]
fn the_address_of_network_data_is_reserved_beyond_the_share_although_the_machine_holds_another_one() {
    for kind in [Source::NetworkData, Source::MovedGuest] {
        let mut allocator = allocator([of(&["a", "b"], "")], []);
        hold(&mut allocator, &["a/w"]);
        let set_aside = |allocator: &mut Allocator, title: &str, last: usize| {
            let reservation = Reservation { kind, ..network_data(title, last) };
            allocator.set_aside(reservation, at(1), &mut Journal::default()).len()
        };
        for (title, last) in [("a/x", 11), ("a/y", 12), ("a/w", 13)] {
            assert_eq!(set_aside(&mut allocator, title, last), 0);
        }
        assert_eq!(set_aside(&mut allocator, "a/w", 14), 1, "a second address of the machine");
        assert_eq!(reserved(&allocator), ["10.0.0.11 a/x", "10.0.0.12 a/y", "10.0.0.13 a/w"]);
        assert_eq!(given(&mut allocator, &claim_of("b/new", 1), 2), "10.0.0.14/24");
    }
}

#[test]
fn each_machine_reserves_its_recorded_address_although_another_machine_has_the_lease() {
    // In a restored cluster, the ledger has earlier leases of other machines.
    let mut allocator = allocator([of(&["a", "b"], "")], []);
    let old: Vec<String> = (10..19).map(|last| format!("a/old-{last}")).collect();
    hold(&mut allocator, &old.iter().map(String::as_str).collect::<Vec<_>>());
    let records = (10..19).map(|last| {
        let record = record("w", &format!("10.0.0.{last}"));
        let machine = claim_of(&format!("a/w-{last}"), 0).machine;
        Record { claimant: Claimant { machine, ..record.claimant }, ..record }
    });
    let adoption = allocator.adopt(records, at(1), &mut Journal::default());
    assert!(adoption.mismatches.iter().all(|it| matches!(it.problem, Problem::Duplicate(_))), "{adoption:?}");
    assert_eq!((adoption.mismatches.len(), reserved(&allocator).len()), (9, 9));
    assert_eq!(release(&mut allocator, &old.iter().map(String::as_str).collect::<Vec<_>>()), [""; 0]);
    assert_eq!(given(&mut allocator, &claim_of("b/new", 1), 9001), "10.0.0.19/24");
    assert_eq!(given(&mut allocator, &claim_of("b/next", 1), 9001), "No available IPs in pool for interface eth0");
}

#[test]
fn one_recorded_address_for_each_interface_is_reserved_beyond_the_share_of_the_namespace() {
    let pool = of(&["a", "b"], "");
    let mut other = pool.clone();
    (other.name, other.interface) = ("n/two".to_owned(), "eth1".parse().unwrap());
    for (pools, expected) in [(vec![pool.clone()], 2), (vec![pool, other], 3)] {
        let mut allocator = allocator(pools, []);
        set_aside(&mut allocator, "a/x", 10);
        set_aside(&mut allocator, "a/y", 11);
        // A record can name any number of interfaces.
        for last in 12..18 {
            let mut reservation = network_data("a/x", last);
            reservation.claimant.interface = format!("eth{last}").parse().unwrap();
            allocator.set_aside(reservation, at(1), &mut Journal::default());
        }
        assert_eq!(reserved(&allocator).len(), expected);
    }
}

/// Adopts the record of the IPAMClaim `namespace/name` with these addresses. Returns the number of ignored addresses.
fn adopt_claim(allocator: &mut Allocator, title: &str, addresses: RangeInclusive<usize>) -> usize {
    let Record { claimant, .. } = record("w", "10.0.0.10");
    let record = Record {
        claimant: Claimant { machine: claim_of(title, 0).machine.of_kind(HolderKind::IpamClaim), ..claimant },
        node_pool: Some("n/one".to_owned()),
        addresses: addresses.map(|last| format!("10.0.0.{last}").parse().unwrap()).collect(),
        kind: Source::IpamClaim,
        ..record("w", "10.0.0.10")
    };
    let adoption = allocator.adopt([record], at(1), &mut Journal::default());
    adoption.mismatches.iter().filter(|it| it.problem == Problem::Ignored(Ignored::Share)).count()
}

#[test]
fn the_status_of_a_claim_reserves_a_further_address_only_within_the_share_of_its_namespace() {
    let mut allocator = allocator([of(&["a", "b"], "")], []);
    hold(&mut allocator, &["b/h-0"]);
    // The claim gets the lease of its first address. A quarter of ten addresses is two.
    assert_eq!(adopt_claim(&mut allocator, "a/c", 11..=14), 1);
    assert_eq!(adopt_claim(&mut allocator, "a/c", 15..=19), 5);
    assert_eq!(reserved(&allocator), ["10.0.0.12 a/c", "10.0.0.13 a/c"]);
    // The guests of other claims may use their addresses, although the ledger has earlier leases of other machines.
    assert_eq!(adopt_claim(&mut allocator, "a/d", 10..=11), 1);
    assert_eq!(adopt_claim(&mut allocator, "a/e", 11..=12), 1);
    let expected = ["10.0.0.10 a/d", "10.0.0.11 a/e", "10.0.0.12 a/c", "10.0.0.13 a/c"];
    assert_eq!(reserved(&allocator), expected);
    assert_eq!(given(&mut allocator, &claim_of("b/new", 1), 2), "10.0.0.14/24");
}

#[test]
fn records_of_a_namespace_count_while_it_has_leases_even_if_the_pool_no_longer_serves_it() {
    let before = {
        let mut allocator = allocator([of(&["a", "b"], "")], []);
        hold(&mut allocator, &["a/h-0"]);
        allocator
    };
    let leases = before.leases().map(|(network, address, lease)| Change::Lease {
        network: Arc::from(network),
        address,
        lease: Some(lease.clone()),
    });
    // A new leader has the leases, and the pool no longer serves namespace `a`. No machine of `c` holds an address.
    let mut after = allocator([of(&["b", "d"], "")], leases);
    for title in ["a/w", "c/w"] {
        assert_eq!(set_aside(&mut after, title, 11), [""; 0]);
    }
    assert_eq!(reserved(&after), ["10.0.0.11 a/w"]);
    let state = after.conflicts().map(|(.., it)| it.state).collect::<Vec<_>>();
    assert_eq!(state, [State::ByRecord]);
    assert_eq!(given(&mut after, &claim_of("b/new", 1), 2), "10.0.0.12/24");
    // An annotation also reserves an address without a lease. The share of the namespace limits annotations, too.
    let adoption = after.adopt([greedy("a/x")], at(3), &mut Journal::default());
    assert_eq!((adoption.adopted, after.leases().count()), (0, 2));
    assert_eq!(reserved(&after), ["10.0.0.10 a/x", "10.0.0.11 a/w", "10.0.0.11 a/x"]);
    let beyond = adoption.mismatches.iter().filter(|it| it.problem == Problem::Ignored(Ignored::Share));
    assert_eq!(beyond.count(), 8);
}

#[test]
fn records_of_a_namespace_count_in_its_former_pool_after_its_leases_moved_to_a_new_pool() {
    let mut allocator = allocator([of(&["a", "b"], "")], []);
    hold(&mut allocator, &["a/h-0"]);
    let text = "addresses: [10.0.0.30], machineNetwork: [{cidr: 10.0.0.0/24}]";
    let own = on("vlan10", "two", text).with_namespaces(Namespaces::only(["a"]), Namespaces::only(["a"]));
    resize_all(&mut allocator, vec![of(&["b"], ""), own], &[], at(1));
    let moved = allocator.move_leases(&claim_of("a/h-0", 0).machine, &["n/two".to_owned()], &mut Journal::default());
    assert_eq!(moved.len(), 1);
    set_aside(&mut allocator, "a/w", 11);
    assert_eq!(reserved(&allocator), ["10.0.0.11 a/w"]);
    assert_eq!(given(&mut allocator, &claim_of("b/new", 1), 2), "10.0.0.12/24");
    // The share still limits the namespace, although the pool serves one namespace now: a quarter of ten addresses.
    allocator.adopt([greedy("a/x")], at(3), &mut Journal::default());
    assert_eq!(reserved(&allocator), ["10.0.0.10 a/x", "10.0.0.11 a/w", "10.0.0.11 a/x"]);
}

/// Reserves an address for an object without a machine or claim. Returns whether the address is reserved.
fn set_aside_alone(allocator: &mut Allocator, title: &str, last: usize, kind: Source) -> bool {
    let of = match kind {
        Source::LoneIpAddress => HolderKind::IpAddressClaim,
        _ => HolderKind::VirtualMachine,
    };
    let mut reservation = Reservation { kind, ..network_data(title, last) };
    reservation.claimant.machine = reservation.claimant.machine.of_kind(of);
    allocator.set_aside(reservation, at(1), &mut Journal::default()).is_empty()
}

#[test]
fn instances_that_never_ran_reserve_only_the_share_of_their_namespace() {
    let mut allocator = allocator([of(&["a", "b"], "")], []);
    let set_aside =
        |allocator: &mut Allocator, last: usize, kind| set_aside_alone(allocator, &format!("a/i-{last}"), last, kind);
    let done = (10..20).map(|last| set_aside(&mut allocator, last, Source::IdleInstance));
    assert_eq!(done.filter(|is_reserved| *is_reserved).count(), 2);
    // An instance that runs reserves its first address beyond the share.
    assert!(set_aside(&mut allocator, 19, Source::NetworkData));
    assert_eq!(reserved(&allocator), ["10.0.0.10 a/i-10", "10.0.0.11 a/i-11", "10.0.0.19 a/i-19"]);
}

#[test]
fn ipaddresses_without_a_claim_reserve_only_the_share_even_if_the_addresses_are_held() {
    let mut allocator = allocator([of(&["a", "b"], "")], []);
    let holders: Vec<String> = (0..8).map(|at| format!("b/h-{at}")).collect();
    let holders: Vec<&str> = holders.iter().map(String::as_str).collect();
    hold(&mut allocator, &holders);
    let set_aside = |allocator: &mut Allocator, name: &str, last: usize| {
        set_aside_alone(allocator, name, last, Source::LoneIpAddress)
    };
    let done: Vec<bool> = (10..18).map(|last| set_aside(&mut allocator, &format!("a/lone-{last}"), last)).collect();
    assert_eq!(done, [true, true, false, false, false, false, false, false]);
    // A later IPAddress with an address that the share has needs no further place.
    assert!(set_aside(&mut allocator, "a/again", 10));
    let expected = ["10.0.0.10 a/again", "10.0.0.10 a/lone-10", "10.0.0.11 a/lone-11"];
    assert_eq!(reserved(&allocator), expected);
    assert_eq!(release(&mut allocator, &holders), [""; 0]);
    assert_eq!(given(&mut allocator, &claim_of("b/new", 1), 9001), "10.0.0.12/24");
}

#[test]
fn network_data_with_the_addresses_of_claims_leaves_the_share_to_ipaddresses_without_a_claim() {
    let mut allocator = allocator([of(&["a", "b"], "")], []);
    for number in 0..5 {
        let claim = of_kind(HolderKind::IpAddressClaim, claim_of(&format!("a/c-{number}"), 0));
        allocator.claim(&claim, at(0), &mut Journal::default()).unwrap();
        assert_eq!(set_aside(&mut allocator, &format!("a/w-{number}"), 10 + number), [""; 0]);
    }
    assert_eq!((allocator.leases().count(), allocator.conflicts().count()), (5, 5));
    let mut lone = |last| set_aside_alone(&mut allocator, &format!("a/lone-{last}"), last, Source::LoneIpAddress);
    assert_eq!((15..18).map(&mut lone).collect::<Vec<_>>(), [true, true, false]);
}

#[test]
fn each_machine_reserves_its_address_although_the_annotation_of_another_namespace_has_all_addresses() {
    let mut allocator = allocator([of(&["a", "b"], "")], []);
    let honest = |name: &str, last: usize| {
        let record = record(name, &format!("10.0.0.{last}"));
        Record { claimant: Claimant { machine: Machine::new("b", name, "1"), ..record.claimant }, ..record }
    };
    let honest = (10..16).map(|last| honest(&format!("h-{last}"), last));
    allocator.adopt([greedy("a/x")].into_iter().chain(honest), at(1), &mut Journal::default());
    let of_honest = (10..16).map(|last| format!("10.0.0.{last} b/h-{last}"));
    let of_greedy = [10, 11].map(|last| format!("10.0.0.{last} a/x"));
    let expected: BTreeSet<String> = of_honest.chain(of_greedy).collect();
    assert_eq!(reserved(&allocator).into_iter().collect::<BTreeSet<_>>(), expected);
    // None of the recorded addresses goes to another machine.
    let next = allocator.claim(&claim_of("b/new", 1), at(2), &mut Journal::default()).unwrap();
    assert!(!(10..16).any(|last| next[0].addresses[0].ip().to_string() == format!("10.0.0.{last}")), "{next:?}");
    assert_eq!(allocator.conflicts().filter(|(.., it)| it.state != State::Mismatch).count(), 0);
}

#[test]
fn two_namespaces_that_record_the_same_addresses_reserve_no_more_than_the_share_of_each() {
    let other = |last| Reservation { kind: Source::Unreadable, ..network_data("c/w", last) };
    let mut allocator = allocator([of(&["a", "b", "c"], "")], []);
    for round in 0..4 {
        // The machine of `a` records two addresses within the share of `a`, and one machine of `c` records them, too.
        let title = format!("a/v-{round}");
        for last in [10 + 2 * round, 11 + 2 * round] {
            assert_eq!(set_aside(&mut allocator, &title, last), [""; 0]);
            allocator.set_aside(other(last), at(1), &mut Journal::default());
        }
        release(&mut allocator, &[&title]);
    }
    assert_eq!(reserved(&allocator), ["10.0.0.10 c/w", "10.0.0.11 c/w"]);
}

#[test]
fn machines_that_come_and_go_leave_no_address_beyond_the_share_to_a_machine_that_stays() {
    let mut allocator = allocator([of(&["a", "b"], "")], []);
    for last in [10, 11] {
        assert_eq!(set_aside(&mut allocator, "a/x", last), [""; 0]);
    }
    for last in 12..16 {
        let title = format!("a/t-{last}");
        assert_eq!(set_aside(&mut allocator, &title, last), [""; 0], "the first address of a machine");
        set_aside(&mut allocator, "a/x", last);
        release(&mut allocator, &[&title]);
    }
    assert_eq!(reserved(&allocator), ["10.0.0.10 a/x", "10.0.0.11 a/x"]);
}

#[test]
fn a_global_pool_whose_node_pools_do_not_exist_is_shared() {
    let mut pool = of(&["a"], "").with_namespaces(Namespaces::of_clusters_in("a"), Namespaces::of_clusters_in("a"));
    assert!(!pool.is_shared());
    pool.name = "one".to_owned();
    assert!(pool.is_shared());
    assert!(!pool.with_namespaces(Namespaces::only(["a"]), Namespaces::only(["a"])).is_shared());
}
