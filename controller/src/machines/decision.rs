//! Decides the next request for the machine of one name. Pure: the input is objects, the output is a request. This
//! module uses no server and no clock.
//!
//! [`crate::passes`] says what a pass is. [`decide`] returns the next step. [`View::note`] stores the part of a
//! response that neither the objects nor the registry show.
//!
//! | state of the machine | requests, in this order |
//! |---|---|
//! | needs its network data | in the VirtualMachine a reference to a Secret with a new name, leases with this name, the Secret, the annotation, the status map |
//! | the pool or the machine has changed | the Secret with a new document, or another reference and Secret |
//! | gone, according to consistent reads | delete its Secrets, release the leases, end the IPAddressClaims |
//!
//! These rules prevent two machines from using the same address:
//!
//! - Each VirtualMachine refers to a Secret whose name no machine had before, so no guest reads the Secret of another machine.
//! - The addresses in a Secret never change. When the Secret of a machine and the leases differ, the Secret is right, and the
//!   controller changes the leases.
//! - A lease lists all Secrets with its address that a guest may read. The lease has the name of a Secret before the
//!   Secret exists.
//! - An address is released only when no guest can read a Secret with the address any more. In addition, the machine of
//!   the address must be gone, must have moved to another network, or must never have received the address.
//! - In the check whether a machine is gone, a Secret that no lease names counts as a Secret of this machine, unless a
//!   later VirtualMachine refers to the Secret, or the Secret does not exist and the leases name the Secrets of this
//!   machine. Of the machines of one name, such a Secret counts only for those with the oldest leases.
//! - A VirtualMachine gets the addresses of a KubevirtMachine only if both have the same namespace and name. Labels
//!   alone are no proof: any user who has the right to create a VirtualMachine can choose its labels. If the
//!   KubevirtMachine is in another namespace or in another cluster, the VirtualMachine itself holds the addresses.
//! - A lease of version 0.2.0 may name a KubevirtMachine in another namespace. The address of such a lease belongs to
//!   the VirtualMachine in the namespace that the lease names, until this VirtualMachine and its guest are gone.

use glowplug::host::Timestamp;

use crate::kinds::kubevirt_machine::is_deleted;
use crate::machines::step::{Once, Step};
use crate::machines::view::{Granted, Response, View};
use crate::passes::{Ended, Problem};

/// Returns the next step of a pass. If nothing else is left to do, the step corrects the annotation that says why a
/// machine waits, publishes events about doubtful records, or ends the other claims of machines that are gone. Users can
/// create any number of claims that name the machine, and these claims must not delay its network data.
pub(super) fn decide(view: &View) -> Step {
    let others = || view.sources.claims.iter().filter(|claim| !view.serves(claim));
    match next(view) {
        Step::Wait => {
            let last = view.annotate_waiting().or_else(|| view.report_doubts());
            last.or_else(|| view.end_claims(others())).unwrap_or(Step::Wait)
        }
        step => step,
    }
}

/// Returns the next step of a pass, without the steps that [`decide`] adds when nothing else is left to do.
fn next(view: &View) -> Step {
    // The addresses that a guest uses are recorded first. Then the pass checks whether the holders of addresses are
    // gone.
    let recorded = view.record_migration().or_else(|| view.adopt_guest()).or_else(|| view.reserve_data_of_user());
    // A claim of an earlier machine may have the name that the machine needs for its own claim.
    let needed = || view.sources.claims.iter().filter(|claim| view.serves(claim));
    if let Some(step) = recorded.or_else(|| view.look_for_the_gone()).or_else(|| view.end_claims(needed())) {
        return step;
    }
    match &view.vm {
        Some(vm) if is_deleted(&vm.metadata) => view.end(vm),
        Some(vm) => view.serve(vm),
        None => view.wake(),
    }
}

// === impl View ===

impl View {
    /// Stores the part of a response that neither the objects nor the registry show. The pass itself reads the objects
    /// again after each step, and the registry again after each step that may change its state.
    pub(super) fn note(&mut self, step: Step, response: Response) {
        let once = step.once();
        match &step {
            Step::Adopt(_, secret) => drop(self.adopted.insert(secret.clone())),
            Step::RecordSecrets(_, secrets) => self.named.extend(secrets.iter().cloned()),
            Step::Reserve(all) => self.reserved.extend(all.iter().map(|it| it.source.clone())),
            // The record of an earlier address may have used the place of these addresses in the share of the namespace.
            Step::EndRecords(_) => self.reserved.clear(),
            _ => {}
        }
        match (step, response) {
            // The API server has not stored the patch, so the step is not done. The next decision makes a patch for the
            // version that is stored now.
            (_, Response::NotStored) => return,
            (_, Response::Secret(name, secret)) => drop(self.secrets.insert(name, secret)),
            (_, Response::OtherAddresses(name, addresses)) => drop(self.other_addresses.insert(name, addresses)),
            (Step::ReadAddress(name) | Step::PatchAddress(name, _), Response::Address(address)) => {
                self.addresses.insert(name, *address);
            }
            (Step::Claim(claim), Response::Granted(allocations)) => {
                self.granted = Some(Granted { allocations, secret: claim.secret.unwrap_or_default() });
            }
            (_, Response::Refused(problem)) => self.problem = Some(problem),
            // After the release, the machine can claim addresses again.
            (Step::Release(_), Response::Done) => self.problem = None,
            (Step::Prove(holder), Response::Checked(check)) => drop(self.checked.insert(holder, check)),
            (_, Response::Done | Response::Granted(_) | Response::Address(_) | Response::Checked(_)) => {}
        }
        self.done.extend(once);
    }

    /// Returns the result of a pass that has no next step. `now` is the current time.
    pub(super) fn ended(&self, now: Timestamp) -> Ended {
        // This pass has requested that capk create the VirtualMachine again. The webhook of another replica may reject
        // this VirtualMachine, so the name needs another pass.
        let is_unsettled = self.has_done(Once::Retry);
        let problem = self.problem.as_ref();
        let is_of_pool = problem.is_some_and(Problem::is_of_pool);
        if is_of_pool || self.waits_for_address() || is_unsettled || self.is_disputed() {
            Ended::waiting(false, problem, now)
        } else if self.is_waiting() {
            Ended::waiting(!self.ledger.waiting.is_empty(), problem, now)
        } else {
            Ended::Well
        }
    }
}

#[cfg(test)]
mod tests;
