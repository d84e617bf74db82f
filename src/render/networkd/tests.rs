//! Tests of the exact files for each kind of network. `tests/networkd.rs` checks how networkd interprets these files.

use super::*;
use crate::network::{BondMode, BondOptions, BridgeOptions, Located, VlanId};
use crate::render::test_links::{link, mac, name, nic, nic_with_name};

fn with_ipv4(mut link: Link, address: &str, gateway: Option<&str>) -> Link {
    link.ipv4.addresses.push(address.parse().unwrap());
    let gateway = gateway.map(|gateway| gateway.parse().unwrap());
    link.routes.extend(gateway.map(|gateway| Route::new("0.0.0.0/0".parse().unwrap(), Some(gateway), None).unwrap()));
    link
}

/// Renders the links, and returns the files with their paths, and the diagnostics.
fn rendered(links: Vec<Link>) -> (Vec<(String, String)>, Vec<String>) {
    let mut diagnostics = Diagnostics::default();
    let files = render(&NetworkConfig::new(links).unwrap(), &mut diagnostics).files;
    let path = |file: &File| file.path.trim_start_matches("run/systemd/network/").to_owned();
    let files = files.iter().map(|file| (path(file), file.text.clone())).collect();
    (files, diagnostics.kept().iter().map(ToString::to_string).collect())
}

fn file(path: &str, text: &str) -> (String, String) {
    (path.to_owned(), text.to_owned())
}

fn not_given(name: &str) -> String {
    let expected = "a free name, not one like eth0, for a NIC that is not matched by name";
    format!("links[0].name: name that cannot be set {name:?}, expected {expected}")
}

#[test]
fn a_nic_with_a_static_address_is_matched_by_its_mac_address() {
    let (files, diagnostics) = rendered(vec![with_ipv4(nic(1), "10.0.0.5/24", Some("10.0.0.1"))]);
    let text = format!(
        "[Match]\nMACAddress=52:54:00:12:34:01\nKind={NIC}\n\n\
                [Network]\nLinkLocalAddressing=ipv6\nAddress=10.0.0.5/24\n\n\
                [Route]\nDestination=0.0.0.0/0\nGateway=10.0.0.1\n\n[IPv6AcceptRA]\nDHCPv6Client=no\n"
    );
    assert_eq!(files, [file("50-glowplug-0000-52-54-00-12-34-01.network", &text)]);
    assert_eq!(diagnostics, Vec::<String>::new());
}

/// `tests/networkd.rs` checks that networkd understands the condition.
#[test]
fn a_device_that_may_have_the_mac_address_of_a_nic_is_not_matched() {
    let kinds = "bond bridge hsr ipvlan ipvtap macsec macvlan macvtap openvswitch team virt_wifi vlan";
    let pattern = Nic::Pattern { names: vec!["en*".parse().unwrap()], drivers: Vec::new(), name: None };
    let mut cloned = nic(2);
    cloned.cloned_mac_address = Some(mac(9));
    let (files, _) = rendered(vec![nic(1), cloned, link(LinkKind::Nic(pattern))]);
    let matches: Vec<&str> = files.iter().map(|(_, text)| text.split_once("\n\n").unwrap().0).collect();
    let expected = ["MACAddress=52:54:00:12:34:01", "PermanentMACAddress=52:54:00:12:34:02", "Name=en*"];
    assert_eq!(matches, expected.map(|line| format!("[Match]\n{line}\nKind=!{kinds}")));
}

#[test]
fn a_nic_without_settings_is_unmanaged() {
    let (files, _) = rendered(vec![nic(1)]);
    let text = format!("[Match]\nMACAddress=52:54:00:12:34:01\nKind={NIC}\n\n[Link]\nUnmanaged=yes\n");
    assert_eq!(files, [file("50-glowplug-0000-52-54-00-12-34-01.network", &text)]);
}

#[test]
fn a_nic_that_is_already_named_keeps_this_name() {
    let mut config = NetworkConfig::new(vec![nic_with_name(1, "wan0"), nic_with_name(2, "lan0")]).unwrap();
    config.given_names = vec![(name("lan0"), mac(1))];
    let mut diagnostics = Diagnostics::default();
    let files = render(&config, &mut diagnostics).files;
    let names: Vec<&str> =
        files.iter().filter_map(|file| file.text.lines().find_map(|line| line.strip_prefix("Name="))).collect();
    assert_eq!(names, ["lan0"]);
    let diagnostics: Vec<String> = diagnostics.kept().iter().map(ToString::to_string).collect();
    let already = "links[0].name: name that cannot be set \"wan0\", expected lan0, the name from ifname=";
    assert_eq!(diagnostics, [already, &not_given("lan0")]);
}

#[test]
fn a_nic_gets_the_name_from_the_document_unless_the_kernel_may_assign_it() {
    let (files, diagnostics) = rendered(vec![nic_with_name(1, "lan0"), nic_with_name(2, "eth1")]);
    let link = "[Match]\nPermanentMACAddress=52:54:00:12:34:01\n\n\
                [Link]\nName=lan0\nAlternativeNamesPolicy=database onboard slot path\n";
    assert_eq!(files[0], file("50-glowplug-0000-52-54-00-12-34-01.link", link));
    let paths: Vec<&str> = files.iter().map(|(path, _)| path.as_str()).collect();
    let network = |number: u8| format!("50-glowplug-000{}-52-54-00-12-34-0{number}.network", number - 1);
    assert_eq!(paths, [files[0].0.clone(), network(1), network(2)]);
    assert_eq!(diagnostics, [not_given("eth1")]);
}

#[test]
fn of_two_nics_that_request_the_same_name_only_one_gets_the_name() {
    let (_, diagnostics) = rendered(vec![nic_with_name(1, "lan0"), nic_with_name(2, "lan0")]);
    assert_eq!(diagnostics, [not_given("lan0")]);
}

#[test]
fn a_bond_has_the_mac_address_of_its_first_member_and_monitors_the_carrier_of_its_members() {
    let mut options = BondOptions::new(BondMode::ActiveBackup);
    options.set("updelay", "400").unwrap();
    options.primary = Some(LinkIndex(1));
    let bond = LinkKind::Bond { name: name("bond0"), ports: vec![LinkIndex(0), LinkIndex(1)], options };
    let (files, _) = rendered(vec![nic(1), nic(2), link(bond)]);
    let port = format!(
        "[Match]\nPermanentMACAddress=52:54:00:12:34:02\nKind={NIC}\n\n[Link]\nRequiredForOnline=no\n\n\
                [Network]\nBond=bond0\nPrimarySlave=yes\nLinkLocalAddressing=no\nIPv6AcceptRA=no\n"
    );
    let netdev = "[NetDev]\nName=bond0\nKind=bond\nMACAddress=52:54:00:12:34:01\n\n\
                  [Bond]\nMode=active-backup\nUpDelaySec=400ms\nMIIMonitorSec=100ms\n";
    let network = "[Match]\nName=bond0\n\n[Link]\nRequiredForOnline=no\n\n\
                   [Network]\nLinkLocalAddressing=no\nIPv6AcceptRA=no\n";
    let expected = [
        file("50-glowplug-0001-52-54-00-12-34-02.network", &port),
        file("50-glowplug-0002-bond0.netdev", netdev),
        file("50-glowplug-0002-bond0.network", network),
    ];
    assert_eq!(files[1..], expected);
}

#[test]
fn a_bridge_on_a_nic_without_a_known_mac_address_gets_a_mac_address_from_the_kernel() {
    let nic = link(LinkKind::Nic(Nic::Name(name("eno1"))));
    let bridge = LinkKind::Bridge { name: name("br0"), ports: vec![LinkIndex(0)], options: BridgeOptions::default() };
    let (files, _) = rendered(vec![nic, link(bridge)]);
    let netdev = "[NetDev]\nName=br0\nKind=bridge\nMACAddress=none\n";
    let link = "[Match]\nOriginalName=br0\n\n[Link]\nMACAddressPolicy=none\n";
    assert_eq!(files[1..3], [file("50-glowplug-0001-br0.netdev", netdev), file("50-glowplug-0001-br0.link", link)]);
}

#[test]
fn a_vlan_is_named_as_the_document_requests_or_after_its_parent() {
    let vlan = |parent: usize, id: i64, requested: Option<&str>| {
        let (name, id) = (requested.map(name), VlanId::try_from(id).unwrap());
        link(LinkKind::Vlan { name, parent: LinkIndex(parent), id })
    };
    let links = vec![nic(1), vlan(0, 100, Some("storage")), vlan(1, 200, None), vlan(0, 300, Some("storage"))];
    let devices = render(&NetworkConfig::new(links).unwrap(), &mut Diagnostics::default()).devices;
    let named = |text: &str| Device::Name(name(text));
    let expected = [Device::MacAddress(mac(1)), named("storage"), named("storage.200"), named("kv0.300")];
    assert_eq!(devices, expected);
}

#[test]
fn a_vlan_name_that_is_taken_or_assigned_by_the_kernel_is_reported() {
    let vlan = |id: i64, requested: &str| {
        let id = VlanId::try_from(id).unwrap();
        link(LinkKind::Vlan { name: Some(name(requested)), parent: LinkIndex(0), id })
    };
    let (_, diagnostics) = rendered(vec![nic(1), vlan(5, "eth5"), vlan(6, "data"), vlan(7, "data")]);
    let expected = |requested: &str, given: &str| {
        format!(
            "links[0].name: name that cannot be set {requested:?}, \
             expected a free name, not one like eth0: {given} is used instead"
        )
    };
    assert_eq!(diagnostics, [expected("eth5", "kv0.5"), expected("data", "kv1.7")]);
}

#[test]
fn name_servers_and_domains_of_a_link_without_addresses_are_ignored() {
    let mut bare = nic(1);
    bare.dns.nameservers.push(Located { value: "1.1.1.1".parse().unwrap(), path: "nameservers[0]".to_owned() });
    let mut config = NetworkConfig::new(vec![bare]).unwrap();
    config.dns.search.push(Located { value: "example.org".parse().unwrap(), path: "search[0]".to_owned() });
    let mut diagnostics = Diagnostics::default();
    render(&config, &mut diagnostics);
    let shown: Vec<String> = diagnostics.kept().iter().map(ToString::to_string).collect();
    let because = "only a link with an address has name servers and search domains";
    assert_eq!(
        shown,
        [
            format!("nameservers[0]: \"1.1.1.1\" ignored, {because}"),
            format!("search[0]: \"example.org\" ignored, {because}"),
        ]
    );
}

#[test]
fn of_two_default_routes_without_a_metric_the_first_is_preferred() {
    let links = ["10.0.0", "10.0.1"].map(|net| with_ipv4(nic(1), &format!("{net}.5/24"), Some(&format!("{net}.1"))));
    let metrics = metrics::metrics(&NetworkConfig::new(links.into()).unwrap());
    assert_eq!(metrics, [[Some(0)], [Some(1)]]);
}

#[test]
fn a_route_of_a_family_without_an_address_is_ignored_with_a_warning() {
    let mut nic = with_ipv4(nic(1), "10.0.0.5/24", None);
    nic.routes
        .push(Route::new("::/0".parse().unwrap(), "fe80::1".parse().ok(), None).unwrap().at("routes[0]".to_owned()));
    let (files, diagnostics) = rendered(vec![nic]);
    let text = format!(
        "[Match]\nMACAddress=52:54:00:12:34:01\nKind={NIC}\n\n\
                [Network]\nLinkLocalAddressing=ipv6\nAddress=10.0.0.5/24\n\n[IPv6AcceptRA]\nDHCPv6Client=no\n"
    );
    assert_eq!(files, [file("50-glowplug-0000-52-54-00-12-34-01.network", &text)]);
    assert_eq!(diagnostics, [r#"routes[0]: "::/0" ignored, its link has no address of its family"#]);
}

#[test]
fn each_routing_rule_has_its_own_section() {
    let mut link = with_ipv4(nic(1), "10.0.0.5/24", None);
    let mut rule = RoutingRule::new("10.0.0.5/32".parse().ok(), "192.0.2.0/24".parse().ok()).unwrap();
    (rule.table, rule.priority, rule.mark, rule.type_of_service) = (Some(7), Some(5), Some(255), Some(16));
    link.routing_policy = vec![rule, RoutingRule::new("10.0.0.5/32".parse().ok(), None).unwrap()];
    let (files, diagnostics) = rendered(vec![link]);
    let expected = "[RoutingPolicyRule]\nFrom=10.0.0.5/32\nTo=192.0.2.0/24\nPriority=5\nFirewallMark=255\n\
                    TypeOfService=16\nTable=7\n\n\
                    [RoutingPolicyRule]\nFrom=10.0.0.5/32\nPriority=32765\nTable=254\n\n";
    assert!(files[0].1.contains(expected), "{}", files[0].1);
    assert_eq!(diagnostics, [""; 0]);
}

#[test]
fn dhcpv6_starts_without_a_router_advertisement() {
    let mut nic = nic(1);
    nic.ipv6.dynamic = Some(Ipv6Dynamic::StatefulDhcp);
    let (files, _) = rendered(vec![nic]);
    let text = format!(
        "[Match]\nMACAddress=52:54:00:12:34:01\nKind={NIC}\n\n\
                [Network]\nDHCP=ipv6\nKeepConfiguration=dhcp-on-stop\nLinkLocalAddressing=ipv6\nIPv6AcceptRA=yes\n\n\
                [DHCPv6]\nDUIDType=link-layer\nWithoutRA=solicit\n"
    );
    assert_eq!(files, [file("50-glowplug-0000-52-54-00-12-34-01.network", &text)]);
}

#[test]
fn options_that_networkd_does_not_support_are_ignored_with_a_warning() {
    let mut options = BondOptions::new(BondMode::ActiveBackup);
    options.path = "params".to_owned();
    for (name, value) in [("use_carrier", "0"), ("arp_validate", "filter"), ("peer_notif_delay", "100")] {
        options.set(name, value).unwrap();
    }
    let bond = LinkKind::Bond { name: name("bond0"), ports: vec![LinkIndex(0)], options };
    let (_, diagnostics) = rendered(vec![nic(1), link(bond)]);
    let ignored =
        |option: &str, value: &str| format!("params: \"{option}={value}\" ignored, systemd-networkd cannot express it");
    assert_eq!(
        diagnostics,
        [ignored("arp_validate", "filter"), ignored("peer_notif_delay", "100"), ignored("use_carrier", "0")]
    );
}

#[test]
fn the_settings_of_link_local_addresses_and_router_advertisements_are_as_in_the_document() {
    let network = |change: fn(&mut Link)| {
        let mut link = nic(1);
        change(&mut link);
        let (files, diagnostics) = rendered(vec![link]);
        assert_eq!(diagnostics, Vec::<String>::new());
        files[0].1.split_once("\n\n").unwrap().1.to_owned()
    };
    assert_eq!(
        network(|link| link.ipv6.link_local = Some(true)),
        "[Network]\nLinkLocalAddressing=ipv6\n\n[IPv6AcceptRA]\nDHCPv6Client=no\n"
    );
    assert_eq!(
        network(|link| (link.ipv6.link_local, link.ipv6.accept_ra) = (Some(true), Some(false))),
        "[Network]\nLinkLocalAddressing=ipv6\nIPv6AcceptRA=no\n"
    );
    assert_eq!(
        network(|link| (link.ipv6.link_local, link.ipv4.dhcp) = (Some(false), true)),
        "[Network]\nDHCP=ipv4\nKeepConfiguration=dhcp-on-stop\nLinkLocalAddressing=no\nIPv6AcceptRA=no\n\n\
         [DHCPv4]\nClientIdentifier=mac\nUseMTU=yes\n"
    );
    let without_routers = |link: &mut Link| {
        link.ipv4.addresses.push("10.0.0.5/24".parse().unwrap());
        link.ipv6.accept_ra = Some(false);
    };
    assert_eq!(network(without_routers), "[Network]\nLinkLocalAddressing=ipv6\nIPv6AcceptRA=no\nAddress=10.0.0.5/24\n");
}
