//! Decides the next request for the claim of one name. Pure decision logic: the input is objects, the output is a
//! request. There is no API server and no clock.
//!
//! A pass decides a request, makes the request, applies its result and decides again, until no request is needed. Each
//! decision uses only the current state. Therefore a pass can stop at any point, and another process can continue.
//!
//! | state of the claim | requests, in this order |
//! |---|---|
//! | needs an address | finalizer on the claim, lease, IPAddress, status |
//! | is being deleted | delete the IPAddress, remove its finalizer, release the lease, remove the finalizer of the claim |
//! | does not exist, by a consistent read | delete the IPAddress, remove its finalizer, release the lease |
//! | has moved to another cluster with `clusterctl move` | the move in the lease, then the requests above |

mod adoptee;
mod recorded;
#[cfg(test)]
mod tests;

pub(crate) use adoptee::{Adoptee, Lesson, Unrecorded};
pub(crate) use recorded::{Held, Recorded, held_by, record, surplus};

use std::collections::BTreeSet;
use std::net::IpAddr;

use glowplug::host::address::parse_address;
use glowplug::host::allocator::ClaimError;
use glowplug::host::claim::{Claim, Claimant, Machine, Record, Request};
use glowplug::network::Family;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use crate::cluster::key::{Key, PoolId};
use crate::kinds::cluster_api::{
    ADDRESS_FINALIZER, CLAIM_FINALIZER, FAMILY_ANNOTATION, GROUP, IpAddress, IpAddressClaim, PAUSED_ANNOTATION,
    REQUEST_ANNOTATION, Version, has_finalizer, pool_kind,
};
use crate::kinds::ip_address_claim_status::{NotReady, Readiness};
use crate::kinds::pool::{CLUSTER_LABEL, HolderKind};
use crate::passes::Problem;
use crate::pools::facts::PoolFacts;

/// State of one name: the claim and the IPAddress of that name, and the objects on which they depend.
#[derive(Clone, Debug)]
pub(crate) struct View {
    pub(crate) key: Key,
    pub(crate) version: Version,
    /// The claim of the name. `None`: a consistent read found no claim.
    pub(crate) claim: Option<IpAddressClaim>,
    /// The IPAddress of the name. If the claim is being deleted or is gone, the IPAddress is from a consistent read.
    pub(crate) address: Option<IpAddress>,
    /// UIDs of earlier claims of this name that may hold an address, and of IPAddresses whose addresses were reserved
    /// without a claim. A consistent read has proved that each of these claims is gone, and that each of these
    /// IPAddresses is gone or has its claim.
    pub(crate) former: BTreeSet<String>,
    /// Whether this leader has seen the claim that owns the IPAddress end, or has seen its lease. Otherwise the owner may
    /// be the claim before a restore, which gave the claim of the name another UID.
    pub(crate) has_seen_owner: bool,
    /// UIDs of claims of this name that `clusterctl move` has moved to another cluster, where their machines keep the
    /// addresses. This pass has not yet recorded the move in the leases.
    pub(crate) moved: BTreeSet<String>,
    pub(crate) cluster: Cluster,
    /// Whether the watch filter of this controller selects the claim.
    pub(crate) is_watched: bool,
    /// Facts about the pool of the claim. `None`: the pool does not exist.
    pub(crate) pool: Option<PoolFacts>,
    pub(crate) ledger: Recorded,
    /// Why the registry did not allocate or adopt an address in this pass.
    pub(crate) problem: Option<Problem>,
    /// Whether this pass has released the addresses of the claim.
    pub(crate) is_released: bool,
    /// Whether this pass has tried to release the leases of the claim whose addresses are not in its IPAddress. A claim
    /// has such leases if two leaders have allocated addresses to it. The API server may refuse the release, so a pass
    /// tries only once.
    pub(crate) has_kept: bool,
    /// Whether this pass has written the status. The status is written only once in a pass: if the API server drops
    /// members that its schema lacks, the stored status never equals the desired status.
    pub(crate) is_status_written: bool,
}

/// State of the Cluster to which a claim belongs.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Cluster {
    /// The claim belongs to no Cluster.
    None,
    Running,
    Paused,
    /// The claim names a Cluster that does not exist.
    Absent,
}

/// The next request of a pass.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Step {
    /// No request is needed until something changes.
    Wait,
    /// Merges this value into the claim.
    PatchClaim(Value),
    /// Applies this JSON patch to the status of the claim. Afterwards, the status has this readiness.
    PatchStatus(Value, Readiness),
    /// Creates this IPAddress.
    CreateAddress(Value),
    /// Merges this value into the IPAddress.
    PatchAddress(Value),
    /// Deletes the IPAddress.
    DeleteAddress,
    /// Records that the claim holds the address of the IPAddress on this network.
    Adopt(Record, String),
    /// Claims an address.
    Claim(Claim),
    /// Keeps this address of the claimant and releases the other addresses of its family, which the claimant never
    /// received.
    Keep(Claimant, IpAddr),
    /// Removes the claim from the wait queue.
    Withdraw,
    /// Ends the records of these addresses, which the objects of the claim no longer have.
    EndRecords(Machine, BTreeSet<(String, IpAddr)>),
    /// Records that a claim has moved to another cluster with its addresses.
    RecordMove(Machine),
    /// Releases everything that a claim holds.
    Release(Machine),
}

/// Decides the next request. `now` becomes the transition time of each condition whose status changes.
pub(crate) fn decide(view: &View, now: Timestamp) -> Step {
    // clusterctl removes the finalizers, so a moved claim may be gone before the next pass.
    if let Some(uid) = view.moved.first() {
        return Step::RecordMove(view.key.holder(HolderKind::IpAddressClaim, uid));
    }
    match &view.claim {
        None => view.clean_up().unwrap_or(Step::Wait),
        Some(claim) if view.is_stopped(claim) => view.stop(claim, now),
        Some(claim) => view.clean_up().unwrap_or_else(|| view.go_on(claim, now)),
    }
}

// === impl Step ===

impl Step {
    /// The holder from which this request takes addresses. `None`: the request takes no address.
    pub(crate) fn frees_of(&self) -> Option<&Machine> {
        match self {
            Self::Keep(claimant, _) => Some(&claimant.machine),
            Self::EndRecords(holder, _) | Self::Release(holder) => Some(holder),
            Self::Wait
            | Self::PatchClaim(_)
            | Self::PatchStatus(..)
            | Self::CreateAddress(_)
            | Self::PatchAddress(_)
            | Self::DeleteAddress
            | Self::Adopt(..)
            | Self::Claim(_)
            | Self::Withdraw
            | Self::RecordMove(_) => None,
        }
    }
}

// === impl View ===

impl View {
    /// Whether the name has no claim, no IPAddress and no earlier claim that may hold an address.
    pub(crate) fn is_empty(&self) -> bool {
        self.claim.is_none() && self.address.is_none() && self.former.is_empty()
    }

    /// Whether the claim needs one particular address, and this address is not available now.
    pub(crate) fn waits_for_address(&self) -> bool {
        let held = self.ledger.held.iter().map(|held| held.address.ip());
        match &self.problem {
            Some(Problem::Refused(error)) if error.is_about_address() => true,
            problem => problem.as_ref().is_some_and(|problem| problem.lacks_record(held)),
        }
    }

    /// Whether the claim holds no address or has no IPAddress, and must get an address from a pool of this controller.
    pub(crate) fn is_waiting(&self) -> bool {
        let is_served = |claim: &IpAddressClaim| {
            claim.pool.resolve(&self.key.namespace).is_some() && !claim.is_deleted() && !self.is_stopped(claim)
        };
        let lacks_address = self.ledger.held.is_empty() || self.address.is_none();
        lacks_address && self.claim.as_ref().is_some_and(is_served)
    }

    /// Returns the step for a claim that is not stopped, after everything of the earlier claims is cleaned up.
    fn go_on(&self, claim: &IpAddressClaim, now: Timestamp) -> Step {
        if claim.is_deleted() {
            return self.end(claim);
        }
        if !self.ledger.unrecorded.is_empty() {
            let holder = self.key.holder(HolderKind::IpAddressClaim, claim.uid());
            return Step::EndRecords(holder, self.ledger.unrecorded.clone());
        }
        self.serve(claim, now)
    }

    /// Returns the step for a claim that is not served now. The step writes the reason into the status, because no
    /// other object shows the reason. A claim that has an address does not need its Cluster.
    fn stop(&self, claim: &IpAddressClaim, now: Timestamp) -> Step {
        if claim.pool.resolve(&self.key.namespace).is_none() || !self.is_watched {
            let is_pointed_out = self.is_watched && !is_paused(claim) && self.cluster == Cluster::Absent;
            return match is_pointed_out {
                true => self.clean_up().unwrap_or_else(|| self.point_out(claim, now)),
                false => self.hold_back(Step::Wait),
            };
        }
        // The IPAddress and the lease of an earlier claim stay while this claim is stopped: the claim may get this
        // address if it is restored together with the IPAddress.
        let is_own = |address: &IpAddress| !self.is_of_former(address);
        let has_address = self.address.as_ref().is_some_and(is_own) || !self.ledger.held.is_empty();
        let namespace = &self.key.namespace;
        let paused = |message: String| self.hold_back(self.report(claim, &Readiness::Paused(message), now));
        match (self.cluster, &claim.cluster) {
            _ if is_paused(claim) => paused(format!("The claim has the annotation {PAUSED_ANNOTATION}")),
            (Cluster::Paused, Some(name)) => paused(format!("Cluster {namespace}/{name} is paused")),
            (Cluster::Absent, Some(name)) if !has_address => {
                let message = format!("Cluster {namespace}/{name} does not exist");
                self.refuse(claim, NotReady::AllocationFailed, message, now)
            }
            _ => self.hold_back(Step::Wait),
        }
    }

    fn is_stopped(&self, claim: &IpAddressClaim) -> bool {
        let is_stopped = match self.cluster {
            Cluster::None | Cluster::Running => false,
            Cluster::Paused => true,
            // A Cluster may be deleted before the claims of its machines, so a claim that is being deleted needs no
            // Cluster.
            Cluster::Absent => !claim.is_deleted(),
        };
        is_paused(claim) || is_stopped || !self.is_watched
    }

    /// Returns the step that removes a waiting claim from the wait queue, because the claim must not get an address
    /// now. Returns `step` for a claim that does not wait.
    fn hold_back(&self, step: Step) -> Step {
        if self.ledger.waits { Step::Withdraw } else { step }
    }

    /// Returns the step that removes an object of an earlier claim of this name. The IPAddress is removed before the
    /// lease, so that two objects never have the same address. `None`: nothing is left, or the claim must first adopt
    /// the address of the IPAddress.
    fn clean_up(&self) -> Option<Step> {
        let address = self.address.as_ref().filter(|address| address.is_ours());
        match address {
            Some(address) if self.is_left(address) => Some(remove(address)),
            // The holder of the address may be an earlier claim. Its lease ends only after an attempt to adopt the
            // address, because the record of the address then keeps other claims from it.
            Some(address) if self.is_of_pool(address) => None,
            _ => self.release_former(),
        }
    }

    /// Whether an IPAddress is left over from an earlier claim. An IPAddress whose claim this leader has never seen is
    /// not left over: the claim may be created later, or a restore has given it another UID. The machine of such a claim
    /// may use the address, although the reference of the claim has changed.
    fn is_left(&self, address: &IpAddress) -> bool {
        let is_of_former = self.is_of_former(address);
        if self.claim.is_none() {
            return is_of_former || address.is_deleted();
        }
        let is_held = address.ip().is_some_and(|ip| self.holds(ip));
        let is_of_other_pool = || (self.ledger.is_of_former || self.has_seen_owner) && !self.is_of_pool(address);
        is_of_former && !is_held && (self.ledger.is_left_over || is_of_other_pool())
    }

    /// Whether an IPAddress is of the pool of the claim.
    fn is_of_pool(&self, address: &IpAddress) -> bool {
        let pool = self.claim.as_ref().and_then(|claim| claim.pool.resolve(&self.key.namespace));
        pool.is_some() && address.pool.resolve(&self.key.namespace) == pool
    }

    fn holds(&self, ip: IpAddr) -> bool {
        self.ledger.held.iter().any(|held| held.address.ip() == ip)
    }

    /// Whether the IPAddress was created for an earlier claim. If a claim is gone, the garbage collector removes the
    /// claim from the owners of its IPAddress, but keeps the IPAddress, because the pool also owns it. In this case the
    /// lease of the earlier claim is the proof.
    fn is_of_former(&self, address: &IpAddress) -> bool {
        self.ledger.is_of_former || address.owner().is_some_and(|uid| self.former.contains(uid))
    }

    fn release_former(&self) -> Option<Step> {
        self.former.first().map(|uid| Step::Release(self.key.holder(HolderKind::IpAddressClaim, uid)))
    }

    fn end(&self, claim: &IpAddressClaim) -> Step {
        if !has_finalizer(&claim.metadata, CLAIM_FINALIZER) || claim.is_in_use() {
            return self.hold_back(Step::Wait);
        }
        if let Some(address) = self.address.as_ref().filter(|address| address.is_ours()) {
            return remove(address);
        }
        if !self.is_released {
            return Step::Release(self.key.holder(HolderKind::IpAddressClaim, claim.uid()));
        }
        Step::PatchClaim(finalizers(&claim.metadata, without(&claim.metadata, CLAIM_FINALIZER)))
    }

    fn serve(&self, claim: &IpAddressClaim, now: Timestamp) -> Step {
        let Some(pool) = claim.pool.resolve(&self.key.namespace) else { return self.point_out(claim, now) };
        if !has_finalizer(&claim.metadata, CLAIM_FINALIZER) {
            let all = claim.metadata.finalizers.iter().flatten().cloned();
            let all = all.chain([CLAIM_FINALIZER.to_owned()]).collect();
            return Step::PatchClaim(finalizers(&claim.metadata, all));
        }
        let Some(address) = &self.address else {
            // If the claim holds an address of another pool, the registry decides: it moves the lease to the pool, or
            // refuses the request.
            let of_pool = self.ledger.held.iter().find(|held| held.pool == pool.to_string());
            return match of_pool {
                Some(held) => self.provide(claim, &pool, held, now),
                None => self.allocate(claim, &pool, now),
            };
        };
        if !address.is_ours() {
            let claim_of = &address.claim;
            let message = format!(
                "IPAddress {:?} belongs to claim {claim_of:?} of another pool, expected no IPAddress of this name",
                self.key.name
            );
            return self.refuse(claim, NotReady::AllocationFailed, message, now);
        }
        let Some(ip) = address.ip() else {
            let message =
                format!("IPAddress {:?}: invalid address {:?}, expected an IP address", self.key.name, address.address);
            return self.refuse(claim, NotReady::AllocationFailed, message, now);
        };
        if !self.holds(ip) {
            return self.adopt(claim, &pool, (address, ip), now);
        }
        if let Some(surplus) = surplus(&self.ledger.held, &[ip]).filter(|_| !self.has_kept) {
            let machine = self.key.holder(HolderKind::IpAddressClaim, claim.uid());
            return Step::Keep(Claimant { machine, interface: surplus.interface }, ip);
        }
        if let Some(patch) = self.repair(claim, &pool, address) {
            return Step::PatchAddress(patch);
        }
        let of_other = address.pool.resolve(&self.key.namespace).filter(|of| *of != pool);
        self.release_former().unwrap_or_else(|| self.report(claim, &Readiness::Ready(of_other), now))
    }

    /// Returns the step that writes into the status of a claim why its reference names no pool. No other provider
    /// serves such a claim. If the claim has an address, its status is kept.
    fn point_out(&self, claim: &IpAddressClaim, now: Timestamp) -> Step {
        match claim.pool.mistake().filter(|_| self.ledger.held.is_empty()) {
            Some(mistake) => self.refuse(claim, NotReady::AllocationFailed, mistake, now),
            None => self.hold_back(Step::Wait),
        }
    }

    /// Returns the next step for an IPAddress whose address the claim does not hold yet: adopt the address, or report
    /// why the claim cannot have the address.
    fn adopt(
        &self,
        claim: &IpAddressClaim,
        pool: &PoolId,
        (address, ip): (&IpAddress, IpAddr),
        now: Timestamp,
    ) -> Step {
        if !self.is_of_pool(address) {
            let of = address.pool.resolve(&self.key.namespace).map(|of| of.to_string()).unwrap_or_default();
            let message = format!(
                "IPAddress {:?} has an address of pool {of}, expected an address of pool {pool}",
                self.key.name
            );
            return self.refuse(claim, NotReady::AllocationFailed, message, now);
        }
        // The holder of the address may be an earlier claim of this name.
        if let Some(message) = self.problem.as_ref().and_then(Problem::of_record) {
            let refuse = || self.refuse(claim, NotReady::AllocationFailed, message, now);
            return self.release_former().unwrap_or_else(refuse);
        }
        match &self.ledger.pool {
            Some(registered) => {
                Step::Adopt(record(address, ip, claim.uid(), registered.interface), registered.network.clone())
            }
            None => self.refuse(claim, NotReady::PoolNotReady, why_not_ready(pool, self.pool.as_ref()), now),
        }
    }

    fn allocate(&self, claim: &IpAddressClaim, pool: &PoolId, now: Timestamp) -> Step {
        let refuse = |reason, message| self.refuse(claim, reason, message, now);
        match &self.problem {
            Some(problem @ Problem::Refused(ClaimError::Exhausted { .. })) => {
                return self.report(claim, &Readiness::NotReady(NotReady::PoolExhausted, problem.of_claim()), now);
            }
            Some(problem) if problem.is_of_opening() => return Step::Wait,
            Some(problem) if problem.is_of_pool() => {
                return self.report(
                    claim,
                    &Readiness::NotReady(NotReady::PoolNotReady, why_not_ready(pool, self.pool.as_ref())),
                    now,
                );
            }
            Some(problem @ Problem::Refused(error)) if error.is_about_address() => {
                let annotations = claim.metadata.annotations.as_ref();
                let at = match annotations.is_some_and(|all| all.contains_key(REQUEST_ANNOTATION)) {
                    true => format!("annotation {REQUEST_ANNOTATION}"),
                    false => format!("spec.preAllocations of {} {pool}", pool_kind(pool).kind),
                };
                let message = problem.of_request(&at);
                return self.report(claim, &Readiness::NotReady(NotReady::AllocationFailed, message), now);
            }
            Some(problem) => return refuse(NotReady::AllocationFailed, problem.of_claim()),
            None => {}
        }
        let (Some(PoolFacts { ready: Ok(()), sticky, .. }), Some(registered)) = (&self.pool, &self.ledger.pool) else {
            return refuse(NotReady::PoolNotReady, why_not_ready(pool, self.pool.as_ref()));
        };
        let annotation = |name: &str| claim.metadata.annotations.as_ref()?.get(name).map(String::as_str);
        let requested = match annotation(REQUEST_ANNOTATION).map(parse_address).transpose() {
            Ok(requested) => requested,
            Err(error) => {
                let message = error.at(format!("annotation {REQUEST_ANNOTATION}")).to_string();
                return refuse(NotReady::AllocationFailed, message);
            }
        };
        let family = match annotation(FAMILY_ANNOTATION) {
            Some("IPv4") => Some(Family::Ipv4),
            Some("IPv6") => Some(Family::Ipv6),
            Some(other) => {
                let message =
                    format!("annotation {FAMILY_ANNOTATION}: invalid family {other:?}, expected IPv4 or IPv6");
                return refuse(NotReady::AllocationFailed, message);
            }
            None => None,
        };
        if let Some((family, requested)) = family.zip(requested).filter(|(family, it)| *family != Family::of(*it)) {
            let message = format!(
                "annotation {REQUEST_ANNOTATION}: wrong family \"{requested}\", expected {family} as in \
                 {FAMILY_ANNOTATION}"
            );
            return refuse(NotReady::AllocationFailed, message);
        }
        let family = family.or(requested.map(Family::of));
        if family.is_none() && registered.families.len() > 1 {
            let message = format!(
                "{} {pool} has IPv4 and IPv6 addresses, expected annotation {FAMILY_ANNOTATION} on the claim",
                pool_kind(pool).kind
            );
            return refuse(NotReady::PoolNotReady, message);
        }
        Step::Claim(Claim {
            machine: self.key.holder(HolderKind::IpAddressClaim, claim.uid()),
            created: claim.created(),
            requests: vec![Request { family, addresses: Vec::from_iter(requested), ..Request::of(&pool.to_string()) }],
            sticky: *sticky,
            secret: None,
        })
    }

    /// Returns the step that creates the IPAddress of a claim. The pool gives the gateway of the IPAddress, which
    /// cannot be changed later. So the registry must have the pool.
    fn provide(&self, claim: &IpAddressClaim, pool: &PoolId, held: &Held, now: Timestamp) -> Step {
        let (Some(pool_owner), Some(registered)) = (self.pool_owner(pool), &self.ledger.pool) else {
            return self.refuse(claim, NotReady::PoolNotReady, why_not_ready(pool, self.pool.as_ref()), now);
        };
        let ip = held.address.ip();
        let gateway = registered.gateways.iter().find(|gateway| gateway.is_ipv4() == ip.is_ipv4());
        let mut spec = json!({
            "poolRef": claim.pool,
            "claimRef": {"name": self.key.name},
            "address": ip.to_string(),
            "prefix": held.address.prefix(),
        });
        if let Some(gateway) = gateway {
            spec["gateway"] = gateway.to_string().into();
        }
        let mut metadata = json!({
            "name": self.key.name,
            "namespace": self.key.namespace,
            "finalizers": [ADDRESS_FINALIZER],
            "ownerReferences": [self.owner(claim), pool_owner],
        });
        if let Some(cluster) = &claim.cluster {
            metadata["labels"] = json!({(CLUSTER_LABEL): cluster});
        }
        Step::CreateAddress(json!({"metadata": metadata, "spec": spec}))
    }

    /// Returns the patch that sets the finalizer of the IPAddress and makes the claim its owner. `None`: the IPAddress
    /// needs no change.
    fn repair(&self, claim: &IpAddressClaim, pool: &PoolId, address: &IpAddress) -> Option<Value> {
        let is_owned = address.owner() == Some(claim.uid());
        let is_protected = has_finalizer(&address.metadata, ADDRESS_FINALIZER) || address.is_deleted();
        if is_owned && is_protected {
            return None;
        }
        let mut all = address.metadata.finalizers.clone().unwrap_or_default();
        if !is_protected {
            all.push(ADDRESS_FINALIZER.to_owned());
        }
        let mut patch = finalizers(&address.metadata, all);
        if !is_owned {
            let owners: Vec<OwnerReference> = [self.owner(claim)].into_iter().chain(self.pool_owner(pool)).collect();
            patch["metadata"]["ownerReferences"] = json!(owners);
        }
        Some(patch)
    }

    fn owner(&self, claim: &IpAddressClaim) -> OwnerReference {
        OwnerReference {
            api_version: format!("{GROUP}/{}", self.version.name()),
            kind: "IPAddressClaim".to_owned(),
            name: self.key.name.clone(),
            uid: claim.uid().to_owned(),
            controller: Some(true),
            block_owner_deletion: Some(true),
        }
    }

    fn pool_owner(&self, pool: &PoolId) -> Option<OwnerReference> {
        let kind = pool_kind(pool);
        Some(OwnerReference {
            api_version: kind.api_version,
            kind: kind.kind,
            name: pool.name.clone(),
            uid: self.pool.as_ref()?.uid.clone(),
            controller: Some(false),
            block_owner_deletion: Some(true),
        })
    }

    /// Returns the step that reports in the status why a claim gets no address. A waiting claim is first removed from
    /// the wait queue, because waiting does not help.
    fn refuse(&self, claim: &IpAddressClaim, reason: NotReady, message: String, now: Timestamp) -> Step {
        self.hold_back(self.report(claim, &Readiness::NotReady(reason, message), now))
    }

    fn report(&self, claim: &IpAddressClaim, readiness: &Readiness, now: Timestamp) -> Step {
        let patch = claim.status_patch(self.version, readiness, now).filter(|_| !self.is_status_written);
        patch.map_or(Step::Wait, |patch| Step::PatchStatus(patch, readiness.clone()))
    }
}

/// Whether a claim has the annotation that pauses it.
fn is_paused(claim: &IpAddressClaim) -> bool {
    claim.metadata.annotations.as_ref().is_some_and(|all| all.contains_key(PAUSED_ANNOTATION))
}

/// Returns why a pool allocates no address to a claim. `facts` is `None` if the pool does not exist.
pub(crate) fn why_not_ready(pool: &PoolId, facts: Option<&PoolFacts>) -> String {
    let kind = pool_kind(pool).kind;
    match facts.map(|facts| &facts.ready) {
        None => format!(
            "{kind} {pool} does not exist, expected a StaticIPPool in the namespace of the claim, or a GlobalStaticIPPool"
        ),
        Some(Err(message)) => format!("{kind} {pool} does not serve this claim: {message}"),
        Some(Ok(())) => format!("{kind} {pool} does not allocate addresses yet"),
    }
}

/// Returns the next step that removes an IPAddress. The deletion comes before the removal of the finalizer: nothing can
/// undo a deletion, so every later leader knows that the IPAddress must go, even if the garbage collector has changed
/// its owners. If another controller has a finalizer on the IPAddress, the IPAddress stays.
fn remove(address: &IpAddress) -> Step {
    if !address.is_deleted() {
        Step::DeleteAddress
    } else if has_finalizer(&address.metadata, ADDRESS_FINALIZER) {
        Step::PatchAddress(finalizers(&address.metadata, without(&address.metadata, ADDRESS_FINALIZER)))
    } else {
        Step::Wait
    }
}

pub(crate) fn without(metadata: &ObjectMeta, finalizer: &str) -> Vec<String> {
    metadata.finalizers.iter().flatten().filter(|name| *name != finalizer).cloned().collect()
}

/// Returns the patch that sets the finalizers of an object. The patch names the version of the object, because it
/// replaces the whole list.
pub(crate) fn finalizers(metadata: &ObjectMeta, finalizers: Vec<String>) -> Value {
    json!({"metadata": {"resourceVersion": metadata.resource_version, "finalizers": finalizers}})
}
