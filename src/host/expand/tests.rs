#![allow(clippy::unwrap_used, clippy::panic, reason = "a helper of a test may fail the test")]

use std::collections::BTreeMap;

use pnet_base::MacAddr;
use serde_json::{Value as Json, json};

use super::*;
use crate::formats::{Meaning, read_network};
use crate::host::claim::{Allocation, Claimant, Machine};
use crate::host::pool::{Settings, StaticRoute};
use crate::network::{Mtu, NetworkConfig, parse_mac_address};
use crate::render::{dracut, networkd};

const GATEWAYS: [&str; 2] = ["10.0.0.1", "fd00::1"];
const NAMESERVERS: [&str; 3] = ["10.0.0.53", "fd00::53", "10.0.1.53"];

fn allocation(interface: &str, addresses: &[&str]) -> Allocation {
    let machine = Machine::new("clusters", "w", "u");
    let claimant = Claimant { machine, interface: interface.parse().unwrap() };
    Allocation { claimant, addresses: addresses.iter().map(|address| address.parse().unwrap()).collect() }
}

/// The document of a template with one interface.
fn expand(template: &Template, addresses: &[&str], mac_address: Option<&str>) -> Result<Document, ExpandError> {
    let allocation = allocation("eno101", addresses);
    let mac_address = mac_address.and_then(parse_mac_address);
    template.expand(&[Grant { allocation: &allocation, settings: settings(&GATEWAYS), mac_address, is_named: true }])
}

/// Settings with these gateways, and with all name servers.
fn settings(gateways: &[&str]) -> Settings {
    let ips = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect();
    Settings { gateways: ips(gateways), nameservers: ips(&NAMESERVERS), ..Settings::default() }
}

fn template(template: &Json) -> Template {
    Template::parse(template.to_string().as_bytes()).unwrap()
}

fn expanded(of: &Json, addresses: &[&str]) -> (Json, Vec<String>) {
    let document = expand(&template(of), addresses, None).unwrap();
    let warnings = document.warnings().iter().map(ToString::to_string).collect();
    (serde_json::from_str(document.text()).unwrap(), warnings)
}

fn refusal(of: &Json, addresses: &[&str], mac_address: Option<&str>) -> String {
    expand(&template(of), addresses, mac_address).unwrap_err().to_string()
}

fn nic() -> Json {
    json!({"id": "eno101", "type": "phy"})
}

/// The NIC as the host writes it into a document.
fn named(name: &str) -> Json {
    json!({"id": name, "type": "phy", "name": name})
}

fn default_route(everywhere: &str, gateway: &str) -> Json {
    json!({"network": everywhere, "netmask": everywhere, "gateway": gateway})
}

fn dns(address: &str) -> Json {
    json!({"type": "dns", "address": address})
}

const BOTH: [&str; 2] = ["10.0.0.5/24", "fd00::5/64"];

#[test]
fn a_minimal_template_becomes_a_complete_document() {
    let template = Template::minimal([&"eno101".parse().unwrap()]);
    let document = expand(&template, &BOTH, Some("52:54:00:12:34:56")).unwrap();
    assert_eq!(document.warnings(), []);
    let expected = concat!(
        r#"{"links":[{"id":"eno101","type":"phy","ethernet_mac_address":"52:54:00:12:34:56","name":"eno101"}],"#,
        r#""networks":["#,
        r#"{"id":"network0","type":"ipv4","link":"eno101","ip_address":"10.0.0.5","netmask":"255.255.255.0","#,
        r#""routes":[{"network":"0.0.0.0","netmask":"0.0.0.0","gateway":"10.0.0.1"}],"network_id":"network0"},"#,
        r#"{"id":"network1","type":"ipv6","link":"eno101","ip_address":"fd00::5","netmask":"ffff:ffff:ffff:ffff::","#,
        r#""routes":[{"network":"::","netmask":"::","gateway":"fd00::1"}],"network_id":"network1"}],"#,
        r#""services":[{"type":"dns","address":"10.0.0.53"},{"type":"dns","address":"fd00::53"},"#,
        r#"{"type":"dns","address":"10.0.1.53"}]}"#,
    );
    assert_eq!(document.text(), expected);
}

#[test]
fn members_of_a_template_stay_unchanged() {
    let template = concat!(
        "zone: here\n",
        "links:\n- {vif_id: 7, id: eno101, mtu: 9000, type: ovs}\n- {id: eno102, type: phy}\n",
        "networks:\n",
        "- {network_id: n, link: eno101, id: n, tags: [a, {b: ~}], type: ipv4, ip_address: '', netmask: 24,\n",
        "   routes: [{network: 10.9.0.0, netmask: 255.255.0.0, gateway: 10.0.0.9}]}\n",
        "- {id: other, link: eno102, type: ipv4_dhcp}\n",
        "services: [{type: ntp, address: 10.0.0.123}, {type: dns, address: 10.0.0.2}]\n",
    );
    let document = expand(&Template::parse(template.as_bytes()).unwrap(), &BOTH, None).unwrap();
    let expected = concat!(
        r#"{"zone":"here","links":[{"vif_id":7,"id":"eno101","mtu":9000,"type":"ovs","name":"eno101"},"#,
        r#"{"id":"eno102","type":"phy","name":"eno102"}],"#,
        r#""networks":[{"network_id":"n","link":"eno101","id":"n","tags":["a",{"b":null}],"type":"ipv4","#,
        r#""ip_address":"10.0.0.5","netmask":24,"routes":[{"network":"10.9.0.0","netmask":"255.255.0.0","#,
        r#""gateway":"10.0.0.9"},{"network":"0.0.0.0","netmask":"0.0.0.0","gateway":"10.0.0.1"}]},"#,
        r#"{"id":"other","link":"eno102","type":"ipv4_dhcp"},"#,
        r#"{"id":"network2","type":"ipv6","link":"eno101","ip_address":"fd00::5","netmask":"ffff:ffff:ffff:ffff::","#,
        r#""routes":[{"network":"::","netmask":"::","gateway":"fd00::1"}],"network_id":"network2"}],"#,
        r#""services":[{"type":"ntp","address":"10.0.0.123"},{"type":"dns","address":"10.0.0.2"},"#,
        r#"{"type":"dns","address":"fd00::53"}]}"#,
    );
    assert_eq!(document.text(), expected);
    let warnings: Vec<String> = document.warnings().iter().map(ToString::to_string).collect();
    assert_eq!(warnings, [r#"services[0].type: unknown service "ntp", expected dns"#]);
}

#[test]
fn a_default_route_of_the_template_replaces_the_default_route_of_the_pool() {
    for given in [
        json!({"gateway": "10.0.0.9"}),
        json!({"routes": [{"network": "0.0.0.0/0", "gateway": "10.0.0.9"}]}),
        json!({"routes": [{"network": "default", "gateway": "10.0.0.9"}]}),
    ] {
        let mut entry = json!({"id": "n", "link": "eno101", "type": "ipv4"});
        entry.as_object_mut().unwrap().extend(given.as_object().unwrap().clone());
        let of = json!({"links": [nic()], "networks": [entry], "services": [dns("10.0.0.2"), dns("fd00::2")]});
        entry["ip_address"] = json!("10.0.0.5");
        entry["netmask"] = json!("255.255.255.0");
        let services = [dns("10.0.0.2"), dns("fd00::2")];
        let expected = json!({"links": [named("eno101")], "networks": [entry], "services": services});
        assert_eq!(expanded(&of, &["10.0.0.5/24"]), (expected, vec![]));
    }
}

#[test]
fn a_link_without_an_id_is_found_by_its_name_and_gets_the_name_as_its_id() {
    let of = json!({"links": [{"name": "eno101", "type": "phy"}], "services": [dns("10.0.0.2"), dns("fd00::2")]});
    let network = json!({"id": "network0", "type": "ipv4", "link": "eno101", "ip_address": "10.0.0.5",
                         "netmask": "255.255.255.0", "routes": [default_route("0.0.0.0", "10.0.0.1")],
                         "network_id": "network0"});
    let expected = json!({"links": [{"name": "eno101", "type": "phy", "id": "eno101"}], "networks": [network],
                          "services": [dns("10.0.0.2"), dns("fd00::2")]});
    assert_eq!(expanded(&of, &["10.0.0.5/24"]), (expected, vec![]));
}

macro_rules! names {
    ($($name:ident: $links:tt => $names:tt;)*) => {
        $(#[test] fn $name() {
            let (document, _) = expanded(&json!({"links": $links, "services": [dns("10.0.0.2")]}), &["10.0.0.5/24"]);
            let names: Vec<&Json> = document["links"].as_array().unwrap().iter().map(|link| &link["name"]).collect();
            assert_eq!(json!(names), json!($names));
        })*
    };
}

names! {
    a_nic_gets_its_id_as_its_name: [{"id": "eno101", "type": "phy"}] => ["eno101"];
    a_nic_of_the_older_types_gets_a_name: [{"id": "eno101", "type": "vif"}] => ["eno101"];
    a_name_without_a_value_is_replaced: [{"id": "eno101", "type": "phy", "name": null}] => ["eno101"];
    a_name_in_the_template_is_kept: [{"id": "eno101", "type": "phy", "name": "lan0"}] => ["lan0"];
    an_allocated_nic_with_a_mac_address_gets_a_name:
        [{"id": "eno101", "type": "phy", "ethernet_mac_address": "52:54:00:12:34:56"}] => ["eno101"];
    the_id_of_another_nic_with_a_mac_address_is_not_its_name:
        [{"id": "eno101", "type": "phy"}, {"id": "a", "type": "phy", "ethernet_mac_address": "52:54:00:12:34:57"}]
        => ["eno101", null];
    a_bond_gets_no_name_but_its_member_gets_a_name:
        [{"id": "eno101", "type": "bond", "bond_mode": "802.3ad", "bond_links": ["a"]}, {"id": "a", "type": "phy"}]
        => [null, "a"];
    a_vlan_gets_no_name: [{"id": "eno101", "type": "vlan", "vlan_link": "a", "vlan_id": 7}, {"id": "a", "type": "phy"}]
        => [null, "a"];
    an_id_that_no_interface_can_have_is_not_a_name: [{"id": "eno101", "type": "phy"}, {"id": "a b", "type": "phy"}]
        => ["eno101", null];
}

#[test]
fn a_new_network_gets_an_id_that_no_other_network_has() {
    let of = json!({"links": [nic(), {"id": "eno102", "type": "phy"}],
                    "networks": [{"id": "network1", "link": "eno102", "type": "ipv4_dhcp"}]});
    let (document, _) = expanded(&of, &["10.0.0.5/24"]);
    assert_eq!(document["networks"][1]["id"], json!("network2"));
}

#[test]
fn several_interfaces_share_one_document_with_one_default_route_of_each_family() {
    let (first, second) =
        (allocation("eno101", &["10.0.0.5/24"]), allocation("eno102", &["10.1.0.5/16", "fd01::5/48"]));
    let grant = |allocation, gateways: &[&str]| {
        let settings = Settings { nameservers: vec!["10.0.0.53".parse().unwrap()], ..settings(gateways) };
        Grant { allocation, settings, mac_address: None, is_named: true }
    };
    let template = Template::minimal([&first.claimant.interface, &second.claimant.interface]);
    let grants = [grant(&first, &["10.0.0.1"]), grant(&second, &["10.1.0.1", "fd01::1"])];
    let document = template.expand(&grants).unwrap();
    let network = |id: &str, kind: &str, link: &str, address: &str, netmask: &str, routes: Vec<Json>| {
        json!({"id": id, "type": kind, "link": link, "ip_address": address, "netmask": netmask, "routes": routes,
               "network_id": id})
    };
    let expected = json!({
        "links": [named("eno101"), named("eno102")],
        "networks": [
            network("network0", "ipv4", "eno101", "10.0.0.5", "255.255.255.0", vec![default_route("0.0.0.0", "10.0.0.1")]),
            network("network1", "ipv4", "eno102", "10.1.0.5", "255.255.0.0", vec![]),
            network("network2", "ipv6", "eno102", "fd01::5", "ffff:ffff:ffff::", vec![default_route("::", "fd01::1")]),
        ],
        "services": [dns("10.0.0.53")],
    });
    assert_eq!(serde_json::from_str::<Json>(document.text()).unwrap(), expected);
    let warnings = |document: &Document| document.warnings().iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(
        warnings(&document),
        [r#"gateway of interface eno102: "10.1.0.1" ignored, interface eno101 already has the default route"#]
    );
    let reversed = template.expand(&[grants[1].clone(), grants[0].clone()]).unwrap();
    assert_eq!(
        warnings(&reversed),
        [r#"gateway of interface eno101: "10.0.0.1" ignored, interface eno102 already has the default route"#]
    );
    let twice = template.expand(&[grants[0].clone(), grants[0].clone()]);
    assert_eq!(twice.unwrap_err().to_string(), "interface eno101 is given twice, expected once");
}

/// Returns the document of a template with the settings of a pool, and the network that the guest reads from it.
fn with_settings(of: &Json) -> (Json, NetworkConfig) {
    let allocation = allocation("eno101", &BOTH);
    let route = |to: &str, via: &str| StaticRoute { to: to.parse().unwrap(), via: via.parse().unwrap() };
    let settings = Settings {
        search_domains: ["b.example.com", "example.com"].map(|domain| domain.parse().unwrap()).into(),
        mtu: Some(Mtu::try_from(9000).unwrap()),
        routes: vec![
            route("10.9.0.0/16", "10.0.0.254"),
            route("fd09::/48", "fe80::9"),
            route("10.8.0.1/32", "10.0.0.8"),
        ],
        ..settings(&[])
    };
    let grant = Grant { allocation: &allocation, settings, mac_address: None, is_named: true };
    let document = template(of).expand(&[grant]).unwrap();
    assert_eq!(document.warnings(), []);
    let Meaning::Network(network) = read_network(document.text().as_bytes()).meaning else { panic!("{document:?}") };
    (serde_json::from_str(document.text()).unwrap(), network)
}

#[test]
fn every_setting_of_a_pool_is_in_the_document_and_the_guest_reads_it() {
    let (document, network) = with_settings(&json!({"links": [nic()]}));
    let route = |network: &str, netmask: &str, gateway: &str| json!({"network": network, "netmask": netmask, "gateway": gateway});
    let expected = json!({
        "links": [{"id": "eno101", "type": "phy", "mtu": 9000, "name": "eno101"}],
        "networks": [
            {
                "id": "network0", "type": "ipv4", "link": "eno101", "ip_address": "10.0.0.5", "netmask": "255.255.255.0",
                "routes": [route("10.9.0.0", "255.255.0.0", "10.0.0.254"), route("10.8.0.1", "255.255.255.255", "10.0.0.8")],
                "network_id": "network0", "dns_search": ["b.example.com", "example.com"],
            },
            {
                "id": "network1", "type": "ipv6", "link": "eno101", "ip_address": "fd00::5",
                "netmask": "ffff:ffff:ffff:ffff::", "routes": [route("fd09::", "ffff:ffff:ffff::", "fe80::9")],
                "network_id": "network1",
            },
        ],
        "services": [dns("10.0.0.53"), dns("fd00::53"), dns("10.0.1.53")],
    });
    assert_eq!(document, expected);
    let link = &network.links()[0];
    let routes: Vec<String> =
        link.routes.iter().map(|route| format!("{} via {}", route.destination(), route.gateway().unwrap())).collect();
    let search: Vec<String> = network.dns.search.iter().map(|domain| domain.value.to_string()).collect();
    assert_eq!(
        (routes, search, link.mtu.map(i64::from)),
        (
            ["10.9.0.0/16 via 10.0.0.254", "10.8.0.1/32 via 10.0.0.8", "fd09::/48 via fe80::9"]
                .map(str::to_owned)
                .into(),
            ["b.example.com", "example.com"].map(str::to_owned).into(),
            Some(9000)
        )
    );
}

#[test]
fn a_machine_whose_subnet_is_one_address_reaches_its_gateway_on_the_link() {
    let allocation = allocation("eno101", &["203.0.113.5/32", "2001:db8::5/128"]);
    let settings = Settings { nameservers: Vec::new(), ..settings(&["169.254.1.1", "2001:db8:1::1"]) };
    let grant = Grant { allocation: &allocation, settings, mac_address: None, is_named: true };
    let document = Template::minimal([&allocation.claimant.interface]).expand(&[grant]).unwrap();
    assert_eq!(document.warnings(), []);
    let Meaning::Network(network) = read_network(document.text().as_bytes()).meaning else { panic!("{document:?}") };
    let mut diagnostics = Diagnostics::default();
    // NetworkManager adds a route to a gateway outside the subnets of the interface.
    assert_eq!(
        dracut::render(&network, &mut diagnostics).line,
        "ip=203.0.113.5::169.254.1.1:32::eno101:none ip=[2001:db8::5]::[2001:db8:1::1]:128::eno101:none"
    );
    let files = networkd::render(&network, &mut diagnostics).files;
    assert_eq!(files.iter().map(|file| file.text.matches("GatewayOnLink=yes").count()).collect::<Vec<_>>(), [2]);
    let config = document.to_network_config().unwrap();
    let config: Json = serde_json::from_str(config.text()).unwrap();
    let routes = json!([
        {"to": "0.0.0.0/0", "via": "169.254.1.1", "on-link": true}, {"to": "::/0", "via": "2001:db8:1::1", "on-link": true},
    ]);
    assert_eq!((&config["ethernets"]["eno101"]["routes"], diagnostics.kept()), (&routes, &[][..]));
}

#[test]
fn a_document_has_no_address_with_prefix_length_0() {
    let error = refusal(&json!({"links": [nic()]}), &["10.0.0.5/0"], None);
    assert_eq!(error, "interface eno101 is given 10.0.0.5/0, expected a prefix length: 0 is for claims alone");
}

#[test]
fn a_setting_of_the_template_takes_precedence_over_the_setting_of_the_pool() {
    let entry = json!({
        "id": "n", "link": "eno101", "type": "ipv4",
        "routes": [{"network": "10.9.0.0", "netmask": "255.255.0.0", "gateway": "10.0.0.3"}],
    });
    let link = json!({"id": "eno101", "type": "phy", "mtu": 1500});
    let service = json!({"type": "dns", "address": "10.0.0.2", "search": ["other.example.com"]});
    let (document, network) = with_settings(&json!({"links": [link], "networks": [entry], "services": [service]}));
    let routes: Vec<&Json> = document["networks"][0]["routes"].as_array().unwrap().iter().collect();
    assert_eq!(
        (routes.iter().map(|route| &route["gateway"]).collect::<Vec<_>>(), &document["links"][0]["mtu"]),
        (vec![&json!("10.0.0.3"), &json!("10.0.0.8")], &json!(1500))
    );
    let search: Vec<String> = network.dns.search.iter().map(|domain| domain.value.to_string()).collect();
    assert_eq!(search, ["other.example.com"]);
}

#[test]
fn the_mac_address_of_the_template_must_be_that_of_the_machine() {
    let with = |mac_address: Json| {
        template(&json!({"links": [{"id": "eno101", "type": "phy", "ethernet_mac_address": mac_address}]}))
    };
    let mac_address = Some("52:54:00:12:34:ab");
    for same in [json!("52-54-00-12-34-AB"), json!("52:54:00:12:34:ab")] {
        let document = expand(&with(same.clone()), &BOTH, mac_address).unwrap();
        let document: Json = serde_json::from_str(document.text()).unwrap();
        assert_eq!(document["links"][0]["ethernet_mac_address"], same);
    }
    for absent in [Json::Null, json!("")] {
        let document = expand(&with(absent), &BOTH, mac_address).unwrap();
        let document: Json = serde_json::from_str(document.text()).unwrap();
        assert_eq!(document["links"][0]["ethernet_mac_address"], json!("52:54:00:12:34:ab"));
    }
    let other = expand(&with(json!("52:54:00:12:34:cd")), &BOTH, mac_address).unwrap_err().to_string();
    let expected =
        r#"links[0].ethernet_mac_address: other MAC address "52:54:00:12:34:cd", expected 52:54:00:12:34:ab"#;
    assert_eq!(other, expected);
}

fn facts(of: &Json) -> Result<TemplateFacts, String> {
    template(of).facts(&"eno101".parse().unwrap()).map_err(|error| error.to_string())
}

#[test]
fn the_prefix_length_of_a_template_comes_from_its_netmask() {
    let prefixes = |networks: Json| {
        let facts = facts(&json!({"links": [nic()], "networks": networks}))?;
        Ok::<_, String>([Family::Ipv4, Family::Ipv6].map(|family| facts.prefixes.get(&family).copied()))
    };
    let entry = |kind: &str, netmask: &str| json!({"link": "eno101", "type": kind, "netmask": netmask});
    assert_eq!(prefixes(json!([])), Ok([None, None]));
    let both = json!([entry("ipv6", "ffff:ffff::"), entry("ipv4", "255.255.254.0"), entry("ipv4_dhcp", "255.0.0.0")]);
    assert_eq!(prefixes(both), Ok([Some(23), Some(32)]));
    let broken = r#"networks[0].netmask: invalid netmask "255.0.255.0", expected a netmask without holes, or a prefix length above 0"#;
    assert_eq!(prefixes(json!([entry("ipv4", "255.0.255.0")])), Err(broken.to_owned()));
    let none = r#"links: no link for the interface "eno101", expected one link with this id or name"#;
    assert_eq!(facts(&json!({})), Err(none.to_owned()));
}

#[test]
fn the_facts_of_a_template_have_every_address_that_it_names() {
    let of = json!({
        "links": [nic(), {"id": "eno102", "type": "phy"}],
        "networks": [
            {"id": "a", "link": "eno101", "type": "ipv4", "netmask": "255.255.255.248", "gateway": "192.168.1.1",
             "routes": [{"network": "10.0.0.0", "netmask": "255.0.0.0", "gateway": "192.168.1.4"}],
             "dns_nameservers": ["192.168.1.3"], "services": [{"type": "dns", "address": "fe80::2"}]},
            {"id": "b", "link": "eno102", "type": "ipv4_dhcp", "gateway": "192.168.1.6"},
        ],
        "services": [{"type": "dns", "address": "192.168.1.2"}, {"type": "ntp", "address": "192.168.1.7"}],
    });
    let set = |addresses: &[&str]| addresses.iter().map(|address| address.parse().unwrap()).collect();
    let expected = TemplateFacts {
        prefixes: BTreeMap::from([(Family::Ipv4, 29)]),
        gateways: set(&["192.168.1.1", "192.168.1.4"]),
        nameservers: set(&["192.168.1.2", "192.168.1.3"]),
        addresses: set(&["192.168.1.6", "192.168.1.7"]),
        unread: Vec::new(),
    };
    assert_eq!(facts(&of), Ok(expected));
}

#[test]
fn a_template_has_no_address_that_all_of_its_machines_would_use() {
    let of = json!({
        "links": [
            {"id": "eno101", "type": "phy", "ethernet_mac_address": "52:54:00:12:34:01"},
            {"id": "b", "type": "bond", "bond_links": ["p"], "bond_mode": "802.3ad", "ethernet_mac_address": "02:00:00:00:00:01"},
            {"id": "p", "type": "phy"},
            {"id": "v", "type": "vlan", "vlan_link": "b", "vlan_id": 7, "vlan_mac_address": "02:00:00:00:00:07"},
        ],
        "networks": [
            {"id": "a", "link": "eno101", "type": "ipv4"},
            {"id": "b", "link": "b", "type": "ipv4", "ip_address": "10.9.0.7/16"},
            {"id": "c", "link": "b", "type": "ipv6", "ip_address": "fe80::7/64"},
            {"id": "d", "link": "v", "type": "static", "ip_address": "169.254.0.7", "netmask": "255.255.0.0"},
        ],
    });
    let refused = concat!(
        r#"links[1].ethernet_mac_address: MAC address in a template "02:00:00:00:00:01", expected no MAC address: a template serves many machines; "#,
        r#"links[3].vlan_mac_address: MAC address in a template "02:00:00:00:00:07", expected no MAC address: a template serves many machines; "#,
        r#"networks[1].ip_address: address in a template "10.9.0.7/16", expected no address: a template serves many machines; "#,
        r#"networks[3].ip_address: address in a template "169.254.0.7", expected no address: a template serves many machines"#,
    );
    assert_eq!((facts(&of), refusal(&of, &["10.0.0.5/24"], None)), (Err(refused.to_owned()), refused.to_owned()));
}

#[test]
fn each_part_of_a_link_that_afterburn_does_not_read_is_a_warning() {
    let of = json!({"links": [
        {"id": "eno101", "type": "vlan", "vlan_link": "b", "vlan_id": 7, "mtu": 1400},
        {"id": "b", "type": "bond", "bond_links": ["p", "q"], "bond_mode": "active-backup"},
        {"id": "p", "type": "phy", "mtu": 9000},
        {"id": "q", "type": "phy", "mtu": null},
    ]});
    let unread: Vec<String> = facts(&of).unwrap().unread.iter().map(ToString::to_string).collect();
    assert_eq!(
        unread,
        [
            r#"links[0].type: not read by afterburn "vlan", expected an image with glowplug or cloud-init"#,
            r#"links[1].type: not read by afterburn "bond", expected an image with glowplug or cloud-init"#,
            r#"links[2].mtu: not read by afterburn "9000", expected an image with glowplug or cloud-init"#,
        ]
    );
}

#[test]
fn a_template_of_nics_alone_has_no_warning() {
    assert_eq!(facts(&json!({"links": [nic(), {"id": "eno102", "type": "phy"}]})).unwrap().unread, []);
}

#[test]
fn a_template_with_a_repeated_key_is_refused() {
    let refusal = Template::parse(br#"{"links": [], "networks": [], "links": []}"#).unwrap_err().to_string();
    assert_eq!(refusal, r#"line 1 column 37: repeated key "links", expected each key of a mapping once"#);
}

macro_rules! refuses {
    ($($name:ident: $template:expr, $addresses:expr => $refusal:expr;)*) => {
        $(#[test] fn $name() { assert_eq!(refusal(&$template, &$addresses, None), $refusal); })*
    };
}

fn networks(networks: Json) -> Json {
    json!({"links": [nic()], "networks": networks})
}

fn network(kind: &str, more: Json) -> Json {
    let mut network = json!({"id": "n", "link": "eno101", "type": kind});
    network.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    network
}

refuses! {
    a_template_without_the_interface: json!({"links": [{"id": "eno102", "type": "phy"}]}), BOTH
        => r#"links: no link for the interface "eno101", expected one link with this id or name"#;
    a_template_with_two_links_for_the_interface: json!({"links": [nic(), {"id": "a", "name": "eno101", "type": "phy"}]}), BOTH
        => r#"links[1]: second link of the interface "eno101", expected one link with this id or name: links[0] has it already"#;
    links_that_are_no_list: json!({"links": "eno101"}), BOTH
        => r#"links: invalid list "eno101", expected an array"#;
    services_that_are_no_list: json!({"links": [nic()], "services": "8.8.8.8"}), BOTH
        => r#"services: invalid list "8.8.8.8", expected an array"#;
    an_address_in_the_template: networks(json!([network("ipv4", json!({"ip_address": "10.0.0.9"}))])), BOTH
        => r#"networks[0].ip_address: address in a template "10.0.0.9", expected no address: a template serves many machines"#;
    a_family_without_an_address: networks(json!([network("ipv4", json!({})), network("ipv6", json!({}))])), ["10.0.0.5/24"]
        => r#"networks[1].type: no IPv6 address for a network of type "ipv6", expected one from the pool"#;
    dhcp_together_with_an_address: networks(json!([network("ipv4_dhcp", json!({}))])), BOTH
        => r#"networks[0].type: DHCP together with an address of the pool "ipv4_dhcp", expected a network that takes the address of the pool, such as ipv4 or ipv6, or no network of this family"#;
    a_second_network_of_a_family: networks(json!([network("ipv4", json!({})), network("static", json!({}))])), BOTH
        => r#"networks[1]: second IPv4 network, after networks[0], on "eno101", expected one for each family"#;
    a_netmask_that_differs_from_that_of_the_pool: networks(json!([network("ipv4", json!({"netmask": "255.255.0.0"}))])), BOTH
        => r#"networks[0].netmask: other netmask than the pool's "255.255.0.0", expected 255.255.255.0"#;
    all_errors_of_a_template_at_once: networks(json!([network("ipv6", json!({"ip_address": "fd00::9"})), network("ipv4", json!({"netmask": 16}))])), BOTH
        => r#"networks[0].ip_address: address in a template "fd00::9", expected no address: a template serves many machines; networks[1].netmask: other netmask than the pool's "16", expected 255.255.255.0"#;
    a_document_that_the_guest_refuses: networks(json!([network("ipv4", json!({"gateway": "fd00::1"}))])), BOTH
        => r#"the guest would refuse the document: networks[0].gateway: invalid gateway "fd00::1", expected the IPv4 address of a router"#;
    a_document_that_disables_the_network: json!({"links": [nic()], "config": "disabled"}), ["10.0.0.5/24"]
        => "the guest would read other addresses on eno101: none, expected 10.0.0.5/24";
    two_links_for_one_nic: json!({"links": [{"id": "a", "type": "phy", "ethernet_mac_address": "52:54:00:12:34:56", "mtu": 1500}, {"id": "eno101", "type": "phy", "ethernet_mac_address": "52:54:00:12:34:56"}]}), ["10.0.0.5/24"]
        => "the guest would read other addresses on eno101: none, expected 10.0.0.5/24";
    no_address: json!({"links": [nic()]}), []
        => "interface eno101 is given none, expected one address, or one of each family";
    two_addresses_of_one_family: json!({"links": [nic()]}), ["10.0.0.5/24", "10.0.0.6/24"]
        => "interface eno101 is given 10.0.0.5/24, 10.0.0.6/24, expected one address, or one of each family";
}

#[test]
fn a_vlan_cannot_have_the_mac_address_of_the_machine() {
    let of = json!({"links": [{"id": "a", "type": "phy"}, {"id": "eno101", "type": "vlan", "vlan_link": "a", "vlan_id": 7}]});
    let expected = r#"links[1].type: MAC address for "vlan", expected a NIC or a bond"#;
    assert_eq!(refusal(&of, &BOTH, Some("52:54:00:12:34:56")), expected);
}

#[test]
fn an_invalid_template_is_refused() {
    let refusal = |text: &str| Template::parse(text.as_bytes()).unwrap_err().to_string();
    assert_eq!(refusal("[]"), r#"document: invalid document "an array", expected an object"#);
    assert_eq!(refusal(""), r#"document: invalid document "null", expected an object"#);
    for network_config in ["{version: 2, ethernets: {eno101: {dhcp4: true}}}", "network: {version: 1, config: []}"] {
        let expected = "document: not a network_data.json, expected OpenStack's format with links";
        assert_eq!(refusal(network_config), expected);
    }
    let parsed = |text: &str| Template::parse(text.as_bytes()).unwrap();
    assert_eq!(parsed("{services: []}"), parsed(r#"{"services": []}"#));
    assert_eq!(
        refusal(r#"{"links": [{"id": "a", "x": 1.5}], "y": [18446744073709551615]}"#),
        "links[0].x: number that cannot be kept \"1.5\", expected a whole number of 64 bits, or a string; \
         y[0]: number that cannot be kept \"18446744073709552000\", expected a whole number of 64 bits, or a string"
    );
    assert_eq!(
        refusal("{\"links\": [1}"),
        r#"line 1 column 13: not readable as JSON "expected `,` or `]`", expected a JSON or YAML document"#
    );
}

// === network-config ===

/// The network-config of a template with one interface, and the warnings about the document.
fn network_config(of: &Json, addresses: &[&str], mac_address: Option<&str>) -> (String, Vec<String>) {
    let document = expand(&template(of), addresses, mac_address).unwrap().to_network_config().unwrap();
    (document.text().to_owned(), document.warnings().iter().map(ToString::to_string).collect())
}

#[test]
fn a_network_config_has_the_network_of_the_document() {
    let (text, warnings) = network_config(&json!({"links": [nic()]}), &BOTH, Some("52:54:00:12:34:56"));
    let expected = concat!(
        r#"{"version":2,"ethernets":{"eno101":{"match":{"macaddress":"52:54:00:12:34:56"},"#,
        r#""set-name":"eno101","addresses":["10.0.0.5/24","fd00::5/64"],"#,
        r#""routes":[{"to":"0.0.0.0/0","via":"10.0.0.1"},{"to":"::/0","via":"fd00::1"}],"#,
        r#""nameservers":{"addresses":["10.0.0.53","fd00::53","10.0.1.53"]}}}}"#,
    );
    assert_eq!((text.as_str(), warnings), (expected, vec![]));
}

#[test]
fn a_nic_without_a_mac_address_has_its_name_as_the_key_of_its_section() {
    let of = json!({"links": [{"id": "a", "name": "eno101", "type": "phy", "mtu": 9000}]});
    let (text, _) = network_config(&of, &["10.0.0.5/24"], None);
    let expected = concat!(
        r#"{"version":2,"ethernets":{"eno101":{"mtu":9000,"addresses":["10.0.0.5/24"],"#,
        r#""routes":[{"to":"0.0.0.0/0","via":"10.0.0.1"}],"#,
        r#""nameservers":{"addresses":["10.0.0.53","fd00::53","10.0.1.53"]}}}}"#,
    );
    assert_eq!(text, expected);
}

#[test]
fn a_name_is_set_on_the_nic_that_has_the_mac_address() {
    let of = json!({"links": [{"id": "eno101", "name": "lan0", "type": "phy"}], "services": [dns("10.0.0.2")]});
    let (text, _) = network_config(&of, &["fd00::5/64"], Some("52:54:00:12:34:56"));
    let expected = concat!(
        r#"{"version":2,"ethernets":{"lan0":{"match":{"macaddress":"52:54:00:12:34:56"},"set-name":"lan0","#,
        r#""addresses":["fd00::5/64"],"routes":[{"to":"::/0","via":"fd00::1"}],"#,
        r#""nameservers":{"addresses":["10.0.0.2","fd00::53"]}}}}"#,
    );
    assert_eq!(text, expected);
}

#[test]
fn a_gateway_outside_the_subnet_is_on_the_link() {
    let (text, _) = network_config(&json!({"links": [nic()]}), &["10.0.0.5/32"], None);
    let routes = r#""routes":[{"to":"0.0.0.0/0","via":"10.0.0.1","on-link":true}]"#;
    assert!(text.contains(routes), "{text}");
}

#[test]
fn bonds_and_vlans_have_sections_of_their_own() {
    let of = json!({
        "links": [
            {"id": "eno101", "type": "vlan", "vlan_link": "b", "vlan_id": 7},
            {"id": "b", "type": "bond", "bond_links": ["p", "q"], "bond_mode": "active-backup", "bond_miimon": 100,
             "bond_primary": "q", "bond_use_carrier": 0, "mtu": 9000},
            {"id": "p", "type": "phy", "ethernet_mac_address": "52:54:00:12:34:01"},
            {"id": "q", "type": "phy", "ethernet_mac_address": "52:54:00:12:34:02"},
        ],
        "networks": [{"id": "n", "link": "b", "type": "ipv4_dhcp"}, {"id": "m", "link": "b", "type": "ipv6_slaac"}],
        "services": [dns("10.0.0.2"), dns("fd00::2")],
    });
    let (text, warnings) = network_config(&of, &["10.0.0.5/24"], None);
    let expected = concat!(
        r#"{"version":2,"vlans":{"bond0.7":{"id":7,"link":"bond0","#,
        r#""addresses":["10.0.0.5/24"],"routes":[{"to":"0.0.0.0/0","via":"10.0.0.1"}],"#,
        r#""nameservers":{"addresses":["10.0.0.2","fd00::2"]}}},"#,
        r#""ethernets":{"p":{"match":{"macaddress":"52:54:00:12:34:01"}},"q":{"match":{"macaddress":"52:54:00:12:34:02"}}},"#,
        r#""bonds":{"bond0":{"interfaces":["p","q"],"#,
        r#""parameters":{"mode":"active-backup","mii-monitor-interval":100,"primary":"q"},"#,
        r#""mtu":9000,"dhcp4":true,"accept-ra":true}}}"#,
    );
    let ignored = r#"links[1].bond_use_carrier: "0" ignored, network-config cannot express it"#;
    assert_eq!((text.as_str(), warnings), (expected, vec![ignored.to_owned()]));
}

#[test]
fn a_setting_that_network_config_cannot_express_is_a_warning() {
    let of = json!({
        "links": [nic(), {"id": "other", "type": "phy"}],
        "networks": [{"id": "n", "link": "other", "type": "ipv6_dhcpv6-stateless"}],
        "services": [dns("10.0.0.2"), dns("fd00::2")],
    });
    let (text, warnings) = network_config(&of, &["10.0.0.5/24"], None);
    assert!(text.contains(r#""other":{"accept-ra":true}"#), "{text}");
    let stateless = r#"links[1]: "dhcp6-stateless" ignored, network-config cannot express it: router advertisements alone give the settings"#;
    assert_eq!(warnings, [stateless]);
}

#[test]
fn a_name_of_two_nics_is_refused() {
    let of = json!({"links": [
        {"id": "eno101", "name": "lan0", "type": "phy"},
        {"id": "b", "name": "lan0", "type": "phy", "ethernet_mac_address": "52:54:00:12:34:01", "mtu": 1500},
    ]});
    let error = expand(&template(&of), &["10.0.0.5/24"], Some("52:54:00:12:34:56")).unwrap().to_network_config();
    let repeated = r#"links[1].name: repeated name "lan0", expected a name that no other link has"#;
    assert_eq!(error.unwrap_err().to_string(), repeated);
}

#[test]
fn a_secret_can_contain_a_network_config() {
    let document = expand(&Template::minimal([&"eno101".parse().unwrap()]), &BOTH, None).unwrap();
    let document = document.to_network_config().unwrap();
    let machine = Machine::new("clusters", "worker-0", "u-0");
    let start = "eyJ2ZXJzaW9uIjoyLCJldGhlcm5ldHMiOnsiZW5vMTAxIjp7ImFkZHJlc3NlcyI6";
    assert!(document.secret(&machine)["data"]["networkdata"].as_str().unwrap().starts_with(start));
    assert!(document.fits_inline());
}

// === Secret ===

#[test]
fn a_secret_has_the_key_that_kubevirt_reads() {
    let document = Document::new(r#"{"links":[]}"#.to_owned(), Diagnostics::default());
    assert_eq!(
        document.secret(&Machine::new("clusters", "worker-0", "u-0")),
        json!({
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {
                "name": "worker-0-networkdata",
                "namespace": "clusters",
                "labels": {
                    "app.kubernetes.io/managed-by": "glowplug",
                    "capk.cluster.x-k8s.io/kubevirt-machine-name": "worker-0",
                    "capk.cluster.x-k8s.io/kubevirt-machine-namespace": "clusters",
                },
                "ownerReferences": [{
                    "apiVersion": "infrastructure.cluster.x-k8s.io/v1alpha1",
                    "kind": "KubevirtMachine",
                    "name": "worker-0",
                    "uid": "u-0",
                }],
            },
            "immutable": true,
            "type": "Opaque",
            "data": {"networkdata": "eyJsaW5rcyI6W119"},
        })
    );
}

#[test]
fn only_a_document_of_more_than_2048_bytes_needs_a_secret() {
    let document = |bytes: usize| Document::new("x".repeat(bytes), Diagnostics::default());
    assert_eq!([2047, 2048, 2049].map(|bytes| document(bytes).fits_inline()), [true, true, false]);
}

#[test]
fn a_nic_that_only_its_mac_address_identifies_has_no_name() {
    let allocation = allocation("eno101", &["192.168.1.100/24"]);
    let mac_address = Some(MacAddr::new(2, 0, 0, 0, 0, 1));
    let grant = Grant { allocation: &allocation, settings: Settings::default(), mac_address, is_named: false };
    let interface = allocation.claimant.interface;
    let document = Template::minimal([&interface]).expand(&[grant]).unwrap();
    let links = r#"{"links":[{"id":"eno101","type":"phy","ethernet_mac_address":"02:00:00:00:00:01"}],"#;
    assert!(document.text().starts_with(links), "{}", document.text());
}
