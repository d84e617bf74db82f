//! Boots with a newer release of Debian: its kernel, dracut, systemd, NetworkManager and Ignition.
//!
//! The images with Ignition and NetworkManager also have NetworkManager's own units for the initramfs, which Debian
//! leaves out, and a unit that ends the first boot as CoreOS does. The other images have neither.

use super::drives::{iso, iso_with_user_data, iso_without_network};
use super::machine::{self, Bus, Image, OWN, Report, VirtualMachine};
use super::{
    PROFILES, UNIT, as_default, as_dual_stack_in_debian, as_static, document, dual_stack_and_a_quiet_nic, fetch,
    fetch_with, fetches_over_networkd, found, outcome, own, without_metrics, words,
};
use crate::support::versions::{tested, upstream};

/// Programs in the table of README.md, each with its Debian package.
const PACKAGES: [(&str, &str); 4] = [
    ("NetworkManager", "network-manager"),
    ("dracut", "dracut-core"),
    ("systemd", "systemd"),
    ("Ignition", "ignition"),
];

/// Boots a disk with the newer release. In the initramfs, Ignition fetches a file over a dual-stack network. Both NICs
/// have a DHCP server.
fn first_boot(machine: VirtualMachine) -> Report {
    let directory = tempfile::tempdir_in(machine::images()).unwrap();
    let disk = machine::newer_debian(directory.path());
    let document = dual_stack_and_a_quiet_nic();
    let machine = machine.nics(2).root(&disk);
    fetch_with(machine, Bus::SataCdrom, |user_data| iso_with_user_data(OWN, &document, user_data))
}

#[test]
fn the_real_root_has_the_network_of_kernel_arguments() {
    let report = first_boot(VirtualMachine::new(Image::NewerIgnition));
    assert_eq!(without_metrics(report.found()), as_dual_stack_in_debian());
    assert_eq!(report.addresses_of_the_initramfs(), as_dual_stack_in_debian().addresses);
    let copied = "copied 52:54:00:12:34:56.nmconnection\ncopied 52:54:00:12:34:57.nmconnection\n";
    assert_eq!(report.part("teardown"), copied);
}

#[test]
fn the_real_root_has_the_network_of_profiles() {
    let report = first_boot(VirtualMachine::new(Image::NewerIgnition).argument(PROFILES));
    assert_eq!(without_metrics(report.found()), as_dual_stack_in_debian());
    assert_eq!(report.addresses_of_the_initramfs(), as_dual_stack_in_debian().addresses);
    let copied = "copied 50-glowplug-0000-52-54-00-12-34-56.nmconnection\n\
                  copied 50-glowplug-0001-52-54-00-12-34-57.nmconnection\n";
    assert_eq!(report.part("teardown"), copied);
}

/// The initramfs uses the default arguments. CoreOS does not copy their profiles to the real root, which uses DHCP.
#[test]
fn the_default_arguments_apply_only_to_the_initramfs() {
    let directory = tempfile::tempdir_in(machine::images()).unwrap();
    let disk = machine::newer_debian(directory.path());
    let machine = VirtualMachine::new(Image::NewerIgnition).root(&disk);
    let report = fetch_with(machine, Bus::VirtioBlk, |user_data| iso_without_network(OWN, user_data));
    assert_eq!(outcome(&report), words("default", "the drive has no network configuration"));
    assert_eq!(report.addresses_of_the_initramfs(), ["eno101 192.168.1.78/24"]);
    assert_eq!(report.part("teardown"), "left out the default\n");
    assert_eq!(report.found().addresses, ["eno101 192.168.1.15/24"]);
}

#[test]
fn a_newer_image_without_a_drive_uses_the_default_arguments() {
    let report = VirtualMachine::new(Image::NewerPlain).argument("glowplug.wait=1").boot();
    assert_eq!(report.found(), as_default());
    assert_eq!(outcome(&report), words("default", "no config drive appeared within 1 s"));
}

#[test]
fn a_vlan_is_on_a_bond_of_two_interfaces() {
    let expected = found(
        &["agg.100 10.0.0.5/24"],
        &["default via 10.0.0.1 dev agg.100 metric 400", "10.0.0.0/24 dev agg.100 scope link src 10.0.0.5 metric 400"],
        &[],
    );
    let drive = own("vlan-on-bond");
    let report = VirtualMachine::new(Image::NewerPlain).drive(Bus::VirtioBlk, &drive).nics(2).boot();
    assert_eq!((report.found(), report.ports("agg")), (expected, vec!["eno101".to_owned(), "eno102".to_owned()]));
}

#[test]
fn a_broken_document_stops_the_boot() {
    let document = document("static-ipv4").replace("255.255.255.0", "255.0.255.0");
    let machine = VirtualMachine::new(Image::NewerPlain);
    let report = machine.drive(Bus::VirtioBlk, &iso("config-2", OWN, &document)).boot();
    assert!(report.is_emergency());
    assert_eq!((report.unit(UNIT, "Result"), report.unit(UNIT, "ActiveState")), ("exit-code", "failed"));
    let reason = "openstack/latest/network_data.json: 1 error";
    assert_eq!((outcome(&report), report.fragment()), (words("refused", reason), ""));
}

#[test]
fn in_strict_mode_a_machine_with_a_network_boots() {
    let report = fetch(Image::NewerStrict, "static-ipv4");
    assert_eq!((report.found(), report.part("teardown")), (as_static(), "copied 52:54:00:12:34:56.nmconnection\n"));
}

#[test]
fn ignition_fetches_over_the_network_that_networkd_makes() {
    fetches_over_networkd(Image::NewerNetworkd);
}

/// Returns the numbers of a version, so that versions can be compared.
fn numbers(version: &str) -> Vec<u32> {
    version.split('.').map(|number| number.parse().unwrap_or_else(|error| panic!("{version}: {error}"))).collect()
}

/// The table may have older versions than the boots, because Debian updates the newer release until the freeze.
#[test]
fn the_table_of_versions_has_no_newer_program_than_these_boots() {
    let rows = tested();
    for (program, package) in PACKAGES {
        let row = &rows[program];
        let (_, newer) = row.split_once("; ").unwrap_or_else(|| panic!("{program}: no second version in {row:?}"));
        let installed = machine::newer_version(package);
        assert!(numbers(upstream(&installed)) >= numbers(newer), "{program}: {newer}, is {installed}");
    }
}
