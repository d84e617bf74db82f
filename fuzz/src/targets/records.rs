//! Target for lists of objects with records.

use std::collections::BTreeSet;
use std::io::Read;
use std::net::IpAddr;

use glowplug::host::address::parse_interface_address;
use glowplug::host::claim::Allocation;
use glowplug::host::records::{Inventory, Objects, annotation_patch, status_patch};
use serde_json::Value;

use super::pools::may_be_held;

/// An input that is read in small pieces.
struct Pieces<'i>(&'i [u8]);

impl Read for Pieces<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let end = buffer.len().min(7);
        self.0.read(&mut buffer[..end])
    }
}

/// Reads a list in the format of `kubectl`. Checks that every record is canonical, that no machine has two records for
/// one interface, and that a record is unchanged after it is written and read again.
pub(super) fn records(input: &[u8]) {
    let inventory = read(input);
    assert_eq!(inventory, read(Pieces(input)));
    let Some(inventory) = inventory else { return };
    for diagnostic in &inventory.diagnostics {
        super::check_diagnostic(&diagnostic.diagnostic);
        assert_eq!(diagnostic.source, "list.json");
    }
    let is_before = |a: &_, b: &_| a < b;
    let claimants: Vec<_> = inventory.records.iter().map(|record| &record.claimant).collect();
    assert!(claimants.windows(2).all(|pair| is_before(pair[0], pair[1])), "{claimants:?}");
    for record in &inventory.records {
        let addresses: Vec<_> = record.addresses.iter().map(|address| address.ip()).collect();
        assert!(!addresses.is_empty() && record.source.starts_with("list.json: "), "{record:?}");
        let machine = &record.claimant.machine;
        assert!([&machine.namespace, &machine.name, &machine.uid].iter().all(|text| !text.is_empty()));
    }
    check_nothing_is_lost(input, &inventory);
    for record in &inventory.records {
        assert!(record.addresses.is_sorted(), "{record:?}");
        assert!(record.addresses.windows(2).all(|pair| pair[0].ip() != pair[1].ip()), "{record:?}");
        assert!(record.addresses.iter().all(|address| may_be_held(address.ip()) && address.prefix() > 0), "{record:?}");
        assert!(inventory.is_there(&record.claimant.machine), "{record:?}");
        let machine = &record.claimant.machine;
        let allocation = [Allocation { claimant: record.claimant.clone(), addresses: record.addresses.clone() }];
        let interface = record.claimant.interface;
        let networks = record.network.iter().map(|network| (interface, network.clone())).collect();
        let status = status_patch(machine, &allocation, None).unwrap();
        for patch in [Some(status), annotation_patch(machine, &allocation, &networks, None).ok()].into_iter().flatten()
        {
            let again = read(patch.to_string().as_bytes()).unwrap();
            let [read] = &again.records[..] else { panic!("{again:?}") };
            assert_eq!(
                (&read.claimant, &read.addresses, again.diagnostics.len()),
                (&record.claimant, &record.addresses, 0)
            );
        }
    }
}

/// Checks that the inventory has every readable address of the records, even if other parts of the object are invalid.
fn check_nothing_is_lost(input: &[u8], inventory: &Inventory) {
    let Ok(list) = serde_json::from_slice::<Value>(input) else { return };
    let records = inventory.records.iter().flat_map(|record| &record.addresses);
    let mut found: BTreeSet<IpAddr> = records.map(|address| address.ip()).collect();
    found.extend(inventory.diagnostics.iter().flat_map(|diagnostic| &diagnostic.addresses));
    for item in list["items"].as_array().into_iter().flatten() {
        let maps = item["status"]["allocatedBootstrapAddresses"].as_object();
        let lists = maps.into_iter().flat_map(|map| map.values()).filter_map(Value::as_array);
        let annotation = &item["metadata"]["annotations"]["kubevirt.cluster.x-k8s.io/allocated-ip-eno101"];
        let annotations = annotation.as_str().into_iter().flat_map(|text| text.split(',').map(str::trim_ascii));
        for text in lists.flatten().filter_map(Value::as_str).chain(annotations) {
            if let Ok((address, _)) = parse_interface_address(text) {
                assert!(found.contains(&address), "{address} is in neither of {inventory:?}");
            }
        }
    }
}

fn read(input: impl Read) -> Option<Inventory> {
    let mut objects = Objects::default();
    match objects.read("list.json", input) {
        Ok(_) => Some(objects.inventory()),
        Err(error) => {
            assert!(!error.to_string().is_empty());
            None
        }
    }
}
