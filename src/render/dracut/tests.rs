//! Tests of the exact arguments for each kind of network, and of the names in the arguments.

use super::*;
use crate::network::{BondMode, BridgePort, DomainName, Located, Mtu, RoutingRule, VlanId};
use crate::render::network_legacy;
use crate::render::test_links::{link, mac, name, nic, nic_with_name};

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn nic_by_name(text: &str) -> Link {
    link(LinkKind::Nic(Nic::Name(text.parse().unwrap())))
}

fn vlan(parent: usize, id: i64, requested: Option<InterfaceName>) -> Link {
    let (parent, id) = (LinkIndex(parent), VlanId::try_from(id).unwrap());
    link(LinkKind::Vlan { name: requested, parent, id })
}

fn bond(text: &str, ports: &[usize], options: BondOptions) -> Link {
    let ports = ports.iter().copied().map(LinkIndex).collect();
    link(LinkKind::Bond { name: text.parse().unwrap(), ports, options })
}

fn bridge(text: &str, ports: &[usize]) -> Link {
    let ports = ports.iter().copied().map(LinkIndex).collect();
    link(LinkKind::Bridge { name: text.parse().unwrap(), ports, options: BridgeOptions::default() })
}

fn nic_by_pattern(text: &str) -> Link {
    link(LinkKind::Nic(Nic::Pattern { names: vec![text.parse().unwrap()], drivers: Vec::new(), name: None }))
}

fn active_backup() -> BondOptions {
    BondOptions::new(BondMode::ActiveBackup)
}

fn with_primary(port: usize) -> BondOptions {
    let mut options = active_backup();
    options.primary = Some(LinkIndex(port));
    options
}

fn with_targets(targets: &[&str]) -> BondOptions {
    let mut options = active_backup();
    options.arp_ip_target = targets.iter().map(|target| target.parse().unwrap()).collect();
    options
}

impl Link {
    fn v4(mut self, address: &str) -> Self {
        self.ipv4.addresses.push(address.parse().unwrap());
        self
    }

    fn v6(mut self, address: &str) -> Self {
        self.ipv6.addresses.push(address.parse().unwrap());
        self
    }

    fn dhcp(mut self) -> Self {
        self.ipv4.dhcp = true;
        self
    }

    fn dynamic(mut self, dynamic: Ipv6Dynamic) -> Self {
        self.ipv6.dynamic = Some(dynamic);
        self
    }

    fn link_local(mut self, has_address: bool) -> Self {
        self.ipv6.link_local = Some(has_address);
        self
    }

    fn quiet(mut self) -> Self {
        self.without_addresses = true;
        self
    }

    fn via(self, destination: &str, gateway: &str) -> Self {
        self.metric(destination, gateway, None)
    }

    fn on_link(mut self, destination: &str) -> Self {
        self.routes.push(Route::new(destination.parse().unwrap(), None, None).unwrap());
        self
    }

    fn metric(mut self, destination: &str, gateway: &str, metric: Option<u32>) -> Self {
        let gateway = Some(gateway.parse().unwrap());
        self.routes.push(Route::new(destination.parse().unwrap(), gateway, metric).unwrap());
        self
    }

    fn mtu(mut self, bytes: i64) -> Self {
        self.mtu = Mtu::try_from(bytes).ok();
        self
    }

    fn mac(mut self, number: u8) -> Self {
        self.cloned_mac_address = Some(mac(number));
        self
    }
}

type RenderFn = fn(&NetworkConfig, &mut Diagnostics) -> Rendered;

fn rendered(render: RenderFn, links: Vec<Link>, nameservers: &[&str]) -> (String, usize) {
    let mut config = NetworkConfig::new(links).unwrap();
    config.dns.nameservers = nameservers.iter().map(|server| address(server).into()).collect();
    let mut diagnostics = Diagnostics::default();
    let rendered = render(&config, &mut diagnostics);
    (rendered.line, diagnostics.kept().len())
}

/// Renders a network and returns its diagnostics as strings.
fn messages(render: RenderFn, links: Vec<Link>) -> Vec<String> {
    let mut diagnostics = Diagnostics::default();
    render(&NetworkConfig::new(links).unwrap(), &mut diagnostics);
    diagnostics.kept().iter().map(|diagnostic| format!("{:?} {diagnostic}", diagnostic.severity)).collect()
}

/// Makes a test of each network: its links, optional name servers, the exact arguments, and the number of warnings if
/// there are any.
macro_rules! renders {
    ($($rest:tt)*) => { renders_for! { render, $($rest)* } };
}

macro_rules! renders_for {
    ($render:path, $($name:ident: [$($link:expr),*] $(dns [$($server:literal),*])? => $line:literal $(, $warnings:literal)?;)*) => {
        $(#[test] fn $name() {
            let servers: &[&str] = &[$($($server),*)?];
            assert_eq!(rendered($render, vec![$($link),*], servers), ($line.to_owned(), 0 $(+ $warnings)?));
        })*
    };
}

// Each row is a network whose arguments were tested with NetworkManager itself.
renders! {
    a_static_ipv4_address_has_the_gateway_in_its_ip_argument: [nic(1).v4("10.0.0.5/24").via("0.0.0.0/0", "10.0.0.1")]
        => "ip=10.0.0.5::10.0.0.1:24::[52:54:00:12:34:01]:none";
    a_static_ipv4_address_without_a_gateway_has_an_empty_field: [nic(1).v4("10.0.0.5/24")]
        => "ip=10.0.0.5:::24::[52:54:00:12:34:01]:none";
    a_static_ipv6_address_and_its_gateway_have_brackets: [nic(1).v6("2001:db8::5/64").via("::/0", "2001:db8::1")]
        => "ip=[2001:db8::5]::[2001:db8::1]:64::[52:54:00:12:34:01]:none";
    of_two_static_families_ipv4_comes_first:
        [nic(1).v6("2001:db8::5/64").v4("10.0.0.5/24").via("::/0", "fe80::1").via("0.0.0.0/0", "10.0.0.1")]
        => "ip=10.0.0.5::10.0.0.1:24::[52:54:00:12:34:01]:none \
            ip=[2001:db8::5]::[fe80::1]:64::[52:54:00:12:34:01]:none";
    a_second_address_has_no_gateway:
        [nic(1).v4("10.0.0.5/24").v4("10.0.0.6/24").via("0.0.0.0/0", "10.0.0.1")]
        => "ip=10.0.0.5::10.0.0.1:24::[52:54:00:12:34:01]:none ip=10.0.0.6:::24::[52:54:00:12:34:01]:none";
    every_argument_of_a_nic_contains_the_mtu_of_the_nic: [nic(1).v4("10.0.0.5/24").v4("10.0.0.6/24").mtu(1400)]
        => "ip=10.0.0.5:::24::[52:54:00:12:34:01]:none:1400 ip=10.0.0.6:::24::[52:54:00:12:34:01]:none:1400";
    dhcpv4_has_the_method_dhcp: [nic(1).dhcp()] => "ip=[52:54:00:12:34:01]:dhcp";
    the_mtu_follows_the_method_dhcp: [nic(1).dhcp().mtu(1400)] => "ip=[52:54:00:12:34:01]:dhcp:1400";
    stateful_dhcpv6_has_the_method_dhcp6: [nic(1).dynamic(Ipv6Dynamic::StatefulDhcp)] => "ip=[52:54:00:12:34:01]:dhcp6";
    stateless_dhcpv6_has_the_method_auto6: [nic(1).dynamic(Ipv6Dynamic::StatelessDhcp)]
        => "ip=[52:54:00:12:34:01]:auto6";
    slaac_has_the_method_auto6: [nic(1).dynamic(Ipv6Dynamic::Slaac)] => "ip=[52:54:00:12:34:01]:auto6";
    dhcpv4_and_slaac_are_two_methods_of_one_argument: [nic(1).dhcp().dynamic(Ipv6Dynamic::Slaac)]
        => "ip=[52:54:00:12:34:01]:dhcp,dhcp6";
    static_ipv4_and_slaac_have_the_method_on:
        [nic(1).v4("10.0.0.5/24").via("0.0.0.0/0", "10.0.0.1").dynamic(Ipv6Dynamic::Slaac)]
        => "ip=10.0.0.5::10.0.0.1:24::[52:54:00:12:34:01]:on";
    dhcpv4_and_static_ipv6_have_the_method_on: [nic(1).dhcp().v6("2001:db8::5/64").via("::/0", "2001:db8::1")]
        => "ip=[2001:db8::5]::[2001:db8::1]:64::[52:54:00:12:34:01]:on";
    a_second_address_of_a_nic_with_a_dynamic_family_has_the_same_method:
        [nic(1).v4("10.0.0.5/24").v4("10.0.0.6/24").dynamic(Ipv6Dynamic::StatefulDhcp)]
        => "ip=10.0.0.5:::24::[52:54:00:12:34:01]:on ip=10.0.0.6:::24::[52:54:00:12:34:01]:on";
    a_route_has_an_argument_with_its_device: [nic(1).v4("10.0.0.5/24").via("10.1.0.0/16", "10.0.0.254")]
        => "ip=10.0.0.5:::24::[52:54:00:12:34:01]:none rd.route=10.1.0.0/16:10.0.0.254:[52:54:00:12:34:01]";
    an_ipv6_route_has_brackets_around_its_addresses:
        [nic(1).v6("2001:db8::5/64").via("2001:db8:9::/48", "2001:db8::fe")]
        => "ip=[2001:db8::5]:::64::[52:54:00:12:34:01]:none \
            rd.route=[2001:db8:9::/48]:[2001:db8::fe]:[52:54:00:12:34:01]";
    a_default_route_next_to_dhcp_has_a_route_argument: [nic(1).dhcp().via("0.0.0.0/0", "192.0.2.1")]
        => "ip=[52:54:00:12:34:01]:dhcp rd.route=0.0.0.0/0:192.0.2.1:[52:54:00:12:34:01]";
    an_on_link_route_has_no_gateway: [nic(1).v4("10.0.0.5/24").on_link("192.168.5.0/24")]
        => "ip=10.0.0.5:::24::[52:54:00:12:34:01]:none rd.route=192.168.5.0/24::[52:54:00:12:34:01]";
    an_on_link_default_route_has_a_route_argument: [nic(1).v6("2001:db8::5/64").on_link("::/0")]
        => "ip=[2001:db8::5]:::64::[52:54:00:12:34:01]:none rd.route=[::/0]::[52:54:00:12:34:01]";
    a_gateway_outside_the_subnet_needs_no_further_argument: [nic(1).v4("10.0.0.5/32").via("0.0.0.0/0", "169.254.1.1")]
        => "ip=10.0.0.5::169.254.1.1:32::[52:54:00:12:34:01]:none";
    the_default_route_of_the_lowest_metric_is_kept_and_its_link_is_first:
        [
            nic(1).v4("10.0.0.5/24").metric("0.0.0.0/0", "10.0.0.1", Some(200)),
            nic(2).v4("10.1.0.5/24").metric("0.0.0.0/0", "10.1.0.1", Some(100))
        ]
        => "ip=10.1.0.5::10.1.0.1:24::[52:54:00:12:34:02]:none ip=10.0.0.5:::24::[52:54:00:12:34:01]:none", 3;
    of_equal_default_routes_the_first_is_kept:
        [nic(1).dhcp().via("0.0.0.0/0", "10.0.0.1"), nic(2).v4("10.1.0.5/24").via("0.0.0.0/0", "10.1.0.1")]
        => "ip=[52:54:00:12:34:01]:dhcp rd.route=0.0.0.0/0:10.0.0.1:[52:54:00:12:34:01] \
            ip=10.1.0.5:::24::[52:54:00:12:34:02]:none", 1;
    a_repeated_default_route_is_written_once: [
            nic(1).v4("10.0.0.5/24").via("0.0.0.0/0", "10.0.0.1").via("0.0.0.0/0", "10.0.0.1")
        ]
        => "ip=10.0.0.5::10.0.0.1:24::[52:54:00:12:34:01]:none";
    each_family_has_its_own_default_route:
        [
            nic(1).dhcp(),
            nic(2).v6("2001:db8::5/64").via("::/0", "fe80::1"),
            nic(3).via("0.0.0.0/0", "10.0.0.1").dhcp()
        ]
        => "ip=[52:54:00:12:34:03]:dhcp rd.route=0.0.0.0/0:10.0.0.1:[52:54:00:12:34:03] \
            ip=[2001:db8::5]::[fe80::1]:64::[52:54:00:12:34:02]:none ip=[52:54:00:12:34:01]:dhcp";
    name_servers_have_no_brackets_and_come_last: [nic(1).dhcp()] dns ["1.1.1.1", "2001:db8::53"]
        => "ip=[52:54:00:12:34:01]:dhcp nameserver=1.1.1.1 nameserver=2001:db8::53";
    name_servers_need_a_nic_with_addresses: [nic(1).mtu(9000)] dns ["1.1.1.1"]
        => "ip=[52:54:00:12:34:01]:off:9000", 1;
    a_vlan_on_a_nic_with_a_mac_address_gives_the_nic_a_name:
        [nic(1), vlan(0, 100, None).v4("10.0.0.5/24").via("0.0.0.0/0", "10.0.0.1").mtu(1400)]
        => "ifname=kv0:52:54:00:12:34:01 vlan=kv0.100:kv0 ip=10.0.0.5::10.0.0.1:24::kv0.100:none:1400";
    a_bond_lists_its_members_by_mac_address: [
            nic(1),
            nic(2),
            bond("bond0", &[0, 1], active_backup()).mtu(1400).v4("10.0.0.5/24").via("0.0.0.0/0", "10.0.0.1")
        ]
        => "bond=bond0:52-54-00-12-34-01,52-54-00-12-34-02:mode=active-backup:1400 \
            ip=10.0.0.5::10.0.0.1:24::bond0:none";
    a_nic_with_only_an_mtu_has_the_method_off: [nic(1).mtu(9000)] => "ip=[52:54:00:12:34:01]:off:9000";
    a_nic_without_settings_has_no_argument: [nic(1)] => "";
}

// Static and dynamic addresses of one family: NetworkManager has a method for this case, but requires the dynamic
// addresses.
renders! {
    static_ipv4_and_dhcpv4_have_the_method_dhcp_with_a_warning: [nic(1).v4("10.0.0.5/24").dhcp()]
        => "ip=10.0.0.5:::24::[52:54:00:12:34:01]:dhcp", 1;
    static_ipv4_and_both_dynamic_families_have_the_method_dhcp:
        [nic(1).v4("10.0.0.5/24").dhcp().dynamic(Ipv6Dynamic::Slaac)]
        => "ip=10.0.0.5:::24::[52:54:00:12:34:01]:dhcp", 1;
    static_ipv6_and_both_dynamic_families_have_one_argument_for_each_family:
        [nic(1).v6("2001:db8::5/64").dhcp().dynamic(Ipv6Dynamic::Slaac)]
        => "ip=[2001:db8::5]:::64::[52:54:00:12:34:01]:auto6 ip=[52:54:00:12:34:01]:dhcp", 1;
    both_static_families_and_dhcpv4_have_the_method_dhcp: [nic(1).v4("10.0.0.5/24").v6("2001:db8::5/64").dhcp()]
        => "ip=10.0.0.5:::24::[52:54:00:12:34:01]:dhcp ip=[2001:db8::5]:::64::[52:54:00:12:34:01]:dhcp", 1;
    both_static_families_and_slaac_have_a_method_of_each_family:
        [nic(1).v4("10.0.0.5/24").v6("2001:db8::5/64").dynamic(Ipv6Dynamic::Slaac)]
        => "ip=10.0.0.5:::24::[52:54:00:12:34:01]:none ip=[2001:db8::5]:::64::[52:54:00:12:34:01]:auto6", 1;
    both_static_and_both_dynamic_families_have_a_method_of_each_family:
        [nic(1).v4("10.0.0.5/24").v6("2001:db8::5/64").dhcp().dynamic(Ipv6Dynamic::StatefulDhcp)]
        => "ip=10.0.0.5:::24::[52:54:00:12:34:01]:dhcp ip=[2001:db8::5]:::64::[52:54:00:12:34:01]:dhcp6", 1;
}

// Link-local addresses, and NICs that must stay without addresses while other NICs are configured.
renders! {
    a_link_local_address_alone_has_the_method_link6: [nic_by_name("enp2s0").link_local(true)] => "ip=enp2s0:link6";
    a_link_local_address_next_to_static_ipv4_has_its_own_argument: [nic(1).v4("10.0.0.5/24").mtu(1400).link_local(true)]
        => "ip=10.0.0.5:::24::[52:54:00:12:34:01]:none:1400 ip=[52:54:00:12:34:01]:link6:1400";
    a_route_through_a_link_local_gateway_has_an_argument: [nic(1).link_local(true).via("2001:db8::/32", "fe80::1")]
        => "ip=[52:54:00:12:34:01]:link6 rd.route=[2001:db8::/32]:[fe80::1]:[52:54:00:12:34:01]";
    a_link_local_address_next_to_dhcp_needs_no_argument: [nic(1).dhcp().link_local(true)]
        => "ip=[52:54:00:12:34:01]:dhcp";
    a_link_local_address_next_to_another_ipv6_address_needs_no_argument: [nic(1).v6("2001:db8::5/64").link_local(true)]
        => "ip=[2001:db8::5]:::64::[52:54:00:12:34:01]:none";
    static_ipv4_alone_gives_no_link_local_address: [nic(1).v4("10.0.0.5/24").link_local(false)]
        => "ip=10.0.0.5:::24::[52:54:00:12:34:01]:none";
    dhcp_without_a_link_local_address_cannot_be_expressed: [nic(1).dhcp().link_local(false)]
        => "ip=[52:54:00:12:34:01]:dhcp", 1;
    ipv6_without_a_link_local_address_cannot_be_expressed: [nic(1).v6("2001:db8::5/64").link_local(false)]
        => "ip=[2001:db8::5]:::64::[52:54:00:12:34:01]:none", 1;
    nics_without_addresses_are_off_if_another_nic_is_configured: [nic(1).dhcp(), nic(2).quiet(), nic_by_name("enp2s0").quiet()]
        => "ip=[52:54:00:12:34:01]:dhcp ip=[52:54:00:12:34:02]:off ip=enp2s0:off";
    the_parent_of_a_vlan_needs_no_ip_argument: [nic_by_name("enp2s0").quiet(), vlan(0, 5, None).dhcp()]
        => "vlan=enp2s0.5:enp2s0 ip=enp2s0.5:dhcp";
    a_bridge_port_needs_no_ip_argument: [nic_by_name("enp2s0").quiet(), bridge("br0", &[0]).dhcp()]
        => "bridge=br0:enp2s0 ip=br0:dhcp";
    a_pattern_without_addresses_is_ignored_if_another_nic_is_configured: [nic(1).dhcp(), nic_by_pattern("en*").quiet()]
        => "ip=[52:54:00:12:34:01]:dhcp", 1;
}

renders_for! { network_legacy::render,
    network_legacy_has_the_long_form_of_link6_for_a_link_local_address: [nic(1).link_local(true)] => "ip=:::::[52:54:00:12:34:01]:link6";
    network_legacy_has_no_argument_for_a_link_local_address_next_to_a_static_address: [nic(1).v4("10.0.0.5/24").link_local(true)]
        => "ip=10.0.0.5:::24::[52:54:00:12:34:01]:none";
    network_legacy_cannot_disable_the_link_local_address: [nic(1).v4("10.0.0.5/24").link_local(false)]
        => "ip=10.0.0.5:::24::[52:54:00:12:34:01]:none", 1;
    network_legacy_has_no_argument_for_a_nic_without_addresses: [nic(1).dhcp(), nic(2).quiet()] => "ip=[52:54:00:12:34:01]:dhcp";
}

#[test]
fn a_pattern_is_an_error_if_the_nics_of_another_pattern_must_stay_without_addresses() {
    let because = "kernel arguments cannot keep a NIC without addresses that is identified only by a pattern";
    let expected = "a MAC address or a name: with several links no kernel argument can select this NIC";
    assert_eq!(
        messages(render, vec![nic_by_pattern("en*").dhcp(), nic_by_pattern("eth*").quiet()]),
        [
            format!("Warning links[0]: \"id\" ignored, {because}"),
            format!("Error links[0]: NIC identified only by a pattern \"en*\", expected {expected}"),
        ]
    );
}

// Names of NICs, and of the VLANs and bonds on these NICs.
renders! {
    a_nic_without_a_mac_address_in_the_document_is_identified_by_its_name: [nic_by_name("eno101").dhcp()] => "ip=eno101:dhcp";
    a_nic_whose_name_no_argument_needs_gets_no_name: [nic_with_name(1, "eno1").dhcp()] => "ip=[52:54:00:12:34:01]:dhcp", 0;
    the_requested_name_of_a_nic_that_carries_a_vlan_is_in_every_argument:
        [nic_with_name(1, "eno1").dhcp().on_link("10.9.0.0/16"), vlan(0, 5, None).dhcp()]
        => "ifname=eno1:52:54:00:12:34:01 vlan=eno1.5:eno1 \
            ip=eno1:dhcp rd.route=10.9.0.0/16::eno1 ip=eno1.5:dhcp";
    a_nic_never_gets_a_name_that_the_kernel_assigns: [nic_with_name(1, "eth0"), vlan(0, 5, None).dhcp()]
        => "ifname=kv0:52:54:00:12:34:01 vlan=kv0.5:kv0 ip=kv0.5:dhcp", 1;
    a_nic_never_gets_a_name_that_begins_with_ib: [nic_with_name(1, "ib0"), vlan(0, 5, None).dhcp()]
        => "ifname=kv0:52:54:00:12:34:01 vlan=kv0.5:kv0 ip=kv0.5:dhcp", 1;
    a_vlan_never_gets_a_name_that_the_kernel_assigns: [nic(1), vlan(0, 5, Some(name("eth5"))).dhcp()]
        => "ifname=kv0:52:54:00:12:34:01 vlan=kv0.5:kv0 ip=kv0.5:dhcp", 1;
    a_generated_name_that_another_link_has_is_skipped: [nic_by_name("kv0"), nic(1), vlan(1, 5, None).dhcp()]
        => "ifname=kv1:52:54:00:12:34:01 vlan=kv1.5:kv1 ip=kv1.5:dhcp";
    of_two_nics_that_request_one_name_only_the_first_gets_the_name:
        [nic_with_name(1, "lan"), nic_with_name(2, "lan"), vlan(0, 5, None).dhcp(), vlan(1, 5, None).dhcp()]
        => "ifname=lan:52:54:00:12:34:01 ifname=kv0:52:54:00:12:34:02 vlan=lan.5:lan vlan=kv0.5:kv0 \
            ip=lan.5:dhcp ip=kv0.5:dhcp", 1;
    a_vlan_keeps_a_name_that_ends_with_its_id: [nic(1), vlan(0, 5, Some(name("lan5"))).dhcp()]
        => "ifname=kv0:52:54:00:12:34:01 vlan=lan5:kv0 ip=lan5:dhcp";
    a_vlan_loses_a_name_that_ends_with_more_than_its_id: [nic(1), vlan(0, 5, Some(name("lan15"))).dhcp()]
        => "ifname=kv0:52:54:00:12:34:01 vlan=kv0.5:kv0 ip=kv0.5:dhcp", 1;
    a_vlan_loses_a_name_with_a_zero_before_its_id: [nic(1), vlan(0, 5, Some(name("lan05"))).dhcp()]
        => "ifname=kv0:52:54:00:12:34:01 vlan=kv0.5:kv0 ip=kv0.5:dhcp", 1;
    a_vlan_on_a_nic_with_a_long_name_gets_a_short_name: [nic_by_name("enp0s31f6np0abc"), vlan(0, 4094, None).dhcp()]
        => "vlan=kv0.4094:enp0s31f6np0abc ip=kv0.4094:dhcp";
    each_vlan_comes_after_its_parent:
        [vlan(1, 7, None).dhcp(), vlan(2, 6, None), bond("b", &[3], active_backup()), nic(1)]
        => "bond=b:52-54-00-12-34-01:mode=active-backup vlan=b.6:b vlan=b.6.7:b.6 ip=b.6.7:dhcp";
    a_bond_member_that_carries_a_vlan_is_named_in_the_bond_argument:
        [nic(1), bond("b", &[0], active_backup()).dhcp(), vlan(0, 5, None).dhcp()]
        => "ifname=kv0:52:54:00:12:34:01 bond=b:kv0:mode=active-backup vlan=kv0.5:kv0 ip=b:dhcp ip=kv0.5:dhcp";
    the_primary_member_is_named_in_the_bond_argument:
        [nic(1), nic(2), bond("b", &[0, 1], with_primary(1)).dhcp()]
        => "ifname=kv0:52:54:00:12:34:02 bond=b:52-54-00-12-34-01,kv0:mode=active-backup,primary=kv0 ip=b:dhcp";
    of_several_arp_targets_only_the_first_is_kept:
        [nic(1), bond("b", &[0], with_targets(&["10.0.0.1", "10.0.0.2"])).dhcp()]
        => "bond=b:52-54-00-12-34-01:mode=active-backup,arp_ip_target=10.0.0.1 ip=b:dhcp", 1;
    a_bond_or_vlan_without_addresses_has_the_method_off: [nic(1), bond("b", &[0], active_backup()), nic(2), vlan(2, 5, None)]
        => "ifname=kv0:52:54:00:12:34:02 bond=b:52-54-00-12-34-01:mode=active-backup vlan=kv0.5:kv0 \
            ip=b:off ip=kv0.5:off";
    a_bond_that_carries_vlans_needs_no_ip_argument: [nic(1), bond("b", &[0], active_backup()), vlan(1, 5, None)]
        => "bond=b:52-54-00-12-34-01:mode=active-backup vlan=b.5:b ip=b.5:off";
    a_mac_address_comes_after_the_field_of_the_mtu:
        [nic(1), bond("b", &[0], active_backup()).mac(9).dhcp(), vlan(1, 5, None).mac(8).mtu(1400).dhcp()]
        => "bond=b:52-54-00-12-34-01:mode=active-backup vlan=b.5:b \
            ip=b:dhcp::52:54:00:12:34:09 ip=b.5:dhcp:1400:52:54:00:12:34:08";
    a_bond_member_with_the_mtu_of_its_bond_is_not_reported: [nic(1).mtu(1400), bond("b", &[0], active_backup()).mtu(1400).dhcp()]
        => "bond=b:52-54-00-12-34-01:mode=active-backup:1400 ip=b:dhcp";
    an_mtu_of_a_bond_member_that_differs_from_the_mtu_of_the_bond_is_ignored: [nic(1).mtu(9000), bond("b", &[0], active_backup()).dhcp()]
        => "bond=b:52-54-00-12-34-01:mode=active-backup ip=b:dhcp", 1;
}

// Bridges, changed MAC addresses of NICs, and NICs that are identified by a pattern.
renders! {
    a_bridge_has_ports_of_every_kind:
        [
            bridge("br0", &[1, 2, 4]).v4("10.0.0.5/24").via("0.0.0.0/0", "10.0.0.1").mtu(1400),
            vlan(3, 5, None), nic(2), nic_by_name("eno1"), bond("b", &[5], active_backup()), nic(6)
        ]
        => "vlan=eno1.5:eno1 bond=b:52-54-00-12-34-06:mode=active-backup \
            bridge=br0:eno1.5,52-54-00-12-34-02,b ip=10.0.0.5::10.0.0.1:24::br0:none:1400";
    a_vlan_can_be_on_a_bridge: [nic(1), bridge("br0", &[0]), vlan(1, 7, None).dhcp()]
        => "bridge=br0:52-54-00-12-34-01 vlan=br0.7:br0 ip=br0.7:dhcp";
    a_bridge_without_addresses_has_the_method_off: [nic(1), bridge("br0", &[0]).mac(9)]
        => "bridge=br0:52-54-00-12-34-01 ip=br0:off::52:54:00:12:34:09";
    a_bridge_without_ports_is_ignored_with_the_vlans_on_it:
        [bridge("br0", &[]).v4("10.0.0.5/24"), vlan(0, 7, None).dhcp(), nic(1).dhcp()]
        => "ip=[52:54:00:12:34:01]:dhcp", 2;
    if_a_default_route_is_ignored_with_its_bridge_another_default_route_is_used:
        [
            bridge("br0", &[]).v4("10.0.0.5/24").via("0.0.0.0/0", "10.0.0.1"),
            nic(1).v4("10.1.0.5/24").via("0.0.0.0/0", "10.1.0.1")
        ]
        => "ip=10.1.0.5::10.1.0.1:24::[52:54:00:12:34:01]:none", 1;
    settings_of_a_bridge_port_are_ignored_with_warnings: [nic(1).mtu(1400).mac(9).dhcp(), bridge("br0", &[0]).mtu(1400).dhcp()]
        => "bridge=br0:52-54-00-12-34-01 ip=br0:dhcp:1400", 3;
    the_mac_address_to_set_follows_the_method_of_a_nic: [nic(1).v4("10.0.0.5/24").mac(9), nic(2).mac(8)]
        => "ip=10.0.0.5:::24::[52:54:00:12:34:01]:none::52:54:00:12:34:09 \
            ip=[52:54:00:12:34:02]:off::52:54:00:12:34:08";
    a_single_pattern_with_dhcp_becomes_an_argument_for_any_nic: [nic_by_pattern("en*").dhcp(), nic(1)] => "ip=dhcp", 1;
    a_single_pattern_with_an_address_becomes_arguments_for_any_nic:
        [nic_by_pattern("en*").v4("10.0.0.5/24").via("0.0.0.0/0", "10.0.0.1").via("10.1.0.0/16", "10.0.0.2")]
        => "ip=10.0.0.5::10.0.0.1:24:::none rd.route=10.1.0.0/16:10.0.0.2", 1;
    a_pattern_without_settings_has_no_effect: [nic_by_pattern("en*"), nic(1).dhcp()]
        => "ip=[52:54:00:12:34:01]:dhcp";
    a_route_of_a_link_without_addresses_is_ignored: [nic(1).on_link("10.1.0.0/16"), nic(2).dhcp()]
        => "ip=[52:54:00:12:34:02]:dhcp", 1;
    a_name_server_of_a_family_without_an_address_is_reported_and_written: [nic(1).v4("10.0.0.5/24")] dns ["2001:db8::53"]
        => "ip=10.0.0.5:::24::[52:54:00:12:34:01]:none nameserver=2001:db8::53", 1;
}

// network-legacy accepts one `ip=` for each link, and needs a name for each NIC with routes.
renders_for! {
    network_legacy::render,
    in_network_legacy_a_static_ipv4_address_has_one_argument: [nic(1).v4("10.0.0.5/24").via("0.0.0.0/0", "10.0.0.1").mtu(1400)]
        => "ip=10.0.0.5::10.0.0.1:24::[52:54:00:12:34:01]:none:1400";
    network_legacy_keeps_ipv4_if_both_families_are_static:
        [
            nic(1).v4("10.0.0.5/24").via("0.0.0.0/0", "10.0.0.1").v6("2001:db8::5/64").via("::/0", "2001:db8::1")
        ]
        => "ip=10.0.0.5::10.0.0.1:24::[52:54:00:12:34:01]:none", 2;
    in_network_legacy_ipv6_is_kept_if_only_ipv6_has_the_default_route:
        [nic(1).v4("10.0.0.5/24").v6("2001:db8::5/64").via("::/0", "2001:db8::1")]
        => "ip=[2001:db8::5]::[2001:db8::1]:64::[52:54:00:12:34:01]:none", 1;
    in_network_legacy_the_address_in_the_subnet_of_the_gateway_is_kept:
        [nic(1).v4("10.0.0.5/24").v4("10.1.0.5/24").via("10.0.9.0/24", "10.0.0.1").via("0.0.0.0/0", "10.1.0.1")]
        => "ip=10.1.0.5::10.1.0.1:24::[52:54:00:12:34:01]:none", 2;
    in_network_legacy_a_static_address_is_kept_instead_of_a_dynamic_address:
        [nic(1).v4("10.0.0.5/24").dhcp().dynamic(Ipv6Dynamic::Slaac)]
        => "ip=10.0.0.5:::24::[52:54:00:12:34:01]:none", 1;
    in_network_legacy_dhcp_is_kept_instead_of_a_static_ipv6_address_without_a_gateway: [nic(1).dhcp().v6("2001:db8::5/64")]
        => "ip=[52:54:00:12:34:01]:dhcp", 1;
    in_network_legacy_the_default_route_of_another_nic_replaces_a_lost_default_route:
        [
            nic(1).v4("10.0.0.5/24").via("0.0.0.0/0", "10.0.0.1").v6("2001:db8::5/64").via("::/0", "2001:db8::1"),
            nic(2).v6("2001:db8:1::5/128").via("::/0", "2001:db8:2::1")
        ]
        => "ifname=kv0:52:54:00:12:34:02 ip=10.0.0.5::10.0.0.1:24::[52:54:00:12:34:01]:none \
            ip=[2001:db8:1::5]::[2001:db8:2::1]:128::kv0:none rd.route=[2001:db8:2::1/128]::kv0", 2;
    in_network_legacy_two_dynamic_families_have_one_argument_with_a_warning: [nic(1).dhcp().dynamic(Ipv6Dynamic::Slaac)]
        => "ip=:::::[52:54:00:12:34:01]:dhcp,dhcp6", 1;
    in_network_legacy_a_nic_with_a_route_has_a_name:
        [nic(1).v4("10.0.0.5/24").via("0.0.0.0/0", "10.0.0.1").via("10.1.0.0/16", "10.0.0.2").on_link("10.2.0.0/16")]
        => "ifname=kv0:52:54:00:12:34:01 ip=10.0.0.5::10.0.0.1:24::kv0:none rd.route=10.2.0.0/16::kv0 \
            rd.route=10.1.0.0/16:10.0.0.2:kv0";
    in_network_legacy_a_gateway_outside_the_subnet_gets_its_own_route: [nic(1).v4("10.0.0.5/32").via("0.0.0.0/0", "169.254.1.1")]
        => "ifname=kv0:52:54:00:12:34:01 ip=10.0.0.5::169.254.1.1:32::kv0:none rd.route=169.254.1.1/32::kv0";
    in_network_legacy_a_default_route_together_with_dhcp_is_reported: [nic(1).dhcp().via("0.0.0.0/0", "192.0.2.1")]
        => "ifname=kv0:52:54:00:12:34:01 ip=kv0:dhcp rd.route=0.0.0.0/0:192.0.2.1:kv0", 1;
    in_network_legacy_the_nic_with_the_default_route_comes_last:
        [nic(1).v4("10.0.0.5/24").via("0.0.0.0/0", "10.0.0.1"), nic(2).v4("10.1.0.5/24")]
        => "ip=10.1.0.5:::24::[52:54:00:12:34:02]:none ip=10.0.0.5::10.0.0.1:24::[52:54:00:12:34:01]:none";
    in_network_legacy_the_members_of_a_bond_have_names:
        [nic(1), nic(2), bond("bond0", &[0, 1], active_backup()).mtu(1400).dynamic(Ipv6Dynamic::Slaac)]
        => "ifname=kv0:52:54:00:12:34:01 ifname=kv1:52:54:00:12:34:02 bond=bond0:kv0,kv1:mode=active-backup:1400 \
            ip=bond0:auto6";
    in_network_legacy_a_vlan_keeps_a_name_that_contains_its_id: [nic(1), vlan(0, 5, Some(name("vlan5"))).dhcp(), vlan(0, 6, Some(name("a.6"))).dhcp()]
        => "ifname=kv0:52:54:00:12:34:01 vlan=vlan5:kv0 vlan=a.6:kv0 ip=vlan5:dhcp ip=a.6:dhcp";
    in_network_legacy_a_vlan_loses_a_name_that_only_ends_with_its_id: [nic(1), vlan(0, 5, Some(name("lan5"))).dhcp()]
        => "ifname=kv0:52:54:00:12:34:01 vlan=kv0.5:kv0 ip=kv0.5:dhcp", 1;
    in_network_legacy_a_vlan_on_a_vlan_gets_a_name_that_ends_with_its_own_id: [nic(1), vlan(0, 5, Some(name("vlan5"))), vlan(1, 6, None).dhcp()]
        => "ifname=kv0:52:54:00:12:34:01 vlan=vlan5:kv0 vlan=kv1.6:vlan5 ip=kv1.6:dhcp";
    in_network_legacy_a_link_without_addresses_has_no_ip_argument: [nic(1).mtu(9000), nic(2), bond("b", &[1], active_backup()), vlan(2, 5, None).mac(9)]
        => "ifname=kv0:52:54:00:12:34:02 bond=b:kv0:mode=active-backup vlan=b.5:b", 2;
    in_network_legacy_dhcp_loses_a_requested_mac_address_and_slaac_loses_a_requested_mtu:
        [nic(1).dynamic(Ipv6Dynamic::Slaac).mtu(1400), nic(2).dhcp().mtu(1400).mac(9)]
        => "ip=[52:54:00:12:34:01]:auto6 ip=[52:54:00:12:34:02]:dhcp:1400", 2;
}

// A default route that cannot be used does not replace another default route.
renders! {
    a_default_route_without_an_address_of_its_family_is_not_used:
        [nic(1).v4("10.0.0.5/24").via("::/0", "fe80::1"), nic(2).v6("2001:db8::5/64").via("::/0", "fe80::2")]
        => "ip=[2001:db8::5]::[fe80::2]:64::[52:54:00:12:34:02]:none ip=10.0.0.5:::24::[52:54:00:12:34:01]:none", 1;
    a_default_route_of_a_bridge_without_ports_is_not_used:
        [bridge("br0", &[]).v4("10.0.1.5/24").via("0.0.0.0/0", "10.0.1.1"),
         nic(1).v4("10.0.0.5/24").via("0.0.0.0/0", "10.0.0.1")]
        => "ip=10.0.0.5::10.0.0.1:24::[52:54:00:12:34:01]:none", 1;
}

renders_for! {
    network_legacy::render,
    in_network_legacy_the_first_of_two_default_routes_is_kept_if_the_second_has_no_gateway:
        [nic(1).v4("10.0.0.5/24").via("0.0.0.0/0", "10.0.0.1").on_link("0.0.0.0/0")]
        => "ifname=kv0:52:54:00:12:34:01 ip=10.0.0.5::10.0.0.1:24::kv0:none", 1;
}

/// With a second `ifname=` for a NIC, dracut gives the NIC one of the two names, and no argument applies to the other.
#[test]
fn arguments_use_the_given_name_of_a_nic_where_they_need_a_name() {
    let lines = |given: &[(&str, u8)]| {
        let links = vec![nic_with_name(1, "wan"), vlan(0, 5, None).v4("10.0.0.5/24"), nic(2), vlan(2, 6, None).dhcp()];
        let mut config = NetworkConfig::new(links).unwrap();
        config.given_names = given.iter().map(|(text, number)| (text.parse().unwrap(), mac(*number))).collect();
        [render, network_legacy::render].map(|render| render(&config, &mut Diagnostics::default()).line)
    };
    let second = "ifname=kv0:52:54:00:12:34:02";
    let all = format!(
        "ifname=wan:52:54:00:12:34:01 {second} vlan=wan.5:wan vlan=kv0.6:kv0 ip=10.0.0.5:::24::wan.5:none ip=kv0.6:dhcp"
    );
    assert_eq!(lines(&[("lan0", 3)]), [all.clone(), all]);
    let named = format!("{second} vlan=lan0.5:lan0 vlan=kv0.6:kv0 ip=10.0.0.5:::24::lan0.5:none ip=kv0.6:dhcp");
    // dracut gives a NIC the last of its names.
    assert_eq!(lines(&[("lan1", 1), ("lan0", 1)]), [named.clone(), named]);
    // No other NIC gets a name that is taken.
    let taken = "ifname=kv1:52:54:00:12:34:01 ifname=kv2:52:54:00:12:34:02 vlan=kv1.5:kv1 vlan=kv2.6:kv2 \
                 ip=10.0.0.5:::24::kv1.5:none ip=kv2.6:dhcp";
    assert_eq!(lines(&[("wan", 3), ("kv0", 4)]), [taken, taken]);
}

#[test]
fn settings_that_network_legacy_cannot_express_are_reported() {
    let nic = nic(1).v4("10.0.0.5/24").v6("2001:db8::5/64").dynamic(Ipv6Dynamic::Slaac).on_link("2001:db8:1::/64");
    assert_eq!(
        messages(network_legacy::render, vec![nic]),
        [
            r#"Warning : "2001:db8:1::/64" ignored, its link has no address of its family"#,
            "Warning links[0]: \"2001:db8::5/64, slaac\" ignored, network-legacy accepts one address on a link",
        ]
    );
}

#[test]
fn a_pattern_is_reported_with_the_nics_that_its_arguments_apply_to() {
    let warning = |nics: &str| {
        let expected = format!("a MAC address or a name: the arguments apply to {nics}");
        [format!("Warning links[0]: NIC identified only by a pattern \"en*\", expected {expected}")]
    };
    let addressed = || vec![nic_by_pattern("en*").v4("10.0.0.5/24")];
    assert_eq!(messages(render, vec![nic_by_pattern("en*").dhcp()]), warning("every NIC"));
    assert_eq!(messages(render, addressed()), warning("one NIC, which NetworkManager chooses"));
    assert_eq!(messages(network_legacy::render, addressed()), warning("every NIC"));
}

#[test]
fn a_pattern_next_to_other_links_that_need_arguments_is_an_error() {
    let problem = "Error links[0]: NIC identified only by a pattern \"en*\", expected a MAC address or a name: with several links no kernel argument can select this NIC";
    assert_eq!(messages(render, vec![nic_by_pattern("en*").dhcp(), nic(1).mtu(1400)]), [problem]);
    assert_eq!(messages(render, vec![nic_by_pattern("en*"), vlan(0, 5, None).dhcp()]), [problem]);
}

#[test]
fn unsupported_bridge_options_are_reported_once() {
    let mut link = bridge("br0", &[1]).dhcp();
    let LinkKind::Bridge { options, .. } = &mut link.kind else { panic!() };
    (options.stp, options.max_age, options.priority) = (Some(true), Some(20), Some(9));
    options.path = "params".to_owned();
    options.ports.push(BridgePort { port: LinkIndex(1), path_cost: Some(9), priority: None });
    assert_eq!(
        messages(render, vec![link, nic(1)]),
        [
            "Warning params: \"stp, max_age, priority, port options\" ignored, kernel arguments cannot express bridge options"
        ]
    );
}

#[test]
fn unsupported_options_of_dhcp_and_router_advertisements_are_reported() {
    let mut link = nic(1).dhcp().dynamic(Ipv6Dynamic::StatefulDhcp);
    link.ipv6.accept_ra = Some(false);
    link.ipv4.dhcp_overrides = DhcpOverrides {
        route_metric: Some(Located { value: 7, path: "links[0].dhcp4-overrides.route-metric".to_owned() }),
        use_routes: Some(false),
        use_dns: Some(false),
        use_ntp: Some(false),
        use_mtu: Some(true),
        ..DhcpOverrides::default()
    };
    let ignored = |path: &str, value: &str| {
        format!("Warning links[0].{path}: {value:?} ignored, kernel arguments cannot express it")
    };
    assert_eq!(
        messages(render, vec![link]),
        [
            ignored("accept-ra", "false"),
            ignored("dhcp4-overrides.route-metric", "7"),
            ignored("dhcp4-overrides.use-dns", "false"),
            ignored("dhcp4-overrides.use-ntp", "false"),
            ignored("dhcp4-overrides.use-routes", "false"),
        ]
    );
}

#[test]
fn the_warning_about_a_link_local_address_quotes_no_value_because_a_document_has_several_forms() {
    let expected = "Warning links[0].link-local: ignored, kernel arguments cannot express it";
    assert_eq!(messages(render, vec![nic(1).dhcp().link_local(false)]), [expected]);
    assert_eq!(messages(network_legacy::render, vec![nic(1).v4("10.0.0.5/24").link_local(false)]), [expected]);
}

#[test]
fn only_networkmanager_can_refuse_router_advertisements_and_only_without_dynamic_addresses() {
    let with = |mut link: Link, accepts| {
        link.ipv6.accept_ra = Some(accepts);
        vec![link]
    };
    let [fixed, asks] = [nic(1).v6("2001:db8::5/64"), nic(1).dhcp()];
    let counts = |render: RenderFn| {
        [with(fixed.clone(), false), with(fixed.clone(), true), with(asks.clone(), false), with(asks.clone(), true)]
            .map(|links| messages(render, links).len())
    };
    assert_eq!((counts(render), counts(network_legacy::render)), ([0, 1, 1, 0], [1, 0, 1, 0]));
}

#[test]
fn name_servers_from_dhcp_are_ignored_only_if_every_link_ignores_them() {
    let mut link = nic(1).dhcp();
    link.ipv4.dhcp_overrides.use_dns = Some(false);
    assert_eq!(
        rendered(render, vec![link.clone(), nic(2).v4("10.0.0.5/24")], &["1.1.1.1"]),
        (
            "ip=[52:54:00:12:34:01]:dhcp ip=10.0.0.5:::24::[52:54:00:12:34:02]:none nameserver=1.1.1.1 rd.peerdns=0"
                .to_owned(),
            0
        )
    );
    assert_eq!(
        rendered(render, vec![link.clone(), bridge("br0", &[]).dhcp()], &[]),
        ("ip=[52:54:00:12:34:01]:dhcp rd.peerdns=0".to_owned(), 1)
    );
    assert_eq!(
        rendered(render, vec![link, nic(2).dhcp()], &[]),
        ("ip=[52:54:00:12:34:01]:dhcp ip=[52:54:00:12:34:02]:dhcp".to_owned(), 1)
    );
}

#[test]
fn name_servers_of_links_are_written_once_after_the_name_servers_of_the_machine() {
    let mut link = nic(1).dhcp();
    link.dns.nameservers = ["8.8.8.8", "1.1.1.1"].map(|server| address(server).into()).to_vec();
    link.dns.search = vec!["example.org".parse::<DomainName>().unwrap().into()];
    let mut routes = nic(2).dhcp().via("10.0.0.0/8", "10.0.0.1");
    routes.routes[0].table = Some(7);
    routes.routing_policy = vec![RoutingRule::new("10.0.0.5/32".parse().ok(), None).unwrap()];
    assert_eq!(
        rendered(render, vec![link, routes], &["1.1.1.1"]),
        ("ip=[52:54:00:12:34:01]:dhcp ip=[52:54:00:12:34:02]:dhcp nameserver=1.1.1.1 nameserver=8.8.8.8".to_owned(), 3)
    );
}

#[test]
fn the_list_of_devices_has_the_order_of_the_links_and_the_names_of_the_arguments() {
    let links = vec![vlan(1, 5, None), nic(1), nic(2), nic_by_name("eno1")];
    let rendered = render(&NetworkConfig::new(links).unwrap(), &mut Diagnostics::default());
    let devices: Vec<String> = rendered.devices.iter().map(ToString::to_string).collect();
    assert_eq!(devices, ["kv0.5", "kv0", "[52:54:00:12:34:02]", "eno1"]);
}

#[test]
fn only_bytes_that_every_reader_takes_literally_are_legal() {
    let legal: Vec<u8> = (0..=255).filter(|byte| is_legal(&char::from(*byte).to_string())).collect();
    assert_eq!(
        String::from_utf8(legal).unwrap(),
        " +,-./0123456789:=ABCDEFGHIJKLMNOPQRSTUVWXYZ[]_abcdefghijklmnopqrstuvwxyz"
    );
}
