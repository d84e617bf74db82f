//! Gives a restored VirtualMachine the addresses of the earlier VirtualMachine with the same name. The manifest of a
//! restored VirtualMachine names the Secret of the earlier VirtualMachine, and this Secret records the addresses. The
//! decisions are pure, like those of [`super::decision`].
//!
//! The webhook gives each new VirtualMachine a Secret with a new name, and notes the name of the earlier Secret in an
//! annotation. The VirtualMachine gets the earlier addresses if they are free and the earlier machine is gone.

use glowplug::host::claim::{Claimant, Machine, Record};
use glowplug::host::may_record::Source;
use glowplug::host::pool::{Pool, home_in_group};

use crate::cluster::key::PoolId;
use crate::kinds::kubevirt_machine::{NetworkSecret, OwnSecret, uid};
use crate::kinds::network_data::{is_issued_for, name_of_0_2_0};
use crate::kinds::virtual_machine::VirtualMachine;
use crate::machines::step::{Once, Step};
use crate::machines::view::{Claimed, View};
use crate::passes::Problem;
use crate::pools::selection::Selected;

impl View {
    /// Returns the next step with which a machine without an address gets the addresses of an earlier machine of the
    /// same name. `None`: no record of an earlier machine is left, or the machine gets other addresses.
    pub(super) fn restore(&self, vm: &VirtualMachine, selected: &[Selected], claimed: &Claimed) -> Option<Step> {
        // The earlier addresses are still closed. A later pass finds them open.
        if self.has_done(Once::Restore) && self.problem.as_ref().is_some_and(Problem::is_of_opening) {
            return Some(Step::Wait);
        }
        let holds = self.ledger.held.iter().any(|held| held.claimant.machine == claimed.machine);
        let is_told = vm.requested.as_ref().map_or(true, |requested| !requested.is_empty());
        if holds || is_told || self.granted.is_some() || self.problem.is_some() || self.has_done(Once::Restore) {
            return None;
        }
        let own = |name: &&str| is_issued_for(name, &self.key.name) || *name == name_of_0_2_0(&self.key.name);
        // A VirtualMachine that was created without the webhook still refers to the Secret of the earlier
        // VirtualMachine.
        let is_earlier = |name: &&str| match self.secrets.get(*name) {
            Some(NetworkSecret::Ours(own)) => own.vm != uid(&vm.metadata),
            _ => vm.secret() != Some(*name),
        };
        for name in vm.secret().into_iter().chain(vm.replaced().rev()).filter(own).filter(is_earlier) {
            match self.secrets.get(name) {
                None => return Some(Step::ReadSecret(name.to_owned())),
                Some(NetworkSecret::Ours(own)) if self.is_of_the_gone(own, claimed) => {
                    let records = self.records_of(own, selected, claimed);
                    if !records.is_empty() {
                        return Some(Step::Restore(records));
                    }
                }
                Some(_) => {}
            }
        }
        None
    }

    /// Returns the step of [`View::restore`] for a machine whose template must get another reference. If the claimant
    /// of the machine is not known yet, returns the step that finds the claimant. `None`: there is nothing to restore.
    pub(super) fn restore_first(&self, vm: &VirtualMachine) -> Option<Step> {
        let selected = self.selected.as_ref().ok()?;
        match self.claimant(vm) {
            Ok(claimed) => self.restore(vm, selected, &claimed?),
            Err(step) => Some(step),
        }
    }

    /// Whether the holder of a Secret and the guest that reads the Secret are gone. The machine `claimed` counts as
    /// gone.
    fn is_of_the_gone(&self, own: &OwnSecret, claimed: &Claimed) -> bool {
        let is_there = own.machine != claimed.machine && self.ledger.known.contains(&own.machine);
        let is_read = self.instance.as_ref().is_some_and(|it| it.secret() == Some(own.name()));
        !is_there && !is_read
    }

    /// Returns the addresses of a Secret as records of the machine `claimed`. An interface is left out if no pool of
    /// this machine has its first address, if another program chooses the addresses of the pool, or if `preAllocations`
    /// of a pool names this machine.
    fn records_of(&self, own: &OwnSecret, selected: &[Selected], claimed: &Claimed) -> Vec<Record> {
        let records = own.interfaces.iter().filter_map(|given| {
            let is_it = |it: &&Selected| it.interface == given.interface && it.network == given.network;
            let pools = selected.iter().find(is_it)?.pools().map(PoolId::to_string);
            let group: Vec<&Pool> = pools.filter_map(|pool| self.ledger.pools.get(&pool)).collect();
            let pool = home_in_group(&group, &given.pool, given.addresses.first()?.ip())?;
            let Machine { namespace, name, .. } = &claimed.machine;
            let keeps = group.iter().any(|pool| !pool.pre_allocated(namespace, name).is_empty());
            let record = || Record {
                claimant: Claimant { machine: claimed.machine.clone(), interface: given.interface },
                node_pool: Some(pool.name().to_owned()),
                attachments: Vec::new(),
                network: Some(given.network.clone()),
                addresses: given.addresses.clone(),
                source: format!("Secret {}/{}", self.key.namespace, own.name()),
                kind: Source::Secret,
            };
            (!keeps && !pool.is_external()).then(record)
        });
        records.collect()
    }
}
