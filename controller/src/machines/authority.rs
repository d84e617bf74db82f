//! Limits the records of machines to the pools that may have served these machines.
//!
//! Everyone who may write machines of a namespace can record any address in them. If the leases are lost, a record
//! becomes a lease, or it reserves its address. So a record counts only for pools that serve the namespace of its
//! object: otherwise, the users of one namespace could reserve the addresses of all others.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use glowplug::host::claim::Record;
use glowplug::host::may_record::Source;
use glowplug::host::pool::Pool;
use glowplug::host::records::ObjectDiagnostic;
use glowplug::network::InterfaceName;
use ipnetwork::IpNetwork;

use crate::ledger::types::Reservation;
use crate::pools::selection::Selection;

/// The pools of a cluster, by the namespaces that they serve.
pub(super) struct Authority<'s> {
    selection: &'s Selection,
    of_namespaces: BTreeMap<BTreeSet<String>, Pools<'s>>,
}

/// The pools that may have served machines of some namespaces, and all other pools.
struct Pools<'s> {
    own: Vec<&'s Pool>,
    others: Vec<&'s Pool>,
}

// === impl Authority ===

impl<'s> Authority<'s> {
    pub(super) fn new(selection: &'s Selection) -> Self {
        Self { selection, of_namespaces: BTreeMap::new() }
    }

    /// Reduces the record of a machine whose objects are in `namespaces` to what its pools may have allocated. Also
    /// returns the addresses that do not count.
    pub(super) fn limit(&mut self, namespaces: &BTreeSet<String>, mut record: Record) -> (Record, Vec<IpNetwork>) {
        let pools = self.pools(namespaces).of_interface(record.claimant.interface);
        let networks: BTreeSet<&str> = pools.own.iter().map(|pool| pool.network()).collect();
        record.node_pool = record.node_pool.filter(|name| pools.own.iter().any(|pool| pool.name() == name));
        if record.attachments.is_empty() {
            record.attachments = networks.iter().map(|network| (*network).to_owned()).collect();
        } else {
            record.attachments.retain(|network| networks.contains(network.as_str()));
        }
        let is_own = record.network.as_deref().is_none_or(|network| networks.contains(network));
        // The registry attributes the record to one of these networks.
        let is_meant = |pool: &&&Pool| record.node_pool.as_deref() == Some(pool.name());
        let of_node_pool = pools.own.iter().find(is_meant).map(|pool| pool.network());
        let named = record.network.as_ref().filter(|network| record.attachments.contains(network));
        let candidates: BTreeSet<&str> = match named {
            Some(network) => of_node_pool.into_iter().chain([network.as_str()]).collect(),
            None => of_node_pool.into_iter().chain(record.attachments.iter().map(String::as_str)).collect(),
        };
        let is_foreign = |address: IpAddr| candidates.iter().any(|network| pools.is_foreign(network, address));
        let counts = |address: &IpNetwork| is_own && !record.attachments.is_empty() && !is_foreign(address.ip());
        let (own, ignored) = std::mem::take(&mut record.addresses).into_iter().partition(counts);
        record.addresses = own;
        (record, ignored)
    }

    /// Returns the addresses of a record that cannot be read, each with the networks on which its machine may use the
    /// address.
    pub(super) fn conflicts(
        &mut self,
        namespaces: &BTreeSet<String>,
        diagnostic: &ObjectDiagnostic,
    ) -> Vec<Reservation> {
        let Some(claimant) = &diagnostic.claimant else { return Vec::new() };
        let reservation = |address: &IpAddr| Reservation {
            address: *address,
            network: None,
            claimant: claimant.clone(),
            source: diagnostic.to_string(),
            kind: Source::Unreadable,
        };
        self.reservations(namespaces, diagnostic.addresses.iter().map(reservation).collect())
    }

    /// Reduces the conflicts of a machine whose objects are in `namespaces` to addresses of its pools, on the network of the
    /// conflict, or on each network with the address.
    pub(super) fn reservations(
        &mut self,
        namespaces: &BTreeSet<String>,
        conflicts: Vec<Reservation>,
    ) -> Vec<Reservation> {
        let pools = self.pools(namespaces);
        let reservations = conflicts.into_iter().flat_map(|reservation| {
            let named = reservation.network.as_deref();
            let is_meant = |pool: &&&Pool| named.is_none_or(|network| network == pool.network());
            let own = pools.own.iter().filter(is_meant).filter(|pool| pool.contains(reservation.address));
            let networks: BTreeSet<&str> = own.map(|pool| pool.network()).collect();
            let reservation = reservation.clone();
            let of = move |network: &str| Reservation { network: Some(network.to_owned()), ..reservation.clone() };
            networks.into_iter().map(of).collect::<Vec<_>>()
        });
        reservations.collect()
    }

    fn pools(&mut self, namespaces: &BTreeSet<String>) -> &Pools<'s> {
        let selection = self.selection;
        self.of_namespaces.entry(namespaces.clone()).or_insert_with(|| {
            let may_serve = |id| namespaces.iter().any(|namespace| selection.may_serve(id, namespace));
            let pools = selection.pools().filter_map(|pool| Some((&pool.id, pool.pool.as_ref().ok()?)));
            let (own, others): (Vec<_>, Vec<_>) = pools.partition(|(id, _)| may_serve(id));
            let [own, others] = [own, others].map(|pools| pools.into_iter().map(|(_, pool)| pool).collect());
            Pools { own, others }
        })
    }
}

// === impl Pools ===

impl<'s> Pools<'s> {
    /// The same with only those own pools that serve an interface of this name. The registry would look for the address of
    /// another interface in all pools.
    fn of_interface(&self, interface: InterfaceName) -> Self {
        let own = self.own.iter().filter(|pool| pool.interface() == interface).copied().collect();
        Self { own, others: self.others.clone() }
    }

    /// Whether only pools of other namespaces have an address of a network.
    fn is_foreign(&self, network: &str, address: IpAddr) -> bool {
        let have = |pools: &[&Pool]| pools.iter().any(|pool| pool.network() == network && pool.contains(address));
        !have(&self.own) && have(&self.others)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use glowplug::host::claim::{Claimant, Machine};
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
    use kube::api::ObjectMeta;
    use serde_json::json;

    use super::*;
    use crate::cluster::object::Object;
    use crate::kinds::pool::{NodePoolRef, PoolSpec};
    use crate::pools::facts::PoolObject;
    use crate::pools::selection::MachinePool;

    /// A pool of a network with these addresses, for the machines of its namespace.
    fn pool(namespace: &str, network: &str, addresses: &str) -> Arc<MachinePool> {
        pool_of(namespace, PoolSpec { machine_selector: Some(LabelSelector::default()), ..spec(network, addresses) })
    }

    fn spec(network: &str, addresses: &str) -> PoolSpec {
        PoolSpec { network: network.to_owned(), addresses: vec![addresses.to_owned()], ..PoolSpec::default() }
    }

    fn pool_of(namespace: &str, spec: PoolSpec) -> Arc<MachinePool> {
        let name = spec.network.replace('/', "-");
        let metadata = ObjectMeta { namespace: Some(namespace.to_owned()), name: Some(name), ..ObjectMeta::default() };
        let pool = MachinePool::read(PoolObject { metadata, spec: Ok(spec), status: None });
        assert_eq!(pool.pool.as_ref().err(), None);
        Arc::new(pool)
    }

    fn record(attachments: &[&str], network: Option<&str>, addresses: &[&str]) -> Record {
        let machine = Machine::new("a", "w", "u");
        Record {
            claimant: Claimant { machine, interface: "eno101".parse().unwrap() },
            node_pool: Some("b/n-own".to_owned()),
            attachments: attachments.iter().map(|it| (*it).to_owned()).collect(),
            network: network.map(str::to_owned),
            addresses: addresses.iter().map(|address| address.parse().unwrap()).collect(),
            source: "VirtualMachine a/w".to_owned(),
            kind: Source::Annotation,
        }
    }

    /// The addresses that count and those that are ignored, of a record of a machine in namespace `a`.
    fn limited(pools: Vec<Arc<MachinePool>>, record: Record) -> (Vec<String>, Vec<String>) {
        let selection = Selection::new(pools, []);
        let (record, ignored) = Authority::new(&selection).limit(&["a".to_owned()].into(), record);
        assert_eq!(record.node_pool, None);
        let texts = |addresses: Vec<IpNetwork>| addresses.iter().map(|address| address.ip().to_string()).collect();
        (texts(record.addresses), texts(ignored))
    }

    fn both() -> Vec<Arc<MachinePool>> {
        vec![pool("a", "n/own", "10.0.0.0/30"), pool("b", "n/own", "10.0.0.8/30"), pool("b", "n/other", "10.0.0.0/24")]
    }

    fn lists<const N: usize, const M: usize>(own: [&str; N], ignored: [&str; M]) -> (Vec<String>, Vec<String>) {
        (own.map(str::to_owned).into(), ignored.map(str::to_owned).into())
    }

    #[test]
    fn a_record_counts_for_the_pools_of_its_namespace() {
        let all = ["10.0.0.1", "10.0.0.9", "10.0.0.20"];
        // Also an address that no pool has: it may have been in a pool earlier.
        let expected = lists(["10.0.0.1", "10.0.0.20"], ["10.0.0.9"]);
        for (attachments, network) in
            [(&["n/own"][..], None), (&["n/own"], Some("n/own")), (&[], None), (&["n/own", "n/other"], Some("n/own"))]
        {
            assert_eq!(limited(both(), record(attachments, network, &all)), expected, "{attachments:?} {network:?}");
        }
    }

    #[test]
    fn a_record_on_a_network_without_a_pool_of_its_namespace_does_not_count() {
        for (attachments, network) in [(&["n/other"][..], None), (&[], Some("n/other")), (&["n/own"], Some("n/other"))]
        {
            let record = record(attachments, network, &["10.0.0.1"]);
            assert_eq!(limited(both(), record), lists([], ["10.0.0.1"]), "{attachments:?} {network:?}");
        }
        assert_eq!(limited(vec![], record(&[], None, &["10.0.0.1"])), lists([], ["10.0.0.1"]));
    }

    #[test]
    fn a_record_of_an_interface_that_no_pool_of_its_namespace_serves_does_not_count() {
        let mut record = record(&["n/own"], None, &["10.0.0.1", "10.0.0.9", "10.0.0.20"]);
        record.claimant.interface = "eno999".parse().unwrap();
        assert_eq!(limited(both(), record), lists([], ["10.0.0.1", "10.0.0.9", "10.0.0.20"]));
    }

    #[test]
    fn an_address_of_another_namespace_on_another_network_does_not_count() {
        let pools = || {
            let own = [pool("a", "n/own", "10.0.0.0/30"), pool("a", "n/two", "10.0.1.0/30")];
            own.into_iter().chain([pool("b", "n/two", "10.0.0.0/30"), pool("b", "n/own", "10.0.0.8/30")]).collect()
        };
        let named = record(&["n/own", "n/two"], Some("n/own"), &["10.0.0.1"]);
        assert_eq!(limited(pools(), named), lists(["10.0.0.1"], []));
        // The NodePool decides about the network, also against the network that the record names.
        let selection = Selection::new(pools(), []);
        let own = Record { node_pool: Some("a/n-own".to_owned()), ..record(&["n/two"], Some("n/two"), &["10.0.0.9"]) };
        let (own, ignored) = Authority::new(&selection).limit(&["a".to_owned()].into(), own);
        assert_eq!((own.addresses, ignored), (vec![], vec!["10.0.0.9".parse().unwrap()]));
    }

    #[test]
    fn the_machines_of_a_node_pool_are_in_the_namespace_of_its_cluster() {
        let of_node_pool = PoolSpec {
            node_pool_ref: Some(NodePoolRef { name: "workers".to_owned() }),
            ..spec("n/own", "10.0.0.0/30")
        };
        let node_pool = json!({
            "metadata": {"namespace": "clusters", "name": "workers"}, "spec": {"clusterName": "blue"},
        });
        let node_pool: Object = serde_json::from_value(node_pool).unwrap();
        let pool = pool_of("clusters", of_node_pool);
        let serves = |node_pools: Vec<Arc<Object>>, namespace: &str| {
            Selection::new([Arc::clone(&pool)], node_pools).may_serve(&pool.id, namespace)
        };
        let exists = || vec![Arc::new(node_pool.clone())];
        let namespaces = ["clusters-blue", "clusters-red", "clusters", "other"];
        assert_eq!(namespaces.map(|it| serves(exists(), it)), [true, false, false, false]);
        // Without the NodePool, the name of its cluster is unknown.
        assert_eq!(namespaces.map(|it| serves(vec![], it)), [true, true, false, false]);
    }

    #[test]
    fn a_pool_for_claims_alone_serves_no_machine() {
        let pool = pool_of("a", spec("n/own", "10.0.0.0/30"));
        assert_eq!(limited(vec![pool], record(&["n/own"], None, &["10.0.0.1"])), lists([], ["10.0.0.1"]));
    }

    #[test]
    fn network_data_of_a_user_reserves_addresses_of_the_pools_of_its_namespace() {
        let machine = Machine::new("a", "w", "u");
        let claimant = Claimant { machine, interface: "eno101".parse().unwrap() };
        let selection = Selection::new(both(), []);
        let reserved = |address: &str, network: Option<&str>| {
            let reservation = Reservation {
                address: address.parse().unwrap(),
                network: network.map(str::to_owned),
                claimant: claimant.clone(),
                source: "Secret a/w-networkdata".to_owned(),
                kind: Source::NetworkData,
            };
            let own = Authority::new(&selection).reservations(&["a".to_owned()].into(), vec![reservation]);
            own.into_iter().map(|it| (it.address.to_string(), it.network)).collect::<Vec<_>>()
        };
        let own = [("10.0.0.1".to_owned(), Some("n/own".to_owned()))];
        assert_eq!(reserved("10.0.0.1", None), own);
        assert_eq!(reserved("10.0.0.1", Some("n/own")), own);
        assert_eq!(reserved("10.0.0.1", Some("n/other")), []);
        assert_eq!(reserved("10.0.0.9", None), []);
        assert_eq!(reserved("10.0.0.9", Some("n/own")), []);
    }

    #[test]
    fn a_record_that_cannot_be_read_reserves_addresses_of_the_pools_of_its_namespace() {
        let mut objects = glowplug::host::records::Objects::default();
        objects.read_value(
            "VirtualMachine a/w",
            &json!({
                "kind": "VirtualMachine",
                "metadata": {"namespace": "a", "name": "w", "uid": "u", "annotations": {
                    "kubevirt.cluster.x-k8s.io/allocated-ip-eno101": "10.0.0.1 10.0.0.9",
                }},
            }),
        );
        let diagnostics = objects.inventory().diagnostics;
        let [diagnostic] = &diagnostics[..] else { panic!("{diagnostics:?}") };
        let texts = |addresses: &[IpAddr]| addresses.iter().map(IpAddr::to_string).collect::<Vec<_>>();
        assert_eq!(texts(&diagnostic.addresses), ["10.0.0.1", "10.0.0.9"]);
        let selection = Selection::new(both(), []);
        let conflicts = Authority::new(&selection).conflicts(&["a".to_owned()].into(), diagnostic);
        let rows: Vec<_> = conflicts.iter().map(|it| (it.address.to_string(), it.network.clone())).collect();
        assert_eq!(rows, [("10.0.0.1".to_owned(), Some("n/own".to_owned()))]);
    }
}
