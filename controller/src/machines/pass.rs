//! Runs the pass of one name: collects what is known, sends the request of each step, and updates the view with the
//! response.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::time::Instant;

use crate::cluster::key::{Key, PoolId};
use crate::kinds::ipam_claim::claim_name;
use crate::kinds::network_data::new_name;
use crate::machines::decision::decide;
use crate::machines::known_machines::KnownMachines;
use crate::machines::recorded::Recorded;
use crate::machines::source::Source;
use crate::machines::step::Step;
use crate::machines::view::{OUTDATED, PoolSettings, View};
use crate::machines::work::Work;
use crate::passes::{Ended, Error, LONGEST_PASS, Until};
use crate::pools::machine_states::State;
use crate::pools::selection::Selected;

/// Maximum number of steps that end an IPAddressClaim of a machine that is gone: check the machine, read the IPAddress,
/// remove its finalizer, delete the claim, remove its finalizer.
const STEPS_OF_CLAIM: usize = 5;

/// Maximum number of IPAddressClaims for which a pass has more steps. Users can create any number of claims.
const MOST_CLAIMS: usize = 16;

/// Whether the pools that served an interface still serve it. A further overflow pool makes no difference.
fn is_served_as(before: &Selected, now: &Selected) -> bool {
    let of = |it: &Selected| (it.network.clone(), it.interface, it.attachment.clone());
    of(before) == of(now) && before.pools().all(|pool| now.pools().any(|it| it == pool))
}

// === impl Work ===

impl Work<'_> {
    /// Runs a pass for the machine of a name.
    pub(super) async fn run(&self, key: Key, until: Until) -> Result<Ended, Error> {
        // Only the holder of an unreadable lease has no namespace. This holder keeps its address until a person
        // corrects the lease.
        if key.namespace.is_empty() {
            return Ok(Ended::Well);
        }
        let mut view = self.look(&key).await?;
        let ended = self.take_steps(&mut view, until).await;
        // The status of the pools counts the machine by its current state, even after a failed pass.
        self.note_lacking(&mut view);
        self.machines.states.note_refused(&key, view.refused());
        ended
    }

    /// Decides and sends requests until nothing is left to do.
    async fn take_steps(&self, view: &mut View, until: Until) -> Result<Ended, Error> {
        let key = view.key.clone();
        let check = self.index().take_comparison(&key);
        if check.is_some() {
            view.trust_digest();
        }
        // The check of each holder needs one more step, and the end of a claim needs some.
        let claims = STEPS_OF_CLAIM * view.sources.claims.len().min(MOST_CLAIMS);
        for _ in 0..LONGEST_PASS + view.ledger.known.len() + claims {
            if self.has_other_pools(view) {
                // The pools have changed, or a request of this pass found another version of the VirtualMachine, so the
                // pass begins again. The watch causes no further pass for a version that is known already.
                *view = self.look(&key).await?;
            }
            self.note_lacking(view);
            self.forget_left(view);
            let step = match decide(view) {
                Step::Wait => {
                    self.note_state(view);
                    let check = check.filter(|_| view.trusts_digest).map(Ended::Check);
                    let ended = view.ended(self.machines.registry.now());
                    return Ok(check.filter(|_| ended == Ended::Well).unwrap_or(ended));
                }
                _ if view.trusts_digest => {
                    view.distrust_digest();
                    continue;
                }
                step if step.follows_pools() && self.is_behind(view) => return Ok(Ended::Later),
                Step::Claim(claim) if until == Until::Claim => {
                    self.note_claimant(&key, &claim.machine);
                    return Ok(Ended::BeforeClaim(*claim));
                }
                step => step,
            };
            let response = self.request(view, step.clone()).await?;
            let changes_registry = step.changes_registry();
            view.note(step, response);
            let (records, left) = (std::mem::take(&mut view.records), std::mem::take(&mut view.left));
            self.look_again(view);
            // A record that was written meanwhile must count before an annotation is written again.
            if changes_registry || records != view.records || left != view.left {
                self.read_registry(view).await?;
            }
        }
        Err(Error::Endless)
    }

    /// Whether the pools that serve the machine have changed since this pass began.
    fn has_other_pools(&self, view: &View) -> bool {
        let index = self.index();
        index.selected(&view.key) != view.selected || index.kept(&view.key) != view.kept
    }

    /// Whether the webhooks already use other pools for the VirtualMachine than this pass. The index gets changed pools
    /// later than the webhooks: after the registry has the pools, and after the records of new addresses are adopted.
    fn is_behind(&self, view: &View) -> bool {
        let (Some(seen), Some(vm)) = (self.machines.pools.current(), &view.vm) else { return false };
        match (seen.of(vm), &view.selected) {
            (Ok(seen), Ok(selected)) => {
                let is_kept = |it: &Selected| seen.iter().any(|seen| is_served_as(it, seen));
                seen.len() != selected.len() || !selected.iter().all(is_kept)
            }
            (seen, selected) => seen.map_err(|problem| problem.to_string()) != *selected,
        }
    }

    /// Notes the state of the machine for the status of its pools: the addresses of a migrated guest are not held, the
    /// guest runs with earlier network data, or the machine is left alone. If the guest has read its current network
    /// data, the event about earlier network data is forgotten, so that it can be published again later.
    fn note_state(&self, view: &View) {
        let outdated = view.outdated_pools();
        if outdated.is_empty() && view.memory.notice.as_ref().is_some_and(|notice| notice.reason == OUTDATED) {
            self.index().remember(&view.key, |memory| memory.notice = None);
        }
        let states = [(State::NotHeld, view.pools_that_hold_no_more()), (State::Outdated, outdated)];
        let state = states.into_iter().find(|(_, pools)| !pools.is_empty());
        let left = Some((State::LeftAlone, view.pools_that_leave_alone())).filter(|(_, pools)| !pools.is_empty());
        self.machines.states.note(&view.key, state.into_iter().chain(left).collect());
    }

    /// Collects the known state of a name from the index and the registry.
    pub(super) async fn look(&self, key: &Key) -> Result<View, Error> {
        let mut view = View::new(key.clone(), self.kinds);
        view.new_name = new_name(&key.name).map_err(|problem| Error::NotReady(problem.to_owned()))?;
        {
            let index = self.index();
            // The pools are read together with their settings, so that both are of the same state. A pass begins again
            // when other pools serve the machine.
            view.selected = index.selected(key);
            view.kept = index.kept(key);
            view.pools = settings(&index, view.selected.iter().flatten().chain(&view.kept));
            let selected = view.selected.as_deref().unwrap_or_default();
            view.other_networks = index.other_networks(key, index.selection(), selected);
        }
        self.look_again(&mut view);
        self.read_registry(&mut view).await?;
        Ok(view)
    }

    /// Updates the view with the objects that watches and responses have reported since the last update.
    fn look_again(&self, view: &mut View) {
        let index = self.index();
        let key = &view.key;
        view.vm = index.vm(key).cloned();
        view.instance = index.instance(key).cloned();
        view.memory = index.memory(key);
        view.left = index.left(key);
        view.is_repeat_due = view.memory.is_repeat_due(Instant::now());
        (view.records, view.doubts) = index.records_of(key);
        view.sources.claims = index.claims_of(key);
        // A user who has the right to create claims can name any machine in a claim, so claims of other machines are
        // left out. If neither a VirtualMachine nor an instance exists, all claims count, because a pass can then only
        // end claims.
        let has_guest = view.vm.is_some() || view.instance.is_some();
        view.sources.claims.retain(|claim| !has_guest || index.is_machine_of(&claim.claimant.machine, key));
        let attachments = view.vm.iter().flat_map(|vm| &vm.networks);
        let ipam_claims = attachments.filter_map(|attachment| {
            let name = claim_name(&key.name, &attachment.name);
            let claim = index.ipam_claim(&Key { namespace: key.namespace.clone(), name: name.clone() })?;
            Some((name, claim.clone()))
        });
        view.sources.ipam_claims = ipam_claims.collect();
        view.has_status_map = self.has_status_map.load(Ordering::Relaxed);
        view.machine = index.machine(key).cloned();
    }

    /// Forgets the migrated guests of a name, if the leases have the migration and the instances are gone.
    fn forget_left(&self, view: &mut View) {
        if !view.left.is_empty() && view.has_recorded_migrations() {
            let mut index = self.index();
            index.forget_left(&view.key, &view.left);
            (view.left, view.memory) = (index.left(&view.key), index.memory(&view.key));
        }
    }

    /// Notes the pools without a free address, because of which the webhook would reject the VirtualMachine again.
    fn note_lacking(&self, view: &mut View) {
        // The webhooks decide whether capk can create the VirtualMachine, so their pools count. The pools of the index
        // can be older.
        let seen = self.machines.pools.current();
        let seen = seen.unwrap_or_else(|| Arc::clone(self.index().selection()));
        view.lacking = view.lacking_in(&seen);
    }

    pub(super) async fn read_registry(&self, view: &mut View) -> Result<(), Error> {
        let (key, earlier) = (view.key.clone(), self.index().earlier_of(&view.key));
        // The search looks at each claim of the namespace, and only a guest that has left needs the claims.
        let claims = if view.left.is_empty() { BTreeSet::new() } else { self.index().ipam_claims_of(&key) };
        let (records, may_be_copies) = (view.records.clone(), view.may_have_copies());
        let doubted: BTreeSet<IpAddr> = view.doubts.iter().flat_map(|doubt| doubt.addresses.iter().copied()).collect();
        let selected = view.selected.iter().flatten().chain(&view.kept);
        let pools: Vec<String> = selected.flat_map(Selected::all_pools).map(PoolId::to_string).collect();
        let (scope, growth) = (self.machines.scope.namespace.clone(), self.index().growth());
        let read = self.machines.registry.read(move |allocator| {
            let records = (&records[..], &doubted, may_be_copies, growth);
            Recorded::read(allocator, (&key, &earlier, &claims), records, &pools, &scope)
        });
        view.ledger = read.await?;
        self.note_earlier(&view.ledger.elsewhere);
        Ok(())
    }
}

/// Returns the settings of the pools of these interfaces, by name of the pool.
fn settings<'s>(index: &KnownMachines, selected: impl Iterator<Item = &'s Selected>) -> BTreeMap<String, PoolSettings> {
    let pools = selected.flat_map(Selected::all_pools).filter_map(|pool| index.selection().pool(pool));
    let settings = pools.map(|pool| {
        let (is_sticky, template) = (pool.spec.sticky, pool.spec.template.clone().filter(|text| !text.is_empty()));
        let gateways = pool.pool.as_ref().map(|pool| pool.settings().gateways.as_slice()).unwrap_or_default();
        let source = Source::of(&pool.spec, gateways);
        let not_ready = index.why_not_ready(&pool.id).map(str::to_owned);
        (pool.id.to_string(), PoolSettings { is_sticky, template, source, not_ready })
    });
    settings.collect()
}
