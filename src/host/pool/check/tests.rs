use super::*;
use crate::host::pool::Reserved;
use crate::host::pools_file::read_pools;

/// Returns the prefix lengths of the pool, empty without a pool, and all diagnostics.
fn check(members: &str, template: &[(Family, u8)]) -> (Vec<u8>, Vec<String>) {
    let document = format!("{{name: workers, network: vlan10, {members}}}");
    let (specs, mut diagnostics) = read_pools(document.as_bytes());
    let template = TemplateFacts { prefixes: template.iter().copied().collect(), ..TemplateFacts::default() };
    let pool = Pool::new(&specs[0], &template, &mut diagnostics);
    let prefixes = pool.iter().flat_map(Pool::spaces).flat_map(Space::subnets).map(Subnet::prefix).collect();
    (prefixes, diagnostics.kept().iter().map(ToString::to_string).collect())
}

macro_rules! accepts {
    ($($name:ident: $members:expr, $template:expr => $prefixes:expr, [$($warning:expr),*];)*) => {
        $(#[test] fn $name() {
            let warnings: &[&str] = &[$($warning),*];
            assert_eq!(check($members, &$template), ($prefixes.to_vec(), warnings.iter().map(|w| (*w).to_owned()).collect()));
        })*
    };
}

const NONE: [(Family, u8); 0] = [];

accepts! {
    a_range_has_the_prefix_length_of_the_machine_network:
        "addresses: [192.168.1.10-192.168.1.50], machineNetwork: [{cidr: 192.168.1.0/24}]", NONE => [24], [];
    a_range_has_the_prefix_length_of_the_template:
        "addresses: [192.168.1.10-192.168.1.50]", [(Family::Ipv4, 24)] => [24], [];
    a_range_has_the_prefix_length_of_the_network_that_contains_it:
        "addresses: [10.0.0.0/23, 10.0.0.10-10.0.1.50, 10.0.0.7]", NONE => [23], [];
    a_range_over_two_networks_has_the_prefix_length_of_both:
        "addresses: [10.0.0.0/24, 10.0.1.0/24, 10.0.0.200-10.0.1.50]", NONE => [24], [];
    the_template_gives_the_prefix_length_of_the_subnets_of_a_network:
        "addresses: [10.0.0.0/16]", [(Family::Ipv4, 24)] => [24], [];
    the_machine_network_counts_when_the_template_agrees:
        "addresses: [10.0.0.16/28], machineNetwork: [{cidr: 10.0.0.0/24}]", [(Family::Ipv4, 24)] => [24], [];
    each_family_has_its_own_prefix_length:
        "addresses: ['fd00::10-fd00::50', 10.0.0.0/24], machineNetwork: [{cidr: 'fd00::/64'}]", NONE => [24, 64], [];
    a_machine_network_of_a_family_without_addresses_is_ignored:
        "addresses: [10.0.0.0/24], machineNetwork: [{cidr: 'fd00::/64'}, {cidr: 10.0.0.0/16}]", NONE => [16], [];
    a_pre_allocation_can_name_an_excluded_address_outside_the_addresses_of_the_pool:
        "addresses: [10.0.0.16/28], machineNetwork: [{cidr: 10.0.0.0/24}], excludedAddresses: [10.0.0.5, 10.0.0.17], \
         preAllocations: {db: 10.0.0.5, web: 10.0.0.17, n/mail: 10.0.0.18}", NONE => [24], [];
    a_gateway_outside_the_subnet_needs_on_link_gateway:
        "addresses: [10.0.0.0/24], gateway: [192.168.0.1], onLinkGateway: true", NONE => [24], [];
    a_link_local_gateway_is_on_every_link:
        "addresses: ['fd00::/64', 'fd00:1::/64'], gateway: ['fe80::1']", NONE => [64], [];
    a_gateway_that_is_the_anycast_address_is_a_router:
        "addresses: ['fd00::/64'], gateway: ['fd00::']", NONE => [64], [];
    a_router_outside_the_subnet_needs_on_link_gateway:
        "addresses: [10.0.0.0/24], routes: [{to: 10.9.0.0/16, via: 10.1.0.1}, {to: 10.8.0.1, via: 10.0.0.9}], \
         onLinkGateway: true", NONE => [24], [];
    with_prefix_32_each_address_is_its_own_subnet: "addresses: [10.0.0.0/24], prefix: 32, gateway: [169.254.1.1], onLinkGateway: true", NONE
        => [32], [];
    with_prefix_128_each_address_is_its_own_subnet: "addresses: ['fd00::/64'], prefix: 128, gateway: ['fe80::1']", NONE => [128], [];
    a_prefix_length_replaces_the_machine_network: "addresses: [10.0.0.5-10.0.0.9], prefix: 24, gateway: [10.0.0.1]", NONE => [24], [];
    a_prefix_length_and_the_machine_network_may_agree:
        "addresses: [10.0.0.5], prefix: 24, machineNetwork: [{cidr: 10.0.0.0/24}]", [(Family::Ipv4, 24)] => [24], [];
    subnets_have_their_own_prefix_lengths_and_gateways:
        "subnets: [{addresses: [10.0.0.0/24], gateway: [10.0.0.1]}, {addresses: [10.1.0.5-10.1.0.9], prefix: 23, gateway: [10.1.1.1]}, \
         {addresses: ['fd00::/64', 10.2.0.7], machineNetwork: [{cidr: 10.2.0.0/16}]}], nameservers: [10.0.0.53], \
         excludedAddresses: [10.0.0.7], preAllocations: {db: 10.0.0.7, web: 10.1.0.6}", NONE => [24, 23, 16, 64], [];
    settings_that_some_readers_do_not_know_are_reported:
        "addresses: [10.0.0.0/24], mtu: 1279, searchDomains: [example.com, b.example.com, Example.com.]", NONE => [24],
        [r#"mtu: not read by afterburn "1279", expected an image with glowplug or cloud-init"#,
         r#"searchDomains[0]: in no kernel argument "example.com", expected an image with cloud-init, or with glowplug and its renderer network-manager-profiles or systemd-networkd"#,
         r#"searchDomains[2]: repeated search domain "example.com", expected each domain once"#];
    an_exclusion_outside_the_pool_is_reported:
        "addresses: [10.0.0.0/24], excludedAddresses: [10.0.0.7, 10.0.1.0-10.0.1.9, 'fd00::1']", NONE => [24],
        [r#"excludedAddresses[1]: exclusion outside the pool "10.0.1.0-10.0.1.9", expected addresses of the pool"#,
         r#"excludedAddresses[2]: exclusion outside the pool "fd00::1/128", expected addresses of the pool"#];
    an_exclusion_that_is_partly_in_the_pool_is_not_reported:
        "addresses: [10.0.0.0/24], excludedAddresses: [10.0.0.250-10.0.1.9]", NONE => [24], [];
    a_name_server_that_no_machine_reaches_is_reported:
        "addresses: [10.0.0.0/24], nameservers: [8.8.8.8, '2001:4860:4860::8888', 8.8.8.8]", NONE => [24],
        [r#"nameservers[1]: name server of a family without addresses "2001:4860:4860::8888", expected IPv6 addresses in the pool"#,
         r#"nameservers[2]: repeated address "8.8.8.8", expected each address once"#];
    a_pool_without_an_allocatable_address_is_reported:
        "addresses: [10.0.0.4/30], excludedAddresses: [10.0.0.5-10.0.0.6]", NONE => [30],
        ["addresses: no allocatable IPv4 address, expected more addresses than are reserved"];
}

macro_rules! rejects {
    ($($name:ident: $members:expr, $template:expr => [$($error:expr),*];)*) => {
        $(#[test] fn $name() {
            assert_eq!(check($members, &$template), (Vec::new(), vec![$($error.to_owned()),*]));
        })*
    };
}

rejects! {
    only_a_range_of_each_family: "addresses: [192.168.1.10-192.168.1.50, '2620:0:860:2::10-2620:0:860:2::50'], \
                    gateway: [192.168.1.1, '2620:0:860:2::1']", NONE
        => ["addresses[0]: unknown subnet of \"192.168.1.10-192.168.1.50\", expected the item \
             {cidr: 192.168.1.0/24} in machineNetwork: the subnet of the machines",
            "addresses[1]: unknown subnet of \"2620:0:860:2::10-2620:0:860:2::50\", expected the item \
             {cidr: 2620:0:860:2::/64} in machineNetwork: the subnet of the machines"];
    one_address_without_a_machine_network: "addresses: [10.0.0.5/32]", NONE
        => ["addresses[0]: unknown subnet of \"10.0.0.5/32\", expected the item \
             {cidr: 10.0.0.0/24} in machineNetwork: the subnet of the machines"];
    addresses_that_are_far_apart: "addresses: [10.0.0.5, 192.168.0.5]", NONE
        => ["addresses[0]: unknown subnet of \"10.0.0.5/32\", expected the item \
             {cidr: SUBNET} in machineNetwork: the subnet of the machines"];
    a_range_that_is_not_within_the_networks_of_the_pool: "addresses: [10.0.0.0/24, 10.0.0.250-10.0.1.5]", NONE
        => ["addresses[1]: unknown subnet of \"10.0.0.250-10.0.1.5\", expected the item \
             {cidr: 10.0.0.0/23} in machineNetwork: the subnet of the machines"];
    networks_with_different_prefix_lengths: "addresses: [10.0.0.0/24, 10.0.1.0/25]", NONE
        => ["addresses[1]: second prefix length \"10.0.1.0/25\", expected the item \
             {cidr: 10.0.0.0/23} in machineNetwork: the subnet of the machines"];
    a_template_of_another_subnet: "addresses: [10.0.0.16/28], machineNetwork: [{cidr: 10.0.0.0/24}]", [(Family::Ipv4, 23)]
        => ["machineNetwork[0].cidr: other subnet than the template's \"10.0.0.0/24\", \
             expected the length of the template's netmask, 23"];
    addresses_outside_the_machine_network:
        "addresses: [10.0.0.16/28, 10.0.1.0/24, 10.0.0.250-10.0.1.5], machineNetwork: [{cidr: 10.0.0.0/24}]", NONE
        => [r#"addresses[1]: outside the machine network "10.0.1.0/24", expected addresses of 10.0.0.0/24"#,
            r#"addresses[2]: outside the machine network "10.0.0.250-10.0.1.5", expected addresses of 10.0.0.0/24"#];
    a_machine_network_of_one_address: "addresses: [10.0.0.5], machineNetwork: [{cidr: 10.0.0.5/32}]", NONE
        => [r#"machineNetwork[0].cidr: no subnet "10.0.0.5/32", expected the CIDR of a subnet, such as 10.0.0.0/24"#];
    a_second_machine_network: "addresses: [10.0.0.5], machineNetwork: [{cidr: 10.0.0.0/24}, {cidr: 10.0.0.0/23}]", NONE
        => [r#"machineNetwork[1].cidr: second IPv4 network "10.0.0.0/23", expected at most one of each family"#];
    a_machine_network_without_a_cidr: "addresses: [10.0.0.0/24], machineNetwork: [{}, 10.0.0.0/24, {cdir: 1}]", NONE
        => ["machineNetwork[0].cidr: missing, expected the CIDR of a subnet, such as 10.0.0.0/24",
            r#"machineNetwork[1]: invalid item "10.0.0.0/24", expected an object with a cidr"#,
            "machineNetwork[2].cdir: unknown key, expected cidr",
            "machineNetwork[2].cidr: missing, expected the CIDR of a subnet, such as 10.0.0.0/24"];
    a_gateway_outside_the_subnet: "addresses: [10.0.1.0/24], gateway: [10.0.0.1]", NONE
        => ["gateway[0]: gateway outside the subnet \"10.0.0.1\", \
             expected an address of 10.0.1.0/24 like addresses[0], or onLinkGateway: true"];
    a_gateway_in_only_the_first_of_two_subnets: "addresses: [10.0.0.0/24, 10.0.1.0/24], gateway: [10.0.0.1]", NONE
        => ["gateway[0]: gateway outside the subnet \"10.0.0.1\", \
             expected an address of 10.0.1.0/24 like addresses[1], or onLinkGateway: true"];
    a_gateway_that_is_the_network_address: "addresses: [10.0.0.0/24], gateway: [10.0.0.0]", NONE
        => ["gateway[0]: gateway at the end of its subnet \"10.0.0.0\", \
             expected neither its first nor its last address"];
    a_second_gateway: "addresses: [10.0.0.0/24], gateway: [10.0.0.1, 10.0.0.2]", NONE
        => [r#"gateway[1]: second IPv4 gateway "10.0.0.2", expected at most one of each family"#];
    a_gateway_of_the_other_family: "addresses: [10.0.0.0/24], gateway: ['fd00::1']", NONE
        => [r#"gateway[0]: gateway of a family without addresses "fd00::1", expected IPv6 addresses in the pool"#];
    a_gateway_with_a_multicast_address: "addresses: ['fd00::/64'], gateway: ['ff02::1']", NONE
        => [r#"gateway[0]: multicast address "ff02::1", expected an address outside ff00::/8"#];
    settings_with_mistakes:
        "addresses: [10.0.0.0/24], searchDomains: ['a b'], mtu: 67, \
         routes: [{to: 10.9.0.1/16, via: 10.0.0.254}, {to: 10.9.0.0-10.9.0.9, via: x}, {to: 'fd09::/48', via: 10.0.0.254}, \
         {to: 'fd09::/48', via: 'fd00::1'}, {to: default, via: 10.0.0.1}, {to: 10.8.0.0/16, via: 10.1.0.254}, \
         {to: 10.7.0.0/16, via: 10.0.0.9}, {to: 10.7.0.0/16, via: 10.0.0.8}, {to: 10.6.0.0/16, via: 10.0.0.255}]", NONE
        => ["mtu: invalid MTU \"67\", expected 68 to 65535 bytes",
            "routes[0].to: host bits are set \"10.9.0.1/16\", expected no bits after the prefix length: \
             did you mean 10.9.0.0/16 or 10.9.0.1/32",
            r#"routes[1].to: no destination "10.9.0.0-10.9.0.9", expected a CIDR or one address"#,
            r#"routes[1].via: invalid address "x", expected an IPv4 or IPv6 address"#,
            r#"routes[2].via: router of the other family "10.0.0.254", expected an IPv6 address"#,
            r#"routes[3].to: route of a family without addresses "fd09::/48", expected IPv6 addresses in the pool"#,
            r#"routes[4].to: default route "default", expected the member gateway for a default route"#,
            "routes[5].via: router outside the subnet \"10.1.0.254\", \
             expected an address of 10.0.0.0/24 like addresses[0], or onLinkGateway: true",
            r#"routes[7].to: second route "10.7.0.0/16", expected each destination once"#,
            "routes[8].via: router at the end of its subnet \"10.0.0.255\", \
             expected neither its first nor its last address",
            r#"searchDomains[0]: invalid search domain "a b", expected a domain name"#];
    search_domains_of_other_types: "addresses: [10.0.0.0/24], searchDomains: [true, b.example.com, 7]", NONE
        => [r#"searchDomains[0]: invalid value "true", expected a string, written with quotes in YAML, where y, yes and on mean true"#,
            r#"searchDomains[2]: invalid value "7", expected a string, written with quotes in YAML"#];
    one_prefix_length_for_two_families: "addresses: [10.0.0.0/24, 'fd00::/64'], prefix: 32", NONE
        => ["prefix: prefix length of two families \"32\", \
             expected machineNetwork with a subnet of each family, or a pool of one family"];
    a_prefix_length_that_is_too_long: "addresses: [10.0.0.0/24], prefix: 33", NONE
        => [r#"prefix: invalid prefix length "33", expected 0 to 32"#];
    a_negative_prefix_length: "addresses: ['fd00::/64'], prefix: -1", NONE
        => [r#"prefix: invalid prefix length "-1", expected 0 to 128"#];
    a_prefix_length_of_0: "addresses: [10.0.0.0/24], prefix: 0", NONE
        => ["prefix: no prefix length for machines \"0\", \
             expected 1 to 32: a machine needs a subnet, and the smallest one is 32 with onLinkGateway"];
    another_prefix_length_than_the_subnet_has: "addresses: [10.0.0.5], prefix: 32, machineNetwork: [{cidr: 10.0.0.0/24}]", NONE
        => [r#"prefix: other prefix length "32", expected the length of machineNetwork, 24"#];
    another_prefix_length_than_the_template_has: "addresses: [10.0.0.5], prefix: 32", [(Family::Ipv4, 24)]
        => [r#"prefix: other prefix length "32", expected the length of the template's netmask, 24"#];
    a_gateway_for_subnets_of_one_address: "addresses: [10.0.0.0/24], prefix: 32, gateway: [10.0.0.1]", NONE
        => ["gateway[0]: gateway outside the subnet \"10.0.0.1\", \
             expected onLinkGateway: true, because no machine with a /32 has a router in its subnet"];
    subnets_with_mistakes:
        "addresses: [10.0.0.0/24], gateway: [10.0.0.1], prefix: 24, subnets: [{addresses: [10.0.1.0/24], gateway: [10.0.0.1]}, \
         {addresses: [10.0.1.9], prefix: 24, network: b}, {}, 10.0.9.0/24, {addresses: [10.0.3.0], prefix: 0}]", NONE
        => ["addresses: set together with subnets, expected addresses inside the subnets instead",
            "gateway: set together with subnets, expected gateway inside the subnets instead",
            "prefix: set together with subnets, expected prefix inside the subnets instead",
            "subnets[0].gateway[0]: gateway outside the subnet \"10.0.0.1\", \
             expected an address of 10.0.1.0/24 like addresses[0], or onLinkGateway: true",
            r#"subnets[1].addresses: addresses of subnets[0] "10.0.1.9", expected each address in one subnet"#,
            "subnets[1].network: unknown key, expected one of addresses, excludedAddresses, gateway, nameservers, \
             searchDomains, mtu, routes, machineNetwork, prefix",
            "subnets[2].addresses: missing, expected the addresses of the pool",
            r#"subnets[3]: invalid item "10.0.9.0/24", expected an object"#,
            "subnets[4].prefix: no prefix length for machines \"0\", \
             expected 1 to 32: a machine needs a subnet, and the smallest one is 32 with onLinkGateway"];
    an_mtu_of_the_pool_that_a_subnet_does_not_support:
        "subnets: [{addresses: [10.0.0.0/24]}, {addresses: ['fd00::/64']}], mtu: 1279", NONE
        => [r#"mtu: MTU too small for IPv6 "1279", expected at least 1280 bytes"#];
    a_pre_allocation_outside_all_subnets:
        "subnets: [{addresses: [10.0.0.0/24]}, {addresses: [10.1.0.0/24]}], excludedAddresses: [10.2.0.5, 10.1.0.255], \
         preAllocations: {db: 10.2.0.5, web: 10.1.0.255}", NONE
        => [r#"preAllocations.db: address outside the subnets "10.2.0.5", expected an address in a /24 subnet of addresses"#,
            "preAllocations.web: broadcast address of its subnet \"10.1.0.255\", \
             expected another address, or allocateReservedIPAddresses"];
    settings_of_another_type: "addresses: [10.0.0.0/24], mtu: 9k, routes: [10.9.0.0/16, {to: 10.9.0.0/16, gateway: 10.0.0.9}]", NONE
        => [r#"mtu: invalid value "9k", expected a number of bytes"#,
            r#"routes[0]: invalid item "10.9.0.0/16", expected an object"#,
            "routes[1].gateway: unknown key, expected one of to, via",
            "routes[1].via: missing, expected the address of a router"];
    a_route_with_empty_members: "addresses: [10.0.0.0/24], routes: [{to: '', via: 10.0.0.9}, {to: 10.9.0.0/16, via: ''}]", NONE
        => [r#"routes[0].to: invalid value "", expected the CIDR of the destination"#,
            r#"routes[1].via: invalid value "", expected the address of a router"#];
    an_mtu_that_ipv6_does_not_support: "addresses: ['fd00::/64'], mtu: 1279", NONE
        => [r#"mtu: MTU too small for IPv6 "1279", expected at least 1280 bytes"#];
    a_pre_allocation_of_a_router:
        "addresses: [10.0.0.0/24], routes: [{to: 10.9.0.0/16, via: 10.0.0.9}], preAllocations: {db: 10.0.0.9}", NONE
        => ["preAllocations.db: reserved address \"10.0.0.9\", \
             expected neither a gateway, a name server nor an address in the template"];
    a_pre_allocation_with_an_invalid_name_or_address:
        "addresses: [10.0.0.0/24], preAllocations: {Db: 10.0.0.5, a/b/c: 10.0.0.5, db: 10.0.0.05, web: [10.0.0.6]}", NONE
        => ["preAllocations.\"a/b/c\": invalid name \"a/b/c\", expected the name of a machine or claim, or namespace/name: at most 253 lower case letters, digits, '-' and '.', with a letter or digit at both ends",
            "preAllocations.Db: invalid name \"Db\", expected the name of a machine or claim, or namespace/name: at most 253 lower case letters, digits, '-' and '.', with a letter or digit at both ends",
            r#"preAllocations.db: leading zero in an address "10.0.0.05", expected 10.0.0.5"#,
            r#"preAllocations.web: invalid address "[10.0.0.6]", expected an IPv4 or IPv6 address"#];
    a_pre_allocation_that_another_name_has: "addresses: [10.0.0.0/24], preAllocations: {db: 10.0.0.5, web: 10.0.0.5}", NONE
        => [r#"preAllocations.web: repeated address "10.0.0.5", expected an address that "db" does not have"#];
    two_pre_allocations_of_one_family: "addresses: [10.0.0.0/24], preAllocations: {db: '10.0.0.5, 10.0.0.6'}", NONE
        => [r#"preAllocations.db: second IPv4 address "10.0.0.6", expected at most one of each family"#];
    a_pre_allocation_of_a_gateway: "addresses: [10.0.0.0/24], gateway: [10.0.0.1], preAllocations: {db: 10.0.0.1}", NONE
        => ["preAllocations.db: reserved address \"10.0.0.1\", \
             expected neither a gateway, a name server nor an address in the template"];
    a_pre_allocation_outside_the_pool:
        "addresses: [10.0.0.0/24], preAllocations: {db: 10.0.1.5, web: 'fd00::5'}", NONE
        => ["preAllocations.db: address outside the pool \"10.0.1.5\", \
             expected one of addresses or excludedAddresses, of a family in addresses",
            r#"preAllocations.db: address outside the subnets "10.0.1.5", expected an address in a /24 subnet of addresses"#,
            "preAllocations.web: address outside the pool \"fd00::5\", \
             expected one of addresses or excludedAddresses, of a family in addresses"];
    a_pre_allocation_of_a_network_address:
        "addresses: [10.0.0.0/24], preAllocations: {db: 10.0.0.0, web: 10.0.0.255}", NONE
        => ["preAllocations.db: network address of its subnet \"10.0.0.0\", \
             expected another address, or allocateReservedIPAddresses",
            "preAllocations.web: broadcast address of its subnet \"10.0.0.255\", \
             expected another address, or allocateReservedIPAddresses"];
    pre_allocations_for_a_name_in_each_namespace_and_in_one_namespace:
        "addresses: [10.0.0.0/24], preAllocations: {db: 10.0.0.5, n/db: 10.0.0.6}", NONE
        => ["preAllocations.\"n/db\": second entry of a name \"n/db\", \
             expected no entry for \"db\", which is the same name in each namespace"];
    pre_allocations_that_are_no_object: "addresses: [10.0.0.0/24], preAllocations: [10.0.0.5]", NONE
        => [r#"preAllocations: invalid value "[10.0.0.5]", expected an object with names and their addresses"#];
    a_reuse_delay_that_is_no_number: "addresses: [10.0.0.0/24], addressReuseGracePeriodSeconds: 5m", NONE
        => ["addressReuseGracePeriodSeconds: invalid value \"5m\", expected a number of seconds, 0 to 4294967295"];
    a_negative_reuse_delay: "addresses: [10.0.0.0/24], addressReuseGracePeriodSeconds: -1", NONE
        => ["addressReuseGracePeriodSeconds: invalid value \"-1\", expected a number of seconds, 0 to 4294967295"];
    a_name_server_with_a_loopback_address: "addresses: [10.0.0.0/24], nameservers: [127.0.0.53]", NONE
        => [r#"nameservers[0]: loopback address "127.0.0.53", expected an address outside 127.0.0.0/8"#];
    an_empty_list_of_addresses: "addresses: []", NONE => ["addresses: empty list, expected at least one address"];
    a_pool_without_a_list_of_addresses: "interface: eno102", NONE
        => ["addresses: missing, expected the addresses of the pool"];
    one_string_instead_of_a_list_of_addresses: "addresses: 10.0.0.0/24", NONE
        => [r#"addresses: invalid list "10.0.0.0/24", expected an array"#,
            "addresses: empty list, expected at least one address"];
    elements_that_are_no_strings: "addresses: [10.0.0.0/24, 10, null, [], {}]", NONE
        => ["addresses[1]: invalid address \"10\", expected an address, a CIDR or a range, \
             such as 10.0.0.5, 10.0.0.0/24 or 10.0.0.5-10.0.0.9",
            "addresses[2]: invalid address \"null\", expected an address, a CIDR or a range, \
             such as 10.0.0.5, 10.0.0.0/24 or 10.0.0.5-10.0.0.9",
            "addresses[3]: invalid address \"[]\", expected an address, a CIDR or a range, \
             such as 10.0.0.5, 10.0.0.0/24 or 10.0.0.5-10.0.0.9",
            "addresses[4]: invalid address \"{}\", expected an address, a CIDR or a range, \
             such as 10.0.0.5, 10.0.0.0/24 or 10.0.0.5-10.0.0.9"];
    errors_in_several_members_at_once:
        "addresses: [10.0.0.9-10.0.0.5, 10.0.0.5/24], excludedAddresses: [x], gateway: [1.2.3], nameservers: [y], \
         interface: 'a b', allocateReservedIPAddresses: 1", NONE
        => ["addresses[0]: reversed range \"10.0.0.9-10.0.0.5\", expected 10.0.0.5-10.0.0.9",
            "addresses[1]: host bits are set \"10.0.0.5/24\", expected no bits after the prefix length: \
             did you mean 10.0.0.0/24 or 10.0.0.5/32",
            r#"allocateReservedIPAddresses: invalid value "1", expected true or false"#,
            "excludedAddresses[0]: invalid address \"x\", expected an address, a CIDR or a range, \
             such as 10.0.0.5, 10.0.0.0/24 or 10.0.0.5-10.0.0.9",
            r#"gateway[0]: invalid address "1.2.3", expected an IPv4 or IPv6 address"#,
            "interface: invalid interface name \"a b\", expected 1 to 15 letters, digits, '.', '_' or '-', \
             not only digits, and not all, default or lo",
            "nameservers[0]: invalid address \"true\", expected an IPv4 or IPv6 address"];
}

#[test]
fn addresses_that_the_template_names_are_reserved() {
    let document = "{name: w, network: 'n', addresses: [192.168.1.0/29]}";
    let (specs, mut diagnostics) = read_pools(document.as_bytes());
    let set = |addresses: &[&str]| addresses.iter().map(|address| address.parse().unwrap()).collect();
    let template = TemplateFacts {
        prefixes: BTreeMap::new(),
        gateways: set(&["192.168.1.1"]),
        nameservers: set(&["192.168.1.2", "192.168.1.1", "8.8.8.8"]),
        addresses: set(&["192.168.1.3", "192.168.1.2"]),
        unread: Vec::new(),
    };
    let pool = Pool::new(&specs[0], &template, &mut diagnostics).unwrap();
    let why = |last: u8| pool.why_reserved(IpAddr::from([192, 168, 1, last]));
    assert_eq!(
        [1, 2, 3, 4].map(why),
        [Some(Reserved::Gateway), Some(Reserved::Nameserver), Some(Reserved::Template), None]
    );
    let count = pool.count(Family::Ipv4).unwrap();
    let reserved =
        [Reserved::Gateway, Reserved::Nameserver, Reserved::Template, Reserved::NetworkAddress, Reserved::Broadcast];
    assert_eq!((count.reserved, count.allocatable), (reserved.into_iter().map(|why| (why, 1)).collect(), 3));
}

#[test]
fn a_pool_reports_the_warnings_about_its_template_and_does_not_store_them() {
    let (specs, mut diagnostics) = read_pools(b"{name: w, network: 'n', addresses: [192.168.1.0/29]}");
    let mtu = Diagnostic::warning("links[0].mtu", "not read by afterburn", 9000, "another image");
    let template = TemplateFacts { unread: vec![mtu], ..TemplateFacts::default() };
    let pool = Pool::new(&specs[0], &template, &mut diagnostics);
    assert_eq!(
        diagnostics.kept(),
        [Diagnostic::warning("template.links[0].mtu", "not read by afterburn", 9000, "another image")]
    );
    assert_eq!(pool, Pool::new(&specs[0], &TemplateFacts::default(), &mut diagnostics));
}

#[test]
fn addresses_outside_the_subnet_of_the_gateway_in_the_template_are_refused() {
    let check = |members: &str, gateway: &str| {
        let document = format!("{{name: w, network: 'n', {members}}}");
        let (specs, mut diagnostics) = read_pools(document.as_bytes());
        let gateways = std::collections::BTreeSet::from([gateway.parse().unwrap()]);
        let _ = Pool::new(&specs[0], &TemplateFacts { gateways, ..TemplateFacts::default() }, &mut diagnostics);
        diagnostics.kept().iter().map(ToString::to_string).collect::<Vec<String>>()
    };
    assert_eq!(
        check("addresses: [10.0.0.0/24, 10.0.1.0/24]", "10.0.0.1"),
        ["addresses[1]: outside the subnet of the template's gateway \"10.0.1.0/24\", \
          expected addresses of 10.0.0.0/24 like gateway 10.0.0.1, or onLinkGateway: true"]
    );
    assert_eq!(check("addresses: [10.0.1.0/24], onLinkGateway: true", "10.0.0.1"), [""; 0]);
    assert_eq!(check("addresses: ['fd00::/64']", "fe80::1"), [""; 0]);
    assert_eq!(check("addresses: ['fd00::/64']", "10.0.0.1"), [""; 0]);
}

#[test]
fn a_reuse_delay_is_given_in_seconds() {
    let pool = crate::host::pool::tests::pool(
        "{name: w, network: 'n', addresses: [10.0.0.0/24], addressReuseGracePeriodSeconds: 300}",
    );
    assert_eq!(pool.reuse_delay, Duration::from_secs(300));
}

#[test]
fn names_that_kubernetes_does_not_accept_are_refused() {
    let document = "{name: Workers, namespace: a_b, clusterName: '-', network: a/b/c, addresses: [10.0.0.0/24]}";
    let (specs, mut diagnostics) = read_pools(document.as_bytes());
    assert_eq!(Pool::new(&specs[0], &TemplateFacts::default(), &mut diagnostics), None);
    let found: Vec<String> = diagnostics.kept().iter().map(ToString::to_string).collect();
    assert_eq!(
        found,
        [
            "clusterName: invalid name \"-\", expected at most 253 lower case letters, digits, '-' and '.', with a letter or digit at both ends",
            "name: invalid name \"Workers\", expected at most 253 lower case letters, digits, '-' and '.', with a letter or digit at both ends",
            "namespace: invalid name \"a_b\", expected at most 253 lower case letters, digits, '-' and '.', with a letter or digit at both ends",
            "network: invalid network \"a/b/c\", expected namespace/name or a name: at most 253 lower case letters, digits, '-' and '.', with a letter or digit at both ends",
        ]
    );
}
