use glowplug::host::claim::{Claim, Request};
use glowplug::host::ledger::MemoryLedger;
use glowplug::host::registry::Registry;
use k8s_openapi::jiff::Timestamp;

use super::*;
use crate::cluster::key::key;
use crate::kinds::pool::HolderKind;

const NOW: Timestamp = Timestamp::UNIX_EPOCH;

fn machine(name: &str) -> Machine {
    key(name).holder(HolderKind::VirtualMachine, &format!("{name}-1"))
}

/// A registry with the pool `n/p`, whose addresses are closed.
fn closed() -> Registry<MemoryLedger> {
    let mut registry = Registry::open(MemoryLedger::default()).unwrap();
    let pool = br#"{"namespace": "n", "name": "p", "network": "infra/vlan10", "addresses": ["10.0.0.8/30"],
        "machineNetwork": [{"cidr": "10.0.0.0/16"}]}"#;
    registry.resize(Pool::parse(pool).unwrap(), &[], NOW).unwrap();
    registry
}

fn opened() -> Registry<MemoryLedger> {
    let mut registry = closed();
    registry.open_addresses(NOW).unwrap();
    registry
}

fn claim(registry: &mut Registry<MemoryLedger>, name: &str) -> Vec<IpNetwork> {
    let (machine, requests) = (machine(name), vec![Request::of("n/p")]);
    let claim = Claim { machine, created: NOW, requests, sticky: true, secret: None };
    registry.claim(&claim, NOW).unwrap().remove(0).addresses
}

fn record(name: &str, address: &str) -> Record {
    Record {
        claimant: Claimant { machine: machine(name), interface: "eno101".parse().unwrap() },
        node_pool: Some("n/p".to_owned()),
        attachments: vec!["infra/vlan10".to_owned()],
        network: Some("infra/vlan10".to_owned()),
        addresses: vec![address.parse().unwrap()],
        source: format!("VirtualMachine n/{name}"),
        kind: Source::Annotation,
    }
}

#[test]
fn a_late_record_reserves_the_address_of_another_holder_unless_the_record_may_be_a_copy() {
    let mut registry = opened();
    let address = claim(&mut registry, "h").remove(0);
    let late = |registry: &mut Registry<MemoryLedger>, may_be_copies| {
        let (records, allocator) = ([record("w", &address.to_string())], registry.state().unwrap());
        let doubted = BTreeSet::new();
        let records = (&records[..], &doubted, may_be_copies, allocator.growth());
        Recorded::read(allocator, (&key("w"), &[].into(), &[].into()), records, &["n/p".to_owned()], "").late
    };
    assert_eq!(late(&mut registry, true), []);
    let Record { claimant, network, source, .. } = record("w", &address.to_string());
    let reservation = Reservation { address: address.ip(), network, claimant, source, kind: Source::Unreadable };
    assert_eq!(late(&mut registry, false), std::slice::from_ref(&reservation));
    registry.set_aside([reservation], NOW).unwrap();
    assert_eq!(late(&mut registry, false), []);
    // After the release, no third machine gets the address: the late record still reserves it.
    registry.release(&machine("h"), NOW).unwrap();
    for other in ["a", "b", "c"] {
        assert_ne!(claim(&mut registry, other), [address]);
    }
}

#[test]
fn a_recorded_address_is_free_when_the_address_is_open_and_no_other_machine_holds_it() {
    let mut registry = closed();
    let records = || vec![record("w", "10.0.0.8/16"), record("w", "10.0.0.11/16")];
    assert_eq!(free_of(registry.state().unwrap(), records()), Err(ClaimError::Closed("n/p".to_owned())));
    registry.open_addresses(NOW).unwrap();
    assert_eq!(free_of(registry.state().unwrap(), records()), Ok(records()));
    let held = claim(&mut registry, "h").remove(0);
    let mut free = records();
    free.retain(|record| record.addresses != [held]);
    assert_eq!((free_of(registry.state().unwrap(), records()), free.len()), (Ok(free), 1));
}

#[test]
fn a_reservation_without_a_record_is_unrecorded_and_a_later_record_of_its_address_is_late() {
    let mut registry = opened();
    let Record { claimant, network, source, .. } = record("w", "10.0.0.9/16");
    let address = "10.0.0.9".parse().unwrap();
    let reservation = Reservation { address, network, claimant, source, kind: Source::Unreadable };
    registry.set_aside([reservation.clone()], NOW).unwrap();
    let mut doubted = BTreeSet::new();
    let read = |registry: &mut Registry<MemoryLedger>, records: &[Record], doubted: &BTreeSet<IpAddr>| {
        let allocator = registry.state().unwrap();
        let records = (records, doubted, false, allocator.growth());
        let read = Recorded::read(allocator, (&key("w"), &[].into(), &[].into()), records, &["n/p".to_owned()], "");
        (read.unrecorded, read.late)
    };
    let records = [record("w", "10.0.0.9/16")];
    assert_eq!(read(&mut registry, &records, &doubted), (BTreeMap::new(), vec![]));
    // An object still names the address, but in a record that cannot be read.
    doubted.insert(address);
    assert_eq!(read(&mut registry, &[], &doubted), (BTreeMap::new(), vec![]));
    doubted.clear();
    let unrecorded = BTreeMap::from([(machine("w"), [("infra/vlan10".to_owned(), address)].into())]);
    assert_eq!(read(&mut registry, &[], &doubted), (unrecorded.clone(), vec![]));
    registry.end_records(&machine("w"), &unrecorded[&machine("w")]).unwrap();
    assert_eq!(read(&mut registry, &[], &doubted), (BTreeMap::new(), vec![]));
    assert_eq!(read(&mut registry, &records, &doubted), (BTreeMap::new(), vec![reservation.clone()]));
    registry.set_aside([reservation], NOW).unwrap();
    assert_eq!(read(&mut registry, &records, &doubted), (BTreeMap::new(), vec![]));
}

#[test]
fn a_reserved_address_that_another_machine_holds_is_a_conflict() {
    let mut registry = opened();
    let held = claim(&mut registry, "h").remove(0).ip();
    for address in [held, "10.0.0.9".parse().unwrap()] {
        let Record { claimant, network, source, .. } = record("w", "10.0.0.9/16");
        registry
            .set_aside([Reservation { address, network, claimant, source, kind: Source::NetworkData }], NOW)
            .unwrap();
    }
    let allocator = registry.state().unwrap();
    let records = (&[][..], &BTreeSet::new(), false, allocator.growth());
    let read = Recorded::read(allocator, (&key("w"), &[].into(), &[].into()), records, &["n/p".to_owned()], "");
    assert_eq!(read.conflicts, [("infra/vlan10".to_owned(), held)].into());
}

#[test]
fn the_machines_of_a_name_that_wait_are_known_without_the_claims_of_this_name() {
    let mut registry = opened();
    for name in ["a", "b", "c", "d"] {
        claim(&mut registry, name);
    }
    let earlier = Machine { vm_namespace: Some("n".to_owned()), ..Machine::new("clusters", "w", "m-1") };
    let elsewhere = Machine { vm_namespace: Some("m".to_owned()), ..Machine::new("n", "w", "m-2") };
    let of_claim = key("w").holder(HolderKind::IpAddressClaim, "c-1");
    let other = key("w").holder(HolderKind::KubevirtMachine, "m-3");
    for machine in [machine("w"), machine("v"), earlier.clone(), elsewhere, of_claim, other.clone()] {
        let claim = Claim { machine, created: NOW, requests: vec![Request::of("n/p")], sticky: false, secret: None };
        registry.claim(&claim, NOW).unwrap_err();
    }
    let allocator = registry.state().unwrap();
    let (doubted, earlier) = (BTreeSet::new(), BTreeSet::from([earlier]));
    let read = Recorded::read(
        allocator,
        (&key("w"), &earlier, &[].into()),
        (&[], &doubted, false, allocator.growth()),
        &[],
        "",
    );
    let mut expected = earlier.clone();
    expected.extend([machine("w"), other]);
    assert_eq!(read.waiting, expected);
}

#[test]
fn the_addresses_of_claims_of_a_virtual_machine_are_known() {
    let mut registry = opened();
    let of = |name: &str, uid: &str| key(name).holder(HolderKind::IpamClaim, uid);
    let labelled = of("any", "c-2");
    for holder in [of("w.net1", "c-1"), labelled.clone(), of("w.x.net1", "c-3"), of("w-x.net1", "c-4")] {
        let requests = vec![Request::of("n/p")];
        let claim = Claim { machine: holder, created: NOW, requests, sticky: false, secret: None };
        registry.claim(&claim, NOW).unwrap();
    }
    let mut read = |labelled: &BTreeSet<Machine>, scope: &str| {
        let allocator = registry.state().unwrap();
        let records = (&[][..], &BTreeSet::new(), false, allocator.growth());
        let read = Recorded::read(allocator, (&key("w"), &[].into(), labelled), records, &[], scope);
        assert_eq!(read.held, []);
        read.of_claims.into_iter().map(|held| (held.claimant.machine, held.address.to_string())).collect::<Vec<_>>()
    };
    let named = (of("w.net1", "c-1"), "10.0.0.8".to_owned());
    assert_eq!(read(&BTreeSet::new(), ""), std::slice::from_ref(&named));
    assert_eq!(read(&[labelled.clone()].into(), "n"), [(labelled, "10.0.0.9".to_owned()), named]);
    assert_eq!(read(&BTreeSet::new(), "another"), []);
}
