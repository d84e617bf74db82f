//! Gets addresses that another program chooses: from the IPAMClaim of a machine, or from an IPAddressClaim that the
//! controller creates for the machine. The decisions are pure, like those of [`super::decision`].
//!
//! | source | addresses | gateway |
//! |---|---|---|
//! | `ipamClaim` | `status.ips` of the IPAMClaim `VM.INTERFACE` | of the pool |
//! | `poolRef` | the IPAddress of the IPAddressClaim `VM-INTERFACE` | of the IPAddress, otherwise of the pool |
//!
//! These rules prevent two machines from using the same address:
//!
//! - An address is recorded as a lease before it is written to the Secret. If another machine holds the address, from
//!   any source, the address cannot be recorded.
//! - If a source replaces an address, the machine gets the new address only if no guest can have read the earlier
//!   address.
//! - An IPAddressClaim has no owner: the owner's deletion would end the claim while the guest still runs, and the other
//!   provider would allocate the address again. A finalizer keeps the IPAddress until the lease is released. The claim
//!   is deleted after that.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use glowplug::host::allocator::{ClaimError, EXHAUSTED_MESSAGE};
use glowplug::host::claim::{Allocation, Claimant, is_object_name};
use glowplug::network::{Family, InterfaceName};
use ipnetwork::IpNetwork;

use crate::kinds::cluster_api::{PoolRef, has_finalizer};
use crate::kinds::ipam_claim::{IpamClaim, claim_name};
use crate::kinds::kubevirt_machine::{Instance, OwnSecret, is_deleted, uid};
use crate::kinds::pool::ProviderPoolRef;
use crate::kinds::virtual_machine::VirtualMachine;
use crate::machines::recorded::Held;
use crate::machines::source::{
    Answer, IN_USE_FINALIZER, MachineClaim, Offer, Source, answer_without_address, claim_of, finalize, new_claim,
};
use crate::machines::step::{Hold, Notice, Once, Step};
use crate::machines::view::{Check, Claimed, PoolSettings, View};
use crate::passes::Problem;
use crate::pools::selection::Selected;

// === impl View ===

impl View {
    /// Returns the addresses that sources give to the machine, by interface, after the registry has recorded them.
    /// `Err`: the next step, because an address is not known, cannot be used, or is not recorded.
    pub(super) fn offers(
        &self,
        vm: &VirtualMachine,
        selected: &[Selected],
        claimed: &Claimed,
    ) -> Result<BTreeMap<InterfaceName, Offer>, Step> {
        let mut offers = BTreeMap::new();
        for selected in selected {
            let pool = selected.pool.to_string();
            let Some(PoolSettings { source: Some(source), .. }) = self.pools.get(&pool) else { continue };
            let answer = self.ask(vm, selected, source, claimed);
            if let Answer::Wait(_) | Answer::Exhausted(_) = &answer
                && let Some(step) = self.end_offers(vm, claimed)
            {
                return Err(step);
            }
            let offer = match answer {
                Answer::Offer(offer) => offer,
                Answer::Step(step) => return Err(step),
                Answer::Wait(missing) => {
                    let note = format!("Waiting for {missing}");
                    return Err(self.tell(Notice { is_warning: false, reason: "AddressPending", note }));
                }
                Answer::Exhausted(problem) => {
                    let note = format!("{EXHAUSTED_MESSAGE}{}: {problem}", selected.interface);
                    return Err(self.report("IPPoolExhausted", note));
                }
                Answer::Refused(problem) => return Err(self.report("IPAddressConflict", problem)),
                Answer::Invalid(problem) => return Err(self.refuse(problem)),
            };
            if let Some(step) = self.record(selected, &pool, claimed, &offer) {
                return Err(step);
            }
            offers.insert(selected.interface, offer);
        }
        Ok(offers)
    }

    /// Returns the step that ends the records of addresses that sources gave to the machine earlier and do not give
    /// now. `None`: there is no such address, or a request is necessary before a source answers.
    fn end_offers(&self, vm: &VirtualMachine, claimed: &Claimed) -> Option<Step> {
        let mut offered = BTreeSet::new();
        for selected in self.interfaces(vm, &claimed.machine).iter().flatten() {
            let pool = self.pools.get(&selected.pool.to_string());
            let Some(source) = pool.and_then(|pool| pool.source.as_ref()) else { continue };
            match self.ask(vm, selected, source, claimed) {
                Answer::Offer(offer) => offered.extend(offer.addresses.iter().map(IpNetwork::ip)),
                Answer::Step(_) => return None,
                Answer::Wait(_) | Answer::Exhausted(_) | Answer::Refused(_) | Answer::Invalid(_) => {}
            }
        }
        self.end_records(&offered, None)
    }

    /// Returns the step that records the addresses of an offer as leases. `None`: the machine holds all these
    /// addresses.
    fn record(&self, selected: &Selected, pool: &str, claimed: &Claimed, offer: &Offer) -> Option<Step> {
        let claimant = Claimant { machine: claimed.machine.clone(), interface: selected.interface };
        let own = || self.ledger.held.iter().filter(|held| held.claimant == claimant);
        let is_held =
            |address: &IpNetwork| own().any(|held| held.network == selected.network && held.address == address.ip());
        if offer.addresses.iter().all(is_held) {
            return None;
        }
        if let Some(problem) = &self.problem {
            return Some(match problem {
                Problem::Refused(ClaimError::UnknownPool(_) | ClaimError::Suspended(_)) => Step::Wait,
                problem => self.report("IPAddressConflict", format!("{}: {problem}", offer.source)),
            });
        }
        let ips: Vec<IpAddr> = offer.addresses.iter().map(IpNetwork::ip).collect();
        let is_other = |held: &&Held| {
            !ips.contains(&held.address) && ips.iter().any(|ip| Family::of(*ip) == Family::of(held.address))
        };
        if let Some(other) = own().find(is_other) {
            return Some(self.follow(other, claimant, offer));
        }
        let Offer { source, addresses, .. } = offer.clone();
        Some(Step::Hold(Box::new(Hold { pool: pool.to_owned(), claimant, addresses, source })))
    }

    /// Returns the next step after a source has replaced an address. The step releases the earlier address, unless a
    /// guest may have read it.
    fn follow(&self, other: &Held, claimant: Claimant, offer: &Offer) -> Step {
        let ips: Vec<IpAddr> = offer.addresses.iter().map(IpNetwork::ip).collect();
        let waits_for = self.vm.as_ref().and_then(VirtualMachine::secret);
        let may_have_read = |instance: &Instance| {
            instance.has_started || (instance.secret().is_some() && instance.secret() != waits_for)
        };
        let (current, earlier): (BTreeSet<String>, BTreeSet<String>) =
            other.secrets.iter().cloned().partition(|name| Some(name.as_str()) == waits_for);
        match &self.instance {
            _ if !self.has_done(Once::ReadInstance) => Step::ReadInstance,
            Some(instance) if may_have_read(instance) => {
                let given: Vec<String> = ips.iter().map(ToString::to_string).collect();
                let (given, held) = (given.join(", "), other.address);
                let note = format!("{}: {given}, expected {held}, which the guest may use", offer.source);
                self.report("IPAddressConflict", note)
            }
            // KubeVirt may start a guest from an older version of the VirtualMachine.
            _ if !earlier.is_empty() && !self.has_done(Once::DropSecrets) => {
                Step::DropSecrets(Box::new(claimant.machine), earlier, current)
            }
            _ => Step::Keep(Box::new(claimant), ips),
        }
    }

    /// Checks that the registry allocated exactly the addresses of an offer. `Err`: the message about the difference.
    pub(super) fn check_offer(offer: &Offer, allocation: &Allocation) -> Result<(), String> {
        let text = |addresses: &[IpNetwork]| {
            let mut ips: Vec<IpAddr> = addresses.iter().map(IpNetwork::ip).collect();
            ips.sort_unstable();
            ips.iter().map(ToString::to_string).collect::<Vec<String>>().join(", ")
        };
        let (given, held) = (text(&offer.addresses), text(&allocation.addresses));
        if given == held {
            Ok(())
        } else {
            Err(format!("{}: {given}, expected {held}, which the machine holds", offer.source))
        }
    }

    fn ask(&self, vm: &VirtualMachine, selected: &Selected, source: &Source, claimed: &Claimed) -> Answer {
        match &source.from.pool_ref {
            Some(pool) => self.ask_provider(selected, source, pool, claimed),
            None => self.ask_ipam_claim(vm, selected, source),
        }
    }

    fn ask_ipam_claim(&self, vm: &VirtualMachine, selected: &Selected, source: &Source) -> Answer {
        let name = claim_name(&self.key.name, &selected.attachment);
        let title = format!("IPAMClaim {}/{name}", self.key.namespace);
        if !self.kinds.has_ipam_claims {
            return Answer::Wait(format!("{title}: the API server does not serve IPAMClaims"));
        }
        if !is_object_name(&name) {
            return Answer::Invalid(format!(
                "{title}: invalid name, expected an interface name of lower case letters, digits, '-' and '.'"
            ));
        }
        match self.sources.ipam_claims.get(&name) {
            None => Answer::Wait(format!("{title}: it does not exist")),
            Some(claim) if is_deleted(&claim.metadata) => Answer::Wait(format!("{title}: it is being deleted")),
            Some(claim) if claim.owner().is_some_and(|owner| owner != uid(&vm.metadata)) => {
                Answer::Wait(format!("{title}: it belongs to an earlier VirtualMachine"))
            }
            Some(IpamClaim { ips, problem, .. }) if ips.is_empty() => answer_without_address(&title, problem.as_ref()),
            Some(claim) => source.offer(title, &claim.ips, None),
        }
    }

    fn ask_provider(&self, selected: &Selected, source: &Source, pool: &ProviderPoolRef, claimed: &Claimed) -> Answer {
        let name = claim_of(&self.key.name, &selected.interface);
        let title = format!("IPAddressClaim {}/{name}", self.key.namespace);
        let Some(version) = self.kinds.claims else {
            return Answer::Wait(format!("{title}: the API server does not serve IPAddressClaims"));
        };
        if !is_object_name(&name) {
            return Answer::Invalid(format!("{title}: invalid name, expected lower case letters, digits, '-' and '.'"));
        }
        let claimant = Claimant { machine: claimed.machine.clone(), interface: selected.interface };
        let Some(claim) = self.sources.claims.iter().find(|claim| claim.key().name == name) else {
            if let Some(Problem::Mismatch(problem, _)) = &self.problem {
                return Answer::Refused(problem.clone());
            }
            let claim = new_claim(&self.key, claimed.machine.clone(), selected.interface, pool, version);
            return Answer::Step(Step::CreateClaim(claim));
        };
        if claim.claimant != claimant {
            return Answer::Wait(format!("{title}: it belongs to an earlier machine, {}", claim.claimant.machine));
        }
        if is_deleted(&claim.metadata) {
            return Answer::Wait(format!("{title}: it is being deleted"));
        }
        let PoolRef { api_group, kind, name } = &claim.pool;
        if (api_group.as_deref(), kind, name) != (Some(pool.api_group.as_str()), &pool.kind, &pool.name) {
            return Answer::Refused(format!(
                "{title}: it belongs to {kind} {name}, expected {} {}",
                pool.kind, pool.name
            ));
        }
        let Some(name) = &claim.address else { return answer_without_address(&title, claim.problem.as_ref()) };
        let title = format!("IPAddress {}/{name}", self.key.namespace);
        match self.addresses.get(name) {
            None => Answer::Step(Step::ReadAddress(name.clone())),
            Some(None) => Answer::Wait(format!("{title}: it does not exist")),
            Some(Some(Err(problem))) => Answer::Invalid(format!("{title}: {problem}")),
            Some(Some(Ok(address))) if address.claim != claim.key().name => {
                let expected = claim.key().name;
                Answer::Refused(format!("{title}: it belongs to claim {}, expected {expected}", address.claim))
            }
            Some(Some(Ok(address))) if address.pool != claim.pool => Answer::Refused(format!(
                "{title}: it belongs to {} {}, expected {} {}",
                address.pool.kind, address.pool.name, pool.kind, pool.name
            )),
            Some(Some(Ok(address))) if address.is_deleted() => Answer::Wait(format!("{title}: it is being deleted")),
            Some(Some(Ok(address))) if !has_finalizer(&address.metadata, IN_USE_FINALIZER) => {
                Answer::Step(Step::PatchAddress(name.clone(), finalize(&address.metadata, true)))
            }
            Some(Some(Ok(address))) => {
                let text = format!("{}/{}", address.address, address.prefix);
                source.offer(title, &[text], address.gateway.as_deref().filter(|gateway| !gateway.is_empty()))
            }
        }
    }

    /// Returns the offers of sources to a machine that has its Secret. `None`: a source does not offer the addresses in
    /// the Secret.
    pub(super) fn known_offers(
        &self,
        vm: &VirtualMachine,
        selected: &[Selected],
        own: &OwnSecret,
    ) -> Option<BTreeMap<InterfaceName, Offer>> {
        let claimed = Claimed { machine: own.machine.clone(), created: Default::default() };
        let mut offers = BTreeMap::new();
        for selected in selected {
            let pool = self.pools.get(&selected.pool.to_string());
            let Some(source) = pool.and_then(|pool| pool.source.as_ref()) else { continue };
            let given = own.interfaces.iter().find(|given| given.interface == selected.interface)?;
            let Answer::Offer(offer) = self.ask(vm, selected, source, &claimed) else { return None };
            Self::check_offer(&offer, &given.allocation(own)).ok()?;
            offers.insert(selected.interface, offer);
        }
        Some(offers)
    }

    /// Compares the sources with the Secret of a machine. Returns the step that reports the first difference; the guest
    /// then keeps the address of its Secret. If the comparison needs an IPAddress or its finalizer, returns the step
    /// that reads or patches the IPAddress. `None`: every source gives the address in the Secret.
    pub(super) fn compare_sources(&self, vm: &VirtualMachine, own: &OwnSecret) -> Option<Step> {
        let claimed = Claimed { machine: own.machine.clone(), created: Default::default() };
        let selected = self.interfaces(vm, &own.machine)?;
        own.interfaces.iter().find_map(|given| {
            let Some(PoolSettings { source: Some(source), .. }) = self.pools.get(&given.pool) else { return None };
            let selected = selected.iter().find(|selected| selected.interface == given.interface)?;
            let differs = match self.ask(vm, selected, source, &claimed) {
                Answer::Offer(offer) => Self::check_offer(&offer, &given.allocation(own)).err()?,
                Answer::Step(Step::CreateClaim(_)) => {
                    let name = claim_of(&self.key.name, &given.interface);
                    format!("IPAddressClaim {}/{name}: it does not exist", self.key.namespace)
                }
                // The step reads the IPAddress, or adds its finalizer again.
                Answer::Step(step) => return Some(step),
                Answer::Wait(problem) | Answer::Exhausted(problem) => problem,
                Answer::Refused(problem) | Answer::Invalid(problem) => problem,
            };
            Some(self.report("IPAddressConflict", format!("{differs}; the guest keeps the address of its Secret")))
        })
    }

    /// Whether the interface of an IPAddressClaim is one that pools serve. The machine may need the name of the claim.
    pub(super) fn serves(&self, claim: &MachineClaim) -> bool {
        let mut served = self.selected.iter().flatten().chain(&self.kept);
        served.any(|selected| selected.interface == claim.claimant.interface)
    }

    /// Returns the next step that ends those IPAddressClaims among `claims` whose machines are gone and whose leases are
    /// released, or that checks whether the next machine of a claim is gone. So each step makes progress, even if the
    /// pass has fewer steps than there are claims. `None`: nothing is left to do.
    pub(super) fn end_claims<'v>(&self, claims: impl Iterator<Item = &'v MachineClaim> + Clone) -> Option<Step> {
        let is_gone = |claim: &&MachineClaim| self.checked.get(&claim.claimant.machine) == Some(&Check::Gone);
        let ended = claims.clone().filter(is_gone).find_map(|claim| self.end_claim(claim));
        ended.or_else(|| self.check_first(claims.map(|claim| &claim.claimant.machine)))
    }

    /// Returns the next step that ends an IPAddressClaim. `None`: nothing is left to do.
    fn end_claim(&self, claim: &MachineClaim) -> Option<Step> {
        let name = claim.address_name();
        match self.addresses.get(&name) {
            None => return Some(Step::ReadAddress(name)),
            Some(Some(Ok(address))) if has_finalizer(&address.metadata, IN_USE_FINALIZER) => {
                return Some(Step::PatchAddress(name, finalize(&address.metadata, false)));
            }
            Some(_) => {}
        }
        if !is_deleted(&claim.metadata) {
            return Some(Step::DeleteClaim(claim.key().name, uid(&claim.metadata).to_owned()));
        }
        let is_ours = has_finalizer(&claim.metadata, IN_USE_FINALIZER);
        is_ours.then(|| Step::PatchClaim(claim.key().name, finalize(&claim.metadata, false)))
    }
}
