//! Checks that cloud-init reads the allocated network from every document of the host.

use serde_json::{Value, json};

use super::program::{CloudInit, Question};
use crate::support::host_documents::{Families, document};

/// The families, the addresses of each interface, the default routes of the first interface, and the name servers.
type Network = (Families, [&'static [&'static str]; 2], &'static [&'static str], &'static [&'static str]);

const NETWORKS: [Network; 3] = [
    (Families::Ipv4, [&["192.168.1.100/24"], &["10.9.0.7/16"]], &["0.0.0.0/0 via 192.168.1.1"], &["8.8.8.8"]),
    (
        Families::Ipv6,
        [&["2620:0:860:2::10/64"], &["fd09::7/64"]],
        &["::/0 via 2620:0:860:2::1"],
        &["2001:4860:4860::8888"],
    ),
    (
        Families::Both,
        [&["192.168.1.100/24", "2620:0:860:2::10/64"], &["10.9.0.7/16", "fd09::7/64"]],
        &["0.0.0.0/0 via 192.168.1.1", "::/0 via 2620:0:860:2::1"],
        &["8.8.8.8", "2001:4860:4860::8888"],
    ),
];

/// Names and MAC addresses of the interfaces.
const NICS: [(&str, &str); 2] = [("eno101", "52:54:00:12:34:56"), ("eno102", "52:54:00:12:34:57")];

fn dns(servers: &[&str]) -> Value {
    json!({"search": [], "servers": servers})
}

/// Compares what cloud-init reads from the document of each machine with the allocated network. `of` makes the document
/// from the families, the number of interfaces, and whether the document has MAC addresses.
fn compare(is_openstack: bool, of: fn(Families, usize, bool) -> String) {
    let mut cloud_init = CloudInit::start();
    for (families, addresses, routes, servers) in NETWORKS {
        for (interfaces, has_mac_addresses) in [(1, false), (1, true), (2, false), (2, true)] {
            let mut links = serde_json::Map::new();
            for (at, (name, mac_address)) in NICS[..interfaces].iter().enumerate() {
                let is_first = at == 0;
                // OpenStack's format has name servers of the whole machine, network-config has name servers of a link.
                let own = if is_first && !is_openstack { dns(servers) } else { dns(&[]) };
                // cloud-init switches router advertisements off for a static IPv6 address of an OpenStack document.
                let accept_ra =
                    if is_openstack && !matches!(families, Families::Ipv4) { json!(false) } else { Value::Null };
                // This is the difference in row v2-everywhere of docs/cloud-init.md: cloud-init before 23.1 reads
                // `::/64`.
                let everywhere = if is_openstack { "::/0" } else { "::/64" };
                let routes = routes.iter().filter(|_| is_first).map(|route| route.replace("::/0", everywhere));
                let routes: Vec<String> = routes.collect();
                let link = json!({
                    "name": name, "addresses": addresses[at], "routes": routes, "dns": own, "accept_ra": accept_ra,
                    "dhcp4": false, "dynamic6": null, "mac": null, "metric4": null, "metric6": null, "mtu": null,
                });
                links.insert((if has_mac_addresses { mac_address } else { name }).to_string(), link);
            }
            let text = of(families, interfaces, has_mac_addresses);
            let expected = json!({"links": links, "routes": [], "dns": dns(servers)});
            assert_eq!(cloud_init.ask(is_openstack, Question::Text(&text)).1, expected, "{text}");
        }
    }
}

#[test]
fn cloud_init_reads_the_allocated_network_from_every_document_of_the_host() {
    compare(true, |families, interfaces, mac| document(families, interfaces, mac).text().to_owned());
}

#[test]
fn cloud_init_reads_the_allocated_network_from_every_network_config_of_the_host() {
    compare(false, |families, interfaces, mac| {
        document(families, interfaces, mac).to_network_config().unwrap().text().to_owned()
    });
}
