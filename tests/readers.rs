//! Checks that NetworkManager and dracut's own scripts give the kernel arguments of glowplug the meaning of the
//! document.
//!
//! glowplug renders arguments from the document of a config drive. NetworkManager's own generator or dracut's own
//! scripts make profiles from these arguments. The profiles are compared with the meaning of the document. For dracut's
//! own scripts, this meaning is first reduced to the features of the scripts.
//!
//! For documents of cloud-init's format, the expected meaning comes from our own reader, which `tests/cloud_init`
//! checks.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a helper of a test may fail the test")]

mod models;
mod network_legacy;
mod networks;

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use glowplug::diagnostic::Diagnostics;
use glowplug::formats::{self, read_network};
use glowplug::host::vsphere::network_kargs;
use glowplug::network::NetworkConfig;
use glowplug::render::dracut::{self, Rendered};

use self::networks::{Meaning, OnLink};
use crate::support::documents::{Case, case};
use crate::support::profiles::{Family, Profiles};
use crate::support::{network_config, network_manager, seeds_of};

/// Seeds of the OpenStack documents. `READERS_SEEDS=17..18` sets other seeds, for example to repeat a failure.
const SEEDS: Range<u64> = 0..1200;

/// Seeds of the documents of each version of cloud-init's format. `READERS_SEEDS` replaces these seeds, too.
const NETWORK_SEEDS: Range<u64> = 0..200;

/// Number of disagreements after which a test stops. A few show whether all disagreements have the same cause.
const DISAGREEMENTS: usize = 5;

/// Returns the arguments that glowplug renders from a config drive, without the final newline.
fn kargs(drive: &Path, renderer: &str) -> Result<String, String> {
    let answer = Command::new(env!("CARGO_BIN_EXE_glowplug"))
        .args(["network-kargs", "--print", "--provider", "kubevirt", "--renderer", renderer])
        .arg("--config-drive")
        .arg(drive)
        .output()
        .map_err(|e| format!("running glowplug: {e}"))?;
    let log = String::from_utf8_lossy(&answer.stderr);
    if !answer.status.success() {
        return Err(format!("glowplug ended with {} and printed:\n{log}", answer.status));
    }
    let text = String::from_utf8(answer.stdout).map_err(|e| format!("the arguments are no UTF-8: {e}"))?;
    // network-legacy has no argument for a NIC with only an MTU, so the output may be empty.
    let text = if text.is_empty() && renderer == "network-legacy" { "\n".to_owned() } else { text };
    let line = text.strip_suffix('\n').ok_or_else(|| format!("no newline at the end of {text:?}"))?;
    // dracut, a shell and NetworkManager must split the line into the same words.
    let is_plain = |b: u8| b.is_ascii_alphanumeric() || b" ._:[],/=+-".contains(&b);
    if !line.bytes().all(is_plain) || line != line.split_ascii_whitespace().collect::<Vec<_>>().join(" ") {
        return Err(format!("{text:?} is not one line of plain words with single blanks"));
    }
    Ok(line.to_owned())
}

/// Writes a document to its path on a config drive.
fn write_drive(drive: &Path, document: &str) {
    let directory = drive.join("openstack/latest");
    fs::create_dir_all(&directory).unwrap();
    fs::write(directory.join("network_data.json"), document).unwrap();
}

#[test]
fn network_manager_understands_every_generated_document() {
    compare_all("network-manager", |line, case| Ok((network_manager::read(line)?, case.meant.clone())));
}

#[test]
fn network_legacy_understands_every_generated_document_within_its_features() {
    compare_all("network-legacy", |line, case| {
        let read = network_legacy::read(line)?;
        let meant = network_legacy::reduced(&case.meant, &case.defaults, &OnLink::new(), &read);
        Ok((read, meant))
    });
}

#[test]
fn network_manager_understands_every_generated_network() {
    compare_networks(dracut::render, |line, meaning| {
        let mut meant = meaning.profiles;
        meant.agree_on_name_servers();
        Ok((network_manager::read(line)?, meant))
    });
}

#[test]
fn network_legacy_understands_every_generated_network_within_its_features() {
    compare_networks(glowplug::render::network_legacy::render, |line, meaning| {
        let read = network_legacy::read(line)?;
        let meant = network_legacy::reduced(&meaning.profiles, &meaning.defaults, &meaning.on_link, &read);
        Ok((read, meant))
    });
}

#[test]
fn network_manager_understands_the_arguments_of_a_machine_on_vsphere() {
    let read = |device: &str| {
        let kargs = network_kargs(&[("device".to_owned(), device.into())], None).kargs.unwrap();
        network_manager::read(kargs.property()).unwrap().to_string()
    };
    assert_eq!(
        read("{ipAddrs: [192.168.1.2/24], gateway: 192.168.1.1, nameservers: [192.168.1.100]}"),
        "any NIC\n  ipv4 manual, required\n    address 192.168.1.2/24\n    gateway 192.168.1.1\n    dns 192.168.1.100\n\
         \x20 ipv6 disabled\n"
    );
    assert_eq!(
        read(
            "{ipAddrs: [192.168.1.2/24, '2001::2/64'], gateway: '2001::1', nameservers: ['2001::100', 192.168.1.100]}"
        ),
        "any NIC\n  ipv4 manual, required\n    address 192.168.1.2/24\n    dns 192.168.1.100\n\
         \x20 ipv6 manual, required\n    address 2001::2/64\n    gateway 2001::1\n    dns 2001::100\n"
    );
}

type Render = fn(&NetworkConfig, &mut Diagnostics) -> Rendered;

/// Compares the networks of generated cloud-init documents with the profiles that a program makes from their arguments.
fn compare_networks(render: Render, ask: fn(&str, Meaning) -> Answer) {
    let refused = AtomicU64::new(0);
    let seeds = for_all(NETWORK_SEEDS, |seed| {
        for version in [1, 2] {
            let document = network_config::tree(seed, version);
            let text = document.to_string();
            let formats::Meaning::Network(network) = read_network(text.as_bytes()).meaning else {
                return Err(format!("version {version}, seed {seed}\n{document:#}\nis no network"));
            };
            let mut diagnostics = Diagnostics::default();
            let line = render(&network, &mut diagnostics).line;
            let meaning = networks::meaning(&network);
            let difference = match meaning {
                None if diagnostics.has_errors() => {
                    refused.fetch_add(1, Ordering::Relaxed);
                    continue;
                }
                None => "no error where no argument says it".to_owned(),
                Some(_) if diagnostics.has_errors() => format!("{diagnostics:?}"),
                Some(meaning) => match ask(&line, meaning) {
                    Ok((read, meant)) => {
                        let read = read.with_names_of(&meant);
                        if read == meant {
                            continue;
                        }
                        format!("=== meant\n{meant}\n=== understood\n{read}")
                    }
                    Err(e) => format!("nothing: {e}"),
                },
            };
            return Err(format!("version {version}, seed {seed}\n{document:#}\narguments: {line}\n\n{difference}"));
        }
        Ok(())
    });
    // Only documents with a pattern are refused, and version 1 has no patterns. At most half of the documents of
    // version 2 are refused.
    let refused = refused.into_inner();
    assert!(env::var_os("READERS_SEEDS").is_some() || refused * 2 <= seeds, "{refused} of {} are refused", seeds * 2);
}

/// The profiles that a network program makes from arguments, and the expected profiles. The expected profiles have only
/// the features that the program supports.
type Answer = Result<(Profiles, Profiles), String>;

type Ask = fn(&str, &Case) -> Answer;

fn compare_all(renderer: &str, ask: Ask) {
    for_all(SEEDS, |seed| compare(seed, renderer, ask));
}

/// Runs a comparison for each seed. Returns the number of seeds.
fn for_all(seeds: Range<u64>, compare: impl Fn(u64) -> Result<(), String> + Sync) -> u64 {
    let seeds = seeds_of("READERS_SEEDS").unwrap_or(seeds);
    let next = AtomicU64::new(seeds.start);
    let disagreements = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end || disagreements.lock().unwrap().len() >= DISAGREEMENTS {
                        return;
                    }
                    if let Err(disagreement) = compare(seed) {
                        disagreements.lock().unwrap().push((seed, disagreement));
                    }
                }
            });
        }
    });
    let mut disagreements = disagreements.into_inner().unwrap();
    disagreements.sort();
    let differences: Vec<String> = disagreements.into_iter().map(|(_, disagreement)| disagreement).collect();
    assert!(differences.is_empty(), "{}", differences.join("\n"));
    seeds.end - seeds.start
}

/// Compares the profiles that a program makes from the document of a seed with the expected profiles.
fn compare(seed: u64, renderer: &str, ask: Ask) -> Result<(), String> {
    let drive = tempfile::tempdir().unwrap();
    let drive = drive.path();
    let case = case(seed);
    let document = serde_json::to_string_pretty(&case.document).unwrap();
    write_drive(drive, &document);
    let line = kargs(drive, renderer);
    let asked = line.as_ref().map_err(Clone::clone).and_then(|line| ask(line, &case));
    let (read, meant) = match asked {
        Ok((read, meant)) => (Ok(read.with_names_of(&meant)), meant),
        Err(e) => (Err(e), case.meant),
    };
    if read.as_ref() == Ok(&meant) {
        return Ok(());
    }
    let line = line.unwrap_or_else(|_| "none".to_owned());
    let read = read.map_or_else(|e| format!("nothing: {e}"), |profiles| profiles.to_string());
    Err(format!("seed {seed}\n{document}\narguments: {line}\n\n=== meant\n{meant}\n=== understood\n{read}\n"))
}

#[test]
fn a_seed_always_gives_the_same_document_and_meaning() {
    let [first, second] = [case(17), case(17)];
    assert_eq!((first.document, first.meant), (second.document, second.meant));
}

/// If the generator never made one of these mixtures, no test would check the mixture.
#[test]
fn the_generated_documents_have_every_mixture_of_addresses_that_networkmanager_supports() {
    let spelled = |family: &Family| {
        let required = if family.required { ", required" } else { "" };
        let addresses = if family.addresses.is_empty() { "" } else { ", with addresses" };
        format!("{:?}{required}{addresses}", family.method)
    };
    let profiles = SEEDS.flat_map(|seed| case(seed).meant.0.into_values());
    let mixtures: BTreeSet<String> =
        profiles.map(|profile| format!("{} | {}", spelled(&profile.ipv4), spelled(&profile.ipv6))).collect();
    let expected = [
        "Auto | Auto",
        "Auto | Manual, required, with addresses",
        "Auto, required | Auto",
        "Auto, required | Auto, required, with addresses",
        "Auto, required, with addresses | Auto",
        "Auto, required, with addresses | Auto, required, with addresses",
        "Auto, required, with addresses | Manual, required, with addresses",
        "Disabled | Auto, required",
        "Disabled | Auto, required, with addresses",
        "Disabled | Disabled",
        "Disabled | Manual, required, with addresses",
        "Manual, required, with addresses | Auto",
        "Manual, required, with addresses | Auto, required, with addresses",
        "Manual, required, with addresses | Disabled",
        "Manual, required, with addresses | Manual, required, with addresses",
    ];
    assert_eq!(mixtures, expected.map(str::to_owned).into());
}

/// Creates a test for each directory in `fixtures/guest`, and a list of the directories.
macro_rules! boots {
    ($($test:ident => $directory:literal;)*) => {
        const BOOTS: &[&str] = &[$($directory),*];

        $(
            #[test]
            fn $test() {
                boot($directory);
            }
        )*
    };
}

boots! {
    a_nic_without_a_mac_address_is_identified_by_its_id => "static-by-id";
    the_example_of_the_enhancement_is_one_static_nic => "static-ipv4";
    a_nic_with_an_empty_mac_address_is_identified_by_its_name => "static-by-name";
    a_mac_address_takes_precedence_over_a_name => "static-by-mac-and-name";
    a_network_without_a_gateway_gives_an_address_without_a_route => "static-without-gateway";
    a_static_ipv6_address_leaves_ipv4_disabled => "static-ipv6";
    both_families_are_static_on_one_nic => "static-dual-stack";
    the_arguments_of_the_nic_with_the_default_gateway_come_first => "two-nics";
    a_second_address_of_a_nic_has_no_gateway => "second-address";
    every_address_argument_of_a_nic_has_the_mtu_of_the_nic => "static-mtu";
    a_nic_with_only_an_mtu_gets_the_mtu_and_no_address => "mtu-alone";
    two_links_with_the_same_mac_address_become_one_nic => "nic-twice";
    a_nic_without_a_network_gets_no_address => "unused-nic";
    a_nic_without_dhcp_gets_no_address_while_another_nic_is_configured => "quiet-nic";
    a_nic_with_a_manual_subnet_gets_no_address_while_another_nic_is_configured => "quiet-nic-v1";
    a_nic_can_have_only_a_link_local_address => "link-local";
    a_nic_can_have_a_static_ipv4_address_and_an_ipv6_link_local_address => "static-ipv4-and-link-local";
    a_prefix_length_is_read_in_all_its_spellings => "netmask-spellings";
    with_dhcpv4_ipv6_is_used_if_the_network_offers_ipv6 => "dhcp-ipv4";
    the_mtu_follows_dhcp_in_the_argument => "dhcp-mtu";
    stateful_dhcpv6_leaves_ipv4_disabled => "dhcp-ipv6";
    an_address_that_a_dhcpv6_server_will_assign_is_not_set => "dhcp-ipv6-stateful";
    with_stateless_dhcpv6_the_address_comes_from_router_advertisements => "dhcp-ipv6-stateless";
    slaac_leaves_ipv4_disabled => "slaac";
    with_dhcpv4_and_router_advertisements_neither_family_is_required => "dhcp-and-slaac";
    with_static_ipv4_the_router_advertisements_are_not_required => "static-ipv4-and-slaac";
    with_static_ipv6_the_dhcpv4_address_is_not_required => "dhcp-and-static-ipv6";
    a_static_ipv4_address_is_added_to_the_address_of_dhcp => "dhcp-and-static-ipv4";
    routes_name_their_nic => "subnet-routes";
    a_destination_without_a_netmask_is_a_route_to_a_host => "host-routes";
    the_destination_of_a_route_without_a_gateway_is_on_the_link => "on-link-route";
    a_default_route_on_a_nic_with_dhcp_is_written_as_a_route => "default-route-with-dhcp";
    a_gateway_can_be_outside_the_subnet => "far-gateway";
    the_gateways_of_both_families_can_be_outside_their_subnets => "far-gateways";
    a_network_can_have_a_gateway_in_place_of_a_default_route => "gateway-key";
    of_two_default_routes_the_lower_metric_is_kept => "default-routes-with-metrics";
    of_two_equal_default_routes_the_first_is_kept => "default-routes-without-metrics";
    name_servers_are_collected_from_all_members_without_duplicates => "name-servers";
    a_nic_that_carries_a_vlan_gets_a_name => "vlan";
    a_document_can_list_a_vlan_before_its_nic => "vlan-before-its-nic";
    a_vlan_can_have_its_own_mac_address_and_mtu => "vlan-mac-and-mtu";
    a_vlan_keeps_a_name_that_ends_with_its_vlan_id => "vlan-names";
    a_nic_never_gets_a_name_that_the_kernel_assigns => "vlan-on-named-nic";
    the_name_of_a_vlan_on_a_vlan_contains_the_whole_chain => "vlan-on-vlan";
    a_vlan_without_networks_has_no_addresses => "vlan-without-networks";
    a_vlan_can_use_dhcp => "vlan-with-dhcp";
    the_members_of_a_bond_are_identified_by_mac_address => "bond";
    the_mtu_of_a_bond_is_in_the_argument_for_the_bond => "bond-mtu";
    a_bond_without_networks_has_no_addresses => "bond-without-networks";
    the_primary_member_of_a_bond_gets_a_name => "bond-primary";
    a_bond_can_have_another_mac_address_than_its_first_member => "bond-mac";
    a_vlan_can_be_on_a_bond => "vlan-on-bond";
    a_document_in_the_form_of_nova_is_read => "nova";
    a_bond_in_the_form_of_ironic_is_read => "ironic-bond";
    unknown_keys_and_words_do_not_affect_the_rest_of_the_document => "unknown-words";
    a_missing_array_is_read_as_an_empty_array => "without-services";
    both_names_of_one_network_keep_the_default_gateway => "one-network-two-names";
    links_without_networks_get_no_address => "links-without-networks";
    patterns_with_the_same_settings_become_one_argument => "all-nics";
}

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/guest")
}

/// Checks that a directory of `fixtures/guest` gives exactly the arguments and profiles in its files.
fn boot(name: &str) {
    let directory = fixtures().join(name);
    let line = kargs(&directory, "network-manager").unwrap();
    if crate::support::is_update() {
        fs::write(directory.join("kargs"), format!("{line}\n")).unwrap();
        fs::write(directory.join("profiles"), network_manager::read(&line).unwrap().to_string()).unwrap();
    }
    let expected = |file| fs::read_to_string(directory.join(file)).unwrap();
    assert_eq!(format!("{line}\n"), expected("kargs"));
    let meant = network_manager::read(&line).unwrap();
    assert_eq!(meant.to_string(), expected("profiles"));
    // dracut's own scripts must read the same profiles from the arguments for network-legacy, without the features that
    // the scripts lack.
    let line = kargs(&directory, "network-legacy").unwrap();
    let read = network_legacy::read(&line).unwrap();
    let meant = network_legacy::reduced(&meant, &[], &OnLink::new(), &read);
    assert_eq!(read.with_names_of(&meant).to_string(), meant.to_string(), "{line}");
}

#[test]
fn every_fixture_of_the_guest_has_a_test_and_a_line_in_the_index() {
    let directories: BTreeSet<String> =
        fs::read_dir(fixtures()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    assert_eq!(directories, BOOTS.iter().map(ToString::to_string).collect());
    let index = fs::read_to_string(fixtures().join("../INDEX.md")).unwrap();
    let listed = index.lines().filter_map(|line| line.strip_prefix("- `guest/")?.split_once('`'));
    let listed: BTreeSet<String> = listed.map(|(name, _)| name.to_owned()).collect();
    assert_eq!(listed, directories);
}
