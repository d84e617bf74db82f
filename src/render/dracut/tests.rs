//! The exact arguments of each kind of network, and the names in them.

use super::*;
use crate::network::{BondMode, Ipv4Config, Ipv6Config, Mtu, VlanId};

// The last byte of a card's MAC address is its number.
fn mac(number: u8) -> MacAddr {
    MacAddr::new(0x52, 0x54, 0, 0x12, 0x34, number)
}

fn name(text: &str) -> Option<InterfaceName> {
    Some(text.parse().unwrap())
}

fn link(kind: LinkKind) -> Link {
    let (ipv4, ipv6) = (Ipv4Config::default(), Ipv6Config::default());
    Link { id: "id".to_owned(), place: "links[0]".to_owned(), kind, mtu: None, ipv4, ipv6, routes: Vec::new() }
}

fn card(number: u8) -> Link {
    link(LinkKind::Card(Card::MacAddress { mac_address: mac(number), name: None }))
}

fn card_with_wish(number: u8, wish: &str) -> Link {
    link(LinkKind::Card(Card::MacAddress { mac_address: mac(number), name: name(wish) }))
}

fn card_by_name(text: &str) -> Link {
    link(LinkKind::Card(Card::Name(text.parse().unwrap())))
}

fn vlan(parent: usize, id: i64, wish: Option<InterfaceName>) -> Link {
    let (parent, id) = (LinkIndex(parent), VlanId::try_from(id).unwrap());
    link(LinkKind::Vlan { name: wish, parent, id, mac_address: None })
}

fn bond(text: &str, ports: &[usize], options: BondOptions) -> Link {
    let ports = ports.iter().copied().map(LinkIndex).collect();
    link(LinkKind::Bond { name: text.parse().unwrap(), ports, options, mac_address: None })
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
        if let LinkKind::Bond { mac_address, .. } | LinkKind::Vlan { mac_address, .. } = &mut self.kind {
            *mac_address = Some(mac(number));
        }
        self
    }
}

fn rendered(links: Vec<Link>, nameservers: &[&str]) -> (String, usize) {
    let mut config = NetworkConfig::new(links).unwrap();
    config.nameservers = nameservers.iter().map(|server| server.parse().unwrap()).collect();
    let mut findings = Findings::default();
    let rendered = render(&config, &mut findings);
    (line(&rendered.kargs), findings.kept().len())
}

/// A test of each network: its links, perhaps name servers, the exact arguments, and perhaps how many warnings.
macro_rules! renders {
    ($($name:ident: [$($link:expr),*] $(dns [$($server:literal),*])? => $line:literal $(, $warnings:literal)?;)*) => {
        $(#[test] fn $name() {
            let servers: &[&str] = &[$($($server),*)?];
            assert_eq!(rendered(vec![$($link),*], servers), ($line.to_owned(), 0 $(+ $warnings)?));
        })*
    };
}

// The rows of the table of arguments that were measured, in its order.
renders! {
    static_ipv4: [card(1).v4("10.0.0.5/24").via("0.0.0.0/0", "10.0.0.1")]
        => "ip=10.0.0.5::10.0.0.1:24::[52:54:00:12:34:01]:none";
    static_ipv4_without_a_gateway: [card(1).v4("10.0.0.5/24")]
        => "ip=10.0.0.5:::24::[52:54:00:12:34:01]:none";
    static_ipv6: [card(1).v6("2001:db8::5/64").via("::/0", "2001:db8::1")]
        => "ip=[2001:db8::5]::[2001:db8::1]:64::[52:54:00:12:34:01]:none";
    two_static_families_have_ipv4_first:
        [card(1).v6("2001:db8::5/64").v4("10.0.0.5/24").via("::/0", "fe80::1").via("0.0.0.0/0", "10.0.0.1")]
        => "ip=10.0.0.5::10.0.0.1:24::[52:54:00:12:34:01]:none \
            ip=[2001:db8::5]::[fe80::1]:64::[52:54:00:12:34:01]:none";
    a_second_address_has_no_gateway:
        [card(1).v4("10.0.0.5/24").v4("10.0.0.6/24").via("0.0.0.0/0", "10.0.0.1")]
        => "ip=10.0.0.5::10.0.0.1:24::[52:54:00:12:34:01]:none ip=10.0.0.6:::24::[52:54:00:12:34:01]:none";
    an_mtu_stands_in_every_argument_of_its_card: [card(1).v4("10.0.0.5/24").v4("10.0.0.6/24").mtu(1400)]
        => "ip=10.0.0.5:::24::[52:54:00:12:34:01]:none:1400 ip=10.0.0.6:::24::[52:54:00:12:34:01]:none:1400";
    dhcpv4: [card(1).dhcp()] => "ip=[52:54:00:12:34:01]:dhcp";
    dhcpv4_with_an_mtu: [card(1).dhcp().mtu(1400)] => "ip=[52:54:00:12:34:01]:dhcp:1400";
    stateful_dhcpv6: [card(1).dynamic(Ipv6Dynamic::StatefulDhcp)] => "ip=[52:54:00:12:34:01]:dhcp6";
    stateless_dhcpv6: [card(1).dynamic(Ipv6Dynamic::StatelessDhcp)] => "ip=[52:54:00:12:34:01]:auto6";
    slaac: [card(1).dynamic(Ipv6Dynamic::Slaac)] => "ip=[52:54:00:12:34:01]:auto6";
    dhcpv4_and_slaac: [card(1).dhcp().dynamic(Ipv6Dynamic::Slaac)] => "ip=[52:54:00:12:34:01]:dhcp,dhcp6";
    static_ipv4_and_slaac:
        [card(1).v4("10.0.0.5/24").via("0.0.0.0/0", "10.0.0.1").dynamic(Ipv6Dynamic::Slaac)]
        => "ip=10.0.0.5::10.0.0.1:24::[52:54:00:12:34:01]:on";
    dhcpv4_and_static_ipv6: [card(1).dhcp().v6("2001:db8::5/64").via("::/0", "2001:db8::1")]
        => "ip=[2001:db8::5]::[2001:db8::1]:64::[52:54:00:12:34:01]:on";
    a_second_address_beside_a_dynamic_family_has_the_same_word:
        [card(1).v4("10.0.0.5/24").v4("10.0.0.6/24").dynamic(Ipv6Dynamic::StatefulDhcp)]
        => "ip=10.0.0.5:::24::[52:54:00:12:34:01]:on ip=10.0.0.6:::24::[52:54:00:12:34:01]:on";
    a_route: [card(1).v4("10.0.0.5/24").via("10.1.0.0/16", "10.0.0.254")]
        => "ip=10.0.0.5:::24::[52:54:00:12:34:01]:none rd.route=10.1.0.0/16:10.0.0.254:[52:54:00:12:34:01]";
    an_ipv6_route: [card(1).v6("2001:db8::5/64").via("2001:db8:9::/48", "2001:db8::fe")]
        => "ip=[2001:db8::5]:::64::[52:54:00:12:34:01]:none \
            rd.route=[2001:db8:9::/48]:[2001:db8::fe]:[52:54:00:12:34:01]";
    a_default_route_beside_dhcp: [card(1).dhcp().via("0.0.0.0/0", "192.0.2.1")]
        => "ip=[52:54:00:12:34:01]:dhcp rd.route=0.0.0.0/0:192.0.2.1:[52:54:00:12:34:01]";
    an_on_link_route: [card(1).v4("10.0.0.5/24").on_link("192.168.5.0/24")]
        => "ip=10.0.0.5:::24::[52:54:00:12:34:01]:none rd.route=192.168.5.0/24::[52:54:00:12:34:01]";
    an_on_link_default_route: [card(1).v6("2001:db8::5/64").on_link("::/0")]
        => "ip=[2001:db8::5]:::64::[52:54:00:12:34:01]:none rd.route=[::/0]::[52:54:00:12:34:01]";
    a_far_gateway: [card(1).v4("10.0.0.5/32").via("0.0.0.0/0", "169.254.1.1")]
        => "ip=10.0.0.5::169.254.1.1:32::[52:54:00:12:34:01]:none";
    the_default_route_of_the_lowest_metric_is_kept_and_its_link_is_first:
        [
            card(1).v4("10.0.0.5/24").metric("0.0.0.0/0", "10.0.0.1", Some(200)),
            card(2).v4("10.1.0.5/24").metric("0.0.0.0/0", "10.1.0.1", Some(100))
        ]
        => "ip=10.1.0.5::10.1.0.1:24::[52:54:00:12:34:02]:none ip=10.0.0.5:::24::[52:54:00:12:34:01]:none", 3;
    of_equal_default_routes_the_first_is_kept:
        [card(1).dhcp().via("0.0.0.0/0", "10.0.0.1"), card(2).v4("10.1.0.5/24").via("0.0.0.0/0", "10.1.0.1")]
        => "ip=[52:54:00:12:34:01]:dhcp rd.route=0.0.0.0/0:10.0.0.1:[52:54:00:12:34:01] \
            ip=10.1.0.5:::24::[52:54:00:12:34:02]:none", 1;
    a_default_route_that_is_said_again_is_no_other: [
            card(1).v4("10.0.0.5/24").via("0.0.0.0/0", "10.0.0.1").via("0.0.0.0/0", "10.0.0.1")
        ]
        => "ip=10.0.0.5::10.0.0.1:24::[52:54:00:12:34:01]:none";
    each_family_has_its_own_default_route:
        [
            card(1).dhcp(),
            card(2).v6("2001:db8::5/64").via("::/0", "fe80::1"),
            card(3).via("0.0.0.0/0", "10.0.0.1").dhcp()
        ]
        => "ip=[52:54:00:12:34:03]:dhcp rd.route=0.0.0.0/0:10.0.0.1:[52:54:00:12:34:03] \
            ip=[2001:db8::5]::[fe80::1]:64::[52:54:00:12:34:02]:none ip=[52:54:00:12:34:01]:dhcp";
    name_servers_are_bare_and_last: [card(1).dhcp()] dns ["1.1.1.1", "2001:db8::53"]
        => "ip=[52:54:00:12:34:01]:dhcp nameserver=1.1.1.1 nameserver=2001:db8::53";
    name_servers_need_a_card_with_addresses: [card(1).mtu(9000)] dns ["1.1.1.1"]
        => "ip=[52:54:00:12:34:01]:off:9000", 1;
    a_vlan: [card(1), vlan(0, 100, None).v4("10.0.0.5/24").via("0.0.0.0/0", "10.0.0.1").mtu(1400)]
        => "ifname=kv0:52:54:00:12:34:01 vlan=kv0.100:kv0 ip=10.0.0.5::10.0.0.1:24::kv0.100:none:1400";
    a_bond: [
            card(1),
            card(2),
            bond("bond0", &[0, 1], active_backup()).mtu(1400).v4("10.0.0.5/24").via("0.0.0.0/0", "10.0.0.1")
        ]
        => "bond=bond0:52-54-00-12-34-01,52-54-00-12-34-02:mode=active-backup:1400 \
            ip=10.0.0.5::10.0.0.1:24::bond0:none";
    a_card_with_an_mtu_alone: [card(1).mtu(9000)] => "ip=[52:54:00:12:34:01]:off:9000";
    a_card_that_asks_for_nothing: [card(1)] => "";
}

// Static and dynamic addresses of one family: NetworkManager has a word for it, but requires the dynamic ones.
renders! {
    static_ipv4_and_dhcpv4: [card(1).v4("10.0.0.5/24").dhcp()]
        => "ip=10.0.0.5:::24::[52:54:00:12:34:01]:dhcp", 1;
    static_ipv4_and_both_dynamic: [card(1).v4("10.0.0.5/24").dhcp().dynamic(Ipv6Dynamic::Slaac)]
        => "ip=10.0.0.5:::24::[52:54:00:12:34:01]:dhcp", 1;
    static_ipv6_and_both_dynamic: [card(1).v6("2001:db8::5/64").dhcp().dynamic(Ipv6Dynamic::Slaac)]
        => "ip=[2001:db8::5]:::64::[52:54:00:12:34:01]:auto6 ip=[52:54:00:12:34:01]:dhcp", 1;
    both_static_and_dhcpv4: [card(1).v4("10.0.0.5/24").v6("2001:db8::5/64").dhcp()]
        => "ip=10.0.0.5:::24::[52:54:00:12:34:01]:dhcp ip=[2001:db8::5]:::64::[52:54:00:12:34:01]:dhcp", 1;
    both_static_and_slaac: [card(1).v4("10.0.0.5/24").v6("2001:db8::5/64").dynamic(Ipv6Dynamic::Slaac)]
        => "ip=10.0.0.5:::24::[52:54:00:12:34:01]:none ip=[2001:db8::5]:::64::[52:54:00:12:34:01]:auto6", 1;
    both_static_and_both_dynamic:
        [card(1).v4("10.0.0.5/24").v6("2001:db8::5/64").dhcp().dynamic(Ipv6Dynamic::StatefulDhcp)]
        => "ip=10.0.0.5:::24::[52:54:00:12:34:01]:dhcp ip=[2001:db8::5]:::64::[52:54:00:12:34:01]:dhcp6", 1;
}

// What a link is called, and what is made of it.
renders! {
    a_card_without_a_mac_address_is_called_by_its_name: [card_by_name("eno101").dhcp()] => "ip=eno101:dhcp";
    a_card_that_needs_no_name_gets_none: [card_with_wish(1, "eno1").dhcp()] => "ip=[52:54:00:12:34:01]:dhcp";
    a_card_that_carries_a_vlan_gets_the_name_that_it_is_given_and_has_it_everywhere:
        [card_with_wish(1, "eno1").dhcp().on_link("10.9.0.0/16"), vlan(0, 5, None).dhcp()]
        => "ifname=eno1:52:54:00:12:34:01 vlan=eno1.5:eno1 \
            ip=eno1:dhcp rd.route=10.9.0.0/16::eno1 ip=eno1.5:dhcp";
    a_card_never_gets_a_name_of_the_kernels: [card_with_wish(1, "eth0"), vlan(0, 5, None).dhcp()]
        => "ifname=kv0:52:54:00:12:34:01 vlan=kv0.5:kv0 ip=kv0.5:dhcp", 1;
    a_card_never_gets_a_name_of_infiniband: [card_with_wish(1, "ib0"), vlan(0, 5, None).dhcp()]
        => "ifname=kv0:52:54:00:12:34:01 vlan=kv0.5:kv0 ip=kv0.5:dhcp", 1;
    a_vlan_never_gets_a_name_of_the_kernels: [card(1), vlan(0, 5, name("eth5")).dhcp()]
        => "ifname=kv0:52:54:00:12:34:01 vlan=kv0.5:kv0 ip=kv0.5:dhcp", 1;
    a_name_that_is_taken_is_passed_over: [card_by_name("kv0"), card(1), vlan(1, 5, None).dhcp()]
        => "ifname=kv1:52:54:00:12:34:01 vlan=kv1.5:kv1 ip=kv1.5:dhcp";
    of_two_cards_with_one_name_the_first_gets_it:
        [card_with_wish(1, "lan"), card_with_wish(2, "lan"), vlan(0, 5, None).dhcp(), vlan(1, 5, None).dhcp()]
        => "ifname=lan:52:54:00:12:34:01 ifname=kv0:52:54:00:12:34:02 vlan=lan.5:lan vlan=kv0.5:kv0 \
            ip=lan.5:dhcp ip=kv0.5:dhcp", 1;
    a_vlan_keeps_a_name_that_ends_with_its_id: [card(1), vlan(0, 5, name("lan5")).dhcp()]
        => "ifname=kv0:52:54:00:12:34:01 vlan=lan5:kv0 ip=lan5:dhcp";
    a_vlan_loses_a_name_that_ends_with_more_than_its_id: [card(1), vlan(0, 5, name("lan15")).dhcp()]
        => "ifname=kv0:52:54:00:12:34:01 vlan=kv0.5:kv0 ip=kv0.5:dhcp", 1;
    a_vlan_loses_a_name_with_a_zero_before_its_id: [card(1), vlan(0, 5, name("lan05")).dhcp()]
        => "ifname=kv0:52:54:00:12:34:01 vlan=kv0.5:kv0 ip=kv0.5:dhcp", 1;
    a_vlan_on_a_long_name_gets_a_short_one: [card_by_name("enp0s31f6np0abc"), vlan(0, 4094, None).dhcp()]
        => "vlan=kv0.4094:enp0s31f6np0abc ip=kv0.4094:dhcp";
    vlans_stand_after_what_they_are_on:
        [vlan(1, 7, None).dhcp(), vlan(2, 6, None), bond("b", &[3], active_backup()), card(1)]
        => "bond=b:52-54-00-12-34-01:mode=active-backup vlan=b.6:b vlan=b.6.7:b.6 ip=b.6.7:dhcp";
    a_port_that_carries_a_vlan_has_its_name_in_the_bond:
        [card(1), bond("b", &[0], active_backup()).dhcp(), vlan(0, 5, None).dhcp()]
        => "ifname=kv0:52:54:00:12:34:01 bond=b:kv0:mode=active-backup vlan=kv0.5:kv0 ip=b:dhcp ip=kv0.5:dhcp";
    the_preferred_port_has_its_name_in_the_bond:
        [card(1), card(2), bond("b", &[0, 1], with_primary(1)).dhcp()]
        => "ifname=kv0:52:54:00:12:34:02 bond=b:52-54-00-12-34-01,kv0:mode=active-backup,primary=kv0 ip=b:dhcp";
    of_several_arp_targets_the_first_is_kept:
        [card(1), bond("b", &[0], with_targets(&["10.0.0.1", "10.0.0.2"])).dhcp()]
        => "bond=b:52-54-00-12-34-01:mode=active-backup,arp_ip_target=10.0.0.1 ip=b:dhcp", 1;
    a_bond_or_vlan_without_networks_is_off: [card(1), bond("b", &[0], active_backup()), card(2), vlan(2, 5, None)]
        => "ifname=kv0:52:54:00:12:34:02 bond=b:52-54-00-12-34-01:mode=active-backup vlan=kv0.5:kv0 \
            ip=b:off ip=kv0.5:off";
    a_bond_that_carries_vlans_needs_no_word_of_its_own: [card(1), bond("b", &[0], active_backup()), vlan(1, 5, None)]
        => "bond=b:52-54-00-12-34-01:mode=active-backup vlan=b.5:b ip=b.5:off";
    a_mac_address_stands_behind_the_place_of_the_mtu:
        [card(1), bond("b", &[0], active_backup()).mac(9).dhcp(), vlan(1, 5, None).mac(8).mtu(1400).dhcp()]
        => "bond=b:52-54-00-12-34-01:mode=active-backup vlan=b.5:b \
            ip=b:dhcp::52:54:00:12:34:09 ip=b.5:dhcp:1400:52:54:00:12:34:08";
    the_mtu_of_a_port_is_its_bonds: [card(1).mtu(1400), bond("b", &[0], active_backup()).mtu(1400).dhcp()]
        => "bond=b:52-54-00-12-34-01:mode=active-backup:1400 ip=b:dhcp";
    another_mtu_of_a_port_is_left_out: [card(1).mtu(9000), bond("b", &[0], active_backup()).dhcp()]
        => "bond=b:52-54-00-12-34-01:mode=active-backup ip=b:dhcp", 1;
}

#[test]
fn devices_are_called_as_in_the_arguments_in_the_order_of_the_links() {
    let links = vec![vlan(1, 5, None), card(1), card(2), card_by_name("eno1")];
    let rendered = render(&NetworkConfig::new(links).unwrap(), &mut Findings::default());
    let devices: Vec<String> = rendered.devices.iter().map(ToString::to_string).collect();
    assert_eq!(devices, ["kv0.5", "kv0", "[52:54:00:12:34:02]", "eno1"]);
}

#[test]
fn only_bytes_that_are_text_to_every_reader_are_legal() {
    let legal: Vec<u8> = (0..=255).filter(|byte| is_legal(&char::from(*byte).to_string())).collect();
    assert_eq!(
        String::from_utf8(legal).unwrap(),
        " +,-./0123456789:=ABCDEFGHIJKLMNOPQRSTUVWXYZ[]_abcdefghijklmnopqrstuvwxyz"
    );
}
