//! Derives from the objects of a cluster what a leader of this version would know after its start. The objects are
//! leases, pools, records, claims, Secrets and reports. Each part is computed by the code of the leader.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use glowplug::host::allocator::{Adoption, Allocator, ClaimError};
use glowplug::host::change::Change;
use glowplug::host::claim::{HolderKind, Record, Reservation};
use glowplug::host::ledger::{Ledger as _, MemoryLedger};
use glowplug::host::pool::Pool;
use glowplug::host::records::Inventory;
use glowplug::host::registry::Registry;
use glowplug::network::Family;
use k8s_openapi::jiff::Timestamp;

use crate::claims::decision::{self, Adoptee, Cluster, Lesson, Step, decide, record};
use crate::claims::ipam;
use crate::claims::ipam::decision::Serving;
use crate::cluster::key::{Key, PoolId};
use crate::explain::lists::{Lists, Pools};
use crate::kinds::cluster_api::{CLAIM_FINALIZER, IpAddress};
use crate::kinds::kubevirt_machine::NetworkSecret;
use crate::kinds::lease_name::parse_lease_name;
use crate::kinds::mac_pool::parse_mac_lease_name;
use crate::ledger::leases;
use crate::machines::{inventory, reservations_of_users, take_followers};
use crate::pools::status::KnownPools;

/// The addresses that the objects of a cluster record, that guests report, and that Services and Clusters have.
#[derive(Debug, Default)]
pub(super) struct Recorded {
    /// The records of machines and claims, except those in `last`.
    pub(super) inventory: Inventory,
    /// The records of machines that a leader adopts only after it has received the reports.
    pub(super) last: Inventory,
    /// The records in Secrets to which VirtualMachines refer.
    pub(super) secrets: Vec<Record>,
    /// The reservations of IPAddresses without a claim.
    alone: Vec<Reservation>,
    /// The addresses that running guests report, within the bounds of the controller, and the addresses of Services and
    /// Clusters.
    reports: Vec<Reservation>,
}

/// A registry, and the leases that cannot be read: the name of each, and the problem.
pub(super) type Opened = (Registry<MemoryLedger>, Vec<(String, String)>);

// === impl Lists ===

impl Lists {
    /// Opens a registry with the leases of the lists and with these pools. The records are not adopted yet.
    ///
    /// # Errors
    ///
    /// The pools cannot be in one registry.
    pub(super) fn registry(&self, pools: &Pools, now: Timestamp) -> anyhow::Result<Opened> {
        let (mut changes, mut damaged) = (Vec::new(), Vec::new());
        for object in &self.leases {
            let name = object.metadata.name.clone().unwrap_or_default();
            let Some((address, network)) = parse_lease_name(&name) else {
                if parse_mac_lease_name(&name).is_none() {
                    damaged.push((name, "name: neither an address and a network nor a MAC address".to_owned()));
                }
                continue;
            };
            let lease = match leases::read(object, address, &network) {
                Ok((_, lease)) => Some(lease),
                Err(problem) => {
                    damaged.push((name, problem));
                    leases::unreadable(object, address)
                }
            };
            changes.push(Change::Lease { network: network.into(), address, lease });
        }
        let mut ledger = MemoryLedger::default();
        ledger.begin()?.commit(&changes)?;
        let mut registry = Registry::open(ledger)?;
        let (pools, suspended) = self.index(pools).pools();
        registry.suspend(suspended);
        registry.resize(pools, &[], now)?;
        Ok((registry, damaged))
    }

    fn index(&self, pools: &Pools) -> KnownPools {
        let mut index = KnownPools::default();
        index.set(pools.clone(), Arc::clone(self.selection(pools).memberships()));
        index
    }

    /// The pool that serves the IPAMClaim with this key.
    pub(super) fn serving(&mut self, key: &Key) -> Serving {
        let facts = self.index(&self.pools).facts();
        self.ipam.set_pools(facts);
        let is_in_scope = self.scope.as_ref().is_none_or(|scope| *scope == key.namespace);
        if is_in_scope { self.ipam.view(key).pool } else { Serving::None }
    }

    /// Removes the records and reports from the lists, and returns them for adoption. `allocator` has the leases and
    /// the pools.
    pub(super) fn recorded(&mut self, allocator: &Allocator) -> Recorded {
        let objects = std::mem::take(&mut self.objects);
        let mut reports = std::mem::take(&mut self.reports).reserve(allocator.pools().cloned());
        let ignores = |pool: &&Pool| {
            let known = self.pools.get(&PoolId::parse(pool.name()));
            known.is_some_and(|known| known.checked.spec.ignore_neighbours)
        };
        let pools: Vec<Pool> = allocator.pools().filter(|pool| !ignores(pool)).cloned().collect();
        reports.extend(std::mem::take(&mut self.neighbours).reserve(&pools));
        let uid_of = |key: &Key| self.kubevirt_machine(key)?.metadata.uid.as_deref();
        let mut first = inventory(objects, uid_of);
        let guests = self.guests.values().map(|(_, instance)| instance);
        let last = take_followers(&mut first, guests, |key| self.guests.get(key).map(|(_, instance)| instance));
        let mut recorded = Recorded { inventory: first, last, reports, ..Recorded::default() };
        recorded.inventory.claims = (self.has_claims && self.has_ipam_claims).then(|| self.claim_holders());
        self.add_claims(allocator, &mut recorded);
        self.add_ipam_claims(allocator, &mut recorded);
        for vm in self.vms.values() {
            let key = vm.key();
            let name = vm.secret().map(|name| Key { name: name.to_owned(), ..key.clone() });
            let Some(NetworkSecret::Ours(own)) = name.and_then(|name| self.secrets.get(&name)) else { continue };
            // A user can copy these annotations from the Secret of another machine, so the Secret must name this
            // machine.
            if Key::of_machine(&own.machine) == key {
                let records = own.interfaces.iter();
                let records = records.map(|it| it.record(own, &key.namespace, it.addresses.clone()));
                recorded.secrets.extend(records);
            }
        }
        recorded
    }

    /// Adds the records of IPAddresses that have a claim, and the reservations of IPAddresses without a claim.
    fn add_claims(&mut self, allocator: &Allocator, recorded: &mut Recorded) {
        let Some(claims) = &mut self.claims else { return };
        claims.forget_recorded();
        for Adoptee { address, lesson } in Adoptee::read_all(allocator, claims.unrecorded(None)) {
            match lesson {
                Lesson::Record(record, _) => recorded.inventory.records.push(record),
                Lesson::Reservation(reservation) => recorded.alone.push(reservation),
                Lesson::None => recorded.inventory.records.extend(record_of_holder(allocator, &address)),
            }
        }
    }

    /// Returns the pool and the family of each claim that has no address, and that gets one now or as soon as its pool
    /// has a free address. The family is `None` for a claim that gets an address of each family of the pool. `registry`
    /// is the state of a leader.
    pub(super) fn waiting_claims(
        &mut self,
        pools: &Pools,
        mut registry: Registry<MemoryLedger>,
        now: Timestamp,
    ) -> anyhow::Result<Vec<(PoolId, Option<Family>)>> {
        let (facts, scope) = (self.index(pools).facts(), self.scope.clone());
        let is_in_scope = |namespace: &str| scope.as_ref().is_none_or(|scope| scope == namespace);
        let allocator = registry.state()?;
        let waiting = self.ipam_claims.values().filter(|claim| claim.ips.is_empty() && !claim.is_deleted());
        let waiting = waiting.filter(|claim| is_in_scope(&claim.key().namespace));
        let of_ipam = waiting.filter_map(|claim| {
            let holder = claim.key().holder(HolderKind::IpamClaim, claim.uid());
            let pool = self.ipam.pool_among(&facts, claim)?;
            let is_ready = facts.get(&pool.to_string()).is_some_and(|facts| facts.ready.is_ok());
            (is_ready && allocator.leases_of(&holder).next().is_none()).then_some((pool, None))
        });
        let mut all: Vec<(PoolId, Option<Family>)> = of_ipam.collect();
        let Some(claims) = &mut self.claims else { return Ok(all) };
        claims.set_pools(facts);
        let mut asked = Vec::new();
        for key in claims.claimed_by_age().into_iter().filter(|key| is_in_scope(&key.namespace)) {
            let mut view = claims.view(&key);
            let Some(claim) = &mut view.claim else { continue };
            // Assumes that the earlier steps are done, so that `decide` returns the request for an address. A claim of
            // a paused Cluster counts, because the claim needs an address later.
            claim.metadata.finalizers.get_or_insert_default().push(CLAIM_FINALIZER.to_owned());
            let (uid, pool) = (claim.uid().to_owned(), claim.pool.resolve(&key.namespace));
            view.former.clear();
            view.cluster = Cluster::None;
            let address = view.address.as_ref();
            view.ledger = decision::Recorded::read(allocator, &key, (&uid, &view.former), pool.as_ref(), address);
            if let Step::Claim(claim) = decide(&view, now) {
                asked.push(claim);
            }
        }
        let answers = registry.claim_all(&asked, now)?.answers;
        for (claim, answer) in asked.iter().zip(answers) {
            use ClaimError::{Closed, Exhausted, ReuseDelay, Taken};
            if matches!(answer, Ok(_) | Err(Exhausted { .. } | Closed(_) | Taken { .. } | ReuseDelay { .. })) {
                all.extend(claim.requests.iter().map(|request| (PoolId::parse(&request.pool), request.family)));
            }
        }
        Ok(all)
    }

    /// Adds the records of IPAMClaims: on the network of the lease of a claim, and on each network whose pool serves
    /// the claim.
    fn add_ipam_claims(&mut self, allocator: &Allocator, recorded: &mut Recorded) {
        self.ipam.forget_recorded();
        let served = self.ipam.unrecorded(Some(&self.index(&self.pools).facts()));
        let served: BTreeMap<Key, Vec<PoolId>> =
            served.into_iter().map(|(claim, pools)| (claim.key(), pools)).collect();
        for (key, claim) in &self.ipam_claims {
            let holder = key.holder(HolderKind::IpamClaim, claim.uid());
            let held = allocator.leases_of(&holder).next();
            let held = held.map(|(network, _, lease)| (network, PoolId::parse(&lease.pool), lease.claimant.interface));
            let serving = served.get(key).into_iter().flatten().filter_map(|id| {
                let pool = allocator.pool(&id.to_string())?;
                Some((pool.network(), id.clone(), pool.interface()))
            });
            let mut networks = BTreeSet::new();
            for (_, pool, interface) in
                held.into_iter().chain(serving).filter(|(network, ..)| networks.insert(*network))
            {
                recorded.inventory.records.extend(ipam::decision::record(claim, &[], &pool, interface));
            }
        }
    }
}

/// Returns the record of an IPAddress whose claim already holds the address. `None`: no claim with the name of the
/// IPAddress holds this address.
fn record_of_holder(allocator: &Allocator, address: &IpAddress) -> Option<Record> {
    let (Key { namespace, name }, ip) = (address.key(), address.ip()?);
    let mut claims =
        allocator.namesakes(&namespace, &name).filter(|machine| machine.kind == HolderKind::IpAddressClaim);
    claims.find_map(|claim| {
        let (.., lease) = allocator.leases_of(claim).find(|(_, held, _)| *held == ip)?;
        Some(record(address, ip, &claim.uid, lease.claimant.interface))
    })
}

// === impl Recorded ===

impl Recorded {
    /// Iterates over the records of machines and claims, except the records in Secrets.
    pub(super) fn records(&self) -> impl Iterator<Item = &Record> {
        self.inventory.records.iter().chain(&self.last.records)
    }

    /// Adopts the records, the reports and the network data of users in the order in which a new leader adopts them, and
    /// opens the addresses of the pools, as the leader then does. The registry must already have the leases and the
    /// pools of `lists`. Returns the result, with the mismatches of all steps.
    ///
    /// # Errors
    ///
    /// The ledger in memory failed.
    pub(super) fn adopt(
        &self,
        lists: &Lists,
        registry: &mut Registry<MemoryLedger>,
        now: Timestamp,
    ) -> anyhow::Result<Adoption> {
        let mut adoption = registry.adopt_inventory(&self.inventory, now)?.adoption;
        adoption.mismatches.extend(registry.set_aside(self.alone.iter().cloned(), now)?);
        registry.change_reports(&self.reports, &[], now)?;
        adoption.mismatches.extend(registry.adopt_inventory(&self.last, now)?.adoption.mismatches);
        // The Secrets come last: a leader reads a Secret only if none of the leases from the other adoptions names it. Their
        // addresses can become leases, and those of users cannot.
        adoption.mismatches.extend(registry.adopt(self.secrets.iter().cloned(), now)?.mismatches);
        let leader = (registry.state()?, lists.scope.as_deref().unwrap_or_default());
        let secret = |key: &Key| lists.secrets.get(key).cloned().unwrap_or(NetworkSecret::Absent);
        let of_users = reservations_of_users(lists.machine_objects(), &lists.selection(&lists.pools), leader, secret);
        adoption.mismatches.extend(registry.set_aside(of_users, now)?);
        registry.open_addresses(now)?;
        Ok(adoption)
    }
}
