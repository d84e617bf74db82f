//! Checks the diagnostics about cloud-init's network-config, except those of renderers.

use glowplug::formats::{Meaning, read_network};

use super::{DESTINATION, MAC, MASK, MODE, NAME, printed};

const ADDRESS: &str = "an IP address of a machine";
const EITHER: &str =
    "either OpenStack's links, networks and services, or cloud-init's network-config, bare or as a whole under network";
const INSIDE: &str = "the member inside an item of config: check the indentation";
const ALONE: &str = "without it the device has no settings";
/// Start of the list of members that a version 2 device may have. Members of its kind follow.
const COMMON: &str = "accept-ra, addresses, dhcp4, dhcp4-overrides, dhcp6, dhcp6-overrides, gateway4, gateway6";
const NIC: &str = "macaddress, match, mtu, nameservers, routes, routing-policy or set-name";
const NIC_V1: &str = "accept-ra, mac_address, mtu, name, subnets or type";
const ROUTE: &str = "metric, on-link, table, to, type or via";
const PATTERN: &str = "1 to 64 letters, digits, '.', '_', '-', '*', '?', '[' or ']'";
const SECTION: &str = "ethernets, bonds, bridges or vlans";
const SUBNET: &str =
    "dhcp, dhcp4, dhcp6, static, static6, manual, ipv6_slaac, ipv6_dhcpv6-stateful or ipv6_dhcpv6-stateless";
const TAKEN: &str = "a device of the document: it is used as the name of a NIC";
const TYPE: &str = "physical, bond, bridge, vlan, loopback, nameserver or route";

/// Reads a document. Returns the result and all diagnostics.
fn diagnose(document: &str) -> (&'static str, Vec<String>) {
    let reading = read_network(document.as_bytes());
    let verdict = match &reading.meaning {
        Meaning::Refused => "refused",
        Meaning::Unconfigured => "unconfigured",
        Meaning::Disabled => "disabled",
        Meaning::Network(_) => "read",
    };
    (verdict, printed(&reading.diagnostics))
}

/// Creates a test for each document. A line has the text, the result, and the diagnostics. The text is a whole document
/// (`raw`), or the content of a document of version 1 or 2 (`v1`, `v2`).
macro_rules! texts {
    (@raw $text:expr) => { $text.to_owned() };
    (@v2 $text:expr) => { format!("version: 2\n{}", $text) };
    (@v1 $text:expr) => { format!("version: 1\nconfig: {}", $text) };
    ($($name:ident: $kind:ident $text:expr => $verdict:ident [$($diagnostic:literal),*];)*) => {
        $(#[test] fn $name() {
            let expected: Vec<String> = vec![$(format!($diagnostic)),*];
            assert_eq!(diagnose(&texts!(@$kind $text)), (stringify!($verdict), expected));
        })*
    };
}

// === The document as a whole ===

texts! {
    an_empty_wrapper_configures_nothing: raw "network: {}"
        => unconfigured [];
    a_wrapper_of_null_configures_nothing: raw "network: # nothing"
        => unconfigured [];
    a_version_alone_configures_nothing: raw "version: 2"
        => unconfigured [];
    an_empty_list_configures_nothing: raw "network: {version: 1, config: }"
        => unconfigured [];
    yaml_in_flow_style_begins_with_its_version: raw "# a comment\n{ version: 2, ethernets: {a: {dhcp4: true}}}"
        => read [];
    yaml_in_flow_style_begins_with_the_wrapper: raw "{\n  network: {version: 2, ethernets: {a: {dhcp4: true}}}\n}"
        => read [];
    another_first_key_without_quotes_is_broken_json: raw "{ethernets: {a: {dhcp4: true}}, version: 2}"
        => refused [
            r#"error line 1 column 2: not readable as JSON "key must be a string", expected JSON, since the document begins with a brace or a bracket"#
        ];
    a_first_key_that_lost_one_quote_is_broken_json: raw r#"{version": 2, "ethernets": {"a": {"dhcp4": true}}}"#
        => refused [
            r#"error line 1 column 2: not readable as JSON "key must be a string", expected JSON, since the document begins with a brace or a bracket"#
        ];
    every_word_for_a_boolean_is_accepted: v2 "ethernets: {a: {dhcp4: y}, b: {dhcp4: Y, dhcp6: n}, c: {dhcp4: on, dhcp6: off}, d: {dhcp4: N}}"
        => read [];
    an_address_without_quotes_that_ends_with_a_colon_is_refused: v2 "ethernets:\n  a:\n    addresses: ['2001:db8::5/64']\n    routes:\n      - to: default\n        via: 2001:db8:1::"
        => refused [
            r#"error line 7 column 25: address without quotes "2001:db8:1::", expected quotes around an address that ends with a colon"#
        ];
    an_address_in_a_list_without_quotes_that_ends_with_a_colon_is_refused: v2 "ethernets:\n  a:\n    addresses:\n      - 2001:db8:1::\n"
        => refused [
            r#"error line 5 column 9: address without quotes "2001:db8:1::", expected quotes around an address that ends with a colon"#
        ];
    an_address_within_braces_without_quotes_that_ends_with_a_colon_is_refused: v2 "ethernets: {a: {dhcp6: true, gateway6: fe80::}}"
        => refused [
            r#"error line 2 column 45: address without quotes "fe80::", expected quotes around an address that ends with a colon"#
        ];
    an_address_with_quotes_may_end_with_a_colon: v2 "ethernets: {a: {dhcp6: true, gateway6: 'fe80::'}}"
        => read [];
    a_version_can_be_a_string: raw r#"{"version": "1", "config": [{"type": "physical", "name": "a", "subnets": [{"type": "dhcp"}]}]}"#
        => read [];
    a_missing_version_is_refused: raw "ethernets: {a: {dhcp4: true}}"
        => refused ["error version: missing, expected 1 or 2"];
    a_missing_version_in_the_wrapper_is_refused: raw "network:\r\n  ethernets: {a: {dhcp4: true}}\r\n"
        => refused ["error network.version: missing, expected 1 or 2"];
    an_unknown_version_is_refused: raw "network: {version: 3, ethernets: {a: {dhcp4: true}}}"
        => refused [r#"error network.version: unknown version "3", expected 1 or 2"#];
    a_wrapper_that_is_no_object_is_refused: raw "network: dhcp"
        => refused [r#"error network: invalid item "dhcp", expected an object"#];
    members_of_openstack_next_to_members_of_cloud_init_are_refused:
        raw "links: [{id: a, type: phy}]\nversion: 2\nethernets: {a: {dhcp4: true}}"
        => refused [
            r#"error ethernets: member of another format than "links", expected {EITHER}"#
        ];
    members_of_openstack_next_to_the_wrapper_are_refused: raw "services: [{type: dns, address: 8.8.8.8}]\nnetwork: {version: 2}"
        => refused [
            r#"error network: member of another format than "services", expected {EITHER}"#
        ];
    a_document_with_members_inside_and_outside_the_wrapper_is_refused: raw "network: {version: 2}\nethernets: {a: {dhcp4: true}}"
        => refused [
            r#"error network: member of another format than "ethernets", expected {EITHER}"#
        ];
    members_of_openstack_with_only_a_version_of_cloud_init_are_accepted: raw "links: [{id: a, type: phy}]\nnetworks: [{link: a, type: ipv4_dhcp}]\nversion: 2"
        => read [];
    a_config_with_another_word_than_disabled_is_refused: raw "network: {config: off}"
        => refused ["error network.version: missing, expected 1 or 2"];
    an_example_of_kubevirt_without_its_indentation_is_refused: raw "network:\n  version: 1\n  config:\n  - type: physical\n  name: eth0\n  subnets:\n    - type: dhcp\n"
        => refused [
            "error network.config[0].name: missing, expected {NAME}",
            r#"error network.name: member outside the list "eth0", expected {INSIDE}"#,
            r#"error network.subnets: member outside the list "an array", expected {INSIDE}"#
        ];
    a_tab_is_no_indentation: raw "network:\n  version: 2\n\tethernets: {}\n"
        => refused [
            r#"error line 2 column 12: not readable as YAML "while scanning a plain scalar, found a tab", expected a JSON or YAML document"#
        ];
    a_tab_after_a_colon_does_not_replace_the_blank: raw "version:\t2\nethernets:\t{a:\t{dhcp4:\ttrue}}\n"
        => refused [
            r#"error line 1 column 10: not readable as YAML "':' must be followed by a valid YAML whitespace", expected a JSON or YAML document"#
        ];
    a_repeated_key_without_effect_is_a_warning: v1 "[{type: bridge, name: br0, bridge_interfaces: [], params: {bridge_waitport: 1 eth0, bridge_waitport: 2 eth1}}]"
        => read [
            r#"warning line 2 column 93: repeated key "bridge_waitport", expected each key of a mapping once"#
        ];
    a_repeated_key_with_another_value_is_an_error: v1 "[{type: bridge, name: br0, bridge_interfaces: [], params: {bridge_fd: 4, bridge_fd: 5}}]"
        => refused [
            r#"error line 2 column 82: repeated key "bridge_fd", expected each key of a mapping once"#
        ];
    a_misspelt_wrapper_does_not_lead_to_the_default: raw "network:: {version: 2, ethernets: {a: {dhcp4: true}}}"
        => refused [r#"error "network:": unknown member "an object", expected network"#];
    dhcp_that_is_switched_off_gives_a_network_without_addresses: raw "network: {version: 2, ethernets: {a: {dhcp4: false, dhcp6: no}}}"
        => read [];
    a_repeated_key_of_a_device_is_refused: raw "version: 2\nethernets: {a: {dhcp4: maybe}, a: {dhcp4: true}}"
        => refused [
            r#"error line 2 column 32: repeated key "a", expected each key of a mapping once"#
        ];
    anchors_and_merges_are_expanded: raw "version: 2\nethernets:\n  a: &NIC {dhcp4: true, mtu: 5}\n  b: {<<: *NIC, mtu: 1500}\n"
        => read [
            r#"warning ethernets.a.mtu: invalid MTU "5", expected 68 to 65535 bytes"#
        ];
}

// === Version 2: sections and devices ===

texts! {
    a_section_that_is_no_object_is_refused: v2 "ethernets: [a]"
        => refused [r#"error ethernets: invalid item "an array", expected an object"#];
    a_misspelt_section_is_refused: v2 "ethernet: {a: {dhcp4: true}}"
        => refused [r#"error ethernet: unknown section "an object", expected {SECTION}"#];
    a_device_outside_its_section_is_refused: v2 "ethernets: {}\na: {dhcp4: true}"
        => refused [r#"error a: unknown section "an object", expected {SECTION}"#];
    name_servers_outside_the_sections_are_refused: v2 "ethernets: {a: {dhcp4: true}}\nnameservers: {addresses: [8.8.8.8]}"
        => refused [
            r#"error nameservers: unknown section "an object", expected {SECTION}"#
        ];
    members_without_devices_next_to_the_sections_give_warnings: v2 "ethernets: {a: {dhcp4: true}}\nrenderer: networkd\nopenvswitch: {}\nethernet: []\nname: x\nvlans:\nnothing:"
        => read [
            r#"warning ethernet: unknown section "an array", expected {SECTION}"#,
            r#"warning name: unknown section "x", expected {SECTION}"#
        ];
    a_wifi_next_to_a_nic_gives_a_warning: v2 "ethernets: {a: {dhcp4: true}}\nwifis: {w: {dhcp4: true}}"
        => read [
            r#"warning wifis: unsupported section "an object", expected {SECTION}"#
        ];
    dummy_devices_next_to_a_nic_give_a_warning: v2 "ethernets: {a: {dhcp4: true}}\ndummy-devices: {lo1: {addresses: [10.255.0.11/32]}, dum-ex: {}}"
        => read [
            r#"warning dummy-devices: unsupported section "lo1, dum-ex", expected {SECTION}"#
        ];
    a_document_with_only_a_wifi_is_refused: v2 "wifis: {w: {dhcp4: true}}"
        => refused [r#"error wifis: unsupported section "an object", expected {SECTION}"#];
    a_device_that_is_no_object_is_refused: v2 "ethernets: {renderer: networkd, a: [dhcp4]}"
        => refused [
            r#"error ethernets.a: invalid item "an array", expected an object"#,
            r#"error ethernets.renderer: invalid item "networkd", expected an object"#
        ];
    a_device_of_null_has_no_settings: v2 "ethernets: {a: , b: {}}"
        => read [];
    a_key_in_two_sections_is_refused: v2 "ethernets: {a: {dhcp4: true}}\nvlans: {a: {id: 5, link: b}}"
        => refused [
            r#"error vlans.a: repeated name "a", expected a name that no other device has"#,
            r#"warning vlans.a.link: device without an entry "b", expected {TAKEN}"#
        ];
    a_misspelt_member_of_a_device_without_other_settings_is_refused: v2 "ethernets: {a: {match: {macaddress: '52:54:00:00:00:01'}, adresses: [10.0.0.5/24]}}"
        => refused [
            r#"error ethernets.a.adresses: unknown member "an array", expected {COMMON}, {NIC}: {ALONE}"#
        ];
    an_unknown_member_of_a_device_with_addresses_gives_a_warning: v2 "ethernets: {a: {dhcp4: true, address: 10.0.0.5, comment: }}"
        => read [
            r#"warning ethernets.a.address: unknown member "10.0.0.5", expected {COMMON}, {NIC}"#
        ];
    an_unknown_member_of_the_parent_of_a_vlan_gives_a_warning: v2 "ethernets: {a: {comment: x}}\nvlans: {v.5: {id: 5, link: a, dhcp4: true}}"
        => read [
            r#"warning ethernets.a.comment: unknown member "x", expected {COMMON}, {NIC}"#
        ];
    a_member_of_another_kind_of_device_gives_warnings: v2 "vlans: {v.5: {id: 5, link: a, interfaces: [b], dhcp4: true}}\nbonds: {b: {interfaces: [c], link: a, dhcp4: true}}\nethernets: {a: {}, c: {}}"
        => read [
            r#"warning bonds.b.link: unknown member "a", expected {COMMON}, interfaces, macaddress, mtu, nameservers, parameters, routes or routing-policy"#,
            r#"warning vlans."v.5".interfaces: unknown member "an array", expected {COMMON}, id, link, macaddress, mtu, nameservers, routes or routing-policy"#
        ];
    unknown_members_inside_members_of_a_device_give_warnings: v2 "ethernets: {a: {addresses: [10.0.0.5/24], nameservers: {adresses: [8.8.8.8]}, dhcp6-overrides: {use-dsn: false}, routes: [{to: default, via: 10.0.0.1, metrc: 5}]}, lo: {adresses: [10.0.0.6/32]}}"
        => read [
            r#"warning ethernets.a.dhcp6-overrides.use-dsn: unknown member "false", expected route-metric, send-hostname, use-dns, use-domains, use-hostname, use-mtu, use-ntp or use-routes"#,
            r#"warning ethernets.a.nameservers.adresses: unknown member "an array", expected addresses or search"#,
            r#"warning ethernets.a.routes[0].metrc: unknown member "5", expected {ROUTE}"#,
            r#"warning ethernets.lo.adresses: unknown member "an array", expected {COMMON}, {NIC}"#
        ];
    an_unknown_member_of_a_match_that_would_otherwise_match_every_nic_is_refused: v2 "ethernets: {a: {match: {macadress: '52:54:00:00:00:01'}, dhcp4: true}}"
        => refused [
            r#"error ethernets.a.match.macadress: unknown member "52:54:00:00:00:01", expected driver, macaddress or name"#
        ];
    members_next_to_the_wrapper_give_warnings: raw "network: {version: 2, ethernets: {a: {dhcp4: true}}}\nversion: 2\nhostname: x\nnothing:"
        => read [
            r#"warning hostname: unknown member "x", expected only the member network"#,
            r#"warning version: unknown member "2", expected only the member network"#
        ];
    an_ipv4_link_local_address_gives_a_warning: v2 "ethernets: {a: {dhcp4: true, link-local: [ipv4, ipv6]}, b: {dhcp4: true, link-local: [ipv6]}}"
        => read [
            r#"warning ethernets.a.link-local[0]: "ipv4" ignored, only IPv6 link-local addresses are supported"#
        ];
    members_without_effect_on_addresses_are_accepted: v2 "ethernets: {a: {dhcp4: true, optional: true, critical: true, wakeonlan: true, renderer: networkd, dhcp-identifier: mac, link-local: []}}"
        => read [];
}

// === Guesses, and addresses of the machine itself ===

texts! {
    an_address_without_a_prefix_length_gives_warnings: v2 "ethernets: {a: {addresses: [10.0.0.5, '2001:db8::5'], gateway4: 10.0.0.1, gateway6: 'fe80::1'}}"
        => read [
            r#"warning ethernets.a.addresses[0]: address without a prefix length "10.0.0.5", expected a prefix length or a netmask: /24 is used"#,
            r#"warning ethernets.a.addresses[1]: address without a prefix length "2001:db8::5", expected a prefix length or a netmask: /64 is used"#
        ];
    an_address_without_a_prefix_length_far_from_its_gateway_is_refused: v2 "ethernets: {a: {addresses: [10.20.3.7], gateway4: 10.20.0.1}}"
        => refused [
            r#"error ethernets.a.addresses[0]: address without a prefix length "10.20.3.7", expected a prefix length or a netmask: with /24 the gateway 10.20.0.1 is out of reach"#
        ];
    an_address_without_a_prefix_length_far_from_its_gateway_in_version_1_is_refused: v1 "[{type: physical, name: a, subnets: [{type: static, address: 10.20.3.7}]}, {type: route, destination: 10.9.0.1, gateway: 10.20.0.1}]"
        => refused [
            r#"error config[0].subnets[0].address: address without a prefix length "10.20.3.7", expected a prefix length or a netmask: with /24 the gateway 10.20.0.1 is out of reach"#,
            r#"warning config[1].destination: route without a prefix length "10.9.0.1", expected a prefix length or a netmask: /32 is used"#
        ];
    an_on_link_gateway_outside_the_assumed_subnet_is_no_mistake: v2 "ethernets: {a: {addresses: [10.20.3.7], routes: [{to: default, via: 10.20.0.1, on-link: true}]}}"
        => read [
            r#"warning ethernets.a.addresses[0]: address without a prefix length "10.20.3.7", expected a prefix length or a netmask: /24 is used"#
        ];
    a_gateway_with_the_address_of_the_machine_is_refused: v2 "ethernets: {a: {addresses: [10.0.0.5/24], gateway4: 10.0.0.5, nameservers: {addresses: [8.8.8.8, 10.0.0.5]}}}"
        => refused [
            r#"error ethernets.a.gateway4: gateway with the machine's own address "10.0.0.5", expected the address of another machine"#,
            r#"warning ethernets.a.nameservers.addresses[1]: name server with the machine's own address "10.0.0.5", expected the address of another machine"#
        ];
    link_local_gateways_of_version_2_need_no_address_in_their_subnet: v2 "ethernets: {a: {addresses: ['2001:db8::5/64'], gateway6: 'fe80::1'}, b: {dhcp6: true, routes: [{to: '2001:db8:1::/48', via: 'fe80::2'}]}}"
        => read [];
    link_local_gateways_of_version_1_need_no_address_in_their_subnet: v1 "[{type: physical, name: a, subnets: [{type: static6, address: '2001:db8::5/64', gateway: 'fe80::1'}]}, {type: route, destination: '2001:db8:1::/48', gateway: 'fe80::2'}]"
        => read [];
}

// === Version 2: NICs ===

texts! {
    a_key_that_is_no_interface_name_in_a_device_without_a_match_is_refused: v2 "ethernets: {a/b: {dhcp4: true}}"
        => refused [
            r#"error ethernets."a/b": invalid interface name "a/b", expected {NAME}"#
        ];
    a_key_with_a_blank_is_refused: v2 "ethernets: {a b: {dhcp4: true}}"
        => refused [
            r#"error line 2 column 13: invalid key "a b", expected a key without blanks, quotes, commas, brackets and line breaks"#
        ];
    a_key_that_is_no_interface_name_in_a_device_with_a_match_is_accepted: v2 "ethernets: {a/b: {match: {name: en1}, dhcp4: true}}"
        => read [];
    a_match_that_is_no_object_is_refused: v2 "ethernets: {a: {match: en*, dhcp4: true}}"
        => refused [
            r#"error ethernets.a.match: invalid item "en*", expected an object"#
        ];
    a_match_by_an_invalid_mac_address_is_refused: v2 "ethernets: {a: {match: {macaddress: 52:54:00}, dhcp4: true}}"
        => refused [
            r#"error ethernets.a.match.macaddress: invalid MAC address "52:54:00", expected {MAC}"#
        ];
    a_match_by_an_invalid_pattern_is_refused: v2 "ethernets: {a: {match: {name: en/*}, dhcp4: true}}"
        => refused [
            r#"error ethernets.a.match.name: invalid pattern "en/*", expected {PATTERN}"#
        ];
    a_match_by_an_empty_list_is_refused: v2 "ethernets: {a: {match: {driver: []}, dhcp4: true}}"
        => refused [
            r#"error ethernets.a.match.driver: empty pattern "an array", expected {PATTERN}"#
        ];
    a_match_by_an_invalid_name_is_refused: v2 "ethernets: {a: {match: {name: -en}, dhcp4: true}}"
        => refused [
            r#"error ethernets.a.match.name: invalid interface name "-en", expected {NAME}"#
        ];
    a_match_by_a_driver_and_a_mac_address_gives_a_warning: v2 "ethernets: {a: {match: {macaddress: '52:54:00:00:00:01', driver: virtio_net}, dhcp4: true}}"
        => read [
            r#"warning ethernets.a.match.driver: "virtio_net" ignored, another condition of the match already identifies the NIC"#
        ];
    a_match_by_a_name_and_a_mac_address_gives_a_warning:
        v2 "ethernets: {a: {match: {macaddress: '52:54:00:00:00:01', name: en*}, dhcp4: true}}"
        => read [
            r#"warning ethernets.a.match.name: "en*" ignored, another condition of the match already identifies the NIC"#
        ];
    a_match_by_a_driver_and_a_name_gives_a_warning: v2 "ethernets: {a: {match: {name: en1, driver: [e1000, ixgbe]}, dhcp4: true}}"
        => read [
            r#"warning ethernets.a.match.driver: "e1000" ignored, another condition of the match already identifies the NIC"#
        ];
    an_invalid_new_name_gives_a_warning: v2 "ethernets: {a: {match: {macaddress: '52:54:00:00:00:01'}, set-name: a/b, dhcp4: true}}"
        => read [
            r#"warning ethernets.a.set-name: invalid interface name "a/b", expected {NAME}"#
        ];
    a_new_name_gives_a_warning_for_a_nic_that_its_name_identifies: v2 "ethernets: {a: {match: {name: en1}, set-name: lan, dhcp4: true}, b: {set-name: wan, dhcp4: true}}"
        => read [
            r#"warning ethernets.a.set-name: new name for a NIC that is identified by its name "lan", expected a match by macaddress: the NIC keeps the name en1"#,
            r#"warning ethernets.b.set-name: new name for a NIC that is identified by its name "wan", expected a match by macaddress: the NIC keeps the name b"#
        ];
    a_new_name_that_equals_the_old_name_is_accepted: v2 "ethernets: {a: {match: {name: en1}, set-name: en1, dhcp4: true}}"
        => read [];
    two_nics_with_the_same_mac_address_are_refused: v2 "ethernets: {a: {match: {macaddress: '52:54:00:00:00:01'}, dhcp4: true}, b: {match: {macaddress: 52-54-00-00-00-01}, dhcp6: true}}"
        => refused [
            r#"error ethernets.b: MAC address of ethernets.a "52:54:00:00:00:01", expected one that no other device has"#
        ];
    two_nics_with_the_same_name_are_refused: v2 "ethernets: {a: {dhcp4: true}, b: {match: {name: a}, dhcp6: true}, c: {match: {macaddress: '52:54:00:00:00:01'}, set-name: a}}"
        => refused [
            r#"error ethernets.b: name of ethernets.a "a", expected one that no other device has"#,
            r#"error ethernets.c: name of ethernets.a "a", expected one that no other device has"#
        ];
    two_nics_that_exchange_their_names_are_accepted: v2 "ethernets: {a: {match: {macaddress: '52:54:00:00:00:01'}, set-name: b, dhcp4: true}, b: {match: {macaddress: '52:54:00:00:00:02'}, set-name: a, dhcp4: true}}"
        => read [];
    an_invalid_mac_address_to_set_on_a_nic_is_refused: v2 "ethernets: {a: {macaddress: random, dhcp4: true}}"
        => refused [
            r#"error ethernets.a.macaddress: invalid MAC address "random", expected {MAC}"#
        ];
    an_invalid_mtu_gives_a_warning: v2 "ethernets: {a: {mtu: 9 kB, dhcp4: true}}"
        => read [
            r#"warning ethernets.a.mtu: invalid MTU "9 kB", expected 68 to 65535 bytes"#
        ];
    an_mtu_too_small_for_ipv6_gives_a_warning: v2 "ethernets: {a: {mtu: 1000, dhcp6: true}}"
        => read [
            r#"warning ethernets.a.mtu: MTU too small for IPv6 "1000", expected at least 1280 bytes"#
        ];
}

// === Version 2: addresses ===

texts! {
    dhcp_that_is_neither_on_nor_off_is_refused: v2 "ethernets: {a: {dhcp4: maybe, dhcp6: [1], accept-ra: 2}}"
        => refused [
            r#"warning ethernets.a.accept-ra: invalid switch "2", expected true or false"#,
            r#"error ethernets.a.dhcp4: invalid switch "maybe", expected true or false"#,
            r#"error ethernets.a.dhcp6: invalid switch "an array", expected true or false"#
        ];
    dhcp_that_is_neither_on_nor_off_on_a_device_with_another_address_gives_warnings: v2 "ethernets: {a: {dhcp4: maybe, dhcp6: true}, b: {dhcp6: maybe, addresses: [10.0.0.5/24]}}"
        => read [
            r#"warning ethernets.a.dhcp4: invalid switch "maybe", expected true or false"#,
            r#"warning ethernets.b.dhcp6: invalid switch "maybe", expected true or false"#
        ];
    members_of_a_device_that_glowplug_does_not_support_give_warnings: v2 "ethernets: {a: {dhcp4: true, activation-mode: manual, ipv6-mtu: 1400}, b: {dhcp4: true, activation-mode: null, optional: true, wakeonlan: true}}"
        => read [
            r#"warning ethernets.a.activation-mode: "manual" ignored, glowplug does not support it"#,
            r#"warning ethernets.a.ipv6-mtu: "1400" ignored, glowplug does not support it"#
        ];
    invalid_routing_rules_are_refused: v2 "ethernets: {a: {addresses: [10.0.0.5/24], routing-policy: [{from: 10.0.0.5, to: 'fd00::/64'}, {table: 7}, {from: default}, {to: 10.0.0.0/33}, {from: [10.0.0.5]}, rule]}}"
        => refused [
            r#"error ethernets.a.routing-policy[0].to: network of the other family "fd00::/64", expected a network of the family of 10.0.0.5"#,
            r#"error ethernets.a.routing-policy[1]: missing, expected from or to"#,
            r#"error ethernets.a.routing-policy[2].from: invalid network "default", expected an address or a CIDR"#,
            r#"error ethernets.a.routing-policy[3].to: invalid network "10.0.0.0/33", expected an address or a CIDR"#,
            r#"error ethernets.a.routing-policy[4].from: invalid network "an array", expected an address or a CIDR"#,
            r#"error ethernets.a.routing-policy[5]: invalid item "rule", expected an object"#
        ];
    unsupported_and_invalid_members_of_a_routing_rule_are_refused: v2 "ethernets: {a: {addresses: [10.0.0.5/24], routing-policy: [{from: 10.0.0.5, table: 0, priority: low, mark: 0, type-of-service: 256, iif: eth0}]}}"
        => refused [
            r#"error ethernets.a.routing-policy[0].iif: unknown member "eth0", expected from, mark, priority, table, to or type-of-service"#,
            r#"error ethernets.a.routing-policy[0].mark: invalid value "0", expected a number from 1 to 4294967295"#,
            r#"error ethernets.a.routing-policy[0].priority: invalid value "low", expected a number from 0 to 4294967295"#,
            r#"error ethernets.a.routing-policy[0].table: invalid value "0", expected a number from 1 to 4294967295"#,
            r#"error ethernets.a.routing-policy[0].type-of-service: invalid value "256", expected a number from 0 to 255"#
        ];
    a_routing_rule_without_an_address_of_its_family_gives_a_warning: v2 "ethernets: {a: {addresses: [10.0.0.5/24], routing-policy: [{to: 'fd00::/64', table: 7}]}}"
        => read [r#"warning ethernets.a.routing-policy[0]: unreachable network "to fd00::/64", expected an IPv6 address on its link"#];
    every_word_for_on_and_off_is_accepted_for_dhcp: v2 r#"ethernets: {a: {dhcp4: "true", dhcp6: 'no'}, b: {dhcp4: YES, dhcp6: "off"}, c: {dhcp4: 1, dhcp6: 0}, d: {dhcp4: null, dhcp6: on}}"#
        => read [];
    invalid_dhcp_overrides_give_warnings: v2 "ethernets: {a: {dhcp4: true, dhcp6: true, dhcp4-overrides: [x], dhcp6-overrides: {route-metric: low, use-dns: perhaps, use-domains: route, hostname: web, use-ntp: false}}}"
        => read [
            r#"warning ethernets.a.dhcp4-overrides: invalid item "an array", expected an object"#,
            r#"warning ethernets.a.dhcp6-overrides.hostname: "web" ignored, DHCP sends only the host name of the machine"#,
            r#"warning ethernets.a.dhcp6-overrides.route-metric: invalid metric "low", expected a number from 0 to 4294967295"#,
            r#"warning ethernets.a.dhcp6-overrides.use-dns: invalid switch "perhaps", expected true or false"#,
            r#"warning ethernets.a.dhcp6-overrides.use-domains: invalid switch "route", expected true or false"#
        ];
    addresses_that_are_no_list_are_refused: v2 "ethernets: {a: {addresses: 5}}"
        => refused [
            r#"error ethernets.a.addresses: invalid list "5", expected an array"#
        ];
    invalid_addresses_are_refused: v2 "ethernets: {a: {addresses: [10.0.0.300/24, null, true, 10.0.0.0.5, [], {10.0.0.5/24: {}, 10.0.0.6/24: {}}, 10.0.0.5/33, 127.0.0.1/8]}}"
        => refused [
            r#"error ethernets.a.addresses[0]: invalid address "10.0.0.300/24", expected {ADDRESS}"#,
            r#"error ethernets.a.addresses[1]: invalid address "null", expected {ADDRESS}"#,
            r#"error ethernets.a.addresses[2]: invalid address "true (a boolean)", expected {ADDRESS}"#,
            r#"error ethernets.a.addresses[3]: invalid address "10.0.0.0.5", expected {ADDRESS}"#,
            r#"error ethernets.a.addresses[4]: invalid address "an array", expected {ADDRESS}"#,
            r#"error ethernets.a.addresses[5]: invalid address "an object", expected {ADDRESS}"#,
            r#"error ethernets.a.addresses[6]: invalid address "10.0.0.5/33", expected {ADDRESS}"#,
            r#"error ethernets.a.addresses[7]: invalid address "127.0.0.1/8", expected {ADDRESS}"#
        ];
    options_of_an_address_give_warnings: v2 "ethernets: {a: {addresses: [{10.0.0.5/24: {label: 'a:1', lifetime: 0}}, {10.0.0.6/24: }]}}"
        => read [
            r#"warning ethernets.a.addresses[0].label: "a:1" ignored, glowplug does not support it"#,
            r#"warning ethernets.a.addresses[0].lifetime: "0" ignored, glowplug does not support it"#
        ];
    an_invalid_gateway_is_refused: v2 "ethernets: {a: {addresses: [10.0.0.5/24], gateway4: 10.0.0.256, gateway6: 10.0.0.1}}"
        => refused [
            r#"error ethernets.a.gateway4: invalid gateway "10.0.0.256", expected the IPv4 address of a router"#,
            r#"error ethernets.a.gateway6: invalid gateway "10.0.0.1", expected the IPv6 address of a router"#
        ];
    a_gateway_without_an_address_of_its_family_gives_a_warning: v2 "ethernets: {a: {addresses: [10.0.0.5/24], gateway6: 'fe80::1'}}"
        => read [
            r#"warning ethernets.a.gateway6: unreachable route "::/0", expected an IPv6 address on its link"#
        ];
    static_addresses_on_a_port_are_refused_and_dhcp_gives_a_warning: v2 "ethernets: {a: {addresses: [10.0.0.5/24]}, b: {dhcp4: true}}\nbridges: {br: {interfaces: [a, b]}}"
        => refused [
            r#"error ethernets.a: addresses on a port "a", expected them on bridges.br"#,
            r#"warning ethernets.b: addresses on a port "b", expected them on bridges.br"#
        ];
    addresses_of_the_loopback_device_give_warnings: v2 "ethernets: {lo: {addresses: [127.0.0.1/8, 10.0.0.5/32], nameservers: {addresses: [x]}}, a: {dhcp4: true}}"
        => read [
            r#"warning ethernets.lo: "10.0.0.5/32" ignored, the kernel configures the loopback device"#,
            r#"warning ethernets.lo.nameservers.addresses[0]: invalid nameserver "x", expected an IP address"#
        ];
    several_addresses_of_the_loopback_device_give_a_warning: v2 "ethernets: {lo: {addresses: [10.0.200.2/32, 'fd00::1/128'], dhcp4: true}, a: {dhcp4: true}}"
        => read [
            r#"warning ethernets.lo: "10.0.200.2/32, fd00::1/128, dhcp4" ignored, the kernel configures the loopback device"#
        ];
    a_route_of_the_loopback_device_gives_a_warning: v2 "ethernets: {lo: {routes: [{to: 10.9.0.0/16}]}, a: {dhcp4: true}}"
        => read [
            r#"warning ethernets.lo.routes[0]: "10.9.0.0/16" ignored, the kernel configures the loopback device"#
        ];
    the_usual_addresses_of_the_loopback_device_are_accepted:
        v2 "ethernets: {lo: {addresses: [127.0.0.1/8, '::1/128']}, a: {dhcp4: true}}"
        => read [];
}

// === Version 2: routes ===

texts! {
    routes_that_are_no_list_are_refused: v2 "ethernets: {a: {dhcp4: true, routes: 5}}"
        => refused [
            r#"error ethernets.a.routes: invalid list "5", expected an array"#
        ];
    invalid_routes_are_refused: v2 "ethernets: {a: {dhcp4: true, routes: [default, {}, {to: x, via: 10.0.0.1}, {to: 10.0.0.0/33}, {to: 10.0.0.0/8, via: 'fe80::1'}, {to: default, via: router}, {to: 10.0.0.0, netmask: 255.0.255.0}]}}"
        => refused [
            r#"error ethernets.a.routes[0]: invalid item "default", expected an object"#,
            "error ethernets.a.routes[1].to: missing, expected {DESTINATION}",
            r#"error ethernets.a.routes[2].to: invalid network "x", expected {DESTINATION}"#,
            r#"error ethernets.a.routes[3].to: invalid network "10.0.0.0/33", expected {DESTINATION}"#,
            r#"error ethernets.a.routes[4].via: invalid gateway "fe80::1", expected the IPv4 address of a router"#,
            r#"error ethernets.a.routes[5].via: invalid gateway "router", expected the IPv4 address of a router"#,
            r#"error ethernets.a.routes[6].netmask: invalid netmask "255.0.255.0", expected {MASK}"#
        ];
    a_route_whose_prefix_length_or_gateway_is_not_filled_in_is_no_default_route: v2 "ethernets: {a: {dhcp4: true, routes: [{to: 10.9.0.0/0, via: 10.0.0.1}, {to: default, via: ''}, {to: default, via: null}], routing-policy: [{from: 10.9.0.0/0, table: 5}]}}"
        => refused [
            r#"error ethernets.a.routes[0].to: invalid network "10.9.0.0/0", expected {DESTINATION}"#,
            r#"error ethernets.a.routes[1].via: invalid gateway "", expected the IPv4 address of a router"#,
            r#"error ethernets.a.routing-policy[0].from: invalid network "10.9.0.0/0", expected an address or a CIDR"#
        ];
    unsupported_and_invalid_members_of_a_route_give_warnings: v2 "ethernets: {a: {dhcp4: true, routes: [{to: 10.1.0.0/16, via: 10.0.0.1, type: unicast, scope: link, from: 10.0.0.5, mtu: 1400, metric: -1, table: main, on-link: perhaps}, {to: 10.2.0.0/16, type: blackhole}]}}"
        => read [
            r#"warning ethernets.a.routes[0].from: "10.0.0.5" ignored, glowplug does not support it"#,
            r#"warning ethernets.a.routes[0].metric: invalid metric "-1", expected a number from 0 to 4294967295"#,
            r#"warning ethernets.a.routes[0].mtu: "1400" ignored, glowplug does not support it"#,
            r#"warning ethernets.a.routes[0].on-link: invalid switch "perhaps", expected true or false"#,
            r#"warning ethernets.a.routes[0].scope: "link" ignored, glowplug does not support it"#,
            r#"warning ethernets.a.routes[0].table: invalid table "main", expected a number from 0 to 4294967295; the main table is used instead"#,
            r#"warning ethernets.a.routes[1].type: "blackhole" ignored, only unicast routes are supported"#
        ];
    a_route_without_an_address_of_its_family_gives_a_warning: v2 "ethernets: {a: {dhcp4: true, routes: [{to: '::/0', via: 'fe80::1'}]}}"
        => read [
            r#"warning ethernets.a.routes[0]: unreachable route "::/0", expected an IPv6 address on its link"#
        ];
    a_route_on_a_link_with_an_invalid_address_gives_no_further_diagnostic: v2 "ethernets: {a: {addresses: [x], routes: [{to: default, via: 10.0.0.1}]}}"
        => refused [
            r#"error ethernets.a.addresses[0]: invalid address "x", expected {ADDRESS}"#
        ];
}

// === Version 2: name servers ===

texts! {
    name_servers_that_are_no_object_give_a_warning: v2 "ethernets: {a: {dhcp4: true, nameservers: [8.8.8.8]}}"
        => read [
            r#"warning ethernets.a.nameservers: invalid item "an array", expected an object"#
        ];
    invalid_name_servers_and_domains_give_warnings: v2 "ethernets: {a: {dhcp4: true, nameservers: {addresses: [dns.example, 0.0.0.0], search: [a_b., -x]}}}"
        => read [
            r#"warning ethernets.a.nameservers.addresses[0]: invalid nameserver "dns.example", expected an IP address"#,
            r#"warning ethernets.a.nameservers.addresses[1]: invalid nameserver "0.0.0.0", expected an IP address"#,
            r#"warning ethernets.a.nameservers.search[1]: invalid search domain "-x", expected a domain name"#
        ];
    name_servers_that_are_no_list_give_warnings: v2 "ethernets: {a: {dhcp4: true, nameservers: {addresses: 8, search: {}}}}"
        => read [
            r#"warning ethernets.a.nameservers.addresses: invalid list "8", expected an array"#,
            r#"warning ethernets.a.nameservers.search: invalid list "an object", expected an array"#
        ];
}

// === Version 2: bonds, bridges and VLANs ===

texts! {
    invalid_names_of_bonds_bridges_and_vlans_are_refused: v2 "bonds: {a%b: {interfaces: [a]}}\nbridges: {br/0: {dhcp4: true}}\nvlans: {v%5: {id: 5, link: a}}\nethernets: {a: {}}"
        => refused [
            r#"error bonds."a%b": invalid interface name "a%b", expected {NAME}"#,
            r#"error bridges."br/0": invalid interface name "br/0", expected {NAME}"#,
            r#"warning vlans."v%5": invalid interface name "v%5", expected {NAME}"#
        ];
    bond_members_that_have_no_entry_or_are_repeated_or_invalid_are_refused: v2 "bonds: {b: {interfaces: [e1, e/2, e1]}}"
        => refused [
            r#"warning bonds.b.interfaces[0]: device without an entry "e1", expected {TAKEN}"#,
            r#"error bonds.b.interfaces[0]: port more than once "e1", expected a port of one bond or bridge, listed once"#,
            r#"warning bonds.b.interfaces[1]: unknown device "e/2", expected the name of a device"#
        ];
    a_bond_without_a_member_is_refused: v2 "bonds: {b: {dhcp4: true}, c: {interfaces: {}}}"
        => refused [
            "error bonds.b.interfaces: bond without a member, expected the names of its devices",
            r#"error bonds.c.interfaces: invalid list "an object", expected an array"#,
            "error bonds.c.interfaces: bond without a member, expected the names of its devices"
        ];
    parameters_that_are_no_object_give_a_warning: v2 "bonds: {b: {interfaces: [a], parameters: 4}}\nethernets: {a: {}}"
        => read [
            r#"warning bonds.b.parameters: invalid item "4", expected an object"#
        ];
    invalid_parameters_of_a_bond_give_warnings: v2 "bonds: {b: {interfaces: [a], parameters: {mode: active-backup, lacp-rate: fast, primary: x, arp-ip-targets: [x], mii-monitor-interval: 1h, down-delay: 1s, speed: 5}}}\nethernets: {a: {}}"
        => read [
            r#"warning bonds.b.parameters.arp-ip-targets: invalid value "an array", expected IPv4 addresses"#,
            r#"warning bonds.b.parameters.lacp-rate: bond option without effect "fast", expected the mode 802.3ad"#,
            r#"warning bonds.b.parameters.mii-monitor-interval: invalid value "1h", expected a number from 0 to 2147483647"#,
            r#"warning bonds.b.parameters.primary: unknown member "x", expected a member of this link"#,
            r#"warning bonds.b.parameters.speed: unknown bond option "5", expected an option of the kernel's bonding driver"#
        ];
    an_invalid_bond_mode_is_refused: v2 "bonds: {b: {interfaces: [a], parameters: {mode: 7, lacp-rate: fast}}}\nethernets: {a: {}}"
        => refused [r#"error bonds.b.parameters.mode: invalid mode "7", expected {MODE}"#];
    invalid_parameters_of_a_bridge_give_warnings: v2 "bridges: {b: {interfaces: [a], parameters: {stp: perhaps, forward-delay: 1, hello-time: 11, max-age: 5, priority: 65536, ageing-time: x, path-cost: {a: 0, c: 5}, port-priority: {a: 64}, speed: 5}}}\nethernets: {a: {}}"
        => read [
            r#"warning bridges.b.parameters.ageing-time: invalid value "x", expected a number from 0 to 4294967295"#,
            r#"warning bridges.b.parameters.forward-delay: invalid value "1", expected a number from 2 to 30"#,
            r#"warning bridges.b.parameters.hello-time: invalid value "11", expected a number from 1 to 10"#,
            r#"warning bridges.b.parameters.max-age: invalid value "5", expected a number from 6 to 40"#,
            r#"warning bridges.b.parameters.path-cost.a: invalid value "0", expected a number from 1 to 65535"#,
            r#"warning bridges.b.parameters.path-cost.c: unknown member "c", expected a member of this link"#,
            r#"warning bridges.b.parameters.port-priority.a: invalid value "64", expected a number from 0 to 63"#,
            r#"warning bridges.b.parameters.priority: invalid value "65536", expected a number from 0 to 65535"#,
            r#"warning bridges.b.parameters.speed: unknown bridge option "5", expected an option of netplan's bridges"#,
            r#"warning bridges.b.parameters.stp: invalid switch "perhaps", expected true or false"#
        ];
    a_forward_delay_of_0_on_a_bridge_with_the_spanning_tree_protocol_gives_a_warning: v2 "bridges: {b: {interfaces: [a], parameters: {stp: true, forward-delay: 0}}}\nethernets: {a: {}}"
        => read [
            r#"warning bridges.b.parameters.forward-delay: invalid value "0", expected a number from 2 to 30"#
        ];
    a_vlan_without_a_parent_and_an_id_is_refused_in_version_2: v2 "vlans: {v: {}}"
        => refused [
            "error vlans.v.id: missing, expected 1 to 4094",
            "error vlans.v.link: missing, expected the name of a device"
        ];
    a_vlan_with_an_invalid_id_and_an_invalid_link_is_refused: v2 "vlans: {v: {id: 4095, link: a/b}}"
        => refused [
            r#"error vlans.v.id: invalid VLAN id "4095", expected 1 to 4094"#,
            r#"error vlans.v.link: unknown device "a/b", expected the name of a device"#
        ];
    an_mtu_above_the_mtu_of_the_parent_gives_a_warning: v2 "ethernets: {a: {mtu: 1500}, b: {}}\nvlans: {v: {id: 5, link: w, mtu: 9000}, w: {id: 6, link: a}, x: {id: 7, link: a, mtu: 1500}, y: {id: 5, link: b, mtu: 9000}}"
        => read [
            r#"warning vlans.v.mtu: MTU above the MTU of the VLAN's parent "9000", expected at most 1500, the MTU of ethernets.a"#
        ];
    a_vlan_on_itself_is_refused: v2 "vlans: {v: {id: 5, link: w}, w: {id: 6, link: v}}"
        => refused [
            r#"error vlans.v: VLAN on itself "v", expected a link that is not on this VLAN"#,
            r#"error vlans.w: VLAN on itself "w", expected a link that is not on this VLAN"#
        ];
    a_bridge_with_a_vlan_on_itself_as_a_port_is_refused: v2 "bridges: {b: {interfaces: [v]}}\nvlans: {v: {id: 5, link: b}}"
        => refused [
            r#"error bridges.b: bridge of itself "b", expected ports that are not on this bridge"#,
            r#"error vlans.v: VLAN on itself "v", expected a link that is not on this VLAN"#
        ];
    a_bridge_in_a_bridge_is_refused: v2 "bridges: {b: {interfaces: [c]}, c: {interfaces: []}}"
        => refused [
            r#"error bridges.c: port of a bridge "c", expected a NIC, a bond or a VLAN"#
        ];
    a_bridge_in_a_bond_is_refused: v2 "bonds: {b: {interfaces: [c]}}\nbridges: {c: {interfaces: []}}"
        => refused [r#"error bridges.c: bond member "c", expected a NIC"#];
    a_port_of_a_bond_and_a_bridge_is_refused:
        v2 "bonds: {b: {interfaces: [a]}}\nbridges: {c: {interfaces: [a]}}\nethernets: {a: {}}"
        => refused [
            r#"error ethernets.a: port more than once "a", expected a port of one bond or bridge, listed once"#
        ];
    two_vlans_with_the_same_id_on_one_link_are_refused: v2 "vlans: {v: {id: 5, link: a}, w: {id: 5, link: a}}\nethernets: {a: {}}"
        => refused [
            r#"error vlans.w: repeated VLAN id "w", expected an id that no other VLAN on this link has"#
        ];
}

// === Version 1: items ===

texts! {
    a_config_that_is_no_list_is_refused: v1 "{}"
        => refused [r#"error config: invalid list "an object", expected an array"#];
    items_that_are_no_objects_are_refused: v1 "[dhcp, null]"
        => refused [
            r#"error config[0]: invalid item "dhcp", expected an object"#,
            r#"error config[1]: invalid item "null", expected an object"#
        ];
    an_item_of_an_unknown_type_gives_a_warning: v1 "[{type: ethernet, name: a, subnets: [{type: dhcp}]}, {name: b, subnets: [{type: dhcp}]}]"
        => read [
            r#"warning config[0].type: unknown type "ethernet", expected {TYPE}"#,
            "warning config[1].type: missing, expected {TYPE}"
        ];
    devices_without_a_name_are_refused: v1 "[{type: physical}, {type: bond, bond_interfaces: [a]}, {type: bridge}, {type: vlan, vlan_link: a, vlan_id: 5}]"
        => refused [
            "error config[0].name: missing, expected {NAME}",
            r#"warning config[1].bond_interfaces[0]: device without an entry "a", expected {TAKEN}"#,
            "error config[1].name: missing, expected {NAME}",
            "error config[2].name: missing, expected {NAME}",
            "warning config[3].name: missing, expected {NAME}"
        ];
    devices_with_an_invalid_name_are_refused: v1 "[{type: physical, name: a/b, mac_address: '52:54:00:00:00:01'}, {type: physical, name: a b}, {type: bond, name: b b, bond_interfaces: [a]}]"
        => refused [
            r#"warning config[0].name: invalid interface name "a/b", expected {NAME}"#,
            r#"error config[1].name: invalid interface name "a b", expected {NAME}"#,
            r#"warning config[2].bond_interfaces[0]: device without an entry "a", expected {TAKEN}"#,
            r#"error config[2].name: invalid interface name "b b", expected {NAME}"#
        ];
    an_invalid_mac_address_is_refused: v1 "[{type: physical, name: a, mac_address: 52:54}, {type: vlan, name: a.5, vlan_link: a, vlan_id: 5, mac_address: x}]"
        => refused [
            r#"error config[0].mac_address: invalid MAC address "52:54", expected {MAC}"#,
            r#"error config[1].mac_address: invalid MAC address "x", expected {MAC}"#
        ];
    two_devices_with_the_same_name_are_refused: v1 "[{type: physical, name: a, subnets: [{type: dhcp}]}, {type: physical, name: a, subnets: [{type: dhcp6}]}]"
        => refused [
            r#"error config[1]: repeated name "a", expected a name that no other device has"#
        ];
    an_infiniband_device_is_identified_by_its_name: v1 "[{type: infiniband, name: ib0, mac_address: 'a0:00:02:20:fe:80:00:00:00:00:00:00:ec:0d:9a:03:00:15:e2:c1', subnets: [{type: dhcp}]}]"
        => read [
            r#"warning config[0].mac_address: "a0:00:02:20:fe:80:00:00:00:00:00:00:ec:0d:9a:03:00:15:e2:c1" ignored, an InfiniBand NIC is identified by its name"#
        ];
    a_misspelt_member_without_which_a_device_has_no_settings_is_refused: v1 "[{type: physical, name: a, subnet: [{type: dhcp}]}]"
        => refused [
            r#"error config[0].subnet: unknown member "an array", expected {NIC_V1}: {ALONE}"#
        ];
    misspelt_members_next_to_correct_members_in_version_1_are_refused: raw "version: 1\nsource: x\nconfig: [{type: physical, name: a, mac_adress: '52:54:00:00:00:01', subnets: [{type: static, address: 10.0.0.5/24, gatway: 10.0.0.1, routes: [{destination: 10.1.0.0/16, gateway: 10.0.0.2, weight: 5}]}]}, {type: nameserver, address: 8.8.8.8, domain: b}, {type: bond, name: b, bond_interfaces: [a], vlan_id: 5}]"
        => refused [
            r#"error config[0]: addresses on a port "a", expected them on config[2]"#,
            r#"warning config[0].mac_adress: unknown member "52:54:00:00:00:01", expected {NIC_V1}"#,
            r#"warning config[0].subnets[0].gatway: unknown member "10.0.0.1", expected address, dns_nameservers, dns_search, gateway, metric, mtu, netmask, routes or type"#,
            r#"warning config[0].subnets[0].routes[0].weight: unknown member "5", expected destination, gateway, metric or netmask"#,
            r#"warning config[1].domain: unknown member "b", expected address, interface, search or type"#,
            r#"error config[2].vlan_id: unknown member "5", expected accept-ra, bond_interfaces, mac_address, mtu, name, params, subnets or type: {ALONE}"#,
            r#"warning source: unknown member "x", expected config or version"#
        ];
    a_vlan_without_a_parent_and_an_id_is_refused_in_version_1: v1 "[{type: vlan, name: v}]"
        => refused [
            "error config[0].vlan_id: missing, expected 1 to 4094",
            "error config[0].vlan_link: missing, expected the name of a device"
        ];
    a_subnet_that_is_not_started_at_boot_gives_a_warning: v1 "[{type: physical, name: a, subnets: [{type: dhcp, control: manual}]}, {type: physical, name: b, subnets: [{type: dhcp, control: auto}]}]"
        => read [
            r#"warning config[0].subnets[0].control: "manual" ignored, glowplug configures every device at boot"#
        ];
    an_address_of_the_loopback_device_in_version_1_gives_a_warning: v1 "[{type: loopback, name: lo, subnets: [{type: loopback}, {type: static, address: 10.0.0.5/32}]}]"
        => unconfigured [
            r#"warning config[0]: "10.0.0.5/32" ignored, the kernel configures the loopback device"#
        ];
    invalid_parameters_of_a_bond_in_version_1_give_warnings: v1 "[{type: bond, name: b, bond_interfaces: [a], params: {bond-mode: 1, bond_miimon: x, bond-primary: c, bond-speed: 5}}]"
        => read [
            r#"warning config[0].bond_interfaces[0]: device without an entry "a", expected {TAKEN}"#,
            r#"warning config[0].params.bond-primary: unknown member "c", expected a member of this link"#,
            r#"warning config[0].params.bond-speed: unknown bond option "5", expected an option of the kernel's bonding driver"#,
            r#"warning config[0].params.bond_miimon: invalid value "x", expected a number from 0 to 2147483647"#
        ];
    invalid_parameters_of_a_bridge_in_version_1_give_warnings: v1 "[{type: bridge, name: b, bridge_interfaces: [a], params: {bridge_stp: 'off', bridge_fd: 0, bridge_pathcost: [a 250, b 5, a], bridge_maxwait: 0, bridge_hw: x}}]"
        => read [
            r#"warning config[0].bridge_interfaces[0]: device without an entry "a", expected {TAKEN}"#,
            r#"warning config[0].params.bridge_hw: unknown bridge option "x", expected an option of netplan's bridges"#,
            r#"warning config[0].params.bridge_pathcost.a: invalid value "", expected a number from 1 to 65535"#,
            r#"warning config[0].params.bridge_pathcost.b: unknown member "b", expected a member of this link"#
        ];
}

// === Version 1: subnets ===

texts! {
    subnets_that_are_no_list_of_objects_are_refused: v1 "[{type: physical, name: a, subnets: 5}, {type: physical, name: b, subnets: [dhcp]}]"
        => refused [
            r#"error config[0].subnets: invalid list "5", expected an array"#,
            r#"error config[1].subnets[0]: invalid item "dhcp", expected an object"#
        ];
    a_subnet_of_an_unknown_type_next_to_other_subnets_gives_warnings: v1 "[{type: physical, name: a, subnets: [{type: dhcpv4}, {type: dhcp}, {address: 10.0.0.5/24}]}]"
        => read [
            r#"warning config[0].subnets[0].type: unknown subnet type "dhcpv4", expected {SUBNET}"#,
            "warning config[0].subnets[2].type: missing, expected {SUBNET}"
        ];
    a_device_with_only_a_subnet_of_an_unknown_type_is_refused: v1 "[{type: physical, name: a, subnets: [{type: dhcpv4}]}]"
        => refused [
            r#"error config[0].subnets[0].type: unknown subnet type "dhcpv4", expected {SUBNET}"#
        ];
    invalid_addresses_in_version_1_are_refused: v1 "[{type: physical, name: a, subnets: [{type: static}, {type: static, address: 10.0.0.5, netmask: 255.0.255.0}, {type: static6, address: 10.0.0.5/24}, {type: static, address: x}, {type: static, address: 10.0.0.5, prefix: 33}]}]"
        => refused [
            "error config[0].subnets[0].address: missing, expected {ADDRESS}",
            r#"error config[0].subnets[1].netmask: invalid netmask "255.0.255.0", expected {MASK}"#,
            r#"error config[0].subnets[2].address: invalid address "10.0.0.5/24", expected an IPv6 address of a machine"#,
            r#"error config[0].subnets[3].address: invalid address "x", expected {ADDRESS}"#,
            r#"error config[0].subnets[4].prefix: invalid netmask "33", expected {MASK}"#
        ];
    an_address_of_a_manual_subnet_gives_a_warning: v1 "[{type: physical, name: a, subnets: [{type: manual, address: 10.0.0.5/24}]}]"
        => read [
            r#"warning config[0].subnets[0].address: "10.0.0.5/24" ignored, the type of the subnet is not static"#
        ];
    invalid_gateways_and_routes_are_refused: v1 "[{type: physical, name: a, subnets: [{type: static, address: 10.0.0.5/24, gateway: 'fe80::1', routes: [{destination: 10.0.0.0/8, gateway: x}, {gateway: 10.0.0.1}, 5]}]}]"
        => refused [
            r#"error config[0].subnets[0].gateway: invalid gateway "fe80::1", expected the IPv4 address of a router"#,
            r#"error config[0].subnets[0].routes[0].gateway: invalid gateway "x", expected the IPv4 address of a router"#,
            "error config[0].subnets[0].routes[1].destination: missing, expected {DESTINATION}",
            r#"error config[0].subnets[0].routes[2]: invalid item "5", expected an object"#
        ];
    two_different_mtus_of_one_device_give_warnings:
        v1 "[{type: physical, name: a, mtu: 1500, subnets: [{type: dhcp, mtu: 9000, metric: x}]}]"
        => read [
            r#"warning config[0].subnets[0].metric: invalid metric "x", expected a number from 0 to 4294967295"#,
            r#"warning config[0].subnets[0].mtu: second MTU "9000", expected the NIC's other MTU, 1500"#
        ];
    invalid_name_servers_of_a_subnet_give_warnings: v1 "[{type: physical, name: a, subnets: [{type: dhcp, dns_nameservers: 8.8.8.8 x, dns_search: [-a]}]}]"
        => read [
            r#"warning config[0].subnets[0].dns_nameservers[1]: invalid nameserver "x", expected an IP address"#,
            r#"warning config[0].subnets[0].dns_search[0]: invalid search domain "-a", expected a domain name"#
        ];
}

// === Version 1: name servers and routes of the machine ===

texts! {
    invalid_name_servers_give_warnings: v1 "[{type: nameserver}, {type: nameserver, address: [x], search: '-a b'}, {type: nameserver, address: 8.8.8.8, interface: eth9}]"
        => read [
            "warning config[0].address: missing, expected IP addresses",
            r#"warning config[1].address[0]: invalid nameserver "x", expected an IP address"#,
            r#"warning config[1].search[0]: invalid search domain "-a", expected a domain name"#,
            r#"warning config[2].interface: unknown device "eth9", expected the name of a device: the name servers are used for the whole machine"#
        ];
    an_unreachable_route_gives_a_warning: v1 "[{type: physical, name: a, subnets: [{type: dhcp}]}, {type: route, destination: '::/0', gateway: 'fe80::1'}]"
        => read [
            r#"warning config[1]: unreachable route "::/0", expected a device with an address of its family"#
        ];
    a_route_of_the_machine_whose_gateway_is_in_no_subnet_of_a_device_is_refused: v1 "[{type: physical, name: a, subnets: [{type: dhcp}]}, {type: physical, name: b, subnets: [{type: dhcp}]}, {type: route, destination: 10.0.0.0/8, gateway: 10.0.0.1}]"
        => refused [
            r#"error config[2]: route without a device "10.0.0.0/8", expected a gateway in the subnet of a device"#
        ];
    a_route_without_a_destination_is_refused: v1 "[{type: route, gateway: 10.0.0.1}]"
        => refused ["error config[0].destination: missing, expected {DESTINATION}"];
}
