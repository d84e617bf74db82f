//! Targets for pools, for their addresses, and for leases.

use std::collections::BTreeMap;
use std::net::IpAddr;

use glowplug::diagnostic::Diagnostics;
use glowplug::host::address::{Entry, parse_address, parse_interface_address};
use glowplug::host::claim::{Allocation, Claimant, Machine};
use glowplug::host::expand::{Grant, Template};
use glowplug::host::lease_name::{lease_name, parse_lease_name};
use glowplug::host::leases_file::read_leases;
use glowplug::host::nodepool::MachineTemplate;
use glowplug::host::pool::{Pool, PoolSpec, Space, TemplateFacts, overlaps};
use glowplug::host::pools_file::read_pools;
use glowplug::host::registry::Registry;
use glowplug::network::Family;
use ipnetwork::IpNetwork;

use super::check_diagnostics;

pub(super) fn allocation(addresses: &[IpNetwork]) -> Allocation {
    let (namespace, name, uid) = ("clusters".to_owned(), "worker-0".to_owned(), "u-1".to_owned());
    let claimant = Claimant { machine: Machine::new(namespace, name, uid), interface: "eno101".parse().unwrap() };
    Allocation { claimant, addresses: addresses.to_vec() }
}

/// Reads a document of pools. Checks that it has a pool or an error, and that the counts of each pool add up.
pub(super) fn pools(document: &[u8]) {
    let (specs, diagnostics) = read_pools(document);
    let (again, diagnostics_again) = read_pools(document);
    assert_eq!((&specs, diagnostics.kept()), (&again, diagnostics_again.kept()));
    check_diagnostics(&diagnostics);
    assert!(diagnostics.has_errors() || !specs.is_empty());
    let mut made = Vec::new();
    for spec in &specs {
        let mut diagnostics = Diagnostics::default();
        let pool = Pool::new(spec, &TemplateFacts::default(), &mut diagnostics);
        check_diagnostics(&diagnostics);
        assert_eq!(pool.is_none(), diagnostics.has_errors() || spec.has_errors);
        if let Some(pool) = pool {
            check_pool(spec, &pool);
            made.push(pool);
        }
    }
    let found = overlaps(&made);
    for overlap in &found.kept {
        let [first, second] = overlap.pools;
        assert_eq!(first.network(), second.network());
        for range in overlap.addresses.ranges() {
            for number in [range.first(), range.last()] {
                let address = range.family().address(number);
                assert!(first.offers(address) && second.offers(address), "{address}");
            }
        }
    }
}

/// Reads the leases of a cluster. Checks that a ledger gets every held lease, and that the name and the prefix length
/// of every held lease are valid.
pub(super) fn leases(document: &[u8]) {
    let (leases, diagnostics) = read_leases(document);
    check_diagnostics(&diagnostics);
    for (network, address, lease) in leases.held() {
        assert_eq!(parse_lease_name(&lease_name(address, network).unwrap()), Some((address, network.to_owned())));
        assert_eq!(IpNetwork::new(address, lease.prefix).unwrap().prefix(), lease.prefix);
    }
    let held = leases.held().count();
    assert!(leases.of_claims() <= held);
    let mut registry = Registry::open(leases.ledger().unwrap()).unwrap();
    assert_eq!(registry.state().unwrap().leases().count(), held);
}

fn check_pool(spec: &PoolSpec, pool: &Pool) {
    assert_eq!(pool.spaces().count() == 0, pool.is_external());
    for space in pool.spaces() {
        let family = space.family();
        let count = pool.count(family).unwrap();
        assert_eq!(count.total, count.allocatable + count.reserved.values().sum::<u128>());
        assert_eq!(count.allocatable, space.allocatable());
        assert!(count.reserved.values().all(|count| *count > 0));
        let touches = |pair: &[glowplug::host::address::AddressRange]| pair[0].last() + 1 >= pair[1].first();
        assert!(!space.ranges().windows(2).any(touches) && !space.reserved().windows(2).any(touches));
        let total: u128 = space.ranges().iter().map(|range| range.count()).sum();
        assert_eq!(total, count.total);
        if total <= 4096 {
            check_each(pool, space);
        }
        for gateway in pool.settings().routers() {
            assert!(!space.offers(gateway));
        }
    }
    // The MachineTemplate of the NodePool describes the same pool.
    let template = MachineTemplate::new(spec, pool).unwrap();
    let written = template.bootstrap_network_config;
    let again =
        PoolSpec { addresses: Some(written.subnets), excluded_addresses: written.excluded_addresses, ..spec.clone() };
    assert_eq!(Pool::new(&again, &TemplateFacts::default(), &mut Diagnostics::default()).as_ref(), Some(pool));
    let template = Template::parse(written.network_data.as_bytes()).unwrap();
    let addresses: Vec<IpNetwork> = pool.spaces().filter_map(first_offered).collect();
    let mut allocation = allocation(&addresses);
    allocation.claimant.interface = pool.interface();
    let settings = pool.settings().clone();
    let grant = Grant { allocation: &allocation, settings, mac_address: None, is_named: true };
    if addresses.len() == pool.spaces().count() && !pool.is_external() {
        template.expand(&[grant]).unwrap();
    }
}

/// Returns the first allocatable address among the first 64 of each range, with the prefix length of the first subnet.
fn first_offered(space: &Space) -> Option<IpNetwork> {
    let numbers = space.ranges().iter().flat_map(|range| (range.first()..=range.last()).take(64));
    let address = numbers.map(|number| space.family().address(number)).find(|address| space.offers(*address))?;
    IpNetwork::new(address, space.subnets()[0].prefix()).ok()
}

/// Checks the counts of a small pool by counting each address.
fn check_each(pool: &Pool, space: &Space) {
    let (mut offered, mut reserved) = (0, BTreeMap::new());
    for range in space.ranges() {
        for number in range.first()..=range.last() {
            let address = space.family().address(number);
            assert!(space.contains(address));
            match pool.why_reserved(address) {
                Some(why) => *reserved.entry(why).or_insert(0) += 1,
                None => offered += 1,
            }
            assert_eq!(space.offers(address), pool.why_reserved(address).is_none(), "{address}");
        }
    }
    let count = pool.count(space.family()).unwrap();
    assert_eq!((count.allocatable, count.reserved), (offered, reserved));
}

/// Reads lines, each with a pool entry or an address. Checks that the canonical form of each entry and address is read
/// as the same value.
pub(super) fn addresses(input: &[u8]) {
    for line in String::from_utf8_lossy(input).lines() {
        match line.parse::<Entry>() {
            Ok(entry) => {
                let written = entry.to_string();
                assert_eq!(written.parse(), Ok(entry), "{line:?}");
                assert!(entry.range().first() <= entry.range().last());
                assert!(entry.length().is_none_or(|length| length < entry.range().family().bits()));
            }
            Err(error) => super::check_diagnostic(&error.at("addresses[0]")),
        }
        match parse_address(line) {
            Ok(address) => {
                assert_eq!(parse_address(&address.to_string()), Ok(address));
                assert_eq!(Family::of(address).address(Family::number(address)), address);
                assert!(may_be_held(address), "{address}");
                assert!(line.parse::<Entry>().is_ok_and(|entry| entry.range().contains(address)), "{line:?}");
            }
            Err(error) => super::check_diagnostic(&error.at("gateway[0]")),
        }
        match parse_interface_address(line) {
            Ok((address, length)) => {
                let written = length.map_or(address.to_string(), |length| format!("{address}/{length}"));
                assert_eq!(parse_interface_address(&written), Ok((address, length)));
                assert!(may_be_held(address));
            }
            Err(error) => super::check_diagnostic(&error.at("records[0]")),
        }
    }
}

/// Whether a machine can have this address.
pub(super) fn may_be_held(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => !matches!(address.octets()[0], 0 | 127 | 224..),
        IpAddr::V6(address) => {
            let is_special = address.is_unspecified() || address.is_loopback() || address.is_multicast();
            !is_special && !address.is_unicast_link_local() && address.to_ipv4().is_none()
        }
    }
}
