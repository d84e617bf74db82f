//! Decides the next request for the IPAMClaim of one name. Pure decision logic, as for IPAddressClaims.
//!
//! | state of the claim | requests, in this order |
//! |---|---|
//! | needs addresses | finalizer, lease, status |
//! | has addresses in its status that no lease records | finalizer, lease |
//! | is being deleted | status without addresses, release the lease, remove the finalizer |
//! | does not exist, by a consistent read | release the lease |
//!
//! These rules prevent two machines from using the same address:
//!
//! - An address is written into the status only after its lease is stored. Addresses that the status already has are
//!   recorded before any address is allocated, and are never replaced.
//! - A lease is released only if a consistent read shows that no instance with the name of the virtual machine exists.
//!   The addresses are removed from the status before that read, so an instance that is created later finds no address.
//! - A claim whose virtual machine is gone must not block a new virtual machine of the same name, which needs a claim
//!   of the same name. So the claim may end while an instance of the new virtual machine exists. The lease is kept
//!   until that instance is gone, because its pod may have read the earlier status.
//! - A guest that has migrated to another cluster keeps the address there, so its lease gets the migration. Usually the
//!   pass of the machine records the migration, because the instance may be gone long before the claim. Before a
//!   release, the pass of the claim records it, too, if the instance still exists or `LeftGuests` has the guest.
//! - A claim that also names other virtual machines ends only after the instances of all of them are gone. Otherwise
//!   only the lease would be left, and the lease does not name these virtual machines.

use std::collections::{BTreeMap, BTreeSet};
use std::iter;
use std::net::IpAddr;

use glowplug::host::address::parse_address;
use glowplug::host::allocator::{Allocator, ClaimError};
use glowplug::host::claim::{Claim, Claimant, Machine, Record, Request, Reservation};
use glowplug::host::may_record::Source;
use glowplug::host::pool::Pool;
use glowplug::network::{Family, InterfaceName};
use ipnetwork::IpNetwork;
use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

use crate::claims::decision::{Held, finalizers, held_by, surplus, why_not_ready, without};
use crate::cluster::key::{Key, PoolId};
use crate::kinds::cluster_api::{CLAIM_FINALIZER, REQUEST_ANNOTATION, has_finalizer, is_in_use};
use crate::kinds::ipam_claim::{Failure, IpamClaim, IpsAllocated, vm_of_name};
use crate::kinds::pool::HolderKind;
use crate::passes::Problem;
use crate::pools::facts::PoolFacts;

/// State of one name: the claim of that name, its pool, and its guests.
#[derive(Clone, Debug)]
pub(crate) struct View {
    pub(crate) key: Key,
    /// The claim of the name. `None`: a consistent read found no claim.
    pub(crate) claim: Option<IpamClaim>,
    /// Earlier claims of this name that may hold addresses: for the UID of each claim, the names of its virtual
    /// machines. A consistent read has proved that these claims are gone.
    pub(crate) former: BTreeMap<String, BTreeSet<String>>,
    pub(crate) pool: Serving,
    pub(crate) ledger: Recorded,
    /// Why the registry did not allocate or adopt addresses in this pass.
    pub(crate) problem: Option<Problem>,
    /// The instances of the virtual machines that may use an address, from consistent reads after the last write of the
    /// status. `None`: the instances are not read yet.
    pub(crate) guests: Option<Vec<Guest>>,
    /// Names of the virtual machines whose guests have migrated to another cluster, and whose instances may be gone. Empty
    /// until the instances are read.
    pub(crate) left: BTreeSet<String>,
    /// UIDs of the claims in whose leases this pass has recorded the migration of their guest.
    pub(crate) migrated: BTreeSet<String>,
    /// Whether this pass has recorded the addresses of the status on the networks of all pools that serve the claim.
    pub(crate) has_adopted: bool,
    /// Whether this pass has released the addresses of the claim.
    pub(crate) is_released: bool,
    /// Whether this pass has tried to release the leases of the claim whose addresses are not in its status. A claim has
    /// such leases if two leaders have allocated addresses to it. The API server may refuse the release, so a pass tries
    /// only once.
    pub(crate) has_kept: bool,
    /// Whether this pass has written the status. The status is written only once in a pass: if the API server drops
    /// members that its schema lacks, the stored status never equals the desired status.
    pub(crate) is_status_written: bool,
}

/// The pool that serves a claim.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Serving {
    /// No pool serves the claim. Another program may serve the claim.
    None,
    Pool(PoolId, PoolFacts),
    /// This pool and at least one other pool serve the network of the claim.
    Several(PoolId, Vec<PoolId>),
}

/// An instance of KubeVirt: a guest that may use the addresses.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Guest {
    pub(crate) name: String,
    /// UIDs of the instance and of its owners.
    pub(crate) uids: BTreeSet<String>,
    /// Whether the guest has migrated to another cluster or namespace, where it runs with the same addresses.
    pub(crate) has_left: bool,
}

/// State of a claim and of its pool in the registry.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Recorded {
    /// The pool of the claim in the registry. If several pools serve the claim, the first pool whose network lacks an
    /// address of the status, see [`lacks`]. `None`: the registry does not have the pool.
    pub(crate) pool: Option<RegisteredPool>,
    /// Addresses that the claim holds on the network of its pool: see [`held_by`]. If several pools serve the claim, and
    /// no network lacks an address of the status, all addresses that the claim holds. The address with the earliest lease
    /// comes first. The claim holds several addresses of a family if two leaders allocated addresses.
    pub(crate) held: Vec<Held>,
    /// Whether the claim waits for addresses.
    pub(crate) waits: bool,
    /// Addresses that are reserved for the claim and are no longer in its status, each with its network.
    pub(crate) unrecorded: BTreeSet<(String, IpAddr)>,
}

/// A pool of the registry.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RegisteredPool {
    pub(crate) id: PoolId,
    pub(crate) network: String,
    pub(crate) interface: InterfaceName,
    pub(crate) families: BTreeSet<Family>,
}

/// The next request of a pass.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Step {
    /// No request is needed until something changes.
    Wait,
    /// Merges this value into the claim.
    PatchClaim(Value),
    /// Applies this JSON patch to the status of the claim. Afterwards, the status has this state.
    PatchStatus(Value, IpsAllocated),
    /// Reads the instances with these names.
    ReadGuests(BTreeSet<String>),
    /// Records that the claim holds the addresses of its status on this network.
    Adopt(Record, String),
    /// Claims addresses.
    Claim(Claim),
    /// Keeps these addresses of the claimant and releases the other addresses of their families, which are not in the
    /// status.
    Keep(Claimant, Vec<IpAddr>),
    /// Removes the claim from the wait queue.
    Withdraw,
    /// Removes the records of these addresses, which the status of the claim no longer has and no guest uses.
    EndRecords(Machine, BTreeSet<(String, IpAddr)>),
    /// Records that the guest of a claim has migrated to another cluster with the addresses of the claim.
    RecordMigration(Machine),
    /// Releases everything that a claim holds.
    Release(Machine),
}

/// Decides the next request. `now` becomes the transition time of each condition whose status changes.
pub(crate) fn decide(view: &View, now: Timestamp) -> Step {
    if let Some(step) = view.record_migration() {
        return step;
    }
    match &view.claim {
        None => view.release_former().unwrap_or(Step::Wait),
        Some(claim) if claim.is_deleted() => view.end(claim, now),
        Some(claim) => view.end_records(claim).unwrap_or_else(|| view.serve(claim, now)),
    }
}

// === impl View ===

impl View {
    /// Whether there is no claim of this name, and no lease of an earlier claim.
    pub(crate) fn is_empty(&self) -> bool {
        self.claim.is_none() && self.former.is_empty()
    }

    /// Whether the claim needs one particular address, and this address is not available now.
    pub(crate) fn waits_for_address(&self) -> bool {
        let held = self.ledger.held.iter().map(|held| held.address.ip());
        match &self.problem {
            Some(Problem::Refused(error)) if error.is_about_address() => true,
            problem => problem.as_ref().is_some_and(|problem| problem.lacks_record(held)),
        }
    }

    /// Whether the claim holds no address, and must get addresses from a pool of this controller.
    pub(crate) fn is_waiting(&self) -> bool {
        let is_served = self.claim.as_ref().is_some_and(|claim| !claim.is_deleted()) && self.pool != Serving::None;
        is_served && self.ledger.held.is_empty()
    }

    /// Whether a guest may still use an address that the claim must lose: the claim has ended or is ending, or its
    /// status no longer has the address.
    pub(crate) fn waits_for_guest(&self) -> bool {
        self.guests.as_ref().is_some_and(|guests| !guests.is_empty())
    }

    /// Returns the step that removes a waiting claim from the wait queue, because the claim must not get an address
    /// now. Returns `step` for a claim that does not wait.
    fn hold_back(&self, step: Step) -> Step {
        if self.ledger.waits { Step::Withdraw } else { step }
    }

    /// The names of all virtual machines that may use an address of a claim of this name.
    fn users(&self) -> BTreeSet<String> {
        let of_claim = self.claim.iter().flat_map(IpamClaim::users);
        of_claim.chain(self.former.values().flatten().cloned()).collect()
    }

    /// Returns the step that ends the records of addresses that the status of the claim no longer has, or the step that
    /// first reads the guests. Returns `None` if the claim has no such records, or if a guest may use an address. In
    /// the second case, the records end when the guest has ended, or together with the claim.
    fn end_records(&self, claim: &IpamClaim) -> Option<Step> {
        if self.ledger.unrecorded.is_empty() {
            return None;
        }
        let holder = self.key.holder(HolderKind::IpamClaim, claim.uid());
        self.without_guest(claim, Step::EndRecords(holder, self.ledger.unrecorded.clone()))
    }

    /// Returns `step`, which takes addresses from the claim, or first the step that reads the guests. `None`: a guest
    /// of the claim may use the addresses.
    fn without_guest(&self, claim: &IpamClaim, step: Step) -> Option<Step> {
        let Some(guests) = &self.guests else { return Some(self.read_guests()) };
        let users = claim.users();
        (!guests.iter().any(|guest| users.contains(&guest.name))).then_some(step)
    }

    /// Returns the step that reads the instances of all virtual machines that may use an address.
    fn read_guests(&self) -> Step {
        Step::ReadGuests(self.users())
    }

    /// Returns the step that records the migration of a guest to another cluster in the leases of one of its claims.
    /// `None`: no guest has migrated, the guests are not read yet, or this pass has recorded the migrations.
    fn record_migration(&self) -> Option<Step> {
        let left = self.guests.iter().flatten().filter(|guest| guest.has_left);
        let left: BTreeSet<&str> = left.map(|guest| &guest.name).chain(&self.left).map(String::as_str).collect();
        let has_left = |users: &BTreeSet<String>| users.iter().any(|user| left.contains(user.as_str()));
        let own = self.claim.iter().map(|claim| (claim.uid().to_owned(), claim.users()));
        let mut claims = own.chain(self.former.clone()).filter(|(_, users)| has_left(users));
        let (uid, _) = claims.find(|(uid, _)| !self.migrated.contains(uid))?;
        Some(Step::RecordMigration(self.key.holder(HolderKind::IpamClaim, &uid)))
    }

    /// Returns the next step that releases the addresses of an earlier claim. `None`: there is no such step now.
    fn release_former(&self) -> Option<Step> {
        if self.former.is_empty() {
            return None;
        }
        let Some(guests) = &self.guests else { return Some(self.read_guests()) };
        let is_unused = |users: &BTreeSet<String>| guests.iter().all(|guest| !users.contains(&guest.name));
        let (uid, _) = self.former.iter().find(|(_, users)| is_unused(users))?;
        Some(Step::Release(self.key.holder(HolderKind::IpamClaim, uid)))
    }

    fn end(&self, claim: &IpamClaim, now: Timestamp) -> Step {
        if let Some(step) = self.release_former() {
            return step;
        }
        if !has_finalizer(&claim.metadata, CLAIM_FINALIZER) || is_in_use(&claim.metadata) {
            return self.hold_back(Step::Wait);
        }
        let Some(guests) = &self.guests else { return self.read_guests() };
        let users = claim.users();
        let mut guests = guests.iter().filter(|guest| users.contains(&guest.name)).peekable();
        let remove = || Step::PatchClaim(finalizers(&claim.metadata, without(&claim.metadata, CLAIM_FINALIZER)));
        if guests.peek().is_some() {
            // A claim without an owner may belong to any instance with the name of the virtual machine.
            let is_own = |guest: &Guest| claim.owners().any(|owner| guest.uids.contains(&owner.uid));
            // After the claim has ended, a later leader has only the lease. The lease has the name of the claim, which
            // names only one virtual machine.
            let has_others = users.iter().any(|user| user != vm_of_name(&self.key.name));
            return match has_others || claim.owners().next().is_none() || guests.any(is_own) {
                true => self.hold_back(Step::Wait),
                false => self.hold_back(remove()),
            };
        }
        if self.is_released {
            return remove();
        }
        match self.report(claim, IpsAllocated::Released, now) {
            Step::Wait => Step::Release(self.key.holder(HolderKind::IpamClaim, claim.uid())),
            clear => clear,
        }
    }

    fn serve(&self, claim: &IpamClaim, now: Timestamp) -> Step {
        let (pool, facts) = match &self.pool {
            Serving::None => return self.release_former().unwrap_or_else(|| self.hold_back(Step::Wait)),
            // A guest may use the addresses in the status, so the registry must record them first.
            Serving::Several(pool, others) if self.ledger.held.is_empty() && claim.readable_addresses().is_empty() => {
                let pools: Vec<String> = iter::once(pool).chain(others).map(title).collect();
                let pools = pools.join(" and ");
                let message = format!("{pools} serve network {:?}, expected one pool", claim.network);
                return self.refuse(claim, Failure::PoolNotReady, message, now);
            }
            Serving::Several(pool, _) => (pool, None),
            Serving::Pool(pool, facts) => (pool, Some(facts)),
        };
        if !has_finalizer(&claim.metadata, CLAIM_FINALIZER) {
            let all = claim.metadata.finalizers.iter().flatten().cloned();
            let all = all.chain([CLAIM_FINALIZER.to_owned()]).collect();
            return Step::PatchClaim(finalizers(&claim.metadata, all));
        }
        let addresses = match claim.addresses() {
            Ok(addresses) => addresses,
            Err(message) => {
                let adoption = self.adopt(claim).filter(|_| self.problem.is_none());
                return adoption.unwrap_or_else(|| self.refuse(claim, Failure::AddressConflict, message, now));
            }
        };
        if !addresses.is_empty() {
            return self.compare(claim, pool, facts, &addresses, now);
        }
        if let Some(step) = self.release_former() {
            return step;
        }
        let held = self.first_of_each_family();
        // After a crash, the lease of only one family may be stored.
        let families: BTreeSet<Family> = held.iter().map(|address| Family::of(address.ip())).collect();
        let needed = self.ledger.pool.as_ref().map(|pool| &pool.families);
        match facts {
            Some(facts) if held.is_empty() || needed.is_some_and(|needed| !needed.is_subset(&families)) => {
                self.allocate(claim, pool, facts, now)
            }
            _ => self.report(claim, IpsAllocated::Done(held), now),
        }
    }

    /// The addresses that the claim gets: of each family, the address with the earliest lease.
    fn first_of_each_family(&self) -> Vec<IpNetwork> {
        let mut first = BTreeMap::new();
        for held in &self.ledger.held {
            first.entry(Family::of(held.address.ip())).or_insert(held.address);
        }
        first.into_values().collect()
    }

    /// Returns the step that records the readable addresses of the status that the claim does not hold. `None`: the claim
    /// holds all these addresses, or the registry does not have the pool.
    fn adopt(&self, claim: &IpamClaim) -> Option<Step> {
        let registered = self.ledger.pool.as_ref()?;
        let record = record(claim, &self.ledger.held, &registered.id, registered.interface)?;
        Some(Step::Adopt(record, registered.network.clone()))
    }

    /// Decides the next step from the addresses of the status and the leases of the claim.
    fn compare(
        &self,
        claim: &IpamClaim,
        pool: &PoolId,
        facts: Option<&PoolFacts>,
        addresses: &[IpNetwork],
        now: Timestamp,
    ) -> Step {
        let given: BTreeSet<IpAddr> = addresses.iter().map(IpNetwork::ip).collect();
        let held: BTreeSet<IpAddr> = self.ledger.held.iter().map(|held| held.address.ip()).collect();
        if given.is_subset(&held) {
            let given: Vec<IpAddr> = given.into_iter().collect();
            let keep = surplus(&self.ledger.held, &given).filter(|_| !self.has_kept).and_then(|surplus| {
                let machine = self.key.holder(HolderKind::IpamClaim, claim.uid());
                self.without_guest(claim, Step::Keep(Claimant { machine, interface: surplus.interface }, given))
            });
            let report = || self.report(claim, IpsAllocated::Done(addresses.to_vec()), now);
            return keep.or_else(|| self.release_former()).unwrap_or_else(report);
        }
        // The holder of the addresses may be an earlier claim of this name.
        if let Some(message) = self.problem.as_ref().and_then(Problem::of_record) {
            let refuse = || self.refuse(claim, Failure::AddressConflict, message, now);
            return self.release_former().unwrap_or_else(refuse);
        }
        let not_ready = || self.refuse(claim, Failure::PoolNotReady, why_not_ready(pool, facts), now);
        self.adopt(claim).unwrap_or_else(not_ready)
    }

    fn allocate(&self, claim: &IpamClaim, pool: &PoolId, facts: &PoolFacts, now: Timestamp) -> Step {
        let report = |failure, message: String| self.report(claim, IpsAllocated::Failed(failure, message), now);
        match &self.problem {
            Some(problem @ Problem::Refused(ClaimError::Exhausted { .. })) => {
                return report(Failure::SubnetExhausted, problem.of_claim());
            }
            Some(problem) if problem.is_of_opening() => return Step::Wait,
            Some(problem) if problem.is_of_pool() => {
                return report(Failure::PoolNotReady, why_not_ready(pool, Some(facts)));
            }
            Some(problem @ Problem::Refused(error)) if error.is_about_address() => {
                return report(Failure::AddressConflict, problem.of_claim());
            }
            Some(problem) => return self.refuse(claim, Failure::AllocationFailed, problem.of_claim(), now),
            None => {}
        }
        if facts.ready.is_err() || self.ledger.pool.is_none() {
            return self.refuse(claim, Failure::PoolNotReady, why_not_ready(pool, Some(facts)), now);
        }
        let addresses = match requested(claim) {
            Ok(addresses) => addresses,
            Err(message) => return self.refuse(claim, Failure::AllocationFailed, message, now),
        };
        Step::Claim(Claim {
            machine: self.key.holder(HolderKind::IpamClaim, claim.uid()),
            created: claim.created(),
            requests: vec![Request { addresses, ..Request::of(&pool.to_string()) }],
            sticky: facts.sticky,
            secret: None,
        })
    }

    /// Returns the step that reports in the status why a claim gets no address. A waiting claim is first removed from
    /// the wait queue, because waiting does not help.
    fn refuse(&self, claim: &IpamClaim, failure: Failure, message: String, now: Timestamp) -> Step {
        self.hold_back(self.report(claim, IpsAllocated::Failed(failure, message), now))
    }

    fn report(&self, claim: &IpamClaim, state: IpsAllocated, now: Timestamp) -> Step {
        let patch = claim.status_patch(&state, now).filter(|_| !self.is_status_written);
        patch.map_or(Step::Wait, |patch| Step::PatchStatus(patch, state))
    }
}

/// Reads the requested addresses from the annotation of a claim, where commas separate them.
fn requested(claim: &IpamClaim) -> Result<Vec<IpAddr>, String> {
    let annotation = claim.metadata.annotations.as_ref().and_then(|all| all.get(REQUEST_ANNOTATION));
    let mut addresses: Vec<IpAddr> = Vec::new();
    for text in annotation.iter().flat_map(|annotation| annotation.split(',')) {
        let place = || format!("annotation {REQUEST_ANNOTATION}");
        let address = parse_address(text.trim()).map_err(|error| error.at(place()).to_string())?;
        if let Some(other) = addresses.iter().find(|other| Family::of(**other) == Family::of(address)) {
            return Err(format!("{}: \"{other}\" and \"{address}\", expected one address of each family", place()));
        }
        addresses.push(address);
    }
    Ok(addresses)
}

/// Returns a record of the readable addresses in the status of a claim, on the interface of the pool. Leaves out the
/// addresses in `held`. `None`: no address is left.
pub(crate) fn record(claim: &IpamClaim, held: &[Held], pool: &PoolId, interface: InterfaceName) -> Option<Record> {
    let (key, mut addresses) = (claim.key(), claim.readable_addresses());
    addresses.retain(|address| held.iter().all(|held| held.address.ip() != address.ip()));
    (!addresses.is_empty()).then(|| Record {
        claimant: Claimant { machine: key.holder(HolderKind::IpamClaim, claim.uid()), interface },
        node_pool: Some(pool.to_string()),
        attachments: Vec::new(),
        network: None,
        addresses,
        source: format!("IPAMClaim {key}"),
        kind: Source::IpamClaim,
    })
}

/// Returns the records of a claim on the networks of the pools to which the claim may belong, each with its network.
/// `None`: the registry has none of the pools yet, so it cannot attribute the addresses. The guest of the claim may be on
/// each of these networks. The registry may have a pool on another network than the object of the pool.
pub(crate) fn records_of(allocator: &Allocator, claim: &IpamClaim, pools: &[PoolId]) -> Option<Vec<(Record, String)>> {
    let holder = claim.key().holder(HolderKind::IpamClaim, claim.uid());
    let mut registered = pools.iter().filter_map(|id| Some((id, allocator.pool(&id.to_string())?))).peekable();
    registered.peek()?;
    // The leases of all pools of a network name this network, so any of the pools can be used.
    let mut networks = BTreeSet::new();
    let of_each_network = registered.filter(|(_, pool)| networks.insert(pool.network()));
    let records = of_each_network.filter_map(|(id, pool)| {
        let record = record(claim, &held_by(allocator, &holder, Some(pool)), id, pool.interface())?;
        Some((record, pool.network().to_owned()))
    });
    Some(records.collect())
}

/// Whether the network of a pool lacks an address of the status of a claim: the claim neither holds nor reserves the
/// address there, or the address has another user, too.
fn lacks(allocator: &Allocator, holder: &Machine, pool: &Pool, addresses: &[IpNetwork]) -> bool {
    let (network, held) = (pool.network(), held_by(allocator, holder, Some(pool)));
    let reserved: BTreeSet<(&str, IpAddr)> = allocator.conflicts_of(holder).collect();
    addresses.iter().map(IpNetwork::ip).any(|address| {
        let is_reserved = || reserved.contains(&(network, address)) && !allocator.is_conflict(network, address);
        held.iter().all(|held| held.address.ip() != address) && !is_reserved()
    })
}

/// Returns reservations on the network of a pool: for the addresses in a claim's status that the pool has, and that the
/// registry does not have for the claim. The claim may have the addresses of this network or of another one.
pub(crate) fn reservations(allocator: &Allocator, claim: &IpamClaim, pool: &Pool) -> Vec<Reservation> {
    let key = claim.key();
    let claimant = Claimant { machine: key.holder(HolderKind::IpamClaim, claim.uid()), interface: pool.interface() };
    let known = allocator.leases_of(&claimant.machine).map(|(network, address, _)| (network, address));
    let known: BTreeSet<(&str, IpAddr)> = known.chain(allocator.conflicts_of(&claimant.machine)).collect();
    let addresses = claim.readable_addresses().into_iter().map(|address| address.ip());
    let unknown = addresses.filter(|address| pool.contains(*address) && !known.contains(&(pool.network(), *address)));
    let reservation = |address| Reservation {
        address,
        network: Some(pool.network().to_owned()),
        claimant: claimant.clone(),
        source: format!("IPAMClaim {key}"),
        kind: Source::Unreadable,
    };
    unknown.map(reservation).collect()
}

fn title(pool: &PoolId) -> String {
    format!("{} {pool}", crate::kinds::cluster_api::pool_kind(pool).kind)
}

// === impl Recorded ===

impl Recorded {
    /// Reads from the registry the state of the claim `uid` of a name, and of its pool. `addresses` are the addresses
    /// in the status of the claim. `None`: the addresses in the status cannot be read.
    pub(crate) fn read(
        allocator: &Allocator,
        key: &Key,
        (uid, addresses): (&str, Option<&[IpNetwork]>),
        serving: &Serving,
    ) -> Self {
        let holder = key.holder(HolderKind::IpamClaim, uid);
        let in_registry = |pool: &PoolId| allocator.pool(&pool.to_string());
        let (pool, only) = match serving {
            Serving::None => (None, None),
            Serving::Pool(pool, _) => (in_registry(pool), in_registry(pool)),
            Serving::Several(pool, others) => {
                let pools: Vec<&Pool> = iter::once(pool).chain(others).filter_map(in_registry).collect();
                let lacks = |pool: &&Pool| lacks(allocator, &holder, pool, addresses.unwrap_or_default());
                let lacking = pools.iter().copied().find(lacks);
                (lacking.or(pools.first().copied()), lacking)
            }
        };
        let is_recorded = |at: IpAddr| addresses.is_none_or(|all| all.iter().any(|address| address.ip() == at));
        let reserved = allocator.conflicts_of(&holder).filter(|(_, address)| !is_recorded(*address));
        Self {
            unrecorded: reserved.map(|(network, address)| (network.to_owned(), address)).collect(),
            pool: pool.map(RegisteredPool::of),
            held: held_by(allocator, &holder, only),
            waits: allocator.waits(&holder),
        }
    }
}

// === impl RegisteredPool ===

impl RegisteredPool {
    fn of(pool: &Pool) -> Self {
        Self {
            id: PoolId::parse(pool.name()),
            network: pool.network().to_owned(),
            interface: pool.interface(),
            families: pool.spaces().map(|space| space.family()).collect(),
        }
    }
}

#[cfg(test)]
mod tests;
