//! Tests of the exact profiles for each kind of network. `tests/network_manager.rs` checks how NetworkManager
//! interprets these profiles.

use super::*;
use crate::network::{BondMode, InterfaceName, Ipv6Dynamic, Route, RoutingRule};
use crate::render::test_links::{link, mac, name, nic};

fn pattern(names: &[&str], drivers: &[&str]) -> Link {
    let patterns = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect();
    link(LinkKind::Nic(Nic::Pattern { names: patterns(names), drivers: patterns(drivers), name: None }))
}

fn with_ipv4(mut link: Link, address: &str) -> Link {
    link.ipv4.addresses.push(address.parse().unwrap());
    link
}

/// Renders the links, and returns the arguments, the profiles without their UUIDs, and the diagnostics.
fn rendered(links: Vec<Link>) -> (String, Vec<String>, Vec<String>) {
    let mut diagnostics = Diagnostics::default();
    let Rendered { line, files, .. } = render(&NetworkConfig::new(links).unwrap(), &mut diagnostics);
    assert!(files.iter().all(|file| file.is_private));
    let profile = |file: &File| {
        let lines = file.text.lines().filter(|line| !line.starts_with("uuid="));
        lines.map(|line| format!("{line}\n")).collect()
    };
    (line, files.iter().map(profile).collect(), diagnostics.kept().iter().map(ToString::to_string).collect())
}

#[test]
fn a_nic_with_a_static_address_has_routes_with_metrics_and_leaves_ipv6_to_the_kernel() {
    let mut link = with_ipv4(nic(1), "10.0.0.5/24");
    let route =
        |gateway: &str, metric| Route::new("0.0.0.0/0".parse().unwrap(), Some(gateway.parse().unwrap()), metric);
    link.routes = vec![route("10.0.0.1", Some(7)).unwrap(), route("10.9.0.1", None).unwrap()];
    link.routes[0].table = Some(100);
    let (line, profiles, diagnostics) = rendered(vec![link]);
    let expected = "[connection]\nid=50-glowplug-0000-52-54-00-12-34-01\ntype=ethernet\nautoconnect-priority=100\n\
                    autoconnect-retries=1\nwait-device-timeout=60000\n\n[ethernet]\nmac-address=52:54:00:12:34:01\n\n\
                    [ipv4]\nmethod=manual\naddress1=10.0.0.5/24\nmay-fail=false\nroute1=0.0.0.0/0,10.0.0.1,7\n\
                    route1_options=table=100\nroute2=0.0.0.0/0,10.9.0.1,0\nroute2_options=onlink=true\n\n\
                    [ipv6]\nmethod=ignore\n";
    assert_eq!((line.as_str(), profiles, diagnostics), ("", vec![expected.to_owned()], Vec::new()));
}

#[test]
fn routing_rules_without_a_priority_come_before_the_main_table_in_the_order_of_the_document() {
    let rule = |from: &str| RoutingRule::new(Some(from.parse().unwrap()), None).unwrap();
    let mut links = vec![with_ipv4(nic(1), "10.0.0.5/24"), with_ipv4(nic(2), "10.1.0.5/24")];
    links[0].routing_policy = vec![rule("10.0.0.5/32"), rule("10.0.0.0/24"), rule("fd00::/64")];
    let full = &mut links[0].routing_policy[1];
    (full.table, full.priority, full.mark, full.type_of_service) = (Some(7), Some(5), Some(255), Some(16));
    links[0].routing_policy[2].path = "routing-policy[2]".to_owned();
    links[1].routing_policy = vec![rule("10.1.0.5/32")];
    let (_, profiles, diagnostics) = rendered(links);
    let rules = |profile: &String| {
        profile.lines().filter(|line| line.starts_with("routing-rule")).map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(
        profiles.iter().map(rules).collect::<Vec<_>>(),
        [
            vec![
                "routing-rule1=priority 32763 from 10.0.0.5/32 table 254".to_owned(),
                "routing-rule2=priority 5 from 10.0.0.0/24 tos 0x10 fwmark 0xff table 7".to_owned(),
            ],
            vec!["routing-rule1=priority 32765 from 10.1.0.5/32 table 254".to_owned()],
        ]
    );
    let ignored = "routing-policy[2]: \"from fd00::/64\" ignored, its link has no address of its family";
    assert_eq!(diagnostics, [ignored]);
}

#[test]
fn a_nic_without_addresses_has_a_profile_that_disables_both_families() {
    let (_, profiles, _) = rendered(vec![nic(1)]);
    let expected = "[connection]\nid=50-glowplug-0000-52-54-00-12-34-01\ntype=ethernet\nautoconnect-priority=100\n\
                    autoconnect-retries=1\n\n[ethernet]\nmac-address=52:54:00:12:34:01\n\n[ipv4]\nmethod=disabled\n\n\
                    [ipv6]\nmethod=disabled\n";
    assert_eq!(profiles, [expected]);
}

#[test]
fn the_profile_of_a_pattern_excludes_each_nic_that_has_its_own_profile() {
    let links = vec![
        pattern(&["en*", "eth?"], &["virtio_net"]),
        pattern(&[], &["veth"]),
        nic(2),
        nic(1),
        link(LinkKind::Nic(Nic::Name(name("eno1")))),
        nic(2),
    ];
    let (_, profiles, _) = rendered(links);
    let expected = |at: usize, priority: usize, matches: &str| {
        format!(
            "[connection]\nid=50-glowplug-000{at}-any-nic\ntype=ethernet\nautoconnect-priority={priority}\n\
             autoconnect-retries=1\nmulti-connect=3\n\n[match]\n{matches}\n\n\
             [ethernet]\nmac-address-blacklist=52:54:00:12:34:01;52:54:00:12:34:02;\n\n\
             [ipv4]\nmethod=disabled\n\n[ipv6]\nmethod=disabled\n"
        )
    };
    let first = expected(0, 99, "driver=virtio_net;\ninterface-name=en*;eth?;!eno1;");
    assert_eq!(profiles[..2], [first, expected(1, 98, "driver=veth;\ninterface-name=!eno1;")]);
}

#[test]
fn an_earlier_pattern_has_a_higher_priority_and_at_most_99_patterns_are_accepted() {
    let mut links: Vec<Link> = (0..200).map(nic).collect();
    links.extend((0..99).map(|_| pattern(&["en*"], &[])));
    let (_, profiles, diagnostics) = rendered(links.clone());
    let priority = |profile: &String| {
        let value = profile.lines().find_map(|line| line.strip_prefix("autoconnect-priority="));
        value.unwrap().parse::<usize>().unwrap()
    };
    let priorities: Vec<usize> = profiles[200..].iter().map(priority).collect();
    assert_eq!((priorities, diagnostics), ((1..=99).rev().collect(), Vec::new()));
    links.push(pattern(&["en*"], &[]));
    let error = r#"links[0]: too many NICs identified by a pattern "more than 99", expected at most 99"#;
    assert_eq!(rendered(links).2, [error]);
}

#[test]
fn a_pattern_in_a_document_without_other_nics_excludes_no_nic() {
    let (_, profiles, _) = rendered(vec![pattern(&["en*"], &[])]);
    let expected = "[connection]\nid=50-glowplug-0000-any-nic\ntype=ethernet\nautoconnect-priority=99\n\
                    autoconnect-retries=1\nmulti-connect=3\n\n[match]\ninterface-name=en*;\n\n\
                    [ipv4]\nmethod=disabled\n\n[ipv6]\nmethod=disabled\n";
    assert_eq!(profiles, [expected]);
}

#[test]
fn profiles_refer_to_a_bond_by_its_uuid_and_the_primary_member_has_a_name() {
    let mut options = BondOptions::new(BondMode::ActiveBackup);
    options.set_primary(Some(LinkIndex(1)));
    let bond = LinkKind::Bond { name: name("bond0"), ports: vec![LinkIndex(0), LinkIndex(1)], options };
    let (line, profiles, _) = rendered(vec![nic(1), nic(2), link(bond)]);
    assert_eq!(line, "ifname=kv0:52:54:00:12:34:02");
    let uuid = Uuid::of(NAMESPACE, "bond bond0");
    let port = format!(
        "[connection]\nid=50-glowplug-0001-52-54-00-12-34-02\ntype=ethernet\nautoconnect-priority=100\n\
         autoconnect-retries=1\nmaster={uuid}\nslave-type=bond\nwait-device-timeout=60000\n\n\
         [ethernet]\nmac-address=52:54:00:12:34:02\n"
    );
    let bond = "[connection]\nid=50-glowplug-0002-bond0\ntype=bond\nautoconnect-priority=100\nautoconnect-retries=1\n\
                interface-name=bond0\n\n[ethernet]\ncloned-mac-address=52:54:00:12:34:01\n\n\
                [bond]\nmode=active-backup\nprimary=kv0\n\n[ipv4]\nmethod=disabled\n\n[ipv6]\nmethod=disabled\n";
    assert_eq!(profiles[1..], [port, bond.to_owned()]);
}

#[test]
fn name_servers_need_a_link_with_addresses_of_their_family() {
    let mut link = with_ipv4(nic(1), "10.0.0.5/24");
    let server = |text: &str, path: &str| Located { value: text.parse().unwrap(), path: path.to_owned() };
    link.dns.nameservers = vec![server("2001:db8::53", "a"), server("10.0.0.53", "b")];
    let (_, profiles, diagnostics) = rendered(vec![link]);
    assert!(profiles[0].contains("\ndns=10.0.0.53;\n") && !profiles[0].contains("2001:db8::53"));
    assert_eq!(diagnostics, [r#"a: "2001:db8::53" ignored, its link has no address of its family"#]);
}

#[test]
fn an_interface_under_two_names_causes_a_warning() {
    let named = |text: &str| {
        let mut link = with_ipv4(link(LinkKind::Nic(Nic::Name(name(text)))), "10.0.0.5/24");
        let gateway = Some("10.0.0.1".parse().unwrap());
        link.routes.push(Route::new("0.0.0.0/0".parse().unwrap(), gateway, None).unwrap());
        link
    };
    let (_, _, diagnostics) = rendered(vec![named("eno1"), named("eno2")]);
    let expected = "one name for one interface: links[0] has this network too, and an initramfs that needs the network waits \
                    for the name that no interface has";
    assert_eq!(diagnostics, [format!("links[0]: second name of a network \"eno2\", expected {expected}")]);
}

#[test]
fn a_link_that_uses_ipv6_cannot_be_without_a_link_local_address() {
    let mut link = nic(1);
    (link.ipv6.dynamic, link.ipv6.link_local) = (Some(Ipv6Dynamic::Slaac), Some(false));
    let expected = "links[0].link-local: ignored, NetworkManager sets a link-local address wherever it uses IPv6";
    assert_eq!(rendered(vec![link]).2, [expected]);
}

#[test]
fn the_ipv6_method_follows_from_the_settings_of_the_link() {
    let method = |change: &dyn Fn(&mut Link)| {
        let mut link = nic(1);
        change(&mut link);
        Ipv6Method::of(&link).to_string()
    };
    let ipv4 = |link: &mut Link| link.ipv4.addresses.push("10.0.0.5/24".parse().unwrap());
    assert_eq!(method(&|_| {}), "disabled");
    assert_eq!(method(&|link| ipv4(link)), "ignore");
    assert_eq!(method(&|link| link.ipv4.dhcp = true), "ignore");
    // With `ignore`, a failure of DHCP would remove the static address.
    assert_eq!(method(&|link| (ipv4(link), link.ipv4.dhcp = true).1), "link-local");
    assert_eq!(method(&|link| (ipv4(link), link.ipv6.accept_ra = Some(false)).1), "link-local");
    assert_eq!(method(&|link| (ipv4(link), link.ipv6.link_local = Some(false)).1), "disabled");
    assert_eq!(method(&|link| link.ipv6.link_local = Some(true)), "link-local");
    assert_eq!(method(&|link| link.ipv6.addresses.push("2001:db8::5/64".parse().unwrap())), "manual");
    for dynamic in [Ipv6Dynamic::Slaac, Ipv6Dynamic::StatelessDhcp, Ipv6Dynamic::StatefulDhcp] {
        assert_eq!(method(&|link| link.ipv6.dynamic = Some(dynamic)), "auto");
    }
    let without_routers =
        |dynamic| method(&move |link| (link.ipv6.dynamic, link.ipv6.accept_ra) = (Some(dynamic), Some(false)));
    assert_eq!(without_routers(Ipv6Dynamic::StatefulDhcp), "dhcp");
    assert_eq!(without_routers(Ipv6Dynamic::Slaac), "link-local");
}

#[test]
fn a_nic_that_is_already_named_gets_no_second_name_and_its_vlan_is_named_after_it() {
    let nic = LinkKind::Nic(Nic::MacAddress { mac_address: mac(1), name: Some(name("wan0")) });
    let vlan = LinkKind::Vlan { name: None, parent: LinkIndex(0), id: 5_i64.try_into().unwrap() };
    let mut config = NetworkConfig::new(vec![link(nic), with_ipv4(link(vlan), "10.0.0.5/24")]).unwrap();
    let mut rendered = |given: &[InterfaceName]| {
        config.given_names = given.iter().map(|name| (*name, mac(1))).collect();
        let Rendered { line, devices, .. } = render(&config, &mut Diagnostics::default());
        (line, devices[1].bare())
    };
    assert_eq!(rendered(&[]), ("ifname=wan0:52:54:00:12:34:01".to_owned(), "wan0.5".to_owned()));
    assert_eq!(rendered(&[name("lan0")]), (String::new(), "lan0.5".to_owned()));
}

#[test]
fn a_nic_has_the_same_uuid_in_every_document_and_its_second_entry_has_another_uuid() {
    let uuids = |links: Vec<Link>| {
        let config = NetworkConfig::new(links).unwrap();
        let files = render(&config, &mut Diagnostics::default()).files;
        let uuid =
            |file: File| file.text.lines().find_map(|line| line.strip_prefix("uuid=").map(str::to_owned)).unwrap();
        files.into_iter().map(uuid).collect::<Vec<_>>()
    };
    let alone = uuids(vec![nic(1)]);
    assert_eq!(alone, [Uuid::of(NAMESPACE, "ethernet 52:54:00:12:34:01").to_string()]);
    let several = uuids(vec![nic(2), nic(1), with_ipv4(nic(1), "10.0.0.5/24")]);
    assert_eq!(several[1], alone[0]);
    assert!(several[2] != alone[0] && several[2] != several[0]);
}
