//! Tests of records of each kind, and of the reports of guests.

use std::net::IpAddr;

use super::users::two_users;
use super::*;
use crate::host::claim::{Allocation, Conflict, HolderKind};
use crate::host::may_record::Ignored;
use crate::host::pool::Namespaces;

/// A pool of network `n/vlan10` for the machines and claims of one namespace.
fn of_namespace(name: &str, namespace: &str, rest: &str) -> Pool {
    let only = || Namespaces::only([namespace]);
    let rest = format!("{rest}, machineNetwork: [{{cidr: 10.0.0.0/24}}]");
    on("vlan10", name, &rest).with_namespaces(only(), only())
}

fn adopt(allocator: &mut Allocator, records: &[Record]) -> (usize, usize, Vec<String>) {
    let adoption = allocator.adopt(records.iter().cloned(), at(1), &mut Journal::default());
    (adoption.adopted, adoption.reserved.len(), adoption.mismatches.iter().map(ToString::to_string).collect())
}

/// Returns the address, the name of the machine and the state of each record without a lease.
fn conflicts(allocator: &Allocator) -> Vec<(String, String, String)> {
    let row = |(_, address, conflict): (&str, IpAddr, Conflict)| {
        (address.to_string(), conflict.claimant.machine.name, format!("{:?}", conflict.state))
    };
    allocator.conflicts().map(row).collect()
}

fn row(address: &str, name: &str, state: &str) -> (String, String, String) {
    (address.to_owned(), name.to_owned(), state.to_owned())
}

fn report(name: &str, address: &str) -> Reservation {
    let Record { claimant, addresses, .. } = record(name, address);
    let network = Some("n/vlan10".to_owned());
    Reservation { address: addresses[0].ip(), network, claimant, source: format!("guest {name}"), kind: Source::Report }
}

/// Replaces all reports. Returns the begun and the ended reports, sorted. Each report is given as address, name of the
/// guest, state (`own`, `reserved` or `conflict`), and name of the holder.
fn set_reports(allocator: &mut Allocator, reports: &[Reservation], now: u64) -> (Vec<String>, Vec<String>) {
    let is_over = |known: &Reported| {
        !reports.iter().any(|report| report.address == known.address && report.claimant == known.claimant)
    };
    let ended = allocator.reports().into_iter().filter(is_over);
    let ended = ended.map(|Reported { network, address, claimant, source, .. }| {
        let (network, kind) = (Some(network), Source::Report);
        Reservation { address, network, claimant, source, kind }
    });
    let changes = allocator.change_reports(reports, &ended.collect::<Vec<_>>(), at(now));
    let text = |reported: &Reported| {
        let state = match (reported.is_reserved, reported.is_conflict) {
            (false, _) => "own",
            (true, false) => "reserved",
            (true, true) => "conflict",
        };
        let holder = reported.holder.as_ref().map_or("-", |holder| &holder.machine.name);
        format!("{} {} {state} {holder}", reported.address, reported.claimant.machine.name)
    };
    let texts = |reported: &[Reported]| -> Vec<String> {
        reported.iter().map(text).collect::<BTreeSet<String>>().into_iter().collect()
    };
    (texts(&changes.begun), texts(&changes.ended))
}

#[test]
fn a_record_reserves_its_address_in_a_pool_of_its_namespace_that_serves_no_machine() {
    let none = Namespaces::only([""; 0]);
    let pool = of_namespace("one", "n", "addresses: [10.0.0.0/27]");
    let mut allocator = allocator([pool.with_namespaces(none, Namespaces::only(["n"]))], []);
    let mut foreign = record("b", "10.0.0.6");
    foreign.claimant.machine.namespace = "m".to_owned();
    let ignored = "KubevirtMachine n/b: 10.0.0.6 of eth0 of m/b (1) is ignored: no pool that serves the namespace has the address";
    let mismatches = ["KubevirtMachine n/a: 10.0.0.5 of eth0 of n/a (1) belongs to no pool", ignored];
    let mismatches = mismatches.map(str::to_owned).to_vec();
    assert_eq!(adopt(&mut allocator, &[record("a", "10.0.0.5"), foreign]), (0, 0, mismatches));
    assert_eq!(conflicts(&allocator), [row("10.0.0.5", "a", "Mismatch")]);
}

#[test]
fn a_pool_that_serves_no_machine_does_not_limit_the_records_of_its_namespace() {
    let none = Namespaces::only([""; 0]);
    let pool = of_namespace("one", "n", "addresses: [10.0.0.8/29]");
    let mut allocator = allocator([pool.with_namespaces(none, Namespaces::only(["n"]))], []);
    let several = |name: &str, addresses: [&str; 2]| {
        let [first, second] = addresses.map(|address| record(name, address).addresses[0]);
        Record { addresses: vec![first, second], kind: Source::NetworkData, ..record(name, addresses[0]) }
    };
    let records = [several("a", ["10.0.0.8", "10.0.0.9"]), several("b", ["10.0.0.10", "10.0.0.11"])];
    adopt(&mut allocator, &records);
    let addresses: Vec<String> = conflicts(&allocator).into_iter().map(|(address, ..)| address).collect();
    assert_eq!(addresses, ["10.0.0.8", "10.0.0.9", "10.0.0.10", "10.0.0.11"]);
}

#[test]
fn one_claim_reserves_at_most_16_addresses_without_a_lease() {
    let mut allocator = allocator([of_namespace("one", "n", "addresses: [10.0.0.0/24]")], []);
    let mut ignored = Vec::new();
    for first in [8, 24, 40] {
        let Record { claimant, .. } = record("c", "10.0.0.8");
        let machine = claimant.machine.clone().of_kind(HolderKind::IpamClaim);
        let addresses: Vec<String> = (first..first + 15).map(|last| format!("10.0.0.{last}")).collect();
        // The claim holds the first address of the first record.
        let mut all = vec!["10.0.0.8".parse().unwrap()];
        all.extend(addresses.iter().map(|address| address.parse::<IpNetwork>().unwrap()));
        let claimant = Claimant { machine: machine.clone(), ..claimant };
        let node_pool = Some("n/one".to_owned());
        let record = Record { claimant, node_pool, addresses: all, kind: Source::IpamClaim, ..record("c", "10.0.0.8") };
        let adoption = allocator.adopt([record], at(1), &mut Journal::default());
        let is_ignored = |it: &&Mismatch| it.problem == Problem::Ignored(Ignored::Claim);
        ignored.push(adoption.mismatches.iter().filter(is_ignored).count());
        // The next status of the claim no longer has these addresses.
        let ended = addresses.iter().map(|address| ("n/vlan10".to_owned(), address.parse().unwrap())).collect();
        allocator.end_records(&machine, &ended, &mut Journal::default());
        assert_eq!(allocator.reserved_by_records_of(&machine).count(), 0);
    }
    // 14 addresses of the first record, and two of the second.
    assert_eq!((ignored, conflicts(&allocator).len(), allocator.leases().count()), (vec![0, 13, 15], 16, 1));
}

#[test]
fn a_record_becomes_a_lease_or_reserves_its_address_or_is_ignored_as_its_source_and_standing_require() {
    let one = of_namespace(
        "one",
        "n",
        "addresses: [10.0.0.0/27], gateway: [10.0.0.1], nameservers: [10.0.0.2], excludedAddresses: [10.0.0.3], \
         preAllocations: {db: 10.0.0.4, web: 10.0.0.7}",
    );
    let other = of_namespace("two", "m", "addresses: [10.0.0.64/27], nameservers: [10.0.0.200]");
    let mut allocator = allocator([one, other], []);
    given(&mut allocator, &claim("a", "1", &["n/one"]), 0);
    let records = [
        record("a", "10.0.0.5"),
        record("b", "10.0.0.5"),
        record("c", "10.0.0.1"),
        record("d", "10.0.0.2"),
        record("e", "10.0.0.3"),
        record("db", "10.0.0.4"),
        record("f", "10.0.0.7"),
        record("g", "10.0.0.0"),
        record("h", "10.0.0.40"),
        record("i", "10.0.0.65"),
        record("j", "10.0.0.200"),
        record("k", "10.0.0.6"),
        Record { network: Some("n/unknown".to_owned()), ..record("l", "10.0.0.8") },
    ];
    let (adopted, reserved, mismatches) = adopt(&mut allocator, &records);
    assert_eq!((adopted, reserved), (2, 2));
    assert_eq!(
        mismatches,
        [
            "KubevirtMachine n/b: 10.0.0.5 of eth0 of n/b (1) is also of eth0 of n/a (1)",
            r#"KubevirtMachine n/c: 10.0.0.1 of eth0 of n/c (1) is reserved in pool "n/one" (gateway)"#,
            r#"KubevirtMachine n/d: 10.0.0.2 of eth0 of n/d (1) is reserved in pool "n/one" (name server)"#,
            r#"KubevirtMachine n/f: 10.0.0.7 of eth0 of n/f (1) is reserved in pool "n/one" (pre-allocated)"#,
            r#"KubevirtMachine n/g: 10.0.0.0 of eth0 of n/g (1) is reserved in pool "n/one" (network address)"#,
            "KubevirtMachine n/i: 10.0.0.65 of eth0 of n/i (1) is ignored: no pool that serves the namespace has the address",
            r#"KubevirtMachine n/j: 10.0.0.200 of eth0 of n/j (1) is reserved in pool "n/one" (name server of pool "n/two")"#,
            "KubevirtMachine n/l: 10.0.0.8 of eth0 of n/l (1) belongs to no pool",
        ]
    );
    assert_eq!(
        held(&allocator),
        ["n/vlan10 10.0.0.4/24 n/one db", "n/vlan10 10.0.0.5/24 n/one a", "n/vlan10 10.0.0.6/24 n/one k"]
    );
    let expected = [
        row("10.0.0.0", "g", "Mismatch"),
        row("10.0.0.1", "c", "Mismatch"),
        row("10.0.0.2", "d", "Mismatch"),
        row("10.0.0.3", "e", "Excluded"),
        row("10.0.0.5", "b", "Mismatch"),
        row("10.0.0.7", "f", "Mismatch"),
        row("10.0.0.40", "h", "Excluded"),
        row("10.0.0.200", "j", "Mismatch"),
    ];
    assert_eq!(conflicts(&allocator), expected);
    // The claimant already holds the address. So the record is no conflict, although no pool offers the address now.
    resize(&mut allocator, of_namespace("one", "n", "addresses: [10.0.0.0/27], gateway: [10.0.0.5]"));
    assert_eq!(adopt(&mut allocator, &records[..1]), (0, 0, vec![]));
}

#[test]
fn a_machine_that_keeps_an_excluded_address_gets_no_other_address_of_the_same_family() {
    let both = |excluded: &str| {
        let rest = format!(
            "addresses: [10.0.0.8-10.0.0.15, 'fd00::8-fd00::f'], excludedAddresses: [{excluded}], \
                            machineNetwork: [{{cidr: 10.0.0.0/24}}, {{cidr: 'fd00::/64'}}]"
        );
        on("vlan10", "one", &rest)
    };
    let mut allocator = allocator([both("10.0.0.8")], []);
    assert_eq!(adopt(&mut allocator, &[record("a", "10.0.0.8")]), (0, 1, vec![]));
    // The machine gets only an address of the other family.
    assert_eq!(given(&mut allocator, &claim("a", "1", &["n/one"]), 2), "fd00::8/64");
    assert_eq!(given(&mut allocator, &claim("a", "1", &["n/one"]), 2), "fd00::8/64");
    assert_eq!(given(&mut allocator, &claim("b", "1", &["n/one"]), 2), "10.0.0.9/24 fd00::9/64");
    // When the exclusion ends, no claim gets the address. The next adoption leases the address to its machine.
    resize(&mut allocator, both("10.0.0.20"));
    let usage = allocator.usage(at(3))["n/one"].families[0];
    assert_eq!((usage.allocated, usage.conflicts, usage.by_record, usage.free), (1, 0, 1, 6));
    assert_eq!(given(&mut allocator, &claim("c", "1", &["n/one"]), 3), "10.0.0.10/24 fd00::a/64");
    let mut again = allocator.clone();
    assert_eq!(adopt(&mut again, &[record("a", "10.0.0.8")]), (1, 0, vec![]));
    assert_eq!(conflicts(&again), []);
    // The reservation ends when its machine is released.
    allocator.release(&machine("a", "1"), at(4), &mut Journal::default());
    assert_eq!(conflicts(&allocator), []);
    assert_eq!(given(&mut allocator, &claim("d", "1", &["n/one"]), 5), "10.0.0.8/24 fd00::8/64");
}

#[test]
fn a_claim_that_keeps_an_excluded_address_is_refused_until_its_record_is_removed() {
    let pool = on(
        "vlan10",
        "one",
        "addresses: [10.0.0.8-10.0.0.15], excludedAddresses: [10.0.0.8], machineNetwork: [{cidr: 10.0.0.0/24}]",
    );
    for kind in [HolderKind::IpamClaim, HolderKind::IpAddressClaim] {
        let mut allocator = allocator([pool.clone()], []);
        let of_claim = of_kind(kind, claim("a", "1", &["n/one"]));
        let Record { claimant, .. } = record("a", "10.0.0.8");
        let claimant = Claimant { machine: of_claim.machine.clone(), ..claimant };
        let kind = if kind == HolderKind::IpamClaim { Source::IpamClaim } else { Source::IpAddress };
        let recorded = Record { claimant, node_pool: Some("n/one".to_owned()), kind, ..record("a", "10.0.0.8") };
        assert_eq!(adopt(&mut allocator, &[recorded]), (0, 1, vec![]));
        let refused = "eth0: keeps 10.0.0.8, which no pool offers, expected a release before another address";
        assert_eq!(given(&mut allocator, &of_claim, 2), refused);
        let kept = [("n/vlan10".to_owned(), "10.0.0.8".parse().unwrap())].into();
        allocator.release_addresses(&of_claim.machine, &kept, at(3), &mut Journal::default());
        assert_eq!(given(&mut allocator, &of_claim, 4), "10.0.0.9/24");
    }
}

#[test]
fn a_free_address_in_the_records_of_two_machines_is_leased_to_neither_in_any_order() {
    for order in [["a", "b"], ["b", "a"]] {
        let mut allocator = allocator([on("vlan10", "one", "addresses: [10.0.0.0/29]")], []);
        let records = order.map(|name| record(name, "10.0.0.1/29"));
        let (adopted, reserved, mismatches) = adopt(&mut allocator, &records);
        let expected = [(0, 1), (1, 0)].map(|(of, other)| {
            let (of, other) = (order[of], order[other]);
            format!("KubevirtMachine n/{of}: 10.0.0.1 of eth0 of n/{of} (1) is also of eth0 of n/{other} (1)")
        });
        assert_eq!((adopted, reserved, mismatches), (0, 0, expected.to_vec()));
        assert_eq!(conflicts(&allocator), [row("10.0.0.1", "a", "Mismatch"), row("10.0.0.1", "b", "Mismatch")]);
        // A later adoption of each record alone leases nothing either, because both records are known.
        for one in &records {
            assert_eq!(adopt(&mut allocator, std::slice::from_ref(one)).0, 0);
        }
        assert_eq!(given(&mut allocator, &claim("c", "1", &["n/one"]), 2), "10.0.0.2/29");
        allocator.release(&machine("b", "1"), at(3), &mut Journal::default());
        assert_eq!(adopt(&mut allocator, &[record("a", "10.0.0.1/29")]), (1, 0, vec![]));
    }
}

#[test]
fn the_record_of_a_claim_counts_only_for_the_pool_of_the_claim() {
    let pools =
        [of_namespace("one", "n", "addresses: [10.0.0.0/30]"), of_namespace("two", "m", "addresses: [10.0.0.8/30]")];
    let mut allocator = allocator(pools, []);
    let of_claim = |name: &str, pool: &str, address: &str| {
        let mut record = record(name, address);
        record.claimant.machine = record.claimant.machine.of_kind(crate::host::claim::HolderKind::IpAddressClaim);
        Record { node_pool: Some(pool.to_owned()), kind: Source::IpAddress, ..record }
    };
    let records = [
        of_claim("a", "n/one", "10.0.0.1"),
        of_claim("b", "n/one", "10.0.0.9"),
        of_claim("c", "n/two", "10.0.0.9"),
        of_claim("d", "n/none", "10.0.0.9"),
        of_claim("e", "n/one", "10.0.0.20"),
    ];
    let ignored = |name: &str| {
        let why = "no pool that serves the namespace has the address";
        format!("KubevirtMachine n/{name}: 10.0.0.9 of IPAddressClaim n/{name} (1) is ignored: {why}")
    };
    assert_eq!(adopt(&mut allocator, &records), (1, 1, ["b", "c", "d"].map(ignored).to_vec()));
    assert_eq!(conflicts(&allocator), [row("10.0.0.20", "e", "Excluded")]);
}

#[test]
fn an_address_that_a_running_guest_reports_is_allocated_to_no_other_machine() {
    let mut allocator = allocator([on("vlan10", "one", "addresses: [10.0.0.0/29], gateway: [10.0.0.6]")], []);
    let reports = [report("x", "10.0.0.1"), report("x", "10.0.0.6"), report("x", "10.9.9.9"), report("y", "10.0.0.1")];
    let begun = ["10.0.0.1 x reserved -", "10.0.0.1 y reserved -", "10.0.0.6 x reserved -", "10.9.9.9 x reserved -"];
    let begun = begun.map(str::to_owned).to_vec();
    assert_eq!(set_reports(&mut allocator, &reports, 1), (begun, vec![]));
    assert_eq!(set_reports(&mut allocator, &reports, 1), (vec![], vec![]), "a repeated call changes nothing");
    let usage = allocator.usage(at(1))["n/one"].families[0];
    assert_eq!((usage.allocated, usage.by_report, usage.conflicts, usage.free), (0, 1, 1, 4));
    assert_eq!(given(&mut allocator, &claim("a", "1", &["n/one"]), 2), "10.0.0.2/29");
    // The reservation stays when the pools change: a report does not depend on pools.
    resize(&mut allocator, on("vlan10", "one", "addresses: [10.0.0.0/28], gateway: [10.0.0.8]"));
    for address in ["10.0.0.3/28", "10.0.0.4/28", "10.0.0.5/28", "10.0.0.7/28"] {
        assert_eq!(given(&mut allocator, &claim(address, "1", &["n/one"]), 3), address);
    }
    let ended = ["10.0.0.1 y reserved -", "10.0.0.6 x reserved -", "10.9.9.9 x reserved -"].map(str::to_owned);
    assert_eq!(set_reports(&mut allocator, &reports[..1], 4), (vec![], ended.to_vec()));
    assert_eq!(given(&mut allocator, &claim("b", "1", &["n/one"]), 5), "10.0.0.6/28");
    set_reports(&mut allocator, &[], 6);
    assert_eq!(given(&mut allocator, &claim("c", "1", &["n/one"]), 7), "10.0.0.1/28");
}

#[test]
fn a_new_report_reserves_its_address_and_the_end_of_the_last_report_frees_the_address() {
    let mut allocator = allocator([on("vlan10", "one", "addresses: [10.0.0.0/29]")], []);
    let reports = [report("x", "10.0.0.1"), report("y", "10.0.0.1"), report("y", "10.0.0.2")];
    let addresses = |reported: &[Reported]| -> Vec<String> {
        reported.iter().map(|it| format!("{} {}", it.address, it.claimant.machine.name)).collect()
    };
    let begun = allocator.change_reports(&reports, &[], at(1));
    assert_eq!(
        (addresses(&begun.begun), begun.ended),
        (["10.0.0.1 x", "10.0.0.1 y", "10.0.0.2 y"].map(str::to_owned).to_vec(), vec![])
    );
    assert_eq!(set_reports(&mut allocator, &reports, 1), (vec![], vec![]), "the set has the same reports");
    assert_eq!(
        allocator.change_reports(&reports, &[], at(1)),
        ReportChanges::default(),
        "a repeated call changes nothing"
    );
    assert_eq!(given(&mut allocator, &claim("a", "1", &["n/one"]), 2), "10.0.0.3/29");
    let ended = allocator.change_reports(&[], &reports[1..], at(3));
    assert_eq!(addresses(&ended.ended), ["10.0.0.1 y", "10.0.0.2 y"]);
    // Another guest still reports the first address.
    assert_eq!(given(&mut allocator, &claim("b", "1", &["n/one"]), 4), "10.0.0.2/29");
    allocator.change_reports(&[], &reports, at(5));
    assert_eq!(given(&mut allocator, &claim("c", "1", &["n/one"]), 6), "10.0.0.1/29");
    assert_eq!(two_users(&allocator), [] as [&str; 0]);
    allocator.change_reports(&[report("x", "10.0.0.1"), report("c", "10.0.0.1")], &[], at(7));
    assert_eq!(two_users(&allocator), ["10.0.0.1 of c: x"]);
}

#[test]
fn a_report_of_a_held_address_is_a_conflict_unless_the_reporting_machine_holds_it() {
    let mut allocator = allocator([on("vlan10", "one", "addresses: [10.0.0.0/29]")], []);
    given(&mut allocator, &claim("a", "1", &["n/one"]), 0);
    // A report names the VirtualMachine of the guest, which has another UID than the machine.
    let mut own = report("a", "10.0.0.1");
    own.claimant.machine = Machine::new("n", "a", "2").of_kind(crate::host::claim::HolderKind::VirtualMachine);
    let reports = [own, report("x", "10.0.0.1")];
    let (begun, _) = set_reports(&mut allocator, &reports, 1);
    assert_eq!(begun, ["10.0.0.1 a own a", "10.0.0.1 x conflict a"]);
    assert_eq!(given(&mut allocator, &claim("a", "1", &["n/one"]), 2), "10.0.0.1/29", "the holder keeps its address");
    // After the release of the holder, no machine gets the address, because a guest still uses the address.
    allocator.release(&machine("a", "1"), at(3), &mut Journal::default());
    let sticky = Claim { sticky: true, ..claim("a", "3", &["n/one"]) };
    assert_eq!(given(&mut allocator, &sticky, 4), "10.0.0.2/29");
    set_reports(&mut allocator, &reports[..1], 5);
    let kept = on("vlan10", "one", "addresses: [10.0.0.0/29], preAllocations: {a: 10.0.0.1}");
    resize(&mut allocator, kept);
    allocator.release(&machine("a", "3"), at(6), &mut Journal::default());
    assert_eq!(given(&mut allocator, &claim("a", "4", &["n/one"]), 7), "10.0.0.1/29", "its own report is no obstacle");
}

#[test]
fn a_sticky_claim_does_not_get_an_address_that_the_guest_of_its_name_reports() {
    let of_claim =
        |uid: &str| of_kind(HolderKind::IpAddressClaim, Claim { sticky: true, ..claim("a", uid, &["n/one"]) });
    let mut allocator = allocator([on("vlan10", "one", "addresses: [10.0.0.0/29]")], []);
    assert_eq!(given(&mut allocator, &of_claim("1"), 0), "10.0.0.1/29");
    allocator.release(&of_claim("1").machine, at(1), &mut Journal::default());
    let mut guest = report("a", "10.0.0.1");
    guest.claimant.machine = guest.claimant.machine.of_kind(HolderKind::VirtualMachine);
    set_reports(&mut allocator, &[guest], 2);
    assert_eq!(given(&mut allocator, &of_claim("2"), 3), "10.0.0.2/29");
    // Without the report, the address is free for the next claim of this name.
    allocator.release(&of_claim("2").machine, at(4), &mut Journal::default());
    set_reports(&mut allocator, &[], 5);
    assert_eq!(given(&mut allocator, &of_claim("3"), 6), "10.0.0.2/29");
    assert_eq!(given(&mut allocator, &of_claim("4"), 7), "10.0.0.1/29");
}

#[test]
fn a_pre_allocated_address_needs_no_reuse_delay_after_its_other_user_is_gone() {
    let kept = "addresses: [10.0.0.1-10.0.0.1], prefix: 29, addressReuseGracePeriodSeconds: 3600, preAllocations: {n/a: 10.0.0.1}";
    let waiting_with = |make_used: &dyn Fn(&mut Allocator)| {
        let mut allocator = allocator([on("vlan10", "one", kept)], []);
        assert_eq!(given(&mut allocator, &claim("a", "1", &["n/one"]), 0), "10.0.0.1/29");
        allocator.release(&machine("a", "1"), at(1), &mut Journal::default());
        make_used(&mut allocator);
        assert_eq!(given(&mut allocator, &claim("a", "2", &["n/one"]), 2), "10.0.0.1: taken by eth0 of n/x (1)");
        assert_eq!(allocator.serve(at(2), &mut Journal::default()), [], "still in use");
        allocator
    };
    let addresses = |allocations: Vec<Allocation>| -> Vec<String> {
        allocations.iter().map(|it| format!("{} {:?}", it.claimant, it.addresses)).collect()
    };
    let served = |mut allocator: Allocator| addresses(allocator.serve(at(3), &mut Journal::default()));
    let given = ["eth0 of n/a (2) [V4(Ipv4Network { addr: 10.0.0.1, prefix: 29 })]"];

    let mut recorded = waiting_with(&|allocator| {
        allocator.set_aside(report("x", "10.0.0.1"), at(1), &mut Journal::default());
    });
    recorded.release(&machine("x", "1"), at(3), &mut Journal::default());
    assert_eq!(served(recorded), given, "the record of the other machine is gone");

    let reports = [report("x", "10.0.0.1")];
    let mut reported = waiting_with(&|allocator| {
        allocator.change_reports(&reports, &[], at(1));
    });
    reported.change_reports(&[], &reports, at(3));
    assert_eq!(served(reported), given, "the other guest is gone");
}

#[test]
fn a_machine_gets_its_pre_allocated_address_although_it_has_recorded_the_address_too_late() {
    let kept = "addresses: [10.0.0.0/29], preAllocations: {n/a: 10.0.0.1}";
    let late = |name: &str| Reservation { kind: Source::Unreadable, ..report(name, "10.0.0.1") };
    let mut allocator = allocator([on("vlan10", "one", kept)], []);
    allocator.set_aside(late("a"), at(1), &mut Journal::default());
    allocator.set_aside(late("b"), at(1), &mut Journal::default());
    assert_eq!(given(&mut allocator, &claim("a", "1", &["n/one"]), 2), "10.0.0.1: taken by eth0 of n/b (1)");
    allocator.release(&machine("b", "1"), at(3), &mut Journal::default());
    assert_eq!(given(&mut allocator, &claim("a", "1", &["n/one"]), 3), "10.0.0.1/29");
    assert_eq!(allocator.conflicts().count(), 0);
    // The record of a machine does not let the machine choose an address.
    let mut free = super::allocator([on("vlan10", "one", "addresses: [10.0.0.0/29]")], []);
    free.set_aside(late("a"), at(1), &mut Journal::default());
    assert_eq!(given(&mut free, &claim("a", "1", &["n/one"]), 2), "10.0.0.2/29");
}

#[test]
fn a_machine_gets_an_address_that_its_claim_names_although_the_address_is_reserved_for_it() {
    let reserved = |names: &[&str]| {
        let mut allocator = allocator([on("vlan10", "one", "addresses: [10.0.0.0/29]")], []);
        for name in names {
            let reservation = Reservation { kind: Source::MovedGuest, ..report(name, "10.0.0.1") };
            allocator.set_aside(reservation, at(1), &mut Journal::default());
        }
        allocator
    };
    let named = |name: &str| {
        let mut claim = claim(name, "1", &["n/one"]);
        claim.requests[0].addresses = vec!["10.0.0.1".parse().unwrap()];
        claim
    };
    let mut alone = reserved(&["a"]);
    assert_eq!(given(&mut alone, &named("b"), 2), "10.0.0.1: taken by eth0 of n/a (1)");
    assert_eq!(given(&mut alone, &named("a"), 2), "10.0.0.1/29");
    assert_eq!(alone.conflicts().count(), 0);
    assert_eq!(given(&mut reserved(&["a", "b"]), &named("a"), 2), "10.0.0.1: taken by eth0 of n/b (1)");
}

#[test]
fn a_claim_does_not_get_a_pre_allocated_address_that_the_guest_of_its_name_reports() {
    let kept = "addresses: [10.0.0.0/29], preAllocations: {n/a: 10.0.0.1}";
    for kind in [HolderKind::IpAddressClaim, HolderKind::IpamClaim] {
        let mut allocator = allocator([on("vlan10", "one", kept)], []);
        set_reports(&mut allocator, &[report("a", "10.0.0.1")], 1);
        let mut namesake = claim("a", "2", &["n/one"]);
        namesake.machine = namesake.machine.of_kind(kind);
        let taken = given(&mut allocator, &namesake, 2);
        assert_eq!(taken, "10.0.0.1: taken by eth0 of n/a (1)");
        // The address is free when the guest does not report it any more.
        set_reports(&mut allocator, &[], 3);
        assert_eq!(given(&mut allocator, &namesake, 4), "10.0.0.1/29");
    }
}

#[test]
fn a_record_of_an_address_that_another_guest_reports_is_a_conflict() {
    let mut allocator = allocator([on("vlan10", "one", "addresses: [10.0.0.0/29]")], []);
    set_reports(&mut allocator, &[report("x", "10.0.0.1"), report("b", "10.0.0.2")], 1);
    let records = [record("a", "10.0.0.1/29"), record("b", "10.0.0.2/29")];
    let mismatch = "KubevirtMachine n/a: 10.0.0.1 of eth0 of n/a (1) is also of eth0 of n/x (1)".to_owned();
    assert_eq!(adopt(&mut allocator, &records), (1, 0, vec![mismatch]));
    assert_eq!(conflicts(&allocator), [row("10.0.0.1", "a", "Mismatch")]);
    assert_eq!(held(&allocator), ["n/vlan10 10.0.0.2/29 n/one b"]);
}

#[test]
fn the_claim_of_an_ipaddress_gets_the_address_that_was_reserved_before_the_claim_existed() {
    let mut allocator = allocator([on("vlan10", "one", "addresses: [10.0.0.0/29]")], []);
    let of_claim = |name: &str, uid: &str| {
        let mut record = record(name, "10.0.0.1");
        let machine = Machine::new("n", name, uid).of_kind(crate::host::claim::HolderKind::IpAddressClaim);
        record.claimant.machine = machine;
        Record { node_pool: Some("n/one".to_owned()), kind: Source::IpAddress, ..record }
    };
    let lone = of_claim("c", "").claimant;
    let reservation = Reservation { claimant: lone.clone(), kind: Source::LoneIpAddress, ..report("c", "10.0.0.1") };
    allocator.set_aside(reservation, at(1), &mut Journal::default());
    assert_eq!(adopt(&mut allocator, &[of_claim("d", "4")]).0, 0, "the claim of another name");
    allocator.release(&of_claim("d", "4").claimant.machine, at(2), &mut Journal::default());
    assert_eq!(adopt(&mut allocator, &[of_claim("c", "3")]).0, 1);
    allocator.release(&lone.machine, at(3), &mut Journal::default());
    assert_eq!(conflicts(&allocator), []);
    assert_eq!(held(&allocator), ["n/vlan10 10.0.0.1/29 n/one c"]);
}

#[test]
fn an_address_of_an_object_that_needs_no_lease_is_reserved_while_the_object_exists() {
    let pools =
        [of_namespace("one", "n", "addresses: [10.0.0.0/29]"), of_namespace("two", "m", "addresses: [10.0.0.8/29]")];
    let mut allocator = allocator(pools, []);
    let set_aside = |allocator: &mut Allocator, name: &str, address: &str, kind: Source| {
        let reservation = Reservation { kind, ..report(name, address) };
        allocator.set_aside(reservation, at(1), &mut Journal::default());
    };
    set_aside(&mut allocator, "a", "10.0.0.1", Source::LoneIpAddress);
    set_aside(&mut allocator, "b", "10.0.0.2", Source::NetworkData);
    set_aside(&mut allocator, "c", "10.0.0.9", Source::NetworkData);
    set_aside(&mut allocator, "d", "10.0.0.10", Source::LoneIpAddress);
    set_aside(&mut allocator, "e", "10.0.0.3", Source::Unreadable);
    let expected =
        [row("10.0.0.1", "a", "ByRecord"), row("10.0.0.2", "b", "ByRecord"), row("10.0.0.3", "e", "Mismatch")];
    assert_eq!(conflicts(&allocator), expected);
    let usage = allocator.usage(at(1))["n/one"].families[0];
    assert_eq!((usage.by_record, usage.conflicts, usage.free), (3, 0, 4));
    assert_eq!(given(&mut allocator, &claim("x", "1", &["n/one"]), 2), "10.0.0.4/24");
    allocator.release(&machine("a", "1"), at(3), &mut Journal::default());
    assert_eq!(given(&mut allocator, &claim("y", "1", &["n/one"]), 4), "10.0.0.1/24");
}

#[test]
fn a_record_of_the_address_of_a_migrated_guest_is_a_conflict_until_the_reuse_delay_is_over() {
    let mut allocator = allocator([on("vlan10", "one", "addresses: [10.0.0.0/29]"), external("ext", "")], []);
    given(&mut allocator, &claim("a", "1", &["n/one"]), 0);
    let held_outside: Claimant = record("e", "10.0.0.9").claimant;
    let hold = |allocator: &mut Allocator, claimant: &Claimant, now: u64| {
        let addresses = ["10.0.0.9/29".parse().unwrap()];
        allocator.hold("n/ext", claimant, &addresses, "test", at(now), &mut Journal::default())
    };
    hold(&mut allocator, &held_outside, 0).unwrap();
    for name in ["a", "e"] {
        allocator.note_migrated(&machine(name, "1"), at(1), &mut Journal::default());
        allocator.release(&machine(name, "1"), at(2), &mut Journal::default());
    }
    let of = |name: &str, uid: &str| {
        let mut record = record(name, "10.0.0.1/29");
        record.claimant.machine.uid = uid.to_owned();
        record
    };
    // A restored record of a new machine with the name of the last holder is a conflict, too.
    for record in [of("b", "1"), of("a", "2")] {
        let (adopted, reserved, mismatches) = adopt(&mut allocator, &[record]);
        assert_eq!((adopted, reserved, mismatches.len()), (0, 0, 1));
        assert!(mismatches[0].ends_with("is also of eth0 of n/a (1)"), "{mismatches:?}");
    }
    assert_eq!(conflicts(&allocator), [row("10.0.0.1", "a", "Mismatch"), row("10.0.0.1", "b", "Mismatch")]);
    let mut namesake = held_outside;
    namesake.machine.uid = "2".to_owned();
    assert!(matches!(hold(&mut allocator, &namesake, 3), Err(ClaimError::ReuseDelay { .. })));
    allocator.release(&machine("b", "1"), at(4), &mut Journal::default());
    let after = 31 * 24 * 3600 * 1000;
    assert_eq!(allocator.adopt([of("a", "2")], at(after), &mut Journal::default()).adopted, 1);
    assert_eq!(hold(&mut allocator, &namesake, after), Ok(()));
}

#[test]
fn a_claim_that_moved_to_another_cluster_and_back_gets_its_address_only_with_its_ipaddress() {
    let mut allocator = allocator([on("vlan10", "one", "addresses: [10.0.0.0/29]")], []);
    let claim_of = |name: &str, uid: &str| {
        let machine = machine(name, uid).of_kind(HolderKind::IpAddressClaim);
        Claim { machine, ..claim(name, uid, &["n/one"]) }
    };
    let first = claim_of("a", "1");
    assert_eq!(given(&mut allocator, &first, 0), "10.0.0.1/29");
    assert_eq!(allocator.note_migrated(&first.machine, at(1), &mut Journal::default()), [].into());
    allocator.release(&first.machine, at(2), &mut Journal::default());
    assert_eq!(given(&mut allocator, &claim_of("a", "2"), 3), "10.0.0.2/29");
    allocator.release(&claim_of("a", "2").machine, at(4), &mut Journal::default());
    let of = |name: &str, kind: Source| {
        let mut record = record(name, "10.0.0.1/29");
        record.claimant.machine = claim_of(name, "3").machine;
        Record { kind, node_pool: Some("n/one".to_owned()), ..record }
    };
    for record in [of("b", Source::IpAddress), of("a", Source::IpamClaim)] {
        let (adopted, reserved, mismatches) = adopt(&mut allocator, std::slice::from_ref(&record));
        assert_eq!((adopted, reserved, mismatches.len()), (0, 0, 1));
        assert!(mismatches[0].ends_with("is also of IPAddressClaim n/a (1)"), "{mismatches:?}");
        allocator.release(&record.claimant.machine, at(5), &mut Journal::default());
    }
    assert_eq!(adopt(&mut allocator, &[of("a", Source::IpAddress)]), (1, 0, vec![]));
    assert_eq!(held(&allocator), ["n/vlan10 10.0.0.1/29 n/one a"]);
}

#[test]
fn in_the_reuse_delay_only_the_last_holder_and_its_successors_get_an_address_by_their_records() {
    let delay = 3600 * 1000;
    let released_by = |holder: Machine| {
        let pools = [on("vlan10", "one", "addresses: [10.0.0.0/29], addressReuseGracePeriodSeconds: 3600")];
        let mut allocator = allocator(pools, []);
        let claim = Claim { machine: holder.clone(), ..claim("a", "1", &["n/one"]) };
        assert_eq!(given(&mut allocator, &claim, 0), "10.0.0.1/29");
        allocator.release(&holder, at(2), &mut Journal::default());
        allocator
    };
    let of = |machine: Machine| {
        let mut record = record(&machine.name, "10.0.0.1/29");
        record.claimant.machine = machine;
        record
    };
    let again = machine("a", "2");
    let successors = [
        (machine("a", "1"), machine("a", "1")),
        (machine("a", "1"), again.clone()),
        (Machine::new("c", "a", "1").with_vm_in("n"), again.clone().of_kind(HolderKind::VirtualMachine)),
    ];
    for (last, successor) in successors {
        let mut allocator = released_by(last);
        assert_eq!(adopt(&mut allocator, &[of(successor)]), (1, 0, vec![]));
        assert_eq!(held(&allocator), ["n/vlan10 10.0.0.1/29 n/one a"]);
    }
    let of_claim = of(again.of_kind(HolderKind::IpAddressClaim));
    let of_claim = Record { kind: Source::IpAddress, node_pool: Some("n/one".to_owned()), ..of_claim };
    for record in [of(machine("b", "1")), of_claim] {
        let mut allocator = released_by(machine("a", "1"));
        let problem = "was held by eth0 of n/a (1) before, and its reuse delay is not over";
        let expected = format!("{}: 10.0.0.1 of {} {problem}", record.source, record.claimant);
        assert_eq!(adopt(&mut allocator, std::slice::from_ref(&record)), (0, 0, vec![expected]));
        assert_eq!(held(&allocator), [""; 0]);
        let name = &record.claimant.machine.name;
        assert_eq!(conflicts(&allocator), [row("10.0.0.1", name, "Mismatch")]);
        assert!(!allocator.is_conflict("n/vlan10", "10.0.0.1".parse().unwrap()), "one user");
        let later = |now: u64, allocator: &mut Allocator| {
            allocator.adopt([record.clone()], at(now), &mut Journal::default()).adopted
        };
        assert_eq!([1 + delay, 2 + delay].map(|now| later(now, &mut allocator)), [0, 1]);
        assert_eq!(held(&allocator), [format!("n/vlan10 10.0.0.1/29 n/one {name}")]);
    }
}

#[test]
fn the_report_of_a_guest_in_another_namespace_contests_the_address_of_a_claim() {
    let mut allocator = allocator([on("vlan10", "one", "addresses: [10.0.0.0/29]")], []);
    let of_claim = |name: &str, address: &str| {
        let mut record = record(name, address);
        record.claimant.machine = record.claimant.machine.of_kind(crate::host::claim::HolderKind::IpAddressClaim);
        Record { node_pool: Some("n/one".to_owned()), kind: Source::IpAddress, ..record }
    };
    let mut elsewhere = report("x", "10.0.0.1");
    elsewhere.claimant.machine.namespace = "m".to_owned();
    // The first report is that of a guest that may use the claim. The second report of this address is from another
    // namespace, and still counts.
    set_reports(&mut allocator, &[report("a", "10.0.0.1"), elsewhere, report("x", "10.0.0.2")], 1);
    let records = [of_claim("c", "10.0.0.1"), of_claim("d", "10.0.0.2")];
    let (adopted, reserved, mismatches) = adopt(&mut allocator, &records);
    assert_eq!((adopted, reserved, mismatches.len()), (1, 0, 1));
    assert_eq!(conflicts(&allocator), [row("10.0.0.1", "c", "Mismatch")]);
    assert_eq!(held(&allocator), ["n/vlan10 10.0.0.2/29 n/one d"]);
}
