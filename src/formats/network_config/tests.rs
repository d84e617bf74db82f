//! Tests of the model that the reader makes of a document. The tests write the model as lines. A link, a family, a
//! route, a routing rule and a list of name servers have one line each.

use std::fmt::{Display, Write as _};

use proptest::prelude::*;
use proptest::{collection, sample};

use super::converter::unreadable;
use crate::formats::{Meaning, read_network};
use crate::network::{
    BridgeOptions, BridgePort, DhcpOverrides, Dns, Ipv4Config, Ipv6Config, Link, LinkIndex, LinkKind, NetworkConfig,
    Nic,
};

/// The title and the words as a line. `None` without words.
fn line(title: &str, words: &[String]) -> Option<String> {
    (!words.is_empty()).then(|| format!("{title} {}", words.join(" ")))
}

fn given(name: &str, value: Option<impl Display>) -> Option<String> {
    value.map(|value| format!("{name}={value}"))
}

fn dns_of(title: &str, Dns { nameservers, search }: &Dns) -> Option<String> {
    let servers = nameservers.iter().map(ToString::to_string);
    line(title, &servers.chain(search.iter().map(ToString::to_string)).collect::<Vec<_>>())
}

fn options_of(options: &DhcpOverrides) -> Vec<String> {
    let DhcpOverrides { route_metric, use_routes, use_dns, use_domains, use_hostname, send_hostname, use_mtu, use_ntp } =
        options;
    let words = [
        given("metric", route_metric.as_ref()),
        given("routes", *use_routes),
        given("dns", *use_dns),
        given("domains", *use_domains),
        given("hostname", *use_hostname),
        given("send-hostname", *send_hostname),
        given("mtu", *use_mtu),
        given("ntp", *use_ntp),
    ];
    words.into_iter().flatten().collect()
}

fn kind_of(kind: &LinkKind) -> String {
    let ports = |ports: &[LinkIndex]| match ports {
        [] => "nothing".to_owned(),
        ports => ports.iter().map(|port| port.0.to_string()).collect::<Vec<_>>().join("+"),
    };
    let words = match kind {
        LinkKind::Nic(Nic::MacAddress { mac_address, name }) => {
            let mut words = vec![format!("NIC {mac_address}")];
            words.extend(given("as", name.as_ref()));
            words
        }
        LinkKind::Nic(Nic::Name(name)) => vec![format!("NIC {name}")],
        LinkKind::Nic(Nic::Pattern { names, drivers, name }) => {
            let mut words = vec!["NICs".to_owned()];
            words.extend(names.iter().map(ToString::to_string));
            words.extend(drivers.iter().map(|driver| format!("driver={driver}")));
            words.extend(given("as", name.as_ref()));
            words
        }
        LinkKind::Bond { name, ports: of, options } => {
            let mut words = vec![format!("bond {name} of {} {}", ports(of), options.mode)];
            words.extend(given("primary", options.primary.map(|port| port.0)));
            words.extend(options.arp_ip_target.iter().map(|target| format!("arp={target}")));
            words.extend(options.others().iter().map(|option| format!("{}={}", option.name, option.value)));
            words
        }
        LinkKind::Bridge { name, ports: of, options } => {
            let BridgeOptions {
                path: _,
                stp,
                ageing_time,
                forward_delay,
                hello_time,
                max_age,
                priority,
                ports: port_options,
            } = options;
            let mut words = vec![format!("bridge {name} of {}", ports(of))];
            words.extend(given("stp", *stp));
            words.extend(given("ageing", *ageing_time));
            words.extend(given("delay", *forward_delay));
            words.extend(given("hello", *hello_time));
            words.extend(given("max-age", *max_age));
            words.extend(given("priority", *priority));
            for BridgePort { port, path_cost, priority } in port_options {
                words.push(format!("{}:{path_cost:?}:{priority:?}", port.0));
            }
            words
        }
        LinkKind::Vlan { name, parent, id } => {
            let mut words = vec![format!("vlan {id} on {}", parent.0)];
            words.extend(given("as", name.as_ref()));
            words
        }
    };
    words.join(" ")
}

fn lines_of(link: &Link) -> Vec<String> {
    let Link { id, path, name_path: _, kind, mtu, cloned_mac_address, ipv4, ipv6, dns, routes, .. } = link;
    let Link { routing_policy, without_addresses, .. } = link;
    let mut first = format!("{id} at {path}: {}", kind_of(kind));
    for word in [given("mtu", *mtu), given("mac", *cloned_mac_address)].into_iter().flatten() {
        write!(first, " {word}").unwrap();
    }
    if *without_addresses {
        first.push_str(" without addresses");
    }
    let Ipv4Config { dhcp, dhcp_overrides, addresses } = ipv4;
    let mut v4 = Vec::from_iter(dhcp.then(|| "dhcp".to_owned()));
    v4.extend(options_of(dhcp_overrides));
    v4.extend(addresses.iter().map(ToString::to_string));
    let Ipv6Config { dynamic, link_local, accept_ra, dhcp_overrides, addresses } = ipv6;
    let mut v6 = Vec::from_iter(dynamic.map(|dynamic| dynamic.to_string()));
    v6.extend(given("link-local", *link_local));
    v6.extend(given("ra", *accept_ra));
    v6.extend(options_of(dhcp_overrides));
    v6.extend(addresses.iter().map(ToString::to_string));
    let mut lines = vec![first];
    lines.extend([line("  ipv4", &v4), line("  ipv6", &v6), dns_of("  dns", dns)].into_iter().flatten());
    for route in routes {
        let words = [
            given("via", route.gateway()),
            given("metric", route.metric()),
            route.on_link.then(|| "on-link".to_owned()),
            given("table", route.table),
        ];
        let words: Vec<String> = words.into_iter().flatten().collect();
        let title = format!("  route {}", route.destination());
        lines.push(line(&title, &words).unwrap_or(title) + " at " + &route.path);
    }
    for rule in routing_policy {
        let words = [
            given("table", rule.table),
            given("priority", rule.priority),
            given("mark", rule.mark),
            given("tos", rule.type_of_service),
        ];
        let words: Vec<String> = words.into_iter().flatten().collect();
        let title = format!("  rule {rule}");
        lines.push(line(&title, &words).unwrap_or(title) + " at " + &rule.path);
    }
    lines
}

fn notation(network: &NetworkConfig) -> Vec<String> {
    let mut lines: Vec<String> = network.links().iter().flat_map(lines_of).collect();
    lines.extend(dns_of("dns", &network.dns));
    lines
}

/// Reads a document that has no diagnostics, and returns its model.
fn meaning(document: &str) -> Vec<String> {
    let reading = read_network(document.as_bytes());
    assert_eq!(reading.diagnostics.kept(), []);
    let Meaning::Network(network) = reading.meaning else { panic!("the document asks for a network") };
    notation(&network)
}

#[test]
fn a_typical_document_of_version_2_gives_the_expected_model() {
    let expected = [
        "nic0 at network.ethernets.nic0: NIC 52:54:00:12:34:56 as=eno101 mtu=9000",
        "nic1 at network.ethernets.nic1: NIC 52:54:00:12:34:57 as=eno102 mtu=9000",
        "nic2 at network.ethernets.nic2: NIC 52:54:00:12:34:58",
        "  ipv4 dhcp metric=500 dns=false",
        "bond0 at network.bonds.bond0: bond bond0 of 0+1 802.3ad lacp_rate=fast miimon=100 xmit_hash_policy=layer3+4 mtu=9000",
        "bond0.100 at network.vlans.\"bond0.100\": vlan 100 on 3 as=bond0.100",
        "  ipv4 192.168.1.100/24",
        "  ipv6 2001:db8:1::100/64",
        "  dns 192.168.1.2 2001:db8:1::2 example.org internal.example.org",
        "  route 0.0.0.0/0 via=192.168.1.1 at network.vlans.\"bond0.100\".routes[0]",
        "  route ::/0 via=2001:db8:1::1 at network.vlans.\"bond0.100\".routes[1]",
        "  route 10.20.0.0/16 via=192.168.1.254 metric=100 at network.vlans.\"bond0.100\".routes[2]",
    ];
    assert_eq!(meaning(include_str!("../../../fixtures/documents/typical-v2.yaml")), expected);
}

/// The diagnostics of a document that is rejected.
fn refusal(document: &str) -> Vec<String> {
    let reading = read_network(document.as_bytes());
    assert!(matches!(reading.meaning, Meaning::Refused));
    reading.diagnostics.kept().iter().map(ToString::to_string).collect()
}

fn many(devices: usize, device: impl Fn(usize) -> String) -> String {
    (0..devices).map(device).collect()
}

#[test]
fn the_maximum_number_of_devices_is_accepted() {
    let document = format!("version: 2\nethernets:\n{}", many(4096, |at| format!("  e{at}: {{dhcp4: true}}\n")));
    assert_eq!(meaning(&document).len(), 2 * 4096);
    let document = format!(
        "version: 2\nethernets: {{e: {{}}}}\nvlans:\n{}",
        many(4094, |at| format!("  v{at}: {{id: {}, link: e}}\n", at + 1))
    );
    assert_eq!(meaning(&document).len(), 4095);
}

#[test]
fn too_many_devices_are_rejected() {
    let too_many = |path: &str, problem: &str, found: &str, most: &str| {
        vec![format!(r#"{path}: too many {problem} "{found}", expected at most {most}"#)]
    };
    let devices = |count| many(count, |at| format!("  e{at}: {{dhcp4: true}}\n"));
    assert_eq!(
        refusal(&format!("version: 2\nethernets:\n{}bridges:\n  b: {{}}\n", devices(4096))),
        too_many("document", "devices", "4097", "4096")
    );
    let ports: Vec<String> = (0..4096).map(|at| format!("e{at}")).collect();
    let document = format!("version: 2\nbridges: {{b: {{interfaces: [{}]}}}}", ports.join(", "));
    assert_eq!(refusal(&document).pop(), too_many("document", "devices", "4097", "4096").pop());
    assert_eq!(
        refusal(&format!("version: 1\nconfig:\n{}", "- {type: physical}\n".repeat(4097))),
        too_many("config", "items", "4097", "4096")
    );
    let document = format!("version: 2\nethernets:\n{}", many(40_000, |at| format!("  e{at}: {{mtu: 5}}\n")));
    assert_eq!(refusal(&document), too_many("document", "values", "more than 65536", "65536"));
    let document = format!("version: 2\nethernets:\n{}", devices(100_000));
    assert_eq!(refusal(&document), too_many("document", "bytes", &document.len().to_string(), "1048576"));
    assert_eq!(refusal(&"#".repeat(16 << 20)), too_many("document", "bytes", "16777216", "1048576"));
}

/// Generates documents from known members and values, mostly in positions where they are valid.
fn documents() -> impl Strategy<Value = serde_json::Value> {
    let words = sample::select(vec![
        "a",
        "b",
        "lo",
        "eth0",
        "en*",
        "52:54:00:00:00:01",
        "52-54-00-00-00-02",
        "10.0.0.5/24",
        "10.0.0.1",
        "fe80::1",
        "2001:db8::5/64",
        "default",
        "0.0.0.0/0",
        "::/0",
        "255.255.255.0",
        "802.3ad",
        "active-backup",
        "fast",
        "1s",
        "8.8.8.8 1.1.1.1",
        "example.org",
        "physical",
        "bond",
        "bridge",
        "vlan",
        "loopback",
        "nameserver",
        "route",
        "dhcp",
        "dhcp6",
        "static",
        "static6",
        "manual",
        "ipv6_slaac",
        "yes",
        "a/b",
        "a 5",
        "virtio_net",
        "",
    ]);
    let scalars = prop_oneof![
        words.prop_map(serde_json::Value::from),
        sample::select(vec![-1, 0, 1, 2, 5, 100, 1400, 65_536]).prop_map(serde_json::Value::from),
        any::<bool>().prop_map(serde_json::Value::from),
        Just(serde_json::Value::Null),
    ];
    let members = sample::select(vec![
        "a",
        "b",
        "lo",
        "eth0",
        "ethernets",
        "bonds",
        "bridges",
        "vlans",
        "config",
        "match",
        "macaddress",
        "set-name",
        "name",
        "driver",
        "type",
        "mac_address",
        "subnets",
        "address",
        "addresses",
        "netmask",
        "gateway",
        "gateway4",
        "gateway6",
        "routes",
        "to",
        "via",
        "destination",
        "network",
        "metric",
        "table",
        "on-link",
        "nameservers",
        "search",
        "interfaces",
        "bond_interfaces",
        "bridge_interfaces",
        "parameters",
        "params",
        "mode",
        "primary",
        "arp-ip-targets",
        "arp-interval",
        "lacp-rate",
        "stp",
        "forward-delay",
        "path-cost",
        "port-priority",
        "id",
        "link",
        "vlan_id",
        "vlan_link",
        "mtu",
        "accept-ra",
        "dhcp4",
        "dhcp6",
        "dhcp4-overrides",
        "route-metric",
        "use-dns",
        "interface",
        "dns_nameservers",
        "dns_search",
        "unknown",
    ]);
    let member = members.clone();
    let values = scalars.prop_recursive(6, 96, 6, move |inner| {
        prop_oneof![
            collection::vec(inner.clone(), 0..5).prop_map(serde_json::Value::from),
            collection::hash_map(members.clone().prop_map(str::to_owned), inner, 0..6)
                .prop_map(|members| serde_json::Value::Object(members.into_iter().collect())),
        ]
    });
    let given = sample::select(USUAL).prop_map(|text| {
        let (member, value) = text.split_once(": ").unwrap();
        (member.to_owned(), serde_json::from_str(value).unwrap())
    });
    let anything = (member.prop_map(str::to_owned), values);
    let device = collection::vec(prop_oneof![30 => given, 1 => anything], 0..5);
    let name = sample::select(vec!["a", "b", "c", "d", "eth0", "lo"]);
    let section = sample::select(vec!["ethernets", "ethernets", "bonds", "bridges", "vlans"]);
    (1_u8..=2, collection::vec((section, name, device), 1..6)).prop_map(|(version, devices)| {
        let mut document = serde_json::json!({"version": version});
        let mut items = Vec::new();
        for (section, name, device) in devices {
            let mut device = serde_json::Map::from_iter(device);
            if version == 1 {
                device.entry("name").or_insert(name.into());
                let kind = ["physical", "bond", "bridge", "vlan"].into_iter().find(|kind| section.starts_with(kind));
                device.entry("type").or_insert(kind.unwrap_or("physical").into());
                items.push(serde_json::Value::Object(device));
            } else {
                document[section][name] = serde_json::Value::Object(device);
            }
        }
        if version == 1 {
            document["config"] = items.into();
        }
        document
    })
}

/// Members that are valid on at least one kind of device.
const USUAL: &[&str] = &[
    r#"match: {"macaddress": "52:54:00:00:00:01"}"#,
    r#"match: {"name": "en*", "driver": "virtio_net"}"#,
    r#"mac_address: "52:54:00:00:00:02""#,
    r#"macaddress: "52:54:00:00:00:03""#,
    r#"set-name: "eth7""#,
    r#"mtu: 1400"#,
    r#"dhcp4: true"#,
    r#"dhcp6: "yes""#,
    r#"accept-ra: true"#,
    r#"dhcp4-overrides: {"route-metric": 5, "use-dns": false}"#,
    r#"addresses: ["10.0.0.5/24", {"2001:db8::5/64": {"label": "x"}}]"#,
    r#"gateway4: "10.0.0.1""#,
    r#"routes: [{"to": "default", "via": "fe80::1", "metric": 5}, {"to": "10.1.0.0/16", "table": 5}]"#,
    r#"nameservers: {"addresses": ["8.8.8.8"], "search": "a.b c.d"}"#,
    r#"subnets: [{"type": "dhcp"}, {"type": "static", "address": "2001:db8::5", "gateway": "fe80::1"}]"#,
    r#"subnets: [{"type": "static", "address": "10.0.0.5", "netmask": "255.255.255.0", "dns_nameservers": "8.8.8.8"}]"#,
    r#"interfaces: ["a"]"#,
    r#"interfaces: ["b", "e1"]"#,
    r#"bond_interfaces: ["b", "e2"]"#,
    r#"bridge_interfaces: ["c"]"#,
    r#"parameters: {"mode": "active-backup", "primary": "b", "path-cost": {"a": 5}}"#,
    r#"params: {"bond-mode": 4, "bond_lacp_rate": 1, "bridge_portprio": "c 5"}"#,
    r#"id: 5"#,
    r#"link: "a""#,
    r#"link: "b""#,
    r#"vlan_id: 6"#,
    r#"vlan_link: "d""#,
];

proptest! {
    /// The placeholder for an invalid device never reaches a model, and a member of a bond or a bridge has no
    /// addresses.
    #[test]
    fn no_generated_document_leads_to_an_invalid_model(document in documents()) {
        if let Meaning::Network(network) = read_network(document.to_string().as_bytes()).meaning {
            for (at, link) in network.links().iter().enumerate() {
                prop_assert!(link.kind != unreadable());
                prop_assert!(network.controller_of(LinkIndex(at)).is_none() || !link.has_addresses());
            }
        }
    }
}

/// Makes a test of each row: the version of a document, its content, and its model.
macro_rules! means {
    (@v2 $text:expr) => { format!("version: 2\n{}", $text) };
    (@v1 $text:expr) => { format!("version: 1\nconfig:\n{}", $text) };
    ($($name:ident: $kind:ident $text:expr => [$($line:literal),*];)*) => {
        $(#[test] fn $name() {
            let expected: Vec<String> = vec![$($line.to_owned()),*];
            assert_eq!(meaning(&means!(@$kind $text)), expected);
        })*
    };
}

// === Version 2: NICs ===

means! {
    without_a_match_the_key_of_a_nic_is_its_name: v2 "ethernets: {eno1: {dhcp4: true}}"
        => [
            "eno1 at ethernets.eno1: NIC eno1",
            "  ipv4 dhcp"
        ];
    with_a_match_by_mac_address_the_key_of_a_nic_is_not_its_name: v2 "ethernets: {eno1: {match: {macaddress: 52-54-00-00-00-0A}, dhcp4: true}}"
        => [
            "eno1 at ethernets.eno1: NIC 52:54:00:00:00:0a",
            "  ipv4 dhcp"
        ];
    set_name_is_read_as_a_requested_name:
        v2 "ethernets: {id0: {match: {macaddress: '52:54:00:00:00:01'}, set-name: lan0, dhcp4: true}}"
        => [
            "id0 at ethernets.id0: NIC 52:54:00:00:00:01 as=lan0",
            "  ipv4 dhcp"
        ];
    a_match_by_name_identifies_the_nic_by_its_name: v2 "ethernets: {id0: {match: {name: eno1}, dhcp4: true}}"
        => [
            "id0 at ethernets.id0: NIC eno1",
            "  ipv4 dhcp"
        ];
    a_match_by_a_pattern_can_identify_several_nics: v2 "ethernets: {id0: {match: {name: en*}, dhcp4: true}}"
        => [
            "id0 at ethernets.id0: NICs en*",
            "  ipv4 dhcp"
        ];
    a_match_by_drivers_can_be_combined_with_a_name: v2 "ethernets: {id0: {match: {driver: [virtio_net, e1000*]}, set-name: lan0, dhcp4: true}, id1: {match: {driver: ixgbe, name: en?}}}"
        => [
            "id0 at ethernets.id0: NICs driver=virtio_net driver=e1000* as=lan0",
            "  ipv4 dhcp",
            "id1 at ethernets.id1: NICs en? driver=ixgbe"
        ];
    an_empty_match_matches_every_nic: v2 "ethernets: {id0: {match: {}, dhcp4: true}}"
        => [
            "id0 at ethernets.id0: NICs *",
            "  ipv4 dhcp"
        ];
    a_nic_can_have_a_mac_address_to_set_and_an_mtu: v2 r#"
ethernets:
  id0: {match: {macaddress: '52:54:00:00:00:01'}, macaddress: '52:54:00:00:00:02', mtu: 9000, dhcp4: true}
  eno2: {macaddress: '52:54:00:00:00:03', mtu: "1400"}
  id1: {match: {macaddress: '52:54:00:00:00:04'}, macaddress: '52:54:00:00:00:04'}"#
        => [
            "id0 at ethernets.id0: NIC 52:54:00:00:00:01 mtu=9000 mac=52:54:00:00:00:02",
            "  ipv4 dhcp",
            "eno2 at ethernets.eno2: NIC eno2 mtu=1400 mac=52:54:00:00:00:03",
            "id1 at ethernets.id1: NIC 52:54:00:00:00:04"
        ];
    a_nic_with_only_dhcp4_false_gets_no_addresses: v2 "ethernets: {eno1: {dhcp4: false}}"
        => [
            "eno1 at ethernets.eno1: NIC eno1 without addresses"
        ];
}

// === Version 2: addresses ===

means! {
    dhcp_and_static_addresses_are_read_as_kubevirt_writes_them: v2 r#"
ethernets:
  pod:
    match: {macaddress: 52:54:00:00:00:01}
    set-name: eth0
    dhcp4: true
    addresses: ['fd10:0:2::2/120']
    routes: [{to: '::/0', via: 'fd10:0:2::1'}]"#
        => [
            "pod at ethernets.pod: NIC 52:54:00:00:00:01 as=eth0",
            "  ipv4 dhcp",
            "  ipv6 fd10:0:2::2/120",
            "  route ::/0 via=fd10:0:2::1 at ethernets.pod.routes[0]"
        ];
    dhcp_overrides_are_read_for_each_family: v2 r#"
ethernets:
  eno1:
    dhcp4: true
    dhcp6: true
    dhcp4-overrides: {route-metric: 100, use-dns: no, use-routes: false, use-domains: yes, use-hostname: false}
    dhcp6-overrides: {route-metric: "200", send-hostname: false, use-mtu: true, use-ntp: off}"#
        => [
            "eno1 at ethernets.eno1: NIC eno1",
            "  ipv4 dhcp metric=100 routes=false dns=false domains=true hostname=false",
            "  ipv6 dhcp6 metric=200 send-hostname=false mtu=true ntp=false"
        ];
    requested_router_advertisements_give_slaac_without_a_static_ipv6_address: v2 "ethernets: {a: {accept-ra: true}, b: {accept-ra: yes, addresses: ['2001:db8::5/64']}, c: {accept-ra: no, dhcp6: true}, d: {accept-ra: true, addresses: [10.0.0.5/24]}}"
        => [
            "a at ethernets.a: NIC a",
            "  ipv6 slaac ra=true",
            "b at ethernets.b: NIC b",
            "  ipv6 ra=true 2001:db8::5/64",
            "c at ethernets.c: NIC c",
            "  ipv6 dhcp6 ra=false",
            "d at ethernets.d: NIC d",
            "  ipv4 10.0.0.5/24",
            "  ipv6 slaac ra=true"
        ];
    addresses_are_read_in_every_notation: v2 "ethernets: {a: {addresses: [10.0.0.5/24, 10.0.1.5/24, 10.0.2.5/255.255.0.0, '2001:DB8::5/48', '2001:db8::6/64', 10.0.0.5/24]}, b: {addresses: 10.0.3.5/24}, c: {addresses: [{10.0.4.5/24: {}}, {10.0.5.5/24: null}]}}"
        => [
            "a at ethernets.a: NIC a",
            "  ipv4 10.0.0.5/24 10.0.1.5/24 10.0.2.5/16",
            "  ipv6 2001:db8::5/48 2001:db8::6/64",
            "b at ethernets.b: NIC b",
            "  ipv4 10.0.3.5/24",
            "c at ethernets.c: NIC c",
            "  ipv4 10.0.4.5/24 10.0.5.5/24"
        ];
    gateways_of_both_families_become_default_routes: v2 "ethernets: {a: {addresses: [10.0.0.5/24, '2001:db8::5/64'], gateway4: 10.0.0.1, gateway6: 'fe80::1'}, b: {dhcp4: true, gateway4: 10.1.0.1}}"
        => [
            "a at ethernets.a: NIC a",
            "  ipv4 10.0.0.5/24",
            "  ipv6 2001:db8::5/64",
            "  route 0.0.0.0/0 via=10.0.0.1 at ethernets.a.gateway4",
            "  route ::/0 via=fe80::1 at ethernets.a.gateway6",
            "b at ethernets.b: NIC b",
            "  ipv4 dhcp",
            "  route 0.0.0.0/0 via=10.1.0.1 at ethernets.b.gateway4"
        ];
}

// === Version 2: routes and name servers ===

means! {
    routes_are_read_in_every_notation: v2 r#"
ethernets:
  a:
    addresses: [10.0.0.5/24, '2001:db8::5/64']
    routes:
    - {to: default, via: 10.0.0.1, metric: 50}
    - {to: 0.0.0.0/0, via: 10.0.0.2, table: 100}
    - {to: default, via: 'fe80::1', on-link: true}
    - {to: 10.1.0.9/32, via: 10.0.0.1}
    - {to: 10.2.0.0/255.255.0.0}
    - {to: 10.3.1.7/16, via: 0.0.0.0, table: 254}
    - {to: '2001:db8:1::/48', via: 'fe80::2', type: unicast, metric: 0}
    - {to: default}"#
        => [
            "a at ethernets.a: NIC a",
            "  ipv4 10.0.0.5/24",
            "  ipv6 2001:db8::5/64",
            "  route 0.0.0.0/0 via=10.0.0.1 metric=50 at ethernets.a.routes[0]",
            "  route 0.0.0.0/0 via=10.0.0.2 table=100 at ethernets.a.routes[1]",
            "  route ::/0 via=fe80::1 on-link at ethernets.a.routes[2]",
            "  route 10.1.0.9/32 via=10.0.0.1 at ethernets.a.routes[3]",
            "  route 10.2.0.0/16 at ethernets.a.routes[4]",
            "  route 10.3.0.0/16 at ethernets.a.routes[5]",
            "  route 2001:db8:1::/48 via=fe80::2 metric=0 at ethernets.a.routes[6]",
            "  route 0.0.0.0/0 at ethernets.a.routes[7]"
        ];
    routing_rules_with_all_their_conditions_are_read: v2 r#"
ethernets:
  a:
    addresses: [10.0.0.5/24, '2001:db8::5/64']
    routing-policy:
    - {from: 10.0.0.5, table: 100}
    - {from: 10.0.0.9/24, to: 192.0.2.0/24, table: 254, priority: 0, mark: 7, type-of-service: 16}
    - {to: '2001:db8:1::/48', table: 4294967295}"#
        => [
            "a at ethernets.a: NIC a",
            "  ipv4 10.0.0.5/24",
            "  ipv6 2001:db8::5/64",
            "  rule from 10.0.0.5/32 table=100 at ethernets.a.routing-policy[0]",
            "  rule from 10.0.0.0/24 to 192.0.2.0/24 priority=0 mark=7 tos=16 at ethernets.a.routing-policy[1]",
            "  rule to 2001:db8:1::/48 table=4294967295 at ethernets.a.routing-policy[2]"
        ];
    a_single_route_needs_no_list: v2 "ethernets: {a: {dhcp4: true, routes: {to: 10.1.0.0/16, via: 10.0.0.1}}}"
        => [
            "a at ethernets.a: NIC a",
            "  ipv4 dhcp",
            "  route 10.1.0.0/16 via=10.0.0.1 at ethernets.a.routes[0]"
        ];
    name_servers_are_read_from_lists_and_strings_without_repeats: v2 "ethernets: {a: {dhcp4: true, nameservers: {addresses: [8.8.8.8, '2001:4860:4860::8888', 8.8.8.8], search: [Example.org., a.b]}}, b: {dhcp4: true, nameservers: {addresses: 1.1.1.1 1.0.0.1, search: 'c.d, e.f'}}, c: {dhcp4: true, nameservers: {search: [g.h]}}}"
        => [
            "a at ethernets.a: NIC a",
            "  ipv4 dhcp",
            "  dns 8.8.8.8 2001:4860:4860::8888 example.org a.b",
            "b at ethernets.b: NIC b",
            "  ipv4 dhcp",
            "  dns 1.1.1.1 1.0.0.1 c.d e.f",
            "c at ethernets.c: NIC c",
            "  ipv4 dhcp",
            "  dns g.h"
        ];
    name_servers_of_the_loopback_device_belong_to_the_machine: v2 "ethernets: {lo: {addresses: [127.0.0.1/8], nameservers: {addresses: [8.8.8.8], search: [a.b]}}, a: {dhcp4: true}}"
        => [
            "a at ethernets.a: NIC a",
            "  ipv4 dhcp",
            "dns 8.8.8.8 a.b"
        ];
}

// === Version 2: bonds, bridges and VLANs ===

means! {
    a_bond_with_the_options_of_netplan_is_read: v2 r#"
ethernets: {a: {match: {macaddress: '52:54:00:00:00:01'}}, b: {match: {macaddress: '52:54:00:00:00:02'}, set-name: eth7}}
bonds:
  bond0:
    interfaces: [a, eth7]
    macaddress: 52:54:00:00:00:09
    mtu: 9000
    dhcp4: true
    parameters: {mode: 802.3ad, lacp-rate: fast, mii-monitor-interval: 1s, min-links: 1, up-delay: 200ms, down-delay: 0, transmit-hash-policy: layer3+4, ad-select: bandwidth, learn-packet-interval: 2s, all-slaves-active: true, gratuitous-arp: 2, resend-igmp: 3, fail-over-mac-policy: active}"#
        => [
            "a at ethernets.a: NIC 52:54:00:00:00:01",
            "b at ethernets.b: NIC 52:54:00:00:00:02 as=eth7",
            "bond0 at bonds.bond0: bond bond0 of 0+1 802.3ad ad_select=bandwidth all_slaves_active=1 downdelay=0 fail_over_mac=active lacp_rate=fast lp_interval=2 miimon=1000 min_links=1 num_grat_arp=2 resend_igmp=3 updelay=200 xmit_hash_policy=layer3+4 mtu=9000 mac=52:54:00:00:00:09",
            "  ipv4 dhcp"
        ];
    a_bond_with_arp_monitoring_and_a_primary_member_is_read: v2 r#"
ethernets: {a: {}, b: {}}
bonds: {bond0: {interfaces: [a, b], parameters: {mode: 1, primary: b, arp-interval: 100, arp-ip-targets: [10.0.0.1, 10.0.0.2], arp-validate: all, arp-all-targets: any, primary-reselect-policy: better}}}"#
        => [
            "a at ethernets.a: NIC a",
            "b at ethernets.b: NIC b",
            "bond0 at bonds.bond0: bond bond0 of 0+1 active-backup primary=1 arp=10.0.0.1 arp=10.0.0.2 arp_all_targets=any arp_interval=100 arp_validate=all primary_reselect=better"
        ];
    a_bond_without_parameters_has_the_mode_balance_rr: v2 r#"
ethernets: {a: {}}
bonds: {bond0: {interfaces: a}}"#
        => [
            "a at ethernets.a: NIC a",
            "bond0 at bonds.bond0: bond bond0 of 0 balance-rr"
        ];
    a_bridge_with_the_options_of_netplan_is_read: v2 r#"
ethernets: {a: {}}
bonds: {bond0: {interfaces: [a]}}
vlans: {v.5: {id: 5, link: bond0}}
bridges:
  br0:
    interfaces: [v.5]
    addresses: [10.0.0.5/24]
    parameters: {stp: true, forward-delay: 4s, hello-time: 2, max-age: 12, ageing-time: 300, priority: 32768, path-cost: {v.5: 100}, port-priority: {v.5: 28}}"#
        => [
            "a at ethernets.a: NIC a",
            "bond0 at bonds.bond0: bond bond0 of 0 balance-rr",
            r#"v.5 at vlans."v.5": vlan 5 on 1 as=v.5"#,
            "br0 at bridges.br0: bridge br0 of 2 stp=true ageing=300 delay=4 hello=2 max-age=12 priority=32768 2:Some(100):Some(28)",
            "  ipv4 10.0.0.5/24"
        ];
    a_bridge_without_ports_is_read: v2 "bridges: {br0: {dhcp4: true, parameters: {forward-delay: 0, stp: no}}}"
        => [
            "br0 at bridges.br0: bridge br0 of nothing stp=false",
            "  ipv4 dhcp"
        ];
    vlans_on_nics_and_on_vlans_are_read_in_any_order: v2 r#"
vlans: {v6: {id: 6, link: v5, dhcp4: true}, v5: {id: 5, link: lan0, macaddress: '52:54:00:00:00:09'}}
ethernets: {id0: {match: {macaddress: '52:54:00:00:00:01'}, set-name: lan0}}"#
        => [
            "v6 at vlans.v6: vlan 6 on 1 as=v6",
            "  ipv4 dhcp",
            "v5 at vlans.v5: vlan 5 on 2 as=v5 mac=52:54:00:00:00:09",
            "id0 at ethernets.id0: NIC 52:54:00:00:00:01 as=lan0"
        ];
    the_key_of_a_nic_has_precedence_over_the_name_of_another_nic: v2 r#"
ethernets: {a: {match: {macaddress: '52:54:00:00:00:01'}, set-name: b}, b: {match: {macaddress: '52:54:00:00:00:02'}, set-name: a}}
vlans: {a.5: {id: 5, link: a, dhcp4: true}}"#
        => [
            "a at ethernets.a: NIC 52:54:00:00:00:01 as=b",
            "b at ethernets.b: NIC 52:54:00:00:00:02 as=a",
            r#"a.5 at vlans."a.5": vlan 5 on 0 as=a.5"#,
            "  ipv4 dhcp"
        ];
}

// === Version 1: devices ===

means! {
    the_name_of_a_nic_with_a_mac_address_is_a_requested_name: v1 "- {type: physical, name: eth0, mac_address: 52:54:00:00:00:01, mtu: 1400, accept-ra: true, subnets: [{type: dhcp}]}"
        => [
            "eth0 at config[0]: NIC 52:54:00:00:00:01 as=eth0 mtu=1400",
            "  ipv4 dhcp",
            "  ipv6 slaac ra=true"
        ];
    a_nic_without_a_mac_address_is_identified_by_its_name: v1 "- {type: physical, name: eth0, subnets: [{type: manual}]}"
        => [
            "eth0 at config[0]: NIC eth0 without addresses"
        ];
    a_nic_without_a_name_is_identified_by_its_mac_address: v1 "- {type: physical, mac_address: '52:54:00:00:00:01', subnets: [{type: dhcp}]}"
        => [
            "config[0] at config[0]: NIC 52:54:00:00:00:01",
            "  ipv4 dhcp"
        ];
    an_infiniband_nic_is_identified_only_by_its_name: v1 "- {type: infiniband, name: ib0, subnets: [{type: dhcp}]}"
        => [
            "ib0 at config[0]: NIC ib0",
            "  ipv4 dhcp"
        ];
    a_bond_with_the_option_names_of_ifupdown_is_read: v1 r#"
- {type: bond, name: bond0, mac_address: '52:54:00:00:00:09', bond_interfaces: [eth0, eth1], params: {bond-mode: 802.3ad, bond_lacp_rate: 1, miimon: 100, bond_xmit-hash-policy: layer2}, subnets: [{type: dhcp4}]}
- {type: physical, name: eth0, mac_address: '52:54:00:00:00:01'}
- {type: physical, name: eth1, mac_address: '52:54:00:00:00:02'}"#
        => [
            "bond0 at config[0]: bond bond0 of 1+2 802.3ad lacp_rate=fast miimon=100 xmit_hash_policy=layer2 mac=52:54:00:00:00:09",
            "  ipv4 dhcp",
            "eth0 at config[1]: NIC 52:54:00:00:00:01 as=eth0",
            "eth1 at config[2]: NIC 52:54:00:00:00:02 as=eth1"
        ];
    a_bridge_with_the_option_names_of_ifupdown_is_read: v1 r#"
- {type: bridge, name: br0, bridge_interfaces: eth0, params: {bridge_stp: 'on', bridge_fd: 15, bridge_hello: 2, bridge_maxage: 12, bridge_ageing: 250, bridge_bridgeprio: 22, bridge_pathcost: [eth0 50], bridge_portprio: eth0 28, bridge_ports: [eth0], bridge_waitport: 1 eth0}, subnets: [{type: static, address: 10.0.0.5/24}]}
- {type: physical, name: eth0}"#
        => [
            "br0 at config[0]: bridge br0 of 1 stp=true ageing=250 delay=15 hello=2 max-age=12 priority=22 1:Some(50):Some(28)",
            "  ipv4 10.0.0.5/24",
            "eth0 at config[1]: NIC eth0"
        ];
    a_vlan_of_version_1_is_read: v1 r#"
- {type: vlan, name: eth0.5, vlan_link: eth0, vlan_id: 5, mac_address: '52:54:00:00:00:09', mtu: 1400, subnets: [{type: dhcp6}]}
- {type: physical, name: eth0, mac_address: '52:54:00:00:00:01'}"#
        => [
            "eth0.5 at config[0]: vlan 5 on 1 as=eth0.5 mtu=1400 mac=52:54:00:00:00:09",
            "  ipv6 dhcp6",
            "eth0 at config[1]: NIC 52:54:00:00:00:01 as=eth0"
        ];
    the_loopback_device_is_not_a_link_of_the_model: v1 r#"
- {type: loopback, name: lo, subnets: [{type: loopback, dns_nameservers: [8.8.8.8], dns_search: a.b}]}
- {type: physical, name: lo}
- {type: physical, name: eth0}"#
        => [
            "eth0 at config[2]: NIC eth0",
            "dns 8.8.8.8 a.b"
        ];
}

// === Version 1: subnets ===

means! {
    every_type_of_subnet_is_read: v1 r#"
- {type: physical, name: a, subnets: [{type: dhcp, metric: 5}]}
- {type: physical, name: b, subnets: [{type: dhcp4}, {type: dhcp6, metric: "7"}]}
- {type: physical, name: c, subnets: [{type: ipv6_slaac}]}
- {type: physical, name: d, subnets: [{type: ipv6_dhcpv6-stateless}, {type: ipv6_slaac}]}
- {type: physical, name: e, subnets: [{type: ipv6_dhcpv6-stateful}]}
- {type: physical, name: f, subnets: [{type: manual}]}
- {type: physical, name: g, subnets: {type: static6, address: '2001:db8::5/64'}}"#
        => [
            "a at config[0]: NIC a",
            "  ipv4 dhcp metric=5",
            "b at config[1]: NIC b",
            "  ipv4 dhcp",
            "  ipv6 dhcp6 metric=7",
            "c at config[2]: NIC c",
            "  ipv6 slaac",
            "d at config[3]: NIC d",
            "  ipv6 dhcp6-stateless",
            "e at config[4]: NIC e",
            "  ipv6 dhcp6",
            "f at config[5]: NIC f without addresses",
            "g at config[6]: NIC g",
            "  ipv6 2001:db8::5/64"
        ];
    netmasks_are_read_in_every_notation: v1 r#"
- type: physical
  name: a
  subnets:
  - {type: static, address: 10.0.0.5/24}
  - {type: static, address: 10.0.1.5/255.255.255.0}
  - {type: static, address: 10.0.2.5, netmask: 255.255.254.0}
  - {type: static, address: 10.0.3.5, netmask: 20}
  - {type: static, address: 10.0.4.5, prefix: 21}
  - {type: static, address: 10.0.5.5, netmask: '24'}
  - {type: static, ip_address: 10.0.6.5/16, netmask: 255.255.255.0}
  - {type: static, address: '2001:db8::5', netmask: 64}
  - {type: static6, address: '2001:db8::6', netmask: 'ffff:ffff::'}"#
        => [
            "a at config[0]: NIC a",
            "  ipv4 10.0.0.5/24 10.0.1.5/24 10.0.2.5/23 10.0.3.5/20 10.0.4.5/21 10.0.5.5/24 10.0.6.5/16",
            "  ipv6 2001:db8::5/64 2001:db8::6/32"
        ];
    a_gateway_and_the_routes_of_a_subnet_are_all_read: v1 r#"
- type: physical
  name: a
  subnets:
  - type: static
    address: 10.0.0.5/24
    gateway: 10.0.0.1
    metric: 50
    routes:
    - {network: 10.1.0.0, netmask: 255.255.0.0, gateway: 10.0.0.2}
    - {destination: 10.2.0.0/16, gateway: 10.0.0.3, metric: 7}
    - {to: 10.3.0.0/16, via: 10.0.0.4}
    - {network: 10.4.0.9/32, gateway: 10.0.0.6}
    - {network: 10.5.0.0, prefix: 16}
  - {type: static6, address: '2001:db8::5/64', gateway: 'fe80::1', routes: [{network: default}]}"#
        => [
            "a at config[0]: NIC a",
            "  ipv4 10.0.0.5/24",
            "  ipv6 2001:db8::5/64",
            "  route 0.0.0.0/0 via=10.0.0.1 metric=50 at config[0].subnets[0]",
            "  route 10.1.0.0/16 via=10.0.0.2 at config[0].subnets[0].routes[0]",
            "  route 10.2.0.0/16 via=10.0.0.3 metric=7 at config[0].subnets[0].routes[1]",
            "  route 10.3.0.0/16 via=10.0.0.4 at config[0].subnets[0].routes[2]",
            "  route 10.4.0.9/32 via=10.0.0.6 at config[0].subnets[0].routes[3]",
            "  route 10.5.0.0/16 at config[0].subnets[0].routes[4]",
            "  route ::/0 via=fe80::1 at config[0].subnets[1]",
            "  route ::/0 at config[0].subnets[1].routes[0]"
        ];
    name_servers_of_a_subnet_belong_to_the_link: v1 "- {type: physical, name: a, subnets: [{type: dhcp, dns_nameservers: 8.8.8.8 8.8.4.4, dns_search: a.b c.d}, {type: dhcp6, dns_nameservers: ['2001:4860:4860::8888', 8.8.8.8], dns_search: [e.f]}]}"
        => [
            "a at config[0]: NIC a",
            "  ipv4 dhcp",
            "  ipv6 dhcp6",
            "  dns 8.8.8.8 8.8.4.4 2001:4860:4860::8888 a.b c.d e.f"
        ];
    an_mtu_of_a_subnet_is_set_on_the_link: v1 "- {type: physical, name: a, subnets: [{type: dhcp, mtu: 1400}]}"
        => [
            "a at config[0]: NIC a mtu=1400",
            "  ipv4 dhcp"
        ];
}

// === Version 1: name servers and routes of the machine ===

means! {
    name_servers_belong_to_the_machine_or_to_the_named_device: v1 r#"
- {type: nameserver, address: 8.8.8.8, search: a.b}
- {type: nameserver, address: [1.1.1.1, 1.0.0.1], search: [c.d], interface: a}
- {type: nameserver, address: [9.9.9.9, 8.8.8.8], interface: lo}
- {type: physical, name: a, subnets: [{type: dhcp}]}"#
        => [
            "a at config[3]: NIC a",
            "  ipv4 dhcp",
            "  dns 1.1.1.1 1.0.0.1 c.d",
            "dns 8.8.8.8 9.9.9.9 a.b"
        ];
    a_route_of_the_machine_goes_to_the_link_whose_subnet_contains_the_gateway: v1 r#"
- {type: route, destination: 10.9.0.0/16, gateway: 10.1.0.1, metric: 3}
- {type: physical, name: a, subnets: [{type: static, address: 10.0.0.5/24}]}
- {type: physical, name: b, subnets: [{type: static, address: 10.1.0.5/24}]}
- {type: route, destination: 10.8.0.0, netmask: 255.255.0.0, gateway: 10.0.0.1}"#
        => [
            "a at config[1]: NIC a",
            "  ipv4 10.0.0.5/24",
            "  route 10.8.0.0/16 via=10.0.0.1 at config[3]",
            "b at config[2]: NIC b",
            "  ipv4 10.1.0.5/24",
            "  route 10.9.0.0/16 via=10.1.0.1 metric=3 at config[0]"
        ];
    a_route_of_the_machine_goes_to_the_only_link_of_its_family: v1 r#"
- {type: physical, name: a, subnets: [{type: dhcp}]}
- {type: physical, name: b, subnets: [{type: dhcp6}]}
- {type: route, destination: 0.0.0.0/0, gateway: 10.0.0.1}
- {type: route, id: x, destination: '::', gateway: 'fe80::1'}"#
        => [
            "a at config[0]: NIC a",
            "  ipv4 dhcp",
            "  route 0.0.0.0/0 via=10.0.0.1 at config[2]",
            "b at config[1]: NIC b",
            "  ipv6 dhcp6",
            "  route ::/0 via=fe80::1 at config[3]"
        ];
}
