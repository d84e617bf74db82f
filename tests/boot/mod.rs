//! Boots whole virtual machines: Debian's kernel in QEMU, dracut, systemd, NetworkManager, Ignition, and a root that
//! reports its network. The default network of a machine has no DHCP server.
//!
//! `make boot` runs only these tests.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a helper of a test may fail the test")]

mod drives;
mod machine;
mod newer;

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::Path;
use std::thread;
use std::time::Duration;

use self::drives::{HOSTILE, KEY, fat, iso, iso_with_user_data, iso_without_network, of_the_controller, of_the_host};
use crate::support::cases::Program;
use crate::support::{cases, models, state};
use glowplug::network::{LinkKind, NetworkConfig};

use self::machine::{Bus, Found, Image, Network, OWN, Report, VirtualMachine};

/// UUID of another machine.
const OTHER: &str = "11111111-2222-3333-4444-555555555555";

const UNIT: &str = "glowplug-network-kargs.service";

fn found(addresses: &[&str], routes: &[&str], nameservers: &[&str]) -> Found {
    let owned = |lines: &[&str]| lines.iter().map(|line| (*line).to_owned()).collect();
    Found { addresses: owned(addresses), routes: owned(routes), nameservers: owned(nameservers) }
}

/// Reads the document of a case in `fixtures/guest`.
fn document(case: &str) -> String {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/guest"));
    fs::read_to_string(root.join(case).join("openstack/latest/network_data.json")).unwrap()
}

/// Builds a drive with the document of a case for the tested machine, as KubeVirt does.
fn own(case: &str) -> Vec<u8> {
    iso("config-2", OWN, &document(case))
}

/// Returns a machine whose drive has the document of a case.
fn with(case: &str) -> VirtualMachine {
    VirtualMachine::new(Image::Plain).drive(Bus::VirtioBlk, &own(case))
}

/// Returns the expected network of the cases `static-ipv4` and `static-by-id`.
fn as_static() -> Found {
    found(
        &["eno101 192.168.1.100/24"],
        &[
            "default via 192.168.1.1 dev eno101 metric 100",
            "192.168.1.0/24 dev eno101 scope link src 192.168.1.100 metric 100",
        ],
        &["8.8.8.8", "8.8.4.4"],
    )
}

/// Returns the network of [`as_static`] as Debian's tools report it.
fn as_static_in_debian() -> Found {
    let Found { addresses, nameservers, .. } = as_static();
    let routes = [
        "default via 192.168.1.1 dev eno101 proto static metric 100",
        "192.168.1.0/24 dev eno101 proto kernel scope link src 192.168.1.100 metric 100",
    ];
    Found { addresses, routes: routes.map(str::to_owned).to_vec(), nameservers }
}

/// Returns a document with a dual-stack NIC, and a second NIC that must get no address.
fn dual_stack_and_a_quiet_nic() -> String {
    let mut document = dual_stack();
    let quiet = serde_json::json!({"id": "quiet", "type": "phy", "ethernet_mac_address": machine::MACS[1]});
    document["links"].as_array_mut().unwrap().push(quiet);
    document.to_string()
}

/// Returns the network of [`dual_stack_and_a_quiet_nic`] as Debian's tools report it, without metrics.
fn as_dual_stack_in_debian() -> Found {
    found(
        &["eno101 192.168.1.100/24", "eno101 2001:db8::5/64"],
        &[
            "default via 192.168.1.1 dev eno101 proto static",
            "192.168.1.0/24 dev eno101 proto kernel scope link src 192.168.1.100",
            "2001:db8::/64 dev eno101 proto kernel",
            "default via fe80::1 dev eno101 proto static",
        ],
        &["8.8.8.8", "8.8.4.4"],
    )
}

/// Removes the metrics of the routes: NetworkManager chooses the metric by the order in which the interfaces come up.
fn without_metrics(Found { addresses, mut routes, nameservers }: Found) -> Found {
    for route in &mut routes {
        *route = route.split(" metric ").next().unwrap().to_owned();
    }
    Found { addresses, routes, nameservers }
}

/// Returns the expected network of a machine with the distribution's default arguments.
fn as_default() -> Found {
    found(
        &["eno101 192.168.1.77/24"],
        &[
            "default via 192.168.1.1 dev eno101 metric 100",
            "192.168.1.0/24 dev eno101 scope link src 192.168.1.77 metric 100",
        ],
        &[],
    )
}

fn outcome(report: &Report) -> (String, String) {
    let plan = report.plan();
    let text = |name: &str| plan[name].as_str().unwrap_or_default().to_owned();
    (text("outcome"), text("reason"))
}

fn words(outcome: &str, reason: &str) -> (String, String) {
    (outcome.to_owned(), reason.to_owned())
}

// === documents ===

#[test]
fn a_nic_without_a_mac_address_is_identified_by_its_name_in_a_boot() {
    assert_eq!(with("static-by-id").boot().found(), as_static());
}

#[test]
fn the_default_route_is_on_the_second_of_two_nics() {
    let Found { addresses, mut routes, nameservers } = without_metrics(with("two-nics").nics(2).boot().found());
    routes.sort();
    let expected = found(
        &["eno101 10.0.0.5/24", "eno102 10.0.1.5/24"],
        &[
            "10.0.0.0/24 dev eno101 scope link src 10.0.0.5",
            "10.0.1.0/24 dev eno102 scope link src 10.0.1.5",
            "default via 10.0.1.1 dev eno102",
        ],
        &[],
    );
    assert_eq!(Found { addresses, routes, nameservers }, expected);
}

/// Only one of the two names exists. NetworkManager waits for the other name until a timeout.
#[test]
fn one_network_under_two_names_uses_the_existing_interface() {
    let report = with("one-network-two-names").argument("net.ifnames=0").boot();
    let expected = found(
        &["eth0 10.0.0.5/24"],
        &["default via 10.0.0.1 dev eth0 metric 100", "10.0.0.0/24 dev eth0 scope link src 10.0.0.5 metric 100"],
        &[],
    );
    assert_eq!((report.found(), report.unit("nm-wait-online-initrd.service", "Result")), (expected, "success"));
    let warning = r#"warning about the network document diagnostic="links[1]: second name of a network \"eth0\", expected one name for one interface: links[0] has this network too, and an initramfs that needs the network waits for the name that no interface has""#;
    assert_eq!(report.messages()[1], warning);
}

#[test]
fn a_nic_gets_the_mtu_of_its_link() {
    let report = with("static-mtu").boot();
    let addresses = vec!["eno101 10.0.0.5/24".to_owned(), "eno101 2001:db8::5/64".to_owned()];
    assert_eq!((report.mtu("eno101"), report.found().addresses), (Some(1400), addresses));
}

#[test]
fn a_vlan_is_on_its_nic() {
    let expected = found(
        &["kv0.100 10.0.0.5/24"],
        &["default via 10.0.0.1 dev kv0.100 metric 400", "10.0.0.0/24 dev kv0.100 scope link src 10.0.0.5 metric 400"],
        &[],
    );
    assert_eq!(with("vlan").boot().found(), expected);
}

#[test]
fn a_vlan_is_on_a_bond_of_two_interfaces() {
    let expected = found(
        &["agg.100 10.0.0.5/24"],
        &["default via 10.0.0.1 dev agg.100 metric 400", "10.0.0.0/24 dev agg.100 scope link src 10.0.0.5 metric 400"],
        &[],
    );
    let report = with("vlan-on-bond").nics(2).boot();
    assert_eq!((report.found(), report.ports("agg")), (expected, vec!["eno101".to_owned(), "eno102".to_owned()]));
}

#[test]
fn a_nic_has_an_address_from_dhcp_and_the_default_route_of_the_document() {
    let document = document("default-route-with-dhcp").replace("192.0.2.1", "192.168.1.254");
    let drive = iso("config-2", OWN, &document);
    let report = VirtualMachine::new(Image::Plain).network(Network::Dhcp).drive(Bus::VirtioBlk, &drive).boot();
    let expected = found(
        &["eno101 192.168.1.15/24"],
        &[
            "default via 192.168.1.254 dev eno101 metric 100",
            "192.168.1.0/24 dev eno101 scope link src 192.168.1.15 metric 100",
        ],
        &[],
    );
    assert_eq!(report.found(), expected);
}

// === position of the drive ===

/// Boots with the drive on this bus, and checks that our unit finds the drive as `device`. Also prints the times of our
/// unit, which vary too much between hosts for an assertion.
fn found_on(bus: Bus, device: &str, title: &str) {
    let machine = VirtualMachine::new(Image::Plain).argument("glowplug.debug");
    let report = machine.drive(bus, &own("static-ipv4")).boot();
    assert_eq!(report.found(), as_static());
    let drive = &report.plan()["drive"];
    assert_eq!((drive["path"].as_str(), drive["reason"].as_str()), (Some(device), Some("own-uuid")));
    report.print_figures(title);
}

#[test]
fn the_drive_is_on_virtio_blk() {
    found_on(Bus::VirtioBlk, "/dev/vdb", "virtio-blk");
}

#[test]
fn the_drive_is_a_sata_disk() {
    found_on(Bus::SataDisk, "/dev/sda", "SATA disk");
}

#[test]
fn the_drive_is_a_sata_cdrom() {
    found_on(Bus::SataCdrom, "/dev/sr0", "SATA cdrom");
}

#[test]
fn the_drive_is_on_virtio_scsi() {
    found_on(Bus::VirtioScsi, "/dev/sda", "virtio-scsi");
}

#[test]
fn the_drive_is_on_usb() {
    found_on(Bus::Usb, "/dev/sda", "USB");
}

#[test]
fn the_drive_comes_late() {
    let late = Bus::VirtioBlkLate(Duration::from_secs(5));
    let report = VirtualMachine::new(Image::Plain).drive(late, &own("static-ipv4")).boot();
    assert_eq!(report.found(), as_static());
    // The drive is plugged in after the first search, so the program must have waited. The duration depends on the
    // host.
    let waited = report.plan()["drive"]["waited_ms"].as_u64().unwrap();
    assert!(waited > 0, "{waited} ms");
}

#[test]
fn the_drive_has_a_fat_file_system() {
    let drive = fat("CONFIG-2", OWN, &document("static-ipv4"));
    assert_eq!(VirtualMachine::new(Image::Plain).drive(Bus::VirtioBlk, &drive).boot().found(), as_static());
}

#[test]
fn disks_and_drives_of_other_machines_are_ignored() {
    let report = VirtualMachine::new(Image::Plain)
        .drive(Bus::VirtioBlk, &[0xa5; 1024 * 1024])
        .drive(Bus::VirtioBlk, &iso("config-2", OTHER, &document("static-by-id")))
        .drive(Bus::SataDisk, &own("static-ipv4"))
        .drive(Bus::SataCdrom, &iso("cidata", OTHER, &document("static-by-id")))
        .boot();
    assert_eq!(report.found(), as_static());
    assert_eq!(report.plan()["drive"]["path"], "/dev/sda");
}

// === missing and invalid documents ===

#[test]
fn without_a_drive_the_default_applies() {
    let report = VirtualMachine::new(Image::Plain).argument("glowplug.wait=1").boot();
    assert_eq!(report.found(), as_default());
    assert_eq!(outcome(&report), words("default", "no config drive appeared within 1 s"));
}

#[test]
fn a_boot_without_network_data_uses_the_default_arguments() {
    let report = VirtualMachine::new(Image::Plain).drive(Bus::VirtioBlk, &iso_without_network(OWN, "")).boot();
    assert_eq!(report.found(), as_default());
    assert_eq!(outcome(&report), words("default", "the drive has no network configuration"));
}

#[test]
fn a_broken_document_stops_the_boot_and_the_console_shows_the_error() {
    let document = document("static-ipv4").replace("255.255.255.0", "255.0.255.0");
    assert!(document.contains("255.0.255.0"));
    let report = VirtualMachine::new(Image::Plain).drive(Bus::VirtioBlk, &iso("config-2", OWN, &document)).boot();
    assert!(report.is_emergency());
    assert_eq!((report.unit(UNIT, "Result"), report.unit(UNIT, "ActiveState")), ("exit-code", "failed"));
    assert_eq!(
        report.messages()[1..],
        [
            r#"error in the network document diagnostic="networks[0].netmask: invalid netmask \"255.0.255.0\", expected a netmask without holes, or a prefix length above 0""#,
            r#"refused to configure the network reason="openstack/latest/network_data.json: 1 error""#,
        ]
    );
}

#[test]
fn the_drive_of_another_machine_stops_the_boot_and_the_console_shows_the_error() {
    let drive = iso("config-2", OTHER, &document("static-ipv4"));
    let report = VirtualMachine::new(Image::Plain).argument("glowplug.wait=1").drive(Bus::VirtioBlk, &drive).boot();
    let reason = format!(
        "/dev/vdb: config drive of another machine, uuid {OTHER:?}, expected {OWN}; \
         use the drive with --any-drive or glowplug.any-drive"
    );
    assert!(report.is_emergency());
    assert_eq!((outcome(&report), report.fragment()), (words("refused", &reason), ""));
    let message = format!("refused to configure the network reason={reason:?}");
    assert_eq!(report.messages().last(), Some(&message.as_str()));
}

/// A VirtualMachineInstance without `spec.domain.firmware` has one random UUID from KubeVirt on the drive, another
/// random UUID in the firmware, and no serial number.
#[test]
fn the_only_drive_of_a_virtual_machine_instance_without_firmware_is_used() {
    let machine = VirtualMachine::new(Image::Plain).uuid("0b1c8f1e-6a5f-4d42-9c8a-7d1f0e6c2b39");
    let report = machine.drive(Bus::VirtioBlk, &iso("config-2", OTHER, &document("static-ipv4"))).boot();
    assert_eq!((report.found(), report.plan()["drive"]["reason"].as_str()), (as_static(), Some("shape")));
}

/// The document on the drive is invalid, so the boot of any other kernel would stop.
#[test]
fn a_crash_kernel_boots_even_if_the_document_on_the_drive_is_invalid() {
    let drive = iso("config-2", OWN, "{");
    let report = VirtualMachine::new(Image::Kdump).drive(Bus::VirtioBlk, &drive).boot();
    assert!(!report.is_emergency());
    assert_eq!((report.unit(UNIT, "ActiveState"), report.plan()), ("inactive", serde_json::Value::Null));
}

#[test]
fn on_other_platforms_no_unit_of_glowplug_acts() {
    let platform = "ignition.platform.id=metal";
    let report = with("static-ipv4").elsewhere().without_arguments().argument(platform).boot();
    assert_eq!(report.found(), found(&[], &[], &[]));
    let reason = "this is not known to be KubeVirt: kernel command line has ignition.platform.id=metal";
    assert_eq!((outcome(&report), report.fragment()), (words("nothing-to-do", reason), ""));
}

#[test]
fn a_network_on_the_kernel_command_line_takes_precedence_over_the_drive() {
    let argument = "ip=192.168.1.50::192.168.1.1:24::eno101:none";
    let report = with("static-ipv4").argument(argument).boot();
    let reason = format!("the kernel command line configures the network with {argument}");
    assert_eq!(report.found().addresses, ["eno101 192.168.1.50/24"]);
    assert_eq!((outcome(&report), report.fragment()), (words("nothing-to-do", &reason), ""));
}

// === content of the image ===

const SYSTEMD: &str = "base systemd systemd-initrd dracut-systemd kernel-modules";

#[test]
fn a_unit_of_networkmanager_itself_reads_our_arguments() {
    assert_eq!(
        VirtualMachine::new(Image::Units).drive(Bus::VirtioBlk, &own("static-ipv4")).boot().found(),
        as_static()
    );
}

#[test]
fn an_image_without_a_supported_network_program_is_not_built() {
    let message = "the image has no network program: \
                add the dracut module network-manager, systemd-networkd or network-legacy";
    assert_eq!(machine::try_image(&format!("{SYSTEMD} connman glowplug")), (false, vec![message.to_owned()]));
}

#[test]
fn an_image_in_which_no_program_reads_our_arguments_is_not_built() {
    let warning = "no drop-in of glowplug-network-kargs.service sets GLOWPLUG_NETWORK_KARGS_DEFAULT (an empty value means no arguments): \
                   a KubeVirt machine that needs a default will not boot";
    let error = "neither NetworkManager-config-initrd.service nor a hook of dracut would read our arguments";
    assert_eq!(
        machine::try_image(&format!("{SYSTEMD} network-manager-deaf glowplug")),
        (false, vec![warning.to_owned(), error.to_owned()])
    );
}

// === Ignition ===

/// Starts a web server on loopback that answers every request with the document. Returns the port of the server.
fn serve(document: String) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { continue };
            let Ok(reading) = stream.try_clone() else { continue };
            let asked = BufReader::new(reading).lines().map_while(Result::ok).take_while(|line| !line.is_empty());
            asked.for_each(drop);
            let length = document.len();
            let _ = write!(
                stream,
                "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{document}"
            );
        }
    });
    port
}

/// Boots a machine in which Ignition fetches a file over the network of a case.
fn fetch(image: Image, case: &str) -> Report {
    let report = fetch_with(VirtualMachine::new(image), Bus::SataCdrom, |user_data| {
        iso_with_user_data(OWN, &document(case), user_data)
    });
    // The hostname comes from the metadata on the drive, which does not depend on the network.
    assert_eq!((report.part("hostname"), report.part("relabel")), ("worker-0\n", "z /etc/hostname - - -\n"));
    report
}

/// Boots a machine in which Ignition fetches a file from a web server of the host. `drive` builds a drive with the user
/// data.
fn fetch_with(machine: VirtualMachine, bus: Bus, drive: impl Fn(&str) -> Vec<u8>) -> Report {
    let remote = r#"{"ignition": {"version": "3.3.0"}, "storage": {"files": [
        {"path": "/etc/from-ignition", "contents": {"source": "data:,fetched%0A"}}]}}"#;
    let port = serve(remote.to_owned());
    let user_data = format!(
        r#"{{"ignition": {{"version": "3.3.0", "config": {{"merge": [{{"source": "http://192.168.1.1:{port}/remote"}}]}}}}}}"#
    );
    let report = machine.network(Network::User).drive(bus, &drive(&user_data)).boot();
    assert_eq!(report.part("file"), "fetched\n");
    report
}

/// Returns the document of the case `static-ipv4` with an additional static IPv6 address.
fn dual_stack() -> serde_json::Value {
    let mut document: serde_json::Value = serde_json::from_str(&document("static-ipv4")).unwrap();
    document["networks"].as_array_mut().unwrap().push(serde_json::json!({
        "id": "network1", "link": "eno101", "type": "ipv6", "ip_address": "2001:db8::5/64",
        "routes": [{"network": "::", "netmask": "::", "gateway": "fe80::1"}],
    }));
    document
}

#[test]
fn ignition_fetches_over_the_dual_stack_network_of_the_drive() {
    let document = dual_stack();
    let report = fetch_with(VirtualMachine::new(Image::Ignition), Bus::SataCdrom, |user_data| {
        iso_with_user_data(OWN, &document.to_string(), user_data)
    });
    let Found { mut addresses, mut routes, nameservers } = as_static();
    addresses.push("eno101 2001:db8::5/64".to_owned());
    routes.push("2001:db8::/64 dev eno101 metric 100".to_owned());
    routes.push("default via fe80::1 dev eno101 metric 100".to_owned());
    assert_eq!(report.found(), Found { addresses, routes, nameservers });
    // The hostname comes from the metadata on the drive, which does not depend on the network.
    assert_eq!((report.part("hostname"), report.part("relabel")), ("worker-0\n", "z /etc/hostname - - -\n"));
}

#[test]
fn ignition_fetches_over_the_network_that_the_host_gives_the_machine() {
    let report = fetch_with(VirtualMachine::new(Image::Ignition), Bus::VirtioBlk, |user_data| {
        of_the_host(machine::MACS[0], user_data)
    });
    assert_eq!((report.found(), report.part("hostname")), (as_static(), "worker-0\n"));
}

/// The kernel, dracut and Ignition come from Debian. Other images of these tests have a substitute for afterburn. This
/// image has the real program, as stock images do.
#[test]
fn afterburn_alone_gives_the_machine_the_network_of_the_host() {
    let report = fetch_with(VirtualMachine::new(Image::Stock), Bus::VirtioBlk, |user_data| {
        of_the_host(machine::MACS[0], user_data)
    });
    assert_eq!((report.found(), report.part("plan")), (as_static(), ""));
}

#[test]
fn ignition_fetches_over_the_network_that_the_controller_gives_the_machine() {
    let drive = |user_data: &str| of_the_controller(OWN, machine::MACS[0], user_data);
    let report = fetch_with(VirtualMachine::new(Image::Ignition), Bus::VirtioBlk, drive);
    assert_eq!((report.found(), report.part("hostname")), (as_static(), "workers-0\n"));
}

#[test]
fn ignition_fetches_over_the_network_that_networkd_makes() {
    fetches_over_networkd(Image::Networkd);
}

/// Boots a machine in which Ignition fetches over the network that networkd makes, and checks this network.
fn fetches_over_networkd(image: Image) {
    let report = fetch(image, "static-ipv4");
    let expected = found(
        &["eno101 192.168.1.100/24"],
        &["default via 192.168.1.1 dev eno101", "192.168.1.0/24 dev eno101 scope link src 192.168.1.100"],
        &[],
    );
    assert_eq!((report.found(), report.fragment()), (expected, ""));
    assert_eq!(report.part("name servers of the initramfs"), "8.8.8.8 8.8.4.4\n");
}

#[test]
fn ignition_fetches_over_the_network_that_the_scripts_of_dracut_make() {
    let report = fetch(Image::Legacy, "static-ipv4");
    let expected = found(
        &["eno101 192.168.1.100/24"],
        &["default via 192.168.1.1 dev eno101", "192.168.1.0/24 dev eno101 scope link src 192.168.1.100"],
        &[],
    );
    assert_eq!(report.found(), expected);
    assert_eq!(report.part("name servers of the initramfs"), "8.8.8.8\n8.8.4.4\n");
}

/// The default arguments are in a file that networkd's generator reads only because of our drop-in.
#[test]
fn networkd_gets_the_default_arguments_of_a_machine_without_network_data() {
    let report = VirtualMachine::new(Image::Networkd).drive(Bus::VirtioBlk, &iso_without_network(OWN, "")).boot();
    let routes = ["default via 192.168.1.1 dev eno101", "192.168.1.0/24 dev eno101 scope link src 192.168.1.77"];
    assert_eq!(report.found(), found(&["eno101 192.168.1.77/24"], &routes, &[]));
    assert_eq!(outcome(&report), words("default", "the drive has no network configuration"));
}

#[test]
fn on_kubevirt_only_glowplug_acts_and_uses_the_default_arguments_of_afterburn() {
    let machine = VirtualMachine::new(Image::Ignition).argument("rd.neednet=1");
    let report = machine.drive(Bus::VirtioBlk, &iso_without_network(OWN, "")).boot();
    let expected = found(
        &["eno101 192.168.1.78/24"],
        &[
            "default via 192.168.1.1 dev eno101 metric 100",
            "192.168.1.0/24 dev eno101 scope link src 192.168.1.78 metric 100",
        ],
        &[],
    );
    assert_eq!((report.found(), report.part("afterburn"), report.part("hostname")), (expected, "", "worker-0\n"));
    assert_eq!(outcome(&report), words("default", "the drive has no network configuration"));
}

/// A unit of CoreOS reads the default arguments from afterburn's drop-in, so strict mode keeps this drop-in.
#[test]
fn in_strict_mode_a_machine_with_a_network_boots() {
    let report = fetch(Image::Strict, "static-ipv4");
    assert_eq!((report.found(), report.part("teardown")), (as_static(), "copied 52:54:00:12:34:56.nmconnection\n"));
}

#[test]
fn in_strict_mode_a_machine_without_a_network_stops() {
    let report = VirtualMachine::new(Image::Strict).drive(Bus::VirtioBlk, &iso_without_network(OWN, "")).boot();
    assert!(report.is_emergency());
    let reason = "the drive has no network configuration, and the default is missing: \
                  GLOWPLUG_NETWORK_KARGS_DEFAULT is not set, expected kernel arguments, or nothing for none";
    assert_eq!((outcome(&report), report.fragment()), (words("refused", reason), ""));
}

#[test]
fn on_other_platforms_only_afterburn_acts() {
    let platform = "ignition.firstboot ignition.platform.id=metal";
    let machine = VirtualMachine::new(Image::Ignition).elsewhere().without_arguments().argument(platform);
    let report = machine.drive(Bus::VirtioBlk, &own("static-ipv4")).boot();
    let arguments = "ip=192.168.1.78::192.168.1.1:24::eno101:none\n";
    assert_eq!((report.part("afterburn"), report.part("hostname")), (&*format!("{arguments}hostname\n"), ""));
    let reason = "this is not known to be KubeVirt: kernel command line has ignition.platform.id=metal";
    assert_eq!((outcome(&report), report.fragment()), (words("nothing-to-do", reason), ""));
}

#[test]
fn with_ignition_no_unit_of_glowplug_runs_in_the_initramfs_after_the_first_boot() {
    let machine = VirtualMachine::new(Image::Ignition).without_arguments().argument("ignition.platform.id=kubevirt");
    let report = machine.drive(Bus::VirtioBlk, &own("static-ipv4")).boot();
    assert_eq!((report.plan(), report.fragment(), report.part("hostname")), (serde_json::Value::Null, "", ""));
}

/// Nothing of networkd's files stays on the disk.
#[test]
fn with_ignition_and_networkd_the_machine_has_its_network_after_the_first_boot_too() {
    let machine = VirtualMachine::new(Image::Networkd).without_arguments().argument("ignition.platform.id=kubevirt");
    let report = machine.drive(Bus::VirtioBlk, &own("static-ipv4")).boot();
    let routes = ["default via 192.168.1.1 dev eno101", "192.168.1.0/24 dev eno101 scope link src 192.168.1.100"];
    assert_eq!(report.found(), found(&["eno101 192.168.1.100/24"], &routes, &[]));
    assert_eq!(report.part("hostname"), "");
}

/// Boots a machine twice from the same disk with Debian.
#[test]
fn the_units_of_the_real_root_run_at_both_boots_and_the_network_stays() {
    let directory = tempfile::tempdir_in(machine::images()).unwrap();
    let disk = machine::debian(directory.path());
    let boot = |machine: VirtualMachine| machine.root(&disk).drive(Bus::SataCdrom, &own("static-ipv4")).boot();
    let first = boot(VirtualMachine::new(Image::Ignition));
    let second =
        boot(VirtualMachine::new(Image::Ignition).without_arguments().argument("ignition.platform.id=kubevirt"));

    let attributes = |prefix: &str, instance_id: &str| {
        let named = [
            ("HOSTNAME", "worker-0"),
            ("INSTANCE_ID", instance_id),
            ("INSTANCE_TYPE", r#"" u1 \"large\" 'x' \$HOME \`id\` \$(id) \\n \\\\ # ; %i é ""#),
            ("INTERFACE", "eno101"),
            ("IPV4", "192.168.1.100"),
            ("MAC", "52:54:00:12:34:56"),
            ("NAME", "worker-0"),
            ("NAMESPACE", "clusters"),
            ("UUID", OWN),
        ];
        named.map(|(name, value)| format!("{prefix}_KUBEVIRT_{name}={value}\n")).concat()
    };
    let keys = format!(
        "core 700 /home/core/.ssh\ncore 700 /home/core/.ssh/authorized_keys.d\n\
         core 600 /home/core/.ssh/authorized_keys.d/glowplug\n{KEY}\n"
    );
    for (boot, report) in [("first", &first), ("second", &second)] {
        assert_eq!(report.found(), as_static_in_debian(), "{boot}");
        assert_eq!(report.part("hostname"), "worker-0\n", "{boot}");
        assert_eq!(report.part("profile"), "\n52:54:00:12:34:56\n", "{boot}");
        assert_eq!(report.part("attributes"), attributes("GLOWPLUG", "worker-0.clusters"), "{boot}");
        // afterburn uses the UUID as the instance id.
        assert_eq!(report.part("attributes for afterburn"), attributes("AFTERBURN", OWN), "{boot}");
        assert_eq!(report.part("written for afterburn"), "worker-0\n", "{boot}");
        assert_eq!(report.part("instance type"), format!("{HOSTILE}\n"), "{boot}");
        assert_eq!(report.part("query"), "worker-0\n192.168.1.100\n", "{boot}");
        assert_eq!(report.part("keys"), keys, "{boot}");
        assert_eq!(report.part("afterburn"), "", "{boot}");
        assert_eq!((report.part("failed"), report.part("active")), ("", "active\nactive\ninactive\n"), "{boot}");
    }
    assert_eq!((first.plan()["outcome"].as_str(), second.part("plan")), (Some("configured"), ""));
}

/// Without a profile, NetworkManager in the real root uses DHCP on each NIC ("Wired connection 1"). Both NICs have a
/// DHCP server here.
#[test]
fn a_nic_without_a_network_stays_without_addresses_in_the_real_root() {
    let directory = tempfile::tempdir_in(machine::images()).unwrap();
    let disk = machine::debian(directory.path());
    let mut document: serde_json::Value = serde_json::from_str(&document("static-ipv4")).unwrap();
    let quiet = serde_json::json!({"id": "quiet", "type": "phy", "ethernet_mac_address": machine::MACS[1]});
    document["links"].as_array_mut().unwrap().push(quiet);
    let machine = VirtualMachine::new(Image::Ignition).nics(2).network(Network::Dhcp).root(&disk);
    let report = machine.drive(Bus::SataCdrom, &iso("config-2", OWN, &document.to_string())).boot();
    let line = "ip=192.168.1.100::192.168.1.1:24::[52:54:00:12:34:56]:none ip=[52:54:00:12:34:57]:off \
                nameserver=8.8.8.8 nameserver=8.8.4.4";
    assert_eq!(report.plan()["arguments"], serde_json::json!(line.split(' ').collect::<Vec<_>>()));
    assert_eq!(report.found().addresses, as_static_in_debian().addresses);
}

// === profiles of NetworkManager ===

const PROFILES: &str = "glowplug.renderer=network-manager-profiles";

#[test]
fn ignition_fetches_over_the_dual_stack_network_of_profiles() {
    let document = dual_stack().to_string();
    let machine = VirtualMachine::new(Image::Ignition).argument(PROFILES);
    let report = fetch_with(machine, Bus::SataCdrom, |user_data| iso_with_user_data(OWN, &document, user_data));
    let expected = found(
        &["eno101 192.168.1.100/24", "eno101 2001:db8::5/64"],
        &[
            "default via 192.168.1.1 dev eno101",
            "192.168.1.0/24 dev eno101 scope link src 192.168.1.100 metric 100",
            "2001:db8::/64 dev eno101 metric 100",
            "default via fe80::1 dev eno101 metric 1",
        ],
        &["8.8.8.8", "8.8.4.4"],
    );
    assert_eq!((report.found(), report.fragment()), (expected, ""));
    assert_eq!(report.unit("glowplug-network-profiles.service", "Result"), "success");
}

/// Ignition needs no network in this boot, so NetworkManager runs only in the real root. Both NICs have a DHCP server.
#[test]
fn the_real_root_has_the_network_of_profiles_and_a_nic_without_addresses() {
    let directory = tempfile::tempdir_in(machine::images()).unwrap();
    let disk = machine::debian(directory.path());
    let drive = iso("config-2", OWN, &dual_stack_and_a_quiet_nic());
    let machine = VirtualMachine::new(Image::Ignition).argument(PROFILES).nics(2).network(Network::Dhcp).root(&disk);
    let report = machine.drive(Bus::SataCdrom, &drive).boot();
    assert_eq!((without_metrics(report.found()), report.fragment()), (as_dual_stack_in_debian(), ""));
}

#[test]
fn profiles_make_a_vlan_on_a_bond_of_two_interfaces() {
    let expected = found(
        &["agg.100 10.0.0.5/24"],
        &["default via 10.0.0.1 dev agg.100", "10.0.0.0/24 dev agg.100 scope link src 10.0.0.5 metric 400"],
        &[],
    );
    let report = with("vlan-on-bond").argument(PROFILES).nics(2).boot();
    assert_eq!((report.found(), report.ports("agg")), (expected, vec!["eno101".to_owned(), "eno102".to_owned()]));
}

// === systemd-networkd ===

/// Number of generated networks in each format of documents. Each network has bonds or VLANs. networkd runs in a virtual
/// machine, because the kernel of the host might support neither.
const NETWORKS: usize = 8;

/// Whether a network has bonds or VLANs.
fn is_stacked(network: &NetworkConfig) -> bool {
    network.links().iter().any(|link| matches!(link.kind, LinkKind::Bond { .. } | LinkKind::Vlan { .. }))
}

#[test]
fn networkd_makes_the_bonds_and_vlans_of_the_network() {
    let kinds: [(&str, fn(u64) -> NetworkConfig); 3] =
        [("openstack", cases::openstack), ("cloud-init", cases::cloud_init), ("model", models::model)];
    let of_kind = |(kind, network): (&str, fn(u64) -> NetworkConfig)| {
        let networks = (0_u64..).map(|seed| (format!("{kind}-{seed}"), network(seed)));
        let networks = networks.filter(|(_, network)| is_stacked(network));
        let networks = networks.filter_map(|(name, network)| Some((name, models::with_real_nics(&network)?)));
        networks.take(NETWORKS).collect::<Vec<_>>()
    };
    let mut networks: Vec<(String, NetworkConfig)> = kinds.into_iter().flat_map(of_kind).collect();
    let mut differences = Vec::new();
    // A bond may wait up to 600 ms before it accepts a member. The second attempt waits longer, because on a busy
    // host networkd may log nothing while it gets no CPU time.
    for quiet in [600, 999] {
        let directory = tempfile::tempdir().unwrap();
        networks
            .iter()
            .for_each(|(name, network)| cases::write_case(&directory.path().join(name), network, Program::Networkd));
        machine::networkd(directory.path(), quiet);
        let disagreement = |name: &str, network: &NetworkConfig| {
            let case = directory.path().join(name);
            cases::disagreement(&case, network, Program::Networkd, &state::KernelAbilities::whole())
        };
        differences.clear();
        networks
            .retain(|(name, network)| disagreement(name, network).inspect(|it| differences.push(it.clone())).is_some());
        if networks.is_empty() {
            break;
        }
    }
    assert!(differences.is_empty(), "{} networks differ:\n{}", differences.len(), differences.join("\n"));
}
