//! Reads the network data that users have written for machines, in a program that is not the leader. The leader's own
//! decisions find the addresses: see [`super::before_opening`].

use std::collections::{BTreeMap, BTreeSet};

use glowplug::host::allocator::Allocator;
use glowplug::host::claim::{Machine, Reservation, is_object_name};

use crate::cluster::key::Key;
use crate::kinds::kubevirt_machine::{Instance, NetworkSecret};
use crate::kinds::virtual_machine::{NetworkData, VirtualMachine};
use crate::machines::before_opening::{has_data_of_user, reach, unread_secrets};
use crate::machines::kind::Kinds;
use crate::machines::recorded::Recorded;
use crate::machines::step::Step;
use crate::machines::view::{Chosen, Response, View};
use crate::pools::selection::Selection;

/// The VirtualMachine and the instance of one name.
#[derive(Clone, Copy)]
pub(crate) struct MachineObjects<'o> {
    pub(crate) key: &'o Key,
    pub(crate) vm: Option<&'o VirtualMachine>,
    pub(crate) instance: Option<&'o Instance>,
}

/// Returns the reservations that a leader makes at its start for the addresses that users have written into the network
/// data of machines: in a Secret, in the VirtualMachine or in the instance.
///
/// - `allocator`: the state of the leader after it has adopted the records, the reports and the Secrets of the
///   controller
/// - `scope`: the only namespace in which the controller works. Empty: every namespace
/// - `secret`: returns the Secret with this namespace and name
pub(crate) fn reservations_of_users<'o>(
    machines: impl Iterator<Item = MachineObjects<'o>>,
    selection: &Selection,
    (allocator, scope): (&Allocator, &str),
    secret: impl Fn(&Key) -> NetworkSecret,
) -> Vec<Reservation> {
    let conflicts = allocator.conflicts().map(|(.., conflict)| conflict.claimant.machine);
    let holders = allocator.leases().map(|(.., lease)| lease.claimant.machine.clone()).chain(conflicts);
    let (mut holding, mut earlier) = (BTreeSet::new(), BTreeMap::<Key, BTreeSet<Machine>>::new());
    for holder in holders.filter(Machine::may_exist) {
        holding.insert(holder.served_in().to_owned());
        if holder.vm_namespace.is_some() {
            earlier.entry(Key::of_vm(&holder)).or_default().insert(holder);
        }
    }
    let none = BTreeSet::new();
    let mut reservations = Vec::new();
    for machine in machines {
        let MachineObjects { key, vm, instance } = machine;
        // A pass also reads the Secrets that leases name.
        let unread = unread_secrets((vm, instance), &[], |_| BTreeSet::new());
        if unread.is_empty() && !has_data_of_user(vm, instance) {
            continue;
        }
        let Some((chosen, networks)) = machine.reach(selection, &holding) else { continue };
        let kinds = Kinds { has_kubevirt_machines: true, claims: None, has_ipam_claims: true };
        let mut view = View::new(key.clone(), kinds);
        (view.vm, view.instance) = (vm.cloned(), instance.cloned());
        (view.selected, view.other_networks) = (chosen, networks);
        let holders = (key, earlier.get(key).unwrap_or(&none), &none);
        view.ledger = Recorded::read(allocator, holders, (&[], &BTreeSet::new(), false, 0), &[], scope);
        let secret = |name: &str| secret(&Key { namespace: key.namespace.clone(), name: name.to_owned() });
        while let Some(step) = view.adopt_each(unread.clone()).or_else(|| view.reserve_data_of_user()) {
            let response = match &step {
                Step::ReadSecret(name) => Response::Secret(name.clone(), view.check(secret(name))),
                Step::ReadOtherSecret(name) => Response::OtherAddresses(name.clone(), secret(name).addresses()),
                Step::Reserve(all) => {
                    reservations.extend(all.iter().cloned());
                    Response::Done
                }
                // The addresses of the controller's own Secret are records, and not network data of a user.
                _ => Response::Done,
            };
            view.note(step, response);
        }
    }
    reservations
}

// === impl MachineObjects ===

impl<'o> MachineObjects<'o> {
    /// Returns the names of the Secrets that users have written and that have network data of the machine. Empty if the
    /// network data of the machine reserves no address. `holding` has the namespaces of the objects that hold addresses.
    pub(crate) fn secrets_of_users(self, selection: &Selection, holding: &BTreeSet<String>) -> BTreeSet<&'o str> {
        let template = self.vm.and_then(|vm| vm.cloud_init.as_ref()).map(|volume| &volume.network_data);
        let guest = self.instance.filter(|instance| !instance.has_ended).map(|instance| &instance.network_data);
        let of_user = |data: &'o NetworkData| match data {
            NetworkData::Secret(name) if data.secret_of(&self.key.name).is_none() => Some(name.as_str()),
            _ => None,
        };
        let all = template.into_iter().chain(guest).filter_map(of_user).filter(|name| is_object_name(name));
        let all: BTreeSet<&str> = all.collect();
        match all.is_empty() || self.reach(selection, holding).is_none() {
            true => BTreeSet::new(),
            false => all,
        }
    }

    fn reach(self, selection: &Selection, holding: &BTreeSet<String>) -> Option<(Chosen, BTreeSet<String>)> {
        reach(self.key, (self.vm, self.instance), selection, holding.contains(&self.key.namespace))
    }
}
