//! Tests of overflow pools: requests that name several pools.

use super::*;
use crate::host::ledger::MemoryLedger;
use crate::host::registry::Registry;

/// A pool of `n/vlan10` with these addresses. The pool has an IPv6 subnet only if it has IPv6 addresses.
fn of(name: &str, addresses: &str) -> Pool {
    let subnets = match addresses.contains(':') {
        true => "{cidr: 10.0.0.0/24}, {cidr: 'fd00::/64'}",
        false => "{cidr: 10.0.0.0/24}",
    };
    on("vlan10", name, &format!("addresses: [{addresses}], machineNetwork: [{subnets}]"))
}

/// A claim for an address of the first pool, or else of one of the other pools.
fn group(name: &str, pools: &[&str]) -> Claim {
    let [first, overflow @ ..] = pools else { panic!("no pool") };
    let overflow = overflow.iter().map(|pool| (*pool).to_owned()).collect();
    Claim { requests: vec![Request { overflow, ..Request::of(first) }], ..claim(name, "1", &[]) }
}

fn both(name: &str) -> Claim {
    group(name, &["n/a", "n/b"])
}

fn release(allocator: &mut Allocator, name: &str, now: u64) -> Vec<String> {
    allocator.release(&machine(name, "1"), at(now), &mut Journal::default());
    let served = allocator.serve(at(now), &mut Journal::default());
    let lines = served.iter().map(|it| format!("{} {}", it.claimant.machine.name, it.addresses[0]));
    lines.collect()
}

const EXHAUSTED: &str = "No available IPs in pool for interface eth0";

#[test]
fn the_overflow_allocates_when_the_first_pool_is_exhausted() {
    let mut allocator = allocator([of("a", "10.0.0.10"), of("b", "10.0.0.20"), of("c", "10.0.0.30")], []);
    let all = |name| group(name, &["n/c", "n/a", "n/b"]);
    let given: Vec<String> = ["v", "w", "x", "y"].map(|name| given(&mut allocator, &all(name), 1)).into();
    assert_eq!(given, ["10.0.0.30/24", "10.0.0.10/24", "10.0.0.20/24", EXHAUSTED]);
    let leases = ["10.0.0.10/24 n/a w", "10.0.0.20/24 n/b x", "10.0.0.30/24 n/c v"];
    assert_eq!(held(&allocator), leases.map(|lease| format!("n/vlan10 {lease}")));
    let error = allocator.claim(&all("y"), at(2), &mut Journal::default()).unwrap_err();
    let of = |pool: &str| (pool.to_owned(), Family::Ipv4);
    let ClaimError::Exhausted { interface, pool, family, overflow } = error else { panic!("{error}") };
    assert_eq!((pool, family, &overflow[..]), ("n/c".to_owned(), Family::Ipv4, &[of("n/a"), of("n/b")][..]));
    let families = [("n/c", vec![family]), ("n/a", vec![Family::Ipv4, Family::Ipv6])];
    let message = "No available IPs in pool for interface eth0: pool n/c, IPv4; pool n/a, IPv4 and IPv6";
    assert_eq!(exhausted_message(interface, families), message);
}

#[test]
fn all_families_of_an_interface_come_from_one_pool() {
    let a = of("a", "10.0.0.10-10.0.0.12, 'fd00::a'");
    let b = of("b", "10.0.0.20-10.0.0.21, 'fd00::b-fd00::c'");
    let mut allocator = allocator([a, b], []);
    assert_eq!(given(&mut allocator, &both("v"), 1), "10.0.0.10/24 fd00::a/64");
    // The first pool has free IPv4 addresses, but no free IPv6 address.
    assert_eq!(given(&mut allocator, &both("w"), 1), "10.0.0.20/24 fd00::b/64");
    assert_eq!(allocator.usage(at(1))["n/a"].families[0].free, 2);
    // A machine that holds an address of one family gets the address of the other family from the same pool, and waits
    // for this pool alone.
    let of_a = Record { node_pool: Some("n/a".to_owned()), ..record("x", "10.0.0.12/24") };
    assert_eq!(allocator.adopt([of_a], at(1), &mut Journal::default()).adopted, 1);
    assert_eq!(given(&mut allocator, &both("x"), 2), EXHAUSTED);
    let error = allocator.claim(&both("x"), at(2), &mut Journal::default()).unwrap_err();
    let expected = ClaimError::Exhausted {
        interface: "eth0".parse().unwrap(),
        pool: "n/a".to_owned(),
        family: Family::Ipv6,
        overflow: Vec::new(),
    };
    assert_eq!(error, expected);
    assert_eq!(release(&mut allocator, "w", 3), [""; 0]);
    assert_eq!(release(&mut allocator, "v", 3), ["x 10.0.0.12/24"]);
}

#[test]
fn a_machine_waits_only_while_every_pool_is_exhausted_and_the_oldest_is_served_first() {
    let mut allocator = allocator([of("a", "10.0.0.10"), of("b", "10.0.0.20")], []);
    for name in ["v", "w"] {
        given(&mut allocator, &both(name), 1);
    }
    let older = |claim: Claim, created| Claim { created: at(created), ..claim };
    let waiting = [
        older(both("third"), 30),
        older(group("second", &["n/b"]), 20),
        older(both("first"), 10),
        older(group("fourth", &["n/a"]), 40),
    ];
    for claim in &waiting {
        assert_eq!(given(&mut allocator, claim, 50), EXHAUSTED);
    }
    let usage = allocator.usage(at(50));
    assert_eq!(["n/a", "n/b"].map(|pool| usage[pool].waiting), [3, 3]);
    assert_eq!(release(&mut allocator, "w", 51), ["first 10.0.0.20/24"]);
    assert_eq!(release(&mut allocator, "first", 52), ["second 10.0.0.20/24"]);
    assert_eq!(release(&mut allocator, "v", 53), ["third 10.0.0.10/24"]);
    let served = resize(&mut allocator, of("b", "10.0.0.20-10.0.0.21")).served;
    assert_eq!(served, [], "the last machine waits for the other pool");
    assert_eq!(release(&mut allocator, "third", 54), ["fourth 10.0.0.10/24"]);
}

#[test]
fn a_lease_of_the_overflow_stays_when_the_first_pool_has_free_addresses_again() {
    let mut allocator = allocator([of("a", "10.0.0.10"), of("b", "10.0.0.20"), of("c", "10.0.0.30")], []);
    for name in ["v", "w"] {
        given(&mut allocator, &both(name), 1);
    }
    release(&mut allocator, "v", 2);
    assert_eq!(given(&mut allocator, &both("w"), 3), "10.0.0.20/24");
    let move_leases = |allocator: &mut Allocator, name: &str, pools: &[&str]| {
        let pools: Vec<String> = pools.iter().map(|pool| (*pool).to_owned()).collect();
        allocator.move_leases(&machine(name, "1"), &pools, &mut Journal::default());
        held(allocator)
    };
    let lease = |pool: &str| vec![format!("n/vlan10 10.0.0.20/24 {pool} w")];
    assert_eq!(move_leases(&mut allocator, "w", &["n/a", "n/b"]), lease("n/b"));
    // When pool `b` no longer serves the machine, the lease moves to pool `a`, which does not have the address. When
    // `b` serves the machine again, the lease moves back.
    assert_eq!(move_leases(&mut allocator, "w", &["n/a", "n/c"]), lease("n/a"));
    assert_eq!(move_leases(&mut allocator, "w", &["n/c", "n/b"]), lease("n/b"));
    // A claim moves a lease by the same rule.
    assert_eq!(given(&mut allocator, &group("w", &["n/a", "n/c"]), 4), "10.0.0.20/24");
    assert_eq!(held(&allocator), lease("n/a"));
    assert_eq!(given(&mut allocator, &group("w", &["n/c", "n/b"]), 4), "10.0.0.20/24");
    assert_eq!(held(&allocator), lease("n/b"));
}

#[test]
fn requested_pre_allocated_and_remembered_addresses_come_from_the_pool_that_has_them() {
    let kept =
        "addresses: [10.0.0.30-10.0.0.31], machineNetwork: [{cidr: 10.0.0.0/24}], preAllocations: {w: 10.0.0.31}";
    let mut allocator = allocator([of("a", "10.0.0.10-10.0.0.12"), of("b", "10.0.0.20"), on("vlan10", "c", kept)], []);
    let all = |name: &str| group(name, &["n/a", "n/b", "n/c"]);
    let named = |name: &str, address: &str| {
        let mut claim = all(name);
        claim.requests[0].addresses.push(address.parse().unwrap());
        claim
    };
    assert_eq!(given(&mut allocator, &named("v", "10.0.0.20"), 1), "10.0.0.20/24");
    assert_eq!(given(&mut allocator, &named("u", "10.0.0.99"), 1), r#"10.0.0.99: not in pool "n/a""#);
    assert_eq!(given(&mut allocator, &all("w"), 1), "10.0.0.31/24");
    release(&mut allocator, "v", 2);
    // A sticky claim gets the last address of its name, even from the overflow pool.
    let again = Claim { sticky: true, machine: machine("v", "2"), ..all("v") };
    assert_eq!(given(&mut allocator, &again, 3), "10.0.0.20/24");
    assert_eq!(given(&mut allocator, &Claim { machine: machine("v", "3"), ..again.clone() }, 3), "10.0.0.10/24");
    allocator.release(&machine("v", "3"), at(4), &mut Journal::default());
    allocator.release(&machine("v", "2"), at(5), &mut Journal::default());
    assert_eq!(given(&mut allocator, &Claim { machine: machine("v", "4"), ..again }, 6), "10.0.0.20/24");
}

#[test]
fn unknown_and_suspended_pools_are_skipped() {
    let mut allocator = allocator([of("a", "10.0.0.10"), of("b", "10.0.0.20")], []);
    assert_eq!(given(&mut allocator, &group("u", &["n/gone", "n/a"]), 1), "10.0.0.10/24");
    assert_eq!(given(&mut allocator, &group("u", &["n/gone", "n/away"]), 1), r#"unknown pool "n/gone""#);
    release(&mut allocator, "u", 2);
    allocator.suspend(["n/a".to_owned()].into());
    assert_eq!(given(&mut allocator, &both("v"), 3), "10.0.0.20/24");
    assert_eq!(given(&mut allocator, &both("w"), 3), EXHAUSTED);
    allocator.suspend(["n/a".to_owned(), "n/b".to_owned()].into());
    assert_eq!(given(&mut allocator, &both("x"), 3), r#"pool "n/a" allocates nothing for now"#);
    allocator.suspend(BTreeSet::new());
    assert_eq!(allocator.open_up_to(u64::MAX, at(4), &mut Journal::default()).len(), 1);
}

#[test]
fn a_pool_with_another_network_or_interface_or_other_families_cannot_be_an_overflow() {
    let pools = [
        of("a", "10.0.0.10"),
        of("b", "10.0.0.20, 'fd00::a'"),
        on("vlan20", "c", "addresses: [10.0.0.0/24]"),
        pool("d", "eth1", "addresses: [10.0.0.0/24]"),
        external("e", ""),
    ];
    let mut allocator = allocator(pools, []);
    let mut refused = |pools: &[&str]| given(&mut allocator, &group("v", pools), 1);
    let line = |rest: &str| format!("pool n/{rest}");
    let families = line("b cannot be the overflow of pool n/a: families IPv4 and IPv6, expected IPv4");
    assert_eq!(refused(&["n/a", "n/b"]), families);
    let network = line("c cannot be the overflow of pool n/a: network n/vlan20, expected n/vlan10");
    assert_eq!(refused(&["n/a", "n/c"]), network);
    let interface = line("d cannot be the overflow of pool n/a: interface eth1, expected eth0");
    assert_eq!(refused(&["n/a", "n/d"]), interface);
    let external = |rest: &str| line(&format!("{rest}: addressesFrom another program, expected none"));
    assert_eq!(refused(&["n/a", "n/e"]), external("e cannot be the overflow of pool n/a"));
    assert_eq!(refused(&["n/e", "n/a"]), external("a cannot be the overflow of pool n/e"));
    assert_eq!(allocator.waiters(), Vec::<&Claim>::new());
}

#[test]
fn a_waiting_claim_gets_the_new_name_of_its_renamed_overflow_pool() {
    let mut allocator = allocator([of("a", "10.0.0.10"), of("b", "10.0.0.20")], []);
    for name in ["v", "w", "x"] {
        given(&mut allocator, &both(name), 1);
    }
    let rename = Rename { old: "n/b".to_owned(), new: "n/c".to_owned() };
    let new = vec![of("c", "10.0.0.20-10.0.0.21")];
    let resized = resize_all(&mut allocator, new, &[rename], at(2));
    assert_eq!(resized.served[0].addresses, ["10.0.0.21/24".parse().unwrap()]);
    assert_eq!(held(&allocator)[2], "n/vlan10 10.0.0.21/24 n/c x");
}

#[test]
fn a_machine_waits_for_closed_addresses_of_the_first_pool_and_gets_none_of_the_overflow() {
    let mut registry = Registry::open(MemoryLedger::default()).unwrap();
    let open = |registry: &mut Registry<MemoryLedger>, second| {
        let growth = registry.growth();
        let served = registry.open_up_to(growth, at(second)).unwrap();
        let lines = served.iter().map(|it| format!("{} {}", it.claimant.machine.name, it.addresses[0]));
        lines.collect::<Vec<_>>()
    };
    registry.resize([of("b", "10.0.0.20-10.0.0.22")], &[], at(0)).unwrap();
    assert_eq!(open(&mut registry, 0), [""; 0]);
    registry.resize([of("a", "10.0.0.10"), of("b", "10.0.0.20-10.0.0.22")], &[], at(0)).unwrap();
    for name in ["v", "w"] {
        assert_eq!(
            registry.claim(&both(name), at(1)).unwrap_err().to_string(),
            ClaimError::Closed("n/a".to_owned()).to_string()
        );
    }
    // A claim that names only pool `b` is served.
    assert_eq!(registry.claim(&group("x", &["n/b"]), at(1)).unwrap()[0].addresses[0].to_string(), "10.0.0.20/24");
    // The first pool has only one address. The overflow pool serves the second machine.
    assert_eq!(open(&mut registry, 2), ["v 10.0.0.10/24", "w 10.0.0.21/24"]);
    // The first pool is exhausted, and the new address of the overflow pool is closed until its records are adopted:
    // the machine waits until the address is open.
    registry.resize([of("c", "10.0.0.30")], &[], at(3)).unwrap();
    let closed = registry.claim(&group("y", &["n/a", "n/c"]), at(3)).unwrap_err();
    assert_eq!(closed.to_string(), ClaimError::Closed("n/c".to_owned()).to_string());
    assert_eq!(open(&mut registry, 4), ["y 10.0.0.30/24"]);
}

/// An allocator in which a machine holds 10.0.0.10 of pool `a` with a lease of pool `b`.
fn moved(a: Pool) -> Allocator {
    let mut allocator = allocator([a, of("b", "10.0.0.20")], []);
    assert_eq!(given(&mut allocator, &group("v", &["n/a"]), 1), "10.0.0.10/24");
    allocator.move_leases(&machine("v", "1"), &["n/b".to_owned()], &mut Journal::default());
    assert_eq!(held(&allocator), ["n/vlan10 10.0.0.10/24 n/b v"]);
    allocator
}

#[test]
fn the_reuse_delay_is_the_longer_one_of_the_pool_with_the_address_and_the_pool_of_the_lease() {
    for (delay, free_after) in [(0, 500), (1_000, 1_000)] {
        let mut allocator = moved(of("a", "10.0.0.10").with_reuse_delay(Duration::from_millis(delay)));
        resize(&mut allocator, of("b", "10.0.0.20").with_reuse_delay(Duration::from_millis(500)));
        allocator.release(&machine("v", "1"), at(1_000), &mut Journal::default());
        let now = 1_000 + free_after;
        assert_eq!(given(&mut allocator, &group("w", &["n/a"]), now - 1), EXHAUSTED, "{delay}");
        assert_eq!(given(&mut allocator, &group("w", &["n/a"]), now), "10.0.0.10/24", "{delay}");
    }
}

#[test]
fn a_lease_takes_the_prefix_length_of_the_pool_that_has_its_address() {
    let with_prefix = |name: &str, addresses: &str, prefix: u8| {
        let text = format!("addresses: [{addresses}], machineNetwork: [{{cidr: 10.0.0.0/{prefix}}}]");
        on("vlan10", name, &text)
    };
    let mut allocator = moved(of("a", "10.0.0.10"));
    assert_eq!(resize(&mut allocator, with_prefix("b", "10.0.0.20", 22)).prefix_changed, []);
    assert_eq!(resize(&mut allocator, with_prefix("a", "10.0.0.10", 23)).prefix_changed.len(), 1);
    assert_eq!(held(&allocator), ["n/vlan10 10.0.0.10/23 n/b v"]);
    // An address that no pool has keeps its prefix length.
    assert_eq!(resize(&mut allocator, with_prefix("a", "10.0.0.11", 22)).prefix_changed, []);
    // Now the pool of the lease has the address.
    assert_eq!(resize(&mut allocator, with_prefix("b", "10.0.0.10", 21)).prefix_changed.len(), 1);
    assert_eq!(held(&allocator), ["n/vlan10 10.0.0.10/21 n/b v"]);
}
