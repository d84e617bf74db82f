//! Reads what an instance says about its guest: whether the guest runs, and the addresses that the guest reports.
//! Nothing else of the instance is kept.
//!
//! KubeVirt lets users write the status of an instance only in phase Pending, so no user can invent the phase Running.
//! Reported addresses are reserved only in this phase. The guest itself can report any address.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use glowplug::network::Family;
use serde_json::Value;

use crate::cluster::object::Object;
use crate::kinds::virtual_machine::{by_name, items, network_of};

/// Maximum number of addresses, and of networks, that are read from an instance.
pub(crate) const MOST_REPORTED: usize = 256;
/// Maximum number of bytes of an interface name that is kept.
const LONGEST_NAME: usize = 256;

/// The guest of an instance.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Guest {
    /// UID of the instance.
    pub(crate) uid: String,
    pub(crate) life: Life,
    /// The addresses that the guest reports, by the network of its interfaces.
    pub(crate) networks: BTreeMap<String, Reported>,
    /// Addresses of interfaces without a network. Such an interface exists only inside the guest.
    pub(crate) inside: BTreeSet<IpAddr>,
}

/// Whether a guest runs.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Life {
    /// The guest does not run yet, or its state is unknown.
    Starting,
    /// The instance is in phase Running.
    Running,
    /// The instance is in a final phase.
    Ended,
}

/// The addresses that a guest reports on a network.
///
/// KubeVirt merges all interfaces of the guest with one MAC address into one entry: an interface and its VLANs, bridges
/// and bonds. The entry has the name of the last of them. Before KubeVirt 1.3, it also has the addresses of the last
/// one. Later versions keep the addresses of the first one, but an interface without an address removes them. So a
/// guest may have more addresses on the network than it reports.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Reported {
    /// Each address, with the name that the guest gives the interface of its entry. `None`: the agent has not named the
    /// interface, or the name is too long.
    pub(crate) addresses: BTreeMap<IpAddr, Option<Arc<str>>>,
    /// Whether the agent of the guest is connected and has reported every interface on the network, and all reported
    /// addresses were read. Without an agent, KubeVirt may report an interface but not its addresses.
    pub(crate) is_whole: bool,
}

// === impl Guest ===

impl Guest {
    /// Reads an instance. A member with an unexpected structure counts as absent.
    pub(crate) fn read(object: &Object) -> Self {
        let (metadata, spec, status) = (&object.metadata, &object.data["spec"], &object.data["status"]);
        let life = match status["phase"].as_str() {
            Some("Running") => Life::Running,
            Some("Succeeded" | "Failed") => Life::Ended,
            _ => Life::Starting,
        };
        let is_connected = items(&status["conditions"])
            .any(|condition| condition["type"] == "AgentConnected" && condition["status"] == "True");
        let namespace = metadata.namespace.as_deref().unwrap_or_default();
        let of_spec = by_name(&spec["networks"]);
        let (mut networks, mut inside) = (BTreeMap::<String, Reported>::new(), BTreeSet::new());
        let mut left = MOST_REPORTED;
        for interface in items(&status["interfaces"]) {
            let network = interface["name"].as_str().and_then(|name| of_spec.get(name));
            let Some(network) = network.and_then(|network| network_of(network, namespace)) else {
                inside.extend(addresses_of(interface).take(MOST_REPORTED.saturating_sub(inside.len())));
                continue;
            };
            if networks.len() >= MOST_REPORTED && !networks.contains_key(&network) {
                continue;
            }
            let is_first = !networks.contains_key(&network);
            let reported = networks.entry(network).or_default();
            let is_of_agent = interface["infoSource"].as_str().is_none_or(|source| source.contains("guest-agent"));
            reported.is_whole = is_connected && is_of_agent && (is_first || reported.is_whole);
            for address in addresses_of(interface) {
                if left == 0 && !reported.addresses.contains_key(&address) {
                    reported.is_whole = false;
                    break;
                }
                left -= usize::from(reported.addresses.insert(address, name_of(interface)).is_none());
            }
        }
        Self { uid: metadata.uid.clone().unwrap_or_default(), life, networks, inside }
    }

    /// Whether the guest reports one of these addresses on any interface, in any phase of the instance.
    pub(crate) fn reports(&self, addresses: &BTreeSet<IpAddr>) -> bool {
        let mut all = self.networks.values().flat_map(|reported| reported.addresses.keys()).chain(&self.inside);
        all.any(|address| addresses.contains(address))
    }
}

// === impl Reported ===

impl Reported {
    /// Whether the guest has replaced an address that it first reported on an interface of this name: a whole report has
    /// another address of the family on this interface, and not this address. `is_of_pool` says whether a pool of the
    /// network has the other address. Otherwise the other address may be of a VLAN that KubeVirt shows under the name
    /// of another VLAN, and may hide `address`.
    pub(crate) fn has_replaced(
        &self,
        address: IpAddr,
        name: Option<&str>,
        is_of_pool: impl Fn(IpAddr) -> bool,
    ) -> bool {
        let is_other = |(other, of): (&IpAddr, &Option<Arc<str>>)| {
            let is_named = name.is_some() && of.as_deref() == name;
            is_named && Family::of(*other) == Family::of(address) && is_of_pool(*other)
        };
        self.is_whole && !self.addresses.contains_key(&address) && self.addresses.iter().any(is_other)
    }
}

/// Returns the name that the guest gives an interface in the status of an instance.
fn name_of(interface: &Value) -> Option<Arc<str>> {
    interface["interfaceName"].as_str().filter(|name| name.len() <= LONGEST_NAME).map(Arc::from)
}

/// Returns the addresses of an interface in the status of an instance, in their order.
fn addresses_of(interface: &Value) -> impl Iterator<Item = IpAddr> {
    let texts =
        interface["ipAddress"].as_str().into_iter().chain(items(&interface["ipAddresses"]).filter_map(Value::as_str));
    texts.filter_map(|text| {
        let end = text.find(['/', '%']).unwrap_or(text.len());
        text[..end].parse().ok()
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(status: &Value) -> Guest {
        let networks = json!([
            {"name": "a", "multus": {"networkName": "blue"}}, {"name": "b", "multus": {"networkName": "n/red"}},
            {"name": "c", "multus": {"networkName": "n/blue"}}, {"name": "pods", "pod": {}},
        ]);
        let object = json!({
            "metadata": {"namespace": "n", "name": "w", "uid": "u"}, "spec": {"networks": networks}, "status": status,
        });
        Guest::read(&serde_json::from_value(object).unwrap())
    }

    fn rows(guest: &Guest) -> Vec<(&str, Vec<String>, bool)> {
        let texts = |reported: &Reported| reported.addresses.keys().map(ToString::to_string).collect();
        guest.networks.iter().map(|(network, it)| (network.as_str(), texts(it), it.is_whole)).collect()
    }

    #[test]
    fn addresses_are_reported_on_the_networks_of_the_interfaces() {
        let guest = read(&json!({"phase": "Running", "interfaces": [
            {"name": "a", "ipAddress": "10.0.0.8", "ipAddresses": ["10.0.0.8", "fd00::8", "fe80::1%eth0", "no address"]},
            {"name": "b", "ipAddresses": ["10.0.1.8/24"]},
            {"name": "c", "ipAddress": "10.0.0.9"},
            {"name": "pods", "ipAddress": "10.128.0.5"},
            {"interfaceName": "docker0", "ipAddress": "172.17.0.1"},
            {"name": "unknown", "ipAddress": "10.0.0.10"},
            {"name": 1, "ipAddress": 2, "ipAddresses": "x"}, "x",
        ]}));
        assert_eq!((guest.uid.as_str(), guest.life), ("u", Life::Running));
        let blue = ["10.0.0.8", "10.0.0.9", "fd00::8", "fe80::1"].map(str::to_owned).into();
        let expected = [
            ("default", vec!["10.128.0.5".to_owned()], false),
            ("n/blue", blue, false),
            ("n/red", vec!["10.0.1.8".to_owned()], false),
        ];
        assert_eq!(rows(&guest), expected);
        let has = |address: &str| guest.reports(&[address.parse().unwrap()].into());
        let addresses = ["10.0.0.8", "172.17.0.1", "10.0.0.10", "10.0.0.11"];
        assert_eq!(addresses.map(has), [true, true, true, false]);
    }

    #[test]
    fn a_report_is_whole_if_a_connected_agent_has_reported_every_interface_of_the_network() {
        let whole = |is_connected: &str, sources: [Value; 2]| {
            let interface = |(name, source): (&str, Value)| json!({"name": name, "infoSource": source});
            let interfaces: Vec<Value> = ["a", "c"].into_iter().zip(sources).map(interface).collect();
            let conditions = json!([{"type": "AgentConnected", "status": is_connected}]);
            read(&json!({"phase": "Running", "interfaces": interfaces, "conditions": conditions})).networks["n/blue"]
                .is_whole
        };
        let (of_agent, of_domain) = (json!("domain, guest-agent"), json!("domain"));
        assert!(whole("True", [of_agent.clone(), of_agent.clone()]));
        // Earlier versions of KubeVirt do not write the source.
        assert!(whole("True", [json!(null), of_agent.clone()]));
        assert!(!whole("False", [of_agent.clone(), of_agent.clone()]));
        assert!(!whole("True", [of_agent.clone(), of_domain.clone()]));
        assert!(!whole("True", [of_domain, of_agent]));
    }

    #[test]
    fn an_address_is_replaced_if_its_interface_has_other_addresses_of_the_family() {
        let replaced = |name: &str, addresses: &[&str], of: Option<&str>| {
            let interface = json!({"name": "a", "interfaceName": name, "ipAddresses": addresses});
            let conditions = json!([{"type": "AgentConnected", "status": "True"}]);
            let guest = read(&json!({"phase": "Running", "interfaces": [interface], "conditions": conditions}));
            let is_of_pool = |other: IpAddr| !other.to_string().starts_with("172.");
            guest.networks["n/blue"].has_replaced("10.0.0.8".parse().unwrap(), of, is_of_pool)
        };
        assert!(replaced("eth0", &["10.0.0.9", "fd00::8"], Some("eth0")));
        assert!(!replaced("eth0", &["10.0.0.8", "10.0.0.9"], Some("eth0")));
        // A VLAN has the MAC address of its interface. KubeVirt shows the VLAN in place of the interface.
        assert!(!replaced("eth0.100", &["172.16.0.5"], Some("eth0")));
        // The entry of an interface with two VLANs has the name of the second VLAN. When the first VLAN loses its address,
        // the entry has the address of the second VLAN in place of the address of the interface.
        assert!(!replaced("eth0.200", &["172.16.0.5"], Some("eth0.200")));
        // An interface without an IPv4 address removes the addresses of an earlier interface from the entry.
        assert!(!replaced("eth0", &["fd00::8"], Some("eth0")));
        assert!(!replaced("eth0", &[], Some("eth0")));
        let long = "e".repeat(LONGEST_NAME + 1);
        assert!(!replaced(&long, &["10.0.0.9"], Some(&long)));
        assert!(!replaced(&long, &["10.0.0.9"], None));
    }

    #[test]
    fn the_phase_says_whether_a_guest_runs() {
        let life = |phase: &str| read(&json!({"phase": phase})).life;
        let phases = ["", "Pending", "Scheduling", "Scheduled", "Running", "Succeeded", "Failed", "Unknown"];
        use Life::{Ended, Running, Starting};
        let expected = [Starting, Starting, Starting, Starting, Running, Ended, Ended, Starting];
        assert_eq!(phases.map(life), expected);
    }

    #[test]
    fn a_network_whose_addresses_are_beyond_the_limit_is_read_in_part_and_is_not_whole() {
        let interface = |name: &str, third: usize| {
            let addresses: Vec<String> = (0..256).map(|last| format!("10.0.{third}.{last}")).collect();
            json!({"name": name, "ipAddresses": addresses})
        };
        let conditions = json!([{"type": "AgentConnected", "status": "True"}]);
        let interfaces = [interface("b", 0), interface("a", 1), interface("pods", 0)];
        let guest = read(&json!({"phase": "Running", "interfaces": interfaces, "conditions": conditions}));
        let counts: Vec<_> =
            guest.networks.iter().map(|(name, it)| (name.as_str(), it.addresses.len(), it.is_whole)).collect();
        assert_eq!(counts, [("default", 0, false), ("n/blue", 0, false), ("n/red", 256, true)]);
    }
}
