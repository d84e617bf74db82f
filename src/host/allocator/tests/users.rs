//! Tests of addresses with two users, and of the end of such conflicts.

use super::*;
use crate::host::claim::HolderKind;

/// The addresses with two users, each with its holder and its other users.
pub(super) fn two_users(allocator: &Allocator) -> Vec<String> {
    let text = |it: Conflicted| {
        assert!(allocator.is_conflict(&it.network, it.address));
        let holder = it.holder.map_or_else(|| "-".to_owned(), |holder| holder.machine.name);
        let mut others: Vec<String> = it.others.into_iter().map(|other| other.claimant.machine.name).collect();
        others.dedup();
        format!("{} of {holder}: {}", it.address, others.join(" "))
    };
    allocator.conflicted().into_iter().map(text).collect()
}

const NONE: [&str; 0] = [];

fn adopt(allocator: &mut Allocator, records: &[Record]) {
    allocator.adopt(records.iter().cloned(), at(1), &mut Journal::default());
}

fn release(allocator: &mut Allocator, name: &str) {
    allocator.release(&machine(name, "1"), at(2), &mut Journal::default());
}

fn reservation(name: &str, address: &str, kind: Source) -> Reservation {
    let Record { claimant, addresses, .. } = record(name, address);
    let network = Some("n/vlan10".to_owned());
    Reservation { address: addresses[0].ip(), network, claimant, source: name.to_owned(), kind }
}

fn set_aside(allocator: &mut Allocator, name: &str, address: &str, kind: Source) {
    allocator.set_aside(reservation(name, address, kind), at(1), &mut Journal::default());
}

/// Begins or ends the report of an address by the guest of a machine.
fn report(allocator: &mut Allocator, name: &str, address: &str, is_begun: bool) {
    let change = [reservation(name, address, Source::Report)];
    let (begun, ended) = if is_begun { (&change[..], &[][..]) } else { (&[][..], &change[..]) };
    allocator.change_reports(begun, ended, at(1));
}

/// An allocator with a pool of 10.0.0.0/28, in which machine `a` holds 10.0.0.2.
fn one() -> Allocator {
    let pool = on("vlan10", "one", "addresses: [10.0.0.0/28], gateway: [10.0.0.1], excludedAddresses: [10.0.0.14]");
    let mut allocator = allocator([pool], []);
    assert_eq!(given(&mut allocator, &claim("a", "1", &["n/one"]), 0), "10.0.0.2/28");
    allocator
}

#[test]
fn an_address_whose_record_contradicts_the_pools_has_only_one_user() {
    let mut allocator = one();
    let records = [
        record("b", "10.0.0.1"),
        record("a", "10.0.0.3"),
        record("c", "10.0.0.14"),
        record("d", "10.0.1.5"),
        Record { network: None, attachments: vec!["n/none".to_owned()], ..record("e", "10.0.0.5") },
    ];
    adopt(&mut allocator, &records);
    set_aside(&mut allocator, "f", "10.0.0.4", Source::Unreadable);
    set_aside(&mut allocator, "g", "10.0.0.6", Source::NetworkData);
    assert!(allocator.conflicts().count() >= 6);
    assert_eq!(two_users(&allocator), NONE);
    let usage = allocator.usage(at(2))["n/one"].families[0];
    assert_eq!((usage.conflicts, usage.allocated, usage.excluded, usage.reserved()), (0, 1, 4, 4 + usage.by_record));
}

#[test]
fn a_conflict_ends_when_the_holder_or_the_machine_of_the_record_is_gone() {
    for gone in ["a", "b"] {
        let mut allocator = one();
        adopt(&mut allocator, &[record("b", "10.0.0.2")]);
        assert_eq!(two_users(&allocator), ["10.0.0.2 of a: b"]);
        let usage = allocator.usage(at(2))["n/one"].families[0];
        assert_eq!((usage.conflicts, usage.allocated, usage.by_record), (1, 1, 0));
        release(&mut allocator, gone);
        assert_eq!(two_users(&allocator), NONE);
        // No other machine gets the address, because the other user still has it.
        assert_eq!(given(&mut allocator, &claim("c", "1", &["n/one"]), 3), "10.0.0.3/28");
    }
}

#[test]
fn a_conflict_of_two_records_ends_when_one_of_the_machines_is_gone() {
    for (gone, stays) in [("b", "c"), ("c", "b")] {
        let mut allocator = one();
        adopt(&mut allocator, &["b", "c"].map(|name| record(name, "10.0.0.3")));
        assert_eq!(two_users(&allocator), ["10.0.0.3 of -: b c"]);
        let usage = allocator.usage(at(2))["n/one"].families[0];
        assert_eq!((usage.conflicts, usage.by_record), (1, 1));
        release(&mut allocator, gone);
        assert_eq!(two_users(&allocator), NONE);
        assert_eq!(given(&mut allocator, &claim("d", "1", &["n/one"]), 3), "10.0.0.4/28");
        release(&mut allocator, stays);
        assert_eq!(given(&mut allocator, &claim("e", "1", &["n/one"]), 4), "10.0.0.3/28");
    }
}

#[test]
fn a_conflict_ends_when_the_objects_of_a_machine_no_longer_record_the_address() {
    let mut allocator = one();
    let record = record("b", "10.0.0.2");
    adopt(&mut allocator, std::slice::from_ref(&record));
    let ended = [("n/vlan10".to_owned(), "10.0.0.2".parse().unwrap())].into();
    assert_eq!(allocator.reserved_by_records_of(&machine("b", "1")).count(), 1);
    allocator.end_records(&machine("b", "1"), &ended, &mut Journal::default());
    assert_eq!(two_users(&allocator), NONE);
    assert_eq!(allocator.reserved_by_records_of(&machine("b", "1")).count(), 0);
    // No other machine gets the address while the machine exists, even after the holder releases the address.
    let mut released = allocator.clone();
    release(&mut released, "a");
    assert_eq!(given(&mut released, &claim("c", "1", &["n/one"]), 3), "10.0.0.3/28");
    release(&mut released, "b");
    assert_eq!(given(&mut released, &claim("d", "1", &["n/one"]), 3), "10.0.0.2/28");
    // The machine records the address again.
    adopt(&mut allocator, &[record]);
    assert_eq!(two_users(&allocator), ["10.0.0.2 of a: b"]);
}

#[test]
fn a_conflict_ends_when_the_guest_no_longer_reports_the_address() {
    let mut allocator = one();
    for name in ["a", "b"] {
        report(&mut allocator, name, "10.0.0.2", true);
    }
    assert_eq!(two_users(&allocator), ["10.0.0.2 of a: b"], "the report of the holder is no other user");
    report(&mut allocator, "b", "10.0.0.2", false);
    assert_eq!(two_users(&allocator), NONE);
    // A record and the report of a guest are two users, and so are the reports of two guests.
    for record_first in [false, true] {
        let mut allocator = one();
        if record_first {
            set_aside(&mut allocator, "b", "10.0.0.3", Source::NetworkData);
        }
        report(&mut allocator, "c", "10.0.0.3", true);
        if !record_first {
            set_aside(&mut allocator, "b", "10.0.0.3", Source::NetworkData);
        }
        assert_eq!(two_users(&allocator), ["10.0.0.3 of -: b c"]);
        report(&mut allocator, "d", "10.0.0.3", true);
        release(&mut allocator, "b");
        assert_eq!(two_users(&allocator), ["10.0.0.3 of -: c d"]);
        report(&mut allocator, "c", "10.0.0.3", false);
        assert_eq!(two_users(&allocator), NONE);
    }
}

#[test]
fn two_guests_that_report_an_address_that_no_pool_offers_are_no_conflict() {
    let mut allocator = one();
    for address in ["10.0.0.1", "10.0.0.14", "10.0.0.40"] {
        report(&mut allocator, "b", address, true);
        report(&mut allocator, "c", address, true);
    }
    assert_eq!(two_users(&allocator), NONE);
    // An address that a machine records is no virtual address.
    adopt(&mut allocator, &[record("d", "10.0.0.14")]);
    assert_eq!(two_users(&allocator), ["10.0.0.14 of -: d b c"]);
}

#[test]
fn the_machine_of_network_data_and_its_guest_are_one_user() {
    let mut allocator = one();
    set_aside(&mut allocator, "b", "10.0.0.3", Source::NetworkData);
    report(&mut allocator, "b", "10.0.0.3", true);
    assert_eq!(two_users(&allocator), NONE);
    // A claim may be for a machine of its namespace. So the claim and a machine whose network data has the address are
    // one user.
    let of_claim = |name: &str, address: &str| {
        let mut record = record(name, address);
        record.claimant.machine = record.claimant.machine.of_kind(HolderKind::IpAddressClaim);
        Record { node_pool: Some("n/one".to_owned()), kind: Source::IpAddress, ..record }
    };
    adopt(&mut allocator, &[of_claim("x", "10.0.0.4")]);
    set_aside(&mut allocator, "c", "10.0.0.4", Source::NetworkData);
    report(&mut allocator, "c", "10.0.0.4", true);
    assert_eq!(two_users(&allocator), NONE);
    // A claim is for one machine only, so a second machine is another user. A machine whose annotation records the
    // address is another user, too.
    report(&mut allocator, "d", "10.0.0.4", true);
    assert_eq!(two_users(&allocator), ["10.0.0.4 of x: c d"]);
    adopt(&mut allocator, &[of_claim("y", "10.0.0.5"), record("e", "10.0.0.5")]);
    assert_eq!(two_users(&allocator), ["10.0.0.4 of x: c d", "10.0.0.5 of -: e y"]);
    // Two machines have the same network data.
    set_aside(&mut allocator, "f", "10.0.0.3", Source::NetworkData);
    assert_eq!(two_users(&allocator)[0], "10.0.0.3 of -: b f b");
}

#[test]
fn a_guest_that_only_reports_the_address_of_a_claim_is_another_user() {
    let mut allocator = one();
    let of_claim = |name: &str, address: &str| {
        let mut record = record(name, address);
        record.claimant.machine = record.claimant.machine.of_kind(HolderKind::IpAddressClaim);
        Record { node_pool: Some("n/one".to_owned()), kind: Source::IpAddress, ..record }
    };
    // The report of a guest has the UID of its instance.
    let of_guest = |name: &str| {
        let mut report = reservation(name, "10.0.0.4", Source::Report);
        report.claimant.machine = machine(name, "i").of_kind(HolderKind::VirtualMachine);
        report
    };
    let begins = |allocator: &mut Allocator, name: &str| {
        let changes = allocator.change_reports(&[of_guest(name)], &[], at(1));
        changes.begun.iter().map(|reported| reported.is_conflict).collect::<Vec<_>>()
    };
    adopt(&mut allocator, &[of_claim("x", "10.0.0.4")]);
    assert_eq!(begins(&mut allocator, "b"), [true]);
    assert_eq!(two_users(&allocator), ["10.0.0.4 of x: b"]);
    allocator.change_reports(&[], &[of_guest("b")], at(1));
    // A machine whose own network data has the address counts as the user of the claim, until this record ends.
    set_aside(&mut allocator, "c", "10.0.0.4", Source::NetworkData);
    assert_eq!(begins(&mut allocator, "c"), [false]);
    assert_eq!(two_users(&allocator), NONE);
    let mut ended = allocator.clone();
    let of_c = [("n/vlan10".to_owned(), "10.0.0.4".parse().unwrap())].into();
    ended.end_records(&machine("c", "1"), &of_c, &mut Journal::default());
    assert_eq!(two_users(&ended), ["10.0.0.4 of x: c"]);
    // A second machine with the same network data is another user than the first machine.
    set_aside(&mut allocator, "d", "10.0.0.4", Source::NetworkData);
    assert_eq!(begins(&mut allocator, "d"), [true]);
    assert_eq!(two_users(&allocator), ["10.0.0.4 of x: c d c d"]);
}

#[test]
fn a_guest_that_comes_to_the_network_with_the_address_of_a_claim_is_another_user() {
    let mut allocator = one();
    let mut of_claim = record("x", "10.0.0.4");
    of_claim.claimant.machine = of_claim.claimant.machine.of_kind(HolderKind::IpAddressClaim);
    let of_claim = Record { node_pool: Some("n/one".to_owned()), kind: Source::IpAddress, ..of_claim };
    adopt(&mut allocator, &[of_claim]);
    set_aside(&mut allocator, "b", "10.0.0.4", Source::MovedGuest);
    assert_eq!(two_users(&allocator), ["10.0.0.4 of x: b"]);
    // The guest has an agent.
    report(&mut allocator, "b", "10.0.0.4", true);
    assert_eq!(two_users(&allocator), ["10.0.0.4 of x: b"]);
    release(&mut allocator, "b");
    report(&mut allocator, "b", "10.0.0.4", false);
    assert_eq!(two_users(&allocator), NONE);
}

#[test]
fn the_objects_of_one_virtual_machine_are_one_user() {
    let mut allocator = one();
    let mut other = record("a", "10.0.0.2");
    other.claimant.machine = machine("a", "2").of_kind(HolderKind::VirtualMachine);
    adopt(&mut allocator, &[other]);
    assert_eq!(allocator.conflicts().count(), 1);
    assert_eq!(two_users(&allocator), NONE);
}

#[test]
fn the_unknown_machine_of_an_unreadable_record_is_no_second_user() {
    let mut allocator = one();
    let mut unknown = reservation("x", "10.0.0.2", Source::Unreadable);
    unknown.claimant.machine = Machine::new("-", "unreadable-record", "10.0.0.2");
    allocator.set_aside(unknown, at(1), &mut Journal::default());
    assert_eq!(allocator.conflicts().count(), 1);
    assert_eq!(two_users(&allocator), NONE);
}

#[test]
fn the_conflict_about_an_external_address_ends_when_the_machine_requests_another_free_or_held_address() {
    let mut allocator = allocator([external("ext", "")], []);
    let of = |name: &str| Claimant { machine: machine(name, "1"), interface: "eth0".parse().unwrap() };
    let hold = |allocator: &mut Allocator, name: &str, address: &str| {
        let addresses = [address.parse().unwrap()];
        let source = format!("IPAddress n/{name}");
        allocator.hold("n/ext", &of(name), &addresses, &source, at(1), &mut Journal::default()).is_ok()
    };
    assert!(hold(&mut allocator, "a", "10.0.0.60/24") && hold(&mut allocator, "b", "10.0.0.61/24"));
    assert!(!hold(&mut allocator, "c", "10.0.0.60/24"));
    assert_eq!(two_users(&allocator), ["10.0.0.60 of a: c"]);
    assert!(!hold(&mut allocator, "c", "10.0.0.61/24"));
    assert_eq!(two_users(&allocator), ["10.0.0.61 of b: c"]);
    assert!(hold(&mut allocator, "c", "10.0.0.62/24"));
    assert_eq!(two_users(&allocator), NONE);
}

#[test]
fn the_conflicts_of_an_address_with_20000_reports_or_records_are_found() {
    let mut allocator = one();
    let names: Vec<String> = (0..20_000).map(|at| format!("m-{at}")).collect();
    for address in ["10.0.0.3", "10.0.0.40"] {
        let reports: Vec<Reservation> = names.iter().map(|name| reservation(name, address, Source::Report)).collect();
        allocator.change_reports(&reports, &[], at(1));
    }
    adopt(&mut allocator, &names.iter().map(|name| record(name, "10.0.0.4")).collect::<Vec<_>>());
    let others: Vec<usize> = allocator.conflicted().iter().map(|it| it.others.len()).collect();
    assert_eq!(others, [20_000, 20_000]);
}

#[test]
fn the_address_of_a_service_or_a_cluster_is_reserved_and_has_one_user() {
    let mut allocator = one();
    // The Service has the name of a machine, but is not the guest of the machine.
    let used = |kind: HolderKind, name: &str, address: &str| {
        let mut it = reservation(name, address, Source::Neighbour);
        it.claimant.machine = it.claimant.machine.of_kind(kind);
        it
    };
    let begun = [
        used(HolderKind::Service, "b", "10.0.0.3"),
        used(HolderKind::Cluster, "c1", "10.0.0.2"),
        used(HolderKind::Cluster, "c1", "10.0.0.5"),
    ];
    let changes = allocator.change_reports(&begun, &[], at(1));
    let rows: Vec<_> = changes.begun.iter().map(|it| (it.is_reserved, it.is_conflict)).collect();
    assert_eq!(rows, [(true, false), (true, false), (true, false)]);
    assert_eq!(two_users(&allocator), NONE);
    let neighbours: Vec<String> = allocator.neighbours().map(|(of, at, it)| format!("{of} {at} {}", it.name)).collect();
    assert_eq!(neighbours, ["n/vlan10 10.0.0.2 c1", "n/vlan10 10.0.0.3 b", "n/vlan10 10.0.0.5 c1"]);
    assert_eq!(given(&mut allocator, &claim("b", "1", &["n/one"]), 2), "10.0.0.4/28");
    let refused = given(&mut allocator, &named("d", "1", "n/one", &["10.0.0.3"]), 2);
    assert_eq!(refused, "10.0.0.3: taken by Service n/b");
    // The holder keeps the address. A record of the address of a Cluster becomes a lease, for example after the ledger
    // is lost.
    assert_eq!(given(&mut allocator, &claim("a", "1", &["n/one"]), 2), "10.0.0.2/28");
    adopt(&mut allocator, &[record("e", "10.0.0.5/28")]);
    assert_eq!(held(&allocator)[2], "n/vlan10 10.0.0.5/28 n/one e");
    release(&mut allocator, "a");
    assert_eq!(given(&mut allocator, &claim("f", "1", &["n/one"]), 3), "10.0.0.6/28");
    let ended = allocator.change_reports(&[], &begun, at(3)).ended;
    assert_eq!(ended.len(), 3);
    assert_eq!(given(&mut allocator, &claim("g", "1", &["n/one"]), 3), "10.0.0.2/28");
    assert_eq!(given(&mut allocator, &claim("h", "1", &["n/one"]), 3), "10.0.0.3/28");
}

#[test]
fn a_machine_gets_its_pre_allocated_address_although_a_cluster_has_the_address() {
    let mut allocator =
        allocator([on("vlan10", "one", "addresses: [10.0.0.0/28], preAllocations: {cp-0: 10.0.0.5}")], []);
    let mut of_cluster = reservation("c1", "10.0.0.5", Source::Neighbour);
    of_cluster.claimant.machine = of_cluster.claimant.machine.of_kind(HolderKind::Cluster);
    allocator.change_reports(&[of_cluster], &[], at(1));
    assert_eq!(given(&mut allocator, &claim("cp-0", "1", &["n/one"]), 2), "10.0.0.5/28");
    assert_eq!(two_users(&allocator), NONE);
}
