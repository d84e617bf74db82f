//! Checks the diagnostics about OpenStack's `network_data.json`.

use serde_json::{Value, json};

use super::{DESTINATION, KNOWN_BY, MAC, MASK, MODE, NAME, diagnose};

const TYPE: &str =
    "ipv4, ipv6, static, static6, ipv4_dhcp, ipv6_dhcp, ipv6_slaac, ipv6_dhcpv6-stateful or ipv6_dhcpv6-stateless";
const LINK: &str = "the id of one of the links";
const LINK_TYPE: &str = "phy, bond, vlan or another word of the schema";
const V4: &str = "an IPv4 address of a machine";
const V6: &str = "an IPv6 address of a machine";
const NO_ADDRESS: &str = "no NIC has an address";
const ONE_DEFAULT: &str = "a family has one default route: the first of those with the lowest metric";
const GUESS: &str = "expected a prefix length or a netmask:";
const ANSWERS: &str =
    "a server or router that answers: without an answer NetworkManager removes the static addresses too";

/// Sets members of an object, even if the value is `null`.
fn with(mut object: Value, more: Value) -> Value {
    for (name, value) in more.as_object().unwrap() {
        object[name] = value.clone();
    }
    object
}

/// Makes a NIC with its own MAC address.
macro_rules! nic {
    ($id:literal $($more:tt)*) => {{
        let mac_address = format!("52:54:00:00:00:{:02x}", $id.as_bytes()[0]);
        let nic = json!({"id": $id, "type": "phy", "ethernet_mac_address": mac_address});
        with(nic, json!({"vif_id": "x" $($more)*}))
    }};
}

macro_rules! bond {
    ($id:literal, $ports:tt $($more:tt)*) => {
        with(json!({"id": $id, "type": "bond", "bond_mode": "active-backup"}), json!({"bond_links": $ports $($more)*}))
    };
}

macro_rules! vlan {
    ($id:literal, $parent:tt, $tag:tt $($more:tt)*) => {
        with(json!({"id": $id, "type": "vlan"}), json!({"vlan_link": $parent, "vlan_id": $tag $($more)*}))
    };
}

/// Makes a network with one static address.
macro_rules! v4 {
    ($link:tt $($more:tt)*) => {
        with(json!({"type": "ipv4", "ip_address": "10.0.0.5/24"}), json!({"link": $link $($more)*}))
    };
}

macro_rules! v6 {
    ($link:tt $($more:tt)*) => {
        with(json!({"type": "ipv6", "ip_address": "2001:db8::5/64"}), json!({"link": $link $($more)*}))
    };
}

macro_rules! dhcp {
    ($link:tt $($more:tt)*) => {
        with(json!({"type": "ipv4_dhcp"}), json!({"link": $link $($more)*}))
    };
}

/// Creates a test for each document. A line has the links, the networks, optional further members, the result, and the
/// diagnostics.
macro_rules! diagnoses {
    ($(
        $name:ident: [$($links:tt)*], [$($networks:tt)*] $({ $($more:tt)* })?
        => $verdict:ident [$($diagnostic:literal),*];
    )*) => {
        $(#[test] fn $name() {
            let document = json!({"links": [$($links)*], "networks": [$($networks)*]});
            $(let document = with(document, json!({$($more)*}));)?
            let expected: Vec<String> = vec![$(format!($diagnostic)),*];
            assert_eq!(diagnose(document.to_string().as_bytes()), (stringify!($verdict), expected), "{document}");
        })*
    };
}

// === The lists of the document ===

diagnoses! {
    links_that_are_no_array_are_refused: [], [dhcp!("a"), v4!("a")] { "links": "a" }
        => refused [
            r#"warning links: invalid list "a", expected an array"#,
            r#"error networks[0].link: unknown link "a", expected {LINK}"#,
            r#"error networks[1].link: unknown link "a", expected {LINK}"#
        ];
    networks_that_are_no_array_are_refused: [nic!("a")], [] { "networks": {} }
        => refused [r#"error networks: invalid list "an object", expected an array"#];
    services_that_are_no_array_give_a_warning: [nic!("a")], [dhcp!("a")] { "services": "8.8.8.8" }
        => configured [r#"warning services: invalid list "8.8.8.8", expected an array"#];
    a_link_that_is_no_object_gives_warnings: [null, nic!("a", "mtu": 0)], [dhcp!("a")]
        => configured [
            r#"warning links[0]: invalid item "null", expected an object"#,
            r#"warning links[1].mtu: invalid MTU "0", expected 68 to 65535 bytes"#
        ];
    a_network_that_is_no_object_is_refused: [nic!("a")], [5, v4!("a"), v4!("b")]
        => refused [
            r#"error networks[0]: invalid item "5", expected an object"#,
            r#"error networks[2].link: unknown link "b", expected {LINK}"#
        ];
    a_network_without_settings_is_refused: [nic!("a")], [{"id": "n", "network_id": "n"}]
        => refused ["error networks[0]: no known member, expected the members that the schema requires"];
    a_service_that_is_no_object_gives_a_warning: [nic!("a")], [dhcp!("a")] { "services": ["8.8.8.8"] }
        => configured [r#"warning services[0]: invalid item "8.8.8.8", expected an object"#];
    a_service_without_settings_has_no_effect: [nic!("a")], [dhcp!("a")] { "services": [{}] } => configured [];
    routes_that_are_no_array_are_refused: [nic!("a")], [v4!("a", "routes": "default")]
        => refused [r#"error networks[0].routes: invalid list "default", expected an array"#];
    a_route_that_is_no_object_is_refused: [nic!("a")], [v4!("a", "routes": [[]])]
        => refused [r#"error networks[0].routes[0]: invalid item "an array", expected an object"#];
    a_route_without_settings_is_refused: [nic!("a")], [v4!("a", "routes": [{}])]
        => refused ["error networks[0].routes[0]: no known member, expected the members that the schema requires"];
    servers_that_are_no_list_give_warnings: [nic!("a")], [v4!("a", "dns_nameservers": 8, "dns_search": {})]
        => configured [
            r#"warning networks[0].dns_nameservers: invalid list "8", expected an array"#,
            r#"warning networks[0].dns_search: invalid list "an object", expected an array"#
        ];
    ports_that_are_no_list_are_refused: [bond!("b", "a")], []
        => refused [
            r#"error links[0].bond_links: invalid list "a", expected an array"#,
            "error links[0].bond_links: bond without a member, expected the ids of its links"
        ];
}

// === Limits ===

diagnoses! {
    more_than_4096_links_or_networks_are_refused:
        [], [] { "links": vec![json!({}); 4097], "networks": vec![json!({}); 4097] }
        => refused [
            r#"error links: too many items "4097", expected at most 4096"#,
            r#"error networks: too many items "4097", expected at most 4096"#
        ];
    more_than_4096_routes_or_services_are_refused:
        [nic!("a")], [dhcp!("a", "routes": vec![json!({}); 4097], "services": vec![json!({}); 4097])]
        => refused [
            r#"error networks[0].routes: too many items "4097", expected at most 4096"#,
            r#"error networks[0].services: too many items "4097", expected at most 4096"#
        ];
    more_than_4096_ports_are_refused: [bond!("b", (vec!["a"; 4097]))], []
        => refused [
            r#"error links[0].bond_links: too many items "4097", expected at most 4096"#,
            "error links[0].bond_links: bond without a member, expected the ids of its links"
        ];
    a_string_with_more_than_4096_words_is_refused:
        [nic!("a")], [dhcp!("a", "dns_nameservers": "8.8.8.8 ".repeat(4097), "dns_search": "a,".repeat(4097))]
        => refused [
            r#"error networks[0].dns_nameservers: too many items "4097", expected at most 4096"#,
            r#"error networks[0].dns_search: too many items "4097", expected at most 4096"#
        ];
    a_document_that_needs_more_than_32_kib_of_arguments_is_refused:
        [nic!("a")],
        [dhcp!("a", "dns_nameservers": (0..2700).map(|n| format!("10.0.{}.{}", n / 256, n % 256)).collect::<Vec<_>>())]
        => refused [r#"error kernel arguments: too many bytes "58357", expected at most 32768"#];
}

// === Unused links ===

diagnoses! {
    an_unused_nic_with_invalid_members_gives_no_diagnostic:
        [
            nic!("a"),
            {
                "id": 5, "type": "spaceship", "ethernet_mac_address": "x", "name": "a b", "mtu": null, "bond_links": 5,
                "vlan_id": 9999
            },
            {}
        ],
        [dhcp!("a")]
        => configured [];
    an_unused_nic_with_an_mtu_is_used:
        [nic!("a", "type": null, "mtu": 9000), {"id": "x y", "mtu": 9000}], []
        => refused [
            "warning links[0].type: missing, expected {LINK_TYPE}",
            r#"error links[1].id: NIC without a MAC address or a name "x y", expected {KNOWN_BY}"#,
            "warning links[1].type: missing, expected {LINK_TYPE}"
        ];
    a_nic_with_only_an_invalid_mtu_is_unused:
        [nic!("a", "mtu": "huge", "name": "a b", "type": "x"), nic!("b")], [dhcp!("b")]
        => configured [r#"warning links[0].mtu: invalid MTU "huge", expected 68 to 65535 bytes"#];
    links_without_any_network_get_no_addresses: [nic!("a"), nic!("b", "name": "a b")], []
        => configured [r#"warning links[1].name: invalid interface name "a b", expected {NAME}"#];
    a_vlan_without_a_network_is_created_and_must_be_valid: [vlan!("v", "a", 5)], []
        => refused [r#"error links[0].vlan_link: unknown link "a", expected {LINK}"#];
}

// === NICs ===

diagnoses! {
    a_repeated_id_is_refused: [nic!("a"), nic!("b", "id": "a"), nic!("c", "id": 7), nic!("d", "id": "7")], []
        => refused [
            r#"error links[1].id: repeated id "a", expected an id that no other link has"#,
            r#"error links[3].id: repeated id "7", expected an id that no other link has"#
        ];
    two_links_with_the_same_mac_address_give_warnings:
        [nic!("a"), nic!("b", "ethernet_mac_address": "52-54-00-00-00-61")], [v4!("a"), dhcp!("b")]
        => configured [
            r#"warning links[0]: static and dynamic addresses of one family "[52:54:00:00:00:61]", expected {ANSWERS}"#,
            r#"warning links[1]: same NIC as links[0] "b", expected one link for each NIC"#
        ];
    two_links_with_the_same_name_give_a_warning:
        [{"id": "x y", "type": "phy", "name": "eno1"}, {"id": "eno1", "type": "phy"}], [v4!("x y"), v6!("eno1")]
        => configured [r#"warning links[1]: same NIC as links[0] "eno1", expected one link for each NIC"#];
    two_mtus_of_one_nic_give_a_warning:
        [nic!("a", "mtu": 9000), nic!("b", "ethernet_mac_address": "52:54:00:00:00:61", "mtu": 1500)], []
        => configured [
            r#"warning links[1]: same NIC as links[0] "b", expected one link for each NIC"#,
            r#"warning links[1].mtu: second MTU "1500", expected the NIC's other MTU, 9000"#
        ];
    an_mtu_in_the_second_link_of_a_nic_is_used:
        [nic!("a"), nic!("b", "ethernet_mac_address": "52:54:00:00:00:61", "mtu": 1500)], [dhcp!("a")]
        => configured [r#"warning links[1]: same NIC as links[0] "b", expected one link for each NIC"#];
    an_unknown_link_type_is_a_nic: [nic!("a", "type": "spaceship")], [dhcp!("a")]
        => configured [r#"warning links[0].type: unknown link type "spaceship", expected {LINK_TYPE}"#];
    a_missing_link_type_is_a_nic: [nic!("a", "type": null)], [dhcp!("a")]
        => configured ["warning links[0].type: missing, expected {LINK_TYPE}"];
    a_link_type_that_is_no_string_gives_a_warning: [nic!("a", "type": {})], [dhcp!("a")]
        => configured [r#"warning links[0].type: unknown link type "an object", expected {LINK_TYPE}"#];
    an_invalid_mac_address_is_refused:
        [
            nic!("a", "ethernet_mac_address": "52:54:00:00:00"), nic!("b", "ethernet_mac_address": 5),
            nic!("c", "ethernet_mac_address": "01:00:5e:00:00:01")
        ],
        [dhcp!("a"), dhcp!("b"), v4!("c")]
        => refused [
            r#"error links[0].ethernet_mac_address: invalid MAC address "52:54:00:00:00", expected {MAC}"#,
            r#"error links[1].ethernet_mac_address: invalid MAC address "5", expected {MAC}"#,
            r#"error links[2].ethernet_mac_address: invalid MAC address "01:00:5e:00:00:01", expected {MAC}"#
        ];
    an_invalid_name_is_a_warning_if_a_mac_address_identifies_the_nic: [nic!("a", "name": "a b")], [dhcp!("a")]
        => configured [r#"warning links[0].name: invalid interface name "a b", expected {NAME}"#];
    an_invalid_name_is_an_error_if_a_vlan_is_on_the_nic: [nic!("a", "name": "a b"), vlan!("v", "a", 5)], []
        => refused [r#"error links[0].name: invalid interface name "a b", expected {NAME}"#];
    an_invalid_name_is_an_error_if_the_nic_has_no_mac_address:
        [{"id": "eno1", "type": "phy", "name": "$(reboot)"}], [dhcp!("eno1")]
        => refused [r#"error links[0].name: invalid interface name "$(reboot)", expected {NAME}"#];
    an_invalid_mac_address_and_an_invalid_name_are_both_reported:
        [{"id": "a", "type": "x", "ethernet_mac_address": "y", "name": "z\n"}], [dhcp!("a")]
        => refused [
            r#"error links[0].ethernet_mac_address: invalid MAC address "y", expected {MAC}"#,
            r#"warning links[0].name: invalid interface name "z\n", expected {NAME}"#,
            r#"warning links[0].type: unknown link type "x", expected {LINK_TYPE}"#
        ];
    an_id_that_is_no_interface_name_does_not_identify_a_nic:
        [{"id": "tap 0", "type": "phy"}, {"type": "phy", "mtu": 9000}], [dhcp!("tap 0")]
        => refused [
            r#"error links[0].id: NIC without a MAC address or a name "tap 0", expected {KNOWN_BY}"#,
            r#"error links[1].id: NIC without a MAC address or a name "", expected {KNOWN_BY}"#
        ];
    a_name_that_is_too_long_is_refused:
        [{"id": "a", "type": "phy", "name": "abcdefghijklmnop"}, {"id": "b", "type": "phy", "name": true}],
        [dhcp!("a"), dhcp!("b")]
        => refused [
            r#"error links[0].name: invalid interface name "abcdefghijklmnop", expected {NAME}"#,
            r#"error links[1].name: invalid interface name "true (a boolean)", expected {NAME}"#
        ];
    a_bond_and_a_nic_with_the_same_name_are_refused:
        [{"id": "b0", "type": "phy"}, nic!("a"), bond!("b", ["a"], "name": "b0")], [dhcp!("b0")]
        => refused [r#"error links[2].name: repeated name "b0", expected a name that no other link has"#];
    an_mtu_out_of_range_gives_warnings:
        [nic!("a", "mtu": 67), nic!("b", "mtu": 65536), nic!("c", "mtu": "large"), nic!("d", "mtu": [])],
        [v4!("a"), dhcp!("b"), dhcp!("c"), dhcp!("d")]
        => configured [
            r#"warning links[0].mtu: invalid MTU "67", expected 68 to 65535 bytes"#,
            r#"warning links[1].mtu: invalid MTU "65536", expected 68 to 65535 bytes"#,
            r#"warning links[2].mtu: invalid MTU "large", expected 68 to 65535 bytes"#,
            r#"warning links[3].mtu: invalid MTU "an array", expected 68 to 65535 bytes"#
        ];
    an_mtu_that_is_too_small_for_ipv6_gives_a_warning:
        [nic!("a", "mtu": 1279), nic!("b", "mtu": 1279), nic!("c", "mtu": 1280)],
        [v6!("a"), v4!("b"), v6!("c", "ip_address": "2001:db8::6/64")]
        => configured [r#"warning links[0].mtu: MTU too small for IPv6 "1279", expected at least 1280 bytes"#];
    a_name_that_the_kernel_assigns_cannot_be_set_on_a_nic:
        [nic!("a", "name": "eth0"), vlan!("v", "a", 5)], [dhcp!("v")]
        => configured [
            r#"warning links[0].name: name that cannot be set "eth0", expected a free name, not one like eth0 or ib0: kv0 is used instead"#
        ];
}

// === VLANs ===

diagnoses! {
    a_vlan_without_a_parent_and_an_id_is_refused: [vlan!("v", null, null)], []
        => refused [
            "error links[0].vlan_id: missing, expected 1 to 4094",
            "error links[0].vlan_link: missing, expected {LINK}"
        ];
    a_vlan_on_an_unknown_link_is_refused: [vlan!("v", "x", 5)], []
        => refused [r#"error links[0].vlan_link: unknown link "x", expected {LINK}"#];
    a_vlan_id_out_of_range_is_refused:
        [nic!("a"), vlan!("u", "a", 0), vlan!("v", "a", 4095), vlan!("w", "a", "five")], []
        => refused [
            r#"error links[1].vlan_id: invalid VLAN id "0", expected 1 to 4094"#,
            r#"error links[2].vlan_id: invalid VLAN id "4095", expected 1 to 4094"#,
            r#"error links[3].vlan_id: invalid VLAN id "five", expected 1 to 4094"#
        ];
    an_invalid_mac_address_of_a_vlan_is_refused: [nic!("a"), vlan!("v", "a", 5, "vlan_mac_address": "x")], []
        => refused [r#"error links[1].vlan_mac_address: invalid MAC address "x", expected {MAC}"#];
    an_invalid_name_of_a_vlan_is_a_warning: [nic!("a"), vlan!("v", "a", 5, "name": "a/b")], [dhcp!("v")]
        => configured [r#"warning links[1].name: invalid interface name "a/b", expected {NAME}"#];
    a_vlan_name_that_does_not_end_with_the_vlan_id_cannot_be_set:
        [nic!("a"), vlan!("v", "a", 5, "name": "storage")], [dhcp!("v")]
        => configured [
            r#"warning links[1].name: name that cannot be set "storage", expected a free name, one that ends with 5: kv0.5 is used instead"#
        ];
    a_vlan_name_that_another_link_has_cannot_be_set:
        [{"id": "x5", "type": "phy"}, nic!("a"), vlan!("v", "a", 5, "name": "x5")], [dhcp!("v"), dhcp!("x5")]
        => configured [
            r#"warning links[2].name: name that cannot be set "x5", expected a free name, one that ends with 5: kv0.5 is used instead"#
        ];
    vlans_on_each_other_and_a_vlan_on_itself_are_refused: [vlan!("u", "v", 5), vlan!("v", "u", 6), vlan!("w", "w", 7)], []
        => refused [
            r#"error links[0].vlan_link: VLAN on itself "v", expected a link that is not on this VLAN"#,
            r#"error links[1].vlan_link: VLAN on itself "u", expected a link that is not on this VLAN"#,
            r#"error links[2].vlan_link: VLAN on itself "w", expected a link that is not on this VLAN"#
        ];
    two_vlans_with_the_same_id_on_one_link_are_refused: [nic!("a"), vlan!("u", "a", 5), vlan!("v", "a", "5")], []
        => refused [
            r#"error links[2].vlan_id: repeated VLAN id "5", expected an id that no other VLAN on this link has"#
        ];
    vlans_with_the_same_id_on_two_links_are_accepted: [nic!("a"), nic!("b"), vlan!("u", "a", 5), vlan!("v", "b", 5)], []
        => configured [];
}

// === Bonds ===

diagnoses! {
    a_bond_without_members_is_refused: [bond!("b", null), bond!("c", ["x"])], []
        => refused [
            "error links[0].bond_links: bond without a member, expected the ids of its links",
            "error links[1].bond_links: bond without a member, expected the ids of its links",
            r#"warning links[1].bond_links[0]: unknown link "x", expected {LINK}"#
        ];
    a_bond_with_an_unknown_member_gives_warnings: [nic!("a"), bond!("b", ["a", "x", null])], []
        => configured [
            r#"warning links[1].bond_links[1]: unknown link "x", expected {LINK}"#,
            r#"warning links[1].bond_links[2]: unknown link "null", expected {LINK}"#
        ];
    an_invalid_mac_address_of_a_bond_and_its_other_mistakes_are_all_reported:
        [nic!("a"), bond!("b", ["a"], "ethernet_mac_address": "x", "name": "a b", "bond_miimon": "often")], []
        => refused [
            r#"warning links[1].bond_miimon: invalid value "often", expected a number from 0 to 2147483647"#,
            r#"error links[1].ethernet_mac_address: invalid MAC address "x", expected {MAC}"#,
            r#"error links[1].name: invalid interface name "a b", expected {NAME}"#
        ];
    a_missing_bond_mode_gives_a_warning: [nic!("a"), bond!("b", ["a"], "bond_mode": null)], []
        => configured ["warning links[1].bond_mode: missing, expected {MODE}"];
    an_unknown_bond_mode_and_an_unknown_option_are_both_reported:
        [nic!("a"), bond!("b", ["a"], "bond_mode": "lacp", "bond_frobnicate": 1, "bond_lacp_rate": "fast")], []
        => refused [
            r#"warning links[1].bond_frobnicate: unknown bond option "1", expected an option of the kernel's bonding driver"#,
            r#"error links[1].bond_mode: invalid mode "lacp", expected {MODE}"#
        ];
    unknown_bond_options_and_invalid_values_give_warnings:
        [
            nic!("a"),
            bond!(
                "b", ["a"], "bond_frobnicate": 1, "bond_miimon": -1, "bond-fail-over-mac": "never",
                "bond_use_carrier": 2, "bond_primary": "x", "bond_arp_ip_target": "router", "bond_ad_select": []
            )
        ],
        []
        => configured [
            r#"warning links[1].bond-fail-over-mac: invalid value "never", expected one of none, active, follow"#,
            r#"warning links[1].bond_ad_select: invalid value "an array", expected one of stable, bandwidth, count"#,
            r#"warning links[1].bond_arp_ip_target: invalid value "router", expected IPv4 addresses"#,
            r#"warning links[1].bond_frobnicate: unknown bond option "1", expected an option of the kernel's bonding driver"#,
            r#"warning links[1].bond_miimon: invalid value "-1", expected a number from 0 to 2147483647"#,
            r#"warning links[1].bond_primary: unknown member "x", expected a member of this link"#,
            r#"warning links[1].bond_use_carrier: invalid value "2", expected 0 or 1"#
        ];
    options_of_another_bond_mode_give_warnings:
        [
            nic!("a"),
            bond!("b", ["a"], "bond_lacp_rate": "fast", "bond_packets_per_slave": 2, "bond_tlb_dynamic_lb": 1),
            nic!("c"), bond!("d", ["c"], "bond_mode": 4, "bond_arp_validate": "all", "bond_primary": "c")
        ],
        []
        => configured [
            r#"warning links[1].bond_lacp_rate: bond option without effect "fast", expected the mode 802.3ad"#,
            r#"warning links[1].bond_packets_per_slave: bond option without effect "2", expected the mode balance-rr"#,
            r#"warning links[1].bond_tlb_dynamic_lb: bond option without effect "1", expected the mode balance-tlb or balance-alb"#,
            r#"warning links[3].bond_arp_validate: bond option without effect "all", expected the mode balance-rr, active-backup, balance-xor or broadcast"#,
            r#"warning links[3].bond_primary: bond option without effect "c", expected the mode active-backup, balance-tlb or balance-alb"#
        ];
    bond_options_that_need_another_option_or_value_give_warnings:
        [
            nic!("a"),
            bond!(
                "b", ["a"], "bond_arp_interval": 100, "bond_miimon": 0, "bond_updelay": 200, "bond_downdelay": 200,
                "bond_num_grat_arp": 1, "bond_num_unsol_na": 2, "bond_peer_notif_delay": 50
            )
        ],
        []
        => configured [
            r#"warning links[1].bond_arp_interval: bond option without effect "100", expected also an arp_ip_target"#,
            r#"warning links[1].bond_downdelay: bond option without effect "200", expected also a miimon above 0"#,
            r#"warning links[1].bond_num_unsol_na: bond option without effect "2", expected the value of num_grat_arp"#,
            r#"warning links[1].bond_peer_notif_delay: bond option without effect "50", expected a multiple of miimon"#,
            r#"warning links[1].bond_updelay: bond option without effect "200", expected also a miimon above 0"#
        ];
    an_arp_target_without_an_arp_interval_gives_a_warning: [nic!("a"), bond!("b", ["a"], "bond_arp_ip_target": "10.0.0.1")], []
        => configured [
            r#"warning links[1].bond_arp_ip_target: bond option without effect "10.0.0.1", expected also an arp_interval"#
        ];
    several_arp_targets_give_a_warning:
        [nic!("a"), bond!("b", ["a"], "bond_arp_interval": 100, "bond_arp_ip_target": "10.0.0.1,10.0.0.2")], []
        => configured [
            r#"warning links[1]: "10.0.0.2" ignored, kernel arguments can express only one ARP target"#
        ];
    a_bond_with_a_bond_and_a_vlan_as_members_is_refused:
        [nic!("a"), bond!("b", ["a"]), vlan!("v", "a", 5), bond!("c", ["b", "v"])], []
        => refused [
            r#"error links[1].type: bond member "bond", expected a NIC"#,
            r#"error links[2].type: bond member "vlan", expected a NIC"#
        ];
    a_nic_that_is_a_member_of_two_bonds_is_refused: [nic!("a"), nic!("c"), bond!("b", ["a"]), bond!("d", ["a", "c", "c"])], []
        => refused [
            r#"error links[0].id: port more than once "a", expected a port of one bond or bridge, listed once"#,
            r#"error links[1].id: port more than once "c", expected a port of one bond or bridge, listed once"#
        ];
    an_mtu_of_a_bond_member_gives_a_warning:
        [nic!("a", "mtu": 9000), nic!("c", "mtu": 1500), bond!("b", ["a", "c"], "mtu": 9000)], []
        => configured [
            r#"warning links[1].mtu: "1500" ignored, a bond member gets the MTU of its bond, links[2]"#
        ];
    a_static_network_on_a_bond_member_is_refused: [nic!("a"), bond!("b", ["a"])], [dhcp!("a"), v4!("a")]
        => refused [
            r#"error networks[0].link: network on a bond member "a", expected the link of its bond, links[1]"#,
            r#"error networks[1].link: network on a bond member "a", expected the link of its bond, links[1]"#
        ];
    a_dynamic_network_on_a_bond_member_gives_a_warning: [nic!("a"), bond!("b", ["a"])], [dhcp!("a"), dhcp!("b")]
        => configured [
            r#"warning networks[0].link: network on a bond member "a", expected the link of its bond, links[1]"#
        ];
    a_bond_gets_the_next_number_if_a_nic_has_the_name_bond0:
        [{"id": "bond0", "type": "phy"}, nic!("a"), bond!("b", ["a"])], [dhcp!("bond0"), v4!("b")]
        => configured [];
}

// === Networks ===

diagnoses! {
    a_static_network_on_an_unknown_link_is_refused: [nic!("a")], [v4!("x"), v6!(null)]
        => refused [
            r#"error networks[0].link: unknown link "x", expected {LINK}"#,
            "error networks[1].link: missing, expected {LINK}"
        ];
    a_dynamic_network_on_an_unknown_link_gives_warnings: [nic!("a")], [v4!("a"), dhcp!("x"), dhcp!(null)]
        => configured [
            r#"warning networks[1].link: unknown link "x", expected {LINK}"#,
            "warning networks[2].link: missing, expected {LINK}"
        ];
    a_document_with_only_a_dynamic_network_on_an_unknown_link_is_refused: [nic!("a")], [dhcp!("x")]
        => refused [r#"error networks[0].link: unknown link "x", expected {LINK}"#];
    mistakes_in_a_network_on_an_unknown_link_are_reported:
        [nic!("a")], [dhcp!("a"), dhcp!("x", "gateway": "y", "dns_nameservers": ["z", "8.8.8.8"])]
        => refused [
            r#"warning networks[1].dns_nameservers[0]: invalid nameserver "z", expected an IP address"#,
            r#"error networks[1].gateway: invalid gateway "y", expected the IPv4 address of a router"#,
            r#"warning networks[1].link: unknown link "x", expected {LINK}"#
        ];
    an_unknown_network_type_on_a_link_with_another_network_gives_warnings:
        [nic!("a")], [{"type": "ipv5", "link": "a"}, {"link": "a"}, dhcp!("a")]
        => configured [
            r#"warning networks[0].type: unknown network type "ipv5", expected {TYPE}"#,
            "warning networks[1].type: missing, expected {TYPE}"
        ];
    a_document_with_only_a_network_of_an_unknown_type_is_refused:
        [nic!("a")], [{"type": "ipv5", "link": "a", "routes": [{"network": "10.0.0.0/8"}]}]
        => refused [r#"error networks[0].type: unknown network type "ipv5", expected {TYPE}"#];
    an_unknown_network_type_on_an_unknown_link_is_refused: [nic!("a")], [dhcp!("a"), {"type": "ipv5", "link": "x"}]
        => refused [
            r#"error networks[1].link: unknown link "x", expected {LINK}"#,
            r#"error networks[1].type: unknown network type "ipv5", expected {TYPE}"#
        ];
    a_static_network_without_an_address_is_refused:
        [nic!("a")], [v4!("a", "ip_address": null), {"type": "static", "link": "a"}]
        => refused [
            "error networks[0].ip_address: missing, expected {V4}",
            "error networks[1].ip_address: missing, expected an IP address of a machine"
        ];
    an_invalid_address_is_refused:
        [nic!("a")],
        [
            v4!("a", "ip_address": "10.0.0.300"), v4!("a", "ip_address": "10.0.0.5/33"), v4!("a", "ip_address": ""),
            v4!("a", "ip_address": 10), v4!("a", "ip_address": "127.0.0.1"), v6!("a", "ip_address": "ff02::1")
        ]
        => refused [
            r#"error networks[0].ip_address: invalid address "10.0.0.300", expected {V4}"#,
            r#"error networks[1].ip_address: invalid address "10.0.0.5/33", expected {V4}"#,
            r#"error networks[2].ip_address: invalid address "", expected {V4}"#,
            r#"error networks[3].ip_address: invalid address "10", expected {V4}"#,
            r#"error networks[4].ip_address: invalid address "127.0.0.1", expected {V4}"#,
            r#"error networks[5].ip_address: invalid address "ff02::1", expected {V6}"#
        ];
    an_address_of_the_other_family_is_refused:
        [nic!("a")],
        [
            v4!("a", "ip_address": "2001:db8::5"), v6!("a", "ip_address": "10.0.0.5"),
            {"type": "static", "link": "a", "ip_address": "eth0"}
        ]
        => refused [
            r#"error networks[0].ip_address: invalid address "2001:db8::5", expected {V4}"#,
            r#"error networks[1].ip_address: invalid address "10.0.0.5", expected {V6}"#,
            r#"error networks[2].ip_address: invalid address "eth0", expected an IP address of a machine"#
        ];
    an_invalid_netmask_is_refused:
        [nic!("a")],
        [
            v4!("a", "ip_address": "10.0.0.5", "netmask": "255.0.255.0"), v4!("a", "netmask": 33),
            v4!("a", "ip_address": "10.0.0.5", "netmask": "ffff::"), v6!("a", "netmask": "255.255.255.0"),
            v4!("a", "ip_address": "10.0.0.5", "netmask": "0.0.0.0")
        ]
        => refused [
            r#"error networks[0].netmask: invalid netmask "255.0.255.0", expected {MASK}"#,
            r#"error networks[1].netmask: invalid netmask "33", expected {MASK}"#,
            r#"error networks[2].netmask: invalid netmask "ffff::", expected {MASK}"#,
            r#"error networks[3].netmask: invalid netmask "255.255.255.0", expected {MASK}"#,
            r#"error networks[4].netmask: invalid netmask "0.0.0.0", expected {MASK}"#
        ];
    an_invalid_address_gives_no_diagnostic_about_its_gateway:
        [nic!("a")], [v4!("a", "ip_address": "x", "gateway": "10.0.0.1")]
        => refused [r#"error networks[0].ip_address: invalid address "x", expected {V4}"#];
    an_invalid_gateway_is_refused:
        [nic!("a")],
        [
            v4!("a", "gateway": "router"), v4!("a", "gateway": "fe80::1"), v6!("a", "gateway": "10.0.0.1"),
            dhcp!("a", "gateway": "0.0.0.0")
        ]
        => refused [
            r#"error networks[0].gateway: invalid gateway "router", expected the IPv4 address of a router"#,
            r#"error networks[1].gateway: invalid gateway "fe80::1", expected the IPv4 address of a router"#,
            r#"error networks[2].gateway: invalid gateway "10.0.0.1", expected the IPv6 address of a router"#,
            r#"error networks[3].gateway: invalid gateway "0.0.0.0", expected the IPv4 address of a router"#
        ];
    static_and_dynamic_addresses_of_one_family_give_warnings:
        [nic!("a"), nic!("b")], [v4!("a"), dhcp!("a"), v6!("b"), {"type": "ipv6_slaac", "link": "b"}]
        => configured [
            r#"warning links[0]: static and dynamic addresses of one family "[52:54:00:00:00:61]", expected {ANSWERS}"#,
            r#"warning links[1]: static and dynamic addresses of one family "[52:54:00:00:00:62]", expected {ANSWERS}"#
        ];
}

// === Routes ===

diagnoses! {
    a_route_without_a_network_is_refused: [nic!("a")], [v4!("a", "routes": [{"gateway": "10.0.0.1"}])]
        => refused ["error networks[0].routes[0].network: missing, expected {DESTINATION}"];
    a_route_with_an_invalid_destination_is_refused:
        [nic!("a")],
        [v4!("a", "routes": [{"network": "lan", "netmask": "255.0.255.0", "gateway": "x", "metric": "y"}])]
        => refused [
            r#"error networks[0].routes[0].gateway: invalid gateway "x", expected the IP address of a router"#,
            r#"warning networks[0].routes[0].metric: invalid metric "y", expected a number from 0 to 4294967295"#,
            r#"error networks[0].routes[0].network: invalid network "lan", expected {DESTINATION}"#
        ];
    a_route_with_an_invalid_netmask_gateway_and_metric_is_refused:
        [nic!("a")],
        [
            v4!(
                "a",
                "routes": [
                    {"network": "10.1.0.0", "netmask": "255.0.255.0", "gateway": "10.0.0.1"},
                    {"network": "10.1.0.0/16", "gateway": "x", "metric": -1}
                ]
            )
        ]
        => refused [
            r#"error networks[0].routes[0].netmask: invalid netmask "255.0.255.0", expected a netmask without holes, or a prefix length above 0"#,
            r#"error networks[0].routes[1].gateway: invalid gateway "x", expected the IPv4 address of a router"#,
            r#"warning networks[0].routes[1].metric: invalid metric "-1", expected a number from 0 to 4294967295"#
        ];
    a_route_whose_netmask_or_gateway_is_not_filled_in_is_no_default_route:
        [nic!("a")],
        [
            v4!(
                "a",
                "routes": [
                    {"network": "10.1.0.0", "netmask": "0.0.0.0", "gateway": "192.168.1.254"},
                    {"network": "10.2.0.0/0", "gateway": "192.168.1.254"},
                    {"network": "0.0.0.0", "netmask": "0.0.0.0", "gateway": ""},
                    {"network": "::/0", "gateway": ""},
                    {"network": "0.0.0.0", "netmask": "0.0.0.0", "gateway": "0.0.0.0"},
                    {"network": "10.3.0.0/16", "gateway": ""}
                ]
            )
        ]
        => refused [
            r#"error networks[0].routes[0].netmask: invalid netmask "0.0.0.0", expected a netmask without holes, or a prefix length above 0"#,
            r#"error networks[0].routes[1].network: invalid network "10.2.0.0/0", expected {DESTINATION}"#,
            r#"error networks[0].routes[2].gateway: invalid gateway "", expected the IPv4 address of a router"#,
            r#"error networks[0].routes[3].gateway: invalid gateway "", expected the IPv6 address of a router"#
        ];
    a_gateway_of_the_other_family_is_refused:
        [nic!("a")],
        [
            v4!(
                "a",
                "routes": [
                    {"network": "0.0.0.0", "netmask": "0.0.0.0", "gateway": "fe80::1"},
                    {"network": "::/0", "gateway": "10.0.0.1"}
                ]
            )
        ]
        => refused [
            r#"error networks[0].routes[0].gateway: invalid gateway "fe80::1", expected the IPv4 address of a router"#,
            r#"error networks[0].routes[1].gateway: invalid gateway "10.0.0.1", expected the IPv6 address of a router"#
        ];
    a_route_in_a_network_of_the_other_family_belongs_to_the_link:
        [nic!("a")],
        [v4!("a", "routes": [{"network": "2001:db8::/32", "gateway": "fe80::1"}]), v6!("b", "link": "a", "routes": [])]
        => configured [];
    a_route_without_an_address_of_its_family_on_its_link_gives_a_warning:
        [nic!("a")], [dhcp!("a", "routes": [{"network": "default", "gateway": "fe80::1"}])]
        => configured [
            r#"warning networks[0].routes[0]: unreachable route "::/0", expected an IPv6 address on its link"#
        ];
    a_metric_of_a_route_gives_a_warning:
        [nic!("a")], [v4!("a", "routes": [{"network": "10.1.0.0/16", "gateway": "10.0.0.1", "metric": 100}])]
        => configured [
            r#"warning networks[0].routes[0].metric: "100" ignored, kernel arguments cannot express it"#
        ];
    further_default_routes_of_a_family_give_warnings:
        [nic!("a"), nic!("b")],
        [
            v4!(
                "a", "gateway": "10.0.0.1",
                "routes": [
                    {"network": "0.0.0.0/0", "gateway": "10.0.0.1"}, {"network": "0.0.0.0/0", "gateway": "10.0.0.2"}
                ]
            ),
            v6!("b", "gateway": "fe80::1"), dhcp!("b", "routes": [{"network": "default"}])
        ]
        => configured [
            r#"warning networks[0].routes[1]: "10.0.0.2" ignored, {ONE_DEFAULT}"#,
            r#"warning networks[2].routes[0]: "on-link" ignored, {ONE_DEFAULT}"#
        ];
}

// === Services ===

diagnoses! {
    a_name_server_that_is_no_address_gives_warnings:
        [nic!("a")],
        [
            dhcp!(
                "a", "services": [{"type": "dns", "address": "ns1.example.org"}], "dns_nameservers": ["8.8.8.8", null],
                "routes": [{"network": "10.1.0.0/16", "services": [{"type": "dns", "address": "ff02::1"}]}]
            )
        ]
        { "services": [{"type": "dns", "address": "[2001:db8::53]"}, {"type": "dns"}] }
        => configured [
            r#"warning networks[0].dns_nameservers[1]: invalid nameserver "null", expected an IP address"#,
            r#"warning networks[0].routes[0].services[0].address: invalid nameserver "ff02::1", expected an IP address"#,
            r#"warning networks[0].services[0].address: invalid nameserver "ns1.example.org", expected an IP address"#,
            r#"warning services[0].address: invalid nameserver "[2001:db8::53]", expected an IP address"#,
            "warning services[1].address: missing, expected an IP address"
        ];
    an_unknown_service_gives_warnings:
        [nic!("a")], [dhcp!("a")] { "services": [{"type": "ntp", "address": "10.0.0.1"}, {"address": "10.0.0.1"}] }
        => configured [
            r#"warning services[0].type: unknown service "ntp", expected dns"#,
            "warning services[1].type: missing, expected dns"
        ];
    invalid_search_domains_next_to_valid_domains_give_warnings:
        [nic!("a")],
        [dhcp!("a", "dns_search": ["example.org", "a b"])]
        { "services": [{"type": "dns", "search": "Example.org -x"}] }
        => configured [
            r#"warning networks[0].dns_search[0]: "example.org" ignored, kernel arguments cannot express a search domain"#,
            r#"warning networks[0].dns_search[1]: invalid search domain "a b", expected a domain name"#,
            r#"warning services[0].search[1]: invalid search domain "-x", expected a domain name"#
        ];
    name_servers_without_a_network_give_a_warning:
        [], [] { "services": [{"type": "dns", "address": "8.8.8.8"}, {"type": "dns", "address": "8.8.8.8"}] }
        => unconfigured [r#"warning services[0].address: "8.8.8.8" ignored, {NO_ADDRESS}"#];
    name_servers_of_a_machine_with_only_an_mtu_give_a_warning:
        [nic!("a", "mtu": 9000)], [] { "services": [{"type": "dns", "address": "8.8.8.8"}] }
        => configured [r#"warning services[0].address: "8.8.8.8" ignored, {NO_ADDRESS}"#];
}

// === Guesses, misspelt members, and addresses of the machine itself ===

diagnoses! {
    an_address_without_a_prefix_length_gives_warnings:
        [nic!("a")],
        [v4!("a", "ip_address": "10.0.0.5", "netmask": "", "gateway": "10.0.0.1"), v6!("a", "ip_address": "2001:db8::8")]
        => configured [
            r#"warning networks[0].ip_address: address without a prefix length "10.0.0.5", {GUESS} /24 is used"#,
            r#"warning networks[1].ip_address: address without a prefix length "2001:db8::8", {GUESS} /64 is used"#
        ];
    an_address_without_a_prefix_length_far_from_its_gateway_is_refused:
        [nic!("a")], [v4!("a", "ip_address": "10.20.3.7", "routes": [{"network": "default", "gateway": "10.20.0.1"}])]
        => refused [
            r#"error networks[0].ip_address: address without a prefix length "10.20.3.7", {GUESS} with /24 the gateway 10.20.0.1 is out of reach"#
        ];
    an_assumed_prefix_length_is_accepted_if_another_address_of_the_link_reaches_the_gateway:
        [nic!("a")], [v4!("a", "ip_address": "10.20.3.7", "gateway": "10.9.0.1"), v4!("a", "ip_address": "10.9.0.5/16")]
        => configured [
            r#"warning networks[0].ip_address: address without a prefix length "10.20.3.7", {GUESS} /24 is used"#
        ];
    a_route_without_a_prefix_length_gives_a_warning:
        [nic!("a")], [v4!("a", "routes": [{"network": "10.1.0.9", "gateway": "10.0.0.1"}, {"network": "0.0.0.0", "gateway": "10.0.0.1"}])]
        => configured [
            r#"warning networks[0].routes[0].network: route without a prefix length "10.1.0.9", {GUESS} /32 is used"#
        ];
    misspelt_members_are_reported_with_the_right_names:
        [nic!("a", "vif_idx": 1, "nmae": "x", "comment": "x")],
        [v4!("a", "ip_address": "10.0.0.5/24", "netmsk": "255.255.255.0", "gatway": "10.0.0.1", "route": [], "x": 1)]
        { "service": [] }
        => configured [
            r#"warning links[0].nmae: unknown member "x", expected name"#,
            r#"warning links[0].vif_idx: unknown member "1", expected vif_id"#,
            r#"warning networks[0].gatway: unknown member "10.0.0.1", expected gateway"#,
            r#"warning networks[0].netmsk: unknown member "255.255.255.0", expected netmask"#,
            r#"warning networks[0].route: unknown member "an array", expected routes"#,
            r#"warning service: unknown member "an array", expected services"#
        ];
    a_gateway_with_the_address_of_the_machine_is_refused:
        [nic!("a"), nic!("b")],
        [v4!("a", "gateway": "10.1.0.5"), v4!("b", "ip_address": "10.1.0.5/24")]
        { "services": [{"type": "dns", "address": "10.0.0.5"}] }
        => refused [
            r#"error networks[0].gateway: gateway with the machine's own address "10.1.0.5", expected the address of another machine"#,
            r#"warning services[0].address: name server with the machine's own address "10.0.0.5", expected the address of another machine"#
        ];
    a_route_through_the_machine_itself_is_ignored:
        [nic!("a"), nic!("b")],
        [
            v4!("a", "routes": [
                {"network": "0.0.0.0", "netmask": "0.0.0.0", "gateway": "10.0.0.1"},
                {"network": "10.8.0.0", "netmask": "255.255.0.0", "gateway": "10.0.0.5"}
            ]),
            v4!("b", "ip_address": "10.1.0.1/24", "gateway": "10.1.0.1")
        ]
        => configured [
            r#"warning networks[0].routes[1]: "10.0.0.5" ignored, it is the machine's own address"#,
            r#"warning networks[1].gateway: "10.1.0.1" ignored, it is the machine's own address"#
        ];
    one_network_under_two_names_gives_a_warning:
        [{"id": "enp1s0", "type": "phy"}, {"id": "eth0", "type": "phy"}],
        [v4!("enp1s0", "gateway": "10.0.0.1"), v4!("eth0", "gateway": "10.0.0.1")]
        => configured [
            r#"warning links[1]: second name of a network "eth0", expected one name for one interface: links[0] has this network too, and an initramfs that needs the network waits for the name that no interface has"#
        ];
    one_address_on_two_nics_with_their_mac_addresses_gives_a_warning:
        [nic!("a"), nic!("b"), nic!("c")],
        [
            v4!("a", "ip_address": "192.168.1.5/24", "gateway": "192.168.1.1"),
            v4!("b", "ip_address": "192.168.1.5/24", "gateway": "192.168.1.1"),
            v6!("a", "ip_address": "2001:db8::5/64"), v6!("c", "ip_address": "2001:db8::5/48")
        ]
        => configured [
            r#"warning links[1]: address of another NIC "192.168.1.5", expected an address that no other NIC has"#,
            r#"warning links[2]: address of another NIC "2001:db8::5", expected an address that no other NIC has"#,
            r#"warning networks[1].gateway: "192.168.1.1" ignored, {ONE_DEFAULT}"#
        ];
    a_link_local_address_and_a_single_host_are_allowed_on_several_nics:
        [nic!("a"), nic!("b")],
        [
            v4!("a", "ip_address": "192.168.1.5/32"), v4!("b", "ip_address": "192.168.1.5/32"),
            v6!("a", "ip_address": "fe80::5/64"), v6!("b", "ip_address": "fe80::5/64")
        ]
        => configured [];
    one_network_under_two_names_with_different_gateways_gives_a_warning:
        [{"id": "enp1s0", "type": "phy"}, {"id": "eth0", "type": "phy"}],
        [v4!("enp1s0", "gateway": "10.0.0.1"), v4!("eth0", "gateway": "10.0.0.2")]
        => configured [r#"warning networks[1].gateway: "10.0.0.2" ignored, {ONE_DEFAULT}"#];
}

// === All diagnostics together, in the order of the document, one line each ===

diagnoses! {
    every_mistake_is_reported_at_once:
        [nic!("a", "ethernet_mac_address": "x"), bond!("b", []), vlan!("v", "v", 5), nic!("c", "mtu": 0)],
        [v4!("x", "netmask": "y"), v4!("c", "routes": [{"network": "z"}])]
        { "services": [{"type": "dns", "address": "w"}] }
        => refused [
            "error links[1].bond_links: bond without a member, expected the ids of its links",
            r#"error links[2].vlan_link: VLAN on itself "v", expected a link that is not on this VLAN"#,
            r#"warning links[3].mtu: invalid MTU "0", expected 68 to 65535 bytes"#,
            r#"error networks[0].link: unknown link "x", expected {LINK}"#,
            r#"error networks[0].netmask: invalid netmask "y", expected {MASK}"#,
            r#"error networks[1].routes[0].network: invalid network "z", expected {DESTINATION}"#,
            r#"warning services[0].address: invalid nameserver "w", expected an IP address"#
        ];
    diagnostics_are_sorted_by_the_number_of_the_item_and_not_as_strings:
        [nic!("a")],
        [
            dhcp!("a"), dhcp!("x"), dhcp!("a"), dhcp!("a"), dhcp!("a"), dhcp!("a"), dhcp!("a"), dhcp!("a"), dhcp!("a"),
            dhcp!("a"), dhcp!("y")
        ]
        => configured [
            r#"warning networks[1].link: unknown link "x", expected {LINK}"#,
            r#"warning networks[10].link: unknown link "y", expected {LINK}"#
        ];
    a_hostile_string_stays_on_its_line:
        [
            nic!("a", "id": "a\nip=1.2.3.4 rd.break $(id) \u{1b}[2J", "mtu": "\u{202e}\u{0}"), nic!("b"),
            bond!("c", ["b"], "bond_x y\n": 1)
        ],
        [
            dhcp!(
                "a\nip=1.2.3.4 rd.break $(id) \u{1b}[2J",
                "routes": [{"network": "default", "gateway": "10.0.0.1", "metric": 1}]
            )
        ]
        => configured [
            r#"warning links[0].mtu: invalid MTU "\u{{202e}}\0", expected 68 to 65535 bytes"#,
            r#"warning links[2]."bond_x y\n": unknown bond option "1", expected an option of the kernel's bonding driver"#,
            r#"warning networks[0].routes[0].metric: "1" ignored, kernel arguments cannot express it"#
        ];
    a_hostile_id_is_no_interface_name:
        [{"id": "a\nip=1.2.3.4 rd.break $(id)", "type": "phy"}], [dhcp!("a\nip=1.2.3.4 rd.break $(id)"), v4!("\"")]
        => refused [
            r#"error links[0].id: NIC without a MAC address or a name "a\nip=1.2.3.4 rd.break $(id)", expected {KNOWN_BY}"#,
            r#"error networks[1].link: unknown link "\"", expected {LINK}"#
        ];
}

// === Documents that cloud-init accepts give no diagnostic ===

diagnoses! {
    a_document_of_nova_is_accepted:
        [
            {
                "id": "tap1a81968a-79", "vif_id": "1a81968a", "type": "ovs", "mtu": null,
                "ethernet_mac_address": "FA:16:3E:ED:9A:59"
            }
        ],
        [{"id": "network0", "type": "ipv4_dhcp", "link": "tap1a81968a-79", "network_id": "da5bb487"}]
        { "services": [] }
        => configured [];
    every_link_type_of_a_nic_is_accepted:
        [
            nic!("a"), nic!("b", "type": "bridge"), nic!("c", "type": "dvs"), nic!("d", "type": "hw_veb"),
            nic!("e", "type": "hyperv"), nic!("f", "type": "ovs"), nic!("g", "type": "tap"),
            nic!("h", "type": "vhostuser"), nic!("i", "type": "vif")
        ],
        [dhcp!("a"), dhcp!("b"), dhcp!("c"), dhcp!("d"), dhcp!("e"), dhcp!("f"), dhcp!("g"), dhcp!("h"), dhcp!("i")]
        => configured [];
    every_spelling_of_a_netmask_is_accepted:
        [nic!("a")],
        [
            v4!("a", "ip_address": "10.0.0.5/24"), v4!("a", "ip_address": "10.0.0.5/24", "netmask": "255.255.0.0"),
            v4!("a", "ip_address": "10.0.1.5", "netmask": "255.255.255.0"), v4!("a", "ip_address": "10.0.2.5", "netmask": 24),
            v4!("a", "ip_address": "10.0.3.5", "netmask": "24"), v4!("a", "ip_address": "10.0.4.5/255.255.255.0"),
            v6!("a", "ip_address": "2001:db8::6", "netmask": "ffff:ffff:ffff:ffff::"),
            v6!("a", "ip_address": "2001:db8::7", "netmask": 64),
            v6!("a", "ip_address": "fe80::5%eth0/64")
        ]
        => configured [];
    every_spelling_of_a_link_is_accepted:
        [
            nic!("a", "mtu": null), nic!("b", "mtu": "1400", "ethernet_mac_address": "FA-16-3E-00-00-01"),
            {"id": "eno101", "type": "phy", "ethernet_mac_address": null},
            {"id": "c d", "type": "phy", "name": "eno102", "ethernet_mac_address": ""}, nic!("e", "name": "eth7"),
            nic!("f")
        ],
        [dhcp!("a"), dhcp!("b"), dhcp!("eno101"), dhcp!("c d"), dhcp!("e")]
        => configured [];
    every_spelling_of_a_network_is_accepted:
        [nic!("a"), nic!("b"), nic!("c"), nic!("d"), nic!("e"), nic!("f"), nic!("g")],
        [
            v4!("a", "type": "static", "id": null, "network_id": null), v6!("a", "type": "static6"),
            v6!("b", "type": "static", "ip_address": "2001:db8::6/64"),
            v4!("c", "ip_address": "10.0.0.6/24", "gateway": "10.0.0.1"), {"link": "d", "type": "ipv6_dhcp"},
            {"link": "e", "type": "ipv6_slaac"},
            {"link": "f", "type": "ipv6_dhcpv6-stateless", "ip_address": "2001:db8::9", "netmask": "ffff::"},
            {"link": "g", "type": "ipv6_dhcpv6-stateful"}
        ]
        => configured [];
    every_spelling_of_a_route_is_accepted:
        [nic!("a")],
        [
            v4!(
                "a",
                "routes": [
                    {"network": "0.0.0.0", "netmask": "0.0.0.0", "gateway": "10.0.0.1"},
                    {"network": "10.1.0.0/16", "gateway": "10.0.0.1"},
                    {"network": "10.2.0.0", "netmask": "255.255.0.0", "gateway": "10.0.0.1"},
                    {"network": "10.3.0.0/255.255.0.0", "gateway": null}, {"network": "10.4.0.1/32", "gateway": ""},
                    {"network": "10.5.0.0/16", "gateway": "0.0.0.0"}
                ]
            ),
            v6!(
                "a",
                "routes": [
                    {"network": "default", "gateway": "fe80::1%eth0"},
                    {"network": "2001:db8:1::", "netmask": "ffff:ffff:ffff::", "gateway": "fe80::1"},
                    {"network": "2001:db8:2::", "netmask": 48}
                ]
            )
        ]
        => configured [];
    every_path_of_a_name_server_is_accepted:
        [nic!("a")],
        [
            dhcp!(
                "a", "services": [{"type": "dns", "address": "10.0.0.1"}],
                "dns_nameservers": "10.0.0.2 10.0.0.3,10.0.0.1", "dns_search": [],
                "routes": [
                    {
                        "network": "10.1.0.0/16", "gateway": "10.0.0.1",
                        "services": [{"type": "dns", "address": "2001:db8::53"}]
                    }
                ]
            )
        ]
        { "services": [{"type": "dns", "address": "10.0.0.1"}] }
        => configured [];
    links_in_any_order_are_accepted:
        [vlan!("w", "v", 6), vlan!("v", "b", 5), bond!("b", ["a", "c"]), nic!("c"), nic!("a")], [dhcp!("w")]
        => configured [];
    every_spelling_of_a_bond_option_is_accepted:
        [
            nic!("a"),
            bond!(
                "b", ["a"], "bond_mode": 1, "bond_miimon": "100", "bond-primary": "a", "bond_fail_over_mac": 1,
                "bond-num-grat-arp": 2
            ),
            nic!("c"),
            bond!(
                "d", ["c"], "bond_mode": "4", "bond_xmit_hash_policy": "layer3+4", "bond_lacp_rate": "fast",
                "bond_use_carrier": true, "bond_min_links": null
            )
        ],
        [dhcp!("b"), dhcp!("d")]
        => configured [];
    a_vlan_with_a_name_and_an_address_is_accepted:
        [nic!("a"), vlan!("v", "a", "5", "name": "storage5", "vlan_mac_address": "52-54-00-00-00-99", "mtu": 1400)],
        [v4!("v")]
        => configured [];
}
