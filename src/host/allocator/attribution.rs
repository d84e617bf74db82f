//! Finds the pool or the networks to which a recorded address belongs: from the object first, then from the record,
//! then from the address.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use super::mismatch::{Mismatch, Problem};
use super::pool_state::PoolState;
use super::standing::is_everywhere;
use super::state::Allocator;
use crate::host::claim::{Claimant, Machine};
use crate::host::may_record::Source;
use crate::host::pool::Pool;
use crate::network::InterfaceName;

/// The pool or the networks to which an address of a record belongs.
pub(super) enum Attribution {
    /// The address belongs to this pool and network.
    Pool(Arc<str>, Arc<str>),
    /// The address belongs to one of these networks.
    Ambiguous(Vec<Arc<str>>),
    /// The address belongs to no pool. The record may reserve the address on each of these networks.
    NoPool(Vec<Arc<str>>),
}

/// A record without its addresses.
pub(super) struct Origin {
    pub(super) claimant: Arc<Claimant>,
    pub(super) node_pool: Option<String>,
    pub(super) attachments: Vec<String>,
    pub(super) network: Option<String>,
    pub(super) source: Arc<str>,
    pub(super) kind: Source,
}

/// The pools that serve a claimant, by interface and network.
#[derive(Default)]
pub(super) struct Audience {
    by_interface: BTreeMap<InterfaceName, BTreeMap<Arc<str>, Vec<Arc<str>>>>,
}

/// The pools that serve the claimants of many records. All machines of a namespace share one entry, and all its claims
/// share another. The key `None` is for records that count for the pools of every namespace.
#[derive(Default)]
pub(super) struct Audiences(BTreeMap<Option<(bool, String)>, Arc<Audience>>);

// === impl Origin ===

impl Origin {
    /// Returns the mismatch that reports a problem of an address of the record.
    pub(super) fn mismatch(&self, address: IpAddr, problem: Problem) -> Mismatch {
        let claimant = Claimant::clone(&self.claimant);
        Mismatch { source: self.source.to_string(), claimant, address, problem }
    }
}

// === impl Audiences ===

impl Audiences {
    /// Returns the pools that serve a machine. For a record that counts everywhere, returns all pools.
    pub(super) fn of(&mut self, allocator: &Allocator, kind: Source, machine: &Machine) -> Arc<Audience> {
        let is_everywhere = is_everywhere(kind, machine);
        let namespace = if machine.kind.is_claim() { &machine.namespace } else { machine.served_in() };
        let key = (!is_everywhere).then(|| (machine.kind.is_claim(), namespace.to_owned()));
        let audience = self.0.entry(key).or_insert_with(|| {
            let mut audience = Audience::default();
            for (name, state) in &allocator.pools {
                if is_everywhere || state.pool.serves_holder(machine) {
                    let networks = audience.by_interface.entry(state.pool.interface).or_default();
                    networks.entry(Arc::from(state.pool.network.as_str())).or_default().push(Arc::clone(name));
                }
            }
            Arc::new(audience)
        });
        Arc::clone(audience)
    }
}

// === impl Allocator ===

impl Allocator {
    /// Finds the pool or the networks of a recorded address, among the pools that serve the claimant. The first of the
    /// following that is known decides:
    ///
    /// - the NodePool of the object
    /// - the network that the record names, if the object lists this network
    /// - the network of the object, if pools of the interface are on exactly one of its networks
    /// - the network that the record names
    /// - the address itself
    ///
    /// The record of a claim belongs to the pool of the claim, or to no pool.
    pub(super) fn attribute(&self, origin: &Origin, address: IpAddr, audience: &Audience) -> Attribution {
        let Claimant { machine, interface } = &*origin.claimant;
        let none = BTreeMap::new();
        let of_interface = audience.by_interface.get(interface).unwrap_or(&none);
        let named = origin.node_pool.as_deref();
        let on = |network: &Arc<str>| {
            let names = of_interface.get(network).map_or(&[][..], Vec::as_slice);
            self.pool_among(names, named, network, address, machine).map_or_else(
                || Attribution::NoPool(vec![Arc::clone(network)]),
                |name| Attribution::Pool(name, Arc::clone(network)),
            )
        };
        let node_pool = named.and_then(|name| self.pools.get(name)).map(|state| state.pool());
        let node_pool = node_pool.filter(|pool| pool.interface == *interface);
        if let Some(pool) = node_pool
            && let Some((network, names)) = of_interface.get_key_value(pool.network.as_str())
            && (!machine.kind.is_claim() || names.iter().any(|name| **name == *pool.name))
        {
            return on(network);
        }
        if machine.kind.is_claim() {
            return Attribution::NoPool(self.networks_with(address));
        }
        let is_attached = |network: &&Arc<str>| origin.attachments.iter().any(|attached| **attached == ***network);
        let attached: Vec<&Arc<str>> = of_interface.keys().filter(is_attached).collect();
        // If the record names a network of its object, the record belongs to this network, even if the ledger has no
        // pool on this network.
        let names_attached = origin.network.as_ref().is_some_and(|name| origin.attachments.contains(name));
        if let [network] = attached[..]
            && !names_attached
        {
            return on(network);
        }
        if let Some(name) = &origin.network {
            return match self.networks.get_key_value(name.as_str()) {
                Some((network, _)) => on(network),
                None => Attribution::NoPool(Vec::new()),
            };
        }
        let candidates = if origin.attachments.is_empty() { of_interface.keys().collect() } else { attached };
        let has = |network: &&&Arc<str>| {
            let names = of_interface.get(**network).map_or(&[][..], Vec::as_slice);
            self.pools_with(network, address).any(|state| names.iter().any(|name| **name == *state.pool.name))
        };
        let having: Vec<&Arc<str>> = candidates.iter().filter(has).copied().collect();
        match if having.is_empty() { &candidates[..] } else { &having[..] } {
            [] => Attribution::NoPool(self.networks_with(address)),
            [network] => on(network),
            several => Attribution::Ambiguous(several.iter().map(|network| Arc::clone(network)).collect()),
        }
    }

    /// Chooses one of the pools of one interface and network, in this order:
    ///
    /// - the named pool
    /// - a pool that offers the address to the machine
    /// - a pool that has the address
    /// - an external pool
    /// - the first pool: the lease can move to another pool of its network later
    ///
    /// A pool that allocates is preferred to a suspended pool, such as a pool that is being deleted.
    fn pool_among(
        &self,
        names: &[Arc<str>],
        named: Option<&str>,
        network: &str,
        address: IpAddr,
        machine: &Machine,
    ) -> Option<Arc<str>> {
        let name_of = |state: &PoolState| names.iter().find(|name| ***name == *state.pool.name).cloned();
        let is_named = |name: &&Arc<str>| Some(&***name) == named;
        let is_external = |name: &&Arc<str>| self.pool(name).is_some_and(Pool::is_external);
        let offers = |state: &&PoolState| state.offers_to(machine, address);
        let allocates = |state: &PoolState| !self.suspended.contains(&state.pool.name);
        let having = |is_wanted: &dyn Fn(&PoolState) -> bool| {
            self.pools_with(network, address).filter(|state| is_wanted(state)).filter_map(name_of).min()
        };
        let of_name = names.iter().find(is_named).cloned();
        let is_right = |name: &Arc<str>| machine.kind.is_claim() || self.pools.get(name).is_some_and(allocates);
        let found = of_name.clone().filter(is_right);
        let found = found.or_else(|| having(&|state| offers(&state) && allocates(state))).or(of_name);
        let found = found.or_else(|| having(&|state| offers(&state))).or_else(|| having(&allocates));
        let found = found.or_else(|| having(&|_| true));
        found.or_else(|| names.iter().find(is_external).or(names.first()).cloned())
    }
}
