//! The start of a leader: adopts the addresses that objects record, finds the outstanding claims, and chooses the order
//! of the first passes.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use futures::{StreamExt as _, TryStreamExt as _, stream};
use glowplug::host::allocator::Problem;
use glowplug::host::claim::{Claimant, Machine};
use glowplug::host::may_record::Ignored;
use glowplug::host::records::{Inventory, Objects};
use glowplug::network::InterfaceName;
use tokio::task::yield_now;
use tracing::field::display;

use crate::cluster::key::Key;
use crate::kinds::kubevirt_machine::NetworkSecret;
use crate::kinds::pool::HolderKind;
use crate::ledger::types::Stopped;
use crate::machines::before_opening::{has_data_of_user, reach, unread_secrets};
use crate::machines::known_machines::KnownMachines;
use crate::machines::proof::kind_of;
use crate::machines::step::{Notice, Step};
use crate::machines::view::{Chosen, Response, View};
use crate::machines::work::{Work, reference};
use crate::passes::{Error, PASSES};
use crate::pools::selection::Selection;

/// Pause between the first passes of two machines if these passes only compare objects.
const COMPARISON: Duration = Duration::from_millis(2);

/// Pause between the first passes of two served machines without a digest: such a pass reads a Secret, and writes the
/// digest.
const READ: Duration = Duration::from_millis(20);

/// Pause between the second passes of two machines. Such a pass reads the Secret of a machine whose first pass has only
/// compared the digest.
const CHECK: Duration = Duration::from_millis(100);
/// Shortest pause between the comparison of a machine and the pass that reads its Secret.
const FIRST_CHECK: Duration = Duration::from_secs(60);

/// Number of machines whose records are read before other tasks get a turn.
const RECORDS: usize = 256;

/// A machine whose network data the leader must know before new addresses are open.
#[derive(Clone)]
struct Early {
    key: Key,
    /// The pools that select the machine, with the pools of the growth.
    chosen: Chosen,
    /// Value of [`View::other_networks`], with the pools of the growth.
    networks: BTreeSet<String>,
}

// === impl Work ===

impl Work<'_> {
    /// Makes the registry adopt the addresses of these machines: from records, from the reports of guests, and from
    /// network data. `selection` has the pools of the growth. Older machines must come first.
    pub(super) async fn adopt_of(&self, names: Vec<Key>, selection: &Selection) -> Result<(), Error> {
        let objects = self.records(&names).await;
        let mut records = self.index().inventory(objects);
        let last = self.index().take_followers(&mut records);
        self.rebuild(records).await?;
        // Records are adopted before the reports of guests are processed, because a record can become a lease and a
        // report cannot. The records in `last` count less than reports, so they are adopted after the reports.
        self.machines.reports.settle().await?;
        if !last.records.is_empty() {
            self.rebuild(last).await?;
        }
        self.adopt_network_data(names, selection).await
    }

    /// Returns the records of these machines.
    async fn records(&self, names: &[Key]) -> Objects {
        let mut records = Objects::default();
        for names in names.chunks(RECORDS) {
            {
                let index = self.index();
                names.iter().for_each(|key| index.read_records(key, &mut records));
            }
            // Passes and webhooks must be able to run meanwhile.
            yield_now().await;
        }
        records
    }

    /// Makes the registry adopt the addresses that machine objects record.
    async fn rebuild(&self, mut inventory: Inventory) -> Result<(), Stopped> {
        let registry = &self.machines.registry;
        self.note_earlier(&registry.holders_elsewhere().await?);
        let leased = registry.read(|allocator| {
            let leases = allocator.leases().map(|(_, address, lease)| (Claimant::clone(&lease.claimant), address));
            leases.collect::<BTreeSet<(Claimant, IpAddr)>>()
        });
        let leased = leased.await?;
        let known = without(&mut inventory, &leased);
        for diagnostic in &inventory.diagnostics {
            let machine = diagnostic.claimant.as_ref().map(|claimant| display(Key::of_vm(&claimant.machine)));
            tracing::warn!(machine, %diagnostic, "a record of a machine cannot be used; its addresses are not allocated");
        }
        // A diagnostic without a claimant is about a record without an interface, which the controller never writes.
        inventory.diagnostics.retain(|diagnostic| diagnostic.claimant.is_some());
        // The log gets a line for each machine with adopted addresses, for example after a loss of leases.
        let unknown = inventory.records.clone();
        let rebuilt = registry.rebuild(inventory).await?;
        let (adopted, known) = (rebuilt.adoption.adopted, rebuilt.adoption.known + known);
        let without_record = rebuilt.without_record.len();
        tracing::info!(adopted, known, without_record, "compared the records of machines with the leases");
        self.log_adoption(&unknown, &rebuilt.adoption);
        for mismatch in &rebuilt.adoption.mismatches {
            let Some(reason) = reason_of(&mismatch.problem) else { continue };
            let (machine, note) = (&mismatch.claimant.machine, mismatch.to_string());
            self.publish_about(reference(kind_of(machine.kind), machine), &Notice { is_warning: true, reason, note });
        }
        Ok(())
    }

    /// Returns the names of machines that need an address. Older machines come first.
    pub(super) fn outstanding(&self, holders: &BTreeSet<Machine>) -> Vec<Key> {
        let mut names = self.index().by_age();
        names.retain(|key| {
            let index = self.index();
            let is_selected = !matches!(index.selected(key), Ok(selected) if selected.is_empty());
            is_selected && !is_held(&index, holders, key)
        });
        names
    }

    /// Adopts or reserves the addresses that are in the network data of these machines and possibly in no lease and no
    /// record, see [`super::before_opening`].
    async fn adopt_network_data(&self, names: Vec<Key>, selection: &Selection) -> Result<(), Error> {
        let (of_controller, of_users) = self.unknown_data(names, selection).await?;
        // Secrets of the controller come first: only their addresses can become leases.
        self.take_early_steps(of_controller, View::adopt_secrets).await?;
        self.take_early_steps(of_users, View::reserve_data_of_user).await
    }

    /// Returns the machines among `names` with a Secret that the leader must read before new addresses are open, and
    /// the machines with network data of a user.
    async fn unknown_data(&self, names: Vec<Key>, selection: &Selection) -> Result<(Vec<Early>, Vec<Early>), Error> {
        let registry = &self.machines.registry;
        let holders = registry.holders().await?;
        let holding: BTreeSet<&str> = holders.iter().map(Machine::served_in).collect();
        let leased = registry.read(|allocator| {
            let mut interfaces = BTreeMap::<(Key, String), BTreeSet<(InterfaceName, String)>>::new();
            for (network, _, lease) in allocator.leases() {
                let Claimant { machine, interface } = &*lease.claimant;
                for secret in &lease.secrets {
                    let of_secret = interfaces.entry((Key::of_vm(machine), secret.clone())).or_default();
                    of_secret.insert((*interface, network.to_owned()));
                }
            }
            interfaces
        });
        let leased = leased.await?;
        let index = self.index();
        let (mut of_controller, mut of_users) = (Vec::new(), Vec::new());
        for key in names {
            let (vm, instance) = (index.vm(&key), index.instance(&key));
            let is_holding = holding.contains(&*key.namespace);
            let Some((chosen, networks)) = reach(&key, (vm, instance), selection, is_holding) else { continue };
            let leased_on = |secret: &str| leased.get(&(key.clone(), secret.to_owned())).cloned().unwrap_or_default();
            // A machine claims an address only after this leader has found that its Secret does not exist. A guest that
            // has not started waits for this Secret. Thousands of waiting machines must not delay each growth.
            let waits = || {
                let has_started = instance.is_some_and(|instance| instance.has_started);
                !has_started && !index.memory(&key).claimed.is_empty()
            };
            let selected = chosen.as_deref().unwrap_or_default();
            let is_unread = !unread_secrets((vm, instance), selected, leased_on).is_empty() && !waits();
            let is_of_user = has_data_of_user(vm, instance);
            let early = Early { key, chosen, networks };
            of_users.extend(is_of_user.then(|| early.clone()));
            of_controller.extend(is_unread.then_some(early));
        }
        Ok((of_controller, of_users))
    }

    /// Sends the requests of the steps that `next` returns for each machine.
    async fn take_early_steps(&self, names: Vec<Early>, next: fn(&View) -> Option<Step>) -> Result<(), Error> {
        let steps = stream::iter(names).map(|early| self.take_early_steps_of(early, next));
        steps.buffer_unordered(PASSES).try_collect().await
    }

    async fn take_early_steps_of(&self, early: Early, next: fn(&View) -> Option<Step>) -> Result<(), Error> {
        let Early { key, chosen, networks } = early;
        let mut view = self.look(&key).await?;
        (view.selected, view.other_networks) = (chosen, networks);
        while let Some(step) = next(&view) {
            let response = match self.request(&view, step.clone()).await {
                // One Secret that the API server does not let the controller read must not delay the other machines.
                Err(Error::Request(error)) if error.refusal().is_some() => {
                    tracing::warn!(machine = %key, %error, "could not read the network data of a machine");
                    // The machine may have addresses from another Secret, too.
                    match &step {
                        Step::ReadSecret(name) => Response::Secret(name.clone(), NetworkSecret::Absent),
                        Step::ReadOtherSecret(name) => Response::OtherAddresses(name.clone(), Vec::new()),
                        _ => return Ok(()),
                    }
                }
                // The guest may have an address that nothing else records, so no new address is open before this read
                // succeeds.
                Err(Error::Request(error)) => {
                    let machine = key.to_string();
                    return Err(Error::NotReady(format!("the network data of {machine:?} cannot be read: {error}")));
                }
                // The API server has a lease of the address for this machine, so it refuses a lease for another machine.
                Err(Error::Behind) => Response::Done,
                response => response?,
            };
            let changes_registry = step.changes_registry();
            view.note(step, response);
            if changes_registry {
                self.read_registry(&mut view).await?;
            }
        }
        Ok(())
    }

    /// Returns the names that get a pass after the start, each with its pause. A machine that may wait for its Secret
    /// gets its pass at once. Machines whose objects are only compared get their passes one after another, so that a
    /// new machine does not wait for thousands of comparisons. `before` has the holders from before the start,
    /// `holders` has the holders now. `changed` has the names whose objects have changed since the adoption of records
    /// began: for these names, a comparison is not enough.
    pub(super) fn names_at_the_start(
        &self,
        (before, holders): (&BTreeSet<Machine>, &BTreeSet<Machine>),
        changed: &BTreeSet<Key>,
    ) -> Vec<(Key, Duration)> {
        let mut index = self.index();
        let names_of = |holders: &BTreeSet<Machine>| -> BTreeSet<Key> {
            holders.iter().filter(|holder| !holder.kind.is_claim()).map(Key::of_vm).collect()
        };
        let before = names_of(before);
        let is_done = |key: &Key| !changed.contains(key) && index.is_served(key, before.contains(key));
        let (done, mut names): (Vec<Key>, Vec<Key>) = index.by_age().into_iter().partition(is_done);
        // Machines that no longer exist may still hold addresses.
        let known: BTreeSet<Key> = done.iter().chain(&names).cloned().collect();
        let left: BTreeSet<Key> = names_of(holders).into_iter().chain(index.vms_with_claims()).collect();
        names.extend(left.into_iter().filter(|key| !known.contains(key)));
        let now = names.into_iter().map(|key| (key, Duration::ZERO));
        let (compared, read): (Vec<Key>, Vec<Key>) = done.into_iter().partition(|key| index.has_digest(key));
        let each = |names: Vec<Key>, pause: Duration| {
            names.into_iter().zip(1..).map(move |(key, nth)| (key, pause.saturating_mul(nth)))
        };
        let checks = each(compared.clone(), CHECK).map(|(key, pause)| (key, FIRST_CHECK + pause));
        index.set_comparisons(checks.collect());
        now.chain(each(compared, COMPARISON)).chain(each(read, READ)).collect()
    }
}

/// Whether an address is held for the VirtualMachine of a name: by a machine of this name, by a record of this machine
/// without a lease, or by a KubevirtMachine of another namespace.
fn is_held(index: &KnownMachines, holders: &BTreeSet<Machine>, key: &Key) -> bool {
    let holders = holders.range(key.holder(HolderKind::default(), "")..);
    let mut of_name = holders.take_while(|holder| Key::of_machine(holder) == *key);
    // A claim may have the name of a machine.
    of_name.any(|holder| !holder.kind.is_claim()) || !index.earlier_of(key).is_empty()
}

/// Removes from `inventory` each address for which its claimant has a lease. Returns the number of these addresses.
fn without(inventory: &mut Inventory, leased: &BTreeSet<(Claimant, IpAddr)>) -> usize {
    let mut known = 0;
    for record in &mut inventory.records {
        let all = record.addresses.len();
        let claimant = record.claimant.clone();
        record.addresses.retain(|address| !leased.contains(&(claimant.clone(), address.ip())));
        known += all - record.addresses.len();
    }
    inventory.records.retain(|record| !record.addresses.is_empty());
    known
}

/// Returns the reason of the event about a record that cannot be adopted. `None`: there is nothing for a person to
/// resolve, because the machine keeps the address, or the record has no effect.
fn reason_of(problem: &Problem) -> Option<&'static str> {
    use Problem::{Ambiguous, Duplicate, NoPool, OtherAddress, OtherNetwork, Reserved, ReuseDelay};
    let is_conflict = match problem {
        Problem::NotRecorded(_) => return Some("IPAddressUnavailable"),
        Duplicate(_) | ReuseDelay(_) | NoPool | Ambiguous(_) | OtherAddress(_) | OtherNetwork(_) | Reserved(..) => true,
        // Another machine may get the address.
        Problem::Ignored(why) => *why == Ignored::Share,
        _ => false,
    };
    is_conflict.then_some("IPAddressConflict")
}

#[cfg(test)]
mod tests {
    use glowplug::host::allocator::ClaimError;

    use super::*;

    #[test]
    fn a_record_whose_problem_a_person_must_resolve_has_an_event() {
        let address = "10.0.0.8".parse().unwrap();
        let refused = ClaimError::NotRecorded { reason: "denied".to_owned() };
        let reasons = [
            (Problem::NotRecorded(refused), Some("IPAddressUnavailable")),
            (Problem::OtherAddress(address), Some("IPAddressConflict")),
            (Problem::Ignored(Ignored::Share), Some("IPAddressConflict")),
            (Problem::Ignored(Ignored::OtherNamespace), None),
            (Problem::Prefix(24), None),
        ];
        for (problem, reason) in reasons {
            assert_eq!(reason_of(&problem), reason, "{problem:?}");
        }
    }

    #[test]
    fn a_claim_with_the_name_of_a_machine_does_not_hold_for_the_machine() {
        let (index, key) = (KnownMachines::default(), Key { namespace: "n".to_owned(), name: "w".to_owned() });
        let is_held = |holders: &[(HolderKind, &str)]| {
            let holders = holders.iter().map(|(kind, uid)| key.holder(*kind, uid)).collect();
            super::is_held(&index, &holders, &key)
        };
        let claims = [(HolderKind::IpAddressClaim, "c-1"), (HolderKind::IpamClaim, "c-2")];
        assert!(!is_held(&claims));
        for kind in [HolderKind::KubevirtMachine, HolderKind::VirtualMachine] {
            assert!(is_held(&[claims[0], (kind, "d-1"), claims[1]]), "{kind}");
        }
    }
}
